"""Turns `Found` into a configuration that can be costed: a request (with the profile as changed by
the settings), degrees, recompute mode and layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from constraints.axes import AXES
from hardware.errors import HardwareError
from hardware.files import shipped_toml
from planner.job.errors import CannotTellError, UsageError
from planner.job.frameworks.profile import Tables, load_framework
from planner.job.frameworks.workspaces import CUBLAS_WORKSPACE_CONFIG
from planner.job.models.catalog import load_model
from planner.job.recompute import RECOMPUTED
from planner.job.request import Request
from planner.job.request_fields import Launched, Overrides
from planner.launch.check.world import started
from planner.launch.read.found import Found
from planner.predict.evaluate import Proposal
from planner.predict.plan import Degrees

# Name of the model in a request whose model is described by the files.
IN_FILES = "from the files"


def as_request(found: Found, gpus: str | None = None, cluster: str | None = None) -> Proposal:
    """The configuration that was found, on the given GPUs (`64xH100`, or a cluster file).

    The result's fields are the arguments of `planner.evaluate`; the rules are not checked.
    CannotTellError if something is missing that has no default.
    """
    if gpus is None and cluster is None:
        gpus = found.plan_gpus
    if gpus is None and cluster is None:
        raise CannotTellError(
            "the files do not name the GPUs that they run on: give --gpus 64xH100, or "
            "--cluster FILE.toml"
        )
    model = found.model or (IN_FILES if found.shape else None)
    if model is None:
        raise CannotTellError("the files do not describe the model: give --model")
    launched = Launched(tables_of_variations(found.variations, found.framework), found.transport())
    draft = _request(found, model, gpus, cluster, launched)
    launched = replace(launched, started=started(found, draft.find_cluster()))
    draft = draft.model_copy(update=draft.launched_as(launched))
    degrees = degrees_of(found, draft, draft.find_cluster().num_gpus)
    whole = _request(found, model, gpus, cluster, launched, found.gbs or degrees.gbs)
    return Proposal(
        whole.model_copy(update={"batch_ramp": found.batch_ramp}),
        degrees,
        canonical_mode(found),
        found.block_layers,
        found.recomputed,
        found.mtp_standalone,
    )


def _request(
    found: Found,
    model: str,
    gpus: str | None,
    cluster: str | None,
    launched: Launched,
    gbs: int = 1,
) -> Request:
    kernel = found.optimizer_kernel
    return Request(
        model=model,
        overrides=Overrides(model=found.shape if found.model is None else None, launched=launched),
        gpus=gpus,
        cluster=cluster,
        gbs=gbs,
        cublas_workspace_config=found.cublas_workspace_config
        or found.environment.get(CUBLAS_WORKSPACE_CONFIG),
        # Launch files may split tensor parallelism over nodes; that is slow, not wrong.
        allow_tp_across_domains=True,
        **found.asked(),
        **({} if kernel is None else {"optimizer_kernel": kernel}),
    )


def degrees_of(found: Found, draft: Request, world: int) -> Degrees:
    """The launch's degrees on `world` GPUs. Those that the files leave out (dp, etp, grad_acc,
    ZeRO) are completed as the framework would."""
    model = found.shape if found.model is None else load_model(found.model).spec
    replica = found.tp * found.pp * found.cp
    dp = found.dp or max(1, world // replica)
    # If a dense model has ep > 1, the rule experts-needed reports it.
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


def _unreplicated_zero(stage: int, draft: Request) -> int:
    """The ZeRO stage to assume with a single rank to shard over, where all stages do the same: that
    of the files if the framework has it, otherwise the lowest possible. 0 if the request is wrong.
    """
    try:
        job = draft.resolve()
    except (UsageError, HardwareError):
        return 0  # what is wrong is said where the whole configuration is looked at
    offered = job.framework.parallelism.zero_stages
    return stage if stage in offered else max(min(offered), job.least_zero)


def canonical_mode(found: Found) -> str:
    """Name of the recompute mode: the framework's name if one of its modes covers the same modules,
    otherwise the name in the files."""
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
    """A setting that changes the framework's profile. `words`: a description of it; `tables`: the
    changes."""

    words: str
    tables: Tables


@cache
def variation_tables() -> Mapping[str, Mapping[str, Any]]:
    """The rows of `variations.toml` by name: the words and changes of each variation."""
    return shipped_toml("planner.launch.check", "variations.toml")


def variation(name: str, profile: str) -> Variation:
    """A variation by name, for a profile. `tables` is empty for a technique of the profile, because
    the request states it. KeyError for a name that no reader gives."""
    technique = load_framework(profile).technique(name.removeprefix("no-"))
    if technique is not None:
        without = "without: " if name.startswith("no-") else ""
        return Variation(f"{name.removeprefix('no-')}: {without}{technique.words}", {})
    tables = dict(variation_tables().get(name, {}))
    if not tables and (
        technique := load_framework("megatron-core").technique(name.removeprefix("no-"))
    ):
        # A profile of the same family without the technique: Primus, Megatron-FSDP.
        return Variation(f"{technique.words}: not modelled under {profile}", {})
    words, variant = tables.pop("words"), tables.pop("variant", None)
    tables.pop("removed", None)
    if variant is not None:
        from planner.evidence.runs.software import tables_of

        tables = dict(tables_of(variant, profile))
    return Variation(words, tables)


def tables_of_variations(names: Sequence[str], profile: str) -> Mapping[str, Tables]:
    """For each variation, by name, its changes to the profile."""
    return {name: variation(name, profile).tables for name in names}
