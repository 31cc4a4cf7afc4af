"""Accounts of pipeline stages: phases, communicators, and what the solver is told of them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from constraints.rule import Layout
from planner.cost import fields as f
from planner.job.recomputation import recomputation
from planner.predict.configuration import even_layout, kernel_layout, plain_context
from planner.predict.cost_model import CostModel
from planner.predict.memory.account import StageAccount, communicators
from planner.predict.ops.table import parameter_count
from planner.predict.plan import Degrees
from planner.search.terms import memory_numbers, shape_terms
from tests.configurations import stage_accounts
from tests.cost.jobs import make_job

PIPELINE = Degrees(tp=2, pp=4, dp=2, zero=1, grad_acc=8)


def pipeline_accounts(recompute: str = "none") -> tuple[StageAccount, ...]:
    job = make_job("llama-3-8b")
    mode = job.framework.recompute_mode(recompute)
    layout = even_layout(job, 4, 1, mode)
    return stage_accounts(replace(job, recompute=(mode,)), PIPELINE, layout)


def test_activations_grow_with_each_forward_of_the_warm_up() -> None:
    first = pipeline_accounts()[0]
    names = [phase.name for phase in first.later_steps if phase.name.startswith("forward ")]
    assert names == ["forward 1/4", "forward 2/4", "forward 3/4", "forward 4/4", "forward end"]
    kept = [first.later_steps[1 + index].terms["activations"] for index in range(4)]
    assert np.diff(kept) == pytest.approx([kept[0]] * 3)


def test_later_stages_hold_fewer_microbatches() -> None:
    assert [pipeline_account.in_flight for pipeline_account in pipeline_accounts()] == [4, 3, 2, 1]


def test_communicators_by_name() -> None:
    assert communicators(Degrees()) == ()
    assert communicators(PIPELINE) == ("tp", "dp", "pp", "embedding")
    # dp = 1, but cp divides gradients all the same.
    assert communicators(Degrees(cp=2, ep=2)) == ("cp", "dp", "ep")


def test_megatron_holds_18_bytes_a_parameter_between_steps() -> None:
    """2 + 4 + 4 + 8, gradients in buffers of their own; nothing else but inputs and workspaces."""
    job = make_job("llama-3-8b")
    layout = even_layout(job, 1, 1)
    (stage_account,) = stage_accounts(job, Degrees(dp=8), layout)
    start = stage_account.later_steps[0]
    held = start.total_bytes - start.terms["inputs"] - start.terms["workspaces"]
    padded = parameter_count(job.model).total
    assert held == pytest.approx(18.0 * padded, rel=1e-3)


def test_embedding_gradient_is_the_peak_of_a_stage_with_few_layers() -> None:
    """A table of 2 GiB, made in 16 bit beside its buffer, on a stage whose layers keep little."""
    job = make_job("llama-3-70b", "16xH100")
    layout = Layout(8, 1, (1, 12, 12, 11, 11, 11, 11, 11))
    found = stage_accounts(replace(job, seq=256), Degrees(pp=8, dp=2, zero=1), layout)[0]
    assert found.peak.at == "embedding"
    table = 128256 * 8192
    assert found.peak.terms["working"] == pytest.approx(2.0 * table + 2.0 * 256 * 8192)


@pytest.mark.parametrize(("dp", "copies"), [(1, 1), (8, 2)])
def test_ddp_buckets_are_a_second_copy_of_the_gradients(dp: int, copies: int) -> None:
    job = make_job("gpt2", "8xH100", "nanogpt")
    layout = even_layout(job, 1, 1)
    (stage_account,) = stage_accounts(job, Degrees(dp=dp), layout)
    sync = {phase.name: phase for phase in stage_account.later_steps}["gradient reduction"]
    gradients = sync.terms["gradients"] + sync.terms["gradient buckets"]
    # nanoGPT pads GPT-2's 50,257 tokens to 50,304.
    padded = parameter_count(job.model).total + (50304 - 50257) * job.model.hidden
    assert gradients == pytest.approx(copies * 2 * padded)


@pytest.mark.parametrize(
    ("name", "framework", "mode"),
    [
        ("llama-3-8b", "megatron-core", "full"),
        ("gemma-3-4b", "megatron-core", "none"),
        ("gemma-3-4b", "megatron-core", "full"),
        ("deepseek-v2-lite", "torchtitan", "none"),
        ("deepseek-v3", "megatron-core", "full"),
    ],
)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_solver_is_told_no_less_than_a_layout_holds(
    name: str, framework: str, mode: str, zero: int
) -> None:
    """Uneven layouts and counts of recomputing layers: the solver's units never fall short of the
    compiled peak, and are equal but for rounding where a stage has one kind of layer."""
    rng = random.Random(zero)
    base = make_job(name, "512xH100", framework)
    job = replace(base, recompute=(base.framework.recompute_mode(mode),), seq=2048)
    degrees = {"tp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "vpp": 1, "dp": 8}
    pp, layers = 3, job.model.layers
    kind = recomputation(job.recompute[0], job.framework)
    model = CostModel(job)
    columns = degrees | {"pp": pp, "zero": zero, "recompute": 0}
    for grad_acc in (1, 2, 8):
        shape = columns | {"grad_acc": grad_acc}
        costed = model.cost_shapes({item: np.array([value]) for item, value in shape.items()})
        numbers = memory_numbers(shape_terms(model, costed, 0, kind), 1e12)
        first, second = sorted(rng.sample(range(1, layers), 2))
        blocks = (first, second - first, layers - second)
        count = rng.randint(1, max(blocks)) if kind == "shared" else layers
        again = tuple(min(count, block) for block in blocks)
        layout = Layout(pp, 1, blocks, {mode: again} if mode != "none" else {})
        ctx = plain_context(job, pp, 1, job.recompute[0])
        _, stages = model.cost_layout(costed, 0, kernel_layout(model, layout, ctx))
        for stage, entry in enumerate(ctx.counts(layout)):
            remade = ctx.recomputed_counts(layout)[stage]
            told = numbers.peak(stage, entry, remade) * numbers.unit_bytes
            reserved = stages[stage, [f.STAGE_ALLOCATED, f.STAGE_FRAGMENTATION]].sum()
            allocated = reserved / (1.0 + job.framework.outside.fragmentation)
            assert told >= allocated * (1 - 1e-12)
            if sum(count > 0 for count in entry) == 1 and zero < 2:
                assert told == pytest.approx(allocated, rel=1e-3)
