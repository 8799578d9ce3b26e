"""Reads one table of a file, key by key: what the entries of servers and the tables below them have in common.

Each method takes one key, and returns its value or adds a problem. Texts are expanded here, and never shown: they may
be secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .expand import expand
from .problems import KeyPath, Problems, kind_of, nearest, shown
from .units import DURATION_FORM, duration

__all__ = ["Reader", "Where", "quoted", "text_fault"]

Where = tuple[str | int, ...]
"""The way to a value inside the table."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def text_fault(text: str) -> str | None:
    """Why a text cannot be given to a program, or None."""
    if "\0" in text:
        return "it holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it holds half of a surrogate pair, which is no character"
    return None


def quoted(text: str) -> str:
    """A text in double quotes, escaped."""
    return '"' + ascii(text)[1:-1].replace('"', '\\"') + '"'


class Reader:
    """One table while it is read."""

    def __init__(
        self,
        entry: dict[str, Any],
        path: KeyPath,
        problems: Problems,
        environ: Mapping[str, str],
        *,
        name: str | None = None,
    ) -> None:
        self.name = name
        """Of the server whose table it is."""
        self.entry = entry
        self.path = path
        self.problems = problems
        self.environ = environ
        self.unresolved: list[str] = []
        self.enabled = True
        """False: its references need not be set."""

    def complain(
        self,
        where: Where,
        message: str,
        *,
        found: str = "",
        wanted: str = "",
        fix: str | None = None,
    ) -> None:
        self.problems.add(
            (*self.path, *where), message, found=found, wanted=wanted, fix=fix, server=self.name
        )

    def flag(self, key: str, default: bool) -> bool:
        value = self.entry.get(key, default)
        if not isinstance(value, bool):
            self.complain((key,), "not a yes or no", found=shown(value), wanted="true or false")
            return default
        return value

    def choice(self, key: str, options: Iterable[str], default: str | None, *, what: str) -> str | None:
        """One of a few words, which are no secrets."""
        value = self.entry.get(key)
        if value is None:
            return default
        options = tuple(options)
        if not isinstance(value, str) or value not in options:
            near = nearest(value, options) if isinstance(value, str) else None
            self.complain(
                (key,),
                f"unknown {what}",
                found=shown(value),
                wanted=f"one of {', '.join(map(repr, options))}",
                fix=f"write {near!r} if that is meant" if near else None,
            )
            return default
        return value

    def seconds(self, key: str) -> float | None:
        """A time above 0; None if there is none."""
        value = self.entry.get(key)
        if value is None:
            return None
        try:
            amount = duration(value)
        except ValueError as fault:
            self.complain((key,), str(fault), found=shown(value), wanted=DURATION_FORM)
            return None
        if amount == 0:
            self.complain((key,), "every wait has a time", found=shown(value), wanted=DURATION_FORM)
            return None
        return amount

    def text(
        self, where: Where, value: Any, *, wanted: str, tilde: bool = False, empty: bool = True
    ) -> str | None:
        """A text of the entry, expanded; None after a problem, and where a disabled entry refers to what is not set.

        ``empty``: whether a variable may be set to nothing.
        """
        if not isinstance(value, str):
            self.complain(where, "not a text", found=kind_of(value), wanted=wanted)
            return None
        text, faults = expand(value, self.environ, tilde=tilde, empty=empty)
        if faults and not self.enabled:
            # It is not started, so its references need not be set; ``enable`` refuses it while this stands.
            self.unresolved.extend(fault.message for fault in faults)
            return value
        for fault in faults:
            self.complain(where, fault.message, fix=fault.fix)
        reason = text_fault(text)
        if reason:
            self.complain(where, f"cannot be used: {reason}")
        return None if faults or reason else text

    def optional(self, key: str, wanted: str, *, empty: bool = True) -> str | None:
        """A text; None if there is none. ``empty``: whether a variable may be set to nothing."""
        value = self.entry.get(key)
        return None if value is None else self.text((key,), value, wanted=wanted, empty=empty)

    def variable(self, where: Where, name: Any) -> str | None:
        """The value of a variable that is named without ``${}``."""
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            # Not shown: it may well be the secret itself.
            self.complain(
                where, "not the name of a variable", found=kind_of(name), wanted='"NAME", without ${}'
            )
            return None
        return self.text(where, f"${{{name}}}", wanted="", empty=False)

    def path_text(self, key: str, *, what: str) -> str | None:
        """A path of the entry; None if it has none."""
        value = self.entry.get(key)
        if value is None:
            return None
        text = self.text((key,), "~/" if value == "~" else value, wanted=f"the path of {what}", tilde=True)
        if text == "":
            self.complain((key,), "the path is empty", wanted=f"the path of {what}, or no {key!r}")
        return text or None

    def file(self, key: str, what: str) -> str | None:
        """A path; a relative one starts at the folder of the configuration file."""
        before = len(self.unresolved)
        text = self.path_text(key, what=what)
        if text is None or len(self.unresolved) != before:
            return text
        return os.path.join(os.path.dirname(os.path.abspath(self.problems.file)), text)

    def words(self, key: str, *, told: Callable[[str], str]) -> tuple[str, ...]:
        """A list of words; ``told`` makes the right form of one text, for the error."""
        words = self.entry.get(key, [])
        if isinstance(words, str):
            self.complain(
                (key,),
                "one text, where a list of words is wanted (words are never split here)",
                found="a text",
                wanted=f"{key} = {told(words)}",
            )
            return ()
        if not isinstance(words, list):
            self.complain((key,), "not a list of words", found=kind_of(words), wanted='["word", "word"]')
            return ()
        found = (
            self.text((key, index), word, wanted="a text in quotes", tilde=True)
            for index, word in enumerate(words)
        )
        return tuple(word or "" for word in found)

    def command(self, key: str) -> tuple[str, ...]:
        """A program and its arguments; empty if there is none."""
        before = len(self.problems)
        command = self.words(key, told=lambda _: '["program", "word"]')
        if command and not command[0] and len(self.problems) == before:
            self.complain((key, 0), "the program is empty", wanted="a path or a name")
        return command

    def table(self, key: str, *, what: str, wanted: str) -> dict[str, Any]:
        """A table of the entry; empty if there is none."""
        table = self.entry.get(key, {})
        if not isinstance(table, dict):
            self.complain((key,), f"not a table of {what}", found=kind_of(table), wanted=wanted)
            return {}
        return table

    def names(self, key: str, *, wanted: str) -> tuple[str, ...] | None:
        """A list of names that are no secrets; None if there is none."""
        value = self.entry.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            self.complain(
                (key,),
                "one text, where a list is wanted",
                found=shown(value),
                wanted=f"{key} = [{quoted(value)}]",
            )
            return None
        if not isinstance(value, list) or not all(isinstance(n, str) and not text_fault(n) for n in value):
            self.complain((key,), "not a list of names or globs", found=kind_of(value), wanted=wanted)
            return None
        return tuple(value)
