"""Expresses a changed configuration as options of Megatron-LM and overrides of Megatron-Bridge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from constraints.rule import Layout
from planner.cost.layout import usual_split
from planner.job.frameworks.profile import load_framework
from planner.launch.check.spelling import state, variations
from planner.launch.dialects.megatron.bridge_reader import as_overrides
from planner.launch.dialects.megatron.flags import Flag, from_text, layout_flags
from planner.launch.dialects.megatron.options import MEGATRON, MEGATRON_LAYOUT, MEGATRON_RECOMPUTE
from planner.launch.read.found import Edit, Found
from planner.predict.evaluate import Proposal
from planner.predict.techniques import flags_for

_LAYOUT_OPTIONS = tuple(option.key for option in MEGATRON_LAYOUT.values())
_RECOMPUTE_OPTIONS = tuple(option.key for option in MEGATRON_RECOMPUTE.values())


def edits(found: Found, before: Proposal, after: Proposal) -> Iterator[Edit]:
    old, degrees = before.degrees.model_dump(), after.degrees
    changes = {name: value for name, value in degrees.model_dump().items() if value != old[name]}
    if after.request.gbs != before.request.gbs:
        changes["gbs"] = after.request.gbs or degrees.gbs
    yield from _numbers(found, after, changes)
    layouts = [(one.block_layers, one.mtp_standalone) for one in (before, after)]
    if {"pp", "vpp"} & changes.keys() or layouts[0] != layouts[1]:
        yield from _only(_LAYOUT_OPTIONS, _layout(after))
    if "cp" in changes and found.cp_sizes:
        inner = min(found.cp_sizes[0], degrees.cp)
        sizes = f"{inner} {degrees.cp // inner}" if degrees.cp > 1 else None
        yield Edit(MEGATRON["cp_sizes"].key, sizes)
    if "zero" in changes:
        yield state(MEGATRON["zero"], min(degrees.zero, 1))
    if "tp" in changes and degrees.tp > 1 and before.degrees.tp == 1:
        yield state(MEGATRON["no-sequence-parallel"], False)
    if before.recompute != after.recompute:
        mode = after.request.find_framework().recompute_mode(after.recompute)
        yield from _only(_RECOMPUTE_OPTIONS, from_text(mode.flags))
    yield from _switches(before, after)
    if before.request.attention != after.request.attention:
        yield state(MEGATRON["attention"], after.request.attention)


def _numbers(found: Found, after: Proposal, changes: Mapping[str, Any]) -> Iterator[Edit]:
    """Edits that state the changed degrees and batch sizes; also the global batch if no option
    states it, and expert tensor parallelism if it differs from tp."""
    for name in ("tp", "pp", "cp", "ep", "mbs", "gbs"):
        if name in changes:
            yield Edit(MEGATRON[name].key, str(changes[name]))
    said = found.setting(MEGATRON["gbs"].key) is not None or found.batch_ramp is not None
    if not said and "gbs" not in changes:
        yield Edit(MEGATRON["gbs"].key, str(after.request.gbs))
    degrees, experts = after.degrees, after.request.find_model().spec.moe
    if experts is not None and degrees.etp != degrees.tp:
        yield Edit(MEGATRON["etp"].key, str(degrees.etp))
    elif "etp" in changes:
        yield Edit(MEGATRON["etp"].key, None)


def _layout(proposal: Proposal) -> tuple[Flag, ...]:
    """The flags that place layers on stages, as the writer would write them."""
    degrees, model = proposal.degrees, proposal.request.find_model().spec
    blocks = proposal.block_layers or usual_split(model.layers, degrees.pp * degrees.vpp)
    layout = Layout(degrees.pp, degrees.vpp, blocks, mtp_standalone=proposal.mtp_standalone)
    return layout_flags(layout, model.mtp_layers)


def _only(options: Sequence[str], flags: Sequence[Flag]) -> Iterator[Edit]:
    """One edit for each of these options: set as in `flags`, or removed if it is not among them.
    Values with characters that a shell interprets are quoted."""
    wanted = {
        item.name: " ".join(f'"{one}"' if re.search(r"[|()*]", one) else one for one in item.values)
        for item in flags
    }
    yield from (Edit(name, wanted.get(name)) for name in options)


def _switches(before: Proposal, after: Proposal) -> Iterator[Edit]:
    """Edits for variations that differ between the two: switches that change, and for a technique
    that is added all of its flags."""
    job, (old, new) = after.request.resolve(), map(set, (variations(before), variations(after)))
    for name in sorted(old ^ new):
        technique = load_framework("megatron-core").technique(name.removeprefix("no-"))
        if technique is None and name in MEGATRON:
            yield state(MEGATRON[name], name in new)
        elif technique is not None and name in new:
            for one in from_text(flags_for(job, technique)):
                yield Edit(one.name, " ".join(one.values))


def bridge_edits(found: Found, before: Proposal, after: Proposal) -> Iterator[Edit]:
    """The same edits as overrides; stages and chunks have separate fields."""
    every = list(edits(found, before, after))
    for as_override in as_overrides([edit for edit in every if edit.key not in _LAYOUT_OPTIONS]):
        if as_override.value != "null" or found.setting(as_override.key) is not None:
            yield as_override
    if any(edit.key in _LAYOUT_OPTIONS for edit in every):
        yield from _bridge_layout(found, after)


def _bridge_layout(found: Found, after: Proposal) -> Iterator[Edit]:
    vpp, blocks = after.degrees.vpp, "model.pipeline_model_parallel_layout"
    yield Edit("model.virtual_pipeline_model_parallel_size", str(vpp) if vpp > 1 else "null")
    layout = {item.name: item.values for item in _layout(after)}
    text = layout.get(MEGATRON_LAYOUT["blocks"].key)
    if text is not None or found.setting(blocks) is not None:
        yield Edit(blocks, text[0] if text else "null")
