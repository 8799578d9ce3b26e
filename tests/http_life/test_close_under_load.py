"""F2.7 over HTTP: calls in flight everywhere, servers that start, stall and flood. Every caller gets one typed outcome
before close returns, the bound holds, and nothing of it counts against anything afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    Bounds,
    CallError,
    Host,
    HostClosedError,
    HttpServer,
    NotSent,
    StartError,
)
from tests.faults.http_server import HttpFaults
from tests.host.kit import in_thread
from tests.http.kit import told_of
from tests.http_life.kit import Serving, faults, held, nothing_left, spec

SLOW = Bounds(connect=30.0, probe=10.0, http_close=30.0)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "handshake": ("handshake", {}),
    "handshake by SSE": ("handshake", {"answers": "sse", "priming": True}),
    "modern": ("modern", {}),
    "modern by SSE": ("modern", {"answers": "sse"}),
    "sse": ("sse", {}),
    "hung DELETE": ("handshake", {"delete": "silent"}),
    "starting": ("handshake", {"on": {"initialize": "silent"}}),
    "starting, modern": ("modern", {"on": {"server/discover": "silent"}}),
    "starting, sse": ("sse", {"endpoint": "never"}),
    "comments": ("handshake", {"on": {"tools/call": "comments:0.001"}}),
}
BOUND, SLACK = 1.0, 0.6


class Fleet:
    """One server of each kind."""

    def __init__(self) -> None:
        self.servers: dict[str, HttpFaults] = {
            f"s{n}": faults(way, **script) for n, (way, script) in enumerate(KINDS.values())
        }
        self.kinds = dict(zip(self.servers, KINDS, strict=True))
        self.up = [name for name, kind in self.kinds.items() if not kind.startswith("starting")]

    def specs(self) -> dict[str, HttpServer]:
        return {
            name: spec(server.url, KINDS[self.kinds[name]][0], bounds=SLOW)
            for name, server in self.servers.items()
        }

    async def __aenter__(self) -> Fleet:
        self._stack = contextlib.AsyncExitStack()
        for server in self.servers.values():
            await self._stack.enter_async_context(server)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


@pytest.mark.parametrize("calls", [100, pytest.param(1000, marks=pytest.mark.soak)])
async def test_f2_7_calls_in_flight_when_the_host_closes(calls: int) -> None:
    """F2.7: one outcome for each caller, typed, before close returns; nothing comes after."""
    async with nothing_left(), Fleet() as fleet:
        outcomes: list[tuple[str, object, float]] = []
        async with AsyncHost(fleet.specs(), state_dir=False) as host:
            await host.wait_ready(20, servers=fleet.up)

            async def one(name: str) -> None:
                try:
                    outcome: object = await host.call_raw(name, "hold", {"key": "never"})
                except BaseException as error:  # looked at below
                    outcome = error
                outcomes.append((name, outcome, time.monotonic()))

            names = list(fleet.servers)
            tasks = [asyncio.create_task(one(names[n % len(names)])) for n in range(calls)]
            for name in fleet.up:
                await fleet.servers[name].seen("tools/call", calls // len(names))
            began = time.monotonic()
            report = await host.close(BOUND)
            closed_at = time.monotonic()
            assert all(task.done() for task in tasks)
        assert closed_at - began < BOUND + SLACK
        assert len(outcomes) == calls
        for name, outcome, when in outcomes:
            assert when <= closed_at
            assert isinstance(outcome, CallError), repr(outcome)
            assert outcome.server == name
            assert isinstance(outcome, AmbiguousDelivery if name in fleet.up else NotSent), repr(outcome)
            assert outcome.sent is (name in fleet.up)
        assert report.stuck == ()
        hung = next(name for name, kind in fleet.kinds.items() if kind == "hung DELETE")
        # On a busy machine the answers of others may come too late, too.
        assert hung in report.unanswered and set(report.unanswered) <= set(fleet.up)
        assert held(host) == {}
        for name in fleet.up:
            server = fleet.servers[name]
            assert server.effects["tool:hold"] in (
                0,
                calls // len(names),
            )  # 0: a stream of comments carries nothing out
            assert server.violations == []
            # Each of them was taken back, in the way of its era.
            if server.effects["tool:hold"]:
                # (The modern ones may hold a subscription besides.)
                ids = {seen.id for seen in server.of("tools/call")}
                await server.until(lambda s, ids=ids: ids <= {*s.cancelled, *told_of(s)}, 30.0)
            if KINDS[fleet.kinds[name]][0] == "modern":
                assert server.count("notifications/cancelled") == 0
        with pytest.raises(HostClosedError):
            await host.call_raw("s0", "echo")


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.soak)])
async def test_f2_7_calls_that_race_with_close(rounds: int) -> None:
    """F2.7: 1,000 more are begun in every turn of the loop before, while and after it closes."""
    for turn in range(rounds):
        async with nothing_left(), Fleet() as fleet:
            host = AsyncHost(fleet.specs(), state_dir=False)
            await host.start()
            names = list(fleet.servers)
            await host.wait_ready(20, servers=fleet.up[: 2 + turn % 3])

            async def echo(n: int, host: AsyncHost = host, names: list[str] = names) -> Any:
                return await host.call_raw(names[n % len(names)], "echo", {"text": str(n)})

            tasks: list[asyncio.Task[Any]] = []
            closing: asyncio.Task[Any] | None = None
            for n in range(1000):
                tasks.append(asyncio.create_task(echo(n)))
                if n == 300 + 37 * turn % 650:
                    closing = asyncio.create_task(host.close(BOUND))
                await asyncio.sleep(0)
            assert closing is not None
            report = await closing
            done, pending = await asyncio.wait(tasks, timeout=0.1)
            assert not pending
            assert len(done) == 1000
            for n, task in enumerate(tasks):
                if (error := task.exception()) is not None:
                    assert isinstance(error, CallError | HostClosedError | StartError), repr(error)
                else:
                    assert task.result().text == str(n)
            assert report.elapsed < BOUND + SLACK
            assert report.stuck == ()
            for server in fleet.servers.values():
                # Nothing is begun again by a close: no second session, no call twice.
                assert server.count("initialize") <= 1
                ids = [seen.id for seen in server.of("tools/call")]
                assert len(ids) == len(set(ids))
                texts = [seen.params["arguments"]["text"] for seen in server.of("tools/call")]
                assert len(texts) == len(set(texts))
                assert server.violations == []


def test_f2_7_the_blocking_host_under_load() -> None:
    """F2.7: the same from threads; each of them gets its outcome, and is free when close returns."""
    with Serving(a=faults("handshake"), b=faults("modern", answers="sse"), c=faults("sse")) as serving:
        ways = {"a": "handshake", "b": "modern", "c": "sse"}
        specs = {name: spec(serving[name].url, way, bounds=SLOW) for name, way in ways.items()}
        host = Host(specs, state_dir=False)
        host.start()
        assert host.wait_ready(10).all_ready
        workers = [in_thread(host.server("abc"[n % 3]).call, "hold") for n in range(24)]
        for name in "abc":
            serving.seen(name, "tools/call", 8)
        began = time.monotonic()
        report = host.close(BOUND)
        assert time.monotonic() - began < BOUND + SLACK
        outcomes = [worker.outcome(1.0) for worker in workers]
        assert all(isinstance(outcome, AmbiguousDelivery) for outcome in outcomes), outcomes
        assert report.clean
        for name in "abc":
            serving.until(name, lambda server: not server.live)
