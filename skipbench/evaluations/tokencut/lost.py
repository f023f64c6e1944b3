"""LOST (Siméoni et al. 2021): the object grows from the token that resembles the fewest others.

    graph      tokens with a positive inner product are linked
    seed       the token with the fewest neighbours; of several, the first, row by row
    expansion  among the 100 tokens with the fewest neighbours, those linked to the seed
    object     tokens whose inner products with these sum to more than 0: the 4-connected part of
               them that holds the seed

Where every token resembles every other, none stands out: the object is the whole image, and the
image is counted as degenerate.
"""

import torch

from skipbench.evaluations.tokencut.graph import Graphs, link
from skipbench.evaluations.tokencut.method import portions
from skipbench.evaluations.tokencut.objects import Found, nothing_stands_out, part_of

EXPANSION = 100


def lost(
    tokens: torch.Tensor,
    grid_hw: tuple[int, int],
    expansion: int = EXPANSION,
    room: int | None = None,
) -> list[Found]:
    """One object in each image. tokens: (images, height · width, channels), not normalised; room:
    bytes of links."""
    found = []
    for some in portions(tokens, room):
        neighbours = Graphs(link(some, 0.0), eps=0.0).neighbours
        pairs = zip(some.double(), neighbours, strict=True)
        found += [_grow(image, count, grid_hw, expansion) for image, count in pairs]
    return found


def _grow(
    tokens: torch.Tensor, neighbours: torch.Tensor, grid_hw: tuple[int, int], expansion: int
) -> Found:
    fewest, most = neighbours.amin(), neighbours.amax()
    if fewest == len(tokens) or most == 0:
        return nothing_stands_out(grid_hw)
    order = neighbours.argsort(stable=True)[:expansion]
    seed = int(order[0])
    similar = order[tokens[order] @ tokens[seed] > 0]
    if not len(similar):  # a token of zeros, that resembles nothing
        return nothing_stands_out(grid_hw)
    correlation = (tokens @ tokens[similar].sum(0)).cpu().numpy()
    rivals = (neighbours == fewest).nonzero()[:, 0].cpu().numpy()
    mask, apart = part_of((correlation > 0).reshape(grid_hw), seed, rivals)
    return Found(mask, correlation.reshape(grid_hw), seed, tied=apart)
