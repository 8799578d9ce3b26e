"""The service and its users, where threads meet."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from moorings import AuthSettings
from moorings.auth.flows import Account
from moorings.auth.service import AuthService
from moorings.store.memory_store import MemoryStore


def service() -> AuthService:
    async def opened() -> MemoryStore:
        return MemoryStore()

    return AuthService(opened, may_hold=lambda: False, environ=dict)


def test_threads_that_wake_it_at_once_join_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each join wants a leave, and there is one: else the thread of the broker would stay for good."""
    made = service()
    access = made.access(Account("https://mcp.example/mcp", AuthSettings()))
    join, joins, second = made.broker.join, [0], threading.Event()
    other = threading.Thread(target=access.wake)

    def slow_join(*args: Any) -> None:
        joins[0] += 1
        if joins[0] == 1:
            other.start()
            # In the meantime the other one is about to join too, or waits.
            second.wait(0.3)
        else:
            second.set()
        join(*args)

    monkeypatch.setattr(made.broker, "join", slow_join)
    access.wake()
    other.join(10)
    access.close()
    assert joins[0] == 1
