"""A child process whose identity is ours from the spawn: the interface, and what the systems share.

``spawn`` makes the process in one synchronous step; from then on its pid, its group and its pipes are known, and
there is no moment in which a half-made process has no owner. The stdio transport is that owner. Systems differ in
three decisions only: how an exit is noticed, how a group is signalled, how its other members are found.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

__all__ = ["ChildProcess", "lost_child", "spawn"]


class ChildProcess(Protocol):
    """One spawned process with the group (or job) that it leads."""

    pid: int
    start: int | None
    """Its start time, which with the pid names it for good; None where the system does not tell."""
    stdin_fd: int
    stdout_fd: int
    stderr_fd: int
    """Our ends of its pipes; whoever takes one closes it."""

    def watch(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[int], None]) -> None:
        """Call ``on_exit`` on the loop with the exit code (negative: signal) once the process has ended. It is not
        reaped by that: its number, and so that of its group, stays ours until ``reap``."""

    def terminate(self) -> None:
        """Ask the whole group to end (TERM)."""

    def kill(self) -> None:
        """End the whole group (KILL)."""

    def others(self) -> list[int]:
        """Living processes of the group besides the one we started."""

    def strays(self) -> list[int]:
        """Living descendants that left the group, known by the owner mark in their environment."""

    def exited(self) -> bool:
        """Whether the process has ended, asked for now."""

    def reap(self) -> int | None:
        """Let go of the process for good; returns its exit code. Harmless if it still runs, or was reaped."""

    def close(self) -> None:
        """Stop watching. Idempotent."""

    def disown_after_fork(self) -> None:
        """In a forked child: let go of everything without touching the process."""


def spawn(argv: Sequence[str], environment: Mapping[str, str], cwd: str | None) -> ChildProcess:
    """Start a process, leader of its own session and group (job on Windows), with three pipes.

    Raises:
        OSError: the system would not start it; nothing is left of the attempt.
    """
    if sys.platform == "win32":
        from ._windows import WindowsChild

        return WindowsChild(argv, environment, cwd)
    else:  # noqa: RET505 - in this form the type checker knows which system each import is for
        from ._posix import PosixChild

        return PosixChild(argv, environment, cwd)


def lost_child(mark: str) -> ChildProcess | None:
    """What stands for a process whose spawn was cut short by an exception; None where a job holds it anyway."""
    if sys.platform == "win32":
        return None
    else:  # noqa: RET505 - in this form the type checker knows which system each line is for
        from ._posix import LostChild

        return LostChild(mark)
