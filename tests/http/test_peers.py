"""What peers met over HTTP and got wrong (P7 and P9 stand in ``test_class4.py`` and ``test_class9.py``, P8 is F5.1)."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
import trustme

from moorings import AmbiguousDelivery, AsyncHost, HttpServer
from tests.faults.http_server import HttpFaults
from tests.http.kit import ALL, ERAS, SLACK, hosted, mute, within
from tests.net.kit import server_tls

ANSWERS = pytest.mark.parametrize("answers", ["json", "sse"])


# P17: large messages


@ALL
@ANSWERS
@pytest.mark.parametrize("size", [1_600_000, 10_000_000])
async def test_p17_a_large_answer_is_one_message(era: str, answers: str, size: int) -> None:
    """P17, F13.2: 1.6 MB and 10 MB, as JSON and as one event."""
    async with hosted(era=era, answers=answers) as (host, _):
        assert len((await host.call("s__big", {"bytes": size}, timeout=20)).text) == size


@ERAS
async def test_p17_a_list_of_a_thousand_tools_in_one_event(era: str) -> None:
    """P17: 1.6 MB of ``tools/list``."""
    tools = [
        {"name": f"tool{n}", "description": "d" * 1500, "inputSchema": {"type": "object"}}
        for n in range(1000)
    ]
    async with hosted(era=era, answers="sse", tools=tools) as (host, _):
        assert len(await host.tools()) > 1000


@ALL
@ANSWERS
async def test_p17_what_is_over_the_cap_costs_its_call_only(era: str, answers: str) -> None:
    """F13.2: the error names size or cap; the next call works."""
    bounds = {"max_message": 100_000, "idle": 0.5}
    async with hosted(era=era, answers=answers, bounds=bounds) as (host, server):
        with within(SLACK), pytest.raises(AmbiguousDelivery, match="max_message"):
            await host.call("s__big", {"bytes": 200_000}, timeout=20)
        assert (await host.call("s__echo", {"text": "next"})).text == "next"
        assert host.status()["s"].generation == 1
        if era != "sse":
            # An event without an end is thrown away as it comes, and ends with the silence after it.
            server.set(on={"tools/call": ["big_event:300000", "bomb:30000000", "ok"]})
            for _ in (1, 2):
                # Long before the call's own limit, by which it would be a CallTimeout.
                with pytest.raises(AmbiguousDelivery):
                    await host.call("s__effect", timeout=15)
            assert (await host.call("s__effect")).text == "1"


# P18: one TLS context and one pool for all servers of a setting


async def test_p18_many_servers_share_one_context_and_plain_ones_make_none() -> None:
    """P18: 20 servers over ``http://`` make no context; over ``https://`` one."""
    ca = trustme.CA()
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(HttpFaults())
        secure = await stack.enter_async_context(HttpFaults(ssl=server_tls(ca.issue_cert("localhost"))))
        with ca.cert_pem.tempfile() as file:
            servers = {f"p{n}": HttpServer(url=plain.url) for n in range(20)}
            host = AsyncHost(servers, state_dir=False)
            async with host:
                shared = host._servers["p0"]._settings.net
                assert (await host.wait_ready()).all_ready
                net = shared._net
                assert net is not None
                assert len(net._contexts) == 0
                assert len(net._pools) == 1
                await host.add("t0", HttpServer(url=secure.url, ca_file=file))
                for n in range(1, 10):
                    await host.add(f"t{n}", HttpServer(url=secure.url, ca_file=file))
                assert (await host.wait_ready()).all_ready
                assert len(net._contexts) == 1
            assert shared._net is None


# P19: a call lists nothing


@ALL
async def test_p19_calls_of_tools_on_any_page_list_nothing(era: str) -> None:
    """P19: one listing of all pages at the start, whichever tool is called."""
    async with hosted(pages=3, **mute(era)) as (host, server):
        listed = server.count("tools/list")
        assert listed == 5
        for _ in range(10):
            await host.call("s__mirror", {"region": "x"})
            await host.call("s__echo", {"text": "x"})
        assert server.count("tools/list") == listed


# The trap: one killed connection kills the session


@ERAS
@ANSWERS
async def test_a_killed_post_costs_that_call_only(era: str, answers: str) -> None:
    """16 calls at once, one is killed: the others are answered, on the same session."""
    async with hosted(era=era, answers=answers) as (host, server):
        held = [asyncio.ensure_future(host.call("s__hold", {"key": f"k{n}"})) for n in range(16)]
        await server.until(lambda s: s.effects["tool:hold"] == 16)
        victim = next(seen for seen in server.of("tools/call") if seen.params["arguments"]["key"] == "k7")
        next(c for c in server.live if c.number == victim.connection).reset()
        with within(SLACK), pytest.raises(AmbiguousDelivery):
            await held[7]
        for n in range(16):
            server.release(f"k{n}")
        texts = [(await call).text for n, call in enumerate(held) if n != 7]
        assert texts == ["released"] * 15
        assert host.status()["s"].generation == 1
        assert server.count("initialize") == (1 if era == "handshake" else 0)


@ERAS
async def test_calls_at_once_wait_for_none_of_each_other(era: str) -> None:
    """128 in flight, one of which never comes."""
    async with hosted(era=era) as (host, server):
        stuck = asyncio.ensure_future(host.call("s__hold"))
        await server.until(lambda s: s.effects["tool:hold"])
        began = time.monotonic()
        calls = [host.call("s__sleep", {"seconds": 0.2}) for _ in range(100)]
        await asyncio.gather(*calls)
        assert time.monotonic() - began < 0.2 + 2 * SLACK
        server.release("hold")
        assert (await stuck).text == "released"
