"""Headers that the user gives with each request: fixed ones, those of a function, those of a command.

What a function or a command says is kept until the server answers 401, and no longer than ``KEPT`` seconds; any number
of requests wait for one run of it. Owned by a transport, which ends a run that is under way.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .._tasks import TaskOwner, run_in_thread
from ..config.headers import checked_headers, read_headers_output
from ..errors import MisuseError, MooringsError
from .http_secrets import Secrets, secrets_of

__all__ = ["KEPT", "HeaderFunction", "HeaderSource", "HeadersFailed"]

HeaderFunction = Callable[[], "Mapping[str, str] | Awaitable[Mapping[str, str]]"]

REMEMBERED = 4
KEPT = 300.0
"""Seconds for which headers are kept that a function or a command gave."""


class HeadersFailed(Exception):
    """The headers for a request could not be had; nothing was sent."""


class HeaderSource:
    """Made with the settings of a transport; ``aclose`` ends what runs."""

    def __init__(
        self,
        fixed: Mapping[str, str] | HeaderFunction,
        command: Callable[[], Awaitable[bytes]] | None,
        *,
        limit: float,
    ) -> None:
        self._fixed: Mapping[str, str] = {} if callable(fixed) else fixed
        self._function = fixed if callable(fixed) else None
        self._command = command
        self._limit = limit
        self._owner = TaskOwner("headers")
        self._left: set[threading.Thread] = set()
        self._run: asyncio.Task[dict[str, str]] | None = None
        self._known: dict[str, str] | None = None
        self._given: deque[dict[str, str]] = deque(maxlen=REMEMBERED)
        """What was given of late: a server may still repeat it."""
        self._until = 0.0

    @property
    def dynamic(self) -> bool:
        """True if asking again may give others."""
        return self._function is not None or self._command is not None

    @property
    def at_hand(self) -> Mapping[str, str] | None:
        """The headers, where they can be had without waiting."""
        if not self.dynamic:
            return self._fixed
        if self._known is not None and asyncio.get_running_loop().time() < self._until:
            return self._known
        return None

    @property
    def latest(self) -> Mapping[str, str]:
        """The headers of last time, however old they are; empty if there were none."""
        return self._fixed if self._known is None else self._known

    def secrets(self, url: str) -> Secrets:
        """What must not be shown of requests to a URL with these headers."""
        if not self.dynamic:
            return secrets_of(self._fixed, url)
        every = [self._fixed, *self._given]
        return tuple(
            sorted({each for given in every for each in secrets_of(given, url)}, key=len, reverse=True)
        )

    def forget(self, used: Mapping[str, str]) -> None:
        """A server turned these away: the next request asks anew. Nothing, if that has been done since."""
        if self._known is used:
            self._known = None

    async def get(self) -> Mapping[str, str]:
        """The headers for a request. Raises HeadersFailed."""
        if (ready := self.at_hand) is not None:
            return ready
        if self._run is None or self._run.done():
            self._run = self._owner.start(self._ask(), name="ask for headers")
        run = self._run
        await asyncio.wait({run})
        if run.cancelled():
            raise HeadersFailed("the connection is being closed")
        return run.result()

    async def _ask(self) -> dict[str, str]:
        what = "the function for headers"
        found = dict(self._fixed)
        try:
            async with asyncio.timeout(self._limit):
                if self._function is not None:
                    found.update(
                        checked_headers(await self._call(self._function), "the function for headers")
                    )
                if self._command is not None:
                    what = "headers_command"
                    more = read_headers_output(await self._command())
                    # That of the command counts, in whatever capitals the other is written.
                    small = {name.lower() for name in more}
                    found = {name: value for name, value in found.items() if name.lower() not in small} | more
        except TimeoutError:
            raise HeadersFailed(
                f"{what} gave no headers within {self._limit:g} s (Bounds.headers_command)"
            ) from None
        except MooringsError as error:
            raise HeadersFailed(error.message) from None
        except (
            Exception,
            SystemExit,
            KeyboardInterrupt,
            asyncio.CancelledError,
        ) as error:  # boundary: the user's function or program; its failure is this request's
            me = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                raise
            # What a function says may hold the secret; what is said of the output of a command never does.
            told = (
                str(error)
                if what == "headers_command" and isinstance(error, ValueError)
                else repr(type(error))
            )
            raise HeadersFailed(f"{what} failed: {told}") from error
        self._given.append(found)
        self._known, self._until = found, asyncio.get_running_loop().time() + KEPT
        return found

    async def _call(self, function: HeaderFunction) -> Mapping[str, str]:
        if inspect.iscoroutinefunction(function):
            made: Any = await function()
        else:
            # A plain one may block.
            made = await run_in_thread(function, name="moorings-headers", left=self._left)
            if inspect.isawaitable(made):
                made = await made
        if not isinstance(made, Mapping):
            raise MisuseError(f"the function for headers gave no mapping, but a {type(made).__name__}")
        return made

    async def aclose(self, within: float) -> list[str]:
        """End what runs. Returns the names of what would not end."""
        stuck = await self._owner.aclose(within)
        alive = sum(thread.is_alive() for thread in self._left)
        return [*stuck, *["a function for headers that does not return"] * alive]
