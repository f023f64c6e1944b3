"""Figures of a segmentation, against plain loops."""

import numpy as np
import pytest

from skipbench.evaluations.segmentation.run import segmentation_metrics


def test_figures_are_those_of_plain_loops():
    rng = np.random.default_rng(0)
    true = rng.integers(5, 50, (6, 3))
    right = rng.integers(0, 5, (6, 3))
    called = right + rng.integers(0, 9, (6, 3))
    counts = np.stack([right, called, true], axis=1)
    counts[:, :, 2] = 0  # a class that is nowhere
    found = segmentation_metrics(counts, ["a", "b", "c"])
    iou = {}
    for c, name in enumerate("ab"):
        r, p, t = counts[:, :, c].sum(0)
        iou[name] = 100 * r / (p + t - r)
    assert found["per_class"] == pytest.approx({**iou, "c": None})
    assert found["absent_classes"] == ["c"] and found["headline"] == "miou"
    assert found["miou"] == pytest.approx(sum(iou.values()) / 2)
    assert segmentation_metrics(counts, "abc", "zero")["miou"] == pytest.approx(
        sum(iou.values()) / 3
    )
    low, high = found["interval"]
    assert low < found["miou"] < high
    total = counts.sum(0)
    assert found["pixel_accuracy"] == pytest.approx(100 * total[0].sum() / total[2].sum())
    assert found["mean_accuracy"] == pytest.approx(
        np.mean([100 * total[0, c] / total[2, c] for c in range(2)])
    )
    assert found["weighted_iou"] == pytest.approx(
        sum(total[2, c] * iou["ab"[c]] for c in range(2)) / total[2].sum()
    )
    assert segmentation_metrics(counts[:1], "abc")["interval"] is None


def test_a_class_that_is_only_called():
    counts = np.array([[[4, 0], [4, 6], [10, 0]]] * 2)
    found = segmentation_metrics(counts, ["a", "b"])
    assert found["absent_classes"] == ["b"] and found["per_class"] == {"a": 40.0, "b": 0.0}
    assert found["miou"] == 20
