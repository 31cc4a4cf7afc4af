"""Seeded random configurations, and what has to hold of the memory of each."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost.phase_passes import exists, passes
from planner.cost.phase_records import OPTIMIZER
from planner.cost.tables import Array
from planner.job.job import Job, searched_modes
from planner.job.models.catalog import load_model
from planner.job.recomputation import recomputation
from planner.predict.configuration import degree_columns, even_layout, kernel_layout, plain_context
from planner.predict.cost_model import CostModel
from planner.predict.memory.account import PhaseMemory, StageAccount, phase_memory
from planner.predict.memory.terms import kept_tensors
from planner.predict.plan import Degrees
from tests.configurations import stage_accounts
from tests.cost.jobs import make_job

MODELS = ("gpt2", "llama-2-7b", "llama-3-70b", "mixtral-8x7b", "deepseek-v3", "gemma-3-12b")
FRAMEWORKS = (
    "megatron-core",
    "torchtitan",
    "deepspeed",
    "nanotron",
    "hf-transformers",
    "nanogpt",
    "hf-fsdp2",
    "fsdp1",
)


@dataclass(frozen=True)
class Case:
    """One configuration of the test."""

    job: Job
    degrees: Degrees
    layout: Layout

    def __str__(self) -> str:
        model_dump = self.degrees.model_dump()
        named = " ".join(f"{name}{value}" for name, value in model_dump.items() if value != 1)
        return f"{self.job.model.name} {self.job.framework.name} {named} {self.layout}"


def random_case(seed: int) -> Case:
    """A configuration with every degree drawn; rules of frameworks are not asked, only sizes."""
    rng = random.Random(seed)
    name, framework = rng.choice(MODELS), FRAMEWORKS[seed % len(FRAMEWORKS)]
    base = make_job(name, "512xH100", framework)
    model = load_model(name).spec
    rules = base.framework.parallelism
    mode = rng.choice(searched_modes(model, base.framework))
    tp = rng.choice((1, 2, 4)) if rules.tensor else 1
    cp = rng.choice((1, 2)) if rules.context else 1
    pp = rng.choice((1, 2, 4)) if rules.pipeline else 1
    vpp = rng.choice((1, 1, 2, 3)) if rules.interleaved and pp > 1 else 1
    ep = rng.choice((1, 2, 8)) if model.moe and rules.expert else 1
    dp = 8 * rng.choice((1, 4)) if ep > 1 else rng.choice((1, 2, 8, 32))
    degrees = Degrees(
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        etp=1 if ep > 1 else tp,
        dp=dp,
        zero=rng.choice(rules.zero_stages),
        mbs=rng.choice((1, 2, 3)),
        grad_acc=rng.choice((1, 2, 4, 16)) * (pp if vpp > 1 else 1),
    )
    job = replace(
        base,
        recompute=(mode,),
        seq=rng.choice((1024, 4096)),
        attention=rng.choice(("flash", "eager")),
        dropout=rng.random() < 0.3,
    )
    layout = even_layout(job, pp, vpp, mode)
    if recomputation(mode, job.framework) == "shared" and rng.random() < 0.5:
        count = rng.randint(1, max(layout.block_layers))
        taken = [min(count, block_layer) for block_layer in layout.block_layers]
        again = tuple(sum(taken[s::pp]) for s in range(pp))
        layout = replace(layout, recomputed={mode.name: again})
    return Case(job, degrees, layout)


# Schedule, a framework that has it, and chunks that suit it.
SCHEDULES = (
    ("gpipe", "torchtitan", 1),
    ("gpipe", "nanotron", 1),
    ("zb-h1", "zero-bubble", 1),
    ("zb-h1", "torchtitan", 2),
    ("zb-h2", "zero-bubble", 1),
    ("zb-v", "zero-bubble", 2),
    ("zb-v", "torchtitan", 2),
    ("dualpipe", "hai-llm", 1),
    ("dualpipev", "torchtitan", 2),
)


def schedule_case(index: int, rng: random.Random) -> Case:
    """A configuration under one of the other pipeline schedules."""
    schedule, framework, vpp = SCHEDULES[index]
    base = make_job(rng.choice(("gpt2", "llama-3-70b", "mixtral-8x7b")), "512xH100", framework)
    mode = rng.choice(searched_modes(base.model, base.framework))
    pp = rng.choice((2, 4))
    degrees = Degrees(
        tp=rng.choice((1, 2)),
        pp=pp,
        vpp=vpp,
        dp=rng.choice((1, 8)),
        zero=rng.choice(base.framework.parallelism.zero_stages),
        mbs=rng.choice((1, 2)),
        # Few micro-batches, too: then most weight gradients wait as the step ends.
        grad_acc=rng.choice((1, 2, pp, 4 * pp)),
    )
    degrees = degrees.model_copy(update={"etp": degrees.tp})
    job = replace(base, recompute=(mode,), seq=1024, schedule=schedule)
    return Case(job, degrees, even_layout(job, pp, vpp, mode))


def compiled_stages(case: Case) -> Array:
    """[stage, STAGE_*] by the compiled core."""
    model, layout = CostModel(case.job), case.layout
    degrees, columns = case.degrees, degree_columns([case.degrees])
    ctx = plain_context(case.job, degrees.pp, degrees.vpp, case.job.recompute[0])
    costed = model.price_shapes(columns)
    _, stages = model.cost_layout(costed, 0, kernel_layout(model, layout, ctx))
    return stages


def demand_views(case: Case, name: str) -> None:
    """The heaviest phase that a view shows is the compiled peak, its terms add up, none is
    negative, and the tensors kept in every phase add up to their term."""
    stages = compiled_stages(case)
    for stage_account, compiled in zip(
        stage_accounts(case.job, case.degrees, case.layout), stages, strict=True
    ):
        where = f"{name}, stage {stage_account.stage}: {case}"
        assert stage_account.allocated_bytes == pytest.approx(
            compiled[f.STAGE_ALLOCATED], rel=1e-12
        ), where
        assert stage_account.total_bytes == pytest.approx(compiled[f.STAGE_PEAK], rel=1e-12), where
        assert stage_account.peak.total_bytes == stage_account.allocated_bytes, where
        reserved = compiled[f.STAGE_ALLOCATED] + compiled[f.STAGE_FRAGMENTATION]
        assert stage_account.reserved_bytes == pytest.approx(reserved, rel=1e-12), where
        for phase in (*stage_account.later_steps, *inner_phases(stage_account)):
            demand_sums(case.job, stage_account, phase, where)


def inner_phases(stage_account: StageAccount) -> list[PhaseMemory]:
    """Every phase of every backward of a stage, also those that are not its heaviest."""
    core = stage_account.core
    return [
        phase_memory(core, phase, each, f"phase {phase}")
        for each in passes(core.held, core.grid.grad_acc, core.inputs.framework)
        for phase in range(OPTIMIZER)
        if each.counts and exists(phase, core.holds, each, core.grid, core.inputs.framework)
    ]


def demand_sums(job: Job, stage_account: StageAccount, phase: PhaseMemory, where: str) -> None:
    """Terms of a phase and the tensors that it keeps."""
    where = f"{where}, {phase.name} at {phase.at}"
    rounding = 1e-9 * phase.total_bytes
    assert sum(phase.terms.values()) == pytest.approx(phase.total_bytes, rel=1e-9), where
    assert min(phase.terms.values()) >= -rounding, (where, phase.terms)
    kept = [tensor.size_bytes for tensor in kept_tensors(job, stage_account.core, phase)]
    assert kept == sorted(kept, reverse=True), where
    assert sum(kept) == pytest.approx(phase.terms["activations"], abs=rounding), where
