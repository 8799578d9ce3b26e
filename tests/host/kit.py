"""What the tests of hosts share: events that can be awaited, bounds that end soon, and child Pythons.

``Events`` is an ``on_event`` listener. A child Python runs a short program against the same package and the same
fault kit, so that what an interpreter does at its end can be looked at from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from moorings import Bounds, StateChanged

ROOT = Path(__file__).resolve().parents[2]

SOON = Bounds(stop_eof=0.3, stop_term=0.3, stop_kill=2.0, cooldown=0.0)
"""For servers that must be forced: TERM after 0.3 s, KILL after 0.6 s."""
STUBBORN = {"ignore_eof": True, "ignore_term": True}


class Events:
    """Keeps the events of a host and lets a test wait for one, on its loop or from another thread."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._news = threading.Condition()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def __call__(self, event: Any) -> None:
        with self._news:
            self.all.append(event)
            self._news.notify_all()
        for met, future in self._waiting:
            if not future.done() and met():
                future.set_result(None)

    def states(self, server: str) -> list[str]:
        """The states that a server came into, in order."""
        return [e.new for e in self.all if isinstance(e, StateChanged) and e.server == server]

    def events(self, server: str) -> list[str]:
        """What moved it, in order."""
        return [e.event for e in self.all if isinstance(e, StateChanged) and e.server == server]

    def _met(self, server: str, state: str, count: int) -> bool:
        return self.states(server).count(state) >= count

    async def seen(self, server: str, state: str, count: int = 1, timeout: float = 10.0) -> None:
        """Wait, on the loop of the host, until the server came into this state that often."""
        if self._met(server, state, count):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((lambda: self._met(server, state, count), future))
        async with asyncio.timeout(timeout):
            await future

    def wait_for(self, server: str, state: str, count: int = 1, timeout: float = 10.0) -> None:
        """Wait from another thread until the server came into this state that often."""
        with self._news:
            assert self._news.wait_for(lambda: self._met(server, state, count), timeout), self.states(server)


@contextlib.contextmanager
def took(at_least: float, at_most: float) -> Iterator[None]:
    """The block takes so many seconds; the upper limit has 1 s of slack where it stands for a bound."""
    began = time.monotonic()
    yield
    elapsed = time.monotonic() - began
    assert at_least <= elapsed <= at_most, f"{elapsed:.3f} s, wanted {at_least} to {at_most}"


async def threads_end(name: str) -> None:
    """Wait until no thread of this name runs."""
    for thread in threading.enumerate():
        if thread.name == name:
            await asyncio.to_thread(thread.join, 10)


def in_thread(work: Callable[..., Any], *args: Any) -> Worker:
    """Begin work in a thread of its own; ``join`` gives its result or raises what it raised."""
    worker = Worker(work, args)
    worker.start()
    return worker


class Worker(threading.Thread):
    def __init__(self, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(name=f"test-{getattr(work, '__name__', 'work')}", daemon=True)
        self._work, self._args = work, args
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._work(*self._args)
        except BaseException as error:  # handed to the test, which joins
            self._error = error

    def outcome(self, timeout: float = 20.0) -> Any:
        """Its result, or the exception as a value."""
        self.join(timeout)
        assert not self.is_alive(), f"{self.name} hangs"
        return self._error if self._error is not None else self._result

    def result(self, timeout: float = 20.0) -> Any:
        """Its result; raises what it raised."""
        outcome = self.outcome(timeout)
        if self._error is not None:
            raise self._error
        return outcome


def loop_threads() -> list[threading.Thread]:
    """The loop threads that live."""
    return [thread for thread in threading.enumerate() if thread.name == "moorings-loop"]


# --- child Pythons ------------------------------------------------------------------------------------------------


def child_environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def child_command(program: str, *args: object) -> list[str]:
    """A Python that tells of everything that was dropped instead of ended."""
    tell = ("-W", "always::ResourceWarning", "-W", "always::RuntimeWarning", "-X", "faulthandler")
    return [sys.executable, *tell, "-c", program, *(str(each) for each in args)]


def run_program(program: str, *args: object, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        child_command(program, *args),
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
