"""One pass over the images, whatever is drawn; interruption, damage and a full disk."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import lasting, records
from plain_pca import (
    files_in,
    pixels_of,
)
from processes import Forked

from skipbench.record_store import read_arrays

pytestmark = pytest.mark.usefixtures("nowhere_else")


def test_one_pass_for_each_checkpoint_whatever_is_drawn(run, bare, seen, tmp_path):
    def counted(*more, models="ab"):
        seen.clear()
        cached = ("--cache", tmp_path / "cache")
        shown = run(models, tmp_path / "out", "--layers", "all", *more, *cached)
        assert shown.exit_code == 0, shown.stderr
        shutil.rmtree(tmp_path / "out")
        return sum(images for images, _ in seen), shown.stderr

    count, said = counted()
    assert count == 6 and {blocks for _, blocks in seen} == {(0, 1, 2)}
    assert "features of a.pth: 3 of 3 images" in said
    for more in (
        (), ("--fit", "all"), ("--background", "mask"), ("--layers", "1"), ("--no-align",),
        ("--upsample", "bilinear"), ("--components", "7"),
    ):  # fmt: skip
        count, said = counted(*more)
        assert count == 0 and "found in the cache" in said, more
    assert counted(models="cab")[0] == 3
    assert counted("--feature", "values")[0] == 6


def test_the_record_says_how_many_were_computed(done, bare, seen, tmp_path):
    how = ("--layers", "all", "--cache", tmp_path / "cache")
    first = done("ab", "first", *how)
    assert [r.timing["images_computed"] for r in first.values()] == [3, 3]
    again = done("ab", "again", *how)
    assert [r.timing["images_computed"] for r in again.values()] == [0, 0]
    assert sum(images for images, _ in seen) == 6
    assert list(map(lasting, first.values())) == list(map(lasting, again.values()))


def test_without_a_cache_and_elsewhere_the_same_to_the_last_bit(done, no_sheets, tmp_path):
    """Two folders, other batches, no store."""
    how = ("--layers", "0,2", "--fit", "all", "--background", "mask")
    first = done("ab", "first", *how)
    other = done("ab", "other", *how, "--no-cache", "--cache", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    ours, theirs = files_in("first"), files_in("other")
    assert ours == theirs
    for name in ours:
        if not name.endswith((".json", ".npz")) or "tiles" in name:
            assert Path("first", name).read_bytes() == Path("other", name).read_bytes(), name
    assert list(map(lasting, first.values())) == list(map(lasting, other.values()))
    for record in first.values():
        one, two = (read_arrays(Path(f, f"{record.id}.npz")) for f in ("first", "other"))
        assert set(one) == set(two)
        assert all(np.array_equal(one[k], two[k], equal_nan=True) for k in one)


@pytest.mark.parametrize("what", ["one.png", "sheet.png", "figures.csv", "sheet.pdf", "index.json"])
def test_a_full_disk_while_pictures_are_drawn(run, monkeypatch, what):
    """Fault 30: in whatever thread it is met."""
    whole = Path.open

    def full(path, *mode, **rest):
        if path.name.startswith(f".{what}.") and path.name.endswith(".partial"):
            raise OSError(28, "No space left on device")
        return whole(path, *mode, **rest)

    monkeypatch.setattr(Path, "open", full)
    shown = run("ab", "out")
    assert shown.exit_code == 7, shown.stderr
    assert "disk full" in shown.stderr or "No space left" in shown.stderr
    assert "bug" not in shown.stderr and "Traceback" not in shown.stderr
    assert not list(Path("out").rglob("*.partial")) and not records("out")


def test_a_file_where_a_folder_must_be(run, monkeypatch):
    """Fault 35: of a checkpoint's own folder, too."""
    Path("out").mkdir()
    Path("out", "a.pth_skip").write_text("in the way")
    shown = run("a", "out")
    assert shown.exit_code == 7 and "cannot write" in shown.stderr and not records("out")


# How it ends, and as which file is about to appear in that folder. In `out` these are: a mark,
# three pictures, a sheet and its PDF, figures, seven files of tiles, arrays, record.
MOMENTS = {
    "kill-in-features": (signal.SIGKILL, "cache", 1),
    "ctrl-c-in-pictures": (signal.SIGINT, "out", 3),
    "sigterm-in-sheets": (signal.SIGTERM, "out", 6),
    "kill-in-tiles": (signal.SIGKILL, "out", 10),
}


@pytest.fixture(scope="module")
def arguments(world):
    return ("pca", world / "photos", "--ckpt", world / "a.pth", "--residual", "skip",
            "--size", "native", "--out", "out", "--cache", "cache")  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, arguments):
    folder = tmp_path_factory.mktemp("undisturbed")
    forked = Forked(arguments, folder)
    assert forked.wait() == 0, forked.output
    return folder / "out"


@pytest.mark.parametrize("moment", MOMENTS)
def test_ended_at_any_moment_the_next_run_is_whole(cli, arguments, undisturbed, tmp_path, moment):
    number, where, nth = MOMENTS[moment]
    ended = Forked(arguments, tmp_path, killed_at=nth, by=number, into=tmp_path / where)
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    assert ended.wait() == codes[number], ended.output
    assert "Traceback" not in ended.output and "bug" not in ended.output
    if number != signal.SIGKILL:
        assert "is kept" in ended.output
    before = files_in(undisturbed)
    assert files_in("out") != before  # it did end before its time
    for path in Path("out").rglob("*.png"):
        if not path.name.startswith("."):
            pixels_of(path)  # whole
    shown = cli(*arguments)
    assert shown.exit_code == 0, shown.stderr
    left = {name for name in files_in("out") if not name.endswith(".partial")}
    assert left == before
    for name in left:
        if not name.endswith((".json", ".npz")) or "tiles" in name:
            assert Path("out", name).read_bytes() == (undisturbed / name).read_bytes(), name
    ours, whole = records("out"), records(undisturbed)
    assert list(map(lasting, ours)) == list(map(lasting, whole))
    if "features" not in moment:
        assert [record.timing["images_computed"] for record in ours] == [0]


def test_a_damaged_picture(run, bare, world):
    """Fault 19."""
    shutil.copytree(world / "photos", "mine")
    path = Path("mine", "three.png")
    path.write_bytes(path.read_bytes()[:-900])
    shown = run("a", "out", images=Path("mine").absolute())
    assert shown.exit_code == 4 and "three.png" in shown.stderr and not records("out")
    assert "--skip-bad 1" in shown.stderr and "Traceback" not in shown.stderr
    shown = run("a", "out", "--skip-bad", "1", images=Path("mine").absolute())
    assert shown.exit_code == 0 and "three.png" in shown.stderr
    [record] = records("out")
    assert record.dataset["bad"] == ["three.png"]
    assert record.dataset["names"] == ["one.png", "two.png"]
    assert files_in("out/a.pth_skip") == {"one.png", "two.png"}
    Path("mine", "two.png").write_bytes(b"no picture")
    shown = run("a", "x", "--skip-bad", "1", images=Path("mine").absolute())
    assert shown.exit_code == 4 and "2 images cannot be decoded" in shown.stderr
