"""Server-sent events: bytes of a ``text/event-stream`` in, events out, for any chunking, in linear time.

An event over the cap costs that one message, as a frame does on stdio (``framing``); there is no cap for the stream,
which may live for weeks. What no event stream would hold is counted, so that a page of HTML or plain text that calls
itself one can be told at once. Sources: WHATWG HTML, server-sent events; MCP ``basic/transports``, all revisions that
have HTTP.
"""

from __future__ import annotations

import msgspec

from .framing import Ends, Oversize, find_ends

__all__ = ["EventParser", "OversizeEvent", "SseEvent"]

MAX_FIELD = 8192
"""Bytes of a line that is not data: an id has to fit into a header. A longer one is passed over, and counted as odd."""

ODD_KEPT = 1200
"""Bytes kept of the first odd lines: enough for the 300 characters that errors show."""

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A
_SPACE = 0x20
_RETRY_DIGITS = 12
"""More digits than any time to wait has, in milliseconds."""

# What the line that has begun is, once this is known.
_NEW, _DATA, _COMMENT, _OTHER = range(4)


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event."""

    data: bytes | bytearray
    """Its data, lines joined by LF, not touched again. Empty for one that only primes: a sign of life, maybe an id."""
    event: str = "message"
    """Its kind."""
    id: str | None = None
    """The id that it carried itself; empty to forget the last one, None for none."""
    retry: int | None = None
    """Milliseconds to wait before the stream is opened again, where it says so."""


class OversizeEvent(Oversize, frozen=True):
    """An event whose data was over the cap and was thrown away. ``id`` is that of the JSON-RPC message in it."""

    event: str = "message"
    """Its kind."""
    event_id: str | None = None
    """The id of the event itself, as in ``SseEvent.id``."""


class EventParser:
    """The reading of one stream. Made for each response; holds at most the cap and a little, whatever comes."""

    __slots__ = (
        "_after_cr",
        "_begun",
        "_data",
        "_data_lines",
        "_ends",
        "_event",
        "_id",
        "_kind",
        "_line",
        "_retry",
        "_start",
        "cap",
        "comments",
        "events",
        "fields",
        "last_event_id",
        "odd_lines",
        "odd_text",
        "retry",
    )

    def __init__(self, cap: int, last_event_id: str = "") -> None:
        """``cap``: bytes of data one event may have. ``last_event_id``: of the stream that this one goes on from."""
        self.cap = cap
        self.last_event_id = last_event_id
        """The id to go on from if the stream breaks; empty for none."""
        self.retry: int | None = None
        """Milliseconds to wait before the stream is opened again; None while it has not said."""
        self.comments = 0
        """Comment lines so far: signs of life."""
        self.events = 0
        """Events so far, oversize ones included."""
        self.fields = 0
        """Lines with a known field so far."""
        self.odd_lines = 0
        """Lines so far that no event stream has: without a known field, or longer than one."""
        self.odd_text = b""
        """The beginning of the first of them."""
        self._start: bytes | None = b""
        """The first bytes, until it is known whether they are a byte-order mark; then None."""
        self._after_cr = False
        """A CR ended the last chunk: a LF that begins the next one belongs to it."""
        self._kind = _NEW
        """What the line is whose end has not come."""
        self._line = bytearray()
        """Its bytes, unless it is data or a comment."""
        self._begun = False
        self._data: bytes | bytearray = b""
        self._data_lines = 0
        self._ends: Ends | None = None
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None

    @property
    def looks_like_sse(self) -> bool:
        """False once there are lines, and none of them is one of an event stream."""
        return not self.odd_lines or self.fields + self.comments > 0

    @property
    def drops_answer(self) -> bool:
        """Whether an event is over the cap and being thrown away, and began as an answer: no other will come."""
        if self._ends is None:
            return False
        head = self._ends.head[:1024]
        return (b'"result"' in head or b'"error"' in head) and not find_ends(head, b"")[1]

    @property
    def buffered(self) -> int:
        """Bytes held of an event that is not complete."""
        held = len(self._data) + len(self._line)
        return held + (len(self._ends.head) + len(self._ends.tail) if self._ends else 0)

    def feed(self, chunk: bytes) -> list[SseEvent | OversizeEvent]:
        """Take the next bytes; return the events that are complete with them, in order."""
        if self._start is not None:
            chunk = self._after_mark(chunk)
        events: list[SseEvent | OversizeEvent] = []
        size = len(chunk)
        position = 0
        if self._after_cr and size:
            self._after_cr = False
            position = 1 if chunk[0] == _LF else 0
        # Each of the two is looked for once over its whole way, however many lines the other one ends.
        cr = lf = -1
        while position < size:
            if lf < position:
                lf = chunk.find(b"\n", position)
                lf = size if lf < 0 else lf
            if cr < position:
                cr = chunk.find(b"\r", position)
                cr = size if cr < 0 else cr
            end = min(cr, lf)
            if end == size:
                self._part(chunk[position:] if position else chunk)
                break
            if end > position or self._begun:
                self._end_line(chunk[position:end])
            elif (event := self._end_event()) is not None:
                events.append(event)
            position = end + 1
            if end == cr:
                if position == size:
                    self._after_cr = True
                elif lf == position:
                    position += 1
        return events

    def finish(self) -> bool:
        """The stream is over. What is not complete is dropped, as the standard says; True if anything was."""
        if self._start:
            self._part(self._start)
        self._start = None
        cut = self._begun or self._data_lines > 0
        if self._begun and self._kind in (_NEW, _OTHER) and not _known(bytes(self._line)):
            self._odd(bytes(self._line))
        self._begun, self._kind = False, _NEW
        self._line.clear()
        self._data, self._data_lines, self._ends = b"", 0, None
        return cut

    # Lines

    def _after_mark(self, chunk: bytes) -> bytes:
        """The first bytes without a byte-order mark; nothing while it may still become one."""
        assert self._start is not None
        chunk = self._start + chunk if self._start else chunk
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._start = chunk
            return b""
        self._start = None
        return chunk.removeprefix(_BOM)

    def _part(self, part: bytes) -> None:
        """Take a part of a line whose end has not come."""
        self._begun = True
        if self._kind == _DATA:
            self._add(part)
        elif self._kind == _OTHER:
            self._keep(part)
        elif self._kind == _NEW:
            line = bytes(self._line) + part if self._line else part
            if line[0] == 0x3A:  # ":"
                self._kind = _COMMENT
                self._line.clear()
            elif len(line) < 6:
                self._keep(part)
            elif line.startswith(b"data:"):
                self._kind = _DATA
                self._line.clear()
                self._add_line(line[6:] if line[5] == _SPACE else line[5:])
            else:
                self._kind = _OTHER
                self._keep(part)

    def _keep(self, part: bytes) -> None:
        # One byte more than it may have shows that it is too long.
        if (room := MAX_FIELD + 1 - len(self._line)) > 0:
            self._line += part[:room]

    def _end_line(self, part: bytes) -> None:
        """Take a line that is not empty, or the last part of one."""
        if not self._begun:
            self._whole(part)
            return
        if part:
            self._part(part)
        if self._kind == _COMMENT:
            self.comments += 1
        elif self._kind == _DATA:
            self.fields += 1
        else:
            self._whole(bytes(self._line))
            self._line.clear()
        self._begun, self._kind = False, _NEW

    def _whole(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self.fields += 1
            self._add_line(line[6:] if line[5:6] == b" " else line[5:])
            return
        if line[0] == 0x3A:
            self.comments += 1
            return
        name = _known(line)
        if not name:
            self._odd(line)
            return
        self.fields += 1
        value = line[len(name) + 1 :].removeprefix(b" ")
        if name == b"data":
            self._add_line(b"")
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        # bytes.isdigit() takes ASCII digits only.
        elif value.isdigit() and len(value) <= _RETRY_DIGITS:
            self._retry = int(value)

    def _odd(self, line: bytes) -> None:
        self.odd_lines += 1
        if len(self.odd_text) < ODD_KEPT:
            lines = (self.odd_text, line[:ODD_KEPT]) if self.odd_text else (line,)
            self.odd_text = b"\n".join(lines)[:ODD_KEPT]

    # Data

    def _add_line(self, value: bytes) -> None:
        """Begin a line of data."""
        if self._data_lines:
            self._add(b"\n")
        self._data_lines += 1
        self._add(value)

    def _add(self, part: bytes) -> None:
        if self._ends is not None:
            self._ends.add(part)
            return
        if not self._data:
            # Mostly a whole event stands in one chunk: its data is then cut out once.
            self._data = part
        else:
            if isinstance(self._data, bytes):
                self._data = bytearray(self._data)
            self._data += part
        if len(self._data) > self.cap:
            self._ends = Ends(self._data)
            self._data = b""

    def _end_event(self) -> SseEvent | OversizeEvent | None:
        """An empty line: the event that it ends, if there is one."""
        kind, id_, retry = self._event or "message", self._id, self._retry
        self._event, self._id, self._retry = "", None, None
        if retry is not None:
            self.retry = retry
        if id_ is not None:
            self.last_event_id = id_
        if not self._data_lines and id_ is None and retry is None:
            # Only a name, or nothing at all: blank lines end nothing.
            return None
        self.events += 1
        self._data_lines = 0
        if (ends := self._ends) is not None:
            self._ends = None
            return OversizeEvent(ends.size, self.cap, *find_ends(ends.head, ends.tail), kind, id_)
        data, self._data = self._data, b""
        return SseEvent(data, kind, id_, retry)


def _known(line: bytes) -> bytes:
    """The name of the field in a line, if it is one of the four; empty if not, or if the line is too long."""
    name = line.partition(b":")[0] if len(line) <= MAX_FIELD else b""
    return name if name in (b"data", b"event", b"id", b"retry") else b""
