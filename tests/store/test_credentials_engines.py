"""Redis and PostgreSQL that are away, slow, restarted or refuse: typed, nothing lost, and no word of a password."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

from moorings.store import LeaseLost, LockTimeout, StoreError, StoreUnusable
from moorings.store.postgres_store import LOCKS, PostgresStore
from moorings.store.redis_store import RedisStore
from tests.engines import (
    POSTGRES_PASSWORD,
    REDIS_PASSWORD,
    Engine,
    answers,
    postgres_engine,
    postgres_ready,
    redis_engine,
)
from tests.ports import free_port
from tests.store.backends import Place, drop, locked, put


@contextlib.asynccontextmanager
async def asking(place: Place) -> AsyncIterator[Redis]:
    client = Redis.from_url(place.where["url"], protocol=2)
    try:
        yield client
    finally:
        await client.aclose()


@contextlib.asynccontextmanager
async def sql(place: Place) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(place.where["url"], ssl=False)
    try:
        yield connection
    finally:
        await connection.close()


async def soon(heard: list[str], new: asyncio.Event, key: str, within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while key not in heard:
            new.clear()
            await new.wait()


# --- Redis --------------------------------------------------------------------------------------------------------


async def test_a_redis_lock_is_renewed_while_its_holder_lives(redis: Place) -> None:
    async with redis.open(lease=0.3) as one, redis.open(lease=0.3) as other:
        async with locked(one) as lease:
            with pytest.raises(LockTimeout):
                async with locked(other, within=1.2):  # four leases
                    pass
            assert lease.held
            await one.save("k", b"mine", lease)
        assert await other.load("k") == b"mine"


async def test_a_redis_lease_that_ran_out_and_that_nobody_took_loses_nothing(redis: Place) -> None:
    async with redis.open() as store, asking(redis) as client:
        async with locked(store) as lease:
            assert await client.delete(f"{{{redis.where['prefix']}}}:l:k") == 1  # as when its time is over
            await store.save("k", b"late, and the only one", lease)
        assert await store.load("k") == b"late, and the only one"


async def test_a_redis_lease_that_was_not_renewed_in_time_is_not_held_until_it_is(redis: Place) -> None:
    """As in a process that was stopped: somebody else may have it, which is known without asking."""
    async with redis.open(lease=1.0) as store, locked(store) as lease:
        assert lease.held
        time.sleep(1.1)  # the loop stands still, and no renewal is sent
        assert not lease.held
        async with asyncio.timeout(60.0):
            while not lease.held:  # nobody took it: the next renewal takes it back
                await asyncio.sleep(0.02)
        await store.save("k", b"mine", lease)


async def test_f17_9_a_late_write_of_a_holder_that_was_robbed_is_fenced_off_and_gives_nothing_back(
    redis: Place,
) -> None:
    async with redis.open(lease=30.0) as one, redis.open(lease=30.0) as other, asking(redis) as client:
        await put(one, "k", b"old")
        async with locked(one) as lease:
            await client.delete(f"{{{redis.where['prefix']}}}:l:k")
            async with locked(other, within=0.0) as theirs:
                assert theirs.fence == lease.fence + 1
                for late in (one.save("k", b"late", lease), one.remove("k", lease)):
                    with pytest.raises(LeaseLost):
                        await late
                assert not lease.held
                await other.save("k", b"of the successor", theirs)
                assert theirs.held
            assert await one.load("k") == b"of the successor"
            # The lock was given back by the one who had it; the robbed one must not take it from a third.
            third = other.lock("k", asyncio.get_running_loop().time())
            await third.__aenter__()
        with pytest.raises(LockTimeout):
            async with locked(one, within=0.0):
                pass
        await third.__aexit__(None, None, None)


async def test_a_redis_that_forgot_everything_fences_off_too(redis: Place) -> None:
    async with redis.open(lease=30.0) as one, redis.open(lease=30.0) as other, asking(redis) as client:
        async with locked(one) as lease:
            for key in await client.keys(f"{{{redis.where['prefix']}}}:*"):
                await client.delete(key)
            async with locked(other, within=0.0) as theirs:
                assert theirs.fence == lease.fence  # it counts anew, so the number alone would not do
                with pytest.raises(LeaseLost):
                    await one.save("k", b"late", lease)


async def test_f17_11_a_redis_that_goes_away_is_typed_and_is_found_again_with_what_was_missed() -> None:
    with redis_engine() as engine:
        place = Place("redis", {"url": engine.url, "prefix": "t", "lease": 1.0})
        heard: list[str] = []
        new = asyncio.Event()

        def changed(key: str) -> None:
            heard.append(key)
            new.set()

        async with place.open() as store, place.open() as other:
            await put(store, "k", b"1")
            await store.watch(changed)
            engine.stop()
            for ask in (lambda: store.load("k"), store.keys, lambda: put(store, "k", b"2")):
                with pytest.raises(StoreError) as caught:
                    await ask()
                assert caught.value.transient
                assert REDIS_PASSWORD not in str(caught.value) + repr(caught.value)
            engine.start(lambda: answers(engine.port, b"PING\r\n", b"-NOAUTH"))
            await put(other, "l", b"3")
            await soon(heard, new, "l")
            assert "k" in heard  # it lost what it had
            assert (await store.load("k"), await store.load("l")) == (None, b"3")


async def test_a_redis_that_stops_answering_is_waited_for_five_seconds() -> None:
    with redis_engine() as engine:
        place = Place("redis", {"url": engine.url, "prefix": "t", "lease": 1.0})
        async with place.open() as store:
            await put(store, "k", b"1")
            engine.pause()
            began = time.monotonic()
            with pytest.raises(StoreError) as caught:
                await store.load("k")
            assert caught.value.transient
            assert 4.5 < time.monotonic() - began < 6.5
            engine.resume()
            assert await store.load("k") == b"1"


async def test_messages_of_strangers_and_lost_ones_do_no_harm(redis: Place) -> None:
    heard: list[str] = []
    new = asyncio.Event()

    def changed(key: str) -> None:
        heard.append(key)
        new.set()

    prefix = f"{{{redis.where['prefix']}}}"
    async with redis.open() as store, redis.open() as other, asking(redis) as client:
        await store.watch(changed)
        for message in (b"", b"\xff", b"x y z", b"x 99999999999 k", b"1 2"):
            await client.publish(f"{prefix}:changed", message)
        # A change whose message got lost: told by the count, within a second.
        async with client.pipeline(transaction=True) as change:
            change.hincrby(f"{prefix}:changes", "n", 1)
            change.hset(f"{prefix}:c:silent", mapping={"value": "1", "about": "{}", "written": "1"})
            change.zadd(f"{prefix}:index", {"silent": 1})
            await change.execute()
        await soon(heard, new, "silent", 1.5)
        await put(other, "next", b"1")
        await soon(heard, new, "next", 1.0)
        heard.remove("next")
        await drop(other, "next")
        await soon(heard, new, "next", 1.0)
    assert heard.count("silent") == 1


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{port}/0", "redis://:wrong-secret@127.0.0.1:{port}/0"])
async def test_a_redis_that_is_not_there_or_refuses_us_shows_no_password(
    url: str, redis_server: Engine
) -> None:
    port = redis_server.port if "wrong" in url else free_port()
    store = RedisStore(url.format(port=port))
    with pytest.raises(StoreError) as caught:
        await store.load("k")
    assert "wrong-secret" not in str(caught.value) + repr(store) + store.name
    await store.aclose()


@pytest.mark.parametrize(
    ("kind", "module", "url"),
    [
        (RedisStore, "redis.asyncio", "redis://127.0.0.1"),
        (PostgresStore, "asyncpg", "postgresql://127.0.0.1"),
    ],
)
async def test_without_its_package_the_extra_is_named_and_a_wrong_url_is_told_without_it(
    kind: Any, module: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kind("s3cret-in-a-wrong-url")
    with pytest.raises(StoreError) as wrong:
        await store.load("k")
    assert "s3cret" not in str(wrong.value) + repr(store)
    await store.aclose()
    monkeypatch.setitem(sys.modules, module, None)
    store = kind(url)
    with pytest.raises(StoreUnusable, match="is not installed") as caught:
        await store.load("k")
    assert caught.value.fix.startswith("pip install 'moorings[")
    await store.aclose()


# --- PostgreSQL ---------------------------------------------------------------------------------------------------


async def test_f17_9_a_postgres_lock_ends_with_its_connection_and_no_write_can_follow(
    postgres: Place,
) -> None:
    async with postgres.open() as one, postgres.open() as other, sql(postgres) as connection:
        await put(one, "k", b"old")
        async with locked(one) as lease:
            pid = lease.connection.get_server_pid()
            assert await connection.fetchval("SELECT pg_terminate_backend($1)", pid)
            async with locked(other, within=3.0) as theirs:
                with pytest.raises(StoreError):  # the first time it may still have to find out
                    await one.save("k", b"late", lease)
                with pytest.raises(LeaseLost, match="its connection ended"):
                    await one.save("k", b"late", lease)
                assert not lease.held
                assert theirs.fence > lease.fence
                await other.save("k", b"of the successor", theirs)
        assert await one.load("k") == b"of the successor"


async def test_a_postgres_lock_in_a_process_waits_in_line_for_a_connection(postgres: Place) -> None:
    async with postgres.open() as store, contextlib.AsyncExitStack() as stack:
        for number in range(LOCKS):
            await stack.enter_async_context(locked(store, f"k{number}"))
        with pytest.raises(LockTimeout):
            async with locked(store, "one-more", within=0.2):
                pass
        assert await store.load("k") is None  # reading has connections of its own
        await stack.aclose()
        async with locked(store, "one-more", within=5.0):
            pass


async def test_eight_stores_that_first_need_the_table_make_it_once(postgres: Place) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(postgres.open()) for _ in range(8)]
        assert await asyncio.gather(*(store.load("k") for store in stores)) == [None] * 8


async def test_who_may_use_the_table_need_not_be_able_to_make_one(postgres: Place) -> None:
    table = postgres.where["table"]
    async with postgres.open() as owner, sql(postgres) as connection:
        await put(owner, "k", b"1")
        await connection.execute(
            f"CREATE ROLE {table}_user LOGIN PASSWORD 'other-secret';"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {table}_user;"
            f"GRANT USAGE ON SEQUENCE {table}_change_seq TO {table}_user;"
        )
        url = postgres.where["url"].replace(f"moor:{POSTGRES_PASSWORD}", f"{table}_user:other-secret")
        user = PostgresStore(url, table=table)
        assert await user.load("k") == b"1"
        await put(user, "k", b"2")
        await user.aclose()
        denied = PostgresStore(url, table=f"{table}_not_there")
        with pytest.raises(StoreError, match="InsufficientPrivilege") as caught:
            await denied.load("k")
        assert not caught.value.transient
        await denied.aclose()
        assert await owner.load("k") == b"2"
        await connection.execute(f"DROP OWNED BY {table}_user; DROP ROLE {table}_user")


async def test_spaces_of_one_table_do_not_meet(postgres: Place) -> None:
    url, table = postgres.where["url"], postgres.where["table"]
    one, two = PostgresStore(url, table=table), PostgresStore(url, table=table, space="registrations")
    await put(one, "k", b"1")
    async with locked(one), locked(two, within=0.5) as lease:
        await two.save("k", b"2", lease)
    assert (await one.load("k"), await two.load("k")) == (b"1", b"2")
    assert [each.key for each in await one.keys()] == ["k"]
    await one.aclose()
    await two.aclose()


@pytest.mark.parametrize("table", ["", "A", "a b", "a;drop", "a.b.c", "a'b", '"a"', "1a"])
def test_a_table_of_a_name_that_needs_quotes_is_refused(table: str) -> None:
    with pytest.raises(ValueError, match="a table is named"):
        PostgresStore("postgresql://127.0.0.1", table=table)


async def test_f17_11_a_postgres_that_restarts_is_typed_and_found_again_with_what_was_missed() -> None:
    with postgres_engine() as engine:
        place = Place("postgres", {"url": engine.url, "table": "t"})
        heard: list[str] = []
        new = asyncio.Event()

        def changed(key: str) -> None:
            heard.append(key)
            new.set()

        async with place.open() as store, place.open() as other:
            await put(store, "k", b"1")
            await store.watch(changed)
            async with locked(store) as lease:
                engine.stop()
                for ask in (lambda: store.load("k"), store.keys, lambda: store.save("k", b"2", lease)):
                    with pytest.raises(StoreError) as caught:
                        await ask()
                    assert POSTGRES_PASSWORD not in str(caught.value) + repr(caught.value)
            engine.start(lambda: postgres_ready(engine.port))
            await put(other, "l", b"3")
            await soon(heard, new, "l")
            assert (await store.load("k"), await store.load("l")) == (b"1", b"3")
            assert "k" not in heard


async def test_a_postgres_that_refuses_us_shows_no_password(postgres_server: Engine) -> None:
    for url in (
        f"postgresql://moor:wrong-secret@127.0.0.1:{postgres_server.port}/postgres",
        f"postgresql://moor:wrong-secret@127.0.0.1:{free_port()}/postgres",
    ):
        store = PostgresStore(url)
        with pytest.raises(StoreError) as caught:
            await store.load("k")
        assert "wrong-secret" not in str(caught.value) + repr(store) + store.name
        await store.aclose()


@pytest.mark.parametrize("first", [True, False], ids=["the first look", "a later one"])
async def test_a_reader_cancelled_while_its_connection_is_taken_back_leaves_nothing(
    first: bool, postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg's pool takes a connection back in a task of its own, which complains if its waiter is gone."""
    taken_back = asyncio.Event()
    real = asyncpg.Connection.reset

    async def reset(self: asyncpg.Connection, *, timeout: float | None = None) -> None:
        taken_back.set()
        await real(self, timeout=timeout)

    async with postgres.open() as store:
        if not first:
            await store.load("k")
        monkeypatch.setattr(asyncpg.Connection, "reset", reset)
        task = asyncio.ensure_future(store.load("k"))
        await taken_back.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
