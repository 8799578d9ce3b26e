"""The session: ids, deadlines, cancellation and progress of requests; notifications and questions of the server.

Made by a life of a server over one transport, and ended by it; after ``fail`` and ``aclose`` nothing of it is left.
The transport calls it from the loop; it never waits there: an answer resolves its caller's future at once, all else
runs in tasks that the session owns. So a handler may use the same session, and 1,000 notifications that nobody reads
block nothing. Sources: MCP ``basic/utilities/{cancellation,progress}``, JSON-RPC 2.0.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .._tasks import TaskOwner
from ..errors import (
    AmbiguousDelivery,
    CallCancelled,
    CallError,
    CallTimeout,
    HttpDetail,
    MisuseError,
    NeedsLogin,
    NotSent,
    Refused,
    last_words,
)
from ..transport.base import Closed, Failure, OutboxFull, Transport
from ..wire import jsonrpc
from ..wire.eras import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, Era, method_exists
from ..wire.framing import Oversize, find_ends
from ..wire.headers import ParamHeaders, Unmirrorable
from ..wire.http_rules import TURNED_AWAY, rpc_error_in
from ..wire.jsonrpc import UNREADABLE, decode_envelope, encode_call
from ..wire.types import (
    CancelledParams,
    InvalidAnswer,
    ProgressParams,
    ResourceUpdatedParams,
    SubscriptionAcknowledgedParams,
    SubscriptionFilter,
    decode_params,
    encode,
)
from .clock import CallClock
from .handlers import Handlers, NoHandler
from .notices import Notices
from .pending import KEPT_PROGRESS, OnProgress, Pending
from .waiter import DirectWaiter, Waiter, goes_on_at_once

__all__ = ["Counters", "QuestionUnanswered", "Session", "SessionHooks"]

_log = logging.getLogger("moorings")


class Counters(msgspec.Struct):
    """What a session counted; plain numbers, read at any time."""

    calls: int = 0
    late_answers: int = 0
    """Answers to ids that were given up."""
    unknown_ids: int = 0
    """Answers to ids never used."""
    not_jsonrpc: int = 0
    """Lines that were no JSON-RPC message."""
    repaired: int = 0
    """Messages that were not UTF-8."""
    oversize: int = 0
    stray_progress: int = 0
    """Progress for tokens that are unknown or done."""
    dropped_notifications: int = 0
    unheard_notifications: int = 0
    refused_questions: int = 0
    handler_errors: int = 0


class SessionHooks(msgspec.Struct, frozen=True):
    """What the owner of a session wants to hear, each called on the loop and returning at once."""

    closed: Callable[[Closed], None]
    leader_gone: Callable[[int], None]
    list_changed: Callable[[str], None]
    """``tools``, ``prompts`` or ``resources``."""
    acknowledged: Callable[[int, SubscriptionFilter], None]
    """A listen stream was acknowledged: its id and the filter granted."""
    noise: Callable[[bytes], None]
    """What came and was no JSON-RPC."""
    resource_changed: Callable[[str], None] = lambda uri: None
    """A resource was said to be another now."""
    session_lost: Callable[[], None] = lambda: None
    """The server does not know the MCP session any more."""
    needs_login: Callable[[Failure], None] = lambda failure: None
    """A request got no token that the server takes, and only a person can change that."""
    may_have_missed: Callable[[], None] = lambda: None
    """What the server said by itself may have been lost."""


_LIST_CHANGED = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}


class QuestionUnanswered(Exception):
    """A question of the server has no answer: its limit passed, or its handler failed."""


class Session:
    """One conversation. See the module for who owns it and what it may do."""

    def __init__(
        self,
        server: str,
        handlers: Handlers,
        hooks: SessionHooks,
        *,
        notifications: int,
        questions: int,
        question_limit: float,
    ) -> None:
        self.server = server
        self.era = Era.HANDSHAKE
        self.revision = ""
        self.counters = Counters()
        self._envelope: dict[str, Any] | None = None
        self._envelope_members = b""
        self.end: Closed | None = None
        """How the connection ended; None while it lives."""
        self.broken = False
        """True once a frame found the way out closed: the end is known to come, and its reason is waited for."""
        self.rules_set = False
        """True once the era is settled; until then requests go out as they are."""
        self.loop = asyncio.get_running_loop()
        self._handlers = handlers
        self._keeps_context = bool(
            handlers.elicit or handlers.elicit_url or handlers.sample or handlers.roots
        )
        """The caller's context is kept only where a handler could want it."""
        self._traces = handlers.trace is not None
        self._hooks = hooks
        self._transport: Transport | None = None
        self._ways_apart = False
        """True where each request has a way of its own, on which its answer is to come."""
        self._fulfilled: asyncio.Future[None] | None = None
        """What the tasks of plain calls are woken with, where the reader may go on with them at once."""
        self._pending: dict[int, Pending] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = math.inf
        """When the clocks are looked at next."""
        self._next_id = 1
        self._calls = 0
        """Requests that went out. A plain number, as a struct takes a new value slowly."""
        self._owner = TaskOwner(f"session of {server}")
        self._notices = Notices(self._owner, self.counters, limit=notifications)
        self._unheard = self._notices.queue
        """Not empty, and so true, while something that came waits to be heard."""
        self._questions: dict[Any, asyncio.Task[None]] = {}
        self._left: set[threading.Thread] = set()
        """Threads of plain handlers that go on though their question is over."""
        self._max_questions = questions
        self._question_limit = question_limit
        self.param_rules: dict[str, ParamHeaders] = {}
        """Of tools whose arguments are repeated in headers, in part; from the newest listing."""

    def settle(self, era: Era, revision: str, envelope: dict[str, Any] | None = None) -> None:
        """The era is settled: from here on its rules hold. Once more after the server lost the MCP session."""
        self.era, self.revision, self.rules_set = era, revision, True
        self.envelope = envelope
        if self._transport is not None:
            self._transport.settled(revision, modern=era is Era.MODERN)

    def unsettle(self) -> None:
        """The server forgot all that was settled: it is settled anew."""
        self.rules_set = False

    @property
    def repeats_params(self) -> bool:
        """Whether arguments that a schema marks are repeated in headers."""
        return self.era is Era.MODERN and self._transport is not None and self._transport.has_headers

    @property
    def listens(self) -> bool:
        """Whether the server can tell something by itself at this moment."""
        return self._transport is not None and self._transport.listens

    def _param_headers(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, str] | None:
        rules = self.param_rules.get(tool)
        if rules is None:
            return None
        try:
            return rules.of(arguments)
        except Unmirrorable as error:
            raise MisuseError(f"the arguments of {tool}: {error}", server=self.server) from None

    @property
    def envelope(self) -> dict[str, Any] | None:
        """``_meta`` of each request in the modern era; None in the other. It is set anew and never changed."""
        return self._envelope

    @envelope.setter
    def envelope(self, members: dict[str, Any] | None) -> None:
        self._envelope = members
        self._envelope_members = jsonrpc.encode_members(members or {})

    def attach(self, transport: Transport) -> None:
        """Give the session its way out, before anything comes in."""
        self._transport = transport
        self._ways_apart = transport.has_headers
        if transport.reads_between_tasks and goes_on_at_once(self.loop):
            self._fulfilled = self.loop.create_future()
            self._fulfilled.set_result(None)

    def counted(self) -> Counters:
        """What was counted until now."""
        return msgspec.structs.replace(self.counters, calls=self._calls)

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._pending)

    def calls_in_flight(self) -> int:
        """Requests that wait for an answer, streams not counted."""
        return sum(pending.method != "subscriptions/listen" for pending in self._pending.values())

    def in_flight(self, method: str) -> bool:
        """Whether a request of this method waits for its answer."""
        return any(pending.method == method for pending in self._pending.values())

    def sizes(self) -> dict[str, int]:
        """How much each table holds; all zero when nothing is under way."""
        return {
            "pending": len(self._pending),
            "questions": len(self._questions),
            "notices": len(self._notices),
            "tasks": len(self._owner),
        }

    # Requests to the server

    def begin(
        self,
        method: str,
        params: dict[str, Any] | None,
        clock: CallClock,
        *,
        label: str | None = None,
        on_progress: OnProgress | None = None,
        progress: bool = False,
        on_sent: Callable[[int], None] | None = None,
        any_era: bool = False,
    ) -> Pending:
        """Send a request; its outcome is awaited with ``Pending.wait``.

        Args:
            label: what error texts call it (the tool); the method if None.
            progress: ask the server for progress, which extends the clock.
            on_sent: told the id before the request goes out.
            any_era: send it also where the era has no such method.

        Raises:
            NotSent: the connection is over, its outbox is full, or its era has no such method.
            CallTimeout: its clock has run out already.
            MisuseError: the params cannot be written as JSON.
        """
        label = label or method
        self._check_open(label, clock)
        if self.rules_set and not any_era and not method_exists(method, self.era):
            raise self._not_sent(label, clock, f"{method} does not exist in revision {self.revision}")
        id_ = self._next_id
        body = dict(params) if params else {}
        if self.envelope is not None or progress or on_progress is not None:
            meta: dict[str, Any] = dict(self.envelope) if self.envelope is not None else {}
            if self.envelope is not None and self._handlers.trace is not None:
                meta |= self._handlers.trace_meta()
            if progress or on_progress is not None:
                meta["progressToken"] = id_
            given = body.get("_meta")
            body["_meta"] = {**given, **meta} if given else meta
        try:
            frame = jsonrpc.encode_request(id_, method, body)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._no_json(label, error) from None
        context = contextvars.copy_context() if self._keeps_context else None
        progressed = deque[ProgressParams](maxlen=KEPT_PROGRESS) if on_progress is not None else None
        waiter = self.loop.create_future()
        pending = Pending(self, id_, method, label, clock, waiter, context, on_progress, progressed)
        if self.param_rules and method == "tools/call":
            pending.headers = self._param_headers(label, body.get("arguments") or {})
        if on_sent is not None:
            on_sent(id_)
        self._send(pending, frame)
        return pending

    def begin_call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        clock: CallClock,
        *,
        waiter: Waiter | None = None,
        context: contextvars.Context | None = None,
    ) -> Pending:
        """Send ``tools/call``: the same as ``begin``, without what a plain call does not need.

        Args:
            waiter: where the outcome goes; None for one that the running task awaits, at once and only once.
            context: the caller's, where it is not that of the running task.

        Raises: as ``begin``.
        """
        transport = self._transport
        # The clock of a plain call was made in this very step.
        if transport is None or self.end is not None or clock.expires <= clock.started:
            self._check_open(tool, clock)
        id_ = self._next_id
        members = self._envelope_members
        if self._traces and members:
            trace = self._handlers.trace_meta
            members += jsonrpc.encode_members(context.run(trace) if context is not None else trace())
        try:
            frame = encode_call(id_, tool, arguments, members)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._no_json(tool, error) from None
        if context is None and self._keeps_context:
            context = contextvars.copy_context()
        if waiter is None:
            done = self._fulfilled
            waiter = self.loop.create_future() if done is None else DirectWaiter(self.loop, done)
        pending = Pending(self, id_, "tools/call", tool, clock, waiter, context)
        if self.param_rules:
            pending.headers = self._param_headers(tool, arguments)
        # As ``_send``, whose frame of the stack a plain call does without.
        self._next_id = id_ + 1
        self._pending[id_] = pending
        try:
            pending.outgoing = transport.send(frame, pending, "tools/call")  # type: ignore[union-attr]  # it is open
        except (ConnectionError, OutboxFull, ValueError) as error:
            raise self._unsent(pending, error) from None
        self._calls += 1
        if clock.expires < self._next_look:
            self.look_at(clock.expires)
        return pending

    def _check_open(self, label: str, clock: CallClock) -> None:
        if self.end is not None or self._transport is None:
            raise self._not_sent(label, clock, self._why_closed())
        if clock.ran_out(now := self.loop.time()):
            # Its answer may come in the same turn as the timer: what is too late must not run at all.
            raise CallTimeout(
                f"not sent: {clock.limit()} had passed",
                server=self.server,
                tool=label,
                sent=False,
                elapsed=clock.elapsed(now),
                allowed=clock.allowed(),
            )

    def _send(self, pending: Pending, frame: bytes) -> None:
        """Hand a request to the transport; from here on its clock runs and its answer is known."""
        id_ = pending.id
        self._next_id = id_ + 1
        self._pending[id_] = pending
        try:
            pending.outgoing = self._transport.send(frame, pending, pending.method)  # type: ignore[union-attr]  # it is open: that was checked
        except (ConnectionError, OutboxFull, ValueError) as error:
            raise self._unsent(pending, error) from None
        self._calls += 1
        if pending.clock.expires < self._next_look:
            self.look_at(pending.clock.expires)

    def _unsent(self, pending: Pending, error: Exception) -> NotSent | MisuseError:
        """The transport did not take it."""
        del self._pending[pending.id]
        if isinstance(error, ValueError):
            return MisuseError(f"the params of {pending.label}: {error}", server=self.server)
        self.broken = self.broken or isinstance(error, ConnectionError)
        return self._not_sent(pending.label, pending.clock, str(error))

    def _no_json(self, label: str, error: Exception) -> MisuseError:
        return MisuseError(f"the params of {label} are no JSON: {error}", server=self.server)

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None,
        clock: CallClock,
        *,
        label: str | None = None,
        on_progress: OnProgress | None = None,
        progress: bool = False,
        any_era: bool = False,
    ) -> Raw:
        """Send a request and wait for its result, as bytes.

        Raises:
            CallError: every other outcome (see ``errors``).
        """
        pending = self.begin(
            method,
            params,
            clock,
            label=label,
            on_progress=on_progress,
            progress=progress,
            any_era=any_era,
        )
        return await pending.wait()

    def notify(self, method: str, params: Any = None) -> bool:
        """Send a notification. False if the connection is over or full: notifications may be lost."""
        if self.end is not None or self._transport is None:
            return False
        return self._write(jsonrpc.encode_notification(method, params), method)

    def _write(self, frame: bytes, method: str = "") -> bool:
        if self._transport is None:
            return False
        try:
            self._transport.send(frame, None, method)
        except (ConnectionError, OutboxFull):
            return False
        return True

    def _not_sent(self, label: str, clock: CallClock, why: str) -> NotSent:
        return NotSent(
            f"not sent: {why}",
            server=self.server,
            tool=label,
            sent=False,
            elapsed=clock.elapsed(self.loop.time()),
        )

    def _why_closed(self) -> str:
        return describe(self.end) if self.end is not None else "it is not connected"

    def give_up(self, pending: Pending, reason: str) -> bool:
        """Forget a request and tell the server. Returns whether any of it had left."""
        self._pending.pop(pending.id, None)
        outgoing = pending.outgoing
        if outgoing is None:
            return False
        if self._transport is None or self.end is not None:
            return outgoing.started
        if self._transport.withdraw(outgoing):
            return False
        # ``initialize`` must not be cancelled; everything else is, by a notice where the transport has no other way.
        if not self._transport.let_go(outgoing) and pending.method != "initialize":
            self.notify("notifications/cancelled", {"requestId": pending.id, "reason": reason})
        return True

    def look_at(self, when: float) -> None:
        """Look at the clocks at the loop's time ``when``, or before: one timer serves all requests in flight."""
        if when < self._next_look:
            if self._timer is not None:
                self._timer.cancel()
            self._next_look = when
            self._timer = self.loop.call_at(when, self._look)

    def _look(self) -> None:
        """End what has run out. Progress and answers only move clocks or take them away, which shows here."""
        self._timer, self._next_look = None, math.inf
        now, nearest = self.loop.time(), math.inf
        for pending in list(self._pending.values()):
            if not pending.limited:
                continue
            when = pending.clock.next_look()
            if now >= when:
                self.expire(pending)
            else:
                nearest = min(nearest, when)
        if nearest < math.inf and self.end is None:
            self.look_at(nearest)

    def is_waiting(self, pending: Pending) -> bool:
        """True while a request has no outcome here."""
        return self._pending.get(pending.id) is pending

    def expire(self, pending: Pending) -> None:
        """The clock of a request ran out."""
        now = self.loop.time()
        clock = pending.clock
        allowed = clock.allowed()
        sent = self.give_up(pending, "timed out")
        limit = clock.limit()
        pending.fail(
            CallTimeout(
                f"no answer within {limit}",
                server=self.server,
                tool=pending.label,
                sent=sent,
                elapsed=clock.elapsed(now),
                allowed=allowed,
            )
        )

    def cancel(self, pending: Pending, reason: str) -> None:
        """End a request as cancelled, from outside of its caller."""
        if pending.done:
            return
        sent = self.give_up(pending, reason)
        pending.fail(
            CallCancelled(
                reason,
                server=self.server,
                tool=pending.label,
                sent=sent,
                elapsed=pending.clock.elapsed(self.loop.time()),
            )
        )

    # What comes in (Receiver)

    def message(self, line: bytes | bytearray, about: int | None = None) -> None:
        """A frame from the transport. After the end nothing is heard any more."""
        if self.end is not None:
            return
        if not line.startswith(b"{"):
            self._read_closely(line, about)
            return
        try:
            envelope = decode_envelope(line)
        except UNREADABLE:
            self._read_closely(line, about)
            return
        id_ = envelope.id
        if (
            type(id_) is int
            and type(envelope.result) is Raw
            and envelope.method is UNSET
            and envelope.error is UNSET
        ):
            # By far the most frequent: the result of a request of ours. It goes straight to its waiter.
            pending = self._pending.pop(id_, None)
            if pending is None:
                self._count_stray(id_)
            elif pending.news is None and not self._unheard and not self._questions:
                waiter = pending.waiter
                if not waiter.done():
                    waiter.set_result(envelope.result)
                if self._ways_apart and about != id_:
                    self._came_elsewhere(pending)
            else:
                pending.succeed(envelope.result)
                if about != id_ and self._ways_apart:
                    self._came_elsewhere(pending)
        elif envelope.is_message:
            self._sort(envelope, about)
        else:
            self._read_closely(line, about)

    def _read_closely(self, line: bytes | bytearray, about: int | None) -> None:
        messages, repaired = jsonrpc.parse(line)
        if repaired:
            self.counters.repaired += 1
            _log.warning("server %s: a message was no clean JSON; what was wrong was replaced", self.server)
        if not messages:
            if not line.isspace() and not self._fail_unreadable(line):
                self.counters.not_jsonrpc += 1
                self._hooks.noise(bytes(line) + b"\n")
            return
        for envelope in messages:
            self._sort(envelope, about)

    def _sort(self, envelope: jsonrpc.Envelope, about: int | None) -> None:
        if isinstance(envelope.method, UnsetType):
            self._on_answer(envelope, about)
        elif isinstance(envelope.id, UnsetType) or envelope.id is None:
            self._on_notification(envelope.method, envelope.params)
        else:
            self._on_question(envelope.id, envelope.method, envelope.params, about)

    def _fail_unreadable(self, line: bytes | bytearray) -> bool:
        """An answer that is no JSON, but shows whose it is, costs that call and nothing more."""
        if line.lstrip()[:1] != b"{":
            return False
        id_, has_method = find_ends(bytes(line[:4096]), bytes(line[-4096:]))
        mine = jsonrpc.match_id(id_)
        if has_method or mine is None or mine not in self._pending:
            return False
        pending = self._pending.pop(mine)
        head = bytes(line[:200]).decode("utf-8", "replace")
        pending.fail(self.invalid(pending, f"it is no JSON; it begins {head!r}"))
        return True

    def _take(self, echoed: Any) -> Pending | None:
        """The request that an echoed id means; strays are counted."""
        id_ = jsonrpc.match_id(echoed)
        pending = self._pending.pop(id_, None) if id_ is not None else None
        if pending is None:
            self._count_stray(id_)
        return pending

    def _count_stray(self, id_: int | None) -> None:
        if id_ is not None and 0 < id_ < self._next_id:
            self.counters.late_answers += 1
        else:
            self.counters.unknown_ids += 1

    def _came_elsewhere(self, pending: Pending) -> None:
        """An answer came on another request's way, or on none's: its own may stay silent, and holds a connection."""
        if pending.outgoing is not None and self._transport is not None:
            self._transport.let_go(pending.outgoing)

    def _on_answer(self, envelope: jsonrpc.Envelope, about: int | None) -> None:
        pending = self._take(envelope.id)
        if pending is None:
            return
        if about != pending.id and self._ways_apart:
            self._came_elsewhere(pending)
        if not isinstance(envelope.error, UnsetType) and bytes(envelope.error) != b"null":
            error = jsonrpc.decode_error(envelope.error)
            pending.fail(self.refusal(error, pending))
        elif not isinstance(envelope.result, UnsetType):
            pending.succeed(envelope.result)
        else:
            pending.fail(self.invalid(pending, "an answer with neither result nor error"))

    def refusal(self, error: jsonrpc.RpcError, pending: Pending, http: HttpDetail | None = None) -> Refused:
        """The outcome that a JSON-RPC error means; ``http`` if it was the body of an HTTP error."""
        status = f", HTTP {http.status}" if http is not None else ""
        refusal = Refused(
            f"refused by the server: {error.message or 'no reason given'} (code {error.code}{status})",
            rpc_code=error.code,
            data=error.data,
            server=self.server,
            tool=pending.label,
            sent=http is None or http.status not in TURNED_AWAY,
            elapsed=pending.clock.elapsed(self.loop.time()),
        )
        refusal.http = http
        return refusal

    def invalid(self, pending: Pending, why: str) -> AmbiguousDelivery:
        """The outcome of an answer that cannot be read: it ran, and we do not know how (F6.5)."""
        return AmbiguousDelivery(
            f"invalid answer: {why}",
            server=self.server,
            tool=pending.label,
            sent=True,
            elapsed=pending.clock.elapsed(self.loop.time()),
        )

    def oversize(self, frame: Oversize) -> None:
        """A frame over the cap: its caller, or its asker, is told."""
        self.counters.oversize += 1
        what = f"a message of {frame.size} bytes is over the cap of {frame.cap} bytes (Bounds.max_message)"
        _log.warning("server %s: %s", self.server, what)
        if frame.id is None:
            return
        if frame.has_method:
            self._write(jsonrpc.encode_error(frame.id, INVALID_REQUEST, what))
            return
        pending = self._take(frame.id)
        if pending is not None:
            pending.fail(self.invalid(pending, what))

    def request_failed(self, id_: int, failure: Failure) -> None:
        """One request gets no answer; the connection goes on."""
        pending = self._pending.pop(id_, None)
        if pending is not None:
            pending.fail(self._failed(failure, pending))

    def _failed(self, failure: Failure, pending: Pending) -> CallError:
        elapsed = pending.clock.elapsed(self.loop.time())
        kind, reason = failure.kind, failure.reason
        error: CallError
        if failure.needs:
            self._hooks.needs_login(failure)
        # A login may be wanted where a stream is resumed: its request was carried out long ago.
        if failure.needs and kind != "broken":
            error = NeedsLogin(
                reason,
                reason=failure.needs,
                server=self.server,
                tool=pending.label,
                elapsed=elapsed,
                fix=failure.fix,
            )
        elif kind == "turned-away":
            error = Refused(reason, sent=False, server=self.server, tool=pending.label, elapsed=elapsed)
        elif kind in ("unsent", "session-lost"):
            error = NotSent(
                f"not sent: {reason}", server=self.server, tool=pending.label, sent=False, elapsed=elapsed
            )
        elif kind == "invalid":
            error = self.invalid(pending, reason)
        else:
            error = AmbiguousDelivery(
                f"sent, but not answered: {reason}",
                server=self.server,
                tool=pending.label,
                sent=True,
                elapsed=elapsed,
            )
        error.http = failure.http
        error.fix = error.fix or failure.fix
        error.elsewhere = kind in ("session-lost", "broken")
        return error

    def error_body(self, id_: int, body: bytes, http: HttpDetail, *, own_only: bool) -> bool:
        """A JSON-RPC error as the body of an HTTP error, which may carry no id."""
        found = rpc_error_in(body)
        if found is None or (own_only and jsonrpc.match_id(found[0]) != id_):
            return False
        pending = self._pending.pop(id_, None)
        if pending is not None:
            pending.fail(self.refusal(found[1], pending, http))
        return True

    def session_lost(self) -> None:
        """The server does not know the MCP session any more."""
        self._hooks.session_lost()

    def may_have_missed(self) -> None:
        """What the server said by itself may have been lost."""
        self._hooks.may_have_missed()

    def leader_gone(self, exit_code: int) -> None:
        """The process we started went, its children live on: the owner asks whether the server does."""
        self._hooks.leader_gone(exit_code)

    def closed(self, how: Closed) -> None:
        """The connection is over: every waiter is told at once."""
        if self.end is not None:
            return
        self.end = how
        why = describe(how)
        waiting, self._pending = list(self._pending.values()), {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self.loop.time()
        for pending in waiting:
            sent = pending.outgoing is not None and pending.outgoing.started
            kind: type[CallError] = AmbiguousDelivery if sent else NotSent
            error = kind(
                f"sent, but not answered: {why}" if sent else f"not sent: {why}",
                server=self.server,
                tool=pending.label,
                sent=sent,
                elapsed=pending.clock.elapsed(now),
            )
            pending.fail(error)
        for task in self._questions.values():
            task.cancel()
        self._hooks.closed(how)

    # Notifications

    def _on_notification(self, method: str, params: Raw | UnsetType) -> None:
        if method == "notifications/progress":
            self._on_progress(params)
        elif kind := _LIST_CHANGED.get(method):
            self._hooks.list_changed(kind)
            self._hear(method, params)
        elif method == "notifications/resources/updated":
            self._on_updated(params)
            self._hear(method, params)
        elif method == "notifications/cancelled":
            self._on_cancelled(params)
        elif method == "notifications/subscriptions/acknowledged":
            self._on_acknowledged(params)
        else:
            self._hear(method, params)

    def _hear(self, method: str, params: Raw | UnsetType) -> None:
        self._notices.put(
            self.server, method, None if isinstance(params, UnsetType) else params, self._handlers
        )

    def _on_progress(self, params: Raw | UnsetType) -> None:
        try:
            progress = decode_params(_body(params), ProgressParams)
        except InvalidAnswer:
            self.counters.stray_progress += 1
            return
        token = jsonrpc.match_id(progress.progress_token)
        pending = self._pending.get(token) if token is not None else None
        if pending is None:
            self.counters.stray_progress += 1
            return
        pending.on_progress_notice(progress, self.loop.time())

    def _on_updated(self, params: Raw | UnsetType) -> None:
        try:
            self._hooks.resource_changed(decode_params(_body(params), ResourceUpdatedParams).uri)
        except InvalidAnswer:
            return

    def _on_cancelled(self, params: Raw | UnsetType) -> None:
        """The server takes a question back, or ends a listen stream."""
        try:
            id_ = decode_params(_body(params), CancelledParams).request_id
        except InvalidAnswer:
            return
        if task := self._questions.get(id_):
            task.cancel()
        elif (mine := jsonrpc.match_id(id_)) is not None:
            pending = self._pending.get(mine)
            # Legal for listen streams alone.
            if pending is not None and pending.method == "subscriptions/listen":
                self.cancel(pending, "ended by the server")

    def _on_acknowledged(self, params: Raw | UnsetType) -> None:
        try:
            granted = decode_params(_body(params), SubscriptionAcknowledgedParams)
        except InvalidAnswer:
            return
        id_ = jsonrpc.match_id(granted.subscription_id)
        if id_ is not None and id_ in self._pending:
            self._hooks.acknowledged(id_, granted.notifications)

    # Questions of the server

    def _on_question(
        self, id_: int | str | float, method: str, params: Raw | UnsetType, about: int | None
    ) -> None:
        if method == "ping":
            self._write(jsonrpc.encode_response(id_, {}))
            return
        if self.era is Era.MODERN and self.rules_set:
            # A modern server asks inside its answers; on this transport no response may be written to it.
            self.counters.refused_questions += 1
            return
        if id_ in self._questions:
            self.counters.refused_questions += 1
            self._write(
                jsonrpc.encode_error(id_, INVALID_REQUEST, "a request with this id is being answered")
            )
            return
        if len(self._questions) + len(self._left) >= self._max_questions:
            self.counters.refused_questions += 1
            self._write(jsonrpc.encode_error(id_, -32000, "too many requests at once; try again later"))
            return
        calls = self._asked_by(about)
        asking = calls[0] if len(calls) == 1 else None
        context = asking.context.copy() if asking is not None and asking.context is not None else None
        work = self._answer(id_, method, None if isinstance(params, UnsetType) else params, calls)
        task = self._owner.start(work, name=f"{method} {id_}", context=context)
        self._questions[id_] = task
        # Not at the end of the work itself: what is taken back in the turn in which it came never begins.
        task.add_done_callback(lambda ended: self._question_over(id_, ended))

    def _question_over(self, id_: int | str | float, task: asyncio.Task[None]) -> None:
        if self._questions.get(id_) is task:
            del self._questions[id_]

    def _asked_by(self, about: int | None) -> list[Pending]:
        """The calls that a question may belong to: the one, where the transport says; else all that are in flight."""
        if about is not None and (pending := self._pending.get(about)) is not None:
            return [pending]
        return [p for p in self._pending.values() if p.method != "subscriptions/listen"]

    async def _answer(
        self, id_: int | str | float, method: str, params: Raw | None, waiting: list[Pending]
    ) -> None:
        # The clocks of all that may have led to it stand still.
        human = method in ("sampling/createMessage", "elicitation/create")
        try:
            if human:
                for pending in waiting:
                    pending.question_begins(self.loop.time())
            frame = await self.ask(method, params, id_)
        finally:
            if human:
                for pending in waiting:
                    pending.question_ends(self.loop.time())
        self._write(frame)

    async def ask(self, method: str, params: Raw | bytes | None, id_: Any) -> bytes:
        """Put a question to its handler under its own limit; returns the frame that answers it."""
        try:
            return jsonrpc.encode_response(id_, await self.put_question(method, params))
        except NoHandler:
            return jsonrpc.encode_error(id_, METHOD_NOT_FOUND, f"this client does not answer {method}")
        except QuestionUnanswered as error:
            return jsonrpc.encode_error(id_, INTERNAL_ERROR, str(error))

    async def put_question(self, method: str, params: Raw | bytes | None) -> Raw:
        """The handler's answer, as bytes. When the limit passes, an elicitation counts as cancelled.

        Raises:
            NoHandler: nobody answers such questions.
            QuestionUnanswered: the limit passed, the handler failed, or too many handlers do not return.
        """
        if len(self._left) >= self._max_questions:
            self.counters.refused_questions += 1
            raise QuestionUnanswered(
                f"{method}: {len(self._left)} handlers of earlier questions do not return"
            )
        limit = asyncio.timeout(self._question_limit)
        try:
            async with limit:
                answer = await self._handlers.answer(self.server, method, params, left=self._left)
                return Raw(encode(answer))
        except NoHandler:
            raise
        except (
            Exception,
            SystemExit,
            KeyboardInterrupt,
            asyncio.CancelledError,
        ) as error:  # boundary: a handler is the user's code; its failure is the outcome of its question
            me = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                if method == "elicitation/create":
                    return Raw(b'{"action":"cancel"}')
                raise QuestionUnanswered(
                    f"{method} was not answered within {self._question_limit:g} s"
                ) from None
            self.counters.handler_errors += 1
            _log.warning("server %s: the handler of %s failed: %r", self.server, method, error)
            raise QuestionUnanswered(f"the handler of {method} failed") from error

    # The end

    def fail(self, reason: str) -> None:
        """End every request in flight: the owner closes the conversation. The server is told of each."""
        if self.end is not None:
            return
        for pending in list(self._pending.values()):
            outgoing = pending.outgoing
            if outgoing is None or not outgoing.started or self._transport is None:
                continue
            if not self._transport.let_go(outgoing) and pending.method != "initialize":
                self.notify("notifications/cancelled", {"requestId": pending.id, "reason": reason})
        self.closed(Closed(reason))

    async def aclose(self, within: float = 5.0) -> list[str]:
        """End all tasks of the session. Returns the names of those that would not end in so many seconds, and of
        handlers that run on in a thread, which nothing can end."""
        self.fail("the session was closed")
        stuck = await self._owner.aclose(within)
        running = sum(thread.is_alive() for thread in self._left)
        return [*stuck, *[f"{self._owner.name}: a plain handler that does not return"] * running]


def _body(params: Raw | UnsetType) -> Raw | bytes:
    return b"{}" if isinstance(params, UnsetType) else params


def describe(how: Closed) -> str:
    """One clause that says how the connection ended, exit code and the last line of stderr included."""
    text = f"the server {how.reason}" if not how.reason.startswith("the ") else how.reason
    if how.exit_code is not None:
        text += (
            f" (killed by signal {-how.exit_code})" if how.exit_code < 0 else f" (exit code {how.exit_code})"
        )
    if how.stderr_tail.strip():
        text += f"; its stderr ends: {last_words(how.stderr_tail)}"
    return text
