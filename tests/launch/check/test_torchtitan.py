"""torchtitan files, TOML and Python, as configurations."""

from __future__ import annotations

import pytest

from planner.job.frameworks.profile import load_framework, with_tables
from planner.launch.check.assess import assess
from planner.launch.check.request import as_request, tables_of_variations
from planner.launch.dialects.torchtitan.sources import stage_layers
from planner.launch.read.found import Hints
from planner.launch.read.launch import read_launch
from tests.launch.check.conftest import Read, Write, rules

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


def titan(parallelism: str = "", more: str = "") -> str:
    """A torchtitan file with more in it."""
    return TITAN.format(parallelism=parallelism, more=more)


# --- torchtitan -----------------------------------------------------------------------------------


def test_torchtitan(read: Read) -> None:
    found = read(titan(), "a.toml", gpus=8)
    assert rules(found, None) == set()
    result = as_request(found, "8xH100")
    assert (result.degrees.tp, result.degrees.dp, result.degrees.zero) == (2, 4, 3)
    assert (result.degrees.mbs, result.degrees.grad_acc, result.recompute) == (2, 1, "full")
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
    result = as_request(found, "8xH100")
    assert (result.degrees.pp, result.degrees.mbs, result.degrees.grad_acc) == (4, 1, 8)
    # 34 counted layers in 4 stages: 9, 9, 8, 8, less one at each end.
    assert result.block_layers == (8, 9, 8, 7)
    # Weights stay gathered under a pipeline, unless told otherwise.
    assert result.degrees.zero == 0
    assert rules(found) == set()


@pytest.mark.parametrize(
    ("layers", "stages", "less_layers", "expected"),
    [
        (32, 4, (1, 1), (8, 9, 8, 7)), (30, 4, (1, 1), (7, 8, 8, 7)), (8, 2, (0, 0), (4, 4)),
        (8, 1, (1, 1), (8,)), (2, 8, (1, 1), None), (6, 4, (3, 1), None),
    ],
)  # fmt: skip
def test_stage_layers(
    layers: int, stages: int, less_layers: tuple[int, int], expected: tuple[int, ...] | None
) -> None:
    assert stage_layers(layers, stages, less_layers) == expected


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
            read(titan().replace("[training]", f"[training]\n{item}"), "a.toml", gpus=8), "8xH100"
        ).plan
        for item in ("", 'dtype = "bfloat16"')
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
    assert {"eager-blocks", "uncompiled-loss"} <= set(read(text, "a.toml").variations)
    blocks = titan().replace("enable = true", 'enable = true\ncomponents = ["model"]')
    assert read(blocks, "a.toml").variations == ("uncompiled-loss",)


def test_a_loss_that_is_not_compiled_takes_ten_bytes_more_a_logit() -> None:
    profile = load_framework("torchtitan")
    (tables,) = tables_of_variations(("uncompiled-loss",), "torchtitan").values()
    changed = with_tables(profile, tables)
    assert [one.saved.logits_peak_bytes for one in (profile, changed)] == [4, 14]


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
    problem = next(item for item in wrong.problems if item.rule == "unknown-schedule")
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_size", "training.local_batch_size"),
        ("compile", "compile.enable"),
    ],
)
def test_older_torchtitan_sources_have_their_new_names(old: str, new: str, read: Read) -> None:
    text = titan().replace("[training]", f"[training]\n{old} = 1", 1)
    problems = read(text, "t.toml").problems
    assert new in {problem.fix for problem in problems if problem.rule == "unknown-option"}


def test_a_key_with_another_word_in_it_is_no_slip(read: Read) -> None:
    text = titan() + "\n[metrics]\nenable_color_printing = true\n[validation]\nenabled = false\n"
    assert not [one for one in read(text, "t.toml").problems if one.severity == "error"]
