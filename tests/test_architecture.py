"""What the package exports, and which part may import which. The rules name no evaluation."""

import ast
from pathlib import Path

import pytest

import skipbench
from skipbench.evaluations import evaluations

ROOT = Path(skipbench.__file__).parent
TESTS = Path(__file__).parent
EVALUATIONS = sorted(evaluations())

# Each part may import those named (and itself); nothing later in the line is imported earlier.
BASE = {"errors", "records", "files"}
IMAGES = BASE | {"images", "engine"}
MODELS = IMAGES | {"sources", "checkpoints", "backbones"}
LINE = MODELS | {"datasets", "features", "settings", "pipeline", "record_store", "tracking"}
ALLOWED = {
    "errors": set(),
    "records": set(),
    "metrics": set(),
    "console": {"engine", "errors"},
    "manual": {"errors"},
    "files": {"errors"},
    "record_store": BASE,
    "images": {"errors", "records"},
    "engine": {"errors", "records"},
    "sources": {"errors", "files"},
    "checkpoints": BASE | {"sources"},
    "datasets": IMAGES,
    "drawing": BASE | {"images", "datasets"},
    "backbones": IMAGES | {"sources", "checkpoints"},
    "features": MODELS,
    "tracking": {"errors", "records", "record_store"},
    "settings": MODELS | {"features"},
    "pipeline": LINE,
    "evaluations": LINE | {"metrics", "drawing", "console"},
    "results": BASE | {"sources", "metrics", "datasets", "drawing", "console", "settings"}
    | {"record_store", "evaluations", "pipeline"},
    "suites": LINE | {"evaluations"},
    "calls": LINE | {"evaluations"},
    "demo": LINE | {"evaluations", "drawing", "results"},
}  # fmt: skip
# Named in annotations alone, not imported when the program runs.
ANNOTATED = {"settings": {"pipeline"}, "pipeline": {"evaluations"}}

# Methods are pure: arrays in, arrays out; no model, no file, no flag. Of settings and protocols
# they take constants and types.
PURE = {"errors", "records", "metrics", "engine"}
CONSTANTS = ("settings", "protocols")
ARRAYS = {"np", "numpy", "torch", "scipy", "faiss", "math"}


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def under_type_checking(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from map(id, ast.walk(node))


def imported(path, annotations=True):
    """Modules, or names in them, that a file imports, at any depth of nesting."""
    tree = ast.parse(path.read_text())
    left_out = set() if annotations else set(under_type_checking(tree))
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def of_ours(path, annotations=True):
    """The same within skipbench, as words: ("files", "write_whole")."""
    for name in imported(path, annotations):
        first, *words = name.split(".")
        if first == "skipbench" and words and words != ["__version__"]:
            yield tuple(words)


def files_of(part):
    alone = ROOT / f"{part}.py"
    return [alone] if alone.exists() else sorted((ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("part", ALLOWED)
def test_nothing_later_is_imported_earlier(part):
    for path in files_of(part):
        parts = {words[0] for words in of_ours(path, annotations=False)} - {part}
        named = {words[0] for words in of_ours(path)} - {part} - ANNOTATED.get(part, set())
        where = path.relative_to(ROOT)
        assert not (wrong := parts - ALLOWED[part]), f"{where} imports {wrong}"
        assert not (wrong := named - ALLOWED[part]), f"{where} names {wrong}"


def test_every_part_has_a_rule():
    parts = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__", "__main__", "cli"} == set(ALLOWED)


def test_no_private_module_is_imported_from_another_package():
    for path in ROOT.rglob("*.py"):
        for words in of_ours(path):
            place = next((i for i, word in enumerate(words) if is_private(word)), None)
            if place is not None:
                assert ROOT.joinpath(*words[:place]) == path.parent, f"{path}: {words}"


# -- evaluations


@pytest.mark.parametrize("name", EVALUATIONS)
def test_no_evaluation_imports_another(name):
    others = set(EVALUATIONS) - {name}
    for path in (ROOT / "evaluations" / name).rglob("*.py"):
        assert not others & set(evaluations_named(path)), path


def evaluations_named(path):
    """Evaluations whose folder a file imports from."""
    return [words[1] for words in of_ours(path) if words[0] == "evaluations" if len(words) > 1]


def test_nothing_else_imports_from_the_folder_of_an_evaluation():
    """But for `find_objects`, which is public by its own name, and for how images are opened."""
    folders = [ROOT / "evaluations" / name for name in EVALUATIONS]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if not any(folder in path.parents for folder in folders)
        and set(EVALUATIONS) & set(evaluations_named(path))
    }
    assert found <= {"calls.py"}


def test_no_text_of_the_package_lists_the_evaluations():
    """The folder is the registry: their names stand together nowhere."""
    for path in ROOT.rglob("*.py"):
        words = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert len(words & set(EVALUATIONS)) < 3, path


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_has_the_files_that_a_reader_looks_for(name):
    there = {path.stem for path in (ROOT / "evaluations" / name).glob("*.py")}
    assert {"settings", "method", "run", "page"} <= there


@pytest.mark.parametrize("name", EVALUATIONS)
def test_methods_are_pure(name):
    """So is every module of evaluations that they import."""
    todo, done = [("evaluations", name, "method")], set()
    while todo:
        module = todo.pop()
        done.add(module)
        path = ROOT.joinpath(*module).with_suffix(".py")
        assert ARRAYS & {one.split(".")[0] for one in imported(path)}, path
        assert "open(" not in path.read_text(), path
        for words in of_ours(path):
            if words[0] != "evaluations":
                assert words[0] in PURE, f"{path}: {words}"
            elif words[2] in CONSTANTS:
                assert not words[3].endswith("Settings"), f"{path}: {words}"
            elif words[:3] not in done:
                todo.append(words[:3])


# -- the whole


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
        "FeatureSpec", "Result", "SkipbenchError", "calibrate", "check", "classify", "cluster",
        "compare",
        "extract", "find_objects", "inspect", "knn", "load_backbone", "open_checkpoint",
        "open_dataset", "pca", "probe", "probe_all", "read_results", "report", "reproduce", "run",
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


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.stem)
def test_tests_keep_to_public_names(path):
    """They import nothing private, and set no constant of a module: sizes are parameters.

    But for those of another package, which reads its environment only once.
    """
    for words in of_ours(path):
        assert not any(map(is_private, words)), words
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "monkeypatch.setattr":
            names = [str(one.value) for one in node.args[:2] if isinstance(one, ast.Constant)]
            last = names[0].split(".")[-1] if names else ""
            assert not is_private(last) and (not last.isupper() or last.startswith("HF_HUB")), names
