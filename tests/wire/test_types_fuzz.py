"""Types of messages under random input: only one kind of error comes out, and what goes out comes back the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from moorings.wire.types import (
    CallToolResult,
    CancelledParams,
    CompleteResult,
    CreateMessageParams,
    CreateMessageResult,
    DiscoverResult,
    ElicitationCompleteParams,
    ElicitParams,
    ElicitResult,
    EmptyResult,
    GetPromptResult,
    ImageContent,
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
    ResourceUpdatedParams,
    Result,
    Root,
    SubscriptionAcknowledgedParams,
    SubscriptionFilter,
    SubscriptionsListenResult,
    TextContent,
    ToolUseContent,
    UnknownContent,
    decode_result,
    encode,
    repair_utf8,
)

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
TEXT: dict[str, Any] = {"type": "text", "text": "hi"}
TOOL: dict[str, Any] = {
    "name": "t",
    "title": "T",
    "description": "d",
    "inputSchema": SCHEMA,
    "outputSchema": SCHEMA,
    "annotations": {"title": "t", "readOnlyHint": True},
    "icons": [{"src": "https://x"}],
}
LIST: dict[str, Any] = {
    "nextCursor": "n",
    "ttlMs": 5,
    "cacheScope": "public",
    "resultType": "complete",
    "_meta": {},
}

# A whole answer of each shape, as the spec wants it: the seeds of the mutations below.
WHOLE: list[tuple[type, dict[str, Any]]] = [
    (EmptyResult, {"resultType": "complete", "_meta": {"a": 1}}),
    (
        CallToolResult,
        {
            "content": [
                {
                    **TEXT,
                    "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "x"},
                    "_meta": {},
                },
                {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
                {"type": "resource_link", "uri": "a:b", "name": "n", "size": 3, "icons": [{"src": "x"}]},
                {"type": "resource", "resource": {"uri": "a:b", "text": "x", "_meta": {}}},
            ],
            "structuredContent": {"a": 1},
            "isError": False,
            "resultType": "complete",
        },
    ),
    (ListToolsResult, {"tools": [TOOL, {"name": "u", "inputSchema": {}}], **LIST}),
    (
        ListResourcesResult,
        {"resources": [{"uri": "a:b", "name": "n", "size": 5, "annotations": {"priority": 1}}], **LIST},
    ),
    (ListResourceTemplatesResult, {"resourceTemplates": [{"uriTemplate": "a:{b}", "name": "n"}], **LIST}),
    (ListPromptsResult, {"prompts": [{"name": "p", "arguments": [{"name": "a", "required": True}]}], **LIST}),
    (ReadResourceResult, {"contents": [{"uri": "a:b", "mimeType": "x/y", "blob": "aGk="}], "ttlMs": 1}),
    (GetPromptResult, {"description": "d", "messages": [{"role": "user", "content": TEXT}]}),
    (CompleteResult, {"completion": {"values": ["a"], "total": 1, "hasMore": False}}),
    (
        InitializeResult,
        {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}, "logging": {}, "experimental": {"a": {}}},
            "serverInfo": {"name": "s", "version": "1", "icons": [{"src": "x"}]},
            "instructions": "i",
        },
    ),
    (
        DiscoverResult,
        {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"extensions": {"a": {}}},
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}},
            **LIST,
        },
    ),
    (
        InputRequiredResult,
        {
            "resultType": "input_required",
            "requestState": "s",
            "inputRequests": {"a": {"method": "elicitation/create", "params": {"message": "m"}}},
        },
    ),
    (SubscriptionsListenResult, {"_meta": {"io.modelcontextprotocol/subscriptionId": 1}}),
    (NotificationParams, {"_meta": {"io.modelcontextprotocol/subscriptionId": "a"}}),
    (ProgressParams, {"progressToken": 1, "progress": 0.5, "total": 2, "message": "m"}),
    (LogParams, {"level": "info", "data": {"a": 1}, "logger": "l"}),
    (CancelledParams, {"requestId": "a", "reason": "r"}),
    (ResourceUpdatedParams, {"uri": "a:b"}),
    (ElicitationCompleteParams, {"elicitationId": "e"}),
    (
        SubscriptionAcknowledgedParams,
        {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]}},
    ),
    (ElicitParams, {"mode": "form", "message": "m", "requestedSchema": SCHEMA}),
    (ElicitParams, {"mode": "url", "message": "m", "url": "https://x", "elicitationId": "e"}),
    (
        CreateMessageParams,
        {
            "messages": [
                {"role": "user", "content": TEXT},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "t", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "toolUseId": "1", "content": [TEXT], "isError": True}
                    ],
                },
            ],
            "modelPreferences": {"hints": [{"name": "h"}], "costPriority": 0.5},
            "systemPrompt": "s",
            "includeContext": "none",
            "maxTokens": 5,
            "temperature": 0.5,
            "stopSequences": ["x"],
            "metadata": {"a": 1},
            "tools": [TOOL],
            "toolChoice": {"mode": "auto"},
        },
    ),
]
TYPES = list(dict.fromkeys(type_ for type_, _ in WHOLE))
KEYS = sorted(
    {key for _, sent in WHOLE for key in sent} | set(TOOL) | {"uri", "role", "type", "text", "input"}
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=5)
    ),
    max_leaves=20,
)


def survives(raw: bytes | Raw, type_: type) -> Any:
    """Decode, and touch all that is decoded later; nothing but ``InvalidAnswer`` may come out of either."""
    try:
        value = decode_result(raw, type_)
    except InvalidAnswer as error:
        assert str(error)
        assert len(error.head) <= 200
        return None
    touch(value)
    return value


def touch(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            touch(item)
    if isinstance(value, UnknownContent | msgspec.Struct):
        repr(value)
        for name in dir(type(value)):
            if not name.startswith("_"):
                try:
                    touch(getattr(value, name))
                except InvalidAnswer:
                    continue
    if isinstance(value, Result):
        assert all(isinstance(line, str) and line for line in value.problems)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [here] if here else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += paths(inner, (*here, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found += paths(inner, (*here, index))
    return found


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of ``value`` with ``new`` at ``path``; a dict at the end of the path may be given as a function."""
    if not path:
        return new(value) if callable(new) else new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


@given(st.sampled_from(TYPES), json_values)
def test_f13_6_any_json_is_read_or_refused(type_: type, sent: Any) -> None:
    survives(json.dumps(sent).encode(), type_)


@given(st.sampled_from(TYPES), st.binary(max_size=60))
def test_f13_10_any_bytes_are_read_or_refused(type_: type, raw: bytes) -> None:
    survives(raw, type_)


@given(st.sampled_from(WHOLE), st.data())
def test_f13_6_any_part_replaced_by_any_json(case: tuple[type, dict[str, Any]], data: st.DataObject) -> None:
    type_, sent = case
    for _ in range(data.draw(st.integers(1, 3))):
        sent = put(sent, data.draw(st.sampled_from(paths(sent) or [()])), data.draw(json_values))
        if not isinstance(sent, dict):
            break
    survives(json.dumps(sent).encode(), type_)


@given(st.sampled_from(WHOLE), st.data())
def test_f13_10_any_bytes_in_the_middle(case: tuple[type, dict[str, Any]], data: st.DataObject) -> None:
    raw = json.dumps(case[1]).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 4)))
    damaged = raw[:start] + data.draw(st.binary(max_size=6)) + raw[end:]
    survives(damaged, case[0])
    survives(Raw(damaged), case[0])


@given(
    st.sampled_from(WHOLE), st.dictionaries(st.text(min_size=1).map("x-".__add__), json_values, max_size=3)
)
def test_f13_6_extra_fields_change_nothing(case: tuple[type, dict[str, Any]], extra: dict[str, Any]) -> None:
    type_, sent = case
    assert decode_result(json.dumps({**extra, **sent}).encode(), type_) == decode_result(
        json.dumps(sent).encode(), type_
    )


@given(st.sampled_from(WHOLE), st.data())
def test_f13_6_null_in_any_optional_field_is_accepted(
    case: tuple[type, dict[str, Any]], data: st.DataObject
) -> None:
    type_, sent = case
    optional = [
        info.encode_name
        for info in msgspec.structs.fields(type_)
        if info.default is not msgspec.NODEFAULT or info.default_factory is not msgspec.NODEFAULT
    ]
    if type_ is ElicitParams:
        optional = ["elicitationId", "_meta"]  # the others depend on each other
    nulls = data.draw(st.sets(st.sampled_from(optional)))
    value = decode_result(json.dumps({**sent, **dict.fromkeys(nulls)}).encode(), type_)
    assert getattr(value, "problems", []) == []


@given(st.text(min_size=1), json_values, st.integers(0, 2))
def test_f13_6_an_unknown_kind_goes_out_as_it_came(kind: str, more: Any, position: int) -> None:
    block = {"type": f"x-{kind}", "more": more}
    blocks: list[Any] = [TEXT, TEXT]
    blocks.insert(position, block)
    result = decode_result(json.dumps({"content": blocks}).encode(), CallToolResult)
    unknown = result.content[position]
    assert isinstance(unknown, UnknownContent)
    assert bytes(unknown.raw) == json.dumps(block).encode()
    assert json.loads(encode(result)) == {"content": blocks}


@given(st.lists(st.booleans(), max_size=30))
def test_f13_6_good_tools_stay_in_order_and_each_bad_one_is_reported(good: list[bool]) -> None:
    tools = [{**TOOL, "name": f"t{i}"} if fine else {"name": f"t{i}"} for i, fine in enumerate(good)]
    result = decode_result(json.dumps({"tools": tools}).encode(), ListToolsResult)
    assert [tool.name for tool in result.tools] == [f"t{i}" for i, fine in enumerate(good) if fine]
    assert len(result.problems) == good.count(False)


@given(st.sampled_from(WHOLE), st.lists(st.booleans(), min_size=4, max_size=4))
def test_numbers_as_text_are_read_as_the_numbers(
    case: tuple[type, dict[str, Any]], which: list[bool]
) -> None:
    type_, sent = case
    loose = dict(sent)
    for key, as_text in zip(("ttlMs", "maxTokens", "progress", "total"), which, strict=True):
        if as_text and key in loose:
            loose[key] = str(loose[key])
    assert decode_result(json.dumps(loose).encode(), type_) == decode_result(json.dumps(sent).encode(), type_)


@pytest.mark.parametrize(("type_", "sent"), WHOLE)
def test_a_whole_answer_needs_no_leniency_and_survives_the_way_out_and_back(
    type_: type, sent: dict[str, Any]
) -> None:
    value = decode_result(json.dumps(sent).encode(), type_)
    assert value == msgspec.json.Decoder(type_).decode(json.dumps(sent).encode())
    again = decode_result(encode(value), type_)
    assert json.loads(encode(again)) == json.loads(encode(value))


words = st.text(max_size=20)
form = st.dictionaries(
    words,
    words | st.integers(-(2**63), 2**63) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(words, max_size=3),
    max_size=4,
)  # fmt: skip
said = (
    st.builds(TextContent, words)
    | st.builds(ImageContent, words, words)
    | st.builds(ToolUseContent, words, words, form)
)
sent_values = (
    st.builds(ElicitResult, st.sampled_from(["accept", "decline", "cancel"]), st.none() | form)
    | st.builds(ListRootsResult, st.lists(st.builds(Root, words, st.none() | words), max_size=3))
    | st.builds(
        CreateMessageResult,
        content=said | st.lists(said, max_size=3),
        model=words,
        stop_reason=st.none() | words,
        role=st.sampled_from(["user", "assistant"]),
    )
    | st.builds(
        SubscriptionFilter,
        tools_list_changed=st.booleans(),
        prompts_list_changed=st.booleans(),
        resources_list_changed=st.booleans(),
        resource_subscriptions=st.none() | st.lists(words, max_size=3),
    )
)


@given(sent_values)
def test_what_we_send_comes_back_the_same(value: Any) -> None:
    assert decode_result(encode(value), type(value)) == value


@given(st.text())
def test_request_state_is_echoed_letter_by_letter(state: str) -> None:
    raw = json.dumps({"resultType": "input_required", "requestState": state}).encode()
    result = decode_result(raw, InputRequiredResult)
    assert result.request_state == state
    assert json.loads(encode([result.request_state])) == [state]


@given(st.binary(max_size=80))
def test_f13_10_repair_gives_text_and_is_done_after_one_go(data: bytes) -> None:
    mended = repair_utf8(data)
    mended.decode()
    assert repair_utf8(mended) == mended


@given(st.text())
@settings(max_examples=50)
def test_f13_10_repair_leaves_text_alone(text: str) -> None:
    raw = json.dumps(text).encode()
    assert repair_utf8(raw) == raw
    assert json.loads(repair_utf8(json.dumps(text, ensure_ascii=False).encode())) == text


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_f13_10_half_characters_in_escapes_do_not_cost_the_answer(text: str) -> None:
    raw = json.dumps({"content": [{"type": "text", "text": text}]}).encode()
    result = decode_result(raw, CallToolResult)
    assert len(result.content) == 1
    result.text.encode()
