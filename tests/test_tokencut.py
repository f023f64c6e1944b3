"""TokenCut and LOST against plain dense ones, on graphs of many kinds: same seed, object and box.

Where two cuts are equally good nothing is to be found: these graphs are listed by name. Run with -s
to see how many graphs of each kind were cut and how far the vectors were apart.
"""

import math
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import cuts
import numpy as np
import pytest
import torch
from conftest import SHARED
from threadpoolctl import threadpool_limits

from skipbench import demo
from skipbench.backbones.vit import Backbone
from skipbench.checkpoints import Checkpoint, open_checkpoint
from skipbench.evaluations.tokencut import eigenvector as _second_vector
from skipbench.evaluations.tokencut.eigenvector import second_vectors
from skipbench.evaluations.tokencut.graph import Graphs, link
from skipbench.evaluations.tokencut.lost import lost
from skipbench.evaluations.tokencut.method import cut, decide, tokencut
from skipbench.evaluations.tokencut.objects import Found, part_of
from skipbench.images import embedded_photographs

EPS, PATCH = 1e-5, 16
TINY, SMALL = [(3, 4), (4, 5), (5, 7)], [(6, 9), (9, 14), (8, 17), (9, 16)]
MEDIUM, LARGE = [(12, 20), (13, 21), (17, 23)], [(24, 36), (30, 40)]
GRIDS = TINY + SMALL + MEDIUM


@pytest.fixture(autouse=True, scope="module")
def one_thread_for_lapack():
    """Matrices as small as these gain nothing from more, and lose much where cores are shared."""
    with threadpool_limits(1, user_api="blas"):
        yield


# Graphs by kind: each is a name, a grid and links


def random_graphs():
    for grid_hw, share in product(TINY, (0.3, 0.5, 0.7, 0.9)):
        for seed in range(4):
            name, _, links = case(cuts.random_links, grid_hw, share, seed=seed)
            yield f"{name} no. {seed}", grid_hw, links
    for grid_hw, share in product(SMALL + MEDIUM, (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)):
        yield case(cuts.random_links, grid_hw, share)


def clustered_graphs():
    chances = [(0.9, 0.02), (0.6, 0.2), (1.0, 0.3), (0.5, 0.3)]
    for grid_hw, parts, (inside, outside) in product(GRIDS, (2, 3, 5), chances):
        yield case(cuts.planted, grid_hw, parts, inside, outside)
    for grid_hw, parts in product(GRIDS, (2, 4, 8)):
        count = grid_hw[0] * grid_hw[1]
        yield case(cuts.overlapping, grid_hw, parts, count // 2)
        name, _, links = case(cuts.overlapping, grid_hw, parts, count // 3)
        yield f"{name} shuffled", grid_hw, cuts.shuffled(np.random.default_rng(1), links)


def spatial_graphs():
    for grid_hw, objects, noise in product(GRIDS, (1, 2, 4), (0.1, 0.6, 1.5)):
        rng = np.random.default_rng(0)
        links = cuts.cosines(cuts.blobs(rng, grid_hw, objects, noise)) > 0.2
        yield named("blobs", grid_hw, objects, noise), grid_hw, links


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
            yield named(name, grid_hw, parts), here, links
            if name in ("parts", "copies"):
                yield named(f"{name}, shuffled", grid_hw, parts), here, cuts.shuffled(rng, links)


def nearly_uniform_graphs():
    for grid_hw, missing in product(GRIDS, (1, 2, 3, 10, 100)):
        yield case(cuts.complete_but, grid_hw, missing, seed=3)
        count = grid_hw[0] * grid_hw[1]
        if missing < count:
            few = ~cuts.complete_but(np.random.default_rng(3), count, missing)
            yield named("a few links", grid_hw, missing), grid_hw, few | cuts.themselves(count)
            yield named("only a few links", grid_hw, missing), grid_hw, few


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
        yield from ((named(name, grid_hw), grid_hw, links) for name, links in made.items())


def large_graphs():
    for grid_hw in LARGE:
        rng, count = np.random.default_rng(0), grid_hw[0] * grid_hw[1]
        for objects, noise in ((1, 0.3), (4, 1.0)):
            links = cuts.cosines(cuts.blobs(rng, grid_hw, objects, noise)) > 0.2
            yield named("blobs", grid_hw, objects, noise), grid_hw, links
        yield case(cuts.random_links, grid_hw, 0.1)
        yield case(cuts.random_links, grid_hw, 0.7)
        yield case(cuts.planted, grid_hw, 4, 0.4, 0.1)
        yield case(cuts.complete_but, grid_hw, 100)
        parts = [cuts.random_links(rng, size, 0.3) for size in (count // 2, count // 3, count // 6)]
        yield named("parts", grid_hw), grid_hw, cuts.apart(*parts)
        yield named("chain", grid_hw), grid_hw, cuts.chain(count)
        yield named("lattice", grid_hw), grid_hw, cuts.lattice(grid_hw)
    grid_hw = (45, 80)
    links = cuts.cosines(cuts.blobs(np.random.default_rng(2), grid_hw, 3, 0.8)) > 0.2
    yield named("blobs", grid_hw), grid_hw, links


def case(make, grid_hw, *options, seed=0):
    links = make(np.random.default_rng(seed), grid_hw[0] * grid_hw[1], *options)
    return named(make.__name__, grid_hw, *options), grid_hw, links


def named(name, grid_hw, *options):
    return " ".join(map(str, (name.replace("_", " "), *options, "×".join(map(str, grid_hw)))))


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
        if words := list(differences(found, cut, grid_hw)):
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


def differences(found, cut, grid_hw):
    """What is not the same, in words."""
    size_hw = grid_hw[0] * PATCH - 5, grid_hw[1] * PATCH - 3
    if found.degenerate != cut.degenerate:
        yield f"degenerate: {found.degenerate}, λ3 − λ2 = {cut.gap}"
        return
    if found.seed != cut.seed:
        yield f"seed: {found.seed}, not {cut.seed}"
    if found.tied != cut.tied:
        yield f"tied: {found.tied}"
    if not np.array_equal(found.mask, cut.mask):
        yield "object"
    if found.box(PATCH, size_hw) != cuts.box(cut.mask, PATCH, size_hw):
        yield "box"
    if not cut.degenerate and not np.array_equal(side_of(found), cut.side):
        yield "side"


def side_of(found):
    return found.map > found.map.mean() + cuts.TIE


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
    return {named(name, grid_hw) for name in names for grid_hw in GRIDS if grid_hw not in but}


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
        words = differences(found, cuts.by_the_rule(links, grid_hw, eps), grid_hw)
        assert (name, *words) == (name,)


# Graphs of features


@cache
def untrained(residual):
    facts = demo.small_facts(width=96, depth=4, patch=8, heads=2)
    return Backbone(Checkpoint(demo.make_weights(residual, facts), facts), residual)


def feature_graphs(backbone, photos, blocks, tensors, taus):
    """(name, grid, links, what the package finds) for every photograph, block, tensor and τ."""
    for (block, tensor), patches in backbone(photos, blocks, tensors).patches.items():
        grid_hw, tokens = patches.shape[1:3], patches.flatten(1, 2)
        for tau in taus:
            for i, found in enumerate(tokencut(tokens, tuple(grid_hw), tau)):
                name = named(f"{tensor} {block} τ {tau} no. {i}", grid_hw)
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
        photo = embedded_photographs((240, 400))[:1]
        graphs += feature_graphs(backbone, photo, [1], ["keys"], [0.2])
    tally = check_features(residual, graphs)
    assert len(tally.degenerate) < len(graphs) / 3


@pytest.mark.skipif(not SHARED.exists(), reason="no real weights here")
def test_same_object_in_features_of_real_weights():
    weights = SHARED / "weights" / "dinov2_vits14_fp16.safetensors"
    backbone = Backbone(open_checkpoint(weights), "skip")
    photos = embedded_photographs((224, 308))
    graphs = feature_graphs(backbone, photos, [2, 8, 11], ["keys", "tokens_norm"], (0, 0.2, 0.4))
    check_features("real weights", graphs)
    photo = embedded_photographs((630, 1120))[1:2]
    check_features(
        "real weights, large", feature_graphs(backbone, photo, [11], ["tokens_norm"], [0.2])
    )


# Links


@pytest.mark.parametrize("tau", [-0.1, 0, 0.2, 0.9])
@pytest.mark.parametrize("rows", [7, 600])
def test_links_are_cosines_above_tau(monkeypatch, tau, rows):
    monkeypatch.setattr("skipbench.evaluations.tokencut.graph.ROWS", rows)
    tokens = images_of_tokens(2, (5, 9))
    links = link(tokens, tau)
    assert torch.equal(links, links.mT)
    for one, ours in zip(tokens.numpy(), links.numpy(), strict=True):
        cosines = cuts.cosines(one)
        clear = np.abs(cosines - tau) > 1e-6
        assert np.array_equal(ours[clear], (cosines > tau)[clear])
        assert clear.mean() > 0.99 and 0.01 < ours.mean() < 0.999


def test_links_of_cosines_that_are_tau_itself_are_symmetric(monkeypatch):
    monkeypatch.setattr("skipbench.evaluations.tokencut.graph.ROWS", 16)
    tokens = images_of_tokens(1, (5, 7))
    unit = torch.nn.functional.normalize(tokens[0], dim=-1)
    for tau in (unit @ unit.T).flatten()[:40].tolist():
        links = link(tokens, tau)
        assert torch.equal(links, links.mT)


def test_zero_tokens_are_linked_to_nothing():
    tokens = images_of_tokens(1, (4, 5))
    without = link(tokens, 0.1)[0]
    tokens[0, [3, 11]] = 0
    links = link(tokens, 0.1)[0]
    assert not links[[3, 11]].any() and not links[:, [3, 11]].any()
    others = [i for i in range(20) if i not in (3, 11)]
    assert torch.equal(links[others][:, others], without[others][:, others])


def test_the_length_of_a_token_changes_nothing():
    tokens = images_of_tokens(1, (6, 7))
    lengths = torch.exp2(torch.arange(42).sub(21).float())[:, None]
    assert torch.equal(link(tokens * lengths, 0.2), link(tokens, 0.2))


def test_half_precision_is_taken_as_it_is():
    tokens = images_of_tokens(1, (6, 7)).half()
    assert torch.equal(link(tokens, 0.2), link(tokens.double(), 0.2))


def images_of_tokens(images, grid_hw, seed=0):
    """(images, n, channels): each with another number of objects and more noise."""
    rng = np.random.default_rng(seed)
    made = [cuts.blobs(rng, grid_hw, 1 + i % 4, 0.3 + 0.2 * i) for i in range(images)]
    return torch.from_numpy(np.stack(made))


# Images together


def same_found(one, other):
    return (
        np.array_equal(one.mask, other.mask)
        and np.allclose(one.map, other.map, rtol=0, atol=1e-8)
        and (one.seed, one.degenerate, one.tied) == (other.seed, other.degenerate, other.tied)
    )


@pytest.mark.parametrize("grid_hw", [(5, 7), (12, 17)])
@pytest.mark.parametrize("at_once", [1, 2, 5, 100])
def test_images_together_are_images_alone(monkeypatch, grid_hw, at_once):
    """Also beside images in which nothing stands out."""
    tokens = images_of_tokens(7, grid_hw)
    tokens[1], tokens[4] = 1, 0
    count = tokens.shape[1]
    monkeypatch.setattr("skipbench.evaluations.tokencut.method.BYTES_ON_CPU", at_once * count**2)
    for method in (tokencut, lost):
        together = method(tokens, grid_hw)
        alone = [method(one[None], grid_hw)[0] for one in tokens]
        assert all(map(same_found, together, alone))
        assert [found.degenerate for found in together] == [i in (1, 4) for i in range(7)]


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
        assert list(differences(one, cuts.by_the_rule(links, (4, 5)), (4, 5))) == []


def test_graphs_without_some_are_the_others():
    rng = np.random.default_rng(0)
    links = torch.from_numpy(np.stack([cuts.random_links(rng, 35, 0.4) for _ in range(5)]))
    x = torch.randn(5, 2, 35, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    which = torch.tensor([True, False, True, True, False])
    again = torch.tensor([False, True, True])
    for exact in ("int8", "float32"):
        graphs = Graphs(links, EPS, exact)
        some = graphs.only(which).only(again)
        assert (len(some), some.tokens) == (2, 35)
        assert torch.equal(some.degrees, graphs.degrees[2:4])
        assert torch.equal(some.affine(x[2:4]), graphs.affine(x)[2:4])


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_constant_features_are_degenerate(value):
    """Fault 17: the whole image, and nothing was solved."""
    tokens = torch.full((2, 20, 8), value)
    for found in tokencut(tokens, (4, 5)) + lost(tokens, (4, 5)):
        assert found.degenerate and found.solver == "none" and not found.tied
        assert found.mask.all() and found.tokens == 20 and not found.map.any()
        assert found.box(16, (60, 75)) == (0, 0, 75, 60)


# Sums


VECTORS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "small": lambda rng, n: 1e-12 * rng.normal(size=n),
    "large": lambda rng, n: 1e12 * rng.normal(size=n),
    "of all scales": lambda rng, n: rng.normal(size=n) * 10 ** rng.uniform(-12, 12, n),
    "one large": lambda rng, n: np.r_[1e9, rng.normal(size=n - 1)],
    "zero": lambda rng, n: np.zeros(n),
    "one": lambda rng, n: np.eye(n)[n // 2],
    "a power of two": lambda rng, n: np.full(n, 2.0**-7),
    "just below": lambda rng, n: np.full(n, np.nextafter(1, 0)),
    "just above": lambda rng, n: np.full(n, np.nextafter(1, 2)),
    "largest digits": lambda rng, n: np.full(n, sum(63 * 2.0 ** -(6 + 7 * i) for i in range(7))),
    "halves of digits": lambda rng, n: np.full(n, sum(64 * 2.0 ** -(6 + 7 * i) for i in range(7))),
    "alternating": lambda rng, n: (-1.0) ** np.arange(n) * (1 - 2.0**-30),
}


def check_sums(links, vectors, exact):
    """Within 2^-53 of the largest entry for each neighbour, of sums that are exactly rounded."""
    found = Graphs(links[None], EPS, exact).sums(torch.from_numpy(vectors)[None])[0].numpy()
    links = links.numpy()
    for x, ours in zip(vectors, found, strict=True):
        for token in {0, 1, len(x) // 2, len(x) - 1}:
            mine = x[links[token]]
            room = 2.0**-53 * np.abs(x).max() * len(mine) + 1e-15 * np.abs(mine).sum()
            assert abs(ours[token] - math.fsum(mine)) <= room
    return found


@pytest.mark.parametrize("exact", ["int8", "float32"])
@pytest.mark.parametrize("grid_hw", [(3, 4), (9, 14), (17, 23)])
def test_sums_are_exact(grid_hw, exact):
    rng, count = np.random.default_rng(0), grid_hw[0] * grid_hw[1]
    vectors = np.stack([make(rng, count) for make in VECTORS.values()])
    for share in (0.0, 0.4, 1.0):
        check_sums(torch.from_numpy(cuts.random_links(rng, count, share)), vectors, exact)
    assert not check_sums(torch.zeros(count, count, dtype=torch.bool), vectors, exact).any()


@pytest.mark.parametrize("exact", ["int8", "float32"])
def test_sums_over_thousands_that_are_all_linked_do_not_overflow(exact):
    count = 4200
    vectors = np.stack([make(np.random.default_rng(0), count) for make in VECTORS.values()])
    found = check_sums(torch.ones(count, count, dtype=torch.bool), vectors, exact)
    assert np.ptp(found, axis=1).max() == 0


def test_int8_and_float32_give_the_same():
    rng = np.random.default_rng(0)
    links = torch.from_numpy(np.stack([cuts.random_links(rng, 391, p) for p in (0.1, 0.9)]))
    x = torch.from_numpy(rng.random((2, 3, 391)))  # no sum is small by cancelling
    one, other = (Graphs(links, EPS, exact) for exact in ("int8", "float32"))
    torch.testing.assert_close(one.sums(x), other.sums(x), rtol=1e-15, atol=0)
    assert torch.equal(one.neighbours, other.neighbours)
    assert torch.equal(one.degrees, other.degrees)


@pytest.mark.parametrize("exact", ["int8", "float32"])
def test_sums_of_whole_numbers_are_whole(exact):
    rng = np.random.default_rng(0)
    links = cuts.random_links(rng, 1000, 0.5)
    x = rng.integers(-(2**40), 2**40, (3, 1000))
    found = Graphs(torch.from_numpy(links)[None], EPS, exact).sums(torch.from_numpy(x * 1.0)[None])
    assert np.array_equal(found[0].numpy(), x @ links.astype(np.int64))


@pytest.mark.parametrize("bits", [8, 13, 20])
def test_fewer_bits_are_more_digits(monkeypatch, bits):
    """As for more tokens than a test has room for."""
    monkeypatch.setattr("skipbench.evaluations.tokencut.graph.FLOAT_BITS", bits)
    rng = np.random.default_rng(0)
    vectors = np.stack([make(rng, 35) for make in VECTORS.values()])
    check_sums(torch.from_numpy(cuts.random_links(rng, 35, 0.6)), vectors, "float32")


@pytest.mark.parametrize("eps", [1e-5, 0.0, 0.3])
def test_degrees_and_products_are_those_of_the_affinity_matrix(eps):
    rng = np.random.default_rng(0)
    links = np.stack([cuts.random_links(rng, 35, share) for share in (0.1, 0.8)])
    affinity, x = np.where(links, 1, eps), rng.normal(size=(2, 3, 35))
    graphs = Graphs(torch.from_numpy(links), eps)
    np.testing.assert_allclose(graphs.degrees, affinity.sum(1), rtol=1e-14)
    np.testing.assert_array_equal(graphs.neighbours, links.sum(1))
    np.testing.assert_allclose(graphs.affine(torch.from_numpy(x)), x @ affinity, atol=1e-13)


# The second vector


def mixed_graphs(grid_hw=(17, 23)):
    """Some converge at once, some late, one not at all."""
    rng, count = np.random.default_rng(0), grid_hw[0] * grid_hw[1]
    links = [
        ~cuts.star(count, 30) | cuts.themselves(count),
        cuts.planted(rng, count, 3, 0.6, 0.2),
        cuts.chain(count),
        cuts.planted(rng, count, 2, 0.9, 0.05),
        cuts.cosines(cuts.blobs(rng, grid_hw, 2, 1.5)) > 0.2,
        cuts.apart(cuts.random_links(rng, 200, 0.3), cuts.random_links(rng, count - 200, 0.3)),
    ]
    return np.stack(links)


def test_graphs_that_converge_at_different_steps(monkeypatch):
    links = mixed_graphs()
    left = []
    monkeypatch.setattr(
        _second_vector.Krylov, "only", noting(_second_vector.Krylov.only, left), raising=True
    )
    second = second_vectors(Graphs(torch.from_numpy(links), EPS))
    assert len(left) >= 3 and left == sorted(left, reverse=True)
    assert second.dense.tolist() == [False, False, True, False, False, False]
    for i, one in enumerate(links):
        affinity = np.where(one, 1, EPS)
        degrees, y = affinity.sum(1), second.vectors[i].numpy()
        residual = degrees * y - affinity @ y - second.values[i].item() * degrees * y
        assert np.abs(residual).max() < 1e-7 * degrees.max()
        assert abs(degrees @ y) < 1e-10 * (degrees @ np.abs(y))
        assert np.abs(y).max() == 1
        exact, gap = cuts.second(one)
        assert min(np.abs(y - exact).max(), np.abs(y + exact).max()) < 1e-8
        assert second.gaps[i].item() == pytest.approx(gap, rel=0.05)


def noting(function, left):
    def only(space, which):
        left.append(int(which.sum()))
        return function(space, which)

    return only


def test_the_dense_solver_takes_over_where_the_iterative_one_fails(monkeypatch):
    """Fault 18."""
    graphs, grid_hw = Graphs(torch.from_numpy(mixed_graphs()), EPS), (17, 23)
    before = cut(graphs, grid_hw)
    monkeypatch.setattr(_second_vector, "CHECKS", (7, 8))
    after = cut(graphs, grid_hw)
    assert [found.solver for found in before].count("dense") == 1
    assert [found.solver for found in after].count("dense") >= 4
    assert after[0].solver == "iterative"  # converged in time, and kept
    assert all(map(same_found, before, after))
    monkeypatch.setattr(_second_vector, "CHECKS", (2,))
    last = cut(graphs, grid_hw)
    assert {found.solver for found in last[1:]} == {"dense"}
    assert all(map(same_found, before, last))


def test_few_tokens_are_solved_densely_as_a_matter_of_course():
    (found,) = cut(Graphs(torch.from_numpy(cuts.chain(12))[None], EPS), (3, 4))
    assert found.solver == "small"


@pytest.mark.parametrize("length", [1e-30, 1e-13, 1e19, 1e30])
def test_the_length_of_tokens_is_nothing_to_the_links(length):
    tokens = images_of_tokens(1, (4, 5))
    assert torch.equal(link(tokens * length, 0.2), link(tokens, 0.2))


@pytest.mark.parametrize("grid_hw", [(12, 20), (15, 20), (17, 23)])
def test_graphs_that_lapack_cannot_solve_in_part(monkeypatch, grid_hw):
    """Nearly all eigenvalues are equal; of 300, LAPACK may find none of the three asked for."""
    monkeypatch.setattr(_second_vector, "SMALL", 10_000)
    for linked in (1, 2, 7):
        count = grid_hw[0] * grid_hw[1]
        links = cuts.themselves(count)
        links[:linked, linked] = links[linked, :linked] = True
        (found,) = cut(Graphs(torch.from_numpy(links)[None], EPS), grid_hw)
        assert found.solver == "dense"
        assert list(differences(found, cuts.by_the_rule(links, grid_hw), grid_hw)) == []


def test_equal_eigenvalues_that_the_degrees_do_not_show():
    """Three copies of a graph: its degrees are alike in all of them, two cuts are equally good."""
    for seed, hub in product(range(3), (0, 48)):
        rng = np.random.default_rng(seed)
        same = [cuts.random_links(rng, 48, 0.3)] * 3
        inner = cuts.random_links(rng, hub, 0.3)
        links = cuts.around_a_hub(rng, same, inner, 0.1) if hub else cuts.apart(*same)
        second = second_vectors(Graphs(torch.from_numpy(links)[None], EPS))
        assert second.gaps.item() < 1e-9


@pytest.mark.parametrize(
    ("grid_hw", "missing", "seed"),
    [
        ((8, 17), 14, 37),
        ((8, 17), 18, 1),
        ((8, 17), 22, 27),
        ((9, 16), 26, 1),
        ((9, 16), 36, 31),
        ((12, 20), 28, 3),
        ((12, 20), 40, 4),
        ((12, 20), 42, 5),
    ],
)
def test_one_of_two_equal_eigenvalues_may_be_found_a_step_before_the_other(grid_hw, missing, seed):
    """Few eigenvalues differ, so the first is exact while the second is still far from it."""
    links = case(cuts.complete_but, grid_hw, missing, seed=seed)[2]
    assert cuts.second(links)[1] < 1e-12
    assert cut_of(links, grid_hw).degenerate


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
    assert same_found(found, apart)


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
    for tokens in images_of_tokens(5, grid_hw):
        (found,) = method(tokens[None], grid_hw)
        grid = turned(tokens.numpy().reshape(*grid_hw, -1))
        other = torch.from_numpy(grid.reshape(1, 7 * 13, -1).copy())
        (again,) = method(other, grid.shape[:2])
        assert again.tied == found.tied
        if not found.tied:
            assert np.array_equal(again.mask, turned(found.mask))


# Objects and boxes


def object_of(*tokens, grid_hw=(3, 4)):
    mask = np.zeros(grid_hw, bool)
    mask.flat[list(tokens)] = True
    return Found(mask, mask.astype(float), seed=tokens[0])


@pytest.mark.parametrize(
    ("tokens", "box"),
    [
        ([0], (0, 0, 16, 16)),
        ([6], (32, 16, 48, 32)),
        ([11], (48, 32, 61, 45)),  # at the padded corner: cut off at 61 and 45
        ([1, 2], (16, 0, 48, 16)),
        ([3, 7, 11], (48, 0, 61, 45)),
        ([8, 9, 5], (0, 16, 32, 45)),
        (range(12), (0, 0, 61, 45)),
    ],
)
def test_boxes_end_with_the_image(tokens, box):
    """x0, y0, x1, y1: three rows of four tokens, an image of 45×61 pixels."""
    found = object_of(*tokens)
    assert found.box(16, (45, 61)) == box
    assert all(type(side) is int for side in found.box(16, (45, 61)))
    pixels = found.pixels(16, (45, 61))
    assert pixels.shape == (45, 61) and pixels.dtype == bool
    rows, columns = np.nonzero(pixels)
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == box
    assert found.tokens == len(list(tokens))


def test_pixels_are_those_of_their_tokens():
    mask = np.random.default_rng(0).random((3, 4)) < 0.5
    found = Found(mask, mask.astype(float), seed=int(mask.argmax()))
    pixels = found.pixels(5, (13, 18))
    for row, column in np.ndindex(13, 18):
        assert pixels[row, column] == mask[row // 5, column // 5]


def test_diagonal_neighbours_are_not_connected():
    mask = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]], bool)
    mine, apart = part_of(mask, 2, np.array([2]))
    assert np.flatnonzero(mine).tolist() == [2, 5, 6] and not apart
    mine, apart = part_of(mask, 11, np.array([11, 6]))
    assert np.flatnonzero(mine).tolist() == [11] and apart


# LOST


@pytest.mark.parametrize("grid_hw", [(3, 4), (5, 7), (9, 14), (17, 23)])
@pytest.mark.parametrize("expansion", [100, 5])
def test_lost_is_the_published_one(grid_hw, expansion):
    """Lengths of tokens matter; fewer than 100 tokens are all of them."""
    rng = np.random.default_rng(0)
    for objects, noise, offset in product((1, 3), (0.5, 1.5), (0, 0.3)):
        tokens = cuts.blobs(rng, grid_hw, objects, noise) + np.float32(offset)
        tokens *= rng.uniform(0.2, 5, (len(tokens), 1)).astype(np.float32)
        (found,) = lost(torch.from_numpy(tokens)[None], grid_hw, expansion)
        seed, mask = cuts.lost(tokens.astype(np.float64), grid_hw, expansion)
        assert found.seed == seed and np.array_equal(found.mask, mask)
        assert not found.degenerate and found.solver == "none"
        assert found.map.flat[seed] > 0


def test_lost_takes_the_first_of_tied_seeds():
    """Two objects, each unlike all else, as large as each other: apart, so a rule decided."""
    tokens = np.tile(np.float32([1, 0, 0]), (12, 1))
    tokens[[2, 3]], tokens[[8, 9]] = [0, 1, 0], [0, 0, 1]
    (found,) = lost(torch.from_numpy(tokens)[None], (3, 4))
    assert found.seed == 2 and found.tied
    assert np.flatnonzero(found.mask).tolist() == [2, 3]
    tokens[[8, 9]] = tokens[0]
    (found,) = lost(torch.from_numpy(tokens)[None], (3, 4))
    assert found.seed == 2 and not found.tied


def test_lost_expands_by_tokens_of_few_neighbours_alone():
    """The seed's tokens are few; with more of them the object would grow."""
    tokens = np.tile(np.float32([1, 0.0]), (20, 1))
    tokens[[6, 7]] = [-0.5, 1]
    tokens[8] = [0.1, 1]
    for expansion in (1, 2, 3, 100):
        (found,) = lost(torch.from_numpy(tokens)[None], (4, 5), expansion)
        seed, mask = cuts.lost(tokens.astype(np.float64), (4, 5), expansion)
        assert found.seed == seed == 6 and np.array_equal(found.mask, mask)


def test_lost_finds_nothing_where_all_tokens_are_alike():
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.random((1, 20, 8))) + 0.1  # every inner product is positive
    (found,) = lost(tokens, (4, 5))
    assert found.degenerate and found.mask.all()


def test_lost_finds_nothing_where_a_token_is_zero():
    """It has the fewest neighbours, and nothing resembles it, not even itself."""
    tokens = images_of_tokens(1, (4, 5))
    tokens[0, 7] = 0
    (found,) = lost(tokens, (4, 5))
    assert found.mask.all() and found.degenerate
