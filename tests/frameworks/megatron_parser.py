"""Runs Megatron-LM's own parser on command lines, on a CPU, in a process of its own.

    python megatron_parser.py FOLDER < cases.json > verdicts.json

FOLDER holds the unpacked megatron-core wheel. A case is {"argv": [...], "world": N, "env": {...},
"capability": [9, 0], "show": [...]}; its verdict is {"ok": bool, "error": text, "args": {...},
"config": {...}}, the last of the fields that `show` names. What runs is
`parse_args`, `validate_args` and the TransformerConfig that they lead to; what they ask of a GPU
(generation, properties, version of Transformer Engine) is answered for them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
import types
import typing
from pathlib import Path
from typing import Any

# The oldest that the launch folder asks for.
_TRANSFORMER_ENGINE = "2.8.0"
_SHOWN = (
    "data_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "global_batch_size",
    "micro_batch_size",
    "num_layers",
    "padded_vocab_size",
)


def main(folder: str) -> None:
    """Read cases, print verdicts."""
    # Megatron prints as it goes: verdicts keep the standard output for themselves.
    verdicts = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not hasattr(typing, "override"):
        # The wheel asks for Python 3.12 for this name alone.
        typing.override = lambda method: method  # type: ignore[attr-defined]
    sys.path.insert(0, folder)
    import torch
    from megatron.core import utils  # type: ignore[import-not-found]
    from megatron.training import arguments  # type: ignore[import-not-found]

    utils._te_version = utils.PkgVersion(_TRANSFORMER_ENGINE)
    arguments._print_args = lambda *_a, **_k: None
    cases = json.load(sys.stdin)
    json.dump([_verdict(arguments, torch, case) for case in cases], verdicts)


def _verdict(arguments: Any, torch: Any, case: dict[str, Any]) -> dict[str, Any]:
    major, minor = case.get("capability", [9, 0])
    torch.cuda.get_device_capability = lambda *_a, **_k: (major, minor)
    torch.cuda.get_device_properties = lambda *_a, **_k: types.SimpleNamespace(
        major=major, minor=minor
    )
    environment = dict(os.environ)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ |= {"WORLD_SIZE": str(case["world"]), "RANK": "0", **case.get("env", {})}
    # Rotary fusion asks whether Transformer Engine is installed, which needs a GPU to build.
    sys.argv = ["pretrain_gpt.py", *case["argv"], "--no-rope-fusion"]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            args = arguments.parse_args()
            arguments.validate_args(args, {})
            config = arguments.core_transformer_config_from_args(args)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever it refuses with)
        text = f"{type(error).__name__}: {error} {errors.getvalue()[-400:]}"
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {"ok": False, "error": f"{text} [{Path(where.filename).name}:{where.lineno}]"}
    finally:
        os.environ.clear()
        os.environ |= environment
    shown = {name: getattr(args, name, None) for name in _SHOWN}
    layout = getattr(config, "pipeline_model_parallel_layout", None)
    shown["layout"] = (
        None
        if layout is None
        else [[[kind.name for kind in block] for block in stage] for stage in layout.layout]
    )
    shown["config"] = type(config).__name__
    said = {name: _plain(getattr(config, name, getattr(args, name, None)))
            for name in case.get("show", ())}  # fmt: skip
    return {"ok": True, "error": "", "args": shown, "config": said}


def _plain(value: Any) -> Any:
    """A value as JSON has it; of an enumeration its name."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else value.name


if __name__ == "__main__":
    main(sys.argv[1])
