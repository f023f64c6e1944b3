"""Skip or skipless? Both variants load the same weights; only one of them works.

Without residuals, weights that were trained with them collapse: within a few blocks all tokens of
an image become one vector. With residuals, weights of a skipless model blow up: the output of one
block is many times larger than the stream it is added to. So both variants are run on a few
photographs, and their tokens are examined after every block.

Effective rank alone would be misleading: centred, collapsed tokens are rounding noise, which has
full rank. Hence the spread: the deviation over tokens relative to their norm.
"""

from dataclasses import dataclass

import torch

from skipbench.backbones.base import Backbone, Model
from skipbench.engine.machine import one_thread
from skipbench.errors import NumbersError, UsageError
from skipbench.images import embedded_photographs
from skipbench.records import BlockHealth, CheckpointFacts, Residual, VariantHealth, Verdict

# Share of the spread that a block keeps, as the geometric mean over the first four blocks.
# Measured: 0.17 or less for DINOv2 ViT-S and default-initialised ViTs run skipless, 0.57 or more
# for ViT-Ti and ViT-S with the skipless initialisation (untrained, they collapse too, but slowly).
EARLY_BLOCKS = 4
LEAST_RETENTION = 0.33
# Growth of the norm in one block. Measured: at most 4.2 in DINOv2 ViT-S, 13 or more in the first
# block of skipless ViTs run with residuals.
MOST_GROWTH = 8.0
# Below this spread the features hardly differ between tokens.
COLLAPSED_SPREAD = 0.01
# Below this the deviation over tokens is float32 rounding: the features are constant.
ROUNDING_SPREAD = 1e-5


def spread(tokens: torch.Tensor) -> torch.Tensor:
    """(images, tokens, channels) → (images,): RMS deviation over tokens / RMS norm, 0 to 1."""
    centred = tokens - tokens.mean(1, keepdim=True)
    return centred.norm(dim=(1, 2)) / tokens.norm(dim=(1, 2)).clamp_min(1e-30)


def effective_rank(tokens: torch.Tensor) -> torch.Tensor:
    """(images, tokens, channels) → (images,): exp of the entropy of the variance's spectrum."""
    centred = tokens - tokens.mean(1, keepdim=True)
    gram = centred @ centred.mT if centred.shape[1] < centred.shape[2] else centred.mT @ centred
    with one_thread():
        variance = torch.linalg.eigvalsh(gram.cpu()).clamp_min(0)
    share = variance / variance.sum(-1, keepdim=True).clamp_min(1e-300)
    return torch.special.entr(share).sum(-1).exp()


def attention_distance(queries: torch.Tensor, keys: torch.Tensor, heads: int) -> float:
    """Mean distance, in patches, from a patch to the patches it attends to.

    queries, keys: (images, height, width, channels). Attention among patches only.
    """
    grid_hw = queries.shape[1:3]
    q, k = (x.flatten(1, 2).float().unflatten(-1, (heads, -1)) for x in (queries, keys))
    logits = torch.einsum("nqhd,nkhd->nhqk", q, k) / q.shape[-1] ** 0.5
    ys, xs = torch.meshgrid(*(torch.arange(float(n)) for n in grid_hw), indexing="ij")
    places = torch.stack([ys.flatten(), xs.flatten()], 1).to(q.device)
    return float((logits.softmax(-1) * torch.cdist(places, places)).sum(-1).mean())


def block_health(backbone: Backbone, images: torch.Tensor) -> tuple[BlockHealth, ...]:
    """Statistics of the tokens before the first block and after each one, up to NaN or Inf."""
    images = images.to(backbone.device)
    attention = [name for name in ("queries", "keys") if name in backbone.tensors]
    with torch.inference_mode(), backbone.autocast():
        embedded = backbone.embedding(images)
        rows = [] if embedded is None else [_health(-1, embedded)]
        try:
            features = backbone(images, range(backbone.depth), (backbone.output, *attention))
        except NumbersError:
            for block, tokens in enumerate(backbone.block_by_block(images)):
                rows.append(_health(block, tokens, rows[-1].norm if rows else None))
                if not rows[-1].finite:
                    break
            return tuple(rows)
    for block in range(backbone.depth):
        tokens, *both = (features.patches[block, name] for name in (backbone.output, *attention))
        heads = backbone.facts.heads
        alike = (
            len(both) == 2
            and both[0].shape == both[1].shape
            and both[0].shape[3] % (heads or 1) == 0
        )
        distance = attention_distance(both[0], both[1], heads) if heads and alike else None
        # Norms of tokens of different widths are not comparable.
        same_width = block == 0 or backbone.width(block) == backbone.width(block - 1)
        before = rows[-1].norm if rows and same_width else None
        rows.append(_health(block, tokens.flatten(1, 2), before, distance))
    return tuple(rows)


def _health(
    block: int,
    tokens: torch.Tensor,
    norm_before: float | None = None,
    distance: float | None = None,
) -> BlockHealth:
    if not torch.isfinite(tokens).all():
        nan = float("nan")
        return BlockHealth(block, nan, nan, nan, None, None, False)
    tokens = tokens.cpu().double()
    norm = float(tokens.norm(dim=-1).mean())
    # The median image: a single flat image must not decide.
    typical = float(spread(tokens).median())
    rank = float(effective_rank(tokens).median()) if typical > ROUNDING_SPREAD else None
    growth = norm / norm_before if norm_before else 1.0
    return BlockHealth(block, norm, growth, typical, rank, distance, True)


def retention(blocks: tuple[BlockHealth, ...]) -> float:
    """Share of the spread that each block retains, over the first blocks. blocks[0]: embedding."""
    early = [b.spread for b in blocks[: EARLY_BLOCKS + 1] if b.finite]
    if len(early) < 2:
        return 0.0
    return float((max(early[-1], 1e-7) / max(early[0], 1e-7)) ** (1 / (len(early) - 1)))


def assess(residual: Residual, blocks: tuple[BlockHealth, ...]) -> VariantHealth:
    """Were the weights trained in this variant, and are its features usable?"""
    against = []
    kept = retention(blocks)
    largest = max((b for b in blocks if b.finite), key=lambda b: b.growth, default=None)
    broken = next((b for b in blocks if not b.finite), None)
    if broken:
        against.append(f"NaN or Inf arises in block {broken.block}")
    elif kept < LEAST_RETENTION:
        against.append(
            f"tokens collapse onto one vector (each block keeps {kept:.0%} of their spread)"
        )
    if largest and largest.growth > MOST_GROWTH:
        against.append(f"the norm grows {largest.growth:.0f}-fold in block {largest.block}")
    flat = next((b for b in blocks if b.finite and b.spread < COLLAPSED_SPREAD), None)
    note = flat and f"spread {flat.spread:.1g} after block {flat.block}: features collapse"
    notes = (note,) if note else ()
    return VariantHealth(residual, blocks, kept, not against, tuple(against), notes)


def judge(skip: VariantHealth, skipless: VariantHealth) -> Verdict:
    """A clear winner is plausible while the other variant is not."""
    if skip.plausible == skipless.plausible:
        if skip.plausible:
            reason = "both variants are plausible"
        else:
            reason = "; ".join(f"run {v.residual}, {v.against[0]}" for v in (skip, skipless))
        return Verdict(None, reason, skip, skipless)
    winner, loser = (skip, skipless) if skip.plausible else (skipless, skip)
    return Verdict(winner.residual, f"run {loser.residual}, {loser.against[0]}", skip, skipless)


def examine(model: Model, device: torch.device | str = "cpu") -> Verdict:
    """Run the variants on the embedded photographs, in float32."""
    images = embedded_photographs(model.trial_hw, model.facts.preprocessing)
    health = {
        residual: assess(residual, block_health(model.backbone(residual, device), images))
        for residual in model.variants
    }
    if len(health) == 2:
        return judge(health["skip"], health["skipless"])
    (only,) = health
    reason = "it can only be run this way"
    return Verdict(only, reason, health.get("skip"), health.get("skipless"))


@dataclass(frozen=True)
class Choice:
    residual: Residual
    source: str  # "--residual", a place in the file, or "the health of its blocks"
    warning: str | None = None  # if the choice contradicts the file, or a clear winner


def choose_variant(
    facts: CheckpointFacts, asked: Residual | None, verdict: Verdict
) -> Choice | None:
    """From the user, else from the file, else from the weights' health; None: unclear."""
    if asked and asked not in [one.residual for one in verdict.variants]:
        raise UsageError(
            f"{facts.name} ({facts.layout}) always runs {verdict.variants[0].residual}: "
            f"drop --residual {asked}"
        )
    residual = asked or facts.residual
    source = "--residual" if asked else facts.sources.get("residual", "")
    if residual is None:
        return verdict.winner and Choice(verdict.winner, "the health of its blocks")
    suggested = verdict.winner or facts.residual
    if suggested in (None, residual):
        return Choice(residual, source)
    reason = f"its weights look {suggested.upper()}: {verdict.reason}"
    if verdict.winner is None:
        reason = f"the file says {suggested.upper()} ({facts.sources['residual']})"
    warning = (
        f"{facts.name} is run as {residual.upper()} because of {source}, but {reason}. "
        "If so, the results will be meaningless."
    )
    return Choice(residual, source, warning)
