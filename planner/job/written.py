"""Files that commands write: completely or not at all, and never over another file unless asked."""

from __future__ import annotations

import csv
import errno
import io
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, TextIO

from hardware.plain_text import guarded_cell
from planner.job.errors import UsageError


def refuse_to_overwrite(path: Path, force: bool, option: str = "-o") -> None:
    """Raise UsageError, before any work is done, if the file could not be written.

    A link is never followed or replaced, because its target may belong to somebody else.
    """
    if path.is_symlink():
        raise UsageError(f"{path} is a link to {path.readlink()}; give the file itself to {option}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is a device or a pipe; give {option} another name")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist; create it first")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; --force overwrites it, or give another name to {option}")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "the folder is not writable", str(path.parent))


def toml_text(content: Mapping[str, Any], digits: int = 4) -> str:
    """A TOML document of values, tables and lists of tables, with `digits` significant digits. None
    values are left out."""
    import tomlkit

    return tomlkit.dumps(_plain(content, digits))


def _plain(value: Any, digits: int) -> Any:
    match value:
        case Mapping():
            known = ((name, item) for name, item in value.items() if item is not None)
            return {str(name): _plain(item, digits) for name, item in known}
        case list() | tuple():
            return [_plain(item, digits) for item in value]
        case float():
            return float(f"{value:.{digits}g}")
    return value


def picked(record: object, names: str) -> dict[str, Any]:
    """Attributes of a record as a table. A name is `name`, or `title=path.to.it` for a nested one.
    Nested records and mappings become tables."""
    pairs = (word.rpartition("=") for word in names.split())
    return {title or path: _value_at(record, path) for title, _, path in pairs}


def _value_at(record: object, path: str) -> Any:
    value: Any = attrgetter(path)(record)
    if isinstance(value, Mapping):
        return dict(value)
    return value.model_dump() if hasattr(value, "model_dump") else value


def csv_text(
    columns: Iterable[str], rows: Iterable[Mapping[str, Any]], *, guarded: bool = True
) -> str:
    """A CSV table with a header; missing cells are empty. `guarded`: protect texts from being read
    as formulas by a spreadsheet."""
    text = io.StringIO()
    write_csv(text, columns, rows, guarded=guarded)
    return text.getvalue()


def write_csv(
    file: TextIO,
    columns: Iterable[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    guarded: bool = True,
) -> None:
    """Write `csv_text` to an open file, row by row."""
    writer = csv.DictWriter(file, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {name: guarded_cell(cell) for name, cell in row.items()} if guarded else row
        writer.writerow(cells)


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write a file atomically: a reader sees the old content or the new one, never a part.

    Without `force`, a file that appeared while the command ran is kept (UsageError).
    """
    write_bytes(path, text.encode(), force=force)


def write_bytes(path: Path, content: bytes, *, force: bool) -> None:
    """`write_text` for bytes. OSError names the target file."""
    refuse_to_overwrite(path, force)
    with naming(path), staged(path, content) as temporary:
        if force:
            temporary.replace(path)
        else:
            _place(temporary, path)


def markdown_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()
) -> str:
    """A Markdown table without final line break. `right`: columns that are aligned to the right.

    A `|` in a cell is escaped, and a line break becomes a blank.
    """
    rule = ("--:" if index in right else "---" for index in range(len(titles)))
    return "\n".join((_line(titles), f"|{'|'.join(rule)}|", *(_line(row) for row in rows)))


def _line(cells: Sequence[str]) -> str:
    inner = (" ".join(cell.replace("|", "\\|").split("\n")) for cell in cells)
    return f"| {' | '.join(inner)} |"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Re-raise an OSError so that it names the file that the user gave."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def staged(path: Path, content: bytes) -> Iterator[Path]:
    """A temporary file beside `path` with the content, flushed to disk. It is deleted unless the
    caller moves it into place."""
    # A new name, because the file's own may already have the maximum length.
    temporary = path.parent / f".planner-{secrets.token_hex(8)}"
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    handle = os.open(temporary, _NEW_FILE, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        if mode is not None:
            temporary.chmod(mode)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def _place(temporary: Path, path: Path) -> None:
    """Move a file to a name that does not exist yet."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise UsageError(f"{path} was created in the meantime; --force overwrites it") from None
    except OSError:  # no second names on this disk
        refuse_to_overwrite(path, False)
        temporary.replace(path)
