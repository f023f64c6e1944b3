"""Settings of the probe: wrong ones are refused before any work, protocols are the published."""

import pytest
from doors import refusals

pytestmark = pytest.mark.usefixtures("nowhere_else")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("select", "typo", "expected val or holdout"),
        ("views", 0, "expected an integer of at least 1"),
    ],
)
def test_wrong_values_are_refused_before_any_training(cli, key, value, words):
    """The same words from the command line, a suite and Python; the weights are never read."""
    said = refusals(cli, "probe", {key: value, "protocol": "leopart"}, f"--{key}", value,
                    "--protocol", "leopart")  # fmt: skip
    assert len(set(said)) == 1 and said[0].startswith(f"{value}: {words}")
