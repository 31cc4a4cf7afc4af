"""What a measured row says of its software beyond the framework's name, as a change of profile.

A rule here reads a column of facts (compiled or not, which loss, which gradient type) and turns it
into the mechanism; nothing here depends on who measured, on a size or on a measured figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.evidence.runs.rows import MeasuredRow
from planner.job.frameworks import FrameworkProfile, load_framework
from planner.job.frameworks.techniques import technique_of
from planner.predict.uncertainty.families import UNFAMILIAR

Tables = dict[str, Mapping[str, Any]]


Condition = Callable[[MeasuredRow], bool]


def says(column: str, pattern: str) -> Condition:
    """Rows whose column has words that match."""
    return lambda row: row.says(column, pattern)


def _shards_with_fsdp(row: MeasuredRow) -> bool:
    """Rows that say FSDP of how they shard, or Megatron's FSDP of their framework."""
    return row.says("framework", r"megatron[ -](core )?fsdp") or row.says("zero", "fsdp")


# Profiles of their own that a fact puts in place of a framework's usual one.
_REPLACED = (
    ("megatron-core", says("overlap", r"\bno-tp\b"), "megatron-core-no-overlap"),
    *((base, _shards_with_fsdp, "megatron-fsdp") for base in ("megatron-core", "megatron-bridge")),
    *(
        ("llm-foundry", says("software", f"^{version}"), f"llm-foundry-{version}")
        for version in ("2023-02", "2023-04")
    ),
)


def replaced_profile(name: str, row: MeasuredRow) -> str:
    """Name of the profile that the row runs under, where `name` is its framework's."""
    found = (profile for base, applies, profile in _REPLACED if name == base and applies(row))
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
    applies: Condition
    tables: Tables


def _technique(name: str, profile: str = "megatron-core") -> Tables:
    """What a technique of a framework changes (`planner.job.frameworks.techniques`)."""
    technique = technique_of(load_framework(profile), name)
    if technique is None:
        raise KeyError(name)
    return dict(technique.changes(used=True))


_FUSED_DISPATCH = _technique("fused-dispatch")

# Megatron's deterministic mode filled every tensor that was allocated until pull request 7093
# (2026-09; torch.utils.deterministic.fill_uninitialized_memory): a further kernel for each, and
# about 15 % of a step of a large model (pull request 7093, issue 6253). The CPU's time is fitted
# on 18 tests on A100, which take 1.4 times as long (median; 1.04 to 1.6, two of them 2.9) as with
# libraries that do not fill. Not fitted on: pull request 7217 ran five tests on H100 again after
# 7093, in 36 to 63 % less time. The traffic: elementwise kernels that read and write as much have
# it written once more. Megatron's local layers, which allocate less, take no longer.
_FILLED_MEMORY: Tables = {"kernels": {"issue_s": 2.4e-4, "memory_traffic": 2.25}}

# A runner of one node of GB200 whose loaders wait for storage: steps of one run differ by a factor
# of 8 (0.15 to 1.25 s; two nodes take 0.067 s, every step within 1 %), and the first after a
# checkpoint, during which the loaders read ahead, are short. Fitted on the 12 pipelines of one
# data-parallel rank without experts; not fitted on, the other 22 err by 20 %.
_SLOW_STORAGE: Tables = {"outside": {"sample_load_s": 0.055}}

# Torch's loss on whole logits unless a row says otherwise.
_TORCH = ("hf-transformers", "hf-fsdp2", "fsdp1", "deepspeed", "generic-3d", "torch-3d")
_TORCHTITAN = ("torchtitan", "torchtitan-2024")
_BRIDGE = "megatron-bridge"


def _is_eager(row: MeasuredRow) -> bool:
    """torchtitan compiles nothing unless told to (`compile.enable`, off in its configurations);
    float8 and asynchronous TP are of use in compiled blocks alone (its docs/float8.md and pull
    request 429), so rows that name them compile."""
    if not row.says("framework", "torchtitan") or row.says("compile", "y"):
        return False
    compiles = row.says("overlap", r"(?<!no-)async_tp") or row.says("precision", "fp8")
    return row.says("compile", "n") or not compiles


def _splits_loss(row: MeasuredRow) -> bool:
    """torchtitan splits the logits and runs the loss on them uncompiled."""
    return (row.integer("tp") or 1) > 1 and (row.says("framework", "fsdp2") or _is_eager(row))


def _recipe_on_nvl72(column: str) -> Condition:
    """Megatron-Bridge's mixtures on NVL72 that leave a setting of their recipe unsaid, as its
    recipes have it since 26.06: all rows of those tables that state it have it."""

    def applies(row: MeasuredRow) -> bool:
        if row.fact(column) or not (row.text("moe") and row.says("gpu", r"^gb[23]00")):
            return False
        released = re.search(r"\b(\d\d\.\d\d)", row.fact("software"))
        return released is None or released[1] >= "26.06"

    return applies


def _captures(row: MeasuredRow) -> bool:
    """CUDA graphs hold what the CPU would issue. Whole layers of experts without capacity cannot be
    captured, only the modules that are named: their products wait for the CPU to count tokens."""
    unnamed = row.says("cuda_graphs", "^(transformer_engine|local)$") and row.text("moe")
    return row.says("cuda_graphs", "^(?!none).") and not unnamed


def _gradients(bits: str, size: float) -> Variant:
    """Gradients accumulated and reduced in one type."""
    return Variant(
        f"{bits} gradients",
        (),
        says("grad_precision", f"^{bits}"),
        {"state": {"gradient_bytes": size}, "kernels": {"gradient_communication_bytes": size}},
    )


def _exchange(name: str, pattern: str, **shares: float) -> Variant:
    """What of data parallelism's exchanges runs beside compute, as stated."""
    return Variant(name, (), says("overlap", pattern), {"overlap": shares})


_GRAPHS: Tables = {"kernels": {"issue_s": 0.0}}
_EXCHANGE_OVERLAPPED = _technique("ep-overlap")

_VARIANTS = (
    # Userbuffers.
    Variant(
        "TP overlap",
        ("megatron-core",),
        says("overlap", r"(?<![-\w])tp\b"),
        _technique("tp-overlap"),
    ),
    # What a row says of gradients and parameters, whatever its framework usually does.
    _exchange("gradients overlapped", r"(?<![-\w])(dp|grad_reduce)\b", gradient_reduction=1.0),
    _exchange("gradients exposed", r"\bno-(dp|grad_reduce)\b", gradient_reduction=0.0),
    _exchange("parameters overlapped", r"(?<![-\w])(dp|param_gather)\b", parameter_gather=1.0),
    _exchange("parameters exposed", r"\bno-(dp|param_gather)\b", parameter_gather=0.0),
    # One graph a step, or one a layer: the CPU no longer issues kernels one by one.
    Variant("CUDA graphs", (), _captures, _GRAPHS),
    # scripts/performance of Megatron-Bridge: cuda_graphs (0.1), cuda_graph_impl (later) on NVL72.
    Variant("CUDA graphs on NVL72", (_BRIDGE,), _recipe_on_nvl72("cuda_graphs"), _GRAPHS),
    Variant("fused dispatch", (), says("ep_dispatch", "hybridep|deepep"), _FUSED_DISPATCH),
    Variant("HybridEP on NVL72", (_BRIDGE,), _recipe_on_nvl72("ep_dispatch"), _FUSED_DISPATCH),
    Variant(
        "chunks in order",
        (),
        says("cp_balance", "^n"),
        {"kernels": {"context_balanced": False}},
    ),
    # The exchange of one micro-batch runs beside the compute of another.
    Variant("exchange overlapped", (), says("overlap", r"(?<![-\w])ep\b"), _EXCHANGE_OVERLAPPED),
    Variant("exchange on NVL72", (_BRIDGE,), _recipe_on_nvl72("overlap"), _EXCHANGE_OVERLAPPED),
    # NeMo AutoModel's FakeBalancedGate: token i goes to experts k·i to k·i + k - 1, modulo E.
    Variant(
        "balanced gate",
        (),
        says("routing", "neighbouring"),
        {"kernels": {"neighbouring_experts": True}},
    ),
    Variant(
        "blocking launches",
        (),
        says("host", "blocking launches"),
        {"kernels": {"blocking_launches": True}},
    ),
    Variant("slow storage", (), says("host", "slow one-node runner"), _SLOW_STORAGE),
    # Megatron-LM with --bf16 accumulates and reduces gradients in fp32 (arguments.py, since 2.3).
    Variant(
        "fp32 gradients of bf16",
        ("megatron-lm-2022",),
        lambda row: row.text("precision") == "bf16",
        {"kernels": {"gradient_communication_bytes": 4.0}},
    ),
    Variant(
        "pipelines before data parallelism",
        (),
        says("rank_order", "^tp-pp-dp"),
        _technique("pp-before-dp"),
    ),
    _gradients("fp32", 4.0),
    _gradients("(bf|fp)16", 2.0),
    # Until October 2021 column-parallel linears waited for the all-reduce of their input's gradient
    # (megatron/mpu/layers.py), and until 2022 fp16 gradients of micro-batches were added by kernels
    # of their own, two read and one written (megatron/model/distributed.py; arguments.py: fusion
    # "is supported only with fp32 gradient accumulation").
    Variant(
        "before asynchronous all-reduces",
        ("megatron-lm-2022",),
        says("software", r"\b2021-0\d"),
        {
            "overlap": {"tensor_backward": 0.0},
            "kernels": {"accumulation_traffic_bytes": 6.0},
        },
    ),
    # Scattered from April 2021 on (Narayanan et al. 2021, section 4.1).
    Variant(
        "whole activations between stages",
        ("megatron-lm-2022",),
        says("software", r"\b2021-0[1-3]"),
        {"kernels": {"pipeline_scatters": False}},
    ),
    Variant(
        "fused norms",
        ("torch-3d", "generic-3d"),
        says("kernel", "rms kernel"),
        {"saved": {"norm_input_bytes": 2.0, "norm_extra_bytes": 0.0}},
    ),
    # Megatron's jit-fused cross-entropy makes its fp32 tensors anew instead of in place.
    Variant(
        "fused cross-entropy",
        ("megatron-core", _BRIDGE),
        says("loss", "^fused"),
        {"saved": {"logits_peak_bytes": 10.0}},
    ),
    # Transformer Engine's, in one pass over the logits, which NeMo and Megatron-Bridge run too.
    Variant(
        "Transformer Engine's cross-entropy",
        ("megatron-core",),
        says("loss", "^te-fused"),
        {"kernels": {"loss_traffic": load_framework(_BRIDGE).kernels.loss_traffic}},
    ),
    # NeMo had it from 25.04 on.
    Variant(
        "Megatron's cross-entropy",
        (_BRIDGE,),
        says("software", r"^nemo (2[0-4]\.|25\.0[0-3])"),
        {"kernels": {"loss_traffic": load_framework("megatron-core").kernels.loss_traffic}},
    ),
    # `--deterministic-mode` needs CUBLAS_WORKSPACE_CONFIG=:4096:8, 32 MiB for each of two handles.
    Variant(
        "deterministic",
        ("megatron-core",),
        says("deterministic", "^y"),
        {"outside": {"workspace_bytes": 9e7}},
    ),
    Variant(
        "deterministic, memory filled",
        ("megatron-core",),
        lambda row: (
            row.says("deterministic", "fills memory") and not row.says("transformer_impl", "local")
        ),
        _FILLED_MEMORY,
    ),
    Variant(
        "sequential experts",
        ("megatron-core", "megatron-fsdp"),
        says("moe_gemm", "sequential"),
        {"kernels": {"sequential_experts": True}},
    ),
    Variant(
        "eager blocks",
        _TORCHTITAN,
        _is_eager,
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
        _TORCHTITAN,
        _splits_loss,
        {"saved": {"logits_saved_bytes": 6.0, "logits_peak_bytes": 14.0}},
    ),
    # Collectives cut into pieces beside the products that make or use them.
    Variant(
        "asynchronous tensor parallelism",
        _TORCHTITAN,
        says("overlap", r"(?<!no-)\basync_tp\b"),
        _technique("async-tp", "torchtitan"),
    ),
    # Blocks as torchtitan's.
    Variant(
        "compiled blocks",
        ("fsdp1",),
        says("compile", "y"),
        {
            "saved": {"gated_activation_tensors": 2.0},
            "kernels": {"memory_traffic": 2.0, "norm_traffic": 1.0},
        },
    ),
    # Weights without an fp32 copy; gradients and AdamW's moments follow them.
    Variant(
        "bf16 weights alone",
        ("torchtitan", "fsdp1"),
        says("state_precision", "^bf16"),
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
        _TORCHTITAN,
        says("fp8_recipe", "rowwise(?!_with_gw_hp)"),
        {"kernels": {"cast_traffic_bytes": 20.0, "quantised_gathers": False}},
    ),
    Variant(
        "float8 parameter gathers",
        _TORCHTITAN,
        says("fp8_gather", "y"),
        {"kernels": {"parameter_communication_bytes": 1.0}},
    ),
    # Layers run in a loop, and XLA moved collectives over its boundary only with the pipelining
    # flags that JAX-Toolbox's guide brought in April 2024 (pull requests 674 and 708; not among
    # those of 345, October 2023). Within an iteration the gather of the first weights has nothing
    # to hide behind, nor has the reduction of their gradients: query, key and value, a quarter.
    Variant(
        "collectives within an iteration",
        ("jax-xla",),
        says("software", r"\b2023\b"),
        {"overlap": {"fsdp_prefetch": 0.75}},
    ),
    Variant("eager blocks", ("torchtune",), says("compile", "n"), _EAGER_BLOCKS),
    Variant(
        "plain loss",
        ("torchtune", "fsdp1", "torch-3d", "generic-3d"),
        says("loss", "plain"),
        _PLAIN_LOSS,
    ),
    # Liger's fused linear cross-entropy, or Apple's: logits exist by chunks of tokens, and head and
    # loss leave gradients alone (Hsu et al. 2024, arXiv 2410.10989, section 3.2: as many tokens
    # at a time as make logits as large as the hidden states).
    Variant(
        "fused linear cross-entropy",
        _TORCH,
        says("loss", "liger|linear|cut"),
        {
            "saved": {
                "logits_saved_bytes": 0.0,
                "logits_peak_bytes": 0.5,
                "logits_forward_bytes": 0.5,
            }
        },
    ),
    # In one kernel that leaves the gradient where the logits were (apex, flash-attention, Liger).
    Variant(
        "fused cross-entropy",
        _TORCH,
        says("loss", "^fused(?!.*linear)"),
        {
            "saved": {
                "logits_saved_bytes": 2.0,
                "logits_peak_bytes": 4.0,
                "logits_forward_bytes": 0.0,
            }
        },
    ),
    # A chunk of tokens at a time is cast to fp32; its log-softmax is kept.
    Variant(
        "chunked loss",
        _TORCH,
        says("loss", "^chunked"),
        {
            "saved": {
                "logits_saved_bytes": 6.0,
                "logits_peak_bytes": 8.0,
                "logits_forward_bytes": 1.0,
            }
        },
    ),
    # The optimizer steps as soon as a gradient exists: one layer's gradients at a time.
    Variant(
        "optimizer in backward",
        ("torchtune", "fsdp1", "hf-transformers"),
        says("optimizer", "in backward"),
        {"state": {"gradient_bytes": 0.0, "weight_gradient_bytes": 2.0}},
    ),
    # bitsandbytes' paged states live in managed memory, outside torch's allocator.
    Variant(
        "paged optimizer",
        (),
        says("optimizer", "paged"),
        {"state": {"optimizer_state_element_bytes": 0.0}},
    ),
)


def varied_profile(
    name: str,
    row: MeasuredRow,
    sequence_parallel: str | None,
    precision: str,
    unfamiliar: bool = False,
) -> FrameworkProfile:
    """The profile as the row states it: its variants, sequence parallelism (`y`, `n`, or not at
    all), and a precision it did train in; `unfamiliar`: it stands for a framework without one."""
    applied = tuple(
        index
        for index, variant in enumerate(_VARIANTS)
        if (not variant.profiles or name in variant.profiles) and variant.applies(row)
    )
    mixed = row.says("state_precision", "^fp32") or row.says("precision", r"\bamp|mixed")
    hosted = optimizer_share(row) > 0.0
    return _profile(name, applied, sequence_parallel, precision, unfamiliar, mixed, hosted)


@cache
def _profile(
    name: str,
    applied: tuple[int, ...],
    sequence_parallel: str | None,
    precision: str,
    unfamiliar: bool,
    mixed: bool,
    hosted: bool,
) -> FrameworkProfile:
    """One object per distinct variant, so that rows which share it are costed together."""
    profile = load_framework(name)
    if mixed and any(mode.name == "amp" for mode in profile.modes):
        profile = profile.in_mode("amp")
    for index in applied:
        profile = _changed(profile, _VARIANTS[index])
    changes: dict[str, object] = {"family": UNFAMILIAR} if unfamiliar else {}
    if sequence_parallel is not None:
        value = "with-tp" if sequence_parallel == "y" else "never"
        changes["parallelism"] = profile.parallelism.model_copy(update={"sequence_parallel": value})
    if precision not in profile.precisions:
        changes["precisions"] = (*profile.precisions, precision)
    if hosted and profile.optimizer.offload != "share":
        changes["optimizer"] = profile.optimizer.model_copy(update={"offload": "share"})
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
    if row.says("offload", r"^parameters|layers"):
        return "parameters and single layers on the host are not modelled"
    if row.says("recompute", r"\bbut\b"):
        return "what full recomputation keeps by a policy is not modelled"
    return None


def optimizer_share(row: MeasuredRow) -> float:
    """Share of the optimizer's states and update that the row has on the host."""
    stated = re.search(r"\boptimizer(?: (\d+) ?%)?", row.fact("offload"))
    return 0.0 if stated is None else float(stated[1] or 100.0) / 100.0


def offloaded_modules(row: MeasuredRow) -> tuple[str, ...]:
    """Modules whose activations the row keeps on the host, as `planner.predict.ops.offload` names
    them."""
    offloaded = row.fact("offload")
    if offloaded == "checkpoints":
        return ("checkpoints",) if row.says("recompute", "^full") else ()
    return tuple(offloaded.removeprefix("activations:").split()) if ":" in offloaded else ()


def states_dropout(row: MeasuredRow) -> bool | None:
    """Whether dropout is on, where the row says so."""
    hidden = re.search(r"hidden ([\d.]+)", row.fact("dropout"))
    return None if hidden is None else float(hidden[1]) > 0.0


# Words of `state_precision`, and the keys of an optimizer's spelling.
_STATE_KEYS = {
    "main_grads": "grad", "main_params": "master", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq",
}  # fmt: skip


def optimizer_name(row: MeasuredRow) -> str:
    """Optimizer, AdamW unless the row says otherwise, with the types that it states by part."""
    stated = re.match(r"(?:paged )?([\w-]+)", row.fact("optimizer"))
    # The states of a paged one are counted by its variant.
    name = "adamw" if stated is None or row.says("optimizer", "paged") else stated[1]
    types = _stated_types(row) if name == "adamw" else ""
    return f"{name}:{types}" if types else name


def _stated_types(row: MeasuredRow) -> str:
    """`grad=bf16,exp_avg=bf16` of `main_grads bf16 exp_avg bf16`; both moments are of one type
    where one is named, and in 16 bits where they are `below fp32`."""
    fact = row.fact("state_precision")
    if "moments below fp32" in fact:
        return "exp_avg=bf16,exp_avg_sq=bf16"
    types = {
        _STATE_KEYS[part]: dtype
        for part, dtype in re.findall(r"([a-z_]+) ((?:bf|fp)\d+)", fact)
        if part in _STATE_KEYS and dtype != "fp32"
    }
    if "exp_avg" in types:
        types.setdefault("exp_avg_sq", types["exp_avg"])
    return ",".join(f"{key}={dtype}" for key, dtype in types.items())


def tables_of(name: str, profile: str) -> Tables:
    """What a variant changes in a profile's tables; nothing if it does not apply there."""
    return next(
        (
            variant.tables
            for variant in _VARIANTS
            if variant.name == name and (not variant.profiles or profile in variant.profiles)
        ),
        {},
    )
