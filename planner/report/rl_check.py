"""The part of `planner check` about reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import gib, percent_sure, plural
from planner.launch.check.rl import RlCheck, stated_lengths
from planner.launch.read.found import Found
from planner.launch.read.rl_found import EngineFound, RlFound
from planner.predict.plan_text import fit_verdict
from planner.report.rl_step import step_blocks
from planner.report.said import described, fact_rows
from planner.report.tables import Block


def rl_verdict(check: RlCheck) -> str:
    """Whether the launch will run and fit; empty without a prediction."""
    step = check.step
    if step is None:
        return ""
    sure = percent_sure(step.fit_probability)
    if not step.generation.fits:
        text = "DOES NOT FIT: an engine has no room for one sequence"
        return text if not (check.at_limits and check.short_fits) else _depends()
    if check.at_limits and not step.fits and check.short_fits:
        return _depends()
    return str(described("check.verdicts")[fit_verdict(step.fit_probability)].format(sure=sure))


def _depends() -> str:
    return (
        "CANNOT TELL: it fits with short samples, but not if every sample is as long as is "
        "allowed; give --lengths"
    )


def rl_facts(found: Found, check: RlCheck | None) -> Iterator[tuple[str, str]]:
    """Rows on the launch: its settings and, if there is a prediction, its step and the peak memory
    of each side. Empty if the launch is not for reinforcement learning."""
    rl = found.rl
    if rl is None:
        return
    yield from fact_rows(
        "check.rl", found, rl=rl, reference="" if rl.reference == "none" else rl.reference,
        updates=rl.minibatches * rl.epochs,
        told=found.lengths or f"all at their limit ({stated_lengths(rl)})",
        batch=f"up to {rl.token_limit:,} tokens" if rl.token_limit else found.mbs,
        placed=_placement_text(rl), trained=_trainer_text(found), engine=_engine_text(rl.engine),
    )  # fmt: skip
    if check is not None and check.step is not None and check.job is not None:
        step, most = check.step, "at most " if check.at_limits else ""
        rate = check.job.rollout.samples / step.step_s
        yield from fact_rows("check.rl-step", step, most=most, rate=rate)
        for side, phase in step.peaks.items():
            usable = step.usable_bytes[side]
            yield f"peak, {side}", f"{most}{gib(phase.peak_bytes)} of {gib(usable)} GiB"


def _placement_text(rl: RlFound) -> str:
    if rl.placement == "colocated":
        return "colocated: trainer and engines take turns on the same GPUs"
    trains, samples = rl.trainer_gpus or "?", rl.engine.gpus or "?"
    behind = f", samples up to {plural(rl.staleness, 'update')} behind" if rl.staleness else ""
    return f"separate: {trains} GPUs train, {samples} sample{behind}"


def _trainer_text(found: Found) -> str:
    train = "" if found.train == "full" else f", {found.train}"
    again = "recomputes" if found.recompute != "none" else "keeps all activations"
    return f"{_degrees(found, 'tp', 'pp', 'cp', 'ep') or 'data parallel'}, {again}{train}"


def _engine_text(engine: EngineFound) -> str:
    degrees = _degrees(engine, "tp", "pp", "dp", "ep") or "tp1"
    share = "" if engine.kv_share is None else f", {engine.kv_share:.0%} of a GPU"
    return f"{engine.name} {degrees}{share}, weights {engine.weights}, KV cache {engine.kv}"


def _degrees(found: object, *names: str) -> str:
    """`tp2 ep8`: degrees above 1."""
    values = {name: getattr(found, name) for name in names}
    return " ".join(f"{name}{value}" for name, value in values.items() if value > 1)


def rl_blocks(check: RlCheck | None) -> Iterator[Block]:
    """The phases of a step, if there is a prediction."""
    if check is not None and check.step is not None:
        yield from step_blocks(check.step)
