"""The interface of a transport: small enough for one screen.

A transport is made and stopped by one life of a server (``server/life.py``). It calls its receiver from the event
loop, in the order in which things happened; it never waits for the receiver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from ..errors import HttpDetail
from ..wire.framing import Oversize

__all__ = [
    "KEY_REFUSED",
    "Clock",
    "Closed",
    "Failure",
    "Outgoing",
    "OutboxFull",
    "Receiver",
    "Request",
    "StopRecord",
    "Transport",
]


class Closed(msgspec.Struct, frozen=True):
    """How a connection ended."""

    reason: str
    """One clause, fit to follow 'the server'."""
    exit_code: int | None = None
    """Exit code of the process, negative for a signal; None if it is alive or this is not known."""
    stderr_tail: str = ""
    http: HttpDetail | None = None
    """The HTTP answer that was the cause, if one was."""
    needs: str = ""
    """What a person must do first (``auth.needs``), where that was the cause."""


class StopRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the stop of one server took."""

    elapsed: float
    """Seconds."""
    exit_code: int | None = None
    forced: tuple[str, ...] = ()
    """Steps beyond closing stdin: ``TERM``, ``KILL``; empty when it ended by itself."""
    survivors: tuple[int, ...] = ()
    """Processes that would not die within the bounds."""
    unanswered: tuple[str, ...] = ()
    """What a server over HTTP was asked at the end and did not answer within the bounds: ``DELETE``, the end of its
    session."""
    stuck: tuple[str, ...] = ()
    """Tasks and threads of an in-process server, and functions that give headers, that did not end within the bounds,
    by name."""


class OutboxFull(Exception):
    """The server does not read, and too much waits to be written to it."""


class Outgoing(msgspec.Struct, eq=False, gc=False):
    """One frame on its way out. A struct, because one is made for each message."""

    frame: bytes
    """Its bytes; empty once all have left, since an answer may be long in coming."""
    offset: int = 0
    """Bytes that have left, while it is on its way; the frame can be withdrawn only while this is 0."""

    @property
    def started(self) -> bool:
        """True once any byte has left: from here on its effect may happen."""
        return self.offset > 0

    @property
    def finished(self) -> bool:
        """True once every byte has left."""
        return self.offset >= len(self.frame)


class Clock(Protocol):
    """The clock of a request, as far as a transport looks at it."""

    @property
    def expires(self) -> float:
        """The loop's time at which it ends."""


class Request(Protocol):
    """What a transport that sends each request by itself must know of it."""

    @property
    def id(self) -> int:
        """Its JSON-RPC id."""

    @property
    def label(self) -> str:
        """The name of the tool or the prompt, the URI of the resource, where it is about one; else its method."""

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Headers that repeat arguments, where a schema asks for it."""

    @property
    def clock(self) -> Clock:
        """How long there is."""

    @property
    def done(self) -> bool:
        """True once it has an outcome."""

    def login_begins(self, now: float, limit: float) -> None:
        """A person is at a login that it waits for, for at most so many seconds: its clock stands still."""

    def question_ends(self, now: float) -> None:
        """The login is over: its clock goes on."""


KEY_REFUSED = (
    "the server does not take the configured Authorization header: see whether its key is good (still)"
)
"""The next step after a 401 to a login of the user's own."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why one request got no answer, while the connection goes on."""

    kind: Literal["unsent", "turned-away", "session-lost", "broken", "invalid"]
    """What it means for the request: nothing of it left; it was refused before it ran; the same, as the server does
    not know the session any more; nobody knows whether it ran; it ran, and its answer cannot be read."""
    reason: str
    """One clause."""
    http: HttpDetail | None = None
    """The answer that said so."""
    fix: str | None = None
    """The next step, if one is known."""
    needs: str = ""
    """What a person must do before it can be served (``auth.needs``); empty if it is not that."""
    had_login: bool = False
    """With ``needs``: requests of this connection carried a token, so that it is over for all of them."""


class Receiver(Protocol):
    """What a transport tells its session."""

    def message(self, line: bytes | bytearray, about: int | None = None) -> None:
        """A frame came in; its bytes are the receiver's from here on. ``about`` is the id of the request that it came
        with, where the transport knows."""

    def request_failed(self, id_: int, failure: Failure) -> None:
        """One request will get no answer; the others are not touched by that."""

    def error_body(self, id_: int, body: bytes, http: HttpDetail, *, own_only: bool) -> bool:
        """An HTTP error came with a body of JSON. True if that is a JSON-RPC error that answers the request.

        ``own_only``: it must carry the request's own id.
        """

    def session_lost(self) -> None:
        """The server does not know the MCP session any more; the connection can carry another."""

    def may_have_missed(self) -> None:
        """What the server said by itself may have been lost: its lists may be others."""

    def oversize(self, frame: Oversize) -> None:
        """A frame was over the cap and was thrown away."""

    def leader_gone(self, exit_code: int) -> None:
        """The process we started ended well, but others of its group still hold its pipes (a wrapper)."""

    def closed(self, how: Closed) -> None:
        """The connection is over. Called once, and nothing after it."""


class Transport(Protocol):
    """Bytes in and out of one server."""

    @property
    def pid(self) -> int | None:
        """Process id of the server, where it is a process."""

    @property
    def listens(self) -> bool:
        """Whether what the server says by itself, beside answers, comes through at this moment."""

    @property
    def has_headers(self) -> bool:
        """Whether messages have headers, in which parts of them are repeated."""

    @property
    def reads_between_tasks(self) -> bool:
        """Whether answers come from a handle of the loop, and never while a task runs."""

    def start(self) -> None:
        """Begin, in one synchronous step. Called once, before anything else; ``stop`` follows in every case.

        Raises:
            OSError: the system would not.
        """

    async def prepare(self) -> None:
        """What must be there before the first message and takes its time on this side; begun again by each call."""

    def send(self, frame: bytes, request: Request | None = None, method: str = "") -> Outgoing:
        """Hand over one frame; it is written at once as far as the other side takes it.

        Args:
            request: the request in it, if it is one.
            method: its method; empty for an answer to the server.

        Raises:
            OutboxFull: more than ``Bounds.max_outbox`` bytes wait.
            ConnectionError: the way out is closed; no byte of the frame left.
        """

    def withdraw(self, outgoing: Outgoing) -> bool:
        """Take a frame back. True if no byte of it had left, and none will."""

    def let_go(self, outgoing: Outgoing) -> bool:
        """Nobody waits for the answer to a request any more. True if the server learns that by this."""

    def settled(self, revision: str, *, modern: bool) -> None:
        """The era is settled: what is sent from here on is of this revision."""

    def stderr_tail(self) -> str:
        """The last of what the server wrote for people."""

    def note(self, text: bytes) -> None:
        """Keep something for people that came where a message should stand."""

    def give_up(self, reason: str) -> None:
        """End the connection for a reason that the session or its owner found."""

    def hasten(self, deadline: float) -> None:
        """A stop that is under way, or still to come, has to be over by the loop's time ``deadline``."""

    async def stop(self, deadline: float) -> StopRecord:
        """Take the server down within its bounds, and by the loop's time ``deadline`` whatever they say.

        Run by the owner alone; cancellation of the running task never cuts it short.
        """
