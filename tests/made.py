"""Records made by hand: the paper's own figures, and small ones with counts by image."""

import csv
import hashlib
import json
from dataclasses import replace
from importlib.resources import files

import numpy as np

from skipbench.metrics.means import cross_chosen, share_percent
from skipbench.metrics.segmentation import miou_percent, scores
from skipbench.record_store import plain_result, result_id, write_result

CLASSES = ("background", "cat", "dog")


def data_part(name="voc", split="val", images=8, partial=False, official=None, **more):
    return {
        "name": name,
        "split": split,
        "images": images,
        "official_images": images if official is None else official,
        "partial": partial,
        "sample": None,
        "bad": [],
        "empty": [],
        "classes": len(CLASSES),
        "fingerprint": f"{name}-{split}-{images}".ljust(64, "0"),
        "names": [f"{split}_{i:03d}" for i in range(images)],
        **more,
    }


def make_result(
    *,
    evaluation="probe",
    dataset="voc",
    value=50.0,
    interval=None,
    metric="miou",
    name="model.pth",
    sha256=None,
    residual="skip",
    depth=12,
    epoch=300,
    optimizer="AdamW",
    layers="last",
    blocks=None,
    seed=0,
    protocol=None,
    selected_on=None,
    data=None,
    training=None,
    checkpoint=None,
    metrics=None,
    features=None,
    call=None,
):
    """A record with what tables, gates and pages read; anything can be given."""
    blocks = blocks or ([depth - 1] if layers == "last" else [2, 5, 8, depth - 1])
    identity = [name, sha256, residual, depth, epoch, optimizer, blocks, seed, protocol, dataset]
    determines = {"all": identity, "data": data, "chosen": selected_on}
    determines |= {"features": features} if features else {}
    determines = json.loads(json.dumps(determines))
    method = {"method": evaluation} if evaluation == "tokencut" else {}
    return plain_result(
        id=result_id(evaluation, dataset, determines),
        evaluation=evaluation,
        metrics={
            "headline": metric,
            metric: value,
            "interval": interval,
            "selected_on": selected_on,
            "per_class": {},
            **(metrics or {}),
        },
        checkpoint={
            "name": name,
            "sha256": sha256
            or hashlib.sha256(f"{name} {epoch}".encode(errors="replace")).hexdigest(),
            "residual": residual,
            "depth": depth,
            "epoch": epoch,
            "optimizer": optimizer,
            "warning": None,
            "sources": {},
            **(checkpoint or {}),
        },
        features={
            "layers": layers,
            "blocks": blocks,
            "tensor": "tokens_norm" if evaluation == "probe" else "keys",
            "size": "448x448",
            "precision": "fp32",
            "store_dtype": "fp16",
            "degenerate": {},
            **(features or {}),
        },
        protocol={"name": "paper", "epochs": 30, "seed": seed, **method, **(protocol or {})},
        dataset=data_part(dataset) if data is None else data,
        training=training,
        timing={"finished": "2026-01-02T03:04:05+00:00", "images": 8},
        environment={"skipbench": "0.1.0", "call": call},
        determines=determines,
    )


def of_schema_1(result, **changes):
    """As the first versions wrote it: nothing in the file says whether it was changed."""
    return replace(result, schema=1, determines=None, **changes)


def counts_of(rng, images=40, classes=3, quality=0.7):
    """(images, 3, classes): pixels right, predicted, true. Not every class is in every image."""
    true = rng.integers(0, 300, (images, classes)) * (rng.random((images, classes)) < 0.6)
    true[:, 0] += 50
    right = rng.binomial(true, quality)
    wrong = true - right
    predicted = right + np.roll(wrong, 1, axis=1)
    return np.stack([right, predicted, true], axis=1).astype(np.int32)


def with_counts(folder, counts, **facts):
    """A record whose figures follow from its counts, on disk with them."""
    total = counts.sum(0, dtype=np.int64)
    found = scores(total)
    per_class = {
        name: None if np.isnan(iou) else 100 * float(iou)
        for name, iou in zip(CLASSES, found.iou, strict=True)
    }
    value = float(miou_percent(total))
    result = make_result(
        value=value,
        interval=facts.pop("interval", [value - 2, value + 2]),
        data=facts.pop("data", None) or data_part(facts.get("dataset", "voc"), images=len(counts)),
        metrics={"per_class": per_class, "pixel_accuracy": found.pixel_accuracy},
        **facts,
    )
    write_result(folder, result, {"counts": counts})
    return result


# -- TokenCut

NOTES = {"degenerate": 0, "dense": 0, "tied": 3}  # images of which there is something to say


def scores_by_block(rng, images=40, depth=12, best=9, quality=0.6):
    """(images, blocks) of 0 and 1: better and better up to a block, then worse; what is hard about
    an image is so for every block."""
    chance = quality * (1 - 0.07 * np.abs(np.arange(depth) - best))
    return (0.5 * rng.random((images, 1)) + 0.5 * rng.random((images, depth)) < chance) * 1.0


def tokencut_result(
    scores,
    *,
    layers="all",
    blocks=None,
    method="tokencut",
    tensor="keys",
    score="boxes",
    select="val",
    protocol=None,
    data=None,
    **facts,
):
    """(record, arrays) as `skipbench tokencut` makes them. scores: (images, blocks), from 0 to 1,
    of the blocks that were evaluated."""
    images, number = scores.shape
    blocks = list(range(number)) if blocks is None else blocks
    metric = {"boxes": "corloc", "masks": "iou"}[score]
    chosen, arrays = _choices(scores, blocks, metric)
    figure, several = chosen[select], number > 1
    result = make_result(
        evaluation="tokencut",
        metric=metric,
        value=figure[metric],
        interval=figure["interval"],
        layers=layers,
        blocks=blocks,
        depth=facts.pop("depth", number),
        seed=None,
        selected_on=select if several else None,
        protocol={
            "method": method, **({"tau": 0.2, "eps": 1e-5} if method == "tokencut" else {}),
            "feature": tensor, "size": "native", "score": score,
            "hard": True if score == "boxes" else None, "select": select, "changes": {},
            "splits": 20 if several else None, **(protocol or {}),
        },
        features={"tensor": tensor, "size": "native"},
        data=data or data_part(facts.get("dataset", "voc"), "trainval", images, classes=0),
        metrics={
            "block": figure.get("block"),
            "chosen": chosen if several else {},
            "blocks": _by_block(scores, blocks, metric),
            **NOTES,
            **({"f_beta": 65.0, "max_f_beta": 70.0, "accuracy": 90.0} if metric == "iou" else {}),
        },
        **facts,
    )  # fmt: skip
    del result.features["store_dtype"], result.features["degenerate"]
    del result.protocol["epochs"], result.protocol["seed"], result.metrics["per_class"]
    kept = {f"counts_{where}": counts for where, counts in arrays.items() if several}
    return result, {"counts": arrays[select], **kept}


def _choices(scores, blocks, metric):
    """Figures of the best block of all images, and of the best on the other half; their counts."""
    best, crossed = int(scores.mean(0).argmax()), cross_chosen(scores, splits=20)
    often = {str(b): int(n) for b, n in zip(blocks, crossed.chosen, strict=True) if n}
    arrays = {
        "val": np.stack([scores[:, best], np.ones(len(scores))], axis=1),
        "holdout": crossed.counts,
    }
    values = {where: float(share_percent(counts.sum(0))) for where, counts in arrays.items()}
    chosen = {w: {metric: value, "interval": _around(value)} for w, value in values.items()}
    chosen["val"]["block"] = blocks[best]
    chosen["holdout"] |= {"block": None, "blocks": often}
    return chosen, arrays


def _by_block(scores, blocks, metric):
    values = [100 * float(mean) for mean in scores.mean(0)]
    return [
        {"block": block, metric: value, "interval": _around(value), **NOTES}
        for block, value in zip(blocks, values, strict=True)
    ]


def _around(value):
    return [max(value - 4, 0.0), min(value + 4, 100.0)]


def put_tokencut(folder, scores, **facts):
    """On disk, with its arrays."""
    result, arrays = tokencut_result(scores, **facts)
    write_result(folder, result, arrays)
    return result


def scores_with_best(percent, depth=12, best=9, images=1000):
    """(images, blocks) of 0 and 1 whose best block has just this figure."""
    below = [percent - 1.5 * abs(block - best) for block in range(depth)]
    right = np.arange(images)[:, None] < np.round(np.array(below) * images / 100)
    return right * 1.0


def paper_records_of_all_blocks(layout):
    """The figures of Table 4 or Figure 3, each as the best of a record of all blocks."""
    made = []
    for one in paper_records(layout):
        facts = {n: one.checkpoint[n] for n in ("name", "residual", "depth", "epoch", "optimizer")}
        best = facts["depth"] - (3 if facts["residual"] == "skip" else 2)
        scores = scores_with_best(one.metrics["corloc"], facts["depth"], best)
        made.append(tokencut_result(scores, dataset=one.dataset["name"], **facts)[0])
    return made


# -- the paper's


def paper_records(layout):
    """The figures that the paper prints in one of its tables, each as a record of its own."""
    text = (files("skipbench.results") / "facts" / "paper.csv").read_text()
    evaluation = "probe" if layout in ("table2", "table3") else "tokencut"
    made = []
    for line in csv.DictReader(text.splitlines()):
        if line["layout"] != layout:
            continue
        residual, depth = line["residual"], int(line["depth"])
        epoch = int(line["epoch"] or (300 if depth == 12 else 200))
        made.append(
            make_result(
                evaluation=evaluation,
                metric="miou" if evaluation == "probe" else "corloc",
                dataset=line["dataset"],
                value=float(line["value"]),
                name=f"{residual}-{line['optimizer']}-{depth}-{epoch}",
                residual=residual,
                depth=depth,
                epoch=epoch,
                optimizer=line["optimizer"].lower(),
                layers="multiscale" if line["features"] == "multiscale" else "last",
            )
        )
    return made
