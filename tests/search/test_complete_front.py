"""The complete front of small jobs against every layout of every configuration.

Frameworks that differ in how layers may be split and recomputed; dense and mixtures of experts.
GPUs of several types: `tests.search.test_pools`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, pairwise, product
from pathlib import Path
from typing import Any

import pytest

from constraints.layout import LAYOUT_RULES
from constraints.layout_context import LayoutContext
from constraints.rule import Layout
from planner.job.request import Request
from planner.predict.plan import OPTIMAL_WITHIN
from planner.predict.uncertainty.likely import likely_limit_bytes
from planner.search.exact_front import MEMORY_BYTES
from planner.search.explorer import Effort, Explorer, Point
from planner.search.limit_results import SLOWEST
from planner.search.search import find_plans
from planner.search.shares import cost_shares

DENSE = """
source = "made up"
[shape]
family = "llama"
layers = 5
hidden = 8192
heads = 64
kv_heads = 8
head_dim = 128
ffn = 28672
vocab = 32000
max_positions = 8192
pretraining_seq = 4096
activation = "silu"
"""
# The first of its layers is dense, the others hold experts.
EXPERTS = """
source = "made up"
[shape]
family = "deepseek"
layers = 5
hidden = 4096
heads = 32
kv_heads = 32
head_dim = 128
ffn = 12288
vocab = 32000
max_positions = 8192
pretraining_seq = 4096
activation = "silu"
[shape.moe]
experts = 8
top_k = 2
ffn = 8192
[layers]
first_k_dense = 1
"""
LIMITS = {"cp": (1,), "mbs": (1,), "vpp": (1, 2), "pp": (1, 2, 3, 4)}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "megatron-core": (DENSE, {}),
    "megatron-core, experts": (EXPERTS, {"limits": LIMITS | {"vpp": (1,)}}),
    "torchtitan": (DENSE, {"framework": "torchtitan"}),
    "deepspeed": (DENSE, {"framework": "deepspeed"}),
    "nanotron": (DENSE, {"framework": "nanotron"}),
    "megatron-bridge, experts": (
        EXPERTS,
        {"framework": "megatron-bridge", "limits": LIMITS | {"pp": (1, 2)}},
    ),
    "megatron-fsdp": (DENSE, {"framework": "megatron-fsdp"}),
    "torchtitan, experts": (EXPERTS, {"framework": "torchtitan"}),
    "hf-fsdp2": (DENSE, {"framework": "hf-fsdp2"}),
    # The last stage may hold one layer with experts alone: no other is gathered or reduced beside.
    "torchtitan, experts last": (
        EXPERTS.replace("first_k_dense = 1", "first_k_dense = 4"),
        {
            "framework": "torchtitan",
            "limits": LIMITS | {"pp": (2,), "vpp": (1,), "tp": (1,), "ep": (1,), "zero": (3,)},
        },
    ),
}


def splits(layers: int, blocks: int) -> Iterator[tuple[int, ...]]:
    """All ways to put layers into blocks in order, empty ones too."""
    for cuts in combinations(range(layers + blocks - 1), blocks - 1):
        places = (-1, *cuts, layers + blocks - 1)
        yield tuple(high - low - 1 for low, high in pairwise(places))


def every_layout(ctx: LayoutContext) -> Iterator[Layout]:
    """Every legal layout of a shape, whatever it holds."""
    rules = [rule for rule in LAYOUT_RULES if rule.name != "stage-memory"]
    for blocks in splits(ctx.layers, ctx.blocks):
        plain = Layout(ctx.pp, ctx.vpp, blocks, {}, ctx.placement)
        stages = [range(count + 1) for count in plain.stage_layers]
        for counts in product(product(*stages), repeat=len(ctx.modes)):
            layout = replace(plain, recomputed=dict(zip(ctx.modes, counts, strict=True)))
            if all(rule.check(layout, ctx) for rule in rules):
                yield layout


def every_point(explorer: Explorer) -> Iterator[Point]:
    """Every legal layout of every shape that could lie on the front, costed by the kernel."""
    for row in explorer.rows.tolist():
        if explorer.only_even[row]:
            yield explorer.even_point(row)
            continue
        yield from (
            explorer.cost(row, layout)
            for layout in every_layout(explorer.linear(row, explorer.limit_bytes)[1])
        )


@pytest.mark.parametrize("name", JOBS)
def test_nothing_is_missing_from_the_complete_front(name: str, tmp_path: Path) -> None:
    text, options = JOBS[name]
    model = tmp_path / "model.toml"
    model.write_text(text, encoding="utf-8")
    request = Request(
        model=str(model), gpus="12xA100-80GB", gbs=48, seq=4096, **{"limits": LIMITS} | options
    )
    result = find_plans(request)
    assert result.complete
    assert result.proven
    front = [(plan.step_time_s / plan.gbs, plan.peak_bytes) for plan in result.plans]
    shares = cost_shares(request.resolve())
    heaviest = likely_limit_bytes(shares.job, request.fit_probability)
    checked = uneven = 0
    for point in chain.from_iterable(every_point(job.explorer(Effort())) for job in shares.jobs):
        if point.peak > heaviest or point.sample_s > SLOWEST * front[0][0]:
            continue
        checked += 1
        uneven += len(set(point.layout.block_layers)) > 1
        assert any(
            sample_s <= point.sample_s * (1.0 + 2.0 * OPTIMAL_WITHIN)
            and held <= point.peak + MEMORY_BYTES
            for sample_s, held in front
        ), point
    # These split layers in one way alone.
    one_way = name in ("nanotron", "deepspeed", "megatron-fsdp", "hf-fsdp2")
    assert checked >= (1 if one_way else 7 if "last" in name else 50)
    assert uneven or one_way
