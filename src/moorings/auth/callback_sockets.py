"""The sockets at which a browser can come back: both families of this machine, on one port (RFC 8252 §7.3, §8.3).

A browser may take either family for ``localhost``: who listens on the one that was left out gets the login's answer.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection

from .._urls import address_of, plain_host
from .faults import LoginFault

__all__ = ["IPV4", "IPV6", "PortTaken", "open_sockets"]

IPV4, IPV6 = "127.0.0.1", "::1"

BACKLOG = 128
"""Connections that wait until they are accepted."""
TRIES = 20
"""Ports that are tried until one is free in both families."""

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
"""The machine does not have this address, or family."""


class PortTaken(LoginFault):
    """The port that the answer has to come to cannot be had. The attempt has not begun."""

    def __init__(self, host: str, port: int, reason: str, *, fix: str | None = None) -> None:
        self.host = host
        self.port = port
        super().__init__(reason, fix=fix)


def open_sockets(host: str, port: int, held: Collection[str]) -> dict[str, socket.socket]:
    """Listening sockets for a host, by address and on one port, but for the addresses that are held already.

    Raises:
        PortTaken: the port is in use, or not ours to have.
        LoginFault: the machine does not have this host.
    """
    given = address_of(plain_host(host))
    if given is None:
        addresses, must, spare = (
            [IPV4, IPV6],
            "",
            "",
        )  # RFC 6761 §6.3; one family may be missing, not another's
    else:
        must = str(given)
        spare = {IPV4: IPV6, IPV6: IPV4}.get(must, "")
        addresses = [must, spare] if spare else [must]
    try:
        for _ in range(TRIES if port == 0 else 0):
            try:
                # A port that is anybody's choice is one that is free in both families.
                return _open_all(addresses, 0, held, must, "")
            except OSError as fault:
                if fault.errno != errno.EADDRINUSE:
                    break
        return _open_all(addresses, port, held, must, spare)
    except OSError as fault:
        raise _fault(host, port, fault) from None


def _open_all(
    addresses: list[str], port: int, held: Collection[str], must: str, spare: str
) -> dict[str, socket.socket]:
    """``must`` is the address that cannot be left out, ``spare`` the one that can for whatever reason."""
    opened: dict[str, socket.socket] = {}
    problem: OSError | None = None
    try:
        for address in addresses:
            if address in held:
                continue
            try:
                opened[address] = _listening(address, port)
            except OSError as fault:
                if address == must or (address != spare and fault.errno not in _NOT_HERE):
                    raise
                problem = fault
            else:
                port = port or opened[address].getsockname()[1]
        if problem is not None and not opened and not set(addresses) & set(held):
            raise problem
    except BaseException:  # boundary: none is left open; raised again
        for sock in opened.values():
            sock.close()
        raise
    return opened


def _listening(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # What is left of connections that are over keeps no port. (On Windows the same name means to share it.)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:  # boundary: it is not left open; raised again
        sock.close()
        raise
    return sock


def _fault(host: str, port: int, fault: OSError) -> LoginFault:
    if fault.errno == errno.EADDRINUSE:
        reason = f"port {port} of {host} is in use already" if port else f"{host} has no free port"
        fix = (
            "end the program that has it, or use another port (a registered redirect URI has to have it too)"
        )
        return PortTaken(host, port, f"{reason}, so the login could not come back", fix=fix)
    if fault.errno in (errno.EACCES, errno.EPERM):
        fix = "use a port from 1024 up" if 0 < port < 1024 else "use another port"
        reason = f"the system does not let this user listen on port {port} of {host}"
        return PortTaken(host, port, reason, fix=fix)
    if fault.errno in _NOT_HERE:
        return LoginFault(
            f"this machine has no {host} to listen on", fix="set auth.redirect_host to one it has"
        )
    return LoginFault(f"no listening on port {port} of {host}: {os.strerror(fault.errno or 0)}")
