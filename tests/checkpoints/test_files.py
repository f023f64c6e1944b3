"""Weights files that are not what they should be (faults 1–7): a clear word, and nothing runs."""

import argparse
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from skipbench.checkpoints import open_checkpoint
from skipbench.errors import CheckpointError


def refused(path, *words):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert 1 <= len(message.splitlines()) <= 3
    for word in words:
        assert word in message, message
    return message


def test_missing_names_the_nearest(tmp_path, state):
    torch.save(state, tmp_path / "checkpoint0100.pth")
    refused(tmp_path / "checkpoint010.pth", "no checkpoint at", "Did you mean 'checkpoint0100.pth'")
    refused(tmp_path / "nowhere" / "x.pth", "does not exist either")


def test_empty(tmp_path):
    (tmp_path / "x.pth").write_bytes(b"")
    refused(tmp_path / "x.pth", "empty", "0 bytes")


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.99])
def test_truncated(tmp_path, state, new_format, share):
    path = tmp_path / "x.pth"
    torch.save(state, path, _use_new_zipfile_serialization=new_format)
    data = path.read_bytes()
    kept = max(int(len(data) * share), 3)
    path.write_bytes(data[:kept])
    refused(path, "cut off", f"{kept:,} bytes")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!DOCTYPE html><html><body>404</body></html>", ("web page", "browser")),
        (b"\n  <html lang=en>", ("web page",)),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9",
            ("Git LFS", "git lfs pull"),
        ),
        (b"\x1f\x8b" + b"0" * 50, ("compressed archive",)),
        (b"hello, this is a text file" * 5, ("not a checkpoint", "hello, this")),
    ],
)
def test_not_weights_at_all(tmp_path, content, words):
    (tmp_path / "x.pth").write_bytes(content)
    refused(tmp_path / "x.pth", *words)


class Malicious:
    """Unpickling this would create a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle", "protocol 4"])
def test_a_pickle_that_runs_code_is_not_run(tmp_path, state, form):
    target = tmp_path / "it-ran"
    path = tmp_path / "x.pth"
    content = {"teacher": state, "args": Malicious(target)}
    if form == "plain pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        protocol = 4 if form == "protocol 4" else 2
        torch.save(
            content, path, _use_new_zipfile_serialization=form != "legacy", pickle_protocol=protocol
        )
    message = refused(path, "posix.system" if os.name == "posix" else "nt.system")
    assert "weights_only" not in message  # torch's own advice is to retry unsafely
    assert not target.exists()
    # The file is malicious indeed: without the guard it does run.
    if form == "plain pickle":
        pickle.loads(path.read_bytes())
        assert target.exists()


def test_a_pickle_of_a_foreign_class_is_named(tmp_path, state):
    torch.save(
        {"model": state, "when": __import__("datetime").date(2026, 1, 1)}, tmp_path / "x.pth"
    )
    refused(tmp_path / "x.pth", "datetime.date")


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
def test_namespace_and_numpy_scalars_are_let_in(tmp_path, state, new_format):
    scalars = [np.float64(1), np.float32(1), np.float16(1), np.int64(1), np.int32(1), np.bool_(1)]
    content = {
        "teacher": state,
        "args": argparse.Namespace(scalars=scalars, out="x"),
        "epoch": np.int64(7),
    }
    torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=new_format)
    assert open_checkpoint(tmp_path / "x.pth").facts.epoch == 7


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchscript(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "x.pt"))
    refused(tmp_path / "x.pt", "TorchScript", "state_dict")


def test_any_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pth", "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(tmp_path / "x.pth", "zip archive", "readme.txt")


def test_safetensors_truncated(tmp_path, state):
    path = tmp_path / "x.safetensors"
    save_file(state, path)
    data = path.read_bytes()
    for kept in (4, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:kept])
        refused(path, f"{kept:,}")
    assert f"{len(data):,}" in refused(path)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 0),
        struct.pack("<Q", 200_000_000) + b"{" * 100,
        struct.pack("<Q", 4) + b"[1,2",
        struct.pack("<Q", 16) + b'{"a": {"b": 1} }',
    ],
)
def test_safetensors_absurd_header(tmp_path, data):
    (tmp_path / "x.safetensors").write_bytes(data)
    refused(tmp_path / "x.safetensors")


def test_safetensors_overlapping_tensors(tmp_path):
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
         "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}}
    ).encode()  # fmt: skip
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    refused(path, "damaged")


# --- found by fuzzing ------------------------------------------------------------------------


def test_a_flipped_bit_in_a_zip_is_found_by_its_checksum(tmp_path, state):
    path = tmp_path / "x.pth"
    torch.save(state, path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(path, "does not match its checksum", "x/data/")


def test_a_zip_that_was_written_without_checksums_is_read(tmp_path, state):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, tmp_path / "x.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert open_checkpoint(tmp_path / "x.pth").facts.depth == 3


def test_a_compressed_zip(tmp_path, state):
    torch.save(state, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as plain,
        zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    refused(tmp_path / "x.pth", "compressed zip archive")


def test_a_damaged_start_of_a_zip(tmp_path, state):
    torch.save(state, tmp_path / "x.pth")
    data = (tmp_path / "x.pth").read_bytes()
    for start in (b"P\0", b"PK\x03\x05", b"\x80K"):
        (tmp_path / "x.pth").write_bytes(start + data[len(start) :])
        refused(tmp_path / "x.pth")


@pytest.mark.parametrize(
    "header",
    [b"[" * 100_000, b'{"a":{"data_offsets":[0,null]},"b":{"data_offsets":[0,8]}}'],
    ids=["nested", "null"],
)
def test_safetensors_headers_that_are_nested_or_hold_no_numbers(tmp_path, header):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    refused(tmp_path / "x.safetensors", "damaged")


def test_a_dictionary_that_contains_itself_or_is_in_many_places(tmp_path, state):
    loop = {"x": torch.ones(1)}
    loop["module"] = loop
    folded = {"x": torch.ones(1)}
    for _ in range(60):
        folded = {"a": folded, "b": folded}
    text = ["x"]
    for _ in range(60):
        text = [text, text]
    torch.save({"teacher": state, "a": loop, "b": folded, "optimizer": text}, tmp_path / "x.pth")
    assert open_checkpoint(tmp_path / "x.pth").facts.depth == 3


def test_a_class_with_an_absurdly_long_name(tmp_path):
    (tmp_path / "x.pth").write_bytes(b"\x80\x02ctorch\n" + b"x" * 200_000 + b"\n.")
    refused(tmp_path / "x.pth", "a class named")


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path, "model.safetensors", "notes.txt")


def test_a_folder_with_a_broken_config(tmp_path, state):
    save_file(state, tmp_path / "model.safetensors")
    for text in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        refused(tmp_path, "config.json", "JSON")


# --- timm:NAME -------------------------------------------------------------------------------


def test_timm_unknown_name():
    refused("timm:vit_smal_patch16_224", "no model", "Did you mean")


def test_as_a_plain_vision_transformer_nothing_else_is_opened(tmp_path):
    import timm

    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "w.pth")
    refused(f"timm:test_resnet@{tmp_path / 'w.pth'}", "no plain vision transformer")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty hub cache, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_timm_download_that_fails_is_said(hub):
    refused("timm:vit_tiny_patch16_224.augreg_in21k", "download failed", str(hub))


def test_timm_works_offline_from_the_hub_cache(hub):
    import timm

    name = "vit_tiny_patch16_224.augreg_in21k"
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False)
    repository = model.pretrained_cfg["hf_hub_id"].replace("/", "--")
    snapshot = hub / f"models--{repository}" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (hub / f"models--{repository}" / "refs").mkdir()
    (hub / f"models--{repository}" / "refs" / "main").write_text("a" * 40)
    save_file(model.state_dict(), snapshot / "model.safetensors")
    checkpoint = open_checkpoint(f"timm:{name}")
    assert (checkpoint.facts.width, checkpoint.facts.heads, checkpoint.facts.depth) == (192, 3, 12)
    assert checkpoint.facts.sources["heads"] == "timm's model.num_heads"
    key = "blocks.3.mlp.fc1.weight"
    assert torch.equal(checkpoint.state[key], model.state_dict()[key])
