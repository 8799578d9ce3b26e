"""What the tests of lives over HTTP share: the ways of speaking, what a host holds of the net, dead ends to dial."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

from moorings import AsyncHost, Bounds, HttpServer
from tests.faults.http_server import HttpFaults

WAYS = ("handshake", "modern", "sse")
"""Streamable HTTP of both eras, and the older HTTP+SSE."""
SHORT = Bounds(connect=5.0, probe=0.3, call=5.0, http_close=0.3, cooldown=0.0)


def spec(url: str, way: str, **more: Any) -> HttpServer:
    """A server that is spoken to in one way alone."""
    how = {
        "handshake": {"transport": "http", "protocol": "handshake"},
        "modern": {"transport": "http", "protocol": "2026-07-28"},
        "sse": {"transport": "sse", "protocol": "handshake"},
        "auto": {},
    }[way]
    return HttpServer(url=url, **{"bounds": SHORT, **how, **more})


def faults(way: str, **script: Any) -> HttpFaults:
    """A server that speaks in this way."""
    return HttpFaults(era="handshake" if way == "auto" else way, **script)


# --- what is held -------------------------------------------------------------------------------------------------


def held(host: AsyncHost) -> dict[str, int]:
    """How much of each kind the host holds of the net; empty if it has none."""
    assert host._settings is not None
    net = host._settings.net._net
    if net is None:
        return {}
    pools = list(net._pools.values())
    return {
        "users": host._settings.net._count,
        "connections": sum(len(pool) for pool in pools),
        "in use": sum(len(pool._connector._acquired) for pool in pools),
        "waiting for one": sum(len(w) for pool in pools for w in pool._connector._waiters.values()),
        "dials": sum(len(pool._dialing) for pool in pools),
        "exchanges": len(net._live),
        "tasks": len(net._owner),
    }


def tasks() -> set[asyncio.Task[Any]]:
    """The tasks of the loop, those of the test and of its servers left out."""
    own = ("test", "http faults", "tcp proxy", "Task-")
    return {each for each in asyncio.all_tasks() if not each.get_name().startswith(own)}


def sockets() -> set[int]:
    """Descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


async def until(met: Callable[[], object], timeout: float = 10.0, what: str = "") -> None:
    """Wait for what nobody announces; looked at in every turn of the loop, and no oftener than each 2 ms."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not met():
        assert loop.time() < deadline, what or "it did not come"
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """After the block, in which a host lives and is closed, there are the same tasks and sockets as before it."""
    had = tasks(), sockets()
    yield
    assert tasks() - had[0] == set()
    await asyncio.sleep(0)  # a server of this loop closes its side one turn after ours
    await until(lambda: not sockets() - had[1], 2.0, "sockets are left")


# --- dead ends ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def blackhole() -> Iterator[int]:
    """A port at which a dial gets no answer at all: its queue is full, and nobody accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(2):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port


@contextlib.contextmanager
def mute() -> Iterator[int]:
    """A port that takes connections and never says a word: a TLS handshake hangs there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield listener.getsockname()[1]


# --- servers for programs -----------------------------------------------------------------------------------------


class Serving:
    """Servers on a loop in a thread of their own, for what blocks: the blocking host, and child Pythons."""

    def __init__(self, **servers: HttpFaults) -> None:
        self.servers = servers
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="test servers")

    def __getitem__(self, name: str) -> HttpFaults:
        return self.servers[name]

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(15)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for server in self.servers.values():
                await stack.enter_async_context(server)
            self._up.set()
            await self._over.wait()

    def until(self, name: str, true: Callable[[HttpFaults], object], timeout: float = 10.0) -> None:
        """Wait until this is true of a server."""
        work = self.servers[name].until(true, timeout)
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout + 5)

    def seen(self, name: str, what: str, count: int = 1, timeout: float = 10.0) -> None:
        """Wait for the count-th such request."""
        self.until(name, lambda server: server.count(what) >= count, timeout)

    def do(self, order: Callable[[], object]) -> None:
        """An order to a server, on its loop."""

        async def work() -> None:
            order()

        asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)
