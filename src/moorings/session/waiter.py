"""Where the outcome of a request goes.

Mostly a future of the loop. A plain call over pipes has a ``DirectWaiter``: the reader of the pipe goes on with the
task that awaits it at once, where a future would have it wait for the loop's next turn, which costs more than all
that Moorings does for the call.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator
from typing import Any, Protocol

from msgspec import Raw

__all__ = ["DirectWaiter", "Waiter", "goes_on_at_once"]


class Waiter(Protocol):
    """Where the outcome of a request goes: something of the loop, or a place where another thread waits."""

    def done(self) -> bool:
        """True once it has an outcome."""

    def set_result(self, result: Raw, /) -> None:
        """The answer came."""

    def set_exception(self, error: BaseException, /) -> None:
        """It ended otherwise."""


def goes_on_at_once(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a task may go on within a handle of this loop.

    asyncio's own loops run a handle that a descriptor has called after all that was ready before. Others (uvloop) run
    it first: the task would overtake what it had started itself. A loop that runs within itself (``nest_asyncio``
    patches it) could wait in the task of one answer for another of the same read.
    """
    steps = (getattr(type(loop), name, None) for name in ("run_forever", "_run_once"))
    own = all(str(getattr(step, "__module__", None)).startswith("asyncio.") for step in steps)
    return own and not getattr(loop, "_nest_patched", False)


def _end_loop(end: BaseException) -> None:
    """``KeyboardInterrupt`` or ``SystemExit`` of a task, in a handle of its own."""
    raise end


class DirectWaiter:
    """Awaited by one task, once. ``set_result`` is called from a handle of the loop and from no task: the waiting task
    runs on within it. Every other outcome wakes the task in the loop's next turn.

    It has what a task asks of a thing that it awaits and that is no future of asyncio's own (``asyncio.isfuture``).
    Slots and no struct, which takes new values slowly.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "context",
        "error",
        "fulfilled",
        "is_done",
        "loop",
        "result",
        "wake",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, fulfilled: asyncio.Future[None]) -> None:
        self.loop = loop
        self.fulfilled = fulfilled
        """A future that is done: what the task is woken with. The outcome is fetched here."""
        self.is_done = False
        self.result: Raw | None = None
        self.error: BaseException | None = None
        self.wake: Callable[[asyncio.Future[Any]], object] | None = None
        """The way back into the task that awaits it."""
        self.context: contextvars.Context | None = None
        self._asyncio_future_blocking = False

    def __repr__(self) -> str:
        return f"<DirectWaiter {'done' if self.is_done else 'pending'}>"

    def __await__(self) -> Generator[Any, None, Raw]:
        if not self.is_done:
            self._asyncio_future_blocking = True
            yield self
        if self.error is not None:
            raise self._taken()
        return self.result  # type: ignore[return-value]  # it is done, and by no error

    def _taken(self) -> BaseException:
        """The error, which is not kept: its traceback leads to who awaits, and so back to here."""
        error, self.error = self.error, None
        assert error is not None
        return error

    # For the session

    def done(self) -> bool:
        """True once it has an outcome."""
        return self.is_done

    def set_result(self, result: Raw, /) -> None:
        """The answer came: the task goes on, within this call."""
        self.result = result
        self.is_done = True
        wake = self.wake
        if wake is not None:
            self.wake = None
            try:
                self.context.run(wake, self.fulfilled)  # type: ignore[union-attr]  # they come together
            except RuntimeError:
                # A task is running already, or this very context: nothing of the waiting one was done.
                self.loop.call_soon(wake, self.fulfilled, context=self.context)
            except BaseException as end:  # boundary: what ends the loop does not end the work of the reader
                self.loop.call_soon(_end_loop, end)

    def set_result_soon(self, result: Raw, /) -> None:
        """As ``set_result``; the task goes on in the loop's next turn."""
        self.result = result
        self._wake_soon()

    def set_exception(self, error: BaseException, /) -> None:
        """It ended otherwise: the task goes on in the loop's next turn."""
        self.error = error
        self._wake_soon()

    def _wake_soon(self) -> None:
        self.is_done = True
        wake, self.wake = self.wake, None
        if wake is not None:
            self.loop.call_soon(wake, self.fulfilled, context=self.context)

    # For the task

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the task that may await it."""
        return self.loop

    def add_done_callback(
        self, wake: Callable[[asyncio.Future[Any]], object], *, context: contextvars.Context
    ) -> None:
        """The task awaits it from now on."""
        self.wake, self.context = wake, context

    def cancel(self, msg: Any = None) -> bool:
        """The task was cancelled: it is woken by that, if nothing else has."""
        if self.is_done:
            return False
        self.set_exception(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        return True
