"""Ports for what a test starts by number.

They lie below the range from which the system takes its own: otherwise another test's listener can have the port by
the time it is used, and a connection to a port where nobody listens can even meet itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket

from tests.faults import procs

__all__ = ["free_port", "listens_here"]

FIRST, LAST, EACH = 20_000, 31_999, 500
"""Each process of a run side by side has its own part."""

_worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "0")) or 0)
_next = random.randrange(EACH)


def free_port() -> int:
    """A port on which nobody listens, and which this process gave to nobody else for some hundred calls."""
    global _next
    start = FIRST + (_worker * EACH) % (LAST - FIRST + 1 - EACH)
    for _ in range(EACH):
        port = start + _next
        _next = (_next + 1) % EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"no port is free from {start} to {start + EACH}")


def listens_here(port: int) -> bool:
    """Whether a socket of this process, or of one below it, listens on a port.

    Not whether it could be bound: a port that was let go of the system may have given to another test by now.
    """
    ours = set()
    for pid in (os.getpid(), *procs.descendants()):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile, as that of the listing itself
                    ours.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue  # a machine without IPv6
        with open(table) as file:
            for line in file.read().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if (
                    state == "0A"
                    and int(local.rpartition(":")[2], 16) == port
                    and f"socket:[{rest[5]}]" in ours
                ):
                    return True
    return False
