"""How a bank is kept in memory: as exactly as fits."""

from dataclasses import dataclass
from typing import Literal

from skipbench.errors import ResourceError

FLAT_ON_CPU = 100_000  # tokens: more take seconds for each image


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


def choose_storage(index: str, tokens: int, width: int, limit_bytes: int, gpus: int = 0) -> Storage:
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


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.3f}".rstrip("0").rstrip(".") + " MB"
