# ruff: noqa: E501 (lines as nccl-tests print them)
"""nccl-tests' output and tables of benchmarks become equations, and find known factors again."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hardware.load import parse_gpus
from planner.evidence.learn.benches import (
    Bench,
    bench_equations,
    bench_inputs,
    is_bench_table,
    is_nccl_output,
    predicted_s,
    read_nccl,
    read_table,
)
from planner.evidence.learn.calibrate import calibrate, calibration_of
from planner.job.errors import UsageError

# nccl-tests 2.13 on one node (format of its README); times in microseconds.
NCCL = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 32(factor) warmup iters: 5 iters: 20
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    45.10   23.25   40.69      0    44.90   23.35   40.87      0
    33554432       8388608     float     sum      -1   180.20  186.21  325.86      0   180.00  186.41  326.22      0
  1073741824     268435456     float     sum      -1   4010.0  267.77  468.60      0   4005.0  268.10  469.18      0
# Out of bounds values : 0 OK
"""
RANKS = "\n".join(
    f"#  Rank  {rank} Group  0 Pid  {900 + rank} on     node{rank // 8} device  {rank % 8} [0x04] NVIDIA H100"
    for rank in range(16)
)
CLUSTER = parse_gpus("16xH100")


def nccl(path: Path, ranks: str = RANKS) -> Path:
    path.write_text(NCCL.format(ranks=ranks))
    return path


def test_nccl_tests_output(tmp_path: Path) -> None:
    path = nccl(tmp_path / "all_reduce_perf.txt")
    assert is_nccl_output(path)
    found = read_nccl(path)
    assert [bench.time_s for bench in found] == pytest.approx([45.1e-6, 180.2e-6, 4.01e-3])
    assert found[0].kind == "all_reduce"
    assert found[0].sizes == {"bytes": 1048576.0, "gpus": 16.0, "nodes": 2.0}


def test_several_tests_in_one_output(tmp_path: Path) -> None:
    """Ranks are those of each test; sends and receives are no collective of the model; old
    outputs have no root; mpirun puts its tag before each line."""
    whole = nccl(tmp_path / "all_reduce_perf.txt").read_text()
    old = whole.replace("    root ", " ").replace("      -1 ", " ")
    parts = [("all_gather", whole), ("sendrecv", whole), ("reduce_scatter", old)]
    lines = "".join(f"# Collective test starting: {name}_perf\n{text}" for name, text in parts)
    path = tmp_path / "log.txt"
    path.write_text("".join(f"[1,0]<stdout>:{line}\n" for line in lines.splitlines()))
    assert is_nccl_output(path)
    found = read_nccl(path)
    assert [one.kind for one in found] == ["all_gather"] * 3 + ["reduce_scatter"] * 3
    assert {(one.sizes["gpus"], one.sizes["nodes"]) for one in found} == {(16.0, 2.0)}
    assert found[5].time_s == found[2].time_s == pytest.approx(4.01e-3)


@pytest.mark.parametrize(
    ("name", "ranks", "words"),
    [
        ("out.txt", RANKS, "which collective"),
        ("all_gather_perf.txt", "", "fewer than two"),
    ],
)
def test_nccl_output_that_lacks_something(
    tmp_path: Path, name: str, ranks: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_nccl(nccl(tmp_path / name, ranks))


def test_nccl_output_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text("# nThread 1 nGpus 8\n1048576 1 float sum -1 0.0 0 0 0\n")
    with pytest.raises(UsageError, match="no row"):
        read_nccl(path)


def test_tables_in_any_unit(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("m,n,k,tflops\n4096,4096,4096,600\n")
    assert is_bench_table(path)
    [one] = read_table(path)
    assert one.time_s == pytest.approx(2 * 4096**3 / 600e12)
    path.write_text("kind,bytes,gpus,nodes,time_us\nall_gather,1e9,8,1,2500\ncopy,2e9,,,1000\n")
    gather, copy = read_table(path)
    assert gather.time_s == pytest.approx(2.5e-3)
    assert copy.sizes["bytes"] == 2e9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m,n,k,time_s\n", "no benchmark below"),
        ("m,n,k,time_us\n1,2,3,1e-300\n", "line 2: needs time_s"),
        ("m,n,k,time_s\n1,2,3,nan\n", "line 2: needs time_s"),
        ("m,n,k,time_s\n1,0,3,1\n", "column n: gemm needs a number above 0"),
        ("kind,time_s\nfft,1\n", "'fft' is not one of gemm"),
        ("kind,bytes,time_s\nall_reduce,5,1\n", "column gpus"),
    ],
)
def test_tables_with_a_fault(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_table(path)


def test_known_rates_are_found_again() -> None:
    """Products at 92 % of the catalogue's rate, copies at 80 %, links at 70 %."""
    true = {"gemm_rate": 0.92, "hbm_rate": 0.8, "inside_rate": 0.7}
    gpu, links = bench_inputs(CLUSTER, true)
    shapes = [
        Bench("gemm", {"m": m, "n": n, "k": 4096.0}, 1.0)
        for m in (256.0, 2048.0, 16384.0)
        for n in (1024.0, 8192.0, 32768.0)
    ]
    shapes += [Bench("copy", {"bytes": size}, 1.0) for size in (1e7, 1e8, 1e9, 1e10)]
    shapes += [
        Bench(kind, {"bytes": size, "gpus": 8.0, "nodes": 1.0}, 1.0)
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
        for size in (1e6, 1e7, 1e8, 1e9)
    ]
    benches = [Bench(one.kind, one.sizes, predicted_s(one, gpu, links)) for one in shapes]
    [fit] = calibrate([], ["made up"], bench_equations(benches, CLUSTER))
    factors = {one.name: one for one in calibration_of([fit], ["made up"]).factors}
    for name, value in true.items():
        assert factors[name].low <= value <= factors[name].high, name
        assert factors[name].determined, name
        assert abs(math.log(factors[name].value / value)) < 0.6 * abs(math.log(value)), name


def test_alike_benchmarks_count_once() -> None:
    one = Bench("copy", {"bytes": 1e9}, 1e-3)
    found = bench_equations([one] * 50 + [Bench("copy", {"bytes": 1e9}, 9e-3)] * 3, CLUSTER)
    assert len(found.residuals) == 1
    assert np.isfinite(found.slopes).all()
