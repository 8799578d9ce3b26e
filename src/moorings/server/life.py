"""One life of a server: one process from its spawn to its reaping, in one task.

Made by the server (its owner), one at a time. The task enters and leaves everything itself: it starts the transport,
negotiates, reads the first lists, waits for the end, and takes everything down. Nobody cancels it: its end is asked
for with ``end()``, which also cuts a start short; a native cancellation (a closing event loop) counts as such a
request, and the taking down is finished before it has its way.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from .._tasks import TaskOwner, outlast, put_back_cancellation
from ..config import ServerSpec
from ..errors import (
    CallError,
    CallTimeout,
    MooringsError,
    NeedsLogin,
    NotSent,
    Refused,
    ServerDied,
    StartError,
    StartTimeout,
)
from ..session.clock import CallClock
from ..session.handlers import Handlers
from ..session.listen import Listener
from ..session.methods import Listed, Methods
from ..session.negotiate import Negotiated, Start, negotiate
from ..session.session import Session, SessionHooks, describe
from ..store import EraRecord, Eras
from ..transport.base import Closed, Failure, StopRecord, Transport
from ..wire.eras import Era, listen_filter
from ..wire.types import SubscriptionFilter
from . import connect

if TYPE_CHECKING:
    from ..config import HttpServer
    from ..net.settings import NetSettings
    from ..net.shared import SharedNet
    from ..transport.http_auth import Gate

__all__ = ["Life", "LifeSettings"]

_log = logging.getLogger("moorings")

UNBOUNDED = 24 * 3600.0
"""Seconds; stands for a stop that only the bounds of the server limit."""
HANDLERS_END = 5.0
"""Seconds in which handlers that were cancelled must end, before they are reported as stuck."""
ALIVE_PROBE = 3.0
"""Seconds in which a server whose wrapper exited must show that it lives."""
ALIVE_BUSY = 30.0
"""The same while a call is in flight, on which a server of one thread may be at work."""


class LifeSettings(msgspec.Struct, frozen=True):
    """What a life needs from around it."""

    handlers: Handlers
    client: dict[str, str]
    eras: Eras
    """Where eras are remembered."""
    environment: Callable[[], Mapping[str, str]]
    """The host's environment at the moment of a spawn."""
    log_path: Callable[[str], str | None]
    """Where the log of a server stands."""
    net: SharedNet
    """What all servers of the host send HTTP with."""
    gate: Callable[[str, HttpServer, Callable[[], NetSettings]], Gate]
    """Where a server gets its tokens from."""
    start_slot: Callable[[], asyncio.Semaphore]
    """Bounds how many servers start at once."""
    context: contextvars.Context
    """What a life runs in: that of the host's start, and not of the call that happened to wake the server."""
    slot_hold: float = 5.0
    """Seconds after which a start that is merely slow gives its slot to the next."""


class Life:
    """One generation. See the module; after its task has ended nothing of it is left."""

    def __init__(
        self,
        name: str,
        spec: ServerSpec,
        generation: int,
        settings: LifeSettings,
        owner: TaskOwner,
        *,
        on_ready: Callable[[Life], None],
        on_down: Callable[[Life, MooringsError | None], None],
        on_list_changed: Callable[[str], None],
        on_resource_changed: Callable[[str], None],
        on_renewed: Callable[[Life], None],
    ) -> None:
        self.name = name
        self.spec = spec
        self.generation = generation
        self.began = asyncio.get_running_loop().time()
        self.session: Session | None = None
        self.methods: Methods | None = None
        self.serving: Session | None = None
        """The session while calls may go out on it: from ready until its end is asked for, or comes."""
        self.negotiated: Negotiated | None = None
        self.first_tools: Listed | None = None
        """The tools as listed at the start; None if they could not be listed."""
        self.steps: dict[str, float] = {}
        """Seconds that each step of the start took."""
        self.took_login = False
        """True if a login took up the time of the start: the next one begins at once."""
        self.stop_deadline: float | None = None
        """The loop's time by which a close wants this life gone; None leaves it to the bounds."""
        self.record: StopRecord | None = None
        """What the stop took."""
        self.stuck: list[str] = []
        """Tasks of user code that would not end."""
        self._settings = settings
        self._on_ready = on_ready
        self._on_down = on_down
        self._on_list_changed = on_list_changed
        self._on_resource_changed = on_resource_changed
        self._on_renewed = on_renewed
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._end: asyncio.Future[str] = loop.create_future()
        """Done when this life is to end, with the reason; also when its connection ended by itself."""
        self._died: Closed | None = None
        self._gone: asyncio.Future[None] = loop.create_future()
        """Done when the present connection is over."""
        self.parts = TaskOwner(f"life {generation} of {name}")
        """Owns what runs inside this life; the life's own task belongs to the server."""
        self._transport: Transport | None = None
        self._listeners: dict[str, tuple[Listener, asyncio.Task[None]]] = {}
        self._retiring: dict[str, list[asyncio.Task[None]]] = {}
        """Streams whose follower is not open yet."""
        self._fingerprint = ""
        self._remembered: EraRecord | None = None
        """The era that was remembered when it began."""
        self._told_in_time = False
        """True if the server agreed to tell of changes before it answered with its first list."""
        self.task = owner.start(self._run(), name=f"generation {generation}", context=settings.context.copy())

    @property
    def pid(self) -> int | None:
        """Pid of the process, None before the spawn."""
        return self._transport.pid if self._transport else None

    def end(self, reason: str, by: float | None = None) -> None:
        """Ask for the end, by the loop's time ``by`` if that is set. A start is cut short by it; an end that is under
        way already is hastened."""
        if by is not None and (self.stop_deadline is None or by < self.stop_deadline):
            self.stop_deadline = by
            if self._transport is not None:
                self._transport.hasten(by)
        if not self._end.done():
            self.serving = None
            self._end.set_result(reason)

    failed = False
    """True if it did not end by a wish."""

    @property
    def modern(self) -> bool:
        """True if the modern era was settled on."""
        return self.negotiated is not None and self.negotiated.era is Era.MODERN

    @property
    def usable(self) -> bool:
        """False once its end was asked for, or is known to come."""
        return not self._end.done() and not (self.session is not None and self.session.broken)

    @property
    def ending(self) -> bool:
        """True once the end was asked for, or came by itself."""
        return self._end.done()

    # The one task

    async def _run(self) -> None:
        problem: MooringsError | None = None
        struck: BaseException | None = None
        try:
            problem = await self._live()
        except asyncio.CancelledError:
            self.end("the event loop is closing")
            # The closing loop gets its way at the end of the task; what follows here absorbs and puts it back.
            put_back_cancellation()
        except Exception as fault:  # boundary: a fault of ours must not leave a process behind
            _log.exception("server %s: a fault in Moorings", self.name)
            problem = StartError(f"a fault in Moorings: {fault!r}", server=self.name)
        except GeneratorExit:
            raise
        except (
            BaseException
        ) as error:  # boundary: Ctrl-C or an exit in a step of this task has its way at the end
            struck = error
        # Whatever happened above, from here to the end of the task everything is taken down.
        self.end("the server is being taken down")
        self.failed = problem is not None
        for last in (False, True):
            try:
                await self._take_down(problem)
                break
            except GeneratorExit:
                raise
            except (
                BaseException
            ) as error:  # boundary: what strikes in the middle of it does not end it; once more
                struck = struck or error
                _log.warning("server %s: %r struck while it was taken down", self.name, error)
                if last:
                    self.stuck.append(f"the end of generation {self.generation} of {self.name}: {error!r}")
        if struck is not None:
            raise struck

    _down_told = False

    async def _take_down(self, problem: MooringsError | None) -> None:
        """All that the end takes; begun anew where something struck in the middle of it."""
        if not self._down_told:
            self._down_told = True
            self._on_down(self, problem)
        if self.session is not None:
            self.session.fail(self._end.result() if self._end.done() else "the server is being taken down")
        self.stuck.extend(await self.parts.aclose())
        await self._drop_connection()

    async def _live(self) -> MooringsError | None:
        """Bring it up and wait for its end. Returns why it failed, None if it was asked to end."""
        failure = await self._start_until_ended()
        if failure is not None:
            return failure
        if not self._end.done():
            self.serving = self.session
            self._on_ready(self)
            await self._serve()
        if self._unauthorized is not None:
            return self._unauthorized
        # A process that died of the probe while the end was asked for is no failure.
        return self._death() if self._died is not None and self.negotiated is not None else None

    async def _start_until_ended(self) -> MooringsError | None:
        """The start as a task of its own, so that ``end`` cuts it short wherever it waits."""
        start = self.parts.start(self._start(), name="start")
        try:
            either: set[asyncio.Future[Any]] = {start, self._end}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not start.done():
                start.cancel()
                # A respawn in its middle is finished first: its waits are bounded by the stop ladder.
                await outlast(start, self._loop.time() + UNBOUNDED)
        if start.cancelled() or not start.done():
            return None
        error = start.exception()
        if error is None or isinstance(error, MooringsError):
            return error
        if not isinstance(error, Exception):
            # Ctrl-C or an exit that struck in a step of the start has gone through the loop already: not twice.
            return StartError(f"its start was interrupted by {error!r}", server=self.name)
        raise error

    def _death(self) -> StartError:
        assert self._died is not None
        how = msgspec.structs.replace(self._died, stderr_tail="")
        # A server that is an address did not die if it was never reached.
        kind = StartError if self.negotiated is None and connect.kind_of_http(self._transport) else ServerDied
        died = kind(
            describe(how),
            server=self.name,
            exit_code=self._died.exit_code,
            stderr_tail=self._died.stderr_tail,
            fix="see the last lines of its stderr" if self._died.stderr_tail.strip() else None,
        )
        died.http = self._died.http
        died.needs = self._died.needs
        return died

    # The start

    async def _start(self) -> None:
        slots = self._settings.start_slot()
        async with _Slot(slots, self._settings.slot_hold):
            await self._start_now()

    async def _start_now(self) -> None:
        bounds = self.spec.bounds
        deadline = self._loop.time() + bounds.connect
        began = self._loop.time()
        try:
            async with asyncio.timeout_at(deadline):
                await self._negotiate(deadline)
        except (TimeoutError, CallTimeout):
            raise self._too_slow(began) from None
        except CallError as error:
            if self._died is not None:
                raise self._death() from None
            # Which message it was: what holds for that one ("sent") is not to be read as said of a caller's.
            what = f"{error.tool}: {error.message}" if error.tool else error.message
            failed = StartError(what, server=self.name, stderr_tail=self._tail())
            failed.http = error.http
            failed.needs = error.reason if isinstance(error, NeedsLogin) else ""
            said = error.fix if isinstance(error, Refused | NotSent) else None
            failed.fix = said or connect.next_step(self.spec, error)
            raise failed from None
        except StartError as error:
            error.stderr_tail = error.stderr_tail or self._tail()
            error.fix = error.fix or connect.next_step(self.spec, error)
            raise
        # First the stream that tells of changes, then the lists: what changes in between is told.
        self._listen("lists", self._lists_filter())
        await asyncio.sleep(0)
        await self._first_lists(deadline)
        await self._death_follows()
        if self._died is not None:
            raise self._death()

    def _too_slow(self, began: float) -> StartError:
        who = "it" if self.pid is None else f"it (pid {self.pid})"
        if connect.waits_for_person(self._transport):
            # A person's time is not that of a start: it goes on once they are done.
            login = StartError("somebody is asked to log in to it", server=self.name, fix="finish the login")
            login.needs = "login"
            return login
        if connect.logged_in(self._transport):
            # They are done, and it has used up what was left: the next start has a time of its own.
            self.took_login = True
            again = StartError("the login took up the time of its start", server=self.name)
            again.needs = "login"
            return again
        how_far = "it was not spawned" if self._transport is None else f"{who} did not finish its start"
        return StartTimeout(
            f"{how_far}: {connect.awaited(self._transport)}",
            server=self.name,
            elapsed=self._loop.time() - began,
            allowed=self.spec.bounds.connect,
            stderr_tail=self._tail(),
            fix="see whether something in between holds its answers back, or give it more time (Bounds.connect)"
            if connect.kind_of_http(self._transport)
            else "start it by hand to see what it waits for, or give it more time (Bounds.connect)",
        )

    def _tail(self) -> str:
        return self._transport.stderr_tail() if self._transport else ""

    async def _negotiate(self, deadline: float) -> None:
        start, strict = self._how_to_start()
        self._spawn()
        assert self.session is not None and self._transport is not None
        await self._transport.prepare()
        before = self._loop.time()
        try:
            self.negotiated = await self._talk(start, strict, deadline)
        except StartError as error:
            if not connect.may_be_legacy(self.spec, error):
                raise
            # No Streamable HTTP: what was before it (MCP basic/transports, backward compatibility).
            try:
                await self._talk_as(legacy=True, deadline=deadline)
            except CallError as last:
                # Neither of the two: who mends it wants to know of both.
                both = StartError(
                    f"{error.message}; as HTTP+SSE: {_cause(self._died, last)}", server=self.name
                )
                both.http = error.http
                self._died = None
                raise both from last
            self._remember(died_on_probe=False)
        except CallError:
            await self._death_follows()
            # It went while it was probed: once more, without the probe (F9.1, F9.5).
            if self._died is not None and not strict and connect.was_guessed(self.spec, self._transport):
                # No event stream where one was remembered: find out anew (F9.6).
                self._remembered = None
                await self._respawn()
                self.negotiated = await self._talk("probe", False, deadline)
                self._remember(died_on_probe=False)
                self.steps["negotiate"] = self._loop.time() - before
                return
            if (
                self._died is None
                or strict
                or start == "handshake"
                or not connect.may_die_of_probe(self.spec)
            ):
                raise
            await self._talk_as(legacy=False, deadline=deadline)
            self.steps["probe"] = self._loop.time() - before
            self._remember(died_on_probe=True)
        else:
            self._remember(died_on_probe=False)
        self.steps["negotiate"] = self._loop.time() - before

    async def _talk_as(self, *, legacy: bool, deadline: float) -> None:
        """Another connection, and the handshake on it."""
        await self._respawn(legacy=legacy)
        try:
            self.negotiated = await self._talk("handshake", True, deadline)
        except CallError:
            await self._death_follows()
            raise

    def _how_to_start(self) -> tuple[Start, bool]:
        if self.spec.protocol == "handshake":
            return "handshake", True
        if self.spec.protocol != "auto":
            return "modern", True
        self._fingerprint = self.spec.fingerprint()
        known = self._remembered = self._settings.eras.get(self._fingerprint) if self._fingerprint else None
        if known is None:
            return "probe", False
        return ("modern" if known.era == Era.MODERN.value else "handshake"), False

    def _remember(self, *, died_on_probe: bool) -> None:
        """Only an era that worked is remembered."""
        settled = self.negotiated
        if settled is None or self.spec.protocol != "auto" or not self._fingerprint:
            return
        modern = settled.era is Era.MODERN or settled.proven_modern
        record = EraRecord(
            era="modern" if modern else "handshake",
            revision=settled.revision,
            died_on_probe=died_on_probe and not modern,
            transport=connect.kind_of_http(self._transport),  # type: ignore[arg-type]  # one of the three
        )
        # What died on the probe once is not asked to prove it again.
        if not record.same_as(self._remembered) and not record.same_as(
            self._settings.eras.get(self._fingerprint)
        ):
            self._settings.eras.put(self._fingerprint, record)

    async def _talk(self, start: Start, strict: bool, deadline: float) -> Negotiated:
        assert self.session is not None
        return await negotiate(
            self.session,
            self._settings.handlers,
            self._settings.client,
            start=start,
            strict=strict,
            probe_limit=self.spec.bounds.probe,
            deadline=deadline,
        )

    def _spawn(self, *, legacy: bool = False) -> None:
        """One synchronous step: from here on the process, or the connection, has an owner."""
        bounds = self.spec.bounds
        session = Session(
            self.name,
            self._settings.handlers,
            SessionHooks(
                closed=self._on_closed,
                leader_gone=self._on_leader_gone,
                list_changed=self._note_list_changed,
                acknowledged=self._on_acknowledged,
                noise=self._on_noise,
                resource_changed=self._on_resource_changed,
                needs_login=self._on_needs_login,
                session_lost=self._on_session_lost,
                may_have_missed=self._on_may_have_missed,
            ),
            notifications=bounds.notifications,
            questions=bounds.questions,
            question_limit=bounds.question,
        )
        transport = connect.connect(
            self.name,
            self.spec,
            session,
            self._settings,
            known=self._remembered,
            legacy=legacy,
        )
        self.session, self._transport = session, transport
        self._gone = self._loop.create_future()
        self.methods = Methods(session, max_pages=bounds.max_pages, max_rounds=bounds.max_rounds)
        before = time.perf_counter()
        connect.start(self.name, transport)
        session.attach(transport)
        if transport.pid is not None:
            self.steps["spawn"] = time.perf_counter() - before

    async def _respawn(self, *, legacy: bool = False) -> None:
        """Take the dead process, or the connection, down whole, then start another."""
        await self._drop_connection()
        self._died = None
        # A limit that passed meanwhile strikes here, an end that was asked for counts: nothing more is spawned then.
        await asyncio.sleep(0)
        if self._end.done():
            raise asyncio.CancelledError
        self._spawn(legacy=legacy)

    async def _death_follows(self) -> None:
        """Where a frame found the way out closed, wait for the death: it is a moment behind, and names its code."""
        if self.session is not None and self.session.broken:
            await asyncio.wait({self._gone})

    async def _first_lists(self, deadline: float) -> None:
        """The tools. A list that does not come leaves the server connected with its list missing (F4.4)."""
        assert self.methods is not None and self.negotiated is not None
        before = self._loop.time()
        # A modern server whose discovery said nothing may still have tools: ask, and take no for an answer.
        if self.negotiated.capabilities.tools is not None or self.negotiated.era is Era.MODERN:
            left = max(deadline - before, 0.0)
            # The limit of the start is a promise to those who wait for it: no question of the server moves it.
            clock = CallClock.of(before, left, left + 1.0, until=deadline, why="the limit of the start")
            self.changed_since_listed = False
            try:
                self.first_tools = await self.methods.list_all("tools", clock)
            except CallError as error:
                self.steps["list"] = self._loop.time() - before
                self.list_problem = error
                return
        else:
            self.first_tools = Listed({})
        self.steps["list"] = self._loop.time() - before

    list_problem: CallError | None = None
    """Why the tools could not be listed."""
    changed_since_listed = False
    """True if a change of the tools was announced, or may have been missed, since they were first asked for."""

    # While it lives

    async def _serve(self) -> None:
        """Wait for the end."""
        await asyncio.wait({self._end})

    def _lists_filter(self) -> dict[str, Any]:
        assert self.negotiated is not None
        if self.negotiated.era is not Era.MODERN:
            return {}
        has = self.negotiated.capabilities
        return listen_filter(
            tools=bool(has.tools and has.tools.list_changed),
            prompts=bool(has.prompts and has.prompts.list_changed),
            resources=bool(has.resources and has.resources.list_changed),
        )

    def tells_of(self, kind: str) -> bool:
        """Whether the server tells of changes of a list, so that the last one may be kept."""
        if not self.modern:
            # A server of the handshake era that tells of no changes has none to tell.
            return self._hears_of(kind)
        listener, _ = self._listeners.get("lists", (None, None))
        granted = listener.granted if listener is not None else None
        if granted is None:
            return False
        if kind == "tools":
            return granted.tools_list_changed
        return granted.prompts_list_changed if kind == "prompts" else granted.resources_list_changed

    def _hears_of(self, kind: str) -> bool:
        if self.session is None or self.session.listens:
            return True
        # Over HTTP without a stream of its own, what it would tell is lost.
        has = self.negotiated.capabilities if self.negotiated is not None else None
        declared = has and (
            has.tools if kind == "tools" else has.prompts if kind == "prompts" else has.resources
        )
        return not (declared and declared.list_changed)

    def watch_resources(self, uris: set[str]) -> None:
        """Tell a modern server which resources to tell of: one stream for all of them, opened anew on a change."""
        self._listen("resources", listen_filter(tools=False, prompts=False, resources=False, uris=uris))

    async def watches(self, uri: str, clock: CallClock) -> None:
        """Wait until a modern server has agreed to tell of a resource.

        Raises:
            Refused: it tells of no such thing.
            CallError: it did not say so within the clock, or the connection is over.
        """
        while True:
            listener, _ = self._listeners.get("resources", (None, None))
            error: CallError | None
            if listener is None or self.session is None:
                error = NotSent("not sent: the connection is over", server=self.name, tool=uri, sent=False)
                raise error
            granted, error = await listener.opened(clock.expires)
            if self._listeners.get("resources", (None, None))[0] is not listener:
                continue
            now = self._loop.time()
            if error is not None:
                raise error
            if granted is None:
                raise CallTimeout(
                    f"no answer to the subscription within {clock.limit()}",
                    server=self.name,
                    tool=uri,
                    sent=True,
                    elapsed=clock.elapsed(now),
                    allowed=clock.allowed(),
                )
            if uri not in (granted.resource_subscriptions or ()):
                raise Refused(
                    "the server will not tell of this resource",
                    server=self.name,
                    tool=uri,
                    elapsed=clock.elapsed(now),
                )
            return

    def _listen(self, key: str, wanted: dict[str, Any]) -> None:
        if (old := self._listeners.pop(key, None)) is not None:
            if wanted and old[0].granted is not None:
                # It goes on until the new one tells: nothing is missed in between.
                self._retiring.setdefault(key, []).append(old[1])
            else:
                old[0].abandon()
                old[1].cancel()
        if not wanted or self.session is None or self.ending:
            self._retire(key)
            return
        listener = Listener(
            self.session,
            wanted,
            limit=self.spec.bounds.connect,
            on_open=lambda first: self._on_listening(key, first),
        )
        self._listeners[key] = (listener, self.parts.start(listener.run(), name=f"listen to {key}"))

    def _retire(self, key: str) -> None:
        for task in self._retiring.pop(key, ()):
            task.cancel()

    def _on_listening(self, key: str, first: bool) -> None:
        """A stream was opened. What changed before it was, nobody told us."""
        self._retire(key)
        if not first:
            for kind in ("tools", "prompts", "resources"):
                self._on_list_changed(kind)
        elif key == "lists" and not self._told_in_time:
            self._note_list_changed("tools")

    def _note_list_changed(self, kind: str) -> None:
        if kind == "tools":
            self.changed_since_listed = True
        self._on_list_changed(kind)

    # Another MCP session on the same connection

    def _on_session_lost(self) -> None:
        """The server forgot the session (HTTP, handshake era): one more is made for all that wait meanwhile."""
        if self.negotiated is None or self.ending or self.renewal is not None:
            return
        self.serving = None
        self.renewal = self.parts.start(self._renew_session(), name="another session")

    renewal: asyncio.Task[None] | None = None
    """Makes another MCP session; calls wait for its end."""

    async def _renew_session(self) -> None:
        assert self.session is not None
        _log.info("server %s: it does not know the session any more; another one is made", self.name)
        limit = self.spec.bounds.connect
        began = self._loop.time()
        try:
            self.session.unsettle()
            async with asyncio.timeout(limit):
                self.negotiated = await self._talk("handshake", False, began + limit)
        except (CallError, StartError, TimeoutError) as error:
            why = error.message if isinstance(error, MooringsError) else f"no answer within {limit:g} s"
            if not self._end.done():
                self._died = Closed(f"forgot its session, and did not take another: {why}")
                self._end.set_result(self._died.reason)
            return
        finally:
            self.renewal = None
        if not self._end.done():
            self.serving = self.session
            self._on_renewed(self)

    async def recovered(self, error: CallError) -> bool:
        """Wait until a request that only reads may be sent once more on this connection, after this error. False if it
        may not."""
        if error.elsewhere and self.renewal is not None:
            await asyncio.wait({self.renewal})
        return error.elsewhere and self.usable

    def _on_may_have_missed(self) -> None:
        for kind in ("tools", "prompts", "resources"):
            self._note_list_changed(kind)

    # What the session says

    def _on_acknowledged(self, id_: int, granted: SubscriptionFilter) -> None:
        for key, (listener, _) in self._listeners.items():
            if listener.acknowledge(id_, granted):
                if key == "lists" and self.session is not None:
                    self._told_in_time = self.first_tools is None and self.session.in_flight("tools/list")
                return

    _unauthorized: StartError | None = None
    """Why it ends, where that is for want of a login."""

    def _on_needs_login(self, failure: Failure) -> None:
        """A request got no token. During the start that ends it anyway. Where the others do without a token, or have
        one that is good, it is that request's own matter."""
        if self.negotiated is None or self._end.done() or failure.needs == "scope" or not failure.had_login:
            return
        self._unauthorized = StartError(failure.reason, server=self.name, fix=failure.fix)
        self._unauthorized.http, self._unauthorized.needs = failure.http, failure.needs
        self.serving = None
        self._end.set_result(failure.reason)

    def _on_noise(self, line: bytes) -> None:
        if self._transport is not None:
            self._transport.note(line)

    def _on_closed(self, how: Closed) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        if self._end.done():
            return
        self._died = how
        # During the start the requests in flight end it; a respawn may follow, so this life is not over yet.
        if self.negotiated is not None:
            self.serving = None
            self._end.set_result(how.reason)

    def _on_leader_gone(self, code: int) -> None:
        # During the start the deadline of the start decides; later the server must show that it lives.
        if self.negotiated is not None and not self.ending:
            self.parts.start(self._prove_alive(), name="alive after its wrapper left?")

    async def _prove_alive(self) -> None:
        """A dead server whose pipes a grandchild holds, and a live one that is busy, look alike from outside: only
        time tells them apart. With a call in flight it is given more of it."""
        assert self.methods is not None and self._transport is not None and self.session is not None
        limit = ALIVE_BUSY if self.session.calls_in_flight() else ALIVE_PROBE
        now = self._loop.time()
        try:
            await self.methods.ping(CallClock.of(now, limit, limit))
        except CallError:
            self._transport.give_up("exited")

    # The end

    async def _drop_connection(self) -> None:
        """Session, its tasks, and the process of the current connection: callers first. Absorbs cancellations."""
        session, transport = self.session, self._transport
        if session is not None:
            session.fail(self._end.result() if self._end.done() else "the connection was dropped")
        if transport is not None:
            by_then = self.stop_deadline if self.stop_deadline is not None else self._loop.time() + UNBOUNDED
            self.record = await transport.stop(by_then)
            self.stuck.extend(self.record.stuck)
        # Last: handlers are the user's code, and no process lives on because one of them does.
        if session is not None:
            self.stuck.extend(await session.aclose(self._patience()))

    def _patience(self) -> float:
        """Seconds that handlers are given to end once they are cancelled."""
        if self.stop_deadline is None:
            return HANDLERS_END
        return min(HANDLERS_END, max(self.stop_deadline - self._loop.time(), 0.05))


def _cause(died: Closed | None, error: CallError) -> str:
    return describe(died) if died is not None else error.message


class _Slot:
    """A place among the servers that start at once; given back at the end, or after a while by a slow one."""

    def __init__(self, slots: asyncio.Semaphore, hold: float) -> None:
        self._slots = slots
        self._hold = hold
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        self._timer = asyncio.get_running_loop().call_later(self._hold, self._release)

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._slots.release()
