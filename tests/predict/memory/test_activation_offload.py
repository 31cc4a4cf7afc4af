"""Activations on the host: what leaves the GPU."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.offload import read_offload, searched_offloads, usable_modes
from planner.job.recompute import Module
from planner.job.request import Request
from planner.predict.configuration import even_layout
from planner.predict.evaluate import evaluate
from planner.predict.memory.terms import peak_parts, peak_tensors
from planner.predict.ops.table import pieces
from planner.predict.plan import Degrees
from tests.configurations import memory_footprint, stage_accounts
from tests.cost.jobs import make_job
from tests.predict.memory.cases import Case, demand_views

GIB = 2.0**30
ATTENTION = "qkv_linear,core_attn,attn_proj"
EXPERTS = "expert_fc1,moe_act"


def job_with(model: str, framework: str, modules: tuple[str, ...], gpus: str = "512xH100") -> Job:
    base = make_job(model, gpus, framework)
    modes = usable_modes(base.framework, modules, base.recompute, "bf16")
    return replace(base, activation_offload=modules, recompute=modes)


def layer_offload(
    model: str, modules: str, mode: str = "none", **shape: int
) -> tuple[float, float]:
    """(bytes that leave, bytes twice there) of the model's last layer on one rank."""
    job = job_with(model, "megatron-core", read_for(model, modules))
    job = replace(job, recompute=(job.framework.recompute_mode(mode),), seq=4096)
    degrees = Degrees(**({"dp": 8} | shape))
    layer = last_layer(job, degrees)
    return layer.offloaded_recomputed, layer.duplicated


def last_layer(job: Job, degrees: Degrees) -> Any:
    """Costs of the model's last kind of layer on one rank."""
    layout = even_layout(job, degrees.pp, 1, job.recompute[0])
    costs = stage_accounts(job, degrees, layout)[0].core.costs
    return costs[len(job.model.kinds) - 1]


def test_attention_in_fp8_keeps_16_bits_of_its_own() -> None:
    """q, k and v, and the output (32 MiB), of which the projection has a quantised copy."""
    mib = 2.0**20
    base = job_with("llama-3-8b", "megatron-core", ("core_attn",))
    job = replace(base, precision="fp8", seq=4096)
    none = job.framework.recompute_mode("none")
    job = replace(job, recompute=(none,))
    degrees = Degrees(dp=8)
    layer = last_layer(job, degrees)
    assert (layer.offloaded, layer.duplicated) == ((32 + 8 + 8 + 32) * mib, 0.0)
    plain = replace(job, activation_offload=())
    assert last_layer(plain, degrees).saved - layer.saved == layer.offloaded


def test_a_search_in_fp8_tries_what_is_modelled() -> None:
    base = make_job("mixtral-8x7b", "8xH100")
    found = searched_offloads(base.framework, base.model, "fp8")
    assert found == ((), ("core_attn",), ("moe_act",), ("core_attn", "mlp_norm", "moe_act"))


def read_for(model: str, modules: str) -> tuple[str, ...]:
    base = make_job(model, "8xH100")
    return read_offload(modules, base.framework, base.model)


# --- what leaves: tensors by hand -----------------------------------------------------------------


def test_attention_of_llama_3_8b_by_hand() -> None:
    """4,096 tokens; 32 query and 8 key/value heads of 128, 16 bits: q 32, k and v 8 MiB each."""
    mib = 2.0**20
    assert layer_offload("llama-3-8b", "core_attn") == ((32 + 8 + 8) * mib, 32 * mib)
    # The output of attention (32 MiB) leaves once both that keep it are offloaded, copied twice.
    assert layer_offload("llama-3-8b", "core_attn,attn_proj") == ((48 + 32) * mib, 32 * mib)
    # The norm is part of the projection: its input and its output go with qkv_linear.
    assert layer_offload("llama-3-8b", "qkv_linear") == ((32 + 32) * mib, 0.0)


def test_degrees_divide_what_leaves() -> None:
    whole, _ = layer_offload("llama-3-8b", ATTENTION, mbs=4)
    assert layer_offload("llama-3-8b", ATTENTION, mbs=4, tp=2)[0] == whole / 2
    assert layer_offload("llama-3-8b", ATTENTION, mbs=4, cp=2)[0] == whole / 2
    assert layer_offload("llama-3-8b", ATTENTION, mbs=1)[0] == whole / 4


def test_experts_of_mixtral_by_hand() -> None:
    """2 of 8 experts a token: 8,192 copies of width 4,096, gate and up of 14,336."""
    copies = 2 * 4096
    assert layer_offload("mixtral-8x7b", "expert_fc1", ep=8)[0] == copies * 4096 * 2
    assert layer_offload("mixtral-8x7b", "moe_act", ep=8)[0] == copies * 2 * 14336 * 2
    assert layer_offload("mixtral-8x7b", "mlp_norm", ep=8)[0] == 4096 * 4096 * 2


def test_small_tensors_stay() -> None:
    """Megatron's --min-offloaded-tensor-size of 2^20 elements: at tp 8 queries have twice as many
    on a rank, keys and values half as many; with two sequences all are large enough."""
    mib = 2.0**20
    assert layer_offload("llama-3-8b", "core_attn", tp=8)[0] == 4 * mib
    assert layer_offload("llama-3-8b", "core_attn", tp=8, mbs=2)[0] == (8 + 2 + 2) * mib


def test_what_recomputation_frees_is_copied_all_the_same() -> None:
    """Outputs that recomputation discards are copied before, and are there twice once back."""
    plain, twice = layer_offload("deepseek-v2", "attn_norm,qkv_linear")
    left, again = layer_offload("deepseek-v2", "attn_norm,qkv_linear", "layernorm")
    assert left < plain
    assert twice == 0.0
    assert again == pytest.approx(plain - left)


# --- views -------------------------------------------------------------------------------


def offload_case(seed: int) -> Case:
    """A random configuration with random modules on the host."""
    rng = random.Random(seed)
    name = rng.choice(("llama-3-70b", "mixtral-8x7b", "deepseek-v3", "gemma-3-12b", "gpt2"))
    framework = rng.choice(("megatron-core", "megatron-bridge"))
    base = make_job(name, "512xH100", framework)
    modules = rng.choice(searched_offloads(base.framework, base.model)[1:])
    pp, ep = rng.choice((1, 2, 4)), rng.choice((1, 8)) if base.model.moe else 1
    vpp = rng.choice((1, 3)) if pp > 1 else 1
    degrees = Degrees(
        tp=rng.choice((1, 2, 4)), pp=pp, vpp=vpp, cp=rng.choice((1, 2)), ep=ep, dp=8,
        zero=rng.choice((0, 1)), mbs=rng.choice((1, 2)), grad_acc=rng.choice((4, 16)),
    )  # fmt: skip
    degrees = degrees.model_copy(update={"etp": 1 if ep > 1 else degrees.tp})
    job = job_with(name, framework, modules)
    attention = rng.choice(("flash", "eager"))
    job = replace(job, recompute=(rng.choice(job.recompute),), seq=4096, attention=attention)
    layout = even_layout(job, pp, vpp, job.recompute[0])
    return Case(job, degrees, layout)


@pytest.mark.parametrize("block", range(4))
def test_views_with_activations_on_the_host(block: int) -> None:
    for seed in range(10 * block, 10 * (block + 1)):
        demand_views(offload_case(seed), f"seed {seed}")


@pytest.mark.parametrize(("model", "mbs", "zero"), [("llama-3-8b", 2, 0), ("llama-3.2-3b", 8, 3)])
def test_views_with_checkpoints_on_the_host(model: str, mbs: int, zero: int) -> None:
    """torchtune: the checkpoints of all layers but five."""
    job = job_with(model, "torchtune", ("checkpoints",), "8xH100")
    degrees = Degrees(dp=8 if zero else 1, zero=zero, mbs=mbs, grad_acc=2)
    demand_views(Case(job, degrees, even_layout(job, 1, 1, job.recompute[0])), model)


# --- properties ----------------------------------------------------------------------------------

PIPELINE = Degrees(tp=4, pp=4, dp=4, zero=1, mbs=1, grad_acc=8)


def request(
    modules: str, model: str = "llama-3-70b", gpus: str = "64xH100", **more: object
) -> Request:
    return Request(model=model, gpus=gpus, gbs=32, activation_offload=modules, **more)  # type: ignore[arg-type]


def test_more_offload_is_never_heavier_and_the_rest_is_on_the_host() -> None:
    """From the first stage, with most in flight, to the last; a GPU loses no less than the host
    gets, but for what is on its way and doubled."""
    chain = ("off", "core_attn", "core_attn,attn_proj", ATTENTION)
    plans = [evaluate(request(modules), PIPELINE) for modules in chain]
    for less, more in pairwise(plans):
        for one, other in zip(less.stages, more.stages, strict=True):
            assert other.activations < one.activations
            assert other.peak < one.peak
            assert other.offloaded > one.offloaded
    first, last = plans[0].stages[0], plans[-1].stages[0]
    layer = last.offloaded / (last.layers * last.in_flight)
    gone = first.activations - last.activations
    assert last.offloaded - 4.0 * layer < gone < last.offloaded


def test_the_memory_account_names_what_is_on_its_way() -> None:
    footprint = memory_footprint(request(ATTENTION), PIPELINE)
    account = footprint.heaviest
    kept = sum(tensor.size_bytes for tensor in peak_tensors(footprint, account))
    assert kept == pytest.approx(account.peak.terms["activations"])
    sizes = {part.label: part.size_bytes for part in peak_parts(footprint, account)}
    assert sizes["kept: on the way to and from the host"] > 0.0
    plain = memory_footprint(request("off"), PIPELINE)
    before = {part.label: part.size_bytes for part in peak_parts(plain, plain.heaviest)}
    # The log-sum-exp stays.
    assert sizes["kept: attention"] < 0.05 * before["kept: attention"]


# --- rules ---------------------------------------------------------------------------------------

REFUSED = (
    ("expert_fc1", {}, "needs a model with experts", "activation-offload-module"),
    ("attn_norm", {}, "offload qkv_linear", "activation-offload-module"),
    ("attn_proj", {}, "core_attn,attn_proj", "activation-offload-projection"),
    ("core_attn", {"framework": "torchtitan"}, "megatron-core", "activation-offload"),
    ("core_attn", {"framework": "deepspeed"}, "cpu_checkpointing", "activation-offload"),
    ("checkpoints", {}, "no module checkpoints", "activation-offload-module"),
    ("core_attn,attn_proj", {"precision": "fp8"}, "the activations of attn_proj in fp8",
     "activation-offload-precision"),
    ("qkv_linear", {"precision": "mxfp8", "gpus": "8xB200"}, "--precision bf16, or of attn_norm",
     "activation-offload-precision"),
    ("core_attn", {"use": ("cuda-graphs",)}, "leave one of them out",
     "activation-offload-cuda-graphs"),
    ("core_attn", {"recompute": ("full",)}, "nothing is left", "activation-offload-recompute"),
    ("core_attn", {"recompute": ("core_attn",)}, "recomputed anyway",
     "activation-offload-recompute"),
    ("checkpoints", {"framework": "torchtune", "recompute": ("none",)}, "--recompute full",
     "activation-offload-recompute"),
)  # fmt: skip


@pytest.mark.parametrize(("modules", "more", "words", "rule"), REFUSED)
def test_what_cannot_be_offloaded_is_refused_by_rule(
    modules: str, more: dict[str, object], words: str, rule: str
) -> None:
    with pytest.raises(UsageError, match=rf"\[{rule}\]") as caught:
        request(modules, **more).resolve()
    assert words in str(caught.value)


def test_a_typo_names_the_module_that_was_meant() -> None:
    with pytest.raises(UsageError, match="core_attn"):
        request("core_atn").resolve()


def test_recompute_modes_that_do_not_work_with_it_are_not_searched() -> None:
    modes = [mode.name for mode in request("core_attn").resolve().recompute]
    assert "full" not in modes
    assert "mlp" in modes
    experts = request(EXPERTS, "mixtral-8x7b").resolve().recompute
    assert all(not mode.mask & (Module.MOE | Module.FULL) for mode in experts)


def test_rows_of_other_pieces_stay() -> None:
    """Embedding, head and multi-token prediction are not among Megatron's modules here."""
    from planner.predict.cost_tables import op_context

    job = job_with("deepseek-v3", "megatron-core", read_for("deepseek-v3", ATTENTION))
    table = pieces(op_context(job))
    kinds = len(job.model.kinds)
    marked = [any(row.copies for op in piece.ops for row in op.saved) for piece in table]
    assert all(marked[:kinds])
    assert not any(marked[kinds:])
