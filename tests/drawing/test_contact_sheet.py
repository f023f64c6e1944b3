"""Sheets and curves, measured in their pixels; PDFs read by a second reader, written out here."""

import re
import shutil
import subprocess
import weakref
import zlib

import numpy as np
import pytest
from PIL import Image

from skipbench.errors import DataError, ResourceError
from skipbench.plates import Curve, Panel, Row, chart, dpi_of, pages, save_pages, sheets
from skipbench.plates.axes import tick_names, ticks, x_axis
from skipbench.plates.lettering import in_two, length, plain, shortened, wrapped
from skipbench.plates.marks import COLOURS, styles_of

RED, GREEN, BLUE = (200, 0, 0), (0, 160, 0), (0, 0, 200)
NAN = float("nan")


def flat(height, width, colour=RED):
    return np.full((height, width, 3), colour, np.uint8)


def extent(page, colour):
    """Left, top, right, bottom of what has this colour, half-open."""
    rows, columns = np.nonzero((np.asarray(page) == colour).all(2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def count(picture, colour, tolerance=12):
    near = np.abs(np.asarray(picture).astype(int) - colour).max(2) <= tolerance
    return near.sum()


def one(*args, **kwargs):
    (page,) = pages(*args, **kwargs)
    return page


def assert_clear_border(page, least=2):
    pixels = np.asarray(page)
    for edge in (pixels[:least], pixels[-least:], pixels[:, :least], pixels[:, -least:]):
        assert (edge == 255).all()


# -- sheets


def test_columns_are_of_one_width_and_gaps_are_even():
    row = Row("a.png", [flat(60, 90, RED), flat(60, 90, GREEN), flat(60, 90, BLUE)])
    page = one(["image", "skip", "skipless"], [row], width=180)
    (r0, r1, r2, r3), g, b = (extent(page, colour) for colour in (RED, GREEN, BLUE))
    assert r2 - r0 == g[2] - g[0] == b[2] - b[0] == 180
    assert r3 - r1 == 120 and (g[1], g[3]) == (b[1], b[3]) == (r1, r3)
    assert r0 == g[0] - r2 == b[0] - g[2] == page.width - b[2] > 0


def test_rows_are_evenly_apart():
    rows = [Row("x.png", [flat(50, 90, colour)]) for colour in (RED, GREEN, BLUE)]
    page = one(["image"], rows, width=90)
    red, green, blue = (extent(page, colour) for colour in (RED, GREEN, BLUE))
    assert green[1] - red[3] == blue[1] - green[3]


@pytest.mark.parametrize(
    ("height", "width"), [(1000, 40), (40, 1000), (45, 60), (60, 45), (7, 11), (1, 700)]
)
def test_aspect_ratio_is_kept_and_all_is_on_the_page(height, width):
    page = one(["image", "other"], [Row("a", [flat(height, width), flat(45, 60, BLUE)])], width=120)
    x0, y0, x1, y1 = extent(page, RED)
    scale = min(120 / width, 1.51 * 120 / height)
    assert abs((x1 - x0) - max(1, width * scale)) <= 1
    assert abs((y1 - y0) - max(1, height * scale)) <= 1
    left = extent(one(["image", "other"], [Row("a", [flat(45, 60)] * 2)], width=120), RED)[0]
    assert abs((x0 + x1) / 2 - (left + 60)) <= 1  # in the middle of its column
    assert abs((y0 + y1) / 2 - sum(extent(page, BLUE)[1::2]) / 2) <= 1  # and of its row
    assert_clear_border(page)


def test_an_upright_photograph_is_as_wide_as_its_column():
    page = one(["image"], [Row("", [flat(640, 426)])])
    assert extent(page, RED)[2] - extent(page, RED)[0] == 340


def test_a_few_pixels_stay_crisp():
    tiny = np.array([[RED, GREEN, BLUE]] * 2, np.uint8)
    page = one(["image"], [Row("", [tiny])], width=120)
    assert all((np.asarray(page) == c).all(2).sum() == 40 * 80 for c in (RED, GREEN, BLUE))


@pytest.mark.parametrize("columns", [1, 2, 13])
@pytest.mark.parametrize(
    "heading", ["skip", "h" * 200, "dino_vits16-skipless.epoch/300_ema", "W " * 15]
)
def test_headings_stand_over_their_columns(columns, heading):
    rows = [Row("a" * 300, [flat(40, 60)] * columns)]
    page = one([heading] * columns, rows, width=100, title="T " * 50, note="n" * 200)
    above = one([heading] * columns, rows, width=100)
    assert_clear_border(page)
    assert_clear_border(above)
    dark = np.asarray(above)[: extent(above, RED)[1]].max(2) < 128
    gap = (above.width - columns * 100) // (columns + 1)
    for column in range(columns):
        left = gap + column * (100 + gap)
        assert dark[:, left : left + 100].any()
        assert not dark[:, left - gap // 2 : left - 1].any()  # nothing between columns
        middle = np.nonzero(dark[:, left : left + 100])[1]
        assert abs((middle.min() + middle.max()) / 2 - 50) <= 3


def test_a_label_is_below_the_first_picture_only():
    page = one(["a", "b"], [Row("x" * 400, [flat(40, 60), flat(40, 60)])], width=150)
    left, _, right, bottom = extent(page, RED)
    grey = (np.asarray(page)[bottom:] < 200).all(2)
    assert grey[:, left : left + 150].any() and not grey[:, left + 150 :].any()
    assert not grey[:, :left].any() and right == left + 300 + left


def test_odd_labels_do_no_harm():
    odd = [
        "",
        "two\nlines\tand\x00more\u2028\u200b",
        "undecodable \udcff\ud800",
        "日本語 é – × →",
        " ",
    ]
    page = one(["\n"], [Row(label, [flat(20, 30)]) for label in odd], width=100, title="\n")
    lone = one([""], [Row("", [flat(20, 30)])] * 5, width=100)
    assert page.width == lone.width and page.height > lone.height
    assert_clear_border(page)


def test_nothing_there():
    assert list(pages(["a"], [])) == []
    page = one(["a", "b"], [Row("", [None, flat(20, 30)]), Row("x", [None, None])], width=90)
    assert extent(page, RED)[2] - extent(page, RED)[0] == 90
    with pytest.raises(ValueError, match="zip"):
        one(["a", "b"], [Row("", [flat(20, 30)])])


def test_pages_are_split_and_numbered(monkeypatch):
    said = []
    monkeypatch.setattr(sheets, "wrapped", lambda text, *_: said.append(text) or [])
    rows = [Row(str(i), [flat(4, 6)]) for i in range(23)]
    heights = [page.height for page in pages(["a"], rows, title="PCA", note="why", width=24)]
    assert heights[0] == heights[1] > heights[2]
    assert said == [w for i in "123" for w in (f"PCA ({i} of 3)", "why")]
    said.clear()
    list(pages(["a"], rows, title="PCA", width=24, rows_on_page=23))
    assert said == ["PCA", ""]


def test_pictures_are_read_when_their_page_is_drawn(tmp_path, monkeypatch):
    Image.fromarray(flat(20, 30)).save(tmp_path / "there.png")
    read = []
    monkeypatch.setattr(sheets, "read_image", lambda p, f=sheets.read_image: read.append(p) or f(p))
    rows = [Row("", [tmp_path / "there.png"]), Row("", [tmp_path / "gone.png"])]
    drawn = pages(["a"], rows, width=60, rows_on_page=1)
    assert read == []
    assert count(next(drawn), RED) == 60 * 40
    assert read == [tmp_path / "there.png"]
    with pytest.raises(DataError, match=r"gone\.png"):
        next(drawn)


def test_one_page_in_memory_at_a_time(tmp_path):
    seen = []

    def counted():
        for page in pages(["a"], [Row("", [flat(4, 6)])] * 4, width=24, rows_on_page=1):
            assert not any(reference() for reference in seen)
            seen.append(weakref.ref(page))
            yield page
            del page

    assert len(save_pages(counted(), tmp_path / "sheet")) == 5


# -- type


def test_type_is_made_to_fit():
    assert in_two("short", 200, 12) == ["short"]
    assert in_two("skipless dino_vits16", 90, 12) == ["skipless", "dino_vits16"]
    assert in_two("skipless_dino_vits16", 90, 12) == ["skipless_", "dino_vits16"]
    assert in_two("", 90, 12) == []
    cut = shortened("0123456789" * 20, 100, 12)
    assert cut.startswith("012") and cut.endswith("789") and length(cut, 12) <= 100
    assert shortened("folder/" * 20 + "name.png", 100, 12, 0).startswith("…")
    assert shortened("folder/" * 20 + "name.png", 100, 12, 0).endswith("name.png")
    assert shortened("abc", 1, 12) == ""
    lines = wrapped("some words and " + "x" * 100, 80, 12)
    assert "".join(lines).replace(" ", "") == "somewordsand" + "x" * 100
    assert all(length(line, 12) <= 80 for line in lines)
    assert wrapped("abc", 0, 12) == ["a", "b", "c"]
    assert plain("448×672 – café\n\x07ok") == "448x672 - cafe ok"


# -- files


def objects_of(pdf):
    """Number → bytes of each object, found through the cross-reference table."""
    start = int(re.search(rb"startxref\n(\d+)\n%%EOF\n$", pdf)[1])
    header = re.match(rb"xref\n0 (\d+)\n", pdf[start:])
    table, count = start + header.end(), int(header[1])
    entries = [pdf[table + 20 * i : table + 20 * i + 20] for i in range(count)]
    assert entries[0] == b"0000000000 65535 f \n"
    assert pdf[table + 20 * count :].startswith(b"trailer\n<< /Size %d /Root 1 0 R >>" % count)
    offsets = [int(entry[:10]) for entry in entries[1:]]
    assert all(pdf[at:].startswith(b"%d 0 obj\n" % n) for n, at in enumerate(offsets, 1))
    return {n: pdf[at : pdf.index(b"endobj\n", at)] for n, at in enumerate(offsets, 1)}


def stream_of(text):
    at = text.index(b"stream\n") + 7
    size = int(re.search(rb"/Length (\d+)", text)[1])
    assert text[at + size :] == b"\nendstream\n"
    return text[at : at + size]


def unfiltered(data, width, height):
    """PNG's five predictors undone, byte by byte, as its specification has them."""
    rows, stride = [[0] * (3 * width)], 3 * width + 1
    for i in range(height):
        kind, line = data[i * stride], list(data[i * stride + 1 : (i + 1) * stride])
        for j in range(3 * width):
            a, b, c = (line[j - 3], rows[-1][j], rows[-1][j - 3]) if j > 2 else (0, rows[-1][j], 0)
            nearest = min((a, b, c), key=lambda v, p=a + b - c: abs(p - v))
            line[j] = (line[j] + (0, a, b, (a + b) // 2, nearest)[kind]) % 256
        rows.append(line)
    return np.array(rows[1:], np.uint8).reshape(height, width, 3)


def noise(height, width, seed=0):
    smooth = np.random.default_rng(seed).integers(0, 9, (height, width, 3)).cumsum(1)
    return Image.fromarray(smooth.astype(np.uint8))


def test_pdf_holds_the_pixels_of_each_page(tmp_path):
    drawn = [noise(40, 70), noise(30, 2800, 1), noise(20, 33, 2)]
    *pngs, book = save_pages(drawn, tmp_path / "a.b")
    assert [p.name for p in pngs] == ["a.b.png", "a.b_2.png", "a.b_3.png"]
    pdf = book.read_bytes()
    assert book.name == "a.b.pdf" and re.match(rb"%PDF-1\.4\n%[\x80-\xff]{4}\n", pdf)
    assert b"/Font" not in pdf
    objects = objects_of(pdf)
    assert b"/Count 3" in objects[2] and b"/Pages 2 0 R" in objects[1]
    leaves = map(int, re.search(rb"/Kids \[(.*)\]", objects[2])[1].split(b" 0 R")[:-1])
    for page, png, leaf in zip(drawn, pngs, leaves, strict=True):
        dpi = 400 if page.width == 2800 else 300
        assert dpi_of(page) == dpi
        box = re.search(rb"/MediaBox \[0 0 (\S+) (\S+)\]", objects[leaf])
        assert np.allclose([float(n) for n in box.groups()], np.array(page.size) / dpi * 72)
        drawing = stream_of(objects[int(re.search(rb"/Contents (\d+)", objects[leaf])[1])])
        assert drawing == b"q %s 0 0 %s 0 0 cm /Page Do Q" % box.groups()
        image = objects[int(re.search(rb"/Page (\d+) 0 R >> >>", objects[leaf])[1])]
        assert b"/Width %d /Height %d " % page.size in image and b"/Predictor 15" in image
        pixels = unfiltered(zlib.decompress(stream_of(image)), *page.size)
        assert (pixels == np.asarray(page)).all()
        with Image.open(png) as stored:
            assert (np.asarray(stored) == np.asarray(page)).all()
            assert stored.info["dpi"] == pytest.approx((dpi, dpi), abs=0.1)


@pytest.mark.skipif(not shutil.which("pdftoppm"), reason="no pdftoppm to draw PDFs with")
def test_pdf_is_drawn_by_others(tmp_path):
    """Poppler draws a picture one pixel larger than it is: equal but for the edges in it."""
    drawn = list(pages(["a"], [Row("", [flat(40, 60, c)]) for c in (RED, BLUE)], rows_on_page=1))
    book = save_pages(drawn, tmp_path / "sheet")[-1]
    subprocess.run(["pdftoppm", "-r", "300", book, tmp_path / "out"], check=True)
    for page, path in zip(drawn, sorted(tmp_path.glob("out*.ppm")), strict=True):
        with Image.open(path) as seen:
            assert np.abs(np.subtract(seen.size, page.size)).max() <= 1
            same = np.asarray(seen.crop((0, 0, *page.size))) == np.asarray(page)
            assert same.all(2).mean() > 0.95


def test_stale_pages_are_removed(tmp_path):
    stem = tmp_path / "sheet[1]"
    save_pages([noise(4, 6)] * 12, stem)
    others = ["sheet[1]_x.png", "sheet[1]_02.png", "sheet1_9.png", "sheet[1]_7.pdf"]
    for name in others:  # the last: page 7 is another sheet's now
        (tmp_path / name).write_bytes(b"")
    written = save_pages([noise(4, 6)] * 2, stem)
    kept = {*others, "sheet[1]_7.png", *(path.name for path in written)}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert save_pages([], stem) == []
    assert {path.name for path in tmp_path.iterdir()} == {*others, "sheet[1]_7.png"}


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    stem = tmp_path / "sheet"
    save_pages([noise(4, 6)], stem)
    before = stem.with_suffix(".pdf").read_bytes()

    def failing():
        yield noise(5, 7)
        raise DataError("image is gone")

    with pytest.raises(DataError):
        save_pages(failing(), stem)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(full))
    with pytest.raises(ResourceError):
        save_pages([noise(5, 7)], stem)
    assert stem.with_suffix(".pdf").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"sheet.png", "sheet.pdf"}


@pytest.mark.parametrize("folder", ["gone", "file"])
def test_a_folder_that_is_none(tmp_path, folder):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ResourceError, match=r"cannot write .*sheet\.pdf: "):
        save_pages([noise(4, 6)], tmp_path / folder / "sheet")


# -- curves


def curve(variant, ys, label="", bands=()):
    return Curve(label or variant, variant, list(enumerate(ys, 1)), bands)


def panel(*curves):
    return Panel("share of variance", "block", "%", curves)


def test_both_variants_have_their_colour():
    picture = chart([panel(curve("skip", [1, 2, 4]), curve("skipless", [3, 2, 1]))])
    assert picture.width == 550
    assert all(count(picture, colour) > 300 for colour in COLOURS.values())
    assert chart([panel(curve("skip", [1]))] * 3).width == 1100
    assert_clear_border(picture)


def test_a_band_is_lighter_than_its_line():
    band = tuple(round(255 + (c - 255) * 50 / 255) for c in COLOURS["skip"])
    ys, ends = [1, 2, 4], [(0, 2), (1, 3), (3, 5)]
    assert count(chart([panel(curve("skip", ys))]), band, 3) < 100
    assert count(chart([panel(curve("skip", ys, bands=ends))]), band, 3) > 5000
    assert count(chart([panel(curve("skip", ys, bands=[None, None, (0, 9)]))]), band, 3) < 500


def test_what_is_missing_leaves_a_gap():
    """The line's pixels in the middle between the points 2, 3 and 4."""

    def drawn(ys):
        picture = chart([panel(curve("skip", ys))])
        blue = np.abs(np.asarray(picture).astype(int) - COLOURS["skip"]).max(2) < 60
        blue[-60:] = False  # the legend
        at = np.linspace(*(np.nonzero(blue.any(0))[0][[0, -1]] + [5, -5]), 9).round().astype(int)
        return [bool(blue[:, x].any()) for x in at]

    assert all(drawn([5, 5, 5, 5, 5]))
    assert drawn([5, 5, NAN, 5, 5]) == [True] * 3 + [False] * 3 + [True] * 3
    for missing in (None, float("inf"), -1e200):
        assert drawn([5, 5, missing, 5, 5]) == drawn([5, 5, NAN, 5, 5])


@pytest.mark.parametrize(
    "ys", [[7], [0, 0], [NAN], [], [-3, -1], [1e15, -1e15], [1e-300, 2e-300], [1e308, -1e308, 1],
           [5, 5 + 1e-12], [1e-9, 2e-9]],
)  # fmt: skip
def test_odd_values(ys):
    picture = chart([panel(curve("skip", ys, bands=[(NAN, 1), (0, 0)]))], title="t" * 500)
    assert_clear_border(picture)


def test_a_panel_without_data_says_so():
    grey, empty = (110, 110, 110), panel(curve("skip", [NAN]))
    assert count(chart([empty]), grey) > 50
    assert chart([]).width == 550 and chart([Panel("", "", "", ())], columns=5).width == 550


def test_ticks_are_round():
    assert ticks(0, 100, 6) == (0, 20, 40, 60, 80, 100)
    assert ticks(-0.31, 0.32, 7) == (-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3)
    assert ticks(1, 3, 12, whole=True) == (1, 2, 3)
    assert tick_names(ticks(0, 1, 6)) == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert tick_names((0.0, 5e8, 1e9)) == ["0", "5.0e8", "1.0e9"]
    assert tick_names(ticks(81.2, 81.24, 4)) == ["81.20", "81.21", "81.22", "81.23", "81.24"]
    for low in (-7.3, 0.0, 1e-7, 12345.6):
        for width in (1e-3, 0.7, 3, 99, 1e7):
            found = ticks(low, low + width, 8)
            assert 3 <= len(found) <= 9 and len(set(tick_names(found))) == len(found)


def test_ticks_of_blocks_are_whole_numbers():
    assert x_axis([1, 12, 4], 450, 16).ticks == tuple(range(1, 13))
    assert x_axis([1, 24], 450, 16).ticks == tuple(range(2, 25, 2))
    assert x_axis([1, 2], 450, 16).names == ["1", "2"]
    assert x_axis([7], 450, 16).names == ["7"]
    wide = x_axis([0, 100000], 450, 16)
    assert len(wide.ticks) * max(length(name, 16) for name in wide.names) < 450


def test_curves_of_one_variant_differ_without_colour():
    styles = styles_of([("skip", str(i)) for i in range(16)] + [("skipless", "0"), ("x", "0")])
    looks = [(s.dashes, s.shape) for (variant, _), s in styles.items() if variant == "skip"]
    assert len(set(looks)) == 16
    assert len({s for _, s in looks[:4]}) == len({d for d, _ in looks[:4]}) == 4
    assert len({styles[v, "0"].colour for v in ("skip", "skipless", "x")}) == 3
    assert chart([panel(*(curve("skip", [i, i + 1], str(i)) for i in range(9)))]).height > 450
