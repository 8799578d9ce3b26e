"""Credentials in Redis or Valkey, for fleets (extra ``moorings[redis]``). One server, or one primary with replicas.

Everything lies under one prefix, in one slot, and each change is one script, so it happens whole::

    {prefix}:c:<key>     hash    value, about, written
    {prefix}:index       zset    key → number of its last change; of keys that are there
    {prefix}:gone        zset    ... of the last ones removed
    {prefix}:changes     hash    n: the count of all changes; epoch: a word that is another if Redis lost what it had
    {prefix}:l:<name>    text    the token of whoever holds the lock; dies ``LEASE`` seconds after its last renewal
    {prefix}:f:<name>    hash    n: how often the lock was taken; by: the token of the last to take it

**The fence.** A write is done if nobody took the lock since its lease was given, and refused otherwise. So a holder
that was stopped for longer than its lease, and comes back, is fenced off if it has a successor, and loses nothing if
it has none. Renewals take back a lock that ran out and that nobody took.

How durable a save is, is the server's setting (``appendfsync``); what a failover to a replica forgets is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from .._tasks import TaskOwner, outlast, put_back_cancellation
from .._urls import shown_url
from .credentials import (
    CorruptEntry,
    Lease,
    LeaseLost,
    LockTimeout,
    StoredKey,
    StoreError,
    StoreUnusable,
    Watching,
    checked_key,
    checked_value,
)
from .entry import about_of
from .steps import heeding_cancellation

__all__ = ["LEASE", "RedisLease", "RedisStore"]

LEASE = 10.0
"""Seconds after which a lock is free whose holder renews it no more; it does so three times in that time."""

ANSWER = 5.0
"""Seconds the server has for one step."""

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.08
"""Seconds between attempts to get a lock at most; half of each pause is chance."""

EVERY = 0.8
"""Seconds between looks at the count of changes, beside what the server tells by itself."""

SOON = 0.05
"""Seconds until the next look, if one came while a change of our own was under way."""

FENCE_LIFE = 30 * 24 * 3600
"""Seconds for which it is remembered who took a lock last."""

GONE = 1000
"""Removed keys that are remembered for those who watch."""

# Idempotent: an attempt whose answer was lost is repeated with the same token.
_TAKE = """
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then return tonumber(redis.call('HGET', KEYS[2], 'n')) end
if holder then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local n = redis.call('HINCRBY', KEYS[2], 'n', 1)
redis.call('HSET', KEYS[2], 'by', ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return n
"""
_RENEW = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[2], 'by') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_GIVE_BACK = """
if redis.call('HGET', KEYS[2], 'by') == ARGV[1] then redis.call('HSET', KEYS[2], 'by', '') end
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""
_SAVE = """
if redis.call('HGET', KEYS[1], 'by') ~= ARGV[1] then return 0 end
redis.call('HSETNX', KEYS[2], 'epoch', ARGV[1])
local n = redis.call('HINCRBY', KEYS[2], 'n', 1)
redis.call('HSET', KEYS[5], 'value', ARGV[4], 'about', ARGV[5], 'written', ARGV[6])
redis.call('ZADD', KEYS[3], n, ARGV[2])
redis.call('ZREM', KEYS[4], ARGV[2])
redis.call('PUBLISH', KEYS[6], table.concat({ARGV[3], redis.call('HGET', KEYS[2], 'epoch'), n, ARGV[2]}, ' '))
return n
"""
_REMOVE = """
if redis.call('HGET', KEYS[1], 'by') ~= ARGV[1] then return 0 end
if redis.call('DEL', KEYS[5]) == 0 then return -1 end
redis.call('HSETNX', KEYS[2], 'epoch', ARGV[1])
local n = redis.call('HINCRBY', KEYS[2], 'n', 1)
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('ZADD', KEYS[4], n, ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - tonumber(ARGV[4]))
redis.call('PUBLISH', KEYS[6], table.concat({ARGV[3], redis.call('HGET', KEYS[2], 'epoch'), n, ARGV[2]}, ' '))
return n
"""

_log = logging.getLogger(__name__)

if sys.platform == "win32":
    _now = time.monotonic
else:
    # The server's clock goes on while this machine sleeps, so ours has to.
    _CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def _now() -> float:
        return time.clock_gettime(_CLOCK)


class RedisLease:
    """A lock that is held. Made, renewed and given back by ``RedisStore.lock``."""

    __slots__ = ("fence", "good_until", "name", "over", "owner", "token")

    def __init__(self, name: str, token: str, fence: int, owner: object) -> None:
        self.name = name
        self.token = token
        self.fence = fence
        self.owner = owner
        self.over = False
        self.good_until = 0.0
        """By ``_now``. Until then nobody else can have it; after that it may still be ours."""

    def __repr__(self) -> str:
        return f"RedisLease({self.name[:16]!r}, fence={self.fence}, held={self.held})"

    @property
    def held(self) -> bool:
        """False once it was given back, and while somebody else may have it, as it was not renewed in time."""
        return not self.over and _now() < self.good_until


class RedisStore:
    """Credentials under a prefix of a Redis. Connects when first used; ended by ``aclose``."""

    def __init__(self, url: str, *, prefix: str = "moorings:credentials", lease: float = LEASE) -> None:
        self._url = url
        self._prefix = "{" + prefix.replace("{", "").replace("}", "") + "}"
        self._name = f"{shown_url(url)} ({self._prefix[1:-1]})"
        self._lease_time = lease
        self._client: Any = None
        self._tasks = TaskOwner(f"store {self._name}")
        self._me = secrets.token_hex(8)
        self._changes = 0  # under way
        self._mine: deque[int] = deque(maxlen=1000)
        self._watches: set[_Watch] = set()

    def __repr__(self) -> str:
        return f"RedisStore({self._name!r})"

    @property
    def name(self) -> str:
        """What people are shown; without user and password."""
        return self._name

    async def load(self, key: str) -> bytes | None:
        """The value, or None; see ``CredentialStore.load``."""
        async with self._step() as client:
            found = await client.hget(self._key("c", checked_key(key)), "value")
        if found is None or isinstance(found, bytes):
            return found
        raise CorruptEntry(key, "is no value", store=self._name, where=self._key("c", key))

    async def save(
        self, key: str, value: bytes, lease: Lease, *, about: Mapping[str, str] | None = None
    ) -> None:
        """Keep it; see ``CredentialStore.save``."""
        words = msgspec.json.encode(about_of(about))
        await self._change(_SAVE, key, lease, checked_value(value, self._name), words, str(time.time()))

    async def remove(self, key: str, lease: Lease) -> None:
        """Keep nothing; see ``CredentialStore.remove``."""
        await self._change(_REMOVE, key, lease, GONE)

    async def keys(self) -> list[StoredKey]:
        """All entries, by key."""
        async with self._step() as client:
            names = [name.decode() for name in await client.zrange(self._key("index"), 0, -1)]
            found: list[StoredKey] = []
            for name in sorted(names):
                about, written = await client.hmget(self._key("c", name), ["about", "written"])
                if written is not None:
                    found.append(_told(name, about, written))
        return found

    @contextlib.asynccontextmanager
    async def lock(self, name: str, until: float) -> AsyncIterator[RedisLease]:
        """Hold a lock; see ``CredentialStore.lock``."""
        lease = RedisLease(checked_key(name), secrets.token_hex(16), 0, self)
        try:
            await self._take(lease, until)
            renewals = self._tasks.start(self._renew(lease), name="renew a lock")
            try:
                yield lease
            finally:
                lease.over = True
                renewals.cancel()
        finally:
            # Also after an attempt whose answer was not waited for: it may have been taken.
            lease.over = True
            await self._end(self._give_back(lease))

    async def watch(self, changed: Callable[[str], None]) -> Watching:
        """Tell changes of others, as soon as the server does; see ``CredentialStore.watch``."""
        watch = _Watch(self, changed)
        await watch.start()
        self._watches.add(watch)
        return watch

    async def aclose(self) -> None:
        """End watches and renewals and close the connections."""
        while self._watches:
            await self._watches.pop().aclose()
        await self._tasks.drained(asyncio.get_running_loop().time() + ANSWER)
        await self._tasks.aclose()
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # boundary: what is broken is closed as well
                async with asyncio.timeout(ANSWER):
                    await client.aclose()
        self._tasks = TaskOwner(f"store {self._name}")

    # --- steps ----------------------------------------------------------------------------------------------------

    def _key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    def connected(self) -> Any:
        """The client, which connects by itself.

        Raises:
            StoreUnusable: the package is missing, or the URL is none.
        """
        if self._client is None:
            try:
                from redis.asyncio import Redis
                from redis.backoff import NoBackoff
                from redis.retry import Retry
            except ImportError as fault:
                raise StoreUnusable(
                    "the package redis is not installed",
                    store=self._name,
                    fix="pip install 'moorings[redis]'",
                ) from fault
            try:
                self._client = Redis.from_url(
                    self._url,
                    socket_timeout=ANSWER,
                    socket_connect_timeout=ANSWER,
                    socket_keepalive=True,
                    protocol=2,
                    # Repeating is decided here: not every step may be done twice.
                    retry=Retry(NoBackoff(), 0),
                    client_name="moorings",
                )
            except ValueError as fault:
                # Its text quotes the URL.
                raise StoreUnusable("its URL is none that Redis has", store=self._name) from fault
        return self._client

    def changing(self) -> bool:
        """Whether a change of ours is under way, whose number is not known yet."""
        return self._changes > 0

    @contextlib.asynccontextmanager
    async def _step(self) -> AsyncIterator[Any]:
        """Bound a step, and turn what goes wrong into our errors."""
        client = self.connected()
        from redis import exceptions

        bound = asyncio.timeout(ANSWER)
        try:
            async with bound:
                with heeding_cancellation():
                    yield client
        except TimeoutError as fault:
            raise StoreError(f"no answer within {ANSWER:.4g} s", store=self._name) from fault
        except exceptions.AuthenticationError as fault:
            raise StoreError("it refused the user or password", store=self._name) from fault
        except (exceptions.RedisError, OSError) as fault:
            raise StoreError(f"it failed ({_said(fault)})", store=self._name) from fault

    async def _script(self, script: str, keys: list[str], *arguments: Any) -> int:
        async with self._step() as client:
            return int(await client.eval(script, len(keys), *keys, *arguments))

    async def _change(self, script: str, key: str, lease: Lease, *arguments: Any) -> None:
        checked_key(key)
        if not isinstance(lease, RedisLease) or lease.owner is not self:
            raise LeaseLost(lease.name, store=self._name, why="it is a lease of another store")
        if lease.over:
            raise LeaseLost(lease.name, store=self._name, why="it was given back, or somebody else took it")
        names = [
            self._key("f", lease.name),
            *(self._key(part) for part in ("changes", "index", "gone")),
            self._key("c", key),
            self._key("changed"),
        ]
        self._changes += 1
        try:
            number = await self._script(script, names, lease.token, key, self._me, *arguments)
        finally:
            self._changes -= 1
        if number > 0:
            self._mine.append(number)
        elif number == 0:
            lease.over = True
            raise LeaseLost(lease.name, store=self._name, why="somebody else took it meanwhile")

    async def _take(self, lease: RedisLease, until: float) -> None:
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), FIRST_PAUSE
        milliseconds = int(self._lease_time * 1000)
        while True:
            keys = [self._key("l", lease.name), self._key("f", lease.name)]
            asked = _now()
            lease.fence = await self._script(_TAKE, keys, lease.token, milliseconds, FENCE_LIFE)
            if lease.fence:
                lease.good_until = asked + self._lease_time
                return
            now = loop.time()
            if now >= until:
                raise LockTimeout(lease.name, store=self._name, waited=now - began)
            await asyncio.sleep(min(until - now, pause * random.uniform(0.5, 1.0)))
            pause = min(LONGEST_PAUSE, pause * 1.5)

    async def _renew(self, lease: RedisLease) -> None:
        keys = [self._key("l", lease.name), self._key("f", lease.name)]
        while not lease.over:
            await asyncio.sleep(self._lease_time / 3)
            asked = _now()
            try:
                if await self._script(_RENEW, keys, lease.token, int(self._lease_time * 1000)):
                    lease.good_until = asked + self._lease_time
                else:
                    lease.over = True
                    _log.warning(
                        "%s: the lock %.16s was held for too long and went to another", self._name, lease.name
                    )
            except StoreError as fault:
                # Tried again: if nobody takes it meanwhile it is still ours.
                _log.warning("a lock could not be renewed: %s", fault)

    async def _give_back(self, lease: RedisLease) -> None:
        keys = [self._key("l", lease.name), self._key("f", lease.name)]
        try:
            await self._script(_GIVE_BACK, keys, lease.token)
        except StoreError as fault:
            _log.info("a lock is not given back, it ends with its time: %s", fault)

    async def _end(self, work: Any) -> None:
        """Do it in a task of ours, whatever cancels the caller meanwhile."""
        task = self._tasks.start(work, name="give a lock back")
        _, cancelled = await outlast(task, asyncio.get_running_loop().time() + ANSWER)
        if cancelled:
            put_back_cancellation()


class _Watch:
    """Tells changes: what the server publishes at once, and what got lost on the way by the count of changes."""

    def __init__(self, store: RedisStore, changed: Callable[[str], None]) -> None:
        self._store = store
        self._changed = changed
        self._tasks = TaskOwner(f"watch of {store.name}")
        self._epoch = ""
        self._seen = 0
        self._known: set[str] = set()
        self._again = False

    async def start(self) -> None:
        """Take down what is there, and begin."""
        async with self._store._step() as client:
            self._epoch, self._seen = await self._count(client)
            self._known = {name.decode() for name in await client.zrange(self._store._key("index"), 0, -1)}
        self._tasks.start(self._run(), name="listen")

    async def aclose(self) -> None:
        """Listen no more."""
        await self._tasks.aclose()

    async def _run(self) -> None:
        failing, pause = False, 0.1
        while True:
            try:
                async with contextlib.aclosing(self._store.connected().pubsub()) as channel:
                    async with self._store._step():
                        await channel.subscribe(self._store._key("changed"))
                    await self._catch_up()
                    failing, pause = False, 0.1
                    while True:
                        wait = SOON if self._again else EVERY
                        async with self._store._step():
                            said = await channel.get_message(ignore_subscribe_messages=True, timeout=wait)
                        if said is None or not self._next(said["data"]):
                            await self._catch_up()
            except StoreError as fault:
                if not failing:
                    _log.warning("changes of stored credentials are not seen: %s", fault)
                failing = True
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)

    def _next(self, data: bytes) -> bool:
        """Whether a message is of the very next change, which is told; else the server is asked what there is."""
        who, epoch, number, key = (*data.decode("utf-8", "replace").split(" "), "", "", "", "")[:4]
        if epoch != self._epoch or number != str(self._seen + 1):
            return False
        self._seen += 1
        self._known.add(key)
        if who != self._store._me:
            self._tell(key)
        return True

    async def _count(self, client: Any) -> tuple[str, int]:
        epoch, count = await client.hmget(self._store._key("changes"), ["epoch", "n"])
        return (epoch or b"").decode("ascii", "replace"), int(count or 0)

    async def _catch_up(self) -> None:
        store = self._store
        async with store._step() as client:
            epoch, count = await self._count(client)
            self._again = False
            if (epoch, count) == (self._epoch, self._seen):
                return
            forgotten = bool(self._epoch) and epoch != self._epoch
            begin = "-inf" if forgotten else f"({self._seen}"
            found: list[tuple[bytes, float]] = []
            for each in ("index", "gone"):
                found += await client.zrange(store._key(each), begin, "+inf", byscore=True, withscores=True)
        if store.changing():
            self._again = True  # which of them is ours is not known yet
            return
        changed = {name.decode() for name, number in found if forgotten or int(number) not in store._mine}
        if forgotten:
            changed |= self._known
            self._known = set()
        # Some may be newer than the count that was read; they are told once more with the next one.
        self._epoch, self._seen = epoch, count
        self._known.update(name.decode() for name, _ in found)
        for key in sorted(changed):
            self._tell(key)

    def _tell(self, key: str) -> None:
        try:
            self._changed(key)
        except Exception:  # boundary: one watcher's fault is not that of the watch
            _log.exception("a watcher of stored credentials failed")


def _told(key: str, about: bytes | None, written: bytes) -> StoredKey:
    try:
        words = msgspec.json.decode(about or b"{}", type=dict[str, str])
        return StoredKey(key=key, about=words, written=float(written))
    except (msgspec.MsgspecError, ValueError):
        return StoredKey(key=key, problem="what is said about it cannot be read")


def _said(fault: BaseException) -> str:
    """The kind of a fault and its first word, which is the server's code: the rest may quote what it was sent."""
    first = str(fault).split(" ", 1)[0]
    return f"{type(fault).__name__} {first}" if first.isupper() and first.isalpha() else type(fault).__name__
