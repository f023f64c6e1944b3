"""Curves over blocks: panels in a grid with one legend, as PNG, PDF and SVG."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.drawing.figure import LEAST_DPI, rasterize, style, text_width, vectorize, wrapped
from skipbench.drawing.sheet import save
from skipbench.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("png", "pdf", "svg")
WIDTH, HEIGHT = 3.3, 2.4  # inches, of a panel
FONT_SIZE, SAMPLE = 8, 48  # points; of a line in the legend, with its margins
LEGEND = {"fontsize": FONT_SIZE, "frameon": False, "handlelength": 3.5}
LINES = {"linewidth": 1.2, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.6}
COLOURS = {"skip": "#d55e00", "skipless": "#0072b2"}  # of Okabe and Ito
OTHER = "#565656"
DASHES = ("-", (0, (4, 2.5)), (0, (1, 2)), (0, (6, 2, 1, 2)))
MARKERS = "os^D"


@dataclass(frozen=True)
class Curve:
    label: str
    variant: str  # skip, skipless or anything else: decides the colour
    points: Sequence[tuple[float, float]]  # x, y; NaN leaves a gap
    bands: Sequence[tuple[float, float] | None] = ()  # 95 % interval of each point, or none


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]


Key = tuple[str, str]  # variant, label


def line_styles(keys: Iterable[Key]) -> dict[Key, dict[str, Any]]:
    """Colour by variant; 16 combinations of dashes and marker within a colour."""
    styles, counts = {}, Counter[str]()
    for variant, label in dict.fromkeys(keys):
        colour = COLOURS.get(variant, OTHER)
        n = counts[colour]
        styles[variant, label] = {
            "color": colour,
            "linestyle": DASHES[(n + n // len(MARKERS)) % len(DASHES)],
            "marker": MARKERS[n % len(MARKERS)],
            **LINES,
        }
        counts[colour] += 1
    return styles


@style()
def curves_figure(panels: Sequence[Panel], columns: int = 2) -> "Figure":
    from matplotlib.figure import Figure

    columns = max(1, min(columns, len(panels)))
    rows = max(1, ceil(len(panels) / columns))
    styles = line_styles((c.variant, c.label) for panel in panels for c in panel.curves)
    figure = Figure((columns * WIDTH, rows * HEIGHT), LEAST_DPI, layout="constrained")
    all_axes = figure.subplots(rows, columns, squeeze=False).flat
    for axes, panel in zip_longest(all_axes, panels):
        if panel is None:
            axes.set_axis_off()
            continue
        _draw_panel(axes, panel)
        for curve in panel.curves:
            _draw_curve(axes, curve, styles[curve.variant, curve.label])
    figure.align_ylabels()
    _add_legend(figure, styles)
    return figure


def _add_legend(figure: "Figure", styles: Mapping[Key, dict[str, Any]]) -> None:
    """Below the panels, in as many columns as there is room for; the figure grows by its lines."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    names = [wrapped(label, 72 * width - SAMPLE, FONT_SIZE) for _, label in styles]
    widths = [text_width(line, FONT_SIZE) for lines in names for line in lines]
    columns = max(1, int(72 * width // (max(widths, default=0) + SAMPLE)))
    handles = [
        Line2D([], [], label="\n".join(lines), **look)
        for lines, look in zip(names, styles.values(), strict=True)
    ]
    points = 1.7 * FONT_SIZE * ceil(sum(map(len, names)) / columns)
    figure.set_size_inches(width, height + points / 72)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, **LEGEND)


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(panel.title, size=FONT_SIZE)
    axes.set_xlabel(panel.x_label, size=FONT_SIZE)
    axes.set_ylabel(panel.y_label, size=FONT_SIZE)
    axes.tick_params(labelsize=FONT_SIZE - 1)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_curve(axes: "Axes", curve: Curve, look: Mapping[str, Any]) -> None:
    """Markers have a white edge, so that overlapping ones stay distinct."""
    xs, ys = zip(*curve.points, strict=True) if curve.points else ((), ())
    if any(curve.bands):
        lows, highs = zip(*(band or (nan, nan) for band in curve.bands), strict=True)
        # The edge shows the interval of a point whose neighbours have none.
        axes.fill_between(xs, lows, highs, color=look["color"], alpha=0.2, linewidth=1)
    axes.plot(xs, ys, **look)


@style()
def save_curves(panels: Sequence[Panel], stem: Path) -> list[Path]:
    """stem.png at 300 dpi, and stem.pdf and stem.svg as vectors."""
    figure = curves_figure(panels)
    written = [stem.with_name(f"{stem.name}.{kind}") for kind in KINDS]
    save(rasterize(figure), written[0], figure.dpi)
    for path in written[1:]:
        write_whole(path, vectorize(figure, path.suffix[1:]))
    return written
