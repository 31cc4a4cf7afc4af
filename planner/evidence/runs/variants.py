"""What a measured row says of its software beyond the framework's name, as a change of profile.

A rule here reads what the source states (compiled or not, which loss, which gradient type) and
turns it into the mechanism; nothing here depends on a model, a size or a measured figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.evidence.runs.functional_tests import (
    FILLED_MEMORY,
    SLOW_STORAGE,
    fills_memory,
    reads_slowly,
)
from planner.evidence.runs.rows import MeasuredRow
from planner.evidence.runs.wording import (
    before_torchtune_step,
    described,
    nvl72_recipe_since,
    of_early_2021,
    says,
    shards_with_fsdp,
    software,
    torchtitan_eager,
    torchtitan_split_loss,
    torchtune_steps,
)
from planner.job.frameworks import FrameworkProfile, load_framework

Tables = dict[str, Mapping[str, Any]]


# Profiles of their own that such a rule puts in place of a framework's usual one.
_REPLACED = (
    ("megatron-core", says(r"no tp comm overlap"), "megatron-core-no-overlap"),
    *((base, shards_with_fsdp, "megatron-fsdp") for base in ("megatron-core", "megatron-bridge")),
    *(
        ("llm-foundry", software(version), f"llm-foundry-{version}")
        for version in ("2023-02", "2023-04")
    ),
)


def replaced_profile(name: str, row: MeasuredRow) -> str:
    """Name of the profile that the row runs under, where `name` is its framework's."""
    found = (own for base, applies, own in _REPLACED if name == base and applies(row))
    return next(found, name)


# Eager torch blocks: an unfused RMSNorm keeps an fp32 input and the normalised tensor, SwiGLU the
# gate's activation beside gate and up.
_EAGER_BLOCKS: Tables = {
    "saved": {"norm_input_bytes": 4.0, "norm_extra_bytes": 2.0, "gated_activation_tensors": 3.0}
}
# Cross-entropy on fp32 logits in torch: the log-softmax is kept in fp32, and at the peak the
# 16-bit logits, their fp32 copy, the log-softmax and its gradient live at once.
_PLAIN_LOSS: Tables = {
    "saved": {"logits_saved_bytes": 6.0, "logits_peak_bytes": 12.0, "logits_forward_bytes": 4.0}
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A rule: under `profiles` (all if empty), rows for which `applies` holds change `tables`."""

    name: str
    profiles: tuple[str, ...]
    applies: Callable[[MeasuredRow], bool]
    tables: Tables


_NO_COMPILE = before_torchtune_step("baseline;", "+packed;")
_NO_CHUNKS = before_torchtune_step("baseline;", "+packed;", "+compile;")
_OPTIMIZER_IN_BACKWARD = says(r"optimizer_in_bwd|\+opt_in_bwd|\+act offload|\+8bit")


# Dispatchers that send a token once a rank and write it where its expert reads it.
_FUSED_DISPATCH: Tables = {"kernels": {"dispatch_passes": 1.0, "dispatch_deduplicates": True}}

_VARIANTS = (
    # Userbuffers.
    Variant(
        "TP overlap",
        ("megatron-core",),
        # MegaScale: "uses parallel transformer block + ... + comm overlap", "PTB + SWA + overlap".
        says(r"\btp-comm-overlap\b|\+ (comm )?overlap\b"),
        {"overlap": {"tensor": 0.8}},
    ),
    # One graph a step, or one a layer: the CPU no longer issues kernels one by one.
    Variant("CUDA graphs", (), says(r"\bcuda_graph\b"), {"kernels": {"issue_s": 0.0}}),
    Variant("fused dispatch", (), says(r"\b(hybridep|deepep)\b"), _FUSED_DISPATCH),
    # NeMo AutoModel's FakeBalancedGate: token i goes to experts k·i to k·i + k - 1, modulo E.
    Variant(
        "balanced gate",
        (),
        says(r"balanced fake gate"),
        {"kernels": {"neighbouring_experts": True}},
    ),
    # scripts/performance of Megatron-Bridge: cuda_graphs (0.1), cuda_graph_impl (later) on NVL72.
    Variant(
        "CUDA graphs on NVL72",
        ("megatron-bridge",),
        nvl72_recipe_since("25.09"),
        {"kernels": {"issue_s": 0.0}},
    ),
    # Megatron-Bridge's changelog, 0.2.0 (25.11): "DeepSeek V3 benchmarks on GB200 and GB300 systems
    # now use HybridEP".
    Variant(
        "HybridEP for DeepSeek-V3 on NVL72",
        ("megatron-bridge", "megatron-fsdp"),
        lambda row: (
            "deepseek-v3" in (row.text("model") or "").lower() and nvl72_recipe_since("25.11")(row)
        ),
        _FUSED_DISPATCH,
    ),
    # All rows of the 26.06 tables that train mixtures on NVL72 state both.
    Variant(
        "HybridEP and exchange overlapped on NVL72",
        ("megatron-bridge",),
        nvl72_recipe_since("26.06"),
        {**_FUSED_DISPATCH, "overlap": {"expert": 0.9}},
    ),
    # The sweep's job script: "do not remove or the training will hang", CUDA_LAUNCH_BLOCKING=1
    # (bigscience-workshop/bigscience, train/tr11-176B-ml).
    Variant(
        "blocking launches",
        ("megatron-deepspeed",),
        says(r"jean-?zay a100"),
        {"kernels": {"blocking_launches": True}},
    ),
    # Megatron-LM with --bf16 accumulates and reduces gradients in fp32 (arguments.py, since 2.3).
    Variant(
        "fp32 gradients",
        ("megatron-lm-2022",),
        lambda row: row.text("precision") == "bf16",
        {"kernels": {"gradient_communication_bytes": 4.0}},
    ),
    # Until October 2021 column-parallel linears waited for the all-reduce of their input's gradient
    # (megatron/mpu/layers.py), and until 2022 fp16 gradients of micro-batches were added by kernels
    # of their own, two read and one written (megatron/model/distributed.py; arguments.py: fusion
    # "is supported only with fp32 gradient accumulation").
    Variant(
        "before asynchronous all-reduces",
        ("megatron-lm-2022",),
        of_early_2021,
        {
            "overlap": {"tensor_backward": 0.0},
            "kernels": {"accumulation_traffic_bytes": 6.0},
        },
    ),
    Variant(
        "whole activations between stages",
        ("megatron-lm-2022",),
        says(r"pre-april-2021"),
        {"kernels": {"pipeline_scatters": False}},
    ),
    # The exchange of one micro-batch runs beside the compute of another.
    Variant(
        "exchange overlapped",
        (),
        says(r"\bmoe_a2a_overlap\b"),
        {"overlap": {"expert": 0.9}},
    ),
    Variant(
        "fused norms",
        ("torch-3d",),
        lambda row: "RMS kernel" in (row.text("kernel") or ""),
        {"saved": {"norm_input_bytes": 2.0, "norm_extra_bytes": 0.0}},
    ),
    # Megatron's jit-fused cross-entropy makes its fp32 tensors anew instead of in place.
    Variant(
        "fused cross-entropy",
        ("megatron-core", "megatron-bridge"),
        says(r"cross-entropy-loss-fusion=true"),
        {"saved": {"logits_peak_bytes": 10.0}},
    ),
    # Transformer Engine's, in one pass over the logits, which NeMo and Megatron-Bridge run too.
    Variant(
        "Transformer Engine's cross-entropy",
        ("megatron-core",),
        says(r"cross-entropy-fusion-impl[= ]te\b"),
        {"kernels": {"loss_traffic": load_framework("megatron-bridge").kernels.loss_traffic}},
    ),
    # `--deterministic-mode` needs CUBLAS_WORKSPACE_CONFIG=:4096:8, 32 MiB for each of two handles.
    Variant(
        "deterministic",
        ("megatron-core",),
        says(r"deterministic-mode=true"),
        {"outside": {"workspace_bytes": 9e7}},
    ),
    Variant(
        "deterministic, memory filled",
        ("megatron-core",),
        fills_memory,
        {"kernels": FILLED_MEMORY},
    ),
    Variant(
        "sequential experts",
        ("megatron-core", "megatron-fsdp"),
        lambda row: "grouped_gemm=n" in (row.text("moe") or ""),
        {"kernels": {"sequential_experts": True}},
    ),
    Variant(
        "slow storage",
        ("megatron-core",),
        reads_slowly,
        {"outside": SLOW_STORAGE},
    ),
    Variant(
        "bf16 gradients",
        ("megatron-core",),
        says(r"grad-reduce-in-bf16=true"),
        {"state": {"gradient_bytes": 2.0}},
    ),
    Variant(
        "eager blocks",
        ("torchtitan", "torchtitan-2024"),
        torchtitan_eager,
        {
            "saved": {**_EAGER_BLOCKS["saved"], "policy_keeps_unread": True},
            # Norms move 36 bytes an element (see `Kernels.norm_traffic`); 4 times 4 are counted.
            "kernels": {"memory_traffic": 4.0, "norm_traffic": 2.25},
        },
    ),
    # The loss over logits that tensor parallelism splits was compiled from 2025 on, and then only
    # with the blocks. Uncompiled (torch/distributed/tensor/parallel/loss.py), 16-bit logits, their
    # fp32 copy, that less its maximum and the exponential of it live at once.
    Variant(
        "loss over split logits",
        ("torchtitan", "torchtitan-2024"),
        torchtitan_split_loss,
        {"saved": {"logits_saved_bytes": 6.0, "logits_peak_bytes": 14.0}},
    ),
    # Collectives cut into pieces beside the products that make or use them.
    Variant(
        "asynchronous tensor parallelism",
        ("torchtitan", "torchtitan-2024"),
        says(r"\basync_?tp\b"),
        {"overlap": {"tensor": 0.5, "tensor_backward": 0.5}},
    ),
    # XTuner trains Hugging Face's models as they are.
    Variant(
        "eager blocks",
        ("deepspeed",),
        lambda row: "xtuner" in (row.text("framework") or "").lower(),
        {
            "saved": _EAGER_BLOCKS["saved"],
            "kernels": {"memory_traffic": 4.0, "norm_traffic": 2.25},
        },
    ),
    # fms-fsdp's later rows; blocks as torchtitan's.
    Variant(
        "compiled blocks",
        ("fsdp1",),
        says(r"(?<!no )(?<!before )torch\.compile"),
        {
            "saved": {"gated_activation_tensors": 2.0},
            "kernels": {"memory_traffic": 2.0, "norm_traffic": 1.0},
        },
    ),
    # NeMo AutoModel's benchmarks train bf16 weights without an fp32 copy; gradients and AdamW's
    # moments follow them.
    Variant(
        "bf16 weights alone",
        ("torchtitan",),
        says(r"\bbf16 params\b"),
        {
            "state": {
                "gradient_bytes": 2.0,
                "master_bytes": 0.0,
                "optimizer_state_element_bytes": 2.0,
                "zero3_keeps_weight_shard": True,
            }
        },
    ),
    # torchao's recipe with a scale for each row: each operand is scaled along its rows for one
    # product and along its columns for another, and the second kernel reads against the grain.
    # 16 bytes an element over the tensorwise recipe: the difference of the two without
    # asynchronous TP on Llama 3.1 8B at TP 8; 70B at TP 8 and 8B under FSDP2 ask for the same.
    Variant(
        "rowwise float8",
        ("torchtitan", "torchtitan-2024"),
        says(r"float8 rowwise|scaling=rowwise(?!_with_gw_hp)"),
        {"kernels": {"cast_traffic_bytes": 20.0, "quantised_gathers": False}},
    ),
    Variant(
        "float8 parameter gathers",
        ("torchtitan", "torchtitan-2024"),
        says(r"\b(float8|f8) all-gather"),
        {"kernels": {"parameter_communication_bytes": 1.0}},
    ),
    # Layers run in a loop, and XLA moved collectives over its boundary only with the pipelining
    # flags that JAX-Toolbox's guide brought in April 2024 (pull requests 674 and 708; not among
    # those of 345, October 2023). Within an iteration the gather of the first weights has nothing
    # to hide behind, nor has the reduction of their gradients: query, key and value, a quarter.
    Variant(
        "collectives within an iteration",
        ("jax-xla",),
        lambda row: re.search(r"\bpax\b.*\bv2023", row.text("source_ref") or "") is not None,
        {"overlap": {"fsdp_prefetch": 0.75}},
    ),
    Variant("eager blocks", ("torchtune",), _NO_COMPILE, _EAGER_BLOCKS),
    Variant("plain loss", ("torchtune",), _NO_CHUNKS, _PLAIN_LOSS),
    # The optimizer steps as soon as a gradient exists: one layer's gradients at a time.
    Variant(
        "optimizer in backward",
        ("torchtune",),
        _OPTIMIZER_IN_BACKWARD,
        {"state": {"gradient_bytes": 0.0, "weight_gradient_bytes": 2.0}},
    ),
    # bitsandbytes' paged states live in managed memory, outside torch's allocator.
    Variant(
        "paged optimizer",
        ("torchtune",),
        says(r"\bpaged_?adamw"),
        {"state": {"optimizer_state_element_bytes": 0.0}},
    ),
)


def varied_profile(
    name: str, row: MeasuredRow, sequence_parallel: str | None, precision: str
) -> FrameworkProfile:
    """The profile as the row states it: its variants, sequence parallelism (`y`, `n`, or not at
    all), and a precision it did train in."""
    applied = tuple(
        index
        for index, own in enumerate(_VARIANTS)
        if (not own.profiles or name in own.profiles) and own.applies(row)
    )
    return _profile(name, applied, sequence_parallel, precision)


@cache
def _profile(
    name: str, applied: tuple[int, ...], sequence_parallel: str | None, precision: str
) -> FrameworkProfile:
    """One object per distinct variant, so that rows which share it are costed together."""
    profile = load_framework(name)
    for index in applied:
        profile = _changed(profile, _VARIANTS[index])
    changes: dict[str, object] = {}
    if sequence_parallel is not None:
        value = "with-tp" if sequence_parallel == "y" else "never"
        changes["parallelism"] = profile.parallelism.model_copy(update={"sequence_parallel": value})
    if precision not in profile.precisions:
        changes["precisions"] = (*profile.precisions, precision)
    return profile.model_copy(update=changes)


def _changed(profile: FrameworkProfile, variant: Variant) -> FrameworkProfile:
    tables: dict[str, object] = {
        table: getattr(profile, table).model_copy(update=dict(values))
        for table, values in variant.tables.items()
    }
    if variant.name == "fused norms":
        # Their traffic is that of one fused pass.
        norm_traffic = 1.0 / profile.kernels.memory_traffic
        tables["kernels"] = profile.kernels.model_copy(update={"norm_traffic": norm_traffic})
    return profile.model_copy(update=tables)


def memory_gap(row: MeasuredRow) -> str | None:
    """Why the row's memory is not predicted: it moves tensors to the host; None otherwise."""
    text = described(row)
    if re.search(r"cpu[_ -]?offload", text):
        return "tensors offloaded to the host are not modelled"
    if "unpacked" in text:
        return "padded sequences of unstated length"
    return None


def offloaded_modules(row: MeasuredRow) -> tuple[str, ...]:
    """Modules whose activations the row keeps on the host, as `planner.predict.ops.offload` names
    them."""
    text = described(row)
    if torchtune_steps(row) in ("+act", "+8bit") and row.text("recompute") == "full":
        return ("checkpoints",)
    match = re.search(r"offload-modules=\[([a-z_0-9 ]+)\]", text)
    used = "fine-grained-activation-offloading=true" in text
    return tuple(match[1].split()) if match and used else ()


def states_dropout(row: MeasuredRow) -> bool | None:
    """Whether dropout is on, where the row says so."""
    match = re.search(r"dropout attn=[\d.]+ hidden=([\d.]+)", described(row))
    return None if match is None else float(match[1]) > 0.0


def optimizer_name(row: MeasuredRow) -> str:
    """Optimizer, AdamW with fp32 moments unless the row says otherwise."""
    return "adamw-8bit" if re.search(r"8-?bit adamw|\badamw8bit", described(row)) else "adamw"


def tables_of(name: str, profile: str) -> Tables:
    """What a variant changes in a profile's tables; nothing if it does not apply there."""
    return next(
        (
            own.tables
            for own in _VARIANTS
            if own.name == name and (not own.profiles or profile in own.profiles)
        ),
        {},
    )
