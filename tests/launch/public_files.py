"""Public launch files, checked as their users would: `docs/data/public-launch-files.csv`.

    python -m tests.launch.public_files FOLDER [--half "held-out 2"]

FOLDER holds each repository's files at `owner+name/path`, as of the commit in the table. Printed
is, for each file, what `check` makes of it beside the verdict in the table; files that are not
there are named.
"""

from __future__ import annotations

import argparse
import csv
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click

from hardware.errors import HardwareError
from planner.job.errors import CannotTellError, UsageError
from planner.launch.check.assess import Assessment, assess
from planner.launch.check.given import read_given
from planner.launch.check.world import stated_gpus
from planner.launch.read.found import Found, Hints
from planner.launch.read.launch import read_launch

TABLE = Path(__file__).parents[2] / "docs" / "data" / "public-launch-files.csv"
HALVES = ("development", *(f"held-out {number}" for number in range(1, 27)))
# prediction: of what the file asks for; right refusal: says what is missing, not modelled or
# broken; wrong: neither, or of something else; cannot tell: it takes the machine to know.
VERDICTS = ("prediction", "right refusal", "wrong", "cannot tell")
_GPUS = re.compile(r"(MI300X|MI325X|MI355X|GB200|GB300|B200|B300|H200|A100)", re.IGNORECASE)
# Google's machine types.
_MACHINES = {"a4x": "GB200", "a4": "B200", "a3ultra": "H200", "a3mega": "H100"}
_NODE = 8
_NUMBERS = ("vocab", "seq", "mbs", "gbs", "grad_acc")


@dataclass(frozen=True)
class Outcome:
    """What `check` makes of a file, in words, in seconds, with the options given.

    `kind`: prediction, refused (exit 2), or a verdict of `check`.
    """

    kind: str
    words: str
    seconds: float
    options: str


def machine(path: Path, found: Found) -> str:
    """GPUs to check on: as many as the files start, else the fewest nodes that the degrees fill."""
    named = _GPUS.search(str(path))
    folder = next((gpu for part, gpu in _MACHINES.items() if part in path.parts), "H100")
    gpu = named[1].upper() if named else folder
    if world := found.world or stated_gpus(found):
        return f"{world}x{gpu}"
    replica = found.tp * found.pp * found.cp
    needed = max(replica * (found.dp or 1), found.ep * (found.etp or 1) * found.pp)
    gpus = -(-needed // _NODE) * _NODE
    # No more replicas than the batch has micro-batches for.
    counted = found.gbs if found.framework.startswith(("megatron", "primus")) else None
    most = replica * max(1, counted // found.mbs) if counted else gpus
    return f"{min(gpus, most)}x{gpu}"


def outcome(path: Path, options: str = "") -> Outcome:
    """What `check` makes of a file, with the options that its user would add."""
    words = shlex.split(options)
    started = time.monotonic()
    hints = _hints(words)
    try:
        found = read_launch([path], hints)
        if "--gpus" not in words:
            words += ["--gpus", machine(path, found)]
        gpus = words[words.index("--gpus") + 1]
        given = read_given([str(path)], _hints(words), 1, gpus, None)
        kind, said = _judged(assess(given.found, given.gpus))
    except (UsageError, HardwareError) as error:
        kind, said = "refused", str(error)
    except CannotTellError as error:
        kind, said = "cannot tell", str(error)
    return Outcome(kind, " ".join(said.split()), time.monotonic() - started, shlex.join(words))


def _hints(words: Sequence[str]) -> Hints:
    """What options say that reading takes into account."""
    pairs = list(pairwise(words))
    named = {name[2:].replace("-", "_"): value for name, value in pairs if name.startswith("--")}
    numbers = {name: int(named[name]) for name in _NUMBERS if name in named}
    environment = dict(value.split("=", 1) for name, value in pairs if name == "--env")
    return Hints(environment=environment, model=named.get("model"), **numbers)


def _judged(assessment: Assessment) -> tuple[str, str]:
    """Kind of outcome and its reason."""
    verdict = assessment.verdict
    if assessment.plan is not None and not assessment.errors:
        plan = assessment.plan
        return (
            "prediction",
            f"{verdict}: {plan.step_time_s:.3g} s, {plan.peak_bytes / 2**30:.1f} GiB",
        )
    reasons = assessment.errors or assessment.unpredictable or assessment.problems
    return verdict, "; ".join(f"{one.rule}: {one.text}" for one in reasons)


def rows(half: str | None = None) -> Iterator[dict[str, str]]:
    """Rows of the table, of one half or all."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        yield from (row for row in csv.DictReader(file) if half in (None, row["half"]))


def shares(done: Iterable[tuple[Mapping[str, str], Outcome]]) -> Iterator[str]:
    """Counts of each half: outcomes now, verdicts of the table, verdicts as first judged."""
    by_half: dict[str, list[tuple[Mapping[str, str], Outcome]]] = {}
    for row, one in done:
        by_half.setdefault(row["half"], []).append((row, one))
    for half, found in by_half.items():
        yield f"{half}: {len(found)} files"
        yield "  now: " + _counted(one.kind for _, one in found)
        yield "  judged: " + _counted(row["verdict"] for row, _ in found)
        yield "  judged before anything was mended for them: " + _counted(
            row["first verdict"] for row, _ in found
        )


def _counted(words: Iterable[str]) -> str:
    """`prediction 40 (43 %), …`."""
    counts = Counter(words)
    return ", ".join(
        f"{name or 'not judged'} {count} ({count / counts.total():.0%})"
        for name, count in counts.most_common()
    )


def run(folder: Path, half: str | None) -> int:
    """Check every file of the table that is in the folder and print what comes out."""
    done: list[tuple[Mapping[str, str], Outcome]] = []
    for row in rows(half):
        path = folder / row["repository"].replace("/", "+") / row["path"]
        if not path.is_file():
            click.echo(f"not there: {path}", err=True)
            continue
        one = outcome(path, row["options"])
        done.append((row, one))
        click.echo(
            f"{one.kind:13} {row['verdict']:14} {row['dialect']:18} {row['repository']} "
            f"{row['path']} [{one.options}] {one.seconds:.1f} s: {one.words[:300]}"
        )
    for line in shares(done):
        click.echo(line)
    return 0 if done else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=HALVES)
    arguments = parser.parse_args()
    sys.exit(run(arguments.folder, arguments.half))
