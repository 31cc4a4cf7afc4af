"""Reads YAML files with NeMo AutoModel's own typed configuration, in a process of its own.

    python automodel_parser.py < cases.json > verdicts.json

A case is {"text": YAML, "argv": [overrides]}; its verdict is {"ok": bool, "error": text,
"seen": {...}}. What runs is AutoModel's loader with the command's overrides, its parser of the
section `distributed`, and every typed section of a recipe; nothing is built, which wants GPUs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Read cases, print verdicts."""
    # The libraries print as they are imported: verdicts keep the standard output for themselves.
    verdicts = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cases = json.load(sys.stdin)
    json.dump([_verdict(case) for case in cases], verdicts)


def _verdict(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "automodel.yaml"
        path.write_text(case["text"])
        try:
            return {"ok": True, "error": "", "seen": _seen(str(path), case.get("argv", []))}
        except Exception as error:  # noqa: BLE001 (whatever it refuses with)
            return {"ok": False, "error": f"{type(error).__name__}: {error}", "seen": {}}


def _seen(path: str, argv: list[str]) -> dict[str, Any]:
    """What the tool's own classes hold."""
    from nemo_automodel.components.config import _arg_parser  # type: ignore[import-not-found]
    from nemo_automodel.recipes import _dist_utils, _typed_config  # type: ignore[import-not-found]

    raw = _arg_parser.parse_args_and_load_config(path, argv=argv)
    recipe = _typed_config.RecipeConfig(raw)
    split = _dist_utils.parse_distributed_section(raw.distributed.to_dict())
    loader, pipeline = recipe.dataloader, split["pipeline_config"]
    peft = None if raw.get("peft", None) is None else raw.peft.instantiate()
    packed = raw.get("quantization", None)
    strategy = split["strategy_config"]
    return {
        **{name: split[f"{name}_size"] for name in ("tp", "pp", "cp", "dp_replicate")},
        "strategy": type(strategy).__name__,
        "reshards": getattr(strategy, "reshard_after_forward", None),
        "recomputes": split["activation_checkpointing"],
        "stages": None if pipeline is None else pipeline.layers_per_stage,
        "gbs": recipe.step_scheduler.global_batch_size,
        "steps": recipe.step_scheduler.max_steps,
        "local": loader.batch_size,
        "seq": loader.dataset_config.seq_length,
        "pack": None if loader.packing is None else loader.packing.packed_sequence_size,
        "loss": type(recipe.loss_fn).__name__,
        "rate": recipe.optimizer.kwargs["lr"],
        "saves": recipe.checkpoint.enabled,
        "warmup": recipe.lr_scheduler.lr_warmup_steps,
        "rank": None if peft is None else peft.dim,
        "dora": None if peft is None else peft.use_dora,
        "four_bits": None if packed is None else packed.load_in_4bit,
    }


if __name__ == "__main__":
    main()
