"""The manual: one Markdown page per topic, which needs no registration.

A page begins with a heading and a one-sentence summary. Pages link to each other with relative
links, which also work on GitHub.
"""

import re
from pathlib import Path

from skipbench.errors import UsageError, did_you_mean

FOLDER = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([\w.-]+)\)")  # to a file beside the page


def topics() -> dict[str, str]:
    """Topic → first sentence of its page, in alphabetical order."""
    found = {}
    for path in sorted(FOLDER.glob("*.md")):
        paragraph = path.read_text(encoding="utf-8").split("\n\n")[1]
        found[path.stem] = re.split(r"(?<=\.)\s", paragraph.strip())[0]
    return found


def read_page(topic: str) -> str:
    """Markdown, as it is on disk."""
    known = sorted(path.stem for path in FOLDER.glob("*.md"))
    if topic not in known:
        near = did_you_mean(topic, known)
        raise UsageError(f"no topic {topic!r}.{near} Known: {', '.join(known)}")
    return (FOLDER / f"{topic}.md").read_text(encoding="utf-8")


def for_terminal(markdown: str) -> str:
    """With the command behind each link to a page, and pictures as paths."""
    return LINK.sub(_as_command, markdown)


def _as_command(link: re.Match[str]) -> str:
    picture, words, file = link.groups()
    if picture:
        return f"({words}: {FOLDER / file})"
    return f"{words} (`skipbench manual {file.removesuffix('.md')}`)"
