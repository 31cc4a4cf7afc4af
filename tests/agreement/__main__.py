"""`python -m tests.agreement --searches 100 --seed 1`: every plan through all four commands.

What two of them disagree about is printed, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.agreement.jobs import job
from tests.agreement.walk import walk


def main() -> int:
    """Print a line a search, and every disagreement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--framework", default="", help="jobs of this framework alone")
    options = parser.parse_args()
    plans = written = disagreements = 0
    with TemporaryDirectory() as folder:
        for number in range(options.first, options.first + options.searches):
            started = time.perf_counter()
            request = job(options.seed, number, options.framework)
            where = f"{request.framework} {request.model} {request.gpus}"
            click.echo(f"{number}: {where}: ", nl=False)
            walked, found = walk(request, Path(folder) / "run")
            plans, written = plans + walked.plans, written + walked.written
            disagreements += len(found)
            said = walked.why_none or (
                f"{walked.plans} plans, {walked.written} written, {walked.refused} refused"
            )
            seconds = time.perf_counter() - started
            click.echo(f"{said} ({seconds:.1f} s)")
            for one in found[:3]:
                click.echo(f"  DISAGREE {one}")
    click.echo(f"{plans} plans, {written} written, {disagreements} disagreements")
    return int(disagreements > 0)


if __name__ == "__main__":
    sys.exit(main())
