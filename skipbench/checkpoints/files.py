"""Weights files: bytes → the raw tree of a checkpoint, whatever the model; tensors → bytes.

Pickles are always read with `weights_only=True`: they may construct tensors, plain containers,
`argparse.Namespace` and numpy scalars. There is no fallback without it.
"""

import _codecs
import argparse
import hashlib
import io
import json
import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from skipbench.errors import CheckpointError, some_of
from skipbench.files import (
    INDEX,
    WEIGHTS_IN_FOLDERS,
    missing_checkpoint,
    sha256_of,
    shards_of,
    weights_file,
    write_whole,
)

LARGEST_HEADER = 100_000_000  # safetensors' own limit
LONGEST_NAME = 200  # of a global
# Globals that are never the reason for refusing a pickle.
HARMLESS = (
    r"torch(\.|$)|collections\.OrderedDict$|argparse\.Namespace$|_codecs\.encode$"
    r"|numpy\.dtype$|numpy\.dtypes\.|numpy\._?core\.multiarray\.scalar$"
)


@dataclass(frozen=True)
class RawFile:
    """The content of a file, before a model is looked for in it."""

    path: Path
    tree: Any  # the unpickled object, or the flat mapping of a safetensors file
    metadata: Mapping[str, Any]  # config.json, or the header of a safetensors file
    metadata_source: str
    sha256: str
    sha256_source: str = "the whole file"


def read_file(path: Path) -> RawFile:
    """Read a weights file, or the one in a folder, with its `config.json`."""
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise CheckpointError(missing_checkpoint(path))
    if path.name.endswith(INDEX):
        return _with_config(_read_shards(path), path.parent)
    head = _first_bytes(path)
    _refuse_other_files(path, head)
    if _looks_like_safetensors(path, head):
        tree, metadata = _read_safetensors(path)
        return RawFile(path, tree, metadata, f"{path.name}: header", sha256_of(path))
    return RawFile(path, _read_pickle(path, head), {}, path.name, sha256_of(path))


def _read_shards(index: Path) -> RawFile:
    tree: dict[str, Any] = {}
    for part in shards_of(index):
        shard = read_file(part).tree
        if not isinstance(shard, Mapping) or tree.keys() & shard.keys():
            raise CheckpointError(f"{part}: not one part of the weights that {index.name} lists")
        tree.update(shard)
    return RawFile(index, tree, {}, index.name, sha256_of(index), "names and hashes of its parts")


def digest_of_tensors(state: Mapping[str, Any]) -> str:
    """A hash of names and values, for weights without a file of their own."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().contiguous().cpu()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read_folder(folder: Path) -> RawFile:
    weights = weights_file(folder)
    if not weights.is_file():
        there = some_of(sorted(p.name for p in folder.iterdir()))
        raise CheckpointError(
            f"{folder} is a folder without {' or '.join(WEIGHTS_IN_FOLDERS)} "
            f"(it contains: {there or 'nothing'}).\n"
            "Give the weights file itself, or a folder in the layout of the Hugging Face hub."
        )
    return _with_config(read_file(weights), folder)


def _with_config(raw: RawFile, folder: Path) -> RawFile:
    """With what the files beside the weights state."""
    stated = {**read_config(folder, "preprocessor_config.json"), **read_config(folder)}
    if not stated:
        return raw
    return replace(raw, metadata={**raw.metadata, **stated}, metadata_source="config.json")


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """Empty where there is none."""
    config = folder / name
    if not config.exists():
        return {}
    try:
        stated = json.loads(config.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{config}: invalid JSON ({error})") from None
    if not isinstance(stated, dict):
        raise CheckpointError(f"{config}: expected a JSON object")
    return stated


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


def _refuse_other_files(path: Path, head: bytes) -> None:
    size = path.stat().st_size
    if size == 0:
        raise CheckpointError(f"{path} is empty (0 bytes). Download or copy it again.")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise CheckpointError(
            f"{path} is a web page ({size:,} bytes), not weights: the server sent an error or\n"
            "login page. Open the address in a browser and download the file from there."
        )
    if text.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path} is a Git LFS pointer ({size:,} bytes), not the weights themselves.\n"
            "Run `git lfs pull` in that repository."
        )
    if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf")):
        raise CheckpointError(
            f"{path} is a compressed archive. Unpack it and give the file inside."
        )
    if head[:1] not in (b"\x80", b"P") and not _looks_like_safetensors(path, head):
        raise CheckpointError(
            f"{path} ({size:,} bytes) is not a checkpoint: it starts with {head[:12]!r}.\n"
            "Expected a zip archive or pickle written by PyTorch, or a safetensors file."
        )


# --- safetensors -----------------------------------------------------------------------------


def _looks_like_safetensors(path: Path, head: bytes) -> bool:
    return path.suffix == ".safetensors" or (len(head) > 9 and head[8:9] == b"{")


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    _check_safetensors_length(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged safetensors file ({error})") from None


def _check_safetensors_length(path: Path) -> None:
    """The header says how long the file must be, so truncation is reported with both sizes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= LARGEST_HEADER:
            raise CheckpointError(
                f"{path} is not a safetensors file: its header would be {length:,} bytes long,\n"
                f"but the file has {size:,}."
            )
        header = file.read(length)
    if len(header) < length:
        raise CheckpointError(
            f"{path} is cut off inside its header: {size:,} bytes there, "
            f"{8 + length:,} needed for the header alone."
        )
    try:
        entries = json.loads(header)
        ends = [e["data_offsets"][1] for name, e in entries.items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        raise CheckpointError(f"{path}: the safetensors header is damaged") from None
    if size < needed:
        raise CheckpointError(
            f"{path} is cut off: {size:,} of {needed:,} bytes. Download or copy it again."
        )


# --- pickles ---------------------------------------------------------------------------------


def _read_pickle(path: Path, head: bytes) -> Any:
    is_zip = head.startswith(b"PK")
    if is_zip:
        _check_zip(path)
    scanned = _scan_pickle(path)
    # torch searches its own message for patterns, in time that grows with the square of the name.
    if odd := [name for name in scanned[0] if len(name) > LONGEST_NAME]:
        raise CheckpointError(f"{path} is damaged: it needs a class named {odd[0]:.40}…")
    try:
        with torch.serialization.safe_globals(_allowed_globals()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, reported below
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip or None)
    except Exception as error:  # torch.load raises exceptions of many kinds
        raise _pickle_error(path, error, *scanned) from None


def _check_zip(path: Path) -> None:
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            compressed = any(entry.compress_type for entry in entries)
            # torch compares no checksums, and need not write them; then they are all 0.
            checked = any(entry.CRC for entry in entries) and not compressed
            damaged = archive.testzip() if checked else None
    except Exception as error:  # damaged bytes raise exceptions of many kinds
        raise CheckpointError(
            f"{path} is cut off or damaged: {size:,} bytes ({error}).\nDownload or copy it again."
        ) from None
    names = [entry.filename for entry in entries]
    if any(re.search(r"(^|/)(code/|constants\.pkl$)", name) for name in names):
        raise CheckpointError(
            f"{path} is a TorchScript archive (code with weights), which is not supported.\n"
            "Save its state_dict() with torch.save instead."
        )
    if not any(name.endswith("data.pkl") for name in names):
        raise CheckpointError(
            f"{path} is a zip archive without PyTorch weights (it contains: {some_of(names)})."
        )
    if compressed:
        raise CheckpointError(
            f"{path} is a compressed zip archive, which PyTorch does not write. Save it again with "
            "torch.save."
        )
    if damaged:
        raise CheckpointError(
            f"{path} is damaged: {damaged!r} in it does not match its checksum.\n"
            "Download or copy it again."
        )


def _pickle_error(
    path: Path, error: Exception, names: list[str], protocol: int, is_complete: bool
) -> CheckpointError:
    """Why torch did not read it. (torch's own message advises to retry unsafely.)"""
    size = path.stat().st_size
    forbidden = [name for name in names if not re.match(HARMLESS, name)]
    if forbidden:
        return CheckpointError(
            f"{path} was not opened: it needs `{forbidden[0]}`, which is not weights, and\n"
            "unpickling it could run code. If you trust it, save its bare state dict and use that."
        )
    early_end = re.search(r"unexpected (EOF|pos)|corrupted", str(error), re.IGNORECASE)
    if early_end or not is_complete or isinstance(error, EOFError):
        return CheckpointError(
            f"{path} is cut off or damaged: it ends after {size:,} bytes, in the middle of its\n"
            "data. Download or copy it again."
        )
    if protocol > 2:
        return CheckpointError(
            f"{path} is pickled with protocol {protocol}, which cannot be read safely.\n"
            "Save it with torch.save and its default protocol (2), or as safetensors."
        )
    why = str(error).split("WeightsUnpickler error:")[-1].strip().split("\n")[0][:120]
    return CheckpointError(f"{path} ({size:,} bytes) cannot be read as weights: {why}")


def _scan_pickle(path: Path) -> tuple[list[str], int, bool]:
    """(globals it needs, protocol, whether it is complete), without executing any opcode."""
    names: list[str] = []
    protocol, is_complete = 0, False
    with _pickle_stream(path) as stream:
        # A legacy file has four pickles (magic, protocol, system, object) before the tensors.
        for _ in range(4):
            if not stream.read(1):
                break
            stream.seek(-1, 1)
            strings: list[str] = []
            is_complete = False
            try:
                for opcode, argument, _position in pickletools.genops(stream):
                    if opcode.name == "PROTO":
                        protocol = max(protocol, int(argument or 0))
                    elif opcode.name in ("GLOBAL", "INST"):
                        names.append(str(argument).replace(" ", "."))
                    elif opcode.name == "STACK_GLOBAL":
                        names.append(".".join(strings[-2:]))
                    elif isinstance(argument, str):
                        strings.append(argument)
                    is_complete = opcode.name == "STOP"
            except Exception:  # damaged or malicious bytes raise exceptions of many kinds
                break
    return names, protocol, is_complete


def _pickle_stream(path: Path) -> IO[bytes]:
    if not _first_bytes(path).startswith(b"PK"):
        return path.open("rb")
    archive = zipfile.ZipFile(path)
    entry = next(one for one in archive.infolist() if one.filename.endswith("data.pkl"))
    if not entry.CRC:  # written without checksums
        del entry.CRC
    return io.BytesIO(archive.open(entry).read())


def _allowed_globals() -> list[Any]:
    """DINO's own training checkpoints contain their arguments, numpy scalars included."""
    scalar = np._core.multiarray.scalar  # type: ignore[attr-defined]
    dtypes = [type(np.dtype(kind)) for kind in "?bBhHiIlLqQefdg"]
    return [
        argparse.Namespace,
        np.dtype,
        *dtypes,
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
        (_codecs.encode, "_codecs.encode"),  # how protocol 2 writes the bytes of a scalar
    ]


# --- writing ----------------------------------------------------------------------------------


def save_checkpoint(
    path: str | Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str | int | float]
) -> Path:
    """Write a safetensors file, atomically, with its facts in the header: residual, heads, epoch,
    optimizer, … `open_checkpoint` reads them back."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {name: str(value) for name, value in metadata.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_whole(path, _in_order(save(tensors, header)))
    return path


def _in_order(content: bytes) -> bytes:
    """With sorted metadata. safetensors writes it in random order, so the same weights would get a
    new hash each time, and their records would not be found."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header = {"__metadata__": dict(sorted(header.pop("__metadata__", {}).items())), **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + content[8 + length :]
