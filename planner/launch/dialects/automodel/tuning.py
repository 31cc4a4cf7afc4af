"""How an AutoModel file trains the weights.

NVIDIA-NeMo/Automodel 0.7.0: defaults of adapters from components/_peft/lora.py (dim 8, alpha 32, no
dropout, weights in the base's format), matching of modules from module_matcher.py
(`match_all_linear` includes the head), packed weights from components/quantization/qlora.py (NF4
with double quantisation).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from planner.job.models.catalog import load_model
from planner.launch.dialects.hf.modules import ALL_LINEAR, adapter_table, named_modules
from planner.launch.options import run_options
from planner.launch.read.document import DocumentReader

TUNING = run_options("automodel")["tuning"]
_HEAD = "lm_head"
_TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class Adapters:
    """How a file trains the weights, from its tables `peft:` and `quantization:`."""

    def __init__(self, reader: DocumentReader) -> None:
        self.reader, self.document = reader, reader.document

    def _get(self, name: str, default: Any = None) -> Any:
        return self.document.get(TUNING[name].key, default)

    @property
    def stand(self) -> bool:
        """Whether the file has adapters."""
        return any(key.startswith("peft.") for key in self.document.settings)

    @property
    def are_plain(self) -> bool:
        """Whether the file has LoRA adapters (not DoRA) without dropout, on a base that is not
        packed in 4 or 8 bits."""
        plain = self._get("dora", False) is not True and not self._get("dropout", 0.0)
        return self.stand and plain and not self._base()

    def train(self, model: str | None) -> str:
        """The value of `--train`."""
        if not self.stand:
            if self.document.has("freeze_config"):
                frozen = (key for key in self.document.settings if key.startswith("freeze_config"))
                self.reader.unpredictable("frozen parts of a model are not modelled", *frozen)
            return "full"
        dropout = self.reader.share(TUNING["dropout"].key, 0.0)
        said = {
            "rank": str(self.reader.whole(TUNING["rank"].key, 8)),
            "alpha": f"{self._get('alpha', 32)}",
            "targets": "+".join(self._targets(model)),
            "base": self._base(),
            "adapter": self._type(),
            "dropout": f"{dropout:g}" if dropout else "",
        }
        method = "dora" if self._get("dora", False) is True else "qlora" if said["base"] else "lora"
        return f"{method}:" + ",".join(f"{name}={value}" for name, value in said.items() if value)

    def _type(self) -> str:
        """The format of the adapters, `fp32` or `fp16`, from `lora_dtype`; empty for any other
        value or none."""
        stated = str(self.document.get("peft.lora_dtype", "")).rpartition(".")[2]
        named = _TYPES.get(stated, stated)
        return named if named in ("fp32", "fp16") else ""

    def _base(self) -> str:
        """The packed format: NF4 or int8."""
        if self._get("eight-bits", False) is True:
            return "int8"
        if self._get("four-bits", False) is not True:
            return ""
        return "nf4-double" if self._get("double", True) is not False else "nf4"

    def _targets(self, model: str | None) -> tuple[str, ...]:
        """Linear layers that match the patterns and no exclusion."""
        stated, left_out = self._get("targets"), _listed(self._get("excluded"))
        if self._get("every", False) is True:
            return (ALL_LINEAR, "head")
        if not stated and left_out and all(_matches(_HEAD, [one]) for one in left_out):
            return (ALL_LINEAR,)
        patterns = _listed(stated) if stated else ["*_proj"] if not left_out else ["*"]
        spec = None if model is None else load_model(model).spec
        own: Mapping[str, Any] = adapter_table("families").get(spec.family if spec else "", {})
        known: Mapping[str, str] = own.get("modules", adapter_table("modules"))
        names = [*_matching(known, patterns, left_out)]
        modules = named_modules(names, spec)
        if not modules.words:
            text = f"target_modules {stated}: no linear layer of the model is called so"
            self.reader.refuse("adapter-targets", text, TUNING["targets"].key, severity="missing")
        return modules.words or (ALL_LINEAR,)


def _matching(known: Mapping[str, str], patterns: list[str], left_out: list[str]) -> Iterator[str]:
    for name, word in known.items():
        linear = word not in ("head", "embeddings")
        if linear and _matches(name, patterns) and not _matches(name, left_out):
            yield name


def _listed(value: object) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _matches(name: str, patterns: list[str]) -> bool:
    """Whether the last part of a module's path matches a wildcard pattern."""
    return any(fnmatch.fnmatch(name, pattern.rpartition(".")[2] or "*") for pattern in patterns)
