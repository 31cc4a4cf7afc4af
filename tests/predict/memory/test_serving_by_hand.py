"""Serving memory piece by piece: small cases whose numbers are counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hardware.load import load_gpu
from planner.job.errors import UsageError
from planner.job.quantities import GIB
from planner.job.specs import ModelSpec
from planner.predict.memory.inference import InferenceMemory, inference_memory
from planner.predict.memory.serving import logs
from planner.predict.memory.serving.activations import Activations
from planner.predict.memory.serving.deployment import Deployment, check_deployment
from planner.predict.memory.serving.engine import ENGINES, batch_defaults, graph_bytes
from planner.predict.memory.serving.formats import KV_FORMATS, WEIGHT_FORMATS
from planner.predict.memory.serving.logs import (
    CacheSpread,
    StartUpComparison,
    compare_logs,
    spread_of,
)
from planner.predict.memory.serving.solve import (
    Solved,
    changes,
    solved_deployment,
    with_grouped_queries,
)
from planner.predict.memory.serving.stage import (
    ServingStageMemory,
    StagePool,
    layer_token_bytes,
    stage_memory,
    stage_pool,
    tokens_of,
)
from planner.predict.memory.serving.weights import WeightBytes, stage_weights
from tests.predict.memory.deployments import serving

TINY = ModelSpec(
    name="tiny", layers=6, hidden=64, heads=8, kv_heads=4, head_dim=8, ffn=96, vocab=100,
    max_positions=128, pretraining_seq=128,
)  # fmt: skip
SPREAD = CacheSpread(-3.0, 2.0, 5, ("one",), (), 0.01)


def tiny(**settings: Any) -> Deployment:
    return Deployment(TINY, load_gpu("h100"), **settings)


def stage(needed: int, **changed: Any) -> ServingStageMemory:
    """A stage of 100 units of which 60 are held, 8 of them beside the budget of 90; blocks of one
    unit of 4 tokens, of which `needed` are wanted by one sequence."""
    pool = StagePool(tiny(block=4, context=4 * needed), 2, 1, 0, 1.0)
    fields: dict[str, Any] = {
        "stage": 0, "layers": 2, "weights": WeightBytes(20.0, 5.0, 4.0, 2.0, 1.0),
        "activations": Activations(2.0, 8.0, 3.0, 0.0, False), "non_torch": 6.0,
        "graphs_within": 4.0, "graphs_beside": 3.0, "context": 4.0, "nccl": 1.0,
        "budget": 90.0, "usable": 100.0, "pool": pool,
    }  # fmt: skip
    return ServingStageMemory(**fields | changed)


def test_room_is_what_the_budget_or_the_device_leaves() -> None:
    assert (stage(1).fixed, stage(1).beside, stage(1).available) == (52.0, 8.0, 38.0)
    # The engine starts with no more than is free; activations of 10 units leave their room to what
    # is captured after the cache was made.
    assert stage(1, usable=85.0).available == 85.0 - 5.0 - 52.0
    assert stage(1, graphs_beside=20.0).available == 100.0 - 25.0 - (52.0 - 10.0)
    assert stage(1, usable=95.0).available == 38.0
    assert stage(1, usable=95.0).overfull == 38.0 + 52.0 + 8.0 - 95.0
    assert (stage(40).kv_needed, stage(40).missing) == (40.0, 2.0)
    assert [stage(1).blocks(extra) for extra in (0.0, 0.9, 1.0, -1.5, -99.0)] == [38, 38, 39, 36, 0]


@pytest.mark.parametrize(
    ("needed", "low", "high", "fits", "sure"),
    [
        (35, -3.0, 2.0, True, True),
        (36, -3.0, 2.0, True, False),
        (38, 0.0, 0.0, True, True),
        (38, -3.0, 2.0, True, False),
        (40, -3.0, 2.0, False, False),
        (41, -3.0, 2.0, False, True),
    ],
)
def test_an_answer_is_sure_where_both_ends_agree(
    needed: int, low: float, high: float, fits: bool, sure: bool
) -> None:
    """38 units are left, as expected; `extra` room moves the border."""
    spread = replace(SPREAD, low=low, high=high)
    lighter = stage(needed, stage=1, usable=99.0, budget=100.0)
    found = InferenceMemory(tiny(), (lighter, stage(needed)), spread)
    assert found.heaviest.stage == 0
    assert (found.fits, found.sure) == (fits, sure)


def test_tokens_of_the_tightest_stage() -> None:
    """38 blocks of 4 tokens; contexts of 9 tokens take three blocks and are 12 tokens long."""
    assert tokens_of(stage(1), 9, 0.0) == 38 * 12 // 3
    assert tokens_of(stage(1), 9, -1.0) == 37 * 4
    both = (stage(1), stage(1, budget=92.0))
    found = InferenceMemory(tiny(context=9, block=4), both, SPREAD)
    assert (found.kv_tokens, found.kv_token_interval) == (38 * 4, (35 * 4, 40 * 4))
    assert found.concurrency == 38 / 3


@pytest.mark.parametrize(
    ("context", "sequence", "prefill", "admission"),
    [(4, 3, 0, 5), (8, 6, 0, 8), (12, 9, 2, 11), (20, 11, 2, 13), (40, 16, 2, 18)],
)
def test_blocks_of_windows_by_hand(
    context: int, sequence: int, prefill: int, admission: int
) -> None:
    """Blocks of 4 tokens, chunks of 4, windows of 8: one group of full layers, two of windows,
    whose sequences touch at most 3 blocks and, when admitted, hold min(8 - 1 + 4, context) and
    one."""
    spec = SimpleNamespace(sliding_window=8)
    pool = StagePool(SimpleNamespace(model=spec, block=4, chunk=4), 2, 1, 2, 10.0)  # type: ignore[arg-type]
    assert pool.window == 8
    assert pool.sequence_blocks(context) == sequence
    assert pool.prefill_blocks(context) == prefill
    assert pool.admission_blocks(context) == admission
    assert pool.bytes_for(3, context) == (3 * sequence + prefill) * 10.0


@pytest.mark.parametrize(
    ("full", "windowed", "group"),
    [(6, 0, 6), (0, 6, 6), (4, 5, 4), (5, 6, 6), (6, 5, 6), (2, 10, 2), (8, 9, 9), (8, 10, 8)],
)
def test_layers_of_a_group(full: int, windowed: int, group: int) -> None:
    """The larger count up to 1.25 times the smaller, which 5 of 4 are."""
    kinds = [SimpleNamespace(attention=name) for name in ["full"] * full + ["sliding"] * windowed]
    deployment = SimpleNamespace(
        stages=(kinds,), window_cache=True, block=16, model=TINY, kv=KV_FORMATS["bf16"], tp=1
    )
    pool = stage_pool(deployment, 0)  # type: ignore[arg-type]
    assert pool.group == group
    assert (pool.full_groups, pool.window_groups) == (-(-full // group), -(-windowed // group))
    # 4 heads of 8 elements, keys and values, 2 bytes.
    assert pool.block_bytes == group * 16 * 2 * 4 * 8 * 2


@pytest.mark.parametrize(
    ("name", "tp", "size"),
    [
        ("fp32", 1, 256), ("bf16", 1, 128), ("fp16", 4, 32), ("bf16", 8, 32), ("fp8", 2, 32),
        ("int8", 1, 96), ("int4", 1, 64),
    ],
)  # fmt: skip
def test_bytes_of_a_token_in_every_format(name: str, tp: int, size: int) -> None:
    """Keys and values of 4 heads of 8 elements; int8 and int4 with 4 bytes a head."""
    assert layer_token_bytes(tiny(kv=KV_FORMATS[name], tp=tp)) == size


@pytest.mark.parametrize(
    ("name", "element", "scales", "ragged"),
    [
        ("fp32", 4.0, 0.0, 0.0),
        ("bf16", 2.0, 0.0, 0.0),
        ("fp16", 2.0, 0.0, 0.0),
        ("fp8", 1.0, 4.0, 4.0),
        ("fp8-block", 1.0, 2 * 4 * 4.0, 2 * 2 * 4.0),
        ("int8", 1.0, 256 * 4.0, 200 * 4.0),
        ("int4", 0.5, 256 * 4 * 2.5, 200 * 2 * 2.5),
        ("mxfp4", 0.5, 256 * 16.0, 200 * 5.0),
        ("nvfp4", 0.5, 256 * 32.0, 200 * 9.0),
    ],
)
def test_scales_of_a_matrix(name: str, element: float, scales: float, ragged: float) -> None:
    """Of 256 by 512, and of 200 by 130, whose last tiles are not full."""
    fmt = WEIGHT_FORMATS[name]
    assert (fmt.element_bytes, fmt.scales(256, 512), fmt.scales(200, 130)) == (
        element, scales, ragged,
    )  # fmt: skip
    assert fmt.kept_bytes == (4.0 if name == "fp32" else 2.0)
    assert fmt.quantised == (element < 2.0)
    assert fmt.padded_experts == (name == "mxfp4") == (fmt.scope == "experts")


def test_weights_of_a_tiny_model_by_hand() -> None:
    """Two stages under TP 2: three layers each; 100 words are padded to 128 rows of 64."""
    first, last = (
        stage_weights(tiny(pp=2, tp=2, weights=WEIGHT_FORMATS["int8"]), s) for s in (0, 1)
    )
    linear = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96
    outputs = 64 + 2 * 32 + 64 + 2 * 96 + 64
    for weights, norms in ((first, 6 * 64), (last, 7 * 64)):
        assert weights.matrices == 3 * linear / 2
        assert weights.scales == pytest.approx(3 * 4 * outputs / 2)
        assert weights.kept == 2 * (128 * 64 / 2 + norms)
        # Cosines and sines of 128 positions, 8 rotated elements, 16 bits.
        assert (weights.absorbed, weights.rotary) == (0.0, 2 * 128 * 8)
    both = first + last
    assert both.total == first.total + last.total
    assert both.rotary == 2 * first.rotary


def test_what_an_engine_holds_by_its_generation() -> None:
    held = {
        name: [
            round(engine.non_torch_bytes(*degrees) / GIB, 3) for degrees in ((1, 1), (1, 2), (2, 2))
        ]
        for name, engine in ENGINES.items()
    }
    assert held["vllm"] == held["vllm-0.19"] == [0.25, 0.07, 2.1]
    assert held["vllm-0.16"] == [0.13, 0.07, 0.55]
    assert [engine.logit_bytes for engine in ENGINES.values()] == [14.0, 14.0, 39.0]
    assert graph_bytes(0) == 0.33 * GIB
    assert graph_bytes(100) == pytest.approx((0.33 + 1.71) * GIB)
    for deployment, nccl in ((tiny(), 0.0), (tiny(pp=2), GIB), (tiny(dp=2), GIB)):
        first = stage_memory(deployment)[0]
        assert (first.nccl, first.graphs_within) == (nccl, graph_bytes(first.layers))
        assert stage_memory(replace(deployment, graphs=False))[0].graphs_within == 0.0
    old = stage_memory(tiny(engine=ENGINES["vllm-0.16"]))[0]
    assert (old.graphs_within, old.graphs_beside) == (0.0, graph_bytes(6))


@pytest.mark.parametrize(
    ("gpu", "usable", "expected"),
    [
        ("h100", None, (8192, 1024)), ("h200", None, (8192, 1024)), ("l4", None, (2048, 256)),
        ("a100-80gb", None, (2048, 256)), ("h100", 70.0, (8192, 1024)), ("h100", 69.9, (2048, 256)),
    ],
)  # fmt: skip
def test_defaults_of_a_gpu(gpu: str, usable: float | None, expected: tuple[int, int]) -> None:
    found = load_gpu(gpu)
    if usable is not None:
        found = found.model_copy(update={"hbm_usable_bytes": usable * GIB})
    assert batch_defaults(found) == expected


LARGEST = {
    "batch": 10**6, "context": 10**8, "chunk": 10**8, "sequences": 10**6, "block": 4096,
    "tp": 4096, "pp": 4096, "ep": 4096, "dp": 4096,
}  # fmt: skip


@pytest.mark.parametrize(("name", "largest"), LARGEST.items())
def test_ranges_of_settings_end_where_they_say(name: str, largest: int) -> None:
    for value in (0, largest + 1):
        with pytest.raises(UsageError, match=f"is not between 1 and {largest:,}"):
            check_deployment(tiny(**{name: value}))
    for value in (1, largest):
        try:
            check_deployment(tiny(**{name: value}))
        except UsageError as error:
            assert value > 1 and "outside" not in str(error)
    check_deployment(tiny(utilization=1.0))


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("tiny", {"tp": 3}, "does not divide the 8 attention heads of tiny; nearest: 2 or 4"),
        ("tiny", {"tp": 16}, "nearest: 8$"),
        ("tiny", {"pp": 7}, "--pp 7 exceeds the 6 layers"),
        ("qwen1.5-moe-a2.7b", {"dp": 64, "ep": 64}, "--ep 64 exceeds the 60 experts"),
        ("mixtral-8x7b", {"tp": 4, "ep": 3}, "does not divide tp·dp = 4 ranks .* nearest: 2 or 4"),
        ("qwen1.5-moe-a2.7b", {"dp": 3}, "tp·dp/ep = 3 does not divide .* 1,408; give --ep 3 "),
        ("mamba2-2.7b", {}, "no attention"),
    ],
)
def test_refusals_name_what_is_nearest(model: str, settings: dict[str, int], said: str) -> None:
    wrong = tiny(**settings) if model == "tiny" else serving(model, **settings)
    with pytest.raises(UsageError, match=said):
        check_deployment(wrong)


def test_a_width_that_tensor_parallelism_does_not_divide() -> None:
    narrow = replace(tiny(tp=8), model=TINY.model_copy(update={"ffn": 100}))
    with pytest.raises(UsageError, match=r"the FFN width 100 of tiny; nearest: 4$"):
        check_deployment(narrow)
    for tp in (1, 2, 4):
        check_deployment(replace(narrow, tp=tp))
    grouped = replace(tiny(tp=2), model=TINY.model_copy(update={"kv_heads": 1}))
    for tp in (1, 2, 8):
        check_deployment(replace(grouped, tp=tp))


def test_replicas_and_stages_of_a_deployment() -> None:
    spread = tiny(batch=9, dp=4, tp=2, pp=2, ep=4, sequences=16, chunk=8)
    assert (spread.gpus, spread.expert_tp, spread.replica_batch) == (16, 2, 3)
    assert [replace(spread, chunk=chunk).sampled for chunk in (2, 8, 32)] == [3, 8, 16]
    assert [len(held) for held in tiny(pp=4).stages] == [1, 2, 2, 1]
    assert (tiny().padded_vocabulary, tiny(tp=3).padded_vocabulary) == (128, 192)


# --- start-up logs --------------------------------------------------------------------------


def test_room_of_a_pipeline_is_read_off_its_tokens() -> None:
    piped = [each for each in compare_logs() if each.row.deployment.pp > 1]
    assert len(piped) == 2
    for each in piped:
        deployment, tokens = each.row.deployment, each.row.kv_tokens
        assert tokens is not None
        layers = len(deployment.stages[each.tightest.stage])
        token = layers * 2 * 8 * 128 * 2
        assert each.measured_bytes == pytest.approx(tokens * token)
        assert (
            replace(each, row=replace(each.row, kv_tokens=None)).measured_bytes == each.row.kv_cache
        )
        assert each.residual_bytes == each.measured_bytes - each.tightest.available


def test_a_comparison_by_hand() -> None:
    """38 units of room as predicted, 40 measured; 5 printed for graphs where 7 were expected."""
    row = SimpleNamespace(deployment=tiny(block=4, context=9), kv_cache=40.0, kv_tokens=None)
    row.graphs = None
    found = StartUpComparison(row, (stage(1), stage(1, stage=1, budget=92.0)))  # type: ignore[arg-type]
    assert (found.tightest.stage, found.predicted_bytes, found.residual_bytes) == (0, 38.0, 2.0)
    assert found.residual_with_graphs() == 2.0
    row.graphs = 5.0
    assert found.residual_with_graphs() == 2.0 - (5.0 - 7.0)
    # Three blocks a sequence; 12 of them and two thirds are admitted.
    assert found.predicted_tokens == 38 * 9 // 3


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.1, 1.4), (0.5, 4.0), (0.9, 15.2), (1.0, 20.0)]
)
def test_quantiles_lie_between_neighbours(share: float, value: float) -> None:
    assert logs._quantile([1.0, 2.0, 4.0, 8.0, 20.0], share) == pytest.approx(value)


def test_intervals_are_read_off_the_rows_that_are_alike() -> None:
    """Alone and together apart, if there are five of them; every row where a trait is new."""
    model = {"model": "llama-3.1-8b"}
    recent, old = ENGINES["vllm-0.19"], ENGINES["vllm-0.16"]
    for settings, rows in (
        ({"engine": recent}, 23), ({"engine": recent, "tp": 2}, 13), ({"engine": old}, 5),
        ({"engine": old, "tp": 2}, 7), ({"engine": recent, "kv": KV_FORMATS["int4"]}, 36),
    ):  # fmt: skip
        assert spread_of(serving(**model, **settings)).rows == rows
    residuals = sorted(
        each.residual_bytes
        for each in compare_logs()
        if each.row.engine == "vllm-0.19" and each.row.deployment.gpus == 1
    )
    alone = spread_of(serving(**model, engine=recent))
    # The tenth part of 22 steps between 23 rows is 2.2, the ninth 19.8.
    assert alone.low == pytest.approx(residuals[2] + 0.2 * (residuals[3] - residuals[2]))
    assert alone.high == max(0.0, residuals[19] + 0.8 * (residuals[20] - residuals[19]))
    wider = spread_of(serving(**model))
    assert wider.low < alone.low
    assert spread_of(serving(**model, graphs=False)) == alone
    every = [each.residual_bytes for each in compare_logs() if each.row.engine == "vllm-0.19"]
    uncovered = spread_of(serving(**model, engine=recent, kv=KV_FORMATS["int4"]))
    assert (uncovered.low, uncovered.high) == (min(every), max(every))
    assert uncovered.uncovered == ("int4 KV cache",)
    assert "MLA under TP" in spread_of(serving("deepseek-v3", tp=8)).uncovered
    assert "pipeline stages" not in spread_of(serving(**model, pp=2, engine=recent)).uncovered


# --- what to change -------------------------------------------------------------------------


def test_what_was_solved_for_is_put_in() -> None:
    base = tiny(batch=7, context=9)
    for what, expected, found in (
        ("batch", 3, (3, 9)),
        ("context", 3, (7, 3)),
        ("batch", 0, (1, 9)),
    ):
        put = solved_deployment(base, Solved(what, expected, 0, 5))
        assert (put.batch, put.context) == found


@pytest.mark.parametrize(
    ("model", "settings", "options"),
    [
        # As published: mxfp4, not fp8.
        ("gpt-oss-120b", {"batch": 64, "context": 65536}, [
            "--tp 8 --gpus 8x", "--tp 2 --gpus 2x --weights int4 --kv-cache fp8",
            "--gpu-memory-utilization 0.95", "--kv-cache fp8", "--kv-cache int4",
            "--weights mxfp4", "--weights int4", "--tp 2 --gpus 2x", "--tp 4 --gpus 4x",
        ]),
        ("llama-3.1-70b", {"tp": 4, "batch": 128, "context": 32768}, [
            "--batch 13", "--context 3440", "--tp 8 --pp 4 --gpus 32x",
            "--tp 8 --pp 2 --gpus 16x --kv-cache fp8", "--gpu-memory-utilization 0.95",
            "--kv-cache fp8", "--kv-cache int4", "--weights fp8", "--weights int4",
            "--tp 8 --gpus 8x", "--tp 8 --pp 2 --gpus 16x",
        ]),
        ("llama-3.1-405b", {"tp": 8, "context": 8192, "utilization": 0.95}, [
            "--weights fp8", "--weights int4", "--tp 8 --pp 2 --gpus 16x", "--kv-cache fp8",
            "--kv-cache int4",
        ]),
    ],
)  # fmt: skip
def test_changes_by_model(model: str, settings: dict[str, int], options: list[str]) -> None:
    found = changes(serving(model, **settings))
    assert [change.options.replace("H100-SXM5-80GB", "") for change in found] == options
    assert [change.fits for change in found] == sorted(
        (change.missing <= 0 for change in found), reverse=True
    )


def test_grouped_queries_need_more_heads_than_a_group_and_whole_ones() -> None:
    heads = {"kv_heads": 12, "heads": 12}
    for given, has in ((heads, False), ({"kv_heads": 16, "heads": 16}, True), ({}, False)):
        model = TINY.model_copy(update=given)
        grouped = with_grouped_queries(replace(tiny(), model=model))
        assert (grouped is not None) == has
    # 16 heads under TP 16 would copy 8 of them.
    wide = replace(tiny(tp=16), model=TINY.model_copy(update={"kv_heads": 16, "heads": 16}))
    grouped = with_grouped_queries(wide)
    assert grouped is not None
    assert grouped.options == "a model with 8 KV heads"
    assert inference_memory(grouped.deployment).fits
