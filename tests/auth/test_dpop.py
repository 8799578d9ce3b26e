"""DPoP proofs, and the nonces of many servers."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
from typing import Any

import pytest
from joserfc import jwk, jws

from moorings._secret import Secret
from moorings.auth import dpop, jose
from moorings.auth.faults import AuthFault, NeedsExtra


def opened(proof: Secret) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of a proof whose signature holds by the key in it."""
    head = json.loads(base64.urlsafe_b64decode(proof.reveal().split(".")[0] + "=="))
    read = jws.deserialize_compact(proof.reveal(), jwk.import_key(head["jwk"]), algorithms=["ES256"])
    return head, json.loads(read.payload)


def test_a_proof_says_what_rfc_9449_wants() -> None:
    prover = dpop.Prover(dpop.new_key(), dpop.Nonces())
    head, claims = opened(
        prover.proof("post", "https://MCP.example:443/mcp?x=1#f", now=1000.9, access_token=Secret("AT"))
    )
    assert head["typ"] == "dpop+jwt" and head["alg"] == "ES256"
    assert set(head["jwk"]) == {"kty", "crv", "x", "y"}
    assert claims["htm"] == "POST" and claims["htu"] == "https://mcp.example/mcp" and claims["iat"] == 1000
    assert claims["ath"] == base64.urlsafe_b64encode(hashlib.sha256(b"AT").digest()).decode().rstrip("=")
    assert "nonce" not in claims and "exp" not in claims
    assert jwk.import_key(head["jwk"]).thumbprint() == prover.thumbprint


def test_each_proof_is_fresh_and_a_token_request_has_no_ath() -> None:
    prover = dpop.Prover(dpop.new_key(), dpop.Nonces())
    claims = [opened(prover.proof("POST", "https://as.example/token", now=1.0))[1] for _ in range(50)]
    assert len({each["jti"] for each in claims}) == 50
    assert not any("ath" in each for each in claims)


def test_the_nonce_of_an_origin_is_for_that_origin() -> None:
    nonces = dpop.Nonces()
    prover = dpop.Prover(dpop.new_key(), nonces)
    assert nonces.learn("https://as.example/token", {"DPoP-Nonce": "a1"})
    assert nonces.learn("https://mcp.example/mcp", {"DPoP-Nonce": "r1"})
    assert not nonces.learn("https://as.example/par", {"DPoP-Nonce": "a1"})  # known: no reason to try again
    assert opened(prover.proof("POST", "https://as.example:443/x", now=1.0))[1]["nonce"] == "a1"
    assert opened(prover.proof("POST", "https://mcp.example/mcp", now=1.0))[1]["nonce"] == "r1"
    assert "nonce" not in opened(prover.proof("POST", "http://mcp.example/mcp", now=1.0))[1]
    assert nonces.learn("https://as.example/token", {"DPoP-Nonce": "a2"})
    assert nonces.get("https://as.example/") == "a2"


@pytest.mark.parametrize("nonce", ["", "a b", "a\nb", "é", "x" * 5000])
def test_what_is_no_nonce_is_not_taken(nonce: str) -> None:
    nonces = dpop.Nonces()
    assert not nonces.learn("https://as.example/", {"DPoP-Nonce": nonce})
    assert not nonces.learn("https://as.example/", {})
    assert nonces.get("https://as.example/") is None


def test_nonces_are_bounded_and_bear_many_threads() -> None:
    nonces = dpop.Nonces(most=10)

    def learn(start: int) -> None:
        for n in range(200):
            nonces.learn(f"https://h{start + n}.example/", {"DPoP-Nonce": "n"})

    threads = [threading.Thread(target=learn, args=(start * 1000,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(nonces._known) == 10


@pytest.mark.parametrize(
    ("url", "htu"),
    [
        ("https://a.example", "https://a.example/"),
        ("HTTPS://A.example:8443/P?q", "https://a.example:8443/P"),
        ("http://a.example:80/", "http://a.example/"),
        ("http://[::1]:99/x", "http://[::1]:99/x"),
        ("https://a.example/a%20b", "https://a.example/a%20b"),
    ],
)
def test_the_url_of_a_proof(url: str, htu: str) -> None:
    assert dpop.htu_of(url) == htu


def test_a_key_survives_a_store_and_shows_itself_nowhere() -> None:
    secret = dpop.new_key()
    one, two = dpop.Prover(secret, dpop.Nonces()), dpop.Prover(Secret(secret.reveal()), dpop.Nonces())
    assert one.thumbprint == two.thumbprint
    assert json.loads(secret.reveal())["d"] not in repr(one) + repr(one._key)
    with pytest.raises(AuthFault):
        dpop.Prover(Secret("{}"), dpop.Nonces())


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "joserfc"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(NeedsExtra, match=r"moorings\[jwt\]"):
        dpop.new_key()
    with pytest.raises(NeedsExtra):
        jose.Key(Secret("x"))
