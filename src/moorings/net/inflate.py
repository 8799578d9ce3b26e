"""Decompression of bodies in bounded steps (RFC 9110 §8.4.1): gzip and deflate, as bytes come.

A small body can be a thousand times as large decompressed. So nothing here makes more than ``STEP`` bytes at a time:
whoever reads counts what comes out and stops.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

__all__ = ["ACCEPTED", "STEP", "Damaged", "Inflater"]

ACCEPTED = "gzip, deflate"
STEP = 64 * 1024
"""Bytes made in one step."""


class Damaged(Exception):
    """The compressed bytes are not what they claim to be, or end too early."""


class Inflater:
    """One body, ``gzip`` (several members too) or ``deflate`` (with zlib's frame, or bare as some servers send it)."""

    def __init__(self, coding: str) -> None:
        self._gzip = coding in ("gzip", "x-gzip")
        self._engine: zlib._Decompress | None = None
        self._begun = False
        self._first = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bytes that come out, in pieces of at most ``STEP``.

        Raises:
            Damaged: while iterating.
        """
        if not data:
            return
        self._begun = True
        while data:
            engine = self._engine
            if engine is None:
                if not self._gzip and len(self._first + data) < 2:
                    self._first += data
                    return
                data, self._first = self._first + data, b""
                engine = self._engine = self._start(data)
            try:
                piece = engine.decompress(data, STEP)
            except zlib.error:
                raise Damaged("its compression is damaged") from None
            data = engine.unconsumed_tail
            if piece:
                yield piece
            if engine.eof:
                data = engine.unused_data
                if not self._gzip or not data.startswith(b"\x1f"):
                    # Padding behind the end is thrown away, as everybody does.
                    return
                self._engine = None
            elif not data and len(piece) == STEP:
                # Full to the brim: there may be more inside the engine.
                yield from self._rest(engine)

    def _rest(self, engine: zlib._Decompress) -> Iterator[bytes]:
        while True:
            try:
                piece = engine.decompress(b"", STEP)
            except zlib.error:
                raise Damaged("its compression is damaged") from None
            if not piece:
                return
            yield piece

    def _start(self, data: bytes) -> zlib._Decompress:
        if self._gzip:
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        framed = data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
        return zlib.decompressobj(zlib.MAX_WBITS if framed else -zlib.MAX_WBITS)

    def end(self) -> None:
        """
        Raises:
            Damaged: the body ended in the middle. One without any byte is whole.
        """
        if self._begun and (self._engine is None or not self._engine.eof):
            raise Damaged("its compression ends too early")
