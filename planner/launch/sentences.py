"""Texts of a dialect about a launch under some condition: rows of its `launch.toml`.

A row has texts and an optional condition `when`. Conditions, and what is in the braces of a text,
are Python expressions over the names of `names_of` and those that a writer adds, without built-in
functions. A text may format values as Python does (`{seq:,}`), or by a name in `_FORMATS`.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import CodeType, MappingProxyType
from typing import Any, cast

from planner.job.job import Job
from planner.job.quantities import gib, percent_sure, seconds, share
from planner.launch.contract import VARIABLES, ExplainedSetting, Launch, Refusal, Variable
from planner.launch.options import Options, last
from planner.launch.read.found import Edit, Placed, Problem, Severity
from planner.launch.registry import dialect_toml
from planner.launch.settings_text import SettingsSection, WrittenSetting

Names = Mapping[str, object]
_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "share": share,
    "whole-share": lambda value: share(value, 0),
    "seconds": seconds,
    "gib": gib,
    "percent-sure": percent_sure,
    "listed": lambda values: ", ".join(map(str, values)),
}


@cache
def _compiled(text: str) -> CodeType:
    return compile(text, "<row>", "eval")


class _Filled(string.Formatter):
    """Formats a text whose braces hold expressions."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        return evaluated(field_name, self.names), ""

    def format_field(self, value: Any, format_spec: str) -> str:
        own = _FORMATS.get(format_spec)
        return own(value) if own else format(value, format_spec)


def names_of(launch: Launch) -> dict[str, object]:
    """The names that a row's expressions may use about a launch, with their values."""
    plan = launch.plan
    return {"launch": launch, "plan": plan, "degrees": plan.degrees} | names_of_job(launch.job)


def names_of_job(job: Job) -> dict[str, object]:
    """The names that a row's expressions may use about a job, with their values."""
    states = dict(job.optimizer.states)
    return {
        "job": job,
        "model": job.model,
        "gpu": job.cluster.gpu,
        "optimizer": job.optimizer,
        "kernel": job.optimizer_setting.kernel,
        "plain_states": all(dtype == "fp32" for dtype in states.values()),
        "states": tuple(states.values()),
    }


def evaluated(text: str, names: Names) -> Any:
    """Evaluate a row's expression, with `names` as its variables."""
    # Rows are part of this package, like its modules; no user's text is evaluated.
    return eval(_compiled(text), {"__builtins__": {}}, names)


def holds(condition: str | None, names: Names) -> bool:
    """Whether a condition is true; a condition of None always is."""
    return condition is None or bool(evaluated(condition, names))


def filled_in(text: str, names: Names) -> str:
    """A text with the expressions in its braces replaced by their values."""
    return _Filled(names).format(text)


class Lookup(dict[str, Any]):
    """A dictionary of names. For a name that it does not have, it calls the function `find`."""

    def __init__(self, find: Callable[[str], Any], **known: Any) -> None:
        super().__init__(known)
        self._find = find

    def __missing__(self, name: str) -> Any:
        return self._find(name)


def holding(
    dialect: str, table: str, names: Names, file: str = "launch.toml"
) -> Iterator[dict[str, str]]:
    """The rows of a table whose conditions hold, with their texts filled in."""
    for row in dialect_toml(dialect, file).get(table, ()):
        if holds(row.get("when"), names):
            yield {key: filled_in(text, names) for key, text in row.items() if key != "when"}


def said_problems(
    dialect: str, table: str, names: Names, document: Placed, *at: str
) -> Iterator[Problem]:
    """Problems in a file's settings: one for each row of `rules.toml` whose condition holds.

    A row has a `rule` ("not-predictable" if absent), a `text` and other fields of `Problem`. `at`:
    the keys of the settings concerned; `set`: the values that --fix writes.
    """
    for row in dialect_toml(dialect, "rules.toml")[table]:
        if not holds(row.get("when"), names):
            continue
        rule = row.get("rule", "not-predictable")
        usual = "warning" if rule == "not-predictable" else "error"
        yield Problem(
            rule,
            filled_in(row["text"], names),
            cast(Severity, filled_in(row.get("severity", usual), names)),
            document.place(*row.get("at", at)),
            filled_in(row.get("fix", ""), names),
            tuple(Edit(key, filled_in(value, names)) for key, value in row.get("set", {}).items()),
            row.get("late", False),
        )


class _Places(Placed):
    """Stands for a file if the caller knows where settings are, rather than their keys: each place
    is returned as given."""

    def place(self, *keys: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(keys))


def problems_at(dialect: str, table: str, *places: str, **names: object) -> tuple[Problem, ...]:
    """The problems of `said_problems`, located at the given `places` (`train.sh:12`). `names`:
    variables of the conditions and texts."""
    return tuple(said_problems(dialect, table, names, _Places(), *places))


def said_refusals(dialect: str, table: str, names: Names) -> Iterator[Refusal]:
    """A refusal for each row whose condition holds; a row has `reason` and `nearest`."""
    yield from (Refusal(**row) for row in holding(dialect, table, names))


def said_choices(dialect: str, table: str, names: Names) -> Iterator[ExplainedSetting]:
    """The settings to explain in the folder's README: the `setting` and `purpose` of each row whose
    condition holds."""
    yield from (ExplainedSetting(**row) for row in holding(dialect, table, names))


def said_needs(dialect: str, table: str, launch: Launch, **more: object) -> tuple[str, ...]:
    """Packages that a run needs: `need` of each row whose condition holds, then those of the plan's
    techniques."""
    rows = holding(dialect, table, names_of(launch) | more)
    return (*(row["need"] for row in rows), *launch.technique_needs)


def said_environment(
    dialect: str, table: str, launch: Launch, **more: object
) -> dict[str, tuple[str, str]]:
    """Environment variables to set: name -> (value, reason), from rows of `name`, `value` and
    `why`. If several rows for a variable hold, the first counts."""
    found: dict[str, tuple[str, str]] = {}
    for row in holding(dialect, table, names_of(launch) | more):
        found.setdefault(row["name"], (row["value"], row["why"]))
    return found


def said_variables(
    dialect: str, launch: Launch, table: str = "variables", **more: object
) -> tuple[Variable, ...]:
    """The user's variables, one for each row whose condition holds. A row has fields of `Variable`,
    or a `kind` (a key of `VARIABLES`) and the arguments for it.

    Braces in a text hold expressions, except in a text that contains a shell variable (`${NAME}`).
    """
    names, found = names_of(launch) | more, []
    for row in dialect_toml(dialect, "launch.toml")[table]:
        if not holds(row.get("when"), names):
            continue
        given: dict[str, Any] = {
            key: filled_in(text, names) if isinstance(text, str) and "${" not in text else text
            for key, text in row.items()
            if key not in ("when", "kind")
        }
        found.append(VARIABLES[row["kind"]](**given) if "kind" in row else Variable(**given))
    return tuple(found)


def said_settings(
    dialect: str, table: str, names: Names, options: Options, title: str | None = None
) -> SettingsSection:
    """The section of a configuration that a table describes, under `title` or, if that is None, the
    table's name. `title` "": the section is the whole file.

    A row has an expression `value`, and either `key` or `ours`, which names an option of `options`.
    The option's key is used without its own table, unless the section is the whole file. With
    `spelled` the option translates the value. `why`: the comment above the setting, if `why_when`
    holds; `told = false`: the README leaves the setting out.
    """
    settings, title = [], table if title is None else title
    for row in dialect_toml(dialect, "launch.toml")[table]:
        if not holds(row.get("when"), names):
            continue
        value, why = evaluated(row["value"], names), row.get("why", "")
        option = options.get(row.get("ours", ""))
        key = filled_in(row["key"], names) if option is None else option.key
        settings.append(
            WrittenSetting(
                last(option) if option and title else key,
                option.text(value) if option and row.get("spelled") else value,
                filled_in(why, names) if holds(row.get("why_when"), names) else "",
                row.get("told", True),
            )
        )
    return SettingsSection(title, tuple(settings))


def said_values(
    dialect: str, table: str, names: Names, options: Options = MappingProxyType({})
) -> dict[str, Any]:
    """Key and value of each setting that a table describes; rows as in `said_settings`."""
    section = said_settings(dialect, table, names, options, title="")
    return {setting.key: setting.value for setting in section.settings}
