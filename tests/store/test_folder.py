"""F16.9, F16.11: files of the state folder are private from the first byte, whole, and stay inside the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.store import StateFolder, log_path, safe_name, write_atomic


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_folders_are_private_under_any_umask(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    assert folder.create("logs", "deep") == tmp_path / "a" / "b" / "logs" / "deep"
    for made in ("a", "a/b", "a/b/logs", "a/b/logs/deep"):
        assert mode(tmp_path / made) == 0o700


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    StateFolder(tmp_path).create("logs")
    assert mode(tmp_path) == 0o755


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="File exists"):
        StateFolder(tmp_path / "file").create()
    with pytest.raises(OSError, match="Not a directory"):
        StateFolder(tmp_path / "file" / "x").create()


def test_a_folder_where_there_can_be_none_is_an_error() -> None:
    """/proc says of a new folder that its parent is not there."""
    with pytest.raises(OSError):
        StateFolder("/proc/nowhere/at/all").create()


def test_a_relative_folder_does_not_move_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = StateFolder("state")
    monkeypatch.chdir("/")
    assert folder.path == tmp_path / "state"


@pytest.mark.parametrize("bits", [0o000, 0o022])
def test_a_file_is_private_from_its_first_byte(
    bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    replace = os.replace

    def looks_first(source: Path, target: Path) -> None:
        seen.append(mode(Path(source)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", looks_first)
    before = os.umask(bits)
    try:
        (tmp_path / "x").write_text("old")
        (tmp_path / "x").chmod(0o666)
        write_atomic(tmp_path / "x", b"new")
    finally:
        os.umask(before)
    assert seen == [0o600]
    assert mode(tmp_path / "x") == 0o600
    assert (tmp_path / "x").read_bytes() == b"new"


@pytest.mark.parametrize("step", ["replace", "fsync"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"]
)
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic(tmp_path / "x", b"old")

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, step, fails)
        with pytest.raises(type(error)):
            write_atomic(tmp_path / "x", b"new")
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_link_is_replaced_and_its_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "x").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "x", b"ours")
    assert (tmp_path / "target").read_text() == "theirs"
    assert not (tmp_path / "x").is_symlink()


NAMES = [
    "git",
    "Git",
    "GIT",
    "a.b",
    "a_b",
    "a-b",
    "a b",
    "A.b",
    "../../x",
    "..",
    ".",
    "",
    "/etc/passwd",
    "C:\\x",
    "con",
    "CON",
    "nul.txt",
    "com1",
    "x\ny",
    "x\0y",
    "\u00fc",
    "u\u0308",
    "\u0130",
    "日本語",
    "\ud800",
    "x" * 300,
    "x" * 299 + "y",
    "-rf",
    "~",
    "git~0123",
    "git.log",
]


def test_each_server_has_a_log_of_its_own_inside_the_folder(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    paths = [Path(log_path(folder, name)) for name in NAMES]
    for number, path in enumerate(paths):
        assert path.parent == tmp_path / "state" / "logs"
        path.write_text(str(number))
    assert [path.read_text() for path in paths] == [str(number) for number in range(len(NAMES))]
    assert len({path.name.casefold() for path in paths}) == len(NAMES)
    assert Path(log_path(folder, "git")).name == "git.log"
    assert Path(log_path(folder, "Git")).name.startswith("git~")


def test_a_log_folder_that_cannot_be_made_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert Path(log_path(StateFolder(tmp_path / "file"), "git")).name == "git.log"
    assert "cannot be made" in caplog.text


@given(
    st.text() | st.text(alphabet="abAB._-~/\\ü ", max_size=6),
    st.text() | st.text(alphabet="abAB._-~", max_size=6),
)
def test_any_two_names_have_two_safe_files(one: str, other: str) -> None:
    for name in (safe_name(one), safe_name(other)):
        assert name.isascii()
        assert name == name.lower()
        assert 0 < len(name) <= 80
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789_-~")
    assert (safe_name(one) == safe_name(other)) == (one == other)
