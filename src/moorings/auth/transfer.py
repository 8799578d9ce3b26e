"""Logins in a file, to be moved to another machine: written on purpose, encrypted with a passphrase, taken as a whole.

::

    {"moorings": "logins", "format": 1, "kdf": "scrypt", …, "size": …, "sha256": …}     one line, in the clear
    <AES-256-GCM of the records, as base64 in lines>

The key comes from the passphrase by scrypt (RFC 7914); the whole first line is bound in, so that nothing of it can be
changed. Size and sum tell a file that was cut off from a wrong passphrase. The line says nothing of what is in it. The
file is text alone, so that it goes through a terminal as well as by ``scp``.

Both ways hold the locks of the logins that they touch: a renewal that is under way is let finish before one leaves, so
what leaves is what the server knows, and whoever has it in use here learns of one that comes by the watch of the store.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import os
import stat
import time
import unicodedata
from collections.abc import Mapping
from pathlib import Path

import msgspec

from .._secret import Secret
from .._tasks import run_in_thread
from ..config import CredentialSettings, HttpServer
from ..errors import ConfigError, LoginFileError, StoreFailed
from ..store.atomic import write_atomic
from ..store.credentials import CorruptEntry, CredentialStore, Lease, StoredKey, StoreError
from .accounts import account_of
from .at_store import LOCK_WITHIN, store_at
from .clients_kept import forget_client, kept_clients
from .identity import OLD
from .logout import drop_intent, logins_of
from .model import (
    BadRecord,
    Credential,
    Registration,
    decode_credential,
    decode_registration,
    encode_credential,
    encode_registration,
)
from .renewal import about
from .report import Login, login_of

__all__ = [
    "SHORTEST",
    "ExportReport",
    "ImportReport",
    "export_logins",
    "import_logins",
]

FORMAT = 1
COST, BLOCK, LANES = 2**17, 8, 1
"""Of scrypt: half a second, and 128 MiB, for each passphrase that is tried."""
MOST_MEMORY = 512 * 1024 * 1024
"""Bytes that a file may want for its scrypt."""
MOST_LANES = 16
MOST_BYTES = 8 * 1024 * 1024
"""Of a file; a longer one is none of ours."""
SHORTEST = 8
"""Characters of a passphrase."""
LINE = 76
KEY = 32
SALT, NONCE = 16, 12


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written into a file."""

    file: str
    store: str
    """Where it came from, without passwords."""
    principal: str
    logins: tuple[Login, ...]
    clients: int
    """How many registrations went with them."""
    moved: bool
    """They are not here any more."""
    skipped: tuple[str, ...] = ()
    """Logins that are worth nothing, or that cannot be read, and why."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken from a file."""

    file: str
    store: str
    """Where it went, without passwords."""
    principal: str
    logins: tuple[Login, ...]
    """All that were in the file."""
    replaced: int = 0
    """How many of them took the place of another."""
    unchanged: int = 0
    """How many were here already, as they are in the file."""


class _Registered(msgspec.Struct, frozen=True):
    key: str
    record: str


class _Content(msgspec.Struct, frozen=True):
    """What is encrypted: records as a store keeps them."""

    credentials: tuple[str, ...]
    registrations: tuple[_Registered, ...]

    def __repr__(self) -> str:
        return f"_Content({len(self.credentials)} logins)"


class _Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    moorings: str
    format: int
    kdf: str
    n: int
    r: int
    p: int
    salt: str
    cipher: str
    nonce: str
    size: int = 0
    """Bytes of what is encrypted, as it stands there."""
    sha256: str = ""


async def export_logins(
    servers: Mapping[str, HttpServer],
    to: str | os.PathLike[str],
    passphrase: str | Secret,
    *,
    credentials: CredentialSettings | None = None,
    state_dir: str | os.PathLike[str] | bool | None = None,
    move: bool = False,
) -> ExportReport:
    """Write the logins of these servers into an encrypted file, readable by you alone.

    A copy ends with the original: a server that replaces refresh tokens takes the second use of one for theft. ``move``
    leaves none here.

    Args:
        servers: specifications by name, as a host takes them.
        to: the file; it must not be there yet.
        passphrase: at least 8 characters.
        credentials: as a host takes them.
        state_dir: as a host takes it.
        move: remove them here, once the file is on the disk.

    Raises:
        LoginFileError: the file cannot be written, or the passphrase will not do; nothing was changed.
        ConfigError: a server has no login that works, the store cannot be used, or ``cryptography`` is missing.
        StoreFailed: the store did not answer, or refused.
    """
    settings = credentials or CredentialSettings()
    path = _place(to)
    secret = _checked(passphrase, path)
    accounts = {name: account_of(each, settings.principal) for name, each in servers.items()}
    head = _fresh_head()
    # Before any lock is held: it takes its time.
    key = await _key(head, secret, path)
    async with store_at(settings, state_dir) as store, contextlib.AsyncExitStack() as stack:
        entries = await store.keys()
        digests = {each.key for account in accounts.values() for each in logins_of(entries, account)}
        leases = await _locked(stack, store, digests)
        found, skipped = await _good(store, leases)
        theirs = {account.subject.resource for account in accounts.values()}
        found = [each for each in found if each.key.resource in theirs]
        clients = await _clients(store, entries, found)
        for name, account in accounts.items():
            if not any(each.key.resource == account.subject.resource for each in found):
                raise ConfigError(
                    "there is no login of it that works, so nothing was exported", server=name, key=name
                )
        sealed = _sealed(head, key, _encoded(found, clients))
        try:
            await run_in_thread(write_atomic, path, sealed, name="moorings-export")
        except OSError as error:
            raise _of_file(path, f"it cannot be written: {error.strerror or error}") from None
        if move:
            await _remove(store, leases, found, path)
        return ExportReport(
            file=str(path),
            store=store.name,
            principal=settings.principal,
            logins=tuple(login_of(each) for each in found),
            clients=len(clients),
            moved=move,
            skipped=tuple(skipped),
        )


def _place(to: str | os.PathLike[str]) -> Path:
    """Where they are written, if they can be. Raises LoginFileError."""
    path = Path(os.path.abspath(to))
    if os.path.lexists(path):
        raise _of_file(path, "it is there already", fix="name another file")
    if not path.parent.is_dir():
        raise _of_file(path, f"there is no folder {path.parent}", fix="make it, or name another file")
    return path


def _whole(file: str | os.PathLike[str]) -> tuple[Path, _Head, bytes]:
    """What can be known of a file without its passphrase: that it is whole. Raises LoginFileError."""
    path = Path(os.path.abspath(file))
    return (path, *_split(_read(path), path))


async def import_logins(
    file: str | os.PathLike[str],
    passphrase: str | Secret,
    *,
    credentials: CredentialSettings | None = None,
    state_dir: str | os.PathLike[str] | bool | None = None,
    replace: bool = False,
) -> ImportReport:
    """Take the logins of a file into the store. If one cannot be taken, none is.

    Args:
        file: what ``export_logins`` wrote.
        passphrase: the one that it was written with.
        credentials: as a host takes them; the logins must be those of their principal.
        state_dir: as a host takes it.
        replace: in place of logins that are here already, newer ones too.

    Raises:
        LoginFileError: the file, or what is in it, cannot be taken; its ``reason`` says why. Nothing was changed.
        ConfigError: the store cannot be used, or ``cryptography`` is missing.
        StoreFailed: the store did not answer, or refused.
    """
    settings = credentials or CredentialSettings()
    path, head, sealed = await run_in_thread(_whole, file, name="moorings-import")
    key = await _key(head, _secret(passphrase), path)
    found, clients = _decoded(_opened(head, sealed, key, path), path)
    others = sorted({each.key.principal for each in found} - {settings.principal})
    if others:
        raise LoginFileError(
            f"its logins are those of {', '.join(map(repr, others))[:300]}, and here those of "
            f"{settings.principal!r} are kept",
            reason="principal",
            file=str(path),
            fix="set credentials.principal, if they are meant to be used here",
        )
    async with store_at(settings, state_dir) as store, contextlib.AsyncExitStack() as stack:
        leases = await _locked(stack, store, {each.key.digest() for each in found})
        before = [await _known(store, each.key.digest()) for each in found]
        if not replace:
            _refuse_what_is_here(found, before, path)
        replaced = unchanged = 0
        for each, known in zip(found, before, strict=True):
            digest = each.key.digest()
            if known is not None and _same(known, each):
                unchanged += 1
                continue
            # Newer than what any process has seen of it, of a login that was removed here too: else those that use that
            # would not take it up. No login is written once a second for its whole life.
            version = max(int(time.time()), each.version, 0 if known is None else known.version) + 1
            taken = msgspec.structs.replace(each, version=version)
            await drop_intent(store, digest, leases[digest])
            await store.save(digest, encode_credential(taken), leases[digest], about=about(taken))
            replaced += known is not None
        for registered, registration in clients:
            await _take_client(store, registered.key, registration)
        return ImportReport(
            file=str(path),
            store=store.name,
            principal=settings.principal,
            logins=tuple(login_of(each) for each in found),
            replaced=replaced,
            unchanged=unchanged,
        )


# --- in the store -------------------------------------------------------------------------------------------------


async def _locked(
    stack: contextlib.AsyncExitStack, store: CredentialStore, digests: set[str]
) -> dict[str, Lease]:
    """The locks of these logins, in one order for all, so that two who take several never wait for each other."""
    until = asyncio.get_running_loop().time() + LOCK_WITHIN
    return {each: await stack.enter_async_context(store.lock(each, until)) for each in sorted(digests)}


async def _good(store: CredentialStore, digests: Mapping[str, Lease]) -> tuple[list[Credential], list[str]]:
    found: list[Credential] = []
    skipped: list[str] = []
    for each in digests:
        try:
            data = await store.load(each)
            credential = None if data is None else decode_credential(data)
        except (CorruptEntry, BadRecord) as fault:
            skipped.append(str(fault))
            continue
        if credential is None:
            continue  # removed meanwhile
        if credential.state == "good":
            found.append(credential)
        else:
            skipped.append(
                f"that of the client {credential.key.client_id!r} at {credential.key.issuer} is "
                f"{credential.state}: {credential.reason}"
            )
    return found, skipped


async def _clients(
    store: CredentialStore, entries: list[StoredKey], found: list[Credential]
) -> list[tuple[str, Registration]]:
    """The registrations that these were got with, so that the next login over there needs no other."""
    clients: dict[str, Registration] = {}
    for credential in found:
        for key in kept_clients(entries, credential.key.issuer, credential.key.client_id):
            if key.endswith(OLD):
                continue
            with contextlib.suppress(CorruptEntry, BadRecord):
                data = await store.load(key)
                if data is not None:
                    clients[key] = decode_registration(data)
    return list(clients.items())


async def _remove(
    store: CredentialStore, leases: Mapping[str, Lease], found: list[Credential], path: Path
) -> None:
    """What is in the file is not here any more, and neither is its client: a later logout here would end it there."""
    try:
        for each in found:
            digest = each.key.digest()
            await store.remove(digest, leases[digest])
            await drop_intent(store, digest, leases[digest])
        for each in found:
            if each.registration.source == "dynamic":
                await forget_client(store, each)
    except StoreError as error:
        raise StoreFailed(
            f"{path} is written, and what is in it could not be removed here: {error}",
            fix="remove it here without asking the server (moor logout --local), or delete the file",
        ) from error


async def _known(store: CredentialStore, digest: str) -> Credential | None:
    try:
        data = await store.load(digest)
        return None if data is None else decode_credential(data)
    except (CorruptEntry, BadRecord):
        return None  # nobody can use it; the store puts it aside


def _refuse_what_is_here(found: list[Credential], before: list[Credential | None], path: Path) -> None:
    for each, known in zip(found, before, strict=True):
        if known is None or _same(known, each):
            continue
        older = known.version > each.version or known.obtained_at > each.obtained_at
        raise LoginFileError(
            f"for {each.key.resource} there is a {'newer ' if older else ''}login here already",
            reason="older" if older else "exists",
            file=str(path),
            fix="say that it is to be replaced (--replace), if that of the file is the one to keep",
        )


def _same(one: Credential, other: Credential) -> bool:
    return msgspec.structs.replace(one, version=0) == msgspec.structs.replace(other, version=0)


async def _take_client(store: CredentialStore, key: str, registration: Registration) -> None:
    """One that is here stays: logins of this machine go on with it."""
    async with store.lock(key, asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
        with contextlib.suppress(CorruptEntry):
            if await store.load(key) is not None:
                return
        said = {"issuer": registration.issuer, "client_id": registration.client_id, "kind": "registration"}
        await store.save(key, encode_registration(registration), lease, about=said)


# --- the file -----------------------------------------------------------------------------------------------------


def _encoded(found: list[Credential], clients: list[tuple[str, Registration]]) -> bytes:
    return msgspec.json.encode(
        _Content(
            tuple(encode_credential(each).decode() for each in found),
            tuple(_Registered(key, encode_registration(each).decode()) for key, each in clients),
        )
    )


def _decoded(plain: bytes, path: Path) -> tuple[list[Credential], list[tuple[_Registered, Registration]]]:
    try:
        content = msgspec.json.decode(plain, type=_Content)
        found = [decode_credential(each.encode()) for each in content.credentials]
        clients = [(each, decode_registration(each.record.encode())) for each in content.registrations]
        sound = all(len(each.key) == 64 and set(each.key) <= set("0123456789abcdef") for each, _ in clients)
    except (msgspec.MsgspecError, BadRecord, UnicodeError, RecursionError):
        sound = False
    if not sound:
        # The text of a fault may quote what it found there.
        raise LoginFileError(
            "it was opened, and what is in it is no login that this Moorings can read",
            reason="version",
            file=str(path),
        )
    return found, clients


def _fresh_head() -> _Head:
    salt, nonce = (base64.b64encode(os.urandom(size)).decode() for size in (SALT, NONCE))
    return _Head(
        moorings="logins", format=FORMAT, kdf="scrypt", n=COST, r=BLOCK, p=LANES, salt=salt,
        cipher="AES-256-GCM", nonce=nonce,
    )  # fmt: skip


def _sealed(head: _Head, key: bytes, plain: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = base64.b64decode(head.nonce)
    # What the line says of the size is bound in; the sum cannot be, as it is that of the outcome.
    named = msgspec.structs.replace(head, size=len(plain) + 16)
    sealed = AESGCM(key).encrypt(nonce, plain, _bound(named))
    line = msgspec.json.encode(msgspec.structs.replace(named, sha256=hashlib.sha256(sealed).hexdigest()))
    text = base64.b64encode(sealed)
    return b"\n".join([line, *(text[at : at + LINE] for at in range(0, len(text), LINE)), b""])


def _bound(head: _Head) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(head, sha256=""))


def _read(path: Path) -> bytes:
    flags = (
        os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        descriptor = os.open(path, flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _of_file(path, "it is no file")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _of_file(path, f"it cannot be read: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise _damaged(path, "it is longer than a file of logins can be")
    return data


def _split(data: bytes, path: Path) -> tuple[_Head, bytes]:
    """First line and what is encrypted."""
    first, _, rest = data.partition(b"\n")
    try:
        said = msgspec.json.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("moorings") != "logins":
        raise _damaged(path, "it is no file of logins: its first line is no header of one")
    if said.get("format") != FORMAT:
        raise LoginFileError(
            f"it is of format {str(said.get('format'))[:20]}, and this Moorings reads {FORMAT}",
            reason="version",
            file=str(path),
            fix="import it with the Moorings that wrote it, or a later one",
        )
    try:
        head = msgspec.convert(said, _Head)
        sealed = base64.b64decode(b"".join(rest.split()), validate=True)
        sound = head.kdf == "scrypt" and head.cipher == "AES-256-GCM" and _affordable(head)
        sizes = (
            len(base64.b64decode(head.nonce, validate=True)),
            len(base64.b64decode(head.salt, validate=True)),
        )
    except (msgspec.ValidationError, binascii.Error, ValueError):
        raise _damaged(path, "it is cut off, or was changed") from None
    if not sound or sizes[0] != NONCE or sizes[1] < SALT:
        raise _damaged(path, "its first line asks for what no Moorings writes")
    if len(sealed) != head.size or hashlib.sha256(sealed).hexdigest() != head.sha256:
        raise _damaged(path, "it is cut off, or was changed")
    return head, sealed


def _affordable(head: _Head) -> bool:
    """What scrypt may be asked to do: the file is not to be believed before it is opened."""
    if head.n < 2 or head.n & (head.n - 1) or head.r < 1 or not 0 < head.p <= MOST_LANES:
        return False
    return 128 * head.n * head.r <= MOST_MEMORY and head.n.bit_length() <= 16 * head.r  # RFC 7914 §2


def _opened(head: _Head, sealed: bytes, key: bytes, path: Path) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(base64.b64decode(head.nonce), sealed, _bound(head))
    except InvalidTag:
        raise LoginFileError(
            "the passphrase is not that of the file, or somebody changed the file",
            reason="passphrase",
            file=str(path),
        ) from None


async def _key(head: _Head, passphrase: bytes, path: Path) -> bytes:
    try:
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
    except ImportError:
        raise ConfigError(
            "files of logins are encrypted by cryptography, which is not installed",
            fix='pip install "moorings[jwt]"',
        ) from None

    def derive() -> bytes:
        return Scrypt(salt=base64.b64decode(head.salt), length=KEY, n=head.n, r=head.r, p=head.p).derive(
            passphrase
        )

    try:
        return await run_in_thread(derive, name="moorings-passphrase")
    except ValueError:
        raise _damaged(path, "its first line asks for what no Moorings writes") from None
    except MemoryError:
        needed = 128 * head.n * head.r // (1024 * 1024)
        raise _of_file(
            path, f"there is not enough memory for its passphrase: it takes {needed} MiB"
        ) from None


def _secret(passphrase: str | Secret) -> bytes:
    text = passphrase.reveal() if isinstance(passphrase, Secret) else passphrase
    # Keyboards write the same letter in several ways.
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")


def _checked(passphrase: str | Secret, path: Path) -> bytes:
    secret = _secret(passphrase)
    if len(secret.decode("utf-8", "surrogatepass")) < SHORTEST:
        raise LoginFileError(
            f"a passphrase has at least {SHORTEST} characters", reason="passphrase", file=str(path)
        )
    return secret


def _of_file(path: Path, message: str, *, fix: str | None = None) -> LoginFileError:
    return LoginFileError(message, reason="file", file=str(path), fix=fix)


def _damaged(path: Path, message: str) -> LoginFileError:
    return LoginFileError(message, reason="damaged", file=str(path))
