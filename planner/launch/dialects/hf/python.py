"""Hugging Face training settings in Python: `TrainingArguments(...)` and TRL's configurations,
`LoraConfig(...)`, `BitsAndBytesConfig(...)`, `from_pretrained(...)`, unsloth's `FastLanguageModel`.
Scripts are read as text and never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.job.errors import CannotTellError
from planner.launch.dialects.hf.arguments import Program
from planner.launch.dialects.hf.script_values import NoValueError, ScriptValues
from planner.launch.languages.python import last_name
from planner.launch.languages.text import Text
from planner.launch.read.document import leaves
from planner.launch.read.found import Setting
from planner.launch.read.python_files import read_python
from planner.launch.registry import dialect_toml

_OF_TRL = r"(SFT|DPO|GRPO|RLOO|KTO|ORPO|CPO|Reward)Config"
_ARGUMENTS = re.compile(rf"(TrainingArguments|PPOConfig|{_OF_TRL})$")
_MODELS = re.compile(
    r"(\w+ForCausalLM|AutoModelForSequenceClassification|GPT2LMHeadModel|FastLanguageModel|"
    r"FastModel)$"
)
# Classes that load something other than a text decoder; the setting that records them.
_OTHERS = re.compile(
    r"(AutoModelFor\w+|\w+ForConditionalGeneration|FastVisionModel|\w+ForMaskedLM)$"
)
OTHER_CLASS = "model_class"
# TRL's trainers add adapters themselves; releases that took TrainingArguments prepared packed
# weights like peft (trl 0.7 to 0.15, trainer/sft_trainer.py).
PREPARED, TRL_TRAINER = "prepared_by_trainer", "trl_trainer"
_TRL_TRAINERS = ("SFTTrainer", "DPOTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer")
_UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel")
_NAMES = ("pretrained_model_name_or_path", "model_name", "model_id", "model_name_or_path")
_TABLES = dialect_toml("hf", "scripts.toml")
KEYWORDS: Mapping[str, Mapping[str, str]] = _TABLES["keywords"]
_OTHER_ADAPTERS: Mapping[str, str] = _TABLES["other_adapters"]


def is_hf_python(text: str) -> bool:
    """Whether a Python file trains with Hugging Face's Trainer."""
    configured = rf"\b(\w*TrainingArguments|AsyncGRPOConfig|{_OF_TRL})\b"
    return "Trainer" in text and re.search(configured, text) is not None


@dataclass(frozen=True)
class ScriptSettings:
    """The content of a script: its settings, the program whose defaults apply, and the script's own
    options whose defaults were used."""

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
    """Arguments of the training configuration, and how the model is loaded and modified. `given`:
    arguments of the command that starts the script.

    CannotTellError for a script that takes its configuration from the command line, if it is
    `demanded`.
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
    """A script, with the calls in it."""

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
        """The program whose defaults apply."""
        if {_owner(node) for node in self.calls} & {*_UNSLOTH}:
            return "unsloth"
        walked = ast.walk(self.values.module)
        names = (node.id for node in walked if isinstance(node, ast.Name))
        called = (last_name(node.func) for node in self.calls)
        of_trl = any(re.fullmatch(_OF_TRL, name) for name in (*names, *called))
        return "trl" if of_trl else "trainer"

    def read(self) -> dict[str, Setting]:
        """All settings."""
        if self.configured:
            self._keywords(self.configured[0])
        self._stage()
        for node in self.calls:
            if self.values.runs(node)[0] is not False:
                self._call(node, last_name(node.func))
        self._adapters()
        self._cut()
        # A script that classifies sequences and does not train a reward model.
        kind = "ForSequenceClassification"
        classifies = any(_owner(node).endswith(kind) for node in self.calls)
        if classifies and not self._is("stage", "rm"):
            self.found.setdefault(OTHER_CLASS, Setting(OTHER_CLASS, f"AutoModel{kind}", self.path))
        return self.found

    def _stage(self) -> None:
        """The objective, by the trainers that are created, else by the configuration."""
        trainers = [node for node in self.calls if last_name(node.func).endswith("Trainer")]
        for start, stage in _TABLES["objectives"].items():
            for node in (*trainers, *self.configured[:1]):
                if last_name(node.func).startswith(start):
                    self._mark("stage", stage, node)

    def _call(self, node: ast.Call, name: str) -> None:
        """Settings in one call."""
        owner, given = _owner(node), _given(node)
        if name == "BitsAndBytesConfig":
            self._put(node, KEYWORDS["bits"])
        elif name == "from_pretrained" and _MODELS.search(owner):
            self._loaded(node)
        elif name == "from_pretrained" and _OTHERS.search(owner):
            self._mark(OTHER_CLASS, owner, node)
            self._loaded(node)
        elif name == "from_pretrained" and owner == "PeftModel":
            self._resumed(node)
        elif name.endswith("Trainer"):
            self._put(node, KEYWORDS["trains"])
            if name in _TRL_TRAINERS:
                self._mark(TRL_TRAINER, True, node)
                if "peft_config" in given:
                    self._mark(PREPARED, True, node)
            if "model" in given and self._is_name(given["model"]):
                self._set("model_name_or_path", given["model"])
        elif name == "prepare_model_for_kbit_training":
            said = given.get("use_gradient_checkpointing")
            off = isinstance(said, ast.Constant) and said.value is False
            self._mark("prepare_kbit", not off, node)
        elif name == "gradient_checkpointing_enable":
            self._mark("gradient_checkpointing", True, node)

    def _is_name(self, node: ast.expr) -> bool:
        """Whether the value of an expression is known and a text, as the name of a model is."""
        try:
            return isinstance(self.values.of(node), str)
        except NoValueError:
            return False

    def _loaded(self, node: ast.Call) -> None:
        """The model, and how its weights are packed if a table says so instead of
        BitsAndBytesConfig. unsloth loads in 4 bits and checkpoints by default
        (unsloth/models/loader.py, from_pretrained, at 015bdef0d)."""
        given = _given(node)
        models = [*node.args[:1], *(given[name] for name in _NAMES if name in given)]
        if models:
            self._set("model_name_or_path", models[0])
        self._put(node, KEYWORDS["loads"])
        packing = given.get("quantization_config")
        if packing is not None and not isinstance(packing, ast.Call):
            self._of_table(packing, KEYWORDS["bits"])
        if _owner(node) in _UNSLOTH:
            if not (self._is("full_finetuning", True) or self._is("load_in_8bit", True)):
                self.found.setdefault("load_in_4bit", Setting("load_in_4bit", True, self.path))
            self._mark("use_unsloth", True, node)

    def _of_table(self, node: ast.expr, names: Mapping[str, str]) -> None:
        for key, value in self._table(node).items():
            if key in names:
                self._mark(names[key], value, node)

    def _table(self, node: ast.expr) -> dict[Any, Any]:
        """The value of an expression if it is a table; empty if it is not, or is unknown."""
        try:
            table = self.values.of(node)
        except NoValueError:
            return {}
        return table if isinstance(table, dict) else {}

    def _resumed(self, node: ast.Call) -> None:
        """Note a call that loads adapters to train them further (`is_trainable=True`), and their
        folder."""
        given = _given(node)
        trained = given.get("is_trainable")
        if not isinstance(trained, ast.Constant) or trained.value is not True:
            return
        self._mark("adapter", "lora", node)
        folder = node.args[1] if len(node.args) > 1 else given.get("model_id")
        if folder is not None:
            self._set("adapter_name_or_path", folder)

    def _is(self, name: str, value: object) -> bool:
        return name in self.found and self.found[name].value == value

    def _adapters(self) -> None:
        """Collect the settings of adapters from the calls that run. If it is unknown whether a call
        runs, because of an `if` around it, the setting `adapter` is unknown."""
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
        """Collect the settings of adapters from one call: a configuration such as LoraConfig, or
        the call that adds adapters to the model."""
        known = self.found.get("adapter")
        if known is not None and known.unknown:
            del self.found["adapter"]
        self._mark("adapter", _OTHER_ADAPTERS.get(name, "lora"), node)
        if name == "LoraConfig":
            self._put(node, KEYWORDS["lora"])
        if name == "get_peft_model" and _owner(node) in _UNSLOTH:
            self._put(node, {**KEYWORDS["lora"], **KEYWORDS["unsloth"]})
            if _owner(node) == "FastVisionModel":  # of the parts that are tuned
                self._mark("lora_target_modules", "all-linear", node)
            self._mark("gradient_checkpointing", "unsloth", node)

    def _cut(self) -> None:
        """Set `max_length` from a call of the tokenizer that cuts texts: tokenizer(text,
        truncation=True, max_length=1024)."""
        for node in self.calls:
            if {"truncation", "max_length"} <= (given := _given(node)).keys():
                self._set("max_length", given["max_length"])

    # --- values -------------------------------------------------------------------------------

    def _keywords(self, node: ast.Call) -> None:
        """All keywords of a call, including those of `**settings`."""
        for one in node.keywords:
            if one.arg:
                self._set(one.arg, one.value)
                continue
            table = {str(name): value for name, value in self._table(one.value).items()}
            for key, inner in leaves(table):
                self.found.setdefault(key, Setting(key, inner, self.path, node.lineno))

    def _put(self, node: ast.Call, names: Mapping[str, str]) -> None:
        """Collect settings from the keywords of a call that `names` maps to a setting's name, also
        those in `**settings`."""
        for one in node.keywords:
            if one.arg is None:
                self._of_table(one.value, names)
            elif one.arg in names:
                self._set(names[one.arg], one.value)

    def _mark(self, name: str, value: object, node: ast.expr) -> None:
        self.found.setdefault(name, Setting(name, value, self.path, node.lineno))

    def _set(self, name: str, node: ast.expr) -> None:
        """Add a setting unless it already has a value."""
        known = self.found.get(name)
        if known is not None and not known.unknown:
            return
        for key, setting in self._settings(name, node):
            if known is None or not setting.unknown:
                self.found[key] = setting

    def _settings(self, name: str, node: ast.expr) -> Iterator[tuple[str, Setting]]:
        """A value, the entries of a table under dotted names, or why the value is unknown."""
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


def _given(node: ast.Call) -> dict[str | None, ast.expr]:
    """The keywords of a call; None stands for `**settings`."""
    return {one.arg: one.value for one in node.keywords}
