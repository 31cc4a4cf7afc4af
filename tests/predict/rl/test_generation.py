"""Generation: the flow of continuous batching against sequences that are played out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hardware.load import load_gpu
from planner.job.request import Request
from planner.job.rl.job import RlJob
from planner.job.rl.request import RlRequest
from planner.predict.rl.generation import generate, sampling_engine
from planner.predict.rl.plan import EngineLayout
from tests.predict.rl.simulator import play_phase

LENGTHS = "prompt=100..900,response=lognormal:median={median},p95={p95},max={most}"


@cache
def rl_job(
    model: str = "llama-3.1-8b",
    gpus: str = "8xH100",
    lengths: str = LENGTHS.format(median=400, p95=1500, most=3000),
    prompts: int = 32,
    samples: int = 8,
    **changed: Any,
) -> RlJob:
    trainer = Request(model=model, gpus=gpus, framework="hf-fsdp2", lengths=lengths, seq=262144)
    return RlRequest(
        trainer=trainer, algorithm=changed.pop("algorithm", "grpo"), prompts=prompts,
        samples_per_prompt=samples, **changed,
    ).resolve()  # fmt: skip


def seconds(job: RlJob, engine: EngineLayout) -> float:
    return generate(job, engine).phase.seconds


# Layouts in which each of slots, room and the longest answer decides: a median, a 95th percentile
# and a longest answer, prompts of 8 samples, replicas, tp, share of the GPU, slots.
PLAYED = {
    "all at once": ((400, 1500, 3000), 32, EngineLayout(1, 1, kv_share=0.8, sequences=1024)),
    "eight engines": ((200, 1000, 4000), 64, EngineLayout(8, 1, kv_share=0.8, sequences=1024)),
    "a queue for slots": ((300, 900, 1800), 48, EngineLayout(1, 2, kv_share=0.8, sequences=32)),
    "queues of two": ((200, 400, 1600), 128, EngineLayout(2, 1, kv_share=0.8, sequences=64)),
    "a full cache": ((2000, 5000, 9000), 64, EngineLayout(1, 1, kv_share=0.36, sequences=1024)),
    "one slot": ((100, 200, 400), 4, EngineLayout(1, 1, kv_share=0.8, sequences=1)),
}


@pytest.mark.parametrize("case", PLAYED.values(), ids=PLAYED)
def test_a_phase_lasts_as_long_as_sequences_that_are_played_out(case: Any) -> None:
    (median, p95, most), prompts, engine = case
    job = rl_job(lengths=LENGTHS.format(median=median, p95=p95, most=most), prompts=prompts)
    made = sampling_engine(job, engine)
    rng = np.random.default_rng(7)
    each = job.rollout.samples // engine.replicas
    played = [play_phase(made, each, rng) for _ in range(8)]
    deviation = float(np.std(played)) / np.sqrt(len(played))
    within = 0.05 * float(np.mean(played)) + 2.0 * deviation
    assert seconds(job, engine) == pytest.approx(float(np.mean(played)), abs=within)


def test_sequences_lose_their_place_in_a_full_cache_alone() -> None:
    (median, p95, most), prompts, engine = PLAYED["a full cache"]
    job = rl_job(lengths=LENGTHS.format(median=median, p95=p95, most=most), prompts=prompts)
    found = generate(job, engine)
    assert found.preempted > 0.2
    assert "lose their place" in " ".join(found.phase.notes)
    assert generate(job, replace(engine, replicas=8, kv_share=0.9)).preempted == 0.0


def test_terms_add_up_and_the_profile_falls_from_all_to_none() -> None:
    found = generate(rl_job(), EngineLayout(2, 4, kv_share=0.7, sequences=64))
    assert sum(found.phase.terms.values()) == pytest.approx(found.phase.seconds)
    times, left = zip(*found.profile, strict=True)
    assert list(times) == sorted(times) and list(left) == sorted(left, reverse=True)
    assert (left[0], left[-1]) == (1.0, 0.0)
    assert times[-1] == pytest.approx(found.phase.seconds, rel=1e-6)
    assert 0.0 < found.tail_s <= found.phase.seconds
    assert found.phase.low < 1.0 < found.phase.high


def test_engines_that_never_run_empty_are_faster() -> None:
    found = generate(rl_job(), EngineLayout(8, 1, kv_share=0.8, sequences=64))
    assert 0.0 < found.steady_s < found.phase.seconds


def test_small_tp_samples_many_faster_and_large_tp_few() -> None:
    many, few = (rl_job(prompts=prompts, samples=16) for prompts in (1024, 2))
    narrow, wide = (EngineLayout(8 // tp, tp, kv_share=0.8, sequences=1024) for tp in (1, 4))
    assert seconds(many, narrow) < seconds(many, wide)
    assert seconds(few, wide) < seconds(few, narrow)


def test_longer_tails_take_longer_though_the_mean_is_the_same() -> None:
    flat, tailed = (rl_job(lengths=f"prompt=100..900,response={text}") for text in (
        "700..900", "100:0.9,7100:0.1"))  # fmt: skip
    assert flat.rollout.response.mean == pytest.approx(tailed.rollout.response.mean)
    engine = EngineLayout(8, 1, kv_share=0.8)
    assert seconds(tailed, engine) > 3.0 * seconds(flat, engine)


def test_eager_engines_and_old_ones_wait_for_their_cpu() -> None:
    job, engine = rl_job(), EngineLayout(8, 1, kv_share=0.8)
    eager = replace(job, engine=replace(job.engine, graphs=False))
    old = replace(job, engine=replace(job.engine, generation="vllm-v0"))
    terms = [generate(one, engine).phase.terms["engine"] for one in (job, eager, old)]
    assert terms[1] > 1.5 * terms[0] and terms[2] > 2.0 * terms[0]
    said = [" ".join(generate(one, engine).phase.notes) for one in (job, eager, old)]
    assert not said[0] and "no CUDA graph" in said[1] and "prepares steps" in said[2]


def test_fp8_weights_and_cache_save_what_is_read() -> None:
    job = rl_job(rollout_precision="fp8", kv_precision="fp8")
    engine = EngineLayout(8, 1, kv_share=0.8)
    terms = [generate(one, engine).phase.terms for one in (rl_job(), job)]
    assert terms[1]["weights"] < 0.75 * terms[0]["weights"]
    assert terms[1]["kv"] == pytest.approx(terms[0]["kv"] / 2.0)


def test_padded_queries_bind_where_arithmetic_is_scarce() -> None:
    engine = EngineLayout(8, 1, kv_share=0.8)
    h100, h20 = (
        generate(rl_job(), engine, gpu=load_gpu(name)).phase.terms["kv"] for name in ("H100", "H20")
    )
    # H20 reads its cache faster than H100, and multiplies it with 128 rows of queries slower.
    assert h20 > 1.5 * h100


def test_dynamic_sampling_repeats_a_batch_and_tools_take_turns() -> None:
    engine = EngineLayout(8, 1, kv_share=0.8)
    once = seconds(rl_job(), engine)
    dapo = rl_job(algorithm="dapo", resampling=2.0)
    assert seconds(dapo, engine) == pytest.approx(2.0 * once)
    assert seconds(rl_job(turns="4x2.5"), engine) == pytest.approx(once + 7.5)
    # Those who wait to be let in use the time of a tool.
    queue = replace(engine, replicas=1, sequences=16)
    tools = generate(rl_job(turns="4x2.5"), queue).phase.terms["tools"]
    assert 0.0 < tools < 0.5 * 7.5


def test_engines_may_be_of_another_gpu_with_its_own_links() -> None:
    engine = EngineLayout(2, 4, kv_share=0.8)
    found = [
        generate(rl_job(), engine, gpu=load_gpu(name)).phase for name in ("H100", "A100", "H20")
    ]
    assert found[0].seconds == generate(rl_job(), engine).phase.seconds
    assert found[1].terms["weights"] > found[0].terms["weights"] > found[2].terms["weights"]
    assert found[1].terms["exchange"] > found[0].terms["exchange"]


def test_samples_of_a_prompt_read_it_once_where_they_share_an_engine() -> None:
    engine = EngineLayout(8, 1, kv_share=0.8)
    job = rl_job()
    assert job.framework.scatters
    together, alone = (
        replace(job, framework=job.framework.model_copy(update=changed))
        for changed in ({"scatters": False}, {"prefix_cache": False})
    )
    read = [generate(one, engine).phase.terms["prefill"] for one in (job, together, alone)]
    # Eight samples of a prompt on eight engines are each alone on theirs.
    assert read[0] == pytest.approx(read[2])
    assert read[1] == pytest.approx(read[2] / 8.0, rel=0.01)


def test_log_probabilities_cost_the_cpu_of_each_sequence() -> None:
    job, engine = rl_job(), EngineLayout(1, 1, kv_share=0.8)
    assert not job.engine.logprobs and rl_job(old_logprobs=False).engine.logprobs
    returned = replace(job, engine=replace(job.engine, logprobs=True))
    terms = [generate(one, engine).phase.terms["engine"] for one in (job, returned)]
    assert terms[1] > 1.3 * terms[0]


def test_a_mean_alone_leaves_the_tail_open() -> None:
    engine = EngineLayout(8, 1, kv_share=0.8)
    known = generate(rl_job(), engine).phase
    open_ = generate(rl_job(lengths="prompt=500,response=mean=600"), engine).phase
    assert open_.high / open_.low > known.high / known.low
    assert any("spread" in note for note in open_.notes)


def test_an_engine_without_room_for_one_sequence_does_not_fit() -> None:
    found = generate(rl_job(), EngineLayout(8, 1, kv_share=0.15))
    assert not found.fits
    assert "no room for one sequence" in found.phase.notes[0]


def test_what_a_trainer_keeps_is_missing_to_an_engine_beside_it() -> None:
    job, engine = rl_job(), EngineLayout(8, 1, kv_share=0.8)
    assert generate(job, engine).fits
    beside = generate(job, engine, beside=40.0 * 2**30)
    assert not beside.fits and "are missing" in " ".join(beside.phase.notes)


def test_sglang_takes_its_share_of_what_is_free() -> None:
    job = rl_job(engine="sglang")
    engine = EngineLayout(8, 1, kv_share=0.8)
    alone, beside = (generate(job, engine, beside=size) for size in (0.0, 10.0 * 2**30))
    gpu = job.trainer.cluster.gpu
    free = gpu.hbm_usable_bytes - gpu.context_bytes
    held = alone.phase.held
    assert held["weights"] + held["KV cache"] == pytest.approx(0.8 * free)
    lost = held["KV cache"] - beside.phase.held["KV cache"]
    assert lost == pytest.approx(0.8 * 10.0 * 2**30)


# Tokens that SGLang printed at its start: vllm-project/vllm issue 21348 (4 H100, share 0.93);
# ai-dynamo/aisimulate pull request 263 (8 H200, share 0.82, chunks of 32,768 tokens).
PRINTED = {
    "qwen3-235b-a22b": ("4xH100", 4, 0.93, 8192, 367_404),
    "deepseek-r1": ("8xH200", 8, 0.82, 32768, 509_000),
}


@pytest.mark.parametrize("model", PRINTED)
def test_a_cache_has_the_tokens_that_sglang_printed(model: str) -> None:
    gpus, tp, share, chunk, printed = PRINTED[model]
    job = rl_job(model=model, gpus=gpus, engine="sglang", rollout_precision="fp8-block")
    job = replace(job, engine=replace(job.engine, chunk=chunk))
    found = generate(job, EngineLayout(1, tp, kv_share=share))
    assert found.room_tokens == pytest.approx(printed, rel=0.05)


@pytest.mark.parametrize("model", ["qwen3-next-80b", "deepseek-v3", "gpt-oss-20b"])
def test_experts_states_latents_and_windows_are_sampled(model: str) -> None:
    dp = 4 if model == "deepseek-v3" else 1
    engine = EngineLayout(1, 8, dp=dp, ep=8 * dp if dp > 1 else 1, kv_share=0.85)
    job = rl_job(model=model, gpus="32xH200")
    found = generate(job, engine)
    assert found.fits and found.phase.seconds > 0.0
    assert found.phase.terms["exchange"] > 0.0
