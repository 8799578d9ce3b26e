"""Ctrl-C by hand: KeyboardInterrupt at the n-th moment of a piece of code at which a signal handler may run."""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["struck_at"]

CHECKED = {
    opcode.opmap[name] for name in ("RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX") if name in opcode.opmap
} | {opcode.opmap["JUMP_BACKWARD"]}
"""After these the interpreter looks whether a signal has come; after no other, which makes ``with lock`` safe."""


def struck_at(moment: int, work: Callable[[], object]) -> bool:
    """Run the work and interrupt it at the n-th such moment, counted from 0, in whatever function that is.

    Returns:
        False if the work was over before that.
    """
    left = moment
    before: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "exception":
            # It looks after a call that returned, and not after one that raised.
            before.pop(frame, None)
        elif event == "opcode":
            last = before.get(frame)
            before[frame] = frame.f_code.co_code[frame.f_lasti]
            if last in CHECKED:
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return trace

    outside = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(outside)
        before.clear()
    return left < 0
