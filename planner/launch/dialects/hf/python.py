"""Hugging Face training settings in Python, read as text, never run: `TrainingArguments(...)` and
TRL's configurations, `LoraConfig(...)`, `BitsAndBytesConfig(...)`, `from_pretrained(...)`,
unsloth's `FastLanguageModel`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.job.errors import CannotTellError
from planner.launch.dialects.hf.arguments import Program
from planner.launch.dialects.hf.script_values import NoValueError, ScriptValues
from planner.launch.languages.python import last_name
from planner.launch.languages.text import Text
from planner.launch.read.document import leaves
from planner.launch.read.found import Setting
from planner.launch.read.python_files import read_python

_ARGUMENTS = re.compile(r"(TrainingArguments|SFTConfig|DPOConfig|GRPOConfig|RLOOConfig|PPOConfig|"
                        r"KTOConfig|ORPOConfig|RewardConfig|CPOConfig)$")  # fmt: skip
# What trainers and configurations are called by; those that sample stand first.
_OTHER_OBJECTIVES = {
    "AsyncGRPO": "async_grpo", "GRPO": "grpo", "PPO": "ppo", "RLOO": "rloo",
    "OnlineDPO": "online_dpo", "GKD": "gkd", "DPO": "dpo",
    "KTO": "kto", "ORPO": "orpo", "CPO": "cpo", "Reward": "rm", "BCO": "bco",
}  # fmt: skip
_MODELS = re.compile(
    r"(\w+ForCausalLM|AutoModelForSequenceClassification|GPT2LMHeadModel|FastLanguageModel|"
    r"FastModel)$"
)
# Classes that load something else than a decoder of text; the setting that names them.
_OTHERS = re.compile(
    r"(AutoModelFor\w+|\w+ForConditionalGeneration|FastVisionModel|\w+ForMaskedLM)$"
)
OTHER_CLASS = "model_class"
# TRL's trainers put adapters on themselves; those that took TrainingArguments prepared packed
# weights as peft does (trl 0.7 to 0.15, trainer/sft_trainer.py).
PREPARED, TRL_TRAINER = "prepared_by_trainer", "trl_trainer"
_TRL_TRAINERS = ("SFTTrainer", "DPOTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer")
_NONE = Setting("", None)
_OF_TRL = re.compile(r"(SFT|DPO|GRPO|RLOO|KTO|ORPO|CPO|Reward)Config$")
_UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel")
# Configurations of peft that are no LoRA.
_OTHER_ADAPTERS = {
    "PromptTuningConfig": "prompt_tuning", "PrefixTuningConfig": "prefix_tuning",
    "PromptEncoderConfig": "p_tuning", "IA3Config": "ia3", "AdaLoraConfig": "adalora",
    "VeraConfig": "vera", "OFTConfig": "oft", "BOFTConfig": "boft", "LoHaConfig": "loha",
    "LoKrConfig": "lokr", "FourierFTConfig": "fourierft", "BoneConfig": "bone",
    "MissConfig": "miss", "HRAConfig": "hra", "RandLoraConfig": "randlora",
}  # fmt: skip
# Keywords -> settings.
_LORA = {
    "r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules", "modules_to_save": "modules_to_save",
    "use_dora": "use_dora", "layers_to_transform": "peft_layers_to_transform",
    "target_parameters": "lora_target_parameters",
}  # fmt: skip
_OF_UNSLOTH = {
    "use_gradient_checkpointing": "gradient_checkpointing",
    "finetune_vision_layers": "finetune_vision_layers",
    "finetune_language_layers": "finetune_language_layers",
}  # fmt: skip
_BITS = {
    name: name
    for name in ("load_in_4bit", "load_in_8bit", "bnb_4bit_use_double_quant", "bnb_4bit_quant_type")
}
_LOADS = {
    "load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit", "torch_dtype": "torch_dtype",
    "dtype": "dtype", "attn_implementation": "attn_implementation",
    "max_seq_length": "max_seq_length", "full_finetuning": "full_finetuning",
}  # fmt: skip
# Of trainers themselves; TRL's took these before their configurations had them.
_TRAINS = {"max_seq_length": "max_seq_length", "packing": "packing", "max_length": "max_length"}
_NAMES = ("pretrained_model_name_or_path", "model_name", "model_id", "model_name_or_path")


def is_hf_python(text: str) -> bool:
    """Whether a Python file trains with Hugging Face's Trainer."""
    return re.search(
        r"\b(\w*TrainingArguments|(SFT|DPO|(Async)?GRPO|RLOO|KTO|ORPO|CPO|Reward)Config)\b", text
    ) is not None and ("Trainer" in text)


@dataclass(frozen=True)
class ScriptSettings:
    """What a script says: settings, the program whose defaults they have, and options of its own
    whose default was taken."""

    settings: dict[str, Setting]
    program: Program
    defaults: Mapping[str, object]


def hf_python_settings(
    text: Text,
    path: str,
    given: Mapping[str, Setting] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    demanded: bool = True,
) -> ScriptSettings:
    """Arguments of the training configuration, the model that is loaded and what is put on it.
    `given`: arguments of the command that starts it.

    CannotTellError for a program that takes them from its command line, where they are `demanded`.
    """
    tree = read_python(text, path).tree
    values = ScriptValues(tree, given or {}, environment or {}, Path(path).parent)
    script = _Script(values, path)
    if not script.configured and demanded:
        raise CannotTellError(
            f"{path}: it takes its TrainingArguments from the command line: give the script that "
            "starts it"
        )
    settings = script.read()
    return ScriptSettings(settings, script.program, values.defaults)


@dataclass
class _Script:
    """A script whose calls are read."""

    values: ScriptValues
    path: str
    found: dict[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        module = self.values.module
        parts = (module, *self.values.functions)
        walked = (node for part in parts for node in ast.walk(part))
        self.calls = [node for node in walked if isinstance(node, ast.Call)]
        self.configured = [
            node for node in self.calls if _ARGUMENTS.search(last_name(node.func)) and node.keywords
        ]

    @property
    def program(self) -> Program:
        """Whose defaults hold."""
        if {_owner(node) for node in self.calls} & {*_UNSLOTH}:
            return "unsloth"
        walked = ast.walk(self.values.module)
        names = (node.id for node in walked if isinstance(node, ast.Name))
        called = (last_name(node.func) for node in self.calls)
        return "trl" if any(_OF_TRL.match(name) for name in (*names, *called)) else "trainer"

    def read(self) -> dict[str, Setting]:
        """Everything that is said."""
        if self.configured:
            self._keywords(self.configured[0])
        self._stage()
        for node in self.calls:
            if self.values.runs(node)[0] is not False:
                self._call(node, last_name(node.func))
        self._adapters()
        self._cut()
        if self.found.get("stage", _NONE).value != "rm" and self._classifies():
            name = "AutoModelForSequenceClassification"
            self.found.setdefault(OTHER_CLASS, Setting(OTHER_CLASS, name, self.path))
        return self.found

    def _classifies(self) -> bool:
        """Whether it puts classes on sequences, and is no reward model."""
        return any(_owner(node).endswith("ForSequenceClassification") for node in self.calls)

    def _stage(self) -> None:
        """What is minimised, by the trainers that are made, else by the configuration."""
        trainers = [node for node in self.calls if last_name(node.func).endswith("Trainer")]
        for start, stage in _OTHER_OBJECTIVES.items():
            for node in (*trainers, *self.configured[:1]):
                if last_name(node.func).startswith(start):
                    self._mark("stage", stage, node)

    def _call(self, node: ast.Call, name: str) -> None:
        """One call's share."""
        if name == "BitsAndBytesConfig":
            self._put(node, _BITS)
        elif name == "from_pretrained" and _MODELS.search(_owner(node)):
            self._loaded(node)
        elif name == "from_pretrained" and _OTHERS.search(_owner(node)):
            self._mark(OTHER_CLASS, _owner(node), node)
            self._loaded(node)
        elif name.endswith("Trainer"):
            self._put(node, _TRAINS)
            if name in _TRL_TRAINERS:
                self._mark(TRL_TRAINER, True, node)
                if any(one.arg == "peft_config" for one in node.keywords):
                    self._mark(PREPARED, True, node)
            model = next((one.value for one in node.keywords if one.arg == "model"), None)
            if model is not None and self._is_name(model):
                self._set("model_name_or_path", model)
        elif name == "from_pretrained" and _owner(node) == "PeftModel":
            self._resumed(node)
        elif name == "prepare_model_for_kbit_training":
            off = any(
                one.arg == "use_gradient_checkpointing" and _is_false(one.value)
                for one in node.keywords
            )
            self._mark("prepare_kbit", not off, node)
        elif name == "gradient_checkpointing_enable":
            self._mark("gradient_checkpointing", True, node)

    def _is_name(self, node: ast.expr) -> bool:
        """Whether an expression names a model: a text, or what one of the script's options is."""
        try:
            return isinstance(self.values.of(node), str)
        except NoValueError:
            return False

    def _loaded(self, node: ast.Call) -> None:
        """The model."""
        named = {one.arg: one.value for one in node.keywords}
        model = next((named[name] for name in _NAMES if name in named), None)
        model = node.args[0] if node.args else model
        if model is not None:
            self._set("model_name_or_path", model)
        self._put(node, _LOADS)
        self._packed(named.get("quantization_config"))
        if _owner(node) in _UNSLOTH:
            self._of_unsloth(node)

    def _packed(self, node: ast.expr | None) -> None:
        """How weights are packed, where a table says it in place of BitsAndBytesConfig."""
        if node is not None and not isinstance(node, ast.Call):
            self._of_table(node, _BITS)

    def _of_table(self, node: ast.expr, names: Mapping[str, str]) -> None:
        """Entries of a table, as settings."""
        try:
            table = self.values.of(node)
        except NoValueError:
            return
        for key, value in table.items() if isinstance(table, dict) else ():
            if key in names:
                self._mark(names[key], value, node)

    def _resumed(self, node: ast.Call) -> None:
        """Adapters of a folder, where they are trained on."""
        named = {one.arg: one.value for one in node.keywords}
        trained = named.get("is_trainable")
        if not isinstance(trained, ast.Constant) or trained.value is not True:
            return
        self._mark("adapter", "lora", node)
        folder = node.args[1] if len(node.args) > 1 else named.get("model_id")
        if folder is not None:
            self._set("adapter_name_or_path", folder)

    def _of_unsloth(self, node: ast.Call) -> None:
        """unsloth loads in 4 bits and checkpoints unless told otherwise (unsloth/models/loader.py,
        from_pretrained, at 015bdef0d)."""
        whole = any(self._is(name, True) for name in ("full_finetuning", "load_in_8bit"))
        if not whole:
            self.found.setdefault("load_in_4bit", Setting("load_in_4bit", True, self.path))
        self._mark("use_unsloth", True, node)

    def _is(self, name: str, value: object) -> bool:
        return name in self.found and self.found[name].value == value

    def _adapters(self) -> None:
        """What is put on the model, where its tests lead there."""
        for node in self.calls:
            name = last_name(node.func)
            if name not in (*_OTHER_ADAPTERS, "LoraConfig", "get_peft_model"):
                continue
            runs, test = self.values.runs(node)
            if runs is None:
                why = f"put on the model where {test}, which is not known"
                unknown = Setting("adapter", None, self.path, node.lineno, (), None, why)
                self.found.setdefault("adapter", unknown)
            if runs:
                self._put_on(node, name)

    def _put_on(self, node: ast.Call, name: str) -> None:
        """One configuration of adapters, or the call that puts them on."""
        known = self.found.get("adapter")
        if known is not None and known.unknown:
            del self.found["adapter"]
        self._mark("adapter", _OTHER_ADAPTERS.get(name, "lora"), node)
        if name == "LoraConfig":
            self._put(node, _LORA)
        if name == "get_peft_model" and _owner(node) in _UNSLOTH:
            self._put(node, _LORA | _OF_UNSLOTH)
            if _owner(node) == "FastVisionModel":  # of the parts that are tuned
                self._mark("lora_target_modules", "all-linear", node)
            self._mark("gradient_checkpointing", "unsloth", node)

    def _cut(self) -> None:
        """The tokenizer's: tokenizer(text, truncation=True, max_length=1024)."""
        for node in self.calls:
            keywords = {one.arg: one.value for one in node.keywords}
            if "truncation" in keywords and "max_length" in keywords:
                self._set("max_length", keywords["max_length"])

    # --- values -------------------------------------------------------------------------------

    def _keywords(self, node: ast.Call) -> None:
        """All keywords of a call; those of tables that it is given (`**settings`)."""
        for one in node.keywords:
            if one.arg:
                self._set(one.arg, one.value)
                continue
            try:
                table = self.values.of(one.value)
            except NoValueError:
                continue
            if isinstance(table, dict):
                for key, inner in leaves({str(name): value for name, value in table.items()}):
                    self.found.setdefault(key, Setting(key, inner, self.path, node.lineno))

    def _put(self, node: ast.Call, names: Mapping[str, str]) -> None:
        """Some keywords of a call, as settings; those of tables that it is given, too."""
        for one in node.keywords:
            if one.arg is None:
                self._of_table(one.value, names)
            elif one.arg in names:
                self._set(names[one.arg], one.value)

    def _mark(self, name: str, value: object, node: ast.expr) -> None:
        self.found.setdefault(name, Setting(name, value, self.path, node.lineno))

    def _set(self, name: str, node: ast.expr) -> None:
        """A setting; the first that has a value stays."""
        known = self.found.get(name)
        if known is not None and not known.unknown:
            return
        for key, setting in self._settings(name, node):
            if known is None or not setting.unknown:
                self.found[key] = setting

    def _settings(self, name: str, node: ast.expr) -> Iterator[tuple[str, Setting]]:
        """A value, a table of values under dotted names, or why the value is not known."""
        try:
            value = self.values.of(node)
        except NoValueError:
            why = self.values.shown(node)
            yield name, Setting(name, None, self.path, node.lineno, (), None, why)
            return
        for key, inner in leaves({name: value}):
            yield key, Setting(key, inner, self.path, node.lineno)


def _owner(node: ast.Call) -> str:
    """`AutoModelForCausalLM` of `AutoModelForCausalLM.from_pretrained(...)`."""
    return last_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
