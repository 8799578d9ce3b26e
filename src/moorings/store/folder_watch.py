"""Watching a folder of entries for what others change, by looking at it twice a second.

Entries are replaced, never written in place, so the time of the folder tells that something changed: an idle folder
costs one look at it. Which entries changed is told by number, time and size of their files. An entry that somebody
edits in place is seen a few seconds later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .._tasks import TaskOwner
from .blocking import Blocking
from .credentials import StoreError

__all__ = ["FolderWatch", "Marks", "OwnMarks", "mark_of"]

EVERY = 0.4
"""Seconds between two looks, so that a change is told within a second."""

FULL = 10
"""Looks after which each entry is looked at, though the folder says that nothing changed."""

RACY = 2.5
"""Seconds for which a changed folder is not believed to be unchanged: some disks count in steps of two seconds."""

Mark = tuple[int, int, int]
Marks = dict[str, Mark]

BUSY: Final = "busy"
_log = logging.getLogger(__name__)


def mark_of(path: str | Path) -> Mark | None:
    """What tells one content of a file from another; None if it is not there."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class OwnMarks:
    """What the store itself left behind, which its watches do not tell. Written by the threads of its writes."""

    __slots__ = ("_marks", "_mutex", "_serial")

    def __init__(self) -> None:
        self._marks: dict[str, tuple[Mark | str | None, int]] = {}
        self._serial = 0
        self._mutex = threading.Lock()

    @property
    def serial(self) -> int:
        """How many changes of ours there were."""
        return self._serial

    def begin(self, key: str) -> None:
        """A change of ours begins: what is seen meanwhile counts for nothing."""
        self._put(key, BUSY)

    def end(self, key: str, path: Path) -> None:
        """It ended, well or not; what is there now is ours."""
        self._put(key, mark_of(path))

    def since(self, serial: int) -> dict[str, tuple[Mark | str | None, int]]:
        """What was left after ``serial``, with the number of that change."""
        with self._mutex:
            return {key: found for key, found in self._marks.items() if found[1] > serial or found[0] is BUSY}

    def _put(self, key: str, mark: Mark | str | None) -> None:
        with self._mutex:
            self._serial += 1
            self._marks[key] = (mark, self._serial)


class FolderWatch:
    """Looks at a folder until ``aclose``. Made by a store, started by ``start``."""

    def __init__(
        self,
        folder: Path,
        ending: str,
        changed: Callable[[str], None],
        *,
        own: OwnMarks,
        blocking: Blocking,
        store: str,
    ) -> None:
        self._folder = folder
        self._ending = ending
        self._changed = changed
        self._own = own
        self._blocking = blocking
        self._tasks = TaskOwner(f"watch of {store}")
        self._known: Marks = {}
        self._folder_time = -1
        self._looks = 0
        self._told = own.serial

    async def start(self) -> None:
        """Take down what is there, which is not told, and begin.

        Raises:
            StoreError: the disk did not answer.
        """
        self._told = self._own.serial
        found = await self._blocking.run(self._look, True)
        self._known = found or {}
        self._tasks.start(self._run(), name="look")

    async def aclose(self) -> None:
        """Look no more."""
        await self._tasks.aclose()

    async def _run(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(EVERY)
            self._looks += 1
            serial = self._own.serial
            try:
                found = await self._blocking.run(self._look, self._looks % FULL == 0)
                failing = False
            except StoreError as fault:
                if not failing:
                    _log.warning("changes of stored credentials are not seen: %s", fault)
                failing = True
                continue
            if found is not None:
                self._tell(found, serial)

    def _tell(self, found: Marks, serial: int) -> None:
        """Tell what differs. ``serial`` is how many changes of ours there were when the look began."""
        ours = self._own.since(self._told)
        self._told = serial
        for key in sorted(found.keys() | self._known.keys() | ours.keys()):
            now = found.get(key)
            mark, number = ours.get(key, (None, 0))
            if mark is BUSY or number > serial:
                self._folder_time = -1  # it was looked at too early: look again
                continue
            before = mark if number else self._known.get(key)
            if now is None:
                self._known.pop(key, None)
            else:
                self._known[key] = now
            if before == now:
                continue
            try:
                self._changed(key)
            except Exception:  # boundary: one watcher's fault is not that of the watch
                _log.exception("a watcher of stored credentials failed")

    def _look(self, whole: bool) -> Marks | None:
        """The marks of all entries, or None if the folder is as it was. Runs in a thread."""
        try:
            now = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            self._folder_time = -1
            return {}
        if not whole and now == self._folder_time:
            return None
        # Another change in the same tick of the disk's clock would leave the same time.
        self._folder_time = now if time.time() - now / 1e9 > RACY else -1
        found: Marks = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(self._ending) and not entry.name.startswith("."):
                    mark = mark_of(entry.path)
                    if mark is not None:
                        found[entry.name.removesuffix(self._ending)] = mark
        return found
