"""From a command line to a running host: which file, which servers of it, and the host over them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moorings import ConfigError, UnknownServer, UnknownTool
from moorings.config import Config, Server, config_file, load

from .options import Options

if TYPE_CHECKING:
    from moorings import Host, HttpServer

__all__ = [
    "chosen_http_servers",
    "chosen_servers",
    "open_host",
    "read_config",
    "servers_of_tool",
    "start_bound",
    "to_be_looked_at",
]

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")
_UNCUT = 64 - 12


def read_config(options: Options) -> Config:
    """The file that was named, or the one of this account. No file of the current folder is read unasked.

    Raises:
        ConfigError: it is not there, or has problems.
    """
    if options.config is not None:
        return load(options.config)
    default = config_file()
    try:
        default.stat()
    except FileNotFoundError:
        raise ConfigError(
            "there is no configuration",
            file=str(default),
            fix="write it, or name a file with --config (for example: --config .mcp.json)",
        ) from None
    except OSError:  # said better by the one who opens it
        pass
    return load(default)


def chosen_servers(config: Config, names: Sequence[str]) -> dict[str, Server]:
    """The servers that were named, in that order; all that are enabled if none were.

    Raises:
        UnknownServer: a name is not in the file.
        ConfigError: a named server is disabled, or none is left.
    """
    for name in names:
        if name not in config.servers:
            near = difflib.get_close_matches(name, config.servers, n=1)
            known = ", ".join(config.servers) or "none"
            raise UnknownServer(
                f"not in {config.file} (servers there: {known})",
                server=name,
                fix=f"did you mean {near[0]!r}?"
                if near
                else "a server by its URL needs a name in the file first"
                if "://" in name
                else None,
            )
        if not config.servers[name].enabled:
            raise ConfigError(
                "this server is disabled",
                file=config.file,
                key=name,
                server=name,
                fix="enable it in the file",
            )
    chosen = {name: config.servers[name] for name in names} or {
        name: server for name, server in config.servers.items() if server.enabled
    }
    if not chosen:
        raise ConfigError("no server in it is enabled", file=config.file, fix="add one")
    return chosen


def chosen_http_servers(config: Config, names: Sequence[str]) -> dict[str, HttpServer]:
    """As ``chosen_servers``, those that can have a login: of all that are enabled, those over HTTP.

    Raises:
        ConfigError: a named server is a program, or none is left.
    """
    from moorings import HttpServer

    found: dict[str, HttpServer] = {}
    for name, server in chosen_servers(config, names).items():
        if isinstance(server, HttpServer):
            found[name] = server
        elif names:
            raise ConfigError(
                "this server is a program, and has no login here", file=config.file, key=name, server=name
            )
    if not found:
        raise ConfigError("no server in it can have a login", file=config.file)
    return found


@contextmanager
def open_host(options: Options, config: Config, servers: Mapping[str, Server]) -> Iterator[Host]:
    """A running host over these servers; closed, servers and all, when the block is left."""
    import moorings

    host = moorings.Host(
        servers,
        max_starting=config.host.max_starting,
        state_dir=config.host.state_dir,
        credentials=config.credentials,
    )
    with host:
        try:
            yield host
        finally:
            report = host.close(timeout=config.host.close_timeout)
            if report.survivors:
                options.output.message(
                    f"processes that would not end: {', '.join(map(str, report.survivors))}"
                )


def to_be_looked_at(servers: Mapping[str, Server]) -> dict[str, Server]:
    """The same servers, all started with the host, and none whose failure hides how the others are."""
    import msgspec

    return {name: msgspec.structs.replace(each, lazy=False, required=False) for name, each in servers.items()}


def start_bound(config: Config, servers: Mapping[str, Server]) -> float:
    """Seconds in which every server has had its chance: the longest start limit, once for each batch, and the ends
    of processes that failed."""
    batches = -(-len(servers) // config.host.max_starting)
    longest = max(
        each.bounds.connect + each.bounds.stop_eof + each.bounds.stop_term + each.bounds.stop_kill
        for each in servers.values()
    )
    return batches * longest + 5.0


def servers_of_tool(tool: str, names: Collection[str]) -> list[str]:
    """The servers that may have a tool of this exposed name; no other needs to be started to call it.

    An exposed name begins with its server's name and ``__``, with ``_`` for every character outside
    ``[A-Za-z0-9_-]``, and is cut to 64 characters with 12 of a hash at the end (``host/names.py``). So more than one
    server may fit a name; which of them it is, their catalogs tell.

    Raises:
        UnknownTool: none fits.
    """
    fitting = [name for name in names if tool.startswith(_NOT_PLAIN.sub("_", f"{name}__")[:_UNCUT])]
    if not fitting:
        raise UnknownTool(
            f"no tool {tool!r}: a tool is named SERVER__TOOL, and no server of the configuration fits "
            f"(servers: {', '.join(names)})",
            fix="see the names in: moor tools",
        )
    return fitting
