"""Ownership of tasks: the one place where a task is started (law 1).

A ``TaskOwner`` starts tasks, keeps them, and awaits their end. ``outlast`` waits through any number of native
cancellations, for the work that must be done whoever gives up on it. A plain function of the user's that may block
runs in a thread that is joined when it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["TaskOwner", "disown_all", "outlast", "put_back_cancellation", "run_in_thread"]

T = TypeVar("T")
_log = logging.getLogger("moorings")


class TaskOwner:
    """Owns tasks: made by the object whose work they do, ended by its ``aclose``; nothing is left after that.

    A task that ends by an exception that nobody awaited is logged once, with its name.
    """

    __slots__ = ("__weakref__", "_closed", "_tasks", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        _owners.add(self)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def closed(self) -> bool:
        """True once it starts nothing more."""
        return self._closed

    def start(
        self,
        work: Coroutine[Any, Any, T],
        *,
        name: str,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Start a task that this owner ends.

        Raises:
            RuntimeError: the owner is closed; the coroutine is closed too, so that nothing complains of it.
        """
        if self._closed:
            work.close()
            raise RuntimeError(f"{self.name} is closed: it starts nothing more")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}: {name}", context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("task %s ended by %r", task.get_name(), error)

    async def aclose(self, within: float = 5.0) -> list[str]:
        """Cancel what still runs and await its end, through any cancellation of the caller.

        ``within`` is in seconds. Returns the names of tasks that did not end in time (foreign code that swallows its
        cancellation); they stay owned, and end when that code does. For owners' own tasks: a cancellation that came
        meanwhile is put back, and strikes at the next wait.
        """
        self._closed = True
        me = asyncio.current_task()
        waiting = {task for task in self._tasks if task is not me}
        for task in waiting:
            # One that was cancelled already is putting its things away: that is not to be interrupted.
            if not task.cancelling():
                task.cancel()
        now = asyncio.get_running_loop().time()
        cancelled = False
        for task in waiting:
            _, was_cancelled = await outlast(task, now + within / 2)
            cancelled = cancelled or was_cancelled
        for task in waiting:
            # Whoever swallowed the first one is asked again.
            task.cancel()
        for task in waiting:
            _, was_cancelled = await outlast(task, now + within)
            cancelled = cancelled or was_cancelled
        if cancelled:
            put_back_cancellation()
        stuck = [task for task in waiting if not task.done()]
        for task in stuck:
            # They are reported here; a loop that closes over them has nothing to add.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return sorted(task.get_name() for task in stuck)

    async def drained(self, when: float) -> None:
        """Wait until all but the calling task have ended by themselves, or until the loop's time ``when``."""
        me = asyncio.current_task()
        for task in [task for task in self._tasks if task is not me]:
            await outlast(task, when)

    def disown(self) -> None:
        """The loop of these tasks runs no more, or is another process's: they must not complain of having no end."""
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._closed = True


_owners: weakref.WeakSet[TaskOwner] = weakref.WeakSet()


def disown_all() -> None:
    """For the two moments in which no loop of this process runs on: a fork's child, and the interpreter's end.

    Nothing is cancelled or swept here; what cannot run any more is only kept from complaining.
    """
    for owner in list(_owners):
        owner.disown()


async def outlast(work: asyncio.Future[Any], when: float) -> tuple[bool, bool]:
    """Wait for ``work`` until the loop's time ``when``, whatever cancels the waiting task meanwhile.

    Returns whether the work is done, and whether the waiter was cancelled while it waited: the caller finishes its
    own work first, and then puts the cancellation back. ``work`` itself is never cancelled here.
    """
    loop = asyncio.get_running_loop()
    cancelled = False
    while not work.done() and loop.time() < when:
        gate: asyncio.Future[None] = loop.create_future()

        def release(_: object = None, gate: asyncio.Future[None] = gate) -> None:
            if not gate.done():
                gate.set_result(None)

        work.add_done_callback(release)
        timer = loop.call_at(when, release)
        try:
            await gate
        except asyncio.CancelledError:
            cancelled = True
        finally:
            timer.cancel()
            work.remove_done_callback(release)
    return work.done(), cancelled


def put_back_cancellation() -> None:
    """After work that outlasted a cancellation: let the cancellation strike at the task's next wait, or at its end."""
    task = asyncio.current_task()
    if task is not None:
        # The count of requests stays as it was, so that an outer ``asyncio.timeout`` still knows its own.
        task.uncancel()
        task.cancel()


async def run_in_thread(
    function: Callable[..., T], *args: Any, name: str, left: set[threading.Thread] | None = None
) -> T:
    """Run a function that may block, with the caller's context variables, in a thread of its own.

    If the waiter is cancelled the thread goes on until the function returns (nothing can end it from outside); it is
    a daemon thread, so that it can never hold up the end of the interpreter. ``left`` holds the threads that go on
    without a waiter, for as long as they do.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    returned = False

    def settle(result: T | None, error: BaseException | None) -> None:
        nonlocal returned
        returned = True
        if left is not None:
            left.discard(thread)
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args)
        except (
            Exception,
            asyncio.CancelledError,
        ) as problem:  # boundary: what the user's function raises is its outcome
            error = problem
        except BaseException as problem:  # boundary: an exit in there ends that function, and not the loop
            error = RuntimeError(f"it raised {problem!r}")
            error.__cause__ = problem
        if isinstance(error, StopIteration):
            # A future takes none.
            error, error.__cause__ = RuntimeError(f"it raised {error!r}"), error
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            # The loop is closed: nobody waits for this any more.
            pass

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        return await outcome
    finally:
        if outcome.done() and not outcome.cancelled():
            thread.join()
        elif left is not None and not returned:
            left.add(thread)
