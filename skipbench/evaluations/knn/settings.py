"""What nearest neighbours and clusters are made of. No torch here: a wrong value is said at once.

The protocol of nearest neighbours is Hummingbird's (Balažević et al. 2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Literal, get_args

from skipbench.errors import ResourceError, UsageError

IndexKind = Literal["flat", "ivf", "auto"]
INDEXES: tuple[str, ...] = get_args(IndexKind)

K = 30
TEMPERATURE = 0.02
COLDEST, HOTTEST = 1e-4, 1e4
MEMORY = 1_024_000  # tokens
MOST_K = 1024
BANK_LIMIT = 4_000_000_000  # bytes
FLAT_ON_CPU = 100_000  # tokens: more take seconds for each image

CLASSES = "classes"  # as many clusters
MOST_CLUSTERS = 10_000
SAMPLE = 1_000_000  # tokens that k-means looks at
SEEDS = 5
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Storage:
    """How a bank is kept: searched whole or in part, and how many bytes a number takes."""

    index: Literal["flat", "ivf"]
    numbers: Literal["float32", "float16", "pq"]  # pq: one byte for two numbers

    def bytes(self, tokens: int, width: int) -> int:
        return round(tokens * width * {"float32": 4, "float16": 2, "pq": 0.5}[self.numbers])

    @property
    def words(self) -> str:
        kept = "product-quantised" if self.numbers == "pq" else f"as {self.numbers}"
        return f"{'searched whole' if self.index == 'flat' else 'in lists (ivf)'}, {kept}"


def choose_storage(
    index: str, tokens: int, width: int, limit_bytes: int = BANK_LIMIT, gpus: int = 0
) -> Storage:
    """The most exact way that keeps to the limit. auto: whole, where that does not take long."""
    whole = gpus > 0 or tokens <= FLAT_ON_CPU
    ways: list[Storage] = []
    if index == "flat" or (index == "auto" and whole):
        ways += [Storage("flat", "float32"), Storage("flat", "float16")]
    if index != "flat":
        ways += [Storage("ivf", "float16"), Storage("ivf", "pq")]
    fitting = [way for way in ways if way.bytes(tokens, width) <= limit_bytes]
    if not fitting:
        least = ways[-1].bytes(tokens, width)
        other = "" if index != "flat" else ", or --index ivf"
        raise ResourceError(
            f"a bank of {tokens:,} tokens of {width:,} numbers takes {_megabytes(least)} at the "
            f"least, --bank-limit is {_megabytes(limit_bytes)}.\n"
            f"Give a smaller --memory, fewer --layers, a higher --bank-limit{other}."
        )
    return fitting[0]


def parse_ks(given: str | int | Sequence[int]) -> tuple[int, ...]:
    """ "10,30" → (10, 30)."""
    found = [_whole(part) for part in _parts(given)]
    if not found or not all(value and value <= MOST_K for value in found):
        raise UsageError(f"--k {_told(given)}: give whole numbers from 1 to {MOST_K}, such as 30")
    return tuple(sorted({value for value in found if value}))


def parse_temperatures(given: str | float | Sequence[float]) -> tuple[float, ...]:
    """ "0.02,0.07" → (0.02, 0.07)."""
    found = [_number(part) for part in _parts(given)]
    if not found or not all(COLDEST <= value <= HOTTEST for value in found):
        raise UsageError(
            f"--temperature {_told(given)}: give numbers from {COLDEST:g} to {HOTTEST:g}, "
            "such as 0.02"
        )
    return tuple(sorted(set(found)))


def parse_clusters(given: str | int | Sequence[str | int]) -> tuple[str | int, ...]:
    """ "classes,500" → ("classes", 500)."""
    found = [part if part == CLASSES else _whole(part) for part in _parts(given)]
    numbers = [value for value in found if value != CLASSES]
    if not found or not all(isinstance(n, int) and 0 < n <= MOST_CLUSTERS for n in numbers):
        raise UsageError(
            f"--clusters {_told(given)}: give classes, or numbers to {MOST_CLUSTERS}, such as 500"
        )
    return tuple(dict.fromkeys(value for value in found if value))


def parse_how_many_seeds(given: str | int | Sequence[int]) -> tuple[int, ...]:
    """5 → (0, 1, 2, 3, 4): so many. "0,7" or [0, 7] → these."""
    several = not isinstance(given, str | int) or (isinstance(given, str) and "," in given)
    found = [_whole(part) for part in _parts(given)]
    seeds = [seed for seed in found if seed is not None]
    if not several and seeds and seeds[0] > 0:
        seeds = list(range(seeds[0])) if seeds[0] <= MOST_SEEDS else []
    if not seeds or None in found:
        raise UsageError(
            f"--seeds {_told(given)}: give how many, up to {MOST_SEEDS}, or which: 0,7"
        )
    return tuple(dict.fromkeys(seeds))


def check_sample(sample: int, clusters: Sequence[str | int]) -> None:
    """What can be said before anything is opened."""
    most = max((number for number in clusters if isinstance(number, int)), default=1)
    if sample < most:
        raise UsageError(f"--sample {sample}: fewer tokens than --clusters {most}")


def clusters_words(count: int) -> str:
    return f"{count:,} cluster{'' if count == 1 else 's'}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.3f}".rstrip("0").rstrip(".") + " MB"


def _parts(given: Any) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else given
    parts = list(parts) if isinstance(parts, Sequence) else [parts]
    return [str(part).strip() for part in parts if str(part).strip()]


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _told(given: Any) -> str:
    return repr(given) if isinstance(given, str) else str(given)
