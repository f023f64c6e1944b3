"""The store of records: written whole, read back equal, damaged ones named and left out."""

import json
import os
import string
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import (
    make_result,
    of_schema_1,
    paper_records,
    put_tokencut,
    scores_with_best,
    tokencut_result,
)

from skipbench.errors import DataError, UsageError
from skipbench.record_store import (
    find_result,
    plain_result,
    read_arrays,
    read_result,
    result_id,
    write_result,
)
from skipbench.records import RESULT_SCHEMA, Result
from skipbench.results.pick import pick
from skipbench.results.read import read_results, selected_on

# Anything that JSON can say, lone surrogates of strange file names among it.
bytes_as_text = st.binary(max_size=8).map(lambda b: b.decode("utf-8", "surrogateescape"))
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=12) | bytes_as_text,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
parts = st.dictionaries(st.text(max_size=8), plain, max_size=4)
text = st.text(max_size=8) | bytes_as_text
data = st.builds(
    lambda more, facts: {**more, **facts},
    parts,
    st.fixed_dictionaries(
        {
            "name": text,
            "split": text,
            "images": st.integers(0, 10**6),
            "official_images": st.none() | st.integers(0, 10**6),
            "partial": st.booleans(),
            "classes": st.integers(1, 200),
            "fingerprint": text,
            "names": st.lists(text, max_size=4),
        }
    ),
)
checkpoints = st.builds(
    lambda more, facts: {**more, **facts},
    parts,
    st.fixed_dictionaries(
        {"name": text, "sha256": text, "residual": st.none() | text},
        optional={"epoch": st.none() | st.integers(0, 999), "optimizer": st.none() | text},
    ),
)
metrics = st.builds(
    lambda more, value, ends: {**more, "headline": "miou", "miou": value, "interval": ends},
    parts,
    numbers,
    st.none() | st.tuples(numbers, numbers),
)
records = st.builds(
    lambda **parts: plain_result(
        id=result_id(parts["evaluation"], parts["dataset"]["name"], parts["determines"]), **parts
    ),
    evaluation=st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=20),
    determines=parts,
    metrics=metrics,
    checkpoint=checkpoints,
    features=parts,
    protocol=parts,
    dataset=data,
    training=st.none() | data,
    timing=parts,
    environment=parts,
)


@given(record=records)
@settings(max_examples=150, deadline=None)
def test_any_record_written_is_read_back_equal(tmp_path_factory, record):
    folder = tmp_path_factory.mktemp("r", numbered=True)
    path = write_result(folder, record, {"counts": np.arange(3)})
    assert read_result(path) == record
    assert find_result(folder, record.id) == record
    assert read_arrays(folder / f"{record.id}.npz")["counts"].tolist() == [0, 1, 2]
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [f"{record.id}.json", f"{record.id}.npz"]
    )


def test_nan_is_never_written():
    with pytest.raises(ValueError, match="JSON compliant"):
        make_result(value=float("nan"))


def damage(folder):
    """A damaged record, a newer one, one that lacks a part, and something else."""
    good = make_result()
    write_result(folder, good, {})
    newer = json.loads((folder / f"{good.id}.json").read_text()) | {"schema": RESULT_SCHEMA + 1}
    (folder / "a-newer.json").write_text(json.dumps(newer | {"more": 1}))
    (folder / "b-damaged.json").write_text('{"schema": 1, "id": ')
    (folder / "c-lacking.json").write_text(json.dumps({"schema": 1, "id": "x"}))
    (folder / "d-other.json").write_text("[1, 2]")
    (folder / "e-binary.json").write_bytes(os.urandom(60))
    (folder / "f-deep.json").write_text("[" * 100_000)
    return good


def test_damaged_and_newer_records_are_named_and_left_out(tmp_path, cli):
    """Fault 43."""
    good = damage(tmp_path)
    done = cli("results", "list", tmp_path, "--json")
    assert done.exit_code == 0
    assert [one["id"] for one in json.loads(done.stdout)] == [good.id]
    for name in ("a-newer", "b-damaged", "c-lacking", "d-other", "e-binary", "f-deep"):
        assert f"{name}.json" in done.stderr
    assert "made by a newer skipbench" in done.stderr
    done = cli("table", tmp_path)
    assert done.exit_code == 0 and "left out" in done.stderr and "50.0" in done.stdout


@pytest.mark.parametrize("command", [["table"], ["results", "list"], ["check", "--baseline", "b"]])
def test_strict_makes_them_an_error(tmp_path, cli, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").write_text('{"schema": 1, "figures": [], "protocols": {}}')
    (tmp_path / "r").mkdir()
    damage(tmp_path / "r")
    done = cli(*command, tmp_path / "r", "--strict")
    assert done.exit_code == 4 and "a-newer.json" in done.stderr


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("metrics", {}),  # a record of pictures: no figure, no error
        ("metrics", None),
        ("metrics", {"headline": "miou", "miou": None}),
        ("metrics", {"headline": "miou", "miou": "50"}),
        ("metrics", {"headline": "miou", "miou": 50.0, "interval": [1]}),
        ("metrics", {"headline": "miou", "miou": float("nan")}),
        ("metrics", {"headline": "miou"}),
        ("checkpoint", {}),
        ("checkpoint", []),
        ("checkpoint", {"name": "m", "sha256": "0"}),
        ("dataset", {"name": "voc"}),
        ("dataset", make_result().dataset | {"names": [["a"]]}),
        ("environment", {"call": "probe"}),
        ("features", None),
        ("features", {"blocks": ["x"]}),
        ("protocol", None),
        ("protocol", {"changes": {"epochs": 3}}),
        ("protocol", {"method": ["tokencut"]}),
        ("training", []),
        ("evaluation", 5),
        ("evaluation", ["probe"]),
        ("id", 5),
        ("id", "../../x"),
    ],
)
@pytest.mark.parametrize("command", [["table"], ["results", "list"], ["report", "-o", "x.html"]])
def test_records_of_another_shape_are_left_out_too(
    tmp_path, cli, monkeypatch, part, content, command
):
    monkeypatch.chdir(tmp_path)
    write_result(tmp_path, make_result(), {})
    odd = {**of_schema_1(make_result(name="odd")).to_json(), part: content}
    del odd["determines"]
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    done = cli(*command, tmp_path)
    assert done.exit_code == 0, done.output
    if (part, content) != ("metrics", {}):
        assert "odd.json" in done.stderr
        assert cli(*command, tmp_path, "--strict").exit_code == 4


def test_the_same_id_with_other_figures_is_said(tmp_path, caplog):
    for name, value in (("a", 50.0), ("b", 20.0)):
        write_result(tmp_path / name, make_result(value=value), {})
    with caplog.at_level("WARNING", "skipbench"):
        (one,) = read_results([tmp_path / "a", tmp_path / "b"])
    assert one.result.metrics["miou"] == 50.0 and "other scores" in caplog.text


# -- records that were changed


def edited(path, *keys, value):
    """One value in a record, by hand; the file is laid out anew."""
    content = part = json.loads(path.read_text())
    for key in keys[:-1]:
        part = part[key]
    assert part[keys[-1]] != value
    part[keys[-1]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("metrics", "miou"), 99.9),
        (("metrics", "interval"), [49.0, 50.5]),
        (("checkpoint", "sha256"), "0" * 64),
        (("dataset", "partial"), True),
        (("protocol", "epochs"), 3),
        (("environment", "skipbench"), "9"),
        (("determines", "all"), []),
        (("arrays",), "0" * 64),
        (("digest",), None),
        (("id",), "probe-voc-000000000000"),
    ],
    ids=lambda it: ".".join(it) if isinstance(it, tuple) else "",
)
def test_an_edited_record_is_damaged_for_every_reader(tmp_path, cli, keys, value):
    honest, forged = make_result(name="a"), make_result(name="b", value=60.0, interval=[58, 62])
    for record in (honest, forged):
        path = write_result(tmp_path / "r", record, {"counts": np.ones((8, 3, 3))})
    edited(path, *keys, value=value)
    for command in (
        ["table"],
        ["results", "list"],
        ["report", "-o", tmp_path / "page.html"],
        ["check", "--baseline", tmp_path / "b.json", "--update"],
    ):
        done = cli(*command, tmp_path / "r")
        assert done.exit_code == 0 and f"{path.name}: damaged record" in done.stderr
        assert cli(*command, tmp_path / "r", "--strict").exit_code == 4
    assert find_result(tmp_path / "r", forged.id) is None
    assert cli("compare", tmp_path / "r", "a", "b").exit_code == 2
    assert [one.result for one in read_results(tmp_path / "r")] == [honest]


def test_a_part_more_or_less_is_damage_too(tmp_path):
    path = write_result(tmp_path, make_result(), {})
    whole = json.loads(path.read_text())
    for name in ("digest", "arrays", "determines"):
        path.write_text(json.dumps({k: v for k, v in whole.items() if k != name}))
        with pytest.raises(DataError, match=path.name):
            read_result(path)
    path.write_text(json.dumps(whole | {"schema": 1}))  # its digests give it away
    with pytest.raises(DataError, match=path.name):
        read_result(path)
    path.write_text(json.dumps(whole).replace("50.0", "1e999"))
    with pytest.raises(DataError, match=path.name):
        read_result(path)
    path.write_text(json.dumps(dict(sorted(whole.items())), indent=7).replace("\n", "\r\n"))
    assert read_result(path) == make_result()  # another layout says the same


def test_an_id_is_that_of_the_settings(tmp_path):
    """Even where somebody has made the digest anew."""
    record = make_result()
    other = replace(record, determines={**record.determines, "data": "others"})
    path = write_result(tmp_path, other, {})
    with pytest.raises(DataError, match="its id is not that of its settings"):
        read_result(path)


def test_edited_arrays_are_noticed_where_they_are_used(tmp_path, cli):
    counts = np.ones((8, 3, 3))
    for name in ("a", "b"):
        record = make_result(name=name)
        write_result(tmp_path, record, {"counts": counts})
    arrays = tmp_path / f"{record.id}.npz"
    with arrays.open("wb") as file:
        np.savez_compressed(file, counts=counts + 1)
    assert cli("table", tmp_path).exit_code == 0  # tables do not read them
    done = cli("compare", tmp_path, "a", "b")
    assert done.exit_code == 4 and f"{arrays.name}: missing or damaged (not the" in done.stderr
    done = cli("check", tmp_path, "--baseline", tmp_path / "b.json", "--update", "--paired")
    assert done.exit_code == 4 and arrays.name in done.stderr
    assert find_result(tmp_path, record.id) is None  # it is computed again


def test_a_record_keeps_the_name_of_its_file(tmp_path):
    record = make_result()
    path = write_result(tmp_path, record, {})
    path.rename(tmp_path / "mine.json")
    with pytest.raises(DataError, match=f"mine.json: .*rename it to {record.id}.json"):
        read_result(tmp_path / "mine.json")


def test_records_of_schema_1_are_read_and_counted(tmp_path, caplog):
    """The first versions wrote no digest; files of theirs may have any name."""
    record = of_schema_1(make_result())
    write_result(tmp_path, record, {"counts": np.ones((8, 3, 3))})
    content = json.loads((tmp_path / f"{record.id}.json").read_text())
    assert content["schema"] == 1 and not {"digest", "arrays", "determines"} & content.keys()
    assert find_result(tmp_path, record.id) == record  # not computed again
    for suffix in (".json", ".npz"):
        (tmp_path / f"{record.id}{suffix}").rename(tmp_path / f"mine{suffix}")
    for name in ("b", "c"):
        write_result(tmp_path, of_schema_1(make_result(name=name)), {})
    write_result(tmp_path, make_result(name="d"), {})
    with caplog.at_level("INFO", "skipbench"):
        found = read_results(tmp_path)
    (mine,) = [one for one in found if one.path.name == "mine.json"]
    assert mine.counts().shape == (8, 3, 3) and len(found) == 4
    assert [one.getMessage() for one in caplog.records] == [
        "3 records of an earlier version have no digest: edits go unnoticed"
    ]


# -- several records


def test_several_folders_and_files_each_record_once(tmp_path):
    records = paper_records("table3")
    for record in records[:8]:
        write_result(tmp_path / "a", record, {})
    for record in records[5:]:
        write_result(tmp_path / "b", record, {})
    found = read_results([tmp_path / "a", tmp_path / "b", tmp_path / "a" / f"{records[0].id}.json"])
    assert sorted(one.result.id for one in found) == sorted(record.id for record in records)
    assert read_results(records[0])[0].result == records[0]
    with pytest.raises(DataError, match="no results at"):
        read_results(tmp_path / "c")


def test_pick_by_id_or_by_name(tmp_path):
    for record in paper_records("table3"):
        write_result(tmp_path, record, {})
    stored = read_results(tmp_path)
    one = stored[0]
    assert pick(stored, one.result.id) == [one]
    assert pick(stored, one.result.id[:-3]) == [one]
    assert pick(stored, one.result.id.rpartition("-")[2][:9]) == [one]
    assert len(pick(stored, "skipless-AdamW-9-200")) == 3
    with pytest.raises(UsageError, match="beginning of 15 ids"):
        pick(stored, "probe-")
    with pytest.raises(UsageError, match="Did you mean 'skipless-AdamW-9-200'"):
        pick(stored, "skipless-AdamW-9-20O")


def test_list_and_show(tmp_path, cli):
    record = make_result(name="[bold]x[/bold].pth", interval=[48, 52])
    write_result(tmp_path, record, {})
    done = cli("results", "list", tmp_path)
    assert "[bold]x[/bold].pth" in done.stdout and "mIoU 50.0 [48.0, 52.0]" in done.stdout
    done = cli("results", "list", tmp_path, "--where", "residual=skipless")
    assert done.stdout.strip() == "no records"
    done = cli("results", "show", record.id[:-2], "--results", tmp_path)
    assert done.exit_code == 0 and "epochs: 30" in done.stdout and "8, listed in" in done.stdout
    done = cli("results", "show", tmp_path / f"{record.id}.json", "--json")
    assert Result(**json.loads(done.stdout)) == record
    assert cli("results", "show", "nothing", "--results", tmp_path).exit_code == 2


# -- TokenCut


def test_show_and_list_a_record_of_all_blocks(tmp_path, cli):
    record = put_tokencut(tmp_path, scores_with_best(61.2), name="a.pth")
    done = cli("results", "show", record.id, "--results", tmp_path)
    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "corloc: 61.2" in lines and "block: 9" in lines and "selected_on: val" in lines
    rows = [line for line in lines if line.startswith("block ")]
    assert len(rows) == 12
    assert rows[9] == "block 9, corloc 61.2, interval 57.2, 65.2, degenerate 0, dense 0, tied 3"
    assert "holdout" in lines and "method: tokencut" in lines and "training: –" in lines
    done = cli("results", "list", tmp_path)
    assert "CorLoc 61.2 [57.2, 65.2]" in done.stdout and " all " in done.stdout
    (told,) = json.loads(cli("results", "list", tmp_path, "--json").stdout)
    assert (told["method"], told["features"], told["metric"]) == ("tokencut", "all", "corloc")
    done = cli("results", "list", tmp_path, "--where", "method=lost")
    assert done.stdout.strip() == "no records"


@pytest.mark.parametrize("select", ["val", "holdout"])
def test_a_choice_replaces_all_that_is_of_the_other(tmp_path, select):
    other = {"val": "holdout", "holdout": "val"}[select]
    record = put_tokencut(tmp_path, scores_with_best(61.2), score="masks", select=other)
    (one,) = selected_on(read_results(tmp_path), select)
    metrics, chosen = one.result.metrics, record.metrics["chosen"][select]
    assert (metrics["iou"], metrics["interval"]) == (chosen["iou"], chosen["interval"])
    assert metrics["block"] == (9 if select == "val" else None)
    assert metrics["blocks"] == record.metrics["blocks"]  # not how often each was chosen
    assert not {"max_f_beta", "tied"} & metrics.keys()
    value = one.counts().sum(0)
    assert 100 * value[0] / value[1] == pytest.approx(metrics["iou"])


def test_a_record_without_the_choice_is_left_out_and_one_block_needs_none(tmp_path, caplog):
    put_tokencut(tmp_path, scores_with_best(40.0, 1, 0), layers="11", blocks=[11], depth=12)
    result, arrays = tokencut_result(scores_with_best(50.0), name="b")
    result.metrics["chosen"]["holdout"] = None
    write_result(tmp_path, result, arrays)
    with caplog.at_level("WARNING", "skipbench"):
        (one,) = selected_on(read_results(tmp_path), "holdout")
    assert one.result.metrics["corloc"] == 40.0 and one.counts_name == "counts"
    assert f"{result.id}.json has no score chosen on holdout" in caplog.text
