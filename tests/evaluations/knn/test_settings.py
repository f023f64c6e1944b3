"""Settings of nearest neighbours: read alike, and refused alike, from everywhere."""

import pytest
from doors import refusals

import skipbench
from skipbench.errors import UsageError
from skipbench.evaluations.knn.settings import MOST_K, KnnSettings
from skipbench.settings.declaration import shown

pytestmark = pytest.mark.usefixtures("nowhere_else")


def made(**given):
    return KnnSettings.make({"ckpt": "weights.pth", "dataset": "shapes", **given})


def test_values():
    assert made(k="30, 10,30").k == (10, 30) and made(k=7).k == (7,) and made(k=[3, 1]).k == (1, 3)
    assert made(k=str(MOST_K)).k == (MOST_K,)
    assert made(temperature="0.07,2e-2").temperature == (0.02, 0.07)
    assert made(temperature=1e-4).temperature == (1e-4,)
    assert made(temperature=(1, 0.5)).temperature == (0.5, 1)
    assert made(bank_limit="2.5GB").bank_limit == 2_500_000_000
    assert made(seeds=3).seeds == (3,) and made(seeds="0,2,2").seeds == (0, 2)


WRONG = {
    "k": ["0", "-3", "2.5", "a", "", ",", "1025", "3,0", [], 0, True, "٣"],
    "temperature": ["0", "-1", "nan", "inf", "1e-50", "", "warm", "1,0", 0, []],
    "memory": [0, "-5", -5, 2.5],
    "bank_limit": ["much", "", "GB"],
    "index": ["flatt", "", 3],
    "seeds": [[], [-1], "-1", "x", True],
    "size": ["big", "0", 0],
    "layers": ["lst", [], "9,x"],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(name):
    flag = f"--{name.replace('_', '-')}"
    for value in WRONG[name]:
        with pytest.raises(UsageError, match=f"^{flag} ") as raised:
            made(**{name: value})
        assert str(raised.value).startswith(f"{flag} {shown(value)}: expected ")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("k", 0, "integers from 1 to 1,024"),
        ("k", "3,x", "such as 10,30"),
        ("k", 99999, "integers from 1 to 1,024"),
        ("k", "", "integers from 1 to 1,024"),
        ("temperature", 0, "numbers from 0.0001"),
        ("memory", 0, "an integer of at least 1"),
        ("index", "flatt", "Did you mean 'flat'"),
        ("bank_limit", "much", "an amount of space"),
        ("size", "big", "HEIGHTxWIDTH"),
        ("layers", "lst", "Did you mean 'last'"),
        ("seeds", -1, "integers of at least 0"),
    ],
)
def test_wrong_values_are_refused_in_the_same_words(cli, key, value, words):
    said = refusals(cli, "knn", {key: value}, f"--{key.replace('_', '-')}", value)
    assert len(set(said)) == 1 and words in said[0]


@pytest.mark.parametrize("name", ["neighbours", "clusters"])
def test_unknown_options(name):
    with pytest.raises(TypeError, match=f"'{name}'"):
        skipbench.knn("weights.pth", "shapes", **{name: 3})


def test_the_protocol_is_the_published_one():
    """Value by value, as Hummingbird's evaluation has them."""
    defaults = KnnSettings.defaults()
    assert (defaults["k"], defaults["temperature"]) == ((30,), (0.02,))
    assert (defaults["memory"], defaults["size"]) == (1_024_000, "512")
