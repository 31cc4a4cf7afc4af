"""What rows say of their software, and allocated or reserved peaks that it explains.

The peaks are those on which the profiles were fitted: they guard a fit, and say nothing of how
well other runs are predicted.
"""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import memory_error
from planner.evidence.runs.rows import MeasuredRow
from planner.job.frameworks import load_framework
from tests.evidence.runs.rows_for_tests import row

# nanotron logs of 2024-07: Llama 1B on H100, allocated on rank 0.
NANOTRON = {
    "model": "Llama-1B", "layers": "24", "hidden": "2048", "ffn": "4096", "heads": "32",
    "kv_heads": "32", "vocab": "50257", "act": "swiglu", "seq": "4096", "gpu": "H100-80GB",
    "vpp": "1", "zero": "zero1", "seq_parallel": "y", "gbs": "1024", "precision": "bf16",
    "recompute": "none", "flash": "y", "framework": "nanotron (2024-07)", "step_time_s": "",
    "mem_kind": "allocated", "mem_scope": "max_over_ranks",
}  # fmt: skip
NANOTRON_PEAKS = [
    ({"num_gpus": "8", "tp": "8", "pp": "1", "mbs": "32"}, "58.69"),
    ({"num_gpus": "8", "tp": "2", "pp": "1", "mbs": "8"}, "42.63"),
    ({"num_gpus": "8", "tp": "1", "pp": "4", "mbs": "4", "layers_per_stage": "7x2/6/4"}, "38.14"),
    ({"num_gpus": "16", "tp": "4", "pp": "4", "mbs": "4", "layers_per_stage": "7x2/6/4"}, "12.80"),
    ({"num_gpus": "64", "tp": "4", "pp": "1", "mbs": "8"}, "23.84"),
]

# Megatron-Core's own tests: GPT with 12 layers, allocated on the last rank.
MEGATRON = {
    "model": "gpt/gpt3_mcore", "layers": "12", "hidden": "512", "ffn": "2048", "heads": "8",
    "kv_heads": "8", "vocab": "50257", "seq": "1024", "gpu": "A100-80GB", "num_gpus": "8",
    "vpp": "1", "zero": "none", "seq_parallel": "n", "mbs": "4", "gbs": "32", "precision": "bf16",
    "recompute": "none", "framework": "Megatron-Core CI (dev)", "step_time_s": "",
    "mem_kind": "allocated", "mem_scope": "last_stage",
}  # fmt: skip
DROPOUT = "deterministic-mode=True; dropout attn=0.1 hidden=0.1; untied_emb=n"
MEGATRON_PEAKS = [
    ({"tp": "1", "pp": "4", "flash": "n", "notes": DROPOUT}, "2.50"),
    ({"tp": "1", "pp": "2", "flash": "y", "notes": DROPOUT}, "2.42"),
    ({"tp": "2", "pp": "2", "flash": "y", "notes": DROPOUT}, "1.33"),
    ({"tp": "2", "pp": "2", "flash": "y", "notes": f"cross-entropy-loss-fusion=True; {DROPOUT}"},
     "1.71"),
]  # fmt: skip

# torchtitan, Llama 3.1 8B on 128 H100 (96 GB): reserved.
TORCHTITAN = {
    "model": "Llama3.1-8B", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32",
    "kv_heads": "8", "vocab": "128256", "act": "swiglu", "seq": "8192",
    "gpu": "H100-96GB-HBM2e-500W", "num_gpus": "128", "tp": "1", "pp": "1", "vpp": "1",
    "zero": "fsdp-zero3", "seq_parallel": "n", "mbs": "2", "gbs": "256", "precision": "bf16",
    "recompute": "selective", "flash": "y", "framework": "torchtitan FSDP2", "step_time_s": "",
    "mem_kind": "reserved", "mem_scope": "max_over_ranks",
}  # fmt: skip
TORCHTITAN_PEAKS = [({"variant": "eager"}, "67"), ({"variant": "compile"}, "62")]

PEAKS = [
    *((NANOTRON, cells, peak) for cells, peak in NANOTRON_PEAKS),
    *((MEGATRON, cells, peak) for cells, peak in MEGATRON_PEAKS),
    *((TORCHTITAN, cells, peak) for cells, peak in TORCHTITAN_PEAKS),
]


@pytest.mark.parametrize(("family", "cells", "peak"), PEAKS)
def test_peak_of_a_measured_row(family: dict[str, str], cells: dict[str, str], peak: str) -> None:
    (prediction,) = predict_rows([row(**(family | cells), peak_mem_gib=peak)])
    assert prediction.error is None
    assert memory_error(prediction) == pytest.approx(0.0, abs=0.05)


def test_megatron_of_early_2021_waits_and_adds_gradients_by_kernels_of_their_own() -> None:
    later = map_row(row()).job.framework
    early = map_row(row(source_ref="Megatron-LM images/cases_jan2021.png")).job.framework
    assert (later.overlap.tensor_backward, later.kernels.accumulation_traffic_bytes) == (1.0, 0.0)
    assert (early.overlap.tensor_backward, early.kernels.accumulation_traffic_bytes) == (0.0, 6.0)


def _torchtune(step: str, **cells: str) -> MeasuredRow:
    return row(framework="torchtune", notes=f"cumulative flags table: {step}; packed", **cells)


def test_torchtune_rows_have_the_options_of_the_rows_above_them() -> None:
    def saved(step: str) -> tuple[float, float]:
        rules = map_row(_torchtune(step)).job.framework.saved
        return rules.gated_activation_tensors, rules.logits_peak_bytes

    chunked = load_framework("torchtune").saved.logits_peak_bytes
    assert saved("+packed") == (3.0, 12.0)
    assert saved("+compile") == (2.0, 12.0)
    assert saved("+chunkedCE") == (2.0, chunked)


def test_gradients_vanish_where_the_optimizer_steps_in_backward() -> None:
    assert map_row(_torchtune("+AC")).job.framework.state.gradient_bytes == 2.0
    assert map_row(_torchtune("+opt_in_bwd")).job.framework.state.gradient_bytes == 0.0


def test_the_optimizer_is_read_from_the_notes() -> None:
    assert map_row(_torchtune("+8bit AdamW")).job.optimizer.name == "adamw-8bit"
    paged = map_row(row(framework="torchtune", notes="recipe: PagedAdamW8bit"))
    assert paged.job.optimizer.name == "adamw"
    assert paged.job.framework.state.optimizer_state_element_bytes == 0.0


@pytest.mark.parametrize(
    "notes",
    ["cpu_offloading_num_layers=40", "full finetune w/ CPU offload", "unpacked dataset"],
)
def test_memory_beyond_the_model_is_not_predicted(notes: str) -> None:
    (prediction,) = predict_rows([row(notes=notes, peak_mem_gib="10")])
    assert prediction.step_time_s is not None
    assert prediction.memory_bytes() is None
    assert memory_error(prediction) is None


def test_dropout_as_the_row_states_it() -> None:
    assert not map_row(row(notes="dropout attn=0.0 hidden=0.0")).job.dropout
    assert map_row(row(notes="dropout attn=0.1 hidden=0.1")).job.dropout


def test_options_of_megatron_in_the_notes() -> None:
    notes = (
        "multi-latent-attention=True; q-lora-rank=1536; mtp-num-layers=1; untied_emb=y; "
        "qk-layernorm=True"
    )
    model = map_row(row(notes=notes)).job.model
    assert model.mla is not None
    assert (model.mla.q_lora_rank, model.mtp_layers, model.qk_norm) == (1536, 1, "head")
    assert not model.tied_embeddings


def test_ends_of_an_uneven_pipeline() -> None:
    notes = "decoder-first-pipeline-num-layers=20; decoder-last-pipeline-num-layers=28"
    assert map_row(row(notes=notes, pp="4", vpp="1")).block_layers == (20, 24, 24, 28)
    counted = (
        "account-for-embedding-in-pipeline-split=True; account-for-loss-in-pipeline-split=True"
    )
    mapped = map_row(row(notes=counted, layers="6", pp="4", vpp="2"))
    assert mapped.block_layers == (0, 1, 1, 1, 1, 1, 1, 0)


def test_hybrids_are_refused_by_name() -> None:
    with pytest.raises(UnpredictableRowError, match="Mamba"):
        map_row(row(model="nemotron/nemotron3_5_lightning"))
    with pytest.raises(UnpredictableRowError, match="Mamba"):
        map_row(row(notes="hybrid-layer-pattern=M-M*"))


@pytest.mark.parametrize(
    ("framework", "profile"),
    [
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("Megatron-Bridge (NeMo 26.02 container)", "megatron-bridge"),
        ("Composer/llm-foundry FSDP", "llm-foundry"),
        ("torchtitan FSDP2", "torchtitan-2024"),
        ("torchtitan+torchao, torch.compile", "torchtitan"),
    ],
)
def test_profile_of_a_framework_name(framework: str, profile: str) -> None:
    assert map_row(row(framework=framework)).job.framework.name == profile


TITAN = TORCHTITAN | {"framework": "torchtitan FSDP2", "source": "torchtitan"}


@pytest.mark.parametrize(
    ("cells", "eager"),
    [
        ({"variant": ""}, True),
        ({"variant": "eager"}, True),
        ({"variant": "compile"}, False),
        ({"variant": "async_tp float8"}, False),
        ({"framework": "torchtitan+torchao, torch.compile"}, False),
        ({"framework": "NeMo AutoModel (PyTorch FSDP2)"}, False),
    ],
)
def test_torchtitan_compiles_if_told_to(cells: dict[str, str], eager: bool) -> None:
    kernels = map_row(row(**(TITAN | cells))).job.framework.kernels
    assert (kernels.memory_traffic == 4.0) == eager
    assert (kernels.norm_traffic > 1.0) == eager


@pytest.mark.parametrize(
    ("notes", "gathers", "casts", "parameters"),
    [
        ("compile; float8 tensorwise", True, 4.0, 2.0),
        ("compile; float8 rowwise; vanilla TP", False, 20.0, 2.0),
        ("scaling=rowwise_with_gw_hp, bf16 all-gather", True, 4.0, 2.0),
        ("scaling=tensorwise, float8 all-gather", True, 4.0, 1.0),
    ],
)
def test_float8_recipes(notes: str, gathers: bool, casts: float, parameters: float) -> None:
    cells = {"variant": "compile float8", "precision": "fp8", "notes": notes}
    kernels = map_row(row(**(TITAN | cells))).job.framework.kernels
    own = kernels.quantised_gathers, kernels.cast_traffic_bytes
    assert own == (gathers, casts)
    assert kernels.parameter_communication_bytes == parameters


def test_fms_fsdp_compiles_in_its_later_rows() -> None:
    cells = {"framework": "PyTorch FSDP1 (fms-fsdp)", "variant": "compile", "zero": "fsdp-zero3"}
    for notes, traffic in (("no compile; inter-node", 4.0), ("torch.compile; inter-node", 2.0)):
        kernels = map_row(row(**cells, notes=notes)).job.framework.kernels
        assert kernels.memory_traffic == traffic


def test_weights_of_16_bits_have_no_other_copy() -> None:
    for notes, master in (("no grad clip; bf16 params; TE", 0.0), ("TE", 4.0)):
        state = map_row(row(framework="NeMo AutoModel", notes=notes)).job.framework.state
        assert (state.master_bytes, state.gradient_bytes) == (master, 2.0 + master / 2.0)


def test_a_benchmark_s_balanced_gate_takes_neighbours() -> None:
    for notes, neighbours in (("balanced fake gate, no grad clip", True), ("aux loss", False)):
        kernels = map_row(row(framework="NeMo AutoModel", notes=notes)).job.framework.kernels
        assert kernels.neighbouring_experts == neighbours


def test_xtuner_runs_hugging_face_s_blocks() -> None:
    for framework, traffic in (("XTuner+DeepSpeed", 4.0), ("DeepSpeed", 1.5)):
        assert map_row(row(framework=framework)).job.framework.kernels.memory_traffic == traffic


def test_llm_foundry_checkpoints_stop_early_from_torch_2_1_on() -> None:
    for software, early in (("2023-02", False), ("2023-04 tables", False), ("2024-01", True)):
        profile = map_row(row(framework="Composer/llm-foundry FSDP", software=software))
        assert profile.job.framework.recomputing.stops_early == early


GB200_MIXTURE = {
    "framework": "Megatron-Bridge", "gpu": "GB200", "num_gpus": "64", "tp": "1", "pp": "1",
    "vpp": "1", "ep": "64", "moe": "128 experts top8, expert ffn 1536", "act": "swiglu",
    "flash": "y", "precision": "bf16", "recompute": "none", "gbs": "1024",
}  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "graphs", "overlap"),
    [
        ({"software": "NeMo 25.09 container"}, True, False),
        ({"software": "NeMo 26.06 container"}, True, True),
        ({"notes": "verified perf card: mean of steps 41-50"}, True, True),
        ({"notes": "verified functional pretrain"}, False, False),
        ({"software": "NeMo 26.06 container", "gpu": "H100-80GB"}, False, False),
        ({"software": "NeMo 26.06 container", "moe": ""}, False, False),
        # A recipe of these versions is listed with its settings, and has none of these.
        ({"software": "NeMo 26.06 container", "notes": "recipe=X@v0.5.0"}, False, False),
        ({"software": "NeMo 26.08 container", "notes": "recipe=x@v0.6.0"}, True, True),
    ],
)
def test_recipes_of_mixtures_on_nvl72_use_graphs_and_hybridep(
    cells: dict[str, str], graphs: bool, overlap: bool
) -> None:
    profile = map_row(row(**(GB200_MIXTURE | cells))).job.framework
    assert (profile.kernels.issue_s == 0.0) is graphs
    assert profile.kernels.dispatch_deduplicates is overlap
    assert (profile.overlap.expert > 0.0) is overlap


def test_bloom_waited_for_every_kernel() -> None:
    own = {"framework": "Megatron-DeepSpeed", "precision": "fp16"}
    bloom = map_row(row(notes="Jean-Zay A100 NVLink + Omni-Path", **own)).job.framework
    assert bloom.kernels.blocking_launches
    assert not map_row(row(**own)).job.framework.kernels.blocking_launches


def test_megatron_of_before_april_2021_sends_whole_activations() -> None:
    assert map_row(row()).job.framework.kernels.pipeline_scatters
    old = map_row(row(notes="HFU 44%; pre-April-2021 software"))
    assert not old.job.framework.kernels.pipeline_scatters


def test_megatron_reduces_gradients_of_bf16_runs_in_fp32() -> None:
    half, brain = (map_row(row(precision=own)).job.framework for own in ("fp16", "bf16"))
    assert half.kernels.gradient_communication_bytes == 2.0
    assert brain.kernels.gradient_communication_bytes == 4.0


def test_ranks_of_latent_attention_are_no_lora() -> None:
    own = {
        **GB200_MIXTURE,
        "moe": "MLA(no q_lora, kv_lora512, rope64); 64 experts top6, expert ffn 1408",
    }
    mla = map_row(row(**own)).job.model.mla
    assert mla is not None
    assert (mla.q_lora_rank, mla.kv_lora_rank) == (None, 512)
    with pytest.raises(UnpredictableRowError, match="LoRA"):
        map_row(row(model="Llama3-70B (lora)"))


@pytest.mark.parametrize(
    ("cells", "peak"),
    [
        ({"framework": "torchtitan", "tp": "8", "variant": "eager"}, 14.0),
        ({"framework": "torchtitan", "tp": "8", "variant": "compile"}, 6.0),
        ({"framework": "torchtitan", "tp": "1", "variant": "eager"}, 6.0),
        ({"framework": "torchtitan FSDP2", "tp": "8", "variant": "compile"}, 14.0),
    ],
)
def test_loss_over_split_logits_of_torchtitan(cells: dict[str, str], peak: float) -> None:
    common = {"pp": "1", "vpp": "1", "zero": "fsdp-zero3", "precision": "bf16", "flash": "y"}
    profile = map_row(row(**(common | cells))).job.framework
    assert profile.saved.logits_peak_bytes == peak


def test_cross_entropy_of_transformer_engine_where_a_row_states_it() -> None:
    losses = [
        map_row(row(framework="Megatron-Core", variant=text)).job.framework.kernels.loss_traffic
        for text in ("", "cross-entropy-fusion-impl=te")
    ]
    assert losses == [
        load_framework(name).kernels.loss_traffic for name in ("megatron-core", "megatron-bridge")
    ]


def test_pax_of_2023_gathered_within_an_iteration() -> None:
    common = {"framework": "Paxml (JAX/XLA)", "zero": "zero3(FSDP)", "pp": "1", "vpp": "1"}
    prefetched = [
        map_row(
            row(**common, source_ref=f"projects/pax/README.md {version}")
        ).job.framework.overlap.fsdp_prefetch
        for version in ("v2023-10", "latest (2024)")
    ]
    assert prefetched == [0.75, 1.0]
