"""Tables: the paper's come out as printed, in every format; nothing is mixed up in silence."""

import csv
import io
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made import (
    data_part,
    make_result,
    paper_records,
    paper_records_of_all_blocks,
    scores_with_best,
    tokencut_result,
)

import skipbench
from skipbench.errors import DataError, UsageError
from skipbench.record_store import write_result
from skipbench.results.tables import FORMATS, table, tables
from skipbench.results.tables.render import render

GOLDEN = Path(__file__).parent / "golden"
LAYOUTS = ("table2", "table3", "table4", "figure3", "plain")
OF_ALL_BLOCKS = ("table4-all", "figure3-all")

# As the paper prints them.
PRINTED = {
    "table2": """
        56.3 62.3 62.1 24.6 24.9 28.3 23.7 22.5 22.8
        51.3 57.6 63.4 21.3 23.5 27.6 20.5 21.3 22.5
        61.6 65.4 65.0 26.7 28.0 28.2 26.0 26.3 27.0
        61.3 59.5 64.8 25.9 25.1 27.6 25.3 23.7 25.6""",
    "table3": """
        61.6 26.7 26.0
        65.0 28.2 27.0
        66.2 28.0 26.7
        64.1 27.1 25.2
        61.1 26.0 24.4""",
    "table4": """
        32.3 21.2
        53.5 36.5
        47.4 31.9
        43.9 25.4
        34.8 24.0""",
    "figure3": """
        32.3 53.5 54.0 21.2 36.5 38.5
        49.4 63.2 68.1 27.5 46.7 54.1""",
}


def of_layout(layout):
    """-all: from records of all blocks, of which the best is chosen."""
    if layout in OF_ALL_BLOCKS:
        return paper_records_of_all_blocks(layout.partition("-")[0])
    return paper_records("table3" if layout == "plain" else layout)


def all_paper_records():
    return list({r.id: r for name in PRINTED for r in paper_records(name)}.values())


def values(made):
    return [[cell.entry and round(cell.entry.value, 1) for cell in row.cells] for row in made.rows]


@pytest.mark.parametrize("layout", PRINTED)
@pytest.mark.parametrize("alone", [True, False])
def test_the_papers_tables_come_out_as_printed(layout, alone):
    """Also where the records of all of them lie in one folder."""
    made = table(paper_records(layout) if alone else all_paper_records(), layout=layout)
    printed = [list(map(float, line.split())) for line in PRINTED[layout].strip().splitlines()]
    assert values(made) == printed
    assert not made.footnotes


def test_headers_and_rows_are_the_papers():
    made = table(paper_records("table2"), layout="table2")
    assert [row.labels for row in made.rows] == [
        ("single", "AdamW"), ("single", "SOAP"), ("multiscale", "AdamW"), ("multiscale", "SOAP"),
    ]  # fmt: skip
    runs = ["300 skip", "300 skipless", "200 skipless"]
    names = ["VOC2012", "COCOStuff", "ADE20K"]
    assert list(made.columns) == [(name, run) for name in names for run in runs]
    made = table(paper_records("table4"), layout="table4")
    assert [row.labels for row in made.rows] == [
        ("skip", "12"), *(("skipless", str(depth)) for depth in (12, 11, 10, 9)),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*LAYOUTS, *OF_ALL_BLOCKS])
@pytest.mark.parametrize("format", FORMATS[:-1])  # model-index is parsed in test_export.py
def test_golden(name, format):
    layout = name.partition("-")[0]
    text = table(of_layout(name), layout=layout, paper=layout != "plain").text(format)
    path = GOLDEN / f"{name}.{format}"
    if os.environ.get("SKIPBENCH_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_best_of_each_group_is_bold():
    made = table(paper_records("table2"), layout="table2")
    bold = [[cell.best for cell in row.cells] for row in made.rows]
    assert bold[0] == [False, True, False, False, False, True, True, False, False]
    made = table(paper_records("table3"), layout="table3")
    best = [[c.entry.value for c in row.cells if c.best] for row in made.rows]
    assert best == [[], [28.2, 27.0], [66.2], [], []]


def test_ties_as_printed_are_all_bold_and_one_alone_is_not():
    two = [
        make_result(value=50.04, name="a", residual="skip"),
        make_result(value=49.96, name="b", residual="skipless"),
        make_result(value=12.0, name="a", dataset="ade20k"),
    ]
    made = table(two, layout="table2", compact=True)
    assert [cell.best for cell in made.rows[0].cells] == [True, True, False]


def test_a_dash_where_there_is_no_record():
    made = table(paper_records("table2")[:1], layout="table2")
    assert values(made)[0] == [56.3] + [None] * 8
    assert "| single | AdamW | 56.3 | – | – |" in made.text("md")
    made = table(paper_records("table2")[:1], layout="table2", compact=True)
    assert len(made.rows) == len(made.columns) == 1


def test_records_beyond_the_papers_grid_get_rows_and_columns():
    more = [
        make_result(value=1.0, epoch=100, residual="skipless"),
        make_result(value=2.0, epoch=None, optimizer=None, layers="last4"),
        make_result(value=3.0, dataset="shapes", optimizer="lion"),
    ]
    made = table([*paper_records("table2"), *more], layout="table2")
    assert ("VOC2012", "100 skipless") in made.columns
    epochs = [run for name, run in made.columns if name == "VOC2012"]  # now in order of time
    order = ["100 skipless", "200 skipless", "300 skip", "300 skipless", "? epochs skip"]
    assert epochs == order
    assert made.columns[5] == ("COCOStuff", "300 skip")  # as the paper has it
    assert made.columns[-1] == ("shapes", "300 skip")
    assert ("single", "lion") in [row.labels for row in made.rows]
    assert ("last4", "unknown") in [row.labels for row in made.rows]


# -- marks


def footnotes(made):
    return [text for _, text in made.footnotes]


def test_partial_other_protocol_and_oracle_choice_are_marked():
    part = data_part(images=8, official=1449, partial=True)
    record = make_result(
        data=part,
        selected_on="val",
        protocol={"changes": {"epochs": [30, 5], "size": ["448x448", "96x96"]}},
        checkpoint={"warning": "its weights look SKIPLESS"},
    )
    made = table([record], layout="table2")
    assert footnotes(made)[0].split("; ") == [
        "partial: 8 of 1,449 images of val",
        "protocol paper with epochs 5 instead of 30, size 96x96 instead of 448x448",
        "learning rate chosen on the validation images, as papers do",
        "run as skip, although its file or its weights suggest otherwise",
    ]
    assert made.rows[0].cells[0].mark == "a"
    assert "50.0ᵃ" in made.text("rich")
    assert "50.0<sup>a</sup>" in made.text("md")
    assert r"50.0\textsuperscript{a}" in made.text("latex")
    assert "partial: 8 of 1,449" in made.text("csv")


def test_constant_features_are_marked():
    made = table([make_result(features={"degenerate": {"tokens/11": 3, "tokens/5": 0}})])
    assert footnotes(made) == ["constant features in 3 of 8 images"]
    assert not footnotes(table([make_result(features={"degenerate": {"tokens/11": 0}})]))


def test_a_rate_at_the_edge_of_the_sweep_is_marked():
    made = table([make_result(metrics={"edge": "highest"})], layout="table2")
    assert footnotes(made) == [
        "the highest rate of the sweep was chosen: a wider one may be better"
    ]


def test_another_named_protocol_is_marked():
    made = table([make_result(protocol={"name": "dinov2"})], layout="table2")
    assert footnotes(made) == ["protocol dinov2"]


def test_facts_that_no_axis_shows_are_marked_where_they_are_not_the_papers():
    assert footnotes(table([make_result(depth=6)], layout="table2")) == ["depth 6, not 12"]
    odd = make_result(layers="multiscale", epoch=100, optimizer="sgd", residual="skipless")
    made = table([odd], layout="table3")
    assert footnotes(made) == ["optimizer SGD, not AdamW; epoch 100, not 200"]


def test_models_that_differ_in_more_than_the_file_are_not_taken_for_seeds():
    two = [
        make_result(value=60.0, checkpoint={"weights": "teacher"}),
        make_result(value=20.0, checkpoint={"weights": "student"}, seed=1),
    ]
    made = table(two)
    assert "weights" in made.stub and len(made.rows) == 2
    with pytest.raises(UsageError, match=r"weights: (teacher or student|student or teacher)"):
        table(two, layout="table2")


def test_other_precisions_in_one_table_are_marked():
    fp32, bf16 = make_result(), make_result(residual="skipless")
    bf16.features["precision"] = "bf16"
    made = table([fp32, bf16], layout="table2")
    assert footnotes(made) == ["computed in fp32, kept in fp16", "computed in bf16, kept in fp16"]
    assert not table([bf16], layout="table2").footnotes


def test_partial_figures_are_not_the_best():
    part = data_part(images=3, official=8, partial=True)
    two = [make_result(), make_result(value=90.0, residual="skipless", data=part)]
    third = make_result(value=49.0, epoch=200, residual="skipless")
    made = table([*two, third], layout="table2", compact=True)
    assert [cell.best for cell in made.rows[0].cells] == [True, False, False]  # 50, 90, 49
    both = [make_result(data=part), make_result(value=90.0, residual="skipless", data=part)]
    made = table(both, layout="table2", compact=True)
    assert [cell.best for cell in made.rows[0].cells] == [False, True]


def test_two_partial_runs_of_tokencut_are_no_choice_of_blocks():
    parts = [data_part(images=n, official=100, partial=True) for n in (20, 50)]
    two = [
        make_result(evaluation="tokencut", metric="corloc", data=part, value=v)
        for part, v in zip(parts, (80.0, 40.0), strict=True)
    ]
    with pytest.raises(UsageError, match="2 records for one cell"):
        table(two, layout="figure3")


def test_seeds_cannot_be_split():
    with pytest.raises(UsageError, match="--by 'seed'"):
        tables([make_result()], by="seed")


def test_csv_of_several_tables_is_one(tmp_path):
    two = [make_result(), make_result(value=1 / 3, protocol={"epochs": 10})]
    text = render(tables(two, layout="table2", by="protocol", compact=True), "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    found = {row["VOC2012 300 skip"]: row["table"] for row in rows}
    assert found.keys() == {"50", "0.3333"} and "epochs 10" in found["0.3333"]


def test_csv_leaves_unknown_facts_empty():
    text = table([make_result(), make_result(protocol={"views": 2})]).text("csv")
    assert [row["views"] for row in csv.DictReader(io.StringIO(text))] == ["2", ""]


def test_signs_that_steer_a_terminal_are_written_out():
    made = table([make_result(name="\x1b[31mred"), make_result(name="b", residual="skipless")])
    assert "\x1b" not in made.text("rich") and r"\x1b[31mred" in made.text("rich")
    assert "\x1b" not in made.text("md")


def test_the_best_block_of_tokencut_is_an_oracle_choice():
    blocks = [
        make_result(evaluation="tokencut", metric="corloc", value=value, layers=str(i), blocks=[i])
        for i, value in ((9, 40.0), (10, 44.0), (11, 42.0))
    ]
    made = table(blocks, layout="figure3")
    assert values(made)[0][0] == 44.0
    assert footnotes(made) == ["best of 3 choices of blocks, chosen on the evaluated images"]


# -- TokenCut: the best of all blocks


def tokencut(best=50.0, **facts):
    """The record alone, with block 9 the best of all."""
    depth = facts.pop("depth", 12)
    return tokencut_result(scores_with_best(best, depth, 9, 200), depth=depth, **facts)[0]


def block_alone(block, value, **facts):
    scores = scores_with_best(value, 1, 0, 200)
    return tokencut_result(scores, layers=str(block), blocks=[block], depth=12, **facts)[0]


ORACLE = "best of 12 blocks (block 9), chosen on the evaluated images, as the paper does"
HONEST = "block chosen on one half of the images, scored on the other"


@pytest.mark.parametrize("layout", ["table4", "figure3"])
def test_the_best_of_all_blocks_is_the_papers_figure(layout):
    records = paper_records_of_all_blocks(layout)
    printed = [list(map(float, line.split())) for line in PRINTED[layout].strip().splitlines()]
    made = table(records, layout=layout)
    assert values(made) == printed
    assert all("chosen on the evaluated images, as the paper does" in t for t in footnotes(made))
    assert all(cell.mark for row in made.rows for cell in row.cells)
    assert not any("learning rate" in text for text in footnotes(made))


def test_the_block_is_named_and_the_honest_figure_has_other_words():
    records = [tokencut(), tokencut(60.0, residual="skipless", name="b")]
    assert footnotes(table(records, layout="figure3")) == [ORACLE]
    made = table(records, layout="figure3", select="holdout")
    assert footnotes(made) == [HONEST]
    assert made.rows[0].cells[0].entry.value == records[0].metrics["chosen"]["holdout"]["corloc"]
    assert footnotes(table([tokencut(select="holdout")], layout="figure3")) == [HONEST]


def test_the_honest_figure_is_lower_where_blocks_are_close(tmp_path, cli):
    scores = np.random.default_rng(1).random((60, 12)) < 0.5  # no block is better than another
    record, arrays = tokencut_result(scores * 1.0)
    write_result(tmp_path, record, arrays)
    oracle, honest = (
        table(tmp_path, layout="figure3", select=select).rows[0].cells[0].entry
        for select in ("val", "holdout")
    )
    assert honest.value < oracle.value - 3 and honest.interval != oracle.interval
    done = cli("table", tmp_path, "--layout", "table4", "--select", "holdout", "--compact", "--ci")
    assert done.exit_code == 0 and HONEST in done.stdout and f"{honest.value:.1f}" in done.stdout


def test_one_block_needs_no_mark():
    for select in (None, "val", "holdout"):
        assert not table([block_alone(11, 40.0)], layout="figure3", select=select).footnotes


def test_a_record_of_all_blocks_goes_before_those_of_single_ones():
    """It has chosen among them already, whichever of the two choices is asked for."""
    singles = [block_alone(block, value) for block, value in ((8, 48.5), (9, 50.0), (10, 48.5))]
    other = block_alone(11, 30.0, residual="skipless", name="b")
    whole = tokencut()
    honest = whole.metrics["chosen"]["holdout"]["corloc"]
    for select, words, value in ((None, ORACLE, 50.0), ("holdout", HONEST, honest)):
        made = table([*singles, whole, other], layout="figure3", select=select)
        assert made.rows[0].cells[0].entry.value == value
        assert values(made)[0][1] == 30.0 and footnotes(made) == [words]


def test_records_of_some_blocks_that_none_of_them_has_all_of():
    some = tokencut_result(scores_with_best(44.0, 2, 1, 200), layers="3,7", blocks=[3, 7], depth=12)
    made = table([some[0], block_alone(9, 40.0)], layout="figure3")
    assert values(made)[0][0] == 44.0
    assert footnotes(made)[0].split("; ") == [
        "best of 2 blocks (block 7), chosen on the evaluated images, as the paper does",
        "best of 2 choices of blocks, chosen on the evaluated images",
    ]


def test_blocks_chosen_on_all_images_and_on_a_half_share_no_table():
    two = [tokencut(), tokencut(residual="skipless", name="b", select="holdout")]
    with pytest.raises(UsageError, match=r"chosen on: \w+ or \w+(?s:.)*--select"):
        table(two, layout="figure3")
    assert footnotes(table(two, layout="figure3", select="holdout")) == [HONEST]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"tensor": "tokens"}, "tensor: keys or tokens"),
        ({"protocol": {"tau": 0.3}}, "tau: 0.2 or 0.3"),
        ({"protocol": {"hard": False}}, "hard: True or False"),
    ],
)
def test_one_model_by_two_settings_of_tokencut(facts, words):
    two = [tokencut(), tokencut(55.0, **facts)]
    for order in (two, two[::-1]):
        with pytest.raises(UsageError, match=words.partition(":")[0] + ":"):
            table(order, layout="table4")
    made = table(two)
    name = words.partition(":")[0]
    assert name in made.stub and len(made.rows) == 2
    assert len(tables(two, layout="figure3", by="protocol", compact=True)) == 2


def test_one_model_at_two_sizes_of_tokencut():
    small = replace(tokencut(55.0), id="small")
    small.protocol["size"] = "224x224"
    with pytest.raises(UsageError, match="size: 224x224 or native"):
        table([small, tokencut()], layout="table4")


def test_features_that_are_not_stored_are_kept_in_nothing():
    bf16 = tokencut(residual="skipless", name="b")
    bf16.features["precision"] = "bf16"
    told = footnotes(table([tokencut(), bf16], layout="figure3"))
    assert [text.rpartition("; ")[2] for text in told] == ["computed in fp32", "computed in bf16"]


# -- LOST, and scores of masks


def test_lost_never_stands_in_a_table_of_tokencut_unsaid(caplog):
    lost = tokencut(58.0, method="lost", residual="skipless", name="b")
    alone = table([lost], layout="figure3")
    assert values(alone)[0][1] == 58.0
    assert footnotes(alone) == [f"{ORACLE}; method lost, not tokencut"]
    with caplog.at_level("INFO", "skipbench"):
        made = table([tokencut(), lost], layout="figure3")
    assert values(made)[0][:2] == [50.0, None] and footnotes(made) == [ORACLE]
    assert "figure3 leaves out 1 score by another method than tokencut" in caplog.text


def test_methods_are_chosen_with_where_and_by():
    same = [tokencut(), tokencut(58.0, method="lost")]
    made = table(same, layout="table4", where=["method=LOST"], compact=True)
    assert values(made) == [[58.0]]
    titles = {one.title for one in tables(same, layout="table4", by="method", compact=True)}
    assert {title.rpartition("(")[2] for title in titles} == {"method tokencut)", "method lost)"}
    assert len(table([*same, make_result()], where=["method=none"]).rows) == 1


def test_plain_tells_methods_apart_where_there_are_two():
    two = [tokencut(), tokencut(58.0, method="lost")]
    made = table(two)
    assert made.stub.count("method") == 1
    assert {row.labels[made.stub.index("method")] for row in made.rows} == {"tokencut", "lost"}
    assert not any(cell.best for row in made.rows for cell in row.cells)
    assert "method lost" in table([tokencut(method="lost")]).title
    mixed = table([make_result(), tokencut()])  # the evaluation says it
    assert "method" not in mixed.stub and "method" not in mixed.title
    assert "method" in table([make_result(), *two]).stub


def test_an_iou_of_masks_is_no_corloc(caplog):
    masks = tokencut(70.0, dataset="ecssd", score="masks")
    with pytest.raises(UsageError, match="table4 shows CorLoc; these records have IoU"):
        table([masks], layout="table4")
    with caplog.at_level("INFO", "skipbench"):
        made = table([tokencut(), masks], layout="table4", compact=True)
    assert made.columns == (("VOC2012",),) and "1 score other than CorLoc" in caplog.text
    made = table([tokencut(), masks])
    assert set(made.columns) == {("score", "CorLoc"), ("score", "IoU")}
    assert footnotes(table([masks])) == [ORACLE]


def test_seeds_are_one_figure():
    seeds = [make_result(value=v, seed=i, interval=[v - 1, v + 2]) for i, v in enumerate((50, 52))]
    made = table(seeds, layout="table2", ci=True)
    cell = made.rows[0].cells[0]
    assert (cell.entry.value, cell.entry.interval) == (51.0, (50.0, 53.0))
    assert cell.entry.spread == pytest.approx(2**0.5)
    assert footnotes(made) == ["mean over 2 seeds"]
    assert "51.0ᵃ±1.4 [50.0, 53.0]" in made.text("rich")


# -- what may not share a table


def test_different_protocols_are_refused_with_what_differs():
    two = [make_result(), make_result(residual="skipless", protocol={"epochs": 10})]
    with pytest.raises(UsageError, match=r"epochs: 30 or 10(?s:.)*--by protocol"):
        table(two, layout="table2")
    made = tables(two, layout="table2", by="protocol", compact=True)
    assert [one.title.rpartition("(")[2] for one in made] == ["epochs 30)", "epochs 10)"]
    assert [values(one) for one in made] == [[[50.0]], [[50.0]]]


def test_a_rate_chosen_on_val_and_one_on_held_out_images_are_different_protocols():
    two = [make_result(selected_on="val"), make_result(residual="skipless", selected_on="holdout")]
    with pytest.raises(UsageError, match="chosen on: val or holdout"):
        table(two, layout="table2")


def test_different_images_are_refused_unless_partial_which_is_marked():
    other = data_part(fingerprint="f" * 64)
    with pytest.raises(UsageError, match=r"images evaluated on \(voc\)"):
        table([make_result(), make_result(residual="skipless", data=other)], layout="table2")
    two = [make_result(), make_result(residual="skipless", data=other)]
    assert len(tables(two, layout="table2", by="protocol")) == 2
    part = data_part(images=3, official=8, partial=True)
    made = table([make_result(), make_result(residual="skipless", data=part)], layout="table2")
    assert footnotes(made) == ["partial: 3 of 8 images of val"]


def test_a_whole_run_goes_before_a_partial_one():
    part = data_part(images=3, official=8, partial=True)
    made = table([make_result(value=1.0, data=part), make_result(value=2.0)], layout="table2")
    assert values(made)[0][0] == 2.0 and not made.footnotes


def test_plain_shows_settings_that_differ():
    two = [make_result(), make_result(protocol={"epochs": 10})]
    made = table(two)
    assert "epochs" in made.stub
    assert sorted(row.labels[-1] for row in made.rows) == ["10", "30"]
    assert not any(cell.best for row in made.rows for cell in row.cells)


def test_plain_tells_sets_of_classes_apart():
    def on(classes, dataset="context"):
        return make_result(data=data_part(dataset, classes=classes, fingerprint=f"{classes}" * 9))

    boxes = tokencut_result(np.ones((8, 12)), data=data_part("context", classes=0))[0]
    assert "classes" not in table([on(59), on(21, "voc"), boxes], layout="plain").stub
    made = table([on(59), on(60), on(21, "voc")], layout="plain")
    at = made.stub.index("classes")
    assert [row.labels[at] for row in made.rows] == ["59", "60", "21"]


def test_a_dash_where_off_axis_facts_leave_a_choice_that_is_not_the_papers():
    two = [make_result(layers="last"), make_result(layers="ibot")]
    made = table([*two, make_result(layers="multiscale", residual="skipless")], layout="table3")
    assert values(made)[0] == [None, None, None]
    alone = table([make_result(layers="last")], layout="table3")
    assert footnotes(alone) == ["features single, not multiscale"]


def test_two_weights_under_one_name_are_told_apart():
    two = [make_result(sha256="a" * 64), make_result(sha256="b" * 64)]
    with pytest.raises(UsageError, match="2 records for one cell"):
        table(two, layout="table2")
    assert "weights (sha256)" in table(two).stub


def test_where():
    records = paper_records("table2")
    made = table(records, layout="table2", where=["dataset=voc", "epoch=200"], compact=True)
    assert made.columns == (("VOC2012", "200 skipless"),)
    assert len(table(records, where=["features=last"]).rows) == 18
    assert len(table(records, where=["epoch=200", "epoch=300"]).rows) == 36
    with pytest.raises(UsageError, match="Did you mean 'epoch'"):
        table(records, where=["epok=200"])
    assert len(table(records, where=["dataset = VOC2012"]).rows) == 12
    with pytest.raises(UsageError, match=r"no records match.*have: epoch 200, 300"):
        table(records, where=["epoch=7"])


def test_the_wrong_layout_and_no_records(tmp_path):
    with pytest.raises(UsageError, match="Did you mean 'table2'"):
        table(paper_records("table2"), layout="tabel2")
    with pytest.raises(UsageError, match=r"needs records of tokencut.*probe"):
        table(paper_records("table2"), layout="figure3")
    with pytest.raises(DataError, match="no results at"):
        table(tmp_path / "nothing")
    with pytest.raises(UsageError, match="no records"):
        table(tmp_path)


# -- the paper beside it


def test_paper_and_difference():
    made = table([make_result(value=57.1)], layout="table2", paper=True)
    cell = made.rows[0].cells[0]
    assert (cell.paper, round(cell.difference, 6)) == (56.3, 0.8)
    assert "57.1 (56.3, +0.8)" in made.text("md")
    assert "– (62.3)" in made.text("md")
    below = table([make_result(value=56.2)], layout="table2", paper=True)
    assert "56.2 (56.3, −0.1)" in below.text("md")


@pytest.mark.parametrize(("layout", "words"), [("table3", "Table 2's"), ("table4", "Figure 3")])
def test_the_papers_inconsistencies_are_footnotes(layout, words):
    made = table(paper_records(layout), layout=layout, paper=True)
    assert any(words in text for text in footnotes(made))
    assert not table(paper_records(layout), layout=layout).footnotes


# -- formats

HOSTILE = "a&b_%$#{}~^\\|<script>*`é中\u202e\x07=1"


def test_hostile_names_stay_text():
    made = table([make_result(name=HOSTILE), make_result(name="=cmd()", residual="skipless")])
    rows = list(csv.reader(io.StringIO(made.text("csv"))))
    assert [len(row) for row in rows] == [len(rows[0])] * 3
    assert any("'=cmd()" in row for row in rows)
    assert "<script>" not in made.text("md")
    assert (
        made.text("md").splitlines()[3].count("|") - made.text("md").splitlines()[3].count("\\|")
        == len(made.stub) + 2
    )


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX")
def test_latex_compiles_as_it_stands(tmp_path):
    made = [
        table(of_layout(name), layout=name.partition("-")[0], paper=name != "plain")
        for name in (*LAYOUTS, *OF_ALL_BLOCKS)
    ]
    hostile = [make_result(name=HOSTILE, data=data_part(images=2, official=9, partial=True))]
    made.append(table([*hostile, make_result(name="b", interval=[1, 2])], ci=True))
    (tmp_path / "tables.tex").write_text(render(made, "latex"))
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"],
        cwd=tmp_path, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode("latin-1")[-800:]
    assert b"Overfull \\hbox" not in done.stdout
    alone = render(made[:1], "latex", fragment=True)
    assert alone.startswith(r"\begin{table}") and r"\multicolumn{3}{c}{VOC2012}" in alone


def test_json_has_everything():
    made = table([make_result(interval=[48, 52])], layout="table2", paper=True, compact=True)
    (one,) = json.loads(made.text("json"))
    cell = one["rows"][0]["cells"][0]
    assert cell["value"] == 50.0 and cell["interval"] == [48.0, 52.0] and cell["paper"] == 56.3
    assert cell["records"] == [make_result(interval=[48, 52]).id]


# -- the command


def put(folder, records):
    for record in records:
        write_result(folder, record, {})


def test_command(tmp_path, cli):
    put(tmp_path / "r", paper_records("table2"))
    done = cli("table", tmp_path / "r", "--layout", "table2", "--format", "md")
    assert done.exit_code == 0 and "| **62.3** |" in done.stdout
    done = cli(
        "table", tmp_path / "r", "--layout", "table2", "--format", "csv", "-o", tmp_path / "t"
    )
    assert done.exit_code == 0 and (tmp_path / "t").read_text().startswith("features,optimizer")
    for name, begins in (("t.md", "**Linear"), ("t.tex", r"\documentclass"), ("t.json", "[")):
        cli("table", tmp_path / "r", "--layout", "table2", "-o", tmp_path / name)
        assert (tmp_path / name).read_text().startswith(begins)
    assert cli("table", tmp_path / "r", "--fragment").exit_code == 2
    assert cli("table", tmp_path / "r", "-o", tmp_path / "t.foo").exit_code == 2
    assert cli("table", tmp_path / "r", "--paper").exit_code == 2
    assert cli("table", tmp_path / "r", "--format", "markdown").exit_code == 2
    with pytest.raises(UsageError, match="no format"):
        table(tmp_path / "r").text("markdown")
    assert cli("table", tmp_path / "r", "--layout", "table9").exit_code == 2


def test_nothing_is_cut_off_on_a_narrow_screen(tmp_path, skipbench):
    put(tmp_path / "results", paper_records("table2"))
    done = skipbench("table", "--layout", "table2", COLUMNS="40")
    assert done.returncode == 0 and "…" not in done.stdout
    assert "25.6" in done.stdout and "\x1b" not in done.stdout


def test_python():
    assert "| **66.2** |" in skipbench.table(paper_records("table3"), layout="table3").text("md")


def test_records_that_lack_a_setting_of_others_share_a_plain_table():
    cuts = [
        make_result(evaluation="tokencut", metric="corloc", value=30.0, protocol={"tau": tau})
        for tau in (0.2, 0.3)
    ]
    made = table([make_result(), cuts[0]])
    assert made.columns == (("score", "mIoU"), ("score", "CorLoc"))
    assert [row.labels for row in made.rows] == [("model.pth", "probe"), ("model.pth", "tokencut")]
    made = table([make_result(), *cuts])  # only what differs within an evaluation is a column
    assert {row.labels[-1] for row in made.rows} == {"–", "0.2", "0.3"}


def test_many_degenerate_images_are_told_beside_the_figure():
    """A box around the whole image is often right: a model that sees nothing scores 30 percent."""
    record, _ = tokencut_result(scores_with_best(9))
    told = "90 of 1,000 images degenerate: their box is the whole image"
    assert not any("degenerate" in text for text in footnotes(table([record], layout="table4")))
    record.metrics["degenerate"] = 90
    assert any(told in text for text in footnotes(table([record], layout="table4")))
