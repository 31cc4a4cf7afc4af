"""The journal of a sweep, an SQLite file to which every search is written as it ends. It also
writes the results: rows in the order of the grid, and a second table that says where each search
ran.

`header`: versions that all records depend on; `searches`: each key with its record, or with the
reason of its failure, which a later run replaces. SQLite keeps interrupted writes (a crash, a full
disk) out of the file; one process writes, under a lock.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

from hardware.files import shipped_toml
from planner.compare.sweep.work import Grid
from planner.job.errors import UsageError, demand_installed
from planner.job.written_folder import refuse_folder, refuse_names, write_folder

_NAME, _LOCK = "journal.sqlite", ".sweep.lock"
_TABLES = """
CREATE TABLE IF NOT EXISTS header (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS searches (key TEXT PRIMARY KEY, record TEXT, error TEXT);
"""
# All records depend on these; a different value would mix two models in one table.
_SAME = ("planner", "sources")


class Journal:
    """`header`: versions that made the records; `done`: keys of searches that succeeded; `failed`:
    key -> reason."""

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
        """One transaction. OSError if the disk is at fault, UsageError if the file is not a
        journal."""
        try:
            with self._base:
                yield
        except sqlite3.OperationalError as error:
            kept = f"{len(self.done):,} searches are kept, and the same command goes on from there"
            text = f"{error}; {kept}"
            raise OSError(errno.EIO, text, str(self.path)) from error
        except sqlite3.DatabaseError:
            raise UsageError(
                f"{self.path} is not the journal of a sweep; --force starts a new one"
            ) from None

    def records(self, keys: Iterable[str]) -> Iterator[dict[str, Any] | None]:
        """The records of some searches; None for those that are not done."""
        for key in keys:
            found = self._base.execute("SELECT record FROM searches WHERE key = ?", (key,))
            ((text,),) = found.fetchall() or ((None,),)
            yield None if text is None else json.loads(text)

    def begin(self, header: Mapping[str, str]) -> None:
        """Write the header, or compare it with the existing one. UsageError if another version of
        the planner wrote that."""
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
        """Save records (key, record) and failures (key, reason), and wait for the disk. An OSError
        leaves the file unchanged."""
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
    """The journal of a folder, created if missing, locked against other processes. UsageError,
    OSError. `anew`: set an earlier journal aside."""
    demand_installed("sweeps need", "sweep", "filelock", "pyarrow")
    from filelock import FileLock, Timeout

    refuse_folder(folder, force=True)
    folder.mkdir(parents=True, exist_ok=True)
    path, lock_file = folder / _NAME, folder / _LOCK
    _refuse_foreign(path, lock_file)
    try:
        lock = FileLock(lock_file, timeout=0).acquire()
    except Timeout:
        raise UsageError(f"{folder}: another sweep writes there; wait for it, or give -o") from None
    with lock:
        if anew and path.exists():
            _set_aside(path)
        with closing(sqlite3.connect(path)) as base:
            yield Journal(path, base, _TABLES)


def _refuse_foreign(path: Path, lock_file: Path) -> None:
    """Raise UsageError for links, and for files of these names that are not a sweep's."""
    for each in (path, path.with_name(f"{_NAME}-journal"), lock_file):
        if each.is_symlink() or (each.exists() and not each.is_file()):
            raise UsageError(f"{each} is a link, or not a file; give another folder to -o")
    if lock_file.exists() and lock_file.stat().st_size:
        raise UsageError(f"{lock_file} is not the lock of a sweep; give another folder to -o")
    if path.exists() and not _tables(path) <= {"header", "searches"}:
        raise UsageError(f"{path} is a database of something else; give another folder to -o")


def _tables(path: Path) -> set[str]:
    """Names of the tables in a database; empty if the file is damaged or not a database."""
    # Not `mode=ro`, which cannot roll back the journal that a killed process leaves.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as base:
        try:
            return {
                name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE sql > ''")
            }
        except sqlite3.DatabaseError:
            return set()


def _set_aside(path: Path) -> None:
    """Rename an earlier journal to the first free name, because it may hold days of work."""
    names = (f".old{number or ''}" for number in count())
    ending = next(each for each in names if not os.path.lexists(f"{path}{each}"))
    for each in (path.with_name(f"{_NAME}-journal"), path):
        if each.exists():
            each.rename(f"{path}{ending}{each.name.removeprefix(_NAME)}")


def read_only(folder: Path, file: Path) -> Journal:
    """The journal of a folder as it is now. If there is none, UsageError names the sweep's file."""
    path = folder / _NAME
    if not path.is_file():
        raise UsageError(
            f"--report: no sweep of {file} has run in {folder} yet; leave --report out"
        )
    # Not `mode=ro`, which cannot roll back the journal that a killed process leaves.
    return Journal(path, sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True))


# Column -> its Arrow type, unit and meaning: for results, and for their provenance.
_COLUMNS = shipped_toml("planner.compare.sweep", "columns.toml")
FIGURES, PROVENANCE = _COLUMNS["figures"], _COLUMNS["provenance"]
_GROUP = 5_000
_NAMES = "results.parquet", "provenance.parquet"


def rows(grid: Grid, journal: Journal) -> Iterator[dict[str, Any]]:
    """One row per finished search and price, in the order of the grid."""
    for labels, record in _done(grid, journal):
        for pricing, figures in zip(grid.pricings, record["rows"], strict=True):
            yield labels | dict(zip(grid.price_axes, pricing.labels, strict=True)) | figures


def provenance(grid: Grid, journal: Journal) -> Iterator[dict[str, Any]]:
    """Where and when each finished search ran, in the order of the grid."""
    for labels, record in _done(grid, journal):
        yield labels | record["provenance"]


def _done(grid: Grid, journal: Journal) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    keys = (grid.key(index) for index in range(len(grid)))
    for index, record in enumerate(journal.records(keys)):
        if record is not None:
            yield dict(zip(grid.axes, grid.labels(index), strict=True)), record


def columns(grid: Grid) -> list[str]:
    """Names of the columns of `rows`."""
    return [*_labels(grid), *FIGURES]


def _labels(grid: Grid) -> tuple[str, ...]:
    """Axes that are not already among the figures of a row, as the currency is."""
    return tuple(name for name in (*grid.axes, *grid.price_axes) if name not in FIGURES)


def refuse_results(folder: Path) -> None:
    """Before any search, raise UsageError if the results would overwrite files that no sweep
    wrote."""
    refuse_names(folder, _NAMES)


def write(grid: Grid, journal: Journal, folder: Path) -> tuple[Path, Path]:
    """Write results.parquet and provenance.parquet, each completely or not at all. OSError."""
    paths = folder / _NAMES[0], folder / _NAMES[1]
    made_by = journal.header | {"fixed": grid.fixed}
    tables = (
        _parquet(rows(grid, journal), _labels(grid), FIGURES, made_by),
        _parquet(provenance(grid, journal), tuple(grid.axes), PROVENANCE, made_by),
    )
    write_folder(folder, dict(zip(_NAMES, tables, strict=True)), force=True)
    return paths


def _parquet(
    found: Iterator[dict[str, Any]],
    labels: tuple[str, ...],
    figures: Mapping[str, Sequence[str]],
    made_by: Mapping[str, str],
) -> bytes:
    """A Parquet file: the labels as text, then the figures, with units and meanings in the
    schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [pa.field(name, pa.string()) for name in labels]
    for name, (kind, unit, meaning) in figures.items():
        fields.append(pa.field(name, kind, metadata={"unit": unit, "meaning": meaning}))
    schema = pa.schema(fields, metadata=dict(made_by))
    stream = io.BytesIO()
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        while group := list(islice(found, _GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema))
    return stream.getvalue()
