"""Grants against the scripted server, and answers no server should give, one by one."""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings._secret import Secret
from moorings.auth import dpop, grants, jose
from moorings.auth.authorization import AuthorizationRequest
from moorings.auth.endpoint import read_answer
from moorings.auth.faults import GrantError, NeedsClient
from moorings.auth.model import LOCAL, CredentialKey
from tests.auth.grants_kit import (
    REDIRECT,
    Canned,
    Reply,
    a_client,
    a_server,
    in_json,
    metadata_of,
    no_answer,
    plain_http,
    soon,
)
from tests.faults.auth_server import AuthFaults, consent, form_of

TOKEN = {"access_token": "AT", "token_type": "Bearer"}
CLIENTS = {
    "public": {"token_endpoint_auth_method": "none"},
    "basic": {"token_endpoint_auth_method": "client_secret_basic", "client_secret": "s+/=%&: ü"},
    "post": {"token_endpoint_auth_method": "client_secret_post", "client_secret": "s+/=%&: ü"},
    "jwt": {"token_endpoint_auth_method": "private_key_jwt"},
}
KEY = jose.new_key()


def client_of(server: AuthFaults, name: str) -> Any:
    known = CLIENTS[name]
    secret = known.get("client_secret")
    return a_client(
        issuer=server.issuer,
        client_id=name,
        auth_method=known["token_endpoint_auth_method"],
        client_secret=Secret(secret) if secret else None,
        signing_key=KEY if name == "jwt" else None,
    )


async def refreshed(*replies: Any, **more: Any) -> grants.TokenSet:
    return await grants.refresh(
        Canned(*replies),
        a_server(),
        a_client(),
        **{
            "refresh_token": Secret("RT-s3cret"),
            "resource": "https://mcp.example/mcp",
            "deadline": soon(),
            **more,
        },
    )


# --- against the server


async def test_a_code_and_a_refresh_with_rotation() -> None:
    async with AuthFaults(clients=CLIENTS) as server, plain_http() as http:
        metadata, client = metadata_of(server), client_of(server, "public")
        request = AuthorizationRequest.begin(
            metadata, client, redirect_uri=REDIRECT, resource=server.resource, scopes=("a", "b")
        )
        code = request.finish(await consent(request.url))
        tokens = await grants.exchange_code(
            http,
            metadata,
            client,
            code=code,
            verifier=request.verifier,
            redirect_uri=request.redirect_uri,
            resource=request.resource,
            deadline=soon(),
        )
        assert tokens.scopes == ("a", "b") and tokens.expires_in == 3600 and tokens.refresh_token
        again = await grants.refresh(
            http,
            metadata,
            client,
            refresh_token=tokens.refresh_token,
            resource=server.resource,
            deadline=soon(),
        )
        assert again.refresh_token not in (None, tokens.refresh_token)
        assert form_of(server.at("token:refresh_token")[0])["resource"] == server.resource
        assert "scope" not in form_of(server.at("token:refresh_token")[0])
        with pytest.raises(GrantError) as caught:
            await grants.refresh(
                http,
                metadata,
                client,
                refresh_token=tokens.refresh_token,
                resource=server.resource,
                deadline=soon(),
            )
        assert caught.value.code == "invalid_grant" and not caught.value.transient
        assert server.violations == []


@pytest.mark.parametrize("name", ["basic", "post", "jwt"])
async def test_f11_12_client_credentials_by_exactly_one_method(name: str) -> None:
    async with AuthFaults(clients=CLIENTS) as server, plain_http() as http:
        tokens = await grants.client_credentials(
            http,
            metadata_of(server),
            client_of(server, name),
            scopes=("a",),
            resource=server.resource,
            deadline=soon(),
        )
        assert tokens.scopes == ("a",) and tokens.refresh_token is None
        assert server.access[tokens.access_token.reveal()].client == name
        assert server.violations == []


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
async def test_f11_12_a_secret_without_a_method_follows_the_metadata(method: str) -> None:
    known = {"c": {"token_endpoint_auth_method": method, "client_secret": "s"}}
    async with (
        AuthFaults(clients=known, metadata={"token_endpoint_auth_methods_supported": [method]}) as server,
        plain_http() as http,
    ):
        for said in (None, "none"):
            client = a_client(client_id="c", client_secret=Secret("s"), auth_method=said)
            assert await grants.client_credentials(
                http, metadata_of(server), client, scopes=(), resource=None, deadline=soon()
            )
        assert server.violations == []


async def test_enterprise_managed_authorization_in_two_steps() -> None:
    async with (
        AuthFaults(clients=CLIENTS) as idp,
        AuthFaults(clients=CLIENTS) as server,
        plain_http() as http,
    ):
        jag = await grants.id_jag(
            http,
            metadata_of(idp),
            client_of(idp, "public"),
            id_token=Secret("e30.e30.id"),
            audience=server.issuer,
            resource=server.resource,
            deadline=soon(),
        )
        tokens = await grants.jwt_bearer(
            http,
            metadata_of(server),
            client_of(server, "basic"),
            assertion=jag,
            scopes=("a",),
            resource=server.resource,
            deadline=soon(),
        )
        asked = form_of(idp.at("token")[0])
        assert asked["subject_token_type"] == grants.ID_TOKEN
        assert asked["requested_token_type"] == grants.ID_JAG
        assert (asked["audience"], asked["resource"]) == (server.issuer, server.resource)
        assert form_of(server.at("token")[0])["assertion"] == jag.reveal()
        assert tokens.token_type == "Bearer" and idp.violations == server.violations == []


async def test_a_provider_that_gives_something_else_than_an_id_jag() -> None:
    body = {**TOKEN, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
    with pytest.raises(GrantError, match="where an ID-JAG was asked for"):
        await grants.id_jag(
            Canned(in_json(body)),
            a_server(),
            a_client(),
            id_token=Secret("x"),
            audience="https://as.example",
            resource="https://mcp.example",
            deadline=soon(),
        )


async def test_a_workload_that_is_refused_is_told_so_once() -> None:
    async with AuthFaults(clients=CLIENTS) as server, plain_http() as http:
        with pytest.raises(GrantError) as caught:
            await grants.jwt_bearer(
                http,
                metadata_of(server),
                client_of(server, "public"),
                assertion=Secret("no-jwt"),
                scopes=(),
                resource=None,
                deadline=soon(),
            )
        assert caught.value.code == "invalid_grant" and not caught.value.transient
        assert len(server.at("token")) == 1


async def test_a_token_is_revoked_and_an_unknown_one_too() -> None:
    async with AuthFaults(clients=CLIENTS) as server, plain_http() as http:
        family = server.family(client="basic")
        for token in (family.live, "unknown"):
            assert await grants.revoke(
                http,
                metadata_of(server),
                client_of(server, "basic"),
                token=Secret(token),
                hint="refresh_token",
                deadline=soon(),
            )
        assert family.revoked
        server.script["on"] = {"revoke": "status:503"}
        with pytest.raises(GrantError) as caught:
            await grants.revoke(
                http,
                metadata_of(server),
                client_of(server, "basic"),
                token=Secret("x"),
                hint="access_token",
                deadline=soon(),
            )
        assert caught.value.transient
        # A JWT, say: the server has no way to end it, which is no failure of a logout (RFC 7009 §2.2.1).
        server.script["on"] = {"revoke": "refuse:unsupported_token_type"}
        assert not await grants.revoke(
            http,
            metadata_of(server),
            client_of(server, "basic"),
            token=Secret("x"),
            hint="access_token",
            deadline=soon(),
        )
        nowhere = a_server(revocation_endpoint="")
        assert not await grants.revoke(
            http, nowhere, a_client(), token=Secret("x"), hint="access_token", deadline=soon()
        )


@pytest.mark.parametrize("word", ["status:503", "status:500", "status:429", "refuse:temporarily_unavailable"])
async def test_f10_2_what_passes_is_transient(word: str) -> None:
    async with AuthFaults(clients=CLIENTS, on={"token": [word, "ok"]}) as server, plain_http() as http:
        family = server.family(client="public")

        async def once() -> grants.TokenSet:
            return await grants.refresh(
                http,
                metadata_of(server),
                client_of(server, "public"),
                refresh_token=Secret(family.live),
                resource=None,
                deadline=soon(),
            )

        with pytest.raises(GrantError) as caught:
            await once()
        assert caught.value.transient and caught.value.sent
        assert await once()


async def test_f11_15_a_form_encoded_answer_is_read_by_its_content_type() -> None:
    async with AuthFaults(clients=CLIENTS, on={"token": "form"}) as server, plain_http() as http:
        tokens = await grants.client_credentials(
            http,
            metadata_of(server),
            client_of(server, "post"),
            scopes=("a", "b"),
            resource=None,
            deadline=soon(),
        )
        assert tokens.scopes == ("a", "b") and tokens.expires_in == 3600


async def test_f11_15_an_error_in_a_200_is_that_error() -> None:
    async with (
        AuthFaults(clients=CLIENTS, on={"token": "refuse:invalid_grant:200"}) as server,
        plain_http() as http,
    ):
        with pytest.raises(GrantError) as caught:
            await grants.client_credentials(
                http,
                metadata_of(server),
                client_of(server, "post"),
                scopes=(),
                resource=None,
                deadline=soon(),
            )
        assert caught.value.code == "invalid_grant" and not caught.value.transient


async def test_f11_11_a_server_that_refuses_resource_gets_the_setting_named() -> None:
    async with AuthFaults(clients=CLIENTS, resource="refused") as server, plain_http() as http:

        async def with_resource(resource: str | None) -> grants.TokenSet:
            return await grants.client_credentials(
                http,
                metadata_of(server),
                client_of(server, "post"),
                scopes=("a",),
                resource=resource,
                deadline=soon(),
            )

        with pytest.raises(GrantError, match=r'auth\.resource = "off"') as caught:
            await with_resource(server.resource)
        assert caught.value.code == "invalid_target" and not caught.value.transient
        assert await with_resource(None)


# --- the device flow


class Pauses:
    """Takes the place of sleep: notes what was waited, and waits not."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


async def test_f12_12_pending_then_slow_down_then_tokens() -> None:
    script = ["ok", "refuse:slow_down", "ok", "refuse:slow_down", "ok"]
    async with (
        AuthFaults(clients=CLIENTS, pending=2, on={"token:device_code": script}) as server,
        plain_http() as http,
    ):
        metadata, client = metadata_of(server), client_of(server, "basic")
        device = await grants.device_begin(
            http, metadata, client, scopes=("a",), resource=server.resource, deadline=soon()
        )
        assert device.user_code.startswith("CODE-") and device.interval == 1
        assert device.verification_uri_complete.endswith(device.user_code)
        pauses = Pauses()
        tokens = await grants.device_wait(
            http, metadata, client, device, resource=server.resource, deadline=soon(600), pause=pauses
        )
        assert pauses.taken == [1, 1, 6, 6, 11]
        assert tokens.scopes == ("a",) and tokens.refresh_token
        assert server.violations == []


@pytest.mark.parametrize("code", ["expired_token", "access_denied", "invalid_grant", "invalid_client"])
async def test_f12_12_what_ends_a_device_login(code: str) -> None:
    device = grants.DeviceCode(
        device_code=Secret("d"), user_code="u", verification_uri="https://as.example/d"
    )
    http = Canned(in_json({"error": "authorization_pending"}, 400), in_json({"error": code}, 400))
    with pytest.raises(GrantError) as caught:
        await grants.device_wait(
            http, a_server(), a_client(), device, resource=None, deadline=soon(600), pause=Pauses()
        )
    assert caught.value.code == code and not caught.value.transient


async def test_f12_12_a_code_ends_by_our_clock_too() -> None:
    device = grants.DeviceCode(
        device_code=Secret("d"),
        user_code="u",
        verification_uri="https://as.example/d",
        expires_in=3,
        interval=5,
    )
    with pytest.raises(GrantError) as caught:
        await grants.device_wait(
            Canned(), a_server(), a_client(), device, resource=None, deadline=soon(600), pause=Pauses()
        )
    assert caught.value.code == "expired_token" and not caught.value.sent


async def test_a_poll_that_fails_for_the_network_is_made_again_more_slowly() -> None:
    device = grants.DeviceCode(
        device_code=Secret("d"), user_code="u", verification_uri="https://as.example/d"
    )
    pauses = Pauses()
    http = Canned(
        no_answer("reset"),
        in_json({}, 503, **{"Retry-After": "30"}),
        in_json(TOKEN),
    )
    await grants.device_wait(
        http, a_server(), a_client(), device, resource=None, deadline=soon(600), pause=pauses
    )
    assert pauses.taken == [5, 10, 30]


@pytest.mark.parametrize(
    ("answer", "interval", "life"),
    [
        ({}, 5, 900),
        ({"interval": 0, "expires_in": "60"}, 1, 60),
        ({"interval": "7", "expires_in": None}, 7, 900),
        ({"interval": 1e9, "expires_in": 1e300}, 60, grants.LONGEST_LIFE),
        ({"interval": -1, "verification_uri": None, "verification_url": "https://as.example/d"}, 5, 900),
    ],
)
async def test_a_device_answer_is_read_generously(answer: Any, interval: float, life: float) -> None:
    metadata = a_server(device_authorization_endpoint="https://as.example/device")
    body = {"device_code": "d", "user_code": "u", "verification_uri": "https://as.example/d", **answer}
    device = await grants.device_begin(
        Canned(in_json(body)), metadata, a_client(), scopes=(), resource=None, deadline=soon()
    )
    assert (device.interval, device.expires_in) == (interval, life)
    assert device.verification_uri == "https://as.example/d" and "device_code=Secret(…)" in repr(device)


async def test_a_server_without_a_device_endpoint_is_not_asked() -> None:
    with pytest.raises(GrantError, match="names no device") as caught:
        await grants.device_begin(Canned(), a_server(), a_client(), scopes=(), resource=None, deadline=soon())
    assert not caught.value.sent


# --- answers one by one


@pytest.mark.parametrize("status", [200, 201, 202, 206, 299])
async def test_any_2xx_is_an_answer(status: int) -> None:
    assert (await refreshed(in_json(TOKEN, status))).access_token == Secret("AT")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (3600, 3600),
        ("3600", 3600),
        (" 60 ", 60),
        ("60.5", 60.5),
        (60.5, 60.5),
        (0, 0),
        ("0", 0),
        (10**18, grants.LONGEST_LIFE),
        (10**400, grants.LONGEST_LIFE),
        (float("inf"), grants.LONGEST_LIFE),
        ("999999999999999999", grants.LONGEST_LIFE),
        ("3600abc", None),
        ("", None),
        (None, None),
        (-1, None),
        ("-1", None),
        (True, None),
        (float("nan"), None),
        ([3600], None),
        ({}, None),
        ("1e3", None),
        ("٣", None),
    ],
)
async def test_f10_7_expires_in_as_servers_write_it(value: object, seconds: float | None) -> None:
    reply = Reply(200, {"Content-Type": "application/json"}, {**TOKEN, "expires_in": value})
    assert (await refreshed(reply)).expires_in == seconds
    assert (await refreshed(in_json(TOKEN))).expires_in is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"access_token": None},
        {"access_token": ""},
        {"access_token": 7},
        {"access_token": "a b"},
        {"access_token": "a\r\nX-Evil: 1"},
        {"access_token": "ü"},
        {"access_token": "x" * 100_000},
        {"access_token": "AT", "token_type": "mac"},
        {"access_token": "AT", "token_type": "N_A"},
        {"access_token": "AT", "token_type": "DPoP"},
    ],
)
async def test_f10_12_what_is_no_usable_token_changes_nothing(body: Any) -> None:
    with pytest.raises(GrantError) as caught:
        await refreshed(in_json(body))
    assert caught.value.code == "unusable" and caught.value.transient and caught.value.sent


@pytest.mark.parametrize("kind", [None, "", "bearer", "BEARER", " Bearer "])
async def test_a_bearer_is_one_however_it_is_spelt(kind: object) -> None:
    assert (await refreshed(in_json({"access_token": "AT", "token_type": kind}))).token_type == "Bearer"


@pytest.mark.parametrize(
    ("reply", "code", "transient"),
    [
        (in_json({"error": "invalid_grant"}, 400), "invalid_grant", False),
        (in_json({"error": "invalid_grant"}, 401), "invalid_grant", False),
        (in_json({"error": "invalid_client"}, 401), "invalid_client", False),
        (in_json({"error": "invalid_client"}, 400), "invalid_client", False),
        (in_json({"error": "invalid_scope"}, 400), "invalid_scope", False),
        (in_json({"error": "invalid_target"}, 400), "invalid_target", False),
        # what is said while the server fails is not its word on the token
        (in_json({"error": "invalid_grant"}, 500), "invalid_grant", True),
        (in_json({"error": "invalid_client"}, 503), "invalid_client", True),
        (in_json({"error": "invalid_grant"}, 429), "invalid_grant", True),
        (in_json({"error": "server_error"}, 400), "server_error", True),
        (in_json({**TOKEN, "error": "invalid_grant"}), "invalid_grant", False),
        (in_json({"error": {"code": "invalid_grant", "message": "m"}}, 400), "invalid_grant", False),
        (in_json({"error": {"message": "m"}}, 400), "http", False),
        (in_json({"error": None}, 400), "http", False),
        (in_json({"error": ""}, 404), "http", False),
        (in_json(["x"], 200), "unusable", True),
        (Reply(200, {"Content-Type": "text/html"}, None, "<html>"), "unusable", True),
        (Reply(204, {}, None, ""), "unusable", True),
        (Reply(403, {"Content-Type": "text/html"}, None, "<html>blocked"), "http", False),
        (Reply(502, {}, None, ""), "http", True),
        (Reply(307, {"Location": "https://evil.example"}, None, ""), "http", False),
        (
            Reply(
                400, {"Content-Type": "application/x-www-form-urlencoded"}, None, "error=invalid_grant&x=1"
            ),
            "invalid_grant",
            False,
        ),
        (Reply(200, {"Content-Type": "application/x-www-form-urlencoded"}, None, "&&"), "unusable", True),
        (no_answer("reset"), "network", True),
        (no_answer("an address that is not spoken to", transient=False, sent=False), "network", False),
    ],
)
async def test_f11_6_transient_and_final_are_told_apart(reply: Any, code: str, transient: bool) -> None:
    with pytest.raises(GrantError) as caught:
        await refreshed(reply)
    assert (caught.value.code, caught.value.transient) == (code, transient)
    assert str(caught.value) and "evil" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("30", 30), ("0", 0), ("-1", None), ("x", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), (None, None)],
)
async def test_retry_after_is_handed_on(header: str | None, seconds: float | None) -> None:
    with pytest.raises(GrantError) as caught:
        await refreshed(in_json({}, 429, **({"Retry-After": header} if header else {})))
    assert caught.value.retry_after == seconds and caught.value.transient


async def test_f16_5_a_server_that_repeats_the_request_shows_nothing_of_it() -> None:
    client = a_client(client_secret=Secret("cl/ent-s3cret"), auth_method="client_secret_post")
    echo = "token RT-s3cret, secret cl/ent-s3cret or cl%2Fent-s3cret \x1b]8;;x\x07"
    for reply in (
        in_json({"error": "invalid_grant", "error_description": echo}, 400),
        Reply(400, {"Content-Type": "text/plain"}, None, echo),
        no_answer(echo),
    ):
        with pytest.raises(GrantError) as caught:
            await grants.refresh(
                Canned(reply),
                a_server(),
                client,
                refresh_token=Secret("RT-s3cret"),
                resource=None,
                deadline=soon(),
            )
        for text in (str(caught.value), repr(caught.value), caught.value.description):
            assert "s3cret" not in text and "\x1b" not in text and "\x07" not in text


async def test_f16_5_a_crash_dump_with_its_variables_shows_nothing() -> None:
    client = a_client(client_secret=Secret("client-s3cret"), auth_method="client_secret_basic")
    for reply in (in_json({"error": "invalid_grant"}, 400), no_answer("reset")):
        with pytest.raises(GrantError) as caught:
            await grants.refresh(
                Canned(reply),
                a_server(),
                client,
                refresh_token=Secret("RT-s3cret"),
                resource=None,
                deadline=soon(),
            )
        dump = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        ours = [frame for frame in dump.stack if "/auth/" in frame.filename and "tests" not in frame.filename]
        assert ours and "s3cret" not in str([frame.locals for frame in ours])


async def test_after_its_deadline_nothing_is_sent() -> None:
    with pytest.raises(GrantError) as caught:
        await refreshed(deadline=asyncio.get_running_loop().time() - 1)
    assert caught.value.code == "timeout" and caught.value.transient and not caught.value.sent


async def test_a_client_that_cannot_work_sends_nothing() -> None:
    http = Canned()
    with pytest.raises(NeedsClient):
        await grants.client_credentials(
            http,
            a_server(),
            a_client(auth_method="client_secret_basic"),
            scopes=(),
            resource=None,
            deadline=soon(),
        )
    assert http.asked == []


# --- credentials


def a_credential(**tokens: Any) -> Any:
    return grants.granted(
        CredentialKey(LOCAL, "https://as.example", "me", "https://mcp.example/mcp"),
        a_client(client_secret=Secret("s"), auth_method=None),
        a_server(),
        grants.TokenSet(access_token=Secret("AT"), **tokens),
        now=1000.0,
        requested_scopes=("a", "b"),
        resource="https://mcp.example/mcp",
    )


def test_f10_5_what_a_refresh_leaves_out_stays() -> None:
    before = a_credential(refresh_token=Secret("RT"), scopes=("a",), expires_in=10)
    after = grants.merged(before, grants.TokenSet(access_token=Secret("AT2")), now=2000.0)
    assert after.refresh_token == Secret("RT") and after.scopes == ("a",)
    assert after.requested_scopes == ("a", "b") and after.resource_sent
    assert (after.version, after.expires_at, after.obtained_at) == (2, None, 2000.0)
    newer = grants.TokenSet(
        access_token=Secret("AT3"), refresh_token=Secret("RT3"), scopes=("b",), expires_in=0
    )
    last = grants.merged(msgspec.structs.replace(after, state="refused", reason="x"), newer, now=3000.0)
    assert last.refresh_token == Secret("RT3") and last.scopes == ("b",)
    assert (last.version, last.expires_at, last.state, last.reason) == (3, 3000.0, "good", "")


def test_a_new_credential_is_normalised_and_complete() -> None:
    credential = a_credential()
    assert credential.scopes == ("a", "b")  # not said: what was asked for
    assert credential.registration.auth_method == "client_secret_basic"
    assert credential.expires_at is None and credential.version == 1


# --- DPoP at the token endpoint


async def test_a_nonce_that_is_asked_for_is_given_once() -> None:
    prover = dpop.Prover(dpop.new_key(), dpop.Nonces())
    wanted = in_json({"error": "use_dpop_nonce"}, 400, **{"DPoP-Nonce": "n1"})
    http = Canned(wanted, in_json({**TOKEN, "token_type": "DPoP"}, **{"DPoP-Nonce": "n2"}))
    tokens = await grants.refresh(
        http, a_server(), a_client(), refresh_token=Secret("x"), resource=None, deadline=soon(), prover=prover
    )
    assert tokens.token_type == "DPoP" and len(http.asked) == 2
    assert http.asked[0][2]["DPoP"] != http.asked[1][2]["DPoP"]
    assert prover.nonces.get("https://as.example/other") == "n2"


async def test_a_server_that_asks_for_nonces_without_end_is_left() -> None:
    prover = dpop.Prover(dpop.new_key(), dpop.Nonces())
    again = [in_json({"error": "use_dpop_nonce"}, 400, **{"DPoP-Nonce": f"n{n}"}) for n in range(5)]
    http = Canned(*again)
    with pytest.raises(GrantError, match="use_dpop_nonce"):
        await grants.refresh(
            http,
            a_server(),
            a_client(),
            refresh_token=Secret("x"),
            resource=None,
            deadline=soon(),
            prover=prover,
        )
    assert len(http.asked) == 2
    http = Canned(in_json({"error": "use_dpop_nonce"}, 400))  # and names none
    with pytest.raises(GrantError):
        await grants.refresh(
            http,
            a_server(),
            a_client(),
            refresh_token=Secret("x"),
            resource=None,
            deadline=soon(),
            prover=prover,
        )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(
    [
        "access_token",
        "token_type",
        "expires_in",
        "refresh_token",
        "scope",
        "error",
        "error_description",
        "id_token",
    ]
)


@given(st.integers(100, 599), st.dictionaries(members, json_values) | json_values, st.text(max_size=50))
def test_no_answer_breaks_the_reader(status: int, value: Any, kind: str) -> None:
    try:
        body = read_answer(
            Reply(status, {"Content-Type": kind, "Retry-After": kind}, value, kind), "it", ["x"]
        )
        tokens = grants._tokens(body, "it", False, False)
    except GrantError as error:
        assert error.code and str(error)
    else:
        assert tokens.access_token.reveal()
        grants.merged(a_credential(), tokens, now=time.time())
