import logging

import pytest
from tiny import Home


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def quiet_log():
    """Commands of this process add handlers of their own."""
    yield
    logging.getLogger("skipbench").handlers = []
    logging.getLogger("skipbench").propagate = True
