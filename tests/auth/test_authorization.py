"""An authorization request and its answer: bound together, in the order of trust, by the table of RFC 9207."""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings._secret import Secret
from moorings.auth.authorization import AuthorizationRequest, check_browser_url, is_for, push
from moorings.auth.faults import (
    AuthFault,
    GrantError,
    LoginDenied,
    LoginFault,
    NeedsClient,
    StrayCallback,
    WrongIssuer,
)
from moorings.auth.pkce import challenge_of, new_verifier
from tests.auth.grants_kit import REDIRECT, Canned, a_client, a_server, in_json, soon

ISSUER = "https://as.example"


def begun(*, iss: bool = False, server: dict[str, Any] | None = None, **wishes: Any) -> AuthorizationRequest:
    metadata = a_server(authorization_response_iss_parameter_supported=iss, **(server or {}))
    wishes = {"redirect_uri": REDIRECT, "resource": "https://mcp.example/mcp", "scopes": ("a", "b"), **wishes}
    return AuthorizationRequest.begin(metadata, a_client(), **wishes)


def answer(request: AuthorizationRequest, **params: str | None) -> str:
    values = {"code": "C0DE", "state": request.state.reveal(), **params}
    return urlencode({name: value for name, value in values.items() if value is not None})


def test_the_url_holds_what_the_specification_wants() -> None:
    request = begun(authorize_params={"audience": "x y"}, dpop_jkt="thumb")
    parts = urlsplit(request.url)
    asked = dict(parse_qsl(parts.query))
    assert request.url.startswith("https://as.example/authorize?response_type=code&client_id=me&")
    digest = hashlib.sha256(request.verifier.reveal().encode()).digest()
    assert asked["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert asked == {
        "response_type": "code",
        "client_id": "me",
        "redirect_uri": REDIRECT,
        "state": request.state.reveal(),
        "code_challenge": challenge_of(request.verifier),
        "code_challenge_method": "S256",
        "scope": "a b",
        "resource": "https://mcp.example/mcp",
        "dpop_jkt": "thumb",
        "audience": "x y",
    }
    assert "+" not in request.url and request.verifier.reveal() not in request.url


def test_the_rfc_7636_example_comes_out() -> None:
    verifier = Secret("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    assert challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    assert 43 <= len(new_verifier().reveal()) <= 128
    assert new_verifier() != new_verifier()


def test_f11_8_what_is_not_wanted_is_left_out() -> None:
    asked = dict(parse_qsl(urlsplit(begun(scopes=(), resource=None).url).query))
    assert not {"scope", "resource", "dpop_jkt", "prompt"} & set(asked)


def test_offline_access_asks_for_consent_as_openid_connect_demands() -> None:
    asked = dict(parse_qsl(urlsplit(begun(scopes=("offline_access",)).url).query))
    assert asked["prompt"] == "consent"
    own = begun(scopes=("offline_access",), authorize_params={"prompt": "login"})
    assert parse_qsl(urlsplit(own.url).query).count(("prompt", "login")) == 1
    assert "consent" not in own.url


def test_an_endpoint_keeps_its_own_query() -> None:
    url = begun(server={"authorization_endpoint": "https://as.example/a?tenant=1"}).url
    assert url.startswith("https://as.example/a?tenant=1&response_type=code&")


@pytest.mark.parametrize(
    "name", ["state", "redirect_uri", "code_challenge", "resource", "scope", "client_id"]
)
def test_the_configuration_cannot_set_what_binds_the_attempt(name: str) -> None:
    with pytest.raises(LoginFault, match=name):
        begun(authorize_params={name: "x"})


def test_without_s256_nobody_is_sent_anywhere() -> None:
    with pytest.raises(LoginFault, match="S256"):
        begun(server={"code_challenge_methods_supported": ("plain",)})


def test_a_client_that_cannot_work_troubles_no_person() -> None:
    with pytest.raises(NeedsClient, match="has no secret"):
        AuthorizationRequest.begin(
            a_server(), a_client(auth_method="client_secret_post"), redirect_uri=REDIRECT, resource=None
        )


# --- the iss table of client-rules 6.1, 10


@pytest.mark.parametrize(
    ("promised", "iss", "outcome"),
    [
        (True, ISSUER, "code"),
        (True, "https://other.example", WrongIssuer),
        (True, None, WrongIssuer),
        (True, "", WrongIssuer),
        (False, ISSUER, "code"),
        (False, "https://other.example", WrongIssuer),
        (False, "", WrongIssuer),
        (False, None, "code"),
        # no normalisation of any kind
        (True, ISSUER + "/", WrongIssuer),
        (False, ISSUER + "/", WrongIssuer),
        (True, ISSUER.upper(), WrongIssuer),
        (True, "https://AS.example", WrongIssuer),
        (True, "https://as.example:443", WrongIssuer),
        (True, "https://as.exampl%65", WrongIssuer),
        (True, quote(ISSUER, safe=""), WrongIssuer),  # encoded twice: decoded once
        (True, " " + ISSUER, WrongIssuer),
    ],
)
@pytest.mark.parametrize("error", [False, True])
def test_f12_11_the_iss_table(promised: bool, iss: str | None, outcome: Any, error: bool) -> None:
    request = begun(iss=promised)
    bait = {"code": None, "error": "access_denied", "error_description": "visit https://evil.example"}
    callback = answer(request, iss=iss, **(bait if error else {}))
    if outcome == "code" and not error:
        assert request.finish(callback) == Secret("C0DE")
        return
    with pytest.raises(LoginDenied if outcome == "code" else outcome) as caught:
        request.finish(callback)
    if outcome is WrongIssuer:
        # Its words are anybody's: not acted on, not shown.
        assert "evil" not in str(caught.value) and "denied" not in str(caught.value)
        assert "other.example" not in str(caught.value)


def test_f12_2_strays_do_not_end_the_attempt() -> None:
    request = begun()
    state = request.state.reveal()
    for stray in (
        "",
        "code=x",
        "code=x&state=",
        "code=x&state=wrong",
        "error=access_denied&state=wrong",
        "error=access_denied",
        f"code=x&state={state}&state=wrong",
        f"code=x&code=y&state={state}",
        f"code=x&state={state.lower()}x",
        f"code=x&state=%C3%A9{state}",
        "&".join(f"a{n}=1" for n in range(500)),
        "code=" + "x" * 100_000,
    ):
        with pytest.raises(StrayCallback):
            request.finish(stray)
    assert request.finish(answer(request)).reveal() == "C0DE"


def test_f12_8_a_whole_url_a_query_and_pairs_are_all_read() -> None:
    request = begun()
    query = answer(request, code="a+b/c=&d")
    for callback in (
        query,
        "?" + query,
        f"{REDIRECT}?{query}",
        f"  {REDIRECT}?{query}#_=_\n",
        parse_qsl(query),
    ):
        assert request.finish(callback).reveal() == "a+b/c=&d"


def test_f12_9_the_answers_of_two_logins_are_not_exchanged() -> None:
    one, two = begun(), begun()
    assert one.state != two.state and one.verifier != two.verifier
    with pytest.raises(StrayCallback):
        one.finish(answer(two))
    assert one.finish(answer(one)) and two.finish(answer(two))


def test_a_refusal_says_why_and_what_to_do() -> None:
    request = begun()
    with pytest.raises(LoginDenied) as caught:
        request.finish(answer(request, code=None, error="invalid_scope", error_description="no\x1b[31m\nway"))
    assert caught.value.code == "invalid_scope" and caught.value.description == "no [31m way"
    assert "auth.scopes" in str(caught.value)


def test_f11_11_an_entra_like_server_is_told_apart_and_the_setting_named() -> None:
    request = begun()
    callback = answer(
        request,
        code=None,
        error="invalid_request",
        error_description="AADSTS9010010: The resource parameter…",
    )
    with pytest.raises(LoginDenied, match=r'auth\.resource = "off"'):
        request.finish(callback)
    with pytest.raises(LoginDenied) as caught:
        begun_without = begun(resource=None)
        begun_without.finish(answer(begun_without, code=None, error="invalid_target"))
    assert "auth.resource" not in str(caught.value)


def test_neither_code_nor_error_ends_the_attempt() -> None:
    request = begun()
    for code in (None, "", "a\nb", "x" * 20_000):
        with pytest.raises(LoginFault, match="neither a code nor an error"):
            request.finish(answer(request, code=code))


def test_f16_5_nothing_of_an_attempt_shows() -> None:
    request = begun()
    hidden = [request.state.reveal(), request.verifier.reveal(), "C0DE"]
    with pytest.raises(LoginDenied) as caught:
        request.finish(answer(request, error="x", error_description=f"{hidden[0]} {hidden[1]} C0DE"))
    for text in (repr(request), str(caught.value), repr(request.finish(answer(request)))):
        assert not any(each in text for each in hidden)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("javascript:alert(1)", "scheme"),
        ("JavaScript://as.example/%0aalert(1)", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("data:text/html,x", "scheme"),
        ("vbscript:x", "scheme"),
        ("ms-settings:x", "scheme"),
        ("//as.example/authorize", "scheme"),
        ("", "names no"),
        ("http://as.example/authorize", "not https"),
        ("https://as.example/a b", "characters"),
        ('https://as.example/"&calc', "characters"),
        ("https://as.example/`id`", "characters"),
        ("https://as.example/\x1b]8;;", "characters"),
        ("https://as.example\\@evil.example/", "characters"),
        ("https://as.example/é", "characters"),
        ("https://u:p@as.example/", "user or a fragment"),
        ("https://as.example/#f", "user or a fragment"),
        ("https:///authorize", "cannot be used"),
        ("https://as.example:x/", "cannot be used"),
        ("https://[::1/", "cannot be used"),
    ],
)
def test_f16_4_what_no_browser_is_given(url: str, said: str) -> None:
    with pytest.raises(LoginFault, match=said):
        check_browser_url(url)
    with pytest.raises(LoginFault, match=said):
        begun(server={"authorization_endpoint": url})


@pytest.mark.parametrize(
    "url",
    ["https://as.example/a?b=c&d=%20", "http://127.0.0.1:1/a", "http://[::1]:1/a", "http://localhost/a"],
)
def test_f16_4_what_a_browser_is_given(url: str) -> None:
    check_browser_url(url)
    assert begun(server={"authorization_endpoint": url})


@given(st.text(max_size=200))
def test_no_callback_breaks_the_reader(callback: str) -> None:
    with pytest.raises(AuthFault):
        begun().finish(callback)


@given(st.text(), st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=4))
def test_what_the_user_adds_comes_out_as_it_went_in(resource: str, params: dict[str, str]) -> None:
    try:
        request = begun(resource=resource, authorize_params=params)
        found = parse_qsl(urlsplit(request.url).query, keep_blank_values=True)
    except (LoginFault, UnicodeEncodeError):
        return
    for pair in params.items():
        assert pair in found


# --- pushed (RFC 9126)


async def test_a_pushed_request_leaves_a_reference_in_the_url() -> None:
    metadata = a_server(pushed_authorization_request_endpoint="https://as.example/par")
    http = Canned(in_json({"request_uri": "urn:x:1", "expires_in": 60}, 201))
    request = begun()
    pushed = await push(http, metadata, a_client(), request, soon())
    assert pushed.url == "https://as.example/authorize?client_id=me&request_uri=urn%3Ax%3A1"
    url, form, _ = http.asked[0]
    assert url.endswith("/par") and dict(form)["state"] == request.state.reveal()
    assert [name for name, _ in form].count("client_id") == 1
    assert pushed.finish(answer(request)).reveal() == "C0DE"


async def test_a_push_that_is_refused_is_typed() -> None:
    metadata = a_server(pushed_authorization_request_endpoint="https://as.example/par")
    for reply in (in_json({"error": "invalid_request"}, 400), in_json({}, 201)):
        with pytest.raises(GrantError):
            await push(Canned(reply), metadata, a_client(), begun(), soon())
    with pytest.raises(GrantError, match="names no endpoint"):
        await push(Canned(), a_server(), a_client(), begun(), soon())


@pytest.mark.parametrize("code", ["a?b", "?", "a?state=x", "https://x?y"])
def test_a_question_mark_in_a_query_is_a_part_of_it(code: str) -> None:
    """RFC 3986 §3.4 lets it stand there as it is."""
    request = begun()
    state = request.state.reveal()
    for query in (f"code={code}&state={state}", f"state={state}&code={code}"):
        for callback in (query, f"?{query}", f"{REDIRECT}?{query}", f"http://127.0.0.1:9/a=b?{query}"):
            assert is_for(callback, request.state)
            assert request.finish(callback).reveal() == code


@pytest.mark.parametrize(
    "query",
    [
        "",
        "state=",
        "state=x",
        "code=a",
        "state={0}&state={0}",
        "state={0}&code=a&code=a",
        "state={0}x",
        "State={0}",
    ],
)
def test_what_is_for_another_attempt(query: str) -> None:
    request = begun()
    assert not is_for(query.format(request.state.reveal()), request.state)


def test_an_error_is_for_its_attempt_too() -> None:
    request = begun()
    assert is_for(f"error=access_denied&state={request.state.reveal()}", request.state)
