"""The second opinion: the same parts of ``auth`` against better-auth, which shares no code with oidc-provider.

What it does in its own way: its issuer has a path; tokens for a resource are JWTs, which it does not revoke; a resource
must be one that it knows; loopback redirects are for native clients alone; what a client sent wrongly is a 400 or a
401, by the way in which the client authenticates.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from moorings._secret import Secret
from moorings.auth import dpop, grants, jose
from moorings.auth.authorization import AuthorizationRequest
from moorings.auth.faults import GrantError, LoginDenied, NeedsClient
from moorings.auth.model import AuthMethod
from moorings.auth.registration import client_document, register, unregister
from tests.auth.grants_kit import REDIRECT, Settings, plain_http, soon
from tests.real.logins import a_login, authorized, found, metadata_of, refreshed
from tests.real.oidc import Browser

pytestmark = pytest.mark.real

HARD = "s+/=%&: ~*'\""
KEY = jose.new_key()
METHODS: tuple[AuthMethod, ...] = ("none", "client_secret_basic", "client_secret_post")


@pytest.mark.parametrize(("path", "openid"), [("/api/auth", True), ("/a/tenant/of/many", False)])
async def test_it_is_discovered_from_the_401_of_its_resource(
    better_auth_with: Any, path: str, openid: bool
) -> None:
    with better_auth_with(path=path, openid=openid) as provider:
        async with plain_http() as http:
            there = await found(http, provider)
            assert there.issuer == there.metadata.issuer == provider.origin + path
            assert there.metadata.source == f"{provider.origin}/.well-known/oauth-authorization-server{path}"
            assert (there.notes, there.tried, there.legacy) == ((), (), False)
            assert there.scopes_hint == ("a", "b", "offline_access")
            client = await register(http, there.metadata, Settings(), REDIRECT, soon())
            tokens = await authorized(
                http, there.metadata, client, resource=there.resource_param, scopes=there.scopes_hint
            )
            assert tokens.refresh_token
            assert provider.ask(tokens.access_token.reveal())[0] == 200


async def test_f11_12_a_whole_login_with_rotation_and_the_end_of_a_reused_family(
    better_auth_with: Any,
) -> None:
    with better_auth_with(secret=HARD) as provider:
        for method in METHODS:
            async with a_login(provider, settings=Settings(auth_method=method)) as login:
                http, metadata, client, first = login
                assert (client.auth_method, client.source) == (method, "dynamic")
                secret = client.client_secret and client.client_secret.reveal()
                assert secret == (None if method == "none" else HARD)
                assert provider.ask(first.access_token.reveal())[2]["client"] == client.client_id
                second = await refreshed(provider, http, metadata, client, first.refresh_token)
                assert second.refresh_token not in (None, first.refresh_token)
                assert provider.ask(second.access_token.reveal())[0] == 200
                for token in (first.refresh_token, second.refresh_token):
                    with pytest.raises(GrantError) as caught:
                        await refreshed(provider, http, metadata, client, token)
                    assert (caught.value.code, caught.value.transient) == ("invalid_grant", False)


@pytest.mark.parametrize("method", ["none", "private_key_jwt"])
async def test_a_client_document_is_all_a_client_needs(better_auth_with: Any, method: Any) -> None:
    keys = "https://client.example/keys.json" if method == "private_key_jwt" else None
    settings = Settings(
        client_metadata_url="https://client.example/moorings.json", auth_method=method if keys else None
    )
    hosted = {settings.client_metadata_url: client_document(settings, [REDIRECT], jwks_uri=keys)}
    if keys:
        hosted[keys] = {"keys": [jose.Key(KEY).public]}
    with better_auth_with(documents=hosted) as provider:
        async with a_login(provider, settings=settings, signing_key=KEY if keys else None) as login:
            http, metadata, client, first = login
            assert (client.client_id, client.source) == (settings.client_metadata_url, "cimd")
            assert client.auth_method == method
            again = await refreshed(provider, http, metadata, client, first.refresh_token)
            assert provider.ask(again.access_token.reveal())[0] == 200
            assert provider.facts()["registered"] == 0


async def test_f11_12_client_credentials_with_hard_secrets_and_with_a_key(better_auth_with: Any) -> None:
    machines: list[dict[str, Any]] = [
        {
            "grant_types": ["client_credentials"],
            "response_types": [],
            "token_endpoint_auth_method": method,
            "scope": "a b",
            "client_credentials_scopes": ["a", "b"],
        }
        for method in ("client_secret_basic", "client_secret_post", "private_key_jwt")
    ]
    machines[-1]["jwks"] = {"keys": [jose.Key(KEY).public]}
    with better_auth_with(secret=HARD, clients=machines) as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            for made in provider.lever("clients"):
                method = made["token_endpoint_auth_method"]
                keyed = method == "private_key_jwt"
                settings = Settings(
                    client_id=made["client_id"],
                    client_secret=None if keyed else Secret(HARD),
                    auth_method=method,
                )
                client = await register(
                    http, metadata, settings, "", soon(), signing_key=KEY if keyed else None
                )
                tokens = await grants.client_credentials(
                    http, metadata, client, scopes=("a", "b"), resource=provider.resource, deadline=soon()
                )
                assert tokens.scopes == ("a", "b") and tokens.refresh_token is None
                said = {"client": client.client_id, "scope": "a b"}
                assert provider.ask(tokens.access_token.reveal())[2] == said
                with pytest.raises(GrantError, match=r'auth\.resource = "off"') as caught:
                    await grants.client_credentials(
                        http, metadata, client, scopes=(), resource="https://other.example", deadline=soon()
                    )
                assert caught.value.code == "invalid_target"


async def test_f11_11_a_login_for_a_resource_that_the_server_does_not_know(better_auth_with: Any) -> None:
    with better_auth_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            with pytest.raises(LoginDenied, match=r'auth\.resource = "off"') as caught:
                await authorized(http, metadata, client, resource="https://other.example/mcp", scopes=("a",))
            assert caught.value.code == "invalid_target"
            with pytest.raises(GrantError) as refused:
                await grants.refresh(
                    http,
                    metadata,
                    client,
                    refresh_token=first.refresh_token,
                    resource="https://other.example/mcp",
                    deadline=soon(),
                )
            assert refused.value.code == "invalid_target"
            again = await refreshed(provider, http, metadata, client, first.refresh_token)
            assert provider.ask(again.access_token.reveal())[0] == 200
            tokens = await authorized(http, metadata, client, resource=None, scopes=("a",))
            assert provider.ask(tokens.access_token.reveal())[0] == 401  # it is a token, and not for this


async def test_f11_9_more_scopes_are_had_by_a_new_authorization_and_never_by_a_refresh(
    better_auth_with: Any,
) -> None:
    with better_auth_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            more = ("a", "offline_access", "b")
            with pytest.raises(GrantError) as caught:
                await refreshed(provider, http, metadata, client, first.refresh_token, scopes=more)
            assert caught.value.code == "invalid_scope"
            wider = await authorized(http, metadata, client, resource=provider.resource, scopes=more)
            assert set(wider.scopes or ()) == set(more)
            with pytest.raises(LoginDenied, match=r"set auth\.scopes") as denied:
                await authorized(http, metadata, client, resource=provider.resource, scopes=("zzz",))
            assert denied.value.code == "invalid_scope"


async def test_dpop_binds_tokens_to_a_key(better_auth_with: Any) -> None:
    with better_auth_with() as provider:
        prover = dpop.Prover(dpop.new_key(), dpop.Nonces())
        stranger = dpop.Prover(dpop.new_key(), dpop.Nonces())
        async with a_login(provider, prover=prover) as (http, metadata, client, first):
            assert first.token_type == "DPoP"
            # Whoever else has the token has nothing, and the attempt harms nobody.
            with pytest.raises(GrantError):
                await refreshed(provider, http, metadata, client, first.refresh_token, prover=stranger)
            second = await refreshed(provider, http, metadata, client, first.refresh_token, prover=prover)
            token = second.access_token

            def ask(prover: dpop.Prover, scheme: str = "DPoP") -> int:
                proof = prover.proof("GET", provider.resource, now=time.time(), access_token=token)
                return provider.ask(token.reveal(), scheme, proof.reveal())[0]

            assert [ask(prover), ask(prover), ask(stranger), ask(prover, "Bearer")] == [200, 200, 401, 401]


async def test_a_code_without_its_verifier_is_burnt(better_auth_with: Any) -> None:
    with better_auth_with() as provider:
        async with a_login(provider) as (http, metadata, client, _):
            begun = AuthorizationRequest.begin(
                metadata, client, redirect_uri=REDIRECT, resource=provider.resource, scopes=("a",)
            )
            code = begun.finish(Browser().visit(begun.url, REDIRECT))
            for verifier in (Secret("v" * 43), begun.verifier):
                with pytest.raises(GrantError) as caught:
                    await grants.exchange_code(
                        http,
                        metadata,
                        client,
                        code=code,
                        verifier=verifier,
                        redirect_uri=REDIRECT,
                        resource=provider.resource,
                        deadline=soon(),
                    )
                assert not caught.value.transient


async def test_f11_6_a_server_that_forgot_its_clients(better_auth_with: Any) -> None:
    with better_auth_with() as provider:
        for method, status in zip(METHODS, (400, 401, 400), strict=True):
            async with a_login(provider, settings=Settings(auth_method=method)) as login:
                http, metadata, client, first = login
                provider.lever("forget-clients")
                with pytest.raises(GrantError) as caught:
                    await refreshed(provider, http, metadata, client, first.refresh_token)
                error = caught.value
                assert (error.code, error.transient, error.status) == ("invalid_client", False, status)
                # A login with that client ends at a page of the server: no callback will ever come.
                begun = AuthorizationRequest.begin(
                    metadata, client, redirect_uri=REDIRECT, resource=provider.resource, scopes=("a",)
                )
                assert not Browser().visit(begun.url, REDIRECT).startswith(REDIRECT)
                fresh = await register(http, metadata, Settings(), REDIRECT, soon())
                tokens = await authorized(http, metadata, fresh, resource=provider.resource, scopes=("a",))
                assert provider.ask(tokens.access_token.reveal())[0] == 200


async def test_f11_6_a_server_that_forgot_all_refuses_the_token_and_not_the_client(
    better_auth_with: Any,
) -> None:
    with better_auth_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            pass
    with better_auth_with(port=provider.port) as again:
        async with plain_http() as http:
            # It looks for the token first: that the client is gone, too, shows nowhere but in front of a person.
            with pytest.raises(GrantError) as caught:
                await refreshed(again, http, metadata, client, first.refresh_token)
            assert (caught.value.code, caught.value.transient) == ("invalid_grant", False)


async def test_a_person_who_says_no(better_auth_with: Any) -> None:
    with better_auth_with() as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            client = await register(http, metadata, Settings(), REDIRECT, soon())
            with pytest.raises(LoginDenied) as caught:
                await authorized(
                    http,
                    metadata,
                    client,
                    resource=provider.resource,
                    scopes=("a",),
                    browser=Browser(refuses=True),
                )
            assert caught.value.code == "access_denied"


async def test_a_logout_revokes_what_can_be_revoked(better_auth_with: Any) -> None:
    with better_auth_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            assert first.refresh_token is not None
            # A JWT that its resource reads by itself: the server says that there is no way (RFC 7009 §2.2.1).
            assert not await grants.revoke(
                http, metadata, client, token=first.access_token, hint="access_token", deadline=soon()
            )
            assert await grants.revoke(
                http, metadata, client, token=first.refresh_token, hint="refresh_token", deadline=soon()
            )
            with pytest.raises(GrantError, match="invalid_grant"):
                await refreshed(provider, http, metadata, client, first.refresh_token)
            assert await unregister(http, client, metadata, soon()) == "not_offered"


async def test_what_a_registration_is_refused_for_is_mended_or_explained(better_auth_with: Any) -> None:
    with better_auth_with() as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            for redirect in ("http://127.0.0.1:1/#x", "http://client.example/callback"):
                with pytest.raises(NeedsClient, match="does not register the redirect URI") as caught:
                    await register(http, metadata, Settings(), redirect, soon())
                assert "auth.redirect" in str(caught.value)
            before = provider.facts()["registered"]
            client = await register(http, metadata, Settings(), REDIRECT, soon(), scopes=("nothing", "a"))
            assert client.client_id and provider.facts()["registered"] == before + 2


async def test_f12_12_a_device_login_that_is_told_to_slow_down(better_auth_with: Any) -> None:
    with better_auth_with() as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            client = await register(http, metadata, Settings(), "", soon())
            device = await grants.device_begin(
                http,
                metadata,
                client,
                scopes=("a", "offline_access"),
                resource=provider.resource,
                deadline=soon(),
            )
            asked: list[float] = []

            async def pause(seconds: float) -> None:
                asked.append(seconds)
                if len(asked) == 3:
                    provider.lever("approve", code=device.user_code)
                    await asyncio.sleep(device.interval)  # the server measures it, too

            tokens = await grants.device_wait(
                http, metadata, client, device, resource=provider.resource, deadline=soon(60), pause=pause
            )
            assert asked == [1.0, 1.0, 6.0] and tokens.refresh_token
            assert provider.ask(tokens.access_token.reveal())[0] == 200
