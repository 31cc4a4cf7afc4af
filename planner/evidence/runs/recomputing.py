"""What a measured row recomputes in backward: as it says, or as its recipe or framework does."""

from __future__ import annotations

import re

from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow
from planner.evidence.runs.spellings import recompute_named
from planner.job.frameworks import FrameworkProfile, RecomputeMode

# Checkpointed blocks that sources call "every other" or, without a number, "every n-th". IBM's 13B
# row on 128 A100 has HFU 0.59 at MFU 0.51, a third of what full recompute adds to its 34B and 70B
# rows (0.64 and 0.67 at 0.47 and 0.50): about every second block (pytorch.org/blog,
# maximizing-training, Table 1).
_EVERY_NTH = 2

# What the recipes behind published tables recompute where the rows do not say: patterns of the
# row's source and reference, framework, model and GPU.
_RECIPES = (
    # deepseek_v3/pretraining/launch.sh in NVIDIA/dgxc-benchmarking, `--recompute_modules`.
    (r"^dgxc.*@v25\.05", "nemo", "deepseek-v3", "h100", "mla_up_proj"),
    (r"^dgxc.*@v25\.05", "nemo", "deepseek-v3", "gb200", "core_attn"),
    # examples/megatron/configs of AMD-AGI/Primus: 72 of 80 layers.
    (r"^amd.*primus", "", "70b", r"^mi3(00|25)x", "full"),
    # `remat_policy=save_qkv_proj` of maxtext/configure.sh there, which runs a layer again but for
    # its query, key and value products, a tenth of it.
    ("", "maxtext", "", "", "full"),
    # Paxml keeps nothing of a layer.
    ("", "pax", "", "", "full"),
    # `activation_checkpointing` in examples/llm_benchmark of NVIDIA-NeMo/Automodel: off for the
    # GPT-OSS models, on for DeepSeek-V3, Kimi K2 and Qwen3.
    ("", "automodel", "gpt-oss", "", "none"),
    ("", "automodel", "", "", "full"),
)


def _usual_recompute(row: MeasuredRow) -> str:
    """What a recipe or a framework does unless told, and else nothing."""
    cells = (
        f"{row.text('source') or ''} {row.text('source_ref') or ''}",
        *(row.text(name) or "" for name in ("framework", "model", "gpu")),
    )
    return next(
        (
            mode
            for *patterns, mode in _RECIPES
            if all(re.search(own, cell.lower()) for own, cell in zip(patterns, cells, strict=True))
        ),
        "none",
    )


def recompute_mode(row: MeasuredRow, profile: FrameworkProfile) -> RecomputeMode:
    """The row's mode among the profile's, built from named modules where it lists them."""
    text = recompute_named(row.text("recompute") or _usual_recompute(row))
    if text.startswith("none"):
        return profile.recompute_mode("none")
    if text.startswith("full"):
        return profile.recompute_mode("full")
    if re.search(r"every (other|n-th)", text):
        return RecomputeMode(name=text, modules=("FULL",), every=_EVERY_NTH)
    names = {
        "moe_act": "ACTIVATION", "layernorm": "LAYERNORM", "mla_up_proj": "MLA_UP_PROJ",
        "core_attn": "CORE_ATTENTION", "attn core": "CORE_ATTENTION",
        "shared_experts": "SHARED_EXPERTS",
    }  # fmt: skip
    modules = [module for name, module in names.items() if name in text]
    words = set(re.findall(r"[a-z_]+", text))
    modules += [module for name, module in (("mlp", "MLP"), ("moe", "MOE")) if name in words]
    if modules:
        return RecomputeMode(name=text, modules=tuple(modules))
    selective = re.search(r"select|\bops?\b|sac", text) is not None
    if "op" in text or "sac" in text or (selective and profile.name.startswith("torchtitan")):
        return RecomputeMode(name=text, modules=("SELECTIVE_OP",))
    if not re.search(r"select|attn|attention", text):
        raise UnpredictableRowError(f"recompute {text!r} names nothing known")
    return RecomputeMode(name=text, modules=("CORE_ATTENTION",))
