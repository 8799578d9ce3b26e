"""The clock of one call: a limit that progress extends, under a hard total, standing still while a person is asked.

Points of time are the event loop's. Pure arithmetic: the session arms the timers.
"""

from __future__ import annotations

import msgspec

__all__ = ["CallClock"]


class CallClock(msgspec.Struct, gc=False):
    """When one call must end. Made at the public door by ``of``, carried down; shared by all legs of the call.

    A struct, because one is made for each call.
    """

    started: float
    silence: float
    """Seconds without a sign of progress."""
    total: float
    """Seconds in all."""
    hard: float
    """The end that progress does not move."""
    expires: float
    """The end, if nothing happens."""
    why: str = ""
    """What set the hard limit, if not the call itself."""
    asked_for: float = 0.0
    """Seconds that questions took so far."""
    paused_at: float | None = None
    """Since when a question of the server is being answered, or a person is at a login."""
    login: float = 0.0
    """Seconds for which it may stand still beyond its total, as a person is at a login."""

    @classmethod
    def of(
        cls, now: float, silence: float, total: float, *, until: float | None = None, why: str = ""
    ) -> CallClock:
        """A clock that begins at ``now``, and ends by ``until`` whatever its own limits say (``why`` names that)."""
        hard = now + total
        if until is None or until >= hard:
            return cls(now, silence, total, hard, min(now + silence, hard))
        return cls(now, silence, total, until, min(now + silence, until), why)

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
        return self.paused_at is not None

    def next_look(self) -> float:
        """When to look at it next: where it runs out if nothing happens. It stands still for a bounded time only."""
        if self.paused_at is None:
            return self.expires
        moved = self.expires + self._credit()
        return min(moved, self.hard) if self.why else moved

    def _credit(self) -> float:
        """Seconds for which it may still stand still: in all as long as the total of the call, so that a server that
        asks for ever does not hold its caller for ever."""
        return max(0.0, self.total + self.login - self.asked_for)

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
        running = min(now - self.paused_at, self._credit()) if self.paused_at is not None else 0.0
        return now - self.started - self.asked_for - running

    def progress(self, now: float) -> None:
        """A sign of progress: the silence starts anew, the total does not."""
        if not self.paused:
            self.expires = min(now + self.silence, self.hard)

    def pause(self, now: float) -> None:
        """A question begins. Questions have a limit of their own, so the pause is bounded too."""
        if self.paused_at is None:
            self.paused_at = now

    def resume(self, now: float) -> None:
        """The last open question is answered: both limits move by the time it took, as long as there is credit."""
        if self.paused_at is not None:
            took = min(now - self.paused_at, self._credit())
            self.paused_at = None
            self.asked_for += took
            self.expires += took
            # The deadline of a run is a promise to somebody else: no question moves it.
            if not self.why:
                self.hard += took
            self.expires = min(self.expires, self.hard)
