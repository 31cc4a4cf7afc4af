"""The README of a launch folder: what was chosen, what to expect, when to worry; and the CSV of one
row in which measurements go back to `planner validate` and `calibrate`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from textwrap import fill

from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.evidence.runs.rows import PLAN_COLUMN
from planner.job.frameworks.profile import load_framework
from planner.job.quantities import gib, percent_sure, seconds, share
from planner.job.written import csv_text, markdown_table, picked
from planner.launch.contract import STOP, ExplainedSetting, Files, Launch, Variable, checkpoints_of
from planner.launch.launchers import how_to_start, start_script
from planner.launch.launchers.kubernetes import SUBMIT
from planner.launch.launchers.shell import PREFLIGHT
from planner.launch.quoting import Code, Value, markdown_prose, markdown_text
from planner.launch.registry import targets
from planner.launch.settings_text import filled
from planner.launch.time_limit import SIGNAL_S, limit_text, save_steps, stop_minutes
from planner.predict.plan import Plan, StageMemory
from planner.search.explanation import time_terms


class StageExpectation(Frozen):
    """Bytes on one GPU of a pipeline stage, as three tools count them.

    `allocated`: torch.cuda.max_memory_allocated; `reserved`: max_memory_reserved; `total`:
    nvidia-smi. `total_low_bytes`, `total_high_bytes`: the 80 % interval, which is fitted on totals.
    """

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
        """The stage that decides whether the plan fits."""
        return self.stages[self.heaviest_stage]


def expectations(launch: Launch) -> Expectations:
    """The plan's predictions in the terms in which a run reports."""
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
    # Torch allocates the workspaces of its libraries too.
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
    """Header and one row: the plan's configuration, and empty cells for what is measured."""
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
def _goes_on() -> dict[str, str]:
    """How a run goes on where no script of ours puts it back, by what starts the nodes."""
    found: dict[str, str] = shipped_toml("planner.launch", "templates/readme.toml")["goes-on"]
    return found


def readme(
    launch: Launch,
    expected: Expectations,
    departures: Sequence[str],
    choices: Sequence[ExplainedSetting],
    requirements: Sequence[str],
    written: Files,
    variables: Sequence[Variable],
) -> str:
    """The Markdown text."""
    text = filled(
        "readme.md.txt",
        needs=[f"* {need}" for need in requirements],
        files=_files(written),
        variables=_variables(variables),
        weights=[targets()[launch.target].weights, ""],
        time_limit=_time_limit(launch),
        choices=markdown_table(
            ("choice", "purpose"), [(choice.setting, choice.purpose) for choice in choices]
        ).splitlines(),
        departures=_departures(launch, departures),
        assumptions=[f"* {markdown_prose(note)}" for note in launch.plan.assumptions],
        **_of_the_plan(launch),
        **_memory(launch, expected),
        **_time(launch, expected),
    )
    if launch.job.cluster.gpu.vendor == "amd":
        text = text.replace("nvidia-smi", "rocm-smi")
    return "\n".join(map(_wrapped, text.splitlines())).rstrip("\n") + "\n"


def _wrapped(line: str) -> str:
    """A paragraph or item within the width; headings, tables and code stay."""
    if line.startswith(("#", "|", "    ")):
        return line
    mark = re.match(r"(\*|\d+\.) |", line)
    indent = " " * (mark.end() if mark else 0)
    return fill(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _of_the_plan(launch: Launch) -> dict[str, Value]:
    """What is said of job, machine and folder."""
    job, plan = launch.job, launch.plan
    target = targets()[launch.target]
    words = f"Without the folder: {target.alone}, and `--gpus` for the machine."
    return {
        "model": job.model.name,
        "target": launch.target,
        "gpus": plan.degrees.gpus,
        "gpu": job.cluster.gpu.name,
        "nodes": "1 node" if launch.nodes == 1 else f"{launch.nodes} nodes",
        "gpus_per_node": launch.gpus_per_node,
        "sequences": f"{plan.gbs:,}",
        "seq": f"{plan.seq:,}",
        "tokens": f"{plan.gbs_tokens:,}",
        "precision": job.precision,
        "how": Code(how_to_start(launch)),
        "rounding": Code(_rounding(launch)),
        "script": start_script(launch),
        "checkpoints": checkpoints_of(launch),
        "modes": Code(_modes(launch)),
        "measured": MEASURED_FILE,
        "plan": PLAN_FILE,
        "from_plan": target.from_plan,
        "alone": [words, ""] if target.alone else [],
        "ramp": " The batch ramp starts below it, as said above." if plan.ramp else "",
        "more_steps": [f"{at}. {text}" for at, text in enumerate(_more_steps(launch), start=6)],
    }


def _rounding(launch: Launch) -> str:
    """The parts of a plan that reach further."""
    used = load_framework(launch.request.framework).techniques
    words = [
        one.words for one in used if one.effect == "numerics" and one.name in launch.plan.techniques
    ]
    return f", but for its rounding ({'; '.join(words)})" if words else ""


def _modes(launch: Launch) -> str:
    """How to look before the job starts."""
    check = "checks nodes, GPUs, the framework and its version, and one all-reduce on all nodes"
    dry = "prints the command and needs nothing"
    if launch.nodes_as in ("k8s", "skypilot"):
        return f"MODE=--dry-run in the environment {dry}; MODE=--preflight {check}."
    script = start_script(launch)
    return f"`bash {script} --dry-run` {dry}; `bash {script} --preflight` {check}."


def _files(written: Files) -> list[str]:
    known = {
        "README.md": "this page",
        PREFLIGHT: "what `--preflight` runs",
        PLAN_FILE: "the plan with every prediction; `planner explain plan.json` shows it",
        MEASURED_FILE: "where your measurement goes, for `planner validate` and `calibrate`",
    }
    for name in written:
        if name == SUBMIT:
            known[name] = "refuses placeholders, then submits"
        elif name.startswith(("launch.", "sky.", "jobset.", "trainjob.")):
            known[name] = "starts the job"
        elif name.endswith(".jsonl"):
            known[name] = "made-up texts for a trial"
        known.setdefault(name, "configuration of the framework")
    rows = [(f"`{name}`", known[name]) for name in sorted(written)]
    return markdown_table(("file", "what it is"), rows).splitlines()


def _variables(variables: Sequence[Variable]) -> list[str]:
    """The user's variables, what must be set first."""
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


def _time_limit(launch: Launch) -> list[str]:
    """What becomes of the run at the time limit."""
    if launch.nodes_as != "slurm":
        return [_goes_on()[launch.nodes_as], ""]
    ends = (
        f"{launch.target} cannot be told when to end: what was trained since the last checkpoint "
        "is trained again. "
        if not targets()[launch.target].stops
        else f"The run saves and ends after `{STOP}` minutes ({stop_minutes(launch)}), and the "
        "script puts the job back in the queue; change `--time` and this variable together. "
    )
    return [
        f"The job's time limit is {limit_text(launch)}. It saves every {save_steps(launch)} steps, "
        f"{seconds(save_steps(launch) * launch.plan.step_time_s)} as predicted. {ends}"
        f"{SIGNAL_S} s before the limit Slurm sends the script a signal, on which it calls "
        "`scontrol requeue` if this job has saved a checkpoint; the next start goes on from it. "
        "With `CONTAINER=IMAGE` srun starts the nodes inside of an image (pyxis), which sees this "
        "folder and what the variables name.",
        "",
    ]


def _departures(launch: Launch, departures: Sequence[str]) -> list[str]:
    """What the framework cannot train as the model was trained."""
    if not departures:
        return []
    name = markdown_text(launch.job.model.name)
    text = f"{launch.target} has not all that {name} is trained with:"
    items = [f"* {markdown_prose(sentence[0].upper() + sentence[1:])}." for sentence in departures]
    return ["## Not as the model says", "", text, "", *items, ""]


def _memory(launch: Launch, expected: Expectations) -> dict[str, Value]:
    rows = []
    # Consecutive stages whose figures print alike.
    for shown, group in groupby(expected.stages, _shown):
        first, *others = group
        stages = f"{first.stage} to {others[-1].stage}" if others else str(first.stage)
        interval = f"{gib(first.total_low_bytes)} to {gib(first.total_high_bytes)}"
        rows.append((stages, *shown, interval))
    titles = ("stage", "layers", "max allocated", "max reserved", "nvidia-smi")
    heaviest, target = expected.heaviest, targets()[launch.target]
    held = target.held
    held_bytes = heaviest.reserved_bytes if held == "reserved" else heaviest.allocated_bytes
    return {
        "memory": markdown_table((*titles, "80 % interval of it"), rows).splitlines(),
        "unfit": Code("" if expected.fits else "**This plan does not fit its memory limit.** "),
        "usable": gib(expected.usable_bytes),
        "heaviest": heaviest.stage,
        "fits": percent_sure(expected.fit_probability),
        "memory_family": expected.memory_family,
        "memory_line": Code(target.memory),
        "held": held,
        "expected_held": gib(held_bytes),
        "held_high": gib(held_bytes * heaviest.total_high_bytes / heaviest.total_bytes),
        "total_high": gib(min(heaviest.total_high_bytes, expected.usable_bytes)),
    }


def _shown(stage: StageExpectation) -> tuple[str, ...]:
    figures = stage.allocated_bytes, stage.reserved_bytes, stage.total_bytes
    return str(stage.layers), *(gib(value) for value in figures)


def _time(launch: Launch, expected: Expectations) -> dict[str, Value]:
    rows = [
        (term.label, seconds(term.amount), share(term.share))
        for term in sorted(time_terms(launch.plan), key=lambda time_term: -time_term.amount)
        if term.share >= 0.001
    ]
    return {
        "terms": markdown_table(("of which", "", ""), rows).splitlines(),
        "step": seconds(expected.step_time_s),
        "step_low": seconds(expected.step_time_low_s),
        "step_high": seconds(expected.step_time_high_s),
        "step_family": expected.step_time_family,
        "rate": f"{expected.tokens_per_s_per_gpu:,.0f}",
        "rate_low": f"{expected.tokens_per_s_per_gpu_low:,.0f}",
        "mfu": share(expected.mfu),
        "time_line": Code(targets()[launch.target].time),
        "loss": f"{math.log(launch.job.model.vocab):.1f}",
    }


def _more_steps(launch: Launch) -> Iterator[str]:
    """What some runs are to be watched for besides."""
    if launch.nodes > 1:
        yield (
            "Network: start once with `NCCL_DEBUG=INFO`. Worry if the log says `via NET/Socket`: "
            "the step time counts on RDMA between the nodes. `NCCL_SOCKET_IFNAME` names the "
            "interface where the nodes do not find each other."
        )
    if launch.job.model.moe is not None:
        yield (
            f"Experts: the prediction has the busiest rank at "
            f"{launch.job.expert_imbalance:g} times the mean load. An untrained router may be "
            "worse: memory and time then exceed it until balancing works."
        )
