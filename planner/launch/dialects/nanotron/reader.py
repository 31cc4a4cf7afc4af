"""Reader of nanotron YAML files. Keys: huggingface/nanotron 2026-04, config/config.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from planner.job.errors import ModelError
from planner.job.models.hf_config import model_from_hf_config
from planner.job.specs import ModelSpec
from planner.launch.dialects.nanotron.writer import NANOTRON as MODEL
from planner.launch.dialects.nanotron.writer import OPTIONS
from planner.launch.languages.text import digits
from planner.launch.read.beside import text_beside
from planner.launch.read.document import Document, DocumentReader, Source, unknown_key
from planner.launch.read.found import (
    SURELY_MEANT,
    Found,
    Problem,
    Severity,
    model_unknown,
    nearest,
)
from planner.launch.read.names import effect_of, is_known
from planner.launch.registry import dialect_toml

# The keys of each table; "" is the top of the file.
_KEYS = {
    table.removeprefix("file"): frozenset(row["names"].split())
    for table, row in dialect_toml("nanotron", "names.toml").items()
}
# Top-level tables that only older releases and branches of nanotron have.
_OTHER_TABLES = {"data", "doremi", "profile", "spectral_mup", "lighteval_config", "experimental"}
_OTHER_OPTIMIZER = {"adam_beta1", "adam_beta2", "adam_eps", "torch_adam_is_fused"}
# Unknown keys like these concern the model, or a second model.
_OF_THE_MODEL = re.compile("attention|model|expert|moe|lora|layer|doremi")
# Files of a checkout that define its dataclasses.
_DATACLASS_FILES = ("src/nanotron/config/config.py", "src/nanotron/config/parallelism_config.py")
_TP_MODES = ("ALL_REDUCE", "REDUCE_SCATTER")
_M = "model.model_config"
# Keys that nanotron's dataclasses have no default for; the trainer demands missing tables.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "general": ("project",),
    "parallelism": ("dp", "pp", "tp"),
    "model": ("model_config", "init_method"),
    "tokens": ("sequence_length", "train_steps", "micro_batch_size",
               "batch_accumulation_per_replica"),
    "optimizer": ("optimizer_factory", "zero_stage", "weight_decay", "accumulate_grad_in_fp32",
                  "learning_rate_scheduler"),
}  # fmt: skip
# Model configurations that share their keys with Hugging Face's.
_KINDS = {"is_llama_config": "llama", "is_qwen2_config": "qwen2"}
# Keys of nanotron's model configurations that Hugging Face also has.
_MODEL_KEYS = ("head_dim", *(entry.key for entry in MODEL if entry.key and "." not in entry.key))


class NanotronReader(DocumentReader):
    """Reads the launch that a nanotron file describes."""

    called = "nanotron"

    def found(self) -> Found:
        """The launch that was read."""
        self.problems += [*unknown_keys(self.document), *absent_keys(self.document)]
        keys = {name: option.key for name, option in OPTIONS.items()}
        degrees = {name: self.whole(keys[name], 1) for name in ("dp", "pp", "tp", "cp", "ep")}
        dp, pp, tp, cp, ep = degrees.values()
        mbs = self.hints.mbs or self.whole(keys["mbs"], 1)
        acc = self.hints.grad_acc or self.whole(keys["grad_acc"], 1)
        seq = self.hints.seq or self.whole(keys["seq"], 1)
        zero = self.choice(keys["zero"], 0, (0, 1))
        shape = None if self.hints.model else self._model(seq)
        self._beyond_the_model(cp, ep)
        schedules = OPTIONS["schedule"]
        engine = self.choice(schedules.key, "1f1b", tuple(schedules.written.values()))
        return self.gathered(
            partial(is_known, _KEYS),
            keys,
            format="nanotron",
            framework="nanotron",
            variations=self._variations(tp),
            shape=shape,
            model=self.hints.model,
            **degrees,
            etp=1 if ep > 1 else None,
            zero=int(zero),
            world=self.world if self.launch else dp * pp * tp * cp,
            mbs=mbs,
            grad_acc=None if self.hints.gbs else acc,
            gbs=self.hints.gbs,
            seq=seq,
            recompute=self.hints.recompute or self._recompute(),
            optimizer_kernel=self._kernel(),
            schedule=schedules.read(engine) if pp > 1 else None,
        )

    def _beyond_the_model(self, cp: int, ep: int) -> None:
        """Report degrees that nanotron has but that are not modelled."""
        for name, value, what in (
            ("cp", cp, "ring attention"),
            ("ep", ep, "expert parallelism"),
        ):
            if value > 1:
                text = f"nanotron's {what} (parts of its Qwen2 model) is not modelled"
                self.unpredictable(text, OPTIONS[name].key)

    def _kernel(self) -> str | None:
        """The kind of AdamW kernel; None if the file does not say."""
        fused = self.document.get("optimizer.optimizer_factory.torch_adam_is_fused")
        return {True: "fused", False: "forloop"}.get(fused) if isinstance(fused, bool) else None

    def _recompute(self) -> str:
        self.document.get("parallelism.tp_recompute_allgather")
        return "full" if self.document.get(OPTIONS["recompute"].key, False) is True else "none"

    def _variations(self, tp: int) -> tuple[str, ...]:
        mode = self.choice(OPTIONS["no-sequence-parallel"].key, "REDUCE_SCATTER", _TP_MODES)
        self.document.get("parallelism.tp_linear_async_communication")
        names = []
        if tp > 1 and mode == "ALL_REDUCE":
            names.append("no-sequence-parallel")
        if not self.document.get(OPTIONS["bf16-gradients"].key, True):
            names.append("bf16-gradients")
        return tuple(names)

    def _model(self, seq: int) -> ModelSpec | None:
        """The model in model_config, whose keys are those of Hugging Face's config.json."""
        values = {name: self.document.get(f"{_M}.{name}") for name in _MODEL_KEYS}
        config: dict[str, object] = {
            name: value for name, value in values.items() if value is not None
        }
        self.document.has(f"{_M}.moe_config")
        table = {
            name: self.document.settings.get(f"{_M}.{name}") for name in self.document.names(_M)
        }
        if not table:
            self.problems.append(model_unknown("the file has no model.model_config"))
            return None
        stated = [name for name, one in table.items() if one is not None and one.value]
        kinds = [name for name in stated if re.fullmatch(r"is_\w+_config", name)]
        self.document.used.update(f"{_M}.{name}" for name in kinds)
        # Without such a flag, this key distinguishes a GPT from a Llama.
        kinds += ["activation_function"] if not kinds and "activation_function" in table else []
        nested = [name for name, one in table.items() if one is None and name.endswith("_config")]
        if nested or set(kinds) - _KINDS.keys():
            what = "experts" if nested == ["moe_config"] else ", ".join([*nested, *kinds])
            text = f"{what} of nanotron's own model are not read"
            self.problems.append(model_unknown(text, self.document.place(_M)))
            return None
        config["model_type"] = _KINDS[kinds[0]] if kinds else "llama"
        where = f"{self.document.path} (model.model_config)"
        try:
            spec = model_from_hf_config(config, where=where)
        except ModelError as error:
            self.problems.append(self._no_model(config, str(error)))
            return None
        named = {"name": "from model_config", "source": "nanotron model_config"}
        return spec.model_copy(update={"pretraining_seq": seq, **named})

    def _no_model(self, config: dict[str, object], error: str) -> Problem:
        """The problem with the model: missing keys, or wrong values."""
        if not config.keys() >= {"hidden_size", "num_hidden_layers", "num_attention_heads"}:
            return model_unknown(f"the model is not known: {error}")
        names = (name for name in config if name in error)
        heads = ("num_attention_heads", "num_key_value_heads") if "heads" in error else ()
        keys = [f"{_M}.{name}" for name in (*heads, *names)]
        return self.document.problem("model-shape", error, *keys)


def _is_of_another_release(document: Document) -> bool:
    """Whether the file has tables or optimizer keys of another nanotron release than the one known
    here."""
    optimizer = set(document.names("optimizer"))
    return bool(_OTHER_TABLES & set(document.names()) or _OTHER_OPTIMIZER & optimizer)


def _is_of_the_checkout(document: Document, table: str, key: str) -> bool:
    """Whether the nanotron checkout around the file has a field with that name in the table's
    dataclass."""
    folder = Path(document.path).parent
    texts = (text_beside(file, folder, whole=True) for file in _DATACLASS_FILES)
    name = f"{table.capitalize()}Args" if table else "Config"
    field = rf"(?m)^class {name}\b(?:.*\n(?!\S))*?    {re.escape(key)}\s*:"
    return any(re.search(field, text) for text in texts)


def unknown_keys(document: Document) -> Iterator[Problem]:
    """Problems: keys that nanotron's dataclasses do not have and its loader refuses."""
    for table, known in _KEYS.items():
        for key in document.names(table):
            if key in known:
                continue
            name = f"{table}.{key}" if table else key
            misspelt = key not in _OTHER_TABLES and nearest(key, known, SURELY_MEANT)
            of_the_checkout = _is_of_the_checkout(document, table, key)
            other = of_the_checkout or (not misspelt and _is_of_another_release(document))
            says = "nanotron has no such key and refuses it"
            if of_the_checkout:
                says = "a key of the checkout around the file; its effect is not modelled"
            elif other:
                says += " (another release may have it)"
            decides = _OF_THE_MODEL.search(key) or effect_of(key)
            severity = ("missing" if decides else "warning") if other else "error"
            yield unknown_key(document, name, says, nearest(key, known), severity=severity)


def absent_keys(document: Document) -> Iterator[Problem]:
    """Problems: missing keys that nanotron's dataclasses demand."""
    other = _is_of_another_release(document)
    for table, keys in _REQUIRED.items():
        names = document.names(table)
        lost = [f"{table}.{key}" for key in keys if key not in names]
        if lost:
            text = f"{', '.join(lost)}: missing, and nanotron has no default"
            severity: Severity = "warning" if other else "error" if names else "missing"
            yield document.problem("required-option", text, severity=severity)


def read(source: Source) -> Found:
    """The launch of a nanotron file. Programs built on nanotron may set some of its settings on
    their command line."""
    document = source.yaml()
    for key in (OPTIONS[name].key for name in ("dp", "tp", "pp", "mbs", "grad_acc", "seq")):
        setting = source.given.get(key.rpartition(".")[2])
        if setting is not None:
            number = digits(str(setting.value))
            value = setting.value if number is None else number
            document.override(replace(setting, key=key, value=value), key)
    return NanotronReader(document, source).found()
