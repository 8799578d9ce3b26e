"""Which era a server speaks, and that neither hears the other's words (field faults, class 9).

The journal of the scripted server notes every message that does not belong to its era; in each test here there is
none. HTTP statuses and bodies (parts of F9.3, F9.4), F9.9 and ``x-mcp-header`` (F9.11) need the HTTP transport.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from moorings import AmbiguousDelivery, AsyncHost, Bounds, ElicitResult, Handlers, NotSent, StartError
from moorings.session.listen import reopen_wait
from moorings.wire.eras import HANDSHAKE_REVISIONS
from tests.clock import advance, on_running_clock, pass_time, turns
from tests.faults.procs import gone
from tests.faults.script import FaultLog, fault_server, write_script
from tests.session.hosting import EMPTY, host_of, scripted, session_of, sizes_of

PROBE = Bounds(probe=0.3)
PROBED = ["server/discover", "initialize", "notifications/initialized", "tools/list"]
SHAKEN = PROBED[1:]


class Remembering:
    """A server whose script can change under one and the same command line, and a state folder over all hosts."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "state"
        self.script_file = tmp_path / "script.json"
        self.log = FaultLog(tmp_path / "journal")

    def write(self, **script: Any) -> None:
        write_script(self.script_file, journal=self.log.path, **script)

    def host(self, bounds: Bounds = PROBE, **script: Any) -> AsyncHost:
        spec = fault_server(script_file=self.script_file, journal=self.log.path, bounds=bounds, **script)
        return host_of(spec, state_dir=self.folder)

    async def connect(self, bounds: Bounds = PROBE, **script: Any) -> tuple[list[str], str | None, float]:
        """Start a host, call a tool, close. What the server received until then, its era, and the seconds it took."""
        before, faults = len(self.log.methods()), len(self.log.violations())
        began = time.monotonic()
        async with self.host(bounds, **script) as host:
            readiness = await host.wait_ready()
            assert readiness.ready == ("s",), readiness.failed
            took = time.monotonic() - began
            assert (await host.call("s__echo", {"text": "hi"})).text == "hi"
            era = host.status()["s"].era
        assert self.log.violations()[faults:] == []
        heard = self.log.methods()[before:]
        return heard[: heard.index("tools/call")], era, took


@pytest.fixture
def remembering(tmp_path: Path) -> Remembering:
    return Remembering(tmp_path)


# The probe decides


async def test_a_modern_server_is_probed_once_and_remembered(remembering: Remembering) -> None:
    """`auto`: the probe is the discovery, so a modern server costs one message, also the next time."""
    for _ in range(2):
        heard, era, _ = await remembering.connect(era="modern")
        assert heard[0] == "server/discover" and heard.count("server/discover") == 1 and era == "modern"
        assert "initialize" not in heard


async def test_f9_1_a_server_that_exits_on_the_probe_is_started_again_and_not_probed_any_more(
    remembering: Remembering,
) -> None:
    """F9.1: one respawn, `initialize`, ready; the next start sends no probe."""
    heard, era, _ = await remembering.connect(on_probe="exit:1")
    assert (heard, era) == (PROBED, "handshake") and len(remembering.log.starts()) == 2
    heard, era, _ = await remembering.connect(on_probe="exit:1")
    assert (heard, era) == (SHAKEN, "handshake") and len(remembering.log.starts()) == 3
    assert await gone(remembering.log.pids(), 3)


async def test_f9_1_a_server_that_dies_only_of_the_line_after_the_probe(remembering: Remembering) -> None:
    """F9.1: as mcp 1.2.1 and 1.6.0 do: nothing happens on the probe, the next line ends it."""
    heard, era, took = await remembering.connect(on_probe="exit_on_next:1")
    assert (heard, era) == (PROBED, "handshake") and took >= PROBE.probe
    assert len(remembering.log.starts()) == 2
    heard, era, took = await remembering.connect(on_probe="exit_on_next:1")
    assert (heard, era) == (SHAKEN, "handshake") and took < PROBE.probe + 0.7
    assert len(remembering.log.starts()) == 3


async def test_f9_1_a_server_that_closes_its_stdout_on_the_probe(remembering: Remembering) -> None:
    """F9.1: its process is ended before the next one starts."""
    bounds = Bounds(probe=0.3, stop_eof=0.2)
    heard, era, _ = await remembering.connect(bounds, on_probe="close_stdout", ignore_eof=True)
    assert (heard, era) == (PROBED, "handshake")
    first, second = remembering.log.starts()
    end = remembering.log.entries("exit", pid=first["pid"])
    assert end and end[0]["t"] < second["t"]


async def test_f9_1_a_respawn_happens_once(tmp_path: Path) -> None:
    """F9.1: a server that dies in any case is started twice at most, then the failure is told."""
    host, log = scripted(tmp_path, on_probe="exit:1", on_initialize="exit:3:cannot work\n")
    async with host:
        readiness = await host.wait_ready()
        assert "exit code 3" in readiness.failed["s"] and "cannot work" in readiness.failed["s"]
    assert len(log.starts()) == 2 and log.count("initialize") == 1 and log.violations() == []


async def test_f9_2_a_server_that_is_silent_on_the_probe_costs_the_probe_limit_once(
    remembering: Remembering,
) -> None:
    """F9.2: legacy after the probe limit; the next start has no wait."""
    heard, era, took = await remembering.connect(on_probe="silent")
    assert era == "handshake" and PROBE.probe <= took < PROBE.probe + 1
    assert heard[:3] == PROBED[:3] and len(remembering.log.starts()) == 1
    heard, era, took = await remembering.connect(on_probe="silent", bounds=Bounds(probe=5))
    assert (heard, era) == (SHAKEN, "handshake") and took < 2


@on_running_clock
async def test_f9_2_the_probe_is_capped_at_three_seconds_unless_set(tmp_path: Path) -> None:
    """F9.2: `Bounds.probe` is 3 s by default."""
    host, log = scripted(tmp_path, on_probe="silent")
    async with host:
        await log.seen("received", method="server/discover")
        advance(2)
        await turns(20)
        assert log.count("initialize") == 0
        advance(1.1)
        await log.seen("received", method="initialize")
        assert (await host.wait_ready()).ready == ("s",)
    assert log.violations() == []


@pytest.mark.parametrize(
    "answer",
    [
        "error:-32601", "error:-32602", "error:-32600", "error:-32000", "error:-32700", "error:401", "error:0",
        "error:-32019", "garbage", "html",
        *(f"malformed:{shape}" for shape in (
            "string", "null", "list", "content_missing", "both", "neither", "error_string", "error_code_string"
        )),
    ],
)  # fmt: skip
async def test_f9_3_whatever_is_no_modern_answer_means_the_handshake(
    remembering: Remembering, answer: str
) -> None:
    """F9.3: any code, any shape → legacy, on the same process; no modern metadata on anything that follows."""
    heard, era, _ = await remembering.connect(on_probe=answer)
    assert heard[:2] == PROBED[:2] and heard[-1] == "tools/list" and era == "handshake"
    assert len(remembering.log.starts()) == 1
    heard, era, _ = await remembering.connect(on_probe=answer)
    assert (heard, era) == (SHAKEN, "handshake")


async def test_f9_3_an_answer_over_the_size_cap_means_the_handshake_too(tmp_path: Path) -> None:
    """F9.3: in whatever form."""
    host, log = scripted(
        tmp_path, era="dual", instructions="x" * 20_000, builtins=False, tools=[],
        bounds=Bounds(max_message=10_000, connect=5),
        by_start=[{"on_initialize": "ok"}],
    )  # fmt: skip
    async with host:
        readiness = await host.wait_ready()
        # Its handshake is as long; what counts is that it was tried.
        assert "s" in readiness.failed and log.count("initialize") == 1
        assert "10000 bytes" in readiness.failed["s"] or "max_message" in readiness.failed["s"]


async def test_f9_4_no_revision_in_common_is_an_error_that_names_both_lists(tmp_path: Path) -> None:
    """F9.4: -32022 with a list that has none of ours → typed error naming both lists, no `initialize`."""
    host, log = scripted(tmp_path, era="modern", on_probe="unsupported:2027-01-01,2027-06-01")
    async with host:
        await host.wait_ready()
        error = host.status()["s"].last_error
        assert isinstance(error, StartError)
        for revision in ("2027-01-01", "2027-06-01", "2026-07-28", *HANDSHAKE_REVISIONS):
            assert revision in str(error)
    assert log.methods() == ["server/discover"] and log.violations() == []


async def test_f9_4_a_mutual_revision_is_used(tmp_path: Path) -> None:
    """F9.4: -32022 that lists a revision of the handshake → that one."""
    host, log = scripted(tmp_path, on_probe="unsupported:2024-11-05,2025-06-18", revision="2025-06-18")
    async with host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].revision == "2025-06-18"
    assert log.violations() == []


@pytest.mark.parametrize("code", [-32020, -32021])
async def test_f9_4_a_modern_error_code_means_modern(tmp_path: Path, code: int) -> None:
    """Rule of class 9: a modern error code is a modern answer."""
    host, log = scripted(tmp_path, era="modern", on_probe=[f"error:{code}", "ok"])
    async with host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].era == "modern"
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    assert log.count("initialize") == 0 and log.violations() == []


async def test_f9_5_a_bridge_that_answers_an_error_and_closes_gets_a_new_process(
    remembering: Remembering,
) -> None:
    """F9.5: -32000 to the probe, then the end → a new connection, `initialize`, ready."""
    heard, era, _ = await remembering.connect(on_probe="error_then_exit:-32000")
    # The dying process may still have read an `initialize` that nobody answers.
    assert heard[-4:] in (PROBED, ["initialize", *SHAKEN]) and era == "handshake"
    assert len(remembering.log.starts()) == 2
    heard, _, _ = await remembering.connect(on_probe="error_then_exit:-32000")
    assert heard == SHAKEN and len(remembering.log.starts()) == 3


async def test_a_modern_server_that_is_slow_to_start_is_still_found_to_be_modern(
    remembering: Remembering,
) -> None:
    """It reads nothing for longer than the probe limit, then both messages at once."""
    async with remembering.host(era="modern", start_delay=0.8) as host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].era == "modern"
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    # `initialize` went out while nobody could know better; nothing of the handshake follows it.
    wrong = [v for v in remembering.log.violations() if "(initialize)" not in v]
    assert wrong == [] and "notifications/initialized" not in remembering.log.methods()
    heard, era, _ = await remembering.connect(era="modern")
    assert heard[0] == "server/discover" and "initialize" not in heard and era == "modern"


@pytest.mark.parametrize("answer", ["slow:0.6", "silent"])
async def test_a_modern_server_that_is_slow_to_answer_the_probe(tmp_path: Path, answer: str) -> None:
    """It refuses `initialize` with a modern code meanwhile: asked once more, and modern."""
    host, log = scripted(tmp_path, era="modern", on_probe=[answer, "ok"], bounds=PROBE)
    async with host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].era == "modern"
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert sizes_of(host) == EMPTY
    assert "notifications/initialized" not in log.methods()
    assert [v for v in log.violations() if "(initialize)" not in v] == []


@pytest.mark.parametrize("answer", ["slow:0.6", "silent"])
async def test_a_server_that_shakes_hands_on_a_revision_without_a_handshake_is_modern(
    tmp_path: Path, answer: str
) -> None:
    """Once it was slow to answer the probe: it is asked again, and not told that there is nothing in common."""
    host, log = scripted(tmp_path, era="dual", revision="2026-07-28", on_probe=[answer, "ok"], bounds=PROBE)
    async with host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].era == "modern"
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    assert "notifications/initialized" not in log.methods() and log.violations() == []


async def test_a_late_modern_error_to_the_probe_counts_where_the_handshake_cannot_be_read(
    tmp_path: Path,
) -> None:
    host, log = scripted(
        tmp_path,
        era="modern",
        start_delay=0.8,
        on_probe="error:-32021",
        on_initialize="malformed:string",
        bounds=PROBE,
    )
    async with host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].era == "modern"
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    assert "notifications/initialized" not in log.methods()


async def test_a_dual_server_that_answers_the_probe_late_stays_with_the_handshake_for_this_process(
    remembering: Remembering,
) -> None:
    """Eras are not mixed within one process; the next start knows better."""
    async with remembering.host(era="dual", on_probe="slow:0.5", on_initialize="slow:0.5") as host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].era == "handshake"
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    assert remembering.log.violations() == []
    heard, era, _ = await remembering.connect(era="dual")
    assert era == "modern" and "initialize" not in heard


async def test_f8_7_a_log_line_and_a_ping_before_the_answer_to_initialize(tmp_path: Path) -> None:
    """F8.7: the ping is answered, the log delivered, the connect succeeds."""
    lines: list[Any] = []
    host, log = scripted(
        tmp_path, on_initialize="log_and_ping_first",
        handlers=Handlers(on_log=lambda server, line: lines.append(line.data)),
    )  # fmt: skip
    async with host:
        assert (await host.wait_ready()).ready == ("s",)
        await turns(10)
        assert lines == ["starting"]
    assert log.violations() == []


# What is remembered


async def test_only_an_era_that_worked_is_remembered(remembering: Remembering) -> None:
    remembering.write(on_probe="error", on_initialize="error:-32603")
    async with remembering.host(on_initialize="error:-32603") as host:
        assert (await host.wait_ready()).ready == ()
    heard, _, _ = await remembering.connect()
    assert heard == PROBED


async def test_f9_6_remembered_as_legacy_and_now_modern_only(remembering: Remembering) -> None:
    """F9.6: `initialize` is refused → probed again once, ready, remembered anew."""
    heard, era, _ = await remembering.connect()
    assert (heard, era) == (PROBED, "handshake")
    async with remembering.host(era="modern") as host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].era == "modern"
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    assert remembering.log.methods().count("server/discover") == 2
    assert [v for v in remembering.log.violations() if "(initialize)" not in v] == []
    async with remembering.host(era="modern") as host:
        await host.wait_ready()
        assert host.status()["s"].era == "modern"
    assert remembering.log.count("initialize") == 2
    assert len(remembering.log.starts()) == 3


@pytest.mark.parametrize("now", ["error:-32601", "exit:1", "exit_on_next:1"])
async def test_f9_6_remembered_as_modern_and_now_legacy_only(remembering: Remembering, now: str) -> None:
    """F9.6, the other direction: whatever the old server makes of the probe."""
    _, era, _ = await remembering.connect(era="modern")
    assert era == "modern"
    heard, era, _ = await remembering.connect(
        era="handshake", on_probe=now, bounds=Bounds(probe=0.3, connect=2)
    )
    assert (heard, era) == (PROBED, "handshake")
    heard, era, _ = await remembering.connect(era="handshake", on_probe=now)
    assert (heard, era) == (SHAKEN, "handshake")


async def test_f9_6_remembered_as_legacy_and_refused_in_both_ways(remembering: Remembering) -> None:
    """F9.6: probed again once, not for ever."""
    await remembering.connect()
    async with remembering.host(on_initialize="error:-32603") as host:
        readiness = await host.wait_ready()
        assert "refused" in readiness.failed["s"]
    assert remembering.log.count("server/discover") == 2 and remembering.log.count("initialize") == 2


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_configured_era_is_not_probed_and_nothing_else_is_tried(tmp_path: Path, era: str) -> None:
    protocol = "handshake" if era == "handshake" else "2026-07-28"
    host, log = scripted(tmp_path, era=era, protocol=protocol)
    async with host:
        assert (await host.wait_ready()).ready == ("s",)
    assert ("initialize" in log.methods(), "server/discover" in log.methods()) == (
        era == "handshake", era == "modern",
    )  # fmt: skip
    assert log.violations() == []
    other = tmp_path / "other"
    other.mkdir()
    wrong, heard = scripted(other, era="modern" if era == "handshake" else "handshake", protocol=protocol)
    async with wrong:
        assert (await wrong.wait_ready()).ready == ()
    assert len(heard.methods()) == 1 and len(heard.starts()) == 1


async def test_two_hosts_at_once_on_one_state_folder_do_not_disturb_each_other(
    remembering: Remembering,
) -> None:
    async with remembering.host() as one, remembering.host() as two:
        assert (await one.wait_ready()).ready == (await two.wait_ready()).ready == ("s",)
    heard, _, _ = await remembering.connect()
    assert heard == SHAKEN


# Revisions of the handshake


@pytest.mark.parametrize("revision", HANDSHAKE_REVISIONS)
async def test_every_revision_of_the_handshake_is_spoken(tmp_path: Path, revision: str) -> None:
    host, log = scripted(tmp_path, revision=revision)
    async with host:
        assert (await host.wait_ready()).ready == ("s",)
        assert host.status()["s"].revision == revision
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    assert log.violations() == []


async def test_a_revision_that_nobody_knows_is_an_error_that_names_it(tmp_path: Path) -> None:
    host, _ = scripted(tmp_path, revision="2031-01-01")
    async with host:
        readiness = await host.wait_ready()
        assert "2031-01-01" in readiness.failed["s"] and "2025-11-25" in readiness.failed["s"]


# A modern conversation


async def everything(host: AsyncHost) -> None:
    """Every method the door has."""
    s = host.server("s")
    await s.tools()
    await s.resources()
    await s.resource_templates()
    await s.prompts()
    await s.call("echo", {"text": "x"})
    await s.call("progress", {"count": 2, "interval": 0.001}, on_progress=lambda *_: None)
    await s.read_resource("res://0")
    await s.get_prompt("p0", {"x": "1"})
    await s.complete("x", "a", prompt="p0")
    await s.subscribe("res://0")
    await s.set_log_level("warning")
    await s.call("touch", {"uri": "res://0"})
    await s.ping()
    await s.unsubscribe("res://0")
    with pytest.raises(TimeoutError):
        await s.call("never", timeout=0.05)


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_every_method_of_the_door_speaks_the_era_of_its_server(tmp_path: Path, era: str) -> None:
    """Rule of class 9: messages and metadata of one era are never sent in the other; strict servers agree."""
    updated: list[str] = []
    host, log = scripted(
        tmp_path, era=era, strict=True, resources=2, templates=1, prompts=1,
        handlers=Handlers(
            elicit=lambda server, question: ElicitResult("decline"), roots=[],
            on_resource_updated=lambda server, uri: updated.append(uri),
        ),
    )  # fmt: skip
    async with host:
        await host.wait_ready()
        await everything(host)
        assert updated == ["res://0"]
        assert sizes_of(host) == EMPTY
    assert log.violations() == []


@on_running_clock
async def test_f9_7_an_hour_idle_on_a_modern_server_sends_nothing(tmp_path: Path) -> None:
    """F9.7: no ping, no logging/setLevel, nothing at all."""
    host, log = scripted(tmp_path, era="modern", resources=1)
    async with host:
        await host.wait_ready()
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        await log.seen("received", method="subscriptions/listen")
        before = log.methods()
        await pass_time(3600, step=5)
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert log.methods() == [*before, "tools/call"]
        assert host.status()["s"].generation == 1
    assert not {"ping", "logging/setLevel", "initialize", "notifications/initialized"} & set(log.methods())
    assert log.violations() == []


@on_running_clock
async def test_an_hour_idle_on_a_handshake_server_sends_nothing_either(tmp_path: Path) -> None:
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        before = log.methods()
        await pass_time(3600, step=5)
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert log.methods() == [*before, "tools/call"]


# The listen stream


def test_f9_8_the_waits_grow_on_rapid_ends_and_start_anew_after_a_long_life() -> None:
    """F9.8: from 0.5 s to 15 s; reset after 30 s of life."""
    waits: list[float] = []
    wait: float | None = None
    for _ in range(8):
        wait = reopen_wait(wait, 0.0)
        waits.append(wait)
    assert waits == [0.5, 1, 2, 4, 8, 15, 15, 15]
    assert reopen_wait(15, 29.9) == 15 and reopen_wait(15, 30) == 0.5 and reopen_wait(None, 0) == 0.5


@on_running_clock
async def test_f9_8_a_stream_that_ends_at_once_is_reopened_in_growing_steps(tmp_path: Path) -> None:
    """F9.8: the server ends it at once each time; calls go on meanwhile."""
    host, log = scripted(tmp_path, era="modern", listen="end_at_once")
    async with host:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await host.wait_ready()
        for count, wait in enumerate((0.5, 1, 2, 4, 8, 15, 15), start=1):
            await log.seen("answered", count=count, method="subscriptions/listen")
            await ended(host)
            advance(wait / 2)
            await turns(10)
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
            # Real time passes too, on a busy machine more than half a second.
            assert log.count("subscriptions/listen") == count or loop.time() >= began + wait
            began = loop.time()
            advance(wait / 2 + 0.1)
        await log.seen("received", count=8, method="subscriptions/listen")
    assert log.violations() == []


async def ended(host: AsyncHost) -> None:
    """Wait until the listen stream is not open, and its listener sleeps."""
    while len(session_of(host)):
        await asyncio.sleep(0.001)
    await turns(10)


@on_running_clock
async def test_f9_8_a_stream_that_ends_every_minute_is_reopened_each_time(tmp_path: Path) -> None:
    """F9.8: after 60 s of life the wait is the first one again; what may have been missed is listed anew."""
    host, log = scripted(tmp_path, era="modern", control=True)
    async with host:
        await host.wait_ready()
        for count in range(1, 5):
            await log.seen("received", count=count, method="subscriptions/listen")
            while not session_of(host)._pending or not acknowledged(host):
                await asyncio.sleep(0.001)
            if count > 1:
                await log.seen("received", count=count, method="tools/list")
            await pass_time(60, step=10)
            assert log.count("subscriptions/listen") == count
            log.control("end_subscriptions")
            await ended(host)
            await pass_time(0.6, step=0.1)
        await log.seen("received", count=5, method="subscriptions/listen")
    assert log.violations() == []


def acknowledged(host: AsyncHost) -> bool:
    life = host._servers["s"].life
    assert life is not None
    return all(
        listener._acknowledged and listener._acknowledged.done() for listener, _ in life._listeners.values()
    )


@on_running_clock
async def test_f9_8_a_stream_that_the_server_cancels_is_reopened_and_the_gap_is_closed(
    tmp_path: Path,
) -> None:
    """F9.8: it may end by a cancel as well as by an answer; a change told in between must not be lost."""
    host, log = scripted(tmp_path, era="modern", control=True)
    async with host:
        await host.wait_ready()
        opened = await log.seen("received", method="subscriptions/listen")
        while not acknowledged(host):
            await asyncio.sleep(0.001)
        log.control("set", tools=1)
        log.control("send", message={"jsonrpc": "2.0", "method": "notifications/cancelled",
                                     "params": {"requestId": opened["id"]}})  # fmt: skip
        await ended(host)
        advance(0.6)
        await log.seen("received", count=2, method="subscriptions/listen")
        await log.seen("received", count=2, method="tools/list")
        await log.seen("answered", count=2, method="tools/list")
        while "s__t0" not in [tool.name for tool in await host.tools()]:
            await asyncio.sleep(0.001)


@on_running_clock
async def test_f9_8_the_request_limit_holds_for_the_acknowledgement_only(tmp_path: Path) -> None:
    """F9.8: an open stream is not a call that hangs; one that is never acknowledged is."""
    host, log = scripted(tmp_path, era="modern", listen=["silent", "ok"], bounds=Bounds(connect=20))
    async with host:
        await host.wait_ready()
        first = await log.seen("received", method="subscriptions/listen")
        await pass_time(19, step=1)
        assert log.count("subscriptions/listen") == 1
        await pass_time(2, step=0.1)
        await log.seen("cancelled", request_id=first["id"])
        await log.seen("received", count=2, method="subscriptions/listen")
        # What may have been missed is listed anew; that is no part of this.
        await log.seen("answered", count=2, method="tools/list")
        while len(session_of(host)) != 1 or not acknowledged(host):
            await asyncio.sleep(0.001)
        await pass_time(5000, step=10)
        assert log.count("subscriptions/listen") == 2 and len(log.entries("cancelled")) == 1


async def test_f9_8_a_grant_smaller_than_the_filter_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F9.8: what the server will not tell of is said."""
    host, log = scripted(tmp_path, era="modern", grant={}, prompts=1)
    with caplog.at_level(logging.WARNING, "moorings"):
        async with host:
            await host.wait_ready()
            await log.seen("received", method="subscriptions/listen")
            while not caplog.records:
                await asyncio.sleep(0.001)
    assert "will not tell of" in caplog.text
    assert "toolsListChanged" in caplog.text and "promptsListChanged" in caplog.text


async def test_a_modern_server_without_subscriptions_is_left_in_peace(tmp_path: Path) -> None:
    host, log = scripted(tmp_path, era="modern", listen="error:-32601")
    async with host:
        await host.wait_ready()
        await log.seen("answered", method="subscriptions/listen")
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        await turns(20)
        assert session_of(host).sizes()["pending"] == 0
    assert log.count("subscriptions/listen") == 1


# Questions inside answers


@pytest.mark.parametrize(("count", "state"), [(1, True), (3, True), (0, True), (1, False)])
async def test_f9_10_three_rounds_echo_the_state_byte_for_byte(
    tmp_path: Path, count: int, state: bool
) -> None:
    """F9.10: `input_required` three times over → state echoed byte for byte, a new id each time."""
    asked: list[str] = []

    async def person(server: str, question: Any) -> ElicitResult:
        asked.append(question.message)
        return ElicitResult("accept", {"colour": f"c{len(asked)}"})

    host, log = scripted(tmp_path, era="modern", journal_raw=True, handlers=Handlers(elicit=person))
    rounds = 3 if state else 1
    async with host:
        arguments = {"rounds": rounds, "count": count, "requests": bool(count), "state": state}
        result = await host.call("s__ask", arguments)
        assert len(asked) == rounds * count
        assert all(f"c{n}" in result.text for n in range(1, rounds * count + 1))
        legs = log.entries("received", method="tools/call")
        assert len(legs) == rounds + 1 and len({leg["id"] for leg in legs}) == rounds + 1
        assert all(leg["params"]["arguments"] == arguments for leg in legs)
        assert all("_meta" in leg["params"] for leg in legs)
        sent = [entry["sent"] for entry in log.entries("state") if "sent" in entry]
        echoed = [entry["echoed"] for entry in log.entries("state") if "echoed" in entry]
        assert sent == echoed and len(sent) == (rounds if state else 0)
        assert [("requestState" in leg["params"]) for leg in legs] == [False, *([state] * rounds)]
        assert [("inputResponses" in leg["params"]) for leg in legs] == [False, *([bool(count)] * rounds)]
        assert sizes_of(host) == EMPTY
    assert log.violations() == []


async def test_f9_10_rounds_are_bounded(tmp_path: Path) -> None:
    """F9.10: a server that asks for ever: so many rounds, then a typed end; nobody is asked in vain."""
    asked: list[object] = []

    def person(server: str, question: object) -> ElicitResult:
        asked.append(question)
        return ElicitResult("decline")

    host, log = scripted(
        tmp_path, era="modern", handlers=Handlers(elicit=person), bounds=Bounds(max_rounds=2)
    )
    async with host:
        with pytest.raises(AmbiguousDelivery, match="2 rounds"):
            await host.call("s__ask", {"rounds": 99})
        assert log.calls("ask") == 3 and len(asked) == 2
        assert sizes_of(host) == EMPTY
    assert Bounds().max_rounds == 10 and log.violations() == []


async def test_f9_10_a_server_that_only_postpones_is_asked_at_a_pace_and_within_the_limit(
    tmp_path: Path,
) -> None:
    """F9.10: bounded in rounds, pace and time: state without questions is a wait of the server."""
    host, log = scripted(tmp_path, era="modern", bounds=Bounds(max_rounds=1000))
    async with host:
        await host.wait_ready()
        with pytest.raises(TimeoutError):
            await host.call("s__ask", {"rounds": 999, "requests": False}, timeout=0.6)
        assert 3 <= log.calls("ask") <= 12
        assert sizes_of(host) == EMPTY


async def test_f9_10_a_question_that_was_not_declared_ends_the_call(tmp_path: Path) -> None:
    """A server may only ask what the client declared; nothing is invented in its place."""
    host, log = scripted(tmp_path, era="modern")
    async with host:
        with pytest.raises(AmbiguousDelivery, match="did not declare"):
            await host.call("s__ask", {"method": "sampling/createMessage"})
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    assert log.calls("ask") == 1


@pytest.mark.parametrize("value", ["surprise", "", "input_required ", "COMPLETE"])
async def test_f9_11_an_unknown_result_type_fails_that_call_as_an_invalid_answer(
    tmp_path: Path, value: str
) -> None:
    """F9.11: it ran, and what came of it cannot be read."""
    host, log = scripted(tmp_path, era="modern")
    async with host:
        with pytest.raises(AmbiguousDelivery, match="invalid answer") as caught:
            await host.call("s__unknown_result_type", {"value": value})
        assert caught.value.sent and caught.value.tool == "unknown_result_type"
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert log.calls("unknown_result_type") == 1


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_f9_11_an_absent_result_type_means_complete_and_a_handshake_server_may_say_anything(
    tmp_path: Path, era: str
) -> None:
    """F9.11: absent → complete; where the era has no resultType the word means nothing."""
    host, log = scripted(tmp_path, era=era)
    async with host:
        await host.wait_ready()
        received = log.count("tools/call")
        plain = asyncio.ensure_future(host.call_raw("s", "malformed", {"shape": "no_jsonrpc"}))
        assert (await plain).content == []
        if era == "handshake":
            assert (await host.call("s__unknown_result_type")).content == []
        assert log.count("tools/call") == received + (2 if era == "handshake" else 1)


async def test_a_method_of_the_other_era_is_not_sent(tmp_path: Path) -> None:
    """The door refuses what the era does not have, before anything leaves."""
    for era, method in (("modern", "logging/setLevel"), ("modern", "ping"), ("handshake", "server/discover")):
        folder = tmp_path / f"{era}-{method.replace('/', '-')}"
        folder.mkdir()
        host, log = scripted(folder, era=era)
        async with host:
            await host.wait_ready()
            before = log.count(method)
            with pytest.raises(NotSent, match="does not exist in revision"):
                await host.request("s", method)
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
            assert log.count(method) == before
        assert log.violations() == []
