"""Curves as PNG, measured in pixels, and as SVG and PDF, read as text."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from skipbench.drawing.curves import Curve, Panel, curves_figure, line_styles, save_curves
from skipbench.drawing.figure import rasterize
from skipbench.results.report.charts import ticks

NAN = float("nan")
SKIP, SKIPLESS = (213, 94, 0), (0, 114, 178)


def curve(variant, ys, label="", bands=()):
    return Curve(label or variant, variant, list(enumerate(ys, 1)), bands)


def panel(*curves):
    return Panel("share of variance", "block", "%", curves)


def count(picture, colour, tolerance=12):
    return (np.abs(np.asarray(picture).astype(int) - colour).max(2) <= tolerance).sum()


def drawn(*panels):
    return rasterize(curves_figure(panels))


def lines_of(svg, colour):
    """`d` of each line of this colour, but for those of the legend."""
    found = re.findall(r'<path d="([^"]*)"([^>]*)', svg)
    return [
        way for way, rest in found
        if "fill: none" in rest and f"stroke: {colour}" in rest and "clip-path" in rest
    ]  # fmt: skip


def svg_of(folder, *panels):
    return save_curves(panels, folder / "curves")[2].read_text()


def test_files_of_all_kinds(tmp_path):
    panels = [panel(curve("skip", [1, 2, 4]), curve("skipless", [3, 2, 1]))] * 3
    png, pdf, svg = save_curves(panels, tmp_path / "a.b")
    assert [path.name for path in (png, pdf, svg)] == ["a.b.png", "a.b.pdf", "a.b.svg"]
    with Image.open(png) as picture:
        assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        inches = np.array(picture.size) / 300
        assert picture.mode == "RGB"
        pixels = np.asarray(picture)
        assert all(count(pixels, colour) > 300 for colour in (SKIP, SKIPLESS))
        assert (pixels[[0, -1]] == 255).all() and (pixels[:, [0, -1]] == 255).all()
    content = pdf.read_bytes()
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", content).groups()
    assert np.array(box, float) / 72 == pytest.approx(inches, abs=0.01)
    assert b"/Subtype /Image" not in content and b"/Type3" not in content
    root = ElementTree.fromstring(svg.read_text())
    assert root.tag.endswith("svg") and not list(root.iter("{http://www.w3.org/2000/svg}image"))
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    for text, times in (("share of variance", 3), ("block", 3), ("skip", 1), ("skipless", 1)):
        assert texts.count(text) == times, text
    assert len(lines_of(svg.read_text(), "#d55e00")) == 3
    assert len(lines_of(svg.read_text(), "#0072b2")) == 3


def test_equal_curves_are_equal_files(tmp_path):
    panels = [panel(curve("skip", [1, 2, 4], bands=[(0, 2), (1, 3), (3, 5)]))]
    one, other = (save_curves(panels, tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    assert all(b"Date" not in path.read_bytes() for path in one)
    assert "dc:date" not in one[2].read_text()


def test_panels_are_in_two_columns():
    one, two, three = (drawn(*[panel(curve("skip", [1]))] * n) for n in (1, 2, 3))
    assert two.width == three.width == 2 * one.width
    assert one.height == two.height < three.height


def test_a_band_is_lighter_than_its_line():
    band = tuple(round(255 + (c - 255) * 0.2) for c in SKIP)
    ys, ends = [1, 2, 4], [(0, 2), (1, 3), (3, 5)]
    assert count(drawn(panel(curve("skip", ys))), band, 3) < 300
    assert count(drawn(panel(curve("skip", ys, bands=ends))), band, 3) > 5000
    alone = np.asarray(drawn(panel(curve("skip", ys, bands=[None, None, (0, 9)])))).astype(int)
    tinted = alone[:600, :, 0] - alone[:600, :, 2] > 15
    assert tinted.any(1).sum() > 450  # a bar, as high as the axes but for their margins
    assert tinted.sum() < 10_000


def test_what_is_missing_leaves_a_gap(tmp_path):
    def pieces(ys):
        (way,) = lines_of(svg_of(tmp_path, panel(curve("skip", ys))), "#d55e00")
        return way.count("M")

    assert pieces([5, 5, 5, 5, 5]) == 1
    assert pieces([5, 5, NAN, 5, 5]) == pieces([5, 5, float("inf"), 5, 5]) == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "ys", [[7], [0, 0], [NAN], [], [-3, -1], [1e15, -1e15], [1e-300, 2e-300], [5, 5 + 1e-12],
           [1e-9, 2e-9]],
)  # fmt: skip
def test_odd_values(ys, tmp_path):
    odd = curve("skip", ys, bands=[(NAN, 1), (0, 0)][: len(ys)])
    assert all(path.stat().st_size for path in save_curves([panel(odd)], tmp_path / "odd"))


@pytest.mark.filterwarnings("error")
def test_nothing_there(tmp_path):
    assert save_curves([], tmp_path / "none")
    assert save_curves([Panel("", "", "", ())], tmp_path / "none")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("label", ["$x_1$ & <b>", r"$\frac{", "long name " * 40, "x" * 300])
def test_names_of_all_kinds(label, tmp_path, capfd):
    labels = [label, label + " 日本語", "undecodable \udcff"]
    curves = [curve("skip", [1, 2], one) for one in labels]
    png, _, svg = save_curves([panel(*curves)], tmp_path / "odd")
    text = "".join(ElementTree.fromstring(svg.read_text()).itertext())
    kept = label.replace(" ", "")
    assert "".join(text.split()).count(kept) == 2 and "□□□" in text and "undecodable □" in text
    with Image.open(png) as picture:
        pixels = np.asarray(picture)
    assert (pixels[[0, -1]] == 255).all() and (pixels[:, [0, -1]] == 255).all()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("blocks", [range(12), range(24), range(40), (0, 11), (7,), (2, 5)])
def test_ticks_of_blocks_are_whole_numbers(blocks):
    figure = curves_figure(
        [Panel("t", "block", "%", [Curve("a", "skip", [(b, 1) for b in blocks])])]
    )
    rasterize(figure)
    shown = [t for t in figure.axes[0].get_xticks() if min(blocks) <= t <= max(blocks)]
    assert 1 <= len(shown) <= 13 and all(tick == round(tick) for tick in shown)


def test_curves_of_one_variant_differ_without_colour():
    keys = [("skip", str(i)) for i in range(16)] + [("skipless", "0"), ("None", "a"), ("none", "b")]
    styles = line_styles(keys)
    looks = [
        (s["linestyle"], s["marker"]) for (variant, _), s in styles.items() if variant == "skip"
    ]
    assert len(set(looks)) == 16
    assert len({mark for _, mark in looks[:4]}) == len({dashes for dashes, _ in looks[:4]}) == 4
    assert len({styles[key]["color"] for key in (keys[0], *keys[16:18])}) == 3
    assert styles[keys[17]] != styles[keys[18]]
    many = drawn(panel(*(curve("skip", [i, i + 1], str(i)) for i in range(40))))
    assert many.height > drawn(panel(curve("skip", [1, 2]))).height


def test_ticks_of_the_report_are_round():
    assert ticks(0, 100, 6) == (0, 20, 40, 60, 80, 100)
    assert ticks(-0.31, 0.32, 7) == (-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3)
    for low in (-7.3, 0.0, 1e-7, 12345.6):
        for width in (1e-3, 0.7, 3, 99, 1e7):
            found = ticks(low, low + width, 8)
            assert 3 <= len(found) <= 9 and len(set(found)) == len(found)
