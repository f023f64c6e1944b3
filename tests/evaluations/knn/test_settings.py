"""Settings of nearest neighbours: what is read, and what is refused."""

import pytest

from skipbench.errors import UsageError
from skipbench.evaluations.knn.settings import MOST_K, KnnSettings
from skipbench.settings import shown


def made(**given):
    return KnnSettings.make({"ckpt": "weights.pth", "dataset": "shapes", **given})


def test_values():
    assert made(k="30, 10").k == (10, 30) and made(k=7).k == (7,) and made(k=[3, 1]).k == (1, 3)
    assert made(k=str(MOST_K)).k == (MOST_K,)
    assert made(temperature="0.07,2e-2").temperature == (0.02, 0.07)
    assert made(temperature=1e-4).temperature == (1e-4,)
    assert made(temperature=(1, 0.5)).temperature == (0.5, 1)
    assert made(bank_limit="2.5GB").bank_limit == 2_500_000_000
    assert made(seeds=3).seeds == (3,) and made(seeds="0,2").seeds == (0, 2)


WRONG = {
    "k": (
        "integers from 1 to 1,024, such as 10,30",
        ["0", "-3", "2.5", "a", "", ",", "1025", "99999", "3,0", "3,x", [], 0, True, "٣"],
    ),
    "temperature": (
        "numbers from 0.0001 to 10000, such as 0.02,0.07",
        ["0", "-1", "nan", "inf", "1e-50", "", "warm", "1,0", 0, []],
    ),
    "memory": ("an integer of at least 1", [0, "-5", -5, 2.5]),
    "bank_limit": ("an amount of space such as 50GB", ["much", "", "GB"]),
    "index": ("flat, ivf or auto", ["flatt", "", 3]),
    "seeds": ("integers of at least 0, such as 0,1,2", [[], [-1], "-1", "x", True]),
    "size": ("N, HEIGHTxWIDTH, short:N, long:N or native", ["big", "0", 0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(name):
    flag, (words, values) = f"--{name.replace('_', '-')}", WRONG[name]
    for value in values:
        with pytest.raises(UsageError) as raised:
            made(**{name: value})
        assert str(raised.value).startswith(f"{flag} {shown(value)}: expected {words}")


def test_near_misses():
    with pytest.raises(UsageError, match="Did you mean 'flat'"):
        made(index="flatt")
    with pytest.raises(UsageError, match=r"--layers lst: .* Did you mean 'last'"):
        made(layers="lst")


def test_the_protocol_is_the_published_one():
    """Value by value, as Hummingbird's evaluation has them."""
    defaults = KnnSettings.defaults()
    assert (defaults["k"], defaults["temperature"]) == ((30,), (0.02,))
    assert (defaults["memory"], defaults["size"]) == (1_024_000, "512")
