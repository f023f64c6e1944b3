"""Interruption at any moment, damage on disk, and too little memory."""

import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import records
from plain_tokencut import boxed_folder, only, put, scene, stable
from processes import Forked

from skipbench.errors import DataError, OutOfMemory
from skipbench.evaluations.resume import Chunks
from skipbench.features.stream import Extractor
from skipbench.files import write_whole
from skipbench.pipeline import carry_out

pytestmark = pytest.mark.usefixtures("nowhere_else")

SHORT = "DefaultCPUAllocator: can't allocate memory"
RUN = "skipbench.evaluations.tokencut.run"

IMAGES = 36  # 32 of them are the first shard
MOMENTS = {
    "kill-at-first-shard": (signal.SIGKILL, 1, 36),
    "kill-at-second-shard": (signal.SIGKILL, 2, 4),
    "kill-at-arrays": (signal.SIGKILL, 4, 0),
    "kill-at-record": (signal.SIGKILL, 5, 0),
    "ctrl-c": (signal.SIGINT, 2, 4),
    "sigterm": (signal.SIGTERM, 2, 4),
}  # how it ends, at which file (two shards, table, arrays, record), images that are then left


@pytest.fixture(scope="module")
def arguments(tmp_path_factory, weights_file):
    folder = tmp_path_factory.mktemp("many") / "boxed"
    boxed_folder(folder, IMAGES)
    return (
        "tokencut", "--ckpt", weights_file, "--dataset", f"folder:{folder}", "--residual", "skip",
        "--layers", "all", "--size", "40x56",
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, arguments):
    folder = tmp_path_factory.mktemp("undisturbed")
    forked = Forked(arguments, folder)
    assert forked.wait() == 0, forked.output
    return folder / "results"


@pytest.mark.parametrize("moment", MOMENTS)
def test_resumed_after_any_moment(cli, arguments, undisturbed, seen, tmp_path, moment):
    """The record is that of an undisturbed run, and only what was missing is computed."""
    number, nth, left = MOMENTS[moment]
    ended = Forked(arguments, tmp_path, killed_at=nth, by=number)
    code = ended.wait()
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert "is kept" in ended.output and "Traceback" not in ended.output
    shown = cli(*arguments)
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only()
    assert stable(record, arrays) == stable(*only(undisturbed))
    assert sum(count for count, _ in seen) == left == record.timing["images_computed"]
    if 0 < left < IMAGES:
        assert f"{IMAGES - left} of {IMAGES} images were done before" in shown.stderr
        last = rf"{IMAGES} of {IMAGES} images, .*CorLoc {record.metrics['corloc']:.1f} "
        assert re.search(last, shown.stderr)  # the score so far counts them
    whole = (undisturbed / record.id / "images.csv").read_bytes()
    assert Path("results", record.id, "images.csv").read_bytes() == whole
    assert not list(Path("cache", "tokencut").iterdir())  # what was kept is of no use now


def interrupted(monkeypatch, run, shards):
    """Ctrl-C as soon as so many shards are kept."""
    save, count = Chunks.save, 0

    def saving(self, shard, arrays):
        nonlocal count
        save(self, shard, arrays)
        count += 1
        if count == shards:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Chunks, "save", saving)
        carry_out(run)
    assert not records(run.settings.out)


def test_another_process_that_ends_first_takes_the_kept_ones_away(opened, monkeypatch):
    """At the worst moment: as this one is about to keep some."""
    carry_out(opened(out="usual", cache="other"))
    ended = []

    def write(path, content):
        if not ended:
            ended.append(shutil.rmtree(path.parent))
        write_whole(path, content)

    monkeypatch.setattr("skipbench.evaluations.resume.write_whole", write)
    carry_out(opened())
    assert ended and stable(*only()) == stable(*only("usual"))


def without_last(content):
    return content[:-40]


def with_a_bit_flipped(content):
    content = bytearray(content)
    content[len(content) // 2] ^= 1
    return bytes(content)


def with_its_list_cut_short(content):
    """One bit, in the list of the arrays: all but the first seem never to have been there."""
    content = bytearray(content)
    content[content.index(b"PK\1\2") + 33] ^= 64  # length of a comment
    return bytes(content)


@pytest.mark.parametrize("damage", [without_last, with_a_bit_flipped, with_its_list_cut_short])
def test_a_damaged_shard_is_done_again(opened, monkeypatch, caplog, damage):
    carry_out(opened(out="usual", cache="other"))
    interrupted(monkeypatch, opened(), 2)
    paths = sorted(Path("cache", "tokencut").glob("*/*.npz"))
    assert len(paths) == 2
    paths[0].write_bytes(damage(paths[0].read_bytes()))
    caplog.clear()
    carry_out(opened())
    assert "recomputed" in caplog.text and "WARNING" in caplog.text
    assert stable(*only()) == stable(*only("usual"))
    assert only()[0].timing["images_computed"] == 8


def test_without_a_cache_nothing_is_kept(opened, monkeypatch):
    interrupted(monkeypatch, opened(in_memory=True), 2)
    assert not Path("cache").exists()
    carry_out(opened(in_memory=True))
    assert only()[0].timing["images_computed"] == 12 and not Path("cache").exists()
    carry_out(opened(out="kept"))
    assert stable(*only()) == stable(*only("kept"))


@pytest.mark.parametrize(("shards", "more"), [(1, {"tau": 0.4}), (2, {"force": True})])
def test_what_was_kept_is_not_used(opened, monkeypatch, shards, more):
    """By other settings, or with --force."""
    interrupted(monkeypatch, opened(), shards)
    carry_out(opened(**more))
    assert only()[0].timing["images_computed"] == 12
    left = list(Path("cache", "tokencut").iterdir())
    assert [path.name == only()[0].id for path in left] == ([] if "force" in more else [False])


def test_a_bad_image_at_the_end_does_not_cost_what_was_done(opened):
    boxed_folder(count=9)
    path = Path("mine", "images", "p8.png")
    whole = path.read_bytes()
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 16
    path.write_bytes(broken)
    with pytest.raises(DataError, match=r"p8\.png"):
        carry_out(opened("folder:mine"))
    path.write_bytes(whole)
    carry_out(opened("folder:mine"))
    assert only()[0].timing["images_computed"] == 1


def test_an_overflow_is_not_forgotten_by_an_interruption(opened, monkeypatch):
    """The rest is computed in the precision that an undisturbed run would have gone on in."""
    forward = Extractor.forward

    def overflows(self, *given):
        self.backbone.precision = "bf16" if self.backbone.precision == "fp16" else "fp32"
        return forward(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "forward", overflows)
        interrupted(patch, opened(precision="bf16"), 1)
    carry_out(opened(precision="bf16"))
    assert only()[0].features["precision"] == "fp32"


# -- fault 36: memory


@pytest.mark.parametrize("error", [RuntimeError(SHORT), MemoryError("Unable to allocate 8 GiB")])
def test_out_of_memory_once_it_goes_on_one_by_one(opened, monkeypatch, error):
    from skipbench.evaluations.tokencut.run import tokencut

    carry_out(opened(out="usual", layers="all"))
    calls = []

    def short(tokens, *arguments):
        calls.append(len(tokens))
        if len(tokens) > 1:
            raise error
        return tokencut(tokens, *arguments)

    monkeypatch.setattr(f"{RUN}.tokencut", short)
    carry_out(opened(layers="all"))
    assert max(calls) > 1 and calls.count(1) == 36
    assert stable(*only()) == stable(*only("usual"))


@pytest.mark.parametrize("method", ["tokencut", "lost"])
def test_out_of_memory_always(opened, monkeypatch, method):
    from skipbench.evaluations.tokencut import run as module

    find, done = getattr(module, method), 0

    def short(tokens, *arguments):
        nonlocal done
        done += len(tokens)
        if done > 4:
            raise RuntimeError(SHORT)
        return find(tokens, *arguments)

    with monkeypatch.context() as patch, pytest.raises(OutOfMemory, match="--size"):
        patch.setattr(f"{RUN}.{method}", short)
        carry_out(opened(method=method))
    assert not records()
    carry_out(opened(method=method))  # what was done is kept
    assert only()[0].timing["images_computed"] == 8


@pytest.mark.parametrize("method", ["tokencut", "lost"])
def test_out_of_memory_is_reported(run, twelve, monkeypatch, method):
    def short(*arguments):
        raise MemoryError

    monkeypatch.setattr(f"{RUN}.{method}", short)
    put(Path("photos", "a.png"), scene((24, 40), (0, 0, 9, 9)))
    for how in (("--dataset", twelve), ("--images", "photos", "--out", "out")):
        shown = run(*how, "--method", method, dataset=None, quick=())
        assert shown.exit_code == 7 and "out of memory" in shown.stderr, shown.stderr
        assert "--size" in shown.stderr and "Traceback" not in shown.stderr
        assert "bug" not in shown.stderr and not records()


def test_out_of_memory_in_the_model(opened, monkeypatch, caplog):
    """The batch is halved."""
    carry_out(opened(out="usual"))
    forward = Extractor.forward

    def short(self, batch, sizes_hw):
        if len(batch) > 3:
            raise RuntimeError(SHORT)
        return forward(self, batch, sizes_hw)

    monkeypatch.setattr(Extractor, "forward", short)
    carry_out(opened())
    assert "images per batch; using" in caplog.text
    assert np.array_equal(only()[1]["boxes"], only("usual")[1]["boxes"])


def test_another_error_is_not_taken_for_a_lack_of_memory(run, twelve, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(f"{RUN}.tokencut", broken)
    shown = run(dataset=twelve)
    assert shown.exit_code == 1 and "shapes cannot be multiplied" in shown.stderr
