"""From `Found` to a configuration that can be costed: a request whose profile is as the settings
change it, degrees, recompute, layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from constraints.axes import AXES
from constraints.context_kinds import ContextKind
from hardware.errors import HardwareError
from hardware.files import shipped_toml
from hardware.schema import Cluster
from hardware.sharp import why_not, with_sharp
from hardware.transport import TransportSettings
from planner.job.errors import CannotTellError, UsageError
from planner.job.frameworks import FrameworkProfile, load_framework
from planner.job.frameworks.profile import Tables, with_tables
from planner.job.frameworks.techniques import TechniqueDecision
from planner.job.frameworks.workspaces import CUBLAS_WORKSPACE_CONFIG
from planner.job.models.catalog import ResolvedModel, load_model
from planner.job.modules import RECOMPUTED
from planner.job.offload import has_module
from planner.job.request import Request
from planner.job.specs import ModelSpec
from planner.launch.check.world import Started, started
from planner.launch.read.found import Found
from planner.predict.evaluate import Proposal
from planner.predict.plan import Degrees

NO_SEQUENCE_PARALLEL = "no-sequence-parallel"
# Stands for the model in a request whose shape the files describe.
IN_FILES = "from the files"


class LaunchRequest(Request):
    """A request whose model may be described by the files and whose profile by their settings.

    `shape`: the model, None where `model` names it; `variations`: of `variations.toml`;
    `transport`: what NCCL's variables make of the links; `started`: the processes that the files
    start, where they leave GPUs of the machine idle.
    """

    shape: ModelSpec | None = None
    variations: tuple[str, ...] = ()
    transport: TransportSettings = TransportSettings()
    started: Started | None = None

    def find_cluster(self) -> Cluster:
        """The GPUs of the machine that the files start processes on."""
        machine = super().find_cluster()
        return machine if self.started is None else self.started.part_of(machine)

    def find_model(self) -> ResolvedModel:
        """The shape of the files, else the model by name."""
        if self.shape is None:
            return super().find_model()
        return ResolvedModel(spec=self.shape, name=self.shape.name, asked=self.shape.name)

    def trained_mtp(self, model: ModelSpec, profile: FrameworkProfile) -> int:
        """As the files describe the model."""
        if self.shape is not None and profile.mtp != "never":
            return model.mtp_layers
        return super().trained_mtp(model, profile)

    def offload_text(self, model: ModelSpec) -> str:
        """Without modules that the model has not: Megatron passes them over."""
        names = [name for name in self.activation_offload.split(",") if has_module(name, model)]
        return ",".join(names) or "off"

    def offload_share(self, model: ModelSpec) -> float:
        """All where no module is left to offload a fraction of."""
        return 1.0 if self.offload_text(model) == "off" else self.activation_offload_fraction

    def offered_exchanges(
        self, profile: FrameworkProfile, model: ModelSpec, seq: int
    ) -> tuple[ContextKind, ...]:
        """What the files say, or the framework's default; whether its kernels have it, the rules
        check."""
        if self.cp_comm_type is None:
            return super().offered_exchanges(profile, model, seq)[:1]
        if not profile.parallelism.context_in_transformer_engine:
            return (self.cp_comm_type,)
        return tuple(
            offered_exchange
            for offered_exchange in super().offered_exchanges(profile, model, seq)
            if offered_exchange == self.cp_comm_type
        )

    def with_technique(self, name: str) -> dict[str, Any]:
        """The variation of that name in place of the one that says without."""
        kept = (other for other in self.variations if other != f"no-{name}")
        return {"variations": (*kept, name)}

    def with_sequence_parallel(self) -> dict[str, Any] | None:
        """Without the variation that switches it off."""
        if NO_SEQUENCE_PARALLEL not in self.variations:
            return None
        left = (name for name in self.variations if name != NO_SEQUENCE_PARALLEL)
        return {"variations": tuple(left)}

    def job_cluster(self, profile: FrameworkProfile) -> Cluster:
        """The machine, as NCCL's variables let it be used; its switches reduce where the files ask
        for it and they can."""
        cluster = self.transport.applied(self.find_cluster())
        if self.sharp and profile.parallelism.sharp_groups and not why_not(cluster):
            return with_sharp(cluster, cluster.sharp)
        return cluster.model_copy(update={"sharp": ""})

    def find_framework(self) -> FrameworkProfile:
        """The profile as the settings change it."""
        return varied_framework(self.framework, self.variations)

    def techniques(
        self,
        profile: FrameworkProfile,
        model: ModelSpec,  # noqa: ARG002 (the request's method)
        cluster: Cluster,  # noqa: ARG002
    ) -> TechniqueDecision:
        """What the files say of techniques, whether or not they work there: nothing is open."""
        names = [one.name for one in profile.techniques]
        return TechniqueDecision(
            used=tuple(name for name in names if name in self.variations),
            unused=tuple(name for name in names if f"no-{name}" in self.variations),
        )


def as_request(found: Found, gpus: str | None = None, cluster: str | None = None) -> Proposal:
    """The configuration that was found, on the GPUs given (`64xH100`, or a cluster's file).

    The result's fields are the arguments of `planner.evaluate`; whether it obeys the rules is not
    looked at. CannotTellError where something is missing that no default can stand for.
    """
    if gpus is None and cluster is None:
        gpus = found.plan_gpus
    if gpus is None and cluster is None:
        raise CannotTellError(
            "the files do not say on what they run: give --gpus 64xH100, or --cluster FILE.toml"
        )
    model = found.model or (IN_FILES if found.shape else None)
    if model is None:
        raise CannotTellError("the files do not describe the model: give --model")
    draft = _request(found, model, gpus, cluster, gbs=1)
    use = started(found, draft.find_cluster())
    draft = draft.model_copy(update={"started": use})
    world = draft.find_cluster().num_gpus
    degrees = _degrees(found, draft, world)
    gbs = found.gbs or degrees.gbs
    return Proposal(
        _request(found, model, gpus, cluster, gbs).model_copy(
            update={"batch_ramp": found.batch_ramp, "started": use}
        ),
        degrees,
        canonical_mode(found),
        found.block_layers,
        found.recomputed,
        found.mtp_standalone,
    )


def _request(
    found: Found, model: str, gpus: str | None, cluster: str | None, gbs: int
) -> LaunchRequest:
    optional: dict[str, Any] = {}
    if found.optimizer_kernel is not None:
        optional["optimizer_kernel"] = found.optimizer_kernel
    return LaunchRequest(
        model=model,
        shape=found.shape if found.model is None else None,
        variations=found.variations,
        transport=found.transport(),
        gpus=gpus,
        cluster=cluster,
        gbs=gbs,
        cublas_workspace_config=found.cublas_workspace_config
        or found.environment.get(CUBLAS_WORKSPACE_CONFIG),
        # Launch files may split a product over nodes; it is slow, not wrong.
        allow_tp_across_domains=True,
        **found.asked(),
        **optional,
    )


def _degrees(found: Found, draft: LaunchRequest, world: int) -> Degrees:
    """Degrees with dp, etp, grad_acc and ZeRO completed as the frameworks do."""
    model = found.shape if found.model is None else load_model(found.model).spec
    replica = found.tp * found.pp * found.cp
    dp = found.dp or max(1, world // replica)
    # Of a dense model experts-needed says so if ep > 1.
    experts = model is not None and model.moe is not None
    usual = load_framework(found.framework).usual_etp(experts=experts, tp=found.tp, ep=found.ep)
    etp = usual if found.etp is None or not experts else found.etp
    step = found.mbs * dp
    grad_acc = found.grad_acc or max(1, (found.gbs or step) // step)
    replicated = dp * found.cp > 1
    if model is not None and model.moe is not None:
        replicated |= dp * found.cp * found.tp > found.ep * etp
    zero = found.zero if replicated else _unreplicated_zero(found.zero, draft)
    shard = found.shard if found.shard != dp * found.cp else 0
    stated = {name: value for name, value in vars(found).items() if name in AXES}
    return Degrees(**stated | {
        "vpp": found.vpp if found.pp > 1 else 1, "etp": etp, "dp": dp, "zero": zero,
        "grad_acc": grad_acc, "shard": shard,
    })  # fmt: skip


def _unreplicated_zero(stage: int, draft: LaunchRequest) -> int:
    """The stage as the files have it, which shards over one rank; where the framework has no such
    stage, its lowest, which is the same there."""
    try:
        job = draft.resolve()
    except (UsageError, HardwareError):
        return 0  # what is wrong is said where the whole configuration is looked at
    offered = job.framework.parallelism.zero_stages
    return stage if stage in offered else max(min(offered), job.least_zero)


def canonical_mode(found: Found) -> str:
    """The recompute mode by the framework's name for its modules, where it has one."""
    profile = load_framework(found.framework)
    names = found.recompute.replace(",", "+").split("+")
    wanted = {str(RECOMPUTED[name].part.name) for name in names if name in RECOMPUTED}
    if len(wanted) == len(names):
        for mode in profile.recompute:
            if set(mode.modules) == wanted:
                return mode.name
    return found.recompute


@dataclass(frozen=True, slots=True)
class Variation:
    """`words`: what the setting does; `tables`: what it changes in the profile."""

    words: str
    tables: Tables


@cache
def _variations() -> Mapping[str, Mapping[str, Any]]:
    """Words and tables of each variation, by name."""
    return shipped_toml("planner.launch.check", "variations.toml")


def variation(name: str, profile: str) -> Variation:
    """A variation by name, for a profile: of a technique that the profile offers only the words,
    for the request has it itself. KeyError for a name that no reader gives."""
    technique = load_framework(profile).technique(name.removeprefix("no-"))
    if technique is not None:
        without = "without: " if name.startswith("no-") else ""
        return Variation(f"{name.removeprefix('no-')}: {without}{technique.words}", {})
    tables = dict(_variations().get(name, {}))
    if not tables and (
        technique := load_framework("megatron-core").technique(name.removeprefix("no-"))
    ):
        # A profile of the same family that lacks it: Primus, Megatron-FSDP.
        return Variation(f"{technique.words}: not counted on under {profile}", {})
    words, variant = tables.pop("words"), tables.pop("variant", None)
    if variant is not None:
        from planner.evidence.runs.software import tables_of

        tables = dict(tables_of(variant, profile))
    return Variation(words, tables)


@cache
def varied_framework(name: str, variations: Sequence[str]) -> FrameworkProfile:
    """The profile with variations applied; one object for equal arguments."""
    profile = load_framework(name)
    for one_variation in variations:
        profile = with_tables(profile, variation(one_variation, name).tables)
    return profile
