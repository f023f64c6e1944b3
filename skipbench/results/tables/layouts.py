"""The layouts of the paper's tables, as data, and its published numbers.

table2    linear probe: features and optimizer against data set, epochs and variant
table3    linear probe: variant and depth against data set
table4    TokenCut: variant and depth against data set
figure3   TokenCut: optimizer against data set, epochs and variant
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

RUNS = ((300, "skip"), (300, "skipless"), (200, "skipless"))
DEPTHS = (("skip", 12), ("skipless", 12), ("skipless", 11), ("skipless", 10), ("skipless", 9))

Values = tuple[Any, ...]  # of the facts on an axis


@dataclass(frozen=True)
class Layout:
    """Which facts stand on which axis, and what the paper has there."""

    name: str
    label: str  # as the paper calls it
    title: str
    evaluation: str
    rows: tuple[str, ...]  # facts
    columns: tuple[str, ...]  # the first is the group whose best score is bold
    paper_rows: tuple[Values, ...]
    paper_columns: tuple[Values, ...]
    usual: Mapping[str, Any] = field(default_factory=dict)  # facts on neither axis, in the paper
    best_of_blocks: bool = False  # the paper reports the best block
    metric: str = "miou"
    notes: tuple[str, ...] = ()  # on the published numbers

    def place(self, facts: Mapping[str, Any]) -> tuple[Values, Values]:
        """Row and column."""
        row = tuple(facts[fact] for fact in self.rows)
        return row, tuple(facts[fact] for fact in self.columns)

    def usual_at(self, row: Values, fact: str) -> Any:
        """The paper's value of a fact that is on neither axis; the epoch may depend on the row."""
        value = self.usual[fact]
        return value.get(row, None) if isinstance(value, Mapping) else value


def _runs(*datasets: str) -> tuple[Values, ...]:
    return tuple((dataset, *run) for dataset in datasets for run in RUNS)


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(
            name="table2",
            label="Table 2",
            title="Linear-probe segmentation, mIoU in percent",
            evaluation="probe",
            rows=("features", "optimizer"),
            columns=("dataset", "epoch", "residual"),
            paper_rows=tuple((f, o) for f in ("single", "multiscale") for o in ("AdamW", "SOAP")),
            paper_columns=_runs("voc", "cocostuff", "ade20k"),
            usual={"depth": 12},
        ),
        Layout(
            name="table3",
            label="Table 3",
            title="Linear-probe segmentation by depth, mIoU in percent",
            evaluation="probe",
            rows=("residual", "depth"),
            columns=("dataset",),
            paper_rows=DEPTHS,
            paper_columns=(("voc",), ("cocostuff",), ("ade20k",)),
            usual={
                "features": "multiscale",
                "optimizer": "AdamW",
                "epoch": {row: 300 if row[0] == "skip" else 200 for row in DEPTHS},
            },
            notes=(
                "the paper's text gives 200 epochs for Table 3; its 12-block rows are Table 2's "
                "multiscale AdamW figures, skip at 300 epochs and skipless at 200",
            ),
        ),
        Layout(
            name="table4",
            label="Table 4",
            title="TokenCut object discovery by depth, CorLoc in percent",
            evaluation="tokencut",
            rows=("residual", "depth"),
            columns=("dataset",),
            paper_rows=DEPTHS,
            paper_columns=(("voc",), ("coco20k",)),
            usual={
                "method": "tokencut",
                "optimizer": "AdamW",
                "epoch": {row: 300 if row[1] == 12 else 200 for row in DEPTHS},
            },
            best_of_blocks=True,
            metric="corloc",
            notes=(
                "the paper's text gives 200 epochs for Table 4; its 12-block skipless figures are "
                "those of Figure 3 at 300",
            ),
        ),
        Layout(
            name="figure3",
            label="Figure 3",
            title="TokenCut object discovery, CorLoc in percent",
            evaluation="tokencut",
            rows=("optimizer",),
            columns=("dataset", "epoch", "residual"),
            paper_rows=(("AdamW",), ("SOAP",)),
            paper_columns=_runs("voc", "coco20k"),
            usual={"method": "tokencut", "depth": 12},
            best_of_blocks=True,
            metric="corloc",
        ),
    )
}


@cache
def published() -> Mapping[tuple[str, Values, Values], float]:
    """(layout, row, column) → the number that the paper prints there."""
    text = (files("skipbench.results") / "facts" / "paper.csv").read_text()
    found = {}
    for line in csv.DictReader(text.splitlines()):
        facts: dict[str, Any] = {**line, "depth": int(line["depth"])}
        facts["epoch"] = int(line["epoch"]) if line["epoch"] else None
        layout = LAYOUTS[line["layout"]]
        found[layout.name, *layout.place(facts)] = float(line["value"])
    return found
