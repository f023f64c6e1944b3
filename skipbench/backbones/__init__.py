"""The frozen vision transformer, with and without residual connections."""
