"""Every rule: the smallest shape that it accepts beside the smallest that it rejects."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import pytest

import constraints
from constraints.context import RuleContext
from constraints.numbers import DEGREES, BatchGoal
from constraints.registry import RULES
from planner.cost.layout import filled_pipelines
from tests.constraints.shapes import DENSE, MOE, context, one_shape

RULE = {rule.name: rule for rule in RULES}
Degrees = dict[str, int]


class Case(NamedTuple):
    rule: str
    legal: Degrees
    illegal: Degrees
    ctx: RuleContext


WIDE = replace(DENSE, query_width=64, hidden=64, ffn=64, seq=32)
HOST = replace(context(), offloaded={"tp": 1e3}, host_bytes_per_gpu=5e4)
STATES = replace(DENSE, state_heads=16, state_groups=2)
CASES = [
    Case("user-tp", {"tp": 2}, {"tp": 3}, context(limits={"tp": "2,4"})),
    Case("user-zero", {"zero": 0}, {"zero": 1}, context(limits={"zero": "0"})),
    Case("heads-by-tp", {"tp": 2}, {"tp": 5}, context()),
    Case("kv-heads-by-tp", {"tp": 8}, {"tp": 3}, context()),
    Case("kv-heads-by-tp", {"tp": 2}, {"tp": 6}, context()),
    Case("kv-heads-by-tp", {"tp": 4}, {"tp": 8}, context(kv_heads_rule="tp-divides")),
    Case("state-heads-by-ranks", {"tp": 2, "cp": 4}, {"tp": 4}, context(model=STATES)),
    Case("state-heads-by-ranks", {"cp": 8}, {"cp": 3}, context(model=STATES)),
    Case("ffn-by-tp", {"tp": 3}, {"tp": 5}, context()),
    Case("ffn-by-tp", {"tp": 5}, {"tp": 3}, context(model=MOE)),
    Case("vocabulary-by-tp", {"tp": 2}, {"tp": 3}, context(vocabulary_padded=False)),
    Case("experts-needed", {"ep": 1}, {"ep": 2}, context()),
    Case("experts-needed", {"etp": 1}, {"etp": 2}, context()),
    Case("experts-by-ep", {"ep": 3}, {"ep": 4}, context(model=MOE)),
    Case("expert-ffn-by-etp", {"etp": 5}, {"etp": 3}, context(model=MOE)),
    Case("sequence-by-cp", {"cp": 8}, {"cp": 16}, context()),
    Case("sequence-by-cp", {"cp": 1}, {"cp": 2}, context(model=replace(DENSE, seq=51))),
    Case("sequence-by-tp-cp", {"tp": 4, "cp": 4}, {"tp": 4, "cp": 8}, context()),
    Case("low-precision-multiple", {"tp": 4}, {"tp": 8}, context(model=WIDE, precision="fp8")),
    Case(
        "batch-ramp",
        {"dp": 2, "grad_acc": 2},
        {"dp": 4, "grad_acc": 1},
        replace(context(), ramp=(BatchGoal(2, 0.0, True),)),
    ),
    Case(
        "batch-ramp",
        {"vpp": 2, "pp": 2},
        {"vpp": 2, "pp": 4},
        replace(context(), ramp=(BatchGoal(2, 0.0, True),)),
    ),
    Case("batch-size", {"gbs": 4}, {"gbs": 8, "grad_acc": 8}, context()),
    Case("batch-size", {"mbs": 2, "grad_acc": 2}, {"mbs": 2, "grad_acc": 1}, context()),
    Case("tensor-supported", {"tp": 1}, {"tp": 2}, context(tensor=False)),
    Case("pipeline-supported", {"pp": 1}, {"pp": 2}, context(pipeline=False)),
    Case("interleaved-supported", {"vpp": 1}, {"vpp": 2}, context(interleaved=False)),
    Case("context-supported", {"cp": 1}, {"cp": 2}, context(context=False)),
    Case("context-exchange", {"cp": 4}, {"cp": 8}, replace(context(), context_kinds=("a2a",))),
    Case("context-exchange", {"cp": 8}, {"cp": 2}, replace(context(), context_kinds=("a2a+p2p",))),
    Case("context-exchange", {"cp": 1}, {"cp": 2}, replace(context(), context_kinds=())),
    Case("expert-supported", {"ep": 1}, {"ep": 2}, context(expert=False)),
    Case(
        "expert-tensor-supported",
        {"tp": 2, "etp": 2},
        {"tp": 2, "etp": 1},
        context(model=MOE, expert_tensor=False),
    ),
    Case(
        "moe-tensor-needs-sequence",
        {"tp": 1},
        {"tp": 2},
        context(model=MOE, sequence_parallel="never"),
    ),
    Case("zero-stage-offered", {"zero": 1}, {"zero": 2}, context(zero_stages=(1, 0))),
    Case(
        "zero-with-pipeline",
        {"zero": 1, "pp": 2},
        {"zero": 2, "pp": 2},
        context(zero2_with_pipeline=False),
    ),
    Case(
        "zero-with-pipeline", {"zero": 3}, {"zero": 3, "pp": 2}, context(zero3_with_pipeline=False)
    ),
    Case(
        "zero-with-tensor",
        {"zero": 2, "tp": 2},
        {"zero": 3, "tp": 2},
        context(zero3_with_tensor=False),
    ),
    Case("zero-has-replicas", {"zero": 0}, {"zero": 1}, context()),
    Case("zero-has-replicas", {"zero": 2}, {"zero": 0}, context(limits={"zero": "2,3"})),
    # Offload moves gradients from ZeRO-2 on: 1 and 2 differ with one rank too, 2 and 3 do not.
    Case("zero-has-replicas", {"zero": 2}, {"zero": 3}, replace(context(), gradients_leave=True)),
    Case("zero-has-replicas", {"zero": 3}, {"zero": 2}, replace(context(), weights_leave=True)),
    Case(
        "hybrid-sharding-supported",
        {"dp": 4, "zero": 1},
        {"dp": 4, "zero": 1, "shard": 2},
        context(),
    ),
    Case("shard-divides-replicas", {"dp": 4, "shard": 2}, {"dp": 4, "shard": 3}, context()),
    Case(
        "offload-chunks",
        {"pp": 4, "vpp": 1, "grad_acc": 4},
        {"pp": 8, "grad_acc": 8},
        replace(context(), offload_modules=2),
    ),
    # 48 tokens of 1 kB each, 8 stages of which hold 8 micro-batches: 48 kB a GPU.
    Case("host-memory", {"pp": 8, "grad_acc": 8}, {"pp": 8, "grad_acc": 8, "mbs": 2}, HOST),
    Case(
        "context-ranks-shard",
        {"cp": 2, "dp": 2, "zero": 2, "shard": 2},
        {"cp": 2, "dp": 2, "zero": 0},
        context(shards_over_context=True),
    ),
    Case(
        "experts-in-shards",
        {"dp": 2, "ep": 2, "zero": 2},
        {"dp": 2, "ep": 2, "zero": 0},
        context(model=MOE, experts_in_shards=True),
    ),
    Case(
        "experts-in-shards",
        {"dp": 2, "ep": 2, "zero": 3},
        {"dp": 2, "ep": 2, "zero": 2},
        context(model=MOE, experts_in_shards=True, expert_axis_shards=True),
    ),
    Case(
        "tied-embeddings-whole",
        {},
        {"pp": 2},
        context(model=replace(DENSE, tied_embeddings=True), tied_pipeline=False),
    ),
    Case(
        "mtp-whole",
        {"dp": 2},
        {"cp": 2},
        context(model=replace(DENSE, mtp_layers=1), mtp_split=False),
    ),
    Case("optimizer-needs-sharding", {"zero": 1}, {"zero": 0}, context(least_zero=1)),
    Case("chunks-have-layers", {"pp": 8}, {"pp": 9}, context()),
    Case("layers-split", {"pp": 4}, {"pp": 3}, context(layouts="even")),
    # A head as large as 5 layers: the last of three stages would hold it alone.
    Case(
        "greedy-stages-filled",
        {"pp": 2},
        {"pp": 3},
        context(layouts="greedy", filled_pipelines=filled_pipelines(DENSE.layers, 1.0, 5.0)),
    ),
    Case("interleaving-needs-pipeline", {"vpp": 2, "pp": 2}, {"vpp": 2}, context()),
    Case(
        "interleaving-microbatches",
        {"vpp": 2, "pp": 2, "grad_acc": 4},
        {"vpp": 2, "pp": 2, "grad_acc": 3},
        context(),
    ),
    Case(
        "microbatches-fill-pipeline",
        {"pp": 2, "grad_acc": 2},
        {"pp": 2, "grad_acc": 1},
        context(needs_microbatches_at_least_pp=True),
    ),
    Case(
        "schedule-chunks",
        {"pp": 2, "vpp": 2},
        {"pp": 2, "vpp": 1},
        context(schedule="interleaved"),
    ),
    Case("schedule-even-stages", {"pp": 4}, {"pp": 3}, context(schedule="dualpipe")),
    Case(
        "schedule-microbatches",
        {"pp": 2, "grad_acc": 6},
        {"pp": 2, "grad_acc": 5},
        context(schedule="dualpipe"),
    ),
    Case("tp-in-domain", {"tp": 8}, {"tp": 16}, context(gpus=16)),
    Case("tp-in-domain", {"tp": 4}, {"tp": 3}, context(gpus=24)),
    Case("tp-in-domain", {"tp": 3}, {"tp": 9}, context(gpus=6)),
    Case("experts-fill-stage", {"dp": 2, "ep": 2}, {"dp": 2, "ep": 4}, context(model=MOE)),
    Case("world-size", {"tp": 2, "pp": 2, "cp": 2}, {"tp": 2, "pp": 2}, context(gpus=8)),
]
# Where a rule must let pass what it rejects elsewhere.
LIFTED = [
    ("kv-heads-by-tp", {"tp": 3}, context(kv_heads_rule="none")),
    ("kv-heads-by-tp", {"tp": 3}, context(model=replace(DENSE, has_mla=True))),
    ("sequence-by-tp-cp", {"tp": 4, "cp": 8}, context(sequence_parallel="never")),
    ("layers-split", {"pp": 3}, context(layouts="greedy")),
    (
        "interleaving-microbatches",
        {"vpp": 2, "pp": 2, "grad_acc": 3},
        context(interleaved_microbatches="any"),
    ),
    ("schedule-chunks", {"pp": 2, "vpp": 1}, context(schedule="zb-h1")),
    ("expert-tensor-supported", {"tp": 2}, context(expert_tensor=False)),
    ("tp-in-domain", {"tp": 3}, context(gpus=8)),
    ("tp-in-domain", {"tp": 16}, context(gpus=16, allow_tp_across_nodes=True)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_smallest_legal_and_illegal(case: Case) -> None:
    rule = RULE[case.rule]
    assert rule.mask(one_shape(**case.legal), case.ctx).tolist() == [True]
    assert rule.mask(one_shape(**case.illegal), case.ctx).tolist() == [False]


@pytest.mark.parametrize(("name", "degrees", "ctx"), LIFTED, ids=lambda value: str(value)[:40])
def test_rule_is_lifted(name: str, degrees: Degrees, ctx: RuleContext) -> None:
    assert RULE[name].mask(one_shape(**degrees), ctx).tolist() == [True]


@pytest.mark.parametrize(
    ("gpus", "whole"), [(1, True), (7, True), (8, True), (12, False), (16, True), (65, False)]
)
def test_whole_nodes(gpus: int, whole: bool) -> None:
    assert RULE["whole-nodes"].mask(one_shape(), context(gpus=gpus)).tolist() == [whole]


@pytest.mark.parametrize(
    ("schedule", "offered"), [(None, True), ("1f1b", True), ("zb-v", True), ("gpipe", False)]
)
def test_schedule_offered(schedule: str | None, offered: bool) -> None:
    ctx = context(schedule=schedule, schedules=("1f1b", "zb-v"))
    assert RULE["schedule-offered"].mask(one_shape(), ctx).tolist() == [offered]
    assert RULE["schedule-offered"].explain(
        context(schedule="gpipe", schedules=("1f1b", "zb-v"))
    ) == ("anything has the schedules 1f1b, zb-v")


def test_every_rule_has_a_case() -> None:
    alike = {f"user-{degree.replace('_', '-')}" for degree in DEGREES}
    separate = {"whole-nodes", "schedule-offered"} | alike
    assert {case.rule for case in CASES} | separate == set(RULE)


def test_registry_is_well_formed() -> None:
    assert len(RULE) == len(RULES)
    for rule in RULES:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
        assert rule.sentence
        assert not rule.sentence.endswith(".")
        assert rule.source


@pytest.mark.parametrize("ctx", [context(), context(model=MOE, layouts="even")])
def test_every_rule_explains_itself(ctx: RuleContext) -> None:
    for rule in RULES:
        assert rule.explain(ctx)


def test_explanations_carry_the_numbers() -> None:
    ctx = context(gpus=65, precision="mxfp8", limits={"tp": "3"})
    assert RULE["heads-by-tp"].explain(ctx) == "tp must divide 12 heads"
    assert RULE["user-tp"].explain(ctx) == "you asked for tp = 3"
    assert "8 nodes and 1 more" in RULE["whole-nodes"].explain(ctx)
    assert "multiples of 32" in RULE["low-precision-multiple"].explain(ctx)


def test_package_names_its_distribution() -> None:
    assert constraints.__distribution__ == "trainplan"
