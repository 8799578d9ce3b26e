"""Headers of the user: fixed, from a function, from a command; and where they never go."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorings import AmbiguousDelivery, NotSent, Refused
from tests.faults.http_server import HttpFaults
from tests.http.kit import ALL, ERAS, SLACK, host_for, hosted, within


def numbered() -> Iterator[str]:
    """Values that tell how often they were asked for."""
    count = 0
    while True:
        count += 1
        yield f"key-{count}"


def keys_of(server: HttpFaults, what: str) -> list[str | None]:
    return [seen.headers.get("x-key") for seen in server.of(what)]


@ALL
async def test_fixed_headers_go_with_every_request(era: str) -> None:
    async with hosted(era=era, spec={"headers": {"X-Key": "k", "X-Other": "é"}}) as (host, server):
        await host.call("s__echo", {"text": "x"})
    assert {seen.headers.get("x-key") for seen in server.requests} == {"k"}


@ALL
@pytest.mark.parametrize("form", ["sync", "async", "callable"])
async def test_a_function_is_asked_once_and_again_when_it_is_turned_away(era: str, form: str) -> None:
    """F6.4 with it: 401 runs it again, any number of calls share that run, each call runs once."""
    values = numbered()

    def sync() -> dict[str, str]:
        return {"X-Key": next(values)}

    async def asynchronous() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"X-Key": next(values)}

    class Source:
        def __call__(self) -> Any:
            return asynchronous()

    spec: dict[str, Any] = {"headers": {"sync": sync, "async": asynchronous, "callable": Source()}[form]}
    if era == "sse":
        spec["transport"] = "sse"
    async with hosted(era=era, spec=spec) as (host, server):
        for turn in range(1, 4):
            assert (await host.call("s__effect")).text == str(turn)
        assert set(keys_of(server, "tools/call")) == {"key-1"}
        where = "/messages" if era == "sse" else "tools/call"
        server.set(on={where: ["unauthorized"] * 6 + ["ok"]})
        if era == "sse":
            # One at a time: there each POST is of its own.
            server.set(on={where: ["unauthorized", "ok"]})
            assert (await host.call("s__effect")).text == "4"
            assert next(values) == "key-3"
        else:
            calls = [host.call("s__effect", {"name": f"e{i}"}) for i in range(6)]
            assert [answer.text for answer in await asyncio.gather(*calls)] == ["1"] * 6
            assert all(server.effects[f"e{i}"] == 1 for i in range(6))
            assert next(values) == "key-3"


@ERAS
async def test_a_401_that_stays_is_told_after_one_more_run(era: str) -> None:
    values = numbered()
    spec = {"headers": lambda: {"X-Key": next(values)}}
    async with hosted(era=era, spec=spec, on={"tools/call": "unauthorized"}) as (host, server):
        with pytest.raises(Refused, match="401"):
            await host.call("s__effect")
        assert keys_of(server, "tools/call") == ["key-1", "key-2"]


@ERAS
async def test_a_function_that_fails_costs_its_call_and_is_asked_again_by_the_next(era: str) -> None:
    """Nothing was sent; what it says may hold the secret and is not told."""
    answers: list[Any] = [{"X-Key": "a"}]

    async def headers() -> dict[str, str]:
        answer = answers[-1]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]  # lies on purpose

    async with hosted(era=era, spec={"headers": headers}) as (host, server):
        for bad in (
            RuntimeError("secret-token"),
            {"X-Key": 7},
            "X-Key: a",
            None,
            {"Bad\nName": "x"},
            {"Content-Length": "1"},
        ):
            answers.append(bad)
            server.set(on={"tools/call": ["unauthorized", "ok"]})
            before = server.count("tools/call")
            with within(SLACK), pytest.raises((NotSent, Refused)) as caught:
                await host.call("s__effect")
            assert caught.value.sent is False
            assert "secret-token" not in str(caught.value)
            assert "headers" in str(caught.value)
            assert server.count("tools/call") - before <= 1
            answers.append({"X-Key": "b"})
            server.set(on={"tools/call": "ok"})
            assert not (await host.call("s__effect")).is_error
        assert host.status()["s"].generation == 1
        assert server.effects["effect"] == 6


@ERAS
async def test_a_function_that_takes_too_long_is_bounded(era: str) -> None:
    slow = asyncio.Event()

    async def headers() -> dict[str, str]:
        if slow.is_set():
            await asyncio.sleep(60)
        return {"X-Key": "a"}

    script = {"era": era, "on": {"tools/call": ["unauthorized", "ok"]}}
    async with hosted(spec={"headers": headers}, bounds={"headers_command": 0.3}, **script) as (host, _):
        slow.set()
        with within(0.3 + SLACK, 0.3), pytest.raises(NotSent, match=r"0\.3 s"):
            await host.call("s__effect")
        slow.clear()
        assert (await host.call("s__effect")).text == "1"


async def test_a_call_that_waits_for_headers_can_be_cancelled_and_closed() -> None:
    """The others that wait for the same run are not touched by one that gives up."""
    gate = asyncio.Event()

    async def headers() -> dict[str, str]:
        await gate.wait()
        return {"X-Key": "a"}

    async with HttpFaults() as server:
        host = host_for(server.url, headers=headers)
        await host.start()
        one = asyncio.ensure_future(host.call(("s", "effect")))
        two = asyncio.ensure_future(host.call(("s", "effect")))
        await asyncio.sleep(0.02)
        one.cancel()
        gate.set()
        assert (await two).text == "1"
        with pytest.raises(asyncio.CancelledError):
            await one
        gate.clear()
        source: Any = host._servers["s"].life._transport._settings.headers  # type: ignore[union-attr]
        source.forget(source.at_hand)
        three = asyncio.ensure_future(host.call(("s", "effect")))
        await asyncio.sleep(0.02)
        with within(2 * SLACK):
            await host.close()
        with pytest.raises(NotSent):
            await three


# headers_command

PROGRAM = """
import pathlib, sys
count = pathlib.Path({path!r})
turn = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(turn))
{then}
print(f"X-Key: key-{{turn}}")
"""


def command(tmp_path: Path, then: str = "") -> tuple[str, ...]:
    program = tmp_path / "headers.py"
    program.write_text(PROGRAM.format(path=str(tmp_path / "count"), then=then))
    return (sys.executable, str(program))


@ALL
async def test_a_command_gives_headers_and_is_run_again_when_they_are_turned_away(
    era: str, tmp_path: Path
) -> None:
    spec = {"headers_command": command(tmp_path), "transport": "sse" if era == "sse" else "auto"}
    async with hosted(era=era, spec=spec) as (host, server):
        assert (await host.call("s__effect")).text == "1"
        assert keys_of(server, "tools/call") == ["key-1"]
        where = "/messages" if era == "sse" else "tools/call"
        server.set(on={where: ["unauthorized", "ok"]})
        assert (await host.call("s__effect")).text == "2"
        assert keys_of(server, "tools/call")[-1] == "key-2"


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("print('secret-token'); sys.exit('no login')", "exit code 1"),
        ("print('secret-token')", "headers_command"),
        ("import time; time.sleep(60)", r"2 s"),
        ("print('X: y' * 100000)", "KiB"),
    ],
)
async def test_a_command_that_fails_is_told_of_without_its_output(
    then: str, said: str, tmp_path: Path
) -> None:
    spec = {"headers_command": command(tmp_path, then)}
    async with hosted(ready=False, spec=spec, bounds={"headers_command": 2.0}) as (host, server):
        with within(4 + SLACK):
            seen = await host.wait_ready()
        text = str(seen.failed["s"])
        assert said in text
        assert "secret-token" not in text
        assert not server.requests


# Redirects, and what never crosses an origin

SECRETS = {"Authorization": "Bearer secret-1", "X-Api-Key": "secret-2"}


@pytest.mark.parametrize("code", [307, 308])
@ERAS
async def test_a_redirect_within_the_origin_is_followed_with_method_body_and_headers(
    era: str, code: int
) -> None:
    """F13.8: for POST by 307 and 308 alone."""
    script = {"era": era, "on": {"tools/call": [f"redirect:{code}:{{origin}}/mcp", "ok"]}}
    async with hosted(spec={"headers": SECRETS}, **script) as (host, server):
        assert (await host.call("s__effect")).text == "1"
        first, second = server.of("tools/call")
        assert first.body == second.body
        assert second.headers["authorization"] == "Bearer secret-1"
        assert server.effects["effect"] == 1


@pytest.mark.parametrize("code", [301, 302, 303])
@ERAS
async def test_a_redirect_that_would_make_a_post_a_get_is_refused(era: str, code: int) -> None:
    """F13.8: a typed error that names the target."""
    script = {"era": era, "on": {"tools/call": [f"redirect:{code}:{{origin}}/other", "ok"]}}
    async with hosted(**script) as (host, server):
        # A 303 answers what was done: whether it was is then not known.
        with within(SLACK), pytest.raises(AmbiguousDelivery if code == 303 else Refused) as caught:
            await host.call("s__effect")
        assert caught.value.sent is (code == 303)
        assert "/other" in str(caught.value)
        assert str(code) in str(caught.value)
        assert not [seen for seen in server.requests if seen.path == "/other"]
        assert (await host.call("s__effect")).text == "1"


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("what", ["tools/call", "initialize", "GET", "DELETE", "sse", "/messages"])
async def test_nothing_of_ours_crosses_an_origin(code: int, what: str) -> None:
    """F16.3: neither Authorization nor the key nor the session id goes to the other one; not even the request."""
    async with HttpFaults() as other:
        era = "sse" if what in ("sse", "/messages") else "handshake"
        turns = f"redirect:{code}:{other.url}"
        script: dict[str, Any] = {"era": era}
        script["on"] = {{"sse": "/sse"}.get(what, what): turns}
        async with HttpFaults(**script) as server:
            spec: dict[str, Any] = {"transport": "sse"} if era == "sse" else {}
            async with host_for(server.url, headers=SECRETS, bounds={"cooldown": 0.0}, **spec) as host:
                seen = await host.wait_ready()
                assert seen.all_ready is (what in ("tools/call", "GET", "DELETE"))
                if what == "tools/call":
                    outcome = AmbiguousDelivery if code == 303 else Refused
                    with pytest.raises(outcome, match="points to"):
                        await host.call("s__effect")
        assert other.requests == []
        assert other.connections == 0


async def test_redirects_can_be_turned_off_and_are_bounded() -> None:
    script = {"on": {"tools/call": "redirect:307:{origin}/mcp"}}
    async with hosted(**script) as (host, server):
        with within(SLACK), pytest.raises(Refused):
            await host.call("s__effect")
        assert server.count("tools/call") <= 7
    async with hosted(spec={"redirects": False}, **script) as (host, server):
        with pytest.raises(Refused):
            await host.call("s__effect")
        assert server.count("tools/call") == 1


async def test_streams_beside_the_calls_ask_for_other_headers_too() -> None:
    """The GET stream, a stream that is resumed, and the stream of HTTP+SSE: 401 on one of them runs the function."""
    values = numbered()
    script = {"priming": True, "retry": 10, "get": ["unauthorized", "ok"]}
    async with hosted(spec={"headers": lambda: {"X-Key": next(values)}}, **script) as (host, server):
        await server.until(lambda s: s._listening is not None)
        assert keys_of(server, "GET") == ["key-1", "key-2"]
        server.set(on={"tools/call": "end_stream", "GET": ["unauthorized", "ok"]})
        assert (await host.call("s__effect")).text == "1"
        assert keys_of(server, "GET")[2:] == ["key-2", "key-3"]
    assert keys_of(server, "DELETE") == ["key-3"]
    values = numbered()
    spec = {"headers": lambda: {"X-Key": next(values)}, "transport": "sse"}
    async with hosted(era="sse", spec=spec, on={"/sse": ["unauthorized", "ok"]}) as (_, server):
        assert keys_of(server, "GET") == ["key-1", "key-2"]


async def test_a_busy_server_of_http_and_sse_is_asked_later() -> None:
    """F5.13 there: Retry-After that fits, and that does not."""
    async with hosted(era="sse") as (host, server):
        server.set(on={"/messages": ["later:429:0.3", "ok"]})
        with within(0.3 + SLACK, 0.3):
            assert (await host.call("s__effect", timeout=5)).text == "1"
        server.set(on={"/messages": ["later:429:60", "ok"]})
        with within(SLACK), pytest.raises(Refused, match="60 s"):
            await host.call("s__effect", timeout=5)
