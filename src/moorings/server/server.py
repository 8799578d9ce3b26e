"""The owner of one server: it starts and ends the lives of it, and answers for it.

Made by a host, closed by it. Callers in any task only send it wishes: they wait for a state, and may give up; the
work they wait for is a life (``life.py``), which this owner starts and ends. At most one life exists at a time. All
moves go through ``_fire``, the one place that sets the state (law 5).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw

from .._tasks import TaskOwner, outlast
from ..config import ServerSpec
from ..errors import (
    AmbiguousDelivery,
    CallError,
    CallTimeout,
    CommandNotFound,
    ConfigError,
    HostClosedError,
    MooringsError,
    NeedsLogin,
    NotSent,
    Refused,
    StartError,
    last_words,
)
from ..observe import CatalogChanged, OnEvent, StateChanged, publish
from ..session.cancelled import note_cancel
from ..session.clock import CallClock
from ..session.methods import Listed, Methods
from ..session.pending import OnProgress, Pending
from ..session.session import Counters
from ..session.waiter import Waiter
from ..transport.base import StopRecord
from ..wire.eras import HEADER_MISMATCH, SKILLS
from ..wire.skills import Skill
from ..wire.types import (
    CallToolResult,
    Implementation,
    ReadResourceResult,
    ServerCapabilities,
    ToolAnnotations,
)
from . import connect
from .life import UNBOUNDED, Life, LifeSettings
from .lists import Lists, next_distance
from .reads import Reads
from .replay import may_repeat
from .states import Event, State, next_state

if TYPE_CHECKING:
    from ..auth.model import Credential
    from ..auth.service import Access

__all__ = ["Server", "ServerStatus"]

_log = logging.getLogger("moorings")
T = TypeVar("T")

STARTABLE = (State.IDLE, State.PARKED)
HOPELESS = (State.NEEDS_AUTH, State.NEEDS_CLIENT, State.FAILED)
"""From where no use starts it."""
_LEVEL = ""
"""Stands among the URIs of subscriptions for the log level."""


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a server stands: plain data, safe to keep."""

    name: str
    state: State
    since: float
    """When it came into this state, in seconds since the epoch."""
    generation: int
    """How many lives it has had."""
    pid: int | None = None
    era: str | None = None
    revision: str | None = None
    server_info: Implementation | None = None
    capabilities: ServerCapabilities | None = None
    instructions: str | None = None
    """How the server wants to be used, in its own words: not to be trusted."""
    last_error: MooringsError | None = None
    next_attempt: float | None = None
    """Seconds until a use may start it again; None if at once."""
    fix: str | None = None
    """What to do, where something is to be done."""
    required: bool = False
    lazy: bool = False
    steps: dict[str, float] = {}
    """Seconds that each step of the last start took."""
    counters: Counters = msgspec.field(default_factory=Counters)
    lists: dict[str, Any] = {}
    last_stop: StopRecord | None = None
    """What the end of the last life took."""


class BegunCall(msgspec.Struct, eq=False):
    """A call of a tool that was sent for a waiter outside of the loop."""

    server: Server
    life: Life
    pending: Pending
    arguments: Mapping[str, Any] | None

    def cancel(self, reason: str) -> None:
        """End it as cancelled; the server is told."""
        self.pending.session.cancel(self.pending, reason)

    async def carry_on(self, outcome: Raw | CallError, *, repeat: bool) -> CallToolResult:
        """Finish it after an outcome that is not the last word. Raises CallError."""
        pending = self.pending
        return await self.server.call_tool(
            pending.label, self.arguments, pending.clock, self.life, outcome, repeat=repeat
        )


class Server:
    """One server and its owner. See the module."""

    def __init__(
        self,
        name: str,
        spec: ServerSpec,
        settings: LifeSettings,
        *,
        on_event: OnEvent | None = None,
        on_moved: Callable[[], None] = lambda: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.spec = spec
        self.silence = spec.bounds.call
        """Seconds without a sign of progress that a call may take, if it does not say."""
        self.total = spec.bounds.total
        """Seconds in all."""
        self.shortest = min(self.silence, self.total)
        """Seconds after which a call without any sign of progress ends."""
        self.state = State.IDLE
        self.since = time.time()
        self.generation = 0
        self.last_error: MooringsError | None = None
        self.lists = Lists(name, self._on_catalog, limit=spec.bounds.connect)
        self._on_moved = on_moved
        """Told when it comes into another state, or offers something else: where names lead may be another place."""
        self._settings = settings
        self._on_event = on_event
        self._jitter = jitter
        self._owner = TaskOwner(f"server {name}")
        self.life: Life | None = None
        """The present one; None while nothing of it is there."""
        self._wants: set[object] = set()
        """Who wants it to be up. While it connects and this is empty, the start is given up."""
        self._changed: asyncio.Future[None] | None = None
        self._enabled = spec.enabled
        self._closing = False
        self._failures = 0
        self._failed_generation = 0
        """The last one that failed; ``last_error`` is its."""
        self._not_before = float("-inf")
        self._last_stop: StopRecord | None = None
        self._last_steps: dict[str, float] = {}
        self._subscribed: set[str] = set()
        self._log_level: str | None = None
        self._saying: asyncio.Task[None] | None = None
        """Says again what was said to an earlier generation or session."""
        self._costly: set[str] = set()
        """What of it cost the session to which it was said: a server may refuse it so each time."""
        self._costs_distance = 0.0
        """Seconds before that is said to yet another session; grows each time."""
        self._login: tuple[Access, Callable[[], None]] | None = None
        """Tells of a credential, while one is waited for; and what ends that."""
        self._left_login: Access | None = None
        """The last one that was, whose thread may still be ending."""
        self._refused_login: Credential | None = None
        """The one that the server did not take."""
        self._reads = Reads(lambda: asyncio.get_running_loop().time())
        self._declared: ServerCapabilities | None = None
        self.stuck: list[str] = []
        """Tasks of the user's code that would not end."""
        if not spec.enabled:
            self.state = State.DISABLED

    # The state

    def _fire(self, event: Event, cause: str = "") -> None:
        old, self.state = self.state, next_state(self.state, event)
        self.since = time.time()
        self._on_moved()
        _log.debug("server %s: %s -> %s (%s) %s", self.name, old.value, self.state.value, event.value, cause)
        publish(
            self._on_event,
            StateChanged(self.name, old.value, self.state.value, event.value, self.generation, cause),
        )
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def _on_catalog(self, event: CatalogChanged) -> None:
        self._on_moved()
        publish(self._on_event, event)

    async def changed(self, until: float) -> bool:
        """Wait for the next change of state, until the loop's time ``until``. False if none came."""
        loop = asyncio.get_running_loop()
        if self._changed is None:
            self._changed = loop.create_future()
        waiting = self._changed
        await asyncio.wait({waiting}, timeout=max(0.0, min(until - loop.time(), UNBOUNDED)))
        return waiting.done()

    def status(self) -> ServerStatus:
        """How it stands now."""
        life = self.life
        settled = life.negotiated if life is not None else None
        wait = self._not_before - asyncio.get_running_loop().time()
        down = self.state in (State.PARKED, State.STOPPING, *HOPELESS)
        return ServerStatus(
            name=self.name,
            state=self.state,
            since=self.since,
            generation=self.generation,
            pid=life.pid if life is not None else None,
            era=settled.era.value if settled else None,
            revision=settled.revision if settled else None,
            server_info=settled.server_info if settled else None,
            capabilities=settled.capabilities if settled else None,
            instructions=settled.instructions if settled else None,
            last_error=self.last_error,
            next_attempt=wait if self.state in (State.PARKED, State.STOPPING) and wait > 0 else None,
            fix=self.last_error.fix if down and self.last_error is not None else None,
            required=self.spec.required,
            lazy=self.spec.lazy,
            steps=dict(life.steps if life is not None else self._last_steps),
            # Not by its truth: a session without requests in flight is empty, and so false.
            counters=life.session.counted() if life is not None and life.session is not None else Counters(),
            lists=self.lists.snapshot(),
            last_stop=self._last_stop,
        )

    @property
    def capabilities(self) -> ServerCapabilities | None:
        """What it declared when it was last up; None if it never was."""
        return self._declared

    def why_not_ready(self) -> str:
        """One clause, for reports."""
        if self.state in (State.PARKED, State.STOPPING, *HOPELESS) and self.last_error is not None:
            return str(self.last_error)
        return f"it is {self.state.value}"

    # Lives

    def _begin_life(self) -> None:
        self.generation += 1
        self._fire(Event.WANTED)
        self.life = Life(
            self.name,
            self.spec,
            self.generation,
            self._settings,
            self._owner,
            on_ready=self._on_ready,
            on_down=self._on_down,
            on_list_changed=self.lists.changed,
            on_resource_changed=self._reads.forget,
            on_renewed=self._on_renewed,
        )
        self.life.task.add_done_callback(self._on_life_over)

    def _on_ready(self, life: Life) -> None:
        assert life.methods is not None and life.negotiated is not None
        self._failures = 0
        self.last_error = None
        self._declared = life.negotiated.capabilities
        self.lists.bind(life.methods, life.parts, life.tells_of, life.recovered)
        if life.first_tools is not None:
            self.lists.adopt("tools", life.first_tools)
        else:
            self.lists["tools"].problem = life.list_problem
        if life.changed_since_listed:
            self.lists.changed("tools")
        self._fire(Event.CONNECTED)
        self._costly.clear()
        self._costs_distance = 0.0
        self._say_again(life)

    def _on_renewed(self, life: Life) -> None:
        """A life made another MCP session: what was said to the last one is said again, and its lists are looked at."""
        assert life.negotiated is not None
        self._declared = life.negotiated.capabilities
        self._on_moved()
        self._reads.forget()
        for kind in ("tools", "prompts", "resources"):
            self.lists.changed(kind)
        self._say_again(life)

    def _on_down(self, life: Life, problem: MooringsError | None) -> None:
        """A life begins to end: from here on it serves nobody."""
        was_ready = self.state is State.READY
        needs = isinstance(problem, StartError) and bool(problem.needs)
        if needs:
            self._await_login(took=life.took_login)
        if problem is not None:
            self.last_error = problem.again()
            self._failed_generation = life.generation
            if not was_ready and not needs:
                self._cool_down()
        self.lists.unbind()
        self._reads.forget()
        if self.state in (State.CLOSING, State.STOPPING):
            return
        cause = str(problem) if problem is not None else ""
        if problem is None:
            if self.state in (State.CONNECTING, State.READY):
                self._fire(Event.STOP, cause)
        elif was_ready:
            self._fire(Event.UNAUTHORIZED if needs else Event.DIED, cause)
        elif isinstance(problem, CommandNotFound):
            self._fire(Event.UNUSABLE, cause)
        elif needs:
            self._fire(Event.UNAUTHORIZED, cause)
        else:
            self._fire(Event.START_FAILED, cause)

    # Waiting for a login

    def _await_login(self, *, took: bool) -> None:
        """Be told when a credential is there that it has not refused. The broker looks at the store, not we.

        ``took``: the one that there is has been got just now.
        """
        self._forget_login()
        gate = connect.gate_for(self.name, self.spec, self._settings)
        if gate is None:
            return
        access = gate.open()
        loop = asyncio.get_running_loop()
        self._refused_login = None if took else access.known

        def told() -> None:
            try:
                loop.call_soon_threadsafe(self._look_for_login)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        self._login = (access, access.on_change(told))

    def _look_for_login(self) -> None:
        if self._login is None or self.state not in (State.NEEDS_AUTH, State.NEEDS_CLIENT):
            return
        known = self._login[0].known
        if known is None or known.state != "good" or known == self._refused_login:
            return
        self._forget_login()
        self._fire(Event.AUTHORIZED)
        if self._wants and not self._closing:
            self._begin_life()

    def _forget_login(self) -> None:
        login, self._login = self._login, None
        if login is not None:
            access, stop = login
            stop()
            access.leave()
            self._left_login = access

    def _cool_down(self) -> None:
        bounds = self.spec.bounds
        wait = min(bounds.cooldown * 2**self._failures, bounds.cooldown_max)
        self._failures = min(self._failures + 1, 30)
        # Between half and whole, so that many hosts do not knock together.
        wait *= 0.5 + 0.5 * self._jitter()
        self._not_before = asyncio.get_running_loop().time() + wait

    def _on_life_over(self, task: asyncio.Task[None]) -> None:
        """Everything of a life is gone; now the next may begin."""
        life, self.life = self.life, None
        if life is None:
            return
        self._last_stop = life.record
        self._last_steps = dict(life.steps)
        self.stuck.extend(life.stuck)
        if self.state in (State.CONNECTING, State.READY):
            # Its task was cancelled before its first step (a loop that cancels everything): it did nothing at all.
            self._on_down(life, None)
        if self.state is not State.STOPPING:
            return
        problem = self.last_error if life.failed else None
        if not self._enabled:
            self._fire(Event.STOPPED_DISABLED)
        elif isinstance(problem, CommandNotFound):
            self._fire(Event.STOPPED_UNUSABLE)
        elif isinstance(problem, StartError) and problem.needs:
            client = problem.needs == "client"
            self._fire(Event.STOPPED_NEEDS_CLIENT if client else Event.STOPPED_NEEDS_AUTH)
            self._look_for_login()
        elif problem is not None:
            self._fire(Event.STOPPED_AFTER_FAILURE)
        else:
            self._fire(Event.STOPPED)

    async def _end_life(self, reason: str, deadline: float | None = None) -> None:
        """End the life there is and wait until nothing of it is left. Who gives up waiting leaves the work whole."""
        life = self.life
        if life is None:
            return
        life.end(reason, deadline)
        await asyncio.wait({life.task})

    # Being wanted

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """While inside, somebody wants it to be up."""
        token = object()
        self._wants.add(token)
        try:
            yield
        finally:
            self.release(token)

    def keep(self, token: object) -> None:
        """Somebody wants it to be up until ``release``; it is started if it can be."""
        self._wants.add(token)
        if self.state in STARTABLE and not self._closing and self._cooled():
            self._begin_life()

    def release(self, token: object) -> None:
        """Somebody does not want it any more. A start that nobody wants ends, with its process."""
        self._wants.discard(token)
        if not self._wants and self.state is State.CONNECTING and self.life is not None:
            self._fire(Event.ABANDONED, "nobody waits for it any more")
            self.life.end("nobody waits for it any more")

    def _cooled(self) -> bool:
        return asyncio.get_running_loop().time() >= self._not_before

    async def ready(self, until: float) -> Life:
        """Wait until it serves, starting it if need be.

        Raises:
            MooringsError: why it does not: its start failed, it is disabled, closed, or must cool down.
            TimeoutError: the loop's time ``until`` passed; the start goes on if others want it.
        """
        with self.wanted():
            waited_for = 0
            while True:
                life = self.life
                if self.state is State.READY and life is not None and life.usable:
                    if life.renewal is None:
                        return life
                    left = until - asyncio.get_running_loop().time()
                    if left <= 0:
                        raise TimeoutError
                    await asyncio.wait({life.renewal}, timeout=left)
                    continue
                self._raise_if_hopeless(waited_for)
                if self.state in STARTABLE:
                    self._begin_life()
                if self.state is State.CONNECTING:
                    waited_for = self.generation
                if not await self.changed(until):
                    raise TimeoutError

    def _raise_if_hopeless(self, waited_for: int) -> None:
        if self._closing or self.state in (State.CLOSING, State.CLOSED):
            raise HostClosedError("the host is closed, or this server was removed", server=self.name)
        if not self._enabled:
            raise StartError("it is disabled", server=self.name, fix=f"enable({self.name!r})")
        error = self.last_error
        if self.state in HOPELESS or (
            waited_for == self.generation == self._failed_generation
            and error is not None
            and self.state in (State.STOPPING, State.PARKED)
        ):
            assert error is not None
            raise error.again()
        if self.state is State.PARKED and not self._cooled() and error is not None:
            wait = self._not_before - asyncio.get_running_loop().time()
            failed = StartError(
                f"its last start failed, and it is not started again for {wait:.1f} s: {error.message}",
                server=self.name,
                fix=(f"{error.fix}; " if error.fix else "") + f"restart({self.name!r}) tries at once",
                stderr_tail=error.stderr_tail if isinstance(error, StartError) else "",
            )
            failed.http = error.http if isinstance(error, StartError) else None
            raise failed from error.again()

    # Calls

    def begin_call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        clock: CallClock,
        *,
        waiter: Waiter,
        context: contextvars.Context,
    ) -> BegunCall | None:
        """Send the call of a tool for a waiter of any kind. None where it cannot be sent at this moment: then
        ``call_tool``. Raises MisuseError."""
        life = self.life
        if life is None or (session := life.serving) is None:
            return None
        try:
            pending = session.begin_call(
                tool, {} if arguments is None else arguments, clock, waiter=waiter, context=context
            )
        except CallError:
            return None
        return BegunCall(self, life, pending, arguments)

    async def call_tool(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        clock: CallClock,
        first: Life | None = None,
        outcome: Raw | CallError | None = None,
        *,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
        repeat: bool = False,
        check: Callable[[], object] | None = None,
    ) -> CallToolResult:
        """Call a tool; start the server if need be.

        Args:
            first: the life on which it was tried already, with this ``outcome``: an answer that is no plain result, or
                an error after which the call may be sent again.
            repeat: a second execution does no harm.
            check: asked once the server is up; may raise.

        Raises:
            CallError: every outcome but a result.
        """
        answers = [outcome] if isinstance(outcome, Raw) else []

        def use(methods: Methods) -> Awaitable[CallToolResult]:
            answer = answers.pop() if answers else None
            return methods.call_tool(
                tool, arguments, clock, on_progress=on_progress, meta=meta, answer=answer
            )

        return await self._use(
            tool,
            clock,
            use,
            harmless=lambda: repeat or self._harmless(tool),
            check=check,
            first=first if outcome is not None else None,
            failed=outcome if isinstance(outcome, CallError) else None,
        )

    async def request(
        self,
        label: str,
        clock: CallClock,
        use: Callable[[Methods], Awaitable[T]],
        *,
        reads: bool = True,
    ) -> T:
        """Any other request; start the server if need be. Raises CallError.

        ``reads``: it only reads, so that it may be sent again where its exchange broke.
        """
        # The death of a server may be the fault of the request; a broken exchange is not.
        return await self._use(
            label, clock, use, harmless=lambda: reads and self.life is not None and self.life.usable
        )

    async def notify(self, method: str, params: Mapping[str, Any] | None, clock: CallClock) -> None:
        """Send a notification; start the server if need be. Raises CallError."""
        life = await self.for_call(clock, method)
        if life.session is None or not life.session.notify(method, None if params is None else dict(params)):
            raise NotSent(
                "not sent: the connection takes nothing more", server=self.name, tool=method, sent=False
            )

    async def _use(
        self,
        label: str,
        clock: CallClock,
        use: Callable[[Methods], Awaitable[T]],
        *,
        harmless: Callable[[], bool],
        check: Callable[[], object] | None = None,
        first: Life | None = None,
        failed: CallError | None = None,
    ) -> T:
        """Run a request on the current life; once more on the next one where that is safe.

        ``first`` is the life on which it was begun already, ``failed`` how that ended, if it did.
        """
        attempts = 0
        unsure: AmbiguousDelivery | None = None
        """How an earlier attempt ended: whatever comes now, its effect may have happened."""
        try:
            while True:
                life = first if first is not None else await self.for_call(clock, label)
                first = None
                if check is not None:
                    check()
                assert life.methods is not None and life.session is not None
                attempts += 1
                try:
                    if failed is not None:
                        error, failed = failed, None
                        raise error
                    return await use(life.methods)
                except CallError as error:
                    ended = life.session.end is not None or life.session.broken or error.elsewhere
                    lost = ended and not self._closing
                    if self._wants_other_headers(error, life, attempts):
                        await self.lists.refetched("tools", clock)
                        continue
                    if not may_repeat(error, connection_lost=lost, attempts=attempts, harmless=harmless()):
                        raise
                    unsure = error if isinstance(error, AmbiguousDelivery) else None
                    _log.info("server %s: %s is sent again: %s", self.name, label, error)
        except (NotSent, Refused) as error:
            if unsure is None or error.sent:
                raise
            raise unsure from error
        except CallTimeout as error:
            if unsure is not None and not error.sent:
                error.sent, error.message = True, f"sent once and not answered; then {error.message}"
            raise
        except asyncio.CancelledError as cancelled:
            elapsed = clock.elapsed(asyncio.get_running_loop().time())
            note_cancel(cancelled, server=self.name, tool=label, sent=unsure is not None, elapsed=elapsed)
            raise

    def _wants_other_headers(self, error: CallError, life: Life, attempts: int) -> bool:
        """Whether a call was refused because its headers do not repeat what its schema wants repeated: the list that
        is known is an old one (F9.9)."""
        return (
            isinstance(error, Refused)
            and error.rpc_code == HEADER_MISMATCH
            and attempts == 1
            and life.session is not None
            and life.session.repeats_params
        )

    def _harmless(self, tool: str) -> bool:
        """Whether the newest listing says that a second execution does no harm."""
        said = self._annotations(tool)
        return said is not None and bool(said.read_only_hint or said.idempotent_hint)

    def _annotations(self, tool: str) -> ToolAnnotations | None:
        listed = self.lists["tools"].by_name.get(tool)
        return listed.annotations if listed is not None else None

    async def for_call(self, clock: CallClock, label: str) -> Life:
        """The life that serves a call, started and waited for if need be. Raises NotSent, CallTimeout."""
        life = self.life
        if self.state is State.READY and life is not None and life.usable and life.renewal is None:
            return life
        loop = asyncio.get_running_loop()
        try:
            return await self.ready(clock.expires)
        except MooringsError as error:
            text = error.message
            if isinstance(error, StartError) and error.stderr_tail.strip() and "stderr ends" not in text:
                text += f"; its stderr ends: {last_words(error.stderr_tail)}"
            elapsed = clock.elapsed(loop.time())
            unsent: NotSent | NeedsLogin
            if isinstance(error, StartError) and error.needs:
                unsent = NeedsLogin(
                    text, reason=error.needs, server=self.name, tool=label, elapsed=elapsed, fix=error.fix
                )
            else:
                unsent = NotSent(
                    f"not sent: {text}",
                    server=self.name,
                    tool=label,
                    sent=False,
                    elapsed=elapsed,
                    fix=error.fix,
                )
            unsent.http = error.http if isinstance(error, StartError) else None
            raise unsent from error
        except TimeoutError:
            raise CallTimeout(
                f"not sent: the server was still {self.state.value}"
                + (f" ({clock.why})" if clock.why and clock.expires >= clock.hard else ""),
                server=self.name,
                tool=label,
                sent=False,
                elapsed=clock.elapsed(loop.time()),
                allowed=clock.allowed(),
            ) from None

    async def listed(self, kind: str, clock: CallClock) -> Listed:
        """One of its lists, of the ready server; see ``Lists.get``. Raises CallError."""
        life = await self.for_call(clock, f"list of {kind}")
        assert life.negotiated is not None
        has = life.negotiated.capabilities
        declared = has.tools if kind == "tools" else has.prompts if kind == "prompts" else has.resources
        if declared is None and kind != "tools":
            return Listed({})
        return await self.lists.get(kind, clock)

    async def read_resource(self, uri: str, clock: CallClock) -> ReadResourceResult:
        """Read a resource; start the server if need be. What the server itself calls fresh is not read again.

        Raises:
            CallError: every other outcome.
        """
        life = self.life
        fresh = self._reads.get(uri) if life is not None and life.serving is not None else None
        if fresh is not None:
            return fresh
        asked_at = self._reads.forgotten
        result = await self.request(uri, clock, lambda m: m.read_resource(uri, clock))
        self._reads.put(uri, result, asked_at)
        return result

    # Skills, which are asked for only where they were declared

    async def skills(self, clock: CallClock) -> list[Skill]:
        """The skills that it lists; none if it does not declare the extension. Raises CallError."""
        if not await self._has_skills("skills/list", clock):
            return []
        return await self.request("skills/list", clock, lambda m: m.skills(clock))

    async def skill(self, uri: str, clock: CallClock) -> Skill:
        """One skill by its URI, listed or not. Raises CallError."""
        if not await self._has_skills(uri, clock):
            raise NotSent(
                f"it has no skills: it does not declare {SKILLS}",
                server=self.name,
                tool=uri,
                sent=False,
                elapsed=clock.elapsed(asyncio.get_running_loop().time()),
            )
        return await self.request(uri, clock, lambda m: m.skill(uri, clock))

    async def _has_skills(self, label: str, clock: CallClock) -> bool:
        life = await self.for_call(clock, label)
        assert life.negotiated is not None
        # Its settings are an object; one that says null or false means no.
        return life.negotiated.capabilities.extensions.get(SKILLS) not in (None, False)

    # Subscriptions to resources

    async def subscribe(self, uri: str, clock: CallClock) -> None:
        """Be told when a resource changes; renewed with each generation. Raises CallError."""
        life = await self.for_call(clock, uri)
        if not life.modern:
            await self._subscribe_on(life, uri, clock)
            self._subscribed.add(uri)
            return
        if uri in self._subscribed:
            await life.watches(uri, clock)
            return
        self._subscribed.add(uri)
        life.watch_resources(self._subscribed)
        try:
            await life.watches(uri, clock)
        except BaseException:  # boundary: undone, and raised again
            # Whatever ends the waiting, a cancellation too: who was not told that it is on must not find it on.
            self._subscribed.discard(uri)
            life.watch_resources(self._subscribed)
            raise

    async def unsubscribe(self, uri: str, clock: CallClock) -> None:
        """No longer be told. Raises CallError."""
        self._subscribed.discard(uri)
        life = self.life
        if life is None or self.state is not State.READY or life.methods is None:
            return
        if life.modern:
            life.watch_resources(self._subscribed)
        else:
            await life.methods.unsubscribe(uri, clock)

    async def _subscribe_on(self, life: Life, uri: str, clock: CallClock) -> None:
        if not life.modern and life.methods is not None:
            await life.methods.subscribe(uri, clock)

    async def set_log_level(self, level: str, clock: CallClock) -> None:
        """Say which log messages are wanted; said again to each generation. Raises CallError."""
        await self.request("logging/setLevel", clock, lambda m: m.set_log_level(level, clock))
        self._log_level = level

    def _say_again(self, life: Life) -> None:
        """Say to a new generation or session what was said to the last one, in place of what is still being said."""
        if self._saying is not None:
            self._saying.cancel()
            self._saying = None
        if self._subscribed or self._log_level is not None:
            self._saying = self._owner.start(self._renew(life), name="renew subscriptions and log level")

    async def _renew(self, life: Life) -> None:
        if life.modern:
            life.watch_resources(self._subscribed)
        last = [each for each in (_LEVEL, *self._subscribed) if each in self._costly]
        for what in sorted({_LEVEL, *self._subscribed}.difference(last)):
            if not await self._renew_one(life, what):
                return
        if last:
            await asyncio.sleep(self._costs_distance)
            for what in sorted(last):
                if not await self._renew_one(life, what):
                    return
        self._costs_distance = 0.0

    async def _renew_one(self, life: Life, what: str) -> bool:
        """Say one of it. False if that cost the session: then all is said again to the next one."""
        limit = self.spec.bounds.connect
        clock = CallClock.of(asyncio.get_running_loop().time(), limit, limit)
        try:
            if what != _LEVEL:
                await self._subscribe_on(life, what, clock)
            elif self._log_level is not None and life.methods is not None:
                await life.methods.set_log_level(self._log_level, clock)
        except CallError as error:
            kind = "the log level" if what == _LEVEL else f"the subscription to {what}"
            _log.warning("server %s: %s was not renewed: %s", self.name, kind, error)
            if life.renewal is not None:
                self._costly.add(what)
                self._costs_distance = next_distance(self._costs_distance, changed=False)
                return False
        self._costly.discard(what)
        return True

    # Commands

    async def restart(self) -> None:
        """Stop it if it runs, and start it anew at once. Wait with ``ready``."""
        if not self._enabled:
            raise StartError("it is disabled", server=self.name, fix=f"enable({self.name!r})")
        await self._end_life("the server is being restarted")
        self._not_before = float("-inf")
        self._failures = 0
        if self.state in (State.PARKED, *HOPELESS):
            self._forget_login()
            self._fire(Event.RESET)

    async def disable(self) -> None:
        """Stop it and do not start it again until ``enable``."""
        self._enabled = False
        await self._end_life("the server is being disabled")
        if self._enabled:
            # Enabled again meanwhile: the last wish counts.
            if self._wants and self.state in STARTABLE and not self._closing:
                self._begin_life()
        elif self.state in (State.IDLE, State.PARKED, *HOPELESS):
            self._forget_login()
            self._fire(Event.DISABLE)

    def enable(self) -> None:
        """Let it be started again.

        Raises:
            ConfigError: its entry refers to variables that were not set when it was read.
        """
        if self.spec.unresolved:
            raise ConfigError(
                f"it cannot be enabled: {'; '.join(self.spec.unresolved)}",
                server=self.name,
                fix="set them and read the file again",
            )
        self._enabled = True
        self._not_before = float("-inf")
        if self.state is State.DISABLED:
            self._fire(Event.ENABLE)

    def abandon(self) -> None:
        """Its host is gone without a close: end what runs, and start nothing more."""
        self._closing = True
        if self.life is not None:
            self.life.end("its host was dropped without a close")

    async def close(self, deadline: float) -> StopRecord | None:
        """End it for good, by the loop's time ``deadline``. Run by the host's closing task; never cut short.

        Returns what the stop took; None if it was not running.
        """
        self._closing = True
        if self.state is State.CLOSED:
            return self._last_stop
        if self.state is not State.CLOSING:
            self._fire(Event.CLOSE)
        self._forget_login()
        life = self.life
        if life is not None:
            life.end("the host is closing", deadline)
            await outlast(life.task, deadline + 1.0)
        if self._left_login is not None:
            await self._left_login.aclose()
        self.stuck.extend(
            await self._owner.aclose(within=max(0.1, deadline - asyncio.get_running_loop().time()))
        )
        if self.state is State.CLOSING:
            self._fire(Event.CLOSED)
        return life.record if life is not None else None
