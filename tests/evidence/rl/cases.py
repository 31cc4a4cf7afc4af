"""Rows of measured runs for tests, in the columns of published tables, and costs that stand for the
planner's own."""

from __future__ import annotations

from planner.evidence.rl.costing import Costed
from planner.evidence.rl.mapping import RlMapped
from planner.evidence.rl.rows import RlRow
from planner.predict.rl.plan import Phase, PhaseName, Side

COLOCATED = {
    "source": "a table",
    "framework": "verl",
    "software": "verl main",
    "date": "2026-01-01",
    "algorithm": "GRPO",
    "model": "Qwen3-0.6B",
    "gpu": "H100",
    "num_gpus": "8",
    "placement": "colocated",
    "train_gpus": "8",
    "rollout_gpus": "8",
    "train_backend": "fsdp2",
    "train_offload": "none",
    "recompute": "full",
    "max_tokens_per_gpu": "4096",
    "rollout_engine": "vllm",
    "rollout_tp": "1",
    "kv_fraction": "0.6",
    "prompts_per_step": "64",
    "samples_per_prompt": "8",
    "minibatches": "4",
    "prompt_len_max": "512",
    "response_len_mean": "400",
    "response_len_max": "2048",
    "reference": "n",
    "asynchrony": "sync",
    "step_s": "60",
    "generation_s": "30",
    "logprob_s": "5",
    "train_s": "20",
    "sync_s": "2",
    "oom": "n",
}
SEPARATE = COLOCATED | {
    "placement": "separate",
    "train_gpus": "4",
    "rollout_gpus": "4",
    "asynchrony": "fully async, staleness 0.5",
    "step_s": "40",
    "generation_s": "3",
    "logprob_s": "",
}


def row(cells: dict[str, str], line: int = 2, **changed: str) -> RlRow:
    """A row of a table, some of its cells changed."""
    return RlRow("rl.csv", line, {**cells, **changed})


def phase(name: PhaseName, side: Side, seconds: float, **held: float) -> Phase:
    return Phase(name, side, seconds, {"all": seconds}, held)


def costs(mapped: RlMapped) -> Costed:
    """Generation in proportion to the mean length of answers; half as much on each GPU that only
    samples; everything else is given."""
    scale = mapped.lengths.response / 400.0
    apart = mapped.layout.placement == "separate"
    phases = (
        phase("transfer", "engine", 2.0, weights=1e9),
        phase("generation", "engine", scale * (45.0 if apart else 30.0), weights=1e9, kv=9e9),
        phase("old_logprobs", "trainer", 5.0, weights=1e9),
        phase("update", "trainer", 20.0, weights=2e9, activations=3e9, context=1e9),
        phase("transfer", "trainer", 2.0, weights=1e9),
    )
    engine = sum(one.seconds for one in phases if one.side == "engine")
    trainer = 25.0
    step = max(engine, trainer) if apart else engine + trainer
    return Costed(phases, step, True, 8e10, phases)
