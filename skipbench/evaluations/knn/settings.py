"""Settings of dense nearest neighbours; the protocol is Hummingbird's (Balažević et al. 2023)."""

from collections.abc import Iterable
from dataclasses import dataclass

from skipbench.evaluations.segmentation import TrainingImagesSettings
from skipbench.settings import parsers, setting
from skipbench.settings.groups import size

MOST_K = 1024


def parse_ks(given: int | str | Iterable[int | str]) -> tuple[int, ...]:
    return tuple(sorted(parsers.integers(1, MOST_K, example="10,30")(given)))


@dataclass(frozen=True, kw_only=True)
class KnnSettings(TrainingImagesSettings):
    k: tuple[int, ...] = setting(
        (30,), help="Number of neighbours; several share one search.", parse=parse_ks,
        metavar="N,N",
    )  # fmt: skip
    temperature: tuple[float, ...] = setting(
        (0.02,), help="Votes are weighted by softmax(similarity / temperature).",
        parse=parsers.numbers(1e-4, 1e4, example="0.02,0.07"), metavar="T,T",
    )  # fmt: skip
    memory: int = setting(
        1_024_000, help="Tokens in the bank, spread evenly over the training images; patches "
        "of rare classes are preferred.", parse=parsers.integer(1), metavar="N",
    )  # fmt: skip
    index: str = setting(
        "auto", help="flat searches the whole bank; ivf searches part of it and records its "
        "recall; auto is ivf on the CPU beyond 100,000 tokens.",
        parse=parsers.choice("flat", "ivf", "auto"), metavar="INDEX",
    )  # fmt: skip
    bank_limit: int = setting(
        4_000_000_000, help="Memory for the bank; beyond it, float16 or PQ.",
        parse=parsers.byte_count, metavar="SIZE", default_text="4GB",
    )  # fmt: skip
    size: str = size("512")
