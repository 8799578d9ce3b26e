"""May this call be sent again by itself? The one place of that decision (law 4, field faults 6). Pure."""

from __future__ import annotations

from ..errors import AmbiguousDelivery, CallError, NotSent

__all__ = ["may_repeat"]


def may_repeat(error: CallError, *, connection_lost: bool, attempts: int, harmless: bool) -> bool:
    """Whether a call that ended by ``error`` is sent once more.

    Args:
        connection_lost: the connection of that attempt is over; without that a repeat would meet the same wall.
        attempts: how often it was tried already.
        harmless: the newest listing declares the tool read-only or idempotent, or the caller opted in.
    """
    if attempts != 1 or not connection_lost:
        return False
    if isinstance(error, NotSent):
        return True
    return harmless and isinstance(error, AmbiguousDelivery)
