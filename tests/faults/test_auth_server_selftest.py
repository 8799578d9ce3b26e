"""The scripted authorization server is trusted only as far as this goes: bare aiohttp drives it, without Moorings."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

import aiohttp
import pytest

from tests.faults.auth_server import AuthFaults, consent, in_thread

BOTH = "application/json, text/event-stream"
REDIRECT = "http://127.0.0.1:7777/callback"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")


async def register(http: aiohttp.ClientSession, auth: AuthFaults, **more: Any) -> dict[str, Any]:
    asked = {"redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none", **more}
    async with http.post(auth.issuer + "/register", json=asked) as answer:
        assert answer.status == 201, await answer.text()
        return await answer.json()


async def token(http: aiohttp.ClientSession, auth: AuthFaults, **form: str) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": form.pop("basic")} if "basic" in form else {}
    async with http.post(auth.issuer + "/token", data=form, headers=headers) as answer:
        return answer.status, await answer.json()


async def login(
    http: aiohttp.ClientSession, auth: AuthFaults, client: dict[str, Any], **form: str
) -> tuple[int, dict[str, Any]]:
    asked = {"client_id": client["client_id"], "redirect_uri": REDIRECT, "state": "s", "response_type": "code",
             "code_challenge": CHALLENGE, "code_challenge_method": "S256",
             "resource": auth.resource, "scope": "a b"}  # fmt: skip
    back = dict(parse_qsl(urlsplit(await consent(f"{auth.issuer}/authorize?{urlencode(asked)}")).query))
    assert (back["state"], back["iss"]) == ("s", auth.issuer)
    form = {"client_id": client["client_id"], **form} if "basic" not in form else form
    return await token(
        http, auth, grant_type="authorization_code", code=back["code"], redirect_uri=REDIRECT,
        code_verifier=VERIFIER, resource=auth.resource, **form,
    )  # fmt: skip


async def test_a_whole_login_rotation_and_reuse() -> None:
    async with AuthFaults(issuer_path="/tenant") as auth, aiohttp.ClientSession() as http:
        async with http.post(auth.url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}) as answer:
            assert answer.status == 401
            place = answer.headers["WWW-Authenticate"].partition('"')[2].rstrip('"')
        async with http.get(place) as answer:
            assert (await answer.json())["authorization_servers"] == [auth.issuer]
        async with http.get(auth.origin + "/.well-known/oauth-authorization-server/tenant") as answer:
            assert (await answer.json())["issuer"] == auth.issuer
        client = await register(http, auth)
        status, first = await login(http, auth, client)
        assert (status, first["scope"], first["expires_in"]) == (200, "a b", 3600)
        bearer = {"Authorization": f"Bearer {first['access_token']}", "Accept": BOTH}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        async with http.post(auth.url, json=body, headers=bearer) as answer:
            assert answer.status == 200
        form = {"grant_type": "refresh_token", "client_id": client["client_id"]}
        _, second = await token(http, auth, **form, refresh_token=first["refresh_token"])
        assert second["refresh_token"] != first["refresh_token"]
        status, error = await token(http, auth, **form, refresh_token=first["refresh_token"])
        assert (status, error["error"], auth.revoked_by_reuse) == (400, "invalid_grant", 1)
        assert (await token(http, auth, **form, refresh_token=second["refresh_token"]))[0] == 400
        async with http.post(auth.url, json=body, headers=bearer) as answer:
            assert answer.status == 401
        assert len(auth.grants("refresh_token")) == 3
        assert auth.violations == []


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_secret_is_wanted_by_its_one_method(method: str) -> None:
    async with AuthFaults() as auth, aiohttp.ClientSession() as http:
        client = await register(http, auth, token_endpoint_auth_method=method)
        name, secret = client["client_id"], client["client_secret"]
        pair = f"{quote_plus(name)}:{quote_plus(secret)}"
        ways = {
            "client_secret_basic": {"basic": "Basic " + base64.b64encode(pair.encode()).decode()},
            "client_secret_post": {"client_id": name, "client_secret": secret},
            "none": {"client_id": name},
        }
        for used, form in ways.items():
            status, _ = await token(http, auth, grant_type="client_credentials", **form)
            assert status == (200 if used == method else 401), used
        both = ways["client_secret_basic"] | ways["client_secret_post"]
        assert (await token(http, auth, grant_type="client_credentials", **both))[0] == 400
        assert len(auth.violations) == 2


async def test_words_twist_and_are_recorded() -> None:
    on = {
        "token:refresh_token": ["status:503", "die_after", "refuse:invalid_grant:200", "form"],
        "token": "ok",
    }
    async with AuthFaults(on=on, rotate=False) as auth, aiohttp.ClientSession() as http:
        auth.clients["c"] = {"token_endpoint_auth_method": "none"}
        family = auth.family("a")
        form = {"grant_type": "refresh_token", "client_id": "c", "refresh_token": family.live}
        async with http.post(auth.issuer + "/token", data=form) as answer:
            assert answer.status == 503
        with pytest.raises(aiohttp.ClientError):
            await token(http, auth, **form)
        assert len(auth.access) == 1
        assert await token(http, auth, **form) == (
            200, {"error": "invalid_grant", "error_description": "scripted"},
        )  # fmt: skip
        async with http.post(auth.issuer + "/token", data=form) as answer:
            assert answer.content_type == "application/x-www-form-urlencoded"
            assert dict(parse_qsl(await answer.text()))["token_type"] == "Bearer"


async def test_device_exchange_assertion_revocation_and_removal() -> None:
    async with AuthFaults(pending=1) as auth, aiohttp.ClientSession() as http:
        client = await register(http, auth)
        me = {"client_id": client["client_id"]}
        async with http.post(auth.issuer + "/device", data=me) as answer:
            device = await answer.json()
        poll = {
            "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
            "device_code": device["device_code"],
        }
        assert (await token(http, auth, **me, **poll))[1]["error"] == "authorization_pending"
        given = (await token(http, auth, **me, **poll))[1]
        prefix = "urn:ietf:params:oauth:"
        _, jag = await token(
            http, auth, **me, grant_type=prefix + "grant-type:token-exchange", subject_token="x",
            audience="aud", requested_token_type=prefix + "token-type:id-jag",
        )  # fmt: skip
        status, _ = await token(
            http,
            auth,
            **me,
            grant_type=prefix + "grant-type:jwt-bearer",
            assertion=jag["access_token"],
        )
        assert status == 200
        async with http.post(auth.issuer + "/revoke", data={**me, "token": given["refresh_token"]}) as answer:
            assert answer.status == 200
        assert auth.families[0].revoked
        rat = {"Authorization": f"Bearer {client['registration_access_token']}"}
        async with http.delete(client["registration_client_uri"], headers=rat) as answer:
            assert answer.status == 204
        assert (await token(http, auth, **me, **poll))[1]["error"] == "invalid_client"


async def test_several_challenges_are_several_headers() -> None:
    async with AuthFaults(challenges=['Basic realm="x"', "Bearer a=b", "Digest"]) as auth:
        async with aiohttp.ClientSession() as http, http.get(auth.url) as answer:
            assert answer.headers.getall("WWW-Authenticate") == ['Basic realm="x"', "Bearer a=b", "Digest"]


def test_one_runs_in_a_thread() -> None:
    import urllib.request

    with in_thread(prm=["root"]) as auth:
        place = auth.origin + "/.well-known/oauth-protected-resource"
        with urllib.request.urlopen(place) as answer:
            assert answer.status == 200


def test_a_misspelt_word_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown behaviour"):
        AuthFaults(on={"token": "nonsense"})
    with pytest.raises(ValueError, match="unknown script keys"):
        AuthFaults(nonsense=1)
