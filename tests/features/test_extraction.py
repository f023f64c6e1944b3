"""Layers, plans and streaming: the right images in the right order, whatever their sizes."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from conftest import clean_environment, original_state

from skipbench.backbones.vit import ViTBackbone
from skipbench.checkpoints import open_checkpoint
from skipbench.errors import DataError, NumbersError, UsageError
from skipbench.features.layers import multiscale, parse_layers
from skipbench.features.stream import Extractor, Plan, make_plan
from skipbench.images import find_images, normalise, read_image
from skipbench.records import FeatureSpec


@pytest.mark.parametrize(
    ("text", "depth", "blocks"),
    [
        ("last", 12, (11,)),
        ("multiscale", 12, (2, 5, 8, 11)),
        ("multiscale", 11, (2, 5, 7, 10)),
        ("multiscale", 10, (1, 4, 7, 9)),
        ("multiscale", 9, (1, 3, 6, 8)),
        ("last4", 12, (8, 9, 10, 11)),
        ("ibot", 12, (3, 5, 7, 11)),
        ("all", 3, (0, 1, 2)),
        ("0,-1, 5", 12, (0, 5, 11)),
        ("-1,11", 12, (11,)),
    ],
)
def test_layers(text, depth, blocks):
    assert parse_layers(text, depth) == blocks


@pytest.mark.parametrize("text", ["12", "-13", "lst", "", "1;2", "ibot"])
def test_wrong_layers(text):
    with pytest.raises(UsageError, match="--layers"):
        parse_layers(text, 11 if text == "ibot" else 12)


@pytest.mark.parametrize("depth", range(1, 13))
def test_multiscale_ends_at_the_last_block(depth):
    blocks = multiscale(depth)
    assert blocks[-1] == depth - 1 and len(blocks) == min(len(set(blocks)), 4)


# --- plans -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 5, 17])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 100])
def test_a_plan_holds_every_image_once(count, batch_size):
    sizes = [[(24, 40), (40, 24), (64, 64), (23, 39)][i % 4] for i in range(count)]
    order = tuple(range(count))
    plan = Plan(tuple(sizes), tuple(order[i : i + 4] for i in range(0, count, 4)), 8)
    seen = []
    for shard in range(len(plan.shards)):
        for batch in plan.batches(shard, batch_size, token_budget=50):
            assert len({plan.grid_hw(i) for i in batch}) == 1
            assert len(batch) <= (batch_size or max(1, 50 // plan.tokens(batch[0])))
            seen += batch
    assert sorted(seen) == list(order)


def test_plan_of_native_sizes(pictures):
    items = find_images([pictures])
    plan = make_plan(items, None, 8, bytes_per_patch=256)
    assert plan.sizes_hw[0] == (40, 56) and plan.grid_hw(3) == (5, 7)  # 33×50 → 40×56
    order = [i for shard in plan.shards for i in shard]
    assert order == [0, 2, 3, 5, 6, 1, 4]  # large first, then by name
    assert len(list(plan.batches(0, None, 10**6))) == 2


def test_plan_of_one_size(pictures):
    plan = make_plan(find_images([pictures]), (48, 32), 8, bytes_per_patch=256)
    assert set(plan.sizes_hw) == {(48, 32)} and plan.grid_hw(0) == (6, 4)
    assert plan.shards == (tuple(range(7)),)


def test_shards_have_a_sensible_size(pictures):
    items = find_images([pictures]) * 100
    shards = make_plan(items, (448, 448), 16, bytes_per_patch=768).shards
    assert [len(s) for s in make_plan(items, (896, 896), 16, 768).shards[:-1]] == [13] * 53
    assert [len(s) for s in shards[:-1]] == [32] * (len(shards) - 1)


# --- streaming -------------------------------------------------------------------------------


@pytest.fixture
def backbone(ckpt):
    return ViTBackbone(open_checkpoint(ckpt), "skip")


@pytest.mark.parametrize("size_hw", [None, (48, 32), (45, 30)])
@pytest.mark.parametrize("batch_size", [None, 1, 2, 100])
def test_streamed_features_are_those_of_each_image_alone(backbone, pictures, size_hw, batch_size):
    items = find_images([pictures])
    spec = FeatureSpec(blocks=(0, 2), tensors=("tokens_norm", "keys"), size=size_hw)
    plan = make_plan(items, size_hw, 8, 256)
    seen = {}
    for batch in Extractor(backbone, spec, batch_size).stream(items, plan):
        for row, image in enumerate(batch.images):
            seen[image] = {name: column[row] for name, column in batch.columns.items()}
    assert sorted(seen) == list(range(7))
    for image, item in enumerate(items):
        alone = one_by_hand(backbone, item.path, size_hw)
        for name in ("tokens_norm.0", "keys.2"):
            tensor, block = name.split(".")
            expected = alone[int(block), tensor][0]
            # Another batch size sums in another order: a few units in the last place of float32.
            rounding = 1e-5 * expected.abs().max().item()
            assert torch.allclose(seen[image][name], expected, atol=rounding)


def one_by_hand(backbone, path, size_hw):
    """Normalise, then pad with zeros, with numpy."""
    pixels = (read_image(path, size_hw) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    height, width = pixels.shape[:2]
    full = np.zeros((-(-height // 8) * 8, -(-width // 8) * 8, 3))
    full[:height, :width] = pixels
    tensor = torch.from_numpy(full).permute(2, 0, 1)[None].float()
    return backbone(tensor, [0, 2], ("tokens_norm", "keys")).patches


def test_padding_is_zero_after_normalising():
    batch = torch.full((1, 3, 8, 16), 200, dtype=torch.uint8)
    out = normalise(batch, [(5, 11)])
    assert out[0, :, 5:].abs().max() == 0 and out[0, :, :, 11:].abs().max() == 0
    assert out[0, 0, 0, 0] == pytest.approx((200 / 255 - 0.485) / 0.229, rel=1e-5)


def test_a_bad_picture_stops_with_its_name(backbone, pictures):
    (pictures / "3.png").write_bytes((pictures / "3.png").read_bytes()[:200])
    items = find_images([pictures])
    spec = FeatureSpec(blocks=(2,), size=(24, 40))
    with pytest.raises(DataError, match=r"3\.png"):
        list(Extractor(backbone, spec).stream(items, make_plan(items, (24, 40), 8, 256)))


def test_threads_end_when_the_stream_is_dropped(backbone, pictures):
    import threading

    items = find_images([pictures]) * 20
    stream = Extractor(backbone, FeatureSpec(blocks=(2,), size=(24, 40)), 1).stream(
        items, make_plan(items, (24, 40), 8, 256)
    )
    next(stream)
    stream.close()
    for thread in threading.enumerate():
        if thread.name.startswith("ahead"):
            thread.join(5)
            assert not thread.is_alive()


# --- fault 16: fp16 overflows ----------------------------------------------------------------


def overflowing():
    """Finite weights whose activations exceed 65504, the largest number of fp16."""
    state = original_state()
    state["blocks.1.mlp.fc1.bias"] = state["blocks.1.mlp.fc1.bias"] + 1e5
    return state


def test_fp16_overflow_goes_on_in_bf16(tmp_path, pictures, caplog):
    torch.save(overflowing(), tmp_path / "w.pth")
    items = find_images([pictures])
    spec = FeatureSpec(blocks=(2,), size=(24, 40))
    plan = make_plan(items, (24, 40), 8, 256)
    backbone = ViTBackbone(open_checkpoint(tmp_path / "w.pth"), "skip", precision="fp16")
    batches = list(Extractor(backbone, spec, 4).stream(items, plan))
    assert backbone.precision == "bf16"
    assert "block 1" in caplog.text and "switching to bf16" in caplog.text
    exact = ViTBackbone(open_checkpoint(tmp_path / "w.pth"), "skip")
    reference = next(Extractor(exact, spec, 4).stream(items, plan)).columns["tokens_norm.2"]
    ours = batches[0].columns["tokens_norm.2"]
    assert torch.isfinite(ours).all()
    assert (ours.float() - reference).norm() / reference.norm() < 0.1


def test_overflow_in_fp32_is_an_error(tmp_path):
    state = original_state()
    state["blocks.1.mlp.fc1.bias"] = state["blocks.1.mlp.fc1.bias"] + 3e38
    torch.save(state, tmp_path / "w.pth")
    extractor = Extractor(
        ViTBackbone(open_checkpoint(tmp_path / "w.pth"), "skip", precision="fp16"),
        FeatureSpec((2,)),
    )
    batch = torch.randint(0, 255, (1, 3, 24, 40), dtype=torch.uint8)
    with pytest.raises(NumbersError, match=r"fp32.*block 1"):
        list(extractor.run([0], batch, [(24, 40)]))


# --- fault 36: memory runs out ---------------------------------------------------------------

CHILD = """
    import logging, resource, sys, torch
    logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
    from skipbench.backbones.vit import ViTBackbone
    from skipbench.checkpoints import open_checkpoint
    from skipbench.features.stream import Extractor
    from skipbench.records import FeatureSpec
    torch.set_num_threads(1)
    extractor = Extractor(ViTBackbone(open_checkpoint(sys.argv[1]), "skip"), FeatureSpec((2,)))
    side, count = int(sys.argv[2]), int(sys.argv[3])
    small = torch.zeros(1, 3, 24, 40, dtype=torch.uint8)
    list(extractor.run([0], small, [(24, 40)]))  # libraries are loaded before memory is tight
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(float(sys.argv[4]) * 1e6),) * 2)
    batch = torch.zeros(count, 3, side, side, dtype=torch.uint8)
    run = extractor.run(list(range(count)), batch, [(side, side)] * count)
    print("parts", [len(part.images) for part in run])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(("megabytes", "survives"), [(250, True), (20, False)])
def test_memory_that_runs_out_halves_the_batch(tmp_path, ckpt, megabytes, survives):
    """A real limit on the process's memory, on the CPU; a GPU goes the same way."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), ckpt, "448", "16", str(megabytes)],
        capture_output=True, text=True, timeout=120, env=clean_environment(tmp_path),
    )  # fmt: skip
    if survives:
        assert "out of memory with 16 images per batch; using 8" in done.stdout, done
        parts = eval(done.stdout.split("parts")[1])
        assert sum(parts) == 16 and max(parts) < 16
    else:
        assert "OutOfMemory" in done.stderr, done
        assert "single image" in done.stderr


def test_out_of_memory_of_a_gpu_is_recognised(backbone):
    """torch's own class, as a CUDA device raises it."""
    extractor = Extractor(backbone, FeatureSpec((2,)))
    whole = extractor.backbone

    calls = []

    class Tight:
        device, facts, preprocessing = whole.device, whole.facts, whole.preprocessing
        precision = "fp32"

        def __call__(self, images, blocks, tensors):
            calls.append(len(images))
            if len(images) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return whole(images, blocks, tensors)

    extractor.backbone = Tight()
    batch = torch.randint(0, 255, (7, 3, 24, 40), dtype=torch.uint8)
    parts = list(extractor.run(list(range(7)), batch, [(24, 40)] * 7))
    assert [i for part in parts for i in part.images] == list(range(7))
    assert max(len(part.images) for part in parts) <= 2
    assert calls[:2] == [7, 3]


@pytest.mark.gpu
def test_gpu_halves_a_batch_that_does_not_fit(ckpt):
    backbone = ViTBackbone(open_checkpoint(ckpt), "skip", "cuda")
    extractor = Extractor(backbone, FeatureSpec((2,)))
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        batch = torch.zeros(256, 3, 448, 448, dtype=torch.uint8)
        parts = list(extractor.run(list(range(256)), batch, [(448, 448)] * 256))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert sum(len(p.images) for p in parts) == 256 and extractor.most < 256
