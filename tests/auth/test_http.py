"""How OAuth speaks HTTP: what goes where, what is never followed, and what a failure means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

import pytest

from moorings.auth.http import MOST_BYTES, AuthHttp, AuthNetError, on_this_machine
from moorings.errors import ConfigError
from moorings.net import Net, NetSettings
from tests.faults.auth_server import AuthFaults

WITHIN = 10.0
FORM = [
    ("grant_type", "refresh_token"),
    ("refresh_token", "s3cret+/=&ü"),
    ("resource", "https://a/"),
    ("scope", ""),
]
BASIC = {"Authorization": "Basic czNjcmV0", "X-API-Key": "s3cret"}


@asynccontextmanager
async def speaking(
    settings: NetSettings | None = None, *, loopback: bool = True, environ: dict[str, str] | None = None
) -> AsyncIterator[AuthHttp]:
    net = Net(lambda: environ or {})
    try:
        async with asyncio.timeout(WITHIN * 3):
            yield AuthHttp(net, settings, loopback=loopback)
    finally:
        await net.aclose()


async def fault(http: AuthHttp, url: str, how: str = "get", within: float = WITHIN) -> AuthNetError:
    with pytest.raises(AuthNetError) as told:
        await send(http, url, how, within)
    text = f"{told.value} {told.value!r}"
    assert told.value.reason and "s3cret" not in text and "czNjcmV0" not in text
    return told.value


async def send(http: AuthHttp, url: str, how: str, within: float = WITHIN) -> Any:
    match how:
        case "get":
            return await http.get_json(url, within=within)
        case "form":
            return await http.post_form(url, FORM, BASIC, within=within)
        case "json":
            return await http.post_json(url, {"software_statement": "s3cret"}, BASIC, within=within)
        case "delete":
            return await http.delete(url, BASIC, within=within)
    raise AssertionError(how)


POSTS = {"form": "/token", "json": "/register", "delete": "/register/c"}


async def test_a_form_arrives_as_it_was_meant() -> None:
    async with AuthFaults(on={"/token": 'json_status:202:{"a":1}'}) as auth, speaking() as http:
        answer = await http.post_form(auth.origin + "/token", FORM, BASIC, within=WITHIN)
        assert (answer.status, answer.json, answer.text) == (202, {"a": 1}, '{"a":1}')
        seen = auth.requests[0]
        assert parse_qsl(seen.body.decode(), keep_blank_values=True) == FORM
        assert seen.headers["content-type"] == "application/x-www-form-urlencoded"
        assert (seen.headers["accept"], seen.headers["authorization"]) == (
            "application/json",
            BASIC["Authorization"],
        )


@pytest.mark.parametrize(
    ("word", "status", "json"),
    [
        ("refuse:invalid_grant", 400, {"error": "invalid_grant", "error_description": "scripted"}),
        ("refuse:slow_down:200", 200, {"error": "slow_down", "error_description": "scripted"}),
        ("html:500", 500, None),
        ("later:503:5", 503, None),
        ("status:204", 204, None),
        ("json_text:[1", 200, None),
        ("json_text:\ufeff[1]", 200, [1]),
        ("json_text:" + "[" * 100_000, 200, None),
    ],
)
async def test_any_answer_is_an_answer(word: str, status: int, json: Any) -> None:
    async with AuthFaults(on={"/token": word}) as auth, speaking() as http:
        answer = await send(http, auth.origin + "/token", "form")
        assert (answer.status, answer.json) == (status, json)
        if word.startswith("later"):
            assert answer.headers["retry-after"] == "5"


async def test_f16_5_an_answer_shows_nothing_of_its_body() -> None:
    async with AuthFaults(on={"/token": 'json_text:{"access_token":"s3cret"}'}) as auth, speaking() as http:
        answer = await send(http, auth.origin + "/token?code=s3cret", "form")
        assert "s3cret" in answer.text
        assert "s3cret" not in repr(answer)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("how", POSTS)
@pytest.mark.parametrize("target", ["{origin}/elsewhere", "other"])
async def test_f16_3_no_post_follows_a_redirect(how: str, status: int, target: str) -> None:
    async with AuthFaults() as other:
        there = other.origin + "/token" if target == "other" else target
        async with (
            AuthFaults(on={POSTS[how]: f"redirect:{status}:{there}?x=s3cret"}) as auth,
            speaking() as http,
        ):
            error = await fault(http, auth.origin + POSTS[how], how)
            assert (error.transient, error.sent, error.refused) == (False, False, None)
            assert f"it answered {status}" in error.reason
            assert (len(auth.requests), other.requests) == (1, [])


async def test_f16_3_a_get_takes_no_header_of_ours_elsewhere() -> None:
    async with AuthFaults() as other, AuthFaults(on={"/a": f"redirect:302:{other.origin}/b"}) as auth:
        async with speaking() as http:
            await http.get_json(auth.origin + "/a", BASIC, within=WITHIN)
        (seen,) = other.requests
        assert not {"authorization", "x-api-key"} & set(seen.headers)


async def test_a_post_never_goes_over_a_kept_connection() -> None:
    """One that the server closes meanwhile would leave it open whether a single-use token was used."""
    async with AuthFaults(on={"/token": "race"}) as auth, speaking() as http:
        for _ in range(3):
            await send(http, auth.origin + "/token", "form")
        assert len({seen.connection for seen in auth.requests}) == 3


async def test_a_get_over_a_kept_connection_that_ended_is_made_again() -> None:
    async with AuthFaults(on={"/a": "race"}) as auth, speaking() as http:
        for _ in range(2):
            assert (await send(http, auth.origin + "/a", "get")).status == 404
        assert [seen.connection for seen in auth.requests] == [1, 2]


@pytest.mark.parametrize(
    ("word", "transient", "sent"),
    [
        ("die", True, True),
        ("close_now", True, True),
        ("die_after", True, True),
        ("half_headers", True, True),
        ("garbage", True, True),
        ("cut_in_body", True, True),
        ("silent", True, True),
        ("drip:0.02", True, True),
        ("big_body:300000", False, True),
        ("bomb:1000000", False, True),
    ],
)
async def test_f10_2_what_a_failure_means(word: str, transient: bool, sent: bool) -> None:
    async with AuthFaults(on={"/register": word}) as auth, speaking() as http:
        error = await fault(http, auth.origin + "/register", "json", within=0.4)
        assert (error.transient, error.sent, error.retry_after) == (transient, sent, None)


async def test_a_server_that_is_down_was_sent_nothing() -> None:
    async with AuthFaults() as auth:
        await auth.stop_listening()
        async with speaking() as http:
            error = await fault(http, auth.origin + "/token", "form")
            assert (error.transient, error.sent) == (True, False)


async def test_the_bound_is_for_all_of_it() -> None:
    """Redirects that trickle take no more than one silent server."""
    async with AuthFaults(on={"/a": "redirect:302:/b", "/b": "silent"}) as auth, speaking() as http:
        began = asyncio.get_running_loop().time()
        error = await fault(http, auth.origin + "/a", "get", within=0.3)
        assert asyncio.get_running_loop().time() - began < 3
        assert "of 0.3 s allowed" in error.reason


async def test_a_cancellation_stays_one() -> None:
    async with AuthFaults(on={"/token": "silent"}) as auth, speaking() as http:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(send(http, auth.origin + "/token", "form"))
            await auth.seen("POST")
            task.cancel()
        assert task.cancelled()
        await auth.until(lambda server: not server.live)


async def test_the_size_is_counted_after_decompression() -> None:
    text = "[" + " " * (MOST_BYTES - 2) + "]"
    async with (
        AuthFaults(on={"/fits": "json_text:" + text, "/not": "json_text: " + text}) as auth,
        speaking() as http,
    ):
        assert (await send(http, auth.origin + "/fits", "get")).json == []
        assert (await fault(http, auth.origin + "/not", "get")).transient is False


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("https://10.0.0.1/s", "private"),
        ("https://169.254.169.254/", "metadata"),
        ("http://idp.example/?code=s3cret", "not-https"),
        ("https://2130706433/", "malformed"),
        ("https://u:s3cret@idp.example/", None),
        ("ftp://idp.example/", None),
        ("javascript:alert(1)", None),
        ("//idp.example/", None),
        ("https://[x/", None),
        ("https://idp.example\\@evil.example/", None),
        ("https://idp.example:99999/", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("how", ["get", "form"])
async def test_f16_1_urls_that_are_not_asked(url: str, refused: str | None, how: str) -> None:
    async with speaking() as http:
        error = await fault(http, url, how)
        assert (error.transient, error.sent, error.refused) == (False, False, refused)


async def test_f16_1_this_machine_is_not_asked_for_a_server_elsewhere() -> None:
    async with AuthFaults() as auth, speaking(loopback=False) as http:
        assert (await fault(http, auth.origin + "/a")).refused == "loopback"
        assert auth.connections == 0


def test_what_is_configured_says_if_this_machine_may_be_asked() -> None:
    assert on_this_machine("http://localhost:1/mcp")
    assert on_this_machine("https://mcp.example", "http://[::1]/")
    assert not on_this_machine("https://mcp.example", None, "", "http://[x", "https://localhost.example")


async def test_what_belongs_to_the_mcp_server_alone_is_left_out() -> None:
    settings = NetSettings(
        unix_socket="/nowhere/mcp.sock", client_cert="/nowhere/cert.pem", cookies=True, user_agent="mine/1"
    )
    async with AuthFaults() as auth, speaking(settings) as http:
        await send(http, auth.origin + "/a", "get")
        assert auth.requests[0].headers["user-agent"] == "mine/1"


async def test_a_file_that_is_missing_is_a_fault_of_the_configuration() -> None:
    async with speaking(NetSettings(ca_file="/nowhere/ca.pem")) as http:
        with pytest.raises(ConfigError):
            await send(http, "https://idp.example/", "get")
