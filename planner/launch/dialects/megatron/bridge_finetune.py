"""Fine-tuning with Megatron-Bridge 0.6: the start script that holds adapters and samples.

Adapters are an object that Megatron-Bridge's overrides do not reach (training/utils/
omegaconf_utils.py leaves out what can be called, and `PEFT` can), and so is what makes rows of
samples; both stand in the script, which is read back as Python.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.samples import PACKING_WORDS, Packing
from planner.job.specs import ModelSpec
from planner.launch import contract
from planner.launch.contract import Refusal, Variable
from planner.launch.dialects.megatron.bridge_adapters import (
    adapter_fields,
    adapter_refusals,
    adapters_of,
)
from planner.launch.languages.python import Record
from planner.launch.languages.text import Text
from planner.launch.quoting import Code, Value
from planner.launch.read.python_files import evaluating, read_python
from planner.launch.settings_text import WrittenSetting, filled, python_arguments

SCRIPT = "bridge_finetune.py"
_CLASSES = {"lora": "LoRA", "dora": "DoRA"}
# Packings whose rows its data set of samples makes; `pack` cuts rows from one text.
_OF_SAMPLES: tuple[Packing, ...] = ("limit", "longest", "pack-varlen")
# Megatron-Bridge's own recipes (recipes/common.py, _peft_common and _sft_common).
_USUAL_RATES = {True: "1e-4", False: "5e-6"}


def has_samples(job: Job) -> bool:
    """Whether rows are made of samples, not cut from one text."""
    return job.samples.lengths is not None and job.samples.packing in _OF_SAMPLES


def finetunes(job: Job) -> bool:
    """Whether a plan starts from published weights, and its script holds more than overrides."""
    return job.tuning.has_adapters or job.samples.lengths is not None


def finetuning_refusals(job: Job) -> Iterator[Refusal]:
    """What Megatron-Bridge cannot be told of adapters and samples."""
    yield from adapter_refusals(job.tuning, job.model)
    if job.samples.lengths is not None and job.samples.balance != "none":
        text = f"Megatron-Bridge does not balance samples by {job.samples.balance}"
        yield Refusal(text, "no --balance")


def script(job: Job, multiple: int, **names: Value) -> str:
    """The start script. `multiple`: tokens that the length of a sample must be a multiple of."""
    return filled(
        f"megatron/{SCRIPT}.txt",
        data_imports=[*_data_imports(job)],
        samples=[*_samples(job, multiple)],
        **own_adapters(job),
        set_samples=_set_samples(job),
        **names,
    )


def own_adapters(job: Job) -> dict[str, Value]:
    """What a start script has of adapters."""
    return {
        "adapter_imports": [*_adapter_imports(job)],
        "adapters": [*_adapters(job)],
        "set_adapters": "config.peft = ADAPTERS" if job.tuning.has_adapters else "",
    }


def _data_imports(job: Job) -> Iterator[str]:
    if has_samples(job):
        yield "from megatron.bridge.data.builders import GPTSFTDatasetConfig"
    if has_samples(job) and job.samples.is_packed:
        yield "from megatron.bridge.data.packing import PackedSequenceSpecs"


def _adapter_imports(job: Job) -> Iterator[str]:
    if job.tuning.has_adapters:
        method = job.tuning.method
        yield f"from megatron.bridge.peft.{method} import {_CLASSES[method]}"


def _adapters(job: Job) -> Iterator[str]:
    if not job.tuning.has_adapters:
        return
    fields = adapter_fields(job.tuning, job.model)
    yield "# What is trained; every other weight is frozen."
    yield f"ADAPTERS = {_CLASSES[job.tuning.method]}("
    yield from python_arguments([WrittenSetting(*item) for item in fields.items()], 4)
    yield ")"


def _samples(job: Job, multiple: int) -> Iterator[str]:
    if not has_samples(job):
        return
    packing, packed = job.samples.packing, job.samples.is_packed
    kwargs = {"pad_to_max_length": packing != "longest", "pad_seq_length_to_mult": multiple}
    rows: list[tuple[str, Value, str]] = [
        ("seq_length", job.seq, ""),
        ("dataset_root", Code('os.environ["DATASET"]'), ""),
        ("enable_offline_packing", packed, PACKING_WORDS[packing]),
        ("offline_packing_specs",
         Code(f"PackedSequenceSpecs({job.seq}, pad_seq_to_mult={multiple})"), ""),
        ("dataset_kwargs", Code(repr(kwargs).replace("'", '"')), ""),
        ("dataloader_type", "batch" if packed else "single",
         "" if packing != "longest" else "each micro-batch is padded by itself"),
        ("do_validation", False, ""),
        ("do_test", False, ""),
    ]  # fmt: skip
    kept = [WrittenSetting(*row) for row in rows if packed or row[0] != "offline_packing_specs"]
    yield from ([""] if job.tuning.has_adapters else [])
    yield "# Samples of DATASET/training.jsonl, with `input` and `output`, as rows."
    yield "SAMPLES = GPTSFTDatasetConfig("
    yield from python_arguments(kept, 4)
    yield ")"


def _set_samples(job: Job) -> str:
    if has_samples(job):
        return "config.dataset = SAMPLES"
    given = 'config.dataset.blend = ([os.environ["DATA_PATH"]], None)'
    return f'if os.environ.get("DATA_PATH"):\n    {given}'


def variables(job: Job) -> tuple[Variable, ...]:
    """What is the user's, in place of the variables of pretraining."""
    adapters = job.tuning.has_adapters
    rate, kind = _USUAL_RATES[adapters], "with adapters" if adapters else "from published weights"
    samples = has_samples(job)
    data = contract.needed(
        "DATASET",
        "folder of training.jsonl, one sample a line with `input` and `output`",
        holds="${DATASET}/training.jsonl",
    )
    return (
        Variable(contract.PRETRAINED, "", "published weights to start from: a Hugging Face "
                 "model's folder", needed=True, holds="${PRETRAINED}/config.json"),
        *((data,) if samples else ()),
        contract.rate_variable(rate, what=f"{rate} is usual {kind}; peak"),
        contract.rate_variable("0", "MIN_LEARNING_RATE", "last"),
    )  # fmt: skip


# --- back -----------------------------------------------------------------------------------------


def packing_of(program: str) -> Packing:
    """How a start script's rows are made."""
    held = held_in(program, "SAMPLES")
    if held is None:
        return "pack"
    if held.get("enable_offline_packing") is True:
        return "pack-varlen"
    padded = (held.get("dataset_kwargs") or {}).get("pad_to_max_length")
    return "limit" if padded is True else "longest"


def train_of(program: str, model: ModelSpec | None) -> tuple[str, str]:
    """`--train` of a start script, and why it is not known; the latter is empty where it is."""
    held = held_in(program, "ADAPTERS")
    return ("full", "") if held is None else adapters_of(held, model)


def held_in(program: str, name: str) -> Record | None:
    """The object of a name of the script; None where it has none, or is no Python."""
    if f"{name} = " not in program:
        return None
    try:
        with evaluating(SCRIPT):
            found = read_python(Text.made(program), SCRIPT).lookup(name)
    except UsageError:
        return None
    return found if isinstance(found, Record) and found.made else None
