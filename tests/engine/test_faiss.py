"""faiss itself: every state an installation can be in, and that only finite numbers reach it.

Installations are real folders that a process of their own finds in place of this one's.
"""

import importlib.metadata
import logging
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import faiss
import numpy as np
import pytest
import torch
from tokens import unit

from skipbench.engine import vectors
from skipbench.errors import NumbersError, UsageError

ROOT = Path(vectors.__file__).resolve().parents[1]
WORKS = "class IndexFlatIP: pass\n"

LOAD = """
from skipbench.engine import vectors
from skipbench.errors import SkipbenchError
try:
    print(vectors.load().__name__)
except SkipbenchError as error:
    print(error)
    print("state:", vectors.state())
    raise SystemExit(error.exit_code)
print("state:", vectors.state())
"""


class Site:
    """A folder of packages: ours, numpy, a torch that knows of no GPU, and what a test adds."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        (folder / "skipbench").symlink_to(ROOT)
        beside = Path(np.__file__).parents[1]
        for name in ("numpy", "numpy.libs"):
            if (beside / name).exists():
                (folder / name).symlink_to(beside / name)
        self.gpu(False)

    def gpu(self, there):
        (self.folder / "torch.py").write_text(f"class cuda:\n    is_available = lambda: {there}\n")
        return self

    def build(self, name, version="1.9.0"):
        """As pip notes it down, whether its files are there or not."""
        notes = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        notes.mkdir()
        (notes / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        return self

    def module(self, code=None):
        """faiss, with this code; without any, the bare folder."""
        (self.folder / "faiss").mkdir()
        if code is not None:
            (self.folder / "faiss" / "__init__.py").write_text(code)
        return self

    def run(self, code=LOAD):
        path = f"import sys; sys.path.insert(0, {str(self.folder)!r})\n"
        return subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", path + code],
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path / "site")


REPAIR = "Repair it: pip install --force-reinstall --no-deps "
BROKEN = {
    "missing": (lambda site: site, ["not installed", "Install it: pip install faiss-cpu "]),
    "missing beside a GPU": (
        lambda site: site.gpu(True),
        ["not installed", "Install it: pip install faiss-gpu"],
    ),
    "both": (
        lambda site: site.build("faiss-cpu").build("faiss-gpu", "1.7.2").module(WORKS),
        [
            "faiss-cpu and faiss-gpu are both installed",
            "Repair it: pip uninstall -y faiss-cpu faiss-gpu && pip install faiss-cpu",
        ],
    ),
    "both beside a GPU": (
        lambda site: site.gpu(True).build("faiss-cpu").build("faiss-gpu-cu12").module(WORKS),
        ["pip uninstall -y faiss-cpu faiss-gpu-cu12 && pip install faiss-gpu"],
    ),
    "a folder that was left behind": (
        lambda site: site.module(),
        ["only its folder is left, without the module: ", "site/faiss", REPAIR + "faiss-cpu"],
    ),
    "a folder that the other build left behind": (
        lambda site: site.build("faiss-gpu").module(),
        ["only its folder is left, without the module: ", "site/faiss", REPAIR + "faiss-gpu"],
    ),
    "noted down, but gone": (
        lambda site: site.build("faiss-cpu"),
        [
            "faiss-cpu is installed according to pip, but the module is missing",
            f"{REPAIR}faiss-cpu",
        ],
    ),
    "an empty module": (
        lambda site: site.build("faiss-cpu").module(""),
        ["faiss is broken", "site/faiss", REPAIR + "faiss-cpu"],
    ),
    "a library that is missing": (
        lambda site: site.build("faiss-gpu-cu12").module(
            "raise ImportError('libcudart.so.12: cannot open\\nmore of it')"
        ),
        ["ImportError: libcudart.so.12: cannot open\n", REPAIR + "faiss-gpu-cu12"],
    ),
    "a part that is missing": (
        lambda site: site.build("faiss-cpu").module("from . import swigfaiss_that_is_not_there"),
        ["swigfaiss_that_is_not_there", REPAIR + "faiss-cpu"],
    ),
    "a part that it needs is missing": (
        lambda site: site.build("faiss-cpu").module("import faiss.loader"),
        ["No module named 'faiss.loader'", REPAIR + "faiss-cpu"],
    ),
    "built for another numpy": (
        lambda site: site.build("faiss-cpu").module("raise AttributeError('_ARRAY_API not found')"),
        ["AttributeError: _ARRAY_API not found", REPAIR + "faiss-cpu"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_and_missing_ones_say_how_they_are_repaired(site, name):
    make, words = BROKEN[name]
    make(site)
    done = site.run()
    assert done.returncode == UsageError.exit_code == 2, done.stderr
    message, state = done.stdout.split("state: ")
    for word in words:
        assert word in message
    assert len(message.strip().splitlines()) == 2
    lines = [line.rstrip(".") for line in message.strip().splitlines()]
    assert state.strip() == ". ".join(lines)  # the same, on one line


@pytest.mark.parametrize("name", ["faiss-cpu", "faiss-gpu-cu12"])
def test_one_that_works(site, name):
    done = site.build(name, "1.11.0").module(WORKS).run()
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"faiss\nstate: {name} 1.11.0\n"


def test_one_that_works_without_notes_has_a_state(site):
    """As one that was built by hand, or installed by another tool."""
    done = site.module(WORKS).run()
    assert done.returncode == 0 and done.stdout.split("state:")[1].strip()


def test_a_script_called_faiss_is_named(site):
    """It hides the module; to install that anew would change nothing."""
    (site.folder / "faiss.py").write_text("print")
    done = site.build("faiss-cpu").run()
    assert done.returncode == 2 and "faiss.py" in done.stdout


def test_a_damaged_one_is_described_shortly(site):
    done = site.build("faiss-cpu").module(f"raise ImportError({'far ' * 500!r})").run()
    assert "far far far" in done.stdout and len(done.stdout) < 700


def test_once_repaired_it_is_found_in_the_same_process(site):
    code = """
from pathlib import Path
from skipbench.engine import vectors
from skipbench.errors import UsageError
try:
    vectors.load()
except UsageError as error:
    print("before:", str(error).splitlines()[0])
Path(sys.path[0], "faiss", "__init__.py").write_text("class IndexFlatIP: pass")
print("after:", vectors.load().IndexFlatIP.__name__)
"""
    done = site.build("faiss-cpu").module().run(code)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert before.startswith("before: faiss is broken") and after == "after: IndexFlatIP"


def test_both_builds_in_this_process(monkeypatch):
    """Although the module that is there would do."""
    installed = {"faiss-cpu": "1.11", "faiss-gpu": "1.7.2"}

    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(vectors.metadata, "version", version)
    assert vectors.builds() == installed
    for ask in (
        vectors.load,
        lambda: vectors.Flat(lambda: [np.eye(2)], 2, 2),
        lambda: vectors.k_means(np.eye(2), 1, 0, 1),
    ):
        with pytest.raises(UsageError, match="pip uninstall -y faiss-cpu faiss-gpu && pip install"):
            ask()
    assert "\n" not in vectors.state() and "broken" in vectors.state()
    installed.pop("faiss-gpu")
    assert vectors.state() == "faiss-cpu 1.11" and vectors.load() is faiss


def test_what_is_installed_here():
    (name,) = vectors.builds()
    assert vectors.builds()[name] == faiss.__version__ == importlib.metadata.version(name)


# -- GPUs


def test_gpus_are_for_models_on_gpus(monkeypatch, caplog):
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 3, raising=False)
    assert vectors.gpus(torch.device("cuda", 1)) == vectors.gpus("cuda") == 3
    assert vectors.gpus(torch.device("cpu")) == vectors.gpus("mps") == vectors.gpus("cpu") == 0
    assert not caplog.records


@pytest.mark.parametrize("told", [True, False])
def test_a_build_without_gpus_is_said_once(monkeypatch, caplog, told):
    monkeypatch.setattr(logging.getLogger("skipbench"), "propagate", True)
    monkeypatch.setattr(vectors, "load", lambda: MagicMock(get_num_gpus=lambda: 0))
    if not told:  # older ones do not know the word
        monkeypatch.setattr(vectors, "load", lambda: object())
    vectors.warn_of_cpu_build.cache_clear()
    assert [vectors.gpus(torch.device("cuda")) for _ in range(3)] == [0, 0, 0]
    # One record may arrive twice: by the root, and by a handler that another test has put in.
    (warned,) = {id(one): one for one in caplog.records}.values()
    assert warned.levelno == logging.WARNING and "no GPU support" in warned.message


# -- NaN and Inf


BAD = [np.nan, np.inf, -np.inf]


def spoilt(bad, where=(17, 3), count=40):
    made = unit(count)
    made[where] = bad
    return made


@pytest.fixture
def recorded(monkeypatch):
    """A faiss that does nothing, and of whose every call the arrays are looked at afterwards."""
    fake = MagicMock()
    monkeypatch.setattr(vectors, "load", lambda: fake)
    yield fake
    for _, arguments, named in fake.mock_calls:
        for value in (*arguments, *named.values()):
            assert not isinstance(value, np.ndarray) or np.isfinite(value).all()


def lists_of(bank, probes):
    pieces = np.array_split(bank, 3)
    return vectors.Lists(lambda: pieces, len(bank), 6, probes=probes, k=3, usual_k=3)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("on_gpus", [0, 2])
def test_a_bank_with_nan_or_inf(recorded, bad, on_gpus):
    pieces = np.array_split(spoilt(bad), 3)  # in the second of them
    with pytest.raises(NumbersError, match="NaN or Inf"):
        vectors.Flat(lambda: pieces, 40, 6, on_gpus=on_gpus)
    assert recorded.IndexFlatIP().add.called == bool(on_gpus)  # of the first
    with pytest.raises(NumbersError, match="NaN or Inf"):
        lists_of(spoilt(bad), unit(8))
    assert not recorded.index_factory().train.called


@pytest.mark.parametrize("bad", BAD)
def test_a_bank_with_nan_or_inf_that_nothing_is_learnt_from(recorded, bad):
    """All that is put in is looked at, not only the sample."""
    count, sample = 20_000, vectors.FEWEST_POINTS
    recorded.knn.side_effect = lambda q, b, k, metric: (np.zeros((8, k)), np.zeros((8, k), int))
    numbered = np.arange(float(count))[:, None]
    learnt_from = vectors.sample_rows(lambda: [numbered], count, 1, sample, 0).ravel()
    left = sorted(set(range(count)) - set(learnt_from.astype(int)))
    with pytest.raises(NumbersError, match="NaN or Inf"):
        lists_of(spoilt(bad, (left[-1], 0), count), unit(8))
    assert recorded.index_factory().train.call_args.args[0].shape == (sample, 6)


@pytest.mark.parametrize("bad", BAD)
def test_queries_with_nan_or_inf(bad):
    flat, lists = vectors.Flat(lambda: [unit(40)], 40, 6), lists_of(unit(40), unit(8))
    for index in (flat, lists):
        assert index.search(unit(20, seed=1), 2)[1].shape == (20, 2)
        with pytest.raises(NumbersError, match="NaN or Inf"):
            index.search(spoilt(bad), 2)
    with pytest.raises(NumbersError, match="NaN or Inf"):
        lists_of(unit(40), spoilt(bad, (7, 5), count=8))


@pytest.mark.parametrize("bad", BAD)
def test_clusters_of_nan_or_inf(recorded, bad):
    with pytest.raises(NumbersError, match="NaN or Inf"):
        vectors.k_means(spoilt(bad), 3, seed=0, turns=5)
    assert not recorded.mock_calls


def test_infinities_that_cancel_out():
    pair = np.zeros((2, 3), np.float32)
    pair[0, 0], pair[1, 2] = np.inf, -np.inf
    with np.errstate(invalid="ignore"), pytest.raises(NumbersError):
        vectors.checked(pair)


def test_large_numbers_are_no_infinities():
    large = np.full((50, 6), 3e38, np.float32)  # their sum is more than float32 holds
    assert vectors.checked(large) is large
    with np.errstate(over="ignore"), pytest.raises(NumbersError):
        vectors.checked(np.full((2, 3), 1e39))


def test_what_goes_in_is_as_faiss_wants_it():
    given = np.asfortranarray(np.random.default_rng(0).normal(size=(4, 6)).astype(np.float16))
    made = vectors.checked(given[:, ::2])
    assert made.dtype == np.float32 and made.flags.c_contiguous
    np.testing.assert_array_equal(made, given[:, ::2])
    assert vectors.checked(unit(0)).shape == (0, 6)
