"""What outlives the process: a state folder with the eras servers were found to speak, and their log files.

Everything here may be lost at any time and costs a probe or a log then, never a failed connection: what
cannot be read counts as absent, what cannot be written is told in the log of the program. Several processes
share the folder without locks: each entry is a file of its own, written by replacing it. Imports errors and
the standard library only, and ``msgspec``; the calls block for as long as the disk does.
"""

from .atomic import write_atomic
from .eras import EraRecord, Eras, EraStore, MemoryEraStore
from .folder import StateFolder, log_path, safe_name

__all__ = [
    "EraRecord",
    "EraStore",
    "Eras",
    "MemoryEraStore",
    "StateFolder",
    "log_path",
    "safe_name",
    "write_atomic",
]
