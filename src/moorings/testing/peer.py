"""One connection of a ``MemoryServer``: the server's side of MCP, in both eras.

Made by the server when a host connects, and ended by the host's transport, which owns its tasks. It runs on the
host's event loop. Each request that runs a function of the user's is a ``Request``, one task from its coming to its
last answer; in the modern era its questions go out as answers (``input_required``), and the same task goes on when the
client asks again. Sources: MCP ``basic/lifecycle``, ``server/discover``, ``basic/patterns/mrtr``, ``subscriptions``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UnsetType

from ..config.memory import MemoryLine
from ..wire import jsonrpc
from ..wire.eras import (
    HANDSHAKE_REVISIONS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LATEST_HANDSHAKE,
    META_CAPABILITIES,
    META_LOG_LEVEL,
    META_SUBSCRIPTION,
    META_VERSION,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    MODERN_REVISIONS,
    MRTR_METHODS,
    RESOURCE_NOT_FOUND_OLD,
    UNSUPPORTED_VERSION,
    Era,
    method_exists,
)
from ..wire.types import SERVER_INFO
from .context import ClientRefused, Context
from .faults import Die, Fault, Hold, Malformed, Refuse
from .functions import BadArguments, Function, prompt_result, read_result, tool_result

if TYPE_CHECKING:
    from .server import Call, Item, MemoryServer

__all__ = ["Peer"]

Json = dict[str, Any]

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
CACHEABLE = frozenset(
    (
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "server/discover",
        "tools/list",
    )
)
DECLARED = {
    "elicitation/create": "elicitation",
    "roots/list": "roots",
    "sampling/createMessage": "sampling",
}
"""Question → what the client has to declare for it."""
WANTED = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}


class RpcFault(Exception):
    """The request is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Peer:
    """See the module. Made by ``MemoryServer.open_line``; over with ``closed``."""

    def __init__(self, server: MemoryServer, line: MemoryLine) -> None:
        self.server = server
        self.line = line
        self._loop = asyncio.get_running_loop()
        self._era: Era | None = None
        """None until the client has shown how it speaks."""
        self._capabilities: Json = {}
        """What the client declared in the handshake."""
        self._log_level: str | None = None
        self._subscribed: set[str] = set()
        self._streams: dict[Any, Json] = {}
        """Listen streams of the modern era: id → filter."""
        self._requests: dict[Any, Request] = {}
        """Those that wait for an answer, by the id they are to be answered under."""
        self._suspended: dict[str, Request] = {}
        """Those that wait for the client to ask again, by their state."""
        self._asked: dict[str, asyncio.Future[Any]] = {}
        """Questions on their way in the handshake era."""
        self._count = 0

    # What comes in

    def hear(self, frame: bytes) -> None:
        """A message of the client. One that is none is passed over, as servers do."""
        for message in jsonrpc.parse(frame)[0]:
            params = _loaded(message.params)
            if isinstance(message.method, UnsetType):
                self._on_response(message)
            elif isinstance(message.id, UnsetType) or message.id is None:
                self._on_notification(message.method, params)
            else:
                self._on_request(message.id, message.method, params)

    def closed(self) -> None:
        """The connection is over: its requests have no answer any more."""
        self.server.line_closed(self)
        for request in {*self._requests.values(), *self._suspended.values()}:
            request.cancel()
        self._requests.clear()
        self._suspended.clear()
        self._streams.clear()

    def _on_response(self, message: jsonrpc.Envelope) -> None:
        future = self._asked.get(str(message.id))
        if future is None or future.done():
            return
        if isinstance(message.error, UnsetType):
            future.set_result(_loaded(message.result))
        else:
            error = jsonrpc.decode_error(message.error)
            future.set_exception(ClientRefused(error.message, code=error.code, data=error.data))

    def _on_notification(self, method: str, params: Json) -> None:
        if method != "notifications/cancelled":
            return
        id_ = params.get("requestId")
        self._streams.pop(id_, None)
        request = self._requests.pop(id_, None)
        if request is not None:
            request.cancel()

    def _on_request(self, id_: Any, method: str, params: Json) -> None:
        meta = params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        try:
            era = self._check_era(method, meta)
        except RpcFault as error:
            # The faults of a start strike whatever it says.
            self._refuse(id_, error)
            return
        state = params.get("requestState")
        if era is Era.MODERN and method in MRTR_METHODS and state is not None:
            self._asked_again(id_, meta, state, params.get("inputResponses"))
            return
        tool = params.get("name") if method == "tools/call" else None
        fault = self.server.fault_for(method, tool)
        request = Request(self, id_, method, params, meta, era)
        self._requests[id_] = request
        request.begin(fault)

    def _check_era(self, method: str, meta: Json) -> Era:
        """In which era a request is said, and whether that is one of ours. Raises RpcFault."""
        eras = self.server.eras
        if method == "ping":
            return Era.HANDSHAKE
        version = meta.get(META_VERSION)
        era = Era.HANDSHAKE if version is None else Era.MODERN
        if era not in eras or not method_exists(method, era):
            raise RpcFault(METHOD_NOT_FOUND, f"there is no {method} here")
        if era is Era.MODERN and version not in MODERN_REVISIONS:
            raise RpcFault(
                UNSUPPORTED_VERSION,
                "unsupported protocol version",
                {"supported": list(MODERN_REVISIONS), "requested": version},
            )
        if era is Era.HANDSHAKE and method != "initialize" and self._era is not Era.HANDSHAKE:
            raise RpcFault(INVALID_REQUEST, f"{method} before initialize")
        if era is Era.MODERN:
            self._era = era
        return era

    # What goes out

    def say(self, frame: bytes) -> None:
        self.line.say(frame)

    def notify(self, method: str, params: Json) -> None:
        """Send a notification."""
        self.line.say(jsonrpc.encode_notification(method, params))

    def _refuse(self, id_: Any, error: RpcFault) -> None:
        self.line.say(jsonrpc.encode_error(id_, error.code, error.message, error.data))

    def answered(self, id_: Any) -> None:
        """A request has had its last word under this id."""
        self._requests.pop(id_, None)

    def tell_changed(self, kind: str) -> None:
        """Say that a list has changed, to a client that wants to know."""
        method = f"notifications/{kind}/list_changed"
        if self._era is Era.HANDSHAKE:
            self.notify(method, {})
        for id_, wanted in self._streams.items():
            if wanted.get(WANTED[kind]):
                self.notify(method, {"_meta": {META_SUBSCRIPTION: id_}})

    def tell_updated(self, uri: str) -> None:
        """Say that a resource has changed, to a client that subscribed to it."""
        method = "notifications/resources/updated"
        if uri in self._subscribed:
            self.notify(method, {"uri": uri})
        for id_, wanted in self._streams.items():
            if uri in wanted.get("resourceSubscriptions", ()):
                self.notify(method, {"uri": uri, "_meta": {META_SUBSCRIPTION: id_}})

    def lose(self, exit_code: int | None = None, stderr: str = "") -> None:
        """The connection is lost."""
        why = "closed the connection" if exit_code is None else "exited"
        self.line.end(why, exit_code=exit_code, stderr=stderr)

    # Requests that are answered from what is known

    def known(self, id_: Any, method: str, params: Json) -> Json | None:
        """The result of a request that runs nothing of the user's; None if its only answers are notifications.

        Raises:
            RpcFault: it is refused.
        """
        server = self.server
        if method == "initialize":
            self._era = Era.HANDSHAKE
            self._capabilities = params.get("capabilities") or {}
            asked = params.get("protocolVersion")
            return {
                "protocolVersion": asked if asked in HANDSHAKE_REVISIONS else LATEST_HANDSHAKE,
                "capabilities": self._offers(Era.HANDSHAKE),
                "serverInfo": {"name": server.name, "version": server.version},
                **({"instructions": server.instructions} if server.instructions else {}),
            }
        if method == "server/discover":
            return {
                "supportedVersions": [
                    *(HANDSHAKE_REVISIONS if Era.HANDSHAKE in server.eras else ()),
                    *MODERN_REVISIONS,
                ],
                "capabilities": self._offers(Era.MODERN),
                **({"instructions": server.instructions} if server.instructions else {}),
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [item.listed for item in server.tools.values()]}
        if method == "resources/list":
            return {"resources": [item.listed for item in server.resources.values()]}
        if method == "resources/templates/list":
            return {"resourceTemplates": [item.listed for item in server.templates.values()]}
        if method == "prompts/list":
            return {"prompts": [item.listed for item in server.prompts.values()]}
        if method == "logging/setLevel":
            if params.get("level") not in LOG_LEVELS:
                raise RpcFault(INVALID_PARAMS, f"no level of a log: {params.get('level')!r}")
            self._log_level = params["level"]
            return {}
        if method == "resources/subscribe":
            self._subscribed.add(params.get("uri", ""))
            return {}
        if method == "resources/unsubscribe":
            self._subscribed.discard(params.get("uri", ""))
            return {}
        if method == "subscriptions/listen":
            self._listen(id_, params)
            return None
        raise RpcFault(METHOD_NOT_FOUND, f"there is no {method} here")

    def _offers(self, era: Era) -> Json:
        server = self.server
        changes = {"listChanged": True}
        offers: Json = {"tools": changes, "logging": {}}
        if server.resources or server.templates:
            offers["resources"] = {**changes, "subscribe": True}
        if server.prompts:
            offers["prompts"] = changes
        return offers

    def _listen(self, id_: Any, params: Json) -> None:
        wanted = params.get("notifications")
        self._streams[id_] = granted = wanted if isinstance(wanted, dict) else {}
        self.notify(
            "notifications/subscriptions/acknowledged",
            {"notifications": granted, "_meta": {META_SUBSCRIPTION: id_}},
        )

    # Questions to the client

    def declared(self, method: str, meta: Json, era: Era) -> bool:
        """Whether the client said that it answers such questions."""
        capabilities = meta.get(META_CAPABILITIES) if era is Era.MODERN else self._capabilities
        return isinstance(capabilities, dict) and DECLARED[method] in capabilities

    async def ask(self, method: str, params: Json) -> Any:
        """Put a question in the handshake era, and take it back if nobody wants the answer any more."""
        self._count += 1
        key = f"question-{self._count}"
        future = self._asked[key] = self._loop.create_future()
        self.say(_request(key, method, params))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                self.notify("notifications/cancelled", {"requestId": key, "reason": "no longer wanted"})
            raise
        finally:
            del self._asked[key]

    def suspend(self, request: Request) -> str:
        """A request waits for the client to ask again; returns its state."""
        self._count += 1
        state = f"state-{self._count}"
        self._suspended[state] = request
        return state

    def _asked_again(self, id_: Any, meta: Json, state: Any, responses: Any) -> None:
        request = self._suspended.pop(state, None) if isinstance(state, str) else None
        if request is None:
            self._refuse(id_, RpcFault(INVALID_PARAMS, "this requestState is not known, or was used before"))
            return
        self._requests[id_] = request
        request.resume(id_, meta, responses if isinstance(responses, dict) else {})

    def wants_log(self, level: str, meta: Json, era: Era) -> bool:
        """Whether the client wants to hear log messages of this level."""
        least = meta.get(META_LOG_LEVEL) if era is Era.MODERN else self._log_level or LOG_LEVELS[0]
        if least not in LOG_LEVELS or level not in LOG_LEVELS:
            return least is not None
        return LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)


class Request:
    """One request, from its coming to its last answer. See the module; also a ``context.Conversation``."""

    def __init__(self, peer: Peer, id_: Any, method: str, params: Json, meta: Json, era: Era) -> None:
        self.peer = peer
        self.id: Any = id_
        """The id it is to be answered under; None while the client has to ask again."""
        self.method = method
        self.params = params
        self.meta = meta
        self.era = era
        self.call: Call | None = None
        self._task: asyncio.Task[Any] | None = None
        self._questions: dict[str, tuple[Json, asyncio.Future[Any]]] = {}
        """Those without an answer, in the modern era."""
        self._count = 0
        self._waiting: Callable[[Any], bytes] | None = None
        """What makes the last word, where the client has to ask again for it."""

    def begin(self, fault: Fault | None) -> None:
        """Answer it, at once or in a task."""
        peer = self.peer
        if self.method == "tools/call":
            arguments = self.params.get("arguments")
            self.call = peer.server.called(
                str(self.params.get("name")), arguments if isinstance(arguments, dict) else {}
            )
        if self.method not in MRTR_METHODS and fault is None:
            self._finish(self._known())
            return
        task = self._task = peer.line.run(self._run(fault), name=f"{self.method} {self.id}")
        task.add_done_callback(self._over)

    def cancel(self) -> None:
        """The client takes it back, or is gone."""
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()

    def _over(self, task: asyncio.Task[Any]) -> None:
        # Also of one that was cancelled before its first step.
        if task.cancelled() and self.call is not None:
            self.call.cancelled = True

    async def _run(self, fault: Fault | None) -> None:
        if isinstance(fault, Refuse):
            fault.meet()
            self._finish(RpcFault(fault.code, fault.message, fault.data))
            return
        if fault is not None and not fault.ran and not await self._goes_on(fault):
            return
        outcome = await self._effect() if self.method in MRTR_METHODS else self._known()
        if fault is not None and fault.ran and not await self._goes_on(fault):
            return
        self._finish(outcome)

    async def _goes_on(self, fault: Fault) -> bool:
        """A fault strikes. Whether the request goes on after it."""
        fault.meet()
        if isinstance(fault, Hold):
            await fault.released()
            return True
        if isinstance(fault, Die):
            self.peer.lose(fault.exit_code, fault.stderr)
        elif isinstance(fault, Malformed):
            text = fault.text.replace("{id}", msgspec.json.encode(self.id).decode())
            self.peer.say(text.encode() + b"\n")
            self.peer.answered(self.id)
        return False

    def _finish(self, outcome: Json | RpcFault | None) -> None:
        """The last word, if there is one; kept where the client has to ask again first."""
        if outcome is None:
            return
        if isinstance(outcome, RpcFault):
            make = partial(
                jsonrpc.encode_error, code=outcome.code, message=outcome.message, data=outcome.data
            )
        else:
            if self.call is not None:
                self.call.result = outcome
            make = partial(jsonrpc.encode_response, result=self._dressed(outcome))
        if self.id is None:
            self._waiting = make
            return
        self.peer.say(make(self.id))
        self.peer.answered(self.id)

    def _dressed(self, result: Json) -> Json:
        if self.era is Era.HANDSHAKE:
            return result
        server = self.peer.server
        info = {SERVER_INFO: {"name": server.name, "version": server.version}}
        dressed = {"resultType": "complete", **result, "_meta": {**info, **(result.get("_meta") or {})}}
        return {"ttlMs": 0, "cacheScope": "private", **dressed} if self.method in CACHEABLE else dressed

    # What it does

    def _known(self) -> Json | RpcFault | None:
        try:
            return self.peer.known(self.id, self.method, self.params)
        except RpcFault as error:
            return error

    async def _effect(self) -> Json | RpcFault:
        """Run the function behind it. What that raises is the outcome, whatever it is."""
        me = asyncio.current_task()
        try:
            return await self._work()
        except RpcFault as error:
            return error
        except GeneratorExit:
            raise
        except (
            BaseException
        ) as error:  # boundary: a tool is the test's code, an assertion of a test in it included
            if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                raise
            if self.call is None:
                return RpcFault(INTERNAL_ERROR, str(error) or repr(error))
            self.call.error = error
            return {"content": [{"type": "text", "text": str(error) or repr(error)}], "isError": True}

    async def _work(self) -> Json:
        params, server = self.params, self.peer.server
        if self.call is not None:
            tool = server.tools.get(self.call.tool)
            if tool is None:
                raise RpcFault(INVALID_PARAMS, f"unknown tool: {self.call.tool}")
            arguments = tool.function.arguments(self.call.arguments)
            self.call.ran = True
            return tool_result(await self._apply(tool.function, arguments))
        if self.method == "prompts/get":
            prompt = server.prompts.get(str(params.get("name")))
            given = params.get("arguments") or {}
            if prompt is None:
                raise RpcFault(INVALID_PARAMS, f"unknown prompt: {params.get('name')}")
            try:
                prompt.function.check_names(given)
            except BadArguments as error:
                raise RpcFault(INVALID_PARAMS, str(error)) from None
            return prompt_result(prompt.listed.get("description"), await self._apply(prompt.function, given))
        uri = str(params.get("uri"))
        item, values = self._find_resource(uri)
        return read_result(uri, item.listed.get("mimeType"), await self._apply(item.function, values))

    def _find_resource(self, uri: str) -> tuple[Item, dict[str, str]]:
        server = self.peer.server
        if (item := server.resources.get(uri)) is not None:
            return item, {}
        for item in server.templates.values():
            values = item.template.match(uri) if item.template is not None else None
            if values is not None:
                return item, values
        code = INVALID_PARAMS if self.era is Era.MODERN else RESOURCE_NOT_FOUND_OLD
        raise RpcFault(code, "resource not found", {"uri": uri})

    async def _apply(self, function: Function, arguments: dict[str, Any]) -> Any:
        if not function.is_async:
            result = await self.peer.line.in_thread(partial(function.call, **arguments))
            return await result if inspect.isawaitable(result) else result
        made: Awaitable[Any] = (
            function.call(Context(self), **arguments)
            if function.wants_context
            else function.call(**arguments)
        )
        return await made

    # What its function may do meanwhile (``context.Conversation``)

    def progress(self, params: Json) -> None:
        token = self.meta.get("progressToken")
        if token is not None and self.id is not None:
            self.peer.notify("notifications/progress", {"progressToken": token, **params})

    def log(self, params: Json) -> None:
        if self.peer.wants_log(params["level"], self.meta, self.era):
            self.peer.notify("notifications/message", params)

    async def turn(self) -> None:
        await asyncio.sleep(0)

    async def ask(self, method: str, params: Json) -> Any:
        if not self.peer.declared(method, self.meta, self.era):
            raise ClientRefused(f"the client does not answer {method}", code=MISSING_CAPABILITY)
        if self.era is Era.HANDSHAKE:
            return await self.peer.ask(method, params)
        self._count += 1
        key = f"question-{self._count}"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[key] = ({"method": method, "params": params}, future)
        # In the next turn, so that questions that are asked side by side go out together.
        asyncio.get_running_loop().call_soon(self._put_questions)
        try:
            return await future
        finally:
            self._questions.pop(key, None)

    def _put_questions(self) -> None:
        """Answer the client with what has to be known first."""
        open_ = {key: question for key, (question, future) in self._questions.items() if not future.done()}
        if not open_ or self.id is None or (self._task is not None and self._task.done()):
            return
        result = {
            "resultType": "input_required",
            "inputRequests": open_,
            "requestState": self.peer.suspend(self),
        }
        self.peer.say(jsonrpc.encode_response(self.id, result))
        self.peer.answered(self.id)
        self.id = None

    def resume(self, id_: Any, meta: Json, responses: Json) -> None:
        """The client asks again, with answers."""
        self.id, self.meta = id_, meta
        if self._waiting is not None:
            self.peer.say(self._waiting(id_))
            self.peer.answered(id_)
            return
        for key, answer in responses.items():
            _, future = self._questions.get(key, (None, None))
            if future is not None and not future.done():
                future.set_result(answer)
        # What it left out, or what was asked since.
        asyncio.get_running_loop().call_soon(self._put_questions)


def _loaded(raw: msgspec.Raw | UnsetType) -> Any:
    value = {} if isinstance(raw, UnsetType) else msgspec.json.decode(raw)
    return {} if value is None else value


def _request(id_: str, method: str, params: Json) -> bytes:
    body = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
    return msgspec.json.encode(body) + b"\n"
