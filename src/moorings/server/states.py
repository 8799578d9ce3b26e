"""The life of one server, as a table.

A server is in one state. What moves it is an event, fired by its owner alone (``server.py``), in the one place that
sets the state; status, events and the diagram of the docs are made from this table. An event that the table does not
know in a state is a fault of ours and raises.

How to read it: a server rests in ``idle`` until it is wanted. ``connecting`` covers spawn, negotiation and the first
lists, under one deadline. ``ready`` serves calls. However a life ends, its process is taken down in ``stopping``, and
only from there the server goes on: back to ``idle`` when it was only stopped; to ``parked`` when it failed or died,
from where the next use starts it again (after a failed start not before its cooldown); to ``needs_auth`` when it wants
a login, or ``needs_client`` when we must first become its client, from where the credential wakes it as soon as it is
there; to ``failed`` when nothing but a changed configuration can help; to ``disabled`` when that is wanted. So there is
never a second process beside one that is still being ended. ``closing`` and ``closed`` are the end, reached from
everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["TABLE", "Event", "IllegalTransition", "State", "diagram", "next_state"]


class State(StrEnum):
    """Where a server is."""

    IDLE = "idle"
    """Not running; starts when it is wanted."""
    CONNECTING = "connecting"
    """Being brought up."""
    READY = "ready"
    """Serving calls."""
    STOPPING = "stopping"
    """Its process is being ended."""
    PARKED = "parked"
    """Not running after a failure; the next use starts it again."""
    NEEDS_AUTH = "needs_auth"
    """Not running: it wants a login. It goes on by itself once somebody has logged in."""
    NEEDS_CLIENT = "needs_client"
    """Not running: who we are at its authorization server must be configured first."""
    FAILED = "failed"
    """Cannot run until its configuration changes."""
    DISABLED = "disabled"
    """Not to be started."""
    CLOSING = "closing"
    """Being ended for good."""
    CLOSED = "closed"
    """Ended for good."""


class Event(StrEnum):
    """What moves a server."""

    WANTED = "wanted"
    """Somebody needs it."""
    CONNECTED = "connected"
    """Negotiated, first lists read."""
    START_FAILED = "start_failed"
    """It could not be brought up; another try may help."""
    UNUSABLE = "unusable"
    """It could not be brought up, and only a person can change that."""
    UNAUTHORIZED = "unauthorized"
    """It takes no token that we have or can get by ourselves."""
    ABANDONED = "abandoned"
    """Nobody wants the start any more."""
    DIED = "died"
    """Its connection ended by itself."""
    STOP = "stop"
    """It is to be stopped (restart, disable)."""
    STOPPED = "stopped"
    """Its process is gone, and it may be started again."""
    STOPPED_AFTER_FAILURE = "stopped_after_failure"
    """Its process is gone after a failure or death."""
    STOPPED_UNUSABLE = "stopped_unusable"
    """Its process, if there was one, is gone; nothing but a new configuration helps."""
    STOPPED_NEEDS_AUTH = "stopped_needs_auth"
    """Its connection is gone; a person must log in."""
    STOPPED_NEEDS_CLIENT = "stopped_needs_client"
    """Its connection is gone; a client must be configured."""
    STOPPED_DISABLED = "stopped_disabled"
    """Its process is gone and it is not to be started."""
    DISABLE = "disable"
    ENABLE = "enable"
    AUTHORIZED = "authorized"
    """A credential is there that it has not refused."""
    RESET = "reset"
    """A person asked to try again at once."""
    CLOSE = "close"
    CLOSED = "closed"
    """Everything of it is gone."""


S, E = State, Event

TABLE: Mapping[State, Mapping[Event, State]] = {
    S.IDLE: {E.WANTED: S.CONNECTING, E.DISABLE: S.DISABLED, E.CLOSE: S.CLOSING},
    S.CONNECTING: {
        E.CONNECTED: S.READY,
        E.START_FAILED: S.STOPPING,
        E.UNUSABLE: S.STOPPING,
        E.UNAUTHORIZED: S.STOPPING,
        E.ABANDONED: S.STOPPING,
        E.STOP: S.STOPPING,
        E.CLOSE: S.CLOSING,
    },
    S.READY: {E.DIED: S.STOPPING, E.UNAUTHORIZED: S.STOPPING, E.STOP: S.STOPPING, E.CLOSE: S.CLOSING},
    S.STOPPING: {
        E.STOPPED: S.IDLE,
        E.STOPPED_AFTER_FAILURE: S.PARKED,
        E.STOPPED_UNUSABLE: S.FAILED,
        E.STOPPED_NEEDS_AUTH: S.NEEDS_AUTH,
        E.STOPPED_NEEDS_CLIENT: S.NEEDS_CLIENT,
        E.STOPPED_DISABLED: S.DISABLED,
        E.CLOSE: S.CLOSING,
    },
    S.PARKED: {E.WANTED: S.CONNECTING, E.RESET: S.IDLE, E.DISABLE: S.DISABLED, E.CLOSE: S.CLOSING},
    S.NEEDS_AUTH: {E.AUTHORIZED: S.IDLE, E.RESET: S.IDLE, E.DISABLE: S.DISABLED, E.CLOSE: S.CLOSING},
    S.NEEDS_CLIENT: {E.AUTHORIZED: S.IDLE, E.RESET: S.IDLE, E.DISABLE: S.DISABLED, E.CLOSE: S.CLOSING},
    S.FAILED: {E.RESET: S.IDLE, E.DISABLE: S.DISABLED, E.CLOSE: S.CLOSING},
    S.DISABLED: {E.ENABLE: S.IDLE, E.CLOSE: S.CLOSING},
    S.CLOSING: {E.CLOSED: S.CLOSED},
    S.CLOSED: {},
}


class IllegalTransition(RuntimeError):
    """A fault of ours: the table has no such way."""


def next_state(state: State, event: Event) -> State:
    """Where an event leads.

    Raises:
        IllegalTransition: the table does not know the event in this state.
    """
    try:
        return TABLE[state][event]
    except KeyError:
        raise IllegalTransition(f"no way from {state.value} by {event.value}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> idle"]
    for state, ways in TABLE.items():
        grouped: dict[State, list[str]] = {}
        for event, target in ways.items():
            grouped.setdefault(target, []).append(event.value)
        lines.extend(
            f"    {state.value} --> {target.value}: {', '.join(by)}" for target, by in grouped.items()
        )
    lines.append("    closed --> [*]")
    return "\n".join(lines)
