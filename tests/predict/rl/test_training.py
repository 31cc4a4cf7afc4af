"""Phases of the trainer's side: they are the cost core's, and count the very samples of a step."""

from dataclasses import replace

import numpy as np
import pytest

from planner.job.request import Request
from planner.job.rl.request import RlRequest
from planner.job.samples import lengths_of
from planner.predict.configuration import Configuration, degree_columns
from planner.predict.plan import Degrees
from planner.predict.rl import micro_batches as mb
from planner.predict.rl.plan import WAITING, at_work
from planner.predict.rl.training import scoring, train
from planner.predict.rl.training_rows import train_rows

LENGTHS = "prompt=100,response=lognormal:median=600,p95=1800,max=3996"


def job(
    lengths=LENGTHS, framework="megatron-core", gpus="8xH100", trainer=None, rl="verl", **given
):
    request = Request(
        model="qwen3-8b", gpus=gpus, lengths=lengths, framework=framework, **(trainer or {})
    )
    usual = {
        "framework": rl,
        "algorithm": "grpo",
        "prompts": 64,
        "samples_per_prompt": 8,
        "token_limit": 8192,
    }
    return RlRequest(trainer=request, **(usual | given)).resolve()


def configuration(rl, recompute="full", **degrees):
    usual = {"tp": 2, "pp": 1, "cp": 1, "dp": 4, "zero": 1, "mbs": 1, "grad_acc": 1}
    both = Degrees(**({"vpp": 1, "ep": 1, "etp": 1} | usual | degrees))
    return Configuration.even(rl.trainer, both, recompute)


def phases(training):
    return {phase.name: phase for phase in training.phases}


def test_terms_add_up_and_every_phase_holds_what_stays():
    rl = job(reference="host")
    training = train(rl, configuration(rl))
    assert [phase.name for phase in training.phases] == ["old_logprobs", "reference", "update"]
    for phase in training.phases:
        assert sum(phase.terms.values()) == pytest.approx(phase.seconds)
        assert phase.peak_bytes > training.shard_bytes + sum(training.staying.values())
    found = phases(training)
    swap = found["reference"].terms["swap"]
    assert found["reference"].seconds == pytest.approx(found["old_logprobs"].seconds + swap)


def test_a_pass_that_reads_takes_a_third_to_a_quarter_of_an_update():
    rl = job()
    for recompute, least, most in (("none", 2.3, 3.6), ("full", 3.0, 4.6)):
        found = phases(train(rl, configuration(rl, recompute)))
        share = found["update"].seconds / found["old_logprobs"].seconds
        assert least < share < most


def test_a_reading_pass_reduces_and_updates_nothing():
    rl = job(framework="fsdp1")
    given = {"tp": 1, "dp": 8, "zero": 3}
    terms = phases(train(rl, configuration(rl, **given)))["old_logprobs"].terms
    assert not {"dp", "optimizer", "recompute"} & set(terms)


def test_seconds_are_of_the_true_tokens_whatever_the_limit_of_a_micro_batch():
    """No micro-batch is filled up: 8 equal samples of 1,000 tokens are 8,000 tokens under a limit
    of 5,000 too, in two micro-batches of 4,000."""
    limits = {}
    for limit in (5000, 8000):
        rl = job("prompt=100,response=900", token_limit=limit, prompts=8, samples_per_prompt=4)
        shares = mb.with_micro_batches(rl, mb.mini_batch(rl), configuration(rl).columns)
        limits[limit] = shares["grad_acc"][0], shares["kept"][0] * limit * shares["computed"][0]
    assert limits == {5000: (2, pytest.approx(4000)), 8000: (1, pytest.approx(8000))}


def test_twice_the_mini_batches_are_as_many_tokens_and_more_updates():
    once, many = (phases(train(rl, configuration(rl))) for rl in (job(), job(minibatches=8)))
    assert many["update"].terms["optimizer"] == pytest.approx(8 * once["update"].terms["optimizer"])
    assert once["update"].seconds < many["update"].seconds < 1.3 * once["update"].seconds


def test_a_controller_hands_out_positions_whatever_the_gpus():
    rl = job()
    found = phases(train(rl, configuration(rl)))
    padded = rl.rollout.samples * rl.rollout.longest
    for phase in found.values():
        assert phase.terms["controller"] == pytest.approx(rl.framework.position_s * padded)
    slime = job(rl="slime")
    assert "controller" not in phases(train(slime, configuration(slime)))["update"].terms


def test_packed_samples_are_rotated_one_by_one_unless_that_is_fused():
    fused = job()
    unfused = replace(fused, fused_rotary=False)
    more = []
    for name in ("old_logprobs", "update"):
        one, other = (phases(train(rl, configuration(rl)))[name] for rl in (fused, unfused))
        assert "rotary" not in one.terms
        more.append(other.seconds - one.seconds)
    # 512 samples on 4 ranks in 36 layers; forward, backward and once more forward.
    assert more == pytest.approx([128 * 36 * 1.55e-4, 3 * 128 * 36 * 1.55e-4], rel=1e-3)


def test_ranks_wait_for_the_one_with_most_tokens():
    even = lengths_of([(1000.0, 1.0)], "even")
    spread = lengths_of([(100.0, 0.5), (1900.0, 0.5)], "spread")
    share = mb.Batch(16.0, 8192.0, 1.0)
    of_even, of_spread = (mb._micro_batches(one, share, 8, 1, 1, False) for one in (even, spread))
    assert of_even.more_tokens == 0.0
    generator = np.random.default_rng(0)
    drawn = generator.choice([100.0, 1900.0], (20_000, 8, 16)).sum(axis=2)
    assert of_spread.more_tokens == pytest.approx(drawn.max(axis=1).mean() / 16_000 - 1, rel=0.03)


def test_micro_batches_of_one_rank_are_as_many_as_of_the_fullest():
    spread = lengths_of([(100.0, 0.5), (1900.0, 0.5)], "spread")
    alone, of_many = (
        mb._micro_batches(spread, mb.Batch(16.0, 8192.0, 1.0), ranks, 1, 1, False).number
        for ranks in (1, 64)
    )
    assert alone == 2 < of_many


def test_passes_that_read_count_samples_of_their_own():
    rl = job(framework="hf-fsdp2", rl="trl", token_limit=None)
    wide = replace(rl, token_limit_read=4 * rl.trainer.seq)
    columns = degree_columns([configuration(rl, tp=1, dp=8, zero=3).degrees])
    usual, four = (
        mb.with_micro_batches(one, mb.whole_batch(one), columns)["grad_acc"] for one in (rl, wide)
    )
    assert usual == 4 * four
    mini = mb.Batch(64.0, float(rl.trainer.seq), 1.0)
    assert mb.with_micro_batches(wide, mini, columns)["mbs"] == columns["mbs"]


def test_bins_stay_unfilled():
    lengths = lengths_of([(3000.0, 1.0)], "long")
    share = mb.Batch(8.0, 8192.0, 0.0)
    assert mb._micro_batches(lengths, share, 1, 1, 1, False).number == 3
    assert mb._micro_batches(lengths, share, 1, 1, 1, True).number == 4


def test_rows_are_the_configurations_one_by_one():
    rl = job(algorithm="ppo", reference="copied", minibatches=2)
    every = [{"tp": 2, "dp": 4}, {"tp": 4, "dp": 2}, {"tp": 1, "pp": 2, "dp": 4}]
    plans = [configuration(rl, "full", **one) for one in every]
    alone = replace(rl, trainer=plans[0].job)
    columns = degree_columns([one.degrees for one in plans])
    rows = train_rows(alone, columns)
    for at, plan in enumerate(plans):
        training = train(rl, plan)
        for phase in training.phases:
            assert rows.seconds[phase.name][at] == pytest.approx(phase.seconds, rel=0.02)
        peak = max(phase.peak_bytes for phase in training.phases)
        assert rows.peak_bytes[at] == pytest.approx(peak, rel=0.05)
        least = max(sum(at_work(phase.held).values()) for phase in training.phases)
        assert rows.least_peak_bytes[at] == pytest.approx(least, rel=0.05)


def test_a_critic_is_read_and_trained_beside_the_policy():
    rl = job(algorithm="ppo")
    plan = configuration(rl)
    training = train(rl, plan)
    names = [phase.name for phase in training.phases]
    assert names == ["old_logprobs", "reference", "values", "critic_update", "update"]
    found = phases(training)
    assert found["critic_update"].seconds == pytest.approx(found["update"].seconds, rel=0.15)
    assert train(rl, plan, scoring(plan, rl.critic)) == training
    assert training.resident["critic"] == pytest.approx(
        sum(training.resident[name] for name in ("weights", "gradients", "optimizer state")),
        rel=0.1,
    )


def test_a_reward_model_is_one_more_pass():
    rl = job(reward="qwen3-4b")
    found = phases(train(rl, configuration(rl)))
    assert 0.4 < found["reward"].seconds / found["old_logprobs"].seconds < 0.7


def test_what_waits_for_another_phase_is_named_so():
    rl = job(algorithm="ppo", reference="copied")
    found = phases(train(rl, configuration(rl)))
    waiting = {
        name: {what.removeprefix(WAITING) for what in phase.held if what.startswith(WAITING)}
        for name, phase in found.items()
    }
    states = {"gradients", "optimizer state"}
    assert waiting == {
        "old_logprobs": states | {"reference", "critic"},
        "reference": states | {"weights", "critic"},
        "values": states | {"weights", "reference"},
        "critic_update": {"policy", "reference"},
        "update": {"reference", "critic"},
    }
    for phase in found.values():
        assert sum(at_work(phase.held).values()) < phase.peak_bytes


def test_verl_gives_fsdp_ulysses_and_others_have_none():
    rl = job(framework="hf-fsdp2")
    terms = phases(train(rl, configuration(rl, tp=1, cp=4, dp=2, zero=3)))["update"].terms
    assert terms["cp"] > 0.0
    assert not job(framework="hf-fsdp2", algorithm="grpo").trainer.framework.parallelism.tensor


def test_prime_rl_holds_what_it_freezes_in_fp32():
    """0.6B with adapters of rank 16: 16,384 packed tokens hold 5.1 GiB reserved on one GPU there
    (benchmarks/baselines, PrimeIntellect-ai/prime-rl), context and communicators apart."""
    request = Request(
        model="qwen3-0.6b", gpus="1xA6000", lengths="prompt=1,response=16383",
        framework="prime-rl", train="lora:rank=16,targets=all-linear",
    )  # fmt: skip
    rl = RlRequest(
        trainer=request, framework="prime-rl", algorithm="grpo", prompts=2, samples_per_prompt=2,
        token_limit=16384,
    ).resolve()  # fmt: skip
    plan = configuration(rl, tp=1, dp=1, zero=3)
    held = phases(train(rl, plan))["update"].held
    reserved = sum(size for name, size in held.items() if not name.startswith(("CUDA", "comm")))
    assert reserved / 2.0**30 == pytest.approx(5.1, rel=0.12)


def test_trl_makes_logits_of_answers_alone():
    """Of prompts as long as answers, half of the logits: fewer products and bytes by that much."""
    half, whole = "prompt=2000,response=2000", "prompt=1,response=3999"
    found = []
    for lengths in (half, whole):
        rl = job(lengths, "hf-fsdp2", rl="trl", token_limit=None)
        found.append(train(rl, configuration(rl, tp=1, dp=8, zero=3, mbs=2)))
    one, other = (phases(training)["old_logprobs"] for training in found)
    logits = "logits and loss"
    assert one.held[logits] / other.held[logits] == pytest.approx(0.5, rel=0.01)
    assert one.terms["compute"] < other.terms["compute"]


def test_verl_hides_no_reduction_of_megatron_s_gradients():
    terms = []
    for rl in ("verl", "slime"):
        one = job(rl=rl, minibatches=8)
        terms.append(phases(train(one, configuration(one)))["update"].terms.get("dp", 0.0))
    assert terms[0] > 2.0 * terms[1] > 0.0
