"""What reads records: tables, comparisons, checks and the report.

read.py        records of folders and files
scores.py      one record as a score; --where: some of them
entries.py     its seeds together
words.py       how names, numbers and settings are written and sorted
tables/        `table`
report/        `report`
compare.py     `compare`, and its pictures; paired.py: the statistics
check.py       `check`; baseline.py: its file; check_formats.py: its verdicts as text
calibrate.py   `calibrate`; reruns a record
"""
