"""The place of a test's entries, for each of the backends."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.store.backends import KINDS, Place

LEASE = 1.0
"""Seconds of a Redis lease in these tests."""


def place_for(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind == "redis":
        url = request.getfixturevalue("redis_server").url
        return Place(kind, {"url": url, "prefix": f"t-{secrets.token_hex(4)}", "lease": LEASE})
    if kind == "postgres":
        url = request.getfixturevalue("postgres_server").url
        return Place(kind, {"url": url, "table": f"t_{secrets.token_hex(4)}"})
    keyring = tmp_path / "keyring"
    keyring.mkdir(exist_ok=True)
    return Place(kind, {"folder": str(tmp_path / "state" / "credentials"), "keyring": str(keyring)})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_for(request.param, request, tmp_path)


@pytest.fixture
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_for("files", request, tmp_path)


@pytest.fixture
def keyring(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_for("keyring", request, tmp_path)


@pytest.fixture
def redis(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_for("redis", request, tmp_path)


@pytest.fixture
def postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_for("postgres", request, tmp_path)
