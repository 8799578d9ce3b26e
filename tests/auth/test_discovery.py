"""Discovery over real sockets, against servers that say what they should, and against all the lies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import Struct

from moorings.auth import discovery
from moorings.auth.challenge import parse_challenges
from moorings.auth.discovery import (
    Discovered,
    DiscoveryFault,
    canonical,
    discover,
    resource_documents,
    server_documents,
)
from moorings.auth.http import AuthHttp
from moorings.net import Net
from tests.faults.auth_server import OAUTH, OIDC, PRM, AuthFaults

WITHIN = 10.0
HEADERLESS: dict[str, Any] = {"challenges": ["Bearer"]}


class Settings(Struct, frozen=True, kw_only=True):
    issuer: str | None = None
    resource: str = "auto"
    scopes: tuple[str, ...] = ()
    scope_ceiling: bool = False
    accept_issuer: str | None = None
    accept_resource: str | None = None
    assume_pkce: bool = False


@asynccontextmanager
async def speaking(loopback: bool = True) -> AsyncIterator[AuthHttp]:
    net = Net(dict)
    try:
        async with asyncio.timeout(WITHIN * 3):
            yield AuthHttp(net, loopback=loopback)
    finally:
        await net.aclose()


async def found(
    auth: AuthFaults, *, url: str | None = None, within: float = WITHIN, **more: Any
) -> Discovered:
    """What discovery finds for the MCP server, from its own 401."""
    options = {name: more.pop(name) for name in ("code_flow", "known_issuers") if name in more}
    async with speaking() as http:
        challenges = parse_challenges(auth.filled(auth.script["challenges"]))
        deadline = asyncio.get_running_loop().time() + within
        return await discover(http, url or auth.url, challenges, Settings(**more), deadline, **options)


async def fault(auth: AuthFaults, **more: Any) -> DiscoveryFault:
    with pytest.raises(DiscoveryFault) as told:
        await found(auth, **more)
    return told.value


# --- where documents may be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "identifier"),
    [
        ("https://mcp.example", "https://mcp.example"),
        ("https://mcp.example/", "https://mcp.example"),
        ("HTTPS://MCP.Example:443/Path", "https://mcp.example/Path"),
        ("https://mcp.example:8443/mcp/", "https://mcp.example:8443/mcp/"),
        ("https://mcp.example/mcp?key=s3cret#x", "https://mcp.example/mcp"),
        ("http://[::1]:80/mcp", "http://[::1]/mcp"),
    ],
)
def test_f11_11_the_identifier_of_a_server_gets_no_slash_and_no_key(url: str, identifier: str) -> None:
    assert canonical(url) == identifier


@pytest.mark.parametrize("url", ["", "mcp.example", "ftp://mcp.example", "https:///x", "https://a b/"])
def test_what_is_no_url_has_no_identifier(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical(url)


@pytest.mark.parametrize(
    ("issuer", "places"),
    [
        ("https://idp.example", [OAUTH, OIDC]),
        ("https://idp.example/", [OAUTH, OIDC]),
        ("https://idp.example/t", [f"{OAUTH}/t", f"{OIDC}/t", f"/t{OIDC}"]),
        ("https://idp.example/t/v2.0/", [f"{OAUTH}/t/v2.0", f"{OIDC}/t/v2.0", f"/t/v2.0{OIDC}"]),
        ("https://idp.example/a%20b", [f"{OAUTH}/a%20b", f"{OIDC}/a%20b", f"/a%20b{OIDC}"]),
    ],
)
def test_f11_2_the_places_of_server_metadata_in_the_order_of_the_spec(issuer: str, places: list[str]) -> None:
    assert server_documents(issuer) == ["https://idp.example" + each for each in places]


@pytest.mark.parametrize(
    "issuer",
    [
        "",
        "idp.example",
        "https://idp.example?x=1",
        "https://idp.example/#a",
        "https://u:p@idp.example",
        "javascript:x",
    ],
)
def test_what_cannot_be_an_issuer(issuer: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        server_documents(issuer)


@pytest.mark.parametrize(
    ("url", "named", "places"),
    [
        ("https://h/mcp", None, [f"{PRM}/mcp", PRM]),
        ("https://h/a/mcp/?k=1", None, [f"{PRM}/a/mcp/", f"{PRM}/a/mcp", PRM]),
        ("https://h", None, [PRM]),
        ("https://h/", None, [PRM]),
        ("https://h/mcp", "/custom/place.json", ["/custom/place.json", f"{PRM}/mcp", PRM]),
        ("https://h/mcp", f"https://h{PRM}/mcp", [f"{PRM}/mcp", PRM]),
        ("https://h/mcp", f"https://h{PRM}", [PRM, f"{PRM}/mcp"]),
    ],
)
def test_the_places_of_resource_metadata(url: str, named: str | None, places: list[str]) -> None:
    assert resource_documents(url, named) == ["https://h" + each for each in places]


# --- what is found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("issuer_path", ["", "/tenant", "/a/b"])
@pytest.mark.parametrize("documents", [["oauth"], ["oidc"], ["appended"], ["oauth", "oidc", "appended"]])
@pytest.mark.parametrize("prm", [["path"], ["root"], ["path", "root"]])
async def test_f11_2_metadata_in_all_shapes(issuer_path: str, documents: list[str], prm: list[str]) -> None:
    async with AuthFaults(issuer_path=issuer_path, documents=documents, prm=prm, **HEADERLESS) as auth:
        got = await found(auth)
        assert (got.issuer, got.metadata.token_endpoint) == (auth.issuer, auth.issuer + "/token")
        assert (got.resource, got.resource_param, got.legacy) == (auth.resource, auth.resource, False)
        asked = auth.paths()
        places = [urlsplit(each).path for each in server_documents(auth.issuer)]
        # Each at most once, in the order of the spec, and nothing after the first good one.
        assert asked[: len(asked) - len(places)] or asked
        last = asked[-1]
        assert asked == [
            PRM + "/mcp",
            *([PRM] if "path" not in prm else []),
            *places[: places.index(last) + 1],
        ]
        assert len(got.tried) == len(asked) - 2
        assert all(each.status == 404 for each in got.tried)


async def test_the_challenge_names_the_document() -> None:
    async with AuthFaults(
        challenges=['Basic realm="a, b"', 'Bearer resource_metadata = "{prm}" ,scope=x']
    ) as auth:
        assert (await found(auth)).scopes_hint == ("x",)
        assert auth.paths() == [PRM + "/mcp", OAUTH]


async def test_the_challenge_may_name_any_place_a_relative_one_too() -> None:
    text = '{"resource":"{resource}","authorization_servers":["{issuer}"]}'
    on = {"/custom.json": "json_text:" + text}
    async with AuthFaults(challenges=["Bearer resource_metadata=/custom.json"], prm=[], on=on) as auth:
        await found(auth)
        assert auth.paths() == ["/custom.json", OAUTH]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 501])
async def test_f11_2_the_path_form_answers_something_else_and_the_root_form_is_used(status: int) -> None:
    async with AuthFaults(prm=["root"], on={PRM + "/mcp": f"status:{status}"}, **HEADERLESS) as auth:
        got = await found(auth)
        assert [each.status for each in got.tried] == [status]
        assert auth.paths()[:2] == [PRM + "/mcp", PRM]


@pytest.mark.parametrize(
    "word",
    ["html", "empty", "json_text:[]", 'json_text:{"a":1}', "json_text:{", 'json_text:"x"', "json_text:" + "[" * 5000,
     'json_text:{"issuer":7,"resource":null}', "big_body:400000", "status:204"],
)  # fmt: skip
async def test_f11_what_is_no_document_counts_as_absent(word: str) -> None:
    on = {PRM + "/mcp": word, OAUTH: word}
    async with AuthFaults(prm=["path", "root"], documents=["oauth", "oidc"], on=on, **HEADERLESS) as auth:
        got = await found(auth)
        assert auth.paths() == [PRM + "/mcp", PRM, OAUTH, OIDC]
        assert [each.document for each in got.tried] == ["resource metadata", "server metadata"]
        assert all(each.why for each in got.tried)


async def test_documents_are_found_by_what_they_say_and_not_by_their_type() -> None:
    async with AuthFaults(on={"prm": "type:text/html", "as": "type:"}) as auth:
        assert (await found(auth)).issuer == auth.issuer


async def test_documents_may_be_compressed_chunked_and_begin_with_a_mark() -> None:
    text = '\ufeff{"resource":"{resource}","authorization_servers":["{issuer}"]}'
    async with AuthFaults(on={"prm": "json_text:" + text, "as": "gzip"}) as auth:
        assert (await found(auth)).issuer == auth.issuer


async def test_f11_14_two_hosts() -> None:
    async with AuthFaults(issuer_path="/t") as idp, AuthFaults(servers=[idp.issuer], trusts=idp) as mcp:
        got = await found(mcp)
        assert (got.issuer, got.resource) == (idp.issuer, mcp.resource)
        assert mcp.paths() == [PRM + "/mcp"]
        assert idp.paths() == [OAUTH + "/t"]


async def test_f11_3_every_request_carries_our_user_agent() -> None:
    async with AuthFaults(**HEADERLESS) as auth:
        await found(auth)
        assert {seen.headers["user-agent"].partition("/")[0] for seen in auth.requests} == {"moorings"}


# --- issuer and resource ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["{issuer}/", "https://evil.example", "{issuer}/v2.0/{tenantid}"])
async def test_f11_1_another_issuer_is_refused_with_both_strings_and_the_setting(said: str) -> None:
    async with AuthFaults(issuer_said=said) as auth:
        error = await fault(auth)
        said = auth.filled(said)
        assert (error.kind, error.transient) == ("issuer-mismatch", False)
        assert repr(said) in str(error) and repr(auth.issuer) in str(error)
        assert f'auth.accept_issuer = "{said}"' in str(error)
        assert auth.paths() == [PRM + "/mcp", OAUTH, OIDC]
        got = await found(auth, accept_issuer=said)
        assert (got.issuer, got.metadata.issuer) == (auth.issuer, said)


async def test_f11_1_the_setting_allows_that_one_text_alone() -> None:
    async with AuthFaults(issuer_said="{issuer}//") as auth:
        assert (await fault(auth, accept_issuer=auth.issuer + "/")).kind == "issuer-mismatch"


async def test_f11_1_a_slash_that_both_say_is_a_part_of_it() -> None:
    """We neither add a slash nor take one away."""
    async with AuthFaults(servers=["{issuer}/"], issuer_said="{issuer}/") as auth:
        got = await found(auth)
        assert got.issuer == got.metadata.issuer == auth.origin + "/"
        assert auth.paths()[-1] == OAUTH
    async with AuthFaults(servers=["{issuer}/"], issuer_said="{issuer}") as auth:
        assert (await fault(auth)).kind == "issuer-mismatch"


@pytest.mark.parametrize(
    "said",
    ["https://evil.example/mcp", "{resource}/", "{resource}#x", "{origin}", "{origin}/", "{origin}/MCP",
     "{origin}/mcp/deeper"],
)  # fmt: skip
async def test_another_resource_is_refused_before_anything_else_is_asked(said: str) -> None:
    async with AuthFaults(resource_said=said) as auth:
        error = await fault(auth)
        said = auth.filled(said)
        assert (error.kind, error.transient) == ("resource-mismatch", False)
        assert repr(said) in str(error) and repr(auth.resource) in str(error)
        assert auth.paths() == [PRM + "/mcp", PRM]
        got = await found(auth, accept_resource=said)
        assert (got.resource, got.resource_param) == (auth.resource, said)


@pytest.mark.parametrize("said", ["{resource}?api_key=s3cret", "{origin}/aVery-s3cret-key-0123456789/mcp"])
async def test_f16_5_a_key_in_the_identifier_of_a_resource_is_not_shown(said: str) -> None:
    async with AuthFaults(resource_said=said) as auth:
        error = await fault(auth)
        assert error.kind == "resource-mismatch" and "s3cret" not in str(error)
        assert (await found(auth, accept_resource=auth.filled(said))).resource_param == auth.filled(said)


@pytest.mark.parametrize("said", ["{origin}", "{origin}/", "{resource}"])
@pytest.mark.parametrize(
    "challenge", ["Bearer", 'Bearer resource_metadata="{origin}/.well-known/oauth-protected-resource"']
)
async def test_the_document_at_the_root_is_that_of_the_origin(said: str, challenge: str) -> None:
    async with AuthFaults(prm=["root"], resource_said=said, challenges=[challenge]) as auth:
        assert (await found(auth)).resource_param == auth.filled(said)


@pytest.mark.parametrize(("path", "said"), [("/", "{origin}"), ("/", "{origin}/")])
async def test_a_server_without_a_path_is_one_however_it_is_written(path: str, said: str) -> None:
    async with AuthFaults(prm=["root"], resource_said=said, **HEADERLESS) as auth:
        got = await found(auth, url=auth.origin + path)
        assert (got.resource, got.resource_param) == (auth.origin, auth.filled(said))


async def test_a_key_in_the_query_of_the_server_goes_nowhere() -> None:
    async with AuthFaults(**HEADERLESS) as auth:
        got = await found(auth, url=auth.url + "?api_key=s3cret")
        assert (got.resource, got.resource_param) == (auth.resource, auth.resource)
        assert not any("s3cret" in seen.path for seen in auth.requests)


@pytest.mark.parametrize(
    ("resource", "sent"), [("off", None), ("https://other.example/api", "https://other.example/api")]
)
async def test_f11_11_what_is_sent_as_resource_is_a_setting(resource: str, sent: str | None) -> None:
    async with AuthFaults() as auth:
        got = await found(auth, resource=resource)
        assert (got.resource, got.resource_param) == (auth.resource, sent)


# --- which server -----------------------------------------------------------------------------------------------------


async def test_several_servers_the_first_that_can_be_used() -> None:
    async with AuthFaults(issuer_path="/a", documents=[]) as one, AuthFaults(issuer_path="/b") as two:
        servers = ["nonsense", "https://u:p@x/", one.issuer, two.issuer]
        async with AuthFaults(servers=servers) as mcp:
            got = await found(mcp)
            assert got.issuer == two.issuer
            assert len(one.requests) == 3
            error = await fault(mcp, issuer=one.issuer)
            assert (error.kind, len(error.tried)) == ("no-metadata", 3)


async def test_several_servers_the_one_where_there_is_a_client_of_ours() -> None:
    async with AuthFaults() as one, AuthFaults() as two, AuthFaults(servers=[one.issuer, two.issuer]) as mcp:
        got = await found(mcp, known_issuers=["https://elsewhere", two.issuer])
        assert got.issuer == two.issuer
        assert one.requests == []


async def test_one_that_is_down_is_not_left_for_another() -> None:
    async with AuthFaults(on={"as": "later:503:7"}) as one, AuthFaults() as two:
        async with AuthFaults(servers=[one.issuer, two.issuer]) as mcp:
            error = await fault(mcp)
            assert (error.kind, error.transient, error.retry_after) == ("unreachable", True, 7.0)
            assert two.requests == []


async def test_there_is_a_bound_for_servers_that_are_named() -> None:
    async with AuthFaults(servers=[f"{{origin}}/{at}" for at in range(500)]) as auth:
        assert (await fault(auth)).kind == "no-metadata"
        assert len(auth.requests) == 1 + 3 * discovery.MOST_SERVERS


async def test_f11_3_a_server_named_by_hand() -> None:
    """Whatever the resource says, or does not say."""
    async with AuthFaults() as idp:
        for script in ({"prm": []}, {"servers": ["https://10.0.0.1/"]}, {"on": {"prm": "status:503"}}):
            async with AuthFaults(**script) as mcp:
                got = await found(mcp, issuer=idp.issuer)
                assert (got.issuer, got.legacy) == (idp.issuer, False)
                assert bool(got.notes) == ("servers" in script)
        async with AuthFaults(on={"prm": "silent"}) as silent:
            assert (await found(silent, issuer=idp.issuer, within=2)).issuer == idp.issuer
        async with AuthFaults(resource_said="https://evil.example/") as liar:
            assert (await fault(liar, issuer=idp.issuer)).kind == "resource-mismatch"


# --- 2025-03-26 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["{origin}", "{origin}/"])
@pytest.mark.parametrize("documents", [["oauth"], ["oidc"]])
async def test_without_metadata_of_the_resource_the_origin_is_asked(said: str, documents: list[str]) -> None:
    async with AuthFaults(prm=[], documents=documents, issuer_said=said, **HEADERLESS) as auth:
        got = await found(auth)
        assert (got.issuer, got.legacy) == (auth.filled(said), True)
        assert got.resource_param == auth.resource
        assert got.metadata.token_endpoint == auth.origin + "/token"


async def test_a_resource_that_names_no_server_is_its_own() -> None:
    async with AuthFaults(servers=[]) as auth:
        got = await found(auth)
        assert (got.issuer, got.legacy, got.resource_metadata is not None) == (auth.origin, True, True)


async def test_without_any_metadata_the_usual_endpoints_are_assumed_where_there_are_some() -> None:
    async with AuthFaults(prm=[], documents=[], on={"/token": "status:405"}, **HEADERLESS) as auth:
        got = await found(auth)
        assert got.legacy and got.notes
        assert got.metadata.authorization_endpoint == auth.origin + "/authorize"
        assert got.metadata.registration_endpoint == auth.origin + "/register"
        assert (auth.requests[-1].http, auth.requests[-1].path) == ("OPTIONS", "/token")


async def test_f11_3_nothing_is_invented_where_there_is_nothing() -> None:
    """The authorization server is elsewhere, and nobody says where: the error says how to name it."""
    async with AuthFaults(prm=[], documents=[], on={"/token": "status:404"}, **HEADERLESS) as auth:
        error = await fault(auth)
        assert (error.kind, error.transient) == ("no-metadata", False)
        assert "auth.issuer" in str(error)
        assert not any("register" in path for path in auth.paths())
        # Every document is named, with its address and what came.
        for path in (PRM + "/mcp", PRM, OAUTH, OIDC, "/token"):
            assert f"{auth.origin}{path}: it answered 404" in str(error)


# --- what could not be asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    ["status:500", "status:503", "later:429:3", "die", "close_now", "garbage", "half_headers", "cut_in_body"],
)
@pytest.mark.parametrize("what", ["prm", "as"])
async def test_what_could_not_be_asked_is_not_taken_for_absent(word: str, what: str) -> None:
    async with AuthFaults(on={what: word}, **HEADERLESS) as auth:
        error = await fault(auth)
        assert (error.kind, error.transient) == ("unreachable", True)
        assert error.retry_after == (3.0 if word.startswith("later") else None)
        named = "resource metadata" if what == "prm" else "server metadata"
        assert {each.document for each in error.tried} == {named}
        assert "register" not in str(auth.paths())
        auth.set(on={what: "ok"})
        assert (await found(auth)).issuer == auth.issuer


async def test_one_good_place_makes_up_for_another_that_is_down() -> None:
    on = {PRM + "/mcp": "status:503", OAUTH: "die"}
    async with AuthFaults(prm=["root"], documents=["oidc"], on=on, **HEADERLESS) as auth:
        got = await found(auth)
        assert [each.transient for each in got.tried] == [True, True]


@pytest.mark.parametrize("word", ["silent", "drip:0.05", "stall", "slow:60"])
async def test_all_of_it_has_a_bound(word: str) -> None:
    async with AuthFaults(on={"prm": word}, **HEADERLESS) as auth:
        began = asyncio.get_running_loop().time()
        error = await fault(auth, within=0.4)
        assert asyncio.get_running_loop().time() - began < 3
        assert (error.kind, error.transient) == ("timeout", True)
        assert "of 0.4 s allowed" in str(error)
        assert error.tried[0].url == auth.origin + PRM + "/mcp"


async def test_a_silent_document_leaves_time_for_the_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(discovery, "DOCUMENT_WITHIN", 0.2)
    async with AuthFaults(prm=["root"], on={PRM + "/mcp": "silent"}, **HEADERLESS) as auth:
        assert (await found(auth)).tried[0].transient


@pytest.mark.parametrize("step", [PRM + "/mcp", OAUTH])
async def test_a_caller_may_leave_in_the_middle(step: str) -> None:
    async with AuthFaults(on={step: "hold"}, **HEADERLESS) as auth:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(found(auth))
            await auth.seen("GET", 1 if step != OAUTH else 2)
            task.cancel()
        auth.release(step)
        assert (await found(auth)).issuer == auth.issuer


# --- PKCE and scopes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("methods", [None, [], ["plain"]])
async def test_without_s256_nobody_is_sent_to_a_browser(methods: list[str] | None) -> None:
    async with AuthFaults(metadata={"code_challenge_methods_supported": methods}) as auth:
        error = await fault(auth)
        assert (error.kind, "auth.assume_pkce" in str(error)) == ("pkce", not methods)
        assert (await found(auth, code_flow=False)).issuer == auth.issuer
        if methods:
            assert (await fault(auth, assume_pkce=True)).kind == "pkce"
        else:
            got = await found(auth, assume_pkce=True)
            assert got.metadata.code_challenge_methods_supported == ("S256",) and got.notes


@pytest.mark.parametrize(
    ("configured", "challenged", "resource", "server", "hint"),
    [
        (("a", "b"), "c", ["d"], ["e"], ("a", "b")),
        ((), "c d c", ["d"], ["e"], ("c", "d")),
        ((), None, ["d", "e"], ["f"], ("d", "e")),
        ((), None, [], ["f"], ()),
        ((), None, None, ["f"], ()),
        ((), "", ["d"], None, ("d",)),
        ((), "c", None, ["offline_access"], ("c", "offline_access")),
    ],
)
async def test_f11_8_which_scopes_are_asked_for(
    configured: tuple[str, ...],
    challenged: str | None,
    resource: list[str] | None,
    server: list[str] | None,
    hint: tuple[str, ...],
) -> None:
    challenge = 'Bearer resource_metadata="{prm}"' + (
        f', scope="{challenged}"' if challenged is not None else ""
    )
    async with AuthFaults(
        challenges=[challenge],
        prm_fields={"scopes_supported": resource},
        metadata={"scopes_supported": server},
    ) as auth:
        assert (await found(auth, scopes=configured)).scopes_hint == hint


async def test_a_document_without_a_token_endpoint_is_passed_over() -> None:
    async with AuthFaults(metadata={"token_endpoint": None}) as auth:
        error = await fault(auth)
        assert error.kind == "no-metadata" and "names no token endpoint" in str(error)


# --- where it may lead ------------------------------------------------------------------------------------------------

INSIDE = [
    "https://169.254.169.254/", "https://10.0.0.1/idp", "https://[fd00::1]/",
    "https://2130706433/", "https://0177.0.0.1/", "http://idp.example/",
]  # fmt: skip


@pytest.mark.parametrize("where", INSIDE)
async def test_f16_1_an_authorization_server_inside_is_refused_before_connecting(where: str) -> None:
    async with AuthFaults(servers=[where], **HEADERLESS) as auth:
        error = await fault(auth)
        assert (error.kind, error.transient) == ("refused", False)
        assert "refused before connecting" in str(error)
        if "10.0.0.1" in where:
            assert "auth.private_networks" in str(error)


@pytest.mark.parametrize("where", INSIDE)
async def test_f16_1_metadata_of_the_resource_inside_is_refused(where: str) -> None:
    async with AuthFaults(challenges=[f'Bearer resource_metadata="{where}"']) as auth:
        assert (await fault(auth)).kind == "refused"
        assert auth.requests == []


async def test_f16_1_loopback_is_for_a_loopback_server_alone() -> None:
    """The same documents, read as those of a server elsewhere."""
    async with AuthFaults(**HEADERLESS) as auth, speaking(loopback=False) as http:
        for host in ("127.0.0.1", "localhost", "a.localhost", "[::ffff:127.0.0.1]", "[::1]"):
            named = f"http://{host}:{auth.port}{PRM}/mcp"
            challenges = parse_challenges([f'Bearer resource_metadata="{named}"'])
            with pytest.raises(DiscoveryFault) as told:
                deadline = asyncio.get_running_loop().time() + WITHIN
                await discover(http, "https://192.0.2.1/mcp", challenges, Settings(), deadline)
            assert told.value.kind == "refused"
        assert auth.connections == 0


@pytest.mark.parametrize("step", ["prm", "as"])
@pytest.mark.parametrize("where", ["http://169.254.169.254/", "https://10.0.0.1/", "http://idp.example/"])
async def test_f16_2_a_redirect_to_the_inside_at_the_second_hop_is_refused_there(
    step: str, where: str
) -> None:
    on = {step: "redirect:302:{origin}/hop", "/hop": f"redirect:307:{where}"}
    async with AuthFaults(on=on, **HEADERLESS) as auth:
        assert (await fault(auth)).kind == "refused"
        assert auth.paths()[-1] == "/hop"


async def test_redirects_of_documents_are_followed_for_five_hops() -> None:
    text = '{"resource":"{resource}","authorization_servers":["{issuer}"]}'
    hops = {f"/{at}": f"redirect:302:/{at + 1}" for at in range(1, 5)}
    async with AuthFaults(
        on={"prm": "redirect:301:/1", **hops, "/5": "json_text:" + text}, **HEADERLESS
    ) as auth:
        assert (await found(auth)).issuer == auth.issuer
    on = {"prm": "redirect:301:/1", "/1": "redirect:301:/1", "/token": "status:404"}
    async with AuthFaults(on=on, documents=[], **HEADERLESS) as auth:
        error = await fault(auth)
        assert "which was not followed" in str(error)
        assert len(auth.at("/1")) == 5 * 2


async def test_f16_7_what_servers_say_stands_in_errors_without_what_is_unseen() -> None:
    async with AuthFaults(issuer_said="https://evil.example/\x1b[31m\u202e\n" + "x" * 5000) as auth:
        text = str(await fault(auth))
        assert text.isprintable() and len(text) < 4000


async def test_the_url_of_a_server_that_is_none_is_typed() -> None:
    async with AuthFaults() as auth:
        assert (await fault(auth, url="mcp.example")).kind == "url"
