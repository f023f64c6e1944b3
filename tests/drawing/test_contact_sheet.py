"""Contact sheets, measured in their pixels; PDFs read by a reader written out here."""

import gc
import re
import weakref
import zlib

import matplotlib
import numpy as np
import pytest
from PIL import Image

from skipbench.drawing.figure import ending, printable, rasterize, text_width, wrapped
from skipbench.drawing.sheet import Row, contact_sheet, save_contact_sheet
from skipbench.errors import DataError, ResourceError

RED, GREEN, BLUE = (200, 0, 0), (0, 160, 0), (0, 0, 200)


def flat(height, width, colour=RED):
    return lambda: np.full((height, width, 3), colour, np.uint8)


def noise(height, width, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return lambda: pixels


def noisy(count, width=24, rows_on_page=1, **more):
    """A sheet of so many pages."""
    rows = [Row(f"{i}.png", [noise(width // 2, width, i)]) for i in range(count)]
    return contact_sheet(["image"], rows, width=width, rows_on_page=rows_on_page, **more)


def extent(page, colour):
    """Left, top, right, bottom of what has this colour, half-open."""
    rows, columns = np.nonzero((np.asarray(page) == colour).all(2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def one(*args, **kwargs):
    (figure,) = contact_sheet(*args, **kwargs)
    return rasterize(figure)


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def assert_clear_border(page, least=2):
    pixels = np.asarray(page)
    for edge in (pixels[:least], pixels[-least:], pixels[:, :least], pixels[:, -least:]):
        assert (edge == 255).all()


# -- a page


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
    assert abs((green[1] - red[3]) - (blue[1] - green[3])) <= 1


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
    page = one(["image"], [Row("", [lambda: tiny])], width=120)
    assert all((np.asarray(page) == c).all(2).sum() == 40 * 80 for c in (RED, GREEN, BLUE))


@pytest.mark.parametrize("columns", [1, 2, 13])
@pytest.mark.parametrize(
    "heading", ["skip", "h" * 200, "dino_vits16-skipless.epoch/300_ema", "W " * 15]
)
def test_headings_stand_over_their_columns(columns, heading):
    rows = [Row("a" * 300, [flat(40, 60)] * columns)]
    page = one([heading] * columns, rows, width=100, note="n" * 200)
    assert_clear_border(page)
    dark = np.asarray(page)[: extent(page, RED)[1]].max(2) < 128
    gap = (page.width - columns * 100) // (columns + 1)
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


@pytest.mark.filterwarnings("error")
def test_names_of_all_kinds(tmp_path, capfd):
    odd = ["", "two\nlines\tand\x00more\u2028\u200b", "undecodable \udcff\ud800",
           "日本語 é – × →", "$x_1$", r"$\frac{", " "]  # fmt: skip
    rows = [Row(label, [flat(20, 30)]) for label in odd]
    (figure,) = contact_sheet([r"$\alpha$ 日"], rows, width=200, note="$")
    assert {r"$\alpha$ □", "□□□ é – × →", "$x_1$", r"$\frac{", "$"} <= set(texts(figure))
    page = rasterize(figure)
    assert_clear_border(page)
    lone = one([""], [Row("", [flat(20, 30)])] * len(odd), width=200)
    assert page.width == lone.width and page.height > lone.height
    assert save_contact_sheet([figure], tmp_path / "sheet")
    assert capfd.readouterr().err == ""


def test_nothing_there():
    assert list(contact_sheet(["a"], [])) == []
    page = one(["a", "b"], [Row("", [None, flat(20, 30)]), Row("x", [None, None])], width=90)
    assert extent(page, RED)[2] - extent(page, RED)[0] == 90
    with pytest.raises(ValueError, match="zip"):
        one(["a", "b"], [Row("", [flat(20, 30)])])


def test_rows_are_split_into_pages():
    rows = [Row(str(i), [flat(4, 6)]) for i in range(23)]
    pages = list(contact_sheet(["a"], rows, note="why", width=24))
    assert [texts(page) for page in pages] == [
        ["a", *map(str, part), "why"] for part in (range(10), range(10, 20), range(20, 23))
    ]
    heights = [rasterize(page).height for page in pages]
    assert heights[0] == heights[1] > heights[2]
    assert len(list(contact_sheet(["a"], rows, width=24, rows_on_page=23))) == 1


def test_pictures_are_read_when_their_page_is_drawn():
    read = []

    def gone():
        raise DataError("gone.png")

    def there():
        read.append("there")
        return flat(20, 30)()

    pages = contact_sheet(["a"], [Row("", [there]), Row("", [gone])], width=60, rows_on_page=1)
    assert read == []
    assert (np.asarray(rasterize(next(pages))) == RED).all(2).sum() == 60 * 40
    assert read == ["there"]
    with pytest.raises(DataError, match=r"gone\.png"):
        next(pages)


def test_pictures_of_one_page_in_memory_at_a_time(tmp_path):
    seen = []

    def counted():
        for page in noisy(4):
            assert not any(reference() for reference in seen)
            seen.extend(map(weakref.ref, page.axes[0].images))
            yield page

    gc.disable()
    try:
        assert len(save_contact_sheet(counted(), tmp_path / "sheet")) == 5
    finally:
        gc.enable()


# -- text


def test_text_is_made_to_fit():
    assert wrapped("short", 200, 12) == ["short"]
    assert wrapped("skipless dino_vits16", 100, 12) == ["skipless", "dino_vits16"]
    assert wrapped("skipless_dino_vits16", 80, 12) == ["skipless_", "dino_vits16"]
    assert wrapped("", 90, 12) == []
    assert wrapped("abc", 0, 12) == ["a", "b", "c"]
    text = "some words and " + "x" * 100
    lines = wrapped(text, 80, 12)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(text_width(line, 12) <= 80 for line in lines)
    cut = ending("folder/" * 20 + "name.png", 100, 12)
    assert cut.startswith("…") and cut.endswith("name.png") and text_width(cut, 12) <= 100
    assert ending("name.png", 100, 12) == "name.png" and len(ending("abc", 1, 12)) == 1
    assert printable("448×672 – cafe\u0301\n\x07ok 日") == "448×672 – café □ok □"


# -- files


def placements(pdf):
    """(width, height) in points of each image that is drawn; a height below 0 is upside down."""
    streams = [zlib.decompressobj().decompress(pdf[match.end() :])
               for match in re.finditer(rb"/FlateDecode[^/]*>>\s+stream\r?\n", pdf)]  # fmt: skip
    found = re.findall(rb"([\d.]+) 0 0 (-?[\d.]+) 0 [\d.]+ cm /I\d+ Do", b"".join(streams))
    return [tuple(map(float, size)) for size in found]


def images_of(pdf):
    """Pixels of the RGB images in a PDF, as they are drawn."""
    found = []
    for match in re.finditer(rb"<<[^<>]*/Subtype /Image.*?>>\s+stream\r?\n", pdf, re.DOTALL):
        width, height = (
            int(re.search(rb"/%s (\d+)" % key, match[0])[1]) for key in (b"Width", b"Height")
        )
        assert b"/DeviceRGB" in match[0]
        data = zlib.decompressobj().decompress(pdf[match.end() :])
        found.append(unfiltered(data, width, height))
    sizes = placements(pdf)
    return [image[:: 1 if tall > 0 else -1] for image, (_, tall) in zip(found, sizes, strict=True)]


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


def media_boxes(pdf):
    """(width, height) of each page in points."""
    boxes = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
    return [tuple(map(float, box)) for box in boxes]


def test_png_and_pdf_hold_every_pixel_of_the_pictures(tmp_path):
    tiles = [noise(30, 60, i) for i in range(6)]
    rows = [Row("", tiles[:3]), Row("", tiles[3:])]
    pages = contact_sheet(["a", "b", "c"], rows, width=60, rows_on_page=1)
    *pngs, book = save_contact_sheet(pages, tmp_path / "a.b")
    assert [p.name for p in pngs] == ["a.b.png", "a.b_2.png"] and book.name == "a.b.pdf"
    pdf = book.read_bytes()
    assert pdf.startswith(b"%PDF-1.4") and pdf.rstrip().endswith(b"%%EOF")
    found = images_of(pdf)
    assert len(found) == 6
    assert all((image == tile()).all() for image, tile in zip(found, tiles, strict=True))
    assert np.abs(placements(pdf)) == pytest.approx(np.array([(60, 30)] * 6) * 72 / 300)
    for path, box, own in zip(pngs, media_boxes(pdf), (tiles[:3], tiles[3:]), strict=True):
        with Image.open(path) as stored:
            page, dpi = np.asarray(stored), stored.info["dpi"][0]
        assert dpi == pytest.approx(300, abs=0.1)
        assert box == pytest.approx((page.shape[1] * 72 / dpi, page.shape[0] * 72 / dpi), rel=1e-3)
        gap = (page.shape[1] - 180) // 4
        top = next(y for y in range(len(page)) if (page[y, gap : gap + 60] == own[0]()[0]).all())
        for i, tile in enumerate(own):
            left = gap + i * (60 + gap)
            assert (page[top : top + 30, left : left + 60] == tile()).all()


def test_text_in_a_pdf_is_text(tmp_path):
    """In TrueType: publishers refuse Type 3."""
    pdf = save_contact_sheet(noisy(1), tmp_path / "sheet")[-1].read_bytes()
    assert b"/FontFile2" in pdf and b"DejaVuSans" in pdf and b"/Type3" not in pdf


@pytest.mark.parametrize(
    ("columns", "rows", "height"), [(1, 1, 20), (13, 1, 20), (1, 10, 60), (3, 10, 60)]
)
def test_pages_fit_on_paper(columns, rows, height):
    given = [Row("a", [flat(height, 40)] * columns)] * rows
    (figure,) = contact_sheet(["a"] * columns, given)
    width, tall = figure.get_size_inches()
    assert width <= 7.01 and tall <= 9.51 and figure.dpi >= 300


def test_a_pdf_is_not_too_large_to_be_written(tmp_path, caplog):
    caplog.set_level("INFO", "skipbench")
    *pngs, book = save_contact_sheet(noisy(5), tmp_path / "sheet", pdf_pictures=3)
    assert len(pngs) == 5 and len(media_boxes(book.read_bytes())) == 3
    assert "stops at 3 pictures; the PNG pages have all 5" in caplog.text


def test_equal_sheets_are_equal_files(tmp_path):
    """Whatever the user's matplotlibrc says; and that is left as it was."""
    rc = {"text.usetex": True, "font.size": 30.0, "savefig.dpi": 10.0, "figure.facecolor": "red"}
    one = save_contact_sheet(noisy(2, note="note"), tmp_path / "one")
    with matplotlib.rc_context(rc):
        other = save_contact_sheet(noisy(2, note="note"), tmp_path / "other")
        assert all(matplotlib.rcParams[key] == value for key, value in rc.items())
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    assert b"Date" not in one[-1].read_bytes()


def test_stale_pages_are_removed(tmp_path):
    stem = tmp_path / "sheet[1]"
    save_contact_sheet(noisy(12), stem)
    others = ["sheet[1]_x.png", "sheet[1]_02.png", "sheet1_9.png", "sheet[1]_7.pdf"]
    for name in others:  # the last: page 7 is another sheet's now
        (tmp_path / name).write_bytes(b"")
    written = save_contact_sheet(noisy(2), stem)
    kept = {*others, "sheet[1]_7.png", *(path.name for path in written)}
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert save_contact_sheet([], stem) == []
    assert {path.name for path in tmp_path.iterdir()} == {*others, "sheet[1]_7.png"}


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    stem = tmp_path / "sheet"
    save_contact_sheet(noisy(1), stem)
    before = stem.with_suffix(".pdf").read_bytes()

    def failing():
        yield from noisy(1, width=30)
        raise DataError("image is gone")

    with pytest.raises(DataError):
        save_contact_sheet(failing(), stem)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(full))
    with pytest.raises(ResourceError):
        save_contact_sheet(noisy(1, width=30), stem)
    assert stem.with_suffix(".pdf").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"sheet.png", "sheet.pdf"}


@pytest.mark.parametrize("folder", ["gone", "file"])
def test_a_folder_that_is_none(tmp_path, folder):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResourceError, match=r"cannot write .*sheet\.png: "):
        save_contact_sheet(noisy(1), tmp_path / folder / "sheet")
