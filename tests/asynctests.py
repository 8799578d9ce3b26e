"""Runs `async def` tests, each in a fresh event loop, and demands that the loop be empty when the test returns.

`MOORINGS_TEST_DEBUG=1` turns asyncio's debug mode on; `MOORINGS_TEST_LOOP=uvloop` runs the tests on uvloop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.leakgate import allowed_kinds


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if os.environ.get("MOORINGS_TEST_LOOP") != "uvloop":
        return None
    import uvloop

    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, Any], *, tasks_may_stay: bool = False) -> None:
    debug = os.environ.get("MOORINGS_TEST_DEBUG") == "1"
    with asyncio.Runner(debug=debug, loop_factory=loop_factory()) as runner:
        try:
            runner.run(main)
        except BaseException as error:
            for task in asyncio.all_tasks(runner.get_loop()):
                error.add_note(f"left running: {task!r}")
            raise
        # Before the runner closes, since closing cancels whatever is left and so hides it.
        left = sorted(repr(task) for task in asyncio.all_tasks(runner.get_loop()))
        if left and not tasks_may_stay:
            pytest.fail("the test ended, but these tasks did not:\n" + "\n".join(left), pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    tasks_may_stay = "task" in allowed_kinds(pyfuncitem)
    function = pyfuncitem.obj
    given = getattr(function, "hypothesis", None)
    if given is not None and inspect.iscoroutinefunction(given.inner_test):
        inner = given.inner_test

        @functools.wraps(inner)
        def example(*args: Any, **kwargs: Any) -> None:
            run(inner(*args, **kwargs), tasks_may_stay=tasks_may_stay)

        given.inner_test = example  # Hypothesis calls it once an example; pytest goes on from here
        return None
    if not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run(function(**arguments), tasks_may_stay=tasks_may_stay)
    return True


def pytest_configure() -> None:
    if sys.version_info < (3, 12):
        # 3.11 waits for children in threads that may end a moment after the test; later versions use pidfds anyway.
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
