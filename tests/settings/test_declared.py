"""What holds for every setting of every command, whoever declared it."""

import json
import re
from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
from declared import others, wrong_text
from hypothesis import given
from hypothesis import strategies as st

import skipbench.cli  # noqa: F401 - all commands and their settings
from skipbench.errors import SkipbenchError
from skipbench.evaluations import evaluations
from skipbench.settings import PANELS, Settings, flag_of, plain, shown
from skipbench.settings.parsers import InvalidError

WIDEST = 11  # characters of a metavar: what is left in its column at 80


def groups(base=Settings):
    for group in base.__subclasses__():
        if is_dataclass(group) and group.__module__.startswith("skipbench."):
            yield group
        yield from groups(group)


def declared():
    """Each once, by the group that declares it; others inherit it."""
    seen = set()
    for group in groups():
        for name, option in group.options().items():
            if id(option) not in seen:
                seen.add(id(option))
                yield f"{group.__name__}.{name}", (group, name, option)


ALL = dict(declared())
EVERY = pytest.mark.parametrize("setting", ALL)

plain_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(
    plain_values | st.integers(10**300, 10**400) | st.dates(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside),
    max_leaves=4,
)


@EVERY
def test_it_is_written_for_a_page_of_help(setting):
    _, name, option = ALL[setting]
    assert option.panel in PANELS and (option.argument or len(option.metavar) <= WIDEST)
    assert option.help.endswith((".", "…")) and "\n" not in option.help
    assert re.fullmatch(r"--[a-z][a-z-]*|[A-Z_]+", flag_of(name, option))


@EVERY
def test_its_default_is_a_value_that_it_takes(setting):
    group, name, option = ALL[setting]
    usual = group.defaults().get(name)
    if usual not in (None, (), {}):
        assert option.parse(usual) == usual
        json.dumps(plain(usual))


@EVERY
def test_what_it_takes_it_takes_again(setting):
    """A value that was parsed means the same: a call from a record, or from Python."""
    group, name, option = ALL[setting]
    for value in others(option, group.defaults().get(name)):
        parsed = option.parse(value)
        assert option.parse(parsed) == parsed
        assert option.parse(plain(parsed)) == parsed


@given(anything)
def test_whatever_is_given_is_taken_or_refused(value):
    for _, _, option in ALL.values():
        try:
            option.parse(value)
        except (InvalidError, SkipbenchError) as error:
            assert str(error).strip()


@EVERY
def test_text_and_value_are_refused_alike(setting):
    group, name, option = ALL[setting]
    text, words = wrong_text(option) or ("", "")
    if text:
        values, problems = group.parse({name: text})
        assert not values
        assert str(problems[name]) == f"{flag_of(name, option)} {shown(text)}: {words}"


@pytest.mark.parametrize("name", evaluations())
def test_settings_of_an_evaluation(name):
    evaluation = evaluations()[name]
    aim = evaluation.target(["x.pth"], "shapes")
    usual = evaluation.settings.make(aim)
    with pytest.raises(FrozenInstanceError):
        setattr(usual, fields(usual)[0].name, "other")
    assert set(usual.changed()) == set(aim)
    assert evaluation.settings.make({**dict.fromkeys(usual.defaults()), **aim}) == usual
    for missing in aim.keys() - usual.defaults().keys():
        with pytest.raises(SkipbenchError, match="is required"):
            evaluation.settings.make({k: v for k, v in aim.items() if k != missing})


@pytest.mark.parametrize("name", evaluations())
def test_the_call_has_what_was_changed_if_it_can_move_the_number(name):
    evaluation, told = evaluations()[name], 0
    aim = evaluation.target(["x.pth"], "shapes")
    usual = evaluation.settings.make(aim).call()
    for key, option in evaluation.settings.options().items():
        for value in others(option, evaluation.settings.defaults().get(key))[:1]:
            try:
                made = evaluation.settings.make({**aim, key: value})
            except SkipbenchError:
                continue  # goes only with another setting
            new = {k: v for k, v in made.call().items() if k not in usual}
            if key not in aim:
                assert set(new) == ({key} if option.moves else set()), key
                told += 1
            assert evaluation.settings.make({**aim, **new}).call() == {**usual, **new}
            json.dumps(made.call())
    assert told > 15
