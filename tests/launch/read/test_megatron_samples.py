"""Packs of samples in Megatron's flags: read with the lengths that the caller tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.launch.check.assess import Assessment, assess
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch

RUN = """export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 \\
 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size 8192 \\
 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope \\
 --seq-length 16384 --max-position-embeddings 16384 --micro-batch-size 1 --global-batch-size 16 \\
 --context-parallel-size 4 --bf16 --use-distributed-optimizer --sft \\
 --tokenizer-type SFTTokenizer --vocab-size 128256 --transformer-impl transformer_engine \\
 --tokenizer-model x """
HYBRID = "--hybrid-context-parallel --calculate-per-token-loss --max-seqlen-per-dp-cp-rank 4096 "
LENGTHS = "600:90,15000:10"


def checked(tmp_path: Path, more: str, lengths: str | None = LENGTHS) -> Assessment:
    file = tmp_path / "run.sh"
    file.write_text(RUN + more + "\n")
    return assess(read_launch([str(file)], Hints(lengths=lengths)), "8xH100", None)


def texts(found: Assessment) -> str:
    return " ".join(f"{one.text} {one.fix}" for one in found.problems)


def test_samples_lie_on_ranks_as_the_flags_say(tmp_path: Path) -> None:
    plain, hybrid = checked(tmp_path, ""), checked(tmp_path, HYBRID)
    assert plain.plan is not None and hybrid.plan is not None
    assert plain.errors == () and hybrid.errors == ()
    assert plain.plan.samples is not None and plain.plan.samples.packing == "pack-varlen"
    assert hybrid.plan.samples is not None and hybrid.plan.samples.balance == "hybrid-cp"
    assert hybrid.plan.step_time_s != plain.plan.step_time_s
    assert "lengths" in texts(checked(tmp_path, HYBRID, None))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (HYBRID.replace("4096", "2048"), "4096 is modelled"),
        (HYBRID.replace("--calculate-per-token-loss", ""), "without --calculate-per-token-loss"),
        (HYBRID.replace("--max-seqlen-per-dp-cp-rank 4096", ""), "which is not given"),
        (HYBRID + "--pipeline-model-parallel-size 2", "refused with a pipeline"),
    ],
)
def test_what_megatron_refuses_beside_it(tmp_path: Path, more: str, said: str) -> None:
    assert said in texts(checked(tmp_path, more))


def test_without_samples_there_is_nothing_to_lay(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(RUN.replace("--sft", "") + HYBRID + "\n")
    found = assess(read_launch([str(file)], Hints()), "8xH100", None)
    assert "--sft is not given" in texts(found)
