"""`planner doctor`, `warmup` and `completion`."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from planner._version import __version__
from planner.cli.errors import ExitStatus
from planner.cli.output import compile_if_first_run, print_report
from planner.cli.program import planner_command
from planner.report.tables import Facts, Notes, Report

_NEEDED = ("click", "llvmlite", "numba", "numpy", "ortools", "pandas", "pydantic", "rich")
# Packages of each extra, and their purpose.
_EXTRAS = {
    "plot": (("altair", "jinja2", "vl-convert-python"), "figures and pages"),
    "serve": (("altair", "jinja2", "starlette", "uvicorn", "vl-convert-python"), "planner serve"),
    "sweep": (("filelock", "pyarrow"), "planner sweep"),
    "ray": (("filelock", "pyarrow", "ray"), "planner sweep --engine ray"),
    "dask": (("filelock", "pyarrow", "distributed"), "planner sweep --engine dask"),
    "tune": (("filelock", "optuna"), "planner tune"),
    "probe": (("torch",), "planner probe"),
    "docs": (("mkdocs-material", "latex2mathml"), "the documentation as a site"),
}
# Ways in which the cost core runs, by the names of `planner.cost._entry.Way`.
_WAYS = {
    "shipped": "the library of this wheel",
    "translated": "the planner's own compiler, by llvmlite",
    "numba": "numba",
}
Rows = Iterator[tuple[str, str]]


def run_doctor() -> None:
    missing = [name for name in _NEEDED if _version(name) is None]
    verdict = "All that a search needs is there."
    if missing:
        verdict = f"Missing: {', '.join(missing)}. Cure: pip install --force-reinstall trainplan"
    facts = Facts(tuple(_programs())), Facts(tuple(_extras()), "Extras"), Facts(tuple(_places()))
    print_report(Report((*facts, Notes((verdict,)))))
    click.get_current_context().exit(ExitStatus.NOTHING_FITS if missing else ExitStatus.DONE)


def _programs() -> Rows:
    import planner

    yield "trainplan", f"{__version__}, in {Path(planner.__file__).parent}"
    yield "Python", f"{platform.python_version()} ({platform.system()} {platform.machine()})"
    yield "packages", ", ".join(f"{name} {_version(name) or 'MISSING'}" for name in _NEEDED)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _extras() -> Rows:
    for extra, (names, purpose) in _EXTRAS.items():
        absent = [name for name in names if _version(name) is None]
        cure = f"no: pip install 'trainplan[{extra}]' (lacks {', '.join(absent)})"
        yield extra, f"{purpose}: {cure if absent else 'yes'}"


def _places() -> Rows:
    yield "cost core", _core()
    yield "processors", f"{os.cpu_count()}"
    yield "terminal", _terminal()
    shell = Path(os.environ.get("SHELL", "bash")).name
    yield "completion", f"planner completion {shell if shell in ('zsh', 'fish') else 'bash'}"


def _core() -> str:
    """How the cost core runs here, and where its machine code is kept."""
    from planner.cost import _shipped
    from planner.cost._machine_code import cache_folder, why_not_kept
    from planner.cost._ordinary import is_asked, note
    from planner.predict.warmup import ENTRIES, missing

    if _version("llvmlite") is None:
        shipped = all(_shipped.has(entry.__name__) for entry in ENTRIES)
        return _WAYS["shipped"] if shipped else "CANNOT RUN without llvmlite"
    folder, wanted = cache_folder(), len(missing())
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    state = f"{wanted} parts to compile: planner warmup" if wanted else "compiled"
    ways = ", ".join(sorted({_WAYS[entry.way()] for entry in ENTRIES}))
    why = why_not_kept()
    keeps = f"; NOT KEPT ({why}): set PLANNER_CACHE_DIR to a folder of yours" if why else ""
    slowly = f"; {note()}" if is_asked() else ""
    return f"{ways}; {state}, {size / 2**20:.1f} MiB in {folder}{keeps}{slowly}"


def _terminal() -> str:
    columns = shutil.get_terminal_size().columns
    colour = "colours" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else "no colours"
    return f"{columns} columns, {sys.stdout.encoding}, {colour}"


def run_warmup(quiet: bool) -> None:
    compile_if_first_run(quiet)

    from planner.cost._machine_code import cache_folder, why_not_kept
    from planner.predict.warmup import missing

    why = why_not_kept() or (f"{cache_folder()} cannot be written" if missing() else "")
    if why:
        raise click.ClickException(
            f"nothing was kept: {why}; set PLANNER_CACHE_DIR to a folder that you alone can write "
            "to"
        )
    click.echo(f"compiled: {cache_folder()}")


def run_completion(shell: str) -> None:
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion is known for {shell}")
    click.echo(made(planner_command, {}, "planner", "_PLANNER_COMPLETE").source())
