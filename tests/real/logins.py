"""A login as tests of real authorization servers need it, with the parts of ``auth`` called one by one.

``a_login(provider)``: somebody registered, signed in and said yes. Whose server it is makes no difference here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from moorings.auth import dpop, grants
from moorings.auth.authorization import AuthorizationRequest
from moorings.auth.challenge import parse_challenges
from moorings.auth.discovery import Discovered, discover
from moorings.auth.http import AuthHttp
from moorings.auth.model import Registration, ServerMetadata, read_server_metadata
from moorings.auth.registration import register
from tests.auth.grants_kit import REDIRECT, Settings, plain_http, soon
from tests.real.oidc import Browser, Provider, request


@dataclass
class Asked:
    """The part of ``AuthSettings`` that discovery reads."""

    issuer: str | None = None
    resource: str = "auto"
    scopes: tuple[str, ...] = ()
    scope_ceiling: bool = False
    accept_issuer: str | None = None
    accept_resource: str | None = None
    assume_pkce: bool = False


def metadata_of(provider: Provider) -> ServerMetadata:
    """Its document, without the search for it."""
    metadata = read_server_metadata(provider.metadata())
    assert metadata is not None and metadata.issuer == provider.issuer and metadata.problems == ()
    return metadata


async def found(
    http: AuthHttp, provider: Provider, *, known_issuers: Sequence[str] = (), **asked: Any
) -> Discovered:
    """What discovery finds from the resource's own 401."""
    status, headers, _ = request("GET", provider.resource, {})
    assert status == 401
    challenges = parse_challenges(headers.get_all("WWW-Authenticate") or ())
    return await discover(
        http, provider.resource, challenges, Asked(**asked), soon(), known_issuers=known_issuers
    )


async def authorized(
    http: AuthHttp,
    metadata: ServerMetadata,
    client: Registration,
    *,
    resource: str | None,
    scopes: Sequence[str],
    browser: Browser | None = None,
    prover: dpop.Prover | None = None,
) -> grants.TokenSet:
    """From the authorization request to the tokens; the person says yes."""
    begun = AuthorizationRequest.begin(
        metadata,
        client,
        redirect_uri=REDIRECT,
        resource=resource,
        scopes=scopes,
        dpop_jkt=prover.thumbprint if prover else None,
    )
    code = begun.finish((browser or Browser()).visit(begun.url, REDIRECT))
    return await grants.exchange_code(
        http,
        metadata,
        client,
        code=code,
        verifier=begun.verifier,
        redirect_uri=REDIRECT,
        resource=resource,
        deadline=soon(),
        prover=prover,
    )


@asynccontextmanager
async def a_login(
    provider: Provider,
    *,
    settings: Settings | None = None,
    prover: dpop.Prover | None = None,
    scopes: tuple[str, ...] = ("a", "offline_access"),
    metadata: ServerMetadata | None = None,
    signing_key: Any = None,
) -> AsyncIterator[tuple[AuthHttp, ServerMetadata, Registration, grants.TokenSet]]:
    """Somebody registered, signed in and said yes."""
    metadata = metadata or metadata_of(provider)
    async with plain_http() as http:
        client = await register(
            http, metadata, settings or Settings(), REDIRECT, soon(), signing_key=signing_key
        )
        tokens = await authorized(
            http, metadata, client, resource=provider.resource, scopes=scopes, prover=prover
        )
        yield http, metadata, client, tokens


async def refreshed(
    provider: Provider, http: AuthHttp, metadata: Any, client: Any, token: Any, **more: Any
) -> grants.TokenSet:
    return await grants.refresh(
        http, metadata, client, refresh_token=token, resource=provider.resource, deadline=soon(), **more
    )
