"""Eras outlive the process, survive writers at the same time and bad files, and never fail a caller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moorings.store import EraRecord, Eras, EraStore, MemoryEraStore, StateFolder

MODERN = EraRecord(era="modern", revision="2026-07-28")
OLD = EraRecord(era="handshake", revision="2024-11-05", died_on_probe=True)


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Eras:
    if request.param == "memory":
        return MemoryEraStore(max_entries=3)
    return EraStore(StateFolder(tmp_path / "state"), max_entries=3)


def entries(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "eras"))


def test_what_was_put_is_got_until_it_is_forgotten(store: Eras) -> None:
    assert store.get("a") is None
    store.forget("a")
    store.put("a", OLD)
    store.put("b", MODERN)
    assert (store.get("a"), store.get("b")) == (OLD, MODERN)
    store.put("a", MODERN)
    assert store.get("a") == MODERN
    store.forget("a")
    assert (store.get("a"), store.get("b")) == (None, MODERN)


def test_reading_and_forgetting_make_no_folder(tmp_path: Path) -> None:
    store = EraStore(StateFolder(tmp_path / "state"))
    assert store.get("a") is None
    store.forget("a")
    assert not (tmp_path / "state").exists()


def test_another_process_or_object_sees_it(tmp_path: Path) -> None:
    EraStore(StateFolder(tmp_path)).put("a", OLD)
    assert EraStore(StateFolder(tmp_path)).get("a") == OLD


def test_the_oldest_entries_go_when_there_are_too_many(store: Eras, tmp_path: Path) -> None:
    for number, name in enumerate(["a", "b", "c", "a", "d", "e"]):
        store.put(name, MODERN)
        if isinstance(store, EraStore):
            os.utime(tmp_path / "state" / "eras" / f"{name}.json", (number, number))
    assert [name for name in "abcde" if store.get(name)] == ["a", "d", "e"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"{}",
        b'{"era":"steam","revision":"1"}',
        b'{"era":"modern","revision":1}',
        b'{"era":"modern","revision":"x","died_on_probe":"no"}',
        b"[" * 4000,
        b'{"era":"modern","revision":"' + b"x" * 100_000 + b'"}',
    ],
)
def test_a_file_that_is_no_entry_counts_as_absent_and_is_written_anew(content: bytes, tmp_path: Path) -> None:
    store = EraStore(StateFolder(tmp_path))
    store.put("a", OLD)
    (tmp_path / "eras" / "a.json").write_bytes(content)
    assert store.get("a") is None
    store.put("a", MODERN)
    assert store.get("a") == MODERN


def test_a_folder_a_pipe_or_a_link_in_its_place_counts_as_absent(tmp_path: Path) -> None:
    store = EraStore(StateFolder(tmp_path))
    store.put("x", OLD)
    (tmp_path / "eras" / "a.json").mkdir()
    os.mkfifo(tmp_path / "eras" / "b.json")
    (tmp_path / "eras" / "c.json").symlink_to(tmp_path / "eras" / "x.json")
    assert [store.get(name) for name in "abc"] == [None, None, None]


def test_unknown_keys_of_a_later_version_are_no_harm(tmp_path: Path) -> None:
    store = EraStore(StateFolder(tmp_path))
    store.put("a", OLD)
    (tmp_path / "eras" / "a.json").write_bytes(b'{"era":"modern","revision":"2026-07-28","new":[1]}')
    assert store.get("a") == MODERN


def test_a_folder_that_cannot_be_made_is_told_and_harms_no_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    store = EraStore(StateFolder(tmp_path / "state"))
    store.put("a", OLD)
    store.forget("a")
    assert store.get("a") is None
    assert "not remembered" in caplog.text


def test_a_failure_in_the_middle_of_a_write_leaves_the_old_entry_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EraStore(StateFolder(tmp_path))
    store.put("a", OLD)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fails)
        store.put("a", MODERN)
    assert store.get("a") == OLD
    assert entries(tmp_path) == ["a.json"]


def test_the_disk_is_not_waited_for_as_the_loop_would_wait_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    store = EraStore(StateFolder(tmp_path))
    store.put("a", OLD)
    assert store.get("a") == OLD
    assert not waited


def test_the_file_of_any_fingerprint_stays_in_the_folder(tmp_path: Path) -> None:
    store = EraStore(StateFolder(tmp_path / "state"))
    names = ["../../x", "/etc/x", "a" * 300, "A", "a", "ü", ".", ""]
    for name in names:
        store.put(name, EraRecord(era="modern", revision=name))
    assert [store.get(name).revision for name in names] == names  # type: ignore[union-attr]
    assert len(entries(tmp_path / "state")) == len(names)
    assert os.listdir(tmp_path) == ["state"]


def test_a_temporary_file_of_a_killed_writer_is_removed_when_it_is_old(tmp_path: Path) -> None:
    store = EraStore(StateFolder(tmp_path))
    store.put("a", OLD)
    old, new = tmp_path / "eras" / ".a.json.1.x.tmp", tmp_path / "eras" / ".a.json.2.x.tmp"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    store.put("a", OLD)
    assert not old.exists()
    assert new.exists()


WRITER = """
import os, sys
os.umask(0)
from moorings.store import EraRecord, EraStore, StateFolder
folder, me = sys.argv[1:]
store = EraStore(StateFolder(folder))
sys.stdin.readline()
for number in range(100):
    store.put(f"{me}-{number}", EraRecord(era="modern", revision=f"{me}.{number}"))
    store.put("shared", EraRecord(era="handshake", revision="x" * 2000))
    found = store.get("shared")
    assert found is not None and found.revision == "x" * 2000, found
"""


def test_eight_processes_writing_at_once_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(n)], stdin=subprocess.PIPE, text=True
        )
        for n in range(8)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0] * 8
    store = EraStore(StateFolder(folder))
    for n in range(8):
        for number in range(100):
            assert store.get(f"{n}-{number}") == EraRecord(era="modern", revision=f"{n}.{number}")
    assert len(entries(folder)) == 801
    assert not [name for name in entries(folder) if name.endswith(".tmp")]
    assert {oct((folder / "eras" / name).stat().st_mode & 0o777) for name in entries(folder)} == {"0o600"}
    for made in (folder, folder / "eras", folder.parent, folder.parent.parent):
        assert made.stat().st_mode & 0o777 == 0o700
