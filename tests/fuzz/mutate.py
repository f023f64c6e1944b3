"""Damage: to bytes, as a bad disk, a cut download or an attacker does it; to JSON, by value."""

import copy
import re

import hypothesis
from hypothesis import strategies as st

TOKEN = re.compile(rb'"[^"\n]*"|[\w.+-]+|[^\w\s]')
WORDS = (
    b"", b"0", b"-1", b"1e999", b"nan", b"null", b"true", b'""', b'"\\ud800"', b"[]", b"{}",
    b"9" * 5000, b"[" * 50_000, b'{"a":' * 50_000, b"\x00", b"\xff", b"\r\n", b"../../x", b"1_0",
)  # fmt: skip


def length(rng, part):
    """Another number, where one of up to 8 bytes might be."""
    order, size = rng.choice(("little", "big")), min(len(part), rng.choice((1, 2, 4, 8)))
    old, most = int.from_bytes(part[:size], order), 256**size - 1
    new = rng.choice((old + 1, old - 1, 2 * old, 0, most, most // 2)) & most
    return new.to_bytes(size, order) + part[size:]


def token(rng, data, words):
    """A word, a number or a sign of a text becomes another one."""
    found = list(TOKEN.finditer(data[:20_000])) or [re.match(b"", data)]
    one, new = rng.choice(found), rng.choice((rng.choice(words), rng.choice(found)[0]))
    return data[: one.start()] + new + data[one.end() :]


def once(rng, data, words):
    # Headers and tables of contents more often than what lies between them.
    low, high = rng.choice(((0, len(data)), (0, 512), (len(data) - 256, len(data))))
    at = min(rng.randint(max(low, 0), high), len(data) - 1)
    end = at + rng.choice((1, 2, 4, 8, 64, 512))
    before, part, after = data[:at], data[at:end], data[end:]
    ways = {
        "flip": lambda: before + bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:] + after,
        "cut": lambda: before,
        "lose": lambda: before + after,
        "repeat": lambda: before + part * rng.choice((2, 2, 100)) + after,
        "swap": lambda: before + after[: len(part)] + part + after[len(part) :],
        "overwrite": lambda: before + rng.choice((bytes, rng.randbytes))(len(part)) + after,
        "insert": lambda: before + rng.choice(words) + part + after,
        "length": lambda: before + length(rng, part) + after,
        "token": lambda: token(rng, data, words),
    }
    return ways[rng.choice((*ways, "flip", "token"))]()


def damaged(rng, data, words=()):
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = once(rng, data or b"\0", (*WORDS, *words))
    return data


# -- documents

plain = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, 1, -1, 0.5, 1e308, "", "1", "../x", "\x1b[31m", "\ud800", "a\nb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def places(tree):
    """(list or dictionary, index or key) of every value."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys if isinstance(tree, dict | list) else ():
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from places(tree[key])


@st.composite
def changed(draw, tree):
    """With values removed, replaced, or put where another one was."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        parent, key = draw(st.sampled_from(list(places(tree)) or [({0: 0}, 0)]))
        how = draw(st.sampled_from(["new", "new", "remove", "twice", "other"]))
        if how == "remove":
            del parent[key]
        elif how == "twice" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            others = list(parent.values() if isinstance(parent, dict) else parent)
            parent[key] = draw(plain) if how == "new" else draw(st.sampled_from(others))
            parent[key] = copy.deepcopy(parent[key])
    return tree


def documents(trees, seed, count):
    found = []
    given = hypothesis.given(st.sampled_from(trees).flatmap(changed))
    settings = hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    hypothesis.seed(seed)(settings(given(lambda tree: found.append(tree))))()
    return found[:count]
