"""Refit of the constants that were fitted on whole training steps, one at a time.

    python -m planner.evidence.fit.step_fit [NAME...] [--runs RUNS.csv|FOLDER] [--json]

For each constant: its shipped value, the value that fits the runs of its scope best, that value
with each source left out in turn, and the error at the shipped and at the best value. The error
is the mean over sources of the median |ln(measured / predicted)|, so that a source with hundreds
of runs weighs as much as one with ten; the held-out error judges each source by the value that
all *other* sources give. Nothing is written: a value is changed by hand, with its evidence, where
the error falls by more than the values of the single sources scatter.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click

from hardware import parse_gpus
from hardware.curves import load_compute_curves
from planner.cost.inputs import GpuInputs
from planner.cost.tables import FrameworkInputs
from planner.evidence.runs.predict import Prediction, cost_predictions, predict_rows
from planner.evidence.runs.report import time_error
from planner.evidence.runs.rows import PUBLISHED, read_rows
from planner.job.errors import UsageError, unknown_name
from planner.job.frameworks import load_framework
from planner.job.job import Job
from planner.predict.cost_model import CostModel

_SIXTEEN = frozenset({"bf16", "fp16"})
# A source's runs beyond this many say little new: that many are taken, evenly spread.
_MOST_RUNS = 60
# Factors on the shipped value: a coarse grid, then a fine one around its best.
_COARSE = tuple(1.1**power for power in range(-7, 8))
_FINE = tuple(1.1 ** (step / 4) for step in range(-3, 4))

Factors = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant, the compiled core's fields that are proportional to it, and its scope.

    `shipped` reads its present value; `applies` says which jobs depend on it; `most`: its upper
    limit; `prior`: what physics or the same mechanism elsewhere gives it, where that is known.
    """

    name: str
    file: str
    fields: frozenset[str]
    shipped: Callable[[], float]
    applies: Callable[[Job], bool]
    most: float = math.inf
    prior: float | None = None


class TrialModel(CostModel):
    """The cost model with some of its inputs multiplied."""

    def __init__(self, job: Job, factors: Factors) -> None:
        super().__init__(job)
        self._factors = factors

    @cached_property
    def gpu_inputs(self) -> GpuInputs:
        """Numbers of the GPU, multiplied."""
        one_gpu_inputs = super().gpu_inputs
        return one_gpu_inputs._replace(**self._multiplied(one_gpu_inputs._asdict()))

    @cached_property
    def framework_inputs(self) -> FrameworkInputs:
        """Numbers of the framework, multiplied."""
        one_framework_inputs = super().framework_inputs
        return one_framework_inputs._replace(**self._multiplied(one_framework_inputs._asdict()))

    def _multiplied(self, values: Mapping[str, float]) -> dict[str, Any]:
        return {name: values[name] * by for name, by in self._factors.items() if name in values}


def _rate(name: str, gpu: str, architecture: str, *, wide: bool) -> Constant:
    """Share of the short-benchmark maximum that large products sustain in whole steps."""
    field = "gemm16_max_efficiency" if wide else "gemm_max_efficiency"
    curve = "sustained_share_16" if wide else "sustained_share_8"

    def shipped() -> float:
        loaded = load_compute_curves(parse_gpus(f"8x{gpu}").gpu)
        return float(getattr(loaded.curves, curve).value)

    def applies(job: Job) -> bool:
        gpu = job.cluster.gpu
        sxm = "SXM" in gpu.name or architecture != "ampere"
        return gpu.architecture == architecture and sxm and (job.precision in _SIXTEEN) == wide

    both = frozenset({field, "gemm_max_efficiency"})
    return Constant(name, "hardware/efficiency/compute.toml", both, shipped, applies, 1.0)


def _profile(
    name: str, framework: str, table: str, field: str, most: float = math.inf,
    prior: float | None = None,
) -> Constant:  # fmt: skip
    """A number of a framework's profile, fitted on the jobs of that profile."""
    key = {"tensor": "hide_tensor"}.get(field, field)
    return Constant(
        name,
        f"planner/job/frameworks/{framework}.toml",
        frozenset({key}),
        lambda: float(getattr(getattr(load_framework(framework), table), field)),
        # Its versions too (`nanotron-2024`).
        lambda job: job.framework.name.startswith(framework),
        most,
        prior,
    )


# Eager torch blocks (torchtitan's, and counted in Hugging Face's Llama: 3.5 of the fused bytes
# forward); one kernel for each row, as llm-foundry's norms and plain GELU: what Megatron-Core's
# fused ones hold on other sources; NCCL beside compute as torchtitan has it.
_EAGER, _SINGLE_KERNELS, _NCCL_CONTENTION = 4.0, 1.5, 0.3

CONSTANTS = (
    _rate("a100-sxm-16bit", "A100", "ampere", wide=True),
    _rate("hopper-16bit", "H100", "hopper", wide=True),
    _rate("hopper-8bit", "H100", "hopper", wide=False),
    _rate("blackwell-16bit", "B200", "blackwell", wide=True),
    _rate("blackwell-8bit", "B200", "blackwell", wide=False),
    _profile("megatron-core-issue", "megatron-core", "kernels", "issue_s"),
    _profile("megatron-core-traffic", "megatron-core", "kernels", "memory_traffic"),
    _profile("megatron-lm-2022-issue", "megatron-lm-2022", "kernels", "issue_s"),
    _profile("megatron-lm-2022-update", "megatron-lm-2022", "kernels", "update_traffic_bytes"),
    _profile("megatron-lm-2022-contention", "megatron-lm-2022", "overlap", "contention"),
    _profile("megatron-fsdp-issue", "megatron-fsdp", "kernels", "issue_s"),
    _profile("megatron-bridge-issue", "megatron-bridge", "kernels", "issue_s"),
    _profile("megatron-bridge-traffic", "megatron-bridge", "kernels", "memory_traffic"),
    _profile("megatron-bridge-overlap", "megatron-bridge", "overlap", "tensor", 1.0),
    _profile("nanotron-issue", "nanotron", "kernels", "issue_s"),
    _profile("torchtitan-issue", "torchtitan", "kernels", "issue_s"),
    _profile("torchtitan-traffic", "torchtitan", "kernels", "memory_traffic"),
    _profile("torchtitan-contention", "torchtitan", "overlap", "contention"),
    _profile(
        "llm-foundry-traffic", "llm-foundry", "kernels", "memory_traffic", prior=_SINGLE_KERNELS
    ),
    _profile("fsdp1-traffic", "fsdp1", "kernels", "memory_traffic", prior=_EAGER),
    _profile("fsdp1-contention", "fsdp1", "overlap", "contention", prior=_NCCL_CONTENTION),
    _profile("nanotron-traffic", "nanotron", "kernels", "memory_traffic"),
    _profile("nanotron-host-step", "nanotron", "outside", "host_step_s"),
    _profile("torch-3d-traffic", "torch-3d", "kernels", "memory_traffic", prior=_EAGER),
    _profile("jax-xla-traffic", "jax-xla", "kernels", "memory_traffic"),
    _profile("jax-xla-contention", "jax-xla", "overlap", "contention"),
)


@dataclass(frozen=True, slots=True)
class Fit:
    """What the runs say of one constant. Errors are mean |ln(measured / predicted)| of sources;
    `without`: the best value with a source left out; `by_source`: its own error at the shipped and
    at the best value."""

    name: str
    file: str
    runs: int
    shipped: float
    best: float
    shipped_error: float
    best_error: float
    held_out_error: float | None
    without: dict[str, float]
    by_source: dict[str, tuple[float, float]]


Errors = dict[str, dict[float, float]]


def fit(constant: Constant, predictions: Sequence[Prediction]) -> Fit | None:
    """The fit of one constant; None where no run depends on it."""
    runs = _in_scope(constant, predictions)
    if not runs:
        return None
    shipped = constant.shipped()
    errors: Errors = defaultdict(dict)
    allowed = [factor for factor in _COARSE if factor * shipped <= constant.most]
    _measure(errors, constant, runs, allowed)
    centre = _best(errors, errors)
    allowed = [
        value for value in (centre * factor for factor in _FINE) if value * shipped <= constant.most
    ]
    _measure(errors, constant, runs, allowed)
    best = _best(errors, errors)
    without = {
        source: _best(errors, [other for other in errors if other != source])
        for source in errors
        if len(errors) > 1
    }
    return Fit(
        constant.name,
        constant.file,
        len(runs),
        shipped,
        shipped * best,
        _mean_error(errors, errors, 1.0),
        _mean_error(errors, errors, best),
        fmean(errors[source][value] for source, value in without.items()) if without else None,
        {source: shipped * value for source, value in without.items()},
        {source: (error[1.0], error[best]) for source, error in errors.items()},
    )


def _in_scope(constant: Constant, predictions: Sequence[Prediction]) -> list[Prediction]:
    """Runs that depend on the constant, at most `_MOST_RUNS` of a source."""
    by_source: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        if (
            prediction.mapped
            and time_error(prediction) is not None
            and constant.applies(prediction.mapped.job)
        ):
            by_source[prediction.row.source].append(prediction)
    return [run for runs in by_source.values() for run in spread_out(runs)]


def spread_out(runs: Sequence[Prediction]) -> Sequence[Prediction]:
    if len(runs) <= _MOST_RUNS:
        return runs
    return [runs[round(index * len(runs) / _MOST_RUNS)] for index in range(_MOST_RUNS)]


def _measure(
    errors: Errors, constant: Constant, runs: Sequence[Prediction], factors: Iterable[float]
) -> None:
    """Add each source's median |ln(measured / predicted)| under each factor."""
    for factor in factors:
        trial = dict.fromkeys(constant.fields, factor)
        by_source: dict[str, list[float]] = defaultdict(list)
        for run in cost_predictions(runs, lambda job, run=trial: TrialModel(job, run)):  # type: ignore[misc]
            error = time_error(run)
            if error is not None:
                by_source[run.row.source].append(abs(math.log1p(error)))
        for source, found in by_source.items():
            errors[source][factor] = median(found)


def _mean_error(errors: Errors, sources: Iterable[str], factor: float) -> float:
    return fmean(errors[source][factor] for source in sources)


def _best(errors: Errors, sources: Iterable[str]) -> float:
    """The factor with the least mean error; of equals the one nearest to no change."""
    chosen = list(sources)
    factors = next(iter(errors.values()))
    return min(
        factors, key=lambda factor: (_mean_error(errors, chosen, factor), abs(math.log(factor)))
    )


def lines(found: Fit) -> Iterator[str]:
    """One constant's fit as text."""
    yield f"{found.name}: {found.runs} runs of {max(1, len(found.without))} sources ({found.file})"
    yield (
        f"  shipped {found.shipped:.4g}: error {found.shipped_error:.1%};"
        f" best {found.best:.4g}: {found.best_error:.1%}"
    )
    if found.held_out_error is not None:
        values = sorted(found.without.values())
        yield (
            f"  with one source left out {values[0]:.4g} to {values[-1]:.4g};"
            f" held-out error {found.held_out_error:.1%}"
        )
    for source, (before, after) in sorted(found.by_source.items()):
        yield f"  {source:32} {before:6.1%} -> {after:6.1%}"


def chosen_constants(names: Sequence[str]) -> list[Constant]:
    """The constants of these names, all without any. Raises UsageError for an unknown one."""
    known = {constant.name: constant for constant in CONSTANTS}
    for name in names:
        if name not in known:
            raise unknown_name("constant", name, tuple(known), f"there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(CONSTANTS)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--runs", type=click.Path(exists=True, path_type=Path), default=PUBLISHED)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a constant.")
def main(names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Refit the constants NAMES (all without any) on measured runs; nothing is written."""
    try:
        constants = chosen_constants(names)
        predictions = predict_rows(read_rows(runs))
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    for constant in constants:
        found = fit(constant, predictions)
        if found is None:
            click.echo(f"{constant.name}: no run depends on it", err=True)
        elif as_json:
            click.echo(json.dumps(asdict(found)))
        else:
            click.echo("\n".join(lines(found)))


if __name__ == "__main__":
    main()
