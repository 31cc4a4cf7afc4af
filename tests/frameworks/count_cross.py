"""Counts what a layer that attends across to images keeps in transformers (Llama 3.2 Vision), as
rows of tests/truth/data/cross_activations.csv.

    python -m tests.frameworks.count_cross FILE

A layer is what one more adds to a language model of one. The image is of four tiles; what the
projector makes of it is given, and belongs to no layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import MllamaTextConfig
from transformers.models.mllama.modeling_mllama import MllamaForCausalLM

from tests.frameworks.count_families import difference, held_bytes
from tests.frameworks.count_tuning import write
from tests.frameworks.hf_counts import TYPES, SavedTensor, attention_of, saved_tensors
from tests.frameworks.tuned_models import TunedRun, Tuning

TILES, PLACES = 4, 1601
SETTINGS = (
    ("bf16", "flash", "none", Tuning()),
    ("bf16", "eager", "none", Tuning()),
    ("bf16", "flash", "full", Tuning()),
    ("amp", "flash", "none", Tuning()),
    ("bf16-amp", "flash", "none", Tuning("lora")),
    ("bf16-amp", "flash", "none", Tuning("qlora", base="nf4-double", prepared=True)),
)


@dataclass(frozen=True)
class CrossRun(TunedRun):
    """One forward pass of a language model, all of whose layers attend across."""

    layers: int = 1

    def plain(self) -> Any:
        """The model with its weights on the current device."""
        config = MllamaTextConfig(
            num_hidden_layers=self.layers, cross_attention_layers=list(range(self.layers)),
            vocab_size=600, pad_token_id=0,
        )  # fmt: skip
        attention = attention_of(self.attention)
        return MllamaForCausalLM._from_config(
            config, dtype=TYPES[self.mode], attn_implementation=attention
        )

    def loss(self, model: Any) -> Any:
        """What the last layer makes of a row of tokens."""
        inner = model if self.tuning.method == "full" else model.get_base_model()
        places, half = TILES * PLACES, torch.bfloat16
        states = torch.empty((1, places, inner.config.hidden_size), dtype=half, requires_grad=True)
        mask = torch.zeros((1, 1, self.seq, places), dtype=TYPES[self.mode])
        rows = torch.ones((1, 1, self.seq, 1), dtype=TYPES[self.mode])
        return inner.model(
            input_ids=torch.zeros((1, self.seq), dtype=torch.long),
            cross_attention_states=states, cross_attention_mask=mask,
            full_text_row_masked_out_mask=rows,
        ).last_hidden_state  # fmt: skip


def counted(seq: int) -> Iterator[tuple[dict[str, object], list[SavedTensor]]]:
    """A row for each setting, and the tensors of two layers."""
    for mode, attention, checkpointing, tuning in SETTINGS:
        runs = [
            saved_tensors(
                CrossRun({}, seq, 1, mode, attention, checkpointing, tuning=tuning,
                         hooked=tuning.method != "full", layers=layers)
            )
            for layers in (1, 2)
        ]  # fmt: skip
        kept, casts = difference(held_bytes(runs[1]), held_bytes(runs[0]))
        yield {
            "model": "llama-3.2-11b-vision", "seq": seq, "mode": mode, "attention": attention,
            "checkpointing": checkpointing, "method": tuning.method, "base": tuning.base,
            "per_layer": kept, "weight_casts_per_layer": casts,
            "made_by": f"torch-{version('torch')} transformers-{version('transformers')}",
        }, runs[1]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    write(options.file, [row for row, _ in counted(2048)], [], ("llama-3.2-11b-vision",))


if __name__ == "__main__":
    main()
