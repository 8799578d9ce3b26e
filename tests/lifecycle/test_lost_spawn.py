"""What escapes an owner that only counts: a spawn cut short, processes that fork faster than one can look, a machine
without descriptors."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, StdioServer
from moorings.transport import child as children
from moorings.transport import descriptors, identity
from moorings.transport.stdio import StdioTransport
from moorings.transport.watch import watch
from tests.faults.procs import alive, gone
from tests.faults.script import FaultLog, fault_server
from tests.transport.kit import Line

QUICK = Bounds(stop_eof=0.2, stop_term=0.3, stop_kill=2.0)


@pytest.mark.parametrize("ignore_term", [False, True])
async def test_a_spawn_that_an_exception_cuts_short_leaves_no_process(ignore_term: bool) -> None:
    """Given a signal handler that raises just as the process is there, when the transport is stopped, it is gone."""
    made: list[Any] = []

    def cut_short(argv: Sequence[str], environment: Mapping[str, str], cwd: str | None) -> Any:
        made.append(children.spawn(argv, environment, cwd))
        raise KeyboardInterrupt

    quiet = "import signal; signal.signal(15, signal.SIG_IGN);" if ignore_term else ""
    code = f"{quiet} import time; time.sleep(60)"
    line = Line([sys.executable, "-S", "-c", code], stop=(0.2, 0.5, 2.0))
    line.transport._spawn = cut_short
    with pytest.raises(KeyboardInterrupt):
        line.transport.start()
    (child,) = made
    record = await line.stop()
    assert not alive(child.pid) and record.survivors == ()
    assert line.transport not in StdioTransport.live and watch.pid is None
    # The rest of what the exception left without an owner: the test's own to put away.
    child.reap()
    for fd in (child.stdin_fd, child.stdout_fd, child.stderr_fd):
        descriptors.close(fd)


async def test_a_process_that_forks_and_exits_all_the_time_does_not_get_through(tmp_path: Path) -> None:
    """Given a comet in the group, never seen twice under one number, when its server is stopped, it is gone."""
    mark = tmp_path / "tick"
    comet = (
        "import os, time\n"
        "while True:\n"
        "    if os.fork(): os._exit(0)\n"
        f"    open({str(mark)!r}, 'a').write('x')\n"
        "    time.sleep(0.002)\n"
    )
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"s": fault_server(journal=log.path, bounds=QUICK)}, state_dir=False) as host:
        await host.wait_ready(20)
        pid = host.status()["s"].pid
        assert pid is not None
        # A process of the server's group: started by a wrapper in its place would look the same.
        comet_server = StdioServer(
            command="sh", args=("-c", f'{sys.executable} -S -c "$0" & sleep 60', comet), bounds=QUICK
        )
        await host.add("comet", comet_server)
        while not mark.exists():
            await asyncio.sleep(0.01)
    before = mark.stat().st_size
    await asyncio.sleep(0.1)  # long enough for fifty of its generations
    assert mark.stat().st_size == before
    assert await gone(pid, 5)


def test_what_cannot_be_looked_at_does_not_count_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given no descriptor left, a snapshot says that it did not see all, and nobody takes that for an empty group."""

    def none_left(*_: Any, **__: Any) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(identity.os, "open", none_left)
    snapshot = identity.Snapshot.take()
    assert snapshot is not None and snapshot.partial and snapshot.processes == {}
    from moorings.transport._posix import group_members, marked_strays

    assert group_members(4711) == [0]
    assert [info.pid for info in marked_strays("x", 4711)] == [0]
