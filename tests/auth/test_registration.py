"""Becoming a client: the order, what servers answer, and what a person is told where there is no way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings._secret import Secret
from moorings.auth import clients, jose
from moorings.auth.faults import GrantError, NeedsClient
from moorings.auth.model import Registration
from moorings.auth.registration import check_document_url, client_document, fits, register, unregister
from tests.auth.grants_kit import (
    REDIRECT,
    Canned,
    Reply,
    Settings,
    a_client,
    a_server,
    in_json,
    metadata_of,
    no_answer,
    plain_http,
    soon,
)
from tests.faults.auth_server import AuthFaults

DOCUMENT = "https://client.example/moorings.json"
OPEN = a_server(
    registration_endpoint="https://as.example/register", token_endpoint_auth_methods_supported=("none",)
)
WITH_CIMD = msgspec.structs.replace(OPEN, client_id_metadata_document_supported=True)
DYNAMIC = a_client(client_id="stored", redirect_uris=(REDIRECT,), source="dynamic")


async def registered(
    *replies: Any, metadata: Any = OPEN, settings: Settings | None = None, **more: Any
) -> Any:
    return await register(
        Canned(*replies), metadata, settings or Settings(), REDIRECT, soon(), now=1000.0, **more
    )


# --- the order


async def test_a_configured_client_comes_first_and_nothing_is_sent() -> None:
    settings = Settings(client_id="mine", client_secret=Secret("s"), client_metadata_url=DOCUMENT)
    client = await registered(metadata=WITH_CIMD, settings=settings, stored=DYNAMIC)
    assert (client.client_id, client.source) == ("mine", "configured")
    assert client.issuer == "https://as.example"


async def test_a_stored_client_comes_before_a_new_one() -> None:
    client = await registered(stored=DYNAMIC)
    assert client == clients.normalised(DYNAMIC, OPEN)


async def test_a_client_document_is_used_where_the_server_takes_one() -> None:
    settings = Settings(client_metadata_url=DOCUMENT)
    client = await registered(metadata=WITH_CIMD, settings=settings)
    assert (client.client_id, client.source, client.auth_method) == (DOCUMENT, "cimd", "none")
    assert client.redirect_uris == (REDIRECT,)
    again = await registered(metadata=WITH_CIMD, settings=settings, stored=client)
    assert again == client
    # A dynamic one from before the document was set gives way to it.
    changed = await registered(metadata=WITH_CIMD, settings=settings, stored=DYNAMIC)
    assert changed.client_id == DOCUMENT


@pytest.mark.parametrize("settings", [Settings(client_metadata_url=DOCUMENT, cimd=False), Settings()])
async def test_no_document_is_used_where_it_is_off_or_not_set(settings: Settings) -> None:
    client = await registered(in_json({"client_id": "new"}, 201), metadata=WITH_CIMD, settings=settings)
    assert (client.client_id, client.source) == ("new", "dynamic")


async def test_a_stored_document_that_is_used_no_more_gives_way() -> None:
    stored = a_client(client_id=DOCUMENT, redirect_uris=(REDIRECT,), source="cimd")
    client = await registered(in_json({"client_id": "new"}, 201), metadata=WITH_CIMD, stored=stored)
    assert client.client_id == "new"


@pytest.mark.parametrize(
    "stored",
    [
        msgspec.structs.replace(DYNAMIC, issuer="https://as.example/"),
        msgspec.structs.replace(DYNAMIC, issuer="https://before.example"),
        msgspec.structs.replace(DYNAMIC, redirect_uris=("http://127.0.0.1:7778/callback",)),
        msgspec.structs.replace(DYNAMIC, source="configured"),
        msgspec.structs.replace(DYNAMIC, auth_method="client_secret_post"),
        msgspec.structs.replace(
            DYNAMIC,
            auth_method="client_secret_post",
            client_secret=Secret("s"),
            client_secret_expires_at=999.0,
        ),
    ],
    ids=["a slash", "issuer", "redirect", "configured", "no secret", "expired"],
)
async def test_f11_7_f11_13_f11_14_a_stored_client_that_does_not_fit_is_registered_anew(stored: Any) -> None:
    client = await registered(in_json({"client_id": "new"}, 201), stored=stored)
    assert client.client_id == "new" and client.registered_at == 1000.0
    assert fits(client, REDIRECT)


async def test_f11_1_a_configured_client_is_used_where_the_issuer_may_have_a_slash_more() -> None:
    """The metadata says its own spelling, which discovery has let pass by the same setting."""
    slashed = msgspec.structs.replace(OPEN, issuer=f"{OPEN.issuer}/")
    settings = Settings(client_id="mine", issuer=OPEN.issuer, accept_issuer=slashed.issuer)
    client = await registered(metadata=slashed, settings=settings)
    assert (client.client_id, client.issuer) == ("mine", slashed.issuer)
    settings.accept_issuer = None
    with pytest.raises(NeedsClient, match="belongs to"):
        await registered(metadata=slashed, settings=settings)


async def test_f11_14_a_configured_client_of_another_issuer_is_an_error() -> None:
    settings = Settings(client_id="mine", issuer="https://before.example")
    with pytest.raises(NeedsClient, match=r"belongs to https://before\.example"):
        await registered(settings=settings)


async def test_a_configured_method_without_its_secret_is_an_error() -> None:
    settings = Settings(client_id="mine", auth_method="client_secret_basic")
    with pytest.raises(NeedsClient, match="has no secret"):
        await registered(settings=settings)


# --- dynamic registration


async def test_what_a_registration_asks_for() -> None:
    http = Canned(in_json({"client_id": "new"}, 201))
    await register(http, OPEN, Settings(), REDIRECT, soon(), scopes=("a", "b"))
    url, body, _ = http.asked[0]
    assert url == "https://as.example/register"
    assert body == {
        "client_name": "Moorings",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "native",
        "token_endpoint_auth_method": "none",
        "scope": "a b",
    }


async def test_f12_12_what_a_registration_asks_for_that_comes_back_nowhere() -> None:
    http = Canned(in_json({"client_id": "new"}, 201))
    metadata = msgspec.structs.replace(OPEN, device_authorization_endpoint="https://as.example/device")
    await register(http, metadata, Settings(), "", soon())
    body = http.asked[0][1]
    assert "redirect_uris" not in body and body["response_types"] == []
    assert body["grant_types"] == ["urn:ietf:params:oauth:grant-type:device_code", "refresh_token"]


@pytest.mark.parametrize(
    ("taken", "wish", "key", "asked"),
    [
        (("client_secret_post", "none"), None, False, "none"),
        (("client_secret_post",), None, False, "client_secret_post"),
        (("client_secret_basic", "client_secret_post"), None, False, "client_secret_basic"),
        (None, None, False, "client_secret_basic"),
        (("none",), "client_secret_post", False, "client_secret_post"),
        (("private_key_jwt",), None, True, "private_key_jwt"),
    ],
)
async def test_f11_12_the_method_asked_for_is_one_the_server_takes(
    taken: Any, wish: Any, key: bool, asked: str
) -> None:
    metadata = msgspec.structs.replace(OPEN, token_endpoint_auth_methods_supported=taken)
    http = Canned(in_json({"client_id": "new", "client_secret": "s"}, 201))
    signing_key = jose.new_key() if key else None
    await register(http, metadata, Settings(auth_method=wish), REDIRECT, soon(), signing_key=signing_key)
    body = http.asked[0][1]
    assert body["token_endpoint_auth_method"] == asked
    assert ("jwks" in body) is key and '"d"' not in str(body.get("jwks")).replace("'", '"')


async def test_a_server_that_only_takes_what_we_cannot_do() -> None:
    metadata = msgspec.structs.replace(OPEN, token_endpoint_auth_methods_supported=("tls_client_auth",))
    with pytest.raises(NeedsClient, match="tls_client_auth only"):
        await registered(metadata=metadata)


@pytest.mark.parametrize(
    ("answer", "method"),
    [
        ({"client_id": "n"}, "none"),
        ({"client_id": "n", "token_endpoint_auth_method": "none"}, "none"),
        ({"client_id": "n", "client_secret": "s"}, "client_secret_basic"),
        ({"client_id": "n", "client_secret": "s", "client_secret_expires_at": 0}, "client_secret_basic"),
        (
            {"client_id": "n", "client_secret": "s", "token_endpoint_auth_method": "client_secret_post"},
            "client_secret_post",
        ),
        (
            {"client_id": "n", "client_secret": "s", "token_endpoint_auth_method": "none"},
            "client_secret_basic",
        ),
        ({"client_id": "n", "client_secret": None, "token_endpoint_auth_method": None}, "none"),
    ],
)
@pytest.mark.parametrize("status", [200, 201])
async def test_f11_13_the_answers_word_counts(answer: Any, method: str, status: int) -> None:
    metadata = msgspec.structs.replace(
        OPEN, token_endpoint_auth_methods_supported=("none", "client_secret_basic", "client_secret_post")
    )
    client = await registered(in_json(answer, status), metadata=metadata)
    assert client.auth_method == method and client.client_secret_expires_at is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"client_id": "n", "token_endpoint_auth_method": "client_secret_post"}, "has no secret"),
        ({"client_id": "n", "token_endpoint_auth_method": "tls_client_auth"}, "does not do"),
        (
            {
                "client_id": "n",
                "client_secret": "s",
                "client_secret_expires_at": 500,
                "token_endpoint_auth_method": "client_secret_post",
            },
            "has expired",
        ),
        ({"client_id": ""}, "without a client id"),
        ({}, "without a client id"),
        ({"client_id": 7}, "without a client id"),
        ({"client_id": "n", "redirect_uris": ["https://other.example/cb"]}, "was asked for"),
    ],
)
async def test_f11_13_an_answer_that_cannot_work_is_typed_at_once(answer: Any, said: str) -> None:
    with pytest.raises(NeedsClient, match=said):
        await registered(in_json(answer, 201))


@pytest.mark.parametrize(
    "uris", [[REDIRECT], [], None, ["http://127.0.0.1/callback"], ["https://x.example", REDIRECT], "x"]
)
async def test_redirect_uris_in_the_answer(uris: Any) -> None:
    client = await registered(in_json({"client_id": "n", "redirect_uris": uris}, 201))
    assert client.redirect_uris == (REDIRECT,)


async def test_the_answer_is_kept_without_its_secrets_in_the_open() -> None:
    answer = {
        "client_id": "n",
        "client_secret": "s3cret",
        "client_secret_expires_at": "2000",
        "token_endpoint_auth_method": "client_secret_post",
        "registration_access_token": "rat-s3cret",
        "registration_client_uri": "https://as.example/register/n",
        "software_secret": "s3cret",
        "client_name": "Moorings",
        "scope": "a",
    }
    client = await registered(in_json(answer, 201))
    assert client.extra == {"client_name": "Moorings"} and "s3cret" not in repr(client)
    assert client.client_secret_expires_at == 2000.0 and client.scope == "a"
    assert (await registered(in_json({**answer, "blob": "x" * 100_000}, 201))).extra == {}


async def test_a_scope_that_is_refused_is_left_out_once() -> None:
    http = Canned(in_json({"error": "invalid_client_metadata"}, 400), in_json({"client_id": "n"}, 201))
    assert (await register(http, OPEN, Settings(), REDIRECT, soon(), scopes=("a",))).client_id == "n"
    assert len(http.asked) == 2 and "scope" not in http.asked[1][1]
    http = Canned(
        in_json({"error": "invalid_client_metadata"}, 400), in_json({"error": "invalid_scope"}, 400)
    )
    with pytest.raises(NeedsClient, match="invalid_scope"):
        await register(http, OPEN, Settings(), REDIRECT, soon(), scopes=("a",))
    assert len(http.asked) == 2


async def test_scopes_that_may_be_wanted_later_are_registered_for_where_the_server_takes_them() -> None:
    refusal = in_json({"error": "invalid_client_metadata"}, 400)
    for refusals, said in ((0, "a offline b"), (1, "a offline"), (2, None)):
        http = Canned(*[refusal] * refusals, in_json({"client_id": "n"}, 201))
        client = await register(
            http, OPEN, Settings(), REDIRECT, soon(), scopes=("a", "offline"), also=("b", "a")
        )
        assert http.asked[-1][1].get("scope") == said
        assert (client.scope, client.asked_scope) == ("", "a offline b")


async def test_f11_9_a_client_that_is_held_to_fewer_scopes_is_registered_anew_once() -> None:
    async def again(stored: Registration, scopes: tuple[str, ...], held_to: str | None) -> tuple[str, int]:
        answer = {"client_id": "new"} if held_to is None else {"client_id": "new", "scope": held_to}
        http = Canned(in_json(answer, 201))
        made = await register(http, OPEN, Settings(), REDIRECT, soon(), stored=stored, scopes=scopes)
        return made.asked_scope, len(http.asked)

    held = await registered(in_json({"client_id": "n", "scope": "a"}, 201))
    assert await again(held, ("a",), None) == ("", 0)
    assert await again(held, ("a", "b"), "a b") == ("a b", 1)
    # It was asked for b once, and does not give it: no login brings yet another client.
    stubborn = msgspec.structs.replace(held, asked_scope="a b")
    assert await again(stubborn, ("b",), None) == ("a b", 0)
    # Nothing is said of scopes, so nothing is known against it.
    free = msgspec.structs.replace(held, scope="")
    assert await again(free, ("z",), None) == ("", 0)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (in_json({"error": "invalid_redirect_uri", "error_description": "no loopback"}, 400), "redirect URI"),
        (
            in_json({"error": "invalid_client_metadata", "error_description": "bad Redirect"}, 400),
            "redirect URI",
        ),
        (in_json({"error": "unapproved_software_statement"}, 400), "unapproved_software_statement"),
        (in_json({"error": "access_denied"}, 403), "refuses to register"),
        (in_json({"error": "invalid_request"}, 200), "refuses to register"),
        (Reply(404, {"Content-Type": "text/html"}, None, "<h1>Not found"), "registers nobody"),
        (Reply(403, {}, None, ""), "registers nobody"),
        (Reply(405, {}, None, ""), "registers nobody"),
        (Reply(200, {"Content-Type": "text/html"}, None, "<html>"), "registers nobody"),
        (Reply(401, {}, None, ""), "registers nobody"),
    ],
)
async def test_f11_3_a_refused_registration_says_what_to_do(reply: Reply, said: str) -> None:
    with pytest.raises(NeedsClient, match=said) as caught:
        await registered(reply)
    assert caught.value.fix and ("auth.client_id" in caught.value.fix or "auth.redirect" in caught.value.fix)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(503, {"Retry-After": "3"}, None, ""),
        in_json({"error": "server_error"}, 500),
        in_json({}, 429),
        no_answer("reset"),
    ],
)
async def test_f11_3_a_registration_that_may_work_later_stays_transient(reply: Any) -> None:
    with pytest.raises(GrantError) as caught:
        await registered(reply)
    assert caught.value.transient


async def test_f11_3_without_an_endpoint_none_is_invented() -> None:
    http = Canned()
    with pytest.raises(NeedsClient, match="registers no clients by itself") as caught:
        await register(http, a_server(), Settings(), REDIRECT, soon())
    assert http.asked == [] and "auth.client_id" in str(caught.value)
    for settings, said in (
        (Settings(client_metadata_url=DOCUMENT), "takes no client documents either"),
        (Settings(client_metadata_url=DOCUMENT, cimd=False), r"auth\.cimd is off"),
    ):
        with pytest.raises(NeedsClient, match=said):
            await register(http, a_server(), settings, REDIRECT, soon())


# --- against the server


async def test_a_registration_with_a_hard_secret_is_made_used_and_deleted() -> None:
    async with AuthFaults(
        metadata={"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    ) as server:
        async with plain_http() as http:
            metadata = metadata_of(server)
            client = await register(http, metadata, Settings(), REDIRECT, soon())
            assert client.auth_method == "client_secret_basic" and client.client_id in server.clients
            assert await unregister(http, client, metadata, soon()) == "deleted"
            assert server.clients == {}
            assert await unregister(http, client, metadata, soon()) == "deleted"  # gone already
            server.script["on"] = {"client": "status:503"}
            assert await unregister(http, client, metadata, soon()) == "failed"
            server.script["on"] = {"client": "status:405"}
            assert await unregister(http, client, metadata, soon()) == "not_offered"


async def test_scopes_that_a_server_does_not_register_are_left_out() -> None:
    async with AuthFaults(register_scopes=[]) as server, plain_http() as http:
        client = await register(http, metadata_of(server), Settings(), REDIRECT, soon(), scopes=("a",))
        assert client.client_id in server.clients and len(server.at("register")) == 2


async def test_a_token_goes_to_no_other_origin_for_a_deletion() -> None:
    http = Canned()
    client = a_client(
        source="dynamic",
        registration_access_token=Secret("t"),
        registration_client_uri="https://evil.example/register/me",
    )
    assert await unregister(http, client, OPEN, soon()) == "not_offered"
    assert await unregister(http, a_client(), OPEN, soon()) == "not_offered"
    assert http.asked == []


# --- documents


def test_the_document_to_host() -> None:
    document = client_document(
        Settings(client_metadata_url=DOCUMENT), [REDIRECT, "http://localhost/callback"]
    )
    assert document["client_id"] == DOCUMENT and document["client_name"] == "Moorings"
    assert document["redirect_uris"] == [REDIRECT, "http://localhost/callback"]
    assert document["token_endpoint_auth_method"] == "none" and "client_secret" not in document
    assert document["application_type"] == "native" and "refresh_token" in document["grant_types"]
    signed = client_document(
        Settings(client_metadata_url=DOCUMENT), [REDIRECT], jwks_uri="https://c.example/jwks"
    )
    assert signed["token_endpoint_auth_method"] == "private_key_jwt"
    with pytest.raises(NeedsClient, match="no URL for the document"):
        client_document(Settings(), [REDIRECT])


@pytest.mark.parametrize(
    "url",
    [
        "http://client.example/x.json",
        "https://client.example",
        "https://client.example/",
        "https://u:p@client.example/x",
        "https://client.example/x#f",
        "https://client.example/a/../x",
        "https://client.example/./x",
        "https://client.example/a b",
        "client.example/x",
        "https:///x",
    ],
)
async def test_a_url_that_cannot_be_a_client_id(url: str) -> None:
    with pytest.raises(NeedsClient, match="cannot be a client id"):
        check_document_url(url)
    with pytest.raises(NeedsClient):
        await registered(metadata=WITH_CIMD, settings=Settings(client_metadata_url=url))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(
    [
        "client_id",
        "client_secret",
        "token_endpoint_auth_method",
        "redirect_uris",
        "client_secret_expires_at",
        "registration_access_token",
        "registration_client_uri",
        "grant_types",
        "scope",
        "error",
        "x",
    ]
)


@given(st.sampled_from([200, 201, 400, 500]), st.dictionaries(members, json_values))
def test_no_registration_answer_breaks_the_reader(status: int, answer: Any) -> None:
    import asyncio

    try:
        client = asyncio.run(registered(in_json(answer, status)))
    except (NeedsClient, GrantError):
        return
    assert client.client_id == answer["client_id"] and client.auth_method is not None
