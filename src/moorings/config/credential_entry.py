"""The ``[credentials]`` table of a file, read into ``CredentialSettings``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .credential_spec import CredentialSettings, credential_conflicts, folder_of
from .expand import home_of
from .problems import Problems, kind_of
from .reader import Reader

__all__ = ["read_credentials"]

KEYS = CredentialSettings.__struct_fields__


def read_credentials(table: Any, environ: Mapping[str, str], problems: Problems) -> CredentialSettings:
    """What the table says; defaults in place of what is wrong, which is told."""
    path = ("credentials",)
    if not isinstance(table, dict):
        problems.add(
            path, "settings of credentials are a table of keys", found=kind_of(table), wanted="[credentials]"
        )
        return CredentialSettings()
    before = len(problems)
    for key in table:
        if key not in KEYS:
            problems.unknown((*path, key), "setting of credentials", KEYS)
    reader = Reader(table, path, problems, environ)
    given: dict[str, Any] = {"encrypt": reader.flag("encrypt", False)}
    for key in ("store", "principal"):
        value = reader.optional(key, "a text in quotes", empty=False)
        if value is not None:
            given[key] = value
    for each in credential_conflicts(given):
        reader.complain((each.field,), each.message, fix=each.fix)
    if len(problems) != before:
        return CredentialSettings()
    folder = folder_of(given.get("store", ""))
    if folder is not None:
        given["store"] = "file:" + _absolute(folder, problems.file, environ)
    return CredentialSettings(**given)


def _absolute(folder: str, file: str, environ: Mapping[str, str]) -> str:
    """A relative folder starts at that of the file, as every path in it."""
    home = home_of(environ)
    if folder.startswith("~/") and home is not None:
        folder = home.rstrip("/\\") + folder[1:]
    return os.path.join(os.path.dirname(os.path.abspath(file)), folder)
