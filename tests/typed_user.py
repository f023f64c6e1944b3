"""A user's program with every public name, for `mypy --strict`; test_packaging.py checks it.

Nothing here runs. A line with `type: ignore` is a mistake that mypy must find: if it does not, the
comment itself is an error.
"""

from pathlib import Path

import skipbench as sb

names: list[str] = sb.__all__
version: str = sb.__version__


def evaluate(ckpt: Path) -> list[sb.Result]:
    one: sb.Result = sb.probe(ckpt, "voc", layers="multiscale", lr=[1e-3, 3e-3], select="holdout")
    several: list[sb.Result] = sb.probe_all(ckpt, "voc", layers=["last", 11], seeds=[0, 1])
    boxes: sb.Result = sb.tokencut(str(ckpt), "voc07", layers="all", method="lost", size=480)
    more: list[sb.Result] = sb.knn(ckpt, "voc", k=[10, 30], temperature=0.02, bank_limit="2GB")
    more += sb.cluster(ckpt, "voc", clusters=["classes", 500], seeds=5, expected={"depth": 12})
    more += sb.classify(ckpt, "imagenet", method="knn", pool="mean", k=[10, 20], crop="whole")
    more += sb.pca([ckpt, "other.pth"], "photos", layers=[3, -1], limit="all", fit="all")
    drawn: Path = sb.find_objects(ckpt, ["a.jpg", Path("b.jpg")], tau=0.3, residual="skip")
    return [one, *several, boxes, *more] if drawn.exists() else []


def read_features(ckpt: Path) -> tuple[str, ...]:
    checkpoint: sb.Checkpoint = sb.open_checkpoint(ckpt, weights="teacher")
    facts: sb.CheckpointFacts = checkpoint.facts
    dataset: sb.Dataset = sb.open_dataset("voc", "val", limit=10)
    of_images: sb.DatasetFacts = dataset.facts()
    inspection = sb.inspect(ckpt, residual="auto", device="cpu")
    reason: str = inspection.verdict.reason
    backbone: sb.Backbone = sb.load_backbone(ckpt, residual="skipless", precision="fp32")
    with sb.extract(backbone, dataset, layers="last", size=224) as store:
        images: int = len(store)
    spec: sb.FeatureSpec = sb.FeatureSpec(blocks=(5, 11), size=(224, 336))
    return (facts.name, of_images.fingerprint, reason, *spec.columns, str(images))


def use_records(folder: Path) -> str:
    found = sb.read_results([folder, "more"], strict=True)
    headline: object = found[0].result.metrics["headline"]
    text: str = sb.table(found, layout="table2", ci=True).text("latex", fragment=True)
    text += "".join(one.title for one in sb.tables(folder, by="dataset"))
    p_value: float | None = sb.compare("a.pth", "b.pth", results=folder)[0].p_value
    fails: bool = any(one.fails for one in sb.check(folder, "baseline.json", tolerance=0.5))
    noise: float = sb.calibrate(folder, seeds=[1, 2], device="cpu")[0].deviation
    again = sb.reproduce(found[0], results=folder, data_root="data")
    page: Path = sb.report(folder, "report.html", title="Ours")
    states = [outcome.state for outcome in sb.run("suite.toml", only=["voc"])]
    sb.update_baseline(folder, "baseline.json", prune=True)
    return f"{headline} {text} {p_value} {fails} {noise} {again.verdict} {page} {states}"


def make_mistakes(ckpt: Path) -> None:
    try:
        sb.probe(ckpt, "voc", epoch=3)  # type: ignore[call-arg]
        sb.probe(ckpt, "voc", select="typo")  # type: ignore[arg-type]
        sb.knn(ckpt)  # type: ignore[call-arg]
        sb.table("results", layuot="table2")  # type: ignore[call-arg]
        sb.reproduce("probe-voc", device=b"cpu")  # type: ignore[arg-type]
        sb.nothing  # type: ignore[attr-defined]  # noqa: B018
    except sb.SkipbenchError as error:
        print(error)
