"""The stdio transports that live in this process: for the two moments in which no owner can act.

At the end of the interpreter a transport may still be there whose loop runs no more (an ``AsyncHost`` that was never
closed): its process is ended here, side by side with the others and within one bound. After a fork the child closes
every descriptor of the parent's transports, so that a stop by end of file and the death watch work while it lives on.
"""

from __future__ import annotations

import atexit
import os
import time

from .._tasks import disown_all
from .stdio import StdioTransport
from .watch import watch

__all__ = ["EXIT_STEP"]

EXIT_STEP = 1.0
"""Seconds for each step of the ladder at the end of the interpreter."""


def _end_all() -> None:
    """Close stdin, wait, TERM, wait, KILL, wait, reap: all transports at once."""
    left = [t for t in StdioTransport.live if not t.loop_runs]
    for transport in left:
        transport.abandon()
    for step in (None, "terminate", "kill"):
        if step is not None:
            for transport in left:
                getattr(transport, step)()
        until = time.monotonic() + EXIT_STEP
        while left and time.monotonic() < until:
            left = [t for t in left if not t.gone()]
            if left:
                time.sleep(0.005)
        if not left:
            break
    if not any(t.loop_runs for t in StdioTransport.live):
        watch.end_at_exit()
    disown_all()


def _forget_after_fork() -> None:
    for transport in list(StdioTransport.live):
        transport.disown_after_fork()
    StdioTransport.live.clear()
    watch.forget_after_fork()
    disown_all()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
