"""Records made by hand: the paper's own figures, and small ones with counts by image."""

import csv
import hashlib
from importlib.resources import files

import numpy as np

from skipbench.metrics.segmentation import miou_percent, scores
from skipbench.results.store import plain_result, result_id, write_result

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
    call=None,
):
    """A record with what tables, gates and pages read; anything can be given."""
    blocks = blocks or ([depth - 1] if layers == "last" else [2, 5, 8, depth - 1])
    identity = [name, sha256, residual, depth, epoch, optimizer, blocks, seed, protocol, dataset]
    return plain_result(
        id=result_id(evaluation, dataset, {"all": identity, "data": data, "chosen": selected_on}),
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
        },
        protocol={"name": "paper", "epochs": 30, "seed": seed, **(protocol or {})},
        dataset=data_part(dataset) if data is None else data,
        training=training,
        timing={"finished": "2026-01-02T03:04:05+00:00", "images": 8},
        environment={"skipbench": "0.1.0", "call": call},
    )


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
