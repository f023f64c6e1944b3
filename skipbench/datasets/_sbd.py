"""SBD's masks (Hariharan et al. 2011) as palette PNG, as VOC's own are."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from skipbench.datasets._files import palette, stems
from skipbench.engine.parallel import in_parallel
from skipbench.errors import DataError


def write_masks(mats: Path, devkit: Path, names: Sequence[str]) -> None:
    """`SegmentationClassAug` from SBD's .mat files; where VOC has a mask, VOC's is taken."""
    folder = devkit / "SegmentationClassAug"
    folder.mkdir(exist_ok=True)
    done = stems(folder, ".png")
    todo = [name for name in names if name not in done]
    for _ in in_parallel(partial(_write_mask, mats, devkit, folder), todo, "SBD masks", "masks"):
        pass


def _write_mask(mats: Path, devkit: Path, folder: Path, name: str) -> None:
    partial_file = folder / f".{name}.png"
    own = devkit / "SegmentationClass" / f"{name}.png"
    if own.exists():
        shutil.copyfile(own, partial_file)
    else:
        image = Image.fromarray(_read_mat(mats / f"{name}.mat"))
        image.putpalette([part for colour in palette(256) for part in colour])
        image.save(partial_file, "PNG")
    partial_file.replace(folder / f"{name}.png")


def _read_mat(path: Path) -> np.ndarray:
    """HW uint8, 0 to 20."""
    from scipy.io import loadmat

    if not path.exists():
        raise DataError(f"mask is missing: {path}")
    try:
        return loadmat(path)["GTcls"][0]["Segmentation"][0].astype("uint8")
    except Exception as error:  # scipy has exceptions of its own for each way to be damaged
        raise DataError(f"{path}: not one of SBD's masks ({error})") from None
