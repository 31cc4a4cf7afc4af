"""The compiled memory of pipeline stages against the timeline, on seeded random configurations."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from constraints.rule import Layout
from planner.cost import fields as f
from planner.cost_model import CostModel
from planner.job import Job, searched_modes
from planner.memory.account import stage_accounts
from planner.models.catalog import load_model
from planner.plan import Degrees
from planner.recomputation import recomputation
from planner.search.arrays import even_layout, kernel_layout, plain_context
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
        own = self.degrees.model_dump()
        named = " ".join(f"{name}{value}" for name, value in own.items() if value != 1)
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
    layout = even_layout(job, pp, vpp, bool(mode.mask))
    if recomputation(mode, job.framework) == "shared" and rng.random() < 0.5:
        count = rng.randint(1, max(layout.block_layers))
        taken = [min(count, own) for own in layout.block_layers]
        layout = replace(layout, recomputed=tuple(sum(taken[s::pp]) for s in range(pp)))
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
    return Case(job, degrees, even_layout(job, pp, vpp, bool(mode.mask)))


def compiled_bytes(case: Case) -> list[float]:
    """Allocated peak of every stage by the compiled core."""
    job, degrees = case.job, case.degrees
    columns = {name: np.array([value]) for name, value in degrees.model_dump().items()}
    model = CostModel(job)
    costed = model.cost_shapes(columns | {"recompute": np.array([0])})
    kind = recomputation(job.recompute[0], job.framework)
    ctx = plain_context(job, degrees.pp, degrees.vpp, kind)
    _, stages = model.cost_layout(costed, 0, kernel_layout(model, case.layout, ctx))
    return [float(size) for size in stages[:, f.STAGE_ALLOCATED]]


def timeline_bytes(case: Case) -> list[float]:
    """Allocated peak of every stage by the timeline."""
    accounts = stage_accounts(case.job, case.degrees, case.layout)
    return [own.allocated_bytes for own in accounts]


def kinds_of_stages(case: Case) -> list[int]:
    """Kinds of layers on each stage."""
    ctx = plain_context(case.job, case.degrees.pp, case.degrees.vpp, "none")
    return [sum(count > 0 for count in own) for own in ctx.counts(case.layout)]


@pytest.mark.parametrize("block", range(8))
def test_stage_peaks_agree(block: int) -> None:
    """Equal on stages with one kind of layer; with several, of which the compiled core knows the
    counts but not the order, within half a percent."""
    for seed in range(25 * block, 25 * (block + 1)):
        demand_agreement(random_case(seed), f"seed {seed}")


def demand_agreement(case: Case, name: str) -> None:
    """Every stage, see `test_stage_peaks_agree`."""
    figures = zip(compiled_bytes(case), timeline_bytes(case), kinds_of_stages(case), strict=True)
    for stage, (compiled, traced, kinds) in enumerate(figures):
        where = f"{name}, stage {stage}: {case}"
        assert compiled == pytest.approx(traced, rel=1e-9 if kinds == 1 else 5e-3), where


@pytest.mark.parametrize("index", range(len(SCHEDULES)))
def test_stage_peaks_agree_under_every_schedule(index: int) -> None:
    rng = random.Random(index)
    for draw in range(12):
        case = schedule_case(index, rng)
        demand_agreement(case, f"{SCHEDULES[index]}, draw {draw}")
