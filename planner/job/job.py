"""One training job: the model, the samples, the framework and the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from constraints.numbers import ModelNumbers
from hardware.schema import Cluster
from planner.job.amounts import HbmReserve, Resolution
from planner.job.errors import UsageError
from planner.job.frameworks.profile import DtypeModeName, FrameworkProfile, check_precision
from planner.job.frameworks.switches import (
    kept_techniques,
    refuses_offload,
    technique_conditions,
    technique_refusal,
    unrefused_modes,
    with_techniques,
)
from planner.job.frameworks.tables import OptimizerKernel
from planner.job.frameworks.workspaces import torch_workspaces
from planner.job.homes import demand_homes
from planner.job.objective import NEXT_TOKEN, Objective
from planner.job.offload import (
    Modules,
    demand_all_leave,
    offload_refusal,
    read_offload,
    usable_modes,
)
from planner.job.optimizers import Optimizer, OptimizerSetting, check_optimizer
from planner.job.pool import Pool
from planner.job.reads import Read
from planner.job.recompute import RecomputeMode, has_part
from planner.job.sample_rows import Row, row_of, row_tokens
from planner.job.samples import Samples
from planner.job.specs import ModelSpec
from planner.job.tuning import FULL, Tuning

if TYPE_CHECKING:
    from constraints.axes import ContextKind
    from constraints.condition import UserCondition

# Default minimum probability of a search, and the threshold for the verdict "fits".
SURE_TO_FIT = 0.8


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """The target global batch.

    `sequences`: a plan takes the nearest multiple of dp·mbs within `tolerance` (a share), or
    exactly this number if `exact`.
    """

    sequences: float
    tolerance: float = 0.05
    exact: bool = False


@dataclass(frozen=True, slots=True)
class RampBatch:
    """A batch of a ramp before its last one, and the number of tokens at which it ends."""

    batch: BatchTarget
    until_tokens: int


@dataclass(frozen=True)
class Job:
    """A training job with every name resolved.

    `seq`: tokens of the longest row. `precision`: that of the linear layers. `dtype`: the mode of
    weights and saved tensors, already applied to `framework` (`in_mode`). `recompute`: the modes
    that the search may use. `limits`: degree -> values it may take. `conditions`: what the user
    requires, forbids and fixes. `schedule`: the pipeline schedule (`planner.job.schedules`); None
    for 1F1B, interleaved if vpp > 1. `context_kinds`: see `constraints.context_exchange`.
    """

    model: ModelSpec
    cluster: Cluster
    framework: FrameworkProfile
    optimizer: Optimizer
    batch: BatchTarget
    seq: int
    samples: Samples = field(default_factory=Samples)
    precision: str = "bf16"
    dtype: DtypeModeName = "bf16"
    attention: Literal["flash", "eager"] = "flash"
    attention_kernel: str = "auto"
    recompute: tuple[RecomputeMode, ...] = ()
    reserve: HbmReserve = field(default_factory=HbmReserve)
    # Minimum probability of fitting for a plan that the search returns.
    fit_probability: float = SURE_TO_FIT
    resolution: Resolution = field(default_factory=Resolution)
    limits: Mapping[str, frozenset[int]] = field(default_factory=dict)
    conditions: tuple[UserCondition, ...] = ()
    dropout: bool = False
    expert_imbalance: float = 1.0
    allow_tp_across_domains: bool = False
    model_alias: str | None = None
    # None for the framework's default. Share of optimizer state and update on the CPU.
    optimizer_kernel: OptimizerKernel | None = None
    optimizer_offload: float = 0.0
    # Shares that a search chooses from (`at_share`); empty if `optimizer_offload` is fixed.
    offload_shares: tuple[float, ...] = ()
    # Modules whose activations are kept on the host, and the sets that a search chooses from
    # (`at_choice`); empty if `activation_offload` is fixed.
    activation_offload: Modules = ()
    offload_choices: tuple[Modules, ...] = ()
    # Techniques in use, already applied to `framework`, and the further sets that a search chooses
    # from (`at_choice`); empty if nothing is open.
    techniques: tuple[str, ...] = ()
    technique_choices: tuple[tuple[str, ...], ...] = ()
    # Share of the activation groups able to leave the GPU that do; a search always uses all.
    offload_fraction: float = 1.0
    schedule: str | None = None
    # Kinds of context-parallel exchange, of which the fastest is used; and the ranks of the
    # all-to-all inside `a2a+p2p` (0: as many as possible).
    context_kinds: tuple[ContextKind, ...] = ("p2p",)
    context_inner: int = 0
    # The smaller global batches at the start of the training, ascending.
    ramp: tuple[RampBatch, ...] = ()
    # Layers of multi-token prediction in the published model; `model` may train none of them.
    published_mtp: int = 0
    # Modules of the published checkpoint besides the language model, which are not counted.
    beside: tuple[str, ...] = ()
    # CUBLAS_WORKSPACE_CONFIG; None for the default of the framework, else torch's on this GPU.
    cublas_workspace_config: str | None = None
    # The clusters that share the pipeline stages; `cluster` is the first one, as if all GPUs were
    # of its kind. None for one cluster.
    pool: Pool | None = None
    # How the weights are trained: all, some, or adapters beside frozen ones.
    tuning: Tuning = FULL
    # The training objective, and its reference model.
    objective: Objective = NEXT_TOKEN
    # Models that a step reads forward besides the trained one.
    reads: tuple[Read, ...] = ()
    # The framework's name as given, which may be a tool that runs its plans.
    written_for: str = ""

    def __post_init__(self) -> None:
        if self.seq <= 0:
            raise UsageError(f"sequence length {self.seq}: must be at least 1 token")
        check_precision(self.framework, self.precision)
        if self.pool is not None and self.framework.parallelism.pipeline_before_data:
            raise UsageError(
                "pp-before-dp: if clusters share a pipeline, each stage's ranks must be "
                "consecutive ranks of one cluster; leave it out"
            )
        check_optimizer(self.framework, self._optimizer_at(self.optimizer_offload))
        demand_homes(self.framework, self.cluster)
        if self.activation_offload:
            read_offload(",".join(self.activation_offload), self.framework, self.model)
        for mode in self.recompute:
            if refusal := self._offload_refusal(self.activation_offload, mode):
                raise UsageError(refusal)
            if refusal := technique_refusal(self.framework, self.techniques, mode):
                raise UsageError(refusal)
        budgets = {mode.budget for mode in self.recompute if mode.budget is not None}
        if len(budgets) > 1:
            raise UsageError("one memory budget at a time: give a single --recompute budget=...")

    def row(self, mbs: int) -> Row:
        """The mean row of a micro-batch of `mbs` rows: what it contains and computes."""
        return row_of(self.samples, self.seq, mbs)

    @property
    def row_tokens(self) -> float:
        """Mean tokens of a row without padding; `seq` if no row is padded."""
        return self.seq if self.samples.lengths is None else row_tokens(self.samples, self.seq)

    @property
    def rows(self) -> int:
        """Rows that are trained per sample; 2 for a pair of answers."""
        return 1 if self.objective.is_plain else self.objective.rules.rows

    @property
    def sample_tokens(self) -> float:
        """Tokens of a sample without padding, over all its rows."""
        return self.rows * self.row_tokens

    @property
    def machines(self) -> tuple[Job, ...]:
        """The job on each cluster of its pool, as if all GPUs were of that kind; just itself
        without a pool."""
        if self.pool is None:
            return (self,)
        return tuple(replace(self, cluster=world, pool=None) for world in self.pool.worlds())

    def on_clusters(self, change: Callable[[Cluster], Cluster]) -> Job:
        """The job with `change` applied to its cluster, or to each cluster of its pool."""
        pool = None if self.pool is None else self.pool.changed(change)
        return replace(self, cluster=change(self.cluster), pool=pool)

    def on_gpus(self, count: int) -> Job:
        """The job on this many GPUs of its machine; itself if it has as many."""
        if self.cluster.num_gpus == count:
            return self
        return replace(self, cluster=self.cluster.with_gpus(count))

    @property
    def workspace_bytes(self) -> float:
        """cuBLAS workspaces and other library scratch, allocated like tensors."""
        given, config = self.framework.outside.workspace_bytes, self.cublas_workspace_config
        if given is not None and config is None:
            return given
        return torch_workspaces(self.cluster.gpu.architecture, config)

    @property
    def fused_attention(self) -> str:
        """Fused attention kernel: the one given, else the framework's, else `auto` (the GPU's)."""
        if self.attention_kernel != "auto":
            return self.attention_kernel
        kernels, special = self.framework.fused_attention, self.model.special_attention
        return kernels.on(self.cluster.gpu.architecture, special=special)

    @property
    def optimizer_setting(self) -> OptimizerSetting:
        """The optimizer with its kernel and offload.

        UsageError while the offloaded share is undecided, except for paged states, which stay on
        the GPU unless something says that they do not fit.
        """
        if self.offload_shares and not self.optimizer.paged:
            raise UsageError(
                "--optimizer-offload search: only a search decides the share; give a number from "
                "0 to 1 here"
            )
        return self._optimizer_at(self.optimizer_offload)

    def _optimizer_at(self, share: float) -> OptimizerSetting:
        usual = self.framework.optimizer.kernels[0]
        return OptimizerSetting(self.optimizer, self.optimizer_kernel or usual, share)

    def _offload_refusal(self, modules: Modules, mode: RecomputeMode) -> str | None:
        return offload_refusal(self.framework, modules, mode, self.precision)

    @property
    def on_host(self) -> Modules:
        """Modules whose activations are kept on the host. UsageError while that is undecided."""
        if self.offload_choices:
            raise UsageError(
                "--activation-offload search: only a search decides the modules; name them here, "
                "for example core_attn,attn_proj"
            )
        return self.activation_offload

    def at_choice(
        self,
        share: float,
        modules: Modules,
        fraction: float = 1.0,
        techniques: tuple[str, ...] = (),
    ) -> Job:
        """The job with these choices made: the optimizer's share on the CPU, the modules whose
        activations (or a share of them) are on the host, and the open techniques to use. Recompute
        modes that are incompatible with them are removed."""
        usable = usable_modes(self.framework, modules, self.recompute, self.precision)
        more = tuple(name for name in techniques if name not in self.techniques)
        profile, used = with_techniques(self.framework, more), (*self.techniques, *more)
        return replace(
            self,
            framework=profile,
            techniques=kept_techniques(self.framework, profile, used) if more else used,
            technique_choices=(),
            conditions=(*self.conditions, *technique_conditions(self.framework, more)),
            optimizer_offload=share,
            offload_shares=(),
            activation_offload=modules,
            offload_choices=(),
            offload_fraction=fraction,
            recompute=unrefused_modes(self.framework, more, usable),
        )

    def decided(self) -> tuple[Job, ...]:
        """The job at each combination of optimizer share, offloaded modules and techniques that a
        search tries, least offload first; just itself if they were given.

        Combinations without a compatible recompute mode are left out. UsageError with a fraction of
        the activations, because no search chooses one.
        """
        demand_all_leave(self.offload_fraction)
        if not (self.offload_shares or self.offload_choices or self.technique_choices):
            return (self,)
        every = [
            self._decided_as(share, modules, techniques)
            for share in self.offload_shares or (self.optimizer_offload,)
            for modules in self.offload_choices or (self.activation_offload,)
            for techniques in self.technique_choices or ((),)
        ]
        return tuple(job for job in every if job is not None and job.recompute)

    def _decided_as(
        self, share: float, modules: Modules, techniques: tuple[str, ...]
    ) -> Job | None:
        """`at_choice`, or None if the techniques are incompatible with the optimizer or the
        offload. If only the user's own choices are in force, the job is refused instead."""
        if modules and refuses_offload(self.framework, techniques):
            return None
        try:
            return self.at_choice(share, modules, techniques=techniques)
        except UsageError:
            if not techniques:
                raise
            return None

    @property
    def memory_budget(self) -> float | None:
        """torch's budget of kept activations, if a recompute mode has one."""
        given = [mode.budget for mode in self.recompute if mode.budget is not None]
        return given[0] if given else None

    @property
    def least_zero(self) -> int:
        """Lowest ZeRO stage that is compatible with the optimizer's types and the offload."""
        rules = self.framework.optimizer
        offload = rules.offload_least_zero if self.optimizer_on_cpu else 0
        if 0.0 < self.optimizer_on_cpu < 1.0:
            offload = max(offload, rules.offload_part_least_zero)
        types = 0 if self.optimizer.is_plain else rules.state_types_least_zero
        return max(offload, types)

    @property
    def gradients_leave(self) -> bool:
        """Whether gradients move to the host as backward produces them, from ZeRO-2 on."""
        return self.framework.optimizer.offload_gradients and self.optimizer_on_cpu > 0.0

    @property
    def optimizer_on_cpu(self) -> float:
        """Share of optimizer state and update on the CPU; 0 for a paged optimizer, which updates on
        the GPU."""
        return self._optimizer_at(self.optimizer_offload).on_cpu

    @property
    def pages_states(self) -> bool:
        """Whether it is undecided if the states of a paged optimizer fit on the GPU."""
        return self.optimizer.paged and bool(self.offload_shares)

    @property
    def hbm_limit_bytes(self) -> float:
        """Bytes per GPU that a plan may use: usable HBM minus the reserve."""
        return self.reserve.limit_bytes(self.cluster.gpu.hbm_usable_bytes)


def offered_exchanges(
    profile: FrameworkProfile, model: ModelSpec, seq: int
) -> tuple[ContextKind, ...]:
    """Exchanges of context parallelism that a framework supports for a model, the usual one
    first."""
    kinds = profile.parallelism.context_kinds
    if not profile.parallelism.context_in_transformer_engine:
        return kinds
    from constraints.context_exchange import kinds_for
    from planner.job.job import model_numbers

    return kinds_for(model_numbers(model, seq), kinds)


def searched_modes(job_model: ModelSpec, profile: FrameworkProfile) -> tuple[RecomputeMode, ...]:
    """Recompute modes of a framework that apply to a model and are searched by default."""
    return tuple(
        mode
        for mode in profile.recompute
        if mode.searched and has_part(mode.applies, job_model, eager=profile.attention == "eager")
    )


def model_numbers(model: ModelSpec, seq: int) -> ModelNumbers:
    """The model's dimensions as rules read them."""
    moe, space = model.moe, model.state_space
    return ModelNumbers(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        query_width=model.query_width,
        ffn=model.ffn if any(kind.ffn == "dense" for kind in model.kinds) else 0,
        vocab=model.vocab,
        seq=seq,
        experts=moe.experts if moe else 0,
        moe_ffn=moe.ffn if moe else 0,
        shared_ffn=moe.shared_ffn if moe else 0,
        has_mla=model.mla is not None,
        tied_embeddings=model.tied_embeddings,
        sliding_window=any(kind.attention == "sliding" for kind in model.kinds),
        attention_sinks=model.attention_sinks,
        mtp_layers=model.mtp_layers,
        state_heads=space.heads if space else 0,
        state_groups=space.groups if space and space.kind != "mamba1" else 0,
    )
