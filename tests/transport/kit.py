"""One stdio transport at the fault server, by hand: a receiver that writes down, and the frames of a client."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moorings.transport.base import Closed, Outgoing, StopRecord
from moorings.transport.environment import child_environment
from moorings.transport.stdio import StdioSettings, StdioTransport
from moorings.wire.framing import Oversize
from tests.faults.script import FaultLog, fault_argv


class Recorder:
    """Receives like a session, and keeps all of it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.oversized: list[Oversize] = []
        self.leaders: list[int] = []
        self.ends: list[Closed] = []
        self.after_end = 0
        self._news = asyncio.Event()

    def message(self, line: bytes | bytearray) -> None:
        self.after_end += bool(self.ends)
        self.lines.append(bytes(line))
        self._news.set()

    def oversize(self, frame: Oversize) -> None:
        self.oversized.append(frame)
        self._news.set()

    def leader_gone(self, exit_code: int) -> None:
        self.leaders.append(exit_code)
        self._news.set()

    def closed(self, how: Closed) -> None:
        self.ends.append(how)
        self._news.set()

    async def until(self, found: Any, within: float = 15.0) -> Any:
        """Wait until ``found()`` is something, looked at whenever there are news."""
        async with asyncio.timeout(within):
            while not (it := found()):
                self._news.clear()
                await self._news.wait()
            return it

    async def answer(self, id_: int, within: float = 15.0) -> dict[str, Any]:
        mark = f'"id":{id_}'.encode()

        def look() -> dict[str, Any] | None:
            for line in self.lines:
                if mark in line[:60].replace(b" ", b"") or mark in line[-60:].replace(b" ", b""):
                    message: dict[str, Any] = json.loads(line)
                    if message.get("id") == id_ and "method" not in message:
                        return message
            return None

        found: dict[str, Any] = await self.until(look, within)
        return found

    async def end(self, within: float = 15.0) -> Closed:
        await self.until(lambda: self.ends, within)
        return self.ends[0]


class Line:
    """A transport with its receiver: started by ``open``, and a client's few words."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        log_path: Path | None = None,
        stop: tuple[float, float, float] = (5.0, 5.0, 5.0),
        max_message: int = 16 * 1024 * 1024,
        max_outbox: int = 64 * 1024 * 1024,
        stderr_tail: int = 16 * 1024,
        log_file: int = 1024 * 1024,
        **more: Any,
    ) -> None:
        self.heard = Recorder()
        self.transport = StdioTransport(
            StdioSettings(
                argv=argv,
                environment=child_environment(environment or {}, os.environ, inherit=True),
                cwd=cwd,
                stop_eof=stop[0],
                stop_term=stop[1],
                stop_kill=stop[2],
                max_message=max_message,
                max_outbox=max_outbox,
                stderr_tail=stderr_tail,
                log_path=str(log_path) if log_path else None,
                log_file=log_file,
            ),
            self.heard,
            **more,
        )
        self._id = 0

    def ask(self, method: str, **params: Any) -> tuple[int, Outgoing]:
        self._id += 1
        frame = json.dumps({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        return self._id, self.transport.send(frame.encode() + b"\n")

    def tool(self, name: str, **arguments: Any) -> tuple[int, Outgoing]:
        return self.ask("tools/call", name=name, arguments=arguments)

    async def call(self, name: str, **arguments: Any) -> str:
        """The text that a tool answers."""
        id_, _ = self.tool(name, **arguments)
        answer = await self.heard.answer(id_)
        text: str = answer["result"]["content"][0]["text"]
        return text

    async def shake_hands(self) -> None:
        id_, _ = self.ask(
            "initialize",
            protocolVersion="2025-11-25",
            capabilities={},
            clientInfo={"name": "t", "version": "1"},
        )
        await self.heard.answer(id_)
        self.transport.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    async def stop(self, within: float = 60.0) -> StopRecord:
        return await self.transport.stop(asyncio.get_running_loop().time() + within)


async def fault_line(
    *,
    stop: tuple[float, float, float] = (5.0, 5.0, 5.0),
    hands: bool = True,
    options: Any = None,
    **script: Any,
) -> Line:
    """A running fault server with this script, hands shaken."""
    line = Line(fault_argv(**script), stop=stop, **(options or {}))
    line.transport.start()
    if hands:
        await line.shake_hands()
    return line


__all__ = ["FaultLog", "Line", "Recorder", "fault_line"]
