"""What a host reports: who is ready, and what its close took. Plain values."""

from __future__ import annotations

import msgspec

from ..transport.base import StopRecord

__all__ = ["CloseReport", "Readiness"]


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Who is ready and who is not, at one moment."""

    ready: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    """Still starting: slow is not failed."""
    failed: dict[str, str] = {}
    """Name → why it is not ready."""
    idle: tuple[str, ...] = ()
    """Lazy servers that nobody has used yet, and disabled ones."""

    @property
    def all_ready(self) -> bool:
        """True if nobody is pending or failed."""
        return not self.pending and not self.failed


class CloseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a close took."""

    elapsed: float
    """Seconds."""
    servers: dict[str, StopRecord] = {}
    """Server that was running → what its stop took."""
    stuck: tuple[str, ...] = ()
    """User code (handlers, callbacks) that would not end."""

    @property
    def forced(self) -> dict[str, tuple[str, ...]]:
        """Servers that did not end by themselves → the steps it took."""
        return {name: record.forced for name, record in self.servers.items() if record.forced}

    @property
    def survivors(self) -> tuple[int, ...]:
        """Processes that would not die."""
        return tuple(pid for record in self.servers.values() for pid in record.survivors)

    @property
    def unanswered(self) -> dict[str, tuple[str, ...]]:
        """Servers that did not answer what they were asked at the end → what that was."""
        return {name: record.unanswered for name, record in self.servers.items() if record.unanswered}

    @property
    def clean(self) -> bool:
        """True if nothing had to be forced, every end was answered, and nothing was left."""
        return not self.forced and not self.unanswered and not self.survivors and not self.stuck
