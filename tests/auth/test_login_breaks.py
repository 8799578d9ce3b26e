"""What once broke a login, or broke by one: each of these failed before it was mended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
import pytest

from moorings import AuthSettings, Bounds, LoginFailed, LoginPrompt
from moorings._secret import Secret
from moorings._tasks import TaskOwner
from moorings.errors import HostClosedError
from moorings.host.asking import Asking
from moorings.store.credentials import StoreError
from moorings.store.files import FileStore
from tests.auth.host_kit import files, holding, outcome, put, run_out, spec, stored
from tests.auth.login_kit import Someone, browse, log_in
from tests.faults.auth_server import AuthFaults, consent


async def dead_login(server: AuthFaults, folder: Path) -> None:
    """A login whose tokens are all over."""
    await log_in(server, folder, on_login_url=Someone())
    await run_out(folder)
    for family in server.families:
        server.end(family)


async def new_client(folder: Path) -> None:
    """The next login registers anew."""
    store = FileStore(folder)
    try:
        for each in await store.keys():
            if each.about.get("kind") == "registration":
                async with store.lock(each.key, asyncio.get_running_loop().time() + 10) as lease:
                    await store.remove(each.key, lease)
    finally:
        await store.aclose()


# --- one login is one question --------------------------------------------------------------------------------------


async def test_who_refuses_is_not_asked_again_as_the_old_login_was_dead(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await dead_login(server, tmp_path)
        server.set(deny="access_denied")
        someone = Someone()
        with pytest.raises(LoginFailed) as failed:
            await log_in(server, tmp_path, on_login_url=someone)
        assert failed.value.reason == "denied" and len(someone.prompts) == 1


async def test_who_takes_their_time_is_not_waited_for_as_if_they_were_another(tmp_path: Path) -> None:
    """The old login is dead, and a person takes longer than servers may."""
    waited: list[str] = []
    late = asyncio.Event()

    async def act(prompt: LoginPrompt) -> str | None:
        asyncio.get_running_loop().call_later(1.0, late.set)
        await late.wait()
        someone.open(browse(prompt.url))
        return None

    async with AuthFaults() as server:
        await dead_login(server, tmp_path)
        someone = Someone(act)
        quick = spec(server, bounds=Bounds(auth=0.5))
        assert (await log_in(quick, tmp_path, on_login_url=someone, on_waiting=waited.append)).fresh
        assert len(someone.prompts) == 1 and not waited


async def test_a_host_beside_it_asks_nobody_by_it(tmp_path: Path) -> None:
    """A host without anybody to ask, in the process of a login: its calls need a login, and go on after it."""
    hosts: list[Any] = []

    async def act(prompt: LoginPrompt) -> str | None:
        hosts.append(await outcome(host))
        someone.open(browse(prompt.url))
        return None

    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        async with holding({"s": spec(server)}, files(tmp_path)) as (host, _):
            assert await outcome(host) == "x"
            for family in server.families:
                server.end(family)
            server.expire()
            someone = Someone(act)
            assert (await log_in(server, tmp_path, on_login_url=someone, force=True)).fresh
            assert getattr(hosts[0], "code", "") == "MOOR_NEEDS_LOGIN", hosts
            assert len(someone.prompts) == 1
            assert (await host.wait_ready(20)).all_ready
            assert await outcome(host) == "x"


async def test_f12_5_who_began_before_another_was_done_adopts_what_it_brought(tmp_path: Path) -> None:
    """Its turn comes when the other has ended: nobody waits then, and nobody is asked either."""
    async with AuthFaults() as server:
        someone, nobody = Someone(), Someone()
        server.set(on={"server/discover": ["hold", "ok"]})
        late = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=nobody))
        await server.until(lambda _: server.of("server/discover"))
        assert (await log_in(server, tmp_path, on_login_url=someone)).fresh
        server.release("server/discover")
        assert (await late).client_id and not nobody.prompts and len(someone.prompts) == 1
        # But who asks for a new one gets it.
        assert (await log_in(server, tmp_path, on_login_url=nobody, force=True)).fresh
        assert len(nobody.prompts) == 1


async def test_an_old_login_that_others_renew_is_no_new_one(tmp_path: Path) -> None:
    """The MCP server takes none of its tokens, and another process renews them all the same."""
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        old = (await stored(tmp_path))[0]
        server.expire()
        server.set(on={"server/discover": ["ok", "hold", "ok"]})
        someone = Someone()
        task = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=someone))
        await server.until(lambda _: len(server.of("server/discover")) >= 5)
        renewed = msgspec.structs.replace(
            old, access_token=Secret("renewed-and-refused"), version=old.version + 9
        )
        await put(tmp_path, renewed)
        server.release("server/discover")
        assert (await task).fresh and len(someone.prompts) == 1


# --- cancelled is over ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
async def test_cancelled_while_the_server_says_nothing(force: bool, tmp_path: Path) -> None:
    async with AuthFaults(on={"server/discover": "hold"}) as server:
        task = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=Someone(), force=force))
        await server.until(lambda _: server.of("server/discover"))
        began = asyncio.get_running_loop().time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - began < 4.0
        server.release("server/discover")
        # Nothing goes on behind it: the next one is the first that registers.
        assert (await log_in(server, tmp_path, on_login_url=Someone())).fresh
        assert len(server.at("register")) == 1


async def test_cancelled_at_the_proof_it_is_stored_and_over(tmp_path: Path) -> None:
    async with AuthFaults(on={"server/discover": ["ok", "ok", "hold"]}) as server:
        task = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=Someone()))
        await server.until(lambda _: len(server.of("server/discover")) == 3)
        began = asyncio.get_running_loop().time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - began < 4.0
        server.release("server/discover")
        assert not (await log_in(server, tmp_path, on_login_url=Someone())).fresh


# --- somebody else's code --------------------------------------------------------------------------------------------


async def test_who_is_told_of_the_wait_can_break_nothing(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    threads: list[threading.Thread] = []
    told = asyncio.Event()
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))

    async def act(prompt: LoginPrompt) -> str | None:
        await go_on.wait()
        someone.open(browse(prompt.url))
        return None

    def waiting(who: str) -> None:
        threads.append(threading.current_thread())
        told.set()
        raise ValueError(who)

    async with AuthFaults() as server:
        someone = Someone(act)
        first = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=someone))
        await someone.shown.wait()
        second = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=someone, on_waiting=waiting))
        async with asyncio.timeout(20):
            await told.wait()
        go_on.set()
        await asyncio.gather(first, second)
        assert threads == [threading.current_thread()] and len(someone.prompts) == 1
        assert [type(each) for each in problems] == [ValueError]


@pytest.mark.parametrize("ending", ["=", "==", "/4+x", "."])
async def test_a_code_alone_may_end_in_any_way(ending: str, tmp_path: Path) -> None:
    async def paste(prompt: LoginPrompt) -> str | None:
        return dict(parse_qsl(urlsplit(await consent(prompt.url)).query))["code"]

    metadata = {"authorization_response_iss_parameter_supported": None}
    async with AuthFaults(metadata=metadata, iss=None) as server:
        made = server.fresh
        server.fresh = lambda kind: made(kind) + (ending if kind == "code" else "")  # type: ignore[method-assign]
        someone = Someone(paste)
        assert (await log_in(server, tmp_path, on_login_url=someone)).fresh
        assert len(someone.prompts) == 1


@pytest.mark.parametrize("kept", [("state",), ("state", "iss"), ("state", "code")])
async def test_f12_8_a_paste_that_was_cut_short_is_asked_again(kept: tuple[str, ...], tmp_path: Path) -> None:
    async def paste(prompt: LoginPrompt) -> str | None:
        answer = await consent(prompt.url)
        if prompt.problem:
            return answer
        values = dict(parse_qsl(urlsplit(answer).query))
        return f"{prompt.redirect_uri}?{urlencode({name: values[name] for name in kept})}"

    async with AuthFaults() as server:
        someone = Someone(paste)
        assert (await log_in(server, tmp_path, on_login_url=someone)).fresh
        first, second = someone.prompts
        assert "missing" in second.problem and first.url == second.url


# --- what is stored ------------------------------------------------------------------------------------------------


async def test_a_login_with_another_client_counts_before_it_is_proven(tmp_path: Path) -> None:
    """Its server is slow to prove it; meanwhile the old one, whose place it took, is refused."""
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        old = (await stored(tmp_path))[0]
        await new_client(tmp_path)
        async with holding({"s": spec(server)}, files(tmp_path)) as (host, _):
            assert await outcome(host) == "x"
            before = len(server.of("server/discover"))
            server.set(on={"server/discover": ["ok", "ok", "hold"]})
            task = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=Someone(), force=True))
            await server.until(lambda _: len(server.of("server/discover")) == before + 3)
            assert (await stored(tmp_path))[0].key != old.key
            server.access.pop(old.access_token.reveal())
            assert await outcome(host) == "x"
            server.release("server/discover")
            await task


async def test_an_old_login_that_cannot_be_removed_does_not_make_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: FileStore, key: str, lease: object) -> None:
        if key == old.key.digest():
            raise StoreError("no", store="a store")
        await remove(self, key, lease)  # type: ignore[arg-type]

    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        old = (await stored(tmp_path))[0]
        await new_client(tmp_path)
        remove: Callable[..., Any] = FileStore.remove
        monkeypatch.setattr(FileStore, "remove", fails)
        result = await log_in(server, tmp_path, on_login_url=Someone(), force=True)
        assert result.client_id != old.key.client_id
        # It is the one that is found.
        assert not (await log_in(server, tmp_path, on_login_url=Someone())).fresh
        again = await log_in(spec(server, AuthSettings()), tmp_path)
        assert again.client_id == result.client_id


async def test_many_servers_under_one_authorization_server_share_a_client(tmp_path: Path) -> None:
    """All log in for the first time, at once: one registration, and one port, which their states share."""
    prompts: list[LoginPrompt] = []
    all_there = asyncio.Event()

    async def act(prompt: LoginPrompt) -> str | None:
        prompts.append(prompt)
        if len(prompts) == 10:
            all_there.set()
        await all_there.wait()
        someone.open(browse(prompt.url))
        return None

    someone = Someone(act)
    async with AuthFaults() as authority, contextlib.AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(AuthFaults(servers=[authority.issuer], trusts=authority))
            for _ in range(10)
        ]
        async with asyncio.timeout(60):
            results = await asyncio.gather(
                *(log_in(each, tmp_path, on_login_url=someone) for each in servers)
            )
        assert {each.resource for each in results} == {each.resource for each in servers}
        assert len({each.client_id for each in results}) == len(authority.at("register")) == 1
        assert len({each.redirect_uri for each in prompts}) == 1
        for page in await someone.every_page():
            assert "logged in to" in page.lower()


# --- what servers say -----------------------------------------------------------------------------------------------


async def test_a_server_that_leads_on_within_its_origin_is_logged_in_to(tmp_path: Path) -> None:
    """As a connection follows it there, too: ``/mcp`` to ``/mcp/`` is usual."""
    async with AuthFaults() as server:
        answer = server.answer

        async def leads_on(exchange: Any) -> None:
            if urlsplit(exchange.seen.path).path == "/short":
                exchange.body(307, b"", None, Location="/mcp")
            else:
                await answer(exchange)

        server.answer = leads_on  # type: ignore[method-assign]
        settings = AuthSettings(accept_resource=server.resource)
        short = msgspec.structs.replace(spec(server, settings), url=f"{server.origin}/short")
        assert (await log_in(short, tmp_path, on_login_url=Someone())).fresh
        async with holding({"s": short}, files(tmp_path)) as (host, _):
            assert await outcome(host) == "x"


@pytest.mark.parametrize("status", [302, 303])
async def test_f12_10_a_page_to_log_in_at_is_no_proof(status: int, tmp_path: Path) -> None:
    """Something in between sends everybody there, with a token and without."""
    async with AuthFaults(on={"server/discover": f"status:{status}"}) as server:
        with pytest.raises(LoginFailed) as failed:
            await log_in(server, tmp_path, on_login_url=Someone())
        assert failed.value.reason == "unproven"


async def shown(server: AuthFaults, folder: Path, **options: Any) -> tuple[str, list[LoginPrompt]]:
    """The failure of a login, and what a person was shown."""
    someone = Someone()
    with pytest.raises(LoginFailed) as failed:
        await log_in(server, folder, on_login_url=someone, **options)
    return str(failed.value), someone.prompts


LONG = "https://as.example/" + "a" * 100_000


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"user_code": "A" * 1000}, "nobody can type"),
        ({"user_code": "AB\x1b[2J"}, "nobody can type"),
        ({"user_code": "AB\r\nCD"}, "nobody can type"),
        ({"verification_uri": LONG}, "which no browser takes"),
        ({"verification_uri": "javascript:alert(1)"}, "address to type the code at has the scheme"),
        ({"verification_uri": "http://as.example/"}, "is not https"),
    ],
)
async def test_what_a_person_cannot_type_or_open_is_not_shown(
    fields: dict[str, str], said: str, tmp_path: Path
) -> None:
    async with AuthFaults(on={"device": f"json_status:200:{device_answer(**fields)}"}) as server:
        text, prompts = await shown(server, tmp_path, flow="device")
        assert said in text and not prompts and len(text) < 1000


def device_answer(**fields: str) -> str:
    usual = {"device_code": "d", "user_code": "AB-CD", "verification_uri": "https://as.example/"}
    return msgspec.json.encode({**usual, **fields}).decode()


async def test_a_url_that_no_browser_takes_is_not_shown(tmp_path: Path) -> None:
    async with AuthFaults(metadata={"authorization_endpoint": LONG}) as server:
        text, prompts = await shown(server, tmp_path)
        assert "which no browser takes" in text and not prompts
    async with AuthFaults(prm_fields={"scopes_supported": [f"{'s' * 500}{n}" for n in range(100)]}) as server:
        text, prompts = await shown(server, tmp_path)
        assert "auth.scopes" in text and not prompts


@pytest.mark.parametrize("client_id", ["c" * 10_000, "c\x1b[31m", "c\r\nX: y"])
async def test_a_client_id_that_is_none(client_id: str, tmp_path: Path) -> None:
    async with AuthFaults(register_fields={"client_id": client_id}) as server:
        text, prompts = await shown(server, tmp_path)
        assert "client id that cannot be used" in text and not prompts


# --- the caller's loop ------------------------------------------------------------------------------------------------


async def test_a_loop_that_is_closed_over_what_shows_a_login_ends_it() -> None:
    """Nothing was cancelled there, and such a loop tells nobody: the person would be waited for in vain."""

    async def made() -> Asking:
        return Asking(TaskOwner("gone"))

    loop = asyncio.new_event_loop()
    asking = await asyncio.to_thread(loop.run_until_complete, made())
    shown = asyncio.ensure_future(asking.run(asyncio.Event().wait, limit=60.0, name="a login"))
    await asyncio.sleep(0)
    loop.close()
    async with asyncio.timeout(10):
        with pytest.raises(HostClosedError, match="its loop"):
            await shown
