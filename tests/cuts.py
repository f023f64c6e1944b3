"""Graphs to cut, and plain ways to cut them.

Nothing here comes from skipbench: it is what the package is compared with. Links are (n, n) bool,
symmetric; what the package has found is compared by `differences`.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage
from scipy.linalg import eigh

TIE, SAME = 1e-7, 1e-9


@dataclass(frozen=True)
class Cut:
    seed: int
    side: np.ndarray  # (height, width) bool
    mask: np.ndarray  # (height, width) bool: the part of that side that holds the seed
    y: np.ndarray  # (n,)
    tied: bool = False
    degenerate: bool = False
    gap: float = np.inf


def second(links, eps=1e-5):
    """The second eigenvector of (D − A) y = λ D y, largest entry ±1, and λ3 − λ2: by LAPACK."""
    affinity = np.where(links, 1.0, eps)
    degree = np.diag(affinity.sum(1))
    values, vectors = eigh(degree - affinity, degree, subset_by_index=(1, 2))
    assert len(values) == 2
    y = vectors[:, 0]
    return y / np.abs(y).max(), values[1] - values[0]


def by_the_rule(links, grid_hw, eps=1e-5):
    """TokenCut with the rule for ties and for graphs that nothing cuts."""
    y, gap = second(links, eps)
    if gap <= SAME:
        whole = np.ones(grid_hw, bool)
        return Cut(0, whole, whole, np.zeros(len(y)), degenerate=True, gap=gap)
    size = np.abs(y)
    rivals = [i for i in range(len(y)) if size[i] >= size.max() - TIE]
    seed = rivals[0]
    if y[seed] < 0:
        y = -y
    mean = y.mean()
    side = (y > mean + TIE).reshape(grid_hw)
    mask = flood(side, seed)
    others = any(not mask.flat[i] for i in rivals)
    on_the_mean = any(abs(value - mean) <= TIE for value in y)
    return Cut(seed, side, mask, y, tied=others or on_the_mean, gap=gap)


def flood(side, seed):
    """The 4-connected part that holds the seed, token by token."""
    height, width = side.shape
    mask = np.zeros_like(side)
    waiting = deque([divmod(seed, width)])
    while waiting:
        row, column = waiting.popleft()
        inside = 0 <= row < height and 0 <= column < width
        if inside and side[row, column] and not mask[row, column]:
            mask[row, column] = True
            waiting += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
    return mask


def as_published(y, grid_hw):
    """Seed and mask as TokenCut's own code finds them, with no rule for ties."""
    side = (y > y.mean()).reshape(grid_hw)
    seed = int(np.argmax(np.abs(y)))
    if not side.flat[seed]:
        side = ~side
    parts, _ = ndimage.label(side)
    return seed, parts == parts.flat[seed]


def box(mask, patch, size_hw):
    """x0, y0, x1, y1 around a mask, in pixels of the image."""
    rows, columns = np.nonzero(mask)
    height, width = size_hw
    low, right = (rows.max() + 1) * patch, (columns.max() + 1) * patch
    return columns.min() * patch, rows.min() * patch, min(right, width), min(low, height)


def lost(tokens, grid_hw, expansion=100):
    """LOST as published, with the first of tied tokens: seed and mask. tokens: (n, channels)."""
    inner = tokens @ tokens.T
    alone = inner.copy()
    np.fill_diagonal(alone, 0)
    degree = [sum(row > 0) for row in alone]
    order = sorted(range(len(tokens)), key=lambda i: (degree[i], i))
    seed = order[0]
    similar = [i for i in order[:expansion] if inner[seed, i] > 0]
    side = (inner[similar].sum(0) > 0).reshape(grid_hw)
    return seed, flood(side, seed)


def margin(y):
    """How far y is from having one more tie, or one less. y: turned, its largest entry 1."""
    from_seed, from_mean = 1 - np.abs(y), np.abs(y - y.mean())
    return min(np.abs(some - TIE).min() for some in (from_seed, from_mean))


# Graphs


def themselves(count):
    """Every token is linked to itself alone."""
    return np.eye(count, dtype=bool)


def random_links(rng, count, share):
    """Erdős–Rényi."""
    upper = np.triu(rng.random((count, count)) < share, 1)
    return upper | upper.T | themselves(count)


def planted(rng, count, parts, inside, outside):
    """As many parts, of different sizes, with more links inside of each than between them."""
    of = np.sort(rng.choice(parts, count, p=np.arange(1, parts + 1) / sum(range(1, parts + 1))))
    shares = np.where(of[:, None] == of, inside, outside)
    upper = np.triu(rng.random((count, count)) < shares, 1)
    return upper | upper.T | themselves(count)


def overlapping(rng, count, parts, length):
    """Cliques at random places of a line; tokens of none are linked to their neighbours."""
    links = chain(count)
    for start in rng.integers(0, count - length, parts):
        size = rng.integers(length // 2, length + 1)
        links[start : start + size, start : start + size] = True
    return links


def chain(count, ring=False):
    links = themselves(count)
    links[np.arange(count - 1), np.arange(1, count)] = True
    links[0, -1] = ring
    return links | links.T


def star(count, arms=None, hub=0):
    """The hub is linked to some tokens (else to all); the others are alone."""
    links = themselves(count)
    links[hub, : arms or count] = links[: arms or count, hub] = True
    links[hub, hub] = True
    return links


def lattice(grid_hw):
    """Every token is linked to the four around it."""
    rows, columns = np.divmod(np.arange(grid_hw[0] * grid_hw[1]), grid_hw[1])
    steps = np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns)
    return steps <= 1


def bipartite(count, first):
    """Every one of the first is linked to every one of the others, and to itself."""
    one = np.arange(count) < first
    return (one[:, None] != one) | themselves(count)


def complete_but(rng, count, missing):
    """All pairs but a few."""
    links = np.ones((count, count), bool)
    first, second = np.triu_indices(count, 1)
    some = rng.choice(len(first), min(missing, len(first)), replace=False)
    links[first[some], second[some]] = links[second[some], first[some]] = False
    return links


def apart(*graphs):
    """Disconnected: one graph after another."""
    count = sum(map(len, graphs))
    links = np.zeros((count, count), bool)
    start = 0
    for graph in graphs:
        links[start : start + len(graph), start : start + len(graph)] = graph
        start += len(graph)
    return links


def cliques(*sizes):
    return apart(*(np.ones((size, size), bool) for size in sizes))


def around_a_hub(rng, copies, hub, share):
    """Copies of one graph, linked alike to a graph in the middle. copies: [graph] * times."""
    links = apart(*copies, hub)
    inner = len(hub)
    bridge = rng.random((len(copies[0]), inner)) < share
    links[:-inner, -inner:] = np.concatenate([bridge] * len(copies))
    links[-inner:, :-inner] = links[:-inner, -inner:].T
    return links


def shuffled(rng, links):
    order = rng.permutation(len(links))
    return links[np.ix_(order, order)]


def blobs(rng, grid_hw, objects, noise, channels=24):
    """Tokens of round objects before a background: (n, channels) float32."""
    rows, columns = np.divmod(np.arange(grid_hw[0] * grid_hw[1]), grid_hw[1])
    tokens = np.tile(rng.normal(size=channels), (len(rows), 1))
    for _ in range(objects):
        row, column = rng.random(2) * grid_hw
        radius = (0.15 + 0.25 * rng.random()) * min(grid_hw)
        inside = np.hypot(rows - row, columns - column) < radius
        tokens[inside] = rng.normal(size=channels)
    return (tokens + noise * rng.normal(size=tokens.shape)).astype(np.float32)


def cosines(tokens):
    """(n, n) float64; 0 for a token that is zero."""
    tokens = tokens.astype(np.float64)
    lengths = np.linalg.norm(tokens, axis=1, keepdims=True)
    unit = np.divide(tokens, lengths, out=np.zeros_like(tokens), where=lengths > 0)
    return unit @ unit.T


def images(count, grid_hw, seed=0):
    """(count, n, channels) tensor: each with another number of objects and more noise."""
    rng = np.random.default_rng(seed)
    made = [blobs(rng, grid_hw, 1 + i % 4, 0.3 + 0.2 * i) for i in range(count)]
    return torch.from_numpy(np.stack(made))


# Named cases, and what is not the same in words


def case(make, grid_hw, *options, seed=0):
    links = make(np.random.default_rng(seed), grid_hw[0] * grid_hw[1], *options)
    return named(make.__name__, grid_hw, *options), grid_hw, links


def named(name, grid_hw, *options):
    return " ".join(map(str, (name.replace("_", " "), *options, "×".join(map(str, grid_hw)))))


def differences(found, cut, grid_hw, patch=16):
    """What is not the same, in words."""
    size_hw = grid_hw[0] * patch - 5, grid_hw[1] * patch - 3
    if found.degenerate != cut.degenerate:
        yield f"degenerate: {found.degenerate}, λ3 − λ2 = {cut.gap}"
        return
    if found.seed != cut.seed:
        yield f"seed: {found.seed}, not {cut.seed}"
    if found.tied != cut.tied:
        yield f"tied: {found.tied}"
    if not np.array_equal(found.mask, cut.mask):
        yield "object"
    if found.box(patch, size_hw) != box(cut.mask, patch, size_hw):
        yield "box"
    if not cut.degenerate and not np.array_equal(found.map > found.map.mean() + TIE, cut.side):
        yield "side"


def same_found(one, other):
    return (
        np.array_equal(one.mask, other.mask)
        and np.allclose(one.map, other.map, rtol=0, atol=1e-8)
        and (one.seed, one.degenerate, one.tied) == (other.seed, other.degenerate, other.tied)
    )
