"""The tests' side of the scripted server: ``fault_server`` specifies it, ``FaultLog`` reads its journal.

The words of a script stand at the top of ``server.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.server import DEFAULTS, check_script

if TYPE_CHECKING:
    from moorings import StdioServer

Entry = dict[str, Any]

SOURCE = Path(__file__).with_name("server.py")
COMPILED = Path(cache_from_source(str(SOURCE)))
SERVER = COMPILED if COMPILED.exists() else SOURCE
"""As the import above has compiled it: half of the time that a start takes is saved, thousands of times."""
PAUSE = 0.002
LONGEST_ARGUMENT = 100_000
"""The kernel takes 128 KiB for one argument."""


def fault_argv(*, script_file: str | os.PathLike[str] | None = None, **script: Any) -> list[str]:
    """The command line of a server with this script.

    With ``script_file`` the script is written there and read at each start: a test can change it with
    ``write_script`` while the command line, and with it the server's identity, stays the same.

    Raises:
        ValueError: A key or a behaviour is unknown.
    """
    script = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in script.items()
    }
    if script_file is None:
        check_script({**DEFAULTS, **script})
        argument = json.dumps(script)
        if len(argument) > LONGEST_ARGUMENT:
            raise ValueError(f"a script of {len(argument)} bytes needs script_file=")
    else:
        write_script(script_file, **script)
        argument = f"@{os.fspath(script_file)}"
    return [sys.executable, "-S", "-E", "-P", str(SERVER), argument]


def write_script(path: str | os.PathLike[str], **script: Any) -> None:
    """Puts a script into the file that a server reads when it starts, in one step."""
    check_script({**DEFAULTS, **script})
    fresh = Path(f"{os.fspath(path)}.new")
    fresh.write_text(json.dumps(script, default=os.fspath))
    fresh.replace(path)


def fault_server(*, script_file: str | os.PathLike[str] | None = None, **keys: Any) -> StdioServer:
    """The specification of a server with this script.

    Fields of ``StdioServer`` (``bounds``, ``lazy``, ``env`` …) may stand among the script's keys.
    """
    from moorings import StdioServer

    fields = {key: keys.pop(key) for key in StdioServer.__struct_fields__ if key in keys}
    command, *args = fault_argv(script_file=script_file, **keys)
    return StdioServer(command=command, args=tuple(args), **fields)


class FaultLog:
    """The journal of one or more servers, read as it grows. Holds no descriptor between calls."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._read: list[Entry] = []
        self._offset = 0

    # What is there now

    def entries(self, kind: str | None = None, **match: Any) -> list[Entry]:
        """The entries so far, in order, of this kind and with these values."""
        self._update()
        return [
            entry
            for entry in self._read
            if kind in (None, entry["kind"])
            and all(key in entry and entry[key] == value for key, value in match.items())
        ]

    def starts(self) -> list[Entry]:
        """The starts of servers; those of wrappers have another ``role``."""
        return self.entries("start", role="server")

    def pids(self) -> list[int]:
        """Every process there ever was: servers, wrappers and the children they forked."""
        return [entry["child"] if entry["kind"] == "child" else entry["pid"] for entry in self.entries()
                if entry["kind"] in ("start", "child")]  # fmt: skip

    def count(self, method: str) -> int:
        """How often this method was received."""
        return len(self.entries("received", method=method))

    def calls(self, tool: str) -> int:
        """How often this tool was called."""
        return len(self.entries("received", method="tools/call", tool=tool))

    def methods(self) -> list[str]:
        """The methods received, in order."""
        return [entry["method"] for entry in self.entries("received")]

    def effects(self, name: str | None = None) -> int:
        """How often an effect happened."""
        return len(self.entries("effect") if name is None else self.entries("effect", name=name))

    def cancelled_ids(self) -> list[Any]:
        """The ids of requests that the client cancelled, in order."""
        return [entry["request_id"] for entry in self.entries("cancelled")]

    def violations(self) -> list[str]:
        """What the client sent and should not have, as "what (method)"."""
        return [f"{entry['what']} ({entry['method']})" for entry in self.entries("violation")]

    # What is awaited

    def wait_for(self, kind: str, count: int = 1, timeout: float = 10.0, **match: Any) -> Entry:
        """Waits for the count-th such entry and returns it; from a plain thread.

        Raises:
            AssertionError: It did not come in time; the text holds the journal's end.
        """
        deadline = time.monotonic() + timeout
        while (found := self._found(kind, count, match)) is None:
            self._check(deadline, kind, count, match)
            # The one place of the test house that polls: the writer is another process, which may be killed
            # at any point, and a file is all that is left of it then. What is awaited is still the event, not
            # a guess of how long it takes.
            time.sleep(PAUSE)
        return found

    async def seen(self, kind: str, count: int = 1, timeout: float = 10.0, **match: Any) -> Entry:
        """``wait_for`` for async tests; the loop goes on meanwhile."""
        deadline = time.monotonic() + timeout
        while (found := self._found(kind, count, match)) is None:
            self._check(deadline, kind, count, match)
            await asyncio.sleep(PAUSE)
        return found

    # Orders

    def control(self, do: str, *, pid: int | None = None, **what: Any) -> None:
        """Sends an order to the newest server, or to that ``pid``; its script must say ``control=True``.

        Orders: ``release(key, order, count)``, ``send(message)``, ``raw(text, hex)``, ``list_changed(kind,
        add_tool, remove_tool)``, ``updated(uri)``, ``end_subscriptions()``, ``stop_reading(seconds)``,
        ``close_stdout()``, ``stderr(text)``, ``set(**script keys)``, ``exit(code)``.
        """
        starts = [entry for entry in self.starts() if pid in (None, entry["pid"])]
        fifo = starts[-1]["fifo"]
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fd, json.dumps({"do": do, **what}).encode() + b"\n")
        finally:
            os.close(fd)

    # Inside

    def _update(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._read += [json.loads(line) for line in whole.splitlines()]

    def _found(self, kind: str, count: int, match: dict[str, Any]) -> Entry | None:
        found = self.entries(kind, **match)
        return found[count - 1] if len(found) >= count else None

    def _check(self, deadline: float, kind: str, count: int, match: dict[str, Any]) -> None:
        if time.monotonic() < deadline:
            return
        tail = "\n".join(json.dumps(entry)[:200] for entry in self._read[-15:])
        seen = len(self.entries(kind, **match))
        raise AssertionError(f"{seen} of {count} {kind} {match or ''} in the journal, whose end is:\n{tail}")
