"""Facts of a row that decide a whole kind: precision, compilation, padding, a node's network."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.rows import PUBLISHED, read_rows
from planner.evidence.runs.software import profile_of
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import FrameworkProfile, load_framework
from planner.job.request import Request
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


def _tables(profile: FrameworkProfile) -> list[object]:
    return [getattr(profile, name) for name in ("saved", "state", "kernels", "overlap", "outside")]


@pytest.mark.parametrize("precision", ["bf16", "bf16 autocast", "fp8"])
def test_time_and_memory_count_on_the_same_compilation(precision: str) -> None:
    """A row that does not say whether it compiles is one that does, or one that does not, in every
    table of its profile, whatever its framework is called."""
    names = {one.text("framework") or "" for one in read_rows(PUBLISHED)}
    for framework in names:
        cells = SMALL | {"framework": framework, "precision": precision, "act": "swiglu"}
        unsaid, *said = (
            _tables(profile_of(row(compile=word, **cells), precision.split(maxsplit=1)[0])[0])
            for word in ("", "y", "n")
        )
        assert unsaid in said, framework


def test_a_compiled_row_of_nanogpt_trains_as_nanogpt_does() -> None:
    """`evaluate` and `validate` count on one graph, one account of what it keeps."""
    for dtype, precision, stated in (
        (None, "bf16", ""), ("amp", "bf16", "autocast"), ("bf16", "bf16", "(pure)"),
        ("fp32", "fp32", ""),
    ):  # fmt: skip
        job = Request(
            model="gpt2", gpus="1xA100", gbs=4, framework="nanogpt", dtype=dtype,
            precision=precision,
        ).resolve()  # fmt: skip
        cells = {"software": "torch 2.11", "precision": f"{precision} {stated}"}
        found, _ = profile_of(row(framework="nanoGPT", **SMALL | cells), precision)
        assert _tables(found) == _tables(job.framework), (dtype, stated)
        assert job.techniques == ("compile",)


def test_what_a_compiled_loss_keeps_in_32_bits_is_32_bits_wide() -> None:
    for framework in ("nanoGPT", "plain PyTorch"):
        cells = SMALL | {"framework": framework, "precision": "fp32", "compile": "y"}
        found, _ = profile_of(row(**cells), "fp32")
        assert found.saved.logits_saved_bytes == found.saved.logits_forward_bytes == 4
        assert found.saved.residual_bytes == 4


def test_a_loop_that_always_runs_autocast_does_so_where_a_row_does_not_say() -> None:
    modes = {
        ("nanoGPT DDP (build-nanogpt)", "bf16", ""): "amp",
        ("nanochat", "fp8", ""): "amp",
        ("nanochat", "bf16(pure)", ""): "bf16",
        ("nanochat", "bf16", "bf16"): "bf16",
        ("plain PyTorch", "bf16", ""): "bf16",
    }
    for (framework, precision, states), mode in modes.items():
        cells = {"framework": framework, "precision": precision, "state_precision": states}
        found, _ = profile_of(row(**SMALL | cells), precision.partition("(")[0])
        assert found.mode == mode, framework


@pytest.mark.parametrize("precision", ["bf16", "bf16 autocast"])
def test_gelu_in_torch_operations_costs_what_it_keeps_in_every_plain_stack(precision: str) -> None:
    """Whoever shards the blocks; kernels that torch.compile or Megatron fuses keep its input."""
    plain = ("nanoGPT", "FSDP1", "HF transformers", "torchtitan", "llm-foundry", "colossal")
    for framework in plain:
        cells = SMALL | {"framework": framework, "act": "gelu_new", "precision": precision}
        eager, compiled = (profile_of(row(compile=word, **cells), "bf16")[0] for word in ("n", "y"))
        kept = 14 if eager.mode == "amp" else 8
        assert eager.saved.unfused_gelu_bytes == kept, framework
        assert compiled.saved.unfused_gelu_bytes is None, framework
    fused, _ = profile_of(row(framework="Megatron-Core", act="gelu_new", **SMALL), "bf16")
    assert fused.saved.unfused_gelu_bytes is None


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
        ("V100-32GB", "16", "infiniband 8x100Gbps", 50.0),
        ("GB200-186GB", "72", "infiniband 4x400Gbps", 400.0),
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


def test_a_larger_node_than_the_catalogue_s_is_one_domain() -> None:
    """DGX-2: 16 V100 behind one switch; PCIe boxes have none, and racks are no nodes."""
    for gpu, per_node, found in (("V100-32GB", 16, 16), ("RTX4090-24GB", 10, 1), ("GB200", 72, 72)):
        cells = {"gpu": gpu, "gpus_per_node": str(per_node), "precision": "fp16"}
        assert map_row(row(**cells)).job.cluster.scale_up_domain_gpus == found


@pytest.mark.parametrize(
    ("gpu", "memory", "name"),
    [("A100", "40", "A100-SXM4-40GB"), ("A100", "80", "A100-SXM4-80GB"),
     ("A100", "", "A100-SXM4-80GB"), ("V100", "16", "V100-SXM2-16GB")],
)  # fmt: skip
def test_a_gpu_of_several_sizes_is_the_one_of_the_memory_that_is_stated(
    gpu: str, memory: str, name: str
) -> None:
    mapped = map_row(row(gpu=gpu, gpu_mem_gb=memory, precision="fp16"))
    assert mapped.job.cluster.gpu.name == name


@pytest.mark.parametrize(
    ("framework", "software", "profile"),
    [
        ("Megatron-LM (2022-04)", "", "megatron-lm-2022"),
        ("Megatron-LM", "Megatron-LM 2022-05", "megatron-lm-2022"),
        ("Megatron-LM", "Megatron-Core 0.9, 2024-12", "megatron-core"),
        ("Megatron-LM (FlagScale 2023)", "", "megatron-core"),
        ("Megatron-LM", "", "megatron-lm-2022"),
    ],
)
def test_megatron_is_of_the_date_in_its_name_or_its_software(
    framework: str, software: str, profile: str
) -> None:
    cells = {"framework": framework, "software": software, "gpu": "A100-80GB"}
    assert profile_of(row(**cells), "fp16")[0].name == profile


def test_two_norms_beside_each_other_are_no_two_blocks_in_a_row() -> None:
    assert map_row(row(block="parallel")).job.model.block == "parallel"
    assert map_row(row()).job.model.block == "pre"
