"""The leak gate: no test may leave anything behind, and nobody may complain while it runs.

After each test, at once and without waiting for anything but the last step of a thread, there must be no more asyncio
tasks, threads, child processes, open descriptors and temporary files than before it, and neither the event loop nor the
interpreter may have complained: in a hook, in the log or on stderr, where the children of the test write too.

A test that has to leave one kind of thing says so: `@pytest.mark.leak_ok("stderr", reason="...")`. The kinds are
listed in `KINDS`. What is not seen: threads that C code starts without Python, and, under `-s`, stderr.

Fixtures of a wider scope than a function are set up before the gate looks for the first time, so what they hold is
not a leak of the test.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pytest

from tests import procs

KINDS = (
    "task",
    "thread",
    "child",
    "descriptor",
    "noted",
    "handled",
    "tempfile",
    "unraisable",
    "log",
    "stderr",
)

# What asyncio and the interpreter print when something was dropped instead of ended. A plain traceback is not here:
# the servers of fault tests may die as loudly as they like.
COMPLAINTS = (
    "Task was destroyed",
    "never retrieved",
    "Event loop is closed",
    "ignored GeneratorExit",
    "was never awaited",
    "ResourceWarning",
    "Exception ignored",
    "Exception in callback",
    "Exception in thread",
    "Fatal Python error",
    "Fatal error on transport",
)

MARK = "MOORINGS_TEST_RUN"  # environment entry that every process started by this run inherits

LAST_STEP = 0.1
"""Seconds for the last step of threads."""
THAW = 100
"""Tests after which what was frozen is looked at again."""

_failed = pytest.StashKey[bool]()
_stderr = pytest.StashKey[str]()


# --- what is there now --------------------------------------------------------------------------------------------


def pending_tasks() -> list[asyncio.Task[Any]]:
    """Every task not yet done, in whatever loop and thread."""
    known = getattr(asyncio.tasks, "_scheduled_tasks", getattr(asyncio.tasks, "_all_tasks", None))
    if known is not None:
        for _ in range(100):
            try:
                return [task for task in known if not task.done()]
            except RuntimeError:  # another thread made one meanwhile
                continue
    # Where asyncio keeps no such set, only the collector knows them all. type() and not isinstance(): the latter
    # would run the __class__ property of proxies.
    tasks = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Task)]
    return [task for task in tasks if not task.done()]


def descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return found


def noted() -> set[str]:
    """What Moorings has noted for a forked child to close: once it is closed, its number is a stranger's."""
    found = set()
    for module, name in (("transport.descriptors", "_held"), ("store.file_lock", "_held")):
        found |= {f"{module} {number}" for number in getattr(sys.modules.get(f"moorings.{module}"), name, ())}
    watch = sys.modules.get("moorings.transport.watch")
    if watch is not None:
        readers = list(watch.watch._readers.values())
        found |= {f"transport.watch {number}" for _, number in readers} | {
            f"leases {len(watch.watch._leases)}"
        }
    stdio = sys.modules.get("moorings.transport.stdio")
    if stdio is not None:
        found |= {f"transport.stdio {transport!r}" for transport in list(stdio.StdioTransport.live)}
    return found - {"leases 0"}


def files_below(folder: str) -> set[str]:
    return {
        os.path.join(where, name) for where, folders, files in os.walk(folder) for name in (*folders, *files)
    }


class Children:
    """Our descendants: those we started, which we must reap, and orphans below them, which we adopt.

    An adopted orphan that is dead, or was killed and is about to be, is nobody's duty any more: it is reaped here.
    """

    def __init__(self) -> None:
        self.started: set[tuple[int, int]] = set()
        self.started_unread: set[int] = set()
        """Those whose birth could not be read; by number alone."""
        self.engines: set[int] = set()
        """Databases of the whole session, started when first needed; their own processes come and go as they like."""
        self._mark = b""
        self._undo: list[Callable[[], None]] = []

    def open(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        procs.adopt_orphans()
        import _posixsubprocess

        # A zombie does not tell whether we or somebody below us started it, so note what we start.
        self._note(subprocess, "_fork_exec")
        self._note(_posixsubprocess, "fork_exec")
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
            self._note(os, name)

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _note(self, module: Any, name: str) -> None:
        original = getattr(module, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            outcome = original(*args, **kwargs)
            pid = outcome[0] if isinstance(outcome, tuple) else outcome
            # With its birth: numbers come round, and an adopted orphan may bear that of a child of ours long gone.
            if pid:
                self._started_now(pid)
            return outcome

        setattr(module, name, noted)
        self._undo.append(lambda: setattr(module, name, original))

    def _started_now(self, pid: int) -> None:
        """Runs inside the call that started it, whose outcome it must never change: no descriptor may be left."""
        try:
            process = procs.read(pid)
        except OSError:
            self.started_unread.add(pid)
            return
        if process is not None:
            self.started.add(process.key)

    def present(self) -> dict[tuple[int, int], procs.Process]:
        me = os.getpid()
        processes = procs.table()
        of_engines = {each.pid for engine in self.engines for each in procs.descendants(engine, processes)}
        of_engines |= self.engines
        below = [each for each in procs.descendants(me, processes) if each.pid not in of_engines]
        known = {process.pid for process in below} | {me} | of_engines
        # Only where adoption does not work (an old kernel) can a marked process stand outside our tree.
        me_born = processes[me].born
        strays = [
            process
            for process in processes.values()
            if process.pid not in known and process.born >= me_born and procs.carries(process.pid, self._mark)
        ]
        found = {}
        for process in (*below, *strays):
            ours = process.key in self.started or process.pid in self.started_unread
            if not ours and procs.dying(process.pid):
                if process.parent == me:
                    reap(process.pid)
                continue
            found[process.key] = process
        return found


def reap(pid: int, options: int = os.WNOHANG) -> None:
    try:
        os.waitpid(pid, options)
    except ChildProcessError:
        return  # reaped meanwhile, or not ours


children = Children()


class Snapshot:
    def __init__(self) -> None:
        # Weak: the snapshot itself must not keep anything alive.
        self.tasks = weakref.WeakSet(pending_tasks())
        self.threads = weakref.WeakSet(threading.enumerate())
        self.idents = set(sys._current_frames())
        self.children = set(children.present())
        self.files = files_below(tempfile.gettempdir())
        self.descriptors = descriptors()
        self.noted = noted()
        self.handled = repr(sys.exc_info()[1])

    def leaks(self) -> Iterator[tuple[str, str]]:
        """What is there now and was not then, as (kind, description)."""
        # A thread that has said that it is over is still there for its last step, and so is what it awaits.
        until = time.monotonic() + LAST_STEP
        for thread in threading.enumerate():
            if thread not in self.threads and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        for task in pending_tasks():
            if task not in self.tasks:
                yield "task", repr(task)
        named = threading.enumerate()
        for thread in named:
            if thread not in self.threads:
                yield "thread", repr(thread)
        unnamed = set(sys._current_frames()) - self.idents - {thread.ident for thread in named}
        for ident in unnamed:
            yield "thread", f"<thread {ident}, started without `threading`>"
        for key, process in children.present().items():
            if key not in self.children:
                what = "ended but never reaped" if process.state == "Z" else "alive"
                line = procs.command_line(process.pid) or process.name
                yield "child", f"process {process.pid} ({what}): {line[:200]}"
                end(process.pid)
        for name in sorted(files_below(tempfile.gettempdir()) - self.files):
            yield "tempfile", name
        for number, target in descriptors().items():
            if self.descriptors.get(number) != target:
                yield "descriptor", f"{number} -> {target}"
        for each in noted() - self.noted:
            yield "noted", each
        # An interpreter that was interrupted where it never is may go on handling an error for ever, which then is the
        # context of all others.
        if (handled := repr(sys.exc_info()[1])) != self.handled:
            yield "handled", handled


def end(pid: int) -> None:
    """Kill what a test left, so that it does not disturb the tests after it."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    if procs.wait_gone(pid):
        reap(pid)


# --- who complains ------------------------------------------------------------------------------------------------


class Listener(logging.Handler):
    """Takes down what the interpreter and the event loop report while a test runs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[tuple[str, str]] = []

    def __enter__(self) -> Listener:
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook = self._unraisable
        threading.excepthook = self._thread_died
        logging.getLogger("asyncio").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("asyncio").removeHandler(self)
        sys.unraisablehook, threading.excepthook = self._hooks

    # Only text is kept: holding the exception or the object would bring the dead back to life.

    def _unraisable(self, args: Any) -> None:
        where = f"{args.err_msg or 'Exception ignored in'} {args.object!r}"
        self.heard.append(("unraisable", f"{where}\n{story(args.exc_value, args.exc_traceback)}"))

    def _thread_died(self, args: Any) -> None:
        name = args.thread.name if args.thread else "?"
        self.heard.append(
            ("unraisable", f"exception in thread {name}\n{story(args.exc_value, args.exc_traceback)}")
        )

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Executing ") and record.levelno == logging.WARNING:
            return  # debug mode's slow callbacks: a matter of speed
        if record.exc_info and record.exc_info[1]:
            text += "\n" + story(record.exc_info[1], record.exc_info[2])
        self.heard.append(("log", text))


def story(error: BaseException | None, trace: TracebackType | None) -> str:
    if error is None:
        return ""
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def stderr_so_far(item: pytest.Item) -> str:
    """All that reached fd 2 and sys.stderr since the test began, children's words included."""
    text = item.stash.get(_stderr, "")
    capture = item.config.pluginmanager.getplugin("capturemanager")
    if capture is not None and capture.is_globally_capturing():
        out, err = capture.read_global_capture()
        sys.stdout.write(out)  # reading consumes; the report wants them too
        sys.stderr.write(err)
        text += err
    return text


# --- the gate -----------------------------------------------------------------------------------------------------


def allowed_kinds(item: pytest.Item) -> set[str]:
    kinds = set()
    for marker in item.iter_markers("leak_ok"):
        if len(marker.args) != 1 or marker.args[0] not in KINDS or not marker.kwargs.get("reason"):
            raise pytest.UsageError(
                f"{item.nodeid}: write leak_ok(kind, reason=...), kind being one of: {', '.join(KINDS)}"
            )
        kinds.add(marker.args[0])
    return kinds


def collect_garbage() -> None:
    """Let everything that would complain later complain now. A finalizer can drop more, so up to three rounds."""
    for _ in range(3):
        if not gc.collect():
            return


_seen = 0


def freeze() -> None:
    """What outlives a test mostly lives to the end: frozen, it does not have to be walked after each of the others.

    Now and then all of it is looked at once more, as it may have been dropped since.
    """
    global _seen
    _seen += 1
    if _seen % THAW == 0:
        gc.unfreeze()
        collect_garbage()
    gc.freeze()


@pytest.fixture(autouse=True)
def leak_gate(request: pytest.FixtureRequest) -> Iterator[None]:
    item: pytest.Item = request.node
    allowed = allowed_kinds(item)
    with Listener() as listener:
        before = Snapshot()
        yield
        collect_garbage()
        found = [*before.leaks(), *listener.heard]
        freeze()
    text = stderr_so_far(item)
    found += [("stderr", line) for line in text.splitlines() if any(each in line for each in COMPLAINTS)]
    lines = [f"{kind}: {what}" for kind, what in found if kind not in allowed]
    if not lines:
        return
    if item.stash.get(_failed, False):
        # Its traceback holds on to what the test had open; one failure is enough.
        item.add_report_section("teardown", "left behind", "\n".join(lines))
        return
    pytest.fail("the test left something behind:\n" + "\n".join(lines), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "setup":
        item.stash[_failed], item.stash[_stderr] = False, ""
    item.stash[_failed] |= report.failed
    item.stash[_stderr] = report.capstderr  # of setup and call so far
    return report


def pytest_configure(config: pytest.Config) -> None:
    # pytest's own tmp_path folders outlive a test by design; they stay where they would be without us.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="moor-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ[MARK] = uuid.uuid4().hex
    children.open(os.environ[MARK])
    config.add_cleanup(children.close)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
