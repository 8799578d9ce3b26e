"""``moor logout``: tokens are revoked at their server, and the login is gone here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from moorings import MooringsError

from .exit_codes import ExitCode, table
from .hosting import chosen_http_servers, read_config
from .options import Options, common_options, take_seconds
from .output import Output
from .running import run
from .text import visible, visible_lines

if TYPE_CHECKING:
    from moorings import HttpServer, LoggedOut, LogoutReport
    from moorings.config import Config

__all__ = ["verb"]


@click.command("logout", short_help="Log out of a server.", epilog=f"\b\nExit codes:\n{table()}")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All servers of the configuration that are enabled.")
@click.option("--local", is_flag=True, help="Ask no server: what was copied elsewhere holds until it ends.")
@click.option(
    "--timeout",
    metavar="TIME",
    callback=take_seconds,
    help="Time for each authorization server; as a rule the server's own limit.",
)
@common_options
@click.pass_obj
def verb(options: Options, names: tuple[str, ...], every: bool, local: bool, timeout: float | None) -> int:
    """Revoke the tokens of NAME at its authorization server, delete the client that was registered for it, and remove
    both here.

    A server that does not answer keeps nothing here: the login is removed all the same, and it is said what was not
    revoked. Whatever else uses the login, in any process, stops within a second.
    """
    if every and names:
        raise click.UsageError("either names of servers or --all")
    if not (every or names):
        raise click.UsageError("name the servers to log out of, or give --all")
    config = read_config(options)
    servers = chosen_http_servers(config, names)
    told = run(_all(config, servers, local, timeout))
    reports = {name: each for name, each in told.items() if not isinstance(each, BaseException)}
    failed = [each for each in told.values() if isinstance(each, BaseException)]
    if not options.output.as_json:
        for name, report in reports.items():
            _print(options.output, name, report)
    elif not failed:
        options.output.document(
            {"file": config.file, "servers": {name: _document(each) for name, each in reports.items()}}
        )
    if failed:
        raise failed[0]
    return ExitCode.OK


async def _all(
    config: Config, servers: dict[str, HttpServer], local: bool, timeout: float | None
) -> dict[str, LogoutReport | BaseException]:
    """All at once: one server that does not answer holds up none of the others."""
    from moorings import logout

    async def one(name: str, server: HttpServer) -> LogoutReport:
        try:
            return await logout(
                server,
                credentials=config.credentials,
                state_dir=config.host.state_dir,
                local=local,
                within=timeout,
            )
        except MooringsError as error:
            error.server = error.server or name
            raise

    results = await asyncio.gather(
        *(one(name, each) for name, each in servers.items()), return_exceptions=True
    )
    return dict(zip(servers, results, strict=True))


def _document(report: LogoutReport) -> dict[str, object]:
    return {
        "store": report.store,
        "principal": report.principal,
        "resource": report.resource,
        "logins": report.logins,
        "all_revoked": report.all_revoked,
        "problems": report.problems,
        "next": report.next,
    }


def _print(output: Output, name: str, report: LogoutReport) -> None:
    if not report.logins:
        output.line(f"{visible(name)}: there is no login")
    for login in report.logins:
        output.line(f"{visible(name)}: logged out")
        for title, text in _rows(login):
            output.line(f"  {title:<9} {visible(text)}")
        for problem in login.problems:
            output.message(visible_lines(f"{name}: {problem}"))
    for problem in report.problems:
        output.message(visible_lines(problem))


def _rows(login: LoggedOut) -> list[tuple[str, str]]:
    rows = [("issuer", login.issuer), ("client", f"{login.client_id}{_CLIENT[login.client]}")]
    for title, ended in (("refresh", login.refresh_token), ("access", login.access_token)):
        if ended != "none":
            rows.append((title, f"token {_ENDED[ended]}"))
    return rows


_ENDED = {
    "revoked": "revoked",
    "not_offered": "not revoked: the server has no way to do it, so it holds until it ends",
    "not_asked": "not revoked: the server was not asked",
    "failed": "NOT revoked: it holds until it ends",
}
_CLIENT = {
    "": "",
    "kept": " (its registration stays)",
    "deleted": " (its registration was deleted)",
    "forgotten": " (its registration was forgotten here)",
}
