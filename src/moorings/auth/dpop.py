"""DPoP (RFC 9449): tokens bound to a key, a fresh proof for each request, and the nonces that servers ask for.

One ``Nonces`` for the broker: an origin's last nonce is used by every request to it, be it an authorization server
(§8) or a resource (§9). A ``Prover`` is one key; the same for the life of a credential, kept in its store entry.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from .._secret import Secret
from ..net.addresses import origin
from . import jose
from .faults import AuthFault

__all__ = ["Nonces", "Prover", "htu_of", "new_key"]

ALGORITHM = "ES256"
MOST_ORIGINS = 1000
MOST_NONCE = 2048
"""Characters of a nonce; a longer one is not taken."""
HEADER = "DPoP-Nonce"

_USUAL = {"http": 80, "https": 443}


def new_key() -> Secret:
    """A new key (JWK in JSON) for a credential.

    Raises:
        NeedsExtra: joserfc is not installed.
    """
    return jose.new_key()


def htu_of(url: str) -> str:
    """The URL of a proof: without query and fragment, scheme and host in small letters, no usual port (§4.2, §4.3)."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    if parts.port is not None and parts.port != _USUAL.get(parts.scheme.lower()):
        host += f":{parts.port}"
    return urlunsplit((parts.scheme.lower(), host, parts.path or "/", "", ""))


class Nonces:
    """The last nonce of each origin, in memory only: a lost one costs one exchange. Any thread may use it."""

    def __init__(self, most: int = MOST_ORIGINS) -> None:
        self._most = most
        self._known: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()  # held for a look at a dictionary

    def get(self, url: str) -> str | None:
        """The nonce for a request to this URL."""
        with self._lock:
            return self._known.get(_origin(url))

    def learn(self, url: str, headers: Mapping[str, str]) -> bool:
        """Take the nonce of an answer, if it bears one; True if it is new: a refused request may be tried with it."""
        nonce = headers.get(HEADER)
        if not nonce or len(nonce) > MOST_NONCE or not all("\x21" <= each <= "\x7e" for each in nonce):
            return False
        at = _origin(url)
        with self._lock:
            new = self._known.get(at) != nonce
            self._known[at] = nonce
            self._known.move_to_end(at)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return new


class Prover:
    """Makes the proofs of one key."""

    __slots__ = ("_key", "nonces", "thumbprint")

    def __init__(self, jwk: Secret, nonces: Nonces) -> None:
        """
        Raises:
            NeedsExtra: joserfc is not installed.
            AuthFault: no P-256 key.
        """
        self._key = jose.Key(jwk)
        if ALGORITHM not in self._key.algorithms:
            raise AuthFault("a DPoP key is an EC key on the curve P-256")
        self.nonces = nonces
        self.thumbprint = self._key.thumbprint
        """``jkt``, and ``dpop_jkt`` of an authorization request (§10)."""

    def proof(self, method: str, url: str, *, now: float, access_token: Secret | None = None) -> Secret:
        """The value of the ``DPoP`` header of one request, with the nonce of its origin if there is one.

        ``now`` is the wall clock in seconds. ``access_token`` is the one this request bears, to a resource.
        """
        claims: dict[str, object] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method.upper(),
            "htu": htu_of(url),
            "iat": int(now),
        }
        if access_token is not None:
            digest = hashlib.sha256(access_token.reveal().encode("ascii")).digest()
            claims["ath"] = base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
        nonce = self.nonces.get(url)
        if nonce is not None:
            claims["nonce"] = nonce
        return self._key.sign(
            claims, algorithm=ALGORITHM, header={"typ": "dpop+jwt", "jwk": self._key.public}
        )


def _origin(url: str) -> str:
    try:
        return origin(url)
    except ValueError:
        return url
