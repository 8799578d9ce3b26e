"""``AsyncHost``: many servers on the caller's event loop.

Made by the user, entered or started on one loop, closed once. It makes its servers and closes them side by side,
within one bound. Calls go through it or through a handle of one server (``handle.py``); its blocking twin is
``Host`` (``blocking.py``), with the same methods in the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import weakref
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Raw

from .._checks import LONGEST as WAIT_FOREVER
from .._checks import seconds
from .._tasks import TaskOwner, outlast
from .._version import __version__
from ..auth.prompt import OnLoginUrl
from ..config import Bounds, CredentialSettings, MemoryApp, MemorySpec, ServerSpec
from ..errors import (
    CallError,
    HostClosedError,
    MisuseError,
    MooringsError,
    RequiredServerMissing,
    StartTimeout,
    UnknownServer,
    WrongLoopError,
)
from ..net.shared import SharedNet
from ..observe import OnEvent
from ..server.life import LifeSettings
from ..server.server import BegunCall, Server, ServerStatus
from ..server.states import State
from ..session.clock import CallClock
from ..session.handlers import Handlers
from ..session.methods import Methods
from ..session.pending import OnProgress
from ..session.waiter import Waiter
from ..transport.base import StopRecord
from ..wire.skills import Skill, SkillFile
from ..wire.types import CallToolResult, CompleteResult, GetPromptResult, ReadResourceResult, plain_result
from .catalog import CatalogPrompt, CatalogResource, CatalogTemplate, CatalogTool
from .handle import ServerHandle
from .places import Places
from .report import CloseReport, Readiness
from .resolve import Directory, nearest
from .run import Run, current_run
from .tokens import BrowserFunction, HostTokens

__all__ = ["DEFAULT_CLOSE", "DEFAULT_STARTING", "AsyncHost"]

T = TypeVar("T")
_log = logging.getLogger("moorings")

CLOSE_TRIES = 3
"""How often the close of a server is run that failed, or was struck by Ctrl-C."""

DEFAULT_CLOSE = 10.0
"""Seconds for the whole of a close."""
DEFAULT_STARTING = 16
"""Servers that start at one time."""
DEFAULT_BOUNDS = Bounds()


class AsyncHost:
    """Holds many MCP servers on one event loop.

    Args:
        servers: name → specification, or a server object (``moorings.testing``). Eager ones start with the host, lazy
            ones with their first use.
        handlers: what answers questions of servers and hears their notifications.
        bounds: bounds for all servers whose specification sets none of its own.
        max_starting: how many servers start at one time.
        state_dir: folder for what outlives the process (eras, logs); None for the usual place of the system,
            False for nothing on disk.
        tools_for_resources, tools_for_prompts: list resources and prompts as tools too.
        on_event: told of every change of state and catalog; called on the loop, must return at once.
        credentials: where logins are kept, and whose they are; files in the state folder if not set.
        on_login_url: shows a person the login of a server (a ``LoginPrompt``: URL, or code); async, called on the
            host's loop. Moorings listens for the answer. Without it nobody is ever asked, no port is bound and nothing
            is opened: a server that wants a login goes to ``needs_auth``.
        browser: the same for a program that has a listener of its own: called with the server's name and the URL, it
            brings back the URL that the person is sent to at the end, or the query of that.

    Use it as ``async with AsyncHost({...}) as host``. Entering starts the servers and does not wait for them.
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
        if browser is not None and on_login_url is not None:
            raise MisuseError(
                "browser and on_login_url both show logins",
                fix="give one: browser= brings the answer itself, for on_login_url= Moorings listens for it",
            )
        if max_starting < 1:
            raise MisuseError(f"max_starting is {max_starting}; at least 1 server must be able to start")
        self._specs: dict[str, ServerSpec] = {}
        self._bounds = bounds
        for name, spec in (servers or {}).items():
            self._specs[name] = self._checked(name, spec)
        self._handlers = handlers or Handlers()
        self._max_starting = max_starting
        self._state_dir = state_dir
        self._on_event = on_event
        self._credentials = credentials or CredentialSettings()
        self._browser = browser
        self._on_login_url = on_login_url
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner = TaskOwner("host")
        self._servers: dict[str, Server] = {}
        self._leaving: dict[str, tuple[Server, asyncio.Task[StopRecord | None]]] = {}
        """Removed, and still being ended."""
        self._directory = Directory(
            self._servers, resources_as_tools=tools_for_resources, prompts_as_tools=tools_for_prompts
        )
        self._settings: LifeSettings | None = None
        self._open: asyncio.AbstractEventLoop | None = None
        """The loop, from the start until a close begins."""
        self._token = object()
        self._entered = 0
        self._closing: asyncio.Task[CloseReport] | None = None
        self._report: CloseReport | None = None

    def _checked(self, name: str, spec: ServerSpec | MemoryApp) -> ServerSpec:
        if not name or not isinstance(name, str):
            raise MisuseError(f"a server needs a name, not {name!r}")
        if isinstance(spec, MemoryApp):
            spec = MemorySpec(app=spec)
        if not isinstance(spec, ServerSpec):
            raise MisuseError(
                f"the specification of {name!r} is a StdioServer or an HttpServer, not {type(spec).__name__}"
            )
        if self._bounds is not None and spec.bounds == Bounds():
            return msgspec.structs.replace(spec, bounds=self._bounds)
        return spec

    # Life of the host

    async def start(self) -> None:
        """Start the eager servers, without waiting for them. A second start finds the first.

        Raises:
            HostClosedError: it was closed; make another.
            WrongLoopError: it was started on another event loop.
        """
        if self._closing is not None or self._report is not None:
            raise HostClosedError("this host was closed; make another")
        loop = asyncio.get_running_loop()
        if self._loop is not None:
            self._check_loop()
            return
        self._loop = self._open = loop
        places = Places.at(self._state_dir)
        slots = asyncio.Semaphore(self._max_starting)
        environment = _HostEnvironment(loop).read
        self._settings = LifeSettings(
            handlers=self._handlers,
            client={"name": "moorings", "version": __version__},
            eras=places.eras,
            environment=environment,
            log_path=places.log_path,
            net=SharedNet(environment),
            gate=HostTokens(
                self._credentials,
                places.folder,
                self._browser,
                self._on_login_url,
                environment,
                self._owner,
            ).gate,
            start_slot=lambda: slots,
            context=contextvars.copy_context(),
        )
        for name, spec in self._specs.items():
            self._make(name, spec)
        # A host that nobody holds any more ends its servers, as long as their loop runs; else the exit hook does.
        weakref.finalize(self, _abandon, loop, self._servers).atexit = False

    def _make(self, name: str, spec: ServerSpec) -> Server:
        assert self._settings is not None
        server = Server(name, spec, self._settings, on_event=self._on_event, on_moved=self._directory.forget)
        self._servers[name] = server
        self._directory.forget()
        if not spec.lazy:
            server.keep(self._token)
        return server

    async def __aenter__(self) -> Self:
        await self.start()
        self._entered += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        # Entered by several tasks at a time, it is closed by the last that leaves.
        if self._entered <= 0:
            await self.close()

    async def close(self, timeout: float = DEFAULT_CLOSE) -> CloseReport:
        """End every call and every server, within ``timeout`` seconds as a whole.

        The work is the host's own: a caller that is cancelled or gives up leaves it whole, and a second call waits
        for the same end. Returns what it took.

        Raises:
            MisuseError: ``timeout`` is no number of seconds.
        """
        timeout = seconds(timeout, "timeout")
        if self._report is not None:
            return self._report
        if self._loop is None:
            self._report = CloseReport(elapsed=0.0)
            self._closing = None
            self._loop = asyncio.get_running_loop()
            return self._report
        self._check_loop()
        while True:
            # A loop that cancels everything may do so before the work's first step, and Ctrl-C may strike in any
            # step: then it is begun anew.
            if self._closing is None or (self._closing.done() and self._ended() is None):
                self._open = None
                self._closing = self._owner.start(self._close(timeout), name="close")
            closing = self._closing
            await asyncio.wait({closing})
            if (report := self._ended()) is not None:
                return report
            if not closing.cancelled() and isinstance(error := closing.exception(), Exception):
                raise error

    def _ended(self) -> CloseReport | None:
        return self._report

    async def _close(self, timeout: float) -> CloseReport:
        assert self._loop is not None
        began = self._loop.time()
        # A little is kept for reaping and for the report itself.
        by_then = began + max(timeout, 0.0) * 0.95
        servers = [*self._servers.values(), *(server for server, _ in self._leaving.values())]
        ends = {s.name: self._owner.start(s.close(by_then), name=f"close {s.name}") for s in servers}
        records: dict[str, StopRecord] = {}
        stuck: list[str] = []
        for server in servers:
            task = ends[server.name]
            tries = 1
            # Bounded by the deadline that each close was given.
            while (
                not task.done() or task.cancelled() or (task.exception() is not None and tries < CLOSE_TRIES)
            ):
                if task.done():
                    # Cancelled before its first step, or struck in one of them, as above.
                    tries += not task.cancelled()
                    task = self._owner.start(server.close(by_then), name=f"close {server.name}")
                await outlast(task, self._loop.time() + WAIT_FOREVER)
            if (error := task.exception()) is not None:
                _log.error("server %s: its close failed", server.name, exc_info=error)
                stuck.append(f"close {server.name}: {error!r}")
            elif (record := task.result()) is not None:
                records[server.name] = record
            stuck.extend(server.stuck)
        # Commands that were under way find everything ended, and so end themselves.
        await self._owner.drained(max(by_then, self._loop.time() + 0.1))
        stuck.extend(await self._owner.aclose(0.1))
        self._report = CloseReport(elapsed=self._loop.time() - began, servers=records, stuck=tuple(stuck))
        return self._report

    def _check_loop(self) -> None:
        if self._loop is None:
            raise HostClosedError("this host is not started", fix="use 'async with', or await start()")
        if _get_running_loop() is not self._loop:
            raise WrongLoopError(
                "this host runs on another event loop",
                fix="use one AsyncHost per loop, or the blocking Host from anywhere",
            )

    def _check(self) -> None:
        self._check_loop()
        if self._closing is not None or self._report is not None:
            raise HostClosedError("this host is closed")

    # Who is there

    async def wait_ready(
        self, timeout: float | None = None, *, servers: Iterable[str] | None = None
    ) -> Readiness:
        """Wait until every server that was to start is ready or has failed, or ``timeout`` seconds have passed.

        Args:
            timeout: seconds; None waits as long as starts are allowed to take.
            servers: only these; lazy ones among them are started.

        Raises:
            RequiredServerMissing: a server marked ``required`` is not ready by then.
            UnknownServer: no such server.
        """
        self._check()
        assert self._loop is not None
        until = self._loop.time() + (WAIT_FOREVER if timeout is None else seconds(timeout, "timeout"))
        run = self._run()
        if run is not None and (deadline := run.deadline()) is not None:
            until = min(until, deadline)
        chosen = (
            [self._get(name) for name in servers] if servers is not None else list(self._servers.values())
        )
        with ExitStack() as wanting:
            for server in chosen:
                if servers is not None or server.spec.required:
                    wanting.enter_context(server.wanted())
                    server.keep(self._token)
            while True:
                waiting = [s for s in chosen if self._is_pending(s)]
                if not waiting or self._loop.time() >= until:
                    break
                await waiting[0].changed(until)
        readiness = self._readiness(chosen)
        self._raise_if_required_missing(chosen)
        return readiness

    def _is_pending(self, server: Server) -> bool:
        return server.state is State.CONNECTING or (
            server.state is State.STOPPING and server.last_error is None
        )

    def _readiness(self, servers: Sequence[Server]) -> Readiness:
        ready, pending, idle = [], [], []
        failed: dict[str, str] = {}
        for server in servers:
            if server.state is State.READY:
                ready.append(server.name)
            elif self._is_pending(server):
                pending.append(server.name)
            elif server.state in (State.IDLE, State.DISABLED):
                idle.append(server.name)
            else:
                failed[server.name] = server.why_not_ready()
        return Readiness(ready=tuple(ready), pending=tuple(pending), failed=failed, idle=tuple(idle))

    def _raise_if_required_missing(self, servers: Sequence[Server]) -> None:
        missing = {
            s.name: s.why_not_ready() for s in servers if s.spec.required and s.state is not State.READY
        }
        if missing:
            text = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise RequiredServerMissing(
                f"required servers are not ready: {text}",
                missing=missing,
                fix="mend or start them, or take the mark 'required' away",
            )

    async def require_ready(self, until: float | None) -> None:
        """Wait for the required servers, starting those that are not up. Used by runs.

        Raises:
            RequiredServerMissing: one of them is not ready by the loop's time ``until``.
        """
        self._check()
        assert self._loop is not None
        required = [s for s in self._servers.values() if s.spec.required]
        limit = until if until is not None else self._loop.time() + WAIT_FOREVER
        wish = object()
        try:
            # All at once: who waits for the first must not keep the others from starting.
            for server in required:
                server.keep(wish)
            for server in required:
                try:
                    await server.ready(limit)
                except (MooringsError, TimeoutError):
                    continue
        finally:
            for server in required:
                server.release(wish)
        self._raise_if_required_missing(required)

    def status(self) -> dict[str, ServerStatus]:
        """How every server stands. Plain data; starts nothing."""
        self._check_loop()
        return {name: server.status() for name, server in self._servers.items()}

    def server(self, name: str) -> ServerHandle:
        """A handle of one server: the same methods, on raw names.

        Raises:
            UnknownServer: no such server.
        """
        self._check()
        self._get(name)
        return ServerHandle(self, name)

    def _get(self, name: str) -> Server:
        server = self._servers.get(name)
        if server is None:
            near = nearest(name, self._servers)
            raise UnknownServer(
                f"there is no server {name!r}" + (f"; did you mean {near!r}?" if near is not None else ""),
                fix=f"known servers: {', '.join(self._servers) or 'none'}",
            )
        return server

    # What they offer

    async def tools(self, *, servers: Iterable[str] | None = None) -> list[CatalogTool]:
        """Tools of all servers that are up, and the last known ones of those that can be woken.

        Ordered by server and name. Starts nothing, unless ``servers`` names some: these are started and waited for.
        """
        return await self._listed(self._directory.tools, servers)

    async def resources(self, *, servers: Iterable[str] | None = None) -> list[CatalogResource]:
        """Resources, as ``tools``."""
        return await self._listed(self._directory.resources, servers)

    async def resource_templates(self, *, servers: Iterable[str] | None = None) -> list[CatalogTemplate]:
        """Resource templates, as ``tools``."""
        return await self._listed(self._directory.templates, servers)

    async def prompts(self, *, servers: Iterable[str] | None = None) -> list[CatalogPrompt]:
        """Prompts, as ``tools``."""
        return await self._listed(self._directory.prompts, servers)

    async def _listed(self, catalog: Callable[..., Coroutine[Any, Any, T]], names: Iterable[str] | None) -> T:
        self._check()
        chosen = [self._get(n) for n in names] if names is not None else list(self._servers.values())
        clock = self._clock(None, None)
        return await self._in_run(lambda: catalog(chosen, clock, named=names is not None), "a list")

    # Using them

    async def call(
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
        """Call a tool by its catalog name, starting its server if need be.

        Args:
            name: as the catalog lists it (``server__tool``), or a pair of server and raw name.
            arguments: for the tool; anything that is JSON.
            timeout: seconds without a sign of progress; None for the server's ``Bounds.call``.
            total: seconds in all; None for its ``Bounds.total``.
            on_progress: told ``progress, total, message``, in the caller's context, before the result.
            repeat: a second execution does no harm: repeat it once if the first got no answer.
            meta: further ``_meta`` for the server.

        Returns:
            The result; a failure of the tool itself is one with ``is_error``.

        Raises:
            Refused, NotSent, AmbiguousDelivery, CallTimeout, CallCancelled: see ``errors``.
            UnknownTool, UnknownServer: the name leads nowhere.
            HostClosedError, WrongLoopError: misuse.
        """
        if _get_running_loop() is not self._open:
            self._check()
        run = current_run.get()
        if run is not None and run.host is self:
            return await self._call_in(run, name, arguments, timeout, total, on_progress, repeat, meta)
        known = self._directory.known.get(name)
        if known is None or on_progress is not None or meta:
            return await self._call(name, arguments, timeout, total, on_progress, repeat, meta)
        # The common path is kept short: no task, no closure, and the answer goes from the reader to this await.
        server, tool = known
        if timeout is None and total is None:
            now = self._open.time()  # type: ignore[union-attr]  # checked above
            clock = CallClock(now, server.silence, server.total, now + server.total, now + server.shortest)
        else:
            clock = self._clock_of(server, timeout, total)
        life, pending = server.life, None
        outcome: Raw | CallError | None = None
        if life is not None and (session := life.serving) is not None:
            try:
                pending = session.begin_call(tool, {} if arguments is None else arguments, clock)
                answer: Raw = await pending.waiter  # type: ignore[misc]  # no waiter of another thread was given
                result = plain_result(answer)
                if result is not None:
                    return result
                outcome = answer
            except CallError as error:
                outcome = error
            except asyncio.CancelledError as cancelled:
                if pending is not None:
                    pending.cancelled_by_caller(cancelled)
                raise
        return await server.call_tool(tool, arguments, clock, life, outcome, repeat=repeat)

    def begin_call(
        self,
        name: str | tuple[str, str],
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        total: float | None,
        *,
        waiter: Waiter,
        context: contextvars.Context,
    ) -> BegunCall | None:
        """Send a plain call for a waiter in another thread. None where that is not to be had at once: then ``call``.

        ``context`` is that of the waiter. Raises MisuseError.
        """
        if self._open is None:
            return None
        found = self._directory.known.get(name)
        if found is None:
            try:
                found = (
                    self._directory.plain_tool(name)
                    if isinstance(name, str)
                    else self._directory.raw_tool(name)
                )
            except MooringsError:
                return None
        if found is None:
            return None
        server, tool = found
        if timeout is None and total is None:
            # As in ``call``; work for another thread belongs to no run.
            now = self._open.time()
            clock = CallClock(now, server.silence, server.total, now + server.total, now + server.shortest)
        else:
            clock = self._clock_of(server, timeout, total)
        return server.begin_call(tool, arguments, clock, waiter=waiter, context=context)

    async def _call_in(self, run: Run, name: str | tuple[str, str], *rest: Any) -> CallToolResult:
        """A call of a run. By itself, as a closure makes each variable that it holds dearer for every call."""
        return await run.own(lambda: self._call(name, *rest), name if isinstance(name, str) else name[1])

    async def _call(
        self,
        name: str | tuple[str, str],
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        total: float | None,
        on_progress: OnProgress | None,
        repeat: bool,
        meta: Mapping[str, Any] | None,
    ) -> CallToolResult:
        if not isinstance(name, str):
            server, tool = self._directory.raw_tool(name) or (self._get(name[0]), name[1])
            clock, check = self._clock_of(server, timeout, total), None
        else:
            found, check = self._directory.plain_tool(name), lambda: self._directory.plain_tool(name)
            if found is not None:
                server, tool = found
                clock = self._clock_of(server, timeout, total)
            else:
                clock = self._clock(timeout, total)
                server, tool, helper = await self._directory.resolve_tool(name, clock)
                self._fit(clock, server, timeout, total)
                if helper is not None:
                    return await self._directory.call_helper(server, helper, arguments or {}, clock)
        return await server.call_tool(
            tool,
            arguments,
            clock,
            on_progress=on_progress,
            meta=meta,
            repeat=repeat,
            # What it lists is known once it is up; a name that it does not list leads nowhere.
            check=None if server.state is State.READY else check,
        )

    async def call_raw(
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
        """Call a tool by server and raw name; the door of ``ServerHandle.call``. Raises as ``call``."""
        return await self.call(
            (server, tool),
            arguments,
            timeout=timeout,
            total=total,
            on_progress=on_progress,
            repeat=repeat,
            meta=meta,
        )

    async def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ReadResourceResult:
        """Read a resource; ``server`` is needed only where more than one could hold it.

        Raises:
            UnknownResource: no server, or more than one, is known to hold it.
            CallError: as ``call``.
        """
        if server is not None:
            holder, its_clock = self._for_call(server, timeout)
            return await self._in_run(lambda: holder.read_resource(uri, its_clock), uri)
        self._check()
        clock = self._clock(timeout, None)

        async def resolved() -> ReadResourceResult:
            owner = await self._directory.holder(uri, clock)
            self._fit(clock, owner, timeout, None)
            return await owner.read_resource(uri, clock)

        return await self._in_run(resolved, uri)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> GetPromptResult:
        """Get a prompt by its catalog name, filled in. Raises as ``call``."""
        self._check()
        clock = self._clock(timeout, None)

        async def resolved() -> GetPromptResult:
            owner, raw = await self._directory.resolve_prompt(name, clock)
            self._fit(clock, owner, timeout, None)
            return await owner.request(raw, clock, lambda m: m.get_prompt(raw, arguments, clock))

        return await self._in_run(resolved, name)

    async def get_prompt_raw(
        self,
        server: str,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> GetPromptResult:
        """Get a prompt by server and raw name. Raises as ``call``."""
        return await self._ask(server, name, timeout, lambda m, c: m.get_prompt(name, arguments, c))

    async def skills(self, server: str, *, timeout: float | None = None) -> list[Skill]:
        """The skills that a server lists, started if need be; no file of one is read. Asked for anew each time.

        None if the server does not declare the extension. One that breaks its rules is left out and logged; others may
        be there that are not listed (``skill``). Raises CallError.
        """
        owner, clock = self._for_call(server, timeout)
        return await self._in_run(lambda: owner.skills(clock), "skills/list")

    async def skill(self, server: str, uri: str, *, timeout: float | None = None) -> Skill:
        """One skill by the URI of its ``SKILL.md``, whether it is listed or not; also to see what became of one.

        Raises:
            Refused: the server has no such skill.
            CallError: as ``call``; NotSent if the server does not declare the extension.
        """
        owner, clock = self._for_call(server, timeout)
        return await self._in_run(lambda: owner.skill(uri, clock), uri)

    async def read_skill(
        self, skill: Skill, file: str | None = None, *, timeout: float | None = None
    ) -> SkillFile:
        """Read one file of a skill from the server that the skill came from, verified before it is handed out.

        Args:
            skill: as ``skills`` or ``skill`` gave it, and a person approved.
            file: its URI, or a path as the skill names it (``references/FORMS.md``); None for its ``SKILL.md``.
            timeout: seconds without a sign of progress; None for the server's ``Bounds.call``.

        Raises:
            SkillMismatch: the skill does not list it (nothing is sent then), or it is not what the skill says.
            CallError: as ``call``.
            ConfigError: for a ``SKILL.md``, if ``moorings[skills]`` is not installed.
        """
        label = skill.uri if file is None else file
        return await self._ask(skill.server, label, timeout, lambda m, c: m.read_skill(skill, file, c))

    async def complete(
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
        """Ask for proposals for an argument of a prompt (its raw name) or a resource template (its URI).

        Raises:
            MisuseError: not exactly one of ``prompt`` and ``template`` is given.
            CallError: as ``call``.
        """
        if prompt is not None and template is None:
            ref = {"type": "ref/prompt", "name": prompt}
        elif template is not None and prompt is None:
            ref = {"type": "ref/resource", "uri": template}
        else:
            raise MisuseError("name either a prompt or a template to complete for")
        return await self._ask(
            server,
            "completion/complete",
            timeout,
            lambda m, c: m.complete(ref, argument, value, c, context=context),
        )

    async def subscribe(self, uri: str, *, server: str, timeout: float | None = None) -> None:
        """Be told (``Handlers.on_resource_updated``) when a resource changes; lasts over restarts of the server."""
        owner, clock = self._for_call(server, timeout)
        await self._in_run(lambda: owner.subscribe(uri, clock), uri)

    async def unsubscribe(self, uri: str, *, server: str, timeout: float | None = None) -> None:
        """No longer be told of a resource."""
        owner, clock = self._for_call(server, timeout)
        await self._in_run(lambda: owner.unsubscribe(uri, clock), uri)

    async def set_log_level(self, level: str, *, server: str, timeout: float | None = None) -> None:
        """Say which log messages a server shall send; lasts over restarts of the server. Raises as ``call``."""
        owner, clock = self._for_call(server, timeout)
        await self._in_run(lambda: owner.set_log_level(level, clock), "logging/setLevel")

    async def ping(self, server: str, *, timeout: float | None = None) -> None:
        """Ask a server for a sign of life. Raises as ``call``."""
        await self._ask(server, "ping", timeout, lambda m, c: m.ping(c))

    async def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        any_era: bool = False,
    ) -> Any:
        """Any request, its result as plain JSON: for what Moorings has no name for yet. Raises as ``call``.

        It is never sent twice by itself. ``any_era``: send it also where the era of the server has no such method.
        """
        owner, clock = self._for_call(server, timeout)
        return await self._in_run(
            lambda: owner.request(
                method, clock, lambda m: m.raw(method, params, clock, any_era=any_era), reads=False
            ),
            method,
        )

    async def notify(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Any notification to a server, which is started if need be. Nobody says whether it was heard.

        Raises:
            CallError: the server is not up within ``timeout`` seconds, or takes nothing more.
        """
        owner, clock = self._for_call(server, timeout)
        await self._in_run(lambda: owner.notify(method, params, clock), method)

    async def _ask(
        self,
        server: str,
        label: str,
        timeout: float | None,
        use: Callable[[Methods, CallClock], Awaitable[T]],
    ) -> T:
        owner, clock = self._for_call(server, timeout)
        return await self._in_run(lambda: owner.request(label, clock, lambda m: use(m, clock)), label)

    def _for_call(self, server: str, timeout: float | None) -> tuple[Server, CallClock]:
        self._check()
        owner = self._get(server)
        return owner, self._clock_of(owner, timeout, None)

    def run(self, timeout: float | None = None) -> Run:
        """An agent run: ``async with host.run(timeout=60) as run``. See ``Run``."""
        self._check()
        return Run(self, timeout)

    # Changing them at run time

    async def add(self, name: str, spec: ServerSpec | MemoryApp) -> ServerHandle:
        """Add a server; it is started unless it is lazy.

        Raises:
            MisuseError: the name is taken.
        """
        self._check()
        spec = self._checked(name, spec)
        while name not in self._servers and (leaving := self._leaving.get(name)) is not None:
            # Two processes of one name never run at a time.
            await asyncio.wait({leaving[1]})
            self._check()
        if name in self._servers:
            raise MisuseError(f"there is a server {name!r} already", fix=f"remove({name!r}) first")
        self._make(name, spec)
        return ServerHandle(self, name)

    async def remove(self, name: str, *, timeout: float = DEFAULT_CLOSE) -> StopRecord | None:
        """End a server for good, within ``timeout`` seconds. Returns what it took, None if it was not running."""
        self._check()
        assert self._loop is not None
        timeout = seconds(timeout, "timeout")
        server = self._get(name)
        del self._servers[name]
        self._directory.forget()
        task = self._owner.start(server.close(self._loop.time() + timeout), name=f"remove {name}")
        self._leaving[name] = (server, task)
        task.add_done_callback(lambda _: self._leaving.pop(name, None))
        await asyncio.wait({task})
        return task.result()

    async def restart(self, name: str, *, timeout: float | None = None) -> None:
        """Stop a server if it runs, start it at once, and wait until it is ready.

        Raises:
            StartError: it did not come up.
            StartTimeout: ``timeout`` seconds passed; the start goes on.
        """
        await self._command(name, lambda server: server.restart(), timeout)

    async def enable(self, name: str) -> None:
        """Let a disabled server be started again; an eager one starts now."""
        self._check()
        server = self._get(name)
        server.enable()
        if not server.spec.lazy:
            server.keep(self._token)

    async def disable(self, name: str) -> None:
        """Stop a server and do not start it again until ``enable``. Its calls in flight end, typed."""
        self._check()
        server = self._get(name)
        task = self._owner.start(server.disable(), name=f"disable {name}")
        await asyncio.wait({task})
        task.result()

    async def _command(self, name: str, command: Callable[[Server], Any], timeout: float | None) -> None:
        self._check()
        assert self._loop is not None
        server = self._get(name)
        until = self._loop.time() + (WAIT_FOREVER if timeout is None else seconds(timeout, "timeout"))
        task = self._owner.start(command(server), name=f"command for {name}")
        await asyncio.wait({task})
        task.result()
        began = self._loop.time()
        with server.wanted():
            server.keep(self._token)
            try:
                await server.ready(until)
            except TimeoutError as error:
                if isinstance(error, MooringsError):
                    raise
                raise StartTimeout(
                    f"it is still {server.state.value}; the start goes on",
                    server=name,
                    elapsed=self._loop.time() - began,
                    allowed=timeout,
                    fix="wait for it with wait_ready",
                ) from None

    # Clocks and runs

    def _clock(self, timeout: float | None, total: float | None) -> CallClock:
        """A clock by the defaults; ``_fit`` sets it to the bounds of the server once that is known."""
        bounds = self._bounds or DEFAULT_BOUNDS
        silence = bounds.call if timeout is None else seconds(timeout, "timeout")
        whole = max(bounds.total, silence) if total is None else seconds(total, "total")
        run = self._run()
        if run is not None:
            return run.clock(silence, whole)
        assert self._loop is not None
        return CallClock.of(self._loop.time(), silence, whole)

    def _clock_of(self, server: Server, timeout: float | None, total: float | None) -> CallClock:
        """A clock by the bounds of a server."""
        bounds = server.spec.bounds
        silence, whole = bounds.call, bounds.total
        if timeout is not None:
            silence = seconds(timeout, "timeout")
            whole = max(whole, silence)
        if total is not None:
            whole = seconds(total, "total")
        run = current_run.get()
        if run is not None and run.host is self:
            return run.clock(silence, whole)
        return CallClock.of(self._loop.time(), silence, whole)  # type: ignore[union-attr]  # checked at the door

    def _fit(self, clock: CallClock, server: Server, timeout: float | None, total: float | None) -> None:
        bounds = server.spec.bounds
        # Checked by ``_clock``; here they only have to come out the same.
        silence = bounds.call if timeout is None else min(timeout, WAIT_FOREVER)
        clock.fit(
            silence,
            max(bounds.total, 0.0 if timeout is None else silence)
            if total is None
            else min(total, WAIT_FOREVER),
        )

    def _run(self) -> Run | None:
        run = current_run.get()
        return run if run is not None and run.host is self else None

    async def _in_run(self, make: Callable[[], Coroutine[Any, Any, T]], label: str) -> T:
        run = self._run()
        return await (make() if run is None else run.own(make, label))


class _HostEnvironment:
    """The environment of this process, read once for all servers that start in one turn of the loop."""

    __slots__ = ("_loop", "_read")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._read: dict[str, str] | None = None

    def read(self) -> Mapping[str, str]:
        if self._read is None:
            self._read = dict(os.environ)
            self._loop.call_soon(self._forget)
        return self._read

    def _forget(self) -> None:
        self._read = None


def _abandon(loop: asyncio.AbstractEventLoop, servers: dict[str, Server]) -> None:
    """The host of these servers was collected, in whatever thread that happened."""

    def end() -> None:
        for server in servers.values():
            server.abandon()

    with contextlib.suppress(RuntimeError):  # the loop is closed: the exit hook ends what is left
        loop.call_soon_threadsafe(end)
