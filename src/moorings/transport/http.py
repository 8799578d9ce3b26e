"""Streamable HTTP, both eras: each message is a POST of its own, its answer one JSON body or a stream of events.

Made by a life of a server, which calls ``stop`` in every case; nothing is left after that: no task, no socket, no
place in the pool. A POST that fails costs its own request only, never the session. No lock is held while one is under
way, and none waits for another, but for what follows ``notifications/initialized``, which must be first.

*Handshake era*: the session id of ``initialize`` goes with each request; where it is not known any more the receiver
is told once, and remakes it; a broken stream is resumed from its last event; an optional GET stream brings what the
server says by itself; DELETE at the end. *Modern era*: none of these; the end of an answer's stream is the cancel.
Sources: MCP ``basic/transports`` (2025-03-26 to 2025-11-25), ``basic/transports/streamable-http`` (2026-07-28).
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from .._tasks import TaskOwner, outlast, put_back_cancellation
from .._urls import shown_url
from ..net.errors import NetError, RedirectRefused, TooLarge
from ..wire.eras import LATEST_MODERN
from ..wire.headers import standard_headers
from ..wire.http_rules import Reading, how_to_read
from ..wire.sse import EventParser, OversizeEvent
from .base import Closed, Failure, OutboxFull, Outgoing, Receiver, Request, StopRecord
from .http_auth import Pass, Withheld
from .http_parts import (
    EVENT_STREAM,
    FAILURES,
    JSON,
    Ending,
    Exchange,
    HttpSettings,
    Tries,
    detail_of,
    first_bytes,
    net_failure,
    our_fault,
    refusal,
    see_off,
    unreadable,
)

if TYPE_CHECKING:
    from ..auth.asked import Ask
    from ..net.client import HttpClient
    from ..net.exchange import Answer

__all__ = ["HttpTransport"]

_log = logging.getLogger("moorings")

LINGER = 0.5
"""Seconds in which a stream may end by itself once it brought its answer; its connection can be used again then."""
MOST_RESUMES = 5
"""Attempts in a row to resume a stream that bring no event."""
FIRST_WAIT = 10.0
"""Seconds that other messages wait for ``notifications/initialized`` to be taken."""
FIRST_LISTEN = 0.5
"""Seconds that messages wait for the GET stream to be answered, so that nothing is said before it is heard."""
FIRST_RESUME, LONGEST_RESUME = 0.1, 1.0
"""Seconds that are waited at least before a stream is resumed, whatever the server asks for; they grow."""
FIRST_REOPEN, LONGEST_REOPEN = 1.0, 60.0
"""Seconds between two openings of the GET stream; they grow while it brings nothing."""
LONGEST_RETRY = 60.0
"""Seconds; a server may ask for no longer a wait between two openings."""
MOST_SEEN = 1024
"""Ids of events that are remembered, to pass over what a resumed stream brings twice."""
NOT_LOST = frozenset((401, 403, 407, 408, 413, 429))
"""Refusals that say nothing of the session."""
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}\Z")
_EVENT_ID = re.compile(r"[^\x00-\x1f\x7f]{1,4096}\Z")
"""An id of an event that can be sent back."""

_BASE = {"Accept": f"{JSON}, {EVENT_STREAM}", "Content-Type": JSON}


class HttpTransport:
    """One server behind a URL. See the module."""

    pid = None
    has_headers = True
    reads_between_tasks = False

    def __init__(self, settings: HttpSettings, client: HttpClient, receiver: Receiver) -> None:
        self._settings = settings
        self._shown = shown_url(settings.url)
        self._url = settings.url
        """Where it is; another place of the same origin, once the server has sent us there."""
        self._client = client
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._owner = TaskOwner("requests over HTTP")
        self._ending = Ending(settings, client, self._owner)
        self._unanswered: tuple[str, ...] = ()
        self._exchanges: set[Exchange] = set()
        self._queued = 0
        """Bytes of messages that have not left."""
        self._revision = ""
        self._modern = False
        self._session_id: str | None = None
        self._first: asyncio.Task[None] | None = None
        """The POST of ``notifications/initialized``, which nothing overtakes."""
        self._listening: asyncio.Task[None] | None = None
        self._listen_answered: asyncio.Future[None] | None = None
        """Done when the first GET of the stream was answered, or failed."""
        self._stream_opened = False
        self._lost_by_stream = False
        """True once a session was given up because its stream was not found: should the next be lost so too, before a
        stream brought anything, then only calls can tell."""
        self._hears = False
        self._over = False
        self._headers: tuple[Mapping[str, str], str, str | None, dict[str, str]] | None = None
        """The headers of all requests, and what they were made from."""

    def start(self) -> None:
        """There is no connection before the first message."""
        self._ending.begin(self)

    @property
    def listens(self) -> bool:
        """True in the modern era, where a request of its own asks for it, and while the GET stream is open."""
        return self._modern or self._hears

    @property
    def session_id(self) -> str | None:
        """The MCP session that the server gave out, in the handshake era."""
        return self._session_id

    def settled(self, revision: str, *, modern: bool) -> None:
        """The era is settled: what follows carries its revision."""
        self._revision, self._modern = revision, modern
        if modern:
            self._session_id = None
        elif not self._over:
            self._end_listening()
            self._stream_opened = False
            self._listen_answered = self._loop.create_future()
            self._listening = self._start(self._listen(), "listen")

    @property
    def waits_for_person(self) -> bool:
        """True while a person is at a login to it."""
        gate = self._settings.gate
        return gate is not None and gate.waits_for_person

    @property
    def logged_in(self) -> bool:
        """True once a person logged in while a message waited for it."""
        gate = self._settings.gate
        return gate is not None and gate.logged_in

    async def prepare(self) -> None:
        """Load what is loaded late, and make the TLS context: that is not the server's time. Faults show on sending."""
        try:
            if self._settings.gate is not None:
                await self._settings.gate.prepare()
            await self._client.prepare(self._settings.url)
        except FAILURES as error:
            _log.debug("%s: %r", shown_url(self._settings.url), error)

    # Out

    def send(self, frame: bytes, request: Request | None = None, method: str = "") -> Outgoing:
        if self._over:
            raise ConnectionError("it is closed")
        if self._queued + len(frame) > self._settings.max_outbox:
            raise OutboxFull(f"{self._queued} bytes wait to be sent to it (Bounds.max_outbox)")
        out = Exchange(
            frame=frame,
            size=len(frame),
            waiting=len(frame),
            notice=request is None,
            session=self._session_id,
        )
        self._queued += out.size
        self._exchanges.add(out)
        out.task = self._start(self._exchange(out, request, method), method or "answer")
        if method == "notifications/initialized":
            self._first = out.task
        return out

    def withdraw(self, outgoing: Outgoing) -> bool:
        if outgoing.offset:
            return False
        self._drop(outgoing)
        return True

    def let_go(self, outgoing: Outgoing) -> bool:
        self._drop(outgoing)
        # Before an era is settled, and where its session is lost, no notice of ours would be understood.
        return self._modern or not self._revision

    def _drop(self, outgoing: Outgoing) -> None:
        assert isinstance(outgoing, Exchange)
        outgoing.abandoned = True
        if outgoing.task is not None:
            outgoing.task.cancel()

    def stderr_tail(self) -> str:
        return ""

    def note(self, text: bytes) -> None:
        """What came and is no JSON-RPC."""
        _log.debug("no JSON-RPC from %s: %r", self._shown, text[:200])

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._owner.start(work, name=name, context=self._settings.context)

    # One POST

    async def _exchange(self, out: Exchange, request: Request | None, method: str) -> None:
        try:
            first = self._first
            if first is not None and not first.done() and method != "notifications/initialized":
                await asyncio.wait({first}, timeout=FIRST_WAIT)
                if not first.done() and self._first is first:
                    # A server may never answer it: one wait is enough for all.
                    self._first = None
            answered = self._listen_answered
            if (
                answered is not None
                and not answered.done()
                and request is not None
                and method != "initialize"
            ):
                await asyncio.wait({answered}, timeout=FIRST_LISTEN)
                if not answered.done():
                    # Something in between may hold the stream back for ever: one wait is enough for all.
                    answered.set_result(None)
            failure = await self._post(out, request, method)
        except FAILURES as error:
            failure = net_failure(error, out.started)
        except Exception as fault:  # boundary: a fault of ours must not leave its caller waiting
            failure = our_fault(fault, out)
        finally:
            self._exchanges.discard(out)
            self._left(out)
            out.task = None
        if failure is None or out.abandoned:
            return
        if request is not None:
            self._receiver.request_failed(request.id, failure)
        elif not self._over:
            _log.info("a message to %s was not taken: %s", self._shown, failure.reason)

    def _leaves(self, out: Exchange) -> None:
        out.mark()
        self._left(out)

    def _left(self, out: Exchange) -> None:
        """It waits no more; said any number of times."""
        self._queued -= out.waiting
        out.waiting = 0

    async def _post(self, out: Exchange, request: Request | None, method: str) -> Failure | None:
        """Send it, and bring its answer to the receiver; returns why there is none."""
        settings = self._settings
        tries = Tries()
        named = request is not None and request.label != method
        token = Pass(settings.gate, f"{method} {request.label}" if request and named else method)
        ask: Ask | None = None
        while True:
            given = settings.headers.at_hand
            if given is None:
                given = await settings.headers.get()
            try:
                bearer = await token.headers("POST", self._url, given, request)
            except Withheld as withheld:
                return withheld.failure
            if out.session != self._session_id and method != "initialize":
                # Others found out meanwhile: it belongs to a conversation that is over, and has not been sent.
                return Failure(kind="session-lost", reason="the server does not know the session any more")
            try:
                async with self._client.send(
                    "POST",
                    self._url,
                    headers={**self._headers_for(given, request, method), **bearer}
                    if bearer
                    else self._headers_for(given, request, method),
                    body=out.frame,
                    first_byte=settings.first_byte,
                    idle=settings.idle,
                    on_sent=partial(self._leaves, out),
                    redirects="same-origin" if settings.redirects else "none",
                ) as answer:
                    if answer.status < 300:
                        self._url = answer.url
                    pause = tries.turned_away(answer, given, settings.headers, request)
                    ask = (await token.refused(answer, given)) if pause is None else None
                    if ask is not None:
                        failure = refusal(answer, settings, await first_bytes(answer, settings))
                    elif pause is None:
                        return await self._take(answer, out, request, method, out.session)
                # Its connection has been given back: a token may take a while.
                if ask is not None and (why := await token.again(ask, failure, request)) is not None:
                    return why
            except NetError as error:
                pause = tries.failed(error, out)
                if pause is None:
                    raise
            # It has not been sent, so far.
            out.offset = 0
            await asyncio.sleep(pause or 0.0)

    def _headers_for(self, given: Mapping[str, str], request: Request | None, method: str) -> dict[str, str]:
        if method == "initialize" and not self._modern:
            return {**given, **_BASE}
        if method == "server/discover" and not self._revision:
            # The probe, and nothing else is sent before it is answered.
            return {**given, **_BASE, "MCP-Protocol-Version": LATEST_MODERN, **standard_headers(method)}
        known = self._headers
        if (
            known is None
            or known[0] is not given
            or known[1] != self._revision
            or known[2] != self._session_id
        ):
            own = {**given, **_BASE, "MCP-Protocol-Version": self._revision}
            if not self._revision:
                del own["MCP-Protocol-Version"]
            if self._session_id is not None:
                own["Mcp-Session-Id"] = self._session_id
            known = self._headers = (given, self._revision, self._session_id, own)
        if not self._modern:
            return known[3]
        if request is None:
            return {**known[3], **standard_headers(method)}
        return {**known[3], **standard_headers(method, request.label), **(request.headers or {})}

    async def _take(
        self, answer: Answer, out: Exchange, request: Request | None, method: str, session: str | None
    ) -> Failure | None:
        if method == "initialize" and not self._modern and 200 <= answer.status < 300:
            self._note_session(answer)
        reading = how_to_read(answer.status, answer.content_type, request=request is not None)
        if reading is Reading.DONE:
            return None
        if request is None:
            failure = refusal(answer, self._settings, await first_bytes(answer, self._settings))
            if answer.status == 404:
                self._lose_session(session)
            return failure
        if reading is Reading.EVENTS:
            return await self._take_stream(answer, out, request)
        if reading is Reading.MESSAGE:
            body = await answer.read(self._settings.max_message)
            if body[:1] == b"{" or body.lstrip()[:1] in (b"{", b"["):
                self._receiver.message(body, request.id)
            return None if request.done or out.abandoned else unreadable(answer, self._settings, bytes(body))
        body = await first_bytes(answer, self._settings)
        failure = refusal(answer, self._settings, body)
        # An error with the request's own id answers it, whatever the status; one without an id does so only where it
        # cannot mean that the session is lost, which servers say in many ways (F5.2).
        forgotten = session is not None and 400 <= answer.status < 500 and answer.status not in NOT_LOST
        if failure.http is not None and self._receiver.error_body(
            request.id, body, failure.http, own_only=forgotten
        ):
            return None
        if not forgotten:
            return failure
        self._lose_session(session)
        reason = f"the server does not know the session any more: {failure.reason}"
        return Failure(kind="session-lost", reason=reason, http=failure.http)

    # The session of the handshake era

    def _note_session(self, answer: Answer) -> None:
        given = answer.headers.get("Mcp-Session-Id")
        if given is not None and not _SESSION_ID.match(given):
            _log.warning("%s gave a session id that cannot be sent; it is left out", self._shown)
            given = None
        self._session_id = given

    def _lose_session(self, session: str | None) -> None:
        """Many requests may find out; the first one tells."""
        if session is not None and session == self._session_id and not self._over:
            self._session_id, self._revision = None, ""
            self._end_listening()
            self._receiver.session_lost()

    # Streams

    async def _take_stream(self, answer: Answer, out: Exchange, request: Request) -> Failure | None:
        """The events of an answer, until it is there; resumed where the stream breaks and the server lets us."""
        stream = _Stream(self, request)
        failure: Failure | None = None
        try:
            await stream.read(answer, out)
        except NetError as error:
            failure = net_failure(error, out.started)
        if request.done or out.abandoned:
            return None
        if failure is None and not stream.parser.looks_like_sse and stream.parser.odd_text:
            return unreadable(answer, self._settings, stream.parser.odd_text)
        if self._modern or stream.last_id is None or (failure is not None and failure.kind == "invalid"):
            return failure or Failure(
                kind="broken",
                reason="the stream ended without the answer",
                http=detail_of(answer, self._settings),
            )
        return await self._resume(stream, out, request)

    async def _resume(self, stream: _Stream, out: Exchange, request: Request) -> Failure | None:
        tries, tries_of, token = 0, Tries(), Pass(self._settings.gate, "GET")
        shortest = FIRST_RESUME
        reason = "the stream ended without the answer"
        while tries < MOST_RESUMES:
            await asyncio.sleep(max(stream.wait, shortest))
            shortest = min(2 * shortest, LONGEST_RESUME)
            before, tries = stream.events, tries + 1
            lost = "the session was lost in the middle of it"
            if out.session != self._session_id:
                return Failure(kind="broken", reason=lost)
            try:
                given = await self._settings.headers.get()
                bearer = await token.headers("GET", self._url, given)
                async with self._get({**given, **bearer}, stream.last_id) as answer:
                    if tries_of.turned_away(answer, given, self._settings.headers, None) is not None:
                        continue
                    ask = await token.refused(answer, given)
                    if ask is not None:
                        failure = Failure(
                            kind="broken",
                            reason=f"{reason}, and it is not resumed (HTTP {answer.status})",
                            http=detail_of(answer, self._settings),
                        )
                    elif answer.status == 404 and out.session is not None:
                        self._lose_session(out.session)
                        return Failure(kind="broken", reason=lost, http=detail_of(answer, self._settings))
                    elif answer.status != 200 or answer.content_type != EVENT_STREAM:
                        return Failure(
                            kind="broken",
                            reason=f"{reason}, and it is not resumed (HTTP {answer.status})",
                            http=detail_of(answer, self._settings),
                        )
                    else:
                        await stream.read(answer, out)
                if ask is not None and (why := await token.again(ask, failure)) is not None:
                    return why
            except Withheld as withheld:
                return msgspec.structs.replace(withheld.failure, kind="broken")
            except NetError as error:
                reason = error.reason
            if request.done or out.abandoned:
                return None
            if stream.events > before:
                tries = 0
        return Failure(kind="broken", reason=f"{reason}; it was resumed {tries} times in vain")

    def _get(self, given: Mapping[str, str], last_id: str | None) -> AbstractAsyncContextManager[Answer]:
        settings = self._settings
        headers = {
            **given,
            "Accept": EVENT_STREAM,
            "MCP-Protocol-Version": self._revision,
        }
        if self._session_id is not None:
            headers["Mcp-Session-Id"] = self._session_id
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        return self._client.send(
            "GET",
            self._url,
            headers=headers,
            first_byte=settings.first_byte,
            idle=settings.idle,
            redirects="same-origin" if settings.redirects else "none",
        )

    async def _listen(self) -> None:
        """The GET stream of the handshake era. It is optional: nothing that happens here hurts the session."""
        try:
            await self._keep_listening()
        finally:
            self._heard_of_listen()

    def _heard_of_listen(self) -> None:
        if self._listen_answered is not None and not self._listen_answered.done():
            self._listen_answered.set_result(None)

    async def _keep_listening(self) -> None:
        if self._first is not None:
            await asyncio.wait({self._first}, timeout=FIRST_WAIT)
        stream = _Stream(self, None)
        wait = FIRST_REOPEN
        tries = Tries()
        token = Pass(self._settings.gate, "GET")
        while True:
            before, began = stream.events, self._loop.time()
            session = self._session_id
            try:
                given = await self._settings.headers.get()
                bearer = await token.headers("GET", self._url, given)
                async with self._get({**given, **bearer}, stream.last_id) as answer:
                    if tries.turned_away(answer, given, self._settings.headers, None) is not None:
                        continue
                    ask = await token.refused(answer, given)
                    if ask is None:
                        self._heard_of_listen()
                    if ask is not None:
                        refused = Failure(kind="turned-away", reason=f"HTTP {answer.status}")
                    elif answer.status == 404 and session is not None and self._stream_opened:
                        if not self._lost_by_stream:
                            self._lost_by_stream = True
                            self._lose_session(session)
                        return
                    elif answer.status != 200 or answer.content_type != EVENT_STREAM:
                        if answer.status < 500 and answer.status != 429:
                            return  # it has none (405), or none for us
                    else:
                        again, self._stream_opened = self._stream_opened, True
                        if again and stream.last_id is None:
                            self._receiver.may_have_missed()
                        self._hears = True
                        tries, token = Tries(), Pass(self._settings.gate, "GET")
                        await stream.read(answer, None)
                if ask is not None:
                    if await token.again(ask, refused) is not None:
                        return  # calls find out, and say so
                    continue
            except Withheld as withheld:
                if withheld.failure.needs:
                    return  # as above
            except RedirectRefused:
                return  # a page to sign in at, or the like: none for us
            except FAILURES as error:
                self._heard_of_listen()
                _log.debug("the stream of %s broke: %s", self._shown, error)
            self._hears = False
            lived = self._loop.time() - began
            if stream.events > before or lived > LONGEST_REOPEN:
                self._lost_by_stream = False
                wait = FIRST_REOPEN
            # Not in step with other hosts.
            await asyncio.sleep(max(stream.asked_wait or 0.0, wait * (0.75 + 0.5 * random.random())))
            wait = min(wait * 2, LONGEST_REOPEN)

    def _end_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        self._hears = False

    # The end

    def give_up(self, reason: str) -> None:
        """The connection is over, from outside."""
        if not self._over:
            self._over = True
            self._receiver.closed(Closed(reason))

    def hasten(self, deadline: float) -> None:
        self._ending.hasten(deadline)

    async def stop(self, deadline: float) -> StopRecord:
        began = self._loop.time()
        self._over = True
        self._end_listening()
        by = min(deadline, began + self._settings.close)
        cancelled = False
        if not self._owner.closed:
            _, cancelled = await outlast(self._owner.start(self._farewell(by), name="farewell"), by)
        stuck = await self._ending.run(deadline)
        if cancelled:
            put_back_cancellation()
        return StopRecord(elapsed=self._loop.time() - began, unanswered=self._unanswered, stuck=stuck)

    async def _farewell(self, by: float) -> None:
        """What is owed at the end: the cancellations that are on their way, then DELETE. The server may ignore both."""
        asked = False
        try:
            async with self._ending.farewell(by):
                now = self._loop.time()
                await see_off(self._exchanges, now + (by - now) / 2)
                if self._session_id is not None and not self._modern:
                    token = Pass(self._settings.gate, "DELETE")
                    given = self._settings.headers.latest
                    headers = {
                        # Those of last time: nothing of the user's is run any more.
                        **given,
                        **token.last_headers("DELETE", self._url, given),
                        "Mcp-Session-Id": self._session_id,
                        "MCP-Protocol-Version": self._revision,
                    }
                    asked = True
                    async with self._client.send(
                        "DELETE",
                        self._url,
                        headers=headers,
                        first_byte=None,
                        idle=None,
                        redirects="none",
                    ) as answer:
                        _log.debug("the session of %s was ended: HTTP %s", self._shown, answer.status)
        except Withheld as error:
            _log.debug("the session of %s was not ended: %s", self._shown, error)
        except (*FAILURES, TimeoutError) as error:
            if asked and (isinstance(error, TimeoutError) or net_failure(error).kind == "broken"):
                self._unanswered = ("DELETE",)
            _log.debug("the session of %s was not ended: %r", self._shown, error)


class _Stream:
    """Where one stream of events stands, over all its resumptions."""

    def __init__(self, transport: HttpTransport, request: Request | None) -> None:
        self._transport = transport
        self._request = request
        self.parser = EventParser(transport._settings.max_message)
        self.events = 0
        self.last_id: str | None = None
        self.asked_wait: float | None = None
        """Seconds that the server wants between two openings."""
        self._openings = 0
        self._seen: dict[str, int] = {}
        """Ids of events that brought a message, and in which opening they came last."""
        self._unique = True
        """False once one opening brought two messages under one id: then it does not tell what came twice."""

    @property
    def wait(self) -> float:
        """Seconds until it is opened again."""
        return FIRST_REOPEN if self.asked_wait is None else self.asked_wait

    async def read(self, answer: Answer, out: Exchange | None) -> None:
        """Bring its events to the receiver, until its end or until the answer is there. Raises NetError."""
        parser = self.parser = EventParser(self._transport._settings.max_message)
        self._openings += 1
        request, receiver = self._request, self._transport._receiver
        about = request.id if request is not None else None
        linger: asyncio.TimerHandle | None = None
        try:
            async for chunk in answer.chunks():
                for event in parser.feed(chunk):
                    self.events += 1
                    if isinstance(event, OversizeEvent):
                        receiver.oversize(event)
                        continue
                    if event.id is not None:
                        if event.id and event.data and self._came_before(event.id):
                            continue
                        self.last_id = event.id if _EVENT_ID.match(event.id) else None
                    if event.data:
                        receiver.message(event.data, about)
                if request is not None and not request.done and parser.drops_answer:
                    # At once, and not when its end comes: it may have none, and nobody else is on this stream.
                    raise TooLarge(url=answer.url, cap=parser.cap)
                if parser.retry is not None:
                    self.asked_wait = min(parser.retry / 1000, LONGEST_RETRY)
                if (
                    request is not None
                    and request.done
                    and linger is None
                    and not answer.complete
                    and out is not None
                    and out.task is not None
                ):
                    linger = asyncio.get_running_loop().call_later(LINGER, out.task.cancel)
        finally:
            if linger is not None:
                linger.cancel()

    def _came_before(self, id_: str) -> bool:
        """Whether an earlier opening brought the message with this id already. An event has an id of its own, but some
        servers give all of a stream the same; what one opening brings is not sent twice."""
        seen = self._seen
        before = seen.pop(id_, None)
        seen[id_] = self._openings
        if len(seen) > MOST_SEEN:
            del seen[next(iter(seen))]
        if before == self._openings:
            self._unique = False
        return before is not None and before != self._openings and self._unique
