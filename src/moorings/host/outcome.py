"""A cancelled call as an outcome, for callers who did not cancel themselves: a run's end, another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import CallCancelled

__all__ = ["outcome_of"]

T = TypeVar("T")


async def outcome_of(make: Callable[[], Coroutine[Any, Any, T]], label: str, reason: str) -> T:
    """Make a call and await it; its cancellation comes out as ``CallCancelled``, ``sent`` set as the session saw it.

    The call is made here and not by the caller: a task that is cancelled before its first step then leaves no
    coroutine that nobody awaited.
    """
    try:
        return await make()
    except asyncio.CancelledError as cancelled:
        sent = bool(getattr(cancelled, "moorings_sent", False))
        raise CallCancelled(reason, tool=label, sent=sent) from None
