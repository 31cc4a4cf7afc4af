"""The framework profile of a measured row, from the name that its source gives, and the changes to
the profile by further facts of the row. The rules of such changes are data (`variants.toml`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import Field

from hardware.files import shipped_toml
from hardware.frozen import Frozen
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.rows import MeasuredRow, named, zero_stage_named
from planner.evidence.runs.stated import optimizer_share
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import (
    FP32_PRECISIONS,
    FrameworkProfile,
    load_framework,
    with_tables,
)
from planner.predict.uncertainty.families import UNFAMILIAR

Tables = dict[str, Mapping[str, Any]]
Condition = Callable[[MeasuredRow], bool]


# Words in `precision` that mean autocast.
_AUTOCAST = r"(?<!no )\b(amp|autocast)|mixed"


def says(column: str, pattern: str) -> Condition:
    """The condition that a row's column has words that match; for `!column`, that it has none."""
    name = column.removeprefix("!")
    return lambda row: row.says(name, pattern) == (name == column)


class Variant(Frozen):
    """A rule of `variants.toml`."""

    name: str
    profiles: tuple[str, ...] = ()
    when: tuple[dict[str, str], ...]
    use: str = ""
    technique: str = ""
    tables: dict[str, dict[str, bool | float | str | tuple[str, ...]]] = Field(default_factory=dict)

    def applies(self, profile: str, row: MeasuredRow) -> bool:
        """Whether the rule applies to a row under a profile."""
        return self.of(profile) and any(
            all(says(*one)(row) for one in alternative.items()) for alternative in self.when
        )

    def of(self, profile: str) -> bool:
        """Whether the rule applies to this profile; a rule without profiles applies to all."""
        return not self.profiles or profile in self.profiles

    def changes(self, profile: FrameworkProfile) -> Tables:
        """The values that the rule changes in the profile's tables. KeyError for an unknown
        technique."""
        if not self.technique:
            return {
                table: {key: _value(table, key, value, profile) for key, value in given.items()}
                for table, given in self.tables.items()
            }
        *framework, name = self.technique.split(":")
        technique = load_framework(*framework or ("megatron-core",)).technique(name)
        if technique is None:
            raise KeyError(self.technique)
        return dict(technique.changes(used=True, mode=profile.mode))


def _value(table: str, key: str, given: Any, profile: FrameworkProfile) -> Any:
    """The value that a rule gives to a key of a profile's table."""
    if given == "one pass":
        return 1.0 / profile.kernels.memory_traffic
    if isinstance(given, str) and given.startswith("as "):
        return getattr(getattr(_like(given.removeprefix("as "), profile), table), key)
    return given


def _like(words: str, profile: FrameworkProfile) -> FrameworkProfile:
    """The profile that a rule names. For `PROFILE`, in its own dtype mode, but in fp32 if `profile`
    is in fp32; for `PROFILE, same mode`, in the dtype mode of `profile`. If it lacks that mode, it
    stays in its own."""
    name, _, same = words.partition(", ")
    other = load_framework(name)
    wanted = profile.mode if same or profile.mode == "fp32" else other.mode
    return other.in_mode(wanted) if any(mode.name == wanted for mode in other.modes) else other


@cache
def _variants() -> tuple[Variant, ...]:
    content = shipped_toml("planner.evidence.runs", "variants.toml")
    named = content["conditions"]
    return tuple(
        Variant(**rule | {"when": named[when] if isinstance(when := rule["when"], str) else when})
        for rule in content["rules"]
    )


def _varied(name: str, row: MeasuredRow, precision: str, *, unfamiliar: bool) -> FrameworkProfile:
    """The profile with the row's variants, its sequence parallelism (`y`, `n`, or unstated) and its
    precision, which it must have supported. `unfamiliar`: it stands for an unknown framework."""
    rules = enumerate(_variants())
    applied = tuple(index for index, one in rules if not one.use and one.applies(name, row))
    mixed = _in_fp32(row) if row.fact("base_format") else _has_fp32_weights(name, row)
    spread = row.text("seq_parallel")
    return _profile(name, applied, spread, precision, unfamiliar, mixed, optimizer_share(row) > 0.0)


def _in_fp32(row: MeasuredRow) -> bool:
    """Whether the initial weights of a row are in fp32, with autocast for 16-bit products. If all
    weights are trained, the stated type of their states comes first."""
    trained = named("tuning_method", row.fact("tuning")) is None
    if trained and row.fact("state_precision"):
        return row.says("state_precision", "^fp32")
    return row.says("base_format", "^fp32")


def _has_fp32_weights(name: str, row: MeasuredRow) -> bool:
    """Whether trained weights are in fp32, under autocast."""
    if row.says("state_precision", "^fp32") and _holds_fp32_weights(name, row):
        return True
    return _under_autocast(row) and not row.says("state_precision", r"^(bf|fp)16")


def _under_autocast(row: MeasuredRow) -> bool:
    """Whether products run under autocast, because the row says so or its framework usually does
    so."""
    if row.says("precision", _AUTOCAST):
        return True
    usual = named("usual_autocast", row.fact("framework")) is not None
    return usual and not row.says("precision", "pure")


def _holds_fp32_weights(name: str, row: MeasuredRow) -> bool:
    """Whether fp32 states imply fp32 weights. Megatron's own optimizers keep an fp32 copy next to
    16-bit weights, so there only a source's own training loop implies it."""
    return not name.startswith("megatron") or row.says("framework", r"\bown loop\b")


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
    """The profile with these changes, cached so that rows with the same variant share one object
    and are costed together."""
    profile = load_framework(name)
    wanted = "fp32" if precision in FP32_PRECISIONS else "amp" if mixed else "bf16"
    if any(mode.name == wanted for mode in profile.modes):
        profile = profile.in_mode(wanted)
    for index in applied:
        profile = with_tables(profile, _variants()[index].changes(profile))
    changes: dict[str, object] = {"family": UNFAMILIAR} if unfamiliar else {}
    if sequence_parallel is not None:
        value = "with-tp" if sequence_parallel == "y" else "never"
        changes["parallelism"] = profile.parallelism.model_copy(update={"sequence_parallel": value})
    if precision not in profile.precisions:
        changes["precisions"] = (*profile.precisions, precision)
    if hosted and profile.optimizer.offload != "share":
        changes["optimizer"] = profile.optimizer.model_copy(update={"offload": "share"})
    return profile.model_copy(update=changes)


def tables_of(name: str, profile: str) -> Tables:
    """The changes that the variants with this name make to a profile, as tables of new values."""
    tables: Tables = {}
    for variant in _variants():
        if variant.name == name and variant.of(profile):
            for table, values in variant.changes(load_framework(profile)).items():
                tables[table] = {**tables.get(table, {}), **values}
    return tables


UNFUSED_MEGATRON = "megatron-lm-2022"
GENERIC_3D = "generic-3d"
_FULLY_SHARDED = 3

# Trainers with their own sharding, unless a row says that DeepSpeed does it for them.
_UNDER_DEEPSPEED = ("hf-transformers", "hf-fsdp2")
_SHARDED_PROFILE = {"hf-transformers": "hf-fsdp2", "nanogpt": "fsdp1"}


def profile_of(row: MeasuredRow, precision: str) -> tuple[FrameworkProfile, tuple[str, ...]]:
    """The row's profile, and a sentence if it stands for an unknown framework.

    UnpredictableRowError for 32-bit arithmetic, unless the profile states the precision.
    """
    row = _with_usual_compiling(row)
    name, assumed = _name(row)
    # A variant may replace the framework's profile by another.
    name = next((one.use for one in _variants() if one.use and one.applies(name, row)), name)
    if precision in FP32_PRECISIONS and precision not in load_framework(name).precisions:
        raise UnpredictableRowError(f"{name} in {precision} is not modelled")
    return _varied(name, row, precision, unfamiliar=bool(assumed)), assumed


def _with_usual_compiling(row: MeasuredRow) -> MeasuredRow:
    """The row with the framework's usual `compile` if it states none, so that time and memory
    assume the same."""
    usual = named("usual_compile", row.fact("framework"))
    if row.text("compile") or usual is None:
        return row
    return replace(row, cells=row.cells | {"compile": usual})


def _name(row: MeasuredRow) -> tuple[str, tuple[str, ...]]:
    text = row.fact("framework")
    if text in framework_names():
        return text, ()
    name = named("framework", text)
    if name == UNFUSED_MEGATRON and not _ran_before_hopper(row):
        name = "megatron-core"
    if name is not None and (name != "megatron-core" or "megatron" in text):
        return name, ()
    name = name or named("alike", text)
    if name in _UNDER_DEEPSPEED and row.says("zero", "deepspeed"):
        name = "deepspeed"
    elif _zero(row) == _FULLY_SHARDED:
        name = _SHARDED_PROFILE.get(name or "", name)
    name = name or by_mechanism(row)
    return name, () if name in text else (f"framework {text!r} treated as {name}",)


def _zero(row: MeasuredRow) -> int:
    return zero_stage_named(row.text("zero") or "") or 0


_DEGREES = ("tp", "pp", "cp", "ep", "vpp")
Rules = tuple[tuple[Condition, str], ...]


def _is_of_2022(row: MeasuredRow) -> bool:
    """Whether the row looks like Megatron in its first years: a GPU from before Hopper, attention
    not stated as fused, and blocks without gates."""
    gated = row.says("act", "glu|silu|gated")
    return _ran_before_hopper(row) and not row.says("flash", "^y") and not gated


# Rules for an unknown framework; the first match wins. Each has a condition on the row and the
# profile with such mechanisms. Here: zero-bubble schedules, and mechanisms that only Megatron-Core
# and its relatives have (a choice of layers, the distributed optimizer, tensor parallelism's
# overlap).
_MEGATRON_RULES: Rules = (
    (says("schedule", "^(zb|zero-?bubble)"), "zero-bubble"),
    (says("transformer_impl", "."), "megatron-core"),
    (says("zero", r"dist(ributed)?[- _]?opt"), "megatron-core"),
    (says("overlap", r"(?<![-\w])tp\b"), "megatron-core"),
)
# DeepSpeed's was the only ZeRO used with Megatron's degrees in its first years.
_OF_2022: Rules = (
    (lambda row: _is_of_2022(row) and _zero(row) > 0, "megatron-deepspeed"),
    (_is_of_2022, UNFUSED_MEGATRON),
)
_DEGREE_RULES: Rules = (
    *_OF_2022,
    (lambda row: any((row.integer(name) or 1) > 1 for name in ("vpp", "ep")), "megatron-core"),
)
_compiled = says("compile", "^y")
_under_ddp = says("framework", r"\bddp\b")


def _in_16_bits(row: MeasuredRow) -> bool:
    """Whether a whole model is trained in 16 bits: weights, states and arithmetic."""
    return row.says("state_precision", "^(bf|fp)16") and not row.says("precision", _AUTOCAST)


_PLAIN_RULES: Rules = (
    # A custom script around DistributedDataParallel; if compiled, its loss is in the graph.
    (lambda row: _under_ddp(row) and _compiled(row), "nanogpt"),
    (_in_16_bits, "torchtune"),
    (_under_ddp, "hf-transformers"),
    (says("tuning", "sft"), "torchtune"),
    # Whole models in plain fp16, without autocast, were trained by Megatron too.
    *((lambda row, of=of: row.says("precision", "^fp16$") and of(row), to) for of, to in _OF_2022),
    # Compiled models with ZeRO beyond stage 1 are not nanoGPT's.
    (lambda row: _zero(row) <= 1 and _compiled(row), "nanogpt"),
    (lambda row: _zero(row) > 0, "deepspeed"),
)


def by_mechanism(row: MeasuredRow) -> str:
    """The profile for an unknown framework, chosen by the mechanisms that the row states."""
    low = row.says("precision", "fp8|fp4")
    by_degrees = any((row.integer(name) or 1) > 1 for name in _DEGREES)
    if _zero(row) == _FULLY_SHARDED:
        # FSDP2 introduced shards of single parameters, which compose with degrees and float8; a
        # choice of single ops to keep (torch.utils.checkpoint's contexts) is equally recent.
        per_op = row.says("recompute", "selective-op|per-op")
        if by_degrees or low or per_op or row.says("zero", "fsdp2"):
            return "torchtitan"
        return "fsdp1" if row.says("zero", "[fh]sdp|full_shard|hybrid_?shard") else "deepspeed"
    if low and (by_degrees or not row.says("state_precision", "^fp32")):
        # 8-bit products under other degrees come from Transformer Engine; in a plain loop with fp32
        # weights its modules cast what autocast would, and the stream between them is fp32.
        return "megatron-bridge"
    rules, usual = (_DEGREE_RULES, GENERIC_3D) if by_degrees else (_PLAIN_RULES, "hf-transformers")
    return next((name for applies, name in (*_MEGATRON_RULES, *rules) if applies(row)), usual)


def _ran_before_hopper(row: MeasuredRow) -> bool:
    """Whether the GPU is an A100, A800, V100 or RTX card; rows with others ran a later
    Megatron-LM."""
    return re.search(r"\b([AV]100|A800|RTX)", row.text("gpu") or "", re.IGNORECASE) is not None
