"""Lengths from a file: a column of CSV, JSON lines or Parquet, read line by line.

A column holds lengths, or lists of token ids, which are counted. Beside it a column of how many
samples have each length may stand, as `planner lengths` writes.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hardware.files import demand_file, is_name_at_fault
from planner.job.errors import UsageError, demand_installed
from planner.job.samples import Lengths, demand_length, lengths_of

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
# Names of a column of lengths, or of token ids, as tools write them, the likeliest first.
NAMES = (
    "length", "lengths", "tokens", "num_tokens", "n_tokens", "token_count", "seq_len", "seqlen",
    "input_length", "input_ids", "token_ids",
)  # fmt: skip
COUNTS = ("samples", "count", "counts", "number", "weight", "frequency")
# The longest line of a file of samples: one of ten million token ids has 70 MB.
_LONGEST_LINE = 2**28
_SHOWN = 12
Row = tuple[str, Any, Any]


def lengths_of_file(words: str) -> Lengths:
    """The lengths in the file `words`, perhaps with `:COLUMN` behind it. UsageError, OSError."""
    found = counts_of_file(words)
    name = f"{Path(words).name}: {sum(found.values()):,} samples"
    return lengths_of(((float(length), float(n)) for length, n in found.items()), name)


def counts_of_file(words: str, option: str = "--lengths") -> Counter[int]:
    """How many samples of a file have each length; `option`: where its name was given, "" for an
    argument. UsageError, OSError."""
    path, column = _path_and_column(words)
    said = f"{option} {path}".strip()
    if path.suffix.lower() == ".json":
        raise UsageError(
            f"{said}: one JSON value is no list of samples that can be streamed; give "
            "JSON lines (one object a line, .jsonl), CSV or Parquet"
        )
    found: Counter[int] = Counter()
    for where, length, samples in _rows(path, said, column):
        found[_counted(length, where)] += _number(samples, where)
    if not +found:
        raise UsageError(f"{said}: holds no sample; give a file with at least one length")
    return +found


def _path_and_column(words: str) -> tuple[Path, str | None]:
    head, _, column = words.rpartition(":")
    if head.lower().endswith(ENDINGS) and not words.lower().endswith(ENDINGS):
        return Path(head), column.strip()
    return Path(words), None


def _rows(path: Path, said: str, column: str | None) -> Iterator[Row]:
    """(where it stands, length or token ids, how many samples) of each row of a file; `said`: what
    errors call it."""
    if path.suffix.lower() == ".parquet":
        return _parquet_rows(path, said, column)
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return _json_rows(path, said, column)
    return _csv_rows(path, said, column)


def opened(path: Path, said: str) -> IO[str]:
    """A user's file of samples, open as text; `said`: what errors call it. UsageError for a name
    that is none, OSError."""
    try:
        demand_file(path, path.stat())
        return path.open(encoding="utf-8-sig", newline="")
    except FileNotFoundError:
        raise UsageError(f"{said}: does not exist; give the name of a file") from None
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and not is_name_at_fault(error):
            raise
        raise UsageError(f"{said}: {error}") from None


def lines_of(path: Path, said: str) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that holds something, one at a time."""
    with opened(path, said) as stream:
        number = 0
        while True:
            try:
                line = stream.readline(_LONGEST_LINE)
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{said}, line {number + 1}: is no text in UTF-8 ({error.reason})"
                ) from None
            if not line:
                return
            number += 1
            if len(line) >= _LONGEST_LINE:
                raise UsageError(f"{said}, line {number}: longer than {_LONGEST_LINE:,}")
            if line.strip():
                yield number, line


def json_objects(path: Path, said: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, object) of each line of a file of JSON lines. UsageError."""
    for number, line in lines_of(path, said):
        where = f"{said}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: is not JSON ({error}); give one object a line") from None
        if not isinstance(value, dict):
            raise UsageError(f"{where}: {type(value).__name__}; give one object a line")
        yield where, value


def _csv_rows(path: Path, said: str, column: str | None) -> Iterator[Row]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader((line for _, line in lines_of(path, said)), delimiter=delimiter)
    try:
        header = [name.strip() for name in next(reader, [])]
        bare = len(header) == 1 and header[0].isdecimal()
        if bare:
            yield f"{said}, line 1", header[0], 1
            at, beside = 0, None
        else:
            name, counts = _columns(path, said, header, column)
            at, beside = header.index(name), header.index(counts) if counts else None
        for cells in reader:
            where = f"{said}, line {reader.line_num}"
            if len(cells) <= max(at, beside or 0):
                raise UsageError(f"{where}: has {len(cells)} cells; the header has {len(header)}")
            yield where, cells[at], 1 if beside is None else cells[beside]
    except csv.Error as error:
        raise UsageError(f"{said}: is not CSV ({error})") from None


def _json_rows(path: Path, said: str, column: str | None) -> Iterator[Row]:
    name, counts = "", None
    for where, entry in json_objects(path, said):
        if not name:
            name, counts = _columns(path, said, list(entry), column)
        if name not in entry:
            raise UsageError(f"{where}: has no {name!r}; every line needs it")
        yield where, entry[name], entry.get(counts, 1) if counts else 1


def opened_parquet(path: Path, said: str) -> Any:
    """A Parquet file, as pyarrow opens it; `said`: what an error calls it. UsageError."""
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise UsageError(f"{said}: does not exist; give the name of a file") from None
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"{said}: is not Parquet ({error})") from None


def _parquet_rows(path: Path, said: str, column: str | None) -> Iterator[Row]:
    demand_installed(f"{said}: a Parquet file needs", "lengths", "pyarrow")
    import pyarrow

    with suppress(FileNotFoundError):
        demand_file(path, path.stat())
    file = opened_parquet(path, said)
    name, counts = _columns(path, said, list(file.schema_arrow.names), column)
    where = f"{said}, column {name}"
    for batch in file.iter_batches(columns=[name, *([counts] if counts else [])]):
        values = batch.column(0)
        if pyarrow.types.is_list(values.type) or pyarrow.types.is_large_list(values.type):
            values = pyarrow.compute.list_value_length(values)
        numbers = batch.column(1).to_pylist() if counts else [1] * len(values)
        for value, number in zip(values.to_pylist(), numbers, strict=True):
            yield where, value, number


def _columns(path: Path, said: str, names: list[str], column: str | None) -> tuple[str, str | None]:
    """The column of lengths and that of how many samples have each, if there is one. UsageError."""
    lower: Mapping[str, str] = {name.lower(): name for name in names}
    wanted = [column.lower()] if column else list(NAMES)
    found = next((lower[name] for name in wanted if name in lower), None)
    if found is None:
        listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        raise UsageError(
            f"{said}: has no column {column or ' or '.join(NAMES[:3])}; it has "
            f"{listed or 'none'}. Write {path}:{names[0] if names else 'COLUMN'}, or count texts "
            f"with: planner lengths {path} --tokenizer FILE"
        )
    return found, next((lower[name] for name in COUNTS if name in lower and name != column), None)


def _counted(value: Any, where: str) -> int:
    """A length, or of a list of token ids their number. UsageError."""
    if isinstance(value, list):
        return demand_length(len(value), where)
    number = _whole(value, int)
    if number is None:
        raise UsageError(
            f"{where}: {_shown(value)} is no length; lengths are whole numbers, from 1"
        )
    return demand_length(number, where)


def _number(value: Any, where: str) -> int:
    number = _whole(value, int)
    if number is None or not 0 <= number <= 10**15:
        raise UsageError(f"{where}: {_shown(value)} is no number of samples")
    return number


def _whole(value: Any, make: Callable[[str], int]) -> int | None:
    """The whole number that a cell or a value is; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, int):
        return value
    words = str(value).strip()
    return make(words) if words.isascii() and words.isdecimal() and len(words) < 19 else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
