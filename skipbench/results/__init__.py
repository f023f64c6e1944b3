"""What reads records: tables, comparisons, checks and the report.

read.py        records of folders and files; pick.py: by id, name or path
scores.py      a record as a score; --where
entries.py     scores over seeds
words.py       how names, numbers and settings are written and sorted
tables/        `table`
report/        `report`
export.py      `results export`
compare.py     `compare`, and its pictures; paired.py: the statistics
check.py       `check`, and its verdicts as text; baseline.py: its file
calibrate.py   `calibrate`; reruns a record
reproduce.py   `reproduce`
"""
