"""Write what pages show anew: output of commands, tables, references made from the code.

    python examples/refresh_readme.py [PAGE ...]

Pages are README.md and those of docs/. Blocks stand in them, each up to `<!-- end -->`:

    <!-- run: planner check job.sh --gpus 32xH100 | "verdict" .. "Problems" -->
    <!-- setup: planner search --model 8b --gpus 8xH100 --gbs 64 -o plans.json -->
    <!-- docstrings: planner.cost.step.slowdown -->
    <!-- generated: errors -->

`run` shows a command and its output, or the parts of it between texts (without a second text: to
the end); `setup` runs without being shown. The commands of a page run in one folder, one after the
other, so a page can search and then launch what it found. `docstrings` are those of the functions
named, `generated` is a table of `BLOCKS`, or the link to one that is written as data (`DATA`).
Numbers of wall time differ from run to run; `comparable` leaves them out, for the test that the
pages are true.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner
from planner.cli import planner_command
from tests.documents.data_tables import DataTable

from page_accuracy import accuracy, accuracy_data, headline, memory_accuracy, tuning_tables
from page_data import (
    catalogue,
    catalogue_links,
    constants,
    frame_columns,
    options,
    public_file_tables,
    public_files,
    replay_groups,
    sample_rules,
)
from page_references import command_reference, docstrings
from page_tables import (
    axes,
    constant_links,
    error_parts,
    error_shares,
    first_sight,
    frame_links,
    option_links,
    replay_tables,
    sample_links,
)

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
COLUMNS = 80

_BLOCK = re.compile(
    r"(<!-- (run|setup|docstrings|generated): (.*?) -->\n).*?(<!-- end -->)", re.DOTALL
)
_PART = re.compile(r'^"(?P<start>[^"]*)"(?: \.\. "(?P<end>[^"]*)")?$')
# "1.83 s, 45,414 candidates/s costed": how long this machine took.
_WALL_TIME = re.compile(r"[\d.]+ m?s, [\d.,]+( M)? candidates/s")


def pages() -> list[Path]:
    """Pages that hold a block."""
    every = [README, *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if _BLOCK.search(page.read_text(encoding="utf-8"))]


def refreshed(page: str) -> str:
    """A page with every block made anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")

        def block(match: re.Match[str]) -> str:
            start, kind, what, end = match.groups()
            return start + _shown(kind, what, folder) + end

        return _BLOCK.sub(block, page)


def _shown(kind: str, what: str, folder: Path) -> str:
    match kind:
        case "generated":
            return BLOCKS[what]()
        case "docstrings":
            return docstrings(what.split())
        case "setup":
            _run(what, folder)
            return ""
        case _:
            return _run(what, folder)


def _run(what: str, folder: Path) -> str:
    """A command line and what it prints, cut as the block says, as a code block."""
    line, *parts = (text.strip() for text in what.split(" | "))
    shown = "".join(_parts(planner_output(shlex.split(line)[1:], folder), parts))
    return f"```console\n$ {line}\n{shown.rstrip()}\n```\n"


def _parts(output: str, parts: Sequence[str]) -> Iterator[str]:
    """The parts of an output, with dots for what is left out."""
    at = 0
    for part in parts or ['""']:
        cut = _PART.match(part)
        if cut is None or cut["start"] not in output[at:]:
            raise ValueError(f"{part}: not in\n{output}")
        first = output.index(cut["start"], at)
        if cut["end"] and cut["end"] not in output[first:]:
            raise ValueError(f"{part}: its end is not in\n{output}")
        if first > at:
            yield "...\n"
        at = output.index(cut["end"], first) if cut["end"] else len(output)
        yield output[first:at].rstrip() + "\n"
    if at < len(output):
        yield "...\n"


def planner_output(arguments: Sequence[str], folder: Path) -> str:
    """What the command prints into a pipe: its answer, or why there is none."""
    with chdir(folder):
        done = CliRunner(env={"COLUMNS": str(COLUMNS)}).invoke(
            planner_command, arguments, prog_name="planner"
        )
    # 1 says that a configuration does not fit, 2 that rules contradict, which some examples show.
    shown = done.stdout or done.stderr
    if done.exit_code not in (0, 1, 2) or not shown:
        raise RuntimeError(f"planner {' '.join(arguments)}: {done.stderr}") from done.exception
    return shown


BLOCKS: dict[str, Callable[[], str]] = {
    "axes": axes,
    "commands": command_reference,
    "options": option_links,
    "errors": error_parts,
    "error-shares": error_shares,
    "headline": headline,
    "accuracy": accuracy,
    "memory": memory_accuracy,
    "constants": constant_links,
    "first-sight": first_sight,
    "frame": frame_links,
    "frameworks": lambda: catalogue_links("frameworks"),
    "hardware": lambda: catalogue_links("hardware"),
    "models": lambda: catalogue_links("models"),
    "public-files": public_file_tables,
    "replay": replay_tables,
    "sample_rules": sample_links,
    "tuning": tuning_tables,
}
DATA: dict[str, Callable[[], Sequence[DataTable]]] = {
    "docs/accuracy.md": accuracy_data,
    "docs/errors.md": lambda: [constants()],
    "docs/launch_files_read.md": lambda: [public_files()],
    "docs/library.md": lambda: [frame_columns()],
    "docs/model/samples.md": lambda: [sample_rules()],
    "docs/model/tuning-runs.md": lambda: [replay_groups()],
    "docs/reference/catalogue.md": catalogue,
    "docs/reference/commands.md": lambda: [options()],
}
"""The tables that are written as data when a page is made anew."""


def comparable(text: str) -> str:
    """Text without wall times and line breaks, which follow from them."""
    return _WALL_TIME.sub("TIME", " ".join(text.split()))


if __name__ == "__main__":
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
        for table in DATA.get(page.relative_to(ROOT).as_posix(), list)():
            table.write(ROOT / "docs")
