"""The passes of a step: the model that each reads or trains, its duration, and its memory.

Passes share the GPUs and follow each other: their seconds add up to the step's, term by term, and
the peak of the step is that of its heaviest pass. The cost of a model that is only read is the
difference between the kernel's figures for the step with it and without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Literal

from planner.cost import fields as f
from planner.cost.memory import set_aside_bytes
from planner.cost.phase_passes import exists, fullest_pass, passes
from planner.cost.phase_records import FORWARD, FORWARD_END, OPTIMIZER, in_update, total_bytes
from planner.cost.tables import Array
from planner.cost.terms import LIVE_TERMS, PhaseTerms
from planner.job.frameworks.losses import reading_bytes
from planner.job.job import Job
from planner.job.reads import Read
from planner.predict.configuration import Configuration
from planner.predict.cost_model import CostModel
from planner.predict.mixture import CostedLayout, cost_configuration
from planner.predict.plan import StepPass, TimeTerms
from planner.predict.stage import Stage

# Terms of a step's seconds between the last backward and the next forward.
_OF_UPDATE = ("dp_s", "optimizer_s", "host_s")
_GIVES = {
    "policy": "log-probabilities of mismatched answers",
    "reference": "log-probabilities to compare with",
    "teacher": "logits to learn from",
}

Terms = Mapping[str, float]


def step_passes(
    configuration: Configuration, cost_model: CostModel, costed: CostedLayout
) -> tuple[StepPass, ...]:
    """The passes of a step in order: first those of models that are only read, then those of the
    trained model. Empty for next-token prediction. `costed`: the configuration's costs from the
    kernel."""
    job = configuration.job
    if job.objective.kind == "lm":
        return ()
    # The step with only the first `count` of the models that it reads.
    fewer = [replace(job, reads=job.reads[:count]) for count in range(len(job.reads))]
    steps = [
        cost_configuration(cost_model.of(less), replace(configuration, job=less)) for less in fewer
    ]
    account = _Account(configuration, (*steps, costed))
    return (*account.reads(), *account.trained())


def configured_passes(configuration: Configuration) -> tuple[StepPass, ...]:
    """The passes of a configuration that is not costed yet."""
    if configuration.job.objective.kind == "lm":
        return ()
    model = CostModel(configuration.job, compiled=False)
    return step_passes(configuration, model, cost_configuration(model, configuration))


@dataclass(frozen=True)
class _Account:
    """The costs of a configuration, first without the models that it only reads, then again after
    each of these is added. The costs of a read model are the difference of two successive costings.
    """

    configuration: Configuration
    steps: tuple[CostedLayout, ...]

    @property
    def job(self) -> Job:
        return self.configuration.job

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stage that decides whether the plan fits, once for each costing of `steps`."""
        at = int(self.steps[-1].step[f.STEP_PEAK_STAGE])
        machine = self.configuration.machines[at]
        return tuple(Stage(step.memory[machine], at) for step in self.steps)

    @cached_property
    def weights(self) -> dict[str, float]:
        """Bytes of the weights that stay on that stage, by name of the model: `model` for the
        trained one, then the models that are read and that have weights of their own there."""
        sizes = [float(stage.rest.resting.weights) for stage in self.stages]
        pairs = zip(self.job.reads, pairwise(sizes), strict=True)
        added = {read.name: more - less for read, (less, more) in pairs}
        return {"model": sizes[0]} | {name: size for name, size in added.items() if size}

    def reads(self) -> Iterator[StepPass]:
        """Forward passes of models that are only read."""
        for read, (less, more) in zip(self.job.reads, pairwise(self.steps), strict=True):
            before, after = _seconds(less.step), _seconds(more.step)
            yield StepPass(
                name=read.name,
                work="forward",
                model=(read.model or self.job.model).name,
                rows=read.times * self.job.rows,
                gives=_GIVES[read.name],
                time=TimeTerms(**{name: after[name] - before[name] for name in after}),
                held=self._split(_while_read(self.stages[-1], self.job, read)),
            )

    def trained(self) -> Iterator[StepPass]:
        """Forward and backward of the trained model, and its update."""
        seconds, stage = _seconds(self.steps[0].step), self.stages[-1]
        passing = {name: 0.0 if name in _OF_UPDATE else value for name, value in seconds.items()}
        rest = {name: value - passing[name] for name, value in seconds.items()}
        yield self._trained("forward and backward", _while_trained(stage), passing, "gradients")
        aside = set_aside_bytes(stage.key, stage.grid, stage.inputs.framework)
        updated = _live(in_update(stage.rest, aside))
        yield self._trained("update", updated, rest, "weights")

    def _trained(
        self, work: Literal["forward and backward", "update"], held: Terms, time: Terms, gives: str
    ) -> StepPass:
        return StepPass(
            name="model",
            work=work,
            model=self.job.model.name,
            rows=0 if work == "update" else self.job.rows,
            gives=gives,
            time=TimeTerms(**time),
            held=self._split(held),
        )

    def _split(self, terms: Terms) -> dict[str, float]:
        """The terms of memory that are not zero, bytes; the term `weights` is split into the
        weights of each model."""
        others = {name: size for name, size in terms.items() if size and name != "weights"}
        return {f"weights of the {name}": size for name, size in self.weights.items()} | others


def _seconds(step: Array) -> dict[str, float]:
    return {name: float(step[column]) for name, column in f.TIME_COLUMNS.items()}


def _live(terms: PhaseTerms) -> dict[str, float]:
    return dict(zip(LIVE_TERMS, map(float, chain(*terms)), strict=True))


def _while_trained(stage: Stage) -> Terms:
    """Bytes of live tensors, by term, at the fullest moment of forward and backward. What remains
    of the core's total, because the core reports tensors inside the layers as one maximum, counts
    as working set."""
    framework = stage.inputs.framework
    every = passes(stage.held, stage.grid.grad_acc, framework)
    phases = [
        (phase, one_pass)
        for one_pass in every
        for phase in range(FORWARD, OPTIMIZER)
        if one_pass.counts and exists(phase, stage.holds, one_pass, stage.grid, framework)
    ]
    fullest = max(phases, key=lambda phase: total_bytes(stage.terms(*phase)))
    terms = _live(stage.phase_detail(*fullest)[0])
    terms["working"] += float(total_bytes(stage.terms(*fullest))) - sum(terms.values())
    return terms


def _while_read(stage: Stage, job: Job, read: Read) -> Terms:
    """Live tensors while a model is read.

    A framework that reads between the policy's forward and backward keeps the policy's activations
    and logits alive, and both models' logits when the read ends (`losses.toml`). Otherwise, and for
    the policy itself, reading comes first, before any tensor of that micro-batch exists.
    """
    one_pass = fullest_pass(stage.held, stage.grid.grad_acc, stage.inputs.framework)
    terms = _live(stage.terms(FORWARD_END, one_pass))
    size = reading_bytes(job.framework, job.objective) * float(stage.holds.logits)
    if job.framework.loss_logits != "tokens" and read.name != "policy":
        return {**terms, "logits": terms["logits"] + size}
    earlier = 1.0 - 1.0 / max(1.0, one_pass.in_flight)
    return {**terms, "activations": terms["activations"] * earlier}
