"""Interruption at any moment, damage on disk, and too little memory."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import trees
from conftest import records
from PIL import Image
from plain_tokencut import boxed_folder, only, put, scene, stable, table

import skipbench as package

pytestmark = pytest.mark.usefixtures("nowhere_else")


# Children of one process that has imported all that is slow, and computed nothing yet. Each gets a
# signal as it is about to put down its nth file: three shards, arrays, record, table.
CHILDREN = """
import json, os, signal, sys
from pathlib import Path
import skipbench.features.plan, skipbench.evaluations.tokencut.calls
from skipbench.cli import main

skipbench.features.plan.SHARD_IMAGES = 4
fsync = os.fsync

def child(name, number, nth):
    Path(name).mkdir(exist_ok=True)
    log = os.open(f"{name}/log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    files = 0

    def count(file):
        nonlocal files
        fsync(file)
        files += 1
        if files == nth:
            os.kill(os.getpid(), number)

    os.fsync = count
    sys.argv += ["--cache", f"{name}/cache", "--out", f"{name}/results"]
    main()

def start(*job):
    pid = os.fork()
    if not pid:
        try:
            child(*job)
        except SystemExit as end:
            sys.stdout.flush(), os._exit(end.code or 0)
        os._exit(0)
    return pid

codes = {}
jobs, together = json.loads(os.environ["JOBS"]), json.loads(os.environ["TOGETHER"])
wait = lambda pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
for job in jobs:
    codes[job[0]] = wait(start(*job))
pids = [start(*job) for job in together]
codes["together"] = [wait(pid) for pid in pids]
print(json.dumps(codes))
"""


ARGUMENTS = ("--dataset", "shapes", "--residual", "skip", "--layers", "all", *QUICK)


MOMENTS = {
    "kill, first shard": (signal.SIGKILL, 1, 12),
    "kill, second shard": (signal.SIGKILL, 2, 8),
    "kill, fifth file": (signal.SIGKILL, 5, 0),
    "kill, last file": (signal.SIGKILL, 6, 0),
    "ctrl-c": (signal.SIGINT, 2, 8),
    "sigterm": (signal.SIGTERM, 3, 4),
}  # how it ends, at which file, images that are then left


@pytest.fixture(scope="module")
def ended(tmp_path_factory, weights_file):
    """Runs that were ended at each of these moments, one that was not, and two at once."""
    folder = tmp_path_factory.mktemp("ended")
    names = {key: re.sub(r"\W+", "-", key) for key in MOMENTS}
    jobs = [[names[key], int(number), nth] for key, (number, nth, _) in MOMENTS.items()]
    environment = clean_environment(folder) | {
        "JOBS": json.dumps([["undisturbed", 0, 0], *jobs]),
        "TOGETHER": json.dumps([["together", 0, 0]] * 2),
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, "tokencut", "--ckpt", weights_file, *ARGUMENTS],
        capture_output=True, text=True, timeout=120, cwd=folder, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, names, json.loads(done.stdout)


@pytest.mark.parametrize("moment", MOMENTS)
def test_ended_at_any_moment_it_goes_on(cli, weights_file, ended, small_shards, seen, moment):
    """The record is that of an undisturbed run, and only what was missing is computed."""
    folder, names, codes = ended
    assert codes["undisturbed"] == 0
    number, _, left = MOMENTS[moment]
    mine = folder / names[moment]
    said = (mine / "log.txt").read_text()
    if number == signal.SIGKILL:
        assert codes[names[moment]] == -signal.SIGKILL
    else:
        assert codes[names[moment]] == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert "what was done is kept" in said and "Traceback" not in said
    places = ("--cache", mine / "cache", "--out", mine / "results")
    shown = cli("tokencut", "--ckpt", weights_file, *ARGUMENTS, *places)
    assert shown.exit_code == 0, shown.stderr
    record, arrays = only(mine / "results")
    assert stable(record, arrays) == stable(*only(folder / "undisturbed" / "results"))
    assert sum(count for count, _ in seen) == left
    if 0 < left < 12:
        assert record.timing["images_computed"] == left
        assert f"{12 - left} of 12 images were done before" in shown.stderr
    whole = folder / "undisturbed" / "results" / record.id / "images.csv"
    assert (mine / "results" / record.id / "images.csv").read_bytes() == whole.read_bytes()
    assert not list((mine / "cache" / "tokencut").iterdir())  # what was kept is of no use now


def test_two_processes_at_once_are_both_right(ended):
    """One cache, one folder of results."""
    folder, _, codes = ended
    assert codes["together"] == [0, 0], (folder / "together" / "log.txt").read_text()
    mine, theirs = only(folder / "together" / "results"), only(folder / "undisturbed" / "results")
    assert stable(*mine) == stable(*theirs)
    assert "Traceback" not in (folder / "together" / "log.txt").read_text()


def test_another_process_that_ends_first_takes_the_kept_ones_away(run, small_shards, monkeypatch):
    """At the worst moment: as this one is about to keep some."""
    assert run("--out", "usual", "--cache", "other").exit_code == 0

    ended = []

    def write(path, content):
        if not ended:
            ended.append(shutil.rmtree(path.parent))
        write_whole(path, content)

    monkeypatch.setattr(_chunks, "write_whole", write)
    shown = run()
    assert shown.exit_code == 0 and ended, shown.stderr
    assert stable(*only()) == stable(*only("usual"))


def interrupt_after(monkeypatch, shards):
    """Ctrl-C as soon as so many shards are kept; returns how to let it run again."""
    save, count = _chunks.Chunks.save, 0

    def interrupted(self, shard, arrays):
        nonlocal count
        save(self, shard, arrays)
        count += 1
        if count == shards:
            raise KeyboardInterrupt

    monkeypatch.setattr(_chunks.Chunks, "save", interrupted)
    return lambda: monkeypatch.setattr(_chunks.Chunks, "save", save)


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
def test_a_damaged_shard_is_done_again(run, small_shards, monkeypatch, damage):
    assert run("--out", "usual", "--cache", "other").exit_code == 0
    again = interrupt_after(monkeypatch, 2)
    assert run().exit_code == 130 and not records()
    again()
    paths = sorted(Path("cache", "tokencut").glob("*/*.npz"))
    assert len(paths) == 2
    paths[0].write_bytes(damage(paths[0].read_bytes()))
    shown = run()
    assert shown.exit_code == 0, shown.stderr
    assert "done again" in shown.stderr and "warning" in shown.stderr
    assert stable(*only()) == stable(*only("usual"))
    assert only()[0].timing["images_computed"] == 8


def test_without_a_cache_nothing_is_kept(run, small_shards, monkeypatch):
    again = interrupt_after(monkeypatch, 2)
    assert run("--no-cache").exit_code == 130
    again()
    assert not Path("cache").exists()
    assert run("--no-cache").exit_code == 0
    assert only()[0].timing["images_computed"] == 12 and not Path("cache").exists()
    assert run("--out", "kept").exit_code == 0
    assert stable(*only()) == stable(*only("kept"))


def test_what_was_kept_by_other_settings_is_not_used(run, small_shards, monkeypatch):
    again = interrupt_after(monkeypatch, 1)
    assert run().exit_code == 130
    again()
    assert run("--tau", "0.4").exit_code == 0
    assert only()[0].timing["images_computed"] == 12


def test_forced_it_uses_nothing_that_was_kept(run, small_shards, monkeypatch):
    again = interrupt_after(monkeypatch, 2)
    assert run().exit_code == 130
    again()
    assert run("--force").exit_code == 0
    assert only()[0].timing["images_computed"] == 12
    assert not list(Path("cache", "tokencut").iterdir())


def test_a_bad_image_at_the_end_does_not_cost_what_was_done(run, monkeypatch):
    monkeypatch.setattr("skipbench.features.plan.SHARD_IMAGES", 2)
    boxed_folder()
    path = Path("mine", "images", "p3.png")
    whole = path.read_bytes()
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 16
    path.write_bytes(broken)
    shown = run(dataset="folder:mine", quick=("--size", "40x56"))
    assert shown.exit_code == 4 and "p3.png" in shown.stderr
    path.write_bytes(whole)
    assert run(dataset="folder:mine", quick=("--size", "40x56")).exit_code == 0
    assert only()[0].timing["images_computed"] == 2


def test_an_overflow_is_not_forgotten_by_an_interruption(run, small_shards, monkeypatch):
    """The rest is computed in the precision that an undisturbed run would have gone on in."""
    again = interrupt_after(monkeypatch, 1)
    looked = Extractor.forward

    def overflows(self, *given):
        self.backbone.precision = "bf16" if self.backbone.precision == "fp16" else "fp32"
        return looked(self, *given)

    monkeypatch.setattr(Extractor, "forward", overflows)
    assert run("--precision", "bf16").exit_code == 130
    again()
    monkeypatch.setattr(Extractor, "forward", looked)
    assert run("--precision", "bf16").exit_code == 0
    assert only()[0].features["precision"] == "fp32"


def test_the_figure_so_far_counts_what_was_done_before(run, small_shards, monkeypatch):
    again = interrupt_after(monkeypatch, 2)
    assert run().exit_code == 130
    again()
    shown = run()
    corloc = re.escape(f"{only()[0].metrics['corloc']:.1f}")
    assert re.search(rf"12 of 12 images, .*CorLoc {corloc}$", shown.stderr, re.MULTILINE)


@pytest.mark.parametrize("error", [RuntimeError(SHORT), MemoryError("Unable to allocate 8 GiB")])
def test_out_of_memory_once_it_goes_on_one_by_one(run, monkeypatch, error):
    from skipbench.evaluations.tokencut import run as module

    assert run("--out", "usual", "--layers", "all").exit_code == 0
    cut, calls = module.tokencut, []

    def short(tokens, *arguments):
        calls.append(len(tokens))
        if len(tokens) > 1:
            raise error
        return cut(tokens, *arguments)

    monkeypatch.setattr(module, "tokencut", short)
    shown = run("--layers", "all")
    assert shown.exit_code == 0, shown.stderr
    assert max(calls) > 1 and calls.count(1) == 36
    assert stable(*only()) == stable(*only("usual"))


@pytest.mark.parametrize("method", ["tokencut", "lost"])
def test_out_of_memory_always(run, monkeypatch, small_shards, method):
    from skipbench.evaluations.tokencut import run as module

    find, done = getattr(module, method), 0

    def short(tokens, *arguments):
        nonlocal done
        done += len(tokens)
        if done > 4:
            raise RuntimeError(SHORT)
        return find(tokens, *arguments)

    monkeypatch.setattr(module, method, short)
    shown = run("--method", method)
    assert shown.exit_code == 7 and "out of memory" in shown.stderr and "--size" in shown.stderr
    assert "Traceback" not in shown.stderr and "bug" not in shown.stderr and not records()
    monkeypatch.setattr(module, method, find)
    assert run("--method", method).exit_code == 0  # what was done is kept
    assert only()[0].timing["images_computed"] == 8


def test_out_of_memory_in_pictures_alone(run, monkeypatch):
    def short(*arguments):
        raise MemoryError

    monkeypatch.setattr("skipbench.evaluations.tokencut.run.tokencut", short)
    put(Path("photos", "a.png"), scene((24, 40), (0, 0, 9, 9)))
    shown = run("--images", "photos", "--out", "out", dataset=None, quick=())
    assert shown.exit_code == 7 and "out of memory" in shown.stderr


def test_out_of_memory_in_the_model(run, monkeypatch):
    """Fault 36: the batch is halved."""
    assert run("--out", "usual").exit_code == 0
    forward = Extractor.forward

    def short(self, batch, sizes_hw):
        if len(batch) > 3:
            raise RuntimeError(SHORT)
        return forward(self, batch, sizes_hw)

    monkeypatch.setattr(Extractor, "forward", short)
    shown = run()
    assert shown.exit_code == 0 and "going on with" in shown.stderr
    assert np.array_equal(only()[1]["boxes"], only("usual")[1]["boxes"])


def test_another_error_is_not_taken_for_a_lack_of_memory(run, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr("skipbench.evaluations.tokencut.run.tokencut", broken)
    shown = run()
    assert shown.exit_code == 1 and "shapes cannot be multiplied" in shown.stderr
