"""One vector for each image: pooled as timm pools, stored, resumed, and read back in order."""

import numpy as np
import pytest
import torch
from tiny import tiny_checkpoint

import skipbench
from skipbench.backbones.base import BlockOutputs
from skipbench.errors import ResourceError, UsageError
from skipbench.features import pool
from skipbench.features.source import FeatureSource, compute
from skipbench.features.store import describe, key_of, missing_images, open_store
from skipbench.features.stream import Extractor
from skipbench.images import find_images, normalise, stack
from skipbench.records import FeatureSpec

SPEC = FeatureSpec((1, 2), size=(40, 56), pools=("cls", "mean"), store_dtype="fp32")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    path = tiny_checkpoint(tmp_path_factory.mktemp("weights") / "skip.pth")
    return skipbench.load_backbone(path, residual="skip", device="cpu")


@pytest.fixture
def items(pictures):
    return find_images([pictures])


def test_as_timm_pools(tmp_path, items):
    """On the grid of its position embedding, so that nothing is interpolated."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    vit = VisionTransformer(40, 8, embed_dim=64, depth=3, num_heads=1, num_classes=0).eval()
    torch.nn.init.normal_(vit.cls_token)
    torch.save(vit.state_dict(), tmp_path / "timm.pth")
    backbone = skipbench.load_backbone(tmp_path / "timm.pth", residual="skip", device="cpu")
    spec = FeatureSpec((2,), size=(40, 40), pools=("cls", "mean"), store_dtype="fp32")
    found = compute(backbone, items, spec)
    images = normalise(stack([item.read((40, 40)) for item in items], 8), [(40, 40)] * len(items))
    with torch.inference_mode():
        tokens = vit.forward_features(images).numpy()
    assert np.allclose(found.vectors(["tokens_norm-cls.2"]), tokens[:, 0], atol=1e-4)
    assert np.allclose(found.vectors(["tokens_norm-mean.2"]), tokens[:, 1:].mean(1), atol=1e-4)


def test_names_of_columns():
    assert SPEC.columns == (
        "tokens_norm-cls.1", "tokens_norm-mean.1", "tokens_norm-cls.2", "tokens_norm-mean.2",
    )  # fmt: skip
    assert FeatureSpec((1,)).columns == ("tokens_norm.1",)


@pytest.mark.parametrize("size", [(40, 56), None])
def test_the_store_has_what_the_model_says(backbone, items, tmp_path, size):
    """Images of three sizes, in another order than they are computed in."""
    spec = FeatureSpec((2,), size=size, pools=("cls", "mean"), store_dtype="fp32")
    stored = open_store(backbone, items, spec, cache=tmp_path)
    for row, item in enumerate(items):
        pixels = item.read(size)
        image = normalise(stack([pixels], 8), [pixels.shape[:2]])
        outputs = backbone(image)
        column = (2, "tokens_norm")
        mean = outputs.patches[column].mean((1, 2))[0].numpy()
        assert np.allclose(stored.vectors(["tokens_norm-mean.2"])[row], mean, atol=1e-4)
        token = outputs.class_token[column][0].numpy()
        assert np.allclose(stored.vectors(["tokens_norm-cls.2"])[row], token, atol=1e-4)
        assert np.array_equal(
            stored.read(row, "tokens_norm-cls.2")[0], stored.vectors(["tokens_norm-cls.2"])[row]
        )
    stored.close()


def test_stored_and_in_memory_are_alike(backbone, items, tmp_path):
    with open_store(backbone, items, SPEC, cache=tmp_path) as stored:
        kept = compute(backbone, items, SPEC)
        assert np.array_equal(stored.vectors(SPEC.columns), kept.vectors(SPEC.columns))
        assert stored.vectors(SPEC.columns).shape == (len(items), 4 * 64)
        assert not any(stored.degenerate.values())


def test_only_what_is_missing_is_computed(backbone, items, tmp_path, seen):
    first = FeatureSpec((2,), size=(40, 56), pools=("cls",), store_dtype="fp32")
    assert missing_images(backbone, items, first, tmp_path) == len(items)
    open_store(backbone, items, first, cache=tmp_path).close()
    assert missing_images(backbone, items, first, tmp_path) == 0 and len(seen)
    seen.clear()
    open_store(backbone, items, first, cache=tmp_path).close()
    assert not seen
    open_store(backbone, items, SPEC, cache=tmp_path).close()
    assert sum(count for count, _ in seen) == len(items)


def test_tokens_and_vectors_are_stored_apart(backbone, items):
    pooled, tokens = (
        key_of(describe(backbone, items, FeatureSpec((2,), pools=pools)))
        for pools in ((), ("cls",))
    )
    assert pooled != tokens


def test_vectors_need_little_space(backbone, items, tmp_path):
    source = FeatureSource(str(tmp_path), limit_bytes=7 * 4 * 64 * 4)
    source.features(backbone, items, SPEC, "features").close()
    with pytest.raises(ResourceError, match="need"):
        FeatureSource(str(tmp_path / "b"), limit_bytes=7 * 4 * 64 * 4 - 1).features(
            backbone, items, SPEC, "features"
        )


def test_padding_is_not_averaged():
    """Of a model with four tokens a patch: some lie beyond the image."""
    grid = torch.full((2, 4, 6, 3), 100.0)
    grid[0, :3, :5], grid[1, :2, :6] = 1, 2
    means = pool.mean_of_patches(grid, [(9, 17), (8, 21)], stride=4)
    assert means.tolist() == [[1] * 3, [2] * 3]


def test_a_model_without_a_class_token(backbone):
    patches = {(2, "tokens_norm"): torch.zeros(1, 2, 3, 64)}
    with pytest.raises(UsageError, match="has no class token"):
        pool.class_token(BlockOutputs(patches), 2, "tokens_norm", backbone)
    assert pool.has_class_token(backbone, (40, 56), "tokens_norm")


def test_a_batch_of_another_precision_is_averaged_in_float32():
    grid = torch.full((1, 50, 50, 1), 1.0, dtype=torch.bfloat16)
    grid[:, :25] = 1.0078125
    assert pool.mean_of_patches(grid, [(50, 50)], 1).item() == pytest.approx(1.00390625)


def test_an_extractor_pools_batch_by_batch(backbone, items):
    from skipbench.features.stream import plan_for

    plan = plan_for(backbone, items, SPEC, 4)
    assert len(plan.shards) == 1
    batch = next(Extractor(backbone, SPEC, 3).stream(items, plan))
    assert {value.shape for value in batch.columns.values()} == {(3, 1, 1, 64)}
