"""Tables of the reference as data: what the catalogue holds, options, columns, constants, rules."""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import click
from hardware.files import shipped_toml
from planner.cli.program import COMMANDS, planner_command
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.models.catalog import load_model, model_names
from planner.job.written import markdown_table
from planner.predict.ops.table import parameter_count
from planner.report.frameworks import offered_degrees
from planner.report.hardware import hardware_report
from planner.report.tables import TableData
from planner.search.frame import COLUMNS
from planner.tune.replay import LOOP, ORDER, TRIALS, ReplayReport
from pydantic import TypeAdapter
from tests.documents.data_tables import Column, DataTable

ROOT = Path(__file__).resolve().parents[1]


@cache
def replayed() -> ReplayReport:
    """What `planner tune --replay --json` found."""
    text = (ROOT / "docs" / "replay.json").read_text(encoding="utf-8")
    return TypeAdapter(ReplayReport).validate_json(text)


_GROUP_COLUMNS = (
    Column("doubt", "Whether the source contradicts runs of the group.", number=False),
    Column("group", "Source, model, GPUs, sequence, batch, precision, framework.", number=False),
    Column("runs", "Recorded runs of the group."),
    Column("out_of_memory", "Runs that ran out of memory."),
    Column("by", "Who chooses the trials: planner tune, or the order of the prediction.", False),
    *(Column(f"after_{count}", f"Regret after {count} trials, %.") for count in TRIALS),
)


def replay_groups() -> DataTable:
    """Regret of each group of runs after so many trials."""
    found = replayed()
    rows = [
        (doubt, group.group, str(group.runs), str(group.out_of_memory), words,
         *(f"{100 * group.regret[name][count]:.2f}" for count in TRIALS))
        for doubt, table in (("no", found.undoubted), ("yes", found.doubtful))
        for group in table.groups
        for name, words in ((LOOP, "tune"), (ORDER, "prediction"))
    ]  # fmt: skip
    return DataTable("replay-groups", "Regret by group of runs", _GROUP_COLUMNS, rows)


_CONSTANT_COLUMNS = (
    Column("constant", "Its name in the files of frameworks and efficiencies.", number=False),
    Column("of", "Whether step times or peaks of memory judge it.", number=False),
    Column("ships", "The value that ships."),
    Column("best_fit", "The value that fits its sources best."),
    Column("prior", "What was counted, or what the same mechanism has elsewhere."),
    Column("by_the_rule", "The best fit; half way to the prior where one source alone has a say."),
    Column("sources", "Number of sources that have a say."),
    Column("names", "These sources, where they are fewer than four.", number=False),
)


def constants() -> DataTable:
    """What every constant of whole steps and peaks rests on, single sources first."""
    text = (ROOT / "planner/evidence/data/held_out_errors.toml").read_text(encoding="utf-8")
    found = sorted(
        tomllib.loads(text)["constant"].items(), key=lambda item: (len(item[1]["sources"]), item[0])
    )
    rows = [
        (
            name,
            one["figure"],
            *(f"{one[number]:.3g}" for number in ("value", "fitted", "prior", "shrunk")),
            str(len(one["sources"])),
            ", ".join(one["sources"]) if len(one["sources"]) < 4 else "",
        )
        for name, one in found
    ]
    return DataTable("constants", "Fitted constants and their sources", _CONSTANT_COLUMNS, rows)


_RULE_COLUMNS = (
    Column("framework", "Framework.", number=False),
    Column("packing", "Values of --packing, the usual one first; how packs are made.", False),
    Column("balance", "Values of --balance; empty if it has none.", number=False),
    Column("source", "Where this is from.", number=False),
)


def sample_rules() -> DataTable:
    """What each framework does with samples, from samples.toml."""
    rows = [
        (
            name,
            ", ".join(
                f"{rule} ({how})" if how != "none" else rule
                for rule, how in row["packings"].items()
            ),
            ", ".join(row.get("balances", ())),
            row["source"],
        )
        for name, row in shipped_toml("planner.job", "samples.toml").items()
    ]
    return DataTable("sample-rules", "What frameworks do with samples", _RULE_COLUMNS, rows)


_FRAME_COLUMNS = (
    Column("column", "Name of the column.", number=False),
    Column("unit", "Unit; empty for counts, names, lists and truth values.", number=False),
    Column("meaning", "What it holds.", number=False),
)


def frame_columns() -> DataTable:
    """Columns of `SearchResult.to_frame()`."""
    rows = [(name, unit, words) for name, (unit, words) in COLUMNS.items()]
    return DataTable("frame-columns", "Columns of to_frame", _FRAME_COLUMNS, rows)


_OPTION_COLUMNS = (
    Column("option", "Option and what it takes.", number=False),
    Column("meaning", "What it does.", number=False),
    Column("group", "Its heading in --help.", number=False),
    Column("commands", "Commands that have it.", number=False),
)


@cache
def options() -> DataTable:
    """Options of every command; one row where commands share an option and its words."""
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for command in COMMANDS:
        for option, words, group in _options_of(command):
            found.setdefault((option, words), (group, []))[1].append(f"planner {command}")
    rows = [(*key, group, ", ".join(names)) for key, (group, names) in found.items()]
    return DataTable("options", "Options of all commands", _OPTION_COLUMNS, rows)


def _options_of(name: str) -> Iterator[tuple[str, str, str]]:
    from planner.cli.declared import grouped, help_row  # noqa: PLC0415

    context = click.Context(planner_command, info_name="planner")
    command = planner_command.get_command(context, name)
    if command is None:
        raise ValueError(f"no command {name}")
    inner = click.Context(command, info_name=name, parent=context)
    for title, members in grouped(command, inner).items():
        for record in (help_row(option, inner) for option in members):
            if record:
                option, words = record
                yield option, " ".join(words.split()), title


_GPU_COLUMNS = (
    Column("gpu", "Name that --gpus takes.", number=False),
    Column("tflops_16_bit", "Dense 16-bit peak of the data sheet, TFLOP/s."),
    Column("tflops_fp8", "Dense fp8 peak, TFLOP/s; empty if the GPU has no fp8."),
    Column("hbm_gib", "Memory that torch can use, GiB."),
    Column("hbm_tb_per_s", "Bandwidth of the memory, TB/s."),
    Column("link_gb_per_s", "Link to other GPUs of its domain, GB/s in one direction."),
    Column("domain_gpus", "GPUs of a domain in the usual node."),
    Column("power_w", "Power limit, W."),
)
_SHAPE_COLUMNS = (
    Column("node_shape", "Name that --gpus takes.", number=False),
    Column("node", "GPUs of a node.", number=False),
    Column("domain_gpus", "GPUs that fast links join."),
    Column("nics", "Network cards of a node.", number=False),
    Column("fabric", "Network between nodes.", number=False),
)
_FRAMEWORK_COLUMNS = (
    Column("framework", "Name that --framework takes.", number=False),
    Column("what", "What it is.", number=False),
    Column(
        "launch", "Files that planner launch writes for it; empty if it writes none.", number=False
    ),
    Column("degrees", "Degrees beside dp.", number=False),
    Column("zero_stages", "Stages of ZeRO.", number=False),
    Column("precisions", "Values of --precision.", number=False),
)
_MODEL_COLUMNS = (
    Column("model", "Name that --model takes.", number=False),
    Column("parameters", "Parameters, in billions."),
    Column("active", "Parameters that a token meets, in billions."),
    Column("layers", "Layers."),
    Column("hidden", "Width of the layers."),
    Column("heads", "Attention heads."),
    Column("kv", "Heads of keys and values; MLA: latent attention.", number=False),
    Column("experts", "Experts of a layer; empty for dense models."),
    Column("seq", "Length of a pretraining sequence, tokens."),
)


_VERDICTS = ("prediction", "right refusal", "wrong", "cannot tell")
_HALF_COLUMNS = (
    Column("half", "Draw of files: held-out ones were judged before anything was mended.", False),
    Column("files", "Files drawn."),
    *(
        Column(
            f"{when}_{verdict.replace(' ', '_')}", f"Files with the verdict {verdict!r} {words}."
        )
        for when, words in (("first", "as first judged"), ("now", "today"))
        for verdict in _VERDICTS
    ),
)


def public_files() -> DataTable:
    """Verdicts on public launch files, by draw."""
    with (ROOT / "docs/data/public-launch-files.csv").open(encoding="utf-8", newline="") as file:
        files = list(csv.DictReader(file))
    rows = []
    for half in dict.fromkeys(one["half"] for one in sorted(files, key=_half)):
        drawn = [one for one in files if one["half"] == half]
        counts = (Counter(one[column] for one in drawn) for column in ("first verdict", "verdict"))
        cells = (str(found[verdict]) for found in counts for verdict in _VERDICTS)
        rows.append((half, str(len(drawn)), *cells))
    return DataTable("public-files", "Verdicts by draw", _HALF_COLUMNS, rows)


def _half(row: Mapping[str, str]) -> int:
    """The number of a draw; 0 for the one that was used while the readers were written."""
    return int(row["half"].rpartition(" ")[2]) if " " in row["half"] else 0


def public_file_tables() -> str:
    """Verdicts on all held-out files, and the link to those by draw."""
    table = public_files()
    held_out = [row for row in table.rows if row[0].startswith("held-out")]
    total = [sum(int(row[at]) for row in held_out) for at in range(1, len(table.columns))]
    rows = [("as first judged", *total[1:5]), ("today", *total[5:])]
    titles = (f"{total[0]:,} held-out files", *_VERDICTS)
    shown = markdown_table(titles, [tuple(map(str, row)) for row in rows], range(1, 5))
    return f"{shown}\n\n{table.link()}\n"


def catalogue() -> list[DataTable]:
    """GPUs, node shapes, frameworks and models."""
    blocks = hardware_report().blocks
    gpus, shapes = (block.rows for block in blocks if isinstance(block, TableData))
    return [
        DataTable("gpus", "GPUs", _GPU_COLUMNS, gpus),
        DataTable("node-shapes", "Node shapes", _SHAPE_COLUMNS, shapes),
        DataTable("frameworks", "Frameworks", _FRAMEWORK_COLUMNS, [*_frameworks()]),
        DataTable("models", "Models", _MODEL_COLUMNS, [*_models()]),
    ]


def catalogue_links(name: str) -> str:
    """The paragraphs of the page for one table, or two."""
    wanted = {"hardware": ("gpus", "node-shapes")}.get(name, (name,))
    tables = {table.name: table for table in catalogue()}
    return "\n\n".join(tables[one].link("../") for one in wanted) + "\n"


def _frameworks() -> Iterator[tuple[str, ...]]:
    for profile in map(load_framework, framework_names()):
        if profile.listed:
            yield (
                profile.name,
                profile.summary,
                profile.launch.target,
                " ".join(offered_degrees(profile)),
                " ".join(map(str, sorted(profile.parallelism.zero_stages))),
                " ".join(profile.precisions),
            )


def _models() -> Iterator[tuple[str, ...]]:
    for name in model_names():
        spec = load_model(name).spec
        count = parameter_count(spec)
        yield (
            name,
            *(f"{one / 1e9:.4g}" for one in (count.total, count.active)),
            *(str(number) for number in (spec.layers, spec.hidden, spec.heads)),
            "MLA" if spec.mla else str(spec.kv_heads),
            str(spec.moe.experts) if spec.moe else "",
            str(spec.pretraining_seq),
        )
