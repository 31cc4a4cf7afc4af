"""Models that torchtitan has under a name of its own."""

from __future__ import annotations

from dataclasses import dataclass

from planner.job.specs import ModelSpec


@dataclass(frozen=True, slots=True)
class Flavor:
    """A size in torchtitan's registry. `longest`: positions that its rotary cache allows."""

    module: str
    name: str
    longest: int


# Catalogue name -> size in torchtitan 0.3.0, models/*/__init__.py. tests/frameworks builds each
# and counts its parameters.
FLAVORS = {
    "llama-3.2-1b": Flavor("llama3", "1B", 131072),
    "llama-3.2-3b": Flavor("llama3", "3B", 131072),
    "llama-3.1-8b": Flavor("llama3", "8B", 131072),
    "llama-3.1-70b": Flavor("llama3", "70B", 131072),
    "llama-3.3-70b": Flavor("llama3", "70B", 131072),
    "llama-3.1-405b": Flavor("llama3", "405B", 131072),
    "qwen3-0.6b": Flavor("qwen3", "0.6B", 40960),
    "qwen3-1.7b": Flavor("qwen3", "1.7B", 40960),
    "qwen3-4b": Flavor("qwen3", "4B", 40960),
    "qwen3-8b": Flavor("qwen3", "8B", 40960),
    "qwen3-14b": Flavor("qwen3", "14B", 40960),
    "qwen3-32b": Flavor("qwen3", "32B", 40960),
    "qwen3-30b-a3b": Flavor("qwen3", "30B-A3B", 40960),
    "qwen3-235b-a22b": Flavor("qwen3", "235B-A22B", 40960),
    "deepseek-v2-lite": Flavor("deepseek_v3", "16B", 16384),
    "deepseek-v2": Flavor("deepseek_v3", "236B", 16384),
    "deepseek-v3": Flavor("deepseek_v3", "671B", 16384),
}
# Those that torchtitan 0.2.2 has too.
FLAVORS_0_2 = {
    name: own
    for name, own in FLAVORS.items()
    if (own.module, own.name) not in {("llama3", "1B"), ("llama3", "3B")}
}


def flavor_of(model: ModelSpec, flavors: dict[str, Flavor]) -> Flavor | None:
    """The registry's size of a catalogue model; None for any other, also one of the same name."""
    from planner.job.models.catalog import load_model, model_names

    if model.name not in flavors or model.name not in model_names():
        return None
    # MTP is an option of the registry's sizes.
    same = load_model(model.name).spec.model_copy(update={"mtp_layers": model.mtp_layers})
    return flavors[model.name] if same == model else None
