"""A race for one stored credential: players in processes of their own, a real store, a server that rotates.

A ``Stage`` is one credential in a store and the server it is of. A ``Crew`` holds the players of one test, each a
process (``race_player.py``) with a broker and threads; it kills those that are left. Time is told to players, so that
all tokens end at the same moment and none by chance.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from redis.asyncio import Redis

from moorings._secret import Secret
from moorings.auth.model import (
    LOCAL,
    Credential,
    CredentialKey,
    Registration,
    ServerMetadata,
    decode_credential,
    encode_credential,
)
from moorings.auth.renewal import about
from tests.auth.grants_kit import metadata_of
from tests.faults.auth_server import AuthFaults
from tests.store.backends import ROOT, Place, put

KINDS = ("files", "redis", "postgres")
WITHIN = 60.0
"""Seconds for what takes none: a busy machine must not fail a test."""
BASE, LIFE = 1_000_000.0, 3600.0
LONGER = LIFE + 400.0
"""Seconds by which the clock of all players moves where all tokens are to end."""
TOKEN = "token:refresh_token"


def place_of(kind: str, request: pytest.FixtureRequest, folder: Path, lease: float = 60.0) -> Place:
    """Where the credential lies. The lease of Redis is longer than any player may be kept from its work."""
    if kind == "redis":
        url = request.getfixturevalue("redis_server").url
        return Place(kind, {"url": url, "prefix": f"t-{secrets.token_hex(4)}", "lease": lease})
    if kind == "postgres":
        url = request.getfixturevalue("postgres_server").url
        return Place(kind, {"url": url, "table": f"t_{secrets.token_hex(4)}"})
    return Place(kind, {"folder": str(folder / "state" / "credentials")})


class Nursery:
    """The process that forks players: what they import is imported once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.auth.race_player"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )

    def fork(self, port: int) -> int:
        """A new player, which connects to that port. Gives its number."""
        return self._ask("fork", port)

    def stop(self, pid: int) -> None:
        """SIGSTOP, seen to have happened."""
        self._ask("stop", pid)

    def wait(self, pid: int) -> int:
        """How a player ended; negative: by that signal."""
        return self._ask("wait", pid)

    def _ask(self, order: str, number: int) -> int:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{order} {number}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        assert self._process.wait(WITHIN) == 0
        self._process.stdout.close()


class Player:
    """A process of the race, as the test sees it."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.writer = writer
        self._reader = reader
        self._heard: list[dict[str, Any]] = []

    def tell(self, do: str, **order: Any) -> None:
        self.writer.write(json.dumps({"do": do, **order}).encode() + b"\n")

    async def hear(self, what: str) -> Any:
        """The next thing of a kind that it says; other things are kept."""
        for each in self._heard:
            if what in each:
                self._heard.remove(each)
                return each[what]
        async with asyncio.timeout(WITHIN):
            while True:
                line = await self._reader.readline()
                assert line, (
                    f"player {self.pid} ended, and {what!r} was to come; before it came {self._heard}"
                )
                said = json.loads(line)
                if what in said:
                    return said[what]
                self._heard.append(said)

    async def gone(self) -> None:
        """Wait for its end."""
        async with asyncio.timeout(WITHIN):
            with contextlib.suppress(ConnectionError):
                await self._reader.read()


class Crew:
    """The players of one test. Made by ``crew``, which ends them."""

    def __init__(self, nursery: Nursery, port: int, came: asyncio.Queue[Player]) -> None:
        self._nursery = nursery
        self._port = port
        self._came = came
        self.players: list[Player] = []

    async def enlist(self, count: int, stage: Stage, *, threads: int = 8, **options: Any) -> list[Player]:
        """So many more, each with so many threads. ``options`` are those of ``begin`` in ``race_player.py``."""
        for _ in range(count):
            self._nursery.fork(self._port)
        made: list[Player] = []
        async with asyncio.timeout(WITHIN):
            while len(made) < count:
                made.append(await self._came.get())
        self.players += made
        for each in made:
            each.tell("begin", kind=stage.place.kind, where=stage.place.where, resource=stage.resource,
                      wall=BASE, threads=threads, **options)  # fmt: skip
        for each in made:
            await each.hear("begun")
        return made

    async def kill(self, player: Player) -> None:
        """SIGKILL, and wait for the end."""
        os.kill(player.pid, signal.SIGKILL)
        await player.gone()
        self.players.remove(player)
        player.writer.close()
        assert self._nursery.wait(player.pid) == -signal.SIGKILL

    def stop(self, player: Player) -> None:
        self._nursery.stop(player.pid)

    def go_on(self, player: Player) -> None:
        """SIGCONT, and on from its step."""
        os.kill(player.pid, signal.SIGCONT)
        player.tell("go")

    async def dismiss(self) -> None:
        """All end by themselves, and leave nothing that complains."""
        for each in self.players:
            each.tell("end")
        for each in self.players:
            await each.hear("ended")
            await each.gone()
        codes = []
        while self.players:
            player = self.players.pop()
            player.writer.close()
            codes.append(self._nursery.wait(player.pid))
        assert set(codes) <= {0}


@contextlib.asynccontextmanager
async def crew_of(nursery: Nursery) -> AsyncIterator[Crew]:
    came: asyncio.Queue[Player] = asyncio.Queue()

    async def arrive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.put_nowait(Player(json.loads(await reader.readline())["pid"], reader, writer))

    server = await asyncio.start_server(arrive, "127.0.0.1", 0)
    crew = Crew(nursery, server.sockets[0].getsockname()[1], came)
    try:
        yield crew
        await crew.dismiss()
    finally:
        server.close()
        for each in list(crew.players):
            await crew.kill(each)


class TokenServer(Protocol):
    """What a race needs to know of the server it is run against."""

    def requests(self) -> int:
        """How many token requests came."""

    def revoked(self) -> int:
        """How many families were ended since a used token came again."""

    def hold(self) -> None:
        """Token requests are not answered until ``release``."""

    def release(self) -> None: ...


class Scripted:
    """The scripted authorization server as one."""

    def __init__(self, auth: AuthFaults) -> None:
        self.auth = auth

    def requests(self) -> int:
        return len(self.auth.grants("refresh_token"))

    def revoked(self) -> int:
        return self.auth.revoked_by_reuse

    def hold(self) -> None:
        self.auth._held.pop(TOKEN, None)
        self.auth.set(on={TOKEN: "hold"})

    def release(self) -> None:
        self.auth.release(TOKEN)
        self.auth.set(on={TOKEN: "ok"})


class Stage:
    """One credential in a store, which ended, and the server it is of."""

    def __init__(self, place: Place, server: TokenServer, credential: Credential) -> None:
        self.place = place
        self.server = server
        self.credential = credential
        self.resource = credential.key.resource
        self.key = credential.key.digest()
        self.wall = BASE
        """The clock of the players."""

    async def save(self, credential: Credential) -> None:
        """Store it, as a login does."""
        async with self.place.open() as store:
            await put(store, self.key, encode_credential(credential), **about(credential))

    async def stored(self) -> Credential:
        async with self.place.open() as store:
            found = await store.load(self.key)
        assert found is not None
        return decode_credential(found)

    async def keys(self) -> list[str]:
        """What is stored, marks of refreshes too."""
        async with self.place.open() as store:
            return [each.key for each in await store.keys()]

    async def lease(self) -> Any:
        """Who holds the lock, where that is a matter of a lease; else None."""
        if self.place.kind != "redis":
            return None
        client = Redis.from_url(self.place.where["url"], protocol=2)
        found = await client.get(f"{{{self.place.where['prefix']}}}:l:{self.key}")
        await client.aclose()
        return found

    async def end_lease(self, lease: Any) -> None:
        """Its time is over, as its holder died with it. Nobody else can have the lock before."""
        if lease is not None:
            client = Redis.from_url(self.place.where["url"], protocol=2)
            assert await client.getdel(f"{{{self.place.where['prefix']}}}:l:{self.key}") == lease
            await client.aclose()

    async def locked(self) -> int:
        """How often the lock was taken, where that is counted."""
        client = Redis.from_url(self.place.where["url"], protocol=2)
        found = await client.hget(f"{{{self.place.where['prefix']}}}:f:{self.key}", "n")
        await client.aclose()
        return int(found or 0)

    def expire(self) -> None:
        """All tokens end, for whoever is asked from now on."""
        self.wall += LONGER

    def ask(self, players: list[Player], how: str = "bearer") -> None:
        for each in players:
            each.tell("ask", how=how, wall=self.wall)


@contextlib.asynccontextmanager
async def stage_at(place: Place, **script: Any) -> AsyncIterator[tuple[Stage, AuthFaults]]:
    """A credential of the scripted server, ``BASE`` being the time at which it was got."""
    async with AuthFaults(clients={"c": {"token_endpoint_auth_method": "none"}}, **script) as auth:
        stage = Stage(place, Scripted(auth), login_at(auth))
        await stage.save(stage.credential)
        yield stage, auth


def login_at(auth: AuthFaults, **fields: Any) -> Credential:
    """A credential as a login at the scripted server gives it."""
    family = auth.family(resource=auth.resource)
    made = credential_of(
        metadata_of(auth),
        Registration(issuer=auth.issuer, client_id="c", auth_method="none"),
        auth.resource,
        access=auth.token(resource=auth.resource),
        refresh=family.live,
    )
    return msgspec.structs.replace(made, **fields)


def credential_of(
    metadata: ServerMetadata, registration: Registration, resource: str, *, access: str, refresh: str
) -> Credential:
    return Credential(
        key=CredentialKey(LOCAL, metadata.issuer, registration.client_id, resource),
        registration=registration,
        metadata=metadata,
        access_token=Secret(access),
        expires_at=BASE + LIFE,
        obtained_at=BASE,
        refresh_token=Secret(refresh),
    )


async def outcomes(players: list[Player]) -> list[dict[str, Any]]:
    """What every thread of theirs got."""
    return [each for player in players for each in await player.hear("got")]


async def race(stage: Stage, players: list[Player], rounds: int, *, threads: int = 8) -> None:
    """All ask at the same moment, so many times; one request each time, and all get what it gave.

    In turn the token ended by the clock, or was refused by its server; and the token request is answered at once, or
    when all of them wait.
    """
    server, before = stage.server, stage.credential.access_token.reveal()
    for number in range(rounds):
        how, held = ("bearer", "refused")[number % 2], number % 4 in (0, 1)
        asked = server.requests()
        if how == "bearer":
            stage.expire()
        if held:
            server.hold()
        stage.ask(players, how)
        for each in players:
            await each.hear("asked")
        if held:
            server.release()
        got = await outcomes(players)
        assert len(got) == len(players) * threads
        tokens = {each.get("token") or each["error"] + ": " + each["text"] for each in got}
        assert len(tokens) == 1, f"round {number} ({how}, held: {held}): {tokens}"
        assert before not in tokens and not any("error" in each for each in got), tokens
        assert (server.requests() - asked, server.revoked()) == (1, 0), (
            f"round {number} ({how}, held: {held})"
        )
        before = tokens.pop()
    stored = await stage.stored()
    assert (stored.version, stored.state) == (1 + rounds, "good")
    assert stored.access_token.reveal() == before
    assert await stage.keys() == [stage.key]


async def until_served(stage: Stage, player: Player) -> set[str]:
    """Ask until all of its threads get a token, as after something that passes by itself."""
    end = time.monotonic() + WITHIN
    while True:
        stage.ask([player])
        await player.hear("asked")
        got = await player.hear("got")
        if all("token" in each for each in got):
            return {each["token"] for each in got}
        assert time.monotonic() < end, got
        await asyncio.sleep(0.1)  # put off: it is told when that ends, and nobody tells the test


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    try:
        yield made
    finally:
        made.close()
