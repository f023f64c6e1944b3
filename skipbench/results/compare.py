"""Two models on the same images: is one better, by how much, and where?

Both are scored on the same resamples of the images they share, so what is hard about an image
cancels. Two figures whose own intervals overlap may well differ by more than chance; this tells.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from skipbench.errors import DataError, NumbersError, UsageError
from skipbench.metrics.boxes import share_percent
from skipbench.metrics.intervals import (
    RESAMPLES,
    flip_test,
    interval,
    leave_one_out,
    p_value,
    resample,
    resample_weights,
    sign_test,
    total,
)
from skipbench.metrics.segmentation import LEFT_OUT, class_iou, miou_percent
from skipbench.records import Result
from skipbench.results.scores import Entry, Score, differing, entries
from skipbench.results.read import Source, Stored, pick, read_results, selected_on

log = logging.getLogger("skipbench")

ScoreFunction = Callable[[np.ndarray], np.ndarray]

SHARES = ("corloc", "iou", "coherence")  # means over images: a score and a one for each


@dataclass(frozen=True)
class Move:
    """A class or an image. In percent; None where it has no score."""

    name: str
    a: float | None
    b: float | None
    difference: float | None
    interval: tuple[float, float] | None = None
    effect: float | None = None  # of an image: points of the whole difference that hang on it


@dataclass(frozen=True)
class Paired:
    """B against A; every difference is B minus A."""

    a: tuple[Stored, ...] = field(repr=False)  # one for each seed
    b: tuple[Stored, ...] = field(repr=False)
    metric: str
    images: int  # that both have
    only_a: int
    only_b: int
    a_value: float  # on the common images
    b_value: float
    difference: float
    interval: tuple[float, float]
    p_value: float
    classes: tuple[Move, ...] = field(repr=False)  # those that moved most first
    moved: tuple[Move, ...] = field(repr=False)  # images, those that moved the whole most first
    differs: dict[str, list[Any]]  # settings in which the two were not made alike

    def to_json(self) -> dict[str, Any]:
        plain = {k: v for k, v in vars(self).items() if k not in ("a", "b", "classes", "moved")}
        return {
            "a": [stored.result.id for stored in self.a],
            "b": [stored.result.id for stored in self.b],
            **plain,
            "classes": [asdict(move) for move in self.classes],
            "moved": [asdict(move) for move in self.moved],
        }


def compare(
    a: Source,
    b: Source,
    *,
    results: Source | Iterable[Source] = "results",
    resamples: int = RESAMPLES,
    seed: int = 0,
    select: str | None = None,
) -> list[Paired]:
    """`skipbench compare`: one comparison for each evaluation that both have.

    a, b: a Result, an id, the beginning of one, the name of a checkpoint, a folder or file of
    records; results: where they were written; select: "val" or "holdout", where the learning rate
    (of a probe) or the block (of TokenCut) of their figures was chosen.
    """
    there = cache(lambda: read_results(results))  # once, if at all
    sides = [_records(name, there) for name in (a, b)]
    if select:
        sides = [selected_on(side, select) for side in sides]
    figures = [entries(side) for side in sides]
    for name, told in zip((a, b), figures, strict=True):
        if not told:
            raise UsageError(f"{name}: no figure to compare; its records are of pictures alone")
    pairs = _pairs(*figures)
    found, trouble = [], None
    for pair in pairs:
        sides = [[figure.stored for figure in entry.figures] for entry in pair]
        try:
            found.append(paired(*sides, resamples=resamples, seed=seed))
        except DataError as error:  # one without counts is no reason to hide the others
            trouble = error
            if len(pairs) > 1:
                log.warning("left out: %s", error)
    if trouble and not found:
        raise trouble
    return found


def _records(name: Source, there: Callable[[], list[Stored]]) -> list[Stored]:
    if isinstance(name, Result):  # its counts lie where it was written
        return pick(there(), name.id)
    if not isinstance(name, str):
        return read_results(name)
    path = Path(name).expanduser()
    if path.suffix == ".json" or path.is_dir():
        found = read_results(path)
        if found:
            return found
    return pick(there(), name)


def _pairs(a: Sequence[Entry], b: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Two entries are compared whatever they are; of several, those of one kind. None with
    itself."""
    if [_which(entry) for entry in a] == [_which(entry) for entry in b]:
        raise UsageError("A and B are the same records: give two that differ")
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]

    kinds = ["evaluation", "dataset", "split", "features"]
    if all(len({entry.facts["checkpoint"] for entry in side}) > 1 for side in (a, b)):
        kinds.append("checkpoint")  # two folders of several models each

    def kind(entry: Entry) -> list[str]:
        return [str(entry.facts[name]) for name in kinds]

    found = [
        (x, y)
        for x in a
        for y in b
        if kind(x) == kind(y)
        and not differing([x.first.settings, y.first.settings])
        and _which(x) != _which(y)
    ]
    if not found:
        raise UsageError(
            "A and B have no evaluation in common (same data set, layers and settings).\n"
            "Give the ids of two records to compare them all the same: `skipbench results list`."
        )
    return sorted(found, key=lambda pair: kind(pair[0]))


def _which(entry: Entry) -> list[str]:
    return [str(figure.stored.path) for figure in entry.figures]


def paired(
    a: Stored | Sequence[Stored],
    b: Stored | Sequence[Stored],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Paired:
    """Paired bootstrap over the images that both have. Of several seeds, the mean score."""
    ours = (a,) if isinstance(a, Stored) else tuple(a)
    theirs = (b,) if isinstance(b, Stored) else tuple(b)
    _require_one_measure(ours[0].result, theirs[0].result)
    names_a, names_b = (side[0].result.dataset["names"] for side in (ours, theirs))
    both = set(names_b)
    common = [name for name in names_a if name in both]
    if len(common) < 2:
        raise UsageError(f"{_ids(ours, theirs)} have {len(common)} images in common")
    one, other = (
        Side(side[0].result, [_counts(stored, common) for stored in side])
        for side in (ours, theirs)
    )
    if np.isnan(one.value + other.value):
        raise NumbersError(f"{_ids(ours, theirs)}: no pixel of the common images is labelled")
    weights = resample_weights(len(common), resamples, seed)
    drawn_a, drawn_b = one.resampled(weights), other.resampled(weights)
    drawn = drawn_b.value - drawn_a.value
    return Paired(
        a=ours,
        b=theirs,
        metric=ours[0].result.metrics["headline"],
        images=len(common),
        only_a=len(names_a) - len(common),
        only_b=len(names_b) - len(common),
        a_value=one.value,
        b_value=other.value,
        difference=other.value - one.value,
        interval=interval(drawn),
        p_value=chance_of(one, other, drawn),
        classes=_classes(one, other, drawn_a, drawn_b),
        moved=_images(common, one, other),
        differs=_differs(ours, theirs) | _other_labels(one, other),
    )


def chance_of(one: "Side", other: "Side", drawn: np.ndarray) -> float:
    """p of the difference. drawn: its resamples."""
    if one.is_hits and other.is_hits:
        return sign_test(one.counts[0][:, 0], other.counts[0][:, 0])
    if one.is_by_image and other.is_by_image:  # a few images make the resamples too sure
        return flip_test(other.by_image - one.by_image)
    return p_value(drawn)


def _require_one_measure(a: Result, b: Result) -> None:
    for what, first, second in (
        ("measure", a.metrics.get("headline"), b.metrics.get("headline")),
        ("data set", a.dataset["name"], b.dataset["name"]),
        ("number of classes", a.dataset["classes"], b.dataset["classes"]),
    ):
        if first != second:
            raise UsageError(f"{a.id} and {b.id} differ in {what}: {first} and {second}")
        if first is None:
            raise UsageError(f"{a.id} has no figure")
    score_of(a)  # refuses what cannot be compared


def _differs(ours: Sequence[Stored], theirs: Sequence[Stored]) -> dict[str, list[Any]]:
    """What else is not alike, and may be what the difference is of."""
    ways = []
    for figure in (Score(ours[0]), Score(theirs[0])):
        trained = {k: v for k, v in figure.images.items() if "trained" in k}
        split = {"split": figure.facts["split"]}
        seed = {"seed": figure.facts["seed"]} if len(ours) == len(theirs) == 1 else {}
        ways.append({**figure.settings, **split, **trained, **figure.computing, **seed})
    return differing(ways)


def _other_labels(one: "Side", other: "Side") -> dict[str, list[Any]]:
    same = one.labelled == other.labelled
    what = "images scored" if one.counts[0].ndim == 2 else "labelled pixels"
    return {} if same else {what: [one.labelled, other.labelled]}


def _ids(*sides: Sequence[Stored]) -> str:
    return " and ".join(side[0].result.id for side in sides)


class Side:
    """The counts of one model on the images of a comparison, and what follows from them."""

    def __init__(self, result: Result, counts: Sequence[np.ndarray]) -> None:
        """result: of the first seed; counts: of each."""
        self.result, self.counts = result, counts
        self.classes = list(result.metrics.get("per_class") or {})
        self.score = score_of(result)

    @property
    def labelled(self) -> tuple[int, ...]:
        """Pixels of each class in the masks, or images: of the same masks, the same."""
        counts = self.counts[0]
        if counts.ndim == 2:  # an image may be scored several times, each with another block
            return (int((counts[:, 1] > 0).sum()),)
        return tuple(total(counts)[-1].ravel().tolist())

    @property
    def is_by_image(self) -> bool:
        """The mean of scores of images, of each once or not at all."""
        counts = self.counts[0]
        return (
            len(self.counts) == 1 and counts.ndim == 2 and bool(np.isin(counts[:, 1], (0, 1)).all())
        )

    @property
    def is_hits(self) -> bool:
        """Each image right or wrong, once."""
        counts = self.counts[0]
        return self.is_by_image and bool(np.isin(counts[:, 0], (0, 1)).all() and counts[:, 1].all())

    def _mean(self, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return np.mean([of(counts) for counts in self.counts], axis=0)

    @cached_property
    def value(self) -> float:
        return float(self._mean(lambda counts: self.score(total(counts))))

    @property
    def by_image(self) -> np.ndarray:
        """Each image by its own score; NaN without a labelled pixel."""
        return self._mean(self.score)

    @property
    def effects(self) -> np.ndarray:
        """By image: how much lower the score would be without it."""
        return self.value - self._mean(lambda counts: leave_one_out(counts, self.score))

    @property
    def by_class(self) -> np.ndarray:
        return 100 * self._mean(lambda counts: class_iou(total(counts)))

    def resampled(self, weights: np.ndarray) -> "Drawn":
        return Drawn([resample(counts, weights) for counts in self.counts], self.score)


@dataclass(frozen=True)
class Drawn:
    """Summed counts of resamples, for each seed."""

    summed: Sequence[np.ndarray]
    score: ScoreFunction

    @property
    def value(self) -> np.ndarray:
        """(resamples,)"""
        return np.mean([self.score(summed) for summed in self.summed], axis=0)

    @property
    def by_class(self) -> np.ndarray:
        """(resamples, classes)"""
        return 100 * np.mean([class_iou(summed) for summed in self.summed], axis=0)


def score_of(result: Result) -> ScoreFunction:
    """Summed counts → percent. mIoU: (…, 3, classes); CorLoc and IoU by image: (…, 2)."""
    if result.metrics["headline"] in SHARES:
        return share_percent
    if result.metrics["headline"] != "miou":
        raise UsageError(f"{result.id}: a {result.metrics['headline']} cannot be compared")
    absent = result.protocol.get("absent_classes", LEFT_OUT)
    return lambda summed: miou_percent(summed, absent)


def _counts(stored: Stored, common: Sequence[str]) -> np.ndarray:
    """(images, …), in the order of the common images."""
    place = {name: i for i, name in enumerate(stored.result.dataset["names"])}
    return stored.counts()[[place[name] for name in common]]


def _classes(one: Side, other: Side, drawn_a: Drawn, drawn_b: Drawn) -> tuple[Move, ...]:
    """None where the figure is not one of classes."""
    counts = one.counts[0]
    if counts.ndim != 3 or one.classes != other.classes or len(one.classes) != counts.shape[2]:
        return ()
    drawn = drawn_b.by_class - drawn_a.by_class
    moves = []
    for i, (name, x, y) in enumerate(zip(one.classes, one.by_class, other.by_class, strict=True)):
        ends = None if np.isnan(x + y) or np.isnan(drawn[:, i]).all() else interval(drawn[:, i])
        moves.append(_move(name, x, y, ends))
    return _largest_first(moves)


def _images(names: Sequence[str], one: Side, other: Side) -> tuple[Move, ...]:
    """A picture of a rare class moves the whole more than its own score may tell, and one with a
    few stray pixels less."""
    effects = np.nan_to_num(other.effects - one.effects)
    moves = [
        replace(_move(name, a, b), effect=float(effect))
        for name, a, b, effect in zip(names, one.by_image, other.by_image, effects, strict=True)
    ]
    return tuple(sorted(moves, key=lambda move: (-abs(move.effect or 0), move.name)))


def _move(name: str, a: float, b: float, ends: tuple[float, float] | None = None) -> Move:
    x, y = (None if np.isnan(value) else float(value) for value in (a, b))
    return Move(name, x, y, None if x is None or y is None else y - x, ends)


def _largest_first(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Those without a difference last."""
    return tuple(
        sorted(moves, key=lambda m: (m.difference is None, -abs(m.difference or 0), m.name))
    )
