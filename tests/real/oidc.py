"""oidc-provider, the certified one, held for the length of a test; and a browser that follows its pages.

``with oidc_provider(real_server, folder, **options) as provider``: on a free loopback port, with dynamic registration
and its management, client documents, PKCE, rotation with reuse detection, resource indicators, client credentials,
private_key_jwt, the device flow, DPoP (``nonces=True``: with nonces), revocation and pushed requests. ``apart=True``
puts what it protects on a port of its own. What the other options are stands in ``oidc/provider.js``.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from tests.ports import free_port
from tests.real.http_servers import RealServer, started

MOST_PAGES = 20
PAGE_SECONDS = 10.0


@dataclass
class Provider:
    """A provider that listens."""

    port: int
    path: str
    resource_port: int | None = None
    """Where what it protects is, if that is another port."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def issuer(self) -> str:
        """As the resource names it."""
        return self.origin + self.path

    @property
    def resource(self) -> str:
        """What it protects."""
        return f"http://127.0.0.1:{self.resource_port or self.port}/rs"

    def kill(self) -> None:
        """It dies, and forgets all."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def metadata(self) -> Any:
        """Its document, as it is."""
        return self._get(f"/.well-known/oauth-authorization-server{self.path}")

    def lever(self, name: str, **values: object) -> Any:
        """Move one of the levers; gives the facts."""
        return self._get(f"/-/{name}?{urlencode(values)}")

    def facts(self) -> Any:
        """What it counted."""
        return self.lever("facts")

    def ask(self, token: str, scheme: str = "Bearer", proof: str | None = None) -> tuple[int, Any, Any]:
        """A request to the resource: status, headers, body."""
        headers = {"Authorization": f"{scheme} {token}", **({"DPoP": proof} if proof else {})}
        status, got, body = request("GET", self.resource, headers)
        return status, got, json.loads(body) if status == 200 else None

    def _get(self, place: str) -> Any:
        status, _, body = request("GET", self.origin + place, {})
        assert status == 200, body
        return json.loads(body)


@contextmanager
def oidc_provider(
    real_server: RealServer, folder: Path, *, port: int | None = None, apart: bool = False, **options: Any
) -> Iterator[Provider]:
    """The provider, once it listens; it is gone on leaving. ``port`` starts it where another one was before."""
    port = free_port() if port is None else port
    if apart:
        options["resourcePort"] = free_port()
    command = [*real_server("oidc-provider"), str(port), json.dumps(options)]
    with started("oidc-provider", command, port, folder) as process:
        yield Provider(port, options.get("path", ""), options.get("resourcePort"), process)
    printed = (folder / "oidc-provider.out").read_text(errors="replace")
    assert not printed, printed


def request(
    method: str, url: str, headers: dict[str, str], body: str | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """One exchange over a connection of its own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PAGE_SECONDS)
    try:
        place = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, place, body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


class _Form(HTMLParser):
    """The first form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self.abort: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if tag == "form" and self.action is None:
            self.action = facts.get("action") or ""
        elif tag == "input" and facts.get("name"):
            self.fields[str(facts["name"])] = facts.get("value") or ""
        elif tag == "a" and "/abort" in (facts.get("href") or ""):
            self.abort = facts["href"]


@dataclass
class Browser:
    """A person at a browser with cookies, who signs in and says yes, or (``refuses``) no."""

    login: str = "somebody"
    refuses: bool = False
    cookies: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name → value and path."""

    def visit(self, url: str, until: str = "\0") -> str:
        """Follow pages and forms from here; gives the address of the redirect that begins with ``until``, which is not
        opened, or else the text of the last page, which has no form."""
        method, body = "GET", None
        for _ in range(MOST_PAGES):
            status, headers, page = self._open(method, url, body)
            if status in (302, 303):
                url = urljoin(url, headers["Location"])
                if url.startswith(until):
                    return url
                method, body = "GET", None
                continue
            form = _Form()
            form.feed(page)
            if form.action is None or status >= 400:
                return re.sub(r"(?s)<style.*?</style>|<[^>]+>", "", page).strip()
            if self.refuses and form.abort and "login" not in form.fields:
                method, url, body = "GET", urljoin(url, form.abort), None
                continue
            values = {
                **form.fields,
                **({"login": self.login, "password": "x"} if "login" in form.fields else {}),
            }
            method, url, body = "POST", urljoin(url, form.action), urlencode(values)
        raise AssertionError(f"more than {MOST_PAGES} pages, the last at {url}")

    def _open(self, method: str, url: str, body: str | None) -> tuple[int, http.client.HTTPMessage, str]:
        place = urlsplit(url).path
        sent = "; ".join(
            f"{name}={value}" for name, (value, path) in self.cookies.items() if place.startswith(path)
        )
        headers = {"Accept": "text/html", **({"Cookie": sent} if sent else {})}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        status, got, page = request(method, url, headers, body)
        for line in got.get_all("Set-Cookie") or ():
            for name, morsel in SimpleCookie(line).items():
                self.cookies.pop(name, None)
                if morsel.value:
                    self.cookies[name] = (morsel.value, morsel["path"] or "/")
        return status, got, page
