"""From names to servers and back, over the live lists of all servers of a host.

Owned by the host; holds nothing of its own. One slow or broken server never hides the others: where nobody named it,
its lists are left out, and its status says why.
"""

from __future__ import annotations

import asyncio
import difflib
import heapq
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ..errors import CallError, MooringsError, UnknownResource, UnknownServer, UnknownTool
from ..server.server import Server
from ..server.states import State
from ..session.clock import CallClock
from ..session.methods import Listed
from ..wire.types import CallToolResult, TextContent, encode
from .catalog import (
    CatalogPrompt,
    CatalogResource,
    CatalogTemplate,
    CatalogTool,
    HelperKind,
    catalog_tools,
    helper_tools,
    wanted,
)
from .names import ENDING, MAX_NAME, exposed_name, split_plain

__all__ = ["Directory", "nearest", "template_matches"]

_log = logging.getLogger("moorings")
T = TypeVar("T")

MAX_TEMPLATE = 4096
"""Characters of a URI template; a longer one matches nothing."""
MAX_EXPRESSIONS = 64
"""Expressions in a URI template; one with more matches nothing."""
MAX_NEAR = 200
"""Names among which the one that was meant is looked for."""
MAX_NEAR_LENGTH = 200
"""Characters of a name for which that is done."""

_EXPRESSION = re.compile(r"\{[^{}]*\}")

KNOWN = (State.READY, State.PARKED, State.IDLE, State.CONNECTING, State.STOPPING)
"""States in which the last known lists of a server count: the next use wakes it."""


def template_matches(template: str, uri: str) -> bool:
    """Whether a URI could come from a template (RFC 6570, read loosely: an expression stands for any text)."""
    if len(template) > MAX_TEMPLATE:
        return False
    first, *rest = _EXPRESSION.split(template)
    if not rest:
        return uri == first
    if len(rest) > MAX_EXPRESSIONS:
        return False
    *between, last = rest
    end = len(uri) - len(last)
    if not (uri.startswith(first) and uri.endswith(last)) or end < len(first):
        return False
    # The first place that fits leaves the most room for the rest, so nothing has to be tried again: a pattern of a
    # server must not cost more than one walk over the text.
    at = len(first)
    for part in between:
        at = uri.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, if one is near. Bounded work: a server may list any number of names."""
    if len(name) > MAX_NEAR_LENGTH:
        return None
    listed = list(names)
    if len(listed) > MAX_NEAR:
        # A slip of the pen mostly leaves the beginning as it was.
        listed = heapq.nlargest(MAX_NEAR, listed, key=lambda other: _shared(name, other))
    near = difflib.get_close_matches(name, [n for n in listed if len(n) <= MAX_NEAR_LENGTH], n=1)
    return near[0] if near else None


def _shared(one: str, other: str) -> int:
    """How many characters two names share at their beginning."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


class Directory:
    """Lists and names over the servers of one host."""

    def __init__(
        self, servers: Mapping[str, Server], *, resources_as_tools: bool, prompts_as_tools: bool
    ) -> None:
        self._servers = servers
        self._resources_as_tools = resources_as_tools
        self._prompts_as_tools = prompts_as_tools
        self.known: dict[str | tuple[str, str], tuple[Server, str]] = {}
        """Where names led that were looked up since anything moved: a call is to find its way at once."""

        self._catalogs: dict[str, tuple[Listed, Sequence[CatalogTool]]] = {}

    def forget(self) -> None:
        """A server, its state or its lists are others now."""
        self.known.clear()
        self._catalogs.clear()

    # Lists

    async def _lists(
        self, kind: str, servers: Sequence[Server], clock: CallClock, *, named: bool
    ) -> list[tuple[Server, Listed]]:
        """One list of each server. A named server is started and its failure raised; of the others, those that are
        up are asked and those that are not give what they last listed."""

        async def one(server: Server) -> Listed | None:
            if named or server.state is State.READY:
                try:
                    return await server.listed(kind, clock)
                except CallError as error:
                    if named:
                        raise
                    _log.warning("server %s: no %s: %s", server.name, kind, error)
                    return None
            return server.lists[kind].listed if server.state in KNOWN else None

        listed = await _all_of([one(server) for server in servers])
        found = [(server, each) for server, each in zip(servers, listed, strict=True) if each is not None]
        return sorted(found, key=lambda pair: pair[0].name)

    async def tools(self, servers: Sequence[Server], clock: CallClock, *, named: bool) -> list[CatalogTool]:
        """The catalog of tools, in a stable order."""
        catalog: list[CatalogTool] = []
        for server, listed in await self._lists("tools", servers, clock, named=named):
            catalog.extend(self._own_tools(server, listed))
            has = server.capabilities
            catalog.extend(
                helper_tools(
                    server.name,
                    resources=self._resources_as_tools and has is not None and has.resources is not None,
                    prompts=self._prompts_as_tools and has is not None and has.prompts is not None,
                )
            )
        return catalog

    def _own_tools(self, server: Server, listed: Listed) -> Sequence[CatalogTool]:
        """The tools of one server as the catalog lists them; made once for each listing, which may be long."""
        known = self._catalogs.get(server.name)
        if known is None or known[0] is not listed:
            known = self._catalogs[server.name] = (
                listed,
                catalog_tools(server.name, server.spec, listed.items),
            )
        return known[1]

    async def prompts(
        self, servers: Sequence[Server], clock: CallClock, *, named: bool
    ) -> list[CatalogPrompt]:
        """The catalog of prompts."""
        return [
            CatalogPrompt(exposed_name(server.name, prompt.name), server.name, prompt)
            for server, listed in await self._lists("prompts", servers, clock, named=named)
            for prompt in sorted(listed.items, key=lambda p: str(p.name))
        ]

    async def resources(
        self, servers: Sequence[Server], clock: CallClock, *, named: bool
    ) -> list[CatalogResource]:
        """The catalog of resources."""
        return [
            CatalogResource(server.name, resource)
            for server, listed in await self._lists("resources", servers, clock, named=named)
            for resource in sorted(listed.items, key=lambda r: str(r.uri))
        ]

    async def templates(
        self, servers: Sequence[Server], clock: CallClock, *, named: bool
    ) -> list[CatalogTemplate]:
        """The catalog of resource templates."""
        return [
            CatalogTemplate(server.name, template)
            for server, listed in await self._lists("resource_templates", servers, clock, named=named)
            for template in sorted(listed.items, key=lambda t: str(t.uri_template))
        ]

    # Names

    def plain_tool(self, name: str) -> tuple[Server, str] | None:
        """Server and raw name of a plain name; None for one with a hash, which only ``resolve_tool`` can find.

        Raises:
            UnknownServer, UnknownTool: the name leads nowhere, or its server's filters hide it.
        """
        known = self.known.get(name)
        if known is not None:
            return known
        plain = split_plain(name)
        if plain is not None:
            server = self._servers.get(plain[0])
            if server is None:
                raise UnknownServer(
                    f"there is no server {plain[0]!r}, so no tool {name!r}",
                    fix=f"known servers: {', '.join(self._servers) or 'none'}",
                )
            listed = server.lists["tools"]
            current = listed.listed is not None and not listed.stale and server.state is State.READY
            if (current and plain[1] not in listed.by_name) or not wanted(server.spec, plain[1]):
                raise self._unknown(
                    name, [exposed_name(server.name, n) for n in listed.by_name if wanted(server.spec, n)]
                )
            if current:
                # What is not listed is let through for once, and not kept: there is no end of such names.
                self.known[name] = (server, plain[1])
            return server, plain[1]
        return None

    def raw_tool(self, name: tuple[str, str]) -> tuple[Server, str] | None:
        """The server of a raw name, None if there is none such. It need not list the tool."""
        server = self._servers.get(name[0])
        if server is None:
            return None
        found = (server, name[1])
        if server.state is State.READY and name[1] in server.lists["tools"].by_name:
            self.known[name] = found
        return found

    async def resolve_tool(self, name: str, clock: CallClock) -> tuple[Server, str, HelperKind | None]:
        """Server, raw name, and what it stands for, of a name with a hash.

        Raises:
            UnknownTool: the name leads nowhere, or its server's filters hide it.
        """
        seen = []
        for tool in await self._candidates(name, clock):
            if tool.name == name:
                server = self._servers[tool.server]
                if tool.helper is None and server.state is State.READY:
                    self.known[name] = (server, tool.tool.name)
                return server, tool.tool.name, tool.helper
            seen.append(tool.name)
        out = [s for s in self._servers.values() if s.state not in KNOWN and self._could_own(s, name)]
        for server in out:
            # Not in the catalog now, but its name still leads to it: the call will say what is to be done.
            known = server.lists["tools"].by_name.values()
            for tool in catalog_tools(server.name, server.spec, known):
                if tool.name == name:
                    return server, tool.tool.name, None
        raise self._unknown(name, seen, out)

    def _unknown(self, name: str, names: Sequence[str], out: Sequence[Server] = ()) -> UnknownTool:
        text = f"there is no {name!r} in the catalog"
        if (near := nearest(name, names)) is not None:
            text += f"; did you mean {near!r}?"
        for server in out:
            text += f"; server {server.name!r}, which may have it: {server.why_not_ready()}"
        return UnknownTool(text, fix="list the catalog: host.tools(), or 'moor tools'")

    async def _candidates(self, name: str, clock: CallClock) -> list[CatalogTool]:
        """The tools among which a name with a hash may be. Only servers that could have it, and have never been
        listed, are started for that."""
        likely = [s for s in self._servers.values() if self._could_own(s, name)]
        catalog: list[CatalogTool] = []
        for server in likely:
            fresh = server.lists["tools"].listed is None and server.state is not State.DISABLED
            try:
                catalog.extend(await self.tools([server], clock, named=fresh))
            except CallError as error:
                if len(likely) == 1:
                    raise
                _log.warning("server %s: not asked for %s: %s", server.name, name, error)
        return catalog

    def _could_own(self, server: Server, name: str) -> bool:
        """A name with a hash begins with the plain form of its server, or with as much as there was room for."""
        start = re.sub(r"[^A-Za-z0-9_-]", "_", server.name) + "__"
        return name.startswith(start[: MAX_NAME - ENDING])

    async def resolve_prompt(self, name: str, clock: CallClock) -> tuple[Server, str]:
        """Server and raw name of a prompt. Raises UnknownTool, UnknownServer."""
        plain = split_plain(name)
        if plain is not None:
            server = self._servers.get(plain[0])
            if server is None:
                raise UnknownServer(f"there is no server {plain[0]!r}, so no prompt {name!r}")
            return server, plain[1]
        likely = [s for s in self._servers.values() if self._could_own(s, name)]
        listed = await self.prompts(likely, clock, named=len(likely) == 1)
        for prompt in listed:
            if prompt.name == name:
                return self._servers[prompt.server], prompt.prompt.name
        raise self._unknown(name, [p.name for p in listed])

    async def holder(self, uri: str, clock: CallClock) -> Server:
        """The one server that holds a resource: by its lists, else by its templates, else the only one with any.

        Raises:
            UnknownResource: none does, or more than one.
        """
        servers = list(self._servers.values())
        resources = await self.resources(servers, clock, named=False)
        names = {item.server for item in resources if item.resource.uri == uri}
        if not names:
            templates = await self.templates(servers, clock, named=False)
            names = {t.server for t in templates if template_matches(t.template.uri_template, uri)}
            if not names:
                names = {item.server for item in resources} | {item.server for item in templates}
                if len(names) != 1:
                    raise UnknownResource(
                        f"no server is known to hold {uri!r}", fix="name the server: server=…"
                    )
        if len(names) > 1:
            raise UnknownResource(
                f"more than one server could hold {uri!r}: {', '.join(sorted(names))}",
                fix="name the server: server=…",
            )
        return self._servers[names.pop()]

    # Resources and prompts as tools

    async def call_helper(
        self, server: Server, kind: HelperKind, arguments: Mapping[str, Any], clock: CallClock
    ) -> CallToolResult:
        """Do what a tool that stands for resources or prompts says. Raises CallError."""
        if kind == "resources/list":
            lists = [await server.listed(k, clock) for k in ("resources", "resource_templates")]
            return _as_text([list(listed.items) for listed in lists])
        if kind == "prompts/list":
            return _as_text(list((await server.listed("prompts", clock)).items))
        if kind == "resources/read":
            uri = str(arguments.get("uri", ""))
            return _as_text(await server.read_resource(uri, clock))
        name = str(arguments.get("name", ""))
        pairs = arguments.get("arguments") or {}
        if not isinstance(pairs, Mapping):
            wrong = f"arguments of a prompt are an object of strings, not {type(pairs).__name__}"
            return CallToolResult(content=[TextContent(text=wrong)], is_error=True)
        given = {str(k): str(v) for k, v in pairs.items()}
        return _as_text(await server.request(name, clock, lambda m: m.get_prompt(name, given, clock)))


def _as_text(value: Any) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text=encode(value).decode())], structured_content_raw=msgspec.UNSET
    )


async def _all_of(works: Sequence[Any]) -> list[Any]:
    """Await several at once; the first failure is raised after all have ended."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, MooringsError):
            raise outcome
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return list(outcomes)
