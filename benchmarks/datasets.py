"""Time and memory to open data sets of the official sizes, and cores used by `verify --full`.

    python benchmarks/datasets.py [--images 2000]

    cocostuff   open 118,287 pairs of image and mask (hard links to one file of each)
    json        boxes of an annotation file like COCO's instances_train2014.json, first and second
                time, compared with json.load of the same file
    verify      decode images and masks of PASCAL VOC's size, compared with a single thread

The first two run in processes of their own, to measure their peak memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data

from skipbench.engine.machine import peak_bytes

PAIRS = 118_287
IMAGES_2014, BOXES_2014 = 82_783, 604_907
HERE = Path(__file__)


def links(folder: Path, names: list[str], target: Path) -> None:
    """Hard links to a few copies: file systems limit the number of links to one file."""
    folder.mkdir(parents=True)
    for i, name in enumerate(names):
        if i % 20_000 == 0:
            copy = folder / f".copy{i}"
            copy.write_bytes(target.read_bytes())
        (folder / name).hardlink_to(copy)


def photo_and_mask(folder: Path, seed: int, name: str) -> None:
    """A crop of a photograph, resized to 500×375, and a palette mask by brightness."""
    photos = (data.chelsea, data.coffee, data.astronaut, data.rocket)
    pixels = photos[seed % len(photos)]()
    top, left = np.random.default_rng(seed).integers(0, 60, 2)
    crop = Image.fromarray(pixels[top:, left:]).resize((500, 375))
    crop.save(folder / "images" / f"{name}.jpg", quality=90)
    grey = np.asarray(crop.convert("L"))
    mask = Image.fromarray((grey // 60).astype(np.uint8))
    mask.putpalette(list(range(256)) * 3)
    mask.save(folder / "masks" / f"{name}.png")


def make_cocostuff(root: Path) -> None:
    one = root / "one"
    for part in ("images", "masks"):
        (one / part).mkdir(parents=True)
    photo_and_mask(one, 0, "x")
    names = [f"{4 * i:012d}" for i in range(PAIRS)]
    coco = root / "coco"
    links(coco / "train2017", [f"{n}.jpg" for n in names], one / "images" / "x.jpg")
    links(
        coco / "stuffthingmaps_trainval2017" / "train2017",
        [f"{n}.png" for n in names],
        one / "masks" / "x.png",
    )


def open_cocostuff(root: Path) -> dict[str, float]:
    from skipbench.datasets import open_dataset

    started = time.perf_counter()
    dataset = open_dataset("cocostuff", "train", root=root)
    opened = time.perf_counter()
    sample = dataset.sampled(3_000, 0)
    dataset[0].mask()
    done = time.perf_counter()
    sample.fingerprint()
    fingerprinted = time.perf_counter()
    return {
        "pairs": len(dataset),
        "open_seconds": opened - started,
        "sample_of_3000_seconds": done - opened,
        "fingerprint_of_3000_seconds": fingerprinted - done,
    }


def make_json(path: Path) -> None:
    """As many images, boxes and bytes as in COCO's file of 2014."""
    random = np.random.default_rng(0)
    with path.open("w") as file:
        file.write('{"info": {"year": 2014}, "images": [')
        for i in range(IMAGES_2014):
            file.write(", " * (i > 0))
            entry = {
                "license": 5,
                "file_name": f"COCO_train2014_{i:012d}.jpg",
                "coco_url": f"http://images.cocodataset.org/train2014/COCO_train2014_{i:012d}.jpg",
                "height": 480,
                "width": 640,
                "date_captured": "2013-11-14 16:28:13",
                "id": i,
            }
            file.write(json.dumps(entry))
        file.write('], "annotations": [')
        polygons = random.uniform(0, 480, (1000, 56)).round(2).tolist()
        for i in range(BOXES_2014):
            file.write(", " * (i > 0))
            entry = {
                "segmentation": [polygons[i % 1000]],
                "area": 702.1057,
                "iscrowd": 0,
                "image_id": int(random.integers(IMAGES_2014)),
                "bbox": [473.07, 395.93, 38.65, 28.67],
                "category_id": 18,
                "id": i,
            }
            file.write(json.dumps(entry))
        file.write('], "categories": [{"id": 18, "name": "dog"}]}')


def json_load(path: Path) -> dict[str, float]:
    started = time.perf_counter()
    with path.open() as file:
        json.load(file)
    return {"bytes": path.stat().st_size, "seconds": time.perf_counter() - started}


def open_json(path: Path) -> dict[str, float]:
    from skipbench.datasets.common.coco_annotations import BoxIndex

    started = time.perf_counter()
    BoxIndex(path).boxes("COCO_train2014_000000000009.jpg")
    return {"bytes": path.stat().st_size, "seconds": time.perf_counter() - started}


def in_new_process(work: str, path: Path, cache: Path) -> dict[str, float]:
    answer = subprocess.run(
        [sys.executable, HERE, "--work", work, path],
        env=os.environ | {"SKIPBENCH_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout)


def cpu_seconds() -> float:
    """Of this process and its finished children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def verify_ratio(root: Path, images: int) -> None:
    """Compared with one thread that decodes a quarter of them, in turns; and cores in use."""
    from skipbench.datasets import open_dataset
    from skipbench.datasets.common.verify import check_image, verify
    from skipbench.engine import progress

    progress.quiet = True
    folder = root / "mine"
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for i in range(images):
        photo_and_mask(folder, i, f"{i:05d}")
    (folder / "classes.txt").write_text("a\nb\nc\nd\ne\n")
    items = list(open_dataset(f"folder:{folder}"))
    ratios, busy = [], []
    for _ in range(5):
        start = time.perf_counter()
        for item in items[: images // 4]:
            check_image(item, "masks")
        alone = (time.perf_counter() - start) / (images // 4)
        start, cpu = time.perf_counter(), cpu_seconds()
        assert verify(f"folder:{folder}", full=True).sound
        seconds = time.perf_counter() - start
        busy.append((cpu_seconds() - cpu) / seconds)
        ratios.append(alone * images / seconds)
    print(
        f"verify      {images:,} pairs of 500×375 pixels: {np.median(ratios):.2f} times as fast as "
        f"one thread (from {min(ratios):.2f} to {max(ratios):.2f}), {np.median(busy):.2f} of "
        f"{os.cpu_count()} cores busy"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work, path = options.work
        works = {"cocostuff": open_cocostuff, "json": open_json, "json.load": json_load}
        found = works[work](Path(path))
        print(json.dumps(found | {"peak_bytes": peak_bytes()}))
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        make_cocostuff(root / "stuff")
        for _ in range(2):
            found = in_new_process("cocostuff", root / "stuff", root / "cache")
            print(
                f"cocostuff   {found['pairs']:,} pairs opened in {found['open_seconds']:.2f} s, "
                f"3,000 of them sampled in {found['sample_of_3000_seconds']:.2f} s, fingerprinted "
                f"in {found['fingerprint_of_3000_seconds']:.2f} s, peak "
                f"{found['peak_bytes'] / 1e6:.0f} MB"
            )
        make_json(root / "instances.json")
        for work, start in (
            ("json", "first time"),
            ("json", "second time"),
            ("json.load", "json.load"),
        ):
            found = in_new_process(work, root / "instances.json", root / "cache")
            print(
                f"json        {found['bytes'] / 1e6:.0f} MB, {start}: "
                f"{found['seconds']:.2f} s, peak {found['peak_bytes'] / 1e6:.0f} MB"
            )
        verify_ratio(root, options.images)


if __name__ == "__main__":
    main()
