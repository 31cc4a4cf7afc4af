"""What a measured row says of its optimizer, of what it keeps on the host and of dropout."""

from __future__ import annotations

import re

from planner.evidence.runs.rows import MeasuredRow


def memory_gap(row: MeasuredRow) -> str | None:
    """Why the row's memory is not predicted: it moves tensors to the host; None otherwise."""
    if row.says("offload", r"^parameters|layers"):
        return "parameters and single layers on the host are not modelled"
    if row.says("recompute", r"\bbut\b"):
        return "what full recomputation keeps by a policy is not modelled"
    return None


def optimizer_share(row: MeasuredRow) -> float:
    """Share of the optimizer's states and update that the row has on the host."""
    stated = re.search(r"\boptimizer(?: (\d+) ?%)?", row.fact("offload"))
    return 0.0 if stated is None else float(stated[1] or 100.0) / 100.0


def offloaded_modules(row: MeasuredRow) -> tuple[str, ...]:
    """Modules whose activations the row keeps on the host, as `planner.predict.ops.offload` names
    them."""
    offloaded = row.fact("offload")
    if offloaded == "checkpoints":
        return ("checkpoints",) if row.says("recompute", "^full") else ()
    return tuple(offloaded.removeprefix("activations:").split()) if ":" in offloaded else ()


def states_dropout(row: MeasuredRow) -> bool | None:
    """Whether dropout is on, where the row says so."""
    hidden = re.search(r"hidden ([\d.]+)", row.fact("dropout"))
    return None if hidden is None else float(hidden[1]) > 0.0


# Words of `state_precision`, and the keys of an optimizer's spelling.
_STATE_KEYS = {
    "main_grads": "grad", "main_params": "master", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq",
}  # fmt: skip


def optimizer_name(row: MeasuredRow) -> str:
    """Optimizer, AdamW unless the row says otherwise, with the types that it states by part."""
    stated = re.match(r"(?:paged )?([\w-]+)", row.fact("optimizer"))
    # The states of a paged one are counted by its variant.
    name = "adamw" if stated is None or row.says("optimizer", "paged") else stated[1]
    types = _stated_types(row) if name == "adamw" else ""
    return f"{name}:{types}" if types else name


def _stated_types(row: MeasuredRow) -> str:
    """`grad=bf16,exp_avg=bf16` of `main_grads bf16 exp_avg bf16`; both moments are of one type
    where one is named, and in 16 bits where they are `below fp32`."""
    fact = row.fact("state_precision")
    if "moments below fp32" in fact:
        return "exp_avg=bf16,exp_avg_sq=bf16"
    types = {
        _STATE_KEYS[part]: dtype
        for part, dtype in re.findall(r"([a-z_]+) ((?:bf|fp)\d+)", fact)
        if part in _STATE_KEYS and dtype != "fp32"
    }
    if "exp_avg" in types:
        types.setdefault("exp_avg_sq", types["exp_avg"])
    return ",".join(f"{key}={dtype}" for key, dtype in types.items())
