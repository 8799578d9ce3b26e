"""Through real proxies, with a login, and round them (F14.8)."""

from __future__ import annotations

import socket
import ssl
import sys

import pytest
import trustme

from moorings.errors import ConfigError, MisuseError
from moorings.net import NetSettings, ProxyFailed, TlsFailed
from tests.net.kit import (
    HttpProxy,
    Line,
    Request,
    SocksProxy,
    answering,
    client,
    get,
    post,
    server_tls,
    serving,
)

# No name server knows it: only the proxy can lead there.
HOST = "mcp.invalid"


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return str(path)


def tls(ca: trustme.CA, *names: str) -> ssl.SSLContext:
    return server_tls(ca.issue_cert(*names))


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("by", ["settings", "environment"])
async def test_f14_8_an_authenticating_proxy_carries_all(
    by: str, secure: bool, ca: trustme.CA, ca_file: str
) -> None:
    proxy, got = HttpProxy("me:p@ss"), []  # type: ignore[var-annotated]
    async with (
        serving(proxy.script) as via,
        serving(answering(got), tls=tls(ca, HOST) if secure else None) as server,
    ):
        at = f"http://me:p%40ss@127.0.0.1:{via.port}"
        scheme = "https" if secure else "http"
        settings = NetSettings(ca_file=ca_file, proxy=at if by == "settings" else None)
        environ = {f"{scheme.upper()}_PROXY": at} if by == "environment" else {}
        async with client(settings, **environ) as http:
            for _ in range(3):
                assert await post(http, f"{scheme}://{HOST}:{server.port}/mcp?a=1") == (200, b"{}")
    assert [request.target for request in got] == ["/mcp?a=1"] * 3
    assert all("proxy-authorization" not in request.headers for request in got)
    if secure:
        # One tunnel, kept.
        assert [asked[:2] for asked in proxy.asked] == [("CONNECT", f"{HOST}:{server.port}")]


async def test_f14_8_what_is_excepted_and_loopback_go_round_it() -> None:
    got: list[Request] = []
    async with serving(answering(got)) as server:
        async with client(NetSettings(proxy="http://127.0.0.1:1")) as http:
            await post(http, f"http://127.0.0.1:{server.port}/")
            await post(http, f"http://localhost:{server.port}/")
        async with client(ALL_PROXY="http://127.0.0.1:1", NO_PROXY="nothing") as http:
            await post(http, f"http://127.0.0.1:{server.port}/")
            with pytest.raises(ProxyFailed):
                await post(http, f"http://{HOST}:{server.port}/")
        async with client(ALL_PROXY="http://127.0.0.1:1", NO_PROXY=f".invalid:{server.port}") as http:
            with pytest.raises(Exception, match="name of its host"):
                await post(http, f"http://{HOST}:{server.port}/")
    assert len(got) == 3


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize(
    ("login", "status", "told"), [("me:other", None, 407), (None, 403, 403), (None, 502, 502)]
)
async def test_a_proxy_that_says_no_is_told_with_its_status(
    login: str | None, status: int | None, told: int, secure: bool
) -> None:
    proxy = HttpProxy(login, status)
    async with serving(proxy.script) as via:
        async with client(NetSettings(proxy=f"http://me:s3cret@127.0.0.1:{via.port}")) as http:
            if not secure and told != 407:
                # On plain http it may as well be the server's own.
                assert (await post(http, f"http://{HOST}/"))[0] == told
                return
            with pytest.raises(ProxyFailed) as failed:
                await post(http, f"{'https' if secure else 'http'}://{HOST}/")
    error = failed.value
    assert (error.status, error.sent, error.proxy) == (told, False, f"http://…@127.0.0.1:{via.port}")
    assert "s3cret" not in str(error)


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("place", ["127.0.0.1:1", "proxy.invalid:1"])
async def test_a_proxy_that_is_not_there_is_told(place: str, secure: bool) -> None:
    async with client(NetSettings(proxy=f"http://{place}")) as http:
        with pytest.raises(ProxyFailed) as failed:
            await post(http, f"{'https' if secure else 'http'}://{HOST}/")
    assert (failed.value.sent, failed.value.proxy) == (False, f"http://{place}")


async def breaks_off(line: Line) -> None:
    await line.request()


async def talks_nonsense(line: Line) -> None:
    await line.request()
    line.say(b"what?\r\n\r\n")


@pytest.mark.parametrize("script", [breaks_off, talks_nonsense])
async def test_a_proxy_that_breaks_off_before_the_tunnel_stands_is_told(script: object) -> None:
    async with serving(script) as via, client(NetSettings(proxy=f"http://127.0.0.1:{via.port}")) as http:  # type: ignore[arg-type]
        with pytest.raises(ProxyFailed) as failed:
            await post(http, f"https://{HOST}/")
    assert failed.value.sent is False


@pytest.mark.leak_ok("log", reason="in debug mode asyncio tells of clients that break a handshake off")
async def test_behind_a_proxy_the_servers_certificate_counts(ca: trustme.CA, ca_file: str) -> None:
    proxy = HttpProxy()
    async with serving(proxy.script) as via, serving(answering([]), tls=tls(ca, "other.invalid")) as server:
        settings = NetSettings(ca_file=ca_file, proxy=f"http://127.0.0.1:{via.port}")
        async with client(settings) as http:
            with pytest.raises(TlsFailed) as failed:
                await post(http, f"https://{HOST}:{server.port}/")
    assert failed.value.kind == "wrong-host"
    assert "the server" in failed.value.reason


@pytest.mark.leak_ok("log", reason="in debug mode asyncio tells of clients that break a handshake off")
async def test_a_proxy_may_speak_tls_itself(ca: trustme.CA, ca_file: str) -> None:
    proxy, got = HttpProxy(), []  # type: ignore[var-annotated]
    async with (
        serving(proxy.script, tls=tls(ca, "127.0.0.1")) as via,
        serving(answering(got)) as plain,
        serving(answering(got), tls=tls(ca, HOST)) as secure,
    ):
        settings = NetSettings(ca_file=ca_file, proxy=f"https://127.0.0.1:{via.port}")
        async with client(settings) as http:
            await post(http, f"http://{HOST}:{plain.port}/")
            await post(http, f"https://{HOST}:{secure.port}/")
        async with client(NetSettings(proxy=settings.proxy)) as http:
            with pytest.raises(TlsFailed, match="the proxy"):
                await post(http, f"https://{HOST}:{secure.port}/")
    assert len(got) == 2


async def test_a_407_through_a_tunnel_is_the_servers_own(ca: trustme.CA, ca_file: str) -> None:
    proxy = HttpProxy()
    async with serving(proxy.script) as via, serving(answering([], b"", 407), tls=tls(ca, HOST)) as server:
        async with client(NetSettings(ca_file=ca_file, proxy=f"http://127.0.0.1:{via.port}")) as http:
            assert (await post(http, f"https://{HOST}:{server.port}/"))[0] == 407


# --- SOCKS --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("login", [None, ("me", "p@ss")])
async def test_f14_8_a_socks_proxy_carries_all_and_looks_the_name_up(
    login: tuple[str, str] | None, secure: bool, ca: trustme.CA, ca_file: str
) -> None:
    proxy, got = SocksProxy(login), []  # type: ignore[var-annotated]
    async with (
        serving(proxy.script) as via,
        serving(answering(got), tls=tls(ca, HOST) if secure else None) as server,
    ):
        user = "me:p%40ss@" if login else ""
        settings = NetSettings(ca_file=ca_file, proxy=f"socks5h://{user}127.0.0.1:{via.port}")
        async with client(settings) as http:
            for _ in range(3):
                await post(http, f"{'https' if secure else 'http'}://{HOST}:{server.port}/x")
    assert proxy.asked == [(HOST, server.port)]
    assert [request.target for request in got] == ["/x"] * 3


async def test_socks5_looks_the_name_up_here() -> None:
    proxy = SocksProxy()
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, 80)
    except OSError:
        pytest.skip("this machine does not know its own name")
    async with serving(proxy.script) as via, serving(answering([])) as server:
        async with client(NetSettings(proxy=f"socks5://127.0.0.1:{via.port}")) as http:
            await get(http, f"http://{name}:{server.port}/")
            assert proxy.asked[0][0] != name
            with pytest.raises(Exception, match="name of its host"):
                await get(http, f"http://{HOST}:{server.port}/")


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (SocksProxy(reply=2), "rules"),
        (SocksProxy(reply=5), "refused the connection"),
        (SocksProxy(("me", "other")), "does not know"),
    ],
)
async def test_a_socks_proxy_that_says_no_is_told(proxy: SocksProxy, said: str) -> None:
    async with serving(proxy.script) as via:
        async with client(NetSettings(proxy=f"socks5h://me:s3cret@127.0.0.1:{via.port}")) as http:
            with pytest.raises(ProxyFailed, match=said) as failed:
                await post(http, f"http://{HOST}/")
    assert failed.value.sent is False
    assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize("place", ["127.0.0.1:1", "proxy.invalid:1080"])
async def test_a_socks_proxy_that_is_not_there_is_told(place: str) -> None:
    async with client(NetSettings(proxy=f"socks5h://{place}")) as http:
        with pytest.raises(ProxyFailed) as failed:
            await post(http, f"http://{HOST}/")
    assert failed.value.sent is False


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "python_socks", None)
    async with client(NetSettings(proxy="socks5h://127.0.0.1:1")) as http:
        with pytest.raises(ConfigError, match=r"moorings\[socks\]"):
            await post(http, f"http://{HOST}/")


async def test_a_proxy_of_the_environment_that_is_none_is_told() -> None:
    async with client(HTTPS_PROXY="ftp://me:s3cret@proxy") as http:
        with pytest.raises(MisuseError) as told:
            await post(http, f"https://{HOST}/")
    assert "s3cret" not in str(told.value)
