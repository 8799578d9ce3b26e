"""What crosses on the way, driven by hand: every call has one outcome, every table is empty after it, strays are
counted. The server here is the test itself (``memory_transport.py``)."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from moorings import AmbiguousDelivery, CallCancelled, CallTimeout, NotSent, Refused
from moorings.session.cancelled import cancel_note
from tests.clock import advance, on_movable_clock, turns
from tests.session.memory_transport import Wired

EVENTS = ("answer", "error", "cancel", "expire", "dies", "ends")
"""What can meet one call: its answer, a refusal, its caller's cancel, its clock, the server's death, our close."""
OUTCOMES = {
    "answer": "answered",
    "error": Refused,
    "cancel": asyncio.CancelledError,
    "expire": CallTimeout,
    "dies": AmbiguousDelivery,
    "ends": CallCancelled,
}


def interleavings() -> list[tuple[tuple[str, str], tuple[int, int, int], bool]]:
    """Two events in either order; the turns of the loop before, between and after them; with and without progress."""
    pairs = [*itertools.permutations(EVENTS, 2), ("answer", "answer"), ("cancel", "cancel")]
    gaps = [*itertools.product((1, 2), (0, 1, 2, 3), (0, 1, 5))]
    return list(itertools.product(pairs, gaps, (False, True)))


def test_there_are_more_than_a_thousand_interleavings() -> None:
    assert len(interleavings()) > 1000


@on_movable_clock
async def test_f4_7_a_call_has_one_outcome_whatever_crosses_its_answer() -> None:
    """F4.7: a cancel that crosses the answer, and every other pair of ends, in every order and distance."""
    seen: dict[str, int] = {}
    for (first, second), (before, between, after), progress in interleavings():
        wired = Wired()
        outcome = await one_call(wired, first, second, before, between, after, progress)
        what = f"{first} then {second} after {between} turns, progress={progress}: {outcome}"
        # The first counts; but a cancel reaches the call a turn later, and the clock two, so that what comes in
        # between may be first. Never both, never none.
        wanted = {OUTCOMES[first]}
        if ("cancel" in (first, second) and between <= 1) or ("expire" in (first, second) and between <= 2):
            wanted.add(OUTCOMES[second])
        assert outcome in wanted, what
        name = outcome if isinstance(outcome, str) else outcome.__name__
        seen[name] = seen.get(name, 0) + 1
        assert wired.empty(), f"{what}: {wired.session.sizes()}"
        assert wired.transport.cancels() in ([], [1]), what
        if first == "cancel" and between >= 2:
            assert wired.transport.cancels() == [1], what
        if first in ("answer", "error") and between >= 2:
            assert wired.transport.cancels() == [], what
        await wired.aclose()
    assert set(seen) == {"answered", "Refused", "CancelledError", "CallTimeout", "AmbiguousDelivery",
                         "CallCancelled"}  # fmt: skip


async def one_call(
    wired: Wired, first: str, second: str, before: int, between: int, after: int, progress: bool
) -> object:
    session = wired.session
    on_progress = (lambda *_: None) if progress else None

    async def call() -> str:
        await session.request("tools/call", {"name": "t"}, wired.clock(50, 100), on_progress=on_progress)
        return "answered"

    task = asyncio.get_running_loop().create_task(call())
    await turns(before)
    happen(first, wired, task)
    await turns(between)
    happen(second, wired, task)
    await turns(after)
    return await outcome_of(task)


async def outcome_of(task: asyncio.Task[str]) -> object:
    """What it returned, or the type of what it raised."""
    try:
        return await task
    except asyncio.CancelledError:
        assert task.cancelled()
        return asyncio.CancelledError
    except Exception as error:
        return type(error)


def happen(event: str, wired: Wired, task: asyncio.Task[str]) -> None:
    if event == "answer":
        wired.answer(1)
    elif event == "error":
        wired.say({"id": 1, "error": {"code": -32000, "message": "no"}})
    elif event == "cancel":
        task.cancel()
    elif event == "expire":
        advance(60)
    elif event == "dies":
        wired.die()
    elif event == "ends":
        # How a run, or another thread, ends a call that is not its own.
        for pending in list(wired.session._pending.values()):
            wired.session.cancel(pending, "its run ended")


@on_movable_clock
async def test_f4_7_a_thousand_cancels_in_the_turn_of_the_answer() -> None:
    """F4.7: 1,000 calls on one session, each cancelled around the very turn in which its answer comes in."""
    wired = Wired()
    dice = random.Random(7)
    outcomes = {"answered": 0, "cancelled": 0}
    for number in range(1, 1001):
        task = asyncio.get_running_loop().create_task(
            wired.session.request("tools/call", {"name": "t"}, wired.clock())
        )
        await turns(1)
        steps = [lambda n=number: wired.answer(n), task.cancel]
        dice.shuffle(steps)
        steps[0]()
        await turns(dice.choice((0, 0, 0, 1, 2)))
        steps[1]()
        try:
            await task
            outcomes["answered"] += 1
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1
        assert wired.empty()
    assert sum(outcomes.values()) == 1000 and min(outcomes.values()) > 100
    cancelled = wired.transport.cancels()
    assert len(cancelled) == len(set(cancelled)) <= outcomes["cancelled"]
    # A cancel that came first leaves the answer without a taker; nothing else does.
    assert wired.session.counters.late_answers == len(cancelled)
    assert wired.session.counters.unknown_ids == 0
    await wired.aclose()


@on_movable_clock
async def test_f4_7_late_double_and_unknown_answers_are_counted_and_harm_nobody() -> None:
    """F4.7: a late answer to a timed-out id; an id never used; an answer that comes twice; each counted."""
    wired = Wired()
    loop = asyncio.get_running_loop()
    slow = loop.create_task(wired.session.request("tools/call", {"name": "t"}, wired.clock(5, 10)))
    await turns()
    advance(6)
    with pytest.raises(CallTimeout) as caught:
        await slow
    assert caught.value.sent and caught.value.allowed == pytest.approx(5) and caught.value.elapsed >= 5
    assert wired.transport.cancels() == [1]
    other = loop.create_task(wired.session.request("tools/call", {"name": "u"}, wired.clock()))
    await turns()
    wired.answer(1, {"late": True})
    for stray in (987654321, "nobody", -1, 0, None, 1.5):
        wired.answer(stray)
    await turns()
    assert not other.done()
    wired.answer(2, {"right": True})
    assert bytes(await other) == b'{"right": true}'
    wired.answer(2, {"twice": True})
    counters = wired.session.counters
    assert (counters.late_answers, counters.unknown_ids) == (2, 6)
    assert wired.empty()
    await wired.aclose()


@on_movable_clock
async def test_a_call_given_up_before_it_left_is_taken_back_and_never_runs() -> None:
    """F4.7: a peer that does not read: the caller is free at its limit, nothing was sent, so no cancel either."""
    wired = Wired()
    wired.transport.blocked = True
    loop = asyncio.get_running_loop()
    timed_out = loop.create_task(wired.session.request("tools/call", {"name": "t"}, wired.clock(5, 10)))
    cancelled = loop.create_task(wired.session.request("tools/call", {"name": "u"}, wired.clock(50, 100)))
    await turns()
    cancelled.cancel()
    advance(5)
    with pytest.raises(CallTimeout) as caught:
        await timed_out
    assert caught.value.sent is False
    with pytest.raises(asyncio.CancelledError) as native:
        await cancelled
    note = cancel_note(native.value)
    assert note is not None and note.sent is False and note.tool == "tools/call"
    wired.transport.unblock()
    assert wired.transport.sent == []
    assert wired.empty()
    await wired.aclose()


@on_movable_clock
async def test_what_dies_unsent_is_not_sent_and_what_dies_sent_is_ambiguous() -> None:
    wired = Wired()
    loop = asyncio.get_running_loop()
    sent = loop.create_task(wired.session.request("tools/call", {"name": "t"}, wired.clock()))
    await turns()
    wired.transport.blocked = True
    unsent = loop.create_task(wired.session.request("tools/call", {"name": "u"}, wired.clock()))
    await turns()
    wired.die(3)
    with pytest.raises(AmbiguousDelivery, match=r"exit code 3") as ambiguous:
        await sent
    with pytest.raises(NotSent, match=r"exit code 3") as not_sent:
        await unsent
    assert ambiguous.value.sent and not not_sent.value.sent
    with pytest.raises(NotSent):
        await wired.session.request("tools/call", {"name": "v"}, wired.clock())
    assert len(wired.ends) == 1
    assert wired.empty()
    await wired.aclose()


@on_movable_clock
async def test_f4_6_the_end_of_one_limit_does_not_disarm_another() -> None:
    """F4.6: of two calls with limits 1 s and 3 s, both end at their own."""
    wired = Wired()
    loop = asyncio.get_running_loop()
    short = loop.create_task(wired.session.request("tools/call", {"name": "s"}, wired.clock(1, 10)))
    long = loop.create_task(wired.session.request("tools/call", {"name": "l"}, wired.clock(3, 10)))
    await turns()
    advance(1)
    await turns()
    assert short.done() and not long.done()
    advance(1)
    await turns()
    assert not long.done()
    advance(1.1)
    for task, allowed in ((short, 1), (long, 3)):
        with pytest.raises(CallTimeout) as caught:
            await task
        assert caught.value.allowed == pytest.approx(allowed)
    assert wired.empty()
    await wired.aclose()


@on_movable_clock
async def test_a_full_outbox_refuses_one_call_and_nothing_stays_of_it() -> None:
    wired = Wired()
    wired.transport.full = True
    with pytest.raises(NotSent, match="waits to be written"):
        await wired.session.request("tools/call", {"name": "t"}, wired.clock())
    wired.transport.full = False
    task = asyncio.get_running_loop().create_task(wired.session.request("ping", None, wired.clock()))
    await turns()
    wired.answer(2)
    assert bytes(await task) == b"{}"
    assert wired.empty()
    await wired.aclose()


@on_movable_clock
async def test_initialize_is_never_cancelled() -> None:
    """The specification forbids it: a start that is given up ends with its process instead."""
    wired = Wired()
    wired.session.rules_set = False
    task = asyncio.get_running_loop().create_task(wired.session.request("initialize", {}, wired.clock()))
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wired.transport.cancels() == []
    await wired.aclose()


@on_movable_clock
async def test_a_close_ends_every_call_and_tells_the_server_of_each() -> None:
    wired = Wired()
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(wired.session.request("tools/call", {"name": "t"}, wired.clock())) for _ in range(5)
    ]
    await turns()
    wired.session.fail("the host is closing")
    for task in tasks:
        with pytest.raises(AmbiguousDelivery, match="the host is closing"):
            await task
    assert wired.transport.cancels() == [1, 2, 3, 4, 5]
    # What comes in after the end is nobody's: it starts nothing and breaks nothing.
    wired.answer(3)
    wired.ask(9, "roots/list")
    wired.say({"method": "notifications/message", "params": {"level": "info", "data": 1}})
    assert wired.empty()
    await wired.aclose()
