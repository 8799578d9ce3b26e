"""A real server held for the length of a test, and the proof that nothing of it is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from moorings import AsyncHost, Bounds, CloseReport, Host, StdioServer
from tests.faults import procs

PATIENT = Bounds(stop_eof=8.0)
"""For servers that end by themselves: a Python server takes a while for it on a busy machine."""
READY_WITHIN = 40.0
"""Seconds. A Python server imports for a second on a quiet machine, and for many on a busy one."""


def spec(command: Sequence[str], **fields: Any) -> StdioServer:
    """The specification of a server by its command line."""
    return StdioServer(command=command[0], args=tuple(command[1:]), **fields)


def journal(path: Path) -> list[tuple[str, str]]:
    """What `tap.py` wrote: (which process, what)."""
    lines = path.read_text().splitlines()
    return [(pid, what) for pid, _, what in (line.partition(" ") for line in lines)]


@asynccontextmanager
async def held(
    servers: Mapping[str, StdioServer], *, forced: Sequence[str] = (), **options: Any
) -> AsyncIterator[AsyncHost]:
    """A host with these servers, all ready; on leaving, closed and looked over.

    ``forced`` names the servers that are known not to end by themselves.
    """
    options.setdefault("state_dir", False)
    if not forced:
        options.setdefault("bounds", PATIENT)
    host = AsyncHost(servers, **options)
    async with host:
        readiness = await host.wait_ready(READY_WITHIN)
        assert readiness.all_ready, readiness
        yield host
        processes = below(status.pid for status in host.status().values())
    report = await host.close()
    assert_nothing_left(report, servers, processes, forced)


@contextmanager
def held_blocking(
    servers: Mapping[str, StdioServer], *, forced: Sequence[str] = (), **options: Any
) -> Iterator[Host]:
    """The same for the blocking host."""
    options.setdefault("state_dir", False)
    if not forced:
        options.setdefault("bounds", PATIENT)
    with Host(servers, **options) as host:
        readiness = host.wait_ready(READY_WITHIN)
        assert readiness.all_ready, readiness
        yield host
        processes = below(status.pid for status in host.status().values())
        report = host.close()
    assert_nothing_left(report, servers, processes, forced)


def below(pids: Iterator[int | None]) -> list[int]:
    """The processes of the servers, and all that those have started."""
    own = [pid for pid in pids if pid is not None]
    return own + [child for pid in own for child in procs.descendants(pid)]


def assert_nothing_left(
    report: CloseReport, servers: Mapping[str, StdioServer], processes: Sequence[int], forced: Sequence[str]
) -> None:
    assert len(processes) >= len(servers)
    assert set(report.servers) == set(servers)
    assert set(report.forced) == set(forced), report
    assert not report.survivors
    assert not report.stuck
    # An orphan below a server may wait as a zombie for its new parent, which is not us.
    assert not [pid for pid in processes if procs.alive(pid)]
