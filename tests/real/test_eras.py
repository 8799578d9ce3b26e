"""The era matrix: one small server under six releases of the official SDK, from 2024-11-05 to 2026-07-28."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moorings import Bounds
from tests.real.held import held, held_blocking, journal, spec

pytestmark = pytest.mark.real

RealServer = Callable[..., list[str]]
TAP = Path(__file__).with_name("tap.py")

REVISIONS = {
    "1.2.1": "2024-11-05",
    "1.6.0": "2024-11-05",
    "1.9.4": "2025-03-26",
    "1.13.1": "2025-06-18",
    "1.30.0": "2025-11-25",
    "2.3.0": "2026-07-28",
}
DIE_ON_THE_PROBE = ("1.2.1", "1.6.0")
STAY_AT_EOF = ("1.6.0",)
"""Do not end when their stdin ends, and need TERM."""


def tapped(command: list[str], path: Path) -> list[str]:
    return [sys.executable, str(TAP), str(path), *command]


@pytest.mark.parametrize("version", REVISIONS)
async def test_the_right_revision_is_found_and_tools_work(
    version: str, real_server: RealServer, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    probe = 1.0 if version in DIE_ON_THE_PROBE else Bounds().probe
    bounds = Bounds(stop_eof=0.7 if version in STAY_AT_EOF else 10.0, probe=probe)
    server = spec(tapped(real_server(f"era-{version}"), said), bounds=bounds)
    forced = ["era"] if version in STAY_AT_EOF else []
    async with held({"era": server}, forced=forced) as host:
        status = host.status()["era"]
        assert status.revision == REVISIONS[version]
        assert status.era == ("modern" if version == "2.3.0" else "handshake")
        assert [tool.name for tool in await host.tools()] == ["era__add", "era__echo"]
        assert (await host.call("era__echo", {"text": "ahoy ⚓"})).text == "ahoy ⚓"
        assert (await host.call("era__add", {"a": 40, "b": 2})).text == "42"
    starts = [pid for pid, what in journal(said) if what == "started"]
    assert len(starts) == (2 if version in DIE_ON_THE_PROBE else 1)
    methods = [what for _, what in journal(said) if '"method"' in what]
    assert '"server/discover"' in methods[0]
    # What one era says is never said in the other.
    assert any('"initialize"' in what for what in methods) == (version != "2.3.0")
    calls = [what for what in methods if '"tools/call"' in what]
    assert len(calls) == 2
    assert all(("io.modelcontextprotocol/" in what) == (version == "2.3.0") for what in calls)


@pytest.mark.parametrize("version", DIE_ON_THE_PROBE)
def test_what_died_on_the_probe_is_up_on_its_second_start_and_is_not_probed_again(
    version: str, real_server: RealServer, tmp_path: Path
) -> None:
    """F9.1 with real servers. They take the probe for a broken stream, and exit when the next line comes."""
    said, state = tmp_path / "said", tmp_path / "state"
    command = tapped(real_server(f"era-{version}"), said)
    forced = ["era"] if version in STAY_AT_EOF else []

    server = spec(command, bounds=Bounds(stop_eof=0.7))
    with held_blocking({"era": server}, forced=forced, state_dir=state) as host:
        status = host.status()["era"]
        # Two processes, but one start of the server: the respawn is part of it.
        assert status.generation == 1
        assert "probe" in status.steps
    first = journal(said)
    died, lived = [pid for pid, what in first if what == "started"]
    assert any('"server/discover"' in what for pid, what in first if pid == died)
    assert not any('"server/discover"' in what for pid, what in first if pid == lived)
    said.unlink()

    # A wait for the probe would be seen: it would take longer than all the rest may.
    server = spec(command, bounds=Bounds(stop_eof=0.7, probe=30.0))
    began = time.monotonic()
    with held_blocking({"era": server}, forced=forced, state_dir=state) as host:
        assert time.monotonic() - began < 20.0
        assert "probe" not in host.status()["era"].steps
        assert host.call("era__add", {"a": 1, "b": 2}).text == "3"
    second = journal(said)
    assert [what for _, what in second if what == "started"] == ["started"]
    assert not any('"server/discover"' in what for _, what in second)
    assert '"initialize"' in second[1][1]


@pytest.mark.parametrize("version", ["1.9.4", "2.3.0"])
async def test_what_is_remembered_spares_the_next_host_the_search(
    version: str, real_server: RealServer, tmp_path: Path
) -> None:
    said, state = tmp_path / "said", tmp_path / "state"
    server = spec(tapped(real_server(f"era-{version}"), said))
    for start in ("first", "second"):
        async with held({"era": server}, state_dir=state) as host:
            assert host.status()["era"].revision == REVISIONS[version]
        first_message = journal(said)[1][1]
        probed = start == "first" or version == "2.3.0"
        assert ('"server/discover"' in first_message) == probed
        assert ('"initialize"' in first_message) == (not probed)
        said.unlink()
