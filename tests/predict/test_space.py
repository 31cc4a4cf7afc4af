"""Enumeration of shapes: published launches are in it, nothing twice, counts stay small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from constraints.context import RuleContext
from constraints.numbers import SHAPE_COLUMNS, BatchGoal, ClusterNumbers
from constraints.user import parse_degree_limit
from planner.cost.layout import filled_pipelines
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.job import model_numbers
from planner.job.models.catalog import load_model
from planner.predict.cost_tables import greedy_costs
from planner.predict.space import (
    Shape,
    enumerate_shapes,
    largest_usable,
    legal_shapes,
)


def job(
    model: str = "llama-3.1-70b",
    framework: str = "megatron-core",
    gpus: int = 64,
    gbs: int = 512,
    *,
    seq: int = 8192,
    exact: bool = False,
    domain: int = 8,
    modes: int = 2,
    precision: str = "bf16",
    **limits: str,
) -> RuleContext:
    profile, spec = load_framework(framework), load_model(model).spec
    layer, head = greedy_costs(spec, profile.parallelism)
    return RuleContext(
        model=model_numbers(spec, seq),
        cluster=ClusterNumbers(gpus, gpus_per_node=min(8, domain), scale_up_domain=domain),
        batch=BatchGoal(gbs, exact=exact),
        framework=profile.parallelism,
        framework_name=profile.name,
        precision=precision,
        recompute_modes=modes,
        filled_pipelines=filled_pipelines(spec.layers, layer, head) if layer else frozenset(),
        limits={name: parse_degree_limit(text, name) for name, text in limits.items()},
    )


def legal(ctx: RuleContext) -> Shape:
    columns, _ = legal_shapes(ctx, enumerate_shapes(ctx))
    return columns


def count(columns: Shape, **degrees: int) -> int:
    rows = [columns[name] == value for name, value in degrees.items()]
    return int(np.logical_and.reduce(rows).sum())


# Published launches: model, GPUs, sequence, global batch and degrees.
PUBLISHED = {
    # NVIDIA Megatron-Bridge performance summary, 70B on 64 H100.
    "nvidia 70b": (
        job("llama-3.1-70b", gpus=64, gbs=512),
        {"tp": 4, "pp": 4, "cp": 2, "vpp": 5, "dp": 2, "mbs": 1, "grad_acc": 256, "gbs": 512},
    ),
    # Llama 3, arXiv 2407.21783, table 4.
    "llama 3 405b": (
        job("llama-3.1-405b", gpus=16384, gbs=2048, exact=True),
        {"tp": 8, "pp": 16, "cp": 1, "dp": 128, "mbs": 1, "grad_acc": 16, "gbs": 2048},
    ),
    # The same, long-context stage.
    "llama 3 405b, 128k": (
        job("llama-3.1-405b", gpus=16384, gbs=128, seq=131072, exact=True),
        {"tp": 8, "pp": 16, "cp": 16, "dp": 8, "mbs": 1, "grad_acc": 16, "gbs": 128},
    ),
    # NVIDIA's 405B recipes: 64 chunks for 126 layers plus embedding and head.
    "nvidia 405b": (
        job("llama-3.1-405b", gpus=512, gbs=512),
        {"tp": 8, "pp": 8, "vpp": 8, "cp": 2, "mbs": 1, "gbs": 512},
    ),
    # DeepSeek-V3, arXiv 2412.19437, section 3.2: PP 16, EP 64, no TP, on 2,048 GPUs.
    "deepseek-v3": (
        job("deepseek-v3", gpus=2048, gbs=15360, seq=4096),
        {"tp": 1, "pp": 16, "ep": 64, "etp": 1, "dp": 128, "gbs": 15360},
    ),
    # MoE Parallel Folding, arXiv 2504.14960, table 3: TP 2, EP 4, PP 8, ETP as TP.
    "mixtral 8x22b": (
        job("mixtral-8x22b", gpus=128, gbs=256, seq=4096),
        {"tp": 2, "pp": 8, "ep": 4, "etp": 2, "dp": 8, "mbs": 1, "gbs": 256},
    ),
    # Narayanan et al. 2021, arXiv 2104.04473, table 1: the 1T row, on 3,072 GPUs.
    "megatron 1t": (
        job("megatron-1t", gpus=3072, gbs=3072, seq=2048),
        {"tp": 8, "pp": 64, "dp": 6, "gbs": 3072},
    ),
    # torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: 70B, 2D, on 256 H100.
    "torchtitan 70b": (
        job("llama-3.1-70b", "torchtitan", gpus=256, gbs=512),
        {"tp": 8, "pp": 1, "cp": 1, "dp": 32, "zero": 3, "mbs": 16, "grad_acc": 1, "gbs": 512},
    ),
}


@pytest.mark.parametrize(("ctx", "degrees"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_published_launch_is_legal_and_enumerated(
    ctx: RuleContext, degrees: dict[str, int]
) -> None:
    assert count(legal(ctx), **degrees) > 0


SIZES = {
    "dense": (job(), 5_000, 40_000),
    "405b on 16k": (job("llama-3.1-405b", gpus=16384, gbs=2048, modes=4), 5_000, 40_000),
    "405b, many divisors": (job("llama-3.1-405b", gpus=13824, gbs=2048, modes=4), 20_000, 100_000),
    "moe on 16k": (job("deepseek-v3", gpus=16384, gbs=15360, seq=4096, modes=7), 50_000, 300_000),
    "one GPU": (job("gpt2", gpus=1, gbs=480, seq=1024), 10, 100),
}


@pytest.mark.parametrize(("ctx", "least", "most"), SIZES.values(), ids=SIZES.keys())
def test_enumeration_is_sizeable_and_free_of_duplicates(
    ctx: RuleContext, least: int, most: int
) -> None:
    shapes = enumerate_shapes(ctx)
    assert least <= shapes.considered <= most
    assert tuple(shapes.columns) == SHAPE_COLUMNS
    assert all(column.dtype == np.int64 for column in shapes.columns.values())
    table = np.stack(list(shapes.columns.values()), axis=1)
    assert len(np.unique(table, axis=0)) == len(table) == shapes.considered


@pytest.mark.parametrize("framework", framework_names())
@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
def test_legal_shapes_keep_the_identities(framework: str, model: str) -> None:
    ctx = job(model, framework, gpus=32, gbs=250)
    shapes = enumerate_shapes(ctx)
    columns, report = legal_shapes(ctx, shapes)
    assert 0 < report.legal == len(columns["tp"])
    assert report.considered - sum(report.removed.values()) == report.legal
    assert (columns["dp"] * columns["tp"] * columns["pp"] * columns["cp"] == 32).all()
    assert (columns["mbs"] * columns["grad_acc"] * columns["dp"] == columns["gbs"]).all()
    assert (np.abs(columns["gbs"] - 250) <= 0.05 * 250).all()


def values(columns: Shape, name: str) -> set[int]:
    return set(columns[name].tolist())


def test_torchtitan_limits() -> None:
    columns = legal(job("mixtral-8x7b", "torchtitan", gpus=32, gbs=256))
    assert values(columns, "zero") == {0, 2, 3}
    assert (columns["grad_acc"] >= columns["pp"]).all()
    experts_spread = columns["ep"] > 1
    assert (columns["etp"][experts_spread] == 1).all()
    assert (columns["etp"] == columns["tp"])[~experts_spread].all()
    # Eight key/value heads stop tp there even in a wide domain; Megatron copies them.
    wide = legal(job(framework="torchtitan", gpus=128, domain=64))
    assert values(wide, "tp") == {1, 2, 4, 8}
    assert 16 in values(legal(job(gpus=128, domain=64)), "tp")


def test_deepspeed_limits() -> None:
    columns = legal(job(framework="deepspeed"))
    assert values(columns, "pp") == values(columns, "cp") == values(columns, "vpp") == {1}
    assert values(columns, "zero") == {0, 1, 2, 3}
    assert values(legal(job("mixtral-8x7b", "deepspeed")), "tp") == {1}


def test_nanotron_limits() -> None:
    columns = legal(job(framework="nanotron"))
    assert values(columns, "vpp") == {1}
    assert values(columns, "zero") == {0, 1}
    assert 16 in values(columns, "pp")


def test_uneven_layers_are_kept() -> None:
    assert count(legal(job("llama-3.1-405b", gpus=128)), pp=16, vpp=1) > 0
    assert count(legal(job("deepseek-v3", gpus=64, seq=4096)), pp=8, vpp=2) > 0


def test_gpu_counts_with_odd_factors() -> None:
    columns = legal(job("llama-3.1-70b", gpus=72, gbs=504))
    assert {6, 9, 12, 18} <= values(columns, "pp")


def test_interleaved_batches_suit_the_schedule() -> None:
    # 500 sequences are no multiple of pp=8; 496 and 504 are, and within the tolerance.
    columns = legal(job(gpus=64, gbs=500))
    interleaved = columns["vpp"] > 1
    assert count(columns, pp=8, vpp=2, tp=8, dp=1, mbs=1, gbs=504) > 0
    assert (columns["grad_acc"] % columns["pp"] == 0)[interleaved].all()


def test_exact_batch_is_exact() -> None:
    assert values(legal(job(gbs=500, exact=True)), "gbs") == {500}


@pytest.mark.parametrize(
    ("degree", "text", "value"),
    [
        ("tp", "3", 3),
        ("cp", "6", 6),
        ("mbs", "12", 12),
        ("vpp", "7", 7),
        ("etp", "5", 5),
        ("pp", "7", 7),
        ("dp", "5", 5),
        ("ep", "3", 3),
        ("zero", "3", 3),
        ("grad_acc", "9", 9),
    ],
)
def test_named_degree_is_tried(degree: str, text: str, value: int) -> None:
    ctx = replace(job(), limits={degree: parse_degree_limit(text, degree)})
    assert value in values(enumerate_shapes(ctx).columns, degree)
    assert value not in values(enumerate_shapes(job()).columns, degree)


def test_named_degrees_make_no_duplicates() -> None:
    ctx = job("mixtral-8x7b", tp="1,2", etp="1,2", ep="8", dp="3,8", mbs="1,3", grad_acc="64,7")
    table = np.stack(list(enumerate_shapes(ctx).columns.values()), axis=1)
    assert len(np.unique(table, axis=0)) == len(table)


def test_limits_restrict_what_is_legal() -> None:
    columns = legal(job(tp="2,4", pp="..4", mbs="3"))
    assert values(columns, "tp") == {2, 4}
    assert values(columns, "pp") == {1, 2, 4}
    assert values(columns, "mbs") == {3}


def test_low_precision_prunes_odd_widths() -> None:
    # Llama 2's FFN of 11,008 makes 43 blocks of 32 for each of 8 ranks; 11,392 makes 44.5.
    ctx = job("llama-2-7b", gpus=8, precision="mxfp8")
    odd = replace(ctx, model=replace(ctx.model, ffn=11_392))
    assert values(legal(ctx), "tp") == {1, 2, 4, 8}
    assert values(legal(odd), "tp") == {1, 2, 4}


@pytest.mark.parametrize(("gpus", "usable"), [(64, 64), (65, 64), (63, 56), (12, 8), (7, 7)])
def test_largest_usable_takes_whole_nodes(gpus: int, usable: int) -> None:
    assert largest_usable(job(gpus=gpus)) == usable


def test_largest_usable_heeds_the_batch() -> None:
    # dp alone splits 56 GPUs, and 512 sequences are no multiple of 56, 48 or 40.
    deepspeed = job(framework="deepspeed", gpus=56, exact=True, tp="1")
    assert largest_usable(deepspeed) == 32


def test_largest_usable_of_a_contradiction_is_none() -> None:
    assert largest_usable(job(gpus=4096, tp="3")) == 0


def test_context_holds_the_models_numbers() -> None:
    ctx = job("deepseek-v3", seq=4096)
    assert (ctx.model.experts, ctx.model.moe_ffn) == (256, 2048)
    assert ctx.model.has_mla
    assert ctx.model.ffn == 18432
    assert ctx.model.seq == 4096
    assert job("mixtral-8x7b").model.ffn == 0
