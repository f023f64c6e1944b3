"""Decode, resize, pad and normalise an image together with its mask or boxes.

Images are HWC uint8 RGB, and NCHW float32 for the model. Every file becomes 8-bit RGB: EXIF
orientation applied (to mask and boxes too), palettes looked up, grey copied to three channels, CMYK
converted, 16 bits scaled to 8, alpha dropped. A mask keeps its values.
"""

import hashlib
import logging
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

import numpy as np
from PIL import Image

from skipbench.errors import DataError, UsageError, did_you_mean, printable
from skipbench.records import IMAGENET, Interpolation, Preprocessing, Side, Size

if TYPE_CHECKING:
    import torch

log = logging.getLogger("skipbench")

# Part of the key of stored features: raise it whenever a pixel that reaches the model changes.
TRANSFORM_VERSION = 2  # 2: bilinear instead of bicubic

# Decompression bombs are caught by MOST_PIXELS; odd metadata and large photographs are harmless.
warnings.filterwarnings("ignore", module=r"PIL\.")

IGNORED = 255  # in decoded masks: a pixel that is not scored

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".gif"})
MOST_PIXELS = 180_000_000  # more is taken for a decompression bomb
BAND = 2048  # rows that are converted at once


class Picture(Protocol):
    """What features are extracted from: an image file or a generated image."""

    @property
    def name(self) -> str:
        """Stable across machines, unlike a path."""

    def read(self, size: Size = None, how: Interpolation = "bilinear") -> np.ndarray:
        """HWC uint8 RGB, resized where a size is given."""

    def size_hw(self) -> tuple[int, int]: ...

    def mark(self) -> str:
        """Changes when the pixels do."""


@dataclass(frozen=True)
class ImageItem:
    """An image file."""

    name: str
    path: Path

    def read(self, size: Size = None, how: Interpolation = "bilinear") -> np.ndarray:
        return read_image(self.path, size, how)

    def size_hw(self) -> tuple[int, int]:
        return read_size(self.path)

    def mark(self) -> str:
        """Its size and modification time."""
        try:
            stat = self.path.stat()
        except OSError:
            raise DataError(f"image disappeared: {self.path}") from None
        return f"{stat.st_size} {stat.st_mtime_ns}"


AnImage = TypeVar("AnImage", bound=Picture)


def fingerprint(pictures: Iterable[Picture]) -> str:
    """Hash of the names and marks of images, in order."""
    digest = hashlib.sha256()
    for picture in pictures:
        digest.update(os.fsencode(f"{picture.name}\0{picture.mark()}\n"))
    return digest.hexdigest()


def find_images(sources: Iterable[str | Path | ImageItem]) -> tuple[ImageItem, ...]:
    """Files as given, and the images below folders, sorted by name; duplicates count once.

    The name is the path relative to the folder given, so moving the folder changes nothing.
    """
    found: dict[tuple[str, str], ImageItem] = {}
    real = cache(os.path.realpath)
    for given in sources:
        items = [given] if isinstance(given, ImageItem) else _items_at(Path(given))
        for item in items:
            found.setdefault((real(item.path.parent), item.path.name), item)
    return tuple(found.values())


def _items_at(source: Path) -> list[ImageItem]:
    try:
        if source.is_dir():
            items = [ImageItem(name, source / name) for name in walk_images(source)]
            if not items:
                raise DataError(f"no images in {source} (looked for {', '.join(sorted(SUFFIXES))})")
            return items
        if source.is_file():
            return [ImageItem(source.name, source)]
        folder = source.parent
        nearby = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise DataError(f"cannot read {source}: {error.strerror}") from None
    shown = printable(str(source))
    if link := broken_link(source):
        raise DataError(f"no such image or folder: {shown} ({link})")
    raise DataError(f"no such image or folder: {shown}.{did_you_mean(source.name, nearby)}")


def walk_images(folder: Path) -> list[str]:
    """The image files below a folder, by relative path, sorted; hidden ones are left out. Links to
    folders are followed, unless they lead back to a folder that contains them."""
    return sorted(_walk(str(folder), "", (os.path.realpath(folder),)))


def _walk(folder: str, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    """above: the resolved folders from the first to this one."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.name[0] != "."]
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from None
    for entry in entries:
        link = entry.is_symlink()
        if os.path.isdir(entry) if link else entry.is_dir():  # noqa: PTH112 - False if it is broken
            real = os.path.realpath(entry.path) if link else f"{above[-1]}/{entry.name}"
            if link and any(Path(one).is_relative_to(real) for one in above):
                _warn(f"{entry.path}: not followed: it links to {real}, which contains it")
            else:
                yield from _walk(entry.path, f"{prefix}{entry.name}/", (*above, real))
        elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:  # noqa: PTH122
            yield prefix + entry.name
        elif broken := broken_link(Path(entry)):
            _warn(f"{entry.path}: left out: {broken}")


def broken_link(path: Path) -> str:
    """ "a broken link to /mnt/x", or nothing."""
    broken = path.is_symlink() and not path.exists()
    return f"a broken link to {path.readlink()}" if broken else ""


@cache
def _warn(message: str) -> None:
    """Each message once, although a folder is listed several times."""
    log.warning("%s", message)


def random_subset(names: Sequence[str], count: int, seed: int) -> list[int]:
    """Indices, sorted, of the names with the lowest hashes of seed and name: the same on every
    machine and in any order of the files. A smaller subset is part of a larger one."""
    digests = [hashlib.sha256(os.fsencode(f"{seed}:{name}")).digest() for name in names]
    return sorted(sorted(range(len(names)), key=digests.__getitem__)[:count])


def part_of(
    items: Sequence[AnImage], limit: int | None, sample: int | None, seed: int
) -> list[AnImage]:
    """`--limit`: the first; `--sample`: random ones; neither: all."""
    if sample is not None:
        return [items[i] for i in random_subset([item.name for item in items], sample, seed)]
    return list(items[:limit])


def parse_size(text: str) -> Size:
    """ "448" → (448, 448); "320x480" → height 320, width 480; "short:448", "long:448"; "native"."""
    if text == "native":
        return None
    which, colon, number = text.rpartition(":")
    parts = number.lower().split("x")
    if all(map(_is_count, parts)):
        if which in ("short", "long") and len(parts) == 1:
            return Side(which, int(number))  # type: ignore[arg-type]
        if not colon and len(parts) <= 2:
            return int(parts[0]), int(parts[-1])
    raise UsageError(f"size {text!r}: expected N, HEIGHTxWIDTH, short:N, long:N or native")


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < 7 and int(text) > 0


def size_name(size: Size) -> str:
    """The inverse of `parse_size`."""
    if size is None:
        return "native"
    return f"{size.which}:{size.pixels}" if isinstance(size, Side) else f"{size[0]}x{size[1]}"


def target_hw(size_hw: tuple[int, int], size: Size) -> tuple[int, int]:
    """Height and width of an image after resizing."""
    if size is None:
        return size_hw
    if not isinstance(size, Side):
        return size
    side = min(size_hw) if size.which == "short" else max(size_hw)
    height, width = (max(1, round(length * size.pixels / side)) for length in size_hw)
    return height, width


def padded(size_hw: tuple[int, int], patch: int) -> tuple[int, int]:
    """The size rounded up to whole patches."""
    return -(-size_hw[0] // patch) * patch, -(-size_hw[1] // patch) * patch


@contextmanager
def _opened(path: Path, decoded: bool = True) -> Iterator[Image.Image]:
    """The file, with its header read. Errors inside the block name the file."""
    try:
        # Opened as a file: by name, Pillow would memory-map some, and rotate those wrongly.
        with path.open("rb") as file, Image.open(_checked(file) if decoded else file) as image:
            if image.width * image.height > MOST_PIXELS:
                raise _too_large(path, f"{image.width}×{image.height}")
            yield image
    except FileNotFoundError:
        link = broken_link(path)
        where = f"{path} ({link})" if link else path
        raise DataError(f"image disappeared: {where}") from None
    except Image.DecompressionBombError:
        raise _too_large(path, "too many") from None
    except Image.UnidentifiedImageError:
        raise _bad(path, "not a readable image") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, OSError) and error.errno:  # from the system, not from the decoder
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        raise _bad(path, f"truncated or damaged ({error})") from None


def _checked(file: BinaryIO) -> BinaryIO:
    """A PNG's checksums are compared: Pillow leaves out those of the pixels. A JPEG must have an
    end: where a marker is read in damaged data, Pillow takes it for one."""
    start = file.read(8)
    if start.startswith(b"\xff\xd8") and b"\xff\xd9" not in file.read():
        raise ValueError("it ends too early")
    if start == b"\x89PNG\r\n\x1a\n":
        rest, kind = memoryview(file.read()), b""
        while kind != b"IEND":
            end = 8 + int.from_bytes(rest[:4])
            if len(rest) < end + 4:
                raise ValueError("it ends too early")
            kind = bytes(rest[4:8])
            if zlib.crc32(rest[4:end]) != int.from_bytes(rest[end : end + 4]):
                raise ValueError(f"{kind!r} does not match its checksum")
            rest = rest[end + 4 :]
    file.seek(0)
    return file


def _bad(path: Path, what: str, remedy: str = "Replace it") -> DataError:
    return DataError(
        f"{printable(str(path))}: {what}.\n"
        f"{remedy}, or leave it out with --skip-bad 1 (`extract` and evaluations)."
    )


def _too_large(path: Path, count: str) -> DataError:
    what = f"{count} pixels; not decoded (decompression bomb?)"
    return _bad(path, what, f"Scale it to at most {MOST_PIXELS:,} pixels")


def read_size(path: Path) -> tuple[int, int]:
    """Height and width as decoded (after EXIF rotation), from the header alone."""
    return shown_hw(*read_header(path))


def read_header(path: Path) -> tuple[tuple[int, int], int]:
    """Height and width as stored, and the EXIF orientation, 1 to 8."""
    with _opened(path, decoded=False) as image:
        orientation = _orientation(image)
        if image.format != "TIFF":
            return (image.height, image.width), orientation
        image.load()  # Pillow rotates these itself, and only now their size is that of the result
        return shown_hw((image.height, image.width), orientation), orientation


def _orientation(image: Image.Image) -> int:
    value = image.getexif().get(0x0112, 1)
    return value if value in range(1, 9) else 1


def read_image(path: Path, size: Size = None, how: Interpolation = "bilinear") -> np.ndarray:
    """HWC uint8 RGB; resized where a size is given."""
    with _opened(path) as image:
        orientation = _orientation(image)  # decoding a TIFF removes it
        pixels = _turned(_to_rgb(image, path), image, orientation)
    return resize(pixels, target_hw(pixels.shape[:2], size), how)


def _turned(pixels: np.ndarray, image: Image.Image, orientation: int) -> np.ndarray:
    return pixels if image.format == "TIFF" else turn(pixels, orientation)


def _to_rgb(image: Image.Image, path: Path) -> np.ndarray:
    """HWC uint8."""
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        what = f"pixels of mode {image.mode} have an unknown range"
        raise _bad(path, what, "Save it with 8 bits per channel")
    image.load()  # rotates a TIFF
    if image.height <= BAND:
        return _rgb_of(image)
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for top in range(0, image.height, BAND):  # whole copies of a large image would be gigabytes
        bottom = min(top + BAND, image.height)
        pixels[top:bottom] = _rgb_of(image.crop((0, top, image.width, bottom)))
    return pixels


def _rgb_of(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I"):
        # 16-bit grey, which Pillow would clip at 255 instead of scaling.
        grey = (np.asarray(image).astype(np.float64) / 257.0).round().clip(0, 255)
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    return np.asarray(image.convert("RGB"))


def read_mask(path: Path, of: Path | None = None) -> np.ndarray:
    """HW integers as stored: palette indices, grey values of 1 to 16 bits, or the common value of
    all channels, where grey was saved as RGB.

    of: its image. The mask is rotated by the image's EXIF orientation, unless only the rotated
    image has its size (it was annotated on the image as shown) or it has an orientation itself.
    """
    if not path.exists():
        raise DataError(f"mask is missing: {path}" + (f" (for {of})" if of else ""))
    with _opened(path) as image:
        single = image.mode in ("P", "L", "1", "I") or image.mode.startswith("I;16")
        if not single and not _is_grey(image):
            raise DataError(
                f"{path}: a colour image ({image.mode}); a mask has one number for each pixel.\n"
                "Save it as palette or grey PNG whose values are the classes."
            )
        spread = _spread(image)
        orientation = _orientation(image)
        mask = _turned(_numbers(image), image, orientation)
    mask = mask if spread == 1 else mask // spread
    return mask if of is None else as_shown(mask, of, f"{path}: the mask is", orientation == 1)


def as_shown(mask: np.ndarray, of: Path, what: str, turns: bool = True) -> np.ndarray:
    """HW: a mask of an image as stored or as shown → of the image as shown. turns: not if False."""
    stored_hw, orientation = read_header(of)
    height, width = shown_hw(stored_hw, orientation)
    if turns and mask.shape == stored_hw:
        mask = turn(mask, orientation)
    if mask.shape != (height, width):
        raise DataError(
            f"{what} {mask.shape[0]}×{mask.shape[1]}, "
            f"but its image is {height}×{width} (height×width): {of}"
        )
    return mask


def _is_grey(image: Image.Image) -> bool:
    """Whether all channels are equal: 8 bits each, and opaque."""
    if image.mode not in ("RGB", "RGBA", "LA") or ";16" in _packing(image):
        return False  # Pillow keeps 8 of 16 bits
    channels = np.asarray(image)
    colours = channels if image.mode == "RGB" else channels[..., :-1]
    opaque = image.mode == "RGB" or (channels[..., -1] == 255).all()
    return bool(opaque and (colours == colours[..., :1]).all())


def _spread(image: Image.Image) -> int:
    """The factor by which Pillow multiplies grey values of 2 and 4 bits. Call before decoding."""
    return {"L;2": 85, "L;4": 17}.get(_packing(image), 1) if image.mode == "L" else 1


def _packing(image: Image.Image) -> str:
    """Pixel format of the file, as Pillow calls it. Call before decoding."""
    tiles = getattr(image, "tile", None)
    return str(tiles[0][3]) if tiles else ""


def _numbers(image: Image.Image) -> np.ndarray:
    stored = np.asarray(image)
    stored = stored[..., 0] if stored.ndim == 3 else stored
    return stored.astype(np.uint8) if stored.dtype == bool else stored


# EXIF orientations, by how to get from the image as stored to the image as shown: transpose, then
# flip.
TRANSPOSED = (5, 6, 7, 8)
FLIPPED_LEFT_RIGHT = (2, 3, 6, 7)
FLIPPED_TOP_BOTTOM = (3, 4, 7, 8)


def shown_hw(stored_hw: tuple[int, int], orientation: int) -> tuple[int, int]:
    return stored_hw[::-1] if orientation in TRANSPOSED else stored_hw


def turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """HW or HWC, as stored → as shown under this EXIF orientation."""
    pixels = pixels.swapaxes(0, 1) if orientation in TRANSPOSED else pixels
    pixels = pixels[:, ::-1] if orientation in FLIPPED_LEFT_RIGHT else pixels
    return pixels[::-1] if orientation in FLIPPED_TOP_BOTTOM else pixels


def turn_boxes(boxes_xyxy: np.ndarray, size_hw: tuple[int, int], orientation: int) -> np.ndarray:
    """(n, 4) half-open boxes on the image as stored, of this size → on the image as shown."""
    x0, y0, x1, y1 = boxes_xyxy.T
    height, width = shown_hw(size_hw, orientation)
    if orientation in TRANSPOSED:
        x0, y0, x1, y1 = y0, x0, y1, x1
    if orientation in FLIPPED_LEFT_RIGHT:
        x0, x1 = width - x1, width - x0
    if orientation in FLIPPED_TOP_BOTTOM:
        y0, y1 = height - y1, height - y0
    return np.stack([x0, y0, x1, y1], axis=1)


def resize(
    pixels: np.ndarray, size_hw: tuple[int, int], how: Interpolation = "bilinear"
) -> np.ndarray:
    """HWC uint8; antialiased, rounded to 8 bits (as Pillow and torchvision do)."""
    if pixels.shape[:2] == size_hw:
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize(size_hw[::-1], Image.Resampling[how.upper()]))


def resize_mask(mask: np.ndarray, size_hw: tuple[int, int]) -> np.ndarray:
    """HW; each pixel takes the label at its centre."""
    rows, columns = (
        (2 * np.arange(new) + 1) * old // (2 * new)  # in integers, so that no centre is rounded
        for new, old in zip(size_hw, mask.shape, strict=True)
    )
    return mask[rows[:, None], columns]


def resize_boxes(
    boxes_xyxy: np.ndarray, old_hw: tuple[int, int], new_hw: tuple[int, int]
) -> np.ndarray:
    """(n, 4) float64, scaled by the same factors as the image."""
    down, right = new_hw[0] / old_hw[0], new_hw[1] / old_hw[1]
    return boxes_xyxy * [right, down, right, down]


def stack(images: Sequence[np.ndarray], patch: int) -> "torch.Tensor":
    """NCHW uint8, each image at the top left, padded with zeros to the largest in whole patches."""
    import torch

    height, width = padded(
        (max(i.shape[0] for i in images), max(i.shape[1] for i in images)), patch
    )
    batch = np.zeros((len(images), 3, height, width), np.uint8)
    for row, image in zip(batch, images, strict=True):
        row[:, : image.shape[0], : image.shape[1]] = image.transpose(2, 0, 1)
    return torch.from_numpy(batch)


def normalise(
    batch: "torch.Tensor", sizes_hw: Sequence[tuple[int, int]], how: Preprocessing = IMAGENET
) -> "torch.Tensor":
    """NCHW uint8 → float32 by mean and deviation; padding is zero *after* normalising."""
    import torch

    mean = torch.tensor(how.mean, device=batch.device).view(3, 1, 1) * 255
    std = torch.tensor(how.std, device=batch.device).view(3, 1, 1) * 255
    images = batch.float().sub_(mean).div_(std)
    for image, (height, width) in zip(images, sizes_hw, strict=True):
        image[:, height:] = 0
        image[:, :, width:] = 0
    return images


def embedded_photographs(size_hw: tuple[int, int], how: Preprocessing = IMAGENET) -> "torch.Tensor":
    """Four photographs shipped with scikit-image (cat, cup, face, rocket), normalised."""
    from skimage import data

    height, width = size_hw
    photos = [
        np.asarray(Image.fromarray(photo()).resize((width, height), Image.Resampling.BICUBIC))
        for photo in (data.chelsea, data.coffee, data.astronaut, data.rocket)
    ]
    return normalise(stack(photos, 1), [size_hw] * len(photos), how)
