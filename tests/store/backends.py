"""The four stores for the tests of what all promise, in this process and in others.

A ``Place`` is where entries of one test lie; each ``open`` is one more store on it, as another process would have. A
``Worker`` is another process that does as told: ``lock``, ``save``, ``load``, ``remove``, ``watch``, ``release``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from moorings.store import CredentialStore, Lease

KINDS = ("files", "sealed", "keyring", "redis", "postgres")
ROOT = Path(__file__).resolve().parents[2]


def open_store(kind: str, where: dict[str, Any]) -> CredentialStore:
    """A store, from a description that can cross to another process."""
    if kind == "files":
        from moorings.store.files import FileStore

        return FileStore(where["folder"])
    if kind in ("sealed", "keyring"):
        from tests.store.dir_keyring import DirKeyring

        backend = DirKeyring(Path(where["keyring"]))
        backend.kill_at_write = where.get("kill_at_write", 0)
        if kind == "sealed":
            from moorings.store.files import FileStore
            from moorings.store.sealing import KeyringSealing

            return FileStore(where["folder"], sealing=KeyringSealing(backend=backend))
        from moorings.store.keyring_store import KeyringStore

        return KeyringStore(where["folder"], backend=backend)
    if kind == "redis":
        from moorings.store.redis_store import RedisStore

        return RedisStore(where["url"], prefix=where["prefix"], lease=where["lease"])
    from moorings.store.postgres_store import PostgresStore

    return PostgresStore(where["url"], table=where["table"])


class Place:
    """Where the entries of one test lie."""

    def __init__(self, kind: str, where: dict[str, Any]) -> None:
        self.kind = kind
        self.where = where

    @property
    def in_files(self) -> bool:
        """Whether its locks are those of the operating system."""
        return self.kind in ("files", "sealed", "keyring")

    @contextlib.asynccontextmanager
    async def open(self, **more: Any) -> AsyncIterator[Any]:
        store = open_store(self.kind, {**self.where, **more})
        try:
            yield store
        finally:
            await store.aclose()

    def worker(self, **more: Any) -> Worker:
        return Worker(self.kind, {**self.where, **more})


class Worker:
    """Another process with a store of its own. Use with ``with``: it is killed at the end, if it is not dead."""

    def __init__(self, kind: str, where: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.backends", kind, json.dumps(where)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()

    def tell(self, *words: str) -> None:
        """Give an order; its answer is read by ``answer``."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """The next line it says; empty if it is dead."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, *words: str) -> str:
        self.tell(*words)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP, seen to have happened."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def locked(store: CredentialStore, name: str = "k", within: float = 5.0) -> AsyncIterator[Lease]:
    """The lock of a store, with seconds in the place of a point in time."""
    async with store.lock(name, asyncio.get_running_loop().time() + within) as lease:
        yield lease


async def put(store: CredentialStore, key: str, value: bytes, **about: str) -> None:
    async with locked(store, key) as lease:
        await store.save(key, value, lease, about=about)


async def drop(store: CredentialStore, key: str) -> None:
    async with locked(store, key) as lease:
        await store.remove(key, lease)


async def work(store: CredentialStore) -> None:
    """The other side of ``Worker``."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    stack = contextlib.AsyncExitStack()
    lease: Any = None

    def say(text: str) -> None:
        print(text, flush=True)

    while line := await reader.readline():
        order, *words = json.loads(line)
        try:
            if order == "lock":
                lease = await stack.enter_async_context(locked(store, words[0], float(words[1])))
                say(f"locked {lease.fence}")
            elif order == "release":
                await stack.aclose()
                say("released")
            elif order == "save":
                await store.save(words[0], words[1].encode(), lease, about={"by": "worker"})
                say("saved")
            elif order == "remove":
                await store.remove(words[0], lease)
                say("removed")
            elif order == "load":
                found = await store.load(words[0])
                say("none" if found is None else found.decode())
            elif order == "watch":
                await store.watch(lambda key: say(f"changed {key}"))
                say("watching")
            elif order == "count":
                for _ in range(int(words[1])):
                    async with locked(store, words[0], 60.0) as mine:
                        now = int(((await store.load(words[0])) or b"0").split(b" ")[0])
                        await store.save(words[0], b"%d %b" % (now + 1, b"x" * 3000), mine)
                say("counted")
            elif order == "write":
                for number in range(int(words[1])):
                    await put(store, words[0], f"{words[0]} {number}".encode())
                say("written")
        except Exception as fault:
            say(f"{type(fault).__name__}: {fault}")
    await stack.aclose()
    await store.aclose()
    transport.close()


if __name__ == "__main__":
    asyncio.run(work(open_store(sys.argv[1], json.loads(sys.argv[2]))))
