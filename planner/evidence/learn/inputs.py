"""Read the inputs of `planner calibrate` into measured rows and predictions.

A CSV file states the configuration of a run and its measurements. A log has only the measurement;
its configuration is the plan file next to it (in a folder of `planner launch`), or the caller
passes it, because `planner.launch` is a package above this one. A profiler's trace gives more:
seconds of kernels, of the update and of exposed communication are separate equations, which tell
apart effects that a step time mixes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np

from planner.cost import fields as f
from planner.evidence.learn.benches import (
    Bench,
    is_bench_table,
    is_nccl_output,
    read_nccl,
    read_table,
)
from planner.evidence.learn.linear import Equations, Factors, LearningModel, no_equations, tangent
from planner.evidence.learn.logs import (
    WRITERS,
    LogFigures,
    Steady,
    TrainingLog,
    read_log,
    steady,
    text_lines,
)
from planner.evidence.runs.mapping import MappedRow, map_row
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.rows import MEASURED_COLUMNS, PLAN_COLUMN, MeasuredRow, read_rows
from planner.evidence.traces.rank import RankTrace, read_rank
from planner.job.errors import UsageError
from planner.job.quantities import GIB

PLAN_FILE = "plan.json"
# Gives the configuration of a log; None if it is unknown.
Configured = Callable[[TrainingLog], MappedRow | None]
# Number of first lines that tell a trace from a trainer_state.json.
_BEGINNING = 10
# Schedulers use any ending for logs (`job.o12345`), so all other names are logs; a name without an
# ending may be standard input.
_CSV_SUFFIXES = (".csv", "")


@dataclass(frozen=True)
class LearntFrom:
    """Predicted runs, benchmarks, and sentences on the assumptions and omissions for each file."""

    predictions: tuple[Prediction, ...]
    benches: tuple[Bench, ...]
    traced: tuple[Traced, ...]
    sources: tuple[str, ...]
    notes: tuple[str, ...]


def read_runs(paths: Sequence[Path], configuration: Configured) -> LearntFrom:
    """Read the runs of files and folders. `configuration` gives the configuration of a log.
    UsageError for a file of another kind, or a log without a configuration."""
    predictions: list[Prediction] = []
    benches: list[Bench] = []
    traced: list[Traced] = []
    notes: list[str] = []
    # Traces in one folder are from the ranks of one run.
    ranks: dict[Path, list[RankTrace]] = defaultdict(list)
    for path in paths:
        for file in _files(path):
            if (timed := _benches(file)) is not None:
                benches += timed
                notes.append(f"{file.name}: {len(timed):,} benchmarks")
                continue
            if is_trace(file):
                ranks[file.parent].append(read_rank(file, len(ranks[file.parent])))
                continue
            found, said = _read_file(file, configuration)
            predictions += found
            notes += said
    for one_run in ranks.values():
        found, said = _from_log(_trace_steps(one_run), configuration)
        traced += [Traced(one, traced_terms(one_run)) for one in found]
        predictions += found
        notes += [f"{said[0]}, by {len(one_run)} traces"] if len(one_run) > 1 else said
    notes += [f"{one.row.place}: left out: {one.error}" for one in predictions if one.error]
    sources = tuple(path.name for path in paths)
    return LearntFrom(tuple(predictions), tuple(benches), tuple(traced), sources, tuple(notes))


def _benches(path: Path) -> list[Bench] | None:
    """The benchmarks in a file; None if it is not a benchmark file."""
    suffix = path.suffix.lower()
    if suffix in (".txt", ".log", ".out") and is_nccl_output(path):
        return read_nccl(path)
    if suffix == ".csv" and is_bench_table(path):
        return read_table(path)
    return None


def _files(path: Path) -> list[Path]:
    """The file itself. For a folder: its CSV files, and also its *.log files if the folder has a
    plan file, which states their configuration. UsageError if the folder has none of these."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.csv"))
    if (path / PLAN_FILE).is_file():
        found += sorted(path.glob("*.log"))
    if not found:
        raise UsageError(
            f"{path}: no CSV file in this folder, and no {PLAN_FILE} with a *.log beside it"
        )
    return found


def _read_file(path: Path, configuration: Configured) -> tuple[list[Prediction], list[str]]:
    if path.suffix.lower() in _CSV_SUFFIXES:
        found = predict_rows(read_rows(path))
        kept = [one for one in found if any(map(one.row.text, MEASURED_COLUMNS))]
        empty = len(found) - len(kept)
        said = f"{path.name}: {empty} {'row' if empty == 1 else 'rows'} without a measurement"
        return kept, [said] if empty else []
    return _from_log(read_log(path), configuration)


def is_trace(path: Path) -> bool:
    """Whether a file is a profiler's trace: compressed, or JSON that begins like one."""
    if path.suffix != ".json":
        return path.suffix == ".gz"
    beginning = "".join(islice(text_lines(path), _BEGINNING))
    return '"traceEvents"' in beginning or '"schemaVersion"' in beginning or beginning[:1] == "["


def _trace_steps(ranks: Sequence[RankTrace]) -> TrainingLog:
    """The step times of a run: for each step, the median over the ranks' traces. UsageError if a
    trace has no marked step."""
    unmarked = next((rank.path for rank in ranks if not rank.marked), None)
    if unmarked is not None:
        raise UsageError(
            f"{unmarked}: no step is marked, so none has a time: call prof.step() after each"
        )
    steps = [median(each) for each in zip(*(rank.steps for rank in ranks), strict=False)]
    return TrainingLog(ranks[0].path, "torch.profiler", LogFigures(steps))


def _from_log(log: TrainingLog, configuration: Configured) -> tuple[list[Prediction], list[str]]:
    """The run in a log, and a sentence on the steps that were dropped."""
    if (mapped := configuration(log)) is None:
        raise UsageError(
            f"{log.path}: a log does not say what ran; give --launch with the launch files, "
            f"--plan-file with a plan file, or put the log beside the {PLAN_FILE} of its launch "
            "folder"
        )
    _demand_writer(log, mapped)
    faster = log.figures.kind != "step_s"
    calm = steady(log.figures.values, str(log.path), higher_is_faster=faster)
    [costed] = cost_predictions([Prediction(mapped.row, mapped)])
    seconds, unit = _seconds(log, mapped, calm, costed.step_time_s or calm.value)
    cells = _cells(log, mapped, seconds)
    row = replace(mapped.row, file=log.path.name, line=0, cells=cells)
    costed = replace(costed, row=row, mapped=replace(mapped, row=row))
    averaged = "mean over the run, with its first steps and checkpoints"
    told = averaged if log.figures.averaged else calm.text
    return [costed], [f"{log.path.name} ({log.format}): {told}{unit}"]


def plan_beside(log: TrainingLog) -> MappedRow | None:
    """The configuration in the launch folder that contains a log; None without a plan file."""
    path = log.path.parent / PLAN_FILE
    return plan_configuration(path) if path.is_file() else None


def plan_configuration(path: Path) -> MappedRow:
    """The configuration of the first plan in a file. UsageError."""
    return map_row(MeasuredRow(path.name, 1, {PLAN_COLUMN: str(path)}))


def _demand_writer(log: TrainingLog, mapped: MappedRow) -> None:
    """Raise UsageError if the configuration's framework does not write such logs."""
    writers = WRITERS.get(log.format)
    name = mapped.job.framework.name
    if writers is not None and not name.startswith(tuple(writers)):
        raise UsageError(
            f"{log.path} is a log of {log.format}, but the configuration is for {name}: give the "
            "launch files of the run that wrote the log"
        )


def _seconds(
    log: TrainingLog, mapped: MappedRow, calm: Steady, predicted_s: float
) -> tuple[float, str]:
    """Seconds of a step, and a remark, usually empty. MLPerf's throughput may count samples or
    tokens. The unit whose step time is nearer to the prediction is taken, and the remark names it.
    """
    figures, seq, degrees = log.figures, mapped.job.seq, mapped.degrees
    gbs = figures.gbs or degrees.gbs
    match figures.kind:
        case "step_s":
            return calm.value, ""
        case "steps_per_s":
            return 1.0 / calm.value, ""
        case "tokens_per_s_per_gpu":
            return degrees.gbs * seq / (degrees.gpus * calm.value), ""
    if log.format != "MLPerf":
        return gbs / calm.value, ""
    by_unit = {"samples": gbs / calm.value, "tokens": gbs * seq / calm.value}
    unit = min(by_unit, key=lambda name: abs(math.log(by_unit[name] / predicted_s)))
    return by_unit[unit], f"; its throughput is taken to count {unit}"


def _cells(log: TrainingLog, mapped: MappedRow, seconds: float) -> dict[str, str]:
    """The cells of a measured row, in the units of its columns."""
    figures, degrees = log.figures, mapped.degrees
    cells = {**mapped.row.cells, "step_time_s": repr(seconds), "source": log.path.stem}
    gbs = degrees.gbs * (mapped.job.seq if figures.gbs_unit == "tokens" else 1)
    printed = round(float(f"{gbs:.{figures.gbs_places}g}")) if figures.gbs_places else gbs
    if figures.gbs and figures.gbs != printed:
        raise UsageError(
            f"{log.path}: its global batch is {figures.gbs:,}, the configuration's "
            f"{gbs:,} {figures.gbs_unit}: give the launch files of the run that wrote the log"
        )
    if figures.peak_bytes:
        cells |= {
            "peak_mem_gib": repr(figures.peak_bytes / GIB),
            "mem_kind": figures.memory_kind,
        }
    return cells


# A term below this share of the step, traced or predicted, is ignored.
_LEAST_SHARE = 0.05
# Columns of STEP_* that make up a term, with their signs: kernels run without the waits for the
# CPU, which are idle time in a trace.
_TERMS: Mapping[str, Mapping[int, float]] = {
    "compute": {**dict.fromkeys(f.traced_columns("compute"), 1.0), f.STEP_ISSUE: -1.0},
    "optimizer": dict.fromkeys(f.traced_columns("optimizer"), 1.0),
    "exposed communication": dict.fromkeys(f.STEP_EXPOSED, 1.0),
}


@dataclass(frozen=True)
class Traced:
    """A predicted run, and the seconds of its traced step by term."""

    prediction: Prediction
    seconds: Mapping[str, float]


def traced_terms(ranks: Sequence[RankTrace]) -> dict[str, float]:
    """Seconds per step of computation, the optimizer's update and exposed communication, by name.
    Each is the median over the ranks. Terms of at most `_LEAST_SHARE` of the step are left out."""
    updates = [rank.terms.get("optimizer", 0.0) for rank in ranks]
    kernels = [math.fsum(rank.terms.values()) for rank in ranks]
    found = {
        "compute": median(np.subtract(kernels, updates)),
        "optimizer": median(updates),
        "exposed communication": median(rank.exposed_s for rank in ranks),
    }
    least_s = _LEAST_SHARE * median(rank.step_s for rank in ranks)
    return {name: float(seconds) for name, seconds in found.items() if seconds > least_s}


def traced_equations(runs: Sequence[Traced]) -> Equations:
    """One equation in the step time's parameters for each term that is more than `_LEAST_SHARE` of
    both the traced step and its prediction."""
    return reduce(Equations.and_also, (_term_equations(runs, term) for term in _TERMS))


def _term_equations(runs: Sequence[Traced], term: str) -> Equations:
    chosen = [run for run in runs if term in run.seconds and _share(run, term) > _LEAST_SHARE]
    if not chosen:
        return no_equations("time")

    def logs(factors: Factors) -> np.ndarray:
        costed = cost_predictions(
            [run.prediction for run in chosen], lambda job: LearningModel(job, factors)
        )
        return np.log(np.maximum([_term_seconds(one, term) for one in costed], 1e-12))

    base, slopes = tangent(logs, "time")
    measured = np.log([run.seconds[term] for run in chosen])
    return Equations("time", measured - base, slopes)


def _share(run: Traced, term: str) -> float:
    step = run.prediction.step
    return 0.0 if step is None else _term_seconds(run.prediction, term) / float(step[f.STEP_TIME])


def _term_seconds(prediction: Prediction, term: str) -> float:
    """Predicted seconds of a term, for a step of the configuration's degrees."""
    if prediction.step is None:
        return math.nan
    return math.fsum(sign * float(prediction.step[at]) for at, sign in _TERMS[term].items())
