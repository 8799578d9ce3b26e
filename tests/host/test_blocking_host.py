"""The blocking host: its loop thread, what is handed over to it, and misuse that would hang.

Each race stands here twice: the exact interleaving driven by hand, and the real thing under load.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import inspect
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    CallCancelled,
    CallToolResult,
    Handlers,
    Host,
    HostClosedError,
    NotSent,
    WrongLoopError,
)
from moorings.host import loop_thread
from moorings.host.blocking_handle import BlockingHandle
from moorings.host.blocking_run import BlockingRun
from moorings.host.handle import ServerHandle
from moorings.host.handover import Handover
from moorings.host.loop_thread import LoopThread
from moorings.host.run import Run
from moorings.wire.skills import Skill, SkillEntry
from tests.faults.procs import alive, wait_gone
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, STUBBORN, Events, in_thread, loop_threads, took

# --- the start, by hand -------------------------------------------------------------------------------------------


class Halted:
    """A loop factory that stops the start half way: the thread exists, and its loop does not run yet."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.arrived, self.go = threading.Event(), threading.Event()
        self._failure = failure

    def __call__(self) -> asyncio.AbstractEventLoop:
        self.arrived.set()
        assert self.go.wait(10)
        if self._failure is not None:
            raise self._failure
        return asyncio.new_event_loop()


def with_factories(host: Host, *factories: dict[str, Any]) -> list[LoopThread]:
    """Let the host make its loop threads with these factories, one after the other; returns what it made."""
    made: list[LoopThread] = []
    left = list(factories)

    def make() -> LoopThread:
        made.append(LoopThread(host._make, **(left.pop(0) if left else {})))
        return made[-1]

    host._make_thread = make  # type: ignore[method-assign]
    return made


def test_a_second_start_between_the_thread_and_its_loop_finds_the_first() -> None:
    """F1.9 by hand: it waits until the loop runs, and makes no thread of its own."""
    host, halted = Host({}, state_dir=False), Halted()
    made = with_factories(host, {"make_loop": halted})
    first = in_thread(host.start)
    assert halted.arrived.wait(10)
    waiting = threading.Event()
    made[0]._running, running = _Watched(made[0]._running, waiting), made[0]._running
    second = in_thread(lambda: (host.start(), host.status()))
    assert waiting.wait(10)
    assert second.is_alive()
    made[0]._running = running
    halted.go.set()
    first.result()
    assert second.result() == (None, {})
    assert len(made) == 1
    assert len(loop_threads()) == 1
    host.close()


class _Watched:
    """The event of a start, which also tells the test that somebody waits for it."""

    def __init__(self, event: threading.Event, waiting: threading.Event) -> None:
        self._event, self._waiting = event, waiting

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting.set()
        return self._event.wait(timeout)

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()


def test_a_start_that_fails_in_the_thread_fails_for_both_and_the_next_one_works() -> None:
    """F1.9 by hand: no loop is to be had; who waited for that start learns it, and nothing stays."""
    host, halted = Host({"a": fault_server()}, state_dir=False), Halted(OSError(24, "Too many open files"))
    made = with_factories(host, {"make_loop": halted})
    first = in_thread(host.start)
    assert halted.arrived.wait(10)
    second = in_thread(host.start)
    third = in_thread(host.close)
    halted.go.set()
    assert isinstance(first.outcome(), OSError)
    for other in (second.outcome(), third.outcome()):
        # Who came while it failed learns why; who came after it finds a host that is not started.
        assert other is None or isinstance(other, (OSError, HostClosedError)) or other.clean
    assert loop_threads() == [] or len(made) == 2
    host.close()


def test_after_a_failed_start_the_host_can_be_started() -> None:
    """The same without the crowd."""
    host, halted = Host({"a": fault_server()}, state_dir=False), Halted(OSError(24, "Too many open files"))
    made = with_factories(host, {"make_loop": halted})
    halted.go.set()
    with pytest.raises(OSError, match="Too many open files"):
        host.start()
    assert loop_threads() == []
    with pytest.raises(HostClosedError, match="not started"):
        host.call("a__echo")
    host.start()
    assert host.call("a__echo", {"text": "up"}).text == "up"
    assert len(made) == 2
    host.close()


def test_a_thread_that_the_system_refuses_is_an_error_and_no_hang() -> None:
    """``threading`` cannot start one: said at once, and the next start works."""

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    host = Host({}, state_dir=False)
    with_factories(host, {"make_thread": Refused})
    with pytest.raises(RuntimeError, match="can't start new thread"):
        host.start()
    host.start()
    assert host.status() == {}
    host.close()


@pytest.mark.parametrize("begun", [True, False])
def test_ctrl_c_while_the_thread_is_started_leaves_no_thread(begun: bool) -> None:
    """Before it began, there is none; after that, a close finds and ends it."""

    class Interrupted(threading.Thread):
        def start(self) -> None:
            if begun:
                super().start()
                loop_arrived.arrived.wait(10)
            raise KeyboardInterrupt

    loop_arrived = Halted()
    loop_arrived.go.set()
    host = Host({}, state_dir=False)
    with_factories(host, {"make_thread": Interrupted, "make_loop": loop_arrived})
    with pytest.raises(KeyboardInterrupt):
        host.start()
    if not begun:
        host.start()
        assert host.status() == {}
    assert in_thread(host.close).result(5).clean
    assert loop_threads() == []


def test_an_exit_in_a_step_on_the_loop_closes_the_host_whole(tmp_path: Path) -> None:
    """Not by a handler, whose failure stays its own; and what is waited for has an outcome."""
    log = FaultLog(tmp_path / "journal")

    def leave() -> None:
        raise SystemExit(3)

    host = Host({"a": fault_server(journal=log.path)}, state_dir=False)
    host.start()
    handle = host.submit("a__hold", {"text": "never"})
    log.wait_for("received", tool="hold")
    thread = host._thread
    assert thread is not None
    thread.poke(leave)
    with pytest.raises((AmbiguousDelivery, CallCancelled, HostClosedError)):
        handle.result(5)
    report = host.close()
    assert list(report.servers) == ["a"]
    assert report.clean
    assert not any(alive(pid) for pid in log.pids())
    assert loop_threads() == []


@pytest.mark.parametrize("kind", ["event", "log", "progress"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_listener_that_exits_ends_nothing(kind: str, error: type[BaseException]) -> None:
    struck: list[str] = []

    def leave(*_: Any) -> None:
        struck.append(kind)
        raise error

    handlers = Handlers(on_log=leave) if kind == "log" else None
    on_event = leave if kind == "event" else None
    with Host({"a": fault_server()}, state_dir=False, handlers=handlers, on_event=on_event) as host:
        on_progress = leave if kind == "progress" else None
        host.call("a__progress", {"count": 1, "interval": 0.01}, on_progress=on_progress)
        host.call("a__notify", {"count": 1})
        assert host.call("a__echo", {"text": "up"}).text == "up"
    assert struck


class _Limit(BaseException):
    """What a signal handler of the user's may raise."""


def test_whatever_a_signal_handler_raises_in_a_wait_cancels_the_call(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "journal")

    def strike(number: int, frame: Any) -> None:
        raise _Limit

    def send() -> None:
        log.wait_for("received", tool="hold")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    old = signal.signal(signal.SIGUSR1, strike)
    try:
        with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
            host.wait_ready(10)
            sender = in_thread(send)
            with pytest.raises(_Limit):
                host.call("a__hold", {"text": "never"})
            sender.result()
            log.wait_for("cancelled")
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_waiters_are_free_when_a_close_gives_up_on_a_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "JOIN_MARGIN", 0.1)
    host = Host({}, state_dir=False)
    host.start()
    go = block_loop(host)
    waiter = in_thread(host.status)
    while not host._thread._open:  # type: ignore[union-attr]
        time.sleep(0.001)  # a table has no event to wait for
    assert host.close(0.1).stuck
    assert isinstance(waiter.outcome(2), HostClosedError)
    with pytest.raises(HostClosedError):
        host.status()
    go.set()
    assert host.close().clean


def test_a_host_that_cannot_be_made_on_its_loop_is_an_error_and_no_hang() -> None:
    """What fails after the loop runs comes out of ``start`` too."""
    host = Host({}, state_dir=False)
    make = host._make

    def broken() -> AsyncHost:
        raise ValueError("no such place")

    host._make = broken
    with pytest.raises(ValueError, match="no such place"):
        host.start()
    assert loop_threads() == []
    host._make = make
    host.start()
    host.close()


def test_a_close_in_the_middle_of_a_start_waits_for_it() -> None:
    """By hand: the close arrives when the thread exists and the loop does not run yet."""
    host, halted = Host({}, state_dir=False), Halted()
    made = with_factories(host, {"make_loop": halted})
    starting = in_thread(host.start)
    assert halted.arrived.wait(10)
    waiting = threading.Event()
    made[0]._running = _Watched(made[0]._running, waiting)  # type: ignore[assignment]
    closing = in_thread(host.close)
    assert waiting.wait(10)
    halted.go.set()
    starting.result()
    assert closing.result().clean
    assert loop_threads() == []
    with pytest.raises(HostClosedError):
        host.start()


# --- handles of submitted calls -----------------------------------------------------------------------------------


def test_a_result_that_is_not_waited_for_long_enough_goes_on() -> None:
    """``result(timeout)`` limits the waiting and not the call."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        host.wait_ready(10)
        handle = host.submit("a__hold", {"text": "in the end"})
        with pytest.raises(TimeoutError, match="goes on"), took(0.1, 1.1):
            handle.result(0.1)
        assert not handle.done
        host.call("a__release")
        assert handle.result(10).text == "in the end"
        assert handle.done
        assert handle.result(0).text == "in the end"


def block_loop(host: Host) -> threading.Event:
    """Keep the loop thread busy until the event is set; returns when it is."""
    go, busy = threading.Event(), threading.Event()
    thread = host._thread
    assert thread is not None

    def block() -> None:
        busy.set()
        assert go.wait(10)

    thread.poke(block)
    assert busy.wait(10)
    return go


def test_cancelled_before_it_began(tmp_path: Path) -> None:
    """By hand: the loop has not taken it up yet. Nothing was sent, and the server hears of nothing."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        host.wait_ready(10)
        go = block_loop(host)
        handle = host.submit("a__echo")
        handle.cancel()
        go.set()
        with pytest.raises(CallCancelled) as ended:
            handle.result(10)
        assert ended.value.sent is False
        assert host.call("a__echo", {"text": "fine"}).text == "fine"
        assert log.calls("echo") == 1
        assert log.entries("cancelled") == []


def test_cancelled_in_the_turn_in_which_it_began(tmp_path: Path) -> None:
    """By hand: its task exists and has not made a step; no coroutine is left un-awaited. (A plain call has no task; one
    with ``meta`` has.)"""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        host.wait_ready(10)
        go = block_loop(host)
        handle = host.submit("a__echo", meta={"own": 1})
        thread = host._thread
        assert thread is not None

        # Between the two, in the same turn: what ``cancel`` does on the loop, after ``begin``.
        def cancel() -> None:
            handle._cancelled = True
            handle._cancel_now()

        thread.poke(cancel)
        go.set()
        with pytest.raises(CallCancelled) as ended:
            handle.result(10)
        assert ended.value.sent is False
        assert log.calls("echo") == 0


def test_cancelled_while_its_server_connects(tmp_path: Path) -> None:
    """Nothing was sent; the start, which it alone wanted, ends with its process."""
    log, events = FaultLog(tmp_path / "journal"), Events()
    spec = fault_server(journal=log.path, lazy=True, on_initialize="silent")
    with Host({"a": spec}, state_dir=False, on_event=events) as host:
        handle = host.submit("a__echo")
        log.wait_for("received", method="initialize")
        in_thread(handle.cancel).result()
        with pytest.raises(CallCancelled) as ended:
            handle.result(10)
        assert (ended.value.sent, ended.value.server, ended.value.tool) == (False, "a", "echo")
        events.wait_for("a", "idle")
        assert not any(alive(pid) for pid in log.pids())


def test_cancelled_in_flight(tmp_path: Path) -> None:
    """It was sent, and the server is told; its other calls are not touched."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        handle = host.submit("a__never")
        other = host.submit("a__hold", {"text": "other"})
        entry = log.wait_for("received", tool="never")
        log.wait_for("received", tool="hold")
        in_thread(handle.cancel).result()
        with pytest.raises(CallCancelled) as ended:
            handle.result(10)
        assert (ended.value.sent, ended.value.server, ended.value.tool) == (True, "a", "never")
        assert ended.value.elapsed > 0
        assert log.wait_for("cancelled")["request_id"] == entry["id"]
        host.call("a__release")
        assert other.result(10).text == "other"


def test_cancelled_in_flight_inside_a_run(tmp_path: Path) -> None:
    """The same for a call that belongs to a run: still sent, still told."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host, host.run(timeout=30):
        handle = host.submit("a__never")
        entry = log.wait_for("received", tool="never")
        handle.cancel()
        with pytest.raises(CallCancelled) as ended:
            handle.result(10)
        assert (ended.value.sent, ended.value.server, ended.value.tool) == (True, "a", "never")
        assert log.wait_for("cancelled")["request_id"] == entry["id"]


def test_cancelled_between_two_rounds_of_a_question(tmp_path: Path) -> None:
    """Modern era: no request is in flight while a person is asked, and still it was sent."""
    asked = threading.Event()

    async def elicit(server: str, question: Any) -> Any:
        asked.set()
        await asyncio.sleep(60)  # a person who does not answer; cancelled by the test

    spec = fault_server(era="modern")
    with Host({"a": spec}, state_dir=False, handlers=Handlers(elicit=elicit)) as host:
        handle = host.submit("a__ask")
        assert asked.wait(10)
        handle.cancel()
        with pytest.raises(CallCancelled) as ended:
            handle.result(10)
        assert ended.value.sent is True


def test_cancelled_while_it_waits_behind_a_large_frame(tmp_path: Path) -> None:
    """No byte of it has left: it is taken back, not sent, and never runs."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path, control=True)}, state_dir=False) as host:
        host.wait_ready(10)
        host.call("a__stop_reading", {"seconds": 0.5})
        large = host.submit("a__echo", {"text": "x" * 1_000_000})
        behind = host.submit("a__effect")
        behind_too = host.submit("a__echo", {"text": "last"})
        host.status()  # what was handed over before has begun
        behind.cancel()
        with pytest.raises(CallCancelled) as ended:
            behind.result(10)
        assert ended.value.sent is False
        assert len(large.result(10).text) == 1_000_000
        assert behind_too.result(10).text == "last"
        assert log.effects() == 0
        assert log.entries("cancelled") == []


def test_cancelled_after_its_end(tmp_path: Path) -> None:
    """Harmless: the result stays, and the server hears of nothing; the same after a close."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        handle = host.submit("a__echo", {"text": "done"})
        assert handle.result(10).text == "done"
        handle.cancel()
        handle.cancel()
        assert handle.result(10).text == "done"
        host.call("a__echo")
        assert log.entries("cancelled") == []
    handle.cancel()
    assert handle.result(0).text == "done"


def test_cancelled_from_the_loop_thread_itself(tmp_path: Path) -> None:
    """``cancel`` waits for nothing, so a progress callback may use it."""
    log = FaultLog(tmp_path / "journal")
    handles: list[Any] = []

    def on_progress(progress: float, total: float | None, message: str | None) -> None:
        handles[0].cancel()

    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        host.wait_ready(10)
        go = block_loop(host)
        handles.append(host.submit("a__progress", {"answer": False}, on_progress=on_progress))
        go.set()
        with pytest.raises(CallCancelled) as ended:
            handles[0].result(10)
        assert ended.value.sent is True
        log.wait_for("cancelled")


@pytest.mark.parametrize("rounds", [300, pytest.param(20_000, marks=pytest.mark.soak)])
def test_cancels_that_cross_their_answers(rounds: int, tmp_path: Path) -> None:
    """Under load: each call has one outcome, and says rightly whether it may have run."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        host.wait_ready(10)
        unsent = []
        for number in range(rounds):
            name = f"e{number}"
            handle = host.submit("a__effect", {"name": name})
            for _ in range(number % 40):
                handle.done  # noqa: B018 - a moment that grows
            handle.cancel()
            try:
                assert handle.result(10).text == "done"
            except CallCancelled as error:
                if not error.sent:
                    unsent.append(name)
        assert host.status()["a"].counters.calls >= rounds - len(unsent)
        thread = host._thread
        assert thread is not None
        assert len(thread._open) == 0
        # Answered in order, so all that came before has been read.
        host.call("a__echo")
        done = collections.Counter(entry["name"] for entry in log.entries("effect"))
        assert [name for name in unsent if done[name]] == []
        assert max(done.values(), default=0) <= 1


def test_several_threads_wait_for_one_handle() -> None:
    """Each gets the one outcome."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        handle = host.submit("a__hold")
        workers = [in_thread(handle.result) for _ in range(8)]
        host.call("a__release")
        assert {worker.result().text for worker in workers} == {"released"}


def test_a_handle_is_read_in_a_thread_that_got_the_number_of_the_dead_loop_thread() -> None:
    """Thread numbers are used again: a stranger with the old one is not the loop thread."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        handle = host.submit("a__echo", {"text": "kept"})
        handle.result(10)
        (thread,) = loop_threads()
        old = thread.ident

    found: list[CallToolResult] = []

    def read() -> bool:
        if threading.get_ident() != old:
            return False
        found.append(handle.result(0))
        host.close()
        return True

    for _ in range(50):
        if in_thread(read).result():
            break
    else:
        pytest.skip("the system did not give the number again")
    assert found[0].text == "kept"


# --- calls and close ----------------------------------------------------------------------------------------------


def test_a_call_after_close_raises_and_leaves_no_coroutine() -> None:
    """The leak gate hears a coroutine that was never awaited."""
    host = Host({"a": fault_server()}, state_dir=False)
    host.start()
    handle = host.server("a")
    host.close()
    for use in (lambda: host.call("a__echo"), lambda: host.submit("a__echo"), lambda: handle.call("echo")):
        with pytest.raises(HostClosedError):
            use()


def test_a_call_handed_over_in_the_turn_in_which_the_host_closes() -> None:
    """By hand: accepted, put on the loop, and then the owner is closed before it begins."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        host.wait_ready(10)
        go = block_loop(host)
        thread = host._thread
        assert thread is not None
        thread.begin_stop(5.0)
        handle = host.submit("a__echo")
        go.set()
        report = host.close()
        outcome = in_thread(handle.result, 10).outcome()
        assert isinstance(outcome, (HostClosedError, NotSent, CallToolResult, AmbiguousDelivery)), outcome
        assert report.clean


def test_a_handover_that_the_closed_owner_finds_is_refused() -> None:
    """By hand: the work reaches the loop after the owner's end; the outcome is typed and nothing is made."""
    made: list[str] = []
    with Host({}, state_dir=False) as host:
        thread = host._thread
        assert thread is not None

        async def late() -> None:
            made.append("ran")

        async def close_owner(_: AsyncHost) -> None:
            assert thread._owner is not None
            thread._owner._closed = True

        host.on_loop(close_owner, "close the owner")
        handle = Handover(thread, late, "late")
        thread.submit(handle)
        with pytest.raises(HostClosedError):
            handle.result(10)
        thread._owner._closed = False  # type: ignore[union-attr]
    assert made == []


def test_a_plain_call_cancelled_in_the_turn_in_which_it_was_sent(tmp_path: Path) -> None:
    """By hand: it has no task; the session itself is told, and so is the server."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        host.wait_ready(10)
        thread = host._thread
        assert thread is not None
        go = block_loop(host)
        handle = host.submit("a__never")

        def cancel() -> None:
            handle._cancelled = True
            handle._cancel_now()

        thread.poke(cancel)
        go.set()
        with pytest.raises(CallCancelled) as ended:
            handle.result(10)
        assert ended.value.sent is True and ended.value.tool == "never"
        assert host.call("a__echo").content
        assert log.calls("never") == 1


def test_a_signal_that_strikes_the_wake_of_the_loop_holds_up_no_later_call() -> None:
    """By hand: Ctrl-C between the decision to wake the loop and the wake. The next call must not count on that one."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        host.wait_ready(10)
        thread = host._thread
        assert thread is not None and thread._loop is not None
        loop = thread._loop
        real = loop.call_soon_threadsafe

        def struck(*args: Any, **kwargs: Any) -> Any:
            loop.call_soon_threadsafe = real  # type: ignore[method-assign]
            raise KeyboardInterrupt

        loop.call_soon_threadsafe = struck  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            host.call("a__echo", {"text": "1"})
        with took(0.0, 5.0):
            assert host.submit("a__echo", {"text": "2"}).result(5).text


def test_calls_that_come_while_the_loop_is_busy_share_one_wake() -> None:
    """By hand: the loop stands still while many threads hand over; all are begun, with one wake or few."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        host.wait_ready(10)
        host.call("a__echo")
        thread = host._thread
        assert thread is not None and thread._loop is not None
        loop = thread._loop
        real, wakes = loop.call_soon_threadsafe, []

        def counted(*args: Any, **kwargs: Any) -> Any:
            wakes.append(args[0])
            return real(*args, **kwargs)

        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go.wait(10)

        real(hold)
        assert held.wait(10)
        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        handles = [host.submit("a__echo", {"text": str(n)}) for n in range(200)]
        assert len(wakes) == 1
        go.set()
        assert [len(handle.result(10).content) for handle in handles] == [1] * 200
        loop.call_soon_threadsafe = real  # type: ignore[method-assign]


def test_an_error_in_the_first_step_of_a_call_is_its_own_and_nobody_elses() -> None:
    """By hand: beginning one hand-over fails in the middle of many; it has that outcome, the others have theirs."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        host.wait_ready(10)
        thread = host._thread
        assert thread is not None and thread._loop is not None
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go.wait(10)

        class Broken(Handover[None]):
            def _start(self, owner: Any) -> None:
                raise ZeroDivisionError

        async def never() -> None:
            raise AssertionError

        thread._loop.call_soon_threadsafe(hold)
        assert held.wait(10)
        before = host.submit("a__echo")
        broken: Handover[None] = Broken(thread, never, "broken")
        thread.submit(broken)
        after = host.submit("a__echo")
        go.set()
        with pytest.raises(ZeroDivisionError):
            broken.result(10)
        assert before.result(10).content and after.result(10).content


def test_a_result_that_is_waited_for_by_many_and_given_up_by_some() -> None:
    """Each who waits has a lock of its own: who gives up holds up nobody, and no lock stays behind."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        host.wait_ready(10)
        handle = host.submit("a__sleep", {"seconds": 0.6})
        for _ in range(3):
            with pytest.raises(TimeoutError):
                handle.result(0.01)
        others = [in_thread(lambda: handle.result(10)) for _ in range(5)]
        assert [other.outcome().is_error for other in others] == [False] * 5
        assert handle._waiters == [] and handle.done
        assert handle.result(0).is_error is False


def test_a_call_that_the_end_of_its_owner_meets_before_its_first_step(tmp_path: Path) -> None:
    """By hand: its task was begun, and cancelled by the closing owner in the same turn; nobody cancelled the call."""
    log = FaultLog(tmp_path / "journal")
    with Host({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        host.wait_ready(10)
        thread = host._thread
        assert thread is not None
        owner = thread._owner
        assert owner is not None
        go = block_loop(host)
        handle = host.submit("a__echo", meta={"own": 1})
        thread.poke(lambda: [task.cancel() for task in owner._tasks] and None)
        go.set()
        with pytest.raises(HostClosedError):
            handle.result(10)
        assert log.calls("echo") == 0


@pytest.mark.parametrize("total", [1000, pytest.param(50_000, marks=pytest.mark.soak)])
def test_calls_from_sixteen_threads_race_with_close(total: int, tmp_path: Path) -> None:
    """Under load: each of them has one outcome, and what says that it was not sent did not run."""
    log = FaultLog(tmp_path / "journal")
    host = Host({"a": fault_server(journal=log.path)}, state_dir=False)
    host.start()
    host.wait_ready(10)
    numbers = iter(range(total))
    gate = threading.Lock()
    outcomes: dict[str, list[Any]] = collections.defaultdict(list)
    half_way = threading.Event()

    def calls() -> None:
        while True:
            with gate:
                number = next(numbers, None)
            if number is None:
                return
            if number >= total // 2:
                half_way.set()
            name = f"e{number}"
            try:
                outcomes[name].append(host.call("a__effect", {"name": name}))
            except (AmbiguousDelivery, NotSent, HostClosedError) as error:
                outcomes[name].append(error)

    workers = [in_thread(calls) for _ in range(16)]
    assert half_way.wait(60)
    report = host.close(10)
    for worker in workers:
        worker.result(60)
    assert report.clean
    assert len(outcomes) == total
    assert all(len(each) == 1 for each in outcomes.values())
    done = collections.Counter(entry["name"] for entry in log.entries("effect"))
    for name, (outcome,) in outcomes.items():
        if isinstance(outcome, CallToolResult):
            assert done[name] == 1
        elif isinstance(outcome, AmbiguousDelivery):
            assert outcome.sent is True
            assert done[name] <= 1
        else:
            assert done[name] == 0
    kinds = collections.Counter(type(outcome).__name__ for (outcome,) in outcomes.values())
    assert kinds["CallToolResult"] >= total // 2 - 16
    assert kinds["HostClosedError"] > 0
    assert loop_threads() == []


# --- on its own loop thread ---------------------------------------------------------------------------------------


SKILL = Skill(
    "a",
    SkillEntry(
        uri="skill://one/SKILL.md", frontmatter={"name": "one", "description": "one"}, resources="dynamic"
    ),
)


def blocking_uses(host: Host) -> dict[str, Callable[[], Any]]:
    """Everything that waits."""
    handle = BlockingHandle(host, "a")

    def run() -> None:
        with host.run(1):
            pass

    return {
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
        "submit": lambda: host.submit("a__echo"),
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
        "notify": lambda: host.notify("a", "notifications/roots/list_changed"),
        "skills": lambda: host.skills("a"),
        "skill": lambda: host.skill("a", "skill://one/SKILL.md"),
        "read_skill": lambda: host.read_skill(SKILL),
        "run": run,
        "add": lambda: host.add("b", fault_server()),
        "remove": lambda: host.remove("a"),
        "restart": lambda: host.restart("a"),
        "enable": lambda: host.enable("a"),
        "disable": lambda: host.disable("a"),
        "handle.call": lambda: handle.call("echo"),
        "handle.status": handle.status,
        "handle.instructions": lambda: handle.instructions,
    }


def test_every_blocking_method_raises_at_once_on_the_loop_thread() -> None:
    """Called where it would wait for itself."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        host.wait_ready(10)
        finished = host.submit("a__echo")
        finished.result(10)
        uses = blocking_uses(host) | {"result": lambda: finished.result(1)}
        silent: list[str] = []

        async def on_loop(_: AsyncHost) -> float:
            began = time.monotonic()
            for name, use in uses.items():
                try:
                    use()
                except WrongLoopError:
                    continue
                silent.append(name)
            return time.monotonic() - began

        assert host.on_loop(on_loop, "misuse") < 0.1 * len(uses)
        assert silent == []
        public = {name for name, _ in inspect.getmembers(Host, callable) if not name.startswith("_")}
        assert public - {"on_loop"} <= uses.keys()
        assert host.call("a__echo", {"text": "goes on"}).text == "goes on"


def test_called_from_the_listener_of_events() -> None:
    """``on_event`` is called on the loop thread, the first time before ``start`` has returned."""
    caught: list[type[BaseException]] = []

    def on_event(event: Any) -> None:
        for use in (host.start, host.close, host.status, lambda: host.call("a__echo")):
            try:
                use()
            except BaseException as error:
                caught.append(type(error))

    host = Host({"a": fault_server()}, state_dir=False, on_event=on_event)
    started = in_thread(host.start)
    started.result(5)
    assert host.call("a__echo", {"text": "up"}).text == "up"
    host.close()
    assert set(caught) == {WrongLoopError}
    assert len(caught) % 4 == 0


def test_called_from_a_progress_callback() -> None:
    """The call goes on, and its caller gets the result."""
    caught: list[type[BaseException]] = []

    def on_progress(progress: float, total: float | None, message: str | None) -> None:
        try:
            host.call("a__echo")
        except WrongLoopError as error:
            caught.append(type(error))

    with Host({"a": fault_server()}, state_dir=False) as host:
        result = host.call("a__progress", {"count": 2, "interval": 0.01}, on_progress=on_progress)
        assert result.is_error is False
        assert caught == [WrongLoopError, WrongLoopError]


def test_called_from_a_question_handler_that_is_async() -> None:
    """An async handler runs on the loop thread; the question is answered with a refusal."""
    caught: list[type[BaseException]] = []

    async def elicit(server: str, question: Any) -> Any:
        try:
            host.call("a__echo")
        except WrongLoopError as error:
            caught.append(type(error))
        return {"action": "decline"}

    with Host({"a": fault_server()}, state_dir=False, handlers=Handlers(elicit=elicit)) as host:
        assert "decline" in host.call("a__ask").text
        assert caught == [WrongLoopError]


def test_a_plain_question_handler_may_use_the_host() -> None:
    """It runs in a thread of its own, so it may block on the same server."""

    def elicit(server: str, question: Any) -> Any:
        return {"action": "accept", "content": {"colour": host.call("a__echo", {"text": "blue"}).text}}

    with Host({"a": fault_server()}, state_dir=False, handlers=Handlers(elicit=elicit)) as host:
        assert "blue" in host.call("a__ask").text


# --- dropped without close ----------------------------------------------------------------------------------------


def test_a_host_that_nobody_holds_ends_its_thread_and_its_servers(tmp_path: Path) -> None:
    """Garbage, never closed: also as part of a cycle."""
    log = FaultLog(tmp_path / "journal")
    host: Any = Host({"a": fault_server(journal=log.path)}, state_dir=False)
    host.start()
    host.wait_ready(10)
    (thread,) = loop_threads()
    host.itself = host
    gone = weakref.ref(host)
    del host
    gc.collect()
    assert gone() is None
    thread.join(5)
    assert not thread.is_alive()
    assert wait_gone(log.pids(), 0)


def test_a_dropped_host_whose_call_is_still_waited_for() -> None:
    """The handle lives on: it gets a typed outcome and no hang."""
    host = Host({"a": fault_server()}, state_dir=False)
    host.start()
    handle = host.submit("a__never")
    host.status()
    (thread,) = loop_threads()
    del host
    gc.collect()
    outcome = in_thread(handle.result, 10).outcome()
    assert isinstance(outcome, (AmbiguousDelivery, NotSent, CallCancelled)), outcome
    thread.join(5)
    assert not thread.is_alive()


class _Meddling(set[Any]):
    """The table of hand-overs, which lets something happen in the middle of ``submit``."""

    def __init__(self, before: Callable[[], Any] | None, after: Callable[[], Any] | None) -> None:
        super().__init__()
        self._before, self._after = before, after

    def add(self, item: Any) -> None:
        before, after, self._before, self._after = self._before, self._after, None, None
        if before is not None:
            before()
        super().add(item)
        if after is not None:
            after()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("what", ["close", "begin_stop"])
def test_a_finaliser_or_signal_handler_strikes_in_the_middle_of_a_hand_over(what: str, moment: str) -> None:
    """By hand: both run in the thread they interrupt, between any two steps of it. The close must not wait for that
    thread, and the call that was interrupted has one outcome."""
    host = Host({"a": fault_server()}, state_dir=False)
    host.start()
    host.wait_ready(10)
    thread = host._thread
    assert thread is not None
    strike = host.close if what == "close" else thread.begin_stop
    table = _Meddling(*((strike, None) if moment == "before" else (None, strike)))
    thread._open = table

    def call() -> CallToolResult:
        return host.submit("a__echo").result(10)

    with took(0.0, 2.0):
        outcome = in_thread(call).outcome()
        report = host.close()
    if what == "close":
        assert isinstance(outcome, HostClosedError), outcome
    else:
        assert isinstance(outcome, (HostClosedError, NotSent, AmbiguousDelivery, CallToolResult)), outcome
    assert report.clean
    assert len(table) == 0


class _LastStep(asyncio.SelectorEventLoop):
    """A loop that has ended, and is halted before it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived, self.go = threading.Event(), threading.Event()

    def close(self) -> None:
        if not self.arrived.is_set():
            self.arrived.set()
            assert self.go.wait(10)
        super().close()


def test_a_hand_over_between_the_last_turn_of_the_loop_and_its_close() -> None:
    """By hand: the loop still takes callbacks and never runs them; the end has looked at the table already."""
    host = Host({}, state_dir=False)
    made = with_factories(host, {"make_loop": _LastStep})
    host.start()
    (thread,) = made
    loop = thread._loop
    assert isinstance(loop, _LastStep)

    def end() -> None:
        thread.begin_stop()
        assert loop.arrived.wait(10)

    thread._open = _Meddling(end, None)
    outcome = in_thread(lambda: host.submit("a__echo").result(5)).outcome()
    assert isinstance(outcome, HostClosedError), outcome
    loop.go.set()
    host.close()


def test_a_signal_handler_closes_the_host_in_the_middle_of_start() -> None:
    """By hand: it holds the gate of the host itself at that moment."""
    host = Host({}, state_dir=False)
    host.start()

    def strike() -> Any:
        with host._gate:
            return host.close()

    assert in_thread(strike).result(5).clean


# --- close from many sides ----------------------------------------------------------------------------------------


def test_closes_from_several_threads_all_get_the_report_of_the_one_close() -> None:
    """Also one that is in a greater hurry than the first."""
    with Host({"a": fault_server(bounds=SOON, **STUBBORN)}, state_dir=False) as host:
        host.wait_ready(10)
        patient = [in_thread(host.close, 10) for _ in range(4)]
        hasty = [in_thread(host.close, 0) for _ in range(4)]
        reports = [worker.result() for worker in (*patient, *hasty)]
    assert all(report is reports[0] for report in reports)
    assert reports[0].forced == {"a": ("TERM", "KILL")}
    assert reports[0].stuck == ()
    assert host.close() is reports[0]


def test_a_hasty_second_close_waits_for_the_end_of_the_first() -> None:
    """It claims nothing of user code that would not return while the first close is within its bound."""
    from moorings import Bounds

    slow = Bounds(stop_eof=1.5, stop_term=1.0, stop_kill=1.0)
    with Host({"a": fault_server(bounds=slow, **STUBBORN)}, state_dir=False) as host:
        host.wait_ready(10)
        first = in_thread(host.close, 10)
        while host._thread is not None and host._thread._accepting and not host._thread._stop.done():  # type: ignore[union-attr]
            time.sleep(0.001)  # a future of another thread's loop cannot be waited for here
        report = host.close(0)
        assert report is first.result()
    assert report.stuck == ()
    assert report.forced == {"a": ("TERM", "KILL")}


# --- the twins ----------------------------------------------------------------------------------------------------

ONLY_BLOCKING = {"submit", "on_loop"}
"""``submit`` is for other threads; ``on_loop`` is how the twin is made."""
ONLY_ASYNC = {"begin_call", "require_ready"}
"""Used by runs, on the loop."""
RUN_ONLY_ASYNC = {"begin", "clock", "deadline", "finish", "own", "timed_out"}
"""The loop's side of a run, which the blocking run uses."""


@pytest.mark.parametrize(
    ("plain", "blocking", "only_plain", "only_blocking"),
    [
        (AsyncHost, Host, ONLY_ASYNC, ONLY_BLOCKING),
        (ServerHandle, BlockingHandle, set(), set()),
        (Run, BlockingRun, RUN_ONLY_ASYNC, set()),
    ],
)
def test_the_twins_have_the_same_methods(
    plain: type, blocking: type, only_plain: set[str], only_blocking: set[str]
) -> None:
    """Every public method of the one exists on the other, with the same parameters in the same order."""

    def public(kind: type) -> dict[str, Any]:
        return {
            name: member
            for name, member in vars(kind).items()
            if (not name.startswith("_") or name == "__init__")
            and (inspect.isfunction(member) or isinstance(member, property))
        }

    theirs, ours = public(plain), public(blocking)
    if plain is Run:
        # A plain attribute there, a property here: both are read as ``run.expired``.
        ours.pop("expired")
    assert theirs.keys() - only_plain == ours.keys() - only_blocking
    assert [n for n in theirs if n in ours] == [n for n in ours if n in theirs], "in the same order"
    for name in theirs.keys() & ours.keys():
        if isinstance(theirs[name], property):
            assert isinstance(ours[name], property)
            continue
        if name == "__init__" and plain is not AsyncHost:
            continue
        a, b = inspect.signature(theirs[name]), inspect.signature(ours[name])
        assert list(a.parameters) == list(b.parameters), name
        for parameter in a.parameters:
            assert a.parameters[parameter].kind == b.parameters[parameter].kind, f"{name}({parameter})"
            assert a.parameters[parameter].default == b.parameters[parameter].default, f"{name}({parameter})"
