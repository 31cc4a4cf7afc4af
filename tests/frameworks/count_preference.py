"""Counts what TRL's trainers hold of logits, in a real step of each of a tiny model on a CPU.

    python -m tests.frameworks.count_preference FILE

writes rows for the version of TRL that runs under those of other versions in FILE. A figure in
logits is bytes over (rows x padded tokens x vocabulary) of a micro-batch of the trained model:
what is alive of tensors as wide as the vocabulary, at the most in forward and loss, when the loss
is made, at the most in backward; not where logits are made tile by tile, of which a tile's shape
stands instead. Rows: how many of the micro-batch go through each model at once.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tests.frameworks.live_bytes import LiveBytes

Row = dict[str, object]
# A prime: nothing but logits is as wide.
VOCABULARY = 5003
HIDDEN = 64
PAIRS, PROMPT, CHOSEN, REJECTED = 4, 8, 24, 40
_WORDS = " ".join("abcdefgh"[index % 8] for index in range(REJECTED))
_TRAINERS = {
    "sft": "SFT", "dpo": "DPO", "ipo": "DPO", "kto": "KTO", "orpo": "ORPO", "simpo": "CPO",
    "cpo": "CPO", "reward": "Reward",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One trainer, one way to a reference; `adapters`: whether peft's are trained."""

    objective: str
    reference: str = "none"
    adapters: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case("sft"),
    Case("dpo", "copied"),
    Case("dpo", "adapters-off", adapters=True),
    Case("dpo", "precomputed", more={"precompute_ref_log_probs": True}),
    Case("ipo", "copied", more={"loss_type": "ipo"}),
    Case("kto", "copied"),
    Case("kto", "adapters-off", adapters=True),
    Case("orpo"),
    Case("simpo", more={"loss_type": "simpo", "cpo_alpha": 0.0}),
    Case("cpo"),
    Case("reward"),
)


def tokenizer() -> Any:
    """Words of one letter."""
    words = {word: index for index, word in enumerate(["<pad>", "<s>", "</s>", *"abcdefgh"])}
    model = Tokenizer(WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def samples(objective: str) -> Dataset:
    """Equal pairs of two lengths, in the columns that a trainer reads."""
    prompt, chosen, rejected = (_WORDS[: 2 * count] for count in (PROMPT, CHOSEN, REJECTED))
    if objective == "sft":
        return Dataset.from_list([{"prompt": prompt, "completion": rejected}] * PAIRS)
    if objective == "kto":
        labels = [(chosen, True), (rejected, False)] * (PAIRS // 2)
        rows = [{"prompt": prompt, "completion": text, "label": good} for text, good in labels]
        return Dataset.from_list(rows)
    return Dataset.from_list([{"prompt": prompt, "chosen": chosen, "rejected": rejected}] * PAIRS)


def model_of(objective: str) -> Any:
    """A Llama of two layers."""
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY, pad_token_id=0, num_labels=1,
    )  # fmt: skip
    made = LlamaForSequenceClassification if objective == "reward" else LlamaForCausalLM
    return made(config).to(torch.bfloat16)


def _class(name: str) -> Any:
    """A class of TRL, which keeps some among its experiments."""
    for module in ("trl", *(f"trl.experimental.{part}" for part in ("cpo", "orpo", "kto"))):
        found = getattr(_imported(module), name, None)
        if found is not None:
            return found
    raise LookupError(f"TRL {version('trl')} has no {name}")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def trainer_of(case: Case, folder: str) -> Any:
    """TRL's trainer of one micro-batch, as its defaults have it."""
    name = _TRAINERS[case.objective]
    options = _class(f"{name}Config")(
        output_dir=folder, per_device_train_batch_size=PAIRS, max_steps=1, use_cpu=True, bf16=True,
        report_to=[], save_strategy="no", dataset_num_proc=None, **case.more,
    )  # fmt: skip
    adapters = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    reference = {}
    if case.reference == "copied" and case.objective in ("dpo", "ipo", "kto"):
        reference = {"ref_model": model_of(case.objective)}
    return _class(f"{name}Trainer")(
        model=model_of(case.objective),
        args=options,
        train_dataset=samples(case.objective),
        processing_class=tokenizer(),
        **reference,
        **({"peft_config": adapters} if case.adapters else {}),
    )


@dataclass
class Step:
    """What a step of a trainer showed."""

    peak_forward: int = 0
    held: int = 0
    peak_backward: int = 0
    trained: list[tuple[int, int]] = field(default_factory=list)
    reference: list[tuple[int, int]] = field(default_factory=list)
    tiled: bool = False


def _is_tiled(loss: Any) -> bool:
    """Whether the loss came from TRL's head that makes logits tile by tile."""
    seen, nodes = set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if "ChunkedLogProb" in node.name():
            return True
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
    return False


def _tile() -> str:
    """Tokens and vocabulary entries of a tile, which is as wide whatever the vocabulary."""
    from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    return f"{TOKEN_CHUNK_SIZE}x{_CHUNKED_LOGPROB_CHUNK_SIZE}"


@contextmanager
def _forwards(trainer: Any, step: Step) -> Iterator[None]:
    """Notes the shape of what goes through the decoder, with gradients and without."""

    def note(module: Any, positional: Any, named: Any) -> None:
        del module
        ids = named.get("input_ids") if named.get("input_ids") is not None else positional[0]
        (step.trained if torch.is_grad_enabled() else step.reference).append(tuple(ids.shape))

    models = [trainer.model, getattr(trainer, "ref_model", None)]
    decoders = {
        module for model in models if model is not None for module in model.modules()
        if type(module).__name__ == "LlamaModel"
    }  # fmt: skip
    handles = [
        module.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
        for module in decoders
    ]
    yield
    for handle in handles:
        handle.remove()


def _is_of_logits(tensor: Any) -> bool:
    """Whether it is as wide as the vocabulary, and no weight of the head or its copy."""
    wide = tensor.dim() > 0 and tensor.shape[-1] == VOCABULARY
    return wide and tensor.numel() != VOCABULARY * HIDDEN


def watched(trainer: Any) -> Step:
    """One step of training, in which tensors as wide as the vocabulary are counted."""
    step, compute, train_step = Step(), trainer.compute_loss, trainer.training_step
    live = LiveBytes(_is_of_logits)

    def compute_loss(*given: Any, **named: Any) -> Any:
        found = compute(*given, **named)
        step.peak_forward, step.held = live.peak, live.live
        step.tiled = _is_tiled(found)
        live.restart()
        return found

    def training_step(*given: Any, **named: Any) -> Any:
        with live, _forwards(trainer, step):
            found = train_step(*given, **named)
        step.peak_backward = live.peak
        return found

    trainer.compute_loss, trainer.training_step = compute_loss, training_step
    trainer.train()
    return step


def count(case: Case) -> Row:
    """The row of a case."""
    with tempfile.TemporaryDirectory() as folder:
        step = watched(trainer_of(case, folder))
    rows, tokens = step.trained[0]
    logits = rows * tokens * VOCABULARY
    return {
        "trl": version("trl"), "objective": case.objective, "reference": case.reference,
        "adapters": int(case.adapters), "samples": PAIRS, "rows": rows, "tokens": tokens,
        "forwards": len(step.trained), "reference_forwards": len(step.reference),
        "reference_rows": step.reference[0][0] if step.reference else 0,
        "peak_forward": "" if step.tiled else round(step.peak_forward / logits, 3),
        "held_at_loss": round(step.held / logits, 3),
        "peak_backward": "" if step.tiled else round(step.peak_backward / logits, 3),
        "tile": _tile() if step.tiled else "",
        "made_by": " ".join(f"{name}-{version(name)}" for name in ("torch", "transformers", "trl")),
    }  # fmt: skip


def write(path: Path, rows: Sequence[Row]) -> None:
    """Rows under those of other versions of TRL in the file."""
    kept: list[Row] = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as handle:
            kept = [dict(row) for row in csv.DictReader(handle) if row["trl"] != rows[0]["trl"]]
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """Count all cases."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    write(options.file, [count(case) for case in CASES])


if __name__ == "__main__":
    main()
