"""What commands print is what their schemas say, and schemas do not change unnoticed."""

from __future__ import annotations

import csv
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner.cli.declared import command, commands
from planner.cli.schemas import DOCUMENTS, schema_of
from planner.job.errors import UsageError
from tests.cli.conftest import SMALL, run_cli
from tests.cli.test_rl_evidence import LOG, SEARCH, table
from tests.evidence.rl.cases import COLOCATED, SEPARATE
from tests.evidence.traces import made_up
from tests.evidence.traces.test_snapshot import snapshot, written

TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"
STUDY = ("--model", "llama-3.2-1b", "--gbs", "64", "--tokens", "1G", "-q", "--gpus", "8xH100")
RL = (*SEARCH[5:], "-q", "--model", "qwen3-0.6b")
RUNS = EXAMPLES / "07_own_runs" / "runs.csv"
# What each document is printed by; capitals stand for files that `places` makes.
PRINTED: dict[str, tuple[str, ...]] = {
    "search": ("search", *SMALL, "-q"),
    "search-clusters": ("search", *SMALL, "--gpus", "8xA100", "-q"),
    "nothing-fits": ("search", "--model", "70b", "--gpus", "1xH100", "--gbs", "1", "-q"),
    "explain": ("explain", "PLANS", "1", "--no-neighbours"),
    "explain-two": ("explain", "PLANS", "1", "2"),
    "fit": ("fit", *SMALL, "-q"),
    "memory": ("memory", *SMALL, "--mbs", "1", "-q"),
    "inference": ("memory", "--inference", "--model", "8b", "--gpus", "1xH100"),
    "check": ("check", str(EXAMPLES / "05_check_a_script" / "run.sh"), "--gpus", "32xH100"),
    "launch": ("launch", "PLANS", "1", "-o", "FOLDER"),
    "compare": ("compare", *STUDY, "--gpus", "8xA100"),
    "compare-explain": ("compare", *STUDY, "--explain", "8xH100"),
    "scale": ("scale", *STUDY[:-1], "H100", "--counts", "8,16"),
    "buy": ("buy", *STUDY),
    "budget": ("budget", "--gpus", "8xH100", "--days", "3", "-q"),
    "sweep": ("sweep", "SWEEP", "--report"),
    "validate": ("validate", "--data", str(RUNS)),
    "validate-learn": ("validate", "--data", str(RUNS), "--learn", "1"),
    "validate-rl": ("validate", "--data", "RL_RUNS"),
    "trace": ("trace", "TRACE"),
    "snapshots": ("trace", "SNAPSHOT"),
    "lengths": ("lengths", str(EXAMPLES / "09_samples" / "lengths.csv")),
    "calibrate": ("calibrate", "--from", str(RUNS), "-q"),
    "calibrate-suggest": ("calibrate", "--suggest", "--plan-file", "PLANS", "-q"),
    "calibrate-rl": ("calibrate", "--from", "RL_LOG", "--plan-file", "RL_PLANS", "-q"),
    "tune-dry-run": ("tune", "RL_PLANS", "--dry-run", "-q"),
    "rl-search": ("search", "--gpus", "4xH100", *RL),
    "rl-nothing-fits": ("search", "--gpus", "4xH100", *RL[:-1], "70b"),
    "rl-explain": ("explain", "RL_PLANS", "1"),
    "rl-compare": ("compare", *RL, "--gpus", "4xH100"),
    "rl-launch": ("launch", "RL_PLANS", "1", "-o", "FOLDER"),
    "models": ("models",),
    "model-record": ("models", "8b"),
    "hardware": ("hardware",),
    "gpu": ("hardware", "H100"),
    "node": ("hardware", "dgx-h100"),
    "frameworks": ("frameworks",),
    "framework": ("frameworks", "megatron-core"),
    "schemas": ("schemas",),
}
# Documents that need a cluster or take minutes, and the tests that make them.
MADE_BY = {"tune": "tune/test_cli.py", "tune-replay": "tune/test_recorded.py"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files that commands read."""
    folder = tmp_path_factory.mktemp("schemas")
    job = ("--model", "qwen3-0.6b", "--gpus", "8xH100", "--gbs", "64")
    run_cli("search", *job, "--all", "-q", "-o", str(folder / "plans.json"))
    run_cli(*SEARCH, "-q", "-o", str(folder / "rl.json"))
    sweep = folder / "grid.toml"
    sweep.write_text('model = "8b"\ngbs = 64\ntokens = "1G"\n[grid]\ngpus = ["8xH100"]\n')
    run_cli("sweep", str(sweep), "--processes", "1", "-q")
    shutil.copy(LOG, folder / "rl.log")
    return {
        "PLANS": str(folder / "plans.json"),
        "RL_PLANS": str(folder / "rl.json"),
        "RL_LOG": str(folder / "rl.log"),
        "RL_RUNS": str(table(folder / "rl.csv", COLOCATED, SEPARATE)),
        "SWEEP": str(sweep),
        "TRACE": str(made_up.write(folder / "a.json", made_up.trace())),
        "SNAPSHOT": str(written(folder / "a.pickle", snapshot())),
    }


@pytest.mark.parametrize("name", PRINTED)
def test_what_is_printed_is_as_its_schema_says(
    name: str, places: dict[str, str], tmp_path: Path
) -> None:
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    where = places | {"FOLDER": str(tmp_path / "run")}
    result = run_cli(*(where.get(part, part) for part in PRINTED[name]), "--json")
    jsonschema.validate(json.loads(result.stdout), schema)


def test_every_command_that_prints_json_has_schemas() -> None:
    described = {name for document in DOCUMENTS.values() for name in document.of}
    printing = {
        name for name in commands() if any("--json" in one.opts for one in command(name).params)
    }
    assert printing == described
    assert DOCUMENTS.keys() == PRINTED.keys() | MADE_BY.keys() | {
        name for name, document in DOCUMENTS.items() if document.input
    }
    for name, line in PRINTED.items():
        assert line[0] in DOCUMENTS[name].of
    for name, file in MADE_BY.items():
        assert f'schema_of("{name}")' in (TESTS / file).read_text(encoding="utf-8")


def test_files_that_cannot_be_read_have_the_schema_of_a_check(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo nothing\n")
    result = run_cli("check", str(tmp_path / "run.sh"), "--gpus", "8xH100", "--json")
    jsonschema.validate(json.loads(result.stdout), schema_of("check"))


def test_a_document_that_lacks_a_field_is_refused(places: dict[str, str]) -> None:
    document = json.loads(Path(places["PLANS"]).read_text(encoding="utf-8"))
    del document["plans"][0]["peak_bytes"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema_of("search"))


def _toml(path: Path) -> Any:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _row(path: Path, delimiter: str = ",") -> Any:
    with path.open(encoding="utf-8") as stream:
        return next(csv.DictReader(stream, delimiter=delimiter))


def test_inputs_are_as_their_schemas_say(places: dict[str, str], tmp_path: Path) -> None:
    model = tmp_path / "model.toml"
    run_cli("budget", "--gpus", "8xH100", "--days", "3", "-q", "--save-model", str(model))
    inputs = {
        "request": json.loads(Path(places["PLANS"]).read_text(encoding="utf-8"))["request"],
        "rl-request": json.loads(Path(places["RL_PLANS"]).read_text(encoding="utf-8"))["request"],
        "model": _toml(model),
        "model-shape": _toml(model)["shape"],
        "cluster-file": _toml(EXAMPLES / "04_custom_model" / "our-cluster.toml"),
        "offer": _toml(EXAMPLES / "06_quotes" / "offers.toml")["cluster"][0],
        "job": {"model": "8b", "tokens": "1T", "gbs-tokens": "4M"},
        "sweep-file": _toml(Path(places["SWEEP"])),
        "prices": _row(TESTS.parent / "hardware" / "catalog" / "prices.csv"),
        "measured": _row(RUNS, ";"),
        "rl-measured": _row(Path(places["RL_RUNS"])),
        "samples": _row(EXAMPLES / "09_samples" / "lengths.csv"),
    }
    assert inputs.keys() == {name for name, one in DOCUMENTS.items() if one.input}
    for name, content in inputs.items():
        schema = schema_of(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(content, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"model": 7, "gpu": 7, "gpus": 7, "length": 7}, schema)


def test_every_schema_says_its_version() -> None:
    for name, one in DOCUMENTS.items():
        assert schema_of(name)["$id"] == f"urn:trainplan:{name}:{one.version}"


def test_an_unknown_document_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'search'"):
        schema_of("serch")


def test_the_command_lists_and_prints_them() -> None:
    listed = run_cli("schemas").stdout
    assert all(name in listed for name in DOCUMENTS)
    assert json.loads(run_cli("schemas", "search").stdout) == schema_of("search")
