"""Runs what a verb does in an event loop, so that a signal ends it in order, as Ctrl-C does.

TERM and HUP end a command by an exception, wherever it is (``app.py``). In a loop that would be in the middle of some
task, which takes it for its own failure. While a loop runs they cancel what was begun there, and count at its end.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")
_Handler = Callable[[int, FrameType | None], Any]


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``. Raises what the handler of a signal raises that came meanwhile."""
    struck: list[tuple[int, _Handler]] = []
    try:
        return asyncio.run(_whole(main, struck))
    finally:
        main.close()
        for number, handler in struck[:1]:
            handler(number, None)


async def _whole(main: Coroutine[Any, Any, T], struck: list[tuple[int, _Handler]]) -> T:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    before: dict[int, _Handler] = {}

    def end(number: int) -> None:
        struck.append((number, before[number]))
        task.cancel()

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        handler = signal.getsignal(number) if number is not None else None
        if number is None or not callable(handler):
            continue
        with suppress(
            NotImplementedError, ValueError, RuntimeError
        ):  # not on this system, or not in this thread
            before[number] = handler
            loop.add_signal_handler(number, end, number)
    try:
        return await main
    finally:
        for number, handler in before.items():
            with suppress(NotImplementedError, ValueError):
                if loop.remove_signal_handler(number):
                    signal.signal(number, handler)
