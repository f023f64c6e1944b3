"""`skipbench extract` and `skipbench cache`."""

import json

import skipbench


def test_extract_list_and_clear(cli, skip_ckpt, pictures, tmp_path):
    arguments = ["extract", pictures, "--ckpt", skip_ckpt, "--layers", "all", "--size", "native"]
    first = cli(*arguments, "--tensor", "keys", "--tensor", "tokens", "--json")
    assert first.exit_code == 0, first.output
    summary = json.loads(first.stdout)
    assert (
        summary["images"] == 7
        and "keys.2" in summary["columns"]
        and "tokens.0" in summary["columns"]
    )
    assert "positions of 14×14 patches interpolated to each image's grid (offset)" in first.stderr
    assert summary["degenerate"]["keys.2"] == 0
    again = cli(*arguments, "--tensor", "keys")
    assert (
        "found in the cache" in again.stderr and "7 images, keys.0, keys.1, keys.2" in again.stdout
    )
    listed = json.loads(cli("cache", "list", "--json").stdout)
    assert len(listed) == 1 and listed[0]["complete"] and listed[0]["bytes"] > 1000
    assert "skip.pth" in cli("cache", "list").stdout
    assert cli("cache", "clear", listed[0]["key"][:6], "--yes").exit_code == 0
    assert json.loads(cli("cache", "list", "--json").stdout) == []
    assert "nothing stored" in cli("cache", "list").stdout
    sure = ("--heads", "1", "--position-rule", "offset", "-q")
    limited = cli(
        "extract", pictures, "--ckpt", skip_ckpt, "--limit", "2", "--size", "24x40", *sure
    )
    assert limited.stdout.startswith("2 images") and limited.stderr == ""


def test_clear_asks_only_a_person(cli, skip_ckpt, pictures):
    assert cli("extract", pictures, "--ckpt", skip_ckpt, "--size", "24x40").exit_code == 0
    done = cli("cache", "clear")
    assert done.exit_code == 2 and "--yes" in done.stderr
    assert len(json.loads(cli("cache", "list", "--json").stdout)) == 1


def test_a_failure_before_anything_is_stored_leaves_nothing(cli, skip_ckpt, pictures):
    (pictures / "0.png").write_bytes(b"no picture")
    assert cli("extract", pictures, "--ckpt", skip_ckpt, "--size", "24x40").exit_code == 4
    assert json.loads(cli("cache", "list", "--json").stdout) == []


def test_python_twin(skip_ckpt, pictures, tmp_path):
    backbone = skipbench.load_backbone(skip_ckpt, device="cpu")
    with skipbench.extract(backbone, pictures, size="native", cache=tmp_path / "c") as store:
        assert store[0]["tokens_norm.2"].shape == (5, 7, 64)
