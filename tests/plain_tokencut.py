"""Object discovery once more by plain code, written from the protocol alone, and small pictures."""

import csv
from pathlib import Path

import numpy as np
import torch
import trees
from conftest import lasting, records
from PIL import Image
from scipy.linalg import eigh

from skipbench.record_store import read_arrays

PATCH = 8
SIZES_HW = [(41, 67), (72, 50), (48, 80), (57, 90)]
BOXES = [(8, 9, 40, 33), (5, 20, 41, 60), (30, 8, 71, 40), (17, 16, 66, 49)]


def tokens(backbone, pixels, block, tensor="keys"):
    """(height, width, channels) float64 of an image at its own size, padded with zeros."""
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    height, width = pixels.shape[:2]
    canvas = np.zeros((-(-height // PATCH) * PATCH, -(-width // PATCH) * PATCH, 3))
    canvas[:height, :width] = (pixels / 255 - mean) / deviation
    images = torch.from_numpy(canvas.transpose(2, 0, 1)[None].astype(np.float32))
    found = backbone(images, [block], [tensor]).patches[block, tensor]
    return found[0].double().numpy()


def cut(tokens, tau=0.2, eps=1e-5):
    """The object on the grid of tokens, and the eigenvector: (height, width) each."""
    grid_hw = tokens.shape[:2]
    unit = tokens.reshape(-1, tokens.shape[-1])
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    affinity = np.where(unit @ unit.T > tau, 1.0, eps)
    degrees = np.diag(affinity.sum(1))
    vector = eigh(degrees - affinity, degrees, subset_by_index=[1, 1])[1][:, 0]
    vector /= np.abs(vector).max()
    seed = int(np.flatnonzero(np.abs(vector) > 1 - 1e-7)[0])
    vector *= np.sign(vector[seed])
    side = (vector - vector.mean() > 1e-7).reshape(grid_hw)
    return part(side, divmod(seed, grid_hw[1])), vector.reshape(grid_hw)


def lost(tokens):
    grid_hw = tokens.shape[:2]
    flat = tokens.reshape(-1, tokens.shape[-1])
    products = flat @ flat.T
    degrees = (products > 0).sum(1)
    order = np.argsort(degrees, kind="stable")[:100]
    similar = [token for token in order if products[token, order[0]] > 0]
    side = (products[similar].sum(0) > 0).reshape(grid_hw)
    return part(side, divmod(int(order[0]), grid_hw[1])), None


def part(side, seed):
    part, front = np.zeros_like(side), [seed]
    while front:
        y, x = front.pop()
        inside = 0 <= y < side.shape[0] and 0 <= x < side.shape[1]
        if inside and side[y, x] and not part[y, x]:
            part[y, x] = True
            front += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
    return part


def box(part, size_hw):
    ys, xs = np.nonzero(part)
    right, bottom = (xs.max() + 1) * PATCH, (ys.max() + 1) * PATCH
    return [xs.min() * PATCH, ys.min() * PATCH, min(right, size_hw[1]), min(bottom, size_hw[0])]


def iou(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one, other)]
    return shared / (sum(areas) - shared)


def enlarged(grid, size_hw):
    return np.kron(grid, np.ones((PATCH, PATCH)))[: size_hw[0], : size_hw[1]]


def nearest(values, size_hw):
    """Each pixel has the value under its centre."""
    sides = zip(values.shape, size_hw, strict=True)
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(int) for old, new in sides)
    return values[rows[:, None], columns]


def f_beta(predicted, true):
    right = (predicted & true).sum()
    precision = right / predicted.sum() if predicted.any() else 1.0
    recall = right / true.sum() if true.any() else 1.0
    below = 0.3 * precision + recall
    return 1.3 * precision * recall / below if below else 0.0


def chosen_on_the_other_half(hits, scores=None):
    """Mean over a hundred halvings, each half scored with the block that is best on the other.

    hits: by which blocks are chosen; scores: those that are averaged, by default the same.
    """
    rng, total, scores = np.random.default_rng(0), 0.0, hits if scores is None else scores
    for _ in range(100):
        order = rng.permutation(len(hits)).tolist()
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        for mine, other in (halves, halves[::-1]):
            sums = [sum(hits[image][block] for image in other) for block in range(len(hits[0]))]
            best = sums.index(max(sums))
            total += sum(scores[image][best] for image in mine)
    return 100 * total / (100 * len(hits))


# -- pictures with something in them


def scene(size_hw, box, seed=0):
    """HWC uint8: stripes in a box, on a ground that changes slowly."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size_hw[0], : size_hw[1]]
    ground = 60 + 60 * np.stack([x / size_hw[1], y / size_hw[0], (x + y) / sum(size_hw)], -1)
    stripes = 255 * ((x[..., None] // 3 + y[..., None] // 2) % 2) * rng.uniform(0.5, 1, 3)
    inside = (x >= box[0]) & (x < box[2]) & (y >= box[1]) & (y < box[3])
    pixels = np.where(inside[..., None], stripes, ground) + rng.normal(0, 4, (*size_hw, 3))
    return pixels.round().clip(0, 255).astype(np.uint8)


def put(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def boxed_folder(folder=Path("mine"), count=4):
    """A folder with boxes.csv; the images by name."""
    lines, images = ["image,xmin,ymin,xmax,ymax"], {}
    for i in range(count):
        size_hw, box = SIZES_HW[i % 4], BOXES[i % 4]
        images[f"p{i}"] = put(folder / "images" / f"p{i}.png", scene(size_hw, box, i))
        lines.append(f"p{i}," + ",".join(map(str, box)))
    (folder / "boxes.csv").write_text("\n".join(lines))
    return images


def masked_folder(blank, count=4):
    """A folder with masks; those in `blank` are void throughout."""
    for i in range(count):
        size_hw = SIZES_HW[i]
        put(Path("mine", "images", f"{i}.png"), scene(size_hw, BOXES[i], i))
        mask = np.full(size_hw, 255, np.uint8) if i in blank else trees.blocks(size_hw, [0, 1, 1])
        trees.grey_png(Path("mine", "masks", f"{i}.png"), mask)
    Path("mine", "classes.txt").write_text("nothing\nthing\n")


# -- what was written


def only(folder="results"):
    """The one record there, and its arrays."""
    [record] = records(folder)
    return record, read_arrays(Path(folder) / f"{record.id}.npz")


def table(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def by_image(record, folder="results"):
    return table(Path(folder, record.id, "images.csv"))


def stable(record, arrays):
    """What an interruption must not change."""
    return lasting(record), {name: array.tolist() for name, array in arrays.items()}
