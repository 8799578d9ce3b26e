"""The headers that repeat what a message says, for those on the way who do not read bodies. Modern era, HTTP only.

``Mcp-Method`` and ``Mcp-Name`` stand on every message and on those with a name; ``Mcp-Param-*`` repeats arguments
that a tool's schema marks with ``x-mcp-header``. A tool whose marks break a rule must not be offered. Nothing that a
server or a caller says can end a header or begin another one (F16.11). Sources: MCP ``basic/transports`` (Streamable
HTTP), ``server/tools``, SEP-2243; ``Mcp-Name`` of tasks: the tasks extension.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

__all__ = [
    "ANNOTATION",
    "NAMED_BY",
    "NO_PARAMS",
    "InvalidHeaders",
    "ParamHeaders",
    "Unmirrorable",
    "encode_value",
    "mirrored_name",
    "param_rules",
    "standard_headers",
]

ANNOTATION = b"x-mcp-header"
"""A listing without these bytes has no tool with parameter headers: nothing of it need be decoded."""

NAMED_BY: Mapping[str, str] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""Method → the param that ``Mcp-Name`` repeats."""

MAX_PARAMS = 64
"""Marked parameters a tool may have: more would not fit into the headers that servers take."""
MAX_DEPTH = 64
"""Levels of ``properties`` a schema may have."""
MAX_NODES = 20_000
"""Subschemas that are looked at."""
MAX_NAME = 128
"""Characters of one name."""
MAX_SAFE = 2**53 - 1
"""The largest whole number that JavaScript holds exactly."""

_PLAIN = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PRIMITIVES = ("string", "integer", "boolean")
_KEY = ANNOTATION.decode()

# Where JSON Schema has schemas other than in `properties`: one, a list, or an object of them.
_ONE = (
    *("items", "additionalItems", "contains", "additionalProperties", "propertyNames", "unevaluatedItems"),
    *("unevaluatedProperties", "not", "if", "then", "else", "contentSchema"),
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies")


class Unmirrorable(ValueError):
    """An argument whose header cannot be written as the rules demand: the call must not be sent."""


class InvalidHeaders(msgspec.Struct, frozen=True):
    """The marks of a tool break a rule: it has to be left out of the list."""

    reason: str
    """Which rule, in one clause for people."""


class ParamHeaders(msgspec.Struct, frozen=True):
    """Which arguments of one tool are repeated in headers."""

    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Header, and the path of property names to its argument."""

    def of(self, arguments: Mapping[str, Any] | None) -> dict[str, str]:
        """The headers for these arguments.

        What is absent or null has none, as the rules say. What is of another primitive type than the schema wants is
        repeated as it is: the server's refusal of the argument then tells more than that of a header. What no header
        can hold (a list, an object, a fraction) is left out.

        Raises:
            Unmirrorable: a whole number beyond what JavaScript holds exactly.
        """
        headers: dict[str, str] = {}
        for header, path in self.rules:
            value: Any = arguments
            for name in path:
                value = value.get(name) if isinstance(value, Mapping) else None
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if not isinstance(value, str | int):
                continue
            if not isinstance(value, str) and abs(value) > MAX_SAFE:
                raise Unmirrorable(
                    f"the argument {'.'.join(path)!r} is repeated in the header {header}, and must be within ±(2^53-1)"
                )
            headers[header] = encode_value(value)
        return headers


NO_PARAMS = ParamHeaders()
"""Of a tool without marks."""


def encode_value(value: str | int | bool) -> str:
    """A value as a header: itself where that is plain ASCII, else base64 of its UTF-8 between the markers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    return f"=?base64?{b64encode(value.encode('utf-8', 'replace')).decode()}?="


def mirrored_name(method: str, params: Mapping[str, Any] | None) -> str | None:
    """What ``Mcp-Name`` has to repeat of these params; None where there is nothing."""
    key = NAMED_BY.get(method)
    value = params.get(key) if key is not None and params is not None else None
    return value if isinstance(value, str) else None


def standard_headers(method: str, name: str | None = None) -> dict[str, str]:
    """The headers of one message, a request or a notification; ``name`` as ``mirrored_name`` gives it."""
    headers = {"Mcp-Method": encode_value(method)}
    if name is not None and method in NAMED_BY:
        headers["Mcp-Name"] = encode_value(name)
    return headers


def param_rules(schema: bytes | Raw) -> ParamHeaders | InvalidHeaders:
    """The parameter headers of a tool, from its ``inputSchema`` as it came.

    Cheap for one without marks: its bytes are searched, not decoded. ``$ref`` is never followed.
    """
    # A mark that is written with escapes is not seen: then it is simply not there.
    text = bytes(schema)
    if ANNOTATION not in text:
        return NO_PARAMS
    try:
        root = msgspec.json.decode(text)
    except RecursionError:
        return InvalidHeaders("inputSchema is nested too deeply")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return InvalidHeaders("inputSchema is not valid JSON")
    try:
        return _Walk().rules(root)
    except _Broken as broken:
        return InvalidHeaders(str(broken))


class _Broken(Exception):
    """A rule is broken."""


class _Walk:
    """One look at all subschemas of a schema."""

    def __init__(self) -> None:
        self._found: list[tuple[str, tuple[str, ...]]] = []
        self._seen: set[str] = set()
        self._looked = 0

    def rules(self, root: Any) -> ParamHeaders:
        # A path of None: not reachable by `properties` alone, so that no mark may stand there.
        waiting: list[tuple[Any, tuple[str, ...] | None]] = [(root, ())]
        while waiting:
            schema, path = waiting.pop()
            if not isinstance(schema, dict):
                continue
            self._looked += 1
            if self._looked > MAX_NODES:
                raise _Broken(f"inputSchema has more than {MAX_NODES:,} parts")
            if _KEY in schema:
                self._mark(schema, path)
            inner: list[tuple[Any, tuple[str, ...] | None]] = []
            properties = schema.get("properties")
            if isinstance(properties, dict):
                if path is not None and len(path) >= MAX_DEPTH:
                    raise _Broken(f"inputSchema has more than {MAX_DEPTH} levels of properties")
                inner += (
                    (each, None if path is None else (*path, name)) for name, each in properties.items()
                )
            inner += ((schema.get(key), None) for key in _ONE)
            for key in _LISTS:
                if isinstance(each := schema.get(key), list):
                    inner += ((item, None) for item in each)
            for key in _MAPS:
                if isinstance(each := schema.get(key), dict):
                    inner += ((item, None) for item in each.values())
            # In the order of the schema, so that the reason named is always the same.
            waiting += reversed(inner)
        return ParamHeaders(tuple(self._found)) if self._found else NO_PARAMS

    def _mark(self, schema: dict[str, Any], path: tuple[str, ...] | None) -> None:
        name = schema[_KEY]
        if not path:
            raise _Broken(f"{_KEY} stands where properties alone do not lead")
        where = f"{_KEY} of {'.'.join(path)[:MAX_NAME]!r}"
        if not isinstance(name, str) or not name:
            raise _Broken(f"{where} is {'empty' if name == '' else 'no text'}")
        if not _TOKEN.fullmatch(name) or len(name) > MAX_NAME:
            raise _Broken(f"{where} is no name for a header: {name[:MAX_NAME]!r}")
        if not _primitive(schema.get("type")):
            raise _Broken(f"{where} is on a parameter that is no string, integer or boolean")
        if name.lower() in self._seen:
            raise _Broken(f"{where} is {name!r}, which another parameter has too")
        if len(self._found) == MAX_PARAMS:
            raise _Broken(f"{_KEY} stands on more than {MAX_PARAMS} parameters")
        self._seen.add(name.lower())
        self._found.append((f"Mcp-Param-{name}", path))


def _primitive(type_: Any) -> bool:
    """Whether a type is one of the three, or one of them and null, which has no header."""
    if isinstance(type_, list):
        kinds = [each for each in type_ if each != "null"]
        return len(kinds) == 1 and kinds[0] in _PRIMITIVES
    return type_ in _PRIMITIVES
