"""DeepSpeed, accelerate and nanotron files, and plan files, as configurations."""

from __future__ import annotations

import pytest

from planner.launch.check.assess import assess
from planner.launch.check.request import as_request
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from tests.cli.conftest import run_cli
from tests.launch.check.conftest import Read, Write, rules

DEEPSPEED = """{{
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "bf16": {{"enabled": true}},
  "zero_optimization": {{
    "stage": 3{zero}
  }}{more}
}}
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
{top}
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  {fsdp}
"""
NANOTRON = """general: {{project: planned}}
model:
  init_method: {{std: 0.02}}
  model_config:
    is_llama_config: true
    hidden_size: 2048
    intermediate_size: 8192
    num_attention_heads: 32
    num_hidden_layers: 16
    num_key_value_heads: 8
    vocab_size: 128256
    max_position_embeddings: 4096
    tie_word_embeddings: true
optimizer:
  zero_stage: 1
  weight_decay: 0.1
  clip_grad: 1.0
  accumulate_grad_in_fp32: true
  optimizer_factory: {{name: sgd}}
  learning_rate_scheduler: {{learning_rate: 0.001}}
parallelism:
  dp: 4
  pp: 1
  tp: 2
  tp_mode: REDUCE_SCATTER
  {parallelism}
tokens:
  micro_batch_size: 2
  batch_accumulation_per_replica: 4
  sequence_length: 4096
  train_steps: 10
{more}
"""


# --- DeepSpeed ------------------------------------------------------------------------------------


def deepspeed(zero: str = "", more: str = "") -> str:
    """A DeepSpeed file with more in it."""
    return DEEPSPEED.format(zero=zero and f",\n    {zero}", more=more and f",\n  {more}")


def test_deepspeed(read: Read) -> None:
    found = read(deepspeed(), "ds.json", model="llama-3.1-8b", gpus=8)
    assert rules(found) == set()
    result = as_request(found, "8xA100")
    assert (result.degrees.zero, result.degrees.mbs, result.degrees.grad_acc) == (3, 2, 4)
    assert found.where["mbs"].line == 2
    assert any("no recomputation" in text for text in found.assumed)


def test_deepspeed_with_its_script(write: Write) -> None:
    """The Trainer's arguments complete the file, which a here-document may hold."""
    text = (
        "cat > ds.json <<EOT\n"
        '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto",\n'
        ' "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}\n'
        "EOT\n"
        "deepspeed --num_gpus 8 train.py --deepspeed ds.json --per_device_train_batch_size 4 \\\n"
        "  --gradient_accumulation_steps 2 --gradient_checkpointing --max_seq_length 2048 \\\n"
        "  --model_name_or_path meta-llama/Llama-3.1-8B --optim adamw_8bit --bf16 True\n"
    )
    found = read_launch([write("run.sh", text)], Hints())
    assert (found.mbs, found.grad_acc, found.seq, found.zero) == (4, 2, 2048, 2)
    assert (found.recompute, found.optimizer, found.world) == ("full", "adamw-8bit", 8)
    assert found.model == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("rule", "severity", "zero", "more"),
    [
        ("unknown-option", "warning", "", '"gradient_cliping": 1.0'),
        ("unknown-option", "error", '"overlap_com": true', ""),
        ("batch-size", "error", "", '"train_batch_size": 65'),
        ("precision", "error", "", '"fp16": {"enabled": true}'),
        ("deprecated-option", "error",
         '"cpu_offload": true, "offload_optimizer": {"device": "cpu"}', ""),
        ("option-value", "error", "", '"sequence_parallel_size": -1'),
        ("nvme-path", "error", '"offload_param": {"device": "nvme"}', ""),
        ("nvme-path", "error", '"offload_optimizer": {"device": "nvme"}', ""),
    ],
)  # fmt: skip
def test_deepspeed_rules(read: Read, rule: str, severity: str, zero: str, more: str) -> None:
    found = read(deepspeed(zero, more), "ds.json", model="llama-3.1-8b", gpus=8)
    assert rule in rules(found, severity)


@pytest.mark.parametrize(("stage", "runs"), [(1, True), (2, True), (3, False)])
def test_deepspeed_splits_tensors_below_stage_3(write: Write, stage: int, runs: bool) -> None:
    """A search, `evaluate` and `check` say so alike."""
    tensor = '"tensor_parallel": {"autotp_size": 2}'
    text = deepspeed("", tensor).replace('"stage": 3', f'"stage": {stage}')
    given = ("--model", "llama-3.2-1b", "--gpus", "8xH100")
    checked = run_cli("check", str(write("ds.json", text)), *given)
    degrees = ("--tp", "2", "--zero", str(stage), "--gbs", "64", "--framework", "deepspeed")
    evaluated = run_cli("evaluate", *given, *degrees)
    searched = run_cli(
        "search", *given, "--gbs", "64", "--framework", "deepspeed", "--require", "tp == 2",
        "--require", f"zero == {stage}", "--quiet",
    )  # fmt: skip
    for result in (checked, evaluated):
        assert ("zero 3 only with tp = 1" in result.output) is not runs
    assert (evaluated.exit_code, searched.exit_code) == ((0, 0) if runs else (2, 2))


def test_the_usual_stage_goes_with_tensor_parallelism() -> None:
    asked = ("--model", "llama-3.2-1b", "--gpus", "8xH100", "--gbs", "64")
    for tp, stage in ((1, 3), (2, 2)):
        result = run_cli("evaluate", *asked, "--framework", "deepspeed", "--tp", str(tp))
        assert f"tp{tp} pp1 dp{8 // tp} z{stage}" in result.stdout


@pytest.mark.parametrize(
    ("optimizer", "more", "expected"),
    [
        ("OneBitAdam", "", set()),
        ("TwoBitAdam", "", {"optimizer-unknown"}),
        ("sgd", "", {"optimizer-unknown"}),
        ("SGD", "", {"zero-untested-optimizer"}),
        ("SGD", ', "zero_allow_untested_optimizer": true', set()),
        ("adamw", "", set()),
    ],
)
def test_deepspeed_optimizers(read: Read, optimizer: str, more: str, expected: set[str]) -> None:
    text = deepspeed("", f'"optimizer": {{"type": "{optimizer}", "params": {{}}}}{more}')
    found = read(text, "ds.json", model="llama-3.1-8b", gpus=8)
    assert rules(found, "error") == expected


def test_deepspeed_names_what_a_table_asks_for(read: Read) -> None:
    on = '"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}'
    found = read(deepspeed('"zenflow": {"topk_ratio": 0.1}', on), "ds.json", model="8b", gpus=8)
    why = {setting.key: why for setting, why in found.unmodelled}
    assert why["zero_optimization.zenflow.topk_ratio"] == "asynchronous updates"
    assert "compressed training" in why.values()
    off = '"progressive_layer_drop": {"enabled": false, "theta": 0.5}'
    found = read(deepspeed("", off), "ds.json", model="8b", gpus=8)
    assert "layers dropped" not in [why for _, why in found.unmodelled]


def test_deepspeed_tables(read: Read) -> None:
    found = read('{"zero_optimization": 3, "bf16": {}}', "ds.json", model="llama-3.1-8b")
    assert rules(found) == {"option-value"}


@pytest.mark.parametrize(("stage", "rule"), [(4, "zero-stage"), (1, "offload-param-stage")])
def test_deepspeed_stages(read: Read, stage: int, rule: str) -> None:
    text = deepspeed('"offload_param": {"device": "cpu"}').replace(
        '"stage": 3', f'"stage": {stage}'
    )
    assert rule in rules(read(text, "ds.json", model="llama-3.1-8b"), None)


# --- accelerate -----------------------------------------------------------------------------------


def accelerate(top: str = "", fsdp: str = "") -> str:
    """An accelerate file with more in it."""
    return ACCELERATE.format(top=top, fsdp=fsdp)


def test_accelerate(read: Read) -> None:
    found = read(
        accelerate(fsdp="fsdp_activation_checkpointing: true"),
        "a.yaml", model="llama-3.1-8b", mbs=2, grad_acc=4, gpus=8,
    )  # fmt: skip
    assert rules(found) == set()
    result = as_request(found, "8xH100")
    assert (found.framework, result.degrees.zero, result.recompute) == ("hf-fsdp2", 3, "full")
    assert (result.degrees.mbs, result.degrees.grad_acc) == (2, 4)
    assert found.where["zero"].line == 9


@pytest.mark.parametrize(
    ("rule", "severity", "top", "fsdp"),
    [
        ("unknown-option", "error", "num_procs: 8", ""),
        ("unknown-option", "warning", "", "fsdp_ofload_params: false"),
        ("option-value", "error", "num_machines: x", "fsdp_state_dict_type: SHARDED_STATE_DICT"),
        ("world-size", "error", "parallelism_config:\n  parallelism_config_dp_shard_size: 4", ""),
        ("not-predictable", "warning", "parallelism_config:\n  parallelism_config_tp_size: 2", ""),
    ],
)  # fmt: skip
def test_accelerate_rules(read: Read, rule: str, severity: str, top: str, fsdp: str) -> None:
    text = accelerate(top, fsdp)
    if "num_machines" in top:
        text = text.replace("fsdp_version: 2", "fsdp_version: two")
    assert rule in rules(read(text, "a.yaml", model="llama-3.1-8b", mbs=1), severity)


def test_accelerate_other_kinds(read: Read) -> None:
    one = read(
        accelerate(fsdp="fsdp_sharding_strategy: SHARD_GRAD_OP").replace(": 2", ": 1"),
        "a.yaml", model="llama-3.1-8b",
    )  # fmt: skip
    assert (one.framework, one.zero) == ("fsdp1", 2)
    ddp = read(
        "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n", "b.yaml",
        model="llama-3.2-1b",
    )  # fmt: skip
    assert (ddp.framework, ddp.zero, ddp.dtype) == ("hf-transformers", 0, "amp")


# --- nanotron -------------------------------------------------------------------------------------


def nanotron(parallelism: str = "", more: str = "") -> str:
    """A nanotron file with more in it."""
    return NANOTRON.format(parallelism=parallelism, more=more)


def test_nanotron(read: Read) -> None:
    found = read(nanotron(), "n.yaml")
    assert rules(found) == set()
    result = as_request(found, "8xH100")
    degrees = result.degrees
    assert (degrees.dp, degrees.tp, degrees.zero, degrees.gbs) == (4, 2, 1, 32)
    assert found.shape is not None
    assert (found.shape.layers, found.shape.kv_heads, found.shape.vocab) == (16, 8, 128256)
    assert found.variations == ()


@pytest.mark.parametrize(
    ("rule", "parallelism", "more", "old", "new"),
    [
        ("unknown-option", "tp_mod: X", "", "", ""),
        ("unknown-option", "", "tokenz: 1", "", ""),
        ("unknown-option", "", "infini_attention: {n: 1}\ndata: {}", "", ""),
        ("option-value", "pp_engine: 2f2b", "", "", ""),
        ("option-value", "", "", "REDUCE_SCATTER", "REDUCE"),
        ("option-value", "", "", "zero_stage: 1", "zero_stage: 3"),
        ("option-value", "", "", "dp: 4", "dp: four"),
        ("required-option", "", "", "dp: 4", ""),
        ("required-option", "", "", "general: {project: planned}", ""),
        ("model-unknown", "", "", "is_llama_config", "is_llamoe_config"),
        ("model-unknown", "", "", "model_config", "config"),
    ],
)
def test_nanotron_rules(
    read: Read, rule: str, parallelism: str, more: str, old: str, new: str
) -> None:
    text = nanotron(parallelism, more)
    found = read(text.replace(old, new) if old else text, "n.yaml")
    assert rule in rules(found) | rules(found, "missing")


def test_a_key_of_another_release_is_no_slip(read: Read) -> None:
    assert rules(read(nanotron("", "profile: null"), "n.yaml")) == set()


def test_nanotron_shape_rules(read: Read) -> None:
    """tp must divide the key/value heads, dp·pp·tp the GPUs."""
    found = read(nanotron().replace("tp: 2", "tp: 16"), "n.yaml")
    assert {"kv-heads-by-tp", "world-size"} <= {
        error.rule for error in assess(found, "8xH100").errors
    }


def test_nanotron_settings(read: Read) -> None:
    text = nanotron("pp_engine: afab\n  recompute_layer: true").replace("pp: 1", "pp: 2")
    found = read(text.replace("REDUCE_SCATTER", "ALL_REDUCE"), "n.yaml")
    assert (found.schedule, found.recompute) == ("gpipe", "full")
    assert found.variations == ("no-sequence-parallel",)


@pytest.mark.parametrize(
    ("more", "what"),
    [("context_parallel_size: 2", "ring attention"), ("expert_parallel_size: 2", "expert")],
)
def test_what_nanotron_has_and_the_planner_has_not_is_no_error(
    more: str, what: str, read: Read
) -> None:
    result = assess(read(nanotron(more), "n.yaml"), "16xH100")
    found = {problem.rule: problem for problem in result.unpredictable}
    assert what in found["not-predictable"].text
    assert "context-supported" not in {problem.rule for problem in result.problems}
    assert result.plan is None


def test_a_last_stage_without_layers_runs_and_is_not_modelled(read: Read) -> None:
    """Two layers and a larger head: nanotron's own example files have such stages."""
    small = nanotron().replace("num_hidden_layers: 16", "num_hidden_layers: 2")
    found = assess(read(small.replace("pp: 1", "pp: 2"), "n.yaml"), "16xH100")
    assert found.errors == ()
    assert any("which is not modelled" in problem.text for problem in found.unpredictable)


def test_context_parallelism_of_accelerate_is_no_error(read: Read) -> None:
    text = accelerate(
        "parallelism_config:\n  parallelism_config_cp_size: 4\n"
        "  parallelism_config_dp_shard_size: 2\n"
    )
    found = assess(read(text, "a.yaml", model="llama-3.1-8b", seq=4096, mbs=1, gbs=64), "8xH100")
    assert "context-supported" not in {problem.rule for problem in found.problems}
    assert found.unpredictable
