"""Generation of a step's samples: seconds from the first prompt to the end of the longest answer.

Sequences start and end by continuous batching (`planner.predict.rl.batching`). A step of it
consists of reading weights and cache, arithmetic, exchange and the engine's CPU work for the
sequences that run (`planner.predict.rl.decoding`). Engines work in parallel on equal numbers of
samples, and the phase ends with the last of them: with the longest answer of all, on the engine
that on average has the longest ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from hardware.load import parse_gpus
from hardware.schema import Cluster, Gpu
from planner.job.rl.engines import EngineGeneration, generation_of
from planner.job.rl.job import RlJob
from planner.job.samples import Lengths
from planner.predict.rl.batching import Floats, Flow, Load, flow
from planner.predict.rl.decoding import DecodeCosts, decode_costs
from planner.predict.rl.engine_memory import EngineMemory, deployment_of, engine_memory
from planner.predict.rl.errors import with_bar
from planner.predict.rl.plan import EngineLayout, Generation, Phase

# Number of points of the profile of sequences that still run.
_POINTS = 64
# Smallest share of a phase for which waiting for the CPU gets a note.
_MUCH_CPU = 0.25
# An engine drains once fewer sequences run than this share of the maximum.
_DRAINED = 0.9


@dataclass(frozen=True)
class SamplingEngine:
    """The costs of one engine, and its work. `load`: the samples of its fullest dp rank; `samples`:
    all samples of a batch, on all engines together; `shared`: share of the prompts that is read if
    samples of one prompt share its cache."""

    layout: EngineLayout
    costs: DecodeCosts
    memory: EngineMemory
    made: EngineGeneration
    graphs: bool
    logprobs: bool
    host_speed: float
    load: Load
    samples: int
    prompt_squared: float
    shared: float

    def terms(self, running: Floats, tokens: Floats, windowed: Floats) -> dict[str, Floats]:
        """Seconds of steps by cause, including the time in which the GPU waits for the engine's
        CPU. Arguments as in `DecodeCosts.terms`."""
        found = dict(self.costs.terms(running, tokens, windowed))
        gpu = np.sum(list(found.values()), axis=0)
        launched = 0.0 if self.graphs else self.costs.launches * self.made.launch_s
        waited = np.maximum(0.0, launched / self.host_speed - gpu)
        each = self.made.sequence_s + (self.made.logprob_s if self.logprobs else 0.0)
        # Every dp rank has a CPU process of its own.
        cpu = (self.made.step_s + each * running) / self.host_speed
        exposed = np.maximum(0.0, cpu - gpu - waited) if self.made.hidden else cpu
        return {**found, "engine": waited + exposed}

    def prefill_s(self, prompts: float, again: float) -> float:
        """Seconds to read the prompts of `prompts` samples, plus `again` tokens of preempted
        sequences."""
        tokens = prompts * self.load.prompt * self.shared + again
        pairs = prompts * self.prompt_squared * self.shared
        return self.read_s(tokens) + pairs * self.costs.prefill_square_s / self.made.prefill_share

    def read_s(self, tokens: float) -> float:
        """Seconds to read tokens, ignoring attention to earlier ones."""
        return tokens * self.costs.prefill_token_s / self.made.prefill_share


def generate(
    job: RlJob, engine: EngineLayout, beside: float = 0.0, gpu: Gpu | None = None
) -> Generation:
    """Seconds and memory of a step's generation on engines of one layout.

    `beside`: bytes on each GPU that a colocated trainer keeps; `gpu`: the GPU type that samples,
    None for the trainer's. UsageError for degrees that no engine takes.
    """
    made = sampling_engine(job, engine, beside, gpu)
    found = _generation(job, made)
    deviation = _length_deviation(job, made, found.phase.seconds)
    return replace(found, phase=with_bar(found.phase, job, deviation))


def sampling_engine(
    job: RlJob, layout: EngineLayout, beside: float = 0.0, gpu: Gpu | None = None
) -> SamplingEngine:
    """The costs of an engine of a layout, and the work of each of its ranks. UsageError for degrees
    that no engine takes."""
    deployment = deployment_of(job, layout, gpu)
    cluster = _machine(job, layout, gpu)
    made = generation_of(job.engine)
    memory = engine_memory(deployment, made, beside)
    rollout = job.rollout
    lanes = layout.replicas * layout.dp
    each = rollout.samples / lanes
    group = _sharing(job, lanes)
    load = Load(
        samples=_heaviest(each, layout, rollout.response),
        lengths=replace(rollout.response, unstated=()),
        prompt=rollout.prompt.mean,
        slots=float(layout.sequences),
        room=max(memory.room, memory.sequence_bytes(rollout.longest)),
        full=memory.token_bytes,
        windowed=memory.window_bytes,
        window=float(memory.window),
        state=memory.state_bytes,
        shared=1.0 - 1.0 / group,
        again=not job.framework.prefix_cache,
    )
    return SamplingEngine(
        layout, decode_costs(deployment, cluster), memory, made, job.engine.graphs,
        job.engine.logprobs, cluster.host_speed, load, rollout.samples,
        rollout.prompt.squared, 1.0 / group,
    )  # fmt: skip


def _sharing(job: RlJob, lanes: int) -> float:
    """Number of samples of the same prompt on one rank. They share its cached keys and values, and
    the rank reads it once. 1 if the framework has no prefix cache."""
    rollout = job.rollout
    if not job.framework.prefix_cache:
        return 1.0
    most = rollout.samples / lanes
    if job.framework.scatters:
        most = min(most, rollout.samples_per_prompt / lanes)
    return max(1.0, min(rollout.samples_per_prompt, most))


def _machine(job: RlJob, layout: EngineLayout, gpu: Gpu | None) -> Cluster:
    """The engines' machine: the trainer's, the one given for sampling, or the usual machine of
    another GPU type."""
    if gpu is None:
        return job.trainer.cluster
    for cluster in (job.trainer.cluster, job.sampling_cluster):
        if gpu.name == cluster.gpu.name:
            return cluster
    return parse_gpus(f"{layout.gpus}x{gpu.name}")


def _heaviest(samples: float, layout: EngineLayout, lengths: Lengths) -> float:
    """The work of the fullest rank, as a number of samples of mean length with the same total of
    tokens: the mean over ranks plus the expected largest of one normal deviation per rank (Blom's
    formula). `samples`: mean number of samples on a rank."""
    lanes = layout.replicas * layout.dp
    if lanes == 1 or samples < 1.0:
        return max(1.0, samples)
    spread = math.sqrt(max(0.0, lengths.squared / lengths.mean**2 - 1.0))
    largest = NormalDist().inv_cdf((lanes - 0.375) / (lanes + 0.25))
    return samples * (1.0 + largest * spread / math.sqrt(samples))


@dataclass(frozen=True)
class _Course:
    """Generation over time, on the engine that ends last: seconds of each bin of steps, by cause
    (`terms`) and in total (`seconds`); `most`: most sequences that run at once on a rank."""

    flow: Flow
    terms: Mapping[str, Floats]
    seconds: Floats
    most: float


def _course(made: SamplingEngine) -> _Course:
    """The seconds of each bin of steps, multiplied by the probability that some engine still runs
    then.

    If a share l of an engine's N samples is left on average, some of them run with probability 1 -
    (1 - l)^N; some of all engines' M samples run with probability 1 - (1 - l)^M.
    """
    found = flow(made.load)
    layout = made.layout
    each = max(1.0, made.samples / layout.replicas)
    left = np.clip(found.left / made.load.samples, 0.0, 1.0)
    some_left = np.maximum(1.0 - (1.0 - left) ** each, 1e-12)
    last = 1.0 - (1.0 - left) ** made.samples
    running = np.maximum(found.running / some_left, 1.0 / layout.dp)
    scale = running / np.maximum(found.running, 1e-300)
    terms = made.terms(running, found.tokens * scale, found.windowed * scale)
    weighed = {name: values * found.steps * last for name, values in terms.items()}
    reread = made.read_s(1.0) * found.reread
    weighed["prefill"] = made.prefill_s(1.0, 0.0) * found.admitted + reread
    seconds = np.sum(list(weighed.values()), axis=0)
    return _Course(found, weighed, seconds, float(found.running.max()))


def _generation(job: RlJob, made: SamplingEngine) -> Generation:
    course = _course(made)
    rollout, memory = job.rollout, made.memory
    batches = rollout.batches
    terms = {name: batches * float(values.sum()) for name, values in course.terms.items()}
    if rollout.turns > 1:
        waited = (rollout.turns - 1) * rollout.tool_s
        terms["tools"] = batches * waited * (1.0 - _fed(course))
    longest_bytes = memory.sequence_bytes(rollout.longest)
    fits = memory.room >= longest_bytes and memory.over <= 0.0
    phase = Phase(
        "generation", "engine", sum(terms.values()), terms, memory.held,
        notes=tuple(_notes(job, made, course, longest_bytes)),
    )  # fmt: skip
    draining = course.flow.running < _DRAINED * course.most
    return Generation(
        phase=phase,
        steady_s=batches * _steady_s(made),
        tail_s=batches * float(course.seconds[np.asarray(draining)].sum()),
        running=course.most * made.layout.dp,
        waves=made.load.samples / max(course.most, 1e-9),
        preempted=course.flow.preempted,
        room_tokens=memory.room_tokens * made.layout.dp,
        profile=_profile(course, made.load.samples),
        fits=fits,
    )


def _fed(course: _Course) -> float:
    """Share of the phase's seconds before the last sequence is admitted. Until then a waiting
    sequence takes the place of one whose tool runs, so that tools cost no time."""
    fed = int(np.flatnonzero(course.flow.admitted > 0.0)[-1])
    return float(course.seconds[:fed].sum() / max(course.seconds.sum(), 1e-12))


def _steady_s(made: SamplingEngine) -> float:
    """Seconds for the same samples if engines never run out of prompts: as many sequences run as
    slots and room allow, and each one that ends is replaced at once, so that sequences of all ages
    run together."""
    load = made.load
    longest = load.lengths.tokens[-1]
    ages = (np.arange(256) + 0.5) * longest / 256
    reached = np.searchsorted(np.asarray(load.lengths.tokens), ages, side="right")
    alive = 1.0 - np.concatenate(([0.0], np.cumsum(load.lengths.shares)))[reached]
    weights = alive / alive.sum()
    cached = load.prompt + ages
    taken = float(weights @ load.taken(cached))
    running = np.asarray(
        [max(1.0, min(load.slots, load.room / max(taken, 1e-9), 2 * load.samples))]
    )
    tokens = running * float(weights @ cached)
    windowed = running * float(weights @ np.minimum(cached, load.window)) if load.window else tokens
    step = sum(float(values[0]) for values in made.terms(running, tokens, windowed).values())
    steps = load.samples * load.lengths.mean / float(running[0])
    return steps * step + made.prefill_s(load.samples, 0.0)


def _profile(course: _Course, samples: float) -> tuple[tuple[float, float], ...]:
    """Points of a curve: (seconds since the start, share of the samples that still run), falling
    from 1 to 0."""
    ends = np.concatenate(([0.0], np.cumsum(course.seconds)))
    left = np.concatenate(([1.0], np.clip(course.flow.left / samples, 0.0, 1.0)))
    left[-1] = 0.0
    chosen = np.unique(np.linspace(0, len(ends) - 1, _POINTS).round().astype(int))
    return tuple((float(ends[index]), float(left[index])) for index in chosen)


def _length_deviation(job: RlJob, made: SamplingEngine, seconds: float) -> float:
    """Spread of the phase's seconds over all length distributions that fit the known facts: root
    mean square of ln(seconds under another distribution / `seconds`). 0 if the distribution is
    known."""
    others = job.rollout.response.unstated
    if not others or seconds <= 0.0:
        return 0.0
    ratios = []
    for lengths in others:
        load = replace(made.load, lengths=replace(lengths, unstated=()))
        other = _course(replace(made, load=load)).seconds.sum()
        ratios.append(math.log(max(float(other), 1e-9) * job.rollout.batches / seconds))
    return math.sqrt(sum(ratio**2 for ratio in ratios) / len(ratios))


def _notes(job: RlJob, made: SamplingEngine, course: _Course, longest_bytes: float) -> list[str]:
    """Notes for the reader, in whole sentences: no room for the longest sequence, memory that is
    not free, preemptions, long waits for the CPU, unknown lengths. Empty if none applies."""
    found = []
    if made.memory.room < longest_bytes:
        found.append(
            f"The KV cache has no room for one sequence of {job.rollout.longest:,} tokens; give "
            "the engine more of the GPU, a larger tp, or shorter answers."
        )
    if made.memory.over > 0.0:
        found.append(
            "The engine's share of the GPU is not free because of other memory there: "
            f"{made.memory.over / 2**30:.1f} GiB are missing."
        )
    if course.flow.preempted > 0.01:
        found.append(
            f"{course.flow.preempted:.0%} of the sequences lose their place in a full KV cache, "
            "and are read again."
        )
    waited = float(course.terms["engine"].sum() / max(course.seconds.sum(), 1e-12))
    if waited > _MUCH_CPU:
        why = "prepares steps" if made.graphs else "starts kernels that no CUDA graph holds"
        found.append(f"For {waited:.0%} of the time the GPU waits while the engine's CPU {why}.")
    if job.rollout.response.unstated:
        found.append(
            "Only the mean of the answers' lengths is known; their spread decides the tail."
        )
    return found
