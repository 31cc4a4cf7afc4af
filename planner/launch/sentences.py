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
    """A text with expressions in braces."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:  # noqa: ARG002
        return evaluated(field_name, self.names), ""

    def format_field(self, value: Any, format_spec: str) -> str:
        own = _FORMATS.get(format_spec)
        return own(value) if own else format(value, format_spec)


def names_of(launch: Launch) -> dict[str, object]:
    """Names that rows may use for a launch."""
    plan = launch.plan
    return {"launch": launch, "plan": plan, "degrees": plan.degrees} | names_of_job(launch.job)


def names_of_job(job: Job) -> dict[str, object]:
    """Names that rows may use for a job."""
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
    """Whether a condition holds; an absent one always does."""
    return condition is None or bool(evaluated(condition, names))


def filled_in(text: str, names: Names) -> str:
    """A text with the expressions in its braces replaced by their values."""
    return _Filled(names).format(text)


class Lookup(dict[str, Any]):
    """Names, with a function that looks up others."""

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
    """Problems in a file's settings, from rows of `rules.toml`: `rule` (not predictable by
    default), `text` and other fields of `Problem`; `at`: the settings; `set`: what --fix writes."""
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
    """Stands for a file if the places of settings are known, and not their keys."""

    def place(self, *keys: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(keys))


def problems_at(dialect: str, table: str, *places: str, **names: object) -> tuple[Problem, ...]:
    """`said_problems` with given places."""
    return tuple(said_problems(dialect, table, names, _Places(), *places))


def said_refusals(dialect: str, table: str, names: Names) -> Iterator[Refusal]:
    """Rows of `reason` and `nearest`."""
    yield from (Refusal(**row) for row in holding(dialect, table, names))


def said_choices(dialect: str, table: str, names: Names) -> Iterator[ExplainedSetting]:
    """The settings to explain in the folder's README: the `setting` and `purpose` of each row whose
    condition holds."""
    yield from (ExplainedSetting(**row) for row in holding(dialect, table, names))


def said_needs(dialect: str, table: str, launch: Launch, **more: object) -> tuple[str, ...]:
    """Rows of `need`, and packages that the plan's techniques need."""
    rows = holding(dialect, table, names_of(launch) | more)
    return (*(row["need"] for row in rows), *launch.technique_needs)


def said_environment(
    dialect: str, table: str, launch: Launch, **more: object
) -> dict[str, tuple[str, str]]:
    """Rows of `name`, `value` and `why`; the first that holds for each variable."""
    found: dict[str, tuple[str, str]] = {}
    for row in holding(dialect, table, names_of(launch) | more):
        found.setdefault(row["name"], (row["value"], row["why"]))
    return found


def said_variables(
    dialect: str, launch: Launch, table: str = "variables", **more: object
) -> tuple[Variable, ...]:
    """The user's variables: rows of fields of `Variable`, or of a `kind` and what makes it. Braces
    are expressions, except in a text that names a shell variable (`${NAME}`)."""
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
    """The section of a configuration that a table describes, under `title` or the table's name.

    A row has an expression `value` under `key`, or under the key of the option that `ours` names,
    without that option's own table unless the section is the whole file (`title` ""); with
    `spelled` the option says how the value is written. `why`: the comment above it, where
    `why_when` holds; `told = false`: the README leaves it out.
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
    """The settings of a table of `said_settings`, as key and value."""
    section = said_settings(dialect, table, names, options, title="")
    return {setting.key: setting.value for setting in section.settings}
