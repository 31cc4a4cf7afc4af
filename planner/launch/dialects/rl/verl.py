"""Reader of verl: Hydra's overrides on a command line, or a YAML with its tables.

Keys and defaults: verl 1dda039b, verl/trainer/config; what is done with them:
verl/trainer/ppo/ray_trainer.py, verl/workers/engine_workers.py. Older spellings as in releases
since 0.2. A step is from one transfer of weights to the next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from planner.job.quantities import stated
from planner.job.rl.frameworks import find_rl_framework
from planner.job.rl.spec import ReferenceHome
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
_MICRO = (f"{_ACTOR}.ppo_micro_batch_size_per_gpu", f"{_ACTOR}.ppo_micro_batch_size")
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
# Programs beside verl's that train, or place, otherwise.
_OTHER = re.compile(r"main_\w*?(gkd|opd|split|spin|sppo|flow|dpo|eval|generation)\w*")
_ONE_STEP, _FULLY = re.compile("one_step_off"), re.compile("fully_async")


def is_verl(launch: LaunchCommand) -> bool:
    """Whether a command takes verl's settings."""
    own = (word.text.value.lstrip("+~").startswith("actor_rollout_ref.") for word in
           launch.arguments)  # fmt: skip
    named = _MODULE.search(launch.program) and _ENTRY.search(launch.program)
    return any(own) or bool(named)


def is_verl_table(content: Mapping[str, object]) -> bool:
    """Whether a table is verl's."""
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
    """What is gathered from verl's settings."""

    framework, format, rules = "verl", "verl", "verl"
    places: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model": (f"{_MODEL}.path",),
        "tp": (f"{_MEGATRON}.tensor_model_parallel_size",),
        "pp": (f"{_MEGATRON}.pipeline_model_parallel_size",),
        "cp": (f"{_MEGATRON}.context_parallel_size",),
        "ep": (f"{_MEGATRON}.expert_model_parallel_size",),
        "mbs": _MICRO,
        "world": ("trainer.nnodes", "trainer.n_gpus_per_node"),
    }  # fmt: skip

    def named_model(self) -> str:
        """The folder or name of the policy."""
        return self.text(f"{_MODEL}.path")

    def positions(self) -> int | None:
        """Positions that the settings give the model in place of its own."""
        stated = self.whole(f"{_MODEL}.override_config.max_position_embeddings")
        scaled = any("rope_scaling" in key or "rope_parameters" in key or "hf_overrides" in key
                     for key in self.settings.settings)  # fmt: skip
        longest = self.whole("data.max_prompt_length"), self.whole("data.max_response_length")
        return stated or (sum(one or 0 for one in longest) if scaled else None)

    def longest_stated(self) -> int | None:
        """Prompt and answer together."""
        prompt = self.whole("data.max_prompt_length")
        answer = self.whole("data.max_response_length")
        return None if prompt is None or answer is None else prompt + answer

    @property
    def is_own_program(self) -> bool:
        """A program of verl's, or none."""
        return not self.program or bool(_MODULE.search(self.program) or "main_ppo" in self.program)

    # --- where it runs --------------------------------------------------------------------------

    @property
    def program(self) -> str:
        """The program that is started."""
        return "" if self.launch is None else self.launch.program

    @property
    def strategy(self) -> str:
        """The trainer, by verl's word."""
        group = self.text(f"actor@{_ACTOR}").removesuffix("_actor")
        if group not in ("", "dp"):
            return group
        config = self.text("model_engine") or str(self._config_name())
        by_config = next((one for one in ("megatron", "veomni", "torchtitan", "automodel")
                          if one in config), "")  # fmt: skip
        named = self.settings.stated(f"{_ACTOR}.strategy", f"{_FSDP}.strategy")
        stated = self.text(f"{_ACTOR}.strategy", f"{_FSDP}.strategy") if named else ""
        if not stated and not by_config:
            tables = {key.split(".")[2] for key in self.settings.settings
                      if key.startswith(f"{_ACTOR}.")}  # fmt: skip
            by_config = "megatron" if "megatron" in tables and "fsdp_config" not in tables else ""
        return stated or by_config or "fsdp"

    def _config_name(self) -> object:
        given = {} if self.launch is None else self.launch.given
        return given["config_name"].value if "config_name" in given else ""

    @property
    def separate(self) -> bool:
        """Whether engine and trainer have GPUs of their own."""
        by_program = _ONE_STEP.search(self.program) or _FULLY.search(self.program)
        return bool(by_program or self._is_told_apart or self.trainer_mode == "separate_async")

    @property
    def _is_told_apart(self) -> bool:
        return any(
            key in self.settings.settings for key in ("rollout.nnodes", f"{_ASYNC}.require_batches")
        )

    @property
    def trainer_mode(self) -> str:
        """How verl's newer trainer takes turns."""
        key = "trainer.v1.trainer_mode"
        return self.text(key) if self.settings.stated(key) else "sync"

    def trainer_gpus(self) -> int | None:
        """GPUs that train."""
        nodes, each = self.whole("trainer.nnodes"), self.whole("trainer.n_gpus_per_node")
        return None if nodes is None or each is None else nodes * each

    def rollout_gpus(self) -> int | None:
        """GPUs that sample."""
        if not self.separate:
            return self.trainer_gpus()
        own = _ROLLOUT if self.trainer_mode == "separate_async" else "rollout"
        nodes, each = self.whole(f"{own}.nnodes"), self.whole(f"{own}.n_gpus_per_node")
        return None if nodes is None or each is None else nodes * each

    # --- the trainer ----------------------------------------------------------------------------

    def trainer(self) -> Mapping[str, Any]:
        """Degrees, precision, recomputation, as `Found` has them."""
        self._other_runs()
        strategy, trainers = self.strategy, find_rl_framework("verl").trainers
        if strategy not in trainers:
            what = words("not_costed.verl").get(strategy, f"the trainer {strategy}")
            self.unpredictable(f"{what} is not modelled", f"{_ACTOR}.strategy", "model_engine")
        profile = trainers.get(strategy, trainers["fsdp2"])
        gpus = self.trainer_gpus()
        own = self._megatron() if strategy == "megatron" else self._fsdp(gpus)
        world = None
        if gpus is not None:
            rollout = self.rollout_gpus() if self.separate else 0
            world = None if rollout is None else gpus + rollout
        return {
            "framework": profile,
            "world": world,
            "train": self._adapters(),
            "mbs": self._mbs(),
            **own,
        }

    def _other_runs(self) -> None:
        """What verl's programs do beside training on rewards."""
        if other := _OTHER.search(self.program):
            text = f"{self.program} is a program of its own ({other[1]}), which is not modelled"
            self.problems.append(not_predictable(text))
        if self.flag("distillation.enabled"):
            text = "distillation on the policy's own samples is not modelled"
            self.unpredictable(text, "distillation.enabled")
        if self.flag("trainer.val_only"):
            text = "trainer.val_only: it evaluates, and trains nothing"
            self.unpredictable(text, "trainer.val_only")

    def _megatron(self) -> dict[str, Any]:
        size = {
            name: self.whole(f"{_MEGATRON}.{key}")
            for name, key in (
                ("tp", "tensor_model_parallel_size"),
                ("pp", "pipeline_model_parallel_size"),
                ("vpp", "virtual_pipeline_model_parallel_size"),
                ("cp", "context_parallel_size"),
                ("ep", "expert_model_parallel_size"),
                ("etp", "expert_tensor_parallel_size"),
            )
        }
        found: dict[str, Any] = {name: value for name, value in size.items() if value is not None}
        granularity = self.text(f"{_RECOMPUTE}_granularity")
        modes = {"full": "full", "selective": "selective", "": "none"}
        if granularity not in modes:
            self.unpredictable(
                f"recompute_granularity {granularity} is not modelled", f"{_RECOMPUTE}_granularity"
            )
        if self.flag(f"{_MEGATRON}.use_megatron_fsdp"):
            self.unpredictable(
                "Megatron-FSDP under verl is not modelled", f"{_MEGATRON}.use_megatron_fsdp"
            )
        self._split()
        share = 0.0
        if self.flag(f"{_OFFLOAD}.optimizer_cpu_offload"):
            share = stated(self.share(f"{_OFFLOAD}.optimizer_offload_fraction"), 1.0)
            share = 1.0 if share >= 0.999 else share
        return found | {
            "zero": 1,
            "recompute": self.hints.recompute or modes.get(granularity, "none"),
            "optimizer_offload": share,
        }

    def _split(self) -> None:
        """Layers that the first and last stages have otherwise."""
        for name in ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
                     "pipeline_model_parallel_layout"):  # fmt: skip
            key = f"{_MEGATRON}.override_transformer_config.{name}"
            if self.settings.stated(key) is not None and self.get(key) is not None:
                self.left_out("stages have other numbers of layers than predicted", key)

    def _fsdp(self, gpus: int | None) -> dict[str, Any]:
        shard = self.whole(f"{_FSDP}.fsdp_size")
        if self.flag(f"{_FSDP}.offload_policy"):
            self.unpredictable(
                "FSDP2's own offload to the host is not modelled", f"{_FSDP}.offload_policy"
            )
        again = self.flag(f"{_MODEL}.enable_gradient_checkpointing")
        reshard = self.get(f"{_FSDP}.reshard_after_forward")
        hybrid = shard is not None and gpus is not None and 1 < shard < gpus
        return {
            "zero": 2 if str(reshard).lower() == "false" else 3,
            "cp": self.whole(*_ULYSSES) or 1,
            "shard": shard if hybrid else 0,
            "recompute": self.hints.recompute or ("full" if again else "none"),
        }

    def _adapters(self) -> str:
        rank = self.whole(f"{_MODEL}.lora_rank", least=0) or self.whole(
            f"{_MODEL}.lora.rank", least=0
        )
        return f"lora:rank={rank},targets=all-linear" if rank else "full"

    # --- reinforcement learning -----------------------------------------------------------------

    def rl(self, trainer: Mapping[str, Any]) -> RlFound | None:
        """Everything beside the trainer."""
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
            reference=self._reference(trainer),
            critic=self._critic(algorithm, trainer),
            reward=self._reward(),
            old_logprobs=not self._bypasses(),
            fused_rotary=self.flag(f"{_MEGATRON}.override_transformer_config.apply_rope_fusion"),
            leaves=self._leaves(),
        )

    def _streams(self) -> bool:
        """Whether answers go on over an update."""
        key = f"{_ASYNC}.partial_rollout"
        stated = self.settings.stated(key) is not None
        return self.flag(key) and (stated or bool(_FULLY.search(self.program)))

    def _batch(self) -> tuple[int, int, int] | None:
        """Prompts of a step, optimizer steps over them, and updates by which samples are behind."""
        mini = self.whole(_MINI)
        if mini is None:
            return None
        if _FULLY.search(self.program) or f"{_ASYNC}.require_batches" in self.settings.settings:
            updates = (self.whole(f"{_ASYNC}.trigger_parameter_sync_step") or 1) * (
                self.whole(f"{_ASYNC}.require_batches") or 1
            )
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
            self.left_out(
                "samples of the step before fill up a step: less time than predicted",
                "trainer.v1.trainer_mode",
            )
        return prompts, steps, behind

    def _token_limits(self) -> tuple[int | None, int | None]:
        """Tokens of a micro-batch that trains, and of one that is read: of all ranks among which a
        sample is divided."""
        if not self.flag(f"{_ACTOR}.use_dynamic_bsz"):
            return None, None
        divided = (
            self.whole(f"{_MEGATRON}.context_parallel_size")
            if self.strategy == "megatron"
            else self.whole(*_ULYSSES)
        )
        limit = self.whole(f"{_ACTOR}.ppo_max_token_len_per_gpu")
        reading = self.whole(f"{_ROLLOUT}.log_prob_max_token_len_per_gpu")
        ranks = divided or 1
        return (limit and limit * ranks), (reading and reading * ranks)

    def _algorithm(self) -> str:
        loss, estimator = f"{_ACTOR}.policy_loss.loss_mode", "algorithm.adv_estimator"
        if self.text(loss) == "gspo":
            return "gspo"
        named = self.text(estimator) or "gae"
        if named == "remax":
            self.left_out(
                "each prompt has one more, greedy, answer: more time than predicted", estimator
            )
        found = self.algorithm(named, estimator)
        return "dapo" if found == "grpo" and self.flag("algorithm.filter_groups.enable") else found

    def _reference(self, trainer: Mapping[str, Any]) -> ReferenceHome:
        if not (self.flag(f"{_ACTOR}.use_kl_loss") or self.flag("algorithm.use_kl_in_reward")):
            return "none"
        if trainer["train"] != "full":
            return "adapters-off"
        keys = (f"{_REF}.fsdp_config.param_offload", f"{_REF}.megatron.param_offload")
        return "host" if self.flag(*keys) else "copied"

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
        """Whether the engine's own log-probabilities stand for the policy's."""
        key = "algorithm.rollout_correction.bypass_mode"
        is_async = bool(_FULLY.search(self.program) or _ONE_STEP.search(self.program))
        return self.flag(key) if self.settings.stated(key) else is_async

    def _leaves(self) -> bool:
        """Whether the trainer's weights and states wait on the host while the engine samples."""
        table = _MEGATRON if self.strategy == "megatron" else _FSDP
        return self.flag(f"{table}.param_offload") and self.flag(f"{table}.optimizer_offload")

    def _engine(self) -> EngineFound:
        key = f"{_ROLLOUT}.name"
        name = self.text(key) if self.settings.stated(key) else "vllm"
        tp = self.whole(f"{_ROLLOUT}.tensor_model_parallel_size") or 1
        return EngineFound(
            self.engine_named(name, ("vllm", "sglang"), key),
            tp,
            self.whole(f"{_ROLLOUT}.pipeline_model_parallel_size") or 1,
            self.whole(f"{_ROLLOUT}.data_parallel_size") or 1,
            self.whole(f"{_ROLLOUT}.expert_parallel_size") or 1,
            gpus=self.rollout_gpus(),
            kv_share=self.share(f"{_ROLLOUT}.gpu_memory_utilization"),
            sequences=self.whole(f"{_ROLLOUT}.max_num_seqs"),
            chunk=self.whole(f"{_ROLLOUT}.max_num_batched_tokens"),
            weights=self._weights(),
            graphs=not self.flag(f"{_ROLLOUT}.enforce_eager"),
            way=_WAYS.get(self.text(_WAY), "") if self.separate else "",
        )

    def _weights(self) -> str:
        for key in (f"{_ACTOR}.qat.enable", f"{_FSDP}.qat.enable", f"{_MEGATRON}.qat.enable"):
            if self.flag(key):
                self.unpredictable("training aware of quantisation is not modelled", key)
                return "bf16"
        return self.precision(f"{_ROLLOUT}.quantization")

    def _mbs(self) -> int:
        """Samples of a micro-batch where it counts samples; packed rows are one each."""
        if self.hints.mbs is not None or self.flag(f"{_ACTOR}.use_dynamic_bsz"):
            return self.hints.mbs or 1
        return self.micro_batch() or 1

    def micro_batch(self) -> int | None:
        """Samples of a rank's micro-batch; the older setting counts those of all ranks."""
        new = self.whole(_MICRO[0])
        if new is not None:
            return new
        whole, gpus = self.whole(_MICRO[1]), self.trainer_gpus()
        return None if whole is None or gpus is None else max(1, whole // gpus)
