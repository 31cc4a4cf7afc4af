"""What a user asks for, as typed and serialisable data, and its resolution to a `Job`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from constraints.context_kinds import ContextKind
from hardware.frozen import Named
from hardware.load import load_cluster_file
from hardware.schema import Cluster
from planner.job.batch_ramp import Batch, read_ramp
from planner.job.bounds import LONGEST_SEQ, MOST_MTP_LAYERS, MOST_SEQUENCES
from planner.job.errors import UsageError
from planner.job.frameworks import DtypeModeName, FrameworkProfile, RecomputeMode, load_framework
from planner.job.frameworks.names import profile_named
from planner.job.frameworks.profile import (
    FP32_PRECISIONS,
    OptimizerKernel,
    check_precision,
    frameworks_with,
    profile_on,
)
from planner.job.frameworks.switches import Switches, framework_sharp, switched, with_techniques
from planner.job.frameworks.techniques import TechniqueDecision, decide
from planner.job.frameworks.workspaces import workspace_bytes
from planner.job.job import (
    SURE_TO_FIT,
    BatchTarget,
    HbmReserve,
    Job,
    RampBatch,
    Resolution,
    offered_exchanges,
    searched_modes,
)
from planner.job.models.catalog import ResolvedModel, load_model
from planner.job.offload import (
    OPTION,
    Modules,
    check_fraction,
    read_offload,
    searched_offloads,
    usable_modes,
)
from planner.job.optimizers import load_optimizer, searched_shares
from planner.job.pool import parse_one_type
from planner.job.recompute import demand_parts
from planner.job.schedules import schedule_name
from planner.job.specs import ModelSpec
from planner.job.technique_rules import (
    kept_techniques,
    refuses_offload,
    site_of,
    technique_conditions,
    unrefused_modes,
)
from planner.job.unmodelled import modules_not_modelled

if TYPE_CHECKING:
    from constraints.condition import UserCondition


def parse_reserve(text: str, option: str = "--hbm-reserve") -> HbmReserve:
    """`0.05` or `5%`: share of the usable HBM; `4GiB` or `4GB`: that many bytes."""
    match = re.match(
        r"^([0-9]{1,9}(?:\.[0-9]{1,19})?)\s*(%|GiB|GB|MiB)?$", text.strip(), re.IGNORECASE
    )
    if not match:
        raise UsageError(f"{option} {text!r}: write a share (0.05, 5%) or a size (4GiB)")
    number, unit = float(match[1]), (match[2] or "").lower()
    sizes = {"gib": 2**30, "gb": 10**9, "mib": 2**20}
    if unit in sizes:
        return HbmReserve(size_bytes=number * sizes[unit])
    share = number / 100 if unit == "%" else number
    if not 0 <= share < 1:
        size = "" if unit else f"; for gibibytes write {text}GiB"
        raise UsageError(f"{option} {text!r}: a share is less than 1 (100 %){size}")
    return HbmReserve(share=share)


# A finer one than plans are proven to, in time, and than the solver counts memory, says nothing.
FINEST, COARSEST_TIME = Resolution(memory_bytes=0.01 * 2**30), 0.1


def parse_resolution(text: str) -> Resolution:
    """`0.5%,1GiB`, or one of the two: the other is the usual one."""
    given: dict[str, float] = {}
    parts = text.split(",")
    for part in parts:
        amount = parse_reserve(part, "--resolution")
        if part.strip()[-1:] in "bB":
            given["memory_bytes"] = amount.size_bytes
        else:
            given["time"] = amount.share
    found = Resolution(**given)
    if len(given) < len(parts):
        raise UsageError(f"--resolution {text!r}: write one share and one size, as 0.5%,1GiB")
    if not FINEST.time <= found.time <= COARSEST_TIME:
        raise UsageError(
            f"--resolution {text!r}: the share of the step time lies between 0.1 %, to which plans "
            "are proven, and 10 %"
        )
    if found.memory_bytes < FINEST.memory_bytes:
        raise UsageError(f"--resolution {text!r}: of the memory 0.01GiB or more")
    return found


class Request(Named):
    """A planning request in the user's words; `resolve` turns it into a `Job`.

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
    `bias` False: linear layers and norms without biases. Raises UsageError (ValueError) for what
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
    framework: str = "megatron-core"
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

    @model_validator(mode="before")
    @classmethod
    def _precision_of_dtype(cls, given: Any) -> Any:
        """Products in fp32 where the dtype mode says fp32 and nobody said how they are made."""
        if isinstance(given, dict) and given.get("dtype") == "fp32":
            return {"precision": "fp32"} | given
        return given

    @field_validator("framework")
    @classmethod
    def _profile_of_framework(cls, name: str) -> str:
        """The profile that the name means; what nobody knows is refused where it is resolved."""
        try:
            return profile_named(name)
        except UsageError:
            return name

    def resolve(self) -> Job:
        """The job with every name looked up. Raises UsageError."""
        resolved = self.find_model()
        if resolved.left_out:
            raise UsageError(modules_not_modelled(resolved.asked, resolved.left_out))
        framework = self.find_framework()
        check_precision(framework, self.precision)
        if self.cublas_workspace_config is not None:
            workspace_bytes(self.cublas_workspace_config)
        dtype = self._dtype(framework)
        profile = framework.in_mode(dtype)
        model = self.trained_model(resolved.spec, profile)
        seq = self.seq or model.pretraining_seq
        cluster = self.job_cluster(profile)
        profile = switched(profile, self._switches(), cluster.num_gpus)
        decision = self.techniques(profile, model, cluster)
        offered, profile = profile, with_techniques(profile, decision.used, decision.unused)
        precision = self.precision
        cluster.gpu.peak(precision)
        offload, choices = self._activation_offload(profile, model, precision)
        fraction = self.offload_share(model)
        check_fraction(fraction, bool(offload or choices), profile)
        modes = self._recompute_modes(profile, searched_modes(model, profile), model)
        if self.recompute is None:
            modes = usable_modes(profile, offload, modes, precision) or modes
            modes = unrefused_modes(offered, decision.used, modes) or modes
        batch, ramp = self._batches(seq)
        return Job(
            model=model,
            cluster=cluster,
            framework=profile,
            optimizer=load_optimizer(self.optimizer),
            batch=batch,
            ramp=ramp,
            seq=seq,
            precision=precision,
            dtype=dtype,
            attention=self.attention or profile.attention,
            recompute=modes,
            reserve=parse_reserve(self.hbm_reserve),
            fit_probability=self.fit_probability,
            resolution=self._resolution(cluster),
            limits={name: frozenset(values) for name, values in self.limits.items()},
            conditions=(*self.conditions(), *technique_conditions(offered, decision.demanded)),
            dropout=self.dropout,
            expert_imbalance=self.expert_imbalance,
            allow_tp_across_domains=self.allow_tp_across_domains,
            model_alias=resolved.alias_of and self.model,
            optimizer_kernel=self.optimizer_kernel,
            optimizer_offload=0.0 if self.optimizer_offload == "search" else self.optimizer_offload,
            offload_shares=(searched_shares(profile) if self.optimizer_offload == "search" else ()),
            activation_offload=offload,
            offload_choices=choices,
            offload_fraction=fraction,
            techniques=kept_techniques(offered, profile, decision.used),
            technique_choices=decision.choices,
            schedule=self._schedule(profile),
            context_kinds=self._context_kinds(profile, model, seq),
            context_inner=self.cp_sizes[0] if self.cp_sizes else 0,
            published_mtp=resolved.spec.mtp_layers,
            beside=resolved.beside,
            cublas_workspace_config=self.cublas_workspace_config,
        )

    def _resolution(self, cluster: Cluster) -> Resolution:
        found, most = parse_resolution(self.resolution), cluster.gpu.hbm_usable_bytes
        if found.memory_bytes > most:
            raise UsageError(
                f"--resolution {self.resolution!r}: a GPU has {most / 2**30:.1f} GiB; give less"
            )
        return found

    def techniques(
        self, profile: FrameworkProfile, model: ModelSpec, cluster: Cluster
    ) -> TechniqueDecision:
        """Techniques of the framework that the job uses, and those that a search decides."""
        site = site_of(profile, model, cluster, inside=not self.allow_tp_across_domains)
        return decide(profile.name, profile.techniques, self.use, self.without, site)

    def with_technique(self, name: str) -> dict[str, Any]:
        """Fields that change where a technique of the framework is used too."""
        left = tuple(other for other in self.without if other != name)
        return {"use": (*self.use, name), "without": left}

    def with_sequence_parallel(self) -> dict[str, Any] | None:
        """Fields that change where tensor-parallel ranks split the sequence too; None where they
        do, as far as the framework has it."""
        return None if self.sequence_parallel else {"sequence_parallel": True}

    def on_gpus(self, count: int) -> dict[str, Any] | None:
        """Fields that change for another number of the same GPUs, as one would type them; None
        where a file describes the machine."""
        if self.gpus is None:
            return None
        number, _, name = self.gpus.partition("x")
        node, _, behind = name.partition("x")
        if not number.replace(",", "").replace("_", "").isdigit():
            return None
        if not node.isdigit():
            return {"gpus": f"{count}x{name}"}
        whole = count % int(node) == 0
        return {"gpus": f"{count // int(node)}x{name}" if whole else f"{count}x{behind}"}

    def conditions(self) -> tuple[UserCondition, ...]:
        """What the user requires, forbids and fixes, read. ConstraintError if it cannot be."""
        from constraints.condition import user_condition

        given = (
            *(user_condition("require", text) for text in self.require),
            *(user_condition("forbid", text) for text in self.forbid),
            *(user_condition("fix", text) for text in self.fix),
        )
        return tuple({item.option: item for item in given}.values())

    def find_model(self) -> ResolvedModel:
        """The model that `model` names, without biases where the request says so."""
        found = load_model(self.model)
        if self.bias:
            return found
        return found.model_copy(update={"spec": found.spec.without_biases()})

    def find_framework(self) -> FrameworkProfile:
        """The profile that `framework` names; on AMD's GPUs that of the framework in its place."""
        named = load_framework(self.framework)
        if self.gpus is None and self.cluster is None:
            return named
        gpu = self.find_cluster().gpu
        return profile_on(named, gpu.name, gpu.vendor)

    def _dtype(self, framework: FrameworkProfile) -> DtypeModeName:
        """The dtype mode: fp32 with products in fp32 or TF32, else as asked or usual. UsageError
        where precision and mode contradict each other."""
        wide = self.precision in FP32_PRECISIONS
        dtype = self.dtype or ("fp32" if wide else framework.usual_mode)
        if wide == (dtype == "fp32"):
            return dtype
        fix = "leave --dtype out" if wide else "give --precision fp32 or --dtype bf16 or amp"
        raise UsageError(
            f"--precision {self.precision} with --dtype {dtype}: products in fp32 and weights, "
            f"gradients and activations in fp32 go together; {fix}"
        )

    def _switches(self) -> Switches:
        return Switches(
            sequence_parallel=self.sequence_parallel,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            set_to_none=self.set_to_none,
        )

    def _activation_offload(
        self, profile: FrameworkProfile, model: ModelSpec, precision: str
    ) -> tuple[Modules, tuple[Modules, ...]]:
        """The modules that were given, and the sets among which the search decides if it does."""
        text = self.offload_text(model)
        if text == "off":
            return (), ()
        if name := refuses_offload(profile, self.use):
            raise UsageError(
                f"{OPTION} {self.activation_offload} with --with {name}: what graphs keep of "
                "offloaded tensors is not modelled; leave one of them out  "
                "[activation-offload-cuda-graphs]"
            )
        if self.activation_offload == "search":
            return (), searched_offloads(profile, model, precision)
        return read_offload(text, profile, model), ()

    def trained_model(self, model: ModelSpec, profile: FrameworkProfile) -> ModelSpec:
        """A model as the framework trains it."""
        chunked = model.with_scan_chunks(profile.scan_chunk)
        return chunked.with_mtp(self.trained_mtp(model, profile))

    def trained_mtp(self, model: ModelSpec, profile: FrameworkProfile) -> int:
        """Layers of multi-token prediction that are trained: as asked, else as the framework does
        by default. UsageError where it has none."""
        if self.mtp_layers and profile.mtp == "never":
            having = frameworks_with(lambda other: other.mtp != "never")
            raise UsageError(
                f"--mtp-layers {self.mtp_layers}: {profile.name} trains without multi-token "
                f"prediction; frameworks that have it: {', '.join(having)}"
            )
        usual = model.mtp_layers if profile.mtp == "model" else 0
        return usual if self.mtp_layers is None else self.mtp_layers

    def offload_text(self, model: ModelSpec) -> str:  # noqa: ARG002 (for launch files)
        """The modules of `activation_offload`, as they are read for a model."""
        return self.activation_offload

    def offload_share(self, model: ModelSpec) -> float:  # noqa: ARG002 (as above)
        """`activation_offload_fraction`, as it is read for a model."""
        return self.activation_offload_fraction

    def _context_kinds(
        self, profile: FrameworkProfile, model: ModelSpec, seq: int
    ) -> tuple[ContextKind, ...]:
        """Kinds of exchange of context parallelism that may be taken. UsageError."""
        offered, kind = profile.parallelism.context_kinds, self.cp_comm_type
        if self.cp_sizes and (kind != "a2a+p2p" or len(self.cp_sizes) != 2):
            raise UsageError(
                f"cp_sizes {list(self.cp_sizes)}: two numbers, with the exchange a2a+p2p alone"
            )
        kinds = self.offered_exchanges(profile, model, seq)
        if kind is not None and kind not in (*offered, *kinds):
            raise UsageError(f"--cp-comm-type {kind}: {profile.name} has " + ", ".join(offered))
        return kinds if kind is None else tuple(one_kind for one_kind in kinds if one_kind == kind)

    def offered_exchanges(
        self, profile: FrameworkProfile, model: ModelSpec, seq: int
    ) -> tuple[ContextKind, ...]:
        """Kinds among which `cp_comm_type` chooses."""
        return offered_exchanges(profile, model, seq)

    def _schedule(self, profile: FrameworkProfile) -> str | None:
        """The schedule asked for, or the framework's usual one. UsageError if it has none such."""
        offered = profile.parallelism.schedules
        if self.schedule is None:
            usual = offered[0]
            return None if usual in ("1f1b", "interleaved") else usual
        name = schedule_name(self.schedule)
        if name not in offered:
            having = frameworks_with(lambda other: name in other.parallelism.schedules)
            raise UsageError(
                f"--schedule {name}: {profile.name} has " + ", ".join(offered) + "; "
                f"frameworks that have it: {', '.join(having) or 'none'}"
            )
        return name

    def find_cluster(self) -> Cluster:
        """The machine that the request names. UsageError where it names none, or two."""
        if (self.gpus is None) == (self.cluster is None):
            raise UsageError("give the GPUs once: --gpus 64xH100, or --cluster FILE.toml")
        if self.cluster is not None:
            return load_cluster_file(Path(self.cluster))
        return parse_one_type(self.gpus or "")

    def job_cluster(self, profile: FrameworkProfile) -> Cluster:
        """The machine, with what its switches do for the framework. UsageError, HardwareError."""
        return framework_sharp(self.find_cluster(), profile, self.sharp)

    def _batches(self, seq: int) -> tuple[BatchTarget, tuple[RampBatch, ...]]:
        """The global batch, and those that a ramp has before it."""
        if self.batch_ramp is None:
            return self._batch(seq), ()
        ramp = read_ramp(self.batch_ramp, self.gbs)
        *before, last = ramp.batches
        given = self.gbs_tokens if last.in_tokens else self.gbs
        other = self.gbs if last.in_tokens else self.gbs_tokens
        if other is not None or given not in (None, last.number):
            said = f"--gbs {self.gbs}" if self.gbs else f"--gbs-tokens {self.gbs_tokens}"
            raise UsageError(
                f"--batch-ramp {self.batch_ramp!r} ends with {last}, and {said} is given: let it "
                "end with that batch, in the same unit, or leave one out"
            )
        targets = [self._with_batch(batch)._batch(seq) for batch in (*before, last)]
        until = ramp.until_tokens(seq)
        return targets[-1], tuple(map(RampBatch, targets, until))

    def _with_batch(self, batch: Batch) -> Request:
        name, other = ("gbs_tokens", "gbs") if batch.in_tokens else ("gbs", "gbs_tokens")
        return self.model_copy(update={name: batch.number, other: None})

    def _batch(self, seq: int) -> BatchTarget:
        if (self.gbs_tokens is None) == (self.gbs is None):
            raise UsageError(
                "give the global batch once: --gbs-tokens 4M, or --gbs 512 (sequences)"
            )
        sequences = self.gbs or (self.gbs_tokens or 0) / seq
        if sequences > MOST_SEQUENCES:
            raise UsageError(
                f"a global batch of {sequences:,.0f} sequences is beyond the solver's 64-bit "
                f"integers; give at most {MOST_SEQUENCES:,}"
            )
        if self.gbs is not None:
            return BatchTarget(float(self.gbs), tolerance=0.0, exact=True)
        tokens = self.gbs_tokens or 0
        if tokens < seq:
            raise UsageError(
                f"a global batch of {tokens:,} tokens is less than one sequence of {seq:,}; "
                f"give at least --gbs-tokens {seq} or a shorter --seq"
            )
        return BatchTarget(tokens / seq, self.gbs_tolerance, False, tokens)

    def _recompute_modes(
        self, profile: FrameworkProfile, searched: tuple[RecomputeMode, ...], model: ModelSpec
    ) -> tuple[RecomputeMode, ...]:
        if self.recompute is None:
            return searched
        modes = tuple(profile.recompute_mode(name) for name in self.recompute)
        for mode in modes:
            demand_parts(mode, model)
            if mode.block:
                raise UsageError(
                    f"--recompute full:block={mode.block}: a search chooses the number of layers "
                    "itself; give --recompute full"
                )
        return modes
