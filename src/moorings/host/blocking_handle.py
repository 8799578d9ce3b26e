"""The blocking twin of ``ServerHandle``: the methods of the host, on raw names. Holds no resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import MisuseError, UnknownServer
from ..server.server import ServerStatus
from ..session.pending import OnProgress
from ..wire.skills import Skill, SkillFile
from ..wire.types import (
    CallToolResult,
    CompleteResult,
    GetPromptResult,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    Tool,
)

if TYPE_CHECKING:
    from .blocking import Host

__all__ = ["BlockingHandle"]


class BlockingHandle:
    """One server of a ``Host``, by its name. Kept after a close, its methods raise ``HostClosedError``."""

    __slots__ = ("_host", "name")

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self.name = name

    def __repr__(self) -> str:
        return f"<server {self.name!r}>"

    def status(self) -> ServerStatus:
        """How it stands. Raises UnknownServer if it was removed."""
        status = self._host.status()
        if self.name not in status:
            raise UnknownServer(f"there is no server {self.name!r}: it was removed")
        return status[self.name]

    @property
    def instructions(self) -> str | None:
        """How the server wants to be used, in its own words (not to be trusted); None while it is not up."""
        return self.status().instructions

    def tools(self) -> list[Tool]:
        """Its tools after its filters, by raw name; it is started if need be. Raises CallError."""
        return [item.tool for item in self._host.tools(servers=[self.name]) if item.helper is None]

    def resources(self) -> list[Resource]:
        """Its resources. Raises CallError."""
        return [item.resource for item in self._host.resources(servers=[self.name])]

    def resource_templates(self) -> list[ResourceTemplate]:
        """Its resource templates. Raises CallError."""
        return [item.template for item in self._host.resource_templates(servers=[self.name])]

    def prompts(self) -> list[Prompt]:
        """Its prompts. Raises CallError."""
        return [item.prompt for item in self._host.prompts(servers=[self.name])]

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        total: float | None = None,
        on_progress: OnProgress | None = None,
        repeat: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool by its raw name, also one that its filters hide or its list does not show; see
        ``AsyncHost.call`` for the rest."""
        return self._host.call_raw(
            self.name,
            tool,
            arguments,
            timeout=timeout,
            total=total,
            on_progress=on_progress,
            repeat=repeat,
            meta=meta,
        )

    def read_resource(self, uri: str, *, timeout: float | None = None) -> ReadResourceResult:
        """Read a resource. Raises CallError."""
        return self._host.read_resource(uri, server=self.name, timeout=timeout)

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> GetPromptResult:
        """Get a prompt by its raw name. Raises CallError."""
        return self._host.get_prompt_raw(self.name, name, arguments, timeout=timeout)

    def skills(self, *, timeout: float | None = None) -> list[Skill]:
        """The skills it lists; no file of one is read. See ``AsyncHost.skills``."""
        return self._host.skills(self.name, timeout=timeout)

    def skill(self, uri: str, *, timeout: float | None = None) -> Skill:
        """One skill by the URI of its ``SKILL.md``, listed or not. See ``AsyncHost.skill``."""
        return self._host.skill(self.name, uri, timeout=timeout)

    def read_skill(self, skill: Skill, file: str | None = None, *, timeout: float | None = None) -> SkillFile:
        """Read one file of a skill of this server, verified; see ``AsyncHost.read_skill``.

        Raises:
            MisuseError: the skill is of another server.
            SkillMismatch, CallError, ConfigError: as there.
        """
        if skill.server != self.name:
            raise MisuseError(f"the skill {skill.uri!r} is of server {skill.server!r}, not of {self.name!r}")
        return self._host.read_skill(skill, file, timeout=timeout)

    def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CompleteResult:
        """Proposals for an argument; see ``AsyncHost.complete``."""
        return self._host.complete(
            self.name, argument, value, prompt=prompt, template=template, context=context, timeout=timeout
        )

    def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Be told when a resource changes. Raises CallError."""
        self._host.subscribe(uri, server=self.name, timeout=timeout)

    def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """No longer be told. Raises CallError."""
        self._host.unsubscribe(uri, server=self.name, timeout=timeout)

    def set_log_level(self, level: str, *, timeout: float | None = None) -> None:
        """Say which log messages are wanted (``debug`` to ``emergency``). Raises CallError."""
        self._host.set_log_level(level, server=self.name, timeout=timeout)

    def ping(self, *, timeout: float | None = None) -> None:
        """Ask for a sign of life. Raises CallError."""
        self._host.ping(self.name, timeout=timeout)

    def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Any request, its result as plain JSON. Raises CallError."""
        return self._host.request(self.name, method, params, timeout=timeout)

    def notify(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> None:
        """Any notification. Raises CallError."""
        self._host.notify(self.name, method, params, timeout=timeout)

    def restart(self, *, timeout: float | None = None) -> None:
        """Stop it if it runs, start it at once and wait until it is ready; see ``AsyncHost.restart``."""
        self._host.restart(self.name, timeout=timeout)

    def enable(self) -> None:
        """Let it be started again."""
        self._host.enable(self.name)

    def disable(self) -> None:
        """Stop it until ``enable``."""
        self._host.disable(self.name)
