"""What launch files of reinforcement learning say beside their trainer, in the planner's words."""

from __future__ import annotations

from dataclasses import dataclass

from planner.job.rl.spec import Placement, ReferenceHome


@dataclass(frozen=True)
class EngineFound:
    """How the engine that samples is set. `tp`, `pp`, `dp`, `ep`: of one engine; `gpus`: that
    sample, in all; `kv_share`: of a GPU; `sequences`: that run at once in one engine; `chunk`:
    tokens of a prefill step; None: as the framework has it. `weights`, `kv`: formats; `way` of new
    weights (`planner/predict/rl/transfer.toml`), empty: the framework's usual one."""

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
    """Reinforcement learning as files describe it; `planner.launch.read.found.Found` has the
    trainer's side.

    `framework`: by `planner.job.rl.frameworks`; `algorithm`: by `planner.job.rl.spec`. `prompts`,
    `samples_per_prompt`: of a step, from one transfer of weights to the next; `minibatches`:
    optimizer steps over them, each `epochs` times. `prompt_limit`, `response_limit`: tokens that
    are allowed, None where the files do not say. `token_limit`: tokens of a data-parallel rank's
    micro-batch where samples are packed by tokens, None where a micro-batch counts samples;
    `token_limit_read`: of a pass that only reads; `padded`: samples of one that counts them are
    padded to the longest. `streams`: engines take the next prompts while
    others are answered, over an update too. `trainer_gpus`: that train, in all. `critic`,
    `reward`: models by their names in the catalogue; `reward` empty: rules. `resamples`: batches of
    prompts that are generated for each that is trained on, None where that is not known. `leaves`:
    whether weights and states of the trainer leave the GPU while the engine samples, None: as the
    framework has it. `fused_rotary`: one kernel rotates all samples of a micro-batch.
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
        """Tokens of the longest sample that is allowed; None where the files do not say."""
        if self.prompt_limit is None or self.response_limit is None:
            return None
        return self.prompt_limit + self.response_limit
