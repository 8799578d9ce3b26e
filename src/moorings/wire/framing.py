"""Newline framing of the stdio transport, for any chunking, in linear time and bounded memory.

A frame over the cap costs that one message: its bytes are thrown away as they come, only its two ends are kept, and
from them its id is read where that is certain, so that its caller can be told. Source: MCP ``basic/transports``.
"""

from __future__ import annotations

import re

import msgspec

__all__ = ["Ends", "LineFramer", "Oversize", "find_ends"]

_END = 4096
"""Bytes kept of each end of an oversize frame: room for the id, whichever end it stands at."""

_SCALAR = rb'(?:-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|"(?:[^"\\]|\\.)*"|true|false|null)'
_HEAD_MEMBER = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"\s*:\s*(' + _SCALAR + rb")\s*,")
# The tail is read backward, as its bytes reversed: from the closing brace each step is certain, where a search for the
# front of a run of members begins anew at each comma. A quote with an odd number of backslashes before it (behind it
# here) belongs to the text; nothing is ever tried twice (possessive quantifiers).
_STRING_BACK = rb'"(?:[^"]|"(?=(?:\\\\)*+\\(?!\\)))*+"'
_SCALAR_BACK = rb"(?:(?:\d++[+-]?[eE])?+(?:\d++\.)?+\d++-?|" + _STRING_BACK + rb"|eurt|eslaf|llun)"
_TAIL_MEMBER_BACK = re.compile(rb"\s*+(" + _SCALAR_BACK + rb")\s*+:\s*+(" + _STRING_BACK + rb")\s*+,")
_TAIL_END_BACK = re.compile(rb"\s*+\}")
_HEAD_NESTED = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"\s*:\s*[\[{"]')


class Oversize(msgspec.Struct, frozen=True):
    """A frame that was over the cap and was thrown away."""

    size: int
    """Its size in bytes."""
    cap: int
    """The cap it was over."""
    id: int | str | None
    """Its id, where one end shows it beyond doubt."""
    has_method: bool
    """True if it was a request or a notification."""


class Ends:
    """What is kept of a message that is thrown away as it comes: its size and its two ends."""

    __slots__ = ("head", "size", "tail")

    def __init__(self, begun: bytes | bytearray) -> None:
        self.head = bytes(begun[:_END])
        self.tail = bytes(begun[-_END:])
        self.size = len(begun)

    def add(self, part: bytes) -> None:
        """Take the next bytes."""
        self.size += len(part)
        if len(self.head) < _END:
            # A cap below the size of an end: the head goes on growing, however the message is cut.
            self.head += part[: _END - len(self.head)]
        self.tail = (self.tail + part[-_END:])[-_END:]


class LineFramer:
    """Bytes in, lines out.

    Lines come without their newline, as ``bytes``, or as a ``bytearray`` that is not touched again (a large frame is
    handed on without a copy).
    """

    __slots__ = ("_ends", "_pending", "cap")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._pending = bytearray()
        self._ends: Ends | None = None
        """The frame that is being thrown away."""

    @property
    def buffered(self) -> int:
        """Bytes held of a frame that is not complete."""
        return len(self._pending) + (len(self._ends.head) + len(self._ends.tail) if self._ends else 0)

    @property
    def unfinished(self) -> bytes:
        """What came after the last newline."""
        return bytes(self._pending)

    def feed(self, data: bytes | memoryview) -> list[bytes | bytearray | Oversize]:
        """Take the next bytes; return the frames that are complete with them, in order."""
        chunk = bytes(data) if isinstance(data, memoryview) else data
        if not self._pending and self._ends is None:
            lines = chunk.split(b"\n")
            rest = lines.pop()
            if rest:
                self._keep(rest)
            if len(chunk) <= self.cap:
                return lines  # type: ignore[return-value]  # a list of bytes is a list of frames
            return [line if len(line) <= self.cap else self._oversize_line(line) for line in lines]
        end = chunk.find(b"\n")
        if end < 0:
            self._keep(chunk)
            return []
        first = self._finish(chunk[:end])
        return [first, *self.feed(chunk[end + 1 :])]

    def _keep(self, part: bytes) -> None:
        """Hold a part of a frame whose end has not come."""
        if self._ends is not None:
            self._ends.add(part)
            return
        self._pending += part
        if len(self._pending) > self.cap:
            self._ends = Ends(self._pending)
            self._pending = bytearray()

    def _finish(self, part: bytes) -> bytes | bytearray | Oversize:
        """The frame that ends with this part."""
        self._keep(part)
        if (ends := self._ends) is not None:
            self._ends = None
            return Oversize(ends.size, self.cap, *find_ends(ends.head, ends.tail))
        line, self._pending = self._pending, bytearray()
        return line

    def _oversize_line(self, line: bytes) -> Oversize:
        id_, has_method = find_ends(line[:_END], line[-_END:])
        return Oversize(len(line), self.cap, id_, has_method)


def _tail_members(tail: bytes) -> list[tuple[bytes, bytes]]:
    """The plain members right before the brace that ends the message, in their order."""
    back = tail[::-1]
    members: list[tuple[bytes, bytes]] = []
    if end := _TAIL_END_BACK.match(back):
        position = end.end()
        while member := _TAIL_MEMBER_BACK.match(back, position):
            members.append((member[2][-2:0:-1], member[1][::-1]))
            position = member.end()
    return members[::-1]


def find_ends(head: bytes, tail: bytes) -> tuple[int | str | None, bool]:
    """The id of a message from its two ends, and whether it names a method.

    From the front, plain members are read until the first nested one; from the back, the plain members right before
    the brace that closes the whole. Both are members of the message itself and never of something inside it. There is
    no id where the ends name two, or where neither shows if it is a question (``method``) or an answer: the two
    number their ids independently, so one must not be taken for the other.
    """
    found: dict[bytes, bytes] = {}
    start = re.match(rb"\s*\{", head)
    position = start.end() if start else len(head)
    while member := _HEAD_MEMBER.match(head, position):
        if found.setdefault(member[1], member[2]) != member[2] and member[1] == b"id":
            return None, False
        position = member.end()
    if (nested := _HEAD_NESTED.match(head, position)) and nested[1] != b"id":
        found.setdefault(nested[1], b"")
    for name, value in _tail_members(tail):
        if found.setdefault(name, value) != value and name == b"id":
            return None, False
    has_method = found.get(b"method", b"null") != b"null"
    if not (has_method or b"result" in found or b"error" in found):
        return None, False
    try:
        id_ = msgspec.json.decode(found[b"id"]) if b"id" in found else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        id_ = None
    if isinstance(id_, float) and id_.is_integer():
        id_ = int(id_)
    return (id_ if isinstance(id_, int | str) and not isinstance(id_, bool) else None), has_method
