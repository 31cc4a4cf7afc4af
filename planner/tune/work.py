"""What a study of a plan file tries: its candidates, what is learnt of them, and the choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from statistics import median

from planner.job.errors import UsageError
from planner.launch.contract import Launch, NodesAs
from planner.launch.plans import LAUNCH_NOTES, launch_of
from planner.launch.registry import Target
from planner.search.result import SearchResult
from planner.tune.belief import Belief, Observation
from planner.tune.candidates import (
    Candidate,
    candidates_of_result,
    planned_candidates,
    smaller_forms,
)
from planner.tune.journal import Chosen, Ended, TrialRecord
from planner.tune.judge import KNOWN, Facts
from planner.tune.loop import Next, counted
from planner.tune.outcome import Best
from planner.tune.trial import ShortRun, short_launch, trial_files
from planner.tune.value import Choice, choose

# Until a run's first step, and the steps that tell its time: what a trial is expected to take.
START_S, STEPS = 120.0, 15
# Candidates whose smaller forms are candidates too: each brings a few.
_SHRUNK = 4


class StudyWork:
    """Candidates of a plan file under one target, on what starts them."""

    def __init__(
        self,
        result: SearchResult,
        target: Target,
        nodes_as: NodesAs,
        short: ShortRun,
        tokens: float,
    ) -> None:
        self.result, self.target, self.nodes_as, self.short = result, target, nodes_as, short
        self.tokens = tokens

    @cached_property
    def candidates(self) -> Mapping[str, Candidate]:
        """Those that the target launches, and smaller forms of the likeliest, by key. UsageError
        where there is none."""
        found: dict[str, Candidate] = {}
        why = ""
        whole = candidates_of_result(self.result, launch=LAUNCH_NOTES)
        smaller = chain(*(smaller_forms(one) for one in whole[:_SHRUNK]))
        for one in chain(whole, smaller):
            try:
                self.launch(one)
            except UsageError as error:
                why = why or str(error)
            else:
                found.setdefault(one.key, one)
        if not any(not one.smaller_of for one in found.values()):
            raise UsageError(f"no plan of the file can be started: {why}")
        return found

    @property
    def keys(self) -> Sequence[str]:
        """Their keys, the likeliest first."""
        return [*self.candidates]

    @cached_property
    def names(self) -> Mapping[str, str]:
        """What people call them: `plan 4` as the plan file numbers them, `candidate 7` of others,
        and smaller forms of either."""
        numbered = enumerate(planned_candidates(self.result.request, self.result.plans), start=1)
        found = {one.key: f"plan {number}" for number, one in numbered}
        for number, (key, one) in enumerate(self.candidates.items(), start=1):
            if one.smaller_of:
                whole = found.get(one.smaller_of, "a plan")
                grad_acc = one.degrees.grad_acc
                found[key] = f"{whole} on {one.gpus} GPUs with grad_acc {grad_acc}"
            else:
                found.setdefault(key, f"candidate {number}")
        return {key: found[key] for key in self.candidates}

    def launch(self, candidate: Candidate) -> Launch:
        """A candidate made ready for the target."""
        if candidate.plan is None or candidate.request is None:
            raise ValueError(f"{candidate.key} is no plan: nothing writes its files")
        return launch_of(
            candidate.plan, candidate.request, self.target, self.nodes_as, candidate.gpus
        )

    @cached_property
    def prior(self) -> Belief:
        """What is believed before any trial."""
        return Belief.of([*self.candidates.values()])

    def belief(self, records: Sequence[TrialRecord]) -> Belief:
        """What is known after some trials."""
        return self.prior.observed(self._observations(records))

    def costs(self, records: Sequence[TrialRecord]) -> dict[str, float]:
        """GPU-seconds that a trial of each candidate is expected to take, after some trials."""
        start_s = _start_s(records)
        return {key: one.gpus * self._trial_s(one, start_s) for key, one in self.candidates.items()}

    def _trial_s(self, candidate: Candidate, start_s: float) -> float:
        steps = min(STEPS, self.short.steps)
        return min(self.short.limit_s, start_s + steps * candidate.step_s)

    def rest_s(self, key: str, belief: Belief) -> float:
        """Seconds that the rest of the job takes with a plan."""
        one = self.candidates[key]
        job = one.configuration.job
        return self.tokens / (one.degrees.gbs * job.seq) * self._expected_s(belief, key)

    def chosen_of(self, records: Sequence[TrialRecord]) -> Choice:
        """The choice, whole."""
        belief = self.belief(records)
        rest_s = self.rest_s(belief.recommended, belief)
        return choose(belief, self.costs(records), rest_s, names=self.names)

    def choice(self, records: Sequence[TrialRecord]) -> Next:
        """What to run next, after the trials so far."""
        found = self.chosen_of(records)
        return Next(found.trial, found.expected_saved_gpu_s, found.cost_gpu_s, found.sentence)

    def chosen(self, choice: Next, job_name: str, at: float) -> Chosen:
        """A trial as the journal keeps it."""
        one = self.candidates[choice.key or ""]
        return Chosen(
            one.key, job_name, one.gpus, one.degrees.gbs, one.step_s, one.fits,
            choice.saves_gpu_s, choice.costs_gpu_s, choice.sentence, at,
        )  # fmt: skip

    def best(self, records: Sequence[TrialRecord]) -> Best:
        """The plan to take after some trials."""
        found, belief = self.chosen_of(records), self.belief(records)
        return Best(found.best, found.probability_best, self._expected_s(belief, found.best))

    def _expected_s(self, belief: Belief, key: str) -> float:
        mean, _ = belief.moments
        return math.exp(float(mean[belief.place(key)]))

    def as_expected(self, choice: Next, number: int, records: Sequence[TrialRecord]) -> TrialRecord:
        """A trial that comes out as it is expected after those before it."""
        chosen = self.chosen(choice, f"expected-{number:03d}", 0.0)
        step_s = self._expected_s(self.belief(records), chosen.key)
        ended = Ended("measured", "as it is expected", 0.0, step_s=step_s, relative_sd=KNOWN)
        return TrialRecord(number, chosen, ended=ended)

    def files(self, key: str, job_name: str) -> Mapping[str, str]:
        """The files of its folder."""
        return trial_files(short_launch(self.launch(self.candidates[key]), self.short, job_name))

    def facts(self, key: str) -> Facts:
        """What its log is judged by."""
        one = self.candidates[key]
        job = one.configuration.job
        return Facts(one.degrees, job.seq, job.framework.name, one.step_s)

    def _observations(self, records: Sequence[TrialRecord]) -> Iterator[Observation]:
        """What the trials teach."""
        for one in counted(records):
            if (ended := one.ended) is not None:
                yield Observation(
                    one.chosen.key,
                    ended.step_s,
                    ended.relative_sd or KNOWN,
                    ended.kind == "out-of-memory",
                    self._peak_bytes(one.chosen.key, ended),
                    ended.kind not in ("measured", "out-of-memory"),
                )

    def _peak_bytes(self, key: str, ended: Ended) -> float | None:
        """A measured peak as predictions count it: with what its kind leaves out."""
        prediction = self.candidates[key].prediction
        counted_as = prediction.memory_bytes(ended.memory_kind or None)
        whole = prediction.memory_bytes()
        if not ended.peak_bytes or not counted_as or not whole:
            return None
        return ended.peak_bytes * whole / counted_as


def _start_s(records: Sequence[TrialRecord]) -> float:
    """Seconds that a trial takes beside its steps: as those that were measured took."""
    found = [
        one.ended.gpu_s / one.chosen.gpus - one.ended.steps * one.ended.step_s
        for one in records
        if one.ended is not None and one.ended.step_s is not None and one.ended.gpu_s
    ]
    return max(0.0, median(found)) if found else START_S
