"""Settings of k-means segmentation."""

from collections.abc import Iterable
from dataclasses import dataclass

from skipbench.errors import UsageError
from skipbench.evaluations.segmentation import SegmentationSettings
from skipbench.settings import DATA, parsers, setting
from skipbench.settings.groups import size
from skipbench.settings.parsers import InvalidError

CLASSES = "classes"  # as many clusters as classes
MOST_CLUSTERS = 10_000
MOST_SEEDS = 1000
SEEDS = 5


def parse_clusters(given: int | str | Iterable[int | str]) -> tuple[str | int, ...]:
    """ "classes,500" → ("classes", 500)."""
    count = parsers.integer(1, MOST_CLUSTERS)
    try:
        found = [part if part == CLASSES else count(part) for part in parsers.listed(given)]
    except InvalidError:
        found = []
    if not found:
        raise InvalidError(f"expected classes, or integers up to {MOST_CLUSTERS:,} such as 500")
    return parsers.distinct(found)


def parse_seeds(given: int | str | Iterable[int | str]) -> tuple[int, ...]:
    """5 → (0, 1, 2, 3, 4). "0,7" or [0, 7] → these."""
    several = not isinstance(given, str | int) or (isinstance(given, str) and "," in given)
    one = parsers.integer(0, None if several else MOST_SEEDS)
    try:
        seeds = tuple(map(one, parsers.listed(given)))
    except InvalidError:
        seeds = ()
    if not seeds:
        raise InvalidError(
            f"expected a number of seeds up to {MOST_SEEDS:,}, or a list such as 0,7"
        )
    return parsers.distinct(seeds) if several or seeds == (0,) else tuple(range(seeds[0]))


@dataclass(frozen=True, kw_only=True)
class ClusterSettings(SegmentationSettings):
    clusters: tuple[str | int, ...] = setting(
        (CLASSES,), help="classes: one per class, matched one to one; or N, each labelled by "
        "majority vote; or several: classes,500.", parse=parse_clusters, metavar="N,N",
        default_text=CLASSES,
    )  # fmt: skip
    seeds: tuple[int, ...] = setting(
        tuple(range(SEEDS)), help="Number of seeds (5 means 0 to 4), or a list: 0,7.",
        parse=parse_seeds, metavar="N", default_text=str(SEEDS), flags=("--seeds", "--seed"),
    )  # fmt: skip
    sample_tokens: int = setting(
        1_000_000, help="Tokens for k-means, drawn evenly from all images; up to 4 GB.",
        parse=parsers.integer(1), metavar="N",
    )  # fmt: skip
    redo: int = setting(
        1, help="Number of restarts; lowest inertia wins.", parse=parsers.integer(1), metavar="N"
    )
    size: str = size("448")
    split: str | None = setting(
        None, help="Split to cluster.", parse=parsers.text, panel=DATA, metavar="NAME",
        default_text="val, or the only one",
    )  # fmt: skip

    def check(self) -> None:
        super().check()
        most = max((count for count in self.clusters if isinstance(count, int)), default=1)
        if self.sample_tokens < most:
            raise UsageError(
                f"--sample-tokens {self.sample_tokens}: fewer tokens than --clusters {most}"
            )
