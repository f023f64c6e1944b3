"""The manual: one Markdown page per topic. A page in this folder is found; nothing lists them.

A page begins with a heading and a sentence that says what it is about. Pages link to each other
with relative links, as GitHub follows them.
"""

import re
from pathlib import Path

from skipbench.errors import UsageError, did_you_mean

FOLDER = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([\w.-]+)\)")  # to a file beside the page


def topics() -> dict[str, str]:
    """Topic → first sentence of its page, in alphabetical order."""
    return {path.stem: _summary(path) for path in sorted(FOLDER.glob("*.md"))}


def read_page(topic: str) -> str:
    """Markdown, as it is on disk."""
    known = [path.stem for path in sorted(FOLDER.glob("*.md"))]
    if topic not in known:
        near = did_you_mean(topic, known)
        raise UsageError(f"no topic {topic!r}.{near} Known: {', '.join(known)}")
    return _text(FOLDER / f"{topic}.md")


def for_terminal(markdown: str) -> str:
    """With links to pages as commands, and pictures as paths."""
    return LINK.sub(_as_command, markdown)


def _as_command(link: re.Match[str]) -> str:
    picture, words, file = link.groups()
    if picture:
        return f"({words}: {FOLDER / file})"
    topic = file.removesuffix(".md")
    command = f"`skipbench manual {topic}`"
    return command if words == topic else f"{words} ({command})"


def _summary(path: Path) -> str:
    paragraph = _text(path).split("\n\n")[1]
    return re.split(r"(?<=\.)\s", paragraph.strip())[0]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
