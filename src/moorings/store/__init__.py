"""What outlives the process: credentials, the eras servers were found to speak, and their log files.

**Credentials** (``credentials.py`` says what every store promises) lie in files, in the keyring of the system, in
Redis or in PostgreSQL. Nothing here knows what they mean. A store that fails says so, and is never taken for an
empty one. The backends are imported from their own modules, as some need packages that not everybody has.

The **state folder** with eras and logs may be lost at any time and costs a probe or a log then, never a failed
connection: what cannot be read counts as absent, what cannot be written is told in the log of the program. Several
processes share it without locks: each entry is a file of its own, written by replacing it. Those calls block for as
long as the disk does.
"""

from .atomic import write_atomic
from .credentials import (
    CorruptEntry,
    CredentialStore,
    Lease,
    LeaseLost,
    LockTimeout,
    StoredKey,
    StoreError,
    StoreUnusable,
    Watching,
)
from .eras import EraRecord, Eras, EraStore, MemoryEraStore
from .folder import StateFolder, log_path, safe_name

__all__ = [
    "CorruptEntry",
    "CredentialStore",
    "EraRecord",
    "EraStore",
    "Eras",
    "Lease",
    "LeaseLost",
    "LockTimeout",
    "MemoryEraStore",
    "StateFolder",
    "StoreError",
    "StoreUnusable",
    "StoredKey",
    "Watching",
    "log_path",
    "safe_name",
    "write_atomic",
]
