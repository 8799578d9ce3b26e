"""The client document to host at ``auth.client_metadata_url``, for servers of a configuration. No I/O.

draft-ietf-oauth-client-id-metadata-document; ``registration.client_document`` makes it for one set of settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..config import HttpServer
from ..config.auth_spec import AuthSettings
from ..config.auth_urls import redirect_fault
from ..errors import ConfigError
from .faults import NeedsClient
from .flows import Account
from .registration import client_document as document_of

__all__ = ["client_document"]

METHOD = "private_key_jwt"


def client_document(
    servers: Sequence[HttpServer | AuthSettings],
    *,
    redirect_uris: Sequence[str] = (),
    jwks_uri: str | None = None,
) -> dict[str, Any]:
    """The document for one client that these servers (or settings) use. What it says holds for all of them.

    Args:
        servers: each with the same ``client_metadata_url`` and ``client_name``.
        redirect_uris: in place of those that these servers use.
        jwks_uri: where the public keys of the client lie, for one that proves itself by a key.

    Raises:
        ConfigError: they do not agree, or what they say can be in no document.
    """
    settings = [_settings(each) for each in servers]
    if not settings:
        raise ConfigError("there are no settings to make a document of", fix="name a server")
    first = settings[0]
    for name in ("client_metadata_url", "client_name"):
        said = sorted({str(getattr(each, name)) for each in settings})
        if len(said) > 1:
            raise ConfigError(
                f"these servers have several {name}: {', '.join(said)}",
                fix="make a document for each, by the names of its servers",
            )
    by_key = {each.auth_method == METHOD for each in settings}
    if by_key == {True} and jwks_uri is None:
        raise ConfigError(
            f"auth_method is {METHOD!r}, and the document must say where the public keys lie",
            fix="say it: --jwks-uri https://…",
        )
    if False in by_key and (len(by_key) > 1 or (jwks_uri is not None and _of_server(servers))):
        raise ConfigError(
            f"a document with keys is for a client whose auth_method is {METHOD!r}, and here it is not",
            fix="set auth.auth_method and auth.private_key_file, or leave the keys out",
        )
    for url in redirect_uris:
        if (fault := redirect_fault(url)) is not None:
            raise ConfigError(f"the redirect URI {url!r}: {fault.message}", fix=fault.fix)
    if jwks_uri is not None and (not jwks_uri.startswith("https://") or redirect_fault(jwks_uri) is not None):
        raise ConfigError(f"the place of the keys is no https URL: {jwks_uri!r}", fix="write https://…")
    uris = dict.fromkeys(
        redirect_uris
        or [uri for each in settings if (uri := Account(url="https://x", settings=each).redirect_uri)]
    )
    try:
        return document_of(first, list(uris), jwks_uri=jwks_uri)
    except NeedsClient as fault:
        raise ConfigError(fault.reason, fix=fault.fix) from None


def _settings(server: HttpServer | AuthSettings) -> AuthSettings:
    if isinstance(server, AuthSettings):
        return server
    return server.auth if isinstance(server.auth, AuthSettings) else AuthSettings()


def _of_server(servers: Sequence[HttpServer | AuthSettings]) -> bool:
    return any(isinstance(each, HttpServer) for each in servers)
