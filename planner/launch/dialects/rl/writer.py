"""Writers for verl, NeMo-RL and TRL: configuration files, a script and a README.

A framework's `NAME_written.toml` has tables of rows. If a row's condition `when` is true, the keys
under `set` are set, below the table `in`. A text is an expression over `_names`, any other value is
used as it is, and braces in keys are filled in. A row with `use` inserts the rows of the table of
that name, which may refer to the row's other fields. `variables`: those of the script; `version`:
releases that the files are written for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.job.job import Job
from planner.launch import sentences
from planner.launch.contract import Files, Refusal
from planner.launch.dialects.hf.tuning_words import (
    alpha,
    loaded_dtype,
    target_modules,
    tuning_refusals,
    whole_modules,
)
from planner.launch.dialects.rl import shell
from planner.launch.dialects.rl.nemo import BASE
from planner.launch.dialects.rl.readme import readme
from planner.launch.quoting import comment_text, shell_word, yaml_dumped
from planner.launch.registry import dialect_toml
from planner.launch.rl import Asked, RlLaunch, names_of

Settings = dict[str, Any]
SCRIPT = "run.sh"
_NEMO_CONFIG, _TRL_CONFIG, _ACCELERATE = "nemo_rl.yaml", "trl.yaml", "accelerate.yaml"
_VERL_TRAINERS = {"hf-fsdp2": "fsdp2", "fsdp1": "fsdp", "megatron-core": "megatron"}
_VERL_PROGRAMS = {
    "colocated": "verl.trainer.main_ppo",
    "one-step-off": "verl.experimental.one_step_off_policy.main_ppo",
    "fully-async": "verl.experimental.fully_async_policy.fully_async_main",
}
_SIXTEEN_BITS = 2


def files(launch: RlLaunch) -> Files:
    """All files of the folder except the plan."""
    writers = {"verl": _verl, "nemo-rl": _nemo, "trl": _trl}
    return writers[launch.job.framework.name](launch)


def asked(launch: RlLaunch) -> Asked:
    """Variables of the script: (default, meaning) by name."""
    rows = sentences.holding("rl", "variables", _names(launch), _file(launch))
    return {row["name"]: (row.get("default", ""), row["meaning"]) for row in rows}


def settings_of(launch: RlLaunch, table: str = "settings") -> Settings:
    """The settings in a table of the framework, by dotted key, in order."""
    return dict(_set(dialect_toml("rl", _file(launch)), table, _names(launch)))


def _file(launch: RlLaunch) -> str:
    return f"{launch.job.framework.name.removesuffix('-rl')}_written.toml"


def _set(
    tables: Mapping[str, Any], title: str, names: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    for row in tables[title]:
        if not sentences.holds(row.get("when"), names):
            continue
        if "use" in row:
            yield from _set(tables, row["use"], {**names, **row})
        for name, value in row.get("set", {}).items():
            key = sentences.filled_in(f"{row['in']}.{name}" if "in" in row else name, names)
            # With a plus before the whole key, Hydra adds keys that its configuration lacks.
            key = f"+{key.replace('+', '')}" if "+" in key else key
            yield key, sentences.evaluated(value, names) if isinstance(value, str) else value


def _names(launch: RlLaunch) -> dict[str, Any]:
    """Names that rows may use."""
    job, layout, degrees = launch.job, launch.layout, launch.degrees
    trainer = layout.trainer.job
    stated, usual = trainer.optimizer.gradient_bytes, trainer.framework.state.gradient_bytes
    reading = job.token_limit_read or launch.token_limit
    return (
        names_of(launch)
        | _adapters(job.trainer)
        | {
            "algorithm": job.algorithm,
            "accumulated": job.rollout.samples // job.minibatches // (degrees.mbs * degrees.dp),
            "compares": job.reference != "none",
            "kind": _kind(launch),
            "strategy": _VERL_TRAINERS.get(job.trainer.framework.name),
            "packs": job.trainer.samples.packing != "longest",
            "recomputes": launch.recomputes != "none",
            "offloaded": trainer.optimizer_offload,
            "reduces_in_bf16": (usual if stated is None else stated) == _SIXTEEN_BITS,
            "tokens_per_gpu": -(-launch.token_limit // degrees.cp),
            "read_tokens_per_gpu": -(-reading // degrees.cp),
            "nodes": launch.nodes_of(layout.gpus),
            "trainer_nodes": launch.nodes_of(layout.trainer_gpus),
            "engine_nodes": launch.nodes_of(layout.engine.gpus),
        }
    )


def _adapters(job: Job) -> dict[str, Any]:
    """Names for the rows of a framework's tables: settings of the trainer's adapters, and
    `loaded_dtype`, the dtype in which the weights are loaded."""
    tuning = job.tuning
    return {
        "loaded_dtype": loaded_dtype(job),
        "alpha": round(alpha(tuning)),
        "targets": list(target_modules(tuning, job.model)) if tuning.has_adapters else [],
        "whole": list(whole_modules(tuning, job.model)),
    }


def refusals(launch: RlLaunch) -> Iterator[Refusal]:
    """Adapters that TRL cannot express. Other refusals are rows of `launch.toml`."""
    if launch.job.framework.name == "trl":
        yield from tuning_refusals(launch.job.trainer, freezes=False)


def _kind(launch: RlLaunch) -> str:
    """The kind of verl program to start: colocated, one-step-off or fully-async."""
    if not launch.separate:
        return "colocated"
    return "fully-async" if launch.layout.streams or launch.layout.staleness > 1 else "one-step-off"


def _folder(
    launch: RlLaunch, title: str, lines: list[str], configs: Files, *more: str
) -> dict[str, str]:
    """Configurations, the script and the README. `more`: further paragraphs of the README."""
    title = f"{launch.job.policy.name} by {launch.job.algorithm.name} with {title}"
    variables, version = asked(launch), str(dialect_toml("rl", _file(launch))["version"])
    head = f"# {comment_text(title)}\n"
    return {
        **{name: f"{head}{text}\n" for name, text in configs.items()},
        SCRIPT: shell.script(title, variables, lines),
        "README.md": readme(launch, SCRIPT, variables, version, more),
    }


def _nested(settings: Settings) -> str:
    """Settings with dotted keys as nested YAML."""
    nested: Settings = {}
    for key, value in settings.items():
        place = nested
        *tables, name = key.split(".")
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = value
    return yaml_dumped(nested)


def _verl(launch: RlLaunch) -> Files:
    kind = _kind(launch)
    written = {key: "null" if one is None else one for key, one in settings_of(launch).items()}
    arguments = [f"{key}={value}" for key, value in written.items()]
    if kind != "colocated" and _names(launch)["strategy"] == "megatron":
        # These programs use another configuration for Megatron.
        name = f"--config-name={kind.replace('-', '_')}_ppo_megatron_trainer.yaml"
        arguments = ["--config-path=config", name, *arguments]
    command = shell.command(("python3", "-m", _VERL_PROGRAMS[kind]), arguments)
    return _folder(launch, f"verl, {kind}", [f'{command} \\\n    "$@"'], {})


def _nemo(launch: RlLaunch) -> Files:
    names = [f"policy.{name}=${{MODEL_PATH}}" for name in ("model_name", "tokenizer.name")]
    program = ("uv", "run", "examples/run_grpo.py", "--config", "${HERE}/" + _NEMO_CONFIG)
    lines = [
        "# The configuration inherits from NeMo-RL's own, which has to lie beside it.",
        f'cp "${{NEMO_RL}}/examples/configs/{BASE}" .',
        'HERE="$(pwd)"',
        'cd "${NEMO_RL}"',
        f'{shell.command(program, names)} \\\n    "$@"',
    ]
    config = _nested({"defaults": BASE, **settings_of(launch)})
    return _folder(launch, "NeMo-RL", lines, {_NEMO_CONFIG: config})


def _trl(launch: RlLaunch) -> Files:
    configs = {
        _TRL_CONFIG: _nested(settings_of(launch)),
        _ACCELERATE: _nested(settings_of(launch, "accelerate")),
    }
    started = _trl_start(launch)
    if not launch.separate:
        return _folder(launch, "TRL", [started], configs)
    serve = [f"{key}={value}" for key, value in settings_of(launch, "serve").items()]
    serving = shell.command(("trl", "vllm-serve"), serve).replace("\n", "\n    ")
    lines = ['if [ "${1:-train}" = serve ]; then', f"    exec {serving}", "fi", started]
    first = f"Start the server first, on its own GPUs: `bash {SCRIPT} serve`."
    return _folder(launch, "TRL", lines, configs, first)


def _trl_start(launch: RlLaunch) -> str:
    """The command that starts training, with the user's variables."""
    nodes, _ = launch.nodes_of(launch.layout.trainer_gpus)
    options = ["--config_file", _ACCELERATE, "--num_processes", str(launch.layout.trainer_gpus)]
    if nodes > 1:
        options += ["--num_machines", str(nodes), "--machine_rank", "${NODE_RANK}",
                    "--main_process_ip", "${MAIN_ADDRESS}"]  # fmt: skip
    program = "rloo" if launch.job.algorithm.name == "rloo" else "grpo"
    start = ("accelerate", "launch", *options, "--module", f"trl.scripts.{program}")
    arguments = {"--config": _TRL_CONFIG, "--model_name_or_path": "${MODEL_PATH}",
                 "--dataset_name": "${DATASET}", "--reward_funcs": "${REWARD_FUNCS}"}  # fmt: skip
    if launch.separate:
        arguments["--vllm_server_host"] = "${SERVER_HOST}"
    pairs = (" ".join(map(shell_word, pair)) for pair in arguments.items())
    return " \\\n    ".join((shell.command(start, ()), *pairs, '"$@"'))
