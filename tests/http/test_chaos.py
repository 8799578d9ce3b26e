"""Class 6 as a property: whatever befalls requests at random, the server's own count agrees with each outcome."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from moorings import AmbiguousDelivery, CallTimeout, NotSent, Refused
from tests.faults.http_server import HttpFaults
from tests.http.kit import hosted, sizes_of

WORDS = [
    "ok", "json", "sse", "chunked", "gzip", "close", "close_idle", "race", "slow:0.01", "text_first",
    "comments_first:50", "die", "close_now", "half_headers", "garbage", "die_after", "die_in_body",
    "cut_in_body", "end_stream", "silent", "stall", "comments:0.05", "text", "status:500", "status:404",
    "status:413:big", "html", "html:502", "html:503", "error:-32000", "error:-32000:400",
    "error_null:-32000", "unsupported:2026-07-28", "mismatch", "json_text:null", "accepted", "empty",
    "later:429:0", "later:503:0", "later:429:99", "unauthorized", "forbidden", "redirect:307:{origin}/mcp",
    "redirect:302:{origin}/mcp", "redirect:307:http://elsewhere.invalid/", "type:image/png",
    "big_body:1000", "bomb:2000000",
]  # fmt: skip
BEFALLS = ["nothing", "nothing", "nothing", "forget", "drop", "away"]
WORKERS, CALLS = 6, 25


async def befall(server: HttpFaults, dice: random.Random) -> None:
    """Now and then something that strikes all that is under way."""
    while True:
        await asyncio.sleep(0.05 * dice.random())
        what = dice.choice(BEFALLS)
        if what == "forget":
            server.forget()
        elif what == "drop":
            server.drop_connections()
        elif what == "away":
            await server.stop_listening()
            await asyncio.sleep(0.02)
            await server.listen()


@pytest.mark.slow
@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("answers", ["json", "sse"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("MOORINGS_TEST_CHAOS", "2"))))
async def test_f6_whatever_befalls_each_outcome_agrees_with_what_the_server_counts(
    era: str, answers: str, seed: int
) -> None:
    """F6.1 to F6.7: a result means one execution, not sent and turned away mean none, ambiguous one at most."""
    dice = random.Random(seed)
    words = [dice.choice(WORDS) if dice.random() < 0.7 else "ok" for _ in range(5000)]
    bounds = {"first_byte": 0.4, "idle": 0.3, "max_message": 500_000, "cooldown": 0.0}
    script = {"era": era, "answers": answers, "resumable": True, "priming": True, "retry": 5, "strict": False}
    seen: dict[str, int] = {}
    async with hosted(bounds=bounds, **script) as (host, server):
        server.set(on={"tools/call": words})
        striking = asyncio.ensure_future(befall(server, dice))

        async def one(name: str) -> None:
            writes = dice.random() < 0.6
            tool = "s__effect" if writes else "s__read"
            try:
                result = await host.call(tool, {"name": name}, timeout=2.0)
                outcome = "answered"
                if not result.content:
                    return  # the big body: a result that says nothing, of a request that was not carried out
            except (NotSent, Refused, AmbiguousDelivery, CallTimeout) as error:
                outcome = type(error).__name__ if error.sent else f"{type(error).__name__}, not sent"
                assert str(error)
            seen[outcome] = seen.get(outcome, 0) + 1
            count = server.effects[name]
            if outcome == "answered":
                assert count == 1 if writes else 1 <= count <= 2, (name, outcome, count)
            elif outcome.endswith("not sent"):
                assert count == 0, (name, outcome, count)
            else:
                assert count <= (1 if writes else 2), (name, outcome, count)

        async def work(worker: int) -> None:
            for turn in range(CALLS):
                await one(f"w{worker}-{turn}")

        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*[work(worker) for worker in range(WORKERS)])
        finally:
            striking.cancel()
            await asyncio.wait({striking})
        if server._server is None:
            await server.listen()
        server.set(on={"tools/call": "ok"})
        await asyncio.sleep(0.05)
        for _ in range(2):
            try:
                assert (await host.call("s__echo", {"text": "still here"}, timeout=5)).text == "still here"
                break
            except (NotSent, AmbiguousDelivery):
                continue  # the last blow struck this one
        else:
            pytest.fail("it does not come back")
        async with asyncio.timeout(5):
            while sizes_of(host)["pending"]:
                await asyncio.sleep(0.01)  # lists that are looked at after the last blow
        # No call ran more often than it may, also after its outcome.
        assert all(count <= 2 for name, count in server.effects.items() if name.startswith("w"))
        assert seen.get("answered", 0) >= WORKERS * CALLS // 4, seen
        server.violations.clear()
