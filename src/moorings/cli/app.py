"""The command group: options that every verb takes, before or after it, and how every command ends."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Sequence
from typing import Any, ClassVar

import click

from moorings import MooringsError, __version__

from . import exit_codes
from .exit_codes import ExitCode, exit_code_of
from .options import Options, common_options
from .output import Output, OutputClosed, error_document, interrupted_document, usage_document

__all__ = ["moor", "run"]


class _Ended(BaseException):
    """A signal asks the command to end; its servers are stopped on the way out."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Verbs(click.Group):
    """The verbs, each imported when it is used."""

    modules: ClassVar[dict[str, str]] = {
        "auth": "auth",
        "call": "call",
        "login": "login",
        "logout": "logout",
        "test": "check",
        "tools": "tools",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = self.modules.get(cmd_name)
        if module is None:
            return None
        from importlib import import_module

        verb = import_module(f"moorings.cli.{module}").verb
        assert isinstance(verb, click.Command)
        return verb


@click.command(
    cls=_Verbs,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=f"\b\nExit codes:\n{exit_codes.table()}",
)
@common_options
@click.version_option(__version__, "--version", "-V", message="moor %(version)s")
def moor() -> None:
    """Work with the MCP servers of a configuration file.

    The file is moorings.toml in the configuration folder of this account, or what --config names: a moorings.toml, or
    a JSON file with "mcpServers" (.mcp.json, Claude, Cursor) or "servers" (VS Code). A file in the current folder is
    read only if it is named.
    """


def run(words: Sequence[str]) -> int:
    """Run a command line and return its exit code. What goes wrong is told here and nowhere else."""
    output = Output(as_json=_wants_json(words))
    try:
        with _signals_end_it():
            code = _run(words, output)
        output.finish()
    except OutputClosed:
        output.drop()
        return ExitCode.PIPE
    return code


def _run(words: Sequence[str], output: Output) -> int:
    try:
        result = moor.main(list(words), prog_name="moor", standalone_mode=False, obj=Options(output))
        return int(result or 0)
    except click.ClickException as error:
        where = (
            f" (see: {error.ctx.command_path} --help)"
            if isinstance(error, click.UsageError) and error.ctx
            else ""
        )
        output.error(usage_document(error.format_message()), error.format_message() + where)
        return ExitCode.USAGE
    except MooringsError as error:
        code = exit_code_of(error)
        output.error(error_document(error, code), str(error))
        return code
    except (click.Abort, KeyboardInterrupt):
        output.error(interrupted_document(ExitCode.INTERRUPTED), "interrupted")
        return ExitCode.INTERRUPTED
    except _Ended as ended:
        output.error(
            interrupted_document(128 + ended.number), f"ended by {signal.Signals(ended.number).name}"
        )
        return 128 + ended.number
    except SystemExit as error:
        if "_MOOR_COMPLETE" in os.environ:  # click has answered the shell
            return error.code if isinstance(error.code, int) else ExitCode.OK
        raise OutputClosed from error  # click, when the reader of its help is gone
    except OutputClosed:
        raise
    except Exception as error:
        output.error(error_document(error, ExitCode.INTERNAL), "this is a fault of moor itself:")
        output.message(traceback.format_exc())
        return ExitCode.INTERNAL


def _wants_json(words: Sequence[str]) -> bool:
    """Known before the command line is understood, as a wrong one is answered in JSON too."""
    before_end = words[: words.index("--")] if "--" in words else words
    return "--json" in before_end


class _signals_end_it:
    """While entered, TERM and HUP end the command in order, its servers included."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is None or signal.getsignal(number) != signal.SIG_DFL:
                continue
            try:
                self._before[number] = signal.signal(number, self._end)
            except ValueError:  # not the main thread: whoever runs it there handles signals
                return

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @staticmethod
    def _end(number: int, _frame: object) -> None:
        raise _Ended(number)
