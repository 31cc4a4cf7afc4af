"""Write the README's generated blocks anew: true output, and the table of errors by family.

    python examples/refresh_readme.py

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`. Numbers of wall time
differ from run to run; `comparable` leaves them out, for the test that the README is true.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

from planner.job.markdown import markdown_table
from planner.predict.uncertainty.families import Family
from planner.predict.uncertainty.intervals import log_bounds, widened
from planner.predict.uncertainty.residuals import ResidualTable, shipped_tables

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
# Written by planner.report.accuracy; a path that links resolve on the page, too.
ACCURACY = "planner/evidence/data/accuracy"
MAIN_JOB = ("search", "--model", "70b", "--gpus", "64xH100", "--gbs-tokens", "4M")

MEMORY = ("memory", "--model", "gpt2", "--mbs", "12", "--seq", "1024", "--framework", "nanogpt")
ADVICE = (
    *("memory", "--model", "llama-3-8b", "--gpus", "8xH100", "--mbs", "2", "--grad-acc", "8"),
    "--advise",
)
CONFLICT = (*MAIN_JOB, "--require", "pp <= 4", "--require", "pp >= 8")
NOTHING_FITS = ("search", "--model", "8b", "--gpus", "2xH100", "--gbs", "16", "--recompute", "none")
OFFLOAD = (
    *("search", "--model", "8b", "--gpus", "8xH100", "--gbs", "64", "--seq", "32768"),
    *("--tp", "1,2", "--mbs", "1", "--activation-offload", "search", "--top", "3"),
)
LAUNCH = ("launch", "plans.json", "2", "--nodes-as", "slurm", "-o", "run/")
WHAT_IF = ("explain", "plans.json", "1", "--what-if", "--no-neighbours")
CHECK = ("check", "examples/05_check_a_script/pretrain_moe.sh", "--gpus", "32xH100")
CLUSTERS = ("64xH100", "64xH200", "48xB200", "256xA100", "64xMI300X")
COMPARE = (
    *("compare", "--model", "70b", "--tokens", "15T"),
    *(word for cluster in CLUSTERS for word in ("--gpus", cluster)),
)
SCALE = (
    *("scale", "--model", "405b", "--gpus", "H100", "--from", "512", "--to", "16384"),
    *("--batch", "fixed", "--price-kind", "owned"),
)

_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
# "1.83 s, 45,414 candidates/s costed": how long this machine took.
_WALL_TIME = re.compile(r"[\d.]+ m?s, [\d.,]+( M)? candidates/s")


def planner_output(*arguments: str, folder: Path = ROOT) -> str:
    """What the command prints into a pipe: its answer, or why there is none."""
    environment = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "planner", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    # 1 says that a configuration does not fit, 2 that rules contradict, which some examples show.
    shown = done.stdout or done.stderr
    if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr or not shown:
        raise RuntimeError(f"planner {' '.join(arguments)}: {done.stderr}")
    return shown


def console(arguments: Sequence[str], shown: str) -> str:
    """A command and what it prints as a code block."""
    words = (f'"{word}"' if " " in word else word for word in arguments)
    return f"```console\n$ planner {' '.join(words)}\n{shown.rstrip()}\n```\n"


def between(text: str, start: str, end: str = "") -> str:
    """The part of an output from a heading to another, with dots for what is left out."""
    first = text.index(start)
    last = text.index(end, first) if end else len(text)
    before = "...\n" if first else ""
    return f"{before}{text[first:last].rstrip()}\n" + ("...\n" if end else "")


def conflict() -> str:
    """Rules of a user that contradict each other."""
    return console(CONFLICT, planner_output(*CONFLICT))


def nothing_fits() -> str:
    """Why nothing fits, and what would."""
    return console(NOTHING_FITS, between(planner_output(*NOTHING_FITS), "No config", "\n±: 80"))


def offload() -> str:
    """Plans with activations on the host."""
    return console(OFFLOAD, between(planner_output(*OFFLOAD), "      ", "\nMFU: "))


def of_the_plans(arguments: Sequence[str]) -> str:
    """The output of a command that reads the main job's plan file."""
    with tempfile.TemporaryDirectory() as name:
        planner_output(*MAIN_JOB, "-o", "plans.json", folder=Path(name))
        return planner_output(*arguments, folder=Path(name))


def launch() -> str:
    """A launch folder."""
    return console(LAUNCH, of_the_plans(LAUNCH))


def what_if() -> str:
    """What binds, and what one change would bring."""
    return console(WHAT_IF, between(of_the_plans(WHAT_IF), "Constraints (", "\nPlans of"))


def check() -> str:
    """What is wrong with a script."""
    return console(CHECK, planner_output(*CHECK))


def compare() -> str:
    """Clusters compared: what does not hang on the prices of the day."""
    text = planner_output(*COMPARE)
    plans = between(text, "Plans\n", "\ndays: with")
    return console(COMPARE, between(text, "model ", "\nCost of the run").rstrip() + plans[3:])


def scale() -> str:
    """Throughput against the number of GPUs."""
    return console(SCALE, between(planner_output(*SCALE), "model ", "\nStep times"))


def main_job() -> str:
    """The main job's output as a code block."""
    command = " ".join(("planner", *MAIN_JOB))
    return f"```console\n$ {command}\n{planner_output(*MAIN_JOB)}```\n"


def memory_of_one_gpu() -> str:
    """Where the memory of a small run goes."""
    return f"```console\n$ planner {' '.join(MEMORY)}\n{planner_output(*MEMORY)}```\n"


def memory_advice() -> str:
    """The tables of advice for a run that does not fit."""
    text = planner_output(*ADVICE)
    tables = text[text.index("Changes that make it fit") : text.index("\n±: 80 %")]
    return f"```console\n$ planner {' '.join(ADVICE)}\n...\n{tables}...\n```\n"


def errors_by_family() -> str:
    """Table of the 80 % intervals that ship, all runs last."""
    tables = shipped_tables()
    families = sorted({item for table in tables.values() for item in table.families()})
    titles = "framework | GPU architecture | scale | model | step time | runs | peak memory | runs"
    rows = (
        (
            *(part or "any" for part in family),
            *(cell for table in tables.values() for cell in _interval_cells(table, family)),
        )
        for family in (*families, Family())
    )
    return markdown_table(titles.split(" | "), rows) + "\n"


def _interval_cells(table: ResidualTable, family: Family) -> tuple[str, str]:
    """Interval and runs of a family's own; a dash where it has none."""
    if table.nearest(family) != family:
        return "-", "0"
    found = widened(table.spread(family), 0.0, table.figure)
    low, high = (abs(exp(end) - 1.0) for end in log_bounds(found))
    return f"-{low * 100:.0f} to +{high * 100:.0f} %", f"{found.rows:,}"


def accuracy() -> str:
    """Errors, coverage and picks by source, and the worst rows, from accuracy.toml."""
    content = tomllib.loads((ROOT / f"{ACCURACY}.toml").read_text(encoding="utf-8"))
    parts = (
        f"![Predicted against measured step time]({ACCURACY}.svg)",
        f"Measured on {content['date']} by `{content['command']}`; "
        f"{content['rows'] - content['refused']:,} of {content['rows']:,} runs predicted.",
        _error_table(content, "time", "step time"),
        _error_table(content, "memory", "peak memory"),
        _reliability_table(content["fit_bin"]) if "fit_bin" in content else "",
        _pick_table(content),
        _worst_table(content["worst"]),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def memory_accuracy() -> str:
    """Errors of the memory model by source, from the figures that ship."""
    sys.path.insert(0, str(ROOT))
    from planner.evidence.fit.accuracy_tables import load, markdown  # noqa: PLC0415

    return markdown(load())


def _totals(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Sources, then all rows, then all rows in two parts."""
    return [*content["source"], content, content["stated"], content["unstated"]]


def _error_table(content: Mapping[str, Any], figure: str, title: str) -> str:
    left_out = figure == "time" and "held_out_mean_of_sources" in content
    titles = [title, "rows", "median", "mean", "p90", "bias", "rank", "in 80 % interval"]
    rows = []
    for total in _totals(content):
        if figure in total:
            held_out = (_percent(total.get("held_out", {}).get("median")),) if left_out else ()
            rows.append((total["family"], *_error_cells(total[figure]), *held_out))
    means = content["mean_of_sources"]
    middle, mean, coverage = (
        _percent(means.get(f"{figure}_{name}")) for name in ("median", "mean", "coverage")
    )
    held_out = (
        (_percent(content["held_out_mean_of_sources"]["held_out_median"]),) if left_out else ()
    )
    rows.append(("mean of sources", "", middle, mean, "", "", "", coverage, *held_out))
    return markdown_table([*titles, "held-out median"] if left_out else titles, rows)


def _error_cells(mapping: Mapping[str, Any]) -> tuple[str, ...]:
    rank = mapping.get("rank_correlation")
    return (
        f"{mapping['rows']:,}",
        *(_percent(mapping[name]) for name in ("median", "mean", "p90")),
        f"{mapping['bias'] * 100:+.1f} %",
        "-" if rank is None else f"{rank:.2f}",
        f"{mapping['coverage'] * 100:.0f} %",
    )


def _reliability_table(bins: Sequence[Mapping[str, Any]]) -> str:
    """Stated probabilities of fitting against the share of runs that ran."""
    rows = (
        (
            f"{item['low'] * 100:.0f} to {item['high'] * 100:.0f} %",
            f"{item['rows']:,}",
            _percent(item["stated"]),
            _percent(item["ran"]),
        )
        for item in bins
    )
    return markdown_table(("stated to fit", "rows", "mean stated", "ran"), rows)


def _pick_table(content: Mapping[str, Any]) -> str:
    rows = (
        (
            total["family"],
            f"{picks['groups']:,}",
            _percent(picks["mean"]),
            _percent(picks["worst"]),
            f"{picks['rank_correlation']:.2f}",
        )
        for total in _totals(content)
        if (picks := total.get("picks"))
    )
    return markdown_table(("picks", "groups", "mean", "worst", "rank"), rows)


def _worst_table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = (
        (
            f"{row['source']}: {row['description']}",
            f"{row['measured_s']:.3g} s",
            f"{row['predicted_s']:.3g} s",
            row["why"],
        )
        for row in rows
    )
    return markdown_table(("worst rows", "measured", "predicted", "why"), cells)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


BLOCKS: dict[str, Callable[[], str]] = {
    "main-job": main_job,
    "memory-one-gpu": memory_of_one_gpu,
    "memory-advice": memory_advice,
    "conflict": conflict,
    "nothing-fits": nothing_fits,
    "offload": offload,
    "what-if": what_if,
    "launch": launch,
    "check": check,
    "compare": compare,
    "scale": scale,
    "errors": errors_by_family,
    "accuracy": accuracy,
    "memory": memory_accuracy,
}


def refreshed(readme: str) -> str:
    """The README with every block generated anew."""
    return _BLOCK.sub(lambda match: match[1] + BLOCKS[match[2]]() + match[3], readme)


def comparable(text: str) -> str:
    """Text without wall times and line breaks, which follow from them."""
    return _WALL_TIME.sub("TIME", " ".join(text.split()))


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text(encoding="utf-8")), encoding="utf-8")
