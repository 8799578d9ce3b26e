"""The outcome of work that one thread does and any number of others wait for, in event loops or without one.

It holds no lock, as a signal handler may raise in the middle of one (``_flag.py``): whoever waits has a lock or a
future of its own, and who gives up leaves the work and the others as they are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ._flag import Flag

__all__ = ["Outcome"]

T = TypeVar("T")


class Outcome(Generic[T]):
    """See the module. The first ``settle`` counts."""

    __slots__ = ("_flag", "_settled", "_told")

    def __init__(self) -> None:
        self._settled: list[tuple[T | None, BaseException | None]] = []
        self._flag = Flag()
        self._told: deque[Callable[[], None]] = deque()

    @property
    def done(self) -> bool:
        """True once it is there."""
        return bool(self._settled)

    def settle(self, result: T | None, error: BaseException | None = None) -> None:
        """It is there. From any thread."""
        self._settled.append((result, error))
        self._flag.set()
        self._tell()

    def result(self) -> T:
        """What came of it, once it is there; raises what the work raised."""
        result, error = self._settled[0]
        if error is not None:
            # It is raised for many: it must not collect their frames.
            raise error.with_traceback(None)
        return result  # type: ignore[return-value]

    def on_done(self, told: Callable[[], None]) -> None:
        """Have something called when it is there, in the thread that settles it; at once if it is there already."""
        self._told.append(told)
        if self._settled:
            self._tell()

    def _tell(self) -> None:
        while True:
            try:
                told = self._told.popleft()
            except IndexError:
                return
            told()

    def wait(self, timeout: float | None) -> T:
        """Block this thread until it is there, for at most so many seconds; None for as long as it takes.

        Raises:
            TimeoutError: it is not there yet; the work goes on.
        """
        if not self._flag.wait(timeout):
            raise TimeoutError
        return self.result()

    async def outcome(self, until: float) -> T:
        """Wait for it in the caller's own loop, until the loop's time ``until``. Raises as ``wait`` does."""
        if not self._settled:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def settle() -> None:
                if not done.done():
                    done.set_result(None)

            def tell() -> None:
                try:
                    loop.call_soon_threadsafe(settle)
                except RuntimeError:
                    pass  # Its loop is closed: it waits no more.

            self.on_done(tell)
            async with asyncio.timeout_at(until):
                await done
        return self.result()
