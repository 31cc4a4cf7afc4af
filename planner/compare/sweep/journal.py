"""What a sweep has done so far: one line a search, appended as it ends, never changed.

    {"planner": ..., "sources": ..., "today": ...}      the first line: what made the others
    KEY + {"rows": [...], "provenance": {...}}       a search that is done
    KEY ! {"error": ...}                             one that failed; a later line replaces it

One process writes, under a lock. A line that a crash or a full disk cut short has no end of line
and is dropped when the file is opened again; every other line is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from planner.job.errors import UsageError

_NAME = "journal.jsonl"
_KEY = 32
# What all lines depend on; another value of one of them would mix two models in one table.
_SAME = ("planner", "sources")


class Journal:
    """`done`: key -> place of its line; `failed`: key -> why; `header`: the first line.
    `descriptor`: of the file, to write; None to read only."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path, self._descriptor = path, descriptor
        self.header: dict[str, Any] = {}
        self.done: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        self._size = 0
        with path.open("rb") as stream:
            self._note_all(line for line in stream if line.endswith(b"\n"))

    def _note_all(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._note(line, self._size)
            self._size += len(line)

    def _note(self, line: bytes, place: int) -> None:
        if not place:
            self.header = self._parsed(line)
            return
        key, mark = line[:_KEY].decode(errors="replace"), line[_KEY : _KEY + 3]
        if mark == b" + ":
            self.done.setdefault(key, place)
            self.failed.pop(key, None)
        elif mark == b" ! ":
            self.failed[key] = str(self._parsed(line[_KEY + 3 :]).get("error"))
        else:
            raise UsageError(f"{self.path}: the line at byte {place:,} is no record of a sweep")

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UsageError(f"{self.path} is no journal of a sweep; --force starts anew")
        return found

    def records(self, keys: Iterable[str]) -> Iterator[dict[str, Any] | None]:
        """The records of some searches; None for those that are not done."""
        with self.path.open("rb") as stream:
            for key in keys:
                if key not in self.done:
                    yield None
                    continue
                stream.seek(self.done[key])
                yield self._parsed(stream.readline()[_KEY + 3 :])

    def begin(self, header: dict[str, Any]) -> None:
        """Write the first line, or compare it. UsageError where another planner wrote it."""
        if not self.header:
            self._append(json.dumps(header).encode() + b"\n")
            return
        for name in _SAME:
            if self.header.get(name) != header[name]:
                raise UsageError(
                    f"{self.path.parent} was begun with {name} {self.header.get(name)}, this is "
                    f"{header[name]}: their figures may differ; give another -o, or --force to "
                    "start anew"
                )

    def add(self, records: Iterable[tuple[str, Mapping[str, Any] | str]]) -> None:
        """Append records (key, record) and failures (key, why), and wait for the disk. OSError
        leaves the file as it was."""
        lines = [
            f"{key} ! {json.dumps({'error': item})}\n"
            if isinstance(item, str)
            else f"{key} + {json.dumps(item)}\n"
            for key, item in records
        ]
        self._append("".join(lines).encode())

    def _append(self, content: bytes) -> None:
        """Write behind the last whole line, and nothing else if not all of it."""
        descriptor = self._descriptor
        if descriptor is None:
            raise UsageError(f"{self.path} was opened to be read")
        try:
            written = 0
            while written < len(content):
                written += os.pwrite(descriptor, content[written:], self._size + written)
            os.ftruncate(descriptor, self._size + len(content))
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, self._size)
            kept = f"{error.strerror}; {len(self.done):,} searches are kept, and the same command "
            raise OSError(error.errno, kept + "goes on from there", str(self.path)) from error
        self._note_all(content.splitlines(keepends=True))


@contextmanager
def opened(folder: Path, *, anew: bool = False) -> Iterator[Journal]:
    """The journal of a folder, which is made; other processes are kept out. UsageError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _NAME
    try:
        lock = FileLock(folder / "lock", timeout=0).acquire()
    except Timeout:
        raise UsageError(f"{folder}: another sweep writes there; wait for it, or give -o") from None
    with lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if anew else 0), 0o666)
        try:
            yield Journal(path, descriptor)
        finally:
            os.close(descriptor)


def read_only(folder: Path, file: Path) -> Journal:
    """The journal of a folder as it is now. UsageError, which names the sweep's file, where there
    is none."""
    path = folder / _NAME
    if not path.is_file():
        raise UsageError(f"--report: no sweep of {file} has run in {folder} yet; leave it out")
    return Journal(path)
