"""Finds the backbone's tensors in a checkpoint and gives them timm's names.

A checkpoint nests dictionaries (`teacher`, `state_dict`, …) and prefixes keys (`module.backbone.`).
Every vision transformer has a patch embedding, so that key is the anchor: the text before it is the
prefix, which is removed at the start of keys and nowhere else. All other keys must belong to a
known head or to the other branch of self-distillation; anything else is an error.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from skipbench.errors import CheckpointError, count_of, did_you_mean, some_of

ANCHORS = ("patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight")
TEACHER_WORDS = frozenset(
    "teacher teacher_model momentum_encoder target_encoder model_ema state_dict_ema ema".split()
)
STUDENT_WORDS = frozenset(
    "student student_model base_encoder online_encoder context_encoder".split()
)
OTHER_WORDS = frozenset(
    "module model state_dict model_state_dict state backbone encoder trunk vit deit dinov2 "
    "dinov2_with_registers net network base_model visual feature_extractor _orig_mod "
    "_fsdp_wrapped_module _forward_module".split()
)
PREFIX_WORDS = TEACHER_WORDS | STUDENT_WORDS | OTHER_WORDS
DEEPEST, MOST_PLACES = 16, 4  # of a dictionary of tensors
# First word of keys that are no part of the backbone, or that features do not need.
HEAD_WORDS = frozenset(
    "head heads head_dist fc fc_norm dino_head ibot_head classifier projector projection_head "
    "predictor prototypes pooler pre_logits dino_loss ibot_loss center queue queue_ptr "
    "logit_scale mask_token masked_embed".split()
)


@dataclass(frozen=True)
class Branch:
    """One backbone in a checkpoint: the dictionary that contains it, and its prefix there."""

    path: tuple[str, ...]
    prefix: str
    state: Mapping[str, Any]

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.path, *self.prefix.split(".")[:-1])

    @property
    def role(self) -> str | None:
        if TEACHER_WORDS.intersection(self.words):
            return "teacher"
        return "student" if STUDENT_WORDS.intersection(self.words) else None

    @property
    def rank(self) -> int:
        """The lowest rank is the default: DINO's teacher, MoCo's base encoder."""
        if "teacher" in self.words or "teacher_model" in self.words:
            return 0
        if self.role is None or "base_encoder" in self.words:
            return 1
        return 2 if self.role == "student" else 3

    def __str__(self) -> str:
        return ".".join(self.words) or "the top level"

    @property
    def name(self) -> str:
        """What --weights takes for it, as well as a role that no other branch has."""
        return ".".join(self.words) or "top"

    def is_called(self, name: str) -> bool:
        return name in (self.name, self.role, *self.words)

    def label(self, others: Iterable["Branch"]) -> str | None:
        """Its role, or its name if another one of the file has the same."""
        return self.name if any(b.role == self.role for b in others) else self.role

    def with_flag(self, others: Iterable["Branch"]) -> str:
        """With the flag that chooses it."""
        return f"{self} (--weights {self.label(others) or self.name})"


@dataclass(frozen=True)
class BackboneTensors:
    """A backbone's tensors under timm's names, and where they were found."""

    state: dict[str, torch.Tensor]
    branch: Branch
    others: tuple[Branch, ...]
    dropped: dict[str, int]
    original_keys: frozenset[str]  # without prefix, heads included: they identify the layout

    @property
    def label(self) -> str | None:
        """What the record calls it: teacher, student, or its name where that is not enough."""
        return self.branch.label(self.others)


def named_branch(name: str, branch: Branch, others: Sequence[Branch]) -> str:
    """The file's name, with that of the branch if it is not the one that is used by default."""
    if all(branch.rank < other.rank for other in others):
        return name
    return f"{name} ({branch.label(others) or branch.name})"


def notes_on(branch: Branch, others: Sequence[Branch]) -> tuple[str, ...]:
    found = ", ".join(_with_flags([branch, *others])[1:])
    return (f"using {branch}; the file also contains {found}",) if found else ()


def find_backbone(tree: Any, weights: str | None, name: str) -> BackboneTensors:
    """weights: a role, or the name of any branch, known or not."""
    branches = list(_branches(tree, known=PREFIX_WORDS.union((weights or "").split("."))))
    if not branches:
        raise CheckpointError(_nothing_found(tree, name))
    branch = choose(branches, weights, name, tree)
    others = tuple(b for b in branches if b is not branch)
    own, dropped, unknown = _sort_keys(branch, others)
    if unknown:
        raise CheckpointError(
            f"{name}: keys that belong neither to the backbone nor to a known head "
            f"({len(unknown)}):\n{some_of(unknown)}"
        )
    kept = {key: value for key, value in own.items() if not head_of(key)}
    dropped.update(head for key in own if (head := head_of(key)))
    return BackboneTensors(
        rename(kept), branch, others, dict(sorted(dropped.items())), frozenset(own)
    )


def tensors_of(
    tree: Any, path: tuple[str, ...] = (), seen: Counter[int] | None = None
) -> Iterator[tuple[tuple[str, ...], str, Mapping[Any, Any]]]:
    """(path of its dictionary, key, dictionary) of each tensor in the tree."""
    seen = Counter() if seen is None else seen
    # In a pickle, a dictionary may be in several places, or contain itself.
    if not isinstance(tree, Mapping) or len(path) > DEEPEST or seen[id(tree)] > MOST_PLACES:
        return
    seen[id(tree)] += 1
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from tensors_of(value, (*path, str(key)), seen)
        elif isinstance(value, torch.Tensor):
            yield path, str(key), tree


def _branches(tree: Any, known: frozenset[str] | None = PREFIX_WORDS) -> Iterator[Branch]:
    """known: words that may lead to a model; None: any."""
    for path, key, state in tensors_of(tree):
        for anchor in ANCHORS:
            if key == anchor or key.endswith("." + anchor):
                branch = Branch(path, key.removesuffix(anchor), state)
                if known is None or known.issuperset(branch.words):
                    yield branch


def choose(branches: list[Branch], weights: str | None, name: str, tree: Any) -> Branch:
    if weights is not None:
        fitting = [b for b in branches if b.is_called(weights)]
        if not fitting:
            found = ", ".join(_with_flags([*branches, *_unknown_branches(tree)]))
            near = did_you_mean(weights, ("teacher", "student"))
            raise CheckpointError(f"{name} has no {weights}; it contains: {found}.{near}")
        # Its whole name, before a word of it.
        branches = [b for b in fitting if b.name == weights] or fitting
    lowest = min(b.rank for b in branches)
    first = [b for b in branches if b.rank == lowest]
    if len(first) > 1:
        raise CheckpointError(
            f"{name} contains several models: {', '.join(_with_flags(branches))}.\n"
            "Choose one with its flag."
        )
    return first[0]


def _with_flags(branches: Sequence[Branch]) -> list[str]:
    return [one.with_flag([b for b in branches if b is not one]) for one in branches]


def _unknown_branches(tree: Any) -> list[Branch]:
    """Models behind words that are not known to lead to one; only --weights takes them."""
    return [b for b in _branches(tree, known=None) if not PREFIX_WORDS.issuperset(b.words)]


def _sort_keys(
    branch: Branch, others: Iterable[Branch]
) -> tuple[dict[str, torch.Tensor], Counter[str], list[str]]:
    """The branch's own tensors without prefix, a count of known others, and unknown keys."""
    own: dict[str, torch.Tensor] = {}
    dropped: Counter[str] = Counter()
    unknown: list[str] = []
    for key, value in branch.state.items():
        if not isinstance(value, torch.Tensor):
            continue
        prefixes = [b.prefix for b in others if b.state is branch.state]
        nearest = max([branch.prefix, *prefixes], key=lambda p: len(p) if key.startswith(p) else -1)
        if nearest != branch.prefix:
            dropped["other branch"] += 1
            continue
        if key.startswith(branch.prefix):
            own[key.removeprefix(branch.prefix)] = value
            continue
        words = key.split(".")
        leading = [w for w in words[:-1] if w in PREFIX_WORDS]
        start = next((i for i, w in enumerate(words) if w not in PREFIX_WORDS), len(words) - 1)
        if any(w in TEACHER_WORDS | STUDENT_WORDS and w not in branch.words for w in leading):
            dropped["other branch"] += 1
        elif head := head_of(".".join(words[start:])):
            dropped[head] += 1
        else:
            unknown.append(key)
    return own, dropped, unknown


def head_of(key: str) -> str | None:
    """What a tensor belongs to, if features do not need it."""
    first = key.split(".")[0]
    if key == "embeddings.mask_token":
        return "mask_token"
    if first.startswith("decoder_"):
        return "decoder"
    return first if first in HEAD_WORDS else None


def _nothing_found(tree: Any, name: str) -> str:
    if not isinstance(tree, Mapping):
        return f"{name} contains a {type(tree).__name__}, not a dictionary of weights."
    keys = sorted(".".join([*path, key]) for path, key, _ in tensors_of(tree))
    if not keys:
        return f"{name} contains no tensors (top level: {some_of(map(str, tree))})."
    if unknown := _unknown_branches(tree):
        return (
            f"{name}: its vision transformer is behind a name that is not known to lead to one.\n"
            f"Choose it with its flag: {', '.join(_with_flags(unknown))}."
        )
    count = count_of(len(keys), "tensor")
    return (
        f"{name}: no vision transformer found among its {count} (none is named\n"
        f"patch_embed.proj.weight after a known prefix). It contains: {some_of(keys)}\n"
        "If it is one of timm's models: --ckpt timm:NAME@FILE."
    )


# --- names -----------------------------------------------------------------------------------

# Other names of the same tensors, at the start of a key or within a block.
RENAMES = (
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2 trains blocks in chunks: chunk.block
    (r"^register_tokens$", "reg_token"),  # DINOv2
    (r"^(blocks\.\d+)\.gamma_([12])$", r"\1.ls\2.gamma"),  # iBOT and DeiT III
    (r"^(blocks\.\d+\.mlp)\.w12\.", r"\1.fc1."),  # DINOv2's gated MLP
    (r"^(blocks\.\d+\.mlp)\.w3\.", r"\1.fc2."),
)
# transformers' ViTModel, Dinov2Model and Dinov2WithRegistersModel
TRANSFORMERS = (
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^embeddings\.distillation_token$", "dist_token"),
    (r"^layernorm\.", "norm."),
    (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"^(blocks\.\d+)\.attention\.output\.dense\.", r"\1.attn.proj."),
    (r"^(blocks\.\d+)\.layernorm_before\.", r"\1.norm1."),
    (r"^(blocks\.\d+)\.layernorm_after\.", r"\1.norm2."),
    (r"^(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"^(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"^(blocks\.\d+)\.layer_scale([12])\.lambda1$", r"\1.ls\2.gamma"),
    (r"^(blocks\.\d+\.mlp)\.weights_in\.", r"\1.fc1."),
    (r"^(blocks\.\d+\.mlp)\.weights_out\.", r"\1.fc2."),
)
SPLIT_QKV = re.compile(r"^(blocks\.\d+)\.attention\.attention\.(query|key|value)\.(weight|bias)$")


def rename(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All known names → timm's."""
    rules = TRANSFORMERS if ANCHORS[1] in state else RENAMES
    renamed: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        new = key
        for pattern, replacement in rules:
            new = re.sub(pattern, replacement, new)
        if new in renamed:
            raise CheckpointError(f"two tensors are both named {new} (one was {key})")
        renamed[new] = value
    return _join_qkv(renamed)


def _join_qkv(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    parts: dict[str, dict[str, torch.Tensor]] = {}
    joined: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        if match := SPLIT_QKV.match(key):
            parts.setdefault(f"{match[1]}.attn.qkv.{match[3]}", {})[match[2]] = value
        else:
            joined[key] = value
    for key, three in parts.items():
        if missing := {"query", "key", "value"} - three.keys():
            raise CheckpointError(f"{key}: the {' and '.join(sorted(missing))} part is missing")
        try:
            joined[key] = torch.cat([three["query"], three["key"], three["value"]])
        except RuntimeError:
            shapes = ", ".join(str(tuple(part.shape)) for part in three.values())
            raise CheckpointError(f"{key}: its three parts do not fit: {shapes}") from None
    return joined
