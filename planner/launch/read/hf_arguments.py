"""Arguments of a Hugging Face Trainer script: what its command line says of the batch and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.launch.read.command import LaunchCommand, setting_of
from planner.launch.read.found import Hints, Setting
from planner.launch.read.shell_words import Word
from planner.launch.read.text import Files

# TrainingArguments (transformers 5.23) and common scripts' own: argument -> field of `Hints`.
_NAMES: Mapping[str, str] = {
    "per_device_train_batch_size": "mbs",
    "gradient_accumulation_steps": "grad_acc",
    "model_name_or_path": "model",
    "model_name": "model",
    "block_size": "seq",
    "max_seq_length": "seq",
    "max_length": "seq",
    "model_max_length": "seq",
    "seq_length": "seq",
}
_CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")
# --optim -> the planner's name.
_OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw",
    "adamw_8bit": "adamw-8bit", "adamw_bnb_8bit": "adamw-8bit", "paged_adamw_8bit": "adamw-8bit",
    "adamw_torch_8bit": "adamw-8bit", "adamw_torch_4bit": "adamw-4bit",
    "adafactor": "adafactor", "lion_32bit": "lion", "sgd": "sgd",
}  # fmt: skip


@dataclass
class HfArguments:
    """`hints`: what the script's arguments say, what the caller says having won."""

    hints: Hints = field(default_factory=Hints)
    given: dict[str, Setting] = field(default_factory=dict)
    optimizer: str | None = None

    @property
    def where(self) -> dict[str, Setting]:
        """Settings by field of `Found`."""
        return {_NAMES[name]: own for name, own in self.given.items() if name in _NAMES}


def read_hf_arguments(launch: LaunchCommand | None, files: Files, hints: Hints) -> HfArguments:
    """Arguments of the script that a command runs; empty without one."""
    given = _given(launch.arguments if launch else (), files)
    values: dict[str, object] = {}
    for name, own in given.items():
        field_name = _NAMES.get(name)
        if field_name is not None and not own.unknown:
            text = str(own.value)
            number = int(text) if text.isdigit() else None
            value = text if field_name == "model" else number
            if value is not None:
                values.setdefault(field_name, value)
    if any(_is_on(given.get(name)) for name in _CHECKPOINTING):
        values["recompute"] = "full"
    optimizer = given.get("optim")
    merged = {
        name: getattr(hints, name) if getattr(hints, name) is not None else values.get(name)
        for name in ("model", "seq", "mbs", "grad_acc", "recompute")
    }
    return HfArguments(
        Hints(
            framework=hints.framework,
            environment=hints.environment,
            gpus=hints.gpus,
            gbs=hints.gbs,
            vocab=hints.vocab,
            **merged,  # type: ignore[arg-type]
        ),
        given,
        _OPTIMIZERS.get(str(optimizer.value)) if optimizer else None,
    )


def _given(words: Sequence[Word], files: Files) -> dict[str, Setting]:
    """`--name value`, `--name=value` and switches."""
    found: dict[str, Setting] = {}
    for at, word in enumerate(words):
        text = word.text.value
        if not text.startswith("--"):
            continue
        name, equals, _ = text[2:].partition("=")
        name = name.replace("-", "_")
        following = words[at + 1] if at + 1 < len(words) else None
        if equals:
            found[name] = setting_of(name, word.text[len(name) + 3 :], None, files)
        elif following is not None and not following.text.value.startswith("--"):
            found[name] = setting_of(name, following.text, following.used, files)
        else:
            own = setting_of(name, word.text, word.used, files)
            found[name] = Setting(name, True, own.file, own.line)
    return found


def _is_on(own: Setting | None) -> bool:
    return own is not None and str(own.value).lower() not in ("false", "0", "no")
