"""`skipbench run suite.toml`: checkpoints × evaluations × data sets, as data.

read.py             TOML → checked entries; all mistakes at once, each with its path
plan.py             the cells, in the order they are run; data sets are opened
shared_features.py  one pass over the images for several evaluations
execute.py          runs the cells: finished ones are skipped, failures are recorded
ledger.py           which cells are done, and which have failed
forecast.py         estimates time and disk
"""

from skipbench.suites.execute import Outcome, carry_out, exit_code, run
from skipbench.suites.plan import Cell, Plan, make_plan
from skipbench.suites.read import Suite, read_suite

__all__ = [
    "Cell",
    "Outcome",
    "Plan",
    "Suite",
    "carry_out",
    "exit_code",
    "make_plan",
    "read_suite",
    "run",
]
