"""The logger ``moorings``, and how what repeats is folded in it.

What a server says or does wrong, it may do a thousand times a second: none of it may fill the log of the program.
"""

from __future__ import annotations

import logging

__all__ = ["Fold", "Told", "log"]

log = logging.getLogger("moorings")
# A program that has not set up logging gets no lines on its stderr from a library.
log.addHandler(logging.NullHandler())


class Fold:
    """Counts what repeats and says which are worth a line in the log: the 1st, 2nd, 4th, 8th ... of them."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def due(self) -> bool:
        """Count one more; True if it is to be told."""
        self.count += 1
        return self.count & (self.count - 1) == 0


class Told:
    """Remembers what was told, so that each text is told once, and no more than ``limit`` texts in all."""

    __slots__ = ("_limit", "_texts")

    def __init__(self, limit: int = 50) -> None:
        self._limit = limit
        self._texts: set[str] = set()

    def level(self, text: str) -> int:
        """The level at which to say it now: a warning the first time, else one that is off as a rule."""
        text = text[:300]
        if text in self._texts or len(self._texts) >= self._limit:
            return logging.DEBUG
        self._texts.add(text)
        return logging.WARNING
