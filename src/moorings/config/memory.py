"""The specification of a server that is an object in this process, and what that object must be able to do.

Made in code only: no file can name an object. The usual object is ``moorings.testing.MemoryServer``. Plain values, as
in ``spec.py``; the three protocols say how ``transport/memory.py`` and the object speak with each other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..errors import MisuseError
from .spec import ServerSpec

if TYPE_CHECKING:
    import asyncio

__all__ = ["MemoryApp", "MemoryLine", "MemoryPeer", "MemorySpec"]


class MemoryLine(Protocol):
    """The server's end of one connection. For the event loop of the host alone, ``post`` apart."""

    def say(self, data: bytes) -> None:
        """Write to the client. Framed as on stdio: one message a line; said after the end, it is lost."""

    def end(self, reason: str, *, exit_code: int | None = None, stderr: str = "") -> None:
        """The connection is lost, after what was said: the server ``reason``."""

    def run(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run something of the server in a task that is cancelled, and awaited, at the end of the connection.

        Raises:
            ConnectionError: the connection is over; ``work`` is closed.
        """

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Run a function that may block; to be awaited inside of ``run``."""

    def post(self, function: Callable[[], object]) -> None:
        """Call something on the event loop, from whatever thread; at once if this is the loop's. Forgotten if the
        connection is over."""


class MemoryPeer(Protocol):
    """What a server does on one connection. Called on the event loop; returns at once."""

    def hear(self, frame: bytes) -> None:
        """A message of the client came, without its newline."""

    def closed(self) -> None:
        """The connection is over, and nothing more comes. Called once; its tasks are cancelled next."""


@runtime_checkable
class MemoryApp(Protocol):
    """A server in this process. One object may serve several hosts at a time, each on a line of its own."""

    def open_line(self, line: MemoryLine) -> MemoryPeer:
        """A host connects.

        Raises:
            OSError: it is not to be reached.
        """


class MemorySpec(ServerSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that is an object in this process."""

    app: MemoryApp
    """The object."""

    def __post_init__(self) -> None:
        """Lists are taken as tuples; what cannot be meant is refused at once.

        Raises:
            MisuseError: a field of the wrong kind.
        """
        super().__post_init__()
        if not isinstance(self.app, MemoryApp):
            raise MisuseError(f"app is a server object, not {type(self.app).__name__}")

    def fingerprint(self) -> str:
        """Empty: what an object speaks is not remembered beyond its process, where another may bear its name."""
        return ""
