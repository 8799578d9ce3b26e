"""`make demo` does what it shows, without a terminal too, and says why when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parent.parent.parent / "tools" / "demo.py"


def demo(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.real
def test_the_demo_holds_uses_and_ends_five_servers() -> None:
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("● ready") == 5
    assert done.stdout.count("✓") >= 11
    assert "RunTimeout the run passed its deadline" in done.stdout
    assert "no process that this demo started" in done.stdout
    assert "✓ everything shown was checked" in done.stdout
    assert done.stderr == ""


def test_the_demo_says_why_it_cannot_be_shown() -> None:
    done = demo(PATH="/nonexistent")
    assert done.returncode == 1
    assert "✗ the demo failed: git is not on the PATH" in done.stdout
    assert done.stderr == ""
