"""The table of a server's life is whole, and the docs show the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorings.server.states import TABLE, Event, IllegalTransition, State, diagram, next_state

DOCS = Path(__file__).parents[2] / "docs" / "topics" / "lifecycle.md"


def reachable(start: State) -> set[State]:
    found, new = {start}, [start]
    while new:
        for target in TABLE[new.pop()].values():
            if target not in found:
                found.add(target)
                new.append(target)
    return found


def test_every_state_has_a_row_and_every_event_moves_something() -> None:
    assert set(TABLE) == set(State)
    assert {event for ways in TABLE.values() for event in ways} == set(Event)


def test_every_state_can_be_reached_from_a_fresh_server() -> None:
    """A server begins idle, or disabled."""
    assert reachable(State.IDLE) == set(State)
    assert reachable(State.DISABLED) == set(State)


def test_there_are_no_dead_ends_but_closed() -> None:
    assert TABLE[State.CLOSED] == {}
    for state in State:
        assert State.CLOSED in reachable(state), state


def test_everything_that_lives_can_be_closed_and_nothing_comes_back_from_it() -> None:
    for state in set(State) - {State.CLOSING, State.CLOSED}:
        assert TABLE[state][Event.CLOSE] is State.CLOSING
    assert reachable(State.CLOSING) == {State.CLOSING, State.CLOSED}


def test_there_is_no_permanent_stop() -> None:
    """Whatever went wrong, a use, a person or a new configuration leads back to a start."""
    for state in set(State) - {State.CLOSING, State.CLOSED}:
        assert State.CONNECTING in reachable(state) and State.READY in reachable(state), state


def test_a_new_process_is_begun_only_where_there_is_none() -> None:
    """`connecting` is entered from states that have no process, and a life ends through `stopping` alone."""
    without = {*set(State) - {State.CONNECTING, State.READY, State.STOPPING, State.CLOSING}}
    for state, ways in TABLE.items():
        for event, target in ways.items():
            if target is State.CONNECTING:
                assert state in without and event is Event.WANTED
            if state not in without and target in without:
                assert state in (State.STOPPING, State.CLOSING), (state, event)
            if target is State.READY:
                assert state is State.CONNECTING


@pytest.mark.parametrize("state", list(State))
def test_what_the_table_does_not_know_raises_and_names_both(state: State) -> None:
    for event in Event:
        if event in TABLE[state]:
            assert next_state(state, event) is TABLE[state][event]
        else:
            with pytest.raises(IllegalTransition, match=f"{state.value} by {event.value}"):
                next_state(state, event)


def test_the_diagram_shows_every_way_once() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2" and len(lines) == len(set(lines))
    drawn = set()
    for line in lines[2:-1]:
        ways, events = line.strip().split(": ")
        state, target = ways.split(" --> ")
        drawn |= {(state, event, target) for event in events.split(", ")}
    assert drawn == {
        (state.value, event.value, target.value)
        for state, ways in TABLE.items()
        for event, target in ways.items()
    }


def test_the_docs_show_this_diagram() -> None:
    assert diagram() in DOCS.read_text()
