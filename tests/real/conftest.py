"""Authorization servers, each with the options of a test: ``with provider_with(path="/tenant") as provider``; and a
browser: ``async with chromium() as browser``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.real.better_auth import better_auth
from tests.real.chromium import opened, program
from tests.real.oidc import oidc_provider


@pytest.fixture
def provider_with(real_server: Callable[..., list[str]], tmp_path: Path) -> Callable[..., Any]:
    """oidc-provider."""
    return partial(oidc_provider, real_server, tmp_path)


@pytest.fixture
def better_auth_with(real_server: Callable[..., list[str]], tmp_path: Path) -> Callable[..., Any]:
    """better-auth; the test is skipped where it is not installed."""
    return partial(better_auth, real_server, tmp_path)


@pytest.fixture
def chromium() -> Callable[..., Any]:
    """A real browser; the test is skipped where there is none."""
    program()
    return opened
