"""Skip or skipless, told from the weights alone."""

import dataclasses

import pytest
import torch
from conftest import SHARED, original_state

from skipbench.backbones import health
from skipbench.backbones.health import choose_variant
from skipbench.backbones.vit import vit_model
from skipbench.checkpoints import Checkpoint, open_checkpoint
from skipbench.demo import make_weights, small_facts
from skipbench.errors import NumbersError, UnclearVariant
from skipbench.pipeline import Inspection, inspect
from skipbench.records import BlockHealth


@pytest.fixture(scope="module")
def made():
    facts = small_facts(width=128, depth=4, patch=8, heads=2)
    return {r: Checkpoint(make_weights(r, facts), facts) for r in ("skip", "skipless")}


@pytest.fixture(scope="module")
def verdicts(made):
    return {
        residual: health.examine(vit_model(checkpoint)) for residual, checkpoint in made.items()
    }


def test_weights_for_skip_run_skipless_collapse(verdicts):
    verdict = verdicts["skip"]
    assert verdict.winner == "skip"
    assert "collapse" in verdict.skipless.against[0]
    assert verdict.skip.plausible and verdict.skip.retention > 0.9
    # … and once they have, what is left is rounding, whose rank is not reported.
    assert verdict.skipless.blocks[-1].spread < 1e-5 and verdict.skipless.blocks[-1].rank is None


def test_weights_for_skipless_run_with_residuals_blow_up(verdicts):
    verdict = verdicts["skipless"]
    assert verdict.winner == "skipless"
    assert "grows" in verdict.skip.against[0]
    assert max(b.growth for b in verdict.skip.blocks) > health.MOST_GROWTH


def test_rank_alone_would_be_fooled():
    """Tokens that are one vector plus rounding have a high rank, and no spread."""
    noise = torch.randn(1, 60, 32, generator=torch.Generator().manual_seed(0))
    tokens = (torch.full((1, 60, 32), 3.7) * (1 + 1e-7 * noise)).double()
    assert health.effective_rank(tokens)[0] > 8
    assert health.spread(tokens)[0] < 1e-6


def test_spread_and_rank_of_known_tokens():
    one_direction = torch.linspace(-1, 1, 9).view(1, 9, 1).double() * torch.ones(1, 1, 4)
    assert health.effective_rank(one_direction)[0] == pytest.approx(1, abs=1e-6)
    assert health.spread(one_direction)[0] == pytest.approx(1)
    isotropic = torch.cat([torch.eye(4), -torch.eye(4)])[None]
    assert health.effective_rank(isotropic)[0] == pytest.approx(4)
    shifted = isotropic + torch.tensor([3.0, 0, 0, 0])
    assert health.spread(shifted)[0] == pytest.approx((1 / 10) ** 0.5)


def test_attention_distance_of_known_attention():
    keys = 1e3 * torch.eye(15).view(1, 3, 5, 15)
    alone = health.attention_distance(keys, keys, heads=1)  # each patch to itself
    assert alone == pytest.approx(0, abs=1e-6)
    uniform = health.attention_distance(torch.zeros(1, 3, 5, 15), keys, heads=3)
    places = [(y, x) for y in range(3) for x in range(5)]
    mean = sum(((a - c) ** 2 + (b - d) ** 2) ** 0.5 for a, b in places for c, d in places) / 225
    assert uniform == pytest.approx(mean, rel=1e-5)


def rows(*spreads, growth=1.0, finite=True):
    return tuple(
        BlockHealth(i - 1, 1.0, growth if i == 1 else 1.0, s, 3.0, None, finite or i == 0)
        for i, s in enumerate(spreads)
    )


@pytest.mark.parametrize(
    ("skip", "skipless", "winner"),
    [
        (rows(0.8, 0.8, 0.8), rows(0.8, 0.1, 0.001), "skip"),
        (rows(0.8, 0.8, 0.8, growth=14), rows(0.8, 0.7, 0.6), "skipless"),
        (rows(0.8, 0.8, 0.8), rows(0.8, 0.7, 0.6), None),
        (rows(0.8, 0.8, 0.8, growth=14), rows(0.8, 0.1, 0.001), None),
        (rows(0.8, 0.8, finite=False), rows(0.8, 0.7), "skipless"),
    ],
)
def test_the_rule(skip, skipless, winner):
    verdict = health.judge(health.assess("skip", skip), health.assess("skipless", skipless))
    assert verdict.winner == winner


def test_unclear_asks_for_the_flag(made):
    facts = made["skip"].facts
    unclear = health.judge(
        health.assess("skip", rows(0.8, 0.8)), health.assess("skipless", rows(0.8, 0.7))
    )
    assert choose_variant(facts, None, unclear) is None
    found = Inspection(vit_model(made["skip"]), unclear, None, torch.device("cpu"))
    with pytest.raises(UnclearVariant, match="--residual skip") as caught:
        found.backbone()
    assert caught.value.exit_code == 2 and 'residual = "skip"' in str(caught.value)
    assert choose_variant(facts, "skipless", unclear).warning is None


def test_who_decides(made, verdicts):
    facts, verdict = made["skip"].facts, verdicts["skip"]
    assert choose_variant(facts, None, verdict).residual == "skip"
    against = choose_variant(facts, "skipless", verdict)
    assert against.residual == "skipless" and "look SKIP" in against.warning
    told = dataclasses.replace(facts, residual="skipless", sources={"residual": "args.skipless=1"})
    by_file = choose_variant(told, None, verdict)
    assert (by_file.residual, by_file.source) == ("skipless", "args.skipless=1")
    assert "args.skipless=1" in by_file.warning
    assert choose_variant(told, "skip", verdict) == health.Choice("skip", "--residual")


def test_the_user_against_the_file_where_the_weights_do_not_tell(made):
    facts = dataclasses.replace(
        made["skip"].facts, residual="skipless", sources={"residual": "args.skipless=1"}
    )
    both = health.assess("skip", rows(0.8, 0.8)), health.assess("skipless", rows(0.8, 0.7))
    unclear = health.judge(*both)
    assert choose_variant(facts, "skipless", unclear).warning is None
    warning = choose_variant(facts, "skip", unclear).warning
    assert "run as SKIP because of --residual, but the file says SKIPLESS (args.sk" in warning


def overflowing(seed=0):
    """Weights whose block 1 overflows, in either variant."""
    state = original_state(seed=seed)
    state["blocks.1.mlp.fc1.bias"] = state["blocks.1.mlp.fc1.bias"] + 3e38
    return state


def test_weights_that_overflow_in_either_variant(tmp_path):
    torch.save(overflowing(), tmp_path / "w.pth")
    for residual in ("auto", "skip", "skipless"):
        with pytest.raises(NumbersError, match="NaN or Inf arises in block 1"):
            inspect(tmp_path / "w.pth", residual=residual, device="cpu").backbone()


def test_nan_in_one_variant_decides_for_the_other(tmp_path):
    """Two outputs that are finite each, and whose sum is not."""
    facts = small_facts(width=128, depth=3, patch=8, heads=2)
    state = make_weights("skipless", facts)
    state["blocks.0.mlp.fc2.bias"][3] = state["blocks.1.attn.proj.bias"][3] = 3e38
    torch.save(state, tmp_path / "w.pth")
    found = inspect(tmp_path / "w.pth", residual="skip", device="cpu")
    assert found.verdict.skipless.finite and not found.verdict.skip.finite
    with pytest.raises(NumbersError, match="run skip: NaN or Inf arises in block 1"):
        found.backbone()
    assert inspect(tmp_path / "w.pth", residual="skipless", device="cpu").backbone()


@pytest.mark.skipif(not SHARED.exists(), reason="no real weights here")
def test_real_dinov2_weights():
    path = SHARED / "weights" / "dinov2_vits14_fp16.safetensors"
    found = inspect(path, device="cpu")
    facts = found.model.facts
    assert (facts.layout, facts.depth, facts.width, facts.heads) == ("dinov2", 12, 384, 6)
    assert (facts.patch, facts.grid_hw, facts.registers) == (14, (37, 37), 0)
    assert facts.layer_scale and facts.position_rule == "offset"
    assert found.verdict.winner == found.choice.residual == "skip"
    assert not found.verdict.skip.notes


def test_random_weights_without_any_training_are_not_taken_for_skipless(tmp_path):
    torch.save(original_state(), tmp_path / "w.pth")
    verdict = health.examine(vit_model(open_checkpoint(tmp_path / "w.pth")))
    assert verdict.winner != "skipless"
