"""The secret gate: what a test prints and logs holds no secret that a scripted authorization server gave or was given.

Tokens, codes, verifiers, secrets and assertions of ``tests/faults/auth_server.py`` are noted as they pass. After each
test, all that pytest captured of it (stdout, stderr, those of its children, the log) is searched for them, in the forms
in which they travel. ``tests/auth/test_class16_oauth.py`` looks closer: at DEBUG, at every object, at files.

What is not seen: what tests read themselves (``capfd``, pipes of programs), and, under ``-s``, what is printed.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

SHORTEST = 8
"""Letters that a text must have; what is shorter may stand anywhere by chance."""

_passed: deque[str] = deque(maxlen=5000)
"""The newest: a server may be older than a test, but no test sees more than that."""


def note(*secrets: object) -> None:
    """Remember them, where they are texts that are long enough."""
    _passed.extend(each for each in secrets if isinstance(each, str) and len(each) >= SHORTEST)


def spelt(secret: str) -> set[str]:
    """A secret in the forms in which it travels."""
    plain = secret.encode()
    return {
        secret,
        quote(secret),
        quote_plus(secret),
        base64.b64encode(plain).decode(),
        json.dumps(secret)[1:-1],
    }


def seen_in(text: str) -> list[str]:
    """The noted secrets that stand in a text, cut short."""
    if not text.strip():
        return []
    found = {each for each in set(_passed) if any(form in text for form in spelt(each))}
    return sorted(f"{each[:14]}…" for each in found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "teardown":  # it has the sections of all three
        seen = [(name, seen_in(text)) for name, text in report.sections]
        lines = [f"{name}: {', '.join(which)}" for name, which in seen if which]
        if lines:
            report.outcome = "failed"
            report.longrepr = "secrets are seen:\n" + "\n".join(lines)
    return report
