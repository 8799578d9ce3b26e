"""What was read is kept exactly as long as its server calls it fresh (field faults 8)."""

from __future__ import annotations

import pytest

from moorings import ReadResourceResult
from moorings.server.reads import LARGEST, MOST, Reads
from moorings.wire.types import ResourceContents


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def result(text: str, ttl_ms: int | None) -> ReadResourceResult:
    return ReadResourceResult(contents=[ResourceContents(uri="a:b", text=text)], ttl_ms=ttl_ms)


@pytest.mark.parametrize("ttl", [None, 0, -1])
def test_f8_9_without_a_time_nothing_is_kept(ttl: int | None) -> None:
    reads = Reads(Clock())
    reads.put("a:b", result("x", ttl), reads.forgotten)
    assert reads.get("a:b") is None


def test_f8_9_it_is_fresh_until_its_time_is_over_or_it_changed() -> None:
    clock = Clock()
    reads = Reads(clock)
    kept = result("x", 60_000)
    reads.put("a:b", kept, reads.forgotten)
    clock.now += 59.9
    assert reads.get("a:b") is kept
    assert reads.get("a:c") is None
    clock.now += 0.1
    assert reads.get("a:b") is None
    reads.put("a:b", kept, reads.forgotten)
    reads.forget("a:b")
    assert reads.get("a:b") is None
    reads.put("a:b", kept, reads.forgotten)
    reads.forget()
    assert reads.get("a:b") is None


def test_few_and_small_ones_are_kept() -> None:
    reads = Reads(Clock())
    reads.put("big:", result("x" * (LARGEST + 1), 1000), reads.forgotten)
    assert reads.get("big:") is None
    for number in range(MOST + 1):
        reads.put(f"a:{number}", result("x", 1000), reads.forgotten)
    assert reads.get("a:0") is None
    assert reads.get("a:1") is not None
