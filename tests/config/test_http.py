"""Servers over HTTP: what may be said of one, in code and in files, and what is refused at once (F14, F16)."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorings import AsyncHost, HttpServer, StdioServer
from moorings.config import (
    Bounds,
    ConfigProblems,
    Problem,
    checked_headers,
    load,
    parse,
    read_headers_output,
)
from moorings.config.headers import MAX_OUTPUT, RESERVED
from moorings.config.keys import HTTP_KEYS, LOGIN_KEYS, RENAMED_HTTP_KEYS, STDIO_KEYS
from moorings.errors import MisuseError

URL = "https://example.com/mcp"
SECRET = "s3cr3t-Value-0123456789"
ENVIRON = {"HOME": "/home/ada", "TOKEN": "t0k", "EMPTY": "", "BEARER": "Bearer t0k", "HOST": "example.com"}


def entry_of(text: str, environ: Mapping[str, str] = ENVIRON) -> HttpServer:
    """The only server of a JSON file, its entry given as JSON."""
    server = parse('{"mcpServers": {"a": ' + text + "}}", file="/c/.mcp.json", environ=environ).servers["a"]
    assert isinstance(server, HttpServer)
    return server


def problems_of(line: str, environ: Mapping[str, str] = ENVIRON) -> tuple[Problem, ...]:
    text = f"# comment\n[servers.git]\nurl = '{URL}'\n{line}\n"
    with pytest.raises(ConfigProblems) as caught:
        parse(text, file="/c/moorings.toml", environ=environ)
    return caught.value.problems


# --- files: what people have


@pytest.mark.parametrize(
    ("entry", "server"),
    [
        # Cursor and others: the address alone
        ({"url": URL}, HttpServer(url=URL)),
        (
            {"type": "http", "url": URL, "headers": {"Authorization": "Bearer ${TOKEN}"}, "alwaysLoad": True},
            HttpServer(url=URL, transport="http", headers={"Authorization": "Bearer t0k"}),
        ),
        (
            {"type": "sse", "url": "https://${HOST}/sse"},
            HttpServer(url="https://example.com/sse", transport="sse"),
        ),
        ({"type": "streamable-http", "url": URL}, HttpServer(url=URL, transport="http")),
        ({"transport": "streamable_http", "url": URL}, HttpServer(url=URL, transport="http")),
        ({"type": "streamableHttp", "url": URL, "disabled": False}, HttpServer(url=URL, transport="http")),
        ({"type": "remote", "url": URL}, HttpServer(url=URL)),
        ({"type": "remote", "transport": "sse", "url": URL}, HttpServer(url=URL, transport="sse")),
        ({"serverUrl": URL}, HttpServer(url=URL)),
        ({"httpUrl": URL, "trust": True}, HttpServer(url=URL, transport="http")),
        (
            {"url": URL, "headersHelper": "~/bin/token"},
            HttpServer(url=URL, headers_command=("/home/ada/bin/token",)),
        ),
        ({"url": URL, "headersHelper": "${HOME}/t"}, HttpServer(url=URL, headers_command=("/home/ada/t",))),
        (
            {
                "url": URL,
                "bearer_token_env_var": "TOKEN",
                "http_headers": {"X-A": "1"},
                "env_http_headers": {"X-B": "HOST"},
            },
            HttpServer(url=URL, headers={"X-A": "1", "X-B": "example.com", "Authorization": "Bearer t0k"}),
        ),
        ({"url": URL, "timeout": "2m"}, HttpServer(url=URL, bounds=Bounds(call=120.0))),
        ({"url": URL, "proxy": "", "client_cert": None}, HttpServer(url=URL, proxy="")),
    ],
)
def test_entries_of_other_products(entry: dict[str, Any], server: HttpServer) -> None:
    assert entry_of(json.dumps(entry)) == server


def test_every_key_can_be_written_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "moorings.toml"
    file.write_text("""
[servers.a]
url = "http://localhost/mcp?key=${TOKEN}"
transport = "http"
headers = { X-Key = "${TOKEN}" }
headers_command = ["~/bin/token", "--for", "${HOST}"]
ca_file = "ca.pem"
client_cert = "/etc/client.pem"
client_key = "~/client.key"
client_key_password = "${TOKEN}"
verify = false
no_proxy = [".internal", "10.0.0.0/8"]
unix_socket = "run/mcp.sock"
cookies = true
user_agent = "agent/1"
redirects = false
auth = false
protocol = "handshake"
required = true
lazy = true
enabled = false
include = ["a_*"]
exclude = ["a_b"]

[servers.a.bounds]
dial = "5s"
first_byte = 60
idle = "10m"
http_close = 0
max_connections = 4
headers_command = "3s"

[servers.b]
url = "https://example.com"
proxy = "http://me:${TOKEN}@proxy:3128"
""")
    servers = load(file, environ=ENVIRON).servers
    assert servers["a"] == HttpServer(
        url="http://localhost/mcp?key=t0k",
        transport="http",
        headers={"X-Key": "t0k"},
        headers_command=("/home/ada/bin/token", "--for", "example.com"),
        ca_file=str(tmp_path / "ca.pem"),
        client_cert="/etc/client.pem",
        client_key="/home/ada/client.key",
        client_key_password="t0k",
        verify=False,
        no_proxy=(".internal", "10.0.0.0/8"),
        unix_socket=str(tmp_path / "run/mcp.sock"),
        cookies=True,
        user_agent="agent/1",
        redirects=False,
        auth=False,
        protocol="handshake",
        required=True,
        lazy=True,
        enabled=False,
        include=("a_*",),
        exclude=("a_b",),
        bounds=Bounds(
            dial=5.0, first_byte=60.0, idle=600.0, http_close=0.0, max_connections=4, headers_command=3.0
        ),
    )
    assert servers["b"] == HttpServer(url="https://example.com", proxy="http://me:t0k@proxy:3128")
    written = set(HTTP_KEYS) & set(file.read_text().replace("=", " ").split()) | {"proxy", "bounds"}
    # "unresolved" is what reading finds out, and no key.
    assert written >= set(HttpServer.__struct_fields__) - {"unresolved"}


# --- files: what is wrong. Name, lines of TOML after the url, key, part of the sentence

FAULTS = [
    ("command and url", "command = 'x'", "url", "'command' and 'url' together"),
    ("local type", "type = 'stdio'", "url", "'url' names a remote address"),
    ("two urls", "serverUrl = 'https://b'", "serverUrl", "'url' and 'serverUrl' together"),
    ("websocket", "type = 'ws'", "type", "a WebSocket is no transport"),
    ("unknown type", "type = 'htp'", "type", "wanted 'http'"),
    ("type as a number", "type = 3", "type", "not a kind of server"),
    ("two transports", "transport = 'sse'\ntype = 'http'", "transport", "say different things"),
    ("transport", "transport = 'quic'", "transport", "unknown kind of server"),
    ("misspelt key", "haeders = {}", "haeders", "wanted 'headers'"),
    ("misspelt bound", "bounds = { dail = 3 }", "bounds.dail", "wanted 'dial'"),
    ("zero bound", "bounds = { idle = 0 }", "bounds.idle", "cannot be switched off"),
    ("cwd", "cwd = '/'", "cwd", "'cwd' is for servers with a 'command'"),
    ("args", "args = []", "args", "wanted 'headers_command'"),
    ("env", "env = {}", "env", "wanted 'headers' for a server over HTTP"),
    (
        "misspelt key of a program",
        "inherit_emv = true",
        "inherit_emv",
        "'inherit_env' is for servers with a 'command'",
    ),
    ("key of another product", "envFile = '.env'", "envFile", "'env' is for servers with a 'command'"),
    ("tools of another product", "disabledTools = ['x']", "disabledTools", "wanted 'exclude'"),
    ("token", "bearer_token = 'x'", "bearer_token", "wanted 'headers'"),
    ("token in place of settings", "auth = 'Bearer x'", "auth", "not settings of OAuth; found a text"),
    ("headers as a text", "headers = 'A: b'", "headers", "not a table of headers"),
    ("header as a number", "headers = { X-A = 3 }", "headers.X-A", "not a text; found a number"),
    ("header name", "headers = { 'X A' = 'b' }", 'headers."X A"', "not the name of a header"),
    (
        "header of ours",
        "headers = { mcp-session-id = 'b' }",
        "headers.mcp-session-id",
        "Moorings sets it itself",
    ),
    ("header of a parameter", "headers = { Mcp-Param-X = 'b' }", "headers.Mcp-Param-X", "cannot be set"),
    ("line break in a header", 'headers = { X-A = "a\\r\\nX-B: c" }', "headers.X-A", "a line break"),
    ("NUL in a header", 'headers = { X-A = "a\\u0000" }', "headers.X-A", "NUL"),
    ("same header", "headers = { X-A = '1', x-a = '2' }", "headers.x-a", "stands twice"),
    (
        "same header in two tables",
        "headers = { X-A = '1' }\nhttp_headers = { x-a = '2' }",
        "http_headers.x-a",
        "twice",
    ),
    (
        "two authorizations",
        "headers = { authorization = 'x' }\nbearer_token_env_var = 'TOKEN'",
        "bearer_token_env_var",
        "the header Authorization stands twice",
    ),
    (
        "no variable",
        "bearer_token_env_var = '${TOKEN}'",
        "bearer_token_env_var",
        "not the name of a variable",
    ),
    (
        "variable not set",
        "bearer_token_env_var = 'NOPE'",
        "bearer_token_env_var",
        "the variable NOPE is not set",
    ),
    ("header's variable", "env_http_headers = { X-A = 'NOPE' }", "env_http_headers.X-A", "NOPE is not set"),
    ("unset in a header", "headers = { X-A = 'x ${NOPE}' }", "headers.X-A", "the variable NOPE is not set"),
    ("empty in a header", "headers = { X-A = 'Bearer ${EMPTY}' }", "headers.X-A", "EMPTY is set to nothing"),
    ("empty token", "bearer_token_env_var = 'EMPTY'", "bearer_token_env_var", "EMPTY is set to nothing"),
    ("unset in a command", "headers_command = ['x', '${NOPE}']", "headers_command[1]", "NOPE is not set"),
    (
        "command as a text",
        "headers_command = 'curl x'",
        "headers_command",
        'headers_command = ["program", "word"]',
    ),
    ("empty command", "headers_command = ['']", "headers_command[0]", "the program is empty"),
    ("helper of a shell", "headersHelper = 'token | head'", "headersHelper", "a line for a shell"),
    ("two commands", "headers_command = ['x']\nheadersHelper = 'y'", "headersHelper", "together"),
    ("unset in a path", "ca_file = '${NOPE}/ca.pem'", "ca_file", "NOPE is not set"),
    ("empty path", "ca_file = ''", "ca_file", "the path is empty"),
    ("key alone", "client_key = 'k.pem'", "client_key", "client_key is set without client_cert"),
    ("password alone", "client_key_password = 'k'", "client_key_password", "without client_cert"),
    ("bad certificate beside its key", "client_key = 'k'\nclient_cert = 3", "client_cert", "not a text"),
    ("password not set", "client_cert = 'c'\nclient_key_password = '${NOPE}'", "client_key_password", "NOPE"),
    ("verify as a text", "verify = 'no'", "verify", "true or false"),
    ("proxy without a scheme", "proxy = 'proxy:3128'", "proxy", "not an absolute"),
    ("proxy with a path", "proxy = 'http://proxy/x'", "proxy", "ends after its port"),
    ("proxy as a flag", "proxy = false", "proxy", "not a text"),
    ("no_proxy as a text", "no_proxy = 'a,b'", "no_proxy", "one text, where a list"),
    ("socket with TLS", "unix_socket = '/run/x'", "unix_socket", "no TLS over a Unix socket"),
    ("user agent", "user_agent = ''", "user_agent", "it is empty"),
    ("two user agents", "user_agent = 'x'\nheaders = { User-Agent = 'y' }", "user_agent", "User-Agent too"),
]


@pytest.mark.parametrize(("line", "key", "part"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_f14_5_a_fault_names_key_and_line(line: str, key: str, part: str) -> None:
    problems = problems_of(line)
    assert len(problems) == 1, problems
    assert problems[0].key == f"servers.git.{key}"
    first = key.split(".")[0].split("[")[0]
    lines = ["", "", f"url = '{URL}'", *line.split("\n")]
    assert problems[0].line == next(n for n, each in enumerate(lines, 1) if each.startswith(first))
    assert problems[0].server == "git"
    assert part in f"{problems[0].sentence()} {problems[0].fix}"


def test_every_key_of_the_other_kind_is_named_as_such() -> None:
    """A key of a program beside a url, and the other way round."""
    for kind, others, own in (
        ("url = 'https://a'", STDIO_KEYS - HTTP_KEYS - {"command"}, "'command'"),
        ("command = 'x'", HTTP_KEYS - STDIO_KEYS - {"url", "serverUrl", "httpUrl", "transport"}, "'url'"),
    ):
        for key in others:
            with pytest.raises(ConfigProblems) as caught:
                parse(f"[servers.a]\n{kind}\n{key} = 3", file="m.toml")
            assert [p.message for p in caught.value.problems] == [f"{key!r} is for servers with a {own}"]


def test_keys_of_other_products_that_matter_are_told() -> None:
    for key, ours in RENAMED_HTTP_KEYS.items():
        assert problems_of(f"{key} = 3")[0].wanted == repr(ours)
    for key in LOGIN_KEYS:
        assert problems_of(f"{key} = 3")[0].key == f"servers.git.{key}"


@pytest.mark.parametrize(
    ("entry", "key", "part"),
    [
        ({"type": "http"}, "", "'url' is missing"),
        ({"headers": {"A": "b"}}, "", "'url' is missing"),
        ({"urll": URL}, ".urll", "wanted 'url'"),
        ({"URL": URL}, ".URL", "wanted 'url'"),
        ({"type": "websocket", "url": "wss://a/mcp"}, ".type", "WebSocket"),
        ({"url": "wss://a/mcp"}, ".url", "a WebSocket address"),
        ({"url": ["a"]}, ".url", "not a text"),
        ({"url": None}, ".url", "not a text"),
        ({"url": "${NOPE}/mcp"}, ".url", "NOPE is not set"),
        ({"url": "${EMPTY}https://a"}, ".url", "set to nothing"),
        ({"serverUrl": "ftp://a/mcp"}, ".serverUrl", "its scheme is 'ftp'"),
        ({"httpUrl": URL, "type": "sse"}, ".httpUrl", "an address of Streamable HTTP"),
    ],
)
def test_an_address_that_is_none(entry: dict[str, Any], key: str, part: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        entry_of(json.dumps(entry))
    said = [(problem.key, problem.sentence()) for problem in caught.value.problems]
    assert any(where == f"mcpServers.a{key}" and part in sentence for where, sentence in said), said


def test_an_entry_that_is_off_may_refer_to_what_is_not_set_and_cannot_be_enabled_so() -> None:
    """F14.2"""
    entry = {
        "url": "${BASE}/mcp",
        "proxy": "${PROXY}",
        "headers": {"Authorization": "Bearer ${NOPE}"},
        "ca_file": "${DIR}/ca.pem",
        "bearer_token_env_var": "NOPE2",
        "disabled": True,
    }
    del entry["headers"]
    server = entry_of(json.dumps(entry))
    assert not server.enabled
    assert server.unresolved == tuple(
        f"the variable {name} is not set" for name in ("NOPE2", "DIR", "PROXY", "BASE")
    )
    assert (server.url, server.ca_file) == ("${BASE}/mcp", "${DIR}/ca.pem")
    assert len(server.fingerprint()) == 32 and "url='(a URL without a host)'" in repr(server)
    with pytest.raises(ConfigProblems):
        entry_of(json.dumps({**entry, "disabled": False}))


@pytest.mark.parametrize(
    "line",
    [
        f"headers = {{ X-A = ['{SECRET}'] }}",
        f"headers = '{SECRET}'",
        f'headers = {{ X-A = "{SECRET}\\nX: y" }}',
        f"headers = {{ X-A = '{SECRET}${{NOPE}}' }}",
        f"headers = {{ host = '{SECRET}' }}",
        f"bearer_token_env_var = '{SECRET}'",
        f"bearer_token = '{SECRET}'",
        f"oauth = '{SECRET}'",
        f"headers_command = 'curl -H {SECRET}'",
        f"headers_command = ['curl', '{SECRET}${{NOPE}}']",
        f"headersHelper = 'curl -H {SECRET}'",
        f"client_key_password = '{SECRET}'",
        f"client_key_password = ['{SECRET}']",
        f"proxy = 'socks9://me:{SECRET}@proxy'",
        f"proxy = 'http://me:{SECRET}@proxy/path'",
        f"proxy = 'http://me:{SECRET}@pro xy'",
        f"user_agent = 'x'\nheaders = {{ User-Agent = '{SECRET}' }}",
        f"serverUrl = 'https://b/?key={SECRET}'",
        f"command = '{SECRET}'",
    ],
)
def test_f16_5_a_secret_never_stands_in_the_error(line: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        parse(f"[servers.a]\nurl = '{URL}'\n{line}", file="m.toml", environ={})
    assert SECRET[:12] not in str(caught.value) + repr(caught.value) + repr(caught.value.problems)


ADDRESSES = [
    f"https://me:{SECRET}@example.com/mcp",
    f"https://{SECRET}@example.com/mcp",
    f"https://example.com/#{SECRET}",
    f"{SECRET}",
    f"s3cr3t-value-0123456789:{SECRET}",
    f"//example.com/{SECRET}",
    f"https://:{SECRET}",
    f"https://exa mple.com/{SECRET}",
    f"https://[::1/{SECRET}",
    f"https://a:99999/{SECRET}",
    f"wss://example.com/{SECRET}",
    f"file:///{SECRET}",
    f"https:///{SECRET}",
    f"https://a\\b/{SECRET}",
    f"https://a:0/{SECRET}",
    f"https://a%2fb/{SECRET}",
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_address_with_a_fault_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(MisuseError, match="url: ") as misuse:
        HttpServer(url=url)
    with pytest.raises(ConfigProblems) as problems:
        entry_of(json.dumps({"url": url}))
    for error in (misuse.value, problems.value):
        assert SECRET[:12] not in (str(error) + repr(error)).replace("s3cr3t-value", "s3cr3t-Value")


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost",
        "HTTPS://Example.COM:8443/a/b?x=1&y",
        "http://127.0.0.1:8000/mcp",
        "http://[::1]:8000/mcp",
        "https://my_host.internal/mcp/",
        "https://bücher.example/mcp",
    ],
)
def test_addresses_that_are_good(url: str) -> None:
    assert HttpServer(url=url).url == url


# --- a specification in code


async def headers_in_time() -> dict[str, str]:
    return {"X-A": "b"}


MISUSES: list[tuple[str, dict[str, Any]]] = [
    ("url", {"url": b"https://a"}),
    ("url", {"url": Path("/x")}),
    ("transport", {"transport": "ws"}),
    ("headers is a mapping", {"headers": ["A: b"]}),
    ("a name is text", {"headers": {1: "x"}}),
    ("is text, not bytes", {"headers": {"X-A": b"x"}}),
    ("not the name of a header", {"headers": {"X:A": "x"}}),
    ("not the name of a header", {"headers": {"": "x"}}),
    ("not the name of a header", {"headers": {"X-Ä": "x"}}),
    ("line break", {"headers": {"X-A": "x\ny"}}),
    ("line break", {"headers": {"X-A": "x\0"}}),
    ("surrogate", {"headers": {"X-A": "\ud800"}}),
    ("same header", {"headers": {"X-A": "x", "x-A": "y"}}),
    ("headers_command is a list of words", {"headers_command": "get token"}),
    ("empty word", {"headers_command": ("",)}),
    ("verify is True or False", {"verify": "false"}),
    ("cookies is True or False", {"cookies": 1}),
    ("redirects is True or False", {"redirects": None}),
    ("ca_file is text or a path", {"ca_file": b"x"}),
    ("path is empty", {"ca_file": ""}),
    ("client_key is set without client_cert", {"client_key": "k"}),
    ("client_key_password is text", {"client_cert": "c", "client_key_password": b"x"}),
    ("proxy is text", {"proxy": False}),
    ("proxy: not an absolute http, https, socks5 or socks5h URL", {"proxy": "ftp://p"}),
    ("no_proxy is a list", {"no_proxy": "localhost"}),
    ("no TLS", {"unix_socket": "/run/x"}),
    ("not reached through a proxy", {"unix_socket": "/run/x", "url": "http://a", "proxy": "http://p"}),
    ("user_agent", {"user_agent": "a\nb"}),
    ("set one of them", {"user_agent": "a", "headers": {"user-agent": "b"}}),
    ("protocol is one of", {"protocol": "1"}),
    ("bounds is a Bounds", {"bounds": 3}),
    ("include is a list", {"include": "x"}),
]


@pytest.mark.parametrize(
    ("part", "fields"), MISUSES, ids=[f"{part} {n}" for n, (part, _) in enumerate(MISUSES)]
)
def test_what_cannot_be_meant_is_refused_at_once(part: str, fields: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match=part):
        HttpServer(**{"url": URL, **fields})


def test_headers_that_are_ours_are_refused_in_any_capitals() -> None:
    for name in [*RESERVED, "Mcp-Param-Region"]:
        for spelling in (name, name.upper(), name.title()):
            with pytest.raises(MisuseError, match="this header cannot be set"):
                HttpServer(url=URL, headers={spelling: "x"})


def test_paths_and_lists_are_taken_as_they_are_meant() -> None:
    server = HttpServer(
        url=URL,
        ca_file=Path("/ca.pem"),  # type: ignore[arg-type]
        client_cert=Path("/c.pem"),  # type: ignore[arg-type]
        headers_command=["get", "x"],  # type: ignore[arg-type]
        no_proxy=["a"],  # type: ignore[arg-type]
        headers={"X-A": "  b\t"},
    )
    assert (server.ca_file, server.client_cert) == ("/ca.pem", "/c.pem")
    assert (server.headers_command, server.no_proxy, server.headers) == (("get", "x"), ("a",), {"X-A": "b"})
    assert msgspec.structs.replace(server, lazy=True).headers == {"X-A": "b"}


@pytest.mark.parametrize("function", [dict, headers_in_time, functools.partial(dict, A="b")])
def test_headers_may_come_from_a_function(function: Callable[[], Mapping[str, str] | Awaitable[Any]]) -> None:
    server = HttpServer(url=URL, headers=function)
    assert server.headers is function
    assert "headers='function " in repr(server)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("Bearer x", "Bearer x"),
        ("Bearer Bearer x", "Bearer x"),
        ("bearer  BEARER\tx", "bearer x"),
        ("Basic Bearer x", "Basic Bearer x"),
        ("Bearer bearerx", "Bearer bearerx"),
    ],
)
def test_f14_2_bearer_is_never_said_twice(value: str, sent: str) -> None:
    assert HttpServer(url=URL, headers={"authorization": value}).headers == {"authorization": sent}
    assert checked_headers({"X-Other": value}) == {"X-Other": value}
    entry = json.dumps({"url": URL, "bearer_token_env_var": "BEARER"})
    assert entry_of(entry).headers == {"Authorization": "Bearer t0k"}


def test_f16_5_a_specification_shows_no_secret() -> None:
    server = HttpServer(
        url=f"https://example.com/mcp?key={SECRET}&{SECRET}=",
        headers={"X-Key": SECRET},
        headers_command=("get-token", SECRET),
        client_cert="c.pem",
        client_key_password=SECRET,
        proxy=f"http://me:{SECRET}@proxy:3128",
    )
    with_function = HttpServer(url=URL, headers=functools.partial(dict, A=SECRET))
    for text in (
        repr(server).replace(f"&{SECRET}=…", ""),
        repr(with_function),
        repr([with_function]),
        repr(AsyncHost({"s": server})),
    ):
        assert SECRET not in text
    assert repr(server).startswith("HttpServer(url='https://example.com/mcp?key=…&")
    assert "headers={'X-Key': '…'}, headers_command=('get-token', '…')" in repr(server)
    assert "proxy='http://…@proxy:3128'" in repr(server)
    assert server.url.endswith("=") and server.headers == {"X-Key": SECRET}


def test_the_fingerprint_is_the_place_and_holds_no_secret() -> None:
    def print_of(url: str = URL, **fields: Any) -> str:
        return HttpServer(url=url, **fields).fingerprint()

    same = [
        print_of(),
        print_of("HTTPS://EXAMPLE.com:443/mcp?key=1"),
        print_of(headers={"X-Key": "1"}),
        print_of(headers_command=("x",), proxy="http://p", verify=False, lazy=True),
    ]
    assert len(set(same)) == 1
    others = [
        print_of("http://example.com/mcp"),
        print_of("https://example.org/mcp"),
        print_of("https://example.com:8443/mcp"),
        print_of("https://example.com/mcp/"),
        print_of("https://example.com/MCP"),
        print_of("http://example.com/mcp", unix_socket="/run/a"),
        print_of("http://example.com/mcp", unix_socket="/run/b\udcff"),
        StdioServer(command=URL).fingerprint(),
    ]
    assert len({*same, *others}) == len(others) + 1


# --- what a command writes


@pytest.mark.parametrize(
    ("output", "headers"),
    [
        (b"Authorization: Bearer x\n", {"Authorization": "Bearer x"}),
        (b"\xef\xbb\xbfX-A:b\r\n\r\nX-C:  d: e \r\n", {"X-A": "b", "X-C": "d: e"}),
        (b'{"X-A": "b", "X-C": " d "}', {"X-A": "b", "X-C": "d"}),
        (b"\n{\n}\n", {}),
        (b"X-A:", {"X-A": ""}),
        (b"authorization: Bearer Bearer x", {"authorization": "Bearer x"}),
    ],
)
def test_headers_of_a_command(output: bytes, headers: dict[str, str]) -> None:
    assert read_headers_output(output) == headers


@pytest.mark.parametrize(
    ("output", "part"),
    [
        (b"", "nothing"),
        (b"\n \n", "nothing"),
        (SECRET.encode(), "line 1 is no"),
        (b"X-A: b\n" + SECRET.encode(), "line 2 is no"),
        (b"X-A: b\n" + SECRET.encode() + b" x: y", "line 2: not the name"),
        (b"Host: " + SECRET.encode(), "header 'Host': this header cannot be set"),
        (b"X-A: b\x00" + SECRET.encode(), "header 'X-A': the value holds"),
        (b"X-A: 1\nx-a: 2", "'x-a': it stands twice"),
        (b'{"X-A": "1", "X-A": "2"}', "stands twice"),
        (b'{"X-A": 1}', "key 1 of the JSON object is not a text"),
        (b'{"X-A": {"B": "c"}}', "not a text"),
        (b'{"X-A": "' + SECRET.encode(), "begins as a JSON object"),
        (b"{" * 100_000, "KiB"),
        (b'{"a":' * 10_000, "begins as a JSON object"),
        (b"\xff", "not UTF-8"),
        (b"x" * (MAX_OUTPUT + 1), "more than 64 KiB"),
    ],
)
def test_output_that_is_no_headers_is_told_without_being_shown(output: bytes, part: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_headers_output(output)
    assert part in str(caught.value)
    assert SECRET[:12] not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_output_is_headers_or_a_value_error(output: bytes) -> None:
    try:
        headers = read_headers_output(output)
    except ValueError:
        return
    assert checked_headers(headers) == headers


# --- whatever a file says

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from([URL, "http", "sse", "stdio", "${NOPE}", "TOKEN", "http://p:1", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(HTTP_KEYS | STDIO_KEYS)), VALUES, max_size=5), st.booleans())
def test_any_entry_is_a_server_or_problems(entry: dict[str, Any], with_url: bool) -> None:
    entry = {"url": URL, **entry} if with_url else entry
    try:
        config = parse(json.dumps({"mcpServers": {"a": entry}}), file="m.json", environ=ENVIRON)
    except ConfigProblems:
        return
    assert repr(config.servers["a"]) and config.servers["a"].fingerprint()
