"""A plan file of a model that trains anywhere, under accelerate on two GPUs: four plans about as
fast as each other, by what stays gathered and what runs again."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from planner import Degrees, Request
from planner.launch.plans import one_plan
from planner.predict.evaluate import Proposal
from planner.search.plan_file import to_json

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 1024, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}  # fmt: skip
# (ZeRO stage, recompute) of each plan, in the file's order.
KINDS = ((3, "none"), (2, "none"), (3, "full"), (2, "full"))


def plan_file(folder: Path, **request: object) -> Path:
    """The file, with the model beside it."""
    model = folder / "tiny.json"
    model.write_text(json.dumps(TINY))
    path = folder / "plans.json"
    path.write_text(_text(str(model), tuple(sorted(request.items()))))
    return path


@cache
def _text(model: str, more: tuple[tuple[str, object], ...]) -> str:
    fields = {"gpus": "2xA100", "framework": "hf-fsdp2", "gbs": 16, "seq": 128, **dict(more)}
    request = Request.model_validate({"model": model, **fields})
    degrees = Degrees(dp=2, zero=3, mbs=8, grad_acc=1)
    plans = [
        Proposal(request, degrees.model_copy(update={"zero": zero}), recompute).plan()
        for zero, recompute in KINDS
    ]
    result = one_plan(plans[0], request, request.resolve())
    return to_json(result.model_copy(update={"plans": tuple(plans), "recommended": 1}))
