"""One killed POST costs that call only: an exchange cut after every N bytes, in both directions, by RST and by FIN.

Between host and server stands a proxy of ours. Each call goes over a fresh connection that is cut at N; all later ones
pass. At each N the outcome is right, nothing is done twice, and the next call works.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moorings import AmbiguousDelivery, AsyncHost, CallTimeout
from tests.faults.http_server import HttpFaults
from tests.faults.tcp import At, Plan, TcpProxy
from tests.http.kit import SLACK, host_for, mute, within

FORMS = pytest.mark.parametrize(
    ("era", "answers"), [("handshake", "json"), ("handshake", "sse"), ("modern", "json"), ("modern", "sse")]
)
MORE = 4
"""Bytes by which a later exchange may be longer, as its id has more digits."""
DEEDS = pytest.mark.parametrize("deed", ["reset", "close"])


@asynccontextmanager
async def through_proxy(
    *, bounds: dict[str, Any] | None = None, **script: Any
) -> AsyncIterator[tuple[AsyncHost, HttpFaults, TcpProxy]]:
    """A ready host whose server stands behind a proxy; no stream is open beside the calls."""
    async with HttpFaults(**script) as server, TcpProxy(server.port) as proxy:
        async with host_for(proxy.url + "/mcp", bounds=bounds) as host:
            assert (await host.wait_ready()).all_ready
            yield host, server, proxy


async def alone(proxy: TcpProxy, *plans: Plan) -> None:
    """The next call dials anew, and meets the first plan."""
    proxy.reset_all("close")
    await proxy.until(lambda p: not p.open)
    # The end of the connection has reached the other side by now.
    await asyncio.sleep(0.001)
    proxy.script(*plans)


async def measured(host: AsyncHost, proxy: TcpProxy, tool: str) -> tuple[int, int]:
    """Bytes of one call, up and down."""
    await alone(proxy, Plan())
    await host.call(f"s__{tool}", {"name": "measure"})
    link = proxy.links[-1]
    return link.up, link.down


@FORMS
@DEEDS
@pytest.mark.slow
async def test_f6_1_an_exchange_cut_after_every_byte_of_the_answer(era: str, answers: str, deed: Any) -> None:
    """F6.1: it ran once; the outcome is its answer, or ambiguous; the next call works."""
    script = {**mute(era), "answers": {"tools/call": answers}}
    async with through_proxy(**script) as (host, server, proxy):
        _, size = await measured(host, proxy, "effect")
        answered: list[int] = []
        for n in range(size + MORE):
            await alone(proxy, Plan(down=At(n, deed)), Plan())
            try:
                with within(SLACK):
                    result = await host.call("s__effect", {"name": f"e{n}"}, timeout=5)
                assert result.text == "1"
                answered.append(n)
                await alone(proxy, Plan())  # what was not cut here would be in the next call
            except AmbiguousDelivery as error:
                assert error.sent
            await server.until(lambda s, n=n: s.effects[f"e{n}"])
            assert (await host.call("s__echo", {"text": "next"})).text == "next"
            assert server.effects[f"e{n}"] == 1, n
        # A stream of events is done with its event; of the frame around it the last bytes may be missing.
        assert not answered or answered[0] >= size - (len("0\r\n\r\n") + 2 if answers == "sse" else 0)
        assert answered or deed == "reset"
        assert server.count("initialize") <= 1
        assert not server.violations


@FORMS
@DEEDS
@pytest.mark.slow
async def test_f6_1_an_exchange_cut_after_every_byte_of_the_request(
    era: str, answers: str, deed: Any
) -> None:
    """F6.1: what arrives in part does not run; what arrives whole runs once; the next call works."""
    script = {**mute(era), "answers": {"tools/call": answers}}
    async with through_proxy(**script) as (host, server, proxy):
        size, _ = await measured(host, proxy, "effect")
        whole = 0
        for n in range(size + MORE):
            await alone(proxy, Plan(up=At(n, deed)), Plan())
            try:
                with within(SLACK):
                    await host.call("s__effect", {"name": "twelve."}, timeout=5)
                whole += 1
                await alone(proxy, Plan())
            except AmbiguousDelivery as error:
                assert error.sent
            assert (await host.call("s__echo", {"text": "next"})).text == "next"
            assert server.effects["twelve."] in (0, whole) or n >= size
        assert server.effects["twelve."] <= MORE
        assert server.count("initialize") <= 1
        assert not server.violations


@FORMS
async def test_f6_2_a_reading_call_is_answered_wherever_it_is_cut(era: str, answers: str) -> None:
    """F6.2: sent once more over another connection, under a new id: no cut is seen by the caller."""
    script = {**mute(era), "answers": {"tools/call": answers}}
    async with through_proxy(**script) as (host, server, proxy):
        up, down = await measured(host, proxy, "read")
        for n in range(0, max(up, down), 3):
            for plan in (Plan(up=At(min(n, up - 1))), Plan(down=At(min(n, down - 1)))):
                await alone(proxy, plan, Plan())
                before = server.count("tools/call")
                with within(SLACK):
                    assert not (await host.call("s__read", {"name": "r"}, timeout=5)).is_error
                assert server.count("tools/call") - before <= 2
        assert not server.violations


@DEEDS
async def test_f6_1_a_kept_connection_that_is_cut_as_we_write_is_not_proof_that_nothing_ran(
    deed: Any,
) -> None:
    """F6.1: the reuse race looks like a stale connection; without proof it is ambiguous for what writes."""
    async with through_proxy(**mute("handshake")) as (host, server, proxy):
        _, size = await measured(host, proxy, "effect")
        # The first call passes; the second is carried out, and its connection ends without a byte of the answer.
        await alone(proxy, Plan(down=At(size, deed)), Plan())
        await host.call("s__echo", {"text": ""})
        for n in range(3):
            await alone(proxy, Plan(down=At(size + 5 * n, "blackhole")), Plan())
            assert not (await host.call("s__effect", {"name": "measure"})).is_error
            calling = asyncio.ensure_future(host.call("s__effect", {"name": f"e{n}"}, timeout=5))
            await server.until(lambda s, n=n: s.effects[f"e{n}"])
            proxy.reset_all("reset" if deed == "reset" else "close")
            with pytest.raises(AmbiguousDelivery):
                await calling
            assert server.effects[f"e{n}"] == 1
        assert server.count("initialize") == 1


async def test_a_cut_of_the_legacy_stream_after_every_byte() -> None:
    """F6.1, over HTTP+SSE: the stream is the connection; what waits on it is ambiguous or answered, and done once."""
    async with HttpFaults(era="sse") as server, TcpProxy(server.port) as proxy:
        async with host_for(proxy.url + "/sse", transport="sse", bounds={"cooldown": 0.0}) as host:
            assert (await host.wait_ready()).all_ready
            await host.call("s__effect", {"name": "measure"})
            size = max(link.down for link in proxy.links)
            link = next(link for link in proxy.links if link.down == size)
            before = link.down
            await host.call("s__effect", {"name": "measure"})
            answer = link.down - before
            for n in range(size, size + answer, 2):
                # A new stream, cut in the middle of the answer that it brings after its start.
                await host.restart("s")
                proxy.script(Plan(down=At(n)), Plan())
                await host.restart("s")
                try:
                    with within(2 * SLACK):
                        await host.call("s__effect", {"name": f"e{n}"}, timeout=5)
                except AmbiguousDelivery:
                    pass
                with within(2 * SLACK):
                    assert (await host.call("s__echo", {"text": "next"}, timeout=5)).text == "next"
                assert server.effects[f"e{n}"] <= 1


# Half-open connections, stalls


@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("answers", ["json", "sse"])
@pytest.mark.parametrize("after", [0, 40, 150])
async def test_f4_11_a_half_open_connection_ends_at_the_call_limit_and_is_not_pooled(
    era: str, answers: str, after: int
) -> None:
    """F4.11: nothing came, or the headers came, and then silence without a FIN: the limit of the call ends it."""
    script = {**mute(era), "answers": {"tools/call": answers}}
    async with through_proxy(**script) as (host, server, proxy):
        await alone(proxy, Plan(down=At(after, "blackhole")), Plan())
        with within(0.3 + SLACK, 0.3), pytest.raises(CallTimeout) as caught:
            await host.call("s__effect", timeout=0.3)
        assert caught.value.sent
        dead = proxy.links[-1] if era == "modern" else proxy.links[len(proxy.links) - 2]
        assert (await host.call("s__echo", {"text": "next"}, timeout=5)).text == "next"
        await proxy.until(lambda p: not [link for link in p.open if link.swallowed])
        assert not dead.open or dead.swallowed == 0
        assert server.effects["effect"] == 1


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_f4_11_a_pulled_cable_ends_at_the_limit(era: str) -> None:
    """F4.11: nothing passes any more, on no connection; after it is back the next call works."""
    async with through_proxy(**mute(era)) as (host, _, proxy):
        assert (await host.call("s__echo", {"text": "a"})).text == "a"
        proxy.freeze()
        with within(0.3 + SLACK, 0.3), pytest.raises(CallTimeout):
            await host.call("s__echo", {"text": "b"}, timeout=0.3)
        proxy.thaw()
        assert (await host.call("s__echo", {"text": "c"}, timeout=5)).text == "c"


@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("word", ["stall", "silent"])
async def test_a_stalled_stream_ends_at_its_idle_bound_and_costs_its_call_only(era: str, word: str) -> None:
    """F6.5: silence in a stream, or before the first byte: ambiguous at that bound."""
    bounds = {"idle": 0.3, "first_byte": 0.3}
    script = {**mute(era), "on": {"tools/call": [word, "ok"]}}
    async with HttpFaults(**script) as server, host_for(server.url, bounds=bounds) as host:
        await host.wait_ready()
        with within(0.3 + SLACK, 0.3), pytest.raises(AmbiguousDelivery, match=r"0\.3 s"):
            await host.call("s__effect", timeout=30)
        assert (await host.call("s__echo", {"text": "next"})).text == "next"


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_f4_5_comments_keep_a_stream_and_do_not_stretch_the_call(era: str) -> None:
    """F4.5: comment lines are no progress: the silence limit of the call ends it; the idle bound does not."""
    script = {**mute(era), "on": {"tools/call": ["comments:0.02", "ok"]}}
    async with HttpFaults(**script) as server, host_for(server.url, bounds={"idle": 0.2}) as host:
        await host.wait_ready()
        with within(0.6 + SLACK, 0.6), pytest.raises(CallTimeout):
            await host.call("s__effect", timeout=0.6)
        assert (await host.call("s__echo", {"text": "next"})).text == "next"
