"""The names that models see: one stable, injective function of server and tool (field faults 15).

``server__tool`` where that is a plain name that can be split in one way only. Everything else is made plain, cut to
64 characters, and carries a short hash of both raw names, ``server__tool__hash``, always, whoever else is present: so
nothing depends on the order of connecting, nothing is refused and nothing is shadowed. The two kinds never meet: a
plain name holds ``__`` once, one with a hash twice, unless it was cut before the first. The way back is a table, never
parsing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Sequence

__all__ = ["ENDING", "MAX_NAME", "exposed_name", "exposed_names", "helper_name", "split_plain"]

MAX_NAME = 64
"""Longest name that the large model APIs take."""
_SEPARATOR = "__"
_THREE = "___"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+\Z")
_ALL_PLAIN = re.compile(r"[A-Za-z0-9_\n-]+\Z")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")
_HASH = 10
ENDING = len(_SEPARATOR) + _HASH
"""Characters that the hash and what parts it take of a name."""
_CUT_AND_HASHED = re.compile(rf".{{{MAX_NAME - ENDING}}}__[a-z2-7]{{{_HASH}}}\Z")


def _hashed(name: str, identity: str) -> str:
    """A name made plain, cut, and told apart by a hash of what it stands for."""
    # Surrogates of broken names are kept as they are.
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()
    ending = _SEPARATOR + base64.b32encode(digest).decode().lower()[:_HASH]
    return _NOT_PLAIN.sub("_", name)[: MAX_NAME - len(ending)] + ending


def exposed_name(server: str, tool: str) -> str:
    """The catalog's name for a tool of a server: at most 64 of ``[A-Za-z0-9_-]``."""
    return _exposed(server, f"{server}{_SEPARATOR}", tool)


def exposed_names(server: str, tools: Sequence[str]) -> list[str]:
    """The same for many tools of one server; there may be thousands."""
    front = f"{server}{_SEPARATOR}"
    if _all_plain(front, tools):
        return [front + tool for tool in tools]
    return [_exposed(server, front, tool) for tool in tools]


def _all_plain(front: str, tools: Sequence[str]) -> bool:
    """Whether surely every tool of a list has a plain name: found out on all of them in one go."""
    if not tools or not all(tools) or len(front) + max(map(len, tools)) >= MAX_NAME:
        return False
    # A mark that no plain name holds keeps the names apart, and shows an underscore at the beginning of one.
    together = "\n".join(tools)
    return (
        _ALL_PLAIN.match(together) is not None
        and together.count("\n") == len(tools) - 1
        and _SEPARATOR not in together
        and "\n_" not in together
        and together[0] != "_"
        and _exposed(front[: -len(_SEPARATOR)], front, "x") == f"{front}x"
    )


def _exposed(server: str, front: str, tool: str) -> str:
    name = front + tool
    if (
        # A third underscore beside the separator, or a second separator, could be split otherwise.
        name.count(_SEPARATOR) == 1
        and _THREE not in name
        and _PLAIN.match(name)
        and len(name) <= MAX_NAME
        # Of a server whose name fills all the room, one with a hash holds the separator once too.
        and not (len(name) == MAX_NAME and _CUT_AND_HASHED.match(name))
        and server
        and tool
    ):
        return name
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    return _hashed(name, f"{len(server)}:{server}{tool}")


def helper_name(server: str, kind: str) -> str:
    """The catalog's name for a tool of our own that stands for something of a server; no tool of it has that name."""
    return _hashed(f"{server}{_SEPARATOR}{kind}", f"helper:{kind}:{server}")


@functools.lru_cache(maxsize=4096)
def split_plain(name: str) -> tuple[str, str] | None:
    """Server and tool of a plain name; None for a name that only the table can resolve."""
    server, separator, tool = name.partition(_SEPARATOR)
    if separator and exposed_name(server, tool) == name:
        return server, tool
    return None
