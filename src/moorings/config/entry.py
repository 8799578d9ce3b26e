"""Reads one entry of a file, key by key: what servers of either kind have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, get_args

import msgspec

from .bounds import SHORTCUTS, check_order, read_bound, read_bounds
from .keys import HTTP_KEYS, IGNORED_KEYS, INSTEAD, RENAMED_KEYS, STDIO_KEYS
from .problems import KeyPath, Problems, kind_of, nearest, shown
from .reader import Reader
from .spec import Bounds, Protocol

__all__ = ["Entry"]

_PROTOCOLS = get_args(Protocol)


class Entry(Reader):
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
        super().__init__(entry, path, problems, environ, name=name)
        self.defaults = defaults

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
            self._tell_unknown(key)

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

    def _enabled(self) -> bool:
        if "enabled" in self.entry and "disabled" in self.entry:
            self.complain(
                ("disabled",), "'enabled' and 'disabled' together", found="both", wanted="one of them"
            )
        if "disabled" in self.entry:
            return not self.flag("disabled", False)
        return self.flag("enabled", True)

    def _protocol(self) -> str:
        return self.choice("protocol", _PROTOCOLS, "auto", what="protocol") or "auto"

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
