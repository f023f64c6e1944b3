"""What reads records: tables, comparisons, checks and the report.

read.py      records of folders and files         where.py     --where: some of them
scores.py    one record as a score                entries.py   its seeds together
tables/      `table`                              report/      `report`
compare.py   `compare` (paired.py, compare_pictures.py)
check.py     `check` (baseline.py, check_formats.py)
calibrate.py `calibrate` (rerun.py)
"""
