"""JSON-RPC 2.0 messages: bytes to a light envelope and back.

The envelope is decoded at once, its bodies (``params``, ``result``, ``error``) stay bytes until somebody asks for
them (law 8). What can mean only one thing is accepted: ``"error": null`` beside a result, an id echoed as a string,
a batch (2025-03-26), a byte-order mark, invalid UTF-8. Source: JSON-RPC 2.0; MCP ``basic/index``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .content import repair_utf8

__all__ = [
    "Envelope",
    "Id",
    "RpcError",
    "decode_error",
    "encode_error",
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
        return self.method is not UNSET or self.result is not UNSET or self.error is not UNSET


class RpcError(msgspec.Struct, frozen=True):
    """The error object of a response."""

    code: int
    message: str = ""
    data: Any = None


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
_batch = msgspec.json.Decoder(list[Raw])
_error = msgspec.json.Decoder(RpcError)
_loose_error = msgspec.json.Decoder(_LooseError)
_encoder = msgspec.json.Encoder()
_BOM = b"\xef\xbb\xbf"


def parse(line: bytes | bytearray) -> tuple[Sequence[Envelope], bool]:
    """Decode one frame.

    Returns the messages in it (none if it is no JSON-RPC: a banner, a log line; more than one for a batch), and
    whether its text had to be repaired because it was not UTF-8.
    """
    try:
        message = _envelope.decode(line)
        return ((message,) if message.is_message else (), False)
    except msgspec.ValidationError:
        return (_parse_batch(line), False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_repaired(line)


def _parse_batch(line: bytes | bytearray) -> Sequence[Envelope]:
    try:
        items = _batch.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return ()
    messages = []
    for item in items:
        try:
            message = _envelope.decode(item)
        except (msgspec.DecodeError, RecursionError):
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
        message = _envelope.decode(repaired)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ((), False)
    return ((message,) if message.is_message else (), len(text) == len(line))


def match_id(value: int | str | float | UnsetType | None) -> int | None:
    """The integer id we sent that an echoed id means: ``7``, ``7.0`` and ``"7"`` all mean 7 (F13.6)."""
    if type(value) is int:
        return value
    if isinstance(value, str):
        # Only what int() and we write alike, so that "07" or "٧" never match.
        return int(value) if value.isascii() and value.isdigit() and str(int(value)) == value else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def decode_error(raw: Raw | bytes) -> RpcError:
    """The error object; whatever shape it has, it stays an error with a text."""
    try:
        return _error.decode(raw)
    except msgspec.DecodeError:
        pass
    try:
        loose = _loose_error.decode(raw)
    except msgspec.DecodeError:
        return RpcError(code=0, message=f"unreadable error: {bytes(raw)[:200].decode('utf-8', 'replace')}")
    code = loose.code if isinstance(loose.code, int) else 0
    return RpcError(code=code, message="" if loose.message is None else str(loose.message), data=loose.data)


def encode_request(id_: int, method: str, params: Any) -> bytes:
    """One framed request line."""
    return _encoder.encode_lines((_Request(id_, method, {} if params is None else params),))


def encode_notification(method: str, params: Any = None) -> bytes:
    """One framed notification line."""
    return _encoder.encode_lines((_Notification(method, UNSET if params is None else params),))


def encode_response(id_: Any, result: Any) -> bytes:
    """One framed response line, the id echoed as it came."""
    return _encoder.encode_lines((_Response(id_, result),))


def encode_error(id_: Any, code: int, message: str, data: Any = None) -> bytes:
    """One framed error line, the id echoed as it came."""
    return _encoder.encode_lines((_ErrorResponse(id_, RpcError(code, message, data)),))
