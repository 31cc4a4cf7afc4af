"""Options of Megatron-LM that the prediction leaves out, or that forbid one, and why."""

from __future__ import annotations

from collections.abc import Mapping

# Options that change memory or time in ways that the prediction leaves out, and how.
UNMODELLED: Mapping[str, str] = {
    "min-offloaded-tensor-size": "costed with tensors of 2^20 elements and more offloaded",
    "cpu-offloading-num-layers": "activations on the host: less memory than predicted",
    "moe-paged-stash": "activations on the host: less memory than predicted",
    "moe-expert-capacity-factor": "dropped or padded tokens",
    "moe-pad-expert-input-to-capacity": "padded tokens",
    "moe-expert-rank-capacity-factor": "dropped or padded tokens",
    "moe-shared-expert-overlap": "shared experts beside the exchange: faster than predicted",
    "delay-wgrad-compute": "weight gradients beside the exchange: faster than predicted",
    "fp8-param-gather": "weights kept and gathered in fp8: less memory than predicted",
    "fp4-param-gather": "weights kept and gathered in fp4: less memory than predicted",
    "fp32-residual-connection": "fp32 residual: more memory than predicted",
    "distribute-saved-activations": "checkpoints split over tp: less memory than predicted",
    "defer-embedding-wgrad-compute": "gradient of the LM head in the drain of the pipeline",
    "first-last-layers-bf16": "some layers stay in bf16: slower than predicted",
    "num-layers-at-start-in-bf16": "some layers stay in bf16: slower than predicted",
    "num-layers-at-end-in-bf16": "some layers stay in bf16: slower than predicted",
    "disable-mamba-mem-eff-path": "state-space layers that keep more: more memory than predicted",
    "microbatch-group-size-per-virtual-pipeline-stage": "costed as groups of pp",
    "use-nccl-ub": "registered buffers",
    "overlap-param-gather-with-optimizer-step": "costed as --overlap-param-gather",
    "rampup-batch-size": "costed at the full batch",
    "step-batch-size-schedule": "costed at --global-batch-size",
    "empty-unused-memory-level": "the allocator gives memory back each step: slower",
    "mlp-chunks-for-training": "MLP in pieces: less memory than predicted",
    "optimizer-cuda-graph": "the update as a CUDA graph",
    "muon-tp-mode": "costed without its exchange",
    "keep-fp8-transpose-cache": "a second fp8 copy of the weights: more memory than predicted",
    "disable-jit-fuser": "unfused elementwise kernels: slower than predicted",
    "no-masked-softmax-fusion": "unfused softmax where attention is unfused",
    "no-bias-swiglu-fusion": "unfused SwiGLU: slower, more memory than predicted",
    "no-bias-gelu-fusion": "unfused GELU: slower, more memory than predicted",
    "no-bias-dropout-fusion": "unfused bias and dropout: slower than predicted",
    "no-rope-fusion": "unfused rotary embedding: slower, more memory than predicted",
    "profile": "profiled steps are slower",
    "check-for-large-grads": "an extra pass over the gradients",
    "ddp-bucket-size": "costed with the usual buckets",
    "ddp-num-buckets": "costed with the usual buckets",
    "tp-comm-overlap-cfg": "costed with the usual user buffers",
    "reuse-grad-buf-for-mxfp8-param-ag": "less memory than predicted",
    "torch-fsdp2-no-reshard-after-forward": "weights stay gathered",
    "use-te-activation-func": "unfused activation function",
    "high-priority-a2a-comm-stream": "the exchange on a stream of its own",
    "megatron-fsdp-main-grads-dtype": "costed with gradients in the weights' type",
    "megatron-fsdp-main-params-dtype": "costed with main weights in fp32",
    "megatron-fsdp-grad-comm-dtype": "costed in the gradients' type",
    "suggested-communication-unit-size": "costed as two layers at a time",
    "mtp-use-repeated-layer": "one MTP layer run several times",
    "dsa-indexer-topk": "sparse attention: costed as full attention",
}
# Values of such options that the prediction does count on.
AS_COSTED = {
    "megatron-fsdp-main-grads-dtype": "auto",
    "megatron-fsdp-main-params-dtype": "fp32",
    "megatron-fsdp-grad-comm-dtype": "auto",
}
# Models and modes without a prediction, and why.
UNPREDICTABLE: Mapping[str, str] = {
    "heterogeneous-layers-config-path": "layers that differ one by one are not modelled",
    "heterogeneous-layers-config-encoded-json": "layers that differ one by one are not modelled",
    "use-torch-fsdp2": "torch FSDP2 inside Megatron-LM is not modelled",
    "perform-rl-step": "reinforcement learning is not modelled",
    "tensor-parallel-num-weight-shards": "weight shards of tensor parallelism are not modelled",
    "expert-tensor-parallel-num-weight-shards": (
        "weight shards of tensor parallelism are not modelled"
    ),
    "hybrid-context-parallel": "context parallelism by sequence length is not modelled",
    "yaml-cfg": "its settings are in that YAML file, which is not read",
    "sft": "packed or padded sequences of unstated length",
}
