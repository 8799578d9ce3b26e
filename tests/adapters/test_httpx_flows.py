"""Flows advanced by hand: whatever becomes of one, the others complete, and what is to be done once is done once.

A flow of another kind holds a lock while its request runs, so that one which is closed elsewhere, or never resumed,
leaves a lock that nobody can release. No collector and no sleep plays a part here.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from moorings import AsyncHost, Bounds, CredentialSettings, HttpServer
from tests.adapters.httpx_kit import (
    LIBRARIES,
    TOLD,
    BlockingByHand,
    ByHand,
    in_task,
    logged_in,
    made,
    message,
)
from tests.faults.auth_server import AuthFaults, in_thread

ORDERS = sorted({"".join(order) for order in itertools.permutations("aaabbb")})
"""Each flow has three steps: its request, its refusal and the request again, its end."""


async def one_by_one(order: str, flows: dict[str, ByHand]) -> None:
    for name in order:
        if not flows[name].done:
            await flows[name].advance()
    for flow in flows.values():
        assert await flow.finish() == 200


@pytest.mark.parametrize("providers", [1, 2])
async def test_b_two_flows_in_every_order(providers: int, tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server:
        for number, order in enumerate(ORDERS):
            folder = tmp_path / f"{number}"
            await logged_in(server, folder)
            before = len(server.grants("refresh_token"))
            async with made(server, folder) as one, made(server, folder) as other:
                await one_by_one(
                    order, {"a": ByHand(one, server), "b": ByHand(one if providers == 1 else other, server)}
                )
            assert len(server.grants("refresh_token")) == before + 1, order
        assert server.revoked_by_reuse == 0


@pytest.mark.parametrize("library", LIBRARIES)
async def test_b_what_goes_through_a_flow_stays_what_it_is(library: Any, tmp_path: Path) -> None:
    """Of a request, its ``Authorization`` alone is ours; of a response, nothing."""
    async with AuthFaults(session=False) as server:
        await logged_in(server, tmp_path)
        async with made(server, tmp_path) as auth:
            flow = ByHand(auth, server, "the same", library)
            before, body = dict(flow.request.headers), flow.request.content
            assert await flow.finish() == 200
            assert len(flow.sent) == 2
            tokens = [sent.pop("authorization") for sent in flow.sent]
            assert tokens[0] != tokens[1] and flow.sent == [before, before]
            assert flow.request.content == body
            assert [(each.status_code, each.content) for each in flow.answers] == [
                (401, b"no"),
                (200, b"fine"),
            ]


def test_b_two_blocking_flows_in_every_order(tmp_path: Path) -> None:
    with in_thread(session=False) as server, made(server, tmp_path) as auth:
        assert BlockingByHand(auth, server).run() == 200
        for number, order in enumerate(ORDERS, 1):
            server.expire()
            flows = {"a": BlockingByHand(auth, server), "b": BlockingByHand(auth, server)}
            for name in order:
                if not flows[name].done:
                    flows[name].step()
            assert [flow.run() for flow in flows.values()] == [200, 200], order
            assert len(server.grants("refresh_token")) == number, order
        assert server.revoked_by_reuse == 0


async def own_task(flow: ByHand) -> None:
    await flow.flow.aclose()


async def other_task(flow: ByHand) -> None:
    await in_task(flow.flow.aclose)


async def other_thread(flow: ByHand) -> None:
    await asyncio.to_thread(asyncio.run, own_task(flow))


async def nobody(flow: ByHand) -> None:
    """It stays as it is, and nothing waits for it."""


ENDS = [own_task, other_task, other_thread, nobody]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_b_one_is_left_in_the_middle_and_the_other_completes(
    end: Callable[[ByHand], Any], steps: int, tmp_path: Path
) -> None:
    """P3: closed in its own task, in another one or in another thread, or never resumed."""
    async with AuthFaults(session=False) as server:
        await logged_in(server, tmp_path)
        async with made(server, tmp_path) as auth:
            left, other = ByHand(auth, server), ByHand(auth, server)
            for _ in range(steps):
                await left.advance()
            await other.advance()
            await end(left)
            assert await other.finish() == 200
            assert len(server.grants("refresh_token")) == 1
            # The same provider, for whoever comes after.
            assert await ByHand(auth, server).finish() == 200
            await left.flow.aclose()


async def test_b_one_that_waits_for_the_refresh_is_cancelled_and_the_other_gets_it(tmp_path: Path) -> None:
    async with AuthFaults(session=False, on={"token:refresh_token": ["hold", "ok"]}) as server:
        await logged_in(server, tmp_path)
        async with made(server, tmp_path) as auth:
            left, other = ByHand(auth, server), ByHand(auth, server)
            await left.advance()
            await other.advance()
            refused = asyncio.create_task(left.advance())
            await server.until(lambda _: server.grants("refresh_token"))
            waiting = asyncio.create_task(other.advance())
            refused.cancel()
            with pytest.raises(asyncio.CancelledError):
                await refused
            server.release("token:refresh_token")
            await waiting
            assert await other.finish() == 200
            assert len(server.grants("refresh_token")) == 1


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_b_a_blocking_flow_is_closed_by_another_thread(steps: int, tmp_path: Path) -> None:
    with in_thread(session=False) as server, made(server, tmp_path) as auth:
        assert BlockingByHand(auth, server).run() == 200
        server.expire()
        left, other = BlockingByHand(auth, server), BlockingByHand(auth, server)
        for _ in range(steps):
            left.step()
        other.step()
        closing = threading.Thread(target=left.steps.close)
        closing.start()
        closing.join()
        assert other.run() == 200
        assert len(server.grants("refresh_token")) == 1
        assert BlockingByHand(auth, server).run() == 200


async def test_b_two_loops_in_two_threads_on_one_store(tmp_path: Path) -> None:
    """Both are refused with the old token, and wait for the one refresh, which neither of their loops carries out."""
    async with AuthFaults(session=False, on={"token:refresh_token": ["hold", "ok"]}) as server:
        await logged_in(server, tmp_path)
        both_have_it = threading.Barrier(2)

        async def use() -> int:
            async with made(server, tmp_path) as auth:
                flow = ByHand(auth, server)
                await flow.advance()
                both_have_it.wait(60)
                return await flow.finish()

        threads = [asyncio.create_task(asyncio.to_thread(asyncio.run, use())) for _ in range(2)]
        await server.until(lambda _: server.grants("refresh_token"), 60)
        server.release("token:refresh_token")
        assert [await each for each in threads] == [200, 200]
        assert len(server.grants("refresh_token")) == 1


async def test_b_two_hosts_and_a_client_on_one_store(tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server:
        await logged_in(server, tmp_path)
        spec = HttpServer(url=server.url, transport="http", bounds=Bounds(connect=30.0, http_close=0.5))
        kept = CredentialSettings(store=f"file:{tmp_path}/logins")
        hosts = [AsyncHost({"s": spec}, state_dir=False, credentials=kept) for _ in range(2)]
        async with hosts[0], hosts[1], made(server, tmp_path) as auth:
            flow = ByHand(auth, server)
            got = await asyncio.gather(
                *(host.call("s__echo", {"text": "x"}) for host in hosts), flow.finish()
            )
            assert [got[0].text, got[1].text, got[2]] == ["x", "x", 200]
            assert len(server.grants("refresh_token")) == 1


@pytest.mark.parametrize("before", [True, False], ids=["released-first", "next-comes-first"])
@pytest.mark.parametrize("held", ["prm", "as", "register", "token:authorization_code", "token:refresh_token"])
async def test_c_a_flow_that_is_abandoned_in_the_middle(held: str, before: bool, tmp_path: Path) -> None:
    """In discovery, registration, login, refresh: the work goes on without it, and the next caller has its outcome."""
    async with AuthFaults(session=False, on={held: ["hold", "ok"]}) as server:
        if held == "token:refresh_token":
            await logged_in(server, tmp_path)
        async with made(server, tmp_path) as auth:
            left = ByHand(auth, server)
            await left.advance()
            refused = asyncio.create_task(left.advance())
            await server.until(lambda _: server.at(held))
            refused.cancel()
            with pytest.raises(asyncio.CancelledError):
                await refused
            later = ByHand(auth, server)
            await later.advance()
            if before:
                server.release(held)
                assert await later.finish() == 200
            else:
                waiting = asyncio.create_task(later.finish())
                await ByHand(auth, server).flow.aclose()
                server.release(held)
                assert await waiting == 200
            assert len(server.at("register")) == 1
            assert len(server.grants("authorization_code")) == 1
            assert len(server.grants("refresh_token")) == (held == "token:refresh_token")
            assert not server.violations


async def test_d_a_request_does_not_wait_for_another(tmp_path: Path) -> None:
    """P4: sixteen are under way at once: none is answered before all are there."""
    async with AuthFaults(session=False) as server:
        await logged_in(server, tmp_path)
        async with made(server, tmp_path) as auth, httpx.AsyncClient(auth=auth, timeout=30) as client:
            body = message(tool="hold") | {"params": {"name": "hold", "arguments": {"key": "all"}}}

            def taken() -> int:
                """Calls that hold a token which is good, and have no answer."""
                calls = [seen for seen in server.of("tools/call", tool="hold") if seen.status is None]
                return sum(seen.headers["authorization"].split()[1] in server.access for seen in calls)

            calls = [asyncio.create_task(client.post(server.url, json=body, headers=TOLD)) for _ in range(16)]
            await server.until(lambda _: taken() == 16, 60)
            server.release("all")
            assert [(await each).status_code for each in calls] == [200] * 16
            assert len(server.grants("refresh_token")) == 1
