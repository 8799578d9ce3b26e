"""Reads one entry of a file, key by key: what servers of either kind have in common.

Each method takes one key, and returns its value or adds a problem. Texts are expanded here, and never shown: they may
be secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, get_args

import msgspec

from .bounds import SHORTCUTS, check_order, read_bound, read_bounds
from .expand import expand
from .keys import HTTP_KEYS, IGNORED_KEYS, INSTEAD, RENAMED_KEYS, STDIO_KEYS
from .problems import KeyPath, Problems, kind_of, nearest, shown
from .spec import Bounds, Protocol

__all__ = ["Entry", "Where", "quoted", "text_fault"]

Where = tuple[str | int, ...]
"""The way to a value inside the entry."""

_PROTOCOLS = get_args(Protocol)


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


class Entry:
    """One entry while it is read. A subclass for each kind of server says which keys it has."""

    KEYS: ClassVar[frozenset[str]]
    """Keys of this kind."""
    OTHER_KEYS: ClassVar[frozenset[str]]
    """Those of the other kind."""
    OTHER_KIND: ClassVar[str]
    """The servers that have those."""
    RENAMED: ClassVar[Mapping[str, str]] = RENAMED_KEYS
    """Keys of other products → what this kind calls them."""

    def __init__(
        self,
        name: str,
        entry: dict[str, Any],
        path: KeyPath,
        problems: Problems,
        environ: Mapping[str, str],
        defaults: Bounds,
    ) -> None:
        self.name = name
        self.entry = entry
        self.path = path
        self.problems = problems
        self.environ = environ
        self.defaults = defaults
        self.unresolved: list[str] = []
        self.enabled = True

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

    def shared(self) -> dict[str, Any]:
        """What every server has. Comes first: whether it is enabled decides how references are taken."""
        self._check_keys()
        self.enabled = self._enabled()
        return {
            "protocol": self._protocol(),
            "required": self.flag("required", False),
            "lazy": self.flag("lazy", False),
            "enabled": self.enabled,
            "include": self._globs("include"),
            "exclude": self._globs("exclude") or (),
            "bounds": self._bounds(),
        }

    def kinds(self, known: Mapping[str, str], usual: str) -> Iterator[tuple[str, str]]:
        """The keys that say which kind of server it is, and what ``known`` has for their values."""
        for key in ("type", "transport"):
            value = self.entry.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                self.complain((key,), "not a kind of server", found=kind_of(value), wanted=repr(usual))
            elif value in known:
                yield key, known[value]
            else:
                near = nearest(value, sorted(known)) or usual
                self.complain((key,), "unknown kind of server", found=shown(value), wanted=repr(near))

    def misspelt(self, key: str) -> bool:
        """True if some key of the entry is taken for a misspelt ``key``, which is told already."""
        return any(
            nearest(each, HTTP_KEYS | STDIO_KEYS) == key for each in self.entry if each not in self.KEYS
        )

    def _check_keys(self) -> None:
        for key in self.entry:
            if key in self.KEYS or key in IGNORED_KEYS or key == "transport":
                continue
            if not self.tell_foreign(key):
                self._tell_unknown(key)

    def tell_foreign(self, key: str) -> bool:
        """Tell of a key of another product that this kind has a sentence of its own for; False if it has none."""
        return False

    def _tell_unknown(self, key: str) -> None:
        word = self.RENAMED.get(key)
        near = word or nearest(key, sorted(self.KEYS | self.OTHER_KEYS))
        if near is None or near in self.KEYS:
            self.problems.unknown((*self.path, key), "key", sorted(self.KEYS), word=near, server=self.name)
        elif near == key:
            self.complain(
                (key,), f"{key!r} is for servers with {self.OTHER_KIND}", wanted=INSTEAD.get(key, "")
            )
        else:
            self.complain((key,), f"unknown key {shown(key)}; {near!r} is for servers with {self.OTHER_KIND}")

    def flag(self, key: str, default: bool) -> bool:
        value = self.entry.get(key, default)
        if not isinstance(value, bool):
            self.complain((key,), "not a yes or no", found=shown(value), wanted="true or false")
            return default
        return value

    def _enabled(self) -> bool:
        if "enabled" in self.entry and "disabled" in self.entry:
            self.complain(
                ("disabled",), "'enabled' and 'disabled' together", found="both", wanted="one of them"
            )
        if "disabled" in self.entry:
            return not self.flag("disabled", False)
        return self.flag("enabled", True)

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

    def path_text(self, key: str, *, what: str) -> str | None:
        """A path of the entry; None if it has none."""
        value = self.entry.get(key)
        if value is None:
            return None
        text = self.text((key,), "~/" if value == "~" else value, wanted=f"the path of {what}", tilde=True)
        if text == "":
            self.complain((key,), "the path is empty", wanted=f"the path of {what}, or no {key!r}")
        return text or None

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

    def _protocol(self) -> str:
        value = self.entry.get("protocol", "auto")
        if value not in _PROTOCOLS or not isinstance(value, str):
            near = nearest(value, _PROTOCOLS) if isinstance(value, str) else None
            self.complain(
                ("protocol",),
                "unknown protocol",
                found=shown(value),
                wanted=f"one of {', '.join(map(repr, _PROTOCOLS))}",
                fix=f"write {near!r} if that is meant" if near else None,
            )
            return "auto"
        return value

    def _globs(self, key: str) -> tuple[str, ...] | None:
        return self.names(key, wanted='["read_*"]')

    def _bounds(self) -> Bounds:
        table = self.entry.get("bounds", {})
        before = len(self.problems)
        bounds = read_bounds(
            table, (*self.path, "bounds"), self.problems, base=self.defaults, server=self.name
        )
        for shortcut, key in SHORTCUTS.items():
            if shortcut not in self.entry:
                continue
            if isinstance(table, dict) and key in table:
                self.complain(
                    (shortcut,), f"{shortcut!r} is 'bounds.{key}', and both are given", wanted="one of them"
                )
                continue
            value = read_bound(key, self.entry[shortcut], (*self.path, shortcut), self.problems, self.name)
            if value is not None:
                bounds = msgspec.structs.replace(bounds, **{key: value})
        if len(self.problems) == before and bounds != self.defaults:
            timeout = (*self.path, "timeout") if "timeout" in self.entry else None
            check_order(bounds, (*self.path, "bounds"), self.problems, call=timeout, server=self.name)
        return bounds
