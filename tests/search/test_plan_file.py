"""Plan files of former versions, made from one that a search of version 5 wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import evaluate
from planner.predict.configuration import decided_request
from planner.search.plan_file import read_plan_file

WRITTEN = Path(__file__).with_name("plans_version_5.json")


def test_layouts_of_version_5_name_their_modes() -> None:
    """What the plan's mode counted beside other modes, and zeros, are now a row for each mode."""
    result = read_plan_file(WRITTEN)
    assert [plan.layout.recomputed for plan in result.plans] == [{}, {"full": (1,), "mlp": (1,)}]
    for plan in result.plans:
        request, layout = decided_request(result.request, plan), plan.layout
        again = evaluate(
            request, plan.degrees, plan.recompute, layout.block_layers, layout.recomputed
        )
        assert again.layout == layout
        assert again.recompute_flags == plan.recompute_flags
        assert again.allocated_bytes == pytest.approx(plan.allocated_bytes, rel=1e-3)


def former(tmp_path: Path, version: int, new: str, old: str) -> Path:
    """The file with words of a former version."""
    text = WRITTEN.read_text(encoding="utf-8").replace('"version": 5', f'"version": {version}', 1)
    assert new in text
    path = tmp_path / "plans.json"
    path.write_text(text.replace(new, old), encoding="utf-8")
    return path


def test_searches_that_chose_an_offloaded_fraction_are_read(tmp_path: Path) -> None:
    fraction = '"activation_offload_fraction": {}, "use"'
    path = former(tmp_path, 1, fraction.format("1.0"), fraction.format('"search"'))
    result = read_plan_file(path)
    assert decided_request(result.request, result.plans[0]).activation_offload_fraction == 1.0


def test_the_former_name_of_lone_multi_token_prediction_is_read(tmp_path: Path) -> None:
    path = former(tmp_path, 2, '"mtp_standalone": false', '"mtp_apart": true')
    assert all(plan.layout.mtp_standalone for plan in read_plan_file(path).plans)
