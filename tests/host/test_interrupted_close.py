"""Ctrl-C in the middle of a close: the close goes on, and whoever waits for it again sees its true end.

`Thread.join` of CPython 3.11 and 3.12, interrupted, takes the thread for ended while it runs (bpo-45274 in reverse);
so the end of the loop thread is an event of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from moorings import Bounds, Host, StateChanged
from tests.faults.procs import alive
from tests.faults.script import fault_server
from tests.host.kit import ROOT, run_program

STAYS = fault_server(ignore_eof=True, bounds=Bounds(stop_eof=0.5))


def interrupt_when_closing(event: Any) -> None:
    if isinstance(event, StateChanged) and event.new == "closing":
        # The close takes 0.5 s at least: in the middle of it, the closing thread waits.
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)


def test_a_close_interrupted_by_ctrl_c_is_finished_by_the_next_one() -> None:
    host = Host({"s": STAYS}, state_dir=False, on_event=interrupt_when_closing)
    host.start()
    assert host.wait_ready(20).all_ready
    pid = host.status()["s"].pid
    assert pid is not None
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        host.close()
    assert time.monotonic() - began < 0.5
    report = host.close()
    assert time.monotonic() - began >= 0.5
    assert report.forced == {"s": ("TERM",)}
    assert not alive(pid)


def test_leaving_the_block_after_ctrl_c_in_close_leaves_no_process() -> None:
    pid = None
    with pytest.raises(KeyboardInterrupt):
        with Host({"s": STAYS}, state_dir=False, on_event=interrupt_when_closing) as host:
            assert host.wait_ready(20).all_ready
            pid = host.status()["s"].pid
            host.close()
    assert pid is not None
    assert not alive(pid)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from moorings import Host
from tests.host.test_interrupted_close import STAYS, interrupt_when_closing

host = Host({"s": STAYS}, state_dir=False, on_event=interrupt_when_closing)
host.start()
assert host.wait_ready(20).all_ready
print(host.status()["s"].pid, flush=True)
try:
    host.close()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interpreter_that_ends_after_ctrl_c_in_close_leaves_no_process() -> None:
    done = run_program(PROGRAM, ROOT)
    assert done.returncode == 0, done.stderr
    pid, word = done.stdout.split()
    assert word == "interrupted"
    assert not alive(int(pid))
    assert done.stderr == ""
