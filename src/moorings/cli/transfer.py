"""``moor auth export`` and ``moor auth import``: logins to another machine, in an encrypted file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import ExitCode, table
from .hosting import chosen_http_servers, read_config
from .options import Options, common_options
from .running import run
from .text import visible

if TYPE_CHECKING:
    from moorings import Login, Secret
    from moorings.config import Config

__all__ = ["export_verb", "import_verb"]

SHORTEST = 8
"""Characters of a passphrase, as the export wants them; asked for here, so that a person is not sent away."""
MOST_PASSPHRASE = 4096
"""Bytes of a file that holds one."""

COPIED = (
    "this is a copy: where the server replaces refresh tokens, both logins end as soon as both are used "
    "(--move leaves none here)"
)

passphrase_option = click.option(
    "--passphrase-file",
    metavar="FILE",
    help="Read the passphrase from there ('-': from stdin), and ask nobody.",
)


@click.command("export", short_help="Write logins into a file.", epilog=f"\b\nExit codes:\n{table()}")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--to", metavar="FILE", required=True, help="The file to write; it must not be there yet.")
@passphrase_option
@click.option("--move", is_flag=True, help="Remove the logins here, once they are written.")
@common_options
@click.pass_obj
def export_verb(
    options: Options, names: tuple[str, ...], to: str, passphrase_file: str | None, move: bool
) -> int:
    """Write the logins of NAME into an encrypted file, for a machine without a browser: there, `moor auth import`.

    The file is readable by you alone, and opened by the passphrase alone.
    """
    from moorings import export_logins

    config = read_config(options)
    servers = chosen_http_servers(config, names)
    if passphrase_file is None and os.path.lexists(to):
        raise click.UsageError(f"{to} is there already: name another file")
    report = run(
        export_logins(
            servers,
            to,
            _passphrase(options, passphrase_file, confirm=True),
            credentials=config.credentials,
            state_dir=config.host.state_dir,
            move=move,
        )
    )
    output = options.output
    for skipped in report.skipped:
        output.message(f"left out: {skipped}")
    if not move:
        output.message(COPIED)
    if output.as_json:
        output.document({"file": report.file, "config": config.file, "report": report})
    else:
        output.line(f"{visible(report.file)}: {'moved' if move else 'copied'}")
        _list(output, report.logins)
    return ExitCode.OK


@click.command("import", short_help="Take logins from a file.", epilog=f"\b\nExit codes:\n{table()}")
@click.argument("file", metavar="FILE")
@passphrase_option
@click.option("--replace", is_flag=True, help="In place of logins that are here already.")
@common_options
@click.pass_obj
def import_verb(options: Options, file: str, passphrase_file: str | None, replace: bool) -> int:
    """Take the logins of FILE, which `moor auth export` wrote, into the store of this configuration.

    A login that is here already stays, and then nothing is taken, unless --replace is given. Delete the file when it is
    not needed any more.
    """
    from moorings import import_logins

    config = read_config(options)
    if passphrase_file is None and not Path(file).is_file():
        raise click.UsageError(f"{file} is no file")
    report = run(
        import_logins(
            file,
            _passphrase(options, passphrase_file, confirm=False),
            credentials=config.credentials,
            state_dir=config.host.state_dir,
            replace=replace,
        )
    )
    used = run(_used(config, report.logins))
    output = options.output
    if output.as_json:
        output.document({"file": report.file, "config": config.file, "report": report, "servers": list(used)})
        return ExitCode.OK
    output.line(f"{visible(report.file)}: imported into {visible(report.store)}")
    _list(output, report.logins)
    if report.unchanged:
        output.line(f"  {report.unchanged} of them were here already")
    if used:
        output.line(f"used for: {', '.join(map(visible, used))}")
    else:
        output.message("no server of this configuration uses them: see moor auth status")
    return ExitCode.OK


def _list(output: Any, logins: tuple[Login, ...]) -> None:
    for login in logins:
        output.line(
            f"  {visible(login.resource)} at {visible(login.issuer)}, client {visible(login.client_id)}"
        )


async def _used(config: Config, logins: tuple[Login, ...]) -> list[str]:
    """The servers of the configuration whose login is one of these."""
    from moorings import read_logins

    enabled = {name: each for name, each in config.servers.items() if each.enabled}
    told = await read_logins(enabled, credentials=config.credentials, state_dir=config.host.state_dir)
    taken = {(each.issuer, each.client_id, each.resource) for each in logins}
    return [
        name
        for name, each in told.servers.items()
        if each.login is not None and (each.login.issuer, each.login.client_id, each.login.resource) in taken
    ]


def _passphrase(options: Options, file: str | None, *, confirm: bool) -> Secret:
    """The passphrase, from a file or a person."""
    from moorings import Secret

    if file is not None:
        return Secret(_from(file))
    from .prompt import is_interactive

    if nobody := is_interactive(sys.stdin, sys.stderr, os.environ, options.no_input):
        raise click.UsageError(
            f"nobody can be asked for the passphrase ({nobody}): give --passphrase-file FILE"
        )
    return Secret(
        click.prompt(
            "Passphrase",
            hide_input=True,
            confirmation_prompt=confirm,
            err=True,
            type=str,
            value_proc=_long_enough if confirm else None,
        )
    )


def _long_enough(said: str) -> str:
    """A new one; asked for again if it is not."""
    if len(said) < SHORTEST:
        raise click.UsageError(f"it has fewer than {SHORTEST} characters")
    return said


def _from(file: str) -> str:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MOST_PASSPHRASE + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(MOST_PASSPHRASE + 1)
        text = data.decode()
    except OSError as error:
        raise click.UsageError(f"the passphrase cannot be read: {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"the passphrase cannot be read: {file} is not UTF-8") from None
    if len(data) > MOST_PASSPHRASE:
        raise click.UsageError(f"the passphrase cannot be read: {file} is too long")
    # An editor ends its last line.
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise click.UsageError(f"there is no passphrase in {file}")
    return text
