"""A process of the race: a broker on a real store, asked from threads with loops of their own. The other side of
``race_kit.py``.

Started once, it imports what players need and forks one whenever it is told to (``fork``); it also waits for their
end (``wait``) and stops them (``stop``). A player connects to the test and does what it is told there, a line of JSON
each: ``begin``, ``ask``, ``go``, ``end``. It may be told a step of the refresh at which it halts, says so, and goes on
when the test says ``go``: what is to happen at that step happens there and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna  # noqa: F401
import functools
import gc
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast

# What players need is imported here, once for all of them.
import aiohttp  # noqa: F401
import asyncpg  # noqa: F401
import redis.asyncio  # noqa: F401

import moorings.net.exchange
import moorings.net.inflate
import moorings.net.inherited
import moorings.net.pool
import moorings.net.resolver
import moorings.net.tls
import moorings.store.files
import moorings.store.postgres_store
import moorings.store.redis_store  # noqa: F401
from moorings.auth import broker as broker_module
from moorings.auth import grants
from moorings.auth.asked import Bearer, Subject
from moorings.auth.broker import Broker
from moorings.auth.faults import AuthFault
from moorings.auth.model import LOCAL, Credential
from moorings.auth.renewal import INTENT
from moorings.store.credentials import CredentialStore, Lease, StoredKey, Watching
from tests.auth.broker_kit import EndpointFlow
from tests.auth.grants_kit import plain_http, soon
from tests.store.backends import open_store

WITHIN = 60.0
"""Seconds for what takes none: on a busy machine, and for a test that hangs."""


class Stepped:
    """A store that tells ``at`` of each step of a refresh."""

    def __init__(self, store: CredentialStore, at: Callable[[str], None]) -> None:
        self.name = store.name
        self._store = store
        self._at = at

    @contextlib.asynccontextmanager
    async def lock(self, name: str, until: float) -> AsyncIterator[Lease]:
        self._at("before-lock")
        async with self._store.lock(name, until) as lease:
            self._at("locked")
            yield lease
            self._at("before-unlock")

    async def save(
        self, key: str, value: bytes, lease: Lease, *, about: Mapping[str, str] | None = None
    ) -> None:
        what = "intent" if key.endswith(INTENT) else "save"
        self._at(f"before-{what}")
        await self._store.save(key, value, lease, about=about)
        self._at(f"after-{what}")

    async def remove(self, key: str, lease: Lease) -> None:
        await self._store.remove(key, lease)

    async def load(self, key: str) -> bytes | None:
        return await self._store.load(key)

    async def keys(self) -> list[StoredKey]:
        return await self._store.keys()

    async def watch(self, changed: Callable[[str], None]) -> Watching:
        return await self._store.watch(changed)

    async def aclose(self) -> None:
        await self._store.aclose()


class Refreshing:
    """What a flow of ``broker_kit`` asks: the real exchange, with a clock that is told, and its steps."""

    def __init__(
        self,
        wall: Callable[[], float],
        at: Callable[[str], None] = lambda step: None,
        within: float = WITHIN,
    ) -> None:
        self._wall = wall
        self._at = at
        self._within = within

    async def refresh(self, credential: Credential) -> Credential:
        assert credential.refresh_token is not None
        self._at("before-post")
        sent = self._wall()
        async with plain_http() as http:
            tokens = await grants.refresh(
                http,
                credential.metadata,
                credential.registration,
                refresh_token=credential.refresh_token,
                resource=credential.key.resource,
                deadline=soon(self._within),
            )
        self._at("after-post")
        return grants.merged(credential, tokens, now=sent)


def broker_of(
    opened: Callable[[], Awaitable[CredentialStore]], wall: Callable[[], float], endpoint: Refreshing
) -> Broker:
    """A broker that refreshes, and gets no credential by itself."""
    flow: Any = EndpointFlow(cast(Any, endpoint))
    return Broker(opened, flow=lambda subject: flow, wall=wall)


class Turn:
    """One order to ask, carried out by all threads at the same moment."""

    def __init__(self, player: Player, count: int, how: str, within: float) -> None:
        self.how = how
        self.within = within
        self.start = threading.Barrier(count)
        self._player = player
        self._mutex = threading.Lock()
        self._calling = self._open = count
        self._got: list[Any] = []

    def called(self) -> None:
        """One more thread has called the broker; all of them wait, or were served at once."""
        with self._mutex:
            self._calling -= 1
            last = not self._calling
        if last:
            self._player.say(asked=True)

    def done(self, outcome: dict[str, Any]) -> None:
        with self._mutex:
            self._got.append(outcome)
            self._open -= 1
            last = not self._open
        if last:
            self._player.say(got=self._got)


class Player:
    """One process. Its main thread reads orders; its threads ask; its broker has a thread of its own."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._mutex = threading.Lock()
        self._step = ""
        self._go = threading.Event()
        self._wall = 0.0
        self._broker: Any = None  # a Broker, from begin on
        self._subject = Subject(LOCAL, "")
        self._threads: list[tuple[threading.Thread, queue.SimpleQueue[Turn | None]]] = []

    def play(self) -> None:
        self.say(pid=os.getpid())
        with self._socket, self._socket.makefile("r") as lines:
            for line in lines:
                order = json.loads(line)
                if order["do"] == "end":
                    break
                getattr(self, "do_" + order.pop("do"))(**order)
            self.leave()
            with contextlib.suppress(OSError):  # the test ended first
                self.say(ended=True)

    def say(self, **what: Any) -> None:
        with self._mutex:
            self._socket.sendall(json.dumps(what).encode() + b"\n")

    # Orders

    def do_begin(
        self,
        kind: str,
        where: dict[str, Any],
        resource: str,
        wall: float,
        threads: int,
        step: str = "",
        lock_within: float = WITHIN,
        post_within: float = WITHIN,
    ) -> None:
        self._wall, self._step, self._subject = wall, step, Subject(LOCAL, resource)
        broker_module.LOCK_WITHIN = lock_within

        async def opened() -> Stepped:
            return Stepped(open_store(kind, where), self._at)

        endpoint = Refreshing(lambda: self._wall, self._at, post_within)
        self._broker = broker_of(opened, lambda: self._wall, endpoint)
        self._broker.join()
        for number in range(threads):
            orders: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(orders, number % 2 == 1), name=f"player {number}"
            )
            thread.start()
            self._threads.append((thread, orders))
        self.say(begun=True)

    def do_ask(self, how: str, wall: float, within: float = WITHIN) -> None:
        self._wall = wall
        turn = Turn(self, len(self._threads), how, within)
        for _, orders in self._threads:
            orders.put(turn)

    def do_go(self) -> None:
        self._go.set()

    def leave(self) -> None:
        threads, self._threads = self._threads, []
        for _, orders in threads:
            orders.put(None)
        for thread, _ in threads:
            thread.join(WITHIN)
        broker, self._broker = self._broker, None
        if broker is not None:
            end = broker.leave()
            assert end is not None and end.wait(WITHIN)

    # Work

    def _at(self, step: str) -> None:
        """On the broker's own thread, which stands still until the test says ``go``."""
        if step == self._step:
            self._step = ""
            self.say(at=step)
            self._go.wait(2 * WITHIN)

    def _serve(self, orders: queue.SimpleQueue[Turn | None], plain: bool) -> None:
        """A thread. ``plain``: it has no event loop, and is blocked while it waits."""
        last: Bearer | None = None
        with contextlib.ExitStack() as stack:
            runner = None if plain else stack.enter_context(asyncio.Runner())
            while (turn := orders.get()) is not None:
                turn.start.wait(WITHIN)
                try:
                    bearer = self._wait(turn, last) if runner is None else runner.run(self._ask(turn, last))
                except (AuthFault, TimeoutError) as error:
                    turn.done({"error": type(error).__name__, "text": str(error)})
                else:
                    last = bearer
                    turn.done({"token": None if bearer is None else bearer.token.reveal()})

    async def _ask(self, turn: Turn, last: Bearer | None) -> Bearer | None:
        until, call = soon(turn.within), self._broker.bearer
        if turn.how == "refused":
            call = functools.partial(self._broker.refused, bearer=last)
        asking = asyncio.ensure_future(call(self._subject, until=until))
        await asyncio.sleep(0)  # it runs to where it waits
        turn.called()
        return await asking

    def _wait(self, turn: Turn, last: Bearer | None) -> Bearer | None:
        turn.called()
        if turn.how == "refused":
            return self._broker.wait_refused(self._subject, last, turn.within)
        return self._broker.wait_bearer(self._subject, turn.within)


def join_the_rest() -> None:
    """Wait for threads that have said that they end, and may have a step to go."""
    for thread in threading.enumerate():
        if thread.name.startswith("moorings-"):
            thread.join(WITHIN)
            assert not thread.is_alive(), thread


def main() -> None:
    """Fork players as told, until stdin ends."""
    gc.freeze()
    for line in sys.stdin:
        order, number = line.split()
        if order == "fork":
            pid = os.fork()
            if not pid:
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 0)
                os.dup2(null, 1)
                os.close(null)
                Player(int(number)).play()
                gc.collect()  # whoever has to complain of something does so now
                join_the_rest()
                assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
                os._exit(0)  # not as the one it is a copy of, which takes a while
            said = pid
        elif order == "stop":
            os.kill(int(number), signal.SIGSTOP)
            _, status = os.waitpid(int(number), os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            said = 0
        else:
            _, status = os.waitpid(int(number), 0)
            said = os.waitstatus_to_exitcode(status)
        print(said, flush=True)


if __name__ == "__main__":
    main()
