"""Fine-tuning with Megatron-Bridge 0.6: the start script that defines adapters and samples.

Overrides cannot set adapters (training/utils/omegaconf_utils.py skips callables, and `PEFT` is one)
or the object that makes rows of samples. The start script therefore defines both, and is read back
as Python.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.job.errors import UsageError
from planner.job.job import Job
from planner.job.samples import PACKING_WORDS, Packing
from planner.job.specs import ModelSpec
from planner.launch.dialects.megatron.bridge_adapters import adapter_fields, adapters_of
from planner.launch.languages.python import Record
from planner.launch.languages.text import Text
from planner.launch.quoting import Code, Value
from planner.launch.read.python_files import evaluating, read_python
from planner.launch.sentences import said_settings
from planner.launch.settings_text import WrittenSetting, filled, python_arguments

SCRIPT = "bridge_finetune.py"
_CLASSES = {"lora": "LoRA", "dora": "DoRA"}
# Packings that make rows of samples; `pack` cuts rows from one long text.
_OF_SAMPLES: tuple[Packing, ...] = ("limit", "longest", "pack-varlen")


def has_samples(job: Job) -> bool:
    """Whether each row is made of samples, not cut from one long text."""
    return job.samples.lengths is not None and job.samples.packing in _OF_SAMPLES


def finetunes(job: Job) -> bool:
    """Whether the job trains adapters or samples, so that the plan starts from published weights
    and overrides are not enough."""
    return job.tuning.has_adapters or job.samples.lengths is not None


def script(job: Job, multiple: int, **names: Value) -> str:
    """The start script. `multiple`: sample lengths are padded to a multiple of this number of
    tokens."""
    imports, samples = list[str](), list[str]()
    given = 'config.dataset.blend = ([os.environ["DATA_PATH"]], None)'
    sets = f'if os.environ.get("DATA_PATH"):\n    {given}'
    if has_samples(job):
        imports = ["from megatron.bridge.data.builders import GPTSFTDatasetConfig"]
        if job.samples.is_packed:
            imports.append("from megatron.bridge.data.packing import PackedSequenceSpecs")
        samples = [*([""] if job.tuning.has_adapters else []), *_samples(job, multiple)]
        sets = "config.dataset = SAMPLES"
    return filled(
        f"megatron/{SCRIPT}.txt",
        data_imports=imports,
        samples=samples,
        **own_adapters(job),
        set_samples=sets,
        **names,
    )


def own_adapters(job: Job) -> dict[str, Value]:
    """The lines of a start script that define adapters."""
    if not job.tuning.has_adapters:
        return {"adapter_imports": [], "adapters": [], "set_adapters": ""}
    fields, kind = adapter_fields(job.tuning, job.model), _CLASSES[job.tuning.method]
    return {
        "adapter_imports": [f"from megatron.bridge.peft.{job.tuning.method} import {kind}"],
        "adapters": [
            "# What is trained; every other weight is frozen.",
            f"ADAPTERS = {kind}(",
            *python_arguments([WrittenSetting(*item) for item in fields.items()], 4),
            ")",
        ],
        "set_adapters": "config.peft = ADAPTERS",
    }


def _samples(job: Job, multiple: int) -> Iterator[str]:
    packing = job.samples.packing
    kwargs = {"pad_to_max_length": packing != "longest", "pad_seq_length_to_mult": multiple}
    names = {
        "code": Code,
        "job": job,
        "kwargs": repr(kwargs).replace("'", '"'),
        "multiple": multiple,
        "packed": job.samples.is_packed,
        "words": PACKING_WORDS[packing],
    }
    yield "# Samples of DATASET/training.jsonl, with `input` and `output`, as rows."
    yield "SAMPLES = GPTSFTDatasetConfig("
    yield from python_arguments(said_settings("megatron", "samples", names, {}).settings, 4)
    yield ")"


# --- back -----------------------------------------------------------------------------------------


def packing_of(program: str) -> Packing:
    """How a start script makes rows of samples; `pack` (full rows) if it does not define
    samples."""
    held = held_in(program, "SAMPLES")
    if held is None:
        return "pack"
    if held.get("enable_offline_packing") is True:
        return "pack-varlen"
    padded = (held.get("dataset_kwargs") or {}).get("pad_to_max_length")
    return "limit" if padded is True else "longest"


def train_of(program: str, model: ModelSpec | None) -> tuple[str, str]:
    """(`--train` value, reason that it is unknown) of a start script; one of the two is empty.
    `full` if the script defines no adapters."""
    held = held_in(program, "ADAPTERS")
    return ("full", "") if held is None else adapters_of(held, model)


def held_in(program: str, name: str) -> Record | None:
    """The object that a script assigns to a name; None if there is none or the script is not valid
    Python."""
    if f"{name} = " not in program:
        return None
    try:
        with evaluating(SCRIPT):
            found = read_python(Text.made(program), SCRIPT).lookup(name)
    except UsageError:
        return None
    return found if isinstance(found, Record) and found.made else None
