"""JSON-RPC messages: what can mean only one thing is accepted, nothing raises, ids mean what they say."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from moorings.wire.jsonrpc import (
    Envelope,
    RpcError,
    decode_error,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    match_id,
    parse,
)

DEEP = b"[" * 100_000 + b"]" * 100_000


def read(line: bytes | bytearray) -> list[dict[str, Any]]:
    """The messages of a line as plain values, absent members left out."""
    messages, _ = parse(line)
    found = []
    for message in messages:
        plain = {name: getattr(message, name) for name in Envelope.__struct_fields__}
        found.append(
            {
                name: json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else value
                for name, value in plain.items()
                if value is not UNSET
            }
        )
    return found


# --- what a line holds


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}', {"id": 1, "result": {"a": 1}}),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}\r', {"id": 1, "result": {"a": 1}}),
        (b'  { "id" : 1 , "result" : null }  ', {"id": 1, "result": None}),
        (b'{"id":"7","result":[]}', {"id": "7", "result": []}),
        (b'{"id":7.0,"result":"x"}', {"id": 7.0, "result": "x"}),
        (b'{"id":1,"error":{"code":-32601}}', {"id": 1, "error": {"code": -32601}}),
        (b'{"id":null,"error":{"code":-32700}}', {"id": None, "error": {"code": -32700}}),
        (b'{"error":{"code":-32700}}', {"error": {"code": -32700}}),
        (b'{"id":1,"result":{},"error":null}', {"id": 1, "result": {}, "error": None}),
        (b'{"jsonrpc":"1.0","id":1,"result":{},"extra":[1]}', {"id": 1, "result": {}}),
        (b'{"id":3,"method":"ping"}', {"id": 3, "method": "ping"}),
        (
            b'{"method":"notifications/message","params":{"x":1}}',
            {"method": "notifications/message", "params": {"x": 1}},
        ),
        (
            b'{"id":1,"method":null,"params":null,"result":{},"error":null}',
            {"id": 1, "params": None, "result": {}, "error": None},
        ),
        (b'{"id":1,"result":1,"id":2}', {"id": 2, "result": 1}),
    ],
)
def test_one_message(line: bytes, message: dict[str, Any]) -> None:
    assert read(line) == [message]
    assert read(bytearray(line)) == [message]
    assert parse(line)[1] is False


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\r",
        b"Server listening on stdio",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b"1",
        b'"text"',
        b'{"level":"info","msg":"started"}',
        b'{"id":1}',
        b'{"jsonrpc":"2.0","id":1,"params":{}}',
        b'{"id":1,"method":5}',
        b'{"id":true,"result":{}}',
        b'{"id":[1],"result":{}}',
        b'{"id":{},"method":"x"}',
        b'{"id":1e999,"result":{}}',
        b'{"id":1,"result":{}} trailing',
        b'{"id":1,"result":{}}{"id":2,"result":{}}',
        b'{"id":1,"result":tru}',
        b"[1,2,[3]]",
        b"[" * 50,
        DEEP,
        b'{"id":1,"result":' + DEEP + b"}",
        b"[" + DEEP + b"]",
        b'{"id":1,"result":{"a":NaN,"b":' + DEEP + b"}}",
        b'{"id":' + b"1" * 5000 + b',"result":{}}',
        b'{"id":1,"result":{"a":NaN,"b":' + b"1" * 5000 + b"}}",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbfhello",
        b"NaN",
        b"[NaN]",
        b'{"a":NaN',
    ],
)
def test_what_is_no_message_is_none_and_raises_nothing(line: bytes) -> None:
    assert parse(line) in (((), False), ([], False))


def test_the_body_is_not_decoded_with_the_envelope() -> None:
    """Law 8: bodies stay bytes, exactly those that came."""
    ((message,), _) = parse(b'{"id":1,"result":{"n": 1.50, "s":"\\u00e4"}}')
    assert isinstance(message.result, msgspec.Raw)
    assert bytes(message.result) == b'{"n": 1.50, "s":"\\u00e4"}'


# --- batches (2025-03-26)


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        (b'[{"id":1,"result":{}},{"id":2,"error":{"code":1,"message":""}}]', [1, 2]),
        (b' [ {"id":1,"result":{}} ]\r', [1]),
        (b'[{"id":1,"result":{}},5,null,"x",[1],{},{"id":2,"result":{}}]', [1, 2]),
        (b'[{"id":1,"method":7},{"id":[2],"result":1},{"id":3,"result":1}]', [3]),
        (b'[{"id":1,"method":null,"result":{}},{"id":2,"result":1}]', [1, 2]),
        (b'\xef\xbb\xbf[{"id":1,"result":{}}]', [1]),
        (b'[{"id":1,"result":{"x":NaN}},{"id":2,"result":{}}]', [1, 2]),
        (b'[{"id":1,"method":"\x97"},{"id":2,"result":{}}]', [1, 2]),
        (b'[{"id":1,"result":{}},{"id":2,"res', []),
    ],
)
def test_a_batch_is_its_messages_in_order(line: bytes, ids: list[int]) -> None:
    assert [message["id"] for message in read(line)] == ids


# --- text and numbers that are none


@pytest.mark.parametrize(
    ("line", "message", "repaired"),
    [
        (b'\xef\xbb\xbf{"id":1,"result":{}}', {"id": 1, "result": {}}, False),
        (b'\xef\xbb\xbf{"id":1,"method":"a\x97b"}', {"id": 1, "method": "a\ufffdb"}, True),
        (b'{"id":1,"method":"a\x97b"}', {"id": 1, "method": "a\ufffdb"}, True),
        (b'{"id":"\\ud800","result":1}', {"id": "\ufffd", "result": 1}, True),
        (b'{"id":1,"result":{"a":NaN}}', {"id": 1, "result": {"a": None}}, True),
        (b'{"id":1,"result":[Infinity,-Infinity,1]}', {"id": 1, "result": [None, None, 1]}, True),
        (b'{"id":1,"result":["NaN",NaN,"\\ud83d"]}', {"id": 1, "result": ["NaN", None, "\ufffd"]}, True),
        (b'{"id":1,"result":"NaN"}', {"id": 1, "result": "NaN"}, False),
        (
            b'{"id":1,"result":[NaN,123456789012345678901234567890]}',
            {"id": 1, "result": [None, 123456789012345678901234567890]},
            True,
        ),
    ],
)
def test_f13_10_what_was_no_json_is_mended_and_said(
    line: bytes, message: dict[str, Any], repaired: bool
) -> None:
    """F13.10: a byte-order mark, bytes of a legacy code page, halves of emoji, numbers that only Python writes."""
    assert read(line) == [message]
    assert parse(line)[1] is repaired


def test_f13_10_bad_bytes_in_a_body_leave_the_envelope_readable() -> None:
    """F13.10: the body keeps its bytes; whoever decodes it mends them."""
    ((message,), _) = parse(b'{"id":1,"result":{"text":"a \x97 b"}}')
    assert message.id == 1
    assert isinstance(message.result, msgspec.Raw)
    assert bytes(message.result) == b'{"text":"a \x97 b"}'


# --- nothing raises


@settings(max_examples=500)
@given(st.binary(max_size=120))
@example(b"[\xff")
@example(b'{"id":1,"method":"\xff\xff"}')
@example(b'[{"id":1,"method":"\xff"}]')
def test_parse_never_raises_on_any_bytes(data: bytes) -> None:
    parse(data)
    parse(b'{"id":1,"result":' + data + b"}")
    parse(b'{"id":' + data + b',"method":"' + data + b'"}')
    parse(b"[" + data + b"]")
    decode_error(data)
    decode_error(b'{"code":' + data + b',"message":"' + data + b'"}')


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda v: st.one_of(st.lists(v, max_size=4), st.dictionaries(st.text(), v, max_size=4)),
    max_leaves=12,
)
members = st.sampled_from(["id", "method", "params", "result", "error", "jsonrpc", "code", "message", "data"])


@settings(max_examples=500)
@given(st.one_of(json_values, st.dictionaries(members, json_values, max_size=6)), st.booleans())
def test_parse_never_raises_on_any_json(value: Any, ascii: bool) -> None:
    """Python's own kind of JSON (NaN, lone surrogates, numbers of any size) included."""
    text = json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    messages, _ = parse(text)
    for message in messages:
        match_id(message.id)
        if isinstance(message.error, msgspec.Raw):
            assert isinstance(decode_error(message.error), RpcError)
    if isinstance(value, dict) and isinstance(value.get("method"), str) and "id" not in value:
        assert [m.id for m in messages] == [UNSET]


@given(st.text(max_size=20), json_values, st.integers(-(2**63), 2**63 - 1))
def test_a_whole_message_goes_there_and_back(method: str, params: Any, id_: int) -> None:
    try:
        plain = msgspec.json.decode(msgspec.json.encode(params))
    except (msgspec.MsgspecError, UnicodeError):
        return
    line = encode_request(id_, method, params)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    ((message,), repaired) = parse(line)
    assert not repaired and match_id(message.id) == id_ and message.method == method
    assert isinstance(message.params, msgspec.Raw)
    assert msgspec.json.decode(message.params) == ({} if params is None else plain)


# --- ids


@pytest.mark.parametrize(
    ("echoed", "means"),
    [
        (7, 7),
        ("7", 7),
        (7.0, 7),
        (0, 0),
        ("0", 0),
        (2**53, 2**53),
        (None, None),
        (UNSET, None),
        (7.5, None),
        (float("nan"), None),
        (float("inf"), None),
        ("", None),
        ("07", None),
        ("+7", None),
        ("-7", None),
        (" 7", None),
        ("7 ", None),
        ("7.0", None),
        ("7_0", None),
        ("0x7", None),
        ("٧", None),
        ("７", None),
        ("²", None),
        ("seven", None),
        ("1" * 5000, None),
        ("9" * 21, None),
    ],
)
def test_f13_6_an_echoed_id(echoed: Any, means: int | None) -> None:
    """F13.6: an answer may echo 7 as 7.0 or "7"; nothing else is taken for it."""
    assert match_id(echoed) == means


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none()))
def test_an_id_is_matched_only_by_its_own_writing(echoed: Any) -> None:
    mine = match_id(echoed)
    if mine is not None:
        assert str(mine) == echoed or mine == echoed


# --- errors of every shape


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b'{"code":-32601,"message":"no"}', RpcError(-32601, "no")),
        (b'{"code":-32022,"message":"no","data":{"supported":["x"]}}',
         RpcError(-32022, "no", {"supported": ["x"]})),
        (b'{"code":-1,"message":"m","data":null,"extra":1}', RpcError(-1, "m")),
        (b'{"code":1}', RpcError(1)),
        (b'{"code":1,"message":null}', RpcError(1)),
        (b'{"code":-32601.0,"message":"no"}', RpcError(-32601, "no")),
        (b'{"code":"-32601","message":"no"}', RpcError(-32601, "no")),
        (b'{"code":"ENOENT","message":"no"}', RpcError(0, "no")),
        (b'{"code":true,"message":"no"}', RpcError(0, "no")),
        (b'{"code":null,"message":"no"}', RpcError(0, "no")),
        (b'{"code":[1],"message":{"a":1},"data":[2]}', RpcError(0, "{'a': 1}", [2])),
        (b'{"code":1.5,"message":5}', RpcError(0, "5")),
        (b'{"message":"no code"}', RpcError(0, "no code")),
        (b'{"message":"a \x97 b","code":5}', RpcError(5, "a \ufffd b")),
        (b'{"message":"\\ud83d","code":5}', RpcError(5, "\ufffd")),
        (b'{"data":{"x":1}}', RpcError(0, "", {"x": 1})),
        (b"{}", RpcError(0, "")),
        (b'"it broke"', RpcError(0, 'unreadable error: "it broke"')),
        (b"null", RpcError(0, "unreadable error: null")),
        (b"true", RpcError(0, "unreadable error: true")),
        (b"[1,2]", RpcError(0, "unreadable error: [1,2]")),
        (b"5", RpcError(0, "unreadable error: 5")),
        (b"\xff\xff", RpcError(0, "unreadable error: \ufffd\ufffd")),
        (b"", RpcError(0, "unreadable error: ")),
    ],
)  # fmt: skip
def test_an_error_of_any_shape_stays_an_error(raw: bytes, error: RpcError) -> None:
    assert decode_error(raw) == error
    assert decode_error(msgspec.Raw(raw)) == error


def test_an_error_nested_without_end_is_an_error_with_a_short_text() -> None:
    error = decode_error(b'{"code":1,"message":"x","data":' + DEEP + b"}")
    assert error.code == 0
    assert error.message.startswith("unreadable error: {")
    assert len(error.message) < 300


# --- what we write


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (encode_request(1, "ping", None), {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}),
        (
            encode_request(2, "x", {"a": "line\nbreak"}),
            {"jsonrpc": "2.0", "id": 2, "method": "x", "params": {"a": "line\nbreak"}},
        ),
        (encode_notification("n"), {"jsonrpc": "2.0", "method": "n"}),
        (encode_notification("n", {}), {"jsonrpc": "2.0", "method": "n", "params": {}}),
        (encode_response("é", {"r": 1}), {"jsonrpc": "2.0", "id": "é", "result": {"r": 1}}),
        (encode_response(7.5, {}), {"jsonrpc": "2.0", "id": 7.5, "result": {}}),
        (
            encode_error(None, -32700, "no"),
            {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no", "data": None}},
        ),
        (
            encode_error(3, -32601, "no", {"d": 1}),
            {"jsonrpc": "2.0", "id": 3, "error": {"code": -32601, "message": "no", "data": {"d": 1}}},
        ),
    ],
)
def test_a_frame_is_one_line_of_json(line: bytes, message: dict[str, Any]) -> None:
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == message


def test_f13_11_our_ids_are_integers() -> None:
    """F13.11: some servers take nothing else."""
    assert b'"id":12' in encode_request(12, "x", None)
