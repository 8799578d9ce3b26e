"""What is wrong with a configuration: every problem of a file, collected and told at once.

A problem says where it is (key path and line), what was found and what was wanted. Values of ``env`` and
``args`` may be secrets, so they are described by their kind and never shown; other values are shown short
and escaped.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..errors import ConfigError

__all__ = ["ConfigProblems", "KeyPath", "Problem", "Problems", "key_text", "kind_of", "nearest", "shown"]

KeyPath = tuple[str | int, ...]
"""The way to a value in a file: names of keys, and indexes of lists."""

MOST_SHOWN = 50
"""Problems listed in the text of one error; the rest are counted."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    key: str
    """Key path as a reader would write it: ``servers.git.args[0]``; empty if the file as a whole is meant."""
    line: int | None
    """Line of that key, counted from 1; None if it is not known."""
    message: str
    """What is wrong, in one sentence."""
    found: str = ""
    """What stands there. Never the value of a secret."""
    wanted: str = ""
    """What would be right."""
    fix: str | None = None
    server: str | None = None
    """Name of the server concerned, if one is."""

    def sentence(self) -> str:
        parts = [self.message]
        if self.found:
            parts.append(f"found {self.found}")
        if self.wanted:
            parts.append(f"wanted {self.wanted}")
        return "; ".join(parts)


class ConfigProblems(ConfigError):
    """A file with problems, all of them in ``problems``; the other attributes are those of the first."""

    def __init__(self, problems: Iterable[Problem], *, file: str) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(
            first.sentence(),
            file=file,
            key=first.key or None,
            line=first.line,
            server=first.server,
            fix=first.fix,
        )

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return super().__str__()
        lines = [f"{self.file}: {len(self.problems)} problems [{self.code}]"]
        for problem in self.problems[:MOST_SHOWN]:
            place = f"line {problem.line}: " if problem.line is not None else ""
            key = f"{problem.key}: " if problem.key else ""
            next_step = f". Next step: {problem.fix}" if problem.fix else ""
            lines.append(f"  {place}{key}{problem.sentence()}{next_step}")
        if len(self.problems) > MOST_SHOWN:
            lines.append(f"  ... and {len(self.problems) - MOST_SHOWN} more")
        return "\n".join(lines)


class Problems:
    """Collects the problems of one file while it is read, and raises them together at the end."""

    def __init__(self, file: str, lines: Mapping[KeyPath, int] | None = None) -> None:
        self.file = file
        self._lines = lines or {}
        self._found: list[Problem] = []

    def add(
        self,
        path: KeyPath,
        message: str,
        *,
        found: str = "",
        wanted: str = "",
        fix: str | None = None,
        server: str | None = None,
        line: int | None = None,
    ) -> None:
        self._found.append(
            Problem(
                key=key_text(path),
                line=line if line is not None else self.line_of(path),
                message=message,
                found=found,
                wanted=wanted,
                fix=fix,
                server=server,
            )
        )

    def unknown(
        self,
        path: KeyPath,
        what: str,
        known: Iterable[str],
        *,
        word: str | None = None,
        server: str | None = None,
    ) -> None:
        """The last key of ``path`` is not known; ``word`` is what is meant, if likeness need not guess it."""
        known = list(known)
        near = word or nearest(str(path[-1]), known)
        self.add(
            path,
            f"unknown {what} {shown(path[-1])}",
            wanted=repr(near) if near else f"one of {', '.join(known)}",
            fix=f"write {near!r} if that is meant" if near else None,
            server=server,
        )

    def line_of(self, path: KeyPath) -> int | None:
        """Line of that key, or of the nearest key above it that is known."""
        for length in range(len(path), 0, -1):
            line = self._lines.get(path[:length])
            if line is not None:
                return line
        return None

    def __len__(self) -> int:
        return len(self._found)

    def raise_if_any(self) -> None:
        """Raise all that was collected, in the order of the file.

        Raises:
            ConfigProblems: something was.
        """
        if self._found:
            in_order = sorted(self._found, key=lambda problem: (problem.line is None, problem.line or 0))
            raise ConfigProblems(in_order, file=self.file)


def key_text(path: KeyPath) -> str:
    """A key path as text: ``servers.git.args[0]``; names that are not plain stand in quotes, escaped."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _PLAIN_KEY.fullmatch(part) else '"' + ascii(part)[1:-1].replace('"', '\\"') + '"'
            text += f".{name}" if text else name
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like ``word``, or None if none is near."""
    by_folded = {_folded(name): name for name in known}
    matches = difflib.get_close_matches(_folded(word), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def kind_of(value: Any) -> str:
    """What kind of value it is, without the value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "a table of keys"
    return "a date or time"


def shown(value: Any) -> str:
    """A value that is no secret, for an error: short, one line, control characters escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return ascii(text)
    if isinstance(value, int | float):
        try:
            text = repr(value)
        except ValueError:  # more digits than Python turns into text
            return "a huge number"
        return text if len(text) <= 60 else text[:57] + "..."
    return kind_of(value)


def _folded(word: str) -> str:
    return word.replace("_", "").replace("-", "").casefold()
