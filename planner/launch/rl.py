"""A plan of reinforcement learning, written as launch files, and the frameworks that it is written
for. The reader of the same framework reads the files back to an equal plan."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from planner.job.errors import UsageError
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.job.tuning import read_tuning
from planner.launch.contract import Files, Refusal
from planner.launch.sentences import said_refusals
from planner.predict.plan import Degrees
from planner.predict.rl.plan import RlLayout

# The user's variables: name -> (default, meaning); without a default they must be set.
Asked = Mapping[str, tuple[str, str]]
# Frameworks of reinforcement learning that launch files are written for.
WRITERS = ("verl", "nemo-rl", "trl")
# The plan that belongs to a folder, beside its launch files.
PLAN_FILE = "plan.json"
_ALL_LINEAR = read_tuning("lora:rank=1,targets=all-linear")
# Variables of the scripts that name models.
POLICY_PATH, CRITIC_PATH = "MODEL_PATH", "CRITIC_PATH"


@dataclass(frozen=True, slots=True)
class RlLaunch:
    """A layout of a job, to be written as launch files for the job's framework.

    `steps`: the number of steps of a short run without checkpoints and validation; None for a full
    run.
    """

    request: RlRequest
    job: RlJob
    layout: RlLayout
    steps: int | None = None

    @property
    def degrees(self) -> Degrees:
        """The trainer's degrees."""
        return self.layout.trainer.degrees

    @property
    def separate(self) -> bool:
        """Whether the engines, which generate samples, have GPUs of their own."""
        return self.layout.placement == "separate"

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node of the cluster."""
        return self.job.trainer.cluster.gpus_per_node

    @property
    def recomputes(self) -> str:
        """Name of the trainer's recompute mode."""
        return self.layout.trainer.recompute

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return self.job.rollout.longest

    @property
    def token_limit(self) -> int:
        """The largest number of tokens in one micro-batch of a data-parallel rank."""
        return self.job.trainer.seq

    @property
    def name(self) -> str:
        """Name of the policy and the algorithm in letters, digits and dashes."""
        words = f"{self.job.policy.name[:60]}-{self.job.algorithm.name}"
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")

    def nodes_of(self, gpus: int) -> tuple[int, int]:
        """The number of nodes for `gpus` GPUs, and how many are used on each."""
        each = min(gpus, self.gpus_per_node)
        return -(-gpus // each), each


class RlWriter(Protocol):
    """The module that writes launch files of reinforcement learning."""

    def refusals(self, launch: RlLaunch) -> Iterator[Refusal]:
        """Reasons why it cannot express a plan, in addition to the rows of `launch.toml`."""

    def files(self, launch: RlLaunch) -> Files:
        """The files of the folder, except the plan file. Only called if nothing is refused."""

    def asked(self, launch: RlLaunch) -> Asked:
        """The user's variables in its script: default and meaning by name; those without a default
        must be set."""


def writer_of(framework: str) -> RlWriter:
    """The writer for a framework. UsageError if launch files are not written for it."""
    if framework not in WRITERS:
        raise UsageError(
            f"nothing writes launch files of reinforcement learning for {framework}: give "
            f"--framework, one of {', '.join(WRITERS)}, and search for it with --rl-framework"
        )
    writer: RlWriter = importlib.import_module("planner.launch.dialects.rl.writer")
    return writer


def rl_files(launch: RlLaunch) -> Files:
    """The launch files of a layout. UsageError with the first reason, if the framework cannot run
    it."""
    framework = launch.job.framework.name
    writer = writer_of(framework)
    for refusal in _refusals(launch):
        raise UsageError(
            f"{framework} cannot run this plan: {refusal.reason}; nearest: {refusal.nearest}"
        )
    return writer.files(launch)


def launch_note(launch: RlLaunch) -> str | None:
    """The first reason why `planner launch` cannot write a layout, with the nearest alternative.
    None if it can, or if launch files are not written for the framework at all."""
    name = launch.job.framework.name
    for refusal in _refusals(launch) if name in WRITERS else ():
        return f"planner launch cannot write it: {refusal.reason}; nearest: {refusal.nearest}"
    return None


def names_of(launch: RlLaunch) -> dict[str, object]:
    """Names that the dialect's rows may use for a launch."""
    job, layout, tuning = launch.job, launch.layout, launch.job.trainer.tuning
    return {
        "launch": launch,
        "job": job,
        "layout": layout,
        "degrees": launch.degrees,
        "engine": layout.engine,
        "rollout": job.rollout,
        "profile": job.trainer.framework.name,
        "tuning": tuning,
        "all_linear": tuning.adapted(job.policy) == _ALL_LINEAR.adapted(job.policy),
        "even": len(set(layout.trainer.layout.stage_layers)) == 1,
    }


def _refusals(launch: RlLaunch) -> Iterator[Refusal]:
    """Reasons why the framework cannot run a plan: rows of the dialect's `launch.toml`, then those
    of the writer."""
    for table in ("every", launch.job.framework.name):
        yield from said_refusals("rl", table, names_of(launch))
    yield from writer_of(launch.job.framework.name).refusals(launch)
