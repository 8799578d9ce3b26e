"""Names to addresses, for the pools of one ``Net``: each lookup in a thread that holds up nobody's end.

``loop.getaddrinfo`` runs in the loop's executor, and its threads are waited for when the loop ends, however long a
name server keeps silent. Imported with aiohttp only.
"""

from __future__ import annotations

import asyncio
import socket
import threading

from aiohttp.abc import AbstractResolver, ResolveResult

from .._tasks import TaskOwner, run_in_thread

__all__ = ["KEPT", "Resolver"]

KEPT = 10.0
"""Seconds for which an answer is used again."""
MOST_KEPT = 1000

Key = tuple[str, int, int]


class Resolver(AbstractResolver):
    """Made and closed by ``Net``. Asks the system; callers that want the same name at one time share a lookup."""

    def __init__(self, owner: TaskOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._known: dict[Key, tuple[float, list[ResolveResult]]] = {}
        self._asking: dict[Key, asyncio.Task[list[ResolveResult]]] = {}
        self._left: set[threading.Thread] = set()
        """Lookups that nobody waits for any more."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """
        Raises:
            OSError: there is no such name, or no answer.
        """
        key = (host, port, int(family))
        known = self._known.get(key)
        if known is not None and self._loop.time() < known[0]:
            return known[1]
        task = self._asking.get(key)
        if task is None:
            task = self._owner.start(self._ask(key), name=f"look up {host[:100]}")
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        # A caller that gives up leaves the lookup to the others.
        return await asyncio.shield(task)

    async def _ask(self, key: Key) -> list[ResolveResult]:
        found = await run_in_thread(_look_up, *key, name="moorings-dns", left=self._left)
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[key] = (self._loop.time() + KEPT, found)
        return found

    async def close(self) -> None:
        """The tasks are their owner's."""
        self._known.clear()


def _look_up(host: str, port: int, family: int) -> list[ResolveResult]:
    try:
        infos = socket.getaddrinfo(
            host,
            port,
            family=family,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,
            flags=socket.AI_ADDRCONFIG,
        )
    except UnicodeError:
        # No name of the DNS can look like this.
        raise socket.gaierror(socket.EAI_NONAME, "not a host name") from None
    found: list[ResolveResult] = []
    for kind, _, _, _, place in infos:
        address = str(place[0])
        if kind == socket.AF_INET6 and len(place) == 4 and place[3] and "%" not in address:
            address += f"%{place[3]}"
        found.append(
            ResolveResult(
                hostname=host,
                host=address,
                port=int(place[1]),
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
        )
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
    return found
