"""What the package exports, and which part may import which."""

import ast
from pathlib import Path

import pytest

import skipbench

ROOT = Path(skipbench.__file__).parent

# Each part may import those named (and itself); nothing later in the line is imported earlier.
BASE = {"errors", "records", "files"}
ALLOWED = {
    "errors": set(),
    "records": set(),
    "files": {"errors"},
    "images": {"errors", "records"},
    "checkpoints": BASE,
    "engine": {"records", "errors"},
    "metrics": set(),
    "drawing": {"files", "images", "datasets", "records"},
    "datasets": BASE | {"images", "engine"},
    "backbones": BASE | {"checkpoints", "images", "engine"},
    "features": BASE | {"checkpoints", "images", "backbones", "engine"},
    "results": BASE | {"metrics", "drawing"},
    "evaluations": BASE
    | {"backbones", "checkpoints", "datasets", "engine", "features", "images", "metrics"}
    | {"drawing", "pipeline", "results"},
    "calibrate": BASE | {"evaluations", "results"},
    "suites": BASE
    | {"backbones", "checkpoints", "datasets", "engine", "evaluations", "features", "images"}
    | {"pipeline", "results"},
    "pipeline": BASE | {"checkpoints", "images", "backbones", "engine", "features", "datasets"},
    "demo": BASE
    | {"checkpoints", "images", "backbones", "datasets", "evaluations", "drawing", "results"},
}

# Methods are pure: arrays in, arrays out; no model, no file, no flag.
PURE = {"metrics", "records", "errors", "engine", "evaluations"}
METHODS = [
    "segmentation/class_map", "segmentation/pixels", "segmentation/scores", "segmentation/tokens",
    "probe/method", "probe/heads", "probe/training", "knn/method", "knn/bank", "cluster/method",
    "tokencut/method", "tokencut/graph", "tokencut/eigenvector", "tokencut/lost",
    "tokencut/objects", "pca/method",
]  # fmt: skip


def imported(path):
    """The parts of skipbench that a file imports, at any depth of nesting."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            words = name.split(".")
            if words[0] == "skipbench" and len(words) > 1 and words[1] != "__version__":
                yield words[1]


@pytest.mark.parametrize("part", ALLOWED)
def test_nothing_later_is_imported_earlier(part):
    target = ROOT / part
    files = (
        [target.with_suffix(".py")] if target.with_suffix(".py").exists() else target.rglob("*.py")
    )
    for path in files:
        wrong = set(imported(path)) - ALLOWED[part] - {part}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_pure(method):
    wrong = set(imported(ROOT / "evaluations" / f"{method}.py")) - PURE
    assert not wrong, f"{method} imports {wrong}"


def test_every_part_has_a_rule():
    parts = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__", "__main__", "cli"} == set(ALLOWED)


def test_one_place_opens_weights():
    """torch.load and safetensors' readers stand in checkpoints/."""
    readers = {"torch.load(", "load_file(", "safe_open("}
    places = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if any(reader in path.read_text() for reader in readers)
    }
    assert places == {"checkpoints/files.py"}


def test_public_surface():
    assert set(skipbench.__all__) == {
        "__version__", "Backbone", "Checkpoint", "CheckpointFacts", "Dataset", "DatasetFacts",
        "FeatureSpec", "Result", "SkipbenchError", "calibrate", "check", "cluster", "compare",
        "extract", "find_objects", "inspect", "knn", "load_backbone", "open_checkpoint",
        "open_dataset", "pca", "probe", "probe_all", "read_results", "report", "run",
        "table", "tables", "tokencut", "update_baseline",
    }  # fmt: skip
    assert all(getattr(skipbench, name) is not None for name in skipbench.__all__)
    with pytest.raises(AttributeError):
        skipbench.nothing  # noqa: B018


def test_exit_codes_of_the_exception_tree():
    from skipbench import errors

    codes = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.SkipbenchError)
    }
    assert codes == {
        "SkipbenchError": 1, "UsageError": 2, "UnclearVariant": 2, "CheckpointError": 3,
        "DataError": 4, "NumbersError": 6, "ResourceError": 7, "OutOfMemory": 7,
    }  # fmt: skip
    drawn = errors.__doc__
    assert all(name in drawn for name in codes)
