"""F2.6, F2.9, F2.10 over HTTP: however a program leaves, it leaves within the bound, its connections are gone, and
nothing is printed but its own traceback: no "Unclosed connector", no warning of a transport, plain or TLS."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.faults import procs
from tests.faults.http_server import HttpFaults
from tests.http_life.kit import Serving, blackhole
from tests.lifecycle.test_exit_matrix import OWN_TRACEBACK

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(__file__).with_name("leaving.py")
WITHIN = 8.0
"""Seconds for the end of a program, counted from where its servers are up."""
CODES = {
    "exception": 1,
    "sys.exit": 7,
    "os._exit": 5,
    "SIGTERM": -signal.SIGTERM,
    "SIGHUP": -signal.SIGHUP,
    "SIGKILL": -signal.SIGKILL,
    "SIGINT in a call": -signal.SIGINT,
    "SIGINT in a start": -signal.SIGINT,
    "SIGINT in close": -signal.SIGINT,
    "async, SIGINT in a call": -signal.SIGINT,
}
TRACEBACK = OWN_TRACEBACK | {"async, SIGINT in a call"}
GONE_AT_ONCE = {
    "SIGKILL", "os._exit", "SIGTERM", "SIGHUP", "async, loop left open", "async, loop closed",
    "async, open loop dropped", "async, closed loop dropped",
}  # fmt: skip
"""Ways to leave in which nobody can say farewell."""


def rows() -> list[str]:
    from tests.http_life.leaving import ROWS

    return list(ROWS)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Serving, dict[str, Any]]]:
    """Servers of every kind, and how they are reached: good ones in each way, plain and TLS; one whose DELETE hangs,
    one that never answers ``initialize``, one that is not there, and one that is dialled for ever."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(tls)
    ways: dict[str, dict[str, Any]] = {
        "good": {},
        "modern": {"era": "modern"},
        "sse": {"era": "sse"},
        "hung": {"delete": "silent"},
        "starting": {"on": {"initialize": "silent"}},
        "good_tls": {"ssl": tls},
        "modern_tls": {"era": "modern", "ssl": tls, "answers": "sse"},
        "sse_tls": {"era": "sse", "ssl": tls},
        "starting_tls": {"on": {"initialize": "silent"}, "ssl": tls},
    }
    with (
        blackhole() as dead,
        Serving(**{name: HttpFaults(**script) for name, script in ways.items()}) as serving,
    ):
        fields: dict[str, Any] = {}
        for name, server in serving.servers.items():
            more = {"ca_file": str(tmp_path / "ca.pem")} if server.tls else {}
            fields[name] = {"url": server.url, "transport": "sse" if "sse" in name else "http", **more}
        fields["parked"] = {"url": "http://127.0.0.1:1/"}
        fields["dialling"] = {"url": f"http://127.0.0.1:{dead}/"}
        fields["dialling_tls"] = {"url": f"https://127.0.0.1:{dead}/"}
        yield serving, fields


@pytest.mark.smoke
@pytest.mark.parametrize("row", rows())
def test_leaving(row: str, held: tuple[Serving, dict[str, Any]], tmp_path: Path) -> None:
    """F2.2, F2.6, F2.9, F2.10: given good servers, one that hangs at the end, and some that never came up."""
    if row == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is an extra")
    serving, fields = held
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "TMPDIR": str(tmp_path),
        # What the interpreter itself says of a fork beside threads is not ours.
        "PYTHONWARNINGS": "ignore:This process:DeprecationWarning",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), row, json.dumps(fields)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    ended = time.monotonic()
    assert done.returncode == CODES.get(row, 0), done.stderr
    if row in TRACEBACK:
        assert done.stderr.startswith("Traceback (most recent call last)"), done.stderr
        assert done.stderr.rstrip().splitlines()[-1].startswith(("ValueError", "KeyboardInterrupt"))
        for word in (
            "Unclosed",
            "never retrieved",
            "was destroyed",
            "transport",
            "Exception ignored",
            "Warning",
        ):
            assert word not in done.stderr
    else:
        assert done.stderr == ""
    lines = done.stdout.splitlines()
    up = max(float(line.split()[1]) for line in lines if line.startswith("up "))
    if row.startswith(("fork, child first", "multiprocessing")):
        assert "still here" in lines
    assert ended - up < WITHIN + 5.0, f"{ended - up:.1f} s"
    helpers = [int(line.split()[1]) for line in lines if line.startswith("child ")]
    try:
        for name in serving.servers:
            serving.until(name, lambda server: not server.live, 20.0)
        assert all(procs.alive(pid) for pid in helpers)
    finally:
        for pid in helpers:
            os.kill(pid, signal.SIGKILL)
            assert procs.wait_gone([pid], 5)
    if row not in GONE_AT_ONCE and row not in ("while it imports", "SIGINT in a start"):
        assert serving["good"].count("DELETE") == serving["good"].count("initialize")
        assert serving["hung"].count("DELETE") == serving["hung"].count("initialize")
        assert serving["good"].violations == []
