"""Dense nearest neighbours, against bare faiss, torch and scikit-learn.

    python benchmarks/knn.py [--tokens 100000,1000000] [--images 8] [--rounds 5] [--quick]
    python benchmarks/knn.py --ckpt F --dataset voc [--data-root D] [--train-images N]

Images of 1,024 tokens × 384 (512 × 512 at patch 16), masks of 512 × 512 and 375 × 500 in turn, 21
classes, k = 30. Every way is given the same float16 tokens in memory and the same bank:

    ours, flat    `evaluations.knn.score`: normalise, search all of the bank, vote, resize, score
    ours, ivf     the same, in lists; built once, which is timed apart; recall is that of 30
    bare faiss    IndexFlatIP.search of the same tokens, normalised before, in one call; no more
    torch         products with one piece of the bank after another into one buffer, topk of each
                  and of all; dense labels, softmax, interpolate, argmax, bincount. The length of
                  the pieces is tried out first, and the fastest taken
    sklearn       NearestNeighbors, brute, euclidean on normalised tokens (its metric "cosine" took
                  2.4 times as long), then torch's vote; of few images, as it is the slowest

All ways take turns in one process, every other turn in reverse order; a ratio is taken within a
turn, of seconds an image, and given as the median over all turns with the quartiles. Predictions of
torch and sklearn must be those of ours, flat, on all but 1 pixel in 1,000 (equal similarities and
rounding), else this stops with an error. Of ivf it is only told.

Tokens are made, unless there is a checkpoint: 300 centres, whose sizes follow a power law, in 64 of
the 384 dimensions; around each one noise whose spread differs from direction to direction and from
centre to centre, and a little in all dimensions; all of it around a mean far from zero. The class
is that of the centre; every sixth patch has a share of a second one. Images are of some areas, of
one centre each, with ignored pixels between them. Time hardly depends on any of this but for ivf.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from skipbench.engine.machine import wait_politely

wait_politely()  # as the command does, before torch is loaded

# ruff: noqa: E402
import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors

from skipbench.engine import vectors
from skipbench.engine.machine import peak_bytes
from skipbench.evaluations.knn.memory import PROBES
from skipbench.evaluations.knn.method import QUERIES, Vote, normalised, score, segment, vote
from skipbench.evaluations.knn.settings import TEMPERATURE, K
from skipbench.evaluations.segmentation.pixels import Grid
from skipbench.metrics.segmentation import IGNORED, class_counts

faiss = vectors.load()  # after torch, as the command does
WIDTH, SIDE, CLASSES = 384, 32, 21
SIZES = ((512, 512), (375, 500))  # of masks
CENTRES, DIMENSIONS, AREAS = 300, 64, 12
PIECES = (8_192, 32_768, 65_536, 131_072)  # of the bank, that torch may take at once
MOST_TIMES = 1.1  # that ours may take of bare faiss
MOST_OTHER = 1e-3  # pixels, as a share
HOW = Vote(K, TEMPERATURE)
Scores = tuple[list[np.ndarray], np.ndarray]  # predictions, and (images, 3, classes)


# -- tokens


class World:
    """Tokens and labels at random; see above."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = rng = np.random.default_rng(seed)
        size = np.arange(1, CENTRES + 1) ** -0.8
        self.size = size / size.sum()
        turn = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0][:DIMENSIONS]
        self.turn = turn.astype(np.float32)
        self.mean = rng.normal(size=WIDTH).astype(np.float32)
        self.centres = 1.5 * rng.standard_normal((CENTRES, DIMENSIONS), np.float32)
        falling = 2.5 * np.arange(1, DIMENSIONS + 1) ** -0.5
        self.spread = rng.permuted(np.tile(falling, (CENTRES, 1)), axis=1).astype(np.float32)
        self.classes = rng.integers(CLASSES, size=CENTRES)

    def choose(self, count: int) -> np.ndarray:
        return self.rng.choice(CENTRES, count, p=self.size)

    def tokens(self, centres: np.ndarray) -> np.ndarray:
        """(n, width) float16, as a feature store has them."""
        inner = self.rng.standard_normal((len(centres), DIMENSIONS), np.float32)
        made = (self.centres[centres] + inner * self.spread[centres]) @ self.turn + self.mean
        made += 0.2 * self.rng.standard_normal(made.shape, np.float32)
        return made.astype(np.float16)

    def labels(self, centres: np.ndarray) -> csr_array:
        """(n, classes): some patches are of two."""
        rows = np.arange(len(centres))
        share = np.where(rows % 6 == 0, self.rng.uniform(0, 0.5, len(rows)), 0)
        values = np.concatenate([1 - share, share]).astype(np.float32)
        second = self.rng.integers(CLASSES, size=len(rows))
        names = np.concatenate([self.classes[centres], second])
        made = csr_array((values, (np.tile(rows, 2), names)), (len(rows), CLASSES))
        made.eliminate_zeros()
        return made

    def image(self, size_hw: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and mask: areas around random points."""
        points, centres = cKDTree(self.rng.random((AREAS, 2))), self.choose(AREAS)
        tokens = self.tokens(centres[points.query(places((SIDE, SIDE)))[1]])
        far, area = points.query(places(size_hw), k=2)
        mask = self.classes[centres[area[:, 0]]]
        mask[far[:, 1] - far[:, 0] < 0.01] = IGNORED
        return tokens, mask.astype(np.uint8).reshape(size_hw)


def places(size_hw: tuple[int, int]) -> np.ndarray:
    """(n, 2) from 0 to 1: the middle of every pixel, or token."""
    axes = [(np.arange(side) + 0.5) / side for side in size_hw]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)


@dataclass
class Images:
    """As `score` wants them, all in memory."""

    all_tokens: list[np.ndarray]
    masks: list[np.ndarray]
    grids: list[Grid]

    def __len__(self) -> int:
        return len(self.masks)

    def tokens(self, image: int) -> np.ndarray:
        return self.all_tokens[image]

    def mask(self, image: int) -> np.ndarray:
        return self.masks[image]

    def grid(self, image: int) -> Grid:
        return self.grids[image]


@dataclass
class Scene:
    images: Images
    flat: vectors.Flat  # its array is the bank of every way
    labels: csr_array

    @property
    def bank(self) -> np.ndarray:
        return self.flat.bank

    def queries(self, images: int | None = None) -> np.ndarray:
        return np.concatenate([normalised(one) for one in self.images.all_tokens[:images]])


def made(count: int, images: int) -> Scene:
    world = World()
    pictures = [world.image(SIZES[i % len(SIZES)]) for i in range(images)]
    grids = [Grid((SIDE, SIDE), (SIDE, SIDE))] * images
    held = Images([t for t, _ in pictures], [m for _, m in pictures], grids)
    centres = world.choose(count)

    def pieces() -> Iterator[np.ndarray]:
        for start in range(0, count, vectors.PIECE):
            yield normalised(world.tokens(centres[start : start + vectors.PIECE]))

    return Scene(held, vectors.Flat(pieces, count, WIDTH), world.labels(centres))


def real(count: int, images: int, options: argparse.Namespace) -> Scene:
    """Features of the last block, as `skipbench knn` has them."""
    from skipbench.evaluations.knn.calls import open_knn

    run = open_knn(
        options.ckpt, options.dataset, data_root=options.data_root, limit=options.limit,
        train_images=options.train_images, memory=count, index="flat", bank_limit=10**11,
    )  # fmt: skip
    with ExitStack() as stack:
        run.look(stack, run.cells)
        memory, split = run.memory.remember(run.cells[0]), run.split(run.cells[0])
        numbers = range(min(images, len(split)))
        held = [[of(i) for i in numbers] for of in (split.tokens, split.mask, split.grid)]
    return Scene(Images(*held), memory.index, memory.bank.labels)


# -- the ways


def ours(scene: Scene, index: vectors.Flat | vectors.Lists) -> np.ndarray:
    return score(scene.images, range(len(scene.images)), index, scene.labels, [HOW])[:, 0]


def lists(scene: Scene) -> vectors.Lists:
    step, bank = vectors.PIECE, scene.bank
    probes = np.random.default_rng(0).permutation(scene.queries())[:PROBES]
    return vectors.Lists(
        lambda: (bank[start : start + step] for start in range(0, len(bank), step)),
        *bank.shape, probes=probes, k=K, usual_k=K,
    )  # fmt: skip


class Torch:
    """Brute force. images: how many of the scene are taken."""

    def __init__(self, scene: Scene, images: int) -> None:
        self.images = [scene.images.all_tokens[i] for i in range(images)]
        self.masks, self.grids = scene.images.masks[:images], scene.images.grids[:images]
        self.bank = torch.from_numpy(scene.bank)
        self.labels = torch.from_numpy(scene.labels.toarray())

    def tune(self) -> int:
        """How many tokens at once; found with a part of the bank, the best of 3."""
        queries = F.normalize(torch.from_numpy(self.images[0]).float(), dim=1)
        bank, spent = self.bank[: 2 * max(PIECES)], {}
        most = max(map(len, self.images))
        for self.piece in (piece for piece in PIECES if piece <= 2 * len(bank)):
            self.buffer = torch.empty(most * min(self.piece, len(bank)))
            spent[self.piece] = min(seconds(partial(self.search, queries, bank)) for _ in range(3))
        self.piece = min(spent, key=spent.__getitem__)
        self.buffer = torch.empty(most * min(self.piece, len(self.bank)))
        return self.piece

    def search(
        self, queries: torch.Tensor, bank: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        near, number = [], []
        for start in range(0, len(bank), self.piece):
            piece = bank[start : start + self.piece]
            out = self.buffer[: len(queries) * len(piece)].view(len(queries), len(piece))
            best = torch.mm(queries, piece.T, out=out).topk(min(K, len(piece)), sorted=False)
            near.append(best.values)
            number.append(best.indices + start)
        best = torch.cat(near, 1).topk(K)
        return best.values, torch.cat(number, 1).gather(1, best.indices)

    def __call__(self) -> Scores:
        found = []
        for tokens, mask, grid in zip(self.images, self.masks, self.grids, strict=True):
            queries = F.normalize(torch.from_numpy(tokens).float(), dim=1)
            near, number = self.search(queries, self.bank)
            found.append(self.finish(near, number, mask, grid))
        return [one for one, _ in found], np.stack([counts for _, counts in found])

    def finish(
        self, near: torch.Tensor, number: torch.Tensor, mask: np.ndarray, grid: Grid
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prediction and counts of one image."""
        weight = (near / TEMPERATURE).softmax(1)
        shares = torch.bmm(weight[:, None], self.labels[number])[:, 0]
        maps = shares.T.reshape(1, -1, *grid.size_hw)
        large = F.interpolate(maps, size=mask.shape, mode="bilinear", align_corners=False)
        prediction, truth = large[0].argmax(0), torch.from_numpy(mask)
        counted, classes = truth != IGNORED, self.labels.shape[1]
        pairs = truth[counted].long() * classes + prediction[counted]
        matrix = torch.bincount(pairs, minlength=classes**2).view(classes, classes)
        counts = torch.stack([matrix.diag(), matrix.sum(0), matrix.sum(1)])
        return prediction.numpy(), counts.numpy()


class Sklearn(Torch):
    def __init__(self, scene: Scene, images: int) -> None:
        super().__init__(scene, images)
        self.index = NearestNeighbors(n_neighbors=K, algorithm="brute", metric="euclidean")
        self.index.fit(scene.bank)

    def __call__(self) -> Scores:
        """All images in one call."""
        tokens = torch.from_numpy(np.concatenate(self.images))
        far, number = self.index.kneighbors(F.normalize(tokens.float(), dim=1).numpy())
        near = torch.from_numpy((1 - far**2 / 2).astype(np.float32))
        lengths = [len(one) for one in self.images]
        parts = zip(near.split(lengths), torch.from_numpy(number).split(lengths), strict=True)
        places = zip(parts, self.masks, self.grids, strict=True)
        found = [self.finish(*part, mask, grid) for part, mask, grid in places]
        return [one for one, _ in found], np.stack([counts for _, counts in found])


# -- measuring


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def steps(scene: Scene, index: vectors.Flat | vectors.Lists) -> tuple[Scores, dict[str, float]]:
    """What `score` does, one step after another, and the seconds of each, an image."""
    spent = dict.fromkeys(("normalise", "search", "vote", "class_map", "counts"), 0.0)

    def timed(step: str, work: Callable, *given: object) -> np.ndarray:
        start = time.perf_counter()
        found = work(*given)
        spent[step] += (time.perf_counter() - start) / len(scene.images)
        return found

    queries = timed("normalise", scene.queries)
    parts = range(0, len(queries), QUERIES)
    found = [timed("search", index.search, queries[i : i + QUERIES], K) for i in parts]
    near, number = (np.concatenate(side) for side in zip(*found, strict=True))
    predictions, counts, start = [], [], 0
    for tokens, mask, grid in zip(*vars(scene.images).values(), strict=True):
        part = slice(start, start := start + len(tokens))
        shares = timed("vote", vote, near[part], number[part], scene.labels, HOW)
        maps = torch.from_numpy(shares.T[None]).unflatten(2, grid.size_hw)
        predictions.append(timed("class_map", segment, maps, grid, mask.shape)[0])
        counts.append(timed("counts", class_counts, predictions[-1], mask, scene.labels.shape[1]))
    return (predictions, np.stack(counts)), spent


def other(found: list[np.ndarray], exact: list[np.ndarray]) -> float:
    """Share of pixels; of as many images as there are of the first."""
    pairs = list(zip(found, exact, strict=False))
    return sum(int((a != b).sum()) for a, b in pairs) / sum(a.size for a, _ in pairs)


def compare(scene: Scene, rounds: int, few: int) -> None:
    """few: images for scikit-learn."""
    count, few = len(scene.images), min(few, len(scene.images))
    tokens, width = scene.bank.shape
    print(f"\n{tokens:,} tokens of {width} in the bank, {count} images, {rounds} turns", flush=True)
    started = time.perf_counter()
    ivf = lists(scene)
    built = time.perf_counter() - started
    bare = faiss.IndexFlatIP(width)
    bare.add(scene.bank)
    torch_way, sklearn_way = Torch(scene, count), Sklearn(scene, few)
    print(f"torch takes {torch_way.tune():,} tokens of the bank at once")
    print(
        f"ivf: built in {built:.1f} s, {ivf.searched} of {ivf.lists} lists are searched, "
        f"recall {ivf.recall(K):.1%}",
        flush=True,
    )
    same = check(scene, ivf, torch_way, sklearn_way)
    queries = scene.queries()
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "ours, flat": (partial(ours, scene, scene.flat), count),
        "bare faiss": (partial(bare.search, queries, K), count),
        "ours, ivf": (partial(ours, scene, ivf), count),
        "torch": (torch_way, count),
        "sklearn": (sklearn_way, few),
    }
    report(in_turns(ways, rounds), ways, same)


def check(
    scene: Scene, ivf: vectors.Lists, torch_way: Torch, sklearn_way: Torch
) -> dict[str, float]:
    """Share of pixels that are not as those of ours, flat. All ways are warm after it."""
    (exact, counts), spent = steps(scene, scene.flat)
    if (ours(scene, scene.flat) != counts).any():
        sys.exit("ours, flat: the scores are not those of its steps")
    (in_lists, _), spent_in_lists = steps(scene, ivf)
    for name, parts in (("flat", spent), ("ivf", spent_in_lists)):
        listed = ", ".join(f"{step} {1e3 * each:.1f}" for step, each in parts.items())
        print(f"steps of ours, {name}, milliseconds an image: {listed}", flush=True)
    share = {"ours, ivf": other(in_lists, exact)}
    for name, way in (("torch", torch_way), ("sklearn", sklearn_way)):
        share[name] = other(way()[0], exact)
        if share[name] > MOST_OTHER:
            sys.exit(f"{name}: {share[name]:.2%} of all pixels are not as ours, flat, has them")
    return share


def in_turns(
    ways: dict[str, tuple[Callable[[], object], int]], rounds: int
) -> dict[str, list[float]]:
    """Seconds an image."""
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
            work, images = ways[way]
            spent[way].append(seconds(work) / images)
    return spent


def report(spent: dict[str, list[float]], ways: dict[str, tuple], same: dict[str, float]) -> None:
    print(
        f"\n{'':12}{'images':>7}{'images a second':>26}{'times ours, flat':>26}{'other pixels':>15}"
    )
    for way, took in spent.items():
        rates, times = [1 / each for each in took], ratios(took, spent["ours, flat"])
        share = f"{same[way]:.4%}" if way in same else "–"
        print(f"{way:12}{ways[way][1]:7}{spread(rates):>26}{spread(times):>26}{share:>15}")
    times = ratios(spent["ours, flat"], spent["bare faiss"])
    holds = "holds" if statistics.median(times) <= MOST_TIMES else "DOES NOT HOLD"
    print(f"ours, flat / bare faiss: {spread(times)}; at most {MOST_TIMES}: {holds}")
    print(f"peak memory of all so far {peak_bytes() / 1e9:.1f} GB", flush=True)


def ratios(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3g}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="100000,1000000", help="in the bank, with commas")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sklearn-images", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a trial: 50,000 tokens, 2 turns")
    parser.add_argument("--ckpt", help="real features: weights of a ViT")
    parser.add_argument("--dataset", default="voc", help="with --ckpt")
    parser.add_argument("--data-root", help="with --ckpt")
    parser.add_argument("--train-images", type=int, help="with --ckpt: images of the bank")
    parser.add_argument("--limit", type=int, help="with --ckpt: images of both splits")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.images, options.rounds = "50000", 4, 2
    return options


def main() -> None:
    options = parse()
    for count in map(int, options.tokens.split(",")):
        scene = (
            real(count, options.images, options) if options.ckpt else made(count, options.images)
        )
        compare(scene, options.rounds, options.sklearn_images)
        del scene
        gc.collect()


if __name__ == "__main__":
    main()
