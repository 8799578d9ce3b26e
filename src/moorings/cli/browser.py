"""A person's browser: asked once to open one URL, never through a shell, and the person's own from then on.

``$BROWSER`` is obeyed first. Without it the desktop's opener is used where there is a desktop: a browser that would run
in this terminal is none. A small program between us and the browser starts it in a session of its own, watches its
first seconds, and ends; so whatever we start has ended when we return, and a browser that lives on is a child of init.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import urlsplit

__all__ = ["BrowserTry", "commands", "is_web_address", "open_browser", "unopened"]

WATCHED = 3.0
"""Seconds in which a browser that cannot start is expected to say so by its exit code."""

_SLACK = 10.0
"""Seconds more for the program that watches, on a machine that is busy."""

_IN_A_TERMINAL = frozenset(
    (
        *("browsh", "carbonyl", "edbrowse", "elinks", "links", "links2", "lynx", "retawq", "w3m"),
        *("text-www-browser", "www-browser"),
    )
)
_KNOWN = (
    *("x-www-browser", "gnome-www-browser", "firefox", "chromium", "chromium-browser", "google-chrome"),
    *("google-chrome-stable", "brave-browser", "microsoft-edge"),
)
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\x9f]")

# Arguments: seconds, the descriptor whose closing tells that it ended, and the command. It becomes no parent of a
# browser for long: the alarm ends it, which means that the browser still runs. Python ignores SIGPIPE and SIGXFSZ, and
# a program started by it would go on doing so.
_WATCH = """\
import os, signal, sys
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
pid = os.fork()
if not pid:
    try:
        os.close(int(sys.argv[2]))
        for name in ("SIGPIPE", "SIGXFSZ"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execv(sys.argv[3], sys.argv[3:])
    finally:
        os._exit(127)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
os._exit(code if code >= 0 else 126)
"""


class BrowserTry(NamedTuple):
    """How it went."""

    opened: str
    """The program that took the URL and did not say that it failed; empty if none did."""
    problem: str
    """Why none did, in words for a person; empty if one did."""


def is_web_address(url: str) -> bool:
    """Whether this is an http(s) URL with a host, and holds nothing that a program could take for something else."""
    if _UNSAFE.search(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def unopened(environ: Mapping[str, str] | None = None, *, platform: str = sys.platform) -> str:
    """Why no browser would be tried here, known without trying; empty if one would."""
    environ = os.environ if environ is None else environ
    if platform == "win32":
        return ""
    wanted = environ.get("BROWSER", "").strip()
    if wanted.lower() == "none":
        return "BROWSER is set to none"
    if any(commands("https://x.invalid/", environ, platform=platform)):
        return ""
    if wanted:
        return "BROWSER names no program that opens a window"
    if _is_linux(platform) and not _has_desktop(environ):
        return "there is no desktop here (neither DISPLAY nor WAYLAND_DISPLAY is set)"
    return "no browser is installed here"


def commands(url: str, environ: Mapping[str, str], *, platform: str = sys.platform) -> Iterator[list[str]]:
    """The commands that would open ``url``, best first: absolute paths of programs that exist, and their arguments.

    ``BROWSER`` is a list (by ``:``) of commands with their arguments; ``%s`` in one stands for the URL, which else
    comes last. A person who set it wants none of the others.
    """
    path = environ.get("PATH") or os.defpath
    wanted = environ.get("BROWSER", "").strip()
    if wanted.lower() == "none":
        return
    for words in _wanted(wanted, url) if wanted else _usual(url, environ, platform):
        program = shutil.which(words[0], path=path)
        if program is not None and not _takes_the_terminal(program):
            yield [os.path.abspath(program), *words[1:]]


async def open_browser(
    url: str,
    environ: Mapping[str, str] | None = None,
    *,
    platform: str = sys.platform,
    seconds: float = WATCHED,
) -> BrowserTry:
    """Open ``url`` in a browser; try the next one if one fails within ``seconds``.

    Returns when one of them took it (it ended well, or runs on after that time), or all failed. Nothing is raised but
    what cancels the caller; then no further browser is tried, and one that is open stays open.
    """
    environ = os.environ if environ is None else environ
    if not is_web_address(url):
        return BrowserTry("", "it is not an http or https address")
    if platform == "win32":
        return _by_windows(url)
    if reason := unopened(environ, platform=platform):
        return BrowserTry("", reason)
    problem = ""
    for command in commands(url, environ, platform=platform):
        name = PurePath(command[0]).name
        failed = await _tried(command, environ, seconds)
        if not failed:
            return BrowserTry(name, "")
        problem = problem or f"{name} {failed}"
    return BrowserTry("", problem)


# --- which ---------------------------------------------------------------------------------------------------------


def _wanted(listed: str, url: str) -> Iterator[list[str]]:
    for each in listed.split(os.pathsep):
        try:
            words = shlex.split(each)
        except ValueError:  # an open quote
            continue
        if words and words[-1] == "&":  # to a shell: in the background, where it is anyway
            words.pop()
        if not words:
            continue
        program, *arguments = words
        filled = [word.replace("%s", url) for word in arguments]
        yield [program, *filled] if filled != arguments else [program, *arguments, url]


def _usual(url: str, environ: Mapping[str, str], platform: str) -> Iterator[list[str]]:
    if platform == "darwin":
        yield ["open", url]
        return
    if _is_wsl(environ):
        yield ["wslview", url]
    if not _has_desktop(environ):
        return
    yield ["xdg-open", url]
    yield ["gio", "open", url]
    for name in _KNOWN:
        yield [name, url]


def _takes_the_terminal(program: str) -> bool:
    """Links are followed: ``www-browser`` and ``x-www-browser`` are links to what is installed."""
    return bool({PurePath(program).name, PurePath(os.path.realpath(program)).name} & _IN_A_TERMINAL)


def _has_desktop(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def _is_wsl(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("WSL_DISTRO_NAME") or environ.get("WSL_INTEROP"))


def _is_linux(platform: str) -> bool:
    return platform not in ("darwin", "win32")


# --- opened --------------------------------------------------------------------------------------------------------


def _by_windows(url: str) -> BrowserTry:
    start = getattr(os, "startfile", None)
    if start is None:
        return BrowserTry("", "this Python cannot open anything here")
    try:
        start(url)
    except OSError as error:
        return BrowserTry("", f"Windows says: {error.strerror or type(error).__name__}")
    return BrowserTry("Windows", "")


async def _tried(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> str:
    """Start one and watch it; empty if it took the URL, else how it failed."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    reading, writing = os.pipe()
    watcher: subprocess.Popen[bytes] | None = None
    try:
        try:
            watcher = _started(command, environ, seconds, writing)
        except (OSError, ValueError) as error:
            return f"could not be started ({getattr(error, 'strerror', None) or type(error).__name__})"
        finally:
            os.close(writing)
        loop.add_reader(reading, lambda: None if ended.done() else ended.set_result(None))
        try:
            async with asyncio.timeout(seconds + _SLACK):
                await ended
        except TimeoutError:
            return "did not answer"
        finally:
            loop.remove_reader(reading)
        return _said(watcher.wait())
    finally:
        os.close(reading)
        if watcher is not None and watcher.returncode is None:
            watcher.kill()
            watcher.wait()


def _started(
    command: Sequence[str], environ: Mapping[str, str], seconds: float, writing: int
) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise FileNotFoundError
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(seconds), str(writing), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environ),
        pass_fds=(writing,),
        start_new_session=True,
    )


def _said(code: int) -> str:
    if code in (0, -getattr(signal, "SIGALRM", 14)):
        return ""
    if code == 127:
        return "could not be started"
    if code < 0 or code == 126:
        return "was ended by a signal"
    return f"ended with exit code {code}"
