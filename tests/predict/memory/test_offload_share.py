"""A share of the activations on the host: the views of it, and by hand."""

from __future__ import annotations

import random

import pytest

from constraints.offload import kept_groups, leaving_layers
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Plan
from planner.predict.saved import shape_groups
from tests.configurations import memory_footprint
from tests.predict.memory.cases import demand_sums

MODULES = ("core_attn,attn_proj", "qkv_linear,core_attn,attn_proj", "all")
# Model, modules' choice, degrees, recompute modes that go with any of the modules.
CASES = (
    ("gpt2-medium", Degrees(pp=4, mbs=8, grad_acc=8)),
    ("gpt2-medium", Degrees(pp=1, mbs=4, grad_acc=2)),
    ("llama-3-8b", Degrees(pp=2, vpp=4, tp=2, mbs=1, grad_acc=8)),
    ("llama-3-8b", Degrees(pp=4, vpp=2, mbs=2, grad_acc=8)),
    ("mixtral-8x7b", Degrees(pp=4, tp=2, ep=2, dp=2, mbs=1, grad_acc=8, zero=1)),
    ("deepseek-v3", Degrees(pp=4, tp=4, ep=32, dp=8, mbs=1, grad_acc=8, zero=1)),
)


def request(model: str, degrees: Degrees, modules: str, fraction: float) -> Request:
    return Request(
        model=model, gpus=f"{degrees.gpus}xH100", gbs=degrees.gbs, seq=4096 if "2" not in model
        else 1024, activation_offload=modules, activation_offload_fraction=fraction,
    )  # fmt: skip


def split(model: str, degrees: Degrees, rng: random.Random) -> tuple[int, ...]:
    """Layers of each block, a few moved from one to another."""
    layers = {"gpt2-medium": 24, "llama-3-8b": 32, "mixtral-8x7b": 32, "deepseek-v3": 61}[model]
    blocks = degrees.pp * degrees.vpp
    counts = [layers // blocks + (index < layers % blocks) for index in range(blocks)]
    if blocks > 1:
        one, other = rng.sample(range(blocks), 2)
        counts[one], counts[other] = counts[one] - 1, counts[other] + 1
    return tuple(counts)


@pytest.mark.parametrize("seed", range(12))
def test_evaluate_and_the_account_hold_the_same(seed: int) -> None:
    """Equal to the last digit; terms and kept tensors add up."""
    rng = random.Random(seed)
    model, degrees = CASES[seed % len(CASES)]
    found = request(model, degrees, rng.choice(MODULES), round(rng.uniform(0.02, 0.98), 3))
    blocks, mode = split(model, degrees, rng), rng.choice(("none", "layernorm"))
    if "norm" in found.activation_offload or found.activation_offload == "all":
        mode = "none"
    plan = evaluate(found, degrees, mode, blocks)
    account = memory_footprint(found, degrees, mode, blocks)
    for stage, held in zip(plan.stages, account.stages, strict=True):
        assert stage.allocated == held.allocated_bytes == held.peak.total_bytes, (seed, found)
        for phase in held.later_steps:
            demand_sums(account.configuration.job, held, phase, f"seed {seed}")


def costed(fraction: float | None, degrees: Degrees) -> Plan:
    found = request("gpt2-medium", degrees, "core_attn,attn_proj", fraction or 1.0)
    if fraction is None:
        found = found.model_copy(update={"activation_offload": "off"})
    return evaluate(found, degrees)


def test_what_stays_and_what_is_back_by_hand() -> None:
    """gpt2-medium over 4 stages, 8 micro-batches of 8 x 1024: 6 layers of 2 modules a stage.

    At 0.5 six of twelve groups stay: three layers. q, k, v and the output of attention are 4·s·b·h
    elements of 2 bytes; in flight on stage 0 are 4 micro-batches. Without offload 4·6 layers of
    them are there; at 0.5 four times 3, and the 3 of the next micro-batch that are back, with one
    more on its way and the output, of which a layer that is back holds a second copy.
    """
    degrees = Degrees(pp=4, mbs=8, grad_acc=8)
    tensor = 2 * 8 * 1024 * 1024
    layer = 4 * tensor
    plain, half = costed(None, degrees), costed(0.5, degrees)
    kept = 4 * 3 + 3 + 1
    for stage, last in ((0, False), (3, True)):
        less = plain.stages[stage].activations - half.stages[stage].activations
        if last:
            # One micro-batch in flight: three layers stay, two more are on their way.
            assert less == pytest.approx(6 * layer - (3 + 2) * layer - tensor, abs=1.0)
        else:
            assert less == pytest.approx(4 * 6 * layer - kept * layer - tensor, abs=1.0)


def test_less_on_the_host_takes_less_time_and_more_memory() -> None:
    degrees = Degrees(pp=4, mbs=8, grad_acc=8)
    plans = [costed(item, degrees) for item in (1.0, 0.8, 0.6, 0.4, 0.2)]
    times = [plan.step_time_s for plan in plans]
    peaks = [plan.peak_bytes for plan in plans]
    hosts = [plan.stages[0].offloaded for plan in plans]
    assert times == sorted(times, reverse=True)
    assert peaks == sorted(peaks)
    assert hosts == sorted(hosts, reverse=True)
    assert times[0] > times[-1] > costed(None, degrees).step_time_s


def test_a_divided_layer_is_on_the_gpu_and_copied() -> None:
    """Seven of twelve groups leave: three layers and one of the fourth's two modules."""
    degrees = Degrees(pp=4, mbs=8, grad_acc=8)
    divided, more, less = (costed(item, degrees) for item in (0.55, 0.64, 0.45))
    assert kept_groups(12, 0.55) == 5
    assert kept_groups(12, 0.64) == 4
    assert kept_groups(12, 0.45) == 6
    assert divided.time.offload_s == more.time.offload_s
    assert divided.peak_bytes == less.peak_bytes


@pytest.mark.parametrize(
    ("kinds", "groups", "fraction", "leaving"),
    [
        ([0] * 6, (2,), 0.5, (3, 3)),
        ([0] * 6, (2,), 0.55, (3, 4)),
        ([0] * 6, (2,), 1.0, (6, 6)),
        ([0] * 6, (2,), 1e-9, (0, 1)),
        ([0, 0, 1, 1], (2, 4), 0.5, (2, 3)),
        ([0, 0, 1, 1], (0, 4), 0.5, (3, 3)),
        ([1, 1, 0, 0], (0, 4), 0.5, (1, 1)),
        ([], (2,), 0.5, (0, 0)),
    ],
)
def test_the_last_groups_of_a_chunk_stay(
    kinds: list[int], groups: tuple[int, ...], fraction: float, leaving: tuple[int, int]
) -> None:
    assert leaving_layers(kinds, groups, fraction) == leaving


def test_rounding_is_that_of_the_framework() -> None:
    """In floats 10·(1 - 0.9) is less than 1, and nothing stays."""
    assert kept_groups(10, 0.9) == 0
    assert kept_groups(10, 0.89) == 1


def test_only_modules_with_a_large_tensor_are_groups() -> None:
    """2^20 elements: of gpt2-medium's 1024 features 1,024 tokens make one, 512 do not."""
    degrees = Degrees(mbs=1)
    job = request("gpt2-medium", degrees, "core_attn,attn_proj", 0.5).resolve()
    mode = job.framework.recompute_mode("none")
    sizes = {"cp": 1, "ep": 1, "etp": 1, "mbs": 1}
    assert shape_groups(job, mode, tp=1, **sizes) == (2,)
    assert shape_groups(job, mode, tp=2, **sizes) == (0,)
