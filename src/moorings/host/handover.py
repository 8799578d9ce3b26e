"""Work that one thread hands to the loop thread and waits for, or cancels.

Made by ``LoopThread.submit``; begun on the loop, settled there or where the loop ends. The coroutine is made on the
loop's side alone, so that a hand-over that comes too late leaves nothing un-awaited. A plain call needs neither a
coroutine nor a task: ``CallHandover`` itself is what the session resolves.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Raw

from .._checks import seconds
from .._flag import wait_for, wake
from .._tasks import TaskOwner
from ..errors import AmbiguousDelivery, CallCancelled, CallError, HostClosedError, NotSent
from ..server.server import BegunCall
from ..wire.types import CallToolResult, plain_result
from .outcome import as_cancelled, outcome_of

if TYPE_CHECKING:
    from .async_host import AsyncHost
    from .loop_thread import LoopThread

__all__ = ["CallHandover", "Handover"]

T = TypeVar("T")

LARGE = 64 * 1024
"""Bytes of an answer that is decoded in a turn of the loop of its own."""


class Handover(Generic[T]):
    """One piece of work handed to the loop thread: waited for, or cancelled, from any other thread."""

    __slots__ = ("_cancelled", "_context", "_label", "_make", "_outcomes", "_task", "_thread", "_waiters")

    def __init__(self, thread: LoopThread, make: Callable[[], Coroutine[Any, Any, T]], label: str) -> None:
        self._thread = thread
        self._make = make
        self._label = label
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False
        self._outcomes: list[tuple[T | None, BaseException | None]] = []
        """The first one counts. A list, since more than one thread may settle, and an append is one step."""
        self._waiters: list[threading.Lock] = []
        """Locked by the threads that wait; the one that settles unlocks them."""

    # On the loop

    def begin(self, owner: TaskOwner) -> None:
        """Start the work."""
        if self._outcomes:
            return
        if owner.closed:
            self.settle(None, HostClosedError("this host is closed"))
        elif self._cancelled:
            self.settle(None, CallCancelled("cancelled before it began", tool=self._label, sent=False))
        else:
            self._start(owner)

    def _start(self, owner: TaskOwner) -> None:
        self._start_task(owner, self._make)

    def _start_task(self, owner: TaskOwner, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        work = outcome_of(make, lambda note: as_cancelled(self._why_cancelled(), self._label, note))
        self._task = owner.start(work, name=self._label, context=self._context)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled() and not self._cancelled:
            # Before its first step, by the end of its owner: it is as if it had come after that.
            self.settle(None, HostClosedError("this host is closed"))
        elif task.cancelled():
            self.settle(None, CallCancelled("cancelled before it began", tool=self._label, sent=False))
        elif (error := task.exception()) is not None:
            self.settle(None, error)
        else:
            self.settle(task.result(), None)

    def _why_cancelled(self) -> str:
        return "cancelled from another thread" if self._cancelled else "the host was closed"

    def _cancel_now(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # From any thread

    def settle(self, result: T | None, error: BaseException | None) -> None:
        """Give it its outcome; the first one counts."""
        outcome = (result, error)
        self._outcomes.append(outcome)
        if self._outcomes[0] is not outcome:
            return
        self._task = None
        self._thread.forget(self)
        wake(self._waiters)

    @property
    def done(self) -> bool:
        """True once it has an outcome."""
        return bool(self._outcomes)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the outcome.

        Args:
            timeout: seconds to wait here; the work goes on when they pass. None waits as long as the work's own
                limits allow.

        Raises:
            CallError and others: the outcome of the work.
            CallCancelled: it was cancelled.
            TimeoutError: ``timeout`` passed first.
        """
        if timeout is not None:
            timeout = seconds(timeout, "timeout")
        self._thread.refuse_own_thread()
        return self.outcome(timeout)

    def outcome(self, timeout: float | None = None) -> T:
        """As ``result``, in the thread that has just submitted it."""
        if not self._outcomes and not wait_for(self._waiters, lambda: self._outcomes, timeout):
            raise TimeoutError(f"{self._label}: no outcome within {timeout:g} s of waiting; it goes on")
        result, error = self._outcomes[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def cancel(self) -> None:
        """Cancel it, from any thread: its server is told, ``result`` raises ``CallCancelled``. Harmless when done."""
        self._cancelled = True
        self._thread.poke(self._cancel_now)


class CallHandover(Handover[CallToolResult]):
    """A call of a tool. Where its server is up it is sent at once and its answer settles it, without a task."""

    __slots__ = ("_arguments", "_begun", "_name", "_owner", "_repeat", "_timeout", "_total")

    def __init__(
        self,
        thread: LoopThread,
        name: str | tuple[str, str],
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        total: float | None,
        repeat: bool,
    ) -> None:
        super().__init__(thread, self._call, name if isinstance(name, str) else name[1])
        self._name = name
        self._arguments = arguments
        self._timeout = timeout
        self._total = total
        self._repeat = repeat
        self._owner: TaskOwner | None = None
        self._begun: BegunCall | None = None

    def _host(self) -> AsyncHost:
        host = self._thread.host
        assert host is not None
        return host

    def _call(self) -> Coroutine[Any, Any, CallToolResult]:
        return self._host().call(
            self._name, self._arguments, timeout=self._timeout, total=self._total, repeat=self._repeat
        )

    def _start(self, owner: TaskOwner) -> None:
        self._owner = owner
        begun = self._host().begin_call(
            self._name,
            self._arguments,
            self._timeout,
            self._total,
            waiter=_Answer(self),
            context=self._context,
        )
        if begun is None:
            self._start_task(owner, self._make)
        else:
            self._begun = begun

    def _cancel_now(self) -> None:
        if self._begun is not None:
            self._begun.cancel(self._why_cancelled())
        super()._cancel_now()

    # As the waiter of a request (``_Answer``), on the loop

    def answered(self, answer: Raw) -> None:
        """The answer came."""
        if len(memoryview(answer)) < LARGE:
            result = plain_result(answer)
            if result is not None:
                self._begun = None
                self.settle(result, None)
                return
        self._carry_on(answer)

    def failed(self, error: BaseException) -> None:
        """It ended otherwise."""
        if isinstance(error, NotSent | AmbiguousDelivery) and not self._cancelled:
            self._carry_on(error)
        else:
            self._begun = None
            self.settle(None, error)

    def _carry_on(self, outcome: Raw | CallError) -> None:
        """What is more than a plain answer, or may be sent again, is a task's work."""
        begun, self._begun = self._begun, None
        assert begun is not None and self._owner is not None
        if self._owner.closed:
            error = outcome if isinstance(outcome, CallError) else HostClosedError("this host is closed")
            self.settle(None, error)
            return
        self._start_task(self._owner, lambda: begun.carry_on(outcome, repeat=self._repeat))


class _Answer:
    """Where the session puts the outcome of a request that a hand-over sent (``session/pending.py``, Waiter)."""

    __slots__ = ("_done", "_handover")

    def __init__(self, handover: CallHandover) -> None:
        self._handover = handover
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, answer: Raw, /) -> None:
        self._done = True
        self._handover.answered(answer)

    def set_exception(self, error: BaseException, /) -> None:
        self._done = True
        self._handover.failed(error)
