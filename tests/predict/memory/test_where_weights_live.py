"""Shards of weights in host memory and on NVMe, and a second copy of them: bytes and seconds."""

from __future__ import annotations

import pytest

from hardware.curves import host_curves
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.predict.evaluate import evaluate
from planner.predict.home_notes import home_bytes
from planner.predict.homes import nvme_bytes_per_s
from planner.predict.links import link_inputs
from planner.predict.plan import Degrees, Plan
from tests.configurations import memory_footprint

# Llama 3.1 8B, its layers alone, and those that a step gathers: all.
PARAMETERS = 8_030_261_248
GIB = 2.0**30
SHARDED = Degrees(dp=8, zero=3, mbs=1)
NVME = {"use": ("parameter-nvme", "optimizer-nvme"), "optimizer_offload": 1.0}


def deepspeed(gpus: str = "8xH100", gbs: int = 8, **fields: object) -> Request:
    fields = {"framework": "deepspeed", "seq": 2048, "model": "llama-3.1-8b"} | fields
    return Request(gpus=gpus, gbs=gbs, **fields)


def planned(request: Request, degrees: Degrees = SHARDED) -> Plan:
    return evaluate(request, degrees, "full")


def resting(request: Request, degrees: Degrees = SHARDED) -> float:
    """Bytes of weights at rest."""
    return memory_footprint(request, degrees, "full").heaviest.phase("optimizer").terms["weights"]


def test_no_shard_of_the_weights_rests_on_the_gpu() -> None:
    moved = deepspeed(use=("parameter-offload",))
    assert resting(deepspeed()) == pytest.approx(2 * PARAMETERS / 8, rel=1e-3)
    assert resting(moved) == 0.0
    assert home_bytes(moved.resolve()).host == pytest.approx(2 * PARAMETERS, rel=1e-3)
    saved = planned(deepspeed()).allocated_bytes - planned(moved).allocated_bytes
    assert saved == pytest.approx(2 * PARAMETERS / 8, rel=0.01)


def test_each_gather_fetches_a_shard() -> None:
    """Forward and backward of a micro-batch, each once, and the update's way back."""
    request = deepspeed(use=("parameter-offload",))
    rate = link_inputs(request.resolve().cluster).host_bytes_per_s
    shard_s = 2 * PARAMETERS / 8 / rate
    plan, plain = planned(request), planned(deepspeed())
    assert plan.time.fsdp_s - plain.time.fsdp_s == pytest.approx(2 * shard_s, rel=0.05)
    assert plan.time.optimizer_s - plain.time.optimizer_s == pytest.approx(shard_s, rel=0.01)
    twice = planned(deepspeed(gbs=16, use=("parameter-offload",)), Degrees(
        dp=8, zero=3, mbs=1, grad_acc=2))  # fmt: skip
    assert twice.time.fsdp_s == pytest.approx(2 * plan.time.fsdp_s, rel=0.01)


def test_one_gpu_fetches_too() -> None:
    """A model of 13 B on a card of 24 GB: two layers and more are there at a time, no state."""
    fields = {"model": "llama-2-13b", "use": ("parameter-offload",), "optimizer_offload": 1.0}
    one = Degrees(zero=3, mbs=1)
    plan = planned(deepspeed("1xRTX4090", 1, **fields), one)
    assert plan.fits
    assert plan.stages[0].gather_buffers > 0.0
    assert plan.time.fsdp_s > 2 * 2 * 13e9 / 32e9
    assert not planned(deepspeed("1xRTX4090", 1, model="llama-2-13b", optimizer_offload=1.0),
                       one).fits  # fmt: skip


def test_frozen_weights_are_fetched_as_they_are_packed() -> None:
    """QLoRA: half a byte a parameter of the base crosses the link, 16 bits of the rest."""
    fields = {"train": "qlora:rank=8,base=nf4", "use": ("parameter-offload",)}
    packed = home_bytes(deepspeed(**fields).resolve()).host
    whole = home_bytes(deepspeed(train="lora:rank=8", use=fields["use"]).resolve()).host
    tables = 2 * 128_256 * 4096
    assert packed == pytest.approx((PARAMETERS - tables) * 0.5625 + 2 * tables, rel=0.02)
    assert whole == pytest.approx(2 * PARAMETERS, rel=0.01)


def test_drives_hold_and_slow_what_is_on_them() -> None:
    """States, master weight and gradient (16 bytes) are written and read in each update."""
    request = deepspeed(**NVME)
    job = request.resolve()
    sizes = home_bytes(job)
    assert sizes.host == 0.0
    assert sizes.states_nvme == pytest.approx(16 * PARAMETERS)
    assert sizes.weights_nvme == pytest.approx(2 * PARAMETERS, rel=1e-3)
    rate = nvme_bytes_per_s(job.cluster)
    assert rate == host_curves().nvme_bytes_per_s_per_node.value / 8
    on_host = deepspeed(use=("parameter-offload",), optimizer_offload=1.0)
    slower = planned(request).time.optimizer_s - planned(on_host).time.optimizer_s
    assert slower == pytest.approx((2 * 16 + 2) * PARAMETERS / 8 / rate, rel=0.02)
    assert planned(request).peak_bytes == pytest.approx(planned(on_host).peak_bytes)


def test_a_workstation_has_a_drive_a_gpu() -> None:
    cluster = deepspeed("1xRTX4090", 1).resolve().cluster
    assert nvme_bytes_per_s(cluster) == host_curves().nvme_bytes_per_s_per_drive.value


@pytest.mark.parametrize("framework", ["torchtitan", "hf-fsdp2", "fsdp1"])
def test_fsdp_fetches_master_weights(framework: str) -> None:
    """Its offload moves fp32 shards, which each gather copies before it casts them."""
    request = deepspeed(framework=framework, optimizer_offload=1.0)
    job = request.resolve()
    rate = link_inputs(job.cluster).host_bytes_per_s
    from planner.predict.homes import fetch_bytes_per_s, host_weight_bytes

    assert host_weight_bytes(job.framework, job.optimizer_setting) == 4.0
    assert fetch_bytes_per_s(job.framework, job.optimizer_setting, job.cluster) == rate


def test_fsdps_frozen_weights_leave_with_the_others() -> None:
    fields = {"framework": "hf-fsdp2", "train": "lora:rank=8"}
    assert resting(deepspeed(**fields)) > PARAMETERS / 8
    assert resting(deepspeed(**fields, optimizer_offload=1.0)) == 0.0


TWO_NODES = Degrees(dp=16, zero=3, mbs=1)


def test_a_second_copy_keeps_gathers_in_the_node() -> None:
    """An eighth of the weights more; of two micro-batches' four gathers one leaves the node."""
    plain, both = deepspeed("2x8xH100", 16), deepspeed("2x8xH100", 16, use=("hpz",))
    more = resting(both, TWO_NODES) - resting(plain, TWO_NODES)
    assert more == pytest.approx(2 * PARAMETERS / 8, rel=1e-3)
    assert planned(both, TWO_NODES).step_time_s < planned(plain, TWO_NODES).step_time_s
    one = planned(both, TWO_NODES).time.fsdp_s
    two = Degrees(dp=16, zero=3, mbs=1, grad_acc=2)
    again = planned(deepspeed("2x8xH100", 32, use=("hpz",)), two).time.fsdp_s
    assert again < 2 * one


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"use": ("parameter-offload",)}, r"needs zero == 3.*leave --with parameter-offload out"),
        ({"use": ("hpz",)}, r"needs zero == 3 and nodes > 1.*leave --with hpz out"),
    ],
)
def test_what_stages_do_not_have(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        planned(deepspeed(**fields), Degrees(dp=8, zero=2, mbs=1))


def test_states_reach_a_drive_by_way_of_the_cpu() -> None:
    with pytest.raises(UsageError, match="give --optimizer-offload 1, or leave optimizer-nvme out"):
        deepspeed(use=("optimizer-nvme",)).resolve()
    with pytest.raises(UsageError, match="leave one of them out"):
        deepspeed(use=("parameter-offload", "hpz")).resolve()
    with pytest.raises(UsageError, match="technique for --with"):
        deepspeed(framework="megatron-core", use=("parameter-offload",)).resolve()
