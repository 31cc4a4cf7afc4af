"""Reader of verl: Hydra's overrides on a command line, or a YAML with its tables.

Source of keys and defaults: verl 1dda039b, verl/trainer/config; of their use:
verl/trainer/ppo/ray_trainer.py, verl/workers/engine_workers.py. Older spellings are those of
releases since 0.2. A step runs from one transfer of weights to the next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from planner.job.quantities import stated
from planner.job.rl.frameworks import find_rl_framework
from planner.launch.dialects.rl.common import RlReader, words
from planner.launch.dialects.rl.hydra import overrides
from planner.launch.dialects.rl.settings import RlSettings, defaults, renamed
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Source, yaml_document
from planner.launch.read.found import Found, Hints, Setting, not_predictable
from planner.launch.read.opened import Opened
from planner.launch.read.rl_found import EngineFound, RlFound

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MODEL, _REF = "actor_rollout_ref.model", "actor_rollout_ref.ref"
_MEGATRON, _FSDP = f"{_ACTOR}.megatron", f"{_ACTOR}.fsdp_config"
_ULYSSES = (f"{_ACTOR}.ulysses_sequence_parallel_size", f"{_FSDP}.ulysses_sequence_parallel_size")
_MINI = f"{_ACTOR}.ppo_mini_batch_size"
_RECOMPUTE = f"{_MEGATRON}.override_transformer_config.recompute"
_OFFLOAD = f"{_ACTOR}.optim.override_optimizer_config"
_REWARD_ON = ("reward.reward_model.enable", "reward_model.enable")
_REWARD_PATH = ("reward.reward_model.model_path", "reward_model.model.path")
_ASYNC, _WAY = "async_training", f"{_ROLLOUT}.checkpoint_engine.backend"
_WAYS = {
    "nixl": "checkpoint-engine", "mooncake": "checkpoint-engine",
    "kimi_ckpt_engine": "checkpoint-engine", "delta_sharded": "delta",
}  # fmt: skip
_MODULE = re.compile(r"(^|[./])verl[./]")
_ENTRY = re.compile(r"main_(ppo|dapo|sppo|spin|prime|entropy|eval)|fully_async_main|ray_trainer")
# Other programs in verl that train or place models differently.
_OTHER = re.compile(r"main_\w*?(gkd|opd|split|spin|sppo|flow|dpo|eval|generation)\w*")
_ONE_STEP, _FULLY = re.compile("one_step_off"), re.compile("fully_async")


def is_verl(launch: LaunchCommand) -> bool:
    """Whether a command takes verl's settings."""
    own = (word.text.value.lstrip("+~").startswith("actor_rollout_ref.") for word in
           launch.arguments)  # fmt: skip
    named = _MODULE.search(launch.program) and _ENTRY.search(launch.program)
    return any(own) or bool(named)


def is_verl_table(content: Mapping[str, object]) -> bool:
    """Whether a table is a verl configuration."""
    return isinstance(content.get("actor_rollout_ref"), dict)


def read_command(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch that a command's overrides describe."""
    del read
    return _reader(overrides(launch), launch.command.file, launch, hints).found()


def read_table(source: Source) -> Found:
    """The launch that a YAML describes, with the overrides of the command that names it."""
    settings = yaml_document(source.text, source.path, fill=False).settings
    settings |= overrides(source.launch) if source.launch else {}
    return _reader(settings, source.path, source.launch, source.hints).found()


def _reader(
    settings: Mapping[str, Setting], path: str, launch: LaunchCommand | None, hints: Hints
) -> VerlReader:
    stated = {one.key: one for one in renamed(settings, words("renamed.verl"))}
    return VerlReader(RlSettings(stated, defaults("verl")), path, launch, hints)


class VerlReader(RlReader):
    """Reads a launch from verl's settings."""

    name = "verl"

    def positions(self) -> int | None:
        """The number of positions by which the settings replace the model's own; None if none
        do."""
        stated = self.whole(f"{_MODEL}.override_config.max_position_embeddings")
        scaled = any("rope_scaling" in key or "rope_parameters" in key or "hf_overrides" in key
                     for key in self.settings.settings)  # fmt: skip
        longest = self.whole("data.max_prompt_length"), self.whole("data.max_response_length")
        return stated or (sum(one or 0 for one in longest) if scaled else None)

    # --- where it runs --------------------------------------------------------------------------

    @property
    def program(self) -> str:
        """The program that is started; empty without a command."""
        return "" if self.launch is None else self.launch.program

    @property
    def strategy(self) -> str:
        """The trainer, by verl's name for it."""
        group = self.text(f"actor@{_ACTOR}").removesuffix("_actor")
        if group not in ("", "dp"):
            return group
        given = {} if self.launch is None else self.launch.given
        named = str(given["config_name"].value) if "config_name" in given else ""
        config = self.text("model_engine") or named
        by_config = next((one for one in ("megatron", "veomni", "torchtitan", "automodel")
                          if one in config), "")  # fmt: skip
        keys = (f"{_ACTOR}.strategy", f"{_FSDP}.strategy")
        stated = self.text(*keys) if self.settings.stated(*keys) else ""
        if not stated and not by_config:
            tables = {key.split(".")[2] for key in self.settings.settings
                      if key.startswith(f"{_ACTOR}.")}  # fmt: skip
            by_config = "megatron" if "megatron" in tables and "fsdp_config" not in tables else ""
        return stated or by_config or "fsdp"

    @property
    def is_megatron(self) -> bool:
        """Whether the trainer is Megatron."""
        return self.strategy == "megatron"

    @property
    def _is_async(self) -> bool:
        """Whether the launch uses one of verl's programs that train while the engine samples."""
        return bool(_FULLY.search(self.program) or _ONE_STEP.search(self.program))

    @property
    def separate(self) -> bool:
        """Whether engine and trainer each have their own GPUs."""
        apart = {"rollout.nnodes", f"{_ASYNC}.require_batches"} & self.settings.settings.keys()
        return self._is_async or bool(apart) or self.trainer_mode == "separate_async"

    @property
    def trainer_mode(self) -> str:
        """The mode of verl's v1 trainer: `sync` (the default: training and sampling alternate), or
        one in which they overlap, such as `separate_async`."""
        key = "trainer.v1.trainer_mode"
        return self.text(key) if self.settings.stated(key) else "sync"

    def trainer_gpus(self) -> int | None:
        """The number of GPUs that train; None if unknown."""
        return self.product("trainer.nnodes", "trainer.n_gpus_per_node")

    def rollout_gpus(self) -> int | None:
        """The number of GPUs that sample; None if unknown."""
        if not self.separate:
            return self.trainer_gpus()
        own = _ROLLOUT if self.trainer_mode == "separate_async" else "rollout"
        return self.product(f"{own}.nnodes", f"{own}.n_gpus_per_node")

    # --- the trainer ----------------------------------------------------------------------------

    def trainer(self) -> Mapping[str, Any]:
        """Degrees, precision and recomputation, by field of `Found`."""
        if other := _OTHER.search(self.program):
            text = f"{self.program} is another kind of program ({other[1]}), which is not modelled"
            self.problems.append(not_predictable(text))
        strategy, trainers = self.strategy, find_rl_framework("verl").trainers
        if strategy not in trainers:
            what = words("not_costed.verl").get(strategy, f"the trainer {strategy}")
            self.unpredictable(f"{what} is not modelled", f"{_ACTOR}.strategy", "model_engine")
        profile = trainers.get(strategy, trainers["fsdp2"])
        gpus = self.trainer_gpus()
        own = self._megatron() if self.is_megatron else self._fsdp(gpus)
        rollout = None if gpus is None else self.rollout_gpus() if self.separate else 0
        return {
            "framework": profile,
            "world": None if gpus is None or rollout is None else gpus + rollout,
            "train": self.adapters(f"{_MODEL}.lora_rank", f"{_MODEL}.lora.rank"),
            "mbs": self._mbs(),
            **own,
        }

    def _megatron(self) -> dict[str, Any]:
        degrees = {name: size for name, size in self.degrees("verl").items() if size is not None}
        granularity = self.text(f"{_RECOMPUTE}_granularity")
        modes = {"full": "full", "selective": "selective", "": "none"}
        if granularity not in modes:
            text = f"recompute_granularity {granularity} is not modelled"
            self.unpredictable(text, f"{_RECOMPUTE}_granularity")
        share = 0.0
        if self.flag(f"{_OFFLOAD}.optimizer_cpu_offload"):
            share = stated(self.share(f"{_OFFLOAD}.optimizer_offload_fraction"), 1.0)
            share = 1.0 if share >= 0.999 else share
        return degrees | {
            "zero": 1,
            "recompute": self.hints.recompute or modes.get(granularity, "none"),
            "optimizer_offload": share,
        }

    def _fsdp(self, gpus: int | None) -> dict[str, Any]:
        shard = self.whole(f"{_FSDP}.fsdp_size")
        again = self.flag(f"{_MODEL}.enable_gradient_checkpointing")
        reshard = self.get(f"{_FSDP}.reshard_after_forward")
        hybrid = shard is not None and gpus is not None and 1 < shard < gpus
        return {
            "zero": 2 if str(reshard).lower() == "false" else 3,
            "cp": self.whole(*_ULYSSES) or 1,
            "shard": shard if hybrid else 0,
            "recompute": self.hints.recompute or ("full" if again else "none"),
        }

    # --- reinforcement learning -----------------------------------------------------------------

    def rl(self, trainer: Mapping[str, Any]) -> RlFound | None:
        """Engine, batch and algorithm; None if too little is known."""
        each = self.whole(f"{_ROLLOUT}.n")
        batch = self._batch()
        if batch is None or each is None:
            return None
        prompts, minibatches, staleness = batch
        algorithm = self._algorithm()
        limit, reading = self._token_limits()
        return RlFound(
            framework="verl",
            algorithm=algorithm,
            prompts=prompts,
            samples_per_prompt=each,
            engine=self._engine(),
            minibatches=minibatches,
            epochs=self.whole(f"{_ACTOR}.ppo_epochs") or 1,
            prompt_limit=self.whole("data.max_prompt_length"),
            response_limit=self.whole("data.max_response_length"),
            token_limit=limit,
            token_limit_read=reading,
            padded=limit is None and not self.flag(f"{_MODEL}.use_remove_padding"),
            placement="separate" if self.separate else "colocated",
            staleness=staleness,
            streams=self._streams(),
            trainer_gpus=self.trainer_gpus(),
            reference=self.reference(
                trainer,
                self.flag(f"{_ACTOR}.use_kl_loss") or self.flag("algorithm.use_kl_in_reward"),
                (f"{_REF}.fsdp_config.param_offload", f"{_REF}.megatron.param_offload"),
            ),
            critic=self._critic(algorithm, trainer),
            reward=self._reward(),
            old_logprobs=not self._bypasses(),
            fused_rotary=self.flag(f"{_MEGATRON}.override_transformer_config.apply_rope_fusion"),
            leaves=self._leaves(),
        )

    def _streams(self) -> bool:
        """Whether unfinished answers continue after the weights are updated."""
        key = f"{_ASYNC}.partial_rollout"
        stated = self.settings.stated(key) is not None
        return self.flag(key) and (stated or bool(_FULLY.search(self.program)))

    def _batch(self) -> tuple[int, int, int] | None:
        """(prompts per step, optimizer steps over them, updates by which samples lag behind); None
        if unknown."""
        mini = self.whole(_MINI)
        if mini is None:
            return None
        if _FULLY.search(self.program) or f"{_ASYNC}.require_batches" in self.settings.settings:
            between = self.whole(f"{_ASYNC}.trigger_parameter_sync_step") or 1
            updates = between * (self.whole(f"{_ASYNC}.require_batches") or 1)
            behind = math.ceil(self.number(f"{_ASYNC}.staleness_threshold"))
            return updates * mini, updates, behind
        prompts = self.whole("data.train_batch_size")
        if prompts is None:
            return None
        steps, behind = -(-prompts // mini), 1 if self.separate else 0
        if self.trainer_mode == "separate_async":
            between = self.whole("trainer.v1.separate_async.parameter_sync_step") or 1
            return prompts * between, steps * between, 1
        if self.trainer_mode == "colocate_async":
            why = "samples of the previous step complete a step: less time than predicted"
            self.left_out(why, "trainer.v1.trainer_mode")
        return prompts, steps, behind

    def _token_limits(self) -> tuple[int | None, int | None]:
        """Tokens of a micro-batch in training, and of one in a forward pass for log-probabilities,
        summed over the ranks that share a sample. None if micro-batches are counted in samples."""
        if not self.flag(f"{_ACTOR}.use_dynamic_bsz"):
            return None, None
        divides = (f"{_MEGATRON}.context_parallel_size",) if self.is_megatron else _ULYSSES
        ranks = self.whole(*divides) or 1
        limit = self.whole(f"{_ACTOR}.ppo_max_token_len_per_gpu")
        reading = self.whole(f"{_ROLLOUT}.log_prob_max_token_len_per_gpu")
        return (limit and limit * ranks), (reading and reading * ranks)

    def _algorithm(self) -> str:
        if self.text(f"{_ACTOR}.policy_loss.loss_mode") == "gspo":
            return "gspo"
        key = "algorithm.adv_estimator"
        if self.text(key) == "remax":
            self.left_out(
                "each prompt has one additional greedy answer: more time than predicted", key
            )
        return self.algorithm(key, "gae", "algorithm.filter_groups.enable")

    def _critic(self, algorithm: str, trainer: Mapping[str, Any]) -> str | None:
        if algorithm != "ppo":
            return None
        key = "critic.model.path"
        stated = self.settings.stated(key)
        return self.known(self.text(key), key) if stated else trainer["model"]

    def _reward(self) -> str:
        if not self.flag(*_REWARD_ON):
            return ""
        return self.known(self.text(*_REWARD_PATH), *_REWARD_PATH) or ""

    def _bypasses(self) -> bool:
        """Whether verl uses the log-probabilities that the engine computed while it sampled, and
        does not compute them again with the policy. By default true only for verl's programs that
        train while the engine samples."""
        key = "algorithm.rollout_correction.bypass_mode"
        return self.flag(key) if self.settings.stated(key) else self._is_async

    def _leaves(self) -> bool:
        """Whether the trainer's weights and optimizer states are both moved to the host while the
        engine samples."""
        table = _MEGATRON if self.is_megatron else _FSDP
        return self.flag(f"{table}.param_offload") and self.flag(f"{table}.optimizer_offload")

    def _engine(self) -> EngineFound:
        key = f"{_ROLLOUT}.name"
        name = self.text(key) if self.settings.stated(key) else "vllm"
        return self.engine_set(
            self.engine_named(name, ("vllm", "sglang"), key),
            gpus=self.rollout_gpus(),
            weights=self._weights(),
            way=_WAYS.get(self.text(_WAY), "") if self.separate else "",
        )

    def _weights(self) -> str:
        for key in (f"{_ACTOR}.qat.enable", f"{_FSDP}.qat.enable", f"{_MEGATRON}.qat.enable"):
            if self.flag(key):
                self.unpredictable("quantisation-aware training is not modelled", key)
                return "bf16"
        return self.precision(f"{_ROLLOUT}.quantization")

    def _mbs(self) -> int:
        """Samples in a rank's micro-batch; 1 if micro-batches are counted in tokens. The older
        setting counts the samples of all ranks."""
        if self.hints.mbs is not None or self.flag(f"{_ACTOR}.use_dynamic_bsz"):
            return self.hints.mbs or 1
        new, old = self.places["mbs"]
        if (number := self.whole(new)) is not None:
            return number
        whole, gpus = self.whole(old), self.trainer_gpus()
        return 1 if whole is None or gpus is None else max(1, whole // gpus)
