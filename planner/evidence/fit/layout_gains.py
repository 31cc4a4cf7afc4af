"""What uneven layouts and partial recomputation are worth: the best uniform plan against CP-SAT's.

    python -m planner.evidence.fit.layout_gains [--toml] [NAME ...]

prints a Markdown table; with `--toml` the figures as planner/evidence/data/layout_gains.toml.
Uniform means layers split as evenly as the pipeline allows, and all of them or none recomputed, in
any of the framework's modes. Both sides choose freely among all shapes that the case leaves open,
under the same memory limit (plans that fit with 80 % probability). `gain`: step time per sequence
saved; `gain_over_ends`: over the best plan that differs from even splits in its first and last
stage only, what people set by hand; `gain_there`: over the best uniform plan, at its own degrees,
micro-batch and recompute mode.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from planner.job.job import Job
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN
from planner.search.costed import cost_job
from planner.search.explorer import Explorer
from planner.search.limit_results import Effort, Point

FIGURES = "layout_gains.toml"

Values = dict[str, str | float]


@dataclass(frozen=True)
class Case:
    """A job and the degrees that it fixes."""

    name: str
    request: Request


def _case(name: str, model: str, gpus: str, limits: Mapping[str, int], **job: Any) -> Case:
    fixed = {degree: (value,) for degree, value in limits.items()}
    return Case(name, Request(model=model, gpus=gpus, limits=fixed, **job))


CASES = (
    _case("Llama-3.1 405B, PP16", "llama-3.1-405b", "8192xH100", {"tp": 8, "pp": 16},
          gbs_tokens=16_000_000, seq=8192),
    _case("DeepSeek-V3, PP8", "deepseek-v3", "2048xH800", {"pp": 8}, gbs=15360, seq=4096),
    _case("DeepSeek-V3, PP16", "deepseek-v3", "2048xH800", {"pp": 16}, gbs=15360, seq=4096),
    _case("Llama-3 70B, PP4 VPP5", "llama-3-70b", "64xH100", {"pp": 4, "vpp": 5},
          gbs_tokens=4_000_000),
    _case("gpt-oss-120b, PP8", "gpt-oss-120b", "128xH100", {"pp": 8}, gbs=1024, seq=4096),
    _case("gpt-oss-120b, any PP", "gpt-oss-120b", "128xH100", {}, gbs=1024, seq=4096),
    _case("Llama-3 70B, A100-40GB, TP8 PP8", "llama-3-70b", "64xA100-40GB",
          {"tp": 8, "pp": 8, "vpp": 1, "cp": 1}, gbs=256, seq=8192),
    _case("the same, a count a stage", "llama-3-70b", "64xA100-40GB",
          {"tp": 8, "pp": 8, "vpp": 1, "cp": 1}, gbs=256, seq=8192, framework="primus"),
    _case("MPT-30B, A100-40GB, FSDP", "mpt-30b", "64xA100-40GB", {}, gbs=512, seq=2048,
          framework="llm-foundry"),
)  # fmt: skip


def measure(case: Case) -> Values:
    """The best uniform plan and the best of all layouts of one case."""
    job = cost_job(case.request.resolve())
    explorer = job.explorer(Effort())
    uniform = _best_uniform(explorer)
    started = time.perf_counter()
    limit_result = explorer.climb(0)
    seconds = time.perf_counter() - started
    values: Values = {
        "name": case.name,
        "framework": job.job.framework.name,
        "limit_gib": explorer.limit_bytes / 2**30,
        "solve_s": seconds,
        "solved_shapes": float(len(explorer.solved_rows)),
        "gap": limit_result.gap,
    }
    if limit_result.point is not None:
        values |= _plan_values("solved", explorer, limit_result.point)
    if uniform is not None:
        values |= _plan_values("uniform", explorer, uniform)
        values["gain_there"] = _gain(uniform, _solved_there(explorer, uniform.row))
        values["gain"] = _gain(uniform, limit_result.point)
    uneven = _best_with_uneven_edges(job.job)
    if uneven is not None:
        values["gain_over_ends"] = _gain(uneven, limit_result.point)
    return values


def _best_with_uneven_edges(job: Job) -> Point | None:
    """The best plan with counts for the first and last stage only; None without pipelines."""
    if job.framework.parallelism.layouts != "any":
        return None
    rules = job.framework.parallelism.model_copy(update={"layouts": "even-or-ends"})
    framework = job.framework.model_copy(update={"parallelism": rules})
    explorer = cost_job(replace(job, framework=framework)).explorer(Effort())
    return explorer.climb(0).point


def _best_uniform(explorer: Explorer) -> Point | None:
    fitting = np.where(explorer.peak <= explorer.limit_bytes, explorer.sample_s, np.inf)
    row = int(np.argmin(fitting))
    return explorer.even_point(row) if np.isfinite(fitting[row]) else None


def _solved_there(explorer: Explorer, row: int) -> Point | None:
    if explorer.only_even[row]:
        return None
    layout = explorer.solution(row, explorer.limit_bytes).layout
    return None if layout is None else explorer.cost(row, layout)


def _gain(uniform: Point, found: Point | None) -> float:
    return 0.0 if found is None else max(0.0, 1.0 - found.sample_s / uniform.sample_s)


def _plan_values(prefix: str, explorer: Explorer, point: Point) -> Values:
    columns = explorer.columns
    gbs = float(columns["gbs"][point.row])
    return {
        f"{prefix}_step_s": point.sample_s * gbs,
        f"{prefix}_gbs": gbs,
        f"{prefix}_peak_gib": point.peak / 2**30,
        f"{prefix}_plan": _describe(explorer, point),
    }


def _describe(explorer: Explorer, point: Point) -> str:
    """Degrees, layers of each stage and what recomputes."""
    row, columns = point.row, explorer.columns
    names = ("tp", "pp", "vpp", "cp", "ep", "dp", "mbs")
    degrees = " ".join(f"{name}{columns[name][row]}" for name in names if columns[name][row] > 1)
    index = int(columns["recompute"][row])
    mode = explorer.cost_model.job.recompute[index].name
    layers = "/".join(map(str, point.layout.stage_layers))
    modes = (mode, *(other.name for other in explorer.others[index]))
    counts = (point.layout.recomputed, *point.layout.others)
    again = [
        name if count == point.layout.stage_layers else f"{name} of {'/'.join(map(str, count))}"
        for name, count in zip(modes, counts, strict=False)
        if any(count)
    ]
    return f"{degrees}; layers {layers}; recompute {', '.join(again) or 'none'}"


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """The table for the README: gains, and where there is none."""
    lines = [
        "| job | uniform | solved | gain | at its degrees | over set ends | solved in | proven |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        uniform = f"{row['uniform_step_s']:.3g} s" if "uniform_step_s" in row else "does not fit"
        solved = f"{row['solved_step_s']:.3g} s" if "solved_step_s" in row else "does not fit"
        gains = [_gain_text(row, name) for name in ("gain", "gain_there", "gain_over_ends")]
        proven = "yes" if row["gap"] <= OPTIMAL_WITHIN else f"within {row['gap']:.1%}"
        cells = (row["name"], uniform, solved, *gains, f"{row['solve_s']:.2g} s", proven)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _gain_text(row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        return "-"
    return f"{row[name]:.1%}" if row[name] >= OPTIMAL_WITHIN else f"none ({row[name]:.1%})"


def shipped() -> list[dict[str, Any]]:
    """The figures of planner/evidence/data/layout_gains.toml."""
    text = files("planner.evidence").joinpath("data").joinpath(FIGURES).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["case"]
    return rows


def to_toml(rows: Iterable[Values]) -> str:
    """The figures as planner/evidence/data/layout_gains.toml."""
    lines = ['command = "python -m planner.evidence.fit.layout_gains --toml"']
    for row in rows:
        lines += ["", "[[case]]", *(f"{name} = {_toml(value)}" for name, value in row.items())]
    return "\n".join(lines) + "\n"


def _toml(value: str | float) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case, or those whose names contain a text that is given."""
    parser = argparse.ArgumentParser(
        prog="python -m planner.evidence.fit.layout_gains", description=__doc__
    )
    parser.add_argument("--toml", action="store_true", help="figures instead of the table")
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a case's name")
    given = parser.parse_args(arguments)
    wanted = [case for case in CASES if _named(case, given.names)]
    if not wanted:
        parser.error("no such case; known: " + "; ".join(case.name for case in CASES))
    rows = []
    for case in wanted:
        sys.stderr.write(f"{case.name}\n")
        rows.append(measure(case))
    sys.stdout.write(to_toml(rows) if given.toml else markdown(rows) + "\n")


def _named(case: Case, names: Sequence[str]) -> bool:
    return not names or any(name.lower() in case.name.lower() for name in names)


if __name__ == "__main__":
    main()
