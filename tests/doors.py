"""One setting through all three doors: the command line, a suite and Python."""

from pathlib import Path

import pytest

import skipbench
from skipbench.errors import UsageError
from skipbench.settings import shown


def refusals(cli, name, keys, *arguments):
    """What each door says of wrong settings, without the name of the setting in front.

    keys: {"tau": 0.3}, the one that is wrong first; arguments: the same for the command line.
    """
    key = next(iter(keys))
    done = cli(name, "--ckpt", weights_file(), "--dataset", "shapes", *arguments)
    assert done.exit_code == 2, done.stderr
    return [
        without(done.stderr.strip(), f"skipbench: {arguments[0]} "),
        without(suite_refusal(cli, name, keys), f"skipbench: suite.toml: evaluation[1].{key}: "),
        without(python_refusal(name, keys), f"{arguments[0]} "),
    ]


def weights_file():
    """Its contents do not matter: nothing is to be read before the settings are checked."""
    path = Path("weights.pth")
    path.write_bytes(b"no weights")
    return path


def suite_refusal(cli, name, keys):
    lines = "".join(f"{key} = {toml(value)}\n" for key, value in keys.items())
    Path("suite.toml").write_text(
        f'[[checkpoint]]\npath = "{weights_file()}"\n'
        f'[[evaluation]]\nkind = "{name}"\ndatasets = ["shapes"]\n{lines}'
    )
    done = cli("run", "suite.toml")
    assert done.exit_code == 2, done.stderr
    return done.stderr.strip()


def python_refusal(name, keys):
    with pytest.raises(UsageError) as raised:
        getattr(skipbench, name)(weights_file(), "shapes", **keys)
    return str(raised.value)


def toml(value):
    if isinstance(value, str):
        return f'"{value}"'
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else shown(value)


def without(text, front):
    assert text.startswith(front), text
    return text.removeprefix(front)
