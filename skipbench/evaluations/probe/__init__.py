"""Linear-probe segmentation."""
