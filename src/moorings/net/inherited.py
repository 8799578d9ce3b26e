"""The sockets that a forked child of the host must not hold.

A child that lives on with them would keep a connection open that its parent has ended, so that the server would go on
waiting. Each socket is noted when it is made, before it connects, and counts until it is closed; after a fork the child
puts ``/dev/null`` in the place of each, so that objects it inherited may still close their number. Nothing is said on
the connections.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Any

__all__ = ["hold", "make"]

_held: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""By object and not by number, which is given to another as soon as it is closed: a closed socket says so itself."""


def make(address: tuple[Any, ...]) -> socket.socket:
    """A new socket for an entry of ``getaddrinfo``, as aiohttp's ``socket_factory`` wants one."""
    family, kind, protocol, *_ = address
    return hold(socket.socket(family, kind, protocol))


def hold(sock: socket.socket) -> socket.socket:
    """Note a socket."""
    _held.add(sock)
    return sock


def _replace() -> None:
    numbers = [fd for fd in (sock.fileno() for sock in _held) if fd >= 0]
    _held.clear()
    if not numbers:
        return
    with contextlib.suppress(OSError):  # no descriptor is to be had: they stay what they are
        null = os.open(os.devnull, os.O_RDWR)
        for fd in numbers:
            os.dup2(null, fd, inheritable=False)
        os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace)
