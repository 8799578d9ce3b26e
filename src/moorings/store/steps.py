"""What the steps of stores behind a network have in common."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

__all__ = ["heeding_cancellation"]


@contextlib.contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Raise at the end the cancellation that something inside swallowed.

    ``asyncio.wait_for`` of Python 3.11, which client libraries use, returns the outcome of what it waits for if that
    is there in the moment of the cancellation, and so loses it.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    yield
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
