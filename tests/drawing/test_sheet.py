"""Sheets of images with captions and a legend; masks and boxes drawn over images."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from skipbench.datasets import open_dataset
from skipbench.drawing.sheet import (
    UNLABELLED,
    Cell,
    blend,
    dataset_sheet,
    draw_boxes,
    hues,
    paint,
    save,
    sheet,
)
from skipbench.files import unlike

RED, BLUE = (200, 0, 0), (0, 0, 200)


def flat(height, width, colour=RED):
    return np.full((height, width, 3), colour, np.uint8)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_paint():
    mask = np.array([[0, 1, 255]], np.uint8)
    painted = paint(mask, [(1, 2, 3), (200, 100, 50)])
    assert painted.tolist() == [[[1, 2, 3], [200, 100, 50], list(UNLABELLED)]]
    assert blend(np.full((1, 3, 3), 100, np.uint8), painted, 1.0).tolist() == painted.tolist()
    assert blend(np.full((1, 3, 3), 100, np.uint8), painted, 0.0).tolist() == [[[100] * 3] * 3]


def test_hues_differ():
    assert len(np.unique(hues(60), axis=0)) == 60


def test_boxes_are_drawn_on_their_outermost_pixels():
    image = np.zeros((60, 90, 3), np.uint8)
    drawn = draw_boxes(image, np.array([[30, 20, 70, 50]]), ["dog"])
    assert image.max() == 0  # the picture itself is left alone
    rows, columns = np.nonzero(drawn.any(2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 49, 30, 69)
    assert not drawn[45, 50].any()
    draw_boxes(image, np.array([[5.0, 5.0, 5.0, 5.0]]), ["nothing"])  # no area, no crash


def test_sheet_keeps_aspect_ratios_and_has_a_legend():
    cells = [Cell(flat(50, 100), "a"), Cell(flat(100, 50, BLUE), "b" * 500)]
    plain = np.asarray(sheet([cells], height=100))
    is_red, is_blue = (plain == RED).all(2), (plain == BLUE).all(2)
    assert is_red.sum() == 100 * 200 and is_blue.sum() == 100 * 50
    with_legend = np.asarray(
        sheet([[Cell(flat(50, 100))]], [("dog", (1, 99, 2)), ("cat", (3, 4, 99))], 100)
    )
    assert (with_legend == [1, 99, 2]).all(2).sum() > 100
    many = [(f"class {i}", (i, 99, i)) for i in range(60)]
    assert sheet([[Cell(flat(50, 100))]], many, 100).height > with_legend.shape[0] + 200


def test_pictures_are_placed_pixel_for_pixel():
    cells = [[Cell(noise(40, width, width)) for width in (30, 61)]] * 2
    drawn = np.asarray(sheet(cells, height=40, title="title", aligned=True))
    for cell in cells[0]:
        height, width = cell.picture.shape[:2]
        windows = np.lib.stride_tricks.sliding_window_view(drawn, (height, width, 3))[:, :, 0]
        found = [(y, x) for y, x in np.ndindex(windows.shape[:2])
                 if (windows[y, x, 0, 0] == cell.picture[0, 0]).all()
                 and (windows[y, x] == cell.picture).all()]  # fmt: skip
        assert len(found) == 2


def test_a_very_wide_image_is_shrunk():
    drawn = np.asarray(sheet([[Cell(flat(10, 400)), Cell(flat(100, 50, BLUE))]], height=60))
    rows, columns = np.nonzero((drawn == RED).all(2))
    assert columns.max() + 1 - columns.min() == 180 and 4 <= rows.max() + 1 - rows.min() <= 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name", ["$x_1$ $", r"$\frac{", "日本語.png", "two\nlines\x00", "undecodable \udcff\ud800", ""]
)
def test_names_of_all_kinds(name, capfd):
    drawn = sheet([[Cell(flat(40, 60), name)]], [(name, BLUE)], 40, title=name)
    assert (np.asarray(drawn) == RED).all(2).sum() == 40 * 60
    assert capfd.readouterr().err == ""


def test_masks_of_a_data_set_have_a_legend_of_their_classes():
    data = open_dataset("shapes", limit=2)
    drawn = np.asarray(dataset_sheet(data))
    seen = set(np.unique([label for item in data for label in np.unique(item.mask())]))
    for label, colour in enumerate(data.labels.colours):
        swatch = (drawn == colour).all(2)[-60:].sum() >= 100  # photographs above are blended
        assert swatch == (label in seen), label


def test_saved_pictures_are_png_with_their_dpi(tmp_path):
    picture = Image.fromarray(noise(4, 6))
    save(picture, tmp_path / "a.png")
    save(picture, tmp_path / "b.png", 300)
    with Image.open(tmp_path / "a.png") as plain, Image.open(tmp_path / "b.png") as printed:
        assert "dpi" not in plain.info
        assert printed.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        assert (np.asarray(plain) == np.asarray(printed)).all()


def test_matplotlib_is_imported_when_something_is_drawn():
    code = (
        "import sys, skipbench.cli, skipbench.drawing.curves\n"
        "import skipbench.drawing.sheet, skipbench.evaluations.pictures\n"
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_backend_of_a_notebook_is_not_needed(tmp_path):
    """Jupyter sets it for every command that it starts."""
    code = (
        "import numpy as np; from skipbench.drawing.sheet import *\n"
        f"save(sheet([[Cell(np.zeros((4, 6, 3), np.uint8))]]), Path({str(tmp_path / 'a.png')!r}))"
    )
    environment = os.environ | {"MPLBACKEND": "module://not_installed.backend_inline"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "a.png").exists()


def test_names_are_told_apart():
    assert unlike(["a", "b", "a", "a_2", "a"]) == ["a", "b", "a_2", "a_2_2", "a_3"]
    assert unlike(["sheet", "x"], taken=["sheet"]) == ["sheet_2", "x"]
    assert unlike(["a", "a"], form="{} ({})") == ["a", "a (2)"]
