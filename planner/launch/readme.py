"""The README of a launch folder: what was chosen, what to expect, when to worry; and a CSV of one
row, for measurements that go to `planner validate` and `calibrate`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import groupby
from textwrap import fill
from typing import Any

from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.evidence.runs.rows import PLAN_COLUMN
from planner.job.frameworks.profile import load_framework
from planner.job.quantities import gib, seconds, share
from planner.job.written import csv_text, markdown_table, picked
from planner.launch.contract import ExplainedSetting, Files, Launch, Variable, checkpoints_of
from planner.launch.launchers import how_to_start, start_script
from planner.launch.plans import starts_from_weights
from planner.launch.quoting import Code, markdown_prose, markdown_text
from planner.launch.registry import Target, targets
from planner.launch.sentences import filled_in, holds, names_of
from planner.launch.settings_text import filled
from planner.launch.time_limit import SIGNAL_S, is_limited, limit_text, save_steps, stop_minutes
from planner.predict.plan import Plan, StageMemory
from planner.search.explanation import time_terms


class StageExpectation(Frozen):
    """Bytes on one GPU of a pipeline stage, as three tools report them. `allocated`:
    torch.cuda.max_memory_allocated; `reserved`: max_memory_reserved; `total`: nvidia-smi.
    `total_low_bytes`, `total_high_bytes`: the 80 % interval, which was fitted on totals."""

    stage: int
    layers: int
    allocated_bytes: float
    reserved_bytes: float
    total_bytes: float
    total_low_bytes: float
    total_high_bytes: float


class Expectations(Frozen):
    """Step time in seconds and memory in bytes, each with its 80 % interval."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    step_time_family: str
    tokens_per_s_per_gpu: float
    tokens_per_s_per_gpu_low: float
    tokens_per_s_per_gpu_high: float
    mfu: float
    memory_family: str
    heaviest_stage: int
    usable_bytes: float
    fit_probability: float
    fits: bool
    stages: tuple[StageExpectation, ...]

    @property
    def heaviest(self) -> StageExpectation:
        """The pipeline stage with the highest memory, which decides whether the plan fits."""
        return self.stages[self.heaviest_stage]


def expectations(launch: Launch) -> Expectations:
    """The plan's predictions as the quantities that a run reports: step time, tokens/s of a GPU,
    and memory as torch and nvidia-smi count it."""
    plan = launch.plan
    tokens = plan.gbs_tokens / plan.degrees.gpus
    workspace = launch.job.workspace_bytes
    return Expectations(
        **picked(plan, "step_time_s tokens_per_s_per_gpu mfu heaviest_stage"),
        **picked(plan, "usable_bytes fit_probability fits"),
        step_time_low_s=plan.step_time.low,
        step_time_high_s=plan.step_time.high,
        step_time_family=plan.step_time.basis,
        tokens_per_s_per_gpu_low=tokens / plan.step_time.high,
        tokens_per_s_per_gpu_high=tokens / plan.step_time.low,
        memory_family=plan.peak_interval.basis,
        stages=tuple(_stage(stage, plan, workspace) for stage in plan.stages),
    )


def _stage(stage: StageMemory, plan: Plan, workspace_bytes: float) -> StageExpectation:
    low = plan.peak_interval.low / plan.peak_bytes
    high = plan.peak_interval.high / plan.peak_bytes
    # torch also allocates the workspaces of its libraries.
    return StageExpectation(
        stage=stage.stage,
        layers=stage.layers,
        allocated_bytes=stage.allocated + workspace_bytes,
        reserved_bytes=stage.allocated + stage.fragmentation,
        total_bytes=stage.peak,
        total_low_bytes=stage.peak * low,
        total_high_bytes=stage.peak * high,
    )


MEASURED_FILE = "measured.csv"
PLAN_FILE = "plan.json"


def measured_csv(launch: Launch) -> str:
    """CSV of a header and one row: the plan's configuration, with empty cells for the measured step
    time and memory."""
    plan, model, cluster = launch.plan, launch.job.model, launch.job.cluster
    degrees = plan.degrees
    row: dict[str, object] = {
        "source": "my-run",
        "model": model.name,
        **picked(model, "layers hidden ffn heads kv_heads vocab"),
        "act": "swiglu" if model.gated else "gelu",
        "seq": plan.seq,
        "gpu": cluster.gpu.name,
        "num_gpus": degrees.gpus,
        "gpus_per_node": launch.gpus_per_node,
        "framework": launch.target,
        "precision": launch.job.precision,
        **picked(degrees, "tp pp vpp cp ep zero mbs"),
        "gbs": plan.gbs,
        "recompute": plan.recompute,
        PLAN_COLUMN: PLAN_FILE,
        "step_time_s": "",
        "peak_mem_gib": "",
        "mem_kind": "allocated",
    }
    return csv_text(row, [row])


_WIDTH = 88


@cache
def _words() -> Mapping[str, Any]:
    return shipped_toml("planner.launch", "templates/readme.toml")


def readme(
    launch: Launch,
    expected: Expectations,
    departures: Sequence[str],
    choices: Sequence[ExplainedSetting],
    requirements: Sequence[str],
    written: Files,
    variables: Sequence[Variable],
) -> str:
    """The README as Markdown."""
    target, names = targets()[launch.target], _names(launch, expected)
    names = {**names, "on_data": _data(variables)}
    alone = f"Without the folder: {target.alone}, and `--gpus` for the machine."
    more = [row["text"] for row in _words()["more_steps"] if holds(row["when"], names)]
    submitted = launch.nodes_as in ("k8s", "skypilot")
    plain = {name: filled_in(text, names) for name, text in _words()["plain"].items()}
    code = {name: Code(filled_in(text, names)) for name, text in _words()["markdown"].items()}
    text = filled(
        "readme.md.txt",
        needs=[f"* {need}" for need in requirements],
        files=_files(written),
        variables=_variables(variables),
        weights=[_weights(launch, target), ""],
        time_limit=[filled_in(_words()["goes_on"][launch.nodes_as], names), ""],
        choices=markdown_table(
            ("choice", "purpose"), [(choice.setting, choice.purpose) for choice in choices]
        ).splitlines(),
        departures=_departures(launch, departures),
        assumptions=[f"* {markdown_prose(note)}" for note in launch.plan.assumptions],
        modes=Code(filled_in(_words()["modes"]["submitted" if submitted else "script"], names)),
        alone=[alone, ""] if target.alone else [],
        more_steps=[f"{at}. {filled_in(one, names)}" for at, one in enumerate(more, start=6)],
        memory=_memory(expected),
        terms=_terms(launch.plan),
        **plain,
        **code,
    )
    if launch.job.cluster.gpu.vendor == "amd":
        text = text.replace("nvidia-smi", "rocm-smi")
    return "\n".join(map(_wrapped, text.splitlines())).rstrip("\n") + "\n"


def _data(variables: Sequence[Variable]) -> str:
    """The data that a run uses as it is written."""
    needed = any(entry.name == "DATASET" and entry.needed for entry in variables)
    return "on the data that you name" if needed else "on made-up data"


def _weights(launch: Launch, target: Target) -> str:
    """Where the run's weights come from."""
    if launch.job.tuning.trains_all:
        return target.weights
    return (
        "`PRETRAINED` is a folder or a name on the Hugging Face Hub; `--preflight` looks whether "
        "weights of the plan's shape are there. A checkpoint in `CHECKPOINTS` goes before it."
    )


def _wrapped(line: str) -> str:
    """A paragraph or list item within the width; headings, tables and code are unchanged."""
    if line.startswith(("#", "|", "    ")):
        return line
    mark = re.match(r"(\*|\d+\.) |", line)
    indent = " " * (mark.end() if mark else 0)
    return fill(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _names(launch: Launch, expected: Expectations) -> Mapping[str, object]:
    """Names that the texts of readme.toml may use."""
    target, heaviest = targets()[launch.target], expected.heaviest
    reserved = target.held == "reserved"
    names = names_of(launch) | {
        "target": target,
        "expected": expected,
        "heaviest": heaviest,
        "held_bytes": heaviest.reserved_bytes if reserved else heaviest.allocated_bytes,
        "total_high": min(heaviest.total_high_bytes, expected.usable_bytes),
        "loss_text": f"{math.log(launch.job.model.vocab):.1f}",
        "from_weights": starts_from_weights(launch),
        "script": start_script(launch),
        "how": how_to_start(launch),
        "checkpoints": checkpoints_of(launch),
        "rounding": _rounding(launch),
    }
    if not is_limited(launch):
        return names
    names |= {"limit": limit_text(launch), "signal": SIGNAL_S, "save_steps": save_steps(launch)}
    names |= {"stop_minutes": stop_minutes(launch)}
    return names | {
        "ends": filled_in(_words()["ends"]["stops" if target.stops else "runs_on"], names)
    }


def _rounding(launch: Launch) -> str:
    """Techniques of a plan that affect rounding."""
    used = load_framework(launch.request.framework).techniques
    words = [
        one.words for one in used if one.effect == "numerics" and one.name in launch.plan.techniques
    ]
    return f", but for its rounding ({'; '.join(words)})" if words else ""


def _files(written: Files) -> list[str]:
    known = _words()["files"].items()
    rows = [
        (f"`{name}`", next(words for pattern, words in known if fnmatchcase(name, pattern)))
        for name in sorted(written)
    ]
    return markdown_table(("file", "what it is"), rows).splitlines()


def _variables(variables: Sequence[Variable]) -> list[str]:
    """The user's variables; those that must be set come first."""
    ordered = sorted(variables, key=lambda entry: not entry.needed)
    rows = [
        (
            f"`{entry.name}`",
            "**must be set**" if entry.needed else f"`{entry.default}`" if entry.default else "",
            entry.meaning,
        )
        for entry in ordered
    ]
    return markdown_table(("variable", "default", "meaning"), rows).splitlines()


def _departures(launch: Launch, departures: Sequence[str]) -> list[str]:
    """How the framework's training differs from the model's."""
    if not departures:
        return []
    name = markdown_text(launch.job.model.name)
    text = f"{launch.target} has not all that {name} is trained with:"
    items = [f"* {markdown_prose(sentence[0].upper() + sentence[1:])}." for sentence in departures]
    return ["## Not as the model says", "", text, "", *items, ""]


def _memory(expected: Expectations) -> list[str]:
    rows = []
    # Consecutive stages with equal figures share a row.
    for shown, group in groupby(expected.stages, _shown):
        first, *others = group
        stages = f"{first.stage} to {others[-1].stage}" if others else str(first.stage)
        interval = f"{gib(first.total_low_bytes)} to {gib(first.total_high_bytes)}"
        rows.append((stages, *shown, interval))
    titles = ("stage", "layers", "max allocated", "max reserved", "nvidia-smi")
    return markdown_table((*titles, "80 % interval of it"), rows).splitlines()


def _shown(stage: StageExpectation) -> tuple[str, ...]:
    figures = stage.allocated_bytes, stage.reserved_bytes, stage.total_bytes
    return str(stage.layers), *(gib(value) for value in figures)


def _terms(plan: Plan) -> list[str]:
    rows = [
        (term.label, seconds(term.amount), share(term.share))
        for term in sorted(time_terms(plan), key=lambda time_term: -time_term.amount)
        if term.share >= 0.001
    ]
    return markdown_table(("of which", "", ""), rows).splitlines()
