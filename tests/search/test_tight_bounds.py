"""Sharp bounds against every legal layout, costed by the kernel; pipelines whose ends hold none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from constraints.layout import LAYOUT_RULES
from constraints.layout_context import LayoutContext
from constraints.rule import Layout
from planner.cost import tight_bounds
from planner.job.request import Request
from planner.search.explorer import Explorer
from planner.search.limit_results import Effort
from planner.search.shares import cost_job
from planner.search.terms import layout_context, shape_terms
from tests.search.brute import all_bounds, every_layout

MODEL = """
source = "made up"
[shape]
family = "llama"
layers = 7
hidden = 2048
heads = 16
kv_heads = 16
head_dim = 128
ffn = 8192
vocab = {vocab}
max_positions = 8192
pretraining_seq = 8192
activation = "silu"
sliding_window = 128
[layers]
attention = ["sliding", "full"]
"""


def explorer_of(model_file: str, framework: str = "megatron-core") -> Explorer:
    request = Request(
        model=model_file, gpus="4xL40S", gbs=32, seq=8192, recompute=("none", "full"),
        framework=framework,
        limits={"tp": (1,), "cp": (1,), "mbs": (1,), "pp": (2, 4), "vpp": (1, 2)},
    )  # fmt: skip
    return cost_job(request.resolve()).explorer(Effort())


@pytest.fixture(scope="module")
def alternating(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    """Seven layers that slide and attend in turn."""
    path = tmp_path_factory.mktemp("model") / "seven.toml"
    path.write_text(MODEL.format(vocab=32000))
    return explorer_of(str(path))


@pytest.fixture(scope="module")
def wide_head(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    """The same under a vocabulary whose head takes as long as several layers."""
    path = tmp_path_factory.mktemp("model") / "wide.toml"
    path.write_text(MODEL.format(vocab=256000))
    return explorer_of(str(path))


def context_of(explorer: Explorer, row: int, limit: float) -> LayoutContext:
    job, mode = explorer.cost_model.job, int(explorer.columns["recompute"][row])
    terms = shape_terms(explorer.cost_model, explorer.costed, row, explorer.recomputations[mode])
    return layout_context(terms, job, job.recompute[mode], limit)


def legal(ctx: LayoutContext) -> Iterator[Layout]:
    for layout in every_layout(ctx, 4 if ctx.blocks > 2 else None):
        if sum(layout.block_layers) == ctx.layers and all(
            rule.check(layout, ctx) for rule in LAYOUT_RULES
        ):
            yield layout


@pytest.mark.parametrize("which", ["alternating", "wide_head"])
def test_no_layout_beats_the_tight_bound(which: str, request: pytest.FixtureRequest) -> None:
    """Every layout under several limits; blocks of up to four layers beyond two stages."""
    found: Explorer = request.getfixturevalue(which)
    plain, tighter, checked = all_bounds(found), 0, 0
    for position, row in enumerate(found.rows.tolist()):
        if found.columns["pp"][row] * found.columns["vpp"][row] > 4:
            continue
        for index in (0, 4, 8):
            limit = float(found.limits[index])
            sample_times = [
                point.sample_s
                for layout in legal(context_of(found, row, limit))
                if (point := found.cost(row, layout)).peak <= limit
            ]
            bound = found._tighten(position, index, np.inf)
            assert bound <= min(sample_times, default=np.inf) * (1.0 + 1e-9)
            whole_blocks = found._tighten(position, index, np.inf)
            assert bound <= whole_blocks <= min(sample_times, default=np.inf) * (1.0 + 1e-9)
            tighter += bound > plain[position, index] * (1.0 + 1e-6)
            checked += bool(sample_times)
    assert checked >= 3
    assert tighter >= 2


def test_a_wide_head_is_alone_and_cpsat_agrees_with_exhaustion(wide_head: Explorer) -> None:
    """The best layout leaves the last block to the head; CP-SAT finds one as fast."""
    result, alone = wide_head, 0
    for row in np.flatnonzero((result.columns["pp"] == 4) & (result.columns["vpp"] == 1)).tolist():
        limit = float(result.limits[0])
        points = [result.cost(row, layout) for layout in legal(context_of(result, row, limit))]
        best = min(points, key=lambda point: point.sample_s)
        found = result.solution(row, limit).layout
        assert found is not None
        point = result.cost(row, found)
        assert point.sample_s <= best.sample_s * 1.002
        assert point.peak <= limit
        alone += found.block_layers[-1] == 0
    assert alone >= 1


def test_frameworks_that_cannot_write_it_keep_a_layer_in_every_block(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("model") / "wide.toml"
    path.write_text(MODEL.format(vocab=256000))
    result = explorer_of(str(path), "torchtitan")
    row = int(np.flatnonzero((result.columns["pp"] == 4) & (result.columns["vpp"] == 1))[0])
    found = result.solution(row, 1e15).layout
    assert found is not None
    assert min(found.block_layers) == 1


def test_the_largest_deficit_is_that_of_the_cheapest_run() -> None:
    prefix = np.array([[0, 1, 1, 2, 2, 3, 4], [0, 0, 1, 1, 2, 2, 2]], dtype=float)
    layers = np.array([[1.0], [4.0]])
    mean = (4 * 1.0 + 2 * 4.0) / 6
    # The last two layers, both of the cheap kind.
    assert tight_bounds.largest_deficit(layers, 0, prefix, mean) == pytest.approx(2 * mean - 2.0)


@pytest.mark.parametrize(("layers", "blocks", "each", "expected"), [
    (10, 4, 2, 8), (10, 4, 3, 10), (10, 4, 1, 4), (3, 1, 2, 2), (2, 4, 1, 2),
])  # fmt: skip
def test_shared_layers(layers: int, blocks: int, each: int, expected: int) -> None:
    """Blocks of 3, 3, 2, 2 layers with two recomputed each: eight."""
    assert tight_bounds.shared_layers(layers, blocks, each) == expected


def test_a_short_block_of_the_head_recomputes_fewer() -> None:
    """Nine layers on three blocks: as 3, 3, 3 six recompute, as 4, 4, 1 five."""
    assert tight_bounds.fewest_shared(9, 3, 2, 0, 0) == 6
    assert tight_bounds.fewest_shared(9, 3, 2, 3, 0) == 5
