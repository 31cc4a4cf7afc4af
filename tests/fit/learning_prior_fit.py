"""Refit of how far clusters differ from the catalogue (`planner.evidence.learn.priors`).

python -m tests.fit.learning_prior_fit > planner/evidence/data/learning_priors.toml
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from hardware.calibration import Figure, parameters_of
from planner.evidence.learn.posterior import Prior
from planner.evidence.learn.priors import FIGURES, fitted_prior, published
from planner.evidence.runs.predict import predict_rows
from planner.job.written import toml_text
from tests.fit.command import rows_of_errors, run

COMMAND = "python -m tests.fit.learning_prior_fit"
_ABOUT = """\
# Prior spreads of calibration's factors: standard deviations of their logarithms over
# clusters of published runs, and `noise` of ln(measured / predicted) of a run beside
# them (planner/evidence/learn/priors.py).
"""


def render(priors: dict[Figure, Prior]) -> str:
    """The TOML file."""
    tables = {
        figure: {
            "noise": prior.noise,
            **{
                one.name: float(spread)
                for one, spread in zip(parameters_of(figure), prior.spreads, strict=True)
            },
        }
        for figure, prior in priors.items()
    }
    head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": COMMAND}
    return _ABOUT + toml_text(head | tables)


def main(paths: Sequence[str]) -> None:
    """Write the file to standard output."""
    predictions = predict_rows(rows_of_errors(paths))
    priors = {figure: fitted_prior(published(predictions, figure)) for figure in FIGURES}
    sys.stdout.write(render(priors))


if __name__ == "__main__":
    run(main, sys.argv[1:])
