"""Reading files that users supply, with limits on size, depth and number of values.

A missing file, a folder or a wrong format raises a HardwareError that names it. Problems of the
disk (permissions, read errors) stay an OSError, which includes the path.
"""

from __future__ import annotations

import csv
import difflib
import errno
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

import tomli as tomllib

from hardware.errors import HardwareError
from hardware.plain_text import unguarded_cell

# The largest files that people have are plan files and price lists.
MOST_BYTES = 64 * 2**20
# Deeper than any configuration that a person or tool writes; even deeper ones exhaust parsers.
DEEPEST = 64
MOST_VALUES = 1_000_000
# A front of 400 plans of 128 pipeline stages has 2 million.
MOST_VALUES_OF_JSON = 4_000_000
LARGEST_INTEGER = 2**63 - 1
# OSErrors that concern the name, not the disk.
_NAME_AT_FAULT = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL,
)  # fmt: skip

# Where a shell provides a command's output: `planner explain /dev/stdin`, `<(planner search ...)`.
_INPUTS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def is_name_at_fault(error: OSError) -> bool:
    """Whether the name is the problem: no such file, a folder, or too long a name."""
    return error.errno in _NAME_AT_FAULT


def _nearest(path: Path) -> str:
    """`; did you mean plans.json?`: the likeliest file of the same folder, if there is one."""
    try:
        names = [one.name for one in path.parent.iterdir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a user's file, without byte order mark. Raises HardwareError or OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise HardwareError(f"{path} does not exist{_nearest(path)}") from None
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and not is_name_at_fault(error):
            raise
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise HardwareError(f"{path} is not a valid file name: {why}") from None
    try:
        found = os.fstat(descriptor)
        if _is_empty(found):
            return ""
        demand_file(path, found)
        os.set_blocking(descriptor, True)
        with open(descriptor, "rb", closefd=False) as stream:
            content = stream.read(most_bytes + 1)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise HardwareError(f"{path}: too large; such a file has at most {most_bytes:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HardwareError(f"{path} is not a text file in UTF-8 ({error.reason})") from None
    if "\0" in text:
        raise HardwareError(f"{path} is not a text file: it contains a zero byte")
    return text


def demand_file(path: Path, found: os.stat_result) -> None:
    """Raise HardwareError unless the path is a regular file with content or a command's input.
    Folders, devices and pipes that may never deliver anything are refused."""
    if stat.S_ISDIR(found.st_mode):
        raise HardwareError(f"{path} is a folder; give the name of a file")
    if _is_empty(found):
        raise HardwareError(f"{path} is empty")
    if not stat.S_ISREG(found.st_mode) and not str(path).startswith(_INPUTS):
        what = "named pipe" if stat.S_ISFIFO(found.st_mode) else "device"
        raise HardwareError(f"{path} is a {what}; give the name of a file")


def _is_empty(found: os.stat_result) -> bool:
    """Whether the file has size 0. That includes kernel files such as /proc/kmsg, which may block
    forever."""
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def json_content(text: str, origin: str) -> Any:
    """The value of a JSON text. HardwareError gives `origin`, line and column."""
    with _parsing(origin, "JSON"):
        content = json.loads(text, parse_constant=_no_number)
    demand_bounded(content, origin, MOST_VALUES_OF_JSON)
    return content


def toml_content(text: str, origin: str) -> dict[str, Any]:
    """The tables of a TOML text. HardwareError gives `origin`, line and column."""
    with _parsing(origin, "TOML"):
        content = tomllib.loads(text)
    demand_bounded(content, origin)
    return content


def shipped_text(package: str, name: str) -> str:
    """A text file of a package: `shipped_text("hardware", "catalog/sources.toml")`."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def shipped_toml(package: str, name: str) -> dict[str, Any]:
    """The tables of a TOML file of a package."""
    return tomllib.loads(shipped_text(package, name))


def csv_rows(text: str, origin: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) for each non-empty row of a CSV text. Raises HardwareError."""
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if any(cells):
                yield reader.line_num, [unguarded_cell(cell) for cell in cells]
    except csv.Error as error:
        raise HardwareError(f"{origin}, line {reader.line_num}: is not CSV ({error})") from None


def csv_table(
    text: str, origin: str, delimiter: str = ","
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """The header in lower case, and the rows below it as (line number, cells by name).

    Raises HardwareError, also for a column name given twice and for a row with more cells than
    columns.
    """
    rows = csv_rows(text, origin, delimiter)
    header = [name.strip().lower() for name in next(rows, (0, []))[1]]
    # Counted once, because comparing 100,000 names pair by pair would take minutes.
    for name, times in Counter(filter(None, header)).items():
        if times > 1:
            raise HardwareError(f"{origin} line 1: the header names {name} twice")

    def named() -> Iterator[tuple[int, dict[str, str]]]:
        for line, cells in rows:
            if len(cells) > len(header):
                raise HardwareError(
                    f"{origin} line {line}: {len(cells)} cells, but the header names "
                    f'{len(header)}; write a cell with a comma in it as "a,b"'
                )
            yield line, dict(zip_longest(header, cells, fillvalue=""))

    return header, named()


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


@contextmanager
def _parsing(origin: str, format_name: str) -> Iterator[None]:
    """Turn a parser's exceptions into a HardwareError that names the file."""
    wrong = f"{origin}: not valid {format_name}"
    try:
        yield
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise HardwareError(f"{wrong}: {place}: {error.msg}") from None
    except RecursionError:
        raise HardwareError(
            f"{origin}: nested too deep; at most {DEEPEST} levels are read"
        ) from None
    except ValueError as error:
        raise HardwareError(f"{wrong}: {number_error(error)}") from None


def number_error(error: ValueError) -> str:
    """A parser's message without Python's advice on very long numbers."""
    return "a number of thousands of digits" if "sys.set_int_max" in str(error) else str(error)


def demand_bounded(content: Any, origin: str, most_values: int = MOST_VALUES) -> None:
    """Raise HardwareError for content that is nested too deeply, has too many values, or has values
    that no setting can have: nan, inf, integers beyond 64 bits, lone surrogates.

    A YAML value counts again at every reference to it, because a value that refers to itself would
    never end.
    """
    level, depth, count = [content], 0, 1
    while level:
        if depth > DEEPEST:
            raise HardwareError(f"{origin}: nested too deep; at most {DEEPEST} levels are read")
        below: list[Any] = []
        for value in level:
            below += _inner(value, origin)
            if count + len(below) > most_values:
                raise HardwareError(f"{origin}: more than {most_values:,} values")
        level, depth, count = below, depth + 1, count + len(below)


def _inner(value: Any, origin: str) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set):
        return list(value)
    if isinstance(value, str) and not value.isascii():
        _demand_text(value, origin)
    if isinstance(value, float) and not math.isfinite(value):
        raise HardwareError(f"{origin}: {value} is not a number that a setting can have")
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise HardwareError(
            f"{origin}: an integer of {value.bit_length()} bits; at most 63 are read"
        )
    return ()


def _demand_text(value: str, origin: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        letter = value[error.start]
        raise HardwareError(
            f"{origin}: {letter!a} is half of a character, which no text may contain"
        ) from None
