"""What other clients do today with protected servers, where it was measured that they fail (P1-P4, P13).

Nothing of them is a fault of ours: each that still fails is an expected failure whose reason says what it did, and one
that has been mended is reported as XPASS. They take a minute or two, most of it waiting, so they are no part of the
usual suite; ``test_logins.py``, which holds Moorings to the same situations, is.
"""

from __future__ import annotations

import pytest
from compare.login_rows import PEERS, ROWS
from compare.runner import measure

FAILED = [
    *(("official SDK", key) for key in ("P1", "P2", "P3", "P4")),
    *(("mcp-use", key) for key in ("P1", "P13")),
]


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("client", "key"), FAILED, ids=[f"{key}-{client}" for client, key in FAILED])
def test_what_it_does_today(client: str, key: str, request: pytest.FixtureRequest) -> None:
    peer = next(each for each in PEERS if each.name == client)
    row = next(each for each in ROWS if each.key == key)
    if not peer.python.exists():
        pytest.skip(f"{client} is not installed here; `make compare` installs it")
    cell = measure(row, peer)
    assert "the driver ended" not in cell.text and "no `" not in cell.text, f"our driver: {cell.text}"
    said = f"{client}: {cell.text}; held when {row.held_when}"
    request.node.add_marker(pytest.mark.xfail(reason=said, strict=False))
    assert cell.held
