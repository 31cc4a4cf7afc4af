"""A growing log of reinforcement-learning steps: seconds of each step and of its phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.evidence.learn.logs import MOST_STEPS, LogFigures
from planner.evidence.rl.logs import Names, names_in, pairs_of, times_in
from planner.job.errors import UsageError
from planner.tune.follow import FollowedLog

# Separator of the names of the phases that a time covers.
AND = "+"


@dataclass
class FollowedSteps(FollowedLog):
    """The figures that a reinforcement-learning framework prints, read on from where the last look
    ended."""

    named: dict[str, list[float]] = field(default_factory=dict)

    def _line(self, text: str) -> None:
        super()._line(text)
        for name, value in pairs_of(text):
            some = self.named.setdefault(name, [])
            if len(some) < MOST_STEPS:
                some.append(value)

    @property
    def _names(self) -> Names | None:
        return names_in(self.named)

    @property
    def format(self) -> str:
        """The framework whose names the log has; empty if it has none of them."""
        names = self._names
        return names.framework if names is not None and self._steps(names) else ""

    @property
    def said(self) -> LogFigures:
        """The seconds of its steps; for other logs the usual figures."""
        names = self._names
        steps = [] if names is None else self._steps(names)
        return LogFigures(values=steps) if steps else super().said

    def _steps(self, names: Names) -> list[float]:
        return next((self.named[name] for name in names.step if name in self.named), [])

    def parts(self) -> Mapping[str, float]:
        """Steady seconds of phases; empty if no step has a time."""
        names = self._names
        if names is None:
            return {}
        try:
            timed = [*times_in(self.path, names, self.named)]
        except UsageError:
            return {}
        return {AND.join(one.phases): one.seconds for one in timed if one.phases}
