"""What is damaged, by kind, and what must hold of a file that is still accepted."""

import argparse
import io
import json
import os
import pickle
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import trees
from conftest import original_state
from fuzz import readers
from made import counts_of, of_schema_1, put_tokencut, scores_by_block, with_counts
from PIL import Image
from safetensors.torch import save
from torchvision.io import ImageReadMode, decode_image

from skipbench import check, compare, read_results, report, tables, update_baseline
from skipbench.checkpoints import open_checkpoint
from skipbench.datasets.coco import SegmentIndex
from skipbench.datasets.common.coco_annotations import BoxIndex
from skipbench.datasets.voc import read_xml
from skipbench.errors import SkipbenchError
from skipbench.images import read_image, read_mask
from skipbench.record_store import digest_of, read_arrays, read_result, write_result
from skipbench.results.baseline import read_baseline
from skipbench.results.tables.layouts import LAYOUTS
from skipbench.suites.read import EVALUATION_KEYS, read_suite


@dataclass(frozen=True)
class Kind:
    file: str
    seeds: list  # bytes, or JSON that is damaged by value
    accept: Callable[[Path], object]  # AssertionError: accepted, but not what it should be
    words: tuple[bytes, ...] = ()
    wrap: Callable[..., bytes] = bytes  # from what is damaged to the file
    beside: dict[str, bytes] = field(default_factory=dict)
    lines: int = 3  # of a message, at most


# -- checkpoints


def saved(tree, **how):
    torch.save(tree, file := io.BytesIO(), **how)
    return file.getvalue()


def small(dtype=torch.float32):
    state = original_state(width=8, depth=1, patch=2, grid=2)
    return {name: tensor.to(dtype) for name, tensor in state.items()}


def training(dtype=torch.float32, **more):
    arguments = argparse.Namespace(num_heads=2, lr=5e-4, img_size=[4, 4])
    return {"teacher": small(dtype), "epoch": 7, "args": arguments, **more}


def same_weights(read, path):
    opened = open_checkpoint(path)
    try:
        arrays, facts = read(path.read_bytes())
    except ValueError as error:
        assert "unsupported pickle protocol" in str(error)  # its number changes no opcode
        return
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays["cls_token"] = arrays["cls_token"] + arrays["pos_embed"][:, :1]
    arrays["pos_embed"] = arrays["pos_embed"][:, 1:]
    for name, tensor in opened.state.items():
        assert np.array_equal(tensor.numpy(), arrays[name]), name
    assert (opened.facts.heads, opened.facts.epoch) == (facts["num_heads"], facts.get("epoch"))


def same_config(path):
    facts = open_checkpoint(path.parent).facts
    config = readers.strict_json(path.read_bytes())
    assert facts.heads == config.get("num_attention_heads", config.get("heads"))
    assert facts.norm_eps == (config.get("layer_norm_eps") or 1e-6)


def with_pickle(data, pickled):
    """The archive with another pickle inside, its checksums right."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, pickled if name.endswith("data.pkl") else old.read(name))
    return file.getvalue()


class Calls:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def malicious():
    """What must never run, and trees without an end."""
    touch = Calls(os.system, "touch canary")
    calls = [
        touch, Calls(exec, "open('canary', 'w')"), Calls(os.makedirs, "../canary"),
        Calls(getattr, Calls(__import__, "os"), "system"), Calls(np.load, "canary", None, True),
        Calls(torch.load, "canary"), Calls(bytearray, 2**40), Calls(np.dtype, "O"),
    ]  # fmt: skip
    loop, folded, deep = {}, {"x": torch.ones(1)}, {"patch_embed.proj.weight": torch.ones(1)}
    loop["module"] = loop
    for _ in range(60):
        folded, deep = {"a": folded, "b": folded}, {"module": deep}
    for tree in [*({"opt": call} for call in calls), loop, {"opt": folded}, deep]:
        for how in ({}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}):
            yield saved(training(**tree), **how)
    # pickle.dumps would recurse.
    yield b"\x80\x02" + b"}X\x01\x00\x00\x00a" * 50_000 + b"}" + b"s" * 50_000 + b"."
    yield pickle.dumps(touch)


# -- images and annotations


def encoded(pixels, form="PNG", palette=None, orientation=1):
    exif, file, image = Image.Exif(), io.BytesIO(), Image.fromarray(pixels)
    exif[0x0112] = orientation
    if palette:
        image.putpalette(palette)
    image.save(file, form, exif=exif)
    return file.getvalue()


def with_checksums(data):
    """A PNG whose chunks have the checksums of their content, however damaged it is."""
    at, out = 8, data[:8]
    while at + 8 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        body = data[at + 4 : end]
        out += data[at : at + 4] + body + zlib.crc32(body).to_bytes(4, "big")
        at = end + 4
    return out


def one_of(seeds, read, path):
    """With checksums, only what was never damaged is accepted."""
    found, whole = read(path), path.with_suffix(".whole")
    for seed in seeds:
        whole.write_bytes(seed)
        if np.array_equal(found, read(whole)):
            return
    raise AssertionError("other pixels")


def same_jpeg(path):
    found = read_image(path)
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    with suppress(RuntimeError):  # it has no checksums, and decoders differ in what they refuse
        assert np.array_equal(found, decode_image(data, ImageReadMode.RGB).permute(1, 2, 0))


def same_boxes(path):
    boxes = BoxIndex(path).boxes("000000000139.jpg", by_name=False)
    found = [boxes.xyxy.tolist(), list(boxes.classes), boxes.crowds]
    assert found == [*readers.coco_boxes(path.read_bytes(), "000000000139.jpg")]


def same_objects(path):
    boxes = read_xml(path)
    assert (boxes.xyxy.tolist(), boxes.hard.tolist()) == readers.voc_boxes(path.read_bytes())


RUN_LENGTHS = [
    {"segmentation": {"size": [30, 44], "counts": [100, 20, 300, 40, 860]}, "area": 60},
    {"segmentation": {"size": [30, 44], "counts": [90, 200, 1030]}, "iscrowd": 1},
    [[1.5, 2, 20, 3, 9, 25]],
]  # fmt: skip


# -- suites, records, baselines

SUITE = b"""# A comment, which may be anything.
out = "results"
[[checkpoint]]
path = "skip*.pth"
residual = "skip"
optimizer = "soap"
[[evaluation]]
kind = "probe"
datasets = ["shapes"]
layers = ["last", "multiscale"]
lr = [1e-3, 0.01]
[[evaluation]]
kind = "tokencut"
name = "cut"
datasets = ["shapes"]
tau = 0.2
"""


def same_suite(path):
    suite, tree = read_suite(path), tomllib.loads(path.read_text("utf-8-sig"))
    for entry, table in zip(suite.evaluations, tree["evaluation"], strict=True):
        assert entry.kind == table["kind"]
        assert entry.options == {k: v for k, v in table.items() if k not in EVALUATION_KEYS}
    wanted = {one.get("optimizer") for one in tree["checkpoint"]}
    assert {one.labels.get("optimizer") for one in suite.checkpoints} == wanted


@cache
def results():
    """By name: records of two models and two evaluations, with a baseline of them."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for model in ("a.pth", "b.pth"):
            facts = {"name": model, "residual": "skip"}
            with_counts(folder, counts_of(rng, 10), **facts)
            put_tokencut(folder, scores_by_block(rng, 10, depth=4, best=2), **facts)
        update_baseline(folder, folder / "base" / "line.txt", paired=True)
        first = min(folder.glob("probe*.json"))
        found = {path.name: path.read_bytes() for path in folder.rglob("*.*")}
        write_result(folder, of_schema_1(read_result(first)), {})
        return found | {"old": first.read_bytes()}


def same_record(path):
    assert read_result(path).to_json().items() <= json.loads(results()[path.name]).items()


def same_arrays(path):
    original = np.load(io.BytesIO(results()[path.name]))
    assert all(np.array_equal(array, original[key]) for key, array in read_arrays(path).items())


def signed(tree):
    """As a forger would: the digest is right, whatever the record says."""
    if isinstance(tree, dict) and "digest" in tree:
        tree["digest"] = digest_of({k: v for k, v in tree.items() if k != "digest"})
    return json.dumps(tree).encode()


def read_by_all(path):
    """Whatever reads records: no errors but ours."""
    found = read_results(path.parent, strict=True)
    steps = [partial(tables, found, layout=layout) for layout in [*LAYOUTS, "plain"]]
    steps += [partial(check, found, path.parent / "line.txt", paired=p) for p in (False, True)]
    steps += [partial(compare, "a.pth", "b.pth", results=found, resamples=50)]
    steps += [partial(report, found, path.parent / "page.html")]
    for step in steps:
        with suppress(SkipbenchError):
            step()


def same_baseline(path):
    verdicts, read = check(path.parent, path), read_baseline(path).figures
    lines = {one["figure"]: one for one in readers.strict_json(path.read_bytes())["figures"]}
    for name, line in lines.items():
        assert {k: v for k, v in line.items() if k != "facts"}.items() <= vars(read[name]).items()
    assert all(v.expected == lines[v.figure]["value"] for v in verdicts if v.state != "new")


def same_verdicts(path):
    verdicts = check(path.parent, path.with_suffix(".txt"), paired=True)
    assert [verdict.state for verdict in verdicts] == ["met"] * 4


@cache
def kinds():
    photo = np.random.default_rng(0).integers(0, 256, (30, 44, 3), dtype=np.uint8)
    mask = trees.blocks((30, 44), [0, 1, 7, 255])
    archive, legacy = saved(training()), saved(training(), _use_new_zipfile_serialization=False)
    inside = zipfile.ZipFile(io.BytesIO(archive)).read("archive/data.pkl")
    weights, half = (
        save(small(dtype), {"num_heads": "2", "epoch": "7"})
        for dtype in (torch.float32, torch.float16)
    )
    end = 8 + int.from_bytes(weights[:8], "little")
    config = {"model_type": "vit", "num_attention_heads": 2, "layer_norm_eps": 1e-6, "depth": 1}
    pickles, tensors = (
        partial(same_weights, read) for read in (readers.pickle_tree, readers.safetensors_tree)
    )
    with tempfile.TemporaryDirectory() as made:
        text = trees.coco_outlined(Path(made), RUN_LENGTHS).read_bytes()
        objects = [trees.voc_object(), trees.voc_object("cat", difficult=1)]
        trees.voc_xml(xml := Path(made) / "x.xml", (30, 44), objects)
        voc, coco = xml.read_bytes() + b"<!-- " + b"x" * 2000 + b" -->", json.loads(text)
    picture = {"000000000139.jpg": encoded(photo, "JPEG")}
    pngs = [encoded(photo), encoded(mask), encoded(mask, palette=list(range(256)) * 3)]
    masks = [*pngs[1:], encoded(mask.astype(np.uint16) * 3)]
    jpegs = [encoded(photo, "JPEG"), encoded(mask, "JPEG")]
    others = [encoded(photo, form) for form in ("TIFF", "WEBP", "GIF", "BMP", "PPM")]
    others += [encoded(photo, form, orientation=6) for form in ("PNG", "JPEG")]
    probe, cut = (min(n for n in results() if n.startswith(e)) for e in ("probe", "tokencut"))
    beside, arrays = results(), probe.replace(".json", ".npz")
    line = beside["line.txt"]

    def segments(path):
        SegmentIndex(path).segments(path.with_name("000000000139.jpg"))

    runs = (b"cposix\nsystem\n(S'touch canary'\ntR0", b"c__builtin__\neval\n", b"IntStorage",
            b"ctorch.storage\n_load_from_bytes\n", b"X\xff\xff\xff\x7f")  # fmt: skip
    types = (b"I32", b"BOOL", b"BF16")
    entity = (b"<!DOCTYPE a [<!ENTITY b SYSTEM 'x.xml'>]>", b"&b;", b"<object>")
    toml = (b"[[evaluation]]", b"inf", b"1979-05-27", b"'''")
    return {
        "checkpoint, zip": Kind("x.pth", [archive], pickles, runs),
        "checkpoint, legacy": Kind("x.pth", [legacy], pickles, runs),
        "pickle inside": Kind("x.pth", [inside], pickles, runs, partial(with_pickle, archive)),
        "malicious pickle": Kind("x.pth", list(malicious()), open_checkpoint, runs),
        "safetensors": Kind("x.safetensors", [weights, half], tensors),
        "safetensors header": Kind(
            "x.safetensors", [weights[8:end]], tensors, types,
            lambda header: len(header).to_bytes(8, "little") + header + weights[end:],
        ),
        "config.json": Kind(
            "config.json", [json.dumps(config).encode()], same_config,
            beside={"model.safetensors": save(small())},
        ),
        "image, PNG": Kind("x.png", pngs, partial(one_of, pngs, read_image)),
        "image, PNG signed": Kind("x.png", pngs, read_image, wrap=with_checksums),
        "image, JPEG": Kind("x.jpg", jpegs, same_jpeg),
        "image, other": Kind("x.img", others, read_image),
        "mask, PNG": Kind("x.png", masks, partial(one_of, masks, read_mask)),
        "mask, PNG signed": Kind("x.png", masks, read_mask, wrap=with_checksums),
        "COCO boxes": Kind("x.json", [text], same_boxes),
        "COCO boxes, by value": Kind("x.json", [coco], same_boxes),
        "COCO segments": Kind("x.json", [text], segments, beside=picture),
        "COCO segments, by value": Kind("x.json", [coco], segments, beside=picture),
        "VOC XML": Kind("x.xml", [voc], same_objects, entity),
        "suite": Kind("x.toml", [SUITE], same_suite, toml, beside={"skip1.pth": b""}, lines=31),
        "record": Kind(probe, [beside[probe]], same_record),
        "record's arrays": Kind(arrays, [beside[arrays]], same_arrays, beside=beside),
        "record, forged": Kind(
            cut, [json.loads(beside[cut])], read_by_all, wrap=signed, beside=beside
        ),
        "record, schema 1": Kind(probe, [json.loads(beside["old"])], read_by_all, beside=beside),
        "baseline": Kind("line.txt", [line], same_baseline, beside=beside),
        "baseline, by value": Kind("line.txt", [json.loads(line)], same_baseline, beside=beside),
        "baseline's counts": Kind("line.npz", [beside["line.npz"]], same_verdicts, beside=beside),
    }  # fmt: skip
