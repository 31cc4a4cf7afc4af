"""Each rule over Megatron's options: the smallest launch that breaks it, and its mended twin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hardware.files import shipped_toml
from planner.job.errors import CannotTellError
from planner.launch.check.assess import assess
from planner.launch.check.spelling import edits_for
from planner.launch.dialects.megatron.arguments import options
from planner.launch.read.found import Problem
from tests.launch.check.conftest import OVERLAPPED, SMALL, Read, rules, script

_FINE = "--fine-grained-activation-offloading"
_MOE = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1024"
_PREDICTS = "--mtp-num-layers 1 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout"

# Rule, options that break it, options that do not.
CASES = [
    ("unknown-option", "--recompute-granularty selective", "--recompute-granularity selective"),
    ("unknown-option", "stray", ""),
    ("option-value", "--normalization RmsNorm2", "--normalization RMSNorm"),
    ("option-value", "--micro-batch-size", ""),
    ("option-value", "--context-parallel-size two", "--context-parallel-size 2"),
    ("option-value", "--tensor-model-parallel-size 0", ""),
    ("overlap-param-gather", "--overlap-param-gather", OVERLAPPED),
    ("overlap-param-gather", "--use-distributed-optimizer --overlap-param-gather", OVERLAPPED),
    ("moe-tensor-needs-sequence", f"{_MOE} --tensor-model-parallel-size 2",
     f"{_MOE} --tensor-model-parallel-size 2 --sequence-parallel"),
    ("recompute-method", "--recompute-granularity selective --recompute-method uniform",
     "--recompute-granularity selective"),
    ("recompute-method", "--recompute-granularity full --recompute-method block",
     "--recompute-granularity full --recompute-method block --recompute-num-layers 2"),
    ("interleaving-p2p", "--pipeline-model-parallel-size 2 --no-overlap-p2p-communication "
     "--num-virtual-stages-per-pipeline-rank 2",
     "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"),
    ("precision", "--fp16", ""),
    ("precision", "--fp8-format hybrid --fp4-format e2m1", "--fp8-format hybrid"),
    ("fp8-param-gather", "--fp8-format hybrid --fp8-param-gather",
     "--fp8-format hybrid --fp8-param-gather --use-distributed-optimizer"),
    ("optimizer-offload", f"{OVERLAPPED} --optimizer-cpu-offload",
     f"{OVERLAPPED} --optimizer-cpu-offload --use-precision-aware-optimizer"),
    ("precision-aware-optimizer", "--use-precision-aware-optimizer",
     "--use-precision-aware-optimizer --use-distributed-optimizer"),
    ("precision-aware-optimizer", "--exp-avg-dtype bf16", "--exp-avg-dtype fp32"),
    ("mla-and-gqa", "--multi-latent-attention", ""),
    ("positions", "--max-position-embeddings 2048", ""),
    ("option-value", "--context-parallel-size 2 --cp-comm-type ring",
     "--context-parallel-size 2 --cp-comm-type a2a"),
    ("context-levels", "--context-parallel-size 4 --cp-comm-type a2a+p2p",
     "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2"),
    ("context-levels", "--context-parallel-size 4 --cp-comm-type a2a+p2p "
     "--hierarchical-context-parallel-sizes 2 4", ""),
    ("tp-comm-overlap", "--tensor-model-parallel-size 2 --tp-comm-overlap",
     "--tensor-model-parallel-size 2 --tp-comm-overlap --sequence-parallel"),
    ("activation-offload", "--fine-grained-activation-offloading",
     f"{_FINE} --offload-modules core_attn"),
    ("activation-offload", f"{_FINE} --offload-modules core_attn --transformer-impl local",
     f"{_FINE} --offload-modules core_attn --transformer-impl transformer_engine"),
    ("activation-offload", f"{_FINE} --offload-modules core_attn --cpu-offloading-num-layers 4",
     f"{_FINE} --offload-modules core_attn"),
    ("activation-offload-projection", f"{_FINE} --offload-modules attn_proj",
     f"{_FINE} --offload-modules core_attn attn_proj"),
    ("activation-offload-fraction",
     f"{_FINE} --offload-modules core_attn --activation-offload-fraction 1.5",
     f"{_FINE} --offload-modules core_attn --activation-offload-fraction 0.5"),
    ("activation-offload-delta", f"{_FINE} --offload-modules core_attn "
     "--pipeline-model-parallel-size 2 --delta-offload-bytes-across-pp-ranks 1000000",
     f"{_FINE} --offload-modules core_attn --delta-offload-bytes-across-pp-ranks 1000000"),
    ("activation-offload", "--cpu-offloading-num-layers 4 --recompute-granularity selective",
     "--cpu-offloading-num-layers 4"),
    ("fsdp-checkpoint", "--use-megatron-fsdp",
     "--use-megatron-fsdp --ckpt-format fsdp_dtensor"),
    ("torch-fsdp2", "--use-torch-fsdp2 --use-distributed-optimizer",
     "--use-torch-fsdp2 --untie-embeddings-and-output-weights --no-gradient-accumulation-fusion"),
    ("cross-entropy-fusion", "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
     "--cross-entropy-loss-fusion"),
    ("vpp-options", "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
     "--num-layers-per-virtual-pipeline-stage 2",
     "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2"),
    ("vpp-options", "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 "
     "--num-layers-per-virtual-pipeline-stage 1", ""),
    ("layers-by-pp", "--pipeline-model-parallel-size 3", "--pipeline-model-parallel-size 4"),
    ("layers-by-chunk", "--pipeline-model-parallel-size 2 "
     "--num-layers-per-virtual-pipeline-stage 3",
     "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4"),
    ("layers-by-ends", "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3",
     "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1"),
    ("layout-text", "--pipeline-model-parallel-layout Etx", ""),
    ("layout-stages", "--pipeline-model-parallel-size 2 "
     "--pipeline-model-parallel-layout 'Et*8|t*4|t*4L'",
     "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*8|t*8L'"),
    ("layout-layers", "--pipeline-model-parallel-size 2 "
     "--pipeline-model-parallel-layout 'Et*8|t*9L'", ""),
    ("layout-ends", "--pipeline-model-parallel-size 2 "
     "--pipeline-model-parallel-layout 't*8E|t*8L'", ""),
    ("layout-mtp", f"{_PREDICTS} 'Et*4|t*4|t*4|t*4L'", f"{_PREDICTS} 'Et*4|t*4|t*4|t*4mL'"),
    ("layout-mtp", f"{_PREDICTS} 'Et*4|t*4|t*4|t*4mmL'", f"{_PREDICTS} 'Et*4|t*6|t*6m|L'"),
    ("layout-mtp", f"{_PREDICTS} 'Et*4|t*4|t*4m|t*4L'", f"{_PREDICTS} 'Et*4|t*6|t*6|mL'"),
    ("layout-mtp", f"{_PREDICTS} 'Et*8|t*4|t*4m|||||L'", f"{_PREDICTS} 'Et*8|t*4|t*4||||m|L'"),
    ("moe-layer-freq", f"{_MOE} --moe-layer-freq [0]*3+[1]*3", f"{_MOE} --moe-layer-freq 2"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "wrong", "right"), CASES)
def test_rule(read: Read, rule: str, wrong: str, right: str) -> None:
    found = read(script(f"{SMALL} {wrong}"))
    assert rule in rules(found)
    assert rule not in rules(read(script(f"{SMALL} {right}"), "right.sh"))
    problem = next(item for item in found.problems if item.rule == rule)
    assert problem.places or rule == "option-value"


def test_rules_name_options_of_the_parser() -> None:
    """Every word of a row that is no degree, value or sign."""
    table = shipped_toml("planner.launch.dialects.megatron", "rules.toml")
    rows = [row for rows in table["rule"].values() for row in rows]
    held = [word for row in rows for word in (*row["given"], *row.get("excludes", {}).values())]
    names = {word.removeprefix("no ").split()[0] for word in held if word[0] != "$"}
    names |= {name for _, *named in table["needs"] for name in named}
    names |= {name for row in rows for name in (*row.get("set", ()), *row.get("leave_out", ()))}
    assert {name for name in names if name[0] != "$"} - options().keys() == {"tp", "pp", "vpp"}


def problem_of(read: Read, arguments: str, rule: str) -> Problem:
    """The problem of a rule in a script."""
    return next(problem for problem in read(script(arguments)).problems if problem.rule == rule)


def test_offload_that_does_too_much(read: Read) -> None:
    """Modules that the model has not are passed over; without the variable weights go too."""
    given = f"{SMALL} {_FINE} --offload-modules core_attn moe_act"
    weights = problem_of(read, given, "activation-offload-weights")
    assert (weights.severity, weights.fix) == ("warning", "export NVTE_CPU_OFFLOAD_V1=1")
    found = assess(read(script(given)), "8xH100")
    assert found.errors == ()
    assert found.plan is not None
    assert found.plan.activation_offload == ("core_attn",)
    lagging = problem_of(read, given, "activation-offload-copies")
    assert lagging.fix == "--fine-grained-offloading-max-inflight-offloads 1"


def test_a_fraction_of_the_activations_is_costed(read: Read) -> None:
    """What stays is in the plan's memory; a fraction of nothing is none, and 0 is no offload."""
    given = f"{SMALL} {_FINE} --offload-modules core_attn attn_proj --activation-offload-fraction"
    plans = [assess(read(script(f"{given} {item}")), "8xH100").plan for item in ("0.5", "1", "0")]
    half, whole, none = plans
    assert half is not None
    assert whole is not None
    assert none is not None
    assert [item.activation_offload_fraction for item in (half, whole, none)] == [0.5, 1.0, 1.0]
    assert none.activation_offload == ()
    assert none.time.offload_s < half.time.offload_s < whole.time.offload_s
    assert none.peak_bytes > half.peak_bytes > whole.peak_bytes
    experts = f"{SMALL} {_FINE} --offload-modules moe_act --activation-offload-fraction 0.5"
    idle = assess(read(script(experts)), "8xH100")
    assert idle.errors == ()
    assert idle.plan is not None
    assert idle.plan.activation_offload_fraction == 1.0


def test_chunks_of_one_layer_fail_with_several_modules(read: Read) -> None:
    """16 layers in 16 chunks: Megatron-Core's manager fails in the second step."""
    small = (
        f"{SMALL} {_FINE} --pipeline-model-parallel-size 4 "
        "--num-virtual-stages-per-pipeline-rank 4 --offload-modules"
    )
    found = assess(read(script(f"{small} core_attn attn_proj")), "8xH100")
    assert "offload-chunks" in {error.rule for error in found.errors}
    assert "offload-chunks" not in {
        error.rule for error in assess(read(script(f"{small} core_attn")), "8xH100").errors
    }


def test_unknown_option_has_the_nearest_and_its_line(read: Read) -> None:
    found = problem_of(read, f"{SMALL} \\\n --recompute-granularty full", "unknown-option")
    assert found.fix == "--recompute-granularity"
    assert found.places[0].endswith("launch.sh:4")
    assert "refuses" in found.text


def test_abbreviations_are_unknown(read: Read) -> None:
    """allow_abbrev is off."""
    assert "unknown-option" in rules(read(script(f"{SMALL} --sequence-par")))


def test_connections_by_gpu_and_by_fsdp(read: Read) -> None:
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} --tensor-model-parallel-size 2"
    found = read(text)
    rule = "cuda-device-max-connections"
    hopper, blackwell = assess(found, "8xH100"), assess(found, "8xB200")
    assert rule in {error.rule for error in hopper.errors}
    assert rule not in {problem.rule for problem in blackwell.problems}
    fsdp = script(f"{SMALL} --use-megatron-fsdp --ckpt-format fsdp_dtensor")
    assert rule in rules(read(fsdp, "fsdp.sh"))
    assert rule in rules(read(text.replace("torchrun", f"{_OFF} torchrun"), "off.sh"))


_OFF = "CUDA_DEVICE_MAX_CONNECTIONS=8"


@pytest.mark.parametrize(
    ("rule", "options", "gpus"),
    [
        ("experts-fill-stage",
         f"{_MOE} --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
         "--pipeline-model-parallel-size 2", "8xH100"),
        ("experts-by-ep", f"{_MOE} --expert-model-parallel-size 3", "8xH100"),
        ("experts-needed", "--expert-model-parallel-size 2", "8xH100"),
        ("interleaving-microbatches", "--pipeline-model-parallel-size 4 --global-batch-size 10 "
         "--num-virtual-stages-per-pipeline-rank 2", "8xH100"),
        ("batch-size", "--global-batch-size 60", "8xH100"),
        ("world-size", "--tensor-model-parallel-size 2 --context-parallel-size 3 "
         "--sequence-parallel", "8xH100"),
        ("heads-by-tp", "--tensor-model-parallel-size 64 --sequence-parallel", "64xH100"),
        ("kv-heads-by-tp", "--tensor-model-parallel-size 2 --sequence-parallel "
         "--num-attention-heads 24 --num-query-groups 3 --kv-channels 64", "8xH100"),
        ("sequence-by-cp", "--context-parallel-size 3", "3xH100"),
    ],
)  # fmt: skip
def test_shape_rules_are_named_with_places(read: Read, rule: str, options: str, gpus: str) -> None:
    """Rules over degrees, also those that Megatron checks at run time only."""
    found = read(script(f"{SMALL} {options}"))
    broken = {error.rule: error for error in assess(found, gpus).errors}
    assert rule in broken
    assert broken[rule].places


def test_ignored_rules_are_notes(read: Read) -> None:
    found = read(script(f"{SMALL} --sequence-paralel"))
    assert assess(found, "8xH100").verdict == "will not run"
    eased = assess(found, "8xH100", ignored=("unknown-option",))
    assert eased.verdict == "runs and fits"
    assert [problem.severity for problem in eased.problems if problem.rule == "unknown-option"] == [
        "note"
    ]


def test_other_world_is_a_warning(read: Read) -> None:
    found = read(script(SMALL))
    assert "launched-processes" in {problem.rule for problem in assess(found, "16xH100").problems}


@pytest.mark.parametrize(
    "options",
    ["--use-torch-fsdp2", "--experimental-attention-variant dsa"],
)
def test_no_prediction_for_what_is_not_modelled(read: Read, options: str) -> None:
    found = assess(read(script(f"{SMALL} {options}")), "8xH100")
    assert found.plan is None
    assert found.verdict == ("will not run" if found.errors else "cannot tell")
    assert found.unpredictable


@pytest.mark.parametrize(
    ("offloaded", "rule"),
    [("core_atn attn_proj", "option-value"), ("attn_proj", "activation-offload-projection")],
)
def test_offload_modules_are_problems_not_wrong_use(read: Read, offloaded: str, rule: str) -> None:
    flags = f"--fine-grained-activation-offloading --offload-modules {offloaded}"
    result = assess(read(script(f"{SMALL} {flags}"), "run.sh"), "8xH100")
    found = [problem for problem in result.errors if problem.rule == rule]
    assert len(found) == 1
    assert found[0].places
    assert found[0].fix == "--offload-modules core_attn attn_proj"


def test_a_precision_that_the_gpu_lacks_is_a_problem(read: Read) -> None:
    found = assess(read(script(f"{SMALL} --fp8-format hybrid"), "run.sh"), "8xA100")
    assert any("has no fp8" in problem.text for problem in found.errors)


def test_wrong_levels_bring_no_second_error(read: Read) -> None:
    flags = (
        "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 4 4"
    )
    found = read(script(f"{SMALL} {flags}"), "run.sh")
    assert found.cp_sizes == (2, 2)
    assert [edit.value for problem in found.problems for edit in problem.edits
            if problem.rule == "context-levels"] == ["2 2"]  # fmt: skip


def test_uneven_stages_keep_their_multi_token_prediction(read: Read) -> None:
    flags = "--pipeline-model-parallel-size 2 --mtp-num-layers 1"
    found = assess(read(script(f"{SMALL} {flags}"), "run.sh"), "8xH100")
    assert found.proposal is not None
    layers = found.proposal.request.find_model().spec.layers
    after = replace(found.proposal, block_layers=(layers, 0))
    written = {edit.key: edit.value for edit in edits_for(found.found, found.proposal, after)}
    assert written["--pipeline-model-parallel-layout"] == f'"Et*{layers}|mL"'


def test_multi_token_prediction_before_the_loss_is_costed_there(read: Read) -> None:
    """`m|L`, with layers before it or alone; its seconds are on the last stage but one."""
    plans = {}
    for layout in ("Et*5|t*5|t*6m|L", "Et*5|t*5|t*6|mL", "Et*8|t*8|m|L"):
        found = assess(read(script(f"{SMALL} {_PREDICTS} '{layout}'")), "8xH100")
        assert found.errors == ()
        assert "not-modelled" not in {problem.rule for problem in found.problems}
        assert found.plan is not None
        plans[layout] = found.plan
    standalone, together, alone = plans.values()
    assert (standalone.layout.mtp_standalone, together.layout.mtp_standalone) == (True, False)
    assert alone.layout.block_layers == (8, 8, 0, 0)
    assert standalone.stages[2].forward_s > together.stages[2].forward_s
    assert standalone.stages[3].forward_s < together.stages[3].forward_s
    assert any("shapes" in text for text in standalone.assumptions)


@pytest.mark.parametrize(
    ("pp", "layout", "words"),
    [(4, "Et*8|t*8m||L", "with empty stages"), (2, "Et*16m|L", "embedding's stage")],
)
def test_multi_token_prediction_elsewhere_is_costed_with_a_warning(
    read: Read, pp: int, layout: str, words: str
) -> None:
    flags = f"--mtp-num-layers 1 --pipeline-model-parallel-size {pp}"
    given = f"{SMALL} {flags} --pipeline-model-parallel-layout '{layout}'"
    warning = problem_of(read, given, "not-modelled")
    assert warning.severity == "warning"
    assert words in warning.text


def test_a_changed_layout_keeps_multi_token_prediction_apart(read: Read) -> None:
    found = assess(read(script(f"{SMALL} {_PREDICTS} 'Et*5|t*5|t*6m|L'"), "run.sh"), "8xH100")
    assert found.proposal is not None
    assert found.proposal.mtp_standalone
    after = replace(found.proposal, block_layers=(6, 5, 5, 0))
    written = {edit.key: edit.value for edit in edits_for(found.found, found.proposal, after)}
    assert written["--pipeline-model-parallel-layout"] == '"Et*6|t*5|t*5m|L"'
    back = replace(found.proposal, mtp_standalone=False)
    written = {edit.key: edit.value for edit in edits_for(found.found, found.proposal, back)}
    assert written["--pipeline-model-parallel-layout"] == '"Et*5|t*5|t*6|mL"'


def test_a_script_that_starts_another_asks_for_it(read: Read) -> None:
    with pytest.raises(CannotTellError, match=r"it starts scripts/train\.sh, which was not given"):
        read("srun docker run image bash -c 'TP=2 bash scripts/train.sh 2>&1'\n", "run.sh")
