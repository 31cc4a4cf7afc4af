"""A plan in torchtitan's terms: mesh degrees, pipeline parts, batch, refusals, sections with the
reason for each setting, and sample data.

Read in torchtitan 0.3.0 (distributed/parallel_dims.py, pipeline_parallel.py, fsdp.py, trainer.py)
and torch 2.13 (distributed/pipelining/schedules.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from planner.job.recompute import Module
from planner.launch import contract
from planner.launch.dialects.torchtitan import ASYNC_TP_0_3, TORCHTITAN
from planner.launch.read.found import Found
from planner.launch.sentences import names_of, said_refusals, said_settings
from planner.launch.settings_text import SettingsSection
from planner.predict.evaluate import Proposal
from planner.predict.plan import Degrees


def mesh_of(degrees: Degrees) -> dict[str, Any]:
    """The data-parallel degrees, `replicate` · `shard` = dp, and whether gathered parameters are
    sharded again after forward (`reshard`, fsdp_reshard_after_forward). Parameters are sharded over
    shard · cp.

    ZeRO-0: everything is replicated; ZeRO-2: gathered weights stay until after backward; ZeRO-3:
    they are gathered again for backward. torchtitan's default is ZeRO-3 without a pipeline and
    ZeRO-2 with one.
    """
    if degrees.zero == 0:
        return {"replicate": degrees.dp, "shard": 1, "reshard": "default"}
    shard = max(1, (degrees.shard or degrees.dp * degrees.cp) // degrees.cp)
    stays = "always" if degrees.pp > 1 else "default"
    reshard = "never" if degrees.zero == 2 else stays
    return {"replicate": degrees.dp // shard, "shard": shard, "reshard": reshard}


def parts_of(launch: contract.Launch) -> list[list[str]]:
    """Module names in every pipeline stage or chunk, in pipeline order."""
    parts: list[list[str]] = []
    first = 0
    for count in launch.plan.layout.block_layers:
        parts.append([f"layers.{index}" for index in range(first, first + count)])
        first += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def plan_refusals(launch: contract.Launch) -> Iterator[contract.Refusal]:
    """Parts of a plan, except its model, that torchtitan cannot express."""
    names = names_of(launch) | {"recompute_kind": recompute_kind(launch)}
    yield from said_refusals("torchtitan", "plan_refusals", names)


def recompute_kind(launch: contract.Launch) -> str:
    """The kind of a plan's activation checkpointing: `none`, `selective`, `full`, `every` or
    `budget`."""
    mode = launch.job.framework.recompute_mode(launch.plan.recompute)
    if mode.mask == Module.NOTHING or not launch.plan.layout.recomputed:
        return "none"
    if mode.budget is not None:
        return "budget"
    if mode.every > 1:
        return "every"
    return "selective" if Module.SELECTIVE_OP in mode.mask else "full"


HALF_STATES = "fused_opt_states_bf16"
BF16_STATES = {"exp_avg": "bf16", "exp_avg_sq": "bf16"}
_SECTIONS = ("parallelism", "training", "optimizer", "compile")


def sections(launch: contract.Launch) -> tuple[SettingsSection, ...]:
    """Arguments of the configuration's parts, in the order in which the file states them."""
    mesh = mesh_of(launch.plan.degrees)
    names = names_of(launch) | {
        "half": dict(launch.job.optimizer.states) == BF16_STATES,
        "half_states": HALF_STATES,
        **mesh,
        "offloaded": contract.OFFLOADED,
        "parts": parts_of(launch),
        "replicas": f"HSDP: {mesh['replicate']} replicas of a sharded group"
        if launch.plan.degrees.zero
        else "plain data parallelism: every rank holds all parameters of its stage",
        "resharding": contract.RESHARDING[launch.plan.degrees.zero],
        "trial_steps": contract.TRIAL_STEPS,
    }
    options = {**TORCHTITAN, "async-tp": ASYNC_TP_0_3}
    return tuple(said_settings("torchtitan", title, names, options) for title in _SECTIONS)


SAMPLES = "sample_data"
_LINES, _WORDS = 64, 512


def sample_files() -> contract.Files:
    """A file of made-up texts for a trial run, sequences of numbers, that torchtitan can read
    without the internet. No two texts are alike."""
    lines = (
        json.dumps({"text": " ".join(f"{line * _WORDS + word:x}" for word in range(_WORDS))})
        for line in range(_LINES)
    )
    return {f"{SAMPLES}/samples.jsonl": "\n".join(lines) + "\n"}


def says(found: Found, proposal: Proposal) -> dict[str, Any]:
    """The settings of a configuration as torchtitan's files state them, for `--fix`.

    The local batch is a micro-batch, or all micro-batches of a pipeline together.
    """
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
        # Embedding and head count as one layer each.
        layers = proposal.request.find_model().spec.layers + 2
        said["layers"] = -(-layers // (degrees.pp * degrees.vpp))
        if proposal.request.schedule is None:
            said["schedule"] = "interleaved" if degrees.vpp > 1 else "1f1b"
    # In 0.3 the mode is a class, not a value.
    if found.format == "torchtitan-0.2":
        mode = proposal.request.find_framework().recompute_mode(proposal.recompute)
        said["recompute"] = mode.name if mode.name in ("none", "full") else "selective"
        if said["recompute"] == "selective":
            said["recompute-of"] = f'"{mode.every}"' if mode.every > 1 else "op"
    return said
