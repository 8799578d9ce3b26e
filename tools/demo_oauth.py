"""What `make demo-oauth` shows: the first minutes with a server behind a login, from `moor test` to `moor logout`.

Two programs are started on this machine: an authorization server (oidc-provider) and an MCP server that takes its
tokens alone (the official SDK). A person is played by a script, which walks the pages as a browser would;
`PERSON=me` leaves that to you.

Exit code 0 means that everything shown was checked. Anything else ends with 1 and one line that says why, 130 for
Ctrl-C. All files are in a temporary folder, which is removed; your own configuration and logins are not touched.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from demo import INDEX, MARK, DemoFailed, ours
from rich.console import Console
from rich.markup import escape

from moorings import __version__

NAME = "tides"
PERSON, PASSWORD = "captain", "ahoy"
NEEDED = ("oidc-provider", "era-2.3.0")
SCOPES = "tides:read"
UP_WITHIN = 40.0
COMMAND_WITHIN = 90.0
LOGIN_WITHIN = 300.0
END_WITHIN = 5.0
LOOK = 0.02


class Strikes:
    """Ctrl-C, TERM and HUP: the first one ends the demo, and waits where it would leave something behind."""

    def __init__(self) -> None:
        self._held = False
        self._struck = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._strike)

    def _strike(self, *_: object) -> None:
        if not self._struck:
            self._struck = True
            if not self._held:
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For a bounded time."""
        before, self._held = self._struck, True
        try:
            yield
        finally:
            self._held = False
        if self._struck and not before:
            raise KeyboardInterrupt


class Programs:
    """All that the demo starts, so that it can be ended whatever strikes in between."""

    def __init__(self, strikes: Strikes) -> None:
        self._strikes = strikes
        self._running: dict[subprocess.Popen[Any], float] = {}

    def start(
        self, command: Sequence[str], *, by_itself: float = 0.0, **options: Any
    ) -> subprocess.Popen[Any]:
        """``by_itself``: seconds in which it ends without us, as Ctrl-C reaches it, too."""
        with self._strikes.held():
            process = subprocess.Popen(command, **options)
            self._running[process] = by_itself
        return process

    def end(self, process: subprocess.Popen[Any]) -> None:
        """By itself, by TERM, or by KILL."""
        by_itself = self._running[process]
        for wait, number in (
            (by_itself, signal.SIGTERM),
            (2 * END_WITHIN, signal.SIGKILL),
            (END_WITHIN, None),
        ):
            try:
                process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                if number is not None:
                    process.send_signal(number)
        if process.stdout is not None:
            process.stdout.close()
        del self._running[process]

    def end_all(self) -> None:
        """Commands before the servers that they talk to."""
        for process in reversed(tuple(self._running)):
            self.end(process)


class Stage:
    """The folder of the demo, its two programs, and the environment of its commands."""

    def __init__(self, folder: Path, index: dict[str, Any], programs: Programs) -> None:
        self.programs = programs
        self.folder = folder
        self.sections = itertools.count(1)
        self.mark = uuid.uuid4().hex
        self.issuer_port, self.port = free_ports()
        self.issuer = f"http://127.0.0.1:{self.issuer_port}"
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.secret = secrets.token_urlsafe(24)
        self.log = folder / "person.txt"
        self.config = folder / "config" / "moorings" / "moorings.toml"
        self.config.parent.mkdir(parents=True)
        self.config.write_text(f'[servers.{NAME}]\nurl = "{self.url}"\n')
        # There is a person, played or real, where CI is set too.
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != "CI" and not name.startswith("MOORINGS_")
        }
        self.environment = {
            **kept,
            MARK: self.mark,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self._index = index

    def played(self) -> dict[str, str]:
        """The environment in which the browser is the script."""
        script = Path(__file__).with_name("oauth") / "person.py"
        words = [sys.executable, str(script), PERSON, PASSWORD, str(self.log)]
        return {**self.environment, "BROWSER": shlex.join(words)}

    def start(self) -> None:
        """Start both programs; they listen then."""
        client = {
            "client_id": "tides-server",
            "client_secret": self.secret,
            "redirect_uris": [],
            "response_types": [],
            "grant_types": [],
        }
        options = {"clients": [client], "resources": [self.url], "scopes": SCOPES}
        provider = [*self._index["oidc-provider"]["command"], str(self.issuer_port), json.dumps(options)]
        self._listening("the authorization server", provider, self.issuer_port, {})
        # The interpreter of the SDK's environment, on another script.
        script = Path(__file__).with_name("oauth") / "tides.py"
        server = [self._index["era-2.3.0"]["command"][0], str(script), str(self.port), self.issuer]
        self._listening("the MCP server", server, self.port, {"DEMO_SECRET": self.secret})

    def _listening(self, what: str, command: list[str], port: int, more: dict[str, str]) -> None:
        output = self.folder / f"{port}.out"
        with output.open("wb") as out:
            process = self.programs.start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env={**self.environment, **more},
                start_new_session=True,
            )
        _wait_listening(what, process, port, output)


def main(words: Sequence[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without these characters is no reason to fail
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()
    strikes = Strikes()
    try:
        _demo(console, strikes, real=_who(words))
    except DemoFailed as failure:
        console.print(f"\n[bold red]✗ the demo failed:[/] {escape(str(failure))}")
        return 1
    except KeyboardInterrupt:
        console.print("\n[yellow]interrupted; both programs were stopped[/]")
        return 130
    console.print(
        f"\n[bold green]✓ everything shown was checked[/] [dim]({time.monotonic() - began:.1f} s)[/]"
    )
    return 0


def _demo(console: Console, strikes: Strikes, *, real: bool) -> None:
    index = _index()
    programs = Programs(strikes)
    folder: Path | None = None
    try:
        with strikes.held():
            folder = Path(tempfile.mkdtemp(prefix="moorings-demo-"))
        stage = Stage(folder, index, programs)
        _title(console)
        stage.start()
        _two_programs(console, stage, index)
        _without_a_login(console, stage)
        _log_in(console, stage, real=real)
        _use(console, stage)
        _status(console, stage)
        _log_out(console, stage)
    finally:
        with strikes.held():
            programs.end_all()
            if folder is not None:
                shutil.rmtree(folder)
    _nobody_left(console, stage)


def _who(words: Sequence[str]) -> bool:
    """Whether a real person logs in."""
    said = (words[0] if words else "") or "played"
    if said not in ("played", "me"):
        raise DemoFailed(f"PERSON is {said!r}; it is played or me")
    if said == "me" and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise DemoFailed("PERSON=me needs a terminal: a person must be there who can be asked")
    return said == "me"


def _index() -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads(INDEX.read_text())
    except FileNotFoundError:
        raise DemoFailed("the servers are not installed; `make demo-oauth` installs them first") from None
    missing = [name for name in NEEDED if name not in index]
    if missing:
        raise DemoFailed(f"not installed: {', '.join(missing)}; run `make demo-oauth`")
    return index


# --- what is shown ------------------------------------------------------------------------------------------------


def _title(console: Console) -> None:
    where = f"Python {platform.python_version()} on {platform.system()}"
    console.print(f"[bold]Moorings {__version__}[/] [dim]· a server behind a login · {where}[/]")


def _heading(console: Console, stage: Stage, text: str) -> None:
    console.print(f"\n[bold cyan]{next(stage.sections)}[/] [bold]{text}[/]")


def _good(console: Console, text: str) -> None:
    console.print(f"  [green]✓[/] {escape(text)}")


def _two_programs(console: Console, stage: Stage, index: dict[str, Any]) -> None:
    _heading(console, stage, "Two programs on this machine, and a configuration")
    provider, sdk = (index[name] for name in NEEDED)
    console.print(f"  authorization server  {stage.issuer}  [dim]oidc-provider {provider['version']}[/]")
    console.print(
        f"  MCP server            {stage.url}  [dim]official SDK {sdk['version']}, wants tokens of it[/]"
    )
    console.print("  moorings.toml         [dim]nothing in it says that a login is needed[/]")
    for line in stage.config.read_text().splitlines():
        console.print(f"      {escape(line)}", style="cyan")


def _without_a_login(console: Console, stage: Stage) -> None:
    _heading(console, stage, "Nobody has logged in")
    said = _moor(console, stage, "test", code=4)
    if f"moor login {NAME}" not in said:
        raise DemoFailed("`moor test` does not say how to log in")
    _good(console, "exit code 4, and what to do about it; nothing was opened and nobody was asked")


def _log_in(console: Console, stage: Stage, *, real: bool) -> None:
    if real:
        _heading(console, stage, "You log in")
        console.print(
            f"  [yellow]As name and password the page takes {PERSON} and {PASSWORD} (or any others).[/]"
        )
        _moor_with_person(console, stage)
    else:
        _heading(
            console, stage, "A person logs in (played by a script in place of the browser; PERSON=me: you)"
        )
        # Named, it is asked for though no terminal is there.
        _moor(console, stage, "login", NAME, "--flow", "browser", env=stage.played())
        console.print("  [dim]the script, on the pages of the authorization server:[/]")
        steps = stage.log.read_text().splitlines() if stage.log.exists() else []
        for step in steps:
            console.print(f"  [dim]│ {escape(step)}[/]")
        if not steps or f"Logged in to {NAME}" not in steps[-1]:
            raise DemoFailed("the page at the end did not say that the login was done")
    _good(console, "the server took the new token in a real request before that was said")


def _use(console: Console, stage: Stage) -> None:
    _heading(console, stage, "From now on nobody is asked")
    said = _moor(console, stage, "tools")
    if f"{NAME}__high_water" not in said:
        raise DemoFailed("its tools are not listed")
    said = _moor(console, stage, "call", f"{NAME}__high_water", "harbour=Dover")
    if "11:27" not in said:
        raise DemoFailed(f"high water at Dover is at 11:27; the answer was {said.strip()!r}")
    said = _moor(console, stage, "call", f"{NAME}__whoami")
    if SCOPES not in said:
        raise DemoFailed(f"the server does not know the scopes: {said.strip()!r}")
    _good(console, "each command is a process of its own, and found the login in the store")


def _status(console: Console, stage: Stage) -> None:
    _heading(console, stage, "Which login there is")
    said = _moor(console, stage, "auth", "status", NAME)
    if "good" not in said:
        raise DemoFailed("it does not say that the login is good")


def _log_out(console: Console, stage: Stage) -> None:
    _heading(console, stage, "Logged out")
    said = _moor(console, stage, "logout", NAME)
    if "revoked" not in said or "NOT revoked" in said:
        raise DemoFailed("the tokens were not revoked")
    _moor(console, stage, "call", f"{NAME}__whoami", code=4)
    _good(console, "the tokens are revoked at the authorization server, and gone here: exit code 4 again")


def _nobody_left(console: Console, stage: Stage) -> None:
    _heading(console, stage, "What is left")
    until = time.monotonic() + END_WITHIN
    # A browser lives on when `moor login` has ended: here it is a script at its last line.
    while (left := ours(stage.mark)) and time.monotonic() < until:
        time.sleep(LOOK)
    if stage.folder.exists():
        raise DemoFailed(f"{stage.folder} is still there")
    if left:
        raise DemoFailed(f"processes are left: {', '.join(f'{pid} ({line})' for pid, line in left.items())}")
    for port in (stage.issuer_port, stage.port):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise DemoFailed(f"somebody still listens on port {port}")
    _good(console, "no process that this demo started, by the process table; no port; no file")


# --- commands -----------------------------------------------------------------------------------------------------


def _moor(
    console: Console, stage: Stage, *words: str, code: int = 0, env: dict[str, str] | None = None
) -> str:
    """Run `moor` as a user would, show it, and check how it ends. Gives what it printed."""
    console.print(f"  [bold]$ moor {escape(shlex.join(words))}[/]")
    process = stage.programs.start(
        [sys.executable, "-m", "moorings", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        cwd=stage.folder,
        env={**(env or stage.environment), "PYTHONUTF8": "1", "COLUMNS": "100"},
        start_new_session=True,
    )
    try:
        said: str = process.communicate(timeout=COMMAND_WITHIN)[0]
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"`moor {shlex.join(words)}` did not end in {COMMAND_WITHIN:g} s") from None
    stage.programs.end(process)
    for line in said.splitlines():
        console.print(f"  [dim]│[/] {escape(_short(line))}".rstrip())
    _ended_well(process, words, code)
    return said


def _moor_with_person(console: Console, stage: Stage) -> None:
    """The same, with this terminal."""
    console.print(f"  [bold]$ moor login {NAME}[/]\n")
    process = stage.programs.start(
        [sys.executable, "-m", "moorings", "login", NAME],
        by_itself=END_WITHIN,
        cwd=stage.folder,
        env=stage.environment,
    )
    try:
        process.wait(LOGIN_WITHIN + COMMAND_WITHIN)
    except subprocess.TimeoutExpired:
        raise DemoFailed("`moor login` did not end") from None
    stage.programs.end(process)
    _ended_well(process, ("login", NAME), 0)


def _ended_well(process: subprocess.Popen[Any], words: Sequence[str], code: int) -> None:
    if process.returncode != code:
        raise DemoFailed(f"`moor {shlex.join(words)}` ended with {process.returncode}, not {code}")


def _short(line: str) -> str:
    """An authorization URL takes many lines; here its place is enough."""

    def place(match: re.Match[str]) -> str:
        parts = urlsplit(match[0])
        return f"{parts.scheme}://{parts.netloc}{parts.path}?…"

    return re.sub(r"https?://\S+\?\S{40,}", place, line)


# --- programs -----------------------------------------------------------------------------------------------------


def free_ports() -> tuple[int, int]:
    """Two ports on which nobody listens now."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _wait_listening(what: str, process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    until = time.monotonic() + UP_WITHIN
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
                # Where nobody listens yet, a connection can meet itself.
                if connection.getsockname() != connection.getpeername():
                    return
        except OSError:
            pass
        ended = process.poll() is not None
        if ended or time.monotonic() > until:
            printed = output.read_text(errors="replace").strip()[-1500:]
            why = f"ended with {process.returncode}" if ended else f"did not listen within {UP_WITHIN:g} s"
            raise DemoFailed(f"{what} {why}. It printed: {printed or 'nothing'}")
        # A foreign program tells nobody when it listens; asking again is all there is.
        time.sleep(LOOK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
