"""Modules whose activations are kept on the host as a choice of the search."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardware.load import load_gpu
from planner.job.errors import UsageError
from planner.job.request import Request
from planner.launch.plans import launch_of, writer_of
from planner.launch.registry import target_named
from planner.predict.configuration import decided_request
from planner.predict.evaluate import evaluate
from planner.predict.plan import Degrees, Plan
from planner.predict.shapes import legal_candidates
from planner.predict.uncertainty.likely import EVEN_CHANCE
from planner.report.search import search_report
from planner.search.changes import KINDS, Situation
from planner.search.explanation import job_evaluator
from planner.search.limit_results import TIE, Effort
from planner.search.plan_file import read_plan_file, to_json
from planner.search.result import SearchResult
from planner.search.search import find_plans
from planner.search.shares import cost_shares
from planner.search.trial import search_costed, try_job
from planner.search.what_if import what_if
from tests.search.brute import explore

GIB = 2.0**30
CHOICES = ((), ("core_attn", "attn_proj"), ("qkv_linear", "core_attn", "attn_proj"))
# Two GPUs of which a job may use 11.8 GiB each: 24 layers over two stages, with or without
# recomputation of layernorms, and so many layers of each stage.
LEFT_GIB = 11.8
TIGHT = Request(
    model="gpt2-medium", gpus="2xA100", gbs=32, seq=1024, recompute=("none", "layernorm"),
    hbm_reserve=f"{load_gpu('a100').hbm_usable_bytes / GIB - LEFT_GIB}GiB",
    limits={"pp": (2,), "vpp": (1,), "mbs": (8,)}, activation_offload="search",
    fit_probability=0.5, without=("bf16-gradients", "megatron-fsdp"),
)  # fmt: skip
DEGREES = Degrees(pp=2, mbs=8, grad_acc=4)


@pytest.fixture(scope="module")
def tight() -> SearchResult:
    return find_plans(TIGHT)


def with_modules(request: Request, modules: tuple[str, ...]) -> Request:
    return request.model_copy(update={"activation_offload": ",".join(modules) or "off"})


def every_plan() -> list[Plan]:
    """All layouts of the one shape, under both modes, with each choice of modules."""
    return [
        evaluate(with_modules(TIGHT, modules), DEGREES, mode, (first, 24 - first))
        for modules in CHOICES
        for mode in ("none", "layernorm")
        # With two modules a chunk of one layer fails (`constraints.offload`).
        for first in (range(2, 23) if modules else range(1, 24))
    ]


def test_the_search_equals_exhaustion(tight: SearchResult) -> None:
    """Layouts × recompute modes × modules on the host, under the memory limit and lighter ones."""
    plans = every_plan()
    explorer = cost_shares(TIGHT.resolve()).explorer(Effort())
    limit_results = explore(explorer)
    assert [job.job.activation_offload for job in cost_shares(TIGHT.resolve()).jobs] == [*CHOICES]
    for limit_result in limit_results:
        fitting = [
            plan.step_time_s for plan in plans if plan.peak_bytes <= limit_result.limit_bytes
        ]
        assert (limit_result.point is None) == (not fitting)
        if limit_result.point is not None:
            found = limit_result.point.sample_s * DEGREES.gbs
            assert min(fitting) * (1.0 - 1e-9) <= found <= min(fitting) * (1.0 + TIE)
            assert limit_result.bound * DEGREES.gbs <= min(fitting) * (1.0 + 1e-9)
    assert tight.proven


def test_a_job_that_fits_only_with_activations_on_the_host(tight: SearchResult) -> None:
    trial = try_job(with_modules(TIGHT, ()).resolve)
    assert trial is not None
    assert trial.plan() is None
    assert all(plan.fits and plan.activation_offload for plan in tight.plans)
    assert all("--offload-modules core_attn" in item.activation_offload_flags
               or "--offload-modules qkv_linear" in item.activation_offload_flags
               for item in tight.plans)  # fmt: skip


def test_files_neighbours_and_launches_have_the_modules_of_the_plan(
    tight: SearchResult, tmp_path: Path
) -> None:
    path = tmp_path / "plans.json"
    path.write_text(to_json(tight), encoding="utf-8")
    read = read_plan_file(path)
    assert read == tight
    plan = read.plans[0]
    decided = decided_request(read.request, plan)
    assert decided.activation_offload == ",".join(plan.activation_offload)
    again = evaluate(decided, plan.degrees, plan.recompute, plan.layout.block_layers)
    assert again.step_time_s == pytest.approx(plan.step_time_s, rel=1e-12)
    near = job_evaluator(decided.resolve(), plan)(plan.degrees, plan.recompute)
    assert near.activation_offload == plan.activation_offload
    target = target_named("megatron-core")
    launch = launch_of(plan, read.request, target, "torchrun")
    command = writer_of(target).command(launch)
    assert f"--offload-modules {' '.join(plan.activation_offload)}" in " ".join(command.argv)
    assert command.environment["NVTE_CPU_OFFLOAD_V1"][0] == "1"


def test_more_memory_may_need_less_on_the_host(tight: SearchResult) -> None:
    plan = tight.plans[0]
    found = what_if(TIGHT, TIGHT.resolve(), plan)
    memory = next(row for row in found.rows if row.name == "hbm")
    assert len(memory.activation_offload) < len(plan.activation_offload)
    assert memory.kept_effect == pytest.approx(0.0, abs=1e-9)


def test_the_table_names_what_was_tried(tight: SearchResult) -> None:
    text = " ".join(str(search_report(tight).blocks).split())
    assert "core_attn + attn_proj on the host" in text
    assert "activation offload: the best of none; core_attn + attn_proj;" in text


def test_both_offloads_are_searched_together() -> None:
    request = Request(
        model="llama-3-8b", gpus="8xH100", gbs=8, optimizer_offload="search",
        activation_offload="search", recompute=("none", "full"), without=("cuda-graphs",),
    )  # fmt: skip
    jobs = request.resolve().decided()
    assert len({(job.optimizer_offload, job.activation_offload) for job in jobs}) == 5 * 3
    # Full recomputation leaves nothing to offload: only jobs without have it.
    for item in jobs:
        assert ("full" in [mode.name for mode in item.recompute]) == (not item.activation_offload)


def test_choices_that_no_recompute_mode_works_with_are_left_out() -> None:
    request = TIGHT.model_copy(update={"recompute": ("full",)})
    assert [item.activation_offload for item in request.resolve().decided()] == [()]


def test_nothing_fits_names_the_offload_that_would() -> None:
    request = with_modules(TIGHT, ()).model_copy(update={"recompute": ("none",)})
    at = Situation(request, request.resolve(), 2)
    changes = {item.text: item.make() for item in KINDS["activation-offload"](at)}
    assert list(changes) == ["--activation-offload core_attn,attn_proj", "--activation-offload all"]
    whole = changes["--activation-offload all"]
    trial = search_costed(cost_shares(whole), probability=EVEN_CHANCE)
    plan = trial.plan()
    assert plan is not None
    assert plan.activation_offload == CHOICES[-1]


def test_host_memory_is_a_limit(tmp_path: Path) -> None:
    """The first of two stages keeps 2 micro-batches of half the layers on the host."""
    plan = evaluate(with_modules(TIGHT, CHOICES[-1]), DEGREES)
    needed = max(stage.offloaded for stage in plan.stages)
    for share, legal in ((1.01, True), (0.99, False)):
        path = tmp_path / f"{legal}.toml"
        path.write_text(
            'gpu = "A100"\nnum_gpus = 2\ngpus_per_node = 2\n'
            f'host_memory = "{2 * needed * share:.0f} B"\n',
            encoding="utf-8",
        )
        request = with_modules(TIGHT, CHOICES[-1]).model_copy(
            update={"gpus": None, "cluster": str(path)}
        )
        if legal:
            assert legal_candidates(request.resolve()).columns["pp"].size
        else:
            with pytest.raises(UsageError, match=r"\[host-memory\]"):
                legal_candidates(request.resolve())


def test_only_a_search_takes_open_modules() -> None:
    with pytest.raises(UsageError, match="only a search decides the modules"):
        evaluate(TIGHT, DEGREES)
    with pytest.raises(UsageError, match=r"torchtitan .*\[activation-offload\]"):
        TIGHT.model_copy(update={"framework": "torchtitan", "without": ()}).resolve()
