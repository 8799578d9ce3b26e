"""The flag that threads wait for: it happens once, and a waiter that is struck holds up nobody."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from moorings._flag import Flag
from tests.strike import struck_at


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it hangs"


def test_it_happens_once_for_all() -> None:
    flag = Flag()
    assert not flag.is_set() and not flag.wait(0.0) and not flag.wait(-1.0)
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(flag.wait(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    flag.set()
    flag.set()
    for thread in threads:
        thread.join(10)
    assert woken == [True] * 8
    assert flag.is_set() and flag.wait() and flag.wait(0.0)


@pytest.mark.parametrize("happens", [False, True])
def test_a_waiter_struck_at_any_step_holds_up_nobody(happens: bool) -> None:
    """It can still be set, and waited for."""
    for step in itertools.count():
        flag = Flag()

        def wait(flag: Flag = flag) -> None:
            if happens:
                flag.set()
            flag.wait(0.0)

        if not struck_at(step, wait):
            break
        in_a_thread(flag.set)
        in_a_thread(flag.wait)
    assert step > 3
