"""Every kind of server specification, in one name."""

from __future__ import annotations

from typing import TypeAlias

from .memory import MemorySpec
from .spec import StdioServer

__all__ = ["ServerSpec"]

ServerSpec: TypeAlias = StdioServer | MemorySpec
"""What a host takes for a server. All kinds have ``protocol``, ``required``, ``lazy``, ``enabled``, ``include``,
``exclude``, ``bounds``, ``unresolved`` and ``fingerprint()``."""
