"""Facts of a row that decide a whole kind: precision, compilation, padding, a node's network."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.software import profile_of
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from tests.evidence.runs.rows_for_tests import row

SMALL = {
    "recompute": "none",
    "tp": "1",
    "pp": "1",
    "vpp": "1",
    "num_gpus": "1",
    "mbs": "1",
    "gbs": "4",
}


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_rows_in_32_bits_hold_32_bit_weights_and_states(precision: str) -> None:
    """Whichever framework: where a profile has a mode for it, the row runs in that mode."""
    for name in framework_names():
        profile = load_framework(name)
        if precision not in profile.precisions:
            continue
        mapped = map_row(row(framework=name, precision=precision, gpu="A100-80GB", **SMALL))
        modes = [mode.name for mode in profile.modes]
        assert mapped.job.framework.mode == ("fp32" if "fp32" in modes else profile.mode), name


FRAMEWORKS = (
    "nanoGPT", "nanochat (plain PyTorch)", "litgpt", "torchtitan", "torchtune", "plain PyTorch",
    "HF Trainer", "DeepSpeed",
)  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_time_and_memory_count_on_the_same_compilation(framework: str) -> None:
    """A row that does not say whether it compiles is one that does, or one that does not, in both
    its kernels and in what they save."""
    profiles = {
        said: profile_of(row(framework=framework, compile=said, **SMALL), "bf16")[0]
        for said in ("", "y", "n")
    }
    unsaid = profiles.pop("")
    alike = [
        (unsaid.kernels.loss_traffic, unsaid.saved.logits_peak_bytes)
        == (other.kernels.loss_traffic, other.saved.logits_peak_bytes)
        for other in profiles.values()
    ]
    assert any(alike)


def test_padded_rows_have_memory_and_no_time() -> None:
    (found,) = predict_rows([row(sequences="padded", framework="torchtune", **SMALL)])
    assert found.error is None and found.step_time_s is None
    assert found.memory_bytes() is not None
    assert found.configured.time_gap is not None


@pytest.mark.parametrize(
    ("gpu", "per_node", "fabric", "gbit_per_gpu"),
    [
        ("V100-16GB", "1", "ethernet 10Gbps/node", 10.0),
        ("H100-80GB", "4", "infiniband 4x400Gbps", 400.0),
        ("A100-80GB", "8", "infiniband 8x200Gbps", 200.0),
        ("A100-80GB", "", "infiniband 400Gbps/node", 50.0),
    ],
)
def test_the_network_of_a_node_is_shared_by_the_gpus_of_that_node(
    gpu: str, per_node: str, fabric: str, gbit_per_gpu: float
) -> None:
    mapped = map_row(row(gpu=gpu, gpus_per_node=per_node, fabric=fabric, precision="fp16"))
    rate = mapped.job.cluster.scale_out_bytes_per_s_per_gpu_per_direction
    assert rate * 8 / 1e9 == pytest.approx(gbit_per_gpu)


@pytest.mark.parametrize(
    ("software", "profile"),
    [("torchtitan 2024-12", "torchtitan-2024"), ("torchtitan 2025-06", "torchtitan"),
     ("", "torchtitan")],
)  # fmt: skip
def test_torchtitan_is_of_its_date_whatever_it_is_called(software: str, profile: str) -> None:
    for framework in ("torchtitan", "torchtitan FSDP2", "torchtitan FSDP2 (ROCm fork)"):
        found, _ = profile_of(row(framework=framework, software=software, **SMALL), "bf16")
        assert found.name == profile, framework
