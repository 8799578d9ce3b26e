"""The same scripted servers under Moorings, the official SDK and FastMCP: who survives what, seen from outside.

    python compare/run.py [ROW ...]     all rows, or those named; all rows also write docs/topics/compare.md

Each run of a row is a child process of its own (``drive_*.py``, in the environment of its client) with a hard limit.
It is looked at from outside: what it tells on stdout, when, and which of its servers' processes live, which are found
by a mark in their environment. A row says in one sentence when it counts as held; nothing is asserted, and the exit
code is 0 whatever the clients do. ``tools/setup_env.py compare`` makes the environments.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.faults.procs import alive  # noqa: E402
from tests.faults.script import FaultLog, fault_argv  # noqa: E402

MARK = "COMPARE_RUN"
PAGE = ROOT / "docs" / "topics" / "compare.md"
BEGIN, END = "<!-- measured: compare -->\n", "<!-- end -->"
STUBBORN: dict[str, Any] = {"ignore_eof": True, "ignore_term": True}
WATCHED = 10.0
"""Seconds for which a run looks whether processes go."""


class Peer(NamedTuple):
    """A client: its name, its driver, the Python of its environment, the package that gives its version."""

    name: str
    driver: str
    python: Path
    package: str


PEERS = (
    Peer("Moorings", "drive_moorings.py", Path(sys.executable), "moorings"),
    Peer("official SDK", "drive_sdk.py", ROOT / ".env" / "compare-sdk" / "bin" / "python", "mcp"),
    Peer("FastMCP", "drive_fastmcp.py", ROOT / ".env" / "compare-fastmcp" / "bin" / "python", "fastmcp"),
)


class NoSuchEvent(Exception):
    """The driver did not get to that point: it ended, or its limit passed."""


class Run:
    """One driver at work. Made by ``measure``, ended by ``end``; no process of it is left after that."""

    def __init__(
        self, peer: Peer, scenario: str, scripts: dict[str, dict[str, Any]], limit: float, home: Path
    ) -> None:
        self.mark = secrets.token_hex(8)
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


# --- the rows: what is done, what is looked at --------------------------------------------------------------------


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
    starts: int = 1
    """How many times the driver is run, one after another, with the same state folder."""
    alone: bool = False
    """It measures work and not waiting: nothing else runs meanwhile."""


def left_text(left: int, took: float) -> str:
    return f"{left} left after {took:.0f} s" if left else f"none left after {took:.1f} s"


def how(said: dict[str, Any]) -> str:
    """An outcome in short."""
    if said["raised"] is None:
        return f"answered in {said['took']:.2f} s"
    return f"{said['raised'].partition(':')[0]} after {said['took']:.2f} s"


def look_cancelled_close(run: Run) -> Cell:
    began = run.wait("cancelled")["t"]
    left, took = run.left_after(began)
    owner = run.wait("owner")
    run.go()
    ended = f"owner ended after {owner['took']:.1f} s" if owner["ended"] else "owner had not ended after 10 s"
    return Cell(bool(owner["ended"]) and not left, f"{ended}; {left_text(left, took)}")


def look_closed_elsewhere(run: Run) -> Cell:
    closed = run.wait("closed")
    left, took = run.left_after(closed["t"], 3.0)
    opener = run.wait("opener")
    run.go()
    said = f"closed in {closed['took']:.2f} s" if closed["raised"] is None else how(closed)
    opened = "the opener was cancelled" if opener["ended"] else "the opener went on"
    held = closed["raised"] is None and not opener["ended"] and not left
    return Cell(held, f"{said}; {opened}; {left_text(left, took)}")


def look_start(within: float) -> Callable[[Run], Cell]:
    def look(run: Run) -> Cell:
        opened, answered = run.wait("opened"), run.wait("answered")
        starts = run.starts("s")
        held = opened["raised"] is None and answered["raised"] is None and opened["took"] <= within
        word = f"open in {opened['took']:.1f} s" if opened["raised"] is None else how(opened)
        if starts != 1:
            word += f" ({starts} processes started)"
        return Cell(held, word)

    return look


def look_host_killed(run: Run) -> Cell:
    run.wait("ready")
    before = len(run.processes())
    run.driver.kill()
    left, took = run.left_after(time.monotonic(), 6.0)
    return Cell(not left, f"of {before} processes {left_text(left, took)}")


def look_three_calls(run: Run) -> Cell:
    run.wait("called")
    started = run.starts("s")
    run.go()
    return Cell(started == 1, f"{started} process{'es' if started != 1 else ''}")


def look_one_bad(run: Run) -> Cell:
    opened = run.wait("opened")
    listed, answered = run.wait("listed"), run.wait("answered")
    tools = 0 if listed["raised"] else len(listed["value"])
    failed = opened["value"] or {}
    named = "the bad one named" if "bad" in failed else "the bad one not named"
    held = answered["raised"] is None and tools > 0 and "bad" in failed
    return Cell(held, f"open in {opened['took']:.1f} s; {tools} tools of the good one; {named}")


def look_at_once(run: Run) -> Cell:
    answered, bystander = run.wait("answered"), run.wait("bystander")
    other = "the program's own task was ended" if bystander["ended"] else "the program's own task went on"
    held = answered["raised"] is None and answered["took"] < 2 and not bystander["ended"]
    return Cell(held, f"{how(answered)}; {other}")


def look_stubborn(run: Run) -> Cell:
    run.wait("opened")
    closed = run.wait("closed")
    left, _ = run.left_after(closed["t"], 0.5)
    run.go()
    said = f"closed in {closed['took']:.1f} s" if closed["raised"] is None else how(closed)
    return Cell(closed["took"] < 10 and not left and closed["raised"] is None, f"{said}; {left} left")


def look_left(run: Run) -> Cell:
    left, took = run.left_after(run.wait("left")["t"], 3.0)
    run.go()
    return Cell(not left, left_text(left, took))


def look_fifty(run: Run) -> Cell:
    opened, threads, closed = run.wait("opened"), run.wait("threads"), run.wait("closed")
    run.go()
    if opened["raised"]:
        return Cell(False, how(opened))
    more = threads["after"] - threads["before"]
    text = f"{more} more threads; open in {opened['took']:.1f} s, closed in {closed['took']:.1f} s"
    return Cell(more == 0, text)


def look_death(run: Run) -> Cell:
    died, answered = run.wait("died"), run.wait("answered")
    known = "exit code 3" if "code 3" in (died["raised"] or "") else "no exit code"
    tail = "stderr" if "out of cheese" in (died["raised"] or "") else "no stderr"
    held = died["raised"] is not None and died["took"] < 1 and answered["raised"] is None
    return Cell(held, f"{how(died)} ({known}, {tail} in the text); next call: {how(answered)}")


def look_large(run: Run) -> Cell:
    large, answered = run.wait("large"), run.wait("answered")
    held = answered["raised"] is None
    return Cell(held, f"{how(large)}; next call: {how(answered)}")


ROWS = (
    Row(
        "P5",
        "`task.cancel()` while a server that ignores end of input and TERM, with a child, is closed",
        "the owner ends and no process is left 10 s later",
        "cancelled_close",
        {"s": STUBBORN},
        look_cancelled_close,
        limit=40,
    ),
    Row(
        "P6",
        "opened in one task, closed from another",
        "the close returns, the opener goes on, no process is left 3 s later",
        "closed_elsewhere",
        {"s": {}},
        look_closed_elsewhere,
        limit=40,
    ),
    Row(
        "P9",
        "a server silent on `server/discover`, two starts of the program",
        "the second start takes less than 1 s",
        "start",
        {"s": {"on_probe": "silent"}},
        look_start(1.0),
        limit=40,
        starts=2,
    ),
    Row(
        "P10",
        "a server that exits on `server/discover`",
        "it is open, and a call is answered",
        "start",
        {"s": {"on_probe": "exit:1"}},
        look_start(60.0),
        limit=60,
    ),
    Row(
        "P11",
        "the program is killed (SIGKILL); stubborn server with a child",
        "no process is left 6 s later",
        "host_killed",
        {"s": STUBBORN},
        look_host_killed,
    ),
    Row(
        "P12a",
        "three calls of one tool",
        "one server process",
        "three_calls",
        {"s": {}},
        look_three_calls,
    ),
    Row(
        "P12b",
        "two servers, one of which exits at once",
        "the tools of the good one are there and callable, the bad one is named by the client",
        "one_bad_of_two",
        {"good": {}, "bad": {"on_probe": "exit:3", "on_initialize": "exit:3"}},
        look_one_bad,
        limit=60,
    ),
    Row(
        "P15",
        "8 calls of 1 s at once to one server; then close",
        "answered in less than 2 s, a task of the program's own goes on after the close",
        "at_once",
        {"s": {}},
        look_at_once,
    ),
    Row(
        "P20",
        "close of 10 servers that ignore end of input and TERM",
        "closed in less than 10 s, no process left",
        "many",
        {f"s{n}": STUBBORN for n in range(10)},
        look_stubborn,
        limit=90,
    ),
    Row(
        "P21",
        "`async with` over one server is left, the program goes on",
        "no process is left 3 s later",
        "left",
        {"s": {}},
        look_left,
    ),
    Row(
        "P22",
        "50 servers, Python {python}",
        "no thread more than before",
        "many",
        {f"s{n}": {} for n in range(50)},
        look_fifty,
        limit=60,
        alone=True,
    ),
    Row(
        "death",
        "the server exits with code 3 in the middle of a call",
        "the call ends in less than 1 s, and the next call is answered",
        "death",
        {"s": {}},
        look_death,
        limit=60,
    ),
    Row(
        "17 MiB",
        "an answer of 17 MiB (Moorings' cap is 16 MiB, a setting)",
        "the next call is answered",
        "large",
        {"s": {}},
        look_large,
        limit=60,
        alone=True,
    ),
    Row(
        "stderr",
        "1 MB on stderr before the first answer",
        "it is open, and a call is answered",
        "start",
        {"s": {"stderr_first": 1_000_000}},
        look_start(60.0),
        limit=60,
        alone=True,
    ),
)


def measure(row: Row, peer: Peer) -> Cell:
    """One client in one row."""
    cells = []
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        for _ in range(row.starts):
            run = Run(peer, row.scenario, row.servers, row.limit, Path(folder))
            try:
                cells.append(row.look(run))
            except NoSuchEvent as error:
                cells.append(Cell(False, str(error)))
            finally:
                run.end()
    if len(cells) == 1:
        return cells[0]
    return Cell(cells[-1].held, ", then ".join(cell.text for cell in cells))


def measure_all(rows: list[Row]) -> dict[str, list[Cell]]:
    """Rows that mostly wait run side by side; the others one client after another."""
    waiting = [(row, peer) for row in rows if not row.alone for peer in PEERS]
    waiting.sort(key=lambda pair: -pair[0].limit * pair[0].starts)  # the long ones first
    with ThreadPoolExecutor(6) as pool:
        cells = pool.map(lambda pair: measure(*pair), waiting)
        found = {(row.key, peer.name): cell for (row, peer), cell in zip(waiting, cells, strict=True)}
    for row in rows:
        if row.alone:
            found |= {(row.key, peer.name): measure(row, peer) for peer in PEERS}
    return {row.key: [found[row.key, peer.name] for peer in PEERS] for row in rows}


def versions() -> list[str]:
    """Name and version of each client."""
    found = []
    for peer in PEERS:
        program = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
        done = subprocess.run(
            [str(peer.python), "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        found.append(f"{peer.name} {done.stdout.strip()}")
    return found


def table(rows: list[Row], cells: dict[str, list[Cell]], names: list[str]) -> str:
    """The table as it stands in the docs."""
    lines = [f"| | situation | held when | {' | '.join(names)} |", "|---|---|---|---|---|---|"]
    for row in rows:
        said = [f"{'✓' if cell.held else '✗'} {cell.text}".replace("|", "\\|") for cell in cells[row.key]]
        lines.append(f"| {row.key} | {title(row)} | {row.held_when} | {' | '.join(said)} |")
    held = [sum(cells[row.key][n].held for row in rows) for n in range(len(PEERS))]
    lines.append(f"| | held | | {' | '.join(f'{n} of {len(rows)}' for n in held)} |")
    return "\n".join(lines)


def title(row: Row) -> str:
    return row.title.format(python=platform.python_version())


def show(rows: list[Row], cells: dict[str, list[Cell]], names: list[str]) -> None:
    """For people, where stdout is a terminal; as it stands in the docs otherwise."""
    if not sys.stdout.isatty():
        print(table(rows, cells, names))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown = Table(show_lines=True)
    for heading in ("", "situation", *names):
        shown.add_column(heading, overflow="fold")
    for row in rows:
        marks = [
            f"{'[green]✓[/]' if cell.held else '[red]✗[/]'} {escape(cell.text)}" for cell in cells[row.key]
        ]
        shown.add_row(row.key, f"{title(row)}\n[dim]held when {row.held_when}[/]", *marks)
    Console().print(shown)


def write(text: str, names: list[str]) -> None:
    """Put the table into the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    where = f"Python {platform.python_version()} on {platform.system()} ({os.cpu_count()} cores)"
    made = f"{', '.join(names)}; {where}; `make compare`.\n\n{text}\n"
    PAGE.write_text(f"{before}{BEGIN}{made}{END}{after}", encoding="utf-8")


def main(words: list[str]) -> int:
    rows = [row for row in ROWS if not words or row.key in words]
    if unknown := set(words) - {row.key for row in ROWS}:
        print(f"compare: no such row: {', '.join(unknown)}; there are {', '.join(row.key for row in ROWS)}")
        return 2
    names = versions()
    began = time.monotonic()
    print(f"compare: {len(rows)} situations, {', '.join(names)}", flush=True)
    cells = measure_all(rows)
    show(rows, cells, names)
    if not words:
        write(table(rows, cells, names), names)
    print(f"compare: {time.monotonic() - began:.0f} s{'' if words else f'; written into {PAGE.name}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
