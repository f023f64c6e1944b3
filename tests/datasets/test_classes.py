"""Data sets with a class for each whole image: ImageNet, folders of classes, the drawn shapes."""

import logging

import numpy as np
import pytest
import trees
from trees import WNIDS

from skipbench.datasets import open_dataset
from skipbench.datasets.shapes import CLASSES
from skipbench.errors import DataError, UsageError
from skipbench.evaluations.data import class_numbers, open_classes

pytestmark = pytest.mark.usefixtures("nowhere_else")
NAMES = ("bee", "cat", "dog")


@pytest.fixture
def own(tmp_path):
    """Three classes; 3 training and 2 test images of each."""
    for split, count in (("train", 3), ("test", 2)):
        trees.class_folders(tmp_path / "own" / split, NAMES, count)
    return tmp_path / "own"


def opened(folder, **options):
    return open_classes(f"folder:{folder}", **options)


# -- ImageNet


def test_imagenet(tmp_path):
    trees.imagenet(tmp_path)
    train, val = open_classes("imagenet", root=tmp_path, limit=2_000_000)
    assert train.classes == val.classes == WNIDS and train.official == 1_281_167
    assert (len(train), len(val), val.official) == (9, 6, 50_000) and val.partial
    assert val.names[:4] == [f"{n}/{n}_0.JPEG" for n in WNIDS] + [f"{WNIDS[0]}/{WNIDS[0]}_1.JPEG"]
    assert class_numbers(val).tolist() == [0, 1, 2, 0, 1, 2]
    assert all(item.image_class() == item.path.parent.name for item in train)


def test_an_incomplete_imagenet_is_an_error(tmp_path):
    trees.imagenet(tmp_path)
    with pytest.raises(DataError, match="only 9 of 1,281,167 images were found"):
        open_classes("imagenet", root=tmp_path)


def test_as_on_kaggle(tmp_path):
    trees.kaggle(tmp_path)
    _, val = open_classes("imagenet", root=tmp_path, limit=2_000_000)
    assert len(val) == 4 and [item.image_class() for item in val] == [*WNIDS, WNIDS[0]]
    (tmp_path / "LOC_val_solution.csv").rename(tmp_path / "moved.csv")
    with pytest.raises(DataError, match=r"in no folders of classes.*LOC_val_solution\.csv"):
        open_classes("imagenet", root=tmp_path, limit=2_000_000)


def test_an_image_that_is_not_in_kaggles_table(tmp_path):
    folder = trees.kaggle(tmp_path)
    trees.photo(folder / "val" / "ILSVRC2012_val_00000099.JPEG", (24, 40))
    with pytest.raises(DataError, match=r"1 image has no annotation; the first: .*00000099"):
        open_classes("imagenet", root=tmp_path, limit=2_000_000)
    (tmp_path / "LOC_val_solution.csv").write_text("name,class\n")
    with pytest.raises(DataError, match="its first line must be ImageId,PredictionString"):
        open_classes("imagenet", root=tmp_path, limit=2_000_000)


# -- a folder


def test_folders_of_classes(own):
    train, val = opened(own)
    assert train.classes == val.classes == NAMES and val.split == "test"
    assert (len(train), len(val)) == (9, 6) and not val.partial and not train.partial
    assert train.facts().classes == 3


def test_the_first_images_are_of_all_classes(own):
    train, val = opened(own, limit=4)
    assert class_numbers(train).tolist() == class_numbers(val).tolist() == [0, 1, 2, 0]
    assert train.chosen == "first" and train.partial


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_val_comes_before_test(own, name):
    trees.class_folders(own / name, NAMES, 1)
    assert opened(own)[1].split == name
    assert opened(own, split="test")[1].split == "test"


def test_the_fingerprint_knows_the_classes(own):
    before = [data.fingerprint() for data in opened(own)]
    (own / "train" / "cat").rename(own / "train" / "cow")
    (own / "test" / "cat").rename(own / "test" / "cow")
    assert all(one != data.fingerprint() for one, data in zip(before, opened(own), strict=True))


def test_images_in_folders_below_a_class(own):
    trees.photo(own / "train" / "dog" / "puppies" / "x.png", (24, 40))
    train, _ = opened(own)
    assert train.classes == NAMES
    assert train[list(train.names).index("dog/puppies/x.png")].image_class() == "dog"


@pytest.mark.parametrize("skip_bad", [0, 1])
def test_a_damaged_image(own, skip_bad):
    path = own / "test" / "dog" / "dog_1.jpg"
    path.write_bytes(path.read_bytes()[:200])
    _, val = opened(own, skip_bad=skip_bad)
    assert len(val) == 6 - skip_bad and (val.bad == ("dog/dog_1.jpg",)) == bool(skip_bad)


# -- what is wrong with a folder


def test_another_case(own):
    (own / "test" / "cat").rename(own / "test" / "Cat")
    words = r"1 class of test without a training image: Cat\. Did you mean 'cat'\?"
    with pytest.raises(DataError, match=words):
        opened(own)


def test_a_class_without_training_images(own, caplog):
    for path in (own / "train" / "dog").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="1 class of test without a training image: dog"):
        opened(own)
    assert "1 class has no image, such as dog" in caplog.text


def test_an_empty_class_is_left_out(own, caplog):
    (own / "train" / "eel").mkdir()
    train, val = opened(own)
    assert train.classes == NAMES and len(val) == 6 and "such as eel" in caplog.text


def test_one_class(tmp_path):
    for split in ("train", "val"):
        trees.class_folders(tmp_path / split, ["cat"], 2)
    with pytest.raises(DataError, match="train has one class, 'cat': at least two are needed"):
        opened(tmp_path)


def test_images_outside_of_the_classes(own, caplog):
    trees.photo(own / "train" / "stray.jpg", (24, 40))
    assert len(opened(own)[0]) == 9
    assert "1 image is in no class folder, and left out" in caplog.text


def test_without_splits(tmp_path):
    trees.class_folders(tmp_path, NAMES, 2)
    words = "If bee, cat, dog are classes: divide the images between train/ and val/"
    with pytest.raises(DataError, match=words):
        opened(tmp_path)


def test_without_training_or_evaluated_images(own):
    (own / "test").rename(own / "other")
    with pytest.raises(UsageError, match=r"has no split 'val'\. Known: train"):
        opened(own)
    (own / "other").rename(own / "val")
    (own / "train").rename(own / "trian")
    with pytest.raises(UsageError, match=r"has no split 'train'\. Known: val"):
        opened(own)


def test_training_images_are_not_evaluated(own):
    with pytest.raises(UsageError, match="--split train: the classifier is made from these"):
        opened(own, split="train")


def test_other_data_sets_have_no_classes_of_images(tmp_path):
    trees.voc(tmp_path)
    words = r"no classes of whole images.\nData sets with classes: imagenet, folder:PATH, shapes"
    with pytest.raises(UsageError, match=words):
        open_classes("voc", root=tmp_path, limit=9)


# -- shapes


def test_shapes_are_of_the_texture_with_most_pixels():
    train, val = open_classes("shapes", limit=12)
    assert train.classes == val.classes == CLASSES[1:] and train.kind == "classes"
    for item in val:
        mask = item.mask()
        most = max(range(1, 7), key=lambda number: (mask == number).sum())
        assert item.image_class() == CLASSES[most]
    assert len(np.unique(class_numbers(open_classes("shapes")[0]))) == 6


def test_their_masks_are_another_data_set():
    assert open_classes("shapes")[1].fingerprint() != open_dataset("shapes").fingerprint()


def test_images_drawn_with_their_class(cli, own):
    shown = cli("data", "show", f"folder:{own}", "--split", "test")
    assert shown.exit_code == 0, shown.output
    verified = cli("data", "verify", f"folder:{own}", "--full")
    assert verified.exit_code == 0 and "sound" in verified.stdout


@pytest.fixture(autouse=True)
def all_messages(caplog):
    logging.getLogger("skipbench").propagate = True
    caplog.set_level("INFO", "skipbench")
