"""Help and parsing: nothing heavy is imported, every line fits."""

import re
import subprocess
import sys

import pytest
from conftest import clean_environment
from processes import imported_by
from typer.main import get_command

from skipbench import __version__
from skipbench.cli import app
from skipbench.evaluations import evaluations

HEAVY = {"torch", "timm", "torchvision", "faiss", "scipy", "skimage", "matplotlib", "numpy"}


def all_commands(group, words=()):
    """(words, command) of each, those of groups too."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from all_commands(one, (*words, name))
        else:
            yield (*words, name), one


COMMANDS = dict(all_commands(get_command(app)))
ANY = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
COLUMN = 40  # characters that the help of an option has at least, for a line


@pytest.fixture
def help_of(cli, monkeypatch):
    def help_of(words, columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        return cli(*words, "--help").stdout.splitlines()

    return help_of


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["inspect", "--help"], 0),
        (["probe", "--help"], 0),
        (["report", "--help"], 0),
        (["report", "x", "--opn"], 2),
        (["run", "--help"], 0),
        (["run", "x.toml", "--onyl", "y"], 2),
        (["probe", "--ckpt", "x", "--epochs", "0", "--dataset", "voc"], 2),
        (["tokencut", "--help"], 0),
        (["tokencut", "--ckpt", "x", "--dataset", "voc", "--tau", "low"], 2),
        (["pca", "--help"], 0),
        (["pca", "x", "--ckpt", "y", "--components", "few"], 2),
        (["inspect", "--ckptt", "x"], 2),
        (["inspct"], 2),
        (["extract", "x", "--ckpt", "y", "--limit", "many"], 2),
        (["--show-completion", "bash"], 0),
    ],
)
def test_parsing_imports_nothing_heavy(arguments, code, tmp_path):
    """In a fresh process: what did it import?"""
    assert not imported_by(arguments, code, tmp_path) & HEAVY


@pytest.mark.parametrize(
    ("begun", "offered", "not_offered"),
    [
        ("ins", "inspect", "probe"),
        ("probe --dataset v", "voc voc07", "coco"),
        ("probe --protocol ", "paper dinov2", "voc"),
        ("probe --layers m", "multiscale", "last"),
        ("probe --ckpt ", "a.pth b.safetensors runs/", "notes.txt"),
        ("run ", "suite.toml", "a.pth"),
        ("table --layout ta", "table2 table4", "plain"),
        ("manual ch", "check checkpoints", "probe"),
    ],
)
def test_shell_completion_offers_values_and_imports_nothing_heavy(
    tmp_path, begun, offered, not_offered
):
    for name in ("a.pth", "b.safetensors", "notes.txt", "suite.toml"):
        (tmp_path / name).touch()
    (tmp_path / "runs").mkdir()
    script = (
        "import sys\nfrom skipbench.cli import app\nimport atexit\n"
        "atexit.register(lambda: print('MODULES', *sys.modules))\napp(prog_name='skipbench')"
    )
    environment = clean_environment(tmp_path) | {
        "_SKIPBENCH_COMPLETE": "complete_bash", "COMP_WORDS": f"skipbench {begun}",
        "COMP_CWORD": str(len(begun.split(" "))),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    words, modules = done.stdout.split("MODULES")
    assert set(offered.split()) <= set(words.split()) and not_offered not in words.split()
    lists = {"--dataset", "--layout"} & set(
        begun.split()
    )  # what is offered is in modules with numpy
    heavy = HEAVY - {"numpy"} if lists else HEAVY
    assert not {name.split(".")[0] for name in modules.split()} & heavy


def test_version_and_typo(cli):
    assert cli("--version").stdout == f"skipbench {__version__}\n"
    assert cli("inspct").exit_code == 2


@ANY
@pytest.mark.parametrize("columns", [80, 100])
def test_help_fits_and_no_text_is_squeezed(help_of, words, columns):
    lines = help_of(words, columns)
    assert max(map(len, lines)) <= columns
    for parameter in COMMANDS[words].params:
        text = re.sub(r"\[.*?\]", "", getattr(parameter, "help", None) or "")
        if text and parameter.opts[0].startswith("-") and not parameter.hidden:
            assert columns - column_of(parameter.opts[0], text, lines) - 2 >= COLUMN


def column_of(flag, text, lines):
    """Where the help of an option begins."""
    first = text.split()[0]
    [line] = [line for line in lines if re.match(rf"│ [ *]{{0,4}}{flag}[ ,]", line)]
    return line.index(first, line.index(flag) + len(flag))


@pytest.mark.parametrize("name", evaluations())
def test_help_of_an_evaluation_fits_on_a_page_or_two(help_of, name):
    """What everyone needs comes first: weights, data set, variant, layers."""
    lines = help_of([name], 100)
    assert len(lines) <= 90
    panels = [line.split("─")[1].strip() for line in lines if line.startswith("╭")]
    assert panels[-6:] == [
        "What to evaluate", "Protocol", "Checkpoint", "Data", "Features and cache", "Output",
    ]  # fmt: skip


def test_every_command_is_listed_with_one_line(help_of):
    lines = help_of([], 100)
    for words, command in COMMANDS.items():
        assert any(re.match(rf"│ {words[0]} ", line) for line in lines), words
        assert (command.short_help or command.help).strip()
