"""What `make demo` shows: five real MCP servers held by one host, used, cut off, and gone at the end.

Exit code 0 means that everything shown was checked: answers against the files they are about, the deadline against
the clock, and the end against the process table. Anything else ends with 1 and one line that says why. All files it
makes are in a temporary folder, which is removed.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from moorings import (
    AsyncHost,
    CallTimeout,
    CallToolResult,
    CloseReport,
    Host,
    MooringsError,
    RunTimeout,
    ServerStatus,
    StateChanged,
    StdioServer,
    __version__,
)

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / ".env" / "servers.json"
MARK = "MOORINGS_DEMO"  # an environment entry that every process started by this demo inherits
SERVERS = ("everything", "filesystem", "memory", "time", "git")
SLEEP = "everything__trigger-long-running-operation"
READY_WITHIN = 60.0
DEADLINE = 1.0
AT_ONCE = 50
BESIDE_ANSWERS = 68  # columns that the table of calls needs beside the answers


class DemoFailed(Exception):
    """Something was not as it should be; the text says what."""


class Call(NamedTuple):
    """One call of the table: the tool, its arguments, what was checked, and the check itself (None if it is good)."""

    tool: str
    arguments: dict[str, Any]
    checked: str
    fault: Callable[[CallToolResult], str | None]


class Stage:
    """The folder of the demo: files, a git repository, and the specifications of the servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.harbour = folder / "harbour"
        self.harbour.mkdir()
        self.graph = folder / "memory.json"
        self.state = folder / "state"
        self.mark = uuid.uuid4().hex
        self.repository = folder / "logbook"
        self._make_repository()
        index = _index()
        appended = {"filesystem": [str(self.harbour)], "git": ["--repository", str(self.repository)]}
        self.servers = {
            name: _spec(index[name]["command"] + appended.get(name, []), self._environment())
            for name in SERVERS
        }
        self.packages = {name: f"{index[name]['package']} {index[name]['version']}" for name in SERVERS}

    def _environment(self) -> dict[str, str]:
        return {MARK: self.mark, "MEMORY_FILE_PATH": str(self.graph)}

    def _make_repository(self) -> None:
        if shutil.which("git") is None:
            raise DemoFailed("git is not on the PATH; mcp-server-git works on repositories and needs it")
        self.repository.mkdir()
        person = ("-c", "user.name=Demo", "-c", "user.email=demo@example.org")
        for words in (
            ("init", "--quiet"),
            (*person, "commit", "--quiet", "--allow-empty", "-m", "Cast off at dawn"),
        ):
            done = subprocess.run(
                ["git", *words], cwd=self.repository, capture_output=True, text=True, timeout=30
            )
            if done.returncode:
                raise DemoFailed(f"git {words[0]} failed: {done.stderr.strip()}")

    def calls(self) -> list[Call]:
        """One call of each server, on data that is really there."""
        berths = self.harbour / "berths.txt"
        entity = {"name": "Anna", "entityType": "ship", "observations": ["lies at berth 4"]}
        zones = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        return [
            Call(
                "everything__get-sum",
                {"a": 40, "b": 2},
                "the sum is 42",
                lambda result: None if "42" in result.text else "no 42 in the answer",
            ),
            Call(
                "filesystem__write_file",
                {"path": str(berths), "content": "4: Anna\n"},
                "the file is on disk",
                lambda result: None if _content(berths) == "4: Anna\n" else f"{berths} is not as written",
            ),
            Call(
                "memory__create_entities",
                {"entities": [entity]},
                "it is in the graph file",
                lambda result: None if "berth 4" in _content(self.graph) else f"not in {self.graph}",
            ),
            Call(
                "time__convert_time",
                zones,
                "Tokyo is 9 h ahead",
                lambda result: None if "T21:00" in result.text else "no 21:00 in the answer",
            ),
            Call(
                "git__git_log",
                {"repo_path": str(self.repository), "max_count": 1},
                "the commit is in the log",
                lambda result: None if "Cast off at dawn" in result.text else "the commit is not in the log",
            ),
        ]


class StartBoard:
    """The table of starting servers. Told of events by the host's loop, drawn by the terminal's thread."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._states = dict.fromkeys(self._names, "idle")
        self._spinner = Spinner("dots", style="cyan")
        self.statuses: dict[str, ServerStatus] | None = None
        self.counts: dict[str, int] = {}

    def hear(self, event: object) -> None:
        """A state has changed. Runs on the loop, so it only writes it down."""
        if isinstance(event, StateChanged):
            with self._lock:
                self._states[event.server] = event.new

    def __rich__(self) -> RenderableType:
        with self._lock:
            states = dict(self._states)
        table = _table("server", "state", "era", "revision", "start", "tools", "pid")
        for column, width in zip(table.columns, (10, 12, 9, 10, 6, 5, 7), strict=True):
            column.min_width = width
        for column in table.columns[4:]:
            column.justify = "right"
        for name in self._names:
            status = self.statuses.get(name) if self.statuses else None
            state = status.state.value if status else states[name]
            shown: RenderableType = Text("● ready", style="green")
            if state == "connecting":
                shown = self._spinner
                self._spinner.update(text=Text("connecting", style="cyan"))
            elif state != "ready":
                shown = Text(f"  {state}", style="dim" if state == "idle" else "red")
            steps = f"{sum(v for k, v in status.steps.items() if k != 'probe'):.2f} s" if status else ""
            table.add_row(
                name,
                shown,
                (status.era or "") if status else "",
                (status.revision or "") if status else "",
                steps,
                str(self.counts.get(name, "")),
                str(status.pid) if status else "",
            )
        return table


def main() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without these characters is no reason to fail
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100)
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="moorings-demo-") as folder:
            stage = Stage(Path(folder))
            _title(console)
            _blocking_part(console, stage)
            asyncio.run(_async_part(console, stage))
            _nobody_left(console, stage)
    except DemoFailed as failure:
        return _failed(console, str(failure))
    except MooringsError as error:
        return _failed(console, f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        console.print("\n[yellow]interrupted; the servers were stopped[/]")
        return 130
    console.print(
        f"\n[bold green]✓ everything shown was checked[/] [dim]({time.monotonic() - began:.1f} s)[/]"
    )
    return 0


def _failed(console: Console, why: str) -> int:
    console.print(f"\n[bold red]✗ the demo failed:[/] {escape(why)}")
    return 1


def _title(console: Console) -> None:
    where = f"Python {platform.python_version()} on {platform.system()}"
    console.print(
        f"[bold]Moorings {__version__}[/] [dim]· {len(SERVERS)} real MCP servers, one host · {where}[/]"
    )


def _heading(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}[/] [bold]{text}[/]")


# --- blocking code ------------------------------------------------------------------------------------------------


def _blocking_part(console: Console, stage: Stage) -> None:
    board = StartBoard(stage.servers)
    host = Host(stage.servers, state_dir=stage.state, on_event=board.hear)
    try:
        with host:
            _start(console, host, board)
            _use(console, host, stage)
            _cut_off(console, host)
            running = ours(stage.mark)
            if len(running) < len(SERVERS):
                raise DemoFailed(f"only {len(running)} processes of the demo were found while it ran")
            _heading(console, 4, "The end of it")
            report = host.close()
    finally:
        host.close()
    _closed(console, report, len(running))


def _start(console: Console, host: Host, board: StartBoard) -> None:
    _heading(console, 1, "Five servers start side by side")
    with Live(board, console=console, refresh_per_second=12) if console.is_terminal else nullcontext():
        readiness = host.wait_ready(READY_WITHIN)
        board.statuses = host.status()
        tools = host.tools()
        for tool in tools:
            board.counts[tool.server] = board.counts.get(tool.server, 0) + 1
    if not console.is_terminal:
        console.print(board)
    if not readiness.all_ready:
        why = "; ".join(f"{name}: {reason}" for name, reason in readiness.failed.items())
        raise DemoFailed(f"not ready: {why or ', '.join(readiness.pending)}")
    if len(tools) < 30:
        raise DemoFailed(f"{len(tools)} tools are listed; there should be 30 or more")
    console.print(f"  {len(tools)} tools in one catalog, such as [cyan]{tools[0].name}[/]")


def _use(console: Console, host: Host, stage: Stage) -> None:
    _heading(console, 2, "One call each, on real data")
    table = _table("tool", "answer", "checked", "time")
    for column in table.columns:
        column.no_wrap = True
    table.columns[3].justify = "right"
    room = max(console.width - BESIDE_ANSWERS, 12)
    for call in stage.calls():
        began = time.monotonic()
        result = host.call(call.tool, call.arguments, timeout=20)
        took = time.monotonic() - began
        if result.is_error:
            raise DemoFailed(f"{call.tool} answered with an error: {result.text}")
        fault = call.fault(result)
        if fault is not None:
            raise DemoFailed(f"{call.tool}: {fault}")
        table.add_row(
            call.tool,
            Text(_one_line(result.text.replace(f"{stage.folder}{os.sep}", ""), room), style="dim"),
            Text(f"✓ {call.checked}", style="green"),
            f"{took * 1000:.0f} ms",
        )
    console.print(table)


def _cut_off(console: Console, host: Host) -> None:
    _heading(console, 3, f"A run of {DEADLINE:g} s, while its tool would sleep for 60 s")
    pid = host.status()["everything"].pid
    began = time.monotonic()
    try:
        with host.run(timeout=DEADLINE):
            host.call(SLEEP, {"duration": 60, "steps": 1})
    except RunTimeout as end:
        took = time.monotonic() - began
        cause = end.__cause__
        if not DEADLINE <= took < DEADLINE + 1.0:
            raise DemoFailed(f"the run ended after {took:.2f} s of {DEADLINE:g} s allowed") from None
        if not isinstance(cause, CallTimeout) or not cause.sent:
            raise DemoFailed(f"the call in flight ended as {cause!r}, not as a CallTimeout") from None
        console.print(f"  [yellow]RunTimeout[/] {escape(end.message)}")
        console.print(
            f"  [yellow]CallTimeout[/] sent={cause.sent}: {cause.tool} was told that nobody waits any more"
        )
    else:
        raise DemoFailed("the run was not cut off by its deadline")
    answer = host.call("everything__echo", {"message": "still here"}, timeout=20)
    if "still here" not in answer.text or host.status()["everything"].pid != pid:
        raise DemoFailed("the server did not outlive the run")
    console.print(f"  [green]✓[/] the server outlived the run: pid {pid} answers “{answer.text}”")


def _closed(console: Console, report: CloseReport, processes: int) -> None:
    if report.survivors or report.stuck:
        raise DemoFailed(f"left after the close: processes {report.survivors}, tasks {report.stuck}")
    ended = ", ".join(name for name, record in report.servers.items() if not record.forced)
    console.print(f"  closed in {report.elapsed:.2f} s; by themselves: {ended}")
    for name, steps in report.forced.items():
        console.print(f"  [yellow]forced[/]: {name} by {', '.join(steps)} [dim](its tool is still asleep)[/]")
    console.print(f"  [green]✓[/] {processes} processes of this demo ran until then")


# --- async code ---------------------------------------------------------------------------------------------------


async def _async_part(console: Console, stage: Stage) -> None:
    _heading(console, 5, "The same from async code")
    chosen = {name: stage.servers[name] for name in ("everything", "memory")}
    async with AsyncHost(chosen, state_dir=stage.state) as host:
        await host.wait_ready(READY_WITHIN)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            sums = [
                group.create_task(host.call("everything__get-sum", {"a": n, "b": n}, timeout=20))
                for n in range(AT_ONCE)
            ]
        took = time.monotonic() - began
        for n, task in enumerate(sums):
            if f"is {2 * n}." not in task.result().text:
                raise DemoFailed(f"call {n} of {AT_ONCE} got the answer of another: {task.result().text}")
        remembered = await host.call("memory__search_nodes", {"query": "Anna"}, timeout=20)
        if "berth 4" not in remembered.text:
            raise DemoFailed("the memory server does not know what it was told before")
        seen: list[float] = []
        await host.call(
            SLEEP,
            {"duration": 0.6, "steps": 3},
            on_progress=lambda progress, total, message: seen.append(progress),
        )
        if seen != [1, 2, 3]:
            raise DemoFailed(f"progress came as {seen}, not as 1, 2, 3")
    report = await host.close()
    if not report.clean:
        raise DemoFailed(f"the async host did not close clean: {report}")
    speed = f"{AT_ONCE} calls at once on one server in {took * 1000:.0f} ms"
    console.print(f"  [green]✓[/] {speed}, each with its own answer")
    console.print("  [green]✓[/] the memory of section 2 is there again, in a new process")
    console.print(f"  [green]✓[/] progress was heard: {', '.join(f'{step:g} of 3' for step in seen)}")
    console.print(f"  [green]✓[/] closed in {report.elapsed:.2f} s, nothing forced")


# --- the proof ----------------------------------------------------------------------------------------------------


def _nobody_left(console: Console, stage: Stage) -> None:
    _heading(console, 6, "What is left")
    left = ours(stage.mark)
    if left:
        raise DemoFailed(f"processes are left: {', '.join(f'{pid} ({line})' for pid, line in left.items())}")
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        raise DemoFailed(f"threads are left: {', '.join(threads)}")
    console.print("  [green]✓[/] no process that this demo started, by the process table; no thread")


def ours(mark: str) -> dict[int, str]:
    """Living processes that carry the mark of this demo in their environment, and children of this process, each with
    its command line."""
    entry = f"{MARK}={mark}".encode()
    if not os.path.isdir("/proc/self"):
        raise DemoFailed("there is no /proc here, so the end of all processes cannot be shown")
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        process = Path("/proc", name)
        try:
            parent = int(process.joinpath("stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent != os.getpid() and entry not in process.joinpath("environ").read_bytes().split(b"\0"):
                continue
            line = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile, or is another user's
            continue
        found[int(name)] = line.strip()
    return found


# --- small parts --------------------------------------------------------------------------------------------------


def _index() -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads(INDEX.read_text())
    except FileNotFoundError:
        raise DemoFailed(
            "the servers are not installed; `make demo` installs them and then runs this"
        ) from None
    missing = [name for name in SERVERS if name not in index]
    if missing:
        raise DemoFailed(f"not installed: {', '.join(missing)}; run `make demo`")
    return index


def _spec(command: list[str], env: dict[str, str]) -> StdioServer:
    return StdioServer(command=command[0], args=tuple(command[1:]), env=env)


def _content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _one_line(text: str, room: int) -> str:
    line = " ".join(text[:1000].split())
    return line if len(line) <= room else line[: room - 1] + "…"


def _table(*columns: str) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))


if __name__ == "__main__":
    sys.exit(main())
