"""The blocking twin of ``Run``. The run itself lives on the loop; the block is in the caller's thread."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .._checks import seconds
from ..errors import CallError, HostClosedError, MisuseError
from ..wire.types import CallToolResult
from .async_host import AsyncHost
from .run import Run, current_run

if TYPE_CHECKING:
    from .blocking import Host

__all__ = ["BlockingRun"]


class BlockingRun:
    """One agent run of blocking code: ``with host.run(timeout=…) as run``; calls of the host made inside belong to it.

    At its deadline the calls in flight end as ``CallTimeout``, and ``RunTimeout`` comes out of the block. Blocking code
    that waits for something else cannot be interrupted from outside: it hears of the deadline when it leaves the block,
    or asks ``expired``.
    In another thread use ``run.call``, which belongs to the run wherever it is called.
    """

    def __init__(self, host: Host, timeout: float | None) -> None:
        self.host = host
        self.timeout = None if timeout is None else seconds(timeout, "the timeout of a run")
        self._run: Run | None = None
        self._token: contextvars.Token[Run | None] | None = None

    @property
    def expired(self) -> bool:
        """True once the deadline has passed."""
        return self._run is not None and self._run.expired

    def call(
        self, name: str | tuple[str, str], arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> CallToolResult:
        """Call a tool within this run, from any thread; see ``AsyncHost.call``."""
        context = contextvars.copy_context()
        context.run(current_run.set, self._run)
        return context.run(self.host.call, name, arguments, **options)

    def __enter__(self) -> Self:
        if self._run is not None:
            raise MisuseError("a run is entered once; make another")

        async def begin(host: AsyncHost) -> Run:
            run = host.run(self.timeout)
            await run.begin(None)
            return run

        self._run = self.host.on_loop(begin, "begin a run")
        self._token = current_run.set(self._run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run = self._run
        assert run is not None
        if self._token is not None:
            current_run.reset(self._token)

        async def finish(_: AsyncHost) -> BaseException | None:
            await run.finish()
            late = run.expired and (error is None or isinstance(error, CallError))
            return run.timed_out() if late else None

        try:
            timed_out = self.host.on_loop(finish, "finish a run")
        except HostClosedError:
            # The close of the host has ended all that was begun here.
            return
        if timed_out is not None:
            raise timed_out from error
