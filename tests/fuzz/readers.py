"""The same files read by other code: plain, strict, and without anything of skipbench."""

import argparse
import io
import json
import pickle
import re
import zipfile
from xml.dom import minidom

import numpy as np

DTYPES = {"Float": "<f4", "Double": "<f8", "Half": "<f2", "F32": "<f4", "F64": "<f8", "F16": "<f2"}


# -- checkpoints: tensors by name, and facts


class Storage:
    def __init__(self, kind, key):
        self.key, self.dtype, self.data = key, np.dtype(DTYPES[kind.removesuffix("Storage")]), None


class Tensor:
    def __init__(self, storage, offset, size, stride, *rest):
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride

    def array(self):
        last = sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        assert min(self.offset, *self.stride) >= 0
        assert self.offset + last < len(self.storage.data), "a tensor beyond its storage"
        strides = [self.storage.dtype.itemsize * step for step in self.stride]
        start = self.storage.data[self.offset :]
        return np.lib.stride_tricks.as_strided(start, self.size, strides)


KNOWN = {
    "torch._utils _rebuild_tensor_v2": Tensor, "argparse Namespace": argparse.Namespace,
    "collections OrderedDict": dict,
}  # fmt: skip


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        return name if name.endswith("Storage") else KNOWN[f"{module} {name}"]

    def persistent_load(self, saved):
        storages = self.__dict__.setdefault("storages", {})
        return storages.setdefault(saved[2], Storage(*saved[1:3]))


def pickle_tree(data):
    file = io.BytesIO(data)
    if data[:2] == b"PK":
        archive = zipfile.ZipFile(file)
        top = next(n for n in archive.namelist() if n.endswith("data.pkl"))[: -len("data.pkl")]
        reader = Unpickler(archive.open(f"{top}data.pkl"))
        tree = reader.load()
        for one in reader.storages.values():
            one.data = np.frombuffer(archive.read(f"{top}data/{one.key}"), one.dtype)
    else:
        assert [pickle.load(file) for _ in range(3)][:2] == [0x1950A86A20F9469CFC6C, 1001]
        reader = Unpickler(file)
        tree = reader.load()
        for key in pickle.load(file):
            one, count = reader.storages[key], int.from_bytes(file.read(8), "little")
            size = count * one.dtype.itemsize % 2**64  # as torch computes it; data are the same
            one.data = np.frombuffer(file.read(size), one.dtype)
    arrays = {k: v.array() for k, v in tree["teacher"].items() if isinstance(v, Tensor)}
    return arrays, vars(tree["args"]) | {"epoch": tree.get("epoch")}


def safetensors_tree(data):
    end = 8 + int.from_bytes(data[:8], "little")
    header, arrays = strict_json(data[8:end]), {}
    facts = header.pop("__metadata__", {})
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        content = np.frombuffer(data[end + start : end + stop], DTYPES[entry["dtype"]])
        arrays[name] = content.reshape(entry["shape"])
    numbers = {n: int(v) for n, v in facts.items() if re.fullmatch(r"[-+]?\d+(\.0*)?", v)}
    return arrays, numbers


# -- annotations


def strict_json(data):
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    return json.loads(text, parse_constant=lambda name: {}[name], object_pairs_hook=merged)


def merged(pairs):
    """Of a list that is there twice, a streaming reader finds both; it does not look for another
    one of images."""
    found = {}
    for key, value in pairs:
        if key == "annotations":
            value = found.get(key, []) + value
        found[key] = found.get(key, value) if key == "images" else value
    return found


def coco_boxes(data, file):
    """Corners, classes, and the number of crowds."""
    tree = strict_json(data)
    (image,) = (one["id"] for one in tree["images"] if one["file_name"] == file)
    categories = tree["categories"] if isinstance(tree.get("categories"), list) else []
    names = {one["id"]: str(one["name"]) for one in categories}
    own = [one for one in tree["annotations"] if "bbox" in one and one["image_id"] == image]
    single = [one for one in own if not one.get("iscrowd", 0)]
    assert all(type(side) in (int, float) for one in own for side in one["bbox"])
    corners = [[x, y, x + width, y + height] for x, y, width, height in (o["bbox"] for o in single)]
    classes = [names.get(one.get("category_id"), "?") for one in single]
    return corners, classes, len(own) - len(single)


def voc_boxes(data):
    def text(node, name, default):
        found = [one for one in node.childNodes if one.nodeName == name]
        return "".join(p.data for p in found[0].childNodes if p.nodeType == 3) if found else default

    corners, hard = [], []
    for one in minidom.parseString(data).documentElement.childNodes:
        if one.nodeName == "object":
            box = next(part for part in one.childNodes if part.nodeName == "bndbox")
            sides = [text(box, name, "").strip() for name in ("xmin", "ymin", "xmax", "ymax")]
            assert all(re.fullmatch(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?", s, re.A) for s in sides)
            x0, y0, x1, y1 = (int(float(side)) for side in sides)
            corners.append([x0 - 1, y0 - 1, x1, y1])
            marks = {text(one, name, "0").strip() for name in ("difficult", "truncated")}
            assert marks <= {"0", "1", "", "Unspecified"}
            hard.append("1" in marks)
    return corners, hard
