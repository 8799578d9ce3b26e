"""`moor auth`: which logins there are and what comes next, and the client document, for people and for programs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import Secret
from moorings.auth.model import Credential, CredentialKey, Registration, ServerMetadata, encode_credential
from moorings.auth.renewal import about
from moorings.cli import main
from moorings.store.credentials import StoreError
from moorings.store.files import FileStore
from tests.faults.auth_server import in_thread

Run = Callable[..., tuple[int, str, str]]

CONFIG = """
[host]
state_dir = "state"
[servers.tickets]
url = "https://mcp.example/mcp"
proxy = "http://me:proxy-s3cret@proxy.example:3128"
auth = { client_metadata_url = "https://me.example/client.json", scopes = ["read"], client_name = "Tickets" }
[servers.jobs]
url = "https://jobs.example/mcp"
auth = { client_id = "jobs", client_secret = "jobs-s3cret", flow = "client_credentials" }
[servers.plain]
command = "x"
[servers.off]
url = "https://off.example/mcp"
enabled = false
"""
SECRETS = ("access-s3cret", "refresh-s3cret", "jobs-s3cret", "proxy-s3cret")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    file = tmp_path / "m.toml"
    file.write_text(CONFIG)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["auth", *words, "--config", str(file)])
        out, err = capsys.readouterr()
        assert not [secret for secret in SECRETS if secret in out + err]
        return code, out, err

    return run


def keep(folder: Path, resource: str, **fields: Any) -> None:
    now = time.time()
    key = CredentialKey(fields.pop("principal", "local"), "https://as.example", "client\x1b[2J", resource)
    credential = Credential(
        **{
            "key": key,
            "registration": Registration(
                issuer=key.issuer, client_id=key.client_id, auth_method="none", source="dynamic"
            ),
            "metadata": ServerMetadata(issuer=key.issuer, token_endpoint="https://as.example/t", source="x"),
            "access_token": Secret("access-s3cret"),
            "refresh_token": Secret("refresh-s3cret"),
            "expires_at": now + 3 * 3600 + 60,
            "obtained_at": now,
            "scopes": ("read", "write"),
            **fields,
        }
    )

    async def save() -> None:
        store = FileStore(folder)
        until = asyncio.get_running_loop().time() + 10
        async with store.lock(key.digest(), until) as lease:
            await store.save(key.digest(), encode_credential(credential), lease, about=about(credential))
        await store.aclose()

    asyncio.run(save())


def test_status_for_people(run: Run, tmp_path: Path) -> None:
    keep(tmp_path / "state" / "credentials", "https://mcp.example/mcp")
    keep(tmp_path / "state" / "credentials", "https://gone.example/mcp")
    keep(tmp_path / "state" / "credentials", "https://mcp.example/mcp", principal="anna")
    code, out, err = run("status")
    assert (code, err) == (0, "")
    assert out.startswith(f"store: file:{tmp_path}/state/credentials, logins of local\n")
    tickets, rest = out.split("\njobs\n")
    for line in (
        "\ntickets\n  login     good\n",
        "  issuer    https://as.example\n",
        "  client    client\\x1b[2J (registered)\n",
        "  scopes    read write\n",
        " (in 3 h)\n",
        "  renewal   by a refresh token\n",
        "  flow      authorization code\n",
        "  next      it is renewed ahead of its end, while it is used\n",
    ):
        assert line in tickets
    assert "proxy.example:3128 (addresses behind a proxy are the proxy's to vet)" in tickets
    jobs, plain = rest.split("\nplain\n")
    assert "  login     none\n" in jobs and "got by itself" in jobs
    assert "it is a program" in plain and "off.example" not in out
    assert "stored, and used for none of these servers:\n\nhttps://gone.example/mcp\n" in plain
    assert out.endswith("\nlogins of other principals: 1\n")


def test_status_of_one_server(run: Run, tmp_path: Path) -> None:
    keep(
        tmp_path / "state" / "credentials",
        "https://mcp.example/mcp",
        state="lost",
        reason="the answer died with the process that asked",
    )
    code, out, _ = run("status", "tickets")
    assert code == 0
    assert "  login     lost: the answer died with the process that asked\n" in out
    assert "  next      a person must log in\n" in out
    assert "jobs" not in out and "used for none" not in out


def test_status_as_json(run: Run, tmp_path: Path) -> None:
    keep(tmp_path / "state" / "credentials", "https://mcp.example/mcp", expires_at=None)
    code, out, err = run("status", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert set(told) == {
        "file",
        "store",
        "principal",
        "servers",
        "problems",
        "others",
        "other_principals",
    }
    tickets = told["servers"]["tickets"]
    assert (tickets["how"], tickets["flow"]) == ("oauth", "authorization_code")
    assert tickets["proxy_note"] == "addresses behind a proxy are the proxy's to vet"
    assert tickets["login"]["scopes"] == ["read", "write"] and tickets["login"]["expires_at"] is None
    assert (tickets["login"]["state"], tickets["login"]["refreshable"]) == ("good", True)
    assert told["servers"]["jobs"]["login"] is None and told["servers"]["jobs"]["proxy"] is None
    assert set(json.loads(run("status", "jobs", "--json")[1])["servers"]) == {"jobs"}


def test_a_name_that_is_not_there_and_a_store_that_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("status", "ticket")
    assert (code, out) == (7, "") and "did you mean 'tickets'" in err

    async def keys(store: object) -> None:
        raise StoreError("the disk did not answer within 10 s", store="file:/x")

    monkeypatch.setattr(FileStore, "keys", keys)
    code, out, _ = run("status", "--json")
    assert code == 3
    assert json.loads(out)["error"]["code"] == "MOOR_STORE_FAILED"


def test_a_damaged_file_is_a_message(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "credentials"
    keep(folder, "https://mcp.example/mcp")
    (file,) = folder.glob("*.credential")
    file.write_bytes(b"")
    code, out, err = run("status")
    assert code == 0 and "  login     none\n" in out
    assert f"{file} is empty" in err


def test_the_client_document_of_the_configuration(run: Run) -> None:
    code, out, err = run("client-document")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["client_id"], document["client_name"]) == ("https://me.example/client.json", "Tickets")
    assert document["redirect_uris"] == ["http://127.0.0.1:33418/callback"]
    assert out.startswith('{\n  "client_id"')
    assert json.loads(run("client-document", "tickets", "--json")[1]) == document


def test_the_client_document_of_what_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No configuration is needed."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = ["auth", "client-document", "--url", "https://me.example/c.json", "--client-name", "Me"]
    words += ["--redirect-uri", "http://127.0.0.1:8/a", "--redirect-uri", "https://me.example/back"]
    assert main([*words, "--jwks-uri", "https://me.example/keys"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["redirect_uris"] == ["http://127.0.0.1:8/a", "https://me.example/back"]
    assert (document["client_name"], document["jwks_uri"]) == ("Me", "https://me.example/keys")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["client-document", "jobs"], "no client document"),
        (["client-document", "tickets", "--url", "https://me.example/c.json"], "either --url or names"),
        (["client-document", "--client-name", "x"], "--client-name goes with --url"),
        (["client-document", "--url", "http://me.example/c.json"], "client_metadata_url"),
        (["client-document", "--redirect-uri", "http://me.example/"], "redirect URI"),
        ([], "Missing command"),
        (["status", "off"], "disabled"),
    ],
)
def test_a_wrong_command_line_or_configuration(words: list[str], said: str, run: Run) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_server_that_wants_a_login_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.toml"
    with in_thread() as server:
        file.write_text(f"[host]\nstate_dir = 'state'\n[servers.s]\nurl = '{server.url}'\n")
        assert main(["test", "--config", str(file), "--json"]) == 4
        told = json.loads(capsys.readouterr().out)["servers"]["s"]
        assert told["state"] == "needs_auth" and "moor login s" in told["error"]["fix"]
        assert told["error"]["needs"] == "login"
        assert main(["call", "s__echo", "text=x", "--config", str(file), "--json"]) == 4
        error = json.loads(capsys.readouterr().out)["error"]
        assert (error["code"], error["reason"]) == ("MOOR_NEEDS_LOGIN", "login")
