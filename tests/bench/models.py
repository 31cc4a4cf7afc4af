"""`python -m tests.bench.models`: a search of every model of the catalogue on several clusters.

    python -m tests.bench.models [--gpus 64,512] [--models NAMES] [--seconds 30] [--longer 300]

Each search is a process of its own with so many seconds of the processor. Rows are appended to
`tests/bench/models.csv`; those that stand there are not measured again, so that a run goes on where
the last one ended. `--longer`: those that ended with a gap, again with so much work, in a file of
their own, to see how far the plan to take is from that of a long search. The table is written to
`tests/bench/MODELS.md`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from planner.job.models.catalog import model_names
from tests.bench.process import HERE, Checkout
from tests.bench.report import Metric, Row, section, table

CSV, LONGER_CSV, PAGE = HERE / "models.csv", HERE / "models_longer.csv", HERE / "MODELS.md"
# GPUs of a cluster of H100 -> tokens of a step, which all of them can share.
TOKENS = {8: 4_000_000, 64: 4_000_000, 512: 4_000_000, 4096: 16_000_000}
COLUMNS = (
    "model", "gpus", "tokens", "outcome", "stopped", "first_s", "end_s", "plans", "gap", "pick_gap",
    "pick_s", "fastest_s",
)  # fmt: skip
# What is asked of each search.
MOST_GAP, MOST_FIRST_S, MOST_VERDICT_S, MOST_LOSS = 0.02, 5.0, 10.0, 0.01

Rows = dict[tuple[str, int], dict[str, str]]


def read(path: Path) -> Rows:
    """Rows of a file by model and GPUs; none if there is no file."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as text:
        return {(row["model"], int(row["gpus"])): row for row in csv.DictReader(text)}


def append(path: Path, row: dict[str, object]) -> None:
    """Add a row; its columns stand above the first."""
    new = not path.is_file()
    with path.open("a", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({name: _short(row.get(name, "")) for name in COLUMNS})


def _short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def measure(model: str, gpus: int, seconds: float, work_s: float | None) -> dict[str, object]:
    """One search; `work_s`: in place of the usual work."""
    more = () if work_s is None else ("--work", work_s)
    here = Checkout(HERE.parents[1], None)
    done = here.script("model_row.py", model, gpus, TOKENS[gpus], seconds, *more)
    if done.status != 0:
        print(f"{model} on {gpus}: {done.errors[-300:]}", file=sys.stderr)
        return {
            "model": model, "gpus": gpus, "tokens": TOKENS[gpus], "outcome": "failed",
            "end_s": done.cpu_s,
        }  # fmt: skip
    return dict(done.json())


def main() -> None:
    """Measure what is not yet measured, and write the table."""
    options = _parsed()
    sizes = [int(text) for text in options.gpus.split(",")]
    names = options.models.split(",") if options.models else model_names()
    known = read(CSV)
    for gpus in sizes:
        for name in names:
            if (name, gpus) not in known:
                append(CSV, measure(name, gpus, options.seconds, None))
    if options.longer:
        _measure_longer(sizes, names, options.longer)
    PAGE.write_text(page(read(CSV), read(LONGER_CSV)) + "\n", encoding="utf-8")
    print(PAGE)


def _measure_longer(sizes: Sequence[int], names: Sequence[str], seconds: float) -> None:
    known = read(LONGER_CSV)
    for (name, gpus), row in read(CSV).items():
        wanted = name in names and gpus in sizes and (name, gpus) not in known
        if wanted and row["outcome"] == "gap":
            append(LONGER_CSV, measure(name, gpus, 1.5 * seconds, seconds))


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.models", description=__doc__)
    parser.add_argument("--gpus", default=",".join(map(str, TOKENS)), help="sizes of the cluster")
    parser.add_argument("--models", default="", help="names with commas; all of the catalogue")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the processor, each search")
    parser.add_argument("--longer", type=float, help="work for another search of those with a gap")
    return parser.parse_args()


def page(rows: Rows, longer: Rows) -> str:
    """The report: a line for each cluster, then the searches that ended with a gap or nothing."""
    sizes = sorted({gpus for _, gpus in rows})
    summary = [Row(f"{gpus:,} H100", _summary(gpus, rows, longer)) for gpus in sizes]
    metrics = [
        Metric("searches", "searches", 0), Metric("plans", "with plans", 0),
        Metric("proven", "proven", 0), Metric("near", "gap ≤ 2 %, %", 1),
        Metric("first", "first plan, most s"), Metric("median", "end, median s"),
        Metric("ninety", "end, 90 % within s"), Metric("most", "end, most s"),
        Metric("nothing", "nothing fits", 0), Metric("verdict", "said within, s"),
        Metric("none", "no answer", 0), Metric("loss", "pick slower than after long, most %", 2),
    ]  # fmt: skip
    left = [
        Row(f"{name}, {gpus:,}", {**row, **_loss(row, longer.get((name, gpus)))})
        for (name, gpus), row in sorted(rows.items())
        if row["outcome"] not in ("proven", "nothing fits")
    ]
    columns = [
        Metric("outcome", "outcome"), Metric("gap", "gap"), Metric("pick_gap", "gap of the pick"),
        Metric("plans", "plans"), Metric("end_s", "CPU s"),
        Metric("loss", "pick slower than after long, %", 2),
    ]  # fmt: skip
    short = list(missed(rows, longer))
    text = (
        "`python -m tests.bench.models`: a search of each model of the catalogue, 4M tokens a step "
        "(16M on 4,096 GPUs), seconds of the processor of the whole process."
    )
    return "# Every model\n\n" + "\n\n".join(
        [
            section("By cluster", text, table("cluster", metrics, summary)),
            section("Not proven", "Rows: `models.csv`.", table("search", columns, left)),
            section(
                "Short of what is asked", "\n".join(f"* {text}" for text in short) or "Nothing."
            ),
        ]
    )


def _summary(gpus: int, rows: Rows, longer: Rows) -> dict[str, float]:
    of_size = [row for (_, size), row in rows.items() if size == gpus]
    ended = [row for row in of_size if row["outcome"] in ("proven", "gap")]
    nothing = [float(row["end_s"]) for row in of_size if row["outcome"] == "nothing fits"]
    seconds = sorted(float(row["end_s"]) for row in ended) or [0.0]
    near = sum(float(row["gap"]) <= MOST_GAP for row in ended)
    losses = [
        loss["loss"]
        for (name, size), row in rows.items()
        if size == gpus and (loss := _loss(row, longer.get((name, size))))
    ]
    return {
        "searches": len(of_size),
        "plans": len(ended),
        "proven": sum(row["outcome"] == "proven" for row in ended),
        "near": 100.0 * near / max(1, len(ended)),
        "first": max((float(row["first_s"]) for row in ended), default=0.0),
        "median": median(seconds),
        "ninety": seconds[int(0.9 * (len(seconds) - 1))],
        "most": seconds[-1],
        "nothing": len(nothing),
        "verdict": max(nothing, default=0.0),
        "none": len(of_size) - len(ended) - len(nothing),
        **({"loss": max(losses)} if losses else {}),
    }


def _loss(row: dict[str, str], longer: dict[str, str] | None) -> dict[str, float]:
    """By how many per cent the plan to take is slower than that of a long search."""
    if longer is None or not (row.get("pick_s") and longer.get("pick_s")):
        return {}
    return {"loss": 100.0 * (float(row["pick_s"]) / float(longer["pick_s"]) - 1.0)}


def missed(rows: Rows, longer: Rows) -> Iterator[str]:
    """What falls short of what is asked, a sentence for each cluster and aim."""
    for gpus in sorted({size for _, size in rows}):
        of_size = _summary(gpus, rows, longer)
        if of_size["near"] < 95.0:
            yield f"{gpus} GPUs: a gap of 2 % or less for {of_size['near']:.1f} %, not 95 %"
        if of_size["first"] > MOST_FIRST_S:
            yield f"{gpus} GPUs: a first plan after {of_size['first']:.1f} s"
        if of_size["verdict"] > MOST_VERDICT_S:
            yield f"{gpus} GPUs: that nothing fits is said after {of_size['verdict']:.1f} s"
        if of_size["none"]:
            yield f"{gpus} GPUs: {of_size['none']:.0f} searches without an answer"
        if of_size.get("loss", 0.0) > 100.0 * MOST_LOSS:
            yield f"{gpus} GPUs: a pick {of_size['loss']:.1f} % slower than that of a long search"


if __name__ == "__main__":
    main()
