"""`train.py` of the Hugging Face frameworks: the same model and data, two loops around them."""

from __future__ import annotations

from planner.launch.contract import Launch

MODEL_FOLDER = "model"
# Steps of a first run: enough to see memory settle and the step time repeat.
TRIAL_STEPS = 50

_DATA = '''

class RandomTokens(torch.utils.data.Dataset):
    """Sequences of random tokens: enough to measure memory and step time."""

    def __init__(self, count, length, vocabulary):
        self.count, self.length, self.vocabulary = count, length, vocabulary

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocabulary, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def read_data(path, count, length, vocabulary):
    """A folder of datasets.save_to_disk whose input_ids are `length` long, or random tokens."""
    if path is None:
        return RandomTokens(count, length, vocabulary)
    from datasets import load_from_disk

    data = load_from_disk(path).with_format("torch", columns=["input_ids"])
    return data.map(lambda row: {"labels": row["input_ids"]})
'''

_TRAINER = '''"""{title}

Arguments: those below and transformers.TrainingArguments; the launcher gives them all.
"""

from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser
from transformers import Trainer, TrainingArguments

SEQUENCE = {seq}


@dataclass
class RunArguments:
    model_folder: str = field(default="{folder}", metadata={{"help": "holds config.json"}})
    dataset: str | None = field(default=None, metadata={{"help": "datasets.save_to_disk folder"}})
{data}

def main():
    # TrainingArguments come first: with ZeRO-3 they make from_config build the model sharded.
    parser = HfArgumentParser((RunArguments, TrainingArguments))
    run, training = parser.parse_args_into_dataclasses()
    config = AutoConfig.from_pretrained(run.model_folder)
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.{dtype}, attn_implementation="{attention}"
    )
    count = training.max_steps * training.train_batch_size * training.world_size
    count *= training.gradient_accumulation_steps
    data = read_data(run.dataset, count, SEQUENCE, config.vocab_size)
    trainer = Trainer(model=model, args=training, train_dataset=data)
    trainer.train()
    if torch.cuda.is_available() and trainer.is_world_process_zero():
        peak = torch.cuda.max_memory_reserved() / 2**30
        print(f"peak reserved memory of rank 0: {{peak:.2f}} GiB")


if __name__ == "__main__":
    main()
'''

_ACCELERATE = '''"""{title}

accelerate launch --config_file accelerate.yaml train.py [--dataset FOLDER]
"""

import argparse
import contextlib
import time

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, init_empty_weights
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch.distributed.fsdp import MixedPrecisionPolicy
{imports}from transformers import AutoConfig, AutoModelForCausalLM

# The plan: global batch of {gbs} sequences = {mbs} x {acc} of accumulation x {dp} ranks.
SEQUENCE, MICRO_BATCH, ACCUMULATION = {seq}, {mbs}, {acc}
{data}

def read_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-folder", default="{folder}", help="holds config.json")
    parser.add_argument("--dataset", help="datasets.save_to_disk folder; default: random tokens")
    parser.add_argument("--steps", type=int, default={steps})
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    return parser.parse_args()


def make_accelerator():
    """Settings that accelerate.yaml has no keys for; the rest comes from there."""
    plugin = FullyShardedDataParallelPlugin(
        # fp32 shards, bf16 gathered parameters and compute, fp32 gradient reduction
        mixed_precision_policy=MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        ),
    )
    # Gradients are reduced after every micro-batch: unreduced ones would be kept whole.
    accumulation = GradientAccumulationPlugin(num_steps=ACCUMULATION, sync_each_batch=True)
    return Accelerator(fsdp_plugin=plugin, gradient_accumulation_plugin=accumulation)


def main():
    run = read_arguments()
    accelerator = make_accelerator()
    set_seed(0)
    config = AutoConfig.from_pretrained(run.model_folder)
    config.use_cache = False
    # Rank 0 makes the weights, the others get their shards from it.
    first = accelerator.is_main_process
    with contextlib.nullcontext() if first else init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="{attention}"
        )
    optimizer = {optimizer}
    count = run.steps * MICRO_BATCH * ACCUMULATION * accelerator.num_processes
    data = read_data(run.dataset, count, SEQUENCE, config.vocab_size)
    loader = torch.utils.data.DataLoader(data, batch_size=MICRO_BATCH, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
{kernel}    train(accelerator, model, optimizer, loader)
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_reserved() / 2**30
        accelerator.print(f"peak reserved memory of rank 0: {{peak:.2f}} GiB")


def train(accelerator, model, optimizer, loader):
    model.train()
    start, step = time.perf_counter(), 0
    for batch in loader:
        with accelerator.accumulate(model):
            # Keeping the output would keep its logits.
            loss = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step, now = step + 1, time.perf_counter()
            accelerator.print(f"step {{step}}: loss {{loss.item():.4f}}, {{now - start:.3f}} s")
            start = time.perf_counter()


if __name__ == "__main__":
    main()
'''


def _attention(launch: Launch) -> str:
    return "eager" if launch.job.attention == "eager" else "sdpa"


def trainer_script(launch: Launch, title: str) -> str:
    """train.py on the Trainer of transformers."""
    dtype = {"fp16": "float16"}.get(launch.job.precision, "bfloat16")
    return _TRAINER.format(
        title=title,
        seq=launch.plan.seq,
        folder=MODEL_FOLDER,
        data=_DATA,
        dtype=dtype,
        attention=_attention(launch),
    )


def accelerate_script(launch: Launch, title: str, optimizer: str, kernel: str, imports: str) -> str:
    """train.py with a loop of its own.

    `optimizer`: the expression that makes it; `kernel`: torch's argument that picks its kernel,
    set once the parameters are on their device ("" for the optimizer's own); `imports`: a line
    that the optimizer needs, or "".
    """
    lines = f"    for group in optimizer.param_groups:\n        group.update({kernel})\n"
    own = launch.plan.degrees
    return _ACCELERATE.format(
        title=title,
        seq=launch.plan.seq,
        folder=MODEL_FOLDER,
        data=_DATA,
        gbs=own.gbs,
        mbs=own.mbs,
        acc=own.grad_acc,
        dp=own.dp,
        steps=TRIAL_STEPS,
        attention=_attention(launch),
        optimizer=optimizer,
        imports=imports,
        kernel=lines if kernel else "",
    )
