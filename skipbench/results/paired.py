"""Two models on the same images: a paired bootstrap of the difference of their scores.

Both are scored on the same resamples of the images, so the difficulty of an image cancels: two
scores with overlapping intervals may still differ by more than chance.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from skipbench.errors import NumbersError, UsageError, count_of
from skipbench.metrics import intervals
from skipbench.metrics.intervals import RESAMPLES, SIGNIFICANT
from skipbench.metrics.means import share_percent
from skipbench.metrics.segmentation import LEFT_OUT, class_iou, miou_percent
from skipbench.records import Result
from skipbench.results.entries import differing
from skipbench.results.read import Stored
from skipbench.results.scores import Score


@dataclass(frozen=True)
class Move:
    """Of a class or an image. In percent; None without a score."""

    name: str
    a: float | None
    b: float | None
    difference: float | None
    interval: tuple[float, float] | None = None
    effect: float | None = None  # of an image: points by which it changes the whole difference


@dataclass(frozen=True)
class Paired:
    """B against A; every difference is B minus A."""

    a: tuple[Stored, ...] = field(repr=False)  # one for each seed
    b: tuple[Stored, ...] = field(repr=False)
    metric: str
    images: int  # in both
    only_a: int
    only_b: int
    a_value: float  # on the common images
    b_value: float
    difference: float
    interval: tuple[float, float]
    p_value: float
    classes: tuple[Move, ...] = field(repr=False)  # largest difference first
    moved: tuple[Move, ...] = field(repr=False)  # images, largest effect first
    differs: dict[str, list[Any]]  # settings that are not the same, with both values

    def to_json(self) -> dict[str, Any]:
        plain = {k: v for k, v in vars(self).items() if k not in ("a", "b", "classes", "moved")}
        return {
            "a": [stored.result.id for stored in self.a],
            "b": [stored.result.id for stored in self.b],
            **plain,
            "classes": [asdict(move) for move in self.classes],
            "moved": [asdict(move) for move in self.moved],
        }


def paired(
    a: Stored | Sequence[Stored],
    b: Stored | Sequence[Stored],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Paired:
    """On the images that both have. Of several seeds, the mean score."""
    sides = [(side,) if isinstance(side, Stored) else tuple(side) for side in (a, b)]
    first_a, first_b = (side[0].result for side in sides)
    ids = f"{first_a.id} and {first_b.id}"
    _require_one_measure(ids, first_a, first_b)
    names_a, names_b = first_a.dataset["names"], set(first_b.dataset["names"])
    common = [name for name in names_a if name in names_b]
    if len(common) < 2:
        raise UsageError(f"{ids} have {count_of(len(common), 'image')} in common")
    one, other = (
        ModelCounts(side[0].result, [_counts(stored, common) for stored in side]) for side in sides
    )
    if np.isnan(one.value + other.value):
        raise NumbersError(f"{ids}: no pixel of the common images is labelled")
    weights = intervals.resample_weights(len(common), resamples, seed)
    drawn_a, drawn_b = one.resampled(weights), other.resampled(weights)
    differences = other.score(drawn_b) - one.score(drawn_a)
    return Paired(
        a=sides[0],
        b=sides[1],
        metric=first_a.metrics["headline"],
        images=len(common),
        only_a=len(names_a) - len(common),
        only_b=len(names_b) - len(common),
        a_value=one.value,
        b_value=other.value,
        difference=other.value - one.value,
        interval=intervals.interval(differences),
        p_value=p_of_difference(one, other, differences),
        classes=_classes(one, other, drawn_a, drawn_b),
        moved=_images(common, one, other),
        differs=_settings_that_differ(*sides) | _labels_that_differ(one, other),
    )


def significant(ends: tuple[float, float], p_value: float) -> bool:
    low, high = ends
    return not low <= 0 <= high and p_value < SIGNIFICANT


def p_of_difference(one: "ModelCounts", other: "ModelCounts", differences: np.ndarray) -> float:
    """differences: of the resamples."""
    if one.is_hits and other.is_hits:
        return intervals.sign_test(one.counts[0][:, 0], other.counts[0][:, 0])
    if one.is_by_image and other.is_by_image:  # with few images, resamples are overconfident
        return intervals.flip_test(other.by_image - one.by_image)
    return intervals.p_value(differences)


def _require_one_measure(ids: str, a: Result, b: Result) -> None:
    for what, first, second in (
        ("measure", a.metrics.get("headline"), b.metrics.get("headline")),
        ("data set", a.dataset["name"], b.dataset["name"]),
        ("number of classes", a.dataset["classes"], b.dataset["classes"]),
    ):
        if first != second:
            raise UsageError(f"{ids} differ in {what}: {first} and {second}")
        if first is None:
            raise UsageError(f"{a.id} has no score")


def _settings_that_differ(a: Sequence[Stored], b: Sequence[Stored]) -> dict[str, list[Any]]:
    """Those that may explain the difference."""
    ways, scores = [], (Score(a[0]), Score(b[0]))
    rotary = all(score.model["rope_keys"] for score in scores)
    for score in scores:
        split = {"split": score.facts["split"]}
        trained = {k: v for k, v in score.images.items() if "trained" in k}
        seed = {"seed": score.facts["seed"]} if len(a) == len(b) == 1 else {}
        keys = {"rope_keys": score.model["rope_keys"]} if rotary else {}
        ways.append({**score.settings, **split, **trained, **score.computing, **seed, **keys})
    return differing(ways)


def _labels_that_differ(one: "ModelCounts", other: "ModelCounts") -> dict[str, list[Any]]:
    same = one.labelled == other.labelled
    what = "labelled pixels" if one.has_classes else "images scored"
    return {} if same else {what: [one.labelled, other.labelled]}


def _counts(stored: Stored, common: Sequence[str]) -> np.ndarray:
    """(images, …), in the order of the common images."""
    place = {name: i for i, name in enumerate(stored.result.dataset["names"])}
    return stored.counts()[[place[name] for name in common]]


class ModelCounts:
    """Counts by image of one model, for each of its seeds:

    (images, 3, classes)   pixels right, predicted and true; scored by mIoU
    (images, 2)            a score, and how often it was taken; scored by their ratio
    """

    def __init__(self, result: Result, counts: Sequence[np.ndarray]) -> None:
        """result: of the first seed."""
        self.counts = counts
        self.classes = list(result.metrics.get("per_class") or {})
        self.has_classes = counts[0].ndim == 3
        if counts[0].shape[1] != (3 if self.has_classes else 2):
            raise UsageError(f"{result.id}: a {result.metrics['headline']} cannot be compared")
        self._absent = result.protocol.get("absent_classes", LEFT_OUT)

    def _percent(self, summed: np.ndarray) -> np.ndarray:
        return miou_percent(summed, self._absent) if self.has_classes else share_percent(summed)

    def score(self, summed: Sequence[np.ndarray]) -> np.ndarray:
        """(…) mean over seeds, in percent. summed: of each seed, (…, 3, classes) or (…, 2)."""
        return np.mean([self._percent(one) for one in summed], axis=0)

    def score_by_class(self, summed: Sequence[np.ndarray]) -> np.ndarray:
        """(…, classes)"""
        return 100 * np.mean([class_iou(one) for one in summed], axis=0)

    def resampled(self, weights: np.ndarray) -> list[np.ndarray]:
        return [intervals.resample(counts, weights) for counts in self.counts]

    @cached_property
    def totals(self) -> list[np.ndarray]:
        return [intervals.total(counts) for counts in self.counts]

    @cached_property
    def value(self) -> float:
        return float(self.score(self.totals))

    @property
    def by_image(self) -> np.ndarray:
        """Each image's own score; NaN without a labelled pixel."""
        return self.score(self.counts)

    @property
    def effects(self) -> np.ndarray:
        """By image: how much lower the score would be without it."""
        without = [intervals.leave_one_out(counts, self._percent) for counts in self.counts]
        return self.value - np.mean(without, axis=0)

    @property
    def labelled(self) -> tuple[int, ...]:
        """Pixels of each class in the masks, or the number of scored images."""
        if self.has_classes:
            return tuple(self.totals[0][-1].ravel().tolist())
        return (int((self.counts[0][:, 1] > 0).sum()),)

    @property
    def is_by_image(self) -> bool:
        """A mean over images, each scored once or not at all."""
        if self.has_classes or len(self.counts) > 1:
            return False
        return bool(np.isin(self.counts[0][:, 1], (0, 1)).all())

    @property
    def is_hits(self) -> bool:
        """Each image right or wrong, once."""
        hits, taken = self.counts[0][:, 0], self.counts[0][:, 1]
        return self.is_by_image and bool(np.isin(hits, (0, 1)).all() and taken.all())


def _classes(
    one: ModelCounts, other: ModelCounts, drawn_a: list[np.ndarray], drawn_b: list[np.ndarray]
) -> tuple[Move, ...]:
    """drawn_a, drawn_b: resampled counts. Empty without scores by class."""
    if not one.has_classes or one.classes != other.classes:
        return ()
    if len(one.classes) != one.counts[0].shape[2]:
        return ()
    drawn = other.score_by_class(drawn_b) - one.score_by_class(drawn_a)
    by_class = (side.score_by_class(side.totals) for side in (one, other))
    moves = []
    for i, (name, x, y) in enumerate(zip(one.classes, *by_class, strict=True)):
        known = not np.isnan(x + y) and not np.isnan(drawn[:, i]).all()
        ends = intervals.interval(drawn[:, i]) if known else None
        moves.append(_move(name, x, y, interval=ends))
    return tuple(
        sorted(moves, key=lambda m: (m.difference is None, -abs(m.difference or 0), m.name))
    )


def _images(names: Sequence[str], one: ModelCounts, other: ModelCounts) -> tuple[Move, ...]:
    """By effect: an image of a rare class matters more than its own score tells, one with a few
    stray pixels less."""
    effects = np.nan_to_num(other.effects - one.effects)
    scores = zip(names, one.by_image, other.by_image, effects, strict=True)
    moves = [_move(name, a, b, effect=float(effect)) for name, a, b, effect in scores]
    return tuple(sorted(moves, key=lambda move: (-abs(move.effect or 0), move.name)))


def _move(name: str, a: float, b: float, **more: Any) -> Move:
    x, y = (None if np.isnan(value) else float(value) for value in (a, b))
    return Move(name, x, y, None if x is None or y is None else y - x, **more)
