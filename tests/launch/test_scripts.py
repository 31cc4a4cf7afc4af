"""Every script that is written: bash parses it, shellcheck finds nothing to warn of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import yaml

from planner.launch.contract import NodesAs
from planner.launch.folder import launch_folder
from tests.launch.test_round_trip import EXAMPLES, example

SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def scripts(target: str, nodes_as: NodesAs) -> Iterator[str]:
    """Shell scripts of a folder, those inside jobs too."""
    for name, text in launch_folder(replace(example(target), nodes_as=nodes_as)).files.items():
        if name == "submit" or name.endswith((".sh", ".sbatch")):
            yield text
        elif name == "sky.yaml":
            yield "#!/bin/bash\n" + yaml.safe_load(text)["run"]
        elif name == "jobset.yaml":
            (job,) = (item for item in yaml.safe_load_all(text) if item["kind"] == "JobSet")
            pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
            yield "#!/bin/bash\n" + pod["containers"][0]["args"][0]
        elif name == "trainjob.yaml":
            (job,) = (item for item in yaml.safe_load_all(text) if item["kind"] == "TrainJob")
            yield "#!/bin/bash\n" + job["spec"]["trainer"]["args"][0]


@pytest.mark.parametrize("nodes_as", get_args(NodesAs))
@pytest.mark.parametrize("target", EXAMPLES)
def test_bash_and_shellcheck_find_nothing(target: str, nodes_as: NodesAs, tmp_path: Path) -> None:
    found = list(scripts(target, nodes_as))
    assert len(found) == (3 if nodes_as == "k8s" else 1)
    path = tmp_path / "script.sh"
    for text in found:
        path.write_text(text, encoding="utf-8")
        for words in (["bash", "-n"], [str(SHELLCHECK), "-S", "warning"]):
            done = subprocess.run([*words, str(path)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


def test_shellcheck_sees_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "script.sh"
    path.write_text("#!/bin/bash\ncd $1\nunused=$(ls *.txt | wc -l)\n", encoding="utf-8")
    done = subprocess.run([str(SHELLCHECK), "-S", "warning", str(path)], check=False)
    assert done.returncode == 1
