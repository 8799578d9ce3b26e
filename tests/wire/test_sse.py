"""Event streams: any chunking gives the same events, one over the cap costs itself, work and memory are bounded."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moorings.wire import sse
from moorings.wire.framing import Oversize, find_ends
from moorings.wire.sse import EventParser, OversizeEvent, SseEvent

CAP = 16 * 1024 * 1024

Event = SseEvent | OversizeEvent


def plain(event: Event) -> Event:
    if isinstance(event, OversizeEvent):
        return event
    return SseEvent(bytes(event.data), event.event, event.id, event.retry)


def events(chunks: Iterable[bytes], cap: int = CAP) -> list[Event]:
    """What a parser makes of these chunks, as plain values."""
    parser = EventParser(cap)
    return [plain(event) for chunk in chunks for event in parser.feed(chunk)]


def read(text: str | bytes, **more: Any) -> list[Event]:
    return events([text.encode() if isinstance(text, str) else text], **more)


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted({min(c, len(data)) for c in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


# --- the format


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: a\n\n", [SseEvent(b"a")]),
        ("data:a\n\n", [SseEvent(b"a")]),
        ("data:  a\n\n", [SseEvent(b" a")]),
        ("data: a\r\n\r\n", [SseEvent(b"a")]),
        ("data: a\r\r", [SseEvent(b"a")]),
        ("data: a\r\n\n", [SseEvent(b"a")]),
        ("data: a\n\r\n", [SseEvent(b"a")]),
        ("data: a\r\r\n", [SseEvent(b"a")]),
        ("\ufeffdata: a\n\n", [SseEvent(b"a")]),
        ("\ufeff\ufeffdata: a\n\n", []),
        ("data: a\ndata: b\ndata:\ndata: c\n\n", [SseEvent(b"a\nb\n\nc")]),
        ("data\ndata\n\n", [SseEvent(b"\n")]),
        ("data\ndata: a\n\n", [SseEvent(b"\na")]),
        (": a comment\ndata: a\n:\n\n", [SseEvent(b"a")]),
        ("event: endpoint\ndata: /x\n\ndata: y\n\n", [SseEvent(b"/x", "endpoint"), SseEvent(b"y")]),
        ("event\ndata: y\n\n", [SseEvent(b"y")]),
        ("event: only a name\n\ndata: y\n\n", [SseEvent(b"y")]),
        ("id: 7\ndata: a\n\n", [SseEvent(b"a", id="7")]),
        ("id: 7\nid: 8\ndata: a\n\n", [SseEvent(b"a", id="8")]),
        ("id: 7\n\n", [SseEvent(b"", id="7")]),
        ("id: e-1\nretry: 500\ndata: \n\n", [SseEvent(b"", id="e-1", retry=500)]),
        ("id\ndata: a\n\n", [SseEvent(b"a", id="")]),
        ("id: a\0b\ndata: a\n\n", [SseEvent(b"a")]),
        ("data: \n\n", [SseEvent(b"")]),
        ("retry: 3000\n\n", [SseEvent(b"", retry=3000)]),
        ("retry: 3s\nretry: -1\nretry: ٣\nretry:\nretry: 9999999999999\n\n", []),
        ("retry:  3\n\n", []),
        ("Data: a\nDATA: b\n data: c\nfoo: d\ndataa: e\n\n", []),
        ("data: a\n", []),
        ("data: a\n\ndata: b", [SseEvent(b"a")]),
        ("\n\n\r\r\n\n", []),
        ("", []),
        ("data: :x: y\n\n", [SseEvent(b":x: y")]),
        ("data: ü🌊\n\n", [SseEvent("ü🌊".encode())]),
        (b"event: \xff\nid: \xfe\ndata: \xfd\n\n", [SseEvent(b"\xfd", "\ufffd", "\ufffd")]),
    ],
)
def test_f13_4_what_a_stream_says(text: str | bytes, expected: list[Event]) -> None:
    """F13.4: line ends of each kind, several lines of data, comments, no blank after the colon, a byte-order mark."""
    data = text.encode() if isinstance(text, str) else text
    assert read(data) == expected
    assert events(data[i : i + 1] for i in range(len(data))) == expected
    for cut in range(len(data) + 1):
        assert events([data[:cut], b"", data[cut:]]) == expected


STREAM = (
    "\ufeff: hello\r\n"
    "id: 1\revent: message\rdata: {\"id\":1,\r\ndata: \"x\":\"Grüße 🌊\"}\r\n\r\n"
    "data: hello in between\n\n"
    "data:{\"id\":2}\r\r"
    "id: 3\n\n"
    "retry: 10\ndata\ndata: last\n\n"
).encode()  # fmt: skip


def test_f13_3_a_stream_cut_at_every_position_gives_the_same_events() -> None:
    """F13.3, F13.4: also inside a character, a CRLF, a field name and the byte-order mark."""
    whole = read(STREAM)
    assert [bytes(e.data) for e in whole if isinstance(e, SseEvent)] == [
        '{"id":1,\n"x":"Grüße 🌊"}'.encode(),
        b"hello in between",
        b'{"id":2}',
        b"",
        b"\nlast",
    ]
    assert events(STREAM[i : i + 1] for i in range(len(STREAM))) == whole
    for first in range(0, len(STREAM), 3):
        for second in range(first, len(STREAM), 5):
            assert events([STREAM[:first], STREAM[first:second], STREAM[second:]]) == whole


def reference(data: bytes, cap: int) -> tuple[list[Event], int, int, int]:
    """The standard's own algorithm, on the whole text: events, comments, known fields, odd lines."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: list[Event] = []
    values: list[bytes] = []
    kind, id_, retry = "", None, None
    comments = fields = odd = 0
    *lines, rest = text.split(b"\n")
    for line in lines:
        if not line:
            if values or id_ is not None or retry is not None:
                joined = b"\n".join(values)
                if len(joined) > cap:
                    ends = find_ends(joined[:4096], joined[-4096:])
                    found.append(OversizeEvent(len(joined), cap, *ends, kind or "message", id_))
                else:
                    found.append(SseEvent(joined, kind or "message", id_, retry))
            values, kind, id_, retry = [], "", None, None
            continue
        if line.startswith(b":"):
            comments += 1
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name not in (b"data", b"event", b"id", b"retry"):
            odd += 1
            continue
        fields += 1
        if name == b"data":
            values.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            id_ = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            retry = int(value)
    if (
        rest
        and not rest.startswith(b":")
        and rest.partition(b":")[0] not in (b"data", b"event", b"id", b"retry")
    ):
        odd += 1
    return found, comments, fields, odd


PARTS = st.sampled_from(
    (
        *(
            b"data",
            b":",
            b" ",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"id: 1",
            b"event: x",
            b"retry: 5",
            b"a",
            b"\0",
        ),
        *(b'data: {"id":7,"result":{}}\n', b"data: x\n\n", b": ping\n", b"dat", b"a: y", b"<html>"),
        *(b"\xef\xbb\xbf", "ü".encode()),
    )
)


@given(
    parts=st.lists(PARTS, max_size=30),
    cuts=st.lists(st.integers(0, 300), max_size=30),
    cap=st.integers(0, 40) | st.just(CAP),
)
@example(parts=[b"data: x\n\n"], cuts=list(range(12)), cap=0)
def test_f13_3_any_text_in_any_chunks_under_any_cap(parts: list[bytes], cuts: list[int], cap: int) -> None:
    """F13.3: what the standard's own algorithm says, whatever the chunks are."""
    data = b"".join(parts)
    expected, comments, fields, odd = reference(data, cap)
    parser = EventParser(cap)
    got = [plain(event) for chunk in pieces(data, cuts) for event in parser.feed(chunk)]
    assert got == expected
    assert parser.events == len(expected)
    parser.finish()
    assert (parser.comments, parser.fields, parser.odd_lines) == (comments, fields, odd)
    assert parser.buffered == 0


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=9))
def test_no_bytes_are_beyond_reading(data: bytes, cuts: list[int]) -> None:
    assert events(pieces(data, cuts), cap=20) == read(data, cap=20)


# --- what is remembered for the next stream


def test_the_last_id_stays_until_another_comes_and_counts_at_the_end_of_its_event_only() -> None:
    parser = EventParser(CAP, "from before")
    assert parser.last_event_id == "from before"
    parser.feed(b"id: 5\nretry: 20\ndata: x\n")
    assert (parser.last_event_id, parser.retry) == ("from before", None)
    parser.feed(b"\ndata: y\n\n")
    assert (parser.last_event_id, parser.retry) == ("5", 20)
    parser.feed(b"id: 6\ndata: cut off")
    assert parser.finish()
    assert parser.last_event_id == "5"


def test_an_empty_id_forgets_the_last_one() -> None:
    parser = EventParser(CAP)
    parser.feed(b"id: 5\n\nid:\n\n")
    assert parser.last_event_id == ""


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("data: a\n\n", False),
        ("data: a\n", True),
        ("data: a", True),
        (": ping\n", False),
        ("", False),
        ("d", True),
    ],
)
def test_the_end_says_whether_something_was_dropped(text: str, cut: bool) -> None:
    parser = EventParser(CAP)
    parser.feed(text.encode())
    assert parser.finish() is cut
    assert parser.feed(b"") == []


# --- the cap


@pytest.mark.parametrize("step", [1, 5, 64, 1000, 100_000])
@pytest.mark.parametrize("lines", [1, 7])
def test_f13_2_an_event_over_the_cap_costs_that_one_message(step: int, lines: int) -> None:
    """F13.2: with its size and the id of its message; its own id still counts."""
    text = json.dumps(
        {"jsonrpc": "2.0", "id": 7, "result": {"text": ["x" * 500] * lines}}, indent=lines - 1 or None
    )
    data = b"".join(b"data: " + line + b"\n" for line in text.encode().split(b"\n"))
    stream = b"data: {}\n\nid: big\nevent: message\n" + data + b"\ndata: []\n\n"
    parser = EventParser(400)
    got = [plain(e) for i in range(0, len(stream), step) for e in parser.feed(stream[i : i + step])]
    assert got == [
        SseEvent(b"{}"),
        OversizeEvent(len(text), 400, 7, False, "message", "big"),
        SseEvent(b"[]"),
    ]
    assert parser.last_event_id == "big"
    assert isinstance(got[1], Oversize)


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_the_cap_counts_the_data_and_nothing_else(over: int, step: int) -> None:
    stream = b": " + b"c" * 500 + b"\ndata: " + b"1" * (100 + over) + b"\nid: " + b"i" * 200 + b"\n\n"
    (event,) = events((stream[i : i + step] for i in range(0, len(stream), step)), cap=100)
    assert isinstance(event, OversizeEvent) is bool(over)


def test_f13_2_17_mib_against_16_mib_and_the_next_event_comes() -> None:
    """F13.2, in an SSE event."""
    fine = b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 10_000_000 + b'"}'
    large = b'{"jsonrpc":"2.0","id":2,"result":{"t":"' + b"x" * (17 * 1024 * 1024) + b'"}}'
    stream = b"".join(b"data: " + each + b"\n\n" for each in (fine, large, b"{}"))
    got = events(stream[i : i + 65536] for i in range(0, len(stream), 65536))
    assert got == [SseEvent(fine), OversizeEvent(len(large), CAP, 2, False), SseEvent(b"{}")]


def test_memory_is_bounded_whatever_a_stream_sends() -> None:
    parser = EventParser(10_000)
    for start in (b"data: ", b": ", b"<html>", b"id: "):
        parser.feed(start)
        for _ in range(200):
            parser.feed(b"x" * 1000)
            assert parser.buffered <= 20_000
        parser.feed(b"\n\n")
    for _ in range(500):
        parser.feed(b"data\nevent: x\nid: y\nfoo\n" * 50)
        assert parser.buffered <= 20_000
    assert len(parser.odd_text) <= sse.ODD_KEPT


def test_a_line_that_is_no_data_has_a_bound_of_its_own() -> None:
    for step in (1000, 10**6):
        for length, taken in ((sse.MAX_FIELD, True), (sse.MAX_FIELD + 1, False)):
            parser = EventParser(CAP)
            stream = b"id: " + b"x" * (length - 4) + b"\n\n"
            for i in range(0, len(stream), step):
                parser.feed(stream[i : i + step])
            assert (parser.last_event_id != "", parser.odd_lines == 0) == (taken, taken)


# --- work and memory


class Counted(bytes):
    """Bytes that count how many of them are searched."""

    searched = 0

    def find(self, *args: Any) -> int:
        found = super().find(*args)
        Counted.searched += (len(self) if found < 0 else found) - args[1]
        return found


@pytest.mark.parametrize(
    "line", [b"data: " + b"x" * 2_000_000 + b"\n\n", b"data: {}\n\n" * 100_000, b": \r" * 200_000]
)
def test_each_byte_is_looked_at_a_fixed_number_of_times(line: bytes) -> None:
    for times in (1, 2, 4):
        Counted.searched = 0
        parser = EventParser(CAP)
        stream = line * times
        for i in range(0, len(stream), 65536):
            parser.feed(Counted(stream[i : i + 65536]))
        assert Counted.searched <= 2 * len(stream)


def test_15_mb_in_one_line_are_held_once() -> None:
    chunk = b"x" * 65536
    parser = EventParser(CAP)
    tracemalloc.start()
    try:
        parser.feed(b"data: ")
        for _ in range(230):
            assert parser.feed(chunk) == []
        (event,) = parser.feed(b"\n\n")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(event, SseEvent)
    assert len(event.data) == 230 * 65536
    assert peak < 1.25 * len(event.data)


def test_data_is_not_touched_after_it_was_handed_on() -> None:
    parser = EventParser(CAP)
    parser.feed(b"data: {")
    (event,) = parser.feed(b"}\n\n")
    parser.feed(b"data: other")
    parser.feed(b" bytes\n\n")
    assert isinstance(event, SseEvent)
    assert event.data == b"{}"


# --- what is no event stream


PAGE = "<!DOCTYPE html>\n<html>\n<head><title>Sign in</title></head>\n<body>Who are you?</body></html>"


@pytest.mark.parametrize(
    "text", [PAGE, "Not Found", '{"error":"no key"}', "hello\nworld\n", "message: hello\n"]
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_what_is_no_event_stream_is_told(text: str, step: int) -> None:
    parser = EventParser(CAP)
    for i in range(0, len(text), step):
        assert parser.feed(text.encode()[i : i + step]) == []
    parser.finish()
    assert not parser.looks_like_sse
    assert parser.odd_text == text.rstrip("\n").encode()


@pytest.mark.parametrize(
    "text", ["", "\n\n", ": ping\n\n", "data: x\n\n", "oops\ndata: x\n\n", "data: half", "id"]
)
def test_what_may_be_one_is_taken_for_one(text: str) -> None:
    parser = EventParser(CAP)
    parser.feed(text.encode())
    parser.finish()
    assert parser.looks_like_sse
