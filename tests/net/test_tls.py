"""TLS on real sockets: who is trusted, which failure is told, and what is made when (F5.10, F14.9)."""

from __future__ import annotations

import datetime
import ssl
import threading
from pathlib import Path

import pytest
import trustme

from moorings.errors import ConfigError
from moorings.net import NetSettings, TlsFailed, tls
from tests.net.kit import (
    Line,
    Request,
    answering,
    blocking_server,
    client,
    get,
    net,
    post,
    server_tls,
    serving,
)


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return str(path)


async def failure(cert: trustme.LeafCert, settings: NetSettings, host: str = "127.0.0.1") -> TlsFailed:
    got: list[Request] = []
    async with serving(answering(got), tls=server_tls(cert)) as server, client(settings) as http:
        with pytest.raises(TlsFailed) as failed:
            await post(http, f"https://{host}:{server.port}/mcp")
    assert got == []
    assert failed.value.sent is False
    return failed.value


async def test_f14_9_a_private_authority_is_trusted_besides_the_systems(ca: trustme.CA, ca_file: str) -> None:
    got: list[Request] = []
    cert = ca.issue_cert("127.0.0.1", "localhost")
    async with serving(answering(got), tls=server_tls(cert)) as server:
        async with client(NetSettings(ca_file=ca_file)) as http:
            for host in ("127.0.0.1", "localhost"):
                for _ in range(2):
                    assert (await post(http, f"https://{host}:{server.port}/"))[0] == 200
        assert server.connections == 2
    system, added = (tls.make_context(NetSettings(ca_file=name)) for name in (None, ca_file))
    assert system.cert_store_stats()["x509_ca"] > 0
    assert added.cert_store_stats()["x509_ca"] == system.cert_store_stats()["x509_ca"] + 1


@pytest.mark.leak_ok("log", reason="in debug mode asyncio tells of clients that break a handshake off")
async def test_f5_10_an_unknown_authority_is_told(ca: trustme.CA) -> None:
    error = await failure(ca.issue_cert("127.0.0.1"), NetSettings())
    assert error.kind == "unknown-ca"
    assert "authority" in error.reason


@pytest.mark.leak_ok("log", reason="in debug mode asyncio tells of clients that break a handshake off")
async def test_f5_10_an_expired_certificate_is_told(ca: trustme.CA, ca_file: str) -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    error = await failure(ca.issue_cert("127.0.0.1", not_after=past), NetSettings(ca_file=ca_file))
    assert error.kind == "expired"
    assert "expired" in error.reason


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.leak_ok("log", reason="in debug mode asyncio tells of clients that break a handshake off")
async def test_f5_10_a_certificate_of_another_host_is_told(host: str, ca: trustme.CA, ca_file: str) -> None:
    error = await failure(ca.issue_cert("other.example", "127.0.0.2"), NetSettings(ca_file=ca_file), host)
    assert error.kind == "wrong-host"


async def test_without_verify_all_of_them_pass(ca: trustme.CA) -> None:
    cert = ca.issue_cert("other.example")
    async with (
        serving(answering([]), tls=server_tls(cert)) as server,
        client(NetSettings(verify=False)) as http,
    ):
        assert (await get(http, f"https://127.0.0.1:{server.port}/"))[0] == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_f14_9_a_client_certificate_is_sent_and_a_missing_or_foreign_one_is_told(
    version: ssl.TLSVersion, ca: trustme.CA, ca_file: str, tmp_path: Path
) -> None:
    def written(authority: trustme.CA, name: str) -> str:
        path = tmp_path / f"{name}.pem"
        authority.issue_cert("me@example.com").private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    context = server_tls(ca.issue_cert("127.0.0.1"), clients=ca)
    context.maximum_version = version
    with blocking_server(context) as (port, got):
        url = f"https://127.0.0.1:{port}/"
        async with net() as made:
            good = made.client(NetSettings(ca_file=ca_file, client_cert=written(ca, "good")))
            assert (await post(good, url))[0] == 200
            for settings in (
                NetSettings(ca_file=ca_file),
                NetSettings(ca_file=ca_file, client_cert=written(trustme.CA(), "foreign")),
            ):
                with pytest.raises(TlsFailed) as failed:
                    await post(made.client(settings), url)
                # In TLS 1.3 the request had left by then; the server threw it away unread.
                assert failed.value.sent is False
                if version == ssl.TLSVersion.TLSv1_3:
                    assert failed.value.kind.startswith("client-certificate")
        assert len(got) == 1


async def test_a_redirect_to_another_origin_takes_no_client_certificate_along(
    ca: trustme.CA, ca_file: str, tmp_path: Path
) -> None:
    path = tmp_path / "me.pem"
    ca.issue_cert("me@example.com").private_key_and_cert_chain_pem.write_to_path(str(path))
    shown: list[bool] = []

    async def there(line: Line) -> None:
        await line.request()
        shown.append(bool(line.writer.get_extra_info("peercert")))
        line.answer()

    wants = server_tls(ca.issue_cert("127.0.0.1"), clients=ca)
    wants.verify_mode = ssl.CERT_OPTIONAL
    async with serving(there, tls=wants) as second:
        moves = answering([], b"", 302, Location=f"https://127.0.0.1:{second.port}/")
        async with serving(moves, tls=server_tls(ca.issue_cert("127.0.0.1"), clients=ca)) as first:
            async with client(NetSettings(ca_file=ca_file, client_cert=str(path))) as http:
                assert (await get(http, f"https://127.0.0.1:{first.port}/", redirects="get"))[0] == 200
                assert (await get(http, f"https://127.0.0.1:{second.port}/"))[0] == 200
    assert shown == [False, True]


async def test_a_redirect_from_https_to_http_is_refused(ca: trustme.CA, ca_file: str) -> None:
    from moorings.net import RedirectRefused

    moves = answering([], b"", 302, Location="http://127.0.0.1:1/")
    async with serving(moves, tls=server_tls(ca.issue_cert("127.0.0.1"))) as server:
        async with client(NetSettings(ca_file=ca_file)) as http:
            with pytest.raises(RedirectRefused, match="https to http"):
                await get(http, f"https://127.0.0.1:{server.port}/", redirects="get")


async def test_a_server_that_speaks_no_tls_is_told() -> None:
    async def script(line: Line) -> None:
        await line.reader.read(10)
        line.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(script) as server, client() as http:
        with pytest.raises(TlsFailed) as failed:
            await get(http, f"https://127.0.0.1:{server.port}/")
    assert (failed.value.kind, failed.value.sent) == ("no-tls", False)


@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_a_server_that_breaks_the_handshake_off_is_told(how: str) -> None:
    async def script(line: Line) -> None:
        await line.reader.read(10)
        if how == "resets":
            line.reset()

    async with serving(script) as server, client() as http:
        with pytest.raises(TlsFailed) as failed:
            await get(http, f"https://127.0.0.1:{server.port}/")
    assert (failed.value.kind, failed.value.sent) == ("handshake", False)


async def test_files_that_are_missing_or_bad_are_an_error_of_the_configuration(
    ca: trustme.CA, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    leaf = ca.issue_cert("me@example.com")
    cert, key, locked, other = (str(tmp_path / name) for name in ("cert", "key", "locked", "other"))
    leaf.cert_chain_pems[0].write_to_path(cert)
    leaf.private_key_pem.write_to_path(key)
    ca.issue_cert("x@example.com").private_key_pem.write_to_path(other)
    Path(locked).write_bytes(
        load_pem_private_key(leaf.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"s3cret"),
        )
    )
    cases = [
        (NetSettings(ca_file=str(tmp_path / "none")), "ca_file"),
        (NetSettings(ca_file=str(bad)), "ca_file"),
        (NetSettings(client_cert=str(tmp_path / "none")), "client_cert"),
        (NetSettings(client_cert=cert, client_key=str(tmp_path / "none")), "client_key"),
        (NetSettings(client_cert=cert, client_key=other), "client_key"),
        (NetSettings(client_cert=str(bad)), "client_key"),
        (NetSettings(client_cert=cert, client_key=locked), "client_key_password"),
        (NetSettings(client_cert=cert, client_key=locked, client_key_password="no"), "client_key_password"),
    ]
    async with net() as made:
        for settings, named in cases:
            with pytest.raises(ConfigError) as told:
                await get(made.client(settings), "https://127.0.0.1:1/")
            assert told.value.key == named
        # What was mended is read anew.
        bad.write_bytes(ca.cert_pem.bytes())
        with pytest.raises(Exception, match="refused"):
            await get(made.client(NetSettings(ca_file=str(bad))), "https://127.0.0.1:1/")
    tls.make_context(NetSettings(client_cert=cert, client_key=locked, client_key_password="s3cret"))


async def test_p18_a_context_is_made_once_for_a_setting_and_none_for_http(
    monkeypatch: pytest.MonkeyPatch, ca: trustme.CA, ca_file: str
) -> None:
    made_in: list[str] = []
    make = tls.make_context

    def counted(settings: NetSettings) -> ssl.SSLContext:
        made_in.append(threading.current_thread().name)
        return make(settings)

    monkeypatch.setattr(tls, "make_context", counted)
    got: list[Request] = []
    async with serving(answering(got)) as plain, net() as made:
        clients = [made.client(NetSettings()) for _ in range(100)]
        for each in clients:
            await post(each, f"http://127.0.0.1:{plain.port}/")
        assert (made_in, plain.connections, len(made._pools), len(got)) == ([], 1, 1, 100)
        async with serving(answering([]), tls=server_tls(ca.issue_cert("127.0.0.1"))) as secure:
            for agent in ("a", "b"):
                for dial in (5.0, 6.0):
                    http = made.client(NetSettings(ca_file=ca_file, user_agent=agent, dial=dial))
                    await post(http, f"https://127.0.0.1:{secure.port}/")
            # Another bound is another pool, another name of ours is not; the trust is one.
            assert (made_in, secure.connections) == (["moorings-tls"], 2)
