"""Times and sizes as people write them.

``30``, ``1.5``, ``"30s"`` and ``"1h30m"`` are seconds, ``"16MiB"`` is bytes.
"""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = ["DURATION_FORM", "SIZE_FORM", "duration", "size"]

DURATION_FORM = 'seconds as a number, or a text such as "30s", "2m", "1h30m", "500ms"'
SIZE_FORM = 'bytes as a whole number, or a text such as "64KiB", "16MiB"'

LONGEST = 366 * 86400.0
"""A longer time is taken for a mistake: every wait has a bound."""
LARGEST = 1 << 40
"""A larger size is taken for a mistake."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}

_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_TIME_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|d)", re.IGNORECASE)
_TIME = re.compile(rf"(?:{_NUMBER}(?:ms|s|m|h|d))+", re.IGNORECASE)
_PLAIN = re.compile(_NUMBER)
_SIZE = re.compile(rf"({_NUMBER}) ?(b|[kmg]i?b)?", re.IGNORECASE)


def duration(value: Any) -> float:
    """Seconds.

    Raises:
        ValueError: it is no time, negative, not finite or longer than a year. The text says which.
    """
    if isinstance(value, str):
        text = value.strip()
        if _PLAIN.fullmatch(text):
            seconds = float(text)
        elif _TIME.fullmatch(text):
            seconds = sum(float(number) * _SECONDS[unit.lower()] for number, unit in _TIME_PART.findall(text))
        else:
            raise ValueError("a negative time" if text.startswith("-") else "not a time")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a time")
    elif not _finite(value):
        raise ValueError("not a finite time (every wait has a bound)")
    elif value < 0:
        raise ValueError("a negative time")
    else:
        seconds = float(min(value, 2 * LONGEST))
    if seconds > LONGEST:
        raise ValueError("longer than a year")
    return seconds


def size(value: Any) -> int:
    """Bytes.

    Raises:
        ValueError: it is no size, negative, not whole or above 1 TiB. The text says which.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if not match:
            raise ValueError("a negative size" if value.strip().startswith("-") else "not a size")
        amount = float(match.group(1)) * _BYTES[(match.group(2) or "b").lower()]
    elif isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise ValueError("not a size")
    elif value < 0:
        raise ValueError("a negative size")
    else:
        amount = float(min(value, 2 * LARGEST))
    if amount != int(amount):
        raise ValueError("not a whole number of bytes")
    if amount > LARGEST:
        raise ValueError("above 1 TiB")
    return int(amount)


def _finite(value: int | float) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # a huge int is no float at all
