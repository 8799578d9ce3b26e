"""What the user answers and hears: handlers of questions and of notifications.

A question is a request of the server (``roots/list``, ``sampling/createMessage``, ``elicitation/create``), or one of
its modern twins inside an ``input_required`` answer. Only what has a handler is declared to servers (F13.11).
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from .._tasks import run_in_thread
from ..wire.trace import trace_meta
from ..wire.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    LogParams,
    Root,
    decode_params,
)

__all__ = ["Handlers", "NoHandler", "Roots"]

_log = logging.getLogger("moorings")

Elicit = Callable[[str, ElicitParams], ElicitResult | Awaitable[ElicitResult]]
Sample = Callable[[str, CreateMessageParams], CreateMessageResult | Awaitable[CreateMessageResult]]
Roots = Sequence[Root] | Callable[[str], Sequence[Root] | Awaitable[Sequence[Root]]]
OnLog = Callable[[str, LogParams], object]
OnNotification = Callable[[str, str, Any], object]
OnResource = Callable[[str, str], object]
Trace = Callable[[], Mapping[str, str]]


class NoHandler(Exception):
    """Nobody here answers questions of this kind."""


class Handlers(msgspec.Struct, frozen=True, kw_only=True):
    """What the user answers and hears. Each gets the name of the server first.

    Functions may be plain or ``async``. A plain one that answers a question runs in a thread of its own, since it
    may wait for a person; a plain one that only hears something runs on the event loop and must return at once.
    """

    elicit: Elicit | None = None
    """Answers ``elicitation/create`` in form mode."""
    elicit_url: Elicit | None = None
    """Answers ``elicitation/create`` in url mode. Show the whole URL and ask before opening it."""
    sample: Sample | None = None
    """Answers ``sampling/createMessage``."""
    roots: Roots | None = None
    """The folders that servers may work in, or a function of the server's name that gives them."""
    on_log: OnLog | None = None
    """Hears ``notifications/message``."""
    on_notification: OnNotification | None = None
    """Hears every other notification: server, method, decoded params."""
    on_resource_updated: OnResource | None = None
    """Hears ``notifications/resources/updated``: server, uri."""

    trace: Trace | None = None
    """Gives the trace context of the running call: ``traceparent`` and, if there are any, ``tracestate`` and
    ``baggage`` (W3C). It goes into ``_meta`` of each request in the modern era; what has a wrong form is left out."""

    def trace_meta(self) -> dict[str, str]:
        """The trace context of this moment, as it is sent."""
        if self.trace is None:
            return {}
        try:
            found = self.trace()
            return trace_meta(found.get("traceparent"), found.get("tracestate"), found.get("baggage"))
        except Exception as error:  # boundary: the user's function must not decide the outcome of a call
            _log.warning("the function for the trace context failed: %r", error)
            return {}

    async def answer(
        self,
        server: str,
        method: str,
        params: msgspec.Raw | bytes | None,
        *,
        left: set[threading.Thread] | None = None,
    ) -> Any:
        """Answer a question of a server. ``left``: see ``run_in_thread``.

        Raises:
            NoHandler: nobody here answers such questions.
            ValueError: the question cannot be read.
        """
        body = bytes(params) if params is not None else b"{}"
        if method == "roots/list":
            if self.roots is None:
                raise NoHandler(method)
            roots = await _ask(left, self.roots, server) if callable(self.roots) else self.roots
            return ListRootsResult(roots=list(roots))
        if method == "sampling/createMessage":
            if self.sample is None:
                raise NoHandler(method)
            return await _ask(left, self.sample, server, decode_params(body, CreateMessageParams))
        if method == "elicitation/create":
            question = decode_params(body, ElicitParams)
            handler = self.elicit_url if question.mode == "url" else self.elicit
            if handler is not None:
                return await _ask(left, handler, server, question)
        raise NoHandler(method)


async def _ask(left: set[threading.Thread] | None, function: Callable[..., Any], *args: Any) -> Any:
    called = type(function).__call__ if not inspect.isroutine(function) else function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        return await function(*args)
    answer = await run_in_thread(function, *args, name="moorings-question", left=left)
    return await answer if inspect.isawaitable(answer) else answer
