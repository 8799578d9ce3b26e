"""The events of a host. Plain values; the listener is called on the event loop and must return at once."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

__all__ = ["CatalogChanged", "Event", "OnEvent", "StateChanged", "publish"]

_log = logging.getLogger("moorings")


class StateChanged(msgspec.Struct, frozen=True, tag=True):
    """A server went from one state to another."""

    server: str
    old: str
    new: str
    event: str
    """What moved it (see ``server/states.py``)."""
    generation: int
    """Which life of the server it concerns; 0 before the first."""
    cause: str = ""


class CatalogChanged(msgspec.Struct, frozen=True, tag=True):
    """What a server offers has really changed."""

    server: str
    kind: str
    """``tools``, ``resources``, ``resource_templates`` or ``prompts``."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


Event = StateChanged | CatalogChanged
OnEvent = Callable[[Event], object]


def publish(listener: OnEvent | None, event: Event) -> None:
    """Hand an event to the listener, if there is one. Its failure is logged and changes nothing."""
    if listener is None:
        return
    try:
        listener(event)
    except (
        Exception,
        SystemExit,
        KeyboardInterrupt,
    ) as error:  # boundary: a listener is the user's code; an exit in there must not end the loop
        _log.warning("the listener of events failed on %r: %r", event, error)
