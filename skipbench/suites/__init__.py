"""`skipbench run suite.toml`: checkpoints × evaluations × data sets, as data.

read.py      TOML → checked entries; problems.py: all mistakes at once, each with its path
plan.py      the cells, in the order they are run; data sets are opened; which cells are done
execute.py   runs the cells: finished ones are skipped, failures are recorded
forecast.py  estimates time and disk
"""

from skipbench.suites.execute import Outcome, carry_out, exit_code, run
from skipbench.suites.plan import make_plan

__all__ = ["Outcome", "carry_out", "exit_code", "make_plan", "run"]
