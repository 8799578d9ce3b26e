"""Class 14 over HTTP: what a file says of a server is what happens on the wire: references, proxies, authorities."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from moorings import AsyncHost, Bounds, HttpServer
from moorings.config import load
from moorings.errors import ConfigError
from tests.faults.http_server import HttpFaults
from tests.host.kit import took
from tests.http_life.kit import WAYS, faults, spec
from tests.net.kit import HttpProxy, SocksProxy, serving

QUICK = Bounds(connect=6.0, probe=2.0, call=5.0, dial=3.0, http_close=0.5, cooldown=0.0)
NAME = "mcp.internal.invalid"
"""A name that only the proxies of the kit know."""


@asynccontextmanager
async def hosted(**servers: HttpServer) -> AsyncIterator[AsyncHost]:
    async with AsyncHost(servers, state_dir=False) as host:
        yield host


async def works(host: AsyncHost, name: str = "a") -> None:
    assert (await host.wait_ready(10, servers=[name])).all_ready
    assert (await host.call(f"{name}__echo", {"text": "x"})).text == "x"


class Authority:
    """A private CA, its file, and contexts of servers that it vouches for."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ca = trustme.CA()
        self.file = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)
        self._folder = folder

    def server(self, *names: str, clients: Authority | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        if clients is not None:
            clients._ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self) -> str:
        path = self._folder / "client.pem"
        self._ca.issue_cert("me@here.invalid").private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["url", "header", "query"])
async def test_f14_2_a_reference_that_is_not_set_never_travels(place: str, tmp_path: Path) -> None:
    """F14.2: an error that names file, key, line and variable; the server hears nothing."""
    async with faults("handshake") as server:
        url = {"url": "http://${TOKEN}/mcp", "query": f"{server.url}?key=${{TOKEN}}"}.get(place, server.url)
        headers = 'headers = { Authorization = "Bearer ${TOKEN}" }' if place == "header" else ""
        path = tmp_path / "moor.toml"
        path.write_text(f'[servers.a]\nurl = "{url}"\n{headers}\n')
        with pytest.raises(ConfigError) as failed:
            load(path, {})
        text = str(failed.value)
        assert "TOKEN" in text
        assert "moor.toml" in text
        assert "servers.a" in text
        assert server.requests == []


@pytest.mark.parametrize("way", WAYS)
async def test_f14_2_what_is_set_arrives(way: str, tmp_path: Path) -> None:
    """F14.2: ``${TOKEN:-x}`` gives x where it is not set; "Bearer" is said once; the query stays as it was written."""
    kind = {"handshake": 'protocol = "handshake"\ntransport = "http"', "modern": 'transport = "http"',
            "sse": 'transport = "sse"'}[way]  # fmt: skip
    async with faults(way) as server:
        path = tmp_path / "moor.toml"
        path.write_text(
            f'[servers.a]\nurl = "{server.url}?b=%2F&a=${{Q:-1}}"\n{kind}\n'
            '[servers.a.headers]\nAuthorization = "Bearer ${TOKEN}"\nX-Key = "${KEY:-x y}"\n'
        )
        config = load(path, {"TOKEN": "Bearer secret"})
        async with AsyncHost(config.servers, state_dir=False) as host:
            await works(host)
        for seen in server.requests:
            assert seen.headers["authorization"] == "Bearer secret"
            assert seen.headers["x-key"] == "x y"
        assert server.requests[0].path.endswith("?b=%2F&a=1")
        assert server.violations == []


# --- proxies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["settings", "environment"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("way", WAYS)
async def test_f14_8_a_mandatory_proxy(
    way: str, scheme: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F14.8: direct connects fail; POSTs, streams and the DELETE all go through it; what follows 401 would too."""
    authority = Authority(tmp_path, "ca")
    tls = authority.server(NAME) if scheme == "https" else None
    proxy = HttpProxy(login="me:word")
    async with faults(way) as server, serving(proxy.script) as via:
        server.tls = tls
        await server.stop_listening()
        server.port = 0
        await server.listen()
        at = f"http://me:word@127.0.0.1:{via.port}"
        path = "/sse" if way == "sse" else "/mcp"
        more: dict[str, Any] = {"ca_file": authority.file} if tls else {}
        if by == "settings":
            more["proxy"] = at
        else:
            monkeypatch.setenv(f"{scheme}_proxy", at)
        url = f"{scheme}://{NAME}:{server.port}{path}"
        async with hosted(a=spec(url, way, bounds=QUICK, **more)) as host:
            await works(host)
        assert server.requests
        assert all("proxy-authorization" not in seen.headers for seen in server.requests)
        if way == "handshake":
            assert server.count("DELETE") == 1
        assert {method for method, _, _ in proxy.asked} == (
            {"CONNECT"} if tls else {seen.http for seen in server.requests}
        )


async def test_f14_8_a_socks_proxy() -> None:
    """F14.8: the name is looked up at the proxy."""
    proxy = SocksProxy()
    async with faults("modern") as server, serving(proxy.script) as via:
        url = f"http://{NAME}:{server.port}/mcp"
        a = spec(url, "modern", bounds=QUICK, proxy=f"socks5h://127.0.0.1:{via.port}")
        async with hosted(a=a) as host:
            await works(host)
        assert proxy.asked
        assert {host for host, _ in proxy.asked} == {NAME}


@pytest.mark.parametrize("entry", ["127.0.0.0/8", "127.0.0.1", "*", "loopback"])
async def test_f14_8_what_goes_round_it(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F14.8: NO_PROXY by CIDR, address and ``*``; loopback always. The proxy is a dead one."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    if entry != "loopback":
        monkeypatch.setenv("no_proxy", entry)
    async with faults("modern") as server, hosted(a=spec(server.url, "modern", bounds=QUICK)) as host:
        await works(host)


@pytest.mark.parametrize("kind", ["refused", "407", "502"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_f14_8_the_failure_of_a_proxy_is_told_as_its_own(scheme: str, kind: str) -> None:
    """F14.8: not as the server's."""
    proxy = HttpProxy(login="me:word" if kind == "407" else None, status=502 if kind == "502" else None)
    async with serving(proxy.script) as via:
        port = 1 if kind == "refused" else via.port
        a = spec(f"{scheme}://{NAME}/mcp", "handshake", bounds=QUICK, proxy=f"http://127.0.0.1:{port}")
        async with hosted(a=a) as host:
            with took(0.0, 3.0):
                ready = await host.wait_ready(8)
        text = ready.failed["a"]
        if not (kind == "502" and scheme == "http"):
            # (A 502 of a proxy that reads the request itself cannot be told from one of the server.)
            assert "proxy" in text
        assert kind in text or "reached" in text


# --- authorities --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_f14_9_two_authorities_side_by_side(way: str, tmp_path: Path) -> None:
    """F14.9: each server with its own private CA, and one that trusts neither: two work, the third is told why."""
    one, two = Authority(tmp_path, "one"), Authority(tmp_path, "two")
    async with (
        HttpFaults(era=way, ssl=one.server("localhost")) as first,
        HttpFaults(era=way, ssl=two.server("localhost")) as second,
    ):
        servers = {
            "a": spec(first.url, way, bounds=QUICK, ca_file=one.file),
            "b": spec(second.url, way, bounds=QUICK, ca_file=two.file),
            "c": spec(second.url, way, bounds=QUICK, ca_file=one.file),
            "d": spec(second.url, way, bounds=QUICK, verify=False),
        }
        async with hosted(**servers) as host:
            for name in ("a", "b", "d"):
                await works(host, name)
            ready = await host.wait_ready(8)
            assert "trusted" in ready.failed["c"] or "not known" in ready.failed["c"], ready


@pytest.mark.parametrize("way", WAYS)
async def test_f14_9_a_client_certificate(way: str, tmp_path: Path) -> None:
    """F14.9: shown to the server that wants one; without it the start fails, typed (what is told: tests/net)."""
    authority = Authority(tmp_path, "ca")
    tls = authority.server("localhost", clients=authority)
    async with HttpFaults(era=way, ssl=tls) as server:
        servers = {
            "a": spec(server.url, way, bounds=QUICK, ca_file=authority.file, client_cert=authority.client()),
            "b": spec(server.url, way, bounds=QUICK, ca_file=authority.file),
        }
        async with hosted(**servers) as host:
            await works(host)
            ready = await host.wait_ready(8)
            assert "b" in ready.failed
            assert server.count("GET" if way == "sse" else "POST") > 0


@pytest.mark.parametrize("missing", ["ca_file", "client_cert"])
async def test_f14_9_a_file_that_is_not_there(missing: str, tmp_path: Path) -> None:
    """F14.9: typed, at once, with key and path; mended in place, the next start works."""
    authority = Authority(tmp_path, "ca")
    path = tmp_path / "later.pem"
    async with HttpFaults(era="modern", ssl=authority.server("localhost")) as server:
        more: dict[str, Any] = {"ca_file": authority.file, missing: str(path)}
        async with hosted(a=spec(server.url, "modern", bounds=QUICK, **more)) as host:
            with took(0.0, 1.0):
                ready = await host.wait_ready(8)
            assert str(path) in ready.failed["a"]
            source = authority.file if missing == "ca_file" else authority.client()
            path.write_bytes(Path(source).read_bytes())
            await host.server("a").restart()
            await works(host)


# --- bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "bounds"),
    [
        ({"on": {"tools/call": "silent"}}, "first_byte"),
        ({"on": {"tools/call": "stall"}}, "idle"),
        ({"on": {"tools/call": "comments:0.02"}}, "call"),
    ],
)
@pytest.mark.parametrize("way", ["handshake", "modern"])
async def test_f14_5_each_bound_of_a_file_is_the_one_that_holds(
    way: str, script: dict[str, Any], bounds: str, tmp_path: Path
) -> None:
    """F14.5: "0.4s" and 0.4 are the same; the others are out of its way."""
    async with faults(way, **script) as server:
        protocol = "handshake" if way == "handshake" else "2026-07-28"
        path = tmp_path / "moor.toml"
        path.write_text(
            f'[servers.a]\nurl = "{server.url}"\nprotocol = "{protocol}"\n[servers.a.bounds]\n{bounds} = "0.4s"\n'
        )
        config = load(path, {})
        assert getattr(config.servers["a"].bounds, bounds) == 0.4
        async with AsyncHost(config.servers, state_dir=False) as host:
            await host.wait_ready(8)
            with took(0.35, 1.5), pytest.raises(Exception, match=r"0\.4"):
                await host.call("a__echo")


@pytest.mark.parametrize(("value", "connections"), [("0", 3), ("30", 1)])
async def test_f14_5_how_long_an_idle_connection_is_kept_is_a_bound(
    value: str, connections: int, tmp_path: Path
) -> None:
    """F14.5: 0 keeps none."""
    async with faults("handshake", get="status:405") as server:
        path = tmp_path / "moor.toml"
        path.write_text(
            f'[servers.a]\nurl = "{server.url}"\nprotocol = "handshake"\nbounds = {{ keep_alive = {value} }}\n'
        )
        async with AsyncHost(load(path, {}).servers, state_dir=False) as host:
            await host.wait_ready(8)
            before = server.connections
            for _ in range(3):
                await host.call("a__echo")
            assert server.connections - before == (connections if connections > 1 else 0)
