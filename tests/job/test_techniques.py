"""Techniques of a framework: what is on, tried or asked for, and what each changes."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost import fields as f
from planner.job.errors import UsageError
from planner.job.frameworks import framework_names, load_framework
from planner.job.request import Request
from planner.predict.configuration import evaluate
from planner.predict.decided import decided_request
from planner.predict.plan import Degrees, Plan
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
    assert on.techniques == ("tp-overlap", "bf16-gradients")
    assert on.technique_flags == "--tp-comm-overlap --grad-reduce-in-bf16"
    assert off.techniques == ("bf16-gradients",)
    assert on.time.tp_s < 0.4 * off.time.tp_s
    buffers = on.stages[0].communication - off.stages[0].communication
    assert buffers == pytest.approx(20 * 8192 * 4096)
    assert on.peak_bytes - off.peak_bytes == pytest.approx(buffers)


def test_a_technique_is_named_only_where_it_works() -> None:
    assert costed(Degrees(dp=8)).techniques == ("bf16-gradients",)


def test_fp8_buffers_are_smaller() -> None:
    on, off = costed(precision="fp8"), costed(precision="fp8", without=("tp-overlap",))
    buffers = on.stages[0].communication - off.stages[0].communication
    assert buffers == pytest.approx(14 * 8192 * 4096)


@pytest.mark.parametrize(
    "changes",
    [{"gpus": "8xA100-PCIE"}, {"sequence_parallel": False}, {"allow_tp_across_domains": True}],
)
def test_userbuffers_need_nvlink_and_a_split_sequence(changes: dict[str, Any]) -> None:
    assert request(**changes).resolve().techniques == ("bf16-gradients",)
    with pytest.raises(UsageError, match="needs NVLink"):
        request(use=("tp-overlap",), **changes).resolve()


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-bridge"])
@pytest.mark.parametrize(
    "wide", [{"without": ("bf16-gradients",)}, {"optimizer": "adamw:grad=fp32"}]
)
def test_gradients_in_bf16_are_on_unless_excluded(framework: str, wide: dict[str, Any]) -> None:
    """They round otherwise: half the bytes of 8.03e9/4 gradients."""
    halves = Degrees(tp=4, dp=2, zero=1, grad_acc=4)
    usual, fp32 = (costed(halves, framework=framework, **more) for more in ({}, wide))
    assert "bf16-gradients" in usual.techniques
    assert "bf16-gradients" not in fp32.techniques
    saved = fp32.stages[0].gradients - usual.stages[0].gradients
    assert saved == pytest.approx(2 * 8.03e9 / 4, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"use": ("userbuffers",)}, "megatron-core has: tp-overlap"),
        ({"without": ("tp-overlp",)}, "Did you mean 'tp-overlap'"),
        ({"use": ("tp-overlap",), "without": ("tp-overlap",)}, "give one of them"),
        ({"use": ("fused-dispatch",)}, "only mixtures of experts have it"),
        ({"framework": "nanotron", "use": ("tp-overlap",)}, "nanotron has: none"),
        ({"use": ("megatron-fsdp", "bf16-gradients")}, "takes the framework's place"),
        (
            {"framework": "deepspeed", "model": "gemma-2-9b", "use": ("liger-kernels",)},
            "counted for models of llama, mistral, qwen2, qwen3, phi3 only",
        ),
    ],
)
def test_wrong_names_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        request(**changes).resolve()


def test_what_a_technique_needs_of_the_degrees_is_a_rule() -> None:
    mixture = {"model": "mixtral-8x7b", "seq": 4096, "use": ("ep-overlap",)}
    with pytest.raises(UsageError, match="--with ep-overlap, which needs ep > 1"):
        costed(Degrees(ep=1, dp=8), **mixture)
    with pytest.raises(UsageError, match="does not recompute full beside it"):
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
    from planner.job.frameworks.switches import with_techniques
    from planner.job.technique_rules import technique_conditions

    profile = load_framework(name)
    for technique in profile.techniques:
        assert technique.words
        assert technique.evidence
        assert technique.flags
        technique_conditions(profile, (technique.name,))
        noted = with_techniques(profile, (technique.name,)).assumptions
        assert noted != profile.assumptions
        assert "{" not in noted[-1]


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
    """Megatron-FSDP is the profile of that name, asked for or searched."""
    job = request(use=("megatron-fsdp",)).resolve()
    assert job.decided() == (job,)
    assert (job.framework.name, job.techniques) == ("megatron-fsdp", ("megatron-fsdp",))
    without = ("cuda-graphs",)
    names = [job.framework.name for job in request(without=without).resolve().decided()]
    assert names == ["megatron-core", "megatron-fsdp"]
    assert len(request(use=("tp-overlap",), without=without).resolve().decided()) == 1
    assert len(request(optimizer="muon", without=without).resolve().decided()) == 1
    with pytest.raises(UsageError, match="usual switches"):
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
    assert given["without"] == ["bf16-gradients", "megatron-fsdp"]
    assert "cuda_graphs" not in given


def test_plan_files_of_version_4_keep_what_their_plans_did() -> None:
    """Gradients were in fp32 in a plan that was given, unless somebody asked."""
    document: dict[str, Any] = {
        "version": 4,
        "request": {"framework": "megatron-core"},
        "plans": [{"techniques": ["tp-overlap", "fused-dispatch"]}],
    }
    _STEPS[3](document, document["request"])
    assert document["request"]["without"] == ["bf16-gradients"]
