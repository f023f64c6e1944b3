"""Folders that are links: followed, wherever images are looked for; loops are named."""

import json

import pytest
import trees

from skipbench.datasets import open_dataset
from skipbench.errors import DataError
from skipbench.images import find_images, read_image

pytestmark = pytest.mark.usefixtures("nowhere_else")


@pytest.fixture
def linked(tmp_path):
    """A folder data set whose splits lie elsewhere."""
    folder = trees.own_folder(tmp_path / "here")
    for kind in ("images", "masks"):
        elsewhere = tmp_path / "elsewhere" / kind
        elsewhere.parent.mkdir(exist_ok=True)
        (folder / kind / "train").rename(elsewhere)
        (folder / kind / "train").symlink_to(elsewhere)
    return folder


def test_a_linked_split_is_the_same_data_set(linked, tmp_path):
    whole = trees.own_folder(tmp_path / "whole")
    names = [open_dataset(f"folder:{one}", "train").names for one in (linked, whole)]
    assert list(names[0]) == list(names[1]) and len(names[0])


def test_every_command_sees_them(linked, cli, ckpt, tmp_path):
    done = cli("data", "verify", f"folder:{linked}", "--json")
    assert done.exit_code == 0, done.stdout
    train = next(s for s in json.loads(done.stdout)["splits"] if s["split"] == "train")
    assert train["images"] > 0
    images = ["--ckpt", ckpt, "--residual", "skip", "--size", "32", "--json"]
    done = cli("extract", linked / "images", *images)
    everything = len(find_images([linked / "images"]))
    assert json.loads(done.stdout)["images"] == everything > train["images"]
    done = cli(
        "tokencut", "--images", linked / "images" / "train", *images[:-1], "--out", tmp_path / "o"
    )
    assert done.exit_code == 0 and len(list((tmp_path / "o").glob("*.png"))) >= train["images"]
    done = cli("pca", linked / "images", *images, "--out", tmp_path / "p")
    assert done.exit_code == 0, done.stderr
    [record] = (tmp_path / "p").glob("pca-*.json")
    assert json.loads(record.read_text())["dataset"]["images"] == everything


def test_folders_of_a_devkit_may_be_links(tmp_path):
    whole = open_dataset("voc", root=trees.voc(tmp_path / "whole"), limit=9)
    devkit = trees.voc(tmp_path / "here")
    for path in list(devkit.iterdir()):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    linked = open_dataset("voc", root=tmp_path / "here", limit=9)
    assert len(linked) == 2 and linked.fingerprint() == whole.fingerprint()


def test_broken_links_are_why_nothing_is_found(tmp_path):
    folder = trees.own_folder(tmp_path)
    devkit = trees.voc(tmp_path)
    for place in (folder / "images", devkit / "JPEGImages"):
        place.rename(tmp_path / place.name)
        place.symlink_to("/mnt/unmounted")
    broken = "is a broken link to /mnt/unmounted"
    with pytest.raises(DataError, match=f"no images/ folder. images {broken}"):
        open_dataset(f"folder:{folder}")
    with pytest.raises(DataError, match=f"VOC2012 exists, but .*JPEGImages {broken}"):
        open_dataset("voc", root=tmp_path)
    with pytest.raises(DataError, match=r"mine/images \(a broken link to /mnt/unmounted\)"):
        find_images([folder / "images"])
    (tmp_path / "a.png").symlink_to("/mnt/a.png")
    with pytest.raises(DataError, match=r"disappeared: .*a\.png \(a broken link to /mnt/a\.png\)"):
        read_image(tmp_path / "a.png")


def test_loops_and_broken_links_are_named(tmp_path, caplog):
    folder = tmp_path / "photos"
    trees.photo(folder / "deep" / "a.png", (24, 40))
    (folder / "deep" / "again").symlink_to(folder)
    (folder / "deep" / "here").symlink_to(folder / "deep")
    (folder / "train").symlink_to(tmp_path / "unmounted")
    (folder / "itself").symlink_to(folder / "itself")
    other = tmp_path / "other"
    trees.photo(other / "b.png", (24, 40))
    (folder / "linked").symlink_to(other)
    with caplog.at_level("WARNING", "skipbench"):
        found = find_images([folder])
    assert [item.name for item in found] == ["deep/a.png", "linked/b.png"]
    said = [record.getMessage() for record in caplog.records]
    assert sum("again: not followed" in one for one in said) == 1
    assert sum("here: not followed" in one for one in said) == 1
    assert sum("train: left out: a broken link" in one for one in said) == 1
