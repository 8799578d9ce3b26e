"""Which transport a specification means: the one place that knows all of them.

Called by a life of a server (``life.py``) at each connection it makes; it owns what comes out. What belongs to one
kind of server only (how its program is found, what its death on the probe means) stands in the branch of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..config import MemorySpec, ServerSpec, StdioServer
from ..errors import CommandNotFound, StartError
from ..transport.base import Receiver, Transport
from ..transport.environment import NotFound, child_environment, find_command
from ..transport.memory import MemoryTransport
from ..transport.stdio import StdioSettings, StdioTransport

__all__ = ["connect", "may_die_of_probe", "start"]


def connect(
    name: str,
    spec: ServerSpec,
    receiver: Receiver,
    *,
    environment: Callable[[], Mapping[str, str]],
    log_path: Callable[[str], str | None],
) -> Transport:
    """The transport to a server, not started yet: nothing of it has to be ended before ``start``.

    Args:
        environment: the host's, at this moment.
        log_path: where the log of a server stands, by its name; None for no log.

    Raises:
        CommandNotFound: there is no such program.
    """
    if isinstance(spec, MemorySpec):
        return _memory(name, spec, receiver)
    return _stdio(name, spec, receiver, environment=environment, log_path=log_path)


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


def _stdio(
    name: str,
    spec: StdioServer,
    receiver: Receiver,
    *,
    environment: Callable[[], Mapping[str, str]],
    log_path: Callable[[str], str | None],
) -> Transport:
    child = child_environment(spec.env, environment(), inherit=spec.inherit_env)
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
        log_path=log_path(name),
        log_file=bounds.log_file,
    )
    return StdioTransport(settings, receiver)
