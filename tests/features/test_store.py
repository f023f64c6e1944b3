"""Features on disk: found again, never mistaken, whole after every accident (faults 30–34)."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import pytest
import torch
from conftest import SHARED, clean_environment, original_state

import skipbench.features.build as build
from skipbench.backbones.vit import ViTBackbone
from skipbench.checkpoints import open_checkpoint
from skipbench.demo import make_weights, small_facts
from skipbench.engine.locks import FileLock
from skipbench.errors import NumbersError, ResourceError
from skipbench.features import cache as caches
from skipbench.features.store import describe, key_of
from skipbench.features.store import open_store as open_any_store
from skipbench.images import find_images
from skipbench.records import FeatureSpec

SPEC = FeatureSpec(blocks=(0, 2), tensors=("tokens_norm", "keys"), size=(24, 40))


# Two images a shard: 15 tokens of 128 channels in fp16 are 3,840 bytes an image.
open_store = partial(open_any_store, shard_bytes=2 * 3840)


@pytest.fixture
def backbone(ckpt):
    return ViTBackbone(open_checkpoint(ckpt), "skip")


@pytest.fixture
def items(pictures):
    return find_images([pictures])


@pytest.fixture
def count_forwards(monkeypatch):
    calls = []
    whole = ViTBackbone.__call__
    monkeypatch.setattr(
        ViTBackbone, "__call__", lambda self, x, *a: calls.append(len(x)) or whole(self, x, *a)
    )
    return calls


def digest(folder):
    """Every stored byte that a reader may see."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "about.json"
    }


def assert_like_undisturbed(backbone, items, cache, tmp_path):
    """After whatever happened to it: byte for byte what a run in one go writes."""
    digests = []
    for folder in (cache, tmp_path / "undisturbed"):
        with open_store(backbone, items, SPEC, cache=folder) as store:
            digests.append(digest(store.folder))
    assert digests[0] == digests[1]


def test_what_is_read_is_what_was_computed(backbone, items, tmp_path):
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        assert len(store) == 7 and store.columns == (
            "tokens_norm.0",
            "keys.0",
            "tokens_norm.2",
            "keys.2",
        )
        assert len(store.plan.shards) == 4
        for image in (0, 3, 6, -1):
            from skipbench.images import normalise, read_image, stack

            pixels = normalise(stack([read_image(items[image].path, (24, 40))], 8), [(24, 40)])
            alone = backbone(pixels, [0, 2], ("tokens_norm", "keys")).patches
            for column, tokens in store[image].items():
                tensor, block = column.split(".")
                assert tokens.shape == (3, 5, 128) and tokens.dtype == torch.float16
                assert torch.allclose(tokens.float(), alone[int(block), tensor][0], atol=5e-3)
        with pytest.raises(IndexError):
            store[7]


def test_native_sizes(backbone, items, tmp_path):
    spec = dataclasses.replace(SPEC, size=None, store_dtype="fp32")
    with open_store(backbone, items, spec, cache=tmp_path / "c") as store:
        assert [tuple(store[i]["keys.2"].shape[:2]) for i in range(7)] == [
            (5, 7), (3, 5), (5, 7), (5, 7), (3, 5), (5, 7), (5, 7)
        ]  # fmt: skip
        assert store[1]["keys.2"].dtype == torch.float32


def test_found_again_without_computing(backbone, items, tmp_path, count_forwards):
    open_store(backbone, items, SPEC, cache=tmp_path / "c").close()
    assert sum(count_forwards) == 7
    open_store(backbone, items, SPEC, cache=tmp_path / "c").close()
    assert sum(count_forwards) == 7
    # Fewer blocks are there already; one more block needs a pass, and is added to the others.
    open_store(
        backbone, items, dataclasses.replace(SPEC, blocks=(2,)), cache=tmp_path / "c"
    ).close()
    assert sum(count_forwards) == 7
    more = dataclasses.replace(SPEC, blocks=(1, 2))
    with open_store(backbone, items, more, cache=tmp_path / "c") as store:
        assert sum(count_forwards) == 14 and store[0].keys() == set(more.columns)
    assert len(list(caches.entries(tmp_path / "c" / "features"))) == 1


# --- fault 33: never mistaken ----------------------------------------------------------------


def change_weights(tmp_path, backbone, items):
    torch.save(original_state(seed=5), tmp_path / "other.pth")
    return ViTBackbone(open_checkpoint(tmp_path / "other.pth"), "skip"), items, SPEC


def change_residual(tmp_path, backbone, items):
    return ViTBackbone(open_checkpoint(tmp_path / "backbone.pth"), "skipless"), items, SPEC


def change_size(tmp_path, backbone, items):
    return backbone, items, dataclasses.replace(SPEC, size=(40, 24))


def change_precision(tmp_path, backbone, items):
    backbone.precision = "bf16"
    return backbone, items, SPEC


def change_rule(tmp_path, backbone, items):
    checkpoint = open_checkpoint(tmp_path / "backbone.pth", position_rule="antialias")
    return ViTBackbone(checkpoint, "skip"), items, SPEC


def change_list(tmp_path, backbone, items):
    return backbone, items[:-1], SPEC


def change_a_picture(tmp_path, backbone, items):
    shutil.copy(items[3].path, items[1].path)
    return backbone, items, SPEC


def change_order(tmp_path, backbone, items):
    return backbone, items[::-1], SPEC


CHANGES = [change_weights, change_residual, change_size, change_precision, change_rule]
CHANGES += [change_list, change_a_picture, change_order]


@pytest.mark.parametrize("change", CHANGES)
def test_anything_else_is_a_miss(change, backbone, items, tmp_path, count_forwards):
    open_store(backbone, items, SPEC, cache=tmp_path / "c").close()
    before = sum(count_forwards)
    other, others, spec = change(tmp_path, backbone, items)
    open_store(other, others, spec, cache=tmp_path / "c").close()
    assert sum(count_forwards) == before + len(others)


@pytest.mark.parametrize("version", ["store_version", "transform_version"])
def test_another_version_is_a_miss(version, backbone, items, tmp_path):
    about = describe(backbone, items, SPEC)
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        assert store.folder.name == key_of(about) != key_of(about | {version: 99})


def test_keys_stay_what_they_were():
    """Features that an older version stored are found: this key is that of 0.1.0."""
    about = {
        "store_version": 1,
        "checkpoint": "any name",
        "transform_version": 2,
        "size": "448x448",
    }
    assert key_of(about) == key_of(about | {"checkpoint": "x"}) == "22942184b5b8d08ce09c0b9e"


# --- fault 32: damage ------------------------------------------------------------------------


def flip_a_bit(path, where=0.6):
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["flipped bit", "cut short", "gone"])
def test_a_damaged_shard_is_found_and_rebuilt(
    damage, backbone, items, tmp_path, count_forwards, caplog
):
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        folder = store.folder
    sound = digest(folder)
    victim = folder / "keys.2" / "00001.safetensors"
    if damage == "flipped bit":
        flip_a_bit(victim)
    elif damage == "cut short":
        victim.write_bytes(victim.read_bytes()[:-7])
    else:
        victim.unlink()
    count_forwards.clear()
    open_store(backbone, items, SPEC, cache=tmp_path / "c").close()
    assert sum(count_forwards) == 2  # the images of that shard alone
    assert "00001.safetensors of keys.2 is damaged" in caplog.text
    assert digest(folder) == sound


@pytest.mark.parametrize("name", ["plan.json", "keys.2/manifest.json"])
@pytest.mark.parametrize("where", [0.3, 0.5, 0.9])
def test_a_damaged_list_never_gives_wrong_features(name, where, backbone, items, tmp_path):
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        folder, right = store.folder, [store[i]["keys.2"].clone() for i in range(7)]
    flip_a_bit(folder / name, where)
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        assert all(torch.equal(store[i]["keys.2"], right[i]) for i in range(7))


@pytest.mark.parametrize("loss", ["removed", "cut short"])
def test_a_shard_lost_while_in_use_is_reported(loss, backbone, items, tmp_path):
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        for victim in (store.folder / "keys.2").glob("*.safetensors"):
            if loss == "removed":
                victim.unlink()
            else:
                victim.write_bytes(victim.read_bytes()[:300])
        assert store.read(0, "tokens_norm.2").shape == (15, 128)
        with pytest.raises(ResourceError, match="run the command again"):
            store.read(0, "keys.2")


# --- fault 31: killed ------------------------------------------------------------------------

CHILD = """
    import sys, time
    import skipbench.features.build as build
    from skipbench.backbones.vit import ViTBackbone
    from skipbench.checkpoints import open_checkpoint
    from skipbench.features.store import open_store
    from skipbench.images import find_images
    from skipbench.records import FeatureSpec
    spec = FeatureSpec(blocks=(0, 2), tensors=("tokens_norm", "keys"), size=(24, 40))
    ckpt, pictures, cache, stop_at, pause = sys.argv[1:]
    import os, signal
    names = ("write_whole", "append_line")
    steps = 0
    def wrap(function):
        def step(*arguments):
            global steps
            steps += 1
            if steps == int(stop_at):      # in the middle of a write: half of the data is there
                path, data = arguments
                half = data[: len(data) // 2]
                mode = "a" if isinstance(half, str) else "wb"
                partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
                target = path if mode == "a" else partial
                with open(target, mode) as file:
                    file.write(half)
                    file.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(float(pause))
            return function(*arguments)
        return step
    for name in names:
        setattr(build, name, wrap(getattr(build, name)))
    backbone = ViTBackbone(open_checkpoint(ckpt), "skip")
    print("ready", flush=True)
    items = find_images([pictures])
    with open_store(backbone, items, spec, cache=cache, shard_bytes=2 * 3840) as store:
        print("done", store.folder.name, steps, flush=True)
"""


def start(tmp_path, ckpt, pictures, cache, stop_at=0, pause=0.0):
    arguments = [ckpt, pictures, cache, stop_at, pause]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(tmp_path),
    )  # fmt: skip


def finished(child):
    out, err = child.communicate(timeout=120)
    return child.returncode, out, err


@pytest.mark.parametrize("stop_at", [1, 3, 9, 10, 25, 38])
def test_killed_in_the_middle_of_a_write(stop_at, backbone, items, ckpt, pictures, tmp_path):
    code, out, err = finished(start(tmp_path, ckpt, pictures, tmp_path / "c", stop_at))
    assert code == -signal.SIGKILL, (out, err)
    assert_like_undisturbed(backbone, items, tmp_path / "c", tmp_path)


def test_killed_from_outside_it_goes_on(backbone, items, ckpt, pictures, tmp_path, count_forwards):
    cache = tmp_path / "c"
    child = start(tmp_path, ckpt, pictures, cache, pause=0.15)
    journal = None
    deadline = time.monotonic() + 60
    while journal is None or journal.read_text().count("\n") < 2:
        journal = next(iter(cache.rglob("keys.2/journal.jsonl")), None)
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.communicate()
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        left = sum(count_forwards)
        assert len(store) == 7
    assert 0 < left <= 5  # at least one shard of two was not computed again
    assert_like_undisturbed(backbone, items, tmp_path / "c", tmp_path)


# --- fault 34: two at once -------------------------------------------------------------------


def test_two_processes_on_one_store(backbone, items, ckpt, pictures, tmp_path):
    children = [start(tmp_path, ckpt, pictures, tmp_path / "c", pause=0.02) for _ in range(2)]
    results = [finished(child) for child in children]
    assert [code for code, _, _ in results] == [0, 0], results
    steps = sorted(int(out.split()[-1]) for _, out, _ in results)
    assert steps[0] < steps[1]  # the second found the work of the first
    assert_like_undisturbed(backbone, items, tmp_path / "c", tmp_path)


def test_nobody_waits_for_ever_for_a_process_that_hangs(backbone, items, tmp_path):
    with open_store(backbone, items[:2], SPEC, cache=tmp_path / "c") as store:
        key = store.folder.name
    shutil.rmtree(tmp_path / "c" / "features" / key)
    with FileLock(tmp_path / "c" / "features" / f"{key}.build.lock") as hanging:
        assert hanging.try_acquire(exclusive=True)
        with pytest.raises(ResourceError, match="shows no activity"):
            open_store(backbone, items[:2], SPEC, cache=tmp_path / "c", stalled_after=0.5)


def test_a_holder_that_shows_life_is_waited_for(tmp_path):
    holder, waiter = FileLock(tmp_path / "l"), FileLock(tmp_path / "l")
    assert holder.try_acquire(True) and not waiter.try_acquire(True)
    told = []
    started = time.monotonic()

    def on_wait():
        told.append(1)
        holder.release()

    assert waiter.acquire(True, stalled_after=30, on_wait=on_wait, poll=0.01)
    assert told == [1] and time.monotonic() - started < 10


def test_locks_are_shared_by_readers(tmp_path):
    first, second, writer = (FileLock(tmp_path / "l") for _ in range(3))
    assert first.try_acquire(False) and second.try_acquire(False)
    assert not writer.try_acquire(True)
    first.release()
    second.release()
    assert writer.try_acquire(True)


# --- fault 30: the disk is full --------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("room", [0, 4096, 12288, 20480])
def test_disk_full_while_storing(room, backbone, items, tmp_path, small_disk, monkeypatch):
    """Space was there when the run began; something else eats it while features are written."""
    ballast = small_disk / "ballast"
    writes = []
    whole = build.write_whole

    def write(path, data):
        writes.append(path.name)
        if len(writes) == 7:
            free = shutil.disk_usage(small_disk).free
            ballast.write_bytes(bytes(max(free - room, 0)))
        whole(path, data)

    monkeypatch.setattr(build, "write_whole", write)
    with pytest.raises(ResourceError, match="disk full") as caught:
        open_store(backbone, items, SPEC, cache=small_disk / "c")
    assert caught.value.exit_code == 7 and "it resumes" in str(caught.value)
    assert not list(small_disk.rglob("*.partial"))
    ballast.unlink()
    monkeypatch.setattr(build, "write_whole", whole)
    assert_like_undisturbed(backbone, items, small_disk / "c", tmp_path)


def test_too_little_disk_is_said_before_computing(backbone, items, small_disk, count_forwards):
    (small_disk / "ballast").write_bytes(bytes(950_000))
    with pytest.raises(ResourceError, match=r"need 108 kB; .* free"):
        open_store(backbone, items, SPEC, cache=small_disk / "c")
    assert not count_forwards


# --- the cache's limit -----------------------------------------------------------------------


def test_least_recently_used_goes_first(backbone, items, tmp_path):
    folders = []
    for i, size_hw in enumerate([(24, 40), (40, 24), (32, 32)]):
        spec = dataclasses.replace(SPEC, size=size_hw)
        with open_store(backbone, items, spec, cache=tmp_path / "c") as store:
            folders.append(store.folder)
        os.utime(store.folder / "about.json", (1000 + i, 1000 + i))
    open_store(backbone, items, SPEC, cache=tmp_path / "c").close()  # the first is used again
    spec = dataclasses.replace(SPEC, size=(16, 40))
    open_store(backbone, items, spec, cache=tmp_path / "c", limit_bytes=350_000).close()
    assert [folder.exists() for folder in folders] == [True, False, True]


def test_what_is_in_use_is_not_evicted(backbone, items, tmp_path):
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        other = dataclasses.replace(SPEC, size=(40, 24))
        open_store(backbone, items, other, cache=tmp_path / "c", limit_bytes=110_000).close()
        assert store[6]["keys.2"].shape == (3, 5, 128) and store.folder.exists()


def test_more_than_the_limit_is_refused(backbone, items, tmp_path, count_forwards):
    with pytest.raises(ResourceError, match="more than --cache-limit 1 kB"):
        open_store(backbone, items, SPEC, cache=tmp_path / "c", limit_bytes=1000)
    assert not count_forwards


def test_values_beyond_fp16_are_not_stored_as_infinity(tmp_path, items):
    state = original_state()
    state["blocks.2.mlp.fc2.bias"] = state["blocks.2.mlp.fc2.bias"] + 1e5
    torch.save(state, tmp_path / "w.pth")
    backbone = ViTBackbone(open_checkpoint(tmp_path / "w.pth"), "skip")
    spec = FeatureSpec((2,), ("tokens",), (24, 40))
    with pytest.raises(NumbersError, match="--store-dtype fp32"):
        open_store(backbone, items, spec, cache=tmp_path / "c")
    wide = dataclasses.replace(spec, store_dtype="fp32")
    with open_store(backbone, items, wide, cache=tmp_path / "c") as store:
        assert store[0]["tokens.2"].max() > 9e4


# --- fault 17: constant features -------------------------------------------------------------


def test_constant_features_are_counted_and_said(tmp_path, items, caplog):
    """Weights for skip, run skipless: after the last block all tokens of an image are alike."""
    facts = small_facts(width=64, depth=4, patch=8, heads=1)
    torch.save(make_weights("skip", facts), tmp_path / "w.pth")
    backbone = ViTBackbone(open_checkpoint(tmp_path / "w.pth"), "skipless")
    spec = FeatureSpec((0, 3), size=(24, 40))
    for _ in range(2):  # computed, and found again
        caplog.clear()
        with open_store(backbone, items, spec, cache=tmp_path / "c") as store:
            assert store.degenerate == {"tokens_norm.0": (), "tokens_norm.3": tuple(range(7))}
        assert "tokens_norm.3: 7 of 7 images have constant features" in caplog.text
        assert "tokens_norm.0:" not in caplog.text


def test_about_is_readable(backbone, items, tmp_path):
    with open_store(backbone, items, SPEC, cache=tmp_path / "c") as store:
        about = json.loads((store.folder / "about.json").read_text())
    assert about["checkpoint"] == "backbone.pth" and about["residual"] == "skip"
    (entry,) = caches.entries(tmp_path / "c" / "features")
    assert entry.complete and entry.columns == tuple(sorted(SPEC.columns))


@pytest.mark.skipif(not SHARED.exists(), reason="no real weights here")
def test_real_weights_on_real_photographs(tmp_path):
    """Neighbours resemble each other at least twice as much as tokens from opposite corners."""
    backbone = ViTBackbone(
        open_checkpoint(SHARED / "weights" / "dinov2_vits14_fp16.safetensors"), "skip"
    )
    items = find_images([SHARED / "coco-mini" / "val2017"])[:3]
    spec = FeatureSpec((11,), size=(224, 224))
    with open_store(backbone, items, spec, cache=tmp_path) as store:
        for i in range(3):
            tokens = torch.nn.functional.normalize(store[i]["tokens_norm.11"].float(), dim=-1)
            near = (tokens[:, 1:] * tokens[:, :-1]).sum(-1).mean()
            far = (tokens * tokens.flip(0, 1)).sum(-1).mean()
            assert 1 - near < 0.5 * (1 - far)
