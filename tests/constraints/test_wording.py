"""What rules say of a context: the numbers and the branches of their sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from constraints.condition import user_condition
from constraints.context import RuleContext
from constraints.numbers import BatchGoal
from constraints.registry import RULES
from constraints.rule import ShapeRule
from tests.constraints.shapes import DENSE, MOE, context, one_shape

RULE: dict[str, ShapeRule] = {rule.name: rule for rule in RULES}
EXACT = BatchGoal(24, exact=True)
RAMP = (BatchGoal(8, exact=True), BatchGoal(16, exact=True))
STATES = replace(DENSE, state_heads=16, state_groups=2)


@pytest.mark.parametrize(
    ("name", "ctx", "said"),
    [
        ("batch-size", context(batch=EXACT),
         "mbs·grad_acc·dp must equal the global batch of 24 sequences"),
        ("batch-size", context(batch=BatchGoal(2000, 0.125)),
         "mbs·grad_acc·dp must be within 12.5 % of the global batch of 2,000 sequences"),
        ("batch-ramp", context(), "a batch ramp's batches must be multiples of dp·mbs"),
        ("batch-ramp", replace(context(batch=EXACT), ramp=RAMP),
         "every batch of the ramp (8 to 24 sequences) must be a multiple of dp·mbs, with as many "
         "micro-batches as the schedule needs; dp·mbs must divide 8, or give another "
         "--batch-ramp"),
        ("batch-ramp", replace(context(batch=BatchGoal(24, 0.25)), ramp=RAMP),
         "every batch of the ramp (8 to 24 sequences) must be a multiple of dp·mbs within 25.0 %, "
         "with as many micro-batches as the schedule needs, or give another --batch-ramp"),
        ("kv-heads-by-tp", context(),
         "anything: tp must divide or be a multiple of 4 key/value heads"),
        ("kv-heads-by-tp", context(kv_heads_rule="tp-divides"),
         "anything: tp must divide 4 key/value heads"),
        ("kv-heads-by-tp", context(kv_heads_rule="none"),
         "anything: tp must not heed 4 key/value heads"),
        ("state-heads-by-ranks", context(model=STATES),
         "state-space layers: tp·cp must divide 16 heads, tp 2 groups, and cp fit the groups of a "
         "rank"),
        ("state-heads-by-ranks", context(model=replace(STATES, state_groups=0)),
         "state-space layers: tp·cp must divide 16 heads, tp any groups, and cp fit the groups of "
         "a rank"),
        ("ffn-by-tp", context(), "tp must divide 384 (FFN)"),
        ("ffn-by-tp", context(model=MOE), "tp must divide 80 (shared experts)"),
        ("ffn-by-tp", context(model=replace(MOE, ffn=9)),
         "tp must divide 9 (FFN) and 80 (shared experts)"),
        ("ffn-by-tp", context(model=replace(MOE, shared_ffn=0)), "no dense FFN to cut: any tp"),
        ("vocabulary-by-tp", context(),
         "anything does not pad: tp must divide 1,000 vocabulary entries"),
        ("sequence-by-cp", context(), "2·cp must divide 48 tokens of sequence"),
        ("sequence-by-tp-cp", context(), "tp·cp must divide 48 tokens of sequence"),
        ("experts-by-ep", context(model=MOE), "ep must divide 6 experts"),
        ("expert-ffn-by-etp", context(model=MOE), "etp must divide 40 (width of one expert)"),
        ("experts-fill-stage", context(gpus=2048),
         "ep·etp must divide dp·cp·tp, the GPUs of one stage (2,048 / pp)"),
        ("low-precision-multiple", context(precision="fp8"),
         "fp8: widths per rank must be multiples of 16, tokens per rank of 8"),
        ("low-precision-multiple", context(precision="nvfp4"),
         "nvfp4: widths per rank must be multiples of 16, tokens per rank of 16"),
        ("low-precision-multiple", context(precision="mxfp8"),
         "mxfp8: widths per rank must be multiples of 32, tokens per rank of 32"),
        ("low-precision-multiple", context(),
         "bf16: widths per rank must be multiples of 1, tokens per rank of 1"),
        ("zero-stage-offered", context(zero_stages=(3, 0)), "anything: zero must be one of 0, 3"),
        ("zero-with-pipeline", context(), "anything: every zero can be combined with pp > 1"),
        ("zero-with-pipeline", context(zero2_with_pipeline=False),
         "anything: zero 2 only with pp = 1"),
        ("zero-with-pipeline", context(zero2_with_pipeline=False, zero3_with_pipeline=False),
         "anything: zero 2 and 3 only with pp = 1"),
        ("zero-with-tensor", context(), "anything: every zero goes with tp > 1"),
        ("zero-with-tensor", context(zero3_with_tensor=False),
         "anything: zero 3 only with tp = 1"),
        ("zero-has-replicas", context(),
         "with dp·cp = 1 there is nothing to shard, and a search tries only zero 0"),
        ("zero-has-replicas", context(least_zero=1),
         "with dp·cp = 1 there is nothing to shard, and a search tries only zero 1"),
        ("zero-has-replicas", context(limits={"zero": "2,3"}),
         "with dp·cp = 1 there is nothing to shard, and a search tries only zero 2"),
        ("zero-has-replicas", context(limits={"zero": "3"}, zero_stages=(1, 2)),
         "with dp·cp = 1 there is nothing to shard, and a search tries only zero 1"),
        ("zero-has-replicas", replace(context(least_zero=1), gradients_leave=True),
         "with dp·cp = 1 there is nothing to shard, and a search tries only zero 1 and 2"),
        ("shard-divides-replicas", context(), "shard must divide dp·cp"),
        ("shard-divides-replicas", context(model=MOE),
         "shard must divide dp·cp, and dp·cp/shard must divide dp·cp·tp/(ep·etp)"),
        ("host-memory", replace(context(), host_bytes_per_gpu=3.0 * 2**40),
         "activations on the host must fit in 3,072 GiB of the node's memory per GPU"),
        ("chunks-have-layers", context(), "pp·vpp must not exceed 8 layers"),
        ("chunks-have-layers", context(standalone_vocab=True),
         "pp·vpp must not exceed 8 layers, or 10 if embedding and head have chunks of their own"),
        ("layers-split", context(), "anything: any split of the layers"),
        ("layers-split", context(layouts="even"), "anything: pp·vpp must divide 8 layers"),
        ("layers-split", context(layouts="even-or-ends"), "anything: vpp must divide 8 layers"),
        ("interleaving-microbatches", context(), "anything: with vpp > 1 pp must divide grad_acc"),
        ("interleaving-microbatches", context(interleaved_microbatches="whole-rounds"),
         "anything: with vpp > 1 grad_acc must be a multiple of max(1, grad_acc // pp)"),
        ("schedule-offered", context(), "the framework's usual schedule"),
        ("schedule-even-stages", context(), "schedule 1f1b: 2 must divide pp"),
        ("schedule-even-stages", context(schedule="dualpipe"),
         "schedule dualpipe: 2 must divide pp"),
        ("world-size", context(gpus=1024), "dp·tp·pp·cp must equal 1,024 GPUs"),
        ("whole-nodes", context(gpus=1027),
         "more than one node means whole nodes of 8 GPUs; 1,027 makes 128 nodes and 3 more"),
        ("tp-in-domain", context(domain=72),
         "tp must fit evenly into a scale-up domain of 72 GPUs (lifted by "
         "--allow-tp-across-nodes)"),
        ("user-tp", context(), "tp is free"),
        ("user-grad-acc", context(limits={"grad_acc": "2.."}), "you asked for grad_acc = 2.."),
        ("context-exchange", replace(context(), context_kinds=("a2a", "a2a+p2p")),
         "a2a or a2a+p2p: tp times the ranks of an all-to-all must divide 12 heads and 4 "
         "key/value heads; a2a+p2p needs two levels of at least two ranks each"),
        ("context-exchange", replace(context(), context_kinds=("a2a",)),
         "a2a: tp times the ranks of an all-to-all must divide 12 heads and 4 key/value heads"),
        ("offload-chunks", context(),
         "with activations of several modules on the host every chunk needs two of the 8 layers or "
         "more: Megatron-Core fails in the second step with one (Chunk mismatch)"),
        ("optimizer-needs-sharding", context(least_zero=2),
         "anything: this --optimizer or --optimizer-offload needs zero of at least 2"),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" in value and " " not in value else "",
)  # fmt: skip
def test_a_rule_says_its_numbers(name: str, ctx: RuleContext, said: str) -> None:
    assert RULE[name].explain(ctx) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp", "write NAME=NUMBER, for example tp=4"),
        ("pp <= 4", "for example pp=4; other conditions go to --require"),
        ("", "nothing is given; write NAME=NUMBER, for example mbs=1"),
        ("<= 4", "write NAME=NUMBER, for example mbs=1"),
        ("xyzzy <= 4", "write NAME=NUMBER, for example mbs=1"),
    ],
)
def test_a_fix_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        user_condition("fix", text)
    assert said in str(caught.value)


def test_degrees_are_tried_beside_each_other() -> None:
    """Widths, tokens and hidden size of low precision; groups of state-space layers."""
    wide = replace(DENSE, query_width=64, hidden=64, ffn=128, seq=64, moe_ffn=32, shared_ffn=64)
    rule, ctx = RULE["low-precision-multiple"], context(model=wide, precision="fp8")
    for degrees, legal in (
        ({"tp": 4}, True), ({"tp": 8}, False), ({"etp": 2}, True), ({"etp": 4}, False),
        ({"cp": 8}, True), ({"cp": 16}, False), ({"cp": 16, "mbs": 2}, True),
    ):  # fmt: skip
        assert rule.mask(one_shape(**degrees), ctx).tolist() == [legal]
    for field in ("query_width", "ffn", "shared_ffn", "moe_ffn", "hidden"):
        odd = replace(ctx, model=replace(wide, **{field: 72}))
        assert rule.mask(one_shape(), odd).tolist() == [False]
    states = RULE["state-heads-by-ranks"]
    for groups, degrees, legal in (
        (4, {"tp": 2, "cp": 2}, True), (4, {"tp": 2, "cp": 8}, True),
        (4, {"tp": 4, "cp": 3}, False),
        (4, {"tp": 8}, False), (0, {"tp": 8, "cp": 2}, True), (0, {"tp": 8, "cp": 4}, False),
        (8, {"tp": 2, "cp": 2}, True), (6, {"cp": 4}, False),
    ):  # fmt: skip
        model = replace(DENSE, state_heads=16, state_groups=groups)
        assert states.mask(one_shape(**degrees), context(model=model)).tolist() == [legal]


def test_a_rule_made_of_others_names_the_one_that_a_shape_breaks() -> None:
    """A ramp that dp·mbs divides may still have too few micro-batches for its schedule."""
    rule = RULE["batch-ramp"]
    early = replace(context(batch=EXACT), ramp=RAMP, schedule="dualpipe")
    shape = one_shape(pp=4, dp=2, mbs=1, grad_acc=12)
    shape = shape | {"gbs": shape["mbs"] * shape["dp"] * shape["grad_acc"]}
    assert not rule.mask(shape, early)[0]
    assert rule.why(shape, early) == (
        "the ramp's batch of 8 sequences, 4 micro-batches at dp·mbs 2: schedule dualpipe needs an "
        "even grad_acc of at least 2·pp"
    )
    undivided = one_shape(dp=3, mbs=1, grad_acc=8)
    assert "mbs·grad_acc·dp must equal the global batch of 8" in rule.why(undivided, early)
