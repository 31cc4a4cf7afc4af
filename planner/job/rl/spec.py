"""The parts of a reinforcement-learning job: algorithm, rollout, reward and engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from hardware.files import shipped_toml
from hardware.frozen import Named
from planner.job.samples import Lengths
from planner.job.specs import ModelSpec

Placement = Literal["colocated", "separate"]
# Where the reference model is: nowhere; a second copy of the weights on the trainer's GPUs, sharded
# like the policy; on the host, swapped into the policy's place to be read; the policy with its
# adapters switched off.
ReferenceHome = Literal["none", "copied", "host", "adapters-off"]
RewardKind = Literal["rule", "seconds", "model"]
EngineName = Literal["vllm", "sglang"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
REFERENCE_HOMES: tuple[ReferenceHome, ...] = get_args(ReferenceHome)
ENGINE_NAMES: tuple[EngineName, ...] = get_args(EngineName)


class Algorithm(Named):
    """Work of an algorithm in one step. `algorithms.toml` explains the fields."""

    name: str
    words: str
    source: str
    names: tuple[str, ...] = ()
    critic: bool = False
    reference: bool = False
    old_logprobs: bool = True
    group: bool = False
    resamples: bool = False


@cache
def algorithms() -> Mapping[str, Algorithm]:
    """Every algorithm by name."""
    tables = shipped_toml("planner.job.rl", "algorithms.toml")
    return {name: Algorithm(name=name, **row) for name, row in tables.items()}


@dataclass(frozen=True)
class Rollout:
    """Samples that one step generates.

    `prompt`, `response`: tokens of each; `response` covers all turns. `turns`: answers per sample,
    with a tool taking `tool_s` seconds between them. `batches`: batches of prompts generated for
    each one that is trained on; above 1 if samples are discarded (dynamic sampling).
    """

    prompts: int
    samples_per_prompt: int
    prompt: Lengths
    response: Lengths
    turns: int = 1
    tool_s: float = 0.0
    batches: float = 1.0

    @property
    def samples(self) -> int:
        """Samples that a step trains on."""
        return self.prompts * self.samples_per_prompt

    @property
    def tokens(self) -> float:
        """Mean tokens of those samples, including prompts."""
        return self.samples * (self.prompt.mean + self.response.mean)

    @property
    def longest(self) -> int:
        """Tokens of the longest possible sample, including its prompt."""
        return self.prompt.longest + self.response.longest


@dataclass(frozen=True, slots=True)
class Reward:
    """The judge of the samples: a rule that takes no noticeable time, something that takes
    `seconds` per step, or a model that reads each sample forward."""

    kind: RewardKind = "rule"
    seconds: float = 0.0
    model: ModelSpec | None = None


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """Settings of the sampling engine besides its degrees; None for the framework's default.

    `weights`, `kv`: names of `planner.predict.memory.serving.formats`. `kv_share`: share of the
    GPU's memory that the engine may use (vLLM: of all of it, for weights, activations and KV cache;
    SGLang: of the free part, for weights and KV cache). `sequences`: sequences that run at once in
    one engine. `chunk`: tokens of one prefill step. `graphs`: decode with CUDA graphs. `logprobs`:
    return the log-probability of each sampled token. `generation`: engine version
    (`planner.job.rl.engines`); "" for the default.
    """

    name: EngineName = "vllm"
    weights: str = "bf16"
    kv: str = "bf16"
    kv_share: float | None = None
    sequences: int | None = None
    chunk: int | None = None
    graphs: bool = True
    logprobs: bool = True
    generation: str = ""
