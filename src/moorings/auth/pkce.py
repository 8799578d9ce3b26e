"""PKCE (RFC 7636), S256 alone, and the other values of one attempt that nobody may guess."""

from __future__ import annotations

import base64
import hashlib
import secrets

from .._secret import Secret

__all__ = ["challenge_of", "new_state", "new_verifier"]


def new_verifier() -> Secret:
    """64 characters with 384 bits of chance; 43 to 128 are allowed (§4.1)."""
    return Secret(secrets.token_urlsafe(48))


def new_state() -> Secret:
    """256 bits of chance."""
    return Secret(secrets.token_urlsafe(32))


def challenge_of(verifier: Secret) -> str:
    """The ``S256`` challenge (§4.2)."""
    digest = hashlib.sha256(verifier.reveal().encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
