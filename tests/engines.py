"""Real Redis and PostgreSQL for tests: fixtures that start one of each for the session, and end it.

Each listens on a port of its own on loopback, keeps what it has in a folder that goes with it, and writes nothing
that has to outlive it. A machine without the program skips the tests that need it, and says so.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import leakgate
from tests.ports import free_port

REDIS_PASSWORD = "password-of-the-test-redis"
POSTGRES_PASSWORD = "password-of-the-test-postgres"
START = 30.0
"""Seconds an engine has to start."""


class Engine:
    """A database process of the session. ``url`` holds its password."""

    def __init__(
        self, command: list[str], url: str, *, port: int, folder: Path, user: str | None = None
    ) -> None:
        self.url = url
        self.port = port
        self._command = command
        self._folder = folder
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, ready: Callable[[], bool]) -> None:
        """Start it and wait until it answers."""
        with open(self._folder.parent / f"{self._folder.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                cwd=self._folder,
                start_new_session=True,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )
        leakgate.children.engines.add(self.pid)
        deadline = time.monotonic() + START
        while not ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{self._command[0]} did not start:\n{Path(log.name).read_text()[-2000:]}")
            time.sleep(0.02)  # nothing tells when a server listens

    def pause(self) -> None:
        """It answers no more, and keeps its connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it at once, and wait for the end."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        leakgate.children.engines.discard(self._process.pid)
        self._process = None


@contextlib.contextmanager
def folder_for(user: str | None) -> Iterator[Path]:
    """A folder outside of what the leak gate looks into, which another user may enter."""
    above = Path(os.environ["PYTEST_DEBUG_TEMPROOT"])
    path = Path(tempfile.mkdtemp(prefix="moor-engine-", dir=above))
    try:
        path.chmod(0o755)
        data = path / "data"
        data.mkdir(mode=0o700)
        if user is not None:
            shutil.chown(data, user, user)
        yield data
    finally:
        shutil.rmtree(path, ignore_errors=True)


def answers(port: int, say: bytes, hear: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(say)
            return connection.recv(64).startswith(hear)
    except OSError:
        return False


@contextlib.contextmanager
def redis_engine() -> Iterator[Engine]:
    """One Redis, which keeps nothing on a disk."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("no redis-server here (Debian: apt-get install redis-server)")
    with folder_for(None) as folder:
        port = free_port()
        command = [
            program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", str(folder), "--requirepass", REDIS_PASSWORD,
        ]  # fmt: skip
        engine = Engine(command, f"redis://:{REDIS_PASSWORD}@127.0.0.1:{port}/0", port=port, folder=folder)
        try:
            engine.start(lambda: answers(port, b"PING\r\n", b"-NOAUTH"))
            yield engine
        finally:
            engine.stop()


@contextlib.contextmanager
def postgres_engine() -> Iterator[Engine]:
    """One PostgreSQL with a user and a database of the name ``moor``."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [
        str(Path(each).parent) for each in [shutil.which("initdb")] if each
    ]
    if not found:
        pytest.skip("no PostgreSQL server here (Debian: apt-get install postgresql)")
    programs = Path(found[-1])
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    with folder_for(user) as folder:
        port = free_port()
        secret = folder.parent / "password"
        secret.write_text(POSTGRES_PASSWORD)
        if user:
            shutil.chown(secret, user)
        subprocess.run(
            [programs / "initdb", "-D", folder, "-U", "moor", "-A", "scram-sha-256", "--pwfile", secret,
             "--no-sync", "-E", "UTF8", "--no-locale"],
            check=True, capture_output=True, user=user, group=user, extra_groups=[] if user else None,
            cwd=folder, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )  # fmt: skip
        settings = {
            "port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
            "autovacuum": "off", "fsync": "off", "max_connections": 60, "shared_buffers": "16MB",
        }  # fmt: skip
        command = [str(programs / "postgres"), "-D", str(folder)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        url = f"postgresql://moor:{POSTGRES_PASSWORD}@127.0.0.1:{port}/postgres"
        engine = Engine(command, url, port=port, folder=folder, user=user)
        try:
            engine.start(lambda: postgres_ready(port))
            yield engine
        finally:
            engine.stop()


def postgres_ready(port: int) -> bool:
    """Whether it asks who we are; while it starts it says that it does."""
    body = (196608).to_bytes(4, "big") + b"user\0moor\0database\0postgres\0\0"
    return answers(port, (len(body) + 4).to_bytes(4, "big") + body, b"R")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Engine]:
    with redis_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Engine]:
    with postgres_engine() as engine:
        yield engine
