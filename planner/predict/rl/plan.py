"""A way to run reinforcement learning and its cost: phases of a step and memory in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hardware.schema import Gpu
from planner.job.rl.spec import Placement
from planner.predict.configuration import Configuration

# Phases in the order of a step. `transfer`: weights to the engine; `wake` and `sleep`: an engine
# takes and releases its memory; `leave` and `return`: the trainer's tensors are moved to the host
# and back; `reward`: rules, tools or a model judge the answers.
PhaseName = Literal[
    "transfer", "wake", "generation", "reward", "sleep", "return", "old_logprobs", "reference",
    "values", "critic_update", "update", "leave",
]  # fmt: skip
Side = Literal["trainer", "engine"]


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """Degrees of the sampling engines: `replicas` engines of tp·pp·dp GPUs each.

    `dp`: data-parallel attention inside an engine, all of whose ranks share the experts; `ep`:
    number of its tp·dp ranks over which whole experts are distributed; `kv_share`: share of a GPU's
    memory that an engine takes; `sequences`: most sequences that run at once on one of its dp
    ranks.
    """

    replicas: int
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    kv_share: float = 0.6
    sequences: int = 256

    @property
    def engine_gpus(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.pp * self.dp

    @property
    def gpus(self) -> int:
        """GPUs of all engines."""
        return self.replicas * self.engine_gpus


@dataclass(frozen=True)
class RlLayout:
    """A way to run a job: the GPUs of trainer and engines, and how each side is split.

    `trainer`: configuration of the update, whose job has the GPUs that train; `critic`: the same
    for a critic, on the same GPUs; `staleness`: number of updates by which samples may be behind;
    `trainer_leaves`: weights, gradients and states are moved to the host while the engine samples;
    `streams`: engines take the next prompts as answers end, and answers continue across an update
    (partial rollouts), so that no engine waits for the longest; `way`: how new weights are sent
    (`transfer.toml`), "" for the framework's default; `engine_gpu`: the GPU type that samples, None
    for the trainer's.
    """

    placement: Placement
    trainer: Configuration
    engine: EngineLayout
    staleness: int = 0
    critic: Configuration | None = None
    trainer_leaves: bool = False
    streams: bool = False
    way: str = ""
    engine_gpu: Gpu | None = None

    @property
    def trainer_gpus(self) -> int:
        """Number of GPUs that train."""
        return self.trainer.degrees.gpus

    @property
    def gpus(self) -> int:
        """Number of GPUs of both sides together; colocated sides share theirs."""
        if self.placement == "colocated":
            return max(self.trainer_gpus, self.engine.gpus)
        return self.trainer_gpus + self.engine.gpus


@dataclass(frozen=True)
class Phase:
    """One phase of a step on one side: its seconds and their causes.

    `terms`: seconds by cause, which add up to `seconds`; `held`: bytes on the side's fullest GPU
    during the phase, by content; `low`, `high`: factors of the 80 % interval of its seconds;
    `notes`: whole sentences for the reader.
    """

    name: PhaseName
    side: Side
    seconds: float
    terms: Mapping[str, float]
    held: Mapping[str, float]
    low: float = 1.0
    high: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> float:
        """Bytes on the fullest GPU during the phase."""
        return sum(self.held.values())


@dataclass(frozen=True)
class Generation:
    """Time and memory of the engines in a step.

    `phase`: from the first prompt to the end of the longest answer; `steady_s`: seconds for the
    same answers if engines never run empty, because the next prompts follow at once; `tail_s`:
    seconds of the phase in which fewer sequences run than an engine has room for; `running`: most
    sequences of one engine at once; `waves`: sequences of an engine divided by that number;
    `preempted`: preemptions per sequence, after each of which its tokens are read again;
    `room_tokens`: size of an engine's KV cache; `profile`: (seconds since the start, share of the
    samples that still run), falling; `fits`: whether the cache has room for at least one sequence
    of the greatest length, and the engine's share of the GPU is free.
    """

    phase: Phase
    steady_s: float
    tail_s: float
    running: float
    waves: float
    preempted: float
    room_tokens: float
    profile: tuple[tuple[float, float], ...]
    fits: bool


# Prefix for bytes that a phase does not need; if the trainer leaves, they leave the GPU too.
WAITING = "waiting: "


def at_work(held: Mapping[str, float]) -> Mapping[str, float]:
    """The bytes of a phase, without the entries that only wait for another phase (marked
    `WAITING`)."""
    return {name: size for name, size in held.items() if not name.startswith(WAITING)}


@dataclass(frozen=True)
class Training:
    """Time and memory of the trainer's side in a step: its phases in order.

    `resident`: bytes on its fullest GPU between phases that could be moved to the host, by content
    (weights, gradients, optimizer states, reference); `staying`: bytes that cannot (context,
    communicators); `shard_bytes`: weights of the policy on one GPU.
    """

    phases: tuple[Phase, ...]
    resident: Mapping[str, float]
    staying: Mapping[str, float]
    shard_bytes: float
