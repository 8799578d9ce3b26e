"""A login while everything that runs on this machine is against it: pages, scanners, floods, and other people's codes.

They know the port and the path of the listener, which is more than a page can find out; they do not know the state. The
person's browser comes back in the middle of it. F12.2, F12.9, F12.11 of the field faults.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from moorings import AuthSettings, HttpServer, LoginPrompt
from tests.auth.callback_kit import can_bind
from tests.auth.host_kit import spec, stored
from tests.auth.login_kit import Someone, follow, log_in
from tests.faults.auth_server import AuthFaults, consent

LOGGED_IN = "logged in to"
PATIENCE = 30.0
TLS_HELLO = bytes.fromhex("16030100c8010000c403036162636465") + b"\x00" * 64


class Attackers:
    """What they send, and all that they are told; each attack goes on until the block is left."""

    def __init__(self, redirect_uri: str, stranger: str) -> None:
        """``stranger``: the query of an answer to another login, with a code that the server would take."""
        parts = urlsplit(redirect_uri)
        self.host, self.port, self.path = parts.hostname or "", parts.port or 0, parts.path
        self.stranger = stranger
        self.heard: list[bytes] = []
        self.rounds = 0
        self.busy = asyncio.Event()
        """Each attack was made once at least."""
        self._left = 0

    @asynccontextmanager
    async def at_work(self, *attacks: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        self._left = len(attacks)
        tasks = [asyncio.ensure_future(self._again(attack)) for attack in attacks]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _again(self, attack: Callable[[], Awaitable[None]]) -> None:
        first = True
        while True:
            try:
                await attack()
            except OSError:
                pass  # It is turned away, as it should be.
            self.rounds += 1
            if first:
                first, self._left = False, self._left - 1
                if not self._left:
                    self.busy.set()
            await asyncio.sleep(0)

    async def say(self, raw: bytes, *, within: float = PATIENCE) -> bytes:
        """One connection: send it, hear the answer to its end."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            async with asyncio.timeout(within):
                writer.write(raw)
                answer = await reader.read()
        except (TimeoutError, OSError):
            return b""
        finally:
            writer.close()
        self.heard.append(answer)
        return answer

    async def ask(self, target: str, *more: str, method: str = "GET", host: str = "") -> bytes:
        host = host or f"{self.host}:{self.port}"
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {host}",
            "Origin: https://evil.example",
            *more,
            "",
            "",
        ]
        return await self.say("\r\n".join(lines).encode())

    # A page

    def guesses(self) -> list[str]:
        """What could stand where the state stands."""
        code = f"code={secrets.token_urlsafe(24)}"
        return [
            self.stranger,
            code,
            f"{code}&state=",
            f"{code}&state={secrets.token_urlsafe(32)}",
            f"{code}&state[]=x&state%00=x",
            f"{code}&state=%00",
            f"{self.stranger}&state={secrets.token_urlsafe(32)}",
            "error=access_denied",
            f"error=access_denied&error_description=<script>&state={secrets.token_urlsafe(32)}",
            f"error=invalid_request&iss=https%3A%2F%2Fevil.example&state={secrets.token_urlsafe(32)}",
            f"{code}&iss=https%3A%2F%2Fevil.example",
        ]

    async def page(self) -> None:
        """fetch, img and form: to its path and to those that others use."""
        paths = [self.path, "/", "/callback", "/oauth/callback", f"{self.path}/", f"{self.path}/done-x"]
        query = random.choice(self.guesses())
        target = f"{random.choice(paths)}?{query}"
        await self.ask(target, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image", "Accept: image/*")
        await self.ask(target, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Site: cross-site", "Accept: text/html")
        await self.ask(self.path, "Access-Control-Request-Private-Network: true", method="OPTIONS")
        form = [f"Content-Length: {len(query)}", "Content-Type: application/x-www-form-urlencoded"]
        body = "\r\n".join([f"POST {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}", *form, "", query])
        await self.say(body.encode())

    async def rebinding(self) -> None:
        """A page whose own name leads to this machine now."""
        for host in (f"evil.example:{self.port}", "evil.example", f"127.0.0.1.evil.example:{self.port}"):
            answer = await self.ask(f"{self.path}?{self.stranger}", host=host)
            assert not answer or answer.startswith(b"HTTP/1.1 421 "), answer

    # Programs

    async def scanner(self) -> None:
        """Connects and leaves, resets, greets in another protocol, sends noise."""
        for raw in (
            b"",
            TLS_HELLO,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x05\x01\x00",
            random.randbytes(64),
        ):
            _, writer = await asyncio.open_connection(self.host, self.port)
            writer.write(raw)
            if random.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()

    async def loris(self) -> None:
        """A request that never ends, a byte now and then."""
        _, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(f"GET {self.path}?state=".encode())
            for _ in range(100):
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.05)
        finally:
            writer.transport.abort()

    async def flood(self) -> None:
        """Many at once that say nothing."""
        await asyncio.gather(*(self.silent() for _ in range(16)), return_exceptions=True)

    async def silent(self) -> None:
        _, writer = await asyncio.open_connection(self.host, self.port)
        try:
            await asyncio.sleep(0.01)
        finally:
            writer.transport.abort()

    async def great_heads(self) -> None:
        await self.say(f"GET {self.path}?x HTTP/1.1\r\nCookie: ".encode() + b"c" * 200_000, within=1.0)


def without_port(server: AuthFaults) -> HttpServer:
    return spec(server)


def known_client(server: AuthFaults) -> HttpServer:
    """A client whose redirect URI everybody knows."""
    server.clients["known"] = {"token_endpoint_auth_method": "none"}
    return spec(server, AuthSettings(client_id="known"))


async def answer_of_a_stranger(server: AuthFaults, prompt: LoginPrompt) -> str:
    """The query that ends somebody else's login with the same client and redirect URI: its code is a good one."""
    asked = [(name, value) for name, value in parse_qsl(urlsplit(prompt.url).query) if name != "state"]
    asked.append(("state", secrets.token_urlsafe(32)))
    place = urlsplit(prompt.url)
    return urlsplit(await consent(f"{place.scheme}://{place.netloc}{place.path}?{urlencode(asked)}")).query


@pytest.mark.parametrize("of", [without_port, known_client])
async def test_the_login_of_a_person_in_the_midst_of_it(
    of: Callable[[AuthFaults], HttpServer], tmp_path: Path
) -> None:
    attackers: list[Attackers] = []
    codes: list[str] = []

    async def in_the_midst(prompt: LoginPrompt) -> str:
        them = Attackers(prompt.redirect_uri, await answer_of_a_stranger(server, prompt))
        attackers.append(them)
        everything = [them.page, them.page, them.rebinding, them.scanner, them.flood, them.great_heads]
        async with asyncio.timeout(PATIENCE), them.at_work(*everything, *[them.loris] * 40):
            await them.busy.wait()
            answer = await consent(prompt.url)
            codes.append(dict(parse_qsl(urlsplit(answer).query))["code"])
            # Under another name even the right answer is none.
            said = await them.ask(f"{them.path}?{urlsplit(answer).query}", host="evil.example")
            assert said.startswith(b"HTTP/1.1 421 ")
            return await follow(answer)

    async def act(prompt: LoginPrompt) -> str | None:
        someone.open(in_the_midst(prompt))
        return None

    async with AuthFaults() as server:
        someone = Someone(act)
        result = await log_in(of(server), tmp_path, on_login_url=someone)
        assert LOGGED_IN in (await someone.page())
        them = attackers[0]
        assert result.fresh and len(someone.prompts) == 1
        # Theirs went nowhere, and its own was sent once.
        assert [form["code"] for form in server.grants("authorization_code")] == codes
        assert [each.access_token.reveal() in server.access for each in await stored(tmp_path)] == [True]
        heard = b"".join(them.heard).lower()
        assert LOGGED_IN.encode() not in heard and b" 303 " not in heard and b"access-control-" not in heard
        state = dict(parse_qsl(urlsplit(someone.prompts[0].url).query))["state"]
        assert state.lower().encode() not in heard and b"<script" not in heard
        assert them.rounds > 50 and can_bind(them.port)


async def test_what_comes_after_the_answer_changes_nothing(tmp_path: Path) -> None:
    """Its answer again, and others with its very state, while the code is exchanged."""
    heard: list[bytes] = []

    async def replay(prompt: LoginPrompt) -> str:
        answer = await consent(prompt.url)
        stranger = dict(parse_qsl(await answer_of_a_stranger(server, prompt)))
        them = Attackers(prompt.redirect_uri, "")
        right = dict(parse_qsl(urlsplit(answer).query))
        shown = asyncio.ensure_future(follow(answer))
        await server.until(lambda _: server.grants("authorization_code"))
        others = (
            right,
            right | {"code": stranger["code"]},
            right | {"iss": "https://evil.example"},
            {"error": "access_denied", "state": right["state"], "iss": right["iss"]},
            {"state": right["state"]},
        )
        heard.extend([await them.ask(f"{them.path}?{urlencode(query)}") for query in others])
        server.release("token:authorization_code")
        return await shown

    async def act(prompt: LoginPrompt) -> str | None:
        someone.open(replay(prompt))
        return None

    async with AuthFaults(on={"token:authorization_code": "hold"}) as server:
        someone = Someone(act)
        assert (await log_in(server, tmp_path, on_login_url=someone)).fresh
        assert len(server.grants("authorization_code")) == 1 and len(server.codes) == 2
        # Each is led to the page that waits for the outcome of the one login.
        assert all(each.startswith(b"HTTP/1.1 303 ") for each in heard) and len(heard) == 5
        assert LOGGED_IN in await someone.page()


async def test_the_same_answer_twice_at_once_is_exchanged_once(tmp_path: Path) -> None:
    async def act(prompt: LoginPrompt) -> str | None:
        answer = await consent(prompt.url)
        for _ in range(5):
            someone.open(follow(answer))
        return answer  # It is pasted, too.

    async with AuthFaults() as server:
        someone = Someone(act)
        assert (await log_in(server, tmp_path, on_login_url=someone)).fresh
        assert len(server.grants("authorization_code")) == 1


async def test_a_code_that_was_used_before_ends_this_login_alone(tmp_path: Path) -> None:
    """Somebody was faster with the code (it leaked): the server says so, and what there was stays."""
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        before = await stored(tmp_path)

        async def act(prompt: LoginPrompt) -> str | None:
            answer = await consent(prompt.url)
            server.codes[dict(parse_qsl(urlsplit(answer).query))["code"]]["spent"] = True
            someone.open(follow(answer))
            return None

        someone = Someone(act)
        with pytest.raises(Exception, match="invalid_grant"):
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert await stored(tmp_path) == before
        assert "did not succeed" in await someone.page()
