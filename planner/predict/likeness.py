"""How alike configurations are: what a run says of another beside the factors that both share.

What the model is off by, beyond wrong rates, differs from configuration to configuration, and like
ones are off alike. Its covariance between two configurations:

    s² · exp(-(Σ |log2 of a number of the one over the other's| / r + w · words that differ))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware.calibration import LearntRun
from planner.job.job import Job

# s, r and w, chosen by `planner.evidence.learn.study` on clusters held out; hardly any matters: s
# of 0.06 to 0.15, r of 3 to 8 and w of 0.2 to 1 come within 0.2 points of the error left.
SPREAD = 0.12
_DOUBLINGS, _WORD = 6.0, 0.3
NUMBERS = (
    "hidden", "layers", "seq", "tp", "pp", "vpp", "cp", "ep", "dp", "mbs", "grad_acc",
)  # fmt: skip
WORDS = ("precision", "recompute", "kernel", "zero")


class Configurations(NamedTuple):
    """Logarithms (n, numbers) to the base of 2, and words (n, words)."""

    numbers: NDArray[np.float64]
    words: NDArray[np.str_]


def configurations(job: Job, columns: Mapping[str, NDArray[Any]]) -> Configurations:
    """Those of a job's shapes; columns as `CostModel.cost_shapes` takes them."""
    rows = len(columns["tp"])
    fixed = {"hidden": job.model.hidden, "layers": job.model.layers, "seq": job.seq}
    modes = np.array([mode.name for mode in job.recompute])
    words = {
        "precision": job.precision,
        "recompute": modes[columns["recompute"]],
        "kernel": f"{job.attention} {job.attention_kernel}",
        "zero": np.asarray(columns["zero"]).astype(str),
    }
    numbers = [np.broadcast_to(fixed.get(name, columns.get(name, 1)), rows) for name in NUMBERS]
    return Configurations(
        np.log2(np.maximum(1.0, np.column_stack(numbers))),
        np.column_stack([np.broadcast_to(words[name], rows) for name in WORDS]),
    )


def known_runs(runs: Sequence[LearntRun]) -> Configurations:
    """Those of the runs that a calibration was learnt from."""
    return Configurations(
        np.log2([[getattr(run, name) for name in NUMBERS] for run in runs]),
        np.array([[getattr(run, name) for name in WORDS] for run in runs]),
    )


def covariance(these: Configurations, those: Configurations) -> NDArray[np.float64]:
    """Covariance of what is alike, (these, those)."""
    far = np.zeros((len(these.numbers), len(those.numbers)))
    for column in range(len(NUMBERS)):
        far += np.abs(these.numbers[:, column, None] - those.numbers[:, column]) / _DOUBLINGS
    for column in range(len(WORDS)):
        far += _WORD * (these.words[:, column, None] != those.words[:, column])
    return np.asarray(SPREAD**2 * np.exp(-far))


def learnt_logs(job: Job, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """ln of what like runs of the job's cluster add to each shape's step, (shapes,)."""
    calibration = job.cluster.calibration
    rows = len(columns["tp"])
    if calibration is None or not calibration.runs:
        return np.zeros(rows)
    if not calibration.knows(job.framework.family or job.framework.name):
        return np.zeros(rows)
    pull = np.array([run.pull for run in calibration.runs])
    known = known_runs(calibration.runs)
    return np.asarray(covariance(configurations(job, columns), known) @ pull)
