"""Waiting of plain threads that a signal may strike.

Ctrl-C raises between any two steps of the main thread, also in the middle of ``threading.Event.wait``, whose lock it
may leave taken: then nobody can set the event or wait for it again. Here each who waits has a lock of its own, so that
one that is struck holds up nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Flag", "wait_for", "wake"]


def wait_for(waiters: list[threading.Lock], happened: Callable[[], object], timeout: float | None) -> bool:
    """Block until ``wake`` is called with these waiters after it has ``happened``.

    Args:
        waiters: where ``wake`` finds those who wait.
        happened: whether it has; asked once more when this waiter can be found.
        timeout: seconds to wait; None for as long as it takes.

    Returns:
        False if the time passed first.
    """
    gate = threading.Lock()
    gate.acquire()
    waiters.append(gate)
    try:
        return bool(happened()) or gate.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))
    finally:
        waiters.remove(gate)


def wake(waiters: list[threading.Lock]) -> None:
    """Let all go on who wait; call it after it has happened."""
    for waiter in list(waiters):
        try:
            waiter.release()
        except RuntimeError:
            pass  # its thread gave up in this very moment, or was woken already


class Flag:
    """Something that happens once, for which threads may wait: what ``threading.Event`` is for, without its lock."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._set

    def set(self) -> None:
        """It happens. A second time changes nothing."""
        self._set = True
        wake(self._waiters)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has happened, for at most so many seconds. False if it has not."""
        return self._set or wait_for(self._waiters, self.is_set, timeout)

    def _at_fork_reinit(self) -> None:
        """As a part of a ``threading.Thread``: the threads that waited are not in a forked child."""
        self._waiters.clear()
