"""JSON-RPC 2.0 messages: bytes to a light envelope and back.

The envelope is decoded at once, its bodies (``params``, ``result``, ``error``) stay bytes until somebody asks for
them (law 8). What can mean only one thing is accepted: ``"error": null`` beside a result, an id echoed as a string,
a batch (2025-03-26), a byte-order mark, invalid UTF-8. Source: JSON-RPC 2.0; MCP ``basic/index``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .content import repair_utf8

__all__ = [
    "UNREADABLE",
    "Envelope",
    "Id",
    "RpcError",
    "decode_envelope",
    "decode_error",
    "encode_call",
    "encode_error",
    "encode_members",
    "encode_notification",
    "encode_request",
    "encode_response",
    "match_id",
    "parse",
]

Id = int | str


class Envelope(msgspec.Struct, gc=False):
    """One message, bodies not decoded."""

    id: int | str | float | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @property
    def is_message(self) -> bool:
        """False for a JSON object that is no JSON-RPC message at all."""
        return self.result is not UNSET or self.method is not UNSET or self.error is not UNSET


class RpcError(msgspec.Struct, frozen=True):
    """The error object of a response."""

    code: int
    message: str = ""
    data: Any = None


class _LooseEnvelope(msgspec.Struct, gc=False):
    method: Any = UNSET
    id: int | str | float | UnsetType | None = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class _LooseError(msgspec.Struct):
    code: Any = None
    message: Any = None
    data: Any = None


class _Request(msgspec.Struct, gc=False):
    id: int
    method: str
    params: Any
    jsonrpc: str = "2.0"


class _Notification(msgspec.Struct, gc=False, omit_defaults=False):
    method: str
    params: Any | UnsetType = UNSET
    jsonrpc: str = "2.0"


class _Response(msgspec.Struct, gc=False):
    id: Any
    result: Any
    jsonrpc: str = "2.0"


class _ErrorResponse(msgspec.Struct, gc=False):
    id: Any
    error: RpcError
    jsonrpc: str = "2.0"


_envelope = msgspec.json.Decoder(Envelope)
decode_envelope = _envelope.decode
"""A message that is in order as it stands; raises one of ``UNREADABLE`` for what ``parse`` must look at. What comes out
need not be a message (``Envelope.is_message``)."""
_loose_envelope = msgspec.json.Decoder(_LooseEnvelope)
_batch = msgspec.json.Decoder(list[Raw])
_error = msgspec.json.Decoder(RpcError)
_loose_error = msgspec.json.Decoder(_LooseError)
_encoder = msgspec.json.Encoder()
_encode = _encoder.encode
_BOM = b"\xef\xbb\xbf"
_ID_DIGITS = 20
"""More than any id of ours has."""
_CODE = re.compile(r"-?[0-9]{1,18}")
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises over bytes that are no JSON, no UTF-8, or nested without end."""


_OPENERS = frozenset((b"{", b"[", b" ", b"\t", b"\r", _BOM[:1]))
"""What the first byte of a message may be."""
_NOTHING: tuple[Sequence[Envelope], bool] = ((), False)


def parse(line: bytes | bytearray) -> tuple[Sequence[Envelope], bool]:
    """Decode one frame.

    Returns the messages in it (none if it is no JSON-RPC: a banner, a log line; more than one for a batch), and
    whether something in it had to be replaced: text that was no Unicode, numbers that JSON does not have.
    """
    if bytes(line[:1]) not in _OPENERS:
        # A banner, a log line: told at a glance, since a server may write millions of them.
        return _NOTHING
    try:
        message = _envelope.decode(line)
        return ((message,) if message.is_message else (), False)
    except msgspec.ValidationError:
        if not line.lstrip().startswith(b"["):
            return (_parse_loose(line), False)
        try:
            return (_parse_batch(line), False)
        except UNREADABLE:
            return _parse_repaired(line)
    except UNREADABLE:
        return _parse_repaired(line)


def _parse_loose(line: bytes | bytearray) -> Sequence[Envelope]:
    """An object whose envelope has a wrong type somewhere. ``"method": null`` is how some write 'no method'."""
    try:
        loose = _loose_envelope.decode(line)
    except UNREADABLE:
        return ()
    if loose.method is not None:
        return ()
    message = Envelope(loose.id, UNSET, loose.params, loose.result, loose.error)
    return (message,) if message.is_message else ()


def _parse_batch(line: bytes | bytearray) -> Sequence[Envelope]:
    """The messages of a batch; what is none is left out.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the text is not JSON.
    """
    messages: list[Envelope] = []
    for item in _batch.decode(line):
        try:
            message = _envelope.decode(item)
        except msgspec.ValidationError:
            messages.extend(_parse_loose(bytes(item)))
            continue
        if message.is_message:
            messages.append(message)
    return messages


def _parse_repaired(line: bytes | bytearray) -> tuple[Sequence[Envelope], bool]:
    """A byte-order mark is dropped, bad text and numbers that JSON does not have are replaced (F13.10)."""
    text = bytes(line).removeprefix(_BOM)
    if not text.lstrip().startswith((b"{", b"[")):
        return ((), False)
    repaired = repair_utf8(text)
    if b"NaN" in repaired or b"Infinity" in repaired:
        # What Python servers write for numbers that JSON does not have; JavaScript's own answer to them is null.
        try:
            repaired = _encoder.encode(json.loads(repaired))
        except (ValueError, RecursionError):
            return ((), False)
    if repaired == line:
        # Nothing to mend: it is simply not JSON.
        return ((), False)
    try:
        if repaired.lstrip().startswith(b"["):
            messages = _parse_batch(repaired)
        else:
            message = _envelope.decode(repaired)
            messages = (message,) if message.is_message else ()
    except msgspec.ValidationError:
        messages = _parse_loose(repaired)
    except UNREADABLE:
        return ((), False)
    return (messages, bool(messages) and repaired != text)


def match_id(value: int | str | float | UnsetType | None) -> int | None:
    """The integer id we sent that an echoed id means: ``7``, ``7.0`` and ``"7"`` all mean 7 (F13.6)."""
    if type(value) is int:
        return value
    if isinstance(value, str):
        # Only what int() and we write alike, so that "07" or "٧" never match.
        if len(value) > _ID_DIGITS or not (value.isascii() and value.isdigit()):
            return None
        return int(value) if str(int(value)) == value else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def decode_error(raw: Raw | bytes) -> RpcError:
    """The error object; whatever shape it has, it stays an error with a text."""
    try:
        return _error.decode(raw)
    except UNREADABLE:
        pass
    text = repair_utf8(bytes(raw))
    try:
        loose = _loose_error.decode(text)
    except UNREADABLE:
        return RpcError(code=0, message=f"unreadable error: {text[:200].decode('utf-8', 'replace')}")
    code = loose.code
    if (isinstance(code, float) and code.is_integer()) or (isinstance(code, str) and _CODE.fullmatch(code)):
        code = int(code)
    return RpcError(
        code=code if type(code) is int else 0,
        message="" if loose.message is None else str(loose.message),
        data=loose.data,
    )


def encode_request(id_: int, method: str, params: Any) -> bytes:
    """One framed request line."""
    return _encoder.encode_lines((_Request(id_, method, {} if params is None else params),))


def encode_call(id_: int, tool: str, arguments: Mapping[str, Any], envelope: bytes) -> bytes:
    """One framed request line of ``tools/call``, with the id as its progress token.

    ``envelope`` is what further stands in ``_meta``: members as JSON, each with a comma after it; mostly nothing.
    Written by hand, as nothing in it but the two encoded values can need an escape.
    """
    return (
        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%b,"arguments":%b,"_meta":{%b"progressToken":%d}}}\n'
        % (id_, _encode(tool), _encode(arguments), envelope, id_)
    )


def encode_members(members: Mapping[str, Any]) -> bytes:
    """Members of an object as JSON, each with a comma after it."""
    return _encoder.encode(members)[1:-1] + b"," if members else b""


def encode_notification(method: str, params: Any = None) -> bytes:
    """One framed notification line."""
    return _encoder.encode_lines((_Notification(method, UNSET if params is None else params),))


def encode_response(id_: Any, result: Any) -> bytes:
    """One framed response line, the id echoed as it came."""
    return _encoder.encode_lines((_Response(id_, result),))


def encode_error(id_: Any, code: int, message: str, data: Any = None) -> bytes:
    """One framed error line, the id echoed as it came."""
    return _encoder.encode_lines((_ErrorResponse(id_, RpcError(code, message, data)),))
