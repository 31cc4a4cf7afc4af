"""Files of strangers that were misread once: `found.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.launch.read.conftest import ReadFolder, judged, refusals

CASES: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("found.toml").read_text(encoding="utf-8")
)["case"]


BUILT = """
def hidden_of(dim, multiple_of=1, ffn_dim_multiplier=None):
    hidden = int(2 * 4 * dim / 3)
    if ffn_dim_multiplier is not None:
        hidden = int(ffn_dim_multiplier * hidden)
    return multiple_of * ((hidden + multiple_of - 1) // multiple_of)

def _build_llama3_layers(*, n_layers, dim, n_heads, hidden_dim, rope, n_kv_heads=None):
    return [Block.Config(attention=gqa(dim=dim)) for _ in range(n_layers)]

def _1b(attn_backend):
    dim = 2048
    return Llama3Model.Config(
        dim=dim, vocab_size=128256, enable_weight_tying=True, norm=RMSNorm.Config(shape=dim),
        layers=_build_llama3_layers(
            n_layers=16, dim=dim, n_heads=32, n_kv_heads=8, attn_backend=attn_backend,
            hidden_dim=hidden_of(dim, multiple_of=1024, ffn_dim_multiplier=1.5),
            rope=RoPE.Config(dim=dim // 32),
        ),
    )

sizes = {"x": _1b}
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_read_as_it_is(folder: ReadFolder, case: dict[str, Any]) -> None:
    found = folder(case["files"], gpus=case.get("gpus"))
    assert {name: getattr(found, name) for name in case.get("found", {})} == case.get("found", {})
    gpus = f"{found.world or 8}xH100"
    assert not judged(found, gpus).errors
    if "says" in case:
        said = refusals(found, gpus)
        assert all(words in said for words in case["says"].split(" | ")) and bool(said) == bool(
            case["says"]
        )
    if "verdict" in case:
        assert judged(found, gpus).verdict == case["verdict"]


def test_a_table_of_nemo_is_no_axolotl(folder: ReadFolder) -> None:
    from planner.job.errors import UsageError

    with pytest.raises(UsageError, match="the settings of none that is read"):
        folder({"a.yaml": "base_model:\n  micro_batch_size: 4\nmodel:\n  micro_batch_size: 4\n"})


def test_num_layers_of_another_trainer_are_not_megatrons(folder: ReadFolder) -> None:
    from planner.job.errors import CannotTellError

    with pytest.raises(CannotTellError, match="which is no framework that can be read"):
        folder({"a.sh": "torchrun --nproc_per_node 8 train_lm.py --num-layers 24 --num-heads 16"})


def test_accelerates_file_and_a_trainers_are_one_launch(tmp_path: Path) -> None:
    from planner.launch.check.given import folder_files
    from planner.launch.read.launch import read_launch

    sharding, settings = tmp_path / "zero3.yaml", tmp_path / "sft.yaml"
    sharding.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n")
    settings.write_text(
        "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 4\n"
        "max_seq_length: 2048\noutput_dir: x\nlearning_rate: 1e-5\n"
    )
    assert set(folder_files(tmp_path).paths) == {sharding, settings}
    for files in ([sharding, settings], [settings, sharding]):
        found = read_launch(files)
        assert (found.framework, found.zero, found.mbs, found.seq) == ("deepspeed", 3, 4, 2048)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.sh", "deepspeed --module openrlhf.cli.train_sft --zero_stage 2\n",
         "runs openrlhf.cli.train_sft, which is no framework"),
        ("a.sh", "torchrun -m verl.trainer.fsdp_sft_trainer data.x=1\n",
         "runs verl.trainer.fsdp_sft_trainer, which is no framework"),
        ("a.sh", "accelerate launch --config_file $1 train.py --lr 1\n",
         "with a file that is $1, an argument of the script"),
        ("a.sh", "python -m pip install torch\n", "no command that starts a training program"),
        ("a.sh", "torchrun --nproc_per_node 8 train_it.py\npython merge.py --to x\n",
         "line 1 runs train_it.py"),
        ("a.sh", "deepspeed --num_gpus 8 t.py --config a/b.yaml a/b.yaml\n",
         "trains with a/b.yaml; give it too"),
        ("a.yaml", "apiVersion: batch/v1\nkind: Job\nspec:\n  x: {{ .Values.image }}\n",
         "a template"),
        ("a.sh", "torchrun --nproc_per_node 8 t.py --config {{ root }}/x.yaml\n", "is a template"),
        ("a.sh", "torchrun --nproc_per_node=8 -m flame.train --job.config_file $(grep x y)\n",
         "with a file that is output of $(grep x y)"),
        ("a.sh", "torchrun --nproc_per_node=8 pretrain_demo.py --dist_plan=a --batch_size=2 "
         "--model_name=b --cpu_ebd --with_static_partition=d --release-after e --chunk-size-of f\n",
         "runs pretrain_demo.py, which is no framework"),
        ("a.sh", "torchrun --nproc_per_node=8 megatron_gpt_pretraining.py trainer.devices=8 "
         "model.micro_batch_size=1\n", "runs megatron_gpt_pretraining.py, which is no framework"),
        ("a.yaml", "model_name_or_path: gpt2\ntrainer:\n  mp: p=f32\n", "settings of none"),
        ("a.yaml", "kind: A\n---\nkind: B\n", "holds 2 YAML documents, none of which starts"),
        ("a.yaml", "pipe-parallel-size: 1\nnum-layers: 12\n", "this YAML is GPT-NeoX's; read are"),
        ("a.py", "from torchtitan.experiments.rl.actors.trainer import PolicyTrainer\n"
         "def a():\n  return Controller.Config(trainer=PolicyTrainer.Config(x=TrainingConfig()))\n",
         "experiments.rl: reinforcement learning"),
        ("a.sh", 'MINE=$(mktemp)\nllamafactory-cli train "${MINE}"\n',
         "trains with a file that is $MINE, output of $(mktemp)"),
        ("a.yaml", "max_seq_len: 2048\nmax_duration: 3ba\n", "this YAML is LLM Foundry's"),
        # A list of all options says nothing by what it has of one.
        ("a.yaml", "num_layers: 1\nmicro_batch_size: 1\ntensor_model_parallel_size: 1\n"
         "grpo_clamp_eps_lower: 0.01\n", "this YAML lists Megatron-LM's options, and none"),
        ("a.sh", "python3 -m MaxText.train MaxText/configs/mine.yml run_name=x\n",
         "which MaxText 0.2.5 does not ship; give that file too"),
        ("a.yaml", "kind: RayJob\nspec:\n  entrypoint: python /app/train.py\n", "/app/train.py"),
        ("a.yaml", "kind: Job\nspec:\n  command:\n  - bash\n  - -xc\n  - |-\n    cd /app\n"
         "    torchrun --nproc_per_node=1 mnist.py\n", "line 8 runs mnist.py"),
        ("a.toml", '[model]\nname = "llama3"\n[training]\nmlm_probability = 0.3\n',
         "mlm_probability: masked language modelling is not modelled"),
        ("a.toml", '[model]\nname = "llama3"\n[freezing]\nfreeze = true\n', "frozen layers"),
    ],
)  # fmt: skip
def test_what_is_said_of_files_that_are_not_read(
    folder: ReadFolder, name: str, text: str, words: str
) -> None:
    from planner.job.errors import CannotTellError, UsageError

    with pytest.raises((CannotTellError, UsageError)) as error:
        folder({name: text})
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "sizes", "shape"),
    [
        # torchtitan's own 8B and Qwen3-0.6B, whose sizes the catalogue has from elsewhere.
        ("llama3", "sizes = {'x': ModelArgs(dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, "
         "ffn_dim_multiplier=1.3, multiple_of=1024, rope_theta=500000)}", "llama-3.1-8b"),
        ("qwen3", "sizes = {'x': ModelArgs(vocab_size=151936, head_dim=128, dim=1024, "
         "n_layers=28, n_heads=16, n_kv_heads=8, qk_norm=True, hidden_dim=3072, "
         "enable_weight_tying=True)}", "qwen3-0.6b"),
        # Since 2026-05 they are functions.
        ("llama3", BUILT, "llama-3.2-1b"),
    ],
)  # fmt: skip
def test_torchtitans_own_sizes_are_the_catalogues(
    tmp_path: Path, name: str, sizes: str, shape: str
) -> None:
    from planner.job.models.catalog import load_model
    from planner.launch.dialects.torchtitan.sources import registered_model

    folder = tmp_path / "torchtitan" / "models" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(f"{sizes}\n")
    found, known = registered_model(name, "x", folder / "train_configs"), load_model(shape).spec
    assert found is not None
    fields = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "family")
    assert {f: getattr(found, f) for f in fields} == {f: getattr(known, f) for f in fields}
    assert found.tied_embeddings == known.tied_embeddings
