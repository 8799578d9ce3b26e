"""Servers that are not as they should be: noise, sizes, shapes, encodings (field faults 13)."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from moorings import AmbiguousDelivery, Bounds, ElicitResult, Handlers, State
from moorings.wire.eras import EXTENSIONS
from tests.faults.procs import resident_bytes
from tests.faults.script import fault_server
from tests.session.hosting import EMPTY, host_of, scripted, sizes_of

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
MIB = 1024 * 1024


# --- noise ----------------------------------------------------------------------------------------------------------


async def test_f13_1_a_banner_and_ten_megabytes_of_noise(tmp_path: Path) -> None:
    """F13.1: what is no JSON-RPC goes to the bounded log of the server; the connection lives; memory stays flat."""
    host, log = scripted(tmp_path, banner="Welcome!\n\n  \nlistening on stdio", state_dir=tmp_path / "state")
    async with host:
        await host.wait_ready(10)
        # Once, so that what the first noise allocates for good is there.
        await host.call("s__noise", {"bytes": MIB})
        before = resident_bytes(os.getpid())
        assert (
            await host.call("s__noise", {"bytes": 10 * MIB, "line": "x" * 200}, timeout=30)
        ).text == "noisy"
        assert resident_bytes(os.getpid()) - before < 8 * MIB
        assert host.status()["s"].state is State.READY
        # Blank lines are nothing; the lines of text were counted.
        assert host.status()["s"].counters.not_jsonrpc > 10 * MIB // 210
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
        assert sizes_of(host) == EMPTY
    logs = {path: path.stat().st_size for path in (tmp_path / "state").rglob("*.log*")}
    assert logs and all(size <= Bounds().log_file for size in logs.values())
    assert sum(logs.values()) > Bounds().log_file / 2
    assert len(log.starts()) == 1


async def test_f13_1_the_banner_stands_in_the_log_of_the_server(tmp_path: Path) -> None:
    host, _ = scripted(tmp_path, banner="Welcome!", state_dir=tmp_path / "state")
    async with host:
        await host.wait_ready(10)
        await host.call("s__echo")
    text = "".join(path.read_text() for path in (tmp_path / "state").rglob("*.log"))
    assert "Welcome!\n" in text


async def test_f13_1_noise_in_one_endless_line_costs_the_cap_and_no_more(tmp_path: Path) -> None:
    """Given 6 MiB without a line end against a cap of 1 MiB, it is thrown away as it comes."""
    host, _ = scripted(tmp_path, bounds=Bounds(max_message=MIB))
    async with host:
        await host.wait_ready(10)
        before = resident_bytes(os.getpid())
        said = await host.call("s__noise", {"bytes": 6 * MIB, "line": "y" * (6 * MIB - 2)}, timeout=30)
        assert said.text == "noisy"
        assert host.status()["s"].counters.oversize == 1
        assert resident_bytes(os.getpid()) - before < 8 * MIB
        assert (await host.call("s__echo", {"text": "on"})).text == "on"


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [70_000, 1_000_000, 10_000_000])
async def test_f13_2_results_of_any_size_below_the_cap_are_answered(tmp_path: Path, size: int) -> None:
    """F13.2: 70 KB, 1 MB and 10 MB in one line."""
    host, _ = scripted(tmp_path)
    async with host:
        assert len((await host.call("s__big", {"bytes": size}, timeout=30)).text) == size
        # Two bytes a letter, and a cut in the middle of one by every pipe there is.
        assert set((await host.call("s__big", {"bytes": size, "fill": "é"}, timeout=30)).text) == {"é"}


@ERAS
@pytest.mark.parametrize("id_last", [False, True])
async def test_f13_2_a_result_over_the_cap_costs_that_call(tmp_path: Path, era: str, id_last: bool) -> None:
    """F13.2: 17 MiB against 16 MiB, the id before or behind the text: the call fails with size and cap, others in
    flight do not, and the next one works."""
    host, log = scripted(tmp_path, era=era)
    async with host:
        await host.wait_ready(10)
        beside = asyncio.ensure_future(host.call("s__hold"))
        await log.seen("received", tool="hold")
        with pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__big", {"bytes": 17 * MIB, "id_last": id_last}, timeout=30)
        error = caught.value
        assert (error.server, error.tool, error.sent) == ("s", "big", True)
        assert f"over the cap of {16 * MIB} bytes" in str(error)
        size = int(str(error).split("a message of ")[1].split(" ")[0])
        assert 17 * MIB < size < 17 * MIB + 300
        await host.call("s__release")
        assert (await beside).text == "released"
        assert host.status()["s"].counters.oversize == 1
        assert sizes_of(host) == EMPTY
    assert len(log.starts()) == 1
    assert log.violations() == []


async def test_a_question_over_the_cap_is_refused_and_its_asker_told(tmp_path: Path) -> None:
    """Given a server that asks something larger than allowed, it gets an error, and its call goes on."""

    async def elicit(server: str, question: Any) -> ElicitResult:
        pytest.fail("it was put to the person")

    host, _ = scripted(tmp_path, handlers=Handlers(elicit=elicit), bounds=Bounds(max_message=100_000))
    async with host:
        params = {"mode": "form", "message": "x" * 60_000, "requestedSchema": {"type": "object"}}
        await host.call("s__echo", {"text": "small"})
        with_two = {**params, "more": "y" * 60_000}
        replies = json.loads((await host.call("s__ask", {"params": with_two})).text)
        assert replies[0]["error"]["code"] == -32600
        assert "over the cap of 100000 bytes" in replies[0]["error"]["message"]


async def test_the_cap_is_a_setting_and_the_last_byte_counts(tmp_path: Path) -> None:
    """A line of exactly the cap is answered; one byte more is not."""
    host, _ = scripted(tmp_path, bounds=Bounds(max_message=50_000))
    async with host:
        await host.wait_ready(10)
        with pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__big", {"bytes": 50_000})
        over = int(str(caught.value).split("a message of ")[1].split(" ")[0]) - 50_000
        fitting = 50_000 - over
        assert len((await host.call("s__big", {"bytes": fitting})).text) == fitting
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__big", {"bytes": fitting + 1})


ECHO = [{"name": "echo", "inputSchema": {"type": "object"}}]


# --- cuts -----------------------------------------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize("crlf", [False, True])
@pytest.mark.parametrize("chunking", [1, 2, 3, 7])
async def test_f13_3_wherever_the_bytes_are_cut_the_results_are_the_same(
    tmp_path: Path, era: str, crlf: bool, chunking: int
) -> None:
    """F13.3: one, two, three, seven bytes at a time, inside a character too, with either line end, over a real
    pipe."""
    text = 'a\u00e9\u5de5\U0001f6a2 \u2028 \r\n \\ " end'
    host, log = scripted(tmp_path, era=era, crlf=crlf, chunking=chunking, builtins=False, tools=ECHO)
    async with host:
        for _ in range(3):
            assert (await host.call("s__echo", {"text": text})).text == text
        assert host.status()["s"].counters.not_jsonrpc == 0
    assert log.violations() == []


async def test_f13_3_many_messages_in_one_chunk(tmp_path: Path) -> None:
    """F13.3: given answers to 50 calls released at once, each caller gets its own."""
    host, log = scripted(tmp_path)
    async with host:
        await host.wait_ready(10)
        held = [asyncio.ensure_future(host.call("s__hold", {"text": f"n{n}"})) for n in range(50)]
        await log.seen("received", 50, tool="hold")
        await host.call("s__release", {"order": "lifo"})
        assert [result.text for result in await asyncio.gather(*held)] == [f"n{n}" for n in range(50)]


# --- shapes ---------------------------------------------------------------------------------------------------------


async def test_f13_6_an_id_that_comes_back_as_a_string_is_ours(tmp_path: Path) -> None:
    """F13.6: "7" for 7."""
    host, _ = scripted(tmp_path)
    async with host:
        assert (await host.call("s__string_id")).text == "stringly"
        assert host.status()["s"].counters.unknown_ids == 0


@ERAS
async def test_f13_6_nulls_and_unknown_fields_are_nothing(tmp_path: Path, era: str) -> None:
    """F13.6: ``nextCursor: null``, nulls in optional fields, fields and kinds of content from the future."""
    nulls = {"prompts/list": "nulls", "resources/list": "nulls"}
    host, _ = scripted(tmp_path, era=era, on_list="nulls", prompts=1, resources=1, on=nulls)
    async with host:
        await host.wait_ready(10)
        tools = {item.tool.name: item.tool for item in await host.tools()}
        assert tools["echo"].title is None and tools["echo"].annotations is None
        assert len(await host.prompts()) == len(await host.resources()) == 1
        blocks = [
            {"type": "text", "text": "a", "annotations": None, "future": 1},
            {"type": "hologram", "depth": 3},
            {"type": "resource_link", "uri": "res://0", "name": "r", "mimeType": None},
        ]
        result = await host.call("s__content", {"blocks": blocks, "more": {"future": [1]}})
        assert [type(block).__name__ for block in result.content] == [
            "TextContent",
            "UnknownContent",
            "ResourceLink",
        ]
        assert result.text.startswith("a")


@ERAS
@pytest.mark.parametrize(("twist", "gone"), [("bad_name", "t0"), ("bad_schema", "t0")])
async def test_f13_6_one_bad_tool_of_ten_is_reported_and_nine_are_listed(
    tmp_path: Path, era: str, twist: str, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F13.6: without a name, or with a schema that is no object."""
    host, _ = scripted(tmp_path, era=era, builtins=False, tools=10, on_list=twist)
    async with host:
        await host.wait_ready(10)
        assert {item.tool.name for item in await host.tools()} == {f"t{n}" for n in range(10)} - {gone}
    reported = [r.message for r in caplog.records if r.name == "moorings" and "server s: " in r.message]
    assert len(reported) == 1, reported


# --- structured content ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_error", [False, True])
async def test_f13_9_structured_content_that_breaks_its_schema_is_delivered(
    tmp_path: Path, is_error: bool
) -> None:
    """F13.9, delivery: the result is the caller's, whatever the tool's outputSchema says."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {
        "name": "structured",
        "inputSchema": {"type": "object"},
        "outputSchema": schema,
        "does": "structured",
    }
    host, _ = scripted(tmp_path, builtins=False, tools=[tool])
    async with host:
        for value in ({"n": "not a number"}, {}, ["no object"], 7, {"n": 1}):
            result = await host.call("s__structured", {"value": value, "is_error": is_error})
            assert result.structured_content == value
            assert result.is_error is is_error
        assert host.status()["s"].state is State.READY


# --- encodings ------------------------------------------------------------------------------------------------------


@ERAS
async def test_f13_10_a_byte_of_a_legacy_code_page_is_replaced(
    tmp_path: Path, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F13.10: the call is answered with a replacement mark, and a warning names the server."""
    host, _ = scripted(tmp_path, era=era)
    async with host:
        result = await host.call("s__bad_utf8")
        assert result.text == "a \ufffd b"
        assert result.problems == ["text that is not valid Unicode was replaced by U+FFFD"]
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
    assert any("server s: bad_utf8: text that is not valid Unicode" in r.message for r in caplog.records)


@pytest.mark.parametrize(
    ("env", "inherit", "mode"),
    [({}, False, "1"), ({"PYTHONUTF8": "0"}, False, "0"), ({"PYTHONIOENCODING": "latin-1"}, False, None)],
)
async def test_f13_10_python_children_get_utf8_mode_unless_set_otherwise(
    tmp_path: Path, env: dict[str, str], inherit: bool, mode: str | None
) -> None:
    """F13.10: what the user set stands."""
    host, _ = scripted(tmp_path, env=env, inherit_env=inherit)
    async with host:
        said = (await host.call("s__env", {"name": "PYTHONUTF8"})).text
        if mode is not None:
            assert said == mode
        for name, value in env.items():
            assert (await host.call("s__env", {"name": name})).text == value


@ERAS
async def test_lone_surrogates_and_controls_come_through(tmp_path: Path, era: str) -> None:
    """Text that JSON can hold and other languages send: NUL, controls, escaped halves of pairs."""
    host, _ = scripted(tmp_path, era=era)
    async with host:
        for text in ("\0\x01\x1f", "\x7f\x80\x9f", "\ufeff", "\ufffe"):
            assert (await host.call("s__echo", {"text": text})).text == text
        raw = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}})
        await host.call("s__raw", {"text": raw[:-3] + ', "data": "\\ud800"}}\n'})
        assert (await host.call("s__echo", {"text": "on"})).text == "on"


# --- what we send ---------------------------------------------------------------------------------------------------


async def _answer(server: str, question: Any) -> Any:
    return ElicitResult(action="decline")


CONFIGURED: list[tuple[Handlers, set[str]]] = [
    (Handlers(), set()),
    (Handlers(roots=[]), {"roots"}),
    (Handlers(sample=_answer), {"sampling"}),
    (Handlers(elicit=_answer), {"elicitation"}),
    (Handlers(elicit_url=_answer), {"elicitation"}),
    (Handlers(roots=[], sample=_answer, elicit=_answer), {"roots", "sampling", "elicitation"}),
]


@ERAS
@pytest.mark.parametrize(("handlers", "declared"), CONFIGURED)
async def test_f13_11_a_strict_server_finds_only_what_is_configured_and_integer_ids(
    tmp_path: Path, era: str, handlers: Handlers, declared: set[str]
) -> None:
    """F13.11: nothing unknown is declared, and nothing that nobody would answer."""
    host, log = scripted(tmp_path, era=era, strict=True, journal_raw=True, handlers=handlers, protocol="auto")
    async with host:
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
    if era == "handshake":
        sent = log.entries("received", method="initialize")[0]["params"]["capabilities"]
    else:
        meta = log.entries("received", method="tools/call")[0]["params"]["_meta"]
        sent = meta["io.modelcontextprotocol/clientCapabilities"]
    assert set(sent) - {"extensions"} == declared
    assert set(sent.get("extensions", {})) == (set() if era == "handshake" else EXTENSIONS)
    ids = [entry["id"] for entry in log.entries("received") if entry["id"] is not None]
    assert all(type(id_) is int for id_ in ids) and len(set(ids)) == len(ids)
    assert log.violations() == []


# --- the same, on one connection after the other --------------------------------------------------------------------


async def test_one_bad_message_costs_at_most_one_request(tmp_path: Path) -> None:
    """Given every kind of bad message between good ones, the connection lives through all of them."""
    host, log = scripted(tmp_path)
    bad: list[dict[str, Any]] = [
        {"text": "{}\n"},
        {"text": "[]\n"},
        {"text": "null\n"},
        {"text": '"text"\n'},
        {"text": '{"jsonrpc": "2.0"}\n'},
        {"text": '{"jsonrpc": "2.0", "id": null, "result": {}}\n'},
        {"text": '{"jsonrpc": "2.0", "id": 987654, "result": {}}\n'},
        {"text": '{"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": "m"}}\n'},
        {"text": '{"jsonrpc": "2.0", "method": 7}\n'},
        {"text": '{"jsonrpc": "2.0", "method": "notifications/unheard-of"}\n'},
        {"text": '{"jsonrpc": "2.0", "method": "no/such/request", "id": 5, "params": []}\n'},
        {"text": "{" * 10_000 + "\n"},
        {"text": "[" * 10_000 + "\n"},
        {"text": '{"a":' * 10_000 + "\n"},
        {"hex": "00ff00ff0a"},
        {"hex": "efbbbf0a"},
        {"hex": "0a0d0a0a"},
    ]
    async with host:
        await host.wait_ready(10)
        for raw in bad:
            assert (await host.call("s__raw", raw)).text == "sent", raw
            assert (await host.call("s__echo", {"text": "on"})).text == "on"
        assert sizes_of(host) == EMPTY
    assert len(log.starts()) == 1


def test_the_specification_of_a_server_names_its_cap() -> None:
    """The default is 16 MiB, and it is a setting of the server."""
    assert fault_server().bounds.max_message == 16 * MIB
    assert host_of is not None
