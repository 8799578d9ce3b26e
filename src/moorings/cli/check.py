"""``moor test``: start servers as the runtime does, and say which are ready, how they were reached, and why
not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .exit_codes import ExitCode, exit_code_of, table
from .hosting import chosen_servers, open_host, read_config, start_bound, to_be_looked_at
from .options import Options, common_options, take_seconds
from .output import Output, error_document
from .tables import print_table
from .text import visible, visible_lines

if TYPE_CHECKING:
    from moorings import Readiness, ServerStatus

__all__ = ["server_document", "unlisted", "verb", "without_name"]


@click.command(
    "test", short_help="Start servers and say which are ready.", epilog=f"\b\nExit codes:\n{table()}"
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--timeout",
    metavar="TIME",
    callback=take_seconds,
    help="Longest wait in all; as a rule each server's own start limit.",
)
@common_options
@click.pass_obj
def verb(options: Options, names: tuple[str, ...], timeout: float | None) -> int:
    """Start each server (or those named) and say whether it is ready, or why not.

    The exit code is 0 only if all of them are ready and list their tools, and 4 if a login is all that is missing.
    """
    config = read_config(options)
    servers = chosen_servers(config, names)
    with open_host(options, config, to_be_looked_at(servers)) as host:
        readiness = host.wait_ready(timeout=timeout or start_bound(config, servers))
        statuses = host.status()
        counts = dict.fromkeys(servers, 0)
        for tool in host.tools():
            counts[tool.server] += 1
    documents = {name: server_document(name, statuses[name], readiness, counts[name]) for name in servers}
    off = [name for name, server in config.servers.items() if not server.enabled] if not names else []
    if options.output.as_json:
        documents |= {
            name: {"state": "disabled", "ready": False, "reason": "disabled in the file", "problem": None}
            for name in off
        }
        options.output.document({"file": config.file, "all_ready": readiness.all_ready, "servers": documents})
    else:
        _print(options.output, documents, off)
    listed = all(document["problem"] is None for document in documents.values() if document["ready"])
    if readiness.all_ready:
        return ExitCode.OK if listed else ExitCode.START
    missing = [document["error"] for document in documents.values() if not document["ready"]]
    wants_login = all(error is not None and error.get("needs") for error in missing)
    return ExitCode.REFUSED if wants_login else ExitCode.START


def server_document(name: str, status: ServerStatus, readiness: Readiness, tools: int) -> dict[str, Any]:
    """One server as JSON: its state, how it was reached, and what failed and what comes next."""
    ready = name in readiness.ready
    error = status.last_error
    info = status.server_info
    return {
        "state": _settled(status),
        "ready": ready,
        "reason": None if ready else readiness.failed.get(name) or "not ready in time",
        "error": None if error is None else error_document(error, exit_code_of(error)),
        "since": status.since,
        "next_attempt": status.next_attempt,
        "era": status.era,
        "revision": status.revision,
        "server_info": None if info is None else {"name": info.name, "version": info.version},
        "tools": tools if ready else None,
        "problem": unlisted(status) if ready else None,
        "steps": dict(status.steps),
    }


def _settled(status: ServerStatus) -> str:
    """Its state; of one that failed and is just being taken down, the one it comes to next."""
    from moorings import StartError, State

    error = status.last_error
    if status.state is State.STOPPING and error is not None:
        needs = error.needs if isinstance(error, StartError) else ""
        if needs:
            return (State.NEEDS_CLIENT if needs == "client" else State.NEEDS_AUTH).value
        return State.PARKED.value
    return status.state.value


def without_name(name: str, reason: str) -> str:
    """What an error says, where its server was named already."""
    return reason.removeprefix(f"server {name!r}: ")


def unlisted(status: ServerStatus) -> str | None:
    """Why the tools of a server that is up could not be listed; None if they could."""
    problem = status.lists.get("tools", {}).get("problem")
    return None if problem is None else f"connected, but its tools could not be listed: {problem}"


def _print(output: Output, documents: dict[str, dict[str, Any]], off: list[str]) -> None:
    rows = []
    for name, document in documents.items():
        steps = document["steps"]
        rows.append(
            (
                visible(name),
                "ready" if document["ready"] else visible(document["state"]),
                " ".join(visible(str(part)) for part in (document["era"], document["revision"]) if part),
                "" if document["tools"] is None else str(document["tools"]),
                f"{sum(steps.values()):.2f} s" if steps else "",
                ", ".join(f"{visible(step)} {seconds:.2f}" for step, seconds in steps.items()),
            )
        )
    rows += [(visible(name), "disabled", "", "", "", "") for name in off]
    print_table(output, ("server", "state", "protocol", "tools", "time", "steps"), rows)
    for name, document in documents.items():
        if document.get("problem"):
            output.line(f"\n{visible(name)}: {visible_lines(document['problem'])}")
        if not document["ready"]:
            reason = visible_lines(without_name(name, str(document["reason"]))).replace("\n", "\n  ")
            output.line(f"\n{visible(name)}: {reason}")
            error = document["error"]
            if error and error["fix"] and error["fix"] not in document["reason"]:
                output.line(f"  Next step: {visible_lines(error['fix'])}")
