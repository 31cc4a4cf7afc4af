"""What is said when no plan exists: conflicts with numbers, and changes that were searched."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from constraints.layout import LAYOUT_RULES
from constraints.layout_context import LayoutContext
from constraints.memory_numbers import MemoryNumbers, PhaseNumbers
from planner.job.errors import NothingFitsError, UsageError
from planner.job.job import Job
from planner.job.recomputation import recomputation
from planner.job.request import Request
from planner.predict.uncertainty.likely import EVEN_CHANCE
from planner.report.fit import nothing_fits_report
from planner.report.tables import Facts
from planner.search.changes import dropped_choices
from planner.search.infeasibility import DoesNotFitError, WhyNothingFits
from planner.search.infeasible import guilty_choices
from planner.search.memory_conflict import capacities_text, capacity, kind_capacity
from planner.search.search import find_plans
from planner.search.shares import cost_job
from planner.search.terms import layout_context, shape_terms
from planner.search.trial import try_job

# 8 B parameters need more than two GPUs without recompute; zero and pp have no part in it.
TIGHT = Request(
    fit_probability=0.5,
    model="8b",
    gpus="2xH100",
    gbs=16,
    recompute=("none",),
    require=("pp<=4",),
    limits={"zero": (0, 1)},
    without=("bf16-gradients", "megatron-fsdp"),
)
# On 16 GPUs 70 B parameters leave too little for long sequences, whatever the layout.
PACKED = Request(
    model="70b", gpus="16xH100", gbs=64, seq=65_536, require=("tp == 8", "pp == 2"),
    without=("bf16-gradients", "megatron-fsdp"),
)  # fmt: skip


def explained(request: Request) -> WhyNothingFits:
    with pytest.raises(DoesNotFitError) as caught:
        find_plans(request)
    assert isinstance(caught.value, NothingFitsError)
    return caught.value.why


@pytest.fixture(scope="module")
def tight() -> WhyNothingFits:
    return explained(TIGHT)


@pytest.fixture(scope="module")
def packed() -> WhyNothingFits:
    return explained(PACKED)


def fits(request: Request) -> bool:
    trial = try_job(request.resolve, [EVEN_CHANCE])
    return trial is not None and trial.limit_result.point is not None


def test_conflict_names_the_choice_and_the_memory(tight: WhyNothingFits) -> None:
    assert [rule.name for rule in tight.conflict] == ["--recompute", "stage-memory"]
    assert tight.proven
    text = tight.conflict[1].text
    assert "stage 0 needs 91." in text
    assert "without recompute; 79.1 GiB are available" in text


def test_no_choice_is_guilty_where_nothing_fits_without_any(packed: WhyNothingFits) -> None:
    assert [rule.name for rule in packed.conflict] == ["stage-memory"]
    free = PACKED.model_copy(update={"require": ()})
    assert not fits(free)


def test_removing_any_choice_of_a_conflict_makes_it_feasible() -> None:
    """Against every subset of made-up choices: the filter's answer is minimal and sufficient."""
    texts = ("pp<=8", "tp<=4", "mbs<=2")
    request = Request(model="8b", gpus="8xH100", gbs=64, require=texts)
    for guilty in (*combinations(texts, 1), *combinations(texts, 2), texts):

        def fits_without(item: Request, guilty: tuple[str, ...] = guilty) -> bool:
            return not set(guilty) <= set(item.require)

        names, left = guilty_choices(request, fits_without)
        assert left.require == guilty
        assert len(names) == len(guilty)
        for text in left.require:
            others = tuple(other for other in left.require if other != text)
            assert fits_without(left.model_copy(update={"require": others}))


def test_every_choice_of_the_user_can_be_dropped() -> None:
    request = TIGHT.model_copy(
        update={"forbid": ("zero == 3",), "fix": ("mbs = 1",), "hbm_reserve": "5%"}
    )
    dropped = dropped_choices(request)
    assert list(dropped) == [
        '--require "pp<=4"',
        '--forbid "zero == 3"',
        "--fix mbs=1",
        "--zero 0,1",
        "--recompute none",
        "--hbm-reserve 5%",
    ]
    plain = Request(
        model="8b", gpus="2xH100", gbs=16, fit_probability=request.fit_probability,
        without=request.without,
    )  # fmt: skip
    while dropped_choices(request):
        request = next(iter(dropped_choices(request).values()))
    assert request == plain


def test_layouts_in_conflict_say_how_many_layers_fit(packed: WhyNothingFits) -> None:
    assert [rule.name for rule in packed.layouts] == ["every-layer-once", "stage-memory"]
    assert "80 layers" in packed.layouts[0].text
    assert "at most" in packed.layouts[1].text
    assert "of 80" in packed.layouts[1].text


def test_capacity_is_the_most_layers_that_a_stage_alone_holds() -> None:
    job = PACKED.resolve()
    costed = cost_job(job)
    row = 0
    mode = job.recompute[int(costed.candidates.columns["recompute"][row])]
    kind = recomputation(mode, job.framework)
    terms = shape_terms(costed.cost_model, costed.costed, row, kind)
    ctx = layout_context(terms, job, mode, job.hbm_limit_bytes)
    assert ctx.memory is not None
    most = capacity(ctx, 0)
    assert 0 < most < job.model.layers
    within = [
        count
        for count in range(1, job.model.layers + 1)
        for again in {0, count}
        if ctx.memory.peak(0, [count], [again]) <= ctx.memory.limit
        and (again == 0 or kind != "none")
        and (again == count or kind != "all")
    ]
    assert most == max(within)
    assert len(LAYOUT_RULES) > 1


def test_relaxations_are_ordered_and_of_many_kinds(tight: WhyNothingFits) -> None:
    """Options first, then changes of what is trained, then other machines; of each the fastest."""
    machines, training = ("gpus", "gpu-type"), ("optimizer", "dtype", "sequence", "batch")
    order = [
        (one.kind in machines, one.kind in training, one.seconds_per_token)
        for one in tight.relaxations
    ]
    assert order == sorted(order)
    kinds = {relaxation.kind for relaxation in tight.relaxations}
    assert {"recompute", "gpus", "gpu-type", "optimizer", "offload", "sequence"} <= kinds


def test_a_part_at_full_power_is_named_before_the_same_part_below_it() -> None:
    """B200 are sold at 1,000 W; some systems hold the same part at 750 W."""
    job = Request(model="7b", gpus="1xRTX4090", gbs=8, use=("bf16-gradients",))
    changes = [relaxation.change for relaxation in explained(job).relaxations]
    assert "--gpus 1xB200-SXM-180GB" in changes
    assert not [change for change in changes if "750W" in change]


def changed(request: Request, change: str) -> Request:
    """The request after a change that is printed as options."""
    words = change.split()
    update: dict[str, object] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        name = option.removeprefix("--").replace("-", "_")
        typed: object = int(value) if value.isdigit() else value
        update[name] = {"recompute": (value,), "optimizer_offload": float}.get(name, typed)
        if name == "optimizer_offload":
            update[name] = float(value)
    return Request(**(request.model_dump() | update))


def test_each_relaxation_gives_its_plan_when_typed(tight: WhyNothingFits) -> None:
    typed = [relaxation for relaxation in tight.relaxations if "(" not in relaxation.change]
    assert len(typed) >= 5
    for item in typed:
        found = find_plans(changed(TIGHT, item.change), top=1)
        assert found.plans[0].fits
        # The search proves its plan; the relaxation's may be a little slower, never faster.
        assert found.plans[0].step_time_s <= item.plan.step_time_s * 1.0101
        assert item.plan.fit_probability >= EVEN_CHANCE
        assert item.plan.peak_bytes <= item.plan.limit_bytes


def test_fewer_gpus_than_offered_do_not_fit(tight: WhyNothingFits) -> None:
    offered = [relaxation for relaxation in tight.relaxations if relaxation.kind == "gpus"]
    assert all(item.smallest for item in offered)
    counts = sorted(item.plan.degrees.gpus for item in offered)
    assert counts[-1] <= 4
    for entry in offered:
        assert entry.change == f"--gpus {entry.plan.degrees.gpus}xH100"
    for count in range(3, counts[-1]):
        level = EVEN_CHANCE if count < counts[0] else 0.8
        more = changed(TIGHT, f"--gpus {count}xH100")
        trial = try_job(more.resolve, [level], gpus=count)
        assert trial is None or trial.limit_result.point is None


def test_dropping_a_condition_is_offered_where_it_alone_is_guilty() -> None:
    why = explained(Request(model="8b", gpus="8xH100", gbs=64, require=("tp*pp == 1", "zero == 0")))
    assert [rule.text for rule in why.conflict[:-1]] == [
        'you gave --require "tp*pp == 1"',
        'you gave --require "zero == 0"',
    ]
    offered = {
        relaxation.change for relaxation in why.relaxations if relaxation.kind == "condition"
    }
    assert offered == {'without --require "tp*pp == 1"', 'without --require "zero == 0"'}


def test_higher_zero_and_more_tp_where_they_were_limited() -> None:
    request = Request(
        model="8b", gpus="8xH100", gbs=64, limits={"zero": (0,), "tp": (1,), "pp": (1,)}
    )
    changes = {relaxation.change for relaxation in explained(request).relaxations}
    assert "--zero 1" in changes
    assert {"--tp 2", "--tp 4"} & changes
    assert {"without --zero", "without --tp"} <= changes


def test_report_reads_well(tight: WhyNothingFits) -> None:
    blocks = nothing_fits_report(tight).blocks
    assert isinstance(blocks[0], Facts)
    assert blocks[0].title.startswith("No configuration fits. These exclude each other")
    unproven = nothing_fits_report(tight.model_copy(update={"proven": False})).blocks[0]
    assert isinstance(unproven, Facts)
    assert "not all were decided" in unproven.title
    assert "no configuration fits:" in tight.sentences()


def test_batch_that_no_replica_count_divides() -> None:
    request = Request(model="8b", gpus="64xH100", gbs=7, limits={"dp": (2, 4)})
    with pytest.raises(UsageError, match=r"6 or 8 sequences") as caught:
        find_plans(request)
    assert "batch-size" in str(caught.value)
    assert "dp = 2,4" in str(caught.value)


def test_contradicting_limits_are_named() -> None:
    request = Request(model="8b", gpus="8xH100", gbs=64, limits={"tp": (3,)})
    with pytest.raises(UsageError, match="tp must divide 32 heads"):
        find_plans(request)


def test_reserve_beyond_the_memory() -> None:
    request = Request(model="8b", gpus="8xH100", gbs=64, hbm_reserve="90GiB")
    with pytest.raises(UsageError, match="reserve leaves no memory"):
        find_plans(request)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_that_is_none(seconds: float) -> None:
    with pytest.raises(UsageError, match="give seconds above 0"):
        find_plans(Request(model="8b", gpus="8xH100", gbs=64), time_limit_s=seconds)


def test_a_batch_beyond_the_solvers_integers() -> None:
    request = Request(model="8b", gpus="8xH100", gbs=2**32 + 1)
    with pytest.raises(UsageError, match="64-bit integers; give at most 4,294,967,296"):
        request.resolve()
    assert isinstance(Request(model="8b", gpus="8xH100", gbs=2**32).resolve(), Job)


def test_layers_of_the_scarce_kind_are_counted() -> None:
    """Three dense layers are light; that the MoE layers do not fit is what the sentence says."""
    nothing = ((0, 0), (0, 0))
    phase = PhaseNumbers((1, 1), ((1, 5), (1, 5)), nothing, (0, 0), (0, 0), (0, 0))
    ctx = LayoutContext(2, 1, (0, 0, 0, 1, 1, 1, 1, 1), memory=MemoryNumbers(1, 12, (phase,)))
    model = Request(model="deepseek-v3", gpus="8xH100", gbs=8).resolve().model
    assert [kind_capacity(ctx, 0, kind) for kind in (0, 1)] == [3, 2]
    assert capacity(ctx, 0) == 4
    assert capacities_text(ctx, [0, 1], model) == (
        "of the 5 MoE layers, stages 0-1 each hold at most 2: together 4 of 5"
    )
    roomy = replace(ctx, memory=MemoryNumbers(1, 17, (phase,)))
    # Enough room for each kind alone: no sum that would say otherwise.
    assert capacities_text(roomy, [0, 1], model).endswith("but no split holds all of them")
    none = replace(ctx, memory=MemoryNumbers(1, 5, (phase,)))
    assert "each hold not even one" in capacities_text(none, [0, 1], model)


def test_changes_without_a_plan_are_named(tight: WhyNothingFits) -> None:
    named = {relaxation.change for relaxation in tight.relaxations}
    assert not named & set(tight.in_vain)
    if tight.in_vain:
        assert tight.in_vain[0] in str(nothing_fits_report(tight).blocks)
