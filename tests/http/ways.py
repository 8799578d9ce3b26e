"""What tests of the ways to a server share: a host that goes such a way, proxies that carry streams, certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trustme

from moorings import AsyncHost, Bounds, HttpServer, StartError
from tests.faults.http_server import HttpFaults
from tests.net.kit import HttpProxy, Line, Request, join

__all__ = [
    "NAME", "SLACK", "Certificates", "CarryingProxy", "dead_end", "held", "mute", "start_failure", "text", "url_of",
    "within",
]  # fmt: skip

NAME = "mcp.invalid"
"""No name server knows it: only a proxy leads there."""
SLACK = 1.0
"""Seconds by which an upper limit may be passed on a busy machine."""
WITHIN = 60.0


def mute(era: str) -> dict[str, Any]:
    """A script of this era without a stream beside the calls: connections are those of the requests alone."""
    return {"era": era, "get": "status:405", "capabilities": {"tools": {}}}


def url_of(server: HttpFaults, *, host: str | None = None, port: int | None = None) -> str:
    """Its URL by another name, or through another port."""
    path = server.url.removeprefix(server.origin)
    scheme = "https" if server.tls else "http"
    return f"{scheme}://{host or '127.0.0.1'}:{port or server.port}{path}"


PATIENT_PROBE = 20.0
"""Seconds for a probe: that of a server which answers must not end because the machine stands still."""


def host_for(url: str, *, bounds: dict[str, Any] | None = None, **spec: Any) -> AsyncHost:
    spec["bounds"] = Bounds(**{"cooldown": 0.0, "probe": PATIENT_PROBE, **(bounds or {})})
    return AsyncHost({"s": HttpServer(url=url, **spec)}, state_dir=False)


@asynccontextmanager
async def held(url: str, server: HttpFaults, **spec: Any) -> AsyncIterator[AsyncHost]:
    """A host that is ready with the server on this way; the server saw nothing that a client must not send."""
    async with asyncio.timeout(WITHIN), host_for(url, **spec) as host:
        readiness = await host.wait_ready()
        assert readiness.all_ready, readiness
        era = "modern" if server.script["era"] == "modern" else "handshake"
        assert host.status()["s"].era == era
        yield host
    assert not server.violations, server.violations


async def start_failure(url: str, **spec: Any) -> StartError:
    """Why a server is not ready; all that a person may be shown of it holds none of the secrets."""
    secrets = spec.pop("secrets", ())
    async with asyncio.timeout(WITHIN), host_for(url, **spec) as host:
        readiness = await host.wait_ready()
        status = host.status()["s"]
        error = status.last_error
        # Not a subclass: it neither died, nor was there a command.
        assert type(error) is StartError, readiness
        shown = [str(error), repr(error), repr(readiness), repr(status), repr(host.server("s"))]
        assert not [secret for secret in secrets for text in shown if secret in text], shown
        return error


async def text(host: AsyncHost, tool: str, **options: Any) -> str:
    """What a tool answers."""
    return (await host.call(("s", tool), options.pop("arguments", {}), **options)).text


@contextmanager
def within(most: float, least: float = 0.0) -> Iterator[None]:
    """What is inside takes so many seconds."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert least <= took < most, f"it took {took:.2f} s, not {least} to {most}"


@contextmanager
def dead_end() -> Iterator[int]:
    """A port on which a dial is neither taken nor refused: its queue is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


class CarryingProxy(HttpProxy):
    """The proxy with a login, which also carries answers that come by and by."""

    async def forward(self, line: Line, request: Request) -> None:
        place, _, path = request.target.split("://", 1)[1].partition("/")
        # As older proxies speak it: the end of the connection is the end of the answer.
        head = f"{request.method} /{path} HTTP/1.0\r\n"
        head += "".join(
            f"{name}: {value}\r\n" for name, value in request.pairs if not name.startswith("Proxy-")
        )
        port = int(place.rpartition(":")[2])
        await join(line, "127.0.0.1", port, head.encode() + b"\r\n" + request.body)


class Certificates:
    """An authority of our own, and what it and a foreign one sign; files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.foreign = trustme.CA()
        self.ca_file = self._file("ca.pem", self.ca.cert_pem)

    def _file(self, name: str, *blobs: trustme.Blob) -> str:
        path = self.folder / name
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return str(path)

    def server(self, *names: str, clients: bool = False, **more: Any) -> ssl.SSLContext:
        """The TLS of a server with these names; with ``clients`` it wants certificates of its own authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names, **more).configure_cert(context)
        if clients:
            self.ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self, *, foreign: bool = False) -> str:
        """A file with a client's certificate and its key."""
        authority = self.foreign if foreign else self.ca
        cert = authority.issue_cert("me@example.com")
        return self._file(f"client-{foreign}.pem", cert.private_key_and_cert_chain_pem)

    def locked_client(self, password: str) -> tuple[str, str]:
        """Files with a client's certificate and with its key, which opens by the password."""
        from cryptography.hazmat.primitives import serialization

        cert = self.ca.issue_cert("me@example.com")
        key = serialization.load_pem_private_key(cert.private_key_pem.bytes(), None)
        locked = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
        return self._file("locked.pem", *cert.cert_chain_pems), self._file("locked.key", trustme.Blob(locked))
