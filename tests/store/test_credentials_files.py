"""F16.9, F16.11, F10.14, F10.15: credentials in files are private, whole, behind no link, and never lost unsaid."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.store import CorruptEntry, LeaseLost, LockTimeout, StoreError, StoreUnusable
from moorings.store import file_lock as file_lock_module
from moorings.store.entry import Malformed, about_of, decode, encode, head_of
from moorings.store.files import FileStore
from moorings.store.sealing import KeyringSealing
from tests.store.backends import ROOT, Place, drop, locked, put
from tests.store.dir_keyring import DirKeyring

SECRET = b"s3cret-value-of-this-suite"


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def folder_of(files: Place) -> Path:
    return Path(files.where["folder"])


def python(code: str, *words: object, **more: Any) -> subprocess.Popen[str]:
    """Another process that runs ``code``."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        **more,
    )


# --- privacy ------------------------------------------------------------------------------------------------------


async def test_f16_9_files_and_folders_are_private_from_the_first_byte_under_any_umask(
    umask: int, files: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    write = os.fsync

    def looked_at(descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            seen.append(stat.S_IMODE(found.st_mode))
        write(descriptor)

    monkeypatch.setattr(os, "fsync", looked_at)
    async with files.open() as store:
        await put(store, "k", SECRET)
        await put(store, "k", SECRET)
    folder = folder_of(files)
    assert len(seen) == 2
    assert all(not each & ~0o600 for each in seen)
    assert mode(folder) == mode(folder / "locks") == mode(folder.parent) == 0o700
    assert not mode(folder / "k.credential") & ~0o600
    assert not mode(folder / "locks" / "k.lock") & ~0o600
    assert sorted(os.listdir(folder)) == ["k.credential", "locks"]


async def test_the_disk_has_it_before_save_returns(files: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def replaced(*paths: Any) -> None:
        order.append("replace")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    async with files.open() as store:
        await put(store, "k", SECRET)
        assert order == ["file", "replace", "folder"]
        order.clear()
        await drop(store, "k")
        assert order == ["folder"]


async def test_the_first_line_is_for_people_and_holds_no_secret(files: Place) -> None:
    async with files.open() as store:
        await put(store, "k", SECRET, issuer="https://as.example")
    line, _, rest = (folder_of(files) / "k.credential").read_bytes().partition(b"\n")
    assert b"https://as.example" in line
    assert SECRET not in line
    assert rest == SECRET


async def test_what_others_could_read_is_closed_to_them(
    files: Place, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(files)
    async with files.open() as store:
        await put(store, "k", SECRET)
        folder.chmod(0o755)
        (folder / "k.credential").chmod(0o644)
        assert await store.load("k") == SECRET
        assert mode(folder / "k.credential") == 0o600
        await put(store, "other", SECRET)
        assert mode(folder) == 0o700
    assert caplog.text.count("could be read by others") == 2


async def test_a_folder_above_in_which_everybody_may_write_is_refused(files: Place) -> None:
    above = folder_of(files).parent
    async with files.open() as store:
        await put(store, "k", SECRET)
        above.chmod(0o777)
        for refused in (store.load("k"), put(store, "k", b"x")):
            with pytest.raises(StoreUnusable, match="everybody may write in") as caught:
                await refused
            assert caught.value.fix == f"chmod o-w {above}"
        above.chmod(0o1777)  # like /tmp: only the owner of a thing may move it
        assert await store.load("k") == SECRET


async def test_the_folder_behind_a_link_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "open" / "real")
    store = FileStore(tmp_path / "link" / "credentials")
    with pytest.raises(StoreUnusable, match="everybody may write"):
        await put(store, "k", SECRET)
    await store.aclose()


async def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = FileStore(tmp_path / "link")
    with pytest.raises(StoreUnusable, match="is a link"):
        await put(store, "k", SECRET)
    await store.aclose()
    assert os.listdir(tmp_path / "real") == []


async def test_links_pipes_and_folders_in_the_place_of_a_file_are_not_followed_and_kept_aside(
    files: Place, tmp_path: Path
) -> None:
    folder, target = folder_of(files), tmp_path / "target"
    async with files.open() as store:
        await put(store, "a", SECRET)
        target.write_bytes((folder / "a.credential").read_bytes())
        (folder / "a.credential").unlink()
        (folder / "a.credential").symlink_to(target)
        os.mkfifo(folder / "b.credential")
        (folder / "c.credential").mkdir()
        for key in "abc":
            with pytest.raises(CorruptEntry, match=r"is a link|is no file"):
                await store.load(key)
            await put(store, key, b"new")
            assert await store.load(key) == b"new"
            assert stat.S_ISREG((folder / f"{key}.credential").lstat().st_mode)
    assert target.read_bytes().endswith(SECRET)
    assert len([name for name in os.listdir(folder) if ".corrupt-" in name]) == 3


async def test_a_lock_file_that_is_a_link_is_not_followed(files: Place, tmp_path: Path) -> None:
    async with files.open() as store:
        async with locked(store, "other"):
            pass
        (folder_of(files) / "locks" / "k.lock").symlink_to(tmp_path / "made")
        with pytest.raises(StoreError, match="the disk of the locks refused"):
            async with locked(store):
                pass
    assert not (tmp_path / "made").exists()


# --- damage -------------------------------------------------------------------------------------------------------


def damaged(whole: bytes) -> dict[str, bytes]:
    line, _, rest = whole.partition(b"\n")
    return {
        "empty": b"",
        "cut in its line": whole[:20],
        "cut before the secret": line + b"\n",
        "cut in the secret": whole[:-1],
        "a trailing brace": whole + b"}",
        "a trailing line break": whole + b"\n",
        "one byte changed": whole[:-1] + b"X",
        "json of somebody else": b'{"access_token": "s3cret-value-of-this-suite"}\n',
        "no json": b"\x00" * 100,
        "deep": b"[" * 20_000,
        "no line break": b"x" * 40_000,
        "another key": line.replace(b'"key":"k"', b'"key":"l"') + b"\n" + rest,
        "a later format": line.replace(b'"format":1', b'"format":2') + b"\n" + rest,
        "huge": whole + b"x" * 3_000_000,
    }


@pytest.mark.parametrize("kind", list(damaged(b"\n")))
async def test_f10_14_a_damaged_file_is_told_by_name_kept_aside_and_harms_no_other(
    kind: str, files: Place, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder_of(files) / "k.credential"
    async with files.open() as store:
        await put(store, "k", SECRET, issuer="https://as.example")
        await put(store, "other", b"fine")
        bad = damaged(path.read_bytes())[kind]
        path.write_bytes(bad)
        for _ in range(2):
            with pytest.raises(CorruptEntry) as caught:
                await store.load("k")
            assert str(path) in str(caught.value)
            assert not caught.value.transient
            assert SECRET.decode() not in str(caught.value)
        assert path.read_bytes() == bad  # reading moves nothing: somebody may be writing
        assert await store.load("other") == b"fine"
        listed = {each.key: each for each in await store.keys()}
        assert not listed["other"].problem
        if kind != "one byte changed":  # the list does not read the secrets
            assert str(path) in listed["k"].problem
        await put(store, "k", b"new")
        assert await store.load("k") == b"new"
    (aside,) = (each for each in path.parent.iterdir() if ".corrupt-" in each.name)
    assert aside.read_bytes() == bad
    assert mode(aside) == 0o600
    assert f"kept as {aside}" in caplog.text
    assert SECRET.decode() not in caplog.text


async def test_a_damaged_file_is_kept_when_its_credential_is_removed_and_only_the_last_ones_are(
    files: Place,
) -> None:
    folder = folder_of(files)
    async with files.open() as store:
        await put(store, "k", SECRET)
        for number in range(5):
            (folder / "k.credential").write_text(f"damaged {number}")
            await drop(store, "k")
            assert await store.load("k") is None
    asides = sorted(each for each in folder.iterdir() if ".corrupt-" in each.name)
    assert [each.read_text() for each in asides] == ["damaged 2", "damaged 3", "damaged 4"]


@given(st.binary(max_size=300), st.dictionaries(st.text(max_size=20), st.text(max_size=400), max_size=25))
def test_what_was_encoded_is_decoded(value: bytes, about: dict[str, str]) -> None:
    data = encode("k", value, about=about, written=1.5, sealed="")
    head, payload = decode("k", data)
    assert payload == value
    assert head.about == about_of(about)
    assert head_of("k", data[: 16 * 1024], len(data))[0] == head


@given(st.binary(max_size=300), st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_no_damage_passes_for_a_credential(value: bytes, at: int, change: bytes) -> None:
    data = encode("k", value, about={"a": "b"}, written=1.0, sealed="")
    at = min(at, len(data))
    bad = data[:at] + change + data[at + len(change) :]
    try:
        _, payload = decode("k", bad)
    except Malformed:
        return
    assert payload == value  # at most the words for people were changed


# --- a disk that fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
async def test_f10_15_a_disk_that_fails_at_any_step_leaves_the_old_one_and_is_transient(
    step: str, files: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with files.open() as store:
        await put(store, "k", b"old")
        whole = getattr(os, step)

        def fails(first: Any, *rest: Any, **more: Any) -> Any:
            if step != "open" or ".tmp" in str(first):
                raise OSError(errno.ENOSPC, "No space left on device")
            return whole(first, *rest, **more)

        async with locked(store) as lease:
            with monkeypatch.context() as patched:
                patched.setattr(os, step, fails)
                with pytest.raises(StoreError, match="No space left") as caught:
                    await store.save("k", b"new", lease)
            assert caught.value.transient
            assert await store.load("k") == b"old"
            await store.save("k", b"new", lease)
        assert await store.load("k") == b"new"
    assert sorted(os.listdir(folder_of(files))) == ["k.credential", "locks"]


async def test_a_full_disk_of_the_system_itself(files: Place) -> None:
    async with files.open() as store:
        await put(store, "k", b"old")
        process = python(
            """
            import asyncio, resource, signal, sys
            from moorings.store import StoreError
            from moorings.store.files import FileStore
            from tests.store.backends import put
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            async def main():
                store = FileStore(sys.argv[1])
                try:
                    await put(store, "k", b"x" * 100_000)
                except StoreError as fault:
                    print(fault.transient, fault)
                await store.aclose()
            asyncio.run(main())
            """,
            folder_of(files),
        )
        said, _ = process.communicate(timeout=20)
        assert said.startswith("True file:")
        assert "File too large" in said
        assert await store.load("k") == b"old"
    assert sorted(os.listdir(folder_of(files))) == ["k.credential", "locks"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_f10_15_what_may_not_be_read_is_not_taken_for_absent(files: Place, tmp_path: Path) -> None:
    async def prepare() -> None:
        async with files.open() as store:
            await put(store, "k", SECRET)

    asyncio.run(prepare())
    tmp_path.chmod(0o755)
    for each in (tmp_path.parent, tmp_path.parent.parent, tmp_path.parent.parent.parent):
        each.chmod(each.stat().st_mode | 0o011)
    folder_of(files).parent.chmod(0o755)
    process = python(
        """
        import asyncio, os, sys
        from moorings.store import StoreError
        from moorings.store.files import FileStore
        import tests.store.backends
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        async def main():
            store = FileStore(sys.argv[1])
            for ask in (lambda: store.load("k"), store.keys):
                try:
                    print("found", await ask())
                except StoreError as fault:
                    print(fault.transient, fault)
            await store.aclose()
        asyncio.run(main())
        """,
        folder_of(files),
    )
    said, _ = process.communicate(timeout=20)
    assert said.count("True file:") == 2
    assert said.count("Permission denied") == 2


async def test_a_disk_that_hangs_is_waited_for_no_longer_than_its_bound_and_keeps_the_lock(
    files: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    hang = threading.Event()
    fsync = os.fsync

    def hangs(descriptor: int) -> None:
        hang.wait()
        fsync(descriptor)

    async with files.open() as store, files.open() as other:
        await put(store, "k", b"old")
        monkeypatch.setattr(os, "fsync", hangs)
        monkeypatch.setitem(store._blocking.run.__func__.__kwdefaults__, "within", 0.2)
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"did not answer within 0\.2 s"):
            await put(store, "k", b"new")
        assert time.monotonic() - began < 1.2
        # The write goes on, so the lock is not free, though its holder has left.
        with pytest.raises(LockTimeout):
            async with locked(other, within=0.2):
                pass
        hang.set()
        async with locked(other, within=5.0):
            assert await other.load("k") == b"new"


# --- killed in the middle -----------------------------------------------------------------------------------------

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
import moorings.store.atomic
from tests.store.backends import open_store, put
folder, step = sys.argv[1:]
where = {"folder": folder}
async def main():
    store = open_store("files", where)
    def dies(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)
    if step == "after":
        replace = os.replace
        def dies(*paths):
            replace(*paths)
            os.kill(os.getpid(), signal.SIGKILL)
    setattr(os, {"after": "replace"}.get(step, step), dies)
    await put(store, "k", b"new" * 1000)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("step", "found"),
    [("fsync", b"old"), ("replace", b"old"), ("after", b"new" * 1000), ("link", b"damaged")],
)
async def test_f10_6_killed_at_a_step_of_a_write_the_old_or_the_new_is_there(
    step: str, found: bytes, files: Place
) -> None:
    folder = folder_of(files)
    async with files.open() as store:
        await put(store, "k", b"old")
        if step == "link":
            (folder / "k.credential").write_bytes(b"damaged")
        process = python(KILLED, folder, step)
        process.communicate(timeout=20)
        assert process.returncode == -signal.SIGKILL
        if step == "link":
            with pytest.raises(CorruptEntry):
                await store.load("k")
        else:
            assert await store.load("k") == found
        async with locked(store, within=1.0) as lease:
            await store.save("k", b"next", lease)
        assert await store.load("k") == b"next"
        left = [each for each in folder.iterdir() if each.name.endswith(".tmp")]
        assert len(left) == (step in ("fsync", "replace"))
    # What a killed writer left is private, and goes when it is old.
    for each in left:
        assert mode(each) == 0o600
        os.utime(each, (0, 0))
    async with files.open() as later:
        await put(later, "k", b"again")
    assert not [each for each in folder.iterdir() if each.name.endswith(".tmp")]


# --- the lock file ------------------------------------------------------------------------------------------------


async def test_a_lock_whose_file_was_deleted_writes_nothing_more(files: Place) -> None:
    path = folder_of(files) / "locks" / "k.lock"
    async with files.open() as one, files.open() as other:
        await put(one, "k", b"old")
        async with locked(one) as lease:
            path.unlink()
            async with locked(other, within=0.0) as theirs:
                with pytest.raises(LeaseLost, match="deleted or replaced"):
                    await one.save("k", b"new", lease)
                await other.save("k", b"of the other", theirs)
        assert await one.load("k") == b"of the other"


async def test_a_lock_file_is_never_deleted_by_us(files: Place) -> None:
    async with files.open() as store:
        await put(store, "k", b"x")
        before = (folder_of(files) / "locks" / "k.lock").stat().st_ino
        await drop(store, "k")
        async with locked(store):
            pass
        assert (folder_of(files) / "locks" / "k.lock").stat().st_ino == before


async def test_a_forked_child_does_not_hold_the_locks_of_its_parent(files: Place) -> None:
    process = python(
        """
        import asyncio, os, sys
        from tests.store.backends import locked, open_store
        async def main():
            store = open_store("files", {"folder": sys.argv[1]})
            async with locked(store):
                child = os.fork()
                if child == 0:
                    sys.stdin.read()  # lives on
                    os._exit(0)
                print("forked", flush=True)
                await asyncio.sleep(60)
        asyncio.run(main())
        """,
        folder_of(files),
    )
    assert process.stdin and process.stdout
    assert process.stdout.readline() == "forked\n"
    async with files.open() as store:
        with pytest.raises(LockTimeout):
            async with locked(store, within=0.0):
                pass
        process.kill()
        process.wait()
        async with locked(store, within=1.0):
            pass
    process.stdin.close()
    assert process.stdout.read() == ""  # the child has ended
    process.stdout.close()


async def test_nothing_is_held_for_a_fork_after_the_locks_are_given_back(files: Place) -> None:
    async with files.open() as store:
        async with locked(store), locked(store, "other"):
            assert len(file_lock_module._held) == 2
    assert not file_lock_module._held


# --- encryption ---------------------------------------------------------------------------------------------------


async def test_sealed_files_hold_no_secret_and_are_bound_to_their_key(tmp_path: Path) -> None:
    backend = DirKeyring(tmp_path)
    folder = tmp_path / "state"
    store = FileStore(folder, sealing=KeyringSealing(backend=backend))
    await put(store, "k", SECRET, issuer="https://as.example")
    await put(store, "l", SECRET)
    one, two = (folder / f"{key}.credential" for key in "kl")
    assert SECRET not in one.read_bytes()
    assert one.read_bytes().partition(b"\n")[2] != two.read_bytes().partition(b"\n")[2]
    # The secret part of one in the file of the other, with size and sum in order.
    payload = two.read_bytes().partition(b"\n")[2]
    name = decode("l", two.read_bytes())[0].sealed
    one.write_bytes(encode("k", payload, about={}, written=0, sealed=name))
    with pytest.raises(CorruptEntry, match="cannot be decrypted"):
        await store.load("k")
    await store.aclose()


async def test_two_processes_that_first_need_the_key_get_the_same_one(tmp_path: Path) -> None:
    backend = DirKeyring(tmp_path)
    stores = [FileStore(tmp_path / "s", sealing=KeyringSealing(backend=backend)) for _ in range(4)]
    await asyncio.gather(*(put(store, f"k{number}", SECRET) for number, store in enumerate(stores)))
    for store in stores:
        for number in range(4):
            assert await store.load(f"k{number}") == SECRET
        await store.aclose()
    assert backend.writes == 1


async def test_a_key_that_is_gone_is_told_and_what_it_sealed_is_kept_aside(tmp_path: Path) -> None:
    folder, keys = tmp_path / "state", tmp_path / "keys"
    keys.mkdir()
    store = FileStore(folder, sealing=KeyringSealing(backend=DirKeyring(keys)))
    await put(store, "k", SECRET)
    await store.aclose()
    for each in keys.iterdir():
        each.unlink()
    store = FileStore(folder, sealing=KeyringSealing(backend=DirKeyring(keys)))
    with pytest.raises(CorruptEntry, match="is encrypted with the key"):
        await store.load("k")
    await put(store, "k", b"new")
    assert await store.load("k") == b"new"
    await store.aclose()
    assert [each for each in folder.iterdir() if ".corrupt-" in each.name]
    plain = FileStore(folder)
    with pytest.raises(StoreUnusable, match="no encryption is set"):
        await plain.load("k")
    await plain.aclose()


async def test_files_from_before_the_encryption_are_read_and_sealed_with_the_next_write(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "state"
    plain = FileStore(folder)
    await put(plain, "k", SECRET)
    await plain.aclose()
    store = FileStore(folder, sealing=KeyringSealing(backend=DirKeyring(tmp_path)))
    assert await store.load("k") == SECRET
    await put(store, "k", SECRET)
    assert SECRET not in (folder / "k.credential").read_bytes()
    await store.aclose()


# --- the watch ----------------------------------------------------------------------------------------------------


async def test_a_change_in_the_same_tick_of_the_disk_and_one_made_in_place_are_seen(files: Place) -> None:
    heard: list[str] = []
    new = asyncio.Event()

    def changed(key: str) -> None:
        heard.append(key)
        new.set()

    path = folder_of(files) / "k.credential"
    async with files.open() as store:
        await put(store, "k", b"1")
        past = time.time_ns() - 3_600_000_000_000
        os.utime(path.parent, ns=(past, past))
        await store.watch(changed)
        with open(path, "ab") as file:  # the folder does not tell this
            file.write(b"}")
        async with asyncio.timeout(8):
            await new.wait()
    assert heard == ["k"]


async def test_a_watch_survives_the_loss_of_the_folder(files: Place) -> None:
    import shutil

    heard: list[str] = []
    new = asyncio.Event()

    def changed(key: str) -> None:
        heard.append(key)
        new.set()

    async with files.open() as store, files.open() as other:
        await put(store, "k", b"1")
        await store.watch(changed)
        shutil.rmtree(folder_of(files))
        async with asyncio.timeout(3):
            await new.wait()
        new.clear()
        await put(other, "k", b"2")
        async with asyncio.timeout(3):
            await new.wait()
    assert heard == ["k", "k"]
