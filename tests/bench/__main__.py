"""`python -m tests.bench` measures and writes tests/bench/REPORT.md.

    python -m tests.bench [--before CHECKOUT] [--calculon CHECKOUT] [--quick]

Every figure is of a process of its own. Processor seconds are user and system of a process and
those it waited for: on a busy machine they say more than the clock.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.bench import calculon, measure, ratios
from tests.bench.measure import COMMANDS, KERNEL_JOBS, LARGE, MAIN, Figures
from tests.bench.process import HERE, Checkout
from tests.bench.report import Metric, Row, section, table

REPORT = HERE / "REPORT.md"
SECTIONS = ("first_answer", "warm", "kernel", "instructions", "calculon")
SHARED = (
    " The machine was shared with other work: the clock says little, and processor seconds are "
    "more than on a quiet one, by up to two thirds; ratios of one run hold better."
)
_WALL = Metric("wall_s", "wall s")
_CPU = Metric("cpu_s", "CPU s")


class Bench:
    """The checkouts of a run, and the sections of its report."""

    def __init__(self, options: argparse.Namespace, after: Checkout, before: Checkout | None):
        self.options, self.after, self.before = options, after, before
        self.repeats = 1 if options.quick else options.repeats
        self.slips: list[str] = []

    def row(self, name: str, figures: Callable[[Checkout], Figures]) -> Row:
        """Figures of the sources here and of those before."""
        print(f"{datetime.now(UTC):%H:%M:%S} {name}", file=sys.stderr)
        before = None if self.before is None else figures(self.before)
        return Row(name, figures(self.after), before)

    def first_answer(self) -> str:
        """Compiling, the cache, and the first search of a process."""
        cold = [self.row("`search`, 70b on 64 H100", self._first)]
        metrics = [
            _WALL, _CPU, Metric("compiling_wall_s", "of it compiling, wall s"),
            Metric("compiling_cpu_s", "compiling, CPU s"),
            Metric("share", "compiling, % of CPU", 0, compared=False),
            Metric("cache_mb", "cache, MB", 1),
        ]  # fmt: skip
        return section(
            "First answer",
            f"`planner {MAIN}` with an empty cache folder; compiling is the difference to the "
            "same command run again.",
            table("job", metrics, cold),
            self._twice(),
        )

    def _first(self, checkout: Checkout) -> Figures:
        kept = checkout.cache
        if kept is None or any(kept.iterdir()):
            return {}
        return measure.first_answer(checkout)

    def _twice(self) -> str:
        """First search of a process against the second."""
        print("twice in a process", file=sys.stderr)
        after = measure.searched_twice(self.after)
        before = None if self.before is None else measure.searched_twice(self.before)
        names = ("with imports and start", "modules imported beforehand")
        rows = [
            Row(name, after[index], None if before is None else before[index])
            for index, name in enumerate(names)
        ]
        metrics = [
            Metric("first_s", "first, CPU s"), Metric("second_s", "second, CPU s"),
            Metric("ratio", "first / second"),
        ]  # fmt: skip
        return table("search twice in one process, compiled", metrics, rows)

    def warm(self) -> str:
        """Commands against bare imports."""
        bare = self.row("bare imports", lambda item: measure.bare_imports(item, self.repeats))
        rows = [bare]
        for name, arguments in COMMANDS.items():
            if self.options.quick and name in LARGE:
                continue
            rows.append(
                self.row(name, lambda item, text=arguments: self._warm(item, text, bare))  # type: ignore[misc]
            )
        self.slips = self._compared(ratios.ratios_of(rows))
        metrics = [
            _CPU, Metric("ratio", "CPU / bare imports"), _WALL, Metric("peak_mib", "peak MiB", 0),
            Metric("imports", "imports", compared=True),
        ]  # fmt: skip
        lines = [f"* {name}: `planner {text}`" for name, text in COMMANDS.items()]
        return section(
            "Warm commands",
            f"Compiled core; fewest seconds of {self.repeats} runs. Bare imports: "
            f'`python -c "{measure.IMPORTS}"`.',
            table("command", metrics, rows),
            "\n".join(lines),
            "\n".join(f"* SLOWER: {text}" for text in self.slips)
            or "No command is slower, in multiples of the bare imports, by a tenth than when its "
            "ratio was last accepted (`ratios.json`).",
        )

    def _compared(self, now: dict[str, float]) -> list[str]:
        """What has slipped; the ratios are recorded."""
        found = list(ratios.slips(ratios.read(), now))
        ratios.record(now, accept=self.options.accept_slower)
        return [] if self.options.accept_slower else found

    def _warm(self, checkout: Checkout, arguments: str, bare: Row) -> Figures:
        imports = bare.after if checkout is self.after else bare.before
        assert imports is not None
        return measure.warm(checkout, arguments, dict(imports), self.repeats)

    def kernel(self) -> str:
        """Rates of the compiled loops."""
        rows = [
            self.row(name, lambda item, job=job: measure.rates(item, job))  # type: ignore[misc]
            for name, job in KERNEL_JOBS.items()
            if not (self.options.quick and name in LARGE)
        ]
        metrics = [
            Metric("shapes", "candidates", 0, compared=False),
            Metric("rate", "candidates / CPU s, one thread", 0),
            Metric("threads", "two threads / one"),
            Metric("bounds", "bounded / CPU s, one thread", 0),
            Metric("bound_threads", "bounds, two threads / one"),
        ]
        return section(
            "Kernel",
            "All legal shapes of a job costed: loops over keys (all kinds of context exchange) "
            "and over shapes, as a search calls them. Bounds: of a candidate at every memory limit "
            "of a search. Two threads / one: processor seconds of the one thread over those of "
            "the busiest of two. What is lost to 2 is the uneven last part and the second "
            "processor's share of caches and memory; what the clock shows besides is what the "
            "machine gives to others.",
            table("job", metrics, rows),
        )

    def instructions(self) -> str:
        """Callgrind against the arithmetic."""
        name, job = next(iter(KERNEL_JOBS.items()))
        rows = [self.row(name, lambda item: measure.instructions(item, job))]
        metrics = [
            Metric("candidates", "candidates in the sample", 0, compared=False),
            Metric("instructions", "instructions / candidate", 0),
            Metric("operations", "operations / candidate", 0),
            Metric("ratio", "instructions / operation"),
            Metric("arithmetic", "of them arithmetic", 0), Metric("comparison", "comparisons", 0),
            Metric("function", "min, max, roots, rounding", 0),
        ]  # fmt: skip
        return section(
            "Instructions",
            "`cost_shapes` under callgrind, twice as often less once, so that start and loading "
            "drop out. Operations: what the same function computes in plain Python on the same "
            "shapes, counted as it runs; reads, writes and branches are not; "
            "some integer arithmetic of indices is.",
            table("job", metrics, rows),
        )

    def calculon(self) -> str:
        """The three jobs of GPT-3."""
        folder = self.options.calculon
        rows = []
        for gpus in calculon.GPUS:
            name = f"GPT-3 175B on {gpus:,} A100"
            row = self.row(name, lambda item, gpus=gpus: calculon.ours(item, gpus))  # type: ignore[misc]
            rows.append(row)
        metrics = [
            _WALL, _CPU, Metric("candidates", "legal candidates", 0),
            Metric("rate", "candidates / CPU s", 0),
        ]  # fmt: skip
        tables = [table("`planner search`", metrics, rows)]
        if folder:
            theirs = [
                Row(
                    f"GPT-3 175B on {gpus:,} A100",
                    calculon.calculon(
                        folder.resolve(), self.options.calculon_python, gpus,
                        self.options.calculon_seconds,
                    ),
                )
                for gpus in calculon.GPUS
            ]  # fmt: skip
            of_sample = [
                Metric("share", "parts of its search in the sample, %", 1),
                Metric("candidates", "candidates costed", 0),
                Metric("rate", "candidates / CPU s", 0),
                Metric("cpu_s", "CPU s of the whole search at this rate", 0),
            ]
            tables.append(table("Calculon", of_sample, theirs))
        return section(
            "GPT-3 175B, against Calculon",
            "Batch 1,536 of 2,048 tokens, A100-80GB. `planner`, seconds of the whole process: it "
            "looks for the whole front and proves it. Calculon looks for the fastest execution, "
            "with its second memory tier off, its logging silenced, `--mbs-break`, on one "
            "processor: a random sample of the parts of its search (degrees, recomputation, "
            f"sharding), begun within {self.options.calculon_seconds:g} s of processor time.",
            *tables,
        )

    def sections(self) -> Iterator[str]:
        """The report's sections, measured one after the other."""
        wanted = self.options.only.split(",") if self.options.only else SECTIONS
        for name in wanted:
            yield getattr(self, name)()


def machine() -> str:
    """Where and with what was measured."""
    processor = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        lines = information.read_text(encoding="utf-8").splitlines()
        processor = next(
            (line.partition(": ")[2] for line in lines if "model name" in line), processor
        )
    packages = ", ".join(f"{name} {version(name)}" for name in ("numba", "ortools", "pandas"))
    return f"{os.cpu_count()} × {processor}, Python {platform.python_version()}, {packages}"


def revision(folder: Path) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", str(folder), "log", "-1", "--format=%h of %cs"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def load() -> str:
    """Processes that wanted a processor, on average over a minute."""
    return f"{os.getloadavg()[0]:.1f}"


def heading(bench: Bench, began: str, load_before: str) -> str:
    """What the report is of."""
    versions = f"`{revision(bench.after.folder)}`"
    if bench.before is not None:
        versions = f"before `{revision(bench.before.folder)}`, after {versions}"
    return (
        "# Benchmarks\n\n"
        f"Written by `python -m tests.bench`; {versions}. {began} to "
        f"{datetime.now(UTC):%H:%M} UTC; {machine()}. Load average {load_before} at the start, "
        f"{load()} at the end{'; a quick run' if bench.options.quick else ''}."
        f"{SHARED if float(load()) > (os.cpu_count() or 1) + 1 else ''}"
    )


def parsed() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--before", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--before-cache", type=Path, help="its compiled core; else from scratch")
    parser.add_argument("--after-cache", type=Path, help="the same of these sources")
    parser.add_argument("--calculon", type=Path, help="checkout of Calculon to compare with")
    parser.add_argument(
        "--calculon-seconds", type=float, default=60.0, help="processor time of each of its jobs"
    )
    parser.add_argument("--calculon-python", default=sys.executable, help="runs Calculon")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each warm command")
    parser.add_argument("--quick", action="store_true", help="one run of each, no large jobs")
    parser.add_argument("--only", default="", help=f"of {', '.join(SECTIONS)}: those with commas")
    parser.add_argument(
        "--accept-slower", action="store_true", help="record the ratios of slower commands"
    )
    parser.add_argument("--output", type=Path, default=REPORT)
    return parser.parse_args()


def main() -> None:
    """Measure and write."""
    options = parsed()
    began, load_before = f"{datetime.now(UTC):%Y-%m-%d %H:%M}", load()
    with tempfile.TemporaryDirectory() as new, tempfile.TemporaryDirectory() as old:
        before = None
        if options.before:
            before = Checkout(options.before.resolve(), options.before_cache or Path(old))
        bench = Bench(options, Checkout(HERE.parents[1], options.after_cache or Path(new)), before)
        texts: list[str] = []
        for text in bench.sections():
            texts.append(text)
            whole = "\n\n".join([heading(bench, began, load_before), *texts])
            options.output.write_text(whole + "\n", encoding="utf-8")
    print(options.output)
    if bench.slips:
        raise SystemExit("\n".join(f"slower: {text}" for text in bench.slips))


if __name__ == "__main__":
    main()
