"""Field faults, class 1: one owner for everything, whoever calls from whichever task, thread or loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AsyncHost,
    Bounds,
    Handlers,
    Host,
    HostClosedError,
    MisuseError,
    WrongLoopError,
)
from tests.faults.procs import alive, cpu_seconds, gone, wait_gone
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, STUBBORN, Events, in_thread, loop_threads

# --- callers in other tasks ---------------------------------------------------------------------------------------


async def test_f1_1_connected_in_one_task_and_closed_in_another() -> None:
    """F1.1: as web handlers do; the first task goes on uncancelled."""
    host = AsyncHost({"a": fault_server()}, state_dir=False)
    opened, closed = asyncio.Event(), asyncio.Event()

    async def opener() -> int:
        await host.start()
        assert (await host.wait_ready(10)).ready == ("a",)
        opened.set()
        await closed.wait()
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async def closer() -> Any:
        await opened.wait()
        report = await host.close()
        closed.set()
        return report

    async with asyncio.TaskGroup() as group:
        a, b = group.create_task(opener()), group.create_task(closer())
    assert a.result() == 0
    assert b.result().clean
    assert set(b.result().servers) == {"a"}


async def test_f1_2_of_two_hosts_the_first_opened_is_closed_first() -> None:
    """F1.2: closed in the order of opening, not like a stack; the other one still answers."""
    first = AsyncHost({"a": fault_server()}, state_dir=False)
    second = AsyncHost({"b": fault_server()}, state_dir=False)
    await first.start()
    await first.wait_ready(10)
    await second.start()
    await second.wait_ready(10)
    assert (await first.close()).clean
    assert (await second.call("b__echo", {"text": "still here"})).text == "still here"
    assert (await second.close()).clean


async def test_f1_2_of_two_servers_the_first_opened_is_removed_first() -> None:
    """F1.2: the same inside one host."""
    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        await host.add("b", fault_server())
        await host.wait_ready(10)
        assert (await host.remove("a")) is not None
        assert (await host.call("b__echo", {"text": "still here"})).text == "still here"
        report = await host.close()
    assert report.clean


async def test_f1_3_two_tasks_enter_one_host_and_the_last_one_closes_it() -> None:
    """F1.3: overlapping ``async with``."""
    host = AsyncHost({"a": fault_server()}, state_dir=False)
    both_in, first_out = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with host:
            await both_in.wait()
        first_out.set()

    async def second() -> None:
        async with host:
            both_in.set()
            await first_out.wait()
            assert (await host.call("a__echo", {"text": "open"})).text == "open"

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        group.create_task(second())
    with pytest.raises(HostClosedError):
        await host.call("a__echo")


def test_f1_3_two_threads_enter_one_blocking_host_and_the_last_one_closes_it() -> None:
    """F1.3, the blocking twin."""
    host = Host({"a": fault_server()}, state_dir=False)
    both_in, first_out = threading.Event(), threading.Event()

    def first() -> None:
        with host:
            assert both_in.wait(10)
        first_out.set()

    def second() -> None:
        with host:
            both_in.set()
            assert first_out.wait(10)
            assert host.call("a__echo", {"text": "open"}).text == "open"

    workers = [in_thread(first), in_thread(second)]
    for worker in workers:
        worker.result()
    with pytest.raises(HostClosedError):
        host.call("a__echo")


async def test_f1_4_one_of_four_servers_fails_in_an_asgi_lifespan() -> None:
    """F1.4: the app starts with three, and no cancellation gets out."""
    app_ready: list[Any] = []
    specs = {
        "a": fault_server(),
        "b": fault_server(),
        "c": fault_server(on_initialize="exit:3:no database"),
        "d": fault_server(),
    }

    async def app(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        assert scope["type"] == "lifespan"
        assert (await receive())["type"] == "lifespan.startup"
        async with AsyncHost(specs, state_dir=False) as host:
            app_ready.append(await host.wait_ready(20))
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
        await send({"type": "lifespan.shutdown.complete"})

    to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        lifespan = group.create_task(app({"type": "lifespan"}, to_app.get, from_app.put))
        await to_app.put({"type": "lifespan.startup"})
        assert (await from_app.get())["type"] == "lifespan.startup.complete"
        (readiness,) = app_ready
        assert readiness.ready == ("a", "b", "d")
        assert list(readiness.failed) == ["c"]
        assert "no database" in readiness.failed["c"]
        await to_app.put({"type": "lifespan.shutdown"})
        assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
    assert not lifespan.cancelled()


# --- a waiter gives up --------------------------------------------------------------------------------------------

STAGES = {
    "probe": ("server/discover", {"on_probe": "hold"}),
    "initialize": ("initialize", {"on_initialize": "hold"}),
    "first list": ("tools/list", {"on_list": "hold"}),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_f1_5_a_waiter_gives_up_and_the_connect_goes_on_for_the_other(
    stage: str, tmp_path: Path
) -> None:
    """F1.5: cancelled in the middle of a connect that somebody else waits for too."""
    method, script = STAGES[stage]
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, control=True, lazy=True, **script)
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        leaves = asyncio.create_task(host.call("a__echo", {"text": "one"}))
        stays = asyncio.create_task(host.call("a__echo", {"text": "two"}))
        await log.seen("received", method=method)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        log.control("release", key=method)
        assert (await stays).text == "two"
        assert len(log.starts()) == 1
        assert log.calls("echo") == 1
        assert log.violations() == []


@pytest.mark.parametrize("stage", STAGES)
async def test_f1_5_the_only_waiter_gives_up_and_the_connect_is_undone(stage: str, tmp_path: Path) -> None:
    """F1.5: nobody else wants it; the process goes, and the next connect works."""
    method, script = STAGES[stage]
    log = FaultLog(tmp_path / "journal")
    events = Events()
    spec = fault_server(journal=log.path, lazy=True, by_start=[script | {"control": True}, {}])
    async with AsyncHost({"a": spec}, state_dir=False, on_event=events) as host:
        leaves = asyncio.create_task(host.call("a__echo"))
        entry = await log.seen("received", method=method)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        # At once, without waiting for the rest of it: the next caller.
        assert (await host.call("a__echo", {"text": "again"})).text == "again"
        assert not alive(entry["pid"])
        assert len(log.starts()) == 2
        assert events.events("a") == ["wanted", "abandoned", "stopped", "wanted", "connected"]


@pytest.mark.parametrize("waiters", [1, 2])
async def test_f1_5_cancelled_after_each_turn_of_the_loop(waiters: int, tmp_path: Path) -> None:
    """F1.5 by hand: the waiter is cancelled after 0, 1, 2 … turns; whatever it met, the next call works."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, lazy=True)
    turns = 0
    while True:
        async with AsyncHost({"a": spec}, state_dir=False) as host:
            leaves = asyncio.create_task(host.call("a__echo", {"text": "first"}))
            others = [asyncio.create_task(host.call("a__counter")) for _ in range(waiters - 1)]
            for _ in range(turns):
                await asyncio.sleep(0)
            ended = leaves.done()
            leaves.cancel()
            await asyncio.wait({leaves})
            assert leaves.cancelled() or ended
            assert (await host.call("a__echo", {"text": "after"})).text == "after"
            for other in others:
                assert (await other).is_error is False
            assert (await host.close()).clean
        if ended or turns > 60:
            break
        turns = turns * 2 if turns > 8 else turns + 1
    assert not any(alive(pid) for pid in log.pids())


# --- other loops and threads --------------------------------------------------------------------------------------


async def test_f1_6_an_async_host_used_from_a_second_running_loop() -> None:
    """F1.6: every method says so at once."""
    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        handle = host.server("a")

        async def every_method() -> list[str]:
            silent = []
            attempts: dict[str, Callable[[], Any]] = {
                "start": host.start,
                "close": host.close,
                "wait_ready": lambda: host.wait_ready(1),
                "status": host.status,
                "server": lambda: host.server("a"),
                "tools": host.tools,
                "resources": host.resources,
                "resource_templates": host.resource_templates,
                "prompts": host.prompts,
                "call": lambda: host.call("a__echo"),
                "call_raw": lambda: host.call_raw("a", "echo"),
                "read_resource": lambda: host.read_resource("res://0"),
                "get_prompt": lambda: host.get_prompt("a__p0"),
                "get_prompt_raw": lambda: host.get_prompt_raw("a", "p0"),
                "complete": lambda: host.complete("a", "x", "", prompt="p0"),
                "subscribe": lambda: host.subscribe("res://0", server="a"),
                "unsubscribe": lambda: host.unsubscribe("res://0", server="a"),
                "set_log_level": lambda: host.set_log_level("info", server="a"),
                "ping": lambda: host.ping("a"),
                "request": lambda: host.request("a", "ping"),
                "run": lambda: host.run(1),
                "add": lambda: host.add("b", fault_server()),
                "remove": lambda: host.remove("a"),
                "restart": lambda: host.restart("a"),
                "enable": lambda: host.enable("a"),
                "disable": lambda: host.disable("a"),
                "handle.call": lambda: handle.call("echo"),
                "handle.status": handle.status,
            }
            for name, attempt in attempts.items():
                try:
                    outcome = attempt()
                    if asyncio.iscoroutine(outcome):
                        await outcome
                except WrongLoopError:
                    continue
                silent.append(name)
            return silent

        began = time.monotonic()
        assert await asyncio.to_thread(asyncio.run, every_method()) == []
        assert time.monotonic() - began < 0.1 * 28
        assert (await host.call("a__echo", {"text": "goes on"})).text == "goes on"


async def test_f1_6_an_async_host_used_from_a_thread_without_a_loop() -> None:
    """F1.6: the plain methods, where no loop runs at all."""
    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        for method in (host.status, lambda: host.server("a"), lambda: host.run(1)):
            with pytest.raises(WrongLoopError):
                await asyncio.to_thread(method)


async def test_f1_6_a_call_from_a_second_loop_ends_within_a_tenth_of_a_second() -> None:
    """F1.6: the bound, for the one method that everybody uses."""
    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)

        async def elsewhere() -> float:
            began = time.monotonic()
            with pytest.raises(WrongLoopError):
                await host.call("a__echo")
            return time.monotonic() - began

        assert await asyncio.to_thread(asyncio.run, elsewhere()) < 0.1


def test_f1_7_three_threads_share_one_stateful_server(tmp_path: Path) -> None:
    """F1.7: one of them inside a running loop of its own, as a notebook is."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:

        def calls() -> list[int]:
            return [int(host.call("a__counter").text) for _ in range(100)]

        def notebook() -> list[int]:
            async def cell() -> list[int]:
                return calls()

            return asyncio.run(cell())

        workers = [in_thread(calls), in_thread(calls), in_thread(notebook)]
        seen = [n for worker in workers for n in worker.result()]
        assert len(loop_threads()) == 1
        assert sorted(seen) == list(range(1, 301))
        assert len(log.starts()) == 1


def test_f1_8_a_blocking_call_on_the_loop_thread_raises_at_once() -> None:
    """F1.8: from a notification callback; the loop goes on."""
    caught: list[BaseException] = []
    heard = threading.Event()

    def on_log(server: str, params: Any) -> None:
        try:
            host.call("a__echo", {"text": "from the callback"})
        except BaseException as error:
            caught.append(error)
        heard.set()

    host = Host({"a": fault_server()}, state_dir=False, handlers=Handlers(on_log=on_log))
    with host:
        host.call("a__notify", {"params": {"level": "info", "data": "x"}})
        assert heard.wait(5)
        assert [type(error) for error in caught] == [WrongLoopError]
        assert host.call("a__echo", {"text": "goes on"}).text == "goes on"


async def test_f1_8_used_before_start_and_after_close() -> None:
    """F1.8: the async host and its handles."""
    host = AsyncHost({"a": fault_server()}, state_dir=False)
    for use in (lambda: host.call("a__echo"), host.tools, lambda: host.wait_ready(1)):
        with pytest.raises(HostClosedError, match="not started"):
            await use()
    with pytest.raises(HostClosedError, match="not started"):
        host.server("a")
    await host.start()
    handle = host.server("a")
    await host.close()
    for use in (lambda: handle.call("echo"), handle.tools, handle.ping, handle.restart, host.tools):
        with pytest.raises(HostClosedError):
            await use()
    with pytest.raises(HostClosedError):
        await host.start()


def test_f1_8_the_blocking_host_used_before_start_and_after_close() -> None:
    """F1.8: the blocking host and its handles."""
    host = Host({"a": fault_server()}, state_dir=False)
    for use in (lambda: host.call("a__echo"), host.tools, host.status, lambda: host.server("a")):
        with pytest.raises(HostClosedError, match="not started"):
            use()
    host.start()
    handle = host.server("a")
    host.close()
    for use in (lambda: handle.call("echo"), handle.tools, handle.ping, handle.restart, handle.status):
        with pytest.raises(HostClosedError):
            use()
    with pytest.raises(HostClosedError):
        host.start()


async def test_f1_8_a_host_closed_before_its_start_stays_closed() -> None:
    """F1.8: a start after such a close is misuse, and not a host that quietly does nothing."""
    host = AsyncHost({"a": fault_server()}, state_dir=False)
    assert (await host.close()).clean
    with pytest.raises(HostClosedError):
        await host.start()
    with pytest.raises(HostClosedError):
        await host.call("a__echo")
    blocking = Host({"a": fault_server()}, state_dir=False)
    assert blocking.close().clean
    with pytest.raises(HostClosedError):
        blocking.start()


@pytest.mark.parametrize("rounds", [1000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_f1_9_eight_threads_start_one_host(rounds: int) -> None:
    """F1.9: exactly one loop thread a round, and every caller sees it running."""
    for _ in range(rounds):
        start_together(8)


@pytest.mark.parametrize("rounds", [5, pytest.param(200, marks=pytest.mark.soak)])
def test_f1_9_sixty_four_threads_start_one_host(rounds: int) -> None:
    """F1.9 with more of them."""
    for _ in range(rounds):
        start_together(64)


def start_together(threads: int) -> None:
    host = Host({}, state_dir=False)
    gate = threading.Barrier(threads)

    def start() -> Any:
        gate.wait(10)
        host.start()
        # It runs: a call comes back.
        return host.status()

    workers = [in_thread(start) for _ in range(threads)]
    assert [worker.result() for worker in workers] == [{}] * threads
    assert len(loop_threads()) == 1
    host.close()
    assert loop_threads() == []


async def test_f1_10_after_each_kind_of_close_nothing_runs_on(tmp_path: Path) -> None:
    """F1.10: clean, forced, from another task, cancelled; then 2 s of idling cost next to nothing."""
    log = FaultLog(tmp_path / "journal")

    async def opened(**script: Any) -> AsyncHost:
        host = AsyncHost({"a": fault_server(journal=log.path, **script)}, state_dir=False)
        await host.start()
        await host.wait_ready(10)
        return host

    assert (await (await opened()).close()).clean
    assert (await (await opened(bounds=SOON, **STUBBORN)).close()).forced == {"a": ("TERM", "KILL")}
    assert (await asyncio.create_task((await opened()).close())).clean
    host = await opened(bounds=SOON, **STUBBORN)
    closing = asyncio.create_task(host.close())
    await log.seen("eof", 4)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert await gone(log.pids(), 5)
    assert (await host.close()).forced
    before = time.process_time()
    await asyncio.sleep(2)
    assert time.process_time() - before < 0.05 * 2


def test_f1_10_after_a_blocking_close_nothing_runs_on() -> None:
    """F1.10: the loop thread is gone; a thread that only waits costs nothing."""
    for spec in (fault_server(), fault_server(bounds=SOON, **STUBBORN)):
        with Host({"a": spec}, state_dir=False) as host:
            host.wait_ready(10)
    assert loop_threads() == []


def test_f1_10_an_idle_host_costs_nothing(tmp_path: Path) -> None:
    """F1.10: the same while it is open, with a server that is idle too."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        host.wait_ready(10)
        (pid,) = log.pids()
        before, before_server = time.process_time(), cpu_seconds(pid)
        threading.Event().wait(2)
        assert time.process_time() - before < 0.05 * 2
        assert cpu_seconds(pid) - before_server < 0.05 * 2
    assert wait_gone(pid, 5)


def test_what_cannot_work_is_said_at_once() -> None:
    """Misuse that is seen without starting anything."""
    for kind in (AsyncHost, Host):
        with pytest.raises(MisuseError):
            kind({"a": "npx server"}, state_dir=False)  # type: ignore[dict-item]
        with pytest.raises(MisuseError):
            kind({"": fault_server()}, state_dir=False)
        with pytest.raises(MisuseError):
            kind({}, max_starting=0, state_dir=False)
    assert Bounds().call == 300.0
