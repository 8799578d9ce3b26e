"""Runs clients: builds the server, starts one client process for one case, on its cores, and reads its figures.

Owns every process it starts: a client that takes too long is killed with its group, and servers that outlive their
client are ended, and told of. Over HTTP the server is a process of its own, which runs before its client and after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cases import Case

__all__ = ["Built", "Outcome", "build_server", "imports", "machine", "raise_limits", "run_client", "versions"]

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
ENV = ROOT / ".env"
BUILD = ENV / "bench-server"
NODE = ENV / "bench-typescript" / "node"

DESCRIPTORS = 16_384
SERVER_ENDS = 5.0
"""Seconds in which a server over HTTP is gone after the end of its stdin."""
Figures = dict[str, Any]


def _python(env: str) -> str:
    return str(ENV / env / "bin" / "python")


PROGRAMS: dict[str, tuple[str, str]] = {
    "floor": (_python("bench"), "floor.py"),
    "floor-sockets": (_python("bench"), "floor_sockets.py"),
    "floor-aiohttp": (_python("bench"), "floor_aiohttp.py"),
    "moorings": (_python("bench"), "moorings_async.py"),
    "moorings-blocking": (_python("bench"), "moorings_blocking.py"),
    "moorings-rcts": (_python("bench"), "moorings_blocking.py"),
    "sdk": (_python("compare-sdk"), "sdk.py"),
    "sdk-moorings": (_python("bench"), "sdk_moorings.py"),
    "fastmcp": (_python("compare-fastmcp"), "fastmcp_client.py"),
    "typescript": (str(NODE), "typescript.mjs"),
}
"""Client → what runs it, and its program in ``bench/clients``."""
EXTRA = {"moorings-blocking": {"via": "host"}, "moorings-rcts": {"via": "run_coroutine_threadsafe"}}
"""Parameters that only these clients get."""


class Built(NamedTuple):
    """The server: where it is, and what it is written in."""

    path: Path
    language: str
    note: str = ""


class Outcome(NamedTuple):
    """How one run of a client ended: figures, or why there are none."""

    figures: Figures | None = None
    failed: str = ""
    unsupported: str = ""
    seconds: float = 0.0
    """What the run took as a whole."""


# --- the server


def build_server(say: Callable[[str], None]) -> Built:
    """Compile it, or take the one in Python where that does not work; by one name for each core, see there."""
    BUILD.mkdir(parents=True, exist_ok=True)
    server = BUILD / "scripted"
    fresh = BUILD / f"scripted.{os.getpid()}"
    source = BENCH / "server" / "scripted.c"
    compiler = next(
        (cc for cc in (os.environ.get("CC"), "cc", "gcc", "clang") if cc and shutil.which(cc)), None
    )
    built = Built(server, "C")
    if compiler is None:
        built = Built(
            server, "Python", "no C compiler found: the server is the one in Python, which is the bottleneck"
        )
    else:
        compiled = subprocess.run(
            [compiler, "-std=c11", "-O2", "-o", str(fresh), str(source)], capture_output=True, text=True
        )
        if compiled.returncode:
            why = (compiled.stderr.strip().splitlines() or ["no reason given"])[0]
            built = Built(server, "Python", f"{compiler} failed ({why}): the server is the one in Python")
    if built.language == "Python":
        fresh.write_text(f"#!{sys.executable} -SEP\n{source.with_suffix('.py').read_text()}")
        fresh.chmod(0o755)
    if built.note:
        say(built.note)
    fresh.replace(server)
    for core in _cores():
        link = BUILD / f"scripted-cpu{core}"
        link.unlink(missing_ok=True)
        link.symlink_to(server.name)
    return built


# --- cores and environment


def _environment(**more: str) -> dict[str, str]:
    """That of the caller without what makes Python behave otherwise, such as PYTHONDONTWRITEBYTECODE."""
    return {key: one for key, one in os.environ.items() if not key.startswith("PYTHON")} | more


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


class _On:
    """Processes started within run on these cores."""

    def __init__(self, cores: Iterable[int]) -> None:
        self._cores = set(cores)
        self._before = os.sched_getaffinity(0)

    def __enter__(self) -> None:
        os.sched_setaffinity(0, self._cores)

    def __exit__(self, *_: object) -> None:
        os.sched_setaffinity(0, self._before)


def raise_limits() -> None:
    """Let clients open as many descriptors as they may: 300 servers have more than the usual limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))


# --- one client


def run_client(client: str, case: Case, params: dict[str, Any], server: Path, limit: float) -> Outcome:
    """One case in one fresh process."""
    program, script = PROGRAMS[client]
    if not Path(program).exists():
        where = Path(program).relative_to(ROOT)
        return Outcome(failed=f"{where} is missing; tools/setup_env.py bench makes it")
    cores = _cores()
    if case.pin == "two" and len(cores) > 1:
        server = server.with_name(f"{server.name}-cpu{cores[1]}")
    argv = [program, str(BENCH / "clients" / script), case.kind, json.dumps(params | EXTRA.get(client, {}))]
    with _On(cores[:1]), _listening(case, params, server) as urls:
        return _run(argv, _environment(BENCH_SERVER=str(server), BENCH_URLS=urls), limit)


@contextlib.contextmanager
def _listening(case: Case, params: dict[str, Any], server: Path) -> Iterator[str]:
    """The URLs of the servers of a case, which run meanwhile; none over stdio, where clients start them."""
    if case.http is None:
        yield ""
        return
    if case.server:
        argv = [sys.executable, str(BENCH / "server" / case.server), *case.http]
    else:
        counts = ["--ports", str(params.get("servers", 1)), "--tools", str(params.get("tools", 0))]
        argv = [str(server), "--http", *case.http, *counts]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield " ".join(f"http://127.0.0.1:{port}/mcp" for port in process.stdout.readline().split())
    finally:
        process.stdin.close()
        try:
            process.wait(SERVER_ENDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _run(argv: list[str], env: dict[str, str], limit: float) -> Outcome:
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return Outcome(failed=f"not done after {limit:.0f} s")
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        left = _end_servers_of(process.pid)
    return _judged(process.returncode, out, err, left)


def _judged(code: int, out: str, err: str, left: int) -> Outcome:
    last = (out.strip().splitlines() or [""])[-1]
    try:
        told = json.loads(last)
    except ValueError:
        told = None
    if code == 3 and isinstance(told, dict):
        return Outcome(unsupported=str(told.get("unsupported", "no reason given")))
    if code or not isinstance(told, dict):
        why = (err.strip().splitlines() or [last or "it said nothing"])[-1]
        return Outcome(failed=f"exit code {code}: {why}"[:200])
    if left:
        return Outcome(failed=f"{left} servers were still there after the client had ended")
    return Outcome({key: statistics.median(v) if isinstance(v, list) else v for key, v in told.items()})


def _end_servers_of(client: int) -> int:
    """Kill the servers that still bear the mark of a client that has ended; how many there were."""
    found = 0
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if f"bench-{client}".encode() in words:
                os.kill(int(entry.name), signal.SIGKILL)
                found += 1
        except OSError:
            continue
    return found


# --- imports


def imports(client: str, repeats: int) -> Outcome:
    """Wall time of imports, in ms over the same Python with nothing to do; the bytecode is there before."""
    python = Path(PROGRAMS[client][0])
    if not python.exists():
        return Outcome(failed=f"{python.relative_to(ROOT)} is missing; tools/setup_env.py bench makes it")
    package = {"moorings": "moorings", "sdk": "mcp", "fastmcp": "fastmcp"}[client]
    commands = {"bare_ms": [str(python), "-c", "pass"], "ms": [str(python), "-c", f"import {package}"]}
    if client == "moorings":
        commands["host_ms"] = [str(python), "-c", "import moorings; moorings.Host"]
        commands["command_ms"] = [str(python.with_name("moor")), "--version"]
    took: dict[str, list[float]] = {key: [] for key in commands}
    with _On(_cores()[:1]):
        for turn in range(repeats + 1):
            for key, argv in commands.items():
                began = time.perf_counter()
                done = subprocess.run(argv, capture_output=True, text=True, env=_environment())
                if done.returncode:
                    return Outcome(failed=f"{' '.join(argv[1:])}: {done.stderr.strip().splitlines()[-1]}")
                if turn:
                    took[key].append((time.perf_counter() - began) * 1e3)
    figures = {key: statistics.median(values) for key, values in took.items()}
    bare = figures["bare_ms"]
    return Outcome({key: value if key == "bare_ms" else value - bare for key, value in figures.items()})


# --- what it ran on


def machine() -> dict[str, str]:
    """Processor, cores and system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )
    system = os.uname()
    return {
        "processor": model,
        "cores": str(len(_cores())),
        "system": f"{system.sysname} {system.release}",
        "python": sys.version.split()[0],
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def versions(clients: Iterable[str]) -> dict[str, str]:
    """Client → what it is, as its environment says."""
    packages = {
        "floor": "msgspec",
        "floor-aiohttp": "aiohttp",
        "moorings": "moorings",
        "sdk": "mcp",
        "fastmcp": "fastmcp",
    }
    told = {}
    for client in clients:
        program = PROGRAMS[client][0]
        if client in packages:
            name = packages[client]
            asked = [program, "-c", f"from importlib.metadata import version; print(version({name!r}))"]
        elif client == "typescript":
            name, asked = "Node", [program, "--version"]
        else:
            continue
        try:
            done = subprocess.run(asked, capture_output=True, text=True, timeout=30)
            told[client] = f"{name} {done.stdout.strip() or 'unknown'}"
        except OSError:
            told[client] = f"{name} missing"
    if "typescript" in told:
        for manifest in sorted(NODE.parent.glob("node_modules/@modelcontextprotocol/client/package.json")):
            told["typescript"] = f"{json.loads(manifest.read_text())['version']} on {told['typescript']}"
    return told
