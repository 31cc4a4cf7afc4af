"""A configuration as it is proposed, resolved, changed, and as rows of the kernel and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from constraints.rule import Layout
from planner import Degrees, Request
from planner.job.errors import UsageError
from planner.predict.configuration import Configuration
from planner.predict.evaluate import Proposal, checked, evaluated

REQUEST = Request(model="llama-3-8b", gpus="16xH100", gbs=32)
DEGREES = Degrees(tp=2, pp=4, vpp=2, dp=2, zero=1, grad_acc=16)
BLOCKS, AGAIN = (3, 4, 4, 5, 4, 4, 4, 4), (4, 0, 2, 1)
PROPOSAL = Proposal(REQUEST, DEGREES, "full", BLOCKS, AGAIN)


def test_a_proposal_is_completed() -> None:
    even = replace(PROPOSAL, block_layers=None, recomputed=None, degrees=DEGREES).resolve()
    assert even.layout == Layout(4, 2, (4,) * 8, {"full": (8,) * 4})
    assert even == Configuration.even(even.job, DEGREES, "full")


def test_a_configuration_becomes_a_row_a_plan_and_is_itself_again() -> None:
    proposal = replace(PROPOSAL, block_layers=None, recomputed=None)
    configuration = proposal.resolve()
    job, layout = configuration.job, configuration.layout
    assert Configuration.of_row(job, configuration.columns, 0, layout) == configuration
    plan = evaluated(configuration)
    again = Configuration.of_plan(REQUEST.resolve(), plan)
    assert (again.degrees, again.mode, again.layout) == (DEGREES, configuration.mode, layout)
    assert evaluated(checked(again)) == plan
    assert Proposal.of_plan(REQUEST, plan).plan() == plan


@pytest.mark.parametrize(
    ("degrees", "blocks", "again"),
    [
        ({"zero": 0}, BLOCKS, AGAIN),
        # Other blocks, the same stages.
        ({"vpp": 1}, None, AGAIN),
        ({"pp": 2, "dp": 4, "grad_acc": 8}, None, None),
    ],
)
def test_layers_lie_evenly_where_the_blocks_change(
    degrees: dict[str, int], blocks: object, again: object
) -> None:
    changed = PROPOSAL.changed({"optimizer": "muon"}, DEGREES.model_copy(update=degrees))
    assert (changed.block_layers, changed.recomputed) == (blocks, again)
    assert (changed.request.optimizer, changed.recompute) == ("muon", "full")
    assert PROPOSAL.changed({}, DEGREES, "none").recomputed is None


def test_a_layout_of_other_degrees_is_refused() -> None:
    even = Configuration.even(REQUEST.resolve(), DEGREES)
    with pytest.raises(UsageError, match="give 8 numbers of layers"):
        checked(replace(even, layout=Layout(4, 1, (8,) * 4)))
