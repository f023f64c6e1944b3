"""`--log`: records as runs of TensorBoard, Weights & Biases or MLflow.

A *curve* is what records share that differ only in the epoch of their checkpoint: training folder,
evaluation, data, features, protocol, seed. Where the epoch is known it is the step, otherwise 0.

TensorBoard   a folder per curve; a record's event file ends in its id
MLflow        a run per curve, tagged with its records
wandb         a run per record, with the record's id; the runs of a curve are a group

So a record that is logged again is found, and skipped.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skipbench.record_store import digest_of, is_interval, is_number
from skipbench.records import TOLD, Result

log = logging.getLogger("skipbench")

OF_ONE_EPOCH = {"record", *(f"checkpoint.{n}" for n in ("name", "sha256", "path", "epoch"))}
LONGEST = 250  # characters of a parameter: longer ones, such as lists of images, are left out


def log_results(places: Sequence[str], results: Sequence[Result]) -> None:
    """Each record once in each place. The records are on disk, so a failure is only a warning."""
    for place in places:
        engine, _, where = place.partition(":")
        try:
            added = sum(WRITERS[engine](where, result) for result in results)
        except Exception as error:  # of any kind: disk full, server away, no API key, …
            log.warning(
                "not logged to %s: %s\nThe records are stored; the same command logs them later.",
                place, str(error) or type(error).__name__,
            )  # fmt: skip
        else:
            before = f"; {len(results) - added} were there already" if added < len(results) else ""
            log.info("logged to %s: %d of %d records%s", place, added, len(results), before)


# -- a record as numbers and words


def scalars(result: Result) -> dict[str, float]:
    """By name; of the whole record: "probe-voc/miou", "probe-voc/class/cat"."""
    metrics = result.metrics
    found: dict[str, Any] = {}
    headline = metrics.get("headline")
    if headline and is_interval(ends := metrics.get("interval")):
        found |= {f"{headline}_low": ends[0], f"{headline}_high": ends[1]}
    for split, choice in (metrics.get("chosen") or {}).items():
        if split != metrics.get("selected_on"):
            found[f"chosen_on_{split}/{headline}"] = choice.get(headline)
    found |= {f"class/{name}": value for name, value in (metrics.get("per_class") or {}).items()}
    return _numbers(result, {**metrics, **found})


def by_block(result: Result) -> Iterator[tuple[int, dict[str, float]]]:
    """Each block with its scores, if blocks are scored by themselves."""
    rows = result.metrics.get("blocks")
    for row in rows if isinstance(rows, list) else []:
        scores = {f"blocks/{name}": value for name, value in row.items() if name != "block"}
        yield row["block"], _numbers(result, scores)


def _numbers(result: Result, values: Mapping[str, Any]) -> dict[str, float]:
    group = f"{result.evaluation}-{result.dataset['name']}"
    return {_clean(f"{group}/{k}"): float(v) for k, v in values.items() if is_number(v)}


def _clean(name: str) -> str:
    """With characters that all three accept in a name."""
    return re.sub(r"[^\w\-./ ]+", "-", name)


def facts(result: Result) -> dict[str, Any]:
    """Parameters of a run, flat."""
    checkpoint, call = result.checkpoint, result.environment.get("call") or {}
    names = ("name", "sha256", "residual", "depth", "width", "patch", "epoch", "optimizer")
    found: dict[str, Any] = {
        "record": result.id,
        "evaluation": result.evaluation,
        "dataset": result.dataset["name"],
        "split": result.dataset["split"],
        "images": result.dataset["images"],
        **{f"checkpoint.{name}": checkpoint.get(name) for name in names},
        "checkpoint.path": call.get("ckpt"),
        **{f"features.{k}": v for k, v in result.features.items() if k != "degenerate"},
        **{f"protocol.{k}": v for k, v in result.protocol.items()},
    }
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in found.items()}
    return {k: v for k, v in found.items() if v is not None and len(texts[k]) <= LONGEST}


def step_of(result: Result) -> int:
    return result.checkpoint.get("epoch") or 0


def curve_of(result: Result) -> tuple[str, str]:
    """Its name, and a digest of everything that all points of it share."""
    checkpoint = result.checkpoint
    determines = dict(result.determines or {"record": result.id})
    path = Path(str((result.environment.get("call") or {}).get("ckpt") or checkpoint["name"]))
    told = checkpoint.get("sources", {}).get("name") == TOLD
    name = checkpoint["name"] if told else "-".join([*path.parts[-2:-1], path.stem])
    if checkpoint.get("epoch") is not None:
        name = _without_epoch(name)
        same = ("layout", "depth", "width", "patch", "optimizer")
        determines["model"] = {
            **determines.get("model", {}),
            **{fact: checkpoint.get(fact) for fact in same},
            "sha256": _without_epoch(str(path.with_suffix(""))),
        }
    digest = digest_of(determines)[:12]
    layers = result.features.get("layers") or ""
    words = f"{result.evaluation}-{result.dataset['name']}-{layers}-{digest}"
    return _clean(f"{name}/{words.replace('/', '-')}").replace(" ", ""), digest


def _without_epoch(name: str) -> str:
    """ "checkpoint0300" and "checkpoint" are of one curve."""
    return re.sub(r"[\W_]*\d+(?=\D*$)", "", name) or name


# -- where they go; each returns False if the record is there already


def to_tensorboard(folder: str, result: Result) -> bool:
    from torch.utils.tensorboard import SummaryWriter

    place, step = Path(folder) / curve_of(result)[0], step_of(result)
    if any(place.glob(f"*.{result.id}")):
        return False
    if blocks := list(by_block(result)):  # a run per epoch: one chart shows all of them
        with SummaryWriter(str(place / f"epoch-{step:04d}")) as writer:
            for block, scores in blocks:
                for name, value in scores.items():
                    writer.add_scalar(name, value, block)
    with SummaryWriter(str(place), filename_suffix=f".{result.id}") as writer:
        for name, value in scalars(result).items():
            writer.add_scalar(name, value, step)
        lines = [f"    {name}: {value}" for name, value in facts(result).items()]
        writer.add_text("record", "\n".join(lines), step)
    return True


def to_mlflow(uri: str, result: Result) -> bool:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # 7 take minutes
    if ":" not in uri or uri.startswith("file:"):  # MLflow 3 refuses folders without this
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=uri if ":" in uri else Path(uri).absolute().as_uri())
    project = os.environ.get("MLFLOW_EXPERIMENT_NAME", "skipbench")
    known = client.get_experiment_by_name(project)
    experiment = known.experiment_id if known else client.create_experiment(project)
    name, digest = curve_of(result)
    runs = client.search_runs([experiment], f"tags.`skipbench.curve` = '{digest}'")
    if any(f"skipbench.record.{result.id}" in run.data.tags for run in runs):
        return False
    if not runs:
        runs = [client.create_run(experiment, tags={"skipbench.curve": digest}, run_name=name)]
        same = [Param(k, str(v)) for k, v in facts(result).items() if k not in OF_ONE_EPOCH]
        client.log_batch(runs[0].info.run_id, params=same)
    run, now, step = runs[0].info.run_id, int(1000 * time.time()), step_of(result)
    points = [Metric(k, v, now, step) for k, v in scalars(result).items()]
    points += [
        Metric(f"{name}/epoch-{step:04d}", value, now, block)
        for block, scores in by_block(result)
        for name, value in scores.items()
    ]
    for start in range(0, len(points), 1000):  # as many as a server takes at once
        client.log_batch(run, points[start : start + 1000])
    client.set_tag(run, f"skipbench.record.{result.id}", f"{result.checkpoint['name']}, {step}")
    client.set_terminated(run)
    return True


def to_wandb(project: str, result: Result) -> bool:
    import wandb

    entity, _, name = project.rpartition("/")
    settings, identity = wandb.setup().settings, result.id[-64:]  # the longest that it accepts
    offline = settings.mode == "offline"
    if offline and any(Path(settings.wandb_dir).glob(f"offline-run-*-{identity}")):
        return False
    curve, step = curve_of(result)[0], step_of(result)
    run = wandb.init(
        project=name, entity=entity or None, id=identity, resume="allow",
        name=f"{curve} {step}", group=curve[-128:], job_type=result.evaluation,
        tags=[result.evaluation, result.dataset["name"][:64]], config=facts(result),
        settings=wandb.Settings(silent=True, console="off", reinit="create_new", init_timeout=30),
    )  # fmt: skip
    with run:
        if not offline and run.summary.get("record") == result.id:
            return False
        values, blocks = scalars(result), list(by_block(result))
        for name in values:
            run.define_metric(name, step_metric="epoch")
        for name in blocks[0][1] if blocks else ():
            run.define_metric(name, step_metric="block")
        run.log({"epoch": step, **values})
        for block, scores in blocks:
            run.log({"block": block, **scores})
        run.summary["record"] = result.id  # last: the rest is there
    return True


WRITERS: dict[str, Callable[[str, Result], bool]] = {
    "tensorboard": to_tensorboard, "wandb": to_wandb, "mlflow": to_mlflow,
}  # fmt: skip
