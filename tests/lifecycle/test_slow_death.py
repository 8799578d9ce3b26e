"""Slow death: what is done to a host a thousand times must cost it nothing that stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import threading
import time
from typing import Any

import pytest

from moorings import AsyncHost, CallTimeout, MooringsError
from moorings.transport import descriptors
from moorings.transport.adopted import adopted
from moorings.transport.stdio import StdioTransport
from moorings.transport.watch import watch
from tests.faults import procs
from tests.faults.script import fault_server
from tests.lifecycle.kit import QUICK, STUBBORN


async def started(**script: Any) -> AsyncHost:
    host = AsyncHost({"a": fault_server(bounds=QUICK, **script)}, state_dir=False)
    await host.start()
    await host.wait_ready(10)
    return host


async def stubborn_close() -> None:
    host = await started(**STUBBORN)
    assert (await host.close(0.1)).forced == {"a": ("TERM", "KILL")}


async def killed_in_a_call() -> None:
    host = await started()
    with pytest.raises(MooringsError):
        await host.call("a__die", {"code": -9})
    await host.close()


async def closed_in_a_start() -> None:
    host = AsyncHost({"a": fault_server(bounds=QUICK, on_initialize="silent", **STUBBORN)}, state_dir=False)
    await host.start()
    await asyncio.sleep(0.02)
    await host.close(0.1)


async def close_is_cancelled() -> None:
    host = await started(**STUBBORN)
    task = asyncio.create_task(host.close(0.2))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert (await host.close()).survivors == ()


async def calls_are_cut() -> None:
    host = await started()
    calls = [asyncio.create_task(host.call("a__never")) for _ in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await host.close()
    await asyncio.wait(calls)
    assert all(call.cancelled() or isinstance(call.exception(), MooringsError) for call in calls)


async def leaves_a_daemon() -> None:
    host = await started()
    await host.call("a__fork_child", {"new_session": True, "ignore_term": True})
    assert (await host.close(0.2)).survivors == ()


async def host_dropped() -> None:
    host = await started()
    pid = host.status()["a"].pid
    assert pid is not None
    # Its owner ends last: it sees the watch off when the process is gone.
    owners = [server.life.task for server in host._servers.values() if server.life is not None]
    del host
    gc.collect()
    assert await procs.gone(pid, 5)
    _, pending = await asyncio.wait(owners, timeout=5)
    assert not pending


async def cannot_start() -> None:
    host = AsyncHost({"a": fault_server(bounds=QUICK, on_initialize="exit:3")}, state_dir=False)
    async with host:
        await host.wait_ready(10)


async def watch_killed() -> None:
    host = await started()
    assert watch.pid is not None
    os.kill(watch.pid, signal.SIGKILL)
    await host.close()
    watch._restarts = 0  # the count is for one process' life, which this test makes long


async def run_passed() -> None:
    host = await started()
    with contextlib.suppress(MooringsError):
        async with host.run(timeout=0.02):
            await host.call("a__never")
    await host.close()


KINDS = [
    stubborn_close,
    killed_in_a_call,
    closed_in_a_start,
    close_is_cancelled,
    calls_are_cut,
    leaves_a_daemon,
    host_dropped,
    cannot_start,
    watch_killed,
    run_passed,
]


def what_there_is() -> tuple[int, int, int]:
    gc.collect()
    return len(procs.descriptors()), threading.active_count(), len(asyncio.all_tasks())


@pytest.mark.parametrize("rounds", [60, pytest.param(1000, marks=pytest.mark.soak)])
async def test_forced_teardowns_leave_nothing(rounds: int) -> None:
    """Mixed kinds, four at a time; afterwards the process is as at the start, and idle."""
    order = [KINDS[n % len(KINDS)] for n in range(rounds)]
    random.Random(20260728).shuffle(order)
    gate = asyncio.Semaphore(4)

    async def one(kind: Any) -> None:
        async with gate:
            await kind()

    # Once through, so that all that is loaded and cached once is there.
    for kind in KINDS:
        await kind()
    before, memory = what_there_is(), procs.resident_bytes(os.getpid())
    await asyncio.gather(*(one(kind) for kind in order))
    assert what_there_is() == before
    assert (watch.pid, StdioTransport.live, descriptors._held) == (None, set(), set())
    assert (watch._leases, watch._groups, watch._readers) == (set(), {}, {})
    assert (adopted._kin, adopted._timers) == ({}, {})
    assert procs.zombies() == []
    assert procs.resident_bytes(os.getpid()) - memory < 20 * 2**20
    began = time.process_time()
    await asyncio.sleep(2.0)
    assert time.process_time() - began < 0.01 * 2.0


@pytest.mark.parametrize("total", [2000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_cancelled_calls_leave_no_entry_in_any_table(total: int) -> None:
    """Every tenth is cancelled: before it is sent, while it waits, as its answer comes, or by its own limit."""
    specs = {"a": fault_server(bounds=QUICK), "b": fault_server(bounds=QUICK, era="modern")}
    async with AsyncHost(specs, state_dir=False) as host:
        await host.wait_ready(10)
        loop = asyncio.get_running_loop()
        outcomes = {"answered": 0, "cancelled": 0, "late": 0}

        async def one(n: int) -> None:
            server = "ab"[n % 2]
            if n % 10:
                assert (await host.call(f"{server}__echo", {"text": str(n)})).text == str(n)
                outcomes["answered"] += 1
                return
            way = n // 10 % 4
            if way == 3:
                with pytest.raises(CallTimeout):
                    await host.call(f"{server}__never", timeout=0.01)
                outcomes["late"] += 1
                return
            name = f"{server}__echo" if way == 2 else f"{server}__never"
            task = asyncio.create_task(host.call(name, {"text": "x"} if way == 2 else None))
            if way == 0:
                task.cancel()
            elif way == 1:
                loop.call_later(0.005, task.cancel)
            else:
                loop.call_later(0.001 * (n % 7) / 7, task.cancel)
            await asyncio.wait({task})
            if task.cancelled():
                outcomes["cancelled"] += 1
            else:
                assert task.result().text == "x"
                outcomes["answered"] += 1

        for first in range(0, total, 100):
            await asyncio.gather(*(one(n) for n in range(first, first + 100)))
        assert sum(outcomes.values()) == total
        assert outcomes["cancelled"] >= total // 20
        assert outcomes["late"] == total // 40
        for server in host._servers.values():
            # What comes late is behind this answer.
            await host.ping(server.name)
            life = server.life
            assert life is not None and life.session is not None
            listening = len(life._listeners)
            sizes = life.session.sizes()
            assert sizes == {"pending": listening, "questions": 0, "notices": 0, "tasks": 0}, server.name
            assert len(server._wants) == 1
            assert life._transport is not None and life._transport._stdin is not None
            assert life._transport._stdin.waiting == 0
        assert len(host._owner) == 0
        timers = [timer for timer in getattr(loop, "_scheduled", ()) if not timer.cancelled()]
        assert len(timers) <= 4, timers
