"""torchtitan, DeepSpeed, accelerate and nanotron files, and plan files, as configurations."""

from __future__ import annotations

import pytest

from planner.check.assess import assess
from planner.check.request import as_request
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from planner.launch.read.torchtitan_layout import stage_layers
from tests.check.conftest import Read, Write, rules

TITAN = """# my run
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 2  # per rank
seq_len = 8192

[parallelism]
tensor_parallel_degree = 2
{parallelism}

[activation_checkpoint]
mode = "full"

[compile]
enable = true
{more}
"""
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
NANOTRON = """model:
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
{more}
"""


def titan(parallelism: str = "", more: str = "") -> str:
    """A torchtitan file with more in it."""
    return TITAN.format(parallelism=parallelism, more=more)


# --- torchtitan -----------------------------------------------------------------------------------


def test_torchtitan(read: Read) -> None:
    found = read(titan(), "a.toml", gpus=8)
    assert rules(found, None) == set()
    own = as_request(found, "8xH100")
    assert (own.degrees.tp, own.degrees.dp, own.degrees.zero) == (2, 4, 3)
    assert (own.degrees.mbs, own.degrees.grad_acc, own.recompute) == (2, 1, "full")
    assert found.model == "llama-3.1-8b"
    assert found.where["mbs"].place.endswith("a.toml:7")
    assert found.variations == ()


def test_torchtitan_pipeline(read: Read) -> None:
    """The local batch is cut into micro-batches; the ends count for a layer each."""
    text = titan(
        'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "1F1B"\n'
        "pipeline_parallel_microbatch_size = 1"
    )
    found = read(text.replace("local_batch_size = 2", "local_batch_size = 8"), "a.toml", gpus=8)
    own = as_request(found, "8xH100")
    assert (own.degrees.pp, own.degrees.mbs, own.degrees.grad_acc) == (4, 1, 8)
    # 34 counted layers in 4 stages: 9, 9, 8, 8, less one at each end.
    assert own.block_layers == (8, 9, 8, 7)
    # Weights stay gathered under a pipeline, unless told otherwise.
    assert own.degrees.zero == 0
    assert rules(found) == set()


@pytest.mark.parametrize(
    ("layers", "stages", "ends", "expected"),
    [
        (32, 4, (1, 1), (8, 9, 8, 7)), (30, 4, (1, 1), (7, 8, 8, 7)), (8, 2, (0, 0), (4, 4)),
        (8, 1, (1, 1), (8,)), (2, 8, (1, 1), None), (6, 4, (3, 1), None),
    ],
)  # fmt: skip
def test_stage_layers(
    layers: int, stages: int, ends: tuple[int, int], expected: tuple[int, ...] | None
) -> None:
    assert stage_layers(layers, stages, ends) == expected


@pytest.mark.parametrize(
    ("parallelism", "more", "field", "value"),
    [
        ("data_parallel_replicate_degree = 2", "", "shard", 2),
        ('fsdp_reshard_after_forward = "never"', "", "zero", 2),
        ("", '[optimizer]\nimplementation = "foreach"', "optimizer_kernel", "foreach"),
        ("pipeline_parallel_degree = 4\n" 'pipeline_parallel_schedule = "ZBVZeroBubble"', "",
         "schedule", "zb-v"),
        ("pipeline_parallel_degree = 2\n" 'pipeline_parallel_schedule = "Interleaved1F1B"\n'
         "pipeline_parallel_layers_per_stage = 3", "", "vpp", 6),
        ("context_parallel_degree = 2", "", "cp", 2),
    ],
)  # fmt: skip
def test_torchtitan_fields(
    read: Read, parallelism: str, more: str, field: str, value: object
) -> None:
    found = read(titan(parallelism, more), "a.toml", gpus=8)
    assert getattr(found, field) == value


def test_torchtitan_in_bf16_keeps_half_of_the_state(read: Read) -> None:
    """2 bytes of weights and 2 of each moment instead of three times 4: FSDP2 keeps no copy."""
    usual, half = (
        assess(
            read(titan().replace("[training]", f"[training]\n{own}"), "a.toml", gpus=8), "8xH100"
        ).plan
        for own in ("", 'dtype = "bfloat16"')
    )
    assert usual is not None
    assert half is not None
    whole, halved = (plan.stages[0].weights + plan.stages[0].optimizer for plan in (usual, half))
    assert halved == pytest.approx(whole / 2, rel=0.05)


@pytest.mark.parametrize(
    ("setting", "rule", "severity"),
    [
        ('dtype = "bf16"', "option-value", "error"),
        ('mixed_precision_reduce = "float16"', "not-predictable", "warning"),
    ],
)
def test_torchtitan_types(read: Read, setting: str, rule: str, severity: str) -> None:
    found = read(titan().replace("[training]", f"[training]\n{setting}"), "a.toml")
    assert rule in rules(found, severity)


@pytest.mark.parametrize(
    ("mode", "recompute"),
    [
        ('mode = "none"', "none"), ('mode = "selective"', "full/2"),
        ('mode = "selective"\nselective_ac_option = "op"', "selective"),
        ('mode = "memory_budget"\nmemory_budget = 0.3', "budget=0.3"),
    ],
)  # fmt: skip
def test_torchtitan_checkpointing(read: Read, mode: str, recompute: str) -> None:
    assert read(titan().replace('mode = "full"', mode), "a.toml").recompute == recompute


def test_torchtitan_without_compile(read: Read) -> None:
    text = titan().replace("enable = true", "enable = false")
    assert "eager-blocks" in read(text, "a.toml").variations


TITAN_WRONG = [
    ("unknown-option", "tensor_parallel_degre = 4", ""),
    ("unknown-schedule", 'pipeline_parallel_schedule = "Interleaved1F1Bx"', ""),
    ("option-value", "context_parallel_degree = 0", ""),
    ("option-value", 'fsdp_reshard_after_forward = "sometimes"', ""),
    ("batch-size", "", "[training]\n"),
    ("layers-per-stage", "pipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 5",
     ""),
    ("layers-per-stage", "pipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 12",
     ""),
    ("expert-tensor-degree", "expert_parallel_degree = 2\nexpert_tensor_parallel_degree = 4", ""),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "parallelism", "more"), TITAN_WRONG)
def test_torchtitan_rules(read: Read, rule: str, parallelism: str, more: str) -> None:
    text = titan(parallelism, "" if more else more)
    if rule == "batch-size":
        text = text.replace("seq_len = 8192", "seq_len = 8192\nglobal_batch_size = 9")
    assert rule in rules(read(text, "a.toml", gpus=8))


def test_unknown_schedule_is_found_late(read: Read) -> None:
    found = read(titan('pipeline_parallel_schedule = "interleaved1f1b"'), "a.toml")
    assert rules(found) == set()
    wrong = read(titan('pipeline_parallel_schedule = "zbv"'), "b.toml")
    problem = next(own for own in wrong.problems if own.rule == "unknown-schedule")
    assert problem.late
    assert "ZBVZeroBubble" in problem.fix


def test_command_line_overrides_the_file(write: Write) -> None:
    toml = write("a.toml", titan())
    script = write(
        "run.sh",
        "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --job.config_file ./a.toml "
        "--parallelism.tensor_parallel_degree 4 --training.local_batch_size=1\n",
    )
    for paths in ([script], [script, toml]):
        found = read_launch(paths, Hints(gpus=16))
        assert (found.tp, found.mbs, found.world) == (4, 1, 16)
        assert found.where["tp"].place.endswith("run.sh:1")


def test_torchtitan_python(read: Read) -> None:
    text = """from torchtitan.models.llama3 import model_registry
from torchtitan.config import ParallelismConfig, TrainingConfig, CompileConfig

TP = 4  # naïve


def mine():
    spec = model_registry("70B")
    config = Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=N()),
        parallelism=ParallelismConfig(tensor_parallel_degree=TP, data_parallel_shard_degree=-1),
        compile=CompileConfig(enable=True),
        activation_checkpoint=SelectiveAC.Config(),
    )
    config.parallelism.context_parallel_degree = 2
    return config
"""
    found = read(text, "conf.py", gpus=64)
    assert (found.tp, found.cp, found.dp, found.recompute) == (4, 2, 8, "selective")
    assert found.model == "llama-3.1-70b"
    assert found.where["tp"].line == 4
    assert "unresolved" in rules(found, "warning")
    span = found.where["tp"].spans[0]
    assert text[span.start : span.end] == "4"


# --- DeepSpeed ------------------------------------------------------------------------------------


def deepspeed(zero: str = "", more: str = "") -> str:
    """A DeepSpeed file with more in it."""
    return DEEPSPEED.format(zero=zero and f",\n    {zero}", more=more and f",\n  {more}")


def test_deepspeed(read: Read) -> None:
    found = read(deepspeed(), "ds.json", model="llama-3.1-8b", gpus=8)
    assert rules(found) == set()
    own = as_request(found, "8xA100")
    assert (own.degrees.zero, own.degrees.mbs, own.degrees.grad_acc) == (3, 2, 4)
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
        ("not-predictable", "warning", '"offload_param": {"device": "cpu"}', ""),
        ("not-predictable", "warning", '"offload_optimizer": {"device": "nvme"}', ""),
    ],
)  # fmt: skip
def test_deepspeed_rules(read: Read, rule: str, severity: str, zero: str, more: str) -> None:
    found = read(deepspeed(zero, more), "ds.json", model="llama-3.1-8b", gpus=8)
    assert rule in rules(found, severity)


@pytest.mark.parametrize(
    ("optimizer", "more", "expected"),
    [
        ("OneBitAdam", "", {"optimizer-unknown"}),
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
    own = as_request(found, "8xH100")
    assert (found.framework, own.degrees.zero, own.recompute) == ("hf-fsdp2", 3, "full")
    assert (own.degrees.mbs, own.degrees.grad_acc) == (2, 4)
    assert found.where["zero"].line == 9


@pytest.mark.parametrize(
    ("rule", "severity", "top", "fsdp"),
    [
        ("unknown-option", "error", "num_procs: 8", ""),
        ("unknown-option", "warning", "", "fsdp_ofload_params: false"),
        ("option-value", "error", "num_machines: x", "fsdp_state_dict_type: SHARDED_STATE_DICT"),
        ("cp-and-sp", "error", "parallelism_config:\n  parallelism_config_cp_size: 2\n"
         "  parallelism_config_sp_size: 2", ""),
        ("world-size", "error", "parallelism_config:\n  parallelism_config_dp_shard_size: 4", ""),
        ("tp-with-replicas", "error", "parallelism_config:\n  parallelism_config_tp_size: 2\n"
         "  parallelism_config_dp_replicate_size: 4", ""),
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
    own = as_request(found, "8xH100")
    assert (own.degrees.dp, own.degrees.tp, own.degrees.zero, own.degrees.gbs) == (4, 2, 1, 32)
    assert found.shape is not None
    assert (found.shape.layers, found.shape.kv_heads, found.shape.vocab) == (16, 8, 128256)
    assert found.variations == ()


@pytest.mark.parametrize(
    ("rule", "parallelism", "more", "old", "new"),
    [
        ("unknown-option", "tp_mod: X", "", "", ""),
        ("unknown-option", "", "tokenz: 1", "", ""),
        ("option-value", "pp_engine: 2f2b", "", "", ""),
        ("option-value", "", "", "REDUCE_SCATTER", "REDUCE"),
        ("option-value", "", "", "zero_stage: 1", "zero_stage: 3"),
        ("option-value", "", "", "dp: 4", "dp: four"),
    ],
)
def test_nanotron_rules(
    read: Read, rule: str, parallelism: str, more: str, old: str, new: str
) -> None:
    text = nanotron(parallelism, more)
    assert rule in rules(read(text.replace(old, new) if old else text, "n.yaml"))


def test_nanotron_shape_rules(read: Read) -> None:
    """tp must divide the key/value heads, dp·pp·tp the GPUs."""
    found = read(nanotron().replace("tp: 2", "tp: 16"), "n.yaml")
    assert {"kv-heads-by-tp", "world-size"} <= {own.rule for own in assess(found, "8xH100").errors}


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
    own = assess(read(nanotron(more), "n.yaml"), "16xH100")
    found = {problem.rule: problem for problem in own.unpredictable}
    assert what in found["not-predictable"].text
    assert "context-supported" not in {problem.rule for problem in own.problems}
    assert own.plan is None


def test_a_last_stage_without_layers_runs_and_is_not_modelled(read: Read) -> None:
    """Two layers and a larger head: nanotron's own example files have such stages."""
    small = nanotron().replace("num_hidden_layers: 16", "num_hidden_layers: 2")
    own = assess(read(small.replace("pp: 1", "pp: 2"), "n.yaml"), "16xH100")
    assert own.errors == ()
    assert any("which is not modelled" in problem.text for problem in own.unpredictable)


def test_context_parallelism_of_accelerate_is_no_error(read: Read) -> None:
    text = accelerate(
        "parallelism_config:\n  parallelism_config_cp_size: 4\n"
        "  parallelism_config_dp_shard_size: 2\n"
    )
    own = assess(read(text, "a.yaml", model="llama-3.1-8b", seq=4096, mbs=1, gbs=64), "8xH100")
    assert "context-supported" not in {problem.rule for problem in own.problems}
    assert own.unpredictable


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_size", "training.local_batch_size"),
        ("compile", "compile.enable"),
    ],
)
def test_older_torchtitan_keys_have_their_new_names(old: str, new: str, read: Read) -> None:
    text = titan().replace("[training]", f"[training]\n{old} = 1", 1)
    problems = read(text, "t.toml").problems
    assert new in {own.fix for own in problems if own.rule == "unknown-option"}
