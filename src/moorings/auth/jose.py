"""Keys and signed JWTs, by joserfc, which is an extra (``moorings[jwt]``) and imported by the first key.

That import takes some 0.2 s, so whoever must not wait for it calls ``load`` in a thread first.
"""

from __future__ import annotations

import json
import types
import warnings
from typing import Any

from .._secret import Secret
from .faults import AuthFault, NeedsExtra

__all__ = ["Key", "load", "new_key", "signing_by"]

ALGORITHMS = {
    "RSA": ("RS256", "PS256", "RS384", "RS512", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA", "Ed25519"),
    "Ed448": ("EdDSA", "Ed448"),
}
"""What each kind of key can sign, the most common first."""

KINDS = ("EC", "RSA", "OKP")


def load() -> Any:
    """The library.

    Raises:
        NeedsExtra: it is not installed.
    """
    try:
        from joserfc import jwk, jws, jwt
    except ImportError:
        raise NeedsExtra(
            "signed tokens (private_key_jwt, DPoP) need joserfc, which is not installed",
            fix='pip install "moorings[jwt]"',
        ) from None
    return types.SimpleNamespace(jwk=jwk, jws=jws, jwt=jwt)


def new_key() -> Secret:
    """A new P-256 key, as JWK in JSON."""
    key = load().jwk.ECKey.generate_key("P-256")
    return Secret(json.dumps(key.as_dict(private=True)))


def signing_by(secret: Secret, algorithm: str) -> Secret:
    """A private key (JWK in JSON, or PEM) as a JWK that signs by this algorithm and no other.

    Raises:
        NeedsExtra: joserfc is not installed.
        AuthFault: it is no private key, or cannot sign so. The text holds nothing of it.
    """
    able = Key(secret).algorithms
    if algorithm not in able:
        raise AuthFault(
            f"the private key signs by {' or '.join(able)}, not by {algorithm}",
            fix="mend auth.private_key_alg",
        )
    key, _ = _read(secret.reveal().strip(), load())
    return Secret(json.dumps({**key.as_dict(private=True), "alg": algorithm}))


class Key:
    """A private key that signs. Holds nothing open; may be used from any thread."""

    __slots__ = ("_jose", "_key", "algorithms", "kid", "public", "thumbprint")

    def __init__(self, secret: Secret) -> None:
        """``secret`` is a JWK in JSON, or a PEM.

        Raises:
            NeedsExtra: joserfc is not installed.
            AuthFault: it is no private key that can sign. The text holds nothing of it.
        """
        self._jose = load()
        self._key, named = _read(secret.reveal().strip(), self._jose)
        facts = self._key.as_dict(private=False)
        kind = facts["kty"] if facts["kty"] == "RSA" else facts.get("crv", "")
        able = ALGORITHMS.get(kind, ())
        self.algorithms: tuple[str, ...] = (named,) if named in able else able
        if not self.algorithms or (named and named not in able):
            raise AuthFault("the private key cannot sign what OAuth asks for; an EC or RSA key can")
        self.kid: str | None = facts.get("kid")
        self.public: dict[str, Any] = {
            name: facts[name] for name in ("kty", "crv", "x", "y", "n", "e") if name in facts
        }
        self.thumbprint: str = self._key.thumbprint()
        """RFC 7638, SHA-256."""

    def sign(self, claims: dict[str, Any], *, algorithm: str, header: dict[str, Any] | None = None) -> Secret:
        """A compact JWT."""
        if algorithm != "EdDSA":
            return Secret(self._encode(claims, algorithm, header))
        # It has given way to "Ed25519" (RFC 9864), which servers do not know yet. The filters are the whole process's,
        # so they are changed for nothing more common than this.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Secret(self._encode(claims, algorithm, header))

    def _encode(self, claims: dict[str, Any], algorithm: str, header: dict[str, Any] | None) -> str:
        header = {"alg": algorithm, **(header or {})}
        token: str = self._jose.jwt.encode(header, claims, self._key, algorithms=[algorithm])
        return token

    def algorithm(self, supported: tuple[str, ...] | None) -> str:
        """The first this key can use that the server takes.

        Raises:
            AuthFault: none.
        """
        if not supported:
            return self.algorithms[0]
        for name in self.algorithms:
            if name in supported:
                return name
        raise AuthFault(
            f"the server takes signatures by {', '.join(supported[:10])}, "
            f"and the private key makes {', '.join(self.algorithms)}"
        )

    def __repr__(self) -> str:
        return f"Key({self.thumbprint})"


def _read(text: str, jose: Any) -> tuple[Any, str | None]:
    """The key, and the algorithm it names."""
    fault: AuthFault | None = None
    if text.startswith("{"):
        try:
            facts = json.loads(text)
            if facts.get("kty") in KINDS:
                key = jose.jwk.import_key(facts)
                if key.is_private:
                    return key, facts.get("alg")
        except Exception:  # boundary: the library raises many kinds, and their texts may hold the key
            fault = AuthFault("the private key is damaged: a JWK that cannot be read")
    else:
        for kind in KINDS:
            try:
                key = jose.jwk.import_key(text, kind)
                if key.is_private:
                    return key, None
            except Exception:  # boundary: another kind of key is tried
                continue
    # Outside of the handlers: a library's error may quote the key, and would stay as context.
    raise fault or AuthFault(
        "that is no private key: a PEM, or a JWK of an EC, RSA or OKP key with its private part"
    )
