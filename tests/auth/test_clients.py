"""Who we are: one normalisation, one method in one request, and no person troubled for a client that cannot work."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import unquote, unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings._secret import Secret
from moorings.auth import clients, jose
from moorings.auth.faults import AuthFault, NeedsClient
from moorings.auth.model import Registration, decode_registration, encode_registration
from tests.auth.grants_kit import a_client, a_server

KEY = jose.new_key()
METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")


def claims_of(token: str) -> Any:
    body = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


@pytest.mark.parametrize(
    ("secret", "key", "method", "taken", "becomes"),
    [
        # a secret with no method, or none: what the metadata allows
        ("s", False, None, None, "client_secret_basic"),
        ("s", False, None, ("client_secret_basic", "client_secret_post"), "client_secret_basic"),
        ("s", False, None, ("client_secret_post",), "client_secret_post"),
        ("s", False, "none", ("client_secret_post", "none"), "client_secret_post"),
        ("s", False, "none", ("client_secret_basic", "none"), "client_secret_basic"),
        ("s", False, "none", ("none",), "none"),
        ("s", False, None, ("tls_client_auth",), "client_secret_basic"),
        # what is said stays
        ("s", False, "client_secret_post", ("client_secret_basic",), "client_secret_post"),
        ("s", True, "client_secret_basic", ("private_key_jwt",), "client_secret_basic"),
        # a key
        (None, True, None, ("private_key_jwt",), "private_key_jwt"),
        (None, True, None, None, "private_key_jwt"),
        (None, True, "none", ("none",), "private_key_jwt"),
        ("s", True, None, ("client_secret_post",), "client_secret_post"),
        # nothing
        (None, False, None, ("client_secret_basic",), "none"),
        ("", False, None, None, "none"),
        (None, False, "client_secret_basic", None, "client_secret_basic"),
    ],
)
def test_f11_12_the_method_fits_what_the_client_holds(
    secret: str | None, key: bool, method: Any, taken: Any, becomes: str
) -> None:
    client = a_client(
        client_secret=None if secret is None else Secret(secret),
        signing_key=KEY if key else None,
        auth_method=method,
    )
    metadata = a_server(token_endpoint_auth_methods_supported=taken)
    assert clients.normalised(client, metadata).auth_method == becomes


clients_of_all_kinds = st.builds(
    Registration,
    issuer=st.just("i"),
    client_id=st.just("c"),
    client_secret=st.none() | st.sampled_from(["", "s"]).map(Secret),
    signing_key=st.none() | st.just(KEY),
    auth_method=st.none() | st.sampled_from(METHODS),
    client_secret_expires_at=st.none() | st.sampled_from([-1.0, 0.0, 5.0]),
)
taken_methods = st.none() | st.lists(st.sampled_from(METHODS), unique=True).map(tuple)


@given(clients_of_all_kinds, taken_methods)
def test_normalising_twice_or_through_a_store_is_normalising_once(client: Registration, taken: Any) -> None:
    metadata = a_server(token_endpoint_auth_methods_supported=taken)
    once = clients.normalised(client, metadata)
    assert clients.normalised(once, metadata) == once
    assert decode_registration(encode_registration(once)) == once
    # Read without metadata first, as from a store of its own: the end is the same.
    assert clients.normalised(clients.normalised(client), metadata) == once


@given(clients_of_all_kinds, taken_methods)
def test_f11_12_never_two_methods_in_one_request(client: Registration, taken: Any) -> None:
    metadata = a_server(token_endpoint_auth_methods_supported=taken)
    form = [("grant_type", "x"), ("client_secret", "left over"), ("client_id", "other")]
    headers = {"authorization": "Bearer left-over", "Accept": "a"}
    try:
        clients.authenticate(form, headers, client, metadata, now=0.0)
    except NeedsClient:
        return
    names = [name for name, _ in form]
    used = [
        "Authorization" in headers,
        "client_secret" in names,
        "client_assertion" in names,
    ]
    assert sum(used) <= 1 and len(names) == len(set(names)) and "authorization" not in headers
    assert ("client_id" in names) is not used[0]
    assert ("grant_type", "x") in form and headers["Accept"] == "a"
    method = clients.normalised(client, metadata).auth_method
    assert used == [
        method == "client_secret_basic",
        method == "client_secret_post",
        method == "private_key_jwt",
    ]


@given(st.text(min_size=1), st.text(min_size=1))
def test_basic_form_encodes_both_halves(client_id: str, secret: str) -> None:
    try:
        f"{client_id}{secret}".encode()
    except UnicodeEncodeError:
        return
    client = a_client(client_id=client_id, client_secret=Secret(secret), auth_method="client_secret_basic")
    headers: dict[str, str] = {}
    clients.authenticate([], headers, client, a_server(), now=0.0)
    sent = base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode("ascii")
    for decode in (unquote, unquote_plus):  # servers read it as a form, or as a URL
        assert [decode(half) for half in sent.split(":")] == [client_id, secret]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"auth_method": "client_secret_basic"}, "has no secret"),
        ({"auth_method": "client_secret_post"}, "has no secret"),
        ({"auth_method": "private_key_jwt"}, "has no key"),
        ({"client_id": ""}, "no client id"),
        (
            {
                "auth_method": "client_secret_post",
                "client_secret": Secret("s"),
                "client_secret_expires_at": 100.0,
            },
            "expired",
        ),
    ],
)
def test_f11_13_what_cannot_work_is_refused_before_a_browser_opens(fields: Any, said: str) -> None:
    with pytest.raises(NeedsClient, match=said):
        clients.check_usable(clients.normalised(a_client(**fields), a_server()), 100.0)


def test_a_client_assertion_is_for_this_issuer_and_this_client_and_used_once() -> None:
    client = a_client(signing_key=KEY, auth_method="private_key_jwt")
    tokens = []
    for _ in range(2):
        form: list[tuple[str, str]] = []
        clients.authenticate(form, {}, client, a_server(), now=1000.0)
        assert dict(form)["client_assertion_type"].endswith("jwt-bearer")
        tokens.append(claims_of(dict(form)["client_assertion"]))
    assert tokens[0]["iss"] == tokens[0]["sub"] == "me"
    assert tokens[0]["aud"] == "https://as.example"
    assert tokens[0]["exp"] - tokens[0]["iat"] == 60 and tokens[0]["iat"] == 1000
    assert tokens[0]["jti"] != tokens[1]["jti"]


def pem(kind: str) -> str:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    key: Any = {
        "P-256": lambda: ECKey.generate_key("P-256"),
        "P-384": lambda: ECKey.generate_key("P-384"),
        "RSA": lambda: RSAKey.generate_key(2048),
        "Ed25519": lambda: OKPKey.generate_key("Ed25519"),
    }[kind]()
    return key.as_pem(private=True).decode()


@pytest.mark.parametrize(
    ("kind", "taken", "chosen"),
    [
        ("P-256", None, "ES256"),
        ("P-384", ("ES256", "ES384"), "ES384"),
        ("RSA", None, "RS256"),
        ("RSA", ("PS256", "ES256"), "PS256"),
        ("Ed25519", ("EdDSA",), "EdDSA"),
        ("Ed25519", ("Ed25519",), "Ed25519"),
    ],
)
def test_a_pem_signs_by_what_both_can(kind: str, taken: Any, chosen: str) -> None:
    key = jose.Key(Secret(pem(kind)))
    assert key.algorithm(taken) == chosen
    token = key.sign({"a": 1}, algorithm=chosen).reveal()
    head = token.split(".")[0]
    assert json.loads(base64.urlsafe_b64decode(head + "=="))["alg"] == chosen


def test_a_key_may_be_held_to_one_algorithm() -> None:
    for secret, chosen in ((Secret(pem("RSA")), "PS384"), (Secret(pem("P-256")), "ES256"), (KEY, "ES256")):
        held = jose.signing_by(secret, chosen)
        key = jose.Key(held)
        assert (key.algorithms, key.thumbprint) == ((chosen,), jose.Key(secret).thumbprint)
        assert jose.signing_by(held, chosen) == held
        with pytest.raises(AuthFault, match=f"signs by {chosen}, not by RS256"):
            jose.signing_by(held, "RS256")
    with pytest.raises(AuthFault, match="takes signatures by RS256"):
        jose.Key(jose.signing_by(Secret(pem("RSA")), "PS256")).algorithm(("RS256",))


def test_a_key_that_cannot_serve_is_refused_without_showing_it() -> None:
    with pytest.raises(AuthFault, match="takes signatures by RS256"):
        jose.Key(KEY).algorithm(("RS256",))
    for text in (
        "nothing",
        "{",
        '{"kty":"oct","k":"c2VjcmV0"}',
        '{"kty":"EC","crv":"P-256"}',
        "-----BEGIN X-----",
    ):
        with pytest.raises(AuthFault) as caught:
            jose.Key(Secret(text))
        assert caught.value.__context__ is None  # which might quote it
    public = json.dumps(jose.Key(KEY).public)
    with pytest.raises(AuthFault, match="private"):
        jose.Key(Secret(public))
