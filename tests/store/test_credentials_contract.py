"""What every credential store promises, held against each of them: files, sealed files, keyring, Redis, PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable

import pytest

from moorings.store import LeaseLost, LockTimeout, StoredKey, StoreError
from moorings.store.credentials import MAX_VALUE
from tests.engines import POSTGRES_PASSWORD, REDIS_PASSWORD
from tests.store.backends import Place, drop, locked, put

SECRET = b"s3cret-value-of-this-suite"


class Heard:
    """What a watch told, and a wait for the next of it."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._new = asyncio.Event()

    def __call__(self, key: str) -> None:
        self.keys.append(key)
        self._new.set()

    async def until(self, condition: Callable[[], bool], within: float = 3.0) -> float:
        """Wait until ``condition`` holds, and say for how long that was."""
        began = time.monotonic()
        async with asyncio.timeout(within):
            while not condition():
                self._new.clear()
                await self._new.wait()
        return time.monotonic() - began


async def test_what_was_saved_is_loaded_until_it_is_removed(place: Place) -> None:
    async with place.open() as one, place.open() as other:
        assert await one.load("a") is None
        await drop(one, "a")
        for value in (b"", b"\x00\xff\r\n{}" * 3, SECRET * 9000, b"short again"):
            await put(one, "a", value)
            assert await other.load("a") == await one.load("a") == value
        await put(other, "b", b"2")
        await drop(other, "a")
        assert (await one.load("a"), await one.load("b")) == (None, b"2")


async def test_it_is_still_there_for_the_next_process(place: Place) -> None:
    async with place.open() as store:
        await put(store, "a", SECRET)
    with place.worker() as worker:
        assert worker.ask("load", "a") == SECRET.decode()


async def test_a_store_may_be_closed_twice_and_unused_and_makes_nothing_by_itself(place: Place) -> None:
    async with place.open() as store:
        pass
    await store.aclose()


async def test_entries_are_listed_with_what_was_said_of_them_and_without_secrets(place: Place) -> None:
    async with place.open() as store:
        assert await store.keys() == []
        await put(store, "b", SECRET, issuer="https://as.example", principal="local ü\n")
        await put(store, "a", SECRET)
        found = await store.keys()
        await drop(store, "a")
        assert [each.key for each in await store.keys()] == ["b"]
    assert [each.key for each in found] == ["a", "b"]
    assert found[1].about == {"issuer": "https://as.example", "principal": "local ü\n"}
    assert found[0] == StoredKey(key="a", about={}, written=found[0].written)
    assert all(each.written is not None and abs(each.written - time.time()) < 30 for each in found)
    assert SECRET.decode() not in repr(found)


async def test_no_repr_name_or_error_shows_a_password_or_a_value(place: Place) -> None:
    said: list[str] = []
    async with place.open() as store:
        async with locked(store, "a") as lease:
            said += [repr(store), store.name, repr(lease)]
            with pytest.raises(StoreError) as caught:
                await store.save("a", SECRET * (MAX_VALUE // 10), lease)
            said += [str(caught.value), repr(caught.value)]
        with pytest.raises(LeaseLost) as lost:
            await store.save("a", SECRET, lease)
        said += [str(lost.value), repr(lost.value), store.name]
    for secret in (SECRET.decode(), REDIS_PASSWORD, POSTGRES_PASSWORD):
        assert secret not in " ".join(said)


@pytest.mark.parametrize("key", ["", "A", "../x", "a/b", "a.b", "a" * 129, "ü", "a\n", "-a"])
async def test_what_cannot_be_a_key_is_refused(key: str, place: Place) -> None:
    async with place.open() as store:
        with pytest.raises(ValueError, match="a key is"):
            await store.load(key)
        with pytest.raises(ValueError, match="a key is"):
            async with locked(store, key):
                pass
        async with locked(store, "a") as lease:
            with pytest.raises(ValueError, match="a key is"):
                await store.save(key, b"", lease)


# --- the lock -----------------------------------------------------------------------------------------------------


async def test_a_lock_excludes_other_stores_until_the_deadline_and_is_free_at_once_after_it(
    place: Place,
) -> None:
    async with place.open() as one, place.open() as other:
        async with locked(one) as lease:
            assert lease.held
            async with locked(one, "another"):
                pass
            began = time.monotonic()
            with pytest.raises(LockTimeout) as caught:
                async with locked(other, within=0.3):
                    pass
            assert 0.29 < time.monotonic() - began < 1.3
            assert caught.value.waited == pytest.approx(time.monotonic() - began, abs=0.2)
            with pytest.raises(LockTimeout):
                async with locked(one, within=0.0):
                    pass
        assert not lease.held
        async with locked(other, within=0.0) as mine:
            assert mine.name == "k"
            assert place.kind != "redis" or mine.fence > lease.fence


async def test_a_waiter_gets_the_lock_when_it_is_given_back(place: Place) -> None:
    async with place.open() as one, place.open() as other:
        order: list[str] = []
        began = asyncio.Event()

        async def second() -> None:
            began.set()
            async with locked(other):
                order.append("second")

        async with asyncio.TaskGroup() as group:
            async with locked(one):
                group.create_task(second())
                await began.wait()
                await asyncio.sleep(0.1)  # it must be seen not to get in
                order.append("first")
        assert order == ["first", "second"]


async def test_what_is_raised_under_a_lock_gives_it_back(place: Place) -> None:
    async with place.open() as store:
        with pytest.raises(ZeroDivisionError):
            async with locked(store):
                raise ZeroDivisionError
        async with locked(store, within=0.0):
            pass


async def test_a_waiter_that_is_cancelled_leaves_the_lock_to_others(place: Place) -> None:
    async with place.open() as one, place.open() as other:

        async def wait() -> None:
            async with locked(other):
                raise AssertionError("it is not free")

        async with locked(one):
            for _ in range(5):
                task = asyncio.ensure_future(wait())
                await asyncio.sleep(0.02)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                assert task.cancelled()
        async with locked(one, within=1.0):
            pass


@pytest.mark.parametrize("turns", [*range(12), 20, 40])
async def test_a_taker_cancelled_after_any_turn_of_the_loop_leaves_the_lock_to_others(
    turns: int, place: Place
) -> None:
    async with place.open() as one, place.open() as other:
        await one.load("k")  # connected

        async def take() -> None:
            async with locked(one):
                await asyncio.sleep(60)

        task = asyncio.ensure_future(take())
        for _ in range(turns):
            await asyncio.sleep(0.001 if turns >= 20 else 0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async with locked(other, within=2.0):
            pass


@pytest.mark.parametrize("turns", [*range(10), 20, 40])
async def test_a_save_cancelled_after_any_turn_is_done_whole_or_not_at_all(turns: int, place: Place) -> None:
    old, new = b"old " * 1500, b"new " * 1500
    async with place.open() as one, place.open() as other:
        await put(one, "k", old)

        async def save() -> None:
            await put(one, "k", new)

        task = asyncio.ensure_future(save())
        for _ in range(turns):
            await asyncio.sleep(0.001 if turns >= 20 else 0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async with locked(other, within=5.0) as lease:
            # Whoever has the lock now reads what stays.
            found = await other.load("k")
            assert found in (old, new)
            await other.save("k", b"next", lease)
        assert await one.load("k") == b"next"


async def test_without_the_lock_nothing_is_written(place: Place) -> None:
    async with place.open() as one, place.open() as other:
        await put(one, "k", b"old")
        async with locked(one) as lease:
            pass
        for refused in (one.save("k", b"new", lease), one.remove("k", lease)):
            with pytest.raises(LeaseLost, match="given back"):
                await refused
        # With files two stores on one folder are one store; else a lease is good where it was taken.
        if not place.in_files:
            async with locked(other) as foreign:
                with pytest.raises(LeaseLost, match="another store"):
                    await one.save("k", b"new", foreign)
        assert await one.load("k") == b"old"


async def test_eight_processes_take_turns_and_lose_nothing(place: Place) -> None:
    rounds = 12
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(place.worker()) for _ in range(8)]
        for worker in workers:
            worker.tell("count", "k", str(rounds))
        async with place.open() as store:
            seen = []
            reading = True

            async def read() -> None:
                while reading:
                    found = await store.load("k")
                    # Never torn, whoever writes.
                    assert found is None or found.endswith(b" " + b"x" * 3000)
                    assert found is None or len(found.split(b" ")) == 2
                    seen.append(found)
                    await asyncio.sleep(0.01)

            async with asyncio.TaskGroup() as group:
                group.create_task(read())
                answers = await asyncio.gather(*(asyncio.to_thread(worker.answer) for worker in workers))
                reading = False
            assert answers == ["counted"] * 8
            assert (await store.load("k") or b"").split(b" ")[0] == str(8 * rounds).encode()
            assert len(seen) > 3
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_f10_14_processes_that_write_different_keys_lose_none(place: Place) -> None:
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(place.worker()) for _ in range(2)]
        for number, worker in enumerate(workers):
            worker.tell("write", f"k{number}", "60")
        assert [worker.answer() for worker in workers] == ["written"] * 2
    async with place.open() as store:
        assert [await store.load(f"k{number}") for number in range(2)] == [b"k0 59", b"k1 59"]
        assert [each.key for each in await store.keys()] == ["k0", "k1"]


async def test_f17_9_a_holder_that_is_killed_lets_the_next_one_in(place: Place) -> None:
    async with place.open() as store:
        with place.worker() as worker:
            assert worker.ask("lock", "k", "5").startswith("locked")
            with pytest.raises(LockTimeout):
                async with locked(store, within=0.0):
                    pass
            worker.kill()
            began = time.monotonic()
            async with locked(store, within=5.0) as lease:
                await store.save("k", b"mine", lease)
            # A Redis lock ends with its lease, which is 1 s here.
            assert time.monotonic() - began < (2.5 if place.kind == "redis" else 1.0)


async def test_a_waiter_that_is_killed_takes_nothing_with_it(place: Place) -> None:
    async with place.open() as store:
        with place.worker() as worker:
            async with locked(store) as lease:
                worker.tell("lock", "k", "60")
                await asyncio.sleep(0.3)  # so that it waits
                worker.kill()
                await store.save("k", b"mine", lease)
            async with locked(store, within=2.5):
                pass


async def test_a_stopped_holder_is_not_robbed_but_by_redis_which_fences_it_off(place: Place) -> None:
    async with place.open() as store:
        with place.worker() as worker:
            await put(store, "k", b"old")
            assert worker.ask("lock", "k", "5").startswith("locked")
            worker.stop()
            began = time.monotonic()
            if place.kind == "redis":
                async with locked(store, within=5.0) as lease:
                    assert time.monotonic() - began < 2.0  # its lease of 1 s
                    await store.save("k", b"of the successor", lease)
                worker.go_on()
                answer = worker.ask("save", "k", "late")
                assert answer.startswith("LeaseLost: "), answer
                assert await store.load("k") == b"of the successor"
                return
            with pytest.raises(LockTimeout):
                async with locked(store, within=1.5):
                    pass
            assert time.monotonic() - began == pytest.approx(1.5, abs=0.5)
            worker.go_on()
            assert worker.ask("save", "k", "slow and alive") == "saved"
            assert worker.ask("release") == "released"
            async with locked(store, within=1.0):
                assert await store.load("k") == b"slow and alive"


# --- the watch ----------------------------------------------------------------------------------------------------


async def test_what_another_process_changes_is_told_within_a_second_and_own_changes_are_not(
    place: Place,
) -> None:
    async with place.open() as store:
        await put(store, "k", b"before")
        heard = Heard()
        with place.worker() as worker:
            assert worker.ask("load", "k") == "before"
            watch = await store.watch(heard)
            for order, key in [("save", "k"), ("save", "new"), ("save", "k"), ("remove", "k")]:
                assert worker.ask("lock", "any", "5").startswith("locked")
                told = len(heard.keys)
                done = time.monotonic()
                assert worker.ask(order, key, "value") in ("saved", "removed")
                await heard.until(lambda told=told: len(heard.keys) > told)
                assert time.monotonic() - done < 1.0
                assert set(heard.keys[told:]) == {key}
                assert worker.ask("release") == "released"
            told = len(heard.keys)
            await put(store, "k", b"mine")
            await put(store, "mine", b"mine")
            await drop(store, "k")
            assert worker.ask("lock", "any", "5").startswith("locked")
            assert worker.ask("save", "last", "value") == "saved"
            await heard.until(lambda: "last" in heard.keys)
            await asyncio.sleep(1.0)  # two more looks
            assert set(heard.keys[told:]) == {"last"}
            await watch.aclose()
            assert worker.ask("save", "after", "value") == "saved"
            assert "after" not in heard.keys


async def test_a_watch_begins_before_there_is_anything_and_ends_with_its_store(place: Place) -> None:
    heard = Heard()
    async with place.open() as other:
        async with place.open() as store:
            await store.watch(heard)
            await put(other, "first", b"1")
            assert await heard.until(lambda: heard.keys == ["first"]) < 1.0
        await put(other, "second", b"1")
    assert heard.keys == ["first"]


async def test_a_watcher_that_fails_is_told_in_the_log_and_called_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def fails(key: str) -> None:
        heard(key)
        raise ZeroDivisionError

    async with place.open() as store, place.open() as other:
        await store.watch(fails)
        await put(other, "a", b"1")
        await heard.until(lambda: "a" in heard.keys)
        await put(other, "b", b"1")
        await heard.until(lambda: "b" in heard.keys)
    assert "a watcher of stored credentials failed" in caplog.text
    caplog.clear()
    gc.collect()
