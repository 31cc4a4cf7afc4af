"""The contract of a dialect, a folder below `planner/launch/dialects`.

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

# File name relative to the launch folder -> text.
Files = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan to be written for a framework.

    `job`: `request` resolved. `plan` was costed under the profile `job.framework`; `target` names
    the writer ("accelerate"). `given`: values that the folder fixes for the user's variables, by
    name. `name`: the job's name, if another program starts the runs; otherwise empty.
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
        """Processes on one node, one for each GPU that the plan uses there."""
        return min(self.job.cluster.gpus_per_node, self.plan.degrees.gpus)

    @property
    def splits_sequence(self) -> bool:
        """Whether the framework uses sequence parallelism whenever it uses tensor parallelism."""
        return self.job.framework.parallelism.sequence_parallel == "with-tp"

    @property
    def recomputes_layers(self) -> bool:
        """Whether whole layers are recomputed in backward."""
        mode = self.job.framework.recompute_mode(self.plan.recompute)
        return Module.FULL in mode.mask and bool(self.plan.layout.recomputed)

    @property
    def recompute_reason(self) -> str:
        """A phrase on how activations are kept: all of them, or only the inputs of recomputed
        layers."""
        again = "each layer keeps its input and runs again"
        return again if self.recomputes_layers else "every activation is kept"

    @property
    def nodes(self) -> int:
        """Nodes that the job needs."""
        return -(-self.plan.degrees.gpus // self.gpus_per_node)

    @property
    def techniques(self) -> tuple[Technique, ...]:
        """Techniques that the plan uses."""
        found = (self.job.framework.technique(name) for name in self.plan.techniques)
        return tuple(one for one in found if one is not None)

    @property
    def technique_needs(self) -> tuple[str, ...]:
        """Packages that these techniques need."""
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
    """A user's setting: a shell variable at the top of the script. Its value comes from the
    environment or else from `default`, which may refer to variables above it.

    `needed`: the user must set it before the job is submitted. `holds`: a path, written with the
    variable, that must exist at that time, unless it is inside a container. `names_path`: it names
    a file or folder, which a container must be able to see. `given`: a fixed value, which the
    environment does not override; None if there is none.
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
# Steps of a first run: enough for memory to settle and the step time to repeat.
TRIAL_STEPS = 50
TRAIN_STEPS = Variable("TRAIN_STEPS", str(TRIAL_STEPS), "steps of the run; the default is a trial")
PRETRAINED, STOP = "PRETRAINED", "STOP_AFTER_MINUTES"
WARMUP_STEPS = Variable(
    "WARMUP_STEPS", "5", "PLACEHOLDER, yours to choose: steps of warm-up, fewer than TRAIN_STEPS"
)


def pretrained_variable(form: str, *, local: bool = True) -> Variable:
    """The variable for the weights to start from. `form`: a description of the weights that the
    framework accepts; `local`: they must be on a disk."""
    return Variable(
        PRETRAINED,
        "",
        f"weights to start from: {form}; empty: FROM SCRATCH, with random weights",
        holds=f"${{{PRETRAINED}}}" if local else "",
        names_path=True,
    )


def rate_variable(default: str, name: str = "LEARNING_RATE", what: str = "peak") -> Variable:
    """The variable for a learning rate. Its default is a placeholder that was not chosen for this
    job. `what`: the rate meant, such as `peak`."""
    meaning = f"PLACEHOLDER, yours to choose: {what} learning rate"
    return Variable(name, default, meaning)


def run_variable(launch: Launch) -> Variable:
    """The variable for the name of the run. The default is derived from the training, so that
    different trainings have different names."""
    return Variable(RUN, run_name(launch), "name of this run; every experiment needs its own")


def run_name(launch: Launch) -> str:
    """A name of lower-case letters, digits and dashes, from the model, the target, the way of
    tuning, the global batch and the sequence length."""
    model, plan = launch.job.model.name[:60], launch.plan
    tuning = launch.job.tuning
    how = f"-{tuning.method}{tuning.rank or ''}" if not tuning.trains_all else ""
    words = f"{model}-{launch.target}{how}-gbs{plan.gbs}-seq{plan.seq}".lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


# Disks on which checkpoints outlive the machines, as the launchers mount them.
_CHECKPOINT_ROOTS = {"k8s": "/shared/checkpoints", "skypilot": "/checkpoints"}
_AT_HOME = f"${{HOME}}/{CHECKPOINTS_AT_HOME}"


def checkpoints_of(launch: Launch) -> str:
    """The default folder for the run's checkpoints, in shell syntax."""
    root = _CHECKPOINT_ROOTS.get(launch.nodes_as, f"$HOME/{CHECKPOINTS_AT_HOME}")
    return f"{root}/{run_name(launch)}"


def on_disk(entry: Variable, launch: Launch) -> Variable:
    """The variable with a default folder in the user's home moved to the disk that the launcher's
    machines share; unchanged if there is no such disk or no such folder."""
    root = _CHECKPOINT_ROOTS.get(launch.nodes_as, _AT_HOME)
    return replace(entry, default=entry.default.replace(_AT_HOME, root))


def folder_variable(data: str) -> Variable:
    """The variable for the folder of checkpoints. `data`: name of the variable for the training
    data; while it is empty, as in a trial run, no checkpoints are saved by default.

    The default is outside the launch folder, which may be rewritten or deleted.
    """
    return Variable(
        FOLDER,
        f"${{{data}:+{_AT_HOME}/${{{RUN}}}}}",
        "folder of checkpoints on a disk of all nodes; a job that is started again goes on from "
        "the last; empty: none",
        names_path=True,
    )


def path_variable(name: str, meaning: str) -> Variable:
    """A variable for an optional file or folder."""
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
    """Arguments of the command: `given` if a variable is set, `otherwise` if it is empty."""

    variable: str
    given: tuple[str, ...]
    otherwise: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunCommand:
    """The command that runs on each node.

    `argv`: the program and its arguments, which may refer to shell variables such as
    `${MEGATRON_LM}`. `launcher`: `torchrun` or `accelerate`, called once per node, start a process
    per GPU; `python` is one process per node, which finds the others by `node_variables`: its names
    for the number of `nodes`, its `rank`, and the `address` and `port` of the first node.
    `environment`: variables, each with a reason. `launcher_arguments`: options of the process
    launcher (`--config_file accelerate.yaml`). `comments`: index in `argv` -> comment above that
    argument. `variables` and `branches`: the user's settings, with safe defaults unless they are
    `needed`.
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
    """Why a framework cannot express a plan, and the nearest alternative."""

    reason: str
    nearest: str


def ramp_refusals(job: Job, name: str, why: str = "has no batch ramp") -> Iterator[Refusal]:
    """A refusal if the job has a batch ramp, for a framework (`name`) that does not support it;
    nothing otherwise."""
    if job.ramp:
        yield Refusal(f"{name} {why}", "--framework megatron-core, or no --batch-ramp")


def length_refusals(job: Job) -> Iterator[Refusal]:
    """A refusal if the job's sequence is longer than the model's number of positions; nothing
    otherwise."""
    if job.seq > (most := job.model.max_positions):
        text = f"a sequence of {job.seq:,} is longer than the {most:,} positions of the model"
        yield Refusal(text, f"--seq {most}")


@dataclass(frozen=True, slots=True)
class ExplainedSetting:
    """A setting of the written configuration and its purpose, for the folder's README."""

    setting: str
    purpose: str


class Writer(Protocol):
    """The module of a dialect that writes the launch files of one target."""

    def job_refusals(self, job: Job) -> Iterator[Refusal]:
        """Reasons why the target can write no plan of the job. Searches ask for them before there
        are plans."""

    def plan_refusals(self, launch: Launch) -> Iterator[Refusal]:
        """Reasons why the target cannot write this plan, in addition to those of `job_refusals`."""

    def files(self, launch: Launch) -> Files:
        """The framework's configuration files, with a `preflight.py` if it does not use torch. Only
        called if nothing is refused."""

    def command(self, launch: Launch) -> RunCommand:
        """The command that the launcher's script runs on each node."""

    def choices(self, launch: Launch) -> Iterator[ExplainedSetting]:
        """Settings that the README explains."""

    def requirements(self, launch: Launch) -> tuple[str, ...]:
        """Packages that the files need, with versions."""
