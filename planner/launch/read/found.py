"""What was found in launch files: settings with their places, and what is wrong with them."""

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

# Likeness from which an unknown name is taken for a misspelt one.
SURELY_MEANT = 0.9

# How the reason begins for which a value that is still to be filled in is not known.
PLACEHOLDER = "a placeholder"

Severity = Literal["error", "missing", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it was written.

    `key` as its format spells it (`--tensor-model-parallel-size`,
    `training.local_batch_size`); `file` and `line` of the value, line 0 where it stands in no file.
    `spans`: where its value could be replaced, the place where it is defined first, the place
    where it is used after; `whole`: key and value together, for removal. `unknown`: why the value
    is not known, and `variable`: what `--env` calls that which would tell it.
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
        """`train.sh:12`."""
        return f"{self.file}:{self.line}" if self.line else self.file or "command line"


@dataclass(frozen=True, slots=True)
class Edit:
    """Another value for one key of a file: `value` None removes it, `""` is a switch.

    `rename`: the key is misspelt, and this is what it should be; its value stays.
    """

    key: str
    value: str | None
    rename: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, by the name of the rule it breaks.

    `error`: it will not run; `missing`: nothing can be told without it; `warning`: it runs, and
    not as one would think; `note`: worth knowing. `edits`: what to write instead, for --fix; `fix`:
    the same in words. `late`: the framework finds it out only at run time.
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
    """What edits add or change; where there is none such, what they leave out."""
    kept = [f"{edit.key} {edit.value}".rstrip() for edit in edits if edit.value is not None]
    renamed = [edit.rename for edit in edits if edit.rename]
    return " ".join(kept or renamed) or f"leave {', '.join(edit.key for edit in edits)} out"


class Placed:
    """Settings by key, those of them that were asked for, and problems of them."""

    settings: dict[str, Setting]
    used: set[str]

    def place(self, *keys: str) -> tuple[str, ...]:
        """Where settings stand: `train.sh:12`."""
        found = (self.settings[key].place for key in keys if key in self.settings)
        return tuple(dict.fromkeys(found))

    def rest(self) -> Iterator[Setting]:
        """Settings that no reading function asked for."""
        return (setting for key, setting in self.settings.items() if key not in self.used)

    def problem(self, rule: str, text: str, *keys: str, **more: Any) -> Problem:
        """A problem of settings; `more`: fields of `Problem`."""
        return Problem(rule, text, places=self.place(*keys), **more)

    def unpredictable(self, text: str, *keys: str) -> Problem:
        """What settings ask for and the model does not have."""
        return not_predictable(text, *self.place(*keys))

    def wrong(self, text: str, key: str, value: str = "", **more: Any) -> Problem:
        """A value that the framework does not take; `value`: the nearest that it does."""
        edits = (Edit(key, value),) if value else ()
        return self.problem("option-value", text, key, edits=edits, **more)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that is most like one; empty where none is near."""
    # What differs too much in length alone is not compared, which takes longer.
    near = [one for one in known if 2 * min(map(len, (one, name))) >= cutoff * len(one + name)]
    return next(iter(difflib.get_close_matches(name, near, n=1, cutoff=cutoff)), "")


def is_slip(name: str, meant: str) -> bool:
    """Whether a name is so near to another that it can only be a slip."""
    return difflib.SequenceMatcher(None, name, meant).ratio() >= SURELY_MEANT


def model_unknown(text: str, places: tuple[str, ...] = (), fix: str = "--model NAME") -> Problem:
    """The files do not say which model it is; `fix`: the option that does."""
    return Problem("model-unknown", text, "missing", places, fix)


def not_predictable(text: str, *places: str) -> Problem:
    """What files ask for and the model does not have."""
    return Problem("not-predictable", text, "warning", places)


def telling(unknown: str) -> str:
    """What the user may give for what is not known, from why it is not."""
    if unread := re.search(r"which (\S+) may set, and that was not read", unknown):
        named = re.match(r"\$(\w+)", unknown)
        return f"--env {named[1] if named else 'NAME'}=VALUE, or {unread[1]} too"
    if unknown.endswith(OF_THE_MACHINE):
        return "--gpus, which says it"
    named = re.match(r"\$(\w+|@)\b|\$(@)", unknown)
    return f"--env {named[1] or named[2]}=VALUE" if named else "--env NAME=VALUE sets a variable"


def unresolved(setting: Setting) -> Problem:
    """A setting that decides, and whose value is not known."""
    fix = telling(setting.unknown)
    if setting.variable:
        fix = f"--env {setting.variable}=VALUE"
    elif setting.unknown.startswith(PLACEHOLDER):
        fix = f"its value in {setting.place}"
    text = f"{setting.key} is {setting.unknown}"
    return Problem("unresolved", text, "missing", (setting.place,), fix)


# Rule of a checkpoint with a vision part of which it is not known whether it is loaded.
CHECKPOINT_TOWER = "checkpoint-tower"
# Images of the size that the model's family has unless told.
USUAL = "usual"


@dataclass(frozen=True, slots=True)
class Hints:
    """What the caller knows beside the files; it wins over what they say.

    `environment`: values of shell variables; `model`: a catalogue
    name or path; sequences in tokens, batches in sequences; `lengths`: of the samples, as a request
    takes them, and `images`, or `USUAL`, or `image_tokens`; `gpus`: world size; `nodes` and
    `gpus_per_node`: of the machine, of which a launch may use a part.
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


# `tasks`: what srun starts, a process a GPU or, around torchrun, a node's launcher.
CountKind = Literal["nodes", "gpus a node", "gpus", "processes a node", "processes",
                    "tasks a node", "tasks"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Count:
    """One number of nodes, GPUs or processes. `who`: the option as its program spells it;
    `eased`: a default that the environment may replace (`${NNODES:-1}`)."""

    kind: CountKind
    number: int
    who: str
    setting: Setting
    eased: bool = False


@dataclass(frozen=True, slots=True)
class Saving:
    """When a run saves, beside its time limit; None: not said.

    `limit_s`: seconds of the limit, `place` of its directive; `every`: steps between checkpoints;
    `stop_s`: seconds after which the run saves and ends; `steps`: of the whole run.
    """

    limit_s: float
    limit: str
    place: str
    every: int | None
    stop_s: float | None
    steps: int | None

    def loss_at_limit(self, step_time_s: float) -> str:
        """Why the limit ends the run before it saves; empty where it does not, or none can tell."""
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


# Fields of `Found` that a request has under the same names and with the same meanings.
ASKED = (
    "seq", "framework", "precision", "dtype", "optimizer", "attention", "schedule", "dropout",
    "expert_imbalance", "cp_comm_type", "cp_sizes", "sharp", "gradient_as_bucket_view",
    "set_to_none", "mtp_layers", "bias", "optimizer_offload", "activation_offload",
    "activation_offload_fraction", "train", "freeze", "objective", "lengths", "packing",
    "balance", "images", "image_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A launch as its files describe it, in the planner's words. None: the files do not say.

    `format`: how its files are written (`[formats]` of a `dialect.toml`, or "plan"); `framework`:
    profile; `variations`: names of `planner.launch.check.request` that the settings
    switch on; `shape`: the model where the files describe it, else `model` names it. `world`:
    processes that the launcher starts; `dp`: as stated. `block_layers`: layers of each pipeline
    block in order; `mtp_standalone`: multi-token prediction in the block before the last.
    `settings`: all that were read, by field of this class in `where`; `unused`: known and without
    effect on memory and time; `unmodelled`: with an effect that the prediction leaves out, and
    which; `unknown`: no such setting exists. `plan_gpus`: the machine, from a plan file.
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
    # A batch ramp that ends with `gbs` (`planner.job.batch_ramp`).
    batch_ramp: str | None = None
    seq: int | None = None
    block_layers: tuple[int, ...] | None = None
    mtp_standalone: bool = False
    recompute: str = "none"
    recomputed: Recomputed | None = None
    optimizer: str = "adamw"
    optimizer_kernel: str | None = None
    optimizer_offload: float = 0.0
    # Modules whose activations are kept on the host, joined by commas, or `off`.
    activation_offload: str = "off"
    activation_offload_fraction: float = 1.0
    precision: str = "bf16"
    dtype: str | None = None
    schedule: str | None = None
    attention: Literal["flash", "eager"] = "flash"
    dropout: bool = False
    expert_imbalance: float = 1.0
    # How context parallelism exchanges, and the ranks of its levels; None: as is usual.
    cp_comm_type: ContextKind | None = None
    cp_sizes: tuple[int, ...] = ()
    # Switches reduce gradients (SHARP).
    sharp: bool = False
    # The request's own switches (`planner.job.frameworks.switches`) and what goes with them.
    gradient_as_bucket_view: bool = False
    set_to_none: bool = True
    cublas_workspace_config: str | None = None
    # None: those of `shape`, else as the framework does by default.
    mtp_layers: int | None = None
    bias: bool = True
    # How weights are trained, and what is frozen, as a request says it.
    train: str = "full"
    freeze: tuple[str, ...] = ()
    # What training minimises, as a request says it.
    objective: str = "lm"
    # Lengths of the samples, and how they become rows: asked for where the former are known.
    lengths: str | None = None
    packing: Packing | None = None
    balance: Balance | None = None
    # Images of a sample, or their tokens, as a request says them.
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
    # The configuration file, where there is one; it may stand inside another.
    document: Text | None = None
    # What the launch takes further settings from, and that was not there to read.
    unseen: str = ""
    # Every number of nodes, GPUs and processes that the files state; whether one process drives all
    # GPUs of its node, so that tasks of Slurm count no GPUs.
    counts: tuple[Count, ...] = ()
    one_process_a_node: bool = False
    # The job's time limit and when the run saves, where both can be told.
    saving: Saving | None = None
    # Reinforcement learning beside the trainer, which the other fields describe.
    rl: RlFound | None = None

    def asked(self) -> dict[str, Any]:
        """What is asked of the job, by field of `Request`."""
        asked = {name: getattr(self, name) for name in ASKED}
        return asked if self.lengths else asked | {"packing": None, "balance": None}

    def transport(self) -> TransportSettings:
        """What those variables make of the links."""
        return read_transport({one.key: str(one.value) for one in self.network})

    def setting(self, key: str) -> Setting | None:
        """The setting of a key, unknown ones too; the last where it is given again."""
        every = (*(count.setting for count in self.counts), *self.unknown, *self.settings)
        return next((item for item in reversed(every) if item.key == key), None)
