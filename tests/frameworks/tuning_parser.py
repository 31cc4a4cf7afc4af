"""Runs a tool's own parser on files that ask for fine-tuning, on a CPU, in a process of its own.

    python tuning_parser.py TOOL < cases.json > verdicts.json

TOOL is peft, trl-sft, trl-dpo, trl-kto, trl-reward, llamafactory, axolotl or torchtune. A case is
{"file": name, "text": text, "show": ["group.field", ...]}; its verdict is {"ok": bool, "error":
text, "seen": {"group.field": value}}. Groups are the tool's own classes of configuration; what they
ask of a GPU is answered for them.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Groups = Mapping[str, Any]


def peft(path: Path) -> Groups:
    """The configuration of an adapter, of whose keys peft must know each."""
    from peft import PeftConfig

    found = PeftConfig.from_pretrained(str(path.parent))
    unknown = set(json.loads(path.read_text(encoding="utf-8"))) - set(
        inspect.signature(type(found)).parameters
    )
    if unknown:
        raise ValueError(f"{type(found).__name__} has no {', '.join(sorted(unknown))}")
    return {"adapter": found}


def _trl(trainer: str) -> Callable[[Path], Groups]:
    def parsed(path: Path) -> Groups:
        import trl

        classes = (trl.ScriptArguments, getattr(trl, f"{trainer}Config"), trl.ModelConfig)
        script, training, model = trl.TrlParser(classes).parse_args_and_config(
            ["--config", str(path)], fail_with_unknown_args=True
        )
        adapter = trl.get_peft_config(model)
        return {"script": script, "training": training, "model": model, "adapter": adapter}

    return parsed


def llamafactory(path: Path) -> Groups:
    """What `llamafactory-cli train FILE` reads."""
    import yaml
    from llamafactory.hparams import get_train_args

    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    names = ("model", "data", "training", "finetuning", "generating")
    return dict(zip(names, get_train_args(document), strict=True))


def axolotl(path: Path) -> Groups:
    """What `axolotl train FILE` reads, but for what it asks of the GPU."""
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig

    return {"run": AxolotlInputConfig(**yaml.safe_load(path.read_text(encoding="utf-8")))}


def torchtune(path: Path) -> Groups:
    """What `tune validate FILE` reads: every component takes the arguments that it is given."""
    from omegaconf import OmegaConf
    from torchtune import config

    found = OmegaConf.load(path)
    config.validate(found)
    return {"run": found, **{name: part for name, part in found.items() if hasattr(part, "keys")}}


PARSERS: Mapping[str, Callable[[Path], Groups]] = {
    "peft": peft,
    "trl-sft": _trl("SFT"),
    "trl-dpo": _trl("DPO"),
    "trl-kto": _trl("KTO"),
    "trl-reward": _trl("Reward"),
    "llamafactory": llamafactory,
    "axolotl": axolotl,
    "torchtune": torchtune,
}


def verdict(tool: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """What the tool says of one file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / case["file"]
        path.write_text(case["text"], encoding="utf-8")
        try:
            groups = PARSERS[tool](path)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what a tool raises is its verdict
            return {"ok": False, "error": f"{type(error).__name__}: {error}", "seen": {}}
    seen = {name: _value(groups, name) for name in case.get("show", ())}
    return {"ok": True, "error": "", "seen": seen}


def _value(groups: Groups, name: str) -> Any:
    """A field as JSON has it; sets sorted, other objects in words."""
    group, _, field = name.partition(".")
    value = getattr(groups[group], field)
    value = getattr(value, "value", value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    plain = str | int | float | bool | list | tuple | dict | None
    return value if isinstance(value, plain) else str(value)


def _pretend_gpu() -> None:
    """transformers' arguments ask whether the GPU has bf16."""
    with contextlib.suppress(ModuleNotFoundError):
        from transformers import training_args, utils

        utils.is_torch_bf16_gpu_available = lambda: True
        training_args.is_torch_bf16_gpu_available = lambda: True


def main(tool: str) -> None:
    """Read cases, print verdicts: tools print as they go, so these keep the standard output."""
    verdicts = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        _pretend_gpu()
        found = [verdict(tool, case) for case in json.load(sys.stdin)]
    json.dump(found, verdicts)


if __name__ == "__main__":
    main(sys.argv[1])
