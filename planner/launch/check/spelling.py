"""A changed configuration as edits of the file that it was read from."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.frameworks import load_framework
from planner.job.frameworks.techniques import technique_of
from planner.job.modules import Module
from planner.job.recompute import MODULES, RecomputeMode
from planner.launch.check.request import LaunchRequest
from planner.launch.megatron_flags import from_text
from planner.launch.megatron_layout import layout_text
from planner.launch.read.found import Edit, Found
from planner.predict.memory.advice import Setup
from planner.predict.plan import Degrees
from planner.predict.techniques import flags_on


class NotInFileError(Exception):
    """A change that the file's format does not hold; the message says where it belongs."""


def edits_for(found: Found, before: Setup, after: Setup) -> tuple[Edit, ...]:
    """Edits that turn the file into the changed configuration. NotInFileError if it holds none."""
    spellers = {
        "megatron": _megatron,
        "megatron-bridge": _bridge,
        "torchtitan-0.2": _torchtitan,
        "torchtitan-0.3": _torchtitan,
        "deepspeed": _deepspeed,
        "accelerate": _accelerate,
        "nanotron": _nanotron,
    }
    if found.format not in spellers:
        raise NotInFileError("a plan file is not launched; search again: planner search")
    return tuple(spellers[found.format](found, before, after))


def _changed(before: Setup, after: Setup) -> dict[str, int]:
    """Degrees that differ, with their new values; `gbs` too."""
    old, new = before.degrees.model_dump(), after.degrees.model_dump()
    changes = {name: new[name] for name in new if new[name] != old[name]}
    if after.request.gbs != before.request.gbs:
        changes["gbs"] = after.request.gbs or after.degrees.gbs
    return changes


def _mode(setup: Setup) -> RecomputeMode:
    return setup.request.find_framework().recompute_mode(setup.recompute)


def _variations(setup: Setup) -> tuple[str, ...]:
    request = setup.request
    return request.variations if isinstance(request, LaunchRequest) else ()


# --- Megatron-LM ----------------------------------------------------------------------------------

_MEGATRON = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "mbs": "--micro-batch-size",
    "gbs": "--global-batch-size",
}
_LAYOUT_OPTIONS = (
    "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
    "--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers", "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
)  # fmt: skip
_RECOMPUTE_OPTIONS = (
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers",
    "--recompute-modules", "--recompute-activations",
)  # fmt: skip
# Variation -> (option whose presence is the variation, option whose absence is).
_SWITCHES: dict[str, tuple[str, str]] = {
    "no-sequence-parallel": ("", "--sequence-parallel"),
    "gradient-reduction-exposed": ("", "--overlap-grad-reduce"),
    "parameter-gather-exposed": ("", "--overlap-param-gather"),
    "unfused-accumulation": ("--no-gradient-accumulation-fusion", ""),
    "pipeline-exposed": ("--no-overlap-p2p-communication", ""),
}


def _megatron(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:
    changes = _changed(before, after)
    degrees = after.degrees
    for name, value in changes.items():
        if name in _MEGATRON:
            yield Edit(_MEGATRON[name], str(value))
    if found.setting(_MEGATRON["gbs"]) is None and "gbs" not in changes:
        yield Edit(_MEGATRON["gbs"], str(after.request.gbs))
    if _has_experts(after) and degrees.etp != degrees.tp:
        yield Edit("--expert-tensor-parallel-size", str(degrees.etp))
    elif "etp" in changes:
        yield Edit("--expert-tensor-parallel-size", None)
    moved = (before.block_layers, before.mtp_standalone) != (
        after.block_layers,
        after.mtp_standalone,
    )
    if {"pp", "vpp"} & changes.keys() or moved:
        yield from _megatron_layout(after)
    if "cp" in changes and found.cp_sizes:
        inner = min(found.cp_sizes[0], degrees.cp)
        sizes = f"{inner} {degrees.cp // inner}" if degrees.cp > 1 else None
        yield Edit("--hierarchical-context-parallel-sizes", sizes)
    if "zero" in changes:
        yield Edit("--use-distributed-optimizer", "" if degrees.zero else None)
    if "tp" in changes and degrees.tp > 1 and before.degrees.tp == 1:
        yield Edit("--sequence-parallel", "")
    if before.recompute != after.recompute:
        yield from _megatron_recompute(after)
    yield from _megatron_switches(before, after)
    if before.request.attention != after.request.attention:
        yield Edit("--attention-backend", "flash")


def _bridge(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:
    """The same as overrides; stages and chunks have fields of their own."""
    from planner.launch.read.megatron_bridge import as_overrides

    edits = [edit for edit in _megatron(found, before, after) if edit.key not in _LAYOUT_OPTIONS]
    for as_override in as_overrides(edits):
        if as_override.value != "null" or found.setting(as_override.key) is not None:
            yield as_override
    layout = [edit for edit in _megatron(found, before, after) if edit.key in _LAYOUT_OPTIONS]
    if layout:
        yield from _bridge_layout(found, after, [item.value for item in layout if item.value])


def _bridge_layout(found: Found, after: Setup, values: list[str]) -> Iterator[Edit]:
    vpp, blocks = after.degrees.vpp, "model.pipeline_model_parallel_layout"
    yield Edit("model.virtual_pipeline_model_parallel_size", str(vpp) if vpp > 1 else "null")
    text = next((value.strip('"') for value in values if value.startswith('"')), None)
    if text is not None or found.setting(blocks) is not None:
        yield Edit(blocks, text or "null")


def _has_experts(setup: Setup) -> bool:
    return setup.request.find_model().spec.moe is not None


def _megatron_switches(before: Setup, after: Setup) -> Iterator[Edit]:
    old, new = set(_variations(before)), set(_variations(after))
    core, gpu = load_framework("megatron-core"), after.request.find_cluster().gpu
    for name in sorted(old ^ new):
        technique = technique_of(core, name.removeprefix("no-"))
        if technique is not None:
            for one in from_text(flags_on(technique, gpu)) if name in new else ():
                yield Edit(one.name, " ".join(one.values))
            continue
        present, absent = _SWITCHES.get(name, ("", ""))
        if present:
            yield Edit(present, "" if name in new else None)
        elif absent:
            yield Edit(absent, None if name in new else "")
        else:
            raise NotInFileError(f"the file has no switch for {name}")


def _megatron_layout(after: Setup) -> Iterator[Edit]:
    """Stages and chunks anew: by numbers where even, by a layout where not."""
    degrees, layers = after.degrees, after.request.find_model().spec.layers
    keep: str | None = None
    blocks = after.block_layers
    if blocks is None:
        from constraints.layout import even_split

        blocks = even_split(layers, degrees.pp * degrees.vpp)
    if len(set(blocks)) > 1:
        keep = "--pipeline-model-parallel-layout"
        mtp = after.request.find_model().spec.mtp_layers
        yield Edit(keep, f'"{layout_text(blocks, mtp, after.mtp_standalone)}"')
    elif degrees.vpp > 1:
        keep = "--num-layers-per-virtual-pipeline-stage"
        yield Edit(keep, str(blocks[0]))
    yield from (Edit(name, None) for name in _LAYOUT_OPTIONS if name != keep)


def _megatron_recompute(after: Setup) -> Iterator[Edit]:
    mode = _mode(after)
    wanted: dict[str, str] = {}
    if Module.FULL in mode.mask:
        method = "block" if mode.block else "uniform"
        wanted = {
            "--recompute-granularity": "full",
            "--recompute-method": method,
            "--recompute-num-layers": str(mode.block or mode.span),
        }
    elif mode.mask:
        names = [name for name, module in MODULES.items() if module in mode.mask]
        wanted = {
            "--recompute-granularity": "selective",
            "--recompute-modules": " ".join(names),
        }
    for name in _RECOMPUTE_OPTIONS:
        yield Edit(name, wanted.get(name))


# --- torchtitan -----------------------------------------------------------------------------------

_TORCHTITAN = {
    "tp": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
    "gbs": "training.global_batch_size",
}
_SHARD = "parallelism.data_parallel_shard_degree"


def _torchtitan(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:
    changes, degrees = _changed(before, after), after.degrees
    for name, value in changes.items():
        if name in _TORCHTITAN:
            yield Edit(_TORCHTITAN[name], str(value))
    yield from _torchtitan_batch(found, after, changes)
    yield from _torchtitan_sharding(found, before, degrees, changes)
    if {"pp", "vpp"} & changes.keys():
        yield from _torchtitan_stages(after)
    if before.recompute != after.recompute:
        yield from _torchtitan_recompute(found, after)
    gone = set(_variations(before)) - set(_variations(after))
    new = set(_variations(after)) - set(_variations(before))
    if "eager-blocks" in gone:
        yield Edit("compile.enable", "true")
    if "async-tp" in new:
        table = "compile" if found.format == "torchtitan-0.3" else "parallelism"
        yield Edit(f"{table}.enable_async_tensor_parallel", "true")
    if gone - {"eager-blocks"} or new - {"async-tp"}:
        raise NotInFileError("torchtitan has no field for this")


def _torchtitan_batch(found: Found, after: Setup, changes: dict[str, int]) -> Iterator[Edit]:
    """The local batch is a micro-batch, or all of a pipeline's micro-batches."""
    degrees = after.degrees
    if not {"mbs", "grad_acc", "dp", "pp"} & changes.keys():
        return
    yield Edit(
        "training.local_batch_size", str(degrees.mbs * (degrees.grad_acc if degrees.pp > 1 else 1))
    )
    if degrees.pp > 1 and (degrees.mbs > 1 or found.setting(f"{_P}microbatch_size")):
        yield Edit(f"{_P}microbatch_size", str(degrees.mbs))
    yield Edit("training.global_batch_size", str(degrees.gbs))


_P = "parallelism.pipeline_parallel_"


def _torchtitan_sharding(
    found: Found, before: Setup, degrees: Degrees, changes: dict[str, int]
) -> Iterator[Edit]:
    """Replicas and shards of data parallelism, and when weights are freed."""
    if "dp" in changes or "shard" in changes:
        if degrees.shard or before.degrees.shard:
            raise NotInFileError("replicas and shards have to be chosen again")
        stated = found.setting(_SHARD)
        if stated is not None and stated.value != -1:
            yield Edit(_SHARD, str(degrees.dp))
    if "zero" in changes:
        if degrees.zero < 2 or before.degrees.zero < 2:
            raise NotInFileError("sharding is on or off by the degrees")
        yield Edit(
            "parallelism.fsdp_reshard_after_forward", "always" if degrees.zero == 3 else "never"
        )
    elif "pp" in changes and degrees.zero >= 2:
        yield Edit(
            "parallelism.fsdp_reshard_after_forward", "always" if degrees.zero == 3 else "never"
        )


def _torchtitan_stages(after: Setup) -> Iterator[Edit]:
    """Schedule and layers of a stage."""
    degrees, layers = after.degrees, after.request.find_model().spec.layers
    if degrees.pp == 1:
        return
    usual = "Interleaved1F1B" if degrees.vpp > 1 else "1F1B"
    if after.request.schedule is None:
        yield Edit(f"{_P}schedule", usual)
    yield Edit(f"{_P}layers_per_stage", str(-(-(layers + 2) // (degrees.pp * degrees.vpp))))


def _torchtitan_recompute(found: Found, after: Setup) -> Iterator[Edit]:
    if found.format == "torchtitan-0.3":
        raise NotInFileError("activation_checkpoint takes another class: FullAC, SelectiveAC")
    mode = _mode(after)
    key = "activation_checkpoint"
    if mode.every > 1:
        yield Edit(f"{key}.mode", "selective")
        yield Edit(f"{key}.selective_ac_option", f'"{mode.every}"')
    elif mode.name in ("none", "full"):
        yield Edit(f"{key}.mode", mode.name)
    else:
        yield Edit(f"{key}.mode", "selective")
        yield Edit(f"{key}.selective_ac_option", "op")


# --- DeepSpeed, accelerate, nanotron --------------------------------------------------------------


def _deepspeed(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:
    changes, degrees = _changed(before, after), after.degrees
    _refuse_beyond(changes, {"mbs", "grad_acc", "gbs", "zero", "dp", "tp"}, before, after)
    if {"mbs", "grad_acc", "gbs", "dp"} & changes.keys():
        yield Edit("train_micro_batch_size_per_gpu", str(degrees.mbs))
        yield Edit("gradient_accumulation_steps", str(degrees.grad_acc))
        if found.setting("train_batch_size") is not None:
            yield Edit("train_batch_size", str(degrees.gbs))
    if "zero" in changes:
        yield Edit("zero_optimization.stage", str(degrees.zero))
    if "tp" in changes:
        yield Edit("tensor_parallel.autotp_size", str(degrees.tp))


def _accelerate(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:  # noqa: ARG001
    changes = _changed(before, after)
    mode = after.recompute
    if before.recompute != mode and mode in ("none", "full"):
        yield Edit("fsdp_config.fsdp_activation_checkpointing", str(mode == "full").lower())
    _refuse_beyond(changes, {"zero"}, before, after, recompute=True)
    if "zero" in changes:
        if min(after.degrees.zero, before.degrees.zero) < 2:
            raise NotInFileError("sharding is chosen by distributed_type")
        value = str(after.degrees.zero == 3).lower()
        yield Edit("fsdp_config.fsdp_reshard_after_forward", value)


def _nanotron(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:  # noqa: ARG001
    changes = _changed(before, after)
    keys = {name: f"parallelism.{name}" for name in ("dp", "pp", "tp")} | {
        "cp": "parallelism.context_parallel_size",
        "ep": "parallelism.expert_parallel_size",
        "mbs": "tokens.micro_batch_size",
        "grad_acc": "tokens.batch_accumulation_per_replica",
        "zero": "optimizer.zero_stage",
    }
    for name, value in changes.items():
        if name in keys:
            yield Edit(keys[name], str(value))
    if before.recompute != after.recompute:
        yield Edit("parallelism.recompute_layer", str(after.recompute == "full").lower())
    gone = set(_variations(before)) - set(_variations(after))
    if "no-sequence-parallel" in gone:
        yield Edit("parallelism.tp_mode", "REDUCE_SCATTER")


def _refuse_beyond(
    changes: dict[str, int],
    known: set[str],
    before: Setup,
    after: Setup,
    *,
    recompute: bool = False,
) -> None:
    """NotInFileError for what such a file does not hold."""
    beyond = changes.keys() - known
    if {"mbs", "grad_acc", "gbs"} & beyond:
        raise NotInFileError("the batch is set by the training script's arguments")
    if beyond:
        raise NotInFileError(f"{', '.join(sorted(beyond))} is not in this file")
    if before.recompute != after.recompute and not recompute:
        raise NotInFileError("recomputation is set by the training script (gradient_checkpointing)")
    if before.request.optimizer != after.request.optimizer:
        raise NotInFileError("the optimizer is set by the training script")
