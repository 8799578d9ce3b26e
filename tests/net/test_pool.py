"""Connections and their owner: dialing, limits, sharing, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from moorings.errors import MisuseError
from moorings.net import DialFailed, DialTimeout, Net, NetClosed, NetError, NetSettings
from tests.net.kit import WITHIN, Line, Request, answering, client, get, net, post, server_tls, serving


@pytest.fixture
def blackhole() -> Iterator[int]:
    """The port of a listener whose queue is full: what asks there gets no answer at all."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = []
        for _ in range(4):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
            waiting.append(each)
        yield port
        for each in waiting:
            each.close()


async def test_a_dial_into_nothing_ends_at_its_bound(blackhole: int) -> None:
    async with client(NetSettings(dial=0.2)) as http:
        with pytest.raises(DialTimeout) as failed:
            await post(http, f"http://127.0.0.1:{blackhole}/")
    error = failed.value
    assert error.sent is False
    assert error.elapsed >= 0.2
    assert (error.allowed, "0.2" in error.reason) == (0.2, True)


@pytest.mark.parametrize("proxy", [False, True])
async def test_the_bound_covers_tls_and_the_tunnel(proxy: bool) -> None:
    async def silent(line: Line) -> None:
        await line.ended()

    async with serving(silent) as server:
        at = f"http://127.0.0.1:{server.port}" if proxy else ""
        async with client(NetSettings(dial=0.2, proxy=at)) as http:
            with pytest.raises(DialTimeout):
                await post(http, f"https://{'mcp.invalid' if proxy else '127.0.0.1'}:{server.port}/")


async def test_the_bound_covers_a_silent_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    answered = threading.Event()

    def silent(*_: object, **__: object) -> list[object]:
        answered.wait(10)
        raise socket.gaierror(socket.EAI_NONAME, "no")

    threads = threading.active_count()
    monkeypatch.setattr(socket, "getaddrinfo", silent)
    async with client(NetSettings(dial=0.1)) as http:
        with pytest.raises(DialTimeout):
            await post(http, "http://name.invalid/")
    # The lookup goes on, as nothing can end it, but nobody waited for it.
    assert threading.active_count() == threads + 1
    left = next(each for each in threading.enumerate() if each.name == "moorings-dns")
    answered.set()
    left.join(5)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://127.0.0.1:1/", "refused"),
        ("https://localhost:1/", "refused"),
        ("http://name.invalid/", "dns"),
        (f"http://{'x' * 70}.invalid/", "dns"),
        ("http://2130706433/", "address"),
    ],
)
async def test_f5_10_f6_3_what_cannot_be_reached_is_told_and_was_not_sent(url: str, kind: str) -> None:
    calls: list[int] = []
    async with client() as http:
        with pytest.raises(DialFailed) as failed:
            await post(http, url, on_sent=lambda: calls.append(1))
    assert (failed.value.kind, failed.value.sent, calls) == (kind, False, [])


async def test_callers_at_one_time_share_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []
    real = socket.getaddrinfo

    def counted(host: str, *rest: object, **more: object) -> object:
        lookups.append(host)
        return real(host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", counted)
    async with serving(answering([])) as server, client() as http:
        url = f"http://localhost:{server.port}/"
        await asyncio.gather(*[post(http, url) for _ in range(10)])
        await post(http, url)
    assert lookups == ["localhost"]


async def test_an_address_that_is_silent_does_not_hold_the_next_one_up(
    blackhole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Happy eyeballs (RFC 8305): the first address of a name swallows all, the second is dialled meanwhile."""
    real = socket.getaddrinfo

    def two(host: str, port: int, *rest: object, **more: object) -> object:
        if host != "both.invalid":
            return real(host, port, *rest, **more)  # type: ignore[arg-type]
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, blackhole))
            for address in ("127.0.0.1", "127.0.0.2")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    async with serving(answering([]), host="127.0.0.2", port=blackhole), client(NetSettings(dial=10)) as http:
        began = asyncio.get_running_loop().time()
        assert (await post(http, f"http://both.invalid:{blackhole}/"))[0] == 200
        assert asyncio.get_running_loop().time() - began < 3


async def test_more_requests_than_connections_wait_for_one() -> None:
    busy, most, go = 0, 0, asyncio.Event()

    async def script(line: Line) -> None:
        nonlocal busy, most
        while await line.request() is not None:
            busy += 1
            most = max(most, busy)
            if busy == 3:
                go.set()
            await go.wait()
            busy -= 1
            line.answer()

    # Waiting is not dialing, whose bound is far shorter than the wait.
    async with serving(script) as server, client(NetSettings(max_connections=3, dial=5)) as http:
        await asyncio.gather(*[post(http, f"http://127.0.0.1:{server.port}/") for _ in range(12)])
        assert (server.connections, most) == (3, 3)


async def test_an_idle_connection_is_closed_after_its_time_and_0_keeps_none() -> None:
    ended = asyncio.Event()

    async def script(line: Line) -> None:
        while await line.request() is not None:
            line.answer()
        ended.set()

    async with serving(script) as server, net() as made:
        url = f"http://127.0.0.1:{server.port}/"
        await post(made.client(NetSettings(keep_alive=0.1)), url)
        await asyncio.wait_for(ended.wait(), 10)
        for _ in range(3):
            await post(made.client(NetSettings(keep_alive=0)), url)
        assert server.connections == 4


async def test_a_dead_peer_is_asked_for_by_the_kernel() -> None:
    async with serving(answering([])) as server, net() as made:
        await post(made.client(NetSettings()), f"http://127.0.0.1:{server.port}/")
        (pool,) = made._pools.values()
        (transport,) = pool._open.values()
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_a_unix_socket_carries_http_alone(tmp_path: Path) -> None:
    got: list[Request] = []
    path = str(tmp_path / "s")
    settings = NetSettings(unix_socket=path, proxy="http://127.0.0.1:1")
    async with serving(answering(got), path=path), client(settings) as http:
        for _ in range(2):
            assert await post(http, "http://mcp.invalid/x") == (200, b"{}")
        with pytest.raises(MisuseError):
            await post(http, "https://mcp.invalid/x")
    async with client(settings) as http:
        with pytest.raises(DialFailed) as failed:
            await post(http, "http://mcp.invalid/x")
    assert (failed.value.kind, failed.value.sent) == ("refused", False)
    assert [request.headers["host"] for request in got] == ["mcp.invalid"] * 2


# --- the end ------------------------------------------------------------------------------------------------------


async def outcome(work: asyncio.Task[object]) -> BaseException | None:
    await asyncio.wait([work])
    return asyncio.CancelledError() if work.cancelled() else work.exception()


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_an_end_with_exchanges_under_way_tells_each_and_leaves_nothing(
    secure: bool, blackhole: int, tmp_path: Path
) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca"))
    reached = asyncio.Semaphore(0)
    ends: list[int] = []

    async def script(line: Line) -> None:
        request = await line.request()
        assert request is not None
        if request.target == "/stream":
            line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        reached.release()
        await line.ended()
        ends.append(1)

    async def stream(url: str) -> None:
        async with http.send("GET", url, headers={}, first_byte=None, idle=None) as answer:
            async for _ in answer.chunks():
                reading.release()

    context = server_tls(ca.issue_cert("127.0.0.1")) if secure else None
    async with serving(script, tls=context) as server:
        made = Net(dict)
        settings = NetSettings(ca_file=str(tmp_path / "ca"), max_connections=2, dial=60)
        http = made.client(settings)
        base = f"{'https' if secure else 'http'}://127.0.0.1:{server.port}"
        reading = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(stream(base + "/stream")),
                group.create_task(post(http, base, first_byte=None)),
            ]
            await reached.acquire()
            await reached.acquire()
            await reading.acquire()
            # One that waits for a free connection, and one that dials into nothing.
            tasks.append(group.create_task(post(http, base, first_byte=None)))
            tasks.append(group.create_task(post(http, f"http://127.0.0.1:{blackhole}/", first_byte=None)))
            watched = [group.create_task(outcome(task)) for task in tasks]
            for _ in range(5):
                await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            began = loop.time()
            group_tasks = asyncio.gather(*watched)
            for task in tasks:
                # They fail, which would end the group; here their failures are what is looked at.
                group._tasks.discard(task)
                task.remove_done_callback(group._on_task_done)
            await made.aclose()
            assert loop.time() - began < 1.5
            failures = await group_tasks
        assert [type(each) for each in failures] == [NetClosed] * 4
        assert [each.sent for each in failures if isinstance(each, NetError)] == [True, True, False, False]
        with pytest.raises(NetClosed):
            await post(http, base)
        with pytest.raises(MisuseError):
            made.client(settings)
        await made.aclose()


async def test_an_end_does_not_wait_for_a_peer_that_does_not_read() -> None:
    async def script(line: Line) -> None:
        line.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with serving(script) as server:
        made = Net(dict)
        http = made.client(NetSettings())
        with pytest.raises(NetError):
            await post(http, f"http://127.0.0.1:{server.port}/", bytes(20_000_000), first_byte=0.1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await made.aclose()
        assert loop.time() - began < 1


async def test_equal_settings_are_one_client_and_another_name_is_another_on_one_pool() -> None:
    got: list[Request] = []
    async with serving(answering(got)) as server, net() as made:
        one, same, other = (made.client(NetSettings(user_agent=name)) for name in ("a", "a", "b"))
        assert one is same
        assert one is not other
        for each in (one, other):
            await get(each, f"http://127.0.0.1:{server.port}/")
        assert server.connections == 1
    assert [request.headers["user-agent"] for request in got] == ["a", "b"]


def test_the_room_is_imported_without_aiohttp_and_ssl() -> None:
    code = (
        "import sys, moorings.net; n = moorings.net.Net(dict); n.client(moorings.net.NetSettings());"
        "assert 'aiohttp' not in sys.modules and 'truststore' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_the_first_request_imports_aiohttp_beside_the_loop() -> None:
    code = """if True:
        import asyncio, sys
        from moorings.net import DialFailed, Net, NetSettings
        async def main():
            net = Net(dict)
            longest, last, loop = 0.0, 0.0, asyncio.get_running_loop()
            async def ask():
                try:
                    async with net.client(NetSettings()).send(
                        "GET", "http://127.0.0.1:1/", headers={}, first_byte=1, idle=1
                    ):
                        pass
                except DialFailed:
                    return "refused"
            answers = await asyncio.gather(ask(), ask(), ask())
            await net.aclose()
            return answers
        print(asyncio.run(main()), "aiohttp" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("['refused', 'refused', 'refused'] True\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("way", ["connecting", "unix", "tls", "socks"])
async def test_a_child_that_is_forked_in_a_dial_does_not_hold_the_connection(
    way: str, tmp_path: Path
) -> None:
    """By hand: the dial hangs, the fork comes, the dial is given up, and the server sees the end of it."""
    loop = asyncio.get_running_loop()
    family = socket.AF_UNIX if way == "unix" else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind(str(tmp_path / "s") if way == "unix" else ("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        port = 1 if way == "unix" else listener.getsockname()[1]
        settings = {
            "connecting": NetSettings(),
            "unix": NetSettings(unix_socket=str(tmp_path / "s")),
            "tls": NetSettings(),
            "socks": NetSettings(proxy=f"socks5h://127.0.0.1:{port}"),
        }[way]
        connect, connected = loop.sock_connect, asyncio.Event()

        async def hanging(sock: socket.socket, address: object) -> None:
            await connect(sock, address)  # type: ignore[arg-type]
            connected.set()
            if way in ("connecting", "unix"):
                await asyncio.Event().wait()

        async with client(settings) as http:
            loop.sock_connect = hanging  # type: ignore[method-assign, assignment]
            try:
                dial = asyncio.create_task(
                    post(http, f"{'https' if way == 'tls' else 'http'}://127.0.0.1:{port}/")
                )
                side, _ = await asyncio.wait_for(loop.sock_accept(listener), WITHIN)
                with side:
                    await asyncio.wait_for(connected.wait(), WITHIN)
                    ours, theirs = os.pipe()
                    pid = os.fork()
                    if pid == 0:
                        os.close(theirs)
                        os.read(ours, 1)
                        os._exit(0)
                    os.close(ours)
                    try:
                        dial.cancel()
                        await asyncio.wait([dial])
                        while await asyncio.wait_for(loop.sock_recv(side, 4096), WITHIN):
                            pass
                    finally:
                        os.close(theirs)
                        os.waitpid(pid, 0)
            finally:
                loop.sock_connect = connect  # type: ignore[method-assign]
