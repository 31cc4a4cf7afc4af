"""Splits, placements, moments of memory, batches and limits: numbers counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from constraints.axes import ContextKind
from constraints.batch import accumulation, ramp_columns
from constraints.condition import user_condition
from constraints.context_exchange import GATHERS, IMPOSSIBLE, exchange_kind, inner_ranks, kinds_for
from constraints.errors import ConstraintError
from constraints.expression import LONGEST_TEXT, ExpressionError, condition_mask, parse_condition
from constraints.layout import offload_chunk_layers
from constraints.layout_context import (
    LayoutContext,
    block_taken,
    shared_count,
)
from constraints.memory_numbers import MemoryNumbers, PhaseNumbers
from constraints.numbers import BatchGoal
from constraints.offload import kept_groups, leaving_blocks, leaving_layers
from constraints.pipeline import most_chunks
from constraints.registry import RULES
from constraints.rule import Layout, Placement, stage_blocks
from constraints.topology import offloaded_bytes
from constraints.user import parse_degree_limit
from planner.cost.layout import filled_pipelines, usual_split
from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.predict.cost_tables import greedy_costs
from tests.constraints.shapes import DENSE, context, one_shape


@pytest.mark.parametrize(
    ("layers", "blocks", "split"),
    [
        (8, 4, (2, 2, 2, 2)),
        (9, 4, (2, 3, 2, 2)),
        (10, 4, (2, 3, 3, 2)),
        (11, 4, (3, 3, 3, 2)),
        (5, 1, (5,)),
        (3, 2, (2, 1)),
        (2, 3, (1, 1, 0)),
    ],
)
def test_even_splits_are_shorter_at_the_ends(
    layers: int, blocks: int, split: tuple[int, ...]
) -> None:
    assert usual_split(layers, blocks) == split


@pytest.mark.parametrize(
    ("layers", "blocks", "costs", "split"),
    [
        # A block ends with the layer that exceeds its share: 3 of 8 is more than a quarter.
        (8, 4, (1, 0), (3, 2, 2, 1)),
        (8, 2, (1, 0), (5, 3)),
        (8, 1, (1, 9), (8,)),
        # A head of 4 layers: shares of 3, 6, 9 and 12.
        (8, 4, (1, 4), (4, 3, 1, 0)),
        (6, 3, (2, 6), (4, 2, 0)),
    ],
)
def test_greedy_splits(
    layers: int, blocks: int, costs: tuple[int, int], split: tuple[int, ...]
) -> None:
    assert usual_split(layers, blocks, *map(float, costs)) == split
    full = blocks in filled_pipelines(layers, *map(float, costs))
    assert full == all(split)


def test_costs_of_a_greedy_split() -> None:
    model = load_model("llama-3-8b").spec
    model = model.model_copy(update={"hidden": 10, "ffn": 20, "vocab": 1000})
    profile = load_framework("nanotron")
    assert greedy_costs(model, profile.parallelism) == (4 * 100 + 3 * 200, 10_000)
    assert greedy_costs(model, load_framework("megatron-core").parallelism) == (0, 0)


@pytest.mark.parametrize(
    ("placement", "pp", "vpp", "blocks"),
    [
        ("straight", 3, 2, ((0, 3), (1, 4), (2, 5))),
        ("straight", 1, 1, ((0,),)),
        ("folded", 3, 2, ((0, 5), (1, 4), (2, 3))),
        ("folded", 3, 1, ((0,), (1,), (2,))),
        ("mirrored", 4, 1, ((0, 3), (1, 2), (2, 1), (3, 0))),
        ("mirrored", 1, 1, ((0,),)),
    ],
)
def test_blocks_of_a_stage(
    placement: Placement, pp: int, vpp: int, blocks: tuple[tuple[int, ...], ...]
) -> None:
    assert tuple(stage_blocks(stage, pp, vpp, placement) for stage in range(pp)) == blocks
    layout = Layout(pp, vpp, tuple(range(1, pp * vpp + 1)), placement=placement)
    assert layout.stage_layers == tuple(sum(one + 1 for one in stage) for stage in blocks)


def test_fewest_layers_of_a_block() -> None:
    plain = LayoutContext(2, 2, (0,) * 8)
    alone = replace(plain, standalone_vocab=True)
    assert [plain.least_layers(block) for block in range(4)] == [1, 1, 1, 1]
    assert [alone.least_layers(block) for block in range(4)] == [0, 1, 1, 0]
    assert [alone.least_layers(block, True) for block in range(4)] == [0, 1, 0, 0]
    assert LayoutContext(1, 1, (0,), standalone_vocab=True).least_layers(0) == 1
    headed = replace(plain, head_layers=3)
    assert [headed.fewer_layers(block) for block in range(4)] == [1, 1, 1, 3]
    assert plain.fewer_layers(3) == 1
    apart = [(3, True, True), (2, True, True), (3, False, True), (3, True, False)]
    assert [
        LayoutContext(pp, 1, (0,) * 8, standalone_vocab=vocab, mtp_standalone=mtp).may_part
        for pp, vocab, mtp in apart
    ] == [True, False, False, False]


def test_layers_that_recompute() -> None:
    """Two stages of two blocks: 3 and 1 layers, 2 and 2."""

    def taken(recomputed: dict[str, tuple[int, ...]], how: str, *modes: str) -> object:
        layout = Layout(2, 2, (3, 2, 1, 2), recomputed)
        return block_taken(layout, LayoutContext(2, 2, (0,) * 8, recomputation=how, modes=modes))  # type: ignore[arg-type]

    assert taken({}, "none") == ()
    assert taken({"full": (4, 4)}, "none") is None
    assert taken({"full": (4, 4)}, "all", "full") == ((3, 2, 1, 2),)
    assert taken({"full": (4, 3)}, "all", "full") is None
    # Two of every block, of which one has a single layer.
    assert taken({"full": (3, 4)}, "shared", "full") == ((2, 2, 1, 2),)
    assert taken({"full": (2, 4)}, "shared", "full") is None
    assert taken({"full": (4, 3)}, "free", "full") == ((3, 2, 1, 1),)
    assert taken({"full": (5, 3)}, "free", "full") is None
    assert taken({"full": (0, 0)}, "free", "full") is None
    assert taken({"full": (1, 0), "mlp": (3, 1)}, "free", "full", "mlp") == (
        (1, 0, 0, 0),
        (3, 1, 1, 0),
    )
    assert [
        shared_count(Layout(2, 2, (3, 2, 1, 2), {"full": again}))
        for again in ((2, 2), (3, 4), (4, 4), (1, 1))
    ] == [1, 2, 3, None]


# Two kinds: every size another power of two, so that no two sums are alike.
PHASE = PhaseNumbers(
    stage=(1 << 20,),
    layer=((1 << 10, 1 << 13),),
    freed=((1 << 4, 1 << 6),),
    working=(1 << 21, 1 << 22),
    working_recomputed=(1 << 23, 1 << 24),
    gather=(1 << 27, 1 << 28),
    done=((1 << 29, 1 << 30), (1 << 31, 1 << 32)),
)


@pytest.mark.parametrize(
    ("layers", "again", "size"),
    [
        ([3, 0], [0, 0], (1 << 20) + 3 * (1 << 10) + (1 << 21) + (1 << 27) + (1 << 29)),
        ([3, 2], [0, 0],
         (1 << 20) + 3 * (1 << 10) + 2 * (1 << 13) + (1 << 22) + (1 << 28) + (1 << 30)),
        # All of the second kind recompute: what they leave counts where none is plain.
        ([3, 2], [0, 2],
         (1 << 20) + 3 * (1 << 10) + 2 * (1 << 13) - 2 * (1 << 6) + (1 << 24) + (1 << 28)
         + (1 << 32)),
        ([3, 2], [2, 1],
         (1 << 20) + 3 * (1 << 10) + 2 * (1 << 13) - 2 * (1 << 4) - (1 << 6) + (1 << 24)
         + (1 << 28) + (1 << 30)),
    ],
)  # fmt: skip
def test_a_moment_of_a_stage(layers: list[int], again: list[int], size: int) -> None:
    assert PHASE.size(0, layers, again) == size
    larger = replace(PHASE, stage=(1 << 40,))
    assert MemoryNumbers(1, 9, (PHASE, larger)).peak(0, layers, again) == size + (1 << 40) - (
        1 << 20
    )


def test_kinds_in_order_leave_what_the_last_one_does() -> None:
    ordered = replace(PHASE, ordered=True, done=((9, 5), (7, 3)))
    assert ordered.left_done([3, 0], [0, 0]) == 9
    assert ordered.left_done([3, 2], [0, 0]) == 5
    assert ordered.left_done([3, 2], [0, 2]) == 3
    assert replace(ordered, ordered=False).left_done([3, 2], [3, 2]) == 7
    assert replace(ordered, done=()).left_done([3, 2], [3, 2]) == 0


@pytest.mark.parametrize(
    "field", ["stage", "working", "gather", "layer", "working_recomputed", "done"]
)
def test_a_moment_that_is_larger_in_one_term_is_kept(field: str) -> None:
    value = getattr(PHASE, field)
    nested = isinstance(value[0], tuple)
    more = ((value[0][0] + 1, *value[0][1:]), *value[1:]) if nested else (value[0] + 1, *value[1:])
    larger = replace(PHASE, **{field: more})
    assert PHASE.never_exceeds(larger)
    assert PHASE.never_exceeds(PHASE)
    assert not larger.never_exceeds(PHASE)


@pytest.mark.parametrize(
    ("groups", "fraction", "kept"),
    [(10, 1.0, 0), (10, 0.0, 10), (10, 0.5, 5), (7, 0.5, 3), (10, 0.95, 0), (3, 0.34, 1)],
)
def test_groups_that_stay(groups: int, fraction: float, kept: int) -> None:
    assert kept_groups(groups, fraction) == kept


@pytest.mark.parametrize(
    ("kinds", "fraction", "layers"),
    [
        ((0, 0, 0), 1.0, (3, 3)),
        ((0, 0, 0), 0.0, (0, 0)),
        # Six groups, of which three stay: the last layer's two and one of the second.
        ((0, 0, 0), 0.5, (1, 2)),
        ((0, 0, 0), 0.66, (2, 2)),
        ((0, 1, 1), 0.5, (1, 2)),
        ((0, 1, 1), 0.6, (2, 2)),
    ],
)
def test_layers_that_leave(
    kinds: tuple[int, ...], fraction: float, layers: tuple[int, int]
) -> None:
    """Kind 0 has two groups a layer, kind 1 three."""
    assert leaving_layers(kinds, (2, 3), fraction) == layers
    ctx = LayoutContext(2, 1, (0, *kinds), offload_fraction=fraction)
    layout = Layout(2, 1, (1, 3))
    whole, some = leaving_blocks(layout, ctx, (2, 3))
    assert (whole[1], some[1]) == layers
    assert (whole[0], some[0]) == leaving_layers((0,), (2, 3), fraction)


@pytest.mark.parametrize(
    ("sequences", "degrees", "rule", "count"),
    [
        (48, {"dp": 4, "mbs": 3}, "any", 4),
        # 50 is nearer to 48 than to 60, 54 as near to both: up.
        (50, {"dp": 4, "mbs": 3}, "any", 4),
        (54, {"dp": 4, "mbs": 3}, "any", 5),
        (1, {"dp": 8}, "any", 1),
        # Of 13 micro-batches groups of 4 are 12, within 10 %; not within 5.
        (13, {"pp": 4, "vpp": 2}, "any", 13),
        (13, {"pp": 4, "vpp": 2}, "multiple-of-pp", 12),
        (13, {"pp": 4, "vpp": 1}, "multiple-of-pp", 13),
        (10, {"pp": 4, "vpp": 2}, "multiple-of-pp", 10),
        (26, {"pp": 4, "vpp": 2, "mbs": 2}, "multiple-of-pp", 12),
    ],
)
def test_micro_batches_nearest_to_the_goal(
    sequences: int, degrees: dict[str, int], rule: str, count: int
) -> None:
    ctx = context(batch=BatchGoal(sequences, 0.1), interleaved_microbatches=rule)
    shape = one_shape(**degrees)
    assert accumulation(shape, ctx).tolist() == [count]
    there = ramp_columns(shape, ctx, BatchGoal(2 * sequences, 0.0))
    assert there["gbs"] == there["grad_acc"] * shape["mbs"] * shape["dp"]
    assert there["tp"] is shape["tp"]


def test_tolerance_of_a_batch() -> None:
    assert BatchGoal(200).largest_difference == 10.0
    assert BatchGoal(200, 0.1).largest_difference == 20.0
    assert BatchGoal(200, 0.1, exact=True).largest_difference == 0.0


@pytest.mark.parametrize(
    ("kind", "tp", "cp", "inner", "found"),
    [
        ("p2p", 1, 4, 0, 1),
        ("all_gather", 1, 4, 0, GATHERS),
        ("all_gather", 1, 1, 0, 1),
        ("a2a", 1, 4, 0, 4),
        ("a2a", 2, 4, 0, IMPOSSIBLE),
        ("a2a", 16, 1, 0, 1),
        # 4 key/value heads: at most 4 ranks with tp; two levels of two ranks at least.
        ("a2a+p2p", 1, 8, 0, 4),
        ("a2a+p2p", 1, 4, 0, 2),
        ("a2a+p2p", 2, 8, 0, 2),
        ("a2a+p2p", 4, 8, 0, IMPOSSIBLE),
        ("a2a+p2p", 1, 2, 0, IMPOSSIBLE),
        ("a2a+p2p", 1, 3, 0, IMPOSSIBLE),
        ("a2a+p2p", 1, 1, 0, 1),
        ("a2a+p2p", 1, 8, 2, 2),
        ("a2a+p2p", 1, 8, 3, IMPOSSIBLE),
    ],
)
def test_ranks_of_an_all_to_all(
    kind: ContextKind, tp: int, cp: int, inner: int, found: int
) -> None:
    """12 heads, 4 of keys and values."""
    columns = one_shape(tp=tp, cp=cp)
    assert inner_ranks(kind, columns, DENSE, 8, inner).tolist() == [found]


def test_kinds_of_exchange() -> None:
    assert inner_ranks("a2a+p2p", one_shape(cp=8, tp=1), DENSE, 3).tolist() == [2]
    assert [exchange_kind(8, inner) for inner in (0, 1, 8, 2)] == [
        ("all_gather", ()),
        ("p2p", ()),
        ("a2a", ()),
        ("a2a+p2p", (2, 4)),
    ]
    assert exchange_kind(1, 1) == ("", ())
    every: tuple[ContextKind, ...] = ("p2p", "all_gather", "a2a", "a2a+p2p")
    assert kinds_for(DENSE, every) == every
    for changed, kinds in (
        ({"sliding_window": True}, ("all_gather", "a2a")),
        ({"attention_sinks": True}, ("a2a",)),
        ({"has_mla": True}, ("p2p", "a2a+p2p")),
    ):
        assert kinds_for(replace(DENSE, **changed), every) == kinds


@pytest.mark.parametrize(
    ("degrees", "held"),
    [
        ({}, 1.0),
        ({"pp": 4, "grad_acc": 8}, 1.0),
        ({"pp": 4, "grad_acc": 2}, 0.5),
        # Interleaved: min(8·2, 2·3 + 4 + 1) = 11 of 2 chunks on 4 stages.
        ({"pp": 4, "vpp": 2, "grad_acc": 8}, 11 / 2 / 4),
        ({"pp": 4, "vpp": 2, "grad_acc": 4}, 8 / 2 / 4),
        ({"mbs": 3, "cp": 2}, 1.5),
    ],
)
def test_activations_on_the_host(degrees: dict[str, int], held: float) -> None:
    """48 tokens of a sequence, of 2 bytes each."""
    ctx = replace(context(), offloaded={"none": 2.0})
    assert offloaded_bytes(one_shape(**degrees), ctx).tolist() == [48 * 2.0 * held]


@pytest.mark.parametrize(
    ("shard", "divisor"),
    [("none", 1), ("tp", 8), ("sequence", 8), ("kv", 4), ("routed", 4), ("routed_tp", 8),
     ("expert_tp", 2)],
)  # fmt: skip
def test_what_divides_activations_on_the_host(shard: str, divisor: int) -> None:
    ctx = replace(context(), offloaded={shard: 1.0})
    shape = one_shape(tp=8, etp=2)
    assert offloaded_bytes(shape, ctx).tolist() == [48 / divisor]
    latent = replace(ctx, model=replace(DENSE, has_mla=True))
    assert offloaded_bytes(shape, latent).tolist() == [48 / (8 if shard == "kv" else divisor)]
    whole = replace(ctx, framework=context(sequence_parallel="never").framework)
    assert offloaded_bytes(shape, whole).tolist() == [48 / (1 if shard == "sequence" else divisor)]


def test_chunks_of_embedding_and_head_alone() -> None:
    alone = context(standalone_vocab=True)
    assert most_chunks(context()) == 8
    assert most_chunks(alone) == 10
    for schedule, most in (("1f1b", 10), ("interleaved", 10), ("zb-v", 8)):
        assert most_chunks(replace(alone, schedule=schedule)) == most
    assert most_chunks(replace(alone, offload_modules=1)) == 8


@pytest.mark.parametrize(
    ("text", "degree", "message"),
    [
        ("1048577", "tp", "tp must be at most 1,048,576"),
        ("9" * 5000, "tp", "tp must be at most"),
        ("4..2", "zero", "did you mean 2..4"),
        ("00", "tp", "tp must be at least 1"),
    ],
)
def test_degrees_end(text: str, degree: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        parse_degree_limit(text, degree)
    assert parse_degree_limit("1048576").named == (2**20,)
    assert parse_degree_limit("0008").named == (8,)
    assert parse_degree_limit("3..3").spans == ((3, 3),)
    assert parse_degree_limit("..2", "shard").spans == ((0, 2),)
    assert parse_degree_limit("2..").allows(np.array([1, 2, 2**62])).tolist() == [False, True, True]


def test_numbers_that_conditions_name() -> None:
    assert user_condition("require", "tp in (0, 1, 1048576, 1048577)").named("tp") == (1, 2**20)
    assert user_condition("require", "zero in (0, 1)").named("zero") == (0, 1)
    assert user_condition("require", "zero == -1 or 3 >= zero").named("zero") == (3,)
    shapes = {name: np.repeat(column, 17) for name, column in one_shape().items()}
    for count, said in ((17, "tp is 1 to 17 in them"), (16, ", 15 or 16 in them")):
        few = {name: column[:count] for name, column in shapes.items()}
        few["tp"] = np.arange(1, count + 1)
        assert user_condition("require", "tp > 99").values_tried(few, context()).endswith(said)
    ctx = context(limits={"tp": "2,4"}, conditions=[("fix", "tp=8"), ("require", "tp <= 4")])
    assert ctx.named("tp") == (2, 4, 8)
    assert ctx.named("pp") == ()


def test_texts_and_powers_end() -> None:
    longest = "tp == 1".ljust(LONGEST_TEXT - 5, "1") + " or 1"
    assert len(longest) == LONGEST_TEXT
    with pytest.raises(ConstraintError, match="larger than 2"):
        parse_condition(longest, ("tp",))
    with pytest.raises(ConstraintError, match="1,001 characters; at most 1,000 are accepted"):
        parse_condition(longest + "1", ("tp",))
    values = {"tp": np.array([2**62])}
    for text, holds in (("2**62 == tp", True), ("1**99 < tp", True), ("0**99 == tp", False)):
        assert condition_mask(parse_condition(text, ("tp",)), values).tolist() == [holds]
    for text in ("2**63 > tp", "3**40 > tp"):
        with pytest.raises(ExpressionError, match="must stay below 2"):
            parse_condition(text, ("tp",))
    for depth, ends in ((39, False), (40, True)):
        if not ends:
            parse_condition("-" * depth + "tp < 3", ("tp",))
            continue
        with pytest.raises(ExpressionError, match="nested more than 40 deep"):
            parse_condition("-" * depth + "tp < 3", ("tp",))
    exact = parse_condition("tp + tp > tp - -tp", ("tp",))
    assert condition_mask(exact, {"tp": np.array([2**61])}).tolist() == [False]
    assert condition_mask(exact, values).tolist() == [False]


@pytest.mark.parametrize(("modules", "legal"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_last_chunk_of_one_layer_fails_from_two_modules_on(modules: int, legal: bool) -> None:
    """Two stages of two chunks; the last chunk of the second has one layer."""
    ctx = LayoutContext(2, 2, (0,) * 8, standalone_vocab=True, offload_modules=modules)
    assert offload_chunk_layers.check(Layout(2, 2, (1, 3, 3, 1)), ctx) == legal
    assert offload_chunk_layers.check(Layout(2, 2, (1, 1, 4, 2)), ctx)
    # Alone with the head, but no second chunk: none at all is legal, one is not.
    single = replace(ctx, vpp=1)
    assert offload_chunk_layers.check(Layout(2, 1, (8, 0)), single)
    assert offload_chunk_layers.check(Layout(2, 1, (7, 1)), single) == legal
    shape = one_shape(pp=2, vpp=2), one_shape(pp=8)
    rule = next(rule for rule in RULES if rule.name == "offload-chunks")
    ruled = replace(context(), offload_modules=modules)
    assert [rule.mask(columns, ruled).tolist() for columns in shape] == [[True], [legal]]
