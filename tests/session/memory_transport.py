"""A transport without a process, for interleavings that are driven by hand.

``MemoryTransport`` takes the frames of a session and keeps them; the test is the server: it reads ``sent``, and says
what comes in, in the very turn of the loop in which it wants it. While ``blocked``, no byte leaves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from moorings.session.clock import CallClock
from moorings.session.handlers import Handlers
from moorings.session.session import Session, SessionHooks
from moorings.transport.base import Closed, OutboxFull, Outgoing, StopRecord
from moorings.wire.eras import Era, envelope

Json = dict[str, Any]


class MemoryTransport:
    """What a session writes to. See the module."""

    pid = None
    listens = True
    has_headers = False
    reads_between_tasks = False

    def __init__(self) -> None:
        self.sent: list[Json] = []
        """The messages that left, in order."""
        self.waiting: list[Outgoing] = []
        """Frames of which no byte has left."""
        self.blocked = False
        self.full = False
        """The outbox takes nothing more."""
        self.over = False
        """The way out is closed."""
        self.on_send: Callable[[Json], None] | None = None
        """Told of each message that left, before ``send`` returns."""

    def send(self, frame: bytes, request: object = None, method: str = "") -> Outgoing:
        if self.over:
            raise ConnectionError("its stdin is closed")
        if self.full:
            raise OutboxFull("too much waits to be written to it already")
        assert frame.endswith(b"\n") and frame.count(b"\n") == 1
        outgoing = Outgoing(frame)
        if self.blocked:
            self.waiting.append(outgoing)
        else:
            self._leave(outgoing)
        return outgoing

    def _leave(self, outgoing: Outgoing) -> None:
        outgoing.offset = len(outgoing.frame)
        message = json.loads(outgoing.frame)
        self.sent.append(message)
        if self.on_send is not None:
            self.on_send(message)

    def unblock(self) -> None:
        """The server reads again."""
        self.blocked = False
        waiting, self.waiting = self.waiting, []
        for outgoing in waiting:
            self._leave(outgoing)

    def withdraw(self, outgoing: Outgoing) -> bool:
        if outgoing.started or outgoing not in self.waiting:
            return False
        self.waiting.remove(outgoing)
        return True

    async def prepare(self) -> None:
        """All is there."""

    def let_go(self, outgoing: Outgoing) -> bool:
        return False

    def settled(self, revision: str, *, modern: bool) -> None:
        """Nothing depends on it here."""

    def stderr_tail(self) -> str:
        return ""

    async def stop(self, deadline: float) -> StopRecord:
        self.over = True
        return StopRecord(elapsed=0.0)

    # What a test asks of it

    def requests(self, method: str | None = None) -> list[Json]:
        """The requests that left."""
        return [m for m in self.sent if "id" in m and "method" in m and method in (None, m["method"])]

    def cancels(self) -> list[Any]:
        """The ids that the server was told to forget, in order."""
        return [m["params"]["requestId"] for m in self.sent if m.get("method") == "notifications/cancelled"]

    def responses(self) -> list[Json]:
        """Answers to questions of the server."""
        return [m for m in self.sent if "method" not in m]


class Wired:
    """A session on a ``MemoryTransport``, with what its owner heard. The test ends it with ``aclose``."""

    def __init__(
        self,
        handlers: Handlers | None = None,
        *,
        era: Era = Era.HANDSHAKE,
        notifications: int = 1000,
        questions: int = 32,
        question_limit: float = 600.0,
    ) -> None:
        self.ends: list[Closed] = []
        self.lists_changed: list[str] = []
        self.acknowledged: list[tuple[int, Any]] = []
        self.noise: list[bytes] = []
        self.transport = MemoryTransport()
        self.session = Session(
            "memory",
            handlers or Handlers(),
            SessionHooks(
                closed=self.ends.append,
                leader_gone=lambda code: None,
                list_changed=self.lists_changed.append,
                acknowledged=lambda id_, granted: self.acknowledged.append((id_, granted)),
                noise=self.noise.append,
            ),
            notifications=notifications,
            questions=questions,
            question_limit=question_limit,
        )
        self.session.attach(self.transport)
        self.session.era, self.session.rules_set = era, True
        if era is Era.MODERN:
            self.session.revision = "2026-07-28"
            self.session.envelope = envelope("2026-07-28", {}, {"name": "test", "version": "0"})
        else:
            self.session.revision = "2025-11-25"

    def clock(self, silence: float = 1000.0, total: float = 10000.0) -> CallClock:
        return CallClock.of(asyncio.get_running_loop().time(), silence, total)

    def say(self, message: Json) -> None:
        """The server writes a message."""
        self.session.message(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def answer(self, id_: Any, result: Any = None) -> None:
        self.say({"id": id_, "result": {} if result is None else result})

    def progress(self, token: Any, progress: float, total: float | None = None) -> None:
        params = {"progressToken": token, "progress": progress, "total": total}
        self.say({"method": "notifications/progress", "params": params})

    def ask(self, id_: Any, method: str, params: Any = None) -> None:
        """The server asks a question."""
        self.say({"id": id_, "method": method, "params": params or {}})

    def take_back(self, id_: Any) -> None:
        """The server no longer wants an answer to its question."""
        self.say({"method": "notifications/cancelled", "params": {"requestId": id_}})

    def die(self, code: int = 1) -> None:
        self.transport.over = True
        self.session.closed(Closed("exited", code))

    def empty(self) -> bool:
        """True if no table holds anything."""
        return not any(self.session.sizes().values())

    async def aclose(self) -> None:
        assert await self.session.aclose() == []
