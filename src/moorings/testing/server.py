"""``MemoryServer``: an MCP server that is an object of the test.

Made by the user, and owned by nobody: it holds what was registered, what was called, and the faults to come. Each
connection of a host is a ``Peer`` (``peer.py``), which lives and ends with the host's transport. Its methods may be
called from any thread, so a blocking test can change a server that a ``Host`` is using.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import msgspec

from .._version import __version__
from ..config import Bounds, MemorySpec
from ..config.memory import MemoryLine, MemoryPeer
from ..config.spec import Protocol as Revision
from ..errors import MisuseError
from ..wire.eras import Era
from ..wire.types import ToolAnnotations, encode
from .faults import Fault
from .functions import Function, UriTemplate
from .peer import Peer

__all__ = ["Call", "MemoryServer"]

F = TypeVar("F", bound=Callable[..., Any])
SomeFault = TypeVar("SomeFault", bound=Fault)


class Call(msgspec.Struct, eq=False):
    """One ``tools/call`` that reached the server."""

    tool: str
    arguments: dict[str, Any]
    """As the client sent them."""
    ran: bool = False
    """Whether the function of the tool was begun."""
    result: dict[str, Any] | None = None
    """What was answered, as on the wire; None if nothing was, or nothing yet."""
    error: BaseException | None = None
    """What the function raised."""
    cancelled: bool = False
    """Whether it was cancelled: taken back by the client, or by the end of the connection."""


class _Scripted(msgspec.Struct):
    fault: Fault
    method: str
    tool: str | None
    left: int


class Item(msgspec.Struct):
    """A tool, resource, template or prompt: how it is listed, and what it does."""

    listed: dict[str, Any]
    function: Function
    template: UriTemplate | None = None


class MemoryServer:
    """An MCP server in this process; a host takes it in place of a specification.

    ::

        server = MemoryServer("weather")

        @server.tool
        def forecast(city: str, days: int = 1) -> str:
            "What the weather will be."
            return f"{city}: rain for {days} days"

        with Host({"weather": server}) as host:
            host.call("weather__forecast", {"city": "Delft"})
        assert server.calls[0].arguments == {"city": "Delft"}

    Args:
        name: what it calls itself. Its name in a host is the host's choice.
        era: the only era it speaks, ``"handshake"`` or ``"modern"``; None for both, of which a host then takes the
            modern one.
        instructions: how it wants to be used.
    """

    def __init__(
        self,
        name: str = "memory",
        *,
        era: Literal["handshake", "modern"] | None = None,
        version: str = __version__,
        instructions: str | None = None,
    ) -> None:
        if era not in ("handshake", "modern", None):
            raise MisuseError(f"era is 'handshake', 'modern' or None, not {era!r}")
        self.name = name
        self.version = version
        self.instructions = instructions
        self.eras: frozenset[Era] = frozenset(Era) if era is None else frozenset((Era(era),))
        """Those it speaks."""
        self.calls: list[Call] = []
        """Every call of a tool that reached it, in order, over all connections."""
        self.starts = 0
        """Connections that were asked for, those that were refused included."""
        self.tools: dict[str, Item] = {}
        """What it offers, by name or URI; filled by the decorators. Replaced on a change, and never changed."""
        self.resources: dict[str, Item] = {}
        self.templates: dict[str, Item] = {}
        self.prompts: dict[str, Item] = {}
        self._lock = threading.Lock()
        """Guards the two below; nothing is waited for, and nobody else's code run, while it is held."""
        self._faults: list[_Scripted] = []
        self._refused_starts: list[str] = []
        self._peers: set[Peer] = set()

    def __repr__(self) -> str:
        return f"MemoryServer({self.name!r}, {len(self.tools)} tools, {len(self.calls)} calls)"

    def spec(
        self,
        *,
        protocol: Revision = "auto",
        required: bool = False,
        lazy: bool = False,
        enabled: bool = True,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        bounds: Bounds | None = None,
    ) -> MemorySpec:
        """The specification for a host that wants more said than the server itself: fields as of ``StdioServer``.

        Raises:
            MisuseError: a field of the wrong kind.
        """
        return MemorySpec(
            app=self,
            protocol=protocol,
            required=required,
            lazy=lazy,
            enabled=enabled,
            include=include,  # type: ignore[arg-type]  # any list of words is made a tuple
            exclude=exclude,  # type: ignore[arg-type]
            bounds=bounds or Bounds(),
        )

    # What it offers

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
    ) -> Any:
        """Offer a function as a tool: ``@server.tool``, or ``@server.tool(name="…")``.

        Name, description and schema are those of the function (its docstring, its type hints), if they are not given.
        With ``input_schema`` the arguments are handed on as they come, by name. A plain function runs in a thread of
        its own. A first parameter annotated with ``Context`` (``async`` functions only) can ask and tell the client.

        What it returns: text for a string; ``structuredContent`` and its text for a dict, a dataclass or a struct;
        content blocks as they are; a ``CallToolResult`` as it is; the JSON text of anything else. What it raises is a
        result with ``is_error``, and stands in ``Call.error``.

        Raises:
            MisuseError: no schema can be made for it.
        """

        def offer(function: F) -> F:
            made = Function(function, typed=input_schema is None)
            listed: dict[str, Any] = {
                "name": name or made.name,
                "title": title,
                "description": description if description is not None else made.description,
                "inputSchema": dict(input_schema) if input_schema is not None else made.schema,
                "outputSchema": dict(output_schema) if output_schema is not None else None,
                "annotations": msgspec.json.decode(encode(annotations)) if annotations is not None else None,
            }
            self.tools = {**self.tools, listed["name"]: Item(_given(listed), made)}
            return function

        return offer if function is None else offer(function)

    def remove_tool(self, name: str) -> None:
        """Offer a tool no longer; tell the hosts with ``notify_tools_changed``. KeyError if there is none."""
        tools = dict(self.tools)
        del tools[name]
        self.tools = tools

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
    ) -> Callable[[F], F]:
        """Offer what a function returns as a resource: text for a string, a blob for bytes, ``ResourceContents`` as
        they are, the JSON text of anything else.

        A ``uri`` with names in braces is a template, and the function takes their values as arguments.

        Raises:
            MisuseError: the function does not take just what the template names.
        """

        def offer(function: F) -> F:
            made = Function(function, typed=False)
            template = UriTemplate(uri)
            takes = {each.name for each in made.parameters}
            if takes != set(template.names):
                raise MisuseError(
                    f"{made.name} takes {sorted(takes)}, and {uri!r} names {sorted(template.names)}"
                )
            listed: dict[str, Any] = {
                "uriTemplate" if template.names else "uri": uri,
                "name": name or made.name,
                "title": title,
                "description": description if description is not None else made.description,
                "mimeType": mime_type,
            }
            item = Item(_given(listed), made, template)
            if template.names:
                self.templates = {**self.templates, uri: item}
            else:
                self.resources = {**self.resources, uri: item}
            return function

        return offer

    @overload
    def prompt(self, function: F, /) -> F: ...

    @overload
    def prompt(
        self, /, *, name: str | None = None, title: str | None = None, description: str | None = None
    ) -> Callable[[F], F]: ...

    def prompt(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
    ) -> Any:
        """Offer a function as a prompt. Its parameters are the arguments of the prompt, all of them text; it returns
        text (a message of the user), ``PromptMessage``, or a list of these."""

        def offer(function: F) -> F:
            made = Function(function, typed=False)
            listed: dict[str, Any] = {
                "name": name or made.name,
                "title": title,
                "description": description if description is not None else made.description,
                "arguments": [
                    {"name": each.name, "required": each.default is each.empty} for each in made.parameters
                ],
            }
            self.prompts = {**self.prompts, listed["name"]: Item(_given(listed), made)}
            return function

        return offer if function is None else offer(function)

    # What it tells its hosts

    def notify_tools_changed(self) -> None:
        """Tell every host that the list of tools has changed."""
        self._tell(lambda peer: peer.tell_changed("tools"))

    def notify_resources_changed(self) -> None:
        """Tell every host that the list of resources has changed."""
        self._tell(lambda peer: peer.tell_changed("resources"))

    def notify_prompts_changed(self) -> None:
        """Tell every host that the list of prompts has changed."""
        self._tell(lambda peer: peer.tell_changed("prompts"))

    def notify_resource_updated(self, uri: str) -> None:
        """Tell the hosts that subscribed to this resource that it has changed."""
        self._tell(lambda peer: peer.tell_updated(uri))

    def die(self, *, exit_code: int | None = None, stderr: str = "") -> None:
        """Lose every connection now. A host finds out, and connects again when it next needs the server."""
        self._tell(lambda peer: peer.lose(exit_code, stderr))

    def _tell(self, tell: Callable[[Peer], None]) -> None:
        for peer in list(self._peers):
            peer.line.post(lambda peer=peer: tell(peer))  # type: ignore[misc]  # a default binds it

    # What will go wrong

    def fail_next(
        self, fault: SomeFault, *, tool: str | None = None, method: str = "tools/call", times: int = 1
    ) -> SomeFault:
        """Let a fault strike at the next request that it fits; the first one scripted strikes first.

        Args:
            tool: only at calls of this tool.
            method: at requests of this method of MCP (``tools/list``, ``initialize``, ``server/discover``, …).
            times: at so many requests in a row.

        Returns the fault, to wait for it or to let it go.

        Raises:
            MisuseError: it cannot strike so.
        """
        if not isinstance(fault, Fault):
            raise MisuseError(
                f"a fault is a Die, Hold, Malformed, NoAnswer or Refuse, not {type(fault).__name__}"
            )
        if tool is not None and method != "tools/call":
            raise MisuseError(f"a {method} is for no tool: give one of tool= and method=")
        if times < 1:
            raise MisuseError(f"times is {times}; a fault strikes once or more")
        with self._lock:
            self._faults.append(_Scripted(fault, method, tool, times))
        return fault

    def fail_starts(self, times: int = 1, reason: str = "refused by the test") -> None:
        """Let the next connections be refused, so that the start of the server fails."""
        with self._lock:
            self._refused_starts.extend([reason] * times)

    @property
    def faults_left(self) -> Counter[str]:
        """How often faults are still to strike, by their kind; a test may want this to be empty at its end."""
        with self._lock:
            left: Counter[str] = Counter()
            for each in self._faults:
                left[type(each.fault).__name__] += each.left
            if self._refused_starts:
                left["start"] += len(self._refused_starts)
            return left

    # For its connections

    def open_line(self, line: MemoryLine) -> MemoryPeer:
        """A host connects (see ``config/memory.py``)."""
        with self._lock:
            self.starts += 1
            refused = self._refused_starts.pop(0) if self._refused_starts else None
        if refused is not None:
            raise ConnectionRefusedError(refused)
        peer = Peer(self, line)
        self._peers.add(peer)
        return peer

    def line_closed(self, peer: Peer) -> None:
        """A connection is over."""
        self._peers.discard(peer)

    def fault_for(self, method: str, tool: str | None) -> Fault | None:
        """The fault that strikes at this request; it is used up by that."""
        with self._lock:
            for each in self._faults:
                if each.method == method and each.tool in (None, tool):
                    each.left -= 1
                    if each.left == 0:
                        self._faults.remove(each)
                    return each.fault
        return None

    def called(self, tool: str, arguments: dict[str, Any]) -> Call:
        """A call has come."""
        call = Call(tool, arguments)
        self.calls.append(call)
        return call


def _given(listed: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in listed.items() if value is not None}
