"""What both HTTP transports stand on: settings, what went wrong as a ``Failure``, answers that are no MCP.

Pure but for reading a bounded excerpt of an answer. What failed is told by its type and its status, never by its text.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import HttpDetail, MooringsError
from ..net.addresses import redacted
from ..net.errors import NetError, RedirectRefused, TooLarge
from ..wire.http_rules import parse_retry_after
from .base import Failure, Outgoing
from .http_headers import HeaderSource, HeadersFailed

if TYPE_CHECKING:
    from ..net.client import Answer

__all__ = ["EVENT_STREAM", "FAILURES", "JSON", "Exchange", "HttpSettings", "detail_of", "net_failure", "see_off"]

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

DIAL_WAITS = (0.1, 0.5)
"""Seconds after which a dial that failed is tried again: nothing was sent, and a server that is just being restarted
takes no longer. After that the caller is told."""


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


class Exchange(Outgoing, eq=False, gc=True, weakref=True):
    """One message on its way by a POST of its own."""

    size: int = 0
    notice: bool = False
    """True for what no answer is awaited to: a notification, or an answer of ours."""
    task: asyncio.Task[None] | None = None
    abandoned: bool = False
    """True once nobody waits for the answer."""

    def mark(self) -> None:
        """The first byte leaves."""
        self.offset = self.size


def detail_of(answer: Answer, excerpt: str = "") -> HttpDetail:
    """What an error tells of an answer."""
    headers = answer.headers
    return HttpDetail(
        status=answer.status,
        url=redacted(answer.url),
        excerpt=excerpt,
        retry_after=parse_retry_after(headers.get("Retry-After")),
        challenges=tuple(_all(headers, "WWW-Authenticate")),
    )


def _all(headers: Mapping[str, str], name: str) -> Iterable[str]:
    getall: Any = getattr(headers, "getall", None)
    return getall(name, ()) if getall is not None else filter(None, (headers.get(name),))


FAILURES = (NetError, HeadersFailed, MooringsError)
"""What may come of trying to send: of the way, of the user's headers, of files and settings."""


def net_failure(error: Exception, sent: bool) -> Failure:
    """Why a request got no answer, from one of ``FAILURES``: what kind of outcome that is (law 4)."""
    if isinstance(error, MooringsError):
        return Failure(kind="unsent", reason=error.message)
    if not isinstance(error, NetError):
        return Failure(kind="unsent", reason=str(error))
    reason = f"{error.reason} ({error.url})"
    if not (error.sent or sent):
        return Failure(kind="unsent", reason=reason)
    if isinstance(error, RedirectRefused):
        return Failure(kind="turned-away", reason=reason)
    if isinstance(error, TooLarge):
        return Failure(kind="invalid", reason=f"{reason}; the cap is a setting (Bounds.max_message)")
    return Failure(kind="broken", reason=reason)


async def see_off(exchanges: Iterable[Exchange], when: float) -> None:
    """Let notices that are on their way leave, until the loop's time ``when``: cancellations above all."""
    leaving = {out.task for out in exchanges if out.notice and out.task is not None}
    if leaving:
        await asyncio.wait(leaving, timeout=max(0.0, when - asyncio.get_running_loop().time()))
