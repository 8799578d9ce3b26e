"""A cancelled call as an outcome, for callers who did not cancel themselves: a run's end, another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import CallCancelled
from ..session.cancelled import cancel_note

__all__ = ["outcome_of"]

T = TypeVar("T")


async def outcome_of(make: Callable[[], Coroutine[Any, Any, T]], label: str, reason: Callable[[], str]) -> T:
    """Make a call and await it; its cancellation comes out as ``CallCancelled``, ``sent`` set as the session saw it.

    The call is made here and not by the caller: a task that is cancelled before its first step then leaves no
    coroutine that nobody awaited.
    """
    try:
        return await make()
    except asyncio.CancelledError as cancelled:
        note = cancel_note(cancelled)
        if note is None:
            raise CallCancelled(reason(), tool=label, sent=False) from None
        raise CallCancelled(
            reason(), server=note.server, tool=note.tool, sent=note.sent, elapsed=note.elapsed
        ) from None
