"""`skipbench tokencut --images`: objects drawn over plain images."""

from pathlib import Path

from skipbench.datasets import decodable
from skipbench.evaluations.pictures import keep_originals
from skipbench.evaluations.tokencut.pictures import draw_pictures
from skipbench.evaluations.tokencut.run import Finder
from skipbench.evaluations.tokencut.settings import TokencutSettings
from skipbench.images import ImageItem, find_images
from skipbench.pipeline import inspect


def find_objects(settings: TokencutSettings) -> Path:
    """Box, mask and eigenvector drawn over each image, into `out`, which is returned."""
    pictures: list[ImageItem] = list(find_images(settings.images))[: settings.limit]
    keep_originals(pictures, [settings.out])
    if settings.skip_bad:
        pictures = list(decodable(pictures, settings.skip_bad, "these images"))
    return draw_pictures(Finder(inspect(settings.ckpt, **settings.reading()), settings), pictures)
