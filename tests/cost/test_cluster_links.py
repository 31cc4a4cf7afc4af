"""Collectives over the links of a cluster: where experts lie, and published exchanges."""

from __future__ import annotations

import math
import random

import pytest

from hardware.load import parse_gpus
from planner.cost.communication import (
    all_to_all_time_s,
    deduplicated_exchange_time_s,
    distinct_groups,
    parts_hit,
)
from planner.predict.links import link_inputs


@pytest.mark.parametrize("parts", [1, 2, 4, 8, 16, 64])
def test_experts_of_few_groups_lie_in_few_parts(parts: int) -> None:
    """DeepSeek-V3's 8 of 256 experts in 4 of 8 groups, against draws; without groups the closed
    form n (1 - (1 - 1/n)^k)."""
    draw = random.Random(7)
    hits = 0
    for _ in range(4000):
        chosen = draw.sample(range(8), 4)
        experts = draw.choices([group * 32 + index for group in chosen for index in range(32)], k=8)
        hits += len({expert * parts // 256 for expert in experts})
    assert parts_hit(float(parts), 8.0, 8.0, 4.0) == pytest.approx(hits / 4000, rel=0.03)
    assert parts_hit(float(parts), 8.0, 1.0, 1.0) == distinct_groups(float(parts), 8.0)


@pytest.mark.parametrize(
    ("gpus", "ranks", "gigabytes_per_s", "error"),
    [
        ("8xB200", 8, (734.95, 673.84), 0.06),
        ("72xGB200", 8, (764.03, 737.13), 0.09),
        ("72xGB200", 16, (706.95, 666.26), 0.07),
        ("72xGB200", 32, (642.23, 605.15), 0.05),
        ("72xGB200", 36, (632.31, 596.99), 0.05),
        ("64xH100", 32, (57.69, 57.46), 0.02),
        ("64xH100", 64, (49.97, 49.77), 0.03),
    ],
)
def test_hybridep_as_published(
    gpus: str, ranks: int, gigabytes_per_s: tuple[float, float], error: float
) -> None:
    """Mean of dispatch and combine in bf16, kernels alone, of 4096 tokens of 7168 to 8 experts
    (DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md); rates count what stays, by ranks inside a
    domain and by nodes beyond."""
    links = link_inputs(parse_gpus(gpus))
    token_bytes, members = 4096 * 7168 * 2.0, min(float(ranks), links.scale_up_domain)
    groups = ranks if ranks <= members else ranks / members
    counted = token_bytes * distinct_groups(float(groups), 8.0)
    hit = distinct_groups(float(ranks), 8.0), distinct_groups(math.ceil(ranks / members), 8.0)
    measured_s = sum(counted / (rate * 1e9) for rate in gigabytes_per_s) / 2
    predicted_s = deduplicated_exchange_time_s(token_bytes, 4096.0, *hit, ranks, members, links)
    assert predicted_s == pytest.approx(measured_s, rel=error)


@pytest.mark.parametrize(
    ("gpus", "gigabytes_per_s"), [("8xB200", (424.0, 364.0)), ("8xH100", (329.0, 287.0))]
)
def test_deepep_as_published(gpus: str, gigabytes_per_s: tuple[float, float]) -> None:
    """The same of DeepEP's first kernels on 20 SMs: B200 between its 16 and 24 SMs there, H100 in
    tile-ai/tilescale pull request 40. A token of 2048 takes about half as long as one of 7168, as
    in Qwen3-30B on B200 (tests/evidence/runs/test_strangers.py)."""
    links = link_inputs(parse_gpus(gpus), stores=True)
    token_bytes, hit = 4096 * 7168 * 2.0, distinct_groups(8.0, 8.0)
    measured_s = sum(token_bytes * hit / (rate * 1e9) for rate in gigabytes_per_s) / 2
    wide_s, narrow_s = (
        deduplicated_exchange_time_s(size, 4096.0, hit, 1.0, 8, 8, links)
        for size in (token_bytes, token_bytes * 2048 / 7168)
    )
    assert wide_s == pytest.approx(measured_s, rel=0.06)
    assert 0.45 * wide_s < narrow_s < 0.7 * wide_s


@pytest.mark.parametrize(
    ("ranks", "measured_s", "error"),
    [
        (8, 699.9e-6, 0.02),
        (16, 3213.9e-6, 0.1),
        (32, 4225.9e-6, 0.06),
        (64, 5418.1e-6, 0.06),
        (128, 4972.0e-6, 0.14),
    ],
)
def test_an_all_to_all_as_published(ranks: int, measured_s: float, error: float) -> None:
    """torch's all-to-all of 128 tokens of 7168 fp8 elements, with their scales, for each of 256
    experts on H100 (ppl-ai/pplx-kernels README @12cecfd, "Torch AtA"; tests/bench_all_to_all.py):
    37.7 to 45.7 of a NIC's 50 GB/s, where rings reach 48."""
    links = link_inputs(parse_gpus(f"{ranks}xH100"))
    payload = 256.0 * 128.0 * (7168.0 + 7168.0 / 128.0 * 4.0)
    assert all_to_all_time_s(payload, ranks, 8, links) == pytest.approx(measured_s, rel=error)


@pytest.mark.parametrize(
    ("ranks", "mebibytes", "gigabytes_per_s", "error"),
    [
        (16, 128, 73.38, 0.18),
        (16, 2048, 84.53, 0.02),
        (32, 32, 35.56, 0.06),
        (32, 128, 54.26, 0.22),
        (64, 64, 35.24, 0.05),
        (64, 2048, 50.41, 0.05),
        (256, 32, 19.79, 0.12),
        (256, 2048, 40.94, 0.07),
    ],
)
def test_an_all_to_all_over_efa_as_published(
    ranks: int, mebibytes: int, gigabytes_per_s: float, error: float
) -> None:
    """nccl-tests on p5, algorithm bandwidth (crazyguitar/aws-gpu-communication-benchmark,
    data/nccl_alltoall.csv @b03dea39)."""
    links = link_inputs(parse_gpus(f"{ranks}xaws-p5"))
    payload = mebibytes * 2.0**20
    measured_s = payload / (gigabytes_per_s * 1e9)
    assert all_to_all_time_s(payload, ranks, 8, links) == pytest.approx(measured_s, rel=error)


def test_tokens_leave_over_efa_message_by_message() -> None:
    """Its NICs take messages from the CPU alone: a small token takes as long as one of four times
    its bytes; inside a node, and over InfiniBand, nothing of that is seen."""
    efa, infiniband = (link_inputs(parse_gpus(f"64x{nodes}")) for nodes in ("aws-p5", "H100"))
    small, large = (
        deduplicated_exchange_time_s(2048.0 * width, 2048.0, 7.0, 3.5, 32, 8, efa)
        for width in (4096.0, 16384.0)
    )
    assert small == pytest.approx(large)
    assert small == pytest.approx(2048 * 3.5 * 0.75 * efa.scale_out_message_s, rel=0.02)
    assert infiniband.scale_out_message_s == 0.0
    alone = deduplicated_exchange_time_s(2048.0 * 4096.0, 2048.0, 7.0, 1.0, 8, 8, efa)
    assert alone < 0.1 * small
