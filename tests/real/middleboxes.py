"""nginx and mitmproxy in front of a port of this machine, each held for the length of a test.

nginx is Debian's (``apt-get install nginx-light``; the CI installs it): it runs unprivileged, in one process, with a
folder of its own. mitmproxy has an environment of its own, like the servers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real.http_servers import started

RealServer = Callable[..., list[str]]

ADDON = Path(__file__).with_name("mitm_addon.py")

NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
  log_format told '$request_method $status';
  access_log {folder}/requests.log told;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port}{ssl};
    {tls}
    location / {{
      proxy_pass http://127.0.0.1:{target};
      proxy_set_header Host $http_host;
      proxy_connect_timeout 2s;
      proxy_read_timeout {read_timeout}s;
      {buffering}
      {more}
    }}
  }}
}}
"""

UNBUFFERED = 'proxy_buffering off; proxy_http_version 1.1; proxy_set_header Connection "";'


@dataclass
class Box:
    """A middle box that listens."""

    port: int
    process: subprocess.Popen[bytes]
    output: Path
    """What it prints."""
    log: Path | None = None
    """A line for each request that was answered (nginx)."""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def nginx(
    target: int,
    folder: Path,
    *,
    buffering: bool = True,
    read_timeout: int = 60,
    more: str = "",
    tls: str = "",
) -> Iterator[Box]:
    """nginx in front of 127.0.0.1:``target``; it answers 502 while nobody listens there, 504 after ``read_timeout`` s.

    ``buffering``: as it comes out of the box. It speaks HTTP/1.0 to the server, and keeps an answer of unknown length,
    which SSE is, until it is whole or its buffers are full. ``more``: further directives of the location.
    ``tls``: those of TLS, which it speaks then.
    """
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed here, and could not be (apt-get install nginx-light)")
    home = folder / "nginx"
    home.mkdir(exist_ok=True)
    port = free_port()
    config = home / "nginx.conf"
    config.write_text(
        NGINX.format(
            folder=home,
            port=port,
            target=target,
            buffering="" if buffering else UNBUFFERED,
            read_timeout=read_timeout,
            more=more,
            ssl=" ssl" if tls else "",
            tls=tls,
        )
    )
    command = [program, "-p", str(home), "-c", str(config), "-e", "stderr"]
    with started("nginx", command, port, folder) as process:
        yield Box(port, process, folder / "nginx.out", home / "requests.log")


@contextmanager
def mitmproxy(
    target: int,
    real_server: RealServer,
    folder: Path,
    script: Mapping[str, str | Sequence[str]] | None = None,
) -> Iterator[Box]:
    """mitmproxy in front of 127.0.0.1:``target``, doing to requests what the script says (see ``mitm_addon.py``)."""
    port = free_port()
    command = real_server(
        *("mitmproxy", "--mode", f"reverse:http://127.0.0.1:{target}", "--quiet"),
        *("--listen-host", "127.0.0.1", "--listen-port", port, "--set", f"confdir={folder / 'mitm'}"),
        *("--set", "keep_host_header=true", "--set", "connection_strategy=lazy", "--scripts", ADDON),
    )
    env = {"MITM_SCRIPT": json.dumps(dict(script or {}))}
    with started("mitmproxy", command, port, folder, env=env) as process:
        yield Box(port, process, folder / "mitmproxy.out")
