"""`planner lengths`: lengths of the samples in a data set, in tokens."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

from planner.cli.output import check_files, show, watched, write_plot
from planner.job.errors import UsageError
from planner.job.length_count import MESSAGE_TOKENS, count_lengths
from planner.job.length_files import counts_of_file
from planner.job.samples import Lengths, lengths_of
from planner.job.written import write_text
from planner.report.lengths import lengths_page, lengths_record, lengths_report, plot_lengths


def run(**options: Any) -> None:
    output = check_files(options)
    lengths, left_out = _found(options, output)
    if options["plot"] is not None:
        write_plot(options["plot"], lambda: plot_lengths(lengths), lambda: lengths_page(lengths))
    show(
        options["as_json"],
        lambda: lengths_record(lengths) | {"left_out": left_out},
        lambda: lengths_report(lengths, left_out, output),
    )


def _found(options: dict[str, Any], output: Path | None) -> tuple[Lengths, int]:
    """The lengths, and the number of samples that hold no token and are left out. Writes the
    lengths if -o is given."""
    if options["tokenizer"] is None and options["columns"]:
        raise UsageError(
            f"{options['data']}: --column names texts, which a tokenizer counts; give --tokenizer "
            f"FILE, or of lengths {options['data']}:COLUMN"
        )
    counts = (
        counts_of_file(options["data"], "") if options["tokenizer"] is None else _counted(options)
    )
    left_out = counts.pop(0, 0)
    if not counts:
        raise UsageError(f"{options['data']}: no sample holds a token; name another --column")
    if output is not None:
        write_text(output, _csv(counts), force=options["force"])
    name = f"{Path(options['data']).name}: {sum(counts.values()):,} samples"
    pairs = ((float(length), float(number)) for length, number in counts.items())
    return lengths_of(pairs, name), left_out


def _counted(options: dict[str, Any]) -> Counter[int]:
    columns = tuple(
        name.strip() for text in options["columns"] for name in text.split(",") if name.strip()
    )
    extra = options["message_tokens"]
    with watched(options["quiet"], kept="nothing was written") as watch:
        return count_lengths(
            Path(options["data"]),
            Path(options["tokenizer"]),
            columns,
            MESSAGE_TOKENS if extra is None else extra,
            lambda done, total: watch("counting tokens", done, total),
        )


def _csv(counts: Counter[int]) -> str:
    """The lengths as CSV with the columns `length` and `samples`, which `--lengths` can read."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("length", "samples"))
    writer.writerows(sorted(counts.items()))
    return out.getvalue()
