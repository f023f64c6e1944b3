"""Whatever a picture is, it becomes 8-bit RGB."""

import struct
import zlib
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from PIL import Image

from skipbench.errors import DataError, UsageError
from skipbench.images import (
    find_images,
    padded,
    parse_size,
    read_header,
    read_image,
    read_mask,
    read_size,
    resize,
    resize_boxes,
    resize_mask,
    size_name,
    stack,
    target_hw,
    turn,
    turn_boxes,
)
from skipbench.records import Side


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


@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 8])
@pytest.mark.parametrize(
    ("suffix", "mode"),
    [
        ("jpg", "RGB"),
        ("jpg", "L"),
        ("png", "RGB"),
        ("png", "I;16"),
        ("webp", "RGB"),
        ("tif", "RGB"),
        ("tif", "L"),
        ("tif", "I;16"),
    ],
)
def test_exif_rotation(tmp_path, orientation, suffix, mode):
    """A bright top left quarter is found where the turned picture has it, whatever the format."""
    grey = np.zeros((24, 40), np.uint8)
    grey[:12, :20] = 255
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else None
    image = image or Image.fromarray(grey).convert(mode)
    exif = image.getexif()
    exif[0x0112] = orientation
    path = tmp_path / f"x.{suffix}"
    image.save(path, exif=exif)
    expected = turn(grey, orientation)
    shown = read_image(path)
    assert read_size(path) == expected.shape == shown.shape[:2]
    assert read_header(path) == ((24, 40), orientation)
    assert np.abs(shown[..., 1].astype(int) - expected).mean() < 8
    if suffix != "webp" and mode != "RGB":
        mask = read_mask(path) if mode == "L" else read_mask(path) // 257
        assert np.abs(mask.astype(int) - expected).mean() < 8


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


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16", "1"])
def test_an_image_higher_than_what_is_converted_at_once(tmp_path, mode):
    grey = noise(5000, 3)
    image = Image.fromarray(grey).convert("L" if mode == "I;16" else mode)
    expected = np.asarray(image.convert("RGB"))
    if mode == "I;16":
        image = Image.fromarray(grey.astype(np.uint16) * 257)
    image.save(tmp_path / "x.png")
    np.testing.assert_array_equal(read_image(tmp_path / "x.png"), expected)


def test_a_high_tiff_is_turned(tmp_path):
    image = Image.fromarray(noise(5000, 3))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "x.tif", exif=exif)
    turned = np.rot90(np.asarray(image.convert("RGB")), -1)
    np.testing.assert_array_equal(read_image(tmp_path / "x.tif"), turned)


@pytest.mark.parametrize("mode", ["L", "P"])
def test_a_flipped_bit_in_a_mask_is_found_by_its_checksum(tmp_path, mode):
    mask = Image.fromarray(noise(24, 40) % 3)
    if mode == "P":
        mask.putpalette(list(range(256)) * 3)
    mask.save(tmp_path / "x.png")
    data = bytearray((tmp_path / "x.png").read_bytes())
    data[-20] ^= 1  # the last of the pixels, which Pillow does not check
    (tmp_path / "x.png").write_bytes(data)
    with pytest.raises(DataError, match=r"b'IDAT' does not match its checksum"):
        read_mask(tmp_path / "x.png")


def test_jpeg_without_an_end(tmp_path):
    """Pillow reads up to a marker, which damaged pixels may look like."""
    Image.fromarray(gradient()).save(tmp_path / "x.jpg")
    data = (tmp_path / "x.jpg").read_bytes()
    (tmp_path / "x.jpg").write_bytes(data[:-6] + b"\xff\xc4" + data[-4:-2])
    with pytest.raises(DataError, match="it ends too early"):
        read_image(tmp_path / "x.jpg")


@pytest.mark.parametrize("size_hw", [(10_000, 19_000), (20_000, 20_000)])
def test_bomb(tmp_path, size_hw):
    """A small file whose header promises many pixels: beyond our limit, and beyond Pillow's."""
    Image.fromarray(gradient()).save(tmp_path / "x.png")
    content = bytearray((tmp_path / "x.png").read_bytes())
    content[16:24] = struct.pack(">II", *size_hw[::-1])
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.png: .*not decoded \(decompression bomb.*\nScale it"):
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
    assert parse_size("short:448") == Side("short", 448)
    assert parse_size("long:9") == Side("long", 9)
    assert padded((33, 50), 8) == (40, 56)
    for text in ("448x448", "320x480", "native", "short:448", "long:9"):
        assert size_name(parse_size(text)) == text
    for wrong in (
        "0",
        "a",
        "3x",
        "1x2x3",
        "-4",
        "short:",
        "short:3x4",
        "wide:3",
        ":3",
        "long:0",
        "²",
    ):
        with pytest.raises(UsageError, match="size"):
            parse_size(wrong)


@pytest.mark.parametrize(
    ("size_hw", "size", "expected"),
    [
        ((30, 50), None, (30, 50)),
        ((30, 50), (7, 9), (7, 9)),
        ((30, 50), Side("short", 15), (15, 25)),
        ((50, 30), Side("short", 15), (25, 15)),
        ((30, 50), Side("long", 25), (15, 25)),
        ((50, 30), Side("long", 100), (100, 60)),
        ((375, 500), Side("short", 448), (448, 597)),
        ((1, 900), Side("long", 9), (1, 9)),
    ],
)
def test_one_side_keeps_the_aspect_ratio(size_hw, size, expected):
    assert target_hw(size_hw, size) == expected


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def triangle_weights(old, new):
    """(new, old): the bilinear kernel, widened by the factor of shrinking (antialiasing)."""
    factor = old / new
    support = max(factor, 1)
    centres = (np.arange(new) + 0.5) * factor
    distance = np.abs(np.arange(old)[None] + 0.5 - centres[:, None]) / support
    weights = np.clip(1 - distance, 0, None)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("size_hw", [(12, 50), (48, 80), (5, 7), (24, 20), (100, 3)])
def test_resize_is_antialiased_bilinear(size_hw):
    """Exactly Pillow's, and within rounding of the filter written out and of torch's."""
    import torch

    image = noise(24, 40, 3)
    resized = resize(image, size_hw)
    pillow = Image.fromarray(image).resize(size_hw[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(resized, np.asarray(pillow))
    down, right = triangle_weights(24, size_hw[0]), triangle_weights(40, size_hw[1])
    exact = np.einsum("ih,hwc,jw->ijc", down, image.astype(float), right)
    assert np.abs(resized - exact).max() <= 1.01  # 8 bits between the two passes, and after
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None]
    torchs = torch.nn.functional.interpolate(tensor, size_hw, mode="bilinear", antialias=True)
    difference = resized.astype(int) - torchs[0].permute(1, 2, 0).numpy()
    assert np.abs(difference).max() <= 1


def test_masks_take_the_label_under_the_centre():
    mask = noise(24, 40)
    for size_hw in [(48, 80), (5, 7), (24, 40), (1, 1), (17, 31)]:
        pillow = Image.fromarray(mask).resize(size_hw[::-1], Image.Resampling.NEAREST)
        np.testing.assert_array_equal(resize_mask(mask, size_hw), np.asarray(pillow))
    # 40 → 50: the centre of column 7 lies at 6 exactly; Pillow's sum of 0.8s falls short of it.
    columns = [floor(Fraction(2 * i + 1, 2) * Fraction(40, 50)) for i in range(50)]
    assert columns[7] == 6
    np.testing.assert_array_equal(resize_mask(mask, (24, 50)), mask[:, columns])


def test_image_mask_and_boxes_stay_together():
    """A white rectangle, resized with its mask and its box: all three say the same."""
    image = np.zeros((24, 40, 3), np.uint8)
    image[6:18, 10:30] = 255
    mask = (image[..., 0] > 0).astype(np.uint8)
    for new_hw in [(48, 80), (12, 20), (72, 40), (24, 80)]:
        boxes = resize_boxes(np.array([[10, 6, 30, 18]]), (24, 40), new_hw)
        x0, y0, x1, y1 = boxes[0].astype(int)
        assert boxes[0].tolist() == [x0, y0, x1, y1]
        expected = np.zeros(new_hw, np.uint8)
        expected[y0:y1, x0:x1] = 1
        np.testing.assert_array_equal(resize_mask(mask, new_hw), expected)
        np.testing.assert_array_equal(resize(image, new_hw)[..., 0] > 127, expected)


def test_padding_is_right_and_bottom():
    image = noise(10, 13, 3)
    batch = stack([image], 8)
    assert batch.shape == (1, 3, 16, 16)
    np.testing.assert_array_equal(batch[0, :, :10, :13].permute(1, 2, 0), image)
    assert not batch[0, :, 10:].any() and not batch[0, :, :, 13:].any()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_is_pillows(orientation):
    from PIL import ImageOps

    pixels = noise(24, 40, 3)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(turn(pixels, orientation), expected)
    np.testing.assert_array_equal(turn(pixels[..., 0], orientation), expected[..., 0])
    boxes = np.array([[3, 4, 10, 20], [0, 0, 40, 24], [39, 23, 40, 24]])
    for box, turned in zip(boxes, turn_boxes(boxes, (24, 40), orientation), strict=True):
        inside = np.zeros((24, 40), np.uint8)
        inside[box[1] : box[3], box[0] : box[2]] = 1
        x0, y0, x1, y1 = turned
        there = np.zeros(expected.shape[:2], np.uint8)
        there[y0:y1, x0:x1] = 1
        np.testing.assert_array_equal(there, turn(inside, orientation))
    assert turn_boxes(np.zeros((0, 4)), (24, 40), orientation).shape == (0, 4)


def test_an_orientation_that_does_not_exist_is_none(tmp_path):
    image = Image.fromarray(gradient())
    exif = image.getexif()
    exif[0x0112] = 77
    image.save(tmp_path / "x.jpg", exif=exif)
    assert read_size(tmp_path / "x.jpg") == (24, 40) == read_image(tmp_path / "x.jpg").shape[:2]


@pytest.mark.parametrize("mode", ["P", "L", "1", "I;16", "I"])
def test_masks_keep_their_numbers(tmp_path, mode):
    values = noise(24, 40) % 2 if mode == "1" else noise(24, 40) % 90
    path = tmp_path / ("x.tif" if mode == "I" else "x.png")
    if mode == "P":
        image = Image.fromarray(values)
        image.putpalette(list(range(255, -1, -1)) * 3)
        assert image.mode == "P"
    elif mode == "1":
        image = Image.fromarray(values.astype(bool))
    else:
        kind = {"L": np.uint8, "I;16": np.uint16, "I": np.int32}[mode]
        image = Image.fromarray(values.astype(kind) * (1 if mode == "L" else 700))
        values = values.astype(int) * (1 if mode == "L" else 700)
    image.save(path)
    assert Image.open(path).mode == mode
    np.testing.assert_array_equal(read_mask(path), values)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_grey_that_was_saved_in_colours_is_a_mask(tmp_path, mode):
    values = noise(24, 40)
    path = tmp_path / "x.png"
    Image.fromarray(values).convert(mode).save(path)
    assert Image.open(path).mode == mode
    found = read_mask(path)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, values)


def test_colours_are_no_mask_however_few_pixels_have_them(tmp_path):
    values = np.repeat(noise(24, 40)[..., None], 4, axis=2)
    values[..., 3] = 255
    for channel, channels in ((2, 3), (0, 4), (3, 4)):  # a colour, or a pixel that is see-through
        pixels = values[..., :channels].copy()
        pixels[5, 7, channel] ^= 1
        Image.fromarray(pixels).save(tmp_path / "x.png")
        with pytest.raises(DataError, match=r"x\.png: a colour image \(RGB"):
            read_mask(tmp_path / "x.png")


def test_grey_in_colours_of_sixteen_bits_is_no_mask(tmp_path):
    """Pillow keeps eight of them: 256 would become 1."""
    rows = (b"\0" + b"\1\0" * 3 * 8) * 6
    png_of(tmp_path / "x.png", struct.pack(">IIBBBBB", 8, 6, 16, 2, 0, 0, 0), zlib.compress(rows))
    with pytest.raises(DataError, match="colours"):
        read_mask(tmp_path / "x.png")


def test_a_grey_palette_is_still_indices(tmp_path):
    """Its colours have equal channels, and mean nothing all the same."""
    values = noise(24, 40) % 4
    image = Image.fromarray(values)
    image.putpalette([255 - i for i in range(256) for _ in range(3)])
    image.save(tmp_path / "x.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "x.png"), values)


def test_a_palette_of_few_colours_is_still_indices(tmp_path):
    """PNG packs 16 colours into four bits a pixel."""
    values = noise(24, 41) % 16
    image = Image.fromarray(values)
    image.putpalette(noise(48).tolist())
    image.save(tmp_path / "x.png", bits=4)
    np.testing.assert_array_equal(read_mask(tmp_path / "x.png"), values)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_values_of_few_bits_are_not_spread(tmp_path, bits):
    """Pillow makes 0, 85, 170, 255 of two bits; the file says 0, 1, 2, 3."""
    values = noise(6, 8) % 2**bits
    rows = b"".join(
        b"\0" + np.packbits(np.unpackbits(row[:, None], axis=1)[:, -bits:].ravel()).tobytes()
        for row in values
    )
    png_of(tmp_path / "x.png", struct.pack(">IIBBBBB", 8, 6, bits, 0, 0, 0, 0), zlib.compress(rows))
    np.testing.assert_array_equal(read_mask(tmp_path / "x.png"), values)


def png_of(path, header, data):
    """Chunk by chunk, since Pillow writes no such file."""
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )
    )


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_of_no_known_range_are_refused(tmp_path, kind):
    Image.fromarray(np.ones((24, 40), kind)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=r"x\.tif.*unknown range.*\nSave it with 8 bits"):
        read_image(tmp_path / "x.tif")


def test_what_is_no_file_is_said(tmp_path):
    (tmp_path / "x.png").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*x\.png: Is a directory"):
        read_image(tmp_path / "x.png")


def test_walks_leave_out_what_is_hidden_or_no_file(tmp_path):
    for name in ("a.png", ".ipynb_checkpoints/a.png", "b/._c.png", "b/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "again").symlink_to(tmp_path)
    assert [item.name for item in find_images([tmp_path])] == ["a.png", "b/c.png", "loop.png"]
    with pytest.raises(DataError, match=r"cannot read|no such image"):
        find_images(["x" * 300])


def test_a_mask_may_say_itself_how_it_is_turned(tmp_path):
    mask = noise(24, 40) % 3
    Image.fromarray(gradient(40, 24)).save(tmp_path / "image.png")
    image = Image.fromarray(mask)
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "mask.png", exif=exif)
    turned = read_mask(tmp_path / "mask.png", of=tmp_path / "image.png")
    np.testing.assert_array_equal(turned, np.rot90(mask, -1))


def test_truncated_png_is_named_also_when_only_its_size_is_asked_for(tmp_path):
    Image.fromarray(noise(60, 90, 3)).save(tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    (tmp_path / "x.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"x\.png"):
        read_size(tmp_path / "x.png")
