"""Answers over HTTP: what each means for the era, and for the message that was posted; and that no secret is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.wire import http_rules
from moorings.wire.http_rules import (
    FaultKind,
    ProbeKind,
    Reading,
    first_words,
    how_to_read,
    judge_http_probe,
    judge_refusal,
    judge_unreadable,
    may_be_legacy_sse,
    media_type,
    parse_retry_after,
    rpc_error_in,
)

URL = "https://mcp.example.com/mcp"
HTML = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"


def error(code: Any, message: str = "no", **more: Any) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message, **more}}
    ).encode()


# --- headers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("application/json", "application/json"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("text/event-stream ;x", "text/event-stream"),
        (" text/html", "text/html"),
        ("", ""),
        (None, ""),
        (";", ""),
    ],
)
def test_media_types(value: str | None, expected: str) -> None:
    assert media_type(value) == expected


NOW = 1_785_240_000.0  # 2026-07-28 12:00:00 GMT


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("99999999", http_rules.MAX_RETRY_AFTER),
        ("Tue, 28 Jul 2026 12:00:30 GMT", 30.0),
        ("Tue, 28 Jul 2026 12:00:30", 30.0),
        ("Tuesday, 28-Jul-26 12:01:00 GMT", 60.0),
        ("Tue, 28 Jul 2026 11:00:00 GMT", 0.0),
        ("Tue, 28 Jul 2099 11:00:00 GMT", http_rules.MAX_RETRY_AFTER),
        (None, None),
        ("", None),
        ("-1", None),
        ("soon", None),
        ("٣", None),
        ("1e9", None),
        ("nan", None),
        ("Tue, 99 Jul 2026 12:00:30 GMT", None),
        ("9" * 1000, None),
    ],
)
def test_retry_after(value: str | None, expected: float | None) -> None:
    assert parse_retry_after(value, NOW) == expected


@given(
    st.text(max_size=70)
    | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,2} [A-Z][a-z]{2} [0-9]{1,5} [0-9:]{1,9} ?[A-Z+0-9-]*")
)
def test_no_retry_after_is_beyond_reading(value: str) -> None:
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or 0 <= seconds <= http_rules.MAX_RETRY_AFTER


# --- the probe


@pytest.mark.parametrize(
    "body", [b"", HTML, b"Bad Request", b'{"error":"unknown"}', b"null", b"[]", b"{", b"\xff"]
)
@pytest.mark.parametrize("status", [400, 404, 405, 406, 409, 410, 415, 422, 500, 501])
def test_f9_3_a_refusal_without_a_modern_error_means_the_handshake_era(status: int, body: bytes) -> None:
    """F9.3: 400, 404, 405, 406, 415 or 500 with an empty or HTML body."""
    assert judge_http_probe(status, "text/html", body).kind is ProbeKind.HANDSHAKE


@pytest.mark.parametrize(
    "code", [-32601, -32602, -32600, -32700, -32000, -32001, -32002, -32019, -32042, 0, 404, "x"]
)
@pytest.mark.parametrize("status", [400, 404, 405, 500])
def test_f9_3_an_error_of_no_modern_code_means_the_handshake_era(status: int, code: Any) -> None:
    """F9.3; "unknown method" with a 404 is how a modern server says it, and only with that."""
    reading = judge_http_probe(status, "application/json", error(code))
    modern = (status, code) == (404, -32601)
    assert reading.kind is (ProbeKind.MODERN if modern else ProbeKind.HANDSHAKE)


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
@pytest.mark.parametrize("status", [400, 404, 422, 500, 503])
def test_a_modern_error_means_the_modern_era_whatever_the_status(status: int, code: int) -> None:
    reading = judge_http_probe(status, None, error(code, data={"supported": ["2026-07-28"]}))
    assert reading.kind is ProbeKind.MODERN
    assert reading.error is not None
    assert reading.error.code == code
    assert reading.error.data == {"supported": ["2026-07-28"]}


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [b"", HTML, error(-32022)])
def test_f9_4_401_and_403_are_no_era(status: int, body: bytes) -> None:
    """F9.4: authorize, then ask again."""
    assert judge_http_probe(status, "text/html", body).kind is ProbeKind.AUTHORIZE


@pytest.mark.parametrize(
    "status", [301, 302, 307, 308, 407, 408, 421, 425, 429, 502, 503, 504, 520, 522, 599, 100, 0]
)
def test_what_tells_of_a_moment_or_of_something_in_between_teaches_nothing(status: int) -> None:
    assert judge_http_probe(status, "text/html", HTML).kind is ProbeKind.NOTHING


@pytest.mark.parametrize(
    ("status", "content_type", "kind"),
    [
        (200, "application/json", ProbeKind.ANSWER),
        (200, "text/event-stream; charset=utf-8", ProbeKind.ANSWER),
        (200, None, ProbeKind.ANSWER),
        (201, "application/json", ProbeKind.ANSWER),
        (200, "text/html", ProbeKind.HANDSHAKE),
        (202, None, ProbeKind.HANDSHAKE),
        (204, None, ProbeKind.HANDSHAKE),
    ],
)
def test_an_answer_is_for_the_rules_of_the_eras(
    status: int, content_type: str | None, kind: ProbeKind
) -> None:
    assert judge_http_probe(status, content_type).kind is kind


@given(st.integers(), st.none() | st.text(max_size=20), st.binary(max_size=50))
def test_every_answer_to_the_probe_has_a_reading(status: int, content_type: str | None, body: bytes) -> None:
    assert judge_http_probe(status, content_type, body).kind in ProbeKind


@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_refused_initialize_may_be_the_transport_of_2024(status: int) -> None:
    for body in (b"", HTML, b"Method Not Allowed", error(-32000), b'{"detail":"Method Not Allowed"}'):
        assert may_be_legacy_sse(status, body)
    assert not may_be_legacy_sse(status, error(-32022))
    assert may_be_legacy_sse(status, error(-32601)) is (status != 404)


@pytest.mark.parametrize("status", [200, 202, 301, 401, 403, 406, 415, 429, 500, 502, 503])
def test_any_other_refusal_is_not(status: int) -> None:
    assert not may_be_legacy_sse(status)


# --- how to read


@pytest.mark.parametrize(
    ("status", "content_type", "expected"),
    [
        (200, "application/json", Reading.MESSAGE),
        (200, "application/json; charset=utf-8", Reading.MESSAGE),
        (201, "APPLICATION/JSON", Reading.MESSAGE),
        (200, "application/vnd.x+json", Reading.MESSAGE),
        (200, "text/plain", Reading.MESSAGE),
        (200, None, Reading.MESSAGE),
        (200, "text/event-stream", Reading.EVENTS),
        (202, "application/json", Reading.REFUSAL),
        (204, None, Reading.REFUSAL),
        (200, "text/html", Reading.REFUSAL),
        (200, "image/png", Reading.REFUSAL),
        (301, "application/json", Reading.REFUSAL),
        (400, "application/json", Reading.REFUSAL),
        (502, "text/event-stream", Reading.REFUSAL),
    ],
)
def test_how_an_answer_to_a_request_is_read(status: int, content_type: str | None, expected: Reading) -> None:
    assert how_to_read(status, content_type) is expected


@pytest.mark.parametrize("status", [200, 201, 202, 204])
@pytest.mark.parametrize("content_type", [None, "application/json", "text/html", "text/event-stream"])
def test_f13_5_a_notification_is_taken_with_any_2xx(status: int, content_type: str | None) -> None:
    """F13.5: 202, 204, 200 empty, 200 ``null``."""
    assert how_to_read(status, content_type, request=False) is Reading.DONE


def test_a_notification_may_be_refused() -> None:
    assert how_to_read(404, None, request=False) is Reading.REFUSAL


# --- faults


@pytest.mark.parametrize(
    ("status", "content_type", "body", "kind"),
    [
        (401, None, b"", FaultKind.UNAUTHORIZED),
        (403, "text/html", HTML, FaultKind.FORBIDDEN),
        (404, None, b"", FaultKind.NOT_FOUND),
        (405, None, b"", FaultKind.WRONG_METHOD),
        (407, None, b"", FaultKind.PROXY),
        (413, None, b"", FaultKind.TOO_LARGE),
        (400, None, b"", FaultKind.CLIENT),
        (422, None, b"", FaultKind.CLIENT),
        (429, None, b"", FaultKind.BUSY),
        (500, None, b"", FaultKind.SERVER),
        (522, None, b"", FaultKind.SERVER),
        (502, "text/html", HTML, FaultKind.GATEWAY),
        (503, None, b"", FaultKind.GATEWAY),
        (504, None, b"", FaultKind.GATEWAY),
        (302, None, b"", FaultKind.REDIRECT),
        (202, None, b"", FaultKind.NO_ANSWER),
        (204, "application/json", b"", FaultKind.NO_ANSWER),
        (200, "text/html", HTML, FaultKind.HTML),
        (200, "application/xml", b"<?xml?>", FaultKind.CONTENT_TYPE),
        (200, "application/xml", b"  <HTML>", FaultKind.HTML),
        (100, None, b"", FaultKind.UNKNOWN),
        (999, None, b"", FaultKind.UNKNOWN),
    ],
)
def test_refusals(status: int, content_type: str | None, body: bytes, kind: FaultKind) -> None:
    fault = judge_refusal(status, content_type, body, url=URL)
    assert (fault.kind, fault.status) == (kind, status)
    assert f"HTTP {status}" in fault.text
    assert URL in fault.text
    assert fault.not_run is (status in (401, 403, 407, 429))


def test_f13_7_a_login_page_is_named_with_its_content_type() -> None:
    """F13.7: POST answers 200 text/html."""
    fault = judge_refusal(200, "text/html; charset=utf-8", HTML, url=URL)
    assert fault.text == (
        f"HTTP 200 OK from {URL}: a page of HTML: that is no MCP endpoint, or something stands in between (text/html); "
        "it begins: <!DOCTYPE html> <html><head><title>Sign in</title></head></html>"
    )


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://other.example/login?next=secret-value", "https://other.example/login?next=…"),
        ("//other.example/x", "https://other.example/x"),
        ("/elsewhere", "https://mcp.example.com/elsewhere"),
        ("http://[", "(a URL that cannot be read)"),
    ],
)
def test_f13_8_a_redirect_that_is_not_followed_names_its_target(location: str, shown: str) -> None:
    """F13.8: 301, 302, 303 on a POST."""
    fault = judge_refusal(302, None, b"", url=URL, location=location)
    assert fault.kind is FaultKind.REDIRECT
    assert fault.text.endswith(f"; it points to {shown}")
    assert "secret" not in fault.text


def test_503_with_a_time_to_come_back_was_turned_away_before_it_ran() -> None:
    fault = judge_refusal(503, None, b"busy", url=URL, retry_after=30.0)
    assert (fault.kind, fault.not_run, fault.retry_after) == (FaultKind.BUSY, True, 30.0)
    assert fault.text.endswith("it begins: busy; it asks to wait 30 s")
    assert not judge_refusal(503, None, b"busy", url=URL).not_run


def test_a_json_rpc_error_in_a_refusal_is_the_peers() -> None:
    fault = judge_refusal(400, "application/json", error(-32020, "Header mismatch", data=[1]), url=URL)
    assert fault.rpc_error is not None
    assert (fault.rpc_error.code, fault.rpc_error.data, fault.rpc_id) == (-32020, [1], 1)
    assert fault.text.endswith("it says: Header mismatch (-32020)")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (error(-32000), (1, -32000)),
        (b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"x"}}', (None, -32600)),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}', (None, -32600)),
        (b'{"id":"7","error":{"code":-32600}}', ("7", -32600)),
        (b'{"error":{"code":404,"message":"no such project"}}', None),
        (b'{"error":"invalid_token"}', None),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', None),
        (b'{"jsonrpc":"2.0","id":1,"error":null}', None),
        (b"[1]", None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_which_bodies_are_json_rpc_errors(body: bytes, expected: tuple[Any, int] | None) -> None:
    found = rpc_error_in(body)
    assert (None if found is None else (found[0], found[1].code)) == expected


@pytest.mark.parametrize(
    ("content_type", "body", "kind"),
    [
        ("application/json", b"", FaultKind.NO_ANSWER),
        ("application/json", b" null\n", FaultKind.NO_ANSWER),
        ("application/json", b'{"error":"invalid_token"}', FaultKind.NOT_A_MESSAGE),
        ("application/json", b"<html>", FaultKind.HTML),
        ("text/plain", b"hello", FaultKind.NOT_A_MESSAGE),
        ("text/event-stream", b"hello", FaultKind.NOT_EVENTS),
        ("text/event-stream", HTML, FaultKind.HTML),
    ],
)
def test_bodies_without_a_message(content_type: str, body: bytes, kind: FaultKind) -> None:
    fault = judge_unreadable(200, content_type, body, url=URL)
    assert fault.kind is kind
    assert content_type in fault.text


# --- what is shown


def test_the_first_300_characters_are_shown_and_none_that_does_something() -> None:
    assert first_words("é".encode() * 400) == "é" * 300 + "…"
    assert first_words(b"a\x1b[31mb\r\n\t c\x07\x00d\x7f") == "a [31mb c d"
    assert first_words("a\u202eb\u200bc\U000e0041d\ufeff".encode()) == "a b c d"
    assert first_words(b"\xff\xfe") == "\ufffd\ufffd"
    assert first_words(b"") == ""


@given(st.binary(max_size=2000))
def test_what_is_shown_is_one_printable_line(body: bytes) -> None:
    shown = first_words(body)
    assert len(shown) <= 301
    assert shown.replace("\ufffd", "").isprintable()


def test_f16_5_a_body_that_repeats_the_url_shows_no_secret() -> None:
    """F16.5"""
    url = "https://u:hunter22@h.example/s/sk-live-0123456789abcdef/mcp?api_key=topsecret1&x=a%20secret%202"
    body = (
        b"Cannot POST /s/sk-live-0123456789abcdef/mcp?api_key=topsecret1 "
        b"(topsecret1, a secret 2, a%20secret%202, hunter22)"
    )
    for fault in (
        judge_refusal(404, "text/html", body, url=url),
        judge_refusal(404, None, error(-32000, body.decode()), url=url),
        judge_unreadable(200, None, body, url=url),
    ):
        for secret in ("hunter22", "sk-live", "topsecret", "a secret", "a%20secret"):
            assert secret not in fault.text
        assert "Cannot POST" in fault.text
