"""The trials of a study of reinforcement-learning plans, and what is learnt from them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from hardware.plain_text import demand_plain
from planner.job.errors import UsageError
from planner.launch.rl import PLAN_FILE, RlLaunch, rl_files, writer_of
from planner.search.rl.plan_file import to_json
from planner.search.rl.plans import plan_of
from planner.search.rl.result import RlResult
from planner.tune.belief import Belief
from planner.tune.choosing import ChosenByWorth
from planner.tune.follow import FollowedLog
from planner.tune.journal import TrialRecord
from planner.tune.judge import Facts
from planner.tune.loop import Ending, counted
from planner.tune.outcome import Written, tuned_study
from planner.tune.rl.belief import RlBelief
from planner.tune.rl.candidates import RlCandidate, rl_candidates
from planner.tune.rl.follow import FollowedSteps
from planner.tune.runners.process import TRIAL_SCRIPT
from planner.tune.runners.slurm import BATCH
from planner.tune.trial import ShortRun, batch_script, once_script

# Looser than for training: a step takes minutes, and its time varies with the answers.
RL_SHORT = ShortRun(steps=12, limit_s=7200.0)
_KNOWN = 0.03
# Seconds until the engines have loaded weights and captured graphs, and the trainer is ready.
_START_S = 300.0
# Default number of steps that a policy is trained for.
USUAL_RL_STEPS = 300.0
# The scripts that `--on local` starts.
_START_SCRIPT, _RUN_SCRIPT = "launch.sh", "run.sh"


class RlStudyWork(ChosenByWorth):
    """The candidates of a reinforcement-learning plan file and their trials."""

    start_s = _START_S
    sure_sd = _KNOWN
    follow: Callable[[Path], FollowedLog] = FollowedSteps

    def __init__(self, result: RlResult, short: ShortRun, tokens: float, runs_on: str) -> None:
        self.result, self.short, self.tokens, self.runs_on = result, short, tokens, runs_on

    @cached_property
    def candidates(self) -> Mapping[str, RlCandidate]:
        """The plans of the file and their neighbours, by key."""
        return rl_candidates(self.result)

    @property
    def names(self) -> Mapping[str, str]:
        """Names of the candidates for people, by key."""
        return {key: one.name for key, one in self.candidates.items()}

    def sequences(self, key: str) -> int:
        """The number of samples of a step."""
        return self.candidates[key].launch.job.rollout.samples

    def tokens_of_step(self, key: str) -> float:
        """Tokens of a step's prompts and answers."""
        return self.candidates[key].launch.job.rollout.tokens

    @cached_property
    def prior(self) -> RlBelief:
        """The belief before any trial."""
        return RlBelief.of_plans([*self.candidates.values()])

    def belief(self, records: Sequence[TrialRecord]) -> Belief:
        """The belief after some trials, from their steps and their phases."""
        found = self.prior
        for one in counted(records):
            if one.ended is not None and one.ended.step_s is not None:
                found = found.measured(self.candidates[one.chosen.key], one.ended.parts)
        return found.observed(self.observations(records))

    def facts(self, key: str) -> Facts:
        """The facts by which a trial's log is judged."""
        one = self.candidates[key]
        layout, framework = one.launch.layout, one.launch.job.framework.name
        return Facts(layout.trainer.degrees, one.launch.longest, framework, one.step_s)

    # --- what runs -------------------------------------------------------------------------------

    def files(self, key: str, job_name: str) -> Mapping[str, str]:  # noqa: ARG002 (a study's)
        """The launch files of a short run, its plan, and a script that starts it once."""
        one = self.candidates[key]
        plan = plan_of(one.launch.job, one.step, "evaluated")
        alone = self.result.model_copy(update={"plans": (plan,), "recommended": 1})
        found = {
            **rl_files(replace(one.launch, steps=self.short.steps)),
            PLAN_FILE: to_json(alone),
            _START_SCRIPT: _start_script(self._given(one.launch)),
        }
        if self.runs_on == "slurm":
            asked = f"#SBATCH --nodes=1\n#SBATCH --gpus-per-node={one.gpus}\n"
            found[BATCH] = batch_script(_START_SCRIPT, asked)
        else:
            found[TRIAL_SCRIPT] = once_script()
        return found

    def _given(self, launch: RlLaunch) -> dict[str, str]:
        """The variables of its script that the driver's environment sets. UsageError for a value
        that no text file can hold."""
        found = {}
        for name in writer_of(launch.job.framework.name).asked(launch):
            if value := os.environ.get(name):
                try:
                    demand_plain(value, f"the variable {name}")
                except ValueError as error:
                    raise UsageError(str(error)) from None
                found[name] = value
        return found

    def demand_startable(self, runs_on: str) -> None:
        """Raise UsageError if something that every trial needs is missing."""
        if runs_on == "run":
            _ = self.candidates
            return
        if runs_on == "kubernetes":
            raise UsageError(
                "--on kubernetes: planner launch writes one script for reinforcement learning, "
                "for nodes that Ray or accelerate has joined: give --run COMMAND, which submits "
                "{folder} and ends when the training ends"
            )
        for one in self.candidates.values():
            self._demand_one_node(one, runs_on)
        launch = next(iter(self.candidates.values())).launch
        given = self._given(launch)
        asked = writer_of(launch.job.framework.name).asked(launch)
        lacking = [
            f"set {name}: {meaning}"
            for name, (default, meaning) in asked.items()
            if not default and name not in given
        ]
        if lacking:
            raise UsageError("before trials can start: " + "; ".join(lacking))

    def _demand_one_node(self, one: RlCandidate, runs_on: str) -> None:
        launch = one.launch
        if one.gpus > launch.gpus_per_node:
            raise UsageError(
                f"--on {runs_on} starts one node, and {one.name} takes {one.gpus} GPUs on nodes of "
                f"{launch.gpus_per_node}, which Ray or accelerate has to join: give --run COMMAND"
            )
        if launch.separate and launch.job.framework.name == "trl":
            raise UsageError(
                f"--on {runs_on}: the engines of {one.name} are a server that is started by "
                "itself: give --run COMMAND, which starts both"
            )

    # --- what it came to -------------------------------------------------------------------------

    def written(
        self, header: Mapping[str, object], records: Sequence[TrialRecord], ending: Ending
    ) -> Written:
        """The outcome of the trials, without a cluster file; `planner calibrate` makes one from
        their logs."""
        cluster = self.result.request.trainer.find_cluster()
        best = self.best(records)
        study = tuned_study(header, cluster, self.candidates, records, ending, best, self.names)
        notes = tuple(self._notes(records))
        return Written(study.model_copy(update={"notes": notes}), "", "")

    def _notes(self, records: Sequence[TrialRecord]) -> Iterator[str]:
        """The measured phases compared with the predicted ones, by kind."""
        for one in counted(records):
            if one.ended is None or not one.ended.parts:
                continue
            costed = self.candidates[one.chosen.key].costed
            told = (
                f"{name.replace('+', ' + ')} {seconds:.3g} s"
                f" (predicted {costed.seconds(name.split('+')):.3g} s)"  # type: ignore[arg-type]
                for name, seconds in one.ended.parts.items()
            )
            yield f"trial {one.number}: {', '.join(told)}"


def _start_script(given: Mapping[str, str]) -> str:
    """The values for this run, followed by its script."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
    here = 'cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2'
    return "\n".join(("#!/usr/bin/env bash", here, *lines, f"exec bash {_RUN_SCRIPT}", ""))
