"""What `planner check` shows of a launch of reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.quantities import gib, percent_sure, plural, seconds
from planner.launch.check.rl import RlCheck, stated_lengths
from planner.launch.read.found import Found
from planner.launch.read.rl_found import EngineFound, RlFound
from planner.predict.plan_text import fit_verdict
from planner.report.rl_step import step_blocks
from planner.report.said import described
from planner.report.tables import Block


def rl_verdict(check: RlCheck) -> str:
    """Whether it will run and fit, in a sentence; of one with a prediction."""
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
        "CANNOT TELL: it fits with short samples, and not where every sample is as long as is "
        "allowed; give --lengths"
    )


def rl_facts(found: Found, check: RlCheck | None) -> Iterator[tuple[str, str]]:
    """Names and sentences of the head."""
    rl = found.rl
    if rl is None:
        return
    yield "algorithm", _algorithm_text(rl)
    yield "a step", _step_text(rl)
    yield "samples", _samples_text(found, rl)
    yield "placement", _placement_text(rl)
    yield "trainer", f"{found.framework}, {_trainer_text(found)}"
    yield "engine", _engine_text(rl.engine)
    if check is not None and check.step is not None and check.job is not None:
        step = check.step
        rate = check.job.rollout.samples / step.step_s
        most = "at most " if check.at_limits else ""
        yield (
            "step time",
            f"{most}{seconds(step.step_s)} ({seconds(step.low_s)} to {seconds(step.high_s)}, 80 % "
            f"interval), {rate:,.3g} samples/s",
        )
        for side, phase in step.peaks.items():
            usable = step.usable_bytes[side]
            yield f"peak, {side}", f"{most}{gib(phase.peak_bytes)} of {gib(usable)} GiB"


def _algorithm_text(rl: RlFound) -> str:
    reference = "" if rl.reference == "none" else f", reference {rl.reference}"
    critic = "" if rl.critic is None else f", critic {rl.critic}"
    reward = f", reward model {rl.reward}" if rl.reward else ""
    return f"{rl.algorithm}{reference}{critic}{reward}"


def _step_text(rl: RlFound) -> str:
    updates = rl.minibatches * rl.epochs
    return (
        f"{rl.prompts:,} prompts x {rl.samples_per_prompt} answers = {rl.samples:,} samples, "
        f"{plural(updates, 'optimizer step')}"
    )


def _samples_text(found: Found, rl: RlFound) -> str:
    limit = (
        f"micro-batches of up to {rl.token_limit:,} tokens"
        if rl.token_limit
        else f"micro-batches of {found.mbs}"
    )
    most = f"up to {rl.longest:,} tokens" if rl.longest else "of unknown length"
    said = found.lengths or f"all at their limit ({stated_lengths(rl)})"
    return f"{most}, {said}; {limit}"


def _placement_text(rl: RlFound) -> str:
    if rl.placement == "colocated":
        return "colocated: trainer and engines take turns on the same GPUs"
    trains, samples = rl.trainer_gpus or "?", rl.engine.gpus or "?"
    behind = f", samples up to {plural(rl.staleness, 'update')} behind" if rl.staleness else ""
    return f"separate: {trains} GPUs train, {samples} sample{behind}"


def _trainer_text(found: Found) -> str:
    named = (("tp", found.tp), ("pp", found.pp), ("cp", found.cp), ("ep", found.ep))
    degrees = " ".join(f"{name}{value}" for name, value in named if value > 1)
    train = "" if found.train == "full" else f", {found.train}"
    again = "recomputes" if found.recompute != "none" else "keeps all activations"
    return f"{degrees or 'data parallel'}, {again}{train}"


def _engine_text(engine: EngineFound) -> str:
    named = (("tp", engine.tp), ("pp", engine.pp), ("dp", engine.dp), ("ep", engine.ep))
    degrees = " ".join(f"{name}{value}" for name, value in named if value > 1) or "tp1"
    share = "" if engine.kv_share is None else f", {engine.kv_share:.0%} of a GPU"
    return f"{engine.name} {degrees}{share}, weights {engine.weights}, KV cache {engine.kv}"


def rl_blocks(check: RlCheck | None) -> Iterator[Block]:
    """The phases of a step, where there is a prediction."""
    if check is not None and check.step is not None:
        yield from step_blocks(check.step)
