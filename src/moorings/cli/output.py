"""Where results and messages go: stdout has the result and nothing else, stderr has messages.

A result is one JSON document with ``--json``, or text for people. A reader who goes away (``| head``) ends
the command quietly.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from moorings import MooringsError, StartError

from .exit_codes import ExitCode
from .text import json_text, visible_lines

__all__ = ["Output", "OutputClosed", "error_document"]


class OutputClosed(Exception):
    """Nobody reads stdout any more."""


class Output:
    """The two streams of one command."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.printed = False
        """True once anything is on stdout."""
        _make_lossless(sys.stdout)
        _make_lossless(sys.stderr)

    @property
    def for_person(self) -> bool:
        """True if stdout is a terminal."""
        return not self.as_json and sys.stdout.isatty()

    def line(self, text: str = "") -> None:
        """A line of the result. Text of a server in it must already be made visible."""
        self._write(text + "\n")

    def document(self, document: Mapping[str, Any]) -> None:
        """The whole result, as JSON."""
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        text = json_text(document, indent=sys.stdout.isatty(), ascii_only=encoding != "utf8")
        self._write(text + "\n")

    def message(self, text: str) -> None:
        """A message for people, escaped here."""
        try:
            sys.stderr.write(f"moor: {visible_lines(text)}\n")
            sys.stderr.flush()
        except OSError:  # nobody listens, or the terminal is gone
            _drop(sys.stderr)

    def error(self, document: Mapping[str, Any], text: str) -> None:
        """How the command failed: as its JSON result if that is wanted, and as a message otherwise."""
        if self.as_json and not self.printed:
            self.document({"error": document})
        else:
            self.message(text)

    def finish(self) -> None:
        """Bring everything out, so that nothing fails when the interpreter ends.

        Raises:
            OutputClosed: nobody reads it.
        """
        self._write("")

    def drop(self) -> None:
        """Send what is still held for stdout nowhere: its reader is gone."""
        _drop(sys.stdout)

    def _write(self, text: str) -> None:
        self.printed = self.printed or bool(text)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError) and error.errno != errno.EIO:  # a terminal that is gone
                raise
            raise OutputClosed from None


def _drop(stream: TextIO) -> None:
    """What it still holds goes nowhere: else the interpreter fails at it when it ends, and so does its exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):  # no real stream
        pass
    finally:
        os.close(nowhere)


def error_document(error: BaseException, code: ExitCode) -> dict[str, Any]:
    """An error as JSON: the same keys always, and more where the error knows more."""
    if not isinstance(error, MooringsError):
        return _document("MOOR_INTERNAL", f"{type(error).__name__}: {error}", code)
    document = _document(error.code, error.message, code, server=error.server, fix=error.fix)
    for name in (
        "file",
        "key",
        "line",
        "problems",
        "missing",
        "reason",
        "needs",
        "elapsed",
        "allowed",
        "stderr_tail",
        "tool",
        "sent",
        "rpc_code",
        "data",
    ):
        value = getattr(error, name, None)
        if value is not None and value != "":
            document[name] = value
    if isinstance(error, StartError) and error.exit_code is not None:
        document["process_exit_code"] = error.exit_code
    return document


def usage_document(message: str) -> dict[str, Any]:
    """A wrong command line as JSON."""
    return _document("MOOR_USAGE", message, ExitCode.USAGE)


def interrupted_document(code: int) -> dict[str, Any]:
    """An end by a signal as JSON."""
    return _document("MOOR_INTERRUPTED", "interrupted", code)


def _document(
    code: str, message: str, exit_code: int, *, server: str | None = None, fix: str | None = None
) -> dict[str, Any]:
    return {"code": code, "message": message, "server": server, "fix": fix, "exit_code": int(exit_code)}


def _make_lossless(stream: TextIO) -> None:
    """What the stream's encoding lacks is printed as an escape, not as an exception."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
