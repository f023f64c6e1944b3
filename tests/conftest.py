"""Small checkpoints in the original layouts, small non-square pictures, ways to call the CLI."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from skipbench.engine.machine import wait_politely

wait_politely()  # as the command does, before torch is loaded

# ruff: noqa: E402
import hypothesis
import numpy as np
import pytest
import torch
from loopback import Server
from PIL import Image

from skipbench.record_store import read_result

hypothesis.settings.register_profile("skipbench", deadline=None)  # the machine may be busy
hypothesis.settings.load_profile("skipbench")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def original_state(
    width=128, depth=3, patch=8, grid=5, registers=0, layer_scale=False, gated=False, seed=0
):
    """Random weights under DINO's (or DINOv2's) own keys; no bias or norm is at its default."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape, scale=0.05, around=0.0):
        return around + scale * torch.randn(*shape, generator=generator)

    state = {
        "cls_token": random(1, 1, width),
        "pos_embed": random(1, 1 + grid * grid, width, scale=0.3),
        "patch_embed.proj.weight": random(width, 3, patch, patch),
        "patch_embed.proj.bias": random(width),
        "norm.weight": random(width, scale=0.2, around=1),
        "norm.bias": random(width),
    }
    if registers:
        state["register_tokens"] = random(1, registers, width)
        state["mask_token"] = torch.zeros(1, width)
    for i in range(depth):
        block = {
            "norm1.weight": random(width, scale=0.2, around=1),
            "norm1.bias": random(width),
            "attn.qkv.weight": random(3 * width, width, scale=0.15),
            "attn.qkv.bias": random(3 * width),
            "attn.proj.weight": random(width, width, scale=0.15),
            "attn.proj.bias": random(width),
            "norm2.weight": random(width, scale=0.2, around=1),
            "norm2.bias": random(width),
        }
        if gated:
            block |= {
                "mlp.w12.weight": random(4 * width, width, scale=0.1),
                "mlp.w12.bias": random(4 * width),
                "mlp.w3.weight": random(width, 2 * width, scale=0.1),
                "mlp.w3.bias": random(width),
            }
        else:
            block |= {
                "mlp.fc1.weight": random(4 * width, width, scale=0.1),
                "mlp.fc1.bias": random(4 * width),
                "mlp.fc2.weight": random(width, 4 * width, scale=0.1),
                "mlp.fc2.bias": random(width),
            }
        if layer_scale:
            block |= {
                "ls1.gamma": random(width, around=0.5),
                "ls2.gamma": random(width, around=0.5),
            }
        state |= {f"blocks.{i}.{key}": value for key, value in block.items()}
    return state


@pytest.fixture(scope="session")
def state():
    return original_state()


@pytest.fixture
def ckpt(tmp_path, state):
    """A bare DINO backbone on disk."""
    path = tmp_path / "backbone.pth"
    torch.save(state, path)
    return path


@pytest.fixture
def pictures(tmp_path):
    """Seven small pictures of three sizes, none square."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    random = np.random.default_rng(0)
    for i, (height, width) in enumerate(
        [(40, 56), (24, 40), (40, 56), (33, 50), (24, 40), (40, 56), (33, 50)]
    ):
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def pixels(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def skipbench(tmp_path):
    """Run the command line as a user does, in a process of its own."""

    def run(*arguments, timeout=120, **environment):
        return subprocess.run(
            command(*arguments),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
            env=clean_environment(tmp_path) | environment,
        )

    return run


def records(folder="results"):
    return [read_result(path) for path in sorted(Path(folder).glob("*.json"))]


def lasting(result):
    """A record without what differs from run to run."""
    content = result.to_json()
    del content["timing"], content["environment"]
    return content


def command(*arguments):
    return [sys.executable, "-m", "skipbench", *map(str, arguments)]


def clean_environment(tmp_path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SKIPBENCH", "HF_", "GITHUB"))}
    kept.pop("FORCE_COLOR", None)
    return kept | {"SKIPBENCH_CACHE": str(tmp_path / "cache"), "COLUMNS": "100"}


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run the command line in this process: fast, same exit codes."""
    from typer.testing import CliRunner

    from skipbench.cli import app

    monkeypatch.setenv("SKIPBENCH_CACHE", str(tmp_path / "cache"))

    def run(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments])

    return run


@pytest.fixture
def server(monkeypatch):
    """Files over HTTP from this machine. Nobody waits long before another try."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def nowhere_else(tmp_path, monkeypatch):
    """No data set but those a test makes, in the folder it runs in."""
    monkeypatch.delenv("SKIPBENCH_DATA", raising=False)
    monkeypatch.setenv("SKIPBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def seen(monkeypatch):
    """(images, blocks) of every batch whose features are computed."""
    from skipbench.features.stream import Extractor

    batches = []
    run = Extractor.run

    def counting(self, *batch):
        for features in run(self, *batch):
            batches.append((len(features.images), self.spec.blocks))
            yield features

    monkeypatch.setattr(Extractor, "run", counting)
    return batches
