"""Techniques of a framework: what is on, tried or asked for, and what each changes."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import FrameworkProfile, load_framework
from planner.job.frameworks.switches import with_techniques
from planner.job.frameworks.techniques import Technique
from planner.job.request import Request
from planner.predict.configuration import decided_request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Plan
from planner.report.search import unused_note
from planner.search.plan_file import _STEPS
from planner.search.search import find_plans
from planner.search.shares import cost_shares

TP = Degrees(tp=8, dp=1, grad_acc=8)


def request(**changes: Any) -> Request:
    """Llama-3 8B on eight H100 under Megatron-Core."""
    values = {"model": "llama-3-8b", "gpus": "8xH100", "gbs": 8, "seq": 8192}
    return Request(**values | changes)


def costed(degrees: Degrees = TP, **changes: Any) -> Plan:
    return evaluate(request(**changes), degrees)


def test_overlap_of_tensor_exchanges_is_on_unless_excluded() -> None:
    """Faster, for ten buffers of a whole activation: 20 bytes an element of 8,192·4,096."""
    on, off = costed(), costed(without=("tp-overlap",))
    assert on.techniques == ("tp-overlap",)
    assert on.technique_flags == "--tp-comm-overlap"
    assert off.techniques == ()
    assert on.time.tp_s < 0.4 * off.time.tp_s
    buffers = on.stages[0].communication - off.stages[0].communication
    assert buffers == pytest.approx(20 * 8192 * 4096)
    assert on.peak_bytes - off.peak_bytes == pytest.approx(buffers)


def test_a_technique_is_named_only_where_it_works() -> None:
    assert costed(Degrees(dp=8)).techniques == ()


def test_fp8_buffers_are_smaller() -> None:
    on, off = costed(precision="fp8"), costed(precision="fp8", without=("tp-overlap",))
    buffers = on.stages[0].communication - off.stages[0].communication
    assert buffers == pytest.approx(14 * 8192 * 4096)


@pytest.mark.parametrize(
    "changes",
    [{"gpus": "8xA100-PCIE"}, {"sequence_parallel": False}, {"allow_tp_across_domains": True}],
)
def test_userbuffers_need_nvlink_and_a_split_sequence(changes: dict[str, Any]) -> None:
    assert request(**changes).resolve().techniques == ()
    with pytest.raises(UsageError, match="needs NVLink"):
        request(use=("tp-overlap",), **changes).resolve()


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-bridge"])
def test_gradients_in_bf16_are_used_only_if_asked(framework: str) -> None:
    """They round otherwise: half the bytes of 8.03e9/4 gradients."""
    halves, asked = Degrees(tp=4, dp=2, zero=1, grad_acc=4), {"use": ("bf16-gradients",)}
    usual, half = (costed(halves, framework=framework, **more) for more in ({}, asked))
    assert "bf16-gradients" not in usual.techniques
    assert "bf16-gradients" in half.techniques
    saved = usual.stages[0].gradients - half.stages[0].gradients
    assert saved == pytest.approx(2 * 8.03e9 / 4, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"use": ("userbuffers",)}, "megatron-core has: tp-overlap"),
        ({"without": ("tp-overlp",)}, "Did you mean 'tp-overlap'"),
        ({"use": ("tp-overlap",), "without": ("tp-overlap",)}, "give one of them"),
        ({"use": ("fused-dispatch",)}, "it works only for mixtures of experts"),
        ({"framework": "nanotron", "use": ("tp-overlap",)}, "nanotron has: none"),
        ({"use": ("megatron-fsdp", "bf16-gradients")}, "takes the framework's place"),
        (
            {"framework": "deepspeed", "model": "gemma-2-9b", "use": ("liger-kernels",)},
            "modelled only for models of llama, mistral, qwen2, qwen3, phi3",
        ),
    ],
)
def test_wrong_names_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        request(**changes).resolve()


def test_what_a_technique_needs_of_the_degrees_is_a_rule() -> None:
    mixture = {"model": "mixtral-8x7b", "seq": 4096, "use": ("ep-overlap",)}
    with pytest.raises(UsageError, match="--with ep-overlap, which needs ep > 1") as refused:
        costed(Degrees(ep=1, dp=8), **mixture)
    assert str(refused.value).count("which needs") == 1
    with pytest.raises(UsageError, match="does not recompute full together with it"):
        evaluate(request(**mixture), Degrees(ep=8, dp=8), "full")
    assert "ep-overlap" in costed(Degrees(ep=8, dp=8), **mixture).techniques


def test_open_techniques_are_tried_with_and_without() -> None:
    """The plan is at least as fast as with each set of them decided, and says which it has."""
    mixture = {"model": "mixtral-8x7b", "gpus": "32xH100", "gbs": 64, "seq": 4096}
    names = ("ep-overlap", "fused-dispatch")
    asked = Request(**mixture)
    found = find_plans(asked, fastest_only=True).plans[0]
    for left in ((), names, names[:1], names[1:]):
        used = tuple(name for name in names if name not in left)
        decided = Request(**mixture, without=left, use=used)
        best = find_plans(decided, fastest_only=True).plans[0]
        assert found.step_time_s <= best.step_time_s * (1 + 2e-3)
    again = evaluate(
        decided_request(asked, found), found.degrees, found.recompute,
        found.layout.block_layers, found.layout.recomputed or None,
    )  # fmt: skip
    assert again.step_time_s == pytest.approx(found.step_time_s)
    assert again.techniques == found.techniques


@pytest.mark.parametrize("name", framework_names())
def test_every_technique_says_what_it_is(name: str) -> None:
    """Its evidence, and tables that the profile has; conditions that can be read."""
    from planner.job.frameworks.switches import technique_conditions

    profile = load_framework(name)
    for technique in profile.techniques:
        assert technique.words
        assert technique.evidence
        assert technique.flags
        technique_conditions(profile, (technique.name,))
        noted = with_techniques(profile, (technique.name,)).assumptions
        assert noted != profile.assumptions
        assert "{" not in noted[-1]


# Settings of a profile that say how wide stored and reduced tensors are.
_WIDTHS = (
    "gradient_bytes", "weight_bytes", "weight_gradient_bytes", "update_cast_bytes",
    "gradient_communication_bytes", "master_bytes",
)  # fmt: skip


def _widths(profile: FrameworkProfile) -> dict[str, object]:
    tables = (profile.state, profile.kernels, profile.saved)
    return {name: getattr(one, name) for one in tables for name in _WIDTHS if hasattr(one, name)}


@pytest.mark.parametrize("name", framework_names())
def test_what_changes_widths_says_that_it_changes_numbers(name: str) -> None:
    """A technique that stores or reduces a tensor in other bytes than its framework's default is
    declared so, and then nothing takes it unasked."""
    profile = load_framework(name)
    usual = with_techniques(profile, (), tuple(one.name for one in profile.techniques))
    for technique in profile.techniques:
        if _widths(with_techniques(usual, (technique.name,))) != _widths(usual):
            assert technique.effect == "numerics", technique.name
        assert technique.effect == "speed" or technique.use == "asked"


def test_a_technique_that_changes_numbers_cannot_be_on() -> None:
    declared = {"name": "x", "words": "x", "evidence": "x", "effect": "numerics"}
    for use in ("on", "searched"):
        with pytest.raises(ValueError, match="only techniques for speed may be used without"):
            Technique.model_validate(declared | {"use": use})
    with pytest.raises(ValueError, match="effect"):
        Technique.model_validate({"name": "x", "words": "x", "evidence": "x", "use": "on"})


@pytest.mark.parametrize("name", framework_names())
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
def test_no_search_takes_what_changes_numbers(name: str, model: str) -> None:
    """Every set of techniques among which a search decides keeps the default's widths."""
    precision = load_framework(name).precisions[0]
    asked = Request(model=model, gpus="8xH100", gbs=8, seq=4096, framework=name)
    job = asked.model_copy(update={"precision": precision}).resolve()
    numerics = {one.name for one in load_framework(name).techniques if one.effect == "numerics"}
    for decided in job.decided():
        assert numerics.isdisjoint(decided.techniques)
        assert _widths(decided.framework) == _widths(job.framework)


def test_what_asking_would_gain_is_what_it_gains() -> None:
    """The line below the table is the plan with the technique, as `evaluate` costs it."""
    asked = request(gbs=16, limits={"tp": (2,), "mbs": (1,)}, fit_probability=0.5)
    found = find_plans(asked, fastest_only=True)
    plan = found.plans[found.recommended - 1]
    (gain,) = [one for one in found.unused if one.name == "bf16-gradients"]
    other = evaluate(
        decided_request(asked.model_copy(update={"use": ("bf16-gradients",)}), plan),
        plan.degrees, plan.recompute, plan.layout.block_layers, plan.layout.recomputed or None,
    )  # fmt: skip
    assert gain.faster_by == pytest.approx(other.tokens_per_s / plan.tokens_per_s - 1)
    assert gain.saved_bytes == pytest.approx(plan.peak_bytes - other.peak_bytes)
    assert gain.saved_bytes > 0.0
    assert "--with bf16-gradients" in unused_note(gain)


WAITING = Request(
    model="qwen3-30b-a3b", gpus="16xH100", gbs=64, seq=4096, limits={"tp": (1,), "mbs": (1, 8)},
    without=("ep-overlap", "megatron-fsdp"),
)  # fmt: skip


def test_configurations_that_wait_are_costed_once_under_graphs() -> None:
    """In place of the same without, but for routed experts; never where these or layers rerun."""
    shares = cost_shares(WAITING.resolve())
    plain, captured = shares.jobs
    without = (*WAITING.without, "cuda-graphs")
    bare = cost_shares(WAITING.model_copy(update={"without": without}).resolve())
    rows = [len(job.candidates.columns["tp"]) for job in (plain, captured, *bare.jobs)]
    assert rows[0] + rows[1] == rows[2]
    assert min(rows) > 0
    assert {"full", "moe"}.isdisjoint(mode.name for mode in captured.job.recompute)
    waited = bare.jobs[0].costed.steps
    assert 0.0 < captured.costed.steps[:, f.STEP_ISSUE].max() < 0.5 * waited[:, f.STEP_ISSUE].max()
    assert (waited[:, f.STEP_ISSUE] > 0.001 * waited[:, f.STEP_TIME]).sum() >= rows[1]


def test_another_profile_drops_techniques_that_it_lacks() -> None:
    """Megatron-FSDP is the profile of that name, asked for alone: its gradients are in bf16."""
    job = request(use=("megatron-fsdp",)).resolve()
    assert job.decided() == (job,)
    assert (job.framework.name, job.techniques) == ("megatron-fsdp", ("megatron-fsdp",))
    names = {job.framework.name for job in request().resolve().decided()}
    assert names == {"megatron-core"}
    with pytest.raises(UsageError, match="default switches"):
        request(use=("megatron-fsdp",), sequence_parallel=False).resolve()


def test_plan_files_of_version_3_keep_what_their_plans_did() -> None:
    """CUDA graphs were an option, and gradients in fp32 unless somebody asked."""
    document: dict[str, Any] = {
        "version": 3,
        "request": {"cuda_graphs": True, "use": ["tp-overlap"]},
    }
    given = document["request"]
    _STEPS[2](document, given)
    assert given["use"] == ["tp-overlap", "cuda-graphs"]
    assert given["without"] == []
    assert "cuda_graphs" not in given


def test_plan_files_of_version_4_keep_what_their_plans_did() -> None:
    """Gradients were in fp32 in a plan that was given, unless somebody asked."""
    document: dict[str, Any] = {
        "version": 4,
        "request": {"framework": "megatron-core"},
        "plans": [{"techniques": ["tp-overlap", "fused-dispatch"]}],
    }
    _STEPS[3](document, document["request"])
    assert document["request"]["without"] == []
