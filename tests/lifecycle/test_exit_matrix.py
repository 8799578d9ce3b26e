"""F2.9 and the exit matrix: however a program leaves, no server stays and nothing is printed but its own traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.procs import wait_gone

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(__file__).with_name("leaving.py")
GONE_WITHIN = 8.0
"""Seconds: TERM, the wait of the watch, KILL; and what a busy machine adds."""

CODES = {
    "exception": 1,
    "pytest -x": 1,
    "sys.exit": 7,
    "os._exit": 5,
    "SIGTERM": -signal.SIGTERM,
    "SIGHUP": -signal.SIGHUP,
    "SIGKILL": -signal.SIGKILL,
    "SIGINT in a call": -signal.SIGINT,
    "SIGINT in a start": -signal.SIGINT,
    "SIGINT in close": -signal.SIGINT,
    "fork, then SIGKILL": -signal.SIGKILL,
}
OWN_TRACEBACK = {"exception", "SIGINT in a call", "SIGINT in a start", "SIGINT in close"}


def rows() -> list[str]:
    from tests.lifecycle.leaving import ROWS

    return list(ROWS)


@pytest.mark.smoke
@pytest.mark.parametrize("row", rows())
def test_leaving(row: str, tmp_path: Path) -> None:
    """F2.6, F2.9, F2.10: given a good and a stubborn server, when the program leaves in this way, then all is gone."""
    if row == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is an extra")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "TMPDIR": str(tmp_path),
        # What the interpreter itself says of a fork beside threads is not ours.
        "PYTHONWARNINGS": "ignore:This process:DeprecationWarning",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), row],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    pids = [int(line.split()[1]) for line in lines if line.startswith("pid ")]
    helpers = [int(line.split()[1]) for line in lines if line.startswith("child ")]
    try:
        assert pids, (done.stdout, done.stderr)
        assert wait_gone(pids, GONE_WITHIN), (row, done.stdout, done.stderr)
    finally:
        for pid in helpers:
            os.kill(pid, signal.SIGKILL)
            assert wait_gone(pid, 5)
    assert done.returncode == CODES.get(row, 0), done.stderr
    if row in OWN_TRACEBACK:
        assert done.stderr.count("Traceback (most recent call last)") == 1, done.stderr
        assert done.stderr.rstrip().splitlines()[-1].startswith(("ValueError", "KeyboardInterrupt"))
    else:
        assert done.stderr == ""
    if "still here" in done.stdout or row in (
        "fork, child first",
        "multiprocessing fork",
        "multiprocessing spawn",
    ):
        assert "still here" in lines
