"""What a user asks for, as typed and serialisable data, and what is known of a job beside that, in
place of what resolving would look up."""

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


# The variation of a launched profile whose tensor-parallel ranks keep the whole sequence.
NO_SEQUENCE_PARALLEL = "no-sequence-parallel"


@dataclass(frozen=True)
class Started:
    """Processes that a launch starts, one a GPU, on a part of the machine that it is given."""

    nodes: int
    per_node: int

    @property
    def processes(self) -> int:
        """On all nodes together."""
        return self.nodes * self.per_node

    def part_of(self, cluster: Cluster) -> Cluster:
        """The GPUs that the processes use. Each keeps its share of its node's network."""
        return cluster.with_nodes(self.nodes, self.per_node)


@dataclass(frozen=True)
class Launched:
    """A run that files describe: what they say of it stands, and nothing is left to choose.

    `variations`: names of what their settings change in the framework's profile, with the tables
    that each changes; a technique is used under its name and not used under `no-` and its name.
    `transport`: what NCCL's variables make of the links; `started`: the processes that the files
    start, where they leave GPUs of the machine idle.
    """

    variations: Mapping[str, Tables] = field(default_factory=dict)
    transport: TransportSettings = field(default_factory=TransportSettings)
    started: Started | None = None

    def without(self, *names: str) -> Launched:
        """Without some of its variations."""
        kept = {name: self.variations[name] for name in self.variations if name not in names}
        return replace(self, variations=kept)

    def using(self, technique: str) -> Launched:
        """With a technique of its framework in use, which the profile has tables for."""
        kept = self.without(f"no-{technique}").variations
        return replace(self, variations={**kept, technique: {}})


@dataclass(frozen=True)
class Overrides:
    """`model`: what is trained, in place of the model that the request names. `mean_batch`: the
    batch, in sequences, at which a job with a ramp is costed, in place of its last one.
    `launched`: the run of launch files, None for a job that is planned."""

    model: ModelSpec | None = None
    mean_batch: float | None = None
    launched: Launched | None = None


class RequestFields(Named):
    """A planning request in the user's words.

    model: alias, catalogue name, or path to config.json / TOML. gpus: `64xH100`, or `cluster`: a
    TOML file. Batch: exactly one of `gbs_tokens` and `gbs` (sequences), or `batch_ramp`
    (`planner.job.batch_ramp`), whose last batch it is. `dtype`: weights in 16
    bits, in fp32 under autocast, or fp32 throughout; None: the framework's usual mode. `attention`:
    None as the framework has it. `schedule`:
    name of a pipeline schedule; None for the framework's usual. `optimizer_offload`: share of the
    optimizer on the CPU, or `search`, which lets the search choose it for each plan;
    `activation_offload`: modules whose activations are kept on the host, `off` or `search`, and
    `activation_offload_fraction` of them (1 in a search). limits: degree name to allowed values.
    `require`, `forbid`, `fix`: conditions on the degrees (`constraints.condition`), as "tp*cp <=
    8", "zero == 3", "mbs=1". `cp_comm_type`: how context parallelism exchanges (Megatron's
    --cp-comm-type); None: a search takes the fastest that the framework has; `cp_sizes`: ranks of
    the two levels of `a2a+p2p`. `fit_probability`: with which a plan must fit its GPUs at least,
    by the error of memory predictions; `resolution`: how close plans of a complete front may lie,
    in step time and memory (`parse_resolution`). `use`, `without`: techniques of the framework
    (`planner.job.frameworks.techniques`) that are used, or are not. `sharp`: InfiniBand switches
    reduce (`planner.predict.sharp`). `precision` fp32 or tf32 means fp32 weights, gradients and
    activations too. `sequence_parallel`, `gradient_as_bucket_view`, `set_to_none`:
    `planner.job.frameworks.switches`; `cublas_workspace_config`: the environment variable's value;
    `mtp_layers`: of multi-token prediction that are trained, None as the framework does by default;
    `bias` False: linear layers and norms without biases; `train`, `freeze`: how the weights are
    trained, and modules that nothing trains (`planner.job.tuning.read_tuning`); `objective`: what
    training minimises (`planner.job.objective.read_objective`). `lengths` of the
    samples (`planner.job.length_text`), None where rows are cut from one text; `packing`,
    `balance`: how they become rows (`planner.job.samples`), None as the framework does; `seq` is
    then the longest that is kept, or the tokens of a pack; `images` of a sample
    (`planner.job.images`), or the tokens that they are. Raises UsageError (ValueError) for what
    does not resolve.
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
    # The word that the framework was given by, where it is not its profile's name: `trl`.
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
    # What is known beside the user's words; no part of a plan file.
    overrides: Overrides = Field(default=Overrides(), exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _precision_of_dtype(cls, given: Any) -> Any:
        """Products in fp32 where the dtype mode says fp32 and nobody said how they are made."""
        if isinstance(given, dict) and given.get("dtype") == "fp32":
            return {"precision": "fp32"} | given
        return given

    @model_validator(mode="before")
    @classmethod
    def _word_of_framework(cls, given: Any) -> Any:
        """The framework's word, which may name a tool that runs another's plans."""
        word = given.get("framework") if isinstance(given, dict) else None
        if not isinstance(word, str) or "written_for" in given:
            return given
        plain = plain_name(word)
        return given if plain in framework_names() else given | {"written_for": plain}

    @field_validator("framework")
    @classmethod
    def _profile_of_framework(cls, name: str) -> str:
        """The profile that the name means; what nobody knows is refused where it is resolved."""
        try:
            return profile_named(name)
        except UsageError:
            return name

    @property
    def framework_word(self) -> str:
        """The framework as it was given, else by its profile's name."""
        word = self.written_for
        return (
            word
            if word in known_names() and profile_named(word) == self.framework
            else (self.framework)
        )

    @property
    def gpu_words(self) -> GpuWords | None:
        """What `gpus` names: GPUs of one type or of several; None where a file describes them."""
        return None if self.gpus is None else read_gpus(self.gpus)

    def conditions(self) -> tuple[UserCondition, ...]:
        """What the user requires, forbids and fixes, read. ConstraintError if it cannot be."""
        from constraints.condition import user_condition

        given = (
            *(user_condition("require", text) for text in self.require),
            *(user_condition("forbid", text) for text in self.forbid),
            *(user_condition("fix", text) for text in self.fix),
        )
        return tuple({item.option: item for item in given}.values())
