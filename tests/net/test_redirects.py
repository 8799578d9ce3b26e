"""Redirects (F16.3): what is followed, and that nothing of the caller's crosses an origin."""

from __future__ import annotations

from typing import Any

import pytest

from moorings.net import NetSettings, RedirectRefused
from tests.net.kit import Line, Request, answering, client, get, post, serving

SECRET = {
    "Authorization": "Bearer s3cret",
    "X-API-Key": "s3cret",
    "Accept": "application/json",
    "Mcp-Session-Id": "s",
}


class Mover:
    """Answers each path with what the test says; the rest with 200."""

    def __init__(self) -> None:
        self.moves: dict[str, tuple[int, str]] = {}
        self.got: list[Request] = []

    async def script(self, line: Line) -> None:
        while (request := await line.request()) is not None:
            self.got.append(request)
            status, location = self.moves.get(request.target, (200, ""))
            if location:
                line.answer(b"moved", status, Location=location)
            else:
                line.answer(b"there", status)


@pytest.mark.parametrize("status", [307, 308])
async def test_a_post_is_repeated_at_its_origin(status: int) -> None:
    mover = Mover()
    mover.moves = {"/mcp": (status, "/mcp/?a=1"), "/mcp/?a=1": (status, "deep")}
    async with serving(mover.script) as server, client() as http:
        assert await post(http, f"http://127.0.0.1:{server.port}/mcp", headers=SECRET) == (200, b"there")
    assert [request.target for request in mover.got] == ["/mcp", "/mcp/?a=1", "/mcp/deep"]
    assert {request.body for request in mover.got} == {b'{"id":1}'}
    assert {request.headers["authorization"] for request in mover.got} == {"Bearer s3cret"}


async def refused(redirects: str, method: str, status: int, location: str) -> tuple[RedirectRefused, Mover]:
    mover = Mover()
    mover.moves = {"/mcp": (status, location)}
    send = post if method == "POST" else get
    async with serving(mover.script) as server, client() as http:
        with pytest.raises(RedirectRefused) as told:
            await send(http, f"http://127.0.0.1:{server.port}/mcp", headers=SECRET, redirects=redirects)
    return told.value, mover


@pytest.mark.parametrize(
    ("redirects", "method", "status", "location"),
    [
        ("same-origin", "POST", 301, "/x"),
        ("same-origin", "POST", 302, "/x"),
        ("get", "POST", 303, "/x"),
        ("same-origin", "POST", 307, "http://other.invalid/x?key=s3cret"),
        ("get", "POST", 308, "http://other.invalid/x"),
        ("same-origin", "GET", 302, "http://other.invalid/x"),
        ("same-origin", "GET", 302, "//other.invalid/x"),
        ("none", "GET", 302, "/x"),
        ("none", "POST", 307, "/x"),
        ("get", "GET", 302, "ftp://other.invalid/"),
        ("get", "GET", 302, "javascript:alert(1)"),
        ("get", "GET", 302, "http://[x/"),
    ],
)
async def test_f16_3_what_is_not_followed_is_told_and_went_nowhere(
    redirects: str, method: str, status: int, location: str
) -> None:
    error, mover = await refused(redirects, method, status, location)
    assert len(mover.got) == 1
    assert (error.status, error.sent) == (status, False)
    assert "s3cret" not in str(error) + error.location


async def test_f16_3_another_port_is_another_origin() -> None:
    other: list[Request] = []
    async with serving(answering(other)) as there:
        for method in ("GET", "POST"):
            await refused("same-origin", method, 307, f"http://127.0.0.1:{there.port}/")
    assert other == []


async def test_f16_3_a_get_crosses_without_the_callers_headers_and_never_gets_them_back() -> None:
    one, two = Mover(), Mover()
    async with serving(one.script) as here, serving(two.script) as there:
        base = f"http://127.0.0.1:{here.port}"
        one.moves = {"/a": (302, f"http://u:p@127.0.0.1:{there.port}/b")}
        two.moves = {"/b": (301, base + "/c")}
        settings = NetSettings(cookies=True)
        async with client(settings) as http:
            headers = {**SECRET, "Cookie": "s3cret=1", "User-Agent": "me"}
            assert await get(http, base + "/a", headers=headers, redirects="get") == (200, b"there")
    assert [request.target for request in (*one.got, *two.got)] == ["/a", "/c", "/b"]
    assert one.got[0].headers["authorization"] == "Bearer s3cret"
    for request in (one.got[1], two.got[0]):
        assert set(request.headers) == {"host", "accept", "user-agent", "accept-encoding"}
        assert (request.headers["accept"], request.headers["user-agent"]) == ("application/json", "me")


@pytest.mark.parametrize(("hops", "fine"), [(5, True), (6, False)])
async def test_there_are_five_at_most(hops: int, fine: bool) -> None:
    mover = Mover()
    mover.moves = {f"/{at}": (307, f"/{at + 1}") for at in range(hops)}
    async with serving(mover.script) as server, client() as http:
        url = f"http://127.0.0.1:{server.port}/0"
        if fine:
            assert (await post(http, url))[0] == 200
        else:
            with pytest.raises(RedirectRefused):
                await post(http, url)
        assert len(mover.got) == 6


@pytest.mark.parametrize("status", [300, 304, 307])
async def test_without_a_location_it_is_an_answer(status: int) -> None:
    got: list[Request] = []
    async with serving(answering(got, b"", status)) as server, client() as http:
        assert (await get(http, f"http://127.0.0.1:{server.port}/"))[0] == status


async def test_a_login_in_the_url_stays_at_its_origin() -> None:
    mover = Mover()
    mover.moves = {"/a": (307, "/b")}
    async with serving(mover.script) as server, client() as http:
        await post(http, f"http://u:p@127.0.0.1:{server.port}/a")
    assert [request.headers.get("authorization") for request in mover.got] == ["Basic dTpw"] * 2


async def test_cookies_are_kept_only_where_asked_and_by_each_client_alone() -> None:
    async def script(line: Line) -> None:
        while (request := await line.request()) is not None:
            seen.append(request.headers.get("cookie"))
            line.answer(b"", 200, Set_Cookie="sid=1; Path=/")

    seen: list[Any] = []
    async with serving(script) as server:
        url = f"http://localhost:{server.port}/"
        async with client() as http:
            await post(http, url)
            await post(http, url)
            for _ in range(2):
                other = http._net.client(NetSettings(cookies=True))
                await post(other, url)
                await post(other, url)
    assert seen == [None, None, None, "sid=1", None, "sid=1"]
