"""A QR code as text for a terminal (ISO/IEC 18004): two rows of the code in one line, black on white whatever the
colours of the terminal are, so that every camera reads it."""

from __future__ import annotations

__all__ = ["qr_lines"]

_BORDER = 2
"""Modules of white around it. The standard wants four; cameras are content with two, and a screen has few lines."""

_BLOCKS = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}
"""(upper, lower), 1 being black: what is white is drawn, on a black ground."""

_ON, _OFF = "\x1b[40;97m", "\x1b[0m"


def qr_lines(text: str, columns: int, lines: int) -> list[str]:
    """The lines of the code, or none if it does not fit into the terminal, or the text is too long for any code."""
    import segno

    try:
        code = segno.make_qr(text, error="l")
    except ValueError:
        return []
    rows = [list(row) for row in code.matrix_iter(border=_BORDER)]
    if len(rows) > columns or (len(rows) + 1) // 2 > lines:
        return []
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    return [
        _ON + "".join(_BLOCKS[bool(up), bool(down)] for up, down in zip(above, below, strict=True)) + _OFF
        for above, below in zip(rows[::2], rows[1::2], strict=True)
    ]
