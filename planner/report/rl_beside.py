"""Two plans of reinforcement learning side by side, in the form of `beside.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from constraints.axes import AXES
from planner.job.quantities import seconds, share
from planner.launch.rl import RlLaunch
from planner.predict.plan_text import recompute_text
from planner.predict.rl.plan import Phase
from planner.predict.rl.step import rl_step
from planner.predict.rl.timeline import PHASE_WORDS
from planner.predict.uncertainty.differences import Ratio, half_width, ratio_between
from planner.report.beside import Setting, TermPair, TwoPlans, differing, largest
from planner.report.rl_verdict import fullest_phase
from planner.report.said import words_of
from planner.search.rl.plan_file import pick_rl_plan
from planner.search.rl.plans import layout_of
from planner.search.rl.result import RlPlan, RlResult
from planner.tune.rl.belief import RlBelief
from planner.tune.rl.candidates import RlCandidate

# Axes of the trainer that are settings in reinforcement learning; its micro-batch is a number of
# tokens.
_AXES = tuple(name for name in AXES if name not in ("mbs", "grad_acc"))


class RlBeside(TwoPlans):
    """Two plans of reinforcement learning. Raises UsageError for numbers that are not in the
    file."""

    titles = ("phases", "fullest")
    # The full names of such plans would fill four lines.
    names = ("", "")

    def __init__(self, result: RlResult, number: int, other: int) -> None:
        self.number, self.other = number, other
        self.plans = first, second = pick_rl_plan(result, number), pick_rl_plan(result, other)
        self.ratio = rl_ratio(result, first, second)
        self.step_s = first.step_s, second.step_s
        self._fullest = fullest_phase(first), fullest_phase(second)
        self.peak_bytes = self._fullest[0].peak_bytes, self._fullest[1].peak_bytes

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Settings that differ."""
        return differing(*map(_settings, self.plans))

    @property
    def time(self) -> tuple[TermPair, ...]:
        """Seconds of every phase that at least one plan has. If the sides work at the same time on
        separate GPUs, the step is shorter than the sum."""
        return _pairs(
            *(
                {PHASE_WORDS[phase.name]: phase.seconds for phase in _phases(plan)}
                for plan in self.plans
            )
        )

    @property
    def memory(self) -> tuple[TermPair, ...]:
        """Memory of each plan's fullest GPU in its fullest phase."""
        return _pairs(*(phase.held for phase in self._fullest))

    @property
    def sentences(self) -> Iterator[str]:
        """The sentences as for other plans, and the terms of the phase that differs most."""
        yield from super().sentences
        most = max(self.time, key=lambda pair: abs(pair.more))
        one, another = (_terms(plan, most.words) for plan in self.plans)
        if told := largest(_pairs(one, another), self.step_s[0], seconds):
            yield words_of("beside.within", phase=most.words.capitalize(), terms=told)


def rl_ratio(result: RlResult, first: RlPlan, other: RlPlan) -> Ratio:
    """The other plan's step time divided by the first's, with its 80 % interval. The interval is
    based on the errors that `planner tune` assumes before any run; errors in phases that both plans
    share cancel."""
    layouts = (layout_of(result.request, plan) for plan in (first, other))
    candidates = [
        RlCandidate("", RlLaunch(result.request, *layout), rl_step(*layout)) for layout in layouts
    ]
    covariance = RlBelief.of_plans(candidates).covariance
    variance = covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1]
    half = half_width(max(0.0, float(variance)) ** 0.5)
    return ratio_between(other.step_s / first.step_s, half, half)


def _settings(plan: RlPlan) -> dict[str, str]:
    """The settings of a plan by name, in words."""
    trainer, engine = plan.trainer, plan.engine
    return {
        "placement": plan.placement,
        "updates that samples are behind": f"{plan.staleness}",
        "partial rollouts": "yes" if plan.streams else "no",
        "GPUs that train": f"{plan.trainer_gpus:,} {plan.trainer_gpu}",
        **{f"trainer: {AXES[axis].words}": f"{getattr(trainer.degrees, axis):,}" for axis in _AXES},
        "trainer: recompute": recompute_text(trainer),
        "tokens a micro-batch": f"{plan.token_limit:,}",
        "trainer while engines sample": "on the host" if plan.trainer_leaves else "on the GPU",
        "GPUs that sample": f"{plan.engine_gpus:,} {plan.engine_gpu}",
        "engines": f"{engine.replicas:,}",
        "engine: tensor parallelism": f"{engine.tp:,}",
        "engine: pipeline stages": f"{engine.pp:,}",
        "engine: data parallelism": f"{engine.dp:,}",
        "engine: expert parallelism": f"{engine.ep:,}",
        "engine: part of a GPU's memory": share(engine.kv_share, 0),
        "engine: sequences at once": f"{engine.sequences:,}",
        "new weights": f"by {plan.way}",
    }


def _phases(plan: RlPlan) -> Iterator[Phase]:
    """Each phase of a plan once. `plan.phases` lists the transfer of new weights for both sides;
    only one of these is kept."""
    yield from {phase.name: phase for phase in plan.phases}.values()


def _terms(plan: RlPlan, words: str) -> Mapping[str, float]:
    """Seconds of a phase by cause; empty if the plan has no such phase."""
    found = (phase.terms for phase in _phases(plan) if PHASE_WORDS[phase.name] == words)
    return next(found, {})


def _pairs(one: Mapping[str, float], another: Mapping[str, float]) -> tuple[TermPair, ...]:
    """Amounts of two plans by name, without those that are 0 in both."""
    words = dict.fromkeys((*one, *another))
    pairs = (TermPair(text, one.get(text, 0.0), another.get(text, 0.0)) for text in words)
    return tuple(pair for pair in pairs if pair.one or pair.another)
