"""Combinations of options that Megatron-LM refuses at the start or only at run time.

Rules over degrees (divisibility, batch, experts) are in `constraints`. The rules over options are
in rules.toml, except those here that a row of it cannot express. Source of all: megatron-core
0.19.2, training/arguments.py (validate_args), transformer_config.py (__post_init__),
parallel_state.py (initialize_model_parallel), core/num_microbatches_calculator.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner.launch.dialects.megatron.arguments import Arguments
from planner.launch.dialects.megatron.options import MEGATRON, MEGATRON_RECOMPUTE
from planner.launch.dialects.megatron.settings import FINE_GRAINED, FRACTION
from planner.launch.dialects.megatron.table import option
from planner.launch.read.found import Edit, Problem, Severity
from planner.launch.registry import dialect_toml

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True)
class MegatronFacts:
    """The input of the rules: options, degrees, and the environment of the command."""

    arguments: Arguments
    degrees: Mapping[str, int]
    environment: dict[str, str]
    command_place: str
    # A plain list of options says nothing about the environment of the command.
    has_command: bool = True


# A rule of rules.toml, whose header comment explains its fields.
Row = Mapping[str, Any]


@cache
def _rows() -> tuple[Row, ...]:
    table = dialect_toml("megatron", "rules.toml")
    needs = (
        {"rule": rule, "given": [name], "needs": needs} for rule, name, *needs in table["needs"]
    )
    others = table["rule"].items()
    return (*needs, *({"rule": rule, **row} for rule, rows in others for row in rows))


@cache
def refused_everywhere() -> frozenset[str]:
    """Names of the rules that hold for every variant of Megatron."""
    return frozenset(row["rule"] for row in _rows() if "everywhere" in row) | _OF_EVERY


def option_problems(facts: MegatronFacts) -> list[Problem]:
    """The problems that all rules find. The rules do not change which options count as used: one
    that no other code reads is still reported as unused."""
    used = set(facts.arguments.used)
    found = [problem for row in _rows() if (problem := _broken(row, facts))]
    found += [problem for rule in _RULES for problem in rule(facts)]
    facts.arguments.used = used
    return found


def _broken(row: Row, facts: MegatronFacts) -> Problem | None:
    """The problem if the rule of a row is broken, else None."""
    given, needs, excludes = row["given"], row.get("needs", ()), row.get("excludes", {})
    if not all(_holds(what, facts) for what in given):
        return None
    excluded = [words for words, what in excludes.items() if _holds(what, facts)]
    if any(_holds(what, facts) for what in needs) or (excludes and not excluded):
        return None
    text, first, fix = row.get("text", ""), given[0].split()[0], row.get("fix", "")
    added = row.get("set", {})
    if needs:
        one, *others = needs
        text = f"--{first} needs --{one}" + (f" (or --{others[0]})" if others else "")
        added = {} if fix else {one: ""}
    if excluded:
        text = f"--{first} excludes {', '.join(excluded)}"
    edits = [Edit(_key(name), value) for name, value in added.items()]
    edits += [Edit(_key(name), None) for name in row.get("leave_out", ())]
    at = row.get("at") or [what.split()[0] for what in given if " != " not in what]
    places = (facts.command_place,) if at[0][0] == "$" else facts.arguments.place(*at)
    severity, late = row.get("severity", "error"), row.get("late", False)
    return Problem(row["rule"], text, severity, places, fix, tuple(edits), late)


def _key(name: str) -> str:
    return name if name[0] == "$" else f"--{name}"


def _holds(what: str, facts: MegatronFacts) -> bool:
    """Whether a condition of rules.toml, such as `no NAME`, `NAME > 1`, `NAME has VALUE` or `NAME =
    VALUE`, is true for a launch. A bare NAME: whether that option is given."""
    arguments = facts.arguments
    match what.split():
        case ["no", name]:
            return not arguments.has(name)
        case [name, ">", least]:
            return (facts.degrees.get(name) or arguments.real(name)) > int(least)
        case [name, ("has" | "lacks") as how, value]:
            return (value in arguments.many(name)) == (how == "has")
        case [name, ("=" | "!=") as how, value]:
            return (_value(name, facts) == value) == (how == "=")
        case _:
            return arguments.has(what)


def _value(name: str, facts: MegatronFacts) -> str | None:
    if name[0] == "$":
        return facts.environment.get(name[1:])
    degree = facts.degrees.get(name)
    return facts.arguments.text(name) if degree is None else str(degree)


Rule = Callable[[MegatronFacts], Iterator[Problem]]


def _recompute(facts: MegatronFacts) -> Iterator[Problem]:
    arguments, rule = facts.arguments, "recompute-method"
    names = ("recompute", "recompute-method", "recompute-layers")
    whole, how, count = (MEGATRON_RECOMPUTE[name].name for name in names)
    granularity, method = arguments.text(whole), arguments.text(how)
    layers = arguments.number(count)
    if granularity == "selective" and method:
        text = f"--{whole} selective takes no --{how}"
        yield arguments.problem(rule, text, whole, how, edits=(Edit(f"--{how}", None),))
    # Method `block` with 0 layers recomputes nothing.
    counted = bool(layers) or (method, layers) == ("block", 0)
    if granularity == "full" and not (method and counted):
        usual = {how: None if method else "uniform", count: None if counted else "1"}
        edits = tuple(Edit(f"--{name}", value) for name, value in usual.items() if value)
        text = f"--{whole} full needs {' and '.join(edit.key for edit in edits)}"
        yield arguments.problem(rule, text, whole, edits=edits)


def _connections(facts: MegatronFacts) -> Iterator[Problem]:
    """Check CUDA_DEVICE_MAX_CONNECTIONS. It orders kernel launches, which tensor and context
    parallelism need before Blackwell and FSDP must not have."""
    arguments = facts.arguments
    value = facts.environment.get(CONNECTIONS)
    shards = arguments.has(MEGATRON["fsdp"].name) or arguments.has("use-torch-fsdp2")
    rule, places = "cuda-device-max-connections", (facts.command_place,)
    if shards and value == "1":
        text = f"{CONNECTIONS}=1 is refused with FSDP: its collectives must overlap with compute"
        yield Problem(rule, text, "error", places, f"unset {CONNECTIONS}")
    elif not shards and max(facts.degrees["tp"], facts.degrees["cp"]) > 1 and value != "1":
        seen = f"is {value}" if value else "is not set in the files"
        text = f"{CONNECTIONS} {seen}: tp or cp > 1 need 1 on GPUs before Blackwell"
        severity: Severity = "error" if value or facts.has_command else "warning"
        edits = (Edit(f"${CONNECTIONS}", "1"),) if facts.has_command else ()
        yield Problem(rule, text, severity, places, f"export {CONNECTIONS}=1", edits)


def _values(facts: MegatronFacts) -> Iterator[Problem]:
    """Check values that conflict with another option or are out of range."""
    arguments, aware = facts.arguments, MEGATRON["state-types"].name
    types = [MEGATRON[name].name for name in ("grad", "master", "exp_avg", "exp_avg_sq")]
    given = [name for name in types if arguments.has(name) and arguments.text(name) != "fp32"]
    if given and not arguments.has(aware):
        text = f"--{given[0]} {arguments.text(given[0])} needs --{aware}"
        edits = (Edit(f"--{aware}", ""),)
        yield arguments.problem("precision-aware-optimizer", text, *given, edits=edits)
    positions, length = option("max_positions"), MEGATRON["seq"].name
    seq, most = arguments.number(length), arguments.number(positions)
    if seq and most and seq > most:
        text = f"--{positions} {most} is less than --{length} {seq}"
        edits = (Edit(f"--{positions}", str(seq)),)
        yield arguments.problem("positions", text, positions, length, edits=edits)
    if arguments.has(FINE_GRAINED) and not 0.0 <= (fraction := arguments.real(FRACTION)) <= 1.0:
        text = f"--{FRACTION} {fraction:g}: Megatron takes 0 to 1"
        yield arguments.problem(FRACTION, text, FRACTION)


def _learning_rate(facts: MegatronFacts) -> Iterator[Problem]:
    """Check that the minimum learning rate is not above the maximum and that warm-up ends before
    decay does."""
    arguments = facts.arguments
    if arguments.has("lr") and arguments.has("min-lr"):
        most, least = arguments.real("lr"), arguments.real("min-lr")
        if least > most:
            text = f"--min-lr {least:g} is above --lr {most:g}"
            yield arguments.problem("learning-rate", text, "min-lr", "lr", fix="a lower --min-lr")
    for unit in ("iters", "samples"):
        decay = f"lr-decay-{unit}" if arguments.has(f"lr-decay-{unit}") else f"train-{unit}"
        warmup, end = f"lr-warmup-{unit}", arguments.number(decay)
        length = arguments.number(warmup) or 0
        if arguments.has(f"train-{unit}") and end and length >= end:
            # OptimizerParamScheduler: assert lr_warmup_steps < lr_decay_steps.
            text = f"--{warmup} {length} is not less than --{decay} {end}"
            yield arguments.problem("learning-rate", text, warmup, decay, fix=f"a lower --{warmup}")


_OF_EVERY = frozenset(("learning-rate",))
_RULES: tuple[Rule, ...] = (_recompute, _connections, _values, _learning_rate)
