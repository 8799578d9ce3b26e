"""Checks of what callers hand in, one place each: for all doors, so that all refuse the same."""

from __future__ import annotations

from numbers import Real

from .errors import MisuseError

__all__ = ["LONGEST", "seconds"]

LONGEST = 7 * 24 * 3600.0
"""The longest wait there is, in seconds: a week. What is longer, infinity too, is taken for this."""


def seconds(value: object, name: str) -> float:
    """A time to wait, from a caller: a real number of seconds, 0 or more, at most ``LONGEST``.

    Not-a-number compares with nothing, so a single one in the queue of timers would stop those of other calls.

    Raises:
        MisuseError: it is no number, not-a-number or negative.
    """
    # ``not >= 0`` is true of not-a-number, too.
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= 0:  # type: ignore[operator]
        raise MisuseError(f"{name} is a number of seconds, 0 or more; not {_shown(value)}")
    return LONGEST if value >= LONGEST else float(value)  # type: ignore[operator]


def _shown(value: object) -> str:
    """A value in the text of an error; what is no number may be long, or a secret."""
    if type(value) is float or (type(value) is int and value > -1e9):
        return f"{value:g}"
    return f"one of type {type(value).__name__}"
