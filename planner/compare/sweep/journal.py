"""What a sweep has done so far: an SQLite file, in which every search is written as it ends.

`header`: what made the rest; `searches`: a key with its record, or with why it failed, which a
later run replaces. SQLite keeps what a crash or a full disk interrupts out of the file; one process
writes, under a lock.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from planner.job.errors import UsageError, demand_installed

_NAME = "journal.sqlite"
_TABLES = """
CREATE TABLE IF NOT EXISTS header (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS searches (key TEXT PRIMARY KEY, record TEXT, error TEXT);
"""
# What all records depend on; another value of one of them would mix two models in one table.
_SAME = ("planner", "sources")


class Journal:
    """`header`: what made the records; `done`: keys of searches; `failed`: key -> why."""

    def __init__(self, path: Path, base: sqlite3.Connection, tables: str = "") -> None:
        self.path, self._base = path, base
        self.done: set[str] = set()
        with self._told():
            base.executescript(tables)
            self.header: dict[str, str] = dict(base.execute("SELECT name, value FROM header"))
            found = base.execute("SELECT key, error FROM searches").fetchall()
        self.done = {key for key, error in found if error is None}
        self.failed = {key: error for key, error in found if error is not None}

    @contextmanager
    def _told(self) -> Iterator[None]:
        """One transaction. OSError where the disk is at fault, UsageError for another file."""
        try:
            with self._base:
                yield
        except sqlite3.OperationalError as error:
            kept = f"{len(self.done):,} searches are kept, and the same command goes on from there"
            text = f"{error}; {kept}"
            raise OSError(errno.EIO, text, str(self.path)) from error
        except sqlite3.DatabaseError:
            raise UsageError(f"{self.path} is no journal of a sweep; --force starts anew") from None

    def records(self, keys: Iterable[str]) -> Iterator[dict[str, Any] | None]:
        """The records of some searches; None for those that are not done."""
        for key in keys:
            found = self._base.execute("SELECT record FROM searches WHERE key = ?", (key,))
            ((text,),) = found.fetchall() or ((None,),)
            yield None if text is None else json.loads(text)

    def begin(self, header: Mapping[str, str]) -> None:
        """Write the header, or compare it. UsageError where another planner wrote it."""
        if not self.header:
            with self._told():
                self._base.executemany("INSERT INTO header VALUES (?, ?)", header.items())
            self.header = dict(header)
        for name in _SAME:
            if self.header.get(name) != header[name]:
                raise UsageError(
                    f"{self.path.parent} was begun with {name} {self.header.get(name)}, this is "
                    f"{header[name]}: their figures may differ; give another -o, or --force to "
                    "start anew"
                )

    def add(self, records: Iterable[tuple[str, Mapping[str, Any] | str]]) -> None:
        """Keep records (key, record) and failures (key, why), and wait for the disk. OSError leaves
        the file as it was."""
        rows = [
            (key, None, item) if isinstance(item, str) else (key, json.dumps(item), None)
            for key, item in records
        ]
        with self._told():
            self._base.executemany("INSERT OR REPLACE INTO searches VALUES (?, ?, ?)", rows)
        for key, _, error in rows:
            self.failed.pop(key, None)
            if error is None:
                self.done.add(key)
            else:
                self.failed[key] = error


@contextmanager
def opened(folder: Path, *, anew: bool = False) -> Iterator[Journal]:
    """The journal of a folder, which is made; other processes are kept out. UsageError, OSError."""
    demand_installed("sweeps need", "sweep", "filelock", "pyarrow")
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _NAME
    try:
        lock = FileLock(folder / "lock", timeout=0).acquire()
    except Timeout:
        raise UsageError(f"{folder}: another sweep writes there; wait for it, or give -o") from None
    with lock:
        for old in (path, path.with_name(f"{_NAME}-journal")) if anew else ():
            old.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as base:
            yield Journal(path, base, _TABLES)


def read_only(folder: Path, file: Path) -> Journal:
    """The journal of a folder as it is now. UsageError, which names the sweep's file, where there
    is none."""
    path = folder / _NAME
    if not path.is_file():
        raise UsageError(f"--report: no sweep of {file} has run in {folder} yet; leave it out")
    return Journal(path, sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True))
