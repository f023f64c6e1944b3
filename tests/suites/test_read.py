"""What a suite may say: mistakes are reported together, each with the path of its key."""

from pathlib import Path

import pytest
import torch
from processes import imported_by

from skipbench import suites
from skipbench.demo import make_weights, small_facts
from skipbench.errors import SkipbenchError
from skipbench.evaluations import evaluations
from skipbench.suites.read import epochs_in, read_suite, settings_keys

pytestmark = pytest.mark.usefixtures("nowhere_else", "ckpt")

HEAD = """\
[[checkpoint]]
path = "skip.pth"
residual = "skip"
"""
QUICK = 'datasets = ["shapes"]\nsize = "64x80"\nlimit = 6\nepochs = 2\nloss_pixels = 64\n'
PROBE = f'\n[[evaluation]]\nkind = "probe"\n{QUICK}'


@pytest.fixture
def ckpt(tmp_path, nowhere_else):
    weights = make_weights("skip", small_facts(width=64, depth=3, patch=8, heads=1))
    path = tmp_path / "skip.pth"
    torch.save(weights, path)
    return path


def mistake(text, name="suite.toml"):
    Path(name).write_text(text)
    with pytest.raises(SkipbenchError) as caught:
        suites.make_plan(name)
    return caught.value


CHECKPOINT, EVALUATION = "checkpoint[1]", "evaluation[1]"


@pytest.mark.parametrize(
    ("old", "new", "where", "words", "code"),
    [
        ('residual = "skip"', 'residual = "skipp"', f"{CHECKPOINT}.residual", "skipp: expected", 2),
        ('residual = "skip"', 'residual = "skipp"', f"{CHECKPOINT}.residual", "mean 'skip", 2),
        ('residual = "skip"', "residul = 1", f"{CHECKPOINT}.residul", "no such key. Did you", 2),
        ('residual = "skip"', 'epochs = "many"', f"{CHECKPOINT}.epochs", "an integer", 2),
        ('residual = "skip"', "epochs = true", f"{CHECKPOINT}.epochs", "an integer", 2),
        ('residual = "skip"', "depth = 0", f"{CHECKPOINT}.depth", "at least 1", 2),
        ('residual = "skip"', 'sha256 = "xyz"', f"{CHECKPOINT}.sha256", "xyz: expected", 2),
        ('residual = "skip"', 'name = ""', f"{CHECKPOINT}.name", "expected text", 2),
        ('path = "skip.pth"\n', "", f"{CHECKPOINT}.path", "missing", 2),
        ("skip.pth", "skpi.pth", f"{CHECKPOINT}.path", "no checkpoint at", 3),
        ("skip.pth", "run/check*.pth", f"{CHECKPOINT}.path", "no file matches", 3),
        ("[[checkpoint]]", "[checkpoint]", "checkpoint", "write [[checkpoint]]", 2),
        ("[[checkpoint]]", "[[checkpoints]]", "checkpoints", "no such key. Did you mean", 2),
        ('kind = "probe"', 'kind = "prob"', f"{EVALUATION}.kind", "mean 'probe'", 2),
        ('kind = "probe"\n', "", f"{EVALUATION}.kind", "missing; expected probe,", 2),
        ('["shapes"]', '["shape"]', f"{EVALUATION}.datasets", "Did you mean 'shapes'", 2),
        ('["shapes"]', "[]", f"{EVALUATION}.datasets", "at least one data set", 2),
        ('datasets = ["shapes"]\n', "", f"{EVALUATION}.datasets", "missing", 2),
        ('["shapes"]', '["voc"]', f"{EVALUATION}.datasets", "was not found", 4),
        ('["shapes"]', '"folder:x"', f"{EVALUATION}.datasets", "is not a folder", 4),
        ('"64x80"', '"big"', f"{EVALUATION}.size", "big: expected N", 2),
        ("limit = 6", "limit = 0", f"{EVALUATION}.limit", "0: expected", 2),
        ("epochs = 2", "epochs = 2.5", f"{EVALUATION}.epochs", "2.5: expected", 2),
        ("epochs = 2", "lr = 'quick'", f"{EVALUATION}.lr", "quick: expected numbers", 2),
        ("epochs = 2", "lr = [1e-3, -1.0]", f"{EVALUATION}.lr", "0.001,-1.0: expected", 2),
        ("epochs = 2", "views = 3", f"{EVALUATION}.views", "3: only for --protocol", 2),
        ("epochs = 2", "views = 0", f"{EVALUATION}.views", "at least 1", 2),
        ("epochs = 2", 'protocol = "papr"', f"{EVALUATION}.protocol", "mean 'paper'", 2),
        ("epochs = 2", 'layers = ["last", "lst"]', f"{EVALUATION}.layers", "mean 'last'", 2),
        ("epochs = 2", "seeds = [-1]", f"{EVALUATION}.seeds", "expected integers", 2),
        ("epochs = 2", "seeds = [1, 1]", f"{EVALUATION}.seeds", "1 is given twice", 2),
        ('["shapes"]', '["shapes", "shapes"]', f"{EVALUATION}.datasets", "is given twice", 2),
        ("limit = 6", "limit = 6\nsample = 3", f"{EVALUATION}.sample", "3: not together", 2),
        ("epochs = 2", "classes = 3", f"{EVALUATION}.datasets", "3", 2),
        ("epochs = 2", 'select = "test"', f"{EVALUATION}.select", "test: expected", 2),
        ("epochs = 2", "norm = 1", f"{EVALUATION}.norm", "1: expected true or false", 2),
        ("epochs = 2", "learning_rate = 1", f"{EVALUATION}.learning_rate", "no such key", 2),
    ],
)
def test_a_mistake_is_named_with_its_path(old, new, where, words, code):
    assert old in HEAD + PROBE
    error = mistake((HEAD + PROBE).replace(old, new, 1))
    [line] = [one for one in str(error).splitlines() if one.startswith(f"suite.toml: {where}: ")]
    assert words in line and error.exit_code == code


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5_000], ids=["deep", "long"])
def test_values_without_an_end(value):
    error = mistake((HEAD + PROBE).replace("epochs = 2", f"epochs = {value}"))
    assert "not TOML" in str(error) and error.exit_code == 2


@pytest.mark.parametrize(("new", "line"), [("epochs = ", 10), ("epochs = 2\nepochs = 3", 11)])
def test_a_mistake_of_syntax_is_named_with_its_line(new, line):
    error = mistake((HEAD + PROBE).replace("epochs = 2", new))
    assert str(error).startswith(f"suite.toml:{line}") and "not TOML" in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD, "suite.toml: evaluation: missing"),
        (
            HEAD.replace("skip.pth", "sk*.pth") + "epochs = 3\n" + PROBE,
            "suite.toml: checkpoint[1].epochs: not allowed with a pattern",
        ),
        (PROBE, "suite.toml: checkpoint: missing"),
        ('device = "gpu"\n' + HEAD + PROBE, "suite.toml: device: gpu: expected"),
        ('cache_limit = "much"\n' + HEAD + PROBE, "suite.toml: cache_limit: much: expected"),
        ('outt = "x"\n' + HEAD + PROBE, "suite.toml: outt: no such key. Did you mean 'out'"),
        (HEAD + PROBE.replace("evaluation", "evalutaion"), "suite.toml: evalutaion: no such key"),
        (HEAD + HEAD + PROBE, "checkpoint[2].name: 'skip.pth' is also checkpoint[1]"),
        (HEAD + (PROBE + 'name = "a"\n') * 2, "evaluation[2].name: 'a' is also evaluation[1]"),
        ("checkpoint = [\n  {path = 1},\n]\n" + PROBE, "suite.toml: checkpoint[1].path: 1"),
        (HEAD + PROBE + PROBE + "tau = 1\n", "suite.toml: evaluation[2].tau: no such key"),
    ],
)
def test_mistakes_of_the_suite_as_a_whole(text, words):
    error = mistake(text)
    assert words in str(error) and error.exit_code == 2


def test_all_mistakes_are_listed_at_once():
    text = HEAD.replace("skip.pth", "gone.pth").replace('"skip"', "7") + PROBE
    lines = str(mistake(text.replace("limit = 6", "limit = 0"))).splitlines()
    paths = [line.split(": ")[1] for line in lines if line.startswith("suite")]
    assert sorted(paths) == ["checkpoint[1].path", "checkpoint[1].residual", "evaluation[1].limit"]
    many = str(mistake(HEAD + PROBE + "".join(f"x{i} = 1\n" for i in range(34))))
    assert many.count("no such key") == 30 and many.endswith("… and 4 more")


def test_a_wrong_kind_does_not_hide_what_else_is_wrong():
    text = HEAD + PROBE.replace("probe", "prob").replace('"shapes"', '"shaps"')
    assert "Did you mean 'probe'" in str(mistake(text)) and "'shaps'" in str(mistake(text))


def test_a_wrong_data_set_does_not_hide_what_cannot_go_together():
    text = f'{HEAD}\n[[evaluation]]\nkind = "tokencut"\ndatasets = ["shaps"]\n'
    error = str(mistake(text + 'method = "lost"\ntau = 0.1\nlimit = 0\n'))
    assert "evaluation[1].tau: 0.1: only for" in error and "'shaps'" in error
    assert "evaluation[1].limit" in error


def test_a_missing_data_set_is_reported_once():
    text = HEAD + PROBE.replace("shapes", "voc") + PROBE.replace("shapes", "voc")
    error = mistake(text)
    assert error.exit_code == 4 and "--data-root" in str(error)
    assert str(error).startswith("suite.toml: evaluation[1].datasets: ")
    assert str(error).count("was not found") == 1


def test_a_doubled_name_is_listed_with_the_other_mistakes():
    head = HEAD + 'name = "a"\n'
    text = head + head.replace("skip.pth", "gone.pth") + PROBE + 'name = "b"\n'
    text += PROBE.replace("limit = 6", "limit = 0") + 'name = "b"\n'
    lines = str(mistake(text)).splitlines()
    for words in (
        "checkpoint[2].path: no checkpoint at", "checkpoint[2].name: 'a' is also checkpoint[1]",
        "evaluation[2].limit: 0", "evaluation[2].name: 'b' is also evaluation[1]",
    ):  # fmt: skip
        assert any(line.startswith(f"suite.toml: {words}") for line in lines), words


@pytest.mark.parametrize("again", ["skip.pth", "link.pth", "sk*.pth"])
def test_a_file_that_is_named_twice(ckpt, again):
    """Found in the suite: the second would fail after the first has run."""
    Path("link.pth").symlink_to(ckpt)
    second = HEAD.replace("skip.pth", again) + 'name = "b"\n'
    error = mistake(HEAD + second + PROBE)
    assert error.exit_code == 2 and str(error).startswith("suite.toml: checkpoint[2].path: ")
    assert "is also in checkpoint[1]" in str(error)
    unclear = second.replace('"skip"', '"auto"')
    assert "is also in checkpoint[1]" in str(mistake(HEAD + unclear + PROBE))
    Path("suite.toml").write_text(HEAD + second.replace('"skip"', '"skipless"') + PROBE)
    assert len(read_suite("suite.toml").checkpoints) == 2


def test_no_suite_and_no_text(cli):
    Path("suite.toml").write_text("")
    missing = cli("run", "suit.toml")
    assert missing.exit_code == 2 and "Did you mean 'suite.toml'" in missing.stderr
    Path("latin.toml").write_bytes(b"# one\nname = '\xe9'\n")
    assert "latin.toml:2: not UTF-8" in cli("run", "latin.toml").stderr


def test_a_wrong_suite_is_answered_without_torch(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(HEAD + PROBE + "lr = 'quick'\n")
    assert not {"torch", "timm"} & imported_by(["run", str(path)], 2, tmp_path)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("tau = 2", "evaluation[1].tau: 2: expected a number between -1 and 1"),
        ("eps = 0.0", "evaluation[1].eps: 0.0: expected a number between 0 and 1"),
        ('feature = "kees"', "Did you mean 'keys'"),
        ('method = "lost"\ntau = 0.1', "evaluation[1].tau: 0.1: only for --method tokencut"),
        ('size = "big"', "evaluation[1].size: big"),
        ('layers = "lst"', "evaluation[1].layers: lst"),
        ("epochs = 3", "evaluation[1].epochs: no such key"),
        ('images = "a.png"', "evaluation[1].images: no such key"),
    ],
)
def test_a_mistake_in_tokencut_is_named(key, words):
    text = f'{HEAD}\n[[evaluation]]\nkind = "tokencut"\ndatasets = ["shapes"]\n{key}\n'
    assert words in str(mistake(text))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ('fit = "al"', "Did you mean 'all'"),
        ("components = 0", "evaluation[1].components: 0"),
        ("components = 13", "evaluation[1].components"),
        ('background = "msk"', "Did you mean 'mask'"),
        ('upsample = "cubic"', "evaluation[1].upsample: cubic"),
        ('size = "big"', "evaluation[1].size: big"),
        ('layers = "lst"', "evaluation[1].layers: lst"),
        ("align = true", "evaluation[1].align: no such key"),
        ("epochs = 3", "evaluation[1].epochs: no such key"),
    ],
)
def test_a_mistake_in_pca_is_named(key, words):
    text = f'{HEAD}\n[[evaluation]]\nkind = "pca"\ndatasets = ["shapes"]\n{key}\n'
    assert words in str(mistake(text))


@pytest.mark.parametrize("evaluation", evaluations().values(), ids=list(evaluations()))
def test_every_setting_is_a_key_or_comes_from_the_suite(evaluation):
    from_the_suite = {
        "out", "data_root", "cache", "cache_limit", "device", "force", "residual", "weights",
        "heads", "expected", "position_rule", "preprocess", "rope_keys", "labels", "log",
    }  # fmt: skip
    target = {"ckpt", "ckpts", "dataset", "images"}
    keys = set(settings_keys(evaluation))
    rest = set(evaluation.settings.options()) - keys
    assert rest <= from_the_suite | target | set(evaluation.fixed_in_suites)
    assert not keys & (from_the_suite | target)


# -- checkpoints


def test_a_pattern_is_a_checkpoint_for_each_file(ckpt):
    folder = ckpt.parent / "run"
    folder.mkdir()
    for name in ("checkpoint9", "checkpoint0100", "checkpoint20", "checkpoint"):
        (folder / f"{name}.pth").write_bytes(b"")
    Path("suite.toml").write_text(HEAD.replace("skip.pth", "run/check*.pth") + PROBE)
    entries = read_suite("suite.toml").checkpoints
    assert [e.name for e in entries if e.name != "checkpoint"] == [
        "checkpoint9", "checkpoint20", "checkpoint0100",
    ]  # fmt: skip
    assert {e.name: e.name_epoch for e in entries} == {
        "checkpoint": None, "checkpoint9": 9, "checkpoint20": 20, "checkpoint0100": 100,
    }  # fmt: skip
    (folder / "other").mkdir()
    (folder / "other" / "vit_s16.pth").write_bytes(b"")
    (folder / "vit_s16.pth").write_bytes(b"")
    text = HEAD.replace("skip.pth", "run/**/vit*.pth") + 'name = "a"\n'
    Path("suite.toml").write_text(text + PROBE)
    entries = read_suite("suite.toml").checkpoints
    assert {e.name: e.name_epoch for e in entries} == {"a-vit_s16": None, "a-other/vit_s16": None}
    assert [e.group for e in entries] == ["a", "a"]


@pytest.mark.parametrize(
    ("names", "epochs"),
    [
        (("step1000", "step2000"), [1000, 2000]),
        (("deep12_100", "deep12_200"), [100, 200]),
        (("m_ep5_s16", "m_ep10_s16"), [5, 10]),
        (("vit-epoch_7", "vit-epoch_8"), [7, 8]),
    ],
)
def test_numbers_in_names(names, epochs):
    assert epochs_in([f"run/{name}.pth" for name in names]) == epochs


def test_a_folder_with_brackets_and_a_mark_at_the_beginning(tmp_path, ckpt):
    folder = tmp_path / "run [a]"
    folder.mkdir()
    ckpt.rename(folder / "checkpoint1.pth")
    text = "\ufeff" + HEAD.replace("skip.pth", "check*.pth") + PROBE
    (folder / "suite.toml").write_text(text, encoding="utf-8")
    (entry,) = read_suite(folder / "suite.toml").checkpoints
    assert Path(entry.path) == folder / "checkpoint1.pth"
