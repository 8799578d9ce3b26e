"""Agent runs: one deadline over all that is begun inside, from async and from blocking code."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AsyncHost,
    Bounds,
    CallCancelled,
    CallTimeout,
    ElicitResult,
    Handlers,
    Host,
    MisuseError,
    NotSent,
    RequiredServerMissing,
    RunTimeout,
    State,
    StdioServer,
    exposed_name,
)
from tests.faults.procs import gone, wait_gone
from tests.faults.script import FaultLog, fault_server

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
SLACK = 1.0
QUICK = Bounds(stop_eof=1.0, stop_term=0.5, stop_kill=0.5)


def server(tmp_path: Path, name: str = "s", **keys: Any) -> Any:
    keys.setdefault("era", "handshake")
    keys.setdefault("protocol", "handshake" if keys["era"] == "handshake" else "2026-07-28")
    keys.setdefault("bounds", QUICK)
    return fault_server(journal=tmp_path / name, **keys)


def assert_within(error: RunTimeout, allowed: float) -> None:
    assert error.allowed == allowed
    assert allowed <= error.elapsed < allowed + SLACK
    assert f"{allowed:g} s allowed" in str(error)


# --- the deadline -------------------------------------------------------------------------------------------------


@ERAS
async def test_given_a_call_in_flight_at_the_deadline_it_times_out_and_the_run_with_it(
    tmp_path: Path, era: str
) -> None:
    """The call ends by the deadline of its run, the server is told, and serves the next one."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, era=era)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.3) as run:
                await host.call("s__never")
        assert_within(caught.value, 0.3)
        cause = caught.value.__cause__
        assert isinstance(cause, CallTimeout)
        assert (cause.server, cause.tool, cause.sent) == ("s", "never", True)
        assert "the deadline of its run" in str(cause)
        assert cause.allowed == pytest.approx(0.3, abs=0.1) and cause.elapsed >= cause.allowed
        assert isinstance(caught.value, TimeoutError) and run.expired
        asked = log.entries("received", method="tools/call")[0]["id"]
        await log.seen("cancelled", request_id=asked, known=True)
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
    assert len(log.starts()) == 1
    assert log.violations() == []


async def test_given_a_body_that_waits_for_something_else_the_deadline_interrupts_it(tmp_path: Path) -> None:
    """The block is cancelled, and what comes out is RunTimeout, once, with nothing left of the cancellation."""
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.2):
                await asyncio.Event().wait()
        assert_within(caught.value, 0.2)
        assert caught.value.__cause__ is None
        me = asyncio.current_task()
        assert me is not None and me.cancelling() == 0
        await asyncio.sleep(0)


async def test_given_a_body_that_catches_the_timeout_of_its_call_it_is_interrupted_at_its_next_wait(
    tmp_path: Path,
) -> None:
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.2):
                with pytest.raises(CallTimeout):
                    await host.call("s__never")
                await asyncio.Event().wait()
        assert_within(caught.value, 0.2)


async def test_given_a_body_that_catches_the_timeout_and_leaves_the_run_is_late_all_the_same(
    tmp_path: Path,
) -> None:
    """Whether the body waits once more or not makes no difference to what comes out."""
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(RunTimeout):
            async with host.run(timeout=0.2):
                with pytest.raises(CallTimeout):
                    await host.call("s__never")
        me = asyncio.current_task()
        assert me is not None and me.cancelling() == 0
        await asyncio.sleep(0)


async def test_given_a_body_that_fails_by_itself_after_the_deadline_its_error_is_not_hidden(
    tmp_path: Path,
) -> None:
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(ValueError, match="mine"):
            async with host.run(timeout=0.2):
                try:
                    await host.call("s__never")
                except CallTimeout:
                    raise ValueError("mine") from None


async def test_given_parallel_calls_of_a_gather_all_end_at_the_deadline(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.3):
                await asyncio.gather(*(host.call("s__never") for _ in range(5)))
        assert_within(caught.value, 0.3)
        await log.seen("cancelled", 5, known=True)


@pytest.mark.parametrize("body_calls", [False, True])
async def test_given_a_task_group_what_comes_out_is_the_run_and_no_exception_group(
    tmp_path: Path, body_calls: bool
) -> None:
    """Also where the body itself is in a call while its tasks are: their ends make a group then."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.3), asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(host.call("s__never"))
                if body_calls:
                    await host.call("s__never")
        assert_within(caught.value, 0.3)
        await log.seen("cancelled", 4 if body_calls else 3, known=True)


async def test_two_runs_at_once_have_each_its_own_deadline(tmp_path: Path) -> None:
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)

        async def one(limit: float) -> RunTimeout:
            with pytest.raises(RunTimeout) as caught:
                async with host.run(timeout=limit):
                    await host.call("s__never")
            return caught.value

        async def unhurried() -> str:
            async with host.run():
                return (await host.call("s__sleep", {"seconds": 0.6})).text

        short, longer, text = await asyncio.gather(one(0.2), one(0.5), unhurried())
        assert (short.allowed, longer.allowed, text) == (0.2, 0.5, "slept")
        assert short.elapsed < 0.5 <= longer.elapsed


async def test_the_deadline_holds_however_often_the_server_reports_progress(tmp_path: Path) -> None:
    """Progress extends the silence of a call, never the deadline of a run."""
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        seen: list[float] = []

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            seen.append(done)

        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.4):
                await host.call(
                    "s__progress", {"count": 1000, "interval": 0.02}, timeout=0.2, on_progress=on_progress
                )
        assert_within(caught.value, 0.4)
        assert len(seen) > 3


async def test_a_call_with_a_shorter_limit_ends_by_it_and_the_run_goes_on(tmp_path: Path) -> None:
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        async with host.run(timeout=5) as run:
            with pytest.raises(CallTimeout) as caught:
                await host.call("s__never", timeout=0.2)
            assert caught.value.allowed == pytest.approx(0.2)
            assert "run" not in caught.value.message
            assert (await run.call("s__echo", {"text": "on"})).text == "on"
        assert not run.expired


# --- other deadlines and cancellations around and inside ------------------------------------------------------------


async def test_a_shorter_timeout_inside_ends_its_part_only(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        async with host.run(timeout=5):
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.1):
                    await host.call("s__never")
            assert not isinstance(caught.value, CallTimeout | RunTimeout)
            await log.seen("cancelled", known=True)
            assert (await host.call("s__echo", {"text": "on"})).text == "on"


async def test_a_shorter_timeout_around_ends_the_run_and_its_calls(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.2), host.run(timeout=5):
                await host.call("s__never")
        assert not isinstance(caught.value, RunTimeout)
        await log.seen("cancelled", known=True)


@pytest.mark.parametrize("around", [False, True])
async def test_two_deadlines_that_pass_in_the_same_turn_leave_no_cancellation_behind(
    tmp_path: Path, around: bool
) -> None:
    """The exact interleaving: a timeout of the user's and that of the run strike in one turn of the loop."""
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        loop = asyncio.get_running_loop()

        async def block_over_both() -> None:
            # The loop stands still until both are due, so that they fire together.
            loop.call_later(0.05, time.sleep, 0.2)
            await asyncio.Event().wait()

        with pytest.raises(TimeoutError) as caught:
            if around:
                async with asyncio.timeout(0.15), host.run(timeout=0.15):
                    await block_over_both()
            else:
                async with host.run(timeout=0.15), asyncio.timeout(0.15):
                    await block_over_both()
        assert isinstance(caught.value, RunTimeout) is not around
        me = asyncio.current_task()
        assert me is not None and me.cancelling() == 0
        await asyncio.sleep(0)


async def test_a_cancellation_from_outside_stays_one(tmp_path: Path) -> None:
    """The caller's own cancel is not turned into an outcome of the run; the server is told."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)

        async def work() -> None:
            async with host.run(timeout=5):
                await host.call("s__never")

        task = asyncio.ensure_future(work())
        await log.seen("received", tool="never")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await log.seen("cancelled", known=True)


async def test_a_cancellation_from_outside_wins_over_the_deadline_in_the_same_turn(tmp_path: Path) -> None:
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:

        async def work() -> None:
            async with host.run(timeout=0.1):
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        loop.call_later(0.05, time.sleep, 0.15)
        loop.call_later(0.1, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_run_inside_a_run_is_held_by_the_deadline_of_the_outer_one(tmp_path: Path) -> None:
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.3), host.run(timeout=30):
                await host.call("s__never")
        assert_within(caught.value, 0.3)
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=30) as outer, host.run(timeout=0.2):
                await host.call("s__never")
        assert_within(caught.value, 0.2)
        assert not outer.expired


# --- what ends with the run, and what does not ----------------------------------------------------------------------


async def test_calls_left_unawaited_are_cancelled_at_the_end_and_the_server_told(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        async with host.run(timeout=30):
            left = [asyncio.ensure_future(host.call("s__never")) for _ in range(3)]
            await log.seen("received", 3, tool="never")
        # The end of the block waits for their ends: no wait is needed here.
        for task in left:
            with pytest.raises(CallCancelled) as caught:
                await task
            assert (caught.value.tool, caught.value.sent) == ("never", True)
        await log.seen("cancelled", 3, known=True)


@pytest.mark.parametrize("outer", [False, True])
async def test_calls_that_the_end_of_a_late_run_overtakes_time_out_all_the_same(
    tmp_path: Path, outer: bool
) -> None:
    """The order driven by hand: the deadline ends the block before the clocks of the calls have struck."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        run = host.run(timeout=30)
        with pytest.raises(RunTimeout):
            async with run, host.run() if outer else contextlib.nullcontext():
                left = [asyncio.ensure_future(host.call("s__never")) for _ in range(3)]
                await log.seen("received", 3, tool="never")
                left.append(asyncio.ensure_future(host.call("s__never")))
                run._expire()  # before the last one had its first step
                await asyncio.Event().wait()
        for task, sent in zip(left, (True, True, True, False), strict=True):
            with pytest.raises(CallTimeout, match="deadline of its run") as caught:
                await task
            assert caught.value.sent is sent
        await log.seen("cancelled", 3, known=True)


async def test_a_call_begun_after_the_end_is_turned_away(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        async with host.run() as run:
            pass
        with pytest.raises(CallCancelled) as caught:
            await run.call("s__echo")
        assert caught.value.sent is False
        assert log.calls("echo") == 0
        with pytest.raises(MisuseError):
            async with run:
                pass
        with pytest.raises(MisuseError):
            host.run(timeout=-1)


@pytest.mark.parametrize("how", ["plain name", "name with a hash", "tools", "read_resource"])
async def test_a_start_that_the_run_alone_wanted_ends_with_its_process(tmp_path: Path, how: str) -> None:
    """Given a lazy server that never finishes its start, when the run passes its deadline, the process is gone."""
    log = FaultLog(tmp_path / "s")
    spec = server(tmp_path, lazy=True, on_initialize="silent")
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.6):
                if how == "plain name":
                    await host.call("s__echo")
                elif how == "name with a hash":
                    await host.call(exposed_name("s", "a.b"))
                elif how == "tools":
                    await host.tools(servers=["s"])
                else:
                    await host.server("s").read_resource("res://0")
        assert_within(caught.value, 0.6)
        if isinstance(caught.value.__cause__, CallTimeout):
            assert caught.value.__cause__.sent is False
        pid = log.starts()[0]["pid"]
        assert await gone(pid, 3)
        assert host.status()["s"].state in (State.STOPPING, State.IDLE)


@pytest.mark.parametrize("how", ["call", "name with a hash", "tools"])
async def test_a_start_left_unawaited_ends_with_the_run(tmp_path: Path, how: str) -> None:
    """The run has no deadline: it ends, and what it had begun with it."""
    log = FaultLog(tmp_path / "s")
    spec = server(tmp_path, lazy=True, on_initialize="silent")
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        async with host.run():
            work: dict[str, Callable[[], Any]] = {
                "call": lambda: host.call("s__echo"),
                "name with a hash": lambda: host.call(exposed_name("s", "a.b")),
                "tools": lambda: host.tools(servers=["s"]),
            }
            left = asyncio.ensure_future(work[how]())
            await log.seen("received", method="initialize")
        with pytest.raises(CallCancelled) as caught:
            await left
        assert caught.value.sent is False
        assert await gone(log.starts()[0]["pid"], 3)


async def test_a_start_that_others_want_too_goes_on(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    spec = server(tmp_path, lazy=True, on_initialize="hold", control=True)
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        other = asyncio.ensure_future(host.call("s__echo", {"text": "mine"}))
        await log.seen("received", method="initialize")
        with pytest.raises(RunTimeout):
            async with host.run(timeout=0.2):
                await host.call("s__echo")
        log.control("release", key="initialize")
        assert (await other).text == "mine"
    assert len(log.starts()) == 1


async def test_a_shared_server_lives_on_when_the_run_that_started_it_ends(tmp_path: Path) -> None:
    """A server that came up is everybody's: only a start that nobody else wants is given up."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, lazy=True)}, state_dir=False) as host:
        async with host.run(timeout=10):
            await host.call("s__echo")
        assert host.status()["s"].state is State.READY
        assert (await host.call("s__counter")).text == "2"
    assert len(log.starts()) == 1


async def test_run_call_belongs_to_the_run_from_a_task_begun_outside(tmp_path: Path) -> None:
    """Calls of the host from such a task do not; ``run.call`` does, and ends with it."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def inside() -> None:
            await (await entered).call("s__never")

        async def outside() -> str:
            await entered
            return (await host.call("s__hold", {"key": "h"})).text

        one, other = asyncio.ensure_future(inside()), asyncio.ensure_future(outside())
        async with host.run(timeout=30) as run:
            entered.set_result(run)
            await log.seen("received", tool="never")
            await log.seen("received", tool="hold")
        with pytest.raises(CallCancelled):
            await one
        assert not other.done()
        await host.call("s__release", {"key": "h"})
        assert await other == "released"


async def test_the_deadline_during_a_start_says_that_nothing_was_sent(tmp_path: Path) -> None:
    spec = server(tmp_path, on_initialize="silent")
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.3):
                await host.call("s__effect")
        cause = caught.value.__cause__
        assert isinstance(cause, CallTimeout)
        assert cause.sent is False and "still connecting" in str(cause)
        # The host wanted this start: it goes on.
        assert host.status()["s"].state is State.CONNECTING


async def test_waiting_for_servers_ends_at_the_deadline_too(tmp_path: Path) -> None:
    """``wait_ready`` has its own way of saying that it ran out of time, and then the block is over."""
    spec = server(tmp_path, on_initialize="silent")
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.2):
                await host.wait_ready()
        assert_within(caught.value, 0.2)


# --- required servers -----------------------------------------------------------------------------------------------


async def test_a_run_is_not_entered_while_a_required_server_is_missing(tmp_path: Path) -> None:
    servers = {
        "good": server(tmp_path, "good"),
        "bad": server(tmp_path, "bad", required=True, on_initialize="exit:3:no licence"),
        "absent": StdioServer(command="no-such-program", required=True),
    }
    async with AsyncHost(servers, state_dir=False) as host:
        with pytest.raises(RequiredServerMissing) as caught:
            async with host.run(timeout=10):
                pytest.fail("entered")
        assert set(caught.value.missing) == {"bad", "absent"}
        assert "no licence" in caught.value.missing["bad"]
        assert "no-such-program" in str(caught.value)
        # What was missing does not spoil the host.
        assert (await host.call("good__echo", {"text": "on"})).text == "on"


async def test_required_servers_are_started_by_the_entry_all_at_once(tmp_path: Path) -> None:
    """Given three lazy required servers that take 0.5 s each, the entry takes 0.5 s and not 1.5 s."""
    servers = {n: server(tmp_path, n, lazy=True, required=True, start_delay=0.5) for n in "abc"}
    async with AsyncHost(servers, state_dir=False) as host:
        began = time.monotonic()
        async with host.run(timeout=10):
            assert {s.state for s in host.status().values()} == {State.READY}
        assert 0.5 <= time.monotonic() - began < 1.3


async def test_a_required_server_that_is_too_slow_for_the_run_is_named(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    spec = server(tmp_path, lazy=True, required=True, on_initialize="silent")
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        began = time.monotonic()
        with pytest.raises(RequiredServerMissing) as caught:
            async with host.run(timeout=0.5):
                pytest.fail("entered")
        assert 0.5 <= time.monotonic() - began < 0.5 + SLACK
        assert set(caught.value.missing) == {"s"}
        # The start was wanted by this run alone.
        assert await gone(log.starts()[0]["pid"], 3)


# --- questions to a person ------------------------------------------------------------------------------------------


@ERAS
async def test_a_question_open_to_a_person_does_not_hold_the_deadline(tmp_path: Path, era: str) -> None:
    """The clock of a call stands still while a person is asked; the deadline of a run does not."""
    asked = asyncio.Event()
    log = FaultLog(tmp_path / "s")

    async def elicit(server: str, question: Any) -> ElicitResult:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    handlers = Handlers(elicit=elicit)
    async with AsyncHost({"s": server(tmp_path, era=era)}, handlers=handlers, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.4):
                await host.call("s__ask", timeout=0.1)
        assert asked.is_set()
        assert_within(caught.value, 0.4)
        cause = caught.value.__cause__
        assert isinstance(cause, CallTimeout) and cause.sent and "run" in str(cause)
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
    assert log.violations() == []


# --- blocking -------------------------------------------------------------------------------------------------------


@ERAS
def test_blocking_given_a_call_in_flight_at_the_deadline_the_run_times_out(tmp_path: Path, era: str) -> None:
    log = FaultLog(tmp_path / "s")
    with Host({"s": server(tmp_path, era=era)}, state_dir=False) as host:
        host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught, host.run(timeout=0.3) as run:
            host.call("s__never")
        assert_within(caught.value, 0.3)
        cause = caught.value.__cause__
        assert isinstance(cause, CallTimeout)
        assert (cause.server, cause.tool, cause.sent) == ("s", "never", True)
        assert run.expired
        log.wait_for("cancelled", known=True)
        assert host.call("s__echo", {"text": "on"}).text == "on"
    assert log.violations() == []


def test_blocking_a_body_that_catches_the_timeout_may_ask_whether_the_run_expired(tmp_path: Path) -> None:
    """Blocking code cannot be interrupted: it is told by its next call, which is not even sent, asks, or hears of it
    when it leaves, as async code does."""
    log = FaultLog(tmp_path / "s")
    with Host({"s": server(tmp_path)}, state_dir=False) as host:
        host.wait_ready(10)
        with pytest.raises(RunTimeout), host.run(timeout=0.2) as run:
            assert not run.expired
            with pytest.raises(CallTimeout):
                host.call("s__never")
            assert run.expired
            with pytest.raises(CallTimeout) as caught:
                host.call("s__effect")
            assert caught.value.sent is False
            assert "the deadline of its run had passed" in str(caught.value)
    assert log.calls("effect") == 0


def test_blocking_run_call_belongs_to_the_run_from_any_thread(tmp_path: Path) -> None:
    """Given calls in other threads, when the block is left, they end, and their server is told."""
    log = FaultLog(tmp_path / "s")
    with Host({"s": server(tmp_path)}, state_dir=False) as host, ThreadPoolExecutor(4) as threads:
        host.wait_ready(10)
        with host.run(timeout=30) as run:
            inside = [threads.submit(run.call, "s__never") for _ in range(3)]
            outside = threads.submit(host.call, "s__hold", {"key": "h"})
            log.wait_for("received", 3, tool="never")
            log.wait_for("received", tool="hold")
        for one in inside:
            error = one.exception(timeout=5)
            assert isinstance(error, CallCancelled) and error.sent
        log.wait_for("cancelled", 3, known=True)
        assert not outside.done()
        host.call("s__release", {"key": "h"})
        assert outside.result(5).text == "released"


def test_blocking_calls_submitted_and_left_are_cancelled_at_the_end(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    with Host({"s": server(tmp_path)}, state_dir=False) as host:
        host.wait_ready(10)
        with host.run():
            left = host.submit("s__never")
            log.wait_for("received", tool="never")
        assert left.done
        with pytest.raises(CallCancelled) as caught:
            left.result()
        assert caught.value.sent
        log.wait_for("cancelled", known=True)


def test_blocking_a_start_that_the_run_alone_wanted_ends_with_its_process(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    spec = server(tmp_path, lazy=True, on_initialize="silent")
    with Host({"s": spec}, state_dir=False) as host:
        with pytest.raises(RunTimeout), host.run(timeout=0.4):
            host.call("s__echo")
        assert wait_gone(log.starts()[0]["pid"], 3)


def test_blocking_two_runs_in_two_threads_have_each_its_own_deadline(tmp_path: Path) -> None:
    with Host({"s": server(tmp_path)}, state_dir=False) as host, ThreadPoolExecutor(2) as threads:
        host.wait_ready(10)
        together = threading.Barrier(2)

        def one(limit: float) -> RunTimeout:
            together.wait(5)
            with pytest.raises(RunTimeout) as caught, host.run(timeout=limit):
                host.call("s__never")
            return caught.value

        short, longer = threads.map(one, [0.2, 0.5])
        assert_within(short, 0.2)
        assert_within(longer, 0.5)


def test_blocking_a_run_inside_a_run_is_held_by_the_deadline_of_the_outer_one(tmp_path: Path) -> None:
    with Host({"s": server(tmp_path)}, state_dir=False) as host:
        host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught, host.run(timeout=0.3), host.run(timeout=30):
            host.call("s__never")
        assert_within(caught.value, 0.3)


def test_blocking_lists_and_waits_end_at_the_deadline_too(tmp_path: Path) -> None:
    servers = {
        "slow": server(tmp_path, "slow", on={"prompts/list": "silent"}, prompts=1),
        "never": server(tmp_path, "never", on_initialize="silent"),
    }
    with Host(servers, state_dir=False) as host:
        host.wait_ready(10, servers=["slow"])
        began = time.monotonic()
        with pytest.raises(RunTimeout), host.run(timeout=0.3):
            assert host.prompts() == []
            assert host.wait_ready().pending == ("never",)
        assert time.monotonic() - began < 0.3 + SLACK
        with pytest.raises(RunTimeout), host.run(timeout=0.3):
            host.server("slow").prompts()


def test_blocking_a_required_server_that_is_missing_keeps_the_run_from_being_entered(tmp_path: Path) -> None:
    spec = server(tmp_path, required=True, on_initialize="exit:3:no licence")
    with Host({"s": spec}, state_dir=False) as host:
        with pytest.raises(RequiredServerMissing) as caught, host.run(timeout=5):
            pytest.fail("entered")
        assert "no licence" in caught.value.missing["s"]
        with pytest.raises(NotSent):
            host.call("s__echo")


@ERAS
def test_blocking_a_question_open_to_a_person_does_not_hold_the_deadline(tmp_path: Path, era: str) -> None:
    """Given a plain handler that waits for a person, in a thread of its own, the run ends on time."""
    asked, answer = threading.Event(), threading.Event()

    def elicit(server: str, question: Any) -> ElicitResult:
        asked.set()
        answer.wait(10)
        return ElicitResult(action="cancel")

    with Host({"s": server(tmp_path, era=era)}, handlers=Handlers(elicit=elicit), state_dir=False) as host:
        host.wait_ready(10)
        with pytest.raises(RunTimeout) as caught, host.run(timeout=0.4):
            host.call("s__ask", timeout=0.1)
        assert asked.is_set()
        assert_within(caught.value, 0.4)
        answering = [t for t in threading.enumerate() if t.name == "moorings-question"]
        answer.set()
        for thread in answering:
            thread.join(5)
        assert host.call("s__echo", {"text": "on"}).text == "on"


def test_blocking_a_host_closed_inside_a_run_leaves_nothing_to_finish(tmp_path: Path) -> None:
    """The close ended all that the run had begun; leaving the block is no second error."""
    with Host({"s": server(tmp_path)}, state_dir=False) as host:
        host.wait_ready(10)
        with host.run(timeout=30):
            left = host.submit("s__never")
            host.close()
        assert left.done
