"""What files say of a job's time limit and of when its run saves: whether the limit costs work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from planner.launch.languages.text import Text, digits
from planner.launch.read.command import LaunchCommand
from planner.launch.read.found import Found, Saving
from planner.launch.read.world import slurm_options

# How programs say it: options of the command, overrides, and keys of configuration files.
_EVERY = ("save_interval", "save_steps", "checkpoint.save_interval", "checkpoint.interval",
          "checkpoints.checkpoint_interval")  # fmt: skip
_STOP = ("exit_duration_in_mins", "stop_after_minutes", "train.exit_duration_in_mins")
_STEPS = ("train_iters", "max_steps", "steps", "train.train_iters", "training.steps",
          "tokens.train_steps")  # fmt: skip
# Options by which a signal makes the run save, whatever the interval.
_ON_SIGNAL = ("exit_signal_handler", "enable_jit_checkpoint", "train.exit_signal_handler")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def stated_saving(
    scripts: Sequence[Text], launch: LaunchCommand | None, found: Found
) -> Saving | None:
    """Time limit and checkpoints of a launch; None without a limit, or where a signal saves."""
    limits = [value for text in scripts for value in _limits(text)]
    if not limits or launch is None or any(name in launch.given for name in _ON_SIGNAL):
        return None
    limit = limits[-1]
    place = limit.first()
    minutes = _number(_STOP, launch, found)
    seconds = _seconds(limit.value)
    if seconds is None:
        return None
    return Saving(
        seconds,
        limit.value,
        f"{place.file.path}:{place.line}" if place else "",
        _number(_EVERY, launch, found),
        None if minutes is None else 60.0 * minutes,
        _number(_STEPS, launch, found),
    )


def _limits(text: Text) -> Iterator[Text]:
    options = slurm_options(text)
    yield from (options[name] for name in ("--time", "-t") if name in options)


def _seconds(text: str) -> float | None:
    """Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, *parts = (None if part is None else int(part) for part in match.groups())
    given = [part for part in parts if part is not None]
    units = (3600, 60, 1) if days is not None or len(given) == 3 else (60, 1)
    clock = sum(unit * part for unit, part in zip(units, given, strict=False))
    return 86400.0 * (days or 0) + clock


def _number(names: Sequence[str], launch: LaunchCommand, found: Found) -> int | None:
    """The first of some settings that is stated as a whole number."""
    for name in names:
        setting = launch.given.get(name) or found.setting(name)
        stated = _override(name, launch) if setting is None else str(setting.value)
        if number := digits(stated):
            return number
    return None


def _override(name: str, launch: LaunchCommand) -> str:
    """The value of `section.field=value` among the command's words; empty if there is none."""
    words = (word.text.value.partition("=") for word in launch.arguments)
    return next((value for key, _, value in words if key == name), "")
