"""What a sweep leaves: rows in the order of the grid, and beside them where each was searched."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hardware.files import shipped_toml
from planner.compare.sweep.grid import Grid
from planner.compare.sweep.journal import Journal
from planner.job.written_folder import refuse_names, write_folder

# Column -> its type in Arrow, its unit and what it means: of rows, and of where each was searched.
_COLUMNS = shipped_toml("planner.compare.sweep", "columns.toml")
FIGURES, PROVENANCE = _COLUMNS["figures"], _COLUMNS["provenance"]
_GROUP = 5_000
_NAMES = "results.parquet", "provenance.parquet"


def rows(grid: Grid, journal: Journal) -> Iterator[dict[str, Any]]:
    """A row for each search that is done and each price, in the order of the grid."""
    for labels, record in _done(grid, journal):
        for pricing, figures in zip(grid.pricings, record["rows"], strict=True):
            yield labels | dict(zip(grid.price_axes, pricing.labels, strict=True)) | figures


def provenance(grid: Grid, journal: Journal) -> Iterator[dict[str, Any]]:
    """Where and when each search that is done ran, in the order of the grid."""
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
    """Axes that are no figure of the rows anyhow, as the currency is."""
    return tuple(name for name in (*grid.axes, *grid.price_axes) if name not in FIGURES)


def refuse_results(folder: Path) -> None:
    """UsageError where the results would replace what no sweep wrote; before any search."""
    refuse_names(folder, _NAMES)


def write(grid: Grid, journal: Journal, folder: Path) -> tuple[Path, Path]:
    """results.parquet and provenance.parquet, each whole or not at all. OSError."""
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
    """A Parquet file: the labels as text, then figures with unit and meaning in the schema."""
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
