"""Bad ways to a server: connections that fail in every manner, proxies with logins, TLS of every kind.

The server does as it should and counts; what lies between, or the certificate, is at fault.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from moorings import AmbiguousDelivery, CallTimeout, NotSent
from tests.faults.http_server import HttpFaults
from tests.faults.tcp import At, Plan, TcpProxy
from tests.http.ways import (
    NAME,
    SLACK,
    CarryingProxy,
    Certificates,
    dead_end,
    held,
    host_for,
    mute,
    start_failure,
    text,
    url_of,
    within,
)
from tests.net.kit import Line, SocksProxy, blocking_server, serving

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
ALL = pytest.mark.parametrize("era", ["handshake", "modern", "sse"])
SECURE = pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
TALKS = pytest.mark.leak_ok("log", reason="in debug mode asyncio tells of clients that break a handshake off")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


# --- TCP ----------------------------------------------------------------------------------------------------------


@ALL
async def test_latency_delays_all_alike_and_nothing_waits_its_turn(era: str) -> None:
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port, Plan(latency=0.1)) as way:
        async with held(url_of(server, port=way.port), server) as host:
            with within(0.2 + SLACK, 0.2):
                await asyncio.gather(*(text(host, "effect") for _ in range(8)))
        assert server.effects["effect"] == 8


@ALL
async def test_f6_3_a_refused_connection_is_not_sent_and_the_next_use_finds_the_server(era: str) -> None:
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server) as host:
            assert await text(host, "effect") == "1"
            await way.refuse()
            way.reset_all()
            await way.until(lambda way: not way.open)
            with (
                within(0.6 + SLACK),
                pytest.raises(NotSent, match="refused: nothing listens there") as failed,
            ):
                await text(host, "effect")
            assert not failed.value.sent
            assert f"http://127.0.0.1:{way.port}" in str(failed.value)
            way.accept()
            assert await text(host, "effect") == "2"
        # Of the three, one was the question whether it speaks Streamable HTTP, and the last that of the second life.
        assert server.count("initialize") == {"handshake": 1, "modern": 0, "sse": 3}[era]


@ERAS
async def test_a_server_that_is_just_being_restarted_is_waited_for(era: str) -> None:
    """Nothing was sent, so the dial is tried again a moment later."""
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server) as host:
            await way.refuse()
            way.reset_all()
            await way.until(lambda way: not way.open)
            asyncio.get_running_loop().call_later(0.05, way.accept)
            assert await text(host, "effect") == "1"
        assert server.count("tools/call") == 1


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_f5_10_a_start_at_a_port_where_nobody_listens_says_so(transport: str) -> None:
    async with HttpFaults() as server, TcpProxy(server.port) as way:
        await way.refuse()
        with within(0.6 + SLACK):
            error = await start_failure(f"{way.url}/mcp?key=s3cret", transport=transport, secrets=["s3cret"])
        assert "the connection was refused: nothing listens there" in str(error)
        assert way.url in str(error)


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_f5_10_an_unknown_host_is_told(transport: str) -> None:
    error = await start_failure(f"http://{NAME}/mcp", transport=transport)
    assert "the name of its host is not known" in str(error)
    assert NAME in str(error)


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_dial_that_is_neither_taken_nor_refused_ends_at_its_bound(transport: str) -> None:
    with dead_end() as port, within(0.5 + SLACK, 0.5):
        error = await start_failure(f"http://127.0.0.1:{port}/mcp", transport=transport, bounds={"dial": 0.5})
    assert re.search(r"no connection within (0\.[5-9]|1\.[0-5]) s of 0\.5 s allowed", str(error))


@ERAS
async def test_a_reset_strikes_the_calls_on_that_connection_alone(era: str) -> None:
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server) as host:
            struck, spared = (
                asyncio.ensure_future(text(host, "hold", arguments={"key": key})) for key in "ab"
            )
            await server.until(lambda server: server.effects["tool:hold"] == 2)
            first = next(seen for seen in server.of("tools/call") if seen.params["arguments"] == {"key": "a"})
            way.links[first.connection - 1].condemn("reset")
            with within(SLACK), pytest.raises(AmbiguousDelivery, match="without an answer") as failed:
                await struck
            assert failed.value.sent
            server.release("b")
            assert await spared == "released"
            assert await text(host, "effect") == "1"
            assert host.status()["s"].generation == 1
        assert server.effects["tool:hold"] == 2
        assert server.count("initialize") == (1 if era == "handshake" else 0)


async def test_a_reset_of_the_stream_of_http_sse_ends_what_waits_on_it_and_the_next_use_starts_anew() -> None:
    async with HttpFaults(era="sse") as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server) as host:
            waiting = [asyncio.ensure_future(text(host, "hold")) for _ in range(3)]
            await server.until(lambda server: server.effects["tool:hold"] == 3)
            way.reset_all()
            with within(SLACK):
                ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(end) for end in ends] == [AmbiguousDelivery] * 3
            assert await text(host, "effect") == "1"
            assert host.status()["s"].generation == 2
        assert server.effects["tool:hold"] == 3


FRESH: Any = pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(accept="reset"), "without an answer"),
        (Plan(accept="close"), "without an answer"),
        (Plan(down=At(0, "reset")), "without an answer"),
        (Plan(down=At(0, "half_close")), "without an answer"),
        (Plan(down=At(40, "reset")), "before the answer had begun in full"),
        (Plan(down=At(40, "half_close")), "before the answer had begun in full"),
        (Plan(down=At(100, "reset")), "in the middle of the answer"),
        (Plan(down=At(100, "half_close")), "in the middle of the answer"),
        (Plan(down=At(100, "close")), "in the middle of the answer"),
        (Plan(up=At(100, "half_close")), "without an answer"),
        (Plan(up=At(100, "reset")), "without an answer"),
    ],
    ids=str,
)
"""How a fresh connection fails, and what the call on it is told."""


@ERAS
@FRESH
async def test_f6_1_a_connection_that_ends_too_early_leaves_its_call_unsure_and_a_reading_one_is_repeated(
    plan: Plan, said: str, era: str
) -> None:
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server) as host:

            async def over_a_bad_line(tool: str) -> str:
                way.reset_all()
                await way.until(lambda way: not way.open)
                way.script(plan, Plan())
                return await text(host, tool, arguments={"name": "x" * 1000})

            with within(SLACK), pytest.raises(AmbiguousDelivery, match=said) as failed:
                await over_a_bad_line("effect")
            assert failed.value.sent
            assert server.effects["tool:effect"] <= 1
            before = server.effects["tool:read"]
            with within(SLACK):
                await over_a_bad_line("read")
            assert server.effects["tool:read"] - before <= 2
            status = host.status()["s"]
            assert (status.state.value, status.generation) == ("ready", 1)
        assert server.count("initialize") == (1 if era == "handshake" else 0)


@ERAS
async def test_f6_6_a_stream_that_is_cut_is_resumed_in_the_handshake_era_and_unsure_in_the_modern_one(
    era: str,
) -> None:
    script = {**mute(era), "answers": {"tools/call": "sse"}, "priming": True, "resumable": True, "retry": 10}
    async with HttpFaults(**script) as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server) as host:
            server.set(get="ok")
            for deed in ("reset", "close", "half_close"):
                way.reset_all()
                await way.until(lambda way: not way.open)
                # Head and priming event pass, the answer does not.
                way.script(Plan(down=At(300, deed)), Plan())
                with within(SLACK):
                    if era == "handshake":
                        assert await text(host, "big", arguments={"bytes": 2000}) == "x" * 2000
                    else:
                        with pytest.raises(AmbiguousDelivery, match="in the middle of the answer"):
                            await text(host, "big", arguments={"bytes": 2000})
        assert server.effects["tool:big"] == 3


@ERAS
async def test_a_blackhole_ends_the_call_at_its_limit_and_no_other(era: str) -> None:
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server) as host:
            way.reset_all()
            await way.until(lambda way: not way.open)
            way.script(Plan(accept="blackhole"), Plan())
            with within(0.5 + SLACK, 0.5):
                lost = asyncio.ensure_future(text(host, "effect", timeout=0.5))
                await way.until(lambda way: way.links[-1].swallowed)
                with within(SLACK):
                    assert await text(host, "echo", arguments={"text": "beside"}) == "beside"
                with pytest.raises(CallTimeout) as failed:
                    await lost
            assert failed.value.sent
            assert failed.value.allowed == 0.5
            # Its connection is not used again.
            await way.until(lambda way: all(link.plan.accept == "pass" for link in way.open))
            assert await text(host, "effect") == "1"


@ERAS
async def test_an_answer_that_does_not_begin_ends_at_its_own_bound(era: str) -> None:
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server, bounds={"first_byte": 0.5}) as host:
            way.reset_all()
            await way.until(lambda way: not way.open)
            way.script(Plan(down=At(0, "blackhole")), Plan())
            with within(0.5 + SLACK, 0.5):
                with pytest.raises(AmbiguousDelivery, match=r"no answer began within 0\.5 s"):
                    await text(host, "effect")
            assert await text(host, "effect") == "2"


@ERAS
@pytest.mark.parametrize("answers", ["json", "sse"])
async def test_f4_11_an_answer_that_stops_in_its_middle_ends_at_its_own_bound(answers: str, era: str) -> None:
    script = {**mute(era), "answers": {"tools/call": answers}}
    async with HttpFaults(**script) as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server, bounds={"idle": 0.5}) as host:
            way.reset_all()
            await way.until(lambda way: not way.open)
            way.script(Plan(down=At(500, "blackhole")), Plan())
            with within(0.5 + SLACK, 0.5):
                with pytest.raises(AmbiguousDelivery, match=r"no byte came for 0\.5 s"):
                    await text(host, "big", arguments={"bytes": 5000})
            assert await text(host, "echo", arguments={"text": "on"}) == "on"
        assert server.effects["tool:big"] == 1


@ALL
async def test_a_pulled_cable_ends_all_at_their_limits_and_a_close_is_not_held_up(era: str) -> None:
    async with HttpFaults(era=era) as server, TcpProxy(server.port) as way:
        url = url_of(server, port=way.port)
        async with held(url, server, bounds={"http_close": 0.5}) as host:
            way.freeze()
            with within(0.5 + SLACK, 0.5):
                calls = [asyncio.ensure_future(text(host, "effect", timeout=0.5)) for _ in range(4)]
                ends = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(end) for end in ends] == [CallTimeout] * 4
            with within(0.5 + SLACK):
                report = await host.close()
            assert not report.stuck


async def test_http_sse_without_a_sign_of_life_ends_at_the_idle_bound_and_starts_anew() -> None:
    async with HttpFaults(era="sse") as server, TcpProxy(server.port) as way:
        async with held(url_of(server, port=way.port), server, bounds={"idle": 0.5}) as host:
            with within(0.5 + SLACK), pytest.raises(AmbiguousDelivery, match=r"no byte came for 0\.5 s"):
                await text(host, "hold")
            assert await text(host, "effect") == "1"


@ALL
async def test_a_slow_line_is_no_silent_one(era: str) -> None:
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port, Plan(rate=40_000)) as way:
        async with held(url_of(server, port=way.port), server, bounds={"idle": 0.5}) as host:
            with within(1.0 + SLACK, 1.0):
                assert len(await text(host, "big", arguments={"bytes": 40_000}, timeout=30)) == 40_000


@ALL
async def test_bytes_that_trickle_do_not_stretch_the_limit_of_a_call(era: str) -> None:
    async with HttpFaults(**mute(era)) as server, TcpProxy(server.port, Plan(rate=40_000)) as way:
        async with held(url_of(server, port=way.port), server) as host:
            with within(0.5 + SLACK, 0.5), pytest.raises(CallTimeout):
                await text(host, "big", arguments={"bytes": 400_000}, timeout=0.5)


@pytest.mark.parametrize("get", ["silent", "stall", "html:404", "garbage"])
async def test_f13_7_a_listening_stream_that_does_not_come_holds_no_call_up(get: str) -> None:
    async with HttpFaults(get=get) as server:
        async with held(url_of(server), server) as host:
            await server.seen("GET")
            with within(SLACK):
                for _ in range(10):
                    await text(host, "effect")
        assert server.effects["effect"] == 10


# --- proxies ------------------------------------------------------------------------------------------------------


def tls_for(secure: bool, certificates: Certificates) -> ssl.SSLContext | None:
    return certificates.server(NAME) if secure else None


@ALL
@SECURE
@pytest.mark.parametrize("by", ["settings", "environment"])
async def test_f14_8_a_proxy_with_a_login_carries_all(
    by: str, secure: bool, era: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = CarryingProxy("me:p@ss")
    async with (
        HttpFaults(era=era, ssl=tls_for(secure, certificates)) as server,
        serving(proxy.script) as via,
    ):
        at = f"http://me:p%40ss@127.0.0.1:{via.port}"
        if by == "environment":
            monkeypatch.setenv("HTTPS_PROXY" if secure else "HTTP_PROXY", at)
        spec = {"proxy": at if by == "settings" else None, "ca_file": certificates.ca_file}
        async with held(url_of(server, host=NAME), server, **spec) as host:
            seen: list[float] = []
            assert await text(host, "progress", on_progress=lambda done, *_: seen.append(done)) == "done"
            assert seen in ([1, 2, 3], [])  # none where the answer is JSON
            await asyncio.gather(*(text(host, "effect") for _ in range(4)))
            assert "p@ss" not in repr(host.status()) + repr(host.server("s"))
        assert server.effects["effect"] == 4
        assert all("proxy-authorization" not in seen.headers for seen in server.requests)
    assert {asked[0] for asked in proxy.asked} <= ({"CONNECT"} if secure else {"POST", "GET", "DELETE"})


async def test_f14_8_loopback_and_what_is_excepted_go_round_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with HttpFaults() as server:
        for host in ("127.0.0.1", "localhost"):
            async with held(url_of(server, host=host), server, proxy="http://127.0.0.1:1") as door:
                await text(door, "effect")
        assert server.effects["effect"] == 2
        monkeypatch.setenv("NO_PROXY", ".invalid")
        error = await start_failure(url_of(server, host=NAME))
        assert "the name of its host is not known" in str(error)
        monkeypatch.delenv("NO_PROXY")
        error = await start_failure(url_of(server, host=NAME))
        assert "the proxy cannot be reached" in str(error)


@SECURE
@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize("login", ["me:s3cret@", ""], ids=["wrong", "none"])
async def test_a_proxy_that_does_not_know_us_is_told_at_once_and_the_login_is_not(
    login: str, transport: str, secure: bool, certificates: Certificates
) -> None:
    proxy = CarryingProxy("me:other")
    async with HttpFaults(ssl=tls_for(secure, certificates)) as server, serving(proxy.script) as via:
        error = await start_failure(
            url_of(server, host=NAME),
            proxy=f"http://{login}127.0.0.1:{via.port}",
            ca_file=certificates.ca_file,
            transport=transport,
            secrets=["s3cret", "other", "czNjcmV0"],
        )
        assert "the proxy answered 407 and wants a login" in str(error)
        assert "not sent" in str(error) or transport == "sse"
        assert not server.requests
    # Once: a wrong login that is tried again and again gets its owner locked out.
    assert len(proxy.asked) == 1


@ERAS
@SECURE
async def test_a_proxy_that_takes_the_login_back_leaves_calls_unsent(
    secure: bool, era: str, certificates: Certificates
) -> None:
    proxy = CarryingProxy("me:s3cret")
    script = {**mute(era), "ssl": tls_for(secure, certificates)}
    async with (
        HttpFaults(**script) as server,
        serving(proxy.script) as via,
        TcpProxy(via.port) as way,
    ):
        at = f"http://me:s3cret@127.0.0.1:{way.port}"
        spec = {"proxy": at, "ca_file": certificates.ca_file}
        async with held(url_of(server, host=NAME), server, **spec) as host:
            proxy.login = "me:other"
            way.reset_all()
            await way.until(lambda way: not way.open)
            with pytest.raises(NotSent, match="the proxy answered 407") as failed:
                await text(host, "effect")
            assert not failed.value.sent
            assert "s3cret" not in str(failed.value)
            proxy.login = "me:s3cret"
            assert await text(host, "effect") == "1"


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_proxy_that_cannot_reach_the_server_is_told(
    transport: str, certificates: Certificates
) -> None:
    proxy = CarryingProxy(status=502)
    async with serving(proxy.script) as via:
        error = await start_failure(
            f"https://{NAME}/mcp", transport=transport, proxy=f"http://127.0.0.1:{via.port}"
        )
        assert "the proxy answered 502" in str(error)


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize("scheme", ["http", "https", "socks5h"])
async def test_a_proxy_that_is_not_there_is_told(scheme: str, transport: str) -> None:
    error = await start_failure(
        f"http://{NAME}/mcp",
        transport=transport,
        proxy=f"{scheme}://me:s3cret@127.0.0.1:1",
        secrets=["s3cret"],
    )
    assert "proxy cannot be reached" in str(error)


@ALL
@SECURE
@pytest.mark.parametrize("login", [None, ("me", "p@ss")], ids=["open", "login"])
async def test_f14_8_a_socks_proxy_carries_all(
    login: tuple[str, str] | None, secure: bool, era: str, certificates: Certificates
) -> None:
    proxy = SocksProxy(login)
    async with (
        HttpFaults(era=era, ssl=tls_for(secure, certificates)) as server,
        serving(proxy.script) as via,
    ):
        at = f"socks5h://{'me:p%40ss@' if login else ''}127.0.0.1:{via.port}"
        spec = {"proxy": at, "ca_file": certificates.ca_file}
        async with held(url_of(server, host=NAME), server, **spec) as host:
            await asyncio.gather(*(text(host, "effect") for _ in range(4)))
        assert server.effects["effect"] == 4
        assert set(proxy.asked) == {(NAME, server.port)}


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (SocksProxy(("me", "other")), "it refused, or took us for somebody it does not know"),
        (SocksProxy(reply=2), "its rules do not allow this connection"),
        (SocksProxy(reply=5), "the server refused the connection"),
    ],
    ids=["login", "rules", "refused"],
)
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_socks_proxy_that_says_no_is_told(proxy: SocksProxy, said: str, transport: str) -> None:
    async with serving(proxy.script) as via:
        error = await start_failure(
            f"http://{NAME}/mcp",
            transport=transport,
            proxy=f"socks5h://me:s3cret@127.0.0.1:{via.port}",
            secrets=["s3cret"],
        )
        assert f"the SOCKS proxy said no: {said}" in str(error)


# --- TLS ----------------------------------------------------------------------------------------------------------


@ALL
async def test_f14_9_a_private_authority_is_trusted_where_it_is_named(
    era: str, certificates: Certificates
) -> None:
    async with HttpFaults(era=era, ssl=certificates.server("localhost", "127.0.0.1")) as server:
        for host in ("localhost", "127.0.0.1"):
            url = url_of(server, host=host)
            async with held(url, server, ca_file=certificates.ca_file) as door:
                await asyncio.gather(*(text(door, "effect") for _ in range(4)))
        assert server.effects["effect"] == 8


YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


@TALKS
@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize(
    ("named", "names", "more", "said"),
    [
        (False, ["127.0.0.1"], {}, "its certificate comes from an authority that is not known"),
        (True, ["127.0.0.1"], {"not_after": YESTERDAY}, "its certificate has expired"),
        (True, ["other.example"], {}, "its certificate is for another"),
        (True, ["127.0.0.2"], {}, "its certificate is for another address"),
    ],
    ids=["authority", "expired", "host", "address"],
)
async def test_f5_10_a_certificate_that_does_not_hold_is_told(
    named: bool, names: list[str], more: dict[str, Any], said: str, transport: str, certificates: Certificates
) -> None:
    context = certificates.server(*names, **more)
    async with HttpFaults(ssl=context) as server, TcpProxy(server.port) as way:
        with within(0.5 + SLACK):
            error = await start_failure(
                url_of(server, port=way.port) + "?key=s3cret",
                transport=transport,
                ca_file=certificates.ca_file if named else None,
                headers={"Authorization": "Bearer t0ken"},
                secrets=["s3cret", "t0ken"],
            )
        assert f"the server is not trusted: {said}" in str(error)
        assert not server.requests
        # A second look would find the same certificate.
        assert way.connections == 1


@TALKS
@ERAS
async def test_f6_3_a_certificate_that_runs_out_while_it_is_used_leaves_calls_unsent(
    era: str, certificates: Certificates
) -> None:
    async with HttpFaults(**mute(era), ssl=certificates.server("127.0.0.1")) as server:
        async with held(url_of(server), server, ca_file=certificates.ca_file) as host:
            assert await text(host, "effect") == "1"
            await server.stop_listening()
            server.drop_connections()
            server.tls = certificates.server("127.0.0.1", not_after=YESTERDAY)
            await server.listen()
            with pytest.raises(NotSent, match="its certificate has expired") as failed:
                await text(host, "effect")
            assert not failed.value.sent
            await server.stop_listening()
            server.tls = certificates.server("127.0.0.1")
            await server.listen()
            assert await text(host, "effect") == "2"


async def test_without_verify_any_certificate_passes(certificates: Certificates) -> None:
    async with HttpFaults(ssl=certificates.server("other.example", not_after=YESTERDAY)) as server:
        async with held(url_of(server), server, verify=False) as host:
            assert await text(host, "effect") == "1"


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_that_speaks_no_tls_is_told(transport: str) -> None:
    async def plain(line: Line) -> None:
        await line.reader.read(1000)
        line.answer(b"plain HTTP, sent to a port of it", 400)

    async with serving(plain) as server:
        error = await start_failure(f"https://127.0.0.1:{server.port}/mcp", transport=transport)
    assert "the server does not speak TLS on this port" in str(error)


@ALL
async def test_f14_9_a_client_certificate_is_shown_where_it_is_wanted(
    era: str, certificates: Certificates
) -> None:
    password = "s3cret word"
    locked, key = certificates.locked_client(password)
    async with HttpFaults(era=era, ssl=certificates.server("127.0.0.1", clients=True)) as server:
        for spec in (
            {"client_cert": certificates.client()},
            {"client_cert": locked, "client_key": key, "client_key_password": password},
        ):
            async with held(url_of(server), server, ca_file=certificates.ca_file, **spec) as host:
                await text(host, "effect")
                assert password not in repr(host.status()) + repr(host.server("s"))
        assert server.effects["effect"] == 2


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize(
    ("version", "foreign", "said"),
    [
        (ssl.TLSVersion.TLSv1_3, False, "the server wants a client certificate, and none is set"),
        (ssl.TLSVersion.TLSv1_3, True, "the server does not accept our client certificate"),
        (ssl.TLSVersion.TLSv1_2, False, "TLS with the server could not be set up"),
        (ssl.TLSVersion.TLSv1_2, True, "the server does not accept our client certificate"),
    ],
)
async def test_f14_9_a_client_certificate_that_is_missing_or_foreign_is_told(
    version: ssl.TLSVersion, foreign: bool, said: str, transport: str, certificates: Certificates
) -> None:
    context = certificates.server("127.0.0.1", clients=True)
    context.maximum_version = version
    with blocking_server(context) as (port, got):
        error = await start_failure(
            f"https://127.0.0.1:{port}/mcp",
            transport=transport,
            ca_file=certificates.ca_file,
            client_cert=certificates.client(foreign=True) if foreign else None,
        )
        assert said in str(error)
        # In TLS 1.3 the request has left by then; the server throws it away unread.
        assert transport == "sse" or "not sent" in str(error)
        assert got == []


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"ca_file": "missing.pem"}, "missing.pem cannot be read"),
        ({"ca_file": "nonsense.pem"}, "nonsense.pem holds no certificates"),
        ({"client_cert": "missing.pem"}, "missing.pem is not there"),
        ({"client_cert": "nonsense.pem"}, "nonsense.pem is no key for the certificate"),
    ],
)
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_files_that_are_not_what_they_should_be_are_named(
    files: dict[str, str], said: str, transport: str, tmp_path: Path
) -> None:
    (tmp_path / "nonsense.pem").write_text("no PEM at all")
    given = {key: str(tmp_path / name) for key, name in files.items()}
    async with HttpFaults() as server:
        url = f"https://127.0.0.1:{server.port}/mcp"
        error = await start_failure(url, transport=transport, **given)
        assert said in str(error)
        assert not server.requests


@pytest.mark.parametrize("password", [None, "s3cret"])
async def test_a_key_that_does_not_open_is_told_without_its_password(
    password: str | None, certificates: Certificates
) -> None:
    cert, key = certificates.locked_client("another")
    error = await start_failure(
        "https://127.0.0.1:1/mcp",
        client_cert=cert,
        client_key=key,
        client_key_password=password,
        secrets=["s3cret"],
    )
    assert "needs a password" in str(error)


async def test_the_host_needs_no_way_to_be_closed(certificates: Certificates) -> None:
    """A start that hangs in a dial is given up with the host, at once."""
    with dead_end() as port:
        async with host_for(f"http://127.0.0.1:{port}/mcp") as host:
            pending = await host.wait_ready(0.1)
            assert pending.pending == ("s",)
            with within(SLACK):
                report = await host.close()
            assert not report.stuck
