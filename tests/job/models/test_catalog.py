"""Resolving what a person typed to a model, and reading the catalogue's own format."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from planner.job.errors import ModelError
from planner.job.models import catalog, toml_file
from planner.job.models.catalog import catalog_name, load_model, model_names
from planner.job.models.toml_file import ModelFile
from planner.job.specs import ModelSpec

MODELS = Path(catalog.__file__).parent

TINY = """
source = "made up"
[shape]
layers = 4
hidden = 64
heads = 4
kv_heads = 2
head_dim = 16
ffn = 256
vocab = 1000
max_positions = 128
pretraining_seq = 128
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "tiny.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("70b", "llama-3-70b"),
        ("70B", "llama-3-70b"),
        ("7b", "llama-2-7b"),
        ("405b", "llama-3.1-405b"),
        ("175b", "gpt3-175b"),
        ("671b", "deepseek-v3"),
        ("dsv3", "deepseek-v3"),
        ("8x7b", "mixtral-8x7b"),
        ("120b", "gpt-oss-120b"),
        ("Llama3_70B", "llama-3-70b"),
        ("gpt3-13b", "gpt3-13b"),
        ("gpt3-1.3b", "gpt3-1.3b"),
        ("meta-llama/Meta-Llama-3-70B", "llama-3-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("Meta-Llama-3-70B", "llama-3-70b"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("Qwen3.6-27B", "qwen3.5-27b"),
        ("qwen3.5-397b", "qwen3.5-397b-a17b"),
        ("zai-org/GLM-4.7", "glm-4.7"),
        ("glm4.7-flash", "glm-4.7-flash"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
    ],
)
def test_names(asked: str, name: str) -> None:
    assert catalog_name(asked) == name


def test_the_answer_tells_what_an_alias_meant() -> None:
    model = load_model("70b")
    assert (model.asked, model.alias_of, model.name) == ("70b", "llama-3-70b", "llama-3-70b")
    assert load_model("llama-3-70b").alias_of is None


def test_every_alias_and_hugging_face_name_leads_to_a_file() -> None:
    tables = tomllib.loads((MODELS / "aliases.toml").read_text(encoding="utf-8"))
    for table in tables.values():
        for other, name in table.items():
            assert catalog_name(other) == name
            assert (MODELS / f"{name}.toml").is_file()


@pytest.mark.parametrize("name", model_names())
def test_the_hugging_face_name_leads_back(name: str) -> None:
    model = load_model(name)
    assert model.source
    assert not model.hf_name or catalog_name(model.hf_name) == name


def test_names_differ_beyond_case_and_separators() -> None:
    files = {path.stem for path in MODELS.glob("*.toml")} - {"aliases"}
    assert set(model_names()) == files


def test_names_are_in_numeric_order() -> None:
    names = model_names()
    assert names.index("llama-3-8b") < names.index("llama-3-70b") < names.index("llama-3.1-8b")


def test_loading_a_model_parses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = toml_file.read_model_toml

    def recorded(path: Path, *usual: Any) -> tuple[ModelFile, ModelSpec]:
        read.append(path.stem)
        return original(path, *usual)

    monkeypatch.setattr(toml_file, "read_model_toml", recorded)
    catalog._shipped.cache_clear()
    load_model("70b")
    assert read == ["llama-3-70b"]


def test_loading_a_model_imports_nothing_heavy() -> None:
    code = (
        "import sys; from planner.job.models.catalog import load_model; load_model('70b');"
        "print([m for m in ('numba', 'pandas', 'ortools', 'numpy') if m in sys.modules])"
    )
    folder = MODELS.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("asked", "close"), [("llama-3-71b", "llama-3-70b"), ("Qwen/Qwen3-33B", "qwen3-32b")]
)
def test_unknown_names_get_close_matches(asked: str, close: str) -> None:
    with pytest.raises(ModelError, match=f"unknown model '{asked}'") as caught:
        load_model(asked)
    assert close in str(caught.value)
    assert "list them with: planner models" in str(caught.value)


@pytest.mark.parametrize("asked", ["", "   ", "/", "zzzzzzzz", "...", "~nobody-here/x", "x" * 5000])
def test_unknown_names_without_close_matches(asked: str) -> None:
    with pytest.raises(ModelError):
        load_model(asked)


@pytest.mark.parametrize(
    ("asked", "reason", "nearest"),
    [
        ("deepseek-v3.2", "attention is sparse", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "attention is sparse", "deepseek-v3"),
        ("DeepSeek-V4-Flash", "hyper-connections", "deepseek-v3"),
        ("zai-org/GLM-5", "attention is sparse", "glm-4.7"),
        ("glm-5.2", "attention is sparse", "glm-4.7"),
        ("kimi-k3", "delta attention", "kimi-k2.5"),
        ("google/gemma-4-31b-it", "wider heads", "gemma-3-27b"),
        ("gemma-4-e4b", "embeddings for each layer", "gemma-3-4b"),
    ],
)
def test_models_with_parts_that_are_not_described_are_refused_by_name(
    asked: str, reason: str, nearest: str
) -> None:
    with pytest.raises(ModelError, match=f"is not planned: .*{reason}") as caught:
        load_model(asked)
    assert f"--model {nearest}" in str(caught.value)
    assert catalog_name(nearest) == nearest


def test_layer_kinds_are_expanded() -> None:
    deepseek = load_model("deepseek-v3").spec
    assert [kind.ffn for kind in deepseek.kind_sequence[:4]] == ["dense", "dense", "dense", "moe"]
    maverick = load_model("llama-4-maverick").spec
    assert [kind.ffn for kind in maverick.kind_sequence[:3]] == ["dense", "moe", "dense"]
    gemma = load_model("gemma-3-27b").spec
    attention = [kind.attention for kind in gemma.kind_sequence]
    assert attention[:6] == ["sliding"] * 5 + ["full"]
    assert attention.count("full") == 10


@pytest.mark.parametrize(
    ("name", "seq"),
    [("llama-2-70b", 4096), ("llama-3.1-405b", 8192), ("deepseek-v3", 4096), ("gpt2", 1024)],
)
def test_pretraining_sequence_is_not_the_longest_context(name: str, seq: int) -> None:
    assert load_model(name).spec.pretraining_seq == seq


def test_a_model_toml_is_read_from_a_path(tmp_path: Path) -> None:
    path = _write(tmp_path, TINY)
    model = load_model(path)
    assert (model.name, model.alias_of, model.exact_parameters) == ("tiny", None, None)
    assert model.spec.layers == 4
    assert load_model(str(path)).spec == model.spec


def test_a_file_of_a_family_has_the_style_of_that_family_and_says_so(tmp_path: Path) -> None:
    """A GPT-2 is no gated, rotary model with RMSNorm, whatever ModelSpec's defaults are."""
    shape = """
[shape]
family = "gpt2"
layers = 12
hidden = 768
heads = 12
kv_heads = 12
head_dim = 64
ffn = 3072
vocab = 50257
max_positions = 1024
pretraining_seq = 1024
"""
    model = load_model(_write(tmp_path, shape))
    shipped = load_model("gpt2").spec
    assert {name: getattr(model.spec, name) for name in toml_file.STYLE} == {
        name: getattr(shipped, name) for name in toml_file.STYLE
    }
    (note,) = model.notes
    assert 'norm = "layernorm"' in note and "family gpt2" in note
    stated = load_model(_write(tmp_path, shape + 'norm = "rmsnorm"\n'))
    assert stated.spec.norm == "rmsnorm" and "norm =" not in stated.notes[0].split("mlp_bias")[0]


def test_a_file_without_a_family_says_what_was_assumed(tmp_path: Path) -> None:
    (note,) = load_model(_write(tmp_path, TINY.replace('source = "made up"\n', ""))).notes
    assert note.startswith("[shape] does not state these, which are taken from the defaults")
    (note,) = load_model(_write(tmp_path, TINY + 'family = "gpt22"\n')).notes
    assert "the defaults, because no catalogue model is of family gpt22" in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TINY.replace("hidden = 64", "hidden = -64"), "hidden: .*greater than 0.*-64"),
        (TINY.replace("hidden = 64\n", ""), "hidden: Field required"),
        (TINY + "hiden = 3\n", "hiden: Extra inputs"),
        (TINY + 'name = "x"\n', "shape.name is given by the file name"),
        (TINY.replace("kv_heads = 2", "kv_heads = 3"), "heads=4 is not a multiple of kv_heads=3"),
        (TINY + "[layers]\nmoe_every = 2\n", r"no \[shape.moe\] table"),
        (TINY + '[layers]\nattention = ["sliding"]\n', "sliding_window is not given"),
        (TINY + "[layers]\nattention = []\n", "layers.attention"),
        ("source = = 'x'", "not valid TOML: .*line 1"),
        ("source = 'x'", "shape: Field required"),
    ],
)
def test_a_wrong_model_toml_is_refused_by_file_and_field(
    tmp_path: Path, text: str, message: str
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_model(tmp_path / "none.json")
    with pytest.raises(ModelError, match=r"a folder with a config\.json"):
        load_model(tmp_path)
    (tmp_path / "x.yaml").write_text("a: 1", encoding="utf-8")
    with pytest.raises(ModelError, match=r"must be a config\.json or a model \.toml"):
        load_model(tmp_path / "x.yaml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="not a text file in UTF-8"):
        load_model(tmp_path / "bad.toml")
