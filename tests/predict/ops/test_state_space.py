"""State-space layers: kept tensors, FLOP and traffic in closed form, and measured peaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.cost import fields as f
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import PUBLISHED, read_rows
from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model
from planner.job.recompute import Module
from planner.job.request import Request
from planner.job.specs import LayerKind
from planner.predict.cost_model import CostModel
from planner.predict.ops.context import OpContext
from planner.predict.ops.table import flop_per_token, pieces
from tests.predict.ops.saved_form import saved_bytes_per_token

MODEL = load_model("nemotron-h-8b").spec
H, INNER, KEYS, HEADS = 4096, 8192, 1024, 128


def kept(tp: int, modules: Module) -> float:
    """Bytes a token of a Mamba-2 layer on one rank."""
    context = OpContext(MODEL, load_framework("megatron-core"), 8192)
    mixer = pieces(context)[MODEL.kinds.index(LayerKind(attention="state", ffn="none"))]
    return saved_bytes_per_token(mixer, tp=tp, sequence_parallel=True, kv_heads=8, modules=modules)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_kept_tensors_of_mamba2(tp: int) -> None:
    """Input and output of the norm, the projection's output, what the scan puts out, input and
    fp32 statistics of the gated norm, input of the output projection; a checkpoint alone."""
    projected = 2 * INNER + 2 * KEYS + HEADS
    expected = 4 * H + 4 + 2 * (projected + 3 * INNER) + 4 * 8
    assert kept(tp, Module.NOTHING) == pytest.approx(expected / tp)
    assert kept(tp, Module.FULL) == pytest.approx(2 * H / tp)


def test_mamba_flop_are_near_megatrons_count() -> None:
    """Megatron-LM, training.py, mamba_layer_flops: 2·h·(2·I + 2·K + H) + 7·I·N + 2·I·h a token."""
    mamba = load_model("mamba2-2.7b").spec
    h, inner, state, heads = 2560, 5120, 128, 80
    layer = 2 * h * (2 * inner + 2 * state + heads) + 7 * inner * state + 2 * inner * h
    expected = 3 * (64 * layer + 2 * h * mamba.vocab)
    assert flop_per_token(mamba, 2048) == pytest.approx(expected, rel=0.06)
    assert flop_per_token(mamba, 4096) == flop_per_token(mamba, 2048)


def test_traffic_of_a_scan_is_that_of_its_kernels() -> None:
    """Five elements of the inner width and four of keys, C·B in fp32, 12 bytes of states a chunk;
    thrice backward. The factor by which a profile's torch moves more is none of theirs."""
    profile = load_framework("megatron-core")
    context = OpContext(MODEL, profile, 8192)
    mixer = pieces(context)[MODEL.kinds.index(LayerKind(attention="state", ffn="none"))]
    scan = next(op for op in mixer.ops if op.name == "state/scan")
    moved = 2 * (5 * INNER + 4 * KEYS) + 8 * 8 * 128 + 12 * INNER * 128 / 128
    traffic = profile.kernels.memory_traffic
    assert traffic > 1.0
    assert scan.forward_bytes * traffic == pytest.approx(moved)
    assert scan.backward_bytes * traffic == pytest.approx(3 * moved)


def _mixer(cp: int, exchange: str) -> np.ndarray:
    """PIECE_* of the mixer with context parallelism of a kind."""
    request = Request(model="nemotron-h-8b", gpus="8xH100", gbs=8, cp_comm_type=exchange)
    model = CostModel(request.resolve())
    columns = dict.fromkeys(("tp", "ep", "etp", "pp", "vpp", "zero", "mbs", "grad_acc"), 1)
    columns |= {"cp": cp, "dp": 8 // cp, "shard": 0, "recompute": 0}
    shapes = {name: np.array([value], dtype=np.int64) for name, value in columns.items()}
    return np.asarray(model.cost_shapes(shapes).piece_costs(0)[0])


def test_heads_are_exchanged_whatever_attention_does() -> None:
    """Megatron's Mamba layers exchange heads in a ring of attention as well; a rank keeps its share
    of the tokens."""
    ring, heads, alone = _mixer(4, "p2p"), _mixer(4, "a2a"), _mixer(1, "p2p")
    assert ring[f.PIECE_FORWARD_CP] == heads[f.PIECE_FORWARD_CP] > 0.0
    assert alone[f.PIECE_FORWARD_CP] == 0.0
    assert ring[f.PIECE_SAVED] == pytest.approx(alone[f.PIECE_SAVED] / 4, rel=1e-9)


def test_measured_peaks_of_small_hybrids() -> None:
    """Megatron-Core's own tests of hybrids, torch's peak of the last rank; nothing is fitted. Two
    are mixtures; the peak of the larger one is of its
    second iteration, before its untrained router starves most experts (145 GiB, 161 after 20)."""
    rows = read_rows(Path(PUBLISHED) / "megatron_core_ci.csv")
    hybrids = [row for row in rows if row.says("mixer", "mamba") and not row.text("doubt")]
    measured = [row for row in hybrids if row.measurement("peak_mem_gib")]
    assert len(measured) == 7
    for found in predict_rows(measured):
        peak = found.memory_bytes(found.row.text("mem_kind"), found.row.text("mem_scope"))
        assert peak is not None
        expected = found.row.measurement("peak_mem_gib")
        assert peak / 2**30 == pytest.approx(expected, rel=0.025), found.row.text("model")
