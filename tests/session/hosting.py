"""One host with one scripted server called ``s``: the shortest way to a real conversation, and looks inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moorings import AsyncHost, Handlers, StdioServer
from moorings.session.session import Session
from tests.faults.script import FaultLog, fault_server


def host_of(spec: StdioServer, **options: Any) -> AsyncHost:
    """A host that holds this server as ``s``, with nothing on disk unless a ``state_dir`` is given."""
    return AsyncHost({"s": spec}, **{"state_dir": False, **options})


def scripted(
    tmp_path: Path, *, handlers: Handlers | None = None, state_dir: Any = False, on_event: Any = None,
    **script: Any,
) -> tuple[AsyncHost, FaultLog]:  # fmt: skip
    """A host with a server of this script, and the server's journal."""
    journal = tmp_path / "journal"
    spec = fault_server(journal=journal, **script)
    return host_of(spec, handlers=handlers, state_dir=state_dir, on_event=on_event), FaultLog(journal)


def session_of(host: AsyncHost, name: str = "s") -> Session:
    """The conversation with a server now."""
    life = host._servers[name].life
    assert life is not None and life.session is not None
    return life.session


def sizes_of(host: AsyncHost, name: str = "s") -> dict[str, int]:
    """What the tables of a conversation hold, without the listen stream that a modern one keeps open."""
    session = session_of(host, name)
    listening = sum(1 for p in session._pending.values() if p.method == "subscriptions/listen")
    return {**session.sizes(), "pending": len(session) - listening}


EMPTY = {"pending": 0, "questions": 0, "notices": 0, "tasks": 0}
