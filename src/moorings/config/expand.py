"""References in configuration text: ``${VAR}``, ``${VAR:-default}``, ``${env:VAR}`` and a leading ``~/``.

One rule for every program that reads the file. No shell, no splitting into words, and what a variable holds
is not expanded again. A reference that is not set is an error and never travels.

- ``${VAR}`` and ``${env:VAR}``: the value of the variable; an error if it is not set. An empty value counts
  as set, except where the caller says that a value is needed.
- ``${VAR:-default}``: the default if the variable is not set or empty. It runs to the first ``}``, is taken
  as it stands and holds no reference of its own.
- ``$${`` is a ``${`` that is meant as it stands. Every other ``$``, ``$$`` and ``$VAR`` is kept.
- Any other ``${...}`` (``${input:token}``, ``${VAR%x}``) is an error, as it would reach the server
  unexpanded.
- ``~/`` at the very start is the home folder, where the caller says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Fault", "expand", "home_of"]

_REFERENCE = re.compile(
    r"""
    (?P<escaped>\$\$\{)
    | \$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_()]*)(?P<has_default>:-(?P<default>[^}]*))?\}
    | (?P<bad>\$\{[^}]*\}?)
    """,
    re.VERBOSE,
)

_OTHER_PRODUCT = re.compile(r"\$\{[A-Za-z]{1,20}:[A-Za-z0-9_.-]{1,40}\}")
"""A reference of another product, as ``${input:token}``. Anything else may be part of a secret: not shown."""


class Fault(NamedTuple):
    """A reference that could not be expanded."""

    variable: str | None
    """Name of the variable, if the reference has one."""
    message: str
    fix: str


def expand(
    text: str, environ: Mapping[str, str], *, tilde: bool = False, empty: bool = True
) -> tuple[str, tuple[Fault, ...]]:
    """``text`` with its references replaced, and the faults: with any fault, the text is not to be used.

    ``empty``: whether ``${VAR}`` may be set to nothing. Where a secret is wanted it may not, as nothing would be sent.
    """
    faults: list[Fault] = []
    prefix = ""
    if tilde and text.startswith("~/"):
        home = home_of(environ)
        if home is None:
            faults.append(
                Fault(
                    "HOME",
                    "'~' stands for the home folder, and HOME is not set",
                    "set HOME, or write the path",
                )
            )
        else:
            prefix, text = home.rstrip("/\\"), text[1:]

    def replaced(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "${"
        if match["bad"]:
            named = match["bad"] if _OTHER_PRODUCT.fullmatch(match["bad"]) else "'${'"
            faults.append(
                Fault(
                    None,
                    f"{named} at character {match.start() + 1} begins no reference known here",
                    "write ${VAR}, ${VAR:-default} or ${env:VAR}; $${ for a '${' as it stands",
                )
            )
            return ""
        name = match["name"]
        value = environ.get(name)
        if match["has_default"] is None:
            if value is None:
                faults.append(
                    Fault(
                        name,
                        f"the variable {name} is not set",
                        f"set {name}, or give a default: ${{{name}:-...}}",
                    )
                )
                return ""
            if not value and not empty:
                faults.append(
                    Fault(
                        name,
                        f"the variable {name} is set to nothing, and a value is needed here",
                        f"set {name}, or give a default: ${{{name}:-...}}",
                    )
                )
            return value
        if "${" in match["default"]:
            faults.append(
                Fault(
                    name,
                    f"the default of {name} holds a reference",
                    "write the default out, as it is not expanded",
                )
            )
            return ""
        return value if value else str(match["default"])

    return prefix + _REFERENCE.sub(replaced, text), tuple(faults)


def home_of(environ: Mapping[str, str]) -> str | None:
    """The home folder as the environment tells it."""
    return environ.get("HOME") or environ.get("USERPROFILE") or None
