"""The bounds of a server as a file gives them: each with its kind, its unit and whether it may be 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from .problems import KeyPath, Problems, kind_of, shown
from .spec import Bounds
from .units import DURATION_FORM, SIZE_FORM, duration, size

__all__ = ["BOUNDS", "SHORTCUTS", "check_order", "read_bound", "read_bounds", "read_count"]

Kind = Literal["time", "size", "count"]

BOUNDS: dict[str, tuple[Kind, bool]] = {
    "connect": ("time", False),
    "dial": ("time", False),
    "probe": ("time", False),
    "call": ("time", False),
    "total": ("time", False),
    "first_byte": ("time", False),
    "idle": ("time", False),
    "question": ("time", False),
    "stop_eof": ("time", True),
    "stop_term": ("time", True),
    "stop_kill": ("time", True),
    "http_close": ("time", True),
    "headers_command": ("time", False),
    "auth": ("time", False),
    "max_connections": ("count", False),
    "keep_alive": ("time", True),
    "max_message": ("size", False),
    "max_outbox": ("size", False),
    "max_pages": ("count", False),
    "max_rounds": ("count", True),
    "notifications": ("count", False),
    "questions": ("count", True),
    "stderr_tail": ("size", False),
    "log_file": ("size", True),
    "cooldown": ("time", True),
    "cooldown_max": ("time", True),
}
"""Each bound: what it measures, and whether 0 is allowed (no wait, none kept; never "no limit")."""

SHORTCUTS = {"timeout": "call", "connect_timeout": "connect"}
"""Keys of a server entry that set one bound: ``timeout = "2m"`` is ``bounds.call``."""

_MILLISECONDS = 'numbers are seconds here, some other products write milliseconds; say "10m" or the like'


def read_bounds(
    table: Any, path: KeyPath, problems: Problems, *, base: Bounds, server: str | None = None
) -> Bounds:
    """``base`` with the bounds of ``table`` in place of its own; what is wrong is left out and told."""
    if not isinstance(table, dict):
        problems.add(
            path, "bounds are a table of keys", found=kind_of(table), wanted='{"call": "5m"}', server=server
        )
        return base
    given: dict[str, float | int] = {}
    for key, value in table.items():
        if key not in BOUNDS:
            problems.unknown((*path, key), "bound", BOUNDS, word=SHORTCUTS.get(key), server=server)
            continue
        bound = read_bound(key, value, (*path, key), problems, server)
        if bound is not None:
            given[key] = bound
    return msgspec.structs.replace(base, **given)


def check_order(
    bounds: Bounds,
    path: KeyPath,
    problems: Problems,
    *,
    call: KeyPath | None = None,
    server: str | None = None,
) -> None:
    """Tell limits that contradict each other; ``call`` is the key that gave the limit of a call."""
    if bounds.call > bounds.total:
        problems.add(
            call or (*path, "call"),
            "the limit of a call without progress is above that of a call in all ('bounds.total')",
            found=f"{bounds.call:g} s above {bounds.total:g} s",
            wanted="'bounds.total' at least as long",
            fix=f"set 'bounds.total' as well ({_MILLISECONDS})",
            server=server,
        )
    if bounds.cooldown > bounds.cooldown_max:
        problems.add(
            (*path, "cooldown"),
            "the first wait after a failure is above the longest",
            found=f"{bounds.cooldown:g} s above {bounds.cooldown_max:g} s",
            wanted="'bounds.cooldown_max' at least as long",
            server=server,
        )


def read_count(
    value: Any, path: KeyPath, problems: Problems, *, least: int, server: str | None = None
) -> int | None:
    """A whole number, or None and a problem."""
    wanted = f"a whole number, {least} or more"
    if isinstance(value, bool) or not isinstance(value, int):
        problems.add(path, "not a whole number", found=shown(value), wanted=wanted, server=server)
        return None
    if not least <= value <= 1_000_000_000:
        problems.add(path, "out of range", found=shown(value), wanted=wanted, server=server)
        return None
    return value


def read_bound(
    key: str, value: Any, path: KeyPath, problems: Problems, server: str | None
) -> float | int | None:
    """One bound in seconds or bytes or as a count; None and a problem if it is none."""
    kind, zero_allowed = BOUNDS[key]
    if kind == "count":
        return read_count(value, path, problems, least=0 if zero_allowed else 1, server=server)
    form = DURATION_FORM if kind == "time" else SIZE_FORM
    measure: Callable[[Any], float | int] = duration if kind == "time" else size
    try:
        amount = measure(value)
    except ValueError as fault:
        problems.add(path, str(fault), found=shown(value), wanted=form, server=server)
        return None
    if amount == 0 and not zero_allowed:
        problems.add(
            path,
            "0 is no limit here, and this cannot be switched off",
            found=shown(value),
            wanted=form,
            server=server,
        )
        return None
    return amount
