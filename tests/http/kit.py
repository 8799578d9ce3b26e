"""One host with one scripted HTTP server called ``s``, and what tests of all classes want of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, Handlers, HttpServer
from moorings.session.session import Session
from tests.faults.http_server import HttpFaults

__all__ = [
    "ALL",
    "ERAS",
    "SLACK",
    "hosted",
    "host_for",
    "mute",
    "session_of",
    "sizes_of",
    "unconnected",
    "within",
]

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
ALL = pytest.mark.parametrize("era", ["handshake", "modern", "sse"])
SLACK = 1.0
"""Seconds by which an upper limit may be passed on a busy machine."""


def host_for(
    url: str, *, handlers: Handlers | None = None, state_dir: Any = False, on_event: Any = None,
    bounds: dict[str, Any] | None = None, **spec: Any,
) -> AsyncHost:  # fmt: skip
    """A host that holds the server at this URL as ``s``."""
    server = HttpServer(url=url, bounds=Bounds(**(bounds or {})), **spec)
    return AsyncHost({"s": server}, state_dir=state_dir, handlers=handlers, on_event=on_event)


@asynccontextmanager
async def hosted(
    *, ready: bool = True, handlers: Handlers | None = None, bounds: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None, **script: Any,
) -> AsyncIterator[tuple[AsyncHost, HttpFaults]]:  # fmt: skip
    """A scripted server, and a host that is ready with it; the server saw nothing that a client must not send."""
    async with HttpFaults(**script) as server:
        async with host_for(server.url, handlers=handlers, bounds=bounds, **(spec or {})) as host:
            if ready:
                seen = await host.wait_ready()
                assert seen.all_ready, seen
            yield host, server
        assert not server.violations, server.violations


def mute(era: str) -> dict[str, Any]:
    """A script of this era that opens no stream beside the calls, as tests that count connections want."""
    return {"era": era, "get": "status:405", "capabilities": {"tools": {}}}


@contextmanager
def within(most: float, least: float = 0.0) -> Iterator[None]:
    """What is inside takes so many seconds."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert least <= took < most, f"it took {took:.2f} s, not {least} to {most}"


def session_of(host: AsyncHost) -> Session:
    """The conversation with the server now."""
    life = host._servers["s"].life
    assert life is not None and life.session is not None
    return life.session


async def unconnected(host: AsyncHost) -> None:
    """Wait until our side, too, has seen the end of every connection."""
    net = host._servers["s"]._settings.net._net
    async with asyncio.timeout(10):
        while net is not None and any(len(pool) for pool in net._pools.values()):
            await asyncio.sleep(0)


def sizes_of(host: AsyncHost) -> dict[str, int]:
    """What the tables of the conversation hold, without the listen stream that a modern one keeps open."""
    session = session_of(host)
    return {**session.sizes(), "pending": session.calls_in_flight()}


def told_of(server: HttpFaults) -> set[int]:
    """The ids that notices of a cancel named, which may come before the call that they are about has begun to run."""
    notices = [seen.message for seen in server.requests if seen.rpc == "notifications/cancelled"]
    return {notice["params"]["requestId"] for notice in notices if notice is not None}
