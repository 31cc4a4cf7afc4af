"""Values that somebody, or another program, still has to fill in: `{{X}}`, `<PATH>`, `${X}`, `???`.

`--env X=VALUE` fills in a placeholder that has a name. One that nobody fills in is a value that is
not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# A text that holds one: of Jinja, of a shell or OmegaConf.
_INSIDE = re.compile(
    r"\{\{-?\s*(?P<jinja>[^{}]*?)\s*-?\}\}"
    r"|\$\{(?:oc\.env:|env:)?(?P<braced>[A-Za-z_][\w.]*)(?:(?P<mark>,|:-|:=|-)(?P<default>[^{}]*))?\}"
)
# A text that is one as a whole: `$NAME`, `<YOUR MODEL>`, `{name}`, OmegaConf's `???`.
_WHOLE = re.compile(
    r"\$(?P<plain>[A-Za-z_]\w*)|<(?P<angle>[A-Za-z][\w ./:-]*)>|\{\s*(?P<single>[A-Za-z_][\w. ]*)\}"
    r"|\?\?\?"
)
# An unquoted `key: {{ X }}`, which is no YAML, and `key: {name}`, which would be a table.
_KEY, _END = r"(?m)^(\s*(?:- )?[\w.\"'-]+\s*:[ \t]+)", r"(?=[ \t]*(?:#.*)?$)"
_DOUBLE = re.compile(_KEY + r"\{\{([^{}'\"\n]*)\}\}" + _END)
_SINGLE = re.compile(_KEY + r"\{([A-Za-z_]\w*)\}" + _END)
# Names in angle brackets that are tokens of a vocabulary, not placeholders: `<pad>`, `<s>`.
_TOKEN = re.compile(r"[a-z0-9_]{1,12}")


@dataclass(frozen=True, slots=True)
class Filled:
    """`value`: the text with all that is known filled in. `unknown`: the placeholder that nobody
    fills in, as it is written, and `name`: the variable that would fill it, if it has a name."""

    value: str
    unknown: str = ""
    name: str = ""


def as_yaml(text: str) -> str:
    """A template's unquoted placeholders as texts of the same length, so that places stay."""
    text = _DOUBLE.sub(lambda found: f"{found[1]}'{{{found[2]}}}'", text)
    return _SINGLE.sub(lambda found: f"{found[1]}${found[2]} ", text)


def filled(text: str, variables: Mapping[str, object]) -> Filled:
    """A text with its placeholders filled in from variables, as far as these go."""
    whole = _WHOLE.fullmatch(text.strip())
    if whole is not None and not _TOKEN.fullmatch(whole["angle"] or ""):
        names = whole.groupdict()
        name = (names["plain"] or names["angle"] or names["single"] or "").strip()
        return _one(text.strip(), name, None, variables)
    result = Filled(text)
    for found in _INSIDE.finditer(text):
        # OmegaConf fills in a default after a comma itself; a shell's does not stand for YAML.
        default = found["default"] if found["mark"] == "," else None
        part = _one(found[0], (found["jinja"] or found["braced"] or "").strip(), default, variables)
        if part.unknown:
            return part
        result = Filled(result.value.replace(found[0], part.value))
    return result


def _one(written: str, name: str, default: str | None, variables: Mapping[str, object]) -> Filled:
    if name in variables:
        return Filled(str(variables[name]))
    if default is not None:
        return Filled(default.strip())
    return Filled("", written, name if re.fullmatch(r"[A-Za-z_]\w*", name) else "")
