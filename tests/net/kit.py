"""Real sockets that say what a test wants: a scripted HTTP server, an HTTP proxy, a SOCKS proxy, and certificates."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trustme

from moorings.net import Net, NetSettings
from moorings.net.client import HttpClient

WITHIN = 15.0


class Request:
    """What a server got."""

    def __init__(self, head: bytes, body: bytes) -> None:
        lines = head.decode().split("\r\n")
        self.method, self.target, _ = lines[0].split(" ")
        self.pairs = [tuple(line.split(": ", 1)) for line in lines[1:] if line]
        self.headers = {name.lower(): value for name, value in self.pairs}
        self.body = body


class Line:
    """One connection, as a script on the server's side sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> Request | None:
        """The next request; None when the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        request = Request(head, b"")
        size = int(request.headers.get("content-length", "0"))
        request.body = await self.reader.readexactly(size)
        return request

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    def answer(self, body: bytes = b"{}", status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Any", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.say("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def ended(self) -> None:
        """Wait until the client has ended the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Line], Awaitable[None]]


class Server:
    """Runs a script for each connection, and ends whatever is left of them when it is closed."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[Any]] = set()
        self.requests: list[Request] = []
        self.lines: list[Line] = []
        self.port = 0
        self.path = ""

    @property
    def connections(self) -> int:
        return len(self.lines)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        line = Line(reader, writer)
        self.lines.append(line)
        try:
            await self._script(line)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            if not writer.transport.is_closing():
                writer.close()

    async def end(self) -> None:
        for line in self.lines:
            # One that is closed already, with data to write at the time, does not bear an abort.
            sock = line.writer.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                line.writer.transport.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def serving(
    script: Script,
    *,
    tls: ssl.SSLContext | None = None,
    path: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[Server]:
    server = Server(script)
    if path is not None:
        listener = await asyncio.start_unix_server(server.serve, path)
    else:
        listener = await asyncio.start_server(server.serve, host, port, ssl=tls)
        server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.end()
        await asyncio.wait_for(listener.wait_closed(), WITHIN)
        await asyncio.sleep(0)


def answering(
    server_requests: list[Request], body: bytes = b"{}", status: int = 200, **headers: str
) -> Script:
    """A script that writes down each request and answers them all alike."""

    async def script(line: Line) -> None:
        while (request := await line.request()) is not None:
            server_requests.append(request)
            line.answer(body, status, **headers)

    return script


@asynccontextmanager
async def net(environ: Mapping[str, str] | None = None) -> AsyncIterator[Net]:
    made = Net(lambda: environ or {})
    try:
        async with asyncio.timeout(WITHIN * 2):
            yield made
    finally:
        await made.aclose()


@asynccontextmanager
async def client(settings: NetSettings | None = None, **environ: str) -> AsyncIterator[HttpClient]:
    async with net(environ) as made:
        yield made.client(settings or NetSettings())


async def get(http: HttpClient, url: str, **more: Any) -> tuple[int, bytes]:
    async with http.send(
        "GET", url, **{"headers": {}, "first_byte": WITHIN, "idle": WITHIN, **more}
    ) as answer:
        return answer.status, await answer.read(1 << 24)


async def post(http: HttpClient, url: str, body: bytes = b'{"id":1}', **more: Any) -> tuple[int, bytes]:
    settings = {"headers": {}, "first_byte": WITHIN, "idle": WITHIN, **more}
    async with http.send("POST", url, body=body, **settings) as answer:
        return answer.status, await answer.read(1 << 24)


# --- certificates -------------------------------------------------------------------------------------------------


def server_tls(cert: trustme.LeafCert, clients: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def blocking_server(context: ssl.SSLContext) -> Iterator[tuple[int, list[bytes]]]:
    """A server in a thread: asyncio's own throws the alert away that says what it did not like."""
    got: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as line:
                try:
                    line.do_handshake()
                    got.append(line.recv(65536))
                    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
                except ssl.SSLError:
                    # Read away what the client wrote meanwhile, which would turn the end into a reset.
                    socket.socket.shutdown(line, socket.SHUT_WR)
                    while socket.socket.recv(line, 65536):
                        pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], got
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


# --- proxies ------------------------------------------------------------------------------------------------------


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        # One end is broken, so the other must hear of it.
        writer.transport.abort()


async def join(line: Line, host: str, port: int, first: bytes = b"") -> None:
    """Carry bytes both ways until both sides have ended."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(first)
        async with asyncio.TaskGroup() as group:
            group.create_task(pump(line.reader, writer))
            group.create_task(pump(reader, line.writer))
    finally:
        writer.transport.abort()


class HttpProxy:
    """A proxy with a login: CONNECT and absolute form. Every name leads to this machine."""

    def __init__(self, login: str | None = None, status: int | None = None) -> None:
        self.login = login
        self.status = status
        self.asked: list[tuple[str, str, str | None]] = []

    async def script(self, line: Line) -> None:
        while (request := await line.request()) is not None:
            await self.carry(line, request)

    async def carry(self, line: Line, request: Request) -> None:
        given = request.headers.get("proxy-authorization")
        self.asked.append((request.method, request.target, given))
        wanted = "Basic " + base64.b64encode((self.login or "").encode()).decode()
        if self.status is not None or (self.login is not None and given != wanted):
            line.answer(b"not you", self.status or 407, Proxy_Authenticate="Basic")
            return
        if request.method == "CONNECT":
            port = int(request.target.rpartition(":")[2])
            line.say(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await join(line, "127.0.0.1", port)
            return
        await self.forward(line, request)

    async def forward(self, line: Line, request: Request) -> None:
        """Carry one request in the absolute form, and its answer, which says its length."""
        place, _, path = request.target.split("://", 1)[1].partition("/")
        head = f"{request.method} /{path} HTTP/1.1\r\n"
        head += "".join(
            f"{name}: {value}\r\n" for name, value in request.pairs if not name.startswith("Proxy-")
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", int(place.rpartition(":")[2]))
        writer.write(head.encode() + b"\r\n" + request.body)
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
            small = answer.lower()
            size = small.partition(b"content-length:")[2].split(b"\r\n")[0]
            if b"transfer-encoding:" in small or not size:
                # A stream, or what the end of the connection ends: carried until that.
                line.say(answer)
                async with asyncio.TaskGroup() as group:
                    back = group.create_task(pump(reader, line.writer))
                    ended = group.create_task(line.ended())
                    await asyncio.wait({back, ended}, return_when=asyncio.FIRST_COMPLETED)
                    back.cancel()
                    ended.cancel()
                line.writer.transport.abort()
                return
            line.say(answer + await reader.readexactly(int(size)))
        except asyncio.IncompleteReadError:
            line.writer.transport.abort()
        finally:
            writer.transport.abort()


class SocksProxy:
    """SOCKS 5 (RFC 1928), with RFC 1929 if there is a login. Every name leads to this machine."""

    def __init__(self, login: tuple[str, str] | None = None, reply: int = 0) -> None:
        self.login = login
        self.reply = reply
        self.asked: list[tuple[str, int]] = []

    async def script(self, line: Line) -> None:
        reader = line.reader
        _, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        wanted = 2 if self.login else 0
        if wanted not in methods:
            line.say(b"\x05\xff")
            return
        line.say(bytes([5, wanted]))
        if self.login:
            _, size = await reader.readexactly(2)
            user = (await reader.readexactly(size)).decode()
            password = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
            good = (user, password) == self.login
            line.say(b"\x01\x00" if good else b"\x01\x01")
            if not good:
                return
        _, _, _, kind = await reader.readexactly(4)
        if kind == 1:
            host = socket.inet_ntoa(await reader.readexactly(4))
        elif kind == 4:
            host = socket.inet_ntop(socket.AF_INET6, await reader.readexactly(16))
        else:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append((host, port))
        line.say(bytes([5, self.reply, 0, 1, 0, 0, 0, 0, 0, 0]))
        if self.reply == 0:
            await join(line, "127.0.0.1", port)
