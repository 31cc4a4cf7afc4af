"""Sample lengths from a file: a column of CSV, JSON Lines or Parquet, read line by line.

The column holds lengths, or lists of token ids, which are counted. Further columns may give the
number of samples with each length, as `planner lengths` writes, and the images of a sample: how
many, their width and height in pixels, frames of a video, or their tokens.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from hardware.files import demand_file, is_name_at_fault
from planner.job.errors import UsageError, demand_installed
from planner.job.samples import Lengths, demand_length, lengths_of

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
# Usual names of columns with lengths or token ids, most likely first.
NAMES = (
    "length", "lengths", "tokens", "num_tokens", "n_tokens", "token_count", "seq_len", "seqlen",
    "input_length", "input_ids", "token_ids", "text_tokens",
)  # fmt: skip
# Names of columns with the tokens of text only, to which image tokens are added.
TEXT_ALONE = ("text_tokens",)
IMAGE_COLUMNS = ("images", "width", "height", "frames", "image_tokens")
COUNTS = ("samples", "count", "counts", "number", "weight", "frequency")
# The longest accepted line: one of ten million token ids has 70 MB.
_LONGEST_LINE = 2**28
_SHOWN = 12
# Place in the file, length or token ids, number of samples, image columns.
Row = tuple[str, Any, Any, tuple[Any, ...]]


class Columns(NamedTuple):
    """Names of a file's columns: lengths, sample counts, and images in the order of
    `IMAGE_COLUMNS`. Missing ones are left out."""

    length: str
    counts: str | None
    images: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        """All column names."""
        return [self.length, *([self.counts] if self.counts else []), *self.images.values()]

    @property
    def text_alone(self) -> bool:
        """Whether the lengths exclude the tokens of images."""
        return self.length.lower() in TEXT_ALONE


class Sample(NamedTuple):
    """Tokens of a sample, and its image columns (None for a column that states nothing)."""

    tokens: int
    images: tuple[int | None, ...] = ()


def lengths_of_file(words: str) -> Lengths:
    """The lengths in a file, given as PATH or PATH:COLUMN. Raises UsageError or OSError."""
    found = counts_of_file(words)
    name = f"{Path(words).name}: {sum(found.values()):,} samples"
    return lengths_of(((float(length), float(n)) for length, n in found.items()), name)


def counts_of_file(words: str, option: str = "--lengths") -> Counter[int]:
    """Number of samples of each length, whatever their images. `option`: where the name was given,
    "" for an argument. Raises UsageError or OSError."""
    found: Counter[int] = Counter()
    for sample, number in samples_of_file(words, option)[0].items():
        found[sample.tokens] += number
    return found


def samples_of_file(
    words: str, option: str = "--lengths"
) -> tuple[Counter[Sample], tuple[str, ...], bool]:
    """Number of samples of each kind, the image columns that the file has, and whether the lengths
    count only text. Raises UsageError or OSError."""
    path, column = _path_and_column(words)
    said = f"{option} {path}".strip()
    if path.suffix.lower() == ".json":
        raise UsageError(
            f"{said}: a single JSON value cannot be read line by line; give JSON lines (one "
            "object per line, .jsonl), CSV or Parquet"
        )
    found: Counter[Sample] = Counter()
    columns, rows = _rows(path, said, column)
    least = 0 if columns.text_alone and columns.images else 1
    for where, length, samples, images in rows:
        seen = tuple(_optional(value, where) for value in images)
        found[Sample(_counted(length, where, least), seen)] += _number(samples, where)
    if not +found:
        raise UsageError(f"{said}: contains no sample; give a file with at least one length")
    return +found, tuple(columns.images), columns.text_alone


def columns_of_file(words: str, option: str = "--lengths") -> Columns:
    """The columns of a file. Raises UsageError or OSError."""
    path, column = _path_and_column(words)
    return _rows(path, f"{option} {path}".strip(), column)[0]


def _path_and_column(words: str) -> tuple[Path, str | None]:
    head, _, column = words.rpartition(":")
    if head.lower().endswith(ENDINGS) and not words.lower().endswith(ENDINGS):
        return Path(head), column.strip()
    return Path(words), None


def _rows(path: Path, said: str, column: str | None) -> tuple[Columns, Iterator[Row]]:
    """The columns and rows of a file. `said`: its name in errors."""
    if path.suffix.lower() == ".parquet":
        return _parquet_rows(path, said, column)
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return _json_rows(path, said, column)
    return _csv_rows(path, said, column)


def opened(path: Path, said: str) -> IO[str]:
    """Open a user's file of samples as text. `said`: its name in errors. UsageError for an invalid
    name; OSError."""
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
    """Yield (number, text) of each non-empty line."""
    with opened(path, said) as stream:
        number = 0
        while True:
            try:
                line = stream.readline(_LONGEST_LINE)
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{said}, line {number + 1}: is not text in UTF-8 ({error.reason})"
                ) from None
            if not line:
                return
            number += 1
            if len(line) >= _LONGEST_LINE:
                raise UsageError(f"{said}, line {number}: longer than {_LONGEST_LINE:,}")
            if line.strip():
                yield number, line


def json_objects(path: Path, said: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (its place, object) for each line of a JSON Lines file. Raises UsageError."""
    for number, line in lines_of(path, said):
        where = f"{said}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: is not JSON ({error}); give one object per line") from None
        if not isinstance(value, dict):
            raise UsageError(f"{where}: is a {type(value).__name__}; give one object per line")
        yield where, value


def _csv_rows(path: Path, said: str, column: str | None) -> tuple[Columns, Iterator[Row]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader((line for _, line in lines_of(path, said)), delimiter=delimiter)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise UsageError(f"{said}: is not CSV ({error})") from None
    if len(header) == 1 and header[0].isdecimal():
        return Columns("length", None, {}), _bare_rows(reader, header, said)
    columns = _columns(path, said, header, column)
    return columns, _cells(reader, header, columns, said)


def _bare_rows(reader: Any, header: list[str], said: str) -> Iterator[Row]:
    """Rows of a file with lengths only and no header."""
    yield f"{said}, line 1", header[0], 1, ()
    for where, cells in _csv_lines(reader, 1, said):
        yield where, cells[0], 1, ()


def _cells(reader: Any, header: list[str], columns: Columns, said: str) -> Iterator[Row]:
    places = [header.index(name) for name in columns.names]
    beside = columns.counts is not None
    for where, cells in _csv_lines(reader, max(places) + 1, said, len(header)):
        length, *others = (cells[at] for at in places)
        yield where, length, others[0] if beside else 1, tuple(others[beside:])


def _csv_lines(
    reader: Any, least: int, said: str, titles: int = 1
) -> Iterator[tuple[str, list[str]]]:
    """Yield (its place, cells) for each line with at least `least` cells."""
    try:
        for cells in reader:
            where = f"{said}, line {reader.line_num}"
            if len(cells) < least:
                raise UsageError(f"{where}: has {len(cells)} cells; the header has {titles}")
            yield where, cells
    except csv.Error as error:
        raise UsageError(f"{said}: is not CSV ({error})") from None


def _json_rows(path: Path, said: str, column: str | None) -> tuple[Columns, Iterator[Row]]:
    objects = json_objects(path, said)
    first = next(objects, None)
    if first is None:
        return Columns("length", None, {}), iter(())
    columns = _columns(path, said, list(first[1]), column)
    return columns, _entries(chain((first,), objects), columns)


def _entries(objects: Iterable[tuple[str, dict[str, Any]]], columns: Columns) -> Iterator[Row]:
    name, counts = columns.length, columns.counts
    for where, entry in objects:
        if name not in entry:
            raise UsageError(f"{where}: has no {name!r}; every line needs it")
        images = tuple(entry.get(one) for one in columns.images.values())
        yield where, entry[name], entry.get(counts, 1) if counts else 1, images


def opened_parquet(path: Path, said: str) -> Any:
    """Open a Parquet file with pyarrow. `said`: its name in errors. Raises UsageError."""
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise UsageError(f"{said}: does not exist; give the name of a file") from None
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"{said}: is not Parquet ({error})") from None


def _parquet_rows(path: Path, said: str, column: str | None) -> tuple[Columns, Iterator[Row]]:
    demand_installed(f"{said}: a Parquet file needs", "lengths", "pyarrow")
    with suppress(FileNotFoundError):
        demand_file(path, path.stat())
    file = opened_parquet(path, said)
    columns = _columns(path, said, list(file.schema_arrow.names), column)
    return columns, _batches(file, columns, f"{said}, column {columns.length}")


def _batches(file: Any, columns: Columns, where: str) -> Iterator[Row]:
    import pyarrow

    beside = columns.counts is not None
    for batch in file.iter_batches(columns=columns.names):
        values = batch.column(0)
        if pyarrow.types.is_list(values.type) or pyarrow.types.is_large_list(values.type):
            values = pyarrow.compute.list_value_length(values)
        others = [batch.column(at).to_pylist() for at in range(1, len(columns.names))]
        for length, *more in zip(values.to_pylist(), *others, strict=True):
            yield where, length, more[0] if beside else 1, tuple(more[beside:])


def _columns(path: Path, said: str, names: list[str], column: str | None) -> Columns:
    """The columns of a file. UsageError if none has lengths."""
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
    counts = next((lower[name] for name in COUNTS if name in lower and name != column), None)
    return Columns(found, counts, _image_columns(lower, said))


def _image_columns(lower: Mapping[str, str], said: str) -> Mapping[str, str]:
    """Image columns by meaning: sizes in pixels, or tokens. UsageError if a size is incomplete, or
    if both are given."""
    found = {name: lower[name] for name in IMAGE_COLUMNS if name in lower}
    sizes = [name for name in ("width", "height") if name in found]
    if len(sizes) == 1:
        missing = "height" if sizes == ["width"] else "width"
        raise UsageError(
            f"{said}: has a column {sizes[0]} but no column {missing}; sizes need both"
        )
    if sizes and "image_tokens" in found:
        raise UsageError(f"{said}: has image_tokens as well as width and height; keep one of them")
    if not sizes and "image_tokens" not in found:
        # Columns with other content, such as paths of images.
        return {}
    return found


def _counted(value: Any, where: str, least: int = 1) -> int:
    """A length, or the number of token ids in a list. `least`: 0 if image tokens are added later.
    Raises UsageError."""
    if isinstance(value, list):
        return demand_length(len(value), where)
    number = _whole(value, int)
    if number == 0 == least:
        return 0
    if number is None:
        raise UsageError(
            f"{where}: {_shown(value)} is not a length; lengths are whole numbers from 1 on"
        )
    return demand_length(number, where)


def _optional(value: Any, where: str) -> int | None:
    """The value of an image column; a list counts its items. Raises UsageError."""
    if value is None or value == "":
        return None
    number = len(value) if isinstance(value, list) else _whole(value, int)
    if number is None:
        raise UsageError(
            f"{where}: {_shown(value)} is not a whole number; columns of images contain numbers, "
            "pixels, frames or tokens, and are empty for a sample without images"
        )
    return number


def _number(value: Any, where: str) -> int:
    number = _whole(value, int)
    if number is None or not 0 <= number <= 10**15:
        raise UsageError(f"{where}: {_shown(value)} is not a number of samples")
    return number


def _whole(value: Any, make: Callable[[str], int]) -> int | None:
    """A cell or value as an integer; None for anything else."""
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
