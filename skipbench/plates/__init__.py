"""Figures for print: sheets of pictures with headings, curves; written as PNG and as PDF."""

from skipbench.plates.plots import Curve as Curve
from skipbench.plates.plots import Panel as Panel
from skipbench.plates.plots import chart as chart
from skipbench.plates.sheets import Row as Row
from skipbench.plates.sheets import dpi_of as dpi_of
from skipbench.plates.sheets import pages as pages
from skipbench.plates.sheets import save_pages as save_pages
