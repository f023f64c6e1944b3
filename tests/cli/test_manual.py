"""The manual is right about the package, its links lead somewhere, and it is shown at once."""

import ast
import inspect
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from conftest import clean_environment, command

import skipbench
from skipbench import datasets, errors, manual
from skipbench.cli import app

ROOT = Path(skipbench.__file__).parents[1]
README = ROOT / "README.md"
PAGES = {path.stem: path for path in sorted(manual.FOLDER.glob("*.md"))}
TEXTS = {"README": README.read_text(), **{name: path.read_text() for name, path in PAGES.items()}}
HEAVY = {"torch", "timm", "torchvision", "faiss", "scipy", "skimage", "numpy", "matplotlib"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY_TEXT = pytest.mark.parametrize("name", TEXTS)


def fences(text, *languages):
    return [code for language, code in FENCE.findall(text) if language in languages]


def inline_code(text):
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def prose(text):
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


# -- the command


@pytest.mark.parametrize("topic", PAGES)
def test_every_page_renders(cli, topic):
    done = cli("manual", topic)
    assert done.exit_code == 0, done.output
    title = PAGES[topic].read_text().splitlines()[0].removeprefix("# ")
    assert done.stdout.splitlines()[0].strip() == title
    assert "](" not in done.stdout and "\x1b" not in done.stdout
    for code in fences(PAGES[topic].read_text(), "", "python", "toml", "yaml"):
        for line in filter(None, code.splitlines()):
            assert f"  {line}" in done.stdout  # whole, however long


def test_raw_is_the_file(cli):
    assert cli("manual", "probe", "--raw").stdout == PAGES["probe"].read_text()


def test_links_are_commands_in_the_terminal(cli):
    assert "[performance](performance.md)" in PAGES["probe"].read_text()
    assert "skipbench manual performance" in cli("manual", "probe").stdout
    assert "pca.png" in cli("manual", "pca").stdout


def test_the_list_has_a_line_for_every_page(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("manual").stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(PAGES)]] == list(PAGES)
    for topic, summary in manual.topics().items():
        assert re.fullmatch(r"[^`\[\]*]+\.", summary), f"{topic}: {summary}"
        assert any(line.split() == [topic, *summary.split()] for line in lines), topic


def test_unknown_topic(cli):
    done = cli("manual", "prob")
    assert done.exit_code == 2
    assert "no topic 'prob'. Did you mean 'probe'? Known: " in done.stderr


def test_nothing_heavy_is_imported(tmp_path):
    script = (
        "import sys\nfrom skipbench.cli import app\n"
        "for topic in sys.argv[1:]:\n    app(['manual', topic], standalone_mode=False)\n"
        "print('MODULES', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *PAGES], capture_output=True, text=True, timeout=60,
        env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split("MODULES")[1].split()
    assert "rich.markdown" in modules
    assert not {name.split(".")[0] for name in modules} & HEAVY


def test_paged_in_a_terminal(tmp_path):
    ours, theirs = pty.openpty()
    environment = clean_environment(tmp_path) | {"PAGER": "cat -n", "TERM": "xterm"}
    process = subprocess.Popen(
        command("manual", "faiss"), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert re.search(rb"\b1\t.*faiss", shown) and b"\x1b[" in shown


# -- the README


def test_readme_is_short():
    assert len(TEXTS["README"].splitlines()) <= 200
    assert len(README.read_bytes()) <= 10_000


def test_readme_links_to_every_topic():
    linked = re.findall(r"\]\(skipbench/manual/(\w+)\.md\)", TEXTS["README"])
    assert set(linked) == set(PAGES)


def test_readme_has_a_line_for_every_command():
    lines = "\n".join(fences(TEXTS["README"], ""))
    for name in tree().commands:
        assert f"skipbench {name}" in lines, name


# -- what the texts say


def tree():
    return typer.main.get_command(app)


def commands_in(text):
    """Commands in code blocks and in inline code, as lists of words, but for those that the page
    itself shows how to add."""
    lines = [line for code in fences(text, "", "yaml") for line in code.splitlines()]
    lines = [re.sub(r"^\s*- run: ", "", line) for line in lines] + inline_code(text)
    found = [line.strip().removeprefix("$ ") for line in lines]
    words = [
        shlex.split(line, comments=True)[1:] for line in found if line.startswith("skipbench ")
    ]
    added = re.findall(r"^# skipbench/evaluations/(\w+)/", text, re.MULTILINE)
    return [some for some in words if some[0] not in added]


def options_of(parameters):
    return {o for p in parameters for o in (*p.opts, *p.secondary_opts) if o.startswith("-")}


@ANY_TEXT
def test_commands_and_their_options_exist(name):
    for words in commands_in(TEXTS[name]):
        found = tree()
        given = list(words)
        while hasattr(found, "commands") and given and not given[0].startswith("-"):
            assert given[0] in found.commands, " ".join(words)
            found = found.commands[given.pop(0)]
        flags = {word.partition("=")[0] for word in given if word.startswith("-")}
        assert flags <= options_of(found.params) | {"--help"}, " ".join(words)


def all_commands(found):
    yield found
    for one in getattr(found, "commands", {}).values():
        yield from all_commands(one)


@ANY_TEXT
def test_options_named_alone_exist(name):
    known = set().union(*(options_of(one.params) for one in all_commands(tree())))
    for code in inline_code(TEXTS[name]):
        if not code.startswith(("pip ", "benchmarks/")):
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) <= known | {"--help"}, code


@ANY_TEXT
def test_links_lead_somewhere(name):
    folder = ROOT if name == "README" else manual.FOLDER
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(TEXTS[name])):
        if not target.startswith("https://"):
            file, _, anchor = target.partition("#")
            assert (folder / file).is_file(), target
            assert not anchor, "no links into the middle of a page"


@ANY_TEXT
def test_files_named_exist(name):
    for code in inline_code(TEXTS[name]):
        if re.fullmatch(r"(skipbench|tests|benchmarks)/[\w/.-]+", code.split()[0]):
            assert (ROOT / code.split()[0]).exists(), code


@ANY_TEXT
def test_python_examples_use_what_is_there(name):
    code_blocks = fences(TEXTS[name], "python")
    # Whole files, which begin with their path, are put in place and run by another test.
    for code in [block for block in code_blocks if not block.startswith("# skipbench/")]:
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom):
                module = __import__(node.module, fromlist=["*"])
                assert all(hasattr(module, alias.name) for alias in node.names)
            if isinstance(node, ast.Call) and (function := public_function(node.func)):
                signature = inspect.signature(function)
                signature.bind(*node.args, **{k.arg: k.value for k in node.keywords})


def public_function(node):
    """`sb.probe` → skipbench.probe; None for anything else."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    return getattr(skipbench, node.attr) if node.value.id in ("sb", "skipbench") else None


def test_data_sets_are_listed_with_their_splits():
    rows = re.findall(r"^\| `(\w+)(?::PATH)?` \|(.*)$", TEXTS["data"], re.MULTILINE)
    assert {name for name, _ in rows} == set(datasets.names())
    for name, row in rows:
        for split, facts in ({} if name == "folder" else datasets.source(name).splits).items():
            assert f"`{split}`" in row and f"{facts.images:,}" in row, f"{name} {split}"


def test_exit_codes_are_listed():
    codes = {one.exit_code for one in vars(errors).values() if hasattr(one, "exit_code")}
    listed = re.findall(r"^\| ([\d, ]+) \|", TEXTS["troubleshooting"], re.MULTILINE)
    assert codes | {0, 1, 2, 5, 130, 143} == {int(c) for row in listed for c in row.split(",")}


QUOTED = {
    "probe": ("best on val, as papers report", "held-out training images", "← best on"),
    "tokencut": (
        "on these images, as papers report",
        "block chosen on one half of the images, scored on the other",
        "trivial baseline: a box around the whole image",
        "degenerate (nothing stands out: counted as misses)",
        "whole if degenerate",
        "with the whole image as the object of degenerate images",
        "tied, resolved by a fixed rule",
    ),
    "knn": ("all of them searched", "tokens in the bank"),
    "cluster": ("mean ± standard deviation over",),
    "pca": (
        "effective rank", "total variation", "between segments %", "upside down %",
        "of colours %", "colours alike", "between segments: share of the features",
    ),
    "compare": ("image sampling alone does not explain the difference", "images in common"),
    "checkpoints": (
        "on four photographs", "the right variant, but its features collapse",
        "tokens collapse onto one vector", "because of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUOTED)
def test_output_is_quoted_as_it_is_printed(name):
    source = "".join(path.read_text() for path in manual.FOLDER.parent.rglob("*.py"))
    for words in QUOTED[name]:
        assert words in source, f"{words!r} is no longer printed"
        # Headings of columns lose nothing but case on the page.
        assert words in TEXTS[name] or words.capitalize() in TEXTS[name]
