"""The clock of one call: a limit that progress extends, under a hard total, standing still while a person is asked.

Points of time are the event loop's. Pure arithmetic: the session arms the timers.
"""

from __future__ import annotations

__all__ = ["CallClock"]


class CallClock:
    """When one call must end. Made at the public door, carried down; shared by all legs of the call."""

    __slots__ = (
        "_paused_at",
        "asked_for",
        "expires",
        "hard",
        "silence",
        "started",
        "total",
        "why",
    )

    def __init__(
        self, now: float, silence: float, total: float, *, until: float | None = None, why: str = ""
    ) -> None:
        self.started = now
        self.silence = silence
        """Seconds without a sign of progress."""
        self.total = total
        """Seconds in all."""
        self.hard = now + total
        self.why = ""
        """What set the hard limit, if not the call itself."""
        if until is not None and until < self.hard:
            self.hard = until
            self.why = why
        self.expires = min(now + silence, self.hard)
        self._paused_at: float | None = None
        self.asked_for = 0.0
        """Seconds that questions took so far."""

    def fit(self, silence: float, total: float) -> None:
        """Set the limits once the server, and so its bounds, are known. The deadline of a run stays."""
        self.silence, self.total = silence, total
        hard = self.started + total
        if not self.why or hard < self.hard:
            self.hard, self.why = hard, ""
        self.expires = min(self.started + silence, self.hard)

    @property
    def paused(self) -> bool:
        """True while a question of the server is being answered."""
        return self._paused_at is not None

    def next_look(self) -> float:
        """When to look at it next: where it runs out if nothing happens. It stands still for a bounded time only."""
        if self._paused_at is None:
            return self.expires
        moved = self.expires + self._credit()
        return min(moved, self.hard) if self.why else moved

    def _credit(self) -> float:
        """Seconds for which it may still stand still: in all as long as the total of the call, so that a server that
        asks for ever does not hold its caller for ever."""
        return max(0.0, self.total - self.asked_for)

    def ran_out(self, now: float) -> bool:
        """True if the call must end now."""
        return now >= self.next_look()

    def allowed(self) -> float:
        """The limit that ends it next, in seconds since it began (questions not counted)."""
        when = self.hard if self.paused and self.why else self.expires
        # Rounded, so that a limit comes out as it was given and not as a difference of large numbers.
        return round(when - self.started - self.asked_for, 6)

    def limit(self) -> str:
        """What ends it next, in words."""
        if self.expires < self.hard and not (self.paused and self.why):
            return "its limit"
        return self.why or "its total limit"

    def elapsed(self, now: float) -> float:
        """Seconds since it began, questions not counted."""
        running = min(now - self._paused_at, self._credit()) if self._paused_at is not None else 0.0
        return now - self.started - self.asked_for - running

    def progress(self, now: float) -> None:
        """A sign of progress: the silence starts anew, the total does not."""
        if not self.paused:
            self.expires = min(now + self.silence, self.hard)

    def pause(self, now: float) -> None:
        """A question begins. Questions have a limit of their own, so the pause is bounded too."""
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        """The last open question is answered: both limits move by the time it took, as long as there is credit."""
        if self._paused_at is not None:
            took = min(now - self._paused_at, self._credit())
            self._paused_at = None
            self.asked_for += took
            self.expires += took
            # The deadline of a run is a promise to somebody else: no question moves it.
            if not self.why:
                self.hard += took
            self.expires = min(self.expires, self.hard)
