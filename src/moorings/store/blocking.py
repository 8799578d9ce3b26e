"""Calls that block for as long as a disk or a keyring does, kept off the event loop.

Each runs in a thread of its own, so that one that hangs holds up no other, and has a bound. A call that writes
holds its lease until it returns, even if nobody waits for it any more: the lock is never free while a write goes on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from .._tasks import run_in_thread
from .credentials import StoreError

__all__ = ["DISK", "Blocking", "Kept"]

DISK = 10.0
"""Seconds a disk has for one call."""

LEAVE = 1.0
"""Seconds ``aclose`` waits for each call that was given up."""

T = TypeVar("T")


class Kept(Protocol):
    """A lease that stays as long as somebody uses it."""

    def keep(self) -> None:
        """Begin to use it; raises ``LeaseLost`` if that is not possible."""

    def let_go(self) -> None:
        """End that."""


class Blocking:
    """Owns the threads of one store. Ended by ``aclose``; a thread that hangs in the system is left to its end."""

    __slots__ = ("_left", "_store")

    def __init__(self, store: str) -> None:
        self._store = store
        self._left: set[threading.Thread] = set()

    @property
    def hanging(self) -> int:
        """Calls that go on though nobody waits for them."""
        return len(self._left)

    async def run(
        self,
        function: Callable[..., T],
        *args: Any,
        within: float = DISK,
        who: str = "the disk",
        lease: Kept | None = None,
    ) -> T:
        """The outcome of ``function``, waited for ``within`` seconds.

        Raises:
            StoreError: it did not return in time, or raised an ``OSError``. It may still do what it was to do.
            LeaseLost: the lease was over before it began.
        """
        if lease is not None:
            lease.keep()

            def work() -> T:
                try:
                    return function(*args)
                finally:
                    lease.let_go()
        else:

            def work() -> T:
                return function(*args)

        bound = asyncio.timeout(within)
        try:
            async with bound:
                return await run_in_thread(work, name=f"moorings store: {who}", left=self._left)
        except OSError as fault:  # TimeoutError is one
            if bound.expired():
                text = f"{who} did not answer within {within:.4g} s"
            else:
                text = f"{who} refused: {fault.strerror or fault}"
            raise StoreError(text, store=self._store) from fault

    async def aclose(self) -> None:
        """Wait a moment for calls that nobody waits for."""
        for thread in list(self._left):
            await run_in_thread(thread.join, LEAVE, name="moorings store: close")
