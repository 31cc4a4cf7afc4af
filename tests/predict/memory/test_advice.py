"""Advice: every move is what evaluating it again says."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest

from planner import Degrees, Request, evaluate
from planner.cost.terms import MEMORY_WORDS
from planner.job.optimizers import optimizer_names
from planner.predict.evaluate import Proposal
from planner.predict.memory.advice import (
    LEAST_SAVING,
    LEAST_SHRINKAGE,
    MOST_PAIRS,
    Advice,
    Move,
    advise,
)
from planner.predict.memory.option_changes import (
    OTHER_BATCH,
    OTHER_ROUNDING,
    OTHER_STATES,
)
from planner.predict.memory.solve import SAFE_PROBABILITY


def _advice(
    model: str, framework: str, degrees: Degrees, recompute: str = "none", **more: Any
) -> Advice:
    request = Request(
        model=model, gpus=f"{degrees.gpus}xH100", gbs=degrees.gbs, framework=framework, seq=4096
    )
    return advise(Proposal(request, degrees, recompute), **more)


@pytest.fixture(scope="module")
def single() -> Advice:
    """One that some single changes mend."""
    return _advice("llama-3-8b", "megatron-core", Degrees(dp=8, zero=0, mbs=4, grad_acc=4))


@pytest.fixture(scope="module")
def paired() -> Advice:
    """One that takes two changes."""
    return _advice("llama-2-13b", "megatron-core", Degrees(tp=2, dp=2, zero=1, mbs=4, grad_acc=2))


def _ease(moves: tuple[Move, ...]) -> list[tuple[bool, bool, float]]:
    """Same GPUs first, then the same training, then the cheapest."""
    return [(move.more_gpus > 0, bool(move.learns), move.extra_s) for move in moves]


def _all(advice: Advice) -> tuple[Move, ...]:
    return (*advice.sufficient, *advice.partial, *advice.pairs)


@pytest.mark.parametrize("name", ["single", "paired"])
def test_moves_are_what_evaluating_them_says(name: str, request: pytest.FixtureRequest) -> None:
    advice: Advice = request.getfixturevalue(name)
    base = advice.base
    assert _all(advice)
    for move in _all(advice)[:12]:
        proposal = move.proposal
        plan = evaluate(
            proposal.request,
            proposal.degrees,
            proposal.recompute,
            proposal.block_layers,
            proposal.recomputed,
        )
        assert plan == move.plan
        assert move.saved_bytes == base.peak_bytes - plan.peak_bytes > 0
        assert plan.gbs == base.gbs
        assert move.extra_s == pytest.approx(plan.step_time_s - base.step_time_s)
        assert plan.degrees.gpus - base.degrees.gpus == move.more_gpus


def test_moves_are_sorted_into_what_suffices_and_what_helps(single: Advice) -> None:
    assert single.base.fit_probability < SAFE_PROBABILITY
    assert single.sufficient
    assert all(move.plan.fit_probability >= SAFE_PROBABILITY for move in single.sufficient)
    assert all(move.plan.fit_probability < SAFE_PROBABILITY for move in single.partial)
    assert _ease(single.sufficient) == sorted(_ease(single.sufficient))
    savings = [move.saved_bytes for move in single.partial]
    assert savings == sorted(savings, reverse=True)
    assert not single.pairs
    least = LEAST_SAVING * single.base.peak_bytes
    assert all(move.saved_bytes > least for move in _all(single))
    # Those that break a rule or save nothing were tried as well.
    assert single.tried > len(_all(single))


def test_changes_that_are_tried() -> None:
    """Every larger degree, alone or at the cost of another; nothing is evaluated, for want of
    time."""
    flags: list[str] = []
    degrees = Degrees(tp=4, pp=2, vpp=4, dp=2, zero=0, mbs=6, grad_acc=4)
    request = Request(model="llama-3-8b", gpus="16xH100", gbs=48, seq=4096, attention="eager")
    advice = advise(
        Proposal(request, degrees), may_add_gpus=True, over=lambda what: not flags.append(what)
    )
    assert advice.tried == 0
    wanted = ["--zero 1", "--mbs 3", "--mbs 2", "--mbs 1", "--vpp 2", "--vpp 1"]
    splits = {"tp": 4, "pp": 2, "cp": 1}
    for (name, value), factor in product(splits.items(), (2, 4, 8, 16)):
        wanted.append(f"--{name} {value * factor}")
        givers = [giver for giver in splits if giver != name and splits[giver] % factor == 0]
        wanted += [f"{wanted[-1]} --{giver} {splits[giver] // factor}" for giver in givers]
    wanted += [
        "--dp 4 --zero 1", "--dp 8 --zero 1", "--dp 16 --zero 1 --mbs 3",
        "--dp 32 --zero 1 --gbs 768",
    ]  # fmt: skip
    wanted += ["--zero 1 --optimizer-offload 0.5", "--zero 1 --optimizer-offload 1"]
    # Techniques that work with the degrees and that an evaluated configuration goes without.
    wanted += [flag for flag in flags if flag.startswith("--with ")]
    wanted += [f"--activation-offload {modules}" for modules in ("core_attn,attn_proj", "all")]
    modes = [f"--recompute {name}" for name in ("mlp", "full")]
    # Fewer layers than all, where that is less certain to fit than what is asked for: as error bars
    # have it.
    flags = [flag for flag in flags if "--recompute-layers" not in flag]
    rules = [f"--optimizer {name}" for name in optimizer_names() if name != "adamw"]
    assert sorted(flags) == sorted([*wanted, *modes, *rules, "--attention flash"])


def test_a_split_of_the_layers_stays_where_the_stages_do() -> None:
    request = Request(model="gpt2", gpus="2xH100", gbs=256, seq=1024, framework="megatron-core")
    advice = advise(Proposal(request, Degrees(pp=2, mbs=64, grad_acc=4), block_layers=(7, 5)))
    kept = {(move.proposal.degrees.pp == 2, move.proposal.block_layers) for move in _all(advice)}
    assert (True, (7, 5)) in kept
    assert kept <= {(True, (7, 5)), (False, None)}
    # Fewer stages drop the split as well: two blocks are no layout of one.
    one = advise(
        Proposal(request, Degrees(pp=2, mbs=64, grad_acc=4), block_layers=(7, 5)),
        over=lambda what: what != "--tp 2 --pp 1",
    )
    assert [(move.proposal.degrees.pp, move.proposal.block_layers) for move in _all(one)] == [
        (1, None)
    ]


def test_pairs_come_where_no_single_change_suffices(paired: Advice) -> None:
    assert all(move.more_gpus for move in paired.sufficient)
    assert paired.pairs
    # With nothing left to shard over the stage stays as it was asked for.
    alone = [move for move in paired.partial if move.proposal.degrees.dp == 1]
    assert {move.proposal.degrees.zero for move in alone} == {1}
    assert _ease(paired.pairs) == sorted(_ease(paired.pairs))
    for move in paired.pairs:
        assert len({change.kind for change in move.changes}) == 2
        assert move.plan.fit_probability >= SAFE_PROBABILITY


def test_the_lightest_pair_is_named_where_nothing_suffices() -> None:
    advice = _advice("llama-3.1-405b", "megatron-core", Degrees(tp=4, pp=2, mbs=4, grad_acc=4))
    assert all(move.more_gpus for move in (*advice.sufficient, *advice.pairs))
    assert advice.closest is not None
    assert not advice.closest.more_gpus
    alone = [move.saved_bytes for move in advice.partial if not move.more_gpus]
    assert advice.closest.saved_bytes > max(alone)


def test_only_what_the_framework_has_is_advised() -> None:
    request = Request(model="gpt2-xl", gpus="1xH100", gbs=32, framework="nanogpt", seq=1024)
    advice = advise(Proposal(request, Degrees(mbs=32)))
    kinds = {move.changes[0].kind for move in _all(advice)}
    assert kinds == {"recompute", "mbs", "optimizer", "dtype"}


def test_gpus_are_added_only_if_they_may_be() -> None:
    degrees = Degrees(mbs=2, grad_acc=8)
    fixed = _advice("llama-3-8b", "megatron-core", degrees)
    free = _advice("llama-3-8b", "megatron-core", degrees, may_add_gpus=True)
    # Data parallelism with ZeRO is offered either way, after all that needs no further GPUs.
    assert {move.changes[0].kind for move in _all(fixed) if move.more_gpus} == {"dp"}
    grown = [move for move in free.sufficient if move.proposal.degrees.gpus > 1]
    assert grown
    for move in grown:
        assert f"{move.proposal.degrees.gpus} GPUs" in move.follows
        assert move.proposal.request.gpus == f"{move.proposal.degrees.gpus}xH100"
        assert move.plan.gbs == 16
        assert move.proposal.degrees.dp == 1 or "--dp" in move.flags


def test_some_layers_recompute_where_that_is_enough() -> None:
    degrees = Degrees(tp=4, mbs=12, grad_acc=2)
    advice = _advice("llama-2-7b", "megatron-core", degrees)
    partial = [move for move in advice.sufficient if move.proposal.recomputed]
    assert len(partial) == 1
    (count,) = partial[0].proposal.recomputed or ()
    assert 1 < count < 32
    fewer = (count - 1,)
    plan = evaluate(partial[0].proposal.request, degrees, "full", None, fewer)
    assert plan.fit_probability < SAFE_PROBABILITY


PIPELINE = {"pp": 2, "vpp": 4, "dp": 16, "zero": 1, "mbs": 2, "grad_acc": 8}
EXPERTS = {"tp": 2, "etp": 2, "dp": 8, "zero": 1, "mbs": 2, "grad_acc": 4}
WIDE = {"ep": 8, "tp": 2, "dp": 8, "zero": 1, "mbs": 2, "grad_acc": 4}
SHARDED = EXPERTS | {"zero": 3}


@pytest.mark.parametrize(
    ("model", "framework", "given", "flags", "follows"),
    [
        ("llama-3-8b", "megatron-core", {"dp": 8, "zero": 1}, "--tp 2", "dp 4, grad-acc 2"),
        # Nothing is left to shard over; the stage stays.
        ("llama-3-8b", "megatron-core", {"dp": 8, "zero": 1}, "--tp 8", "dp 1, grad-acc 8"),
        ("llama-3-8b", "megatron-core", {"dp": 8, "zero": 1}, "--cp 8", "dp 1, grad-acc 8"),
        ("llama-3-8b", "megatron-core", {"dp": 8, "mbs": 6}, "--mbs 2", "grad-acc 3"),
        ("llama-3-8b", "megatron-core", {"dp": 8, "mbs": 6}, "--mbs 4", None),
        # A batch of 8 sequences is none of 16 ranks of 2.
        ("llama-3-8b", "megatron-core", {"tp": 2, "dp": 8}, "--pp 16", None),
        ("llama-3-8b", "megatron-core", {"tp": 8, "zero": 0}, "--tp 16", None),
        # 32 layers are 8 stages of 4 chunks, but no 16.
        ("llama-3-8b", "megatron-core", PIPELINE, "--pp 8", "dp 4, grad-acc 32"),
        ("llama-3-8b", "megatron-core", PIPELINE, "--pp 16", "vpp 1, dp 2, grad-acc 64"),
        ("llama-3-8b", "megatron-core", PIPELINE, "--tp 2 --pp 1", "vpp 1"),
        ("mixtral-8x7b", "megatron-core", EXPERTS, "--tp 4", "etp 4, dp 4, grad-acc 8"),
        ("mixtral-8x7b", "megatron-core", EXPERTS, "--ep 2", ""),
        ("mixtral-8x7b", "megatron-core", WIDE, "--tp 4", "dp 4, grad-acc 8"),
        ("mixtral-8x7b", "megatron-core", WIDE | {"tp": 1}, "--tp 2", "dp 4, grad-acc 8"),
        ("mixtral-8x7b", "torchtitan", SHARDED, "--tp 4", "etp 4, dp 4, grad-acc 8"),
        ("mixtral-8x7b", "torchtitan", SHARDED, "--ep 2", "etp 1"),
        ("mixtral-8x7b", "torchtitan", SHARDED | {"ep": 4, "etp": 1}, "--tp 4", "dp 4, grad-acc 8"),
    ],
)
def test_degrees_that_follow_a_change(
    model: str, framework: str, given: dict[str, int], flags: str, follows: str | None
) -> None:
    moves = _all(_advice(model, framework, Degrees(**given), over=lambda what: what != flags))
    assert [(move.flags, move.follows) for move in moves] == [(flags, follows)] * (
        follows is not None
    )


@pytest.mark.parametrize(
    ("flags", "follows"),
    [
        ("--dp 16 --zero 1", "grad-acc 2, 16 GPUs"),
        ("--pp 16", "dp 1, grad-acc 32, 16 GPUs"),
        ("--tp 2", "dp 4, grad-acc 8"),
    ],
)
def test_degrees_that_follow_where_gpus_may_be_added(flags: str, follows: str) -> None:
    degrees = Degrees(dp=8, zero=0, mbs=2, grad_acc=4)
    advice = _advice(
        "llama-3-8b", "megatron-core", degrees, may_add_gpus=True, over=lambda what: what != flags
    )
    assert [move.follows for move in _all(advice)] == [follows]


def test_pairs_are_of_different_options_and_tried_by_their_savings() -> None:
    """Six changes are evaluated, of which two are of one degree."""
    singles = ("--tp 4", "--tp 8", "--cp 2", "--recompute mlp", "--mbs 2", "--pp 2")
    watched: list[tuple[str, int, int]] = []
    asked: list[str] = []
    advice = _advice(
        "llama-2-13b",
        "megatron-core",
        Degrees(tp=2, dp=2, zero=1, mbs=4, grad_acc=2),
        over=lambda what: asked.append(what) or what not in singles,
        watch=lambda *said: watched.append(said),
    )
    saved = {move.flags: move.saved_bytes for move in advice.partial}
    assert advice.tried == len(watched) >= len(saved) > 3, saved
    count = 1 + max(index for index, flags in enumerate(asked) if flags in singles)
    count = next(at for at, flags in enumerate(asked) if at >= count and _is_pair(flags, saved))
    assert watched == [
        ("changes", asked.index(flags), count) for flags in asked if flags in singles
    ]
    sums = {
        f"{one} {two}": saved[one] + saved[two]
        for one, two in permutations(saved, 2)
        if not _options(one) & _options(two)
    }
    tried = [sums[flags] for flags in asked[count:]]
    assert tried == sorted(tried, reverse=True)
    assert len(tried) == len(sums) / 2 <= MOST_PAIRS


def _is_pair(flags: str, saved: dict[str, float]) -> bool:
    return any(flags == f"{one} {two}" for one, two in permutations(saved, 2))


def _options(flags: str) -> set[str]:
    return {word for word in flags.split() if word.startswith("--")}


def test_nothing_recomputes_in_part_where_that_is_not_asked_for() -> None:
    """A configuration that fits, one that recomputes already, one that all layers do not mend, and
    a framework without counts."""
    heavy = Degrees(tp=4, mbs=12, grad_acc=2)
    for model, framework, degrees, recompute in (
        ("llama-2-7b", "megatron-core", Degrees(tp=4), "none"),
        ("llama-2-7b", "megatron-core", heavy, "layernorm"),
        ("llama-2-70b", "megatron-core", heavy, "none"),
        ("llama-2-7b", "deepspeed", Degrees(dp=4, mbs=12, zero=3), "none"),
    ):
        flags: list[str] = []
        over = lambda what, seen=flags: not seen.append(what)  # noqa: E731
        _advice(model, framework, degrees, recompute, over=over)
        assert "--recompute full" in flags
        assert not [given for given in flags if "--recompute-layers" in given]
        assert f"--recompute {recompute}" not in flags


def test_what_the_largest_term_is_and_what_shrinks_it() -> None:
    """Each term at its largest somewhere: the change that is named takes a good part of it away."""
    logits = _advice("llama-3.2-1b", "hf-transformers", Degrees(mbs=32), "full", pairs=False)
    states = _advice("llama-3-8b", "deepspeed", Degrees(mbs=1, zero=2), "full", pairs=False)
    kept = _advice("llama-2-7b", "megatron-core", Degrees(tp=4, mbs=12), pairs=False)
    for advice, name, flags in (
        (logits, "logits", "--with liger-kernels"),
        (states, "optimizer", "--optimizer-offload 1"),
        (kept, "activations", "--mbs 6"),
    ):
        largest, base = advice.largest, advice.base
        terms = base.stages[base.heaviest_stage]
        assert largest.name == name
        assert largest.size_bytes == max(float(getattr(terms, term)) for term in MEMORY_WORDS)
        assert sum(float(getattr(terms, term)) for term in MEMORY_WORDS) == pytest.approx(
            terms.peak
        )
        assert largest.move is not None
        after = largest.move.plan.stages[largest.move.plan.heaviest_stage]
        assert float(getattr(after, name)) < (1.0 - LEAST_SHRINKAGE) * largest.size_bytes
        assert flags in {move.flags for move in _all(advice)}


def test_changes_of_what_is_trained_are_marked() -> None:
    """Other states, rounding and batches; nothing that recomputes, offloads or splits otherwise."""
    advice = _advice("llama-3-8b", "deepspeed", Degrees(mbs=2, grad_acc=1, zero=2), pairs=False)
    marked = {move.flags.split()[0]: move.learns for move in _all(advice) if move.learns}
    assert marked["--optimizer"] == OTHER_STATES
    assert marked["--with"] == OTHER_ROUNDING
    assert "--gbs" in next(move.flags for move in _all(advice) if move.learns == OTHER_BATCH)
    plain = {move.changes[0].kind for move in _all(advice) if not move.learns}
    assert {"zero", "recompute", "offload", "mbs", "dp"} <= plain


def test_sequence_parallelism_and_offload_with_its_zero_stage_are_offered() -> None:
    request = Request(model="llama-2-13b", gpus="8xH100", gbs=4, seq=2048, sequence_parallel=False)
    advice = advise(Proposal(request, Degrees(tp=8, mbs=4)), pairs=False)
    flags = [move.flags for move in _all(advice)]
    assert {"--sequence-parallel", "--zero 1 --optimizer-offload 1"} <= set(flags)
    fewer = {move.flags for move in _all(advice) if move.more_gpus}
    assert fewer <= {flag for flag in flags if flag.startswith("--dp")}
