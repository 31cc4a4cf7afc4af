"""Settings are declared once: what reads them finds each, with its unit and its meaning."""

from __future__ import annotations

from hardware.curves import ArchitectureCurves, AttentionCurve
from hardware.settings import Coefficient
from planner.cost.inputs import GpuInputs
from planner.cost.tables import FrameworkInputs
from planner.job.frameworks.tables import TABLES, settings_of
from planner.predict.cost_tables import (
    derived_inputs,
    job_pieces,
    parameter_inputs,
    profile_settings,
)
from tests.cost.jobs import make_job
from tests.documents.data_tables import FOLDER
from tests.documents.settings import PAGE, meanings, page_text, tables


def test_the_page_is_what_is_declared() -> None:
    """If this fails: `python -m tests.documents.settings`."""
    assert PAGE.read_text(encoding="utf-8") == page_text()
    for name, text in (file for table in tables() for file in table.files().items()):
        assert (PAGE.parent / FOLDER / name).read_text(encoding="utf-8") == text


def test_every_setting_says_what_it_means_and_in_which_unit() -> None:
    for item in (entry for table in TABLES for entry in settings_of(table)):
        assert item.meaning.endswith((".", ")")), item
        assert item.unit or not item.type.startswith(("number", "integer")), item
        if item.name.endswith("_bytes") or "_bytes_" in item.name:
            assert item.unit.startswith("B"), item
        if item.name.endswith("_s"):
            assert item.unit == "s", item


def test_what_the_core_reads_is_one_setting_or_derived_and_explained() -> None:
    job = make_job("llama-3-8b", "8xH100", "megatron-core")
    settings = profile_settings(job.framework)
    names = [item.name for table in TABLES for item in settings_of(table)]
    names += [f"hide_{item.name}" for item in settings_of("overlap")]
    explained = set(meanings(FrameworkInputs))
    derived = {
        *derived_inputs(job, job.framework),
        *parameter_inputs(job, job.framework, job_pieces(job)),
        *FrameworkInputs._field_defaults,
    }
    assert explained == derived
    for name in set(FrameworkInputs._fields) - explained:
        assert name in settings, name
        assert names.count(name) == 1, name


def test_what_the_core_reads_of_a_gpu_is_a_figure_of_the_curves_or_explained() -> None:
    figures = set(_figures(ArchitectureCurves))
    figures |= {f"attention_{name}" for name in _figures(AttentionCurve)}
    explained = set(meanings(GpuInputs))
    assert figures >= set(GpuInputs._fields) - explained
    assert not figures & explained


def _figures(kind: type[ArchitectureCurves | AttentionCurve]) -> list[str]:
    figures = {
        name: one for name, one in kind.model_fields.items() if one.annotation is Coefficient
    }
    assert all(one.description for one in figures.values())
    return list(figures)
