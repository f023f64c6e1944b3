"""The gate: met, better, worse or missing; exit 5; baselines that diff well."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from made import (
    counts_of,
    data_part,
    make_result,
    put_tokencut,
    scores_by_block,
    scores_with_best,
    tokencut_result,
    with_counts,
)

import skipbench as sb
from skipbench.errors import DataError, UsageError
from skipbench.record_store import write_result
from skipbench.results.baseline import read_baseline, write_baseline
from skipbench.results.check import annotations, check, junit
from skipbench.results.scores import FACTS


def put(folder, *records):
    for record in records:
        write_result(folder, record, {})
    return folder


@pytest.fixture
def gate(tmp_path, cli):
    """A baseline of 50.0, and a way to check another value against it."""
    base = put(tmp_path / "base", make_result(value=50.0))
    path = tmp_path / "baseline.json"
    assert cli("check", base, "--baseline", path, "--update").exit_code == 0

    made = []

    def run(value, *options, **facts):
        folder = put(tmp_path / f"now-{len(made)}", make_result(value=value, **facts))
        made.append(folder)
        return cli("check", folder, "--baseline", path, *options)

    run.path = path
    return run


def states(done):
    return [verdict["state"] for verdict in json.loads(done.stdout)]


@pytest.mark.parametrize(
    ("value", "options", "state", "code"),
    [
        (49.0, ["--tolerance", "0.5"], "worse", 5),  # fault 40
        (51.0, ["--tolerance", "0.5"], "better", 0),
        (49.5, ["--tolerance", "0.5"], "met", 0),
        (49.49, ["--tolerance", "0.5"], "worse", 5),
        (49.6, [], "met", 0),
        (49.4, [], "worse", 5),
        (50.0, ["--tolerance", "0"], "met", 0),
        (49.9, ["--tolerance", "0"], "worse", 5),
    ],
)
def test_verdicts_and_exit_codes(gate, value, options, state, code):
    done = gate(value, *options, "--json")
    assert states(done) == [state]
    assert done.exit_code == code
    table = gate(value, *options)
    assert table.exit_code == code
    assert state in table.stdout and f"{value:.2f} instead of 50.00" in table.stdout


def test_missing_fails_and_new_does_not(gate):
    done = gate(50.0, "--json", name="other.pth")
    assert done.exit_code == 5 and states(done) == ["missing", "new"]


def test_a_baseline_of_another_protocol_is_refused(gate):
    """Fault 41."""
    done = gate(50.0, protocol={"epochs": 10, "batch": 8})
    assert done.exit_code == 2
    assert "epochs: 30 in the baseline, 10 now" in done.stderr
    assert "batch: none in the baseline, 8 now" in done.stderr
    done = gate(50.0, data=data_part(fingerprint="e" * 64))
    assert done.exit_code == 2 and "images evaluated on" in done.stderr


def test_of_two_protocols_the_baselines_is_taken(tmp_path, gate):
    both = put(
        tmp_path / "both",
        make_result(value=10.0, protocol={"epochs": 10}),
        make_result(value=50.0),
    )
    assert [v.state for v in check(both, gate.path)] == ["met"]


def test_other_weights_are_said_not_refused(gate):
    done = gate(50.2, "--json", sha256="f" * 64)
    (verdict,) = json.loads(done.stdout)
    assert verdict["state"] == "met" and "other weights" in verdict["note"]


def test_two_weights_under_one_name_are_never_chosen_between(tmp_path, gate):
    for other in "0123":
        folder = put(
            tmp_path / other,
            make_result(value=50.0),
            make_result(value=30.0, sha256=other * 64),
        )
        with pytest.raises(UsageError, match="2 records are called") as caught:
            check(folder, gate.path)
        assert other * 12 in str(caught.value)


def test_where_chooses_among_the_expected_too(tmp_path, cli):
    folder = put(tmp_path / "r", make_result(), make_result(dataset="ade20k"))
    path = tmp_path / "b.json"
    cli("check", folder, "--baseline", path, "--update")
    assert [v.state for v in check(folder, path, where=["dataset=voc"])] == ["met"]
    only = put(tmp_path / "one", make_result())
    assert [v.state for v in check(only, path, where=["dataset=ade20k"])] == ["missing"]


def test_a_gate_that_looks_at_nothing_is_not_green(tmp_path, gate):
    folder = put(tmp_path / "r", make_result(value=10.0))
    with pytest.raises(UsageError, match="nothing to check"):
        check(folder, gate.path, where=["checkpoint=modle.pth"])
    assert [v.state for v in check(folder, gate.path, where=["seed=0"])] == ["worse"]


def test_a_cell_that_failed_is_missing_whatever_an_old_record_says(tmp_path, gate):
    folder = put(tmp_path / "r", make_result(), make_result(dataset="ade20k"))
    cell = {"checkpoint": "model.pth", "kind": "probe", "dataset": "voc", "message": "cut\noff"}
    (folder / "failures").mkdir()
    (folder / "failures" / "x.json").write_text(json.dumps(cell))
    missing, new = check(folder, gate.path)
    assert (missing.state, new.state) == ("missing", "new")
    assert missing.note == "its evaluation failed: cut off"


def test_other_weights_made_otherwise_are_not_passed_over(tmp_path, gate):
    other = make_result(value=5.0, sha256="f" * 64, protocol={"epochs": 4})
    with pytest.raises(UsageError, match="other weights and another protocol"):
        check(put(tmp_path / "r", make_result(), other), gate.path)


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), -1.0])
def test_limits_are_numbers(gate, tmp_path, limit):
    folder = put(tmp_path / "r", make_result(value=10.0))
    with pytest.raises(UsageError, match="must be 0 or more"):
        check(folder, gate.path, tolerance=limit)
    with pytest.raises(UsageError, match="must be 0 or more"):
        check(folder, gate.path, sigma=limit)


def test_another_precision_or_number_of_seeds_is_noted(tmp_path, gate):
    one, other = make_result(), make_result(seed=1)
    one.features["precision"] = other.features["precision"] = "bf16"
    (verdict,) = check(put(tmp_path / "r", one, other), gate.path)
    assert verdict.state == "met"
    assert verdict.note == (
        "seeds: 1 in the baseline, 2 now, computed in bf16, the baseline in fp32"
    )


# -- noise


def test_sigma_allows_for_the_noise(tmp_path, gate):
    done = gate(49.0, "--sigma", "2.8")
    assert done.exit_code == 2 and "calibrate" in done.stderr
    before = read_baseline(gate.path)
    lines = {name: replace(line, noise=0.4, noise_seeds=5) for name, line in before.figures.items()}
    write_baseline(gate.path, replace(before, figures=lines))
    assert states(gate(49.0, "--sigma", "2.8", "--json")) == ["met"]  # 1.12 is allowed
    assert states(gate(48.8, "--sigma", "2.8", "--json")) == ["worse"]
    four = [make_result(value=49.0, seed=seed) for seed in range(4)]
    (verdict,) = check(put(tmp_path / "four", *four), gate.path, sigma=2.8)
    assert verdict.allowed == pytest.approx(2.8 * 0.4 * ((1 + 1 / 4) / 2) ** 0.5)
    assert verdict.state == "worse"


def test_update_keeps_the_noise_of_what_is_made_as_before(tmp_path, gate, cli):
    before = read_baseline(gate.path)
    lines = {name: replace(line, noise=0.4, noise_seeds=5) for name, line in before.figures.items()}
    write_baseline(gate.path, replace(before, figures=lines))
    same = put(tmp_path / "same", make_result(value=51.0))
    cli("check", same, "--baseline", gate.path, "--update")
    (line,) = read_baseline(gate.path).figures.values()
    assert (line.value, line.noise, line.noise_seeds) == (51.0, 0.4, 5)
    other = put(tmp_path / "other", make_result(value=51.0, protocol={"epochs": 10}))
    cli("check", other, "--baseline", gate.path, "--update")
    (line,) = read_baseline(gate.path).figures.values()
    assert line.noise is None


# -- paired


def test_paired(tmp_path, cli):
    rng = np.random.default_rng(0)
    before = counts_of(rng, 60, quality=0.6)
    path = tmp_path / "b.json"
    with_counts(tmp_path / "base", before)
    assert cli("check", tmp_path / "base", "--baseline", path, "--update").exit_code == 0
    done = cli("check", tmp_path / "base", "--baseline", path, "--paired")
    assert done.exit_code == 2 and "--update --paired" in done.stderr
    cli("check", tmp_path / "base", "--baseline", path, "--update", "--paired")
    assert check(tmp_path / "base", path, paired=True)[0].state == "met"
    for name, change, state in (("worse", -20, "worse"), ("better", 20, "better")):
        counts = before.copy()
        room = np.minimum(abs(change), counts[:, 0] if change < 0 else before[:, 2] - before[:, 0])
        counts[:, 0] += np.sign(change) * room
        counts[:, 1] += np.sign(change) * room
        with_counts(tmp_path / name, counts)
        (verdict,) = check(tmp_path / name, path, paired=True)
        assert verdict.state == state
        assert verdict.interval[0] <= verdict.difference <= verdict.interval[1]


def test_update_never_leaves_old_counts_beside_new_figures(tmp_path, cli):
    rng = np.random.default_rng(0)
    path = tmp_path / "b.json"
    with_counts(tmp_path / "one", counts_of(rng, 20, quality=0.6))
    cli("check", tmp_path / "one", "--baseline", path, "--update", "--paired")
    with_counts(tmp_path / "two", counts_of(rng, 20, quality=0.9))
    cli("check", tmp_path / "two", "--baseline", path, "--update")
    (verdict,) = check(tmp_path / "two", path, paired=True)
    assert verdict.interval == (0.0, 0.0)


def test_counts_that_are_not_the_baselines_are_refused(tmp_path, cli):
    rng = np.random.default_rng(0)
    for name, quality in (("one", 0.9), ("two", 0.4)):
        with_counts(tmp_path / name, counts_of(rng, 20, quality=quality))
        path = tmp_path / f"{name}.json"
        cli("check", tmp_path / name, "--baseline", path, "--update", "--paired")
    (tmp_path / "two.npz").rename(tmp_path / "one.npz")
    with pytest.raises(DataError, match="do not belong together"):
        check(tmp_path / "two", tmp_path / "one.json", paired=True)


def test_one_image_or_no_counts_cannot_be_paired(tmp_path, cli):
    path = tmp_path / "b.json"
    with_counts(tmp_path / "one", counts_of(np.random.default_rng(0), 1))
    cli("check", tmp_path / "one", "--baseline", path, "--update", "--paired")
    with pytest.raises(UsageError, match="one image is too few"):
        check(tmp_path / "one", path, paired=True)
    bare = put(tmp_path / "bare", make_result(name="b"))
    done = cli("check", bare, "--baseline", path, "--update", "--paired")
    assert done.exit_code == 4 and "no counts by image" in done.stderr


@pytest.mark.parametrize("images", [5, 6])
def test_so_few_images_that_no_outcome_could_fail(tmp_path, cli, images):
    """Scores of images, all of them halved: p is 2 / 2^images."""
    path = tmp_path / "b.json"
    scores = np.linspace(0.5, 0.9, images)[:, None]
    for name, share in (("before", 1.0), ("now", 0.5)):
        result, arrays = tokencut_result(share * scores, blocks=[3], score="masks")
        write_result(tmp_path / name, result, arrays)
    cli("check", tmp_path / "before", "--baseline", path, "--update", "--paired")
    done = cli("check", tmp_path / "now", "--baseline", path, "--paired")
    if images == 5:
        assert done.exit_code == 2 and "5 images can show no difference" in done.stderr
    else:
        assert done.exit_code == 5 and "worse" in done.stdout


def test_only_one_rule(gate):
    done = gate(50.0, "--tolerance", "1", "--paired")
    assert done.exit_code == 2 and "only one of" in done.stderr


# -- TokenCut


@pytest.mark.parametrize("score", ["boxes", "masks"])
@pytest.mark.parametrize("select", ["val", "holdout"])
def test_gates_of_means_over_images(tmp_path, cli, score, select):
    rng = np.random.default_rng(0)
    before = scores_by_block(rng, 100) * (rng.random((100, 1)) if score == "masks" else 1)
    made = {"base": before, "worse": 0.5 * before, "better": np.sqrt((before + 0.2) / 1.2)}
    for name, scores in made.items():
        put_tokencut(tmp_path / name, scores, score=score, select=select)
    path = tmp_path / "b.json"
    done = cli("check", tmp_path / "base", "--baseline", path, "--update", "--paired")
    assert done.exit_code == 0, done.output
    for name, state in (("base", "met"), ("worse", "worse"), ("better", "better")):
        for rule in ({"paired": True}, {"tolerance": 1.0}):
            (verdict,) = check(tmp_path / name, path, **rule)
            assert (verdict.state, verdict.metric) == (
                state, {"boxes": "corloc", "masks": "iou"}[score]
            )  # fmt: skip
    assert check(tmp_path / "base", path, paired=True)[0].interval == (0.0, 0.0)


def test_every_way_of_tokencut_has_a_name_of_its_own(tmp_path, cli):
    scores, path = scores_with_best(50.0, images=40), tmp_path / "b.json"
    for facts in ({}, {"method": "lost"}, {"tensor": "tokens"}, {"score": "masks"}):
        put_tokencut(tmp_path / "r", scores, **facts)
    done = cli("check", tmp_path / "r", "--baseline", path, "--update")
    assert done.exit_code == 0, done.output
    usual = "model.pth, tokencut, voc trainval, all, paper"
    assert sorted(read_baseline(path).figures) == [
        usual, f"{usual}, lost", f"{usual}, masks", f"{usual}, tokens"
    ]  # fmt: skip
    assert [v.state for v in check(tmp_path / "r", path)] == ["met"] * 4
    assert [v.state for v in check(tmp_path / "r", path, where=["method=lost"])] == ["met"]


def test_other_settings_of_tokencut_are_refused(tmp_path, cli):
    scores, path = scores_with_best(50.0, images=40), tmp_path / "b.json"
    put_tokencut(tmp_path / "base", scores)
    cli("check", tmp_path / "base", "--baseline", path, "--update")
    for facts, words in (
        ({"protocol": {"tau": 0.3}}, "tau: 0.2 in the baseline, 0.3 now"),
        ({"select": "holdout"}, "chosen on: val in the baseline, holdout now"),
    ):
        other = put(tmp_path / words[:3], tokencut_result(scores, **facts)[0])
        with pytest.raises(UsageError, match=words):
            check(other, path)
    put_tokencut(tmp_path / "base", scores, protocol={"tau": 0.3})
    done = cli("check", tmp_path / "base", "--baseline", tmp_path / "c.json", "--update")
    assert done.exit_code == 2 and "differ in tau" in done.stderr


def test_a_baseline_that_is_older_than_the_method(gate, tmp_path):
    content = json.loads(gate.path.read_text())
    assert content["figures"][0]["figure"] == "model.pth, probe, voc val, single, paper"
    del content["figures"][0]["facts"]["method"]
    gate.path.write_text(json.dumps(content))
    folder = put(tmp_path / "r", make_result())
    assert [v.state for v in check(folder, gate.path)] == ["met"]
    with pytest.raises(UsageError, match="nothing to check"):
        check(folder, gate.path, where=["method=lost"])


# -- the file


def test_one_sorted_line_a_figure(tmp_path, cli):
    records = [
        make_result(name=name, layers=layers) for name in "ba" for layers in ("last", "ibot")
    ]
    folder, path = put(tmp_path / "r", *records), tmp_path / "b.json"
    cli("check", folder, "--baseline", path, "--update")
    lines = [line for line in path.read_text().splitlines() if line.startswith('{"figure"')]
    names = [json.loads(line.rstrip(","))["figure"] for line in lines]
    assert len(names) == 4 and names == sorted(names)
    content = json.loads(path.read_text())
    line = content["figures"][0]
    assert line["sha256"] == make_result(name="a").checkpoint["sha256"]
    assert content["protocols"][line["protocol"]]["epochs"] == 30
    first = path.read_text()
    cli("check", folder, "--baseline", path, "--update")
    assert path.read_text() == first  # nothing moves where nothing changed
    write_result(folder, make_result(name="a", value=60.0), {})
    cli("check", folder, "--baseline", path, "--update")
    moved = [x != y for x, y in zip(first.splitlines(), path.read_text().splitlines(), strict=True)]
    assert sum(moved) == 1


def test_update_keeps_figures_that_are_not_there_and_says_so(tmp_path, cli):
    path = tmp_path / "b.json"
    cli("check", put(tmp_path / "a", make_result(name="a")), "--baseline", path, "--update")
    one = put(tmp_path / "b", make_result(name="b"))
    done = cli("check", one, "--baseline", path, "--update")
    assert "kept" in done.stderr
    assert [line.partition(",")[0] for line in sorted(read_baseline(path).figures)] == ["a", "b"]


def test_two_figures_of_one_name_need_a_choice(tmp_path, cli):
    two = put(tmp_path / "r", make_result(), make_result(protocol={"epochs": 10}))
    done = cli("check", two, "--baseline", tmp_path / "b.json", "--update")
    assert done.exit_code == 2 and "differ in epochs" in done.stderr
    assert not (tmp_path / "b.json").exists()


def test_prune_drops_figures_that_are_not_there(tmp_path, cli):
    path = tmp_path / "b.json"
    cli("check", put(tmp_path / "a", make_result(name="a")), "--baseline", path, "--update")
    one = put(tmp_path / "b", make_result(name="b"))
    done = cli("check", one, "--baseline", path, "--update", "--prune", "--json")
    assert "dropped" in done.stderr
    assert [line["facts"]["checkpoint"] for line in json.loads(done.stdout)] == ["b"]
    both = put(tmp_path / "both", make_result(name="a"), make_result(name="b"))
    cli("check", both, "--baseline", path, "--update")
    where = ["--where", "checkpoint=a"]
    cli("check", one, "--baseline", path, "--update", "--prune", *where)
    assert len(read_baseline(path).figures) == 2  # no record fits: nothing is written
    cli("check", both, "--baseline", path, "--update", "--prune", *where)
    assert len(read_baseline(path).figures) == 2  # b was not looked at
    assert cli("check", both, "--baseline", path, "--prune").exit_code == 2


@pytest.mark.parametrize(
    "change",
    [
        {"value": None}, {"value": "x"}, {"value": float("nan")}, {"seeds": 0}, {"images": None},
        {"figure": None}, {"noise": "x"}, {"facts": {}}, {"protocol": "other"}, {"valeu": 3},
        {"value": True}, {"images": {"images evaluated on": [8]}},
        {"images": {"images evaluated on": [{}, "x"]}},
        {"facts": {fact: [] for fact in FACTS}},
    ],
)  # fmt: skip
def test_a_baseline_that_was_edited_badly(gate, tmp_path, change):
    content = json.loads(gate.path.read_text())
    content["figures"][0] |= change
    gate.path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"baseline\.json"):
        check(put(tmp_path / "r", make_result()), gate.path)


def test_a_setting_that_is_a_pair_of_words_is_shown(gate, tmp_path):
    content = json.loads(gate.path.read_text())
    (protocol,) = content["protocols"].values()
    protocol["views"] = ["a", "b"]
    gate.path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="views: a,b in the baseline"):
        check(put(tmp_path / "r", make_result()), gate.path)


def test_two_lines_for_one_figure_are_refused_and_none_are_warned_of(gate, tmp_path, caplog):
    folder = put(tmp_path / "r", make_result())
    content = json.loads(gate.path.read_text())
    gate.path.write_text(json.dumps(content | {"figures": content["figures"] * 2}))
    with pytest.raises(DataError, match="two lines for"):
        check(folder, gate.path)
    gate.path.write_text("\ufeff" + json.dumps(content | {"figures": []}))  # as some editors begin
    with caplog.at_level("WARNING", "skipbench"):
        assert [v.state for v in check(folder, gate.path)] == ["new"]
    assert "expects no scores" in caplog.text


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"schema": 1}', '{"schema": 1, "figures": [{}]}', "deep"]
)
def test_a_damaged_baseline(tmp_path, content):
    path = tmp_path / "b.json"
    path.write_text(content.replace("deep", "[" * 100_000))
    with pytest.raises(DataError, match=r"b\.json"):
        check(put(tmp_path / "r", make_result()), path)


def test_no_baseline_and_a_newer_one(tmp_path):
    folder = put(tmp_path / "r", make_result())
    with pytest.raises(UsageError, match="--update"):
        check(folder, tmp_path / "b.json")
    (tmp_path / "b.json").write_text('{"schema": 99, "figures": [], "protocols": {}}')
    with pytest.raises(DataError, match="newer"):
        check(folder, tmp_path / "b.json")


# -- for machines


def test_junit(tmp_path, gate):
    done = gate(49.0, "--junit", tmp_path / "deep" / "j.xml")
    assert done.exit_code == 5
    suite = ElementTree.parse(tmp_path / "deep" / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    (failure,) = suite.iter("failure")
    assert "49.00 instead of 50.00" in failure.get("message")


def test_junit_and_annotations_of_hostile_names(tmp_path, skipbench):
    name = "a]]>\x07\n<b>%25:,::error::x\udcff"
    folder = put(tmp_path / "r", make_result(name=name, value=50.0))
    done = skipbench("check", folder, "--baseline", "b.json", "--update")
    assert done.returncode == 0, done.stderr
    write_result(folder, make_result(name=name, value=40.0), {})
    verdicts = check(folder, tmp_path / "b.json")
    text = junit(verdicts)
    assert ElementTree.fromstring(text.encode()).get("failures") == "1"
    (line,) = annotations(verdicts)
    assert "\n" not in line and line.startswith("::error title=skipbench%3A worse::")
    done = skipbench("check", folder, "--baseline", "b.json", "--junit", "j.xml", "--github")
    assert done.returncode == 5, done.stderr


def test_github(tmp_path, gate, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    done = gate(49.0, "--github")
    assert "::error title=skipbench%3A worse::model.pth" in done.stdout
    assert "| **worse** |" in Path(tmp_path / "summary.md").read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))  # cannot be written
    done = gate(49.0, "--github", "--json")
    assert done.exit_code == 5 and "no step summary" in done.stderr
    assert json.loads(done.stdout)[0]["state"] == "worse"  # annotations are on stderr then


def test_python(tmp_path, gate):
    folder = put(tmp_path / "r", make_result(value=49.0))
    assert sb.check(folder, gate.path)[0].fails
