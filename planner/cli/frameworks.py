"""`planner frameworks`: what each training framework can express."""

from __future__ import annotations

from planner.cli.output import show
from planner.job.frameworks import framework_names, load_framework
from planner.report.frameworks import framework_report, frameworks_report, settings_document


def run(name: str | None, as_json: bool, whole: bool) -> None:
    if name is not None:
        profile = load_framework(name)
        show(as_json, lambda: settings_document(profile), lambda: framework_report(profile, whole))
        return
    profiles = [load_framework(known) for known in framework_names()]
    shown = [profile for profile in profiles if whole or profile.listed]
    show(
        as_json,
        lambda: [*map(settings_document, shown)],
        lambda: frameworks_report(shown),
    )
