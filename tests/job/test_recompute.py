"""Recompute modes: spellings, what they keep, when recomputation stops, and their flags."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from planner.cost.codes import OpKind
from planner.cost.layer import recompute_costs
from planner.job.errors import UsageError
from planner.job.frameworks.profile import load_framework
from planner.job.recompute import RECOMPUTED, Module
from planner.job.request import Request
from planner.predict.ops.context import OpContext
from planner.predict.ops.rows import Op
from planner.predict.ops.table import pieces
from planner.predict.plan import Degrees, Plan
from planner.predict.saved import rank_key, saved_bytes
from tests.truth.predicted import reference_model

AGAIN = ("recompute_tp", "recompute_cp", "recompute_ep")
FULL = "--recompute-granularity full --recompute-method"


@pytest.mark.parametrize("name", list(RECOMPUTED))
def test_every_module_of_megatron_is_a_mode(name: str) -> None:
    mode = load_framework("megatron-core").recompute_mode(name)
    assert mode.mask == RECOMPUTED[name].part
    assert mode.flags.endswith(f"--recompute-modules {name}")


def test_modules_combine_in_any_order() -> None:
    profile = load_framework("megatron-core")
    one, other = profile.recompute_mode("moe_act, layernorm,mlp"), "mlp+layernorm+moe_act"
    assert one.mask == Module.ACTIVATION | Module.LAYERNORM | Module.MLP
    assert profile.recompute_mode(other) == one
    assert one.flags.endswith("--recompute-modules moe_act layernorm mlp")


@pytest.mark.parametrize(
    ("framework", "text", "words"),
    [
        ("megatron-core", "layernorm,mlpx", ("'mlpx'", "'mlp'")),
        ("megatron-core", "full/2", ("recompute-every-layer",)),
        ("megatron-core", "budget=0.5", ("recompute-budget",)),
        ("torchtitan", "layernorm", ("recompute-module",)),
        ("torchtitan", "full:uniform=2", ("recompute-uniform",)),
        ("torchtitan", "full/0", ("at least 1",)),
        ("torchtitan", "budget=1.5", ("between 0 and 1",)),
        ("megatron-lm-2022", "layernorm", ("core_attn", "recompute-module")),
        ("megatron-core", "ful", ("'full'", "full:block=N")),
    ],
)
def test_what_a_framework_lacks_names_the_rule(
    framework: str, text: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as error:
        load_framework(framework).recompute_mode(text)
    for word in words:
        assert word in str(error.value)


def context(framework: str, model: str = "llama-7b", **changes: object) -> OpContext:
    return OpContext(reference_model(model), load_framework(framework), 2048, **changes)  # type: ignore[arg-type]


def flop(op: Op) -> float:
    """Forward FLOP of a row per token, the full attention square."""
    if op.kind is OpKind.ATTENTION:
        return 2.0 * op.heads * (op.qk_head_dim + op.v_head_dim) * 2048
    if op.kind is OpKind.MEMORY:
        return 0.0
    return 2.0 * op.tokens_factor * (op.out_width + op.kv_out_width) * op.in_width


# Share of a layer's forward FLOP that full checkpointing adds to its backward, counted with
# torch.utils.flop_counter on transformers 5.23 models, sequence 2048.
@pytest.mark.parametrize(
    ("model", "share"),
    [("llama-7b", 0.7943), ("llama-33b", 0.7879), ("llama3-8b", 0.7500), ("llama3-70b", 0.7358),
     ("qwen3-8b", 0.7600), ("phi3-mini", 0.8000), ("mixtral-8x7b", 1.0)],
)  # fmt: skip
def test_non_reentrant_checkpoints_skip_the_last_product(model: str, share: float) -> None:
    layer = pieces(context("hf-transformers", model))[0]
    again = sum(flop(op) for op in layer.ops if op.rerun_with & Module.FULL)
    assert again / sum(flop(op) for op in layer.ops) == pytest.approx(share, abs=1e-4)


def test_reentrant_checkpoints_run_the_whole_layer_again() -> None:
    layer = pieces(context("megatron-core"))[0]
    assert all(op.rerun_with & Module.FULL for op in layer.ops)


def kept_bytes(op_context: OpContext, modules: Module) -> float:
    """Bytes that the first kind of layer keeps when `modules` run again."""
    rows = [row for op in pieces(op_context)[0].ops for row in op.saved if row.kept_under(modules)]
    return sum(saved_bytes(row, op_context, rank_key()) for row in rows)


def layer_on_rank(
    framework: str, modules: Module, *, share: float = 1.0, span: float = 1.0
) -> tuple[float, float]:
    """(kept, brought back at once) by one layer of Llama 7B."""
    found = context(framework)
    out = SimpleNamespace(**dict.fromkeys(("recompute", *AGAIN), 0.0), links=[0.0] * 12)
    out.saved = kept_bytes(found, Module.NOTHING)
    key = SimpleNamespace(share=share, span=span)
    recompute_costs(kept_bytes(found, modules), key, out)
    return out.saved_recomputed, out.again


def test_a_checkpoint_of_several_layers_keeps_one_input_and_brings_all_back() -> None:
    whole, _ = layer_on_rank("megatron-core", Module.NOTHING)
    one, again = layer_on_rank("megatron-core", Module.FULL)
    four, four_again = layer_on_rank("megatron-core", Module.FULL, span=4)
    assert layer_on_rank("megatron-core", Module.FULL, span=1) == (one, again)
    assert four == pytest.approx(one / 4)
    assert (again, four_again) == (whole - one, pytest.approx(4 * whole - one))


def test_every_second_layer_keeps_the_mean() -> None:
    whole, _ = layer_on_rank("torchtitan", Module.NOTHING)
    one, again = layer_on_rank("torchtitan", Module.FULL)
    half = layer_on_rank("torchtitan", Module.FULL, share=0.5)
    assert half == (pytest.approx((whole + one) / 2), again)


def kept_within(budget: float) -> float:
    found = context("torchtitan", memory_budget=budget)
    return kept_bytes(found, Module.BUDGET)


def test_memory_budget_spans_full_to_none() -> None:
    none, _ = layer_on_rank("torchtitan", Module.NOTHING)
    full, _ = layer_on_rank("torchtitan", Module.FULL)
    assert kept_within(1.0) == none
    assert kept_within(0.0) == pytest.approx(full, rel=1e-3)
    kept = [kept_within(tenth / 10) for tenth in range(11)]
    assert kept == sorted(kept)
    for tenth, size in enumerate(kept):
        assert size <= full + tenth / 10 * (none - full) * (1 + 1e-9)


def test_memory_budget_keeps_what_is_dear_to_make() -> None:
    """Half of the bytes save more than half of the recomputed FLOP: norms and the activation go
    first, attention stays longest."""
    found = context("torchtitan", memory_budget=0.5)
    layer = pieces(found)[0]
    again = {op.name for op in layer.ops if op.rerun_with & Module.BUDGET}
    assert {"attention/norm", "ffn/norm", "mlp/activation"} <= again
    assert "attention/core" not in again
    total = sum(flop(op) for op in layer.ops if op.rerun_with & Module.FULL)
    assert sum(flop(op) for op in layer.ops if op.name in again) < 0.5 * total


def test_memory_budget_of_nothing_runs_what_full_runs() -> None:
    """With checkpoints that stop early; others run the last product too, which no budget does."""
    layer = pieces(context("torchtitan-2024", memory_budget=0.0))[0]
    for op in layer.ops:
        assert bool(op.rerun_with & Module.BUDGET) == bool(op.rerun_with & Module.FULL), op.name


def evaluated(mode: str, framework: str = "megatron-core", **more: object) -> Plan:
    from planner.predict.evaluate import evaluate

    request = Request(model="llama-3-8b", gpus="16xH100", gbs=64, framework=framework)
    zero = 1 if framework == "megatron-core" else 3
    degrees = Degrees(tp=2, pp=2, vpp=2, dp=4, zero=zero, grad_acc=16)
    return evaluate(request, degrees, mode, **more)  # type: ignore[arg-type]


def test_uniform_of_one_layer_is_full() -> None:
    one, full = evaluated("full:uniform=1"), evaluated("full")
    named = {"recompute", "layout"}
    assert one.model_dump(exclude=named) == full.model_dump(exclude=named)
    assert [*one.layout.recomputed.values()] == [*full.layout.recomputed.values()]
    assert full.recompute_flags == f"{FULL} uniform --recompute-num-layers 1"


def test_longer_checkpoints_take_as_long() -> None:
    full, four = evaluated("full"), evaluated("full:uniform=4")
    assert four.step_time_s == pytest.approx(full.step_time_s)
    for one, other in zip(full.stages, four.stages, strict=True):
        assert other.activations < one.activations
        assert other.working >= one.working
    assert four.recompute_flags == f"{FULL} uniform --recompute-num-layers 4"
    with pytest.raises(UsageError, match=r"uniform=8 or less.*\[recompute-uniform\]"):
        evaluated("full:uniform=9")


def test_block_counts_layers_of_each_chunk() -> None:
    """Two chunks of 8 layers a stage: N = 3 recomputes 6 of its 16; N = 8 is full."""
    some, all_layers, full = evaluated("full:block=3"), evaluated("full:block=8"), evaluated("full")
    assert some.layout.recomputed == {"full": (6, 6)}
    assert some.recompute_flags == f"{FULL} block --recompute-num-layers 3"
    assert some == evaluated("full", recomputed=(6, 6))
    assert all_layers == full
    light, heavy = evaluated("full").peak_bytes, evaluated("none").peak_bytes
    assert light < some.peak_bytes < heavy


def test_every_kth_layer_lies_between_none_and_full() -> None:
    plans = [evaluated(mode, "torchtitan") for mode in ("none", "full/4", "full/2", "full")]
    peaks, times = [plan.peak_bytes for plan in plans], [plan.step_time_s for plan in plans]
    assert peaks == sorted(peaks, reverse=True)
    assert times == sorted(times)
    recompute_s = [plan.time.recompute_s for plan in plans]
    assert recompute_s == pytest.approx([0, recompute_s[3] / 4, recompute_s[3] / 2, recompute_s[3]])
    assert "selective_ac_option 2" in plans[2].recompute_flags


def test_memory_budget_trades_time_for_memory() -> None:
    framework = "torchtitan-2024"
    plans = [evaluated(f"budget={tenth / 10}", framework) for tenth in (0, 3, 6, 10)]
    for less, more in pairwise(plans):
        assert less.stages[0].activations <= more.stages[0].activations
        assert less.time.recompute_s >= more.time.recompute_s
    assert plans[-1].time.recompute_s == 0
    assert plans[0].time.recompute_s == pytest.approx(evaluated("full", framework).time.recompute_s)
    compiled = evaluated("full", "torchtitan").time.recompute_s
    assert compiled == pytest.approx(evaluated("budget=0", "torchtitan").time.recompute_s)


def test_modules_need_their_part_of_the_model() -> None:
    for mode in ("moe_act", "mla_up_proj", "shared_experts", "layernorm+moe"):
        with pytest.raises(UsageError, match=r"llama-3-8b has none  \[recompute-module-in-model\]"):
            evaluated(mode)
    with pytest.raises(UsageError, match="recompute-module-in-model"):
        Request(model="llama-3-8b", gpus="8xH100", gbs=8, recompute=("moe",)).resolve()
    with pytest.raises(UsageError, match="search chooses the number"):
        Request(model="llama-3-8b", gpus="8xH100", gbs=8, recompute=("full:block=2",)).resolve()


def test_moe_act_leaves_dense_layers_alone() -> None:
    """Megatron-Core recomputes the activation of routed experts, not of dense or shared MLPs."""
    op_context = OpContext(reference_model("mixtral-8x7b"), load_framework("megatron-core"), 4096)
    dense = context("megatron-core")
    for ctx, freed in ((op_context, True), (dense, False)):
        kept = [kept_bytes(ctx, mode) for mode in (Module.NOTHING, Module.ACTIVATION)]
        assert (kept[1] < kept[0]) is freed
