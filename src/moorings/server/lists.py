"""What one server offers: its four lists, kept current.

Owned by the server. A list is fetched by one task for any number of callers; ``list_changed`` marks it stale and
brings it anew: one refresh in flight and one after it at most, with a growing distance while nothing really changes.
A refresh that fails leaves the last good list, marked stale; a real difference is published once.
Sources: MCP ``server/tools`` (list changed), ``server/utilities/caching``; field faults 8 and 15.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import compress
from operator import ne
from typing import Any

from .._log import Told, log
from .._tasks import TaskOwner
from ..errors import CallCancelled, CallError, CallTimeout
from ..observe import CatalogChanged
from ..session.clock import CallClock
from ..session.methods import LIST_KINDS, Listed, Methods

__all__ = ["ListState", "Lists", "difference", "next_distance"]

FIRST_DISTANCE = 1.0
LONGEST_DISTANCE = 60.0
FREE_CHANGES = 2
"""Real changes in rapid succession that are looked at without any wait."""
FIRST_RAPID = 0.1
LONGEST_RAPID = 5.0
QUIET = 5.0
"""Seconds, beyond the distance, after which a change is no longer one of a rapid succession."""


def next_distance(before: float, *, changed: bool, rapid: int = 1) -> float:
    """Seconds from this refresh until the next.

    After a real change there is no wait, but a list that is another at each look (``rapid`` of them by now) is looked
    at less often, too: else its server would have us list for ever. While nothing changes, the distance grows.
    """
    if changed:
        over = rapid - FREE_CHANGES
        return 0.0 if over <= 0 else min(FIRST_RAPID * 2.0 ** min(over - 1, 16), LONGEST_RAPID)
    return FIRST_DISTANCE if before < FIRST_DISTANCE else min(before * 2, LONGEST_DISTANCE)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Names added, removed and changed, between two lists by name."""
    # In C as far as it goes: there may be thousands, and nearly all are the same.
    new = list(compress(after, map(ne, map(before.get, after), after.values())))
    added = sorted(name for name in new if name not in before)
    changed = sorted(name for name in new if name in before) if len(added) < len(new) else []
    # As many as before, and those that are new: nothing is missing.
    removed = sorted(before.keys() - after.keys()) if len(before) + len(added) != len(after) else []
    return added, removed, changed


class ListState:
    """One list and how it stands."""

    __slots__ = (
        "by_name",
        "dirty",
        "distance",
        "fetch",
        "fresh_until",
        "last_refresh",
        "listed",
        "problem",
        "rapid",
        "refresh",
        "stale",
    )

    def __init__(self) -> None:
        self.listed: Listed | None = None
        """The last good list; None if there never was one."""
        self.by_name: Mapping[str, Any] = {}
        """Its items by name: calls look here, and a list may hold thousands."""
        self.stale = True
        """True if it may not be what the server has now."""
        self.problem: CallError | None = None
        """Why the last fetch failed."""
        self.fresh_until = float("-inf")
        """Until when the server itself calls it fresh; counts only while nobody tells us of changes."""
        self.fetch: asyncio.Task[Listed] | None = None
        self.refresh: asyncio.Task[None] | None = None
        self.dirty = False
        """A change was announced since the last fetch began."""
        self.distance = 0.0
        self.rapid = 0
        """Real changes in rapid succession, the last one included."""
        self.last_refresh = float("-inf")


async def _never(error: CallError) -> bool:
    return False


class Lists:
    """The lists of one server. Made and ended with it; bound to one generation at a time."""

    def __init__(self, server: str, publish: Callable[[CatalogChanged], None], *, limit: float) -> None:
        self._server = server
        self._publish = publish
        self._limit = limit
        self._states = {kind: ListState() for kind in LIST_KINDS}
        self._methods: Methods | None = None
        self._owner: TaskOwner | None = None
        self._kept_current: Callable[[str], bool] = lambda kind: True
        self._recovered: Callable[[CallError], Awaitable[bool]] = _never
        self._told = Told()

    def __getitem__(self, kind: str) -> ListState:
        return self._states[kind]

    def bind(
        self,
        methods: Methods,
        owner: TaskOwner,
        kept_current: Callable[[str], bool],
        recovered: Callable[[CallError], Awaitable[bool]] = _never,
    ) -> None:
        """A new generation is ready; its owner ends what is fetched on it. What was listed before is kept, stale.

        ``kept_current`` says whether the server tells of changes of a list at this moment; ``recovered`` waits until a
        request that only reads may be sent once more after an error, and says if it may.
        """
        self._recovered = recovered
        self._owner = owner
        self._methods = methods
        self._kept_current = kept_current
        self._told = Told()
        for state in self._states.values():
            state.stale = True
            state.dirty = False
            state.fetch = state.refresh = None
            state.distance = 0.0
            state.rapid = 0
            state.last_refresh = float("-inf")

    def unbind(self) -> None:
        """The generation is over: its owner ends the fetches; the last good lists stay."""
        self._owner = self._methods = None
        for state in self._states.values():
            state.stale = True

    def adopt(self, kind: str, listed: Listed) -> bool:
        """Take a list as the newest. Returns whether it really differs; the difference is published."""
        state = self._states[kind]
        added, removed, changed = difference(state.by_name, listed.by_name)
        state.listed, state.by_name = listed, listed.by_name
        state.stale = False
        state.problem = None
        state.fresh_until = asyncio.get_running_loop().time() + listed.ttl
        for problem in listed.problems:
            log.log(self._told.level(problem), "server %s: %s", self._server, problem)
        if added or removed or changed:
            self._publish(CatalogChanged(self._server, kind, tuple(added), tuple(removed), tuple(changed)))
            return True
        return False

    async def get(self, kind: str, clock: CallClock) -> Listed:
        """The list, fetched if there is none that is fresh; the last good one where a fetch fails or takes longer
        than the caller's clock allows.

        Raises:
            CallError: it could not be fetched, and there never was one.
        """
        state = self._states[kind]
        now = asyncio.get_running_loop().time()
        fresh = now < state.fresh_until or self._kept_current(kind)
        if state.listed is not None and not state.stale and fresh:
            return state.listed
        try:
            return await self._fetched(kind, clock)
        except CallError as error:
            if state.listed is None:
                raise
            self._tell_failure(kind, error)
            return state.listed

    async def refetched(self, kind: str, clock: CallClock) -> None:
        """Fetch a list anew, whatever is known; a failure leaves the last good one."""
        try:
            await self._fetched(kind, clock)
        except CallError as error:
            self._tell_failure(kind, error)

    async def _fetched(self, kind: str, clock: CallClock | None = None) -> Listed:
        """One fetch for all who ask meanwhile; who gives up leaves it whole."""
        state = self._states[kind]
        if state.fetch is None or state.fetch.done():
            if self._owner is None or self._methods is None:
                raise self._interrupted(kind)
            state.fetch = self._owner.start(self._fetch(kind, self._methods), name=f"fetch {kind}")
        task = state.fetch
        now = asyncio.get_running_loop().time()
        await asyncio.wait({task}, timeout=None if clock is None else max(0.0, clock.expires - now))
        if not task.done():
            assert clock is not None
            raise CallTimeout(
                "not listed within the limit of the caller; the fetch goes on",
                server=self._server,
                tool=LIST_KINDS[kind][0],
                sent=True,
                elapsed=clock.elapsed(asyncio.get_running_loop().time()),
                allowed=clock.allowed(),
            )
        if task.cancelled():
            raise self._interrupted(kind)
        return task.result()

    def _interrupted(self, kind: str) -> CallError:
        """The generation ended under a fetch: a list that never came must not look like one that is empty."""
        return CallCancelled(
            "the server was stopped meanwhile", server=self._server, tool=LIST_KINDS[kind][0], sent=True
        )

    async def _fetch(self, kind: str, methods: Methods) -> Listed:
        state = self._states[kind]
        state.dirty = False
        now = asyncio.get_running_loop().time()
        quiet = now - state.last_refresh > state.distance + QUIET
        state.last_refresh = now
        try:
            try:
                listed = await methods.list_all(kind, CallClock.of(now, self._limit, self._limit))
            except CallError as error:
                if not await self._recovered(error):
                    raise
                now = asyncio.get_running_loop().time()
                listed = await methods.list_all(kind, CallClock.of(now, self._limit, self._limit))
        except CallError as error:
            state.problem = error
            state.stale = True
            # A failure may itself have us look again (a session that is lost by each look at a list).
            state.distance = next_distance(state.distance, changed=False)
            raise
        changed = self.adopt(kind, listed)
        if quiet:
            state.rapid = 0
        state.rapid += changed
        state.distance = next_distance(state.distance, changed=changed, rapid=state.rapid)
        if state.dirty:
            state.stale = True
        return listed

    def changed(self, kind: str) -> None:
        """The server says that a list has changed. Resources bring their templates along."""
        for one in ("resources", "resource_templates") if kind == "resources" else (kind,):
            state = self._states[one]
            state.stale = state.dirty = True
            # What nobody has looked at yet is fetched when somebody does.
            if state.listed is None or self._owner is None:
                continue
            if state.refresh is None or state.refresh.done():
                state.refresh = self._owner.start(self._refresh(one), name=f"refresh {one}")

    async def _refresh(self, kind: str) -> None:
        """Fetch while changes are announced, at the distance that has grown so far."""
        state = self._states[kind]
        loop = asyncio.get_running_loop()
        while self._is_dirty(kind):
            wait = state.last_refresh + state.distance - loop.time()
            if wait > 0:
                if state.distance > FIRST_DISTANCE:
                    why = "at every look" if state.rapid > FREE_CHANGES else "that are none"
                    log.info(
                        "server %s: announces changes of %s %s; next look in %.0f s",
                        self._server,
                        kind,
                        why,
                        wait,
                    )
                await asyncio.sleep(wait)
                if not self._is_dirty(kind):
                    # Somebody asked for the list meanwhile, and so it is new.
                    return
            try:
                await self._fetched(kind)
            except CallError as error:
                self._tell_failure(kind, error)
                return

    def _is_dirty(self, kind: str) -> bool:
        return self._states[kind].dirty

    def _tell_failure(self, kind: str, error: CallError) -> None:
        # The text of the error holds times: what it says is the same without them.
        level = self._told.level(f"{kind}: {error.message}")
        log.log(level, "server %s: %s could not be listed anew: %s", self._server, kind, error)

    def snapshot(self) -> dict[str, Any]:
        """How many items each list holds, which are stale, and why one could not be listed."""
        return {
            kind: {"count": len(state.listed.items) if state.listed is not None else 0, "stale": state.stale}
            | ({"problem": str(state.problem)} if state.problem is not None else {})
            for kind, state in self._states.items()
            if state.listed is not None or state.problem is not None
        }
