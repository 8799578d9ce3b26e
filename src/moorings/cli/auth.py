"""``moor auth``: what is known of logins, the client document to host, a renewal at once, and logins in files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import click

from moorings import ConfigError

from .exit_codes import ExitCode, table
from .hosting import chosen_http_servers, chosen_servers, read_config
from .options import Options, common_options, take_seconds
from .output import Output
from .text import json_text, visible, visible_lines
from .transfer import export_verb, import_verb

if TYPE_CHECKING:
    from moorings import AuthSettings, HttpServer, Login, Logins, ServerLogin

__all__ = ["verb"]

PROXIED = "addresses behind a proxy are the proxy's to vet"


class _Auth(click.Group):
    """Names that other commands have for these verbs are told the one here."""

    elsewhere: ClassVar[dict[str, str]] = {
        "login": "moor login",
        "logout": "moor logout",
        "list": "moor auth status",
    }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.elsewhere:
            ctx.fail(f"No such command {args[0]!r}: it is '{self.elsewhere[args[0]]}'.")
        return super().resolve_command(ctx, args)


@click.group(
    "auth",
    cls=_Auth,
    short_help="See, renew and move logins; print the client document.",
    no_args_is_help=False,
    epilog=f"\b\nExit codes:\n{table()}",
)
@common_options
def verb() -> None:
    """Logins of servers that want one."""


@verb.command("status", short_help="Say which logins there are.", epilog=f"\b\nExit codes:\n{table()}")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@common_options
@click.pass_obj
def status(options: Options, names: tuple[str, ...]) -> int:
    """Say for each server (or those named) which login there is, until when it holds, and what happens next.

    Only the store of logins is read; no server is asked, and no secret is shown. The exit code is 0 if the store could
    be read, whatever it holds.
    """
    import asyncio

    from moorings import read_logins

    config = read_config(options)
    servers = chosen_servers(config, names)
    logins = asyncio.run(
        read_logins(servers, credentials=config.credentials, state_dir=config.host.state_dir)
    )
    if options.output.as_json:
        options.output.document(_document(config.file, logins, bool(names)))
    else:
        _print(options.output, logins, bool(names))
    return ExitCode.OK


@verb.command("refresh", short_help="Renew a login now.", epilog=f"\b\nExit codes:\n{table()}")
@click.argument("name")
@click.option(
    "--timeout",
    metavar="TIME",
    callback=take_seconds,
    help="Time for the authorization server; as a rule the server's own limit.",
)
@common_options
@click.pass_obj
def refresh(options: Options, name: str, timeout: float | None) -> int:
    """Renew the login of NAME now, whether it is due or not, and say what came.

    Whatever uses it, in any process, goes on with the new token. If the server does not answer, the old one stays.
    """
    from moorings import refresh_login

    from .running import run

    config = read_config(options)
    (server,) = chosen_http_servers(config, (name,)).values()
    login = run(
        refresh_login(
            server,
            name=name,
            credentials=config.credentials,
            state_dir=config.host.state_dir,
            within=timeout,
        )
    )
    if options.output.as_json:
        options.output.document({"file": config.file, "server": name, "login": login})
    else:
        options.output.line(f"{visible(name)}: renewed")
        _rows(options.output, [*_login_rows(login)])
    return ExitCode.OK


verb.add_command(export_verb)
verb.add_command(import_verb)


@verb.command(
    "client-document", short_help="Print the client document.", epilog=f"\b\nExit codes:\n{table()}"
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--url", metavar="URL", help="Where the document will lie; without a configuration file.")
@click.option("--client-name", metavar="TEXT", help="With --url: what people see when they consent.")
@click.option(
    "--redirect-uri",
    "redirect_uris",
    metavar="URI",
    multiple=True,
    help="In place of those of the servers; may be given several times.",
)
@click.option("--jwks-uri", metavar="URL", help="Where the public keys of the client lie.")
@common_options
@click.pass_obj
def client_document(
    options: Options,
    names: tuple[str, ...],
    url: str | None,
    client_name: str | None,
    redirect_uris: tuple[str, ...],
    jwks_uri: str | None,
) -> int:
    """Print the JSON to host at auth.client_metadata_url, for the servers named, or all that set it, or for --url.

    The URL is then the client id at each authorization server that takes such documents.
    """
    from moorings import client_document as made

    if url is None and client_name is not None:
        raise click.UsageError("--client-name goes with --url; for servers set auth.client_name")
    if url is not None and names:
        raise click.UsageError("either --url or names of servers")
    settings: list[HttpServer | AuthSettings]
    settings = [_given(url, client_name)] if url is not None else [*_with_document(options, names)]
    document = made(settings, redirect_uris=redirect_uris, jwks_uri=jwks_uri)
    if options.output.as_json:
        options.output.document(document)
    else:
        options.output.line(json_text(document, indent=True))
        if options.output.for_person:
            options.output.message(f"to be served as application/json at {document['client_id']}")
    return ExitCode.OK


def _given(url: str, client_name: str | None) -> AuthSettings:
    from moorings import AuthSettings

    if client_name is None:
        return AuthSettings(client_metadata_url=url)
    return AuthSettings(client_metadata_url=url, client_name=client_name)


def _with_document(options: Options, names: tuple[str, ...]) -> Iterator[HttpServer]:
    """The servers that are meant: those named, else all that name a document."""
    from moorings import AuthSettings, HttpServer

    config = read_config(options)
    found = 0
    for name, server in chosen_servers(config, names).items():
        auth = server.auth if isinstance(server, HttpServer) else None
        if isinstance(server, HttpServer) and isinstance(auth, AuthSettings) and auth.client_metadata_url:
            found += 1
            yield server
        elif names:
            raise ConfigError(
                "this server has no client document",
                file=config.file,
                key=name,
                server=name,
                fix="set auth.client_metadata_url",
            )
    if not found:
        raise ConfigError(
            "no server in it has a client document",
            file=config.file,
            fix="set auth.client_metadata_url, or give --url",
        )


# --- status, printed ----------------------------------------------------------------------------------------------


def _document(file: str, logins: Logins, named: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "file": file,
        "store": logins.store,
        "principal": logins.principal,
        "servers": {name: _server_document(each) for name, each in logins.servers.items()},
        "problems": logins.problems,
    }
    if not named:
        document |= {"others": logins.others, "other_principals": logins.other_principals}
    return document


def _server_document(each: ServerLogin) -> dict[str, Any]:
    return {
        "url": each.url,
        "how": each.how,
        "flow": each.flow,
        "login": each.login,
        "proxy": each.proxy or None,
        "proxy_note": PROXIED if each.proxy else None,
        "private_networks": each.private_networks,
        "next": each.next,
    }


def _print(output: Output, logins: Logins, named: bool) -> None:
    output.line(f"store: {visible(logins.store)}, logins of {visible(logins.principal)}")
    for name, each in logins.servers.items():
        output.line(f"\n{visible(name)}")
        _rows(output, [*_login_rows(each.login), *_server_rows(each)])
    if not named and logins.others:
        output.line("\nstored, and used for none of these servers:")
        for login in logins.others:
            output.line(f"\n{visible(login.resource)}")
            _rows(output, _login_rows(login))
    if not named and logins.other_principals:
        output.line(f"\nlogins of other principals: {logins.other_principals}")
    for problem in logins.problems:
        output.message(problem)


def _rows(output: Output, rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> None:
    for title, text in rows:
        if text:
            output.line(f"  {title:<9} {visible_lines(text).replace(chr(10), chr(10) + '            ')}")


def _server_rows(each: ServerLogin) -> Iterator[tuple[str, str]]:
    if each.how == "oauth":
        yield "flow", (each.flow or "").replace("_", " ")
        yield "proxy", f"{each.proxy} ({PROXIED})" if each.proxy else ""
        yield "network", "private addresses are allowed" if each.private_networks else ""
    yield "next", each.next


def _login_rows(login: Login | None) -> Iterator[tuple[str, str]]:
    if login is None:
        yield "login", "none"
        return
    now = time.time()
    yield "login", f"{login.state}{f': {login.reason}' if login.reason else ''}"
    yield "issuer", login.issuer
    method = f", {login.auth_method}" if login.auth_method not in ("", "none") else ""
    yield "client", f"{login.client_id} ({login.client}{method})" if login.client else login.client_id
    yield "secret", _ends(login.client_secret_expires_at, now, "the client's secret ends")
    if login.state == "unreadable":
        return
    yield "scopes", " ".join(login.scopes) or "not said"
    by = login.grant.replace("_", " ")
    yield (
        "obtained",
        f"{_moment(login.obtained_at if login.granted_at is None else login.granted_at)}, by {by}",
    )
    yield "renewed", "" if login.renewed_at is None else _ends(login.renewed_at, now, "")
    yield "expires", _ends(login.expires_at, now, "") or "not said"
    yield "renewal", "by a refresh token" if login.refreshable else "there is no refresh token"
    yield "DPoP", "bound to a key" if login.dpop else ""
    for note in login.notes:
        yield "note", note


def _ends(at: float | None, now: float, what: str) -> str:
    if at is None:
        return ""
    left = at - now
    said = f"in {_span(left)}" if left > 0 else f"{_span(-left)} ago"
    return f"{what} {_moment(at)} ({said})".strip()


def _moment(at: float | None) -> str:
    if at is None:
        return "at an unknown time"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # a time that a server made up
        return f"{at:.0f} s after 1970"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
