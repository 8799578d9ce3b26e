"""Decoding what peers send: strict and in C first, by its meaning second.

``decode_result`` is one pass of a typed msgspec decoder. Only what that refuses is read again here, key by
key, under one rule: what can mean only one thing is accepted; what cannot is refused, at the smallest cost:
a hint is dropped, an item is left out of its list, a content block stays raw, and only after that is the
whole answer refused with ``InvalidAnswer``. Whatever is lost leaves a line in ``result.problems``. What
belongs to the user (schemas, structuredContent, ``_meta``) is raw in the types, so nothing here can alter
it.

Pure functions of the message, no I/O. The work is bounded by ``MAX_ITEMS``, the report by ``MAX_PROBLEMS``.
"""

from __future__ import annotations

import re
import types
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Raw, Struct
from msgspec.structs import FieldInfo

from moorings.wire.content import InvalidAnswer, Tool, UnknownContent, _Block, repair_utf8

__all__ = ["MAX_ITEMS", "MAX_PROBLEMS", "decode_params", "decode_result"]

T = TypeVar("T")

MAX_ITEMS = 50_000
"""List items one answer may have if it must be read leniently, at microseconds an item."""

MAX_PROBLEMS = 64
"""Lines ``problems`` may hold; the last one counts the rest."""

# fmt: off
HINTS = frozenset((
    "title", "description", "annotations", "audience", "priority", "lastModified", "size", "mimeType",
    "websiteUrl", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint", "ttlMs", "cacheScope",
    "instructions", "total", "hasMore", "message", "logger", "reason", "listChanged", "subscribe", "serverInfo",
    "statusMessage", "createdAt", "lastUpdatedAt", "pollIntervalMs",
))
"""Optional keys a caller can do without: dropped if unreadable. No tool looks safer for it."""

EXACT = frozenset((
    "name", "uri", "uriTemplate", "id", "toolUseId", "requestState", "elicitationId", "method", "url", "data",
    "blob", "model", "resultType", "taskId",
))
# fmt: on
"""Text that is sent back, or acted on, letter by letter: never made from a number."""

_INTEGER = re.compile(r"[+-]?\d{1,18}(?:\.0{1,9})?")
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,2})?")
_KINDS = {"{": "an object", "[": "a list", '"': "a string", "t": "a boolean", "f": "a boolean", "n": "null"}


@cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


_any = _decoder(Any)
_parts = _decoder(dict[str, Raw])
_items = _decoder(list[Raw])


def decode_result(raw: bytes | Raw, type_: type[T]) -> T:
    """Decode a message part into ``type_``, strictly or else leniently. Raises only ``InvalidAnswer``."""
    try:
        return _decoder(type_).decode(raw)  # type: ignore[no-any-return, arg-type]
    except msgspec.DecodeError:
        pass
    except RecursionError:
        raise InvalidAnswer("nested too deeply", raw) from None
    try:
        return _decode_leniently(raw, type_)
    except _Bad as bad:
        raise InvalidAnswer(str(bad), raw) from None
    except msgspec.DecodeError as error:
        raise InvalidAnswer(f"not valid JSON ({error})", raw) from None
    except RecursionError:
        raise InvalidAnswer("nested too deeply", raw) from None


def decode_params(raw: bytes | Raw, type_: type[T]) -> T:
    """The same for the params of a request or notification from a server."""
    return decode_result(raw, type_)


def _decode_leniently(raw: bytes | Raw, type_: type[T]) -> T:
    if bytes(memoryview(raw)[:1]).isspace():
        raw = bytes(raw).lstrip()  # as inner parts come: the first byte tells the kind
    reader = _Reader()
    try:
        value = reader.value(raw, type_, "", "")
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Not JSON as it stands. Once more with the text mended; what is still wrong then stays wrong.
        mended = repair_utf8(bytes(raw))
        if mended == bytes(raw):
            raise
        reader = _Reader()
        reader.note("text that is not valid Unicode was replaced by U+FFFD")
        value = reader.value(mended, type_, "", "")
    if reader.problems and hasattr(value, "__dict__"):
        value.__dict__["problems"] = reader.problems  # where Result.problems, a cached property, looks first
    return value  # type: ignore[no-any-return]


class _Bad(Exception):
    """This part has no single meaning."""


class _Reader:
    """One lenient reading of one message."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unlisted = 0
        self.budget = MAX_ITEMS

    def note(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS - 1:
            self.problems.append(text)
            return
        self.unlisted += 1
        del self.problems[MAX_PROBLEMS - 1 :]
        self.problems.append(f"and {self.unlisted} more")

    def value(self, raw: bytes | Raw, want: Any, key: str, where: str) -> Any:
        """``raw`` as a ``want``; ``key`` is its wire name, ``where`` its path for the reader of a problem."""
        try:
            return _decoder(want).decode(raw)  # most parts of a bad message are good, and stay in C
        except msgspec.ValidationError:
            pass
        choices = _choices(want)
        if want is not Any and len(choices) == 1:
            want = choices[0]
        origin = get_origin(want)
        if origin is list:
            return self.read_list(raw, get_args(want)[0], key, where)
        if origin is dict:
            parts = self.read_object(raw, where)
            self.spend(len(parts), where)
            inner = get_args(want)[1]
            return {
                name: self.value(part, inner, "", f"{where}.{_short(name)}") for name, part in parts.items()
            }
        lists = [choice for choice in choices if get_origin(choice) is list]
        if lists and _first(raw) == "[":
            return self.read_list(raw, get_args(lists[0])[0], key, where)
        if _is_blocks(choices):
            return self.read_block(raw, choices, where)
        if isinstance(want, type) and issubclass(want, Struct):
            return self.read_struct(raw, want, where)
        return _scalar(raw, choices, key, where)

    def read_object(self, raw: bytes | Raw, where: str) -> dict[str, Raw]:
        if _first(raw) != "{":
            raise _Bad(f"{where or 'the answer'} is {_kind(raw)}, not an object")
        return _parts.decode(raw)  # type: ignore[no-any-return]

    def spend(self, count: int, where: str) -> None:
        self.budget -= count
        if self.budget < 0:
            raise _Bad(f"{where} is malformed and too long to be mended (over {MAX_ITEMS} items)")

    def read_list(self, raw: bytes | Raw, inner: Any, key: str, where: str) -> list[Any]:
        kind = _first(raw)
        blocks = _is_blocks(_choices(inner))
        if kind == "n":
            return []
        if kind == "{" and blocks:
            return [self.read_block(raw, _choices(inner), where)]
        if kind != "[":
            raise _Bad(f"{where} is {_kind(raw)}, not a list")
        parts = _items.decode(raw)
        self.spend(len(parts), where)
        if not blocks:
            return [self.value(part, inner, key, f"{where}[{index}]") for index, part in enumerate(parts)]
        values = []
        decode = _decoder(inner).decode
        for index, part in enumerate(parts):
            try:
                values.append(decode(part))
            except msgspec.ValidationError:
                values.append(self.read_block(part, _choices(inner), f"{where}[{index}]"))
        return values

    def read_catalogue(self, raw: Raw, inner: Any, where: str) -> list[Any]:
        """The list of a list result, item by item: one that cannot be read is left out and reported."""
        if _first(raw) == "n":
            return []
        if _first(raw) != "[":
            raise _Bad(f"{where} is {_kind(raw)}, not a list")
        parts = _items.decode(raw)
        self.spend(len(parts), where)
        values = []
        decode = _decoder(inner).decode
        for index, part in enumerate(parts):
            try:
                item = decode(part)
                if inner is Tool:
                    Tool.check_all((item,))
                values.append(item)
            except (msgspec.ValidationError, ValueError):
                here = f"{where}[{index}]"
                try:
                    values.append(self.read_struct(part, inner, here))
                except _Bad as bad:
                    self.note(f"{here}{_named(part)} left out: {str(bad).removeprefix(here).lstrip('. ')}")
        return values

    def read_block(self, raw: bytes | Raw, choices: tuple[Any, ...], where: str) -> Any:
        """A content block the strict decoder refused: mended, or kept as it came."""
        whole = raw if isinstance(raw, Raw) else Raw(raw)
        try:
            type_ = _any.decode(self.read_object(raw, where).get("type", Raw(b"null")))
        except _Bad:
            type_ = None
        if not isinstance(type_, str):
            self.note(f"{where or 'content'} is no content block with a type; kept as it came")
            return UnknownContent("", whole)
        for choice in choices:
            if _is_block(choice) and choice.__struct_config__.tag == type_:
                try:
                    return self.read_struct(raw, choice, where)
                except _Bad as bad:
                    self.note(f"{bad}; the block is kept as it came")
        return UnknownContent(type_, whole)

    def read_struct(self, raw: bytes | Raw, type_: type[Struct], where: str) -> Any:
        parts = self.read_object(raw, where)
        catalogue = getattr(type_, "CATALOGUE", None)
        values: dict[str, Any] = {}
        for info in _fields(type_):
            part = parts.get(info.encode_name)
            optional = info.default is not NODEFAULT or info.default_factory is not NODEFAULT
            here = f"{where}.{info.encode_name}" if where else info.encode_name
            if part is None:
                if not optional:
                    raise _Bad(f"{where or 'the answer'} has no {info.encode_name}")
                continue
            if info.name == catalogue:
                values[info.name] = self.read_catalogue(part, get_args(info.type)[0], here)
                continue
            wanted = _choices(info.type)
            if optional and _first(part) == "n" and Raw not in wanted:
                continue
            if len(wanted) == 1 and getattr(wanted[0], "SWITCH", False) and _first(part) in "tf":
                if _first(part) == "t":  # `"tools": true` can only mean `"tools": {}`, and false its absence
                    values[info.name] = wanted[0]()
                continue
            try:
                values[info.name] = self.value(part, info.type, info.encode_name, here)
            except _Bad as bad:
                if not optional or info.encode_name not in HINTS:
                    raise
                self.note(f"{bad}; passed over")
        try:
            made = type_(**values)
            if isinstance(made, Tool):
                Tool.check_all((made,))
            return made
        except ValueError as error:
            raise _Bad(f"{where or 'the answer'} {error}") from None


def _scalar(raw: bytes | Raw, choices: tuple[Any, ...], key: str, where: str) -> Any:
    """A boolean, a number or a text written as another kind, where only one thing can be meant."""
    value = None
    if _first(raw) not in "{[":
        try:
            value = _any.decode(raw)
        except msgspec.ValidationError:
            value = None  # a number out of range
    for choice in choices:
        if choice is bool:
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true"
            if type(value) is int and value in (0, 1):
                return value == 1
        elif choice is int:
            if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
                return int(value)
            if isinstance(value, str) and str not in choices and _INTEGER.fullmatch(value):
                return int(value.partition(".")[0])
        elif choice is float:
            if isinstance(value, str) and _NUMBER.fullmatch(value):
                return float(value)
        elif choice is str:
            if type(value) in (int, float) and len(choices) == 1 and key not in EXACT:
                return bytes(raw).decode()  # the digits as they were written
        elif get_origin(choice) is Literal and isinstance(value, str):
            for word in get_args(choice):
                if word == value.lower():
                    return word
    raise _Bad(f"{where or 'the answer'} is {_kind(raw)} that cannot be read as {_wanted(choices)}")


@cache
def _fields(type_: type[Struct]) -> tuple[FieldInfo, ...]:
    return msgspec.structs.fields(type_)


@cache
def _choices(want: Any) -> tuple[Any, ...]:
    """The members of a union without None and UNSET; of anything else, itself."""
    if get_origin(want) not in (Union, types.UnionType):
        return (want,)
    return tuple(arg for arg in get_args(want) if arg not in (type(None), msgspec.UnsetType))


@cache
def _is_blocks(choices: tuple[Any, ...]) -> bool:
    return len(choices) > 1 and any(map(_is_block, choices))


def _is_block(choice: Any) -> bool:
    return isinstance(choice, type) and issubclass(choice, _Block)


def _wanted(choices: tuple[Any, ...]) -> str:
    words = []
    for choice in choices:
        literal = get_origin(choice) is Literal
        words.append(" or ".join(get_args(choice)) if literal else getattr(choice, "__name__", str(choice)))
    return " or ".join(words)


def _first(raw: bytes | Raw) -> str:
    return bytes(memoryview(raw)[:1]).decode("latin-1") or " "


def _kind(raw: bytes | Raw) -> str:
    return _KINDS.get(_first(raw), "a number")


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")


def _named(raw: Raw) -> str:
    """`` 'name'`` of an item that has one, or its URI, for a problem's text."""
    try:
        parts = _parts.decode(raw)
        name = _any.decode(parts["name" if "name" in parts else "uri"])
    except (msgspec.DecodeError, RecursionError, KeyError):
        return ""
    return f" {_short(name)}" if isinstance(name, str) and name else ""
