"""What a dialect is: the contract of a folder below `planner/launch/dialects`.

A dialect is how one framework, or a few that belong together, say a training run. A folder has

* `dialect.toml`, the registration: what is written, what is read and how it is told from other
  files, and the functions that do it, as `module:name` of the folder. Its fields are those of
  `Dialect`, `Target`, `Kind`, `Format` and `Program` in `planner.launch.registry`;
* a writer for each target, a module with the functions of `Writer` below; it is pure: a plan in,
  texts of files out. Its templates stand in `templates/`, and
  `planner.launch.settings_text.filled("DIALECT/FILE.txt")` fills them in;
* a table of the model (`planner.launch.architecture`, as TOML `planner.launch.architecture`): every
  field of the architecture has a row, is known to be what the framework does unasked, or is refused
  by name;
* `launch.toml`: what is refused, needed, set and explained where a condition holds
  (`planner.launch.sentences`);
* `rules.toml`: what is wrong with the settings of a file, where a condition holds
  (`planner.launch.sentences.said_problems`);
* `options.toml`: how a run is said (degrees, batch, recomputation, switches), which writer, reader
  and `--fix` share (`planner.launch.options`);
* readers, `(Source) -> Found` of a file or `(LaunchCommand, Opened, Hints) -> Found` of a command,
  on top of `planner.launch.read` (`DocumentReader` for TOML, YAML and JSON) and, for shell and
  Python, of `planner.launch.languages`.

The framework's own profile (`planner/job/frameworks/NAME.toml`) names its target, `launch.target`.
Nothing else names a dialect: choices of targets, detection, `--fix`, words of the README, checks of
versions and the tables of `docs/dialects.md` follow from the scan.

Below: what a launch writer gets and gives, and what all of them have: how long a run is, how often
it saves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from planner.job.frameworks.techniques import Technique
from planner.job.job import Job
from planner.job.recompute import Module
from planner.job.request import Request
from planner.predict.plan import Plan

NodesAs = Literal["slurm", "torchrun", "k8s", "skypilot"]

# Relative file name inside the launch folder -> its text.
Files = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Launch:
    """One plan to be written for one framework.

    `job` is `request` resolved; `plan` was costed under `job.framework`, whose name is the
    profile's, while `target` names the writer ("accelerate"). `given`: values of the user's
    variables that the folder holds for good; `name`: of the job, where a driver
    gives it one.
    """

    plan: Plan
    request: Request
    job: Job
    target: str
    nodes_as: NodesAs = "torchrun"
    given: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def gpus_per_node(self) -> int:
        """Processes that one node runs."""
        return min(self.job.cluster.gpus_per_node, self.plan.degrees.gpus)

    @property
    def splits_sequence(self) -> bool:
        """Whether tensor parallelism, if there is any, comes with sequence parallelism."""
        return self.job.framework.parallelism.sequence_parallel == "with-tp"

    @property
    def recomputes_layers(self) -> bool:
        """Whether whole layers run again in backward."""
        mode = self.job.framework.recompute_mode(self.plan.recompute)
        return Module.FULL in mode.mask and bool(self.plan.layout.recomputed)

    @property
    def recompute_reason(self) -> str:
        """What becomes of activations, in words."""
        again = "each layer keeps its input and runs again"
        return again if self.recomputes_layers else "every activation is kept"

    @property
    def nodes(self) -> int:
        """Nodes that the job takes."""
        return -(-self.plan.degrees.gpus // self.gpus_per_node)

    @property
    def techniques(self) -> tuple[Technique, ...]:
        """Techniques that the plan uses, as the job's framework has them."""
        found = (self.job.framework.technique(name) for name in self.plan.techniques)
        return tuple(one for one in found if one is not None)

    @property
    def technique_needs(self) -> tuple[str, ...]:
        """Packages that they ask for beyond the framework's."""
        return tuple(one.needs for one in self.techniques if one.needs)


# What FSDP2 does with gathered parameters, by ZeRO stage.
RESHARDING = {
    0: "nothing is sharded",
    2: "gathered parameters stay until backward (ZeRO-2)",
    3: "parameters are freed after forward and gathered again for backward (ZeRO-3)",
}
OFFLOADED = "parameters, gradients and optimizer state in host memory"


@dataclass(frozen=True, slots=True)
class Variable:
    """A setting that is the user's: a shell variable at the top of the script, from the
    environment or `default`, which may name variables above it.

    `needed`: it must be set before the job is submitted; `holds`: a path, in terms of the
    variable, that must exist then, where no container brings it; `names_path`: it names a file or
    folder, which a container must see. `given`: the value that the folder holds for good, in place
    of the environment's.
    """

    name: str
    default: str = ""
    meaning: str = ""
    needed: bool = False
    holds: str = ""
    names_path: bool = False
    given: str | None = None

    @property
    def is_path(self) -> bool:
        """Whether it names a file or folder."""
        return bool(self.holds) or self.names_path


def needed(name: str, meaning: str, holds: str = "") -> Variable:
    """A variable that the user must set."""
    return Variable(name, "", meaning, needed=True, holds=holds)


FOLDER, RUN = "CHECKPOINTS", "RUN_NAME"
CHECKPOINTS_AT_HOME = "checkpoints"
# Steps of a first run: enough to see memory settle and the step time repeat.
TRIAL_STEPS = 50
TRAIN_STEPS = Variable("TRAIN_STEPS", str(TRIAL_STEPS), "steps of the run; the default is a trial")
PRETRAINED, STOP = "PRETRAINED", "STOP_AFTER_MINUTES"
WARMUP_STEPS = Variable(
    "WARMUP_STEPS", "5", "PLACEHOLDER, yours to choose: steps of warm-up, fewer than TRAIN_STEPS"
)


def pretrained_variable(form: str, *, local: bool = True) -> Variable:
    """The weights to start from; `form`: what the framework takes; `local`: only from a disk."""
    return Variable(
        PRETRAINED,
        "",
        f"weights to start from: {form}; empty: FROM SCRATCH, with random weights",
        holds=f"${{{PRETRAINED}}}" if local else "",
        names_path=True,
    )


def rate_variable(default: str, name: str = "LEARNING_RATE", what: str = "peak") -> Variable:
    """A learning rate: a number that runs, which nobody chose for this job."""
    meaning = f"PLACEHOLDER, yours to choose: {what} learning rate"
    return Variable(name, default, meaning)


def run_variable(launch: Launch) -> Variable:
    """The name of the run, by what it trains: runs that learn differently do not share it."""
    return Variable(RUN, run_name(launch), "name of this run; every experiment needs its own")


def run_name(launch: Launch) -> str:
    """Letters, digits and dashes."""
    model, plan = launch.job.model.name[:60], launch.plan
    tuning = launch.job.tuning
    how = f"-{tuning.method}{tuning.rank or ''}" if not tuning.trains_all else ""
    words = f"{model}-{launch.target}{how}-gbs{plan.gbs}-seq{plan.seq}".lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


# Where checkpoints outlive the machines: on disks that a launcher's pods or machines mount.
_CHECKPOINT_ROOTS = {"k8s": "/shared/checkpoints", "skypilot": "/checkpoints"}
_AT_HOME = f"${{HOME}}/{CHECKPOINTS_AT_HOME}"


def checkpoints_of(launch: Launch) -> str:
    """Where the checkpoints of a launch go unless the user says otherwise, as a shell says it."""
    root = _CHECKPOINT_ROOTS.get(launch.nodes_as, f"$HOME/{CHECKPOINTS_AT_HOME}")
    return f"{root}/{run_name(launch)}"


def on_disk(entry: Variable, launch: Launch) -> Variable:
    """A variable whose default lies on the disk that the launcher's machines share."""
    root = _CHECKPOINT_ROOTS.get(launch.nodes_as, _AT_HOME)
    return replace(entry, default=entry.default.replace(_AT_HOME, root))


def folder_variable(data: str) -> Variable:
    """Where checkpoints go: nowhere while `data`, a variable, is empty and the run a trial.

    The default lies outside of the launch folder, which may be written again or deleted.
    """
    return Variable(
        FOLDER,
        f"${{{data}:+{_AT_HOME}/${{{RUN}}}}}",
        "folder of checkpoints on a disk of all nodes; a job that is started again goes on from "
        "the last; empty: none",
        names_path=True,
    )


def path_variable(name: str, meaning: str) -> Variable:
    """A file or folder that the user may name."""
    return Variable(name, "", f"{meaning}; empty: none", names_path=True)


# Variables that several frameworks have, by kind.
VARIABLES: Mapping[str, Callable[..., Variable]] = {
    "pretrained": pretrained_variable,
    "checkpoints": folder_variable,
    "path": path_variable,
    "rate": rate_variable,
    "steps": lambda: TRAIN_STEPS,
    "warmup": lambda: WARMUP_STEPS,
}


@dataclass(frozen=True, slots=True)
class Branch:
    """Arguments where a variable is set, and those where it is empty."""

    variable: str
    given: tuple[str, ...]
    otherwise: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCommand:
    """What runs on the nodes.

    `argv`: the program and its arguments after the process launcher, a line each in a script.
    `launcher`: `torchrun` or `accelerate`, one call a node that starts a process a GPU; `python`:
    the program itself, one process a node, which finds the others by `node_variables`: how it calls
    the number of `nodes`, this one's `rank`, and the `address` and `port` of the first.
    `environment`: variables with the reason for each. `launcher_arguments`: options
    of the process launcher itself, before the program (`--config_file accelerate.yaml`).
    `comments`: index in `argv` -> the comment line above that argument. A word of `argv` may name
    a shell variable, as `${MEGATRON_LM}`. `variables` and `branches`: what is the user's, with safe
    defaults but for what is `needed`.
    """

    argv: tuple[str, ...]
    launcher: Literal["torchrun", "accelerate", "python"] = "torchrun"
    environment: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    launcher_arguments: tuple[str, ...] = ()
    comments: Mapping[int, str] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    branches: tuple[Branch, ...] = ()
    node_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> tuple[Variable, ...]:
        """Variables that the user must set."""
        return tuple(entry for entry in self.variables if entry.needed)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a framework cannot express a plan, and the nearest that it can."""

    reason: str
    nearest: str


def ramp_refusals(job: Job, name: str, why: str = "has no batch ramp") -> Iterator[Refusal]:
    """A ramp, where the framework `name` cannot have one."""
    if job.ramp:
        yield Refusal(f"{name} {why}", "--framework megatron-core, or no --batch-ramp")


def length_refusals(job: Job) -> Iterator[Refusal]:
    """A sequence beyond the model's positions."""
    if job.seq > (most := job.model.max_positions):
        text = f"a sequence of {job.seq:,} is longer than the {most:,} positions of the model"
        yield Refusal(text, f"--seq {most}")


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    """One setting of the written configuration and what it is for (README of the folder)."""

    setting: str
    purpose: str


class Writer(Protocol):
    """The module of a dialect that writes the launch files of one target."""

    def job_refusals(self, job: Job) -> Iterator[Refusal]:
        """What the framework cannot express of the job, whatever the plan; searches ask it."""

    def plan_refusals(self, launch: Launch) -> Iterator[Refusal]:
        """What the framework cannot express of the plan, its job apart."""

    def files(self, launch: Launch) -> Files:
        """The framework's own configuration files, with a `preflight.py` of its own where torch is
        not what it runs on. Only called without refusals."""

    def command(self, launch: Launch) -> RunCommand:
        """What the launcher script runs."""

    def choices(self, launch: Launch) -> Iterator[ExplainedSetting]:
        """The settings worth a sentence."""

    def requirements(self, launch: Launch) -> tuple[str, ...]:
        """Packages with the versions that the files are written for."""
