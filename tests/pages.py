"""Pages of `skipbench report` taken apart, and records and pictures to make them of."""

import json
import re
from html.parser import HTMLParser

from made import data_part, make_result, of_schema_1
from PIL import Image

from skipbench.record_store import write_result

SCRIPT = "<script>window.pwned = 1; alert(1)</script>"
HOSTILE = (
    SCRIPT,
    "\"onmouseover='window.pwned=1'autofocus onfocus=window.pwned=1 x=\"",
    "</script></style></textarea></title><img src=x onerror=window.pwned=1>",
    "javascript:window.pwned=1",
    "<!--<svg onload=window.pwned=1>",
    "{{ 7 * 7 }}{% raw %}",
    "turned\u202earound\x1b[31m\x00\u200b",
    "half \udcff of a pair",
    "L" * 5000,
    "$(touch pwned); `touch pwned` 'quoted' \"too\"",
)


class Elements(HTMLParser):
    """Every tag with its attributes, and all text by the tag that it stands in."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self):
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))

    def of(self, tag, name=None):
        found = [attributes for one, attributes in self.tags if one == tag]
        return [a for a in found if name is None or name in (a.get("class") or "").split()]


def tile(folder, name, colour=(200, 80, 40), size=(60, 40)):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(folder / name)


def with_tiles(
    folder, result, own="prediction", images=("one", "two"), legend=(("cat", "#112233"),)
):
    tiles = folder / result.id / "tiles"
    index = []
    for name in images:
        files = {"shared": {"image": f"{name}.png", "truth": f"{name}_t.png"}}
        files["own"] = {own: f"{name}_{own}.png"}
        for file in (*files["shared"].values(), *files["own"].values()):
            tile(tiles, file)
        index.append({"image": name, **files})
    (tiles / "index.json").write_text(json.dumps({"tiles": index, "legend": legend}))
    return tiles


def hostile_records(folder):
    """Whatever a file can be called, in every place that a name can stand."""
    for i, name in enumerate(HOSTILE):
        facts = {
            "name": name, "dataset": name, "optimizer": name, "layers": name, "blocks": [1, 2],
            "residual": ("skip", "skipless")[i % 2], "protocol": {name: name, "name": name},
            "call": {"ckpt": name, "dataset": name, name: name},
            "metrics": {"per_class": {name: 10.0 + i, "cat": None}, name: name},
            "checkpoint": {"sources": {"name": name}, "warning": name},
            "data": data_part(name, partial=True), "interval": [49.0, 51.0],
        }  # fmt: skip
        result = make_result(**facts)
        write_result(folder, result, {})
        with_tiles(folder, result, own=re.sub(r"\W", "", name)[:20], legend=[[name, "#aabbcc"]])
    rude = of_schema_1(make_result(), evaluation=SCRIPT, id="of-no-known-kind")
    write_result(folder, rude, {})
    (folder / f"{SCRIPT.replace('/', '_')}.json").write_text("{")
