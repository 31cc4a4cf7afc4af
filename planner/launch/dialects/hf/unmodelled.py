"""Settings that no prediction covers: what is refused, left out or assumed, and a program's own
options.

Unknown options are never dropped: there is no prediction as long as one of them, judging by its
name, shards, offloads, quantises or freezes. Others are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from planner.job.models.catalog import load_model
from planner.launch.dialects.hf import said
from planner.launch.dialects.hf.arguments import (
    LIGER_LOSS,
    LIGER_SWITCHES,
    OPTIMIZERS,
    Named,
    Program,
    is_on,
    is_switched,
    optim_of,
    place_of,
    program_of,
    value_of,
)
from planner.launch.dialects.hf.family_scripts import family_names
from planner.launch.dialects.hf.program_defaults import TRL_RELEASE, objective_names
from planner.launch.dialects.hf.python import OTHER_CLASS, PREPARED, TRL_TRAINER
from planner.launch.dialects.hf.sampling import sampling_names
from planner.launch.dialects.hf.towers import is_class_of_vision, loads_its_tower, tower_names
from planner.launch.dialects.hf.tuned import FULL, adapter_names, asks_for
from planner.launch.read.beside import text_beside
from planner.launch.read.command import LaunchCommand
from planner.launch.read.document import Source
from planner.launch.read.found import (
    SURELY_MEANT,
    Edit,
    Problem,
    Setting,
    Severity,
    is_slip,
    nearest,
    not_predictable,
)
from planner.launch.read.names import effect_of, left_out, meanings
from planner.launch.registry import dialect_toml

_PIECES = re.compile(r"cut_cross_entropy|LigerFusedLinear\w*|liger_fused_linear\w*|apply_liger\w*")
_MOST_NAMED = 12
_SHORT = len("max_lengths")


def effects_of(named: Named, program: Program) -> Iterator[tuple[Setting, str]]:
    """Settings whose effect the prediction leaves out, and that effect."""
    for name, why in left_out("hf", "trainer").items():
        if is_on(named, name) or (name in named and named[name].value is True):
            yield named[name], why
    setting = named.get("gradient_checkpointing")
    if setting is not None and str(setting.value).startswith("offload"):
        yield setting, "checkpoints on the host: less memory than predicted"
    if program == "axolotl" and asks_for(named, program) == FULL:
        yield from _kept_in_fp32(named)


# Attention with which axolotl casts embeddings and norms back to the compute format.
_CASTING = re.compile(r"flash|flex|xformers|sage|s2_|fp8")


def _kept_in_fp32(named: Named) -> Iterator[tuple[Setting, str]]:
    """axolotl keeps embeddings, norms and head in fp32 when it trains all weights, unless fused
    attention (other than torch's) or cut cross-entropy is used (loaders/model.py,
    _configure_embedding_dtypes). Shards have a single type."""
    sharded = any(name.partition(".")[0] in ("fsdp", "fsdp_config", "deepspeed") for name in named)
    halves = value_of(named, "bf16") in ("true", "auto", "full")
    if sharded or "base_model" not in named or not halves:
        return
    attention = (name for name in named if name.endswith("attention") and is_on(named, name))
    stated = [*attention, value_of(named, "attn_implementation")]
    cuts = "cut_cross_entropy" in str(named["plugins"].value) if "plugins" in named else False
    if not cuts and not any(_CASTING.search(name) for name in stated):
        why = "embeddings, norms and head in fp32 without flash attention: more memory"
        yield named["base_model"], f"{why} than predicted"


def own_loss(named: Named, launch: LaunchCommand | None) -> Iterator[tuple[Setting, str]]:
    """A fused kernel for head and loss that no setting mentions, but the source of the program
    does."""
    if launch is None or any(is_on(named, name) for name in (*LIGER_SWITCHES, LIGER_LOSS)):
        return
    path = launch.program
    if "/" not in path and not path.endswith(".py"):  # a module
        path = path.replace(".", "/") + ".py"
    if match := _PIECES.search(text_beside(path, launch.folder)):
        why = f"named in {launch.name}, loss in pieces: less memory than predicted"
        yield Setting(match[0], None), why


def own_options(
    named: Named, source: Source, program: Program, sharded_by: str = ""
) -> tuple[Problem, ...]:
    """Problems with a program's own options. `sharded_by`: a configuration that determines
    sharding, whatever these options ask for."""
    tops = {name.partition(".")[0]: setting for name, setting in reversed(list(named.items()))}
    own = {name: tops[name] for name in reversed(tops) if name not in hf_names() | _OTHER_NAMES}
    slips = {name: near for name in own if (near := _slip(name))}
    effects = {name: effect_of(name) for name in own if is_switched(named, name)}
    shard = [] if sharded_by else [name for name, does in effects.items() if does == "shards"]
    other = [name for name, does in effects.items() if does not in ("", "shards")]
    rest = [name for name in own if name not in (*slips, *shard, *other)]
    whose = source.launch.name if source.launch is not None and source.launch.name else ""
    return (
        *(_misspelt(own[name], near, program) for name, near in slips.items()),
        *_deciding("own_shards", shard, own, whose),
        *_deciding("own_trains", other, own, whose),
        *_listed(rest, own, program, whose),
    )


_OTHER_NAMES = frozenset((
    *meanings("hf", "names"), *left_out("hf", "trainer"), *left_out("hf", "trainer", "refused"),
    *dialect_toml("hf", "unmodelled.toml")["lists"]["read"].split(), OTHER_CLASS, PREPARED,
    TRL_TRAINER, TRL_RELEASE, *adapter_names(), *objective_names(), *tower_names(),
    *family_names(), *sampling_names(),
))  # fmt: skip


def _slip(name: str) -> str:
    """The known setting that an unknown name misspells; empty if the name may be intended."""
    near = nearest(name, meanings("hf", "names"), SURELY_MEANT)
    # A short name, or one with an extra word (`llm_model_name_or_path`), may be intended.
    same_words = name.count("_") == near.count("_") and near not in name
    return near if same_words and len(name) > _SHORT and is_slip(name, near) else ""


def _misspelt(setting: Setting, near: str, program: Program) -> Problem:
    """LLaMA-Factory and ms-swift refuse unknown settings; other programs may know them."""
    refuses = program in ("llamafactory", "swift")
    says = "has no such setting and refuses it" if refuses else "has no such setting"
    whose = {"llamafactory": "LLaMA-Factory", "swift": "ms-swift", "axolotl": "axolotl"}
    text = f"{setting.key}: {whose.get(program, 'a Trainer')} {says}"
    edits = (Edit(setting.key, None, near),)
    severity: Severity = "error" if refuses else "missing"
    return Problem("unknown-option", text, severity, (setting.place,), near, edits)


def _deciding(table: str, names: Sequence[str], own: Named, whose: str) -> tuple[Problem, ...]:
    """The problem that a program's own options may decide what is sharded or trained; empty without
    such options. `table`: the table of `rules.toml` with its text; `whose`: the name of the program
    in the command, empty without a command."""
    if not names:
        return ()
    shown = ", ".join(f"--{name}" if whose else name for name in names)
    return said(
        table, *(own[name].place for name in names), shown=shown,
        program=whose or "the program that reads it",
        option="--deepspeed " if whose else "deepspeed: ",
    )  # fmt: skip


def _listed(names: Sequence[str], own: Named, program: Program, whose: str) -> tuple[Problem, ...]:
    """A problem that lists the settings with no known meaning; empty without any. `whose`: the name
    of the program in the command, empty without a command."""
    if not names:
        return ()
    dash, more = "--" if whose else "", len(names) - _MOST_NAMED
    shown = ", ".join(f"{dash}{name}" for name in names[:_MOST_NAMED])
    shown += f" and {more} more" if more > 0 else ""
    refuses = program == "llamafactory"
    return said("own_unknown", own[names[0]].place, shown=shown, refuses=refuses)


@cache
def hf_names(program: str = "") -> frozenset[str]:
    """Settings of a program of Hugging Face, or of all of them."""
    tables = dialect_toml("hf", "programs.toml")
    chosen = [f"hf-{program}"] if program else list(tables)
    return frozenset(name for table in chosen for name in tables[table]["names"].split())


_OTHER_PROGRAMS = re.compile(
    r"(^|[_.-])(ppo|grpo|rlhf|vision|mim|glue|mlm|"
    r"squad|qa|asr|tts|ctc|speech|audio|whisper|diffusion|clip|esm\w*|bert|summarization|translation)([_.-]|$)"
)
_LISTS = dialect_toml("hf", "unmodelled.toml")["lists"]
# Settings by which LLaMA-Factory does something other than training.
_WITHOUT_TRAINING: Mapping[str, str] = _LISTS["without_training"]
_TASKS = ("causal_lm", "pretrain", "sft", "")
# Plug-ins of axolotl that do not affect training or its cost, or that are modelled.
_PLUGINS = re.compile(r"\.(liger|cut_cross_entropy|lm_eval|swanlab|llm_compressor)\.")


def refusals_of(
    named: Named,
    launch: LaunchCommand | None,
    program: Program = "trainer",
    model: str | None = None,
) -> tuple[Problem, ...]:
    """Ways of training that are not modelled, by settings and program. `model`: its name in the
    catalogue, if known."""
    program = program_of(program, named, launch)
    refusals = (*_refusals(named, program, model), *_plugins(named))
    refusals += tuple(_unknown_switches(named)) if program == "llamafactory" else ()
    name = "" if launch is None else launch.name.lower()
    match = _OTHER_PROGRAMS.search(name)
    # Its name says that it does not train by next-token prediction.
    return refusals + (said("other_program", name=name, what=match[2]) if match else ())


def _loads_known(model: str | None, kind: str, *, with_tower: bool) -> bool:
    """Whether a vision-language class loads a model that is covered: one with its tower, or a text
    model, for which the program will choose another class."""
    if model is None or not is_class_of_vision(kind):
        return False
    resolved = load_model(model)
    of_text = resolved.spec.vision is None and not resolved.beside
    return with_tower or (of_text and kind.startswith("AutoModel"))


def _refusals(named: Named, program: Program, model: str | None) -> Iterator[Problem]:
    """Ways of training that are not modelled, by name."""
    with_tower = loads_its_tower(program, model)
    if program == "llamafactory" and not is_on(named, "do_train"):
        for name, does in _WITHOUT_TRAINING.items():
            if is_switched(named, name):
                yield not_predictable(
                    f"{name}: it {does}, and trains nothing", place_of(named, name).place
                )
    if OTHER_CLASS in named:
        where = place_of(named, OTHER_CLASS)
        if not _loads_known(model, str(where.value), with_tower=with_tower):
            yield _refusal(where, f"{where.value}, which loads no decoder of text alone,")
    if (task := value_of(named, "task_type")) not in _TASKS:
        yield _refusal(place_of(named, "task_type"), f"task_type: {task}")
    optimizer = optim_of(named)
    if optimizer not in ("", "none", *OPTIMIZERS) and (program == "axolotl" or "optim" in named):
        yield _refusal(named.get("optim") or named["optimizer"], f"optimizer {optimizer}")
    for name, why in left_out("hf", "trainer", "refused").items():
        if with_tower and name in tower_names():
            continue
        sizes = name.endswith(("_size", "_degree"))
        if is_on(named, name) if sizes else is_switched(named, name):
            yield _refusal(place_of(named, name), f"{name}: {why}")


def _plugins(named: Named) -> Iterator[Problem]:
    """Plug-ins of axolotl that may change what is trained."""
    value = named["plugins"].value if "plugins" in named else None
    for plugin in value if isinstance(value, list) else ():
        if not _PLUGINS.search(str(plugin)):
            yield _refusal(named["plugins"], f"plugins: {plugin}")


def _unknown_switches(named: Named) -> Iterator[Problem]:
    """LLaMA-Factory's `use_...` switches that change the loss or the optimizer."""
    known = {*left_out("hf", "trainer", "refused"), *_LISTS["harmless"].split()}
    for name, setting in named.items():
        if name.startswith("use_") and name not in known and setting.value is True:
            yield _refusal(setting, f"{name}: true")


def _refusal(setting: Setting, what: str) -> Problem:
    text = f"{what} is not modelled; full fine-tuning and adapters of language models are"
    return not_predictable(text, setting.place)
