"""The trials of a study of a plan file: its candidates, the belief about them, and the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain

from planner.job.errors import UsageError
from planner.launch.contract import Launch, NodesAs
from planner.launch.plans import LAUNCH_NOTES, launch_of
from planner.launch.registry import Target
from planner.search.result import SearchResult
from planner.tune.belief import Belief
from planner.tune.candidates import (
    Candidate,
    candidates_of_result,
    planned_candidates,
    smaller_forms,
)
from planner.tune.choosing import ChosenByWorth
from planner.tune.journal import Ended, TrialRecord
from planner.tune.judge import Facts
from planner.tune.loop import Ending
from planner.tune.outcome import Written, learnt_cluster, measured_rows, tuned_study
from planner.tune.trial import ShortRun, missing_settings, short_launch, trial_files

# Number of candidates whose smaller forms are candidates too: each adds a few.
_SHRUNK = 4


class StudyWork(ChosenByWorth):
    """The candidates of a plan file for one launch target and runner."""

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
        """Candidates that the target can launch, and smaller forms of the most promising, by key.
        UsageError if no whole one can be launched."""
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

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Names of the candidates for people: `plan 4` as the plan file numbers them, `candidate 7`
        for others, and smaller forms of either."""
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
        """A candidate prepared for the launch target."""
        if candidate.plan is None or candidate.request is None:
            raise ValueError(f"{candidate.key} is no plan: nothing writes its files")
        return launch_of(
            candidate.plan, candidate.request, self.target, self.nodes_as, candidate.gpus
        )

    @cached_property
    def prior(self) -> Belief:
        """The belief before any trial."""
        return Belief.of([*self.candidates.values()])

    def sequences(self, key: str) -> int:
        """Sequences of a step."""
        return self.candidates[key].degrees.gbs

    def tokens_of_step(self, key: str) -> float:
        """Tokens of a step."""
        return float(self.sequences(key) * self.candidates[key].configuration.job.seq)

    def files(self, key: str, job_name: str) -> Mapping[str, str]:
        """The files of a trial's folder."""
        return trial_files(short_launch(self.launch(self.candidates[key]), self.short, job_name))

    def facts(self, key: str) -> Facts:
        """The facts by which a trial's log is judged."""
        one = self.candidates[key]
        job = one.configuration.job
        return Facts(one.degrees, job.seq, job.framework.name, one.step_s)

    def peak_of(self, key: str, ended: Ended) -> float | None:
        """A measured peak, counted as predictions count it: with the parts that its kind of
        measurement leaves out."""
        prediction = self.candidates[key].prediction
        counted_as = prediction.memory_bytes(ended.memory_kind or None)
        whole = prediction.memory_bytes()
        if not ended.peak_bytes or not counted_as or not whole:
            return None
        return ended.peak_bytes * whole / counted_as

    def demand_startable(self, runs_on: str) -> None:
        """Raise UsageError if something that every trial needs is missing."""
        launch = self.launch(self.candidates[self.keys[0]])
        if runs_on == "local" and launch.nodes > 1:
            raise UsageError(
                f"--on local starts one node, and the plans take {launch.nodes} of "
                f"{launch.gpus_per_node} GPUs: give --on slurm, --on kubernetes, or --run COMMAND"
            )
        first = short_launch(launch, self.short, "x")
        if runs_on != "run" and (lacking := missing_settings(first)):
            raise UsageError("before trials can start: " + "; ".join(lacking))

    def written(
        self, header: Mapping[str, object], records: Sequence[TrialRecord], ending: Ending
    ) -> Written:
        """The outcome of the trials."""
        request, candidates = self.result.request, self.candidates
        study = tuned_study(
            header, request.find_cluster(), candidates, records, ending, self.best(records),
            self.names,
        )  # fmt: skip
        text, notes = learnt_cluster(request, candidates, records)
        found = {"cluster_file": "cluster.toml" if text else "", "notes": notes}
        launches = {one.number: self.launch(candidates[one.chosen.key]) for one in records}
        study = study.model_copy(update=found)
        return Written(study, measured_rows(study, launches), text)
