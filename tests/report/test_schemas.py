"""What commands print is what their schemas say, and schemas do not change unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner.job.errors import UsageError
from planner.report.schemas import SCHEMAS, schema_of
from tests.cli.conftest import SMALL, run_cli

EXAMPLE = Path(__file__).parents[2] / "examples" / "05_check_a_script" / "run.sh"
STUDY = ("--model", "llama-3.2-1b", "--gbs", "64", "--tokens", "1G", "-q")
# What each document is printed by; PLANS stands for a plan file.
COMMANDS: dict[str, tuple[str, ...]] = {
    "search": ("search", *SMALL, "--json", "-q"),
    "explain": ("explain", "PLANS", "1", "--no-neighbours", "--json"),
    "explain-two": ("explain", "PLANS", "1", "2", "--json"),
    "fit": ("fit", *SMALL, "--json", "-q"),
    "memory": ("memory", *SMALL, "--mbs", "1", "--json", "-q"),
    "check": ("check", str(EXAMPLE), "--gpus", "32xH100", "--json"),
    "launch": ("launch", "PLANS", "1", "-o", "FOLDER", "--json"),
    "compare": ("compare", *STUDY, "--gpus", "8xH100", "--gpus", "8xA100", "--json"),
    "scale": ("scale", *STUDY, "--gpus", "H100", "--counts", "8,16", "--json"),
    "buy": ("buy", *STUDY, "--gpus", "8xH100", "--json"),
    "budget": ("budget", "--gpus", "8xH100", "--days", "3", "--json", "-q"),
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schemas") / "plans.json"
    job = ("--model", "qwen3-0.6b", "--gpus", "8xH100", "--gbs", "64")
    run_cli("search", *job, "--all", "-q", "-o", str(path))
    return path


def printed(name: str, plans: Path, folder: Path) -> Any:
    places = {"PLANS": str(plans), "FOLDER": str(folder / "run")}
    result = run_cli(*(places.get(part, part) for part in COMMANDS[name]))
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_printed_is_as_its_schema_says(name: str, plans: Path, tmp_path: Path) -> None:
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(printed(name, plans, tmp_path), schema)


def test_a_document_that_lacks_a_field_is_refused(plans: Path) -> None:
    document = json.loads(plans.read_text(encoding="utf-8"))
    del document["plans"][0]["peak_bytes"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema_of("search"))


def test_inputs_have_schemas_too(plans: Path) -> None:
    document = json.loads(plans.read_text(encoding="utf-8"))
    jsonschema.validate(document["request"], schema_of("request"))
    assert "layers" in schema_of("model")["properties"]


def test_every_schema_says_its_version_and_has_a_command_that_tests_it() -> None:
    for name, one in SCHEMAS.items():
        assert schema_of(name)["$id"] == f"urn:trainplan:{name}:{one.version}"
        assert name in COMMANDS or one.mode == "validation"


def test_an_unknown_document_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'search'"):
        schema_of("serch")


def test_the_command_lists_and_prints_them() -> None:
    listed = run_cli("schemas").stdout
    assert all(name in listed for name in SCHEMAS)
    assert json.loads(run_cli("schemas", "search").stdout) == schema_of("search")
