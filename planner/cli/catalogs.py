"""`planner models`, `hardware`, `frameworks` and `schemas`. Each command imports only what it
shows."""

from __future__ import annotations

import json

import click

from planner.cli.output import show


def run_models(name: str | None, as_json: bool) -> None:
    from planner.job.models.catalog import load_model, model_names
    from planner.predict.ops.table import parameter_count
    from planner.report.models import model_document, model_report, models_report

    names = model_names() if name is None else [name]
    models = [(model, parameter_count(model.spec)) for model in map(load_model, names)]
    if name is not None:
        show(as_json, lambda: model_document(*models[0]), lambda: model_report(*models[0]))
        return
    show(as_json, lambda: [model_document(*one) for one in models], lambda: models_report(models))


def run_hardware(name: str | None, as_json: bool) -> None:
    from planner.report import hardware

    if name is None:
        show(as_json, hardware.hardware_documents, hardware.hardware_report)
    else:
        show(as_json, lambda: hardware.named_document(name), lambda: hardware.named_report(name))


def run_frameworks(name: str | None, as_json: bool, whole: bool) -> None:
    from planner.job.frameworks.names import framework_names
    from planner.job.frameworks.profile import load_framework
    from planner.report.frameworks import framework_report, frameworks_report, settings_document

    if name is not None:
        profile = load_framework(name)
        show(as_json, lambda: settings_document(profile), lambda: framework_report(profile, whole))
        return
    profiles = [load_framework(known) for known in framework_names()]
    shown = [profile for profile in profiles if whole or profile.listed]
    show(as_json, lambda: [*map(settings_document, shown)], lambda: frameworks_report(shown))


def run_schemas(name: str | None, as_json: bool) -> None:
    from planner.cli.schemas import DOCUMENTS, schema_of
    from planner.report.said import table_of
    from planner.report.tables import Report

    if name is not None:
        click.echo(json.dumps(schema_of(name), indent=1, ensure_ascii=False))
        return
    rows = [
        {
            "name": known, "version": one.version, "words": one.words,
            "of": "input" if one.input else ", ".join(one.of),
        }
        for known, one in DOCUMENTS.items()
    ]  # fmt: skip
    show(as_json, lambda: rows, lambda: Report((table_of("schemas.table", rows),)))
