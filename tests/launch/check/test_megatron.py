"""Megatron-LM's arguments as a configuration."""

from __future__ import annotations

import pytest

from planner.job.models.catalog import load_model
from planner.launch.check.request import as_request
from planner.launch.dialects.megatron.layout import expand_layout
from planner.launch.dialects.megatron.model import read_pattern
from tests.launch.check.conftest import OVERLAPPED, SMALL, Read, rules, script

_70B = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 "
    "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope "
    "--seq-length 8192 --max-position-embeddings 131072 --attention-dropout 0 --hidden-dropout 0 "
    "--bf16 --micro-batch-size 1 --global-batch-size 128 --tokenizer-type HuggingFaceTokenizer "
    "--tokenizer-model meta-llama/Llama-3.1-70B --rotary-base 500000 --use-rope-scaling"
)
_DEEPSEEK = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 "
    "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 "
    "--qk-pos-emb-head-dim 64 --v-head-dim 128 --swiglu --normalization RMSNorm --qk-layernorm "
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope "
    "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 "
    "--moe-shared-expert-intermediate-size 2048 --moe-router-enable-expert-bias "
    "--moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-score-function sigmoid "
    "--moe-router-topk-scaling-factor 2.5 --moe-router-dtype fp32 --norm-epsilon 1e-6 "
    "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-4 "
    "--rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 "
    "--moe-layer-freq ([0]*3+[1]*58) --mtp-num-layers 1 --vocab-size 129280 "
    "--seq-length 4096 --max-position-embeddings 163840 --micro-batch-size 1 "
    "--global-batch-size 256 --bf16 --attention-dropout 0 --hidden-dropout 0"
)
# Fields that say where a model comes from, not what it is.
_NAMES = {"name", "family", "source", "pretraining_seq"}


def shape_of(model: str) -> dict[str, object]:
    """A catalogue model without its name."""
    return load_model(model).spec.model_dump(exclude=_NAMES)


def test_llama_is_the_catalogues(read: Read) -> None:
    """The options describe the catalogue's model to the last field."""
    found = read(script(_70B))
    assert found.shape is not None
    assert found.shape.model_dump(exclude=_NAMES) == shape_of("llama-3.1-70b")
    assert not found.assumed


def test_deepseek_is_the_catalogues(read: Read) -> None:
    found = read(_DEEPSEEK, "launch.args")
    assert found.shape is not None
    assert found.shape.model_dump(exclude=_NAMES) == shape_of("deepseek-v3")


def test_mixtral_is_the_catalogues(read: Read) -> None:
    text = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
        "--disable-bias-linear --untie-embeddings-and-output-weights "
        "--position-embedding-type rope --num-experts 8 --moe-router-topk 2 --vocab-size 32000 "
        "--seq-length 4096 --max-position-embeddings 32768 --micro-batch-size 1 --bf16 "
        "--rotary-base 1000000 --moe-aux-loss-coeff 0.02 "
    )
    found = read(text, "launch.args")
    shape = found.shape
    assert shape is not None
    # One kind of layer is the same, listed or not.
    assert set(shape.kind_sequence) == set(load_model("mixtral-8x7b").spec.kind_sequence)
    names = _NAMES | {"layer_kinds"}
    expected = load_model("mixtral-8x7b").spec.model_dump(exclude=names)
    assert shape.model_dump(exclude=names) == expected


def test_published_70b_on_64(read: Read) -> None:
    """NVIDIA's published layout of 70B: TP4 PP4 CP2 VPP5 on 64 H100."""
    found = read(
        script(
            f"{_70B} {OVERLAPPED} --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 "
            "--context-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 "
            "--sequence-parallel"
        )
    )
    assert rules(found) == set()
    assert found.variations == ()
    setup = as_request(found, "64xH100")
    degrees = setup.degrees
    assert (degrees.tp, degrees.pp, degrees.vpp, degrees.cp, degrees.dp, degrees.zero) == (
        4,
        4,
        5,
        2,
        2,
        1,
    )
    assert degrees.grad_acc == 64
    assert setup.block_layers == (4,) * 20


def test_gpt3_example(read: Read) -> None:
    """Settings of Megatron-LM's own GPT-3 175B example: TP8 PP16 on 128 GPUs, arrays and all."""
    text = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8
NODES=16
WORLD=$(($GPUS*$NODES))
DIST=(--nproc_per_node $GPUS --nnodes $NODES --master_addr $MASTER_ADDR)
MODEL=(
    --num-layers 96
    --hidden-size 12288   # as in the paper
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto
)
TRAIN=(--micro-batch-size 1 --global-batch-size 1536 --fp16 --lr 6.0e-5)
PARALLEL=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)
DATA=(--data-path $1 --vocab-file $2 --tokenizer-type GPT2BPETokenizer)
torchrun ${DIST[@]} pretrain_gpt.py \\
    ${MODEL[@]} ${TRAIN[@]} ${PARALLEL[@]} ${DATA[@]}
"""
    found = read(text)
    assert rules(found) == set()
    assert found.world == 128
    assert found.precision == "fp16"
    # Nothing says otherwise: Megatron's default is dropout of 0.1, and no sequence parallelism.
    assert found.dropout
    # One replica: no gradients to reduce.
    assert found.variations == ("no-sequence-parallel",)
    assert found.shape is not None
    assert found.shape.vocab == 50257
    assert found.shape.tied_embeddings
    assert found.where["tp"].line == 16


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
         "recompute", "full"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
         "recompute", "full:uniform=4"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3",
         "recompute", "full:block=3"),
        # Refused by name; the rest is told with the usual method.
        ("--recompute-granularity full --recompute-method unifrom --recompute-num-layers 1",
         "recompute", "full"),
        ("--recompute-granularity selective", "recompute", "selective"),
        ("--recompute-activations", "recompute", "selective"),
        ("--recompute-granularity selective --recompute-modules layernorm mlp", "recompute",
         "layernorm+mlp"),
        ("--fp8-format hybrid", "precision", "fp8"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "precision", "mxfp8"),
        ("--fp4-format e2m1", "precision", "nvfp4"),
        ("--use-distributed-optimizer", "zero", 1),
        ("--use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype bf16 "
         "--exp-avg-sq-dtype bf16", "optimizer", "adamw-bf16"),
        ("--use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype fp8 "
         "--exp-avg-sq-dtype fp16 --main-params-dtype fp16 --main-grads-dtype bf16", "optimizer",
         "adamw-fp8:master=fp16,grad=bf16"),
        ("--use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype bf16",
         "optimizer", "adamw:exp_avg=bf16"),
        ("--use-distributed-optimizer --use-precision-aware-optimizer --optimizer-cpu-offload "
         "--optimizer-offload-fraction 0.5", "optimizer_offload", 0.5),
        ("--fine-grained-activation-offloading --offload-modules core_attn attn_proj",
         "activation_offload", "core_attn,attn_proj"),
        ("--offload-modules core_attn", "activation_offload", "off"),
        ("--fine-grained-activation-offloading --offload-modules core_attn "
         "--activation-offload-fraction 0.25", "activation_offload_fraction", 0.25),
        ("--fine-grained-activation-offloading --offload-modules core_attn "
         "--activation-offload-fraction 0", "activation_offload", "off"),
        ("--optimizer muon", "optimizer", "muon"),
        ("--attention-backend unfused", "attention", "eager"),
        ("--transformer-impl local", "framework", "megatron-local"),
        ("--num-distributed-optimizer-instances 2 --use-distributed-optimizer", "shard", 4),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4", "vpp", 4),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4",
         "block_layers", (2,) * 8),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3 "
         "--decoder-last-pipeline-num-layers 3", "block_layers", (3, 5, 5, 3)),
        ("--pipeline-model-parallel-size 3 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split", "block_layers", (5, 6, 5)),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|(t*5|)*2t*3L'",
         "block_layers", (3, 5, 5, 3)),
    ],
)  # fmt: skip
def test_options(read: Read, options: str, field: str, value: object) -> None:
    found = read(script(f"{SMALL} {options}"))
    assert getattr(found, field) == value


@pytest.mark.parametrize(
    ("options", "variation"),
    [
        ("--tensor-model-parallel-size 2", "no-sequence-parallel"),
        ("--use-distributed-optimizer", "gradient-reduction-exposed"),
        ("--use-distributed-optimizer --overlap-grad-reduce", "parameter-gather-exposed"),
        ("--tp-comm-overlap --sequence-parallel --tensor-model-parallel-size 2", "tp-overlap"),
        ("--no-gradient-accumulation-fusion --overlap-grad-reduce", "unfused-accumulation"),
        ("--grad-reduce-in-bf16", "bf16-gradients"),
        ("--cuda-graph-impl local", "cuda-graphs"),
        ("--moe-token-dispatcher-type flex", "fused-dispatch"),
        ("--overlap-moe-expert-parallel-comm", "ep-overlap"),
        ("--use-tp-pp-dp-mapping", "pp-before-dp"),
        ("--moe-router-fusion", "fused-router"),
        ("--num-experts 8 --moe-grouped-gemm", "torch-permutation"),
        ("--num-experts 8 --moe-permute-fusion", "sequential-experts"),
    ],
)
def test_variations(read: Read, options: str, variation: str) -> None:
    """What a script leaves out or adds changes the profile, each by its own table."""
    found = read(script(f"{SMALL} {options}"))
    assert variation in found.variations
    plain = read(script(f"{SMALL} {OVERLAPPED}"))
    assert plain.variations == ()
    profile = as_request(found, "8xH100").request.resolve().framework
    assert profile != as_request(plain, "8xH100").request.resolve().framework


def test_a_launch_without_any_overlap_has_its_own_profile(read: Read) -> None:
    found = read(script(f"{SMALL} --use-distributed-optimizer --no-gradient-accumulation-fusion"))
    assert (found.framework, found.variations) == ("megatron-core-no-overlap", ())


def test_unmodelled_and_unused_are_apart(read: Read) -> None:
    found = read(script(f"{SMALL} --lr 1e-4 --rampup-batch-size 16 --log-interval 5"))
    assert [item.key for item in found.unused] == ["--lr", "--log-interval"]
    assert [(item.key, why.split(":")[0]) for item, why in found.unmodelled] == [
        ("--rampup-batch-size", "costed at the full batch")
    ]


@pytest.mark.parametrize(
    ("skips", "sliding"),
    [("", 16), ("--window-attn-skip-freq 4", 12), ('--window-attn-skip-freq "([0]+[1]*15)"', 15)],
)
def test_windows(skips: str, sliding: int, read: Read) -> None:
    """The token itself counts; every 4th layer, or those marked 0, see everything."""
    shape = read(script(f"{SMALL} --window-size 127,0 {skips}")).shape
    assert shape is not None
    assert shape.sliding_window == 128
    kinds = [kind.attention for kind in shape.kind_sequence]
    assert kinds.count("sliding") == sliding


def test_every_named_option_exists() -> None:
    """Names in the reader's tables are options of the parser."""
    from planner.launch.dialects.megatron import reader as megatron
    from planner.launch.dialects.megatron.arguments import options
    from planner.launch.read.names import left_out

    named = {
        *left_out("megatron", "own"), *left_out("megatron", "own", "refused"),
        *megatron._VARIATIONS, *megatron._DEGREES.values(),
    }  # fmt: skip
    assert named <= options().keys()


def test_arguments_in_a_file_with_comments(read: Read) -> None:
    text = "# my arguments\n" + SMALL.replace(" --", "\n--") + "  # the end\n"
    found = read(text, "launch.args")
    assert rules(found) == set()
    assert found.mbs == 1
    assert found.where["mbs"].line == 18


def test_unresolved_values_are_named(read: Read) -> None:
    text = script(SMALL.replace("--global-batch-size 64", "--global-batch-size $GBS"))
    found = read(text)
    assert "unresolved" in rules(found, "missing")
    assert read(text, environment={"GBS": "128"}).gbs == 128


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("([0]*1+[1]*2)", [0, 1, 1]), ("[0, 1]*2", [0, 1, 0, 1]), ("x", None), ("[1]*10**9", None),
    ],
)  # fmt: skip
def test_layer_pattern(text: str, pattern: list[int] | None) -> None:
    assert read_pattern(text) == pattern


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*2|ttL", ["Ett", "ttL"]), ("Et|(tt|)*2L", ["Et", "tt", "tt", "L"]), ("Ex", None),
    ],
)  # fmt: skip
def test_layout_notation(text: str, stages: list[str] | None) -> None:
    assert expand_layout(text) == stages


def test_named_model_wins(read: Read) -> None:
    found = read(script(f"{SMALL} --pipeline-model-parallel-size 2"), model="llama-3.1-8b")
    assert (found.model, found.shape) == ("llama-3.1-8b", None)
    assert found.block_layers == (16, 16)
