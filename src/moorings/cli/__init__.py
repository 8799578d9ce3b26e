"""The command ``moor``: a file for each verb family, built on the public door alone.

Results go to stdout and nothing else does; messages go to stderr. ``--json`` prints one JSON document, on
errors too. How a command ends is told by its exit code (``exit_codes.py``). Text from servers is printed
escaped. Everything heavy is imported by the verb that needs it, so that ``moor --version`` and completion
are quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; ``sys.argv`` if no arguments are given."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words in (["--version"], ["-V"]):
            from moorings import __version__

            sys.stdout.write(f"moor {__version__}\n")
            sys.stdout.flush()
            return 0
        if sorted(words) == ["--json", "--version"]:
            from moorings import __version__

            sys.stdout.write(f'{{"version": "{__version__}"}}\n')
            sys.stdout.flush()
            return 0
        from moorings.cli.app import run

        return run(words)
    except KeyboardInterrupt:
        return 130
