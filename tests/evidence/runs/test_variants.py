"""What rows say of their software."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.predict import predict_rows
from planner.evidence.runs.report import error_of
from planner.evidence.runs.rows import MeasuredRow
from planner.job.frameworks import load_framework
from planner.predict.cost_model import CostModel
from tests.evidence.runs.rows_for_tests import row
from tests.evidence.runs.test_variant_peaks import GPT2_XL, MEGATRON, TORCHTITAN


def test_megatron_of_early_2021_waits_and_adds_gradients_by_kernels_of_their_own() -> None:
    later = map_row(row()).job.framework
    early = map_row(row(software="Megatron-LM 2021-01")).job.framework
    assert (later.overlap.tensor_backward, later.kernels.accumulation_traffic_bytes) == (1.0, 0.0)
    assert (early.overlap.tensor_backward, early.kernels.accumulation_traffic_bytes) == (0.0, 6.0)


def test_autocast_is_a_mode_of_its_own_unless_weights_are_in_16_bits() -> None:
    def held(**cells: str) -> tuple[str, float, float]:
        framework = map_row(row(**(GPT2_XL | cells))).job.framework
        return framework.mode, framework.saved.residual_bytes, framework.saved.weight_cast_bytes

    assert held(precision="bf16 autocast", state_precision="") == ("amp", 4.0, 2.0)
    assert held(precision="bf16 autocast", state_precision="bf16") == ("bf16", 2.0, 0.0)
    # What a compiled graph keeps is in 16 bits; weights are fp32 all the same.
    assert held(precision="bf16 autocast", state_precision="", compile="y") == ("amp", 2.0, 0.0)


def test_eager_rms_norms_of_litgpt_keep_32_bits() -> None:
    def kept(**cells: str) -> tuple[float, float]:
        rules = map_row(row(framework="litgpt", **cells)).job.framework.saved
        return rules.norm_input_bytes, rules.norm_extra_bytes

    assert kept(act="swiglu", compile="n") == (4.0, 4.0)
    assert kept(act="swiglu", compile="y") == kept(act="gelu", compile="n")


def test_recipes_of_megatron_bridge_keep_weights_in_8_bits() -> None:
    def quantised(**cells: str) -> bool:
        return map_row(row(gpu="H100-80GB", **cells)).job.framework.state.quantised_weights

    assert quantised(framework="Megatron-Bridge", precision="fp8")
    assert not quantised(framework="Megatron-Bridge", precision="fp8", fp8_recipe="blockwise")
    assert not quantised(framework="Megatron-Core", precision="fp8")
    assert quantised(framework="Megatron-Core", precision="fp8", fp8_gather="y")


def test_chunks_of_head_and_loss_hold_few_logits() -> None:
    def saved(software: str) -> tuple[bool, float]:
        cells = TORCHTITAN | {"framework": "torchtitan", "compile": "y", "loss": "chunked"}
        rules = map_row(row(**(cells | {"software": software}))).job.framework.saved
        return rules.linear_loss, rules.logits_saved_bytes

    assert saved("2026-03") == (False, 4.0)
    assert saved("2026-07") == (True, 0.0)


def _torchtune(**cells: str) -> MeasuredRow:
    return row(framework="torchtune", **cells)


def test_torchtune_compiles_and_chunks_unless_told_otherwise() -> None:
    def saved(**cells: str) -> tuple[float, float]:
        rules = map_row(_torchtune(**cells)).job.framework.saved
        return rules.gated_activation_tensors, rules.logits_peak_bytes

    chunked = load_framework("torchtune").saved.logits_peak_bytes
    assert saved(compile="n", loss="plain") == (3.0, 12.0)
    assert saved(compile="y", loss="plain") == (2.0, 12.0)
    assert saved(loss="chunked") == (2.0, chunked)


def test_gradients_vanish_where_the_optimizer_steps_in_backward() -> None:
    assert map_row(_torchtune()).job.framework.state.gradient_bytes == 2.0
    mapped = map_row(_torchtune(optimizer="adamw, in backward"))
    assert mapped.job.framework.state.gradient_bytes == 0.0


def test_the_optimizer_is_the_one_that_is_stated() -> None:
    stated = {"adamw-8bit, in backward": "adamw-8bit", "adamw": "adamw", "": "adamw"}
    for text, name in stated.items():
        assert map_row(row(framework="torchtune", optimizer=text)).job.optimizer.name == name
    paged = map_row(_torchtune(optimizer="paged adamw-8bit, in backward"))
    assert paged.job.optimizer.name == "adamw"
    assert paged.job.framework.state.optimizer_state_element_bytes == 0.0


@pytest.mark.parametrize(
    "offload", ["activations of 40 layers", "parameters, gradients and optimizer"]
)
def test_memory_beyond_the_model_is_not_predicted(offload: str) -> None:
    (prediction,) = predict_rows([row(offload=offload, peak_mem_gib="10")])
    assert prediction.step_time_s is not None
    assert prediction.memory_bytes() is None
    assert error_of(prediction, "memory") is None


def test_dropout_as_the_row_states_it() -> None:
    assert not map_row(row(dropout="attention 0.0 hidden 0.0")).job.dropout
    assert map_row(row(dropout="attention 0.1 hidden 0.1")).job.dropout


def test_shapes_beyond_the_first_columns() -> None:
    cells = {
        "mla": "q_lora1536, kv_lora512, nope128, rope64, v128", "mtp_layers": "1", "tied": "n",
        "qk_norm": "y", "bias": "n", "block": "parallel", "position": "alibi",
    }  # fmt: skip
    model = map_row(row(**cells)).job.model
    assert model.mla is not None
    assert (model.mla.q_lora_rank, model.mtp_layers, model.qk_norm) == (1536, 1, "head")
    assert (model.mlp_bias, model.position, model.tied_embeddings) == (False, "alibi", False)


def test_layers_beside_multi_token_prediction_are_as_even_as_they_get() -> None:
    cells = {"pp": "4", "vpp": "1", "mtp_layers": "1"}
    assert map_row(row(layers="61", **cells)).block_layers == (16, 16, 15, 14)
    assert map_row(row(layers="64", **cells)).block_layers is None


def test_the_word_variant_stands_for_columns_that_are_not_there() -> None:
    found = row(variant="compile cuda_graph moe_a2a_overlap hybridep")
    facts = [found.fact(name) for name in ("compile", "cuda_graphs", "overlap", "ep_dispatch")]
    assert facts == ["y", "y", "ep", "hybridep"]
    assert row(variant="compile", compile="n").fact("compile") == "n"


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
        ({"framework": "NeMo AutoModel (PyTorch FSDP2)"}, False),
        ({"compile": "y"}, False),
        ({"overlap": "no-async_tp"}, True),
        ({"precision": "fp8"}, False),
    ],
)
def test_torchtitan_compiles_if_told_to(cells: dict[str, str], eager: bool) -> None:
    kernels = map_row(row(**(TITAN | cells))).job.framework.kernels
    assert (kernels.memory_traffic == 4.0) == eager
    assert (kernels.norm_traffic > 1.0) == eager


@pytest.mark.parametrize(
    ("software", "compiled", "passes"),
    [
        ("torchtitan 2025-06", "n", 9.0),
        ("torchtitan 2026-01", "n", 1.0),
        ("torchtitan 2026-01", "", 1.0),
        ("torchtitan 2026-01", "y", 2.0),
    ],
)
def test_torch_has_a_kernel_for_rms_norms_since_2_9(
    software: str, compiled: str, passes: float
) -> None:
    """Traffic of a norm over that of one kernel: 36 bytes an element of 4 before, uncompiled."""
    cells = TITAN | {"framework": "torchtitan", "software": software, "compile": compiled}
    profile = map_row(row(**cells)).job.framework
    assert profile.kernels.norm_traffic * profile.kernels.memory_traffic == passes
    assert (profile.saved.norm_input_bytes == 4.0) == (passes == 9.0)


@pytest.mark.parametrize(
    ("recipe", "gather", "gathers", "casts", "parameters"),
    [
        ("tensorwise", "", True, 4.0, 2.0),
        ("rowwise", "", False, 20.0, 2.0),
        ("rowwise_with_gw_hp", "n", True, 4.0, 2.0),
        ("tensorwise", "y", True, 4.0, 1.0),
    ],
)
def test_float8_recipes(
    recipe: str, gather: str, gathers: bool, casts: float, parameters: float
) -> None:
    cells = {"compile": "y", "precision": "fp8", "fp8_recipe": recipe, "fp8_gather": gather}
    kernels = map_row(row(**(TITAN | cells))).job.framework.kernels
    quantised_gathers = kernels.quantised_gathers, kernels.cast_traffic_bytes
    assert quantised_gathers == (gathers, casts)
    assert kernels.parameter_communication_bytes == parameters


def test_blocks_compile_as_stated() -> None:
    """IBM's later rows do; so does a stack like FSDP2 without a name, unless it says not."""
    stacks = (("PyTorch FSDP1 (fms-fsdp)", "fsdp-zero3", 1.5), ("", "fsdp2-zero3", 2.0))
    for framework, zero, compiled in stacks:
        for stated, traffic in (("n", 4.0), ("y", compiled)):
            found = row(framework=framework, zero=zero, compile=stated)
            assert map_row(found).job.framework.kernels.memory_traffic == traffic


def test_an_embedding_may_be_whole_on_every_rank_of_tensor_parallelism() -> None:
    for variant, split in (("no_sync", True), ("no_sync, whole embedding", False)):
        found = row(framework="KempnerForge (PyTorch FSDP2)", variant=variant)
        assert map_row(found).job.framework.saved.embedding_sharded == split


def test_weights_of_16_bits_have_no_other_copy() -> None:
    for stated, master in (("bf16", 0.0), ("fp32", 4.0)):
        found = row(framework="NeMo AutoModel", state_precision=stated)
        state = map_row(found).job.framework.state
        assert (state.master_bytes, state.gradient_bytes) == (master, 2.0 + master / 2.0)


@pytest.mark.parametrize(
    ("software", "kept"),
    [("NeMo 24.07", 2.0), ("dgxc-benchmarking v24.11.1", 2.0), ("NeMo 25.04", 4.0), ("", 4.0)],
)
def test_nemo_1_keeps_remainders_of_master_weights(software: str, kept: float) -> None:
    """Apex's distributed Adam has 16 of the 32 bits in the bf16 weight."""
    mapped = map_row(row(framework="NeMo/Megatron-Core", software=software))
    assert mapped.job.framework.state.master_bytes == kept


@pytest.mark.parametrize(
    ("framework", "variant", "once"),
    [("NeMo AutoModel", "", True), ("NeMo AutoModel", "sync_each_batch", False),
     ("torchtitan", "", False), ("torchtitan", "no_sync", True)],
)  # fmt: skip
def test_gradients_are_reduced_as_often_as_a_run_says(
    framework: str, variant: str, once: bool
) -> None:
    state = map_row(row(framework=framework, variant=variant)).job.framework.state
    assert state.unreduced_gradients == once


def test_a_benchmark_s_balanced_gate_takes_neighbours() -> None:
    for routing, neighbours in (("forced, neighbouring experts", True), ("natural", False)):
        kernels = map_row(row(framework="NeMo AutoModel", routing=routing)).job.framework.kernels
        assert kernels.neighbouring_experts == neighbours


@pytest.mark.parametrize(
    ("facts", "table", "key", "value"),
    [
        ({"routing": "dropless"}, "kernels", "pads_experts", True),
        ({"routing": "dropless"}, "kernels", "counts_on_host", True),
        ({"routing": "drops tokens"}, "kernels", "counts_on_host", False),
        ({"routing": "drops tokens"}, "kernels", "pads_experts", False),
        ({"routing": "forced, padded"}, "kernels", "pads_experts", False),
        ({"cuda_graphs": "full_iteration"}, "kernels", "pads_experts", False),
        ({"moe_gemm": "sequential"}, "kernels", "sequential_experts", True),
        ({"kernel": "torch permutation"}, "kernels", "fused_permutation", False),
        ({"overlap": "ep no-tp"}, "overlap", "tensor", 0.0),
        ({"allocator": "expandable segments"}, "outside", "fragmentation", 0.0),
    ],
)
def test_facts_of_bridge_recipes(facts: dict[str, str], table: str, key: str, value: float) -> None:
    found = map_row(row(framework="Megatron-Bridge", **facts)).job.framework
    assert getattr(getattr(found, table), key) == value


@pytest.mark.parametrize(
    ("facts", "fused"),
    [
        ({"framework": "Megatron-LM core_v0.17.0"}, False),
        ({"framework": "Megatron-LM", "kernel": "fused permutation"}, True),
        ({"framework": "Megatron-LM", "ep_dispatch": "hybridep"}, True),
        ({"framework": "Megatron-Bridge"}, True),
        ({"framework": "HF transformers"}, False),
    ],
)
def test_megatron_permutes_by_torch_unless_told(facts: dict[str, str], fused: bool) -> None:
    cells = {"moe": "8 experts top2", "tp": "1", "pp": "1", "vpp": "", "gpu": "H100-80GB"} | facts
    assert map_row(row(**cells)).job.framework.kernels.fused_permutation is fused


@pytest.mark.parametrize(
    ("facts", "fused"),
    [
        ({"software": "NeMo 25.09 container"}, True),
        ({"software": "NeMo 25.02"}, False),
        ({"software": "dgxc-benchmarking v25.05.04"}, False),
        ({"routing": "natural"}, False),
        ({"mixer": "mamba hybrid: pattern MEM*, heads 8, head_dim 64, groups 8, state 128"}, False),
        ({"framework": "Megatron-Core"}, False),
    ],
)
def test_performance_recipes_of_bridge_fuse_their_router(
    facts: dict[str, str], fused: bool
) -> None:
    cells = {"framework": "Megatron-Bridge", "moe": "8 experts top2", "pp": "1", "vpp": ""} | facts
    assert map_row(row(**cells)).job.framework.kernels.fused_router is fused


def test_an_exchange_hides_better_in_one_graph() -> None:
    for graphs, share in (("full_iteration", 0.9), ("transformer_engine: attn", 0.5), ("", 0.5)):
        found = row(framework="Megatron-Bridge", overlap="ep", cuda_graphs=graphs)
        assert map_row(found).job.framework.overlap.expert == share


def test_experts_of_some_groups() -> None:
    for text, groups in (("", (1, 1)), (" (4 of 8 groups)", (8, 4))):
        moe = map_row(row(moe=f"256 experts top8{text}; expert ffn 2048")).job.model.moe
        assert moe is not None
        assert (moe.groups, moe.top_groups, moe.top_k) == (*groups, 8)


def test_hugging_faces_blocks_are_eager_under_any_trainer() -> None:
    eager = load_framework("fsdp1").kernels
    for framework in ("XTuner+DeepSpeed", "DeepSpeed", "LLaMA-Factory"):
        kernels = map_row(row(framework=framework)).job.framework.kernels
        assert kernels.memory_traffic == eager.memory_traffic
        assert kernels.norm_traffic == eager.norm_traffic


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
        ({"software": "NeMo 25.09 container"}, False, False),
        ({"software": "NeMo 25.09 container", "cuda_graphs": "y"}, True, False),
        ({"software": "NeMo 26.06 container"}, True, True),
        ({}, True, True),
        ({"cuda_graphs": "none"}, False, True),
        ({"cuda_graphs": "transformer_engine: attn moe_router"}, True, True),
        ({"cuda_graphs": "transformer_engine"}, False, True),
        ({"software": "NeMo 26.06 container", "gpu": "H100-80GB"}, False, False),
        ({"software": "NeMo 26.06 container", "moe": ""}, False, False),
    ],
)
def test_recipes_of_mixtures_on_nvl72_use_graphs_and_hybridep(
    cells: dict[str, str], graphs: bool, overlap: bool
) -> None:
    profile = map_row(row(**(GB200_MIXTURE | cells))).job.framework
    assert (profile.kernels.issue_s == 0.0 or profile.kernels.captured) is graphs
    assert profile.kernels.dispatch_deduplicates is overlap
    assert (profile.overlap.expert > 0.0) is overlap


def test_local_layers_of_megatron_issue_faster() -> None:
    local = load_framework("megatron-local").kernels.issue_s
    for implementation, expected in (
        ("local", local),
        ("transformer_engine", load_framework("megatron-core").kernels.issue_s),
    ):
        cells = {"tp": "2", "pp": "1", "flash": "n", "transformer_impl": implementation}
        found = map_row(row(**MEGATRON, **cells)).job.framework
        assert found.kernels.issue_s == expected
    assert local < expected


def test_bloom_waited_for_every_kernel() -> None:
    values = {"framework": "Megatron-DeepSpeed", "precision": "fp16"}
    bloom = map_row(row(host="blocking launches; PCIe and NUMA tuned", **values)).job.framework
    assert bloom.kernels.blocking_launches
    assert not map_row(row(**values)).job.framework.kernels.blocking_launches


def test_megatron_of_before_april_2021_sends_whole_activations() -> None:
    assert map_row(row()).job.framework.kernels.pipeline_scatters
    old = map_row(row(software="Megatron-LM 2021-01"))
    assert not old.job.framework.kernels.pipeline_scatters


def test_megatron_reduces_gradients_of_bf16_runs_in_fp32() -> None:
    half, brain = (map_row(row(precision=item)).job.framework for item in ("fp16", "bf16"))
    assert half.kernels.gradient_communication_bytes == 2.0
    assert brain.kernels.gradient_communication_bytes == 4.0


def test_ranks_of_latent_attention_are_no_lora() -> None:
    values = {
        **GB200_MIXTURE,
        "moe": "MLA(no q_lora, kv_lora512, rope64); 64 experts top6, expert ffn 1408",
    }
    mla = map_row(row(**values)).job.model.mla
    assert mla is not None
    assert (mla.q_lora_rank, mla.kv_lora_rank) == (None, 512)
    with pytest.raises(UnpredictableRowError, match="LoRA"):
        map_row(row(tuning="lora"))


@pytest.mark.parametrize(
    ("cells", "peak"),
    [
        ({"framework": "torchtitan", "tp": "8", "variant": "eager"}, 14.0),
        ({"framework": "torchtitan", "tp": "8", "variant": "compile"}, 6.0),
        ({"framework": "torchtitan", "tp": "1", "variant": "eager"}, 14.0),
        ({"framework": "torchtitan", "tp": "1", "variant": "compile"}, 6.0),
        ({"framework": "torchtitan FSDP2", "tp": "8", "variant": "compile"}, 14.0),
        ({"framework": "torchtitan", "software": "torchtitan 2025-03", "compile": "y"}, 14.0),
        ({"framework": "torchtitan", "software": "torchtitan 2025-04", "compile": "y"}, 6.0),
    ],
)
def test_the_loss_is_compiled_where_torchtitan_compiles_it(
    cells: dict[str, str], peak: float
) -> None:
    common = {"pp": "1", "vpp": "1", "zero": "fsdp-zero3", "precision": "bf16", "flash": "y"}
    profile = map_row(row(**(common | cells))).job.framework
    assert profile.saved.logits_peak_bytes == peak


def test_cross_entropy_of_transformer_engine_where_a_row_states_it() -> None:
    losses = [
        map_row(row(framework="Megatron-Core", loss=text)).job.framework.kernels.loss_traffic
        for text in ("", "te-fused")
    ]
    assert losses == [
        load_framework(name).kernels.loss_traffic for name in ("megatron-core", "megatron-bridge")
    ]


def test_cross_entropies_of_megatron_under_its_bridge() -> None:
    """Megatron's own, jit-fused and plain: its traffic, and the peak of one that is not fused."""
    for framework in ("Megatron-Core", "Megatron-Bridge"):
        plain, fused = (
            map_row(row(framework=framework, loss=text)).job.framework
            for text in ("plain", "fused")
        )
        core = load_framework("megatron-core")
        assert plain.kernels.loss_traffic == core.kernels.loss_traffic
        assert fused.kernels.loss_traffic == core.kernels.loss_traffic
        assert plain.saved.logits_peak_bytes == core.saved.logits_peak_bytes
        assert fused.saved.logits_peak_bytes == 10.0


@pytest.mark.parametrize(
    ("framework", "gradients", "copy"),
    [
        ("Megatron-Core", "fp32", 0.0),
        ("Megatron-Core", "bf16", 4.0),
        ("Megatron-Bridge", "fp32", 0.0),
        ("Megatron-Bridge", "bf16", 4.0),
    ],
)
def test_gradients_of_16_bits_are_cast_for_the_update(
    framework: str, gradients: str, copy: float
) -> None:
    job = map_row(row(framework=framework, grad_precision=gradients)).job
    assert CostModel(job).framework_inputs.optimizer_temporary_bytes == copy


def test_pax_of_2023_gathered_within_an_iteration() -> None:
    common = {"framework": "Paxml (JAX/XLA)", "zero": "zero3(FSDP)", "pp": "1", "vpp": "1"}
    prefetched = [
        map_row(
            row(**common, software=f"JAX-Toolbox {version}")
        ).job.framework.overlap.fsdp_prefetch
        for version in ("2023-10", "2024 (latest)")
    ]
    assert prefetched == [0.75, 1.0]


@pytest.mark.parametrize(("stated", "sums"), [("bf16", 0.0), ("fp32", 4.0), ("", 4.0)])
def test_bf16_gradients_of_deepspeed_have_no_fp32_sums(stated: str, sums: float) -> None:
    found = map_row(row(framework="Megatron-DeepSpeed", precision="bf16", grad_precision=stated))
    state = found.job.framework.in_precision("bf16").state
    assert state.extra_gradient_bytes == sums
    assert (state.flat_update_bytes > 0.0) == (sums == 0.0)


@pytest.mark.parametrize(
    ("framework", "zero", "size"),
    [
        ("DeepSpeed + HF transformers", "zero3", 1e9),
        ("HF transformers, PyTorch Lightning (DeepSpeed)", "zero3", 4e8),
        ("LLaMA-Factory (DeepSpeed, HF transformers)", "zero3", 0.0),
        ("LLaMA-Factory (DeepSpeed, HF transformers)", "zero2", 1e9),
    ],
)
def test_deepspeeds_bucket_is_that_of_who_configures_it(
    framework: str, zero: str, size: float
) -> None:
    state = map_row(row(framework=framework, zero=zero, tp="1", pp="1")).job.framework.state
    assert state.whole_bucket_bytes == size


def test_a_llama_in_llm_foundry_of_2023_runs_in_plain_torch() -> None:
    def traffic(**cells: str) -> tuple[float, float]:
        kernels = map_row(row(framework="Composer/llm-foundry FSDP", **cells)).job.framework.kernels
        return kernels.memory_traffic, kernels.norm_traffic

    eager, mpt = (load_framework(name).kernels for name in ("fsdp1", "llm-foundry"))
    llama = {"act": "swiglu", "software": "2023-10"}
    assert traffic(**llama) == (eager.memory_traffic, eager.norm_traffic)
    assert traffic(**llama | {"act": "gelu"}) == (mpt.memory_traffic, mpt.norm_traffic)
    assert traffic(**llama | {"software": "2024-03"}) == (mpt.memory_traffic, mpt.norm_traffic)
