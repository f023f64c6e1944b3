"""One pass over the images for all evaluations that need features of the same images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skipbench.evaluations.run import Need
from skipbench.features.store import describe, key_of
from skipbench.records import FeatureSpec


@dataclass(frozen=True)
class Pass:
    """Needs of one model on the same images at the same size, and a spec that covers them all."""

    needs: tuple[Need, ...]
    spec: FeatureSpec

    @property
    def is_shared(self) -> bool:
        """Otherwise the first evaluation computes what all of them need."""
        return any(set(need.spec.columns) != set(self.spec.columns) for need in self.needs)

    def compute(self) -> None:
        """Afterwards each evaluation finds its features in the cache."""
        first = self.needs[0]
        first.check()
        label = f"features of {first.what} for {len(self.needs)} evaluations"
        first.source.features(first.backbone, first.pictures, self.spec, label).close()


def passes(needs: Sequence[Need]) -> list[Pass]:
    groups: dict[str, list[Need]] = {}
    for need in needs:
        key = key_of(describe(need.backbone, need.pictures, need.spec))
        groups.setdefault(key, []).append(need)
    return [
        Pass(tuple(group), _for_all([need.spec for need in group])) for group in groups.values()
    ]


def _for_all(specs: Sequence[FeatureSpec]) -> FeatureSpec:
    """Every tensor of every block that one of them takes."""
    return replace(
        specs[0],
        blocks=tuple(sorted({block for spec in specs for block in spec.blocks})),
        tensors=tuple(dict.fromkeys(tensor for spec in specs for tensor in spec.tensors)),
    )
