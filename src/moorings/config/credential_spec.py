"""Where logins are kept: the store of credentials of one host, as the user says it.

A plain frozen value, as the others of ``config/spec.py``. What a file may say of it is read in
``config/credential_entry.py``; the stores themselves are ``store/``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from .._urls import shown_url
from ..errors import MisuseError
from .auth_urls import postgres_fault, redis_fault
from .spec import Conflict

__all__ = ["LOCAL", "CredentialSettings", "StoreKind", "credential_conflicts", "folder_of", "store_kind"]

LOCAL = "local"
"""The principal of whoever runs the program."""

StoreKind = Literal["file", "keyring", "redis", "postgresql", "memory"]

STORES = '"file", "file:PATH", "keyring", "memory", or a redis, rediss or postgresql URL'

_SCHEMES: Mapping[str, StoreKind] = {
    "redis": "redis",
    "rediss": "redis",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}


class CredentialSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the logins of a host are kept, and whose they are."""

    store: str = "file"
    """``file`` (a folder in the state folder), ``file:PATH``, ``keyring``, ``memory`` (gone with the process), or the
    URL of a database: ``redis://``, ``rediss://``, ``postgresql://``. If it cannot be used, no other is taken."""
    encrypt: bool = False
    """True: files are encrypted by a key that lies in the keyring. For files alone."""
    principal: str = "local"
    """Whose logins they are, for programs that act for several people."""

    def __post_init__(self) -> None:
        """What cannot be meant is refused at once.

        Raises:
            MisuseError: a field of the wrong kind or form; what stands in a URL is not shown.
        """
        for name in ("store", "principal"):
            if not isinstance(getattr(self, name), str):
                raise MisuseError(f"{name} is text, not {type(getattr(self, name)).__name__}")
        if not isinstance(self.encrypt, bool):
            raise MisuseError(f"encrypt is True or False, not {type(self.encrypt).__name__}")
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        for conflict in credential_conflicts(given):
            raise MisuseError(f"{conflict.field}: {conflict.message}", fix=conflict.fix)

    @property
    def kind(self) -> StoreKind:
        """Which store it is."""
        kind = store_kind(self.store)
        assert kind is not None  # refused when it was made
        return kind

    @property
    def folder(self) -> str | None:
        """That of ``file:PATH``; None: the place in the state folder, or no file store."""
        return folder_of(self.store)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The fields, without the login of a database."""
        store = shown_url(self.store) if self.kind in ("redis", "postgresql") else self.store
        return [("store", store), ("encrypt", self.encrypt), ("principal", self.principal)]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"CredentialSettings({shown})"


def store_kind(store: str) -> StoreKind | None:
    """Which store a text means; None if none."""
    if store in ("file", "keyring", "memory"):
        return store  # type: ignore[return-value]  # mypy does not narrow a text to a literal
    if store.startswith("file:"):
        return "file"
    scheme, mark, _ = store.partition("://")
    return _SCHEMES.get(scheme.lower()) if mark else None


def folder_of(store: str) -> str | None:
    """The path of ``file:PATH`` and ``file:///PATH``, as it stands; None if the text has none."""
    if not store.startswith("file:"):
        return None
    path = store.removeprefix("file:")
    return path[2:] if path.startswith("///") else path


def credential_conflicts(given: Mapping[str, Any]) -> Iterator[Conflict]:
    """What is wrong with values of the right kind; those that are absent are not set."""
    store, principal = given.get("store", "file"), given.get("principal", LOCAL)
    kind = store_kind(store)
    fault = {"redis": redis_fault, "postgresql": postgres_fault}.get(kind or "", lambda _: None)(store)
    folder = folder_of(store)
    if kind is None:
        yield Conflict("store", "no store of credentials", f"write {STORES}")
    elif fault is not None:
        yield Conflict("store", fault.message, fault.fix)
    elif folder == "" or (folder and "\0" in folder):
        yield Conflict("store", "the path is empty, or holds a NUL character", "write file:PATH")
    elif folder and folder.startswith("//"):
        yield Conflict("store", "a file of another machine", "write file:PATH, with a path of this one")
    if given.get("encrypt") and kind not in ("file", None):
        yield Conflict(
            "encrypt", "files alone are encrypted by Moorings", "take it out, or keep logins in files"
        )
    if not principal.strip() or not principal.isprintable():
        yield Conflict("principal", "it is empty, or holds a control character")
