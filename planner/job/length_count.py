"""Counting the tokens of texts with a tokenizer, for `planner lengths`.

A row of the data holds a text, several texts in sequence (a prompt and its answer), or a
conversation. Texts are read a few hundred at a time, however large the file is.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from planner.job.errors import UsageError, demand_installed
from planner.job.length_files import json_objects, opened, opened_parquet
from planner.job.samples import demand_length

# Usual names of columns with texts, most likely first.
KNOWN = (
    ("messages",), ("conversations",), ("conversation",), ("text",), ("prompt", "completion"),
    ("prompt", "response"), ("instruction", "input", "output"), ("instruction", "output"),
    ("question", "answer"), ("content",),
)  # fmt: skip
# Tokens that a chat template adds to a message: start and end marks, role, newlines (ChatML's
# `<|im_start|>role\n … <|im_end|>\n`; Llama 3 adds the same number).
MESSAGE_TOKENS = 5
_LISTED = ("messages", "conversations", "conversation")
_AT_A_TIME = 256
_LONGEST_FIELD = 2**28
_SHOWN = 12
Tell = Callable[[int, int], None]
Row = tuple[str, dict[str, Any]]


def count_lengths(
    path: Path, tokenizer: Path, columns: tuple[str, ...], message_tokens: int, tell: Tell
) -> Counter[int]:
    """Number of samples of each length in tokens; samples without a token count under 0.

    `columns`: the columns with the texts; if none are given, those of `KNOWN`. `tell(done, total)`
    reports progress in bytes, or in rows of a Parquet file. Raises UsageError or OSError.
    """
    encoder = _encoder(tokenizer)
    rows = _rows(path, tell)
    first = next(rows, None)
    if first is None:
        raise UsageError(f"{path}: contains no sample; give a file with at least one")
    names = _columns(path, first[1], columns)
    found: Counter[int] = Counter()
    all_rows = _with_first(first, rows)
    while some := list(islice(all_rows, _AT_A_TIME)):
        found.update(_lengths(encoder, some, names, message_tokens))
    return found


def _with_first(first: Row, rows: Iterator[Row]) -> Iterator[Row]:
    yield first
    yield from rows


def _encoder(path: Path) -> Any:
    """The tokenizer of a `tokenizer.json` file or of a folder that holds one. Raises UsageError."""
    demand_installed("planner lengths needs", "lengths", "tokenizers")
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(
            f"--tokenizer {path}: there is no such file; give the tokenizer.json of the model, or "
            "the folder that contains it"
        )
    try:
        return Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain Exception
        raise UsageError(
            f"--tokenizer {path}: is not a tokenizer.json that the tokenizers library can read "
            f"({error})"
        ) from None


def _lengths(
    encoder: Any, rows: list[Row], names: tuple[str, ...], message_tokens: int
) -> Iterator[int]:
    """Tokens of each row: those of all its texts, plus `message_tokens` per message for the
    template."""
    texts: list[str] = []
    owners: list[int] = []
    added, chat = [0] * len(rows), False
    for at, (where, row) in enumerate(rows):
        for name in names:
            for text, of_message in _texts(row.get(name), name, where):
                texts.append(text)
                owners.append(at)
                added[at] += message_tokens if of_message else 0
                chat = chat or of_message
    encoded = encoder.encode_batch(texts, add_special_tokens=not chat)
    for owner, one in zip(owners, encoded, strict=True):
        added[owner] += len(one.ids)
    for (where, _), tokens in zip(rows, added, strict=True):
        yield demand_length(tokens, where) if tokens else 0


def _texts(value: Any, name: str, where: str) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether it is a message) for a value. UsageError if it is neither."""
    if value is None or value == "":
        return
    if isinstance(value, str) and name in _LISTED and value.lstrip().startswith("["):
        value = _parsed(value, where, name)
    if isinstance(value, str):
        yield value, False
        return
    if not isinstance(value, list):
        raise UsageError(
            f"{where}: {name!r} is a {type(value).__name__}; give a column of texts, or of messages"
        )
    for message in value:
        yield _content(message, where, name), True


def _parsed(text: str, where: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: {name!r} is not a list of messages in JSON") from None


def _content(message: Any, where: str, name: str) -> str:
    """The text of a message: `content`, or `value` as in ShareGPT; the texts of its parts, if
    any."""
    if isinstance(message, dict):
        content = message.get("content", message.get("value"))
        if isinstance(content, list):
            parts = (part.get("text") for part in content if isinstance(part, dict))
            content = "".join(part for part in parts if isinstance(part, str))
        if content is None:
            content = ""
        if isinstance(content, str):
            return content
    raise UsageError(
        f"{where}: {name!r} does not contain messages; each must be an object with role and content"
    )


def _columns(path: Path, row: dict[str, Any], given: tuple[str, ...]) -> tuple[str, ...]:
    """The columns with texts: the given ones, or those with known names. Raises UsageError."""
    names = list(row)
    missing = [name for name in given if name not in row]
    found = given or next((some for some in KNOWN if all(name in row for name in some)), ())
    if missing or not found:
        listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        wanted = ", ".join(missing) if missing else "messages, text or prompt and completion"
        raise UsageError(
            f"{path}: has no column {wanted}; it has {listed or 'none'}. Name the columns with "
            f"the texts, in their order: --column {names[0] if names else 'NAME'}"
        )
    return found


def _rows(path: Path, tell: Tell) -> Iterator[Row]:
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return _told(path, tell, json_objects(path, str(path)))
        case ".csv" | ".tsv":
            return _csv_rows(path, tell)
        case ".parquet":
            return _parquet_rows(path, tell)
    raise UsageError(
        f"{path}: give samples as JSON lines (.jsonl, one object per line), CSV or Parquet"
    )


def _told(path: Path, tell: Tell, rows: Iterable[Row]) -> Iterator[Row]:
    """Rows of a file of lines, reporting progress in bytes."""
    total = path.stat().st_size if path.is_file() else 0
    done = 0
    for number, (where, row) in enumerate(rows):
        if number % _AT_A_TIME == 0:
            tell(min(done, total), total)
        done += sum(len(value) for value in row.values() if isinstance(value, str))
        yield where, row


def _csv_rows(path: Path, tell: Tell) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    with opened(path, str(path)) as stream:
        reader = csv.DictReader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")

        def rows() -> Iterator[Row]:
            for row in reader:
                yield f"{path}, line {reader.line_num}", {str(k): v for k, v in row.items()}

        try:
            yield from _told(path, tell, rows())
        except (csv.Error, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: is not CSV in UTF-8 ({error})") from None


def _parquet_rows(path: Path, tell: Tell) -> Iterator[Row]:
    demand_installed("planner lengths of a Parquet file needs", "lengths", "pyarrow")
    file = opened_parquet(path, str(path))
    done = 0
    for batch in file.iter_batches(batch_size=_AT_A_TIME):
        tell(done, file.metadata.num_rows)
        for row in batch.to_pylist():
            done += 1
            yield f"{path}, row {done}", row
