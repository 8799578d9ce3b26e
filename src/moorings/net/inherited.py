"""The sockets that a forked child of the host must not hold.

A child that lives on with them would keep a connection open that its parent has ended, so that the server would go on
waiting. Each socket is noted while its connection is up; after a fork the child puts ``/dev/null`` in the place of
each, so that objects it inherited may still close their number. Nothing is said on the connections.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["hold", "let_go"]

_held: set[int] = set()


def hold(fd: int) -> None:
    """A connection is up on this descriptor."""
    _held.add(fd)


def let_go(fd: int) -> None:
    """It is about to be closed."""
    _held.discard(fd)


def _replace() -> None:
    if not _held:
        return
    with contextlib.suppress(OSError):  # no descriptor is to be had: they stay what they are
        null = os.open(os.devnull, os.O_RDWR)
        for fd in _held:
            os.dup2(null, fd, inheritable=False)
        os.close(null)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace)
