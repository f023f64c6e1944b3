"""k-means segmentation."""
