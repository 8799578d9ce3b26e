"""The death watch: a small program that ends the servers of a host process that died without ending them itself.

Run as ``python -I -S watch_main.py MARK``, or imported by a Python that was started like that, in a session of its own,
with the standard library alone; it imports nothing of Moorings. It reads lines from stdin: ``+PID START`` (a server:
leader of its session, with its start time) and ``-PID`` (ended). When stdin ends the host is dead (a host that lives
kills the watch before it closes the pipe): every session that was told, and every process that carries the mark, gets
TERM, a bounded wait, and KILL. A host that lives hands over what it could not end itself by ``=MARK`` (a life of a
server, instead of the whole host).

The mark closes the gap between the spawn of a server and its line: the host gives the mark to the watch before the
first spawn, and a marked process is found whether or not it was told.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    # What ``signal`` is made of, which makes enumerations of all signals first: that takes longer than all else here.
    try:
        import _signal as signal
    except ImportError:
        import signal

assert sys.platform != "win32"  # there the Job Object does the same

TERM_WAIT = 2.0
"""Seconds between TERM and KILL."""
KILL_WAIT = 5.0
"""Seconds for which KILL is repeated."""
QUIET = 3
"""Looks in a row that must find nothing: a process may be between fork and exec in the first."""
STEP = 0.05
PAUSE = 0.01
"""Seconds after each reading: the lines of servers that start together are read together."""
PROC = "/proc"


def read_stat(pid: str) -> tuple[str, int, int, int] | None:
    """State, group, session and start time of a process."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    fields = data[data.rfind(b")") + 2 :].split()
    return fields[0].decode(), int(fields[2]), int(fields[3]), int(fields[19])


def carries_mark(pid: str, mark: bytes) -> bool:
    """Whether the environment of a process holds the mark of the host."""
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            data = b"\0" + file.read() + b"\0"
    except OSError:
        return False
    at = data.find(b"\0MOORINGS_OWNER=" + mark)
    end = at + len(b"\0MOORINGS_OWNER=" + mark)
    return at >= 0 and data[end : end + 1] in (b"\0", b".")


def targets(groups: dict[int, int], *marks: bytes) -> tuple[dict[int, int], set[int]]:
    """Living processes that belong to the dead host (pid → start time), and the told sessions that still are.

    A process is of a told session if the session's leader is the one we were told (by start time), or if the leader
    is gone and the process is at least as old as the session. A number that was given to strangers has a leader with
    another start time, and is left alone.
    """
    try:
        names = [name for name in os.listdir(PROC) if name.isdigit()]
    except OSError:
        return {}, set(groups)
    mine = str(os.getpid())
    stats = {name: stat for name in names if name != mine and (stat := read_stat(name)) is not None}
    found: dict[int, int] = {}
    borne: set[int] = set()
    for name, (state, _, session, start) in stats.items():
        ours = False
        if session in groups:
            leader = stats.get(str(session))
            ours = start >= groups[session] if leader is None else leader[3] == groups[session]
            if ours:
                borne.add(session)
        if state not in "ZX" and (ours or any(carries_mark(name, mark) for mark in marks)):
            found[int(name)] = start
    return found, borne


def send(pid: int, start: int, number: int) -> None:
    """Signal a process whose number and start time are confirmed while a pidfd holds it."""
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        os.kill(pid, number)
        return
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = read_stat(str(pid))
        if stat is not None and stat[3] == start:
            signal.pidfd_send_signal(fd, number)
    except OSError:
        pass
    finally:
        os.close(fd)


def end_all(groups: dict[int, int], *marks: bytes) -> None:
    """TERM, bounded wait, KILL, until nothing of the host is left."""
    missed = dict.fromkeys(groups, 0)
    for number, seconds in ((signal.SIGTERM, TERM_WAIT), (signal.SIGKILL, KILL_WAIT)):
        until = time.monotonic() + seconds
        quiet = 0
        told: set[tuple[int, int]] = set()
        while quiet < QUIET and time.monotonic() < until:
            found, borne = targets(groups, *marks)
            for session in list(groups):
                missed[session] = 0 if session in borne else missed[session] + 1
                if missed[session] == QUIET:
                    # The kernel keeps a number from others while a session bears it, and gives it away after.
                    del groups[session]
            quiet = 0 if found else quiet + 1
            for pid, start in found.items():
                if number == signal.SIGKILL or (pid, start) not in told:
                    told.add((pid, start))
                    send(pid, start, number)
            time.sleep(STEP)
        if quiet >= QUIET:
            return


def end_groups_without_proc(groups: dict[int, int]) -> None:
    """Where there is no /proc, groups are all that is known."""
    for number, seconds in ((signal.SIGTERM, TERM_WAIT), (signal.SIGKILL, 0.0)):
        left = False
        for group in groups:
            try:
                os.killpg(group, number)
                left = True
            except OSError:
                continue
        if not left:
            return
        time.sleep(seconds)


def main() -> None:
    """Read lines until the host is dead."""
    mark = sys.argv[1].encode()
    # A stop of a whole service signals everybody at once; the watch goes when its host does.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, int] = {}
    only: list[bytes] = []
    pending = b""
    while True:
        data = os.read(0, 65536)
        if not data:
            break
        time.sleep(PAUSE)
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            pid, _, start = line[1:].partition(b" ")
            if line[:1] == b"+":
                groups[int(pid)] = int(start)
            elif line[:1] == b"=":
                only.append(pid)
            else:
                groups.pop(int(pid), None)
    if os.path.exists("/proc/self/stat"):
        end_all(groups, *(only or [mark]))
    else:
        end_groups_without_proc(groups)


if __name__ == "__main__":
    main()
