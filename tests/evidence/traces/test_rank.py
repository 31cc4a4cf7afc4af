"""Traces of known gaps, overlaps and stragglers give those figures back."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from hardware.errors import HardwareError
from planner.evidence.traces.events import EventStream
from planner.evidence.traces.findings import findings
from planner.evidence.traces.rank import (
    collective_group,
    complement,
    kernel_term,
    length,
    read_rank,
    union,
    within,
)
from planner.job.errors import UsageError
from tests.evidence.traces import made_up

MS = 1e-3


@pytest.fixture(params=["rank0.json", "rank0.json.gz"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return made_up.write(tmp_path / request.param, made_up.trace())


def test_terms_of_a_step(plain: Path) -> None:
    rank = read_rank(plain, 5)
    assert rank.rank == 0
    assert rank.step_s == pytest.approx(10 * MS)
    assert rank.terms == pytest.approx(
        {
            "matrix products": 4 * MS,
            "attention": 1 * MS,
            "elementwise": 0.5 * MS,
            "optimizer": 0.5 * MS,
        }
    )
    assert rank.exposed == pytest.approx({"dp": 2 * MS})
    assert rank.hidden == pytest.approx({"dp": 1 * MS})
    assert rank.idle_s == pytest.approx(2 * MS)
    assert rank.busy_s + rank.idle_s == pytest.approx(rank.step_s)
    assert rank.idle_synchronised_s == 0.0
    # 0.25 + 0.25 + 0.25 + 1.25 ms
    assert rank.gaps == 4


def test_copies_are_told_apart_by_the_memory_that_they_use(tmp_path: Path) -> None:
    """Names as CUPTI writes them through Kineto."""
    content = made_up.trace(steps=2)
    names = {
        "Memcpy HtoD (Pinned -> Device)": 100.0,
        "Memcpy DtoH (Device -> Pageable)": 300.0,
        "Memcpy DtoD (Device -> Device)": 50.0,
        "Memset (Device)": 25.0,
    }
    for number in (1, 2):
        start = number * made_up.STEP_US + 9000.0
        for name, duration in names.items():
            category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
            content["traceEvents"].append(made_up.span(category, name, start, duration))
            start += duration
    rank = read_rank(made_up.write(tmp_path / "copies.json", content), 0)
    assert rank.copies == pytest.approx(
        {"pinned": 0.1 * MS, "pageable": 0.3 * MS, "GPU": 0.075 * MS}
    )
    assert sum(rank.copies.values()) == pytest.approx(rank.terms["copies"])
    (pageable,) = (one for one in findings([rank]) if "pageable" in one.pattern)
    assert "pin_memory" in pageable.change


def test_nothing_hidden_is_not_less_than_nothing(tmp_path: Path) -> None:
    """Where starts and ends, in seconds, are no binary fractions."""
    for length_us in range(2500, 2510):
        events = []
        for number in range(60):
            at = number * 20_000.0
            events.append(made_up.span("kernel", "nvjet", at, 14_000.0))
            events.append(made_up.span("kernel", "ncclDevKernel_AllReduce", at + 16_000, length_us))
        rank = read_rank(made_up.write(tmp_path / "a.json", {"traceEvents": events}), 0)
        assert all(seconds >= 0.0 for seconds in rank.hidden.values())


def test_idle_after_the_cpu_read_a_number(tmp_path: Path) -> None:
    rank = read_rank(made_up.write(tmp_path / "a.json", made_up.trace(reads=True)), 0)
    assert rank.calls == {"aten::item": 1.0, "cudaStreamSynchronize": 1.0}
    assert rank.idle_synchronised_s == pytest.approx(0.25 * MS)
    patterns = [one.pattern for one in findings([rank])]
    assert any(".item()" in pattern for pattern in patterns)


def test_reduction_that_is_not_overlapped_and_gaps_are_named(plain: Path) -> None:
    found = findings([read_rank(plain, 0)])
    [reduction] = [one for one in found if "gradient reduction" in one.pattern]
    assert reduction.seconds == pytest.approx(2 * MS)
    assert "--overlap-grad-reduce" in reduction.change
    assert any("gaps between kernels" in one.pattern for one in found)


def test_slow_rank_is_named(tmp_path: Path) -> None:
    ranks = [
        read_rank(
            made_up.write(
                tmp_path / f"{rank}.json", made_up.trace(rank=rank, slow=1000.0 * (rank == 2))
            ),
            rank,
        )
        for rank in range(4)
    ]
    [uneven] = [one for one in findings(ranks) if one.pattern.startswith("rank")]
    assert uneven.pattern.startswith("rank 2 computes 17% longer")
    assert uneven.seconds == pytest.approx(1 * MS)


def test_first_step_that_warms_up(tmp_path: Path) -> None:
    content = made_up.trace(steps=4)
    for event in content["traceEvents"]:
        if event["name"] == "ProfilerStep#1":
            event["ts"] -= 15_000.0
    found = findings([read_rank(made_up.write(tmp_path / "a.json", content), 0)])
    assert any("first traced step takes 2.5 times" in one.pattern for one in found)


def test_events_without_times_are_counted_and_left_out(tmp_path: Path) -> None:
    content = made_up.trace()
    bad = [
        made_up.span("kernel", "gemm", float("nan"), 5.0),
        made_up.span("kernel", "gemm", 20_000.0, -5.0),
        made_up.span("kernel", "gemm", 20_000.0, float("inf")),
        {"ph": "X", "cat": "kernel", "name": "gemm"},
    ]
    content["traceEvents"] += bad
    rank = read_rank(made_up.write(tmp_path / "a.json", content), 0)
    assert rank.unusable == 4
    assert rank.terms["matrix products"] == pytest.approx(4 * MS)


@pytest.mark.parametrize(
    ("name", "category", "term"),
    [
        ("ncclDevKernel_AllGather_RING_LL", "kernel", "communication"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "kernel", "matrix products"),
        ("Cijk_Alik_Bljk_BBS_BH_MT256x256", "kernel", "matrix products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", "kernel", "attention"),
        ("void multi_tensor_apply_kernel<AdamFunctor>", "kernel", "optimizer"),
        ("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", "copies"),
        ("triton_red_fused_mul_sum_3", "kernel", "elementwise"),
    ],
)  # fmt: skip
def test_kernels_by_name(name: str, category: str, term: str) -> None:
    assert kernel_term(name, category) == term


@pytest.mark.parametrize(
    ("description", "collective", "kernel", "group"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "", "", "tp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "", "", "ep"),
        ("mesh_dp_shard", "", "", "dp"),
        ("mesh_tp", "", "", "tp"),
        ("", "send", "SendRecv", "pp"),
        ("", "all_to_allv", "SendRecv", "ep"),
        ("", "", "SendRecv", "unnamed group"),
        ("", "", "AllReduce_Sum_bf16", "unnamed group"),
    ],
)
def test_groups_of_collectives(description: str, collective: str, kernel: str, group: str) -> None:
    told = {"Process Group Description": description, "Collective name": collective}
    assert collective_group(f"ncclDevKernel_{kernel}", told) == group


# --- bad input ----------------------------------------------------------------------------------


def test_trace_cut_short(plain: Path) -> None:
    whole = plain.read_bytes()
    plain.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="cut short"):
        read_rank(plain, 0)


def test_trace_of_a_cpu_alone(tmp_path: Path) -> None:
    content = {"traceEvents": [made_up.span("cpu_op", "aten::mm", 1.0, 2.0)]}
    with pytest.raises(
        UsageError, match=r"none of 1 events is a GPU kernel.*ProfilerActivity.CUDA"
    ):
        read_rank(made_up.write(tmp_path / "a.json", content), 0)


@pytest.mark.parametrize("text", ["", "{}", "iteration 1/ 10 | elapsed time", '{"traceEvents": 3}'])
def test_what_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises((UsageError, HardwareError), match=r"not a Chrome trace|is empty"):
        read_rank(path, 0)


def test_broken_event(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [{"ph": "X", "dur": oops}, {}]}' + " " * 100)
    with pytest.raises(UsageError, match="not valid JSON"):
        read_rank(path, 0)


def test_a_trace_that_torch_wrote_on_a_cpu() -> None:
    """torch 2.13, two steps of a linear layer and AdamW on a CPU: read, but of no GPU."""
    path = Path(__file__).parent / "torch_2_13_cpu.json.gz"
    assert any(event.get("name") == "aten::addmm" for event in EventStream(path))
    with pytest.raises(UsageError, match="is a GPU kernel"):
        read_rank(path, 0)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_rank(tmp_path / "none.json", 0)
    with pytest.raises(HardwareError, match="folder"):
        read_rank(tmp_path, 0)


def test_memory_stays_bounded_in_a_large_trace(tmp_path: Path) -> None:
    """40 MB of events that no term needs pass through a few MB."""
    path = tmp_path / "large.json"
    filler = json.dumps(made_up.span("python_function", "x" * 400, 1.0, 1.0))
    with path.open("w") as stream:
        stream.write('{"traceEvents": [\n')
        for _ in range(80_000):
            stream.write(filler + ",\n")
        stream.write(json.dumps(made_up.span("kernel", "gemm", 1.0, 2.0)) + "]}")
    tracemalloc.start()
    rank = read_rank(path, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 35e6
    assert peak < 12e6
    assert rank.terms == pytest.approx({"matrix products": 2e-6})


def test_a_log_that_begins_with_a_bracket_is_no_list_of_events(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(" [2025-06-01 10:00:00] iteration 1\n")
    with pytest.raises(UsageError, match="this is not a Chrome trace"):
        read_rank(path, 0)


def test_a_bare_list_of_events(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(made_up.trace()["traceEvents"]))
    assert len(list(EventStream(path))) == 22


def test_a_long_step_is_summed_in_pieces(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_rank(plain, 0)
    monkeypatch.setattr("planner.evidence.traces.rank._AT_ONCE", 3)
    pieces = read_rank(plain, 0)
    assert pieces.gaps >= whole.gaps
    for name in ("terms", "exposed", "hidden", "calls"):
        assert getattr(pieces, name) == pytest.approx(getattr(whole, name))
    assert pieces.idle_s == pytest.approx(whole.idle_s)


# --- spans --------------------------------------------------------------------------------------


def test_spans_against_a_grid() -> None:
    """Each operation equals the same one on a fine grid of points."""
    random = np.random.default_rng(3)
    for _ in range(50):
        first, second = (
            union(np.sort(random.integers(0, 40, (6, 2)), axis=1).astype(float)) for _ in range(2)
        )
        grid = np.arange(0.5, 40.0)

        def on(spans: np.ndarray, grid: np.ndarray = grid) -> np.ndarray:
            return np.array([bool(((spans[:, 0] <= at) & (at < spans[:, 1])).any()) for at in grid])

        assert length(union(first, second)) == (on(first) | on(second)).sum()
        assert length(complement(first, 0.0, 40.0)) == (~on(first)).sum()
        assert length(within(first, 10.0, 20.0)) == on(first)[10:20].sum()
