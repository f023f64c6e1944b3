"""What every evaluation keeps, and none is named here: found in its folder, run as its declaration
says, on a few tiny images that are not square."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from statistics import fmean
from types import SimpleNamespace

import pytest
from conftest import lasting, records
from declared import arguments, others, small, wrong_text
from doors import toml
from processes import Forked
from typer.testing import CliRunner

import skipbench
from skipbench import pipeline
from skipbench.checkpoints import save_checkpoint
from skipbench.cli import app
from skipbench.demo import make_weights, small_facts
from skipbench.errors import SkipbenchError, UsageError
from skipbench.evaluations import evaluations
from skipbench.evaluations.estimate import Estimate
from skipbench.record_store import find_result, read_arrays
from skipbench.records import RESULT_SCHEMA
from skipbench.settings import flag_of, plain, shown
from skipbench.suites.plan import Cell, Places, settings_of
from skipbench.suites.read import read_suite, settings_keys

NAMES = ("skip.safetensors", "skipless.safetensors")


@pytest.fixture(scope="session", params=list(evaluations()))
def evaluation(request):
    return evaluations()[request.param]


def invoke(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "100"})
    assert done.exit_code == code, (words, done.output)
    return done


@pytest.fixture(scope="session")
def ckpts(tmp_path_factory):
    """A skip and a skipless model that say so."""
    folder = tmp_path_factory.mktemp("weights")
    facts = small_facts(width=64, depth=4, patch=8, heads=1)
    told = {"layout": "dino", "heads": 1, "epoch": 0}
    return [
        save_checkpoint(
            folder / name, make_weights(residual, facts), {**told, "residual": residual}
        )
        for name, residual in zip(NAMES, ("skip", "skipless"), strict=True)
    ]  # fmt: skip


@pytest.fixture(scope="session")
def done(evaluation, ckpts, tmp_path_factory):
    """Both models evaluated by the command, and what it printed."""
    folder = tmp_path_factory.mktemp(evaluation.name)
    printed = [
        json.loads(command(evaluation, ckpt, folder, "--json").stdout) for ckpt in ckpts
    ]  # fmt: skip
    return SimpleNamespace(folder=folder, results=folder / "results", printed=printed)


def asked(evaluation, ckpt, folder, **more):
    """Settings of a small run that stays in this folder."""
    return {
        **evaluation.target([str(ckpt)], "shapes"), **small(evaluation),
        "out": str(folder / "results"), "cache": str(folder / "cache"), **more,
    }  # fmt: skip


def command(evaluation, ckpt, folder, *more, code=0):
    given = asked(evaluation, ckpt, folder)
    return invoke(evaluation.name, *arguments(evaluation, given), *more, code=code)


def twin(evaluation):
    """Its Python function: the one that returns a list."""
    return getattr(skipbench, f"{evaluation.name}{'_all' * evaluation.returns_one}")


def listed(found):
    return found if isinstance(found, list) else [found]


def ids(results):
    return sorted(result.id for result in results)


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def suite(folder, evaluation, ckpt, settings):
    """A file with one cell. settings: of its [[evaluation]]."""
    path = folder / "suite.toml"
    lines = "".join(f"{name} = {toml(value)}\n" for name, value in settings.items())
    path.write_text(
        f'out = "results"\ncache = "cache"\ndevice = "cpu"\n[[checkpoint]]\npath = "{ckpt}"\n'
        f'[[evaluation]]\nkind = "{evaluation.name}"\ndatasets = ["shapes"]\n{lines}'
    )
    return path


def suite_settings(evaluation):
    """The small run, as far as a suite sets it for one evaluation."""
    return {k: v for k, v in small(evaluation).items() if k in settings_keys(evaluation)}


# -- the doors


def test_json_prints_the_records(evaluation, done):
    assert evaluation.writes_one == isinstance(done.printed[0], dict)
    printed = [record for found in done.printed for record in listed(found)]
    written = [record.to_json() for record in records(done.results)]
    assert sorted(printed, key=str) == sorted(written, key=str) and len(written) >= 2


def test_an_existing_record_is_found(evaluation, ckpts, done, seen):
    before = {path: path.read_bytes() for path in done.results.glob("*.json")}
    again = command(evaluation, ckpts[0], done.folder)
    assert not seen and again.stdout.strip()
    names = evaluation.metrics.values()
    assert any(name in again.stdout for name in names), again.stdout
    if not evaluation.takes_several_checkpoints:  # else its pictures are drawn again
        assert {path: path.read_bytes() for path in done.results.glob("*.json")} == before


def test_dry_run_writes_nothing(evaluation, ckpts, tmp_path):
    shown = command(evaluation, ckpts[0], tmp_path, "--dry-run", "--json")
    estimate = json.loads(shown.stdout)
    assert estimate["seconds"] > 0 and estimate["images"] > 0
    assert estimate["disk_bytes"] >= 0 and estimate["memory_bytes"] > 0
    del estimate["seconds"]  # follows from the others
    text = "\n".join(Estimate(**estimate).lines())
    assert re.search(r"about .*, .* of disk, .* of memory", text), text
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_python_gives_the_same_record(evaluation, ckpts, done, tmp_path):
    found = listed(twin(evaluation)(**asked(evaluation, ckpts[0], tmp_path)))
    assert ids(found) == sorted(record["id"] for record in listed(done.printed[0]))
    for result in found:
        assert same(result, find_result(done.results, result.id))


def same(a, b):
    """But for time, machine and where it was asked from."""
    return lasting(a) == lasting(b)


def test_a_suite_gives_the_same_record(evaluation, ckpts, done, tmp_path):
    path = suite(tmp_path, evaluation, ckpts[0], suite_settings(evaluation))
    (cell,) = json.loads(invoke("run", path, "--json").stdout)
    assert cell["state"] == "done"
    assert sorted(cell["records"]) == sorted(record["id"] for record in listed(done.printed[0]))


def test_every_setting_is_a_key_of_a_suite(evaluation, ckpts, tmp_path):
    keys, defaults = settings_keys(evaluation), evaluation.settings.defaults()
    known = set(evaluation.settings.options())
    aimed = set(evaluation.target(["x"], "x")) | set(evaluation.fixed_in_suites)
    assert set(keys) <= known - aimed
    usual = planned(suite(tmp_path, evaluation, ckpts[0], {}))
    for name in keys:
        value = plain(defaults.get(name))
        if value is not None:
            assert planned(suite(tmp_path, evaluation, ckpts[0], {name: value})) == usual, name


def planned(path):
    """The settings of its one cell."""
    found = read_suite(path)
    cell = Cell(found.checkpoints[0], found.evaluations[0], "shapes")
    return settings_of(Places(path.parent), cell)


def test_settings_without_a_default_are_keys_too(evaluation, ckpts, tmp_path):
    """Some go only with other settings, and are refused for that alone."""
    defaults, options = evaluation.settings.defaults(), evaluation.settings.options()
    for name in [name for name in settings_keys(evaluation) if defaults.get(name) is None]:
        value, words = others(options[name], None)[0], ""
        try:
            made = planned(suite(tmp_path, evaluation, ckpts[0], {name: value}))
            assert getattr(made, name) == options[name].parse(value)
        except SkipbenchError as error:
            words = str(error)
        assert "no such key" not in words and "expected" not in words, name


def test_an_unknown_key_is_named(evaluation, ckpts, tmp_path):
    for name in settings_keys(evaluation):
        wrong = f"{name}s"
        with pytest.raises(UsageError) as caught:
            read_suite(suite(tmp_path, evaluation, ckpts[0], {wrong: 1}))
        words = f"evaluation[1].{wrong}: no such key. Did you mean {name!r}?"
        assert words in str(caught.value)


def test_a_wrong_value_gets_the_same_message_everywhere(evaluation, ckpts, tmp_path):
    keys, tried = settings_keys(evaluation), 0
    for name, option in evaluation.settings.options().items():
        wrong = None if option.hidden else wrong_text(option)
        if wrong is None:
            continue
        text, words = wrong
        told = f"{shown(text)}: {words}"
        given = {**evaluation.target([str(ckpts[0])], "shapes"), name: text}
        typed = CliRunner().invoke(app, [evaluation.name, *arguments(evaluation, given)])
        message = f"{flag_of(name, option)} {told}"
        assert (typed.exit_code, typed.stderr) == (2, f"skipbench: {message}\n")
        with pytest.raises(UsageError) as caught:
            twin(evaluation)(**given)
        assert str(caught.value) == message
        if name in keys:
            path = suite(tmp_path, evaluation, ckpts[0], {name: text})
            with pytest.raises(UsageError) as caught:
                read_suite(path)
            assert str(caught.value) == f"{path}: evaluation[1].{name}: {told}"
        tried += 1
    assert tried > 10


def test_an_unknown_setting_is_named(evaluation, ckpts, tmp_path):
    given = asked(evaluation, ckpts[0], tmp_path)
    assert "No such option" in command(evaluation, ckpts[0], tmp_path, "--outt", code=2).stderr
    with pytest.raises(TypeError, match="outt"):
        twin(evaluation)(**given, outt="x")


# -- interruption


@pytest.fixture(scope="session")
def undisturbed(evaluation, ckpts, tmp_path_factory):
    """In a process of its own; it counts the files that were renamed into place."""
    folder = tmp_path_factory.mktemp(f"{evaluation.name}-alone")
    forked = Forked(typed(evaluation, ckpts[0], folder), folder)
    assert forked.wait() == 0, forked.output
    return SimpleNamespace(renamed=forked.renamed, results=records(folder / "results"))


def typed(evaluation, ckpt, folder):
    return [evaluation.name, *arguments(evaluation, asked(evaluation, ckpt, folder))]


def test_killed_it_resumes(evaluation, ckpts, undisturbed, tmp_path):
    """kill -9 in the middle, then the same command."""
    middle = max(round(0.6 * undisturbed.renamed), 1)
    killed = Forked(typed(evaluation, ckpts[0], tmp_path), tmp_path, killed_at=middle)
    assert killed.wait() == -9, killed.output
    assert len(records(tmp_path / "results")) < len(undisturbed.results)
    command(evaluation, ckpts[0], tmp_path)
    assert_as(undisturbed, tmp_path)


def test_two_processes_at_once(evaluation, ckpts, undisturbed, tmp_path):
    both = [Forked(typed(evaluation, ckpts[0], tmp_path), tmp_path / name) for name in "ab"]
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(Forked.wait, both)) == [0, 0], [one.output for one in both]
    assert_as(undisturbed, tmp_path)
    assert not list(tmp_path.rglob("*.partial"))


def assert_as(undisturbed, folder):
    found = records(folder / "results")
    assert list(map(lasting, found)) == list(map(lasting, undisturbed.results))
    assert all(find_result(folder / "results", result.id) for result in found)


# -- the record


def test_what_a_record_says(evaluation, ckpts, done):
    for result in records(done.results):
        assert result.schema == RESULT_SCHEMA and result.evaluation == evaluation.name
        assert re.fullmatch(rf"{evaluation.name}-[\w.-]+-[0-9a-f]{{12}}", result.id)
        assert result.metrics["headline"] in evaluation.metrics
        assert result.checkpoint["name"] in NAMES and len(result.checkpoint["sha256"]) == 64
        assert result.dataset["partial"] and result.dataset["images"] == 4
        assert result.features["size"] == "64x80" and result.protocol["changes"]["size"]
        assert result.timing["finished"] and result.timing["peak_memory_bytes"] > 0
        assert result.environment["skipbench"] == skipbench.__version__
        assert len(read_arrays(done.results / f"{result.id}.npz")["counts"]) == 4


def test_the_call_in_a_record_makes_it_again(evaluation, ckpts, done):
    for result in records(done.results):
        call = dict(result.environment["call"])
        if "seed" in call:
            call["seeds"] = [call.pop("seed")]
        ckpt = call.pop("ckpt")
        aim = {**evaluation.target([ckpt], "shapes"), **call, "device": "cpu"}
        run = pipeline.open_run(evaluation, evaluation.settings.make(aim))
        assert result.id in [cell.id for cell in run.cells]


def test_the_id_follows_the_version_and_no_setting_of_where_and_how(
    evaluation, ckpts, done, tmp_path, monkeypatch
):
    made = evaluation.settings.make(asked(evaluation, ckpts[0], tmp_path))
    data, inspections = evaluation.open_data(made), [
        pipeline.inspect(path, **reading) for path, reading in made.checkpoints()
    ]  # fmt: skip

    def cells(**more):
        settings = evaluation.settings.make(asked(evaluation, ckpts[0], tmp_path, **more))
        return {
            cell.id for cell in pipeline.open_run(evaluation, settings, data, inspections).cells
        }

    usual, options = cells(), evaluation.settings.options()
    for name in [name for name, option in options.items() if not option.moves]:
        for value in others(options[name], evaluation.settings.defaults()[name])[:1]:
            assert cells(**{name: value}) == usual, name
    monkeypatch.setattr(type(evaluation), "version", 99)
    assert not cells() & usual


# -- what reads records


def test_table_says_what_was_changed(evaluation, done):
    text = invoke("table", done.results, "--format", "md").stdout
    assert f"evaluation {evaluation.name}" in text
    found = sorted(records(done.results), key=line_of)
    for _, seeds in groupby(found, line_of):
        mean = fmean(result.metrics[result.metrics["headline"]] for result in seeds)
        assert f"{mean:.1f}" in text
    result = found[0]
    name, changes = result.protocol["name"], result.protocol["changes"]
    assert f"protocol {name} with " in text and "size 64x80 instead of " in text
    assert all(f"{key} " in text for key in changes)


def line_of(result):
    """What tells it from others but for the seed."""
    return result.checkpoint["name"], result.features["blocks"]


def test_compare_skip_and_skipless(evaluation, done):
    pairs = json.loads(invoke("compare", done.results, *NAMES, "--json").stdout)
    assert pairs and all(pair["a"] and pair["b"] for pair in pairs)
    assert "B − A" in invoke("compare", done.results, *NAMES).stdout


def test_check_passes_until_a_score_falls(evaluation, done, tmp_path):
    baseline = tmp_path / "baseline.json"
    invoke("check", done.results, "--baseline", baseline, "--update")
    assert "met" in invoke("check", done.results, "--baseline", baseline).stdout
    text = baseline.read_text()
    baseline.write_text(
        re.sub(r'"value": ([\d.]+)', lambda found: f'"value": {float(found[1]) + 9}', text)
    )
    assert "worse" in invoke("check", done.results, "--baseline", baseline, code=5).stdout


def test_calibrate_where_there_is_a_seed(evaluation, done, tmp_path):
    """Noise of two seeds is there already; another is computed on the features that are stored."""
    baseline = tmp_path / "baseline.json"
    invoke("check", done.results, "--baseline", baseline, "--update")
    places = ("--device", "cpu", "--cache", done.folder / "cache")
    only = ("--where", f"checkpoint={NAMES[0]}", "--baseline", baseline, "--seeds", "2")
    code = 0 if evaluation.has_seed else 2
    said = invoke("calibrate", done.results, *only, *places, code=code)
    lines = json.loads(baseline.read_text())["figures"]
    assert any(line.get("noise_seeds") for line in lines) == evaluation.has_seed, lines
    assert evaluation.has_seed or "no seed" in said.stderr


def test_report_names_it(evaluation, done, tmp_path):
    invoke("report", done.results, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    titles = [evaluation.title, *evaluation.methods.values()]
    assert any(title in page for title in titles) and all(name in page for name in NAMES)


# -- help


def test_help_mentions_every_option(evaluation):
    text = invoke(evaluation.name, "--help").stdout
    assert max(map(len, text.splitlines())) <= 100
    for name, option in evaluation.settings.options().items():
        flag = flag_of(name, option)
        usual = evaluation.settings.defaults().get(name)
        changes = f"--no-{flag[2:]}" if option.switch and usual is True else flag
        told = option.metavar if option.argument else changes
        assert (re.search(rf"{told}\b", text) is None) == option.hidden, name
