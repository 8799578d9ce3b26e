"""The parts of the command that need no server: text made visible, arguments, exit codes, the choice of servers."""

from __future__ import annotations

import json
from typing import Any
from unicodedata import category

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings import errors, exposed_name
from moorings.cli.arguments import BadArguments, read_arguments
from moorings.cli.exit_codes import ExitCode, exit_code_of, table
from moorings.cli.hosting import servers_of_tool
from moorings.cli.output import error_document
from moorings.cli.text import json_text, visible, visible_lines
from moorings.errors import UnknownTool


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 日本", "plain ü 日本"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]8;;http://x\x07link", "\\x1b]8;;http://x\\x07link"),
        ("\x9b2J", "\\x9b2J"),
        ("a\xa0b", "a\\xa0b"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\U000e0041\U000e007f", "\\U000e0041\\U000e007f"),
        ("a\u2028b\u00adc\u200bd\ufeff", "a\\u2028b\\xadc\\u200bd\\ufeff"),
        ("\u3164\ufe00\U000e0100\u200d", "\\u3164\\ufe00\\U000e0100\\u200d"),
        ("\ud800\x7f", "\\ud800\\x7f"),
        ("\\x1b", "\\x1b"),
    ],
)
def test_text_of_a_server_on_one_line(text: str, shown: str) -> None:
    """F16.7"""
    assert visible(text) == shown


def test_text_of_a_server_on_several_lines() -> None:
    assert visible_lines("a\r\nb\tc\rd\x1b[A") == "a\nb\tc\\rd\\x1b[A"
    assert visible_lines("می\u200cخواهم ❤\ufe0f") == "می\u200cخواهم ❤\ufe0f"


@given(st.text())
def test_nothing_a_terminal_obeys_is_left(text: str) -> None:
    assert visible(text).isprintable()
    kept = visible_lines(text)
    assert all(character in "\n\t\u200c\u200d" or category(character)[0] not in "C" for character in kept)
    assert not {"\u2028", "\u2029"} & set(kept)


UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_is_the_same_document_with_nothing_to_obey_in_it(document: Any) -> None:
    for indent in (False, True):
        for ascii_only in (False, True):
            text = json_text(document, indent=indent, ascii_only=ascii_only)
            assert json.loads(text) == document
            assert not {category(character) for character in text.replace("\n", "")} & UNSAFE
            assert indent or "\n" not in text
            assert text.isascii() or not ascii_only


def test_json_with_raw_parts_unknown_blocks_and_broken_text() -> None:
    class Unknown:
        raw = msgspec.Raw(b'{"type":"new","x":"\\u001b"}')

    text = json_text({"a": [Unknown()], "b": msgspec.Raw(b"[1, 2]"), "c": "\ud800"})
    assert json.loads(text.replace("\ud800", "")) == {
        "a": [{"type": "new", "x": "\x1b"}],
        "b": [1, 2],
        "c": "\\ud800",
    }


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ([], {}),
        (['{"a": [1, {"b": null}]}'], {"a": [1, {"b": None}]}),
        (["a=1", "b=x", "c=true", "d=[1,2]", 'e="q"', "f=", "g=007", "h=1.50", "i=null"],
         {"a": 1, "b": "x", "c": True, "d": [1, 2], "e": "q", "f": "", "g": "007", "h": 1.5, "i": None}),
        (['a:="007"', "b:=3"], {"a": "007", "b": 3}),
        (["url=http://x/?a=b", "ns:key=v", "f=@file", "t=a b\nc", "x=[1", "n=NaN", "big=1e999"],
         {"url": "http://x/?a=b", "ns:key": "v", "f": "@file", "t": "a b\nc", "x": "[1", "n": "NaN", "big": "1e999"}),
        (["n=123456789012345678901234567890"], {"n": 123456789012345678901234567890}),
    ],
)  # fmt: skip
def test_arguments(words: list[str], arguments: dict[str, Any]) -> None:
    assert read_arguments(words) == arguments


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["x"], "neither key=value nor a JSON object"),
        (["=1"], "no key"),
        ([":=1"], "no key"),
        (["a=1", "a=2"], "given twice"),
        (["a=1", "a:=2"], "given twice"),
        (["a:=x"], "the value of 'a' is not valid JSON"),
        (["{"], "the arguments are not valid JSON"),
        (['{"a":1}', "b=2"], "not both"),
        (["a=\udcff"], "not valid UTF-8"),
        (["\udcff=1"], "not valid UTF-8"),
        (["[1]"], "neither"),
        (["a:=" + "[" * 100_000], "not valid JSON"),
    ],
)
def test_words_that_are_no_arguments(words: list[str], part: str) -> None:
    with pytest.raises(BadArguments, match=part):
        read_arguments(words)


NAMES = st.text(alphabet="ab_-. ü", min_size=1, max_size=8) | st.text(min_size=1, max_size=80)


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), NAMES, st.data())
def test_the_server_of_a_tool_is_always_among_those_started(
    names: list[str], tool: str, data: st.DataObject
) -> None:
    server = data.draw(st.sampled_from(names))
    assert server in servers_of_tool(exposed_name(server, tool), names)


def test_a_plain_name_starts_its_own_server_alone() -> None:
    names = ["git", "git-hub", "gi", "files", "a.b", "a_b", "a"]
    assert servers_of_tool("git__status", names) == ["git"]
    assert servers_of_tool(exposed_name("a.b", "x"), names) == ["a.b", "a_b"]
    with pytest.raises(UnknownTool, match="SERVER__TOOL"):
        servers_of_tool("status", names)


def every_error() -> list[type[errors.MooringsError]]:
    found = []
    todo: list[type[errors.MooringsError]] = [errors.MooringsError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += kind.__subclasses__()
    return found


def made(kind: type[errors.MooringsError]) -> errors.MooringsError:
    if issubclass(kind, errors.NeedsLogin | errors.LoginFailed):
        return kind("it wants a login", server="s", reason="revoked", fix="log in")
    if issubclass(kind, errors.CallError):
        return kind(
            "it \x1b[31mended", server="s", tool="t", sent=True, elapsed=1.0, allowed=2.0, fix="mend it"
        )
    if issubclass(kind, errors.RunTimeout):
        return kind("it ended", elapsed=1.0, allowed=2.0)
    if issubclass(kind, errors.RequiredServerMissing):
        return kind("it ended", missing={"s": "why"})
    if issubclass(kind, errors.SkillMismatch):
        return kind("it ended", server="s", skill="skill://a/SKILL.md", uri="skill://a/b", rule="size")
    if issubclass(kind, errors.LoginFileError):
        return kind("it ended", reason="damaged", file="f")
    if kind.__name__ == "ConfigProblems":
        from moorings.config import ConfigProblems, Problem

        return ConfigProblems([Problem(key="a", line=1, message="it ended")], file="f")
    return kind("it ended", server="s")


CODES = {
    "ConfigError": 2,
    "ConfigProblems": 2,
    "MisuseError": 2,
    "LoginFileError": 2,
    "WrongLoopError": 2,
    "HostClosedError": 2,
    "StartError": 3,
    "StartTimeout": 3,
    "StoreFailed": 3,
    "RefreshFailed": 3,
    "CommandNotFound": 3,
    "ServerDied": 3,
    "RequiredServerMissing": 3,
    "NotSent": 3,
    "Refused": 4,
    "NeedsLogin": 4,
    "LoginFailed": 4,
    "CallTimeout": 5,
    "RunTimeout": 5,
    "AmbiguousDelivery": 6,
    "UnknownServer": 7,
    "UnknownTool": 7,
    "UnknownResource": 7,
    "CallCancelled": 130,
}


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_its_exit_code_and_is_json(kind: type[errors.MooringsError]) -> None:
    error = made(kind)
    code = exit_code_of(error)
    assert code == CODES.get(kind.__name__, 70)
    document = json.loads(json_text(error_document(error, code)))
    assert document["code"] == error.code
    assert document["message"] == error.message
    assert document["exit_code"] == code
    assert {"server", "fix"} <= set(document)
    assert document.get("reason") == getattr(error, "reason", None)


def test_the_table_of_exit_codes_is_complete() -> None:
    told = {int(line.split()[0]) for line in table().splitlines()}
    assert told == set(ExitCode) - {ExitCode.PIPE}
    assert exit_code_of(RuntimeError()) == ExitCode.INTERNAL
