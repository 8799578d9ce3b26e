"""``moor login``: a person logs in to servers that want one, in a browser, by a paste, or with a code for another
device; and it is shown by a real request that the server takes it."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from moorings import ConfigError, LoginFailed, MisuseError, MooringsError, StartError

from .exit_codes import ExitCode, exit_code_of, table
from .hosting import chosen_servers, open_host, read_config, start_bound, to_be_looked_at
from .options import Options, common_options, take_seconds
from .output import Output, error_document
from .running import run
from .text import visible, visible_lines

if TYPE_CHECKING:
    from moorings import AuthSettings, HttpServer, LoginResult, OnLoginUrl
    from moorings.config import Config

__all__ = ["verb"]

Way = Literal["browser", "paste", "device"]


@click.command("login", short_help="Log in to servers that want it.", epilog=f"\b\nExit codes:\n{table()}")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All servers of the file that want a login.")
@click.option(
    "--flow",
    "way",
    type=click.Choice(("browser", "paste", "device")),
    help="browser: one is opened here. paste: none is, and the answer may be pasted. device: a code for elsewhere.",
)
@click.option(
    "--no-browser", is_flag=True, help="Open no browser; the URL is printed. The same as --flow paste."
)
@click.option(
    "--scope", "scopes", metavar="SCOPE", multiple=True, help="What to ask for; may be given several times."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="The port of the listener, in place of a free one."
)
@click.option("--client-id", metavar="ID", help="The client that was registered by hand.")
@click.option(
    "--timeout",
    metavar="TIME",
    callback=take_seconds,
    help="How long a person may take; as a rule 5 minutes.",
)
@click.option("--force", is_flag=True, help="Log in anew though there is a login that works.")
@common_options
@click.pass_obj
def verb(
    options: Options,
    names: tuple[str, ...],
    every: bool,
    way: Way | None,
    no_browser: bool,
    scopes: tuple[str, ...],
    port: int | None,
    client_id: str | None,
    timeout: float | None,
    force: bool,
) -> int:
    """Log in to the servers named (or to --all), prove it by a real request, and keep it where the runtime finds it.

    The URL is printed in full. The answer comes back to a port of this machine, or is pasted into this terminal. Ctrl-C
    ends it, and changes nothing. Where nobody can be asked (no terminal, CI, --no-input) it fails at once with exit
    code 4. A --flow that is named needs no terminal, but CI and --no-input forbid it all the same.
    """
    if bool(names) == every:
        raise click.UsageError("name servers, or say --all")
    if no_browser and way not in (None, "paste"):
        raise click.UsageError(f"--no-browser and --flow {way} contradict each other")
    way = "paste" if no_browser else way
    config = read_config(options)
    servers = _that_log_in(config, names)
    results: dict[str, dict[str, Any]] = {}
    code = ExitCode.OK
    for name, server in servers.items():
        changed = _changed(server, scopes, port, client_id, timeout)
        try:
            results[name] = _one(options, config, name, changed, way, force=force)
        except MooringsError as error:
            if every and isinstance(error, LoginFailed) and error.reason == "not_wanted":
                results[name] = {"login": None, "wanted": False}
                options.output.message(f"{visible(name)}: answers without a login")
                continue
            if every and isinstance(error, MisuseError):
                # It has one of its own in its headers, and so wants none of ours.
                results[name] = {"login": None, "wanted": False}
                options.output.message(f"{visible(name)}: {visible_lines(error.message)}")
                continue
            if not every and len(servers) == 1:
                raise
            results[name] = {"error": error_document(error, exit_code_of(error))}
            options.output.message(visible_lines(str(error)))
            code = code or exit_code_of(error)
            continue
        ended = results[name].pop("exit_code")
        code = code or ended
    if options.output.as_json:
        options.output.document({"file": config.file, "servers": results})
    return code


def _one(
    options: Options, config: Config, name: str, server: HttpServer, way: Way | None, *, force: bool
) -> dict[str, Any]:
    from moorings import NeedsLogin, login

    shown, nobody = _shown(options, server, way)
    try:
        result = run(
            login(
                server,
                name=name,
                on_login_url=shown,
                flow="device" if way == "device" else "authorization_code" if way else None,
                force=force,
                credentials=config.credentials,
                state_dir=config.host.state_dir,
                on_waiting=lambda who: options.output.message(
                    f"{visible(who)} is at a login to {visible(name)}; waiting for that"
                ),
            )
        )
    except NeedsLogin:
        if nobody:
            options.output.message(f"nobody can be asked: {nobody}")
        raise
    document, code = _connected(options, config, name, server)
    if not options.output.as_json:
        _print(options.output, result, document)
    return {"login": _document(result), "connected": document, "exit_code": code}


def _shown(options: Options, server: HttpServer, way: Way | None) -> tuple[OnLoginUrl | None, str]:
    """What shows the login, None where nobody is to be asked or need be; and why nobody can be."""
    from .prompt import forbidden, is_interactive, terminal

    auth = server.auth
    if not isinstance(auth, bool) and auth.chosen_flow() not in ("auto", "authorization_code", "device"):
        return None, ""
    nobody = is_interactive(sys.stdin, sys.stderr, os.environ, options.no_input)
    if nobody and (way in (None, "paste") or forbidden(os.environ, options.no_input)):
        return None, nobody
    return partial(terminal, browser=way != "paste", paste=not nobody), ""


def _connected(
    options: Options, config: Config, name: str, server: HttpServer
) -> tuple[dict[str, Any], ExitCode]:
    """Connect as the runtime does: is the login all that was missing?"""
    with open_host(options, config, to_be_looked_at({name: server})) as host:
        readiness = host.wait_ready(timeout=start_bound(config, {name: server}))
        error = host.status()[name].last_error
        tools = sum(tool.server == name for tool in host.tools())
    if name in readiness.ready:
        return {"ready": True, "tools": tools, "error": None}, ExitCode.OK
    code = (
        ExitCode.REFUSED
        if error is not None and isinstance(error, StartError) and error.needs
        else ExitCode.START
    )
    return {
        "ready": False,
        "tools": None,
        "error": None if error is None else error_document(error, code),
        "reason": readiness.failed.get(name) or "not ready in time",
    }, code


def _that_log_in(config: Config, names: tuple[str, ...]) -> dict[str, HttpServer]:
    from moorings import HttpServer

    chosen = chosen_servers(config, names)
    servers = {
        name: each for name, each in chosen.items() if isinstance(each, HttpServer) and each.auth is not False
    }
    for name in names:
        if name not in servers:
            raise ConfigError(
                "there is nothing to log in to: it is a program"
                if not isinstance(chosen[name], HttpServer)
                else "there is nothing to log in to: auth is false",
                file=config.file,
                key=name,
                server=name,
            )
    if not servers:
        raise ConfigError("no server in it has a login", file=config.file)
    return servers


def _changed(
    server: HttpServer,
    scopes: tuple[str, ...],
    port: int | None,
    client_id: str | None,
    timeout: float | None,
) -> HttpServer:
    """The server with what the command line says of its login."""
    import msgspec

    from moorings import AuthSettings

    said: dict[str, Any] = {
        "scopes": scopes or None,
        "redirect_port": port,
        "client_id": client_id,
        "timeout": timeout,
    }
    said = {name: value for name, value in said.items() if value is not None}
    if not said:
        return server
    auth: AuthSettings = server.auth if isinstance(server.auth, AuthSettings) else AuthSettings()
    return msgspec.structs.replace(server, auth=msgspec.structs.replace(auth, **said))


def _document(result: LoginResult) -> dict[str, Any]:
    return {
        "fresh": result.fresh,
        "issuer": result.issuer,
        "client_id": result.client_id,
        "resource": result.resource,
        "scopes": result.scopes,
        "expires_at": result.expires_at,
        "refreshable": result.refreshable,
    }


def _print(output: Output, result: LoginResult, connected: dict[str, Any]) -> None:
    name = visible(result.server)
    if result.fresh:
        output.line(f"logged in to {name} at {visible(result.issuer)}")
        if result.scopes:
            output.line(f"  scopes: {visible(' '.join(result.scopes))}")
        if not result.refreshable:
            output.line("  there is no refresh token: when it ends, somebody must log in again")
    else:
        output.line(f"{name}: the login there is works (--force makes another)")
    if connected["ready"]:
        count = connected["tools"]
        output.line(f"  connected: {count} {'tool' if count == 1 else 'tools'}")
    else:
        output.line(f"  the server takes the login, but is not ready: {visible_lines(connected['reason'])}")
