"""How the bank is kept: as exactly as fits."""

import pytest
from tokens import groups_of, unit

from skipbench.engine.vectors import Flat, Lists
from skipbench.errors import ResourceError
from skipbench.evaluations.knn.method import Storage, choose_storage


def test_how_a_bank_is_kept():
    gigabyte = 10**9
    for index, tokens, gpus, limit, expected in (
        ("auto", 100_000, 0, 4, ("flat", "float32")),
        ("auto", 100_001, 0, 4, ("ivf", "float16")),
        ("auto", 1_024_000, 2, 4, ("flat", "float32")),
        ("auto", 1_024_000, 2, 3.1, ("flat", "float16")),
        ("auto", 1_024_000, 2, 1.5, ("ivf", "pq")),
        ("auto", 1_024_000, 0, 1.5, ("ivf", "pq")),
        ("flat", 1_024_000, 0, 4, ("flat", "float32")),
        ("flat", 1_024_000, 0, 3.1, ("flat", "float16")),
        ("ivf", 1000, 0, 4, ("ivf", "float16")),
        ("ivf", 1_024_000, 2, 1.5, ("ivf", "pq")),
    ):
        way = choose_storage(index, tokens, 768, round(limit * gigabyte), gpus)
        assert (way.index, way.numbers) == expected, (index, tokens, gpus, limit)
        assert way.bytes(tokens, 768) <= limit * gigabyte


def test_bytes_are_those_that_are_kept():
    bank, probes = unit(300, 8), groups_of(40, 8, seed=7)
    for numbers in ("float32", "float16"):
        flat = Flat(lambda: [bank], 300, 8, numbers)
        assert flat.bank.nbytes == Storage("flat", numbers).bytes(300, 8)
    half, quantised = (
        Lists(lambda: [bank], 300, 8, probes=probes, k=5, usual_k=5, quantised=quantised)
        for quantised in (False, True)
    )
    assert half.index.code_size * 300 == Storage("ivf", "float16").bytes(300, 8)
    assert quantised.index.code_size * 300 == Storage("ivf", "pq").bytes(300, 8)


def test_words_for_how_a_bank_is_kept():
    assert Storage("flat", "float16").words == "searched whole, as float16"
    assert Storage("ivf", "pq").words == "in lists (ivf), product-quantised"


@pytest.mark.parametrize(
    ("index", "least", "advice"),
    [("flat", "1,572.864", "--index ivf"), ("auto", "393.216", "--memory")],
)
def test_a_bank_that_does_not_fit(index, least, advice):
    with pytest.raises(ResourceError) as raised:
        choose_storage(index, 1_024_000, 768, 10**8)
    message = str(raised.value)
    assert f"{least} MB" in message and "--bank-limit is 100 MB" in message and advice in message
    assert ("--index ivf" in message) == (index == "flat")
    at_the_limit = 1_024_000 * 768 // 2
    assert choose_storage("auto", 1_024_000, 768, at_the_limit).numbers == "pq"
    with pytest.raises(ResourceError):
        choose_storage("auto", 1_024_000, 768, at_the_limit - 1)
