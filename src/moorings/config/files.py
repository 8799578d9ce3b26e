"""Configuration files: read, validated whole and turned into frozen values before anything starts.

Two formats, by the ending of the file's name (any other ending: by its first character):

- JSON as other products write it: ``mcpServers`` (Claude Desktop, Claude Code's ``.mcp.json``, Cursor) or
  ``servers`` (VS Code). Comments are allowed. The keys of ``moorings.toml`` may stand in it too.
- ``moorings.toml``: ``[servers.NAME]``, ``[bounds]`` for what every server is bounded by unless it says
  otherwise, ``[host]``, and ``[credentials]`` for where logins are kept.

All problems of a file are told at once (``ConfigProblems``), each with key and line. References
(``${VAR}``) are expanded here, by ``expand.py``, so that every program that loads a file sees the same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import ConfigError
from .bounds import check_order, read_bounds, read_count
from .credential_entry import read_credentials
from .credential_spec import CredentialSettings
from .entries import read_server
from .expand import expand
from .http_spec import Server
from .json_text import Document, read_json
from .problems import Problems, kind_of, shown
from .spec import Bounds
from .toml_text import read_toml
from .units import DURATION_FORM, duration

__all__ = ["Config", "Format", "HostSettings", "load", "parse"]

Format = Literal["json", "toml"]

MAX_FILE = 4 * 1024 * 1024
"""Bytes of a configuration file; a larger one is not read."""

FOREIGN_KEYS = frozenset(
    {
        "$schema",
        "globalShortcut",
        "inputs",
        "isDxtAutoUpdatesEnabled",
        "isUsingBuiltInNodeForMcp",
        "preferences",
        "sandbox",
        "scale",
        "theme",
    }
)
"""Keys at the top of a JSON file that belong to other products and say nothing about how servers are run."""

_HOST_KEYS = ("close_timeout", "max_starting", "state_dir")


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The ``[host]`` and ``[bounds]`` tables."""

    max_starting: int = 16
    """Servers started at one time."""
    close_timeout: float = 10.0
    """Seconds the close of the host may take."""
    state_dir: str | None = None
    """Folder of what outlives the process; None is the place of the platform. A relative one starts at the
    folder of the file."""
    bounds: Bounds = Bounds()
    """Bounds of a server that does not say otherwise. Already worked into the servers of the file."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says."""

    servers: dict[str, Server]
    """By name, in the order of the file. Disabled ones are in it, with ``enabled`` false."""
    host: HostSettings = HostSettings()
    credentials: CredentialSettings = CredentialSettings()
    """Where logins are kept: the ``[credentials]`` table. A relative folder starts at that of the file."""
    file: str = ""


def load(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Config:
    """Read a configuration file.

    Args:
        path: JSON or TOML.
        environ: for references; the environment of the process if None.

    Raises:
        ConfigError: it cannot be read; or has problems, then it is ``ConfigProblems`` with all of them.
    """
    file = os.fspath(path)
    return parse(_read(file), file=file, environ=environ)


def parse(
    data: str | bytes, *, file: str, format: Format | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """What the content of a file says; ``file`` is its name for messages.

    Raises:
        ConfigProblems: with all that is wrong.
    """
    environ = os.environ if environ is None else environ
    text = _decoded(data, file) if isinstance(data, bytes) else data
    if format is None:
        format = _format_of(file, text)
    document = read_json(text, file) if format == "json" else read_toml(text, file)
    problems = Problems(file, document.lines)
    for path, line, first in document.repeated:
        problems.add(
            path, "this key stands twice", found=f"it on line {first} too", wanted="it once", line=line
        )
    config = _config(document, file, format, environ, problems)
    problems.raise_if_any()
    return config


def _read(file: str) -> bytes:
    try:
        with open(file, "rb", opener=_open_without_waiting) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ConfigError("not a regular file", file=file, fix="name a JSON or TOML file")
            data = opened.read(MAX_FILE + 1)
    except FileNotFoundError:
        raise ConfigError("there is no such file", file=file, fix="make it, or name another") from None
    except IsADirectoryError:
        raise ConfigError("this is a folder", file=file, fix="name a file in it") from None
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise ConfigError(f"cannot be read: {reason}", file=file) from fault
    if len(data) > MAX_FILE:
        raise ConfigError(f"larger than {MAX_FILE // (1024 * 1024)} MiB, so not read", file=file)
    return data


def _open_without_waiting(name: str, flags: int) -> int:
    """A pipe without a writer must not hold us: it is refused after the open."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _decoded(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        problems = Problems(file)
        utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        problems.add(
            (),
            "the file is not UTF-8",
            found="UTF-16" if utf16 else f"the byte 0x{data[fault.start]:02x}",
            wanted="UTF-8",
            fix="save it as UTF-8",
            line=1 if utf16 else data.count(b"\n", 0, fault.start) + 1,
        )
        problems.raise_if_any()
        raise


def _format_of(file: str, text: str) -> Format:
    name = Path(file).name.lower()
    if name.endswith(".toml"):
        return "toml"
    if name.endswith((".json", ".jsonc")):
        return "json"
    return "json" if text.lstrip().startswith(("{", "//", "/*")) else "toml"


def _config(
    document: Document, file: str, format: Format, environ: Mapping[str, str], problems: Problems
) -> Config:
    top = document.value
    if not isinstance(top, dict):
        problems.add(
            (),
            "a configuration is a table of keys",
            found=kind_of(top),
            wanted='{"mcpServers": {...}}',
            line=1,
        )
        return Config(servers={}, file=file)
    server_keys = ("servers",) if format == "toml" else ("mcpServers", "servers")
    known = (*server_keys, "bounds", "credentials", "host")
    for key in top:
        if key not in known and not (format == "json" and key in FOREIGN_KEYS):
            problems.unknown((key,), "key at the top of the file:", known)
    bounds = read_bounds(top.get("bounds", {}), ("bounds",), problems, base=Bounds())
    check_order(bounds, ("bounds",), problems)
    host = _host(top.get("host", {}), file, environ, problems, bounds)
    credentials = read_credentials(top.get("credentials", {}), environ, problems)
    present = [key for key in server_keys if key in top]
    servers: dict[str, Server] = {}
    if not present and len(problems) == 0:
        problems.add(
            (), f"there is no {server_keys[0]!r} in it", wanted=f"{server_keys[0]!r}, a table of servers"
        )
    if len(present) > 1:
        problems.add((present[1],), "'mcpServers' and 'servers' together", found="both", wanted="one of them")
    for key in present:
        table = top[key]
        if not isinstance(table, dict):
            problems.add(
                (key,),
                "servers are a table by name",
                found=kind_of(table),
                wanted='{"name": {"command": "..."}} or {"name": {"url": "..."}}',
            )
            continue
        for name, entry in table.items():
            server = read_server(name, entry, (key, name), problems, environ=environ, defaults=bounds)
            if server is not None:
                servers[name] = server
    return Config(servers=servers, host=host, credentials=credentials, file=file)


def _host(
    table: Any, file: str, environ: Mapping[str, str], problems: Problems, bounds: Bounds
) -> HostSettings:
    if not isinstance(table, dict):
        problems.add(("host",), "host settings are a table of keys", found=kind_of(table), wanted="[host]")
        return HostSettings(bounds=bounds)
    given: dict[str, Any] = {}
    for key, value in table.items():
        path = ("host", key)
        if key == "max_starting":
            given[key] = read_count(value, path, problems, least=1)
        elif key == "close_timeout":
            try:
                given[key] = duration(value)
            except ValueError as fault:
                problems.add(path, str(fault), found=shown(value), wanted=DURATION_FORM)
        elif key == "state_dir":
            given[key] = _state_dir(value, file, environ, problems)
        else:
            problems.unknown(path, "host setting", _HOST_KEYS)
    return HostSettings(bounds=bounds, **{key: value for key, value in given.items() if value is not None})


def _state_dir(value: Any, file: str, environ: Mapping[str, str], problems: Problems) -> str | None:
    path = ("host", "state_dir")
    if not isinstance(value, str) or not value or "\0" in value:
        problems.add(path, "not the path of a folder", found=shown(value), wanted="a path")
        return None
    text, faults = expand(value, environ, tilde=True)
    for fault in faults:
        problems.add(path, fault.message, fix=fault.fix)
    return None if faults else os.path.join(os.path.dirname(os.path.abspath(file)), text)
