"""Headers that repeat a message: what is written, which marks of a tool are legal, and that none can be smuggled in."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from moorings.wire import headers
from moorings.wire.headers import (
    ANNOTATION,
    NO_PARAMS,
    InvalidHeaders,
    ParamHeaders,
    Unmirrorable,
    encode_value,
    mirrored_name,
    param_rules,
    standard_headers,
)

MARK = ANNOTATION.decode()


def schema(properties: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"type": "object", "properties": properties, **more}).encode()


def marked(name: Any, type_: Any = "string", **more: Any) -> dict[str, Any]:
    return {"type": type_, MARK: name, **more}


def rules(properties: dict[str, Any], **more: Any) -> ParamHeaders:
    found = param_rules(schema(properties, **more))
    assert isinstance(found, ParamHeaders), found
    return found


# --- values


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("us-west1", "us-west1"),
        ("", ""),
        ("us west 1", "us west 1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
        ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
        (" ", "=?base64?IA==?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
        ("\tindented", "=?base64?CWluZGVudGVk?="),
        ("a\tb", "=?base64?YQli?="),
        ("\x7f", "=?base64?fw==?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?base64??=", "=?base64?PT9iYXNlNjQ/Pz0=?="),
        ("=?base64?open", "=?base64?open"),
        ("=?BASE64?x?=", "=?BASE64?x?="),
        (42, "42"),
        (-7, "-7"),
        (0, "0"),
        (True, "true"),
        (False, "false"),
    ],
)
def test_values_are_written_as_the_specification_says(value: str | int | bool, header: str) -> None:
    assert encode_value(value) == header


def decoded(header: str) -> str:
    if header.startswith("=?base64?") and header.endswith("?="):
        return b64decode(header[len("=?base64?") : -2], validate=True).decode()
    return header


@given(st.text(st.characters(codec="utf-8")))
def test_f16_11_any_text_comes_back_and_cannot_leave_its_header(text: str) -> None:
    """F16.11: line breaks and non-ASCII are encoded; no header is ended or added."""
    header = encode_value(text)
    assert decoded(header) == text
    assert all(0x20 <= ord(each) <= 0x7E for each in header)
    assert header == header.strip()


def test_half_a_character_is_no_error() -> None:
    assert encode_value("\ud800") == "=?base64?Pw==?="


# --- standard headers


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "my-tool", "uri": "no"}, "my-tool"),
        ("prompts/get", {"name": "p"}, "p"),
        (
            "resources/read",
            {"uri": "file:///path/to/file%20name.txt", "name": "no"},
            "file:///path/to/file%20name.txt",
        ),
        ("tasks/get", {"taskId": "t"}, "t"),
        ("tasks/update", {"taskId": "t", "inputResponses": {}}, "t"),
        ("tasks/cancel", {"taskId": "t"}, "t"),
        ("tools/list", {"name": "no"}, None),
        ("subscriptions/listen", {}, None),
        ("server/discover", None, None),
        ("notifications/cancelled", {"requestId": 1}, None),
        ("tools/call", None, None),
        ("tools/call", {"name": 7}, None),
    ],
)
def test_every_message_has_its_method_and_some_a_name(method: str, params: Any, name: str | None) -> None:
    assert mirrored_name(method, params) == name
    expected = {"Mcp-Method": method} | ({"Mcp-Name": name} if name is not None else {})
    assert standard_headers(method, name) == expected


def test_f16_11_a_method_or_a_name_adds_no_header() -> None:
    """F16.11"""
    found = standard_headers("tools/call", "a\r\nAuthorization: x")
    assert found == {"Mcp-Method": "tools/call", "Mcp-Name": "=?base64?YQ0KQXV0aG9yaXphdGlvbjogeA==?="}
    assert "\n" not in standard_headers("a\nb")["Mcp-Method"]
    assert standard_headers("tools/list", "ignored") == {"Mcp-Method": "tools/list"}


# --- marks


def test_a_schema_without_marks_is_not_decoded() -> None:
    assert param_rules(b"{ not JSON at all") is NO_PARAMS
    assert param_rules(Raw(schema({"a": {"type": "string"}}))) is NO_PARAMS
    assert NO_PARAMS.of({"a": "b"}) == {}


def test_marks_are_found_at_any_depth_of_properties() -> None:
    found = rules(
        {
            "region": marked("Region"),
            "where": {
                "type": "object",
                "properties": {"zone": marked("Zone", "integer"), "x": {"type": "string"}},
            },
            "on": marked("On", "boolean"),
        }
    )
    assert found.rules == (
        ("Mcp-Param-Region", ("region",)),
        ("Mcp-Param-Zone", ("where", "zone")),
        ("Mcp-Param-On", ("on",)),
    )
    arguments = {"region": "eu", "where": {"zone": 3, "x": "y"}, "on": False}
    assert found.of(arguments) == {"Mcp-Param-Region": "eu", "Mcp-Param-Zone": "3", "Mcp-Param-On": "false"}


@pytest.mark.parametrize("name", ["Method", "a", "X-1_2.3!#$%&'*+-^`|~", "n" * headers.MAX_NAME])
def test_any_token_is_a_name(name: str) -> None:
    assert rules({"p": marked(name)}).of({"p": "v"}) == {f"Mcp-Param-{name}": "v"}


@pytest.mark.parametrize(
    "type_", ["string", "integer", "boolean", ["string"], ["string", "null"], ["null", "integer"]]
)
def test_primitive_types_may_be_marked_and_may_be_nullable(type_: Any) -> None:
    assert rules({"p": marked("P", type_)}).rules


BAD_NAMES = [
    "",
    " ",
    "My Region",
    "Region:Primary",
    "Région",
    "Region\t1",
    "a\r\nb",
    "a\0",
    "ÿ",
    "a,b",
    "a/b",
    "(a)",
    '"a"',
]


@pytest.mark.parametrize("name", [*BAD_NAMES, "n" * (headers.MAX_NAME + 1), None, 7, True, ["a"], {}])
def test_f9_11_a_name_that_is_no_token_is_refused(name: Any) -> None:
    """F9.11: and the reason names the parameter."""
    found = param_rules(schema({"good": marked("Good"), "odd": marked(name)}))
    assert isinstance(found, InvalidHeaders)
    assert "'odd'" in found.reason
    assert found.reason.isprintable()


@pytest.mark.parametrize(
    "type_", ["number", "object", "array", "null", None, [], ["string", "integer"], ["null"], 7, {}]
)
def test_f9_11_only_strings_integers_and_booleans_may_be_marked(type_: Any) -> None:
    """F9.11"""
    found = param_rules(schema({"p": {MARK: "P"} if type_ is None else marked("P", type_)}))
    assert isinstance(found, InvalidHeaders)
    assert "no string, integer or boolean" in found.reason


@pytest.mark.parametrize(("one", "two"), [("Region", "Region"), ("MyField", "myfield")])
def test_f9_11_names_are_unique_whatever_their_case(one: str, two: str) -> None:
    """F9.11: also one inside another property."""
    inner = {"type": "object", "properties": {"b": marked(two)}}
    for properties in ({"a": marked(one), "b": marked(two)}, {"a": marked(one), "c": inner}):
        assert isinstance(param_rules(schema(properties)), InvalidHeaders)


UNREACHABLE: list[dict[str, Any]] = [
    {"properties": {"a": {"type": "array", "items": marked("A")}}},
    {"properties": {"a": {"type": "array", "items": {"properties": {"b": marked("B")}}}}},
    {"properties": {"a": {"type": "array", "prefixItems": [marked("A")]}}},
    {"properties": {"a": {"anyOf": [marked("A"), {"type": "null"}]}}},
    {"oneOf": [{"properties": {"a": marked("A")}}]},
    {"allOf": [{"properties": {"a": marked("A")}}]},
    {"not": {"properties": {"a": marked("A")}}},
    {"if": {"properties": {"a": marked("A")}}},
    {"then": {"properties": {"a": marked("A")}}},
    {"else": {"properties": {"a": marked("A")}}},
    {"$defs": {"x": marked("A")}, "properties": {"a": {"$ref": "#/$defs/x"}}},
    {"definitions": {"x": marked("A")}},
    {"additionalProperties": marked("A")},
    {"patternProperties": {".*": marked("A")}},
    {"dependentSchemas": {"a": {"properties": {"b": marked("B")}}}},
    {MARK: "Root"},
]


@pytest.mark.parametrize("extra", UNREACHABLE)
def test_f9_11_a_mark_that_properties_do_not_lead_to_is_refused(extra: dict[str, Any]) -> None:
    """F9.11: a reference is not followed either."""
    found = param_rules(json.dumps({"type": "object", **extra}).encode())
    assert isinstance(found, InvalidHeaders)
    assert "properties alone" in found.reason


@pytest.mark.parametrize(
    "properties",
    [
        {MARK: {"type": "string"}},
        {"a": {"type": "object", "default": {MARK: ""}}},
        {"a": {"type": "object", "const": {MARK: 1}, "examples": [{MARK: 2}], "enum": [{MARK: 3}]}},
        {"a": {"type": "string", "description": MARK}},
        {"a": {"$ref": f"https://example.com/{MARK}"}},
    ],
)
def test_what_only_looks_like_a_mark_is_none(properties: dict[str, Any]) -> None:
    assert param_rules(schema(properties)) is NO_PARAMS


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = marked("Deep")
    for _ in range(depth - 1):
        inner = {"type": "object", "properties": {"p": inner}}
    return {"p": inner}


def test_depth_and_number_are_bounded() -> None:
    assert len(rules(nested(headers.MAX_DEPTH)).rules[0][1]) == headers.MAX_DEPTH
    deep = b'{"a":' * 100_000 + b'"x-mcp-header"' + b"}" * 100_000
    many = {f"p{i}": marked(f"P{i}") for i in range(headers.MAX_PARAMS + 1)}
    wide = {f"p{i}": {"type": "string"} for i in range(headers.MAX_NODES)} | {"z": marked("Z")}
    for bad in (schema(nested(headers.MAX_DEPTH + 1)), deep, schema(many), schema(wide), b'{"x-mcp-header":'):
        assert isinstance(param_rules(bad), InvalidHeaders)
    del many["p0"]
    assert len(rules(many).rules) == headers.MAX_PARAMS


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["string", "object"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([MARK, "type", "properties", "items", "anyOf", "a", "b", "$ref", "$defs"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(value=JSON_VALUES, arguments=st.dictionaries(st.sampled_from("ab"), JSON_VALUES, max_size=2))
def test_no_schema_is_beyond_judging(value: Any, arguments: dict[str, Any]) -> None:
    found = param_rules(
        json.dumps({"properties": value, MARK: value} if value else {"properties": value}).encode()
    )
    if isinstance(found, ParamHeaders):
        found.of(arguments)
    found = param_rules(json.dumps(value).encode())
    assert isinstance(found, ParamHeaders | InvalidHeaders)


# --- arguments


ALL = rules({"s": marked("S"), "i": marked("I", "integer"), "b": marked("B", "boolean")})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"s": None, "i": None, "b": None}, {}),
        ({"s": "", "i": 0, "b": False}, {"S": "", "I": "0", "B": "false"}),
        ({"i": 42.0}, {"I": "42"}),
        ({"i": 2**53 - 1, "s": "x"}, {"I": "9007199254740991", "S": "x"}),
        ({"i": -(2**53) + 1}, {"I": "-9007199254740991"}),
        # Of another type than was asked for: the server shall refuse the argument, and not the header.
        ({"i": "42", "b": "yes", "s": 5}, {"I": "42", "B": "yes", "S": "5"}),
        ({"s": ["a"], "i": 1.5, "b": {"a": 1}}, {}),
        ({"i": float("inf"), "s": float("nan")}, {}),
        ({"other": "x"}, {}),
    ],
)
def test_arguments_become_headers(arguments: Any, expected: dict[str, str]) -> None:
    assert ALL.of(arguments) == {f"Mcp-Param-{name}": value for name, value in expected.items()}


@pytest.mark.parametrize("value", [2**53, -(2**53), 10**30, 1e300])
def test_a_whole_number_that_javascript_cannot_hold_is_not_sent(value: float) -> None:
    with pytest.raises(Unmirrorable, match=r"'i'.*Mcp-Param-I"):
        ALL.of({"i": value})


def test_a_path_that_meets_no_object_has_no_header() -> None:
    deep = rules({"a": {"type": "object", "properties": {"b": marked("B")}}})
    for value in ({}, None, "x", ["b"], {"b": None}):
        assert deep.of({"a": value}) == {}
