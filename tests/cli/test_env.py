"""`skipbench env`."""

import json

import torch


def test_env(cli):
    facts = json.loads(cli("env", "--json").stdout)
    assert (
        facts["packages"]["torch"] == torch.__version__.split("+")[0] or facts["packages"]["torch"]
    )
    assert facts["threads"] == torch.get_num_threads()
    assert {"faiss", "devices", "cache_free", "python"} <= facts.keys()
    assert "torch" in cli("env").stdout


def test_faiss_builds_that_overwrite_each_other_are_named(cli, monkeypatch):
    from skipbench.engine import vectors

    installed = {"faiss-cpu": "1.9", "faiss-gpu": "1.7"}
    monkeypatch.setattr(vectors, "builds", lambda: installed)
    said = json.loads(cli("env", "--json").stdout)["faiss"]
    assert "broken" in said and "pip uninstall -y faiss-cpu faiss-gpu" in said
    installed.pop("faiss-gpu")
    assert json.loads(cli("env", "--json").stdout)["faiss"] == "faiss-cpu 1.9"
