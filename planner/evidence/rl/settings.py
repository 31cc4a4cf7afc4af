"""Settings of a measured run of reinforcement learning, from its cells and notes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from hardware.schema import Cluster
from planner.evidence.rl.rows import RlRow
from planner.evidence.runs.model import UnpredictableRowError
from planner.job.rl.frameworks import RlFramework
from planner.job.specs import ModelSpec
from planner.predict.configuration import Configuration
from planner.predict.ops.table import parameter_count
from planner.predict.rl.plan import EngineLayout

_GRAPHS_SINCE = "2025-08-01"
# Share of an engine's room that weights may fill, so that the cache holds some sequences.
_WEIGHTS_OF_ROOM = 0.7
# verl took vLLM's second engine in July 2025, and its asynchronous scheduler with 2026.
_SECOND_SINCE, _ASYNC_SINCE = "2025-07-01", "2026-01-01"
# Sequences that verl's engines ran at once in old versions (rollout.yaml).
_SEQUENCES_OF_OLD = 1024
# vLLM's defaults if its engine is neither that of `LLM` nor that of its server: those of
# SchedulerConfig (vllm/config/scheduler.py, engine/arg_utils.py, _set_default_args), as in
# NeMo-RL's asynchronous workers (models/generation/vllm/vllm_worker_async.py,
# AsyncLLM.from_engine_args).
_BARE_SEQUENCES, _BARE_CHUNK = 128, 2048
# Patterns in notes, and the way of transferring weights that they mean.
_WAYS: Mapping[str, str] = {
    r"\bdelta\b": "delta",
    "without checkpoint engine|full broadcast": "broadcast",
    "checkpoint engine|nixl|mooncake|receive only": "checkpoint-engine",
    "reshard refit": "reshard",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """Values assumed for facts that a row leaves open; None: the usual value.

    `response_scale`: factor on the mean length of answers; `sigma`: their spread; `batches`: of
    generation in a step; `leaves`: whether the trainer's tensors move to the host; `recompute`,
    `gpu`: by name.
    """

    response_scale: float = 1.0
    sigma: float | None = None
    batches: float | None = None
    leaves: bool | None = None
    recompute: str | None = None
    gpu: str | None = None


USUAL = Taken()
# The usual GPU if none is stated, before the date below and since.
_GPUS = ("A100", "H100")
_SINCE = "2025-07-01"


def named_cell(table: tuple[tuple[str, str], ...], row: RlRow, column: str) -> str:
    """The meaning of a cell by the patterns of a table. UnpredictableRowError without a match."""
    text = row.fact(column)
    found = next((meant for pattern, meant in table if re.search(pattern, text)), "")
    if not found:
        said = f"{column} {text!r} is not modelled" if text else f"{column} is not stated"
        raise UnpredictableRowError(said)
    return found


def usual_gpu(row: RlRow) -> str:
    """The GPU that most runs used at the row's date."""
    return _GPUS[(row.text("date") or _SINCE) >= _SINCE]


def other_gpus(row: RlRow) -> tuple[str, ...]:
    """Other GPUs that a row may have used if it states none."""
    return tuple(name for name in _GPUS if name != usual_gpu(row))


def tuning_text(row: RlRow) -> str:
    found = re.search(r"lora r(\d+)", row.fact("algorithm"))
    return f"lora:rank={found[1]},targets=all-linear" if found else "full"


def generated_batches(row: RlRow) -> float:
    """Batches of prompts that dynamic sampling generates for one that is trained on; 3 if the notes
    do not tell."""
    generated = row.noted(r"gen batch N prompts")
    prompts = row.integer("prompts_per_step") or 1
    return max(1.0, generated / prompts) if generated else 3.0


def minibatches_of(row: RlRow, samples: int) -> int:
    stated = row.integer("minibatches") or 1
    return stated if samples % stated == 0 else 1


def reference_word(row: RlRow) -> str | None:
    if row.is_trainer_alone:
        return "no"
    return {"y": "yes", "n": "no"}.get(row.text("reference") or "")


def judge(row: RlRow) -> str:
    """The judge of samples: the name of a reward model, or `rule`."""
    named = re.fullmatch(r"model:([\w.-]+)", row.text("reward") or "")
    return named[1] if named else "rule"


def engine_name(row: RlRow) -> str | None:
    text = row.fact("rollout_engine")
    if text in ("", "vllm", "sglang"):
        return text or None
    raise UnpredictableRowError(f"rollout_engine {text!r} is not modelled")


def reads_again(row: RlRow) -> bool | None:
    """Whether the trainer recomputes the log-probabilities of samples; None: as is usual.
    Asynchronous runs of verl take them from the engine (`rollout_correction.bypass_mode`)."""
    stated = row.number("logprob_s")
    if stated is not None or row.is_trainer_alone:
        return bool(stated)
    return False if row.is_asynchronous and row.says("framework", "verl") else None


def fuses_rotary(row: RlRow) -> bool:
    """Whether one kernel rotates packed samples: in verl only if the notes say so."""
    return not row.says("framework", "verl") or row.notes_say("apply_rope_fusion|all optimization")


def attention_kernel(row: RlRow) -> str:
    """The trainer's fused attention kernel, if the notes have transformers' name for one; otherwise
    `auto`, the GPU's usual one."""
    kernels = {"flash_attention_2": "flash2", "flash_attention_3": "flash3_or_cudnn"}
    return next((kernel for name, kernel in kernels.items() if row.notes_say(name)), "auto")


def updated_on_host(row: RlRow) -> float:
    """Share of the optimizer that the CPU updates: the fraction that a row states for Megatron's
    offload. Tensors that only leave between phases come back for the update."""
    said = f"{row.fact('train_offload')} {row.text('notes') or ''}"
    found = re.search(r"offload[ _]fraction[= ](\d(?:\.\d+)?)", said)
    return min(1.0, float(found[1])) if found else 0.0


def read_limit(row: RlRow, trainer: Configuration) -> int | None:
    """Tokens of a micro-batch in passes that only read, over all ranks that share it, or the stated
    number of longest samples; None: as in training."""
    tokens = row.noted(r"logprob max tokens N ?[kK]")
    if tokens:
        return round(1000 * tokens) * trainer.degrees.cp
    samples = row.noted(r"logprob mbs N")
    return round(samples) * trainer.job.seq if samples else None


def engine_of(
    row: RlRow, framework: RlFramework, model: ModelSpec, cluster: Cluster, gpus: int
) -> EngineLayout:
    """Degrees of the engines; if the row does not state them, the fewest GPUs that hold the weights
    and leave room for a cache."""
    usual = framework.kv_share_separate if row.is_separate else framework.kv_share_colocated
    share, pp = row.number("kv_fraction") or usual, row.integer("rollout_pp") or 1
    tp = row.integer("rollout_tp") or _fewest(model, share * cluster.gpu.hbm_usable_bytes, gpus)
    return EngineLayout(
        replicas=max(1, gpus // (tp * pp)),
        tp=tp,
        pp=pp,
        kv_share=share,
        sequences=round(row.noted("max_num_seqs N") or _sequences(row, framework)),
    )


def _fewest(model: ModelSpec, room_bytes: float, gpus: int) -> int:
    """GPUs of an engine: the smallest power of two with which weights fill at most
    `_WEIGHTS_OF_ROOM` of the room."""
    weights, tp = 2.0 * parameter_count(model).total, 1
    while weights / tp > _WEIGHTS_OF_ROOM * room_bytes and 2 * tp <= gpus:
        tp *= 2
    return tp


def chunk_of(row: RlRow, usual: int | None) -> int | None:
    """Tokens that an engine prefills in one step; None: the engine's own default. `usual`: the
    value of the framework, which applies except to NeMo's asynchronous engine (`async_engine=True`
    in the notes)."""
    return _BARE_CHUNK if _is_bare(row) else usual


def _is_bare(row: RlRow) -> bool:
    return row.says("framework", "nemo") and row.notes_say("async_engine=True")


def _sequences(row: RlRow, framework: RlFramework) -> int:
    if _is_bare(row):
        return _BARE_SEQUENCES
    old = is_before(row, _GRAPHS_SINCE, "mid-2025")
    return _SEQUENCES_OF_OLD if old and row.says("framework", "verl") else framework.sequences


def is_before(row: RlRow, day: str, versions: str) -> bool:
    """Whether the software is from before a day: by the versions that the row names, else by its
    date."""
    return row.says("software", versions) or (row.text("date") or day) < day


def uses_graphs(row: RlRow) -> bool:
    """Whether decoding runs as CUDA graphs. Until mid-2025, verl's engines did so only on request
    (`rollout.enforce_eager`)."""
    if row.notes_say(r"enforce_eager=\w"):
        return row.notes_say("enforce_eager=False")
    eager = is_before(row, _GRAPHS_SINCE, "mid-2025") and row.says("framework", "verl")
    return not (eager or row.notes_say("enforce_eager"))


def engine_versions(row: RlRow) -> str:
    """The generation of the engine's software, from the row's date; "" for the usual one."""
    date = row.text("date") or ""
    if not row.says("framework", "verl") or row.says("rollout_engine", "sglang") or not date:
        return ""
    if row.says("software", "mid-2025") and date >= _ASYNC_SINCE:
        return "vllm"
    return "vllm-v0" if date < _SECOND_SINCE else "vllm" if date < _ASYNC_SINCE else ""


def staleness_of(row: RlRow) -> int:
    """The number of updates by which the weights that produce a sample may be older than the newest
    ones: 0 for a synchronous run, 1 if an asynchronous row states no number. Fractions are rounded
    up."""
    said = row.fact("asynchrony")
    if not row.is_asynchronous:
        return 0
    found = re.search(r"staleness ([\d.]+)|max age (\d+)", said)
    return 1 if found is None else ceil(float(found[1] or found[2]))


def trainer_leaves(row: RlRow, framework: RlFramework, taken: Taken) -> bool:
    """Whether the trainer's tensors move to the host while the engine samples."""
    if row.is_separate:
        return False
    if taken.leaves is not None:
        return taken.leaves
    said = row.fact("train_offload")
    if not said:
        return framework.trainer_leaves
    return not said.startswith(("none", "reference", "activations"))


def way_of(row: RlRow) -> str:
    """The way of transferring weights that the notes name; "" for the framework's usual one."""
    if not row.is_transfer_alone or row.notes_say("nccl collective|nccl sync"):
        return ""
    return next((way for words, way in _WAYS.items() if row.notes_say(words)), "")
