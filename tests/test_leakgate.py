"""The leak gate catches each kind of leak, lets clean tests pass, and one test's leak does not fail the next one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parent.parent

PREAMBLE = """
import _thread, asyncio, gc, os, signal, subprocess, sys, tempfile, threading
import pytest
from hypothesis import given, settings, strategies
from tests import procs

KEPT = []  # what a leaking test holds on to, so that the collector cannot tidy up behind it

def python(code, **options):
    return subprocess.Popen([sys.executable, "-c", code], **options)
"""


class Case(NamedTuple):
    name: str
    source: str
    said: str  # what the gate has to say; empty: the test has to pass


LEAKS = [
    Case(
        "task_in_async_test",
        """
        async def test_it():
            KEPT.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))
        """,
        "these tasks did not:\n<Task pending",
    ),
    Case(
        "task_in_a_loop_of_its_own",
        """
        def test_it():
            loop = asyncio.new_event_loop()
            async def start():
                KEPT.append(loop.create_task(asyncio.Event().wait()))
            loop.run_until_complete(start())
            KEPT.append(loop)
        """,
        "task: <Task pending",
    ),
    Case(
        "noted_for_a_fork",
        """
        def test_it():
            from moorings.transport import descriptors
            for fd in descriptors.pipe():
                os.close(fd)
        """,
        "noted: transport.descriptors ",
    ),
    Case(
        "error_that_is_handled_for_ever",
        """
        def test_it():
            def work():
                try:
                    os.close(-1)
                except OSError:
                    pass

            def trace(frame, event, _):
                frame.f_trace_opcodes = True
                # Where the handler begins: nothing can strike there but a tracer.
                if event == "opcode" and frame.f_code is work.__code__ and seen:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                if event == "exception":
                    seen.append(1)
                return trace

            seen = []
            sys.settrace(trace)
            try:
                work()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
        """,
        "handled: OSError(",
    ),
    Case(
        "thread",
        """
        def test_it():
            threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()
        """,
        "thread: <Thread(forgotten",
    ),
    Case(
        "thread_without_threading",
        """
        def test_it():
            runs = threading.Event()
            KEPT.append(threading.Event())
            _thread.start_new_thread(lambda: (runs.set(), KEPT[-1].wait()), ())
            runs.wait()
        """,
        "thread: <thread ",
    ),
    Case(
        "thread_that_died",
        """
        def test_it():
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        """,
        "ZeroDivisionError",
    ),
    Case(
        "child_alive",
        """
        def test_it():
            KEPT.append(python("import signal; signal.pause()"))
        """,
        "(alive)",
    ),
    Case(
        "child_not_reaped",
        """
        def test_it():
            pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        """,
        "(ended but never reaped)",
    ),
    Case(
        "orphan_with_an_empty_environment",
        """
        def test_it():
            inner = "import signal; print(1, flush=True); signal.pause()"
            outer = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', %r]," \\
                " env={}, start_new_session=True, stdout=1); sys.stdout.flush()" % inner
            child = python(outer, stdout=subprocess.PIPE)
            child.stdout.readline()
            child.wait()
            child.stdout.close()
        """,
        "(alive)",
    ),
    Case(
        "descriptor",
        """
        def test_it():
            os.pipe()
        """,
        "-> pipe:[",
    ),
    Case(
        "temporary_file",
        """
        def test_it():
            number, name = tempfile.mkstemp(suffix=".forgotten")
            os.close(number)
        """,
        ".forgotten",
    ),
    Case(
        "error_in_del",
        """
        class Careless:
            def __del__(self):
                raise LookupError("lost in __del__")
        def test_it():
            it = Careless()
            it.itself = it  # a cycle: only the collector finds it
        """,
        "lost in __del__",
    ),
    Case(
        "exception_never_retrieved",
        """
        async def test_it():
            async def fail():
                raise LookupError("nobody asked")
            task = asyncio.get_running_loop().create_task(fail())
            await asyncio.wait([task])
        """,
        "log: Task exception was never retrieved",
    ),
    Case(
        "coroutine_never_awaited",
        """
        async def test_it():
            asyncio.Event().wait()
        """,
        "was never awaited",
    ),
    Case(
        "task_destroyed_pending",
        """
        def test_it():
            loop = asyncio.new_event_loop()
            async def start():
                loop.create_task(asyncio.Event().wait())
            loop.run_until_complete(start())
            loop.close()
        """,
        "log: Task was destroyed but it is pending",
    ),
    Case(
        "generator_that_ignores_its_end",
        """
        def stubborn():
            try:
                yield
            finally:
                yield
        def test_it():
            next(stubborn())
        """,
        "ignored GeneratorExit",
    ),
    Case(
        "resource_warning",
        """
        def test_it():
            open(os.devnull)
        """,
        "ResourceWarning: unclosed file",
    ),
    Case(
        "complaint_of_a_child_on_stderr",
        """
        def test_it():
            python("import sys; sys.stderr.write('Task was ' + 'destroyed but it is pending')").wait()
        """,
        "stderr: Task was destroyed",
    ),
    Case(
        "complaint_of_a_child_during_teardown",
        """
        @pytest.fixture
        def noisy():
            yield
            python("import sys; sys.stderr.write('Exception ' + 'ignored in: something')").wait()
        def test_it(noisy):
            pass
        """,
        "stderr: Exception ignored in: something",
    ),
    Case(
        "leak_of_another_kind_than_allowed",
        """
        @pytest.mark.leak_ok("thread", reason="not the kind that leaks")
        def test_it():
            os.pipe()
        """,
        "-> pipe:[",
    ),
    Case(
        "leave_without_a_reason",
        """
        @pytest.mark.leak_ok("descriptor")
        def test_it():
            os.pipe()
        """,
        "write leak_ok(kind, reason=...)",
    ),
]

CLEAN = [
    Case("plain", "def test_it(tmp_path): (tmp_path / 'file').write_text('pytest keeps these')", ""),
    Case(
        "everything_ended",
        """
        def test_it(capfd):
            with tempfile.TemporaryFile() as file, python("print(1)", stdout=file) as child:
                child.wait()
            thread = threading.Thread(target=print)
            thread.start()
            thread.join()
        """,
        "",
    ),
    Case(
        "async_with_executor_and_child",
        """
        async def test_it():
            await asyncio.to_thread(os.getpid)
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
            assert await child.wait() == 0
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait()).cancel()
        """,
        "",
    ),
    Case(
        "async_property",
        """
        @settings(max_examples=5, database=None)
        @given(number=strategies.integers())
        async def test_it(number):
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, lambda: number) == number
        """,
        "",
    ),
    Case(
        "orphan_already_killed",
        """
        def test_it():
            outer = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c'," \\
                " 'import signal; signal.pause()']); print(p.pid, flush=True)"
            child = python(outer, stdout=subprocess.PIPE)
            orphan = int(child.stdout.readline())
            child.wait()
            child.stdout.close()
            os.kill(orphan, signal.SIGKILL)  # nothing waits for it: its end is certain
        """,
        "",
    ),
    Case(
        "waiting_for_an_orphan",
        """
        def test_it():
            outer = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()']);" \\
                " print(p.pid, flush=True)"
            with python(outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
                orphan = int(child.stdout.readline())
            assert procs.wait_gone(orphan)
        """,
        "",
    ),
    Case(
        "leak_with_leave",
        """
        @pytest.mark.leak_ok("descriptor", reason="shows how to say so")
        def test_it():
            os.pipe()
        """,
        "",
    ),
]

# Collects what pytest reported, in place of reading its terminal output.
REPORTER = """
import json
pytest_plugins = ("tests.leakgate", "tests.asynctests")
reports = {}

def pytest_runtest_logreport(report):
    each = reports.setdefault(report.nodeid.partition("::")[0], {})
    each[report.when] = report.outcome
    each["text"] = each.get("text", "") + report.longreprtext + "".join(t for _, t in report.sections)

def pytest_sessionfinish(session):
    with open(session.config.rootpath / "reports.json", "w") as file:
        json.dump(reports, file)
"""

INI = """
[pytest]
filterwarnings = error
python_files = case_*.py
addopts = --strict-markers -p no:cacheprovider
markers =
    leak_ok(kind, reason): as in the real suite
"""


def run_cases(folder: Path, cases: list[Case], *options: str) -> dict[str, dict[str, str]]:
    for case in cases:
        source = PREAMBLE + textwrap.dedent(case.source)
        (folder / f"case_{case.name}.py").write_text(source)
    (folder / "conftest.py").write_text(REPORTER)
    (folder / "pytest.ini").write_text(INI)
    command = [sys.executable, "-m", "pytest", "-q", *options, "-c", str(folder / "pytest.ini"), str(folder)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    reports = folder / "reports.json"
    assert reports.exists(), done.stdout + done.stderr
    return json.loads(reports.read_text())


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """All cases in one run: leaks and clean tests take turns, so a leak that spills over is seen too."""
    cases = [*LEAKS, *CLEAN]
    turns = [case for pair in zip(LEAKS, CLEAN * len(LEAKS), strict=False) for case in pair]
    assert {case.name for case in turns} == {case.name for case in cases}
    folder = tmp_path_factory.mktemp("cases")
    named = [case._replace(name=f"{place:02}_{case.name}") for place, case in enumerate(turns)]
    return run_cases(folder, named)


def of_case(reports: dict[str, dict[str, str]], name: str) -> list[dict[str, str]]:
    return [each for file, each in reports.items() if file[8:-3] == name]


@pytest.mark.parametrize("case", LEAKS, ids=lambda case: case.name)
def test_a_leak_fails_the_test(reports: dict[str, dict[str, str]], case: Case) -> None:
    (report,) = of_case(reports, case.name)
    assert "failed" in (report["setup"], report.get("call"), report["teardown"]), report
    assert case.said in report["text"]


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_a_clean_test_passes(reports: dict[str, dict[str, str]], case: Case) -> None:
    found = of_case(reports, case.name)
    assert found
    for report in found:
        assert (report["setup"], report["call"], report["teardown"]) == ("passed",) * 3, report["text"]


def test_a_failing_test_is_reported_once_and_says_what_it_left(tmp_path: Path) -> None:
    failing = Case("failing", "def test_it():\n    os.pipe()\n    assert False, 'the real reason'", "")
    (report,) = run_cases(tmp_path, [failing]).values()
    assert (report["call"], report["teardown"]) == ("failed", "passed")
    assert "the real reason" in report["text"]
    assert "-> pipe:[" in report["text"]


def test_without_capture_all_but_stderr_is_still_checked(tmp_path: Path) -> None:
    leaks = [case for case in LEAKS if case.name in ("descriptor", "thread", "child_alive")]
    for report in run_cases(tmp_path, leaks, "-s").values():
        assert (report["call"], report["teardown"]) == ("passed", "failed")
