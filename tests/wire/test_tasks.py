"""Tasks, freshness and trace context: what a modern server may say of them, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from moorings.wire.caching import CACHEABLE, fresh_until, may_be_shared
from moorings.wire.eras import MRTR_METHODS, TASKS, Era, client_capabilities, listen_filter, result_type_legal
from moorings.wire.skills import GetSkillResult, ListSkillsResult
from moorings.wire.tasks import CreateTaskResult, DetailedTask, cancel_params, get_params, update_params
from moorings.wire.trace import trace_meta, valid_baggage, valid_traceparent, valid_tracestate
from moorings.wire.types import (
    CallToolResult,
    DiscoverResult,
    InvalidAnswer,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ReadResourceResult,
    SubscriptionAcknowledgedParams,
    decode_params,
    decode_result,
    plain_result,
)

ID = "786512e2-9e0d-44bd-8f29-789f320fe840"


def wire(**members: Any) -> bytes:
    task = {
        "resultType": "complete",
        "taskId": ID,
        "status": "working",
        "createdAt": "2026-07-28T10:30:00Z",
        "lastUpdatedAt": "2026-07-28T10:40:00Z",
        "ttlMs": 60000,
        "pollIntervalMs": 5000,
    }
    return json.dumps({key: value for key, value in (task | members).items() if value is not ...}).encode()


def detailed(**members: Any) -> DetailedTask:
    return decode_result(wire(**members), DetailedTask)


# --- which kinds of results are legal


@pytest.mark.parametrize(
    "method", ["tools/call", "resources/read", "prompts/get", "tools/list", "tasks/get", "x"]
)
def test_f9_11_a_kind_of_result_is_legal_where_it_was_agreed_on(method: str) -> None:
    """F9.11: a task only as the answer to a call that declared the extension; any other word never."""
    for declared in ((), (TASKS,), frozenset((TASKS, "other"))):
        assert result_type_legal("complete", method, declared)
        assert result_type_legal("input_required", method, declared) is (method in MRTR_METHODS)
        assert result_type_legal("task", method, declared) is (method == "tools/call" and bool(declared))
        for other in ("", "Task", "completed", "later"):
            assert not result_type_legal(other, method, declared)


def test_extensions_are_declared_in_the_modern_era_only() -> None:
    for era in Era:
        declared = client_capabilities(
            roots=False,
            sampling=False,
            elicitation_form=False,
            elicitation_url=False,
            era=era,
            extensions=[TASKS],
        )
        assert declared == ({"extensions": {TASKS: {}}} if era is Era.MODERN else {})


def test_tasks_can_be_listened_to() -> None:
    assert listen_filter(tools=False, prompts=False, resources=False, tasks=["b", "a"]) == {
        "taskIds": ["a", "b"]
    }
    granted = decode_params(b'{"notifications":{"taskIds":["a"]}}', SubscriptionAcknowledgedParams)
    assert granted.notifications.task_ids == ["a"]


# --- tasks


def test_a_task_in_place_of_an_answer() -> None:
    raw = wire(resultType="task", statusMessage="in progress")
    assert plain_result(Raw(raw)) is None
    assert decode_result(raw, CallToolResult).result_type == "task"
    task = decode_result(raw, CreateTaskResult)
    assert task == CreateTaskResult(
        task_id=ID,
        status="working",
        status_message="in progress",
        created_at="2026-07-28T10:30:00Z",
        last_updated_at="2026-07-28T10:40:00Z",
        ttl_ms=60000,
        poll_interval_ms=5000,
    )
    assert not task.ended


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ("working", False),
        ("input_required", False),
        ("completed", True),
        ("failed", True),
        ("cancelled", True),
    ],
)
def test_three_states_are_ends(status: str, ended: bool) -> None:
    assert detailed(status=status).ended is ended


def test_only_what_names_a_task_and_where_it_stands_is_needed() -> None:
    task = decode_result(b'{"taskId":"t","status":"WORKING","ttlMs":null}', DetailedTask)
    assert (task.status, task.ttl_ms, task.poll_interval_ms, task.created_at) == ("working", None, None, None)
    task = detailed(pollIntervalMs="soon", createdAt=7, statusMessage=["x"], ttlMs=60000.0)
    assert (task.poll_interval_ms, task.ttl_ms, task.status_message) == (None, 60000, None)
    assert task.problems


@pytest.mark.parametrize(
    "bad", [{"taskId": ...}, {"taskId": ""}, {"taskId": 7}, {"status": ...}, {"status": "done"}]
)
def test_what_is_no_task_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswer):
        detailed(**bad)


def test_a_completed_task_has_the_result_inside() -> None:
    task = detailed(
        status="completed", result={"content": [{"type": "text", "text": "done"}], "isError": True}
    )
    assert (task.tool_result().text, task.tool_result().is_error) == ("done", True)


@pytest.mark.parametrize("result", [..., None, 7, {"resultType": "task", "taskId": "t", "status": "working"}])
def test_a_completed_task_without_a_result_is_an_invalid_answer(result: Any) -> None:
    with pytest.raises(InvalidAnswer):
        detailed(status="completed", result=result).tool_result()


def test_a_failed_task_has_the_error_inside() -> None:
    error = detailed(status="failed", error={"code": -32603, "message": "rate limit"}).error
    assert (error.code, error.message) == (-32603, "rate limit")
    assert detailed(status="failed", statusMessage="went wrong").error.message == "went wrong"


def test_a_task_that_asks_has_its_questions_by_key() -> None:
    task = detailed(
        status="input_required", inputRequests={"name": {"method": "elicitation/create", "params": {}}}
    )
    assert task.input_requests["name"].method == "elicitation/create"


def test_a_notification_carries_the_same_and_its_subscription() -> None:
    raw = wire(resultType=..., status="cancelled", _meta={"io.modelcontextprotocol/subscriptionId": 4})
    task = decode_params(raw, DetailedTask)
    assert (task.status, task.subscription_id, task.result_type) == ("cancelled", 4, "complete")


def test_params_of_the_three_methods() -> None:
    assert get_params("t") == cancel_params("t") == {"taskId": "t"}
    assert update_params("t", {"k": {"action": "decline"}}) == {
        "taskId": "t",
        "inputResponses": {"k": {"action": "decline"}},
    }


# --- freshness


CACHED = {
    "server/discover": (DiscoverResult, {"supportedVersions": [], "capabilities": {}}),
    "tools/list": (ListToolsResult, {"tools": []}),
    "prompts/list": (ListPromptsResult, {"prompts": []}),
    "resources/list": (ListResourcesResult, {"resources": []}),
    "resources/templates/list": (ListResourceTemplatesResult, {"resourceTemplates": []}),
    "resources/read": (ReadResourceResult, {"contents": []}),
    "skills/list": (ListSkillsResult, {"skills": []}),
    "skills/get": (
        GetSkillResult,
        {
            "skill": {
                "uri": "skill://a/SKILL.md",
                "frontmatter": {"name": "a", "description": "d"},
                "resources": "dynamic",
            }
        },
    ),
}


def test_f8_9_some_kinds_of_results_say_how_long_they_are_fresh_and_for_whom() -> None:
    """F8.9: what the wire carries of it."""
    assert set(CACHED) == CACHEABLE
    for type_, members in CACHED.values():
        result: Any = decode_result(
            json.dumps({**members, "ttlMs": 300000, "cacheScope": "public"}).encode(), type_
        )
        assert (result.ttl_ms, result.cache_scope) == (300000, "public")
        result = decode_result(json.dumps({**members, "ttlMs": "x", "cacheScope": [1]}).encode(), type_)
        assert (result.ttl_ms, result.cache_scope) == (None, None)


@pytest.mark.parametrize(
    ("ttl_ms", "seconds"),
    [(None, 0), (0, 0), (-1, 0), (-(10**400), 0), (1, 0.001), (60000, 60), (10**400, 7 * 86400)],
)
def test_f8_9_an_absent_or_negative_time_is_none(ttl_ms: int | None, seconds: float) -> None:
    """F8.9: absent or negative ttl → not cached."""
    assert fresh_until(100.0, ttl_ms) == 100.0 + seconds


def test_only_public_crosses_authorizations() -> None:
    assert may_be_shared("public")
    assert not any(may_be_shared(scope) for scope in (None, "", "private", "Public", "shared"))


# --- trace context


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (PARENT, True),
        (PARENT.replace("00-", "cc-", 1) + "-what-comes", True),
        (PARENT.replace("00-", "cc-", 1), True),
        (PARENT + "-more", False),
        (PARENT.replace("00-", "ff-", 1), False),
        (PARENT.upper(), False),
        (PARENT[:-1], False),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", False),
        (PARENT + "\n", False),
        ("", False),
        ("cc" + PARENT[2:] + "-" + "x" * 10_000, False),
    ],
)
def test_traceparent(text: str, good: bool) -> None:
    assert valid_traceparent(text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("congo=t61rcWkgMzE", True),
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", True),
        ("a=1 , ,b=2", True),
        ("1tenant@vendor=x", True),
        ("a=x y", True),
        ("a=1,a=2", False),
        ("A=1", False),
        ("a=", False),
        ("a", False),
        ("a=b=c", False),
        ("a=ü", False),
        ("", False),
        (",".join(f"k{i}=v" for i in range(32)), True),
        (",".join(f"k{i}=v" for i in range(33)), False),
        ("a=" + "x" * 257, False),
    ],
)
def test_tracestate(text: str, good: bool) -> None:
    assert valid_tracestate(text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("userId=alice,serverNode=DF%2028,isProduction=false", True),
        ("k1 = v1 ;p1; p2=2 , k2=", True),
        ("k", False),
        ("=v", False),
        ("k=a b", False),
        ('k="q"', False),
        ("k=v,", False),
        ("k=ü", False),
        ("", False),
        ("k=" + "v" * 8190, True),
        ("k=" + "v" * 8191, False),
    ],
)
def test_baggage(text: str, good: bool) -> None:
    assert valid_baggage(text) is good


def test_only_what_is_valid_goes_into_meta() -> None:
    assert trace_meta(PARENT, "a=1", "k=v") == {"traceparent": PARENT, "tracestate": "a=1", "baggage": "k=v"}
    assert trace_meta("bad", "a=1", "k=v") == {"baggage": "k=v"}
    assert trace_meta(PARENT, "A", "k") == {"traceparent": PARENT}
    assert trace_meta(None) == {}


@given(st.text(max_size=100))
def test_no_text_is_beyond_judging(text: str) -> None:
    for judge in (valid_traceparent, valid_tracestate, valid_baggage):
        assert judge(text) in (True, False)
