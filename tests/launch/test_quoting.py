"""Names that are text, whatever they hold: through every template of every target and launcher,
each file is read back by its language's own parser."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import tomli
import yaml
from markdown_it import MarkdownIt

from hardware.frozen import Named
from hardware.plain_text import guarded_cell, unguarded_cell
from planner.job.request import Request
from planner.job.specs import ModelSpec
from planner.launch import quoting, settings_text
from planner.launch.contract import Launch, NodesAs
from planner.launch.folder import launch_folder
from planner.launch.quoting import (
    Code,
    kubernetes_script,
    markdown_text,
    python_value,
    shell_word,
    yaml_value,
)
from planner.search.plan_file import read_plan_file
from tests.launch.test_round_trip import EXAMPLES, example

NAMES = (
    'H100"sxm"', "H100: ours", "a'b", "x$(touch PWNED)", "`touch PWNED`", '"""', "'''", "{{ x }}",
    "# no", "%s%n", "größe 模型 😀", " two  blanks ", "-rf", "--help", "=1+1", "@cmd", "a\\", "\\n",
    "${HOME}", "$HOME", "}; touch PWNED #", "a|b", "<b>x</b>", "[a](b)", "*x*", "!tag", "&a *a",
    "${model}", "EOF", "$$(x)", "a,b", "null", "1e3", "~", "|",
)  # fmt: skip
# All of them in one name, which every file then holds.
HOSTILE = " ".join(NAMES)
NODES_AS = get_args(NodesAs)
RUN = (
    r'\s*export RUN_NAME="\$\{RUN_NAME:-[-a-z0-9]*\}"|'
    r"\s*--(master-addr|main_process_ip) [-a-z0-9.]+ --[-\w ]+ \\|"
    r"\s*JAX_COORDINATOR_IP=[-a-z0-9.]+ \\"
)
CONTROLS = ("a\nb", "a\rb", "a\x1b[2Jb", "a\x00b", "a\x85b", "a\u2028b", "a\u202eb", "a\tb")


def hostile(launch: Launch, name: str = HOSTILE) -> Launch:
    """The launch with such a name for its model and its GPU."""
    job = launch.job
    gpu = job.cluster.gpu.model_copy(update={"name": name})
    cluster = job.cluster.model_copy(update={"gpu": gpu, "name": name})
    model = job.model.model_copy(update={"name": name})
    return replace(launch, job=replace(job, model=model, cluster=cluster))


def strings(tree: ast.AST) -> list[str]:
    """Every string constant of a Python file."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def without_texts(tree: ast.AST) -> str:
    """A Python file's code with its strings left out."""
    return re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "TEXT", ast.dump(tree))


def scripts_in(name: str, text: str) -> Iterator[str]:
    """Shell scripts of a file, those inside jobs too."""
    if name == "submit" or name.endswith((".sh", ".sbatch")):
        yield text
    elif name == "sky.yaml":
        yield yaml.safe_load(text)["run"]
    elif name in ("jobset.yaml", "trainjob.yaml"):
        job = list(yaml.safe_load_all(text))[-1]
        yield from arguments_in(job)


def arguments_in(document: object) -> Iterator[str]:
    """The `args` of containers, as Kubernetes hands them on."""
    if isinstance(document, dict):
        yield from (kubernetes_expanded(text) for text in document.get("args", ()))
    inside = document.values() if isinstance(document, dict) else document
    for item in inside if isinstance(document, dict | list) else ():
        yield from arguments_in(item)


def words(script: str) -> list[str]:
    """What bash makes of a script's text without its comments, which no name may end."""
    return [line for line in script.split("\n") if not line.lstrip().startswith("#")]


def json_or_csv(name: str, text: str) -> None:
    if name.endswith((".json", ".jsonl")):
        for document in text.splitlines() if name.endswith("l") else [text]:
            json.loads(document)
    elif name.endswith(".csv"):
        (row,) = csv.DictReader(io.StringIO(text))
        assert unguarded_cell(row["model"]) == HOSTILE
        assert unguarded_cell(row["gpu"]) == HOSTILE


@pytest.mark.parametrize("nodes_as", NODES_AS)
@pytest.mark.parametrize("target", EXAMPLES)
def test_a_name_stays_text_in_every_file(
    target: str, nodes_as: NodesAs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[str] = set()
    real = settings_text.shipped_text

    def seen(package: str, name: str) -> str:
        used.add(name)
        return real(package, name)

    monkeypatch.setattr(settings_text, "shipped_text", seen)
    settings_text._text.cache_clear()
    innocent = replace(example(target), nodes_as=nodes_as)
    plain = launch_folder(hostile(innocent, "plain")).files
    odd = launch_folder(hostile(innocent)).files
    assert set(odd) == set(plain)
    for name, text in odd.items():
        file = tmp_path / "file"
        file.write_text(text, encoding="utf-8")
        for script in scripts_in(name, text):
            done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True,
                                  check=False)  # fmt: skip
            assert done.returncode == 0, (name, done.stderr)
        if name.endswith(".py"):
            assert without_texts(ast.parse(text)) == without_texts(ast.parse(plain[name])), name
        elif name.endswith(".yaml"):
            assert_same_keys(list(yaml.safe_load_all(text)), list(yaml.safe_load_all(plain[name])))
        elif name.endswith(".md"):
            assert_no_html(text)
        json_or_csv(name, text)
        for ours, theirs in zip(
            [line for script in scripts_in(name, plain[name]) for line in words(script)],
            [line for script in scripts_in(name, text) for line in words(script)],
            strict=True,
        ):
            # What is no comment names no model: only the name of the run does, in letters.
            assert theirs == ours or re.fullmatch(RUN, theirs), theirs
    assert not (tmp_path / "PWNED").exists()
    assert used


def assert_same_keys(one: object, other: object) -> None:
    """Two documents differ in texts alone."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        assert list(one) == list(other)
        for key in one:
            assert_same_keys(one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_keys(left, right)


def assert_no_html(text: str) -> None:
    """A page shows the name and makes no element or link of it."""
    tokens = [part for token in MarkdownIt().enable("table").parse(text)
              for part in (token, *(token.children or ()))]  # fmt: skip
    assert not [token for token in tokens if "html" in token.type or token.type == "link_open"]
    heading = next(token for token in tokens if token.type == "inline")
    shown = "".join(part.content for part in heading.children or ())
    assert " ".join(HOSTILE.split()) in " ".join(shown.split())


def test_every_template_is_filled_by_the_one_function_that_quotes() -> None:
    """All of `templates/`: each has a language, and no other module reads one."""
    names = [path.name for path in Path(quoting.__file__).parent.rglob("templates/*.txt")]
    assert len(names) > 15
    for name in names:
        assert Path(name.removesuffix(".txt")).suffix in quoting.LANGUAGES, name
    reads = re.compile(r"shipped_text|\.read_text\(")
    modules = Path(quoting.__file__).parent.rglob("*.py")
    reading = {path.name for path in modules if reads.search(path.read_text("utf-8"))}
    assert reading & {path.name for path in Path(quoting.__file__).parent.glob("*.py")} == {
        "registry.py",
        "settings_text.py",
    }


@pytest.mark.parametrize("name", [*NAMES, HOSTILE])
def test_each_language_gives_a_value_back(name: str, tmp_path: Path) -> None:
    assert ast.literal_eval(python_value(name)) == name
    assert yaml.safe_load(f"x: {yaml_value(name)}") == {"x": name}
    assert yaml.safe_load(f"- {yaml_value([name, 1])}") == [[name, 1]]
    script = f"printf '%s\\0' {shell_word(name)}"
    live = {"HOME": "${HOME}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=True,
                          cwd=tmp_path, env=live)  # fmt: skip
    assert done.stdout == f"{name}\0"
    assert not [*tmp_path.iterdir()]
    shown = MarkdownIt().renderInline(markdown_text(name))
    assert "<" not in shown
    assert kubernetes_expanded(kubernetes_script(name)) == name


def kubernetes_expanded(text: str) -> str:
    """As Kubernetes does it (third_party/forked/golang/expansion): `$$` is a dollar, and $(NAME)
    stays where no variable has that name."""
    return re.sub(r"\$\$", "$", text)


def test_a_word_with_a_variable_runs_nothing(tmp_path: Path) -> None:
    word = shell_word('${DATA}/$(touch PWNED)`touch PWNED`"\\')
    given = {"DATA": "/d", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-uc", f"printf %s {word}"], capture_output=True, text=True,
                          check=True, cwd=tmp_path, env=given)  # fmt: skip
    assert done.stdout == '/d/$(touch PWNED)`touch PWNED`"\\'
    assert not [*tmp_path.iterdir()]


def test_code_is_left_alone() -> None:
    text = settings_text.filled("torchtitan/inits.py.txt", init_std=Code("1 + 1"))
    assert "std=1 + 1" in text
    assert 'std="1 + 1"' in settings_text.filled("torchtitan/inits.py.txt", init_std="1 + 1")


@pytest.mark.parametrize("text", CONTROLS)
def test_no_name_of_any_record_holds_a_control_character(text: str) -> None:
    model = example("megatron-core").job.model
    fields = model.model_dump() | {"name": text}
    with pytest.raises(ValueError, match=r"name .* contains a control character"):
        ModelSpec.model_validate(fields)
    for field in ("model", "gpus", "cluster", "framework", "optimizer", "schedule", "use"):
        given = (text,) if field == "use" else text
        with pytest.raises(ValueError, match="contains a control character"):
            Request(**{"model": "8b", "gpus": "8xH100", "gbs": 8, field: given})


def test_every_record_that_is_read_from_a_user_is_one_with_names() -> None:
    """Those whose texts come to a launch: found by their base."""
    found = {cls.__name__ for cls in _below(Named)}
    assert found >= {"Request", "ModelSpec", "Gpu", "Cluster", "GpuRecord", "Plan", "Optimizer"}


def _below(cls: type) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _below(sub)


def test_a_plan_file_brings_no_line_breaks(tmp_path: Path) -> None:
    document = json.loads(launch_folder(example("megatron-core")).files["plan.json"])
    document["plans"][0]["technique_flags"] = "--x\nrm -rf /"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"technique_flags .* control character"):
        read_plan_file(path)


@pytest.mark.parametrize("cell", ["=1+1", "+cmd", "-x", "@x", "\tx", "\rx", "--flag"])
def test_a_cell_is_no_formula(cell: str) -> None:
    assert guarded_cell(cell) == f"'{cell}"
    assert unguarded_cell(f"'{cell}") == cell


@pytest.mark.parametrize(
    "cell", ["-1", "+2.5", "-3e-4", -1, 2.5, "", "-", "it's", "'quoted'", None]
)
def test_numbers_and_plain_texts_stay(cell: object) -> None:
    assert guarded_cell(cell) == cell


def test_toml_of_odd_names() -> None:
    from planner.job.written import toml_text

    assert tomli.loads(toml_text({"name": HOSTILE}))["name"] == HOSTILE
