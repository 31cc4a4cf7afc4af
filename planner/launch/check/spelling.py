"""A changed configuration as edits of the file that it was read from.

What a file does not hold is no edit: the edited file is read again, and then is not the changed
configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from constraints.layout_context import even_split
from constraints.rule import Layout
from planner.job.frameworks import load_framework
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
    DialectOption,
    Options,
)
from planner.launch.read.found import Edit, Found
from planner.launch.read.megatron_bridge import as_overrides
from planner.predict.evaluate import Proposal
from planner.predict.techniques import flags_for


class NotInFileError(Exception):
    """A change that the file's format does not hold; the message says where it belongs."""


def edits_for(found: Found, before: Proposal, after: Proposal) -> tuple[Edit, ...]:
    """Edits that turn the file into the changed configuration. NotInFileError if it holds none."""
    if found.format == "plan":
        raise NotInFileError("a plan file is not launched; search again: planner search")
    if found.format in _TABLES:
        return tuple(_of_table(found, before, after))
    if found.format not in ("megatron", "megatron-bridge"):
        raise NotInFileError("files of this kind are read and not written: change it by hand")
    spelled = _megatron if found.format == "megatron" else _bridge
    return tuple(spelled(found, before, after))


def _variations(proposal: Proposal) -> tuple[str, ...]:
    request = proposal.request
    return request.variations if isinstance(request, LaunchRequest) else ()


def _state(option: DialectOption, value: object) -> Edit:
    text = option.text(value)
    return Edit(option.key, None if text == GONE else text)


# --- files whose settings say one thing each ------------------------------------------------------

_TABLES: Mapping[str, Options] = {
    "torchtitan-0.2": TORCHTITAN,
    "torchtitan-0.3": {**TORCHTITAN, "async-tp": ASYNC_TP_0_3},
    "deepspeed": DEEPSPEED,
    "accelerate": ACCELERATE,
    "nanotron": NANOTRON,
}
# What is stated together: with another number of ranks each is worked out anew.
_BATCH = ("mbs", "microbatch", "grad_acc", "gbs")


def _of_table(found: Found, before: Proposal, after: Proposal) -> Iterator[Edit]:
    """The settings whose values differ."""
    options = _TABLES[found.format]
    old, new = _said(found, before), _said(found, after)
    changed = {name for name in new if new[name] != old.get(name)}
    if changed & {*_BATCH, "dp", "pp"}:
        changed |= {*_BATCH}
    if "pp" in changed and after.degrees.zero > 1:
        changed.add("zero")
    for name in options:
        if name in changed & new.keys():
            yield _state(options[name], new[name])
    for name in sorted({*_variations(before)} ^ {*_variations(after)}):
        if name in options:
            yield _state(options[name], name in _variations(after))


def _said(found: Found, proposal: Proposal) -> dict[str, Any]:
    """What a file of the format says of a configuration, by our names."""
    said = proposal.degrees.model_dump() | {
        "recompute": proposal.recompute,
        "gbs": proposal.degrees.gbs,
    }
    if found.format.startswith("torchtitan"):
        said = _titan(found, proposal)
    if found.format == "deepspeed" and found.setting(DEEPSPEED["gbs"].key) is None:
        del said["gbs"]
    return said


def _titan(found: Found, proposal: Proposal) -> dict[str, Any]:
    """torchtitan's: the local batch is a micro-batch, or all of a pipeline's micro-batches."""
    degrees, piped = proposal.degrees, proposal.degrees.pp > 1
    said: dict[str, Any] = {
        name: getattr(degrees, name) for name in ("tp", "pp", "cp", "ep", "zero")
    }
    said |= {"dp": degrees.dp, "gbs": degrees.gbs}
    said["mbs"] = degrees.mbs * (degrees.grad_acc if piped else 1)
    if piped and (degrees.mbs > 1 or found.setting(TORCHTITAN["microbatch"].key)):
        said["microbatch"] = degrees.mbs
    stated = found.setting(TORCHTITAN["shard"].key)
    if not degrees.shard and stated is not None and stated.value != -1:
        said["shard"] = degrees.dp
    if piped:
        # Embedding and head count for a layer each.
        layers = proposal.request.find_model().spec.layers + 2
        said["layers"] = -(-layers // (degrees.pp * degrees.vpp))
        if proposal.request.schedule is None:
            said["schedule"] = "interleaved" if degrees.vpp > 1 else "1f1b"
    # In 0.3 it is a class.
    if found.format == "torchtitan-0.2":
        mode = proposal.request.find_framework().recompute_mode(proposal.recompute)
        said["recompute"] = mode.name if mode.name in ("none", "full") else "selective"
        if said["recompute"] == "selective":
            said["recompute-of"] = f'"{mode.every}"' if mode.every > 1 else "op"
    return said


# --- Megatron-LM ----------------------------------------------------------------------------------

_LAYOUT_OPTIONS = tuple(option.key for option in MEGATRON_LAYOUT.values())
_RECOMPUTE_OPTIONS = tuple(option.key for option in MEGATRON_RECOMPUTE.values())


def _megatron(found: Found, before: Proposal, after: Proposal) -> Iterator[Edit]:
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
        yield _state(MEGATRON["zero"], min(degrees.zero, 1))
    if "tp" in changes and degrees.tp > 1 and before.degrees.tp == 1:
        yield _state(MEGATRON["no-sequence-parallel"], False)
    if before.recompute != after.recompute:
        mode = after.request.find_framework().recompute_mode(after.recompute)
        yield from _only(_RECOMPUTE_OPTIONS, from_text(mode.flags))
    yield from _switches(before, after)
    if before.request.attention != after.request.attention:
        yield _state(MEGATRON["attention"], after.request.attention)


def _numbers(found: Found, after: Proposal, changes: Mapping[str, Any]) -> Iterator[Edit]:
    """Changed degrees and batches, and the global batch that nothing states."""
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
    """Layers by stage, as the writer has them."""
    degrees, model = proposal.degrees, proposal.request.find_model().spec
    blocks = proposal.block_layers or even_split(model.layers, degrees.pp * degrees.vpp)
    layout = Layout(degrees.pp, degrees.vpp, blocks, mtp_standalone=proposal.mtp_standalone)
    return layout_flags(layout, model.mtp_layers)


def _only(options: Sequence[str], flags: Sequence[Flag]) -> Iterator[Edit]:
    """Flags in place of all options of their kind. Words that a shell would split are quoted."""
    wanted = {}
    for item in flags:
        words = (f'"{text}"' if re.search(r"[|()*]", text) else text for text in item.values)
        wanted[item.name] = " ".join(words)
    yield from (Edit(name, wanted.get(name)) for name in options)


def _switches(before: Proposal, after: Proposal) -> Iterator[Edit]:
    """Variations of the profile that came or went; of techniques that came the profile's flags."""
    job, (old, new) = after.request.resolve(), map(set, (_variations(before), _variations(after)))
    for name in sorted(old ^ new):
        technique = load_framework("megatron-core").technique(name.removeprefix("no-"))
        if technique is None and name in MEGATRON:
            yield _state(MEGATRON[name], name in new)
        elif technique is not None and name in new:
            for one in from_text(flags_for(job, technique)):
                yield Edit(one.name, " ".join(one.values))


def _bridge(found: Found, before: Proposal, after: Proposal) -> Iterator[Edit]:
    """The same as overrides; stages and chunks have fields of their own."""
    every = list(_megatron(found, before, after))
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
