"""From a function to a tool, a resource or a prompt: its arguments, its schema, and what its result means.

Pure: looks at functions and calls none. The schema of a tool is made from the type hints by ``msgspec``, which also
checks what comes in, so that what is listed is what is accepted. Spec: server/tools, server/resources, server/prompts.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Union
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, UnsetType

from ..errors import MisuseError
from ..wire.types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    PromptMessage,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    UnknownContent,
    encode,
)
from .context import Context

__all__ = [
    "BadArguments",
    "Function",
    "UriTemplate",
    "prompt_result",
    "read_result",
    "schema_of",
    "tool_result",
]

BLOCKS = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource, UnknownContent)
PLAIN_DEFAULTS = (str, int, float, bool, type(None), Enum)
"""Defaults that stand in a schema as they are; others are left to the function."""

_object = msgspec.json.Decoder(dict[str, Any])


class BadArguments(Exception):
    """What the client sent does not fit the function."""


class Function:
    """A function of the user's, and what it takes.

    Args:
        typed: convert and check arguments by the type hints; else they are handed on as they come.

    Raises:
        MisuseError: it takes what a client cannot give.
    """

    def __init__(self, call: Callable[..., Any], *, typed: bool) -> None:
        self.call = call
        named = call if inspect.isroutine(call) or not callable(call) else type(call).__call__
        self.is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(named)
        self.name: str = getattr(call, "__name__", type(call).__name__)
        self.description = inspect.getdoc(call) if inspect.isroutine(call) else None
        hints = self._hints()
        parameters = list(inspect.signature(call).parameters.values())
        self.wants_context = bool(parameters) and hints.get(parameters[0].name) is Context
        if self.wants_context:
            parameters = parameters[1:]
            if not self.is_async:
                raise MisuseError(
                    f"{self.name} takes a Context and is no 'async def'", fix=f"write 'async def {self.name}'"
                )
        self.parameters = parameters
        self._type: type[msgspec.Struct] | None = self._arguments_type(hints) if typed else None

    def _hints(self) -> dict[str, Any]:
        call = self.call if inspect.isroutine(self.call) else type(self.call).__call__
        try:
            return typing.get_type_hints(call, include_extras=True)
        except NameError as error:
            raise MisuseError(
                f"the type hints of {self.name} cannot be resolved: {error}",
                fix="define the types it names at the top of a module",
            ) from None
        except TypeError:
            return {}

    def _arguments_type(self, hints: Mapping[str, Any]) -> type[msgspec.Struct]:
        fields: list[tuple[str, Any, Any]] = []
        for each in self.parameters:
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
                raise MisuseError(
                    f"{self.name} takes {each}, which no client can name",
                    fix="take arguments by name, or give input_schema=",
                )
            hint = hints.get(each.name, Any)
            if each.default is each.empty:
                fields.append((each.name, hint, msgspec.field()))
            elif isinstance(each.default, PLAIN_DEFAULTS):
                fields.append((each.name, hint, each.default))
            else:
                fields.append((each.name, Union[hint, UnsetType], UNSET))  # noqa: UP007  # made at run time
        try:
            made = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            schema_of(made)
            msgspec.json.Decoder(made)
        except TypeError as error:
            raise MisuseError(
                f"no schema can be made from the type hints of {self.name}: {error}", fix="give input_schema="
            ) from None
        return made

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        return schema_of(self._type) if self._type is not None else {"type": "object"}

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What to call it with.

        Raises:
            BadArguments: they do not fit.
        """
        if self._type is None:
            return dict(given)
        try:
            made = msgspec.convert(given, self._type)
        except msgspec.ValidationError as error:
            raise BadArguments(str(error)) from None
        values = {each.name: getattr(made, each.name) for each in self.parameters}
        return {name: value for name, value in values.items() if value is not UNSET}

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Whether these names fit what it takes, whatever their types.

        Raises:
            BadArguments: one lacks, or is too many.
        """
        takes = {each.name: each for each in self.parameters}
        lacks = [name for name, each in takes.items() if each.default is each.empty and name not in given]
        strange = [name for name in given if name not in takes]
        if lacks or strange:
            what = [f"{name!r} is missing" for name in lacks] + [f"{name!r} is not known" for name in strange]
            raise BadArguments(", ".join(what))


def schema_of(type_: Any) -> dict[str, Any]:
    """The JSON Schema of a type that is an object, in itself complete and with no reference at its top.

    Raises:
        TypeError: there is none.
    """
    (top,), parts = msgspec.json.schema_components((type_,), ref_template="#/$defs/{name}")
    if "$ref" in top:
        top = parts.pop(top["$ref"].rsplit("/", 1)[1])
    top.pop("title", None)
    return {**top, "$defs": parts} if parts else top


class UriTemplate:
    """A URI with names in braces, each of which stands for one part of a path. Of RFC 6570, the first level."""

    def __init__(self, text: str) -> None:
        self.text = text
        parts = re.split(r"\{(\w+)\}", text)
        self.names = parts[1::2]
        self._pattern = re.compile(
            "".join(
                f"(?P<{part}>[^/?#]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)
            )
        )

    def match(self, uri: str) -> dict[str, str] | None:
        """The values of its names in a URI; None if it is another's."""
        found = self._pattern.fullmatch(uri)
        return {name: unquote(value) for name, value in found.groupdict().items()} if found else None


# What the result of a function means


def _plain(value: Any) -> Any:
    """A struct, or what is nearly one, as plain JSON values."""
    if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        return msgspec.to_builtins(value)
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def tool_result(value: Any) -> dict[str, Any]:
    """The result of ``tools/call``: text for a string, structure and its text for an object, content as it is.

    Raises:
        TypeError: it has no place in a message.
    """
    if isinstance(value, CallToolResult):
        return _object.decode(encode(value)) | {"content": _decoded(value.content)}
    if value is None:
        return {"content": []}
    if isinstance(value, BLOCKS):
        return {"content": _decoded([value])}
    if isinstance(value, list | tuple) and value and all(isinstance(each, BLOCKS) for each in value):
        return {"content": _decoded(value)}
    value = _plain(value)
    result: dict[str, Any] = {"content": [{"type": "text", "text": _text(value)}]}
    if isinstance(value, Mapping):
        result["structuredContent"] = msgspec.json.decode(encode(value))
    return result


def _decoded(value: Any) -> Any:
    return msgspec.json.decode(encode(value))


def read_result(uri: str, mime_type: str | None, value: Any) -> dict[str, Any]:
    """The result of ``resources/read``. Raises TypeError as ``tool_result``."""
    if isinstance(value, ReadResourceResult):
        return {"contents": _decoded(value.contents)}
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(each, ResourceContents) for each in value)
    ):
        return {"contents": _decoded(value)}
    if not isinstance(value, ResourceContents):
        if isinstance(value, bytes | bytearray):
            mime_type = mime_type or "application/octet-stream"
            value = ResourceContents(uri=uri, mime_type=mime_type, blob=base64.b64encode(value).decode())
        else:
            plain = isinstance(value, str)
            mime_type = mime_type or ("text/plain" if plain else "application/json")
            value = ResourceContents(uri=uri, mime_type=mime_type, text=_text(_plain(value)))
    return {"contents": [_decoded(value)]}


def prompt_result(description: str | None, value: Any) -> dict[str, Any]:
    """The result of ``prompts/get``. Raises TypeError as ``tool_result``."""
    if isinstance(value, GetPromptResult):
        return _object.decode(encode(value)) | {"messages": _decoded(value.messages)}
    messages = list(value) if isinstance(value, list | tuple) else [value]
    result: dict[str, Any] = {
        "messages": [
            _decoded(each)
            if isinstance(each, PromptMessage)
            else {"role": "user", "content": {"type": "text", "text": _text(each)}}
            for each in messages
        ]
    }
    if description:
        result["description"] = description
    return result
