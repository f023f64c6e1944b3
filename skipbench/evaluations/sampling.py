"""Seeded randomness, and fair shares of images."""

import numpy as np

# Each purpose has a stream of its own: what is drawn for one tells nothing about another.
PURPOSES = ("order", "held out", "pixels", "shares", "bank", "sample", "probes")


def randomness(purpose: str, *numbers: int) -> np.random.Generator:
    return np.random.default_rng([PURPOSES.index(purpose) + 1, *numbers])


def even_shares(total: int, images: int, seed: int) -> np.ndarray:
    """(images,): how much of the total each image gets; the remainder goes to random ones."""
    share, rest = divmod(total, images)
    shares = np.full(images, share)
    shares[randomness("shares", seed).permutation(images)[:rest]] += 1
    return shares
