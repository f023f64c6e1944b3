"""Decode, resize, pad and normalise images. HWC uint8 RGB in the middle, NCHW float32 at the end.

Whatever the file holds, it becomes 8-bit RGB: EXIF rotation applied, palettes looked up, grey
copied to three channels, CMYK converted, 16 bits scaled to 8, alpha dropped.
"""

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skipbench.errors import DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image as PILImage

# Stored features carry this number: raise it whenever a pixel that reaches the model changes.
TRANSFORM_VERSION = 1

MEAN_RGB = (0.485, 0.456, 0.406)
STD_RGB = (0.229, 0.224, 0.225)
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".gif"})
MOST_PIXELS = 180_000_000  # beyond this a file is taken for a decompression bomb


@dataclass(frozen=True)
class ImageItem:
    """One image of a data set: a name that is stable across machines, and where it lies."""

    name: str
    path: Path


def find_images(sources: Iterable[str | Path | ImageItem]) -> tuple[ImageItem, ...]:
    """Files as given, folders walked in the order of their names; a file given twice counts once.

    The name is the path below the folder given, so that moving the folder changes nothing.
    """
    found: dict[Path, ImageItem] = {}
    for given in sources:
        if isinstance(given, ImageItem):
            found.setdefault(given.path.resolve(), given)
            continue
        source = Path(given)
        if source.is_dir():
            files = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES)
            if not files:
                raise DataError(f"no images in {source} (looked for {', '.join(sorted(SUFFIXES))})")
            named = [(p.relative_to(source).as_posix(), p) for p in files]
        elif source.is_file():
            named = [(source.name, source)]
        else:
            near = did_you_mean(source.name, (p.name for p in _siblings(source)))
            raise DataError(f"no such image or folder: {source}.{near}")
        for name, path in named:
            found.setdefault(path.resolve(), ImageItem(name, path))
    return tuple(found.values())


def _siblings(path: Path) -> list[Path]:
    return list(path.parent.iterdir()) if path.parent.is_dir() else []


def parse_size(text: str) -> tuple[int, int] | None:
    """ "448" → (448, 448); "320x480" → height 320, width 480; "native" → None."""
    if text == "native":
        return None
    parts = text.lower().split("x")
    if not (len(parts) in (1, 2) and all(p.isdigit() and int(p) > 0 for p in parts)):
        raise UsageError(f"size {text!r}: give N, HEIGHTxWIDTH, or native")
    return int(parts[0]), int(parts[-1])


def padded(size_hw: tuple[int, int], patch: int) -> tuple[int, int]:
    """The size rounded up to whole patches."""
    return -(-size_hw[0] // patch) * patch, -(-size_hw[1] // patch) * patch


def _open(path: Path) -> "PILImage.Image":
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path)
    except FileNotFoundError:
        raise DataError(f"image is gone: {path}") from None
    except Image.DecompressionBombError:
        raise DataError(f"{path}: more pixels than any photograph; not decoded") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from None
    if image.width * image.height > MOST_PIXELS:
        raise DataError(f"{path}: {image.width}×{image.height} pixels; not decoded (a bomb?)")
    return image


def read_size(path: Path) -> tuple[int, int]:
    """Height and width as decoded (after EXIF rotation), from the header alone."""
    with _open(path) as image:
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
        return (image.width, image.height) if turned else (image.height, image.width)


def read_image(path: Path, size_hw: tuple[int, int] | None = None) -> "np.ndarray":
    """HWC uint8 RGB; resized (bicubic, antialiased) where a size is given."""
    import numpy as np
    from PIL import Image, ImageOps

    with _open(path) as image:
        try:
            image = ImageOps.exif_transpose(image)
            image = _to_rgb(image)
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise DataError(
                f"{path}: truncated or damaged ({error}).\n"
                "Fetch it again, or take it out of the folder."
            ) from None
        if size_hw is not None and (image.height, image.width) != size_hw:
            image = image.resize((size_hw[1], size_hw[0]), Image.Resampling.BICUBIC)
        return np.asarray(image)


def _to_rgb(image: "PILImage.Image") -> "PILImage.Image":
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow clips 16-bit grey at 255 instead of scaling it.
        scaled = (np.asarray(image).astype(np.float64) / 257.0).round().clip(0, 255)
        image = Image.fromarray(scaled.astype(np.uint8))
    return image.convert("RGB")


def stack(images: Sequence["np.ndarray"], patch: int) -> "torch.Tensor":
    """NCHW uint8, each image at the top left, padded with zeros to the largest in whole patches."""
    import numpy as np
    import torch

    height, width = padded(
        (max(i.shape[0] for i in images), max(i.shape[1] for i in images)), patch
    )
    batch = np.zeros((len(images), 3, height, width), np.uint8)
    for row, image in zip(batch, images, strict=True):
        row[:, : image.shape[0], : image.shape[1]] = image.transpose(2, 0, 1)
    return torch.from_numpy(batch)


def normalise(batch: "torch.Tensor", sizes_hw: Sequence[tuple[int, int]]) -> "torch.Tensor":
    """NCHW uint8 → float32, ImageNet mean and deviation; padding is zero *after* normalising."""
    import torch

    mean = torch.tensor(MEAN_RGB, device=batch.device).view(3, 1, 1) * 255
    std = torch.tensor(STD_RGB, device=batch.device).view(3, 1, 1) * 255
    images = batch.float().sub_(mean).div_(std)
    for image, (height, width) in zip(images, sizes_hw, strict=True):
        image[:, height:] = 0
        image[:, :, width:] = 0
    return images


def fingerprint(items: Iterable[ImageItem]) -> str:
    """Of the list of files: names, lengths and times of change, in order."""
    digest = hashlib.sha256()
    for item in items:
        try:
            stat = item.path.stat()
        except OSError:
            raise DataError(f"image is gone: {item.path}") from None
        digest.update(f"{item.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def embedded_photographs(size_hw: tuple[int, int]) -> "torch.Tensor":
    """Four photographs that come with scikit-image (a cat, a cup, a face, a rocket), normalised."""
    import numpy as np
    from PIL import Image
    from skimage import data

    height, width = size_hw
    photos = [
        np.asarray(Image.fromarray(photo()).resize((width, height), Image.Resampling.BICUBIC))
        for photo in (data.chelsea, data.coffee, data.astronaut, data.rocket)
    ]
    return normalise(stack(photos, 1), [size_hw] * len(photos))
