"""Settings of the probe: what is read, what is refused, and what the protocols are."""

import pytest
from doors import refusals

from skipbench.errors import UsageError
from skipbench.evaluations.probe.settings import PROTOCOLS, ProbeSettings
from skipbench.settings import shown

pytestmark = pytest.mark.usefixtures("nowhere_else")


def made(**given):
    return ProbeSettings.make({"ckpt": "weights.pth", "dataset": "shapes", **given})


def test_what_is_given_changes_the_protocol():
    changed = made(
        epochs=3, lr="3e-3,1e-3", size="320x480", score_size="50", loss_pixels="all",
        standardize=False,
    ).resolved  # fmt: skip
    assert changed.rates == (1e-3, 3e-3) and changed.epochs == 3 and changed.score_size == 50
    assert changed.loss_pixels is None and changed.normalisation == "none"
    assert made(protocol="leopart", score_size="full").resolved.score_size is None
    assert made(protocol="dinov2", size="256").resolved.window == (256, 170)
    assert made(protocol="dinov2", epochs=2).resolved.steps is None
    assert made(protocol="dinov2", views=3).resolved.different_views == 3
    assert made(seeds="0,2").seeds == (0, 2) and made(seeds=4).seeds == (4,)
    assert made(lr=(1e-2,)).resolved.rates == (1e-2,) and made(lr=0.1).resolved.rates == (0.1,)
    assert made().resolved == PROTOCOLS["paper"]


INTEGER = "an integer of at least 1"
WRONG = {
    "protocol": ("paper, dinov2 or leopart", ["papr", "", 3]),
    "epochs": (INTEGER, [0, "-1", "x", True]),
    "lr": (
        "numbers above 0, such as 1e-3,3e-3",
        ["fast", "0", "nan", "inf", "", "1e-3,0", [], [0]],
    ),
    "select": ("val or holdout", ["typo", "test", ""]),
    "score_size": ("full or an integer from 1 to 10,000,000", ["big", 0]),
    "loss_pixels": ("all or an integer from 1 to 10,000,000", ["-3", "few", 0]),
    "views": (INTEGER, [0, "x"]),
    "standardize": ("true or false", ["yes", 1]),
    "train_images": (INTEGER, [0, "x"]),
    "batch_size": ("auto or an integer of at least 1", [0, "big"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(name):
    flag, (words, values) = f"--{name.replace('_', '-')}", WRONG[name]
    for value in values:
        with pytest.raises(UsageError) as raised:
            made(**{name: value})
        assert str(raised.value).startswith(f"{flag} {shown(value)}: expected {words}")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("select", "typo", "typo: expected val or holdout"),
        ("views", 0, "0: expected an integer of at least 1"),
        ("protocol", "papr", "papr: expected paper, dinov2 or leopart. Did you mean 'paper'?"),
    ],
)
def test_wrong_values_are_refused_before_any_training(cli, key, value, words):
    """In the same words by the command line, a suite and Python, before the weights are read."""
    said = refusals(cli, "probe", {key: value}, f"--{key}", value)
    assert len(set(said)) == 1 and said[0].startswith(words)


@pytest.mark.parametrize(
    ("key", "value", "protocol", "words"),
    [
        ("views", 3, "paper", "3: only for --protocol dinov2 or leopart"),
        ("size", "native", "leopart", "native: crops are square; expected an integer"),
    ],
)
def test_settings_that_do_not_go_together(cli, key, value, protocol, words):
    keys, arguments = {key: value, "protocol": protocol}, (f"--{key}", value)
    said = refusals(cli, "probe", keys, *arguments, "--protocol", protocol)
    assert len(set(said)) == 1 and said[0].startswith(words)


@pytest.mark.parametrize(
    ("key", "text", "value", "words"),
    [
        ("lr", "1e-3,0.01,0.001", [1e-3, 0.01, 1e-3], "0.001 is given twice"),
        ("seeds", "1,0,1", [1, 0, 1], "1 is given twice"),
        ("layers", "2,2", "2,2", "2 is given twice"),
        ("layers", "last,last", ["last", "last"], "last is given twice"),
    ],
)
def test_repeated_values_are_refused(cli, key, text, value, words):
    """One of the two is a typing mistake. Each door says it."""
    words_of_it = text.split(",") if text == "last,last" else [text]
    arguments = [word for one in words_of_it for word in (f"--{key}", one)]
    said = refusals(cli, "probe", {key: value}, *arguments)
    assert all(one.endswith(f": {words}") for one in said)


def test_the_protocols_are_the_published_ones():
    """Value by value, as the papers' codes have them."""
    paper, dinov2, leopart = (PROTOCOLS[name] for name in ("paper", "dinov2", "leopart"))
    assert (paper.size, paper.batch, paper.epochs, paper.schedule) == ("448", 16, 30, "cosine")
    assert paper.rates == (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
    assert paper.optimiser.name == "adamw" and paper.optimiser.weight_decay == 1e-4
    assert paper.train_images == {"ade20k": 3000, "cocostuff": 3000} and not paper.train_splits
    assert (paper.loss_size, paper.score_size, paper.absent_classes) == (None, None, "left out")
    assert (dinov2.size, dinov2.window, dinov2.steps) == ("512", (512, 341), 40_000)
    assert (dinov2.rates, dinov2.schedule, dinov2.batch) == ((1e-3,), "poly", 16)
    assert dinov2.normalisation == "batch norm" and dinov2.optimiser.weight_decay == 1e-4
    assert (leopart.optimiser.name, leopart.rates, leopart.epochs) == ("sgd", (1e-2,), 25)
    assert leopart.optimiser.momentum == 0.9 and leopart.optimiser.weight_decay == 1e-4
    assert (leopart.loss_size, leopart.score_size, leopart.absent_classes) == (100, 100, "zero")
    assert leopart.train_splits == {"voc": "train_aug"}
