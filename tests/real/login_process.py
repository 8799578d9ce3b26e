"""A process that logs in: ``login_process.py URL FOLDER SECONDS``.

What happens to it stands on stdout, in lines of JSON: ``{"shown": URL, "redirect": URI}``, ``{"waits": who is at a
login}``, at the end ``{"client": …, "fresh": …}`` or ``{"failed": reason}``. SIGTERM ends it as it ends any program.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

from moorings import AuthSettings, HttpServer, LoginFailed, LoginPrompt, login


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def show(prompt: LoginPrompt) -> None:
    say(shown=prompt.url, redirect=prompt.redirect_uri)


async def main(url: str, folder: str, seconds: str) -> int:
    here = asyncio.current_task()
    assert here is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, here.cancel)
    try:
        got = await login(
            HttpServer(url=url, auth=AuthSettings(timeout=float(seconds))),
            name="notes",
            on_login_url=show,
            state_dir=folder,
            on_waiting=lambda who: say(waits=who),
        )
    except LoginFailed as error:
        say(failed=error.reason)
        return 1
    say(client=got.client_id, fresh=got.fresh)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
