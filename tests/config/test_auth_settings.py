"""Settings of OAuth and of where logins are kept: in code and in files, and what is refused at once (F14, F16)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorings import AsyncHost, AuthSettings, CredentialSettings, HttpServer, Secret
from moorings.auth import authorization, jose, model
from moorings.auth.clients import check_usable
from moorings.auth.discovery import DiscoverySettings
from moorings.auth.registration import ClientSettings, client_document, preregistered
from moorings.config import AuthMethod, ConfigProblems, Problem, load, parse
from moorings.config.auth_spec import ALGORITHMS, SECRETS, TAKEN_PARAMS
from moorings.config.credential_spec import LOCAL
from moorings.config.keys import (
    AUTH_ALIASES,
    AUTH_KEYS,
    AUTH_SPECIAL,
    LOGIN_KEYS,
    OWN_AUTH_KEYS,
    RENAMED_AUTH_KEYS,
    VARIABLE_KEYS,
)
from moorings.errors import MisuseError

URL = "https://example.com/mcp"
AS = "https://login.example.com"
SECRET = "s3cr3t-Value-0123456789"
ENVIRON = {"HOME": "/home/ada", "TOKEN": "t0k", "EMPTY": "", "ID": "me"}


def auth_of(entry: Mapping[str, Any], environ: Mapping[str, str] = ENVIRON) -> AuthSettings | bool:
    """What an entry of a JSON file says, ``auth`` and the keys that stand for it."""
    text = json.dumps({"mcpServers": {"a": {"url": URL, **entry}}})
    server = parse(text, file="/c/.mcp.json", environ=environ).servers["a"]
    assert isinstance(server, HttpServer)
    return server.auth


def problems_of(lines: str, environ: Mapping[str, str] = ENVIRON) -> tuple[Problem, ...]:
    """Of a TOML file in which the lines begin with line 4, in ``[servers.git.auth]``."""
    text = f"[servers.git]\nurl = '{URL}'\n[servers.git.auth]\n{lines}\n"
    with pytest.raises(ConfigProblems) as caught:
        parse(text, file="/c/moorings.toml", environ=environ)
    assert caught.value.file == "/c/moorings.toml"
    return caught.value.problems


# --- what others rely on


def test_the_settings_are_what_discovery_and_registration_read() -> None:
    for protocol in (DiscoverySettings, ClientSettings):
        wanted = {name for name, value in vars(protocol).items() if isinstance(value, property)}
        assert wanted and wanted <= set(AuthSettings.__struct_fields__)
    metadata = model.ServerMetadata(issuer=AS, token_endpoint=f"{AS}/token")
    plain = AuthSettings(client_id="me", client_secret="s", issuer=AS)  # type: ignore[arg-type]
    registration = preregistered(plain, metadata, "", now=0.0)
    check_usable(registration, 0.0)
    assert (registration.client_secret, registration.auth_method) == (Secret("s"), "client_secret_basic")
    document = client_document(
        AuthSettings(client_metadata_url="https://me.example/c.json"), ["http://[::1]/"]
    )
    assert document["client_name"] == "Moorings"


def test_what_stands_twice_is_equal() -> None:
    """The rooms do not import each other; these say the same in both."""
    assert get_args(AuthMethod) == get_args(model.AuthMethod)
    assert LOCAL == model.LOCAL
    assert authorization.OURS < TAKEN_PARAMS
    assert {name for able in jose.ALGORITHMS.values() for name in able} == set(ALGORITHMS)


def test_without_settings_a_server_has_them_all_at_their_defaults() -> None:
    assert HttpServer(url=URL).auth is True
    assert auth_of({}) is True and auth_of({"auth": {}}) == AuthSettings()
    assert repr(AuthSettings()) == "AuthSettings()"
    assert repr(CredentialSettings()) == "CredentialSettings(store='file', encrypt=False, principal='local')"


def test_the_place_of_a_server_is_the_same_whoever_we_are_there() -> None:
    plain = HttpServer(url=URL)
    for auth in (False, AuthSettings(client_id="me", client_secret=Secret("s"))):
        assert HttpServer(url=URL, auth=auth).fingerprint() == plain.fingerprint()


# --- in code

GOOD: list[dict[str, Any]] = [
    {"issuer": "http://127.0.0.1:9000"},
    {"issuer": "http://localhost:9000/realms/a"},
    {"issuer": "https://login.example.com/"},
    {"resource": "off"},
    {"resource": "https://example.com/mcp?tenant=1"},
    {"resource": "api://6b1d1ba4-0000"},
    {"client_id": "me", "client_secret": "s", "auth_method": "client_secret_post"},
    {"client_id": "me", "auth_method": "none"},
    {"client_id": "me", "private_key": "-----BEGIN\nx", "private_key_alg": "ES256"},
    {"client_id": "me", "private_key_file": Path("k.pem"), "auth_method": "private_key_jwt"},
    {"client_id": "me", "client_secret": "s", "private_key_file": "k"},  # what the server takes decides
    {"auth_method": "client_secret_basic"},  # asked for when the client registers
    {"client_metadata_url": "https://me.example/client.json", "cimd": False},
    {"scopes": "a:b https://x/y"},
    {"scopes": ["a"], "scope_ceiling": True},
    {"redirect_uri": "http://localhost:8080/callback"},
    {"redirect_uri": "https://agent.example.com/callback?a=b"},
    {"redirect_host": "::1", "redirect_port": 65535},
    {"authorize_params": {"audience": "x", "prompt": ""}},
    {"accept_issuer": "https://login.example.com/{tenant}/v2.0"},
    {"flow": "device"},
    {"flow": "client_credentials", "client_id": "me", "client_secret": "s"},
    {"flow": "client_credentials", "client_id": "me", "private_key": "k"},
    {"flow": "workload", "assertion": dict},
    {"timeout": float("inf")},
]


@pytest.mark.parametrize("fields", GOOD, ids=[" ".join(fields) for fields in GOOD])
def test_what_can_be_meant_is_taken(fields: dict[str, Any]) -> None:
    made = AuthSettings(**fields)
    assert msgspec.structs.replace(made) == made


ENTERPRISE = {"idp_issuer": AS, "idp_client_id": "me", "idp_token": "t"}
MISUSES: list[tuple[str, dict[str, Any]]] = [
    ("issuer is text, not bytes", {"issuer": b"x"}),
    ("resource is text, not NoneType", {"resource": None}),
    ("client_name is text", {"client_name": None}),
    ("client_name: it is empty", {"client_name": " "}),
    ("client_id: it is empty", {"client_id": ""}),
    ("user_agent: it is empty, or", {"user_agent": "a\nb"}),
    ("issuer: not an absolute https or http URL", {"issuer": "login.example.com"}),
    ("issuer: http, by which", {"issuer": "http://login.example.com"}),
    ("issuer: a user or a password", {"issuer": "https://me:pw@login.example.com"}),
    ("issuer: .* no query", {"issuer": "https://login.example.com?tenant=1"}),
    ("issuer: .* metadata document", {"issuer": f"{AS}/.well-known/oauth-authorization-server"}),
    ("idp_issuer: http, by which", {**ENTERPRISE, "idp_issuer": "http://idp"}),
    ("resource: not auto, not off", {"resource": "example.com"}),
    ("resource: not auto, not off", {"resource": "https://example.com/#x"}),
    ("resource: a user or a password", {"resource": "https://me:pw@example.com"}),
    ("client_secret: client_secret is set without client_id", {"client_secret": "s"}),
    ("client_secret is text; not bytes", {"client_secret": b"s"}),
    ("client_secret is text; not", {"client_secret": dict}),
    ("client_secret: it is empty", {"client_id": "me", "client_secret": ""}),
    ("client_secret: it holds a line break", {"client_id": "me", "client_secret": "s\n"}),
    ("auth_method is one of", {"auth_method": "basic"}),
    (
        "auth_method: none sends no proof, and client_secret",
        {"client_id": "me", "client_secret": "s", "auth_method": "none"},
    ),
    ("auth_method: none sends no proof, and private_key", {"private_key": "k", "auth_method": "none"}),
    (
        "auth_method: client_secret_basic sends a secret",
        {"client_id": "me", "auth_method": "client_secret_basic"},
    ),
    (
        "auth_method: client_secret_post uses no key",
        {"private_key": "k", "auth_method": "client_secret_post"},
    ),
    ("auth_method: private_key_jwt needs a key", {"client_id": "me", "auth_method": "private_key_jwt"}),
    (
        "auth_method: private_key_jwt sends no secret",
        {"client_id": "me", "client_secret": "s", "private_key": "k", "auth_method": "private_key_jwt"},
    ),
    ("private_key_file: private_key is set too", {"private_key": "k", "private_key_file": "k"}),
    ("private_key_file is text or a path", {"private_key_file": b"k"}),
    ("private_key_file: the path is empty", {"private_key_file": ""}),
    ("private_key_alg: there is no key", {"private_key_alg": "ES256"}),
    ("private_key_alg: no algorithm", {"private_key": "k", "private_key_alg": "HS256"}),
    ("client_metadata_url: not an absolute", {"client_metadata_url": "http://me.example/c"}),
    ("client_metadata_url: .* has a path", {"client_metadata_url": "https://me.example/"}),
    ("client_metadata_url: .* has a path", {"client_metadata_url": "https://me.example/a/../c"}),
    (
        "client_metadata_url: client_id is set too",
        {"client_metadata_url": "https://me.example/c", "client_id": "me"},
    ),
    ("scopes is a list", {"scopes": 3}),
    ("scopes: one of them", {"scopes": ["a b"]}),
    ("scopes: one of them", {"scopes": [""]}),
    ("scope_ceiling: there are no scopes", {"scope_ceiling": True}),
    ("cimd is True or False", {"cimd": "no"}),
    ("redirect_uri: http, by which", {"redirect_uri": "http://agent.example.com/cb"}),
    ("redirect_uri: not an absolute", {"redirect_uri": "agent://cb"}),
    ("redirect_uri: .* no fragment", {"redirect_uri": "https://agent.example.com/#cb"}),
    ("redirect_host: not a name", {"redirect_host": "0.0.0.0"}),
    ("redirect_host: not a name", {"redirect_host": "[::1]"}),
    (
        "redirect_host: redirect_uri is set too",
        {"redirect_host": "::1", "redirect_uri": "http://localhost/cb"},
    ),
    ("redirect_port: redirect_uri is set too", {"redirect_port": 1, "redirect_uri": "http://localhost/cb"}),
    ("redirect_port: no port", {"redirect_port": 65536}),
    ("redirect_port is a whole number", {"redirect_port": "80"}),
    ("authorize_params is a mapping", {"authorize_params": ["a"]}),
    ("authorize_params.'a'. is text", {"authorize_params": {"a": 1}}),
    ("authorize_params: scope is not for you", {"authorize_params": {"scope": "x"}}),
    ("authorize_params: client_secret is not", {"authorize_params": {"client_secret": "x"}}),
    ("authorize_params: a name is empty", {"authorize_params": {"": "x"}}),
    ("flow is one of", {"flow": "implicit"}),
    ("dpop is one of", {"dpop": True}),
    ("timeout is a number", {"timeout": "5m"}),
    ("timeout: a login takes", {"timeout": 0}),
    ("flow: .* needs more", {"flow": "client_credentials"}),
    ("flow: .* needs more", {"flow": "client_credentials", "client_id": "me"}),
    (
        "auth_method: the flow 'client_credentials'",
        {"flow": "client_credentials", "client_id": "me", "auth_method": "none"},
    ),
    ("flow: .* needs more", {"flow": "workload"}),
    ("flow: .* needs more", {"flow": "enterprise"}),
    ("idp_client_id: the flow 'enterprise' needs more", {"idp_client_id": "me"}),
    ("idp_issuer: the flow 'enterprise' needs more", {"idp_issuer": AS, "idp_client_id": "me"}),
    ("assertion: it is for the flow 'workload', and flow is 'device'", {"flow": "device", "assertion": "x"}),
    ("idp_issuer: it is for the flow 'enterprise', and flow is 'workload'", {"assertion": "x", **ENTERPRISE}),
    ("assertion_file: assertion is set too", {"assertion": "x", "assertion_file": "f"}),
    ("idp_token_command: idp_token is set too", {**ENTERPRISE, "idp_token_command": ["x"]}),
    ("assertion is text, or a function", {"assertion": 3}),
    ("assertion_command is a list", {"assertion_command": "get token"}),
    ("assertion_command: the program is empty", {"assertion_command": [""]}),
    ("Unexpected keyword", {"client": "me"}),
]


@pytest.mark.parametrize(
    ("part", "fields"), MISUSES, ids=[f"{part} {n}" for n, (part, _) in enumerate(MISUSES)]
)
def test_what_cannot_be_meant_is_refused_at_once(part: str, fields: dict[str, Any]) -> None:
    with pytest.raises((MisuseError, TypeError), match=part):
        AuthSettings(**fields)


def test_a_server_takes_settings_or_a_flag_and_one_authorization() -> None:
    with pytest.raises(MisuseError, match="auth is an AuthSettings, True or False, not dict"):
        HttpServer(url=URL, auth={"client_id": "me"})  # type: ignore[arg-type]
    key = {"authorization": "Bearer x"}
    with pytest.raises(MisuseError, match="auth: headers holds an Authorization too"):
        HttpServer(url=URL, headers=key, auth=AuthSettings())
    for auth in (True, False):  # the key is used, and OAuth not begun
        assert HttpServer(url=URL, headers=key, auth=auth).auth is auth


@pytest.mark.parametrize(
    ("fields", "flow"),
    [
        ({}, "auto"),
        ({"client_id": "me", "client_secret": "s"}, "auto"),
        ({"flow": "device"}, "device"),
        ({"assertion_file": "f"}, "workload"),
        ({"assertion": dict, "flow": "workload"}, "workload"),
        (ENTERPRISE, "enterprise"),
    ],
)
def test_the_flow_is_what_the_settings_are_for(fields: dict[str, Any], flow: str) -> None:
    assert AuthSettings(**fields).chosen_flow() == flow


async def token_in_time(extra: str) -> str:
    return extra


def test_f16_5_settings_show_no_secret() -> None:
    everything = AuthSettings(
        client_id="me",
        client_secret=Secret(SECRET),
        assertion_command=("get-token", SECRET),
        client_name="Agent",
        redirect_uri=f"https://agent.example.com/cb?key={SECRET}",
        scopes=("a",),
    )
    functions = AuthSettings(assertion=functools.partial(token_in_time, SECRET))
    keys = AuthSettings(
        idp_issuer=AS,
        idp_client_id="me",
        idp_client_secret=Secret(SECRET),
        idp_token=SECRET,  # type: ignore[arg-type]
        private_key=Secret(SECRET),
    )
    for made in (everything, functions, keys):
        server = HttpServer(url=URL, auth=made)
        for text in (
            repr(made),
            str(made),
            f"{made}",
            repr(made.__rich_repr__()),
            repr(server),
            repr([server]),
        ):
            assert SECRET not in text
        assert SECRET not in repr(AsyncHost({"a": server}))
    assert "client_secret='…', scopes=('a',)" in repr(everything).replace("client_name='Agent', ", "")
    assert "assertion_command=('get-token', '…')" in repr(everything)
    assert "assertion='function " in repr(functions)
    assert isinstance(keys.idp_token, Secret) and keys.idp_token.reveal() == SECRET
    for store in (f"redis://me:{SECRET}@r:1/0?password={SECRET}", f"postgresql://me:{SECRET}@p/db"):
        assert SECRET not in repr(CredentialSettings(store=store))


# --- files: what people have


@pytest.mark.parametrize(
    ("entry", "auth"),
    [
        ({"auth": True}, True),
        ({"auth": False}, False),
        ({"auth": "oauth"}, True),
        ({"auth": None, "oauth": None, "scopes": None}, True),
        ({"oauth": False}, False),
        ({"auth": "oauth", "oauth": {"client_id": "me"}}, AuthSettings(client_id="me")),
        (
            {"oauth": {"clientId": "me", "callbackPort": 8080, "scopes": "a b"}},
            AuthSettings(client_id="me", redirect_uri="http://localhost:8080/callback", scopes=("a", "b")),
        ),
        (
            {"auth": {"CLIENT_ID": "${ID}", "CLIENT_SECRET": "${env:TOKEN}", "scopes": ["a", "b"]}},
            AuthSettings(client_id="me", client_secret=Secret("t0k"), scopes=("a", "b")),
        ),
        (
            {
                "oauth": {
                    "enabled": True,
                    "clientId": "me",
                    "clientSecret": "s",
                    "redirectUri": "http://localhost:1/cb",
                    "scopes": ["a"],
                },
                "authProviderType": "dynamic_discovery",
            },
            AuthSettings(
                client_id="me",
                client_secret=Secret("s"),
                redirect_uri="http://localhost:1/cb",
                scopes=("a",),
            ),
        ),
        ({"oauth": {"enabled": False, "clientId": "me"}}, False),
        ({"oauth": {"clientId": "me", "scope": "a b"}}, AuthSettings(client_id="me", scopes=("a", "b"))),
        (
            {"scopes": ["a"], "oauth_resource": "https://r", "oauth": {"client_id": "me"}},
            AuthSettings(client_id="me", scopes=("a",), resource="https://r"),
        ),
        ({"scopes": ["a"]}, AuthSettings(scopes=("a",))),
        (
            {"auth": {"client_id": "me", "client_secret_env": "TOKEN"}},
            AuthSettings(client_id="me", client_secret=Secret("t0k")),
        ),
    ],
)
def test_entries_of_other_products(entry: dict[str, Any], auth: AuthSettings | bool) -> None:
    assert auth_of(entry) == auth


def test_every_key_can_be_written_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "moorings.toml"
    file.write_text("""
[credentials]
store = "file:~/logins"
encrypt = true
principal = "${ID}"

[servers.a]
url = "https://example.com/mcp"

[servers.a.auth]
issuer = "https://login.example.com"
resource = "off"
client_id = "${ID}"
client_secret = "${TOKEN}"
auth_method = "client_secret_post"
client_name = "Agent"
cimd = false
scopes = ["a", "${ID}"]
scope_ceiling = true
redirect_host = "localhost"
redirect_port = 8080
authorize_params = { prompt = "login", hint = "${ID}" }
user_agent = "agent/1"
flow = "authorization_code"
timeout = "2m"
accept_issuer = "https://login.example.com/"
accept_resource = "https://example.com"
assume_pkce = true
private_networks = true
dpop = "on"

[servers.b]
url = "https://example.com/b"

[servers.b.auth]
client_metadata_url = "https://me.example/client.json"
auth_method = "private_key_jwt"
private_key_file = "key.pem"
private_key_alg = "ES256"
redirect_uri = "http://127.0.0.1:1/cb"

[servers.c]
url = "https://example.com/c"
auth = { private_key = "${TOKEN}", assertion_file = "~/token" }

[servers.d]
url = "https://example.com/d"
auth = { assertion_command = ["~/bin/token", "${ID}"] }

[servers.e]
url = "https://example.com/e"
auth = { assertion = "${TOKEN}" }

[servers.f]
url = "https://example.com/f"
auth.idp_issuer = "https://idp.example.com"
auth.idp_client_id = "me"
auth.idp_client_secret = "${TOKEN}"
auth.idp_token_file = "run/id"

[servers.g]
url = "https://example.com/g"
auth = { idp_issuer = "https://idp.example.com", idp_client_id = "me", idp_token_command = ["id"] }

[servers.h]
url = "https://example.com/h"
auth = { idp_issuer = "https://idp.example.com", idp_client_id = "me", idp_token = "${TOKEN}" }
""")
    config = load(file, environ=ENVIRON)
    assert config.credentials == CredentialSettings(
        store="file:/home/ada/logins", encrypt=True, principal="me"
    )
    token, idp = Secret("t0k"), {"idp_issuer": "https://idp.example.com", "idp_client_id": "me"}
    wanted = {
        "a": AuthSettings(
            issuer=AS,
            resource="off",
            client_id="me",
            client_secret=token,
            auth_method="client_secret_post",
            client_name="Agent",
            cimd=False,
            scopes=("a", "me"),
            scope_ceiling=True,
            redirect_host="localhost",
            redirect_port=8080,
            authorize_params={"prompt": "login", "hint": "me"},
            user_agent="agent/1",
            flow="authorization_code",
            timeout=120.0,
            accept_issuer=f"{AS}/",
            accept_resource="https://example.com",
            assume_pkce=True,
            private_networks=True,
            dpop="on",
        ),
        "b": AuthSettings(
            client_metadata_url="https://me.example/client.json",
            auth_method="private_key_jwt",
            private_key_file=str(tmp_path / "key.pem"),
            private_key_alg="ES256",
            redirect_uri="http://127.0.0.1:1/cb",
        ),
        "c": AuthSettings(private_key=token, assertion_file="/home/ada/token"),
        "d": AuthSettings(assertion_command=("/home/ada/bin/token", "me")),
        "e": AuthSettings(assertion=token),
        "f": AuthSettings(idp_client_secret=token, idp_token_file=str(tmp_path / "run/id"), **idp),
        "g": AuthSettings(idp_token_command=("id",), **idp),
        "h": AuthSettings(idp_token=token, **idp),
    }
    for name, auth in wanted.items():
        server = config.servers[name]
        assert isinstance(server, HttpServer) and server.auth == auth, name
    written = set(file.read_text().replace("=", " ").replace("auth.", " ").split())
    # "unresolved" is what reading finds out, and no key.
    assert written >= set(AuthSettings.__struct_fields__) - {"unresolved"}
    assert written >= set(CredentialSettings.__struct_fields__)


def test_every_secret_may_stand_in_a_variable_that_is_named() -> None:
    assert set(VARIABLE_KEYS.values()) == set(SECRETS)
    beside: dict[str, dict[str, Any]] = {
        "client_secret": {"client_id": "me"},
        "idp_client_secret": ENTERPRISE,
        "idp_token": {"idp_issuer": AS, "idp_client_id": "me"},
    }
    for key, name in VARIABLE_KEYS.items():
        made = auth_of({"auth": {key: "TOKEN", **beside.get(name, {})}})
        assert isinstance(made, AuthSettings) and getattr(made, name) == Secret("t0k")


# --- files: what is wrong. Name, lines of TOML in the table, key, part of the sentence

FAULTS = [
    ("misspelt", "client_di = 'x'", "client_di", "unknown setting of OAuth 'client_di'; wanted 'client_id'"),
    ("of another product", "authorizationUrl = 'x'", "authorizationUrl", "wanted 'issuer'"),
    ("audience", "audiences = ['x']", "audiences", "wanted 'authorize_params'"),
    ("what reading finds out", "unresolved = []", "unresolved", "unknown setting"),
    ("issuer", "issuer = 'login.example.com'", "issuer", "begin it with https://"),
    ("issuer as a number", "issuer = 3", "issuer", 'not a text; found a number; wanted "https://host"'),
    ("variable not set", "issuer = 'https://${NOPE}'", "issuer", "the variable NOPE is not set"),
    ("variable set to nothing", "client_id = '${EMPTY}'", "client_id", "EMPTY is set to nothing"),
    (
        "no variable",
        "client_id = 'me'\nclient_secret_env = '${TOKEN}'",
        "client_secret_env",
        "not the name of a variable",
    ),
    (
        "secret's variable",
        "client_id = 'me'\nclient_secret_env = 'NOPE'",
        "client_secret_env",
        "NOPE is not set",
    ),
    (
        "secret twice",
        "client_id = 'me'\nclient_secret = 'x'\nclient_secret_env = 'TOKEN'",
        "client_secret_env",
        "'client_secret' says the same",
    ),
    ("client twice", "client_id = 'me'\nclientId = 'me'", "clientId", "'client_id' says the same"),
    ("secret alone", "client_secret = 'x'", "client_secret", "set without client_id"),
    ("secret alone by another name", "CLIENT_SECRET = 'x'", "CLIENT_SECRET", "set without client_id"),
    (
        "secret as a list",
        "client_id = 'me'\nclient_secret = ['x']",
        "client_secret",
        "not a text; found a list",
    ),
    (
        "none with a secret",
        "client_id = 'me'\nauth_method = 'none'\nclient_secret = 'x'",
        "auth_method",
        "none sends no proof",
    ),
    (
        "method",
        "auth_method = 'client_secret_bsic'",
        "auth_method",
        "write 'client_secret_basic' if that is meant",
    ),
    ("method without key", "auth_method = 'private_key_jwt'", "auth_method", "private_key_jwt needs a key"),
    ("key twice", "private_key_file = 'k'\nprivate_key = 'k'", "private_key_file", "private_key is set too"),
    ("empty path", "private_key_file = ''", "private_key_file", "the path is empty"),
    ("flow", "flow = 'implicit'", "flow", "unknown 'flow'; found 'implicit'"),
    ("flow without client", "flow = 'client_credentials'", "flow", "set client_id and client_secret"),
    ("token for another flow", "flow = 'device'\nassertion = 'x'", "assertion", "for the flow 'workload'"),
    ("half of a flow", "idp_issuer = 'https://idp'", "idp_issuer", "set idp_client_id and idp_token_file"),
    ("flag", "cimd = 'no'", "cimd", "not a yes or no"),
    ("scopes as a number", "scopes = 3", "scopes", "not a list of scopes"),
    ("scope with a blank", "scopes = ['a b']", "scopes", "a character that no scope has"),
    ("scope as a number", "scopes = [3]", "scopes[0]", "not a text"),
    ("scopes twice", "scopes = 'a'\nscope = 'b'", "scope", "'scopes' says the same"),
    ("ceiling", "scope_ceiling = true", "scope_ceiling", "no scopes to keep to"),
    ("port", "redirect_port = 70000", "redirect_port", "no port"),
    ("port as a text", "redirect_port = '80'", "redirect_port", "not a port"),
    (
        "port beside a URI",
        "redirect_uri = 'http://localhost:1/cb'\nredirect_port = 1",
        "redirect_port",
        "redirect_uri is set too",
    ),
    ("port of another product", "callbackPort = 0", "callbackPort", "not the port of a redirect URI"),
    (
        "two redirects",
        "callbackPort = 1\nredirect_uri = 'http://localhost:1/cb'",
        "callbackPort",
        "'redirect_uri' says the same",
    ),
    ("host", "redirect_host = '0.0.0.0'", "redirect_host", "write 127.0.0.1"),
    ("parameters", "authorize_params = 'a=b'", "authorize_params", "not a table of parameters"),
    ("parameter", "authorize_params = { a = 1 }", "authorize_params.a", "not a text"),
    (
        "parameter of ours",
        "authorize_params = { state = 'x' }",
        "authorize_params",
        "state is not for you to set",
    ),
    ("timeout", "timeout = 'soon'", "timeout", "not a time; found 'soon'"),
    ("no time", "timeout = 0", "timeout", "every wait has a time"),
    ("command as a text", "assertion_command = 'get token'", "assertion_command", '["program", "word"]'),
    ("empty command", "assertion_command = ['']", "assertion_command[0]", "the program is empty"),
    ("dpop", "dpop = true", "dpop", "wanted one of 'auto', 'on', 'off'"),
    ("enabled", "enabled = 1", "enabled", "not a yes or no"),
]


@pytest.mark.parametrize(
    ("lines", "key", "part"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS]
)
def test_f14_5_a_fault_names_key_and_line(lines: str, key: str, part: str) -> None:
    problems = problems_of(lines)
    assert len(problems) == 1, problems
    assert problems[0].key == f"servers.git.auth.{key}"
    first = key.split(".")[0].split("[")[0]
    numbers = [n for n, each in enumerate(lines.split("\n"), 4) if each.split(" ")[0] == first]
    assert [problems[0].line] == numbers
    assert problems[0].server == "git"
    assert part in f"{problems[0].sentence()}. {problems[0].fix}"


@pytest.mark.parametrize(
    ("entry", "key", "part"),
    [
        ({"auth": "Bearer x"}, "auth", "a token that you have goes into 'headers'"),
        ({"auth": 3}, "auth", "found a number"),
        ({"auth": {}, "oauth": {}}, "oauth", "'auth' and 'oauth' together"),
        ({"auth": False, "oauth": {}}, "oauth", "'auth' is false"),
        ({"oauth": False, "scopes": ["a"]}, "scopes", "'oauth' is false"),
        ({"auth": {"scopes": ["a"]}, "scopes": ["b"]}, "scopes", "'scopes' says the same"),
        (
            {"auth": {"resource": "off"}, "oauth_resource": "https://r"},
            "oauth_resource",
            "'resource' says the",
        ),
        ({"oauth_resource": "r"}, "oauth_resource", "no absolute URL"),
        ({"oauth_resource": ["r"]}, "oauth_resource", "not a text"),
        ({"authProviderType": "google_credentials"}, "authProviderType", "'headers_command'"),
        ({"auth": {}, "headers": {"authorization": "Bearer x"}}, "auth", "an Authorization too"),
        ({"oauth": {}, "bearer_token_env_var": "TOKEN"}, "oauth", "an Authorization too"),
        ({"scopes": ["a"], "bearer_token_env_var": "TOKEN"}, "scopes", "an Authorization too"),
    ],
)
def test_what_does_not_go_together_in_an_entry(entry: dict[str, Any], key: str, part: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        auth_of(entry)
    assert [problem.key for problem in caught.value.problems] == [f"mcpServers.a.{key}"]
    problem = caught.value.problems[0]
    assert part in f"{problem.sentence()}. {problem.fix}"


def test_all_that_is_wrong_in_the_table_is_told_at_once() -> None:
    problems = problems_of(
        "issuer = 'x'\nclient_di = 'y'\nflow = 'z'\nclient_secret = ['a']\nscopes = ['a b']"
    )
    assert [problem.line for problem in problems] == [4, 5, 6, 7, 8]


def test_f14_2_an_entry_that_is_off_may_refer_to_what_is_not_set() -> None:
    entry = {
        "url": URL,
        "disabled": True,
        "oauth_resource": "${RESOURCE}",
        "auth": {
            "issuer": "${ISSUER}",
            "client_id": "me",
            "client_secret_env": "NOPE",
            "private_key_file": "${DIR}/key.pem",
            "redirect_uri": "http://localhost:${PORT}/cb",
            "scopes": "${SCOPES}",
        },
    }
    text = json.dumps({"mcpServers": {"a": entry}})
    server = parse(text, file="m.json", environ={}).servers["a"]
    assert isinstance(server, HttpServer) and isinstance(server.auth, AuthSettings)
    names = ("NOPE", "ISSUER", "DIR", "PORT", "SCOPES", "RESOURCE")
    told = {f"the variable {name} is not set" for name in names}
    assert set(server.unresolved) == set(server.auth.unresolved) == told
    assert (server.auth.issuer, server.auth.private_key_file) == ("${ISSUER}", "${DIR}/key.pem")
    with pytest.raises(ConfigProblems) as caught:
        parse(text.replace("true", "false"), file="m.json", environ={})
    assert len(caught.value.problems) == len(names)


@pytest.mark.parametrize(
    "lines",
    [
        f"client_secret = '{SECRET}'",
        f"client_secret = ['{SECRET}']",
        f"client_secret = '{SECRET}${{NOPE}}'",
        f'client_id = "me"\nclient_secret = "{SECRET}\\n"',
        f"client_id = 'me'\nclient_secret_env = '{SECRET}'",
        f"client_id = 'me'\nclient_secret = '{SECRET}'\nauth_method = 'none'",
        f"private_key = '{SECRET}'\nprivate_key_file = 'k'",
        f"assertion = '{SECRET}'\nflow = 'device'",
        f"assertion_command = 'curl -H {SECRET}'",
        f"assertion_command = ['curl', '{SECRET}${{NOPE}}']",
        f"idp_token = '{SECRET}'",
        f"issuer = 'https://me:{SECRET}@login.example.com'",
        f"issuer = 'https://login.example.com/?key={SECRET}'",
        f"redirect_uri = 'http://agent.example.com/{SECRET}'",
        f"resource = 'https://me:{SECRET}@example.com'",
        f"client_metadata_url = 'http://me.example/{SECRET}'",
        f"authorize_params = {{ client_secret = '{SECRET}' }}",
        f"authorize_params = {{ a = ['{SECRET}'] }}",
        f"scopes = '{SECRET}\"'",
        f"token = '{SECRET}'",
    ],
)
def test_f16_5_a_secret_never_stands_in_the_error(lines: str) -> None:
    text = f"[servers.a]\nurl = '{URL}'\n[servers.a.auth]\n{lines}"
    with pytest.raises(ConfigProblems) as caught:
        parse(text, file="m.toml", environ={})
    assert SECRET[:12] not in str(caught.value) + repr(caught.value) + repr(caught.value.problems)


@pytest.mark.parametrize(
    "fields",
    [
        {"client_secret": SECRET},
        {"client_id": "me", "client_secret": SECRET + "\n"},
        {"client_id": "me", "client_secret": SECRET, "auth_method": "none"},
        {"issuer": f"https://me:{SECRET}@login.example.com"},
        {"authorize_params": {"client_secret": SECRET}},
        {"idp_token": SECRET},
    ],
)
def test_f16_5_a_secret_never_stands_in_the_error_of_code(fields: dict[str, Any]) -> None:
    with pytest.raises(MisuseError) as caught:
        AuthSettings(**fields)
    assert SECRET not in str(caught.value) + repr(caught.value)


# --- where logins are kept


@pytest.mark.parametrize(
    ("store", "kind", "folder"),
    [
        ("file", "file", None),
        ("file:/var/lib/agent", "file", "/var/lib/agent"),
        ("file:///var/lib/agent", "file", "/var/lib/agent"),
        ("file:logins", "file", "logins"),
        ("keyring", "keyring", None),
        ("memory", "memory", None),
        ("redis://localhost", "redis", None),
        ("REDISS://me:p%23w@r.internal:6380/3", "redis", None),
        ("postgresql://me:pw@db/agents", "postgresql", None),
        ("postgresql://a:1,b:2/agents?target_session_attrs=primary", "postgresql", None),
        ("postgres:///agents?host=/run/postgresql", "postgresql", None),
    ],
)
def test_stores(store: str, kind: str, folder: str | None) -> None:
    made = CredentialSettings(store=store)
    assert (made.kind, made.folder, made.store) == (kind, folder, store)


CREDENTIAL_FAULTS: list[tuple[str, str, str]] = [
    ("store = 'sqlite:x'", "store", "no store of credentials"),
    ("store = 'File'", "store", "no store of credentials"),
    ("store = ''", "store", "no store of credentials"),
    ("store = 3", "store", "not a text"),
    ("store = 'file:'", "store", "the path is empty"),
    ("store = 'file://host/x'", "store", "a file of another machine"),
    ("store = 'redis://'", "store", "names no host"),
    ("store = 'redis://me:a#b@h'", "store", "%23"),
    ("store = 'redis://h/#0'", "store", "'#' of a password as %23"),
    ("store = 'postgresql://me:a b@h/x'", "store", "encode it, as %20"),
    ("store = 'postgresql://me:a#b@h/x'", "store", "%23"),
    ("store = '${NOPE}'", "store", "the variable NOPE is not set"),
    ("store = 'keyring'\nencrypt = true", "encrypt", "files alone are encrypted"),
    ("encrypt = 'yes'", "encrypt", "not a yes or no"),
    ("principal = ' '", "principal", "it is empty"),
    ("principl = 'x'", "principl", "wanted 'principal'"),
]


@pytest.mark.parametrize(("lines", "key", "part"), CREDENTIAL_FAULTS)
def test_f14_5_a_fault_of_credentials_names_key_and_line(lines: str, key: str, part: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        parse(f"[servers]\n[credentials]\n{lines}", file="m.toml", environ=ENVIRON)
    problems = caught.value.problems
    assert [problem.key for problem in problems] == [f"credentials.{key}"]
    assert problems[0].line == 3 + lines.count("\n")
    assert part in f"{problems[0].sentence()}. {problems[0].fix}"


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("store is text", {"store": None}),
        ("store: no store", {"store": "sqlite"}),
        ("encrypt is True or False", {"encrypt": 1}),
        ("encrypt: files alone", {"store": "memory", "encrypt": True}),
        ("principal is text", {"principal": None}),
        ("principal: it is empty", {"principal": ""}),
        ("store: the path", {"store": "file:a\0b"}),
    ],
)
def test_credentials_that_cannot_be_meant(part: str, fields: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match=part):
        CredentialSettings(**fields)


def test_credentials_of_a_file() -> None:
    def read(text: str) -> CredentialSettings:
        return parse(text, file="/c/m.json", environ=ENVIRON).credentials

    assert read('{"mcpServers": {}}') == CredentialSettings()
    assert read('{"mcpServers": {}, "credentials": {"store": "file:a/b"}}').folder == "/c/a/b"
    assert read('{"mcpServers": {}, "credentials": {"store": "file:~/b"}}').folder == "/home/ada/b"
    text = '{"mcpServers": {}, "credentials": {"store": "redis://:${TOKEN}@r"}}'
    assert read(text).store == "redis://:t0k@r"
    with pytest.raises(ConfigProblems, match="a table of keys"):
        read('{"mcpServers": {}, "credentials": "keyring"}')


@pytest.mark.parametrize("url", ["redis://me:{}@a:99999", "sqlite://me:{}@a", "postgresql://me:{}@h/#x"])
def test_f16_5_the_password_of_a_store_never_stands_in_the_error(url: str) -> None:
    store = url.format(SECRET)
    with pytest.raises(MisuseError) as misuse:
        CredentialSettings(store=store)
    with pytest.raises(ConfigProblems) as problems:
        parse(json.dumps({"mcpServers": {}, "credentials": {"store": store}}), file="m.json")
    for error in (misuse.value, problems.value):
        assert SECRET[:12] not in str(error) + repr(error)


# --- whatever a file says

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=10)
    | st.sampled_from([AS, URL, "none", "workload", "${NOPE}", "TOKEN", "off", "\0", "http://localhost:1/c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(AUTH_KEYS)), VALUES, max_size=5) | VALUES,
    st.dictionaries(st.sampled_from(sorted({*LOGIN_KEYS, "disabled"})), VALUES | st.just(True), max_size=2),
    st.dictionaries(st.sampled_from(CredentialSettings.__struct_fields__), VALUES, max_size=3),
)
def test_any_table_is_settings_or_problems(auth: Any, beside: dict[str, Any], credentials: Any) -> None:
    entry = {"url": URL, "auth": auth, **beside}
    text = json.dumps({"mcpServers": {"a": entry}, "credentials": credentials})
    try:
        config = parse(text, file="m.json", environ=ENVIRON)
    except ConfigProblems:
        return
    assert repr(config)


def test_the_tables_of_keys_know_each_other() -> None:
    assert set(AUTH_ALIASES.values()) <= OWN_AUTH_KEYS
    assert set(RENAMED_AUTH_KEYS.values()) <= OWN_AUTH_KEYS
    assert not (AUTH_ALIASES.keys() | AUTH_SPECIAL.keys() | RENAMED_AUTH_KEYS.keys()) & OWN_AUTH_KEYS
    assert not RENAMED_AUTH_KEYS.keys() & AUTH_KEYS
