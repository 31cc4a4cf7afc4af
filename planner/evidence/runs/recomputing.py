"""The layers that a measured run recomputes in backward: as stated, or usual for its recipe or
framework."""

from __future__ import annotations

import re

from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow, recompute_named
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.job import Job
from planner.job.quantities import stated
from planner.job.recompute import RECOMPUTED, RecomputeMode

# Checkpointed blocks that sources call "every other" or, without a number, "every n-th". IBM's 13B
# row on 128 A100 has HFU 0.59 at MFU 0.51, a third of the addition of full recompute in its 34B and
# 70B rows (0.64 and 0.67 at 0.47 and 0.50): about every second block (pytorch.org/blog,
# maximizing-training, Table 1).
_EVERY_NTH = 2

# Frameworks' default recomputation. `remat_policy=save_qkv_proj` of maxtext's launcher in
# NVIDIA/dgxc-benchmarking runs a layer again but for its query, key and value products, a tenth of
# it; Paxml keeps nothing of a layer; `activation_checkpointing` is on in the recipes for mixtures
# in examples/llm_benchmark of NVIDIA-NeMo/Automodel; LLaMA-Factory checkpoints every layer unless
# `disable_gradient_checkpointing` is set (hparams/model_args.py).
_FULL = r"maxtext|pax|automodel|llama-?factory"
# The defaults for adapters and preference training: unsloth's get_peft_model, torchtune's
# configurations of LoRA, ms-swift's arguments, TRL's since 0.19 of June 2025
# (trainer/sft_config.py); and for a quantised base, any framework that prepares it with peft
# (utils/other.py, prepare_model_for_kbit_training).
_FULL_OF_TUNED = r"unsloth|torchtune|swift"
_TRL = r"\btrl\b"
_TRL_BEFORE = r"trl 0\.(\d|1[0-8])\b|\b20(2[34]|25-0[1-5])\b"
_PREPARED = r"peft|trl|trainer|transformers|hugging ?face|axolotl"


def recomputed_share(row: MeasuredRow, mode: RecomputeMode, job: Job) -> float:
    """Share of a stage's layers to which the mode applies, if the mode itself does not say."""
    share = stated(row.number("recompute_share"), kept_products_share(row, job))
    return min(1.0, max(0.0, share)) if mode.modules and mode.every == 1 else 1.0


def kept_products_share(row: MeasuredRow, job: Job) -> float:
    """For a policy that keeps some products, as MaxText's `full(but qkv and out_proj)`: the share
    of the weights whose products still run again. Recomputing that share of the layers in full
    takes as long."""
    kept = row.fact("recompute").partition("but ")[2]
    if not kept:
        return 1.0
    model = job.model
    width_ffn = float(model.ffn)
    again = {
        "qkv": float(model.query_width + 2 * model.kv_width),
        "out_proj": float(model.attention_out_width),
        "up": width_ffn * (2.0 if model.gated else 1.0),
        "mlpwo": 0.0 if job.framework.recomputing.stops_early else width_ffn,
    }
    return 1.0 - sum(width for name, width in again.items() if name in kept) / sum(again.values())


def _usual(row: MeasuredRow) -> str:
    """The framework's usual recomputation, for a row that states none."""
    if row.says("framework", _FULL):
        return "full"
    if not row.says("tuning", "lora|dora|dpo|orpo|kto|simpo|sft"):
        return "none"
    usual = row.says("framework", _FULL_OF_TUNED) and row.says("tuning", "lora|dora")
    by_trl = row.says("framework", _TRL) and not row.says("software", _TRL_BEFORE)
    packed = row.says("base_format", "nf4|int8|8-?bit|gptq|4-?bit") or row.says("tuning", "qlora")
    prepared = packed and row.says("framework", _PREPARED)
    return "full" if usual or by_trl or prepared else "none"


def recompute_mode(row: MeasuredRow, profile: FrameworkProfile) -> RecomputeMode:
    """The row's mode from the profile, or a mode built from the modules that the row names."""
    text = recompute_named(row.text("recompute") or _usual(row))
    share = stated(row.number("recompute_share"), 1.0)
    if text.startswith("none") or share == 0.0:
        return profile.recompute_mode("none")
    if row.says("precision", "^nvfp4") and re.search(r"\bops?\b|sac", text):
        # torchtitan's policy lists torch's products, not torchao's of 4 bits, which run again
        # (distributed/activation_checkpoint.py; ao, prototype/moe_training/nvfp4_training).
        text = "full"
    if re.search(r"every (other|n-th)", text) or (text.startswith("full") and share <= 0.5):
        every = _EVERY_NTH if share == 1.0 else round(1.0 / share)
        return RecomputeMode(name=text, modules=("FULL",), every=every)
    if text.startswith("full"):
        return profile.recompute_mode("full")
    words = re.findall(r"[a-z_]+", text.replace("attn core", "core_attn"))
    modules = [str(module.part.name) for name, module in RECOMPUTED.items() if name in words]
    if modules:
        return RecomputeMode(name=text, modules=tuple(modules))
    selective = re.search(r"select|\bops?\b|sac", text) is not None
    # By `selective`, Megatron means the core of attention. If a framework has no modules to choose,
    # a row that says no more keeps products and fused attention, because recomputing core attention
    # alone would save nothing.
    by_op = selective and not profile.recomputing.modules and profile.attention == "flash"
    if "op" in text or "sac" in text or (by_op and not re.search("attn|attention", text)):
        return RecomputeMode(name=text, modules=("SELECTIVE_OP",))
    if not re.search(r"select|attn|attention", text):
        raise UnpredictableRowError(f"recompute {text!r} names nothing known")
    return RecomputeMode(name=text, modules=("CORE_ATTENTION",))
