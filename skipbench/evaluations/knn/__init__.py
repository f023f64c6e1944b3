"""Dense nearest-neighbour segmentation."""
