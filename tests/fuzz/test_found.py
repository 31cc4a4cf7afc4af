"""Inputs that once crashed, hung or passed for good: each stays refused, or read, as it should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hardware.files import json_content
from planner.cli.errors import ExitStatus
from tests.fuzz.command_line import BASES, POSITIONAL
from tests.fuzz.material import CALIBRATED, CONFIG, GEMM, NCCL, RUNS, SCRIPT, TEXTS, write_all
from tests.fuzz.outcome import Outcome, demand_kept_promises, run
from tests.fuzz.properties import plan_file

_COMPARE = ("compare", *BASES["compare"])
_SECONDS = 10.0


def tried(folder: Path, *arguments: str, **files: str | bytes) -> Outcome:
    """A command beside good files and others; `a_sh` is the file a.sh."""
    write_all(folder, plan_file("one cluster"))
    for name, content in files.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = run(arguments, folder)
    demand_kept_promises(found)
    assert found.seconds < _SECONDS, found.describe()
    return found


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        (*_COMPARE, "--load", "nan"),
        (*_COMPARE, "--utilisation", "nan"),
        (*_COMPARE, "--pue", "inf"),
        (*_COMPARE, "--capex", "1e400"),
        (*_COMPARE, "--mtbf-node", "nan"),
        (*_COMPARE, "--spares", "2147483648"),
        (*_COMPARE, "--carbon", "nan"),
        (*_COMPARE, "--time-limit", "inf"),
        ("evaluate", *BASES["evaluate"], "--seq", "1,2,"),
        ("evaluate", *BASES["evaluate"], "--gbs", "9" * 10_000),
        ("evaluate", *BASES["evaluate"], "--layers-per-stage", "4x1000000000"),
        ("evaluate", *BASES["evaluate"], "--cp", "1000000"),
        ("evaluate", "--model", "gpt2", "--gpus", "8xH100", "--gbs", "8", "--tp", "16"),
        ("search", *BASES["search"], "--seq", "9999999999"),
        ("search", *BASES["search"], "--hbm-reserve", "100%"),
        ("search", *BASES["search"], "--tp", "٣"),
        ("search", *BASES["search"], "--fix", "tp=٢"),
        ("search", *BASES["search"], "--time-limit", "٣"),
        ("search", *BASES["search"], "--gpus", "８xH100"),
        ("search", *BASES["search"], "--gpus", "8xH100,"),
        ("search", *BASES["search"], "--gpus", "8xH100@"),
        ("memory", *BASES["memory"], "--html", "x"),
        ("hardware", "\udcff"),
        ("models", "a\0b"),
        ("explain", "x" * 300),
        ("explain", "."),
        ("validate", "--data", "runs.csv", "--plot", ""),
    ],
    ids=lambda item: " ".join(item[-2:])[:40].encode("ascii", "replace").decode(),
)
def test_wrong_options_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert tried(tmp_path, *options).status == ExitStatus.WRONG_INPUT


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 1_000_000},
        {"hidden_size": 2**63},
        {"intermediate_size": 2**63 - 1},
        {"vocab_size": 10**30},
        {"rms_norm_eps": float("inf")},
        {"num_attention_heads": -8},
    ],
    ids=str,
)
def test_sizes_beyond_reason_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    if "rms_norm_eps" in change:
        text = json.dumps(CONFIG).replace("1e-05", "1e999")
    else:
        text = json.dumps(CONFIG | change)
    found = tried(tmp_path, "evaluate", "--model", "config.json", "--gpus", "8xH100", "--gbs", "8",
                config_json=text)  # fmt: skip
    assert found.status == ExitStatus.WRONG_INPUT


# --- files ----------------------------------------------------------------------------------------

_LAUGHS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
_MERGES = "".join(f"a{n}: &a{n}\n  <<: [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ds_json", '{"a":' * 3_000 + "1" + "}" * 3_000),
        ("ds_json", '{"train_batch_size": ' + "9" * 10_000 + "}"),
        ("ds_json", '{"train_batch_size": 1e999}'),
        ("ds_json", json.dumps(dict.fromkeys(map(str, range(30_000)), 1) | {"optimizer": {}})),
        ("ds_json", '{"train_batch_size": 8, "x": "\\ud800"}'),
        ("titan_toml", "x = " + "[" * 3_000),
        ("titan_toml", "[training]\n" + ".".join("a" * 3_000) + " = 1\n"),
        ("titan_toml", "[training]\nseq_len = " + "9" * 10_000),
        ("accelerate_yaml", "distributed_type: FSDP\nx: " + "[" * 3_000),
        ("accelerate_yaml", "distributed_type: FSDP\nx: &a [*a]\n"),
        ("accelerate_yaml", "&a\ndistributed_type: FSDP\nfsdp_config: *a\n"),
        ("accelerate_yaml", f"distributed_type: FSDP\na0: &a0 [x]\n{_LAUGHS}"),
        ("accelerate_yaml", f"distributed_type: FSDP\na0: &a0 {{k: 1}}\n{_MERGES}"),
        ("accelerate_yaml", "distributed_type: FSDP\nd: 2026-13-45\n"),
        ("accelerate_yaml", 'distributed_type: FSDP\nd: !!int ""\n'),
        ("accelerate_yaml", "distributed_type: FSDP\nd: !!python/object/apply:os.system [id]\n"),
        ("cluster_toml", 'num_gpus = 16\nlike = -1\ngpu = "H100"\n'),
        ("cluster_toml", 'num_gpus = 16\ngpu = "H100"\nscale_up_domain = 1e400\n'),
        ("cluster_toml", 'num_gpus = 16\ngpu = "H100"\noversubscription = 1e308\n'),
        ("offers_toml", '[[cluster]]\ngpus = "1xH100"\non_demand = inf\n'),
        ("offers_toml", '[[cluster]]\ngpus = "1xH100"\non_demand = 1\ndate = "2026-13-45"\n'),
        ("prices_csv", "gpu,provider,kind,usd_per_gpu_hour,date\nH100,x,spot,1,2026-13-45\n"),
        ("prices_csv", "gpu,provider,kind,usd_per_gpu_hour,date\nH100,x,spot,1,2126-01\n"),
        ("prices_csv", "gpu,provider,kind,usd_per_gpu_hour\nH100,x,spot,nan\n"),
        ("runs_csv", b"\xff\xfe\x00"),
        ("runs_csv", RUNS.replace("tiny", '"tiny', 1)),
        ("runs_csv", RUNS.replace("0.05", "0.05,7")),
        ("runs_csv", RUNS.replace(",mbs,", ",tp,")),
        ("runs_csv", RUNS.replace("H100,8", "H100,8.5")),
        ("runs_csv", RUNS.replace("tiny,4", "tiny,٣")),
        ("gemm_csv", GEMM + '"' + "x" * 200_000),
        ("nccl_txt", NCCL.replace("1048576   262144", "9" * 200 + "   262144")),
        ("calibrated_toml", CALIBRATED.replace("{ gpus", "{ 1e3")),
        ("calibrated_toml", CALIBRATED.replace("gpus = [8.0", "gpus = [0.0")),
        ("calibrated_toml", CALIBRATED.replace("gpus = [8.0, 8.0]", "gpus = 8")),
    ],
)  # fmt: skip
def test_hostile_files_are_refused(tmp_path: Path, name: str, content: str | bytes) -> None:
    arguments = TEXTS[name.replace("_", ".")][1]
    found = tried(tmp_path, *arguments, **{name: content})
    assert found.status == ExitStatus.WRONG_INPUT, found.describe()
    assert name.replace("_", ".") in found.stderr


@pytest.mark.parametrize(
    ("gpus", "status"), [(8, ExitStatus.DONE), (16, ExitStatus.WRONG_INPUT)], ids=str
)
def test_nodes_without_a_network(tmp_path: Path, gpus: int, status: ExitStatus) -> None:
    text = f'num_gpus = {gpus}\nlike = "dgx-h100"\nnics_per_node = 0\n'
    found = tried(tmp_path, *TEXTS["cluster.toml"][1], cluster_toml=text)
    assert found.status == status, found.describe()


def _several_without_cluster(document: dict[str, Any]) -> dict[str, Any]:
    return {"version": document["version"], "points": [{"plan": 1}], "results": {}}


def _with_index(document: dict[str, Any]) -> dict[str, Any]:
    document["plans"][0]["heaviest_stage"] = 7
    return document


def _with_version(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"version": [2]}


def _with_half_a_character(document: dict[str, Any]) -> dict[str, Any]:
    document["request"]["model"] = "\ud800"
    return document


def _with_layers(document: dict[str, Any]) -> dict[str, Any]:
    document["plans"][0]["layout"]["block_layers"] = [10**18]
    return document


@pytest.mark.parametrize("command", ["explain", "launch"])
@pytest.mark.parametrize(
    "change",
    [_several_without_cluster, _with_index, _with_version, _with_half_a_character, _with_layers],
)
def test_plan_files_with_something_out_of_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], command: str
) -> None:
    text = json.dumps(change(json.loads(plan_file("one cluster"))))
    arguments = (command, *POSITIONAL[command].values(), *BASES[command])
    assert tried(tmp_path, *arguments, plans_json=text).status == ExitStatus.WRONG_INPUT


def _with_no_modes(document: dict[str, Any]) -> dict[str, Any]:
    document["request"]["recompute"] = []
    return document


def _with_a_plan_before_the_first(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"recommended": -1}


@pytest.mark.parametrize("change", [_with_no_modes, _with_a_plan_before_the_first])
def test_reports_of_such_plan_files(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    text = json.dumps(change(json.loads(plan_file("one cluster"))))
    arguments = ("report", *POSITIONAL["report"].values(), *BASES["report"])
    assert tried(tmp_path, *arguments, plans_json=text).status == ExitStatus.WRONG_INPUT


def test_a_trace_whose_steps_take_no_time(tmp_path: Path) -> None:
    text = re.sub(r"(?<![\w.])\d+(\.\d+)?", "0", TEXTS["trace.json"][0])
    found = tried(tmp_path, *TEXTS["trace.json"][1], trace_json=text)
    assert found.status == ExitStatus.WRONG_INPUT, found.describe()


def test_a_model_of_more_layers_than_there_is_memory_for(tmp_path: Path) -> None:
    text = TEXTS["nanotron.yaml"][0].replace("num_hidden_layers: 4", f"num_hidden_layers: {10**15}")
    found = tried(tmp_path, *TEXTS["nanotron.yaml"][1], nanotron_yaml=text)
    assert (found.status, "10,000 layers" in found.stdout) == (ExitStatus.NOTHING_FITS, True)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (RUNS.replace("0.05", "1e-300"), "over 100 times off"),
        (RUNS + f"{RUNS.splitlines()[1]}\n" * 999, "1,001 runs: a calibration takes at most 1,000"),
    ],
    ids=["unit", "many"],
)
def test_runs_that_teach_nothing(tmp_path: Path, runs: str, said: str) -> None:
    found = tried(tmp_path, "calibrate", *BASES["calibrate"], runs_csv=runs)
    assert (found.status, said in found.stderr) == (ExitStatus.WRONG_INPUT, True), found.describe()


# --- scripts --------------------------------------------------------------------------------------

_READ = (ExitStatus.DONE, ExitStatus.NOTHING_FITS)


@pytest.mark.parametrize(
    ("script", "statuses"),
    [
        (":(){ :|:& };:", _READ),
        ("f() { f; f; }\nf", _READ),
        ("A=xxxxxxxxxx\n" + "A=$A$A\n" * 30, (ExitStatus.CANNOT_TELL,)),
        ("B=(1 2 3)\n" + 'B=("${B[@]}" "${B[@]}")\n' * 30, (ExitStatus.CANNOT_TELL,)),
        ("B=(1 2)\nX=${B[-5]}\nY=$(( (9**64)**64 % 7 ))", _READ),
        ("if true; then\n" * 1_500 + "echo\n" + "fi\n" * 1_500, (ExitStatus.CANNOT_TELL,)),
        ("X=" + "${A:-" * 500 + "1" + "}" * 500, (ExitStatus.CANNOT_TELL,)),
        ("X=$(( " + "(" * 3_000 + "1" + ")" * 3_000 + " ))\nY=$((1/0))\nZ=$((1<<999))", _READ),
        ("echo " + "\\a" * 200_000, _READ),
        ("".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(30)) + "f0",
         (ExitStatus.CANNOT_TELL,)),
        ("E='eval \"$E\"'\neval \"$E\"", (ExitStatus.CANNOT_TELL, *_READ)),
        ("touch pwned; $(touch pwned); `touch pwned`", _READ),
        ("A=" + "x" * 2_000_000, (ExitStatus.WRONG_INPUT,)),
        ("#SBATCH" + " -N 1" * 20_000, _READ),
    ],
    ids=lambda item: item[:24].encode("unicode_escape").decode() if isinstance(item, str) else "",
)  # fmt: skip
def test_scripts_that_never_end(
    tmp_path: Path, script: str, statuses: tuple[ExitStatus, ...]
) -> None:
    found = tried(tmp_path, *TEXTS["run.sh"][1], run_sh=f"{script}\n{SCRIPT}")
    assert found.status in statuses, found.describe()
    assert not (tmp_path / "pwned").exists()
    if found.status == ExitStatus.CANNOT_TELL:
        assert "the script is not read to its end" in found.stderr


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("titan_toml", "[model]\nconverters = 7\n", "model.converters: 7 is not a list"),
        ("titan_toml", "[activation_checkpoint]\nmode = 'memory_budget'\nmemory_budget = 'x'\n",
         "activation_checkpoint.memory_budget: 'x' is not from 0 to 1"),
        ("ds_json", '{"train_batch_size": 8, "zero_optimization": {"stage": 3, '
         '"offload_optimizer": {"device": "cpu", "ratio": 7}}}', "ratio: 7 is not from 0 to 1"),
        ("ds_json", '{"train_batch_size": 8, "zero_optimization": {"stage": 3, '
         '"zero_hpz_partition_size": 1e300}}', "is not a whole number"),
    ],
)  # fmt: skip
def test_settings_of_another_kind(tmp_path: Path, name: str, content: str, said: str) -> None:
    found = tried(tmp_path, *TEXTS[name.replace("_", ".")][1], **{name: content})
    assert said in " ".join((found.stdout + found.stderr).split()), found.describe()


@pytest.mark.parametrize("value", [" + ".join(["a"] * 700), "-" * 700 + "a", "'\\ud800'"])
def test_python_that_nothing_prints(tmp_path: Path, value: str) -> None:
    """Nested deeper than Python writes an expression out again; half of a character."""
    text = f"x = {value}\nTrainer(SFTConfig(output_dir='x', max_length={value}, seed=x))\n"
    found = tried(tmp_path, "check", "a.py", "--gpus", "8xH100", a_py=text)
    assert found.status == ExitStatus.CANNOT_TELL, found.describe()


@pytest.mark.parametrize("value", ["-4", "0", "2.5"])
def test_a_batch_that_is_none_does_not_run(tmp_path: Path, value: str) -> None:
    """The Trainer's own default is not taken instead."""
    given = f"output_dir='x', per_device_train_batch_size={value}"
    text = f"Trainer(args=TrainingArguments({given}))\n"
    found = tried(tmp_path, "check", "a.py", "--model", "gpt2", *BASES["check"], a_py=text)
    assert found.status == ExitStatus.NOTHING_FITS, found.describe()
    assert f"per_device_train_batch_size is {value}" in found.stdout


def test_accelerates_file_that_is_not_there(tmp_path: Path) -> None:
    """Though DeepSpeed's is: accelerate starts nothing."""
    script = "accelerate launch --config_file none.yaml train.py --model_name_or_path gpt2 "
    script += "--per_device_train_batch_size 1 --deepspeed ds.json\n"
    found = tried(tmp_path, *TEXTS["run.sh"][1], run_sh=script)
    assert found.status == ExitStatus.CANNOT_TELL, found.describe()
    assert "none.yaml is not beside the script" in " ".join(found.stdout.split())


@pytest.mark.parametrize("layers", ["-1", str(2**63 - 1)])
def test_numbers_of_layers_that_no_model_has(tmp_path: Path, layers: str) -> None:
    """Neither listed one by one, nor split over the stages."""
    more = "--pipeline-model-parallel-size 2 --num-experts 8"
    script = SCRIPT.replace("--num-layers", f"{more} --num-layers {layers} --encoder-num-layers")
    assert tried(tmp_path, *TEXTS["run.sh"][1], run_sh=script).status != ExitStatus.DONE


@pytest.mark.parametrize("name", [name for name in TEXTS if not name.endswith(".csv")])
def test_lines_of_an_old_macintosh(tmp_path: Path, name: str) -> None:
    """Only carriage returns between lines: read as lines, or refused."""
    text, arguments = TEXTS[name]
    tried(tmp_path, *arguments, **{name.replace(".", "_"): text.replace("\n", "\r")})


def test_registries_that_call_each_other(tmp_path: Path) -> None:
    module = "from torchtitan.models.{}.config_registry import f as g\ndef f():\n    return g()\n"
    for one, other in (("a", "b"), ("b", "a")):
        path = tmp_path / f"torchtitan/models/{one}/config_registry.py"
        path.parent.mkdir(parents=True)
        path.write_text(module.format(other))
    script = "NGPU=8 MODULE=a CONFIG=f ./run_train.sh\n"
    found = tried(tmp_path, "check", "a.sh", "--gpus", "8xH100", a_sh=script)
    assert found.status == ExitStatus.CANNOT_TELL, found.describe()


def test_a_folder_of_scripts_names_a_few(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.sh").write_text(SCRIPT)
    found = tried(tmp_path, "check", "many", "--gpus", "8xH100")
    assert (found.status, "and 34 more" in found.stderr) == (ExitStatus.WRONG_INPUT, True)


def test_a_pickle_of_ten_bytes_that_asks_for_8_gib(tmp_path: Path) -> None:
    """It keeps nothing under the number 2^29, for which the unpickler makes room."""
    pickled = b"\x80\x04Nr" + (2**29).to_bytes(4, "little") + b"."
    found = tried(tmp_path, "trace", "a.pickle", a_pickle=pickled)
    assert found.status == ExitStatus.WRONG_INPUT
    assert "a.pickle: cut short, or not a pickle" in found.stderr


@pytest.mark.parametrize(
    "options",
    [
        (*_COMPARE, "--cublas-workspace-config", "nan"),
        (*_COMPARE, "--precision-fallback", "nan"),
        ("budget", *BASES["budget"], "--provider", "nan"),
        ("calibrate", *BASES["calibrate"], "--gpus", "nan"),
        ("calibrate", *BASES["calibrate"], "--cluster", "none.toml"),
        ("hardware", "none.toml"),
    ],
    ids=lambda item: " ".join(item[-2:]),
)
def test_what_is_not_used_is_refused_too(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A name that nothing has, where the run would never come to it."""
    assert tried(tmp_path, *options).status == ExitStatus.WRONG_INPUT


def test_a_measurement_without_a_gpu_cannot_tell(tmp_path: Path) -> None:
    found = tried(tmp_path, "probe", *BASES["probe"])
    assert found.status == ExitStatus.CANNOT_TELL, found.describe()


def test_a_rule_that_nothing_breaches_is_not_ignored_in_silence(tmp_path: Path) -> None:
    found = tried(tmp_path, "check", "run.sh", *BASES["check"], "--ignore", "tp-in-domian")
    assert "--ignore tp-in-domian: nothing here breaches a rule of that name" in found.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model_toml", TEXTS["model.toml"][0].replace("layers = ", "layers = true #")),
        ("offers_toml", '[[cluster]]\ngpus = "1xH100"\non_demand = true\n'),
    ],
)
def test_true_is_no_number(tmp_path: Path, name: str, content: str) -> None:
    found = tried(tmp_path, *TEXTS[name.replace("_", ".")][1], **{name: content})
    assert found.status == ExitStatus.WRONG_INPUT, found.describe()


def test_a_plan_file_beyond_a_megabyte_is_checked(tmp_path: Path) -> None:
    text = plan_file("one cluster") + " " * 2**20
    assert json_content(f"[{'0,' * 1_500_000}0]", "plans.json")
    found = tried(tmp_path, "check", "plans.json", "--time-limit", "0.1", "-q", plans_json=text)
    assert found.status == ExitStatus.DONE, found.describe()


def test_a_step_without_a_slowest_stage_has_a_bound(tmp_path: Path) -> None:
    # Of one micro-batch no time weighs a slowest stage, and some of these shapes have none.
    pool = ("--model", "gpt2", "--gbs", "8", "--seq", "1024", "--gpus", "8xH100+8xA100")
    shapes = ("--recompute", "none", "--pp", "2", "--tp", "1", "--dp", "8")
    found = tried(tmp_path, "search", *pool, *shapes, "-q")
    assert found.status == ExitStatus.DONE, found.describe()
