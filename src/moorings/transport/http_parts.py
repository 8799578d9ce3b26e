"""What both HTTP transports stand on: settings, what went wrong as a ``Failure``, answers that are no MCP.

Pure but for reading a bounded excerpt of an answer. What failed is told by its type and its status, never by its text.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .._tasks import TaskOwner
from .._urls import shown_url
from ..config.headers import same_name
from ..errors import HttpDetail, MooringsError
from ..net.errors import DialFailed, NetError, ProxyFailed, RedirectRefused, TlsFailed, TooLarge
from ..wire.http_rules import (
    BODY_KEPT,
    EVENT_STREAM,
    JSON,
    FaultKind,
    first_words,
    judge_refusal,
    judge_unreadable,
    parse_retry_after,
)
from .base import KEY_REFUSED, Failure, Outgoing, Request
from .http_headers import HeadersFailed, HeaderSource
from .http_secrets import Secrets, hidden, hidden_bytes

if TYPE_CHECKING:
    from ..net.client import HttpClient
    from ..net.exchange import Answer
    from .http_auth import Gate

__all__ = [
    "EVENT_STREAM",
    "FAILURES",
    "JSON",
    "Ending",
    "Exchange",
    "HttpSettings",
    "Tries",
    "detail_of",
    "first_bytes",
    "net_failure",
    "our_fault",
    "passes_soon",
    "refusal",
    "retry_after",
    "see_off",
    "unreadable",
]

BODY_WITHIN = 2.0
"""Seconds in which the beginning of a body that is no message is read."""

_log = logging.getLogger("moorings")

DIAL_WAITS = (0.1, 0.5)
"""Seconds after which a dial that failed is tried again: nothing was sent, and a server that is just being restarted
takes no longer. After that the caller is told."""
MOST_WAITS = 3
"""How often one request is sent again to a server that is too busy, and says when to come back."""
SHORTEST_WAIT = 0.1
"""Seconds before that, at least."""


class HttpSettings(msgspec.Struct, frozen=True):
    """What an HTTP transport needs to know of its server."""

    url: str
    headers: HeaderSource
    max_message: int
    max_outbox: int
    first_byte: float
    idle: float
    close: float
    connect: float
    redirects: bool
    context: contextvars.Context
    """What tasks of the transport run in: not that of the call that happened to send."""
    leave: Callable[[], Awaitable[None]]
    """Called once at the end: the client is not used any more."""
    gate: Gate | None = None
    """Where tokens come from; None: a 401 is what it is."""

    def secrets(self) -> Secrets:
        """What of our requests must not be shown, where a server repeats it."""
        own = self.headers.secrets(self.url)
        tokens = self.gate.secrets() if self.gate is not None else ()
        return (*tokens, *own) if tokens else own


class Exchange(Outgoing, eq=False, gc=True, weakref=True):
    """One message on its way by a POST of its own."""

    size: int = 0
    waiting: int = 0
    """Bytes of it that count as waiting to be sent."""
    notice: bool = False
    """True for what no answer is awaited to: a notification, or an answer of ours."""
    session: str | None = None
    """The MCP session that it belongs to."""
    task: asyncio.Task[None] | None = None
    abandoned: bool = False
    """True once nobody waits for the answer."""

    def mark(self) -> None:
        """The first byte leaves."""
        self.offset = self.size


class Tries:
    """What one message may be sent again for by itself: all of it before it ran (law 4). Made for each message."""

    __slots__ = ("_asked_again", "_dials", "_waits")

    def __init__(self) -> None:
        self._dials = 0
        self._waits = 0
        self._asked_again = False

    def turned_away(
        self, answer: Answer, given: Mapping[str, str], headers: HeaderSource, request: Request | None
    ) -> float | None:
        """Seconds after which to send it again: with other headers, or as a server that is too busy wants to be asked
        later and the request's clock has room. None: the answer counts."""
        status = answer.status
        if status == 401:
            if not headers.dynamic or self._asked_again:
                return None
            self._asked_again = True
            headers.forget(given)
            return 0.0
        if status not in (429, 503) or request is None or self._waits == MOST_WAITS:
            return None
        wait = retry_after(answer)
        if wait is None or asyncio.get_running_loop().time() + wait >= request.clock.expires:
            return None
        self._waits += 1
        return max(wait, SHORTEST_WAIT)

    def failed(self, error: NetError, out: Exchange) -> float | None:
        """Seconds after which to dial once more. None: the error counts."""
        # Nothing of it left: once more, a little later, is no second time.
        if error.sent or out.started or not passes_soon(error) or self._dials == len(DIAL_WAITS):
            return None
        self._dials += 1
        return DIAL_WAITS[self._dials - 1]


def retry_after(answer: Answer) -> float | None:
    """Seconds after which the server wants to be asked again, where it says so."""
    return parse_retry_after(answer.headers.get("Retry-After"), time.time())


def detail_of(answer: Answer, settings: HttpSettings, excerpt: str = "") -> HttpDetail:
    """What an error tells of an answer."""
    secrets = settings.secrets()
    headers: Any = answer.headers
    return HttpDetail(
        status=answer.status,
        url=shown_url(answer.url),
        excerpt=excerpt,
        retry_after=retry_after(answer),
        # Bytes that are no text come as halves of characters, which nobody could print.
        challenges=tuple(
            hidden(each, secrets).encode("utf-8", "replace").decode()
            for each in headers.getall("WWW-Authenticate", ())
        ),
    )


async def first_bytes(answer: Answer, settings: HttpSettings) -> bytes:
    """The beginning of a body that is no message, without our secrets: it may be long, slow, or broken off, and all of
    that is fine."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for piece in answer.chunks():
                parts.append(piece)
                size += len(piece)
                if size >= BODY_KEPT:
                    break
    except (NetError, TimeoutError):
        pass  # What came so far is what there is.
    return hidden_bytes(b"".join(parts), settings.secrets())[:BODY_KEPT]


def refusal(answer: Answer, settings: HttpSettings, body: bytes) -> Failure:
    """What an answer that is no message means for its request. ``body`` is its beginning, as ``first_bytes`` says."""
    fault = judge_refusal(
        answer.status,
        answer.content_type,
        body,
        url=answer.url,
        retry_after=retry_after(answer),
        location=answer.headers.get("Location"),
    )
    return Failure(
        kind=_MEANS.get(fault.kind, "turned-away"),
        reason=fault.text,
        http=detail_of(answer, settings, first_words(body)),
        fix=KEY_REFUSED
        if answer.status == 401 and same_name("authorization", settings.headers.latest) is not None
        else None,
    )


def unreadable(answer: Answer, settings: HttpSettings, body: bytes) -> Failure:
    """What a body means in which the answer to the request should have been."""
    body = hidden_bytes(body[:BODY_KEPT], settings.secrets())
    fault = judge_unreadable(answer.status, answer.content_type, body, url=answer.url)
    return Failure(kind="invalid", reason=fault.text, http=detail_of(answer, settings, first_words(body)))


_MEANS: dict[FaultKind, Literal["broken", "invalid"]] = {
    FaultKind.GATEWAY: "broken",
    FaultKind.SERVER: "broken",
    FaultKind.UNKNOWN: "broken",
    FaultKind.NO_ANSWER: "invalid",
    FaultKind.HTML: "invalid",
    FaultKind.CONTENT_TYPE: "invalid",
}
"""What is no refusal: nobody knows whether it ran, or it did and its answer cannot be read."""


FAILURES = (NetError, HeadersFailed, MooringsError)
"""What may come of trying to send: of the way, of the user's headers, of files and settings."""


def net_failure(error: Exception, started: bool = False) -> Failure:
    """Why a request got no answer, from one of ``FAILURES``: what kind of outcome that is (law 4)."""
    if not isinstance(error, NetError):
        # Headers are asked for again where a stream is resumed: its request was sent long ago.
        reason = error.message if isinstance(error, MooringsError) else str(error)
        return Failure(kind="broken" if started else "unsent", reason=reason)
    reason = f"{error.reason} ({error.url})"
    if isinstance(error, RedirectRefused):
        return Failure(
            # "See other" answers what was done (RFC 9110 §15.4.4); the others say that it is to be done elsewhere.
            kind="broken" if error.status == 303 else "turned-away",
            reason=f"{reason}; it points to {error.location}",
            http=HttpDetail(error.status, error.url),
        )
    if not error.sent:
        # Bytes may have left all the same: to a proxy that wants a login, into a TLS that was refused (NetError.sent).
        return Failure(kind="unsent", reason=reason)
    if isinstance(error, TooLarge):
        return Failure(kind="invalid", reason=f"{reason}; the cap is a setting (Bounds.max_message)")
    return Failure(kind="broken", reason=reason)


def our_fault(fault: Exception, out: Exchange) -> Failure:
    """What becomes of a message that a fault in Moorings struck."""
    _log.error("a fault in Moorings, while a message was sent", exc_info=fault)
    return Failure(
        kind="broken" if out.started else "unsent", reason=f"a fault in Moorings: {type(fault).__name__}"
    )


def passes_soon(error: NetError) -> bool:
    """Whether a dial that failed may do better a moment later: not what a person must mend, nor what took all the time
    it was given."""
    if isinstance(error, TlsFailed):
        return error.kind == "handshake"
    if isinstance(error, ProxyFailed):
        return error.status is None or error.status >= 500
    return isinstance(error, DialFailed) and error.kind != "address"


class Ending:
    """How a transport over HTTP ends: a farewell within its bound, then everything is put away. That is never cut
    short by a cancellation, and begun anew where something struck in its middle; the net is left once."""

    def __init__(self, settings: HttpSettings, client: HttpClient, owner: TaskOwner) -> None:
        self._settings = settings
        self._client = client
        self._owner = owner
        self._left = False
        self._bound: asyncio.Timeout | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: object = None

    def begin(self, transport: object) -> None:
        """Its transport is started. From here to its end it is held, so that a loop that is dropped in its middle takes
        nothing along that would complain."""
        self._transport = transport
        _live.add(self)

    def farewell(self, by: float) -> asyncio.Timeout:
        """The bound of the farewell, for ``async with``: the loop's time ``by``, or what ``hasten`` says."""
        self._bound = asyncio.timeout_at(by)
        return self._bound

    def hasten(self, deadline: float) -> None:
        """The farewell has to be over by the loop's time ``deadline``."""
        bound = self._bound
        if bound is not None and (bound.when() or deadline) > deadline:
            with contextlib.suppress(RuntimeError):  # it is over already
                bound.reschedule(deadline)

    async def run(self, deadline: float) -> tuple[str, ...]:
        """By the loop's time ``deadline``, or a moment later; returns the names of what would not end."""
        loop = asyncio.get_running_loop()
        stuck = await self._owner.aclose(max(0.1, min(2.0, deadline - loop.time())))
        # A program that gives headers may have to be forced.
        stuck += await self._settings.headers.aclose(max(0.5, min(2.0, deadline - loop.time())))
        if not self._left:
            self._left = True
            self._client.end_idle(self._settings.url)
            await self._settings.leave()
        _live.discard(self)
        return tuple(stuck)

    def disown(self, *, forked: bool = False) -> None:
        """At the end of the interpreter, unless its loop runs on; and in a forked child."""
        if forked or not self._loop.is_running():
            self._client.disown()


_live: set[Ending] = set()
"""Those of transports that were started and not stopped, in this process."""


def _at_exit() -> None:
    for ending in list(_live):
        ending.disown()


def _after_fork() -> None:
    for ending in _live:
        ending.disown(forked=True)
    # They stay: a child that dropped them would run what the parent's coroutines do at their end.


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


async def see_off(exchanges: Iterable[Exchange], when: float) -> None:
    """Let notices that are on their way leave, until the loop's time ``when``: cancellations above all."""
    leaving = {out.task for out in exchanges if out.notice and out.task is not None}
    if leaving:
        await asyncio.wait(leaving, timeout=max(0.0, when - asyncio.get_running_loop().time()))
