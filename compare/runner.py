"""One driver at work on one row, seen from outside; and what a row and its outcome are. For ``run.py`` and for tests.

Each run is a child process of its own (``drive_*.py``, ``login_*.py``, in the environment of its client) with a hard
limit. It is looked at from outside: what it tells on stdout, when, which of its servers' processes live, which are
found by a mark in their environment, and what the authorization server was asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.auth_server import AuthFaults, in_thread
from tests.faults.procs import alive
from tests.faults.script import FaultLog, fault_argv

ROOT = Path(__file__).resolve().parent.parent
MARK = "COMPARE_RUN"
WATCHED = 10.0
"""Seconds for which a run looks whether processes go."""


class Peer(NamedTuple):
    """A client: its name, its driver, the Python of its environment, the package that gives its version."""

    name: str
    driver: str
    python: Path
    package: str


class NoSuchEvent(Exception):
    """The driver did not get to that point: it ended, or its limit passed."""


class Run:
    """One driver at work. Made by ``measure``, ended by ``end``; no process of it is left after that."""

    def __init__(
        self,
        peer: Peer,
        scenario: str,
        scripts: dict[str, dict[str, Any]],
        limit: float,
        home: Path,
        auth: AuthFaults | None = None,
    ) -> None:
        self.mark = secrets.token_hex(8)
        self.auth = auth
        """The protected server of the row, in a thread of its own; it outlives the run."""
        self.earlier = 0 if auth is None else len(auth.requests)
        """Requests to it before this run."""
        # The same names at each start: a server is known again by its command line.
        self.logs = {name: FaultLog(home / name) for name in scripts}
        self._earlier = {name: len(log.starts()) for name, log in self.logs.items()}
        servers = {
            name: fault_argv(journal=self.logs[name].path, **script) for name, script in scripts.items()
        }
        given = {
            "scenario": scenario,
            "servers": servers,
            "env": {MARK: self.mark},
            "url": "" if auth is None else auth.url,
            "state": str(home / "state"),
        }
        self.deadline = time.monotonic() + limit
        self.limit = limit
        self._said: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._stderr = (home / f"stderr.{self.mark}").open("w+b")
        self.driver = subprocess.Popen(
            [str(peer.python), str(ROOT / "compare" / peer.driver), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # What a client writes for itself goes into the folder of this run.
            env={**os.environ, "HOME": str(home), "FASTMCP_LOG_ENABLED": "false"},
            cwd=home,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.driver.stdout is not None
        for line in self.driver.stdout:
            with self._news:
                self._said.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._said.append({"event": None})
            self._news.notify_all()

    def wait(self, event: str) -> dict[str, Any]:
        """What the driver said under this name.

        Raises:
            NoSuchEvent: it ended without saying it, or the limit passed.
        """

        def found() -> dict[str, Any] | None:
            return next((each for each in self._said if each["event"] in (event, None)), None)

        with self._news:
            self._news.wait_for(found, max(0.0, self.deadline - time.monotonic()))
            said = found()
        if said is None:
            raise NoSuchEvent(f"no `{event}` within {self.limit:g} s")
        if said["event"] is None:
            raise NoSuchEvent(f"the driver ended before `{event}`: {self.last_line()}")
        return said

    def count(self, event: str) -> int:
        """How often the driver has said this."""
        return sum(each["event"] == event for each in self._said)

    def starts(self, name: str) -> int:
        """How many processes of this server this run has started."""
        return len(self.logs[name].starts()) - self._earlier[name]

    def last_line(self) -> str:
        """The last line of the driver's stderr."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "nothing on stderr"

    def go(self) -> None:
        """Let a driver that waits go on."""
        assert self.driver.stdin is not None
        self.driver.stdin.write(b"\n")
        self.driver.stdin.flush()

    def processes(self) -> list[int]:
        """Living processes that carry the mark of this run."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and alive(int(name)):
                try:
                    data = Path(f"/proc/{name}/environ").read_bytes()
                except OSError:
                    continue
                if wanted in data.split(b"\0"):
                    found.append(int(name))
        return found

    def left_after(self, since: float, seconds: float = WATCHED) -> tuple[int, float]:
        """How many processes are left so many seconds after a moment, and when the last that went was gone."""
        while True:
            left = len(self.processes())
            took = time.monotonic() - since
            if not left or took >= seconds:
                return left, took
            time.sleep(0.05)

    def end(self) -> None:
        """End the driver and all that it left."""
        self.driver.kill()
        self.driver.wait()
        self._reader.join()
        for pipe in (self.driver.stdin, self.driver.stdout, self._stderr):
            if pipe is not None:
                pipe.close()
        while left := self.processes():
            for pid in left:
                kill_marked(pid, f"{MARK}={self.mark}".encode())
            time.sleep(0.02)


def kill_marked(pid: int, mark: bytes) -> None:
    """Kill a process that is surely ours: the mark is read while a pidfd holds the process."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(fd)


class Cell(NamedTuple):
    """What one client did in one row."""

    held: bool
    text: str


class Row(NamedTuple):
    """One situation."""

    key: str
    title: str
    held_when: str
    scenario: str
    servers: dict[str, dict[str, Any]]
    look: Callable[[Run], Cell]
    limit: float = 30.0
    protected: dict[str, Any] | None = None
    """The script of the one server of the row, which is protected (``tests/faults/auth_server.py``)."""
    starts: int = 1
    """How many times the driver is run, one after another, with the same state folder."""
    leaves_out: tuple[str, ...] = ()
    """Clients for which it makes no sense."""
    alone: bool = False
    """It measures work and not waiting: nothing else runs meanwhile."""


def measure(row: Row, peer: Peer) -> Cell:
    """One client in one row."""
    cells = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-"))
        auth = None if row.protected is None else stack.enter_context(in_thread(**row.protected))
        for _ in range(row.starts):
            run = Run(peer, row.scenario, row.servers, row.limit, Path(folder), auth)
            try:
                cells.append(row.look(run))
            except NoSuchEvent as error:
                cells.append(Cell(False, str(error)))
            finally:
                run.end()
    if len(cells) == 1:
        return cells[0]
    return Cell(cells[-1].held, ", then ".join(cell.text for cell in cells))


def left_text(left: int, took: float) -> str:
    return f"{left} left after {took:.0f} s" if left else f"none left after {took:.1f} s"


def how(said: dict[str, Any]) -> str:
    """An outcome in short."""
    if said["raised"] is None:
        return f"answered in {said['took']:.2f} s"
    return f"{said['raised'].partition(':')[0]} after {said['took']:.2f} s"
