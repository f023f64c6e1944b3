"""Every mistake ends with its exit code and a short message, as early as it can be found."""

import errno
import re

import pytest
import torch
from processes import imported_by

from skipbench.errors import ResourceError
from skipbench.files import write_whole


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["inspect", "--ckpt", "nowhere.pth"], 3, "no checkpoint at"),
        (["inspect", "--ckpt", "CKPT", "--residual", "none"], 2, "expected skip, skipless or auto"),
        (["inspect", "--ckpt", "CKPT", "--weights", "techer"], 3, "has no techer; it contains: "),
        (["inspect", "--ckpt", "CKPT", "--weights", "teacher"], 3, "has no teacher"),
        (["inspect", "--ckpt", "CKPT", "--expect", "depth=12"], 3, "expected depth 12"),
        (["inspect", "--ckpt", "CKPT", "--expect", "deep=12"], 2, "Did you mean 'depth'"),
        (["inspect", "--ckpt", "CKPT", "--heads", "5"], 3, "5 heads"),
        (["inspect", "--ckpt", "CKPT", "--position-rule", "x"], 2, "offset, size or antialias"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--layers", "9"], 2, "no block 9"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--size", "big"], 2, "--size big: expected"),
        (["extract", "nowhere", "--ckpt", "CKPT"], 4, "no such image or folder"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--tensor", "kes"], 2, "Did you mean 'keys'"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--batch-size", "0"], 2, "--batch-size"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--precision", "int8"], 2, "--precision"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--device", "tpu"], 2, "--device"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--cache-limit", "much"], 2, "50GB"),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--cache", "CKPT/sub"], 7, "cannot write in"),
        (["cache", "clear", "abc", "--yes"], 2, "cache list"),
        (["check", "--update", "--tolerance", "1", "--github"], 2, "out --github, --tolerance"),
    ],
)
def test_exit_codes(cli, skip_ckpt, pictures, arguments, code, words):
    places = {"CKPT": str(skip_ckpt), "PICTURES": str(pictures)}
    full = [re.sub("CKPT|PICTURES", lambda m: places[m[0]], a) for a in arguments]
    done = cli(*full)
    assert done.exit_code == code, done.output
    assert words in done.stderr and "Traceback" not in done.output
    assert len(done.stderr.strip().splitlines()) <= 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_where_there_is_none(cli, skip_ckpt):
    done = cli("inspect", "--ckpt", skip_ckpt, "--device", "cuda")
    assert done.exit_code == 2 and "no CUDA device" in done.stderr


def test_unwritable_output_is_found_before_any_computing(skipbench, skip_ckpt, pictures):
    """Before even torch is loaded: it answers at once, also as root."""
    done = skipbench("extract", pictures, "--ckpt", skip_ckpt, "--cache", "/proc/skipbench")
    assert done.returncode == 7 and "cannot write in /proc/skipbench" in done.stderr


def test_a_bug_of_ours(cli, skip_ckpt, monkeypatch):
    import skipbench.pipeline

    def broken(*a, **k):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(skipbench.pipeline, "inspect", broken)
    done = cli("inspect", "--ckpt", skip_ckpt)
    assert done.exit_code == 1 and "a bug in skipbench: ZeroDivisionError: oh" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in cli("inspect", "--ckpt", skip_ckpt, "--verbose").stderr


# -- advice that would help


@pytest.mark.parametrize(("cache", "named"), [("cache", True), ("nowhere", False)])
def test_a_full_disk_names_the_cache_only_if_it_is_there(cli, tmp_path, monkeypatch, cache, named):
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("SKIPBENCH_CACHE", str(tmp_path / cache))

    def full(*path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(ResourceError, match="disk full") as caught:
        write_whole(tmp_path / "record.json", b"{}")
    assert ("skipbench cache" in str(caught.value)) == named


@pytest.mark.parametrize(("flag", "named"), [("--no-cache", True), ("--dry-run", False)])
def test_no_cache_is_blamed_only_if_it_was_given(
    cli, skip_ckpt, tmp_path, monkeypatch, flag, named
):
    monkeypatch.setattr("skipbench.features.source.available_bytes", lambda: 1000)
    places = ("--ckpt", skip_ckpt, "--dataset", "shapes", "--limit", "3", "--out", tmp_path)
    done = cli("knn", *places, "--residual", "skip", "--size", "64", flag)
    assert done.exit_code == 7 and "1 kB are free" in done.stderr, done.output
    assert ("--no-cache" in done.stderr) == named


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", "--ckpt", "nowhere.pth"], 3),
        (["inspect", "--ckpt", "CKPT", "--residual", "skiples"], 2),
        (["inspect", "--ckpt", "CKPT", "--device", "gpu"], 2),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--layers", "lst"], 2),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--size", "big"], 2),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--tensor", "key"], 2),
        (["extract", "nowhere", "--ckpt", "CKPT"], 4),
        (["extract", "PICTURES", "--ckpt", "CKPT", "--cache", "/proc/skipbench"], 7),
        (["tokencut", "--ckpt", "CKPT"], 2),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "shapes", "--method", "los"], 2),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "shapes", "--feature", "key"], 2),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "vocc", "--out", "PICTURES"], 2),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "voc", "--tau", "2", "--out", "PICTURES"], 2),
        (["tokencut", "--ckpt", "CKPT", "--images", "nowhere", "--out", "PICTURES"], 4),
        (["tokencut", "--ckpt", "CKPT", "--dataset", "shapes", "--out", "/proc/skipbench"], 7),
        (["pca", "PICTURES", "--ckpt", "nowhere.pth"], 3),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--components", "13"], 2),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--fit", "al"], 2),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--residual", "skip", "--residual", "auto"], 2),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--split", "val", "--out", "OUT"], 2),
        (["pca", "dataset:vocc", "--ckpt", "CKPT", "--out", "OUT"], 2),
        (["pca", "nowhere", "--ckpt", "CKPT", "--out", "OUT"], 4),
        (["pca", "PICTURES", "--ckpt", "CKPT", "--out", "/proc/skipbench"], 7),
    ],
)
def test_what_is_cheap_to_check_is_answered_without_torch(
    arguments, code, skip_ckpt, pictures, tmp_path
):
    places = {"CKPT": str(skip_ckpt), "PICTURES": str(pictures), "OUT": str(tmp_path / "out")}
    full = [places.get(a, a) for a in arguments]
    assert not {"torch", "timm"} & imported_by(full, code, tmp_path)
