"""What the model sees of an image, against torchvision's Resize and CenterCrop."""

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import CenterCrop, InterpolationMode, Resize

from skipbench.evaluations.classify.crops import Crops, covering_hw
from skipbench.images import ImageItem, find_images

SIZES_HW = [(300, 451), (451, 300), (97, 60), (256, 640), (333, 334)]


@pytest.mark.parametrize("size_hw", SIZES_HW)
def test_as_torchvision(tmp_path, size_hw):
    pixels = np.random.default_rng(0).integers(0, 256, (*size_hw, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    (crop,) = Crops([ImageItem("a", tmp_path / "a.png")], (224, 224), 0.875)
    resized = Resize(256, InterpolationMode.BILINEAR)(image)
    expected = np.asarray(CenterCrop(224)(resized))
    assert np.array_equal(crop.read((224, 224)), expected) and crop.size_hw() == (224, 224)


@pytest.mark.parametrize(
    ("image_hw", "crop_hw", "share", "expected"),
    [
        ((480, 640), (224, 224), 0.875, (256, 341)),
        ((480, 640), (224, 224), 1, (224, 298)),
        ((480, 640), (64, 80), 0.875, (73, 97)),
        ((640, 480), (64, 80), 0.875, (121, 91)),
        ((10, 2000), (32, 32), 1, (32, 6400)),
    ],
)
def test_the_resized_image_covers_the_crop(image_hw, crop_hw, share, expected):
    assert covering_hw(image_hw, crop_hw, share) == expected


def test_the_share_is_part_of_the_mark(pictures):
    items = find_images([pictures])
    marks = {
        Crops(items, hw, share)[0].mark()
        for hw in ((40, 56), (56, 40))
        for share in (0.875, 1)
    }  # fmt: skip
    crops = Crops(items, (40, 56), 0.875)
    assert len(marks) == 4 and len(crops) == 7 and len(crops[2:4]) == 2
    assert [crop.name for crop in crops] == [item.name for item in items]
    assert all(crop.read().shape == (40, 56, 3) for crop in crops)
