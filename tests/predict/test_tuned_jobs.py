"""Memory and time of jobs that train a part of the weights, against counts and published runs."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost import fields as f
from planner.job.frameworks.adapters import tuned_profile
from planner.job.frameworks.profile import load_framework, on_gpu, with_tables
from planner.job.models.catalog import load_model
from planner.job.quantities import GIB
from planner.job.request import Request
from planner.job.tuning import read_tuning
from planner.predict.cost_model import CostModel
from planner.predict.evaluate import Proposal, evaluated
from planner.predict.plan import Degrees, Plan
from planner.predict.shapes import rule_context
from planner.predict.space import enumerate_shapes, legal_shapes


def plan(
    train: str, *freeze: str, dp: int = 1, zero: int = 0, mbs: int = 4, grad_acc: int = 1,
    **fields: Any,
) -> Plan:  # fmt: skip
    """Mistral-7B on A100s, all layers recomputed, as fms-acceleration ran it."""
    given = {"model": "mistral-7b", "framework": "hf-transformers", "seq": 4096}
    given |= {"gpus": f"{dp}xA100-80GB", "gbs": mbs * dp * grad_acc} | fields
    request = Request(train=train, freeze=freeze, **given)
    degrees = Degrees(tp=1, pp=1, cp=1, dp=dp, zero=zero, mbs=mbs, grad_acc=grad_acc)
    return evaluated(Proposal(request, degrees, "full").of(request.resolve()))


def steady_gib(one: Plan) -> float:
    """What stays on the GPU between steps: weights and states, without torch's workspaces."""
    stage = one.stages[0]
    return (stage.weights + stage.optimizer) / GIB


def test_what_lora_holds_between_steps_is_as_measured() -> None:
    """fms-acceleration, rank 16 on q, k, v, o of Mistral-7B: 13.657 GiB allocated."""
    found = plan("lora:rank=16,targets=attention")
    assert steady_gib(found) == pytest.approx(13.657, rel=1e-3)
    assert found.stages[0].gradients < 0.1 * GIB


def test_what_qlora_holds_between_steps_is_as_measured() -> None:
    """The same with nf4 doubly quantised, embeddings and head in 16 bits: 4.011 GiB."""
    found = plan("qlora:rank=16,targets=attention", use=("16-bit-stream",))
    assert steady_gib(found) == pytest.approx(4.011, rel=1e-3)


def test_gptq_holds_a_sixteenth_more_than_four_bits() -> None:
    """fms-acceleration with GPTQ in groups of 128: 4.039 GiB, with an index of each input."""
    found = plan("qlora:rank=16,targets=attention,base=gptq4")
    assert steady_gib(found) == pytest.approx(4.039, rel=2e-3)
    # Its preparation casts nothing to fp32.
    same = plan("qlora:rank=16,targets=attention,base=gptq4", use=("16-bit-stream",))
    assert found.peak_bytes == same.peak_bytes


def test_preparation_costs_two_bytes_a_token_and_layer_of_checkpoints() -> None:
    """2·L·h·T bytes between fp32 and 16-bit streams: 4.00 GiB at 16,384 tokens; 19 to 24 % of the
    time in fms-acceleration."""
    prepared = plan("qlora:targets=attention")
    plain = plan("qlora:targets=attention", use=("16-bit-stream",))
    more = prepared.stages[0].activations - plain.stages[0].activations
    cast_of_head = 2 * 32_000 * 4096
    assert more - cast_of_head == pytest.approx(2 * 32 * 4096 * 16_384, rel=1e-2)
    assert 1.05 < prepared.step_time_s / plain.step_time_s < 1.3


def test_unpacking_costs_the_same_for_any_number_of_tokens() -> None:
    """Per weight, not per token: QLoRA nears LoRA as micro-batches grow."""
    times = {
        (name, mbs): plan(f"{name}:targets=attention", framework="deepspeed", mbs=mbs).step_time_s
        for name in ("lora", "qlora")
        for mbs in (1, 4)
    }
    few, many = (times["qlora", mbs] - times["lora", mbs] for mbs in (1, 4))
    assert few == pytest.approx(many, rel=0.05)
    assert 0.02 < few < 0.3


def test_zero_1_and_2_replicate_frozen_weights_and_zero_3_divides_them() -> None:
    weights = {
        zero: plan("lora", dp=2, zero=zero, framework="deepspeed").stages[0].weights / GIB
        for zero in (1, 2, 3)
    }
    # Two buckets of a GB are made whole under ZeRO-1 and 2.
    assert weights[1] == pytest.approx(weights[2], rel=1e-3)
    assert 13.5 < weights[2] < 15.5
    assert weights[3] < 0.6 * weights[2]


def test_sharded_quantised_weights_are_gathered_packed() -> None:
    """Embeddings and head, in 16 bits, stay gathered; of layers 0.516 bytes a weight are."""
    lora, qlora = (
        plan(name, dp=2, zero=3, framework="fsdp1").stages[0].gather_buffers
        for name in ("lora", "qlora")
    )
    ends = 2 * 2 * 32_000 * 4096
    assert (qlora - ends) / (lora - ends) == pytest.approx(0.516 / 2.0, rel=0.05)


def test_only_gradients_of_what_is_trained_are_exchanged() -> None:
    full, lora = (
        plan(name, dp=2, zero=0, mbs=1, model="llama-3.2-1b") for name in ("full", "lora")
    )
    assert lora.time.dp_s < 0.1 * full.time.dp_s


def test_dora_takes_longer_and_holds_more_than_lora() -> None:
    """peft on an RTX 3080: 2.7 s with LoRA, 5.5 and in later versions 4.5 s with DoRA."""
    lora, dora = (
        plan(f"{name}:rank=64", model="qwen1.5-1.8b", gpus="1xRTX3080", mbs=2, seq=512, grad_acc=8)
        for name in ("lora", "dora")
    )
    assert lora.step_time_s == pytest.approx(2.7, rel=0.15)
    assert dora.step_time_s == pytest.approx(5.0, rel=0.15)
    assert dora.allocated_bytes > lora.allocated_bytes


def test_a_frozen_lower_half_is_faster_and_lighter() -> None:
    whole, half = plan("full"), plan("full", "embeddings", "layers:16")
    assert half.step_time_s < 0.8 * whole.step_time_s
    assert half.peak_bytes < 0.7 * whole.peak_bytes


def test_mfu_counts_what_is_computed() -> None:
    """Adapters leave out the weight gradients, so as many tokens a second are less MFU."""
    full, lora = plan("full"), plan("lora:targets=attention")
    assert full.tokens_per_s < lora.tokens_per_s
    assert lora.mfu / lora.tokens_per_s < 0.75 * full.mfu / full.tokens_per_s


@pytest.mark.parametrize(
    ("train", "framework", "says"),
    [
        ("lora", "megatron-core", "megatron-bridge"),
        ("lora:base=nf4", "megatron-bridge", "does not quantise frozen weights"),
        ("qlora:base=gptq4", "torchtune", "stores frozen weights only in nf4-double"),
    ],
)
def test_a_framework_without_it_is_refused_with_those_that_have_it(
    train: str, framework: str, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        Request(model="8b", gpus="1xH100", gbs=1, framework=framework, train=train).resolve()


@pytest.mark.parametrize(
    ("model", "rank", "gib"),
    [("llama-3.1-8b", 16, 7.9), ("qwen3-14b", 16, 12.9), ("qwen3-32b", 32, 24.5)],
)
def test_unsloth_holds_what_its_notebooks_print(model: str, rank: int, gib: float) -> None:
    """Reserved at the peak, micro-batches of 2 samples of at most 2,048 tokens, 8-bit AdamW."""
    found = plan(
        f"qlora:rank={rank}", model=model, framework="unsloth", seq=2048, mbs=2,
        optimizer="adamw-8bit",
    )  # fmt: skip
    stage = found.stages[0]
    assert (stage.allocated + stage.fragmentation) / GIB == pytest.approx(gib, rel=0.12)


@pytest.mark.parametrize(
    ("train", "freeze", "framework"),
    [
        ("lora", (), "megatron-bridge"),
        ("qlora", (), "deepspeed"),
        ("full", ("embeddings", "layers:8"), "megatron-core"),
    ],
)
def test_bounds_hold_for_parts_of_the_weights(
    train: str, freeze: tuple[str, ...], framework: str
) -> None:
    """What a search skips by is below what any legal shape costs."""
    request = Request(
        model="llama-3.2-1b", gpus="4xH100", gbs=16, seq=2048, framework=framework, train=train,
        freeze=freeze,
    )  # fmt: skip
    model = CostModel(request.resolve())
    context = rule_context(model.job)
    columns, _ = legal_shapes(context, enumerate_shapes(context))
    steps = model.cost_shapes(columns).steps
    assert len(steps) > 10
    assert (steps[:, f.STEP_TIME_BOUND] <= steps[:, f.STEP_TIME] * (1 + 1e-12)).all()
    assert (steps[:, f.STEP_PEAK_BOUND] <= steps[:, f.STEP_PEAK_BYTES] * (1 + 1e-12)).all()


def test_adapters_that_are_units_of_fsdp_are_gathered_one_by_one() -> None:
    """Eight matrices beside the layers of attention; none by itself where kernels fuse them."""
    plain, model = load_framework("fsdp1"), load_model("llama-3-8b").spec
    tuned = tuned_profile(plain, read_tuning("lora:rank=8,targets=attention"), model)
    waits = plain.kernels.gather_wait_s + 8 * plain.adapters.unit_gather_s
    assert tuned.kernels.gather_wait_s == pytest.approx(waits)
    fused = with_tables(plain, {"adapters": {"fused_kernels": True}})
    tuned = tuned_profile(fused, read_tuning("lora:rank=8,targets=attention"), model)
    assert tuned.kernels.gather_wait_s == plain.kernels.gather_wait_s
    assert plain.adapters.unit_gather_s > 0.0


def test_a_loss_that_does_not_run_on_older_gpus_keeps_its_logits_there() -> None:
    unsloth = load_framework("unsloth")
    assert on_gpu(unsloth, "ampere") is unsloth
    older = on_gpu(unsloth, "turing")
    assert not older.saved.linear_loss
    assert older.saved.logits_peak_bytes > unsloth.saved.logits_peak_bytes
    given = {"model": "llama-3.2-3b", "framework": "unsloth", "train": "qlora", "seq": 2048}
    peaks = {}
    for gpu in ("T4", "A10G"):
        request = Request(gpus=f"1x{gpu}", gbs=8, precision="fp16", **given)
        degrees = Degrees(tp=1, pp=1, cp=1, dp=1, zero=0, mbs=2, grad_acc=4)
        found = evaluated(Proposal(request, degrees, "full").of(request.resolve()))
        peaks[gpu] = found.stages[0].logits / GIB
    assert peaks["T4"] > peaks["A10G"]
