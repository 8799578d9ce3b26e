"""What a server is, as the user says it: what every specification has, that of a program, and the bounds.

Plain frozen values: no I/O, no defaults hidden elsewhere. Every wait and every size of one server has its name here,
with its unit and its default (law 3). A server that is an address stands in ``config/http_spec.py``. Files become these
values in ``config/files.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from .._checks import LONGEST
from ..errors import MisuseError

__all__ = ["Bounds", "Conflict", "Protocol", "ServerSpec", "StdioServer", "text", "words"]

Protocol = Literal["auto", "handshake", "2026-07-28"]
"""Which era to speak: ``auto`` finds out and remembers; the others skip the probe."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every bound of one server. Times in seconds (longer than a week is taken for a week), sizes in bytes; all are
    settings."""

    connect: float = 60.0
    """Spawn or first connection, negotiation and the first lists together."""
    dial: float = 15.0
    """One connection to a server over HTTP: DNS, TCP, the proxy and TLS together."""
    probe: float = 3.0
    """The ``server/discover`` probe, after which the server is taken for one of the handshake era."""
    call: float = 300.0
    """One call without a sign of progress."""
    total: float = 3600.0
    """One call in all: no progress stretches it."""
    first_byte: float = 300.0
    """From the last byte of an HTTP request to the first of its answer; the limits of the call hold too."""
    idle: float = 300.0
    """Silence in a stream of a server over HTTP; its comments count as life."""
    question: float = 600.0
    """One question of the server to a person or a model; the clock of the call stands still meanwhile."""
    stop_eof: float = 2.0
    """From closing stdin until TERM goes to the group."""
    stop_term: float = 2.0
    """From TERM until KILL goes to the group."""
    stop_kill: float = 2.0
    """From KILL until the process is given up and reported."""
    http_close: float = 2.0
    """The DELETE that ends a session over HTTP."""
    headers_command: float = 10.0
    """One run of the command that gives headers."""
    auth: float = 30.0
    """One exchange with an authorization server: a discovery with all its documents, a refresh, one request of a
    login. The login as a whole has a limit of its own (``auth.timeout``)."""
    max_connections: int = 128
    """Connections to one origin (scheme, host and port) at a time; further requests wait for one of them."""
    keep_alive: float = 4.0
    """An idle connection to a server over HTTP is kept so long; below the 5 s after which many servers close theirs."""
    max_message: int = 16 * 1024 * 1024
    """One message from the server; a larger one costs that message only."""
    max_outbox: int = 64 * 1024 * 1024
    """What may wait to be written to a server that does not read."""
    max_pages: int = 1000
    """Pages followed of one list."""
    max_rounds: int = 10
    """Rounds of ``input_required`` in one call."""
    notifications: int = 1000
    """Notifications waiting for their handler; older ones are dropped and counted."""
    questions: int = 32
    """Requests of the server being answered at one time, handlers that still run after their question was taken back
    included; more are refused."""
    stderr_tail: int = 16 * 1024
    """What is kept in memory of stderr, for errors."""
    log_file: int = 1024 * 1024
    """Size at which the log of a server is rotated (one old file is kept); 0 means no log file."""
    cooldown: float = 1.0
    """Wait after a failed start before the next is tried; doubles with each failure."""
    cooldown_max: float = 60.0
    """Longest such wait."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            whole = isinstance(self.__class__.__struct_defaults__[self.__struct_fields__.index(name)], int)
            kind = int if whole else int | float
            if isinstance(value, bool) or not isinstance(value, kind) or not value >= 0:
                raise MisuseError(
                    f"{name} is {'a whole number' if whole else 'a number'}, 0 or more; not {value!r}"
                )
            if not whole and value > LONGEST:
                if value == float("inf"):
                    raise MisuseError(f"{name} is infinite, and every wait has an end")
                msgspec.structs.force_setattr(self, name, LONGEST)


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the specification of any server has; made as a ``StdioServer`` or an ``HttpServer``."""

    protocol: Protocol = "auto"
    """The era to speak: ``auto`` finds out and remembers, ``handshake`` never probes, ``2026-07-28`` is the modern era
    alone."""
    required: bool = False
    """If True, ``wait_ready`` and the entry of a run fail when this server is not ready."""
    lazy: bool = False
    """If True, the server is started by its first use and not with the host."""
    enabled: bool = True
    """If False, it is not started until ``enable``."""
    include: tuple[str, ...] | None = None
    """Globs on raw tool names; None means all, an empty list none. Case-sensitive."""
    exclude: tuple[str, ...] = ()
    """Globs on raw tool names, taken away after ``include``."""
    bounds: Bounds = Bounds()
    """Its limits, in place of those of the host."""
    unresolved: tuple[str, ...] = ()
    """Variables that a disabled entry of a file refers to and that were not set: it cannot be enabled so, and what
    refers to them stands here as it was written."""

    def __post_init__(self) -> None:
        """Lists are taken as tuples; what cannot be meant is refused at once.

        Raises:
            MisuseError: a field of the wrong kind; values are not shown, as they may be secrets.
        """
        set_ = msgspec.structs.force_setattr
        if self.include is not None:
            set_(self, "include", words("include", self.include))
        set_(self, "exclude", words("exclude", self.exclude))
        if self.protocol not in get_args(Protocol):
            raise MisuseError(f"protocol is one of {', '.join(get_args(Protocol))}, not {self.protocol!r}")
        if not isinstance(self.bounds, Bounds):
            raise MisuseError(f"bounds is a Bounds, not {type(self.bounds).__name__}")

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The fields, those of its own kind first, without the values that are secrets."""
        shared = ServerSpec.__struct_fields__
        names = [name for name in self.__struct_fields__ if name not in shared]
        return [(name, self._shown(name, getattr(self, name))) for name in (*names, *shared)]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"
        )

    def _shown(self, name: str, value: Any) -> Any:
        """A value as people may see it."""
        return value

    def fingerprint(self) -> str:
        """What makes two specifications the same server, as the key of its era. Empty: that is not remembered."""
        return ""


class StdioServer(ServerSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that is a program, spoken to over its stdin and stdout."""

    command: str
    """The program: a path, or a name looked up on the *server's* PATH. Never a shell line."""
    args: tuple[str, ...] = ()
    """Its arguments, passed as they stand."""
    env: Mapping[str, str] = {}
    """Added to the few variables that every server gets, in place of those of the same name."""
    inherit_env: bool | tuple[str, ...] = False
    """True: the host's whole environment; or the names of further variables to pass on."""
    cwd: str | None = None
    """Working directory; the host's own if None."""

    def __post_init__(self) -> None:
        """Paths are taken as text, lists as tuples; what cannot be meant is refused at once.

        Raises:
            MisuseError: a field of the wrong kind; values are not shown, as they may be secrets.
        """
        super().__post_init__()
        set_ = msgspec.structs.force_setattr
        set_(self, "command", text("command", self.command))
        if not self.command:
            raise MisuseError("command is empty")
        set_(self, "args", words("args", self.args))
        if self.cwd is not None:
            set_(self, "cwd", text("cwd", self.cwd))
        _check_env(self.env)
        if not isinstance(self.inherit_env, bool):
            set_(self, "inherit_env", words("inherit_env", self.inherit_env))

    def _shown(self, name: str, value: Any) -> Any:
        """Of the environment the names only, as its values are secrets."""
        return dict.fromkeys(value, "…") if name == "env" else value

    def fingerprint(self) -> str:
        """What makes two specifications the same program: the key under which its era is remembered.

        Values of the environment stay out: they hold secrets, and a hash of a short secret can be undone.
        """
        parts = [self.command, self.args, self.cwd, sorted(self.env)]
        try:
            identity = msgspec.json.encode(parts)
        except UnicodeEncodeError:
            # Names of files that are no UTF-8 come as lone surrogates (PEP 383), which JSON has no bytes for.
            identity = json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return hashlib.sha256(identity).hexdigest()[:32]


def _check_env(env: Any) -> None:
    if not isinstance(env, Mapping):
        raise MisuseError(f"env is a mapping of names to text, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MisuseError(f"env[{name!r}] is text, not {type(value).__name__}")


class Conflict(NamedTuple):
    """A field that is wrong in its form, or beside another."""

    field: str
    message: str
    fix: str | None = None


def text(field: str, value: object) -> str:
    """A text, or a path as text.

    Raises:
        MisuseError: it is neither, or holds a NUL.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise MisuseError(f"{field} is text or a path, not {type(value).__name__}")
    if "\0" in value:
        raise MisuseError(f"{field} cannot hold a NUL character")
    return value


def words(field: str, values: Any) -> tuple[str, ...]:
    """A list of words as a tuple.

    Raises:
        MisuseError: it is one text, or no list of texts.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | Set):
        raise MisuseError(
            f"{field} is a list of words, not {type(values).__name__}",
            fix=f'write {field}=("one", "two"), one element for each word',
        )
    return tuple(text(f"{field}[{at}]", value) for at, value in enumerate(values))
