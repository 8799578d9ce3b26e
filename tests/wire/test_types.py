"""Types of messages: given what a server of either era sends, the client gets one meaning of it or a clear refusal."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from moorings.wire import content, lenient, types
from moorings.wire.types import (
    Annotations,
    AudioContent,
    CallToolResult,
    CancelledParams,
    Capability,
    CompleteResult,
    CreateMessageParams,
    CreateMessageResult,
    DiscoverResult,
    ElicitationCompleteParams,
    ElicitParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    GetPromptResult,
    Icon,
    ImageContent,
    Implementation,
    InitializeResult,
    InputRequiredResult,
    InvalidAnswer,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListRootsResult,
    ListToolsResult,
    LogParams,
    NotificationParams,
    ProgressParams,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    ResourceUpdatedParams,
    Root,
    SubscriptionAcknowledgedParams,
    SubscriptionFilter,
    SubscriptionsListenResult,
    TextContent,
    Tool,
    ToolResultContent,
    ToolUseContent,
    UnknownContent,
    decode_params,
    decode_result,
    encode,
    load_meta,
    load_raw,
    repair_utf8,
)

SCHEMA = {"type": "object", "properties": {"n": {"type": ["integer", "null"], "default": None}}}


def wire(value: Any) -> bytes:
    return json.dumps(value).encode()


def read(value: Any, type_: type) -> Any:
    return decode_result(wire(value), type_)


def tool(name: Any = "t", **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": SCHEMA, **more}


# --- content


BLOCKS = [
    ({"type": "text", "text": "hi"}, TextContent("hi")),
    (
        {"type": "text", "text": "hi", "annotations": {"audience": ["user"], "priority": 1}},
        TextContent("hi", annotations=Annotations(audience=["user"], priority=1.0)),
    ),
    ({"type": "image", "data": "aGk=", "mimeType": "image/png"}, ImageContent("aGk=", "image/png")),
    ({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}, AudioContent("aGk=", "audio/wav")),
    ({"type": "resource_link", "uri": "a:b", "name": "b", "size": 5}, ResourceLink("a:b", "b", size=5)),
    (
        {"type": "resource", "resource": {"uri": "a:b", "text": "x"}},
        EmbeddedResource(ResourceContents("a:b", text="x")),
    ),
    (
        {"type": "resource", "resource": {"uri": "a:b", "mimeType": "x/y", "blob": "aGk="}},
        EmbeddedResource(ResourceContents("a:b", mime_type="x/y", blob="aGk=")),
    ),
]


@pytest.mark.parametrize(("sent", "meant"), BLOCKS)
def test_content_block_is_read_and_goes_out_as_it_came(sent: dict[str, Any], meant: Any) -> None:
    result = read({"content": [sent]}, CallToolResult)
    assert result.content == [meant]
    assert result.problems == []
    assert json.loads(encode(result)) == {"content": [sent]}


def test_text_joins_the_text_blocks() -> None:
    blocks = [{"type": "text", "text": "a"}, BLOCKS[2][0], {"type": "text", "text": "b"}]
    assert read({"content": blocks}, CallToolResult).text == "a\nb"


def test_f13_6_unknown_content_kind_keeps_its_bytes() -> None:
    raw = b'{"content":[{"type":"text","text":"a"},{"type":"hologram", "x":1.50}]}'
    result = decode_result(raw, CallToolResult)
    assert result.content[0] == TextContent("a")
    unknown = result.content[1]
    assert isinstance(unknown, UnknownContent)
    assert (unknown.type, bytes(unknown.raw)) == ("hologram", b'{"type":"hologram", "x":1.50}')
    assert unknown.data == {"type": "hologram", "x": 1.5}
    assert result.problems == []
    assert encode(result) == raw.replace(b'"content":', b'"content":')
    assert unknown == UnknownContent("hologram", Raw(bytes(unknown.raw)))
    assert unknown != 1
    assert len({unknown, UnknownContent("hologram", unknown.raw)}) == 1
    assert "hologram" in repr(unknown)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text"},
        {"type": "text", "text": []},
        {"type": "image", "data": 5},
        {"text": "x"},
        "x",
        5,
        None,
        {},
    ],
)
def test_f13_6_block_that_breaks_its_kind_costs_only_itself(block: Any) -> None:
    result = read({"content": [block, {"type": "text", "text": "b"}]}, CallToolResult)
    assert isinstance(result.content[0], UnknownContent)
    assert result.content[0].data == block
    assert result.text == "b"
    assert len(result.problems) == 1
    assert result.problems[0].startswith("content[0]")


def test_f13_6_bad_annotations_do_not_cost_the_text() -> None:
    result = read(
        {"content": [{"type": "text", "text": "a", "annotations": {"priority": "high"}}]}, CallToolResult
    )
    assert result.text == "a"
    assert result.content[0].annotations == Annotations()
    assert "content[0].annotations.priority" in result.problems[0]


def test_sampling_blocks_are_known_in_sampling_only() -> None:
    use = {"type": "tool_use", "id": "1", "name": "t", "input": {"a": 1}}
    answer = {
        "type": "tool_result",
        "toolUseId": "1",
        "content": [BLOCKS[0][0]],
        "structuredContent": {"a": 2},
    }
    params = decode_params(
        wire({"messages": [{"role": "user", "content": [use, answer]}], "maxTokens": 5}), CreateMessageParams
    )
    first, second = params.messages[0].blocks
    assert first == ToolUseContent("1", "t", {"a": 1})
    assert isinstance(second, ToolResultContent)
    assert second.content == [TextContent("hi")]
    assert second.structured_content == {"a": 2}
    assert isinstance(read({"content": [use]}, CallToolResult).content[0], UnknownContent)


# --- results, one row a shape and era: type, wire, attributes


MODERN = {
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}},
}
CACHED = {**MODERN, "ttlMs": 5000, "cacheScope": "public"}
RESULTS: list[tuple[type, dict[str, Any], dict[str, Any]]] = [
    (EmptyResult, {}, {"result_type": "complete", "meta": UNSET}),
    (EmptyResult, MODERN, {"result_type": "complete"}),
    (EmptyResult, {"resultType": "task"}, {"result_type": "task"}),
    (CallToolResult, {"content": []}, {"content": [], "is_error": False, "structured_content": None}),
    (CallToolResult, {"content": [], "isError": True}, {"is_error": True}),
    (CallToolResult, {"content": [], "structuredContent": {"a": [1]}}, {"structured_content": {"a": [1]}}),
    (CallToolResult, {**MODERN, "content": [], "structuredContent": [1]}, {"structured_content": [1]}),
    (CallToolResult, {"resultType": "input_required"}, {"content": [], "result_type": "input_required"}),
    (ListToolsResult, {"tools": []}, {"next_cursor": None, "ttl_ms": None, "cache_scope": None}),
    (ListToolsResult, {"tools": [], "nextCursor": ""}, {"next_cursor": ""}),
    (ListToolsResult, {"tools": [], **CACHED}, {"ttl_ms": 5000, "cache_scope": "public"}),
    (
        ReadResourceResult,
        {"contents": [{"uri": "a:b", "text": ""}]},
        {"contents": [ResourceContents("a:b", text="")]},
    ),
    (ReadResourceResult, {**CACHED, "contents": [{"uri": "a:b", "blob": ""}]}, {"ttl_ms": 5000}),
    (ReadResourceResult, {"resultType": "input_required"}, {"contents": []}),
    (GetPromptResult, {"resultType": "input_required"}, {"messages": []}),
    (SubscriptionsListenResult, {"_meta": {types.SUBSCRIPTION_ID: 7}}, {"subscription_id": 7}),
    (SubscriptionsListenResult, {"_meta": {types.SUBSCRIPTION_ID: "a"}}, {"subscription_id": "a"}),
    (SubscriptionsListenResult, {"_meta": {types.SUBSCRIPTION_ID: True}}, {"subscription_id": None}),
    (SubscriptionsListenResult, {}, {"subscription_id": None}),
]


@pytest.mark.parametrize(("type_", "sent", "meant"), RESULTS)
def test_result_is_read_without_a_problem(type_: type, sent: dict[str, Any], meant: dict[str, Any]) -> None:
    result = read(sent, type_)
    assert {name: getattr(result, name) for name in meant} == meant
    assert result.problems == []


@pytest.mark.parametrize(("type_", "sent", "meant"), RESULTS)
def test_f13_6_unknown_fields_change_nothing(
    type_: type, sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert read({**sent, "x-new": {"problems": [1]}, "problems": ["no"]}, type_) == read(sent, type_)
    assert read({**sent, "problems": ["no"]}, type_).problems == []


def test_tool_of_2025_11_25_with_all_its_parts() -> None:
    sent = tool(
        title="T",
        description="d",
        outputSchema={"type": "object"},
        annotations={"title": "A", "readOnlyHint": True, "destructiveHint": False, "idempotentHint": None},
        icons=[{"src": "https://x/i.png", "sizes": ["48x48"], "mimeType": "image/png"}, {"no": "src"}],
        execution={"taskSupport": "optional"},
        _meta={"k": 1},
    )
    one = read({"tools": [sent]}, ListToolsResult).tools[0]
    assert (one.name, one.title, one.description) == ("t", "T", "d")
    assert one.input_schema == SCHEMA
    assert one.output_schema == {"type": "object"}
    assert (one.annotations.read_only_hint, one.annotations.destructive_hint) == (True, False)
    assert one.annotations.idempotent_hint is None
    assert one.icons == [Icon("https://x/i.png", mime_type="image/png", sizes=["48x48"])]
    assert load_raw(one.execution_raw) == {"taskSupport": "optional"}
    assert load_meta(one.meta) == {"k": 1}


def test_f15_5_the_original_schema_is_kept_byte_for_byte() -> None:
    schema = b'{ "type":"object","b":1,"a":1.0e2 , "enum":[null,"\\u00e9"]}'
    raw = b'{"tools":[{"name":"t","inputSchema":' + schema + b',"annotations":[]}]}'
    assert bytes(decode_result(raw, ListToolsResult).tools[0].input_schema_raw) == schema


def test_raw_parts_are_views_of_the_message() -> None:
    message = wire({"tools": [tool(description="x" * 100)]})
    raw = decode_result(message, ListToolsResult).tools[0].input_schema_raw
    assert memoryview(raw).obj is not None
    assert msgspec.json.decode(raw) == SCHEMA


def test_other_lists_are_read() -> None:
    resources = read(
        {
            "resources": [
                {"uri": "a:b", "name": "b", "mimeType": "x/y", "size": 3, "annotations": {"priority": 0.5}}
            ]
        },
        ListResourcesResult,
    ).resources
    assert (resources[0].uri, resources[0].size, resources[0].annotations) == (
        "a:b",
        3,
        Annotations(priority=0.5),
    )
    templates = read(
        {"resourceTemplates": [{"uriTemplate": "a:{b}", "name": "b"}]}, ListResourceTemplatesResult
    )
    assert templates.resource_templates[0].uri_template == "a:{b}"
    prompts = read(
        {"prompts": [{"name": "p", "arguments": [{"name": "a", "required": True}]}]}, ListPromptsResult
    )
    assert prompts.prompts[0].arguments[0].required is True


def test_prompt_and_completion_are_read() -> None:
    prompt = read(
        {"description": "d", "messages": [{"role": "user", "content": BLOCKS[0][0]}]}, GetPromptResult
    )
    assert (prompt.messages[0].role, prompt.messages[0].content) == ("user", TextContent("hi"))
    done = read({"completion": {"values": ["a"], "total": 3, "hasMore": True}}, CompleteResult)
    assert (done.completion.values, done.completion.total, done.completion.has_more) == (["a"], 3, True)


def test_initialize_result_of_the_handshake_era() -> None:
    sent = {
        "protocolVersion": "2025-11-25",
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True},
            "logging": {},
            "completions": None,
            "experimental": {"x": {"y": 1}},
            "tasks": {"list": {}},
        },
        "serverInfo": {"name": "s", "version": "1", "websiteUrl": "https://x"},
        "instructions": "be kind",
    }
    result = read(sent, InitializeResult)
    able = result.capabilities
    assert result.protocol_version == "2025-11-25"
    assert (able.tools, able.resources, able.prompts) == (Capability(True), Capability(subscribe=True), None)
    assert (able.logging, able.completions) == (True, False)
    assert (able.experimental, able.extensions, load_raw(able.tasks_raw)) == (
        {"x": {"y": 1}},
        {},
        {"list": {}},
    )
    assert result.server_info == Implementation(name="s", version="1", website_url="https://x")
    assert result.instructions == "be kind"


@pytest.mark.parametrize(
    ("declared", "tools"), [(True, Capability()), (False, None), (None, None), ({}, Capability())]
)
def test_f13_6_a_bare_boolean_as_capability_is_understood(declared: Any, tools: Capability | None) -> None:
    result = read({"protocolVersion": "x", "capabilities": {"tools": declared}}, InitializeResult)
    assert result.capabilities.tools == tools
    assert result.server_info is None


def test_discover_result_of_the_modern_era() -> None:
    sent = {
        **CACHED,
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
    }
    result = read(sent, DiscoverResult)
    assert result.supported_versions == ["2026-07-28"]
    assert result.capabilities.extensions == {"io.modelcontextprotocol/tasks": {}}
    assert result.server_info == Implementation(name="s", version="1")
    assert read({**sent, "_meta": {types.SERVER_INFO: 5}}, DiscoverResult).server_info is None
    assert read({**sent, "_meta": None}, DiscoverResult).server_info is None


@pytest.mark.parametrize("sent", [{}, {"capabilities": {}}, {"tools": []}])
def test_an_answer_without_versions_is_no_discover_result(sent: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswer, match="supportedVersions"):
        read(sent, DiscoverResult)


@pytest.mark.parametrize(
    "state", ["", "abc", '{"a": "\\"}', "é\u2028\x00\x7f\\u0041", "\U0001f600", "a/b+c==", "<&>", " x "]
)
def test_request_state_comes_back_unchanged(state: str) -> None:
    raw = json.dumps({"resultType": "input_required", "requestState": state, "inputRequests": None}).encode()
    result = decode_result(raw, InputRequiredResult)
    assert result.request_state == state
    assert result.input_requests == {}
    assert json.loads(encode({"requestState": result.request_state}))["requestState"] == state


def test_input_requests_are_read_by_key() -> None:
    sent = {
        "resultType": "input_required",
        "inputRequests": {
            "a": {"method": "elicitation/create", "params": {"message": "m", "requestedSchema": SCHEMA}},
            "b": {"method": "roots/list"},
        },
    }
    result = read(sent, InputRequiredResult)
    asked = result.input_requests
    assert list(asked) == ["a", "b"]
    assert decode_params(asked["a"].params_raw, ElicitParams).requested_schema == SCHEMA
    assert asked["b"].params_raw is UNSET
    assert result.request_state is None


@pytest.mark.parametrize("state", [5, ["a"], {"a": 1}, True])
def test_request_state_that_is_no_text_is_refused_not_altered(state: Any) -> None:
    with pytest.raises(InvalidAnswer, match="requestState"):
        read({"resultType": "input_required", "requestState": state}, InputRequiredResult)


# --- leniency


NULLS: list[tuple[type, dict[str, Any], str]] = [
    (CallToolResult, {"content": []}, "isError structuredContent _meta resultType"),
    (CallToolResult, {}, "content"),
    (ListToolsResult, {"tools": [tool()]}, "nextCursor ttlMs cacheScope resultType _meta"),
    (ListResourcesResult, {"resources": []}, "nextCursor ttlMs cacheScope resultType"),
    (ReadResourceResult, {}, "contents ttlMs cacheScope"),
    (GetPromptResult, {}, "messages description"),
    (InitializeResult, {"protocolVersion": "x"}, "capabilities serverInfo instructions"),
    (InputRequiredResult, {}, "inputRequests requestState resultType"),
]


@pytest.mark.parametrize(
    ("type_", "sent", "key"), [(type_, sent, key) for type_, sent, keys in NULLS for key in keys.split()]
)
def test_f13_6_null_in_an_optional_field_is_as_if_absent(type_: type, sent: dict[str, Any], key: str) -> None:
    result, plain = read({**sent, key: None}, type_), read(sent, type_)
    assert result.problems == []
    for info in msgspec.structs.fields(type_):
        if key not in ("_meta", "structuredContent") or info.encode_name != key:
            assert getattr(result, info.name) == getattr(plain, info.name)
    if key == "structuredContent":
        assert result.structured_content is None
    assert load_meta(result.meta) == {}


@pytest.mark.parametrize(
    "key", ["title", "description", "annotations", "icons", "outputSchema", "execution", "_meta"]
)
def test_f13_6_null_in_an_optional_field_of_a_tool(key: str) -> None:
    result = read({"tools": [tool(**{key: None})]}, ListToolsResult)
    one = result.tools[0]
    assert (one.title, one.description, one.annotations, one.icons, one.output_schema) == (
        None,
        None,
        None,
        [],
        None,
    )
    assert result.problems == []


@pytest.mark.parametrize(
    ("type_", "list_name"),
    [
        (ListToolsResult, "tools"),
        (ListResourcesResult, "resources"),
        (ListResourceTemplatesResult, "resourceTemplates"),
        (ListPromptsResult, "prompts"),
    ],
)
def test_a_null_list_is_empty_a_missing_one_is_refused(type_: type, list_name: str) -> None:
    assert read({list_name: None}, type_).next_cursor is None
    for sent in ({}, {list_name: {}}, {list_name: "x"}, {"items": []}):
        with pytest.raises(InvalidAnswer, match=list_name):
            read(sent, type_)


@pytest.mark.parametrize(
    ("type_", "sent", "name", "meant"),
    [
        (ListToolsResult, {"tools": [], "ttlMs": "300"}, "ttl_ms", 300),
        (ListToolsResult, {"tools": [], "ttlMs": 300.0}, "ttl_ms", 300),
        (ListToolsResult, {"tools": [], "ttlMs": -1}, "ttl_ms", -1),
        (ListToolsResult, {"tools": [], "nextCursor": 25}, "next_cursor", "25"),
        (CallToolResult, {"content": [], "isError": "true"}, "is_error", True),
        (CallToolResult, {"content": [], "isError": "False"}, "is_error", False),
        (CallToolResult, {"content": [], "isError": 1}, "is_error", True),
        (ProgressParams, {"progressToken": 1, "progress": "0.5", "total": "10"}, "progress", 0.5),
        (ProgressParams, {"progressToken": 1, "progress": 5}, "progress", 5.0),
        (CreateMessageParams, {"messages": [], "maxTokens": "100"}, "max_tokens", 100),
        (CreateMessageParams, {"messages": [], "maxTokens": 100.0}, "max_tokens", 100),
        (Implementation, {"name": "s", "version": 1.10}, "version", "1.1"),
        (ElicitParams, {"message": "m", "mode": "Form"}, "mode", "form"),
        (ElicitParams, {"message": "m", "mode": None}, "mode", "form"),
    ],
)
def test_f13_6_what_can_mean_only_one_thing_is_accepted(
    type_: type, sent: Any, name: str, meant: Any
) -> None:
    value = getattr(read(sent, type_), name)
    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize(
    ("type_", "sent", "reason"),
    [
        (CallToolResult, {"isError": "perhaps"}, "isError is a string"),
        (CallToolResult, {"isError": 2}, "isError is a number"),
        (CallToolResult, {"isError": {}}, "isError is an object"),
        (CallToolResult, {"content": "hi"}, "content is a string, not a list"),
        (CallToolResult, {"resultType": 5}, "resultType"),
        (CallToolResult, [], "the answer is a list"),
        (CallToolResult, None, "the answer is null"),
        (CallToolResult, "x", "the answer is a string"),
        (ListToolsResult, {"tools": [], "nextCursor": ["x"]}, "nextCursor"),
        (ReadResourceResult, {"contents": [{"text": "x"}]}, r"contents\[0\] has no uri"),
        (GetPromptResult, {"messages": [{"role": "system", "content": BLOCKS[0][0]}]}, "user or assistant"),
        (InitializeResult, {"capabilities": {}}, "protocolVersion"),
        (ElicitParams, {}, "has no message"),
        (ElicitParams, {"message": "m", "mode": "url"}, "no url"),
        (ElicitParams, {"message": "m", "mode": "voice"}, "form or url"),
        (ElicitParams, {"message": "m", "requestedSchema": []}, "requestedSchema"),
        (CreateMessageParams, {"messages": [], "maxTokens": "many"}, "maxTokens"),
        (CreateMessageParams, {"messages": [], "maxTokens": 1, "tools": [{"name": "t"}]}, "inputSchema"),
        (CreateMessageParams, {"messages": [], "maxTokens": 1.5}, "maxTokens"),
    ],
)
def test_what_can_mean_two_things_is_refused_with_reason_and_first_bytes(
    type_: type, sent: Any, reason: str
) -> None:
    raw = wire(sent)
    with pytest.raises(InvalidAnswer, match=reason) as caught:
        decode_result(raw, type_)
    assert caught.value.head == raw[:200]
    assert caught.value.reason


@pytest.mark.parametrize(
    "raw", [b"", b" ", b"{", b"<html>", b"{}x", b"[" * 5000, b'{"a":' * 5000, b"\xff\xfe"]
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidAnswer) as caught:
        decode_result(raw, CallToolResult)
    assert caught.value.head == raw[:200]


BAD_TOOLS: list[tuple[Any, str]] = [
    ({"inputSchema": {}}, "has no name"),
    ({"name": None, "inputSchema": {}}, "name"),
    ({"name": "", "inputSchema": {}}, "has no name"),
    ({"name": 5, "inputSchema": {}}, "name"),
    ({"name": "x"}, "'x' left out: has no inputSchema"),
    ({"name": "x", "inputSchema": []}, "'x' left out: inputSchema is not an object"),
    ({"name": "x", "inputSchema": None}, "inputSchema is not an object"),
    ({"name": "x", "inputSchema": "{}"}, "inputSchema is not an object"),
    ("x", "not an object"),
    (None, "not an object"),
]


@pytest.mark.parametrize(("bad", "why"), BAD_TOOLS)
def test_f13_6_one_bad_tool_of_ten_leaves_nine_and_a_report(bad: Any, why: str) -> None:
    tools: list[Any] = [tool(f"t{index}") for index in range(10)]
    tools[4] = bad
    result = read({"tools": tools, "nextCursor": "next"}, ListToolsResult)
    assert [one.name for one in result.tools] == [f"t{index}" for index in range(10) if index != 4]
    assert result.next_cursor == "next"
    assert len(result.problems) == 1
    assert result.problems[0].startswith("tools[4]")
    assert why in result.problems[0]


@pytest.mark.parametrize(
    ("type_", "key", "good", "bad"),
    [
        (ListResourcesResult, "resources", {"uri": "a:b", "name": "b"}, {"name": "b"}),
        (ListResourceTemplatesResult, "resourceTemplates", {"uriTemplate": "a", "name": "b"}, {"name": "b"}),
        (ListPromptsResult, "prompts", {"name": "b"}, {"name": "b", "arguments": [{}]}),
    ],
)
def test_f13_6_the_other_lists_leave_out_only_what_is_bad(type_: type, key: str, good: Any, bad: Any) -> None:
    result = read({key: [good, bad, good]}, type_)
    assert len(json.loads(encode(result))[key]) == 2
    assert len(result.problems) == 1
    assert result.problems[0].startswith(f"{key}[1] 'b' left out")


def test_f13_6_a_bad_hint_costs_only_itself_and_no_tool_looks_safer() -> None:
    hints = {"readOnlyHint": "certainly", "destructiveHint": "true", "title": ["x"]}
    result = read({"tools": [tool(annotations=hints), tool("u", annotations=5)]}, ListToolsResult)
    assert result.tools[0].annotations.read_only_hint is None
    assert result.tools[0].annotations.destructive_hint is True
    assert result.tools[1].annotations is None
    assert len(result.problems) == 3


def test_f15_7_problems_are_bounded_and_escaped() -> None:
    tools = [{"name": "\x1b[2J\u202e" + "x" * 500}] * 1000
    result = read({"tools": tools}, ListToolsResult)
    assert len(result.problems) == lenient.MAX_PROBLEMS
    assert result.problems[-1] == f"and {1000 - lenient.MAX_PROBLEMS + 1} more"
    assert all(line.isprintable() and len(line) < 300 for line in result.problems)


def test_f15_6_a_malformed_answer_with_too_many_items_is_refused() -> None:
    with pytest.raises(InvalidAnswer, match="too long"):
        decode_result(b'{"content":[' + b",".join([b"{}"] * (lenient.MAX_ITEMS + 1)) + b"]}", CallToolResult)


def test_f15_6_a_deep_schema_costs_nothing_until_it_is_read() -> None:
    deep = b'{"a":' * 200 + b"{}" + b"}" * 200
    result = decode_result(b'{"tools":[{"name":"t","inputSchema":' + deep + b"}]}", ListToolsResult)
    assert bytes(result.tools[0].input_schema_raw) == deep
    assert "a" in result.tools[0].input_schema


def test_user_data_is_not_touched_by_the_lenient_path() -> None:
    data = b'{"n":"5","isError":null,"x":1e400,"y":"true"}'
    raw = b'{"content":null,"isError":null,"structuredContent":' + data + b',"_meta":' + data + b"}"
    result = decode_result(raw, CallToolResult)
    assert isinstance(result.structured_content_raw, Raw)
    assert isinstance(result.meta, Raw)
    assert bytes(result.structured_content_raw) == bytes(result.meta) == data
    with pytest.raises(InvalidAnswer):
        _ = result.structured_content  # 1e400 is no number Python can hold


# --- broken text


@pytest.mark.parametrize(
    ("data", "mended"),
    [
        (b'"caf\x97"', '"caf\ufffd"'.encode()),
        (b'"\xe2\x82"', '"\ufffd"'.encode()),
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\udc00\ud83d x"', rb'"\ufffd\ufffd x"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\uD83D\uDE00"', rb'"\uD83D\uDE00"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
    ],
)
def test_f13_10_what_is_no_unicode_is_replaced(data: bytes, mended: bytes) -> None:
    assert repair_utf8(data) == mended
    assert repair_utf8(mended) == mended
    json.loads(mended)


def test_f13_10_good_text_is_not_copied() -> None:
    for data in (b"", b'"a"', '"é😀"'.encode(), b'"\\n\\u00e9"'):
        assert repair_utf8(data) is data


@pytest.mark.parametrize("bad", [b"\x97", rb"\ud83d", rb"\udc00"])
def test_f13_10_a_byte_of_a_legacy_code_page_costs_one_mark_and_a_warning(bad: bytes) -> None:
    raw = b'{"content":[{"type":"text","text":"a' + bad + b'b"}],"structuredContent":{"k":"' + bad + b'"}}'
    for message in (raw, Raw(raw)):
        result = decode_result(message, CallToolResult)
        assert result.text == "a\ufffdb"
        assert result.structured_content == {"k": "\ufffd"}
        assert ["U+FFFD" in line for line in result.problems] == [True]


def test_f13_10_broken_text_in_a_raw_part_is_mended_when_read() -> None:
    result = decode_result(b'{"content":[],"structuredContent":{"k":"\x97"}}', CallToolResult)
    assert result.structured_content == {"k": "\ufffd"}


def test_f13_10_broken_text_in_one_tool_keeps_all() -> None:
    raw = b'{"tools":[{"name":"a","description":"\x97","inputSchema":{}},{"name":"b","inputSchema":{}}]}'
    assert [one.name for one in decode_result(raw, ListToolsResult).tools] == ["a", "b"]


# --- params


SUBSCRIBED = {"_meta": {types.SUBSCRIPTION_ID: "s1"}}
PARAMS: list[tuple[type, dict[str, Any], dict[str, Any]]] = [
    (NotificationParams, {}, {"subscription_id": None}),
    (NotificationParams, SUBSCRIBED, {"subscription_id": "s1"}),
    (
        ProgressParams,
        {"progressToken": "p", "progress": 1},
        {"progress_token": "p", "progress": 1.0, "total": None},
    ),
    (
        ProgressParams,
        {"progressToken": 3, "progress": 0.1, "total": 2, "message": "m"},
        {"total": 2.0, "message": "m"},
    ),
    (LogParams, {"level": "info", "data": None}, {"level": "info", "data": None, "logger": None}),
    (LogParams, {"level": "loud", "data": {"a": [1]}, "logger": "l"}, {"data": {"a": [1]}, "logger": "l"}),
    (CancelledParams, {"requestId": 5}, {"request_id": 5, "reason": None}),
    (CancelledParams, {"reason": "r"}, {"request_id": None, "reason": "r"}),
    (ResourceUpdatedParams, {"uri": "a:b", **SUBSCRIBED}, {"uri": "a:b", "subscription_id": "s1"}),
    (ElicitationCompleteParams, {"elicitationId": "e"}, {"elicitation_id": "e"}),
    (
        SubscriptionAcknowledgedParams,
        {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]}, **SUBSCRIBED},
        {
            "notifications": SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["a:b"]),
            "subscription_id": "s1",
        },
    ),
    (ElicitParams, {"message": "m", "requestedSchema": SCHEMA}, {"mode": "form", "requested_schema": SCHEMA}),
    (ElicitParams, {"message": "m", "mode": "form", "requestedSchema": SCHEMA}, {"mode": "form"}),
    (
        ElicitParams,
        {"message": "m", "mode": "url", "url": "https://x", "elicitationId": "e"},
        {"mode": "url", "url": "https://x", "elicitation_id": "e", "requested_schema": {}},
    ),
    (ElicitParams, {"message": "m", "mode": "url", "url": "https://x"}, {"elicitation_id": None}),
    (
        CreateMessageParams,
        {
            "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
            "maxTokens": 5,
            "systemPrompt": "s",
            "includeContext": "none",
            "temperature": 1,
            "stopSequences": ["x"],
            "metadata": {"a": 1},
            "toolChoice": {"mode": "auto"},
        },
        {"system_prompt": "s", "temperature": 1.0, "stop_sequences": ["x"], "metadata": {"a": 1}},
    ),
]


@pytest.mark.parametrize(("type_", "sent", "meant"), PARAMS)
def test_params_are_read(type_: type, sent: dict[str, Any], meant: dict[str, Any]) -> None:
    params = decode_params(wire(sent), type_)
    assert {name: getattr(params, name) for name in meant} == meant
    assert decode_params(wire({**sent, "x-new": 1}), type_) == params


def test_sampling_params_of_a_tool_using_server() -> None:
    params = decode_params(
        wire(
            {
                "messages": [{"role": "assistant", "content": {"type": "text", "text": "hi"}}],
                "maxTokens": 5,
                "modelPreferences": {"hints": [{"name": "small"}], "speedPriority": 1},
                "tools": [tool()],
                "toolChoice": {"mode": "required"},
            }
        ),
        CreateMessageParams,
    )
    assert params.messages[0].blocks == [TextContent("hi")]
    assert params.model_preferences is not None
    assert params.model_preferences.speed_priority == 1.0
    assert params.tools is not None
    assert params.tools[0].input_schema == SCHEMA
    assert params.tool_choice is not None
    assert params.tool_choice.mode == "required"


# --- what we send


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (ElicitResult("accept", {"a": 1, "b": None}), {"action": "accept", "content": {"a": 1, "b": None}}),
        (ElicitResult("decline"), {"action": "decline"}),
        (ListRootsResult([]), {"roots": []}),
        (ListRootsResult([Root("file:///a", "a")]), {"roots": [{"uri": "file:///a", "name": "a"}]}),
        (
            CreateMessageResult(content=TextContent("hi"), model="m", stop_reason="endTurn"),
            {"role": "assistant", "content": BLOCKS[0][0], "model": "m", "stopReason": "endTurn"},
        ),
        (
            CreateMessageResult(content=[ToolUseContent("1", "t", {})], model="m"),
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "1", "name": "t", "input": {}}],
                "model": "m",
            },
        ),
        (SubscriptionFilter(tools_list_changed=True), {"toolsListChanged": True}),
        (CallToolResult(), {"content": []}),
        (Implementation(name="moorings", version="1"), {"name": "moorings", "version": "1"}),
    ],
)
def test_what_we_send_has_the_required_keys_and_no_others(value: Any, sent: dict[str, Any]) -> None:
    assert json.loads(encode(value)) == sent
    assert decode_result(encode(value), type(value)) == value


def test_a_thing_that_is_no_message_part_is_not_sent() -> None:
    with pytest.raises(TypeError, match="object"):
        encode({"a": object()})


# --- the house


def test_tools_made_by_hand_are_checked_as_those_of_a_server() -> None:
    good = Tool(name="t", input_schema_raw=Raw(b"{}"))
    Tool.check_all([good, good])
    with pytest.raises(ValueError, match="inputSchema"):
        Tool.check_all([good, Tool(name="t", input_schema_raw=Raw(b"[]"))])
    with pytest.raises(ValueError, match="name"):
        Tool.check_all([good, Tool(name="", input_schema_raw=Raw(b"{}"))])


def test_every_public_name_exists_and_every_public_type_says_what_it_is() -> None:
    for module in (types, content, lenient):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and value.__module__.startswith("moorings"):
                assert value.__doc__, name
                assert not value.__doc__.startswith(f"{name}("), name


def test_structs_are_frozen() -> None:
    result = read({"content": []}, CallToolResult)
    with pytest.raises(AttributeError):
        result.is_error = True
