"""JSON as people write it in configuration files, read together with the line of every key.

RFC 8259, and what VS Code and others allow in such files: comments and a comma before a closing bracket. A
key given twice is reported, as readers of JSON disagree about which one counts.
"""

from __future__ import annotations

import bisect
import json
import re
from typing import Any, NamedTuple

from .problems import KeyPath, Problems, key_text

__all__ = ["MAX_DEPTH", "Document", "read_json"]

MAX_DEPTH = 64
"""Nesting of brackets; a configuration has about five."""

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+ | //[^\n]* | /\*.*?\*/)
    | (?P<string>"(?:[^"\\\x00-\x1f]|\\[^\n])*")
    | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z.+-]))
    | (?P<word>(?:true|false|null)(?![0-9A-Za-z]))
    | (?P<mark>[{}\[\]:,])
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}


class Document(NamedTuple):
    """What a file says."""

    value: Any
    lines: dict[KeyPath, int]
    """Line of each key and list item, counted from 1."""
    repeated: tuple[tuple[KeyPath, int, int], ...] = ()
    """Keys that stand twice in one table: path, line, and the line where it stood first."""


class _Syntax(Exception):
    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


def read_json(text: str, file: str) -> Document:
    """Read the text of a JSON file.

    Raises:
        ConfigProblems: it is not JSON; with the line.
    """
    reader = _Reader(text)
    try:
        return reader.document()
    except _Syntax as fault:
        problems = Problems(file)
        problems.add((), f"not valid JSON: {fault.message}", line=reader.line_at(fault.position))
        problems.raise_if_any()
        raise AssertionError("unreachable") from fault


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.start = 0
        """Where the current token begins."""
        self.lines: dict[KeyPath, int] = {}
        self.repeated: list[tuple[KeyPath, int, int]] = []
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def line_at(self, position: int) -> int:
        return bisect.bisect_left(self._breaks, position) + 1

    def document(self) -> Document:
        kind, token = self._next()
        value = self._value(kind, token, ())
        if self._next()[0] != "end":
            raise _Syntax("more text after the end of the document", self.start)
        return Document(value, self.lines, tuple(self.repeated))

    def _next(self) -> tuple[str, str]:
        """Kind and text of the next token; ``("end", "")`` after the last."""
        while True:
            self.start = self.position
            if self.position >= len(self.text):
                return "end", ""
            match = _TOKEN.match(self.text, self.position)
            if match is None:
                raise _Syntax(self._complaint(), self.position)
            self.position = match.end()
            kind = match.lastgroup or ""
            if kind != "space":
                return kind, match.group()

    def _complaint(self) -> str:
        rest = self.text[self.position : self.position + 2]
        if rest[0] == '"':
            return "a text in quotes does not end on its line"
        if rest[0] in "'\u2018\u2019\u201c\u201d":
            return f'{rest[0]!a} found where the straight double quote (") is wanted'
        if rest == "/*":
            return "a comment is not closed"
        return f"unexpected {rest[0]!a}"

    def _value(self, kind: str, token: str, path: KeyPath) -> Any:
        if kind == "mark" and token in "{[":
            if len(path) >= MAX_DEPTH:
                raise _Syntax(f"nested deeper than {MAX_DEPTH}", self.start)
            return self._object(path) if token == "{" else self._list(path)
        if kind == "string":
            return self._string(token)
        if kind == "number":
            return self._number(token)
        if kind == "word":
            return _WORDS[token]
        if kind == "end":
            raise _Syntax("the file ends in the middle (half written?)", len(self.text))
        raise _Syntax(f"a value is wanted, {token!r} found", self.start)

    def _object(self, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while True:
            kind, token = self._next()
            if token == "}":
                return result
            if kind == "end":
                raise _Syntax("the file ends before a '}' (half written?)", len(self.text))
            if kind != "string":
                raise _Syntax(f"a key in double quotes is wanted, {token!r} found", self.start)
            key = self._string(token)
            here = (*path, key)
            line = self.line_at(self.start)
            if key in result:
                self.repeated.append((here, line, self.lines[here]))
            self.lines[here] = line
            self._want(":", f"after the key {key_text((key,))}")
            kind, token = self._next()
            result[key] = self._value(kind, token, here)
            if self._comma_or("}"):
                return result

    def _list(self, path: KeyPath) -> list[Any]:
        result: list[Any] = []
        while True:
            kind, token = self._next()
            if token == "]":
                return result
            here = (*path, len(result))
            self.lines[here] = self.line_at(self.start)
            result.append(self._value(kind, token, here))
            if self._comma_or("]"):
                return result

    def _want(self, mark: str, where: str) -> None:
        _kind, token = self._next()
        if not token:
            raise _Syntax(f"the file ends {where} (half written?)", len(self.text))
        if token != mark:
            raise _Syntax(f"{mark!r} is wanted {where}, {token!r} found", self.start)

    def _comma_or(self, closing: str) -> bool:
        """True if the bracket closed, False after a comma."""
        kind, token = self._next()
        if kind == "mark" and token in (",", closing):
            return token == closing
        if kind == "end":
            raise _Syntax(f"the file ends before a {closing!r} (half written?)", len(self.text))
        raise _Syntax(f"',' or {closing!r} is wanted", self.start)

    def _string(self, token: str) -> str:
        try:
            text = json.loads(token)
        except ValueError:
            raise _Syntax("a text in quotes holds a wrong escape", self.start) from None
        assert isinstance(text, str)
        return text

    def _number(self, token: str) -> int | float:
        try:
            return float(token) if any(mark in token for mark in ".eE") else int(token)
        except ValueError:  # more digits than Python reads
            raise _Syntax("a number has too many digits", self.start) from None
