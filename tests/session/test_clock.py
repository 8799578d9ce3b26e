"""The clock of one call, by tables and by all that can happen to it in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.session.clock import CallClock

START = 1000.0
RUN = "the deadline of its run"


def replay(clock: CallClock, *steps: tuple[str, float]) -> CallClock:
    for what, at in steps:
        getattr(clock, what)(START + at)
    return clock


@pytest.mark.parametrize(
    ("silence", "total", "until", "steps", "ends", "allowed"),
    [
        (60, 3600, None, [], 60, 60),
        (60, 30, None, [], 30, 30),
        (0, 10, None, [], 0, 0),
        (60, 3600, 20, [], 20, 20),
        (60, 3600, 90, [], 60, 60),
        # Progress starts the silence anew, never the total.
        (2, 10, None, [("progress", 1)], 3, 3),
        (2, 10, None, [("progress", n) for n in range(1, 10)], 10, 10),
        (60, 3600, 70, [("progress", 30)], 70, 70),
        # A question stops both; they go on where they were.
        (60, 3600, None, [("pause", 10), ("resume", 100)], 150, 60),
        (60, 90, None, [("pause", 10), ("resume", 100)], 150, 60),
        # In all it stands still for as long as its total again, and no longer.
        (60, 60, None, [("pause", 10), ("resume", 100)], 120, 60),
        (60, 60, None, [("pause", 10)], 120, 60),
        (60, 100, None, [("pause", 10), ("resume", 70), ("pause", 80), ("resume", 200)], 160, 60),
        (60, 3600, None, [("pause", 10), ("resume", 20), ("pause", 30), ("resume", 50)], 90, 60),
        (60, 3600, None, [("pause", 10), ("pause", 12), ("resume", 20), ("resume", 30)], 70, 60),
        (60, 3600, None, [("resume", 10)], 60, 60),
        # Progress during a question counts for nothing: it stands still anyway.
        (2, 100, None, [("pause", 1), ("progress", 50), ("resume", 51)], 52, 2),
        # The deadline of a run is a promise to somebody else: no question moves it.
        (60, 3600, 80, [("pause", 10), ("resume", 60)], 80, 30),
        (60, 3600, 40, [("pause", 10), ("resume", 30)], 40, 20),
    ],
)
def test_when_a_call_ends(
    silence: float,
    total: float,
    until: float | None,
    steps: list[tuple[str, float]],
    ends: float,
    allowed: float,
) -> None:
    at = None if until is None else START + until
    clock = replay(
        CallClock.of(START, silence, total, until=at, why=RUN if until is not None else ""), *steps
    )
    assert clock.next_look() == START + ends
    assert not clock.ran_out(START + ends - 0.001) and clock.ran_out(START + ends)
    assert clock.allowed() == allowed


def test_while_a_question_is_open_only_the_deadline_of_a_run_ends_the_call_or_its_credit() -> None:
    free = replay(CallClock.of(START, 60, 3600), ("pause", 10))
    assert free.paused and free.next_look() == START + 60 + 3600 and not free.ran_out(START + 3659)
    bound = replay(CallClock.of(START, 60, 3600, until=START + 80, why=RUN), ("pause", 10))
    assert bound.next_look() == START + 80 and bound.ran_out(START + 80) and bound.why == RUN
    # A deadline that is later than the call's own total is none of its concern.
    loose = replay(CallClock.of(START, 60, 100, until=START + 200, why=RUN), ("pause", 10))
    assert loose.why == "" and loose.next_look() == START + 160


@pytest.mark.parametrize(
    ("steps", "now", "elapsed"),
    [
        ([], 5, 5),
        ([("pause", 2)], 5, 2),
        ([("pause", 2), ("resume", 4)], 5, 3),
        ([("pause", 2), ("resume", 4), ("pause", 5)], 50, 3),
    ],
)
def test_the_time_of_questions_is_not_call_time(
    steps: list[tuple[str, float]], now: float, elapsed: float
) -> None:
    assert replay(CallClock.of(START, 60, 3600), *steps).elapsed(START + now) == elapsed


def test_the_bounds_of_a_server_are_set_once_it_is_known_and_keep_the_deadline_of_a_run() -> None:
    clock = CallClock.of(START, 300, 3600)
    clock.fit(5, 20)
    assert (clock.expires, clock.hard, clock.allowed()) == (START + 5, START + 20, 5)
    in_run = CallClock.of(START, 300, 3600, until=START + 10, why=RUN)
    in_run.fit(60, 90)
    assert (in_run.expires, in_run.hard, in_run.why) == (START + 10, START + 10, RUN)
    in_run.fit(3, 6)
    assert (in_run.expires, in_run.hard, in_run.why) == (START + 3, START + 6, "")


@pytest.mark.parametrize(
    ("silence", "total", "until", "paused", "limit"),
    [
        (60, 3600, None, False, "its limit"),
        (60, 60, None, False, "its total limit"),
        (60, 3600, None, True, "its limit"),
        (60, 3600, 90, False, "its limit"),
        (60, 3600, 30, False, RUN),
        (60, 3600, 90, True, RUN),
        (60, 80, 90, True, "its limit"),
    ],
)
def test_what_ends_a_call_is_called_by_its_name(
    silence: float, total: float, until: float | None, paused: bool, limit: str
) -> None:
    at = None if until is None else START + until
    clock = CallClock.of(START, silence, total, until=at, why=RUN if until is not None else "")
    if paused:
        clock.pause(START)
    assert clock.limit() == limit


HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["progress", "pause", "resume", "nothing"]), st.floats(0, 1000)), max_size=30
)


@given(
    silence=st.floats(0, 1e4),
    total=st.floats(0, 1e5),
    until=st.none() | st.floats(0, 1e5),
    happenings=HAPPENINGS,
)
def test_whatever_happens_to_it_a_clock_keeps_its_promises(
    silence: float, total: float, until: float | None, happenings: list[tuple[str, float]]
) -> None:
    deadline = None if until is None else START + until
    clock = CallClock.of(START, silence, total, until=deadline, why=RUN if until is not None else "")
    now, asked, paused_at = START, 0.0, None
    for what, later in happenings:
        now += later
        if what == "pause" and paused_at is None:
            paused_at = now
        elif what == "resume" and paused_at is not None:
            asked += min(now - paused_at, max(0.0, total - asked))
            paused_at = None
        if what != "nothing":
            getattr(clock, what)(now)
        slack = 1e-6 * (1 + abs(now))
        # No progress stretches the total; only questions move it, and the deadline of a run not even they.
        assert clock.hard <= START + total + asked + slack
        assert clock.expires <= clock.hard + slack
        if deadline is not None and deadline < START + total:
            assert clock.hard == deadline
        if not clock.paused:
            assert clock.next_look() == clock.expires
            assert clock.expires <= now + silence + slack or what in ("nothing", "resume", "pause")
        assert clock.paused == (paused_at is not None)
        running = min(now - paused_at, max(0.0, total - asked)) if paused_at is not None else 0.0
        assert asked <= total + slack
        assert clock.elapsed(now) == pytest.approx(now - START - asked - running, abs=slack)
        assert clock.elapsed(now) >= -slack
