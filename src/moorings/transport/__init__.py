"""Bytes in and out of one server, and typed failures.

This room knows I/O and no protocol: it spawns or connects, carries frames, says how the connection ended, and takes
everything down again within its bounds. What the frames mean is the session's business.
"""

from .base import Closed, Outgoing, Receiver, StopRecord, Transport
from .live import EXIT_STEP

__all__ = ["EXIT_STEP", "Closed", "Outgoing", "Receiver", "StopRecord", "Transport"]
