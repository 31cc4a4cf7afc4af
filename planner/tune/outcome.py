"""The outcome of a study, as `study.json` and reports show it, and the cluster file learnt from its
runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from hardware.frozen import Frozen
from hardware.schema import Cluster
from planner._version import __version__
from planner.evidence.learn.calibrate import FigureFit, calibrate, calibration_of
from planner.evidence.learn.cluster_file import cluster_text
from planner.evidence.runs.predict import Prediction
from planner.evidence.runs.rows import PLAN_COLUMN
from planner.job.errors import CannotTellError, UsageError
from planner.job.quantities import GIB, HOUR_S
from planner.job.request import Request
from planner.job.written import csv_text, picked
from planner.job.written_folder import write_folder
from planner.launch.contract import Launch
from planner.launch.readme import PLAN_FILE, measured_csv
from planner.tune.candidates import Candidate
from planner.tune.journal import Ended, Kind, TrialRecord, trial_folder
from planner.tune.loop import Ending, spent_gpu_s

STUDY_VERSION = 1
PLANS, DOCUMENT, ROWS, CLUSTER = "plans.json", "study.json", "measured.csv", "cluster.toml"


class TriedPlan(Frozen):
    """A trial. `name`: the plan's name for people, `plan`: its configuration. Seconds of a step as
    predicted before the trial and as measured, with the standard error of the latter as a share;
    bytes of a GPU's peak; GPU-hours that the trial was expected to save and to cost, and that it
    took; why it was chosen, how it ended, and what was learnt. None for missing figures."""

    number: int
    name: str
    plan: str
    gpus: int
    predicted_s: float
    fit_probability: float
    predicted_peak_bytes: float | None
    outcome: Kind | None
    measured_s: float | None
    relative_sd: float | None
    peak_bytes: float | None
    memory_kind: str
    saves_gpu_hours: float
    costs_gpu_hours: float
    gpu_hours: float
    job_name: str
    why: str
    learnt: str


class TunedStudy(Frozen):
    """A study. `best`, `best_name`: the plan to take, with the probability that it is the fastest
    of those that can be tried and its expected seconds of a step by now; `sentence`: why the study
    stopped; `cluster_file`: learnt from its runs, empty if it does not predict them better."""

    version: int = STUDY_VERSION
    planner_version: str = __version__
    model: str
    gpu: str
    num_gpus: int
    framework: str
    runs_on: str
    tokens: float
    trials: tuple[TriedPlan, ...]
    reason: str
    sentence: str
    best: str
    best_name: str
    best_probability: float
    best_s: float
    spent_gpu_hours: float
    cluster_file: str = ""
    notes: tuple[str, ...] = ()


class Tried(Protocol):
    """A candidate as the choice sees it: its configuration as stable text, expected seconds of a
    step, probability of fitting, number of GPUs, and bytes of the predicted peak of a GPU (None if
    trials cannot measure it)."""

    @property
    def key(self) -> str: ...
    @property
    def step_s(self) -> float: ...
    @property
    def fits(self) -> float: ...
    @property
    def gpus(self) -> int: ...
    @property
    def peak_bytes(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Best:
    """The best plan so far: its key, the probability that it is the fastest, and its expected
    seconds of a step."""

    key: str
    probability: float
    step_s: float


class Written(NamedTuple):
    """The outcome of trials: the document, rows of measured runs, and the text of a cluster file;
    empty texts if there are none."""

    study: TunedStudy
    rows: str
    cluster: str


def tuned_study(
    header: Mapping[str, object],
    cluster: Cluster,
    candidates: Mapping[str, Tried],
    records: Sequence[TrialRecord],
    ending: Ending,
    best: Best,
    names: Mapping[str, str],
) -> TunedStudy:
    """The document of a study. `names`: of the candidates for people, by key."""
    return TunedStudy(
        model=str(header["model"]),
        gpu=cluster.gpu.name,
        num_gpus=cluster.num_gpus,
        framework=str(header["framework"]),
        runs_on=str(header["on"]),
        tokens=float(str(header["tokens"])),
        trials=tuple(
            _tried(one, candidates[one.chosen.key], names[one.chosen.key]) for one in records
        ),
        reason=ending.reason,
        sentence=ending.sentence,
        best=best.key,
        best_name=names[best.key],
        best_probability=best.probability,
        best_s=best.step_s,
        spent_gpu_hours=spent_gpu_s(records) / HOUR_S,
    )


def _tried(record: TrialRecord, candidate: Tried, name: str) -> TriedPlan:
    chosen, ended = record.chosen, record.ended or Ended("lost", "it has not ended", 0.0)
    return TriedPlan(
        number=record.number,
        name=name,
        plan=chosen.key,
        gpus=chosen.gpus,
        predicted_s=chosen.predicted_s,
        fit_probability=chosen.fits,
        predicted_peak_bytes=candidate.peak_bytes,
        outcome=record.ended.kind if record.ended else None,
        saves_gpu_hours=chosen.expected_saved_gpu_s / HOUR_S,
        costs_gpu_hours=chosen.expected_cost_gpu_s / HOUR_S,
        gpu_hours=ended.gpu_s / HOUR_S,
        job_name=chosen.job_name,
        why=chosen.sentence,
        learnt=ended.sentence,
        measured_s=ended.step_s,
        **picked(ended, "relative_sd peak_bytes memory_kind"),
    )


def measured_predictions(
    candidates: Mapping[str, Candidate], records: Sequence[TrialRecord]
) -> list[Prediction]:
    """The measured trials as rows of measured runs, with their predictions."""
    return [
        _row_of(one, candidates[one.chosen.key])
        for one in records
        if one.ended is not None and one.ended.step_s is not None
    ]


def _row_of(record: TrialRecord, candidate: Candidate) -> Prediction:
    ended, prediction = record.ended, candidate.prediction
    cells = {**prediction.row.cells, "source": record.chosen.job_name}
    if ended is not None and ended.step_s is not None:
        cells["step_time_s"] = repr(ended.step_s)
    if ended is not None and ended.peak_bytes:
        cells |= {"peak_mem_gib": repr(ended.peak_bytes / GIB), "mem_kind": ended.memory_kind}
    row = replace(prediction.row, file=ROWS, line=record.number, cells=cells)
    return replace(prediction, row=row, mapped=replace(prediction.configured, row=row))


def learnt_cluster(
    request: Request, candidates: Mapping[str, Candidate], records: Sequence[TrialRecord]
) -> tuple[str, tuple[str, ...]]:
    """The text of a cluster file learnt from the trials, and notes; an empty text if they teach
    nothing."""
    predictions = measured_predictions(candidates, records)
    if not predictions:
        return "", ()
    try:
        fits = calibrate(predictions, [ROWS])
    except (CannotTellError, UsageError) as error:
        return "", (f"no cluster file was written: {error}",)
    better = [fit for fit in fits if not fit.is_refused]
    if not better:
        text = "the runs, each as the others correct it, are predicted no better than without them"
        return "", (f"no cluster file was written: {text}",)
    base = Path(request.cluster) if request.cluster else None
    cluster = request.find_cluster()
    return cluster_text(CLUSTER, cluster, calibration_of(better, [ROWS]), base), _refused(fits)


def _refused(fits: Sequence[FigureFit]) -> tuple[str, ...]:
    words = {"time": "step times", "memory": "peak memory"}
    left = [words[fit.figure] for fit in fits if fit.is_refused]
    return tuple(f"the cluster file leaves out {what}: the runs do not agree" for what in left)


def measured_rows(study: TunedStudy, launches: Mapping[int, Launch]) -> str:
    """The trials as a table that `planner validate` and `calibrate` read."""
    rows = [
        next(csv.DictReader(io.StringIO(measured_csv(launches[one.number]))))
        | {
            "source": one.job_name,
            PLAN_COLUMN: f"{trial_folder(one.number)}/{PLAN_FILE}",
            "step_time_s": "" if one.measured_s is None else repr(one.measured_s),
            "peak_mem_gib": "" if one.peak_bytes is None else repr(one.peak_bytes / GIB),
            "mem_kind": one.memory_kind or "allocated",
            "oom": "1" if one.outcome == "out-of-memory" else "",
        }
        for one in study.trials
        if one.measured_s is not None or one.outcome == "out-of-memory"
    ]
    return csv_text(rows[0], rows) if rows else ""


def write_study(folder: Path, plans: str, study: TunedStudy, rows: str, cluster: str) -> None:
    """Write everything of a study that people read; each file is replaced completely or not at all.
    `rows`: its trials as measured runs, `cluster`: the learnt cluster file; an empty text writes no
    file."""
    files = {
        PLANS: plans,
        DOCUMENT: study.model_dump_json(indent=1) + "\n",
        ROWS: rows,
        CLUSTER: cluster,
    }
    write_folder(folder, {name: text for name, text in files.items() if text}, force=True)
