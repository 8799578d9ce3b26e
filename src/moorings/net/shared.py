"""One ``Net`` for all servers of a host, for as long as any of them uses it.

Made by a host; it holds nothing while no server over HTTP runs, so a host that is dropped without a close leaves no
socket either: its servers end, and the last one that leaves closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Net

__all__ = ["SharedNet"]


class SharedNet:
    """Counts who uses it. ``join`` and ``leave`` come in pairs, on one loop."""

    __slots__ = ("_count", "_environ", "_net")

    def __init__(self, environ: Callable[[], Mapping[str, str]]) -> None:
        self._environ = environ
        self._net: Net | None = None
        self._count = 0

    def join(self) -> Net:
        """What to send with, until ``leave``."""
        if self._net is None:
            from .client import Net

            self._net = Net(self._environ)
        self._count += 1
        return self._net

    async def leave(self) -> None:
        """It is not used any more by one of those that joined; the last one ends it."""
        self._count -= 1
        if self._count == 0 and self._net is not None:
            net, self._net = self._net, None
            await net.aclose()
