"""Newline framing: any chunking gives the same frames, one over the cap costs itself, work and memory are bounded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moorings.wire import framing
from moorings.wire.framing import LineFramer, Oversize, find_ends

CAP = 16 * 1024 * 1024

Frame = bytes | Oversize


def frames(chunks: Iterable[bytes], cap: int = CAP) -> list[Frame]:
    """What a framer makes of these chunks, as plain values."""
    framer = LineFramer(cap)
    return [
        frame if isinstance(frame, Oversize) else bytes(frame) for c in chunks for frame in framer.feed(c)
    ]


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted({min(c, len(data)) for c in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def dump(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


# --- any chunking

STREAM = (
    '{"jsonrpc":"2.0","id":1,"result":{"text":"Grüße 🌊"}}\r\n'
    '{"jsonrpc":"2.0","id":2,"result":{}}\n'
    "\n"
    "Server listening\n"
    '{"jsonrpc":"2.0","method":"notifications/message","params":{}}\n'
).encode()


def test_f13_3_a_stream_cut_at_every_position_gives_the_same_frames() -> None:
    """F13.3: also inside a character, inside CRLF, and with several messages in one chunk."""
    whole = frames([STREAM])
    assert whole == STREAM.split(b"\n")[:-1]
    for cut in range(len(STREAM) + 1):
        assert frames([STREAM[:cut], STREAM[cut:]]) == whole
    assert frames([STREAM[i : i + 1] for i in range(len(STREAM))]) == whole
    for first in range(0, len(STREAM), 7):
        for second in range(first, len(STREAM), 11):
            assert frames([STREAM[:first], STREAM[first:second], STREAM[second:]]) == whole


@given(
    lines=st.lists(
        st.one_of(
            st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")),
            st.sampled_from(
                [b'{"id":7,"result":{"a":1}}', b'{"result":{},"id":7}', b'{"id":7,"method":"x"}']
            ),
        ),
        max_size=12,
    ),
    rest=st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")),
    cuts=st.lists(st.integers(0, 400), max_size=20),
    cap=st.integers(0, 45),
    view=st.booleans(),
)
@example(lines=[b'{"id":7,"result":{"a":1}}'], rest=b"", cuts=list(range(30)), cap=3, view=False)
def test_f13_3_any_bytes_in_any_chunks_under_any_cap(
    lines: list[bytes], rest: bytes, cuts: list[int], cap: int, view: bool
) -> None:
    data = b"".join(line + b"\n" for line in lines) + rest
    expected = [
        line if len(line) <= cap else Oversize(len(line), cap, *find_ends(line[:4096], line[-4096:]))
        for line in lines
    ]
    chunks = pieces(data, cuts)
    framer = LineFramer(cap)
    got = [
        frame if isinstance(frame, Oversize) else bytes(frame)
        for chunk in chunks
        for frame in framer.feed(memoryview(chunk) if view else chunk)
    ]
    assert got == expected
    assert framer.buffered <= max(len(rest), 0) * 2


def test_a_frame_is_not_touched_after_it_was_handed_on() -> None:
    framer = LineFramer(CAP)
    framer.feed(b'{"a"')
    (frame,) = framer.feed(b":1}\n")
    framer.feed(b"other bytes")
    framer.feed(b" and more\n")
    assert frame == b'{"a":1}'


# --- the cap


@pytest.mark.parametrize("step", [1, 5, 64, 1000, 100_000])
def test_a_frame_over_the_cap_costs_that_one_message(step: int) -> None:
    big = dump({"jsonrpc": "2.0", "id": 7, "result": {"text": "x" * 3000}})
    data = b'{"id":1}\n' + big + b'\n{"id":2}\n'
    got = frames([data[i : i + step] for i in range(0, len(data), step)], cap=1000)
    assert got == [b'{"id":1}', Oversize(len(big), 1000, 7, False), b'{"id":2}']


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_the_cap_itself_still_passes(over: int, step: int) -> None:
    line = b"[" + b"1" * (98 + over) + b"]"
    data = line + b"\n"
    (frame,) = frames([data[i : i + step] for i in range(0, len(data), step)], cap=100)
    assert isinstance(frame, Oversize) is bool(over)


def test_the_default_cap_lets_10_mb_pass_and_17_mib_cost_themselves() -> None:
    """F13.2: 10 MB in one line is a frame; 17 MiB against 16 MiB is an error for its request, and the next works."""
    fine = b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 10_000_000 + b'"}'
    large = b'{"jsonrpc":"2.0","id":2,"result":{"t":"' + b"x" * (17 * 1024 * 1024) + b'"}}'
    data = b"\n".join((fine, large, b"{}", b""))
    step = 65536
    got = frames(data[i : i + step] for i in range(0, len(data), step))
    assert [type(g) for g in got] == [bytes, Oversize, bytes]
    assert got[0] == fine
    assert got[1] == Oversize(len(large), CAP, 2, False)


def test_memory_is_bounded_while_an_endless_frame_is_thrown_away() -> None:
    framer = LineFramer(10_000)
    framer.feed(b'{"jsonrpc":"2.0","id":3,"result":"')
    for _ in range(2_000):
        framer.feed(b"x" * 1000)
        assert framer.buffered <= 11_000
    assert framer.buffered <= 2 * 4096
    (frame,) = framer.feed(b'"}\n')
    assert frame == Oversize(34 + 2_000_000 + 2, 10_000, 3, False)
    assert framer.buffered == 0


# --- linear work


class CountingBuffer(bytearray):
    """A pending buffer that counts the bytes that are put into it or taken out of it."""

    work = 0

    def __iadd__(self, more: Any) -> CountingBuffer:
        CountingBuffer.work += len(more)
        return super().__iadd__(more)  # type: ignore[return-value]

    def __getitem__(self, place: Any) -> Any:
        got = super().__getitem__(place)
        if isinstance(got, int):
            return got
        CountingBuffer.work += len(got)
        return CountingBuffer(got)

    def __add__(self, more: Any) -> CountingBuffer:
        CountingBuffer.work += len(self) + len(more)
        return CountingBuffer(super().__add__(more))

    def find(self, *args: Any) -> int:  # a search over all that waits would be quadratic
        CountingBuffer.work += len(self)
        return super().find(*args)

    def __contains__(self, what: Any) -> bool:
        CountingBuffer.work += len(self)
        return super().__contains__(what)


def bytes_moved(size: int, chunk: int, cap: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(framing, "bytearray", CountingBuffer, raising=False)
    CountingBuffer.work = 0
    framer = LineFramer(cap)
    for _ in range(size // chunk):
        framer.feed(b"x" * chunk)
    (frame,) = framer.feed(b"\n")
    monkeypatch.undo()
    assert (frame.size if isinstance(frame, Oversize) else len(frame)) == size
    return CountingBuffer.work


@pytest.mark.parametrize("cap", [CAP, 10_000], ids=["kept", "discarded"])
@pytest.mark.parametrize("chunk", [64, 4096])
def test_work_grows_in_proportion_to_the_size(cap: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of n bytes in any chunks: each byte is moved a bounded number of times, however many came before."""
    small = bytes_moved(1 << 17, chunk, cap, monkeypatch)
    large = bytes_moved(1 << 20, chunk, cap, monkeypatch)
    assert large <= 8 * small
    assert large <= 2 * (1 << 20)


@pytest.mark.parametrize("cap", [CAP, 10_000], ids=["kept", "discarded"])
def test_time_grows_in_proportion_to_the_size(cap: int) -> None:
    """8 times the size in at most 24 times the time of this thread (64 would be quadratic); the best of five each."""

    def seconds(size: int) -> float:
        chunk = b"x" * 4096
        framer = LineFramer(cap)
        began = time.thread_time()
        for _ in range(size // len(chunk)):
            framer.feed(chunk)
        framer.feed(b"\n")
        return time.thread_time() - began

    small = min(seconds(1 << 20) for _ in range(5))
    large = min(seconds(1 << 23) for _ in range(5))
    assert large <= 24 * max(small, 1e-4)


def test_many_small_frames_in_one_chunk_after_a_part_are_split_in_one_pass() -> None:
    """A chunk of 100,000 frames behind an unfinished one: no recursion a frame, each found."""
    framer = LineFramer(CAP)
    assert framer.feed(b"{") == []
    got = framer.feed(b"}\n" + b"{}\n" * 100_000)
    assert len(got) == 100_001


@pytest.mark.parametrize(
    "hostile",
    [
        b',"a":' * 819,
        b',""' * 1365,
        b',"a":1' * 682 + b"x",
        b'{"a":1,' + b'"b":"' + b"\\" * 4080,
        b", " * 2048,
        b"," + b" " * 4095,
        b',"":' + b"1" * 4092,
        b'{"' + b"\\\\" * 2040 + b'"',
        b"}" + b" " * 4094 + b"}",
        b',"":"' + b'","":"' * 680,
    ],
)
def test_hostile_ends_are_read_in_bounded_time(hostile: bytes) -> None:
    """What is searched is 4 KB at each end: no pattern may take it to seconds."""
    find_ends(hostile[:4096], hostile[-4096:])
    find_ends(b"{" + hostile[:4095], hostile[-4095:] + b"}")


# --- whose it is

BIG = "x" * 10_000


@pytest.mark.parametrize(
    ("text", "id_", "has_method"),
    [
        # As Python servers write it: the id in front.
        (f'{{"jsonrpc":"2.0","id":7,"result":{{"t":"{BIG}"}}}}', 7, False),
        (f'{{"jsonrpc": "2.0", "id": 7, "result": {{"t": "{BIG}"}}}}', 7, False),
        # As JavaScript servers write it: the id at the end.
        (f'{{"result":{{"t":"{BIG}"}},"jsonrpc":"2.0","id":7}}', 7, False),
        (f'{{"result": {{"t": "{BIG}"}}, "jsonrpc": "2.0", "id": 7}}\r', 7, False),
        (f'{{"jsonrpc":"2.0","result":{{"t":"{BIG}"}},"id":"7"}}', "7", False),
        (f'{{"id":"a\\"b","error":{{"code":1,"message":"{BIG}"}}}}', 'a"b', False),
        (f'{{"id":7,"jsonrpc":"2.0","error":{{"code":1,"message":"{BIG}"}}}}', 7, False),
        (f'{{"error":null,"id":7,"result":"{BIG}"}}', 7, False),
        (f'{{"id":7.0,"result":"{BIG}"}}', 7, False),
        # Requests of the server, and notifications.
        (f'{{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{{"t":"{BIG}"}}}}', 7, True),
        (f'{{"method":"sampling/createMessage","params":{{"t":"{BIG}"}},"jsonrpc":"2.0","id":7}}', 7, True),
        (f'{{"params":{{"t":"{BIG}"}},"jsonrpc":"2.0","id":7,"method":"x"}}', 7, True),
        (f'{{"jsonrpc":"2.0","method":"notifications/message","params":{{"t":"{BIG}"}}}}', None, True),
        (f'{{"id":7,"method":null,"result":{{"t":"{BIG}"}}}}', 7, False),
        # Things that only look like its id.
        (f'{{"jsonrpc":"2.0","result":{{"id":9,"t":"{BIG}"}}}}', None, False),
        (f'{{"jsonrpc":"2.0","result":{{"t":"{BIG}","id":9}}}}', None, False),
        (f'{{"result":{{"t":"{BIG}","id":9}},"id":7}}', 7, False),
        (f'{{"result":[{{"t":"{BIG}"}},{{"id":9}}],"id":7}}', 7, False),
        (f'{{"id":7,"result":{{"a":{{"t":"{BIG}"}},"jsonrpc":"2.0","id":9}}}}', 7, False),
        (json.dumps({"result": BIG + '","id":9}'}), None, False),
        (json.dumps({"result": BIG + '"},"id":9}'}), None, False),
        (json.dumps({"id": 7, "result": {"t": BIG, "u": '","id":9'}}), 7, False),
        (json.dumps({"x": '{"id":9,"result":', "result": {"t": BIG}, "id": 7}), 7, False),
        (f'{{"result":"{BIG}","a\\",\\"id":9}}', None, False),
        (f'[{{"jsonrpc":"2.0","id":7,"result":"{BIG}"}}]', None, False),
        (f'[1,"{BIG}",{{"id":7,"result":1}}]', None, False),
        (f"{BIG}", None, False),
        # Not certain, so not said: two ids, or neither a question nor an answer.
        (f'{{"id":7,"result":{{"t":"{BIG}"}},"id":8}}', None, False),
        (f'{{"id":7,"id":8,"result":{{"t":"{BIG}"}}}}', None, False),
        (f'{{"id":7,"params":{{"t":"{BIG}"}},"method":"x","extra":{{}}}}', None, False),
        (f'{{"id":7,"text":"{BIG}"}}', None, False),
        # Ids of a kind that none has.
        (f'{{"id":null,"error":{{"message":"{BIG}"}}}}', None, False),
        (f'{{"id":true,"result":{{"t":"{BIG}"}}}}', None, False),
        (f'{{"id":1.5,"result":{{"t":"{BIG}"}}}}', None, False),
        (f'{{"id":1e999,"result":{{"t":"{BIG}"}}}}', None, False),
        (f'{{"id":[7],"result":{{"t":"{BIG}"}}}}', None, False),
        (f'{{"id":"\\ud800","result":{{"t":"{BIG}"}}}}', None, False),
        (f'{{"id":"{BIG}","result":1}}', None, False),
    ],
)  # fmt: skip
def test_the_id_of_a_discarded_frame(text: str, id_: int | str | None, has_method: bool) -> None:
    data = text.encode()
    for step in (1021, len(data) + 1):
        chunks = [data[i : i + step] for i in range(0, len(data), step)]
        assert frames([*chunks, b"\n"], cap=5000) == [Oversize(len(data), 5000, id_, has_method)]


def test_an_id_in_bad_utf_8_is_no_id_and_no_error() -> None:
    assert find_ends(b'{"id":"\x97","result":{', b"}}") == (None, False)
    assert find_ends(b'{"id":"\xc3\x28","result":"', b'"}')[0] is None


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from(
        [7, "7", "id", '"id":9', ',"id":9}', '"},"id":9}', "}", "{", "\\", '\\"', "method", ":1,"]
    ),
    st.text(alphabet='id":,{}[]\\ 79', max_size=12),
)
keys = st.one_of(
    st.sampled_from(["id", "method", "result", "error", "params", "jsonrpc"]),
    st.text(alphabet='id":,{}[]\\ 79', max_size=6),
)
values = st.recursive(
    scalars, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(keys, v, max_size=4)), max_leaves=8
)


@settings(max_examples=300)
@given(
    message=st.dictionaries(keys, values, max_size=7),
    head=st.integers(1, 120),
    tail=st.integers(1, 120),
    compact=st.booleans(),
    end=st.sampled_from([b"", b"\r", b"  "]),
)
def test_never_a_wrong_id(message: dict[str, Any], head: int, tail: int, compact: bool, end: bytes) -> None:
    """Whatever a message holds and wherever its ends are cut: the id is the message's own, or none; and an answer is
    never made of a question."""
    text = json.dumps(message, separators=(",", ":") if compact else None).encode() + end
    id_, has_method = find_ends(text[:head], text[-tail:])
    if id_ is not None:
        own = message["id"]
        assert id_ == own and isinstance(own, str) is isinstance(id_, str)
        question = message.get("method") is not None
        answer = "result" in message or "error" in message
        # A message that claims to be both may be taken for either.
        assert has_method is question if question is not answer else answer


@settings(max_examples=300)
@given(head=st.binary(max_size=200), tail=st.binary(max_size=200))
def test_any_bytes_at_the_ends_raise_nothing(head: bytes, tail: bytes) -> None:
    find_ends(b"{" + head, tail + b"}")
    find_ends(b'{"id":' + head + b',"result":1,', b',"id":' + tail + b"}")


# --- hostile ends


def _seconds(head: bytes, tail: bytes) -> float:
    best = float("inf")
    for _ in range(9):
        began = time.thread_time()
        for _ in range(5):
            find_ends(head, tail)
        best = min(best, time.thread_time() - began)
    return best


@pytest.mark.parametrize(
    ("unit", "end"),
    [
        (b',"a":1', b"x"),
        (b',"a":1', b"}x"),
        (b',"a":1', b"}"),
        (b',"":""', b"x}"),
        (b',"', b"}"),
        (b',"\\', b'"}'),
        (b"\\", b'"}'),
        (b'\\"', b'"}'),
        (b', "a" : 1 ', b"x"),
        (b"1.", b"}"),
        (b"1e", b"}"),
        (b"}", b""),
    ],
)
def test_the_work_for_an_end_grows_with_its_length_and_not_with_its_square(unit: bytes, end: bytes) -> None:
    """Given one of eight times the length, it takes about eight times as long and not sixty-four times."""
    short, long = (unit * (size // len(unit)) + end for size in (1024, 8 * 1024))
    head = b'{"a":1'
    assert _seconds(head, long) < 30 * max(_seconds(head, short), 1e-4)


def test_members_at_the_end_are_read_from_the_brace_backward() -> None:
    """What stands in a text is no member, quotes and backslashes in it are read as JSON does, and the spaces too."""
    end = b',"a,\\"b":-1.5e+3 , "id" : 7,"t":"x,\\"id\\":1","method":"q\\\\" }\r'
    assert find_ends(b"{", b'x"' + end) == (7, True)
    assert find_ends(b"{", b'{"id":8},"id":9,"result":null}') == (9, False)
    assert find_ends(b"{", b',"method":"m","x":{"id":8}}') == (None, False)
    assert find_ends(b"{", b',"id":1,"id":2,"method":"m"}') == (None, False)
