"""Settings of reinforcement learning besides those of the trainer, in the planner's words."""

from __future__ import annotations

from dataclasses import dataclass

from planner.job.rl.spec import Placement, ReferenceHome


@dataclass(frozen=True)
class EngineFound:
    """Settings of the engine that samples. `tp`, `pp`, `dp`, `ep`: of one engine; `gpus`: for
    sampling, in total; `kv_share`: of a GPU; `sequences`: concurrent in one engine; `chunk`: tokens
    of a prefill step; None: the framework's default. `weights`, `kv`: formats; `way`: how new
    weights arrive (`planner/predict/rl/transfer.toml`), empty: the default."""

    name: str = "vllm"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    gpus: int | None = None
    kv_share: float | None = None
    sequences: int | None = None
    chunk: int | None = None
    weights: str = "bf16"
    kv: str = "bf16"
    graphs: bool = True
    way: str = ""

    @property
    def engine_gpus(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class RlFound:
    """Reinforcement learning as files describe it; `planner.launch.read.found.Found` describes the
    trainer.

    `framework`: a name in `planner.job.rl.frameworks`; `algorithm`: in `planner.job.rl.spec`.
    `prompts`, `samples_per_prompt`: of a step, between two weight transfers; `minibatches`:
    optimizer steps over them, repeated for `epochs`. `prompt_limit`, `response_limit`: maximum
    tokens, None if unknown. `token_limit`: tokens of a data-parallel rank's micro-batch if samples
    are packed by tokens, None if a micro-batch counts samples; `token_limit_read`: the same for
    passes without gradients; `padded`: whether counted samples are padded to the longest.
    `streams`: whether engines start the next prompts while others are answered, even during an
    update. `trainer_gpus`: for training, in total. `critic`, `reward`: models of the catalogue;
    empty `reward`: rules. `resamples`: generated batches of prompts per trained batch, None if
    unknown. `leaves`: whether the trainer's weights and states leave the GPU during sampling, None:
    the default. `fused_rotary`: whether one kernel rotates all samples of a micro-batch.
    """

    framework: str
    algorithm: str
    prompts: int
    samples_per_prompt: int
    engine: EngineFound
    minibatches: int = 1
    epochs: int = 1
    prompt_limit: int | None = None
    response_limit: int | None = None
    token_limit: int | None = None
    token_limit_read: int | None = None
    padded: bool = False
    placement: Placement = "colocated"
    staleness: int = 0
    streams: bool = False
    trainer_gpus: int | None = None
    reference: ReferenceHome = "none"
    critic: str | None = None
    reward: str = ""
    old_logprobs: bool = True
    fused_rotary: bool = True
    resamples: float | None = None
    leaves: bool | None = None

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return self.prompts * self.samples_per_prompt

    @property
    def longest(self) -> int | None:
        """Tokens of the longest possible sample; None if unknown."""
        if self.prompt_limit is None or self.response_limit is None:
            return None
        return self.prompt_limit + self.response_limit
