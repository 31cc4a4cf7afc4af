"""Megatron's options as older releases and other programs have them."""

from __future__ import annotations

import pytest

from tests.launch.check.conftest import SMALL
from tests.launch.read.conftest import ReadFolder, judged, refusals

GPT = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --fp16"
)


def script(arguments: str, program: str = "pretrain_gpt.py", launcher: str = "") -> dict[str, str]:
    start = launcher or "torchrun --nproc_per_node 8"
    return {"t.sh": f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{start} {program} {arguments}\n"}


def test_megatron_deepspeed(folder: ReadFolder) -> None:
    found = folder(
        script(f"{GPT} --deepspeed --zero-stage 1 --deepspeed-activation-checkpointing "
               "--num-key-value-heads 4 --no-pipeline-parallel")
    )  # fmt: skip
    assert (found.framework, found.zero, found.recompute) == ("megatron-deepspeed", 1, "none")
    assert found.shape is not None and found.shape.kv_heads == 4
    assert judged(found).plan is not None
    assert any(problem.rule == "dialect" for problem in found.problems)


_FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


@pytest.mark.parametrize("more", ["", "--no-pipeline-parallel", "--zero-stage 1", "--zero-stage 0"])
@pytest.mark.parametrize(
    ("asked", "recompute"), [("", "none"), ("--checkpoint-activations", "full"), (_FULL, "full")]
)
def test_the_function_of_deepspeed_recomputes_only_where_asked(
    folder: ReadFolder, more: str, asked: str, recompute: str
) -> None:
    """`--deepspeed-activation-checkpointing` says whose function recomputes, not whether."""
    options = f"{GPT} --deepspeed --deepspeed-activation-checkpointing {asked} {more}"
    assert folder(script(options)).recompute == recompute


@pytest.mark.parametrize(("pp", "runs"), [(1, True), (2, True), (4, False), (8, False)])
@pytest.mark.parametrize("verb", ["sft", "pt"])
def test_swift_splits_layers_as_core_does(
    folder: ReadFolder, pp: int, runs: bool, verb: str
) -> None:
    """46 layers: the assertion is Megatron's own, whoever starts it."""
    text = (
        f"NPROC_PER_NODE=8 megatron {verb} --load ZhipuAI/GLM-4.5-Air-Base-mcore --dataset x "
        f"--pipeline_model_parallel_size {pp} --expert_model_parallel_size 1 --max_length 4096\n"
    )
    broken = {problem.rule for problem in folder({"a.sh": text}).problems
              if problem.severity == "error"}  # fmt: skip
    assert ("layers-by-pp" in broken) is not runs


@pytest.mark.parametrize(("types", "zero"), [("--bf16", 1), ("--fp16", 0)])
def test_deepspeed_in_bf16_shares_its_states_out(folder: ReadFolder, types: str, zero: int) -> None:
    found = folder(script(f"{GPT.replace('--fp16', types)} --deepspeed --zero-stage 0"))
    assert found.zero == zero


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--deepspeed --zero-stage 3", "ZeRO stage 3 of Megatron-DeepSpeed"),
        ("--deepspeed --ds-sequence-parallel-size 4", "Ulysses"),
        ("--deepspeed --num-experts 8", "DeepSpeed's experts"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(folder: ReadFolder, more: str, words: str) -> None:
    found = folder(script(f"{GPT} {more}"))
    assert words in refusals(found)
    assert judged(found).verdict == "cannot tell"


def test_an_older_release(folder: ReadFolder) -> None:
    """Before 2022-04 `--checkpoint-activations` was full recomputation."""
    found = folder(script(f"{GPT} --data-impl mmap --checkpoint-activations"))
    assert (found.framework, found.recompute) == ("megatron-lm-2022", "full")
    assert judged(found).verdict == "runs and fits"


def test_a_misspelt_option_is_still_refused(folder: ReadFolder) -> None:
    found = folder(script(f"{SMALL} --overlap-grad-reduc"))
    assert judged(found).verdict == "will not run"


def test_several_options_that_core_has_nothing_like_are_a_forks(folder: ReadFolder) -> None:
    found = folder(script(f"{SMALL} --dist-url a --tokenizer-type QwenTokenizer --swap-weights"))
    assert judged(found).plan is not None


def test_another_program_has_options_of_its_own(folder: ReadFolder) -> None:
    found = folder(script(f"{SMALL} --my-own-flag 3", program="examples/pretrain_mine.py"))
    assert judged(found).plan is not None
    bert = folder(script(SMALL, program="pretrain_bert.py"))
    assert "pretrain_bert.py trains no decoder" in refusals(bert)


def test_memory_that_is_left_out_is_no_verdict(folder: ReadFolder) -> None:
    """Weights in fp8 may make it fit: not that it will not."""
    large = SMALL.replace("--num-layers 16", "--num-layers 96") + " --fp8-format hybrid"
    assert judged(folder(script(large))).verdict == "will not fit"
    gathered = folder(script(f"{large} --use-distributed-optimizer --fp8-param-gather"))
    assessment = judged(gathered, "4xH100")
    assert assessment.verdict == "cannot tell"
    assert "--fp8-param-gather" in " ".join(item.text for item in assessment.unpredictable)


def test_uneven_stages_of_deepspeed(folder: ReadFolder) -> None:
    """Its pipeline splits what Megatron-LM refuses: not known, not broken."""
    uneven = f"{GPT} --deepspeed --zero-stage 1 --pipeline-model-parallel-size 5"
    found = folder(script(uneven, launcher="torchrun --nproc_per_node 5"))
    assert judged(found, "5xH100").verdict == "cannot tell"
    assert "uneven stages" in refusals(found, "5xH100")


def test_unknown_options_by_the_thousand_are_named_once(folder: ReadFolder) -> None:
    more = " ".join(f"--micro-batch-size-of-{number:04} 1" for number in range(2_000))
    found = folder(script(f"{SMALL} {more} {more}"))
    assert sum(problem.rule == "unknown-option" for problem in found.problems) == 50


@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun --nproc_per_node 8"])
@pytest.mark.parametrize(
    ("options", "zero", "framework"),
    [
        ("--deepspeed --zero-stage 1", 1, "megatron-deepspeed"),
        ("--deepspeed --zero-stage 0", 1, "megatron-deepspeed"),  # bf16's optimizer shares
        ("--zero-stage 1", 0, "megatron-lm-2022"),
        ("--valid-weighted-split-paths-path x", 0, "megatron-lm-2022"),
        ("--valid-weighted-split-paths-path x --use-distributed-optimizer", 1, "megatron-lm-2022"),
    ],
)
def test_without_its_switch_deepspeed_shares_nothing_out(
    folder: ReadFolder, launcher: str, options: str, zero: int, framework: str
) -> None:
    found = folder({"a.sh": f"{launcher} pretrain_gpt.py {SMALL} {options}"}, gpus=8)
    assert (found.zero, found.framework) == (zero, framework)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--position-embedding-type alibi", ""),
        ("--tokenizer-type OwnTokenizer", ""),
        ("--position-embedding-type own", "own: a value of that fork, not modelled"),
    ],
)
def test_values_of_a_fork_that_are_read_keep_no_prediction_back(
    folder: ReadFolder, options: str, says: str
) -> None:
    """A fork's parser around the script has all three; what the first two change is counted."""
    parser = 'choices=["alibi", "OwnTokenizer", "own"]\n'
    words = SMALL.replace("--position-embedding-type rope", "")
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {words} {options}"
    found = folder({"a.sh": command, "megatron/training/arguments.py": parser}, gpus=8)
    assert says in refusals(found)
    assert bool(refusals(found)) is bool(says)
