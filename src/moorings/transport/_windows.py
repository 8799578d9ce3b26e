"""Child processes on Windows: a Job Object does what session and group do elsewhere.

The process is made suspended, put into a job of its own and only then let go, so that no child of it can be outside
the job. The job ends with the last handle to it, which is ours: if the host is killed, all of the server goes too.
Source: Win32 ``JOBOBJECT_BASIC_LIMIT_INFORMATION``, ``GenerateConsoleCtrlEvent``.

All that needs Windows is in ``Kernel``; the rest are decisions, tested on other systems with calls put in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Syscalls", "WindowsChild", "batch_line"]

CREATE_SUSPENDED = 0x00000004
CREATE_NEW_PROCESS_GROUP = 0x00000200
CREATE_NO_WINDOW = 0x08000000

KILLED = 0xC000013A
"""Exit code of what we end ourselves: STATUS_CONTROL_C_EXIT, as a console gives it."""
PIPE_SIZE = 64 * 1024

_PLAIN = re.compile(r"[A-Za-z0-9#$*+\-./:?@\\_]+")
_BEFORE_QUOTE = re.compile(r'(\\*)"')


class Syscalls(Protocol):
    """The system calls on which decisions rest. Handles are numbers; each call that fails raises OSError."""

    def shell(self) -> str:
        """Full path of ``cmd.exe``."""

    def has_console(self) -> bool:
        """Whether this process has a console, which its children can share."""

    def pipe(self) -> tuple[int, int]:
        """A pipe: descriptors to read and to write, inherited by nobody."""

    def create_job(self) -> int:
        """A job that ends all its processes when its last handle is closed."""

    def spawn(
        self,
        command: Sequence[str] | str,
        ends: tuple[int, int, int],
        environment: Mapping[str, str],
        cwd: str | None,
        flags: int,
    ) -> tuple[int, int, Any]:
        """Start a process with these descriptors as stdin, stdout, stderr: its pid, its handle, its keeper."""

    def assign(self, job: int, process: int) -> None: ...

    def resume(self, process: int) -> None: ...

    def break_group(self, pid: int) -> None:
        """CTRL_BREAK to the console group that ``pid`` leads."""

    def terminate_process(self, process: int, code: int) -> None: ...

    def terminate_job(self, job: int, code: int) -> None: ...

    def job_pids(self, job: int) -> list[int]:
        """Living processes of the job."""

    def create_event(self) -> int: ...

    def set_event(self, event: int) -> None: ...

    def wait(self, process: int, event: int) -> bool:
        """Block until the process ends (True) or the event is set (False)."""

    def exit_code(self, process: int) -> int | None:
        """None while it runs."""

    def close(self, handle: int) -> None: ...

    def release(self, keeper: Any, code: int) -> None:
        """Let go of the process for good; its pid may be given to others from here on."""


def batch_line(argv: Sequence[str], shell: str) -> str:
    """The command line for a batch file (``npx.cmd``), which ``cmd.exe`` (``shell``) reads in its own way.

    Each word is quoted where it holds anything special, quotes are doubled, and ``%`` is kept from naming a variable,
    so that no argument becomes a command. What cannot be handed over whole is refused.

    Raises:
        OSError: an argument holds a line break or a NUL.
    """
    words = []
    for number, word in enumerate(argv):
        if any(sign in word for sign in "\r\n\0"):
            raise OSError(errno.EINVAL, "an argument with a line break cannot be given to a batch file")
        if number == 0 or not _PLAIN.fullmatch(word) or word.endswith("\\"):
            # Backslashes before a quote are doubled for the program that the file starts.
            word = _BEFORE_QUOTE.sub(r'\1\1""', word).replace("%", "%%cd:~,%")
            trailing = len(word) - len(word.rstrip("\\"))
            word = f'"{word}{chr(92) * trailing}"'
        words.append(word)
    return f'"{shell}" /e:ON /v:OFF /d /c "{" ".join(words)}"'


class WindowsChild:
    """A process in a job of its own. Made by ``spawn``; ended, reaped and closed by its transport."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: str | None,
        *,
        calls: Syscalls | None = None,
        close_fd: Callable[[int], None] = os.close,
    ) -> None:
        self._calls = calls = calls if calls is not None else _system()
        batch = argv[0].lower().endswith((".cmd", ".bat"))
        command: Sequence[str] | str = batch_line(argv, calls.shell()) if batch else list(argv)
        # Only a console that we share carries CTRL_BREAK; without one the child must not open a window.
        self._console = calls.has_console()
        flags = CREATE_SUSPENDED | CREATE_NEW_PROCESS_GROUP | (0 if self._console else CREATE_NO_WINDOW)
        ends: list[int] = []
        handles: list[int] = []
        process = -1
        try:
            for _ in range(3):
                ends.extend(calls.pipe())
            stdin_read, stdin_write, stdout_read, stdout_write, stderr_read, stderr_write = ends
            handles.append(calls.create_job())
            handles.append(calls.create_event())
            self._job, self._event = handles
            pid, process, self._keeper = calls.spawn(
                command, (stdin_read, stdout_write, stderr_write), environment, cwd, flags
            )
            calls.assign(self._job, process)
            calls.resume(process)
        except BaseException as problem:
            if process != -1:
                # Suspended, and perhaps in no job: it has done nothing yet, and never will.
                with contextlib.suppress(OSError):
                    calls.terminate_process(process, KILLED)
                calls.release(self._keeper, KILLED)
            for handle in handles:
                calls.close(handle)
            for end in ends:
                close_fd(end)
            if isinstance(problem, ValueError):
                raise OSError(errno.EINVAL, str(problem)) from None
            raise
        for end in (stdin_read, stdout_write, stderr_write):
            close_fd(end)
        self.pid = pid
        self.stdin_fd, self.stdout_fd, self.stderr_fd = stdin_write, stdout_read, stderr_read
        self._process = process
        self._thread: threading.Thread | None = None
        self._on_exit: Callable[[int], None] | None = None
        self._exit_code: int | None = None
        self._reaped = False

    def watch(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[int], None]) -> None:
        self._on_exit = on_exit
        self._thread = threading.Thread(
            target=self._wait, args=(loop,), name=f"moorings-wait-{self.pid}", daemon=True
        )
        self._thread.start()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._calls.wait(self._process, self._event):
            return
        code = self._calls.exit_code(self._process)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._report, 0 if code is None else code)

    def _report(self, code: int) -> None:
        self._join()
        if self._exit_code is None:
            self._exit_code = code
            if self._on_exit is not None:
                self._on_exit(code)

    def terminate(self) -> None:
        # Only while the leader lives is its number surely that of its console group: to a number that is none,
        # the event may go to everybody on the console, us included (F3.7).
        if self._reaped or not self._console or self._calls.exit_code(self._process) is not None:
            return
        with contextlib.suppress(OSError):
            self._calls.break_group(self.pid)

    def kill(self) -> None:
        if self._job != -1:
            with contextlib.suppress(OSError):
                self._calls.terminate_job(self._job, KILLED)

    def others(self) -> list[int]:
        if self._job == -1:
            return []
        try:
            return [pid for pid in self._calls.job_pids(self._job) if pid != self.pid]
        except OSError:
            return []

    def reap(self) -> int | None:
        if self._reaped:
            return self._exit_code
        code = self._calls.exit_code(self._process)
        if code is None:
            return self._exit_code
        if self._exit_code is None:
            self._exit_code = code
        self.close()
        self._reaped = True
        self._calls.release(self._keeper, self._exit_code)
        return self._exit_code

    start: int | None = None
    """Not needed here: the job names its processes for good, and ends them with the host."""

    def strays(self) -> list[int]:
        """Nobody leaves a job."""
        return []

    def exited(self) -> bool:
        return self._exit_code is not None

    def disown_after_fork(self) -> None:
        """There is no fork here."""

    def close(self) -> None:
        if self._event != -1:
            self._calls.set_event(self._event)
            self._join()
            self._calls.close(self._event)
            self._event = -1
        if self._job != -1:
            # The last handle to the job: whoever is still in it ends with this (F3.10).
            self._calls.close(self._job)
            self._job = -1

    def _join(self) -> None:
        """The thread waits for two things, of which one has happened: it is over, or at its last step."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None


def _system() -> Syscalls:
    if sys.platform == "win32":
        return Kernel()
    raise OSError(errno.ENOSYS, "there are no Job Objects on this system")


if sys.platform == "win32":
    import _winapi
    import ctypes
    import msvcrt
    import signal
    from ctypes import wintypes

    _KILL_ON_JOB_CLOSE = 0x00002000
    _BASIC_PROCESS_ID_LIST = 3
    _EXTENDED_LIMIT_INFORMATION = 9
    _MORE_DATA = 234
    _INFINITE = 0xFFFFFFFF
    _STILL_RUNS = 258  # WAIT_TIMEOUT

    class _BasicLimits(ctypes.Structure):
        _fields_ = (
            ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
            ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        )

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = (
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_ulonglong * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        )

    def _load() -> tuple[ctypes.WinDLL, ctypes.WinDLL]:
        """kernel32 and ntdll of our own, so that nobody else's idea of their types is in the way."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        native = ctypes.WinDLL("ntdll")
        handle, flag, number = wintypes.HANDLE, wintypes.BOOL, wintypes.DWORD
        kernel.CreateJobObjectW.restype = handle
        kernel.CreateJobObjectW.argtypes = (ctypes.c_void_p, wintypes.LPCWSTR)
        kernel.SetInformationJobObject.restype = flag
        kernel.SetInformationJobObject.argtypes = (handle, ctypes.c_int, ctypes.c_void_p, number)
        kernel.QueryInformationJobObject.restype = flag
        kernel.QueryInformationJobObject.argtypes = (
            handle,
            ctypes.c_int,
            ctypes.c_void_p,
            number,
            ctypes.c_void_p,
        )
        kernel.AssignProcessToJobObject.restype = flag
        kernel.AssignProcessToJobObject.argtypes = (handle, handle)
        kernel.TerminateJobObject.restype = flag
        kernel.TerminateJobObject.argtypes = (handle, wintypes.UINT)
        kernel.CreateEventW.restype = handle
        kernel.CreateEventW.argtypes = (ctypes.c_void_p, flag, flag, wintypes.LPCWSTR)
        kernel.SetEvent.restype = flag
        kernel.SetEvent.argtypes = (handle,)
        kernel.GetConsoleWindow.restype = handle
        kernel.GetConsoleWindow.argtypes = ()
        native.NtResumeProcess.restype = ctypes.c_long
        native.NtResumeProcess.argtypes = (handle,)
        return kernel, native

    class Kernel:
        """The real calls."""

        def __init__(self) -> None:
            self._kernel, self._native = _load()

        def _check(self, done: Any) -> Any:
            if not done:
                raise ctypes.WinError(ctypes.get_last_error())
            return done

        def shell(self) -> str:
            return os.environ.get("SYSTEMROOT", r"C:\Windows") + r"\System32\cmd.exe"

        def has_console(self) -> bool:
            return bool(self._kernel.GetConsoleWindow())

        def pipe(self) -> tuple[int, int]:
            read, write = _winapi.CreatePipe(None, PIPE_SIZE)
            try:
                read_fd = msvcrt.open_osfhandle(read, os.O_RDONLY | os.O_BINARY)
            except OSError:
                _winapi.CloseHandle(read)
                _winapi.CloseHandle(write)
                raise
            try:
                return read_fd, msvcrt.open_osfhandle(write, os.O_BINARY)
            except OSError:
                os.close(read_fd)
                _winapi.CloseHandle(write)
                raise

        def create_job(self) -> int:
            job = int(self._check(self._kernel.CreateJobObjectW(None, None)))
            limits = _ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
            try:
                self._check(
                    self._kernel.SetInformationJobObject(
                        job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
                    )
                )
            except OSError:
                self.close(job)
                raise
            return job

        def spawn(
            self,
            command: Sequence[str] | str,
            ends: tuple[int, int, int],
            environment: Mapping[str, str],
            cwd: str | None,
            flags: int,
        ) -> tuple[int, int, Any]:
            popen = subprocess.Popen(
                command,
                stdin=ends[0],
                stdout=ends[1],
                stderr=ends[2],
                env=dict(environment),
                cwd=cwd,
                creationflags=flags,
            )
            return popen.pid, int(popen._handle), popen  # type: ignore[attr-defined]

        def assign(self, job: int, process: int) -> None:
            self._check(self._kernel.AssignProcessToJobObject(job, process))

        def resume(self, process: int) -> None:
            status = self._native.NtResumeProcess(process)
            if status < 0:
                raise OSError(errno.EIO, f"NtResumeProcess failed with status {status & 0xFFFFFFFF:#x}")

        def break_group(self, pid: int) -> None:
            os.kill(pid, signal.CTRL_BREAK_EVENT)

        def terminate_process(self, process: int, code: int) -> None:
            _winapi.TerminateProcess(process, code)

        def terminate_job(self, job: int, code: int) -> None:
            self._check(self._kernel.TerminateJobObject(job, code))

        def job_pids(self, job: int) -> list[int]:
            room = 64
            while True:

                class _Pids(ctypes.Structure):
                    _fields_ = (
                        ("NumberOfAssignedProcesses", wintypes.DWORD),
                        ("NumberOfProcessIdsInList", wintypes.DWORD),
                        ("ProcessIdList", ctypes.c_size_t * room),
                    )

                found = _Pids()
                if self._kernel.QueryInformationJobObject(
                    job, _BASIC_PROCESS_ID_LIST, ctypes.byref(found), ctypes.sizeof(found), None
                ):
                    return [int(pid) for pid in found.ProcessIdList[: found.NumberOfProcessIdsInList]]
                if ctypes.get_last_error() != _MORE_DATA:
                    raise ctypes.WinError(ctypes.get_last_error())
                room *= 4

        def create_event(self) -> int:
            return int(self._check(self._kernel.CreateEventW(None, True, False, None)))

        def set_event(self, event: int) -> None:
            self._check(self._kernel.SetEvent(event))

        def wait(self, process: int, event: int) -> bool:
            return _winapi.WaitForMultipleObjects([process, event], False, _INFINITE) == 0

        def exit_code(self, process: int) -> int | None:
            if _winapi.WaitForSingleObject(process, 0) == _STILL_RUNS:
                return None
            return _winapi.GetExitCodeProcess(process)

        def close(self, handle: int) -> None:
            _winapi.CloseHandle(handle)

        def release(self, keeper: Any, code: int) -> None:
            # Popen must not believe that its process still runs; its handle closes with it.
            keeper.returncode = code
            keeper._handle.Close()
