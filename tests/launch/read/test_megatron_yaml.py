"""Megatron's arguments in YAML: tests of Megatron-LM, experiments of Primus."""

from __future__ import annotations

import pytest

from planner.job.errors import UsageError
from tests.launch.read.conftest import ReadFolder, judged, refusals

MODEL_CONFIG = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 16
  --hidden-size: 2048
  --num-attention-heads: 16
  --seq-length: 2048
  --max-position-embeddings: 2048
  --micro-batch-size: 2
  --global-batch-size: 64
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --overlap-grad-reduce: false
  --recompute-granularity: selective
  --recompute-modules: "[core_attn mlp]"
  --hierarchical-context-parallel-sizes: 1 1
  --bf16: true
  --save: ${CHECKPOINTS}
  --save-interval: 100
"""
PRIMUS = """\
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${MODEL:tiny}.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: 128
      seq_length: 4096
      overlap_grad_reduce: true
      primus_setting: 3
"""
PRESETS = {
    "primus/configs/models/megatron/tiny.yaml":
        "bases: [base.yaml]\nnum_layers: 16\nhidden_size: 2048\nnum_attention_heads: 16\n",
    "primus/configs/models/megatron/base.yaml":
        "hidden_size: 64\nvocab_size: 32000\nswiglu: true\nadd_bias_linear: false\n"
        "normalization: RMSNorm\nposition_embedding_type: rope\nhidden_dropout: 0.0\n",
    "primus/configs/modules/megatron/pre_trainer.yaml":
        "bf16: true\nuse_distributed_optimizer: true\nmicro_batch_size: 1\n",
}  # fmt: skip


def test_model_config(folder: ReadFolder) -> None:
    found = folder({"model_config.yaml": MODEL_CONFIG})
    assert (found.tp, found.mbs, found.gbs, found.zero) == (2, 2, 64, 1)
    assert found.recompute == "core_attn+mlp"
    assert "gradient-reduction-exposed" in found.variations
    assert judged(found).verdict == "runs and fits"
    assert found.where["mbs"].line == 9
    assert found.setting("--hierarchical-context-parallel-sizes").value == ("1", "1")  # type: ignore[union-attr]


def test_a_test_that_generates_is_no_training(folder: ReadFolder) -> None:
    text = MODEL_CONFIG + "  --inference-max-requests: 8\n"
    assert "generates text" in refusals(folder({"model_config.yaml": text}))


def test_primus(folder: ReadFolder) -> None:
    """Overrides win over the trainer's preset, a preset over what it extends."""
    found = folder({"examples/exp.yaml": PRIMUS, **PRESETS})
    assert (found.framework, found.mbs, found.zero) == ("primus", 2, 1)
    assert found.shape is not None
    assert (found.shape.hidden, found.shape.vocab, found.shape.mlp_bias) == (2048, 32000, False)
    assert judged(found, "8xMI300X").verdict == "runs and fits"


def test_primus_without_its_presets(folder: ReadFolder) -> None:
    found = folder({"exp.yaml": PRIMUS})
    assert "tiny.yaml" in refusals(found)
    assert judged(found).verdict == "cannot tell"


@pytest.mark.parametrize("extends", ["[base.yaml, tiny.yaml, base.yaml, tiny.yaml]", "7", "{a: b}"])
def test_presets_that_extend_each_other(folder: ReadFolder, extends: str) -> None:
    """Each is read once, whatever it says that it extends."""
    models = "primus/configs/models/megatron/"
    names = (f"{models}tiny.yaml", f"{models}base.yaml")
    more = {name: f"extends: {extends}\n{PRESETS[name]}" for name in names}
    assert folder({"examples/exp.yaml": PRIMUS, **PRESETS, **more}).framework == "primus"


def test_primus_on_torchtitan(folder: ReadFolder) -> None:
    text = """\
modules:
  pre_trainer:
    framework: torchtitan
    overrides:
      model: {name: llama3, flavor: 8B}
      training: {local_batch_size: 1, seq_len: 4096}
      parallelism: {data_parallel_shard_degree: -1}
      primus_turbo: {enable: true}
"""
    found = folder({"exp.yaml": text}, gpus=8)
    assert (found.model, found.mbs, found.seq, found.framework) == (
        "llama-3.1-8b", 1, 4096, "torchtitan",
    )  # fmt: skip
    assert not judged(found, "8xMI300X").errors


def test_primus_recomputes_in_blocks(folder: ReadFolder) -> None:
    """As core does: the profile of named layers is not asked for it."""
    text = PRIMUS + (
        "      recompute_granularity: full\n      recompute_method: block\n"
        "      recompute_num_layers: 8\n"
    )
    found = folder({"examples/exp.yaml": text, **PRESETS})
    assert (found.framework, found.recompute) == ("megatron-core", "full:block=8")
    assert judged(found, "8xMI300X").verdict == "runs and fits"
    named = PRIMUS + "      recompute_layer_ids: [0, 1]\n"
    assert "recompute_layer_ids" in refusals(folder({"examples/exp.yaml": named, **PRESETS}))


def test_arguments_of_another_program(folder: ReadFolder) -> None:
    text = MODEL_CONFIG + "  --trainer.num_nodes: 1\n"
    with pytest.raises(UsageError, match="a program other than"):
        folder({"model_config.yaml": text})


def test_a_technique_that_the_profile_lacks(folder: ReadFolder) -> None:
    text = PRIMUS + "      use_tp_pp_dp_mapping: true\n"
    found = folder({"examples/exp.yaml": text, **PRESETS})
    assert judged(found, "8xMI300X").plan is not None
