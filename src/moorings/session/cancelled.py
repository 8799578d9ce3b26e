"""What is known of a call that its caller cancelled, carried by the ``CancelledError`` on its way up.

In async code a caller's own cancel stays ``CancelledError``. Where it becomes an outcome (the end of a run, another
thread: ``host/outcome.py``), the outcome must say whether the effect may have happened; only the layers below know.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

__all__ = ["CancelNote", "cancel_note", "note_cancel"]


class CancelNote(NamedTuple):
    """The parts of a ``CallCancelled``."""

    server: str | None
    tool: str | None
    sent: bool
    elapsed: float


def note_cancel(
    cancelled: asyncio.CancelledError, *, server: str | None, tool: str | None, sent: bool, elapsed: float
) -> None:
    """Write down what this layer knows. What was sent once stays sent, whatever an outer layer knows."""
    before = cancel_note(cancelled)
    sent = sent or (before is not None and before.sent)
    cancelled.moorings_note = CancelNote(server, tool, sent, elapsed)  # type: ignore[attr-defined]


def cancel_note(cancelled: asyncio.CancelledError) -> CancelNote | None:
    """What was written down; None if it met nothing of ours."""
    note = getattr(cancelled, "moorings_note", None)
    return note if isinstance(note, CancelNote) else None
