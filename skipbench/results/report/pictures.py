"""The page's pictures: the tiles that evaluations put beside their records, side by side, with what
the page's script filters and sorts them by: each image's score and classes, from the counts.

    results/<id>/tiles/index.json    {"tiles": [{"image", "shared": {kind: file}, "own": {…},
                                                 "note": words on its own ones}, …],
                                      "legend": [[class, "#rrggbb"], …]}

The folder may be anyone's: only plain files in it are read, none too large, and what is no picture
is named and left out.
"""

import io
import json
import re
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from skipbench.errors import DataError
from skipbench.results.entries import Entry, differing_words, grouped
from skipbench.results.paired import ModelCounts
from skipbench.results.read import Stored
from skipbench.results.report.comparisons import counts_of
from skipbench.results.report.models import Look, Model, model_of
from skipbench.results.report.records import pairs_together
from skipbench.results.scores import CHOSEN, Score
from skipbench.results.words import dataset_name, features_name, natural, short

MOST_INDEX_BYTES = 1_000_000
MOST_BYTES = 8_000_000  # of a picture's file
MOST_PIXELS = 8_000_000
MOST_SIDE = 640  # on the page; larger ones are made smaller
MOST_TILES = 320  # of a data set: the more records, the fewer images
FEWEST_IMAGES = 12
MOST_RECORDS = 24  # side by side
MOST_ALIKE = 8  # of one evaluation and choice of features; of more, those with the highest scores
PICTURE = "image"  # the kind that is the same, whatever was evaluated
TRUTH = "truth"


@dataclass(frozen=True)
class Tiles:
    """The pictures of one record."""

    score: Score
    images: Mapping[str, Mapping[str, Mapping[str, Path]]]  # image → "shared", "own" → kind → file
    legend: tuple[tuple[str, str], ...]
    notes: Mapping[str, str]  # image → a few words

    @property
    def id(self) -> str:
        return self.score.result.id

    def files(self, image: str, part: str) -> Mapping[str, Path]:
        return self.images.get(image, {}).get(part, {})

    def caption(self, kind: str) -> str:
        return "ground truth" if kind == TRUTH else self.score.evaluation.tiles.get(kind, kind)

    @cached_property
    def counts(self) -> ModelCounts | None:
        return counts_of(Entry((self.score,)))

    @cached_property
    def scores(self) -> dict[str, float]:
        """Each image's own score, in percent."""
        values = self.counts.by_image.tolist() if self.counts else []
        pairs = zip(self.score.result.dataset["names"], values, strict=False)
        return {str(name): round(value, 1) for name, value in pairs if isfinite(value)}

    @cached_property
    def classes(self) -> dict[str, list[str]]:
        """Those in each image's ground truth or prediction."""
        if self.counts is None or not self.counts.has_classes:
            return {}
        known, counts = self.counts.classes, self.counts.counts[0]
        if len(known) != counts.shape[2]:
            return {}
        rows = zip(self.score.result.dataset["names"], counts[:, 1:].sum(1) > 0, strict=True)
        return {str(name): [known[i] for i in row.nonzero()[0]] for name, row in rows}


def picture_groups(
    records: Sequence[Stored], looks: Mapping[Model, Look]
) -> tuple[list[dict[str, Any]], list[str]]:
    """A group for each list of images; and what was left out."""
    left_out: list[str] = []
    groups: dict[tuple[str, str, str], list[Tiles]] = {}
    for stored in records:
        try:
            tiles = read_tiles(stored)
        except DataError as error:
            left_out.append(str(error))
            continue
        if tiles:
            data = stored.result.dataset
            key = str(data["name"]), str(data["split"]), str(data["fingerprint"])
            groups.setdefault(key, []).append(tiles)
    titles = Counter((name, split) for name, split, _ in groups)
    made = []
    for (name, split, _), group in sorted(groups.items()):
        title = f"{dataset_name(name)}, {split}"
        title += _which_images(group) if titles[name, split] > 1 else ""
        made.append(Gallery(group, looks, left_out).content(title))
    return made, left_out


def _which_images(group: Sequence[Tiles]) -> str:
    """If a split was evaluated on several lists of images, or with other labels."""
    ordered = sorted(group, key=lambda tiles: pairs_together(tiles.score))
    kinds = dict.fromkeys(tiles.score.title for tiles in ordered)
    return f" ({', '.join(kinds)}, {group[0].score.result.dataset['images']:,} images)"


# -- reading


def read_tiles(stored: Stored) -> Tiles | None:
    folder = stored.folder / stored.result.id / "tiles"
    try:
        text = _inside(stored.folder, folder / "index.json", MOST_INDEX_BYTES)
        content = json.loads(text.read_bytes())
        images = {
            str(tile["image"]): {
                part: {str(kind): folder / _plain_name(file) for kind, file in tile[part].items()}
                for part in ("shared", "own")
            }
            for tile in content["tiles"]
        }
        notes = {str(tile["image"]): str(tile.get("note", "")) for tile in content["tiles"]}
        legend = tuple((str(name), _colour(colour)) for name, colour in content.get("legend", []))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{stored.result.id}/tiles/index.json: not used ({error})") from None
    return Tiles(Score(stored), images, legend, notes)


def _plain_name(file: object) -> str:
    if not isinstance(file, str) or not file or Path(file).name != file or "\\" in file:
        raise ValueError(f"{str(file)[:80]!r} is no file in its folder")
    return file


def _colour(text: object) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        raise ValueError(f"{str(text)[:80]!r} is no colour")
    return text


def _inside(root: Path, path: Path, most_bytes: int) -> Path:
    """The file itself, wherever links lead: below the root, and not too large."""
    real = path.resolve()
    if not real.is_relative_to(root.resolve()):
        raise ValueError("it is outside its folder")
    if real.exists() and not real.is_file():  # a pipe would never end
        raise ValueError("it is no file")
    if real.stat().st_size > most_bytes:
        raise ValueError(f"it is larger than {most_bytes / 1e6:g} MB")
    return real


def embed(folder: Path, path: Path) -> tuple[str, int, int]:
    """(data: address, width, height); re-encoded if that makes it smaller."""
    from PIL import Image, UnidentifiedImageError

    try:
        data = _inside(folder, path, MOST_BYTES).read_bytes()
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP")) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"it has more than {MOST_PIXELS / 1e6:g} million pixels")
            kind, size = str(picture.format).lower(), picture.size
            small = picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError) as error:
        told = str(error).replace(str(path), path.name)
        raise DataError(f"{path.parent.parent.name}/tiles/{path.name}: left out ({told})") from None
    small.thumbnail((MOST_SIDE, MOST_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=82)
    if len(buffer.getvalue()) < len(data) or small.size != size:
        data, kind = buffer.getvalue(), "webp"
    return f"data:image/{kind};base64,{b64encode(data).decode()}", *small.size


# -- what is shown


@dataclass(frozen=True)
class Gallery:
    """The pictures of one list of images."""

    group: Sequence[Tiles]
    looks: Mapping[Model, Look]
    left_out: list[str]  # grows

    def content(self, title: str) -> dict[str, Any]:
        # The first of each record, then the second: no record pushes out another's.
        turns = zip_longest(*(tiles.images for tiles in self.shown))
        names = list(dict.fromkeys(name for turn in turns for name in turn if name is not None))
        most = max(FEWEST_IMAGES, MOST_TILES // len(self.shown))
        rows = [row for name in names[:most] if (row := self._row(name))["shared"] or row["sets"]]
        return {
            "title": title,
            "rows": rows,
            "legend": list(dict(pair for tiles in self.shown for pair in tiles.legend).items()),
            "classes": sorted({name for row in rows for name in row["classes"]}, key=natural),
            "scored": [(one.id, self._label(one)) for one in self.shown if one.scores],
            "has_truth": any(
                TRUTH in tile["places"] for r in rows for s in r["sets"] for tile in s["tiles"]
            ),
            "more_records": len(self.group) - len(self.shown),
            "more_images": len(names[most:]),
        }

    @cached_property
    def shown(self) -> list[Tiles]:
        """The best of each evaluation and choice of features."""
        ordered = sorted(self.group, key=lambda tiles: pairs_together(tiles.score))
        facts = ("evaluation", "method", "features")
        alike = grouped(ordered, lambda tiles: tuple(tiles.score.facts[name] for name in facts))
        best = {t.id for some in alike.values() for t in sorted(some, key=_best_first)[:MOST_ALIKE]}
        return [tiles for tiles in ordered if tiles.id in best][:MOST_RECORDS]

    @cached_property
    def how(self) -> dict[str, str]:
        """By id: settings, if others of its kind have others. Of several blocks the best is drawn,
        wherever that of the score was chosen."""
        entries = [Entry((tiles.score,)) for tiles in self.shown]
        found = {}
        for entry in entries:
            peers = [other for other in entries if other.first.title == entry.first.title]
            but_for = [CHOSEN] if entry.first.evaluation.by_block else []
            found[entry.first.result.id] = differing_words(entry, peers, but_for)
        return found

    def _label(self, tiles: Tiles) -> str:
        facts = tiles.score.facts
        words = (facts["checkpoint"], facts["residual"], *self._words(tiles))
        return ", ".join(short(word) for word in words)

    def _words(self, tiles: Tiles, *more: str) -> list[str]:
        """The evaluation, the features, and settings if they differ; without repeats."""
        features = features_name(tiles.score.facts["features"])
        words = (tiles.score.title, *more, features, self.how[tiles.id])
        return [word for word in dict.fromkeys(words) if word]

    def _row(self, image: str) -> dict[str, Any]:
        shared, places = self._shared(image)
        sets: dict[str, list[dict[str, Any]]] = {}
        for tiles in self.shown:
            about = {
                "facts": tiles.score.facts,
                "id": tiles.id,
                "look": self.looks[model_of(tiles.score.facts)],
                "note": tiles.notes.get(image),
            }
            files = tiles.files(image, "own")
            for kind, path in files.items():
                if made := self._embedded(path):
                    # The first kind shows what the ground truth does: prediction, box.
                    own = places[tiles.id] if kind == next(iter(files)) else {}
                    words = ", ".join(self._words(tiles, tiles.caption(kind)))
                    sets.setdefault(words, []).append({**made, **about, "places": own})
        classes = (name for one in self.shown for name in one.classes.get(image, ()))
        return {
            "image": image,
            "shared": shared,
            "sets": [{"words": words, "tiles": made} for words, made in sets.items()],
            "scores": {one.id: one.scores[image] for one in self.shown if image in one.scores},
            "classes": list(dict.fromkeys(classes)),
        }

    def _shared(self, image: str) -> tuple[list[dict[str, Any]], Mapping[str, dict[str, int]]]:
        """The image and the ground truth of each evaluation (masks and boxes differ), without
        repeats; and for each record, by its id, where its own are in that list:
        {"image": 0, "truth": 1}."""
        found: dict[tuple[str, str], dict[str, Any]] = {}  # by caption and content
        keys: dict[tuple[str, str], tuple[str, str]] = {}  # of a kind and an evaluation
        places: dict[str, dict[str, int]] = defaultdict(dict)
        for tiles in self.shown:
            for kind, path in tiles.files(image, "shared").items():
                whose = "" if kind == PICTURE else tiles.score.title
                if (kind, whose) not in keys and (made := self._embedded(path)):
                    key = keys[kind, whose] = tiles.caption(kind), made["source"]
                    found.setdefault(key, {**made, "kind": key[0], "whose": whose})
                if (kind, whose) in keys:
                    places[tiles.id][kind] = list(found).index(keys[kind, whose])
        several = Counter(caption for caption, _ in found)
        for (caption, _), one in found.items():
            one["kind"] += f" ({one['whose']})" if several[caption] > 1 else ""
        return list(found.values()), places

    def _embedded(self, path: Path) -> dict[str, Any] | None:
        """A file that is not there is no problem; one that is no picture is."""
        if not (path.is_symlink() or path.exists()):
            return None
        try:
            return dict(zip(("source", "width", "height"), embed(path.parent, path), strict=True))
        except DataError as error:
            self.left_out.append(str(error))
            return None


def _best_first(tiles: Tiles) -> float:
    return -tiles.score.value if tiles.score.known else float("inf")
