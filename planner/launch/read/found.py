"""The content of launch files: settings with their places, and problems."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from constraints.axes import ContextKind
from hardware.transport import TransportSettings, read_transport
from planner.job.recompute import Recomputed
from planner.job.samples import Balance, Packing
from planner.job.specs import ModelSpec
from planner.launch.languages.shell import OF_THE_MACHINE
from planner.launch.languages.text import SourceFile, Span, Text
from planner.launch.read.rl_found import RlFound

# Similarity above which an unknown name counts as a misspelling.
SURELY_MEANT = 0.9

# The start of the reason why a value with a placeholder is unknown.
PLACEHOLDER = "a placeholder"

Severity = Literal["error", "missing", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it was written.

    `key`: its name in its format (`--tensor-model-parallel-size`, `training.local_batch_size`).
    `file`, `line`: place of the value; line 0 if it is not in a file. `spans`: places where --fix
    can replace the value, first the definition, then the use; `whole`: the span of key and value,
    for removal. `unknown`: the reason why the value is unknown, else empty; `variable`: the
    variable with which the user can then give it (`--env`).
    """

    key: str
    value: object
    file: str = ""
    line: int = 0
    spans: tuple[Span, ...] = ()
    whole: Span | None = None
    unknown: str = ""
    variable: str = ""

    @property
    def place(self) -> str:
        """File and line of the value: `train.sh:12`; "command line" if it is in no file."""
        return f"{self.file}:{self.line}" if self.line else self.file or "command line"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one key of a file. `value`: the new value; `""` for a switch, None to remove the
    key. `rename`: the correct spelling of the key, whose value then stays."""

    key: str
    value: str | None
    rename: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in launch files. `rule`: name of the rule that is broken.

    `severity`: `error`: the launch will not run; `missing`: a value without which no prediction is
    possible; `warning`: it runs, but not as expected; `note`: worth knowing. `edits`: the changes
    that --fix makes; `fix`: advice in words. `late`: the framework only detects the problem at run
    time.
    """

    rule: str
    text: str
    severity: Severity = "error"
    places: tuple[str, ...] = ()
    fix: str = ""
    edits: tuple[Edit, ...] = ()
    late: bool = False

    def __post_init__(self) -> None:
        if self.edits and not self.fix:
            object.__setattr__(self, "fix", _in_words(self.edits))


def _in_words(edits: Sequence[Edit]) -> str:
    """The edits as advice: the settings that they add or change, otherwise those to leave out."""
    kept = [f"{edit.key} {edit.value}".rstrip() for edit in edits if edit.value is not None]
    renamed = [edit.rename for edit in edits if edit.rename]
    return " ".join(kept or renamed) or f"leave {', '.join(edit.key for edit in edits)} out"


class Placed:
    """Base of documents with settings: `settings` by key, `used`: the keys that a reader asked for.
    Its methods make problems with the places of settings."""

    settings: dict[str, Setting]
    used: set[str]

    def place(self, *keys: str) -> tuple[str, ...]:
        """Places (`train.sh:12`) of the settings with these keys, without duplicates; absent keys
        are skipped."""
        found = (self.settings[key].place for key in keys if key in self.settings)
        return tuple(dict.fromkeys(found))

    def rest(self) -> Iterator[Setting]:
        """The settings that no reader asked for."""
        return (setting for key, setting in self.settings.items() if key not in self.used)

    def problem(self, rule: str, text: str, *keys: str, **more: Any) -> Problem:
        """A problem located at the settings with these keys. `more`: fields of `Problem`."""
        return Problem(rule, text, places=self.place(*keys), **more)

    def unpredictable(self, text: str, *keys: str) -> Problem:
        """The problem that settings ask for a feature that is not modelled, so that there is no
        prediction."""
        return not_predictable(text, *self.place(*keys))

    def wrong(self, text: str, key: str, value: str = "", **more: Any) -> Problem:
        """The problem that the framework does not accept a setting's value. `value`: the nearest
        accepted one, for --fix; empty if there is none."""
        edits = (Edit(key, value),) if value else ()
        return self.problem("option-value", text, key, edits=edits, **more)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name most similar to `name`; empty if none is similar."""
    # Names of very different lengths are skipped to save time.
    near = [one for one in known if 2 * min(map(len, (one, name))) >= cutoff * len(one + name)]
    return next(iter(difflib.get_close_matches(name, near, n=1, cutoff=cutoff)), "")


def is_slip(name: str, meant: str) -> bool:
    """Whether a name is so similar to another that it must be a slip."""
    return difflib.SequenceMatcher(None, name, meant).ratio() >= SURELY_MEANT


def model_unknown(text: str, places: tuple[str, ...] = (), fix: str = "--model NAME") -> Problem:
    """The problem that the files do not name the model. `fix`: the option that does."""
    return Problem("model-unknown", text, "missing", places, fix)


def not_predictable(text: str, *places: str) -> Problem:
    """The problem that the launch asks for a feature that is not modelled, so that there is no
    prediction."""
    return Problem("not-predictable", text, "warning", places)


def telling(unknown: str) -> str:
    """Advice on the option that gives an unknown value, such as `--env NAME=VALUE`. `unknown`: the
    reason why it is unknown."""
    if unread := re.search(r"which (\S+) may set, and that was not read", unknown):
        named = re.match(r"\$(\w+)", unknown)
        return f"--env {named[1] if named else 'NAME'}=VALUE, or {unread[1]} too"
    if unknown.endswith(OF_THE_MACHINE):
        return "--gpus, which says it"
    named = re.match(r"\$(\w+|@)\b|\$(@)", unknown)
    return f"--env {named[1] or named[2]}=VALUE" if named else "--env NAME=VALUE sets a variable"


def unresolved(setting: Setting) -> Problem:
    """The problem that a setting on which the prediction depends has an unknown value."""
    fix = telling(setting.unknown)
    if setting.variable:
        fix = f"--env {setting.variable}=VALUE"
    elif setting.unknown.startswith(PLACEHOLDER):
        fix = f"its value in {setting.place}"
    text = f"{setting.key} is {setting.unknown}"
    return Problem("unresolved", text, "missing", (setting.place,), fix)


# Rule for a checkpoint with a vision part that may or may not be loaded.
CHECKPOINT_TOWER = "checkpoint-tower"
# Images of the usual size for the model's family.
USUAL = "usual"


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts from the caller of a reader; they override the files. None: not given.

    `environment`: values of shell variables; `model`: a catalogue name or a path; `seq` in tokens;
    `mbs` and `gbs` in sequences; `lengths` of the samples, and `images` (or `USUAL`) or
    `image_tokens`, as in a request. `gpus`: the number of processes; `nodes` and `gpus_per_node`:
    those of the machine, of which a launch may use a part.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    vocab: int | None = None
    seq: int | None = None
    mbs: int | None = None
    gbs: int | None = None
    grad_acc: int | None = None
    recompute: str | None = None
    lengths: str | None = None
    images: str | None = None
    image_tokens: int | None = None
    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None


# `tasks`: started by srun, a process per GPU or, around torchrun, a launcher per node.
CountKind = Literal["nodes", "gpus a node", "gpus", "processes a node", "processes",
                    "tasks a node", "tasks"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Count:
    """A number of nodes, GPUs or processes that a file states. `who`: the option that states it;
    `eased`: whether it is only a default, which the environment may override (`${NNODES:-1}`)."""

    kind: CountKind
    number: int
    who: str
    setting: Setting
    eased: bool = False


@dataclass(frozen=True, slots=True)
class Saving:
    """The time limit of a job, and when the run saves. None: unknown.

    `limit_s`: the limit in seconds; `limit`: as written; `place`: where. `every`: steps between
    checkpoints; `stop_s`: seconds after which the run saves and ends by itself; `steps`: number of
    steps of the whole run.
    """

    limit_s: float
    limit: str
    place: str
    every: int | None
    stop_s: float | None
    steps: int | None

    def loss_at_limit(self, step_time_s: float) -> str:
        """The reason why the time limit ends the run before it saves; empty if it does not, or if
        that is unknown."""
        whole_s = None if self.steps is None else self.steps * step_time_s
        ends = whole_s is not None and whole_s < self.limit_s
        if ends or (self.stop_s is not None and self.stop_s < self.limit_s):
            return ""
        if self.every is None:
            return "" if whole_s is None else "it saves no checkpoint before that"
        if self.every * step_time_s < self.limit_s:
            return ""
        hours = self.every * step_time_s / 3600
        return f"a checkpoint every {self.every:,} steps is one every {hours:.1f} h as predicted"


# Fields of `Found` that have the same name and meaning in a request.
ASKED = (
    "seq", "framework", "precision", "dtype", "optimizer", "attention", "schedule", "dropout",
    "expert_imbalance", "cp_comm_type", "cp_sizes", "sharp", "gradient_as_bucket_view",
    "set_to_none", "mtp_layers", "bias", "optimizer_offload", "activation_offload",
    "activation_offload_fraction", "train", "freeze", "objective", "lengths", "packing",
    "balance", "images", "image_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A launch as its files describe it, in the planner's terms. None: the files do not say.

    `format`: the format of its files (`[formats]` of a `dialect.toml`, or "plan"); `framework`: the
    profile; `variations`: names of variations (`planner.launch.check.request`) that the settings
    switch on. `shape`: the model, if the files describe it; otherwise `model` names it. `world`:
    number of processes that the launcher starts; `dp`: only if the files state it. `block_layers`:
    the number of layers of each pipeline block, in order; `mtp_standalone`: multi-token prediction
    fills the block before the last.

    `settings`: all settings; `where`: field of this class -> the setting that states it. `unused`:
    settings without effect on memory and time; `unmodelled`: settings with an effect that the
    prediction leaves out; `unknown`: settings that the framework does not know. `plan_gpus`: the
    machine that a plan file names.
    """

    format: str
    framework: str
    files: Mapping[str, SourceFile] = field(default_factory=dict)
    variations: tuple[str, ...] = ()
    shape: ModelSpec | None = None
    model: str | None = None
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    dp: int | None = None
    shard: int = 0
    zero: int = 0
    world: int | None = None
    mbs: int = 1
    gbs: int | None = None
    grad_acc: int | None = None
    # A batch ramp that ends at `gbs` (`planner.job.batch_ramp`).
    batch_ramp: str | None = None
    seq: int | None = None
    block_layers: tuple[int, ...] | None = None
    mtp_standalone: bool = False
    recompute: str = "none"
    recomputed: Recomputed | None = None
    optimizer: str = "adamw"
    optimizer_kernel: str | None = None
    optimizer_offload: float = 0.0
    # Modules whose activations are kept on the host, separated by commas, or `off`.
    activation_offload: str = "off"
    activation_offload_fraction: float = 1.0
    precision: str = "bf16"
    dtype: str | None = None
    schedule: str | None = None
    attention: Literal["flash", "eager"] = "flash"
    dropout: bool = False
    expert_imbalance: float = 1.0
    # How context parallelism communicates, and the sizes of its levels; None: the default.
    cp_comm_type: ContextKind | None = None
    cp_sizes: tuple[int, ...] = ()
    # Whether switches reduce gradients (SHARP).
    sharp: bool = False
    # The request's switches (`planner.job.frameworks.switches`) and what belongs to them.
    gradient_as_bucket_view: bool = False
    set_to_none: bool = True
    cublas_workspace_config: str | None = None
    # None: as in `shape`, else the framework's default.
    mtp_layers: int | None = None
    bias: bool = True
    # How weights are trained and what is frozen, as in a request.
    train: str = "full"
    freeze: tuple[str, ...] = ()
    # The objective, as in a request.
    objective: str = "lm"
    # Sample lengths, and how samples become rows, which only matters if lengths are known.
    lengths: str | None = None
    packing: Packing | None = None
    balance: Balance | None = None
    # Images of a sample, or their tokens, as in a request.
    images: str | None = None
    image_tokens: int | None = None
    plan_gpus: str | None = None
    main_file: str = ""
    where: Mapping[str, Setting] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()
    unused: tuple[Setting, ...] = ()
    unmodelled: tuple[tuple[Setting, str], ...] = ()
    unknown: tuple[Setting, ...] = ()
    problems: tuple[Problem, ...] = ()
    assumed: tuple[str, ...] = ()
    # Facts that no file, default or preset decides, by columns of measured runs
    # (planner/evidence/runs/open_facts.toml).
    left_open: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    # Variables of NCCL and libfabric that the command sees (`hardware.transport`).
    network: tuple[Setting, ...] = ()
    # The configuration file, which may be inside another file.
    document: Text | None = None
    # A source of further settings that could not be read.
    unseen: str = ""
    # Every stated number of nodes, GPUs and processes; whether one process drives all GPUs of its
    # node, so that Slurm's tasks do not count GPUs.
    counts: tuple[Count, ...] = ()
    one_process_a_node: bool = False
    # The job's time limit and when the run saves, if both are known.
    saving: Saving | None = None
    # Reinforcement learning; the other fields then describe its trainer.
    rl: RlFound | None = None

    def asked(self) -> dict[str, Any]:
        """The properties of the job for a request, by field of `Request`."""
        asked = {name: getattr(self, name) for name in ASKED}
        return asked if self.lengths else asked | {"packing": None, "balance": None}

    def transport(self) -> TransportSettings:
        """The effect of the variables in `network` on the links between GPUs."""
        return read_transport({one.key: str(one.value) for one in self.network})

    def setting(self, key: str) -> Setting | None:
        """The setting with a key, including counts and unknown settings; the last if it is
        repeated; None if there is none."""
        every = (*(count.setting for count in self.counts), *self.unknown, *self.settings)
        return next((item for item in reversed(every) if item.key == key), None)
