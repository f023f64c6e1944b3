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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from skipbench.errors import DataError, SkipbenchError
from skipbench.results.entries import Entry, differing_words, grouped
from skipbench.results.paired import ModelCounts
from skipbench.results.read import Stored
from skipbench.results.report.comparisons import MISSHAPEN
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

Key = TypeVar("Key")


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
        """None without counts by image, or if they do not fit the record."""
        try:
            return ModelCounts(self.score.result, [self.score.stored.counts()])
        except (SkipbenchError, *MISSHAPEN):
            return None

    @cached_property
    def scores(self) -> dict[str, float]:
        """Each image's own score, in percent."""
        if self.counts is None:
            return {}
        pairs = zip(self._names, self.counts.by_image.tolist(), strict=True)
        return {name: round(value, 1) for name, value in pairs if isfinite(value)}

    @cached_property
    def classes(self) -> dict[str, list[str]]:
        """Those in each image's ground truth or prediction."""
        if self.counts is None or not self.counts.has_classes:
            return {}
        known, counts = self.counts.classes, self.counts.counts[0]
        if len(known) != counts.shape[2]:
            return {}
        found = counts[:, 1:].sum(1) > 0
        return {
            name: [known[i] for i in row.nonzero()[0]]
            for name, row in zip(self._names, found, strict=True)
        }

    @property
    def _names(self) -> list[str]:
        return [str(name) for name in self.score.result.dataset["names"]]


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
        made.append(_group(title, group, looks, left_out))
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


def _group(
    title: str, group: Sequence[Tiles], looks: Mapping[Model, Look], left_out: list[str]
) -> dict[str, Any]:
    shown = _chosen(group)
    # The first of each record, then the second: no record pushes out another's.
    turns = zip_longest(*(tiles.images for tiles in shown))
    names = list(dict.fromkeys(name for turn in turns for name in turn if name is not None))
    most = max(FEWEST_IMAGES, MOST_TILES // len(shown))
    how = _differing_settings(shown)
    rows = [_row(name, shown, how, looks, left_out) for name in names[:most]]
    rows = [row for row in rows if row["shared"] or row["sets"]]
    return {
        "title": title,
        "rows": rows,
        "legend": list(dict(pair for tiles in shown for pair in tiles.legend).items()),
        "classes": sorted({name for row in rows for name in row["classes"]}, key=natural),
        "scored": [(one.id, _label(one, how)) for one in shown if one.scores],
        "has_truth": any(TRUTH in t["places"] for r in rows for s in r["sets"] for t in s["tiles"]),
        "more_records": len(group) - len(shown),
        "more_images": len(names[most:]),
    }


def _label(tiles: Tiles, how: Mapping[str, str]) -> str:
    facts = tiles.score.facts
    words = (facts["checkpoint"], facts["residual"], *_words(tiles, how))
    return ", ".join(short(word) for word in words)


def _words(tiles: Tiles, how: Mapping[str, str], *more: str) -> list[str]:
    """The evaluation, the features, and settings if they differ; without repeats."""
    words = (tiles.score.title, *more, features_name(tiles.score.facts["features"]), how[tiles.id])
    return [word for word in dict.fromkeys(words) if word]


def _chosen(group: Sequence[Tiles]) -> list[Tiles]:
    """The best of each evaluation and choice of features."""
    ordered = sorted(group, key=lambda tiles: pairs_together(tiles.score))
    facts = ("evaluation", "method", "features")
    alike = grouped(ordered, lambda tiles: tuple(tiles.score.facts[name] for name in facts))
    best = [sorted(some, key=_best_first)[:MOST_ALIKE] for some in alike.values()]
    shown = {tiles.id for some in best for tiles in some}
    return [tiles for tiles in ordered if tiles.id in shown][:MOST_RECORDS]


def _best_first(tiles: Tiles) -> float:
    return -tiles.score.value if tiles.score.known else float("inf")


def _differing_settings(shown: Sequence[Tiles]) -> dict[str, str]:
    """By id: settings, if others of its kind have others. Of several blocks the best is drawn,
    wherever that of the score was chosen."""
    entries = [Entry((tiles.score,)) for tiles in shown]
    found = {}
    for entry in entries:
        peers = [other for other in entries if other.first.title == entry.first.title]
        but_for = [CHOSEN] if entry.first.evaluation.by_block else []
        found[entry.first.result.id] = differing_words(entry, peers, but_for)
    return found


def _row(
    image: str,
    shown: Sequence[Tiles],
    how: Mapping[str, str],
    looks: Mapping[Model, Look],
    left_out: list[str],
) -> dict[str, Any]:
    """how: words on a record, by its id."""
    shared, places = _shared(image, shown, left_out)
    sets: dict[str, list[dict[str, Any]]] = {}
    for tiles in shown:
        about = {
            "facts": tiles.score.facts,
            "id": tiles.id,
            "look": looks[model_of(tiles.score.facts)],
            "note": tiles.notes.get(image),
        }
        files = tiles.files(image, "own")
        for kind, made in _embedded(files, left_out):
            # The first kind shows what the ground truth does: prediction, box.
            shared_places = places[tiles.id] if kind == next(iter(files)) else {}
            words = ", ".join(_words(tiles, how, tiles.caption(kind)))
            sets.setdefault(words, []).append(made | about | {"places": shared_places})
    return {
        "image": image,
        "shared": shared,
        "sets": [{"words": words, "tiles": made} for words, made in sets.items()],
        "scores": {one.id: one.scores[image] for one in shown if image in one.scores},
        "classes": list(dict.fromkeys(c for one in shown for c in one.classes.get(image, ()))),
    }


def _shared(
    image: str, shown: Sequence[Tiles], left_out: list[str]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]]]:
    """The image and the ground truth of each evaluation (masks and boxes differ), without repeats;
    and for each record, by its id, where its own are in that list: {"image": 0, "truth": 1}."""
    found: list[dict[str, Any]] = []
    numbers: dict[tuple[str, str], int] = {}  # (kind, evaluation) → place
    places: dict[str, dict[str, int]] = {}
    for tiles in shown:
        files = {
            (kind, "" if kind == PICTURE else tiles.score.evaluation.title): path
            for kind, path in tiles.files(image, "shared").items()
        }
        missing = {key: path for key, path in files.items() if key not in numbers}
        for key, made in _embedded(missing, left_out):
            about = made | {"caption": tiles.caption(key[0]), "whose": key[1]}
            numbers[key] = _place(found, about)
        places[tiles.id] = {key[0]: numbers[key] for key in files if key in numbers}
    several = Counter(one["caption"] for one in found)
    for one in found:
        more = f" ({one['whose']})" if several[one["caption"]] > 1 else ""
        one["kind"] = one["caption"] + more
    return found, places


def _place(found: list[dict[str, Any]], about: dict[str, Any]) -> int:
    """Index of the same picture with the same caption, which is added if it is new."""
    for place, one in enumerate(found):
        if (one["caption"], one["source"]) == (about["caption"], about["source"]):
            return place
    found.append(about)
    return len(found) - 1


def _embedded(
    files: Mapping[Key, Path], left_out: list[str]
) -> Iterable[tuple[Key, dict[str, Any]]]:
    """A file that is not there is no problem; one that is no picture is."""
    for kind, path in files.items():
        try:
            if path.is_symlink() or path.exists():
                source, width, height = embed(path.parent, path)
                yield kind, {"source": source, "width": width, "height": height}
        except DataError as error:
            left_out.append(str(error))
