"""Lines of time over size that the layout solver's bounds are made of, against the time itself."""

from __future__ import annotations

import numpy as np
import pytest

from hardware.load import parse_gpus
from hardware.sharp import with_sharp
from planner.cost import fields as f
from planner.cost import linear
from planner.cost.data_parallel import gather_of, reduction_of
from planner.cost.linear import traffic_line
from planner.cost.step import slowdown
from planner.job.request import Request
from planner.predict.configuration import degree_columns
from planner.predict.cost_model import CostedShapes, CostModel
from planner.predict.links import link_inputs, network
from planner.predict.plan import Degrees
from tests.cost.jobs import grid_of, key_of

MACHINES = ("64xA100", "64xH100", "64xB200", "64xaws-p5", "64xaws-p4d", "64xMI300X")


@pytest.fixture(scope="module")
def model() -> CostModel:
    return CostModel(Request(model="llama-3-8b", gpus="64xH100", gbs=64).resolve())


@pytest.fixture(scope="module")
def costed(model: CostModel) -> CostedShapes:
    """tp 1: groups of all GPUs."""
    return model.cost_shapes(degree_columns([Degrees(dp=64, zero=1)]))


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_terms_of_one_stage_are_those_of_its_parameters(model: CostModel, zero: int) -> None:
    """Traffic that ends the step, with its latency, below the time of the whole stage by no more
    than a line to a larger one is; none of what the ZeRO stage has beside every micro-batch."""
    costed = model.cost_shapes(degree_columns([Degrees(dp=64, zero=zero)]))
    tables = (costed.shapes[0], costed.keys[0], costed.piece_costs(0), model.job_inputs)
    terms, scalars = model.layout_terms(*tables)
    key, grid, network = key_of(costed), grid_of(costed), model.network
    parameters = float(model.totals @ tables[2][:, f.PIECE_TRAINED])
    factor, framework = slowdown(key, grid, network), model.framework_inputs
    for term, base, stream, exists in (
        (linear.TERM_REDUCE, linear.SCALAR_REDUCE_BASE, reduction_of, zero < 2),
        (linear.TERM_ALL_GATHER, linear.SCALAR_ALL_GATHER_BASE, gather_of, zero > 0),
    ):
        whole, least = (
            exists * factor * stream(count, 0.0, key, grid, framework, network).seconds
            for count in (parameters, linear.NEARLY_NONE)
        )
        assert scalars[base] == pytest.approx(least)
        assert 0.98 * whole <= model.totals @ terms[:, term] + scalars[base] <= whole


@pytest.mark.parametrize("machine", [*MACHINES, "64xH100 with SHARP"])
@pytest.mark.parametrize(("zero", "shard"), [(0, 0.0), (1, 0.0), (1, 8.0)])
def test_no_line_lies_above_the_time(
    machine: str, zero: int, shard: float, model: CostModel, costed: CostedShapes
) -> None:
    """Between a thousand and ten billion parameters; where one link level takes over from the other
    a chord between two sizes would be up to 7 % too high."""
    name, _, sharp = machine.partition(" ")
    cluster = with_sharp(parse_gpus(name)) if sharp else parse_gpus(name)
    links, framework = network(link_inputs(cluster)), model.framework_inputs
    key, grid = key_of(costed), grid_of(costed, zero=zero, shard=shard)
    for high in (1e6, 1e8, 1e10):
        for reduce in (True, False):
            base, slope = traffic_line(high, False, reduce, key, grid, framework, links)
            stream = reduction_of if reduce else gather_of
            for size in np.geomspace(1e3, high, 40):
                real_s = stream(size, 0.0, key, grid, framework, links).seconds
                assert base + slope * size <= real_s * (1 + 1e-9)
            whole_s = stream(high, 0.0, key, grid, framework, links).seconds
            assert base + slope * high == pytest.approx(whole_s, rel=1e-6)
