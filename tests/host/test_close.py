"""Closing a host: one bound for the whole, whoever calls it and however often, and a report of what it took."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    Bounds,
    CallError,
    Handlers,
    Host,
    HostClosedError,
    NotSent,
    StartError,
    StdioServer,
)
from moorings.server.server import Server
from moorings.session.session import Session
from moorings.transport.stdio import StdioTransport
from tests.faults.procs import alive, gone
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, STUBBORN, Events, in_thread, loop_threads, took

SLOW = Bounds(stop_eof=2.0, stop_term=2.0, stop_kill=2.0)
"""A stop that would take 4 s until KILL."""


def stubborn(log: FaultLog, **keys: Any) -> StdioServer:
    return fault_server(journal=log.path, **{"bounds": SLOW, **STUBBORN, **keys})


# --- the bound ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0.0, 0.3, 1.0])
async def test_close_is_bounded_as_a_whole(timeout: float, tmp_path: Path) -> None:
    """Three stubborn servers with stubborn grandchildren, ended side by side; the good one is not forced."""
    log = FaultLog(tmp_path / "journal")
    specs = {name: stubborn(log) for name in ("a", "b", "c")} | {"good": fault_server()}
    async with AsyncHost(specs, state_dir=False) as host:
        await host.wait_ready(10)
        for name in ("a", "b", "c"):
            await host.call(f"{name}__fork_child", {"ignore_term": True})
        pids = log.pids()
        assert len(pids) == 6
        with took(timeout * 0.5, timeout + 1.0):
            report = await host.close(timeout)
    assert await gone(pids, 0.5)
    assert {name: report.forced[name] for name in "abc"} == dict.fromkeys("abc", ("TERM", "KILL"))
    if timeout >= 0.3:
        assert "good" not in report.forced
    assert report.survivors == ()
    assert report.stuck == ()
    assert not report.clean
    assert report.elapsed <= timeout + 1.0


async def test_close_takes_no_longer_than_the_servers_bounds() -> None:
    """A long timeout is no reason to wait: TERM after ``stop_eof``, KILL after ``stop_term``."""
    async with AsyncHost({"a": fault_server(bounds=SOON, **STUBBORN)}, state_dir=False) as host:
        await host.wait_ready(10)
        with took(0.6, 1.6):
            report = await host.close(60)
    record = report.servers["a"]
    assert record.forced == ("TERM", "KILL")
    assert record.exit_code == -9
    assert 0.6 <= record.elapsed <= 1.6


async def test_what_the_report_says(tmp_path: Path) -> None:
    """One that ends at the end of stdin, one at TERM, one at KILL, and one that never ran."""
    specs = {
        "eof": fault_server(),
        "term": fault_server(bounds=SOON, ignore_eof=True),
        "kill": fault_server(bounds=SOON, **STUBBORN),
        "lazy": fault_server(lazy=True),
        "broken": StdioServer(command="no-such-program-anywhere"),
    }
    async with AsyncHost(specs, state_dir=False) as host:
        await host.wait_ready(10)
        report = await host.close()
    assert {name: (r.exit_code, r.forced) for name, r in report.servers.items()} == {
        "eof": (0, ()),
        "term": (-15, ("TERM",)),
        "kill": (-9, ("TERM", "KILL")),
    }
    assert report.forced == {"term": ("TERM",), "kill": ("TERM", "KILL")}
    assert report.clean is False


@pytest.mark.parametrize("stage", ["on_probe", "on_initialize", "on_list"])
async def test_close_during_a_start(stage: str, tmp_path: Path) -> None:
    """A start under way is cut short wherever it stands, and its process ended."""
    log = FaultLog(tmp_path / "journal")
    method = {"on_probe": "server/discover", "on_initialize": "initialize", "on_list": "tools/list"}[stage]
    async with AsyncHost({"a": stubborn(log, **{stage: "silent"})}, state_dir=False) as host:
        await log.seen("received", method=method)
        with took(0.3, 2.0):
            report = await host.close(1)
    assert report.forced == {"a": ("TERM", "KILL")}
    assert not alive(log.pids()[0])


async def test_close_while_a_server_dies(tmp_path: Path) -> None:
    """Its process exited by itself a moment before; a grandchild of it lives on."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"a": stubborn(log)}, state_dir=False) as host:
        await host.call("a__fork_child", {"ignore_term": True, "hold_pipes": True})
        with pytest.raises(AmbiguousDelivery):
            await host.call("a__die", {"code": 3})
        with took(0.0, 2.0):
            await host.close(1)
    assert await gone(log.pids(), 0.5)


# --- a stop that is under way already -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "disable", "remove", "abandon", "died"])
async def test_close_hastens_a_stop_that_is_under_way(how: str, tmp_path: Path) -> None:
    """A stop with bounds of its own has begun, which would take 4 s; the close has 0.5 s for the whole."""
    log, events = FaultLog(tmp_path / "journal"), Events()
    script = {"lazy": True, "on_initialize": "silent"} if how == "abandon" else {}
    async with AsyncHost({"a": stubborn(log, **script)}, state_dir=False, on_event=events) as host:
        if how == "abandon":
            under_way = asyncio.create_task(host.call("a__echo"))
            await log.seen("received", method="initialize")
            under_way.cancel()
        elif how == "died":
            await host.call("a__fork_child", {"ignore_term": True})
            with pytest.raises(AmbiguousDelivery):
                await host.call("a__die", {"code": 3})
            under_way = asyncio.create_task(asyncio.sleep(0))
        else:
            await host.wait_ready(10)
            under_way = asyncio.create_task(getattr(host, how)("a"))
        await events.seen("a", "closing" if how == "remove" else "stopping")
        if how != "died":
            await log.seen("eof")
        with took(0.2, 1.5):
            report = await host.close(0.5)
        assert not any(alive(pid) for pid in log.pids())
        await asyncio.wait({under_way})
        error = None if under_way.cancelled() else under_way.exception()
        assert error is None or isinstance(error, (HostClosedError, StartError)), error
    assert report.forced == {"a": ("TERM", "KILL")}
    assert report.stuck == ()
    assert events.states("a")[-2:] == ["closing", "closed"]


def test_the_blocking_close_hastens_a_removal_that_is_under_way(tmp_path: Path) -> None:
    """The removed server is no longer in the host's table, and still the host's to end."""
    log, events = FaultLog(tmp_path / "journal"), Events()
    with Host({"a": stubborn(log)}, state_dir=False, on_event=events) as host:
        host.wait_ready(10)
        removing = in_thread(host.remove, "a")
        log.wait_for("eof")
        with took(0.2, 1.5):
            report = host.close(0.5)
        assert not any(alive(pid) for pid in log.pids())
        removing.outcome()
    assert report.forced == {"a": ("TERM", "KILL")}
    assert loop_threads() == []


# --- user code that will not end ----------------------------------------------------------------------------------


class Swallower:
    """An async handler that swallows its cancellation until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = asyncio.Event()

    async def __call__(self, *_: Any) -> Any:
        self.begun.set()
        while not self.end.is_set():
            try:
                await self.end.wait()
            except asyncio.CancelledError:
                continue
        return {"action": "cancel"}


@pytest.mark.parametrize("timeout", [0.5, 1.0])
async def test_a_handler_that_swallows_its_cancellation_holds_up_no_process(
    timeout: float, tmp_path: Path
) -> None:
    """The process goes within the bound; the report names what would not end."""
    log, swallower = FaultLog(tmp_path / "journal"), Swallower()
    spec = fault_server(journal=log.path)
    handlers = Handlers(elicit=swallower)
    async with AsyncHost({"a": spec}, state_dir=False, handlers=handlers) as host:
        call = asyncio.create_task(host.call("a__ask"))
        await asyncio.to_thread(swallower.begun.wait, 10)
        with took(0.0, timeout + 1.0):
            report = await host.close(timeout)
        assert not any(alive(pid) for pid in log.pids())
        assert len(report.stuck) == 1
        assert "elicitation/create" in report.stuck[0]
        assert not report.clean
        with pytest.raises(AmbiguousDelivery):
            await call
        swallower.end.set()
        while not swallower.end.is_set() or any("elicitation" in t.get_name() for t in asyncio.all_tasks()):
            await asyncio.sleep(0)


async def test_a_handler_that_takes_its_time_to_end_is_waited_for(tmp_path: Path) -> None:
    """Cancelled, it still has something to put away; within the bound that is its right."""
    put_away = []

    async def elicit(server: str, question: Any) -> Any:
        try:
            begun.set()
            await asyncio.sleep(60)  # until it is cancelled
        finally:
            await asyncio.sleep(0.2)  # the work of putting away
            put_away.append(server)

    begun = asyncio.Event()
    async with AsyncHost({"a": fault_server()}, state_dir=False, handlers=Handlers(elicit=elicit)) as host:
        call = asyncio.create_task(host.call("a__ask"))
        await begun.wait()
        report = await host.close(5)
        with pytest.raises(AmbiguousDelivery):
            await call
    assert put_away == ["a"]
    assert report.stuck == ()


async def test_a_handler_that_swallows_one_cancellation_is_asked_again() -> None:
    """Sloppy and not stuck: the second time it ends."""
    begun = asyncio.Event()

    async def elicit(server: str, question: Any) -> Any:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    async with AsyncHost({"a": fault_server()}, state_dir=False, handlers=Handlers(elicit=elicit)) as host:
        call = asyncio.create_task(host.call("a__ask"))
        await begun.wait()
        with took(0.3, 2.0):
            report = await host.close(1)
        with pytest.raises(AmbiguousDelivery):
            await call
    assert report.stuck == ()


def test_the_blocking_host_closes_over_a_handler_that_swallows_its_cancellation(tmp_path: Path) -> None:
    """Within the bound, named in the report, the thread joined, and the loop complains of nothing."""
    log, swallower = FaultLog(tmp_path / "journal"), Swallower()
    handlers = Handlers(elicit=swallower)
    with Host({"a": fault_server(journal=log.path)}, state_dir=False, handlers=handlers) as host:
        handle = host.submit("a__ask")
        assert swallower.begun.wait(10)
        with took(0.0, 2.0):
            report = host.close(1)
    assert len(report.stuck) == 1
    assert "elicitation/create" in report.stuck[0]
    assert loop_threads() == []
    assert not any(alive(pid) for pid in log.pids())
    error = in_thread(handle.result, 0).outcome()
    assert isinstance(error, AmbiguousDelivery)
    # What would not end goes with the last who holds it; nobody complains of it then (the leak gate hears). The
    # frames in the error's traceback hold it too.
    error.__traceback__ = None
    del host, handle, handlers, swallower, error
    gc.collect()


# --- twice, at once, cancelled ------------------------------------------------------------------------------------


async def test_close_twice_and_at_once_from_several_tasks(tmp_path: Path) -> None:
    """All get the report of the one close."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"a": stubborn(log, bounds=SOON)}, state_dir=False) as host:
        await host.wait_ready(10)
        reports = await asyncio.gather(*(host.close(n) for n in (10, 0, 5, 0.1)))
        assert all(report is reports[0] for report in reports)
        assert reports[0].forced == {"a": ("TERM", "KILL")}
        assert await host.close() is reports[0]


async def test_a_close_that_is_cancelled_goes_on(tmp_path: Path) -> None:
    """The caller is free at once, the owner finishes, and a later close gets the report (F2.4)."""
    log = FaultLog(tmp_path / "journal")
    host = AsyncHost({"a": stubborn(log, bounds=SOON)}, state_dir=False)
    await host.start()
    await host.wait_ready(10)
    with took(0.1, 1.1), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await host.close()
    assert alive(log.pids()[0])
    with pytest.raises(HostClosedError):
        await host.call("a__echo")
    report = await host.close()
    assert report.forced == {"a": ("TERM", "KILL")}
    assert not alive(log.pids()[0])


async def test_a_close_that_is_cancelled_a_hundred_times_goes_on(tmp_path: Path) -> None:
    """By a caller who does not give up giving up."""
    log = FaultLog(tmp_path / "journal")
    host = AsyncHost({"a": stubborn(log, bounds=SOON)}, state_dir=False)
    await host.start()
    await host.wait_ready(10)
    for _ in range(100):
        closing = asyncio.create_task(host.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
    report = await host.close()
    assert report.forced == {"a": ("TERM", "KILL")}


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 40])
async def test_every_task_of_the_host_is_cancelled_natively_during_close(turns: int, tmp_path: Path) -> None:
    """What ``asyncio.run`` does at its end: all tasks are cancelled, at any moment, ours too. Nothing is left."""
    log = FaultLog(tmp_path / "journal")
    host = AsyncHost({"a": stubborn(log, bounds=SOON)}, state_dir=False)
    await host.start()
    await host.wait_ready(10)
    me = asyncio.current_task()
    closing = asyncio.create_task(host.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    ours = asyncio.all_tasks() - {me}
    for _ in range(5):
        for task in ours:
            task.cancel()
        await asyncio.sleep(0.02)
    await asyncio.wait(ours | {closing})
    await asyncio.wait(asyncio.all_tasks() - {me}) if asyncio.all_tasks() - {me} else None
    assert not any(alive(pid) for pid in log.pids())


def test_asyncio_run_returns_with_a_host_that_is_still_open(tmp_path: Path) -> None:
    """F2.6: nobody closes it; the loop cancels its tasks, and everything is taken down."""
    log = FaultLog(tmp_path / "journal")

    async def main() -> AsyncHost:
        host = AsyncHost({"a": stubborn(log, bounds=SOON), "b": fault_server()}, state_dir=False)
        await host.start()
        await host.wait_ready(10)
        return host

    with took(0.6, 3.0):
        host = asyncio.run(main())
    assert not any(alive(pid) for pid in log.pids())
    with pytest.raises((HostClosedError, Exception)):
        asyncio.run(host.call("a__echo"))


@pytest.mark.parametrize("where", ["start", "stop"])
def test_ctrl_c_in_a_step_of_a_life_leaves_no_process(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes out of the loop, as Ctrl-C does; when the loop runs again, everything is taken down."""
    log = FaultLog(tmp_path / "journal")
    struck: list[str] = []

    def strike() -> None:
        if not struck:
            struck.append(where)
            raise KeyboardInterrupt

    attach, stop = Session.attach, StdioTransport.stop

    def struck_attach(session: Session, transport: Any) -> None:
        attach(session, transport)
        strike()

    async def struck_stop(transport: StdioTransport, deadline: float) -> Any:
        strike()
        return await stop(transport, deadline)

    if where == "start":
        monkeypatch.setattr(Session, "attach", struck_attach)
    else:
        monkeypatch.setattr(StdioTransport, "stop", struck_stop)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        host = AsyncHost({"a": fault_server(journal=log.path)}, state_dir=False)

        async def main() -> None:
            await host.start()
            await host.wait_ready(10)
            await host.close()

        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main())
        report = loop.run_until_complete(host.close())
        assert report.stuck == ()
        assert list(report.servers) == ["a"]
        assert log.pids() or where == "start"
        assert not any(alive(pid) for pid in log.pids())


async def test_a_close_of_a_server_that_fails_is_run_again_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    closes: list[str] = []
    close = Server.close

    async def failing(server: Server, deadline: float) -> Any:
        closes.append(server.name)
        if server.name == "bad" or closes.count(server.name) == 1:
            raise OSError("no more")
        return await close(server, deadline)

    specs = {name: fault_server(lazy=True) for name in ("bad", "once")}
    host = AsyncHost(specs, state_dir=False)
    await host.start()
    monkeypatch.setattr(Server, "close", failing)
    report = await host.close()
    assert report.stuck == ("close bad: OSError('no more')",)
    assert closes.count("once") == 2


# --- calls --------------------------------------------------------------------------------------------------------


async def test_calls_in_flight_at_close(tmp_path: Path) -> None:
    """Sent: ambiguous. Not sent: NotSent. After: HostClosedError. Each at once and not at its limit."""
    log = FaultLog(tmp_path / "journal")
    specs = {
        "a": fault_server(journal=log.path, control=True),
        "starting": fault_server(on_initialize="silent"),
    }
    async with AsyncHost(specs, state_dir=False) as host:
        sent = [asyncio.create_task(host.call("a__never")) for _ in range(5)]
        await log.seen("received", 5, tool="never")
        connecting = asyncio.create_task(host.call("starting__echo"))
        await host.call("a__stop_reading")
        large = asyncio.create_task(host.call("a__echo", {"text": "x" * 1_000_000}))
        behind = asyncio.create_task(host.call("a__effect"))
        for _ in range(5):
            await asyncio.sleep(0)
        began = time.monotonic()
        closing = asyncio.create_task(host.close(2))
        outcomes = await asyncio.gather(*sent, connecting, large, behind, return_exceptions=True)
        assert time.monotonic() - began < 0.5
        for each in outcomes:
            assert isinstance(each, CallError)
            assert each.allowed is None
        kinds = [(type(each), each.sent, each.server) for each in outcomes]  # type: ignore[union-attr]
        assert kinds[:5] == [(AmbiguousDelivery, True, "a")] * 5
        assert kinds[5] == (NotSent, False, "starting")
        assert kinds[6] == (AmbiguousDelivery, True, "a")
        assert kinds[7] == (NotSent, False, "a")
        with pytest.raises(HostClosedError):
            await host.call("a__echo")
        await closing
    assert log.effects() == 0


async def test_the_server_is_told_of_calls_that_the_close_ends(tmp_path: Path) -> None:
    """A cancel notice each, before its stdin is closed."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        calls = [asyncio.create_task(host.call("a__never")) for _ in range(3)]
        await log.seen("received", 3, tool="never")
        await host.close()
        for call in calls:
            with pytest.raises(AmbiguousDelivery):
                await call
    ids = [entry["id"] for entry in log.entries("received", tool="never")]
    assert log.cancelled_ids() == ids


@pytest.mark.parametrize("total", [1000, pytest.param(20_000, marks=pytest.mark.soak)])
async def test_calls_race_with_close(total: int, tmp_path: Path) -> None:
    """F2.7: 5 in flight, many more racing with the close and after it; each has one outcome."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        await host.wait_ready(10)
        calls = [asyncio.create_task(host.call("a__never")) for _ in range(5)]
        await log.seen("received", 5, tool="never")
        closing: asyncio.Task[Any] | None = None
        for number in range(total):
            calls.append(asyncio.create_task(host.call("a__effect", {"name": f"e{number}"})))
            if number % 10 == 0:
                await asyncio.sleep(0)
            if number == total // 2:
                closing = asyncio.create_task(host.close())
        assert closing is not None
        assert (await closing).clean
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        status = host.status()["a"]
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, (AmbiguousDelivery, NotSent, HostClosedError)), outcome
    for number, outcome in enumerate(outcomes[5:]):
        if isinstance(outcome, (NotSent, HostClosedError)):
            assert log.effects(f"e{number}") == 0
    # Nothing of it counts against the server.
    assert status.last_error is None


async def test_other_waits_end_with_the_close(tmp_path: Path) -> None:
    """``wait_ready``, lists, commands and runs that are under way end at once, typed."""
    specs = {"starting": fault_server(on_initialize="silent"), "good": fault_server(on_list=["ok", "silent"])}
    async with AsyncHost(specs, state_dir=False) as host:
        waits = {
            "wait_ready": asyncio.create_task(host.wait_ready()),
            "tools": asyncio.create_task(host.tools(servers=["starting"])),
            "restart": asyncio.create_task(host.restart("starting")),
            "resources": asyncio.create_task(host.server("starting").resources()),
        }
        run = host.run(60)
        await run.begin(None)
        waits["in a run"] = asyncio.create_task(run.call("starting__echo"))
        for _ in range(20):
            await asyncio.sleep(0)
        with took(0.0, 2.0):
            await host.close(1)
            _, pending = await asyncio.wait(waits.values(), timeout=1)
        assert not pending
        assert waits["wait_ready"].result().ready == ()
        for name in ("tools", "restart", "resources", "in a run"):
            error = waits[name].exception()
            assert isinstance(error, (CallError, HostClosedError, StartError)), (name, error)
        await run.finish()


def test_a_run_whose_host_is_closed_inside_it() -> None:
    """There is nothing left for the run to end: its block is left without a complaint, in both twins."""
    host = Host({"a": fault_server()}, state_dir=False)
    host.start()
    with host.run(timeout=30):
        host.close()
    host = Host({"a": fault_server()}, state_dir=False)
    host.start()
    with pytest.raises(ZeroDivisionError), host.run(timeout=30):
        host.close()
        raise ZeroDivisionError

    async def twin() -> None:
        other = AsyncHost({"a": fault_server()}, state_dir=False)
        await other.start()
        async with other.run(timeout=30):
            await other.close()

    asyncio.run(twin())
