"""What is built, installed, typed and depended on: not from this folder, but as users get it."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
import stub
from conftest import clean_environment

import skipbench

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGE = ROOT / "skipbench" / "manual" / "dependencies.md"
USER = ROOT / "tests" / "typed_user.py"
TYPED = pytest.mark.skipif(not find_spec("mypy"), reason="mypy is in the extra `dev`")


def run(*command, cwd):
    environment = {k: v for k, v in clean_environment(cwd).items() if k != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    needed = PROJECT["build-system"]["requires"][0]
    least = int(needed.removeprefix("setuptools>="))
    if not find_spec("pip") or not find_spec("setuptools"):
        pytest.skip("pip and setuptools are needed to build a wheel")
    if int(metadata.version("setuptools").split(".")[0]) < least:
        pytest.skip(f"{needed} is needed to build a wheel without a network")
    folder = tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "skipbench", folder / "skipbench", ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--wheel-dir", folder / "made", folder, cwd=folder)
    (made,) = (folder / "made").iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The interpreter of an environment with the wheel, and with what it depends on from here."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, wheel, cwd=folder)
    here = sysconfig.get_paths()["purelib"]
    packages = run(
        python, "-c", "import sysconfig as s; print(s.get_paths()['purelib'])", cwd=folder
    )
    # Its own .pth files are not read: an editable skipbench there does not count.
    (Path(packages.strip()) / "here.pth").write_text(here)
    return python


# -- the wheel


def test_the_wheel_has_every_file_of_the_package(wheel):
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("skipbench/")}
    files = {path for path in (ROOT / "skipbench").rglob("*") if path.is_file()}
    expected = {f"{path.relative_to(ROOT)}" for path in files if "__pycache__" not in path.parts}
    assert packed == expected
    assert {"skipbench/py.typed", "skipbench/__init__.pyi", "skipbench/manual/probe.md"} <= packed
    assert any(name.startswith("skipbench/datasets/facts/") for name in packed)
    assert any(name.startswith("skipbench/results/report/page/") for name in packed)


def test_the_installed_command_works(installed, tmp_path):
    command = installed.parent / "skipbench"
    place = run(installed, "-c", "import skipbench; print(skipbench.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(installed.parents[1])
    assert run(command, "--version", cwd=tmp_path).split()[-1] == skipbench.__version__
    assert "tokencut" in run(command, "--help", cwd=tmp_path)
    assert run(command, "manual", "probe", "--raw", cwd=tmp_path).startswith("# ")
    assert "voc" in run(command, "data", "list", cwd=tmp_path)


# -- types


def test_the_stub_is_up_to_date():
    assert stub.FILE.read_text() == stub.stub(), "run `make stub`"


def test_the_users_program_has_every_public_name():
    tree = ast.parse(USER.read_text())
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {f"sb.{name}" for name in skipbench.__all__} <= used


@TYPED
def test_types_hold_under_mypy_strict(installed, tmp_path, request):
    """Of the installed package: errors inside it would not be shown, but an Any would spread."""
    values = [name for name in skipbench.__all__ if not isinstance(getattr(skipbench, name), type)]
    classes = [name for name in skipbench.__all__ if name not in values]
    (tmp_path / "user.py").write_text(USER.read_text())
    (tmp_path / "no_any.py").write_text(
        "# mypy: disallow-any-expr, disallow-any-unimported\nimport skipbench as sb\n"
        + "".join(f"{name} = sb.{name}\n" for name in values)
        + "".join(f"def take_{name}(x: sb.{name}) -> None:\n    y = x\n" for name in classes)
    )
    cache = request.config.cache.mkdir("mypy")
    run(
        sys.executable, "-m", "mypy", "--strict", "--python-executable", installed,
        "--cache-dir", cache, "user.py", "no_any.py", cwd=tmp_path,
    )  # fmt: skip


# -- dependencies


def requirements():
    """(name, extra or "") → lower bound."""
    project = PROJECT["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        (line.split(">=")[0], extra): line.split(">=")[1]
        for extra, lines in groups.items()
        for line in lines
    }


def test_every_dependency_has_a_lower_bound_alone():
    """That is what `make test-oldest` installs; another bound would not be run."""
    for bound in requirements().values():
        assert re.fullmatch(r"\d+(\.\d+)*", bound)


def licences():
    """(name, extra or "") → licence, from the manual."""
    rows = re.findall(
        r"^\| \[?`?([\w-]+)`?[^|]*\| (\w*) ?\| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    return {(name, extra): licence.strip() for name, extra, licence in rows if name != "package"}


def test_the_manual_lists_every_dependency():
    assert licences().keys() == requirements().keys()


IN_WORDS = {"PSF": "Python Software Foundation", "MPL": "MPL|Mozilla"}


@pytest.mark.parametrize("name, extra", requirements())
def test_the_licence_is_the_one_of_the_package(name, extra):
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    kinds = [one for one in about.get_all("Classifier", []) if one.startswith("License")]
    stated = f"{about.get('License-Expression')} {about.get('License')} {kinds}"
    family = licences()[name, extra].split("-")[0]
    assert re.search(IN_WORDS.get(family, family), stated), stated[:200]
