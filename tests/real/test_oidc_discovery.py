"""From the 401 of a resource to tokens of oidc-provider, with its metadata in every shape in which servers have it."""

from __future__ import annotations

from typing import Any

import pytest

from moorings.auth import grants, jose
from moorings.auth.discovery import DiscoveryFault
from moorings.auth.faults import GrantError, NeedsClient
from moorings.auth.registration import register
from tests.auth.grants_kit import REDIRECT, Settings, plain_http, soon
from tests.real.logins import a_login, authorized, found
from tests.real.oidc import Provider

pytestmark = pytest.mark.real

SCOPES = ("a", "offline_access")


async def token_for(
    provider: Provider, http: Any, at: Any, scopes: tuple[str, ...] = SCOPES
) -> grants.TokenSet:
    """Registered and logged in with what was discovered, and good at the resource."""
    client = await register(http, at.metadata, Settings(), REDIRECT, soon())
    tokens = await authorized(http, at.metadata, client, resource=at.resource_param, scopes=scopes)
    assert provider.ask(tokens.access_token.reveal())[0] == 200
    return tokens


@pytest.mark.parametrize(
    ("said_at", "path", "place", "at", "missed"),
    [
        ("challenge", "", "oauth", "/.well-known/oauth-authorization-server", 0),
        ("path", "", "openid-appended", "/.well-known/openid-configuration", 1),
        ("root", "/tenant/one", "oauth", "/.well-known/oauth-authorization-server/tenant/one", 0),
        ("path", "/tenant/one", "openid-inserted", "/.well-known/openid-configuration/tenant/one", 1),
        ("root", "/tenant/one", "openid-appended", "/tenant/one/.well-known/openid-configuration", 2),
    ],
)
async def test_f11_2_metadata_in_every_shape_leads_to_a_token(
    provider_with: Any, said_at: str, path: str, place: str, at: str, missed: int
) -> None:
    with provider_with(path=path, places=[place], resourcePlaces=[said_at]) as provider:
        async with plain_http() as http:
            there = await found(http, provider)
            assert (there.issuer, there.metadata.issuer) == (provider.issuer, provider.issuer)
            assert there.metadata.source == provider.origin + at and not there.legacy
            server = [each for each in there.tried if each.document == "server metadata"]
            assert [each.status for each in server] == [404] * missed
            said = provider.origin if said_at == "root" else provider.resource
            assert (there.resource, there.resource_param) == (provider.resource, said)
            assert there.scopes_hint == ("a", "b", "c", "offline_access")
            await token_for(provider, http, there, there.scopes_hint)


async def test_f11_1_a_slash_more_is_refused_and_the_setting_of_the_message_lets_it_pass(
    provider_with: Any,
) -> None:
    machine = {
        "redirect_uris": [],
        "response_types": [],
        "grant_types": ["client_credentials"],
        "client_id": "machine",
        "token_endpoint_auth_method": "private_key_jwt",
    }
    key = jose.new_key()
    known = {**machine, "jwks": {"keys": [jose.Key(key).public]}}
    with provider_with(slash=True, clients=[known]) as provider:
        async with plain_http() as http:
            with pytest.raises(DiscoveryFault) as caught:
                await found(http, provider)
            said = provider.issuer + "/"
            assert (caught.value.kind, caught.value.transient) == ("issuer-mismatch", False)
            assert f'auth.accept_issuer = "{said}"' in str(caught.value)
            there = await found(http, provider, accept_issuer=said)
            assert (there.issuer, there.metadata.issuer) == (provider.issuer, said)
            # Its callbacks and the assertions for it say what it says itself.
            await token_for(provider, http, there)
            settings = Settings(client_id="machine", auth_method="private_key_jwt")
            client = await register(http, there.metadata, settings, "", soon(), signing_key=key)
            assert await grants.client_credentials(
                http, there.metadata, client, scopes=("a",), resource=provider.resource, deadline=soon()
            )


async def test_a_resource_and_its_authorization_server_on_two_origins(provider_with: Any) -> None:
    with provider_with(path="/tenant", apart=True) as provider:
        async with plain_http() as http:
            there = await found(http, provider)
            assert there.issuer == provider.issuer and provider.origin not in there.resource
            tokens = await token_for(provider, http, there)
            assert tokens.refresh_token


async def test_f11_3_what_nobody_names_is_named_by_hand(provider_with: Any) -> None:
    with provider_with(path="/tenant", apart=True, resourcePlaces=[]) as provider:
        async with plain_http() as http:
            with pytest.raises(DiscoveryFault, match=r"set auth\.issuer") as caught:
                await found(http, provider)
            assert (caught.value.kind, caught.value.transient) == ("no-metadata", False)
            assert provider.facts()["registered"] == 0
            there = await found(http, provider, issuer=provider.issuer)
            assert (there.resource_param, there.legacy) == (provider.resource, False)
            await token_for(provider, http, there)


async def test_a_server_of_2025_03_26_is_its_own_authorization_server(provider_with: Any) -> None:
    with provider_with(resourcePlaces=[]) as provider:
        async with plain_http() as http:
            there = await found(http, provider)
            assert there.legacy and there.issuer == provider.origin
            await token_for(provider, http, there)


@pytest.mark.parametrize("at", ["metadata", "resource"])
async def test_f10_2_a_document_that_answers_503_once_is_not_taken_for_absent(
    provider_with: Any, at: str
) -> None:
    # Each has but one place, so that no other can answer for it.
    with provider_with(places=["oauth"], resourcePlaces=["path"]) as provider:
        async with plain_http() as http:
            provider.lever("fail", at=at, times=1, status=503, after=7)
            with pytest.raises(DiscoveryFault) as caught:
                await found(http, provider)
            assert (caught.value.kind, caught.value.transient) == ("unreachable", True)
            assert caught.value.retry_after == 7
            there = await found(http, provider)
            provider.lever("fail", at="reg", times=1, status=503, after=7)
            with pytest.raises(GrantError) as refused:
                await token_for(provider, http, there)
            assert (refused.value.transient, refused.value.retry_after) == (True, 7)
            await token_for(provider, http, there)
            assert provider.facts()["registered"] == 1


async def test_f11_3_a_registration_endpoint_that_registers_nobody(provider_with: Any) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, _, _):
            for status in (403, 404):
                provider.lever("fail", at="reg", times=1, status=status)
                with pytest.raises(NeedsClient, match=rf"HTTP {status}.*set auth\.client_id"):
                    await register(http, metadata, Settings(), REDIRECT, soon())
