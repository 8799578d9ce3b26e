"""The places of keys: every key of every valid file has its line, in both formats."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.config.json_text import read_json
from moorings.config.problems import KeyPath, key_text, nearest
from moorings.config.toml_text import toml_lines
from moorings.config.units import duration, size

TOML = '''
a = 1                 # 2
"b c".d = "x"         # 3
[t]                   # 4
list = [              # 5
  "one", # ] comment  # 6
  """two
  ] = """, 'th]ree',  # 8
  { x = 1, y = [2] }, # 9
]
inline = { e = "1", 'f.g' = 2, h.i = 3 } # 11
text = """
[not.a.table]
key = "no"""" # the text ends in a quote
[[rows]]              # 15
n = 1
[rows.sub]
m = 1.5               # 18
[[rows]]
n = 1979-05-27 07:32:00
[ q . "r" ]           # 21
s = \'\'\'
\'\'\'
last = true           # 24
'''

PLACES = {
    ("a",): 2,
    ("b c",): 3,
    ("b c", "d"): 3,
    ("t",): 4,
    ("t", "list"): 5,
    ("t", "list", 0): 6,
    ("t", "list", 1): 7,
    ("t", "list", 2): 8,
    ("t", "list", 3): 9,
    ("t", "list", 3, "x"): 9,
    ("t", "list", 3, "y", 0): 9,
    ("t", "inline", "e"): 11,
    ("t", "inline", "f.g"): 11,
    ("t", "inline", "h", "i"): 11,
    ("t", "text"): 12,
    ("rows",): 15,
    ("rows", 0): 15,
    ("rows", 0, "sub", "m"): 18,
    ("rows", 1): 19,
    ("rows", 1, "n"): 20,
    ("q", "r", "s"): 22,
    ("q", "r", "last"): 24,
}


def paths_of(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    pairs: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return {path} - {()} | {deeper for key, part in pairs for deeper in paths_of(part, (*path, key))}


def test_places_in_toml() -> None:
    lines = toml_lines(TOML)
    assert {path: lines.get(path) for path in PLACES} == PLACES
    assert set(lines) == paths_of(tomllib.loads(TOML))


@pytest.mark.parametrize("text", ["= nonsense", "a = [1", "a = {", "[a", 'a = "', "a = \n", "a.", "]"])
def test_the_scanner_of_toml_stops_at_what_it_does_not_understand(text: str) -> None:
    toml_lines("first = 1\n" + text)


KEYS = st.text(alphabet=st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from([None, 2]))
def test_json_is_read_as_the_standard_library_reads_it_with_a_line_for_every_key(
    value: dict[str, Any], indent: int | None
) -> None:
    text = json.dumps(value, indent=indent)
    document = read_json(text, "x.json")
    assert document.value == value
    assert set(document.lines) == paths_of(value)
    assert not document.repeated


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_every_key_of_toml_has_a_line(value: dict[str, Any]) -> None:
    text = "".join(f"{json.dumps(key)} = {as_toml(part)}\n" for key, part in value.items())
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # what JSON escapes and TOML does not take: surrogate pairs, DEL
        return
    lines = toml_lines(text)
    assert set(lines) == paths_of(parsed)
    assert [lines[(key,)] for key in value] == list(range(1, len(value) + 1))


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_toml(part) for part in value) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else json.dumps(value)


@given(st.text(alphabet='{}[]:,"\\/* \n1a', max_size=40))
def test_any_text_is_json_or_an_error_with_a_line(text: str) -> None:
    from moorings.config import ConfigProblems

    try:
        read_json(text, "x.json")
    except ConfigProblems as problems:
        assert problems.line is not None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("servers", "git", "args", 0), "servers.git.args[0]"),
        (("servers", "a.b", "x"), 'servers."a.b".x'),
        (("servers", 'q"\x1b'), 'servers."q\\"\\x1b"'),
        (("ü",), '"\\xfc"'),
    ],
)
def test_key_paths_as_text(path: KeyPath, text: str) -> None:
    assert key_text(path) == text


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("comand", "command"),
        ("Command", "command"),
        ("connectTimeout", "connect_timeout"),
        ("zzz", None),
        ("", None),
    ],
)
def test_the_nearest_word(word: str, known: str | None) -> None:
    assert nearest(word, ["command", "connect_timeout", "args"]) == known


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (1.5, 1.5),
        ("2m", 120),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1D", 86400),
        (" 3s ", 3),
        ("7", 7),
        ("1.5m", 90),
    ],
)
def test_times(value: Any, seconds: float) -> None:
    assert duration(value) == seconds


@pytest.mark.parametrize(
    "value",
    ["", "s", "3 apples", "1e3", "٣s", "--3", None, [], True, float("nan"), float("inf"), 10**400, "9" * 30],
)
def test_no_times(value: Any) -> None:
    with pytest.raises(ValueError, match=r"time|year"):
        duration(value)


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (0, 0),
        (1024, 1024),
        (1e3, 1000),
        ("16MiB", 1 << 24),
        ("64 kib", 1 << 16),
        ("1.5KiB", 1536),
        ("10MB", 10**7),
        ("5", 5),
    ],
)
def test_sizes(value: Any, amount: int) -> None:
    assert size(value) == amount
    assert isinstance(size(value), int)


@pytest.mark.parametrize(
    "value", ["", "16M", "x", "-1", -1, 0.5, "0.3B", True, None, float("inf"), 10**400, "9999GiB"]
)
def test_no_sizes(value: Any) -> None:
    with pytest.raises(ValueError, match=r"size|bytes|TiB"):
        size(value)
