"""Which transport a specification means: the one place that knows all of them.

Called by a life of a server (``life.py``) at each connection it makes; it owns what comes out. What belongs to one
kind of server only (how its program is found, what its death on the probe means) stands in the branch of that kind.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from ..config import HttpServer, MemorySpec, ServerSpec, StdioServer
from ..config.headers import same_name
from ..errors import CallError, CommandNotFound, NotSent, StartError
from ..store import EraRecord
from ..transport.base import KEY_REFUSED, Receiver, Transport
from ..transport.environment import NotFound, child_environment, find_command
from ..transport.memory import MemoryTransport
from ..transport.stdio import StdioSettings, StdioTransport
from ..wire.http_rules import may_be_legacy_sse

if TYPE_CHECKING:
    from ..net.settings import NetSettings
    from ..net.shared import SharedNet
    from ..transport.http_auth import Gate

__all__ = [
    "Around",
    "gate_for",
    "awaited",
    "connect",
    "kind_of_http",
    "logged_in",
    "may_be_legacy",
    "next_step",
    "may_die_of_probe",
    "start",
    "waits_for_person",
    "was_guessed",
]


class Around(Protocol):
    """What a connection needs from around it (``LifeSettings``)."""

    @property
    def environment(self) -> Callable[[], Mapping[str, str]]:
        """The host's, at this moment."""

    @property
    def log_path(self) -> Callable[[str], str | None]:
        """Where the log of a server stands, by its name; None for no log."""

    @property
    def net(self) -> SharedNet:
        """What all servers of the host send HTTP with."""

    @property
    def gate(self) -> Callable[[str, HttpServer, Callable[[], NetSettings]], Gate]:
        """Where a server, by its name, gets its tokens from."""

    @property
    def context(self) -> contextvars.Context:
        """What tasks of a transport run in."""


def connect(
    name: str,
    spec: ServerSpec,
    receiver: Receiver,
    around: Around,
    *,
    known: EraRecord | None,
    legacy: bool = False,
) -> Transport:
    """The transport to a server, not started yet: nothing of it has to be ended before ``start``.

    Args:
        known: what is remembered of the server.
        legacy: Streamable HTTP was tried, and is not what it speaks.

    Raises:
        CommandNotFound: there is no such program.
    """
    if isinstance(spec, HttpServer):
        return _http(name, spec, receiver, around, known, legacy)
    if isinstance(spec, MemorySpec):
        return _memory(name, spec, receiver)
    assert isinstance(spec, StdioServer)
    return _stdio(name, spec, receiver, around)


def start(name: str, transport: Transport) -> None:
    """Start a transport, in one synchronous step: from here on it has to be stopped.

    Raises:
        StartError: the system would not.
    """
    try:
        transport.start()
    except OSError as error:
        why = error.strerror or error
        if not isinstance(transport, StdioTransport):
            raise StartError(f"it is not to be reached: {why}", server=name) from None
        raise StartError(
            f"the system would not start {transport.program!r}: {why}",
            server=name,
            fix="see whether the file may be run, its interpreter exists, and the working directory is there",
        ) from None


def may_die_of_probe(spec: ServerSpec) -> bool:
    """Whether such a server may end because it does not know ``server/discover``, so that a start without the probe
    is tried (F9.1, F9.5)."""
    return isinstance(spec, StdioServer)


def may_be_legacy(spec: ServerSpec, error: StartError) -> bool:
    """Whether a failed start over Streamable HTTP may mean that the server speaks HTTP+SSE of 2024-11-05."""
    return (
        isinstance(spec, HttpServer)
        and spec.transport == "auto"
        and error.http is not None
        and may_be_legacy_sse(error.http.status, error.rpc_code)
    )


def was_guessed(spec: ServerSpec, transport: Transport | None) -> bool:
    """Whether HTTP+SSE was chosen because it is what is remembered, so that another way may be right by now (F9.6)."""
    return isinstance(spec, HttpServer) and spec.transport == "auto" and kind_of_http(transport) == "sse"


def awaited(transport: Transport | None) -> str:
    """What a start that took too long had been waiting for."""
    if kind_of_http(transport) == "sse":
        from ..transport.legacy_sse import LegacySseTransport

        if isinstance(transport, LegacySseTransport) and not transport.knows_where:
            return "its event stream did not say where to send to"
    return "no answer to the first messages"


def waits_for_person(transport: Transport | None) -> bool:
    """Whether a person is at a login that a start waits for."""
    return bool(getattr(transport, "waits_for_person", False))


def logged_in(transport: Transport | None) -> bool:
    """Whether a person logged in while a start waited for that."""
    return bool(getattr(transport, "logged_in", False))


def next_step(spec: ServerSpec, error: CallError | StartError) -> str | None:
    """What to do about a start over HTTP that failed, where its status tells."""
    if not isinstance(spec, HttpServer):
        return None
    status = error.http.status if error.http is not None else None
    if status == 401 and isinstance(spec.headers, Mapping) and same_name("authorization", spec.headers):
        return KEY_REFUSED
    if status in (401, 403):
        return "give it credentials: headers, or headers_command"
    if status in (404, 405):
        return "see whether the URL is that of an MCP endpoint; its path is often /mcp or /sse"
    if status is not None and status >= 500:
        return "see whether the server, or what stands in front of it, is well"
    if status is None and isinstance(error, NotSent):
        return "see whether the server runs there, and whether the URL, proxy and ca_file are right"
    return None


def kind_of_http(transport: Transport | None) -> str:
    """``http`` or ``sse``; empty for what has no choice of transports."""
    if transport is None or isinstance(transport, StdioTransport | MemoryTransport):
        return ""
    return "http" if transport.has_headers else "sse"


def _memory(name: str, spec: MemorySpec, receiver: Receiver) -> Transport:
    bounds = spec.bounds
    return MemoryTransport(
        name,
        spec.app,
        receiver,
        max_message=bounds.max_message,
        max_outbox=bounds.max_outbox,
        patience=(bounds.stop_eof, bounds.stop_term),
    )


def _stdio(name: str, spec: StdioServer, receiver: Receiver, around: Around) -> Transport:
    child = child_environment(spec.env, around.environment(), inherit=spec.inherit_env)
    try:
        command = find_command(spec.command, child, spec.cwd)
    except NotFound as missing:
        raise CommandNotFound(
            missing.why,
            server=name,
            fix="install it, write its full path, or set PATH in the env of this server",
        ) from None
    bounds = spec.bounds
    settings = StdioSettings(
        argv=(command, *spec.args),
        environment=child,
        cwd=spec.cwd,
        stop_eof=bounds.stop_eof,
        stop_term=bounds.stop_term,
        stop_kill=bounds.stop_kill,
        max_message=bounds.max_message,
        max_outbox=bounds.max_outbox,
        stderr_tail=bounds.stderr_tail,
        log_path=around.log_path(name),
        log_file=bounds.log_file,
    )
    return StdioTransport(settings, receiver)


def gate_for(name: str, spec: ServerSpec, around: Around) -> Gate | None:
    """Where a server gets its tokens from; None where it gets none from us."""
    if not isinstance(spec, HttpServer) or spec.auth is False or same_name("authorization", _fixed(spec)):
        return None
    return around.gate(name, spec, lambda: net_settings(spec))


def _fixed(spec: HttpServer) -> Mapping[str, str]:
    return spec.headers if isinstance(spec.headers, Mapping) else {}


def net_settings(spec: HttpServer) -> NetSettings:
    """How a server is reached."""
    from ..net.settings import settings_of

    return settings_of(spec)


def _http(
    name: str, spec: HttpServer, receiver: Receiver, around: Around, known: EraRecord | None, legacy: bool
) -> Transport:
    # Imported where a server needs them.
    from ..transport import headers_command
    from ..transport.http import HttpTransport
    from ..transport.http_headers import HeaderSource
    from ..transport.http_parts import HttpSettings
    from ..transport.legacy_sse import LegacySseTransport

    bounds = spec.bounds
    net = around.net.join()
    client = net.client(net_settings(spec))
    gate = gate_for(name, spec, around)

    async def leave() -> None:
        if gate is not None:
            gate.leave()
        await around.net.leave()
        if gate is not None:
            await gate.aclose()

    command = spec.headers_command
    settings = HttpSettings(
        url=spec.url,
        headers=HeaderSource(
            spec.headers,
            (lambda: headers_command.run(command, around.environment())) if command else None,
            limit=bounds.headers_command,
        ),
        max_message=bounds.max_message,
        max_outbox=bounds.max_outbox,
        first_byte=bounds.first_byte,
        idle=bounds.idle,
        close=bounds.http_close,
        connect=bounds.connect,
        redirects=spec.redirects,
        context=around.context,
        leave=leave,
        gate=gate,
    )
    remembered = spec.transport == "auto" and known is not None and known.transport == "sse"
    if legacy or remembered or spec.transport == "sse":
        return LegacySseTransport(settings, client, receiver)
    return HttpTransport(settings, client, receiver)
