"""The page of `skipbench report`: what stands in it, what it keeps out, and that it works."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from made import (
    counts_of,
    data_part,
    make_result,
    paper_records,
    put_tokencut,
    scores_by_block,
    scores_with_best,
    tokencut_result,
    with_counts,
)
from pages import HOSTILE, SCRIPT, Elements, hostile_records, tile, with_tiles
from PIL import Image

from skipbench.errors import DataError, ResourceError, UsageError
from skipbench.metrics.intervals import holm
from skipbench.record_store import write_result
from skipbench.results.entries import entries
from skipbench.results.paired import paired
from skipbench.results.read import read_results
from skipbench.results.report import charts, report, short
from skipbench.results.report.charts import Line, Point
from skipbench.results.report.comparisons import paired_differences
from skipbench.results.report.models import Look
from skipbench.results.report.records import command


def made(tmp_path, results, **options):
    path = report(results, tmp_path / "page" / "report.html", **options)
    return Elements(path.read_text("utf-8"))


def text_of(page):
    return " ".join(page.text().split())


@pytest.fixture
def pair(tmp_path):
    """skip and skipless with counts and pictures, on disk."""
    folder, rng = tmp_path / "results", np.random.default_rng(0)
    skip = with_counts(folder, counts_of(rng, quality=0.5), residual="skip", name="a.pth")
    skipless = with_counts(folder, counts_of(rng, quality=0.9), residual="skipless", name="b.pth")
    for result in (skip, skipless):
        with_tiles(folder, result)
    return folder, skip, skipless


# -- what stands in it


def test_summary_compares_the_best_of_both_on_the_same_images(tmp_path, pair):
    words = text_of(made(tmp_path, pair[0]))
    assert re.search(
        r"skipless − skip: \+\d+\.\d \[\+\d.*?\], p < 0\.001, paired over 40 images", words
    )


def test_a_footnote_of_many_remarks_is_whole(tmp_path):
    record = make_result(
        data=data_part(official=1449, partial=True, chosen="first"),
        training=data_part(split="train", official=1464, partial=True, chosen="first"),
        selected_on="val",
        protocol={"changes": {"epochs": [30, 5], "size": ["448x448", "96x96"]}},
        features={"degenerate": {"tokens/11": 7}},
        metrics={"edge": "highest"},
        checkpoint={"warning": "its weights look SKIPLESS"},
    )
    (entry,) = entries(read_results([record]))
    assert len("; ".join(entry.remarks)) > 300
    page = report([record], tmp_path / "report.html").read_text("utf-8")
    assert page.count(f"</sup> {'; '.join(entry.remarks)}</li>") == 2  # of both tables


@pytest.mark.parametrize(
    ("skip", "skipless", "sentence"),
    [
        ([48.0, 52.0], [53.0, 58.0], "skipless is 5.0 above skip; the intervals do not overlap."),
        ([48.0, 54.0], [53.0, 58.0], "the intervals overlap, which by itself settles nothing."),
        (None, [53.0, 58.0], "without intervals there is no telling"),
    ],
)
def test_summary_says_no_more_than_the_intervals(tmp_path, skip, skipless, sentence):
    records = [
        make_result(value=50.0, interval=skip, residual="skip"),
        make_result(value=55.0, interval=skipless, residual="skipless", name="b"),
    ]
    assert sentence in text_of(made(tmp_path, records))


def test_different_protocols_are_never_compared(tmp_path):
    records = [
        make_result(value=50.0, residual="skip"),
        make_result(value=55.0, residual="skipless", name="b", protocol={"epochs": 10}),
    ]
    page = made(tmp_path, records)
    words = text_of(page)
    assert "epochs 10" in words and "epochs 30" in words
    assert not page.of("article", "comparison")


# -- any number of models


@pytest.fixture
def four(tmp_path):
    """Four models with counts, two of each variant, all with one protocol on the same images."""
    folder, rng = tmp_path / "results", np.random.default_rng(0)
    for i, quality in enumerate((0.5, 0.52, 0.7, 0.9)):
        residual = ("skip", "skipless")[i % 2]
        with_counts(folder, counts_of(rng, quality=quality), residual=residual, name=f"m{i}.pth")
    return folder


def test_every_two_models_are_compared_on_the_same_images(tmp_path, four):
    page = made(tmp_path, four)
    assert len(page.of("article", "comparison")) == 1
    labels = [a["data-label"] for a in page.of("td", "number") if a["data-label"][0] == "−"]
    assert sorted(labels) == sorted(f"− m{i}.pth" for i in range(4) for _ in range(3))
    words = text_of(page)
    assert "p-values are corrected for 6 comparisons (Holm)" in words
    assert words.count("skipless − skip") == 0


def test_differences_are_those_of_compare_with_holms_correction(tmp_path):
    """Of CorLoc, whose test draws nothing at random."""
    rng = np.random.default_rng(0)
    for i, quality in enumerate((0.3, 0.5, 0.9)):
        scores = scores_by_block(rng, 60, quality=quality)[:, :1]
        put_tokencut(tmp_path, scores, layers="11", blocks=[11], depth=12, name=f"m{i}")
    found = entries(read_results(tmp_path))
    differences = paired_differences(found)
    assert list(differences) == [(0, 1), (0, 2), (1, 2)]
    alone = [paired(found[b].stored, found[a].stored) for a, b in differences]
    corrected = holm([one.p_value for one in alone])
    for one, other, p in zip(differences.values(), alone, corrected, strict=True):
        assert one.value == pytest.approx(other.difference)
        assert one.p_value == pytest.approx(p) and one.p_value >= other.p_value


def test_a_model_without_counts_does_not_hide_the_differences_of_the_others(tmp_path, four):
    first = next(four.glob("*.npz"))
    name = json.loads(first.with_suffix(".json").read_text())["checkpoint"]["name"]
    first.unlink()
    words = text_of(made(tmp_path, four))
    assert (
        f"corrected for 3 comparisons (Holm). Bold: p < 0.05. Without counts by image: {name}."
        in words
    )


def test_two_models_of_one_variant_are_compared_by_name(tmp_path):
    folder, rng = tmp_path / "results", np.random.default_rng(0)
    for name, quality in (("a.pth", 0.4), ("b.pth", 0.9)):
        with_counts(folder, counts_of(rng, quality=quality), name=name)
    page = made(tmp_path, folder)
    words = text_of(page)
    assert re.search(r"b\.pth − a\.pth: \+\d+\.\d \[\+\d.*?\], p < 0\.001, paired over", words)
    assert "skipless −" not in words and "Only" not in words
    assert re.search(r"dog \d+\.\d \d+\.\d \+\d+\.\d \[", words)  # no empty differences


def test_the_models_own_table_comes_first(tmp_path, four):
    page = made(tmp_path, four)
    first = page.text().index("m0.pth")
    assert page.text().index("Scores") < first < page.text().index("All scores.")
    (title,) = [text for tag, text in page.texts if tag == "title"]
    assert title == "Evaluation of 4 models on VOC2012"


def test_the_papers_tables_have_only_the_papers_records(tmp_path):
    own = [
        make_result(epoch=None, name="own", optimizer="LARS"),
        make_result(epoch=0, name="untrained"),
    ]
    records = [*paper_records("table2"), *own]
    page = made(tmp_path, records)
    headers = {a.get("data-label", "") for a in page.of("td", "number")}
    assert "Table 2." in text_of(page) and "VOC2012, 300 skip" in headers
    assert not headers & {"VOC2012, ? epochs skip", "VOC2012, 0 skip"}
    for dataset, epoch in (("shapes", 300), ("voc", None)):
        records = [
            make_result(dataset=dataset, epoch=epoch, residual=residual, name=residual)
            for residual in ("skip", "skipless")
        ]
        assert "Table " not in text_of(made(tmp_path, records))


def test_checkpoints_of_one_name_are_told_apart_by_their_folders(tmp_path):
    records = [
        make_result(name="last.pth", sha256=sha * 64, call={"ckpt": f"/runs/{run}/last.pth"})
        for run, sha in (("one", "a"), ("two", "b"))
    ]
    words = text_of(made(tmp_path, records))
    assert "one/last.pth" in words and "two/last.pth" in words


def test_a_model_has_one_colour_and_marker_everywhere(tmp_path, four):
    text = report(four, tmp_path / "r.html").read_text("utf-8")
    after = r"<span>(?:<span class=\"place\">\d</span> )?<span>"
    samples = re.findall(rf'class="sample (c\d)".*?<path d="(M.*?)"/></g></svg>{after}(m\d)', text)
    looks = {}
    for colour, shape, name in samples:
        looks.setdefault(name, set()).add((colour, shape))
    assert sorted(looks) == ["m0", "m1", "m2", "m3"]
    assert all(len(found) == 1 for found in looks.values())
    assert len(set.union(*looks.values())) == 4


def test_dots_have_an_axis_below_them(tmp_path, four):
    text = report(four, tmp_path / "r.html").read_text("utf-8")
    (article,) = re.findall(r"<article.*?</article>", text, re.S)
    foot = article[article.index("<tfoot>") :]
    assert len(re.findall(r'<text [^>]*text-anchor="middle">[\d.]+</text>', foot)) >= 2


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("one two three", 13, "one two three"),
        ("one two three", 12, "one two …"),
        ("one " + "x" * 30, 12, "one …"),
    ],
)
def test_headings_are_cut_between_words(text, most, shown):
    assert charts.clip(text, most) == shown


def test_names_break_after_separators_alone():
    assert charts.breakable("vit_s-16<x>.pth") == "vit_<wbr>s-<wbr>16&lt;x&gt;.pth"
    assert charts.breakable("a/b0.5.safetensors") == "a/<wbr>b0.5<wbr>.safetensors"


def test_columns_name_the_data_set_if_there_are_several(tmp_path):
    several = [make_result(dataset=name, name=name) for name in ("voc", "ade20k")]
    for records, names in ((several, {"VOC2012, val, single", "ADE20K, val, single"}),
                           (several[:1], {"single"})):  # fmt: skip
        page = made(tmp_path, records)
        labels = {a.get("data-label", "") for a in page.of("td", "number")}
        assert {f"linear probe, mIoU, {name}" for name in names} <= labels


def test_long_tables_and_classes_of_single_blocks_are_folded(tmp_path):
    per_class = {"per_class": {"cat": 1.0}}
    records = [
        make_result(name=f"m{i}", layers=str(b), blocks=[b], value=float(i), metrics=per_class)
        for i in range(4) for b in range(9)
    ]  # fmt: skip
    last = make_result(name="m0", metrics=per_class)
    page = made(tmp_path, [*records, last])
    assert "All scores: 37 rows" in text_of(page)
    assert ["open" in a for a in page.of("details", "many")] == [False]
    assert ["open" in a for a in page.of("details", "classes")] == [True, *[False] * 9]
    assert not made(tmp_path, records[:30]).of("details", "many")


def oklab(colour, seen):
    """seen: what an eye makes of linear RGB."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
    lab = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return lab @ np.cbrt(cones @ np.clip(seen @ linear, 0, 1))


# Machado, Oliveira and Fernandes (2009): eyes without red or without green cones.
EYES = {
    "all cones": (0.12, np.eye(3)),
    "no red": (0.07, [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": (0.07, [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
}


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_of_models_are_apart(tmp_path, eyes, dark):
    text = report([make_result()], tmp_path / "r.html").read_text("utf-8")
    pairs = re.findall(r"\.c\d { --own: light-dark\(#(\w{6}), #(\w{6})\); }", text)
    least, seen = EYES[eyes]
    places = [oklab(pair[dark], np.array(seen)) for pair in pairs]
    assert len(places) == 8
    assert min(np.linalg.norm(a - b) for a, b in combinations(places, 2)) > least


# -- tables, provenance, classes


def test_the_papers_tables_as_the_paper_prints_them(tmp_path):
    records = [r for layout in ("table2", "figure3") for r in paper_records(layout)]
    page = made(tmp_path, records)
    words = text_of(page)
    labels = {a.get("data-label", "") for a in page.of("td", "number")}
    assert {"mIoU", "CorLoc"} <= labels and not {"figure, mIoU", "figure, CorLoc"} & labels
    assert "Table 2." in words and "Figure 3." in words and "All scores." in words
    assert {"56.3", "62.3", "65.4", "68.1"} <= set(words.split())
    latex = [text for tag, text in page.texts if tag == "textarea" and r"\begin{table}" in text]
    assert r"\textbf{65.4}" in "".join(latex)


def test_records_of_two_protocols_have_a_table_each(tmp_path):
    records = [
        make_result(value=40.0 + i, residual=r, name=f"{r}{e}", protocol={"epochs": e})
        for i, (r, e) in enumerate([(r, e) for r in ("skip", "skipless") for e in (10, 30)])
    ]
    captions = " ".join(text for tag, text in made(tmp_path, records).texts if tag == "figcaption")
    assert captions.count("Linear-probe segmentation, mIoU in percent (epochs") == 2


def test_every_figure_leads_to_its_record(tmp_path, pair):
    page = made(tmp_path, pair[0])
    there = {a["id"] for _, a in page.tags if a.get("id")}
    links = [a["href"] for a in page.of("a", "score")]
    assert len(links) > 6 and {link.removeprefix("#") for link in links} <= there


def test_provenance_has_the_settings_their_sources_and_no_lists_of_names(tmp_path):
    result = make_result(
        checkpoint={"heads": 6, "sources": {"heads": "header heads"}},
        protocol={"held_out": ["x"] * 99},
    )
    words = text_of(made(tmp_path, [result]))
    assert "heads 6 header heads" in words and "held out 99" in words
    assert result.dataset["fingerprint"] in words and f"{result.id}.json" in words
    assert "val_003" not in words


def test_seeds_are_one_figure_and_point_at_each_other(tmp_path):
    records = [make_result(seed=seed, value=50.0 + seed) for seed in (0, 1)]
    words = text_of(made(tmp_path, records))
    assert "±0.7" in words and words.count("Other seeds of the same score") == 2
    assert "VOC2012, single, seed 0" in words and "VOC2012, single, seed 1" in words


def test_command_can_be_pasted_into_a_shell():
    call = {
        "ckpt": "/my runs/a.pth", "dataset": "folder:/x", "standardize": False, "norm": True,
        "lr": [1e-4, 0.03], "expected": {"depth": 12}, "train_images": 3000, "seed": 1,
    }  # fmt: skip
    result = make_result(call=call, checkpoint={"epoch": 7, "sources": {"epoch": "--label"}})
    assert command(result) == (
        "skipbench probe --ckpt '/my runs/a.pth' --dataset folder:/x --no-standardize --norm "
        "--lr 0.0001,0.03 --expect depth=12 --train-images 3000 --seed 1 --label epoch=7"
    )


@pytest.mark.parametrize(
    "name", [name for name in HOSTILE if "\x00" not in name and "\udcff" not in name]
)
def test_command_runs_nothing_of_a_name(name, tmp_path):
    line = command(make_result(call={"ckpt": name}))
    shell = ["bash", "-c", f"skipbench() {{ printf '%s' \"$3\"; }}; {line}"]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.stdout == name and not list(tmp_path.iterdir())


def test_classes_stand_by_difference_with_the_absent_last(tmp_path):
    scores = {
        "skip": {"cat": 10.0, "dog": 20.0, "fox": None},
        "skipless": {"cat": 15.0, "dog": 50.0, "fox": None},
    }
    records = [make_result(residual=r, name=r, metrics={"per_class": s}) for r, s in scores.items()]
    words = text_of(made(tmp_path, records))
    assert re.search(r"dog 20\.0 50\.0 \+30\.0 cat 10\.0 15\.0 \+5\.0 fox – – –", words)


def test_many_classes_are_folded(tmp_path):
    few, many = ({f"c{i}": 1.0 for i in range(n)} for n in (30, 31))
    for classes, opened in ((few, True), (many, False)):
        page = made(tmp_path, [make_result(metrics={"per_class": classes})])
        assert ["open" in a for a in page.of("details", "classes")] == [opened]


# -- charts


def points(svg):
    return [
        tuple(map(float, p))
        for p in re.findall(r'class="point" transform="translate\((\S+) (\S+)\)', svg)
    ]


def test_points_are_where_they_should_be():
    line = Line("a", Look(), (Point(0, 10), Point(50, 20), Point(100, 30)))
    x, y = charts.Axis("x", 0, 100, (0, 50, 100)), charts.Axis("y", 10, 30, (10, 30))
    left, right = charts.LEFT, charts.WIDTH - charts.RIGHT
    top, bottom = charts.TOP, charts.HEIGHT - charts.BOTTOM
    found = points(charts.line_chart([line], x, y, ""))
    assert found == [(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]


def test_band_goes_along_the_intervals():
    line = Line("a", Look(), (Point(0, 15, (10, 20)), Point(100, 25, (20, 30))))
    x, y = charts.Axis("x", 0, 100, ()), charts.Axis("y", 10, 30, ())
    svg = charts.line_chart([line], x, y, "")
    to_y = replace(y, start=charts.HEIGHT - charts.BOTTOM, end=charts.TOP).at
    right = charts.WIDTH - charts.RIGHT
    way = re.search(r'class="band" d="M(.*?)z"', svg).group(1).split("L")
    places = [(charts.LEFT, 20), (right, 30), (right, 20), (charts.LEFT, 10)]
    assert [tuple(map(float, p.split())) for p in way] == [(at, to_y(v)) for at, v in places]


def test_rates_stand_on_a_logarithmic_axis():
    line = Line("a", Look(), tuple(Point(10.0**-n, 1.0) for n in (1, 2, 3)))
    svg = charts.line_chart([line], charts.log_axis("rate", [line]), charts.y_axis("y", [line]), "")
    (a, _), (b, _), (c, _) = points(svg)
    assert a - b == pytest.approx(b - c, abs=0.02) and a > b
    assert all(f">{tick:g}<" in svg for tick in (0.1, 0.01, 0.001))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (47.3, 61.2), (-3e-5, 2e-5), (0, 12345)])
def test_ticks_are_round_few_and_inside(low, high):
    found = charts.ticks(low, high)
    assert 2 <= len(found) <= charts.MOST_TICKS + 1
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    steps = {f"{b - a:.3e}" for a, b in pairwise(found)}
    assert len(steps) == 1 and steps.pop()[0] in "125"


@pytest.mark.parametrize(
    ("places", "shown"),
    [((0, 100, 300), (0, 100, 300)), ((0, 2, 300), (0, 50, 100, 150, 200, 250, 300)), ((7,), (7,))],
)
def test_labels_of_an_axis_do_not_meet(places, shown):
    line = Line("a", Look(), tuple(Point(x, 1.0) for x in places))
    assert charts.x_axis("epoch", [line]).ticks == shown


def test_curves_over_epochs_blocks_and_rates(tmp_path):
    rates = [
        {"rate": r, "miou": 40.0 + i, "interval": [39.0, 45.0]} for i, r in enumerate((1e-3, 1e-2))
    ]
    records = [
        make_result(residual=r, optimizer=o, epoch=e, value=40 + e / 30, name=f"{r}{o}{e}",
                    interval=[39.0, 52.0], metrics={"rates": rates, "rate": 1e-2})
        for r in ("skip", "skipless") for o in ("adamw", "soap") for e in (100, 200, 300)
    ]  # fmt: skip
    records += [
        make_result(
            evaluation="tokencut",
            metric="corloc",
            blocks=[b],
            layers=str(b),
            value=30.0 + b,
            name="t",
        )
        for b in range(12)
    ]
    page = made(tmp_path, records)
    said = [a["aria-label"] for a in page.of("svg", "chart")]
    assert [label.split(",")[0] for label in said] == [
        "mIoU over epochs", "CorLoc over blocks", "mIoU over learning rates"
    ]  # fmt: skip
    assert "skipless SOAP from 43.3 at 100 to 50.0 at 300" in said[0]
    assert "skipless AdamW, epoch 300: 50.0 [39.0, 52.0]" in text_of(page)
    assert len(page.of("circle", "ring")) == 12  # the rate that was taken, of each model


def test_one_y_axis_for_the_charts_of_a_data_set(tmp_path):
    records = [
        make_result(epoch=e, layers=layers, value=value + e / 100, name=f"{layers}{e}")
        for layers, value in (("last", 20.0), ("multiscale", 60.0)) for e in (100, 300)
    ]  # fmt: skip
    path = report(records, tmp_path / "r.html")
    first, second = re.findall(r'<svg class="chart".*?</svg>', path.read_text(), re.S)
    ticks = [re.findall(r'text-anchor="end">(.*?)<', svg) for svg in (first, second)]
    assert ticks[0] == ticks[1] and points(first)[0][1] > points(second)[0][1]


def test_checkpoints_of_two_trainings_are_no_curve(tmp_path):
    same, others = (
        [
            make_result(epoch=e, value=float(e), name=n)
            for e, n in zip((100, 300), names, strict=True)
        ]
        for names in (("run100.pth", "run_300.pth"), ("run.pth", "other.pth"))
    )
    assert len(made(tmp_path, same).of("svg", "chart")) == 1
    assert not made(tmp_path, others).of("svg", "chart")


def test_a_single_epoch_is_no_curve(tmp_path):
    assert not made(tmp_path, [make_result(), make_result(residual="skipless", name="b")]).of(
        "svg", "chart"
    )


# -- TokenCut


@pytest.fixture
def discovery(tmp_path):
    """skip and skipless by all blocks, on disk; block 9 is the best of both."""
    folder, rng = tmp_path / "results", np.random.default_rng(0)
    for residual, quality in (("skip", 0.4), ("skipless", 0.9)):
        scores = scores_by_block(rng, 80, quality=quality)
        put_tokencut(folder, scores, residual=residual, name=f"{residual}.pth")
    return folder


def charts_of(path):
    return re.findall(r'<svg class="chart".*?</svg>', path.read_text("utf-8"), re.S)


def test_all_blocks_of_a_record_are_a_curve_with_a_ring_around_the_chosen_one(tmp_path, discovery):
    (svg,) = charts_of(report(discovery, tmp_path / "r.html"))
    assert svg.count('class="point"') == 24 and svg.count('class="band"') == 2
    records = [json.loads(path.read_text()) for path in discovery.glob("*.json")]
    for record in records:
        variant, metrics = record["checkpoint"]["residual"], record["metrics"]
        for row in metrics["blocks"]:
            low, high = row["interval"]
            model = f"{variant}.pth, {variant}"
            words = f"{model}, block {row['block']}: {row['corloc']:.1f} [{low:.1f}, {high:.1f}]"
            found = re.search(rf"<title>{re.escape(words)}</title>(.*?)</g>", svg)
            assert ('class="ring"' in found.group(1)) == (row["block"] == metrics["block"])


def test_single_blocks_join_the_curve_of_their_model(tmp_path):
    """What a record of all blocks has as well is one point, not two."""
    some = scores_with_best(50.0, 3, 1, 200)
    records = [tokencut_result(some, layers="2,3,4", blocks=[2, 3, 4], depth=12)[0]]
    for block, value in ((3, 50.0), (11, 30.0)):
        scores = scores_with_best(value, 1, 0, 200)
        records.append(tokencut_result(scores, layers=str(block), blocks=[block], depth=12)[0])
    (svg,) = charts_of(report(records, tmp_path / "r.html"))
    assert svg.count('class="point"') == 4 and svg.count('class="ring"') == 1
    assert "skip from 48.5 at 2 to 30.0 at 11" in svg


def test_a_block_chosen_on_halves_has_its_curve_and_no_ring(tmp_path):
    record = tokencut_result(scores_with_best(50.0), select="holdout")[0]
    (svg,) = charts_of(report([record], tmp_path / "r.html"))
    assert svg.count('class="point"') == 12 and "ring" not in svg


def test_methods_and_measures_have_charts_of_their_own(tmp_path):
    scores = scores_with_best(50.0, images=40)
    ways = ({}, {"method": "lost"}, {"score": "masks"}, {"tensor": "tokens"})
    page = made(tmp_path, [tokencut_result(scores, **way)[0] for way in ways])
    said = [a["aria-label"].partition(" from ")[0] for a in page.of("svg", "chart")]
    assert sorted(said) == [
        "CorLoc over blocks, VOC2012, tensor keys; model.pth, skip",
        "CorLoc over blocks, VOC2012, tensor tokens; model.pth, skip",
        "CorLoc over blocks, VOC2012; model.pth, skip",
        "IoU over blocks, VOC2012; model.pth, skip",
    ]
    words = text_of(page)
    assert "TokenCut (3), LOST (1)" in words
    assert "VOC2012, trainval copy LaTeX" in words  # one data set, named once
    assert "LOST, CorLoc all blocks" in words and "TokenCut, IoU" in words


def test_summary_names_the_block_and_that_it_was_chosen(tmp_path, discovery):
    words = text_of(made(tmp_path, discovery))
    assert "VOC2012, all blocks TokenCut, CorLoc, trainval" in words
    assert len(re.findall(r"pth skip(?:less)? block \d+ of 12", words)) == 2
    assert re.search(r"paired over 80 images\. The blocks were chosen on these images", words)
    assert "chosen on the evaluated images, as the paper does" in words  # Table 4
    assert "learning rate chosen" not in words


def test_an_honest_choice_needs_no_allowance(tmp_path):
    rng = np.random.default_rng(0)
    for residual in ("skip", "skipless"):
        scores = scores_by_block(rng, 80)
        put_tokencut(tmp_path / "r", scores, residual=residual, name=residual, select="holdout")
    words = text_of(made(tmp_path, tmp_path / "r"))
    assert "paired over 80 images." in words and "no allowance" not in words
    assert "of 12" not in words


def test_provenance_of_tokencut_has_the_other_choice_and_no_list_of_blocks(tmp_path):
    record = tokencut_result(scores_with_best(61.2), call={"ckpt": "a.pth", "layers": "all"})[0]
    words = text_of(made(tmp_path, [record]))
    honest = record.metrics["chosen"]["holdout"]["corloc"]
    assert f"chosen on holdout: corloc {honest:g}" in words and "chosen on val" not in words
    assert "block 9 degenerate 0" in words and "blocks 12" not in words
    assert "skipbench tokencut --ckpt a.pth --layers all" in words


@pytest.mark.parametrize(
    "odd",
    [
        {"blocks": 3},
        {"blocks": [3, {"block": "x", "corloc": 1.0}, {"block": 1}, {"block": 2, "corloc": None}]},
        {"blocks": {"9": 3}, "chosen": [1]},
        {"block": {"a": [1]}, "chosen": "val"},
        {"blocks": [{"block": b, "corloc": 1.0, "interval": "odd"} for b in (1, 2)]},
    ],
)
def test_odd_blocks_are_no_harm(tmp_path, odd):
    record = tokencut_result(scores_with_best(50.0))[0]
    record.metrics.update(odd)
    assert "50.0" in text_of(made(tmp_path, [record]))


# -- pictures


def sources(page):
    return [a["src"] for a in page.of("img") if "src" in a]


def test_pictures_side_by_side_with_shared_ones_once(tmp_path, pair):
    page = made(tmp_path, pair[0])
    assert len(sources(page)) == 2 * (2 + 2)  # two images: picture, mask, and either prediction
    assert all(source.startswith("data:image/") for source in sources(page))
    alts = [a["alt"] for a in page.of("img") if "src" in a]
    assert alts[:4] == [
        "one: image", "one: ground truth", "one: linear probe, prediction, single, skip, a.pth",
        "one: linear probe, prediction, single, skipless, b.pth",
    ]  # fmt: skip


def test_pictures_of_an_evaluation_without_a_figure(tmp_path):
    result = replace(make_result(evaluation="pca"), metrics={})
    write_result(tmp_path, result, {})
    with_tiles(tmp_path, result, own="pca")
    page = made(tmp_path, tmp_path)
    assert len(sources(page)) == 6 and not page.of("table", "by-class")
    assert "PCA, single" in text_of(page)


def test_large_pictures_become_smaller(tmp_path, pair):
    folder, skip, _ = pair
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / skip.id / "tiles" / "one_prediction.png")
    page = made(tmp_path, folder)
    sizes = [(int(a["width"]), int(a["height"])) for a in page.of("img") if "src" in a]
    assert (640, 480) in sizes
    assert any(source.startswith("data:image/webp") for source in sources(page))


@pytest.mark.parametrize(
    "name", ["../secret.png", "ABSOLUTE", "link.png", "..", "sub/secret.png", "", 7]
)
def test_no_picture_from_outside_the_folder(tmp_path, pair, name):
    folder, skip, _ = pair
    tiles = folder / skip.id / "tiles"
    tile(tmp_path, "secret.png", (1, 2, 3), (31, 37))
    tile(tiles.parent, "secret.png", (1, 2, 3), (31, 37))
    tile(tiles / "sub", "secret.png", (1, 2, 3), (31, 37))
    (tiles / "link.png").symlink_to(tmp_path / "secret.png")
    index = json.loads((tiles / "index.json").read_text())
    index["tiles"][0]["own"] = {
        "prediction": str(tmp_path / "secret.png") if name == "ABSOLUTE" else name
    }
    (tiles / "index.json").write_text(json.dumps(index))
    page = made(tmp_path, folder)
    assert "31" not in {a.get("width") for a in page.of("img")}
    assert "Left out: 1" in text_of(page)


def test_a_folder_of_tiles_that_leads_elsewhere_is_not_read(tmp_path, pair):
    folder, skip, _ = pair
    tiles = folder / skip.id / "tiles"
    shutil.move(tiles, tmp_path / "elsewhere")
    tiles.symlink_to(tmp_path / "elsewhere")
    page = made(tmp_path, folder)
    assert "Left out: 1" in text_of(page) and not any(
        "a.pth" in a.get("alt", "") for a in page.of("img")
    )


def test_a_damaged_picture_is_named_and_left_out(tmp_path, pair):
    folder, skip, _ = pair
    (folder / skip.id / "tiles" / "one_prediction.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    page = made(tmp_path, folder)
    assert len(sources(page)) == 7
    assert f"{skip.id}/tiles/one_prediction.png: left out" in text_of(page)


@pytest.mark.parametrize(
    "index", ["{", "[]", '{"tiles": 3}', '{"tiles": [{"image": "x"}]}', " " * 1_000_001]
)
def test_a_damaged_index_is_named_and_left_out(tmp_path, pair, index):
    folder, skip, _ = pair
    (folder / skip.id / "tiles" / "index.json").write_text(index)
    assert f"{skip.id}/tiles/index.json: not used" in text_of(made(tmp_path, folder))


def test_a_colour_is_a_colour(tmp_path, pair):
    folder, skip, _ = pair
    with_tiles(folder, skip, legend=[["cat", 'red" onload="window.pwned=1']])
    page = made(tmp_path, folder)
    assert "is no colour" in text_of(page)
    assert {a.get("fill") for a in page.of("rect")} - {None} == {"#112233"}


def test_missing_pictures_are_nothing_to_speak_of(tmp_path, pair):
    folder, skip, skipless = pair
    shutil.rmtree(folder / skip.id)
    (folder / skipless.id / "tiles" / "one.png").unlink()
    page = made(tmp_path, folder)
    assert "Left out" not in text_of(page) and len(sources(page)) == 5


def put_tiles(folder, result, images, own, colour, note=""):
    """As an evaluation writes them; the truth has a colour of its own."""
    tiles, index = folder / result.id / "tiles", []
    for name in images:
        shared = {"image": f"{name}.png", "truth": f"{name}_truth.png"}
        tile(tiles, shared["image"])
        tile(tiles, shared["truth"], colour)
        mine = {kind: f"{name}_{kind}.png" for kind in own}
        for file in mine.values():
            tile(tiles, file, (9, 9, 9))
        index.append({"image": name, "shared": shared, "own": mine, "note": note})
    (tiles / "index.json").write_text(json.dumps({"tiles": index, "legend": []}))


def alts(page):
    return [a["alt"] for a in page.of("img") if "src" in a]


def test_pictures_of_tokencut(tmp_path):
    result = put_tokencut(tmp_path, scores_with_best(50.0))
    own = ("box", "eigenvector", "mask")
    put_tiles(tmp_path, result, ["one"], own, (0, 255, 0), note="block 9, IoU 71.0")
    page = made(tmp_path, tmp_path)
    of = "all blocks, skip, model.pth"
    assert alts(page) == [
        "one: image", "one: ground truth", f"one: TokenCut, box found, {of}",
        f"one: TokenCut, eigenvector, {of}", f"one: TokenCut, mask found, {of}",
    ]  # fmt: skip
    assert text_of(page).count("block 9, IoU 71.0") == 3


def test_pictures_of_one_model_made_in_two_ways_are_told_apart(tmp_path):
    scores = scores_with_best(50.0, images=8)
    for facts in ({"tensor": "keys"}, {"tensor": "tokens", "select": "holdout"}):
        result = put_tokencut(tmp_path, scores, data=data_part(), **facts)
        put_tiles(tmp_path, result, ["one"], ["box"], (0, 255, 0))
    assert sorted(alts(made(tmp_path, tmp_path)))[:2] == [
        f"one: TokenCut, box found, all blocks, tensor {tensor}, skip, model.pth"
        for tensor in ("keys", "tokens")
    ]


def of_probe_and_tokencut(folder, data, probed, discovered, truths):
    probe = make_result(data=data)
    write_result(folder, probe, {})
    found = put_tokencut(folder, scores_with_best(50.0, images=8), data=data, score="masks")
    put_tiles(folder, probe, probed, ["prediction"], truths[0])
    put_tiles(folder, found, discovered, ["mask"], truths[1])


def test_pictures_of_two_evaluations_on_other_images_are_not_mixed_up(tmp_path):
    red, green = (255, 0, 0), (0, 255, 0)
    of_probe_and_tokencut(tmp_path, data_part(), ["one", "two"], ["two", "three"], (red, green))
    page = made(tmp_path, tmp_path)
    assert alts(page) == [
        "one: image", "one: ground truth", "one: linear probe, prediction, single, skip, model.pth",
        "two: image", "two: ground truth (linear probe)", "two: ground truth (TokenCut)",
        "two: linear probe, prediction, single, skip, model.pth",
        "two: TokenCut, mask found, all blocks, skip, model.pth",
        "three: image", "three: ground truth",
        "three: TokenCut, mask found, all blocks, skip, model.pth",
    ]  # fmt: skip
    shown = dict(zip(alts(page), sources(page), strict=True))
    assert shown["one: ground truth"] == shown["two: ground truth (linear probe)"]
    assert shown["three: ground truth"] == shown["two: ground truth (TokenCut)"]
    assert shown["one: ground truth"] != shown["three: ground truth"]


def test_one_truth_of_two_evaluations_is_shown_once(tmp_path):
    red = (255, 0, 0)
    of_probe_and_tokencut(tmp_path, data_part(), ["one"], ["one"], (red, red))
    assert [alt for alt in alts(made(tmp_path, tmp_path)) if "truth" in alt] == [
        "one: ground truth"
    ]


def test_many_images_of_one_evaluation_do_not_push_out_the_others(tmp_path):
    probed, discovered = ([f"{kind}{i}" for i in range(90)] for kind in "pt")
    of_probe_and_tokencut(tmp_path, data_part(), probed, discovered, ((1, 2, 3), (3, 2, 1)))
    page = made(tmp_path, tmp_path)
    rows = [a.partition(":")[0] for a in alts(page) if a.endswith(": image")]
    assert sorted(rows) == sorted(f"{kind}{i}" for kind in "pt" for i in range(80))
    assert "20 more images" in text_of(page)


def test_two_lists_of_images_of_one_split_have_a_heading_each(tmp_path):
    for images in (8, 5):
        scores = scores_with_best(50.0, images=images)
        data = data_part(images=images, official=8, partial=images < 8)
        result = put_tokencut(tmp_path, scores, data=data)
        put_tiles(tmp_path, result, ["one"], ["box"], (1, 2, 3))
    page = made(tmp_path, tmp_path)
    assert [text for tag, text in page.texts if tag == "h3" and "images)" in text] == [
        "VOC2012, val (TokenCut, 5 images)", "VOC2012, val (TokenCut, 8 images)"
    ]  # fmt: skip
    assert alts(page).count("one: image") == 2


def test_of_many_records_the_best_are_shown(tmp_path):
    for i in range(20):
        residual = ("skip", "skipless")[i % 2]
        result = make_result(value=float(i), residual=residual, name=f"m{i}")
        write_result(tmp_path, result, {})
        with_tiles(tmp_path, result)
    page = made(tmp_path, tmp_path)
    shown = {a["alt"].rsplit(", ")[-1] for a in page.of("img") if "src" in a and "skip" in a["alt"]}
    assert shown == {f"m{i}" for i in range(12, 20)} and "12 more records" in text_of(page)


def test_pictures_have_what_they_are_filtered_and_sorted_by(tmp_path):
    counts = np.zeros((2, 3, 3), np.int32)
    counts[0, :, 0] = 8, 8, 8  # all background, all right
    counts[1, :, 1] = 4, 4, 8  # a cat, half of it found …
    counts[1, 1, 2] = 4  # … and half of it called a dog
    result = with_counts(tmp_path, counts)
    with_tiles(tmp_path, result, images=("val_000", "val_001", "unknown"))
    page = made(tmp_path, tmp_path)
    rows = page.of("div", "row-of-pictures")
    assert [json.loads(row["data-scores"]) for row in rows] == [
        {result.id: 100.0}, {result.id: 25.0}, {}
    ]  # fmt: skip
    assert [json.loads(row["data-classes"]) for row in rows] == [["background"], ["cat", "dog"], []]
    options = [a["value"] for a in page.of("option")]
    assert {"", "background", "cat", "dog", "lowest", result.id, "truth"} <= set(options)
    assert "difference" in options  # of the overlay; that of two models takes two
    assert options.count("difference") == 1


def test_pictures_without_counts_cannot_be_sorted(tmp_path, pair):
    for path in pair[0].glob("*.npz"):
        path.unlink()
    page = made(tmp_path, pair[0])
    assert len(sources(page)) == 8 and not page.of("select", "order")
    assert page.of("select", "overlay")


# -- what it keeps out


def test_everything_from_files_is_text(tmp_path):
    hostile_records(tmp_path / "results")
    page = made(tmp_path, tmp_path / "results", title=SCRIPT)
    tags = {tag for tag, _ in page.tags}
    assert len(page.of("script")) == 1 and not tags & {"iframe", "object", "embed", "base", "link"}
    assert not [
        a for _, a in page.tags if any(name.startswith("on") or name == "style" for name in a)
    ]
    addresses = [a[name] for _, a in page.tags for name in ("href", "src") if name in a]
    assert all(address.startswith(("#", "data:image/")) for address in addresses)
    assert all(name in page.text() for name in HOSTILE[:6])
    assert (
        "turned\\u202earound\\x1b[31m\\x00\\u200b" in page.text()
        and "half \\udcff of" in page.text()
    )


def test_policy_lets_nothing_run_but_the_pages_own_script(tmp_path):
    page = made(tmp_path, [make_result()])
    (policy,) = [a["content"] for a in page.of("meta") if "http-equiv" in a]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy


def test_long_names_are_cut_in_the_middle():
    assert short("a" * 30 + "b" * 30 + "c" * 30, 21) == "a" * 10 + "…" + "c" * 10
    assert short("as it is") == "as it is"


# -- robust


def test_records_of_every_odd_kind(tmp_path):
    records = [
        replace(make_result(), id="unknown-1", evaluation="astrology"),
        make_result(epoch=None, optimizer=None, depth=None, blocks=[3], layers="3", name="bare"),
        replace(make_result(name="x"), metrics={"headline": "miou", "miou": None}, id="no-figure"),
        replace(
            make_result(name="y"), metrics={"headline": "miou", "miou": float("nan")}, id="nan"
        ),
        make_result(name="z", metrics={"rates": [7, {"rate": 0}, {}], "per_class": 3}),
        make_result(name="w", metrics={"per_class": {"a": "b", "c": True}}),
    ]
    words = text_of(made(tmp_path, records))
    assert "linear probe (5), astrology (1)" in words


def test_one_record_alone(tmp_path):
    page = made(tmp_path, make_result(value=12.3))
    words = text_of(page)
    assert "12.3" in words and "Only" not in words
    assert not page.of("article", "comparison") and not page.of("table", "by-class")


def test_damaged_and_newer_records_are_named(tmp_path, pair):
    folder, skip, _ = pair
    (folder / "broken.json").write_text("{")
    newer = json.loads((folder / f"{skip.id}.json").read_text()) | {"schema": 99}
    (folder / "newer.json").write_text(json.dumps(newer))
    odd = json.loads((folder / f"{skip.id}.json").read_text()) | {"dataset": None, "id": "odd"}
    (folder / "odd.json").write_text(json.dumps(odd))
    words = text_of(made(tmp_path, folder))
    assert "Left out: 3" in words and "broken.json: damaged record" in words
    assert "newer.json: a record of schema 99" in words and "odd.json: damaged record" in words
    assert str(folder) not in words
    with pytest.raises(DataError):
        made(tmp_path, folder, strict=True)


def test_arrays_that_are_gone_leave_the_intervals(tmp_path, pair):
    folder, skip, _ = pair
    (folder / f"{skip.id}.npz").unlink()
    words = text_of(made(tmp_path, folder))
    assert "paired over" not in words and "above skip; the intervals" in words


@pytest.mark.parametrize("identity", ["../../escape", "a/b", ""])
def test_an_id_is_no_path(tmp_path, identity):
    write_result(tmp_path, make_result(), {})
    good = make_result(name="good")
    write_result(tmp_path, good, {})
    (bad,) = [p for p in tmp_path.glob("*.json") if p.stem != good.id]
    bad.write_text(json.dumps(json.loads(bad.read_text()) | {"id": identity}))
    assert "Left out: 1" in text_of(made(tmp_path, tmp_path))


def test_the_same_page_from_the_same_records(tmp_path, pair):
    first, second = (report(pair[0], tmp_path / name).read_bytes() for name in ("1.html", "2.html"))
    assert first == second


def test_five_hundred_records(tmp_path):
    records = [
        make_result(
            value=float(i % 90), epoch=i, residual=("skip", "skipless")[i % 2], name=f"m{i}"
        )
        for i in range(500)
    ]
    page = made(tmp_path, records)
    assert len(page.of("details", "record")) == 500 and len(page.of("table")) < 500 * 12


# -- the command


def test_command_line(cli, tmp_path, pair):
    page = tmp_path / "new" / "folder" / "page.html"
    done = cli("report", pair[0], "-o", page, "--title", "My models", "--where", "residual=skip")
    assert done.exit_code == 0, done.output
    assert str(page) in done.stdout and " kB" in done.stdout
    words = text_of(Elements(page.read_text()))
    assert "My models" in words and "a.pth" in words and "b.pth" not in words


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["EMPTY"], 2, "no records in"),
        (["nowhere"], 4, "no results at nowhere"),
        (["RESULTS", "--where", "residual=neither"], 2, "no records match --where"),
        (["RESULTS", "--where", "colour=red"], 2, "give FACT=VALUE"),
        (["RESULTS", "-o", "EMPTY"], 2, "is a folder"),
        (["RESULTS", "-o", "FILE/page.html"], 7, "cannot write in"),
        (["RESULTS", "BROKEN", "--strict"], 4, "damaged record"),
    ],
)
def test_exit_codes(cli, tmp_path, pair, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "broken.json").write_text("{")
    places = {
        "EMPTY": "empty",
        "RESULTS": "results",
        "BROKEN": "broken.json",
        "FILE/page.html": "file/page.html",
    }
    done = cli("report", *[places.get(a, a) for a in arguments])
    assert (done.exit_code, words in done.output) == (code, True), done.output
    assert not list(tmp_path.glob("*.html"))


def test_a_failed_page_leaves_the_old_one(tmp_path, pair, monkeypatch):
    path = report(pair[0], tmp_path / "r.html")
    before = path.read_bytes()
    monkeypatch.setattr("skipbench.files.os.fsync", _full_disk)
    with pytest.raises(ResourceError, match="disk full"):
        report(pair[0], path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.glob("*.html")] == ["r.html"]


def _full_disk(_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("failure", [False, OSError("no display")])
def test_open_never_fails_the_command(cli, tmp_path, pair, monkeypatch, failure):
    def no_browser(address):
        assert address.startswith("file:///")
        if failure:
            raise failure
        return False

    monkeypatch.setattr("webbrowser.open", no_browser)
    done = cli("report", pair[0], "-o", tmp_path / "r.html", "--open")
    assert done.exit_code == 0 and "open the page yourself" in done.output


def test_no_records_from_python(tmp_path):
    with pytest.raises(UsageError, match="no record"):
        report([], tmp_path / "r.html")
