"""Multi-token prediction in the block before that of head and loss: what each stage then holds.

Megatron-Core 0.19.2: the stage with `m` has the modules and a table to look tokens up in, the one
with `L` computes their losses with the head (models/gpt/gpt_model.py, multi_token_prediction.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from constraints.rule import Layout
from planner.cost import fields as f
from planner.job.job import Job
from planner.job.optimizers import load_optimizer
from planner.predict.configuration import even_layout, kernel_layout, plain_context
from planner.predict.cost_model import CostModel
from planner.predict.memory.terms import kept_tensors
from planner.predict.plan import Degrees
from tests.configurations import stage_accounts
from tests.predict.memory.cases import Case, demand_views
from tests.predict.memory.test_table_copies import TABLE, between_steps, deepseek

PIPELINE = Degrees(tp=2, pp=4, ep=8, dp=8, zero=1, grad_acc=8)
# 61 layers; the last block holds none in either.
BLOCKS = (20, 20, 21, 0)


def layouts(job: Job, degrees: Degrees, blocks: tuple[int, ...]) -> tuple[Layout, Layout]:
    """The same layers, multi-token prediction with the head and apart from it."""
    together = replace(even_layout(job, degrees.pp, degrees.vpp), block_layers=blocks)
    return together, replace(together, mtp_standalone=True)


def between(job: Job, layout: Layout) -> list[dict[str, float]]:
    return [between_steps(stage_account) for stage_account in stage_accounts(job, PIPELINE, layout)]


def test_the_module_and_its_table_move_and_the_head_stays() -> None:
    """bf16 weights of all stages add up to the same; the stage before the last has the table."""
    job = deepseek()
    together, standalone = (between(job, layout) for layout in layouts(job, PIPELINE, BLOCKS))
    assert standalone[:2] == together[:2]
    for term in ("weights", "gradients", "master weights", "optimizer state"):
        moved = together[3][term] - standalone[3][term]
        assert moved == pytest.approx(standalone[2][term] - together[2][term])
        assert moved > 0.0
    # What is left on the last stage: norm and output matrix.
    assert standalone[3]["weights"] == pytest.approx(2 * (TABLE / 2 + 7_168))
    without = deepseek(mtp_layers=0)
    _, bare = layouts(without, PIPELINE, BLOCKS)
    assert standalone[3] == pytest.approx(between(without, replace(bare, mtp_standalone=False))[3])


def test_a_tied_head_keeps_a_copy_too() -> None:
    """Three stages train the table: embedding, multi-token prediction, head."""
    tied = deepseek(tied_embeddings=True)
    _, standalone = layouts(tied, PIPELINE, BLOCKS)
    untied = between(deepseek(), standalone)
    assert [item["weights"] for item in between(tied, standalone)] == pytest.approx(
        [item["weights"] for item in untied]
    )


def test_two_microbatches_wait_at_the_module() -> None:
    """1F1B runs two micro-batches ahead on the last stage but one, one on the last."""
    job = deepseek()
    _, standalone = layouts(job, PIPELINE, BLOCKS)
    found = stage_accounts(job, PIPELINE, standalone)[2]
    assert (found.core.held.full, found.core.held.head) == (2.0, 2.0)
    forward = next(each for each in found.later_steps if each.name.startswith("forward 2/2"))
    kept = found.core.holds.layer_kept + found.core.holds.mtp_kept
    assert forward.terms["activations"] == pytest.approx(2 * kept)
    tensors = kept_tensors(job, found.core, forward)
    assert sum(each.size_bytes for each in tensors) == pytest.approx(forward.terms["activations"])
    assert not any(each.name == "head/loss" for each in tensors)


def test_losses_stay_with_the_head() -> None:
    """Logits of the model and of each module, in fp32, are alive at the loss of the last stage."""
    one, two = (deepseek(mtp_layers=modules) for modules in (1, 2))
    sizes = []
    for job in (one, two):
        _, standalone = layouts(job, PIPELINE, BLOCKS)
        found = stage_accounts(job, PIPELINE, standalone)[3]
        assert found.layers == 0
        forward = next(each for each in found.later_steps if each.name == "forward end")
        tensors = {each.name: each for each in kept_tensors(job, found.core, forward)}
        assert tensors["head/loss"].copies == 1 + job.model.mtp_layers
        sizes.append(tensors["head/loss"].size_bytes)
    logits = 1024 * 129_280 / 2
    assert sizes[1] - sizes[0] == pytest.approx(one.framework.saved.logits_saved_bytes * logits)


CASES = [
    (modules, tied, degrees, optimizer)
    for modules, tied in ((1, False), (2, False), (1, True), (2, True))
    for degrees, optimizer in (
        (Degrees(pp=3, ep=8, dp=8, zero=1, grad_acc=1), "muon"),
        (Degrees(pp=4, ep=8, dp=8, zero=1, grad_acc=8), "adamw"),
        (Degrees(pp=3, vpp=2, tp=2, ep=8, dp=8, zero=0, grad_acc=6), "lion"),
    )
]


@pytest.mark.parametrize(("modules", "tied", "degrees", "optimizer"), CASES)
@pytest.mark.parametrize("mode", ["none", "full"])
def test_views_show_it(
    modules: int, tied: bool, degrees: Degrees, optimizer: str, mode: str
) -> None:
    """Stage by stage: alone, and behind layers."""
    job = deepseek(mtp_layers=modules, tied_embeddings=tied)
    recompute = (job.framework.recompute_mode(mode),)
    job = replace(job, optimizer=load_optimizer(optimizer), recompute=recompute)
    alone = even_layout(job, degrees.pp, degrees.vpp, recompute[0], mtp_standalone=True)
    assert alone.block_layers[-2:] == (0, 0)
    blocks = (alone.block_layers[0] - 3, *alone.block_layers[1:-2], 3, 0)
    behind = replace(alone, block_layers=blocks)
    behind = replace(behind, recomputed=dict.fromkeys(alone.recomputed, behind.stage_layers))
    for layout in (alone, behind):
        demand_views(Case(job, degrees, layout), f"{degrees} {layout}")


def cost_of(job: Job, degrees: Degrees, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """([STEP_*], [stage, STAGE_*]) of a layout by the kernel."""
    model = CostModel(job)
    columns = {name: np.array([value]) for name, value in degrees.model_dump().items()}
    costed = model.cost_shapes(columns | {"recompute": np.array([0])})
    ctx = plain_context(job, degrees.pp, degrees.vpp)
    return model.cost_layout(costed, 0, kernel_layout(model, layout, ctx))


def test_seconds_move_with_the_module_and_the_bubble_sees_them() -> None:
    """All stages together take as long; the last one is left with head and loss."""
    job = deepseek()
    (_, with_head), (_, without) = (
        cost_of(job, PIPELINE, layout) for layout in layouts(job, PIPELINE, BLOCKS)
    )
    passes = [f.STAGE_FORWARD_S, f.STAGE_BACKWARD_S]
    before, after = with_head[:, passes].sum(axis=1), without[:, passes].sum(axis=1)
    assert after.sum() == pytest.approx(before.sum())
    assert after[:2] == pytest.approx(before[:2])
    assert after[3] < before[3]
    # Two products with the vocabulary, forward and backward, at no more than the GPU's peak.
    least = 2 * 6 * 1024 * 7_168 * 129_280 / 2 / 989e12
    assert after[3] > least


def test_what_travels_to_the_loss_is_wider() -> None:
    """One more hidden state of 2·7168 bytes a token each way; before each transfer a shape of 24
    bytes, for which the CPU waits before it issues the next kernel."""
    job = deepseek()
    degrees = PIPELINE.model_copy(update={"dp": 64})
    steps = [cost_of(job, degrees, layout)[0] for layout in layouts(job, degrees, BLOCKS)]
    more = float(steps[1][f.STEP_PP] - steps[0][f.STEP_PP])
    # tp 2 with sequence parallelism: half of it a rank, over a NIC of 50 GB/s.
    wire = 2 * 9 * 1024 * 7_168 * 2 / 2 / 50e9
    assert more > wire
    waits = 2 * (8 + 3) * job.framework.kernels.issue_s / job.cluster.host_speed
    assert wire + waits < more < 1.2 * (wire + waits)
