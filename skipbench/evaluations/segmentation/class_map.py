"""The class of every pixel: the argmax of bilinearly resized logits, without resizing them.

Between four neighbouring tokens (a cell), the difference of two interpolated logits is a weighted
mean of its values at the four corners. So the class that wins all corners wins the cell; and else a
class can win a pixel only if it is below no corner's winner at all four. The same is true of a
column of pixels in a cell and its two ends. Most cells are settled by their corners, and many
columns of the others by their ends. Only the rest is interpolated, of the few classes that can win.
The result is that of `interpolate` and `argmax`, pixel for pixel, except where two classes differ
by less than rounding.

For speed on the CPU, items (cells or columns) are in the last dimension, so that all runs over long
rows; and `index_select` and `maximum` take the place of indexing and `where`, which are slow.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Items with up to so many candidates are compared together, padded to that number.
GROUPS = (2, 3, 4, 6, 8, 12, 16, *(2**n for n in range(5, 16)))
AT_ONCE = 2**24


def class_map(
    logits: Tensor,
    size_hw: tuple[int, int],
    extent_hw: tuple[float, float] | None = None,
    at_once: int = AT_ONCE,
) -> Tensor:
    """(heads, classes, height, width) finite logits → (heads, *size_hw) classes, uint8 where that
    is enough for their number, else int16.

    extent_hw: how many tokens the picture covers, if padded on the right and at the bottom.
    at_once: numbers in the largest tensor; uncertain cells are split so that none is larger.
    """
    heads, classes, height, width = logits.shape
    extent = extent_hw or (height, width)
    down = _axis(height, size_hw[0], extent[0], logits.device)
    right = _axis(width, size_hw[1], extent[1], logits.device)
    tokens = logits.permute(0, 2, 3, 1).reshape(-1, classes).float()
    corners = _corners(heads, height, width, logits.device)
    winners = tokens.argmax(1)[corners]  # (4, cells)
    # Every cell as a block of pixels, (columns, rows), first of the class at its first corner.
    names = torch.uint8 if classes <= 256 else torch.int16
    blocks = winners[0].to(names)[:, None, None].repeat(1, right.most, down.most)
    uncertain = (winners.amin(0) != winners.amax(0)).nonzero()[:, 0]
    for cells in _parts(uncertain, at_once // (2 * right.most * classes)):
        candidates = _candidates(cells, tokens, corners[:, cells], winners[:, cells], names)
        columns = _fill_cells(blocks, candidates, right, at_once)
        _fill_columns(blocks, columns, down, width + 1, at_once)
    # (heads, height + 1, columns, rows): blocks side by side, only of the columns there are
    side_by_side = blocks.view(heads, height + 1, -1, down.most).index_select(2, right.place)
    stacked = side_by_side.transpose(2, 3).reshape(heads, -1, size_hw[1])
    return stacked.index_select(1, down.place)


@dataclass(frozen=True)
class _Candidates:
    """Classes that may win somewhere in an item, sorted by item and then by class."""

    item: Tensor  # (candidates,): the cell, or the column, in the order of `blocks`
    name: Tensor  # (candidates,) uint8 or int16: the class
    ends: Tensor  # (4 or 2, candidates): its logits at the corners, or ends, of the item

    def groups(self, pixels_at_once: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Items (n,), names (most, n) and ends (4 or 2, most, n) of items with about as many."""
        items, count = self.item.unique_consecutive(return_counts=True)
        last = count.cumsum(0) - 1
        fewer = 0
        for most in GROUPS:
            number = torch.arange(most, device=items.device)[:, None]
            members = ((count > fewer) & (count <= most)).nonzero()[:, 0]
            for part in _parts(members, pixels_at_once // most):
                # Where there are fewer, the last is repeated: it is not better than itself.
                slots = (last[part] - count[part] + 1 + number).minimum(last[part]).view(-1)
                names = self.name.index_select(0, slots).view(most, -1)
                yield items[part], names, self.ends.index_select(1, slots).view(-1, *names.shape)
            fewer = most


def _candidates(
    cells: Tensor, tokens: Tensor, corners: Tensor, winners: Tensor, names: torch.dtype
) -> _Candidates:
    """corners, winners: (4, cells), tokens and classes."""
    a, b, c, d = (tokens.index_select(0, corner) for corner in corners)  # (cells, classes)
    lowest = a.minimum(b).minimum(c.minimum(d))
    highest = a.maximum(b).maximum(c.maximum(d))
    # First what is cheap for all classes: it must reach the best of all lowest corners.
    cell, name = (highest >= lowest.amax(1, keepdim=True)).nonzero(as_tuple=True)
    start = corners * tokens.shape[1]  # where a token is in all logits
    mine = tokens.take(start.index_select(1, cell) + name)  # (4, candidates)
    theirs = tokens.take(start.T[:, :, None] + winners.T[:, None])  # (cells, corners, winners)
    theirs = theirs.view(-1, 16).index_select(0, cell).T.reshape(4, 4, -1)
    ahead = (mine[:, None] - theirs).amax(0).amin(0)  # at the best corner, of the hardest winner
    kept = (ahead >= 0).nonzero()[:, 0]
    return _Candidates(cells[cell[kept]], name[kept].to(names), mine.index_select(1, kept))


def _fill_cells(
    blocks: Tensor, candidates: _Candidates, right: "_Axis", at_once: int
) -> _Candidates:
    """Fills each column with the winner of its upper end; those left have another at the lower."""
    items, names, values = [], [], []
    for cell, name, corners in candidates.groups(at_once // (2 * right.most)):
        share = right.shares(cell % len(right.share))  # (columns, n)
        left, beside = corners.view(2, 2, *name.shape)[:, :, :, None].unbind(1)
        ends = left * (1 - share) + beside * share  # (2, most, columns, n)
        best = _first_best(ends.transpose(0, 1))  # (2, columns, n)
        winner = name.gather(0, best[0])
        blocks[cell] = winner.T[..., None].expand(-1, -1, blocks.shape[2])
        ahead = (ends - ends.gather(1, best.flip(0)[:, None])).amin(0)  # of the other end's winner
        open_ = (ahead >= 0) & (best[0] != best[1])  # (most, columns, n)
        column, n, candidate = open_.permute(1, 2, 0).nonzero(as_tuple=True)
        items.append(cell[n] * right.most + column)
        names.append(name.take(candidate * len(cell) + n))
        place = (candidate * right.most + column) * len(cell) + n
        values.append(ends.view(2, -1).index_select(1, place))
    return _Candidates(torch.cat(items), torch.cat(names), torch.cat(values, 1))


def _fill_columns(
    blocks: Tensor, candidates: _Candidates, down: "_Axis", across: int, at_once: int
) -> None:
    """Fills columns pixel by pixel; across: cells beside each other."""
    columns = blocks.view(-1, blocks.shape[2])
    for column, name, ends in candidates.groups(at_once // down.most):
        share = down.shares(column // (blocks.shape[1] * across) % len(down.share))  # (rows, n)
        upper, lower = ends[:, :, None]
        best = _first_best(upper * (1 - share) + lower * share)
        columns[column] = name.gather(0, best).T.contiguous()


def _first_best(values: Tensor) -> Tensor:
    """(candidates, …) → (…) int64: which is the highest, the first of equals."""
    if len(values) > 16:  # rare, so that steps count for more than their size
        return values.argmax(0)
    highest, best = values[0], torch.zeros_like(values[0], dtype=torch.uint8)
    for i, value in enumerate(values[1:], 1):
        best = best.maximum((value > highest).to(torch.uint8) * i)  # a later one is a larger number
        highest = highest.maximum(value)
    return best.long()


def _parts(items: Tensor, most: int) -> Iterator[Tensor]:
    if len(items):
        yield from items.split(max(1, most))


def _corners(heads: int, height: int, width: int, device: torch.device) -> Tensor:
    """(4, cells) int64: tokens above left, above right, below left, below right of each cell.

    With half cells around the grid, between the tokens of the rim and themselves: height + 1 rows
    of width + 1 cells a head, none of which has more pixels than those inside.
    """

    def ends(tokens: int) -> Tensor:  # (2, cells)
        second = torch.arange(tokens + 1, device=device)
        return torch.stack([(second - 1).clamp_min(0), second.clamp_max(tokens - 1)])

    head = torch.arange(heads, device=device)[:, None, None]
    rows, columns = ends(height)[:, None, None, :, None], ends(width)[:, None, None]
    return ((head * height + rows) * width + columns).reshape(4, -1)


@dataclass(frozen=True)
class _Axis:
    """How the pixels of one axis lie between its tokens."""

    most: int  # pixels in a cell
    share: Tensor  # (cells, most): of the second token, for each pixel of a cell
    place: Tensor  # (pixels,): where a pixel is, once all cells have `most`

    def shares(self, cells: Tensor) -> Tensor:
        """(most, n) of n cells."""
        return self.share.index_select(0, cells).T.contiguous()


def _axis(tokens: int, pixels: int, extent: float, device: torch.device) -> _Axis:
    """As `interpolate` does it, in its precision: pixel centres, half a token beyond the first."""
    scale = torch.tensor(extent / pixels, dtype=torch.float32)
    source = scale * (torch.arange(pixels) + 0.5) - 0.5
    first = source.floor().long().clamp_max_(tokens - 1)
    share_of_second = torch.where(first < 0, 0, source - first).clamp_max_(1)
    cell = first + 1
    count = torch.bincount(cell, minlength=tokens + 1)
    most = int(count.max())
    place = cell * most + torch.arange(pixels) - (count.cumsum(0) - count)[cell]
    share = torch.zeros((tokens + 1) * most)
    share[place] = share_of_second
    return _Axis(most, share.view(tokens + 1, most).to(device), place.to(device))
