"""``moor tools``: the catalog, by the names that models see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .check import unlisted, without_name
from .exit_codes import ExitCode, exit_code_of, table
from .hosting import chosen_servers, open_host, read_config, start_bound, to_be_looked_at
from .options import Options, common_options, take_seconds
from .output import error_document
from .tables import print_table
from .text import visible, visible_lines

if TYPE_CHECKING:
    from moorings import CatalogTool

__all__ = ["verb"]


@click.command("tools", short_help="List tools.", epilog=f"\b\nExit codes:\n{table()}")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--timeout",
    metavar="TIME",
    callback=take_seconds,
    help="Longest wait for the servers; as a rule each one's start limit.",
)
@common_options
@click.pass_obj
def verb(options: Options, names: tuple[str, ...], timeout: float | None) -> int:
    """List the tools of each server (or of those named), by the names to call them with.

    Tools of servers that are ready are listed even if others are not; the exit code is 3 then
    (4 if a login is all that is missing), as it is when one that is ready does not list them.
    """
    config = read_config(options)
    servers = chosen_servers(config, names)
    with open_host(options, config, to_be_looked_at(servers)) as host:
        readiness = host.wait_ready(timeout=timeout or start_bound(config, servers))
        statuses = host.status()
        tools = host.tools()
    missing = {
        name: readiness.failed.get(name) or "not ready in time"
        for name in servers
        if name not in readiness.ready
    }
    unread = {name: why for name in readiness.ready if (why := unlisted(statuses[name])) is not None}
    if options.output.as_json:
        errors: dict[str, dict[str, Any]] = {}
        for name, reason in missing.items():
            error = statuses[name].last_error
            errors[name] = {"reason": reason, "error": None}
            if error is not None:
                errors[name]["error"] = error_document(error, exit_code_of(error))
        options.output.document(
            {"tools": [_document(tool) for tool in tools], "not_ready": errors, "not_listed": unread}
        )
    else:
        rows = [(visible(each.name), visible_lines(each.tool.description or "").strip()) for each in tools]
        print_table(options.output, ("tool", "description"), rows)
        for name, reason in missing.items():
            options.output.message(f"server {name!r} is not ready: {without_name(name, reason)}")
        for name, reason in unread.items():
            options.output.message(f"server {name!r} is {reason}")
    if not missing or unread:
        return ExitCode.START if unread else ExitCode.OK
    problems = [statuses[name].last_error for name in missing]
    wants_login = all(each is not None and exit_code_of(each) is ExitCode.REFUSED for each in problems)
    return ExitCode.REFUSED if wants_login else ExitCode.START


def _document(each: CatalogTool) -> dict[str, Any]:
    tool = each.tool
    return {
        "name": each.name,
        "server": each.server,
        "tool": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": tool.annotations,
    }
