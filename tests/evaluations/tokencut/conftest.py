"""Quick object discovery on small data, in this process."""

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_blas():
    """Its threads and torch's wait for each other, a hundred times longer than the work takes."""
    with threadpool_limits(1, user_api="blas"):
        yield
