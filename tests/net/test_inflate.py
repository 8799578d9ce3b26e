"""Decompression in bounded steps, for any cutting of the bytes."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.net.inflate import STEP, Damaged, Inflater


def bare(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-15)
    return engine.compress(data) + engine.flush()


CODINGS = {"gzip": gzip.compress, "deflate": zlib.compress, "deflate-bare": bare}


def inflated(coding: str, pieces: list[bytes]) -> bytes:
    inflater = Inflater(coding)
    out = [part for piece in pieces for part in inflater.feed(piece)]
    inflater.end()
    assert all(0 < len(part) <= STEP for part in out)
    return b"".join(out)


@given(st.sampled_from(sorted(CODINGS)), st.binary(max_size=3000), st.integers(1, 100), st.integers(0, 200))
def test_any_body_in_any_pieces_comes_out_whole(kind: str, data: bytes, size: int, repeat: int) -> None:
    data = data * repeat
    packed = CODINGS[kind](data)
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    assert inflated(kind.partition("-")[0], pieces) == data


@given(st.integers(1, 40))
def test_gzip_may_have_several_members_and_padding(size: int) -> None:
    packed = gzip.compress(b"one") + gzip.compress(b"two" * 50_000) + b"\0" * 10
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    assert inflated("gzip", pieces) == b"one" + b"two" * 50_000


@pytest.mark.parametrize("kind", sorted(CODINGS))
def test_what_ends_too_early_is_damaged(kind: str) -> None:
    packed = CODINGS[kind](bytes(range(256)) * 40)
    with pytest.raises(Damaged):
        inflated(kind.partition("-")[0], [packed[: len(packed) // 2]])


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_is_not_compressed_is_damaged(coding: str) -> None:
    with pytest.raises(Damaged):
        inflated(coding, [b'{"jsonrpc": "2.0"}'])


def test_an_empty_body_is_whole() -> None:
    assert inflated("gzip", []) == inflated("deflate", [b""]) == b""


def test_a_bomb_is_taken_step_by_step() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 60_000
    steps = Inflater("gzip").feed(bomb)
    assert len(next(steps)) == STEP
