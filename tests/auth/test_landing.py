"""Where browsers come back to, for clients that are known by a fixed path: set by hand, or described by a document."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from moorings import AuthSettings, LoginFailed
from moorings.auth import landing
from tests.auth.host_kit import spec
from tests.auth.login_kit import Someone, is_free, log_in
from tests.faults.auth_server import AuthFaults
from tests.ports import free_port

DOCUMENT = "https://client.example/moorings.json"
WAYS = {
    "set by hand": AuthSettings(client_id="by-hand"),
    "a document": AuthSettings(client_metadata_url=DOCUMENT),
}
CLIENTS = {name: {"token_endpoint_auth_method": "none"} for name in ("by-hand", DOCUMENT)}


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> int:
    """The usual port, which is another one for each test: others may run beside it."""
    port = free_port()
    monkeypatch.setattr(landing, "CALLBACK_PORT", port)
    return port


@pytest.mark.parametrize("way", WAYS)
async def test_f11_7_the_registered_path_and_the_usual_port_or_any_that_is_free(
    way: str, usual: int, tmp_path: Path
) -> None:
    """RFC 8252 section 7.3: the port of this machine may be any, the path may not."""
    metadata = {"client_id_metadata_document_supported": True}
    async with AuthFaults(clients=CLIENTS, metadata=metadata) as server:
        someone, target = Someone(), spec(server, WAYS[way])
        for _ in range(2):
            assert (await log_in(target, tmp_path, on_login_url=someone, force=True)).fresh
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", usual))
            taken.listen()
            assert (await log_in(target, tmp_path, on_login_url=someone, force=True)).fresh
            # A port that is set is that port, or none.
            fixed = spec(server, AuthSettings(**{**vars_of(way), "redirect_port": usual}))
            with pytest.raises(LoginFailed, match=str(usual)) as failed:
                await log_in(fixed, tmp_path, on_login_url=someone, force=True)
            assert failed.value.reason == "port"
        assert (await log_in(fixed, tmp_path, on_login_url=someone, force=True)).fresh
        ways = [urlsplit(each.redirect_uri) for each in someone.prompts]
        assert [each.path for each in ways] == ["/callback"] * 4
        assert [each.port == usual for each in ways] == [True, True, False, True]
        assert not server.at("register") and is_free(someone.prompts[0].redirect_uri)


def vars_of(way: str) -> dict[str, str]:
    return {"client_id": "by-hand"} if way == "set by hand" else {"client_metadata_url": DOCUMENT}


async def test_f11_7_a_port_that_is_set_has_one_registration_with_one_path_that_nobody_can_guess(
    usual: int, tmp_path: Path
) -> None:
    async with AuthFaults() as server:
        someone, fixed = Someone(), spec(server, AuthSettings(redirect_port=usual))
        for _ in range(2):
            assert (await log_in(fixed, tmp_path, on_login_url=someone, force=True)).fresh
        first, second = (each.redirect_uri for each in someone.prompts)
        assert first == second and urlsplit(first).port == usual
        assert len(urlsplit(first).path.removeprefix("/callback/")) >= 16
        assert len(server.at("register")) == 1
