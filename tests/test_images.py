"""Whatever a picture is, it becomes 8-bit RGB."""

import numpy as np
import pytest
from PIL import Image

from skipbench.errors import DataError, UsageError
from skipbench.images import find_images, padded, parse_size, read_image, read_size


def gradient(height=24, width=40):
    ramp = np.linspace(0, 255, width).astype(np.uint8)
    return np.repeat(ramp[None], height, 0)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "CMYK", "LA"])
def test_modes(tmp_path, mode):
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    Image.fromarray(gradient()).convert("RGB").convert(mode).save(path)
    pixels = read_image(path)
    assert pixels.shape == (24, 40, 3) and pixels.dtype == np.uint8
    assert pixels[0, -1].mean() > 240 and pixels[0, 0].mean() < 15


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    ramp = np.linspace(0, 65535, 40).astype(np.uint16)
    Image.fromarray(np.repeat(ramp[None], 24, 0)).save(tmp_path / "x.png")
    row = read_image(tmp_path / "x.png")[0, :, 0].astype(int)
    assert row[0] == 0 and row[-1] == 255 and abs(row[20] - 131) <= 2


def test_exif_rotation(tmp_path):
    image = Image.fromarray(gradient())
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "x.jpg", exif=exif)
    assert read_size(tmp_path / "x.jpg") == (40, 24)
    assert read_image(tmp_path / "x.jpg").shape == (40, 24, 3)


def test_resize_is_height_by_width(tmp_path):
    Image.fromarray(gradient()).save(tmp_path / "x.png")
    assert read_image(tmp_path / "x.png", (12, 50)).shape == (12, 50, 3)


@pytest.mark.parametrize("keep", [10, 60, 400])
def test_truncated(tmp_path, keep):
    noise = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "x.jpg")
    (tmp_path / "x.jpg").write_bytes((tmp_path / "x.jpg").read_bytes()[:keep])
    with pytest.raises(DataError, match=r"x\.jpg"):
        read_image(tmp_path / "x.jpg")


def test_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr("skipbench.images.MOST_PIXELS", 100)
    Image.fromarray(gradient()).save(tmp_path / "x.png")
    with pytest.raises(DataError, match="40×24"):
        read_image(tmp_path / "x.png")


def test_find_images(tmp_path):
    for name in ("b.png", "a/z.JPG", "a/c.jpeg", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    items = find_images([tmp_path, tmp_path / "b.png"])
    assert [item.name for item in items] == ["a/c.jpeg", "a/z.JPG", "b.png"]
    assert find_images([*items, tmp_path / "b.png"]) == items  # what was found is taken as it is
    with pytest.raises(DataError, match=r"Did you mean 'b.png'"):
        find_images([tmp_path / "bb.png"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images in"):
        find_images([tmp_path / "empty"])


def test_sizes():
    assert parse_size("448") == (448, 448)
    assert parse_size("320x480") == (320, 480)
    assert parse_size("native") is None
    assert padded((33, 50), 8) == (40, 56)
    for wrong in ("0", "a", "3x", "1x2x3", "-4"):
        with pytest.raises(UsageError, match="size"):
            parse_size(wrong)
