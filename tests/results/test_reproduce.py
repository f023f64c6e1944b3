"""`skipbench reproduce`: the call of a record once more, and how the verdict is reached."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import skipbench as sb
from skipbench.demo import make_weights, small_facts
from skipbench.errors import CheckpointError, DataError
from skipbench.record_store import read_arrays, read_result, write_result

pytestmark = pytest.mark.usefixtures("nowhere_else")

QUICK = {"size": "64x80", "limit": 10, "epochs": 2, "loss_pixels": 64, "device": "cpu"}


def save(path, seed=0):
    path.parent.mkdir(exist_ok=True)
    torch.save(make_weights("skip", small_facts(64, 3, 8, 1), seed), path)
    return path


@pytest.fixture
def record(tmp_path):
    return sb.probe(save(tmp_path / "skip.pth"), "shapes", residual="skip", **QUICK)


def rewritten(record, moved):
    """With another score and, by image, other counts, as another machine might have written it."""
    path = Path("results") / f"{record.id}.json"
    arrays = read_arrays(path.with_suffix(".npz"))
    found = read_result(path)
    metrics = json.loads(json.dumps(found.metrics))
    metrics["miou"] += moved
    arrays["counts"] = arrays["counts"] * 2 if moved else arrays["counts"]
    write_result(Path("results"), replace(found, metrics=metrics), arrays)


def test_the_same_call_gives_the_same_record(record, cli):
    done = cli("reproduce", record.id[-12:], "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    assert f"{record.id}: identical" in done.stdout
    again = read_result(Path("results/reproduced") / f"{record.id}.json")
    assert again.metrics == record.metrics
    assert len(sb.read_results("results")) == 1  # the new one lies apart: tables stay as they are


def test_a_score_that_cannot_be_had_here_fails(record, cli):
    rewritten(record, 3.0)
    done = cli("reproduce", record.id, "--device", "cpu", "--json")
    assert done.exit_code == 5
    found = json.loads(done.stdout)
    assert found["verdict"] == "different" and found["difference"] == pytest.approx(-3.0)
    done = cli("reproduce", record.id, "--device", "cpu")
    assert done.exit_code == 5 and "different" in done.stdout


def test_rounding_is_within_the_noise(record):
    rewritten(record, 0.04)
    found = sb.reproduce(record.id, device="cpu")
    assert found.verdict == "within the noise" and found.noise.startswith("no other seeds")


def test_the_noise_comes_from_seeds_where_there_are_some(record, tmp_path):
    others = sb.probe_all("skip.pth", "shapes", residual="skip", seeds=[1, 2, 3], **QUICK)
    deviation = float(np.std([other.metrics["miou"] for other in others], ddof=1))
    allowed = 4.303 * deviation * 2**0.5  # Student's t of two degrees of freedom
    rewritten(record, 0.9 * allowed)
    found = sb.reproduce(record.id, device="cpu")
    assert found.allowed == pytest.approx(allowed, rel=1e-3)
    assert found.verdict == "within the noise" and "over 3 seeds" in found.noise
    rewritten(record, 0.3 * allowed)  # 1.2 in all
    assert sb.reproduce(record.id, device="cpu").verdict == "different"


def test_what_the_record_needs_is_named(record, cli, tmp_path):
    weights = (tmp_path / "skip.pth").read_bytes()
    (tmp_path / "skip.pth").unlink()
    digest = record.checkpoint["sha256"]
    done = cli("reproduce", record.id)
    assert done.exit_code == 3 and f"skip.pth, sha256 {digest}" in done.stderr
    other = save(tmp_path / "elsewhere" / "other.pth", seed=1)
    with pytest.raises(CheckpointError, match=digest):
        sb.reproduce(record.id, ckpt=other)
    moved = tmp_path / "elsewhere" / "moved.pth"
    moved.write_bytes(weights)
    assert sb.reproduce(record.id, ckpt=moved, device="cpu").verdict == "identical"


def test_images_that_are_not_here_are_named(tmp_path, own_folder, cli):
    record = sb.probe(
        save(tmp_path / "skip.pth"), f"folder:{own_folder}", residual="skip",
        **QUICK | {"limit": None, "epochs": 1},
    )  # fmt: skip
    own_folder.rename(tmp_path / "gone")
    with pytest.raises(DataError, match=f"fingerprint {record.dataset['fingerprint'][:12]}"):
        sb.reproduce(record.id, device="cpu")


@pytest.fixture
def own_folder(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    root = tmp_path / "mine"
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for name in "abcd":
            pixels = rng.integers(0, 256, (40, 56, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "images" / split / f"{name}.png")
            Image.fromarray(pixels[..., 0] % 3).save(root / "masks" / split / f"{name}.png")
    (root / "classes.txt").write_text("sky\ntree\nroad\n")
    return root
