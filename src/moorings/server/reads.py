"""Resources that were read and are still fresh by the server's own word (``ttlMs``); the modern era alone says so.

Owned by a server and emptied with each generation, so that what one authorization read is never given to another. What
the server calls changed is forgotten at once. Pure but for what it holds. Source: MCP ``server/utilities/caching``.
"""

from __future__ import annotations

from collections.abc import Callable

from ..wire.caching import fresh_until
from ..wire.types import ReadResourceResult

__all__ = ["Reads"]

MOST = 64
"""Resources that are kept."""
LARGEST = 1024 * 1024
"""Characters of a resource that is kept."""


class Reads:
    """Results by URI, each until it is not fresh any more."""

    __slots__ = ("_kept", "_now", "forgotten")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: dict[str, tuple[float, ReadResourceResult]] = {}
        self.forgotten = 0
        """How often anything was forgotten: what was asked for before that may be the old."""

    def get(self, uri: str) -> ReadResourceResult | None:
        """The result, if it is fresh."""
        kept = self._kept.get(uri)
        if kept is None:
            return None
        until, result = kept
        if self._now() < until:
            return result
        del self._kept[uri]
        return None

    def put(self, uri: str, result: ReadResourceResult, asked_at: int) -> None:
        """Keep a result as long as its server allows, unless something was forgotten since it was asked for: then it
        may be what was before the change, or of an earlier generation. ``asked_at`` is what ``forgotten`` was then."""
        if asked_at != self.forgotten:
            return
        now = self._now()
        until = fresh_until(now, result.ttl_ms)
        if until <= now or sum(len(part.text or part.blob or "") for part in result.contents) > LARGEST:
            return
        self._kept.pop(uri, None)
        self._kept[uri] = (until, result)
        while len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]

    def forget(self, uri: str | None = None) -> None:
        """This one changed; None for all."""
        self.forgotten += 1
        if uri is None:
            self._kept.clear()
        else:
            self._kept.pop(uri, None)
