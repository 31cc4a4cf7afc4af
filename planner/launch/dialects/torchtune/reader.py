"""Reader of torchtune's YAML.

Keys: pytorch/torchtune at bd2a0fc7c, recipes/*.py and recipes/configs. Defaults of adapters:
torchtune/models/llama3_1/_model_builders.py and its neighbours: the layers of `lora_attn_modules`,
MLP and head only on request, rank 8, alpha 16, no dropout. Adapters have the run's format
(torchtune/modules/peft/lora.py); packed weights are NF4 with double quantisation
(torchao/quantization, nf4_tensor.py: blocks of 64, of 256 scales).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.job.errors import CannotTellError
from planner.job.samples import Packing
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import LIMIT_ALONE, DocumentReader, Source, below
from planner.launch.read.found import Found, Hints, Setting, model_unknown
from planner.launch.read.opened import Opened
from planner.launch.registry import dialect_toml
from planner.launch.sentences import said_problems

_NAMES = dialect_toml("torchtune", "names.toml")
_MODELS = [(re.compile(name), known) for name, known in _NAMES["models"].items()]
_WHOSE = re.compile(r"^(lora|qlora|dora|qdora)_")
_TUNED = re.compile(r"(_instruct|_base|_chat|_classifier)+$")
_OTHERS = {
    "vision": "a vision tower", "clip": "a vision tower", "flamingo": "a vision tower",
    "t5": "an encoder", "llama4": "Llama 4 with its vision tower",
}  # fmt: skip
_PRECISIONS = {"bf16": "bf16", "fp32": "fp32"}
_LENGTH = "tokenizer.max_seq_len"


def is_torchtune(content: Mapping[str, object]) -> bool:
    """Whether a table is torchtune's: its components include a model of torchtune."""
    model = content.get("model")
    if not isinstance(model, dict):
        return False
    named = str(model.get("_component_", ""))
    return named.startswith("torchtune.") or ("_component_" in model and "tokenizer" in content)


def is_tune(launch: LaunchCommand) -> bool:
    """Whether a command is `tune run`."""
    return launch.name == "tune"


def read_command(launch: LaunchCommand, _read: Opened, _hints: Hints) -> Found:
    """Always raises CannotTellError, which asks for the configuration that `tune run` names and
    that was not given."""
    config = launch.given.get("config")
    named = "" if config is None else str(config.value or config.unknown)
    if named and not named.endswith((".yaml", ".yml")):
        raise CannotTellError(
            f"{launch.place}: it trains with torchtune's own {named}; copy it out with "
            f"`tune cp {named} .` and give that file too"
        )
    raise CannotTellError(
        f"{launch.place}: it trains with {named or 'a file that it does not name'}; give it too"
    )


def read(source: Source) -> Found:
    """A recipe's file, with overrides from the command."""
    document = source.yaml()
    overrides = {} if source.launch is None else source.launch.overrides
    for key, setting in overrides.items():
        number = digits(str(setting.value))
        value = {"true": True, "false": False}.get(str(setting.value).lower(), setting.value)
        document.override(replace(setting, key=key, value=value if number is None else number), key)
    return TorchtuneReader(document, source).found()


class TorchtuneReader(DocumentReader):
    """The launch described by a torchtune file."""

    called = "torchtune"

    def found(self) -> Found:
        """The launch, with everything that was read from the file, its command and the caller's
        hints."""
        self._demand_training()
        get, builder = self.document.get, self._named("model")
        adapters = _WHOSE.match(builder)
        self._say("refused", adapters=adapters, accumulates=self._accumulates)
        model = self.hints.model or self._model(builder)
        sharding = self._sharding()
        recompute = self._recompute()
        seq, packing = self._length()
        quantizer = str(get("quantizer._component_", ""))
        self._say("quantised", quantizer=quantizer, has=self.document.has)
        train = self._train(builder)
        variations = () if get("compile", False) is True else ("eager-blocks",)
        # Recipes that train adapters ignore it.
        if train == "full" and get("optimizer_in_bwd", False) is True:
            variations = (*variations, "optimizer-in-backward")
        accumulated = self.hints.grad_acc or self.whole("gradient_accumulation_steps", 1)
        offloads = get("enable_activation_offloading", False) is True and recompute == "full"
        return self.gathered(
            lambda _key: True,
            {"mbs": "batch_size", "grad_acc": "gradient_accumulation_steps", "seq": _LENGTH},
            format="torchtune",
            framework="torchtune",
            model=model,
            variations=variations,
            mbs=self.hints.mbs or self.whole("batch_size", 1),
            gbs=self.hints.gbs,
            grad_acc=None if self.hints.gbs else accumulated,
            seq=seq,
            packing=packing,
            recompute=recompute,
            activation_offload="checkpoints" if offloads else "off",
            optimizer=self._optimizer(),
            optimizer_offload=float(get("fsdp_cpu_offload", False) is True),
            precision=self._precision(),
            train=train,
            objective=self._objective(train != "full"),
            **sharding,
        )

    def _say(self, table: str, *at: str, **facts: Any) -> None:
        """Note the problems of a table of `rules.toml`."""
        names = {"get": self.document.get, **facts}
        self.problems += said_problems("torchtune", table, names, self.document, *at)

    def _named(self, table: str) -> str:
        """The last part of the component that a table names: `AdamW` for `torch.optim.AdamW`. Empty
        if it names none."""
        return str(self.document.get(f"{table}._component_", "")).rpartition(".")[2]

    def _accumulates(self) -> bool:
        number = self.document.get("gradient_accumulation_steps", 1)
        return isinstance(number, int) and number > 1

    def _demand_training(self) -> None:
        """CannotTellError for a configuration that does not train."""
        if not self.document.has("optimizer") and not self.document.has("optimizers"):
            raise CannotTellError(
                f"{self.document.path}: a torchtune configuration without an optimizer, which "
                "trains nothing"
            )

    # --- the model and its adapters -----------------------------------------------------------

    def _model(self, builder: str) -> str | None:
        plain = _TUNED.sub("", _WHOSE.sub("", builder))
        for word, what in _OTHERS.items():
            if word in builder:
                self._say("other_model", builder=builder, what=what)
                return None
        for pattern, known in _MODELS:
            if match := pattern.fullmatch(plain):
                return match.expand(known)
        text = f"no model of the catalogue is torchtune's {builder or 'model'}"
        place = self.document.place("model._component_")
        self.problems.append(model_unknown(text, place, "--model CONFIG.json or a known name"))
        return None

    def _train(self, builder: str) -> str:
        """The value of `--train`, from the builder and its settings."""
        way = _WHOSE.match(builder)
        packed = self.document.get("model.quantize_base", False) is True
        packed |= way is not None and way[1] in ("qlora", "qdora")
        if way is None and "lora_rank" not in below(self.document.settings, "model"):
            return "full"
        dora = self.document.get("model.use_dora", False) is True or "dora" in builder
        method = "dora" if dora else "qlora" if packed else "lora"
        dropout = self.share("model.lora_dropout", 0.0)
        said = {
            "rank": str(self.whole("model.lora_rank", 8)),
            "alpha": f"{self.document.get('model.lora_alpha', 16)}",
            "targets": "+".join(self._targets()),
            "base": "nf4-double" if packed else "",
            "adapter": self._precision(),
            "dropout": f"{dropout:g}" if dropout else "",
        }
        return f"{method}:" + ",".join(f"{name}={value}" for name, value in said.items() if value)

    def _targets(self) -> Iterator[str]:
        listed = self.document.get("model.lora_attn_modules", ["q_proj", "v_proj"])
        listed = listed if isinstance(listed, list) else [listed]
        for name in listed:
            word = _NAMES["modules"].get(str(name))
            if word is not None:
                yield word
            else:
                self._say("other_module", name=name, known=_NAMES["modules"])
        if self.document.get("model.apply_lora_to_mlp", False) is True:
            yield from ("gate", "up", "down")
        if self.document.get("model.apply_lora_to_output", False) is True:
            yield "head"

    def _objective(self, adapters: bool) -> str:
        """DPO by its loss, distillation by its teacher; reinforcement learning is refused."""
        loss = str(self.document.get("loss._component_", ""))
        if self.document.has("teacher_model"):
            known = self._model(self._named("teacher_model"))
            return f"distill:teacher={known}" if known else "lm"
        if "DPO" in loss or "RSO" in loss or "IPO" in loss or "SimPO" in loss:
            kind = "ipo" if "IPO" in loss else "simpo" if "SimPO" in loss else "dpo"
            return kind if kind == "simpo" or adapters else f"{kind}:reference=copied"
        names = ("ppo_epochs", "reward_and_value_model", "grpo_samples", "policy_model")
        sampled = [name for name in names if self.document.has(name)]
        if sampled or "PPO" in loss or "GRPO" in loss:
            self._say("sampled", *(sampled or ["loss._component_"]))
        return "lm"

    # --- the step -----------------------------------------------------------------------------

    def _sharding(self) -> dict[str, Any]:
        """The number of processes, tp, shard group and ZeRO stage, by field of `Found`. The stage
        is that of FSDP2; a recipe for a single device has one process, so nothing is sharded. The
        number is None if the command does not state it."""
        given = {} if self.launch is None else self.launch.given
        counts = (given.get(name) for name in ("nproc_per_node", "nnodes"))
        each, nodes = (None if one is None else digits(str(one.value)) for one in counts)
        words = () if self.launch is None else self.launch.arguments
        single = any("single_device" in word.text.value for word in words)
        world = 1 if single else None if each is None else each * (nodes or 1)
        if (tp := self.whole("tensor_parallel_dim", 1)) > 1:
            self._say("tensor_parallel", tp=tp)
        replicas = self.whole("data_parallel_replicate_dim", 1)
        shard = self.whole("data_parallel_shard_dim", 0, -1) if replicas > 1 else 0
        reshards = self.document.get("fsdp_reshard_after_forward", True) is not False
        return {"world": world, "tp": 1, "shard": max(shard, 0), "zero": 3 if reshards else 2}

    def _recompute(self) -> str:
        if self.hints.recompute:
            return self.hints.recompute
        on = self.document.get("enable_activation_checkpointing", False) is True
        if self.document.get("ac_mode") == "selective":
            text = (
                "ac_mode: selective keeps some activations: more memory, and faster, than predicted"
            )
            self.unmodelled += ((self.document.settings["ac_mode"], text),)
        return "full" if on else "none"

    def _length(self) -> tuple[int | None, Packing]:
        """Tokens of a pack, or the limit for samples; and how samples become rows."""
        setting = self.document.settings.get(_LENGTH)
        stated = self.document.get(_LENGTH)
        seq = self.hints.seq or (self.whole(_LENGTH, 1) if stated is not None else None)
        keys = ("dataset.packed", "packed")
        if any(self.document.get(key, False) is True for key in keys):
            self.assumed.append("samples are packed, so every sequence is full")
            return seq, "pack-varlen"
        if seq is None or setting is None:
            self.assumed.append("sequences as long as the model was pretrained with (give --seq)")
            setting = Setting("tokenizer.max_seq_len", None, self.document.path)
        if self.hints.seq is None:
            why = f"{setting.key} is their limit; shorter samples: less memory than predicted"
            self.unmodelled += ((replace(setting, key=LIMIT_ALONE), why),)
        return seq, "longest"

    def _optimizer(self) -> str:
        named, inner = self._named("optimizer"), self.document.get("optimizer.base_optimizer")
        known = _NAMES["optimizers"].get(named)
        if known is None:
            self._say("optimizer", name=named or inner)
        return str(known or "adamw")

    def _precision(self) -> str:
        dtype = str(self.document.get("dtype", "bf16"))
        if dtype not in _PRECISIONS:
            text = f"dtype: {dtype}; torchtune trains in bf16 or fp32"
            self.problems.append(self.document.wrong(text, "dtype", "bf16"))
        return _PRECISIONS.get(dtype, "bf16")
