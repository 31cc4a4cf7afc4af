"""`planner models`: the model catalogue."""

from __future__ import annotations

from planner.cli.output import show
from planner.job.models.catalog import load_model, model_names
from planner.predict.ops import parameter_count
from planner.report.models import model_document, model_report, models_report


def run(name: str | None, as_json: bool) -> None:
    if name is not None:
        model = load_model(name)
        entry = model, parameter_count(model.spec)
        show(as_json, lambda: model_document(*entry), lambda: model_report(*entry))
        return
    models = [(model, parameter_count(model.spec)) for model in map(load_model, model_names())]
    show(as_json, lambda: [model_document(*one) for one in models], lambda: models_report(models))
