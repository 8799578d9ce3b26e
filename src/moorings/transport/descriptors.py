"""The descriptors that a forked child of the host must not hold: our ends of the servers' pipes.

A child that lives on with them would keep a server's stdin open, so that the end of stdin, which asks the server to
stop, would never come. Each end is noted when it is made and let go of when it is closed; after a fork the child
closes what is noted. It leaves the event loop alone: its selector is shared with the parent's.
"""

from __future__ import annotations

import contextlib
import os
import threading

__all__ = ["close", "pipe"]

_held: set[int] = set()
_lock = threading.RLock()
"""Held while a descriptor is made and noted, and by a fork: no other thread forks in between. Reentrant, since a signal
handler may come here, or fork."""


def pipe() -> tuple[int, int]:
    """A pipe whose ends a forked child closes at once; both are to be closed with ``close``."""
    with _lock:
        ends = os.pipe()
        _held.update(ends)
        return ends


def close(fd: int) -> None:
    """Close a descriptor that may be one of these."""
    # First it is forgotten: the number is given away again as soon as it is closed.
    with _lock:
        _held.discard(fd)
        os.close(fd)


def _close_inherited() -> None:
    _lock.release()
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_inherited)
