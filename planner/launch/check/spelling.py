"""A changed configuration as edits of the file that it was read from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from constraints.layout import even_split
from planner.job.frameworks import load_framework
from planner.job.frameworks.techniques import Technique
from planner.job.recompute import RecomputeMode
from planner.launch.check.request import LaunchRequest
from planner.launch.megatron_flags import Flag, from_text, layout_flags
from planner.launch.options import (
    ACCELERATE,
    ASYNC_TP_0_3,
    DEEPSPEED,
    GONE,
    MEGATRON,
    MEGATRON_LAYOUT,
    MEGATRON_RECOMPUTE,
    NANOTRON,
    TORCHTITAN,
    Option,
    Options,
)
from planner.launch.read.found import Edit, Found
from planner.predict.memory.advice import Setup
from planner.predict.plan import Degrees, LayerLayout
from planner.predict.techniques import flags_for


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
    if found.format == "plan":
        raise NotInFileError("a plan file is not launched; search again: planner search")
    if found.format not in spellers:
        raise NotInFileError("files of this kind are read and not written: change it by hand")
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

_LAYOUT_OPTIONS = tuple(option.key for option in MEGATRON_LAYOUT.values())
_RECOMPUTE_OPTIONS = tuple(option.key for option in MEGATRON_RECOMPUTE.values())


def _megatron(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:
    changes = _changed(before, after)
    degrees = after.degrees
    for name in ("tp", "pp", "cp", "ep", "mbs", "gbs"):
        if name in changes:
            yield Edit(MEGATRON[name].key, str(changes[name]))
    said = found.setting(MEGATRON["gbs"].key) is not None or found.batch_ramp is not None
    if not said and "gbs" not in changes:
        yield Edit(MEGATRON["gbs"].key, str(after.request.gbs))
    if (after.request.find_model().spec.moe is not None) and degrees.etp != degrees.tp:
        yield Edit(MEGATRON["etp"].key, str(degrees.etp))
    elif "etp" in changes:
        yield Edit(MEGATRON["etp"].key, None)
    moved = (before.block_layers, before.mtp_standalone) != (
        after.block_layers,
        after.mtp_standalone,
    )
    if {"pp", "vpp"} & changes.keys() or moved:
        yield from _only(_LAYOUT_OPTIONS, _layout(after))
    if "cp" in changes and found.cp_sizes:
        inner = min(found.cp_sizes[0], degrees.cp)
        sizes = f"{inner} {degrees.cp // inner}" if degrees.cp > 1 else None
        yield Edit(MEGATRON["cp_sizes"].key, sizes)
    if "zero" in changes:
        yield _state(MEGATRON["zero"], min(degrees.zero, 1))
    if "tp" in changes and degrees.tp > 1 and before.degrees.tp == 1:
        yield _state(MEGATRON["no-sequence-parallel"], False)
    if before.recompute != after.recompute:
        yield from _only(_RECOMPUTE_OPTIONS, from_text(_mode(after).flags))
    yield from _technique_flags(before, after)
    yield from _switches(MEGATRON, before, after)
    if before.request.attention != after.request.attention:
        yield Edit(MEGATRON["attention"].key, MEGATRON["attention"].text(after.request.attention))


def _layout(setup: Setup) -> tuple[Flag, ...]:
    """Layers by stage, as the writer has them."""
    degrees, model = setup.degrees, setup.request.find_model().spec
    blocks = setup.block_layers or even_split(model.layers, degrees.pp * degrees.vpp)
    layout = LayerLayout(block_layers=blocks, mtp_standalone=setup.mtp_standalone)
    return layout_flags(layout, degrees.pp, degrees.vpp, model.mtp_layers)


def _only(options: Sequence[str], flags: Sequence[Flag]) -> Iterator[Edit]:
    """Flags in place of all options of their kind. Words that a shell would split are quoted."""
    wanted = {}
    for item in flags:
        words = (f'"{text}"' if re.search(r"[|()*]", text) else text for text in item.values)
        wanted[item.name] = " ".join(words)
    yield from (Edit(name, wanted.get(name)) for name in options)


def _state(option: Option, value: object) -> Edit:
    text = option.text(value)
    return Edit(option.key, None if text == GONE else text)


def _technique_flags(before: Setup, after: Setup) -> Iterator[Edit]:
    """Flags of techniques that are new; the profile has them."""
    job = after.request.resolve()
    for name in sorted(set(_variations(after)) - set(_variations(before))):
        technique = _technique(name)
        for one in from_text(flags_for(job, technique)) if technique else ():
            yield Edit(one.name, " ".join(one.values))


def _technique(name: str) -> Technique | None:
    return load_framework("megatron-core").technique(name.removeprefix("no-"))


def _switches(options: Options, before: Setup, after: Setup) -> Iterator[Edit]:
    """Variations of the profile that came or went."""
    old, new = set(_variations(before)), set(_variations(after))
    for name in sorted(old ^ new):
        if options is MEGATRON and _technique(name):
            continue
        if name not in options:
            raise NotInFileError(f"the file has no switch for {name}")
        yield _state(options[name], name in new)


def _bridge(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:
    """The same as overrides; stages and chunks have fields of their own."""
    from planner.launch.read.megatron_bridge import as_overrides

    every = list(_megatron(found, before, after))
    for as_override in as_overrides([edit for edit in every if edit.key not in _LAYOUT_OPTIONS]):
        if as_override.value != "null" or found.setting(as_override.key) is not None:
            yield as_override
    if any(edit.key in _LAYOUT_OPTIONS for edit in every):
        yield from _bridge_layout(found, after)


def _bridge_layout(found: Found, after: Setup) -> Iterator[Edit]:
    vpp, blocks = after.degrees.vpp, "model.pipeline_model_parallel_layout"
    yield Edit("model.virtual_pipeline_model_parallel_size", str(vpp) if vpp > 1 else "null")
    layout = {item.name: item.values for item in _layout(after)}
    text = layout.get(MEGATRON_LAYOUT["blocks"].key)
    if text is not None or found.setting(blocks) is not None:
        yield Edit(blocks, text[0] if text else "null")


# --- torchtitan -----------------------------------------------------------------------------------


def _torchtitan(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:
    changes, degrees = _changed(before, after), after.degrees
    for name in ("tp", "pp", "cp", "ep", "gbs"):
        if name in changes:
            yield Edit(TORCHTITAN[name].key, str(changes[name]))
    yield from _torchtitan_batch(found, after, changes)
    yield from _torchtitan_sharding(found, before, degrees, changes)
    if {"pp", "vpp"} & changes.keys():
        yield from _torchtitan_stages(after)
    if before.recompute != after.recompute:
        yield from _torchtitan_recompute(found, after)
    newer = {"async-tp": ASYNC_TP_0_3} if found.format == "torchtitan-0.3" else {}
    yield from _switches({**TORCHTITAN, **newer}, before, after)


def _torchtitan_batch(found: Found, after: Setup, changes: dict[str, int]) -> Iterator[Edit]:
    """The local batch is a micro-batch, or all of a pipeline's micro-batches."""
    degrees = after.degrees
    if not {"mbs", "grad_acc", "dp", "pp"} & changes.keys():
        return
    local = degrees.mbs * (degrees.grad_acc if degrees.pp > 1 else 1)
    yield Edit(TORCHTITAN["mbs"].key, str(local))
    microbatch = TORCHTITAN["microbatch"].key
    if degrees.pp > 1 and (degrees.mbs > 1 or found.setting(microbatch)):
        yield Edit(microbatch, str(degrees.mbs))
    yield Edit(TORCHTITAN["gbs"].key, str(degrees.gbs))


def _torchtitan_sharding(
    found: Found, before: Setup, degrees: Degrees, changes: dict[str, int]
) -> Iterator[Edit]:
    """Replicas and shards of data parallelism, and when weights are freed."""
    if "dp" in changes or "shard" in changes:
        if degrees.shard or before.degrees.shard:
            raise NotInFileError("replicas and shards have to be chosen again")
        shard = TORCHTITAN["shard"].key
        stated = found.setting(shard)
        if stated is not None and stated.value != -1:
            yield Edit(shard, str(degrees.dp))
    if "zero" in changes and (degrees.zero < 2 or before.degrees.zero < 2):
        raise NotInFileError("sharding is on or off by the degrees")
    if {"zero", "pp"} & changes.keys() and degrees.zero >= 2:
        yield Edit(TORCHTITAN["zero"].key, TORCHTITAN["zero"].text(degrees.zero))


def _torchtitan_stages(after: Setup) -> Iterator[Edit]:
    """Schedule and layers of a stage."""
    degrees, layers = after.degrees, after.request.find_model().spec.layers
    if degrees.pp == 1:
        return
    usual = "Interleaved1F1B" if degrees.vpp > 1 else "1F1B"
    if after.request.schedule is None:
        yield Edit(TORCHTITAN["schedule"].key, usual)
    most = -(-(layers + 2) // (degrees.pp * degrees.vpp))
    yield Edit(TORCHTITAN["layers"].key, str(most))


def _torchtitan_recompute(found: Found, after: Setup) -> Iterator[Edit]:
    if found.format == "torchtitan-0.3":
        raise NotInFileError("activation_checkpoint takes another class: FullAC, SelectiveAC")
    mode = _mode(after)
    key, option = TORCHTITAN["recompute"].key, TORCHTITAN["recompute-of"].key
    if mode.name in ("none", "full"):
        yield Edit(key, mode.name)
        return
    yield Edit(key, "selective")
    yield Edit(option, f'"{mode.every}"' if mode.every > 1 else "op")


# --- DeepSpeed, accelerate, nanotron --------------------------------------------------------------


def _deepspeed(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:
    changes, degrees = _changed(before, after), after.degrees
    _refuse_beyond(changes, {"mbs", "grad_acc", "gbs", "zero", "dp", "tp"}, before, after)
    if {"mbs", "grad_acc", "gbs", "dp"} & changes.keys():
        yield Edit(DEEPSPEED["mbs"].key, str(degrees.mbs))
        yield Edit(DEEPSPEED["grad_acc"].key, str(degrees.grad_acc))
        if found.setting(DEEPSPEED["gbs"].key) is not None:
            yield Edit(DEEPSPEED["gbs"].key, str(degrees.gbs))
    for name in ("zero", "tp"):
        if name in changes:
            yield Edit(DEEPSPEED[name].key, str(changes[name]))


def _accelerate(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:  # noqa: ARG001
    changes = _changed(before, after)
    recompute, zero = ACCELERATE["recompute"], ACCELERATE["zero"]
    if before.recompute != after.recompute and after.recompute in recompute.written:
        yield Edit(recompute.key, recompute.text(after.recompute))
    _refuse_beyond(changes, {"zero"}, before, after, recompute=True)
    if "zero" in changes:
        if min(after.degrees.zero, before.degrees.zero) < 2:
            raise NotInFileError("sharding is chosen by distributed_type")
        yield Edit(zero.key, zero.text(after.degrees.zero))


def _nanotron(found: Found, before: Setup, after: Setup) -> Iterator[Edit]:  # noqa: ARG001
    changes = _changed(before, after)
    for name, value in changes.items():
        if name in NANOTRON:
            yield Edit(NANOTRON[name].key, str(value))
    if before.recompute != after.recompute:
        recompute = NANOTRON["recompute"]
        yield Edit(recompute.key, recompute.text(after.recompute))
    yield from _switches(NANOTRON, before, after)


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
