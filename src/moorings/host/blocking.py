"""``Host``: the blocking twin of ``AsyncHost``, method for method.

Made by the user, usable from any thread but its own loop thread. All servers of a host live on one loop in one
thread (``loop_thread.py``). After a fork the child has a fresh host with the same specifications and nothing started.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from .._checks import seconds
from ..auth.prompt import OnLoginUrl
from ..config import Bounds, CredentialSettings, MemoryApp, ServerSpec
from ..errors import HostClosedError
from ..observe import OnEvent
from ..server.server import ServerStatus
from ..session.handlers import Handlers
from ..session.pending import OnProgress
from ..transport.base import StopRecord
from ..wire.skills import Skill, SkillFile
from ..wire.types import CallToolResult, CompleteResult, GetPromptResult, ReadResourceResult
from .async_host import DEFAULT_CLOSE, DEFAULT_STARTING, AsyncHost
from .blocking_handle import BlockingHandle
from .blocking_run import BlockingRun
from .catalog import CatalogPrompt, CatalogResource, CatalogTemplate, CatalogTool
from .handover import CallHandover, Handover
from .loop_thread import LoopThread
from .report import CloseReport, Readiness
from .run import current_run
from .tokens import BrowserFunction

__all__ = ["Host"]

T = TypeVar("T")


class Host:
    """Holds many MCP servers, for blocking code in any number of threads.

    The arguments are those of ``AsyncHost``. Use it as ``with Host({...}) as host``, or ``start()`` and ``close()``.
    Ctrl-C in a blocking call cancels that call and leaves the host usable.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerSpec | MemoryApp] | None = None,
        *,
        handlers: Handlers | None = None,
        bounds: Bounds | None = None,
        max_starting: int = DEFAULT_STARTING,
        state_dir: str | os.PathLike[str] | bool | None = None,
        tools_for_resources: bool = False,
        tools_for_prompts: bool = False,
        on_event: OnEvent | None = None,
        credentials: CredentialSettings | None = None,
        browser: BrowserFunction | None = None,
        on_login_url: OnLoginUrl | None = None,
    ) -> None:
        given = dict(servers or {})

        def make() -> AsyncHost:
            return AsyncHost(
                given,
                handlers=handlers,
                bounds=bounds,
                max_starting=max_starting,
                state_dir=state_dir,
                tools_for_resources=tools_for_resources,
                tools_for_prompts=tools_for_prompts,
                on_event=on_event,
                credentials=credentials,
                browser=browser,
                on_login_url=on_login_url,
            )

        # Said wrong is said at once, in the caller's thread.
        make()
        self._make = make
        self._gate = threading.RLock()
        """Guards ``_thread`` and ``_closed``; never held while anything waits. A signal handler may come here in the
        middle of it, in the same thread."""
        self._thread: LoopThread | None = None
        self._closed: CloseReport | None = None
        self._entered = 0
        _hosts.add(self)

    # Life of the host

    def start(self) -> None:
        """Start the loop thread and the eager servers, without waiting for these. Returns when the loop runs; a
        second start, from any thread, finds the first.

        Raises:
            HostClosedError: it was closed; make another.
        """
        with self._gate:
            if self._closed is not None:
                raise HostClosedError("this host was closed; make another")
            thread, mine = self._thread, self._thread is None
            if thread is None:
                thread = self._thread = self._make_thread()
        if not mine:
            thread.wait_running()
            return
        # A host that nobody holds any more ends its thread, and with it its servers.
        weakref.finalize(self, thread.begin_stop).atexit = False
        try:
            thread.start()
        except BaseException:  # boundary: undone, and raised again
            # Interrupted while it waits, it leaves a thread that comes up: the next start finds it, a close ends it.
            if not thread.alive:
                with self._gate:
                    self._thread = None
            raise

    def _make_thread(self) -> LoopThread:
        return LoopThread(self._make)

    def __enter__(self) -> Self:
        self.start()
        with self._gate:
            self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._gate:
            self._entered -= 1
            last = self._entered <= 0
        # Entered by several threads at a time, it is closed by the last that leaves.
        if last:
            self.close()

    def close(self, timeout: float = DEFAULT_CLOSE) -> CloseReport:
        """End every call and every server within ``timeout`` seconds as a whole, and join the loop thread.

        From any thread, any number of times: all get the report of the one close.

        Raises:
            WrongLoopError: called on the loop thread.
            MisuseError: ``timeout`` is no number of seconds.
        """
        timeout = seconds(timeout, "timeout")
        with self._gate:
            thread = self._thread
            if thread is None:
                self._closed = self._closed or CloseReport(elapsed=0.0)
                return self._closed
        thread.refuse_own_thread()
        thread.wait_running()
        report = thread.stop(timeout)
        with self._gate:
            if thread.alive:
                return report
            self._thread = None
            self._closed = self._closed or report
            return self._closed

    def _forget_after_fork(self) -> None:
        """In a forked child: fresh and empty."""
        self._gate = threading.RLock()
        self._thread = None
        self._closed = None
        self._entered = 0

    def _loop_thread(self) -> LoopThread:
        thread = self._thread
        if thread is None:
            if self._closed is not None:
                raise HostClosedError("this host is closed")
            raise HostClosedError("this host is not started", fix="use 'with', or start()")
        return thread

    def on_loop(self, make: Callable[[AsyncHost], Coroutine[Any, Any, T]], label: str) -> T:
        """Run a coroutine of the host on its loop thread and wait for its outcome; Ctrl-C cancels it."""
        handover = self._submit(make, label)
        return _outcome(handover)

    def _submit(self, make: Callable[[AsyncHost], Coroutine[Any, Any, T]], label: str) -> Handover[T]:
        thread = self._loop_thread()

        def on_loop() -> Coroutine[Any, Any, T]:
            assert thread.host is not None
            return make(thread.host)

        handover = Handover(thread, on_loop, label)
        thread.submit(handover)
        return handover

    # Who is there

    def wait_ready(self, timeout: float | None = None, *, servers: Iterable[str] | None = None) -> Readiness:
        """See ``AsyncHost.wait_ready``."""
        chosen = None if servers is None else list(servers)
        return self.on_loop(lambda host: host.wait_ready(timeout, servers=chosen), "wait_ready")

    def status(self) -> dict[str, ServerStatus]:
        """See ``AsyncHost.status``."""
        return self.on_loop(_status, "status")

    def server(self, name: str) -> BlockingHandle:
        """See ``AsyncHost.server``."""
        self.on_loop(lambda host: _server(host, name), "server")
        return BlockingHandle(self, name)

    # What they offer

    def tools(self, *, servers: Iterable[str] | None = None) -> list[CatalogTool]:
        """See ``AsyncHost.tools``."""
        chosen = None if servers is None else list(servers)
        return self.on_loop(lambda host: host.tools(servers=chosen), "tools")

    def resources(self, *, servers: Iterable[str] | None = None) -> list[CatalogResource]:
        """See ``AsyncHost.resources``."""
        chosen = None if servers is None else list(servers)
        return self.on_loop(lambda host: host.resources(servers=chosen), "resources")

    def resource_templates(self, *, servers: Iterable[str] | None = None) -> list[CatalogTemplate]:
        """See ``AsyncHost.resource_templates``."""
        chosen = None if servers is None else list(servers)
        return self.on_loop(lambda host: host.resource_templates(servers=chosen), "resource_templates")

    def prompts(self, *, servers: Iterable[str] | None = None) -> list[CatalogPrompt]:
        """See ``AsyncHost.prompts``."""
        chosen = None if servers is None else list(servers)
        return self.on_loop(lambda host: host.prompts(servers=chosen), "prompts")

    # Using them

    def call(
        self,
        name: str | tuple[str, str],
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        total: float | None = None,
        on_progress: OnProgress | None = None,
        repeat: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """See ``AsyncHost.call``. ``on_progress`` is called on the loop thread and must return at once."""
        return _outcome(
            self.submit(
                name,
                arguments,
                timeout=timeout,
                total=total,
                on_progress=on_progress,
                repeat=repeat,
                meta=meta,
            )
        )

    def submit(
        self,
        name: str | tuple[str, str],
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        total: float | None = None,
        on_progress: OnProgress | None = None,
        repeat: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> Handover[CallToolResult]:
        """Begin a call and return at once: a handle with ``result(timeout)`` and ``cancel()``, for any thread."""
        if on_progress is None and meta is None and current_run.get() is None:
            # The common path is kept short: it takes no task on the loop.
            thread = self._loop_thread()
            handover = CallHandover(thread, name, arguments, timeout, total, repeat)
            thread.submit(handover)
            return handover
        return self._submit(
            lambda host: host.call(
                name,
                arguments,
                timeout=timeout,
                total=total,
                on_progress=on_progress,
                repeat=repeat,
                meta=meta,
            ),
            name if isinstance(name, str) else name[1],
        )

    def call_raw(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        total: float | None = None,
        on_progress: OnProgress | None = None,
        repeat: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """See ``AsyncHost.call_raw``."""
        return self.call(
            (server, tool),
            arguments,
            timeout=timeout,
            total=total,
            on_progress=on_progress,
            repeat=repeat,
            meta=meta,
        )

    def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ReadResourceResult:
        """See ``AsyncHost.read_resource``."""
        return self.on_loop(lambda host: host.read_resource(uri, server=server, timeout=timeout), uri)

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> GetPromptResult:
        """See ``AsyncHost.get_prompt``."""
        return self.on_loop(lambda host: host.get_prompt(name, arguments, timeout=timeout), name)

    def get_prompt_raw(
        self,
        server: str,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> GetPromptResult:
        """See ``AsyncHost.get_prompt_raw``."""
        return self.on_loop(lambda host: host.get_prompt_raw(server, name, arguments, timeout=timeout), name)

    def skills(self, server: str, *, timeout: float | None = None) -> list[Skill]:
        """See ``AsyncHost.skills``."""
        return self.on_loop(lambda host: host.skills(server, timeout=timeout), "skills/list")

    def skill(self, server: str, uri: str, *, timeout: float | None = None) -> Skill:
        """See ``AsyncHost.skill``."""
        return self.on_loop(lambda host: host.skill(server, uri, timeout=timeout), uri)

    def read_skill(self, skill: Skill, file: str | None = None, *, timeout: float | None = None) -> SkillFile:
        """See ``AsyncHost.read_skill``."""
        label = skill.uri if file is None else file
        return self.on_loop(lambda host: host.read_skill(skill, file, timeout=timeout), label)

    def complete(
        self,
        server: str,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CompleteResult:
        """See ``AsyncHost.complete``."""
        return self.on_loop(
            lambda host: host.complete(
                server, argument, value, prompt=prompt, template=template, context=context, timeout=timeout
            ),
            "complete",
        )

    def subscribe(self, uri: str, *, server: str, timeout: float | None = None) -> None:
        """See ``AsyncHost.subscribe``."""
        self.on_loop(lambda host: host.subscribe(uri, server=server, timeout=timeout), uri)

    def unsubscribe(self, uri: str, *, server: str, timeout: float | None = None) -> None:
        """See ``AsyncHost.unsubscribe``."""
        self.on_loop(lambda host: host.unsubscribe(uri, server=server, timeout=timeout), uri)

    def set_log_level(self, level: str, *, server: str, timeout: float | None = None) -> None:
        """See ``AsyncHost.set_log_level``."""
        self.on_loop(lambda host: host.set_log_level(level, server=server, timeout=timeout), "set_log_level")

    def ping(self, server: str, *, timeout: float | None = None) -> None:
        """See ``AsyncHost.ping``."""
        self.on_loop(lambda host: host.ping(server, timeout=timeout), "ping")

    def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        any_era: bool = False,
    ) -> Any:
        """See ``AsyncHost.request``."""
        return self.on_loop(
            lambda host: host.request(server, method, params, timeout=timeout, any_era=any_era), method
        )

    def notify(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """See ``AsyncHost.notify``."""
        self.on_loop(lambda host: host.notify(server, method, params, timeout=timeout), method)

    def run(self, timeout: float | None = None) -> BlockingRun:
        """An agent run: ``with host.run(timeout=60) as run``. See ``BlockingRun``."""
        return BlockingRun(self, timeout)

    # Changing them at run time

    def add(self, name: str, spec: ServerSpec | MemoryApp) -> BlockingHandle:
        """See ``AsyncHost.add``."""
        self.on_loop(lambda host: host.add(name, spec), "add")
        return BlockingHandle(self, name)

    def remove(self, name: str, *, timeout: float = DEFAULT_CLOSE) -> StopRecord | None:
        """See ``AsyncHost.remove``."""
        return self.on_loop(lambda host: host.remove(name, timeout=timeout), "remove")

    def restart(self, name: str, *, timeout: float | None = None) -> None:
        """See ``AsyncHost.restart``."""
        self.on_loop(lambda host: host.restart(name, timeout=timeout), "restart")

    def enable(self, name: str) -> None:
        """See ``AsyncHost.enable``."""
        self.on_loop(lambda host: host.enable(name), "enable")

    def disable(self, name: str) -> None:
        """See ``AsyncHost.disable``."""
        self.on_loop(lambda host: host.disable(name), "disable")


def _outcome(handover: Handover[T]) -> T:
    try:
        return handover.outcome()
    except BaseException:  # boundary: a signal handler may raise anything into the waiting thread
        if not handover.done:
            handover.cancel()
        raise


async def _status(host: AsyncHost) -> dict[str, ServerStatus]:
    return host.status()


async def _server(host: AsyncHost, name: str) -> None:
    host.server(name)


_hosts: weakref.WeakSet[Host] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for host in list(_hosts):
        host._forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
