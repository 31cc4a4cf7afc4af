#!/usr/bin/env bash
# llama-3-8b with megatron-core on 8 x H100-SXM5-80GB, 16 sequences of 4096 tokens a step.
# Written by planner launch; README.md says what to expect. Run: bash launch.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
MODE="${1:-${MODE:-}}"

# You must set these, here or in the environment.
# folder of a Megatron-LM checkout of core 0.19
export MEGATRON_LM="${MEGATRON_LM:-}"
# Yours to change, here or in the environment.
# name of this run; every experiment needs its own
export RUN_NAME="${RUN_NAME:-llama-3-8b-megatron-core-gbs16-seq4096}"
# weights to start from: a checkpoint of Megatron's in its distributed format (README.md
# says how to make one); empty: FROM SCRATCH, with random weights
export PRETRAINED="${PRETRAINED-}"
# prefix of your tokenized data (.bin and .idx); empty: mock data
export DATA_PATH="${DATA_PATH-}"
# folder or name of its Hugging Face tokenizer; empty: none
export TOKENIZER="${TOKENIZER-}"
# folder of checkpoints on a disk of all nodes; a job that is started again goes on from
# the last; empty: none
export CHECKPOINTS="${CHECKPOINTS-${DATA_PATH:+${HOME}/checkpoints/${RUN_NAME}}}"
# folder of TensorBoard's logs; empty: none
export TENSORBOARD="${TENSORBOARD-}"
# steps of the run; the default is a trial
export TRAIN_STEPS="${TRAIN_STEPS:-50}"
# PLACEHOLDER, yours to choose: steps of warm-up, fewer than TRAIN_STEPS
export WARMUP_STEPS="${WARMUP_STEPS:-5}"
# PLACEHOLDER, yours to choose: peak learning rate
export LEARNING_RATE="${LEARNING_RATE:-1e-4}"
# PLACEHOLDER, yours to choose: last learning rate
export MIN_LEARNING_RATE="${MIN_LEARNING_RATE:-1e-5}"
# minutes after which the run saves and ends; empty: never
export STOP_AFTER_MINUTES="${STOP_AFTER_MINUTES-}"

if [[ "${MODE:-}" == --dry-run ]]; then
    # Prints the command, with names in place of variables that are not set.
    export MEGATRON_LM="${MEGATRON_LM:-/set/MEGATRON_LM}"
else
    if [[ -z "${MEGATRON_LM}" ]]; then
        echo 'set MEGATRON_LM: folder of a Megatron-LM checkout of core 0.19' >&2
        exit 2
    fi
    if [[ ! -e "${MEGATRON_LM}/pretrain_gpt.py" ]]; then
        echo "MEGATRON_LM: ${MEGATRON_LM}/pretrain_gpt.py is not there" >&2
        exit 2
    fi
    if [[ -n "${PRETRAINED}" && ! -e "${PRETRAINED}" ]]; then
        echo "PRETRAINED: ${PRETRAINED} is not there" >&2
        exit 2
    fi
    if [[ -n "${DATA_PATH}" && ! -e "${DATA_PATH}.bin" ]]; then
        echo "DATA_PATH: ${DATA_PATH}.bin is not there" >&2
        exit 2
    fi
    if ((WARMUP_STEPS >= TRAIN_STEPS)); then
        echo 'WARMUP_STEPS must be below TRAIN_STEPS' >&2
        exit 2
    fi
fi
if [[ -z "${PRETRAINED}" ]]; then
    echo 'FROM SCRATCH: random weights, unless CHECKPOINTS holds a checkpoint; PRETRAINED names weights to start from.' >&2
fi

# one queue: collectives start before the products that hide them (Megatron demands it)
export CUDA_DEVICE_MAX_CONNECTIONS=1

ARGUMENTS=(
    # model: llama-3-8b
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --swiglu
    --normalization RMSNorm
    --norm-epsilon 1e-05
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --vocab-size 128256
    --init-method-std 0.02
    --position-embedding-type rope
    --rotary-base 500000
    --max-position-embeddings 4096
    --hidden-dropout 0
    --attention-dropout 0
    # attention
    --num-attention-heads 32
    --kv-channels 128
    --group-query-attention
    --num-query-groups 8
    # parallel degrees
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --sequence-parallel
    # batch
    --micro-batch-size 1
    --global-batch-size 16
    --seq-length 4096
    # data parallelism
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
    # precision
    --bf16
    # optimizer
    --optimizer adam
    # kernels
    --transformer-impl transformer_engine
    # techniques
    --tp-comm-overlap
    # what to see of the first steps
    --log-interval 1
    --log-throughput
    --eval-iters 0
    # PLACEHOLDERS, not part of the plan: replace them for a real run
    --train-iters "${TRAIN_STEPS}"
    --lr "${LEARNING_RATE}"
    --min-lr "${MIN_LEARNING_RATE}"
    --lr-warmup-iters "${WARMUP_STEPS}"
    --lr-decay-style cosine
    --weight-decay 0.1
    --adam-beta2 0.95
    --clip-grad 1.0
)
if [[ -n "${DATA_PATH}" ]]; then
    ARGUMENTS+=(--data-path "${DATA_PATH}" --split '99,1,0')
else
    ARGUMENTS+=(--mock-data)
fi
if [[ -n "${TOKENIZER}" ]]; then
    ARGUMENTS+=(--tokenizer-type HuggingFaceTokenizer --tokenizer-model "${TOKENIZER}")
else
    ARGUMENTS+=(--tokenizer-type NullTokenizer)
fi
if [[ -n "${CHECKPOINTS}" ]]; then
    ARGUMENTS+=(--save "${CHECKPOINTS}" --load "${CHECKPOINTS}" --save-interval ... --ckpt-format torch_dist)
fi
if [[ -n "${PRETRAINED}" ]]; then
    ARGUMENTS+=(--pretrained-checkpoint "${PRETRAINED}")
fi
if [[ -n "${STOP_AFTER_MINUTES}" ]]; then
    ARGUMENTS+=(--exit-duration-in-mins "${STOP_AFTER_MINUTES}")
fi
if [[ -n "${TENSORBOARD}" ]]; then
    ARGUMENTS+=(--tensorboard-dir "${TENSORBOARD}")
fi

# --dry-run prints the command; --preflight checks nodes, GPUs, versions, one all-reduce.
case "${MODE:-}" in
    --dry-run) torchrun() { printf '%q ' torchrun "$@"; echo; } ;;
    --preflight) torchrun() { command torchrun "${@:1:3}" preflight.py; } ;;
esac

torchrun \
    --standalone --nproc-per-node 8 \
    "${MEGATRON_LM}/pretrain_gpt.py" \
    "${ARGUMENTS[@]}"
