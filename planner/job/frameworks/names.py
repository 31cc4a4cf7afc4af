"""Names of frameworks: the one list of names that every command accepts.

A name is a profile's own, or one of the `names` in its file. The dialect that reads and writes its
launch files follows from the profile (`planner.launch.registry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from hardware.files import shipped_toml
from planner.job.errors import unknown_name
from planner.job.unmodelled import refuse_unmodelled


@cache
def framework_names() -> tuple[str, ...]:
    """Names of the profiles that ship, sorted."""
    return tuple(
        sorted(
            entry.name.removesuffix(".toml")
            for entry in files("planner.job.frameworks").iterdir()
            if entry.name.endswith(".toml")
        )
    )


@cache
def _other_names() -> Mapping[str, str]:
    """Alternative name -> profile, from the `names` in the profiles' files."""
    return {
        word: name
        for name in framework_names()
        for word in shipped_toml("planner.job.frameworks", f"{name}.toml").get("names", ())
    }


@cache
def known_names() -> tuple[str, ...]:
    """Every name that a command accepts: profiles and their alternative names."""
    return (*framework_names(), *_other_names())


def names_of(profile: str) -> tuple[str, ...]:
    """The alternative names of a profile."""
    return tuple(word for word, name in _other_names().items() if name == profile)


def plain_name(name: str) -> str:
    """A name in lower case, with dashes."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def profile_named(name: str) -> str:
    """The profile of that name, ignoring case and `_`/`-`. UsageError for an unknown name."""
    wanted = plain_name(name)
    if wanted in framework_names():
        return wanted
    if wanted not in _other_names():
        refuse_unmodelled(name, f"framework {name!r}")
        raise unknown_name("framework", name, known_names(), "list them with: planner frameworks")
    return _other_names()[wanted]
