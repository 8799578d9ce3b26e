"""The writing end of a pipe: order, bursts that are written together, frames taken back, a reader that stops."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from moorings.transport import descriptors
from moorings.transport.base import OutboxFull, Outgoing
from moorings.transport.pipes import FdWriter


class End:
    """A pipe whose writing end is ours, and what came out of it."""

    def __init__(self, cap: int = 1 << 20) -> None:
        self.read_fd, write_fd = descriptors.pipe()
        self.broken = 0
        self.writer = FdWriter(asyncio.get_running_loop(), write_fd, cap, self._broke)

    def _broke(self) -> None:
        self.broken += 1

    def read(self, size: int = 1 << 20) -> bytes:
        os.set_blocking(self.read_fd, False)
        try:
            return os.read(self.read_fd, size)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.writer.close()
        if self.read_fd >= 0:
            descriptors.close(self.read_fd)
            self.read_fd = -1


async def turn() -> None:
    await asyncio.sleep(0)


async def test_a_lone_frame_leaves_at_once() -> None:
    end = End()
    outgoing = end.writer.send(b"one\n")
    assert outgoing.finished and end.read() == b"one\n"
    end.close()


async def test_the_frames_of_one_turn_leave_together_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """While answers come in bursts, one system call takes what a turn has brought, or each good part of it: so the
    server has work while the turn goes on."""
    calls: list[int] = []
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: calls.append(len(pieces)) or real(fd, pieces))
    end = End()
    end.writer.together = True
    sent = [end.writer.send(b"%d\n" % n) for n in range(300)]
    assert [frame.started for frame in sent] == [True] * 256 + [False] * 44
    assert end.read() == b"".join(b"%d\n" % n for n in range(256))
    await turn()
    assert all(frame.finished for frame in sent) and end.writer.waiting == 0
    assert end.read() == b"".join(b"%d\n" % n for n in range(256, 300))
    assert calls == [64, 64, 64, 64, 44]
    end.close()


async def test_a_frame_is_taken_back_before_its_turn_ends() -> None:
    """No byte of it had left: it never happened."""
    end = End()
    end.writer.together = True
    first, second, third = (end.writer.send(text) for text in (b"a\n", b"b\n", b"c\n"))
    assert end.writer.withdraw(second)
    await turn()
    assert first.finished and third.finished and not second.started
    assert not end.writer.withdraw(first)
    assert end.read() == b"a\nc\n"
    end.close()


async def test_a_frame_sent_after_a_burst_does_not_overtake_it() -> None:
    end = End()
    end.writer.together = True
    end.writer.send(b"first\n")
    end.writer.together = False
    end.writer.send(b"second\n")
    await turn()
    assert end.read() == b"first\nsecond\n"
    end.close()


@pytest.mark.parametrize("together", [False, True])
async def test_a_reader_that_stops_and_goes_on_gets_every_byte_once(together: bool) -> None:
    end = End(cap=64 << 20)
    end.writer.together = together
    frames = [bytes([65 + n % 26]) * (n * 977 % 50_000) + b"\n" for n in range(200)]
    for frame in frames:
        end.writer.send(frame)
    got = b""
    while len(got) < sum(map(len, frames)):
        got += end.read(70_000)
        await turn()
    assert got == b"".join(frames) and end.writer.waiting == 0
    end.close()


@pytest.mark.parametrize("together", [False, True])
async def test_what_waits_is_bounded(together: bool) -> None:
    end = End(cap=100_000)
    end.writer.together = together
    with pytest.raises(OutboxFull):
        for _ in range(1000):
            end.writer.send(b"x" * 1000)
    assert end.writer.waiting <= 100_000
    end.close()


async def test_a_pipe_that_breaks_in_a_burst_says_so_once() -> None:
    end = End()
    end.writer.together = True
    sent = [end.writer.send(b"x\n") for _ in range(3)]
    descriptors.close(end.read_fd)
    end.read_fd = -1
    await turn()
    assert end.broken == 1 and end.writer.closed and not any(frame.started for frame in sent)
    with pytest.raises(ConnectionError):
        end.writer.send(b"late\n")
    end.close()


async def test_closed_before_the_turn_ends_nothing_is_written() -> None:
    end = End()
    end.writer.together = True
    end.writer.send(b"x\n")
    end.writer.close()
    await turn()
    assert end.read() == b""
    end.close()


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_is_sent_taken_back_and_read_the_rest_comes_whole_and_in_order(seed: int) -> None:
    """Frames of all sizes, together and one by one, into a pipe that is read in pieces or not at all."""
    dice = random.Random(seed)
    end = End(cap=200_000)
    writer = end.writer
    kept: dict[int, tuple[bytes, Outgoing]] = {}
    came = bytearray()
    for number in range(400):
        step = dice.random()
        if step < 0.5:
            frame = b"%d:%s\n" % (number, b"x" * dice.choice([1, 50, 500, 3000, 70_000]))
            try:
                kept[number] = frame, writer.send(frame)
            except OutboxFull:
                assert writer.waiting
        elif step < 0.6 and kept:
            chosen = dice.choice(list(kept))
            outgoing = kept[chosen][1]
            started, finished = outgoing.started, outgoing.finished
            assert writer.withdraw(outgoing) is not started
            assert started or not finished
            if not started:
                del kept[chosen]
        elif step < 0.7:
            writer.together = not writer.together
        elif step < 0.85:
            came += end.read(dice.choice([1, 100, 5000, 70_000]))
        else:
            await turn()
        assert writer.waiting == sum(
            len(frame) - (len(frame) if outgoing.finished else outgoing.offset)
            for frame, outgoing in kept.values()
        )
    while writer.waiting:
        came += end.read()
        await turn()
    came += end.read()
    assert bytes(came) == b"".join(frame for frame, _ in kept.values())
    assert all(outgoing.started and outgoing.finished for _, outgoing in kept.values())
    end.close()
