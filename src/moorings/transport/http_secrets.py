"""What a server may repeat of what it was sent: an error page, a JSON error or a challenge can hold the whole request.

Such text goes into errors and logs, so the secrets of the request are taken out of it first: the values of the user's
headers, and what of the URL may be a key. Pure.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from ..wire.http_rules import secrets_of_url

__all__ = ["Secrets", "hidden", "hidden_bytes", "secrets_of"]

SHORTEST = 6
"""Characters; a shorter value is no secret, and stands in too many words."""
SHOWN = "…"

Secrets = tuple[str, ...]
"""The longest first, so that none is cut in two by a part of it."""


def secrets_of(headers: Mapping[str, str], url: str) -> Secrets:
    """All that must not be shown of a request, in the forms in which a server may write it."""
    found: set[str] = set(secrets_of_url(url))
    for value in headers.values():
        found.add(value)
        # A scheme and its credentials (RFC 9110 §11.4); the parts of a cookie.
        found.update(value.replace(";", " ").replace("=", " = ").split())
        scheme, _, credentials = value.partition(" ")
        found.add(credentials.strip())
        if scheme.lower() == "basic":
            found.update(_login(credentials))
    found = {each for each in found if len(each) >= SHORTEST}
    forms = {form for each in found for form in _forms(each)}
    return tuple(sorted(forms, key=len, reverse=True))


def _login(credentials: str) -> Iterable[str]:
    try:
        both = base64.b64decode(credentials, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ()
    return both, both.partition(":")[2]


def _forms(value: str) -> Iterable[str]:
    return (
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        html.escape(value),
        quote(value),
    )


def hidden(text: str, secrets: Secrets) -> str:
    """The text without these."""
    for secret in secrets:
        text = text.replace(secret, SHOWN)
    return text


def hidden_bytes(data: bytes, secrets: Secrets) -> bytes:
    """The same for what is not decoded yet."""
    for secret in secrets:
        data = data.replace(secret.encode("utf-8", "surrogatepass"), SHOWN.encode())
    return data
