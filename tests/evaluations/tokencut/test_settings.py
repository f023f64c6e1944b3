"""Settings of object discovery."""

import pytest
from doors import refusals

pytestmark = pytest.mark.usefixtures("nowhere_else")


@pytest.mark.parametrize(("key", "value"), [("tau", 0.3), ("eps", 0.001)])
def test_lost_has_no_threshold(cli, key, value):
    words = f"{value}: only for --method tokencut; LOST has neither"
    arguments = (f"--{key}", value, "--method", "lost")
    assert set(refusals(cli, "tokencut", {key: value, "method": "lost"}, *arguments)) == {words}
