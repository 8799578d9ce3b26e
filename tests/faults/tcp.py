"""A TCP proxy that fails exactly as told, in front of any host and port, inside the test's own loop.

Made and closed by the test (``async with TcpProxy(port) as proxy``); no task, socket or timer is left after that.
Each connection follows a ``Plan``: the n-th the n-th one given, the last one for all later. A plan says what happens
to bytes on their way; orders to the proxy (``reset_all``, ``refuse``, ``freeze`` …) strike what is there now.
Nothing is waited for by guess: ``until`` waits for what the counters show.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

Way = Literal["up", "down"]
Deed = Literal["reset", "close", "half_close", "blackhole"]

PIECE = 65536
DIAL_SECONDS = 10.0
LINGER_NONE = struct.pack("ii", 1, 0)
"""With this SO_LINGER a close is a RST, and what was not yet sent is gone."""
WINDOW = 64
"""Pieces that may be on their way with latency."""


@dataclass(frozen=True)
class At:
    """What happens once exactly so many bytes went one way; bytes beyond them never arrive.

    ``reset`` (RST to both ends) | ``close`` (FIN to both) | ``half_close`` (FIN to the receiver; the other way goes on)
    | ``blackhole`` (the rest of this way is swallowed in silence).
    """

    after: int
    do: Deed = "reset"


@dataclass(frozen=True)
class Plan:
    """What one connection meets. Times in seconds, rates in bytes a second, each way by itself."""

    latency: float = 0.0
    rate: float = 0.0
    """0: as fast as it goes."""
    up: At | None = None
    """From the client to the server."""
    down: At | None = None
    """From the server to the client."""
    accept: Literal["pass", "reset", "close", "blackhole"] = "pass"
    """What happens to the connection itself; the server hears of it only if it passes."""


@dataclass(eq=False)
class Link:
    """One connection through the proxy. Made by the proxy's accept loop, ended by its own task."""

    number: int
    plan: Plan
    client: socket.socket
    server: socket.socket | None = None
    up: int = 0
    """Bytes that were handed to the server."""
    down: int = 0
    """Bytes that were handed to the client."""
    swallowed: int = 0
    """Bytes that came in and were handed to nobody."""
    how: str | None = None
    """How it ended: ``eof``, ``reset``, ``close``, ``unreachable`` or ``lost`` (an end reset it); None: it has not."""
    verdict: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def condemn(self, how: str) -> None:
        if not self.verdict.done():
            self.verdict.set_result(how)

    @property
    def open(self) -> bool:
        return self.how is None


class TcpProxy:
    """The proxy in front of ``host:port``. Entered and left by one task; listens on ``self.port`` of 127.0.0.1."""

    def __init__(self, port: int, *plans: Plan, host: str = "127.0.0.1") -> None:
        self.target = (host, port)
        self.host = "127.0.0.1"
        self.port = 0
        self.links: list[Link] = []
        """Every connection there ever was, in order."""
        self.plans: tuple[Plan, ...] = plans or (Plan(),)
        self._planned = 0
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()

    async def __aenter__(self) -> Self:
        self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        for link in self.links:
            link.condemn("reset")
        # What is frozen stays so: it is ended where it waits, and nothing of it arrives at the last moment.
        if self._tasks:
            await asyncio.wait(self._tasks)

    # What is there

    @property
    def url(self) -> str:
        """``http://host:port``, without a path."""
        return f"http://{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections were ever taken."""
        return len(self.links)

    @property
    def open(self) -> list[Link]:
        """The connections of now."""
        return [link for link in self.links if link.open]

    @property
    def bytes_up(self) -> int:
        return sum(link.up for link in self.links)

    @property
    def bytes_down(self) -> int:
        return sum(link.down for link in self.links)

    async def until(self, true: Callable[[TcpProxy], object], timeout: float = 10.0) -> None:
        """Waits until this is true of the proxy; looked at whenever a counter or a connection changes.

        Raises:
            AssertionError: it was not in time; the text holds the connections.
        """
        try:
            async with asyncio.timeout(timeout):
                while not true(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not so within {timeout} s: {self.links}") from None

    # Orders

    def script(self, *plans: Plan) -> None:
        """Plans for the connections to come, the first for the next one."""
        self.plans, self._planned = plans, 0

    def reset_all(self, how: Literal["reset", "close"] = "reset") -> int:
        """Ends every connection of now, at both ends. Returns how many; ``until`` none is open waits for it."""
        struck = self.open
        for link in struck:
            link.condemn(how)
        return len(struck)

    def freeze(self) -> None:
        """From now on nothing passes, on any connection, and nobody is told: a cable pulled."""
        self._thawed.clear()

    def thaw(self) -> None:
        """What was held by ``freeze`` goes on its way."""
        self._thawed.set()

    async def refuse(self) -> None:
        """Nobody listens any more: a dial is refused. What is open stays."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait({self._accepting})
            self._accepting = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def accept(self) -> None:
        """Listens (again), on the same port as before."""
        listener = socket.socket()
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(512)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener), name="tcp proxy accepts")

    # Inside

    def _touch(self) -> None:
        self._changed.set()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            plan = self.plans[min(self._planned, len(self.plans) - 1)]
            self._planned += 1
            link = Link(len(self.links), plan, client)
            self.links.append(link)
            task = asyncio.create_task(self._serve(link), name=f"tcp proxy link {link.number}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._touch()

    async def _serve(self, link: Link) -> None:
        """The life of one connection. It ends when both ways are at their end, or when it is condemned."""
        pumps: list[asyncio.Task[None]] = []
        try:
            if link.plan.accept in ("reset", "close"):
                link.condemn(link.plan.accept)
            elif link.plan.accept == "blackhole":
                pumps = [asyncio.create_task(self._swallow(link))]
            elif await self._dial(link):
                pumps = [asyncio.create_task(self._pump(link, way)) for way in ("up", "down")]  # type: ignore[arg-type]
            done = asyncio.gather(*pumps)
            # Both ways at their end, or one broken: then there is nothing to wait for.
            done.add_done_callback(
                lambda ended: ended.cancelled() or link.condemn("lost" if ended.exception() else "eof")
            )
            await asyncio.wait({link.verdict})
        finally:
            for pump in pumps:
                pump.cancel()
            if pumps:
                await asyncio.wait(pumps)
                with contextlib.suppress(BaseException):
                    await done
            link.how = link.verdict.result() if link.verdict.done() else "reset"
            for end in (link.client, link.server):
                if end is not None:
                    if link.how in ("reset", "lost", "unreachable"):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
                    end.close()
            self._touch()

    async def _dial(self, link: Link) -> bool:
        loop = asyncio.get_running_loop()
        server = socket.socket(socket.AF_INET6 if ":" in self.target[0] else socket.AF_INET)
        server.setblocking(False)
        link.server = server
        dialing = asyncio.ensure_future(loop.sock_connect(server, self.target))
        await asyncio.wait({dialing, link.verdict}, timeout=DIAL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not dialing.done():
            dialing.cancel()
            await asyncio.wait({dialing})
        if dialing.cancelled() or dialing.exception() is not None:
            link.condemn("unreachable")
            return False
        for end in (link.client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return True

    async def _swallow(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(link.client, PIECE):
            link.swallowed += len(data)
            self._touch()

    async def _pump(self, link: Link, way: Way) -> None:
        """Carries one way. Reading and handing over are two coroutines, so that latency delays and does not slow."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read(link, way, queue))
            both.create_task(self._hand_over(link, way, queue))

    async def _read(self, link: Link, way: Way, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        assert link.server is not None
        loop = asyncio.get_running_loop()
        source = link.client if way == "up" else link.server
        while True:
            data = await loop.sock_recv(source, PIECE)
            await queue.put((loop.time() + link.plan.latency, data))
            if not data:
                return

    async def _hand_over(self, link: Link, way: Way, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        assert link.server is not None
        loop = asyncio.get_running_loop()
        target = link.server if way == "up" else link.client
        fault = link.plan.up if way == "up" else link.plan.down
        left = fault.after if fault is not None else None
        if fault is not None and left == 0:
            left = self._strike(link, fault, target)
        while True:
            due, data = await queue.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            await self._thawed.wait()
            if not data:
                if left != -1:
                    with contextlib.suppress(OSError):
                        target.shutdown(socket.SHUT_WR)
                return
            if left == -1:
                link.swallowed += len(data)
                self._touch()
                continue
            part = data if left is None else data[:left]
            await self._send(link, way, target, part)
            if fault is not None and left is not None:
                left -= len(part)
                if left == 0:
                    link.swallowed += len(data) - len(part)
                    left = self._strike(link, fault, target)

    async def _send(self, link: Link, way: Way, target: socket.socket, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        step = max(1, int(link.plan.rate / 50)) if link.plan.rate else len(data)
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            if link.plan.rate:
                await asyncio.sleep(len(piece) / link.plan.rate)
            await loop.sock_sendall(target, piece)
            setattr(link, way, getattr(link, way) + len(piece))
            self._touch()

    def _strike(self, link: Link, fault: At, target: socket.socket) -> int:
        """The fault of this way is due. Returns -1: whatever else comes this way is swallowed."""
        if fault.do == "half_close":
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
        elif fault.do != "blackhole":
            link.condemn(fault.do)
        return -1
