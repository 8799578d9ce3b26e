"""The life of one server: deaths, repeats, many who wait for one start, cooldowns, wrappers.

F6.4, F6.6 and F6.7, and the HTTP halves of F6.1, F6.3 and F6.5, need the HTTP transport.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    Bounds,
    CallTimeout,
    ElicitResult,
    Handlers,
    NotSent,
    Refused,
    ServerDied,
    StartError,
    State,
    StateChanged,
    StdioServer,
)
from moorings.server import life
from moorings.transport.watch import watch
from tests.clock import advance, on_running_clock, pass_time, turns
from tests.faults.procs import alive, children, gone
from tests.session.hosting import EMPTY, host_of, scripted, session_of, sizes_of

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
SLACK = 1.0
TRACE = "Traceback (most recent call last):\nKeyError: 'the cause'\n"

_others: set[int] = set()


@pytest.fixture(autouse=True)
def of_others() -> None:
    """Servers that other tests share may be children of this process, too."""
    _others.clear()
    _others.update(children())


def ours() -> set[int]:
    """The children that this test has."""
    return set(children()) - _others


class Moves:
    """The states a host's servers went through, and a way to wait for one."""

    def __init__(self) -> None:
        self.seen: list[StateChanged] = []
        self._news = asyncio.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, StateChanged):
            self.seen.append(event)
            self._news.set()

    def states(self) -> list[str]:
        return [event.new for event in self.seen]

    async def reach(self, state: str, count: int = 1) -> None:
        async with asyncio.timeout(10):
            while self.states().count(state) < count:
                self._news.clear()
                await self._news.wait()


# A death


@ERAS
async def test_f3_6_a_death_in_the_middle_of_calls_ends_every_waiter_at_once_and_the_next_call_works(
    tmp_path: Path, era: str
) -> None:
    """F3.6: the wait ends within 1 s; the error holds exit code and last stderr lines; then a new process."""
    moves = Moves()
    host, log = scripted(tmp_path, era=era, on_event=moves)
    async with host:
        await host.wait_ready()
        session = session_of(host)
        waiting = [asyncio.ensure_future(host.call("s__never")) for _ in range(5)]
        waiting.append(asyncio.ensure_future(host.server("s").call("hold")))
        await log.seen("received", count=6, method="tools/call")
        began = time.monotonic()
        with pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__die", {"code": 3, "stderr": TRACE})
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert time.monotonic() - began < SLACK
        for error in (caught.value, *outcomes):
            assert isinstance(error, AmbiguousDelivery) and error.sent and error.server == "s"
            assert "exit code 3" in str(error) and "KeyError: 'the cause'" in str(error)
        assert {error.tool for error in outcomes} == {"never", "hold"}  # type: ignore[union-attr]
        await moves.reach("parked")
        status = host.status()["s"]
        assert isinstance(status.last_error, ServerDied)
        assert (status.last_error.exit_code, status.state) == (3, State.PARKED)
        assert "KeyError: 'the cause'" in status.last_error.stderr_tail and status.next_attempt is None
        assert session.sizes() == EMPTY
        assert (await host.call("s__counter")).text == "1"
        assert len(log.starts()) == 2 and host.status()["s"].generation == 2
        assert log.calls("never") == 5 and log.calls("die") == 1
        # The dead process was reaped before the next was started.
        assert ours() == {host.status()["s"].pid, watch.pid}
    assert log.violations() == []


@pytest.mark.parametrize("step", ["on_probe", "on_initialize"])
async def test_f3_6_a_death_during_the_start_is_told_at_once_with_code_and_stderr(
    tmp_path: Path, step: str
) -> None:
    """F3.6: during `initialize`: within 1 s, not at the start limit."""
    words = f"exit:3:{TRACE}"
    script = {"on_initialize": words} | ({"on_probe": words} if step == "on_probe" else {})
    host, log = scripted(tmp_path, lazy=True, **script)
    async with host:
        began = time.monotonic()
        outcomes = await asyncio.gather(
            *(host.call_raw("s", "echo") for _ in range(5)), return_exceptions=True
        )
        assert time.monotonic() - began < SLACK + 0.5
        for error in outcomes:
            assert isinstance(error, NotSent) and isinstance(error.__cause__, ServerDied)
            assert error.__cause__.exit_code == 3 and "KeyError: 'the cause'" in str(error)
        assert host.status()["s"].generation == 1
    assert await gone(log.pids(), 3) and log.calls("echo") == 0


async def test_a_question_does_not_hold_the_first_list_beyond_the_limit_of_the_start(tmp_path: Path) -> None:
    """The clock of a call stands still while a person is asked; that of a start does not."""
    asked = asyncio.Event()

    async def person(server: str, question: Any) -> ElicitResult:
        asked.set()
        await asyncio.sleep(20)
        return ElicitResult("decline")

    code = (
        "import json, sys\n"
        "def say(**m): print(json.dumps({'jsonrpc': '2.0', **m}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m.get('method') == 'initialize':\n"
        "        say(id=m['id'], result={'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}},"
        " 'serverInfo': {'name': 'x', 'version': '1'}})\n"
        "    elif m.get('method') == 'tools/list':\n"
        "        say(id='q', method='elicitation/create', params={'message': '?',"
        " 'requestedSchema': {'type': 'object', 'properties': {}}})\n"
    )
    spec = StdioServer(
        command=sys.executable,
        args=("-S", "-E", "-c", code),
        protocol="handshake",
        bounds=Bounds(connect=0.7),
    )
    async with host_of(spec, handlers=Handlers(elicit=person)) as host:
        began = time.monotonic()
        ready = await host.wait_ready(5)
        assert time.monotonic() - began < 0.7 + SLACK
        assert asked.is_set()
        assert ready.ready == ("s",)
        assert "limit of the start" in str(host.status()["s"].lists)


async def test_a_server_killed_from_outside_is_told_by_its_signal(tmp_path: Path) -> None:
    host, _ = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        with pytest.raises(AmbiguousDelivery, match="killed by signal 9"):
            await host.call("s__die", {"code": -9})
        assert (await host.call("s__echo", {"text": "again"})).text == "again"


async def test_a_death_while_nobody_calls_costs_nothing_and_the_next_call_starts_it(tmp_path: Path) -> None:
    moves = Moves()
    host, log = scripted(tmp_path, control=True, on_event=moves)
    async with host:
        await host.wait_ready()
        log.control("exit", code=5)
        await moves.reach("parked")
        await turns(20)
        assert len(log.starts()) == 1
        assert (await host.call("s__echo", {"text": "up"})).text == "up"
        assert moves.states() == ["connecting", "ready", "stopping", "parked", "connecting", "ready"]


@pytest.mark.parametrize("n", range(3))
async def test_a_server_that_dies_right_after_its_handshake_is_a_failed_start(tmp_path: Path, n: int) -> None:
    """Between the answer to `initialize` and the first list; whichever we notice first."""
    host, log = scripted(tmp_path, exit_after_initialize=7, era=("handshake", "modern", "dual")[n], lazy=True)
    async with host:
        with pytest.raises(NotSent) as caught:
            await host.call_raw("s", "echo")
        assert "exit code 7" in str(caught.value)
        assert host.status()["s"].state in (State.PARKED, State.STOPPING)
    assert await gone(log.pids(), 3)


# Repeats


async def test_f6_1_a_write_whose_server_exits_before_answering_is_ambiguous_and_not_repeated(
    tmp_path: Path,
) -> None:
    """F6.1: write count 1; the next call works; the text says that the effect may have happened."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        with pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__die_after_effect", {"name": "write"})
        assert caught.value.sent and "sent, but not answered" in str(caught.value)
        assert (await host.call("s__echo", {"text": "next"})).text == "next"
        assert log.effects("write") == 1 and log.calls("die_after_effect") == 1
    assert len(log.starts()) == 2


def fragile(**annotations: Any) -> dict[str, Any]:
    """A listed tool that commits an effect and dies in the first process, and answers in all later ones."""
    tool = {"name": "fragile", "description": "x", "inputSchema": {"type": "object"}}
    if annotations:
        tool["annotations"] = annotations
    dies = {**tool, "does": "die_after_effect", "with": {"name": "w", "code": 3}}
    return {"by_start": [{"tools": [dies]}, {"tools": [{**tool, "does": "effect", "with": {"name": "w"}}]}]}


@pytest.mark.parametrize("hint", ["readOnlyHint", "idempotentHint"])
@ERAS
async def test_f6_2_a_call_that_does_no_harm_is_repeated_once(tmp_path: Path, era: str, hint: str) -> None:
    """F6.2: listed read-only (or idempotent) → repeated once under a new id, answered."""
    host, log = scripted(tmp_path, era=era, **fragile(**{hint: True}))
    async with host:
        await host.wait_ready()
        assert (await host.call("s__fragile")).text == "done"
        assert log.effects("w") == 2 and log.calls("fragile") == 2 and len(log.starts()) == 2
        assert sizes_of(host) == EMPTY
    assert log.violations() == []


@pytest.mark.parametrize(
    "annotations", [{}, {"readOnlyHint": False, "idempotentHint": False}, {"destructiveHint": False}]
)
async def test_f6_2_what_is_not_declared_harmless_is_not_repeated(
    tmp_path: Path, annotations: dict[str, Any]
) -> None:
    """F6.2: silence is no declaration."""
    host, log = scripted(tmp_path, **fragile(**annotations))
    async with host:
        await host.wait_ready()
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__fragile")
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert log.effects("w") == 1


async def test_f6_2_the_callers_opt_in_repeats_once_and_not_twice(tmp_path: Path) -> None:
    """F6.2: with the caller's opt-in and a server that dies each time → two executions at most, then ambiguous."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        with pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__die_after_effect", {"name": "w"}, repeat=True)
        assert caught.value.sent and log.effects("w") == 2 and len(log.starts()) == 2
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert log.effects("w") == 2


async def test_f6_2_the_newest_listing_decides(tmp_path: Path) -> None:
    """F6.2: a hint that was taken back counts for nothing."""
    tool = {"name": "fragile", "description": "x", "inputSchema": {"type": "object"},
            "does": "die_after_effect", "with": {"name": "w"}}  # fmt: skip
    kind = {**tool, "annotations": {"readOnlyHint": True}}
    host, log = scripted(tmp_path, tools=[kind], control=True)
    async with host:
        await host.wait_ready()
        log.control("set", tools=[tool])
        log.control("list_changed")
        await log.seen("answered", count=2, method="tools/list")
        await host.call("s__echo")
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__fragile")
        assert log.effects("w") == 1


async def test_f6_2_a_repeat_whose_server_does_not_come_up_again_still_says_that_it_was_sent(
    tmp_path: Path,
) -> None:
    """F6.2: whatever the second attempt meets, the effect of the first may have happened."""
    host, log = scripted(tmp_path, by_start=[{}, {"on_initialize": "exit:4", "on_probe": "exit:4"}])
    async with host:
        await host.wait_ready()
        with pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__die_after_effect", {"name": "w"}, repeat=True)
        assert caught.value.sent and log.effects("w") == 1


async def test_f6_3_a_call_of_which_no_byte_left_is_repeated_after_the_next_start(tmp_path: Path) -> None:
    """F6.3: not sent → repeated inside the call limit; one execution."""
    host, log = scripted(tmp_path, control=True)
    async with host:
        await host.wait_ready()
        await host.call("s__stop_reading")
        begun = asyncio.ensure_future(host.call("s__echo", {"text": "x" * 3_000_000}))
        await turns()
        unsent = asyncio.ensure_future(host.call("s__effect", {"name": "once"}))
        await turns()
        log.control("exit", code=3)
        with pytest.raises(AmbiguousDelivery):
            await begun
        assert (await unsent).text == "done"
        assert log.effects("once") == 1 and len(log.starts()) == 2


async def test_f6_3_a_call_that_finds_the_server_dead_starts_it_and_runs_once(tmp_path: Path) -> None:
    """F6.3: also when the death is noticed only by the call itself."""
    moves = Moves()
    host, log = scripted(tmp_path, control=True, on_event=moves)
    async with host:
        await host.wait_ready()
        for n in range(10):
            log.control("exit", code=n)
            # At once, and some turns later: while it dies, while it is taken down, when it is parked.
            await turns(n * 3)
            try:
                assert (await host.call("s__effect", {"name": f"e{n}"})).text == "done"
                assert log.effects(f"e{n}") == 1
            except AmbiguousDelivery:
                # The frame went into the pipe of a dying process, which had no eyes for it any more.
                assert log.effects(f"e{n}") == 0
            await moves.reach("parked", n + 1)
            assert (await host.call("s__echo", {"text": "up"})).text == "up"
            assert len(log.starts()) == n + 2


async def test_f6_3_a_call_made_while_the_end_is_known_to_come_waits_for_the_next_process(
    tmp_path: Path,
) -> None:
    """F6.3: stdout has ended and the exit is waited for: what would be sent now would be lost, so it is not sent."""
    host, log = scripted(tmp_path, control=True, bounds=Bounds(stop_eof=0.2))
    async with host:
        await host.wait_ready()
        log.control("close_stdout")
        transport = host._servers["s"].life._transport  # type: ignore[union-attr]
        async with asyncio.timeout(5):
            while transport._closing is None:  # type: ignore[union-attr]
                await asyncio.sleep(0)
        assert (await host.call("s__effect", {"name": "once"})).text == "done"
        assert log.effects("once") == 1 and len(log.starts()) == 2
        assert log.calls("effect") == 1


@pytest.mark.parametrize("shape", ["string", "neither", "both"])
async def test_f6_5_a_malformed_answer_is_not_repeated(tmp_path: Path, shape: str) -> None:
    """F6.5: it ran; what came of it cannot be read."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        with pytest.raises((AmbiguousDelivery, Refused, CallTimeout)) as caught:
            await host.call("s__malformed", {"shape": shape}, timeout=0.5, repeat=True)
        assert caught.value.sent and log.calls("malformed") == 1 and len(log.starts()) == 1


async def test_f6_8_a_call_that_timed_out_is_never_sent_again(tmp_path: Path) -> None:
    """F6.8: its server is then restarted, and dies, and comes back: one execution."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        with pytest.raises(CallTimeout):
            await host.call("s__never", timeout=0.1, repeat=True)
        await host.restart("s")
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__die")
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert log.calls("never") == 1 and len(log.starts()) == 3


async def test_a_repeat_keeps_the_limit_of_the_call(tmp_path: Path) -> None:
    """The second attempt has what is left of the first one's time."""
    host, _ = scripted(tmp_path, by_start=[{}, {"on_initialize": "silent"}])
    async with host:
        await host.wait_ready()
        began = time.monotonic()
        with pytest.raises(CallTimeout) as caught:
            await host.call("s__die_after_effect", {"name": "w"}, timeout=0.8, repeat=True)
        assert 0.8 <= time.monotonic() - began < 0.8 + SLACK
        # It was sent once; that the second attempt never left does not undo it.
        assert caught.value.sent and caught.value.allowed == 0.8


# Many who wait for one start


async def test_any_number_of_callers_wait_for_one_start(tmp_path: Path) -> None:
    """F7.6: 5 first calls at once to a lazy server → one start, 5 answers."""
    host, log = scripted(tmp_path, lazy=True, start_delay=0.2)
    async with host:
        assert host.status()["s"].state is State.IDLE
        results = await asyncio.gather(*(host.call_raw("s", "echo", {"text": str(n)}) for n in range(5)))
        assert [result.text for result in results] == [str(n) for n in range(5)]
        assert len(log.starts()) == 1 and host.status()["s"].generation == 1


@pytest.mark.parametrize("step", ["on_probe", "on_initialize", "on_list"])
async def test_a_start_outlasts_all_who_give_up_but_the_last_and_ends_with_its_process(
    tmp_path: Path, step: str
) -> None:
    """F1.5, F3.4: a start that nobody wants any more ends with its process; the next one works."""
    moves = Moves()
    method = {"on_probe": "server/discover", "on_initialize": "initialize", "on_list": "tools/list"}[step]
    host, log = scripted(tmp_path, lazy=True, on_event=moves, by_start=[{step: "silent"}, {}])
    async with host:
        calls = [asyncio.ensure_future(host.call_raw("s", "echo", {"text": "x"})) for _ in range(5)]
        await log.seen("received", method=method)
        (start,) = log.starts()
        for call in calls[:-1]:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert host.status()["s"].state is State.CONNECTING
        assert alive(start["pid"])
        calls[-1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[-1]
        await moves.reach("idle")
        assert not alive(start["pid"]) and ours() == set()
        assert moves.states() == ["connecting", "stopping", "idle"]
        status = host.status()["s"]
        assert status.last_error is None and status.next_attempt is None
        assert (await host.call_raw("s", "echo", {"text": "y"})).text == "y"
        assert len(log.starts()) == 2
    assert log.violations() == []


async def test_one_who_comes_while_a_start_is_being_given_up_gets_the_next_one(tmp_path: Path) -> None:
    """F3.4: and the lock file that the first one held is free again."""
    host, log = scripted(
        tmp_path, lazy=True, lock_file=tmp_path / "lock", slow_exit=0.2,
        by_start=[{"on_initialize": "silent"}, {}],
    )  # fmt: skip
    async with host:
        first = asyncio.ensure_future(host.call_raw("s", "echo"))
        await log.seen("received", method="initialize")
        first.cancel()
        second = asyncio.ensure_future(host.call_raw("s", "echo", {"text": "second"}))
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).text == "second"
        one, two = log.starts()
        assert log.entries("exit", pid=one["pid"])[0]["t"] < two["t"]


@pytest.mark.parametrize("when", ["while it is taken down", "in the turn of its death"])
async def test_a_start_abandoned_during_the_respawn_after_a_probe_death_starts_nothing_more(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is being taken down when the last caller gives up: no second one is spawned, and since
    nothing failed but the probe, the server is idle, not parked with a cooldown."""
    moves = Moves()
    slow = {"on_probe": "close_stdout", "ignore_eof": True, "ignore_term": True}
    quick = {"on_probe": "exit:1"}
    at_once = when == "in the turn of its death"
    on_closed = life.Life._on_closed

    def closed(self: life.Life, how: Any) -> None:
        on_closed(self, how)
        if at_once:
            call.cancel()

    monkeypatch.setattr(life.Life, "_on_closed", closed)
    host, log = scripted(
        tmp_path, lazy=True, on_event=moves, bounds=Bounds(stop_eof=0.3, stop_term=0.2),
        **(quick if at_once else slow),
    )  # fmt: skip
    async with host:
        call = asyncio.ensure_future(host.call_raw("s", "echo"))
        while (first := host._servers["s"].life) is None:
            await asyncio.sleep(0)
        if not at_once:
            async with asyncio.timeout(5):
                while first.session is None or first.session.end is None:
                    await asyncio.sleep(0)
            call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await first.task
        await turns()
        assert moves.states() == ["connecting", "stopping", "idle"]
        assert len(log.starts()) == 1 and ours() == set()
        assert host.status()["s"].last_error is None


async def test_an_end_asked_for_in_the_turn_of_a_probe_death_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart that meets it: who waits gets the next life, and neither its error nor a cooldown."""
    moves = Moves()
    on_closed = life.Life._on_closed

    def closed(self: life.Life, how: Any) -> None:
        on_closed(self, how)
        if self.generation == 1:
            self.end("the server is being restarted")

    monkeypatch.setattr(life.Life, "_on_closed", closed)
    host, _ = scripted(tmp_path, lazy=True, on_event=moves, on_probe="exit:1")
    async with host:
        assert (await host.call_raw("s", "echo", {"text": "x"})).text == "x"
        assert moves.states() == ["connecting", "stopping", "idle", "connecting", "ready"]


async def test_a_close_during_the_respawn_after_a_probe_death_starts_nothing_more(tmp_path: Path) -> None:
    host, log = scripted(
        tmp_path, on_probe="close_stdout", ignore_eof=True, ignore_term=True,
        bounds=Bounds(stop_eof=0.3, stop_term=0.2),
    )  # fmt: skip
    async with host:
        first = host._servers["s"].life
        assert first is not None
        async with asyncio.timeout(5):
            while first.session is None or first.session.end is None:
                await asyncio.sleep(0)
    assert len(log.starts()) == 1 and not any(alive(pid) for pid in log.pids())


# Cooldown


@on_running_clock
async def test_f7_4_ten_runs_against_a_dead_server_share_one_cooldown(tmp_path: Path) -> None:
    """F7.4: attempts follow one shared cooldown; no run waits the full start limit again."""
    host, log = scripted(
        tmp_path, lazy=True, protocol="handshake", on_initialize="exit:3:it is broken\n",
        bounds=Bounds(cooldown=10, cooldown_max=60),
    )  # fmt: skip

    async def ten_runs() -> list[NotSent]:
        errors = []
        for _ in range(10):
            async with host.run(timeout=30):
                began = time.monotonic()
                with pytest.raises(NotSent) as caught:
                    await host.call_raw("s", "echo")
                assert time.monotonic() - began < SLACK
                errors.append(caught.value)
        return errors

    async with host:
        for attempt, cooldown in enumerate((10, 20, 40, 60, 60), start=1):
            errors = await ten_runs()
            assert len(log.starts()) == attempt
            assert "exit code 3" in str(errors[0])
            for later in errors[1:]:
                # The first may have been told while the process was still being taken down.
                assert "exit code 3" in str(later) and "it is broken" in str(later)
            assert any("not started again for" in str(error) for error in errors)
            status = host.status()["s"]
            assert status.state is State.PARKED and status.next_attempt is not None
            assert cooldown * 0.5 - 1 <= status.next_attempt <= cooldown
            advance(status.next_attempt - 0.5)
            with pytest.raises(NotSent):
                await host.call_raw("s", "echo")
            assert len(log.starts()) == attempt
            advance(0.6)
    assert log.calls("echo") == 0


@on_running_clock
async def test_a_person_need_not_wait_for_the_cooldown_and_a_proven_start_ends_it(tmp_path: Path) -> None:
    broken = {"on_initialize": "exit:3"}
    host, log = scripted(
        tmp_path, lazy=True, protocol="handshake", bounds=Bounds(cooldown=1000),
        by_start=[broken, broken, {}, broken, {}],
    )  # fmt: skip
    async with host:
        with pytest.raises(NotSent):
            await host.call_raw("s", "echo")
        with pytest.raises(StartError):
            await host.restart("s")
        assert len(log.starts()) == 2
        await host.restart("s")
        assert (await host.call_raw("s", "echo", {"text": "up"})).text == "up"
        # A death of a server that was up is no failed start: the next use tries at once.
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__die")
        with pytest.raises(NotSent):
            await host.call_raw("s", "echo")
        assert len(log.starts()) == 4
        status = host.status()["s"]
        assert status.next_attempt is not None and status.next_attempt <= 1000
        await host.restart("s")
        assert len(log.starts()) == 5


@on_running_clock
async def test_nothing_is_started_by_the_passing_of_time_alone(tmp_path: Path) -> None:
    host, log = scripted(tmp_path, protocol="handshake", on_initialize="exit:3")
    async with host:
        await host.wait_ready()
        await pass_time(3600, step=20)
        assert len(log.starts()) == 1


async def test_a_failure_of_long_ago_is_not_told_to_those_who_wait_for_the_present_start(
    tmp_path: Path,
) -> None:
    """A restart under a start that hangs: who waits gets the new one, not the error of an old one."""
    moves = Moves()
    host, log = scripted(
        tmp_path, lazy=True, protocol="handshake", on_event=moves, bounds=Bounds(cooldown=0.01),
        by_start=[{"on_initialize": "exit:3"}, {"on_initialize": "silent"}, {}],
    )  # fmt: skip
    async with host:
        with pytest.raises(NotSent):
            await host.call_raw("s", "echo")
        await moves.reach("parked")
        waiting: asyncio.Future[Any] | None = None
        async with asyncio.timeout(5):
            while waiting is None:
                try:
                    await asyncio.sleep(0.02)
                    waiting = asyncio.ensure_future(host.call_raw("s", "echo", {"text": "new"}))
                    await log.seen("received", count=2, method="initialize", timeout=1)
                except AssertionError:
                    waiting = None
        await host.restart("s")
        assert (await waiting).text == "new"
        assert len(log.starts()) == 3


# Wrappers


@pytest.mark.parametrize("wrapper", ["exit_first", "exit_later:0.5"])
async def test_a_wrapper_that_leaves_its_server_behind_changes_nothing(tmp_path: Path, wrapper: str) -> None:
    """The leader of the group exits; answers go on; the same generation serves before and after."""
    moves = Moves()
    host, log = scripted(tmp_path, wrapper=wrapper, on_event=moves)
    async with host:
        await host.wait_ready()
        (front,) = log.entries("start", role="wrapper")
        under_way = asyncio.ensure_future(host.call("s__sleep", {"seconds": 0.9}))
        assert await gone(front["pid"], 5)
        for n in range(20):
            assert (await host.call("s__echo", {"text": str(n)})).text == str(n)
        assert (await under_way).text == "slept"
        assert moves.states() == ["connecting", "ready"] and host.status()["s"].generation == 1
    assert await gone(log.pids(), 5)
    assert log.violations() == []


async def test_when_the_server_behind_a_wrapper_dies_too_it_is_a_death_like_any_other(tmp_path: Path) -> None:
    """F3.1, F3.6: the wrapper is gone already; the waiters end at once, and the next call starts both anew."""
    host, log = scripted(tmp_path, wrapper="exit_first")
    async with host:
        await host.wait_ready()
        waiting = asyncio.ensure_future(host.call("s__never"))
        await log.seen("received", tool="never")
        began = time.monotonic()
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__die", {"code": 3, "stderr": TRACE})
        with pytest.raises(AmbiguousDelivery, match="the cause"):
            await waiting
        assert time.monotonic() - began < SLACK
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert len(log.starts()) == 2
    assert await gone(log.pids(), 5)


async def test_when_a_wrapper_leaves_and_what_it_left_is_no_server_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is dead, but a grandchild still holds its pipes: it must show that it lives, and cannot."""
    monkeypatch.setattr(life, "ALIVE_BUSY", 0.5)
    host, log = scripted(tmp_path, bounds=Bounds(stop_eof=0.2, stop_term=0.5))
    async with host:
        await host.wait_ready()
        await host.call("s__fork_child", {"hold_pipes": True})
        began = time.monotonic()
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__die", {"code": 0})
        assert 0.5 <= time.monotonic() - began < 0.5 + SLACK
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert len(log.starts()) == 2
    assert await gone(log.pids(), 5)


async def test_a_server_that_is_busy_when_its_wrapper_leaves_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence to ping is not death: it works on a call, and answers when that is done."""
    monkeypatch.setattr(life, "ALIVE_PROBE", 0.5)
    host, log = scripted(tmp_path, wrapper="exit_later:0.3")
    async with host:
        await host.wait_ready()
        (front,) = log.entries("start", role="wrapper")
        busy = asyncio.ensure_future(host.call("s__block", {"seconds": 1.5}))
        assert await gone(front["pid"], 5)
        assert (await busy).text == "blocked"
        assert host.status()["s"].generation == 1


# Commands


async def test_a_restart_ends_the_calls_in_flight_typed_and_brings_a_new_process(tmp_path: Path) -> None:
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        call = asyncio.ensure_future(host.call("s__never"))
        await log.seen("received", tool="never")
        await host.restart("s")
        with pytest.raises(AmbiguousDelivery, match="restarted"):
            await call
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        one, two = log.starts()
        assert log.entries("exit", pid=one["pid"])[0]["t"] < two["t"]
        assert log.calls("never") == 1
    assert log.violations() == []


async def test_a_disabled_server_refuses_calls_and_an_enabled_one_serves_them(tmp_path: Path) -> None:
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        await host.disable("s")
        assert host.status()["s"].state is State.DISABLED and not any(alive(pid) for pid in log.pids())
        with pytest.raises(NotSent, match="disabled"):
            await host.call_raw("s", "echo")
        await host.enable("s")
        assert (await host.call_raw("s", "echo", {"text": "x"})).text == "x"


@pytest.mark.parametrize("script", ["echo boom >&2; exit 3", "exec <&-; echo boom >&2; sleep 0.1; exit 3"])
async def test_a_program_that_is_no_server_says_its_code_and_its_last_words(script: str) -> None:
    """F3.6: the commonest failure of all. It exits before, or while, the first frame is written."""
    for _ in range(5):
        async with AsyncHost({"s": StdioServer(command="sh", args=("-c", script))}, state_dir=False) as host:
            (why,) = (await host.wait_ready(20)).failed.values()
            assert "exit code 3" in why and "boom" in why
            with pytest.raises(NotSent, match=r"exit code 3.*boom"):
                await host.call("s__echo")
