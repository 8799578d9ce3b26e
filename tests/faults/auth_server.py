"""A scripted authorization server and the MCP server it protects, on one port, that lie exactly as told.

Made and closed by the test: ``async with AuthFaults(on={"token:refresh_token": ["status:503", "ok"]}) as auth``. It
is an ``HttpFaults`` (its words, records, ``until``, ``seen`` and keys hold here too), whose ``/mcp`` wants a bearer.
Two of them are two hosts: ``AuthFaults(servers=[other.issuer], trusts=other)`` is an MCP server with its authorization
elsewhere. ``in_thread`` runs one for programs without a loop, or in other loops.

Script keys, besides those of ``HttpFaults`` (``{origin}``, ``{issuer}``, ``{resource}``, ``{prm}`` in texts are ours):

    issuer_path     path of the issuer ("/tenant"); ``issuer_said`` the ``issuer`` of its documents
    documents       which exist: "oauth", "oidc" (both before the path), "appended" (OIDC behind it), "bare" (OAuth
                    at the root, for an issuer with a path)
    metadata        fields laid over its metadata; None takes one out
    prm             which documents of the resource exist: "path", "root"; ``prm_fields`` laid over them
    resource_said   the ``resource`` in them; ``servers`` their ``authorization_servers``
    challenges      the ``WWW-Authenticate`` headers of a 401, one each
    open            True: /mcp asks for no token; ``needs`` {name of a tool: scope it wants, else 403}
    clients         {client_id: {client_secret, token_endpoint_auth_method, redirect_uris, …}} known beforehand
    register_method the method that registration gives whatever was asked; ``register_fields`` laid over its answers
    register_scopes None, or the scopes with which a registration is accepted; others: invalid_client_metadata
    expires_in      as told in token answers, any JSON (None: left out); ``lifetime`` the true one in seconds
    refresh         False: no refresh tokens; ``rotate`` False: they stay; else reuse ends the family
    token_fields    fields laid over token answers; None takes one out; ``token_status`` their status
    resource        "any" | "required" | "refused" (together with scope, as Entra does): invalid_target
    iss             "auto" | None | a text: the ``iss`` of callbacks; ``deny`` an error code for them
    pending         polls of the device flow that are told to wait

Keys of ``on``, the most exact first: a path, "token:<grant>" (the last part of its name: "refresh_token", "jwt-bearer",
…), "prm", "as", "token", "register", "client" (RFC 7592), "revoke", "authorize", "device", "jwks", "mcp"; before "mcp"
the JSON-RPC method. Words of its own:

    refuse:<error>[:<status>]      an OAuth error, 400 unless told (``refuse:invalid_grant:200`` is an error in a 200)
    form                           carried out, its answer form-encoded
    forget                         the client is forgotten first, then carried out
    drip:<s>                       headers of a long JSON, then a byte each so many seconds
    hold                           as in ``HttpFaults``, released by the key of ``on``
    json_status:<code>:<text>      this status and this JSON
    repeat:<status>[:<how>]        the whole request (path, headers, body) comes back: in an OAuth error, a "page" of
                                   text, or the header of a "challenge"
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from tests import secretgate
from tests.faults.http_server import DEFAULTS, WORDS, Exchange, HttpFaults, Json, Seen

SCRIPT: Json = {
    "issuer_path": "", "issuer_said": "{issuer}", "documents": ["oauth"], "metadata": {}, "prm": ["path"],
    "prm_fields": {}, "resource_said": "{resource}", "servers": ["{issuer}"],
    "challenges": ['Bearer resource_metadata="{prm}"'], "open": False, "needs": {}, "clients": {},
    "register_method": None, "register_fields": {}, "register_scopes": None, "expires_in": 3600,
    "lifetime": None, "refresh": True, "rotate": True, "token_fields": {}, "token_status": 200,
    "resource": "any", "iss": "auto", "deny": None, "pending": 1,
}  # fmt: skip

OAUTH = "/.well-known/oauth-authorization-server"
OIDC = "/.well-known/openid-configuration"
PRM = "/.well-known/oauth-protected-resource"
JWT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
GRANTS = (
    "authorization_code", "refresh_token", "client_credentials", "urn:ietf:params:oauth:grant-type:device_code",
    "urn:ietf:params:oauth:grant-type:token-exchange", "urn:ietf:params:oauth:grant-type:jwt-bearer",
)  # fmt: skip
SECRET_FIELDS = (
    "code_verifier",
    "client_secret",
    "client_assertion",
    "assertion",
    "subject_token",
    "refresh_token",
)
METHODS = ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
OPENED = {"/authorize": "authorize", "/token": "token", "/register": "register", "/revoke": "revoke",
          "/device": "device", "/jwks": "jwks"}  # fmt: skip


class OAuthError(Exception):
    """Becomes an OAuth error answer."""

    def __init__(self, code: str, status: int = 400, text: str = "scripted") -> None:
        super().__init__(code)
        self.code, self.status, self.text = code, status, text


@dataclass
class Family:
    """The refresh tokens that descend from one login."""

    client: str
    scope: str
    resource: str | None
    live: str = ""
    """The refresh token of now."""
    revoked: bool = False
    spent: set[str] = field(default_factory=set)
    access: set[str] = field(default_factory=set)


@dataclass
class Access:
    client: str
    scope: str
    resource: str | None
    ends: float


class AuthFaults(HttpFaults):
    """The server. ``issuer`` and ``resource`` are its identifiers, ``url`` its MCP endpoint."""

    def __init__(self, *, trusts: AuthFaults | None = None, **script: Any) -> None:
        own = {key: script.pop(key) for key in SCRIPT if key in script}
        on = script.pop("on", {})
        if script.get("era") == "sse":
            script.setdefault("path", "/sse")
        super().__init__(**script)
        self.protected = {self.path, "/messages"} if self.script["era"] == "sse" else {self.path}
        """Paths of the MCP endpoint."""
        for behaviour in on.values():
            for turn in behaviour if isinstance(behaviour, list) else [behaviour]:
                if turn.partition(":")[0] not in ALL_WORDS:
                    raise ValueError(f"unknown behaviour {turn!r}")
        self.script |= {**SCRIPT, **own, "on": dict(on)}
        self.issued_by = trusts or self
        self.clients: dict[str, Json] = {name: dict(each) for name, each in self.script["clients"].items()}
        """Known clients, registered ones too."""
        self.codes: dict[str, Json] = {}
        self.families: list[Family] = []
        self.access: dict[str, Access] = {}
        """Access tokens that hold, unless their time is over."""
        self.devices: dict[str, Json] = {}
        self.revoked_by_reuse = 0
        self.approve_devices = True
        self._made = 0

    @property
    def issuer(self) -> str:
        return self.origin + self.script["issuer_path"]

    @property
    def resource(self) -> str:
        return self.origin + self.path

    def grants(self, kind: str | None = None) -> list[Json]:
        """The forms that came to the token endpoint, of one grant (last part of its name) if told."""
        forms = [form_of(seen) for seen in self.at("token")]
        return [form for form in forms if kind is None or short(form.get("grant_type", "")) == kind]

    def at(self, endpoint: str) -> list[Seen]:
        """The requests to an endpoint, by its key in ``on``."""
        return [seen for seen in self.requests if endpoint in self.keys(seen)]

    def paths(self) -> list[str]:
        """Path of each request, in order."""
        return [urlsplit(seen.path).path for seen in self.requests]

    def token(
        self, scope: str = "", resource: str | None = None, lifetime: float = 3600, client: str = "c"
    ) -> str:
        """An access token that holds, made for a test."""
        token = self.fresh("access")
        self.access[token] = Access(client, scope, resource, time.time() + lifetime)
        return token

    def family(self, scope: str = "", resource: str | None = None, client: str = "c") -> Family:
        """A login as if it had been made: ``live`` is its refresh token."""
        made = Family(client, scope, resource)
        made.live = self.fresh("refresh")
        self.families.append(made)
        return made

    def expire(self) -> None:
        """Every access token ends now."""
        self.access.clear()

    def forget_clients(self) -> None:
        self.clients.clear()

    # The machine

    def fresh(self, kind: str) -> str:
        self._made += 1
        made = f"{kind}-{self._made}-{hashlib.sha256(f'{id(self)}{self._made}'.encode()).hexdigest()[:24]}"
        if kind != "client":
            secretgate.note(made)
        return made

    def filled(self, value: Any) -> Any:
        """A value of the script with our own addresses put in."""
        if isinstance(value, str):
            for name, text in (("origin", self.origin), ("issuer", self.issuer), ("resource", self.resource),
                               ("prm", self.origin + PRM + self.path)):  # fmt: skip
                value = value.replace("{" + name + "}", text)
            return value
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if isinstance(value, dict):
            return {key: self.filled(each) for key, each in value.items()}
        return value

    def laid(self, document: Json, over: Json) -> Json:
        document = {**document, **self.filled(over)}
        return {key: value for key, value in document.items() if not (key in over and value is None)}

    def keys(self, seen: Seen) -> list[str]:
        """What of ``on`` holds for a request, the most exact first."""
        path = urlsplit(seen.path).path
        if path in self.protected:
            return [
                path,
                *([seen.rpc] if seen.rpc else []),
                *([seen.http] if seen.http != "POST" else []),
                "mcp",
            ]
        if path.startswith(PRM):
            return [path, "prm"]
        if "/.well-known/" in path:
            return [path, "as"]
        place = path.removeprefix(self.script["issuer_path"])
        if place.startswith("/register/"):
            return [path, "client"]
        name = OPENED.get(place, "")
        if name == "token":
            return [path, "token:" + short(form_of(seen).get("grant_type", "")), name]
        return [path, *([name] if name else [])]

    async def answer(self, exchange: Exchange) -> None:
        key = next((key for key in self.keys(exchange.seen) if key in self.script["on"]), None)
        turn = self.behaviour(key, "ok") if key is not None else "ok"
        word, _, argument = (turn or "ok").partition(":")
        if word == "hold":
            assert key is not None
            await self._held.setdefault(key, asyncio.Event()).wait()
            word = "ok"
        await ALL_WORDS[word](self, exchange, argument)

    async def route(self, exchange: Exchange, form: str | None = None, *, orphan: bool = False) -> None:
        seen = exchange.seen
        path = urlsplit(seen.path).path
        keys = self.keys(seen)
        try:
            if path in self.protected:
                if self.admitted(exchange):
                    await super().route(exchange, form, orphan=orphan)
                return
            if "prm" in keys or "as" in keys:
                document = self.document(path)
                if document is None:
                    exchange.body(404, b"Not Found", "text/plain")
                else:
                    exchange.json(document)
                return
            serve = getattr(self, f"serve_{keys[-1]}", None) if len(keys) > 1 else None
            if serve is None:
                exchange.body(404, b"Not Found", "text/plain")
                return
            serve(exchange)
        except OAuthError as error:
            headers = {"WWW_Authenticate": "Basic"} if error.status == 401 else {}
            exchange.json({"error": error.code, "error_description": error.text}, error.status, **headers)

    def admitted(self, exchange: Exchange) -> bool:
        """True if the request to the MCP endpoint goes through; else it is answered."""
        if self.script["open"]:
            return True
        seen = exchange.seen
        kind, _, token = seen.headers.get("authorization", "").partition(" ")
        held = self.issued_by.access.get(token) if kind.lower() == "bearer" else None
        if held is None or held.ends <= time.time():
            given = self.filled(self.script["challenges"])
            if kind:
                given = [
                    each + ', error="invalid_token"' if each.startswith("Bearer ") else each for each in given
                ]
            exchange.body(401, b'{"error":"unauthorized"}', **several("WWW-Authenticate", given))
            return False
        need = self.script["needs"].get(seen.tool)
        if need is not None and not set(need.split()) <= set(held.scope.split()):
            challenge = f'Bearer error="insufficient_scope", scope="{need}", resource_metadata="{{prm}}"'
            exchange.body(403, b"", None, WWW_Authenticate=self.filled(challenge))
            return False
        return True

    # Documents

    def document(self, path: str) -> Json | None:
        script, issuer_path = self.script, self.script["issuer_path"]
        prm = {"path": PRM + self.path, "root": PRM}
        if path in [prm[name] for name in script["prm"]]:
            return self.laid(
                {"resource": self.filled(script["resource_said"]),
                 "authorization_servers": self.filled(script["servers"])},
                script["prm_fields"],
            )  # fmt: skip
        places = {
            "oauth": OAUTH + issuer_path,
            "oidc": OIDC + issuer_path,
            "appended": issuer_path + OIDC,
            "bare": OAUTH,
        }
        return self.metadata() if path in [places[name] for name in script["documents"]] else None

    def metadata(self) -> Json:
        issuer = self.issuer
        return self.laid(
            {
                "issuer": self.filled(self.script["issuer_said"]),
                "authorization_endpoint": issuer + "/authorize",
                "token_endpoint": issuer + "/token",
                "registration_endpoint": issuer + "/register",
                "revocation_endpoint": issuer + "/revoke",
                "device_authorization_endpoint": issuer + "/device",
                "jwks_uri": issuer + "/jwks",
                "response_types_supported": ["code"],
                "grant_types_supported": list(GRANTS),
                "token_endpoint_auth_methods_supported": METHODS,
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
            },
            self.script["metadata"],
        )

    # Endpoints

    def serve_jwks(self, exchange: Exchange) -> None:
        exchange.json({"keys": []})

    def serve_authorize(self, exchange: Exchange) -> None:
        """Consents at once, as somebody logged in would."""
        asked = dict(parse_qsl(urlsplit(exchange.seen.path).query, keep_blank_values=True))
        client = self.clients.get(asked.get("client_id", ""))
        if client is None and asked.get("client_id", "").startswith("https://"):
            client = {"redirect_uris": [asked.get("redirect_uri")], "token_endpoint_auth_method": "none"}
            self.clients[asked["client_id"]] = client
        if client is None:
            raise OAuthError("invalid_client", 400, "no such client")
        redirect = asked.get("redirect_uri", "")
        if redirect not in client.get("redirect_uris", [redirect]):
            raise OAuthError("invalid_request", 400, "the redirect URI is not registered")
        back: Json = {}
        try:
            if asked.get("code_challenge_method") != "S256" or not asked.get("code_challenge"):
                raise OAuthError("invalid_request", text="PKCE with S256 is wanted")
            self.check_resource(asked)
            if self.script["deny"]:
                raise OAuthError(self.script["deny"], text="denied")
            code = back["code"] = self.fresh("code")
            self.codes[code] = {**asked, "spent": False}
        except OAuthError as error:
            back = {"error": error.code, "error_description": error.text}
        if "state" in asked:
            back["state"] = asked["state"]
        iss = self.script["iss"]
        if iss == "auto":
            iss = self.filled(self.script["issuer_said"])
        if iss is not None:
            back["iss"] = self.filled(iss)
        exchange.body(
            302, b"", None, Location=f"{redirect}{'&' if '?' in redirect else '?'}{urlencode(back)}"
        )

    def serve_register(self, exchange: Exchange) -> None:
        asked = exchange.seen.message
        if exchange.seen.http != "POST" or not isinstance(asked, dict):
            raise OAuthError("invalid_client_metadata")
        scopes = self.script["register_scopes"]
        if scopes is not None and not set(asked.get("scope", "").split()) <= set(scopes):
            raise OAuthError("invalid_client_metadata", text="scope is not allowed")
        client = {**asked, "client_id": self.fresh("client"), "client_id_issued_at": int(time.time())}
        method = self.script["register_method"] or asked.get(
            "token_endpoint_auth_method", "client_secret_basic"
        )
        client["token_endpoint_auth_method"] = method
        if method.startswith("client_secret"):
            client |= {"client_secret": self.fresh("secret+/=%&") + "ü", "client_secret_expires_at": 0}
        client["registration_access_token"] = self.fresh("rat")
        client["registration_client_uri"] = f"{self.issuer}/register/{client['client_id']}"
        client = self.laid(client, self.script["register_fields"])
        self.clients[client["client_id"]] = client
        exchange.json(client, 201)

    def serve_client(self, exchange: Exchange) -> None:
        seen = exchange.seen
        name = unquote_plus(urlsplit(seen.path).path.rpartition("/")[2])
        client = self.clients.get(name)
        if (
            client is None
            or seen.headers.get("authorization") != f"Bearer {client.get('registration_access_token')}"
        ):
            exchange.body(401, b"", None, WWW_Authenticate='Bearer error="invalid_token"')
        elif seen.http == "DELETE":
            del self.clients[name]
            exchange.body(204, b"", None)
        else:
            exchange.json(client)

    def serve_revoke(self, exchange: Exchange) -> None:
        form = form_of(exchange.seen)
        self.authenticate(exchange.seen, form)
        token = form.get("token", "")
        self.access.pop(token, None)
        for family in self.families:
            if token == family.live or token in family.spent:
                self.end(family)
        exchange.body(200, b"", None)

    def serve_device(self, exchange: Exchange) -> None:
        form = form_of(exchange.seen)
        client = self.authenticate(exchange.seen, form)
        code, user_code = self.fresh("device"), f"CODE-{self._made:04}"
        self.devices[code] = {**form, "client_id": client, "polls": 0}
        place = self.issuer + "/activate"
        exchange.json({"device_code": code, "user_code": user_code, "verification_uri": place, "interval": 1,
                       "verification_uri_complete": f"{place}?user_code={user_code}", "expires_in": 600})  # fmt: skip

    def serve_token(self, exchange: Exchange) -> None:
        seen = exchange.seen
        form = form_of(seen)
        secretgate.note(*(form.get(name) for name in SECRET_FIELDS))
        secretgate.note(seen.headers.get("authorization", "").partition(" ")[2])
        if seen.http != "POST" or "form-urlencoded" not in seen.headers.get("content-type", ""):
            raise OAuthError("invalid_request")
        client = self.authenticate(seen, form)
        grant = form.get("grant_type", "")
        if grant not in GRANTS:
            raise OAuthError("unsupported_grant_type")
        answer = getattr(self, "grant_" + short(grant).replace("-", "_"))(client, form)
        headers = {"Cache_Control": "no-store"}
        answer = self.laid(answer, self.script["token_fields"])
        if getattr(exchange, "as_form", False):
            body = urlencode({key: value for key, value in answer.items() if value is not None}).encode()
            exchange.body(self.script["token_status"], body, "application/x-www-form-urlencoded", **headers)
        else:
            exchange.json(answer, self.script["token_status"], **headers)

    def authenticate(self, seen: Seen, form: Json) -> str:
        """The client of a request, by exactly the method it is registered with.

        Raises:
            OAuthError: invalid_client.
        """
        header = seen.headers.get("authorization", "")
        used = []
        name, secret = form.get("client_id"), form.get("client_secret")
        if header.lower().startswith("basic "):
            used.append("client_secret_basic")
            given, _, secret = base64.b64decode(header[6:]).decode().partition(":")
            name, secret = unquote_plus(given), unquote_plus(secret)
            if "client_id" in form:
                self.violations.append("client_id in the body next to Basic")
        if "client_secret" in form:
            used.append("client_secret_post")
        if "client_assertion" in form:
            used.append("private_key_jwt")
            claims = claims_of(form["client_assertion"])
            name = name or claims.get("sub")
            if form.get("client_assertion_type") != JWT_ASSERTION or claims.get("iss") != name:
                raise OAuthError("invalid_client", 401)
        if len(used) > 1:
            self.violations.append(f"two methods in one request: {used}")
            raise OAuthError("invalid_request", 400, "two methods")
        client = self.clients.get(name or "")
        if client is None:
            raise OAuthError("invalid_client", 401, "no such client")
        wanted = client.get("token_endpoint_auth_method", "none")
        if (used or ["none"]) != [wanted] or (
            wanted.startswith("client_secret") and secret != client["client_secret"]
        ):
            raise OAuthError("invalid_client", 401, f"{wanted} is wanted")
        return name or ""

    def check_resource(self, form: Json) -> None:
        how = self.script["resource"]
        if (how == "required" and "resource" not in form) or (
            how == "refused" and {"resource", "scope"} <= set(form)
        ):
            raise OAuthError("invalid_target", text="AADSTS9010010: the resource parameter")

    # Grants

    def grant_authorization_code(self, client: str, form: Json) -> Json:
        code = self.codes.get(form.get("code", ""))
        proof = base64.urlsafe_b64encode(
            hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        ).decode()
        if code is None or code["spent"] or code["client_id"] != client:
            raise OAuthError("invalid_grant", text="no such code")
        code["spent"] = True
        if code["redirect_uri"] != form.get("redirect_uri") or code["code_challenge"] != proof.rstrip("="):
            raise OAuthError("invalid_grant", text="redirect URI or verifier differ")
        if code.get("resource") != form.get("resource"):
            self.violations.append("resource differs between the authorization and the token request")
        self.check_resource({key: value for key, value in form.items() if key != "scope"})
        return self.give(client, code.get("scope", ""), form.get("resource"), self.script["refresh"])

    def grant_refresh_token(self, client: str, form: Json) -> Json:
        token = form.get("refresh_token", "")
        for family in self.families:
            if family.client != client or token not in (family.live, *family.spent):
                continue
            if token in family.spent:
                self.revoked_by_reuse += 1
                self.end(family)
            if family.revoked:
                raise OAuthError("invalid_grant", text="ended")
            self.check_resource(form)
            if not set(form.get("scope", "").split()) <= set(family.scope.split()):
                raise OAuthError("invalid_scope")
            return self.give(client, form.get("scope", family.scope), family.resource, True, family)
        raise OAuthError("invalid_grant", text="no such refresh token")

    def grant_client_credentials(self, client: str, form: Json) -> Json:
        self.check_resource(form)
        return self.give(client, form.get("scope", ""), form.get("resource"), False)

    def grant_device_code(self, client: str, form: Json) -> Json:
        device = self.devices.get(form.get("device_code", ""))
        if device is None or device["client_id"] != client:
            raise OAuthError("invalid_grant")
        device["polls"] += 1
        if not self.approve_devices or device["polls"] <= self.script["pending"]:
            raise OAuthError("authorization_pending")
        return self.give(client, device.get("scope", ""), device.get("resource"), self.script["refresh"])

    def grant_token_exchange(self, client: str, form: Json) -> Json:
        wanted = form.get("requested_token_type", "urn:ietf:params:oauth:token-type:access_token")
        if "subject_token" not in form:
            raise OAuthError("invalid_request")
        answer = self.give(client, form.get("scope", ""), form.get("resource"), False)
        if wanted.endswith(":id-jag"):
            claims = (
                base64.urlsafe_b64encode(json.dumps({"aud": form.get("audience")}).encode())
                .decode()
                .rstrip("=")
            )
            answer |= {"access_token": f"e30.{claims}.c2ln", "token_type": "N_A"}
        return {**answer, "issued_token_type": wanted}

    def grant_jwt_bearer(self, client: str, form: Json) -> Json:
        if form.get("assertion", "").count(".") != 2:
            raise OAuthError("invalid_grant")
        return self.give(client, form.get("scope", ""), form.get("resource"), False)

    def give(
        self, client: str, scope: str, resource: str | None, refresh: bool, family: Family | None = None
    ) -> Json:
        expires, lifetime = self.script["expires_in"], self.script["lifetime"]
        if lifetime is None:
            lifetime = expires if isinstance(expires, (int, float)) else 3600
        access = self.token(scope, resource, lifetime, client)
        answer: Json = {"access_token": access, "token_type": "Bearer"}
        if expires is not None:
            answer["expires_in"] = expires
        if scope:
            answer["scope"] = scope
        if refresh:
            if family is None:
                family = Family(client, scope, resource)
                self.families.append(family)
            if not family.live or self.script["rotate"]:
                if family.live:
                    family.spent.add(family.live)
                family.live = answer["refresh_token"] = self.fresh("refresh")
            family.access.add(access)
        return answer

    def end(self, family: Family) -> None:
        family.revoked = True
        for token in family.access:
            self.access.pop(token, None)


def short(grant: str) -> str:
    return grant.rpartition(":")[2]


def form_of(seen: Seen) -> Json:
    """The form of a request; of a name that came twice the last value."""
    return dict(parse_qsl(seen.body.decode("utf-8", "replace"), keep_blank_values=True))


def claims_of(token: str) -> Json:
    """What a JWT says; its signature is not looked at."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def several(name: str, values: list[str]) -> dict[str, str]:
    """One header in several lines: the same name in different letters, as a dictionary can hold it."""
    return {name[:at].lower() + name[at:].upper(): value for at, value in enumerate(values)}


async def consent(url: str) -> str:
    """The browser of a person who says yes: opens the authorization URL and tells where it leads."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(
            f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    finally:
        writer.close()
    for line in head.split("\r\n"):
        name, _, value = line.partition(": ")
        if name.lower() == "location":
            return value
    raise AssertionError(f"no redirect: {head}")


@contextlib.contextmanager
def in_thread(**script: Any) -> Iterator[AuthFaults]:
    """One in a thread and loop of its own; its records may be read from anywhere, orders given by ``auth.set``."""
    ready: threading.Event = threading.Event()
    made: list[Any] = []

    async def main() -> None:
        stop = asyncio.Event()
        try:
            async with AuthFaults(**script) as auth:
                made.extend([auth, asyncio.get_running_loop(), stop])
                ready.set()
                await stop.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="auth-faults")
    thread.start()
    ready.wait()
    try:
        if not made:
            raise RuntimeError("the authorization server did not start")
        yield made[0]
    finally:
        if made:
            made[1].call_soon_threadsafe(made[2].set)
        thread.join()


# --- words ----------------------------------------------------------------------------------------


async def auth_refuse(server: AuthFaults, exchange: Exchange, argument: str) -> None:
    code, _, status = argument.partition(":")
    exchange.json({"error": code, "error_description": "scripted"}, int(status or 400))


async def auth_form(server: AuthFaults, exchange: Exchange, argument: str) -> None:
    exchange.as_form = True  # type: ignore[attr-defined]
    await server.route(exchange)


async def auth_forget(server: AuthFaults, exchange: Exchange, argument: str) -> None:
    server.forget_clients()
    await server.route(exchange)


async def auth_drip(server: AuthFaults, exchange: Exchange, argument: str) -> None:
    exchange.head(200, {"Content-Type": "application/json", "Content-Length": "100000"})
    while True:
        exchange.write(b" ")
        await asyncio.sleep(float(argument or 0.05))


async def auth_json_status(server: AuthFaults, exchange: Exchange, argument: str) -> None:
    code, _, text = argument.partition(":")
    exchange.body(int(code), server.filled(text).encode())


async def auth_json_text(server: AuthFaults, exchange: Exchange, argument: str) -> None:
    exchange.body(200, server.filled(argument).encode())


async def auth_repeat(server: AuthFaults, exchange: Exchange, argument: str) -> None:
    status, _, how = argument.partition(":")
    seen = exchange.seen
    said = " ".join(
        [
            seen.http,
            seen.path,
            *(f"{name}: {value}" for name, value in seen.headers.items()),
            seen.body.decode(),
        ]
    )
    if how == "page":
        exchange.body(int(status), f"<html><body>{said}</body></html>".encode(), "text/html")
    elif how == "challenge":
        value = said.replace('"', "'").replace("\n", " ")
        exchange.body(
            int(status),
            b"",
            None,
            WWW_Authenticate=f'Bearer error="invalid_token", error_description="{value}"',
        )
    else:
        exchange.json({"error": "invalid_request", "error_description": said}, int(status))


async def auth_hold(server: AuthFaults, exchange: Exchange, argument: str) -> None:
    raise AssertionError("held before it gets here")


ALL_WORDS: dict[str, Any] = {
    **WORDS,
    **{
        name.removeprefix("auth_"): word for name, word in list(globals().items()) if name.startswith("auth_")
    },
}
assert not set(SCRIPT) & set(DEFAULTS)
