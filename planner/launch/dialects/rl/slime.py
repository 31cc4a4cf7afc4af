"""Reader of slime: Megatron's options together with slime's own, in a script with lists of
arguments.

Source of options and defaults: slime 624b824a, slime/utils/arguments.py; `--sglang-...` are
SGLang's. The trainer is read like every Megatron launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.launch.dialects.hf.arguments import known_model
from planner.launch.dialects.megatron.reader import MegatronReader
from planner.launch.dialects.rl.common import RlReader
from planner.launch.dialects.rl.hydra import paths_given
from planner.launch.dialects.rl.settings import RlSettings, defaults, table
from planner.launch.languages.text import Text, Word
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Found, Hints, Problem
from planner.launch.read.opened import Opened
from planner.launch.read.rl_found import EngineFound, RlFound

_SIGNS = ("--rollout-batch-size", "--rollout-num-gpus-per-engine", "--actor-num-gpus-per-node",
          "--n-samples-per-prompt", "--hf-checkpoint", "--rollout-num-gpus")  # fmt: skip
_ENOUGH = 2
_SEQUENCE, _POSITIONS = 4096, "131072"
# Tokens of the longest prompt if no option limits them.
_PROMPT = 1024
_FOREIGN = (
    "--sglang-",
    "--router-",
    "--eval-",
    "--rollout-",
    "--wandb-",
    "--vllm-",
    "--use-slime-",
)
# Problems that Megatron's reader reports and slime solves.
_NOT_ASKED = ("model-unknown", "micro-batch", "vocabulary-unknown", "dialect")
# Without this option it is unknown which layers have experts.
_LAYERS = "moe-layer-freq"
# Checkpoints whose weights the engine keeps in four bits.
_IN_FOUR_BITS = re.compile(r"int4|awq|gptq|k2-thinking")
# slime sets CUDA_DEVICE_MAX_CONNECTIONS for its workers (slime/ray/actor_group.py).
_SET_ELSEWHERE = ("cuda-device-max-connections",)


def is_slime(launch: LaunchCommand) -> bool:
    """Whether a command takes slime's options."""
    given = {word.text.value.partition("=")[0] for word in launch.arguments}
    return sum(sign in given for sign in _SIGNS) >= _ENOUGH


def read_command(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch that a command's options describe."""
    del read
    given = {
        name.replace("_", "-"): setting
        for name, setting in paths_given(launch, "hf_checkpoint").items()
    }
    return SlimeReader(RlSettings(given, defaults("slime")), launch, hints).found()


def _for_megatron(launch: LaunchCommand) -> Iterator[Word]:
    """The arguments that belong to Megatron, with those that slime adds."""
    own = {f"--{name}" for name, row in table("slime").items() if row[1] != "reset"}
    skipping = False
    for word in launch.arguments:
        value = word.text.value
        if value.startswith("--"):
            name = value.partition("=")[0].replace("_", "-")
            skipping = name in own or name.startswith(_FOREIGN)
        if not skipping:
            yield word
    # slime adds these (slime/backends/megatron_utils/arguments.py, set_default_megatron_args).
    if not any(word.text.value == "--fp16" for word in launch.arguments):
        yield Word(Text.made("--bf16"))
    yield Word(Text.made("--use-distributed-optimizer"))
    if "seq_length" not in launch.given:
        # Placeholders: samples have lengths of their own.
        yield from (Word(Text.made(word)) for word in ("--seq-length", str(_SEQUENCE)))
        yield from (Word(Text.made(word)) for word in ("--max-position-embeddings", _POSITIONS))


class SlimeReader(RlReader):
    """Reads a launch from slime's options."""

    name = "slime"

    def __init__(self, settings: RlSettings, command: LaunchCommand, hints: Hints) -> None:
        super().__init__(settings, command.command.file, command, hints)
        self.command = command

    def found(self) -> Found:
        """Megatron's launch together with engine, batch and algorithm."""
        self.note_unmodelled()
        known = self.hints.model or known_model(self.named_model)
        limit = self._limit()
        megatron = replace(
            self.hints,
            model=known,
            mbs=1 if limit else self.hints.mbs or self.whole("micro-batch-size") or 1,
            gbs=None,
            seq=self.hints.seq or limit or _SEQUENCE,
        )
        own = tuple(_for_megatron(self.command))
        alone = replace(self.command, program="train.py", arguments=own)
        trained = MegatronReader(alone, megatron).found()
        trainer = {name: getattr(trained, name) for name in ("tp", "pp", "cp", "ep")}
        if known is None and trained.shape is None:
            self.known(self.named_model, "hf-checkpoint")
        rl = self.rl(trainer | {"model": known, "train": "full"})
        if rl is not None:
            self.problems += self._rules(trainer, rl)
        return self._joined(trained, rl)

    def _joined(self, trained: Found, rl: RlFound | None) -> Found:
        """Megatron's launch completed with the settings of reinforcement learning."""
        kept = (
            replace(one, severity="missing") if one.rule == _LAYERS and trained.shape else one
            for one in trained.problems
            if not self._is_answered(one, trained)
        )
        seen = self._sees({"model": trained.model, "shape": trained.shape})
        if seen or self.settings.stated("multimodal-keys") is not None:
            self.left_out("images of prompts are not counted", "hf-checkpoint")
        problems = (*self.settings.problems, *self.problems, *kept)
        return replace(
            trained,
            format="slime",
            world=self._actors() + (self._engines() if self.separate else 0),
            gbs=None,
            grad_acc=None,
            rl=rl,
            problems=tuple(dict.fromkeys(problems)),
            unmodelled=(*trained.unmodelled, *self.unmodelled),
            assumed=(*trained.assumed, *self.assumed),
            one_process_a_node=True,
        )

    def _is_answered(self, problem: Problem, trained: Found) -> bool:
        known = trained.model is not None or trained.shape is not None
        return problem.rule in _SET_ELSEWHERE or (problem.rule in _NOT_ASKED and known)

    @property
    def separate(self) -> bool:
        """Whether engines have their own GPUs."""
        return not self.flag("colocate")

    def _actors(self) -> int:
        return (self.whole("actor-num-nodes") or 1) * (self.whole("actor-num-gpus-per-node") or 8)

    def _engines(self) -> int:
        own = self.whole("rollout-num-gpus", least=0)
        return own or (0 if self.separate else self._actors())

    def _limit(self, whose: str = "max-tokens-per-gpu") -> int | None:
        if not self.flag("use-dynamic-batch-size"):
            return None
        limit = self.whole(whose) or self.whole("max-tokens-per-gpu")
        if limit is None:
            return None
        # A longer sample becomes a micro-batch by itself (slime/utils/seqlen_balancing.py).
        longest = _PROMPT + (self.whole("rollout-max-response-len") or 0)
        return max(limit * (self.whole("context-parallel-size") or 1), longest)

    def trainer(self) -> Mapping[str, Any]:
        """Only the profile, because Megatron's reader reads everything else."""
        return {"framework": "megatron-core"}

    def rl(self, trainer: Mapping[str, Any]) -> RlFound | None:
        """Engine, batch and algorithm; None if too little is known."""
        prompts = self.whole("rollout-batch-size")
        each = self.whole("n-samples-per-prompt") or 1
        if prompts is None:
            return None
        batch, steps = self.whole("global-batch-size"), self.whole("num-steps-per-rollout")
        algorithm = self.algorithm("advantage-estimator", "grpo")
        compares = self.flag("use-kl-loss") or self.number("kl-coef") != 0.0
        is_async = "async" in self.command.program
        return RlFound(
            framework="slime",
            algorithm=algorithm,
            prompts=prompts,
            samples_per_prompt=each,
            engine=self._engine(),
            minibatches=steps or max(1, prompts * each // (batch or prompts * each)),
            prompt_limit=self.whole("rollout-max-prompt-len") or _PROMPT,
            response_limit=self.whole("rollout-max-response-len"),
            token_limit=self._limit(),
            token_limit_read=self._limit("log-probs-max-tokens-per-gpu"),
            placement="separate" if self.separate else "colocated",
            staleness=1 if is_async else 0,
            streams="fully_async" in self.text("rollout-function-path"),
            trainer_gpus=self._actors(),
            reference="host" if compares else "none",
            critic=trainer["model"] if algorithm == "ppo" else None,
            old_logprobs=not self.flag("use-rollout-logprobs"),
            leaves=self._leaves(),
        )

    def _filters(self, switch: str) -> bool:
        del switch
        return self.settings.stated("dynamic-sampling-filter-path") is not None

    def _leaves(self) -> bool:
        if self.settings.stated("no-offload-train") is not None:
            return False
        return self.flag("offload-train", "offload") or not self.separate

    def _engine(self) -> EngineFound:
        if _IN_FOUR_BITS.search(self.named_model.lower()):
            text = "an engine with 4-bit weights is not modelled"
            self.unpredictable(text, "hf-checkpoint")
        gpus = self.whole("rollout-num-gpus-per-engine") or 1
        dp = self.whole("sglang-dp-size", "sglang-data-parallel-size") or 1
        attention = self.settings.stated("sglang-enable-dp-attention") is not None and dp > 1
        return self.engine_set(
            "sglang",
            tp=max(1, gpus // dp) if attention else gpus,
            dp=dp if attention else 1,
            gpus=self._engines() or None,
            weights="fp8" if "fp8" in self.named_model.lower() else "bf16",
            graphs=self.settings.stated("sglang-disable-cuda-graph") is None,
        )
