"""F16.1, F16.2, F16.3: where a URL from a server may lead, and that what was checked is what is dialled."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from moorings.errors import MisuseError
from moorings.net import AddressRefused, NetSettings, RedirectRefused, TlsFailed
from moorings.net.vetting import Vetting, judge, judge_host, passing
from tests.host.kit import threads_end
from tests.net.kit import HttpProxy, Line, Request, SocksProxy, answering, client, get, server_tls, serving

CLOSED = Vetting()
PRIVATE = Vetting(private=True)
LOCAL = Vetting(loopback=True)

KINDS = {
    "metadata": "169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254 fd20:ce::254",
    "loopback": "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1",
    "link-local": "169.254.1.1 fe80::1 fe80::1%eth0 ::ffff:169.254.9.9",
    "private": "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 198.18.0.7 fd00::1 fc00::1 fec0::1 ::ffff:10.1.2.3 "
    "64:ff9b::a00:1",
    "shared": "100.64.0.1 100.127.255.255",
    "multicast": "224.0.0.1 239.255.255.250 ff02::1",
    "unspecified": "0.0.0.0 0.1.2.3 ::",
    "reserved": "192.0.0.8 192.0.2.1 192.88.99.1 198.51.100.1 203.0.113.1 240.0.0.1 255.255.255.255 2001:db8::1 100::1 "
    "3fff::1 4000::1 5f00::1 2001:2::1 ::8.8.8.8 ::ffff:0:8.8.8.8",
    "tunnel": "2002:7f00:1:: 2002:a00:1:: 2002:808:808:: 2001:0:4136:e378:8000:63bf:3fff:fdd2 64:ff9b::7f00:1 "
    "64:ff9b::a9fe:a9fe 64:ff9b:1::1 ::127.0.0.1 2606:4700::200:5efe:7f00:1 2606:4700:1:1:0:5efe:a00:1",
    "malformed": "127.1 2130706433 0x7f.0.0.1 0177.0.0.1 1.2.3 ::g name.example",
}  # fmt: skip
PUBLIC = "8.8.8.8 1.1.1.1 172.32.0.1 100.128.0.1 2606:4700::1111 2a00:1450::1 ::ffff:8.8.8.8 64:ff9b::808:808"


@pytest.mark.parametrize(
    ("kind", "address"), [(kind, each) for kind, text in KINDS.items() for each in text.split()]
)
def test_f16_1_what_is_refused_and_as_what(kind: str, address: str) -> None:
    refusal = judge(address, "idp.example", CLOSED)
    assert refusal is not None and refusal.kind == kind
    passes = judge(address, "idp.example", PRIVATE) is None
    assert passes == (kind in ("private", "shared"))
    # A name that is none of this machine never leads here, whatever is allowed.
    assert (judge(address, "idp.example", LOCAL) is None) is False


@pytest.mark.parametrize("address", PUBLIC.split())
def test_what_is_public_passes(address: str) -> None:
    assert judge(address, "idp.example", CLOSED) is None


@pytest.mark.parametrize(
    ("address", "host", "fine"),
    [
        ("127.0.0.1", "localhost", True),
        ("::1", "a.localhost.", True),
        ("127.0.0.9", "127.0.0.9", True),
        ("::1", "[::1]", True),
        ("8.8.8.8", "localhost", False),
        ("10.0.0.1", "localhost", False),
        ("64:ff9b::7f00:1", "localhost", False),
        ("127.0.0.1", "localhost.example", False),
    ],
)
def test_f16_1_a_loopback_url_leads_to_loopback_and_nothing_else_does(
    address: str, host: str, fine: bool
) -> None:
    assert (judge(address, host, Vetting(private=True, loopback=True)) is None) == fine
    assert judge(address, host, PRIVATE) is not None


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("idp.example", None),
        ("8.8.8.8", None),
        ("8.8.8.8.", None),
        ("10.0.0.1", "private"),
        ("10.0.0.1.", "private"),
        ("[fd00::1]", "private"),
        ("localhost", "loopback"),
        ("127.0.0.1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
    ],
)
def test_the_host_of_a_url(host: str, kind: str | None) -> None:
    refusal = judge_host(host, CLOSED)
    assert (refusal and refusal.kind) == kind


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_nothing_of_this_machine_or_its_networks_ever_passes(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    refusal = judge(str(address), "idp.example", CLOSED)
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        assert refusal is not None
    if isinstance(address, ipaddress.IPv6Address) and refusal is None:
        inner = address.ipv4_mapped
        assert inner is None or judge(str(inner), "idp.example", CLOSED) is None
    good, bad = passing([str(address)], "idp.example", CLOSED)
    assert bool(good) == (bad is None) == (refusal is None)


@given(st.text(max_size=40))
def test_any_text_is_judged(text: str) -> None:
    judge(text, text, LOCAL)
    judge_host(text, LOCAL)


# --- over real sockets --------------------------------------------------------------------------------------------

VETTED = NetSettings(vetted=True)
LOOPBACK = NetSettings(vetted=True, loopback=True)


async def refused(url: str, settings: NetSettings = VETTED, **environ: str) -> AddressRefused:
    async with client(settings, **environ) as http:
        with pytest.raises(AddressRefused) as told:
            await get(http, url, redirects="get")
    assert not told.value.sent
    return told.value


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://169.254.169.254/latest/meta-data", "metadata"),
        ("https://10.0.0.1/", "private"),
        ("https://[fd00::1]/", "private"),
        ("https://[::ffff:127.0.0.1]/", "loopback"),
        ("https://[::ffff:7f00:1]:80/", "loopback"),
        ("https://2130706433/", "malformed"),
        ("https://0177.0.0.1/", "malformed"),
        ("https://127.1/", "malformed"),
        ("https://0x7f000001/", "malformed"),
        ("https://localhost/", "loopback"),
        ("http://127.0.0.1:1/", "loopback"),
        ("https://①②⑦.0.0.1/", "loopback"),
        ("http://idp.example/", "not-https"),
    ],
)
async def test_f16_1_refused_before_anything_is_connected_to(url: str, kind: str, monkeypatch: Any) -> None:
    def looked_up(*_: Any, **__: Any) -> Any:
        raise AssertionError("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    assert (await refused(url)).kind == kind


class Names:
    """A name server that says something else each time: the last answer for ever."""

    def __init__(self, monkeypatch: Any, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): each for name, each in answers.items()}
        self.asked: list[str] = []
        self.real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: Any, port: Any, *args: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self.answers:
            return self.real(host, port, *args, **more)
        self.asked.append(name)
        turns = self.answers[name]
        found = turns.pop(0) if len(turns) > 1 else turns[0]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (each, port, 0, 0)) if ":" in each
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in found
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (["10.0.0.1"], "private"),
        (["127.0.0.1"], "loopback"),
        (["::1", "127.0.0.1"], "loopback"),
        (["169.254.169.254"], "metadata"),
        (["64:ff9b::7f00:1"], "tunnel"),
    ],
)
async def test_f16_1_a_name_that_leads_inside_is_refused(
    found: list[str], kind: str, monkeypatch: Any
) -> None:
    Names(monkeypatch, idp_example=[found])
    error = await refused("https://idp.example/x?code=s3cret", LOOPBACK)
    assert (error.kind, error.address) == (kind, found[0])
    assert found[0] in str(error) and "s3cret" not in str(error)


async def test_f16_2_what_was_checked_is_what_is_dialled(monkeypatch: Any) -> None:
    """The name changes its address after the check: the connection goes to the one that was checked, or to none."""
    got: list[Request] = []
    names = Names(monkeypatch, a_localhost=[["127.0.0.1", "10.255.255.1"], ["10.255.255.1"]])
    async with serving(answering(got)) as server, client(LOOPBACK) as http:
        url = f"http://a.localhost:{server.port}/"
        assert (await get(http, url))[0] == 200
        assert (names.asked, len(got)) == (["a.localhost"], 1)
        http._net._resolver._known.clear()  # type: ignore[union-attr]  # as after its time
        http.end_idle(url)
        with pytest.raises(AddressRefused) as told:
            await get(http, url)
        assert (len(names.asked), len(got)) == (2, 1)
        assert told.value.kind == "private"


async def test_f16_2_a_kept_connection_is_one_that_was_checked(monkeypatch: Any) -> None:
    """Connections of others, who vet nothing, are not used: each setting has a pool of its own."""
    got: list[Request] = []
    Names(monkeypatch, idp_example=[["127.0.0.1"]])
    async with serving(answering(got)) as server, client() as http:
        url = f"http://idp.example:{server.port}/"
        assert (await get(http, url))[0] == 200
        vetted = http._net.client(VETTED)
        with pytest.raises(AddressRefused):
            await get(vetted, url.replace("http:", "https:"))
        assert len(got) == 1


async def test_f16_2_the_last_check_is_at_the_socket(monkeypatch: Any) -> None:
    """Should an address get past the check of names, no socket is made for it."""
    from moorings.net.pool import Pool

    got: list[Request] = []
    monkeypatch.setattr(Pool, "vet", lambda self, target, addresses, **_: addresses)
    Names(monkeypatch, one_example=[["127.0.0.1"]], two_example=[["127.0.0.1", "::1"]])
    async with serving(answering(got)) as server:
        for name in ("one.example", "two.example"):
            assert (await refused(f"https://{name}:{server.port}/", LOOPBACK)).kind == "loopback"
    assert server.connections == 0


async def test_f16_2_each_hop_of_a_redirect_is_checked() -> None:
    for target, kind in (
        ("http://169.254.169.254/", "metadata"),
        ("http://10.0.0.1/", "private"),
        ("http://[fd00::1]/", "private"),
        ("http://2130706433/", "malformed"),
        ("http://idp.example/", "not-https"),
    ):

        async def script(line: Line, target: str = target) -> None:
            while (request := await line.request()) is not None:
                there = target if request.target == "/second" else "/second"
                line.answer(b"", 302, Location=there)

        async with serving(script) as server:
            error = await refused(f"http://127.0.0.1:{server.port}/first", LOOPBACK)
            assert error.kind == kind


async def test_f16_3_a_hop_to_another_origin_keeps_the_vetting() -> None:
    async def there(line: Line) -> None:
        while await line.request() is not None:
            line.answer(b"", 302, Location="http://10.0.0.1/")

    async with serving(there) as second:

        async def here(line: Line) -> None:
            while await line.request() is not None:
                line.answer(b"", 302, Location=f"http://127.0.0.1:{second.port}/")

        async with serving(here) as first:
            assert (await refused(f"http://127.0.0.1:{first.port}/", LOOPBACK)).kind == "private"
    assert second.connections == 1


async def test_private_networks_pass_where_they_are_allowed() -> None:
    """Not more than that: no plain http, no metadata, and no name that leads here."""
    settings = NetSettings(vetted=True, private_networks=True)
    assert (await refused("https://169.254.169.254/", settings)).kind == "metadata"
    assert (await refused("http://10.0.0.1/", settings)).kind == "not-https"
    assert judge("10.0.0.1", "10.0.0.1", PRIVATE) is None


# --- behind a proxy -----------------------------------------------------------------------------------------------


async def test_behind_a_proxy_literals_and_known_names_are_checked(monkeypatch: Any) -> None:
    Names(monkeypatch, idp_example=[["8.8.8.8", "10.0.0.1"]])
    proxy = HttpProxy()
    async with serving(proxy.script) as at:
        environ = {"https_proxy": f"http://127.0.0.1:{at.port}"}
        assert (await refused("https://10.0.0.1/", **environ)).kind == "private"
        # Which of its addresses the proxy takes nobody can say.
        assert (await refused("https://idp.example/", **environ)).address == "10.0.0.1"
    assert proxy.asked == []


@pytest.mark.parametrize("found", [[], ["8.8.8.8"]])
async def test_behind_a_proxy_the_rest_is_the_proxys(found: list[str], monkeypatch: Any) -> None:
    """The proxy itself stands on this machine, and is not vetted."""
    Names(monkeypatch, idp_example=[found])
    proxy = HttpProxy(status=418)
    async with serving(proxy.script) as at, client(VETTED, https_proxy=f"http://127.0.0.1:{at.port}") as http:
        with pytest.raises(Exception, match="the proxy answered 418"):
            await get(http, "https://idp.example/")
    assert [each[1] for each in proxy.asked] == ["idp.example:443"]


async def test_a_name_server_that_is_silent_holds_a_proxied_dial_up_for_a_bound_alone(
    monkeypatch: Any,
) -> None:
    import threading

    from moorings.net import pool

    gate = threading.Event()
    monkeypatch.setattr(pool, "VET_WITHIN", 0.05)
    real = socket.getaddrinfo

    def silent(host: Any, *args: Any, **more: Any) -> Any:
        if host != "idp.example":
            return real(host, *args, **more)
        gate.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    proxy = HttpProxy(status=418)
    async with serving(proxy.script) as at:
        async with client(VETTED, https_proxy=f"http://127.0.0.1:{at.port}") as http:
            with pytest.raises(Exception, match="the proxy answered 418"):
                await get(http, "https://idp.example/")
            gate.set()
    await threads_end("moorings-dns")


async def test_socks5_looks_the_name_up_here_and_hands_the_checked_address_over(monkeypatch: Any) -> None:
    Names(monkeypatch, idp_example=[["10.0.0.1", "8.8.8.8"]], safe_example=[["8.8.4.4"]])
    proxy = SocksProxy(reply=2)
    async with serving(proxy.script) as at:
        environ = {"https_proxy": f"socks5://127.0.0.1:{at.port}"}
        assert (await refused("https://idp.example/", **environ)).kind == "private"
        async with client(VETTED, **environ) as http:
            with pytest.raises(Exception, match="the SOCKS proxy said no"):
                await get(http, "https://safe.example/")
    assert proxy.asked == [("8.8.4.4", 443)]


def test_settings_that_mean_nothing_are_refused() -> None:
    for name in ("loopback", "private_networks"):
        with pytest.raises(MisuseError):
            NetSettings(**{name: True})


async def test_redirects_that_are_not_followed_stay_their_own_failure() -> None:
    got: list[Request] = []
    async with serving(answering(got, b"", 307, Location="http://10.0.0.1/")) as server:
        async with client(LOOPBACK) as http:
            with pytest.raises(RedirectRefused):
                await get(http, f"http://127.0.0.1:{server.port}/", redirects="none")


async def test_over_tls_the_name_of_the_url_is_what_the_certificate_must_be_for(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Pinned to an address, asked for by its name."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    settings = NetSettings(vetted=True, loopback=True, ca_file=str(tmp_path / "ca.pem"))
    names = Names(monkeypatch, a_localhost=[["127.0.0.1"]], b_localhost=[["127.0.0.1"]])
    got: list[Request] = []
    async with serving(answering(got), tls=server_tls(ca.issue_cert("a.localhost"))) as server:
        async with client(settings) as http:
            assert (await get(http, f"https://a.localhost:{server.port}/"))[0] == 200
            with pytest.raises(TlsFailed):
                await get(http, f"https://b.localhost:{server.port}/")
    assert (names.asked, len(got)) == (["a.localhost", "b.localhost"], 1)
    assert got[0].headers["host"] == f"a.localhost:{server.port}"
