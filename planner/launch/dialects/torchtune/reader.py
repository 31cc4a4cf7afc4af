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
from dataclasses import dataclass, replace

from planner.job.errors import CannotTellError
from planner.job.samples import Packing
from planner.launch.languages.text import digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import LIMIT_ALONE, Document, DocumentReader, Source, below
from planner.launch.read.found import Found, Hints, Problem, Setting, model_unknown
from planner.launch.read.opened import Opened
from planner.launch.registry import dialect_toml

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
_IN_BACKWARD = "optimizer_in_bwd"


def is_torchtune(content: Mapping[str, object]) -> bool:
    """Whether a table is torchtune's: its components include a model of torchtune."""
    model = content.get("model")
    if not isinstance(model, dict):
        return False
    named = str(model.get("_component_", ""))
    return named.startswith("torchtune.") or ("_component_" in model and "tokenizer" in content)


def is_tune(launch: LaunchCommand) -> bool:
    """`tune run`."""
    return launch.name == "tune"


def read_command(launch: LaunchCommand, _read: Opened, _hints: Hints) -> Found:
    """`tune run` with a missing configuration. CannotTellError."""
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


@dataclass(frozen=True)
class _Sharding:
    """Ranks and sharding."""

    world: int | None
    tp: int
    shard: int
    zero: int


class TorchtuneReader(DocumentReader):
    """The launch described by a torchtune file."""

    called = "torchtune"

    def found(self) -> Found:
        """Everything that was read."""
        self._demand_training()
        self.problems += problems_of(self.document)
        builder = str(self.document.get("model._component_", "")).rpartition(".")[2]
        model = self.hints.model or self._model(builder)
        sharding = self._sharding()
        recompute = self._recompute()
        seq, packing = self._length()
        self._left_out()
        train = self._train(builder)
        compiled = self.document.get("compile", False) is True
        eager = () if compiled else ("eager-blocks",)
        # Recipes that train adapters ignore it.
        at_once = train == "full" and self.document.get(_IN_BACKWARD, False) is True
        return self.gathered(
            lambda _key: True,
            {"mbs": "batch_size", "grad_acc": "gradient_accumulation_steps", "seq": _LENGTH},
            format="torchtune",
            framework="torchtune",
            model=model,
            variations=(*eager, "optimizer-in-backward") if at_once else eager,
            tp=sharding.tp,
            shard=sharding.shard,
            zero=sharding.zero,
            world=sharding.world,
            mbs=self.hints.mbs or self.whole("batch_size", 1),
            gbs=self.hints.gbs,
            grad_acc=None
            if self.hints.gbs
            else self.hints.grad_acc or self.whole("gradient_accumulation_steps", 1),
            seq=seq,
            packing=packing,
            recompute=recompute,
            activation_offload=self._offload(recompute),
            optimizer=self._optimizer(),
            optimizer_offload=float(self.document.get("fsdp_cpu_offload", False) is True),
            precision=self._precision(),
            train=train,
            objective=self._objective(train != "full"),
        )

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
                self.unpredictable(f"{builder}: {what} is not modelled", "model._component_")
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
        said = {
            "rank": str(self.whole("model.lora_rank", 8)),
            "alpha": f"{self.document.get('model.lora_alpha', 16)}",
            "targets": "+".join(self._targets()),
            "base": "nf4-double" if packed else "",
            "adapter": self._precision(),
            "dropout": self._dropout(),
        }
        return f"{method}:" + ",".join(f"{name}={value}" for name, value in said.items() if value)

    def _dropout(self) -> str:
        share = self.share("model.lora_dropout", 0.0)
        return f"{share:g}" if share else ""

    def _targets(self) -> Iterator[str]:
        listed = self.document.get("model.lora_attn_modules", ["q_proj", "v_proj"])
        listed = listed if isinstance(listed, list) else [listed]
        for name in listed:
            word = _NAMES["modules"].get(str(name))
            if word is None:
                known = ", ".join(_NAMES["modules"])
                text = f"lora_attn_modules: {name}; torchtune has {known}"
                self.refuse("adapter-targets", text, "model.lora_attn_modules")
                continue
            yield word
        if self.document.get("model.apply_lora_to_mlp", False) is True:
            yield from ("gate", "up", "down")
        if self.document.get("model.apply_lora_to_output", False) is True:
            yield "head"

    def _objective(self, adapters: bool) -> str:
        """DPO by its loss, distillation by its teacher; reinforcement learning is refused."""
        loss = str(self.document.get("loss._component_", ""))
        if self.document.has("teacher_model"):
            teacher = str(self.document.get("teacher_model._component_", "")).rpartition(".")[2]
            known = self._model(teacher)
            return f"distill:teacher={known}" if known else "lm"
        if "DPO" in loss or "RSO" in loss or "IPO" in loss or "SimPO" in loss:
            kind = "ipo" if "IPO" in loss else "simpo" if "SimPO" in loss else "dpo"
            return kind if kind == "simpo" or adapters else f"{kind}:reference=copied"
        names = ("ppo_epochs", "reward_and_value_model", "grpo_samples", "policy_model")
        sampled = [name for name in names if self.document.has(name)]
        if sampled or "PPO" in loss or "GRPO" in loss:
            keys = sampled or ["loss._component_"]
            self.unpredictable("reinforcement learning is not modelled", *keys)
        return "lm"

    # --- the step -----------------------------------------------------------------------------

    def _sharding(self) -> _Sharding:
        """FSDP2 in the distributed recipes, none in those for a single device."""
        given = {} if self.launch is None else self.launch.given
        each, nodes = (self._count(given.get(name)) for name in ("nproc_per_node", "nnodes"))
        words = () if self.launch is None else self.launch.arguments
        single = any("single_device" in word.text.value for word in words)
        world = 1 if single else None if each is None else each * (nodes or 1)
        tp = self.whole("tensor_parallel_dim", 1)
        if tp > 1:
            text = f"tensor_parallel_dim {tp}: torchtune's tensor parallelism is not modelled"
            self.unpredictable(text, "tensor_parallel_dim")
        replicas = self.whole("data_parallel_replicate_dim", 1)
        shard = self.whole("data_parallel_shard_dim", 0, -1) if replicas > 1 else 0
        reshards = self.document.get("fsdp_reshard_after_forward", True) is not False
        return _Sharding(world, 1, max(shard, 0), 3 if reshards else 2)

    @staticmethod
    def _count(setting: Setting | None) -> int | None:
        return None if setting is None else digits(str(setting.value))

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

    def _offload(self, recompute: str) -> str:
        on = self.document.get("enable_activation_offloading", False) is True
        return "checkpoints" if on and recompute == "full" else "off"

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
        named = str(self.document.get("optimizer._component_", "")).rpartition(".")[2]
        inner = self.document.get("optimizer.base_optimizer")
        known = _NAMES["optimizers"].get(named)
        if known is None:
            text = f"optimizer {named or inner} is not modelled"
            self.unpredictable(text, "optimizer._component_")
            return "adamw"
        return str(known)

    def _precision(self) -> str:
        dtype = str(self.document.get("dtype", "bf16"))
        if dtype not in _PRECISIONS:
            text = f"dtype: {dtype}; torchtune trains in bf16 or fp32"
            self.problems.append(self.document.wrong(text, "dtype", "bf16"))
        return _PRECISIONS.get(dtype, "bf16")

    def _left_out(self) -> None:
        """Settings that rule out a prediction."""
        quantizer = str(self.document.get("quantizer._component_", ""))
        if "QAT" in quantizer or self.document.has("fake_quant_after_n_steps"):
            text = "quantisation-aware training is not modelled"
            self.unpredictable(text, "quantizer._component_", "fake_quant_after_n_steps")


def problems_of(document: Document) -> Iterator[Problem]:
    """Settings that torchtune refuses before it starts."""
    offloads = document.get("enable_activation_offloading", False) is True
    if offloads and document.get("enable_activation_checkpointing", False) is not True:
        text = (
            "enable_activation_offloading should only be True when enable_activation_checkpointing "
            "is True"
        )
        yield document.problem("activation-offload", text, "enable_activation_offloading")
    if document.get(_IN_BACKWARD, False) is True:
        yield from _refused_in_backward(document)


def _refused_in_backward(document: Document) -> Iterator[Problem]:
    """Settings incompatible with an optimizer that updates each parameter as soon as its gradient
    is ready (recipes/full_finetune_single_device.py and full_finetune_distributed.py)."""
    builder = str(document.get("model._component_", "")).rpartition(".")[2]
    if _WHOSE.match(builder):
        return
    if document.get("clip_grad_norm") is not None:
        text = "optimizer_in_bwd has no norm of all gradients: leave clip_grad_norm out, or it"
        yield document.problem("optimizer-in-backward", text, _IN_BACKWARD, "clip_grad_norm")
    number = document.get("gradient_accumulation_steps", 1)
    if isinstance(number, int) and number > 1:
        text = (
            f"optimizer_in_bwd updates after every micro-batch: gradient_accumulation_steps 1, not "
            f"{number}, or without it"
        )
        keys = (_IN_BACKWARD, "gradient_accumulation_steps")
        yield document.problem("optimizer-in-backward", text, *keys)
