"""From cells of a measured row to a job and a configuration."""

from __future__ import annotations

import pytest

from planner.evidence.runs.mapping import MappedRow, map_row
from planner.evidence.runs.model import UnpredictableRowError
from planner.evidence.runs.predict import Prediction, cost_predictions
from planner.job.recompute import Module
from tests.evidence.runs.rows_for_tests import row


def _costed(mapped: MappedRow) -> Prediction:
    return Prediction(mapped.row, mapped)


def test_degrees_and_batch_come_from_the_row() -> None:
    mapped = map_row(row())
    degrees = mapped.degrees
    assert (degrees.tp, degrees.pp, degrees.vpp, degrees.dp) == (8, 8, 3, 1)
    assert (degrees.mbs, degrees.grad_acc, degrees.zero) == (1, 64, 0)
    assert mapped.mode.mask == Module.FULL
    assert mapped.job.attention == "eager"
    assert mapped.job.framework.name == "megatron-lm-2022"
    assert mapped.job.framework.parallelism.sequence_parallel == "never"


@pytest.mark.parametrize(
    ("cells", "stage"),
    [
        ({"zero": "zero1(dist-opt)"}, 1),
        ({"zero": "fsdp-zero3"}, 3),
        ({"zero": "megatron-fsdp:optim_grads_params"}, 3),
        ({"zero": "FSDP(ZeRO-2 style: no reshard after forward)"}, 2),
        ({"zero": "none"}, 0),
        ({"zero": "none", "framework": "Megatron-DeepSpeed", "precision": "fp16"}, 0),
        # BF16_Optimizer.
        ({"zero": "none", "framework": "Megatron-DeepSpeed", "precision": "bf16"}, 1),
    ],
)
def test_zero_stages_in_the_words_of_the_sources(cells: dict[str, str], stage: int) -> None:
    assert map_row(row(**cells)).degrees.zero == stage


@pytest.mark.parametrize(
    ("framework", "zero", "profile"),
    [
        ("Megatron-Core CI (dev)", "megatron-fsdp:optim_grads_params", "megatron-fsdp"),
        ("Megatron-Bridge (NeMo 25.11 container)", "megatron-fsdp(zero3)", "megatron-fsdp"),
        ("NeMo/Megatron-Core", "fsdp", "megatron-fsdp"),
        ("Megatron-Bridge (NeMo 25.11 container)", "zero1(dist-opt)", "megatron-bridge"),
        ("torchtitan", "fsdp", "torchtitan"),
    ],
)
def test_fsdp_of_megatron_has_a_profile_of_its_own(framework: str, zero: str, profile: str) -> None:
    mapped = map_row(row(framework=framework, zero=zero, pp="1", vpp="1"))
    assert mapped.job.framework.name == profile


def test_recompute_modules_are_read_from_words() -> None:
    mode = map_row(row(framework="NeMo/Megatron-Core", recompute="selective:layernorm+moe_act"))
    assert mode.mode.mask == Module.LAYERNORM | Module.ACTIVATION


def test_uneven_layers_are_unfolded() -> None:
    mapped = map_row(row(layers="16", pp="4", vpp="1", tp="1", layers_per_stage="6/5x2/0"))
    assert mapped.layout.block_layers == (6, 5, 5, 0)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"mixer": "mamba hybrid"}, "state spaces"),
        ({"tuning": "one layer, no optimizer"}, "one layer"),
        ({"tuning": "peft:adalora"}, "LoRA"),
        ({"tuning": "peft:p-tuning v2"}, "LoRA"),
        ({"framework": "torchtune prefix"}, "LoRA"),
        ({"mixer": "rwkv"}, "rwkv"),
        ({"mixer": "linear attention"}, "linear attention"),
        ({"mbs": "", "gbs": ""}, "mbs"),
        ({"num_gpus": ""}, "num_gpus"),
        ({"gpu": "Cerebras-CS3"}, "not in the catalogue"),
        ({"hidden": ""}, "hidden"),
        ({"tp": "", "pp": "", "dp": ""}, "tp and pp"),
        ({"moe": "many experts"}, "experts"),
    ],
)
def test_rows_beyond_the_model_are_refused_with_the_reason(
    cells: dict[str, str], reason: str
) -> None:
    with pytest.raises(UnpredictableRowError, match=reason):
        map_row(row(**cells))


def test_layers_of_mamba_alone_are_all_state_spaces() -> None:
    kinds = map_row(row(mixer="Mamba-2")).job.model.kinds
    assert {kind.attention for kind in kinds} == {"state"}
    assert not map_row(row(mixer="sliding-window")).job.model.has_states


def test_a_misprinted_number_of_heads_takes_the_usual_width() -> None:
    model = map_row(row(heads="12288", kv_heads="12288")).job.model
    assert (model.heads, model.kv_heads, model.head_dim) == (96, 96, 128)


def test_experts_are_read_from_words_and_from_pairs() -> None:
    words = map_row(row(moe="128 experts top8, expert ffn 1536, head_dim 128", act="swiglu"))
    pairs = map_row(row(moe="experts=8;topk=2;moe_ffn=1024;shared=0", act="swiglu"))
    assert words.job.model.moe is not None
    assert pairs.job.model.moe is not None
    assert (words.job.model.moe.experts, words.job.model.moe.ffn) == (128, 1536)
    assert (pairs.job.model.moe.top_k, pairs.job.model.moe.ffn) == (2, 1024)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("", None),
        ("1F1B-I", None),
        ("1f1b-interleaved-vpp4", None),
        ("ZB-1p", "zb-h1"),
        ("zero-bubble", "zb-h1"),
        ("ZB-2p", "zb-h2"),
        ("zbv-formatted", "zb-v"),
        ("DualPipe", "dualpipe"),
        ("AFAB", "gpipe"),
    ],
)
def test_schedules_in_the_words_of_the_sources(text: str, schedule: str | None) -> None:
    assert map_row(row(schedule=text)).job.schedule == schedule


def test_schedules_that_are_not_modelled_are_refused() -> None:
    with pytest.raises(UnpredictableRowError, match="v-half"):
        map_row(row(schedule="v-half"))


def test_schedules_need_a_pipeline() -> None:
    assert map_row(row(schedule="ZB-2p", pp="1", vpp="1")).job.schedule is None


def test_megatron_lm_on_hopper_is_of_2023_or_later() -> None:
    gpus = ("A100-80GB", "NVIDIA A100-SXM4-80GB", "H100-80GB")
    names = [map_row(row(gpu=gpu)).job.framework.name for gpu in gpus]
    assert names == ["megatron-lm-2022", "megatron-lm-2022", "megatron-core"]


def test_transfers_overlap_under_the_interleaved_schedule_alone() -> None:
    """Stages that overlap, with chunks unstated: the fewest, if they divide the layers."""
    stated = "tp pp grad_reduce"
    chunks = [
        map_row(row(vpp=vpp, overlap=text, layers=layers)).degrees.vpp
        for vpp, text, layers in (
            ("", stated, "96"), ("", stated, "104"), ("", "", "96"), ("3", stated, "96"),
        )
    ]  # fmt: skip
    assert chunks == [2, 13, 1, 3]


@pytest.mark.parametrize(
    ("cells", "mbs"),
    [
        ({"mbs": ""}, 1),
        ({"mbs": "", "heads": "80"}, 2),
        ({"mbs": "", "heads": "72"}, 4),
        ({"mbs": "", "heads": "80", "flash": "y"}, 1),
        ({"mbs": "", "heads": "80", "kernel": "torch"}, 1),
        ({"mbs": "3", "heads": "80"}, 3),
    ],
)
def test_an_unstated_micro_batch_fills_the_fused_softmax(cells: dict[str, str], mbs: int) -> None:
    """12, 10 and 9 heads on each of 8 ranks; the kernel takes four at a time."""
    assert map_row(row(kv_heads="", **cells)).degrees.mbs == mbs


@pytest.mark.parametrize(
    ("cells", "chunks"),
    [
        ({"schedule": "interleaved 1f1b"}, 2),
        # 105 layers on 35 stages.
        ({"schedule": "interleaved 1f1b", "layers": "105", "pp": "35", "num_gpus": "280"}, 3),
        ({"schedule": "1f1b"}, 1),
        ({"overlap": "pp", "pp": "2", "num_gpus": "16"}, 2),
    ],
)
def test_chunks_of_runs_that_are_known_to_interleave(cells: dict[str, str], chunks: int) -> None:
    assert map_row(row(vpp="", **cells)).degrees.vpp == chunks


def test_gpt_oss_has_windows_and_biases() -> None:
    moe = "128 experts top4, expert ffn 2880, head_dim 64, alternating sliding-window 128"
    model = map_row(row(bias="attention and experts", moe=moe, layers="36", act="swiglu")).job.model
    assert model.moe is not None
    assert (model.moe.expert_bias, model.moe.clamp) == (True, 7.0)
    assert (model.qkv_bias, model.mlp_bias) == (True, False)
    assert (model.sliding_window, model.kinds[0].attention) == (128, "sliding")
    assert [kind.attention for kind in model.kind_sequence[:3]] == ["sliding", "full", "sliding"]


@pytest.mark.parametrize(
    ("cells", "chunks"),
    [
        # Two layers a chunk: Llama 2 13B and 70B on 4 stages.
        ({"framework": "NeMo/Megatron-Core", "layers": "40"}, 5),
        ({"framework": "NeMo/Megatron-Core", "layers": "80"}, 10),
        ({"framework": "NeMo/Megatron-Core", "layers": "44"}, 1),
        ({"framework": "NeMo/Megatron-Core", "layers": "40", "vpp": "1"}, 1),
        ({"framework": "NeMo-Megatron", "layers": "40"}, 1),
        ({"framework": "Megatron-LM", "layers": "40"}, 1),
        ({"framework": "Megatron-LM", "layers": "40", "overlap": "pp"}, 2),
    ],
)
def test_chunks_of_pipelines_that_do_not_state_them(cells: dict[str, str], chunks: int) -> None:
    assert map_row(row(**({"tp": "1", "pp": "4", "vpp": ""} | cells))).degrees.vpp == chunks


def test_automodel_runs_its_pipeline_once_for_each_local_batch() -> None:
    cells = {
        "framework": "NeMo AutoModel", "precision": "bf16", "tp": "1", "pp": "4", "vpp": "8",
        "zero": "fsdp2(16)", "mbs": "1", "layers": "96", "gbs": "512",
    }  # fmt: skip
    once = map_row(row(**cells))
    often = map_row(row(**cells, pipeline_runs="4"))
    assert (once.degrees.grad_acc, once.batch_share) == (32, 1.0)
    assert (often.degrees.grad_acc, often.batch_share) == (8, 4.0)
    alone = map_row(row(**(cells | {"pp": "1", "vpp": "1"}), pipeline_runs="4"))
    assert alone.batch_share == 1.0
    # Filled and drained four times, it bubbles four times as long.
    fast, slow = (
        cost_prediction.step_time_s
        for cost_prediction in cost_predictions([_costed(once), _costed(often)])
    )
    assert fast is not None
    assert slow is not None
    assert 1.02 * fast < slow < 1.5 * fast


def test_megatron_s_fsdp_is_known_by_the_framework_s_name() -> None:
    plain = {"zero": "3", "precision": "bf16", "gpu": "H100-80GB", "pp": "1", "vpp": ""}
    names = [
        map_row(row(framework=name, **plain)).job.framework.name
        for name in ("Megatron-FSDP", "Megatron-Core FSDP + EP", "Megatron-Core")
    ]
    assert names == ["megatron-fsdp", "megatron-fsdp", "megatron-core"]


def test_a_gpu_without_bf16_trains_in_fp16_unless_the_row_says_bf16() -> None:
    assert map_row(row(gpu="V100-32GB", precision="")).job.precision == "fp16"
    with pytest.raises(UnpredictableRowError, match="V100-SXM2-32GB has no bf16"):
        map_row(row(gpu="V100-32GB", precision="bf16"))


@pytest.mark.parametrize(
    ("name", "gpu", "profile"),
    [
        ("Megatron-LM (2022-04)", "V100-16GB", "megatron-lm-2022"),
        ("Megatron-LM (2023)", "A100-80GB", "megatron-core"),
    ],
)
def test_a_year_names_the_megatron(name: str, gpu: str, profile: str) -> None:
    mapped = map_row(row(framework=name, gpu=gpu, flash="n", act="gelu", software=""))
    assert mapped.job.framework.name == profile


@pytest.mark.parametrize(
    ("cells", "mode"),
    [
        ({"framework": "Megatron-Core GPTModel (own loop)", "transformer_impl": "local"}, "amp"),
        ({"framework": "Megatron-Core GPTModel (own loop)"}, "amp"),
        ({"framework": "Megatron-Core"}, "bf16"),
    ],
)
def test_fp32_states_are_weights_only_in_a_loop_of_ones_own(
    cells: dict[str, str], mode: str
) -> None:
    """Megatron's own optimizers keep an fp32 copy beside 16-bit weights."""
    mapped = map_row(row(**({"state_precision": "fp32", "flash": "y"} | cells)))
    local = cells.get("transformer_impl") == "local"
    assert mapped.job.framework.name == ("megatron-local" if local else "megatron-core")
    assert mapped.job.framework.mode == mode
    # Such a loop steps with torch's optimizer, of list kernels.
    kernel = "fused" if mode == "bf16" else "foreach"
    assert mapped.job.framework.optimizer.kernels[0] == kernel


@pytest.mark.parametrize(("precision", "traffic"), [("fp32", 8.0), ("bf16", 3.5)])
def test_a_softmax_in_operators_moves_its_scores_more_often(precision: str, traffic: float) -> None:
    """162 bytes of an fp32 score, where a fused softmax with dropout moves 20."""
    plain = {"framework": "plain PyTorch", "zero": "none", "tp": "1", "pp": "1", "vpp": "1"}
    kernels = map_row(row(**plain, flash="n", precision=precision)).job.framework.kernels
    assert kernels.softmax_traffic == traffic


@pytest.mark.parametrize(
    ("precision", "attention"), [("fp32", "eager"), ("tf32", "eager"), ("bf16", "flash")]
)
def test_a_plain_script_in_fp32_writes_its_attention_out(precision: str, attention: str) -> None:
    """FlashAttention's kernels take 16 bits alone."""
    plain = {"framework": "plain PyTorch", "zero": "none", "tp": "1", "pp": "1", "vpp": "1"}
    assert map_row(row(**plain, flash="", precision=precision)).job.attention == attention
    assert map_row(row(**plain, flash="y", precision=precision)).job.attention == "flash"
