"""Real MCP servers over HTTP, each held for the length of a test: on a free loopback port, its group gone after it.

``http_server(name, real_server, folder)`` starts one of ``STARTS`` and gives a ``Running``. What it prints is kept in
``folder``, and its end is told if it does not come up. Each start needs no network.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import procs
from tests.ports import free_port

RealServer = Callable[..., list[str]]

UP_WITHIN = 40.0
"""Seconds. They take one on a quiet machine."""
PAUSE = 0.02
STOP_SECONDS = 3.0

ERA_SERVER = Path(__file__).with_name("http_era_server.py")


@dataclass(frozen=True)
class Start:
    """How one server is started."""

    command: Callable[[RealServer, int], Sequence[str]]
    path: str = "/mcp"
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] = field(default_factory=dict)
    """Added to a minimal environment; may depend on the port."""
    transport: str = "streamable"
    """``streamable`` or ``sse``."""
    era: str = "handshake"
    """``handshake`` or ``modern``: what an ``auto`` client finds."""
    host: str = "127.0.0.1"
    """What its URL says; it always listens on 127.0.0.1."""


@dataclass
class Running:
    """A server that listens."""

    name: str
    port: int
    path: str
    process: subprocess.Popen[bytes]
    output: Path
    """What it prints."""
    host: str = "127.0.0.1"

    @property
    def origin(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return self.origin + self.path

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


def everything(transport: str) -> Callable[[RealServer, int], Sequence[str]]:
    return lambda real, port: [*real("everything"), transport]


def sdk(version: str, transport: str = "streamable-http") -> Callable[[RealServer, int], Sequence[str]]:
    # The interpreter of the era's environment, on another script.
    return lambda real, port: [real(f"era-{version}")[0], str(ERA_SERVER), transport, str(port)]


STARTS: dict[str, Start] = {
    # PORT=N mcp-server-everything streamableHttp      13 tools, resources, prompts, sampling, elicitation, resumable
    "everything": Start(everything("streamableHttp"), env=lambda port: {"PORT": str(port)}),
    # PORT=N mcp-server-everything sse                 the same by HTTP+SSE
    "everything-sse": Start(everything("sse"), "/sse", env=lambda port: {"PORT": str(port)}, transport="sse"),
    # playwright-mcp --headless --port N               lists without a browser; a call needs Debian's chromium.
    # It answers 403 to any Host but localhost:N.
    "playwright": Start(
        lambda real, port: real("playwright", "--headless", "--port", port), host="localhost"
    ),
    # The same process speaks HTTP+SSE under /sse.
    "playwright-sse": Start(
        lambda real, port: real("playwright", "--headless", "--port", port),
        "/sse",
        transport="sse",
        host="localhost",
    ),
    # context7-mcp --transport http --port N           its answers bear WWW-Authenticate, with 200 too. The metrics that
    # it would serve on a port of its own are turned off.
    "context7": Start(
        lambda real, port: real("context7", "--transport", "http", "--port", port),
        env={"OTEL_METRICS_EXPORTER": "none", "OTEL_SDK_DISABLED": "true"},
        era="modern",
    ),
    # dbhub --demo --transport http --port N           SQLite in memory
    "dbhub": Start(lambda real, port: real("dbhub-http", "--port", port), era="modern"),
    # mongodb-mcp-server --transport http --httpHost 127.0.0.1 --httpPort N     lists its tools without a database
    "mongodb": Start(
        lambda real, port: real(
            "mongodb", "--transport", "http", "--httpHost", "127.0.0.1", "--httpPort", port
        ),
        env={"MDB_MCP_TELEMETRY": "disabled", "DO_NOT_TRACK": "1"},
        era="modern",
    ),
    # mcp-proxy --port N COMMAND …                     in front of mcp-server-time, one for all clients
    "mcp-proxy": Start(lambda real, port: real("mcp-proxy", "--port", port, *real("time"))),
    "mcp-proxy-sse": Start(
        lambda real, port: real("mcp-proxy", "--port", port, *real("time")), "/sse", transport="sse"
    ),
    # The official SDK's own server, of both generations
    "sdk-1.30.0": Start(sdk("1.30.0")),
    "sdk-1.30.0-sse": Start(sdk("1.30.0", "sse"), "/sse", transport="sse"),
    "sdk-2.3.0": Start(sdk("2.3.0"), era="modern"),
}


@contextmanager
def http_server(
    name: str, real_server: RealServer, folder: Path, *, port: int | None = None
) -> Iterator[Running]:
    """A server of ``STARTS`` that listens. ``port`` starts it where another one was before."""
    start = STARTS[name]
    port = free_port() if port is None else port
    env = start.env(port) if callable(start.env) else dict(start.env)
    command = [str(word) for word in start.command(real_server, port)]
    with started(name, command, port, folder, env=env) as process:
        yield Running(name, port, start.path, process, folder / f"{name}.out", start.host)


@contextmanager
def started(
    name: str, command: Sequence[str], port: int, folder: Path, *, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, once it listens on the port; the group is gone on leaving.

    Raises:
        AssertionError: it ended, or did not listen in time; the text holds what it printed last.
    """
    output = folder / f"{name}.out"
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        **(env or {}),
    }
    with output.open("ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    try:
        wait_listening(process, port, output)
        yield process
    finally:
        end_group(process)


def wait_listening(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + UP_WITHIN
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            pass
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            tail = output.read_text(errors="replace")[-3000:]
            why = f"it ended with {process.returncode}" if ended else f"no listener within {UP_WITHIN} s"
            raise AssertionError(f"{process.args}: {why}. It printed:\n{tail}")
        # A foreign program tells nobody when it listens; asking again is all there is.
        time.sleep(PAUSE)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """TERM to the group, then KILL; nothing of it is left, or that is an error."""
    group = process.pid
    members = {group, *procs.group_members(group), *procs.descendants(group)}
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for pid in members:
            if procs.alive(pid):
                os.kill(pid, signum)
        if procs.wait_gone(members, STOP_SECONDS):
            break
    process.wait(STOP_SECONDS)
    left = [pid for pid in {*members, *procs.group_members(group)} if procs.alive(pid)]
    assert not left, f"processes of {process.args} are left: {left}"
