"""`train.py` of the Hugging Face frameworks: the same model and data, two loops around them."""

from __future__ import annotations

from planner.launch.checkpoints import TRAIN_STEPS, TRIAL_STEPS, folder_variable, save_steps
from planner.launch.contract import Launch, Variable

MODEL_FOLDER = "model"

VARIABLES = (
    Variable("DATASET", "", "folder of datasets.save_to_disk (input_ids); empty: random tokens"),
    TRAIN_STEPS,
    folder_variable("DATASET"),
)

ENVIRONMENT = {"PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments:True", "less fragmentation")}

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

import os
from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class RunArguments:
    model_folder: str = field(default="{folder}", metadata={{"help": "holds config.json"}})
    seq_length: int = field(default={seq}, metadata={{"help": "tokens of a sequence"}})
    attn_implementation: str = field(default="{attention}", metadata={{"help": "sdpa or eager"}})
    dataset: str | None = field(default=None, metadata={{"help": "datasets.save_to_disk folder"}})
{data}

def main():
    # TrainingArguments come first: with ZeRO-3 they make from_config build the model sharded.
    parser = HfArgumentParser((RunArguments, TrainingArguments))
    run, training = parser.parse_args_into_dataclasses()
    config = AutoConfig.from_pretrained(run.model_folder)
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.{dtype}, attn_implementation=run.attn_implementation
    )
    count = training.max_steps * training.train_batch_size * training.world_size
    count *= training.gradient_accumulation_steps
    data = read_data(run.dataset, count, run.seq_length, config.vocab_size)
    trainer = Trainer(model=model, args=training, train_dataset=data)
    folder = training.output_dir
    last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
    trainer.train(resume_from_checkpoint=last)
    if torch.cuda.is_available() and trainer.is_world_process_zero():
        peak = torch.cuda.max_memory_reserved() / 2**30
        print(f"peak reserved memory of rank 0: {{peak:.2f}} GiB")


if __name__ == "__main__":
    main()
'''

_ACCELERATE = '''"""{title}

accelerate launch --config_file accelerate.yaml train.py ...: the launcher gives the arguments.
"""

import argparse
import contextlib
import pathlib
import time

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, init_empty_weights
from accelerate.utils import GradientAccumulationPlugin, set_seed
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import AutoConfig, AutoModelForCausalLM
{data}

def read_arguments():
    """Defaults are the plan's: {gbs} sequences a step on {dp} ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-folder", default="{folder}", help="holds config.json")
    parser.add_argument("--dataset", help="datasets.save_to_disk folder; default: random tokens")
    parser.add_argument("--seq-length", type=int, default={seq}, help="tokens of a sequence")
    parser.add_argument("--micro-batch-size", type=int, default={mbs}, help="sequences of a rank")
    parser.add_argument("--gradient-accumulation-steps", type=int, default={acc})
    parser.add_argument("--attn-implementation", default="{attention}", help="sdpa or eager")
    parser.add_argument(
        "--optim",
        default="{optim}",
        choices=["adamw_torch", "adamw_torch_8bit", "adamw_torch_4bit", "sgd"],
        help="as transformers names them; 8 and 4 bits: torchao",
    )
    parser.add_argument(
        "--optimizer-kernel",
        default={kernel},
        choices=["fused", "foreach", "forloop"],
        help="how torch updates the parameters; none for torchao",
    )
    parser.add_argument("--sgd-momentum", type=float, default={momentum})
    parser.add_argument("--steps", type=int, default={steps})
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--checkpoints", help="folder to save to and to go on from; default: none")
    parser.add_argument("--save-steps", type=int, default={save})
    return parser.parse_args()


def make_accelerator(run):
    """Settings that accelerate.yaml has no keys for; the rest comes from there."""
    plugin = FullyShardedDataParallelPlugin(
        # fp32 shards, bf16 gathered parameters and compute, fp32 gradient reduction
        mixed_precision_policy=MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        ),
    )
    # Gradients are reduced after every micro-batch: unreduced ones would be kept whole.
    accumulation = GradientAccumulationPlugin(
        num_steps=run.gradient_accumulation_steps, sync_each_batch=True
    )
    return Accelerator(fsdp_plugin=plugin, gradient_accumulation_plugin=accumulation)


def make_optimizer(run, parameters):
    settings = {{"lr": run.learning_rate, "betas": (0.9, 0.95), "weight_decay": 0.1}}
    if run.optim == "sgd":
        return torch.optim.SGD(parameters, lr=run.learning_rate, momentum=run.sgd_momentum)
    if run.optim == "adamw_torch":
        return torch.optim.AdamW(parameters, **settings)
    from torchao.optim import AdamW4bit, AdamW8bit

    kind = AdamW8bit if run.optim == "adamw_torch_8bit" else AdamW4bit
    return kind(parameters, **settings)


def set_kernel(optimizer, name):
    """Once the parameters are on their device."""
    for group in optimizer.param_groups:
        group.update(fused=name == "fused", foreach=name == "foreach")


def main():
    run = read_arguments()
    accelerator = make_accelerator(run)
    set_seed(0)
    config = AutoConfig.from_pretrained(run.model_folder)
    config.use_cache = False
    # Rank 0 makes the weights, the others get their shards from it.
    first = accelerator.is_main_process
    with contextlib.nullcontext() if first else init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=run.attn_implementation
        )
    optimizer = make_optimizer(run, model.parameters())
    batch, accumulation = run.micro_batch_size, run.gradient_accumulation_steps
    count = run.steps * batch * accumulation * accelerator.num_processes
    data = read_data(run.dataset, count, run.seq_length, config.vocab_size)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if run.optimizer_kernel is not None:
        set_kernel(optimizer, run.optimizer_kernel)
    step = load_last(accelerator, run.checkpoints)
    skipped = accelerator.skip_first_batches(loader, step * accumulation)
    train(accelerator, model, optimizer, skipped, run, step)
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_reserved() / 2**30
        accelerator.print(f"peak reserved memory of rank 0: {{peak:.2f}} GiB")


def load_last(accelerator, folder):
    """The last checkpoint, if there is one, and its step."""
    found = [] if folder is None else sorted(pathlib.Path(folder).glob("step-*"))
    if not found:
        return 0
    accelerator.load_state(str(found[-1]))
    return int(found[-1].name.removeprefix("step-"))


def train(accelerator, model, optimizer, loader, run, step):
    model.train()
    start = time.perf_counter()
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
            if run.checkpoints and step % run.save_steps == 0:
                accelerator.save_state(f"{{run.checkpoints}}/step-{{step:09d}}")
            start = time.perf_counter()


if __name__ == "__main__":
    main()
'''


def attention(launch: Launch) -> str:
    """Transformers' name of the attention."""
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
        attention=attention(launch),
    )


def accelerate_script(launch: Launch, title: str, optim: str, kernel: str, momentum: float) -> str:
    """train.py with a loop of its own, its defaults the plan's.

    `optim`, `kernel` ("" for the optimizer's own), `momentum`: values of its arguments.
    """
    degrees = launch.plan.degrees
    return _ACCELERATE.format(
        title=title,
        seq=launch.plan.seq,
        folder=MODEL_FOLDER,
        data=_DATA,
        gbs=degrees.gbs,
        mbs=degrees.mbs,
        acc=degrees.grad_acc,
        dp=degrees.dp,
        steps=TRIAL_STEPS,
        save=save_steps(launch),
        attention=attention(launch),
        optim=optim,
        kernel=f'"{kernel}"' if kernel else None,
        momentum=momentum,
    )
