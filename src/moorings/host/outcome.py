"""A cancelled call as an outcome, for callers who did not cancel themselves: a run's end, another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import CallCancelled, CallError
from ..session.cancelled import CancelNote, cancel_note

__all__ = ["as_cancelled", "outcome_of"]

T = TypeVar("T")


async def outcome_of(
    make: Callable[[], Coroutine[Any, Any, T]], ended: Callable[[CancelNote | None], CallError]
) -> T:
    """Make a call and await it; its cancellation comes out as the error that ``ended`` makes of the session's note.

    The call is made here and not by the caller: a task that is cancelled before its first step then leaves no
    coroutine that nobody awaited.
    """
    try:
        return await make()
    except asyncio.CancelledError as cancelled:
        raise ended(cancel_note(cancelled)) from None


def as_cancelled(reason: str, label: str, note: CancelNote | None) -> CallCancelled:
    """A call that was cancelled for ``reason``; ``sent`` as the session saw it, False where it did not come so far."""
    if note is None:
        return CallCancelled(reason, tool=label, sent=False)
    return CallCancelled(reason, server=note.server, tool=note.tool, sent=note.sent, elapsed=note.elapsed)
