"""Credentials in PostgreSQL, for fleets (extra ``moorings[postgres]``). One table, made when it is first needed.

A lock is an advisory lock of a connection of its own, and what is written under it goes through that connection: if
the connection ends, the lock ends and no write can follow. So nobody is robbed who lives, however slow, and a late
write is impossible; a dead host is noticed by the server's keepalive, within half a minute. A pooler between must
keep sessions (``pool_mode = session``).

Changes are told by ``NOTIFY``; after a break of that connection the numbers of changes are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from .._tasks import TaskOwner, outlast, put_back_cancellation
from .._urls import shown_url
from .credentials import (
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

__all__ = ["PostgresLease", "PostgresStore"]

ANSWER = 5.0
"""Seconds the server has for one step."""

LOCKS = 8
"""Locks held or waited for at one time through one store: each has a connection. Who comes later waits in line."""

READERS = 2
"""Connections for reading."""

HEARTBEAT = 5.0
"""Seconds between two looks whether the connection that listens still lives."""

_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,47}(\.[a-z_][a-z0-9_]{0,47})?")
_SETTINGS = {
    "application_name": "moorings",
    "synchronous_commit": "on",
    # A host that fell silent lets go of its locks.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_log = logging.getLogger(__name__)
T = TypeVar("T")


class PostgresLease:
    """A lock that is held, and the connection that holds it. Made and given back by ``PostgresStore.lock``."""

    __slots__ = ("busy", "connection", "fence", "name", "over", "owner")

    def __init__(self, name: str, connection: Any, fence: int, owner: object) -> None:
        self.name = name
        self.connection = connection
        self.fence = fence
        self.owner = owner
        self.over = False
        self.busy = asyncio.Lock()  # one statement at a time

    def __repr__(self) -> str:
        return f"PostgresLease({self.name[:16]!r}, held={self.held})"

    @property
    def held(self) -> bool:
        """False once it was given back or its connection is gone."""
        return not self.over and not self.connection.is_closed()


class PostgresStore:
    """Credentials in a table. Connects when first used; ended by ``aclose``.

    ``space`` keeps the entries of several stores in one table apart.
    """

    def __init__(self, url: str, *, table: str = "moorings_credentials", space: str = "credentials") -> None:
        if not _TABLE.fullmatch(table):
            raise ValueError("a table is named by small letters, digits and '_', with its schema if need be")
        self._url = url
        self._table = table
        self._space = space
        self._name = f"{shown_url(url)} ({table}, {space})"
        self._channel = "moorings_" + hashlib.sha256(f"{table}/{space}".encode()).hexdigest()[:32]
        self._me = secrets.token_hex(8)
        self._tasks = TaskOwner(f"store {self._name}")
        self._pool: Any = None
        self._ending = False
        """No more connections for reading: they would have no end."""
        self._first = asyncio.Lock()
        self._turns = asyncio.Semaphore(LOCKS)
        self._watches: set[_Watch] = set()

    def __repr__(self) -> str:
        return f"PostgresStore({self._name!r})"

    @property
    def name(self) -> str:
        """What people are shown; without user and password."""
        return self._name

    async def load(self, key: str) -> bytes | None:
        """The value, or None; see ``CredentialStore.load``."""
        query = f"SELECT value FROM {self._table} WHERE space = $1 AND key = $2"
        rows = await self._read(query, self._space, checked_key(key))
        return bytes(rows[0]["value"]) if rows else None

    async def save(
        self, key: str, value: bytes, lease: Lease, *, about: Mapping[str, str] | None = None
    ) -> None:
        """Keep it; see ``CredentialStore.save``."""
        words = msgspec.json.encode(about_of(about)).decode().replace("\\u0000", "")
        query = (
            f"WITH saved AS (INSERT INTO {self._table} AS t (space, key, value, about) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (space, key) DO UPDATE SET value = excluded.value, about = excluded.about,"
            " written = excluded.written, change = excluded.change RETURNING change)"
            " SELECT pg_notify($5, $6 || ' ' || change || ' ' || $2) FROM saved"
        )
        await self._change(
            lease, query, self._space, checked_key(key), checked_value(value, self._name), words,
            self._channel, self._me,
        )  # fmt: skip

    async def remove(self, key: str, lease: Lease) -> None:
        """Keep nothing; see ``CredentialStore.remove``."""
        query = (
            f"WITH gone AS (DELETE FROM {self._table} WHERE space = $1 AND key = $2 RETURNING 1)"
            " SELECT pg_notify($3, $4 || ' 0 ' || $2) FROM gone"
        )
        await self._change(lease, query, self._space, checked_key(key), self._channel, self._me)

    async def keys(self) -> list[StoredKey]:
        """All entries, by key."""
        query = (
            f"SELECT key, about, extract(epoch FROM written)::float8 AS written FROM {self._table}"
            ' WHERE space = $1 ORDER BY key COLLATE "C"'
        )
        return [_told(row) for row in await self._read(query, self._space)]

    @contextlib.asynccontextmanager
    async def lock(self, name: str, until: float) -> AsyncIterator[PostgresLease]:
        """Hold a lock; see ``CredentialStore.lock``."""
        checked_key(name)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._pooled()
        turn = asyncio.timeout_at(max(until, began + 0.001))
        try:
            async with turn:
                await self._turns.acquire()
        except TimeoutError as fault:
            raise LockTimeout(name, store=self._name, waited=loop.time() - began) from fault
        try:
            async with self._faults():
                connection = await self._connect()
            lease = PostgresLease(name, connection, 0, self)
            try:
                await self._take(lease, until, began)
                yield lease
            finally:
                lease.over = True
                await self._end(self._give_back(lease))
        finally:
            self._turns.release()

    async def watch(self, changed: Callable[[str], None]) -> Watching:
        """Tell changes of others, as soon as the server does; see ``CredentialStore.watch``."""
        await self._pooled()
        watch = _Watch(self, changed)
        await watch.start()
        self._watches.add(watch)
        return watch

    async def aclose(self) -> None:
        """End the watches and close the connections."""
        while self._watches:
            await self._watches.pop().aclose()
        loop = asyncio.get_running_loop()
        await self._tasks.drained(loop.time() + ANSWER)
        self._ending = True
        pool, self._pool = self._pool, None
        if len(self._tasks) and pool is not None:
            # What still waits for the server finds its connection closed, and ends by that.
            pool.terminate()
            await self._tasks.drained(loop.time() + ANSWER / 2)
        await self._tasks.aclose()
        if pool is not None:
            try:
                async with asyncio.timeout(ANSWER):
                    await pool.close()
            except Exception:  # boundary: what is broken is closed as well
                pool.terminate()
        self._tasks = TaskOwner(f"store {self._name}")
        self._ending = False

    # --- steps ----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _faults(self) -> AsyncIterator[None]:
        """Turn what goes wrong into our errors. Their texts are left out: they may quote what was sent."""
        asyncpg = self._asyncpg()
        try:
            with heeding_cancellation():
                yield
        except TimeoutError as fault:
            raise StoreError(f"no answer within {ANSWER:.4g} s", store=self._name) from fault
        except asyncpg.PostgresError as fault:
            code = getattr(fault, "sqlstate", None) or ""
            text = f"it failed ({type(fault).__name__} {code})"
            # 28: who we are; 42: what we may, and what is not there.
            raise StoreError(text, store=self._name, transient=code[:2] not in ("28", "42")) from fault
        except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as fault:
            raise StoreError(f"it cannot be reached ({type(fault).__name__})", store=self._name) from fault
        except ValueError as fault:
            raise StoreUnusable("its URL is none that PostgreSQL has", store=self._name) from fault

    def _asyncpg(self) -> Any:
        try:
            import asyncpg
        except ImportError as fault:
            raise StoreUnusable(
                "the package asyncpg is not installed",
                store=self._name,
                fix="pip install 'moorings[postgres]'",
            ) from fault
        return asyncpg

    async def _connect(self, *_: Any, **__: Any) -> Any:
        """A new connection. It is made in a task of ours, and dropped if nobody waits for it any more.

        asyncpg, cancelled while it connects, leaves a future behind that complains.
        """

        async def connect() -> Any:
            return await self._asyncpg().connect(
                self._url,
                timeout=ANSWER,
                command_timeout=ANSWER,
                statement_cache_size=0,
                server_settings=_SETTINGS,
            )

        task = self._started(connect(), "connect")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_drop)
            raise

    async def _pooled(self) -> Any:
        """The connections for reading; with the first of them the table."""
        if self._pool is not None:
            return self._pool
        async with self._faults():
            return await self._unbroken(self._open(), name="open")

    async def _open(self) -> Any:
        async with self._first:
            if self._pool is None:
                if self._ending:
                    raise StoreError("it is being closed", store=self._name)
                pool = await self._asyncpg().create_pool(
                    min_size=0, max_size=READERS, max_inactive_connection_lifetime=60.0, connect=self._connect
                )
                try:
                    await self._make_table(pool)
                except BaseException:  # boundary: undone, and raised again
                    pool.terminate()
                    raise
                self._pool = pool
        return self._pool

    async def _unbroken(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """What uses the pool goes on to its end in a task of ours; the caller waits no longer than it wants.

        asyncpg's pool, cancelled while it takes a connection back, leaves a task of its own behind, which complains.
        Each step inside has a bound of its own.
        """
        task = self._started(work, name)
        async with asyncio.timeout(ANSWER):
            return await asyncio.shield(task)

    def _started(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        if self._tasks.closed:
            work.close()
            raise StoreError("it is being closed", store=self._name)
        return self._tasks.start(work, name=name)

    async def _make_table(self, pool: Any) -> None:
        async with pool.acquire(timeout=ANSWER) as connection:
            # Asked first: whoever may use a table need not have the right to make one.
            if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", self._table):
                return
            async with connection.transaction():
                # Two at the same time would both find that it is not there.
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _number("make", self._table))
                await connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._table} (space text NOT NULL, key text NOT NULL,"
                    " value bytea NOT NULL, about text NOT NULL, written timestamptz NOT NULL DEFAULT now(),"
                    " change bigserial, PRIMARY KEY (space, key))"
                )

    async def _read(self, query: str, *arguments: Any) -> list[Any]:
        pool = await self._pooled()

        async def read() -> list[Any]:
            async with pool.acquire(timeout=ANSWER) as connection:
                return list(await connection.fetch(query, *arguments))

        async with self._faults():
            return await self._unbroken(read(), name="read")

    async def _change(self, lease: Lease, query: str, *arguments: Any) -> None:
        if not isinstance(lease, PostgresLease) or lease.owner is not self:
            raise LeaseLost(lease.name, store=self._name, why="it is a lease of another store")
        async with lease.busy:
            if lease.over:
                raise LeaseLost(lease.name, store=self._name, why="it was given back")
            if lease.connection.is_closed():
                raise LeaseLost(lease.name, store=self._name, why="its connection ended")
            async with self._faults():
                await lease.connection.execute(query, *arguments)

    async def _take(self, lease: PostgresLease, until: float, began: float) -> None:
        loop = asyncio.get_running_loop()
        number = _number(self._table, self._space, lease.name)
        asyncpg = self._asyncpg()
        async with self._faults():
            if not await lease.connection.fetchval("SELECT pg_try_advisory_lock($1)", number):
                left = until - loop.time()
                if left <= 0:
                    raise LockTimeout(lease.name, store=self._name, waited=loop.time() - began)
                milliseconds = str(max(1, int(left * 1000)))
                await lease.connection.execute("SELECT set_config('lock_timeout', $1, false)", milliseconds)
                try:
                    await lease.connection.execute(
                        "SELECT pg_advisory_lock($1)", number, timeout=left + ANSWER
                    )
                except asyncpg.LockNotAvailableError as fault:
                    waited = loop.time() - began
                    raise LockTimeout(lease.name, store=self._name, waited=waited) from fault
                await lease.connection.execute("SELECT set_config('lock_timeout', '0', false)")
            lease.fence = await lease.connection.fetchval(
                "SELECT nextval(pg_get_serial_sequence($1, 'change'))", self._table
            )

    async def _give_back(self, lease: PostgresLease) -> None:
        """Give the lock back, and end the connection."""
        async with lease.busy:
            try:
                # The end of the connection would do, a little later than we can tell.
                await lease.connection.execute("SELECT pg_advisory_unlock_all()", timeout=ANSWER / 2)
                await lease.connection.close(timeout=ANSWER / 2)
            except Exception:  # boundary: a connection that is broken has no lock any more
                lease.connection.terminate()

    async def _end(self, work: Any) -> None:
        """Do it in a task of ours, whatever cancels the caller meanwhile."""
        task = self._tasks.start(work, name="give a lock back")
        _, cancelled = await outlast(task, asyncio.get_running_loop().time() + 2 * ANSWER)
        if cancelled:
            put_back_cancellation()


class _Watch:
    """Listens on a connection of its own."""

    def __init__(self, store: PostgresStore, changed: Callable[[str], None]) -> None:
        self._store = store
        self._changed = changed
        self._tasks = TaskOwner(f"watch of {store.name}")
        self._known: dict[str, int] = {}

    async def start(self) -> None:
        """Take down what is there, and begin."""
        connection = await self._listen()
        try:
            self._known = await self._numbers(connection)
        except BaseException:  # boundary: undone, and raised again
            connection.terminate()
            raise
        self._tasks.start(self._run(connection), name="listen")

    async def aclose(self) -> None:
        """Listen no more."""
        await self._tasks.aclose()

    async def _run(self, connection: Any) -> None:
        failing, pause = False, 0.1
        while True:
            try:
                if connection is None:
                    connection = await self._listen()
                    await self._catch_up(connection)
                failing, pause = False, 0.1
                while not connection.is_closed():
                    await self._beat(connection)
            except StoreError as fault:
                if not failing:
                    _log.warning("changes of stored credentials are not seen: %s", fault)
                failing = True
            finally:
                if connection is not None:
                    connection.terminate()
                connection = None
            await asyncio.sleep(pause)
            pause = min(2.0, pause * 2)

    async def _listen(self) -> Any:
        store = self._store
        async with store._faults():
            connection = await store._connect()
            try:
                await connection.add_listener(store._channel, self._heard)
            except BaseException:  # boundary: undone, and raised again
                connection.terminate()
                raise
        return connection

    async def _beat(self, connection: Any) -> None:
        """Wait a while, or until the connection ends, and see that it lives."""
        ended = asyncio.Event()

        def tell(_: Any) -> None:
            ended.set()

        connection.add_termination_listener(tell)
        try:
            async with asyncio.timeout(HEARTBEAT):
                await ended.wait()
        except TimeoutError:
            async with self._store._faults():
                await connection.execute("SELECT 1")
        finally:
            connection.remove_termination_listener(tell)

    async def _numbers(self, connection: Any) -> dict[str, int]:
        store = self._store
        async with store._faults():
            rows = await connection.fetch(
                f"SELECT key, change FROM {store._table} WHERE space = $1", store._space
            )
        return {row["key"]: row["change"] for row in rows}

    async def _catch_up(self, connection: Any) -> None:
        before, now = self._known, await self._numbers(connection)
        self._known = now
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                self._tell(key)

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        who, _, rest = str(payload).partition(" ")
        number, _, key = rest.partition(" ")
        if number.isdigit() and int(number):
            self._known[key] = int(number)
        else:
            self._known.pop(key, None)
        if who != self._store._me:
            self._tell(key)

    def _tell(self, key: str) -> None:
        try:
            self._changed(key)
        except Exception:  # boundary: one watcher's fault is not that of the watch
            _log.exception("a watcher of stored credentials failed")


def _drop(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def _number(*words: str) -> int:
    """The number of an advisory lock. Two names that share one would wait for each other, and no more."""
    digest = hashlib.sha256("/".join(("moorings", *words)).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _told(row: Any) -> StoredKey:
    try:
        words = msgspec.json.decode(row["about"], type=dict[str, str])
    except msgspec.MsgspecError:
        return StoredKey(
            key=row["key"], written=row["written"], problem="what is said about it cannot be read"
        )
    return StoredKey(key=row["key"], about=words, written=row["written"])
