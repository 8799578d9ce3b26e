"""The listener of a login: where it listens, what is the answer, what the person sees, and that nothing stays."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from typing import Any

import pytest

from moorings._secret import Secret
from moorings.auth import callback_sockets
from moorings.auth.callback import Listeners, PortTaken, Seat
from moorings.auth.faults import LoginAbandoned, LoginFault
from moorings.auth.pages import failed_page, rest_of, stray_page, succeeded_page, waiting_page
from tests.auth.callback_kit import (
    ANSWER,
    CODE,
    LONG,
    STATE,
    answered,
    ask,
    can_bind,
    connected,
    get,
    listening,
    port_of,
    request,
    right,
    send,
    taken,
)
from tests.clock import on_running_clock, pass_time, turns

# --- the answer and the page ----------------------------------------------------------------------------------------


async def test_the_answer_arrives_and_the_browser_is_led_away_from_it() -> None:
    async with listening() as seat:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/callback/[\w-]{16}", seat.redirect_uri)
        sent_on = await ask(seat, right(seat))
        assert await seat.arrived() == ANSWER
        assert sent_on.status == 303 and sent_on.body == ""
        assert sent_on.headers["location"].startswith(f"{seat.redirect_uri}/done-")
        assert CODE not in str(sent_on) and STATE.reveal() not in str(sent_on)
        assert sent_on.headers["referrer-policy"] == "no-referrer"
        assert sent_on.headers["cache-control"] == "no-store"


async def test_f12_3_nothing_says_success_before_it_is_one() -> None:
    """F12.3: the page waits for the outcome, and a reload shows the same."""
    async with listening(server="demo & co") as seat:
        place = (await ask(seat, right(seat))).place
        async with asyncio.timeout(LONG), connected(seat) as (reader, writer):
            writer.write(request(seat, place))
            for _ in range(10):  # others are answered meanwhile
                assert (await get(seat, "/favicon.ico")).status == 404
            # The browser has something to show, so that the page of before is not what the person looks at.
            begun = (await reader.readuntil(b"</main>\n")).decode()
            assert "Finishing the login to <bdi>demo &amp; co</bdi>" in begun and "Logged in" not in begun
            more = asyncio.create_task(reader.read(1))
            await turns()
            assert not more.done()
            seat.succeeded()
            rest = (await more + await reader.read()).decode()
        assert "Logged in to <bdi>demo &amp; co</bdi>" in rest and "You can close this page" in rest
        again = await get(seat, place)
        assert again.status == 200 and rest.endswith(again.body[again.body.index("<main") :])
        assert CODE not in begun + rest and STATE.reveal() not in begun + rest


async def test_f12_3_the_page_says_why_it_came_to_nothing() -> None:
    """F12.3: the exchange failed, or the person said no."""
    async with listening() as seat:
        place = (await ask(seat, right(seat, f"error=access_denied&state={STATE.reveal()}"))).place
        assert await seat.arrived() == f"error=access_denied&state={STATE.reveal()}"
        seat.failed("the login was refused: access_denied (<b>no</b>)")
        page = await get(seat, place)
        assert "did not succeed" in page.body and "Logged in" not in page.body
        assert "access_denied (&lt;b&gt;no&lt;/b&gt;)" in page.body


async def test_what_was_told_first_counts() -> None:
    async with listening() as seat:
        seat.failed("for a reason")
        seat.succeeded()
        seat.failed("for another")
        page = await answered(seat)
        assert "for a reason" in page and "Logged in" not in page and "another" not in page


async def test_the_first_right_request_counts_and_the_others_see_the_same() -> None:
    async with listening() as seat:
        first = await ask(seat, right(seat))
        second = await ask(seat, right(seat, f"code=another&state={STATE.reveal()}"))
        third = await ask(seat, right(seat, f"error=access_denied&state={STATE.reveal()}"))
        assert first == second == third
        assert await seat.arrived() == ANSWER == await seat.arrived()
        seat.succeeded()
        assert "Logged in" in await answered(seat)


async def test_two_right_requests_at_once() -> None:
    async with listening() as seat:
        queries = [f"code={number}&state={STATE.reveal()}" for number in range(20)]
        answers = await asyncio.gather(*(ask(seat, right(seat, query)) for query in queries))
        assert len({answer.headers["location"] for answer in answers}) == 1
        assert await seat.arrived() in queries
        seat.succeeded()
        pages = await asyncio.gather(*(get(seat, answers[0].place) for _ in range(20)))
        assert len({page.body for page in pages}) == 1


async def test_the_query_comes_as_it_was() -> None:
    async with listening() as seat:
        query = f"code=a%2Bb+c?d/é&state={STATE.reveal()}&iss=https%3A%2F%2Fas&x"
        assert (await ask(seat, right(seat, query))).status == 303
        assert await seat.arrived() == query


async def test_who_stops_waiting_loses_nothing() -> None:
    async with listening() as seat:
        waiter = asyncio.create_task(seat.arrived())
        await turns()
        waiter.cancel()
        await asyncio.wait([waiter])
        await ask(seat, right(seat))
        assert await seat.arrived() == ANSWER


async def test_nothing_is_the_answer_before_there_is_a_question() -> None:
    listeners = Listeners(close_within=0.1)
    seat = await listeners.seat("127.0.0.1")
    assert (await ask(seat, right(seat))).status == 400
    seat.expect(STATE, "demo")
    assert (await ask(seat, right(seat))).status == 303
    await listeners.aclose()


# --- where ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "shown", "addresses"),
    [
        ("127.0.0.1", "127.0.0.1", ["127.0.0.1", "::1"]),
        ("::1", "[::1]", ["127.0.0.1", "::1"]),
        ("[::1]", "[::1]", ["127.0.0.1", "::1"]),
        ("localhost", "localhost", ["127.0.0.1", "::1"]),
        ("LocalHost", "LocalHost", ["127.0.0.1", "::1"]),
        ("moor.localhost", "moor.localhost", ["127.0.0.1", "::1"]),
        ("127.0.0.2", "127.0.0.2", ["127.0.0.2"]),
    ],
)
async def test_f12_4_the_host_that_was_asked_for(host: str, shown: str, addresses: list[str]) -> None:
    """F12.4: it answers in each family that the host can mean, and the redirect URI says it letter by letter."""
    async with listening(host) as seat:
        assert seat.redirect_uri.startswith(f"http://{shown}:")
        for address in addresses:
            for name in (shown, shown.lower(), "127.0.0.1", "[::1]", "localhost"):
                raw = request(seat, f"{seat.path}?{ANSWER}", host=f"{name}:{port_of(seat)}")
                sent_on = await ask(seat, raw, address)
                assert sent_on.headers["location"] == (
                    f"http://{name.lower()}:{port_of(seat)}{seat.page_path}"
                )


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/", "/"),
        ("/cb", "/cb"),
        ("/cb/", "/cb/"),
        ("/a%20b/ü", "/a%20b/%C3%BC"),
        ("/cb?client=1", "/cb"),
        ("//elsewhere.example/cb", "//elsewhere.example/cb"),
    ],
)
async def test_f12_4_exactly_that_port_and_path(path: str, target: str) -> None:
    """F12.4: a redirect URI that is registered is fulfilled to the letter."""
    with taken() as other:
        port = other.getsockname()[1]
    async with listening("localhost", port, path) as seat:
        assert seat.redirect_uri == f"http://localhost:{port}{path}"
        query = f"client=1&{ANSWER}"
        sent_on = await get(seat, f"{target}?{query}")
        assert sent_on.status == 303 and await seat.arrived() == query
        assert sent_on.headers["location"].startswith(f"http://localhost:{port}/")
        seat.succeeded()
        assert "Logged in" in (await get(seat, sent_on.place)).body
        assert (await get(seat, f"/x{target}?{query}")).status == 404


async def test_f12_4_a_port_that_is_taken() -> None:
    """F12.4: a typed error that names it, and nothing is held."""
    listeners = Listeners()
    with taken() as other:
        port = other.getsockname()[1]
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(PortTaken, match=rf"port {port} of {host} is in use") as caught:
                await listeners.seat(host, port, "/cb")
            assert (caught.value.host, caught.value.port) == (host, port)
            assert can_bind(port, "::1")
    await (await listeners.seat("127.0.0.1", port)).aclose()


async def test_another_program_on_the_other_family() -> None:
    """For a name it would get the answer, so that is no listening; an address says which one is meant."""
    listeners = Listeners(close_within=0.1)
    with taken("::1") as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken):
            await listeners.seat("localhost", port)
        with pytest.raises(PortTaken):
            await listeners.seat("::1", port)
        seat = await listeners.seat("127.0.0.1", port)
        seat.expect(STATE, "demo")
        # A second login, by name, shares what there is of the port, and fails as the first one would have.
        with pytest.raises(PortTaken):
            await listeners.seat("localhost", port)
        assert (await ask(seat, right(seat))).status == 303
        await asyncio.wait_for(listeners.aclose(), LONG)


class System:
    """What the system says to each address and port that is asked for; real where it says nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **says: int) -> None:
        self.says = says
        self.asked: list[tuple[str, int]] = []
        self.opened: list[socket.socket] = []
        self.times = 10**6
        original = callback_sockets._listening

        def listening(address: str, port: int) -> socket.socket:
            self.asked.append((address, port))
            says = self.says.get("ipv6" if ":" in address else "ipv4", 0)
            if says and self.times:
                self.times -= 1
                raise OSError(says, "no")
            self.opened.append(original(address, port))
            return self.opened[-1]

        monkeypatch.setattr(callback_sockets, "_listening", listening)


@pytest.mark.parametrize("problem", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
async def test_f12_4_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch, problem: int) -> None:
    """F12.4: one family is enough where there is one; but not where the other one was asked for."""
    System(monkeypatch, ipv6=problem)
    for host in ("127.0.0.1", "localhost"):
        async with listening(host) as seat:
            assert (await ask(seat, right(seat))).status == 303
    for port in (0, 40123):
        with pytest.raises(LoginFault, match="this machine has no ::1 to listen on") as caught:
            await Listeners().seat("::1", port)
        assert not isinstance(caught.value, PortTaken)


async def test_a_machine_without_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    System(monkeypatch, ipv4=errno.EADDRNOTAVAIL)
    listeners = Listeners(close_within=0.1)
    for host in ("::1", "localhost"):
        seat = await listeners.seat(host)
        seat.expect(STATE, "demo")
        assert (await ask(seat, right(seat), "::1")).status == 303
    with pytest.raises(LoginFault, match=r"no 127\.0\.0\.1"):
        await listeners.seat("127.0.0.1")
    await asyncio.wait_for(listeners.aclose(), LONG)


async def test_a_machine_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    System(monkeypatch, ipv4=errno.EADDRNOTAVAIL, ipv6=errno.EAFNOSUPPORT)
    for host in ("::1", "localhost", "127.0.0.1"):
        with pytest.raises(LoginFault):
            await Listeners().seat(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_ports_are_tried_until_one_is_free_in_both(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    system = System(monkeypatch, **{"ipv4" if host == "::1" else "ipv6": errno.EADDRINUSE})
    system.times = 3
    async with listening(host) as seat:
        assert len(system.asked) == 8
        assert {each[1] for each in system.asked[::2]} == {0}
        for address in ("127.0.0.1", "::1"):
            assert (await ask(seat, right(seat), address)).status == 303
    assert all(sock.fileno() == -1 for sock in system.opened)


async def test_no_port_is_free_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, ipv6=errno.EADDRINUSE)
    async with listening("127.0.0.1") as seat:
        assert (await ask(seat, right(seat))).status == 303
    with pytest.raises(PortTaken, match="no free port") as caught:
        await Listeners().seat("localhost")
    assert caught.value.port == 0
    assert all(sock.fileno() == -1 for sock in system.opened)


@pytest.mark.parametrize(("port", "fix"), [(80, "from 1024 up"), (8080, "another port")])
async def test_a_port_that_is_not_for_this_user(monkeypatch: pytest.MonkeyPatch, port: int, fix: str) -> None:
    System(monkeypatch, ipv4=errno.EACCES, ipv6=errno.EACCES)
    with pytest.raises(PortTaken, match=rf"does not let this user listen on port {port}") as caught:
        await Listeners().seat("localhost", port)
    assert fix in str(caught.value)


async def test_a_system_that_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, ipv6=errno.EMFILE)
    with pytest.raises(LoginFault, match="Too many open files"):
        await Listeners().seat("localhost", 0)
    assert system.opened and all(sock.fileno() == -1 for sock in system.opened)


@pytest.mark.parametrize(
    ("host", "path", "said"),
    [
        ("0.0.0.0", "/cb", "0.0.0.0 is not this machine"),
        ("example.com", "/cb", "example.com is not this machine"),
        ("192.168.1.2", "", "not this machine"),
        ("127.0.0.1", "cb", "begins with a slash"),
    ],
)
async def test_what_cannot_be_a_way_back(host: str, path: str, said: str) -> None:
    with pytest.raises(LoginFault, match=said):
        await Listeners().seat(host, 0, path)


async def test_f12_9_two_logins_at_one_port() -> None:
    """F12.9: each refuses the other's answer, and both finish with their own."""
    listeners = Listeners()
    one = await listeners.seat("127.0.0.1", 0, "/one")
    port = port_of(one)
    two = await listeners.seat("127.0.0.1", port, "/two")
    three = await listeners.seat("localhost", port, "/two")
    states = {one: Secret("s" * 40), two: Secret("t" * 40), three: Secret("u" * 40)}
    for seat, state in states.items():
        seat.expect(state, f"server of {seat.path}")
    for seat, wrong in ((one, two), (one, three), (two, one)):
        swapped = await get(seat, f"{seat.path}?code=x&state={states[wrong].reveal()}")
        assert swapped.status == 400 and "still waits for its own answer" in swapped.body
    for number, (seat, state) in enumerate(states.items()):
        sent_on = await get(seat, f"{seat.path}?code={number}&state={state.reveal()}")
        assert sent_on.place == seat.page_path
        assert (await seat.arrived()).startswith(f"code={number}&")
    one.failed("of this")
    two.failed("of that")
    assert "of this" in (await get(one, one.page_path)).body
    assert "of that" in (await get(two, two.page_path)).body
    await one.aclose()
    assert (await get(two, one.page_path)).status == 404
    assert not can_bind(port)
    three.failed("")
    await get(three, three.page_path)
    await asyncio.gather(two.aclose(), three.aclose())
    assert can_bind(port) and can_bind(port, "::1")


# --- the end --------------------------------------------------------------------------------------------------------


async def test_who_waits_for_the_answer_is_told_of_the_end() -> None:
    async with listening() as seat:
        waiter = asyncio.create_task(seat.arrived())
        await turns()
        await seat.aclose()
        with pytest.raises(LoginAbandoned):
            await waiter
        with pytest.raises(LoginAbandoned):
            await seat.arrived()


async def test_a_page_that_waits_is_told_of_the_end() -> None:
    async with listening() as seat:
        place = (await ask(seat, right(seat))).place
        async with asyncio.timeout(LONG), connected(seat) as (reader, writer):
            writer.write(request(seat, place))
            while not seat._delivering:
                await asyncio.sleep(0.001)
            end = asyncio.create_task(seat.aclose())
            assert "the login was ended" in (await reader.read()).decode()
            writer.close()
            await end
        assert can_bind(port_of(seat)) and can_bind(port_of(seat), "::1")


async def test_a_browser_that_was_sent_on_still_gets_its_page() -> None:
    """The outcome may be there before the browser asks for the page."""
    async with listening() as seat:
        place = (await ask(seat, right(seat))).place
        seat.succeeded()
        end = asyncio.create_task(seat.aclose())
        await turns(10)
        assert not end.done()
        assert "Logged in" in (await get(seat, place)).body
        await asyncio.wait_for(end, LONG)
        assert can_bind(port_of(seat))


@on_running_clock
async def test_a_browser_that_never_asks_holds_nothing_up() -> None:
    async with listening() as seat:
        await ask(seat, right(seat))
        end = asyncio.create_task(seat.aclose())
        await pass_time(1.9, step=0.1)
        assert not end.done()
        await pass_time(0.2, step=0.1)
        await asyncio.wait_for(end, LONG)
        assert can_bind(port_of(seat))


async def test_a_cancelled_end_is_an_end() -> None:
    listeners = Listeners(close_within=3600.0)
    seats = [await listeners.seat("127.0.0.1") for _ in range(3)]
    for seat in seats:
        seat.expect(STATE, "demo")
        await ask(seat, right(seat))
    one = asyncio.create_task(seats[0].aclose())
    await turns()
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    assert can_bind(port_of(seats[0])) and not can_bind(port_of(seats[1]))
    rest = asyncio.create_task(listeners.aclose())
    await turns()
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rest
    assert all(can_bind(port_of(seat)) for seat in seats)


async def test_the_port_is_free_whatever_peers_hold_open() -> None:
    async with listening(close_within=0.0) as seat:
        place = (await ask(seat, right(seat))).place
        port = port_of(seat)
        async with (
            connected(seat) as (_, silent),
            connected(seat) as (_, half),
            connected(seat) as (_, waits),
        ):
            half.write(b"GET / HT")
            waits.write(request(seat, place))
            silent.write(b"")
            while not seat._delivering:
                await asyncio.sleep(0.001)
            await seat.aclose()
            assert can_bind(port) and can_bind(port, "::1")
            again = await Listeners().seat("127.0.0.1", port)
            await again.aclose()


async def test_the_end_may_be_asked_for_often() -> None:
    listeners = Listeners()
    seat = await listeners.seat("127.0.0.1")
    await asyncio.gather(seat.aclose(), listeners.aclose(), seat.aclose())
    await seat.aclose()
    await listeners.aclose()
    assert repr(seat) == f"Seat({port_of(seat)})"


@pytest.mark.parametrize("goes_on", range(0, 24, 2))
async def test_an_end_at_each_step(goes_on: int) -> None:
    """In every turn of a browser's coming, and with it cancelled: nothing is left, whoever is there."""
    for is_cancelled in (False, True):
        async with listening() as seat:
            seat.succeeded()
            coming = [asyncio.create_task(send(seat, right(seat), each)) for each in ("127.0.0.1", "::1") * 3]
            await turns(goes_on)
            end = asyncio.create_task(seat.aclose(0.0))
            await turns(1)
            if is_cancelled:
                end.cancel()
            await asyncio.wait([end])
            assert can_bind(port_of(seat)) and can_bind(port_of(seat), "::1")
            for outcome in await asyncio.gather(*coming, return_exceptions=True):
                assert isinstance(outcome, OSError) or outcome == b"" or outcome.startswith(b"HTTP/1.1 303 ")


async def test_a_loop_that_watches_no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the usual one on Windows."""

    def none(*_: object) -> None:
        raise NotImplementedError

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "add_reader", none, raising=False)
    async with listening(most=4) as seat:
        for address in ("127.0.0.1", "::1") * 8:
            assert (await ask(seat, right(seat), address)).status == 303
        seat.succeeded()
        assert "Logged in" in await answered(seat)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # 3.12 warns of every fork beside threads
async def test_a_forked_child_keeps_no_port() -> None:
    listeners = Listeners()
    seat = await listeners.seat("127.0.0.1")
    seat.expect(STATE, "demo")
    begun, ended = os.pipe(), os.pipe()
    async with connected(seat):
        while not seat._port._connections:
            await asyncio.sleep(0.001)
        child = os.fork()
        if child == 0:
            listeners.forget_after_fork()
            os.write(begun[1], b"x")
            os.close(ended[1])
            os.read(ended[0], 1)
            os._exit(0)
        try:
            os.read(begun[0], 1)
            # The parent's are as they were.
            assert (await ask(seat, right(seat))).status == 303
            await seat.aclose(0.0)
            assert can_bind(port_of(seat)) and can_bind(port_of(seat), "::1")
        finally:
            for each in (*begun, *ended):
                os.close(each)
            os.waitpid(child, 0)


def test_the_same_listeners_on_another_loop() -> None:
    listeners = Listeners()

    async def once() -> None:
        seat = await listeners.seat("127.0.0.1")
        seat.expect(STATE, "demo")
        seat.succeeded()
        assert "Logged in" in await answered(seat)
        await listeners.aclose()

    for _ in range(2):
        asyncio.run(once())


# --- the pages ------------------------------------------------------------------------------------------------------

NASTY = "<script>alert(1)</script>\"'&\u202eevil\x1b[31m\n" + "x" * 5000


@pytest.mark.parametrize(
    "page",
    [
        succeeded_page("demo"),
        succeeded_page(NASTY),
        failed_page(NASTY, NASTY),
        failed_page("", ""),
        stray_page(),
        waiting_page(NASTY) + rest_of(failed_page(NASTY, NASTY)),
    ],
)
def test_pages_are_plain(page: str) -> None:
    assert page.startswith("<!DOCTYPE html>") and "Moorings" in page and "You can close this page" in page
    assert not re.search(r"<script|<img|<link|<iframe|<form|javascript:|https?:|url\(|@import| on\w+=", page)
    assert not re.search(r"[\u202e\x1b]", page)
    assert len(page) < 8000
    assert page.count("<!DOCTYPE") == page.count("</html>") == 1
    text = page.partition("<main")[2].replace("<style>.waiting { display: none; }</style>", "")
    assert not re.search(r"<(?!/?(svg|circle|path|h1|bdi|p|blockquote|footer|main|body|html)\b)", text)


async def test_what_each_response_forbids() -> None:
    async with listening() as seat:
        seat.succeeded()
        sent_on = await ask(seat, right(seat))
        pages: list[Any] = [
            sent_on,
            await get(seat, sent_on.place),
            await get(seat, seat.path),
            await get(seat, "/"),
            await get(seat, "/", method="POST"),
            await get(seat, "/", host="elsewhere.example"),
        ]
        assert [page.status for page in pages] == [303, 200, 400, 404, 405, 421]
        for page in pages:
            policy = page.headers["content-security-policy"]
            for rule in (
                "default-src 'none'",
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
            ):
                assert rule in policy
            assert page.headers["referrer-policy"] == "no-referrer"
            assert page.headers["cache-control"] == "no-store"
            assert page.headers["x-content-type-options"] == "nosniff"
            assert page.headers["x-frame-options"] == "DENY"


def test_a_seat_shows_no_secret() -> None:
    async def shown() -> str:
        async with listening() as seat:
            await ask(seat, right(seat))
            assert isinstance(seat, Seat)
            return repr(seat) + repr(seat._query) + repr(vars(seat))

    text = asyncio.run(shown())
    assert CODE not in text and STATE.reveal() not in text
