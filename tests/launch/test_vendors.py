"""AMD GPUs: what needs CUDA is neither chosen nor written there, whatever the framework."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hardware.load import gpu_names, load_gpu
from planner.job.errors import UsageError
from planner.job.frameworks.names import framework_names
from planner.job.frameworks.profile import load_framework
from planner.job.request import Request
from planner.launch.contract import Launch
from planner.launch.folder import launch_folder
from planner.launch.plans import job_launch_note, refusals_of
from planner.launch.registry import targets
from tests.launch.test_round_trip import EXAMPLES, example

AMD = [name for name in gpu_names() if load_gpu(name).vendor == "amd"]
# Words of NVIDIA's stack; torch's own `torch.cuda` is ROCm's name too.
CUDA_ONLY = re.compile(
    r"deepep|hybridep|transformer.engine|NVTE_|(?<!torch\.)CUDA_|expandable|nvidia", re.IGNORECASE
)


def on_amd(launch: Launch) -> Launch:
    """The launch with AMD's GPUs in place of its own."""
    gpus = f"{launch.plan.degrees.gpus}xMI300X"
    request = launch.request.model_copy(update={"gpus": gpus})
    return replace(launch, request=request, job=request.resolve(), nodes_as="slurm")


def runs_on_amd(framework: str) -> bool:
    """Whether the framework, or another in its place, has a release for AMD's GPUs."""
    launch = load_framework(framework).launch
    return not launch.target or not launch.cuda or bool(launch.on_amd)


@pytest.mark.parametrize("framework", framework_names())
def test_no_technique_that_needs_cuda_is_considered_on_amd(framework: str) -> None:
    offered = load_framework(framework).techniques
    cuda = {one.name for one in offered if one.cuda or one.linked}
    for gpu in AMD if cuda else ():
        request = Request(model="mixtral-8x7b", gpus=f"64x{gpu}", gbs=64, framework=framework)
        if not runs_on_amd(framework):
            with pytest.raises(UsageError, match=r"does not start on .* give --framework .*primus"):
                request.resolve()
            continue
        job = request.resolve()
        assert job.framework.name != "megatron-core"
        assert not cuda & {
            *job.techniques,
            *(name for item in job.technique_choices for name in item),
        }
        for name in cuda:
            said = f"--with {name}: .*(CUDA|NVLink)|unknown technique for --with '{name}'"
            with pytest.raises(UsageError, match=said):
                request.model_copy(update={"use": (name,)}).resolve()


@pytest.mark.parametrize("target", EXAMPLES)
def test_a_target_runs_on_amd_or_says_why_not(target: str) -> None:
    if not runs_on_amd(targets()[target].profile):
        with pytest.raises(UsageError, match="does not start on MI300X"):
            on_amd(example(target))
        return
    launch = on_amd(example(target))
    refused = [refusal.reason for refusal in refusals_of(launch)]
    needs_cuda = bool(load_framework(targets()[target].profile).launch.cuda)
    assert needs_cuda == any("does not start on MI300X" in one for one in refused)
    if refused:
        assert "Frameworks that launch it: torchtitan" in str(job_launch_note(launch.job))
        return
    for name, text in launch_folder(launch).files.items():
        shown = text.replace("disable_cuda_graphs", "")
        if name != "plan.json":
            assert not CUDA_ONLY.search(shown), (name, CUDA_ONLY.search(shown))
