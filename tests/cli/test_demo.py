"""`skipbench demo`: every evaluation, on weights made on the spot."""

from processes import Forked

from skipbench.evaluations import evaluations


def test_demo(tmp_path):
    done = Forked(["demo", "--out", "demo"], tmp_path)
    assert done.wait(900) == 0, done.output
    shown, folder = done.output, tmp_path / "demo"
    assert "weights look skip:" in shown and "weights look skipless:" in shown
    assert (folder / "skip.pth").exists() and (folder / "skipless.safetensors").exists()
    assert (folder / "shapes.png").stat().st_size > 10_000
    assert len(list((folder / "results").glob("probe-shapes-*.json"))) == 8
    assert "multiscale" in shown and "untrained" in shown
    assert "B − A" in shown and "0 skipless" in shown
    page = (folder / "report.html").read_text()
    assert shown.strip().endswith("demo/report.html") and len(page) > 100_000
    for evaluation in evaluations().values():
        assert list(folder.rglob(f"{evaluation.name}-shapes-*.json")), evaluation.name
        assert evaluation.title in page
