"""TokenCut against a plain dense one, on graphs of many kinds: same seed, object and box.

Where two cuts are equally good nothing is to be found: these graphs are listed by name. Run with -s
to see how many graphs of each kind were cut and how far the vectors were apart.
"""

from dataclasses import dataclass, field
from functools import cache
from itertools import product

import cuts
import numpy as np
import pytest
import torch
from conftest import SHARED

from skipbench import demo
from skipbench.backbones.vit import ViTBackbone
from skipbench.checkpoints import Checkpoint, open_checkpoint
from skipbench.errors import NumbersError, UsageError
from skipbench.evaluations.tokencut.graph import Graphs, link
from skipbench.evaluations.tokencut.method import cut, decide, lost, tokencut
from skipbench.images import embedded_photographs

EPS = 1e-5
TINY, SMALL = [(3, 4), (4, 5), (5, 7)], [(6, 9), (9, 14), (8, 17), (9, 16)]
MEDIUM, LARGE = [(12, 20), (13, 21), (17, 23)], [(20, 30), (24, 36)]
GRIDS = TINY + SMALL + MEDIUM


# Graphs by kind: each is a name, a grid and links


def random_graphs():
    for grid_hw, share in product(TINY, (0.3, 0.5, 0.7, 0.9)):
        for seed in range(4):
            name, _, links = cuts.case(cuts.random_links, grid_hw, share, seed=seed)
            yield f"{name} no. {seed}", grid_hw, links
    for grid_hw, share in product(SMALL + MEDIUM, (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)):
        yield cuts.case(cuts.random_links, grid_hw, share)


def clustered_graphs():
    chances = [(0.9, 0.02), (0.6, 0.2), (1.0, 0.3), (0.5, 0.3)]
    for grid_hw, parts, (inside, outside) in product(GRIDS, (2, 3, 5), chances):
        yield cuts.case(cuts.planted, grid_hw, parts, inside, outside)
    for grid_hw, parts in product(GRIDS, (2, 4, 8)):
        count = grid_hw[0] * grid_hw[1]
        yield cuts.case(cuts.overlapping, grid_hw, parts, count // 2)
        name, _, links = cuts.case(cuts.overlapping, grid_hw, parts, count // 3)
        yield f"{name} shuffled", grid_hw, cuts.shuffled(np.random.default_rng(1), links)


def spatial_graphs():
    for grid_hw, objects, noise in product(GRIDS, (1, 2, 4), (0.1, 0.6, 1.5)):
        rng = np.random.default_rng(0)
        links = cuts.cosines(cuts.blobs(rng, grid_hw, objects, noise)) > 0.2
        yield cuts.named("blobs", grid_hw, objects, noise), grid_hw, links


def disconnected_graphs():
    for grid_hw, parts in [*product(TINY, (2, 3)), *product(SMALL + MEDIUM, (2, 3, 5, 10))]:
        count, rng = grid_hw[0] * grid_hw[1], np.random.default_rng(parts)
        sizes = np.diff([0, *sorted(rng.choice(range(1, count), parts - 1, replace=False)), count])
        each = count // (parts + 1)
        same, last = cuts.random_links(rng, each, 0.5), count - parts * each
        alone = cuts.random_links(rng, count, 0.6)
        alone[:parts] = alone[:, :parts] = False
        made = {
            "cliques": cuts.cliques(*sizes),
            "equal cliques": cuts.cliques(*[each] * parts, *[1] * last),
            "parts": cuts.apart(*(cuts.random_links(rng, size, 0.5) for size in sizes)),
            "copies": cuts.apart(*[same] * parts, cuts.random_links(rng, last, 0.5)),
            "copies alone": cuts.apart(*[cuts.random_links(rng, count // parts, 0.5)] * parts),
            "around a hub": cuts.around_a_hub(
                rng, [same] * parts, cuts.random_links(rng, last, 0.5), 0.3
            ),
            "linked to none": alone,
            "linked to themselves": alone | cuts.themselves(count),
        }
        for name, links in made.items():
            here = grid_hw if len(links) == count else (1, len(links))
            yield cuts.named(name, grid_hw, parts), here, links
            if name in ("parts", "copies"):
                yield (
                    cuts.named(f"{name}, shuffled", grid_hw, parts),
                    here,
                    cuts.shuffled(rng, links),
                )


def nearly_uniform_graphs():
    for grid_hw, missing in product(GRIDS, (1, 2, 3, 10, 100)):
        yield cuts.case(cuts.complete_but, grid_hw, missing, seed=3)
        count = grid_hw[0] * grid_hw[1]
        if missing < count:
            few = ~cuts.complete_but(np.random.default_rng(3), count, missing)
            yield cuts.named("a few links", grid_hw, missing), grid_hw, few | cuts.themselves(count)
            yield cuts.named("only a few links", grid_hw, missing), grid_hw, few


def shapes():
    for grid_hw in GRIDS:
        count = grid_hw[0] * grid_hw[1]
        made = {
            "chain": cuts.chain(count),
            "chain, shuffled": cuts.shuffled(np.random.default_rng(0), cuts.chain(count)),
            "ring": cuts.chain(count, ring=True),
            "star": cuts.star(count),
            "star and others": cuts.star(count, count // 2),
            "two stars": cuts.apart(cuts.star(count // 3), cuts.star(count - count // 3)),
            "lattice": cuts.lattice(grid_hw),
            "bipartite": cuts.bipartite(count, count // 3),
            "complete": np.ones((count, count), bool),
            "empty": cuts.themselves(count),
            "not even linked to themselves": np.zeros((count, count), bool),
        }
        yield from ((cuts.named(name, grid_hw), grid_hw, links) for name, links in made.items())


def large_graphs():
    for grid_hw in LARGE:
        rng, count = np.random.default_rng(0), grid_hw[0] * grid_hw[1]
        for objects, noise in ((1, 0.3), (4, 1.0)):
            links = cuts.cosines(cuts.blobs(rng, grid_hw, objects, noise)) > 0.2
            yield cuts.named("blobs", grid_hw, objects, noise), grid_hw, links
        yield cuts.case(cuts.random_links, grid_hw, 0.1)
        yield cuts.case(cuts.random_links, grid_hw, 0.7)
        yield cuts.case(cuts.planted, grid_hw, 4, 0.4, 0.1)
        yield cuts.case(cuts.complete_but, grid_hw, 100)
        parts = [cuts.random_links(rng, size, 0.3) for size in (count // 2, count // 3, count // 6)]
        yield cuts.named("parts", grid_hw), grid_hw, cuts.apart(*parts)
        yield cuts.named("chain", grid_hw), grid_hw, cuts.chain(count)
        yield cuts.named("lattice", grid_hw), grid_hw, cuts.lattice(grid_hw)
    grid_hw = (36, 60)
    links = cuts.cosines(cuts.blobs(np.random.default_rng(2), grid_hw, 3, 0.8)) > 0.2
    yield cuts.named("blobs", grid_hw), grid_hw, links


KINDS = {
    "random": random_graphs,
    "clustered": clustered_graphs,
    "spatial": spatial_graphs,
    "disconnected": disconnected_graphs,
    "nearly uniform": nearly_uniform_graphs,
    "shapes": shapes,
    "large": large_graphs,
}


@dataclass
class Tally:
    sizes: list = field(default_factory=list)
    wrong: dict = field(default_factory=dict)  # name: what differs
    unlike_published: list = field(default_factory=list)
    degenerate: set = field(default_factory=set)
    undecided: list = field(default_factory=list)  # rounding would decide: no good cases
    tied: int = 0
    largest: float = 0.0  # difference of vectors

    def add(self, name, grid_hw, found, cut):
        self.sizes.append(cut.mask.size)
        if words := list(cuts.differences(found, cut, grid_hw)):
            self.wrong[name] = words
        if cut.degenerate:
            self.degenerate.add(name)
            return
        if cut.gap < 10 * cuts.SAME or cuts.margin(cut.y) < 0.05 * cuts.TIE:
            self.undecided.append(name)
        self.largest = max(self.largest, np.abs(found.map.ravel() - cut.y).max())
        self.tied += cut.tied
        seed, mask = cuts.as_published(cut.y, grid_hw)
        same = np.array_equal(mask, cut.mask) and mask.flat[seed]
        if not (cut.tied or same):
            self.unlike_published.append(name)

    def __str__(self):
        return (
            f"{len(self.sizes)} graphs of {min(self.sizes)} to {max(self.sizes)} tokens, "
            f"{self.tied} with ties, {len(self.degenerate)} degenerate; "
            f"vectors differ by {self.largest:.1e} at most"
        )


def found_in(cases):
    """What the package finds, graphs of one grid together."""
    by_grid = {}
    for name, grid_hw, links in cases:
        by_grid.setdefault(grid_hw, []).append((name, links))
    for grid_hw, several in by_grid.items():
        stacked = torch.from_numpy(np.stack([links for _, links in several]))
        for (name, links), found in zip(several, cut(Graphs(stacked, EPS), grid_hw), strict=True):
            yield name, grid_hw, links, found


def tally_of(found):
    tally = Tally()
    for name, grid_hw, links, one in found:
        tally.add(name, grid_hw, one, cuts.by_the_rule(links, grid_hw, EPS))
    return tally


def everywhere(*names, but=()):
    """These names on all of the grids but some."""
    return {cuts.named(name, grid_hw) for name in names for grid_hw in GRIDS if grid_hw not in but}


COPIES = ("equal cliques", "copies alone", "around a hub")
LAST_IS_NO_LARGER = ("3 3×4", "3 4×5", "3 13×21", "5 6×9", "5 9×16", "5 12×20", "10 9×16")

# Graphs with two cuts that are equally good, and no others.
DEGENERATE = {
    "random": set(),
    "clustered": set(),
    "spatial": set(),
    "disconnected": {
        *everywhere(*(f"{name} 3" for name in COPIES)),
        *everywhere(*(f"{name} {parts}" for name in COPIES for parts in (5, 10)), but=TINY),
        *(f"copies {of}" for of in LAST_IS_NO_LARGER),
        *(f"copies, shuffled {of}" for of in LAST_IS_NO_LARGER),
    }
    - {"around a hub 3 3×4", "around a hub 10 6×9"},
    "nearly uniform": {
        *everywhere("complete but 2", but=[(3, 4)]),  # where the two meet
        *everywhere("complete but 3", "a few links 3", "only a few links 3", but=[(3, 4), (4, 5)]),
        *(f"{name} 10 17×23" for name in ("complete but", "a few links", "only a few links")),
        "complete but 100 3×4",  # it has but 66 pairs
    },
    "shapes": everywhere(
        "ring", "star", "bipartite", "complete", "empty", "not even linked to themselves"
    ),
    "large": set(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_same_object_as_by_a_dense_solver(kind):
    tally = tally_of(found_in(KINDS[kind]()))
    print(f"\n{kind}: {tally}")
    assert tally.wrong == {}
    assert tally.unlike_published == []
    assert tally.undecided == []
    assert tally.degenerate == DEGENERATE[kind]
    assert tally.largest < 3e-8  # a gap of 1e-7 leaves both solvers that much


@pytest.mark.parametrize("eps", [0.3, 1e-2, 1e-7])
def test_another_weight_of_the_pairs_that_are_not_linked(eps):
    for name, grid_hw, links in [*clustered_graphs()][::7]:
        (found,) = cut(Graphs(torch.from_numpy(links)[None], eps), grid_hw)
        words = cuts.differences(found, cuts.by_the_rule(links, grid_hw, eps), grid_hw)
        assert (name, *words) == (name,)


# Graphs of features


@cache
def untrained(residual):
    facts = demo.small_facts(width=96, depth=4, patch=8, heads=2)
    return ViTBackbone(Checkpoint(demo.make_weights(residual, facts), facts), residual)


def feature_graphs(backbone, photos, blocks, tensors, taus):
    """(name, grid, links, what the package finds) for every photograph, block, tensor and τ."""
    for (block, tensor), patches in backbone(photos, blocks, tensors).patches.items():
        grid_hw, tokens = patches.shape[1:3], patches.flatten(1, 2)
        for tau in taus:
            for i, found in enumerate(tokencut(tokens, tuple(grid_hw), tau)):
                name = cuts.named(f"{tensor} {block} τ {tau} no. {i}", grid_hw)
                yield name, tuple(grid_hw), settled(tokens[i], tau), found


def settled(tokens, tau):
    """Links by cosines in float64; where float32 cannot tell, as the package has them."""
    cosines = cuts.cosines(tokens.numpy())
    ours = link(tokens[None], tau)[0].numpy()
    return np.where(np.abs(cosines - tau) < 1e-6, ours, cosines > tau)


def check_features(title, graphs):
    """Only where all tokens are alike is an image degenerate."""
    graphs = list(graphs)
    tally = tally_of(graphs)
    print(f"\n{title}: {tally}")
    assert tally.wrong == {}
    assert tally.unlike_published == []
    assert tally.degenerate == {name for name, _, links, _ in graphs if links.all()}
    assert tally.largest < 3e-8  # a gap of 1e-7 leaves both solvers that much
    return tally


@pytest.mark.parametrize("residual", ["skip", "skipless"])
def test_same_object_in_features_of_photographs(residual):
    backbone = untrained(residual)
    graphs = [
        *feature_graphs(
            backbone, embedded_photographs((72, 104)), range(4), ["keys"], (0, 0.2, 0.5, 0.8)
        ),
        *feature_graphs(
            backbone, embedded_photographs((104, 168)), range(4), ["keys", "tokens_norm"],
            (0, 0.2, 0.5, 0.8, 0.95),
        ),
        *feature_graphs(backbone, embedded_photographs((192, 288)), [1], ["keys"], (0.2, 0.6)),
    ]  # fmt: skip
    if residual == "skipless":
        photo = embedded_photographs((200, 336))[:1]
        graphs += feature_graphs(backbone, photo, [1], ["keys"], [0.2])
    tally = check_features(residual, graphs)
    assert len(tally.degenerate) < len(graphs) / 3


@pytest.mark.skipif(not SHARED.exists(), reason="no real weights here")
def test_same_object_in_features_of_real_weights():
    weights = SHARED / "weights" / "dinov2_vits14_fp16.safetensors"
    backbone = ViTBackbone(open_checkpoint(weights), "skip")
    photos = embedded_photographs((224, 308))
    graphs = feature_graphs(backbone, photos, [2, 8, 11], ["keys", "tokens_norm"], (0, 0.2, 0.4))
    check_features("real weights", graphs)
    photo = embedded_photographs((364, 616))[1:2]
    check_features(
        "real weights, large", feature_graphs(backbone, photo, [11], ["tokens_norm"], [0.2])
    )


# Images together


@pytest.mark.parametrize("grid_hw", [(5, 7), (12, 17)])
@pytest.mark.parametrize("at_once", [1, 2, 5, 100])
def test_images_together_are_images_alone(grid_hw, at_once):
    """Also beside images in which nothing stands out."""
    tokens = cuts.images(7, grid_hw)
    tokens[1], tokens[4] = 1, 0
    for method in (tokencut, lost):
        together = method(tokens, grid_hw, room=at_once * tokens.shape[1] ** 2)
        alone = [method(one[None], grid_hw)[0] for one in tokens]
        assert all(map(cuts.same_found, together, alone))
        assert [found.degenerate for found in together] == [i in (1, 4) for i in range(7)]


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_constant_features_are_degenerate(value):
    """Fault 17: the whole image, and nothing was solved."""
    tokens = torch.full((2, 20, 8), value)
    for found in tokencut(tokens, (4, 5)) + lost(tokens, (4, 5)):
        assert found.degenerate and found.solver == "none" and not found.tied
        assert found.mask.all() and found.tokens == 20 and not found.map.any()
        assert found.box(16, (60, 75)) == (0, 0, 75, 60)


def test_the_dense_solver_takes_the_links_of_its_own_graph():
    """It once took those of another image, where nothing stood out in one before."""
    several = [
        np.ones((20, 20), bool),
        cuts.chain(20),
        np.zeros((20, 20), bool),
        cuts.cliques(5, 15),
    ]
    found = cut(Graphs(torch.from_numpy(np.stack(several)), EPS), (4, 5))
    for one, links in zip(found, several, strict=True):
        assert list(cuts.differences(one, cuts.by_the_rule(links, (4, 5)), (4, 5))) == []


# Tokens that cannot be cut


@pytest.mark.parametrize("method", [tokencut, lost])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_tokens_that_are_not_finite_are_refused(method, value):
    """In float32, as links are computed; the image is named."""
    tokens = cuts.images(3, (4, 5)).double()
    method(tokens, (4, 5))
    tokens[1, 7, 3] = value
    with pytest.raises(NumbersError, match="NaN or Inf in the tokens of image 1"):
        method(tokens, (4, 5))


@pytest.mark.parametrize("method", [tokencut, lost])
@pytest.mark.parametrize(
    ("shape", "grid_hw"),
    [
        ((0, 20, 8), (4, 5)),
        ((2, 0, 8), (0, 0)),
        ((2, 20, 0), (4, 5)),
        ((2, 20, 8), (4, 6)),
        ((2, 20, 8), (-4, -5)),
        ((20, 8), (4, 5)),
        ((2, 4, 5, 8), (4, 5)),
    ],
)
def test_tokens_that_are_no_images_on_this_grid_are_refused(method, shape, grid_hw):
    with pytest.raises(UsageError, match=r"expected \(images, height · width, channels\)"):
        method(torch.ones(shape), grid_hw)


# Ties


def cut_of(links, grid_hw):
    (found,) = cut(Graphs(torch.from_numpy(links)[None], EPS), grid_hw)
    return found


@pytest.mark.parametrize("pair", [(0, 11), (3, 4), (7, 2), (10, 5)])
def test_all_pairs_but_one_leave_the_others_on_the_mean(pair):
    """The two are as good a seed, with opposite signs: the first is taken, and stands alone."""
    links = np.ones((12, 12), bool)
    links[pair], links[pair[::-1]] = False, False
    found = cut_of(links, (3, 4))
    assert found.seed == min(pair) and np.flatnonzero(found.mask).tolist() == [min(pair)]
    assert found.tied and not found.degenerate
    assert found.map.flat[min(pair)] == pytest.approx(1)
    assert found.map.flat[max(pair)] == pytest.approx(-1)


@pytest.mark.parametrize("grid_hw", [(3, 4), (4, 5), (5, 7)])
def test_a_chain_has_a_seed_at_both_ends(grid_hw):
    """The first is taken, with its half; the token in the middle is on the mean, on no side."""
    count = grid_hw[0] * grid_hw[1]
    found = cut_of(cuts.chain(count), grid_hw)
    assert found.seed == 0 and found.tied
    assert np.flatnonzero(found.mask).tolist() == list(range(count // 2))


@pytest.mark.parametrize("seed", range(6))
def test_another_order_of_the_tokens_changes_what_the_rule_says_alone(seed):
    order = np.random.default_rng(seed).permutation(20)
    found = cut_of(cuts.chain(20)[np.ix_(order, order)], (4, 5))
    first, last = order.tolist().index(0), order.tolist().index(19)
    assert found.seed == min(first, last)
    side = (order < 10) if first < last else (order >= 10)
    assert np.array_equal(found.mask, cuts.flood(side.reshape(4, 5), found.seed))
    assert found.tied


def test_seeds_that_are_equally_good_in_one_object_are_no_tie():
    found = cut_of(cuts.cliques(8, 12), (4, 5))
    assert np.count_nonzero(np.abs(found.map) > 1 - 1e-9) == 8
    assert found.seed == 0 and found.tokens == 8 and not found.tied
    apart = cut_of(cuts.cliques(12, 8)[::-1, ::-1].copy(), (4, 5))
    assert cuts.same_found(found, apart)


def test_seeds_that_are_equally_good_in_two_objects_are_a_tie():
    order = [0, 1, 18, 19, *range(2, 18)]  # the smaller clique in two corners
    links = cuts.cliques(4, 16)[np.ix_(np.argsort(order), np.argsort(order))]
    found = cut_of(links, (4, 5))
    assert found.seed == 0 and found.tied
    assert np.flatnonzero(found.mask).tolist() == [0, 1]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_sign_of_the_vector_changes_nothing(sign):
    y = np.array([0.2, -1, -0.9, 0.3, 0.2, 0.2])
    found = decide(sign * y, (2, 3))
    assert found.seed == 1 and np.flatnonzero(found.mask).tolist() == [1, 2]
    assert found.map.flat[1] == 1 and not found.tied


@pytest.mark.parametrize("off", [0.0, 0.9e-7, -0.9e-7])
def test_entries_that_differ_by_less_than_the_rule_sees_are_ties(off):
    y = np.array([0.5, 1 - 0.9e-7, -1, 1, -0.5, 0.5 - 1])
    y[5] = y[:5].mean() + off * 6 / 5  # on the mean of all
    found = decide(y, (2, 3))
    assert found.seed == 1 and found.tied
    assert np.flatnonzero(found.mask).tolist() == [0, 1, 3]


TURNS = {
    "left and right": lambda grid: grid[:, ::-1],
    "top and bottom": lambda grid: grid[::-1],
    "rows and columns": lambda grid: grid.swapaxes(0, 1),
}


@pytest.mark.parametrize("turned", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("method", [tokencut, lost])
def test_a_turned_image_has_a_turned_object(method, turned):
    grid_hw = (7, 13)
    for tokens in cuts.images(5, grid_hw):
        (found,) = method(tokens[None], grid_hw)
        grid = turned(tokens.numpy().reshape(*grid_hw, -1))
        other = torch.from_numpy(grid.reshape(1, 7 * 13, -1).copy())
        (again,) = method(other, grid.shape[:2])
        assert again.tied == found.tied
        if not found.tied:
            assert np.array_equal(again.mask, turned(found.mask))
