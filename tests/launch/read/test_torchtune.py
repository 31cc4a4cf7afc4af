"""torchtune's YAML and NeMo AutoModel's: what a request holds of them."""

from __future__ import annotations

import pytest

from planner.job.errors import CannotTellError
from tests.launch.read.conftest import ReadFolder, judged, refusals

TUNE = """\
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 4096
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: [q_proj, v_proj, output_proj]
  apply_lora_to_mlp: true
  lora_rank: 16
  lora_alpha: 32
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: true
optimizer:
  _component_: torch.optim.AdamW
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
batch_size: 2
gradient_accumulation_steps: 8
compile: true
dtype: bf16
enable_activation_checkpointing: true
enable_activation_offloading: false
"""
ADAPTERS = "rank=16,alpha=32,targets=q+v+o+gate+up+down"


@pytest.mark.parametrize(
    ("old", "new", "train"),
    [
        ("", "", f"lora:{ADAPTERS},adapter=bf16"),
        ("lora_llama3_1_8b", "qlora_llama3_1_8b", f"qlora:{ADAPTERS},base=nf4-double,adapter=bf16"),
        ("lora_rank: 16", "lora_rank: 16\n  use_dora: true", f"dora:{ADAPTERS},adapter=bf16"),
        ("lora_rank: 16", "lora_rank: 16\n  lora_dropout: 0.1",
         f"lora:{ADAPTERS},adapter=bf16,dropout=0.1"),
        ("  apply_lora_to_mlp: true\n  lora_rank: 16\n  lora_alpha: 32\n", "",
         "lora:rank=8,alpha=16,targets=q+v+o,adapter=bf16"),
    ],
)  # fmt: skip
def test_adapters(folder: ReadFolder, old: str, new: str, train: str) -> None:
    found = folder({"x.yaml": TUNE.replace(old, new) if old else TUNE}, gpus=1)
    assert found.train == train
    assert (found.framework, found.model) == ("torchtune", "llama-3.1-8b")
    assert (found.mbs, found.grad_acc, found.seq, found.recompute) == (2, 8, 4096, "full")
    assert not found.problems


def test_all_of_the_weights(folder: ReadFolder) -> None:
    """What was planned before is planned of the file: compiled or eager, on one GPU or sharded."""
    text = TUNE.replace(
        "torchtune.models.llama3_1.lora_llama3_1_8b", "torchtune.models.x.qwen3_0_6b"
    )
    text = "\n".join(line for line in text.splitlines() if "lora" not in line) + "\n"
    found = folder({"x.yaml": text}, gpus=1)
    assert (found.train, found.model, found.variations) == ("full", "qwen3-0.6b", ())
    assert judged(found, "1xH100").verdict == "runs and fits"
    eager = folder({"x.yaml": text.replace("compile: true", "compile: false")}, gpus=1)
    assert eager.variations == ("eager-blocks",)
    plan, slower = judged(found, "1xH100").plan, judged(eager, "1xH100").plan
    assert plan is not None and slower is not None
    assert slower.step_time_s > plan.step_time_s


@pytest.mark.parametrize(
    ("lines", "objective"),
    [
        ("loss:\n  _component_: torchtune.rlhf.loss.DPOLoss\n", "dpo"),
        ("teacher_model:\n  _component_: torchtune.models.llama3_1.llama3_1_70b\n",
         "distill:teacher=llama-3.1-70b"),
    ],
)  # fmt: skip
def test_objectives(folder: ReadFolder, lines: str, objective: str) -> None:
    text = TUNE.replace("loss:\n  _component_: torchtune.modules.loss.LinearCrossEntropyLoss\n", "")
    assert folder({"x.yaml": text + lines}, gpus=1).objective == objective


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("enable_activation_checkpointing: true", "enable_activation_checkpointing: false",
         "should only be True when enable_activation_checkpointing is True"),
        ("q_proj, v_proj", "q_proj, gate_proj", "torchtune has q_proj"),
        ("dtype: bf16", "dtype: fp16", "bf16 or fp32"),
    ],
)  # fmt: skip
def test_what_torchtune_refuses(folder: ReadFolder, old: str, new: str, words: str) -> None:
    text = TUNE.replace("offloading: false", "offloading: true").replace(old, new)
    assessment = judged(folder({"x.yaml": text}, gpus=1), "1xH100")
    assert assessment.verdict == "will not run"
    assert any(words in problem.text for problem in assessment.errors)


def test_other_recipes(folder: ReadFolder) -> None:
    """Those that sample are refused by name, those that train nothing are told so."""
    assert "reinforcement learning" in refusals(
        folder({"x.yaml": TUNE + "ppo_epochs: 2\n"}, gpus=1)
    )
    with pytest.raises(CannotTellError, match="trains nothing"):
        folder({"x.yaml": TUNE.replace("optimizer:\n  _component_: torch.optim.AdamW\n", "")})


def test_the_command(folder: ReadFolder) -> None:
    """Processes and settings of `tune run`; its own configurations are asked for."""
    command = "tune run --nproc_per_node 4 lora_finetune_distributed --config x.yaml batch_size=4\n"
    found = folder({"x.sh": command, "x.yaml": TUNE})
    assert (found.world, found.mbs, found.zero) == (4, 4, 3)
    with pytest.raises(CannotTellError, match="tune cp llama3_1/8B_lora"):
        folder({"x.sh": "tune run lora_finetune_single_device --config llama3_1/8B_lora\n"})


AUTO = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 32
  local_batch_size: 4
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  target_modules: '*_proj'
  dim: 8
distributed:
  strategy: fsdp2
  tp_size: 1
  activation_checkpointing: true
packed_sequence:
  packed_sequence_size: 4096
optimizer:
  _target_: torch.optim.Adam
"""


@pytest.mark.parametrize(
    ("old", "new", "train"),
    [
        ("", "", "lora:rank=8,alpha=32,targets=q+k+v+o+gate+up+down"),
        ("  target_modules: '*_proj'\n", "  match_all_linear: true\n",
         "lora:rank=8,alpha=32,targets=all-linear+head"),
        ("'*_proj'", "['*.q_proj', '*.v_proj']", "lora:rank=8,alpha=32,targets=q+v"),
        ("dim: 8", "dim: 8\nquantization:\n  load_in_4bit: true",
         "qlora:rank=8,alpha=32,targets=q+k+v+o+gate+up+down,base=nf4-double"),
        ("peft:\n  _target_: nemo_automodel.components._peft.lora.PeftConfig\n"
         "  target_modules: '*_proj'\n  dim: 8\n", "", "full"),
    ],
)  # fmt: skip
def test_automodel(folder: ReadFolder, old: str, new: str, train: str) -> None:
    found = folder({"x.yaml": AUTO.replace(old, new) if old else AUTO}, gpus=8)
    assert found.train == train
    assert (found.framework, found.zero) == ("automodel", 3)
    plain = train.startswith("lora")
    assert ("memory-efficient-lora" in found.variations) == plain
    assert ("bf16-parameters" in found.variations) == (train == "full")
    assert (found.mbs, found.gbs, found.seq, found.recompute) == (4, 32, 4096, "full")
    if train == "full":
        assert judged(found).verdict == "runs and fits"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tp_size: 1", "ep_size: 4", "adapters of AutoModel's own experts"),
        ("packed_sequence:", "fp8:\n  enabled: true\npacked_sequence:", "fp8.enabled"),
        ("strategy: fsdp2", "strategy: megatron_fsdp", "Megatron-FSDP through AutoModel"),
        (
            "TrainFinetuneRecipeForNextTokenPrediction",
            "FinetuneRecipeForVLM",
            "FinetuneRecipeForVLM",
        ),
    ],
)  # fmt: skip
def test_what_automodel_has_and_nothing_here_models(
    folder: ReadFolder, old: str, new: str, words: str
) -> None:
    found = folder({"x.yaml": AUTO.replace(old, new)}, gpus=8)
    assert words in refusals(found)
    assert judged(found).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("activation_checkpointing: true", "activation_checkpointing: selective", "are kept"),
        ("local_batch_size: 4", "local_batch_size: 1", "stay whole between micro-batches"),
    ],
)
def test_what_automodel_does_unasked(folder: ReadFolder, old: str, new: str, words: str) -> None:
    """Its own models checkpoint parts of a layer, and gradients wait for the last micro-batch."""
    found = folder({"x.yaml": AUTO.replace(old, new)}, gpus=8)
    assert any(words in why for _, why in found.unmodelled)
    assert "checkpointed-parts" in found.variations
    text = AUTO.replace("  pretrained_model", "  force_hf: true\n  pretrained_model")
    assert "checkpointed-parts" not in folder({"y.yaml": text}, gpus=8).variations


def test_automodel_splits_as_it_says(folder: ReadFolder) -> None:
    """Degrees, replicas and stages; under tensor parallelism without Liger's kernels."""
    pipeline = "tp_size: 2\n  pp_size: 2\n  pipeline:\n    pp_schedule: interleaved1f1b\n"
    text = AUTO.replace("tp_size: 1", pipeline + "    layers_per_stage: 4")
    found = folder({"x.yaml": text}, gpus=8)
    assert (found.tp, found.pp, found.vpp, found.zero) == (2, 2, 2, 2)
    assert found.block_layers == (4, 4, 4, 4)
    assert found.mbs == 1
    assert "liger-kernels" not in found.variations
    assert "no-sequence-parallel" in found.variations
    compiled = AUTO.replace("tp_size: 1", "enable_compile: true")
    assert "compiled-blocks" in folder({"x.yaml": compiled}, gpus=8).variations
    experts = AUTO.replace("tp_size: 1", "ep_size: 4").replace("peft:", "other:")
    mixture = experts.replace("Llama-3.2-1B", "Qwen3-30B-A3B").replace("meta-llama", "Qwen")
    found = folder({"x.yaml": mixture}, gpus=8)
    assert (found.framework, found.ep, found.zero, found.etp) == ("torchtitan", 4, 2, 1)
    assert "fused-dispatch" in found.variations
    hybrid = folder({"x.yaml": AUTO.replace("tp_size: 1", "dp_replicate_size: 2")}, gpus=8)
    assert (hybrid.shard, hybrid.zero) == (4, 3)


def test_automodels_own_command(folder: ReadFolder) -> None:
    found = folder({"x.sh": "automodel x.yaml --nproc-per-node 4\n", "x.yaml": AUTO})
    assert (found.world, found.mbs) == (4, 4)


FULL = (
    TUNE.replace("lora_llama3_1_8b", "llama3_1_8b")
    .replace("  lora_attn_modules: [q_proj, v_proj, output_proj]\n  apply_lora_to_mlp: true\n", "")
    .replace("  lora_rank: 16\n  lora_alpha: 32\n", "")
    .replace("torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW8bit")
    .replace("gradient_accumulation_steps: 8", "gradient_accumulation_steps: 1")
)


def test_one_gpu_of_24_gb(folder: ReadFolder) -> None:
    """The recipe of its README: paged states, each parameter updated in backward."""
    found = folder({"x.yaml": FULL + "optimizer_in_bwd: true\n"}, gpus=1)
    assert (found.optimizer, found.train) == ("paged-adamw-8bit", "full")
    assert found.variations == ("optimizer-in-backward",)
    assert not found.problems
    assert not found.unmodelled
    assessment = judged(found, "1xRTX4090")
    assert assessment.verdict != "will not run"
    plain = judged(folder({"x.yaml": FULL}, gpus=1), "1xRTX4090")
    assert assessment.plan is not None and plain.plan is not None
    assert assessment.plan.peak_bytes < plain.plan.peak_bytes - 9 * 2**30


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("clip_grad_norm: 1.0\n", "no norm of all gradients"),
        ("gradient_accumulation_steps: 4\n", "after every micro-batch"),
    ],
)
def test_what_an_optimizer_in_backward_does_without(
    folder: ReadFolder, lines: str, words: str
) -> None:
    """The recipes refuse both; those that train adapters do not read the switch."""
    given = "optimizer_in_bwd: true\n" + lines
    text = FULL.replace("gradient_accumulation_steps: 1\n", "") + given
    assessment = judged(folder({"x.yaml": text}, gpus=1), "1xA100")
    assert assessment.verdict == "will not run"
    assert any(words in problem.text for problem in assessment.errors)
    adapters = TUNE.replace("gradient_accumulation_steps: 8\n", "") + given
    found = folder({"x.yaml": adapters}, gpus=1)
    assert not found.problems and not found.variations
