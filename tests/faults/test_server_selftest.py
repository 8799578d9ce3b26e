"""The scripted server is trusted only as far as this goes: it is driven by hand, without Moorings."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults import procs
from tests.faults.script import FaultLog, fault_argv, write_script

MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
PATIENCE = 10.0


class Peer:
    """A client that knows nothing: it writes lines, reads lines and counts ids."""

    def __init__(self, process: subprocess.Popen[bytes], log: FaultLog) -> None:
        self.process = process
        self.log = log
        self.serial = 0
        self.modern = False
        self.buffer = b""

    def send(self, message: dict[str, Any]) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def request(self, method: str, **params: Any) -> int:
        self.serial += 1
        if self.modern:
            params = {"_meta": MODERN_META, **params}
        self.send({"id": self.serial, "method": method, "params": params})
        return self.serial

    def call(self, name: str, **arguments: Any) -> int:
        return self.request("tools/call", name=name, arguments=arguments)

    def line(self) -> bytes:
        """The next line; b"" at the end of stdout."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([fd], [], [], PATIENCE)
            assert ready, "the server says nothing"
            data = os.read(fd, 1 << 20)
            if not data:
                return b""
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.line())
        return message

    def answer(self, number: int) -> dict[str, Any]:
        """The answer with this id, and nothing else before it."""
        message = self.next()
        assert message.get("id") == number, message
        return message

    def ask(self, method: str, **params: Any) -> Any:
        message = self.answer(self.request(method, **params))
        return message["result"] if "result" in message else message["error"]

    def text(self, tool: str, **arguments: Any) -> str:
        result = self.ask("tools/call", name=tool, arguments=arguments)
        text: str = result["content"][0]["text"]
        return text

    def handshake(self) -> Any:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        result = self.ask("initialize", **params)
        self.send({"method": "notifications/initialized"})
        return result

    def discover(self) -> Any:
        self.modern = True
        return self.ask("server/discover")

    def leave(self) -> int:
        """Closes stdin and waits for the end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@contextmanager
def peer(tmp_path: Path, **script: Any) -> Iterator[Peer]:
    log = FaultLog(tmp_path / "journal")
    argv = fault_argv(journal=log.path, **script)
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    with process:
        try:
            yield Peer(process, log)
        finally:
            for pid in log.pids():
                if procs.alive(pid):
                    os.kill(pid, signal.SIGKILL)
            process.kill()


def test_handshake_lists_calls_and_a_clean_end(tmp_path: Path) -> None:
    with peer(tmp_path, resources=2, templates=1, prompts=1, instructions="be kind") as server:
        assert server.ask("server/discover", _meta=MODERN_META)["code"] == -32601
        result = server.handshake()
        assert result["protocolVersion"] == "2025-11-25"
        assert result["instructions"] == "be kind"
        assert set(result["capabilities"]) == {"tools", "resources", "prompts", "logging", "completions"}
        tools = {tool["name"]: tool for tool in server.ask("tools/list")["tools"]}
        assert tools["sleep"]["inputSchema"]["required"] == ["seconds"]
        assert server.text("echo", text="grüße\u2028") == "grüße\u2028"
        assert server.text("counter") == "2"
        assert server.ask("ping") == {}
        assert server.ask("logging/setLevel", level="info") == {}
        assert server.ask("resources/list")["resources"][1]["uri"] == "res://1"
        assert server.ask("resources/templates/list")["resourceTemplates"][0]["uriTemplate"] == "res://{id}/0"
        assert server.ask("resources/read", uri="res://1")["contents"][0]["text"] == "content of res://1"
        assert server.ask("prompts/get", name="p0")["messages"][0]["role"] == "user"
        completion = server.ask("completion/complete", ref={}, argument={"name": "x", "value": "a"})
        assert completion["completion"]["values"] == ["a1", "a2"]
        assert server.ask("resources/subscribe", uri="res://1") == {}
        number = server.call("touch", uri="res://1")
        assert server.next()["params"] == {"uri": "res://1"}
        server.answer(number)
        assert server.ask("no/such")["code"] == -32601
        assert server.leave() == 0
        assert server.log.violations() == ["an unknown method (no/such)"]
        assert [entry["kind"] for entry in server.log.entries()][-2:] == ["eof", "exit"]


def test_modern_server_wants_meta_and_refuses_the_handshake(tmp_path: Path) -> None:
    with peer(tmp_path, era="modern", ttl_ms=5000) as server:
        refused = server.ask("initialize", protocolVersion="2025-11-25")
        assert (refused["code"], refused["data"]["supported"]) == (-32022, ["2026-07-28"])
        assert server.ask("tools/list")["code"] == -32602
        discovered = server.discover()
        assert discovered["supportedVersions"] == ["2026-07-28"]
        assert (discovered["resultType"], discovered["ttlMs"]) == ("complete", 5000)
        assert server.ask("tools/list")["cacheScope"] == "private"
        future = {**MODERN_META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
        assert server.ask("tools/list", _meta=future)["data"]["requested"] == "2099-01-01"
        assert server.ask("ping")["code"] == -32601
        assert server.ask("tools/call", name="unknown_result_type")["resultType"] == "surprise"
        assert "a handshake method at a modern server (initialize)" in server.log.violations()
        assert "no clientCapabilities in _meta (tools/list)" in server.log.violations()


def test_dual_server_speaks_both(tmp_path: Path) -> None:
    with peer(tmp_path, era="dual") as server:
        server.handshake()
        assert "resultType" not in server.ask("tools/list")
        assert server.leave() == 0 and not server.log.violations()
    (tmp_path / "journal").unlink()
    with peer(tmp_path, era="dual") as server:
        server.discover()
        assert server.ask("tools/list")["resultType"] == "complete"
        server.modern = False
        server.handshake()
        assert server.log.violations() == ["initialize after a modern exchange (initialize)"]


@pytest.mark.parametrize(
    ("behaviour", "line", "code"),
    [
        ("error:-32000", b"-32000", None),
        ("exit:7", b"", 7),
        ("error_then_exit:-32000", b"-32000", 0),
        ("html", b"<!doctype", None),
        ("garbage", b"hello", None),
        ("unsupported:2027-01-01,2026-07-28", b'"supported":["2027-01-01","2026-07-28"]', None),
        ("slow:0.05", b"supportedVersions", None),
        ("malformed:neither", b'{"jsonrpc":"2.0","id":1}', None),
        ("close_stdout", b"", None),
    ],
)
def test_probe(tmp_path: Path, behaviour: str, line: bytes, code: int | None) -> None:
    with peer(tmp_path, era="modern", on_probe=behaviour) as server:
        server.modern = True
        server.request("server/discover")
        assert line in server.line()
        assert code is None or server.process.wait(PATIENCE) == code


def test_a_server_that_dies_of_the_line_after_the_probe(tmp_path: Path) -> None:
    with peer(tmp_path, on_probe="exit_on_next:4") as server:
        server.request("server/discover")
        server.log.wait_for("received", method="server/discover")
        server.request("initialize")
        assert server.line() == b""
        assert server.process.wait(PATIENCE) == 4
        assert server.log.methods() == ["server/discover"]


def test_silence_exit_with_words_and_turns(tmp_path: Path) -> None:
    with peer(
        tmp_path, on_probe="silent", on_initialize=["error:-32603", "exit:3:Traceback: no\n"]
    ) as server:
        server.request("server/discover", _meta=MODERN_META)
        assert server.answer(server.request("initialize"))["error"]["code"] == -32603
        server.request("initialize")
        assert server.process.wait(PATIENCE) == 3
        assert server.process.stderr is not None and server.process.stderr.read() == b"Traceback: no\n"


def test_ping_and_log_come_before_the_answer_to_initialize(tmp_path: Path) -> None:
    with peer(tmp_path, on_initialize="log_and_ping_first") as server:
        number = server.request("initialize", protocolVersion="x", capabilities={}, clientInfo={})
        assert server.next()["method"] == "notifications/message"
        ping = server.next()
        assert ping["method"] == "ping"
        server.send({"id": ping["id"], "result": {}})
        server.answer(number)


def test_lists_can_be_wrong(tmp_path: Path) -> None:
    turns = [
        "ok",
        "bad_name",
        "bad_schema",
        "empty_cursor",
        "empty_cursor",
        "repeat_cursor",
        "repeat_cursor",
        "nulls",
    ]
    turns += ["list_changed_after_each", "error:-32000"]
    with peer(tmp_path, builtins=False, tools=10, pages=5, on_list=turns) as server:
        server.handshake()
        assert server.ask("tools/list")["nextCursor"] == "c1"
        assert [tool.get("name") for tool in server.ask("tools/list")["tools"]][:2] == [None, "t1"]
        assert server.ask("tools/list")["tools"][0]["inputSchema"] == "not an object"
        assert server.ask("tools/list")["nextCursor"] == ""
        assert server.ask("tools/list", cursor="")["tools"][0]["name"] == "t5"
        assert server.ask("tools/list", cursor="c1")["nextCursor"] == "c1"
        assert server.ask("tools/list", cursor="nowhere")["code"] == -32602
        assert server.ask("tools/list", cursor="c1")["nextCursor"] is None
        server.ask("tools/list")
        assert server.next()["method"] == "notifications/tools/list_changed"
        assert server.ask("tools/list")["code"] == -32000


def test_own_tools_borrow_behaviour(tmp_path: Path) -> None:
    own = {"name": "read", "annotations": {"readOnlyHint": True}, "does": "effect", "with": {"name": "seen"}}
    with peer(tmp_path, tools=[own, {"name": "plain"}], builtins=False) as server:
        server.handshake()
        assert server.ask("tools/list")["tools"][0] == {"name": "read", "annotations": {"readOnlyHint": True}}
        assert server.text("read") == "done"
        assert json.loads(server.text("plain", x=1)) == {"tool": "plain", "arguments": {"x": 1}}
        assert server.log.effects("seen") == 1 and server.log.calls("read") == 1
        assert server.ask("tools/call", name="missing")["code"] == -32602
        assert server.ask("tools/call", name="sleep", arguments={"wrong": 1})["code"] == -32602


def test_calls_overlap_are_released_and_cancelled(tmp_path: Path) -> None:
    with peer(tmp_path, control=True) as server:
        server.handshake()
        slow, fast = server.call("sleep", seconds=0.1), server.call("sleep", seconds=0.02)
        server.answer(fast)
        server.answer(slow)
        first, second = server.call("hold"), server.call("hold")
        release = server.call("release", order="lifo")
        server.answer(second)
        server.answer(first)
        assert server.answer(release)["result"]["content"][0]["text"] == "2"
        dropped, never, late = server.call("sleep", seconds=0.05), server.call("never"), server.call("late")
        held = server.call("hold", key="mine")
        for number in (dropped, never, late):
            server.send({"method": "notifications/cancelled", "params": {"requestId": number}})
        assert server.answer(late)["result"]["content"][0]["text"] == "too late"
        server.log.wait_for("dropped", id=dropped)
        server.log.control("release", key="mine")
        server.answer(held)
        assert server.log.cancelled_ids() == [dropped, never, late]
        assert not server.log.violations()


def test_control_orders(tmp_path: Path) -> None:
    with peer(tmp_path, control=True, on_list="hold") as server:
        server.handshake()
        number = server.request("tools/list")
        server.log.wait_for("received", method="tools/list")
        server.log.control("release", key="tools/list")
        server.answer(number)
        server.log.control("set", on_list="ok", tools=3, builtins=False)
        server.log.control("list_changed", kind="tools", add_tool="new")
        assert server.next()["method"] == "notifications/tools/list_changed"
        assert [tool["name"] for tool in server.ask("tools/list")["tools"]] == ["t0", "t1", "t2", "new"]
        server.log.control("raw", text="hello\n")
        assert server.line() == b"hello"
        fifo = Path(server.log.starts()[0]["fifo"])
        server.log.control("exit", code=9)
        assert server.process.wait(PATIENCE) == 9 and not fifo.exists()


def test_answers_of_every_wrong_shape(tmp_path: Path) -> None:
    with peer(tmp_path) as server:
        server.handshake()
        assert server.ask("tools/call", name="fail")["isError"] is True
        refused = server.ask(
            "tools/call", name="rpc_error", arguments={"code": -5, "message": "no", "data": [1]}
        )
        assert refused == {"code": -5, "message": "no", "data": [1]}
        number = server.call("wrong_id")
        assert server.next()["id"] == 987654321
        server.answer(number)
        number = server.call("string_id")
        assert server.next()["id"] == str(number)
        number = server.call("twice")
        assert server.answer(number) != server.answer(number)
        server.call("bad_utf8")
        assert b"a \x97 b" in server.line()
        number = server.call("malformed")
        assert server.answer(number)["result"] == "oops"
        number = server.call("malformed", shape="both")
        assert {"result", "error"} <= set(server.answer(number))
        number = server.call("noise", bytes=5000)
        lines = [server.line()]
        while not lines[-1].startswith(b"{"):
            lines.append(server.line())
        assert sum(len(line) + 1 for line in lines[:-1]) == 5001
        server.call("raw", hex="fffe0a", answer=False)
        assert server.line() == b"\xff\xfe"
        value = server.ask("tools/call", name="structured", arguments={"value": {"a": 1}})
        assert value["structuredContent"] == {"a": 1}
        assert server.ask("tools/call", name="content", arguments={"blocks": [{"type": "x"}]})["content"] == [
            {"type": "x"}
        ]
        assert (
            len(server.ask("tools/call", name="image", arguments={"bytes": 4000})["content"][0]["data"])
            == 4000
        )


def test_big_results_and_the_id_at_the_end(tmp_path: Path) -> None:
    with peer(tmp_path) as server:
        server.handshake()
        text = server.text("big", bytes=10_000_000, fill="añ")
        assert len(text.encode()) == 10_000_000 or len(text.encode()) == 9_999_999
        number = server.call("big", bytes=70_000, id_last=True)
        assert server.line().endswith(b'"jsonrpc":"2.0","id":%d}' % number)


def test_chunks_crlf_and_banner(tmp_path: Path) -> None:
    with peer(
        tmp_path, chunking=3, chunk_pause=0.0005, crlf=True, banner="Welcome!", stderr_first=50_000
    ) as server:
        assert server.process.stderr is not None
        assert len(os.read(server.process.stderr.fileno(), 65536)) == 50_000
        assert server.line() == b"Welcome!"
        server.request("ping")
        assert server.line() == b'{"jsonrpc":"2.0","id":1,"result":{}}\r'


def test_notifications(tmp_path: Path) -> None:
    with peer(tmp_path) as server:
        server.handshake()
        number = server.request(
            "tools/call",
            name="progress",
            arguments={"count": 2, "interval": 0.01},
            _meta={"progressToken": "p"},
        )
        assert [server.next()["params"]["progress"] for _ in range(2)] == [1, 2]
        server.answer(number)
        number = server.call("progress", count=1, token="finished", interval=0)
        assert server.next()["params"]["progressToken"] == "p"
        server.answer(number)
        number = server.call("notify", count=200)
        assert [server.next()["params"]["data"] for _ in range(200)] == list(range(200))
        server.answer(number)
        number = server.call("flood", rate=2000, seconds=0.1)
        server.answer(number)
        assert [server.next()["params"]["data"] for _ in range(200)] == list(range(200))
        number = server.call("list_changed", count=3, kind="prompts")
        assert {server.next()["method"] for _ in range(3)} == {"notifications/prompts/list_changed"}
        server.answer(number)


def test_questions_of_the_handshake_era(tmp_path: Path) -> None:
    with peer(tmp_path) as server:
        server.handshake()
        number = server.call("ask", rounds=2)
        for _ in range(2):
            question = server.next()
            assert question["method"] == "elicitation/create"
            server.send({"id": question["id"], "result": {"action": "decline"}})
        replies = json.loads(server.answer(number)["result"]["content"][0]["text"])
        assert replies == [{"result": {"action": "decline"}}] * 2
        number = server.call("ask", method="roots/list", cancel_after=0.02)
        question = server.next()
        assert server.next()["params"]["requestId"] == question["id"]
        assert "cancelled" in server.answer(number)["result"]["content"][0]["text"]
        server.send({"id": 4711, "result": {}})
        server.log.wait_for("violation")
        assert server.log.violations() == ["a response to nothing that was asked (None)"]


def test_questions_of_the_modern_era(tmp_path: Path) -> None:
    with peer(tmp_path, era="modern") as server:
        server.discover()
        result = server.ask("tools/call", name="ask", arguments={"rounds": 2, "count": 2})
        for _ in range(2):
            assert result["resultType"] == "input_required" and set(result["inputRequests"]) == {"q0", "q1"}
            given = {key: {"action": "accept"} for key in result["inputRequests"]}
            result = server.ask(
                "tools/call",
                name="ask",
                arguments={"rounds": 2, "count": 2},
                inputResponses=given,
                requestState=result["requestState"],
            )
        assert json.loads(result["content"][0]["text"]) == [given, given]
        assert [entry["same"] for entry in server.log.entries("state") if "same" in entry] == [True, True]
        assert not server.log.violations()
        bad = server.ask("tools/call", name="ask", arguments={}, requestState="forged")
        assert bad["code"] == -32602 and len(server.log.violations()) == 1


def test_listen_streams(tmp_path: Path) -> None:
    mark = "io.modelcontextprotocol/subscriptionId"
    listen = ["ok", "end_at_once", "end_after:0.02", "error:-32000"]
    with peer(tmp_path, era="modern", listen=listen, grant={"toolsListChanged": True}) as server:
        server.discover()
        first = server.request("subscriptions/listen", notifications={"toolsListChanged": True})
        acknowledged = server.next()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["_meta"][mark] == first
        number = server.call("list_changed")
        changed = server.next()
        assert changed["params"]["_meta"][mark] == first
        server.answer(number)
        for _ in range(2):
            number = server.request("subscriptions/listen", notifications={})
            server.next()
            assert server.answer(number)["result"]["_meta"][mark] == number
        assert server.ask("subscriptions/listen", notifications={})["code"] == -32000
        server.send({"method": "notifications/cancelled", "params": {"requestId": first}})
        assert server.text("list_changed") == "changed"


def test_violations_of_the_handshake(tmp_path: Path) -> None:
    with peer(tmp_path, strict=True) as server:
        server.send({"id": "a", "method": "ping"})
        assert server.next()["error"]["code"] == -32600
        refused = server.ask("initialize", protocolVersion="x", capabilities={"magic": {}}, clientInfo={})
        assert refused["code"] == -32602
        server.request("tools/list", _meta=MODERN_META)
        server.next()
        server.raw(b"nonsense\n")
        server.log.wait_for("junk")
        assert [text.partition(" (")[0] for text in server.log.violations()] == [
            "an id that is no integer",
            "unknown capability magic",
            "modern _meta io.modelcontextprotocol/clientCapabilities at a handshake server",
            "modern _meta io.modelcontextprotocol/protocolVersion at a handshake server",
            "a request before notifications/initialized",
            "not a JSON-RPC message",
        ]


def test_death_in_a_call(tmp_path: Path) -> None:
    with peer(tmp_path) as server:
        server.handshake()
        server.call("die_after_effect", code=4)
        assert server.process.wait(PATIENCE) == 4 and server.log.effects() == 1
    with peer(tmp_path) as server:
        server.handshake()
        server.call("die", code=-9, stderr="last words")
        assert server.process.wait(PATIENCE) == -9


def test_scripts_by_start_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    for code in (5, 6, 6):
        layers = [{"exit_after_initialize": 5}, {"exit_after_initialize": 6}]
        with peer(tmp_path, script_file=file, by_start=layers) as server:
            server.request("initialize")
            server.next()
            assert server.process.wait(PATIENCE) == code
    argv = fault_argv(script_file=file, revision="1999-01-01")
    write_script(file, revision="2024-11-05")
    asked = b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n'
    out = subprocess.run(argv, input=asked, stdout=subprocess.PIPE, timeout=PATIENCE, check=True).stdout
    assert json.loads(out)["result"]["protocolVersion"] == "2024-11-05"
    with pytest.raises(ValueError, match="unknown script keys"):
        fault_argv(on_lst="ok")
    with pytest.raises(ValueError, match="no behaviour"):
        fault_argv(on_list="lsow")


def test_stubborn_server_needs_kill(tmp_path: Path) -> None:
    with peer(tmp_path, ignore_eof=True, ignore_term=True) as server:
        server.handshake()
        child = int(server.text("fork_child", ignore_term=True))
        assert sorted(procs.group_members(server.process.pid)) == sorted([server.process.pid, child])
        assert procs.descendants(server.process.pid) == [child]
        assert server.process.stdin is not None
        server.process.stdin.close()
        server.log.wait_for("eof")
        os.killpg(server.process.pid, signal.SIGTERM)
        server.log.wait_for("signal", name="SIGTERM")
        assert procs.alive(server.process.pid) and procs.alive(child)
        os.killpg(server.process.pid, signal.SIGKILL)
        assert procs.wait_gone([server.process.pid, child], PATIENCE)
        assert asyncio.run(procs.gone(child, PATIENCE))


def test_signals_and_slow_exit(tmp_path: Path) -> None:
    with peer(tmp_path) as server:
        server.handshake()
        server.process.terminate()
        assert server.process.wait(PATIENCE) == -signal.SIGTERM
        assert server.log.entries("exit")[0]["code"] == -signal.SIGTERM
    (tmp_path / "journal").unlink()
    with peer(tmp_path, slow_exit=0.2) as server:
        server.handshake()
        begin = time.monotonic()
        server.process.terminate()
        assert server.process.wait(PATIENCE) == -signal.SIGTERM
        assert time.monotonic() - begin >= 0.2


@pytest.mark.parametrize("how", ["wait", "exit_first", "exit_later:0.05", "front"])
def test_wrappers(tmp_path: Path, how: str) -> None:
    with peer(tmp_path, wrapper=how) as server:
        server.handshake()
        wrapper = server.log.entries("start")[0]
        real = server.log.starts()[0]
        assert wrapper["pid"] == server.process.pid != real["pid"]
        assert (real["pgid"] == wrapper["pgid"]) is (how != "front")
        assert json.loads(server.text("pid"))["pid"] == real["pid"]
        if how == "front":
            assert json.loads(server.text("big", bytes=10).replace("x", "1")) == 1111111111
        assert server.leave() == 0
        assert procs.wait_gone(real["pid"], PATIENCE)


def test_a_killed_front_leaves_its_server_behind(tmp_path: Path) -> None:
    with peer(tmp_path, wrapper="front") as server:
        server.handshake()
        server.process.kill()
        server.process.wait(PATIENCE)
        real = server.log.starts()[0]["pid"]
        assert not procs.wait_gone(real, 0.1)
        os.kill(real, signal.SIGUSR1)
        assert procs.wait_gone(real, PATIENCE)


def test_lock_file_admits_one(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    with peer(tmp_path, lock_file=lock) as server:
        server.handshake()
        second = subprocess.run(fault_argv(lock_file=lock), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert second.returncode == 3 and b"is taken" in second.stderr
    third = subprocess.run(fault_argv(lock_file=lock), stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert third.returncode == 0


def test_deaf_and_mute(tmp_path: Path) -> None:
    with peer(tmp_path) as server:
        server.handshake()
        assert server.text("stop_reading", seconds=0.1) == "deaf"
        begin = time.monotonic()
        assert server.ask("ping") == {}
        assert time.monotonic() - begin > 0.05
        assert json.loads(server.text("descriptors")) == {}
        server.call("close_stdout")
        assert server.line() == b""
        assert server.process.poll() is None


def test_the_log_waits_and_says_what_it_saw(tmp_path: Path) -> None:
    with peer(tmp_path) as server:
        server.handshake()
        assert asyncio.run(server.log.seen("received", method="initialize"))["id"] == 1
        with pytest.raises(AssertionError, match="0 of 1 cancelled"):
            server.log.wait_for("cancelled", timeout=0.01)
        assert procs.start_time(server.process.pid) is not None
        assert procs.start_time(2**22 - 1) is None
