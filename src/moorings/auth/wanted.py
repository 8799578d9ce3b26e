"""Work of a login that ends as soon as nobody wants it any more.

Owned by an attempt (``login.py``) or by what surrounds one (``service.py``); used on the broker's loop alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from .faults import LoginAbandoned

__all__ = ["Wanted"]


class Wanted:
    """See the module. ``async with wanted.work(): …`` may be entered more than once, one after another."""

    def __init__(self) -> None:
        self.abandoned = False
        """True once nobody wants it. What is begun then ends at its first wait."""
        self._life: asyncio.Timeout | None = None

    def abandon(self) -> None:
        """End what runs, at its next step."""
        self.abandoned = True
        if self._life is not None:
            self._life.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        """Before what cannot be undone. Raises LoginAbandoned."""
        if self.abandoned:
            raise LoginAbandoned("nobody waits for the login any more")

    @contextlib.asynccontextmanager
    async def work(self) -> AsyncIterator[None]:
        """For as long as it is wanted.

        Raises:
            LoginAbandoned: it is not.
        """
        try:
            async with asyncio.timeout(None) as life:
                self._life = life
                if self.abandoned:
                    self.abandon()
                yield
        except TimeoutError:
            if not life.expired():
                raise
            raise LoginAbandoned("nobody waits for the login any more") from None
        finally:
            self._life = None
