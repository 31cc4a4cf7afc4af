"""Choose the next trial among candidates of any kind by its expected worth."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from planner.tune.belief import Belief, Observation
from planner.tune.follow import FollowedLog
from planner.tune.journal import Chosen, Ended, TrialRecord
from planner.tune.judge import KNOWN, Facts
from planner.tune.loop import Ending, Next, counted
from planner.tune.outcome import Best, Tried, Written
from planner.tune.trial import ShortRun
from planner.tune.value import Choice, choose

# Expected cost of a trial: seconds until its first step, and steps until its time is known.
START_S, STEPS = 120.0, 15


class ChosenByWorth(ABC):
    """Candidates, the belief about them, and the choice. `start_s`: seconds until a run's first
    step; `sure_sd`: standard error at which a step time counts as known; `follow`: reads a log.

    A subclass for a kind of job gives, by key: names of the candidates for people (`names`),
    sequences and tokens of a step, files of a trial's folder, and the facts by which its log is
    judged. It also gives the belief before any trial (`prior`) and the outcome of the trials
    (`written`).
    """

    short: ShortRun
    tokens: float
    start_s: float = START_S
    sure_sd: float = KNOWN
    follow: Callable[[Path], FollowedLog] = FollowedLog

    @property
    @abstractmethod
    def candidates(self) -> Mapping[str, Tried]:
        """Candidates by key, most promising first. UsageError if there are none."""

    @property
    @abstractmethod
    def names(self) -> Mapping[str, str]: ...
    @abstractmethod
    def sequences(self, key: str) -> int: ...
    @abstractmethod
    def tokens_of_step(self, key: str) -> float: ...
    @abstractmethod
    def files(self, key: str, job_name: str) -> Mapping[str, str]: ...
    @abstractmethod
    def facts(self, key: str) -> Facts: ...
    @property
    @abstractmethod
    def prior(self) -> Belief: ...
    @abstractmethod
    def demand_startable(self, runs_on: str) -> None:
        """Raise UsageError if something that every trial needs is missing."""

    @abstractmethod
    def written(
        self, header: Mapping[str, object], records: Sequence[TrialRecord], ending: Ending
    ) -> Written: ...

    def peak_of(self, key: str, ended: Ended) -> float | None:  # noqa: ARG002
        """A measured peak, counted as predictions count it; None if the two cannot be compared."""
        return None

    @property
    def keys(self) -> Sequence[str]:
        """The candidates' keys, most promising first."""
        return [*self.candidates]

    def belief(self, records: Sequence[TrialRecord]) -> Belief:
        """The belief after some trials."""
        return self.prior.observed(self.observations(records))

    def costs(self, records: Sequence[TrialRecord]) -> dict[str, float]:
        """GPU-seconds that a trial of each candidate is expected to take, after some trials."""
        start_s = _start_s(records, self.start_s)
        return {key: one.gpus * self._trial_s(one, start_s) for key, one in self.candidates.items()}

    def _trial_s(self, candidate: Tried, start_s: float) -> float:
        steps = min(STEPS, self.short.steps)
        return min(self.short.limit_s, start_s + steps * candidate.step_s)

    def rest_s(self, key: str, belief: Belief) -> float:
        """Expected seconds that the job's remaining tokens take with a plan, under a belief."""
        return self.tokens / self.tokens_of_step(key) * self._expected_s(belief, key)

    def chosen_of(self, records: Sequence[TrialRecord]) -> Choice:
        """The next trial with everything that led to its choice."""
        belief = self.belief(records)
        rest_s = self.rest_s(belief.recommended, belief)
        return choose(belief, self.costs(records), rest_s, names=self.names)

    def choice(self, records: Sequence[TrialRecord]) -> Next:
        """The trial to run next, after the trials so far."""
        found = self.chosen_of(records)
        return Next(found.trial, found.expected_saved_gpu_s, found.cost_gpu_s, found.sentence)

    def chosen(self, choice: Next, job_name: str, at: float) -> Chosen:
        """A chosen trial as the journal stores it."""
        one = self.candidates[choice.key or ""]
        return Chosen(
            one.key, job_name, one.gpus, self.sequences(one.key), one.step_s, one.fits,
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
        """An invented record of the chosen trial, as if it had ended with the step time that the
        trials so far lead us to expect."""
        chosen = self.chosen(choice, f"expected-{number:03d}", 0.0)
        step_s = self._expected_s(self.belief(records), chosen.key)
        ended = Ended("measured", "as it is expected", 0.0, step_s=step_s, relative_sd=KNOWN)
        return TrialRecord(number, chosen, ended=ended)

    def observations(self, records: Sequence[TrialRecord]) -> Iterator[Observation]:
        """The observations from the trials."""
        for one in counted(records):
            if (ended := one.ended) is not None:
                yield Observation(
                    one.chosen.key,
                    ended.step_s,
                    ended.relative_sd or KNOWN,
                    ended.kind == "out-of-memory",
                    self.peak_of(one.chosen.key, ended),
                    ended.kind not in ("measured", "out-of-memory"),
                )


def _start_s(records: Sequence[TrialRecord], usual_s: float) -> float:
    """Seconds that a trial takes besides its steps, as seen in the measured trials."""
    found = [
        one.ended.gpu_s / one.chosen.gpus - one.ended.steps * one.ended.step_s
        for one in records
        if one.ended is not None and one.ended.step_s is not None and one.ended.gpu_s
    ]
    return max(0.0, median(found)) if found else usual_s
