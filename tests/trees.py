"""Tiny data sets in the real layouts: non-square JPEG, palette PNG, real XML and JSON."""

import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

SIZES_HW = [(30, 44), (24, 40), (41, 27)]


def photo(path, size_hw, seed=0, orientation=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size_hw, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    exif = image.getexif()
    if orientation:
        exif[0x0112] = orientation
    image.save(path, exif=exif)
    return pixels


def grey_png(path, mask):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask).save(path)


def palette_png(path, mask):
    """As VOC's: one byte a pixel and a palette, whose colours mean nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(mask)
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768).tolist())
    assert image.mode == "P"
    image.save(path)


def blocks(size_hw, values, seed=0):
    """A mask of vertical bands of these values."""
    columns = np.array_split(np.arange(size_hw[1]), len(values))
    mask = np.zeros(size_hw, np.uint8)
    for value, band in zip(values, columns, strict=True):
        mask[:, band] = value
    return mask


XML = """<annotation>
  <filename>{name}.jpg</filename>
  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>
  <segmented>1</segmented>
{objects}</annotation>
"""
OBJECT = """  <object>
    <name>{name}</name><truncated>{truncated}</truncated><difficult>{difficult}</difficult>
    <bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox>
    <part><name>head</name>
      <bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>
  </object>
"""


def voc_object(name="dog", corners=(3, 2, 20, 11), difficult=0, truncated=0):
    x0, y0, x1, y1 = corners
    return OBJECT.format(
        name=name, truncated=truncated, difficult=difficult, x0=x0, y0=y0, x1=x1, y1=y1
    )


def voc_xml(path, size_hw, objects):
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = size_hw
    path.write_text(
        XML.format(name=path.stem, width=width, height=height, objects="".join(objects))
    )


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def voc(root, year=2012, train=3, val=2):
    """Returns the devkit's folder. Image i has a mask of background, class i + 1 and 255."""
    folder = root / "VOCdevkit" / f"VOC{year}"
    names = [f"2007_{i:06d}" for i in (32, 39, 63, 68, 121, 170)][: train + val]
    for i, name in enumerate(names):
        size_hw = SIZES_HW[i % 3]
        photo(folder / "JPEGImages" / f"{name}.jpg", size_hw, i)
        mask = blocks(size_hw, [0, i + 1, 255])
        palette_png(folder / "SegmentationClass" / f"{name}.png", mask)
        voc_xml(folder / "Annotations" / f"{name}.xml", size_hw, [voc_object()])
    lists = folder / "ImageSets"
    write_lines(lists / "Segmentation" / "train.txt", names[:train])
    write_lines(lists / "Segmentation" / "val.txt", names[train:])
    write_lines(lists / "Main" / "trainval.txt", names)
    write_lines(lists / "Main" / "dog_trainval.txt", [f"{n} -1" for n in names])
    return folder


def context(root, train=3, val=2, values=(0, 1, 59)):
    folder = root / "VOCdevkit" / "VOC2010"
    names = [f"2008_{i:06d}" for i in range(train + val)]
    for i, name in enumerate(names):
        photo(folder / "JPEGImages" / f"{name}.jpg", SIZES_HW[i % 3], i)
        grey_png(
            folder / "SegmentationClassContext" / f"{name}.png", blocks(SIZES_HW[i % 3], values)
        )
        voc_xml(folder / "Annotations" / f"{name}.xml", SIZES_HW[i % 3], [voc_object()])
    lists = folder / "ImageSets" / "SegmentationContext"
    write_lines(lists / "train.txt", names[:train])
    write_lines(lists / "val.txt", names[train:])
    return folder


def voc07(root):
    return voc(root, 2007)


def whole_voc07_val(root):
    """As many images as the official split has: 213, all alike."""
    folder = voc(root, 2007)
    names = [f"{i:06d}" for i in range(213)]
    for name in names:
        for part, suffix in (("JPEGImages", "jpg"), ("SegmentationClass", "png")):
            shutil.copy(folder / part / f"2007_000068.{suffix}", folder / part / f"{name}.{suffix}")
    write_lines(folder / "ImageSets" / "Segmentation" / "val.txt", names)
    return folder, names


def ade20k(root, train=3, val=2):
    folder = root / "ADEChallengeData2016"
    for part, short, count in (("training", "train", train), ("validation", "val", val)):
        for i in range(count):
            name, size_hw = f"ADE_{short}_{i + 1:08d}", SIZES_HW[i % 3]
            photo(folder / "images" / part / f"{name}.jpg", size_hw, i)
            grey_png(folder / "annotations" / part / f"{name}.png", blocks(size_hw, [0, 1, 150]))
    return folder


def cityscapes(root, train=3, val=2, test=1, values=(0, 7, 33)):
    folder = root / "cityscapes"
    for split, city, count in (
        ("train", "aachen", train), ("val", "frankfurt", val), ("test", "berlin", test),
    ):  # fmt: skip
        for i in range(count):
            name, size_hw = f"{city}/{city}_{i:06d}_000019", SIZES_HW[i % 3]
            photo(folder / "leftImg8bit" / split / f"{name}_leftImg8bit.png", size_hw, i)
            mask = folder / "gtFine" / split / f"{name}_gtFine_labelIds.png"
            grey_png(mask, blocks(size_hw, values if split != "test" else [0, 1]))
            grey_png(Path(f"{mask}".replace("label", "instance")), blocks(size_hw, [0, 9]))
    return folder


def cocostuff(root, train=3, val=2, values=(0, 12, 181, 255)):
    folder = root / "coco"
    for part, count in (("train2017", train), ("val2017", val)):
        for i in range(count):
            name, size_hw = f"{139 + i:012d}", SIZES_HW[i % 3]
            photo(folder / part / f"{name}.jpg", size_hw, i)
            mask = folder / "stuffthingmaps_trainval2017" / part / f"{name}.png"
            grey_png(mask, blocks(size_hw, values))
    return folder


def cocoobject(root):
    return cocostuff(root)


def coco_json(path, images, boxes):
    """images: (id, file name, size_hw); boxes: (image id, xywh, category, crowd)."""
    content = {
        "info": {"description": "as COCO writes it", "year": 2014},
        "licenses": [{"id": 1, "name": "x"}],
        "images": [
            {"id": i, "file_name": name, "height": hw[0], "width": hw[1]} for i, name, hw in images
        ],
        "annotations": [
            {
                "id": 100 + n,
                "image_id": image,
                "bbox": list(xywh),
                "category_id": category,
                "iscrowd": int(crowd),
                "area": xywh[2] * xywh[3],
                "segmentation": [[xywh[0], xywh[1], xywh[0] + 1.5, xywh[1], xywh[0], xywh[1] + 2]],
            }
            for n, (image, xywh, category, crowd) in enumerate(boxes)
        ],
        "categories": [
            {"id": 1, "name": "person", "supercategory": "person"},
            {"id": 18, "name": "dog", "supercategory": "animal"},
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return content


def coco20k(root, numbers=(560992, 396626, 9), extra_boxes=()):
    """Two images of the official list and one that is not on it."""
    folder = root / "coco"
    images = []
    for i, number in enumerate(numbers):
        name, size_hw = f"COCO_train2014_{number:012d}.jpg", SIZES_HW[i % 3]
        photo(folder / "train2014" / name, size_hw, i)
        images.append((number, name, size_hw))
    boxes = [
        (numbers[1], (1.5, 2.5, 10.0, 8.25), 18, False),
        (numbers[0], (3.2, 4.7, 12.6, 9.1), 1, False),
        (numbers[0], (0.0, 0.0, 20.0, 20.0), 1, True),
        *extra_boxes,
    ]
    coco_json(folder / "annotations" / "instances_train2014.json", images, boxes)
    return folder


def coco(root, count=3):
    folder = root / "coco"
    images = []
    for i in range(count):
        number, size_hw = 139 + i, SIZES_HW[i % 3]
        photo(folder / "val2017" / f"{number:012d}.jpg", size_hw, i)
        images.append((number, f"{number:012d}.jpg", size_hw))
    boxes = [(139, (3.25, 4.5, 12.5, 9.0), 1, False), (140, (1, 1, 5, 6), 18, False)]
    coco_json(folder / "annotations" / "instances_val2017.json", images, boxes)
    return folder


def coco_outlined(root, outlines, size_hw=(30, 44), orientation=None, written_hw=None):
    """One image of COCO val, with these segmentations or annotations; returns the JSON's path.

    written_hw: the size that the JSON gives, if it is another one.
    """
    photo(root / "coco" / "val2017" / "000000000139.jpg", size_hw, orientation=orientation)
    path = root / "coco" / "annotations" / "instances_val2017.json"
    images = [(139, "000000000139.jpg", written_hw or size_hw)]
    content = coco_json(path, images, [(139, (1, 1, 5, 6), 1, False)] * len(outlines))
    for annotation, outline in zip(content["annotations"], outlines, strict=True):
        whole = isinstance(outline, dict) and "segmentation" in outline
        annotation.update(outline if whole else {"segmentation": outline})
    path.write_text(json.dumps(content))
    return path


def salient(images, masks, names, save=None):
    """JPEG with masks of 0 and 255 alone, or as `save` writes them."""
    for i, name in enumerate(names):
        size_hw = SIZES_HW[i % 3]
        photo(images / f"{name}.jpg", size_hw, i)
        (save or grey_png)(masks / f"{name}.png", blocks(size_hw, [0, 255, 0, 0]))


def ecssd(root):
    folder = root / "ECSSD"
    salient(folder / "images", folder / "ground_truth_mask", ["0001", "0002", "0003"])
    return folder


def duts(root, test=3, train=2):
    folder = root / "DUTS"
    for part, count in (("DUTS-TE", test), ("DUTS-TR", train)):
        names = [f"ILSVRC2012_test_{i:08d}" for i in range(count)]
        salient(folder / part / f"{part}-Image", folder / part / f"{part}-Mask", names)
    return folder


def dutomron(root):
    folder = root / "DUT-OMRON"
    salient(folder / "DUT-OMRON-image", folder / "pixelwiseGT-new-PNG", ["im005", "sun_abc"])
    return folder


def folder(root):
    return own_folder(root)


WNIDS = ("n01440764", "n01443537", "n02085620")


def imagenet(root, train=3, val=2):
    """Folders of classes, as after the usual sorting."""
    folder = root / "imagenet"
    for split, count in (("train", train), ("val", val)):
        class_folders(folder / split, WNIDS, count, suffix="JPEG")
    return folder


def class_folders(folder, classes, count, suffix="jpg"):
    for number, name in enumerate(classes):
        for i in range(count):
            photo(
                folder / name / f"{name}_{i}.{suffix}", SIZES_HW[(number + i) % 3], 9 * number + i
            )
    return folder


def kaggle(root):
    """With validation images in one folder, and their classes in a table."""
    folder = root / "ILSVRC" / "Data" / "CLS-LOC"
    class_folders(folder / "train", WNIDS, 2, suffix="JPEG")
    rows = ["ImageId,PredictionString"]
    for i, name in enumerate((*WNIDS, WNIDS[0])):
        stem = f"ILSVRC2012_val_{i + 1:08d}"
        photo(folder / "val" / f"{stem}.JPEG", SIZES_HW[i % 3], i)
        rows.append(f"{stem},{name} 1 2 3 4 {name} 5 6 7 8 ")
    write_lines(root / "LOC_val_solution.csv", rows)
    return folder


def own_folder(root, splits=("train", "val"), count=2):
    folder = root / "mine"
    for split in splits:
        for i in range(count):
            size_hw = SIZES_HW[i % 3]
            photo(folder / "images" / split / f"p{i}.jpg", size_hw, i)
            grey_png(folder / "masks" / split / f"p{i}.png", blocks(size_hw, [0, 1, 2, 255]))
    write_lines(folder / "classes.txt", ["nothing", "cat", "dog"])
    return folder


def shapes(root):
    """They need no files."""
