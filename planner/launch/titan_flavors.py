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


# Catalogue name -> size in torchtitan 0.3.0, models/*/__init__.py, where it is the model in every
# field: tests/frameworks builds each and compares. Not here: Llama 3.2, whose frequencies the
# registry divides by 8, not 32; Qwen3-235B with another rotary base; DeepSeek with another epsilon.
FLAVORS = {
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
    "gpt-oss-20b": Flavor("gpt_oss", "20b", 131072),
    "gpt-oss-120b": Flavor("gpt_oss", "120b", 131072),
}
# Those that torchtitan 0.2.2 has too.
FLAVORS_0_2 = {name: flavor for name, flavor in FLAVORS.items() if flavor.module != "gpt_oss"}


def flavor_of(model: ModelSpec, flavors: dict[str, Flavor]) -> Flavor | None:
    """The registry's size of a catalogue model; None for any other, also one of the same name."""
    from planner.job.models.catalog import load_model, model_names

    if model.name not in flavors or model.name not in model_names():
        return None
    same = load_model(model.name).spec
    return flavors[model.name] if same == model else None
