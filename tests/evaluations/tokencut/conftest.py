"""Object discovery on a few tiny images, in this process."""

import pytest
import torch
from plain_tokencut import PATCH, boxed_folder
from threadpoolctl import threadpool_limits

import skipbench
from skipbench.demo import make_weights, small_facts
from skipbench.evaluations import find_evaluation
from skipbench.pipeline import open_run

QUICK = ("--size", "40x56", "--limit", "12")


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_blas():
    """Its threads and torch's wait for each other, a hundred times longer than the work takes."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(scope="session")
def weights():
    return make_weights("skip", small_facts(width=64, depth=3, patch=PATCH, heads=1))


@pytest.fixture
def ckpt(tmp_path, weights):
    path = tmp_path / "skip.pth"
    torch.save({**weights, "num_heads": 1, "position_rule": "offset"}, path)
    return path


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory, weights):
    """The same weights where no test removes them."""
    path = tmp_path_factory.mktemp("weights") / "skip.pth"
    torch.save({**weights, "num_heads": 1, "position_rule": "offset"}, path)
    return path


@pytest.fixture(scope="session")
def inspection(weights_file):
    return skipbench.inspect(weights_file, residual="skip", device="cpu")


@pytest.fixture(scope="session")
def backbone(inspection):
    return inspection.backbone()


@pytest.fixture(scope="session")
def twelve(tmp_path_factory):
    """A data set of twelve images with a box each."""
    folder = tmp_path_factory.mktemp("twelve")
    boxed_folder(folder / "boxed", 12)
    return f"folder:{folder / 'boxed'}"


@pytest.fixture
def run(cli, ckpt):
    """`skipbench tokencut` as a user calls it."""

    def run(*more, dataset="shapes", quick=QUICK):
        task = ("--dataset", dataset) if dataset else ()
        return cli("tokencut", "--ckpt", ckpt, "--residual", "skip", *task, *quick, *more)

    return run


@pytest.fixture
def opened(weights_file, inspection, twelve, nowhere_else):
    """A run on twelve images that has not begun; four of them are kept together."""

    def opened(dataset=twelve, **given):
        evaluation = find_evaluation("tokencut")
        usual = {"ckpt": weights_file, "residual": "skip", "size": "40x56", "device": "cpu"}
        settings = evaluation.settings.make({**usual, "dataset": dataset, **given})
        run = open_run(evaluation, settings, inspections=[inspection])
        run.shard_images = 4
        return run

    return opened
