"""better-auth with its OAuth provider, held for the length of a test: the second opinion beside oidc-provider.

``with better_auth(real_server, folder, **options) as provider``: on a free loopback port, its issuer with a path, its
database in memory. Registration, client documents, PKCE, rotation with the end of a reused family, resources by
RFC 8707, client credentials, DPoP without nonces, revocation and the device flow. ``Browser`` follows its pages. What
the options are stands in ``better_auth/server.js``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SERVERS
from tests.ports import free_port
from tests.real.http_servers import RealServer, started
from tests.real.oidc import Provider

NAME = "better-auth"


@contextmanager
def better_auth(
    real_server: RealServer, folder: Path, *, port: int | None = None, **options: Any
) -> Iterator[Provider]:
    """The provider, once it listens; it is gone on leaving. ``port`` starts it where another one was before."""
    if not SERVERS.exists() or NAME not in json.loads(SERVERS.read_text()):
        pytest.skip(f"{NAME} is not installed here: run `make setup`")
    port = free_port() if port is None else port
    command = [*real_server(NAME), str(port), json.dumps(options)]
    with started(NAME, command, port, folder) as process:
        yield Provider(port, options.get("path", "/api/auth"), process=process)
    printed = (folder / f"{NAME}.out").read_text(errors="replace")
    assert not printed, printed
