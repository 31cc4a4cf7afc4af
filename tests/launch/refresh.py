"""Writes golden launch files, and the facts about Megatron's flags, anew.

    python -m tests.launch.refresh                       golden files
    python -m tests.launch.refresh --flags FLAGS.json    megatron_flags.json, from a list of
        {"flags": [...], "choices": [...] or null, "nargs": ...} dumped from Megatron's parser

Look at the difference before committing it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.launch.contract import Launch, NodesAs, RunCommand
from planner.launch.folder import launch_folder
from tests.launch.plans import BRIDGE, MEGATRON, costed

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
# Predictions change with the cost model; these files do not.
_PREDICTED = ("README.md", "plan.json", "measured.csv", "preflight.py")


def golden_launches() -> Mapping[str, Launch]:
    """Folder name below golden/ -> the launch that it holds."""
    wanted: tuple[tuple[str, str, NodesAs], ...] = (
        ("megatron-core", "uneven", "slurm"),
        ("megatron-core", "dense", "torchrun"),
        ("megatron-core", "latent-pipeline", "k8s"),
        ("megatron-core", "experts", "skypilot"),
        ("megatron-bridge", "uneven", "slurm"),
        ("megatron-bridge", "latent", "k8s"),
    )
    cases = {"megatron-core": MEGATRON, "megatron-bridge": BRIDGE}
    return {
        f"{target}-{name}-{nodes_as}": replace(
            costed(cases[target][name], target), nodes_as=nodes_as
        )
        for target, name, nodes_as in wanted
    }


def golden_files(launch: Launch) -> Mapping[str, str]:
    """The files of a launch that say nothing of predictions."""
    files = launch_folder(launch).files
    return {name: _kept(text) for name, text in files.items() if name not in _PREDICTED}


def _kept(text: str) -> str:
    """A file without its predictions: memory of the preflight, steps between checkpoints."""
    text = re.sub(r"MEMORY_GIB = [\d.]+", "MEMORY_GIB = ...", text)
    return re.sub(r"(save.interval[ =])\d+", r"\1...", text)


def all_words(command: RunCommand) -> list[str]:
    """Every word of a command, whatever the user sets."""
    branches = (word for branch in command.branches for word in (*branch.given, *branch.otherwise))
    return [*command.argv[1:], *branches]


def emitted_flags() -> set[str]:
    """Every option that any case writes."""
    from planner.launch.dialects.megatron import writer as megatron
    from tests.launch.plans import sharded

    launches = [costed(case) for case in MEGATRON.values()]
    launches += [sharded(launches[1], 3)]
    words = (word for launch in launches for word in all_words(megatron.command(launch)))
    return {word for word in words if word.startswith("--")}


def flag_facts(listed: list[dict[str, object]]) -> dict[str, object]:
    """Names, arity and choices of the emitted options."""
    known: dict[str, object] = {}
    wanted = emitted_flags()
    for entry in listed:
        names = entry["flags"]
        takes = {0: "switch", None: "value"}.get(entry["nargs"], "values")  # type: ignore[call-overload]
        choices = entry["choices"]
        for name in names if isinstance(names, list) else []:
            if name in wanted:
                found: dict[str, object] = {"takes": takes}
                if isinstance(choices, list):
                    found["choices"] = [
                        str(choice).rsplit(".", maxsplit=1)[-1] for choice in choices
                    ]
                known[name] = found
    return dict(sorted(known.items()))


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flags", type=Path)
    given = parser.parse_args()
    if given.flags:
        facts = flag_facts(json.loads(given.flags.read_text()))
        rows = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(fact)}" for name, fact in facts.items()
        )
        source = "megatron-core 0.19.2, megatron/training/arguments.py"
        text = f'{{"source": {json.dumps(source)}, "flags": {{\n{rows}\n}}}}\n'
        (HERE / "megatron_flags.json").write_text(text)
        return
    for name, launch in golden_launches().items():
        folder = GOLDEN / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for file, text in golden_files(launch).items():
            (folder / file).write_text(text)


if __name__ == "__main__":
    main()
