"""Weights that travel to the engine: bytes, tensors, seconds by way."""

import pytest

from planner.predict.rl.moves import (
    moved_weights,
    published_tensors,
    transfer,
    unpinned_bytes_per_s,
    ways,
)
from planner.predict.rl.plan import EngineLayout
from tests.job.rl.test_request import request

# Seconds that verl and NeMo-RL published: model, trainer GPUs, way, GPUs of an engine, GB a rank.
PUBLISHED = [
    ("qwen2.5-7b", "ipc", 1, 3.8, 2.2),
    ("qwen3-30b-a3b", "ipc", 4, 3.8, 5.6),
    ("qwen3-235b-a22b", "ipc", 16, 3.0, 25.0),
    ("qwen2.5-32b", "broadcast", 4, 4.1, 14.2),
    ("qwen2.5-72b", "broadcast", 8, 4.5, 28.5),
    ("qwen3-30b-a3b", "broadcast", 4, 7.6, 32.2),
    ("qwen3-30b-a3b", "checkpoint-engine", 4, 7.6, 4.38),
    ("qwen3-235b-a22b", "checkpoint-engine", 8, 7.3, 23.7),
    ("deepseek-v3", "reshard", 32, 5.2, 2.39),
    ("qwen2.5-7b", "delta", 1, 1.9, 3.9),
    ("qwen3-235b-a22b", "delta", 8, 7.3, 11.4),
]


@pytest.mark.parametrize(("model", "way", "tp", "shard_gb", "measured"), PUBLISHED)
def test_published_times_lie_within_a_factor_of_two(model, way, tp, shard_gb, measured):
    job = request(model=model, gpus="64xH100").resolve()
    found = transfer(job, EngineLayout(2, tp=tp), way, shard_gb * 1e9)
    assert measured / 2.0 < found.seconds < measured * 2.0


def test_each_expert_is_a_tensor_of_its_own():
    job = request(model="qwen3-30b-a3b").resolve()
    # 48 layers of 128 experts with three matrices each: 18,867 tensors in the published index.
    assert published_tensors(job.policy) == pytest.approx(18_867, rel=0.01)


def test_of_adapters_only_these_travel():
    whole, _ = moved_weights(request().resolve())
    adapted, tensors = moved_weights(
        request(trainer={"framework": "hf-fsdp2", "train": "lora:rank=16"}).resolve()
    )
    assert adapted < whole / 100
    assert tensors > 36


def test_eight_bits_are_made_on_the_way():
    engine = EngineLayout(2, tp=2)
    plain = transfer(request().resolve(), engine, "ipc", 1e9)
    small = transfer(request(rollout_precision="fp8").resolve(), engine, "ipc", 1e9)
    assert small.seconds > plain.seconds
    assert "quantise" in small.terms


def test_every_way_of_every_framework_is_known():
    from planner.job.rl.frameworks import rl_frameworks

    for framework in rl_frameworks().values():
        named = {framework.transfer_colocated, *framework.transfer_separate}
        assert named <= set(ways()), framework.name


def test_pages_of_a_host_beyond_nvlink_are_read_faster():
    over_pcie, coherent = (
        unpinned_bytes_per_s(request(gpus=f"16x{name}").resolve().trainer.cluster)
        for name in ("H100", "GB200")
    )
    assert coherent / over_pcie == pytest.approx(225.0 / 63.0)
