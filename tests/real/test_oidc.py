"""Registration, grants, DPoP and authorization requests against oidc-provider: certified, and not forgiving."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from moorings._secret import Secret
from moorings.auth import dpop, grants, jose
from moorings.auth.authorization import AuthorizationRequest, push
from moorings.auth.faults import GrantError, LoginDenied, NeedsClient
from moorings.auth.registration import client_document, register, unregister
from tests.auth.grants_kit import REDIRECT, Settings, plain_http, soon
from tests.real.logins import a_login, authorized, metadata_of, refreshed
from tests.real.oidc import Browser

pytestmark = pytest.mark.real

HARD = "s+/=%&: ~*'\""
KEY = jose.new_key()
MACHINE = {"redirect_uris": [], "response_types": [], "grant_types": ["client_credentials"]}


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
@pytest.mark.parametrize("path", ["", "/tenant/one"])
async def test_f11_12_a_whole_login_with_rotation_and_the_end_of_a_reused_family(
    provider_with: Any, method: Any, path: str
) -> None:
    with provider_with(path=path, methods=[method]) as provider:
        async with a_login(provider) as (http, metadata, client, first):
            assert client.auth_method == method and client.source == "dynamic"
            assert provider.ask(first.access_token.reveal())[::2] == (
                200,
                {"client": client.client_id, "scope": "a"},
            )
            # As it may have been stored by somebody else: without its method.
            bare = msgspec.structs.replace(client, auth_method=None)
            second = await refreshed(provider, http, metadata, bare, first.refresh_token)
            assert second.refresh_token not in (None, first.refresh_token)
            assert provider.ask(second.access_token.reveal())[0] == 200
            with pytest.raises(GrantError) as caught:
                await refreshed(provider, http, metadata, client, first.refresh_token)
            assert caught.value.code == "invalid_grant" and not caught.value.transient
            assert provider.facts()["revokedFamilies"] == 1
            with pytest.raises(GrantError, match="invalid_grant"):
                await refreshed(provider, http, metadata, client, second.refresh_token)


async def test_f11_6_a_server_that_forgot_its_clients(provider_with: Any) -> None:
    with provider_with(methods=["client_secret_post"]) as provider:
        async with a_login(provider) as (http, metadata, client, first):
            provider.lever("forget-clients")
            with pytest.raises(GrantError) as caught:
                await refreshed(provider, http, metadata, client, first.refresh_token)
            assert (caught.value.code, caught.value.transient) == ("invalid_client", False)
            assert client.client_secret and client.client_secret.reveal() not in str(caught.value)


async def test_f10_2_a_503_once_and_a_dropped_answer(provider_with: Any) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            provider.lever("fail", times=1, status=503)
            with pytest.raises(GrantError) as caught:
                await refreshed(provider, http, metadata, client, first.refresh_token)
            assert (caught.value.code, caught.value.transient, caught.value.status) == ("http", True, 503)
            second = await refreshed(provider, http, metadata, client, first.refresh_token)
            provider.lever("drop")
            with pytest.raises(GrantError) as caught:
                await refreshed(provider, http, metadata, client, second.refresh_token)
            assert (caught.value.code, caught.value.transient, caught.value.sent) == ("network", True, True)
            # It was carried out: this is the one way in which a login is lost, and it is told as what it is.
            with pytest.raises(GrantError, match="invalid_grant"):
                await refreshed(provider, http, metadata, client, second.refresh_token)


@pytest.mark.parametrize("method", ["none", "private_key_jwt"])
async def test_a_client_document_is_all_a_client_needs(provider_with: Any, method: Any) -> None:
    keys = "https://client.example/keys.json" if method == "private_key_jwt" else None
    settings = Settings(
        client_metadata_url="https://client.example/moorings.json", auth_method=method if keys else None
    )
    hosted = {settings.client_metadata_url: client_document(settings, [REDIRECT], jwks_uri=keys)}
    if keys:
        hosted[keys] = {"keys": [jose.Key(KEY).public]}
    with provider_with(documents=hosted) as provider:
        async with a_login(provider, settings=settings, signing_key=KEY if keys else None) as login:
            http, metadata, client, first = login
            assert (client.client_id, client.source) == (settings.client_metadata_url, "cimd")
            assert client.auth_method == method
            assert await refreshed(provider, http, metadata, client, first.refresh_token)
            assert provider.facts()["registered"] == 0


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "private_key_jwt"])
async def test_f11_12_client_credentials_with_hard_secrets_and_with_a_key(
    provider_with: Any, method: Any
) -> None:
    known = {**MACHINE, "client_id": "machine:1", "token_endpoint_auth_method": method}
    if method == "private_key_jwt":
        known["jwks"] = {"keys": [jose.Key(KEY).public]}
    else:
        known["client_secret"] = HARD
    with provider_with(clients=[known]) as provider:
        metadata = metadata_of(provider)
        settings = Settings(
            client_id="machine:1",
            client_secret=Secret(HARD) if "secret" in method else None,
            auth_method=method,
        )
        async with plain_http() as http:
            client = await register(
                http, metadata, settings, "", soon(), signing_key=KEY if method == "private_key_jwt" else None
            )
            tokens = await grants.client_credentials(
                http, metadata, client, scopes=("a", "b"), resource=provider.resource, deadline=soon()
            )
        assert tokens.scopes == ("a", "b") and tokens.refresh_token is None
        assert provider.ask(tokens.access_token.reveal())[2] == {"client": "machine:1", "scope": "a b"}


async def test_f11_11_a_login_for_a_resource_that_the_server_does_not_know(provider_with: Any) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, _):
            with pytest.raises(LoginDenied, match=r'auth\.resource = "off"') as caught:
                await authorized(http, metadata, client, resource="https://other.example/mcp", scopes=("a",))
            assert caught.value.code == "invalid_target"
            tokens = await authorized(http, metadata, client, resource=None, scopes=("offline_access",))
            assert provider.ask(tokens.access_token.reveal())[0] == 401  # it is a token, and not for this


async def test_f11_14_two_resources_of_one_server_have_tokens_that_never_cross(provider_with: Any) -> None:
    other = "https://other.example/mcp"
    with provider_with(resources=[other]) as provider:
        async with a_login(provider) as (http, metadata, client, first):
            tokens = await authorized(http, metadata, client, resource=other, scopes=("a", "offline_access"))
            assert provider.ask(tokens.access_token.reveal())[0] == 401
            assert provider.ask(first.access_token.reveal())[0] == 200
            with pytest.raises(GrantError) as caught:
                await refreshed(provider, http, metadata, client, tokens.refresh_token)
            assert caught.value.code == "invalid_target"
            again = await refreshed(provider, http, metadata, client, first.refresh_token)
            assert provider.ask(again.access_token.reveal())[0] == 200


async def test_f11_9_more_scopes_are_had_by_a_new_authorization_and_never_by_a_refresh(
    provider_with: Any,
) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            with pytest.raises(GrantError) as caught:
                await refreshed(
                    provider, http, metadata, client, first.refresh_token, scopes=("a", "b", "offline_access")
                )
            assert caught.value.code == "invalid_scope"
            more = ("a", "offline_access", "b")
            wider = await authorized(http, metadata, client, resource=provider.resource, scopes=more)
            assert provider.ask(wider.access_token.reveal())[2]["scope"] == "a b"
            again = await refreshed(provider, http, metadata, client, wider.refresh_token)
            assert provider.ask(again.access_token.reveal())[2]["scope"] == "a b"


async def test_f11_9_a_client_that_is_held_to_its_scopes_does_not_stand_in_the_way_of_more(
    provider_with: Any,
) -> None:
    with provider_with(heldToScopes=True) as provider:
        metadata = metadata_of(provider)
        few, more = ("a", "offline_access"), ("a", "b", "offline_access")
        async with plain_http() as http:
            client = await register(http, metadata, Settings(), REDIRECT, soon(), scopes=few)
            with pytest.raises(LoginDenied) as caught:
                await authorized(http, metadata, client, resource=provider.resource, scopes=more)
            assert caught.value.code == "invalid_scope"
            wider = await register(
                http, metadata, Settings(), REDIRECT, soon(), stored=client, scopes=more, also=("c",)
            )
            assert wider.client_id != client.client_id and wider.scope == "a b offline_access c"
            assert await authorized(http, metadata, wider, resource=provider.resource, scopes=more)
            # It was registered for all that the resource has, so that the next one is for nothing.
            for scopes in (few, ("c",)):
                same = await register(
                    http, metadata, Settings(), REDIRECT, soon(), stored=wider, scopes=scopes
                )
                assert same == wider
            assert provider.facts()["registered"] == 2


async def test_a_registration_whose_scopes_are_refused_is_made_without_them(provider_with: Any) -> None:
    with provider_with() as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            client = await register(http, metadata, Settings(), REDIRECT, soon(), scopes=("nothing", "a"))
            assert client.client_id and provider.facts()["registered"] == 1
            assert any("registration_create.error" in each for each in provider.facts()["errors"])
            tokens = await authorized(http, metadata, client, resource=provider.resource, scopes=("a", "b"))
            assert tokens.scopes == ("a", "b")


async def test_a_code_without_its_verifier_or_a_second_time_is_worth_nothing(provider_with: Any) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, _):
            browser = Browser()

            async def exchanged(verifier: Secret | None = None, times: int = 1) -> grants.TokenSet:
                begun = AuthorizationRequest.begin(
                    metadata, client, redirect_uri=REDIRECT, resource=provider.resource, scopes=("a",)
                )
                code = begun.finish(browser.visit(begun.url, REDIRECT))
                for _ in range(times):
                    tokens = await grants.exchange_code(
                        http,
                        metadata,
                        client,
                        code=code,
                        verifier=verifier or begun.verifier,
                        redirect_uri=REDIRECT,
                        resource=provider.resource,
                        deadline=soon(),
                    )
                return tokens

            assert await exchanged()
            for wrong in ({"verifier": Secret("v" * 43)}, {"times": 2}):
                with pytest.raises(GrantError) as caught:
                    await exchanged(**wrong)  # type: ignore[arg-type]
                assert (caught.value.code, caught.value.transient) == ("invalid_grant", False)


async def test_f11_11_a_resource_that_the_server_does_not_know(provider_with: Any) -> None:
    known = {
        **MACHINE,
        "client_id": "m",
        "client_secret": "s",
        "token_endpoint_auth_method": "client_secret_post",
    }
    with provider_with(clients=[known]) as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            settings = Settings(client_id="m", client_secret=Secret("s"), auth_method="client_secret_post")
            client = await register(http, metadata, settings, "", soon())
            with pytest.raises(GrantError, match=r'auth\.resource = "off"') as caught:
                await grants.client_credentials(
                    http, metadata, client, scopes=(), resource="https://other.example", deadline=soon()
                )
            assert caught.value.code == "invalid_target"


@pytest.mark.parametrize(("nonces", "apart"), [(False, False), (True, False), (True, True)])
async def test_dpop_binds_tokens_to_a_key_with_nonces_of_both_servers(
    provider_with: Any, nonces: bool, apart: bool
) -> None:
    with provider_with(nonces=nonces, apart=apart) as provider:
        known, secret = dpop.Nonces(), dpop.new_key()
        prover = dpop.Prover(secret, known)
        async with a_login(provider, prover=prover) as (http, metadata, client, first):
            assert first.token_type == "DPoP"
            second = await refreshed(provider, http, metadata, client, first.refresh_token, prover=prover)
            assert second.token_type == "DPoP"

            def ask(prover: dpop.Prover, scheme: str = "DPoP") -> tuple[int, Any, Any]:
                token = second.access_token
                proof = prover.proof("GET", provider.resource, now=time.time(), access_token=token)
                return provider.ask(token.reveal(), scheme, proof.reveal())

            if nonces:
                # Where both are one origin, the resource's nonce takes the place of the other server's.
                assert (known.get(provider.resource) is None) == apart
                status, headers, _ = ask(prover)
                assert status == 401 and "use_dpop_nonce" in headers["WWW-Authenticate"]
                assert known.learn(provider.resource, headers)
                assert ask(prover)[0] == 200
                provider.lever("new-nonce")
                status, headers, _ = ask(prover)
                assert status == 401 and known.learn(provider.resource, headers)
            if apart:
                before = provider.facts()["token"]
                second = await refreshed(
                    provider, http, metadata, client, second.refresh_token, prover=prover
                )
                assert provider.facts()["token"] == before + 1  # its own nonce was still known
            assert ask(prover)[0] == 200
            assert ask(prover)[0] == 200  # a proof of its own each time
            assert ask(prover, "Bearer")[0] == 401
            assert ask(dpop.Prover(dpop.new_key(), known))[0] == 401
            again = dpop.Prover(Secret(secret.reveal()), known)
            assert ask(again)[0] == 200
            # A public client's refresh token is bound to the key, too.
            with pytest.raises(GrantError):
                stranger = dpop.Prover(dpop.new_key(), known)
                await refreshed(provider, http, metadata, client, second.refresh_token, prover=stranger)


async def test_f12_12_a_device_login(provider_with: Any) -> None:
    with provider_with() as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            client = await register(http, metadata, Settings(), "", soon())
            device = await grants.device_begin(
                http, metadata, client, scopes=("openid", "offline_access"), resource=None, deadline=soon()
            )
            pauses = 0

            async def pause(seconds: float) -> None:
                nonlocal pauses
                pauses += 1
                if pauses == 2:
                    said = Browser().visit(device.verification_uri_complete)
                    assert "Success" in said, said

            tokens = await grants.device_wait(
                http, metadata, client, device, resource=None, deadline=soon(60), pause=pause
            )
            assert pauses == 2 and tokens.refresh_token and tokens.id_token


async def test_a_logout_revokes_and_deletes(provider_with: Any) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            assert first.refresh_token is not None
            assert await grants.revoke(
                http, metadata, client, token=first.refresh_token, hint="refresh_token", deadline=soon()
            )
            assert provider.ask(first.access_token.reveal())[0] == 401
            assert await unregister(http, client, metadata, soon()) == "deleted"
            assert provider.facts()["deleted"] == 1


async def test_a_person_who_says_no(provider_with: Any) -> None:
    with provider_with() as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            client = await register(http, metadata, Settings(), REDIRECT, soon())
            request = AuthorizationRequest.begin(
                metadata, client, redirect_uri=REDIRECT, resource=provider.resource, scopes=("a",)
            )
            callback = Browser(refuses=True).visit(request.url, REDIRECT)
            with pytest.raises(LoginDenied) as caught:
                request.finish(callback)
            assert caught.value.code == "access_denied" and "iss=" in callback


async def test_a_pushed_request_and_a_redirect_uri_that_is_refused(provider_with: Any) -> None:
    with provider_with() as provider:
        metadata = metadata_of(provider)
        async with plain_http() as http:
            with pytest.raises(NeedsClient, match="redirect URI") as caught:
                await register(http, metadata, Settings(), "http://127.0.0.1:1/#x", soon())
            assert "auth.redirect" in str(caught.value)
            client = await register(http, metadata, Settings(), REDIRECT, soon())
            request = AuthorizationRequest.begin(
                metadata, client, redirect_uri=REDIRECT, resource=provider.resource, scopes=("a",)
            )
            pushed = await push(http, metadata, client, request, soon())
            assert "code_challenge" not in pushed.url
            code = pushed.finish(Browser().visit(pushed.url, REDIRECT))
            assert await grants.exchange_code(
                http,
                metadata,
                client,
                code=code,
                verifier=pushed.verifier,
                redirect_uri=REDIRECT,
                resource=provider.resource,
                deadline=soon(),
            )


async def test_f16_5_no_secret_of_a_login_is_shown(
    provider_with: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with provider_with(methods=["client_secret_post"]) as provider:
        async with a_login(provider) as (_, _, client, tokens):
            hidden = [tokens.access_token, tokens.refresh_token, client.client_secret]
            print(client, tokens, json.dumps(msgspec.to_builtins(client.extra)))
            out = "".join(capfd.readouterr())
            for secret in hidden:
                assert secret is not None and secret.reveal() not in out
