"""`skipbench run`: one pass for many evaluations, finished cells, failures, interruption."""

import hashlib
import json
import logging
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trees
from conftest import clean_environment, lasting, records
from processes import in_terminal

import skipbench
from skipbench import pipeline, suites
from skipbench.demo import make_weights, small_facts
from skipbench.evaluations.probe.run import ProbeRun
from skipbench.evaluations.resume import TrainingState
from skipbench.record_store import find_result

pytestmark = pytest.mark.usefixtures("nowhere_else")

HEAD = """\
[[checkpoint]]
path = "skip.pth"
residual = "skip"
"""
QUICK = 'datasets = ["shapes"]\nsize = "64x80"\nlimit = 6\nepochs = 2\nloss_pixels = 64\n'
PROBE = f'\n[[evaluation]]\nkind = "probe"\n{QUICK}'


@pytest.fixture(scope="session")
def weights():
    return make_weights("skip", small_facts(width=64, depth=3, patch=8, heads=1))


@pytest.fixture(autouse=True)
def ckpt(tmp_path, weights, nowhere_else):
    path = tmp_path / "skip.pth"
    said = {"num_heads": 1, "position_rule": "offset"}
    torch.save({"model": weights, "args": said}, path)
    return path


@pytest.fixture
def run(cli):
    """The command on a suite with this text, in this process."""

    def run(text, *more):
        Path("suite.toml").write_text(text)
        return cli("run", "suite.toml", *more)

    return run


@pytest.fixture(autouse=True)
def quiet_log():
    yield
    logging.getLogger("skipbench").handlers = []
    logging.getLogger("skipbench").propagate = True


def failures(folder="results"):
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("failures/*.json"))]


# -- options, several kinds


def test_an_output_folder_that_cannot_be(run):
    shown = run(HEAD + PROBE, "--out", "skip.pth")
    assert shown.exit_code == 7 and "cannot write" in shown.stderr


def test_options_of_the_command_that_cannot_be(run):
    wrong = run(HEAD + PROBE, "--device", "gpu")
    assert wrong.exit_code == 2 and "--device gpu: expected" in wrong.stderr
    wrong = run(HEAD + PROBE, "--only", "skp.pth")
    assert wrong.exit_code == 2 and "Did you mean 'skip.pth'" in wrong.stderr


def test_probe_and_tokencut_stand_in_one_suite(run):
    text = f'{HEAD}{PROBE}\n[[evaluation]]\nkind = "tokencut"\ndatasets = ["shapes"]\n'
    done = run(f'{text}limit = 3\nlayers = "all"\n', "--json")
    assert done.exit_code == 0, done.output
    cells = json.loads(done.stdout)
    by_kind = {cell["evaluation"]: cell for cell in cells}
    probe, cut = (r for r in sorted(records(), key=lambda r: r.evaluation))
    assert by_kind["probe"]["miou"] == [probe.metrics["miou"]]
    assert by_kind["tokencut"]["corloc"] == [cut.metrics["corloc"]]
    assert cut.features["blocks"] == [0, 1, 2]
    again = json.loads(run(f'{text}limit = 3\nlayers = "all"\n', "--json").stdout)
    assert {cell["state"] for cell in again} == {"done before"}
    plan = run(f'{text}limit = 4\nlayers = "all"\n', "--dry-run")
    assert plan.exit_code == 0 and "tokencut" in plan.output


PCA = '\n[[evaluation]]\nkind = "pca"\ndatasets = ["shapes"]\nsize = "64x80"\nlimit = 3\n'


def test_pictures_of_two_checkpoints_in_a_suite(run, seen):
    """Of each by itself; the features are those of a probe of the same images."""
    other = make_weights("skip", small_facts(width=64, depth=3, patch=8, heads=1), seed=1)
    torch.save(other, "other.pth")
    heads = HEAD + HEAD.replace("skip.pth", "other.pth")
    text = heads + PROBE.replace("limit = 6", "limit = 3") + PCA
    text += 'layers = "1,2"\nstore_dtype = "fp16"\n'
    done = run(text, "--json")
    assert done.exit_code == 0, done.output
    assert sum(images for images, _ in seen) == 2 * (3 + 3)  # train and val: none for pictures
    pictures = [record for record in records() if record.evaluation == "pca"]
    told = {cell["checkpoint"]: cell for cell in json.loads(done.stdout) if "coherence" in cell}
    assert {r.checkpoint["name"] for r in pictures} == set(told) == {"skip.pth", "other.pth"}
    for record in pictures:
        name, folder = record.checkpoint["name"], Path("results", record.id)
        assert told[name]["coherence"] == [record.metrics["coherence"]]
        assert record.metrics["headline"] == "coherence" and record.dataset["images"] == 3
        made = {p.relative_to(folder).as_posix() for p in folder.rglob("*.p*")}
        assert {"sheet.png", "sheet.pdf", "curves.png"} <= made
        drawn = {n for n in made if "_block" in n}
        assert {Path(n).name for n in drawn} == {
            f"val_{i:05d}_block{b}.png" for i in range(3) for b in (1, 2)
        }
    seen.clear()
    again = run(text, "--json")
    assert {cell["state"] for cell in json.loads(again.stdout)} == {"done before"} and not seen


def test_dry_run_of_pictures(run):
    plan = run(HEAD + PCA + 'layers = "all"\n', "--dry-run", "--json")
    assert plan.exit_code == 0, plan.output
    [cell] = json.loads(plan.stdout)
    assert cell["state"] == "to do" and cell["images"] == 3 and cell["seconds"] > 0
    assert cell["disk_bytes"] == 3 * 3 * 8 * 10 * 64 * 4  # images, blocks, tokens, channels, bytes
    assert not Path("results").exists() and not Path("cache").exists()
    shown = run(HEAD + PROBE + PCA, "--dry-run")
    assert shown.exit_code == 0 and "pca" in shown.stdout


# -- checkpoints


def test_epochs_of_a_pattern_come_from_the_file_or_its_name(run, weights):
    """The curve over epochs."""
    Path("run").mkdir()
    torch.save({"teacher": {f"backbone.{k}": v for k, v in weights.items()}, "epoch": 21},
               "run/checkpoint0020.pth")  # fmt: skip
    for epoch in (3, 100):
        changed = {k: v + 1e-3 * epoch * (k == "norm.bias") for k, v in weights.items()}
        torch.save(changed, f"run/checkpoint{epoch:04}.pth")
    head = HEAD.replace("skip.pth", "run/check*.pth") + 'name = "mine"\noptimizer = "SOAP"\n'
    shown = run(head + PROBE)
    assert shown.exit_code == 0, shown.stderr
    found = {r.checkpoint["name"]: r.checkpoint for r in records()}
    assert {name: facts["epoch"] for name, facts in found.items()} == {
        "mine-checkpoint0003": 3, "mine-checkpoint0020": 21, "mine-checkpoint0100": 100,
    }  # fmt: skip
    assert {facts["optimizer"] for facts in found.values()} == {"SOAP"}
    rows = [line for line in shown.stdout.splitlines() if line.startswith("mine")]
    assert [int(row.split()[3]) for row in rows] == [3, 21, 100]


def test_two_names_for_one_model_do_not_take_turns(run, ckpt):
    Path("copy.pth").write_bytes(ckpt.read_bytes())
    copy = HEAD.replace("skip.pth", "copy.pth")
    twice = f'{HEAD}name = "one"\n{copy}name = "two"\n{PROBE}'
    for _ in range(2):  # also where the first is known to be done
        shown = run(twice)
        assert shown.exit_code == 2 and "the same weights as one" in shown.stderr
        assert [r.checkpoint["name"] for r in records()] == ["one"]


def test_a_file_and_its_name_that_disagree_are_said(run, weights):
    Path("run").mkdir()
    state = {f"backbone.{k}": v for k, v in weights.items()}
    torch.save({"teacher": state, "epoch": 3}, "run/checkpoint0100.pth")
    shown = run(HEAD.replace("skip.pth", "run/check*.pth") + PROBE)
    assert "says epoch 3, its name 100" in shown.stderr
    assert [r.checkpoint["epoch"] for r in records()] == [3]


def test_names_with_markup_are_shown_as_they_are(run):
    shown = run(HEAD + 'name = "a[/b][red]"\n' + PROBE)
    assert shown.exit_code == 0, shown.output
    assert "a[/b][red]" in shown.stdout
    assert "a[/b][red]" in run(HEAD + 'name = "a[/b][red]"\n' + PROBE, "--dry-run").stdout


def test_what_the_suite_says_is_in_the_record(run):
    text = HEAD + 'name = "first"\nepochs = 300\noptimizer = "AdamW"\ndepth = 3\n' + PROBE
    assert run(text).exit_code == 0
    [record] = records()
    assert record.checkpoint["name"] == "first" and record.checkpoint["epoch"] == 300
    assert record.checkpoint["optimizer"] == "AdamW"
    assert record.checkpoint["residual_source"] == "--residual"
    assert record.environment["call"]["expected"] == {"depth": 3}
    # Said otherwise later, it is the same record, relabelled.
    again = run(text.replace("AdamW", "SOAP"))
    assert again.exit_code == 0 and "record exists" in again.stderr
    [changed] = records()
    assert changed.id == record.id and changed.checkpoint["optimizer"] == "SOAP"


def test_the_hash_is_compared_before_anything_runs(run, ckpt, weights):
    sha256 = hashlib.sha256(ckpt.read_bytes()).hexdigest()
    torch.save(weights, "second.pth")
    second = f'[[checkpoint]]\npath = "second.pth"\nsha256 = "{"0" * 8}"\n'
    wrong = run(HEAD + second + PROBE)
    assert wrong.exit_code == 3 and "suite.toml: checkpoint[2].sha256" in wrong.stderr
    assert "expected 00000000" in wrong.stderr and not records()
    for good in (sha256, sha256[:8].upper()):
        assert run(HEAD + f'sha256 = "{good}"\n' + PROBE).exit_code == 0


def test_only_some(run, weights):
    other = HEAD.replace("skip.pth", "other.pth")
    torch.save({k: v * 1.01 for k, v in weights.items()}, "other.pth")
    shown = run(HEAD + other + PROBE, "--only", "other*", "--json")
    assert [cell["checkpoint"] for cell in json.loads(shown.stdout)] == ["other.pth"]
    assert [r.checkpoint["name"] for r in records()] == ["other.pth"]
    assert len(json.loads(run(HEAD + other + PROBE, "--json").stdout)) == 2


def test_a_checkpoint_that_does_not_open_fails_once_for_all_its_cells(run, monkeypatch):
    Path("bad.pth").write_bytes(b"PK\3\4 no weights")
    opened = []
    inspect = pipeline.inspect
    monkeypatch.setattr(pipeline, "inspect", lambda p, **o: opened.append(p) or inspect(p, **o))
    shown = run('[[checkpoint]]\npath = "bad.pth"\n' + HEAD + PROBE + PROBE)
    assert shown.exit_code == 3 and shown.stderr.count("bad.pth failed: ") == 1
    assert [Path(path).name for path in opened] == ["bad.pth", "skip.pth"]
    assert len(records()) == 1 and len(failures()) == 2
    assert "bad.pth · probe · shapes and 1 more failed" in shown.stdout
    assert "2 of 4 cells done, 1 of them earlier, 2 failed" in shown.stdout


# -- one pass, finished cells


def test_one_pass_serves_all_evaluations(run, seen):
    text = HEAD + PROBE + 'layers = "0"\n' + PROBE + 'layers = ["last", "multiscale"]\n'
    shown = run(text + PROBE + "norm = false\n")
    assert shown.exit_code == 0, shown.stderr
    assert sum(count for count, _ in seen) == 12 and {blocks for _, blocks in seen} == {(0, 1, 2)}
    assert "features of train for 3 evaluations" in shown.stderr
    # Each is what it is alone.
    [alone] = skipbench.probe_all(
        "skip.pth", "shapes", layers=["0"], residual="skip", size="64x80", limit=6, epochs=2,
        loss_pixels=64, out="alone", cache="other",
    )  # fmt: skip
    assert lasting(alone) == lasting(find_result(Path("results"), alone.id))


def test_other_images_and_sizes_are_other_passes(run, seen):
    others = PROBE.replace("64x80", "48x64") + PROBE.replace("limit = 6", "limit = 5")
    shown = run(HEAD + PROBE + others + PROBE + 'in_memory = true\nlayers = "0"\n')
    assert shown.exit_code == 0, shown.stderr
    assert sum(count for count, _ in seen) == 12 + 12 + 10 + 12
    assert "evaluations" not in shown.stderr


def test_finished_cells_are_skipped_without_opening_the_checkpoint(run, monkeypatch):
    first = run(HEAD + PROBE + "seeds = [0, 1]\n")
    assert first.exit_code == 0 and len(records()) == 2 and "2 seeds" in first.stdout
    monkeypatch.setattr(pipeline, "inspect", None)
    again = run(HEAD + PROBE + "seeds = [0, 1]\n")
    assert again.exit_code == 0 and "1 of 1 cells: done before" in again.stderr
    assert again.stdout.splitlines()[:-1] == first.stdout.splitlines()[:-1]
    assert json.loads(run(HEAD + PROBE + "seeds = [0, 1]\n", "--json").stdout)[0]["state"] == (
        "done before"
    )
    forced = run(HEAD + PROBE + "seeds = [0, 1]\n", "--force")
    assert "failed" in forced.stdout  # it does want to open it


def test_what_is_done_is_known_by_all_that_matters(run, ckpt, weights):
    assert run(HEAD + PROBE).exit_code == 0
    assert run(HEAD + PROBE + "lr = 1e-3\n").exit_code == 0 and len(records()) == 2
    torch.save({k: v * 1.01 for k, v in weights.items()}, ckpt)  # another model in its place
    assert run(HEAD + PROBE).exit_code == 0 and len(records()) == 3
    for path in Path("results").glob("*.npz"):
        path.unlink()
    assert "1 of 1 cells done; " in run(HEAD + PROBE).stdout
    skipbench.probe_all("skip.pth", "shapes", residual="skip", size="64x80", limit=6, epochs=3,
              loss_pixels=64)  # fmt: skip
    # Done by `skipbench probe`, it is found too, though no suite has noted it.
    [cell] = json.loads(run(HEAD + PROBE.replace("epochs = 2", "epochs = 3"), "--json").stdout)
    assert cell["state"] == "done before"


# -- failures


def test_a_failed_cell_is_written_down_and_the_rest_goes_on(run, weights):
    bad = PROBE + 'name = "deep"\nlayers = "7"\n'
    shown = run(HEAD + bad + PROBE)
    assert shown.exit_code == 2 and "no block 7" in shown.stderr and "failed" in shown.stdout
    assert len(records()) == 1 and "Traceback" not in shown.stderr
    [failure] = failures()
    assert failure["checkpoint"] == "skip.pth" and failure["evaluation"] == "deep"
    assert failure["error"] == "UsageError" and failure["exit_code"] == 2
    assert "no block 7" in failure["message"] and "traceback" not in failure
    mended = run(HEAD + bad.replace('"7"', '"1"') + PROBE)
    assert mended.exit_code == 0 and not failures() and len(records()) == 2


def test_the_exit_code_is_that_of_the_first_failure(run):
    trees.photo(Path("mine/images/train/0.jpg"), (41, 57), 0)
    trees.photo(Path("mine/images/val/0.jpg"), (41, 57), 1)
    for split in ("train", "val"):
        trees.grey_png(Path(f"mine/masks/{split}/0.png"), trees.blocks((41, 57), [0, 9]))
    Path("mine/classes.txt").write_text("a\nb\n")
    strange = PROBE.replace("shapes", "folder:mine")
    shown = run(HEAD + strange + PROBE + 'layers = "7"\n')
    assert shown.exit_code == 4 and [f["exit_code"] for f in failures()] == [2, 4]
    assert "folder:mine" in shown.stdout


def test_a_shared_pass_that_fails_is_the_failure_of_all_that_need_it(run, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    shown = run(HEAD + PROBE + PROBE + 'layers = "0"\n' + PROBE + "in_memory = true\n")
    assert shown.exit_code == 7 and shown.stderr.count("0 B free") == 1
    assert len(failures()) == 2 and len(records()) == 1  # what needs no disk is done


def test_a_failure_that_cannot_be_written_down_stops_nothing(run):
    Path("results").mkdir()
    Path("results/failures").write_text("in the way")
    shown = run(HEAD + PROBE + 'layers = "7"\n' + PROBE)
    assert shown.exit_code == 2 and len(records()) == 1
    assert "cannot be recorded" in shown.stderr


def test_a_failed_cell_holds_no_memory(monkeypatch):
    """Not its model, not its features: the error that is kept has no frames."""
    Path("suite.toml").write_text(HEAD + PROBE)
    monkeypatch.setattr("skipbench.evaluations.probe.method.fit", None)
    [outcome] = suites.run("suite.toml")
    assert isinstance(outcome.error, TypeError) and outcome.error.__traceback__ is None


def test_a_bug_of_ours_is_a_failure_with_its_traceback(run, monkeypatch):
    def broken(*a, **k):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("skipbench.evaluations.probe.method.fit", broken)
    shown = run(HEAD + PROBE)
    assert shown.exit_code == 1 and "a bug: ZeroDivisionError: oh" in shown.stderr
    [failure] = failures()
    assert "in broken" in failure["traceback"] and failure["exit_code"] == 1
    assert "Traceback" not in shown.stderr
    assert "in broken" in run(HEAD + PROBE, "--verbose").stderr


# -- interruption


def test_interrupted_it_goes_on(run, monkeypatch):
    text = HEAD + PROBE + PROBE + 'layers = "0"\n'
    assert run(text, "--out", "undisturbed", "--cache", "a").exit_code == 0
    save, count = TrainingState.save, 0

    def interrupted(self, state):
        nonlocal count
        save(self, state)
        count += 1
        if count == 3:  # in the second cell
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingState, "save", interrupted)
    shown = run(text, "--cache", "b")
    assert shown.exit_code == 130 and len(records()) == 1 and not failures()
    monkeypatch.setattr(TrainingState, "save", save)
    shown = run(text, "--cache", "b")
    assert shown.exit_code == 0 and "1 of 2 epochs were done before" in shown.stderr
    assert "2 of 2 cells done, 1 of them earlier" in shown.stdout
    assert list(map(lasting, records())) == list(map(lasting, records("undisturbed")))


# -- the dry run


def test_dry_run_shows_the_matrix_and_writes_nothing(run, weights, monkeypatch):
    torch.save({k: v * 1.01 for k, v in weights.items()}, "other.pth")
    text = HEAD + HEAD.replace("skip.pth", "other.pth") + PROBE + PROBE + 'layers = "0"\n'
    trials = []
    estimate = ProbeRun.estimate

    def counting(run, cells):
        trials.append(run)
        return estimate(run, cells)

    monkeypatch.setattr(ProbeRun, "estimate", counting)
    shown = run(text, "--dry-run", "--json")
    assert shown.exit_code == 0, shown.stderr
    cells = json.loads(shown.stdout)
    assert [cell["state"] for cell in cells] == ["to do"] * 4
    assert [cell["images"] for cell in cells] == [12, 0, 12, 0]  # seen once for both evaluations
    tokens = 8 * 10 * 64 * 2  # × channels × bytes
    assert [cell["disk_bytes"] for cell in cells] == [12 * tokens * 2, 0] * 2
    assert all(cell["seconds"] > 0 and cell["missing"] == 1 for cell in cells)
    assert len(trials) == 2  # the second model has the shape of the first
    assert not Path("results").exists() and not Path("cache").exists()


def test_dry_run_knows_what_is_done(run):
    assert run(HEAD + PROBE).exit_code == 0
    shown = run(HEAD + PROBE + PROBE + 'layers = ["last", "0"]\n', "--dry-run")
    done, todo = (line.split() for line in shown.stdout.splitlines()[1:3])
    assert done[3:] == ["done", "1"] and todo[2:8] == ["probe-2", "to", "do", "1", "of", "2"]
    assert "1 of 2 cells to do: 1 records, 12 images" in shown.stdout


def test_dry_run_of_crops_and_of_what_fails(run):
    Path("bad.pth").write_bytes(b"PK\3\4 no weights")
    crops = PROBE.replace("64x80", "48") + 'protocol = "leopart"\n'
    shown = run(HEAD + '[[checkpoint]]\npath = "bad.pth"\n' + crops, "--dry-run", "--json")
    good, bad = json.loads(shown.stdout)
    assert shown.exit_code == 3 and bad["state"] == "failed" and bad["error"]["exit_code"] == 3
    assert good["images"] == 6 * 2 + 6 and good["disk_bytes"] > 0


# -- what is said


def test_json_has_every_cell(run):
    shown = run(HEAD + PROBE + "seeds = [0, 1]\n" + PROBE + 'layers = "9"\n', "--json", "--quiet")
    done, failed = json.loads(shown.stdout)
    assert done["state"] == "done" and len(done["records"]) == 2
    values = {r.id: r.metrics["miou"] for r in records()}
    assert dict(zip(done["records"], done["miou"], strict=True)) == values
    assert failed["records"] == [] and "no block 9" in failed["error"]["message"]
    assert failed["dataset"] == "shapes" and failed["evaluation"] == "probe-2"


def test_python_twin_and_paths_relative_to_the_suite(tmp_path, ckpt):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    ckpt.rename(folder / "skip.pth")
    (folder / "suite.toml").write_text('out = "mine"\n' + HEAD + PROBE)
    [outcome] = suites.run("elsewhere/suite.toml")
    assert outcome.state == "done" and outcome.cell.title == "skip.pth · probe · shapes"
    assert list(outcome.results) == records(folder / "mine")
    [again] = suites.run("elsewhere/suite.toml", out="here")
    assert again.state == "done" and [r.id for r in records("here")] == [again.results[0].id]


def test_each_cell_is_announced_in_a_log(run):
    shown = run(HEAD + PROBE + PROBE + 'layers = "0"\n')
    said = [line for line in shown.stderr.splitlines() if line.startswith("cell ")]
    assert said == [
        "cell 1 of 2: skip.pth · probe · shapes", "cell 2 of 2: skip.pth · probe-2 · shapes",
    ]  # fmt: skip
    assert run(HEAD + PROBE + 'layers = "1"\n', "--quiet").stderr == ""


SCRIPT = """
import logging, sys
from skipbench.console import set_up_log
from skipbench.engine.progress import overall, progress
set_up_log(False, False)
log = logging.getLogger("skipbench")
with overall(2, "cell") as begin:
    for number, name in enumerate(["first", "second"]):
        begin(number, name)
        with progress("training", 3, "epochs") as advance:
            advance(1)
            log.info("an info line")
            log.warning("a warning")
            advance(2)
"""


def test_log_lines_stand_above_the_bars(tmp_path):
    """Each on a line of its own, at its beginning: not behind a bar, where it would be lost."""
    environment = clean_environment(tmp_path) | {"TERM": "xterm-256color"}
    shown = in_terminal([sys.executable, "-c", SCRIPT], environment)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part) for part in re.split(r"[\r\n]+", shown)]
    assert lines.count("an info line") == 2 and lines.count("warning: a warning") == 2
    assert any("first" in line and "0/2" in line for line in lines)
    both = [a for a, b in pairwise(lines) if "cells" in a and "training" in b]
    assert both and any("2/2" in line for line in lines[-4:])
    plain = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert "cell 2 of 2: second" in plain.stderr and "\x1b" not in plain.stderr
