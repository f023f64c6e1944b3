"""The class of every pixel: the argmax of bilinearly resized logits, without resizing them.

Between four neighbouring tokens (a cell), an interpolated logit lies between the lowest and the
highest of its four corners. So a class can win a pixel of a cell only if its highest corner reaches
the best of all lowest corners. Most cells have one such class, and are done; in the others, only
those few are interpolated. The result is that of `interpolate` and `argmax`, pixel for pixel, but
where two classes differ by less than rounding (one pixel of 45 million of real images).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Cells with up to so many candidates are interpolated together, padded to that number.
GROUPS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)


def class_map(logits: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """(heads, classes, height, width) finite logits → (heads, *size_hw) uint8 classes."""
    heads, classes, height, width = logits.shape
    down = _axis(height, size_hw[0], logits.device)
    right = _axis(width, size_hw[1], logits.device)
    corners = F.pad(logits.float(), (0, 1, 0, 1), mode="replicate")  # the last tokens reach the rim
    lowest = _over_corners(corners, torch.minimum)
    candidates = _over_corners(corners, torch.maximum) >= lowest.amax(1, keepdim=True)
    count = candidates.sum(1, dtype=torch.int16)  # (heads, height, width)
    # Every cell as a block of pixels, first of the class that is sure where there is but one.
    blocks = (
        lowest.argmax(1).to(torch.uint8)[..., None, None].expand(-1, -1, -1, down.most, right.most)
    )
    blocks = blocks.contiguous()
    last = corners.permute(0, 2, 3, 1).contiguous()  # (heads, height + 1, width + 1, classes)
    allowed = candidates.permute(0, 2, 3, 1)
    fewer = 1
    for most in GROUPS:
        cells = ((count > fewer) & (count <= most)).nonzero(as_tuple=True)
        if len(cells[0]):
            blocks[cells] = _winners(last, allowed, cells, min(most, classes), down, right)
        fewer = most
    # (heads, height, rows, width, columns): the blocks side by side; then only pixels there are.
    side_by_side = blocks.transpose(2, 3).reshape(heads, height * down.most, width * right.most)
    return side_by_side[:, down.place][:, :, right.place]


def _over_corners(corners: Tensor, extreme: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Of the four corners of each cell."""
    across = extreme(corners[..., :-1], corners[..., 1:])
    return extreme(across[..., :-1, :], across[..., 1:, :])


def _winners(
    last: Tensor,
    allowed: Tensor,
    cells: tuple[Tensor, ...],
    most: int,
    down: "_Axis",
    right: "_Axis",
) -> Tensor:
    """(cells, rows, columns) uint8: the best candidate of each pixel of these cells."""
    head, row, column = cells
    mine = allowed[cells]  # (cells, classes)
    # Candidates first, each part in the order of classes, so that the first wins a tie.
    chosen = (~mine).to(torch.uint8).sort(dim=1, stable=True).indices[:, :most]

    def corner(below: int, beside: int) -> Tensor:
        return last[head, row + below, column + beside].gather(1, chosen)[..., None]

    share = right.share[column][:, None]  # (cells, 1, columns)
    upper = corner(0, 0) * (1 - share) + corner(0, 1) * share
    lower = corner(1, 0) * (1 - share) + corner(1, 1) * share
    # One candidate after the other: argmax over any but the last dimension is slow on the CPU.
    share = down.share[row][..., None]  # (cells, rows, 1)
    there = mine.gather(1, chosen)
    names = chosen.to(torch.uint8)[..., None, None]
    best = upper[:, 0, None] * (1 - share) + lower[:, 0, None] * share
    winner = names[:, 0].expand(best.shape)
    for i in range(1, most):
        value = upper[:, i, None] * (1 - share) + lower[:, i, None] * share
        better = (value > best) & there[:, i, None, None]
        best = torch.where(better, value, best)
        winner = torch.where(better, names[:, i], winner)
    return winner


@dataclass(frozen=True)
class _Axis:
    """How the pixels of one axis lie between its tokens."""

    most: int  # pixels in a cell
    share: Tensor  # (cells, most): of the second token, for each pixel of a cell
    place: Tensor  # (pixels,): where a pixel is, once all cells have `most`


def _axis(tokens: int, pixels: int, device: torch.device) -> _Axis:
    """As `interpolate` does it, in its precision: pixel centres, half a token beyond the first."""
    scale = torch.tensor(tokens, dtype=torch.float32) / pixels
    source = (scale * (torch.arange(pixels) + 0.5) - 0.5).clamp_min_(0)
    cell = source.long().clamp_max_(tokens - 1)
    count = torch.bincount(cell, minlength=tokens)
    most = int(count.max())
    within = torch.arange(pixels) - (count.cumsum(0) - count)[cell]
    place = cell * most + within
    share = torch.zeros(tokens * most)
    share[place] = source - cell
    return _Axis(most, share.view(tokens, most).to(device), place.to(device))
