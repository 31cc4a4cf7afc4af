"""The fields of a planning request, and the overrides that replace what resolving would look up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from constraints.axes import ContextKind
from hardware.frozen import Named
from hardware.schema import Cluster
from hardware.transport import TransportSettings
from planner.job.bounds import LONGEST_SEQ, MOST_MTP_LAYERS
from planner.job.errors import UsageError
from planner.job.frameworks.names import (
    framework_names,
    known_names,
    plain_name,
    profile_named,
)
from planner.job.frameworks.profile import DtypeModeName, Tables
from planner.job.frameworks.tables import OptimizerKernel
from planner.job.job import SURE_TO_FIT
from planner.job.pool import GpuWords, read_gpus
from planner.job.samples import Balance, Packing
from planner.job.specs import ModelSpec

if TYPE_CHECKING:
    from constraints.condition import UserCondition


# The variation of a launched profile in which tensor-parallel ranks keep the whole sequence.
NO_SEQUENCE_PARALLEL = "no-sequence-parallel"


@dataclass(frozen=True)
class Started:
    """The processes that a launch starts, one per GPU, on a part of the given machine."""

    nodes: int
    per_node: int

    @property
    def processes(self) -> int:
        """Processes on all nodes together."""
        return self.nodes * self.per_node

    def part_of(self, cluster: Cluster) -> Cluster:
        """The GPUs that the processes use. Each keeps its share of its node's network."""
        return cluster.with_nodes(self.nodes, self.per_node)


@dataclass(frozen=True)
class Launched:
    """A run that launch files describe. Their settings are final, and nothing is left to choose.

    `variations`: names of settings that change the framework's profile, with the tables that each
    changes. A technique is on under its name, and off under `no-` and its name. `transport`: the
    effect of NCCL's variables on the links. `started`: the processes that the files start, if they
    leave GPUs idle.
    """

    variations: Mapping[str, Tables] = field(default_factory=dict)
    transport: TransportSettings = field(default_factory=TransportSettings)
    started: Started | None = None

    def without(self, *names: str) -> Launched:
        """The run without some of its variations."""
        kept = {name: self.variations[name] for name in self.variations if name not in names}
        return replace(self, variations=kept)

    def using(self, technique: str) -> Launched:
        """The run with a technique of its framework switched on."""
        kept = self.without(f"no-{technique}").variations
        return replace(self, variations={**kept, technique: {}})


@dataclass(frozen=True)
class Overrides:
    """`model`: trained instead of the model that the request names. `mean_batch`: the batch, in
    sequences, at which a job with a ramp is costed instead of the last one. `launched`: the run of
    launch files; None for a job that is planned."""

    model: ModelSpec | None = None
    mean_batch: float | None = None
    launched: Launched | None = None


class RequestFields(Named):
    """A planning request in the user's words. Raises UsageError (a ValueError) if it cannot be
    resolved.

    `model`: alias, catalogue name, or path to a config.json or TOML file. `gpus`: `64xH100`; or
    `cluster`: a TOML file. Batch: exactly one of `gbs_tokens` and `gbs` (sequences), or
    `batch_ramp` (`planner.job.batch_ramp`), whose last batch it is.

    `dtype`: 16-bit weights, fp32 weights under autocast, or fp32 throughout; None for the
    framework's default. `precision` fp32 or tf32 also means fp32 weights, gradients and
    activations. `attention`: None for the framework's default. `schedule`: name of a pipeline
    schedule; None for the framework's default. `optimizer_offload`: share of the optimizer on the
    CPU, or `search` to let the search choose it for each plan. `activation_offload`: modules whose
    activations are kept on the host, `off`, or `search`; `activation_offload_fraction`: share of
    them (1 in a search).

    `limits`: degree -> allowed values. `require`, `forbid`, `fix`: conditions on the degrees
    (`constraints.condition`), such as "tp*cp <= 8", "zero == 3", "mbs=1". `cp_comm_type`: exchange
    of context parallelism (Megatron's --cp-comm-type); None lets a search take the fastest one.
    `cp_sizes`: ranks of the two levels of `a2a+p2p`. `fit_probability`: minimum probability that a
    plan fits its GPUs, given the error of memory predictions. `resolution`: how close plans of a
    complete front may be in step time and memory (`parse_resolution`). `use`, `without`: techniques
    of the framework to use or to avoid (`planner.job.frameworks.techniques`). `sharp`: InfiniBand
    switches reduce (`planner.predict.sharp`).

    `sequence_parallel`, `gradient_as_bucket_view`, `set_to_none`: see
    `planner.job.frameworks.switches`. `cublas_workspace_config`: value of the environment variable.
    `mtp_layers`: layers of multi-token prediction to train; None for the framework's default.
    `bias` False: no biases in linear layers and norms. `train`, `freeze`: how the weights are
    trained, and frozen modules (`planner.job.tuning.read_tuning`). `objective`: see
    `planner.job.objective.read_objective`. `lengths`: lengths of the samples
    (`planner.job.length_text`); None if rows are cut from one text. `packing`, `balance`: how
    samples become rows (`planner.job.samples`); None for the framework's default. With lengths,
    `seq` is the longest sample that is kept, or the tokens of a pack. `images`: images of a sample
    (`planner.job.images`), or their number of tokens.
    """

    model: str
    gpus: str | None = None
    cluster: str | None = None
    gbs_tokens: Annotated[int, Field(gt=0)] | None = None
    gbs: Annotated[int, Field(gt=0)] | None = None
    gbs_tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.05
    batch_ramp: str | None = None
    seq: Annotated[int, Field(gt=0, le=LONGEST_SEQ)] | None = None
    lengths: str | None = None
    packing: Packing | None = None
    balance: Balance | None = None
    images: str | None = None
    image_tokens: int | None = None
    framework: str = "megatron-core"
    # The framework's name as given, if it differs from the profile's: `trl`.
    written_for: str = Field(default="", exclude_if=lambda word: not word)
    precision: str = "bf16"
    dtype: DtypeModeName | None = None
    optimizer: str = "adamw"
    attention: Literal["flash", "eager"] | None = None
    schedule: str | None = None
    recompute: tuple[str, ...] | None = Field(default=None, min_length=1)
    hbm_reserve: str = "0"
    fit_probability: float = Field(default=SURE_TO_FIT, gt=0.0, lt=1.0)
    resolution: str = "0.1%,0.1GiB"
    limits: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    require: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    allow_tp_across_domains: bool = False
    dropout: bool = False
    expert_imbalance: Annotated[float, Field(ge=1)] = 1.0
    optimizer_kernel: OptimizerKernel | None = None
    optimizer_offload: Annotated[float, Field(ge=0, le=1)] | Literal["search"] = 0.0
    activation_offload: str = "off"
    activation_offload_fraction: float = 1.0
    use: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    cp_comm_type: ContextKind | None = None
    cp_sizes: tuple[int, ...] = ()
    sharp: bool = False
    sequence_parallel: bool = True
    gradient_as_bucket_view: bool = False
    set_to_none: bool = True
    cublas_workspace_config: str | None = None
    mtp_layers: Annotated[int, Field(ge=0, le=MOST_MTP_LAYERS)] | None = None
    bias: bool = True
    train: str = "full"
    freeze: tuple[str, ...] = ()
    objective: str = "lm"
    # Facts from other sources than the user's words; not part of a plan file.
    overrides: Overrides = Field(default=Overrides(), exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _precision_of_dtype(cls, given: Any) -> Any:
        """Default to fp32 products if the dtype mode is fp32 and no precision is given."""
        if isinstance(given, dict) and given.get("dtype") == "fp32":
            return {"precision": "fp32"} | given
        return given

    @model_validator(mode="before")
    @classmethod
    def _word_of_framework(cls, given: Any) -> Any:
        """Keep the framework's name as given; it may name a tool that runs another framework's
        plans."""
        word = given.get("framework") if isinstance(given, dict) else None
        if not isinstance(word, str) or "written_for" in given:
            return given
        plain = plain_name(word)
        return given if plain in framework_names() else given | {"written_for": plain}

    @field_validator("framework")
    @classmethod
    def _profile_of_framework(cls, name: str) -> str:
        """The profile of that name. Unknown names are refused later, when the request is
        resolved."""
        try:
            return profile_named(name)
        except UsageError:
            return name

    @property
    def framework_word(self) -> str:
        """The framework's name as given, else the name of its profile."""
        word = self.written_for
        return (
            word
            if word in known_names() and profile_named(word) == self.framework
            else (self.framework)
        )

    @property
    def gpu_words(self) -> GpuWords | None:
        """The parsed `gpus`; None if a file describes the machine."""
        return None if self.gpus is None else read_gpus(self.gpus)

    def conditions(self) -> tuple[UserCondition, ...]:
        """The parsed conditions of the user. ConstraintError if one cannot be read."""
        from constraints.condition import user_condition

        given = (
            *(user_condition("require", text) for text in self.require),
            *(user_condition("forbid", text) for text in self.forbid),
            *(user_condition("fix", text) for text in self.fix),
        )
        return tuple({item.option: item for item in given}.values())
