"""Start-up logs of real engines compared with predictions, and the resulting interval.

`planner/predict/memory/serving/serving_logs.csv` contains figures that vLLM printed while starting,
GiB on one rank (in a pipeline the first; tokens are those of the tightest rank). Others published
them; each row has a source. Constants of the engine were read from the rows of use `fit`; the other
rows were looked up afterwards (A100: memory from the catalogue, because none was printed).
qwen2.5-72b under TP 4 is Kimi-Dev-72B, which has the same shape. The source lists gpt-oss-120b
under a utilisation of 0.9, but its printed terms add up at 0.95. Rows of multimodal models were
left out: the catalogue had no vision towers.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hardware.load import load_gpu
from planner.job.models.catalog import load_model
from planner.job.quantities import GIB
from planner.predict.memory.serving.deployment import Deployment
from planner.predict.memory.serving.engine import ENGINES, ServingEngine
from planner.predict.memory.serving.formats import kv_format, weight_format
from planner.predict.memory.serving.stage import ServingStageMemory, stage_memory, tokens_of
from planner.predict.uncertainty.families import architecture_text

_FILE = Path(__file__).with_name("serving_logs.csv")
_LOW, _HIGH = 0.1, 0.9
_FEWEST_ROWS = 5


@dataclass(frozen=True)
class LogRow:
    """One start-up: the deployment, and the printed figures: bytes on one rank, `kv_tokens` in
    tokens; None if not printed. `held_out`: the row did not serve to fit the engine's constants."""

    engine: str
    deployment: Deployment
    weights: float
    activation: float | None
    non_torch: float | None
    held_out: bool
    graphs: float | None
    kv_cache: float
    kv_tokens: int | None
    source: str


@dataclass(frozen=True)
class StartUpComparison:
    """A start-up, and the predicted memory of all stages of its deployment."""

    row: LogRow
    stages: tuple[ServingStageMemory, ...]

    @property
    def tightest(self) -> ServingStageMemory:
        """The stage whose cache has room for the fewest tokens."""
        context = self.row.deployment.context
        return min(self.stages, key=lambda stage: tokens_of(stage, context, 0.0))

    @property
    def predicted_bytes(self) -> float:
        """Predicted room for the KV cache on the tightest rank."""
        return self.tightest.available

    @property
    def measured_bytes(self) -> float:
        """Room on the tightest rank as printed; in pipelines computed from the printed tokens."""
        pool = self.tightest.pool
        if self.row.deployment.pp == 1 or self.row.kv_tokens is None:
            return self.row.kv_cache
        blocks = self.row.kv_tokens / self.row.deployment.block
        return blocks * (pool.full_groups + pool.window_groups) * pool.block_bytes

    @property
    def predicted_tokens(self) -> int:
        """Tokens as vLLM prints them: admitted sequences times their context."""
        context = self.row.deployment.context
        admitted = min(s.blocks() / s.pool.admission_blocks(context) for s in self.stages)
        return int(admitted * context)

    @property
    def residual_bytes(self) -> float:
        """Measured minus predicted room."""
        return self.measured_bytes - self.predicted_bytes

    def residual_with_graphs(self) -> float:
        """The residual in bytes that would have been measured if the budget had included the CUDA
        graphs; the plain residual if their size was not printed."""
        if self.row.graphs is None:
            return self.residual_bytes
        first = self.stages[0]
        predicted = first.graphs_beside + first.graphs_within
        return self.residual_bytes - (self.row.graphs - predicted)


@dataclass(frozen=True)
class CacheSpread:
    """80 % interval of the room for the KV cache. `low` (at most 0) and `high` (at least 0) are
    bytes to add to the prediction.

    `uncovered`: traits of the deployment, in words, that no log has; if there are any, the interval
    is the whole range of residuals. `rows`: number of start-ups used; `gpus`: their GPU types;
    `median_error`: median of |measured - predicted| room over measured room.
    """

    low: float
    high: float
    rows: int
    gpus: tuple[str, ...]
    uncovered: tuple[str, ...]
    median_error: float


def _number(text: str) -> float | None:
    return float(text) * GIB if text else None


def _log_row(fields: dict[str, str]) -> LogRow:
    total = float(fields["gpu_total_gib"]) * GIB
    names = ("context", "tp", "pp", "block", "chunk", "sequences")
    counts: dict[str, Any] = {name: int(fields[name]) for name in names}
    deployment = Deployment(
        **counts,
        model=load_model(fields["model"]).spec,
        gpu=load_gpu(fields["gpu"]).model_copy(update={"hbm_usable_bytes": total}),
        weights=weight_format(fields["weights"]),
        kv=kv_format(fields["kv_cache"]),
        utilization=float(fields["utilization"]),
        engine=_logged_engine(fields["engine"]),
    )
    return LogRow(
        engine=fields["engine"],
        deployment=deployment,
        weights=float(fields["weights_gib"]) * GIB,
        activation=_number(fields["activation_gib"]),
        non_torch=_number(fields["non_torch_gib"]),
        held_out=fields["use"] == "held",
        graphs=_number(fields["graphs_gib"]),
        kv_cache=float(fields["kv_gib"]) * GIB,
        kv_tokens=int(fields["kv_tokens"]) if fields["kv_tokens"] else None,
        source=fields["source"],
    )


def _logged_engine(name: str) -> ServingEngine:
    """The engine with this name in the logs, in the generation that wrote them: the one whose
    budget does not include CUDA graphs."""
    engines = ENGINES.values()
    return next(engine for engine in engines if engine.logs == name and not engine.graphs_in_budget)


@cache
def read_logs() -> tuple[LogRow, ...]:
    """All rows of the file."""
    with _FILE.open(encoding="utf-8", newline="") as stream:
        return tuple(_log_row(fields) for fields in csv.DictReader(stream))


@cache
def compare_logs() -> tuple[StartUpComparison, ...]:
    """Every start-up with its prediction."""
    return tuple(StartUpComparison(row, stage_memory(row.deployment)) for row in read_logs())


def spread_of(deployment: Deployment) -> CacheSpread:
    """The interval for a deployment, from the logs of its engine's generation.

    Single and multiple GPUs are separate groups: memory for communication is the larger
    uncertainty.
    """
    rows = [c for c in compare_logs() if c.row.engine == deployment.engine.logs]
    alike = [c for c in rows if (c.row.deployment.gpus > 1) == (deployment.gpus > 1)]
    tested = {trait for c in rows for trait in _traits(c.row.deployment)}
    uncovered = tuple(trait for trait in _traits(deployment) if trait not in tested)
    used = rows if uncovered or len(alike) < _FEWEST_ROWS else alike
    graphs = deployment.engine.graphs_in_budget and deployment.graphs
    gpus = tuple(dict.fromkeys(c.row.deployment.gpu.name for c in used))
    residuals = sorted(c.residual_with_graphs() if graphs else c.residual_bytes for c in used)
    errors = sorted(abs(c.residual_bytes) / c.measured_bytes for c in used)
    quantiles = (0.0, 1.0) if uncovered else (_LOW, _HIGH)
    low, high = (_quantile(residuals, end) for end in quantiles)
    return CacheSpread(
        min(low, 0.0), max(high, 0.0), len(used), gpus, uncovered, _quantile(errors, 0.5)
    )


def _traits(deployment: Deployment) -> tuple[str, ...]:
    """Traits, in words, that could make a deployment's memory differ from that of others."""
    model = deployment.model
    attention = "MLA" if model.mla else "plain attention"
    several = (
        ("TP" if not model.mla else "MLA under TP", deployment.tp),
        ("pipeline stages", deployment.pp),
        ("expert parallelism", deployment.ep),
        ("data-parallel attention", deployment.dp),
        ("recurrent layers", 1 + model.has_states),
    )
    return (
        f"{architecture_text(deployment.gpu.architecture)} GPUs",
        attention,
        f"{deployment.weights.name} weights",
        f"{deployment.kv.name} KV cache",
        *(name for name, degree in several if degree > 1),
    )


def _quantile(values: list[float], share: float) -> float:
    """Quantile of sorted values, linear between neighbours."""
    position = share * (len(values) - 1)
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (position - below) * (values[above] - values[below])
