"""One entry of a file → one server specification: keys, types, bounds and references checked, all problems
collected.

Here is decided which kind of server an entry is, a program or an address; ``stdio_entry.py`` and ``http_entry.py``
read it. The keys are tables in ``keys.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .http_entry import HttpEntry
from .http_spec import Server
from .keys import HTTP_KEYS, HTTP_KINDS, LOCAL_KINDS, REMOTE_URL_KEYS, STDIO_KEYS, WEBSOCKET_KINDS
from .problems import KeyPath, Problems, kind_of, nearest, shown
from .reader import text_fault
from .spec import Bounds
from .stdio_entry import StdioEntry

__all__ = ["read_server"]

_KIND_KEYS = ("type", "transport")


def read_server(
    name: str,
    entry: Any,
    path: KeyPath,
    problems: Problems,
    *,
    environ: Mapping[str, str],
    defaults: Bounds,
) -> Server | None:
    """The specification an entry stands for; None if there were problems, which are then in ``problems``."""
    before = len(problems)
    _check_name(name, path, problems)
    if not isinstance(entry, dict):
        problems.add(
            path,
            "a server is a table of keys",
            found=kind_of(entry),
            wanted='{"command": "..."} or {"url": "..."}',
            server=name,
        )
        return None
    url_key = next((key for key in REMOTE_URL_KEYS if key in entry), None)
    if url_key is not None and "command" in entry:
        problems.add(
            (*path, url_key),
            f"'command' and {url_key!r} together: a server is a local program or a remote address",
            found="both",
            wanted="one of them",
            server=name,
        )
        return None
    local_key = next((key for key in _KIND_KEYS if _said(entry, key) in LOCAL_KINDS), None)
    if url_key is not None and local_key is not None:
        problems.add(
            (*path, url_key),
            f"{local_key} says {entry[local_key]!r}, and {url_key!r} names a remote address",
            found="both",
            wanted="'command', or another kind of server",
            server=name,
        )
        return None
    kind = HttpEntry if _is_remote(entry) else StdioEntry
    server = kind(name, entry, path, problems, environ, defaults).read()
    return server if len(problems) == before else None


def _said(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def _check_name(name: str, path: KeyPath, problems: Problems) -> None:
    if not name.strip():
        problems.add(path, "a server needs a name", found=shown(name), server=name)
    elif not name.isprintable() or text_fault(name):
        problems.add(path, "the name of a server holds a control character", found=shown(name), server=name)


def _is_remote(entry: Mapping[str, Any]) -> bool:
    """Whether it is an address: by the key that says it, else by what it says it is, else by its other keys."""
    if "command" in entry or any(key in entry for key in REMOTE_URL_KEYS):
        return "command" not in entry
    kinds = {_said(entry, key) for key in _KIND_KEYS}
    if kinds & (HTTP_KINDS.keys() | WEBSOCKET_KINDS | LOCAL_KINDS):
        return not kinds & LOCAL_KINDS
    # Neither is there: a misspelt key, or what stands beside the one that was forgotten, tells what was meant.
    meant = {nearest(key, sorted(HTTP_KEYS | STDIO_KEYS)) for key in entry}
    return bool(meant & (HTTP_KEYS - STDIO_KEYS)) and not meant & (STDIO_KEYS - HTTP_KEYS)
