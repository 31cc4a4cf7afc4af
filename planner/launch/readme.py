"""The README of a launch folder: what was chosen, what to expect, when to worry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from textwrap import fill

from planner.job.frameworks import load_framework
from planner.job.markdown import markdown_table
from planner.job.quantities import gib, percent_sure, seconds, share
from planner.launch.contract import Choice, Files, Launch
from planner.launch.expect import Expectations, StageExpectation
from planner.launch.launchers import how_to_start, start_script
from planner.launch.launchers.shell import PREFLIGHT
from planner.launch.measured_row import MEASURED_FILE, PLAN_FILE
from planner.search.explanation import time_terms

_WIDTH = 88
# Where each framework says how long a step took and how much memory it held.
_REPORTS = {
    "megatron-core": (
        "`elapsed time per iteration (ms)` in every log line",
        "`max allocated` in the line `memory (MB)`, once after the first steps, on the first "
        "data-parallel rank of each pipeline stage",
    ),
    "megatron-bridge": (
        "`Step Time` (or `elapsed time per iteration (ms)`) in every log line",
        "`mem-max-allocated-gigabytes`, or `max allocated` in the line `memory (MB)`",
    ),
    "torchtitan": (
        "tokens a step on a GPU over `tps` of the log line",
        "`memory` in the log line, which is torch's reserved memory: set mem_kind to `reserved`",
    ),
    "nanotron": (
        "`elapsed_time_per_iteration_ms` in every log line",
        "`Peak allocated` in the memory line",
    ),
}
_USUAL_REPORT = (
    "the time between two optimizer steps (`train_steps_per_second` of the Trainer)",
    "`torch.cuda.max_memory_allocated()` at the end of a step, or nvidia-smi",
)
# What `planner check` needs to know where one file is all it has.
_ALONE = {
    "torchtitan": "a size that torchtitan's registry has not needs `--model`",
    "torchtitan-0.2": "a size that torchtitan's registry has not needs `--model`",
    "deepspeed": (
        "ds_config.json holds neither model, sequence length, recomputation nor attention: "
        "`--model`, `--seq`, `--recompute`, or the launcher's script beside it"
    ),
    "accelerate": (
        "accelerate.yaml holds neither model, batch, sequence length nor optimizer: `--model`, "
        "`--mbs`, `--grad-acc`, `--seq`, or the launcher's script beside it"
    ),
}


def readme(
    launch: Launch,
    expected: Expectations,
    departures: Sequence[str],
    choices: Sequence[Choice],
    requirements: Sequence[str],
    files: Files,
) -> str:
    """The Markdown text."""
    parts = [
        _head(launch, requirements),
        _files(files),
        _choices(choices),
        *_departures(launch, departures),
        _memory(expected),
        _time(launch, expected),
        _first_steps(launch, expected),
        _comparison(expected),
        _changes(launch),
        _assumptions(launch),
    ]
    return "\n\n".join(parts) + "\n"


def _paragraph(text: str) -> str:
    return fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _item(text: str, mark: str = "*") -> str:
    return fill(
        text, _WIDTH, initial_indent=f"{mark} ", subsequent_indent=" " * (len(mark) + 1),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _head(launch: Launch, requirements: Sequence[str]) -> str:
    degrees, job, plan = launch.plan.degrees, launch.job, launch.plan
    nodes = "1 node" if launch.nodes == 1 else f"{launch.nodes} nodes"
    lines = [
        f"# {job.model.name} with {launch.target} on {degrees.gpus} × {job.cluster.gpu.name}",
        "",
        _paragraph(
            f"{nodes} of {launch.gpus_per_node} GPUs; {plan.gbs:,} sequences of {plan.seq:,} "
            f"tokens a step ({plan.gbs_tokens:,} tokens), {job.precision}. "
            f"{how_to_start(launch)}."
        ),
        "",
        "Needs:",
        "",
        *(_item(need) for need in requirements),
        "",
        _paragraph(
            f"The plan decides how the job is split, not what it learns{_rounding(launch)}: data, "
            "tokenizer and "
            "learning rate are placeholders that run, marked as such. Replace them for a real run: "
            f"those that are variables stand at the top of {start_script(launch)}."
        ),
        "",
        _paragraph(_modes(launch)),
    ]
    return "\n".join(lines)


def _rounding(launch: Launch) -> str:
    """What of a plan reaches further."""
    used = load_framework(launch.request.framework).techniques
    words = [one.words for one in used if one.rounds and one.name in launch.plan.techniques]
    return f", but for its rounding ({'; '.join(words)})" if words else ""


def _modes(launch: Launch) -> str:
    """How to look before the job starts."""
    check = "checks nodes, GPUs, versions and one all-reduce on all nodes"
    if launch.nodes_as in ("k8s", "skypilot"):
        return f"MODE=--dry-run in the environment prints the command; MODE=--preflight {check}."
    start = "sbatch" if launch.nodes_as == "slurm" else "bash"
    script = start_script(launch)
    return f"`bash {script} --dry-run` prints the command; `{start} {script} --preflight` {check}."


def _files(files: Files) -> str:
    known = {
        "README.md": "this page",
        PREFLIGHT: "what `--preflight` runs",
        PLAN_FILE: "the plan with every prediction; `planner explain plan.json` shows it",
        MEASURED_FILE: "where your measurement goes, for `planner validate`",
    }
    rows = [(f"`{name}`", known.get(name, _kind(name))) for name in sorted(files)]
    return "## Files\n\n" + markdown_table(("file", "what it is"), rows)


def _kind(name: str) -> str:
    starts = ("launch.", "sky.", "jobset.", "trainjob.")
    return "starts the job" if name.startswith(starts) else "configuration of the framework"


def _choices(choices: Sequence[Choice]) -> str:
    rows = [(choice.setting, choice.purpose) for choice in choices]
    return "## What each choice is for\n\n" + markdown_table(("choice", "purpose"), rows)


def _departures(launch: Launch, departures: Sequence[str]) -> list[str]:
    """What the framework cannot train as the model was trained."""
    if not departures:
        return []
    text = f"{launch.target} has not all that {launch.job.model.name} is trained with:"
    items = [_item(f"{sentence[0].upper()}{sentence[1:]}.") for sentence in departures]
    return ["\n".join(["## Not as the model says", "", _paragraph(text), "", *items])]


def _memory(expected: Expectations) -> str:
    rows = [
        (
            _stages(group),
            *_shown(group[0]),
            f"{gib(group[0].total_low_bytes)} to {gib(group[0].total_high_bytes)}",
        )
        for group in _alike(expected.stages)
    ]
    warning = "" if expected.fits else "**This plan does not fit its memory limit.** "
    note = (
        f"{warning}GiB on each GPU of a pipeline stage; torch can use "
        f"{gib(expected.usable_bytes)}. "
        f"Stage {expected.heaviest_stage} is the heaviest; it fits with probability "
        f"{percent_sure(expected.fit_probability)}. The 80 % interval comes from "
        f"{expected.memory_family}."
    )
    titles = ("stage", "layers", "max allocated", "max reserved", "nvidia-smi")
    table = markdown_table((*titles, "80 % interval of it"), rows)
    return f"## Memory to expect\n\n{table}\n\n{_paragraph(note)}"


def _alike(stages: Sequence[StageExpectation]) -> list[list[StageExpectation]]:
    """Consecutive stages whose figures print alike."""
    return [list(group) for _, group in groupby(stages, _shown)]


def _shown(stage: StageExpectation) -> tuple[str, ...]:
    figures = stage.allocated_bytes, stage.reserved_bytes, stage.total_bytes
    return str(stage.layers), *(gib(value) for value in figures)


def _stages(group: Sequence[StageExpectation]) -> str:
    first, last = group[0].stage, group[-1].stage
    return str(first) if first == last else f"{first} to {last}"


def _time(launch: Launch, expected: Expectations) -> str:
    rows = [
        (term.label, seconds(term.amount), share(term.share))
        for term in sorted(time_terms(launch.plan), key=lambda time_term: -time_term.amount)
        if term.share >= 0.001
    ]
    note = (
        f"A step takes {seconds(expected.step_time_s)}, with 80 % probability "
        f"{seconds(expected.step_time_low_s)} to {seconds(expected.step_time_high_s)} "
        f"(from {expected.step_time_family}): {expected.tokens_per_s_per_gpu:,.0f} tokens/s a "
        f"GPU, {share(expected.mfu)} MFU of the dense 16-bit peak, full attention square."
    )
    table = markdown_table(("of which", "", ""), rows)
    return f"## Step time to expect\n\n{_paragraph(note)}\n\n{table}"


def _first_steps(launch: Launch, expected: Expectations) -> str:
    time_line, memory_line = _REPORTS.get(launch.target.split("-0.")[0], _USUAL_REPORT)
    heaviest = expected.heaviest
    loss = math.log(launch.job.model.vocab)
    items = [
        f"Loss of step 1: about ln(vocabulary) = {loss:.1f}. Worry if it is not within 1 of that, "
        "or not a number.",
        "Steps 1 and 2 are slow (compilation, NCCL, first use of the allocator): ignore their "
        "time. Optimizer state appears at the end of step 1: memory counts from step 2 on, and "
        "must not grow after step 3.",
        f"Peak memory: {memory_line}. Worry if any GPU of stage {heaviest.stage} has "
        f"allocated more than {gib(heaviest.allocated_high_bytes)} GiB "
        f"(expected {gib(heaviest.allocated_bytes)}), or nvidia-smi shows more than "
        f"{gib(min(heaviest.total_high_bytes, expected.usable_bytes))} GiB.",
        f"Step time: {time_line}. Take the median of steps 5 to 10. Worry above "
        f"{seconds(expected.step_time_high_s)} (below "
        f"{expected.tokens_per_s_per_gpu_low:,.0f} tokens/s a GPU), and look for a wrong batch or "
        f"sequence length below {seconds(expected.step_time_low_s)}."
        + (" The batch ramp starts below it, as said above." if launch.plan.ramp else ""),
        "Spread: steps 5 to 10 should agree within a few percent. If single steps stand out, look "
        "at data loading, checkpoints and other jobs on the network first.",
    ]
    if launch.nodes > 1:
        items.append(
            "Network: start once with `NCCL_DEBUG=INFO`. Worry if the log says `via NET/Socket`: "
            "the step time counts on RDMA between the nodes. `NCCL_SOCKET_IFNAME` names the "
            "interface where the nodes do not find each other."
        )
    if launch.job.model.moe is not None:
        items.append(
            f"Experts: the prediction has the busiest rank at "
            f"{launch.job.expert_imbalance:g} times the mean load. An untrained router may be "
            "worse: memory and time then exceed it until balancing works."
        )
    numbered = [_item(text, f"{index}.") for index, text in enumerate(items, start=1)]
    return "\n".join(["## The first ten steps", "", *numbered])


def _comparison(expected: Expectations) -> str:
    text = (
        f"Write the median step time (seconds) and the largest memory of stage "
        f"{expected.heaviest.stage} (GiB) into the last columns of `{MEASURED_FILE}`; `mem_kind` "
        "says what you read: `allocated`, `reserved`, or empty for nvidia-smi. In this folder:"
    )
    after = (
        "It predicts the plan anew with the planner that runs it and shows errors and whether the "
        "interval held. More rows (other runs, other plans) may follow in the same file; "
        f"`plan_file` of each names its {PLAN_FILE}."
    )
    command = f"    planner validate --data {MEASURED_FILE}"
    return "\n".join(
        ["## Compare with the prediction", "", _paragraph(text), "", command, "", _paragraph(after)]
    )


def _changes(launch: Launch) -> str:
    """How to check the files once they were edited, and what each needs beside it."""
    text = (
        "In this folder, `planner check .` reads them back, without running them: will they run, "
        "will they fit, how fast. Exit status 0 says that they will: put it before the job. The "
        f"machine{_from_plan(launch)} it takes from {PLAN_FILE}."
    )
    alone = _ALONE.get(launch.target, "")
    lines = ["## After a change of these files", "", _paragraph(text)]
    if alone:
        words = f"Without the folder: {alone}, and `--gpus` for the machine."
        lines += ["", _paragraph(words)]
    return "\n".join(lines)


def _from_plan(launch: Launch) -> str:
    return " and the model" if launch.target.startswith("torchtitan") else ""


def _assumptions(launch: Launch) -> str:
    items = [_item(note) for note in launch.plan.assumptions]
    return "\n".join(["## Taken for granted", "", *items])
