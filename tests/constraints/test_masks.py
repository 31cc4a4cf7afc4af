"""The masks against the scalar oracle, over a small space taken exhaustively."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from constraints.context import RuleContext
from constraints.numbers import SHAPE_COLUMNS, BatchGoal, IntArray
from constraints.registry import RULES
from tests.constraints.scalar_rules import is_legal
from tests.constraints.shapes import DENSE, MOE, context

SHARDS = ("none", "tp", "sequence", "kv", "routed", "routed_tp", "expert_tp")
# And layers of a model that is too small for some shapes under them.
SCHEDULES = {
    "1f1b": 1, "gpipe": 2, "interleaved": 4, "zb-h1": 4, "zb-v": 4, "dualpipe": 2, "dualpipev": 4,
}  # fmt: skip
SMALL_DENSE = replace(DENSE, layers=6)
SMALL_MOE = replace(MOE, layers=6, moe_ffn=48, shared_ffn=0, ffn=384)
CONTEXTS = {
    "megatron-like": context(gpus=8, zero_stages=(1, 0)),
    "moe": context(
        model=SMALL_MOE, gpus=8, zero_stages=(1, 0), batch=BatchGoal(8), hybrid_least_zero=1
    ),
    "torchtitan-like": context(
        model=SMALL_MOE,
        gpus=4,
        expert_tensor=False,
        kv_heads_rule="tp-divides",
        vocabulary_padded=False,
        interleaved_microbatches="whole-rounds",
        needs_microbatches_at_least_pp=True,
        zero_stages=(3, 2, 0),
        zero2_with_pipeline=False,
        hybrid_least_zero=2,
        shards_over_context=True,
        experts_in_shards=True,
    ),
    "torchtitan-like, tied": context(
        model=replace(SMALL_DENSE, tied_embeddings=True, mtp_layers=1),
        gpus=4,
        tied_pipeline=False,
        mtp_split=False,
    ),
    "offloaded": context(gpus=4, least_zero=1, hybrid_least_zero=1),
    "deepspeed-like": context(
        model=SMALL_DENSE,
        gpus=4,
        pipeline=False,
        context=False,
        expert=False,
        sequence_parallel="never",
        layouts="even",
        batch=BatchGoal(9, tolerance=0.12),
    ),
    "two nodes of three": context(gpus=6, per_node=3, domain=3, batch=BatchGoal(4, exact=True)),
    "fp8": context(model=replace(SMALL_DENSE, seq=64), gpus=4, precision="fp8"),
    "mxfp8, uneven": context(
        model=replace(SMALL_DENSE, seq=128, query_width=128),
        gpus=6,
        precision="mxfp8",
        layouts="even-or-ends",
    ),
    "two modules on the host": replace(
        context(gpus=4, model=replace(SMALL_MOE, layers=9)),
        offload_modules=2,
        # Bytes a token, so that no two sums of them are alike.
        offloaded=dict(zip(SHARDS, (64, 32, 16, 8, 4, 2, 1), strict=True)),
        host_bytes_per_gpu=4096.0,
    ),
    **{
        schedule: context(
            gpus=4,
            model=replace(SMALL_DENSE, layers=layers),
            schedule=schedule,
            standalone_vocab=True,
            schedules=("1f1b", schedule),
            zero_bubble_chunks=2,
            batch=BatchGoal(4, 0.5),
        )
        for schedule, layers in SCHEDULES.items()
    },
    "limits": context(gpus=8, limits={"tp": "2..", "pp": "1,2", "zero": "..1"}),
}


@cache
def exhaustive_space() -> dict[str, IntArray]:
    """Every combination of small degrees, sensible or not."""
    choices = {
        "tp": (1, 2, 3, 4),
        "pp": (1, 2, 3),
        "vpp": (1, 2, 3),
        "cp": (1, 2),
        "dp": (1, 2, 4),
        "ep": (1, 2, 4),
        "etp": (1, 2),
        "zero": (0, 1, 2, 3),
        "shard": (0, 2),
        "mbs": (1, 2),
        "grad_acc": (1, 2, 3, 4),
    }
    rows = np.array(list(itertools.product(*choices.values())))
    columns = dict(zip(choices, rows.T, strict=True))
    columns["gbs"] = columns["mbs"] * columns["grad_acc"] * columns["dp"]
    columns["recompute"] = np.zeros_like(columns["gbs"])
    return columns


@pytest.mark.parametrize("ctx", CONTEXTS.values(), ids=CONTEXTS.keys())
def test_masks_agree_with_scalar_rules(ctx: RuleContext) -> None:
    columns = exhaustive_space()
    masks = np.logical_and.reduce([rule.mask(columns, ctx) for rule in RULES])
    rows = zip(*(columns[name].tolist() for name in SHAPE_COLUMNS), strict=True)
    expected = [is_legal(dict(zip(SHAPE_COLUMNS, row, strict=True)), ctx) for row in rows]
    assert masks.tolist() == expected
    assert 0 < masks.sum() < len(masks)
