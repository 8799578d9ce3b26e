"""Limits, cancels and late answers against a real process (field faults, class 4).

F4.2 (an SSE stream that ends), F4.3 (HTTP statuses) and F4.11 (a half-open connection) need the HTTP transport.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    Bounds,
    CallCancelled,
    CallTimeout,
    CommandNotFound,
    ElicitResult,
    Handlers,
    Host,
    MisuseError,
    NotSent,
    StartError,
    StdioServer,
)
from tests.clock import advance, on_running_clock, pass_time, turns
from tests.faults.procs import alive, gone
from tests.faults.script import FaultLog, fault_server
from tests.session.hosting import EMPTY, host_of, scripted, session_of, sizes_of

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
SLACK = 1.0
"""Seconds by which an upper limit may be passed on a busy machine."""


# F4.1: the limit


@ERAS
async def test_f4_1_a_tool_that_never_answers_ends_at_the_limit_and_its_server_is_told(
    tmp_path: Path, era: str
) -> None:
    """F4.1: limit 0.5 s; the outcome names server, tool, elapsed and allowed; a parallel call is answered."""
    host, log = scripted(tmp_path, era=era)
    async with host:
        await host.wait_ready()
        began = time.monotonic()
        hung = asyncio.ensure_future(host.call("s__never", timeout=0.5))
        assert (await host.call("s__echo", {"text": "beside it"})).text == "beside it"
        with pytest.raises(CallTimeout) as caught:
            await hung
        took = time.monotonic() - began
        assert 0.5 <= took < 0.5 + SLACK
        error = caught.value
        assert isinstance(error, TimeoutError)
        assert (error.server, error.tool, error.sent, error.allowed) == ("s", "never", True, 0.5)
        assert 0.5 <= error.elapsed < 0.5 + SLACK
        assert "'s'" in str(error) and "'never'" in str(error) and "0.5 s allowed" in str(error)
        call = log.entries("received", method="tools/call", tool="never")[0]
        cancelled = await log.seen("cancelled", request_id=call["id"])
        assert cancelled["known"]
        assert (await host.call("s__echo", {"text": "after it"})).text == "after it"
        assert sizes_of(host) == EMPTY
    assert log.violations() == []


@on_running_clock
async def test_f4_1_without_a_limit_of_its_own_a_call_has_the_documented_default(tmp_path: Path) -> None:
    """F4.1: none given: 300 s without a sign of progress."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        hung = asyncio.ensure_future(host.call("s__never"))
        await log.seen("received", tool="never")
        advance(299)
        await turns()
        assert not hung.done()
        advance(1.1)
        with pytest.raises(CallTimeout) as caught:
            await hung
        assert caught.value.allowed == Bounds().call == 300
        await log.seen("cancelled")


async def test_f4_1_a_server_has_a_limit_of_its_own_and_a_call_another(tmp_path: Path) -> None:
    host, _ = scripted(tmp_path, bounds=Bounds(call=0.3))
    async with host:
        with pytest.raises(CallTimeout) as of_server:
            await host.call("s__never")
        with pytest.raises(CallTimeout) as of_call:
            await host.call("s__never", timeout=0.1)
        assert (of_server.value.allowed, of_call.value.allowed) == (0.3, 0.1)
        assert (await host.call("s__sleep", {"seconds": 0.4}, timeout=5)).text == "slept"


async def test_a_limit_of_zero_ends_at_once_and_a_negative_one_is_misuse(tmp_path: Path) -> None:
    host, _ = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        with pytest.raises(CallTimeout):
            await host.call("s__never", timeout=0)
        with pytest.raises(MisuseError):
            await host.call("s__never", timeout=-1)
        assert sizes_of(host) == EMPTY


async def test_the_limit_holds_while_the_server_is_still_starting(tmp_path: Path) -> None:
    """A call waits for the start within its own limit; the start goes on for those who still want it."""
    host, log = scripted(tmp_path, on_initialize="slow:1")
    async with host:
        with pytest.raises(CallTimeout) as caught:
            await host.call("s__echo", timeout=0.3)
        assert caught.value.sent is False and 0.3 <= caught.value.elapsed < 0.3 + SLACK
        assert (await host.wait_ready()).ready == ("s",)
        assert log.calls("echo") == 0 and len(log.starts()) == 1


# F4.4: the start


@pytest.mark.parametrize("protocol", ["auto", "handshake"])
async def test_f4_4_an_initialize_that_is_never_answered_fails_inside_the_start_limit(
    tmp_path: Path, protocol: str
) -> None:
    """F4.4: `initialize` is never answered → failed at the limit; the process is gone; close right after works."""
    host, log = scripted(tmp_path, on_initialize="silent", protocol=protocol, bounds=Bounds(connect=0.6))
    async with host:
        began = time.monotonic()
        readiness = await host.wait_ready()
        assert 0.6 <= time.monotonic() - began < 0.6 + SLACK
        error = host.status()["s"].last_error
        assert isinstance(error, StartError) and error.allowed == 0.6
        assert error.elapsed is not None and error.elapsed >= 0.6
        assert "0.6 s allowed" in readiness.failed["s"]
        assert await gone(log.pids(), 3)
    assert log.violations() == []


async def test_f4_4_a_tools_list_that_is_never_answered_leaves_it_connected_without_lists(
    tmp_path: Path,
) -> None:
    """F4.4: only `tools/list` is never answered → connected, lists missing, inside the same limit."""
    host, log = scripted(tmp_path, on_list="silent", bounds=Bounds(connect=0.6))
    async with host:
        began = time.monotonic()
        readiness = await host.wait_ready()
        assert 0.6 <= time.monotonic() - began < 0.6 + SLACK
        assert readiness.ready == ("s",)
        assert (await host.call_raw("s", "echo", {"text": "hi"})).text == "hi"
        assert len(log.starts()) == 1


async def test_f4_4_the_same_after_a_death(tmp_path: Path) -> None:
    """F4.4: on reconnect, the limit is the same one."""
    host, log = scripted(
        tmp_path,
        bounds=Bounds(connect=0.6, probe=0.1),
        by_start=[{}, {"on_initialize": "silent"}, {"on_initialize": "silent"}],
    )
    async with host:
        await host.wait_ready()
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__die")
        began = time.monotonic()
        with pytest.raises(NotSent):
            await host.call_raw("s", "echo")
        assert 0.6 <= time.monotonic() - began < 0.6 + SLACK
        assert log.calls("echo") == 0
    assert await gone(log.pids(), 3)


async def test_f4_4_a_host_is_closed_in_the_middle_of_a_start_that_hangs(tmp_path: Path) -> None:
    """F4.4: close right after works, whatever the start waits for."""
    for step, script in enumerate(
        [{"on_probe": "silent"}, {"on_initialize": "silent"}, {"on_list": "silent"}]
    ):
        folder = tmp_path / str(step)
        folder.mkdir()
        host, log = scripted(folder, **script)
        async with host:
            await log.seen("received", method=("server/discover", "initialize", "tools/list")[step])
        assert not any(alive(pid) for pid in log.pids())
        assert log.violations() == []


# F4.5: progress


async def test_f4_5_progress_extends_the_silence_and_never_the_total(tmp_path: Path) -> None:
    """F4.5: progress each 0.1 s, silence limit 0.4 s, total 1 s: a short job is answered, a long one is not."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        began = time.monotonic()
        result = await host.call("s__progress", {"count": 6, "interval": 0.1}, timeout=0.4, total=1)
        assert result.text == "done" and time.monotonic() - began > 0.5
        began = time.monotonic()
        with pytest.raises(CallTimeout) as caught:
            await host.call("s__progress", {"count": 600, "interval": 0.1}, timeout=0.4, total=1)
        assert 1 <= time.monotonic() - began < 1 + SLACK
        assert caught.value.allowed == 1 and "total" in str(caught.value)
        assert not log.entries("no_token")
        await log.seen("cancelled")


@on_running_clock
async def test_f4_5_the_numbers_of_the_field(tmp_path: Path) -> None:
    """F4.5: silence limit 2 s, total 10 s, progress each second: six are answered, of sixty the tenth is the last."""
    host, log = scripted(tmp_path, control=True)
    async with host:
        await host.wait_ready()
        for seconds in (6, 60):
            told: list[float] = []
            call = asyncio.ensure_future(
                host.call(
                    "s__hold", timeout=2, total=10, on_progress=lambda done, *_, told=told: told.append(done)
                )
            )
            held = await log.seen("received", count=1 if seconds == 6 else 2, tool="hold")
            for second in range(1, min(seconds, 12) + 1):
                if second <= 9:
                    params = {"progressToken": held["id"], "progress": second}
                    log.control("send", message={"jsonrpc": "2.0", "method": "notifications/progress",
                                                 "params": params})  # fmt: skip
                    while len(told) < second:
                        await asyncio.sleep(0.001)
                await pass_time(1.0, step=0.25)
                if call.done():
                    break
            if seconds == 6:
                log.control("release")
                assert (await call).text == "released"
            else:
                assert second == 10 and len(told) == 9
                with pytest.raises(CallTimeout) as caught:
                    await call
                assert caught.value.allowed == pytest.approx(10) and caught.value.elapsed >= 10


async def test_f4_5_progress_of_another_call_extends_nothing(tmp_path: Path) -> None:
    """F4.5: only the call's own token counts, and what is no progress does not."""
    host, _ = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        for token in ("unknown", "finished"):
            with pytest.raises(CallTimeout) as caught:
                await host.call(
                    "s__progress", {"count": 100, "interval": 0.05, "token": token}, timeout=0.4, total=5
                )
            assert caught.value.allowed == 0.4
        flood = asyncio.ensure_future(host.call("s__flood", {"rate": 500, "seconds": 1}))
        with pytest.raises(CallTimeout):
            await host.call("s__never", timeout=0.4)
        await flood


# F4.6: many at once


async def test_f4_6_calls_to_one_server_do_not_wait_their_turn(tmp_path: Path) -> None:
    """F4.6: 8 calls of 0.5 s, limit 1 s each → all answered in about 0.5 s."""
    host, _ = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        began = time.monotonic()
        results = await asyncio.gather(
            *(host.call("s__sleep", {"seconds": 0.5, "text": str(n)}, timeout=1.5) for n in range(8))
        )
        assert [result.text for result in results] == [str(n) for n in range(8)]
        assert 0.5 <= time.monotonic() - began < 1.5


async def test_f4_6_each_call_ends_at_its_own_limit(tmp_path: Path) -> None:
    """F4.6: of two calls with limits 0.3 s and 0.9 s the end of the first does not disarm the second."""
    host, _ = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        began = time.monotonic()
        ended: dict[float, float] = {}

        async def call(limit: float) -> None:
            with pytest.raises(CallTimeout):
                await host.call("s__never", timeout=limit)
            ended[limit] = time.monotonic() - began

        await asyncio.gather(call(0.3), call(0.9))
        assert 0.3 <= ended[0.3] < 0.3 + 0.5 and 0.9 <= ended[0.9] < 0.9 + SLACK


# F4.7: late answers and crossing cancels


async def test_f4_7_a_late_answer_and_an_unknown_id_are_counted_and_dropped(tmp_path: Path) -> None:
    """F4.7: one outcome a call, the id table empty, strays counted in the status."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        for _ in range(3):
            with pytest.raises(CallTimeout):
                await host.call("s__late", timeout=0.1)
        await log.seen("answered", count=3, method="tools/call")
        assert (await host.call("s__wrong_id")).text == "right"
        assert (await host.call("s__twice")).text == "first"
        assert (await host.call("s__echo", {"text": "alive"})).text == "alive"
        counters = host.status()["s"].counters
        assert (counters.late_answers, counters.unknown_ids) == (4, 1)
        assert sizes_of(host) == EMPTY


async def test_f4_7_a_peer_that_does_not_read_the_cancel_holds_nobody(tmp_path: Path) -> None:
    """F4.7: a server that reads nothing: the caller is free at its limit, the id table is empty."""
    host, log = scripted(tmp_path, bounds=Bounds(stop_eof=0.2, stop_term=0.5))
    async with host:
        await host.wait_ready()
        await host.call("s__stop_reading")
        began = time.monotonic()
        big = asyncio.ensure_future(host.call("s__echo", {"text": "x" * 2_000_000}, timeout=0.3))
        small = asyncio.ensure_future(host.call("s__echo", {"text": "y"}, timeout=0.3))
        with pytest.raises(CallTimeout) as begun:
            await big
        with pytest.raises(CallTimeout) as unsent:
            await small
        assert time.monotonic() - began < 0.3 + SLACK
        # A frame of which a part has left may have its effect; one of which no byte has left cannot.
        assert begun.value.sent and not unsent.value.sent
        assert sizes_of(host) == EMPTY
        assert log.calls("echo") == 0


@pytest.mark.parametrize("rounds", [1000, pytest.param(50_000, marks=pytest.mark.soak)])
async def test_f4_7_cancels_that_cross_answers_under_load(tmp_path: Path, rounds: int) -> None:
    """F4.7: calls of a real server cancelled at about the moment of their answers, 20 at a time."""
    host, log = scripted(tmp_path)
    dice = random.Random(4)
    outcomes = {"answered": 0, "cancelled": 0}
    async with host:
        await host.wait_ready()

        async def one() -> None:
            task = asyncio.ensure_future(host.call("s__echo", {"text": "x"}))
            handle = asyncio.get_running_loop().call_later(dice.random() * 0.008, task.cancel)
            try:
                assert (await task).text == "x"
                outcomes["answered"] += 1
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1
            finally:
                handle.cancel()

        for _ in range(rounds // 20):
            await asyncio.gather(*(one() for _ in range(20)))
            assert sizes_of(host) == EMPTY
        assert (await host.call("s__echo", {"text": "after"})).text == "after"
        assert sum(outcomes.values()) == rounds and min(outcomes.values()) > rounds // 50, outcomes
        counters = host.status()["s"].counters
        assert counters.unknown_ids == 0
        told = log.cancelled_ids()
        assert len(told) == len(set(told)) <= outcomes["cancelled"]
    assert log.violations() == []


async def test_a_caller_that_is_cancelled_gets_its_cancel_and_the_server_is_told(tmp_path: Path) -> None:
    """In async code a caller's own cancel stays CancelledError."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        call = asyncio.ensure_future(host.call("s__never"))
        received = await log.seen("received", tool="never")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await log.seen("cancelled", request_id=received["id"], known=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await host.call("s__never")
        await log.seen("cancelled", count=2)
        assert sizes_of(host) == EMPTY


# F4.8: a person is asked


@on_running_clock
async def test_f4_8_while_a_person_is_asked_the_clock_of_the_call_stands_still(tmp_path: Path) -> None:
    """F4.8: a question waits 90 s for a person, call limit 60 s → the answer goes through."""
    for era in ("handshake", "modern"):
        folder = tmp_path / era
        folder.mkdir()
        asked, answer = asyncio.Event(), asyncio.Event()

        async def person(server: str, question: object, asked=asked, answer=answer) -> ElicitResult:
            asked.set()
            await answer.wait()
            return ElicitResult("accept", {"colour": "blue"})

        host, _ = scripted(folder, era=era, handlers=Handlers(elicit=person))
        async with host:
            await host.wait_ready()
            call = asyncio.ensure_future(host.call("s__ask", timeout=60))
            await asked.wait()
            await pass_time(90, step=10)
            assert not call.done()
            answer.set()
            assert '"colour": "blue"' in (await call).text
            assert sizes_of(host) == EMPTY


@on_running_clock
async def test_f4_8_before_and_after_the_question_the_clock_goes_on(tmp_path: Path) -> None:
    """F4.8: what the server itself needs is call time: 40 s, a question of 90 s, then silence → out at 60 s of it."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def person(server: str, question: object) -> ElicitResult:
        asked.set()
        await answer.wait()
        return ElicitResult("decline")

    host, log = scripted(tmp_path, handlers=Handlers(elicit=person), control=True)
    async with host:
        await host.wait_ready()
        call = asyncio.ensure_future(host.call("s__never", timeout=60))
        await log.seen("received", tool="never")
        advance(40)
        question = {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        log.control("send", message={"jsonrpc": "2.0", "id": 77, "method": "elicitation/create",
                                     "params": question})  # fmt: skip
        await asked.wait()
        await pass_time(90, step=10)
        answer.set()
        await log.seen("response", id=77)
        advance(19)
        await turns()
        assert not call.done()
        advance(1.1)
        with pytest.raises(CallTimeout) as caught:
            await call
        assert caught.value.allowed == pytest.approx(60) and 60 <= caught.value.elapsed < 62


@on_running_clock
async def test_f4_8_the_question_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """F4.8: nobody answers: at `Bounds.question` an elicitation counts as cancelled by the person."""
    for era in ("handshake", "modern"):
        folder = tmp_path / era
        folder.mkdir()
        asked = asyncio.Event()

        async def nobody(server: str, question: object, asked=asked) -> ElicitResult:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        host, _ = scripted(
            folder, era=era, handlers=Handlers(elicit=nobody), bounds=Bounds(question=100, call=60)
        )
        async with host:
            await host.wait_ready()
            call = asyncio.ensure_future(host.call("s__ask"))
            await asked.wait()
            await pass_time(99, step=3)
            assert not call.done()
            await pass_time(2)
            assert '"action": "cancel"' in (await call).text
            assert sizes_of(host) == EMPTY


# F4.9: blocking code


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[tuple[Host, FaultLog]]:
    journal = tmp_path / "journal"
    with Host({"s": fault_server(journal=journal)}, state_dir=False) as host:
        host.wait_ready(10)
        yield host, FaultLog(journal)


def test_f4_9_fifty_timeouts_of_blocking_calls_leave_nothing_behind(blocking: tuple[Host, FaultLog]) -> None:
    """F4.9: a blocking call times out in a worker thread, 50 times."""
    host, log = blocking
    inner = host._thread.host
    loop = host._thread._loop

    def quick() -> float:
        began = time.perf_counter()
        assert host.call("s__echo", {"text": "x"}).text == "x"
        return time.perf_counter() - began

    async def tasks() -> int:
        return len(asyncio.all_tasks(loop))

    def tasks_on_loop() -> int:
        return asyncio.run_coroutine_threadsafe(tasks(), loop).result(5)

    before = sorted(quick() for _ in range(20))[10]
    idle = tasks_on_loop()
    failures: list[object] = []

    def worker() -> None:
        for _ in range(10):
            try:
                failures.append(host.call("s__never", timeout=0.05))
            except CallTimeout as error:
                if not (error.sent and error.allowed == 0.05):
                    failures.append(error)

    threads = [threading.Thread(target=worker) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    log.wait_for("cancelled", count=50)
    assert len(set(log.cancelled_ids())) == 50
    assert tasks_on_loop() == idle
    assert sizes_of(inner) == EMPTY
    assert sorted(quick() for _ in range(20))[10] < before + 0.02
    assert len(log.starts()) == 1


def test_f4_9_a_blocking_call_cancelled_from_another_thread_tells_its_server(
    blocking: tuple[Host, FaultLog],
) -> None:
    host, log = blocking
    handover = host.submit("s__never")
    log.wait_for("received", tool="never")
    with pytest.raises(TimeoutError, match="it goes on"):
        handover.result(0.05)
    handover.cancel()
    with pytest.raises(CallCancelled) as caught:
        handover.result(5)
    assert caught.value.sent
    log.wait_for("cancelled", known=True)
    assert sizes_of(host._thread.host) == EMPTY


# F4.10: a command that is not there


async def test_f4_10_all_who_wait_for_a_missing_command_get_the_same_error_at_once(tmp_path: Path) -> None:
    """F4.10: 5 callers wait, none longer than it takes to look."""
    spec = StdioServer(command="no-such-program-anywhere", env={"PATH": str(tmp_path)}, lazy=True)
    async with host_of(spec) as host:
        began = time.monotonic()
        outcomes = await asyncio.gather(
            *(host.call_raw("s", "echo", timeout=30) for _ in range(5)), return_exceptions=True
        )
        assert time.monotonic() - began < SLACK
        assert {type(outcome) for outcome in outcomes} == {NotSent}
        assert len({str(o.__cause__) for o in outcomes if isinstance(o, NotSent)}) == 1
        for outcome in outcomes:
            assert isinstance(outcome, NotSent) and not outcome.sent
            assert isinstance(outcome.__cause__, CommandNotFound)
            assert "no-such-program-anywhere" in str(outcome) and str(tmp_path) in str(outcome)
        status = host.status()["s"]
        assert status.state.value == "failed" and status.generation == 1 and status.fix
        # Nothing is tried again: only a new configuration can help.
        with pytest.raises(NotSent):
            await host.call_raw("s", "echo", timeout=30)
        assert host.status()["s"].generation == 1


# The end of a connection ends its waiters


async def test_when_stdout_ends_every_waiter_ends_at_once_handlers_included(tmp_path: Path) -> None:
    """The rule of class 4: when a process or stream ends, its waiters end, not at their limits."""
    asked, ended = asyncio.Event(), asyncio.Event()

    async def person(server: str, question: object) -> ElicitResult:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    host, log = scripted(tmp_path, handlers=Handlers(elicit=person), bounds=Bounds(stop_eof=0.2))
    async with host:
        await host.wait_ready()
        waiting = [asyncio.ensure_future(host.call(f"s__{tool}")) for tool in ("never", "hold", "ask")]
        await asked.wait()
        session = session_of(host)
        began = time.monotonic()
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__close_stdout")
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert time.monotonic() - began < SLACK
        assert all(isinstance(outcome, AmbiguousDelivery) and outcome.sent for outcome in outcomes)
        async with asyncio.timeout(5):
            await ended.wait()
        assert await gone(log.pids(), 5)
        assert session.sizes() == EMPTY


# What is no time to wait

NO_TIMES = [float("nan"), -1, -0.001, float("-inf"), True, "5", b"1", 1j]


@pytest.mark.parametrize("value", NO_TIMES, ids=repr)
async def test_what_is_no_time_is_refused_at_every_door(tmp_path: Path, value: Any) -> None:
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        doors: list[Callable[[], Any]] = [
            lambda: host.call("s__echo", timeout=value),
            lambda: host.call("s__echo", total=value),
            lambda: host.call_raw("s", "echo", timeout=value),
            lambda: host.request("s", "x/y", timeout=value),
            lambda: host.ping("s", timeout=value),
            lambda: host.read_resource("r://x", timeout=value),
            lambda: host.wait_ready(value),
            lambda: host.restart("s", timeout=value),
            lambda: host.remove("s", timeout=value),
            lambda: host.close(value),
        ]
        for door in doors:
            with pytest.raises(MisuseError, match=r"is a number of seconds, 0 or more; not "):
                await door()
        with pytest.raises(MisuseError):
            host.run(value)
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
    assert log.count("x/y") == 0


@pytest.mark.parametrize("value", [*NO_TIMES, None], ids=repr)
def test_what_is_no_time_is_refused_by_the_blocking_host_too(tmp_path: Path, value: Any) -> None:
    host = Host({"s": fault_server()}, state_dir=False)
    with host:
        with pytest.raises(MisuseError):
            host.close(value)
        if value is not None:
            with pytest.raises(MisuseError):
                host.run(value)
        assert (host.call("s__echo", {"text": "on"})).text == "on"


async def test_a_time_without_end_is_a_week_and_disarms_no_other_call(tmp_path: Path) -> None:
    """Given calls that may take for ever, the limit of another is kept."""
    host, _ = scripted(tmp_path)
    async with host:
        await host.wait_ready(float("inf"))
        for_ever = [
            asyncio.ensure_future(host.call("s__never", timeout=value))
            for value in (float("inf"), 1e300, 10**400, 1e10)
        ]
        await asyncio.sleep(0.1)
        with pytest.raises(CallTimeout) as caught:
            await host.call("s__never", timeout=0.1)
        assert caught.value.elapsed < 0.1 + SLACK
        assert {p.clock.silence for p in session_of(host)._pending.values()} == {7 * 24 * 3600.0}
        for each in for_ever:
            each.cancel()
        await asyncio.wait(for_ever)
        assert (await host.close(float("inf"))).stuck == ()


def test_bounds_are_times_too() -> None:
    for value in (*NO_TIMES, float("inf")):
        with pytest.raises(MisuseError):
            Bounds(call=value)
    assert Bounds(total=1e300).total == 7 * 24 * 3600
