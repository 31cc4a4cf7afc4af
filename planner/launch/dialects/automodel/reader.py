"""Reader of NeMo AutoModel's YAML.

Keys: NVIDIA-NeMo/Automodel at 36044ad3d, examples/ and nemo_automodel/recipes/llm/train_ft.py.
Defaults: of adapters from nemo_automodel/components/_peft/lora.py (dim 8, alpha 32, no dropout,
weights in the base's type), of packed weights from nemo_automodel/components/quantization/qlora.py
(NF4 whose scales are packed once more). Weights, gradients and states are in the checkpoint's type,
which is bf16: FSDP2 shards what the model has. There is no profile of its own: it is costed as
Hugging Face under FSDP2.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.job.models.catalog import load_model, not_in_catalogue
from planner.launch.dialects.hf.arguments import known_model
from planner.launch.dialects.hf.modules import ALL_LINEAR, adapter_table, named_modules
from planner.launch.languages.text import digits
from planner.launch.read.document import LIMIT_ALONE, DocumentReader, Source
from planner.launch.read.found import Found, Setting, model_unknown

_RECIPES = "nemo_automodel"
_NEXT_TOKEN = re.compile(r"NextTokenPrediction|SequenceClassification")
_MODEL = "model.pretrained_model_name_or_path"
_PACK = "packed_sequence.packed_sequence_size"
_LIMITS = ("dataset.seq_length", "dataset.seq_len", "dataset.max_length", "dataset.max_seq_length")
_DEGREES = {
    "tp_size": "tensor", "cp_size": "context", "pp_size": "pipeline", "ep_size": "expert",
}  # fmt: skip
_OPTIMIZERS = {
    "Adam": "adamw", "AdamW": "adamw", "FusedAdam": "adamw", "Muon": "muon", "SGD": "sgd",
    "Adafactor": "adafactor",
}  # fmt: skip


def is_automodel(content: Mapping[str, object]) -> bool:
    """Whether a table is one of AutoModel's recipes."""
    model = content.get("model")
    target = str(model.get("_target_", "")) if isinstance(model, dict) else ""
    named = str(content.get("recipe", ""))
    own = target.startswith((_RECIPES, "nemo.collections")) or "Recipe" in named
    return "step_scheduler" in content and own


def read(source: Source) -> Found:
    """A recipe's file, with what the command says beside it."""
    document = source.yaml()
    given = {} if source.launch is None else source.launch.given
    for key, setting in given.items():
        if "." in key:
            number = digits(str(setting.value))
            value = setting.value if number is None else number
            document.override(replace(setting, key=key, value=value), key)
    return AutomodelReader(document, source).found()


class AutomodelReader(DocumentReader):
    """The launch that an AutoModel file describes."""

    called = "AutoModel"

    def found(self) -> Found:
        """Everything that was read."""
        self._recipe()
        model = self.hints.model or self._model()
        self._degrees()
        train = self._train(model)
        sharded, zero = self._sharding()
        self.assumed.append(
            "costed as Hugging Face under FSDP2, with weights, gradients and states in bf16: "
            "AutoModel has no profile of its own"
        )
        gbs = self.hints.gbs or self._batch("step_scheduler.global_batch_size")
        return self.gathered(
            lambda _key: True,
            {
                "mbs": "step_scheduler.local_batch_size",
                "gbs": "step_scheduler.global_batch_size",
                "seq": _PACK,
            },
            format="automodel",
            framework=sharded,
            model=model,
            variations=self._variations(sharded),
            zero=zero,
            world=self._world(),
            mbs=self.hints.mbs or self.whole("step_scheduler.local_batch_size", 1),
            gbs=None if self.hints.grad_acc else gbs,
            grad_acc=self.hints.grad_acc,
            seq=self.hints.seq or self._length(),
            packing="pack-varlen" if self._pack() else "longest",
            recompute=self._recompute(),
            optimizer=self._optimizer(),
            precision="bf16",
            dtype="bf16" if sharded == "hf-transformers" else None,
            train=train,
            objective=self._objective(),
        )

    def _recipe(self) -> None:
        """Recipes of other models."""
        named = str(self.document.get("recipe", "") or self.document.get("recipe._target_", ""))
        kind = named.rpartition(".")[2]
        target = str(self.document.get("model._target_", ""))
        if kind and not _NEXT_TOKEN.search(kind):
            self.unpredictable(f"recipe {kind} is not modelled", "recipe", "recipe._target_")
        elif re.search(r"ImageTextToText|MultimodalLM|Diffusion|BiEncoder|CrossEncoder", target):
            self.unpredictable(f"{target.rpartition('.')[0]} is not modelled", "model._target_")

    def _model(self) -> str | None:
        names = (_MODEL, "model.config.pretrained_model_name_or_path", "model.config.name_or_path")
        named = next((str(value) for name in names if (value := self.document.get(name))), "")
        known = known_model(named) if named else None
        if known is None:
            text = not_in_catalogue(named) if named else "the file does not name the model"
            place = self.document.place(*names)
            fix = "--model CONFIG.json or a known name"
            self.problems.append(model_unknown(text, place, fix))
        return known

    def _degrees(self) -> None:
        """Degrees that AutoModel has, and the profile that stands for it has not."""
        for name, what in _DEGREES.items():
            for table in ("distributed", "parallelism"):
                key = f"{table}.{name}"
                value = self.document.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value > 1:
                    text = f"{name} {value}: AutoModel's {what} parallelism is not modelled"
                    self.unpredictable(text, key)

    def _sharding(self) -> tuple[str, int]:
        """Profile and ZeRO stage."""
        strategy = str(self.document.get("distributed.strategy", "fsdp2"))
        target = str(self.document.get("distributed._target_", ""))
        if strategy == "ddp" or target.endswith("DDPManager"):
            return "hf-transformers", 0
        if "megatron_fsdp" in strategy or "MegatronFSDP" in target:
            text = "Megatron-FSDP through AutoModel is not modelled"
            self.unpredictable(text, "distributed.strategy", "distributed._target_")
        reshards = self.document.get("distributed.reshard_after_forward", True) is not False
        return "hf-fsdp2", 3 if reshards else 2

    def _variations(self, framework: str) -> tuple[str, ...]:
        loss = str(self.document.get("loss_fn._target_", ""))
        fused = ("fused-linear-loss",) if "FusedLinear" in loss or "linear_ce" in loss else ()
        return (*(("bf16-parameters",) if framework == "hf-fsdp2" else ()), *fused)

    def _world(self) -> int | None:
        """`--nproc-per-node 8`, else what torchrun starts."""
        given = {} if self.launch is None else self.launch.given
        setting = given.get("nproc-per-node") or given.get("nproc_per_node")
        return self.world or (None if setting is None else digits(str(setting.value)))

    def _batch(self, key: str) -> int | None:
        return self.whole(key, 1) if self.document.get(key) is not None else None

    def _recompute(self) -> str:
        if self.hints.recompute:
            return self.hints.recompute
        name = "activation_checkpointing"
        keys = (f"distributed.{name}", f"distributed_config.{name}", name)
        values = [self.document.get(key) for key in keys]
        if "selective" in [str(value).lower() for value in values]:
            setting = next(self.document.settings[key] for key in keys if self.document.get(key))
            why = "some activations are kept: more memory, and faster, than predicted"
            self.unmodelled += ((setting, why),)
            return "full"
        return "full" if any(value is True for value in values) else "none"

    def _optimizer(self) -> str:
        named = str(self.document.get("optimizer._target_", "torch.optim.AdamW"))
        known = _OPTIMIZERS.get(named.rpartition(".")[2])
        if known is None:
            self.unpredictable(f"optimizer {named} is not modelled", "optimizer._target_")
        return known or "adamw"

    def _pack(self) -> int:
        """Tokens of a pack; 0 where samples are not packed."""
        pack = self.document.get(_PACK)
        return pack if isinstance(pack, int) and pack > 0 else 0

    def _length(self) -> int | None:
        """Tokens of a pack, or the limit of samples."""
        if pack := self._pack():
            self.assumed.append(f"samples are packed, so every sequence is full: {pack:,} tokens")
            return pack
        stated = next((key for key in _LIMITS if self.document.get(key)), None)
        setting = Setting("seq_length", None, self.document.path)
        if stated is None:
            self.assumed.append("sequences as long as the model was pretrained with (give --seq)")
        else:
            setting = self.document.settings[stated]
        if self.document.get("dataset.padding") != "max_length":
            why = f"{setting.key} is their limit; shorter samples: less memory than predicted"
            self.unmodelled += ((replace(setting, key=LIMIT_ALONE), why),)
        return None if stated is None else self.whole(stated, 1)

    # --- what is trained ----------------------------------------------------------------------

    def _train(self, model: str | None) -> str:
        if not self.document.has("peft") or not list(self._peft()):
            if self.document.has("freeze_config"):
                self.unpredictable("frozen parts of a model are not modelled", *self._frozen())
            return "full"
        packed = self._packed()
        dora = self.document.get("peft.use_dora", False) is True
        said = {
            "rank": str(self.whole("peft.dim", 8)),
            "alpha": f"{self.document.get('peft.alpha', 32)}",
            "targets": "+".join(self._targets(model)),
            "base": packed,
            "adapter": "bf16",
            "dropout": f"{share:g}" if (share := self.share("peft.dropout", 0.0)) else "",
        }
        method = "dora" if dora else "qlora" if packed else "lora"
        return f"{method}:" + ",".join(f"{name}={value}" for name, value in said.items() if value)

    def _peft(self) -> Iterator[str]:
        return (key for key in self.document.settings if key.startswith("peft."))

    def _frozen(self) -> Iterator[str]:
        return (key for key in self.document.settings if key.startswith("freeze_config"))

    def _packed(self) -> str:
        """`quantization:` of NF4 or int8."""
        if self.document.get("quantization.load_in_8bit", False) is True:
            return "int8"
        if self.document.get("quantization.load_in_4bit", False) is not True:
            return ""
        double = self.document.get("quantization.bnb_4bit_use_double_quant", True) is not False
        return "nf4-double" if double else "nf4"

    def _targets(self, model: str | None) -> tuple[str, ...]:
        """Linear layers that `target_modules` names, wildcards among them, but for exclusions."""
        stated = self.document.get("peft.target_modules")
        every = self.document.get("peft.match_all_linear", False) is True
        left_out = _listed(self.document.get("peft.exclude_modules"))
        patterns = ["*"] if every or not stated else _listed(stated)
        if patterns == ["*"] and not left_out:
            return (ALL_LINEAR,)
        spec = None if model is None else load_model(model).spec
        own: Mapping[str, Any] = adapter_table("families").get(spec.family if spec else "", {})
        known: Mapping[str, str] = own.get("modules", adapter_table("modules"))
        names = [
            name
            for name, word in known.items()
            if word not in ("head", "embeddings")
            and _matches(name, patterns)
            and not _matches(name, left_out)
        ]
        modules = named_modules(names, spec)
        if not modules.words:
            text = f"target_modules {stated}: no linear layer of the model is called so"
            self.refuse("adapter-targets", text, "peft.target_modules", severity="missing")
        return modules.words or (ALL_LINEAR,)

    def _objective(self) -> str:
        """Next-token prediction, a class of a sequence, or a teacher's logits."""
        kind = str(self.document.get("recipe", ""))
        teacher = self.document.get("teacher_model.pretrained_model_name_or_path")
        if teacher:
            known = known_model(str(teacher))
            if known is None:
                text = f"the catalogue does not know the teacher {teacher}"
                self.refuse("model-unknown", text, "teacher_model", severity="missing")
                return "lm"
            return f"distill:teacher={known}"
        if "SequenceClassification" in kind:
            self.unpredictable(f"recipe {kind} is not modelled", "recipe")
        return "lm"


def _listed(value: object) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _matches(name: str, patterns: list[str]) -> bool:
    """Whether the last part of a module's name fits one of some wildcards."""
    return any(fnmatch.fnmatch(name, pattern.rpartition(".")[2] or "*") for pattern in patterns)
