"""Upper bounds that a framework's tests assert, and whether a prediction keeps them.

A bound is not a measurement: a prediction above it is wrong, one below proves nothing. If the
lengths of samples are unknown, a prediction is wrong only if even short samples, the lower end of
their range, take longer than the bound. Such tables name recipes, and the name tells the kind:
reinforcement learning, distillation of a teacher into a student that samples
(`distillation-TEACHER-to-...`), or training only (`sft`, `dpo`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.evidence.rl.costing import Costed, cost_run
from planner.evidence.rl.predict import (
    RESPONSE_LENGTH,
    Cost,
    RlPrediction,
    open_values,
    predict_rl,
    predicted_of,
)
from planner.evidence.rl.rows import Figure, RlRow
from planner.job.quantities import GIB
from planner.predict.rl.plan import PhaseName

# In these tests, nodes with four GPUs have GB200s, nodes with eight H100s.
_GPUS = {4: "GB200", 8: "H100"}
_FRAMEWORK = "NeMo-RL"
# Rank of adapters in its recipes (examples/configs/sft.yaml, lora_cfg).
_RANK = 8
_OF_TRAINING: tuple[PhaseName, ...] = ("update", "reference", "reward")


@dataclass(frozen=True, slots=True)
class Bounded:
    """An upper bound that a test asserts, with its prediction. `bound`, `predicted`: in seconds or
    bytes. `error`: the reason why `predicted` is None. `least`: the prediction for the shortest
    likely samples; it is set only if the table states no length and the usual lengths exceed the
    bound."""

    name: str
    figure: Figure
    bound: float
    predicted: float | None
    error: str | None = None
    least: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the prediction keeps the bound, if need be with the shortest likely samples. Also
        True without a prediction."""
        lowest = self.predicted if self.least is None else self.least
        return lowest is None or lowest <= self.bound

    @property
    def by_length(self) -> bool:
        """Whether the prediction keeps the bound with the shortest likely samples but not with
        usual ones."""
        return self.least is not None and self.is_kept


def bounded(rows: Iterable[RlRow], cost: Cost = cost_run) -> list[Bounded]:
    """Every bound of some rows with its prediction, including those that cannot be predicted."""
    predictions = predict_rl(map(run_of, rows), cost, usual_alone=True)
    return [_at_least(each, one, cost) for one in predictions for each in _bounds(one)]


def _at_least(one: Bounded, prediction: RlPrediction, cost: Cost) -> Bounded:
    """The bound, with the prediction for the shortest lengths if usual ones break it and no length
    is stated."""
    if one.is_kept or prediction.mapped is None:
        return one
    shorter = [value for value in open_values(prediction.mapped) if value.fact == RESPONSE_LENGTH]
    row = prediction.row
    found = (predicted_of(row, cost, value.taken).costed for value in shorter)
    figures = [figure for costed in found if (figure := _predicted(costed, one.figure))]
    return replace(one, least=min(figures)) if figures else one


def run_of(row: RlRow) -> RlRow:
    """The run that a bound belongs to, in the columns of measured runs."""
    name = _name(row)
    per_node = row.integer("gpus_per_node") or 8
    alone, teacher = {"reference": "n"}, {"reward": f"model:{_teacher(name)}", "reference": "n"}
    batch = row.integer("train_global_batch") or 2
    cells = {
        "framework": _FRAMEWORK,
        "algorithm": "GRPO",
        "gpu": _GPUS.get(per_node, "H100"),
        "num_gpus": str((row.integer("num_nodes") or 1) * per_node),
        "source": _FRAMEWORK,
    }
    if "off-policy" in name:
        cells |= _alone(batch) | teacher
    elif name.startswith("distillation"):
        cells |= teacher | {
            "prompts_per_step": str(max(1, batch // 2)),
            "samples_per_prompt": "2",
            "minibatches": "1",
        }
    elif not name.startswith("grpo"):
        # The reference's log-probabilities are computed before the timer of a step starts
        # (nemo_rl/algorithms/dpo.py, add_ref_logprobs_to_data).
        cells |= (_of_pairs(row, batch) if name.startswith("dpo") else _alone(batch)) | alone
    if "lora" in name:
        cells["algorithm"] += f" LoRA r{_RANK}"
    return replace(row, cells={**row.cells, **cells})


def _alone(samples: int) -> dict[str, str]:
    """Cells for a trainer on samples that are not generated."""
    return {"algorithm": "trainer step only", "train_global_batch": str(samples)}


def _of_pairs(row: RlRow, batch: int) -> dict[str, str]:
    """Cells for a trainer on pairs, which count as two samples each in a batch and in a micro-batch
    (nemo_rl/algorithms/dpo.py, dpo_train)."""
    rows = 2 * (row.integer("train_mbs") or 1)
    return _alone(2 * batch) | {"train_mbs": str(rows)}


def _teacher(name: str) -> str:
    found = re.search(r"(qwen3-\d+(?:\.\d+)?b)", name)
    return found[1] if found else ""


def _name(row: RlRow) -> str:
    return (row.text("test") or row.place).rpartition("/")[2].removesuffix(".sh")


def _bounds(one: RlPrediction) -> list[Bounded]:
    row, costed = one.row, one.costed
    columns: dict[Figure, tuple[str, float]] = {
        "step": ("step_s_bound", 1.0), "memory": ("mem_gb_bound", GIB)
    }  # fmt: skip
    return [
        Bounded(_name(row), figure, bound * unit, _predicted(costed, figure), one.error)
        for figure, (column, unit) in columns.items()
        if (bound := _bound(row, column)) is not None
    ]


def _bound(row: RlRow, column: str) -> float | None:
    text = (row.text(column) or "").lstrip("< ")
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _predicted(costed: Costed | None, figure: Figure) -> float | None:
    if costed is None:
        return None
    if figure == "step":
        return costed.seconds(_OF_TRAINING) if costed.step_s is None else costed.step_s
    return max((phase.peak_bytes for phase in costed.phases), default=0.0)
