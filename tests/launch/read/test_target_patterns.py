"""Patterns of modules that have adapters, as vision-language recipes write them."""

from __future__ import annotations

import pytest

from planner.job.models.catalog import load_model
from planner.launch.dialects.hf.modules import named_modules, spares_the_tower
from planner.predict.cost_tables import job_pieces, trained_parameters
from tests.launch.read.conftest import ReadFolder, judged

# axolotl's example files of vision-language models.
AXOLOTL = (
    r"model.language_model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj"
)
BLOCK = ("q", "k", "v", "o", "gate", "up", "down")


@pytest.mark.parametrize(
    ("pattern", "words", "spares"),
    [
        (AXOLOTL, BLOCK, True),
        (r".*\.(?:q|v)_proj", ("q", "v"), False),
        (r"^(?!.*visual).*(q_proj|o_proj)$", ("q", "o"), True),
        (r".*(language_model|vision_model).*\.k_proj", ("k",), False),
        ("q_proj,v_proj", ("q", "v"), False),
    ],
)
def test_words_of_a_pattern(pattern: str, words: tuple[str, ...], spares: bool) -> None:
    model = load_model("qwen2.5-vl-7b").spec
    assert named_modules(pattern, model).words == words
    assert spares_the_tower(pattern) is spares


def test_a_pattern_of_the_language_model_leaves_the_tower_frozen(folder: ReadFolder) -> None:
    """80,740,352 parameters: rank 32 beside the linear layers of Qwen2.5 7B."""
    lines = (
        "base_model: Qwen/Qwen2.5-VL-7B-Instruct", "adapter: lora", "lora_r: 32",
        "lora_alpha: 16", f"lora_target_modules: '{AXOLOTL}'", "sequence_len: 2048",
        "micro_batch_size: 1", "gradient_accumulation_steps: 4", "optimizer: adamw_torch",
        "datasets:", "  - path: mine", "    type: chat_template", "bf16: true",
        "sample_packing: false", "skip_prepare_dataset: true", "processor_type: AutoProcessor",
        "learning_rate: 0.0002", "output_dir: x",
    )  # fmt: skip
    found = judged(folder({"vl.yaml": "\n".join(lines)}))
    assert found.job is not None
    assert found.job.tuning.frozen == ("vision_tower", "projector")
    assert trained_parameters(found.job, job_pieces(found.job)) == 80_740_352
