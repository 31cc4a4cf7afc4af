"""What Megatron's options say of a run beside its degrees: how context parallelism exchanges, which
activations are kept on the host, whether switches reduce gradients (SHARP), how the batch grows;
and combinations of options that Megatron-LM refuses, at the start or only at run time.

Rules over degrees (divisibility, batch, experts) are those of `constraints`; here is what only the
options say: megatron_rules.toml, and what no row can. Source of all: megatron-core 0.19.2,
training/arguments.py (validate_args), transformer_config.py (__post_init__), parallel_state.py
(initialize_model_parallel), core/num_microbatches_calculator.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isqrt, prod
from typing import Any, get_args

from constraints.context_kinds import ContextKind
from hardware.files import shipped_toml
from planner.job.batch_ramp import read_ramp
from planner.job.bounds import LARGEST_DEGREE
from planner.job.errors import UsageError
from planner.job.quantities import parse_tokens
from planner.launch.megatron_table import option
from planner.launch.options import MEGATRON, MEGATRON_RECOMPUTE
from planner.launch.read.found import Edit, Problem, Severity
from planner.launch.read.megatron_arguments import Arguments, choices_of_many
from planner.launch.read.text import digits

# --- context parallelism --------------------------------------------------------------------------

_TYPE, _SIZES = MEGATRON["cp_comm_type"].name, MEGATRON["cp_sizes"].name
_KINDS: tuple[ContextKind, ...] = get_args(ContextKind)
_TWO_LEVELS, _LEVELS = "a2a+p2p", 2


def read_exchange(arguments: Arguments, cp: int) -> dict[str, Any]:
    """`--cp-comm-type` and `--hierarchical-context-parallel-sizes` of a launch with `cp` ranks."""
    given = arguments.many(_TYPE) or ("p2p",)
    kind, sizes = given[0], tuple[int, ...]()
    if wrong := sorted(set(given) - set(_KINDS)):
        text = f"--{_TYPE} {wrong[0]}: one of {', '.join(_KINDS)}"
        kind = "p2p"
        arguments.refuse("option-value", text, _TYPE, edits=(Edit(f"--{_TYPE}", kind),))
    else:
        sizes = _level_sizes(arguments, kind, cp)
        setting = arguments.setting(_TYPE)
        if len(set(given)) > 1 and setting is not None:
            why = f"layers exchange in different ways: costed as {kind}"
            arguments.left_out.append((setting, why))
    two = {"cp_sizes": sizes} if kind == _TWO_LEVELS else {}
    return {"cp_comm_type": kind} | two if cp > 1 else {}


def _level_sizes(arguments: Arguments, kind: str, cp: int) -> tuple[int, ...]:
    """Ranks of each level; of wrong ones the nearest, with which other faults are looked for."""
    texts = arguments.many(_SIZES)
    given, sizes = f"--{_SIZES} {' '.join(texts)}", tuple(digits(text) or 0 for text in texts)
    if not texts and (kind != _TWO_LEVELS or cp == 1):
        return ()
    if not texts:
        text = f"--{_TYPE} {_TWO_LEVELS}: --{_SIZES} is missing, the ranks of its two levels"
    elif 0 in sizes:
        arguments.refuse("option-value", f"{given}: whole numbers of at least 1", _SIZES)
        return ()
    elif prod(sizes) != cp:
        text = f"{given} make {prod(sizes)} ranks, not cp = {cp}"
    elif kind == _TWO_LEVELS and len(sizes) != _LEVELS:
        text = f"{given}: Transformer Engine has two levels"
    else:
        return sizes
    most = isqrt(min(max(cp, 1), LARGEST_DEGREE))
    inner = max(cp, 1) // max(index for index in range(1, most + 1) if max(cp, 1) % index == 0)
    edits = (Edit(f"--{_SIZES}", f"{inner} {cp // inner}"),)
    arguments.refuse("context-levels", text, _SIZES, _TYPE, edits=edits)
    return inner, cp // inner


# --- activations on the host ----------------------------------------------------------------------

FINE_GRAINED, MODULES = "fine-grained-activation-offloading", "offload-modules"
FRACTION = "activation-offload-fraction"
# Modules of --offload-modules (transformer_config.py).
_OFFLOADED = (
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
    "fused_group_mlp",
)  # fmt: skip


def read_offload(arguments: Arguments) -> dict[str, Any]:
    """What is offloaded; without the fraction, or out of its range, all."""
    if not arguments.has(FINE_GRAINED):
        return {}
    modules = choices_of_many(arguments, MODULES, _OFFLOADED)
    if "fused_group_mlp" in modules:
        text = f"--{MODULES} fused_group_mlp: less memory than predicted"
        arguments.problems.append(arguments.unpredictable(text, MODULES))
    given = arguments.real(FRACTION)
    fraction = given if 0.0 <= given <= 1.0 else 1.0
    kept = ",".join(name for name in modules if name != "fused_group_mlp") or "off"
    return {
        "activation_offload": kept if fraction else "off",
        "activation_offload_fraction": fraction or 1.0,
    }


# --- SHARP ----------------------------------------------------------------------------------------

_USE, _GROUP, _INSTANCES = (MEGATRON[ours].name for ours in ("sharp", "sharp-group", "groups"))
COLLNET = "NCCL_COLLNET_ENABLE"


def read_sharp(arguments: Arguments, environment: Mapping[str, str], command_place: str) -> bool:
    """Whether the switches reduce for the communicators over which gradients go."""
    on, group = arguments.has(_USE), arguments.text(_GROUP)
    instances = arguments.number(_INSTANCES) or 1

    def refuse(text: str, option: str, value: str, **more: Any) -> None:
        edits = (Edit(f"--{option}", value),)
        arguments.refuse("sharp-group", text, _USE, _GROUP, edits=edits, **more)

    if group and not on:
        refuse(f"--{_GROUP} needs --{_USE}", _USE, "")
    elif group == "dp_replica" and instances == 1:
        refuse(f"--{_GROUP} dp_replica needs --{_INSTANCES} above 1", _GROUP, "dp")
    elif on and instances > 1 and group != "dp_replica":
        text = (
            f"--{_USE} for the group dp: with {instances} instances of the distributed optimizer "
            "gradients go over other groups, and the switches reduce nothing"
        )
        refuse(text, _GROUP, "dp_replica", severity="warning")
    if not on and environment.get(COLLNET) == "1":
        text = f"{COLLNET}=1: Megatron removes it before the first communicator is made; no SHARP"
        edits = (Edit(f"--{_USE}", ""),)
        note = Problem("sharp-collnet", text, "warning", (command_place,), edits=edits)
        arguments.problems.append(note)
    return on and (group or "dp") == ("dp_replica" if instances > 1 else "dp")


# --- a batch that grows ---------------------------------------------------------------------------

_STEPS, _BATCH = MEGATRON["batch_ramp"].name, MEGATRON["gbs"].name
# Ignored by core 0.19.2; thresholds in samples.
_LINEAR = "rampup-batch-size"
RAMPS = (_STEPS, _LINEAR)
_MAY_SHRINK = "decrease-batch-size-if-needed"
_GROWING = "growing batches and thresholds"


def read_megatron_ramp(arguments: Arguments, gbs: int | None, seq: int | None) -> dict[str, Any]:
    """The ramp as `planner.job.batch_ramp` reads it, with its last batch; `gbs`, `seq`: as options
    say."""
    if arguments.given.get(_STEPS) is not None:
        return _steps(arguments, gbs)
    words = tuple(map(_plain_number, arguments.many(_LINEAR)))
    if not words or gbs is None or seq is None or arguments.has(_MAY_SHRINK):
        return {}
    try:
        if len(words) != 3:
            raise UsageError("takes three numbers: start, increment, samples")
        read_ramp(" ".join(words), gbs)
    except UsageError as error:
        text = f"--{_LINEAR} {' '.join(words)}: {error}"
        arguments.refuse("option-value", text, _LINEAR, fix=_GROWING)
        return {}
    text = (
        f"--{_LINEAR} is deprecated; megatron-core 0.19.2 ignores it and takes --{_BATCH} from "
        "the start"
    )
    more = {"severity": "note", "fix": f"--{_STEPS} in its place"}
    arguments.refuse("batch-ramp-ignored", text, _LINEAR, **more)
    return {"batch_ramp": " ".join(words)}


def _plain_number(text: str) -> str:
    """A whole number as Python reads it, in digits: `1_000`."""
    try:
        return str(int(text))
    except ValueError:
        return text


def _steps(arguments: Arguments, gbs: int | None) -> dict[str, Any]:
    text = arguments.text(_STEPS) or ""
    pairs = [item.partition(":") for item in text.replace(",", " ").split()]
    try:
        starts = [0 if at == "0" else parse_tokens(at) for at, _, _ in pairs]
        sizes = [parse_tokens(size) for _, _, size in pairs]
        if not starts or starts[0] != 0:
            raise UsageError("the first threshold is 0")
        steps = [f"{size}:{end}" for size, end in zip(sizes, starts[1:], strict=False)]
        ramp = ",".join((*steps, str(sizes[-1]))) if steps else None
        if ramp:
            read_ramp(ramp)
    except UsageError as error:
        arguments.refuse("option-value", f"--{_STEPS} {text}: {error}", _STEPS, fix=_GROWING)
        return {}
    if gbs is not None:
        both = f"--{_STEPS} with --{_BATCH}: Megatron takes one of them"
        more = {"fix": f"no --{_BATCH}", "edits": (Edit(f"--{_BATCH}", None),)}
        arguments.refuse("batch-twice", both, _BATCH, **more)
    return {"batch_ramp": ramp, "gbs": sizes[-1]}


CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True)
class MegatronFacts:
    """What rules read beside the options: degrees, and the environment of the command."""

    arguments: Arguments
    degrees: Mapping[str, int]
    environment: dict[str, str]
    command_place: str
    # A list of options without the command says nothing of its environment.
    has_command: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """A rule of the table, whose comment says what its fields are."""

    rule: str
    given: Sequence[str]
    text: str = ""
    needs: Sequence[str] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)
    at: Sequence[str] = ()
    set: Mapping[str, str] = field(default_factory=dict)
    leave_out: Sequence[str] = ()
    fix: str = ""
    severity: Severity = "error"
    late: bool = False
    everywhere: bool = False


@cache
def _rows() -> tuple[Row, ...]:
    table = shipped_toml("planner.launch.read", "megatron_rules.toml")
    needs = (Row(rule, (name,), needs=needs) for rule, name, *needs in table["needs"])
    others = table["rule"].items()
    return (*needs, *(Row(rule, **row) for rule, rows in others for row in rows))


@cache
def refused_everywhere() -> frozenset[str]:
    """Rules of every Megatron, whoever's options they are."""
    return frozenset(row.rule for row in _rows() if row.everywhere) | _OF_EVERY


def option_problems(facts: MegatronFacts) -> list[Problem]:
    """What each rule finds; an option that only a rule looks at has no effect otherwise."""
    used = set(facts.arguments.used)
    found = [problem for row in _rows() if (problem := _broken(row, facts))]
    found += [problem for rule in _RULES for problem in rule(facts)]
    facts.arguments.used = used
    return found


def _broken(row: Row, facts: MegatronFacts) -> Problem | None:
    """What a row finds wrong."""
    if not all(_holds(what, facts) for what in row.given):
        return None
    excluded = [words for words, what in row.excludes.items() if _holds(what, facts)]
    if any(_holds(what, facts) for what in row.needs) or (row.excludes and not excluded):
        return None
    text, first = row.text, row.given[0].split()[0]
    added = dict(row.set)
    if row.needs:
        one, *others = row.needs
        text = f"--{first} needs --{one}" + (f" (or --{others[0]})" if others else "")
        added = {} if row.fix else {one: ""}
    if excluded:
        text = f"--{first} excludes {', '.join(excluded)}"
    edits = [Edit(_key(name), value) for name, value in added.items()]
    edits += [Edit(_key(name), None) for name in row.leave_out]
    at = row.at or [what.split()[0] for what in row.given if " != " not in what]
    places = (facts.command_place,) if at[0][0] == "$" else facts.arguments.place(*at)
    return Problem(row.rule, text, row.severity, places, row.fix, tuple(edits), row.late)


def _key(name: str) -> str:
    return name if name[0] == "$" else f"--{name}"


def _holds(what: str, facts: MegatronFacts) -> bool:
    """Whether a launch is as a condition of the table says."""
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
    whole, how, count = (
        MEGATRON_RECOMPUTE[name].name
        for name in ("recompute", "recompute-method", "recompute-layers")
    )
    granularity, method = arguments.text(whole), arguments.text(how)
    layers = arguments.number(count)
    if granularity == "selective" and method:
        text = f"--{whole} selective takes no --{how}"
        yield arguments.problem(rule, text, whole, how, edits=(Edit(f"--{how}", None),))
    # A block of no layer recomputes none.
    counted = bool(layers) or (method, layers) == ("block", 0)
    if granularity == "full" and not (method and counted):
        usual = {how: None if method else "uniform", count: None if counted else "1"}
        edits = tuple(Edit(f"--{name}", value) for name, value in usual.items() if value)
        text = f"--{whole} full needs {' and '.join(edit.key for edit in edits)}"
        yield arguments.problem(rule, text, whole, edits=edits)


def _connections(facts: MegatronFacts) -> Iterator[Problem]:
    """Order of kernel launches that tensor and context parallelism rely on before Blackwell."""
    arguments = facts.arguments
    value = facts.environment.get(CONNECTIONS)
    shards = arguments.has(MEGATRON["fsdp"].name) or arguments.has("use-torch-fsdp2")
    if shards and value == "1":
        yield Problem(
            "cuda-device-max-connections",
            f"{CONNECTIONS}=1 is refused with FSDP: its collectives must run beside compute",
            places=(facts.command_place,),
            fix=f"unset {CONNECTIONS}",
        )
    elif not shards and max(facts.degrees["tp"], facts.degrees["cp"]) > 1 and value != "1":
        seen = f"is {value}" if value else "is not set in the files"
        yield Problem(
            "cuda-device-max-connections",
            f"{CONNECTIONS} {seen}: tp or cp > 1 need 1 on GPUs before Blackwell",
            "error" if value or facts.has_command else "warning",
            places=(facts.command_place,),
            fix=f"export {CONNECTIONS}=1",
            edits=(Edit(f"${CONNECTIONS}", "1"),) if facts.has_command else (),
        )


def _optimizer(facts: MegatronFacts) -> Iterator[Problem]:
    arguments, aware = facts.arguments, MEGATRON["state-types"].name
    types = [MEGATRON[name].name for name in ("grad", "master", "exp_avg", "exp_avg_sq")]
    given = [name for name in types if arguments.has(name) and arguments.text(name) != "fp32"]
    if given and not arguments.has(aware):
        text = f"--{given[0]} {arguments.text(given[0])} needs --{aware}"
        yield arguments.problem(
            "precision-aware-optimizer", text, *given, edits=(Edit(f"--{aware}", ""),)
        )


def _attention(facts: MegatronFacts) -> Iterator[Problem]:
    arguments, positions, length = facts.arguments, option("max_positions"), MEGATRON["seq"].name
    seq, most = arguments.number(length), arguments.number(positions)
    if seq and most and seq > most:
        text = f"--{positions} {most} is less than --{length} {seq}"
        edits = (Edit(f"--{positions}", str(seq)),)
        yield arguments.problem("positions", text, positions, length, edits=edits)


def _fraction(facts: MegatronFacts) -> Iterator[Problem]:
    arguments = facts.arguments
    if arguments.has(FINE_GRAINED) and not 0.0 <= (fraction := arguments.real(FRACTION)) <= 1.0:
        text = f"--{FRACTION} {fraction:g}: Megatron takes 0 to 1"
        yield arguments.problem(FRACTION, text, FRACTION)


def _learning_rate(facts: MegatronFacts) -> Iterator[Problem]:
    """The least rate above the greatest, and a warm-up that ends after the decay."""
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
_RULES: tuple[Rule, ...] = (
    _recompute, _connections, _optimizer, _attention, _fraction, _learning_rate,
)  # fmt: skip
