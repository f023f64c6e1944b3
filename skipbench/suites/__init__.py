"""`skipbench run suite.toml`: checkpoints × evaluations × data sets, as data.

read.py      TOML → checked entries; all mistakes at once, with line and key
plan.py      the cells, in the order they are done; data sets are opened
kinds.py     what can be evaluated; one entry each
sharing.py   one pass over the images for several evaluations
execute.py   the work: finished cells are skipped, failed ones written down
dry.py       what it would take
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
