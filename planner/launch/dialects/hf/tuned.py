"""How a program of Hugging Face trains the weights: all of them, adapters, or some layers; with
each program's own defaults (`adapters.toml`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from planner.job.models.catalog import load_model
from planner.job.specs import ModelSpec
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import (
    Half,
    Named,
    Program,
    is_on,
    is_switched,
    place_of,
    value_of,
)
from planner.launch.dialects.hf.axolotl_freezing import told_to_freeze
from planner.launch.dialects.hf.family_scripts import whole_parts
from planner.launch.dialects.hf.modules import (
    EMBEDDINGS,
    Modules,
    adapted_modules,
    adapter_table,
    peft_default,
    whole_modules,
)
from planner.launch.dialects.hf.python import PREPARED
from planner.launch.languages.text import digits
from planner.launch.read.found import Problem, Setting, unresolved

FULL = "full"
# Checkpoints whose names say how their weights are packed, and the planner's name of the format.
_PACKED = (
    (re.compile(r"gptq|awq|[-_]int4", re.IGNORECASE), "gptq4"),
    (re.compile(r"bnb[-_]?4bit|[-_]4bit\b", re.IGNORECASE), "nf4-double"),
    (re.compile(r"bnb[-_]?8bit|[-_]8bit\b", re.IGNORECASE), "int8"),
)
_MODEL_NAMES = ("model_name_or_path", "base_model", "model", "model_id_or_path", "model_name")
_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
# Settings that keep axolotl from fusing adapters by default.
_NO_KERNELS = ("rl", "load_in_8bit", "trust_remote_code", "nvfp4_merge_aware")
_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MORE = "more memory than predicted"


@dataclass(frozen=True)
class Tuned:
    """How weights are trained, as a request states it: `train`, `freeze`. `problems`, `assumed`,
    `effects`: as in `Found`; `half`: the 16-bit format of frozen weights, None if adapters do not
    change it; `techniques`: of a framework that has them."""

    train: str = FULL
    freeze: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    assumed: tuple[str, ...] = ()
    effects: tuple[tuple[Setting, str], ...] = ()
    half: Half | None = None
    techniques: tuple[str, ...] = ()

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained."""
        return self.train != FULL


@cache
def adapter_names() -> frozenset[str]:
    """Every setting that is read here."""
    asks = adapter_table("asks")
    names = (name for listed in adapter_table("names").values() for name in listed)
    return frozenset((*names, *asks["switches"], *asks["kinds"], *asks["sizes"]))


def asks_for(named: Named, program: Program) -> str:
    """The requested method: `full`, `lora`, `qlora`, `dora`, or the name of another method."""
    asks, usual = adapter_table("asks"), str(adapter_table("programs")[program]["usual"])
    stated = (value_of(named, name) for name in asks["kinds"])
    word = next((value for value in stated if value and value != "table"), "")
    says_kind = any(name in named for name in asks["kinds"])
    if not word and not says_kind and usual != FULL:
        word = usual
    kinds = adapter_table("kinds").items()
    kind = next((kind for kind, words in kinds if word and word in words), word)
    resumed = any(name.startswith("lora_path") for name in named)
    if resumed or any(is_switched(named, name) for name in asks["switches"]):
        kind = "lora" if kind in ("", FULL) else kind
    says_nothing = not says_kind and not any(name in named for name in asks["switches"])
    if kind == "" and says_nothing and program == "trainer":
        kind = "lora" if any(is_on(named, name) for name in asks["sizes"]) else ""
    return kind or FULL


def casts_adapters(named: Named, program: Program) -> bool:
    """Whether axolotl keeps adapters in the format of the weights: if told to (loaders/adapter.py),
    and for preferences under FSDP (core/builders/rl.py)."""
    sharded = program == "axolotl" and any(key.startswith("fsdp") for key in named)
    told = value_of(named, "peft_autocast_adapter_dtype") == "false"
    return told or (sharded and is_on(named, "rl"))


def tuned(named: Named, program: Program, model: str | None, *, sharded: bool = False) -> Tuned:
    """How the weights are trained. `model`: its name in the catalogue, if known; `sharded`:
    DeepSpeed or FSDP shards them."""
    spec = None if model is None else load_model(model).spec
    return _Tuning(named, program, spec, sharded).read()


@dataclass
class _Tuning:
    named: Named
    program: Program
    model: ModelSpec | None
    sharded: bool
    problems: list[Problem] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    effects: list[tuple[Setting, str]] = field(default_factory=list)

    def read(self) -> Tuned:
        """Everything that was read."""
        kind = asks_for(self.named, self.program)
        adapter = self.named.get("adapter")
        if adapter is not None and adapter.unknown and kind == FULL:
            self.problems.append(unresolved(adapter))
        if kind == "freeze":
            return self._done(FULL, self._frozen_layers())
        frozen, base = self._frozen(kind != FULL), self._base()
        if kind == FULL:
            self._no_adapters(base)
            return self._done(FULL, frozen)
        if kind not in ("lora", "qlora", "dora"):
            self._refuse(kind)
            return self._done(FULL)
        adapters = self._adapters(kind, base)
        techniques = tuple(self._techniques(kind, base))
        return replace(self._done(adapters, frozen), half=self._half(), techniques=techniques)

    def _frozen(self, adapters: bool) -> tuple[str, ...]:
        """The parts that programs written by `planner launch` are told to freeze."""
        value = str(self._value("frozen") or "")
        frozen, problems = told_to_freeze(self.named, self.model, adapters)
        self.problems += problems
        return (*filter(None, value.split(",")), *frozen)

    def _done(self, train: str, freeze: tuple[str, ...] = ()) -> Tuned:
        return Tuned(train, freeze, tuple(self.problems), tuple(self.assumed), tuple(self.effects))

    # --- what is asked for --------------------------------------------------------------------

    def _setting(self, name: str) -> Setting | None:
        """Several settings share one meaning, such as `rank`: the first of them that is given. None
        if none is given or its value is unknown; an unknown rank or list of targets adds a problem.
        """
        listed = adapter_table("names")[name]
        found = next((self.named[key] for key in listed if key in self.named), None)
        if found is None or not found.unknown:
            return found
        if name in ("rank", "targets"):
            self.problems.append(unresolved(found))
        return None

    def _value(self, name: str) -> object:
        """The value of a setting, else the program's default."""
        setting = self._setting(name)
        if setting is not None and setting.value not in (None, "None", "null", ""):
            return setting.value
        return adapter_table("programs")[self.program].get(name)

    def _refuse(self, kind: str) -> None:
        what = adapter_table("other").get(kind, f"{kind}, another way of training")
        keys = (*adapter_table("asks")["kinds"], *adapter_table("asks")["switches"])
        places = [place_of(self.named, key).place for key in keys if key in self.named]
        self.problems += said("other_tuning", *places[:1], what=what)

    def _no_adapters(self, base: str | None) -> None:
        """Weights in 4 or 8 bits without adapters, which programs refuse to train."""
        names = ("four", "eight", "bits")
        asked = any(problem.rule == "unresolved" for problem in self.problems)
        if base is None or asked or not any(map(self._switch, names)):
            return
        keys = (key for name in names for key in adapter_table("names")[name])
        where = next(self.named[key] for key in keys if key in self.named)
        self.problems += said("adapters_needed", where.place, key=where.key, program=self.program)

    # --- adapters -----------------------------------------------------------------------------

    def _adapters(self, kind: str, base: str | None) -> str:
        """`lora:rank=16,...`, as for `--train`."""
        if kind == "qlora" and base is None:
            base = self._of_qlora()
        is_dora = kind == "dora" or self._switch("dora")
        method = "dora" if is_dora else "lora" if base is None else "qlora"
        stated = {
            "rank": self._rank(), "alpha": self._number("alpha"), "targets": self._targets(),
            "base": base or "", "adapter": self._precision(base),
            "dropout": self._number("dropout"), "whole": self._whole(),
        }  # fmt: skip
        resumed = self._setting("resumed")
        if resumed is not None and resumed.value not in (None, "", [], "None"):
            note = (
                f"the adapters in {resumed.value} are as stated here; give its adapter_config.json"
            )
            self.assumed.append(note)
        return f"{method}:" + ",".join(f"{name}={text}" for name, text in stated.items() if text)

    def _of_qlora(self) -> str | None:
        """The 4-bit format of the base for `qlora` when no number of bits is stated: `nf4`, or
        `nf4-double` with double quantisation. axolotl demands that number, so for it a problem is
        added."""
        if self.program == "axolotl":
            self.problems += said("axolotl_qlora", place_of(self.named, "adapter").place)
        return "nf4-double" if self._value("double") else "nf4"

    def _rank(self) -> str:
        value, setting = self._value("rank"), self._setting("rank")
        number = digits(str(value)) if value is not None else None
        if setting is None and number is not None:
            self.assumed.append(f"adapters of rank {number} ({self._whose()}, none is stated)")
        if number is not None and number >= 1:
            return str(number)
        if not any(problem.rule == "unresolved" for problem in self.problems):
            places = [] if setting is None else [setting.place]
            stops = bool(places) and isinstance(value, int | float) and not isinstance(value, bool)
            key = "" if setting is None else setting.key
            self.problems += said("adapter_rank", *places, key=key, value=value, stops=stops)
        return "16"

    def _number(self, name: str) -> str:
        value = self._value(name)
        try:
            return f"{float(str(value)):g}" if value not in (None, 0, 0.0, "0", "0.0") else ""
        except ValueError:
            return ""

    def _whole(self) -> str:
        value, parts = self._value("whole"), tuple(whole_parts(self.named))
        if not value:
            return "+".join(parts)
        words, strange = whole_modules(value, self.model)
        setting = self._setting("whole")
        if strange and setting is not None:
            why = f"{', '.join(strange)} trained in full beside the adapters: {_MORE}"
            self.effects.append((setting, why))
        return "+".join((*words, *parts))

    def _targets(self) -> str:
        stated, value = self._setting("targets"), self._value("targets")
        if is_on(self.named, "lora_target_linear"):
            value, stated = "all-linear", self.named["lora_target_linear"]
        if value == "peft":
            value = peft_default(self.model)
            shown = str(value or "").replace(" ", ", ")
            self.assumed += [f"adapters on {shown} (peft's own for the family)"] if value else []
        elif stated is None and value is not None:
            self.assumed.append(f"adapters on {value} ({self._whose()}, none are stated)")
        tensors = self._value("tensors")
        if value is None and not tensors:
            # An unknown model is reported elsewhere.
            family = "" if self.model is None else self.model.family
            self.problems += said("no_targets", program=self.program, family=family)
            return "all-linear"
        by_peft = self.program in ("trl", "trainer")
        modules = adapted_modules(value, tensors, self.model, by_peft=by_peft)
        self._of_modules(modules, stated or Setting("target_modules", None))
        return "+".join(word for word in modules.words if word != EMBEDDINGS) or "all-linear"

    def _of_modules(self, modules: Modules, where: Setting) -> None:
        """Problems with the names of modules."""
        family = "" if self.model is None else self.model.family
        own = adapter_table("families").get(family, {})
        names: Mapping[str, str] = own.get("modules", adapter_table("modules"))
        known = (name for name, word in names.items() if word not in (EMBEDDINGS, "head"))
        self.problems += said(
            "adapter_targets", where.place, modules=modules, known=" ".join(known)
        )
        if EMBEDDINGS in modules.words:
            self.effects.append((where, f"adapters on the embeddings, too: {_MORE}"))

    def _whose(self) -> str:
        return f"{adapter_table('programs')[self.program]['called']}'s own"

    def _techniques(self, kind: str, base: str | None) -> Iterator[str]:
        """How adapters and packed weights run, as techniques of the framework.

        LLaMA-Factory, TRL, ms-swift and unsloth prepare packed weights without peft's casts to
        fp32; axolotl undoes them (loaders/model.py, _convert_embedding_modules_dtype). A script
        that was read says whether it calls prepare_model_for_kbit_training; for others it is
        assumed. unsloth's kernels fuse adapters, and axolotl's do by default
        (utils/schemas/config.py, check_auto_enable_lora_kernels).
        """
        by_trainer = self.program == "trainer"
        is_read = by_trainer and "adapter" in self.named
        prepared = by_trainer and (not is_read or PREPARED in self.named)
        packed = base is not None or kind == "qlora"
        if packed and not prepared and not is_on(self.named, "prepare_kbit"):
            yield "16-bit-stream"
        stated = [name for name in _KERNELS if name in self.named]
        fuses = all(is_on(self.named, name) for name in stated)
        if not stated:
            fuses = not any(is_on(self.named, name) for name in _NO_KERNELS)
        if self.program == "unsloth" or (self.program == "axolotl" and fuses):
            yield "fused-adapters"

    # --- the frozen weights -------------------------------------------------------------------

    def _switch(self, name: str) -> bool:
        return any(is_switched(self.named, key) for key in adapter_table("names")[name])

    def _base(self) -> str | None:
        """The format of frozen weights; None for 16 or 32 bits."""
        bits, four = digits(str(self._value("bits"))), self._switch("four")
        packed = self._packed()
        if packed == "gptq4":
            return packed
        if packed:
            off = any(
                value_of(self.named, key) == "false" for key in adapter_table("names")["four"]
            )
            return packed if four or bits or not off else None
        if four or bits == 4:
            doubles = str(self._value("double")).lower() in ("true", "1")
            return "nf4-double" if doubles else "nf4"
        return "int8" if self._switch("eight") or bits == 8 else None

    def _packed(self) -> str | None:
        """The packed format of a checkpoint that was published in 4 or 8 bits, judged by its name;
        None if the name shows none."""
        keys = [key for key in _MODEL_NAMES if key in self.named]
        name = str(self.named[keys[0]].value) if keys else ""
        return next((base for pattern, base in _PACKED if pattern.search(name)), None)

    def _precision(self, base: str | None) -> str:
        """The format of adapters, if it is not peft's fp32.

        TRL casts those beside packed weights to bf16 (trl/trainer/sft_trainer.py, "cast ... as
        recommended by the original paper", at f2cd57710). Sharding treats adapters like all trained
        weights: DeepSpeed uses 16 bits with fp32 masters (runtime/engine.py), accelerate fp32
        (utils/fsdp_utils.py, fsdp2_prepare_model; accelerator.py, prepare_model). LLaMA-Factory
        keeps the model's format under `pure_bf16` (model/adapter.py).
        """
        if self.program == "llamafactory" and is_on(self.named, "pure_bf16"):
            return "bf16"
        if self.program == "trl" and base is not None and not self.sharded:
            return "bf16"
        if casts_adapters(self.named, self.program):
            return "bf16" if is_on(self.named, "bf16") else "fp16"
        return _TYPES.get(value_of(self.named, "lora_dtype"), "")

    def _half(self) -> Half | None:
        """The 16-bit format of frozen weights in LLaMA-Factory, which loads them in the compute
        format (hparams/parser.py: compute_dtype; model/patcher.py: torch_dtype). None for other
        programs, or if that format is not 16 bits."""
        if self.program != "llamafactory":
            return None
        if is_on(self.named, "bf16") or is_on(self.named, "pure_bf16"):
            return "bf16"
        return "fp16" if is_on(self.named, "fp16") else None

    def _frozen_layers(self) -> tuple[str, ...]:
        """LLaMA-Factory's `freeze`, which trains a number of last layers.

        hparams/finetuning_args.py: freeze_trainable_layers 2; model/adapter.py,
        _setup_freeze_tuning: embeddings and head stay frozen.
        """
        modules = value_of(self.named, "freeze_trainable_modules") or "all"
        extra = value_of(self.named, "freeze_extra_modules")
        number = digits(value_of(self.named, "freeze_trainable_layers") or "2")
        if modules != "all" or extra not in ("", "none") or not number:
            self.problems += said("other_freezing", place_of(self.named, "finetuning_type").place)
            return ()
        if self.model is None:
            return ("embeddings",)
        layers = self.model.layers - number
        return ("embeddings", "head", *([f"layers:{layers}"] if layers > 0 else []))
