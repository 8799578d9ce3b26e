"""Logins that are stepped by hand, for tests: struck at the n-th place where they wait.

``Steps`` counts each wait of each task of the broker while a login runs there, and strikes at one of them: the login
stays at this very place until the strike has reached it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from moorings._tasks import TaskOwner
from moorings.auth.broker import Broker
from moorings.auth.login import LoginAttempt, LoginState
from moorings.auth.service import LoginUnderWay
from moorings.store.files import FileStore


class Stepped:
    """Awaits a coroutine, and tells of each place where it waits; what ``told`` returns is waited for first."""

    def __init__(
        self, work: Coroutine[Any, Any, Any], told: Callable[[Any], asyncio.Future[None] | None]
    ) -> None:
        self._work = work
        self._told = told

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            waits_for = self._work.send(None)
            while True:
                struck: BaseException | None = None
                try:
                    before = self._told(self._work)
                    if before is not None:
                        yield from _first(before, waits_for)
                    yield waits_for
                except BaseException as error:  # boundary: it is the work's
                    struck = error
                waits_for = self._work.send(None) if struck is None else self._work.throw(struck)
        except StopIteration as end:
            return end.value
        finally:
            self._work.close()


def _first(before: asyncio.Future[None], waits_for: asyncio.Future[Any] | None) -> Generator[Any, Any, None]:
    try:
        yield from before
    except asyncio.CancelledError:
        # It is what was waited for that a task cancels first.
        if waits_for is None or not waits_for.cancel():
            raise


def where(work: Any) -> str:
    """The innermost function in which a coroutine waits."""
    names = []
    while work is not None:
        names.append(getattr(work, "__qualname__", type(work).__name__))
        work = (
            getattr(work, "cr_await", None)
            or getattr(work, "ag_await", None)
            or getattr(work, "gi_yieldfrom", None)
        )
    return " > ".join(names)


class Steps:
    """One login under way; ``strike`` is called once, at the wait number ``at``, in the broker's loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, strike: Callable[[], None]) -> None:
        self.count = 0
        self.state: LoginState | None = None
        """Of the attempt, when it was struck or ended."""
        self.place = ""
        """The functions in which it was struck, from the outermost."""
        self.struck = False
        self._at = at
        self._strike = strike
        self._held: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None
        self._last: LoginState | None = None
        steps = self
        log_in, start, to, abandon = Broker._log_in, TaskOwner.start, LoginAttempt._to, LoginUnderWay._abandon

        async def logging_in(broker: Broker, *args: Any) -> Any:
            steps._thread = threading.current_thread()
            return await Stepped(log_in(broker, *args), steps._wait)

        def starting(owner: TaskOwner, work: Any, **options: Any) -> Any:
            if threading.current_thread() is steps._thread and not owner.closed:
                inner = work

                async def stepped() -> Any:
                    return await Stepped(inner, steps._wait)

                work = stepped()
                task = start(owner, work, **options)
                # Cancelled before its first step, it would never see the coroutine in it.
                task.add_done_callback(lambda _: inner.close())
                return task
            return start(owner, work, **options)

        def going(attempt: LoginAttempt, state: LoginState) -> None:
            to(attempt, state)
            steps._last = state

        def abandoning(under_way: LoginUnderWay) -> None:
            abandon(under_way)
            steps.release()

        monkeypatch.setattr(Broker, "_log_in", logging_in)
        monkeypatch.setattr(TaskOwner, "start", starting)
        monkeypatch.setattr(LoginAttempt, "_to", going)
        monkeypatch.setattr(LoginUnderWay, "_abandon", abandoning)

    def release(self) -> None:
        """The strike is there: what was held goes on."""
        if self._held is not None and not self._held.done():
            self._held.set_result(None)

    def _wait(self, work: Any) -> asyncio.Future[None] | None:
        self.count += 1
        if self.count != self._at:
            return None
        self.struck, self.state, self.place = True, self._last, where(work)
        self._held = asyncio.get_running_loop().create_future()
        self._strike()
        return self._held


async def lying_in(folder: Path) -> dict[str, bytes]:
    """What a store in a folder holds, letter by letter, by key."""
    store = FileStore(folder)
    try:
        return {each.key: (await store.load(each.key)) or b"" for each in await store.keys()}
    finally:
        await store.aclose()


def notes(lying: dict[str, bytes]) -> list[str]:
    """The notes of logins that are under way."""
    return [key for key in lying if key.endswith("-login")]
