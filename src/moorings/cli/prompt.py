"""A login shown to a person at a terminal: ``terminal`` is the ``on_login_url`` of the command ``moor``.

What is needed goes to stderr (the URL in full, on a line of its own), a browser is opened unless that is not wanted,
and what the browser came back to can be pasted here, racing the listener. When it is cancelled, because the answer
came another way, the terminal is as it was before. Texts of servers are printed escaped.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, TextIO
from urllib.parse import urlsplit

from .browser import open_browser, unopened
from .paste import can_read, read_line
from .text import visible

if TYPE_CHECKING:
    from moorings import LoginPrompt

__all__ = ["forbidden", "is_interactive", "ssh_hint", "terminal"]

_MOST_DOTS = 12
"""A paste is shown as so many dots at most, and a count."""

_BESIDE_QR = 10
"""Lines that a screen has left beside a QR code."""


def is_interactive(
    stdin: TextIO | None, stderr: TextIO | None, environ: Mapping[str, str], no_input: bool = False
) -> str:
    """Why nobody is here who could be asked; empty if a person is."""
    if reason := forbidden(environ, no_input):
        return reason
    if _terminal_of(stdin) is None:
        return "stdin is not a terminal"
    if _terminal_of(stderr) is None:
        return "stderr is not a terminal"
    return ""


def forbidden(environ: Mapping[str, str], no_input: bool = False) -> str:
    """Why nobody is to be asked, whoever is there; empty if they may be."""
    if no_input:
        return "--no-input was given"
    if environ.get("CI", "").strip().lower() not in ("", "0", "false", "no"):
        return "the variable CI is set"
    return ""


async def terminal(
    prompt: LoginPrompt,
    *,
    browser: bool = True,
    paste: bool = True,
    stdin: TextIO | None = None,
    stderr: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
) -> str | None:
    """Show a login and return what a person pasted; None if nothing will be (Ctrl-D, the device flow, no terminal).

    ``browser=False`` opens none, ``paste=False`` reads nothing. The streams and the environment are the process's own
    unless given. A browser that could not be opened is told, not raised.
    """
    stdin, stderr = stdin or sys.stdin, stderr or sys.stderr or io.StringIO()
    environ = os.environ if environ is None else environ
    fd = _terminal_of(stdin) if paste and not prompt.user_code else None
    fd = fd if fd is not None and can_read(fd) else None
    screen = _Screen(stderr)
    opens = False
    if prompt.problem:
        screen.say("", f"That was not it: {visible(prompt.problem.rstrip('.'))}.")
        if fd is not None:
            screen.say(f"Paste {_what_to_paste(prompt)} here:")
    else:
        reason = unopened(environ) if browser else ""
        opens = browser and not reason
        screen.say(*_text(prompt, environ, stderr, opens=opens, unopenable=reason, asks=fd is not None))
    answer = None
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(_open(prompt, environ, screen), name="moor: browser") if opens else None
        if fd is not None:
            try:
                answer = await read_line(fd, screen.typed)
            finally:
                screen.leave()
        if opening is not None and answer is not None:
            opening.cancel()
    return answer


async def _open(prompt: LoginPrompt, environ: Mapping[str, str], screen: _Screen) -> None:
    how = await open_browser(prompt.complete_url or prompt.url, environ)
    if not how.opened:
        screen.say(f"No browser could be opened: {visible(how.problem)}. Open the address above yourself.")


# --- what is said ----------------------------------------------------------------------------------------------------


def _text(
    prompt: LoginPrompt,
    environ: Mapping[str, str],
    stderr: TextIO,
    *,
    opens: bool,
    unopenable: str,
    asks: bool,
) -> Iterator[str]:
    yield f"Log in to {visible(prompt.server)} ({visible(prompt.resource)})"
    yield f"  at      {visible(prompt.issuer)}"
    if prompt.scopes:
        yield f"  scopes  {visible(' '.join(prompt.scopes))}"
    yield f"  within  {_span(prompt.seconds)}"
    yield ""
    if prompt.user_code:
        yield from _device(prompt, environ, stderr)
    else:
        yield "Open this address in a browser:"
        yield ""
        yield visible(prompt.url)
    yield ""
    if opens:
        yield "A browser is being asked to open it."
    elif unopenable:
        yield f"No browser is opened: {visible(unopenable)}."
    if prompt.user_code:
        yield "This goes on by itself when the code was accepted. Ctrl-C ends it."
        return
    if hint := ssh_hint(prompt, environ):
        yield "If that browser runs on another machine than this one, first run this there:"
        yield ""
        yield hint
        yield ""
    if not asks:
        if prompt.listening:
            yield "This goes on by itself when the browser comes back. Ctrl-C ends it."
        return
    if prompt.listening:
        yield "This goes on by itself when the browser comes back. If it cannot reach this machine,"
        yield f"paste {_what_to_paste(prompt)} here"
    else:
        yield f"After the login, paste {_what_to_paste(prompt)} here"
    yield "(it is not shown), then Enter. Ctrl-C ends the login."


def _what_to_paste(prompt: LoginPrompt) -> str:
    parts = urlsplit(prompt.redirect_uri)
    return f"the address that it ended at ({visible(f'{parts.scheme}://{parts.netloc}{parts.path}')}?…)"


def _device(prompt: LoginPrompt, environ: Mapping[str, str], stderr: TextIO) -> Iterator[str]:
    colours = _terminal_of(stderr) is not None and _obeys_colours(environ)
    strong, plain = ("\x1b[1m", "\x1b[0m") if colours else ("", "")
    yield "Open this address in any browser, on a phone too:"
    yield ""
    yield visible(prompt.url)
    yield ""
    yield "and enter this code there:"
    yield ""
    yield f"    {strong}{visible(prompt.user_code)}{plain}"
    if not prompt.complete_url:
        return
    yield ""
    yield "or open this one, which holds the code; it must show you the same code:"
    yield ""
    yield visible(prompt.complete_url)
    if code := _qr(prompt.complete_url, environ, stderr):
        yield ""
        yield from code


def _qr(url: str, environ: Mapping[str, str], stderr: TextIO) -> list[str]:
    fd = _terminal_of(stderr)
    if fd is None or environ.get("TERM") == "dumb":
        return []
    if (stderr.encoding or "").lower().replace("-", "") != "utf8":
        return []
    from .qr import qr_lines

    size = os.get_terminal_size(fd)
    return qr_lines(url, size.columns, size.lines - _BESIDE_QR)


def _obeys_colours(environ: Mapping[str, str]) -> bool:
    return environ.get("TERM", "dumb") != "dumb" and not environ.get("NO_COLOR")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def ssh_hint(prompt: LoginPrompt, environ: Mapping[str, str]) -> str:
    """The command that brings the listener's port to the machine that a person sits at; empty if no SSH is seen.

    ``SSH_CONNECTION`` is "client port server port" (ssh(1)). The address of this machine in it is the one that the
    person's machine reached, unless something between translates addresses.
    """
    if not prompt.listening or not (environ.get("SSH_CONNECTION") or environ.get("SSH_TTY")):
        return ""
    try:
        place = urlsplit(prompt.redirect_uri)
        port = place.port
    except ValueError:
        return ""
    if port is None:
        return ""
    _, _, host, ssh_port = (environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        host = socket.gethostname()
    user = environ.get("USER") or environ.get("LOGNAME") or ""
    target = "[::1]" if place.hostname == "::1" else "127.0.0.1"
    words = ["ssh", "-N", "-L", f"{port}:{target}:{port}"]
    if re.fullmatch(r"[0-9]{1,5}", ssh_port) and ssh_port != "22":
        words += ["-p", ssh_port]
    return visible(shlex.join([*words, f"{user}@{host}" if user else host]))


# --- where it is said ----------------------------------------------------------------------------------------------


def _terminal_of(stream: TextIO | None) -> int | None:
    """Its descriptor if it is an open terminal."""
    try:
        return stream.fileno() if stream is not None and stream.isatty() else None
    except (OSError, ValueError):
        return None


class _Screen:
    """stderr with one line at its end that is written over: the one where a person types."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""
        self._dot = "•" if (stream.encoding or "").lower().replace("-", "") == "utf8" else "*"

    def say(self, *lines: str) -> None:
        """Whole lines, above the one that is typed in."""
        typed = self._shown
        self._write(self._over("") + "".join(f"{line}\n" for line in lines) + typed)
        self._shown = typed

    def typed(self, count: int) -> None:
        """So many characters stand in it."""
        dots = self._dot * min(count, _MOST_DOTS)
        counted = f" ({count} characters)" if count > _MOST_DOTS else ""
        self._write(self._over(f"> {dots}{counted}"))

    def leave(self) -> None:
        """No one types any more: what comes next begins a line."""
        if self._shown:
            self._shown = ""
            self._write("\n")

    def _over(self, text: str) -> str:
        """What puts ``text`` in the place of what is shown; without escapes, as a dumb terminal has none."""
        if not self._shown:
            self._shown = text
            return text
        blank = " " * (len(self._shown) - len(text))
        back = f"\r{text}" if blank else ""
        self._shown = text
        return f"\r{text}{blank}{back}"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads it, or it is closed
            pass
