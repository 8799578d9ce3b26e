"""Faults that a ``MemoryServer`` has at a request that a test chose, and gates a test waits at.

Made by the test, handed to ``MemoryServer.fail_next``, which keeps them until they have struck. No fault has a time in
it: what is held is held until the test lets it go. All methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from .._flag import Flag
from ..errors import MisuseError

__all__ = ["Die", "Fault", "Gate", "Hold", "Malformed", "NoAnswer", "Refuse"]

PATIENCE = 10.0
"""Seconds for which a blocking test waits, unless it says otherwise."""


class Gate:
    """Something that happens once, for which tasks of any loop and any threads may wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._happened = Flag()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_open(self) -> bool:
        """Whether it has happened."""
        return self._happened.is_set()

    def open(self) -> None:
        """It happens. A second time changes nothing."""
        with self._lock:
            self._happened.set()
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            try:
                future.get_loop().call_soon_threadsafe(_let_go, future)
            except RuntimeError:
                # Its loop is closed: nobody waits there any more.
                pass

    def wait(self, timeout: float) -> bool:
        """Block the thread until it has happened, for at most so many seconds. False if it has not."""
        return self._happened.wait(timeout)

    async def opened(self) -> None:
        """Wait until it has happened."""
        with self._lock:
            if self._happened.is_set():
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
        await future


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Fault:
    """Base of the faults.

    Args:
        ran: True if it strikes after the tool has done its work, and before the answer leaves; False if the tool never
            runs.
    """

    def __init__(self, *, ran: bool = False) -> None:
        self.ran = ran
        self._struck = Gate()

    @property
    def has_struck(self) -> bool:
        """Whether it has met its request."""
        return self._struck.is_open

    async def struck(self) -> None:
        """Wait until it has met its request (the first, if it is to strike several times)."""
        await self._struck.opened()

    def wait_struck(self, timeout: float = PATIENCE) -> None:
        """The same, for a thread. Not for the thread of an event loop that should serve the request.

        Raises:
            TimeoutError: it did not happen within so many seconds.
        """
        if not self._struck.wait(timeout):
            raise TimeoutError(f"{self!r} did not strike within {timeout:g} s")

    def meet(self) -> None:
        """It strikes; for the server."""
        self._struck.open()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'struck' if self.has_struck else 'waiting'})"


class Hold(Fault):
    """The request, or with ``ran`` its answer, waits until ``release`` is called."""

    def __init__(self, *, ran: bool = False) -> None:
        super().__init__(ran=ran)
        self._released = Gate()

    def release(self) -> None:
        """Let it go on."""
        self._released.open()

    async def released(self) -> None:
        """Wait for the release; for the server."""
        await self._released.opened()


class Refuse(Fault):
    """The request is refused with a JSON-RPC error, and not run."""

    def __init__(self, code: int = -32603, message: str = "refused by the test", data: Any = None) -> None:
        super().__init__()
        self.code = code
        self.message = message
        self.data = data


class Die(Fault):
    """The connection is lost; with ``ran``, after the tool did its work.

    Args:
        exit_code: what the client is told, as of a program that exited; None for nothing.
        stderr: what the client is told of its last words.
    """

    def __init__(self, *, ran: bool = False, exit_code: int | None = None, stderr: str = "") -> None:
        super().__init__(ran=ran)
        self.exit_code = exit_code
        self.stderr = stderr


class NoAnswer(Fault):
    """There is no answer, ever; the connection lives on."""


class Malformed(Fault):
    """The tool runs, and what comes back is no answer to it.

    Args:
        text: the line that is sent, in which ``{id}`` stands for the id of the request.
        ran: False if the tool does not run.
    """

    def __init__(
        self, text: str = '{"jsonrpc":"2.0","id":{id},"result":"this is no result"}', *, ran: bool = True
    ) -> None:
        super().__init__(ran=ran)
        if "\n" in text:
            raise MisuseError("the text of a malformed answer is one line")
        self.text = text
