"""A scripted MCP server over stdio that misbehaves exactly as told: standard library, one thread, one loop.

Started as ``python -S -E -P server.py '<json script>'`` or ``… server.py @<file with the script>``, which
``script.py`` builds. It reads and writes the bytes of stdin and stdout itself, so that anything can be sent.
Many calls can be pending at once: what must happen later stands on a heap of timers, or waits to be released.

Script keys (``DEFAULTS`` holds every key with its default; an unknown key is an error):

    era                    "handshake" | "modern" (2026-07-28 only) | "dual"
    revision               the protocolVersion that ``initialize`` answers (any text)
    versions               versions a modern server supports
    capabilities           replaces the declared capabilities
    instructions           text for ``initialize`` and ``server/discover``
    on_probe               behaviour of ``server/discover`` (None: ok; error -32601 at a handshake server)
    on_initialize          behaviour of ``initialize``
    on_list                behaviour of ``tools/list``
    listen                 behaviour of ``subscriptions/listen``
    on                     {method: behaviour} for any other method
    tools                  number of further tools ``t0…``, or a list of tool objects; such an object may have
                           ``does`` (the tool below that it runs) and ``with`` (arguments added to the call's)
    builtins               False: the tools below are not listed (they can still be called)
    resources, templates, prompts   how many of each (``res://0``, ``res://{id}/0``, ``p0``)
    pages                  size of a page of any list; 0 is one page
    grant                  the filter that ``subscriptions/listen`` acknowledges; None: the one asked for
    ttl_ms, cache_scope    caching hints of a modern server (None leaves them out)
    strict                 refuse ids that are no integers, and unknown capability keys
    id_last                write ``id`` at the end of each message
    chunking, chunk_pause  write in pieces of n bytes, pausing so many seconds after each
    crlf                   end lines with CRLF
    start_delay            seconds before anything is done
    banner                 text on stdout before anything else
    stderr_first           bytes on stderr before anything is read
    ignore_eof             stay after the end of stdin (and after EPIPE)
    ignore_term            stay after TERM, INT and HUP (so that only the end of stdin stops it)
    slow_exit              seconds between the reason to exit and the exit
    exit_after_initialize  exit with this code right after the answer to ``initialize`` or ``server/discover``
    lock_file              take this file's lock, or say so on stderr and exit with 3
    wrapper                None | "wait" (the real server is a child that shares the pipes; wait for it)
                           | "exit_first" | "exit_later:<s>" (the same, but leave it behind)
                           | "front" (relay for a detached server, which ends only if the front meets EOF)
    wrapper_session        True: the child of a wrapper gets a session of its own
    lifetime               whole seconds after which the process is killed, so that nothing stays for ever
    journal                path of the journal; without it nothing is noted
    journal_raw            note the params of every message too
    control                True: read orders from the FIFO named in ``start``; see ``FaultLog.control``
    by_start               list of scripts laid over this one: the n-th for the n-th start (counted in the
                           journal), the last one for all later

A behaviour is ``word`` or ``word:argument``, or a list: one for each request, the last one for ever. Words:

    ok | silent | error[:code] | slow:<s> | exit:<code>[:<stderr text>] | error_then_exit:<code>
    exit_on_next[:code]    no answer; the next line that comes in ends the process, unread
    close_stdout           no answer; stdout is closed, the process stays
    malformed:<shape>      the right id and a wrong shape: a key of MALFORMED
    hold                   answer when released (tool ``release`` or control) under the method's name
    html                   a line of HTML instead of an answer
    garbage                a result of no known shape
    unsupported:<a,b>      error -32022 with this list of versions
    initialize only:       log_and_ping_first (log line and ``ping``; answers after the pong)
    lists only:            random_order | bad_name, bad_schema (of the first item) | nulls (unknown fields too)
                           | repeat_cursor (a last page for ever) | empty_cursor (of the second page)
                           | list_changed_after_each
    listen only:           end_at_once | end_after:<s> (acknowledged, then the graceful end)

The tools are the functions marked ``@tool`` below: their parameters are their arguments.

Journal, JSON lines, each with ``kind``, ``t`` (monotonic clock) and ``pid``:

    start {role: server | wrapper | front, number, ppid, pgid, sid, argv, fifo, inherited: {fd: what}}
    received {method, id, tool, params?}    answered {id, method}    dropped {id} (answer to a cancelled call)
    response {id, error}    cancelled {request_id, known, reason}    violation {what, method, id}
    junk {bytes}    effect {name, id}    child {child}    state {sent} | {echoed, same}    no_token {id}
    eof    signal {name}    epipe    exit {code, why}
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs a third of the start-up time
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    Json = dict[str, Any]

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
SERVER_INFO = {"name": "faults", "version": "1"}

DEFAULTS: Json = {
    "era": "handshake", "revision": "2025-11-25", "versions": [MODERN],
    "capabilities": None, "instructions": None,
    "on_probe": None, "on_initialize": "ok", "on_list": "ok", "listen": "ok", "on": {},
    "tools": 0, "builtins": True, "resources": 0, "templates": 0, "prompts": 0, "pages": 0,
    "grant": None, "ttl_ms": 0, "cache_scope": "private", "strict": False,
    "id_last": False, "chunking": 0, "chunk_pause": 0, "crlf": False,
    "start_delay": 0, "banner": "", "stderr_first": 0, "ignore_eof": False, "ignore_term": False,
    "slow_exit": 0, "exit_after_initialize": None, "lock_file": None, "wrapper": None,
    "wrapper_session": False, "lifetime": 120,
    "journal": None, "journal_raw": False, "control": False, "by_start": [],
}  # fmt: skip

BEHAVIOUR_KEYS = {
    "server/discover": "on_probe",
    "initialize": "on_initialize",
    "tools/list": "on_list",
    "subscriptions/listen": "listen",
}
COMMON_WORDS = {
    "ok", "silent", "error", "slow", "exit", "error_then_exit", "hold", "html", "garbage", "unsupported",
    "exit_on_next", "close_stdout", "malformed",
}  # fmt: skip
LIST_WORDS = {
    "random_order",
    "bad_name",
    "bad_schema",
    "repeat_cursor",
    "empty_cursor",
    "nulls",
    "list_changed_after_each",
}
OWN_WORDS = {
    "initialize": {"log_and_ping_first"},
    "subscriptions/listen": {"end_at_once", "end_after"},
    **dict.fromkeys(("tools/list", "resources/list", "resources/templates/list", "prompts/list"), LIST_WORDS),
}

MODERN_META_KEYS = {META + key for key in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel")}
CAPABILITY_KEYS = {
    False: {"experimental", "roots", "sampling", "elicitation", "tasks"},
    True: {"experimental", "roots", "sampling", "elicitation", "extensions"},
}
HANDSHAKE_NOTIFICATIONS = {"notifications/initialized", "notifications/roots/list_changed"}
CACHEABLE = {
    "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list",
    "resources/read",
}  # fmt: skip


# --- the journal and the process ------------------------------------------------------------------


class Journal:
    """Notes what happened: one line and one write an entry, so that several processes can share the file."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.fd = -1 if path is None else os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, kind: str, **what: Any) -> None:
        if self.fd >= 0:
            entry = {"kind": kind, "t": time.monotonic(), "pid": os.getpid(), **what}
            os.write(self.fd, json.dumps(entry).encode() + b"\n")

    def start(self, role: str, **what: Any) -> None:
        ids = {"ppid": os.getppid(), "pgid": os.getpgrp(), "sid": os.getsid(0)}
        self.note("start", role=role, argv=sys.argv, **ids, **what)

    def earlier_starts(self) -> int:
        """How many servers have already started with this journal."""
        if self.fd < 0:
            return 0
        text = b""
        while piece := os.pread(self.fd, 1 << 20, len(text)):
            text += piece
        lines = [line for line in text.split(b"\n") if line.startswith(b'{"kind": "start"')]
        return sum(1 for line in lines if json.loads(line)["role"] == "server")


def say(text: str) -> None:
    """Writes to stderr, whole."""
    data = text.encode()
    while data:
        data = data[os.write(2, data) :]


def read_script(argument: bytes) -> Json:
    """The script, from the argument or the file it names; checked, so that a misspelt test fails at once."""
    if argument.startswith(b"@"):
        with open(argument[1:], "rb") as file:
            argument = file.read()
    given = json.loads(argument)
    script = {**DEFAULTS, **given}
    check_script(script)
    return script


def check_script(script: Json) -> None:
    """Raises ValueError if a key or a behaviour is unknown."""
    if unknown := set(script) - set(DEFAULTS):
        raise ValueError(f"unknown script keys: {sorted(unknown)}")
    behaviours = {method: script[key] for method, key in BEHAVIOUR_KEYS.items()} | script["on"]
    for method, behaviour in behaviours.items():
        for turn in behaviour if isinstance(behaviour, list) else [behaviour or "ok"]:
            word = turn.partition(":")[0]
            if word not in COMMON_WORDS | OWN_WORDS.get(method, set()):
                raise ValueError(f"{method} knows no behaviour {word!r}")
    for layer in script["by_start"]:
        check_script({**DEFAULTS, **layer})


def wrap(how: str, new_session: bool, journal: Journal, lifetime: int) -> None:
    """Forks. The child returns, as the real server; the parent plays the wrapper and never returns."""
    word, _, arg = how.partition(":")
    to_real, from_real = (os.pipe(), os.pipe()) if word == "front" else ((0, 0), (0, 0))
    journal.start("front" if word == "front" else "wrapper")
    child = os.fork()
    if child == 0:
        if new_session or word == "front":
            os.setsid()
        if word == "front":
            # The write end of our own stdin stays open on purpose: the death of the front is no EOF.
            os.dup2(to_real[0], 0)
            os.dup2(from_real[1], 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.close(from_real[0])
        return
    signal.alarm(lifetime)
    if word == "front":
        os.close(to_real[0])
        os.close(from_real[1])
        relay(child, to_real[1], from_real[0])
    elif word == "exit_first":
        os._exit(0)
    elif word == "exit_later":
        time.sleep(float(arg))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def relay(real: int, to_real: int, from_real: int) -> None:
    """Passes bytes both ways until the real server ends; a clean EOF is told to it by SIGUSR1."""
    watched = [0, from_real]
    while True:
        ready, _, _ = select.select(watched, [], [])
        for fd in ready:
            data = os.read(fd, 65536)
            if not data and fd == from_real:
                return
            if not data:
                watched.remove(0)
                os.kill(real, signal.SIGUSR1)
            while data:
                data = data[os.write(to_real if fd == 0 else 1, data) :]


# --- one request, and the server ------------------------------------------------------------------


class Call:
    """One request being served. Made by the server when it arrives, ended by an answer or by a cancel."""

    def __init__(self, server: Server, message: Json, modern: bool) -> None:
        self.server = server
        self.id = message["id"]
        self.method: str = message["method"]
        params = message.get("params")
        self.params: Json = params if isinstance(params, dict) else {}
        self.meta: Json = self.params.get("_meta") or {}
        self.modern = modern
        self.twist = ("ok", "")
        """The behaviour asked of this method alone: word and argument."""
        self.over = False
        """Answered or cancelled."""
        self.cancelled = False
        self.on_cancel: Callable[[], None] | None = None

    def reply(self, result: Any) -> Json:
        """The message that answers with ``result``, dressed as the era asks, not sent."""
        if isinstance(result, dict) and self.modern:
            dress: Json = {"resultType": "complete", "_meta": {META + "serverInfo": SERVER_INFO}}
            script = self.server.script
            if self.method in CACHEABLE and script["ttl_ms"] is not None:
                dress |= {"ttlMs": script["ttl_ms"], "cacheScope": script["cache_scope"]}
            result = {**dress, **result}
        return {"jsonrpc": "2.0", "id": self.id, "result": result}

    def answer(self, result: Any, *, id_last: bool = False) -> None:
        self.finish(self.reply(result), id_last=id_last)

    def text(self, text: str, *, is_error: bool = False, **more: Any) -> None:
        """Answers a tool call with one text."""
        self.answer({"content": [{"type": "text", "text": text}], "isError": is_error}, **more)

    def refuse(self, code: int, message: str, data: Any = None) -> None:
        error: Json = {"code": code, "message": message}
        if data is not None:
            error["data"] = data
        self.finish({"jsonrpc": "2.0", "id": self.id, "error": error})

    def finish(self, message: Json, *, id_last: bool = False) -> None:
        """Sends the answer, unless the call was cancelled."""
        self.over = True
        self.server.pending.pop(self.id, None)
        if self.cancelled:
            self.server.journal.note("dropped", id=self.id)
            return
        self.server.last_token = self.meta.get("progressToken", self.server.last_token)
        self.server.send(message, id_last=id_last)
        self.server.journal.note("answered", id=self.id, method=self.method)

    def unsupported(self, versions: list[str], requested: Any) -> None:
        data = {"supported": versions, "requested": requested}
        self.refuse(-32022, "Unsupported protocol version", data)


class Server:
    """The whole server: script, open calls, timers. Made by ``main``; ends with the process."""

    def __init__(self, script: Json, journal: Journal, number: int, inherited: dict[int, str]) -> None:
        self.script = script
        self.inherited = inherited
        self.journal = journal
        self.pending: dict[Any, Call] = {}
        self.seen_ids: set[Any] = set()
        self.asked: dict[Any, Callable[[Json], None]] = {}
        """Our own requests, and what follows their answer."""
        self.ask_serial = 0
        self.held: dict[str, list[Callable[[], None]]] = {}
        self.rounds: dict[str, tuple[int, list[Any]]] = {}
        """requestState sent → the round it belongs to, and the replies so far."""
        self.subscriptions: dict[Any, Json] = {}
        self.watched_uris: set[str] = set()
        self.turns: dict[str, int] = {}
        self.phase = "new"
        """Of the handshake: new, asked, ready."""
        self.was_modern = False
        self.doomed: int | None = None
        """The exit code with which the next line ends the process."""
        self.calls = 0
        self.last_token: Any = None
        self.tools = list_of_tools(script)
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.timer_serial = 0
        self.parts: list[bytes] = []
        """What was read of a line whose end has not come."""
        self.reading = True
        self.signals: list[int] = []
        """Signals that the loop must still act on."""
        self.wake, wake_end = os.pipe()
        for end in (self.wake, wake_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(signum, self.on_signal)
        self.fifo_path = f"{journal.path}.{os.getpid()}.fifo" if script["control"] else None
        self.fifo = -1
        self.orders = b""
        if self.fifo_path is not None:
            os.mkfifo(self.fifo_path, 0o600)
            self.fifo = os.open(self.fifo_path, os.O_RDWR | os.O_NONBLOCK)
        journal.start("server", number=number, fifo=self.fifo_path, inherited=inherited)

    # The loop

    def run(self) -> NoReturn:
        while True:
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
            patience = max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else None
            watched = [self.wake] + [0] * self.reading + [self.fifo] * (self.fifo >= 0)
            ready, _, _ = select.select(watched, [], [], patience)
            if self.wake in ready:
                os.read(self.wake, 4096)
            while self.signals:
                self.heed(self.signals.pop())
            if 0 in ready:
                self.read()
            if self.fifo in ready:
                self.obey()

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.timer_serial += 1
        heapq.heappush(self.timers, (time.monotonic() + float(seconds), self.timer_serial, what))

    def read(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self.end_of_input()
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join([*self.parts, line])
            self.parts.clear()
            self.receive(whole)
        self.parts.append(rest)

    def end_of_input(self) -> None:
        self.reading = False
        self.journal.note("eof")
        if not self.script["ignore_eof"]:
            self.later(self.script["slow_exit"], lambda: self.exit(0, "eof"))

    def obey(self) -> None:
        *lines, self.orders = (self.orders + os.read(self.fifo, 65536)).split(b"\n")
        for line in lines:
            order = json.loads(line)
            ORDERS[order.pop("do")](self, **order)

    # Leaving

    def on_signal(self, signum: int, _frame: object) -> None:
        self.journal.note("signal", name=signal.Signals(signum).name)
        if signum == signal.SIGUSR1 or (self.script["slow_exit"] and not self.script["ignore_term"]):
            self.signals.append(signum)  # the loop goes on with it, woken by the descriptor
        elif not self.script["ignore_term"]:
            self.die_of(signum)

    def heed(self, signum: int) -> None:
        if signum == signal.SIGUSR1:
            self.end_of_input()
        else:
            self.later(self.script["slow_exit"], lambda: self.die_of(signum))

    def die_of(self, signum: int) -> NoReturn:
        """Ends as a program without a handler would."""
        self.goodbye(-signum, "signal")
        if signum != signal.SIGKILL:
            signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        os._exit(128 + signum)

    def exit(self, code: int, why: str = "script") -> NoReturn:
        if code < 0:
            self.die_of(-code)
        self.goodbye(code, why)
        os._exit(code)

    def goodbye(self, code: int, why: str) -> None:
        self.journal.note("exit", code=code, why=why)
        if self.fifo_path is not None:
            os.unlink(self.fifo_path)

    # Out

    def send(self, message: Json, *, id_last: bool = False) -> None:
        self.write(self.encode(message, id_last=id_last))

    def encode(self, message: Json, *, id_last: bool = False) -> bytes:
        if "id" in message and (id_last or self.script["id_last"]):
            body = {key: value for key, value in message.items() if key not in ("jsonrpc", "id")}
            message = {**body, "jsonrpc": "2.0", "id": message["id"]}
        return dump(message) + self.line_end()

    def line_end(self) -> bytes:
        return b"\r\n" if self.script["crlf"] else b"\n"

    def write(self, data: bytes) -> None:
        """Writes as the script cuts it. Blocks when the peer does not read, as most servers do."""
        size = self.script["chunking"] or len(data)
        try:
            for start in range(0, len(data), size):
                piece = memoryview(data)[start : start + size]
                while piece:
                    piece = piece[os.write(1, piece) :]
                if self.script["chunk_pause"]:
                    time.sleep(self.script["chunk_pause"])
        except BrokenPipeError:
            self.journal.note("epipe")
            if not self.script["ignore_eof"]:
                self.exit(1, "epipe")

    def notify(self, method: str, params: Json) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Json | None, then: Callable[[Json], None]) -> int:
        """Sends a request of our own. Its ids count from 1 and so collide with the peer's, which is legal."""
        self.ask_serial += 1
        self.asked[self.ask_serial] = then
        message: Json = {"jsonrpc": "2.0", "id": self.ask_serial, "method": method}
        self.send(message if params is None else {**message, "params": params})
        return self.ask_serial

    def changed(
        self, kind: str = "tools", add_tool: str | None = None, remove_tool: str | None = None
    ) -> None:
        """Sends one list_changed, to whom the era says: everybody, or the subscriptions that asked for it."""
        if add_tool:
            self.tools.append(plain_tool(add_tool))
        self.tools = [tool for tool in self.tools if remove_tool is None or tool.get("name") != remove_tool]
        key = f"{kind}ListChanged"
        self.publish(f"notifications/{kind}/list_changed", {}, lambda wanted: bool(wanted.get(key)))

    def updated(self, uri: str) -> None:
        if uri in self.watched_uris or self.was_modern:
            wanted: Callable[[Json], bool] = lambda f: uri in f.get("resourceSubscriptions", [])  # noqa: E731
            self.publish("notifications/resources/updated", {"uri": uri}, wanted)

    def publish(self, method: str, params: Json, is_wanted: Callable[[Json], bool]) -> None:
        if not self.was_modern:
            self.notify(method, params)
        for key, wanted in list(self.subscriptions.items()):
            if is_wanted(wanted):
                self.notify(method, {**params, "_meta": {META + "subscriptionId": key}})

    # In

    def receive(self, line: bytes) -> None:
        if self.doomed is not None:
            self.exit(self.doomed)
        line = line.removesuffix(b"\r")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            self.journal.note("junk", bytes=line[:200].decode("utf-8", "replace"))
            self.violation("not a JSON-RPC message")
        elif "method" not in message:
            self.receive_response(message)
        elif "id" in message:
            self.receive_request(message)
        else:
            self.receive_notification(message)

    def note_received(self, message: Json) -> None:
        params = message.get("params")
        more: Json = {"tool": params.get("name")} if message["method"] == "tools/call" and params else {}
        if self.script["journal_raw"]:
            more["params"] = params
        self.journal.note("received", method=message["method"], id=message.get("id"), **more)

    def violation(self, what: str, message: Json | None = None) -> None:
        message = message or {}
        self.journal.note("violation", what=what, method=message.get("method"), id=message.get("id"))

    def receive_response(self, message: Json) -> None:
        self.journal.note("response", id=message.get("id"), error=message.get("error"))
        if self.was_modern:
            self.violation("a response to a modern server", message)
        then = self.asked.pop(message.get("id"), None)
        if then is None:
            self.violation("a response to nothing that was asked", message)
        else:
            then(message)

    def receive_notification(self, message: Json) -> None:
        self.note_received(message)
        modern = self.is_modern(message)
        for what in faults_of_notification(self, message, modern):
            self.violation(what, message)
        params = message.get("params") or {}
        if message["method"] == "notifications/initialized":
            self.phase = "ready"
        elif message["method"] == "notifications/cancelled":
            request_id = params.get("requestId")
            call = self.pending.pop(request_id, None)
            known = call is not None or request_id in self.subscriptions
            self.journal.note("cancelled", request_id=request_id, known=known, reason=params.get("reason"))
            self.subscriptions.pop(request_id, None)
            if call is not None:
                call.over = call.cancelled = True
                if call.on_cancel:
                    call.on_cancel()

    def receive_request(self, message: Json) -> None:
        self.note_received(message)
        modern = self.is_modern(message)
        faults = list(faults_of_request(self, message, modern))
        for what in faults:
            self.violation(what, message)
        call = Call(self, message, modern)
        if not isinstance(call.id, int | str):
            self.send({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "invalid id"}})
            return
        self.seen_ids.add(call.id)
        self.pending[call.id] = call
        if call.method == "initialize" and not modern:
            self.phase = "asked"
        if self.script["strict"] and any(what.startswith(STRICT) for what in faults):
            call.refuse(-32600 if "id" in faults[0] else -32602, faults[0])
        else:
            self.serve(call)

    def is_modern(self, message: Json) -> bool:
        if self.script["era"] != "dual":
            return bool(self.script["era"] == "modern")
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        if message["method"] in HANDSHAKE_NOTIFICATIONS or message["method"] == "initialize":
            return False
        return message["method"] == "server/discover" or (META + "protocolVersion") in (meta or {})

    # Behaviour

    def serve(self, call: Call) -> None:
        """Looks up what the script says for this method and does it."""
        word, arg = self.behaviour(call)
        eras, handler = METHODS.get(call.method, ("", None))
        good: Callable[[], None]
        if word in OWN_WORDS.get(call.method, ()):
            call.twist = (word, arg)
            word = "ok"
        if word == "ok" and call.modern and (refusal := refusal_of_modern(call)):
            refusal()
            return
        if handler is None or ("modern" if call.modern else "handshake") not in eras:
            if word == "ok":
                call.refuse(-32601, f"Method not found: {call.method}")
                return
            good = lambda: call.refuse(-32601, f"Method not found: {call.method}")  # noqa: E731
        else:
            good = lambda: self.handle(call, handler)  # noqa: E731
        BEHAVIOURS[word](call, arg, good)

    def handle(self, call: Call, handler: Callable[[Call], None]) -> None:
        self.was_modern |= call.modern
        handler(call)

    def behaviour(self, call: Call) -> tuple[str, str]:
        key = BEHAVIOUR_KEYS.get(call.method)
        given = self.script[key] if key else self.script["on"].get(call.method, "ok")
        if given is None:
            given = "error:-32601" if self.script["era"] == "handshake" else "ok"
        if isinstance(given, list):
            turn = self.turns[call.method] = self.turns.get(call.method, -1) + 1
            given = given[min(turn, len(given) - 1)]
        word, _, arg = given.partition(":")
        return word, arg


def dump(message: Any) -> bytes:
    """JSON as other languages write it: compact, UTF-8; lone surrogates stay escaped."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":")).encode()


# --- what does not belong to the era --------------------------------------------------------------

STRICT = ("an id that is no integer", "unknown capability")
"""The faults that a strict server refuses."""


def faults_of_request(server: Server, message: Json, modern: bool) -> Iterator[str]:
    """Every rule that a request breaks."""
    method, number = message["method"], message["id"]
    params = message.get("params", {})
    if not isinstance(number, int) or isinstance(number, bool):
        yield "an id that is no integer"
    elif number in server.seen_ids:
        yield "an id used twice"
    if not isinstance(params, dict):
        yield "params that are no object"
        params = {}
    meta = params.get("_meta") or {}
    if method not in METHODS:
        yield "an unknown method"
    elif modern and "modern" not in METHODS[method][0]:
        yield "a handshake method at a modern server"
    if modern:
        if not isinstance(meta.get(META + "protocolVersion"), str):
            yield "no protocolVersion in _meta"
        if not isinstance(meta.get(META + "clientCapabilities"), dict):
            yield "no clientCapabilities in _meta"
    else:
        yield from faults_of_handshake(server, method, params, meta)
    declared = meta.get(META + "clientCapabilities") if modern else params.get("capabilities")
    if (modern or method == "initialize") and isinstance(declared, dict):
        for key in sorted(set(declared) - CAPABILITY_KEYS[modern]):
            yield f"unknown capability {key}"


def faults_of_handshake(server: Server, method: str, params: Json, meta: Json) -> Iterator[str]:
    if method == "server/discover":
        if server.phase != "new":
            yield "server/discover after initialize"
        return  # the probe comes in modern dress, and may
    for key in sorted(MODERN_META_KEYS & set(meta)):
        yield f"modern _meta {key} at a handshake server"
    for key in sorted({"inputResponses", "requestState"} & set(params)):
        yield f"modern {key} at a handshake server"
    if method in METHODS and "handshake" not in METHODS[method][0]:
        yield "a modern method at a handshake server"
    if method == "initialize":
        if server.phase != "new":
            yield "a second initialize"
        if server.was_modern:
            yield "initialize after a modern exchange"
        for key in ("protocolVersion", "capabilities", "clientInfo"):
            if key not in params:
                yield f"initialize without {key}"
    elif server.phase == "new" and method != "ping":
        yield "a request before initialize"
    elif server.phase == "asked" and method != "ping":
        yield "a request before notifications/initialized"


def faults_of_notification(server: Server, message: Json, modern: bool) -> Iterator[str]:
    method, params = message["method"], message.get("params") or {}
    if modern and method in HANDSHAKE_NOTIFICATIONS:
        yield "a handshake notification at a modern server"
    elif method not in HANDSHAKE_NOTIFICATIONS | {"notifications/cancelled", "notifications/progress"}:
        yield "an unknown notification"
    if method == "notifications/initialized" and server.phase != "asked":
        yield "notifications/initialized out of turn"
    if method == "notifications/cancelled":
        call = server.pending.get(params.get("requestId"))
        if call is not None and call.method == "initialize":
            yield "initialize was cancelled"
        if "requestId" not in params:
            yield "a cancel without requestId"
    if not modern:
        for key in sorted(MODERN_META_KEYS & set(params.get("_meta") or {})):
            yield f"modern _meta {key} at a handshake server"


def refusal_of_modern(call: Call) -> Callable[[], None] | None:
    """What a modern server refuses whatever the method."""
    versions = call.server.script["versions"]
    if call.method == "initialize":
        return lambda: call.unsupported(versions, call.params.get("protocolVersion"))
    if call.method not in METHODS or "modern" not in METHODS[call.method][0]:
        return lambda: call.refuse(-32601, f"Method not found: {call.method}")
    for key, kind in (("protocolVersion", str), ("clientCapabilities", dict)):
        if not isinstance(call.meta.get(META + key), kind):
            return lambda: call.refuse(-32602, f"_meta lacks {META}{key}")
    if call.meta[META + "protocolVersion"] not in versions:
        return lambda: call.unsupported(versions, call.meta[META + "protocolVersion"])
    return None


# --- behaviours that every method shares ----------------------------------------------------------


def do_hold(call: Call, arg: str, good: Callable[[], None]) -> None:
    call.server.held.setdefault(call.method, []).append(good)


def do_exit(call: Call, arg: str, good: Callable[[], None]) -> None:
    code, _, words = arg.partition(":")
    say(words)
    call.server.exit(int(code or 0))


def do_error_then_exit(call: Call, arg: str, good: Callable[[], None]) -> None:
    call.refuse(int(arg or -32000), "Connection closed")
    call.server.exit(0)


def do_exit_on_next(call: Call, arg: str, good: Callable[[], None]) -> None:
    call.server.doomed = int(arg or 1)


def do_slow(call: Call, arg: str, good: Callable[[], None]) -> None:
    call.server.later(float(arg), lambda: None if call.cancelled else good())


def do_unsupported(call: Call, arg: str, good: Callable[[], None]) -> None:
    versions = [version for version in arg.split(",") if version]
    call.unsupported(versions, call.meta.get(META + "protocolVersion"))


BEHAVIOURS: dict[str, Callable[[Call, str, Callable[[], None]], None]] = {
    "ok": lambda call, arg, good: good(),
    "silent": lambda call, arg, good: None,
    "error": lambda call, arg, good: call.refuse(int(arg or -32601), "scripted error"),
    "slow": do_slow,
    "exit": do_exit,
    "error_then_exit": do_error_then_exit,
    "hold": do_hold,
    "html": lambda call, arg, good: call.server.write(b"<!doctype html><title>502 Bad Gateway</title>\n"),
    "garbage": lambda call, arg, good: call.finish({"jsonrpc": "2.0", "id": call.id, "result": {"hello": 1}}),
    "unsupported": do_unsupported,
    "exit_on_next": do_exit_on_next,
    "close_stdout": lambda call, arg, good: do_close_stdout(call.server),
    "malformed": lambda call, arg, good: call.finish({"jsonrpc": "2.0", "id": call.id, **MALFORMED[arg]}),
}


# --- methods --------------------------------------------------------------------------------------


def capabilities(server: Server, modern: bool) -> Json:
    script = server.script
    if script["capabilities"] is not None:
        return dict(script["capabilities"])
    declared: Json = {"tools": {"listChanged": True}, "completions": {}, "logging": {}}
    if script["resources"] or script["templates"]:
        declared["resources"] = {"subscribe": True, "listChanged": True}
    if script["prompts"]:
        declared["prompts"] = {"listChanged": True}
    return declared


def after_handshake(call: Call, result: Json) -> None:
    """Answers the first exchange of an era, and exits if the script says so."""
    server = call.server
    result["capabilities"] = capabilities(server, call.modern)
    if server.script["instructions"] is not None:
        result["instructions"] = server.script["instructions"]
    call.answer(result)
    if server.script["exit_after_initialize"] is not None:
        server.exit(server.script["exit_after_initialize"])


def initialize(call: Call) -> None:
    result: Json = {"protocolVersion": call.server.script["revision"], "serverInfo": SERVER_INFO}
    if call.twist[0] == "log_and_ping_first":
        call.server.notify("notifications/message", {"level": "info", "data": "starting"})
        call.server.ask("ping", None, lambda pong: after_handshake(call, result))
    else:
        after_handshake(call, result)


def discover(call: Call) -> None:
    after_handshake(call, {"supportedVersions": call.server.script["versions"]})


def listing(key: str, items_of: Callable[[Server], list[Any]]) -> Callable[[Call], None]:
    """The handler of one list: pages, and the ways in which a list can be wrong."""

    def handler(call: Call) -> None:
        server, twist = call.server, call.twist[0]
        items = items_of(server)
        size = server.script["pages"] or max(1, len(items))
        names = [f"c{n}" for n in range(max(1, -(-len(items) // size)))]
        if twist == "empty_cursor" and len(names) > 1:
            names[1] = ""
        cursor = call.params.get("cursor")
        if cursor not in (None, *names):
            call.refuse(-32602, "Invalid cursor")
            return
        page = 0 if cursor is None else names.index(cursor)
        result: Json = {key: [dict(item) for item in items[page * size : (page + 1) * size]]}
        if page + 1 < len(names):
            result["nextCursor"] = names[page + 1]
        elif twist == "repeat_cursor":
            result["nextCursor"] = names[page]
        if twist in TWISTS:
            TWISTS[twist](result, result[key])
        call.answer(result)
        if twist == "list_changed_after_each":
            server.changed(call.method.split("/")[0])

    return handler


def twist_order(result: Json, items: list[Json]) -> None:
    """Another order than the last time, and than any sorted one: by a fresh random key."""
    items.sort(key=lambda item: os.urandom(8))


def twist_bad_name(result: Json, items: list[Json]) -> None:
    del items[0]["name"]


def twist_bad_schema(result: Json, items: list[Json]) -> None:
    items[0]["inputSchema"] = "not an object"


def twist_nulls(result: Json, items: list[Json]) -> None:
    result.setdefault("nextCursor", None)
    result["futureField"] = {"a": [1]}
    for item in items:
        item |= dict.fromkeys(("title", "annotations", "outputSchema", "_meta", "icons"))
        item["future"] = 1


TWISTS = {
    "random_order": twist_order,
    "bad_name": twist_bad_name,
    "bad_schema": twist_bad_schema,
    "nulls": twist_nulls,
}


def call_tool(call: Call) -> None:
    server = call.server
    server.calls += 1
    name = call.params.get("name")
    arguments = dict(call.params.get("arguments") or {})
    listed = next((tool for tool in server.tools if tool.get("name") == name), {})
    does = listed.get("does", name)
    function = TOOLS.get(str(does))
    if function is None and listed:
        call.text(json.dumps({"tool": name, "arguments": arguments}))
    elif function is None:
        call.refuse(-32602, f"Unknown tool: {name}")
    else:
        try:
            function(call, **{**arguments, **listed.get("with", {})})
        except TypeError as error:
            call.refuse(-32602, f"{does}: {error}")


def read_resource(call: Call) -> None:
    uri = call.params.get("uri")
    call.answer({"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"content of {uri}"}]})


def get_prompt(call: Call) -> None:
    text = json.dumps({"prompt": call.params.get("name"), "arguments": call.params.get("arguments")})
    call.answer({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})


def complete(call: Call) -> None:
    value = call.params.get("argument", {}).get("value", "")
    call.answer({"completion": {"values": [value + "1", value + "2"], "hasMore": False}})


def subscribe(call: Call) -> None:
    call.server.watched_uris.add(str(call.params.get("uri")))
    call.answer({})


def unsubscribe(call: Call) -> None:
    call.server.watched_uris.discard(str(call.params.get("uri")))
    call.answer({})


def listen(call: Call) -> None:
    server, (word, arg) = call.server, call.twist
    granted = server.script["grant"]
    granted = dict(call.params.get("notifications") or {}) if granted is None else granted
    server.subscriptions[call.id] = granted
    mark = {"_meta": {META + "subscriptionId": call.id}}
    server.notify("notifications/subscriptions/acknowledged", {"notifications": granted, **mark})

    def end() -> None:
        if server.subscriptions.pop(call.id, None) is not None:
            call.answer(mark)

    if word == "end_at_once":
        end()
    elif word == "end_after":
        server.later(float(arg), end)


def some(count_key: str, make: Callable[[int], Json]) -> Callable[[Server], list[Any]]:
    return lambda server: [make(n) for n in range(server.script[count_key])]


BOTH, HANDSHAKE_ONLY, MODERN_ONLY = ("handshake", "modern"), ("handshake",), ("modern",)
METHODS: dict[str, tuple[tuple[str, ...], Callable[[Call], None]]] = {
    "initialize": (HANDSHAKE_ONLY, initialize),
    "ping": (HANDSHAKE_ONLY, lambda call: call.answer({})),
    "logging/setLevel": (HANDSHAKE_ONLY, lambda call: call.answer({})),
    "resources/subscribe": (HANDSHAKE_ONLY, subscribe),
    "resources/unsubscribe": (HANDSHAKE_ONLY, unsubscribe),
    "server/discover": (MODERN_ONLY, discover),
    "subscriptions/listen": (MODERN_ONLY, listen),
    "tools/list": (BOTH, listing("tools", lambda server: listed_tools(server))),
    "tools/call": (BOTH, call_tool),
    "resources/list": (
        BOTH,
        listing("resources", some("resources", lambda n: {"uri": f"res://{n}", "name": f"r{n}"})),
    ),
    "resources/templates/list": (
        BOTH,
        listing(
            "resourceTemplates",
            some("templates", lambda n: {"uriTemplate": f"res://{{id}}/{n}", "name": f"rt{n}"}),
        ),
    ),
    "resources/read": (BOTH, read_resource),
    "prompts/list": (
        BOTH,
        listing("prompts", some("prompts", lambda n: {"name": f"p{n}", "arguments": [{"name": "x"}]})),
    ),
    "prompts/get": (BOTH, get_prompt),
    "completion/complete": (BOTH, complete),
}


# --- tools ----------------------------------------------------------------------------------------

TOOLS: dict[str, Callable[..., None]] = {}


def tool(function: Callable[..., None]) -> Callable[..., None]:
    TOOLS[function.__name__] = function
    return function


def plain_tool(name: str) -> Json:
    schema = {"type": "object", "properties": {"x": {}}}
    return {"name": name, "description": f"Answers with its name: {name}", "inputSchema": schema}


def builtin_tool(name: str, function: Callable[..., None]) -> Json:
    """The listing of a tool, made from its parameters."""
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount]
    required = names[: len(names) - len(function.__defaults__ or ())]
    schema = {"type": "object", "properties": {key: {} for key in names}, "required": list(required)}
    return {"name": name, "description": (function.__doc__ or name).split("\n")[0], "inputSchema": schema}


def list_of_tools(script: Json) -> list[Json]:
    extra = script["tools"]
    return [plain_tool(f"t{n}") for n in range(extra)] if isinstance(extra, int) else list(extra)


def listed_tools(server: Server) -> list[Json]:
    own = [{k: v for k, v in tool.items() if k not in ("does", "with")} for tool in server.tools]
    if server.script["builtins"]:
        own += [builtin_tool(name, function) for name, function in TOOLS.items()]
    return own


@tool
def echo(call: Call, text: Any = "") -> None:
    """Answers with the text."""
    call.text(text if isinstance(text, str) else json.dumps(text))


@tool
def counter(call: Call) -> None:
    """How many tools this process has been asked to run, this time included."""
    call.text(str(call.server.calls))


@tool
def sleep(call: Call, seconds: float, text: str = "slept") -> None:
    """Answers later; nobody else waits for it. A cancel is noted and drops the answer."""
    call.server.later(seconds, lambda: call.text(text))


@tool
def block(call: Call, seconds: float) -> None:
    """The whole server does nothing for so long, then answers."""
    time.sleep(seconds)
    call.text("blocked")


@tool
def never(call: Call) -> None:
    """Is never answered."""


@tool
def hold(call: Call, key: str = "hold", text: str = "released") -> None:
    """Is answered when ``release`` is called with the key, or a control order names it."""
    call.server.held.setdefault(key, []).append(lambda: call.text(text))


@tool
def release(call: Call, key: str = "hold", order: str = "fifo", count: int | None = None) -> None:
    """Answers what is held under the key (order "fifo" or "lifo"), then itself with the number of them."""
    call.text(str(do_release(call.server, key, order, count)))


@tool
def fail(call: Call, text: str = "it failed") -> None:
    """A result with isError."""
    call.text(text, is_error=True)


@tool
def rpc_error(call: Call, code: int = -32000, message: str = "refused", data: Any = None) -> None:
    """A JSON-RPC error."""
    call.refuse(code, message, data)


@tool
def structured(call: Call, value: Any = None, is_error: bool = False) -> None:
    """structuredContent as given."""
    content = [{"type": "text", "text": json.dumps(value)}]
    call.answer({"content": content, "structuredContent": value, "isError": is_error})


@tool
def content(call: Call, blocks: list[Any], more: Any = None) -> None:
    """The content blocks as given, and further keys of the result."""
    call.answer({"content": blocks, **(more or {})})


@tool
def big(call: Call, bytes: int, fill: str = "x", id_last: bool = False) -> None:
    """One text of that many bytes, made of ``fill`` over and over (cut at a whole character)."""
    unit = fill.encode()
    text = (unit * (bytes // len(unit) + 1))[:bytes].decode(errors="ignore")
    call.text(text, id_last=id_last)


@tool
def image(call: Call, bytes: int) -> None:
    """An image whose base64 has that many bytes."""
    call.answer({"content": [{"type": "image", "mimeType": "image/png", "data": "A" * bytes}]})


@tool
def die(call: Call, code: int = 1, stderr: str = "") -> None:
    """Writes to stderr and exits in the middle of the call; a negative code is a signal."""
    say(stderr)
    call.server.exit(code)


@tool
def effect(call: Call, name: str = "effect") -> None:
    """Notes an effect and answers."""
    call.server.journal.note("effect", name=name, id=call.id)
    call.text("done")


@tool
def die_after_effect(call: Call, name: str = "effect", code: int = 1) -> None:
    """Notes an effect and exits before answering."""
    call.server.journal.note("effect", name=name, id=call.id)
    call.server.exit(code)


@tool
def close_stdout(call: Call) -> None:
    """Closes stdout and lives on, without an answer."""
    do_close_stdout(call.server)


@tool
def noise(call: Call, bytes: int = 1000, line: str = "plain text, no JSON") -> None:
    """Lines that are not JSON (and blank ones), so many bytes of them, then the answer."""
    lines = line.encode() + b"\n\n"
    call.server.write((lines * (bytes // len(lines) + 1))[:bytes] + b"\n")
    call.text("noisy")


@tool
def raw(call: Call, text: str = "", hex: str = "", answer: bool = True) -> None:
    """Exactly these bytes on stdout, then the answer."""
    call.server.write(text.encode() + bytes.fromhex(hex))
    if answer:
        call.text("sent")


@tool
def stderr(call: Call, bytes: int = 0, text: str = "") -> None:
    """So many bytes, or the text, on stderr, then the answer."""
    say(text + ("noise on stderr\n" * (bytes // 16 + 1))[:bytes])
    call.text("said")


@tool
def progress(
    call: Call,
    count: int = 3,
    interval: float = 0.05,
    token: str = "given",
    step: float = 1,
    answer: bool = True,
) -> None:
    """Progress notices, then the answer. ``token``: "given" | "unknown" | "finished" (an earlier call's)."""
    server = call.server
    own = call.meta.get("progressToken")
    mark = {"given": own, "unknown": "nobody-asked", "finished": server.last_token}[token]
    if mark is None:
        server.journal.note("no_token", id=call.id)

    def tick(n: int) -> None:
        if call.over:
            return
        if n > count:
            if answer:
                call.text("done")
            return
        if mark is not None:
            params = {"progressToken": mark, "progress": n * step, "total": count, "message": f"step {n}"}
            server.notify("notifications/progress", params)
        server.later(interval, lambda: tick(n + 1))

    tick(1)


@tool
def notify(call: Call, count: int = 1, method: str = "notifications/message", params: Any = None) -> None:
    """So many notifications at once, then the answer."""
    send_many(call.server, 0, count, method, params)
    call.text("notified")


@tool
def flood(
    call: Call,
    rate: int = 1000,
    seconds: float = 1,
    method: str = "notifications/message",
    params: Any = None,
) -> None:
    """Answers at once, then sends ``rate`` notifications a second for so many seconds."""
    begin = time.monotonic()

    def tick(sent: int) -> None:
        due = int(rate * min(time.monotonic() - begin, seconds))
        send_many(call.server, sent, due - sent, method, params)
        if due < int(rate * seconds):
            call.server.later(0.01, lambda: tick(due))
        else:
            call.server.journal.note("effect", name="flooded", id=call.id)

    call.text("flooding")
    tick(0)


def send_many(server: Server, first: int, count: int, method: str, params: Any) -> None:
    lines = [
        server.encode({"jsonrpc": "2.0", "method": method, "params": params or {"level": "info", "data": n}})
        for n in range(first, first + count)
    ]
    if lines:
        server.write(b"".join(lines))


@tool
def list_changed(
    call: Call,
    count: int = 1,
    kind: str = "tools",
    add_tool: str | None = None,
    remove_tool: str | None = None,
) -> None:
    """So many list_changed of "tools", "prompts" or "resources" during the call, then the answer."""
    for n in range(count):
        call.server.changed(kind, add_tool if n == 0 else None, remove_tool)
    call.text("changed")


@tool
def touch(call: Call, uri: str) -> None:
    """A resource update for those who subscribed to it, then the answer."""
    call.server.updated(uri)
    call.text("touched")


QUESTIONS: dict[str, Json] = {
    "elicitation/create": {
        "mode": "form",
        "message": "Which colour?",
        "requestedSchema": {
            "type": "object",
            "properties": {"colour": {"type": "string"}},
            "required": ["colour"],
        },
    },
    "sampling/createMessage": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Say hello"}}],
        "maxTokens": 10,
    },
}


@tool
def ask(
    call: Call, method: str = "elicitation/create", params: Any = None, rounds: int = 1, count: int = 1,
    requests: bool = True, state: bool = True, cancel_after: float | None = None,
) -> None:  # fmt: skip
    """Asks the client ``count`` questions in each of ``rounds``; answers with a JSON list of the replies."""
    params = QUESTIONS.get(method) if params is None else params
    if call.modern:
        ask_modern(call, {"method": method, "params": params or {}}, rounds, count if requests else 0, state)
    else:
        ask_handshake(call, method, params, rounds * count, cancel_after)


def ask_handshake(
    call: Call, method: str, params: Json | None, count: int, cancel_after: float | None
) -> None:
    """One request of our own after the other; a reply is ``{"result": …}`` or ``{"error": …}``."""
    server = call.server
    replies: list[Json] = []

    def answered(message: Json) -> None:
        replies.append({key: message[key] for key in ("result", "error") if key in message})
        following()

    def following() -> None:
        if len(replies) >= count:
            call.text(json.dumps(replies))
            return
        key = server.ask(method, params, answered)
        if cancel_after is not None:
            server.later(cancel_after, lambda: give_up(key))

    def give_up(key: int) -> None:
        if server.asked.get(key) is answered:
            server.asked[key] = lambda message: None
            server.notify("notifications/cancelled", {"requestId": key, "reason": "no longer needed"})
            replies.append({"cancelled": True})
            following()

    following()


def ask_modern(call: Call, question: Json, rounds: int, count: int, state: bool) -> None:
    """Answers ``input_required`` until all rounds are through; a reply is a round's ``inputResponses``."""
    server = call.server
    echoed = call.params.get("requestState")
    responses = call.params.get("inputResponses")
    done, replies = server.rounds.get(echoed, (0, [])) if echoed is not None else (0, [])
    if echoed is not None:
        same = server.rounds.pop(echoed, None) is not None
        server.journal.note("state", echoed=echoed, same=same)
        if not same:
            server.violation("a requestState that was not given", {"method": call.method, "id": call.id})
            call.refuse(-32602, "unknown requestState")
            return
    if echoed is not None or responses is not None:
        done, replies = done + 1, [*replies, responses]
        if count and set(responses or ()) != {f"q{n}" for n in range(count)}:
            server.violation("inputResponses that do not fit", {"method": call.method, "id": call.id})
    if done >= rounds:
        call.text(json.dumps(replies))
        return
    result: Json = {"resultType": "input_required"}
    if count:
        result["inputRequests"] = {f"q{n}": question for n in range(count)}
    if state:
        # Not to be parsed, trimmed, unescaped or normalised: composed and decomposed letters, separators.
        server.ask_serial += 1
        text = f' {server.ask_serial}|{done}|\u00e9e\u0301\u2028"\\/\\u0041%20+= \t{{"a": 1}} '
        result["requestState"] = text
        server.rounds[text] = (done, replies)
        server.journal.note("state", sent=text)
    call.answer(result)


@tool
def late(call: Call, after: float = 0) -> None:
    """Answers only after it was cancelled (``after`` seconds later): an answer nobody waits for."""

    def answer() -> None:
        call.cancelled = False
        call.text("too late")

    call.on_cancel = lambda: call.server.later(after, answer)


@tool
def wrong_id(call: Call) -> None:
    """An answer to an id never used, then the right one."""
    call.server.send({**call.reply({"content": []}), "id": 987654321})
    call.text("right")


@tool
def string_id(call: Call) -> None:
    """Echoes the id as a string."""
    message = call.reply({"content": [{"type": "text", "text": "stringly"}]})
    call.finish({**message, "id": str(call.id)})


@tool
def twice(call: Call) -> None:
    """Answers twice."""
    call.text("first")
    call.text("second")


@tool
def bad_utf8(call: Call) -> None:
    """A byte 0x97 in a text, as a legacy code page writes a dash."""
    message = call.reply({"content": [{"type": "text", "text": "a <dash> b"}]})
    call.server.write(call.server.encode(message).replace(b"<dash>", b"\x97"))


MALFORMED: dict[str, Json] = {
    "string": {"result": "oops"},
    "null": {"result": None},
    "list": {"result": []},
    "content_missing": {"result": {}},
    "content_string": {"result": {"content": "oops"}},
    "block_string": {"result": {"content": ["oops"]}},
    "both": {"result": {"content": []}, "error": {"code": -1, "message": "both"}},
    "neither": {},
    "error_string": {"error": "oops"},
    "error_code_string": {"error": {"code": "E1", "message": "oops"}},
    "no_jsonrpc": {"jsonrpc": None, "result": {"content": []}},
}


@tool
def malformed(call: Call, shape: str = "string") -> None:
    """The right id and a wrong shape: a key of MALFORMED."""
    call.finish({"jsonrpc": "2.0", "id": call.id, **MALFORMED[shape]})


@tool
def unknown_result_type(call: Call, value: Any = "surprise") -> None:
    """A result whose resultType nobody knows."""
    call.answer({"content": [], "resultType": value})


@tool
def env(call: Call, name: str | None = None) -> None:
    """One variable of the environment ("" if it is not set), or all as JSON."""
    call.text(json.dumps(dict(os.environ)) if name is None else os.environ.get(name, ""))


@tool
def pid(call: Call) -> None:
    """pid, ppid, pgid and sid as JSON."""
    ids = {"pid": os.getpid(), "ppid": os.getppid(), "pgid": os.getpgrp(), "sid": os.getsid(0)}
    call.text(json.dumps(ids))


@tool
def argv(call: Call) -> None:
    """The arguments as JSON."""
    call.text(json.dumps(sys.argv))


@tool
def cwd(call: Call) -> None:
    """The working directory."""
    call.text(os.getcwd())


@tool
def descriptors(call: Call) -> None:
    """JSON: what this process was started with beyond stdin, stdout and stderr, by descriptor."""
    call.text(json.dumps(call.server.inherited))


def inherited_descriptors() -> dict[int, str]:
    """What is open beyond the three; asked before we open anything."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
    return found


@tool
def stop_reading(call: Call, seconds: float | None = None) -> None:
    """Answers, then reads nothing for so long (None: for ever)."""
    call.text("deaf")
    do_stop_reading(call.server, seconds)


@tool
def fork_child(
    call: Call,
    ignore_term: bool = False,
    hold_pipes: bool = False,
    new_session: bool = False,
    seconds: float = 60,
) -> None:
    """Starts a grandchild that sleeps, and answers with its pid."""
    child = os.fork()
    if child == 0:
        if new_session:
            os.setsid()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN if ignore_term else signal.SIG_DFL)
        if not hold_pipes:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
        os.execv("/bin/sleep", ["sleep", str(seconds)])
    call.server.journal.note("child", child=child)
    call.text(str(child))


# --- orders over the control FIFO -----------------------------------------------------------------


def do_release(server: Server, key: str = "hold", order: str = "fifo", count: int | None = None) -> int:
    held = server.held.pop(key, [])
    if order == "lifo":
        held.reverse()
    for answer in held[:count]:
        answer()
    if count is not None and held[count:]:
        server.held[key] = held[count:] if order == "fifo" else held[count:][::-1]
    return len(held[:count])


def do_stop_reading(server: Server, seconds: float | None = None) -> None:
    server.reading = False

    def read_again() -> None:
        server.reading = True

    if seconds is not None:
        server.later(seconds, read_again)


def do_close_stdout(server: Server) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def do_set(server: Server, **keys: Any) -> None:
    """Changes script keys from now on."""
    check_script({**server.script, **keys})
    server.script |= keys
    server.turns = {}
    if "tools" in keys:
        server.tools = list_of_tools(server.script)


def do_end_subscriptions(server: Server) -> None:
    """The graceful end of all listen streams."""
    for key in list(server.subscriptions):
        del server.subscriptions[key]
        server.pending[key].answer({"_meta": {META + "subscriptionId": key}})


ORDERS: dict[str, Callable[..., Any]] = {
    "release": do_release,
    "send": lambda server, message: server.send(message),
    "raw": lambda server, text="", hex="": server.write(text.encode() + bytes.fromhex(hex)),
    "list_changed": lambda server, **what: server.changed(**what),
    "updated": lambda server, uri: server.updated(uri),
    "end_subscriptions": do_end_subscriptions,
    "stop_reading": do_stop_reading,
    "close_stdout": do_close_stdout,
    "stderr": lambda server, text: say(text),
    "set": do_set,
    "exit": lambda server, code=0: server.exit(code),
}


def take_lock(path: str) -> None:
    """Holds the lock until the process ends (its descriptor is never closed), or exits with 3."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"lock file {path} is taken by another instance\n")
        os._exit(3)


def main() -> NoReturn:
    inherited = inherited_descriptors()
    try:
        script = read_script(os.fsencode(sys.argv[1]))
    except (ValueError, IndexError) as error:
        say(f"bad script: {error}\n")
        sys.exit(64)
    journal = Journal(script["journal"])
    number = journal.earlier_starts()
    if layers := script["by_start"]:
        script |= layers[min(number, len(layers) - 1)]
    if script["wrapper"]:
        wrap(script["wrapper"], script["wrapper_session"], journal, script["lifetime"])
    signal.alarm(script["lifetime"])
    server = Server(script, journal, number, inherited)
    if script["start_delay"]:
        time.sleep(script["start_delay"])
    if script["lock_file"]:
        take_lock(script["lock_file"])
    say(("warning: something is deprecated\n" * (script["stderr_first"] // 33 + 1))[: script["stderr_first"]])
    if script["banner"]:
        server.write(script["banner"].encode() + b"\n")
    server.run()


if __name__ == "__main__":
    main()
