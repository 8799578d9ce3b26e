"""One request and its answer, on a connection of a pool (RFC 9112): written by us, parsed by aiohttp.

A request goes out as one write of head and body, so ``sent`` is exact: nothing has left before that write, and all of
it may have arrived after it. An exchange is owned by the ``async with`` of its caller; leaving it before the body is
at its end ends the connection, which is how the other side learns that nobody listens any more.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from ..errors import MisuseError
from . import tls
from .errors import (
    BadAnswer,
    BadEncoding,
    Broken,
    FirstByteTimeout,
    IdleTimeout,
    NetClosed,
    NetError,
    ProxyFailed,
    ReuseRace,
    TooLarge,
)
from .inflate import ACCEPTED, Damaged, Inflater
from .pool import Handler, Pool, Target

__all__ = ["Answer", "exchange"]

EXCERPT_WITHIN = 2.0
"""Seconds for reading the beginning of a body that goes into the text of an error."""
READ_AHEAD = 256 * 1024
"""Bytes of a body that may wait to be read before the other side is held up."""
BREATHE = 1024 * 1024
"""Bytes decompressed out of one read after which the loop gets its turn."""
LONGEST_FIELD = 32 * 1024
"""Bytes of one header of an answer."""
OURS = frozenset({"content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"})
"""Headers that frame the message: a caller's would make it ambiguous (RFC 9112 §6.3)."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SPACE = re.compile(r"[\s\x00-\x1f\x7f\x80-\x9f]+")
_CHARSET = re.compile(r"charset=\"?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_names: dict[str, str] = {}
"""Names of headers that were found good, with their small letters."""


class _Late(Exception):
    """A bound passed; set on the connection by the timer."""


class _Shut(Exception):
    """The client was closed; set on the connection by it."""


class Answer:
    """The answer of a server, its body still to be read."""

    __slots__ = (
        "_allowed", "_body", "_connection", "_got", "_handler", "_idle", "_inflater", "_live", "_loop", "_sized",
        "_target", "_timer", "_waiting_since", "content_type", "headers", "status", "url",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        connection: Any,
        handler: Handler,
        message: Any,
        body: aiohttp.StreamReader,
        idle: float | None,
        live: set[Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.status: int = message.code
        self.headers: Mapping[str, str] = message.headers
        """In any letter case; of a header that came twice, the first."""
        self.url = target.text
        """Where it came from, after redirects. It may hold secrets: show it ``shown_url``."""
        self.content_type = (message.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        """Without its parameters, in small letters; empty if there is none."""
        self._target = target
        self._connection = connection
        self._handler = handler
        self._body = body
        self._idle = idle
        self._live = live
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_since = 0.0
        self._got: bytes | bytearray = b""
        self._sized = message.chunked or "Content-Length" in message.headers
        coding = message.headers.get("Content-Encoding")
        self._inflater = None if coding is None else self._decoder(coding)
        handler.body = body
        live.add(self)

    def _decoder(self, coding: str) -> Inflater | str | None:
        coding = coding.strip().lower()
        if coding in ("", "identity"):
            return None
        # A body in a coding that we did not ask for is a fault when somebody reads it; its status is good anyway.
        return Inflater(coding) if coding in ("gzip", "x-gzip", "deflate") else coding

    @property
    def complete(self) -> bool:
        """True once nothing more of the body can come, though it may still have to be read."""
        return self._connection is None or self._body.is_eof()

    async def read(self, cap: int) -> bytes | bytearray:
        """The whole body, decompressed; not touched again.

        Raises:
            TooLarge: it is over ``cap`` bytes; nothing more is read.
            IdleTimeout, Broken, BadAnswer, BadEncoding, NetClosed
        """
        body = self._body
        if self._inflater is None:
            if body.is_eof() and body.exception() is None:
                # The common case: it came together with its head.
                data = body.read_nowait(-1)
                self._check_end()
                self._finish()
                if len(data) > cap:
                    raise TooLarge(url=self.url, cap=cap)
                self._got = data
                return data
            announced = self.headers.get("Content-Length", "")
            if announced.isdecimal() and int(announced) > cap:
                self._finish()
                raise TooLarge(url=self.url, cap=cap)
        whole: bytes | bytearray = b""
        async for piece in self.chunks():
            if len(whole) + len(piece) > cap:
                self._finish()
                raise TooLarge(url=self.url, cap=cap)
            if not whole:
                whole = piece
                continue
            # Grown in place: to keep the pieces and join them in the end would take its memory twice.
            if isinstance(whole, bytes):
                whole = bytearray(whole)
            whole += piece
        self._got = whole
        return whole

    def chunks(self) -> Chunks:
        """The body as it comes, decompressed, in pieces of any size (decompressed: at most 64 KiB).

        Raises:
            IdleTimeout, Broken, BadAnswer, BadEncoding, NetClosed: while iterating.
        """
        return Chunks(self)

    async def excerpt(self, characters: int = 300) -> str:
        """The beginning of the body as one line of text, for people. Takes 2 s at most and raises nothing."""
        try:
            if not self._got and self._connection is not None:
                async with asyncio.timeout(EXCERPT_WITHIN):
                    async for piece in self.chunks():
                        self._got += piece
                        if len(self._got) > 4 * characters:
                            break
        except (NetError, TimeoutError):
            pass  # What came so far is what there is.
        charset = _CHARSET.search(self.headers.get("Content-Type") or "")
        start = self._got[: 8 * characters]
        try:
            text = start.decode(charset[1] if charset else "utf-8", "replace")
        except (LookupError, ValueError):
            text = start.decode("utf-8", "replace")
        text = _SPACE.sub(" ", text).strip()
        return text if len(text) <= characters else text[:characters] + "…"

    async def _raw(self) -> bytes:
        """The next bytes as they came, empty at the end."""
        body = self._body
        idle = self._idle
        if idle is not None and not body.is_eof():
            self._waiting_since = time.monotonic()
            if self._timer is None:
                self._timer = self._loop.call_later(idle, self._look)
        try:
            data = await body.readany()
        except (_Late, _Shut, aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError) as error:
            # RuntimeError: aiohttp's word for a connection that is gone already.
            failure = self._failure(error)
            self._finish()
            raise failure from None
        self._waiting_since = 0.0
        if not data:
            self._check_end()
            self._finish()
        return data

    def _check_end(self) -> None:
        """A body that only the end of its connection ends is whole only if that end was regular (RFC 9112 §8)."""
        lost_by = self._handler.lost_by
        if lost_by is not None and not self._sized and not isinstance(self._body, type(_EMPTY)):
            self._finish()
            raise Broken(f"the connection broke in the middle of the answer ({_name(lost_by)})", url=self.url)

    def _look(self) -> None:
        """The idle timer: one for the whole body, set forward when it is due and not at each piece."""
        self._timer = None
        idle = self._idle
        if idle is None or self._connection is None:
            return
        waited = time.monotonic() - self._waiting_since if self._waiting_since else 0.0
        if waited >= idle:
            self._handler.set_exception(_Late())
        else:
            self._timer = self._loop.call_later(idle - waited, self._look)

    def _failure(self, error: BaseException) -> NetError:
        if isinstance(error, _Late):
            return IdleTimeout(url=self.url, allowed=self._idle or 0.0)
        if isinstance(error, _Shut):
            return NetClosed(url=self.url, sent=True)
        if isinstance(error, HttpProcessingError):
            return BadAnswer("the body of the answer is not framed as HTTP is", url=self.url)
        lost_by = self._handler.lost_by
        how = f" ({_name(lost_by)})" if lost_by is not None else ""
        return Broken(f"the connection ended in the middle of the answer{how}", url=self.url)

    def shut(self) -> None:
        """The client closes: whoever reads is told."""
        self._handler.set_exception(_Shut())

    def disown(self) -> None:
        """Its loop runs no more: what is dropped now must not complain."""
        if self._connection is not None:
            self._connection._protocol = None

    def _finish(self) -> None:
        """Give the connection back, or end it if its answer is not read to the end. Any number of times."""
        connection = self._connection
        if connection is None:
            return
        self._connection = None
        self._live.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        give_back(connection, self._handler)

    finish = _finish


class Chunks:
    """Iterates over a body once. A class and no generator: an iteration left in the middle leaves nothing behind."""

    __slots__ = ("_answer", "_made", "_pieces")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._pieces: Any = None
        self._made = 0

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> bytes:
        answer = self._answer
        inflater = answer._inflater
        if inflater is None:
            if answer._connection is None:
                raise StopAsyncIteration
            if data := await answer._raw():
                return data
            raise StopAsyncIteration
        if isinstance(inflater, str):
            answer._finish()
            raise BadEncoding(
                f"the answer is compressed by {inflater[:40]!r}, which was not asked for", url=answer.url
            )
        try:
            while True:
                if self._pieces is not None:
                    piece = next(self._pieces, None)
                    if piece is not None:
                        self._made += len(piece)
                        if self._made > BREATHE:
                            self._made = 0
                            await asyncio.sleep(0)
                        return bytes(piece)
                    self._pieces = None
                if answer._connection is None:
                    raise StopAsyncIteration
                self._made = 0
                data = await answer._raw()
                if not data:
                    inflater.end()
                    raise StopAsyncIteration
                self._pieces = inflater.feed(data)
        except Damaged as error:
            answer._finish()
            raise BadEncoding(f"the answer cannot be decompressed: {error}", url=answer.url) from None


_EMPTY = aiohttp.streams.EMPTY_PAYLOAD


def give_back(connection: Any, handler: Handler) -> None:
    """Back to the pool if the connection is at rest; else it is ended at once, whatever its other side does."""
    handler.body = None
    transport = connection.transport
    if transport is None or handler.should_close or transport.get_write_buffer_size():
        if transport is not None:
            transport.abort()
        connection.close()
    else:
        handler.resting = True
        connection.release()


async def exchange(
    pool: Pool,
    target: Target,
    method: str,
    data: bytes,
    *,
    first_byte: float | None,
    idle: float | None,
    on_sent: Callable[[], None] | None,
    live: set[Any],
) -> Answer:
    """Send one request, and wait for the head of its answer. ``data`` is all of it, head and body.

    Raises:
        NetError: see ``errors.py``; ``sent`` says if the server may have begun to act on it.
    """
    while True:
        connection = await pool.take(target)
        handler: Handler = connection.protocol
        transport = handler.transport
        if transport is not None and not transport.is_closing():
            break
        connection.close()
    waiting = _Waiting(handler, connection)
    reused = handler.used
    sent = False
    timer: asyncio.TimerHandle | None = None
    live.add(waiting)
    try:
        handler.heard = handler.resting = False
        handler.set_response_params(
            skip_payload=method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=READ_AHEAD,
            max_field_size=LONGEST_FIELD,
        )
        if on_sent is not None:
            on_sent()
        handler.used = sent = True
        transport.write(data)
        if first_byte is not None:
            timer = pool.loop.call_later(first_byte, waiting.late)
        while True:
            message, body = await handler.read()
            if message.code == 101:
                raise HttpProcessingError(code=101)
            if message.code >= 200:
                break
        if message.code == 407 and target.proxy is not None and not target.tunnelled:
            raise ProxyFailed(
                "the proxy answered 407 and wants a login",
                url=target.text,
                proxy=str(target.proxy),
                status=407,
            )
        return Answer(target, connection, handler, message, body, idle, live, pool.loop)
    except BaseException as error:
        give_up(connection, handler)
        if isinstance(error, (_Late, _Shut, aiohttp.ClientError, HttpProcessingError, OSError)):
            raise _failure(error, handler, target, reused, sent, first_byte) from None
        raise
    finally:
        live.discard(waiting)
        if timer is not None:
            timer.cancel()


class _Waiting:
    """An exchange whose answer has not begun, as the timer and a closing client see it."""

    __slots__ = ("_connection", "_handler")

    def __init__(self, handler: Handler, connection: Any) -> None:
        self._handler = handler
        self._connection = connection

    def disown(self) -> None:
        self._connection._protocol = None

    def late(self) -> None:
        self._handler.set_exception(_Late())

    def shut(self) -> None:
        self._handler.set_exception(_Shut())


def give_up(connection: Any, handler: Handler) -> None:
    """End a connection at once."""
    handler.body = None
    transport = connection.transport
    if transport is not None:
        transport.abort()
    connection.close()


def _failure(
    error: BaseException, handler: Handler, target: Target, reused: bool, sent: bool, first_byte: float | None
) -> NetError:
    """Why no answer began."""
    url = target.text
    if isinstance(error, _Late):
        return FirstByteTimeout(url=url, allowed=first_byte or 0.0)
    if isinstance(error, _Shut):
        return NetClosed(url=url, sent=sent)
    if isinstance(error, HttpProcessingError):
        return BadAnswer("what came back is not HTTP", url=url, sent=sent)
    lost_by = handler.lost_by
    if not reused and not handler.heard and tls.refuses_us(lost_by):
        assert lost_by is not None
        return tls.explain(lost_by, url)
    if handler.heard:
        return Broken("the connection ended before the answer had begun in full", url=url, sent=sent)
    how = (
        "the server closed the connection" if lost_by is None else f"the connection broke ({_name(lost_by)})"
    )
    if reused:
        return ReuseRace(
            f"{how} without an answer; it had been kept from an earlier request", url=url, sent=sent
        )
    return Broken(f"{how} without an answer", url=url, sent=sent)


def _name(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def request_bytes(
    method: str,
    target: Target,
    headers: Mapping[str, str],
    body: bytes | None,
    agent: str,
    cookies: str | None = None,
) -> bytes:
    """Head and body as they go over the wire.

    Raises:
        MisuseError: a header that would end its line, or that frames the message.
    """
    lines = [f"{method} {target.path} HTTP/1.1"]
    given = set()
    for name, value in headers.items():
        small = _names.get(name)
        if small is None:
            small = _good_name(name)
        given.add(small)
        lines.append(f"{name}: {value}")
    if "host" not in given:
        lines.insert(1, f"Host: {target.host}")
    if "accept" not in given:
        lines.append("Accept: */*")
    if "accept-encoding" not in given:
        lines.append(f"Accept-Encoding: {ACCEPTED}")
    if "user-agent" not in given:
        lines.append(f"User-Agent: {agent}")
    if cookies and "cookie" not in given:
        lines.append(f"Cookie: {cookies}")
    if target.login is not None and "authorization" not in given:
        lines.append(f"Authorization: {target.login}")
    if target.proxy_auth is not None:
        lines.append(f"Proxy-Authorization: {target.proxy_auth}")
    if body is not None or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body or b'')}")
    # One look at all of them: a tab parts them, which a value may hold as well.
    if _CONTROL.search("\t".join(lines)) is not None:
        raise MisuseError("a header holds a line break or another control character")
    try:
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    except UnicodeEncodeError:
        raise MisuseError("a header holds what is no text") from None
    return head + body if body else head


def _good_name(name: str) -> str:
    small = name.lower()
    if _TOKEN.fullmatch(name) is None:
        raise MisuseError(f"{name[:100]!r} is no name of a header")
    if small in OURS:
        raise MisuseError(f"the header {name} frames the message and is not for callers to set")
    if len(_names) > 1000:
        _names.clear()
    _names[name] = small
    return small
