"""What weighing experts' outputs in fp32 by torch's own operators holds in backward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost import fields as f
from planner.predict.configuration import even_layout
from planner.predict.plan import Degrees
from tests.cost.jobs import make_job
from tests.predict.memory.cases import Case, compiled_stages


def working(weighing_bytes: float, degrees: Degrees) -> float:
    base = make_job("qwen3-30b-a3b", "8xB200", "torchtitan")
    state = base.framework.state.model_copy(update={"weighing_bytes": weighing_bytes})
    framework = base.framework.model_copy(update={"state": state})
    job = replace(
        base, framework=framework, seq=4096, recompute=(base.framework.recompute_mode("full"),)
    )
    (stage,) = compiled_stages(Case(job, degrees, even_layout(job, 1, 1, job.recompute[0])))
    return float(stage[f.STAGE_WORKING])


@pytest.mark.parametrize("ep", [1, 8])
def test_a_layer_s_routed_copies_are_held_once(ep: int) -> None:
    """A token has 8 copies of 2,048 values, wherever its experts are."""
    degrees = Degrees(dp=8, ep=ep, zero=3, mbs=2)
    assert working(10.0, degrees) - working(0.0, degrees) == pytest.approx(10 * 2 * 4096 * 8 * 2048)
