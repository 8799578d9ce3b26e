"""How long an answer is fresh, and for whom. Spec: MCP ``server/utilities/caching`` (2026-07-28)."""

from __future__ import annotations

from .._checks import LONGEST

__all__ = ["CACHEABLE", "fresh_until", "may_be_shared"]

CACHEABLE = frozenset(
    (
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "skills/list",
        "skills/get",
    )
)
"""Methods whose complete results say how long they are fresh."""


def fresh_until(received: float, ttl_ms: int | None) -> float:
    """Until when an answer is fresh, on the clock by which it was received at ``received`` seconds; not later than a
    week on. An absent or negative time means: not at all."""
    if ttl_ms is None or ttl_ms <= 0:
        return received
    # Bounded before it is divided: a whole number of a server may be too large for a float.
    return received + min(ttl_ms, int(LONGEST) * 1000) / 1000


def may_be_shared(cache_scope: str | None) -> bool:
    """Whether an answer may be given to callers with another authorization. Only a plain ``public`` allows it."""
    return cache_scope == "public"
