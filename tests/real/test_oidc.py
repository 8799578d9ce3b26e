"""Registration, grants, DPoP and authorization requests against oidc-provider: certified, and not forgiving."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorings._secret import Secret
from moorings.auth import dpop, grants, jose
from moorings.auth.authorization import AuthorizationRequest, push
from moorings.auth.faults import GrantError, LoginDenied, NeedsClient
from moorings.auth.http import AuthHttp
from moorings.auth.model import Registration, ServerMetadata, read_server_metadata
from moorings.auth.registration import client_document, register, unregister
from tests.auth.grants_kit import REDIRECT, Settings, plain_http, soon
from tests.real.oidc import Browser, Provider, oidc_provider

pytestmark = pytest.mark.real

HARD = "s+/=%&: ~*'\""
KEY = jose.new_key()
MACHINE = {"redirect_uris": [], "response_types": [], "grant_types": ["client_credentials"]}


@pytest.fixture
def provider_with(real_server: Callable[..., list[str]], tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def held(**options: Any) -> Iterator[Provider]:
        with oidc_provider(real_server, tmp_path, **options) as provider:
            yield provider

    return held


def metadata_of(provider: Provider) -> ServerMetadata:
    metadata = read_server_metadata(provider.metadata())
    assert metadata is not None and metadata.issuer == provider.issuer and metadata.problems == ()
    return metadata


@asynccontextmanager
async def a_login(
    provider: Provider,
    *,
    settings: Settings | None = None,
    prover: dpop.Prover | None = None,
    scopes: tuple[str, ...] = ("a", "offline_access"),
    metadata: ServerMetadata | None = None,
) -> AsyncIterator[tuple[AuthHttp, ServerMetadata, Registration, grants.TokenSet]]:
    """Somebody registered, signed in and said yes."""
    metadata = metadata or metadata_of(provider)
    async with plain_http() as http:
        client = await register(http, metadata, settings or Settings(), REDIRECT, soon())
        request = AuthorizationRequest.begin(
            metadata,
            client,
            redirect_uri=REDIRECT,
            resource=provider.resource,
            scopes=scopes,
            dpop_jkt=prover.thumbprint if prover else None,
        )
        code = request.finish(Browser().visit(request.url, REDIRECT))
        tokens = await grants.exchange_code(
            http,
            metadata,
            client,
            code=code,
            verifier=request.verifier,
            redirect_uri=REDIRECT,
            resource=provider.resource,
            deadline=soon(),
            prover=prover,
        )
        yield http, metadata, client, tokens


async def refreshed(
    provider: Provider, http: AuthHttp, metadata: Any, client: Any, token: Any, **more: Any
) -> grants.TokenSet:
    return await grants.refresh(
        http, metadata, client, refresh_token=token, resource=provider.resource, deadline=soon(), **more
    )


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


async def test_a_client_document_is_all_a_client_needs(provider_with: Any) -> None:
    settings = Settings(client_metadata_url="https://client.example/moorings.json")
    document = client_document(settings, [REDIRECT])
    with provider_with(documents={settings.client_metadata_url: document}) as provider:
        async with a_login(provider, settings=settings) as (http, metadata, client, first):
            assert (client.client_id, client.source) == (settings.client_metadata_url, "cimd")
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


@pytest.mark.parametrize("nonces", [False, True])
async def test_dpop_binds_tokens_to_a_key_with_nonces_of_both_servers(
    provider_with: Any, nonces: bool
) -> None:
    with provider_with(nonces=nonces) as provider:
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
                # One origin here, so the resource's nonce takes the place of the other server's.
                status, headers, _ = ask(prover)
                assert status == 401 and "use_dpop_nonce" in headers["WWW-Authenticate"]
                assert known.learn(provider.resource, headers)
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
            client = await register(http, metadata, Settings(), REDIRECT, soon())
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
