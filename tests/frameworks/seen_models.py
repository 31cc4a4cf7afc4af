"""A tiny vision-language model with random weights and its processor, for runs on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ("<pad>", "<s>", "</s>", "<unk>", "<image>", "user", "assistant", "noise", "What", "is")
IMAGE = WORDS.index("<image>")
_TEXT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "head_dim": 16, "intermediate_size": 128, "vocab_size": 256,
}  # fmt: skip
_TOWER = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
_CHAT = (
    "{% for m in messages %}{{ m['role'] }} {% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image> {% else %}{{ p['text'] }} {% endif %}"
    "{% endfor %}{% endfor %}"
)


def shrink(config: Path) -> None:
    """Make the config.json of a LLaVA one of a tiny model of the same type."""
    written = json.loads(config.read_text())
    written["text_config"] |= _TEXT
    written["vision_config"] |= _TOWER
    written["image_token_index"] = written["image_token_id"] = IMAGE
    config.write_text(json.dumps(written))


def save(transformers: Any, torch: Any, shape: Path, folder: Path) -> Any:
    """Random weights of a shape and a processor in a folder; the model."""
    config = transformers.AutoConfig.from_pretrained(shape)
    kind = transformers.AutoModelForImageTextToText
    model = kind.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    _processor(transformers).save_pretrained(folder)
    return model


def _processor(transformers: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        ),
        tokenizer=transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
            unk_token="<unk>", extra_special_tokens={"image_token": "<image>"},
        ),
        patch_size=14, vision_feature_select_strategy="default", chat_template=_CHAT,
        num_additional_image_tokens=1,
    )  # fmt: skip
