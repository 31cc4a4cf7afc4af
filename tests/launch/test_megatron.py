"""Megatron-LM flags: known ones with legal values, what they say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.job.request import Request
from planner.job.resolve import resolve
from planner.launch.contract import Launch
from planner.launch.dialects.megatron import writer as megatron
from planner.launch.dialects.megatron.flags import layout_text
from planner.launch.dialects.megatron.table import pattern
from planner.launch.plans import refusals_of
from tests.launch.plans import MEGATRON, changed, costed, default_argv, sharded
from tests.launch.plans import megatron as case
from tests.launch.unfolded_layout import unfolded_layout

FLAGS = json.loads(Path(__file__).with_name("megatron_flags.json").read_text())["flags"]


def flags(launch: Launch) -> dict[str, list[str]]:
    """Option -> its values."""
    found: dict[str, list[str]] = {}
    for word in default_argv(megatron.command(launch))[1:]:
        if word.startswith("--"):
            assert word not in found, f"{word} twice"
            found[word] = []
        else:
            found[list(found)[-1]].append(word)
    return found


@pytest.mark.parametrize("name", MEGATRON)
def test_every_flag_exists_with_a_legal_value(name: str) -> None:
    for option, values in flags(case(name)).items():
        known = FLAGS.get(option)
        assert known is not None, f"megatron-core 0.19 has no {option}"
        expected = {"switch": 0, "value": 1}.get(known["takes"])
        assert expected is None or len(values) == expected, option
        assert values or known["takes"] == "switch", option
        for value in values:
            assert value in known.get("choices", [value]), f"{option} {value}"


@pytest.mark.parametrize("name", MEGATRON)
def test_nothing_is_refused_and_degrees_are_said(name: str) -> None:
    launch = case(name)
    assert list(refusals_of(launch)) == []
    degree, found = launch.plan.degrees, flags(launch)
    assert found["--tensor-model-parallel-size"] == [str(degree.tp)]
    assert found["--pipeline-model-parallel-size"] == [str(degree.pp)]
    assert found["--context-parallel-size"] == [str(degree.cp)]
    assert found["--micro-batch-size"] == [str(degree.mbs)]
    # Megatron takes the batch or its schedule, not both.
    batch = found.get("--global-batch-size", found.get("--step-batch-size-schedule", [""]))
    assert batch[0].rpartition(":")[2] == str(launch.plan.gbs)
    assert ("--sequence-parallel" in found) == (degree.tp > 1)
    assert ("--use-distributed-optimizer" in found) == (degree.zero > 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pipeline", {}),
        (
            "ends-differ",
            {
                "--decoder-first-pipeline-num-layers": ["19"],
                "--decoder-last-pipeline-num-layers": ["19"],
            },
        ),
        ("uneven", {"--pipeline-model-parallel-layout": ["Et*18|t*21|t*20|t*21L"]}),
        ("interleaved", {"--num-layers-per-virtual-pipeline-stage": ["4"]}),
        ("interleaved-uneven", {"--pipeline-model-parallel-layout": ["Et*3|(t*4|)*18t*5L"]}),
        ("mtp-standalone", {"--pipeline-model-parallel-layout": ["Et*5|(t*4|)*13t*4m|L"]}),
        ("mtp-standalone-alone", {"--pipeline-model-parallel-layout": ["Et*4|(t*3|)*12t*6|m|L"]}),
        (
            "latent-pipeline",
            {
                "--decoder-first-pipeline-num-layers": ["4"],
                "--decoder-last-pipeline-num-layers": ["1"],
            },
        ),
    ],
)
def test_layouts(name: str, expected: dict[str, list[str]]) -> None:
    options = {
        "--decoder-first-pipeline-num-layers",
        "--decoder-last-pipeline-num-layers",
        "--num-layers-per-virtual-pipeline-stage",
        "--pipeline-model-parallel-layout",
    }
    found = flags(case(name))
    assert {option: found[option] for option in options & set(found)} == expected


@pytest.mark.parametrize(
    "blocks", [(1, 1), (18, 21, 20, 21), (3, *(4,) * 18, 5), (1, 2, 2, 2, 1), (2, 1, 1, 1, 2, 2)]
)
def test_layout_text_is_read_back(blocks: tuple[int, ...]) -> None:
    read = unfolded_layout(layout_text(blocks, 1))
    assert tuple(block.count("t") for block in read) == blocks
    assert read[0].startswith("E")
    assert read[-1].endswith("mL")


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        ([False] * 3 + [True] * 58, "([0]*3+[1]*58)"),
        ([False, True] * 12, "([0,1]*12)"),
        ([True, True, False] * 4, "([1,1,0]*4)"),
        ([True, False, False], "([1]*1+[0]*2)"),
    ],
)
def test_patterns_are_what_megatron_evaluates(marks: list[bool], text: str) -> None:
    assert pattern(marks) == text
    # As `_eval_pattern` of megatron/training/arguments.py does.
    assert eval(text) == [int(mark) for mark in marks]


def test_recomputation() -> None:
    whole = flags(case("full"))
    assert whole["--recompute-granularity"] == ["full"]
    assert (whole["--recompute-method"], whole["--recompute-num-layers"]) == (["uniform"], ["1"])
    some = flags(case("full-some-layers"))
    assert (some["--recompute-method"], some["--recompute-num-layers"]) == (["block"], ["5"])
    groups = flags(case("full-groups"))
    assert groups["--recompute-num-layers"] == ["4"]
    modules = flags(case("split-experts"))
    assert modules["--recompute-modules"] == ["layernorm", "moe_act"]
    assert "--recompute-method" not in modules
    assert "--recompute-granularity" not in flags(case("dense"))


def test_latent_attention_and_experts() -> None:
    found = flags(case("latent-pipeline"))
    assert "--multi-latent-attention" in found
    assert "--group-query-attention" not in found
    assert found["--q-lora-rank"] == ["1536"]
    assert found["--moe-layer-freq"] == ["([0]*3+[1]*58)"]
    assert found["--expert-model-parallel-size"] == ["64"]
    assert found["--mtp-num-layers"] == ["1"]
    assert "--moe-router-enable-expert-bias" in found
    assert "--moe-router-bias-update-rate" in found
    assert found["--moe-router-num-groups"] == ["8"]
    assert found["--moe-router-group-topk"] == ["4"]
    assert found["--moe-router-topk-scaling-factor"] == ["2.5"]
    assert found["--moe-router-dtype"] == ["fp32"]
    assert found["--moe-router-load-balancing-type"] == ["seq_aux_loss"]
    assert "--q-lora-rank" not in flags(case("latent"))


def test_expert_tensor_parallelism_is_always_said() -> None:
    # Megatron's default is tp, not 1.
    assert flags(case("experts"))["--expert-tensor-parallel-size"] == ["1"]
    assert flags(case("split-experts"))["--expert-tensor-parallel-size"] == ["2"]


def test_experts_with_biases_drop_a_fusion_that_fails_at_run_time() -> None:
    assert "--no-bias-dropout-fusion" in flags(case("experts-with-biases"))
    assert "--no-bias-dropout-fusion" not in flags(case("experts"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("dense", "1"), ("long-context", "1"), ("one-gpu", None), ("mxfp8", None)],
)
def test_hardware_queues(name: str, value: str | None) -> None:
    environment = megatron.command(case(name)).environment
    assert environment.get("CUDA_DEVICE_MAX_CONNECTIONS", (None,))[0] == value


@pytest.mark.parametrize(("zero", "sharding"), [(2, "optim_grads"), (3, "optim_grads_params")])
def test_fsdp(zero: int, sharding: str) -> None:
    launch = sharded(case("dense"), zero)
    found = flags(launch)
    assert found["--data-parallel-sharding-strategy"] == [sharding]
    assert found["--ckpt-format"] == ["fsdp_dtensor"]
    assert megatron.command(launch).environment["CUDA_DEVICE_MAX_CONNECTIONS"][0] != "1"
    refused = [refusal.reason for refusal in refusals_of(sharded(case("muon"), zero))]
    assert any("not muon" in reason for reason in refused)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ("gemma-2-9b", "sandwich"),
        ("falcon-7b", "single"),
        ("olmo-7b", "without a scale"),
        ("mpt-7b", "ALiBi"),
        ("llama-4-scout", "chunks"),
        ("olmo-2-7b", "post"),
    ],
)
def test_models_that_megatron_has_no_flags_for(model: str, word: str) -> None:
    from planner.job.models.catalog import load_model
    from planner.launch.dialects.megatron.writer import model_refusals

    reasons = [
        model_refusal.reason for model_refusal in model_refusals(load_model(model).spec, 2048)
    ]
    assert any(word in reason for reason in reasons), reasons


def test_what_only_the_run_would_find_out_is_refused() -> None:
    flags_by_stage = "--recompute-granularity full (layers by stage: 5, 4, 5, 5)"
    refused = list(refusals_of(changed(case("full"), recompute_flags=flags_by_stage)))
    assert "same number of layers" in refused[0].reason

    refused = list(refusals_of(changed(case("pipeline"), schedule="zb-h1")))
    assert "no zb-h1 schedule" in refused[0].reason


def test_sequence_longer_than_learned_positions() -> None:
    from planner.launch.dialects.megatron.writer import model_refusals

    model = case("gpt3").job.model
    refused = next(iter(model_refusals(model, 4096)))
    assert "learned positions" in refused.reason
    assert refused.nearest == "--seq 2048"
    assert costed(MEGATRON["gpt3"]).plan.seq == 2048


def test_autocast_over_fp32_parameters_is_no_launch_of_megatrons() -> None:
    job = resolve(
        Request(model="gpt2", gpus="1xA100", gbs=8, framework="megatron-core", dtype="amp")
    )
    (refusal,) = megatron.job_refusals(job)
    assert "autocast" in refusal.reason
    assert refusal.nearest == "--dtype bf16"


def test_packs_of_samples_name_their_data_and_tokenizer() -> None:
    launch = case("packs")
    found = flags(launch)
    assert {"--sft", "--calculate-per-token-loss"} <= set(found)
    assert "--no-create-attention-mask-in-dataloader" in found
    assert "--hybrid-context-parallel" not in found
    command = megatron.command(launch)
    assert {"DATA_PATH", "TOKENIZER"} <= {entry.name for entry in command.needed}
    assert any("SFTTokenizer" in branch.given for branch in command.branches)
    assert "--sft" not in flags(case("dense"))


def test_hybrid_context_parallelism_says_what_a_rank_holds() -> None:
    launch = case("hybrid-context")
    found = flags(launch)
    assert found["--max-seqlen-per-dp-cp-rank"] == ["8192"]
    assert found["--hybrid-context-parallel"] == [] and "--calculate-per-token-loss" in found
    said = [one.purpose for one in megatron.choices(launch) if one.setting.startswith("hybrid")]
    assert len(said) == 1 and "8,192 tokens a rank" in said[0]
    dynamic = launch.request.model_copy(update={"balance": "dynamic-cp"})
    [refusal] = [
        one for one in megatron.job_refusals(dynamic.resolve()) if "branch dev" in one.reason
    ]
    assert refusal.nearest == "--balance hybrid-cp"
