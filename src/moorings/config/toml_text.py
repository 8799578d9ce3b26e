"""TOML read by the standard library, and the line of every key found by a small scanner.

``tomllib`` gives values and no places. The scanner walks text that ``tomllib`` has already accepted, so it
need not judge it: it only follows headers, keys, strings and brackets. Where it does not understand
something it stops, and what comes after has no line.
"""

from __future__ import annotations

import re
import tomllib

from .json_text import Document
from .problems import KeyPath, Problems

__all__ = ["read_toml", "toml_lines"]

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r"""
    \"\"\"(?:[^\\]|\\.)*?\"{3,5}   # up to two quotes may stand before the closing three
    | '''.*?'{3,5}
    | "(?:[^"\\\n]|\\.)*"
    | '[^'\n]*'
    """,
    re.VERBOSE | re.DOTALL,
)
_OTHER_VALUE = re.compile(r"[^,\]}#\n]+")
_LINE_IN_MESSAGE = re.compile(r"at line (\d+)")


def read_toml(text: str, file: str) -> Document:
    """Read the text of a TOML file.

    Raises:
        ConfigProblems: it is not TOML; with the line if ``tomllib`` tells it.
    """
    problems = Problems(file)
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        message = str(fault)
        told = _LINE_IN_MESSAGE.search(message)
        line = int(told.group(1)) if told else None
        if line is None and "end of document" in message:
            line = text.count("\n") + 1
        problems.add((), f"not valid TOML: {message}", line=line)
    except RecursionError:
        problems.add((), "not valid TOML: nested too deep")
    problems.raise_if_any()
    return Document(value, toml_lines(text))


def toml_lines(text: str) -> dict[KeyPath, int]:
    """Line, counted from 1, of each table, key and list item of a valid TOML text."""
    scanner = _Scanner(text)
    try:
        scanner.scan()
    except (_Lost, RecursionError):
        pass
    return scanner.lines


class _Lost(Exception):
    """The scanner does not understand what stands here."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.lines: dict[KeyPath, int] = {}
        self._table: KeyPath = ()
        self._counts: dict[KeyPath, int] = {}
        """Number of items so far of each ``[[list of tables]]``."""
        self._line = 1
        self._counted_to = 0

    def scan(self) -> None:
        while True:
            self._skip(_BLANK)
            if self.position >= len(self.text):
                return
            if self.text.startswith("[[", self.position):
                self.position += 2
                path = self._resolve(self._key(), last_is_list=True)
                index = self._counts.get(path, 0)
                self._counts[path] = index + 1
                self._table = (*path, index)
                self._note(self._table)
                self._expect("]]")
            elif self.text[self.position] == "[":
                self.position += 1
                self._table = self._resolve(self._key())
                self._note(self._table)
                self._expect("]")
            else:
                self._key_and_value(self._table)

    def _key_and_value(self, table: KeyPath) -> None:
        path = (*table, *self._key())
        self._note(path)
        self._expect("=")
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._skip(_SPACE)
        here = self.text[self.position : self.position + 1]
        if here in ("'", '"'):
            self._string()
        elif here == "[":
            self.position += 1
            index = 0
            while not self._closes("]"):
                self._note((*path, index))
                self._value((*path, index))
                index += 1
                self._skip(_BLANK)
                self._comma()
        elif here == "{":
            self.position += 1
            while not self._closes("}"):
                self._key_and_value(path)
                self._skip(_BLANK)
                self._comma()
        else:
            self._match(_OTHER_VALUE)

    def _key(self) -> tuple[str, ...]:
        parts = []
        while True:
            self._skip(_SPACE)
            if self.text[self.position : self.position + 1] in ("'", '"'):
                parts.append(self._string())
            else:
                parts.append(self._match(_BARE_KEY))
            self._skip(_SPACE)
            if self.text[self.position : self.position + 1] != ".":
                return tuple(parts)
            self.position += 1

    def _resolve(self, parts: tuple[str, ...], *, last_is_list: bool = False) -> KeyPath:
        """The path of a header: a list of tables named on the way means its last item."""
        path: KeyPath = ()
        for number, part in enumerate(parts, 1):
            path = (*path, part)
            if path in self._counts and not (last_is_list and number == len(parts)):
                path = (*path, self._counts[path] - 1)
        return path

    def _note(self, path: KeyPath) -> None:
        """Remember the line of a path, and of those above it that have none yet."""
        self._line += self.text.count("\n", self._counted_to, self.position)
        self._counted_to = self.position
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return
            self.lines[path[:length]] = self._line

    def _closes(self, mark: str) -> bool:
        self._skip(_BLANK)
        if self.text.startswith(mark, self.position):
            self.position += 1
            return True
        return False

    def _comma(self) -> None:
        if self.text.startswith(",", self.position):
            self.position += 1
        elif self.text[self.position : self.position + 1] not in ("]", "}"):
            raise _Lost

    def _expect(self, mark: str) -> None:
        self._skip(_SPACE)
        if not self.text.startswith(mark, self.position):
            raise _Lost
        self.position += len(mark)

    def _string(self) -> str:
        value = tomllib.loads("key = " + self._match(_STRING))["key"]
        if not isinstance(value, str):
            raise _Lost
        return value

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.position)
        if match:
            self.position = match.end()

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.position)
        if not match:
            raise _Lost
        self.position = match.end()
        return match.group()
