"""Writer for torchtitan 0.3: a Python module with a function that returns the configuration.

`python -m torchtitan.train --module planned_run --config planned` imports it from the folder in
which it is started. A model is a size of the registry or is written out: Llama-like models with
grouped-query attention from torchtitan's Qwen3 block (query/key norm and experts are options of
it), latent attention from its DeepSeek-V3 block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any

from planner.job.job import Job
from planner.job.specs import ModelSpec
from planner.launch import contract, sentences
from planner.launch.architecture import all_settings, moe_indices, scaling_kind
from planner.launch.architecture import refusals as refused_fields
from planner.launch.dialects.torchtitan.plan import (
    BF16_STATES,
    SAMPLES,
    plan_refusals,  # noqa: F401 (the writers' contract)
    recompute_kind,
    sample_files,
    sections,
)
from planner.launch.dialects.torchtitan.table import Flavor, flavor_of, titan_table
from planner.launch.quoting import Code, Value, python_value
from planner.launch.registry import dialect_toml
from planner.launch.settings_text import (
    SettingsSection,
    WrittenSetting,
    comment,
    filled,
    python_arguments,
    section_choices,
)
from planner.launch.time_limit import save_steps

_WORDS = dialect_toml("torchtitan", "launch.toml")


def registry_size(launch: contract.Launch) -> Flavor | None:
    """The registry's size that equals the plan's model, if its rotary cache is long enough; else
    None."""
    size = flavor_of(launch.job.model)
    return size if size and launch.plan.seq <= size.longest else None


def model_text(launch: contract.Launch) -> str:
    """Python text that defines `model_spec()`, and the layers if the model is not a registered
    size."""
    size, model = registry_size(launch), launch.job.model
    if size:
        about = comment(f"{model.name}: a size of torchtitan's registry.")
        return filled("torchtitan/registered.py.txt", about=about, size=size.name)
    names = _names(model)
    values, kind = names["values"], "latent" if model.mla else "grouped"
    shared = f"\nROPE_THETA, NORM_EPS = {values['rope_theta']}, {values['norm_eps']}\n"
    filled_in = _said("layers", names) | _said(kind, names)
    return shared + _text(kind, **filled_in) + _text("spec", **_said("spec", names))


def _said(table: str, names: Mapping[str, Any]) -> dict[str, Value]:
    """The values of a template, from a table of `templates/values.toml`."""
    rows = dialect_toml("torchtitan", "templates/values.toml")[table]
    return {key: sentences.evaluated(text, names) for key, text in rows.items()}


def _names(model: ModelSpec) -> dict[str, Any]:
    """Names that `templates/values.toml` may use."""
    stated = all_settings(titan_table(model), model)
    values = {key: value for key, (value, _) in stated.items()}
    lists = dialect_toml("torchtitan", "templates/values.toml")["names"]
    kinds = {kind.ffn for kind in model.kinds}

    def arguments(listed: Sequence[str], before: str = "") -> list[str]:
        known = (name for name in listed if name in values)
        return [f"{before}{name}={python_value(values[name])}," for name in known]

    names: dict[str, Any] = {
        **lists,
        "arguments": arguments,
        "code": Code,
        "expert_constants": _expert_constants(model),
        "ffn": _WORDS["ffn"]["both" if len(kinds) > 1 else min(kinds)],
        "kind": scaling_kind(model),
        "kinds": kinds,
        "model": model,
        "part": lambda name, /, **values: _text(name, **values).splitlines(),
        "stretched": any(name in values for name in lists["llama3"]),
        "values": values,
        "whole": _text,
    }
    return names | {"experts": lambda: _said("experts", names)}


def _text(name: str, /, **values: Value) -> str:
    return filled(f"torchtitan/{name}.py.txt", **values)


def _expert_constants(model: ModelSpec) -> list[str]:
    if model.moe is None:
        return []
    moe, indices = model.moe, moe_indices(model)
    first, step = indices[0], indices[1] - indices[0] if len(indices) > 1 else 1
    regular = tuple(range(first, model.layers, step)) == indices
    where = f"range({first}, LAYERS, {step})" if regular else repr(set(indices))
    return [
        f"EXPERTS, TOP_K, EXPERT_FFN = {moe.experts}, {moe.top_k}, {moe.ffn}",
        f"EXPERT_LAYERS = {where}",
    ]


VERSION = "0.3.0"
MODULE, FUNCTION = "planned_run", "planned"


def job_refusals(job: Job) -> Iterator[contract.Refusal]:
    """Parts of the job that torchtitan 0.3 cannot express."""
    model, table = job.model, titan_table(job.model)
    yield from refused_fields(table, model, "torchtitan 0.3", "--framework megatron-core")
    names = sentences.names_of_job(job) | {"half": dict(job.optimizer.states) == BF16_STATES}
    yield from sentences.said_refusals("torchtitan", "model_refusals", names)
    yield from contract.length_refusals(job)
    yield from sentences.said_refusals("torchtitan", "job_refusals", names)


def files(launch: contract.Launch) -> contract.Files:
    """The module with the configuration, and sample data."""
    return {f"{MODULE}.py": _module(launch), **sample_files()}


def command(launch: contract.Launch) -> contract.RunCommand:
    """torchtitan's trainer with the module."""
    return contract.RunCommand(
        argv=(
            *("-m", "torchtitan.train", "--module", MODULE, "--config", FUNCTION),
            *("--training.steps", "${TRAIN_STEPS}"),
        ),
        environment=sentences.said_environment("torchtitan", "environment", launch),
        variables=sentences.said_variables("torchtitan", launch, size=registry_size(launch)),
    )


def choices(launch: contract.Launch) -> Iterator[contract.ExplainedSetting]:
    """The settings that deserve an explanation."""
    size = registry_size(launch)
    yield contract.ExplainedSetting(
        "model_spec()",
        f"torchtitan's own {size.module} {size.name}"
        if size
        else "written out: no size in torchtitan's registry equals this model in every setting",
    )
    if launch.job.precision in _WORDS["converters"]:
        yield contract.ExplainedSetting(
            f"converters = {launch.job.precision}", _converter_reason(launch)
        )
    yield from section_choices(sections(launch))


def requirements(launch: contract.Launch) -> tuple[str, ...]:
    """Packages and versions that the module is written for."""
    return sentences.said_needs("torchtitan", "needs", launch)


def _recompute(launch: contract.Launch) -> tuple[str, str]:
    """(Python expression for `activation_checkpoint`, the reason for it)."""
    expression, why = _WORDS["checkpointing"][recompute_kind(launch)]
    budget = launch.job.framework.recompute_mode(launch.plan.recompute).budget
    return expression.format(budget=budget), why


# --- the file -------------------------------------------------------------------------------


def _module(launch: contract.Launch) -> str:
    parts = {section.title: section for section in sections(launch)}
    recompute, recompute_why = _recompute(launch)
    loss = "MTPLoss" if launch.job.model.mtp_layers else "CrossEntropyLoss"
    tables = {
        name: python_arguments(parts[name].settings, 12)
        for name in ("parallelism", "training", "compile")
    }
    return filled(
        "torchtitan/module.py.txt",
        version=VERSION,
        model=launch.job.model.name,
        gpus=launch.plan.degrees.gpus,
        gpu=launch.job.cluster.gpu.name,
        function=Code(FUNCTION),
        imports=_imports(launch),
        converters=_converters(launch),
        model_lines=model_text(launch),
        optimizer=python_assignments(parts["optimizer"]),
        recompute=[*comment(recompute_why, 8), f"        activation_checkpoint={recompute},"],
        loss=Code(f"{loss}.Config(global_vocab_size={launch.job.model.vocab})"),
        in_hf=registry_size(launch) is not None,
        samples=SAMPLES,
        save_steps=save_steps(launch),
        **tables,
    )


def python_assignments(section: SettingsSection) -> list[str]:
    """Lines of Python that set the section's settings as attributes of an object that exists
    already, each after a comment with its reason."""
    lines: list[str] = []
    for setting in section.settings:
        lines += comment(setting.why, 4) if setting.why else []
        lines.append(f"    {section.title}.{setting.key} = {python_value(setting.value)}")
    return lines


def _imports(launch: contract.Launch) -> list[str]:
    """Import statements, sorted by module."""
    model, size = launch.job.model, registry_size(launch)
    statements = dialect_toml("torchtitan", "templates/imports.toml")
    wanted = ["always", "predicting" if model.mtp_layers else "plain", recompute_kind(launch)]
    wanted += [] if size else ["latent" if model.mla else "grouped"]
    wanted += ["tied"] if size is None and model.tied_embeddings else []
    lines = [line for name in wanted for line in statements.get(name, ())]
    if size:
        lines.append(f"from torchtitan.models.{size.module} import model_registry")
    if quantisers := _quantisers(launch):
        names = ", ".join(name for name, _ in quantisers)
        lines.append(f"from torchtitan.components.quantization import {names}")
    first = ["import os", *([] if size else ["from functools import partial"]), ""]
    return [
        *first,
        *([] if size else ["import torch.nn as nn"]),
        *"\n".join(sorted(lines)).split("\n"),
    ]


def _quantisers(launch: contract.Launch) -> list[tuple[str, tuple[WrittenSetting, ...]]]:
    """The names of torchtitan's converters for the precision, with their arguments; empty if it
    needs none. The last one, for experts, is left out for a model without experts."""
    named = [
        (name, tuple(starmap(WrittenSetting, arguments.items())))
        for name, arguments in _WORDS["converters"].get(launch.job.precision, {}).items()
    ]
    return named if launch.job.model.moe else named[:1]


def _converter_reason(launch: contract.Launch) -> str:
    what = "products and those of the experts" if launch.job.model.moe else "products"
    return f"{what} in {launch.job.precision}; output projection and router stay in bf16"


def _converters(launch: contract.Launch) -> list[str]:
    quantisers = _quantisers(launch)
    if not quantisers:
        return ["", "# Products in bf16.", "CONVERTERS = []"]
    lines = ["", *comment(_converter_reason(launch)), "CONVERTERS = ["]
    for name, arguments in quantisers:
        lines += [f"    {name}.Config(", *python_arguments(arguments, 8), "    ),"]
    return [*lines, "]"]
