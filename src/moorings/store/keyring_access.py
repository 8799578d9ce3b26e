"""The keyring of the system, by the package ``keyring`` (extra ``moorings[keyring]``): found, checked, and called.

What is found must be a keyring that keeps secrets: a stand-in that fails, keeps nothing or writes plain text is
refused, unless the program itself handed it in. The calls may block, ask a person or hang; they run in threads with a
bound. Each entry has a service of its own, as some backends keep one user a service.
"""

from __future__ import annotations

from typing import Any

from .credentials import StoreError, StoreUnusable

__all__ = ["ANSWER", "KeyringAccess"]

ANSWER = 5.0
"""Seconds a keyring has to answer; one that asks a person may take longer, and is told as locked."""

USER = "moorings"
RECOMMENDED = 1.0
"""The priority from which on ``keyring`` calls a backend secure."""

_FIX = "choose the file store, or set up a keyring"


class KeyringAccess:
    """A backend, found when first needed. No call may be made on an event loop."""

    __slots__ = ("_backend", "_store", "_trusted")

    def __init__(self, store: str, backend: Any = None) -> None:
        self._store = store
        self._backend = backend
        self._trusted = backend is not None

    def backend(self) -> Any:
        """The backend.

        Raises:
            StoreUnusable: there is none to trust.
        """
        if self._backend is None:
            self._backend = self._found()
        return self._backend

    def title(self) -> str:
        """What people know the backend by: where it comes from and its name."""
        kind = type(self.backend())
        return f"{kind.__module__}.{kind.__qualname__}"

    def get(self, item: str) -> str | None:
        """What is kept under that name, or None."""
        with _Told(self._store):
            found = self.backend().get_password(f"{USER}:{item}", USER)
        return found if found is None else str(found)

    def set(self, item: str, text: str) -> None:
        """Keep it."""
        with _Told(self._store):
            self.backend().set_password(f"{USER}:{item}", USER, text)

    def delete(self, item: str) -> bool:
        """Keep it no more; False if there was nothing."""
        with _Told(self._store):
            backend = self.backend()
            # What a backend raises for what is not there is the same that it raises when it fails.
            if backend.get_password(f"{USER}:{item}", USER) is None:
                return False
            backend.delete_password(f"{USER}:{item}", USER)
        return True

    def _found(self) -> Any:
        try:
            import keyring
            from keyring.backends import chainer
        except ImportError as fault:
            raise StoreUnusable(
                "the package keyring is not installed",
                store=self._store,
                fix="pip install 'moorings[keyring]'",
            ) from fault
        with _Told(self._store):
            found = keyring.get_keyring()
            if isinstance(found, chainer.ChainerBackend):
                # It writes to the first that takes it, which may be another each time: ours must stay the same.
                found = next(iter(found.backends), found)
            kind = type(found)
            module = kind.__module__
            if module.startswith(
                ("keyring.backends.fail", "keyring.backends.null", "keyring.backends.chainer")
            ):
                raise StoreUnusable("there is no keyring on this machine", store=self._store, fix=_FIX)
            try:
                priority = float(kind.priority)
            except Exception as fault:  # boundary: backends raise what they like here
                raise StoreUnusable(
                    f"the keyring {module} is not usable here", store=self._store, fix=_FIX
                ) from fault
        if priority < RECOMMENDED:
            raise StoreUnusable(
                f"the keyring {module}.{kind.__qualname__} does not protect what it keeps",
                store=self._store,
                fix=_FIX,
            )
        return found


class _Told:
    """Turns whatever a backend raises into our errors. Its text is left out: a backend may quote what it was given."""

    __slots__ = ("_store",)

    def __init__(self, store: str) -> None:
        self._store = store

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: object) -> None:
        if fault is None or not isinstance(fault, Exception) or isinstance(fault, StoreError):
            return
        name = type(fault).__name__
        if name == "NoKeyringError":
            raise StoreUnusable("there is no keyring on this machine", store=self._store, fix=_FIX) from None
        locked = name in ("KeyringLocked", "InitError")
        raise StoreError(
            "the keyring is locked" if locked else f"the keyring failed ({name})", store=self._store
        ) from None
