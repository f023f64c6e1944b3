"""Text, TOML and Python values become the same values."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipbench.checkpoints import Expected
from skipbench.settings import parsers, plain, shown
from skipbench.settings.parsers import InvalidError


def refusal(parse, value):
    with pytest.raises(InvalidError) as caught:
        parse(value)
    return str(caught.value)


@given(st.integers(1, 10**9))
def test_an_integer_is_itself_in_any_writing(number):
    parse = parsers.integer(1)
    assert parse(number) == parse(str(number)) == parse(f" {number} ") == number


@pytest.mark.parametrize("value", [True, 1.0, 1.5, "1.0", "1_000", "٣", "0x10", "", None, 0, -1])
def test_what_is_no_integer(value):
    assert refusal(parsers.integer(1), value) == "expected an integer of at least 1"


def test_bounds_and_words_are_named():
    assert refusal(parsers.integer(1, 12), 13) == "expected an integer from 1 to 12"
    assert refusal(parsers.integer(1, word="all"), "al") == (
        "expected all or an integer of at least 1"
    )
    assert parsers.integer(1, word="all")("all") == "all"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6, unique=True))
def test_a_list_is_the_same_as_text_and_as_values(numbers):
    parse, text = parsers.integers(0), ",".join(map(str, numbers))
    assert parse(numbers) == parse(tuple(numbers)) == parse(text) == tuple(numbers)
    assert parse(numbers[0]) == (numbers[0],)


@given(st.floats(0.001, 0.999))
def test_a_number_between_bounds(number):
    parse = parsers.number(0, 1)
    assert parse(number) == parse(str(number)) == number
    assert refusal(parse, -number) == "expected a number between 0 and 1"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "-inf", 10**400, True, ""])
def test_what_is_no_number(value):
    refusal(parsers.number(-1, 1), value)
    refusal(parsers.numbers(0, 1, "0.1"), value)


def test_numbers_are_sorted():
    assert parsers.numbers(0, 1, "0.1")("0.5,0.1") == (0.1, 0.5)
    assert parsers.numbers(0, 1, "0.1")([1, 0]) == (0, 1)


def test_a_choice_suggests_the_nearest():
    parse = parsers.choice("skip", "skipless", "auto")
    assert parse("auto") == "auto"
    words = "expected skip, skipless or auto. Did you mean 'skipless'?"
    assert refusal(parse, "skiples") == words
    assert parsers.choices("a", "b")(["b", "a"]) == ("b", "a")
    assert refusal(parsers.choices("a", "b"), 5) == "expected a or b"


@pytest.mark.parametrize(
    ("parse", "value", "which"),
    [
        (parsers.integers(0), "1,0,01", "1"),
        (parsers.numbers(0, 1, "0.1"), "0.5,0.1,5e-1", "0.5"),
        (parsers.choices("a", "b"), ["b", "a", "b"], "b"),
        (parsers.layer_set, "2,5,02", "2"),
        (parsers.layer_sets, ["last", [2, 5], "last "], "last"),
        (parsers.facts({"depth": int}, "depth=12"), ["depth=12", "depth=6"], "depth"),
    ],
)
def test_a_value_that_is_there_twice_is_a_mistake(parse, value, which):
    assert refusal(parse, value) == f"{which} is given twice"


def test_text_is_not_empty():
    assert parsers.text("a b") == "a b" and parsers.text(Path("a/b")) == "a/b"
    assert refusal(parsers.text, "  ") == refusal(parsers.text, 3) == "expected text"
    assert parsers.path("a/b") == Path("a/b")


def test_one_or_several():
    assert parsers.texts("a,b") == ("a,b",)
    assert parsers.texts(["a", Path("b")]) == parsers.texts(iter(["a", "b"])) == ("a", "b")
    assert parsers.several(5) == (5,) and parsers.several(Path("a")) == (Path("a"),)
    assert refusal(parsers.texts, 5) == refusal(parsers.texts, ["a", ""]) == "expected text"


@pytest.mark.parametrize("value", ["448", 448, "64x80", "short:448", "long:448", "native"])
def test_image_sizes(value):
    assert parsers.image_size(value) == str(value)


@pytest.mark.parametrize("value", ["big", "0", "64x", "short:", True, None, [64, 80]])
def test_no_image_sizes(value):
    assert refusal(parsers.image_size, value) == (
        "expected N, HEIGHTxWIDTH, short:N, long:N or native"
    )


def test_sets_of_layers():
    assert parsers.layer_set([2, 5, -1]) == parsers.layer_set("2,5,-1") == "2,5,-1"
    assert parsers.layer_sets(["last", [2, 5], 3]) == ("last", "2,5", "3")
    assert parsers.layer_sets("all") == ("all",) and parsers.layer_sets(-1) == ("-1",)
    assert "Did you mean 'last'?" in refusal(parsers.layer_sets, "lst")
    for value in (1.5, [], [[]], True, {}, "1;2"):
        assert refusal(parsers.layer_sets, value).startswith("expected ")


@pytest.mark.parametrize(
    ("value", "count"), [("50GB", 50 * 10**9), ("500 MB", 5 * 10**8), (1024, 1024), ("0", 0)]
)
def test_amounts_of_space(value, count):
    assert parsers.byte_count(value) == count


@pytest.mark.parametrize("value", ["much", "-5GB", -1, "inf", "1e400", "nan", "5 XB", True, []])
def test_no_amounts_of_space(value):
    assert refusal(parsers.byte_count, value) == "expected an amount of space such as 50GB"


def test_devices():
    for name in ("auto", "cpu", "mps", "cuda", "cuda:3"):
        assert parsers.device(name) == name
    for name in ("gpu", "cuda:", "cuda:x", "cpu:0", "", 0):
        assert refusal(parsers.device, name) == "expected auto, cpu, cuda, cuda:N or mps"


def test_facts():
    parse = parsers.facts({"depth": int, "sha256": str}, "depth=12")
    wanted = {"depth": 12, "sha256": "ab"}
    assert parse(["depth=12", "sha256=ab"]) == parse(wanted) == wanted
    assert parse("depth = 12") == parse({" depth ": "12"}) == {"depth": 12}
    assert parse(Expected(depth=12)) == {"depth": 12}
    assert refusal(parse, "deth=12").endswith("Did you mean 'depth'?")
    assert refusal(parse, "depth=deep") == "depth is an integer, as in depth=12"
    for value in (5, ["depth"], "depth=", [{"depth": 12}]):
        assert refusal(parse, value).startswith(("expected depth, sha256", "depth is"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), ([1, 2], "1,2"), ((), "''"), ("", "''"), (" a", "' a'"), ("a\n", "'a\\n'"),
     ({"a": [1]}, "a=1"), (0.5, "0.5"), (Path("a"), "a")],
)  # fmt: skip
def test_values_in_messages(value, text):
    assert shown(value) == text


def test_values_in_records():
    assert plain({"a": (Path("b"), [1, (2,)])}) == {"a": ["b", [1, [2]]]}
