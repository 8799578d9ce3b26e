"""The log of a server: bounded in memory and on disk, private, and never a reason for the server to stop."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.transport.serverlog import ServerLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the tail


@given(
    chunks=st.lists(st.binary(max_size=50), max_size=30),
    limit=st.integers(0, 60),
)
def test_the_tail_is_the_last_of_it_in_bounded_memory(chunks: list[bytes], limit: int) -> None:
    log = ServerLog(None, tail=limit, max_file=0)
    whole = b""
    for chunk in chunks:
        log.write(chunk)
        whole += chunk
        held = sum(len(kept) for kept in log._chunks)
        assert held == log._held <= max(2 * limit, 1)
        assert log.dropped == len(whole) - held
    expected = whole[-limit:] if limit else b""
    assert log.tail() == expected.decode("utf-8", "replace")


def test_a_flood_in_small_pieces_stays_bounded() -> None:
    log = ServerLog(None, tail=1000, max_file=0)
    for _ in range(20_000):
        log.write(b"x")
    assert len(log._chunks) <= 1001 and log._held <= 1001
    assert log.dropped >= 19_000 - 1


def test_a_tail_that_begins_inside_a_character_is_text_all_the_same() -> None:
    log = ServerLog(None, tail=3, max_file=0)
    log.write("aüb".encode())
    assert log.tail() == "üb"
    log.write("ü".encode())
    assert log.tail() == "bü"
    log.write(b"c")
    assert log.tail() == "üc"
    log.write(b"d")
    assert log.tail() == "\ufffdcd"
    log.write(b"\xff")
    assert log.tail() == "cd\ufffd"


def test_f3_5_no_tail_and_no_file_is_a_setting_too() -> None:
    """F3.5: 0 keeps nothing, and reads on."""
    log = ServerLog(None, tail=0, max_file=0)
    log.write(b"noise" * 1000)
    assert (log.tail(), log.dropped, log._held) == ("", 5000, 0)


# --- the file


@pytest.mark.usefixtures("umask")
def test_f16_9_the_file_is_private_from_its_first_byte(path: Path) -> None:
    """F16.9: 0600 at most under any umask, after a rotation too."""
    log = ServerLog(str(path), tail=10, max_file=10)
    for _ in range(4):
        log.write(b"12345678")
    log.close()
    assert mode(path) & 0o077 == 0 and mode(path.with_name("server.log.1")) & 0o077 == 0
    if mode(path):
        assert mode(path) == 0o600


def test_nothing_is_opened_before_something_is_written(path: Path) -> None:
    log = ServerLog(str(path), tail=10, max_file=100)
    assert not path.exists()
    log.close()
    assert not path.exists()


def test_no_file_when_its_size_is_0(path: Path) -> None:
    log = ServerLog(str(path), tail=10, max_file=0)
    log.write(b"x")
    assert not path.exists() and log.tail() == "x"


@given(sizes=st.lists(st.integers(0, 250), max_size=25))
def test_the_two_files_together_are_bounded_and_hold_the_last(
    sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    path = folder / "server.log"
    log = ServerLog(str(path), tail=10, max_file=100)
    whole = b""
    for number, size in enumerate(sizes):
        data = bytes([65 + number]) * size
        log.write(data)
        whole += data[-100:]
        for file in folder.iterdir():
            assert file.stat().st_size <= 100
    log.close()
    kept = b"".join(file.read_bytes() for file in (path.with_name("server.log.1"), path) if file.exists())
    assert whole.endswith(kept)
    assert len(kept) >= min(len(whole), 1) and set(os.listdir(folder)) <= {"server.log", "server.log.1"}


def test_a_later_life_of_the_server_goes_on_in_the_same_file(path: Path) -> None:
    for life in (b"one\n", b"two\n"):
        log = ServerLog(str(path), tail=100, max_file=100)
        log.write(life)
        log.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_file_left_full_is_rotated_and_not_grown(path: Path) -> None:
    path.write_bytes(b"o" * 100)
    log = ServerLog(str(path), tail=100, max_file=100)
    log.write(b"new")
    log.close()
    assert path.read_bytes() == b"new"
    assert path.with_name("server.log.1").read_bytes() == b"o" * 100


def test_a_link_in_its_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    log = ServerLog(str(path), tail=100, max_file=100)
    log.write(b"text")
    log.close()
    assert victim.read_text() == "precious"
    assert log.tail() == "text"


# --- what the disk does


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["open", "write", "stat", "replace", "fstat"])
def test_a_disk_that_fails_costs_the_file_and_nothing_else(
    call: str, error: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any call: the tail goes on, nothing is raised, no descriptor stays open, and it is not tried for ever."""
    log = ServerLog(str(path), tail=100, max_file=10)
    if call != "stat":
        log.write(b"fine")
    failures = 0

    def fail(*_: Any, **__: Any) -> Any:
        nonlocal failures
        failures += 1
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        if call == "write":
            log.write(b" then")
        else:
            log.write(b" then some more")
        log.write(b" and on")
        log.write(b" and on")
    assert failures == 1
    assert log._fd == -1
    assert log.tail().endswith(" and on and on")
    log.write(b"!")
    assert log.tail().endswith("!")
    log.close()


def test_a_folder_that_went_away_costs_the_file_and_nothing_else(tmp_path: Path) -> None:
    log = ServerLog(str(tmp_path / "gone" / "server.log"), tail=100, max_file=10)
    log.write(b"text")
    log.write(b" more")
    assert log.tail() == "text more"
    log.close()
    log.close()


def test_a_short_write_counts_what_was_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearly full disk writes a part; the bound of the file holds."""
    log = ServerLog(str(path), tail=100, max_file=20)
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    for _ in range(10):
        log.write(b"12345678")
    log.close()
    assert path.stat().st_size <= 20
