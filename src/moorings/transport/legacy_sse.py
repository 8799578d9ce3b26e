"""HTTP+SSE of revision 2024-11-05: one stream of events that brings everything, and POSTs to where it says.

Made by a life of a server, which calls ``stop`` in every case; nothing is left after that. The stream is the
connection: its end ends all that wait on it, as the end of a process does. Where to POST to is said by its first event,
and must be of the same origin. Source: MCP 2024-11-05 ``basic/transports``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from .._tasks import TaskOwner, outlast, put_back_cancellation
from .._urls import shown_url
from ..errors import HttpDetail
from ..net.addresses import origin
from ..net.errors import NetError
from ..wire.http_rules import first_words
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
    first_bytes,
    net_failure,
    our_fault,
    refusal,
    see_off,
)
from .http_secrets import hidden_bytes

if TYPE_CHECKING:
    from ..net.client import HttpClient
    from ..net.exchange import Answer

__all__ = ["LegacySseTransport"]

_log = logging.getLogger("moorings")

LONGEST_ENDPOINT = 8192
"""Characters of the URL to POST to."""


class LegacySseTransport:
    """One server behind an event stream. See the module."""

    pid = None
    listens = True
    has_headers = False
    reads_between_tasks = False

    def __init__(self, settings: HttpSettings, client: HttpClient, receiver: Receiver) -> None:
        self._settings = settings
        self._client = client
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._owner = TaskOwner("event stream")
        self._ending = Ending(settings, client, self._owner)
        self._exchanges: set[Exchange] = set()
        self._queued = 0
        self._revision = ""
        self._endpoint: asyncio.Future[str] = self._loop.create_future()
        """Where to POST to, once the stream has said."""
        self._over = False
        self.problem: HttpDetail | None = None
        """What the server answered in place of a stream."""
        self.needs = ""
        """What a person must do first, where that is why there is none."""

    def start(self) -> None:
        self._ending.begin(self)
        self._owner.start(self._listen(), name="listen", context=self._settings.context)

    @property
    def knows_where(self) -> bool:
        """True once the stream has said where to send to."""
        return self._endpoint.done()

    def settled(self, revision: str, *, modern: bool) -> None:
        self._revision = revision

    # In

    async def _listen(self) -> None:
        settings = self._settings
        reason = "closed its event stream"
        try:
            async with asyncio.timeout(settings.connect) as opening:
                if settings.gate is not None:
                    await settings.gate.prepare()
                tries = Tries()
                token = Pass(settings.gate, "GET")
                while True:
                    given = await settings.headers.get()
                    bearer = await token.headers("GET", settings.url, given)
                    async with self._client.send(
                        "GET",
                        settings.url,
                        headers={**given, **bearer, "Accept": EVENT_STREAM},
                        first_byte=settings.first_byte,
                        idle=settings.idle,
                        redirects="same-origin" if settings.redirects else "none",
                    ) as answer:
                        if tries.turned_away(answer, given, settings.headers, None) is not None:
                            continue
                        ask = await token.refused(answer, given)
                        if answer.status != 200 or answer.content_type != EVENT_STREAM:
                            failure = refusal(answer, settings, await first_bytes(answer, settings))
                            self.problem = failure.http
                            reason = f"gave no event stream: {failure.reason}"
                        else:
                            reason = await self._read(answer, opening) or reason
                    if ask is not None:
                        why = await token.again(ask, failure)
                        if why is None:
                            reason = "closed its event stream"
                            continue
                        reason, self.needs = f"gave no event stream: {why.reason}", why.needs
                    break
        except Withheld as withheld:
            reason, self.needs = withheld.failure.reason, withheld.failure.needs
        except TimeoutError:
            reason = f"did not say where to send to within {settings.connect:g} s (Bounds.connect)"
        except FAILURES as error:
            reason = f"could not be listened to: {net_failure(error).reason}"
        except Exception as fault:  # boundary: a fault of ours must not leave a connection that never ends
            _log.exception("a fault in Moorings, on the stream of %s", shown_url(settings.url))
            reason = f"could not be listened to: a fault in Moorings: {fault!r}"
        self._end(reason)

    async def _read(self, answer: Answer, opening: asyncio.Timeout) -> str | None:
        """Bring the events to the receiver; returns why it was ended, if that is not the end of the stream."""
        parser = EventParser(self._settings.max_message)
        async for chunk in answer.chunks():
            for event in parser.feed(chunk):
                if isinstance(event, OversizeEvent):
                    self._receiver.oversize(event)
                elif event.event == "endpoint":
                    if self._endpoint.done():
                        continue  # the first one counts
                    where = bytes(event.data[:LONGEST_ENDPOINT]).decode("utf-8", "replace").strip()
                    try:
                        url = urljoin(answer.url, where)
                        if not where.isprintable() or origin(url) != origin(answer.url):
                            return f"wants messages sent to another origin ({shown_url(url)})"
                    except ValueError:
                        return f"wants messages sent to what is no address ({shown_url(where)})"
                    self._endpoint.set_result(url)
                    opening.reschedule(None)
                elif event.data:
                    self._receiver.message(event.data)
        if not parser.looks_like_sse and parser.odd_text:
            said = hidden_bytes(parser.odd_text, self._settings.secrets())
            return f"gave a stream that holds no events; it begins: {first_words(said)}"
        return None

    def _end(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self._receiver.closed(Closed(reason, http=self.problem, needs=self.needs))

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
            raise ConnectionError("its event stream is over")
        if self._queued + len(frame) > self._settings.max_outbox:
            raise OutboxFull(f"{self._queued} bytes wait to be sent to it (Bounds.max_outbox)")
        out = Exchange(frame=frame, size=len(frame), notice=request is None)
        self._queued += out.size
        self._exchanges.add(out)
        out.task = self._owner.start(
            self._exchange(out, request), name=method or "answer", context=self._settings.context
        )
        return out

    async def _exchange(self, out: Exchange, request: Request | None) -> None:
        failure: Failure | None = None
        try:
            failure = await self._post(out, request)
        except FAILURES as error:
            failure = net_failure(error, out.started)
        except Exception as fault:  # boundary: a fault of ours must not leave its caller waiting
            failure = our_fault(fault, out)
        finally:
            self._exchanges.discard(out)
            self._queued -= out.size
            out.task = None
        if failure is not None and request is not None and not request.done and not out.abandoned:
            self._receiver.request_failed(request.id, failure)

    async def _post(self, out: Exchange, request: Request | None) -> Failure | None:
        """Send it; returns why it was not taken."""
        settings = self._settings
        url = await asyncio.shield(self._endpoint)
        tries = Tries()
        token = Pass(settings.gate, "POST" if request is None else request.label)
        while True:
            given = await settings.headers.get()
            try:
                bearer = await token.headers("POST", url, given, request)
            except Withheld as withheld:
                return withheld.failure
            headers = {**given, **bearer, "Content-Type": JSON, "Accept": f"{JSON}, {EVENT_STREAM}"}
            if self._revision:
                headers["MCP-Protocol-Version"] = self._revision
            try:
                async with self._client.send(
                    "POST",
                    url,
                    headers=headers,
                    body=out.frame,
                    first_byte=settings.first_byte,
                    idle=settings.idle,
                    on_sent=out.mark,
                    redirects="same-origin" if settings.redirects else "none",
                ) as answer:
                    ask = await token.refused(answer, given)
                    if 200 <= answer.status < 300:
                        return None
                    pause = tries.turned_away(answer, given, settings.headers, request)
                    if pause is None:
                        failure = refusal(answer, settings, await first_bytes(answer, settings))
                        if ask is None:
                            return failure
                if (
                    pause is None
                    and ask is not None
                    and (why := await token.again(ask, failure, request)) is not None
                ):
                    return why
            except NetError as error:
                pause = tries.failed(error, out)
                if pause is None:
                    raise
            # It has not been sent, so far.
            out.offset = 0
            await asyncio.sleep(pause or 0.0)

    def withdraw(self, outgoing: Outgoing) -> bool:
        if outgoing.offset:
            return False
        self._drop(outgoing)
        return True

    def let_go(self, outgoing: Outgoing) -> bool:
        # Its POST is not cut off: the answer comes by the stream, and the end of a POST is no cancellation.
        assert isinstance(outgoing, Exchange)
        outgoing.abandoned = True
        return False

    def _drop(self, outgoing: Outgoing) -> None:
        assert isinstance(outgoing, Exchange)
        outgoing.abandoned = True
        if outgoing.task is not None:
            outgoing.task.cancel()

    def stderr_tail(self) -> str:
        return ""

    def note(self, text: bytes) -> None:
        """What came and is no JSON-RPC."""
        _log.debug("no JSON-RPC from %s: %r", shown_url(self._settings.url), text[:200])

    # The end

    def give_up(self, reason: str) -> None:
        """The connection is over, from outside."""
        self._end(reason)

    def hasten(self, deadline: float) -> None:
        self._ending.hasten(deadline)

    async def stop(self, deadline: float) -> StopRecord:
        began = self._loop.time()
        self._over = True
        # What is on its way out, cancellations above all, has a moment to leave.
        cancelled = False
        if not self._owner.closed:
            by = min(deadline, began + self._settings.close / 2)
            _, cancelled = await outlast(self._owner.start(self._farewell(by), name="farewell"), by)
        if not self._endpoint.done():
            self._endpoint.cancel()
        stuck = await self._ending.run(deadline)
        if cancelled:
            put_back_cancellation()
        return StopRecord(elapsed=self._loop.time() - began, stuck=stuck)

    async def _farewell(self, by: float) -> None:
        try:
            async with self._ending.farewell(by):
                await see_off(self._exchanges, by)
        except TimeoutError:
            pass  # What has not left by now does not leave.
