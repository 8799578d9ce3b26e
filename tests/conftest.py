"""What every test gets: the leak gate, async tests, and the real servers by name."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's matter, and not what is tested.
settings.register_profile("moorings", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("moorings")

pytest_plugins = ("tests.leakgate", "tests.secretgate", "tests.asynctests", "tests.engines")

# Under `nohup`, or as a job in the background that ignores them, programs that the tests start would ignore them too.
for name, usual in {
    "SIGHUP": signal.SIG_DFL,
    "SIGQUIT": signal.SIG_DFL,
    "SIGINT": signal.default_int_handler,
}.items():
    signum = getattr(signal, name, None)
    if signum is not None and signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, usual)

SERVERS = Path(__file__).resolve().parent.parent / ".env" / "servers.json"


@pytest.fixture(scope="session")
def real_server() -> Callable[..., list[str]]:
    """`real_server("filesystem", folder)` is the command line of a real third-party server."""

    def command(name: str, *append: object) -> list[str]:
        index = json.loads(SERVERS.read_text()) if SERVERS.exists() else {}
        if name not in index:
            pytest.fail(f"the real server {name!r} is not installed here; run `make setup`", pytrace=False)
        return [*index[name]["command"], *(str(each) for each in append)]

    return command


# What `make test-newest` runs besides the tests marked `smoke`: the rooms where versions of Python differ.
SMOKE = ("wire", "server", "ownership")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(str(item.path)).parent.name in SMOKE and item.get_closest_marker("soak") is None:
            item.add_marker(pytest.mark.smoke)
