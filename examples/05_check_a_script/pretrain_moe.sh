#!/bin/bash
# Mixtral 8x7B on 4 nodes, with the slips of a first try: planner check names them.
#SBATCH --nodes=4
TP=${TP:-2}
EP=8
torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --seq-length 4096 --max-position-embeddings 32768 \
    --position-embedding-type rope --normalization RMSNorm --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights \
    --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data \
    --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-permute-fusion \
    --moe-token-dispatcher-type alltoall \
    --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size 2 \
    --expert-model-parallel-size "$EP" --use-distributed-optimizer \
    --micro-batch-size 1 --global-batch-size 256 --bf16 \
    --recompute-granularty full --recompute-method uniform \
    --lr 1e-4 --train-iters 1000
