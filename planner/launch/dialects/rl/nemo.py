"""Reader of NeMo-RL: a YAML that inherits from others, and Hydra's overrides on its command.

Keys and defaults: NeMo-RL 7ea279ab, examples/configs/grpo_math_1B.yaml. `defaults` names one or
more files beside the YAML, which are read first (nemo_rl/utils/config.py). If a missing file has
the name of the base configuration, the base configuration is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.job.quantities import stated
from planner.job.rl.spec import ReferenceHome
from planner.launch.dialects.rl.common import RlReader
from planner.launch.dialects.rl.hydra import overrides, paths_given
from planner.launch.dialects.rl.settings import RlSettings, defaults
from planner.launch.languages.text import Files, Text
from planner.launch.read.beside import source_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Source, yaml_document
from planner.launch.read.found import Found, Hints, Problem, Setting
from planner.launch.read.opened import Opened
from planner.launch.read.rl_found import EngineFound, RlFound

_PROGRAM = re.compile(r"(^|/)run_(\w+_)?(grpo|ppo|rlvr)\w*\.py$|(^|/)run_grpo_nemo_gym\.py$")
# The configuration of a command that names none (examples/run_grpo.py).
BASE = "grpo_math_1B.yaml"
_MOST_BASES = 16
# How new weights are transferred, by `refit_transport`.
_WAYS = {"nccl_reshard": "reshard", "vllm_zmq_sparse": "delta", "vllm_s3_sparse": "delta"}
_POLICY, _GENERATION = "policy", "policy.generation"
_VLLM, _APART = f"{_GENERATION}.vllm_cfg", f"{_GENERATION}.colocated"
_MEGATRON, _DTENSOR = f"{_POLICY}.megatron_cfg", f"{_POLICY}.dtensor_cfg"
_ASYNC, _PACK = "grpo.async_grpo", f"{_POLICY}.sequence_packing"
_MUL = re.compile(r"\$\{mul:\s*(.+?)\s*,\s*(.+?)\s*\}$")


def is_nemo(launch: LaunchCommand) -> bool:
    """Whether a command starts NeMo-RL."""
    if not _PROGRAM.search(launch.program):
        return False
    given = {word.text.value.lstrip("+~").split(".")[0] for word in launch.arguments}
    return (
        "--config" in given
        or bool({"grpo", "policy", "cluster"} & given)
        or ("examples/" in launch.program)
    )


def is_nemo_table(content: Mapping[str, object]) -> bool:
    """Whether a table is a NeMo-RL configuration with a policy that generates samples."""
    policy = content.get("policy")
    if not isinstance(policy, dict):
        return False
    inherits = isinstance(content.get("defaults"), str | list)
    is_rl = {"grpo", "ppo", "loss_fn"} & content.keys()
    own = {"megatron_cfg", "dtensor_cfg", "generation", "model_name"} & policy.keys()
    return bool(own) and bool(is_rl or (inherits and "generation" in policy))


def read_command(launch: LaunchCommand, read: Opened, hints: Hints) -> Found:
    """The launch that a command describes, with the YAML that it names."""
    named = paths_given(launch, "config").get("config")
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    path = launch.command.file
    if named is not None:
        name = str(named.value or named.unknown)
        file = next(
            (one for key, one in read.files.by_path.items() if Path(key).name == Path(name).name),
            None,
        ) or source_beside(name, launch.folder, read.files)
        if file is None and Path(name).name != BASE:
            text = f"NeMo-RL's {name} is not beside the script"
            problems.append(Problem("unresolved", text, "missing", (named.place,), "give it too"))
        elif file is not None:
            path = file.path
            text_of_file = file.as_text()
            settings = dict(_inherited(text_of_file, path, read.files, hints, problems))
    return _found(settings | overrides(launch), path, launch, hints, problems)


def read_table(source: Source) -> Found:
    """The launch that a YAML describes."""
    problems: list[Problem] = []
    settings = dict(_inherited(source.text, source.path, source.files, source.hints, problems))
    if source.launch is not None:
        settings |= overrides(source.launch)
    return _found(settings, source.path, source.launch, source.hints, problems)


def _found(
    settings: dict[str, Setting],
    path: str,
    launch: LaunchCommand | None,
    hints: Hints,
    problems: list[Problem],
) -> Found:
    read = RlSettings(settings, defaults("nemo"), problems=problems)
    return NemoReader(read, path, launch, hints).found()


def _inherited(
    text: Text, path: str, files: Files, hints: Hints, problems: list[Problem], depth: int = 0
) -> Iterator[tuple[str, Setting]]:
    """First the settings of the files that this file inherits from, then its own, which override
    them. A base file that is missing adds to `problems`, unless it is the base configuration."""
    document = yaml_document(text, path, fill=False)
    bases = document.settings.get("defaults")
    listed = (
        [] if bases is None else bases.value if isinstance(bases.value, list) else [bases.value]
    )
    for name in map(str, listed if depth < _MOST_BASES else ()):
        file = source_beside(name, Path(path).parent, files)
        if file is not None:
            yield from _inherited(file.as_text(), file.path, files, hints, problems, depth + 1)
        elif Path(name).name != BASE and bases is not None:
            why = f"{path} inherits from {name}, which is not beside it"
            problems.append(Problem("unresolved", why, "missing", (bases.place,), "give it too"))
    yield from ((key, one) for key, one in document.settings.items() if key != "defaults")


class NemoReader(RlReader):
    """Reads a launch from NeMo-RL's settings."""

    name = "nemo-rl"

    @property
    def is_megatron(self) -> bool:
        """Whether the trainer is Megatron."""
        return self.flag(f"{_MEGATRON}.enabled")

    @property
    def separate(self) -> bool:
        """Whether generation has its own GPUs."""
        return not self.flag(f"{_APART}.enabled")

    def _gpus(self) -> tuple[int, int] | None:
        """(GPUs that train, GPUs that sample), as NeMo-RL divides them (grpo.py, setup). Both are
        all GPUs if generation has none of its own; None if the size of the cluster is unknown."""
        nodes, each = self.whole("cluster.num_nodes"), self.whole("cluster.gpus_per_node")
        if nodes is None or each is None:
            return None
        if not self.separate:
            return nodes * each, nodes * each
        own = self.whole(f"{_APART}.resources.gpus_per_node") or 0
        if nodes == 1:
            return max(1, each - own), own
        apart = (self.whole(f"{_APART}.resources.num_nodes") or 0) * (own or each)
        return max(1, nodes * each - apart), apart

    def trainer(self) -> Mapping[str, Any]:
        """Degrees, precision and recomputation, by field of `Found`."""
        mbs = self.hints.mbs or self.whole(*self.places["mbs"]) or 1
        return {
            "framework": "megatron-bridge" if self.is_megatron else "automodel",
            "world": self.product(*self.places["world"]),
            "mbs": 1 if self._bin() else mbs,
            **(self._megatron() if self.is_megatron else self._dtensor()),
        }

    def _sizes(self, table: str) -> dict[str, Any]:
        return {name: size or 1 for name, size in self.degrees(table).items()}

    def _megatron(self) -> dict[str, Any]:
        again = self.flag(f"{_MEGATRON}.activation_checkpointing")
        granularity = self.text(f"{_MEGATRON}.recompute_granularity") or "full"
        offload, share = f"{_MEGATRON}.optimizer.optimizer", 0.0
        if self.flag(f"{offload}_cpu_offload"):
            share = stated(self.number(f"{offload}_offload_fraction"), 1.0)
        in_fp32 = self.flag(f"{_MEGATRON}.distributed_data_parallel_config.grad_reduce_in_fp32")
        fp8 = self.flag(f"{_MEGATRON}.fp8_cfg.enabled")
        return self._sizes("megatron_cfg") | {
            **({"precision": "fp8"} if fp8 else {}),
            "zero": 1,
            "variations": ("no-bf16-gradients" if in_fp32 else "bf16-gradients",),
            "recompute": self.hints.recompute or (granularity if again else "none"),
            "optimizer_offload": min(1.0, share),
            "train": self._adapters(f"{_MEGATRON}.peft"),
        }

    def _dtensor(self) -> dict[str, Any]:
        again = self.flag(f"{_DTENSOR}.activation_checkpointing")
        return self._sizes("dtensor_cfg") | {
            "zero": 3,
            "recompute": self.hints.recompute or ("full" if again else "none"),
            "train": self._adapters(f"{_DTENSOR}.lora_cfg"),
        }

    def _adapters(self, table: str) -> str:
        rank = self.whole(f"{table}.dim") or 8
        return f"lora:rank={rank},targets=all-linear" if self.flag(f"{table}.enabled") else "full"

    # --- reinforcement learning -----------------------------------------------------------------

    def rl(self, trainer: Mapping[str, Any]) -> RlFound | None:
        """Engine, batch and algorithm; None if too little is known."""
        prompts = self.whole("grpo.num_prompts_per_step", "ppo.num_prompts_per_step")
        each = self.whole("grpo.num_generations_per_prompt", "ppo.num_generations_per_prompt")
        batch, gpus = self.whole(f"{_POLICY}.train_global_batch_size"), self._gpus()
        if prompts is None or each is None or batch is None or gpus is None:
            return None
        longest = self.whole(f"{_POLICY}.max_total_sequence_length")
        answer = min(
            self.whole(f"{_GENERATION}.max_new_tokens") or longest or 1, (longest or 2) - 1
        )
        algorithm = self._algorithm()
        is_async = self.flag(f"{_ASYNC}.enabled")
        age = self.whole(f"{_ASYNC}.max_trajectory_age_steps") or 1
        return RlFound(
            framework="nemo-rl",
            algorithm=algorithm,
            prompts=prompts,
            samples_per_prompt=each,
            engine=self._engine(gpus[1]),
            minibatches=max(1, prompts * each // batch),
            prompt_limit=None if longest is None else max(1, longest - answer),
            response_limit=None if longest is None else answer,
            token_limit=self._bin(),
            token_limit_read=self._bin("logprob"),
            padded=self._bin() is None,
            placement="separate" if self.separate else "colocated",
            staleness=age if is_async else 0,
            streams=is_async and self.flag(f"{_ASYNC}.in_flight_weight_updates"),
            trainer_gpus=gpus[0],
            reference=self._reference(),
            critic=trainer["model"] if algorithm == "ppo" else None,
            old_logprobs=not self.flag("loss_fn.force_on_policy_ratio"),
        )

    def _algorithm(self) -> str:
        if any(key.startswith("ppo.") for key in self.settings.settings):
            return "ppo"
        if self.flag("loss_fn.sequence_level_importance_ratios"):
            return "gspo"
        return self.algorithm("grpo.adv_estimator.name", "grpo", "grpo.use_dynamic_sampling")

    def _reference(self) -> ReferenceHome:
        key = "loss_fn.reference_policy_kl_penalty"
        skips = self.flag("grpo.skip_reference_policy_logprobs_calculation")
        return "none" if skips or self.number(key) == 0.0 else "host"

    def _bin(self, kind: str = "train") -> int | None:
        """Tokens of a packed or dynamic micro-batch; None if micro-batches are counted in samples
        or the number is unknown. `kind`: the prefix of its key, such as `train`."""
        table = next(
            (one for one in (_PACK, f"{_POLICY}.dynamic_batching") if self.flag(f"{one}.enabled")),
            None,
        )
        if table is None:
            return None
        key = f"{table}.{kind}_mb_tokens"
        value = self.get(key)
        if isinstance(value, str) and (product := _MUL.fullmatch(value)):
            parts = [self._factor(part) for part in product.groups()]
            return None if None in parts else (parts[0] or 1) * (parts[1] or 1)
        return self.whole(key)

    def _factor(self, text: str) -> int | None:
        """The value of one factor of a product: a number, or `${KEY}` for the value of another
        setting. None if it is unknown."""
        if named := re.fullmatch(r"\$\{([\w.]+)\}", text):
            return self.whole(named[1])
        return int(text) if text.isdigit() else None

    def _engine(self, gpus: int) -> EngineFound:
        backend = self.text(f"{_GENERATION}.backend") or "vllm"
        name = self.engine_named(backend, ("vllm", "sglang"), f"{_GENERATION}.backend")
        if name == "sglang":
            return self.engine_set(name, "nemo-rl-sglang", gpus=gpus or None)
        way = self.text(f"{_GENERATION}.refit_transport") if self.separate else ""
        found = self.engine_set(
            name, gpus=gpus or None, weights=self._weights(), way=_WAYS.get(way, "")
        )
        return replace(found, dp=max(1, found.ep // found.tp))

    def _weights(self) -> str:
        key = f"{_VLLM}.precision"
        return self.precision(key) if self.settings.stated(key) else "bf16"
