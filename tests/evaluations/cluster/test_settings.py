"""Settings of k-means segmentation: what is read, and what is refused."""

import pytest
from doors import refusals

from skipbench.errors import UsageError
from skipbench.evaluations.cluster.settings import ClusterSettings
from skipbench.settings import shown

pytestmark = pytest.mark.usefixtures("nowhere_else")


def made(**given):
    return ClusterSettings.make({"ckpt": "weights.pth", "dataset": "shapes", **given})


def test_clusters():
    assert made().clusters == ("classes",)
    assert made(clusters="classes, 500").clusters == ("classes", 500)
    assert made(clusters=[500, "classes"]).clusters == (500, "classes")
    assert made(clusters=3).clusters == (3,)


def test_a_number_is_how_many_seeds_a_list_is_which():
    assert made().seeds == (0, 1, 2, 3, 4)
    assert made(seeds=3).seeds == made(seeds=" 3 ").seeds == (0, 1, 2)
    assert made(seeds="3,").seeds == made(seeds=[3]).seeds == (3,)
    assert made(seeds="7,0").seeds == made(seeds=[7, 0]).seeds == (7, 0)
    assert len(made(seeds=1000).seeds) == 1000
    assert made(seeds=0).seeds == made(seeds="0").seeds == (0,)  # as in other commands


WRONG = {
    "clusters": (
        "classes, or integers up to 10,000 such as 500",
        ["0", "10001", "all", "class", "", "-2", "classes,0", "3,-1", 2.5, [True], True, 0],
    ),
    "seeds": (
        "a number of seeds up to 1,000, or a list such as 0,7",
        [-1, 1001, "1001", "", "a", "1,-2", True, [], "1.5"],
    ),
    "sample_tokens": ("an integer of at least 1", [0, "0", "x", 1.5]),
    "redo": ("an integer of at least 1", [0, "-1"]),
    "split": ("text", [3, ""]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(name):
    flag, (words, values) = f"--{name.replace('_', '-')}", WRONG[name]
    for value in values:
        with pytest.raises(UsageError) as raised:
            made(**{name: value})
        assert str(raised.value) == f"{flag} {shown(value)}: expected {words}"


def test_a_sample_smaller_than_the_clusters(cli):
    made(sample_tokens=500, clusters=("classes", 500, 20))
    made(sample_tokens=1, clusters=("classes",))
    arguments = ("--sample-tokens", 499, "--clusters", "classes,20,500")
    keys = {"sample_tokens": 499, "clusters": ["classes", 20, 500]}
    assert set(refusals(cli, "cluster", keys, *arguments)) == {
        "499: fewer tokens than --clusters 500"
    }
