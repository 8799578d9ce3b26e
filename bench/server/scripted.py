"""The scripted MCP server in Python, for machines without a C compiler: the same as ``scripted.c``, which says what it
does. It is slower than some clients, so figures against it say less; the report names it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

READ_SIZE = 1 << 18
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
PROSE = (
    "The harbour master counts the boats at dusk, and writes down each that has come in since the morning: "
    "its name, its berth, what it carries and who has paid. Whatever is not in the book by night is not there. "
)
DESCRIPTION = (
    "Books berth block {0:05} for a boat. Use it once the boat's size, its draught and the days are known; ask for "
    "them first if they are not. It fails when the berth is taken, when the boat is too large for it, or when the "
    "harbour is closed; the text of the failure says which, and names the nearest berth that is free. What is booked "
    "stays booked until it is paid or given back; the answer holds the number of the booking, and every later "
    "question needs it."
)
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "boat": {
            "type": "object",
            "description": "The boat that comes in",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 80},
                "length_m": {"type": "number", "exclusiveMinimum": 0, "maximum": 120},
                "draught_m": {"type": "number", "exclusiveMinimum": 0, "maximum": 12},
                "kind": {"type": "string", "enum": ["sail", "motor", "fishing", "pilot", "other"]},
            },
            "required": ["name", "length_m"],
            "additionalProperties": False,
        },
        "from": {"type": "string", "format": "date", "description": "First day, as in 2026-05-01"},
        "nights": {"type": "integer", "minimum": 1, "maximum": 365, "default": 1},
        "services": {
            "type": "array",
            "uniqueItems": True,
            "items": {"type": "string", "enum": ["water", "power", "fuel", "crane"]},
            "description": "What the boat needs at the quay",
        },
        "contact": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}], "default": None},
    },
    "required": ["boat", "from"],
    "additionalProperties": False,
}


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    """One of the server's own tools."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
    }
    if properties:
        schema["required"] = list(properties)
    return {"name": name, "description": description, "inputSchema": schema}


class Server:
    """What it answers."""

    def __init__(self, tools: int, modern: bool, http: bool) -> None:
        self.modern = modern
        self.http = http
        self.touches = 0
        self.subscription: Any = None
        listed = [
            {
                "name": f"book_berth_{number:05}",
                "title": "Book a berth",
                "description": DESCRIPTION.format(number),
                "inputSchema": SCHEMA,
                "annotations": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True},
            }
            for number in range(tools)
        ]
        listed.append(tool("echo", "Gives a text back", text="string"))
        listed.append(tool("big", "Gives a text of a size", bytes="integer"))
        self.tools = b"".join(encode(each) + b"," for each in listed)

    def answers(self, line: bytes) -> Iterable[bytes]:
        """The messages that answer one, without their line ends."""
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            return
        id_, method, params = message["id"], message["method"], message.get("params") or {}
        if method == "tools/call" and params.get("name") == "touch":
            self.touches += 1
            if not self.http:
                yield encode(self.list_changed())
        if method == "subscriptions/listen" and self.modern and not self.http:
            self.subscription = id_
            mark = {SUBSCRIPTION_ID: id_}
            params = {"notifications": {"toolsListChanged": True}, "_meta": mark}
            yield encode(
                {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
            )
            return
        if method == "tools/list":
            own = tool("touch", f"Changes the list. Times it was called: {self.touches:08}")
            hints = b'"resultType":"complete","ttlMs":0,"cacheScope":"private",' if self.modern else b""
            head = b'{"jsonrpc":"2.0","id":%b,"result":{%b"tools":[' % (encode(id_), hints)
            yield b"".join((head, self.tools, encode(own), b"]}}"))
            return
        result = self.result(method, params)
        if result is None:
            error = {"code": -32601, "message": "Method not found"}
            yield encode({"jsonrpc": "2.0", "id": id_, "error": error})
            return
        if self.modern:
            result["resultType"] = "complete"
        yield encode({"jsonrpc": "2.0", "id": id_, "result": result})

    def list_changed(self) -> dict[str, Any]:
        notification: dict[str, Any] = {
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
        }
        if self.subscription is not None:
            notification["params"] = {"_meta": {SUBSCRIPTION_ID: self.subscription}}
        return notification

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        capabilities: dict[str, Any] = {"tools": {} if self.http else {"listChanged": True}}
        info = {"name": "scripted", "version": "1"}
        if method == "ping":
            return {}
        if method == "initialize" and not self.modern:
            asked = params.get("protocolVersion")
            revision = asked if asked in REVISIONS else REVISIONS[-1]
            return {"protocolVersion": revision, "capabilities": capabilities, "serverInfo": info}
        if method == "server/discover" and self.modern:
            return {
                "supportedVersions": ["2026-07-28"],
                "capabilities": capabilities,
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": info},
            }
        if method != "tools/call":
            return None
        arguments = params.get("arguments") or {}
        texts: dict[str, Callable[[], str]] = {
            "echo": lambda: str(arguments.get("text", "hello")),
            "big": lambda: (PROSE * (arguments["bytes"] // len(PROSE) + 1))[: arguments["bytes"]],
            "touch": lambda: f"{self.touches:08}",
        }
        text = texts.get(params.get("name", ""))
        return None if text is None else {"content": [{"type": "text", "text": text()}]}


class Connection(asyncio.Protocol):
    """One connection over HTTP/1.1: requests one after another, bodies by Content-Length both ways."""

    def __init__(self, server: Server, sse: bool, sessions: Iterator[int] | None) -> None:
        self._server, self._sse, self._sessions = server, sse, sessions
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (blank := self._rest.find(b"\r\n\r\n")) >= 0:
            head, body = self._rest[:blank], blank + 4
            found = re.search(rb"\r\ncontent-length:\s*(\d+)", head, re.IGNORECASE)
            end = body + (int(found[1]) if found else 0)
            if len(self._rest) < end:
                return
            self._transport.write(self._answer(head, self._rest[body:end]))
            self._rest = self._rest[end:]

    def _answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"DELETE "):
            return whole("200 OK")
        if not head.startswith(b"POST "):
            return whole("405 Method Not Allowed", "Allow: POST, DELETE")
        answer = b"".join(self._server.answers(body))
        if not answer:
            return whole("202 Accepted")
        headers = ["Content-Type: text/event-stream" if self._sse else "Content-Type: application/json"]
        if self._sessions is not None and b'"initialize"' in body:
            headers.append(f"Mcp-Session-Id: session-{next(self._sessions)}")
        return whole(
            "200 OK", *headers, body=b"event: message\ndata: %b\n\n" % answer if self._sse else answer
        )


def whole(status: str, *headers: str, body: bytes = b"") -> bytes:
    """An answer with all that belongs to it."""
    lines = (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


async def over_http(make: Callable[[], asyncio.Protocol], ports: int) -> None:
    """Serve so many ports until the end of stdin."""
    loop = asyncio.get_running_loop()
    listening = [await loop.create_server(make, "127.0.0.1", 0, backlog=1024) for _ in range(ports)]
    print(*(each.sockets[0].getsockname()[1] for each in listening), flush=True)
    over = asyncio.Event()

    def read() -> None:
        if not os.read(0, READ_SIZE):
            over.set()

    loop.add_reader(0, read)
    await over.wait()


def over_pipes(server: Server) -> None:
    """Serve stdin and stdout until the end of stdin."""
    rest = b""
    while data := os.read(0, READ_SIZE):
        *lines, rest = (rest + data).split(b"\n")
        out = b"".join(answer + b"\n" for line in lines for answer in server.answers(line))
        view = memoryview(out)
        while view:
            view = view[os.write(1, view) :]


def main(argv: list[str]) -> None:
    """Read the command line, and serve."""
    tools, ports, flags, words = 0, 1, set(), iter(argv[1:])
    for word in words:
        if word in ("--modern", "--http", "--sse", "--session"):
            flags.add(word)
        elif word == "--tools":
            tools = int(next(words))
        elif word == "--ports":
            ports = int(next(words))
        elif word == "--mark":
            next(words)
        else:
            sys.exit(f"scripted: unknown argument {word}")
    if core := re.search(r"-cpu(\d+)$", argv[0]):
        os.sched_setaffinity(0, {int(core[1])})
    server = Server(tools, "--modern" in flags, "--http" in flags)
    if server.http:
        sessions = itertools.count(1) if "--session" in flags else None
        sse = "--sse" in flags
        asyncio.run(over_http(lambda: Connection(server, sse, sessions), ports))
    else:
        over_pipes(server)


if __name__ == "__main__":
    main(sys.argv)
