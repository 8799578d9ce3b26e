"""Class 7 over HTTP: many servers at once, and what the slow, the dead and the loud ones among them cost the others."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from moorings import AsyncHost, Bounds, CallError, Host, HttpServer, MooringsError
from tests.host.kit import Events, took
from tests.http_life.kit import WAYS, Serving, blackhole, faults, held, nothing_left, spec
from tests.net.kit import Line, serving


async def test_f7_1_nine_good_and_one_that_is_not_there() -> None:
    """F7.1: nine are ready, the tenth is named with its cause: refused, unknown, no TLS, no command for its headers."""

    async def no_tls(line: Line) -> None:
        line.say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with faults("handshake") as server, serving(no_tls) as plain:
        good = {f"s{n}": spec(server.url, "handshake") for n in range(9)}
        bad = {
            "refused": (HttpServer(url="http://127.0.0.1:1/"), "refused"),
            "name": (HttpServer(url="http://no-such-host.invalid/"), "not known"),
            "tls": (HttpServer(url=f"https://127.0.0.1:{plain.port}/"), "does not speak TLS"),
            "command": (
                HttpServer(url=server.url, headers_command=("no-such-program-4711",)),
                "no-such-program",
            ),
        }
        specs = {**good, **{name: each for name, (each, _) in bad.items()}}
        async with AsyncHost(specs, state_dir=False) as host:
            ready = await host.wait_ready(20)
            assert set(ready.ready) == set(good)
            for name, (_, cause) in bad.items():
                assert cause in ready.failed[name], ready.failed


async def test_f7_2_slow_ones_hold_nobody_up() -> None:
    """F7.2: one answers after 3 s, one swallows every packet, one streams comments; eight are instant."""
    slow = Bounds(connect=8.0, probe=6.0, dial=2.0)
    loud = Bounds(connect=2.0, dial=2.0)
    async with (
        faults("handshake") as server,
        faults("handshake", on={"initialize": "slow:3"}) as late,
        faults("handshake", on={"initialize": "comments:0.001"}) as comments,
    ):
        with blackhole() as dead:
            specs = {
                "dead": spec(f"http://127.0.0.1:{dead}/", "auto", bounds=slow),
                "late": spec(late.url, "handshake", bounds=slow),
                "comments": spec(comments.url, "handshake", bounds=loud),
                **{f"s{n}": spec(server.url, "handshake", bounds=slow) for n in range(8)},
            }
            async with AsyncHost(specs, state_dir=False, max_starting=4) as host:
                names = [f"s{n}" for n in range(8)]
                with took(0.0, 1.5):
                    assert (await host.wait_ready(5, servers=names)).all_ready
                with took(0.0, 1.5):
                    await asyncio.gather(*(host.call(f"{name}__echo", {"text": "x"}) for name in names))
                began = time.monotonic()
                ready = await host.wait_ready(10)
                assert time.monotonic() - began < 9.0
                assert "late" in ready.ready
                assert "was not up" in ready.failed["dead"] or "connect" in ready.failed["dead"].lower()
                assert "comments" in ready.failed


async def test_f7_3_slow_is_not_failed() -> None:
    """F7.3: ``wait_ready`` returns at its limit and says who is missing, who becomes ready by itself later."""
    async with faults("modern", on={"server/discover": "slow:1.5"}) as server:
        async with AsyncHost({"a": spec(server.url, "modern")}, state_dir=False) as host:
            with took(0.4, 1.2):
                assert (await host.wait_ready(0.5)).pending == ("a",)
            assert (await host.wait_ready(5)).all_ready
            assert server.count("server/discover") == 1


async def test_f7_4_runs_against_a_dead_server_share_one_cooldown() -> None:
    """F7.4: ten runs in a row, one attempt; none of them waits for the whole limit again."""
    with blackhole() as dead:
        bounds = Bounds(connect=1.0, dial=1.0, cooldown=30.0)
        a = spec(f"http://127.0.0.1:{dead}/", "auto", bounds=bounds, lazy=True)
        async with AsyncHost({"a": a}, state_dir=False) as host:
            began = time.monotonic()
            for _ in range(10):
                async with host.run(timeout=10):
                    with pytest.raises(MooringsError):
                        await host.call("a__echo")
            assert time.monotonic() - began < 3.0
            assert host.status()["a"].generation == 1


@pytest.mark.parametrize("kind", ["http", "mixed with dead ones"])
def test_f7_5_a_hundred_servers_while_a_thread_ticks(kind: str) -> None:
    """F7.5: 100 at once, one slow, one that swallows packets: the first is ready in under 1 s, no other thread waits
    longer than 0.5 s, and the net is shared."""
    gaps: list[float] = []
    over = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not over.wait(0.01):
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    ways = {
        "a": faults("handshake"),
        "b": faults("modern"),
        "c": faults("sse"),
        "slow": faults("handshake", on={"initialize": "slow:2"}),
    }
    with Serving(**ways) as serving, blackhole() as dead:
        bounds = Bounds(connect=20.0, probe=10.0, dial=5.0)
        specs: dict[str, HttpServer] = {
            f"s{n}": spec(serving["abc"[n % 3]].url, WAYS[n % 3], bounds=bounds) for n in range(98)
        }
        specs["slow"] = spec(serving["slow"].url, "handshake", bounds=bounds)
        specs["dead"] = spec(f"http://127.0.0.1:{dead}/", "auto", bounds=bounds)
        if kind != "http":
            specs |= {f"refused{n}": spec("http://127.0.0.1:1/", "auto", bounds=bounds) for n in range(20)}
        ticker = threading.Thread(target=tick)
        ticker.start()
        events = Events()
        try:
            host = Host(specs, state_dir=False, on_event=events)
            began = time.monotonic()
            host.start()
            events.wait_for("s0", "ready", timeout=5.0)
            first = time.monotonic() - began
            good = [name for name in specs if name.startswith("s") and name != "slow"]
            assert host.wait_ready(20, servers=good).all_ready
            for name in good[:10]:
                assert host.call(f"{name}__echo", {"text": name}, timeout=5).text == name
            assert host.wait_ready(20, servers=["slow"]).all_ready
            report = host.close(5)
        finally:
            over.set()
            ticker.join()
        assert first < 1.5
        assert report.elapsed < 5.5
        assert report.stuck == ()
        assert max(gaps) < 0.5


async def test_f7_5_one_net_and_no_more_connections_than_needed() -> None:
    """F7.5: 50 servers of one origin share a pool, within ``max_connections``."""
    async with faults("modern", grant={}) as server, nothing_left():
        bounds = Bounds(max_connections=8)
        specs = {f"s{n}": spec(server.url, "modern", bounds=bounds) for n in range(50)}
        server.script["capabilities"] = {"tools": {}}
        async with AsyncHost(specs, state_dir=False) as host:
            assert (await host.wait_ready(20)).all_ready
            await asyncio.gather(
                *(host.call(f"s{n}__echo", {"text": "x"}) for n in range(50) for _ in range(4))
            )
            assert held(host)["users"] == 50
            assert held(host)["connections"] <= 8
            assert server.connections <= 8
        assert held(host) == {}


@pytest.mark.parametrize("way", [*WAYS, "auto"])
async def test_f7_6_first_calls_share_one_start(way: str) -> None:
    """F7.6: five at once to a lazy server."""
    async with faults(way) as server:
        async with AsyncHost({"a": spec(server.url, way, lazy=True)}, state_dir=False) as host:
            assert await host.tools() == []
            assert server.requests == []
            results = await asyncio.gather(*(host.call("a__echo", {"text": str(n)}) for n in range(5)))
            assert [each.text for each in results] == list("01234")
            assert server.count("initialize") <= 1
            assert server.count("server/discover") <= 1
            assert host.status()["a"].generation == 1


@pytest.mark.parametrize("way", WAYS)
async def test_f7_9_a_flood_from_one_server(way: str) -> None:
    """F7.9: one says thousands of things a second on its stream; calls to the other keep their pace."""
    async with faults(way) as loud, faults("handshake") as quiet:
        specs = {"loud": spec(loud.url, way), "quiet": spec(quiet.url, "handshake")}
        async with AsyncHost(specs, state_dir=False) as host:
            assert (await host.wait_ready(10)).all_ready
            await loud.until(lambda s: s.listens if way == "modern" else s._listening or s._sse)
            flooding = True

            async def flood() -> None:
                params = {"level": "info", "data": "x" * 50}
                while flooding:
                    for _ in range(50):
                        loud.tell({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
                    await asyncio.sleep(0.005)

            task = asyncio.create_task(flood())
            try:
                times = []
                for _ in range(50):
                    began = time.monotonic()
                    assert (await host.call("quiet__echo", {"text": "x"})).text == "x"
                    times.append(time.monotonic() - began)
                assert sorted(times)[-2] < 0.2
            finally:
                flooding = False
                await task


async def test_f7_a_connection_limit_is_waited_for_within_the_call() -> None:
    """F7, F4.6: more calls than connections: they wait their turn, each within its own limit, and none is lost."""
    async with faults("handshake") as server:
        bounds = Bounds(max_connections=4, call=5.0)
        async with AsyncHost({"a": spec(server.url, "handshake", bounds=bounds)}, state_dir=False) as host:
            await host.wait_ready(5)
            results = await asyncio.gather(*(host.call("a__sleep", {"seconds": 0.05}) for _ in range(30)))
            assert all(each.text == "slept" for each in results)
            holds = [asyncio.create_task(host.call("a__hold", timeout=1.0)) for _ in range(10)]
            with took(0.8, 2.0):
                outcomes = await asyncio.gather(*holds, return_exceptions=True)
            assert all(isinstance(each, CallError) for each in outcomes)
            assert {each.sent for each in outcomes if isinstance(each, CallError)} == {True, False}
            assert (await host.call("a__echo", {"text": "x"})).text == "x"
            assert held(host)["waiting for one"] == 0
