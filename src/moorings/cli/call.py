"""``moor call``: one call of one tool. Only the server that has it is started."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import click

from moorings import MooringsError, Refused, UnknownTool

from .arguments import BadArguments, read_arguments
from .exit_codes import ExitCode, table
from .hosting import chosen_servers, open_host, read_config, servers_of_tool
from .options import Options, common_options, take_seconds
from .output import Output
from .text import json_text, visible, visible_lines

if TYPE_CHECKING:
    from moorings import CallToolResult, Host

__all__ = ["verb"]


@click.command("call", short_help="Call a tool.", epilog=f"\b\nExit codes:\n{table()}")
@click.argument("tool")
@click.argument("words", metavar="[JSON | KEY=VALUE...]", nargs=-1)
@click.option(
    "--timeout",
    metavar="TIME",
    callback=take_seconds,
    help="Longest wait for the answer; as a rule the server's own limit.",
)
@common_options
@click.pass_obj
def verb(options: Options, tool: str, words: tuple[str, ...], timeout: float | None) -> int:
    """Call TOOL (by its name in `moor tools`, such as git__status) and print its answer.

    Arguments are one JSON object, or KEY=VALUE words: a value that is JSON is taken as JSON (n=3, on=true), any other
    as text. KEY:=JSON must be JSON (id:='"007"' is the text 007). Put -- before words that begin with a dash.
    """
    try:
        arguments = read_arguments(words)
    except BadArguments as fault:
        raise click.UsageError(str(fault)) from None
    config = read_config(options)
    servers = chosen_servers(config, ())
    import msgspec

    needed = {
        name: msgspec.structs.replace(servers[name], lazy=True) for name in servers_of_tool(tool, servers)
    }
    with open_host(options, config, needed) as host:
        try:
            result = host.call(tool, arguments, timeout=timeout)
        except Refused as refusal:
            _raise_if_unknown(host, tool, refusal.server, refusal)
            raise
        if result.is_error:
            # Many servers answer so for a tool that they do not have.
            for name in needed:
                _raise_if_unknown(host, tool, name, None)
        if options.output.as_json:
            options.output.document(_document(tool, result))
        else:
            _print(options.output, result)
    if result.is_error:
        options.output.message(f"{tool} answered with an error")
        return ExitCode.TOOL_ERROR
    return ExitCode.OK


def _raise_if_unknown(host: Host, tool: str, server: str | None, refusal: Refused | None) -> None:
    """A server that has only just been started is asked before its tools are known; if it refused, they tell why.

    Raises:
        UnknownTool: it has no such tool.
    """
    if server is None:
        return
    try:
        names = [each.name for each in host.tools(servers=[server])]
    except MooringsError:
        return
    if tool not in names:
        near = difflib.get_close_matches(tool, names, n=1)
        raise UnknownTool(
            f"there is no {tool!r} in the catalog" + (f"; did you mean {near[0]!r}?" if near else ""),
            server=server,
            fix="see the names in: moor tools",
        ) from refusal


def _document(tool: str, result: CallToolResult) -> dict[str, Any]:
    return {
        "tool": tool,
        "is_error": result.is_error,
        "content": result.content,
        "structured_content": result.structured_content,
    }


def _print(output: Output, result: CallToolResult) -> None:
    if not result.content and result.structured_content is not None:
        output.line(visible_lines(json_text(result.structured_content, indent=True)))
    for block in result.content:
        output.line(visible_lines(_block_text(block)))


def _block_text(block: Any) -> str:
    """A block of an answer for people: its text, or in brackets what it is."""
    text = getattr(block, "text", None)
    if isinstance(text, str):
        return text
    resource = getattr(block, "resource", None)
    if resource is not None:
        if resource.text is not None:
            return str(resource.text)
        return f"[resource {visible(resource.uri)}, {resource.mime_type or 'bytes'}, {len(resource.blob or '')} base64]"
    data = getattr(block, "data", None)
    mime_type = getattr(block, "mime_type", None)
    if isinstance(data, str):
        return f"[{mime_type or 'data'}, {len(data) * 3 // 4} bytes; --json shows it]"
    uri = getattr(block, "uri", None)
    if uri is not None:
        return f"[link {uri}]"
    kind = getattr(block, "type", "")
    return f"[a block of the unknown kind {kind!r}; --json shows it]"
