"""The default framework."""

from __future__ import annotations

from typing import Any

from planner.cli.options import build_request, given
from planner.job.frameworks.adapters import usual_framework
from planner.job.frameworks.profile import load_framework
from planner.job.pool import SeveralTypes
from planner.job.samples import BY_SAMPLE
from planner.job.tuning import Tuning, read_tuning

ON_SMALL_MACHINES = "deepspeed"
# People do not use frameworks for clusters on machines on which NVLink joins at most this many
# GPUs.
_LINKED = 2
# Options that only frameworks for clusters have.
_OF_CLUSTERS = (
    "pp", "vpp", "cp", "ep", "etp", "schedule", "use", "without", "cp_comm_type", "cp_sizes",
    "mtp_layers", "layers_per_stage", "mtp_standalone", "sharp", "activation_offload",
    "sequence_parallel", "allow_tp_across_nodes",
)  # fmt: skip


def take_usual_framework(options: dict[str, Any]) -> tuple[str, ...]:
    """Set `framework` if it is not given; returns notes about the choice.

    DeepSpeed with transformers models is the default on a single machine without NVLink between
    all GPUs, and for samples of different lengths on one node. In all other cases, and with options
    that only frameworks for clusters have, it is Megatron-Core.
    """
    if given("framework"):
        return ()
    if (tuning := read_tuning(options["train"], options["freeze"])).has_adapters:
        return _for_adapters(options, tuning)
    of_clusters = any(map(given, _OF_CLUSTERS)) or options["balance"] in BY_SAMPLE
    if of_clusters or not _has_precision(options):
        return ()
    return _for_all_weights(options)


def _for_all_weights(options: dict[str, Any]) -> tuple[str, ...]:
    """Choose DeepSpeed for machines or samples with which people usually use it; otherwise leave
    the options as they are. Returns notes on the choice."""
    tuned = options["lengths"] is not None
    if tuned and options["gpus"] is None and options["cluster"] is None:
        # All machines of a comparison use the same framework.
        options["framework"] = ON_SMALL_MACHINES
        return ()
    request = build_request({**options, "gbs": 1, "gbs_tokens": None, "batch_ramp": None})
    if isinstance(request.gpu_words, SeveralTypes):
        return ()
    cluster = request.find_cluster()
    alone = cluster.num_gpus <= cluster.gpus_per_node
    small = alone and (tuned or cluster.scale_up_domain_gpus <= _LINKED)
    if not small or cluster.gpu.vendor != "nvidia":
        return ()
    options["framework"] = ON_SMALL_MACHINES
    people = "fine-tune on a node" if tuned else f"train on a machine with {cluster.gpu.name}"
    return (
        f"Framework: {ON_SMALL_MACHINES} with transformers models, as people {people}; "
        "Megatron-Core is made for clusters (--framework).",
    )


def _for_adapters(options: dict[str, Any], tuning: Tuning) -> tuple[str, ...]:
    """Choose the framework with which people usually train such adapters. Returns notes on the
    choice."""
    request = build_request({**options, "gbs": 1, "gbs_tokens": None, "batch_ramp": None})
    known = request.gpus is not None or request.cluster is not None
    count = request.find_cluster().num_gpus if known else 0
    splits = any(given(name) and options[name] != 1 for name in ("tp", "pp", "cp", "ep"))
    name = usual_framework(tuning, count, splits=splits)
    options["framework"] = name
    return (
        f"Framework: {name}, as people train adapters there; Megatron-Core has none (--framework).",
    )


def _has_precision(options: dict[str, Any]) -> bool:
    precision = options.get("precision")
    return precision is None or precision in load_framework(ON_SMALL_MACHINES).precisions
