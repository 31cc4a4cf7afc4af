"""Reader of OpenRLHF: options of train_ppo_ray, written with dots or, in older releases, with
underscores.

Source of options and defaults: OpenRLHF 3c3be62, openrlhf/cli/train_ppo_ray.py; of their use:
openrlhf/trainer/ray. The GPUs of roles that are not colocated add up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.launch.dialects.rl.common import RlReader, words
from planner.launch.dialects.rl.hydra import paths_given
from planner.launch.dialects.rl.settings import RlSettings, defaults
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Found, Hints
from planner.launch.read.opened import Opened
from planner.launch.read.rl_found import RlFound

_PROGRAM = re.compile(r"(^|[./])train_ppo(_ray)?(\.py)?$|openrlhf[./]cli[./]train_(ppo|grpo)")
_PATHS = ("pretrain", "actor.model_name_or_path", "reward_pretrain", "reward.model_name_or_path",
          "critic_pretrain", "critic.model_name_or_path")  # fmt: skip
_LAST_STAGE = 3
_ENGINES, _AGENT = "vllm.num_engines", "train.agent_func_path"


def is_openrlhf(launch: LaunchCommand) -> bool:
    """Whether a command takes OpenRLHF's options."""
    named = _PROGRAM.search(launch.program) is not None
    signs = {"rollout_batch_size", "rollout.batch_size", "n_samples_per_prompt", "vllm_num_engines",
             "vllm.num_engines", "micro_rollout_batch_size", "actor_num_nodes",
             "actor.num_nodes"}  # fmt: skip
    return (named and "openrlhf" in launch.program) or len(signs & launch.given.keys()) >= 3


def read_command(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch that a command's options describe."""
    del read
    names = words("renamed.openrlhf")
    settings = {}
    for name, setting in paths_given(launch, *_PATHS).items():
        key = names.get(name, name)
        settings[key] = replace(setting, key=f"--{key if '.' in name else name}")
    return OpenRlhfReader(
        RlSettings(settings, defaults("openrlhf")), launch.command.file, launch, hints
    ).found()


class OpenRlhfReader(RlReader):
    """Reads a launch from OpenRLHF's options."""

    name = "openrlhf"

    def _gpus_of(self, role: str) -> int:
        """The number of GPUs of a role, such as `ref`: nodes times GPUs per node. A number that is
        not stated counts as 1 node or 8 GPUs."""
        nodes = self.whole(f"{role}.num_nodes", least=0)
        each = self.whole(f"{role}.num_gpus_per_node", least=0)
        return (1 if nodes is None else nodes) * (8 if each is None else each)

    @property
    def is_ray(self) -> bool:
        """Whether the launch starts the Ray program, in which each role is a Ray actor; also if no
        command is known."""
        return self.launch is None or "ray" in self.launch.program

    @property
    def is_async(self) -> bool:
        """Whether samples are generated while the trainer trains."""
        return self.flag("train.async_enable")

    @property
    def separate(self) -> bool:
        """Whether engines have their own GPUs."""
        together = self.flag("train.colocate_all")
        return self.is_ray and (self.is_async or not together) and self._engines() > 0

    def _engines(self) -> int:
        return self.whole(_ENGINES, least=0) or 0

    @property
    def algorithm_read(self) -> str:
        """The algorithm that the options name."""
        if self.text("actor.policy_loss_type") == "gspo":
            return "gspo"
        return self.algorithm("algo.advantage.estimator", "gae", "algo.dynamic_filtering_enable")

    def _others(self) -> int:
        """The number of GPUs that the reference, critic and reward models have for themselves.
        Roles that share the GPUs of another count 0."""
        if self.flag("train.colocate_all"):
            return 0
        others = 0
        if self._has_reference() and not self.flag("train.colocate_actor_ref"):
            others += self._gpus_of("ref")
        critic = self.algorithm_read == "ppo"
        reward = bool(self.text("reward.model_name_or_path")) and not self._judged_elsewhere()
        shared = self.flag("train.colocate_critic_reward")
        others += self._gpus_of("critic") if critic else 0
        return others + (self._gpus_of("reward") if reward and not (critic and shared) else 0)

    def _has_reference(self) -> bool:
        return self.number("algo.kl.init_coef") > 0

    def trainer(self) -> Mapping[str, Any]:
        """Degrees, precision and recomputation, by field of `Found`."""
        gpus = self._gpus_of("actor")
        engines = self._engine_gpus() if self.separate else 0
        if self._others():
            self.left_out("roles with their own GPUs are costed on the trainer's GPUs",
                          "ref.num_nodes", "critic.num_nodes", "reward.num_nodes")  # fmt: skip
        mbs = self.hints.mbs or self.whole(*self.places["mbs"]) or 1
        again = self.flag("actor.gradient_checkpointing_enable")
        return {
            "framework": "deepspeed",
            "world": gpus + engines + self._others(),
            "zero": self._stage(),
            "mbs": 1 if self._limit() else mbs,
            "recompute": self.hints.recompute or ("full" if again else "none"),
            "optimizer_offload": float(self.flag("ds.adam_offload")),
            "train": self.adapters("ds.lora.rank"),
        }

    def _stage(self) -> int:
        """The ZeRO stage; a stage above 3 is a problem."""
        stage = self.whole("ds.zero_stage", least=0) or 0
        if stage > _LAST_STAGE:
            text = f"--ds.zero_stage {stage}: ZeRO has stages 0 to {_LAST_STAGE}"
            self.problems.append(self.settings.problem("option-value", text, "ds.zero_stage"))
        return min(stage, _LAST_STAGE)

    def _engine_gpus(self) -> int:
        return self._engines() * (self.whole("vllm.tensor_parallel_size") or 1)

    def _limit(self, whose: str = "train") -> int | None:
        if not self.flag("train.dynamic_batch_enable"):
            return None
        ring = self.whole("ds.ring_attn_size") or 1
        limit = self.whole(f"{whose}.max_tokens_per_gpu") or self.whole("train.max_tokens_per_gpu")
        if limit is None:
            return None
        # A longer sample becomes a micro-batch by itself (openrlhf/utils/seqlen_balancing.py).
        return max(limit * ring, self.longest_stated() or 0)

    def rl(self, trainer: Mapping[str, Any]) -> RlFound | None:
        """Engine, batch and algorithm; None if too little is known."""
        prompts = self.whole("rollout.batch_size")
        each = self.whole("rollout.n_samples_per_prompt") or 1
        batch = self.whole("train.batch_size")
        if prompts is None or batch is None:
            return None
        if self._engines() == 0:
            text = "answers that transformers generates, without vLLM, are not modelled"
            self.unpredictable(text, _ENGINES)
        longest = self.whole("data.max_len") or 0
        prompt = self.whole("data.prompt_max_len")
        answer = self.whole("rollout.max_new_tokens")
        if prompt is None and answer is not None and longest > answer:
            prompt = longest - answer
        if answer is None and longest:
            answer = longest - (prompt or 0)
        algorithm = self.algorithm_read
        return RlFound(
            framework="openrlhf",
            algorithm=algorithm,
            prompts=prompts,
            samples_per_prompt=each,
            engine=self.engine_set("vllm", gpus=self._engine_gpus() or None),
            minibatches=max(1, prompts * each // batch),
            epochs=self.whole("train.max_epochs") or 1,
            prompt_limit=prompt or (answer and 1),
            response_limit=answer,
            token_limit=self._limit(),
            token_limit_read=self._limit("rollout"),
            padded=self._limit() is None and not self.flag("ds.packing_samples"),
            placement="separate" if self.separate else "colocated",
            staleness=(self.whole("train.async_queue_size") or 1) if self.is_async else 0,
            streams=self.flag("train.partial_rollout_enable"),
            trainer_gpus=self._gpus_of("actor"),
            reference=self.reference(trainer, self._has_reference(), ("ref.offload",)),
            critic=self._critic(algorithm, trainer),
            reward=self._reward(),
            leaves=self.flag("ds.enable_sleep"),
        )

    def _critic(self, algorithm: str, trainer: Mapping[str, Any]) -> str | None:
        if algorithm != "ppo":
            return None
        for key in ("critic.model_name_or_path", "reward.model_name_or_path"):
            if named := self.text(key).split(",")[0]:
                return self.known(named, key)
        return str(trainer["model"]) if trainer["model"] else None

    def _judged_elsewhere(self) -> bool:
        """Whether a server or an agent program gives the rewards, outside the launch's GPUs."""
        stated = (self.settings.stated(key) for key in ("reward.remote_url", _AGENT))
        return any(one is not None and (one.unknown or one.value) for one in stated)

    def _reward(self) -> str:
        key = "reward.model_name_or_path"
        if self._judged_elsewhere():
            return ""
        named = self.text(key).split(",")[0]
        return (self.known(named, key) or "") if named else ""
