"""Which framework profile a measured row ran under, from the name that its source gives."""

from __future__ import annotations

import re

from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow
from planner.evidence.runs.spellings import zero_stage_named
from planner.evidence.runs.variants import replaced_profile, varied_profile
from planner.job.frameworks import FrameworkProfile, load_framework

UNFUSED_MEGATRON = "megatron-lm-2022"
# What a framework that nothing names is taken for: by whether it shards parameters.
_USUAL, _USUAL_SHARDED = "megatron-core", "fsdp1"
_FULLY_SHARDED = 3
_WIDE = ("fp32", "tf32")

# First match wins: a pattern in the row's framework text, and the profile it runs under.
_PROFILES = (
    (r"nanotron \(2024", "nanotron-2024"),
    (r"nanotron", "nanotron"),
    (r"megatron-like", "torch-3d"),
    (r"megatron-deepspeed", "megatron-deepspeed"),
    (r"nemo-megatron", "nemo-2022"),
    (r"megatron-lm \(285068c8\)", "megatron-lm-2022"),
    (r"megatron-lm fork", "zero-bubble"),
    (r"^megatron-lm$", "megatron-lm-2022"),
    (r"torchtitan fsdp2", "torchtitan-2024"),
    (r"torchtitan|fsdp2|automodel", "torchtitan"),
    (r"composer|llm-?foundry|mosaicml", "llm-foundry"),
    (r"torchtune", "torchtune"),
    (r"fsdp1|vectorlm|flash-attn", "fsdp1"),
    (r"megatron-bridge|^nemo", "megatron-bridge"),
    (r"deepspeed|gpt-neox", "deepspeed"),
    (r"pax|maxtext|jax", "jax-xla"),
    (r"hai-llm", "hai-llm"),
    (r"megatron|megascale|metaseq|meta internal|primus", "megatron-core"),
)

# Frameworks without a profile of their own, and the one whose mechanisms they share: Hugging Face
# modelling code under a trainer, torch's FSDP1 around their own layers, XLA, torch with TP and PP.
_ALIKE = (
    (r"levanter|easylm|t5x|flax|tpu", "jax-xla"),
    (r"nanogpt|litgpt", "nanogpt"),
    (r"colossal|internevo|picotron", "torch-3d"),
    (r"vescale", "torchtitan"),
    (r"xtuner", "deepspeed"),
    (
        r"transformers|hf |hugging ?face|accelerate|axolotl|llama-?factory|lightning|trl\b"
        r"|unsloth|swift|verl",
        "hf-transformers",
    ),
    (r"\bddp\b", "hf-transformers"),
    (r"fsdp|olmo|fairscale|fairseq", "fsdp1"),
)
_SHARDED_PROFILE = {"hf-transformers": "hf-fsdp2", "nanogpt": "fsdp1"}


def profile_of(row: MeasuredRow, precision: str) -> tuple[FrameworkProfile, tuple[str, ...]]:
    """The row's profile, and in words what was taken for it where the framework has none.

    UnpredictableRowError for 32-bit arithmetic, unless the profile says what it keeps then.
    """
    name, assumed = _name(row)
    name = replaced_profile(name, row)
    if precision in _WIDE and precision not in load_framework(name).precisions:
        raise UnpredictableRowError(f"{name} in {precision} is not modelled")
    return varied_profile(name, row, row.text("seq_parallel"), precision), assumed


def _name(row: MeasuredRow) -> tuple[str, tuple[str, ...]]:
    text = (row.text("framework") or "").lower()
    name = _first(_PROFILES, text)
    if name == UNFUSED_MEGATRON and not _ran_before_hopper(row):
        name = "megatron-core"
    if name is not None and (name != _USUAL or "megatron" in text):
        return name, ()
    sharded = zero_stage_named(row.text("zero") or "") == _FULLY_SHARDED
    name = name or _first(_ALIKE, text) or (_USUAL_SHARDED if sharded else _USUAL)
    if sharded:
        name = _SHARDED_PROFILE.get(name, name)
    return name, () if name in text else (f"framework {text!r} treated as {name}",)


def _first(patterns: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((name for pattern, name in patterns if re.search(pattern, text)), None)


def _ran_before_hopper(row: MeasuredRow) -> bool:
    """Whether the GPU existed before 2022: on a later one runs a later Megatron-LM."""
    return re.search(r"\b([AV]100|A800|RTX)", row.text("gpu") or "", re.IGNORECASE) is not None
