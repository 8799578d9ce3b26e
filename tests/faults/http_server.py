"""A scripted MCP server over HTTP that misbehaves exactly as told, down to the bytes, inside the test's own loop.

Made and closed by the test: ``async with HttpFaults(era="modern", on={"tools/call": ["die", "ok"]}) as server``.
It writes HTTP/1.1 by itself, so that it can lie; it records every request for assertions; after it is left no task,
socket or timer stays. ``until`` and ``seen`` wait for what was recorded, never for a time.

Script keys (``DEFAULTS`` holds every key with its default; an unknown key is an error):

    era            "handshake" | "modern" (2026-07-28) | "dual" | "sse" (the HTTP+SSE of 2024-11-05)
    revision       the protocolVersion that ``initialize`` answers; ``versions`` those a modern server supports
    capabilities   replaces the declared capabilities; ``instructions`` is told if set
    answers        "json" | "sse", or {rpc method: …}: how a POST is answered
    session        False: no session id is given, and none is asked for
    lost           "404" | "400" (-32000, id null): how an unknown session is answered
    get            behaviour of the listening GET of the handshake era: "ok" or any word below; 405 is "status:405"
    delete         behaviour of the closing DELETE, likewise; "ok" is 200
    priming        an event with an id and no data opens every SSE stream; ``retry`` (ms) stands in it if set
    resumable      SSE events bear ids and are kept; a GET with Last-Event-ID goes on from there
    endpoint       of the era "sse": "ok" (a path) | "absolute" | "query" (``?…`` alone) | "never" | "twice"
                   | "to:<url>" (any other)
    tools          further tool objects; ``pages`` cuts ``tools/list`` into pages of so many
    ttl_ms         caching hint of a modern server
    grant          the filter that ``subscriptions/listen`` acknowledges; None: the one asked for
    strict         True: what a client must not send is answered 400 (it is always noted in ``violations``)
    on             {rpc method, or "GET", "DELETE", "POST", or a path: behaviour}

A behaviour is ``word`` or ``word:argument``, or a list: one for each request, the last one for ever. Words that
answer as the server would, with a twist:

    ok | json | sse                the answer (in this form)
    slow:<s> | hold                later | when ``release(method)`` is called
    type:<content type>            the right JSON under another content type; "type:" sends none
    gzip | chunked | close         compressed | in chunks of 7 bytes | with Connection: close
    close_idle                     answered, and the kept connection is closed at once (FIN)
    race                           answered, and the kept connection is reset at the first byte of the next request
    die_after                      the request is carried out, then RST in place of the answer
    die_in_body                    RST after half of the answer's body; ``cut_in_body`` FIN there
    end_stream                     SSE: primed, carried out, closed cleanly without the answer (it stays to be resumed)
    text_first                     SSE: a line of plain text as an event before the answer
    comments_first:<n>             SSE: so many comment lines before the answer

Words that do not carry the request out:

    silent                         nothing is answered; the connection stays
    stall                          the headers of an SSE stream, and nothing more
    comments:<s>                   an SSE stream of comments for ever, one each so many seconds
    text                           an SSE stream of one event of plain text, then its end
    big_event:<bytes>              an SSE event of that size, its end never comes
    big_body:<bytes>               JSON of that size
    bomb:<bytes>                   gzip that swells to so many bytes
    status:<code>[:<body>]         an empty body, or this text
    html | html:<code>             a page, 200 unless told
    error:<code>[:<status>]        a JSON-RPC error for the id asked, 200 unless told
    error_null:<code>[:<status>]   the same with id null, 400 unless told
    unsupported:<a,b>              400 and -32022 with these versions
    mismatch                       400 and -32020 (HeaderMismatch)
    json_text:<text>               200, application/json, this body
    accepted                       202 and no body, also for a request
    empty                          200, application/json, no body
    later:<code>:<s>               this status and Retry-After in seconds; ``later_date`` with a date
    unauthorized[:<challenge>]     401; ``forbidden[:<challenge>]`` 403
    redirect:<code>:<target>       with a Location (``{origin}`` in it is our own)
    die | close_now                RST | FIN before any byte of an answer
    half_headers                   FIN in the middle of the headers
    garbage                        bytes that are no HTTP

Tools: ``echo(text)``, ``add(a, b)``, ``effect(name)``, ``read(name)`` (the same, but listed as read-only),
``sleep(seconds)``, ``hold(key)``, ``progress(count)``, ``notify(count)``, ``big(bytes)``, ``boom(text)``,
``ask(method, params, via)`` (a request of ours, on the stream "post" or "get"), ``question(rounds, state)`` (MRTR),
``mirror(region, level)`` (``x-mcp-header``), ``task(steps)`` (a task of the tasks extension, which takes one of these
steps at each look: "working:<message>", "ask:<key>", and an end: "completed", "failed", "cancelled").
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import gzip
import json
import socket
import ssl
import struct
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
SERVER_INFO = {"name": "http-faults", "version": "1"}
LINGER_NONE = struct.pack("ii", 1, 0)
JSON_TYPE, SSE_TYPE = "application/json", "text/event-stream"
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
NAMED_BY |= {"tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
CACHEABLE = {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
CACHEABLE |= {"resources/read"}
PAGE = "<!doctype html><html><head><title>Sign in</title></head><body><h1>Sign in to go on</h1></body></html>"

DEFAULTS: Json = {
    "era": "handshake", "revision": "2025-11-25", "versions": [MODERN], "capabilities": None,
    "instructions": None, "answers": "json", "session": True, "lost": "404", "get": "ok", "delete": "ok",
    "priming": False, "retry": None, "resumable": False, "endpoint": "ok", "tools": [], "pages": 0, "ttl_ms": 0,
    "grant": None, "strict": True, "on": {},
}  # fmt: skip

REASONS = {200: "OK", 202: "Accepted", 204: "No Content", 400: "Bad Request", 404: "Not Found"}


class Reset(Exception):
    """Ends the connection with a RST."""


class Finish(Exception):
    """Ends the connection with a FIN."""


@dataclass(eq=False)
class Seen:
    """One request as it came, and what became of it."""

    number: int
    connection: int
    http: str
    path: str
    headers: dict[str, str]
    """Names in lower case; of a repeated one the last value."""
    body: bytes
    at: float
    message: Any = None
    """The body as JSON, or None."""
    status: int | None = None
    """The status that went out; None: none did (yet)."""
    gone: bool = False
    """The client closed the connection before the answer was out."""

    @property
    def rpc(self) -> str | None:
        """The JSON-RPC method; None for an answer of the client and for what is no message."""
        return self.message.get("method") if isinstance(self.message, dict) else None

    @property
    def id(self) -> Any:
        return self.message.get("id") if isinstance(self.message, dict) else None

    @property
    def params(self) -> Json:
        return (self.message.get("params") or {}) if isinstance(self.message, dict) else {}

    @property
    def tool(self) -> str | None:
        return self.params.get("name") if self.rpc == "tools/call" else None


class Stream:
    """What goes to a client as events: kept if resumable, written while somebody is attached."""

    def __init__(self, server: HttpFaults, name: str) -> None:
        self.server = server
        self.name = name
        self.kept: list[str] = []
        self.exchange: Exchange | None = None
        self.over = asyncio.Event()
        self.server.streams[name] = self

    def attach(self, exchange: Exchange, after: int | None = None) -> None:
        """The exchange carries the events from now on, and first those after number ``after``."""
        self.exchange = exchange
        exchange.start_sse()
        if after is not None:
            for text in self.kept[after:]:
                exchange.write(text.encode())

    def prime(self) -> None:
        script = self.server.script
        if script["priming"] or script["retry"] is not None:
            self.event("", retry=script["retry"])

    def send(self, message: Json) -> None:
        self.event(json.dumps(message))

    def event(self, data: str, *, kind: str | None = "message", retry: int | None = None) -> None:
        text = ""
        if self.server.script["resumable"] or self.server.script["priming"]:
            text += f"id: {self.name}/{len(self.kept) + 1}\n"
        if retry is not None:
            text += f"retry: {retry}\n"
        if kind is not None and data:
            text += f"event: {kind}\n"
        text += "".join(f"data: {line}\n" for line in data.split("\n")) + "\n"
        self.kept.append(text)
        if self.exchange is not None:
            self.exchange.write(text.encode())

    def end(self) -> None:
        self.over.set()


class Exchange:
    """One request and the writing of its answer. Made by the connection that read it."""

    def __init__(self, connection: Connection, seen: Seen) -> None:
        self.connection = connection
        self.server = connection.server
        self.seen = seen
        self.streaming = False
        self.chunk = 0
        self.keep = not connection.plain
        self.compress = False
        self.content_type: str | None = None
        self.cut: type[Exception] | None = None
        """Raised in the middle of the body."""
        self.dropped: type[Exception] | None = None
        """Raised in place of the answer."""
        self.session: str | None = None
        """The session id that the answer gives."""

    def write(self, data: bytes) -> None:
        transport = self.connection.transport
        if transport is None or transport.is_closing():
            return
        if self.streaming and not self.connection.plain:
            data = b"%x\r\n%s\r\n" % (len(data), data)
        transport.write(data)

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.seen.status = status
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
        self.server.touch()

    def start_sse(self) -> None:
        if self.streaming:
            return
        kind = {"Content-Type": SSE_TYPE, "Cache-Control": "no-cache"}
        how = {"Connection": "close"} if self.connection.plain else {"Transfer-Encoding": "chunked"}
        self.head(200, {**kind, **how, **self.server.extra(self)})
        self.streaming = True

    def end_sse(self) -> None:
        self.write(b"")  # the last chunk is the empty one
        self.streaming = False

    def body(self, status: int, data: bytes, content_type: str | None = JSON_TYPE, **headers: str) -> None:
        """A whole answer."""
        if self.dropped is not None:
            raise self.dropped
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.content_type is not None:
            content_type = self.content_type or None
        if content_type is not None:
            named["Content-Type"] = content_type
        if self.compress:
            data = gzip.compress(data)
            named["Content-Encoding"] = "gzip"
        if not self.keep:
            named["Connection"] = "close"
        named |= self.server.extra(self)
        if self.chunk and not self.connection.plain:
            self.head(status, {**named, "Transfer-Encoding": "chunked"})
            self.streaming = True
            for start in range(0, len(data), self.chunk):
                self.write(data[start : start + self.chunk])
            self.end_sse()
            return
        if status not in (202, 204) or data:
            named["Content-Length"] = str(len(data))
        elif status == 202:
            named["Content-Length"] = "0"
        self.head(status, named)
        if self.cut is not None:
            self.write(data[: len(data) // 2])
            raise self.cut
        self.write(data)

    def json(self, message: Any, status: int = 200, **headers: str) -> None:
        self.body(status, json.dumps(message).encode(), **headers)

    def error(self, code: int, text: str, status: int, *, null: bool = False, data: Any = None) -> None:
        error: Json = {"code": code, "message": text, **({} if data is None else {"data": data})}
        self.json({"jsonrpc": "2.0", "id": None if null else self.seen.id, "error": error}, status)


class Connection(asyncio.Protocol):
    """One connection of a client. Its task reads requests one after another until either side ends it."""

    def __init__(self, server: HttpFaults) -> None:
        self.server = server
        self.number = 0
        self.transport: asyncio.Transport | None = None
        self.buffer = bytearray()
        self.more = asyncio.Event()
        self.gone = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.race = False
        self.plain = False
        """The request is HTTP/1.0, as middle boxes speak it: no chunks; a stream ends with the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: one of uvloop is no asyncio.Transport by its class.
        self.transport = cast(asyncio.Transport, transport)
        self.number = self.server.enter(self)
        self.task = asyncio.create_task(self.serve(), name=f"http faults connection {self.number}")

    def data_received(self, data: bytes) -> None:
        if self.race:
            self.reset()
            return
        self.buffer += data
        self.more.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
        self.more.set()
        self.server.touch()

    def reset(self) -> None:
        assert self.transport is not None
        raw = self.transport.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0 and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        self.transport.abort()

    async def serve(self) -> None:
        assert self.transport is not None
        try:
            while (seen := await self.read()) is not None:
                exchange = Exchange(self, seen)
                answering = asyncio.create_task(self.server.answer(exchange))
                leaving = asyncio.create_task(self.gone.wait())
                try:
                    await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    seen.gone = not answering.done()
                finally:
                    for task in (answering, leaving):
                        task.cancel()
                    await asyncio.wait({answering, leaving})
                    self.server.touch()
                if answering.cancelled():
                    return
                answering.result()
                if not exchange.keep:
                    return
        except Reset:
            self.reset()
        except Finish:
            pass
        finally:
            self.transport.close()
            if not self.gone.is_set():
                # What the peer does not read must not keep us.
                try:
                    async with asyncio.timeout(5.0):
                        await self.gone.wait()
                except TimeoutError:
                    self.transport.abort()
            self.server.leave(self)

    async def upto(self, size: int | None) -> bytes | None:
        """So many bytes; None: up to the blank line. None comes back at the end of the connection."""
        while True:
            end = self.buffer.find(b"\r\n\r\n") + 4 if size is None else size
            if end > 3 if size is None else len(self.buffer) >= end:
                taken = bytes(self.buffer[:end])
                del self.buffer[:end]
                return taken
            if self.gone.is_set():
                return None
            self.more.clear()
            await self.more.wait()

    async def line(self) -> bytes:
        while (at := self.buffer.find(b"\r\n")) < 0:
            if self.gone.is_set():
                raise Finish
            self.more.clear()
            await self.more.wait()
        taken = bytes(self.buffer[:at])
        del self.buffer[: at + 2]
        return taken

    async def read(self) -> Seen | None:
        head = await self.upto(None)
        if head is None:
            return None
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        http, path, version = first.split(" ")
        self.plain = version == "HTTP/1.0"
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        body: bytes | None = b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int((await self.line()).split(b";")[0], 16):
                parts.append(await self.upto(size) or b"")
                await self.line()
            await self.line()
            body = b"".join(parts)
        elif length := int(headers.get("content-length", 0)):
            body = await self.upto(length)
        if body is None:
            return None
        return self.server.note(self, http, path, headers, body)


class Call:
    """One JSON-RPC request being carried out, in a task of the server, whoever still listens."""

    def __init__(
        self, server: HttpFaults, seen: Seen, *, modern: bool, stream: Stream | None, own: bool = True
    ) -> None:
        self.server = server
        self.seen = seen
        self.modern = modern
        self.stream = stream
        self.own = own
        """The stream is this call's alone, and ends with it."""
        self.answered: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

    def send(self, message: Json) -> None:
        """A message of ours that belongs to this call; dropped where the answer is plain JSON."""
        if self.stream is not None:
            self.stream.send(message)

    def reply(self, result: Json) -> Json:
        if self.modern:
            dress: Json = {"resultType": "complete", "_meta": {META + "serverInfo": SERVER_INFO}}
            if self.seen.rpc in CACHEABLE and self.server.script["ttl_ms"] is not None:
                dress |= {"ttlMs": self.server.script["ttl_ms"], "cacheScope": "private"}
            result = {**dress, **result}
        return {"jsonrpc": "2.0", "id": self.seen.id, "result": result}

    def refuse(self, code: int, text: str) -> Json:
        return {"jsonrpc": "2.0", "id": self.seen.id, "error": {"code": code, "message": text}}

    async def run(self) -> None:
        try:
            message = await self.server.carry_out(self)
        except asyncio.CancelledError:
            self.server.cancelled.append(self.seen.id)
            self.server.touch()
            message = self.refuse(0, "Request cancelled")
        except Exception as error:
            message = self.refuse(-32603, repr(error))
        self.answered.set_result(message)
        if self.stream is not None:
            self.stream.send(message)
            if self.own:
                self.stream.end()


class HttpFaults:
    """The server. Entered and left by one task; ``url`` is its endpoint.

    ``ssl`` makes it speak TLS, ``unix`` (a path) listen on a Unix socket, ``port`` on that port.
    """

    def __init__(self, *, ssl: ssl.SSLContext | None = None, unix: str | None = None, port: int = 0, path: str = "/mcp",
                 host: str = "127.0.0.1", **script: Any) -> None:  # fmt: skip
        if unknown := set(script) - set(DEFAULTS):
            raise ValueError(f"unknown script keys: {sorted(unknown)}")
        self.script: Json = {**DEFAULTS, **script, "on": dict(script.get("on", {}))}
        for behaviour in (*self.script["on"].values(), self.script["get"], self.script["delete"]):
            for turn in behaviour if isinstance(behaviour, list) else [behaviour]:
                if turn.partition(":")[0] not in WORDS:
                    raise ValueError(f"unknown behaviour {turn!r}")
        self.host, self.port, self.path, self.unix, self.tls = host, port, path, unix, ssl
        self.requests: list[Seen] = []
        """Every request, in the order in which they were whole."""
        self.effects: Counter[str] = Counter()
        """How often each effect happened, and how often each tool was carried out (``tool:<name>``)."""
        self.sessions: dict[str, str] = {}
        """Session id → revision, of those that are known."""
        self.violations: list[str] = []
        """What a client must not send, as text."""
        self.cancelled: list[Any] = []
        """Ids of calls that were cancelled while they ran: by notice, or by the closed stream (modern)."""
        self.answers: list[Json] = []
        """Answers of the client to our own requests."""
        self.streams: dict[str, Stream] = {}
        self.listens: dict[Any, Call] = {}
        """Open ``subscriptions/listen``, by request id."""
        self.connections = 0
        """How many were ever accepted."""
        self.live: set[Connection] = set()
        self.tasks: dict[str, list[str]] = {}
        """Task id → the steps that it has still to take (``task``)."""
        self._turns: Counter[str] = Counter()
        self._held: dict[str, asyncio.Event] = {}
        self._waiting: dict[Any, asyncio.Future[Json]] = {}
        self._calls: dict[asyncio.Task[None], Call] = {}
        self._serial = 0
        self._listening: Stream | None = None
        self._sse: dict[str, Stream] = {}
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_listening()
        await asyncio.sleep(0)  # for what the loop had accepted already
        for task in self._calls:
            task.cancel()
        tasks = {*self._calls, *(connection.task for connection in self.live if connection.task)}
        self.drop_connections()
        if tasks:
            await asyncio.wait(tasks)
        failed = [task.exception() for task in tasks if not task.cancelled() and task.exception()]
        if failed and error is None:
            raise failed[0]  # type: ignore[misc]  # the server itself is broken

    # What is there

    @property
    def origin(self) -> str:
        return f"{'https' if self.tls else 'http'}://{'localhost' if self.tls else self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The endpoint; of the era "sse" the one that is GET."""
        return self.origin + ("/sse" if self.script["era"] == "sse" else self.path)

    def of(self, what: str, **match: Any) -> list[Seen]:
        """The requests with this JSON-RPC method, or this HTTP method; ``tool=`` picks calls of one tool."""
        return [seen for seen in self.requests
                if what in (seen.rpc, seen.http) and all(getattr(seen, k) == v for k, v in match.items())]  # fmt: skip

    def count(self, what: str, **match: Any) -> int:
        return len(self.of(what, **match))

    async def until(self, true: Callable[[HttpFaults], object], timeout: float = 10.0) -> None:
        """Waits until this is true of the server.

        Raises:
            AssertionError: it was not in time; the text holds the last requests.
        """
        try:
            async with asyncio.timeout(timeout):
                while not true(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            tail = [(seen.http, seen.rpc, seen.id, seen.status) for seen in self.requests[-10:]]
            raise AssertionError(f"not so within {timeout} s; the last requests: {tail}") from None

    async def seen(self, what: str, count: int = 1, timeout: float = 10.0, **match: Any) -> Seen:
        """Waits for the count-th such request."""
        await self.until(lambda server: server.count(what, **match) >= count, timeout)
        return self.of(what, **match)[count - 1]

    # Orders

    async def listen(self) -> None:
        """Listens (again), on the same port as before."""
        loop = asyncio.get_running_loop()
        if self.unix is not None:
            self._server = await loop.create_unix_server(lambda: Connection(self), self.unix, ssl=self.tls)
            return
        self._server = await loop.create_server(lambda: Connection(self), self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """A dial is refused from now on; what is open stays."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def drop_connections(self) -> None:
        """Resets every connection of now."""
        for connection in list(self.live):
            connection.reset()

    def forget(self) -> None:
        """The sessions are unknown from now on, as after a restart."""
        self.sessions.clear()

    def set(self, **script: Any) -> None:
        """Changes script keys from now on; of ``on`` only the named methods, whose turns begin anew."""
        on = script.pop("on", {})
        self.script |= script
        self.script["on"] |= on
        for key in (*on, *script):
            self._turns.pop(key, None)

    def release(self, key: str) -> None:
        """Lets go what waits under this key: a method (word ``hold``) or the key of the tool ``hold``."""
        self._held.setdefault(key, asyncio.Event()).set()

    def list_changed(self, kind: str = "tools") -> None:
        """Tells every listening client: on the GET stream, on open subscriptions, or on legacy SSE streams."""
        self.tell({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"})

    def tell(self, message: Json) -> None:
        """Sends a notification to every listening client."""
        for number, call in self.listens.items():
            meta = {"_meta": {META + "subscriptionId": number}}
            call.send({**message, "params": {**message.get("params", {}), **meta}})
        for stream in (self._listening, *self._sse.values()):
            if stream is not None:
                stream.send(message)

    def end_listens(self, *, graceful: bool = True) -> None:
        """Ends subscriptions and the listening GET: with the result, or the stream alone."""
        for call in list(self.listens.values()):
            assert call.stream is not None
            if graceful:
                call.send(call.reply({"_meta": {META + "subscriptionId": call.seen.id}}))
            call.stream.end()
        if self._listening is not None:
            self._listening.end()

    # The machine

    def touch(self) -> None:
        self._changed.set()

    def enter(self, connection: Connection) -> int:
        self.live.add(connection)
        self.connections += 1
        self.touch()
        return self.connections

    def leave(self, connection: Connection) -> None:
        self.live.discard(connection)
        self.touch()

    def note(
        self, connection: Connection, http: str, path: str, headers: dict[str, str], body: bytes
    ) -> Seen:
        seen = Seen(len(self.requests), connection.number, http, path, headers, body, time.monotonic())
        try:
            seen.message = json.loads(body) if body else None
        except ValueError:
            seen.message = None
        self.requests.append(seen)
        self.touch()
        return seen

    def extra(self, exchange: Exchange) -> dict[str, str]:
        """Headers that every answer of an exchange bears."""
        return {"Mcp-Session-Id": exchange.session} if exchange.session else {}

    def behaviour(self, key: str, default: str | None) -> str | None:
        given = self.script["on"].get(key, default)
        if isinstance(given, list):
            given = given[min(self._turns[key], len(given) - 1)]
        self._turns[key] += 1
        return given

    async def answer(self, exchange: Exchange) -> None:
        seen = exchange.seen
        defaults = {"GET": self.script["get"], "DELETE": self.script["delete"]}
        default = defaults.get(seen.http, "ok")
        if seen.http == "GET" and ("last-event-id" in seen.headers or self.script["era"] == "sse"):
            default = "ok"
        keys = [key for key in (seen.rpc, urlsplit(seen.path).path, seen.http) if key in self.script["on"]]
        turn = self.behaviour(keys[0], default) if keys else default
        if isinstance(turn, list):
            turn = turn[min(self._turns[seen.http], len(turn) - 1)]
            self._turns[seen.http] += 1
        word, _, argument = (turn or "ok").partition(":")
        await WORDS[word](self, exchange, argument)

    def violation(self, exchange: Exchange, what: str) -> bool:
        """Notes it; True if the request is to be refused for it."""
        self.violations.append(f"{what} ({exchange.seen.rpc or exchange.seen.http})")
        return bool(self.script["strict"])

    async def route(self, exchange: Exchange, form: str | None = None, *, orphan: bool = False) -> None:
        """The answer of a server that does what it should."""
        seen, era = exchange.seen, self.script["era"]
        if era == "sse":
            await self.route_sse(exchange)
        elif seen.http == "GET":
            await self.serve_get(exchange)
        elif seen.http == "DELETE":
            self.sessions.pop(seen.headers.get("mcp-session-id", ""), None)
            exchange.body(200, b"", None)
        elif seen.http != "POST" or urlsplit(seen.path).path not in (self.path, *self.script["on"]):
            exchange.body(404, b"", None)
        elif not isinstance(seen.message, dict):
            exchange.error(-32700, "Parse error", 400, null=True)
        elif era == "modern" or (era == "dual" and self.is_modern(seen)):
            if not self.refuse_modern(exchange):
                await self.serve_post(exchange, True, form, orphan)
        elif not self.refuse_handshake(exchange):
            await self.serve_post(exchange, False, form, orphan)

    def is_modern(self, seen: Seen) -> bool:
        meta = seen.params.get("_meta") or {}
        return seen.rpc == "server/discover" or META + "protocolVersion" in meta

    def accepts(self, exchange: Exchange) -> bool:
        accept = exchange.seen.headers.get("accept", "")
        return JSON_TYPE in accept and SSE_TYPE in accept

    def refuse_modern(self, exchange: Exchange) -> bool:
        seen = exchange.seen
        meta = seen.params.get("_meta") or {}
        version, header = meta.get(META + "protocolVersion"), seen.headers.get("mcp-protocol-version")
        if "mcp-session-id" in seen.headers:
            self.violation(exchange, "a session id in the modern era")
        if seen.rpc is None:
            self.violation(exchange, "an answer in the modern era")
        if not self.accepts(exchange) and self.violation(exchange, "Accept does not name both types"):
            exchange.error(-32600, "Not acceptable", 406)
        elif seen.id is None:
            return False  # a notification needs no envelope
        elif version is None or META + "clientCapabilities" not in meta:
            self.violation(exchange, "no envelope")
            exchange.error(-32602, "the envelope is missing", 400)
        elif header != version:
            self.violation(exchange, "the version header is not the envelope's")
            exchange.error(-32020, "header mismatch", 400)
        elif version not in self.script["versions"]:
            data = {"supported": self.script["versions"], "requested": version}
            exchange.error(-32022, "unsupported protocol version", 400, data=data)
        elif (wrong := self.header_mismatch(seen)) is not None:
            self.violation(exchange, wrong)
            exchange.error(-32020, wrong, 400)
        else:
            return False
        return True

    def header_mismatch(self, seen: Seen) -> str | None:
        if seen.headers.get("mcp-method") != seen.rpc:
            return "Mcp-Method is not the method"
        key = NAMED_BY.get(seen.rpc or "")
        if key is not None and decoded(seen.headers.get("mcp-name")) != seen.params.get(key):
            return f"Mcp-Name is not params.{key}"
        if seen.rpc == "tools/call":
            schema = next((t["inputSchema"] for t in self.tools() if t["name"] == seen.tool), {})
            for name, part in schema.get("properties", {}).items():
                if (header := part.get("x-mcp-header")) is None:
                    continue
                value = (seen.params.get("arguments") or {}).get(name)
                if decoded(seen.headers.get(f"mcp-param-{header.lower()}")) != plain(value):
                    return f"Mcp-Param-{header} is not the argument"
        return None

    def refuse_handshake(self, exchange: Exchange) -> bool:
        seen = exchange.seen
        if not self.accepts(exchange) and self.violation(exchange, "Accept does not name both types"):
            exchange.error(-32600, "Not acceptable", 406, null=True)
            return True
        modern = [
            name
            for name in seen.headers
            if name in ("mcp-method", "mcp-name") or name.startswith("mcp-param-")
        ]
        if seen.rpc != "server/discover" and (
            modern or META + "protocolVersion" in (seen.params.get("_meta") or {})
        ):
            self.violation(exchange, "modern metadata in the handshake era")
        if seen.rpc == "initialize":
            if "mcp-session-id" in seen.headers:
                self.violation(exchange, "initialize with a session id")
            return False
        session = seen.headers.get("mcp-session-id")
        if not self.script["session"]:
            if seen.rpc == "server/discover":
                exchange.error(-32601, "Method not found", 200)
                return True
            return False
        if session is None:
            if seen.rpc != "server/discover":
                self.violation(exchange, "no session id")
            exchange.error(-32000, "Bad Request: no session id", 400, null=True)
        elif session not in self.sessions:
            if self.script["lost"] == "404":
                exchange.error(-32001, "Session not found", 404, null=True)
            else:
                exchange.error(-32000, "Bad Request: no valid session id", 400, null=True)
        elif "2025-06-18" <= self.sessions[session] != seen.headers.get("mcp-protocol-version"):
            self.violation(exchange, "the version header is not the negotiated one")
            exchange.error(-32000, "Bad Request: unsupported protocol version", 400, null=True)
        else:
            return False
        return True

    async def serve_get(self, exchange: Exchange) -> None:
        """The listening stream of the handshake era, or the rest of a stream that broke."""
        seen = exchange.seen
        if self.script["era"] == "modern":
            exchange.body(405, b"", None, Allow="POST")
            return
        if self.script["session"] and seen.headers.get("mcp-session-id") not in self.sessions:
            exchange.error(-32001, "Session not found", 404, null=True)
            return
        last = seen.headers.get("last-event-id")
        if last is not None:
            name, _, number = last.rpartition("/")
            if name not in self.streams:
                exchange.error(-32000, "unknown event id", 400, null=True)
                return
            stream = self.streams[name]
            stream.attach(exchange, after=int(number))
        else:
            stream = self._listening = Stream(self, f"get{len(self.streams)}")
            stream.attach(exchange)
            stream.prime()
        await stream.over.wait()
        exchange.end_sse()

    def start(self, call: Call) -> asyncio.Task[None]:
        task = asyncio.create_task(call.run(), name=f"http faults {call.seen.rpc}")
        self._calls[task] = call
        task.add_done_callback(lambda task: self._calls.pop(task, None) and None)
        return task

    async def serve_post(
        self, exchange: Exchange, modern: bool, form: str | None, orphan: bool = False
    ) -> None:
        seen = exchange.seen
        if seen.rpc is None or seen.id is None:
            self.receive(seen)
            exchange.body(202, b"", None)
            return
        if form is None:
            answers = self.script["answers"]
            form = answers if isinstance(answers, str) else answers.get(seen.rpc, "json")
        if seen.rpc == "subscriptions/listen" and modern:
            form = "sse"
        if seen.rpc == "initialize" and self.script["session"] and not modern:
            session = f"session-{len(self.streams)}-{seen.number}"
            self.sessions[session] = self.script["revision"]
            exchange.session = session
        stream = None
        if form == "sse" and exchange.dropped is None:
            stream = Stream(self, f"post{seen.number}")
            stream.attach(exchange)
            stream.prime()
            if orphan:
                stream.exchange = None  # what it says from now on is kept for whoever resumes
        call = Call(self, seen, modern=modern, stream=stream)
        task = self.start(call)
        if orphan:
            exchange.end_sse()
            return
        try:
            if stream is None:
                await asyncio.wait({task})
                if not call.answered.done():
                    raise Finish  # the server was left before the call's first step
                exchange.json(call.answered.result())
            else:
                await stream.over.wait()
                exchange.end_sse()
        except asyncio.CancelledError:
            if stream is not None:
                stream.exchange = None
            if modern:
                task.cancel()  # the closed stream is the cancel
            raise

    def receive(self, seen: Seen) -> None:
        """A notification, or an answer to a request of ours."""
        message = seen.message
        if seen.rpc == "notifications/cancelled":
            for task, call in self._calls.items():
                if call.seen.id == seen.params.get("requestId"):
                    task.cancel()
        elif seen.rpc is None:
            self.answers.append(message)
            waiting = self._waiting.pop(message.get("id"), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)

    # The era of HTTP+SSE

    async def route_sse(self, exchange: Exchange) -> None:
        seen = exchange.seen
        parts = urlsplit(seen.path)
        if seen.http == "GET" and parts.path == "/sse":
            name = f"sse{len(self.streams)}"
            stream = self._sse[name] = Stream(self, name)
            stream.attach(exchange)
            word, _, argument = self.script["endpoint"].partition(":")
            target = f"/messages?session={name}"
            told = {"absolute": self.origin + target, "to": argument, "query": f"?session={name}"}.get(
                word, target
            )
            for _ in range({"never": 0, "twice": 2}.get(word, 1)):
                stream.event(told, kind="endpoint")
            try:
                await stream.over.wait()
                exchange.end_sse()
            finally:
                self._sse.pop(name, None)
        elif (
            seen.http == "POST" and parts.path in ("/messages", "/sse") and "session" in parse_qs(parts.query)
        ):
            found = self._sse.get(parse_qs(parts.query)["session"][0])
            if found is None:
                exchange.body(404, b"Could not find session", "text/plain")
                return
            exchange.body(202, b"Accepted", "text/plain")
            if seen.rpc is None or seen.id is None:
                self.receive(seen)
            else:
                self.start(Call(self, seen, modern=False, stream=found, own=False))
        else:
            exchange.body(405 if parts.path == "/sse" else 404, b"", None)

    def end_sse_streams(self) -> None:
        """Era "sse": the streams end cleanly, whatever waits for an answer on them."""
        for stream in list(self._sse.values()):
            stream.end()

    # What it serves

    def capabilities(self) -> Json:
        declared = self.script["capabilities"]
        some = {"listChanged": True}
        return declared if declared is not None else {"tools": some, "resources": {**some, "subscribe": True},
                                                      "prompts": some, "logging": {}}  # fmt: skip

    def tools(self) -> list[Json]:
        return [*TOOLS, *self.script["tools"]]

    async def carry_out(self, call: Call) -> Json:
        seen = call.seen
        server = {"serverInfo": SERVER_INFO, "capabilities": self.capabilities()}
        if self.script["instructions"]:
            server["instructions"] = self.script["instructions"]
        match seen.rpc:
            case "initialize" if not call.modern:
                return call.reply({**server, "protocolVersion": self.script["revision"]})
            case "server/discover" if call.modern:
                return call.reply({**server, "supportedVersions": self.script["versions"]})
            case "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" if (
                not call.modern
            ):
                return call.reply({})
            case "tools/list":
                tools, size = self.tools(), self.script["pages"]
                start = int(seen.params.get("cursor") or 0)
                page = tools[start : start + size] if size else tools
                more = {"nextCursor": str(start + size)} if size and start + size < len(tools) else {}
                return call.reply({"tools": page, **more})
            case "resources/list":
                return call.reply({"resources": [{"uri": "res://1", "name": "one"}]})
            case "resources/templates/list":
                return call.reply({"resourceTemplates": [{"uriTemplate": "res://{id}", "name": "any"}]})
            case "prompts/list":
                return call.reply({"prompts": [{"name": "greet"}]})
            case "resources/read":
                uri = seen.params.get("uri")
                return call.reply({"contents": [{"uri": uri, "text": f"content of {uri}"}]})
            case "prompts/get":
                return call.reply(
                    {"messages": [{"role": "user", "content": {"type": "text", "text": "hello"}}]}
                )
            case "subscriptions/listen" if call.modern:
                return await self.listen_for(call)
            case "tasks/get" | "tasks/update" | "tasks/cancel" if call.modern:
                return self.look_at_task(call)
            case "tools/call":
                name = seen.tool or ""
                tool = CALLS.get(name)
                if tool is None:
                    return call.refuse(-32602, f"Unknown tool: {name}")
                self.effects[f"tool:{name}"] += 1
                self.touch()
                return await tool(call, **(seen.params.get("arguments") or {}))
        return call.refuse(-32601, "Method not found")

    async def listen_for(self, call: Call) -> Json:
        assert call.stream is not None
        number = call.seen.id
        granted = self.script["grant"]
        if granted is None:
            granted = call.seen.params.get("notifications", {})
        call.send({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                   "params": {"notifications": granted, "_meta": {META + "subscriptionId": number}}})  # fmt: skip
        self.listens[number] = call
        self.touch()
        try:
            await call.stream.over.wait()
        finally:
            self.listens.pop(number, None)
            self.touch()
        call.stream.exchange = None  # what ended it was said already
        return call.reply({})

    def look_at_task(self, call: Call) -> Json:
        """One of the methods of the tasks extension."""
        steps = self.tasks.get(call.seen.params.get("taskId", ""))
        if steps is None:
            return call.refuse(-32602, "no such task")
        if call.seen.rpc == "tasks/cancel":
            steps[:] = ["cancelled"]
            return call.reply({})
        if call.seen.rpc == "tasks/update":
            steps.pop(0)
            return call.reply({})
        step, _, key = steps[0].partition(":")
        if step == "ask":
            form = {"message": key, "requestedSchema": {"type": "object", "properties": {}}}
            asked = {key: {"method": "elicitation/create", "params": form}}
            return call.reply(task_of(call, "input_required", inputRequests=asked))
        if step != "working":
            text = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}
            ends: Json = {"result": text} if step == "completed" else {}
            ends |= {"error": {"code": -32050, "message": "it broke"}} if step == "failed" else {}
            return call.reply(task_of(call, step, **ends))
        steps.pop(0)
        return call.reply(task_of(call, "working", statusMessage=key))

    async def ask(self, call: Call, method: str, params: Json, via: str) -> Json:
        """A request of ours to the client, on the stream of the call or on the listening one."""
        self._serial += 1
        number = f"ours-{self._serial}"
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        stream = self._listening if via == "get" else call.stream
        if stream is None:
            return {"error": {"code": 0, "message": "no stream to ask on"}}
        stream.send(message)
        try:
            return await future
        finally:
            self._waiting.pop(number, None)


# --- headers --------------------------------------------------------------------------------------


def decoded(value: str | None) -> str | None:
    """A header's value, out of its base64 sentinel."""
    if value is not None and value.startswith("=?base64?") and value.endswith("?="):
        return base64.b64decode(value[9:-2]).decode()
    return value


def plain(value: Any) -> str | None:
    """An argument as its header says it."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


# --- tools ----------------------------------------------------------------------------------------


def text_of(call: Call, text: str, **more: Any) -> Json:
    return call.reply({"content": [{"type": "text", "text": text}], **more})


async def do_echo(call: Call, text: str = "") -> Json:
    return text_of(call, text)


async def do_add(call: Call, a: float, b: float) -> Json:
    return text_of(call, str(a + b))


async def do_effect(call: Call, name: str = "effect") -> Json:
    call.server.effects[name] += 1
    return text_of(call, str(call.server.effects[name]))


async def do_sleep(call: Call, seconds: float = 0) -> Json:
    await asyncio.sleep(seconds)
    return text_of(call, "slept")


async def do_hold(call: Call, key: str = "hold") -> Json:
    await call.server._held.setdefault(key, asyncio.Event()).wait()
    return text_of(call, "released")


async def do_progress(call: Call, count: int = 3, seconds: float = 0) -> Json:
    token = (call.seen.params.get("_meta") or {}).get("progressToken")
    for step in range(1, count + 1):
        await asyncio.sleep(seconds)
        if token is not None:
            params = {"progressToken": token, "progress": step, "total": count}
            call.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    return text_of(call, "done")


async def do_notify(call: Call, count: int = 1) -> Json:
    for number in range(count):
        params = {"level": "info", "data": number}
        call.send({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
    return text_of(call, "told")


async def do_ask(
    call: Call, method: str = "roots/list", params: Json | None = None, via: str = "post"
) -> Json:
    answer = await call.server.ask(call, method, params or {}, via)
    return text_of(call, json.dumps(answer.get("result", answer.get("error"))))


async def do_big(call: Call, bytes: int = 1000) -> Json:
    return text_of(call, "x" * bytes)


async def do_question(call: Call, rounds: int = 1, state: str | None = "state") -> Json:
    """MRTR: asks so many times before it answers."""
    params = call.seen.params
    done = len((params.get("requestState") or "").split("+")) if state and params.get("requestState") else 0
    if not state and "inputResponses" in params:
        done = rounds
    if done >= rounds:
        return text_of(call, json.dumps(params.get("inputResponses")))
    form = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    asked = {
        "method": "elicitation/create",
        "params": {"message": f"round {done + 1}", "requestedSchema": form},
    }
    result: Json = {"resultType": "input_required", "inputRequests": {"q": asked}}
    if state:
        result["requestState"] = "+".join([state] * (done + 1))
    return call.reply(result)


async def do_mirror(call: Call, region: str | None = None, level: int | None = None) -> Json:
    return text_of(
        call, json.dumps({k: v for k, v in call.seen.headers.items() if k.startswith("mcp-param-")})
    )


def task_of(call: Call, status: str, **more: Any) -> Json:
    now = "2026-08-01T12:00:00Z"
    name = call.seen.params.get("taskId")
    return {"taskId": name, "status": status, "createdAt": now, "lastUpdatedAt": now, "ttlMs": None,
            "pollIntervalMs": 50, **more}  # fmt: skip


async def do_task(call: Call, steps: list[str]) -> Json:
    name = f"task-{len(call.server.tasks)}"
    call.server.tasks[name] = list(steps)
    return call.reply({**task_of(call, "working"), "taskId": name, "resultType": "task"})


async def do_boom(call: Call, text: str = "it failed") -> Json:
    return text_of(call, text, isError=True)


CALLS: dict[str, Callable[..., Awaitable[Json]]] = {
    "echo": do_echo, "add": do_add, "effect": do_effect, "read": do_effect, "sleep": do_sleep, "hold": do_hold,
    "progress": do_progress, "notify": do_notify, "ask": do_ask, "big": do_big, "question": do_question,
    "mirror": do_mirror, "boom": do_boom, "task": do_task,
}  # fmt: skip

MIRRORED = {
    "region": {"type": "string", "x-mcp-header": "Region"},
    "level": {"type": "integer", "x-mcp-header": "Level"},
}
TOOLS: list[Json] = [
    {
        "name": name,
        "description": name,
        "inputSchema": {"type": "object", "properties": MIRRORED if name == "mirror" else {}},
        **({"annotations": {"readOnlyHint": True}} if name == "read" else {}),
    }
    for name in CALLS
]


# --- words ----------------------------------------------------------------------------------------


async def forever() -> None:
    await asyncio.Event().wait()


async def say_ok(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    await server.route(exchange)


async def say_json(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    await server.route(exchange, "json")


async def say_sse(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    await server.route(exchange, "sse")


async def say_slow(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    await asyncio.sleep(float(argument))
    await server.route(exchange)


async def say_hold(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    key = exchange.seen.rpc or exchange.seen.http
    await server._held.setdefault(key, asyncio.Event()).wait()
    await server.route(exchange)


async def say_type(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.content_type = argument
    await server.route(exchange, "json")


async def say_gzip(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.compress = True
    await server.route(exchange, "json")


async def say_chunked(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.chunk = 7
    await server.route(exchange, "json")


async def say_close(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.keep = False
    await server.route(exchange, "json")


async def say_close_idle(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    await server.route(exchange, "json")
    raise Finish


async def say_race(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    await server.route(exchange, "json")
    exchange.connection.race = True


async def say_die_after(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.dropped = Reset
    await server.route(exchange, "json")


async def say_die_in_body(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.cut = Reset
    await server.route(exchange, "json")


async def say_cut_in_body(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.cut = Finish
    await server.route(exchange, "json")


async def say_end_stream(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    await server.route(exchange, "sse", orphan=True)


async def say_text_first(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.start_sse()
    exchange.write(b"data: plain text, no JSON\n\n")
    await server.route(exchange, "sse")


async def say_comments_first(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.start_sse()
    exchange.write(b": still here\n" * int(argument or 1))
    await server.route(exchange, "sse")


async def say_silent(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    await forever()


async def say_stall(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.start_sse()
    await forever()


async def say_comments(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.start_sse()
    while True:
        exchange.write(b": nothing\n\n")
        await asyncio.sleep(float(argument or 0.05))


async def say_text(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.start_sse()
    exchange.write(b"data: plain text, no JSON\n\n")
    exchange.end_sse()


async def say_big_event(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.start_sse()
    exchange.write(b"data: ")
    left = int(argument)
    while left > 0:
        exchange.write(b"x" * min(left, 65536))
        left -= 65536
        await asyncio.sleep(0)
    await forever()


async def say_big_body(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.json({"jsonrpc": "2.0", "id": exchange.seen.id, "result": {"x": "x" * int(argument)}})


async def say_bomb(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(b'{"jsonrpc":"2.0","result":{"x":"')]
    parts += [packer.compress(b"x" * 65536) for _ in range(int(argument) // 65536 + 1)]
    body = b"".join([*parts, packer.flush()])
    exchange.body(200, body, Content_Encoding="gzip")


async def say_status(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    code, _, body = argument.partition(":")
    exchange.body(int(code), body.encode(), "text/plain" if body else None)


async def say_html(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.body(int(argument or 200), PAGE.encode(), "text/html; charset=utf-8")


async def say_error(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    code, _, status = argument.partition(":")
    exchange.error(int(code), "scripted", int(status or 200))


async def say_error_null(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    code, _, status = argument.partition(":")
    exchange.error(int(code), "scripted", int(status or 400), null=True)


async def say_unsupported(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    data = {"supported": [each for each in argument.split(",") if each], "requested": MODERN}
    exchange.error(-32022, "unsupported protocol version", 400, data=data)


async def say_mismatch(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.error(-32020, "header mismatch", 400)


async def say_json_text(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.body(200, argument.encode())


async def say_accepted(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.body(202, b"", None)


async def say_empty(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.body(200, b"")


async def say_later(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    code, _, seconds = argument.partition(":")
    exchange.body(int(code), b"slow down", "text/plain", Retry_After=seconds)


async def say_later_date(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    code, _, seconds = argument.partition(":")
    date = email.utils.formatdate(time.time() + float(seconds), usegmt=True)
    exchange.body(int(code), b"slow down", "text/plain", Retry_After=date)


async def say_unauthorized(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.body(401, b"", None, WWW_Authenticate=argument or 'Bearer realm="faults"')


async def say_forbidden(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    challenge = argument or 'Bearer error="insufficient_scope", scope="more"'
    exchange.body(403, b"", None, WWW_Authenticate=challenge)


async def say_redirect(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    code, _, target = argument.partition(":")
    exchange.body(int(code), b"", None, Location=target.replace("{origin}", server.origin))


async def say_die(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    raise Reset


async def say_close_now(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    raise Finish


async def say_half_headers(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.write(b"HTTP/1.1 200 OK\r\nContent-Type: applica")
    raise Finish


async def say_garbage(server: HttpFaults, exchange: Exchange, argument: str) -> None:
    exchange.write(b"220 this is no HTTP\r\n\r\n")
    raise Finish


WORDS: dict[str, Callable[[HttpFaults, Exchange, str], Awaitable[None]]] = {
    name.removeprefix("say_"): word for name, word in list(globals().items()) if name.startswith("say_")
}
