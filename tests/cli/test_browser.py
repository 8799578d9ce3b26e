"""A person's browser: which program is asked, how it is started, and what is told of one that fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moorings.cli import browser
from moorings.cli.browser import BrowserTry, commands, is_web_address, open_browser, unopened
from tests import procs
from tests.cli.ptys import PATIENCE

URL = "https://as.example/authorize?a=1&state=s%20t&x=$(touch+pwned);`id`'\"|"


class Place:
    """A folder of programs that stand for browsers; each notes what it was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"PATH": f"{folder}{os.pathsep}{os.defpath}", "KEPT": "as it is"}

    def program(self, name: str, then: str = "exit 0") -> Path:
        file = self.folder / name
        note = self.folder / f"{name}.called"
        file.write_text(f"#!/bin/sh\n{{ printf '%s\\n' \"$@\"; }} > '{note}'\n{then}\n")
        file.chmod(0o755)
        return file

    def called(self, name: str) -> list[str] | None:
        try:
            return (self.folder / f"{name}.called").read_text().splitlines()
        except FileNotFoundError:
            return None

    def only(self, *names: str) -> dict[str, str]:
        """An environment in which there are no programs but these."""
        for name in names:
            self.program(name)
        return {"PATH": str(self.folder)}


class Started:
    """A pipe with a name, into which a program writes its number when it runs."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "started"
        os.mkfifo(self.file)
        self._fd = os.open(self.file, os.O_RDWR | os.O_NONBLOCK)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    async def pid(self) -> int:
        loop, there = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._fd, there.set)
        try:
            async with asyncio.timeout(PATIENCE):
                await there.wait()
        finally:
            loop.remove_reader(self._fd)
        return int(os.read(self._fd, 100))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = tmp_path / "bin with a blank"
    folder.mkdir()
    return Place(folder)


# --- which ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "https://as.example", "HTTPS://as.example/ü", URL])
def test_web_addresses(url: str) -> None:
    assert is_web_address(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "file:///etc/passwd", "javascript:alert(1)", "ftp://x/", "-http://x", "--help", "as.example/x"),
        *(
            "http:",
            "http://",
            "http:///x",
            "https://x/\ny",
            "https://x/ y",
            "https://x/\x1b[2J",
            "https://[::1/",
        ),
        *("mailto:a@b", "data:text/html,x", "ms-settings:x", "\\\\host\\share", " https://x/"),
    ],
)
async def test_f16_4_nothing_else_is_opened(url: str, place: Place) -> None:
    program = place.program("b")
    assert not is_web_address(url)
    how = await open_browser(url, {"BROWSER": "b", **place.environ})
    assert how == BrowserTry("", "it is not an http or https address")
    assert place.called(program.name) is None


def names(environ: dict[str, str], platform: str = "linux") -> list[list[str]]:
    return [[Path(program).name, *rest] for program, *rest in commands("U", environ, platform=platform)]


def test_f16_4_browser_is_a_list_of_commands_and_never_a_shell_s(place: Place) -> None:
    environ = place.only("a", "b", "c", "xdg-open") | {"DISPLAY": ":0"}
    listed = f"a --new-window %s --x:b 'one word':missing:{place.folder / 'c'!s}:a 'open quote"
    environ["BROWSER"] = listed.replace(str(place.folder), "'" + str(place.folder) + "'")
    assert names(environ) == [["a", "--new-window", "U", "--x"], ["b", "one word", "U"], ["c", "U"]]
    assert names(environ | {"BROWSER": "a -t=%s,%s &: :b"}) == [["a", "-t=U,U"], ["b", "U"]]


def test_without_it_the_desktop_opens(place: Place) -> None:
    environ = place.only("xdg-open", "gio", "firefox", "wslview", "open")
    assert names(environ) == []
    for display in ({"DISPLAY": ":0"}, {"WAYLAND_DISPLAY": "wayland-0"}):
        assert names(environ | display) == [["xdg-open", "U"], ["gio", "open", "U"], ["firefox", "U"]]
    assert names(environ | {"WSL_DISTRO_NAME": "Debian"}) == [["wslview", "U"]]
    assert names(environ | {"WSL_INTEROP": "/x", "DISPLAY": ":0"})[0] == ["wslview", "U"]
    assert names(environ, "darwin") == [["open", "U"]]


@pytest.mark.parametrize("name", ["w3m", "lynx", "www-browser"])
def test_no_browser_takes_the_terminal(name: str, place: Place) -> None:
    environ = place.only("w3m", "lynx", "www-browser", "firefox")
    assert names(environ | {"BROWSER": f"{name}:firefox"}) == [["firefox", "U"]]
    (place.folder / "x-www-browser").symlink_to(place.folder / name)
    assert names(environ | {"DISPLAY": ":0"}) == [["firefox", "U"]]


def test_why_none_is_tried(place: Place) -> None:
    environ = place.only("firefox", "lynx")
    assert unopened(environ | {"DISPLAY": ":0"}, platform="linux") == ""
    assert unopened(environ | {"BROWSER": "firefox"}, platform="linux") == ""
    assert "neither DISPLAY nor WAYLAND_DISPLAY" in unopened(environ, platform="linux")
    assert (
        unopened(environ | {"BROWSER": "None", "DISPLAY": ":0"}, platform="linux") == "BROWSER is set to none"
    )
    assert "BROWSER names no program" in unopened(environ | {"BROWSER": "lynx"}, platform="linux")
    assert unopened(environ, platform="darwin") == "no browser is installed here"
    assert unopened({"PATH": "/nowhere", "DISPLAY": ":0"}, platform="linux") == "no browser is installed here"
    assert unopened({}, platform="win32") == ""


# --- opened --------------------------------------------------------------------------------------------------------


async def test_f16_4_it_gets_the_url_as_one_word(place: Place) -> None:
    place.program("b")
    assert await open_browser(URL, {"BROWSER": "b", **place.environ}) == BrowserTry("b", "")
    assert place.called("b") == [URL]
    assert not (Path.cwd() / "pwned").exists()


async def test_it_has_our_environment_and_nothing_of_our_terminal(place: Place) -> None:
    look = place.folder / "look.py"
    look.write_text(
        "import os, signal\n"
        "try:\n os.open('/dev/tty', os.O_RDWR); print('a terminal')\n"
        "except OSError: print('no terminal')\n"
        "print(sorted(os.listdir('/proc/self/fd')))\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getsid(0))\n"
    )
    place.program("b", f"env > '{place.folder}/env'; '{sys.executable}' '{look}' > '{place.folder}/seen'")
    assert (await open_browser(URL, {"BROWSER": "b", **place.environ})).opened
    environ = (place.folder / "env").read_text().splitlines()
    assert "KEPT=as it is" in environ
    assert not any(line.startswith("PYTHON") for line in environ)
    terminal, descriptors, blocked_and_session = (place.folder / "seen").read_text().splitlines()
    assert terminal == "no terminal"
    assert descriptors == "['0', '1', '2', '3']"  # 3 is that of the listing
    assert blocked_and_session.startswith("set()")
    assert blocked_and_session != f"set() {os.getsid(0)}"


async def test_signals_that_python_ignores_are_not_ignored_there(place: Place) -> None:
    place.program("b", f"grep SigIgn /proc/$$/status > '{place.folder}/seen'")
    assert (await open_browser(URL, {"BROWSER": "b", **place.environ})).opened
    ignored = int((place.folder / "seen").read_text().split()[1], 16)
    assert not [each for each in (signal.SIGPIPE, signal.SIGXFSZ) if ignored & 1 << each - 1]


@pytest.mark.parametrize(
    ("then", "problem"),
    [
        ("exit 1", "b ended with exit code 1"),
        ("exit 3", "b ended with exit code 3"),
        ("kill -9 $$", "b was ended by a signal"),
        ("exit 127", "b could not be started"),
    ],
)
async def test_f12_8_a_browser_that_fails_is_told(then: str, problem: str, place: Place) -> None:
    place.program("b", then)
    assert await open_browser(URL, {"BROWSER": "b", **place.environ}) == BrowserTry("", problem)


async def test_one_that_cannot_be_started_is_told(place: Place) -> None:
    (place.folder / "b").write_text("#!/no/such/program\n")
    (place.folder / "b").chmod(0o755)
    assert await open_browser(URL, {"BROWSER": "b", **place.environ}) == BrowserTry(
        "", "b could not be started"
    )
    how = await open_browser("https://x/" + "a" * 200_000, {"BROWSER": "true", **place.environ})
    assert how.problem == "true could not be started (Argument list too long)"


async def test_the_next_one_is_tried(place: Place) -> None:
    place.program("xdg-open", "exit 3")
    place.program("gio", "exit 2")
    place.program("firefox")
    place.program("chromium")
    how = await open_browser(URL, {"DISPLAY": ":0", "PATH": str(place.folder)}, platform="linux")
    assert how == BrowserTry("firefox", "")
    assert [place.called(name) for name in ("xdg-open", "gio", "firefox")] == [[URL], ["open", URL], [URL]]
    assert place.called("chromium") is None
    place.program("firefox", "exit 1")
    place.program("chromium", "exit 1")
    how = await open_browser(URL, {"DISPLAY": ":0", "PATH": str(place.folder)}, platform="linux")
    assert how == BrowserTry("", "xdg-open ended with exit code 3")


async def test_a_browser_that_runs_on_is_the_person_s(place: Place) -> None:
    """It is open when its first seconds are over; then it is a child of init, which reaps it (here: of the tests)."""
    with Started(place.folder) as started:
        place.program("b", f"echo $$ > '{started.file}'; exec sleep 600")
        how = await open_browser(URL, {"BROWSER": "b", **place.environ}, seconds=1.0)
        pid = await started.pid()
    try:
        assert how == BrowserTry("b", "")
        assert os.getsid(pid) != os.getsid(0)
        process = procs.read(pid)
        assert process is not None and process.state != "Z"
        assert process.parent == os.getpid()  # an orphan, adopted; nobody of ours stands between
    finally:
        os.kill(pid, signal.SIGKILL)
    assert procs.wait_gone(pid)


async def test_nothing_is_held_up_while_one_is_watched(place: Place) -> None:
    os.mkfifo(place.folder / "go")
    with Started(place.folder) as started:
        place.program("b", f"echo $$ > '{started.file}'; read line < '{place.folder}/go'; exit 1")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(open_browser(URL, {"BROWSER": "b", **place.environ}, seconds=60))
            await started.pid()
            assert not task.done()
            (place.folder / "go").write_text("go\n")
    assert task.result() == BrowserTry("", "b ended with exit code 1")


async def test_given_up_while_one_is_watched_it_stays_open_and_nothing_of_ours_does(place: Place) -> None:
    with Started(place.folder) as started:
        place.program("b", f"echo $$ > '{started.file}'; exec sleep 600")
        task = asyncio.ensure_future(open_browser(URL, {"BROWSER": "b", **place.environ}, seconds=60))
        pid = await started.pid()
    try:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        process = procs.read(pid)
        assert process is not None and process.state != "Z"
    finally:
        os.kill(pid, signal.SIGKILL)
    assert procs.wait_gone(pid)


async def test_given_up_at_once_nothing_is_left(place: Place) -> None:
    place.program("b")
    for turns in range(3):
        task = asyncio.ensure_future(open_browser(URL, {"BROWSER": "b", **place.environ}))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_a_watcher_that_does_not_answer_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "_WATCH", "import signal; signal.pause()")
    monkeypatch.setattr(browser, "_SLACK", 0.3)
    place.program("b")
    how = await open_browser(URL, {"BROWSER": "b", **place.environ}, seconds=0.1)
    assert how == BrowserTry("", "b did not answer")


async def test_without_a_python_to_run_nothing_is_opened(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.program("b")
    monkeypatch.setattr(sys, "executable", "")
    assert (await open_browser(URL, {"BROWSER": "b", **place.environ})).problem.startswith(
        "b could not be started"
    )


async def test_windows_opens_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    assert (await open_browser(URL, {}, platform="win32")).problem == "this Python cannot open anything here"
    monkeypatch.setattr(os, "startfile", seen.append, raising=False)
    assert await open_browser(URL, {}, platform="win32") == BrowserTry("Windows", "")
    assert seen == [URL]

    def fail(url: str) -> None:
        raise OSError(2, "no application")

    monkeypatch.setattr(os, "startfile", fail, raising=False)
    assert (await open_browser(URL, {}, platform="win32")).problem == "Windows says: no application"
    assert (
        await open_browser("calc.exe", {}, platform="win32")
    ).problem == "it is not an http or https address"


def test_the_real_opener_is_found_where_there_is_one() -> None:
    found = subprocess.run(["sh", "-c", "command -v xdg-open"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("no xdg-open is installed")
    first = next(
        commands("https://x.invalid/", {"PATH": os.environ["PATH"], "DISPLAY": ":0"}, platform="linux")
    )
    assert first == [found.stdout.strip(), "https://x.invalid/"]
