"""The TCP proxy is trusted only as far as this goes: an echo server behind it, bare sockets in front."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.faults.tcp import At, Plan, TcpProxy

PATIENCE = 10.0


class Echo:
    """A server that gives back what it gets, and counts how its connections ended."""

    def __init__(self) -> None:
        self.port = 0
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            self.ends.put_nowait("eof")
        except ConnectionError:
            self.ends.put_nowait("reset")
        finally:
            writer.close()


@asynccontextmanager
async def echo() -> AsyncIterator[Echo]:
    peer = Echo()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    async with server:
        yield peer


@asynccontextmanager
async def dialled(proxy: TcpProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    try:
        async with asyncio.timeout(PATIENCE):
            yield reader, writer
    finally:
        writer.transport.abort()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def test_bytes_pass_both_ways_and_are_counted() -> None:
    async with echo() as peer, TcpProxy(peer.port) as proxy:
        async with dialled(proxy) as (reader, writer):
            writer.write(b"x" * 1_000_000)
            writer.write_eof()
            assert len(await reader.read(-1)) == 1_000_000
        await proxy.until(lambda p: not p.open)
        assert (proxy.connections, proxy.bytes_up, proxy.bytes_down) == (1, 1_000_000, 1_000_000)
        assert proxy.links[0].how == "eof"
        assert await peer.ends.get() == "eof"


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_cut_after_exactly_so_many_bytes(way: str, after: int) -> None:
    async with echo() as peer, TcpProxy(peer.port, Plan(**{way: At(after)}), Plan()) as proxy:
        async with dialled(proxy) as (reader, writer):
            writer.write(b"four")
            got = b""
            with pytest.raises(ConnectionResetError):
                while True:
                    data = await reader.read(10)
                    assert data, "a FIN, and a RST was due"
                    got += data
            assert len(got) <= after
            if way == "down":
                assert got == b"four"[:after]
        await proxy.until(lambda p: not p.open)
        assert getattr(proxy.links[0], way) == after
        assert await peer.ends.get() == "reset"
        # The next connection follows the next plan.
        async with dialled(proxy) as (reader, writer):
            writer.write(b"four")
            assert await reader.readexactly(4) == b"four"


async def test_a_close_a_half_close_and_a_blackhole_after_bytes() -> None:
    plans = [Plan(down=At(2, "close")), Plan(down=At(2, "half_close")), Plan(down=At(2, "blackhole"))]
    async with echo() as peer, TcpProxy(peer.port, *plans) as proxy:
        async with dialled(proxy) as (reader, writer):
            writer.write(b"abcd")
            assert await reader.read(-1) == b"ab"
        assert await peer.ends.get() in ("eof", "reset")
        async with dialled(proxy) as (reader, writer):
            writer.write(b"abcd")
            assert await reader.read(-1) == b"ab"
            writer.write(b"more")  # this way is open still
            await proxy.until(lambda p: p.links[1].up == 8)
        async with dialled(proxy) as (reader, writer):
            writer.write(b"abcd")
            assert await reader.readexactly(2) == b"ab"
            await proxy.until(lambda p: p.links[2].swallowed == 2)
            assert proxy.links[2].open


async def test_a_dial_is_refused_reset_or_swallowed() -> None:
    async with echo() as peer, TcpProxy(peer.port, Plan(accept="reset"), Plan(accept="blackhole")) as proxy:
        async with dialled(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        async with dialled(proxy) as (_, writer):
            writer.write(b"hello")
            await proxy.until(lambda p: p.links[1].swallowed == 5)
        port = proxy.port
        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(proxy.host, proxy.port)
        proxy.script(Plan())
        proxy.accept()
        assert proxy.port == port
        async with dialled(proxy) as (reader, writer):
            writer.write(b"back")
            assert await reader.readexactly(4) == b"back"
        assert peer.ends.empty() or await peer.ends.get()


async def test_latency_delays_and_does_not_slow_and_a_rate_does() -> None:
    async with echo() as peer, TcpProxy(peer.port, Plan(latency=0.1), Plan(rate=10_000)) as proxy:
        async with dialled(proxy) as (reader, writer):
            began = time.monotonic()
            for _ in range(10):
                writer.write(b"0123456789")
                await writer.drain()
            await reader.readexactly(100)
            assert 0.2 <= time.monotonic() - began < 1.0
        async with dialled(proxy) as (reader, writer):
            began = time.monotonic()
            writer.write(b"x" * 2000)
            await reader.readexactly(2000)
            assert time.monotonic() - began >= 0.2


async def test_all_are_reset_or_frozen_and_thawed() -> None:
    async with echo() as peer, TcpProxy(peer.port) as proxy:
        async with dialled(proxy) as (one, writer), dialled(proxy) as (two, _):
            await proxy.until(lambda p: len([link for link in p.open if link.server]) == 2)
            proxy.freeze()
            writer.write(b"late")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await one.read(4)
            proxy.thaw()
            assert await one.readexactly(4) == b"late"
            assert proxy.reset_all() == 2
            for reader in (one, two):
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
            await proxy.until(lambda p: not p.open)


async def test_nobody_behind_it_is_a_reset() -> None:
    async with echo() as peer:
        gone = peer.port
    async with TcpProxy(gone) as proxy:
        async with dialled(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        assert proxy.links[0].how == "unreachable"


async def test_it_closes_with_connections_open() -> None:
    async with echo() as peer:
        async with TcpProxy(peer.port) as proxy:
            reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
            writer.write(b"x")
            await reader.readexactly(1)
        writer.transport.abort()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
            raise ConnectionResetError
