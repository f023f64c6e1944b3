"""What people type for a record or a checkpoint: paths, names, ids, copies."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from made import counts_of, with_counts

from skipbench.results.compare import compare
from skipbench.results.pick import pick
from skipbench.results.read import read_results

pytestmark = pytest.mark.usefixtures("nowhere_else")


def put(path, quality, **more):
    """A weights file, and a record of it that tells its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(str(path).encode())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    counts = counts_of(np.random.default_rng(0), quality=quality)
    call = {"ckpt": str(path.resolve())}
    return with_counts(
        Path("results"), counts, name=path.name, sha256=digest, call=call, **more
    )  # fmt: skip


@pytest.fixture
def two():
    """Two checkpoints of one file name."""
    return [
        put(Path("runA/checkpoint0300.pth"), 0.6), put(Path("runB/checkpoint0300.pth"), 0.8)
    ]  # fmt: skip


def test_paths_tell_checkpoints_of_one_name_apart(two, cli):
    done = cli("compare", "runA/checkpoint0300.pth", "runB/checkpoint0300.pth")
    assert done.exit_code == 0, done.stderr
    assert "runA/checkpoint0300.pth" in done.stdout and "runB/checkpoint0300.pth" in done.stdout
    (pair,) = compare("runA/checkpoint0300.pth", Path("runB/checkpoint0300.pth"))
    assert (pair.a[0].result.id, pair.b[0].result.id) == (two[0].id, two[1].id)


def test_a_name_of_several_lists_them(two, cli):
    done = cli("compare", "checkpoint0300.pth", two[1].id)
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert "checkpoint0300.pth matches 2 checkpoints" in lines[0]
    assert [one.id in line for one, line in zip(two, lines[1:], strict=True)] == [True, True]
    assert "runA" in lines[1] and "runB" in lines[2]


def test_paths_of_another_machine(two):
    """The weights are not here any more: the end of the path is enough."""
    shutil.rmtree("runA")
    (found,) = pick(read_results("results"), "runA/checkpoint0300.pth")
    assert found.result.id == two[0].id


def test_a_copy_is_found_by_its_hash_and_keeps_the_name_given(two, cli):
    shutil.copy("runB/checkpoint0300.pth", "best.pth")
    (found,) = pick(read_results("results"), "best.pth")
    assert found.result.id == two[1].id and found.result.checkpoint["name"] == "best.pth"
    done = cli("compare", "runA/checkpoint0300.pth", "best.pth")
    assert done.exit_code == 0 and "best.pth" in done.stdout


def test_two_models_of_one_file_are_told_apart(two, cli):
    digest = hashlib.sha256(Path("runA/checkpoint0300.pth").read_bytes()).hexdigest()
    student = {"weights": "student", "name": "checkpoint0300.pth (student)"}
    call = {"ckpt": str(Path("runA/checkpoint0300.pth").resolve())}
    counts = counts_of(np.random.default_rng(1), quality=0.3)
    with_counts(Path("results"), counts, sha256=digest, call=call, checkpoint=student)
    done = cli("compare", "runA/checkpoint0300.pth", "runB/checkpoint0300.pth")
    assert done.exit_code == 2 and "matches 2 checkpoints" in done.stderr
    done = cli("compare", "checkpoint0300.pth (student)", "runB/checkpoint0300.pth")
    assert done.exit_code == 0 and "checkpoint0300.pth (student)" in done.stdout


def test_what_is_not_here(two, cli):
    Path("new.pth").write_bytes(b"never evaluated")
    done = cli("compare", "new.pth", two[0].id)
    assert done.exit_code == 2 and "its weights were not evaluated" in done.stderr
    done = cli("compare", "runA/checkpoint0301.pth", two[0].id)
    assert done.exit_code == 2 and "Did you mean 'runA/checkpoint0300.pth'" in done.stderr


def test_labels_are_names_too(cli):
    one = put(Path("a.pth"), 0.6)
    other = with_counts(
        Path("results"), counts_of(np.random.default_rng(0)), name="SOAP, 300 epochs"
    )
    done = cli("compare", "SOAP, 300 epochs", "a.pth")
    assert done.exit_code == 0, done.stderr
    assert {one.id, other.id} == {stored.result.id for stored in read_results("results")}
