"""What the fitting commands share: the runs they read, and how they end on wrong input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hardware.errors import HardwareError
from planner.evidence.runs.rows import PUBLISHED, MeasuredRow, read_rows
from planner.job.errors import UsageError


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    """The command with its arguments; exits with status 2 and the reason, no traceback, where they
    are wrong."""
    try:
        main(arguments)
    except (UsageError, HardwareError) as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)


def one_file(arguments: Sequence[str], shipped: str) -> Path:
    """The file that is given; without any, the one beside this module. UsageError otherwise."""
    paths = [Path(argument) for argument in arguments] or [Path(__file__).with_name(shipped)]
    if len(paths) != 1 or not paths[0].is_file():
        raise UsageError(f"given {' '.join(arguments)}; needed: one CSV file that exists")
    return paths[0]


def folder_of(arguments: Sequence[str]) -> tuple[list[str], Path]:
    """Paths of runs, and the folder after `-o`: that of the shipped data without it. UsageError
    where there is no such folder."""
    paths, folder = list(arguments), PUBLISHED.parent
    if "-o" in paths[:-1]:
        at = paths.index("-o")
        folder = Path(paths[at + 1])
        del paths[at : at + 2]
    if "-o" in paths or not folder.is_dir():
        raise UsageError("-o: give a folder that exists, after any RUNS.csv or folder of runs")
    return paths, folder


def measured_rows(paths: Sequence[str]) -> list[MeasuredRow]:
    """Measured runs of files and folders, of those that ship where none is given."""
    return [row for path in paths or (str(PUBLISHED),) for row in read_rows(Path(path))]


def rows_of_errors(paths: Sequence[str]) -> list[MeasuredRow]:
    """Those that errors are fitted on. State-space layers have a separate error beside that of
    models without (`planner.predict.uncertainty.residuals`), so their runs are not."""
    return [row for row in measured_rows(paths) if not row.says("mixer", "mamba")]
