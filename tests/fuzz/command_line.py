"""Arguments for every command, made from what click knows of its options.

A new option is fuzzed by its type alone; texts that only a catalogue understands have examples
here, by the name of the option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
from hypothesis import strategies as st

from planner.cli.option_types import Parsed
from planner.cli.program import COMMANDS, planner_command

# Options that each command needs to run, on a job that takes milliseconds.
_JOB = ("--model", "gpt2", "--gbs", "8", "--seq", "1024")
_ON = (*_JOB, "--gpus", "2xH100")
BASES: Mapping[str, tuple[str, ...]] = {
    "search": (*_ON, "--time-limit", "0.1", "--recompute", "none", "--zero", "1", "-q"),
    "evaluate": (*_ON, "--dp", "2"),
    "memory": (*_ON, "--dp", "2", "-q"),
    "check": ("--gpus", "8xH100", "--time-limit", "0.1", "-q"),
    "explain": ("--no-neighbours", "-q"),
    "compare": (*_JOB, "--gpus", "1xH100", "--tokens", "1B", "--time-limit", "0.1",
                "--jobs", "1", "--recompute", "none", "-q"),
    "scale": (*_JOB, "--gpus", "H100", "--counts", "1", "--tokens", "1B", "--time-limit", "0.1",
              "--jobs", "1", "--batch", "fixed", "--recompute", "none", "-q"),
    "budget": ("--gbs", "8", "--seq", "1024", "--params", "124M", "--tokens", "1B", "--gpus",
               "1xH100", "--time-limit", "0.1", "--recompute", "none", "-q"),
    "fit": (*_ON, "--time-limit", "0.1", "--recompute", "none", "-q"),
    "buy": (*_JOB, "--gpus", "1xH100", "--tokens", "1B", "--time-limit", "0.1",
            "--processes", "1", "--recompute", "none", "-q"),
    "sweep": ("--report", "-q"),
    "launch": ("-o", "out", "--force", "-q"),
    # Without it trials would start.
    "tune": ("--dry-run", "-q"),
    "validate": ("--data", "runs.csv", "-q"),
    "calibrate": ("--from", "runs.csv", "-q"),
    "trace": ("-q",),
    "probe": ("--plan-file", "plans.json", "-o", "probed.toml", "--force", "-q"),
    "lengths": ("-q",),
    "models": (),
    "hardware": (),
    "frameworks": (),
    "schemas": (),
    "warmup": ("-q",),
    "doctor": (),
    "completion": (),
    "report": ("-o", "page.html", "--force", "-q"),
    "serve": ("--port", "0", "-q"),
}  # fmt: skip
# Goes on until it is ended: what it refuses, tests/cli/test_pictures.py tries.
LASTING = ("serve",)
# Without any option: predicts every measured run that ships, for a minute.
COMPLETE = ("validate",)
# Arguments that are no options, in order.
POSITIONAL: Mapping[str, Mapping[str, str]] = {
    "lengths": {"data": "lengths.csv"},
    "check": {"paths": "run.sh"},
    "explain": {"plan_file": "plans.json", "number": "1"},
    "launch": {"plan_file": "plans.json", "number": "1"},
    "tune": {"paths": "plans.json"},
    "models": {"name": "gpt2"},
    "report": {"file": "plans.json"},
    "sweep": {"file": "grid.toml"},
    "trace": {"paths": "trace.json"},
    "completion": {"shell": "bash"},
    "hardware": {"name": "H100"},
    "frameworks": {"name": "megatron-core"},
    "schemas": {"name": "search"},
}
# Texts that a catalogue or a file gives meaning, by the name of their option.
_EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "model": ("gpt2", "8b", "config.json", "model.toml"),
    "gpus": ("8xH100", "2x8xH100", "1xA100", "H100", "8xH100+8xA100", "2..4xH100"),
    "gpu": ("H100", "dgx-h100"),
    "cluster": ("cluster.toml",),
    "clusters": ("offers.toml",),
    "framework": ("megatron-core", "torchtitan", "deepspeed", "accelerate", "nanotron"),
    "precision": ("bf16", "fp8", "fp32"),
    "optimizer": ("adamw", "sgd", "muon", "adamw:exp_avg=fp8"),
    "schedule": ("1f1b", "zb-v"),
    "recompute": ("none", "full", "full/2", "budget=0.5"),
    "hbm_reserve": ("0", "5%", "4GiB"),
    "cublas_workspace_config": (":4096:8",),
    "weights": ("bf16", "fp8", "mxfp4"),
    "kv_cache": ("bf16", "fp8"),
    "engine": ("vllm", "vllm-0.16"),
    "prices": ("prices.csv",),
    "skypilot": ("vms.csv",),
    "providers": ("aws",),
    "explain": ("1xH100",),
    "precision_fallback": ("bf16",),
    "ignored": ("world-size",),
    "by": ("source,gpu",),
    "paths": ("run.sh", "runs.csv", "ds.json", "train.log", "trace.json", "nccl.txt", "gemm.csv"),
    "launch": ("run.sh", "ds.json"),
    "plan_file": ("plans.json",),
    "lengths": ("lengths.csv", "samples.jsonl:n", "mean=450"),
    "data": ("lengths.csv", "samples.jsonl:n"),
    "name": ("gpt2", "H100", "megatron-core"),
}

# What no option expects.
HOSTILE = (
    "", " ", "-", "--", "nan", "inf", "-inf", "1e400", "-1", "0", "1.5", "1,2,", ",", "..", "1..0",
    "9" * 25, "9" * 10_000, "a" * 5_000, "0x10", "1_000", "٣", "é", "\U0001f600", "%s%n", "{}",
    "${HOME}", "$(touch pwned)", "`touch pwned`", ".", "none.json", "/dev/null", "/dev/full",
    "x/" * 3_000, "name\nwith\nlines", "true", "None", "1e-400", "-0", "1/0", "2**63", "=", "a=",
    "=1", "__class__", "'", '"', "\\", "\t", "100%", "8xH100", "1M", "4Mi", "1e3",
)  # fmt: skip
_LETTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\0/")


def hostile_texts() -> st.SearchStrategy[str]:
    """Texts of the list, and any others."""
    return st.one_of(st.sampled_from(HOSTILE), st.text(_LETTERS, max_size=30))


def command_of(name: str) -> click.Command:
    """The command of a name."""
    with click.Context(planner_command) as ctx:
        found = planner_command.get_command(ctx, name)
    assert found is not None
    return found


def values(param: click.Parameter) -> st.SearchStrategy[str]:
    """Values of a parameter: what it takes, what lies at the ends of its range, and worse."""
    kind = param.type
    found: list[str] = list(_EXAMPLES.get(param.name or "", ()))
    if isinstance(kind, click.IntRange | click.FloatRange):
        low, high = kind.min, kind.max
        assert low is not None and high is not None, f"{param.name}: a range with two ends"
        found += [f"{low}", f"{low - 1}", f"{low + 1}", f"{high}", f"{high + 1}", f"{high * 2}"]
    elif isinstance(kind, click.Choice):
        found += [str(choice) for choice in kind.choices]
    elif isinstance(kind, Parsed):
        found += kind.examples
    else:
        plain = isinstance(kind, click.types.BoolParamType | click.types.StringParamType)
        assert plain, f"{param.name} has the type {kind}"
    known = st.sampled_from(found) if found else hostile_texts()
    return st.one_of(known, known, hostile_texts())


def option_words(param: click.Parameter) -> st.SearchStrategy[tuple[str, ...]]:
    """An option as it is given on the command line."""
    flag = st.sampled_from([*param.opts, *param.secondary_opts])
    if getattr(param, "is_flag", False):
        return flag.map(lambda name: (name,))
    return st.tuples(flag, values(param))


@st.composite
def command_lines(
    draw: st.DrawFn, names: Sequence[str] = tuple(name for name in COMMANDS if name not in LASTING)
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(all arguments, those of which a refusal speaks) of one of the commands."""
    name = draw(st.sampled_from(names))
    params = [param for param in command_of(name).params if param.name != "help"]
    chosen = draw(st.lists(st.sampled_from(params), min_size=1, max_size=3)) if params else []
    positional = dict(POSITIONAL.get(name, {}))
    drawn: list[str] = []
    for param in chosen:
        if isinstance(param, click.Argument):
            positional[str(param.name)] = draw(values(param))
        else:
            drawn += draw(option_words(param))
    # Something that is needed may be missing; what needs nothing would do all of its work.
    if name not in COMPLETE and draw(st.integers(0, 9)) == 0:
        return (name, *drawn), ()
    spellings = [spelling for param in chosen for spelling in (str(param.name), *param.opts)]
    # Behind `--` the options of a base are arguments, of which an error may name one.
    given = (*drawn, *positional.values(), *BASES[name], *spellings)
    return (name, *positional.values(), *BASES[name], *drawn), given
