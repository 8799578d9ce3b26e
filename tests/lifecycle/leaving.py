"""A program that leaves in one of many ways while its servers run: `python leaving.py ROW JOURNAL_GOOD JOURNAL_BAD`.

Run by test_exit_matrix.py as a child. It prints `pid N` for each process that must be gone afterwards. One server is
good; the other ignores end of file and TERM and has two grandchildren, one of which left its group.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

import moorings
from moorings import MooringsError
from moorings.transport.watch import watch
from tests.faults.script import fault_server

QUICK = moorings.Bounds(stop_eof=0.3, stop_term=0.3, stop_kill=1.0)
SPECS = {
    "good": fault_server(bounds=QUICK),
    "bad": fault_server(ignore_eof=True, ignore_term=True, bounds=QUICK),
}
kept: list[object] = []
"""What a module global keeps alive until the interpreter takes its modules apart."""


def say(text: object) -> None:
    print(text, flush=True)


def show(host: moorings.Host) -> None:
    host.wait_ready(30)
    for status in host.status().values():
        say(f"pid {status.pid}")
    say(f"pid {watch.pid}")
    for session in (False, True):
        child = host.call("bad__fork_child", {"ignore_term": True, "seconds": 100, "new_session": session})
        say(f"pid {child.text}")


def started() -> moorings.Host:
    host = moorings.Host(SPECS, state_dir=False)
    host.start()
    show(host)
    return host


async def started_async() -> moorings.AsyncHost:
    host = moorings.AsyncHost(SPECS, state_dir=False)
    await host.start()
    await host.wait_ready(30)
    for status in host.status().values():
        say(f"pid {status.pid}")
    return host


def end_of_main() -> None:
    kept.append(started())


def exception() -> None:
    kept.append(started())
    raise ValueError("the program's own")


def sys_exit() -> None:
    kept.append(started())
    sys.exit(7)


def sys_exit_in_thread() -> None:
    kept.append(started())
    thread = threading.Thread(target=sys.exit, args=(9,))
    thread.start()
    thread.join()


def os_exit() -> None:
    kept.append(started())
    os._exit(5)


def by_signal(number: int) -> None:
    kept.append(started())
    os.kill(os.getpid(), number)
    threading.Event().wait(30)


def interrupt_in_call() -> None:
    host = started()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    host.call("good__never", timeout=30)


def interrupt_in_start() -> None:
    host = moorings.Host({"silent": fault_server(on_initialize="silent", bounds=QUICK)}, state_dir=False)
    host.start()
    say(f"pid {next(s.pid for s in iter(lambda: host.status()['silent'], None) if s.pid)}")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    host.wait_ready(30)


def interrupt_in_close() -> None:
    host = started()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    host.close()


def collected() -> None:
    host = started()
    del host
    gc.collect()


def made_in_thread() -> None:
    thread = threading.Thread(target=lambda: kept.append(started()))
    thread.start()
    thread.join()


def two_hosts() -> None:
    kept.extend((started(), started()))


def async_returned() -> None:
    kept.append(asyncio.run(started_async()))


def async_loop_left_open() -> None:
    loop = asyncio.new_event_loop()
    kept.extend((loop, loop.run_until_complete(started_async())))


def async_loop_closed() -> None:
    loop = asyncio.new_event_loop()
    kept.append(loop.run_until_complete(started_async()))
    loop.close()


def async_collected() -> None:
    async def main() -> None:
        host = await started_async()
        pids = [status.pid for status in host.status().values()]
        del host
        gc.collect()
        for pid in pids:
            from tests.faults.procs import gone

            assert pid is not None
            assert await gone(pid, 10)

    asyncio.run(main())


def running_loop() -> None:
    """As in a notebook: the blocking host is used inside a running loop."""

    async def main() -> None:
        kept.append(started())

    asyncio.run(main())


def uvloop_loop() -> None:
    import uvloop

    async def main() -> None:
        kept.append(await started_async())

    uvloop.run(main())


def fork_child_first() -> None:
    host = started()
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    os.waitpid(pid, 0)
    say(host.call("good__echo", {"text": "still here"}).text)
    kept.append(host)


def fork_parent_first() -> None:
    host = started()
    kept.append(host)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)  # ends with the parent
        os._exit(0)
    os.close(read)
    say(f"pid {pid}")


def fork_and_killed() -> None:
    """A forked child lives on while the host is killed: the watch must not wait for the child."""
    host = started()
    kept.append(host)
    pid = os.fork()
    if pid == 0:
        # It must not hold the test up, which reads until the last writer is gone.
        os.close(1)
        os.close(2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        signal.pause()
    say(f"child {pid}")
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(number: int) -> None:
    host = moorings.Host({"own": fault_server(bounds=QUICK)}, state_dir=False)
    host.start()
    host.wait_ready(30)
    say(f"pid {host.status()['own'].pid}")


def multiprocess(method: str) -> None:
    host = started()
    context = multiprocessing.get_context(method)
    process = context.Process(target=in_child, args=(1,))
    process.start()
    process.join()
    say(f"exit code {process.exitcode}")
    say(host.call("good__echo", {"text": "still here"}).text)
    kept.append(host)


class CallsWhenDeleted:
    def __init__(self, host: moorings.Host) -> None:
        self.host = host

    def __del__(self) -> None:
        try:
            self.host.call("good__echo", {"text": "late"}, timeout=2)
        except MooringsError:
            pass


def call_from_del() -> None:
    kept.append(CallsWhenDeleted(started()))


def call_from_atexit() -> None:
    host = started()

    def late() -> None:
        say(host.call("good__echo", {"text": "late"}, timeout=5).text)

    atexit.register(late)


def call_from_daemon_thread() -> None:
    host = started()
    kept.append(host)

    def work() -> None:
        while True:
            try:
                host.call("good__echo", {"text": "again"}, timeout=5)
            except moorings.MooringsError:
                return

    threading.Thread(target=work, daemon=True).start()


def under_pytest() -> None:
    """A test that fails with its host running ends the whole run."""
    import pytest

    Path("test_it.py").write_text(
        "from tests.lifecycle.leaving import kept, started\n"
        "def test_it():\n    kept.append(started())\n    assert False\n"
        "def test_never():\n    pass\n"
    )
    sys.exit(
        pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "test_it.py"])
    )


ROWS = {
    "pytest -x": under_pytest,
    "end of main": end_of_main,
    "exception": exception,
    "sys.exit": sys_exit,
    "sys.exit in a thread": sys_exit_in_thread,
    "os._exit": os_exit,
    "SIGTERM": lambda: by_signal(signal.SIGTERM),
    "SIGHUP": lambda: by_signal(signal.SIGHUP),
    "SIGKILL": lambda: by_signal(signal.SIGKILL),
    "SIGINT in a call": interrupt_in_call,
    "SIGINT in a start": interrupt_in_start,
    "SIGINT in close": interrupt_in_close,
    "collected": collected,
    "made in a thread": made_in_thread,
    "two hosts": two_hosts,
    "async, run returned": async_returned,
    "async, loop left open": async_loop_left_open,
    "async, loop closed": async_loop_closed,
    "async, collected": async_collected,
    "in a running loop": running_loop,
    "uvloop": uvloop_loop,
    "fork, child first": fork_child_first,
    "fork, parent first": fork_parent_first,
    "fork, then SIGKILL": fork_and_killed,
    "multiprocessing fork": lambda: multiprocess("fork"),
    "multiprocessing spawn": lambda: multiprocess("spawn"),
    "call from __del__": call_from_del,
    "call from atexit": call_from_atexit,
    "call from a daemon thread": call_from_daemon_thread,
}

if __name__ == "__main__":
    ROWS[sys.argv[1]]()
