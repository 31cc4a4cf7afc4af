"""What a measured row says of a stack in plain torch: eager or compiled blocks, its loss, float8.

As `planner.evidence.runs.variants`, which puts these rules after the general ones.
"""

from __future__ import annotations

from planner.evidence.runs.rows import MeasuredRow
from planner.evidence.runs.variant import Tables, Variant, says, technique_tables
from planner.job.frameworks import load_framework


def _logits(saved: float, peak: float, forward: float) -> dict[str, float]:
    """Bytes a logit that head and loss keep, that they hold at the peak of backward, and beyond
    those kept at the peak of forward."""
    return {
        "logits_saved_bytes": saved,
        "logits_peak_bytes": peak,
        "logits_forward_bytes": forward,
    }


# Eager torch blocks: an unfused RMSNorm keeps an fp32 input and the normalised tensor, SwiGLU the
# gate's activation beside gate and up.
_EAGER_BLOCKS: Tables = {
    "saved": {"norm_input_bytes": 4.0, "norm_extra_bytes": 2.0, "gated_activation_tensors": 3.0}
}
# Cross-entropy on fp32 logits in torch: the log-softmax is kept in fp32, and at the peak the
# 16-bit logits, their fp32 copy, the log-softmax and its gradient live at once.
_PLAIN_LOSS: Tables = {"saved": _logits(6.0, 12.0, 4.0)}


# Logits are read twice in 16 bits and the gradient written, as Transformer Engine does it.
_ONE_PASS = {"loss_traffic": load_framework("megatron-bridge").kernels.loss_traffic}
# Torch's loss on whole logits unless a row says otherwise.
_TORCH = ("hf-transformers", "hf-fsdp2", "fsdp1", "deepspeed", "generic-3d", "torch-3d")
_TORCHTITAN = ("torchtitan", "torchtitan-2024")


def _is_eager(row: MeasuredRow) -> bool:
    """torchtitan compiles nothing unless told to (`compile.enable`, off in its configurations);
    float8 and asynchronous TP are of use in compiled blocks alone (its docs/float8.md and pull
    request 429), so rows that name them compile. A stack of its kind without a name compiles unless
    it says not."""
    if row.fact("compile") or not row.fact("framework"):
        return row.says("compile", "n") and row.says("framework", "torchtitan|^$")
    compiles = row.says("overlap", r"(?<!no-)async_tp") or row.says("precision", "fp8")
    return row.says("framework", "torchtitan") and not compiles


def _updates_by_lists(row: MeasuredRow) -> bool:
    """Whether torch's AdamW makes copies of what it updates, as `torch._foreach` does."""
    by_lists = r"transformers 4\.([0-4]\d|5[0-4])"
    return row.says("optimizer", "foreach") or row.says("software", by_lists)


def _defers_reduction(row: MeasuredRow) -> bool:
    """Whether FSDP leaves gradients whole while it accumulates them."""
    named = row.says("framework", r"automodel|accelerate|paddle|\btrainer|\btrl\b|axolotl")
    return named or row.says("variant", "no_sync")


TORCH_VARIANTS = (
    # NeMo AutoModel's default (defer_fsdp_grad_sync), accelerate's and so the Trainer's
    # (sync_each_batch=False), PaddleNLP's (no_sync while it accumulates), runs that say `no_sync`.
    Variant(
        "gradients reduced once",
        ("torchtitan", "hf-fsdp2", "fsdp1", "generic-3d"),
        _defers_reduction,
        {"state": {"unreduced_gradients": True}},
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
    # As before 2025 (see torchtitan-2024.toml): the loss is compiled where the blocks are. Crusoe's
    # torchtitan runs of Llama 3.1 8B on 12 to 68 GB200 (batch 5, eager): 158.6 to 161.7 GiB
    # reserved, 160.1 to 166.3 with it, 119.5 without.
    Variant(
        "uncompiled loss",
        ("torchtitan",),
        _is_eager,
        {
            "saved": load_framework("torchtitan-2024").saved.model_dump(
                include={"logits_saved_bytes", "logits_peak_bytes", "logits_forward_bytes"}
            ),
        },
    ),
    # It checkpoints with early_stop=False, which only eager blocks follow.
    Variant("eager blocks", ("torchtitan",), _is_eager, {"recomputing": {"stops_early": False}}),
    # Collectives cut into pieces beside the products that make or use them.
    Variant(
        "asynchronous tensor parallelism",
        _TORCHTITAN,
        says("overlap", r"(?<!no-)\basync_tp\b"),
        technique_tables("async-tp", "torchtitan"),
    ),
    # Blocks as torchtitan's: compiled, or of kernels that somebody fused by hand (flash-attention's
    # fused_dense and dropout_add_ln, Fast-LLM's in Triton).
    Variant(
        "compiled blocks",
        (*_TORCH[:4], "torchtune"),
        lambda row: row.says("compile", "y") or row.says("kernel", "fused blocks"),
        {
            "saved": {"gated_activation_tensors": 2.0},
            "kernels": {"memory_traffic": 2.0, "norm_traffic": 1.0},
        },
    ),
    # AdamW of list kernels: the Trainer's choice (adamw_torch) until it took torch 2.8's fused one.
    Variant(
        "foreach optimizer",
        _TORCH[:3],
        _updates_by_lists,
        {"optimizer": {"kernels": ("foreach", "fused", "forloop")}},
    ),
    # Weights without an fp32 copy; gradients and AdamW's moments follow them.
    Variant(
        "bf16 weights alone",
        (),
        says("state_precision", "^bf16"),
        {
            "state": {
                "gradient_bytes": 2.0,
                "master_bytes": 0.0,
                "optimizer_state_element_bytes": 2.0,
                "optimizer_temporary_bytes": 2.0,
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
    Variant("eager blocks", ("torchtune",), says("compile", "n"), _EAGER_BLOCKS),
    # Without the linear of `zero.Init` (mem_efficient_linear) autograd holds the gathered weights
    # of a forward that is not run again (deepspeed/runtime/zero/linear.py).
    Variant(
        "gathered weights held",
        ("deepspeed",),
        lambda row: row.says("variant", "plain linear") and row.says("recompute", "^none"),
        {"state": {"live_parameters": 1e15}},
    ),
    Variant(
        "plain loss",
        ("torchtune", "fsdp1", "torch-3d", "generic-3d"),
        says("loss", "plain"),
        _PLAIN_LOSS,
    ),
    Variant(
        "logits gathered over tensor parallelism",
        ("torchtitan", "generic-3d"),
        says("loss", "gathered"),
        {"saved": {"logits_sharded": False}},
    ),
    Variant(
        "whole embedding",
        (),
        says("variant", "whole embedding"),
        {"saved": {"embedding_sharded": False}},
    ),
    # Liger's fused linear cross-entropy, or Apple's: logits exist by chunks of tokens, and head and
    # loss leave gradients alone (Hsu et al. 2024, arXiv 2410.10989, section 3.2: as many tokens
    # at a time as make logits as large as the hidden states).
    Variant(
        "fused linear cross-entropy",
        _TORCH,
        says("loss", "liger|linear|cut"),
        {
            "saved": _logits(0.0, 0.5, 0.5),
            "kernels": _ONE_PASS,
        },
    ),
    # In one kernel that leaves the gradient where the logits were (apex, flash-attention, Liger).
    Variant(
        "fused cross-entropy",
        _TORCH,
        says("loss", "^fused(?!.*linear)"),
        {
            "saved": _logits(2.0, 4.0, 0.0),
            "kernels": _ONE_PASS,
        },
    ),
    # Hugging Face models cast logits to fp32 before any loss (ForCausalLMLoss): the kernel's
    # gradient lies in their place, 16-bit logits and gradient beside it. 24 bytes a logit.
    Variant(
        "fused cross-entropy of fp32 logits",
        _TORCH[:3],
        lambda row: (
            row.says("loss", "^fused(?!.*linear)") and row.says("framework", "transformers|trainer")
        ),
        {
            "saved": _logits(4.0, 8.0, 2.0),
            "kernels": {"loss_traffic": 24.0 / 22.0},
        },
    ),
    # A chunk of tokens at a time is cast to fp32; its log-softmax is kept.
    Variant(
        "chunked loss",
        _TORCH,
        says("loss", "^chunked"),
        {"saved": _logits(6.0, 8.0, 1.0)},
    ),
)
