"""F14.10, F10.15: a keyring that is absent, locked, silent, weak or another one is told, and never replaced unasked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import keyring.backends.fail
import keyring.backends.null
import pytest
from keyrings.alt.file import PlaintextKeyring

from moorings.store import CorruptEntry, StoreError, StoreUnusable, keyring_store
from moorings.store.keyring_access import KeyringAccess
from moorings.store.keyring_store import KeyringStore
from tests.store.backends import ROOT, Place, drop, locked, put
from tests.store.dir_keyring import DirKeyring

SECRET = b"s3cret-value-of-this-suite"
LONG = SECRET * 400


@pytest.fixture
def backend(tmp_path: Path) -> DirKeyring:
    (tmp_path / "keyring").mkdir()
    return DirKeyring(tmp_path / "keyring")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keyring"


def found(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """This is what the package ``keyring`` finds on the machine."""
    monkeypatch.setattr(keyring, "get_keyring", lambda: backend)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (keyring.backends.fail.Keyring, "there is no keyring on this machine"),
        (keyring.backends.null.Keyring, "there is no keyring on this machine"),
        (PlaintextKeyring, "does not protect what it keeps"),
    ],
)
async def test_f14_10_a_stand_in_is_refused_and_nothing_is_kept_elsewhere(
    kind: Any, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, kind())
    store = KeyringStore(folder)
    for ask in (lambda: store.load("k"), lambda: put(store, "k", SECRET), lambda: drop(store, "k")):
        with pytest.raises(StoreUnusable, match=said) as caught:
            await ask()
        assert caught.value.fix
    await store.aclose()
    assert sorted(each.name for each in folder.rglob("*")) == ["k.lock", "locks"]


async def test_f14_10_without_the_package_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    store = KeyringStore(folder)
    with pytest.raises(StoreUnusable, match="is not installed") as caught:
        await store.load("k")
    assert caught.value.fix == "pip install 'moorings[keyring]'"
    await store.aclose()


async def test_f14_10_a_keyring_that_hangs_or_asks_is_typed_within_five_seconds_and_not_asked_again_meanwhile(
    folder: Path, backend: DirKeyring
) -> None:
    backend.hang = threading.Event()
    store = KeyringStore(folder, backend=backend)
    began = time.monotonic()
    with pytest.raises(StoreError, match="the keyring did not answer within 5 s") as caught:
        await store.load("k")
    assert caught.value.transient
    assert 4.9 < time.monotonic() - began < 6.0
    for _ in range(20):
        with pytest.raises(StoreError, match="has not answered an earlier call yet"):
            await store.load("k")
    assert time.monotonic() - began < 6.5
    assert backend.calls == 1
    backend.hang.set()
    backend.hang = None
    await store._blocking.aclose()  # the call that hung has ended
    assert await store.load("k") is None
    await store.aclose()


async def test_f10_15_a_keyring_that_is_locked_is_transient_and_works_again(
    folder: Path, backend: DirKeyring
) -> None:
    store = KeyringStore(folder, backend=backend)
    await put(store, "k", SECRET)
    backend.locked = True
    for ask in (lambda: store.load("k"), lambda: put(store, "k", b"new"), lambda: drop(store, "k")):
        with pytest.raises(StoreError, match="the keyring is locked") as caught:
            await ask()
        assert caught.value.transient
    assert [each.key for each in await store.keys()] == ["k"]
    backend.locked = False
    assert await store.load("k") == SECRET
    await store.aclose()


async def test_what_a_backend_quotes_is_not_passed_on(folder: Path, tmp_path: Path) -> None:
    store = KeyringStore(folder, backend=DirKeyring(tmp_path, limit=10))
    with pytest.raises(StoreError, match=r"the keyring failed \(PasswordSetError\)") as caught:
        await put(store, "k", SECRET)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    await store.aclose()


async def test_f14_10_another_keyring_than_before_is_told_and_nothing_is_moved(
    folder: Path, backend: DirKeyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, backend)
    store = KeyringStore(folder)
    await put(store, "k", SECRET)
    assert store.name == "keyring:tests.store.dir_keyring.DirKeyring"
    assert (folder / "keyring").read_text() == "tests.store.dir_keyring.DirKeyring\n"
    await store.aclose()

    class Another(DirKeyring):
        priority = 4.0  # type: ignore[assignment]

    other = Another(tmp_path)
    found(monkeypatch, other)
    store = KeyringStore(folder)
    for ask in (lambda: store.load("k"), lambda: put(store, "k", b"new")):
        with pytest.raises(
            StoreUnusable, match=r"the credentials are in the keyring tests\.store\.dir_keyring"
        ):
            await ask()
    assert other.writes == 0
    await store.aclose()


async def test_a_keyring_of_keyrings_is_one_of_them_for_good(
    folder: Path, backend: DirKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keyring.backends.chainer import ChainerBackend

    monkeypatch.setattr(ChainerBackend, "backends", [backend])
    found(monkeypatch, ChainerBackend())
    assert KeyringAccess("keyring").title() == "tests.store.dir_keyring.DirKeyring"


async def test_a_keyring_of_the_programs_own_is_used_as_it_is(folder: Path, tmp_path: Path) -> None:
    plain = PlaintextKeyring()
    plain.file_path = str(tmp_path / "plain.cfg")
    store = KeyringStore(folder, backend=plain)
    await put(store, "k", LONG)
    assert await store.load("k") == LONG
    await put(store, "k", SECRET)
    assert await store.load("k") == SECRET
    await drop(store, "k")
    assert await store.load("k") is None
    await store.aclose()


# --- long values --------------------------------------------------------------------------------------------------


async def test_long_values_are_cut_to_the_limit_of_a_keyring_and_nothing_of_old_ones_stays(
    folder: Path, backend: DirKeyring
) -> None:
    store = KeyringStore(folder, backend=backend)
    for size, entries in [(20, 1), (20_000, 28), (20_000, 28), (3_000, 5), (20, 1), (0, 1), (3_000, 5)]:
        value = os.urandom(size)
        await put(store, "k", value)
        assert await store.load("k") == value
        assert len(list(backend.folder.iterdir())) == entries
    await drop(store, "k")
    assert list(backend.folder.iterdir()) == []
    await store.aclose()


async def test_a_part_that_is_missing_or_changed_is_told_and_replaced_whole(
    folder: Path, backend: DirKeyring
) -> None:
    store = KeyringStore(folder, backend=backend)
    for damage in ("part", "head"):
        await put(store, "k", LONG)
        item = "credentials:k:a1" if damage == "part" else "credentials:k"
        path = backend._path(f"moorings:{item}", "moorings")
        if not path.exists():
            path = backend._path("moorings:credentials:k:b1", "moorings")
        path.write_text("no credential")
        with pytest.raises(CorruptEntry, match=r"is damaged|is no credential of ours"):
            await store.load("k")
        await put(store, "k", SECRET)
        assert await store.load("k") == SECRET
        assert len(list(backend.folder.iterdir())) == 1
    await store.aclose()


async def test_a_reader_in_the_middle_of_a_write_gets_the_old_or_the_new(
    folder: Path, backend: DirKeyring, keyring: Place
) -> None:
    values = [bytes([number]) * 5000 for number in range(4)]
    async with keyring.open() as one, keyring.open() as other:
        await put(one, "k", values[0])
        writing = True

        async def write() -> None:
            nonlocal writing
            for number in range(40):
                await put(one, "k", values[number % 4])
            writing = False

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            reads = 0
            while writing:
                assert await other.load("k") in values
                reads += 1
        assert reads > 3


KILLED = """
import asyncio, json, sys
from tests.store.backends import open_store, put
async def main():
    await put(open_store("keyring", json.loads(sys.argv[1])), "k", b"new" * 1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("at", range(1, 14))
async def test_f10_6_killed_at_any_write_to_the_keyring_the_old_or_the_new_is_there_and_nothing_stays(
    at: int, keyring: Place
) -> None:
    import json

    old, new = b"old" * 1200, b"new" * 1000
    kept = Path(keyring.where["keyring"])
    async with keyring.open() as store:
        await put(store, "k", old)
        process = subprocess.run(
            [sys.executable, "-c", KILLED, json.dumps({**keyring.where, "kill_at_write": at})],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            timeout=30,
        )
        # 4 parts, the head, and 5 old parts that are deleted.
        assert process.returncode == (-signal.SIGKILL if at <= 10 else 0)
        assert await store.load("k") == (old if at <= 5 else new)
        async with locked(store, within=1.0) as lease:
            await store.save("k", SECRET, lease)
        assert await store.load("k") == SECRET
        assert len(list(kept.iterdir())) == 1


async def test_the_folder_beside_holds_no_secret_and_not_even_a_sum_of_one(
    folder: Path, backend: DirKeyring
) -> None:
    import hashlib

    store = KeyringStore(folder, backend=backend)
    await put(store, "k", SECRET, issuer="https://as.example")
    await store.aclose()
    text = b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())
    assert b"https://as.example" in text
    assert SECRET not in text
    assert hashlib.sha256(SECRET).hexdigest().encode() not in text


async def test_stores_of_different_spaces_do_not_meet(tmp_path: Path, backend: DirKeyring) -> None:
    one = KeyringStore(tmp_path / "one", backend=backend)
    two = KeyringStore(tmp_path / "two", backend=backend, space="registrations")
    await put(one, "k", b"1")
    await put(two, "k", b"2")
    assert (await one.load("k"), await two.load("k")) == (b"1", b"2")
    await one.aclose()
    await two.aclose()


async def test_a_call_that_is_late_holds_its_lock_until_it_returns(
    folder: Path, backend: DirKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring_store, "WRITE", 0.2)
    store, other = KeyringStore(folder, backend=backend), KeyringStore(folder, backend=backend)
    await put(store, "k", b"old")
    assert await other.load("k") == b"old"
    hang = backend.hang = threading.Event()
    with pytest.raises(StoreError, match="did not answer"):
        await put(store, "k", b"new")
    with pytest.raises(StoreError, match="is held"):
        async with locked(other, within=0.1):
            pass
    backend.hang = None
    hang.set()
    async with locked(other, within=5.0):
        assert await other.load("k") == b"new"
    await store.aclose()
    await other.aclose()
