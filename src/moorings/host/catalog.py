"""One catalog over all servers: names, filters, a stable order; resources and prompts as tools, if wanted.

Built from the servers' lists when asked; pure. A name resolves to a server and the raw name that is sent to it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal

import msgspec

from ..config import ServerSpec
from ..wire.types import Prompt, Resource, ResourceTemplate, Tool
from .names import exposed_names, helper_name

__all__ = [
    "HELPERS",
    "CatalogPrompt",
    "CatalogResource",
    "CatalogTemplate",
    "CatalogTool",
    "helper_tools",
    "wanted",
]

HelperKind = Literal["resources/list", "resources/read", "prompts/list", "prompts/get"]

HELPERS: Mapping[HelperKind, tuple[str, dict[str, Any]]] = {
    "resources/list": (
        "List the resources and resource templates of this server.",
        {"type": "object", "properties": {}},
    ),
    "resources/read": (
        "Read a resource of this server by its URI.",
        {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
    ),
    "prompts/list": ("List the prompts of this server.", {"type": "object", "properties": {}}),
    "prompts/get": (
        "Get a prompt of this server, filled in with arguments.",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["name"],
        },
    ),
}
"""Tools that stand for resources and prompts. Their names carry a hash of their own kind and never meet a tool of
the server, whatever it is called."""


class CatalogTool(msgspec.Struct, frozen=True, gc=False):
    """A tool as the catalog lists it."""

    name: str
    """What models see and ``host.call`` takes."""
    server: str
    tool: Tool
    """As the server lists it; its own ``name`` is the raw one."""
    helper: HelperKind | None = None
    """Set if it stands for resources or prompts."""

    @property
    def description(self) -> str:
        """What it does, in the server's words: not to be trusted."""
        return self.tool.description or self.tool.title or ""

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of its arguments, as the server wrote it."""
        return self.tool.input_schema


class CatalogPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt as the catalog lists it."""

    name: str
    """What ``host.get_prompt`` takes."""
    server: str
    prompt: Prompt


class CatalogResource(msgspec.Struct, frozen=True, gc=False):
    """A resource as the catalog lists it; named by server and URI."""

    server: str
    resource: Resource


class CatalogTemplate(msgspec.Struct, frozen=True, gc=False):
    """A resource template as the catalog lists it."""

    server: str
    template: ResourceTemplate


def wanted(spec: ServerSpec, raw_name: str) -> bool:
    """Whether the filters of a server let a tool through: globs on raw names, case-sensitive."""
    if spec.include is not None and not any(fnmatch.fnmatchcase(raw_name, glob) for glob in spec.include):
        return False
    return not any(fnmatch.fnmatchcase(raw_name, glob) for glob in spec.exclude)


def catalog_tools(server: str, spec: ServerSpec, tools: Iterable[Tool]) -> list[CatalogTool]:
    """The tools of one server as the catalog lists them, ordered by name."""
    if spec.include is not None or spec.exclude:
        tools = [tool for tool in tools if wanted(spec, tool.name)]
    ordered = sorted(tools, key=attrgetter("name"))
    names = exposed_names(server, [tool.name for tool in ordered])
    return [CatalogTool(name, server, tool) for name, tool in zip(names, ordered, strict=True)]


def helper_tools(server: str, *, resources: bool, prompts: bool) -> list[CatalogTool]:
    """The tools that stand for the resources and prompts of one server."""
    made = []
    for kind, (description, schema) in HELPERS.items():
        if resources if kind.startswith("resources/") else prompts:
            raw = msgspec.Raw(msgspec.json.encode(schema))
            tool = Tool(name=kind, description=description, input_schema_raw=raw)
            made.append(CatalogTool(helper_name(server, kind), server, tool, kind))
    return made
