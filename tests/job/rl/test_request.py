"""A request for reinforcement learning becomes a job, or an error that says what would do."""

import pytest

from planner.job.errors import UsageError
from planner.job.request import Request
from planner.job.rl.request import RlRequest

LENGTHS = "prompt=512..1024,response=lognormal:median=2500,p95=9000,max=16384"


def request(lengths=LENGTHS, model="qwen3-8b", gpus="16xH100", trainer=None, **given):
    trainer = Request(model=model, gpus=gpus, lengths=lengths, **(trainer or {}))
    usual = {"algorithm": "grpo", "prompts": 128, "samples_per_prompt": 16}
    return RlRequest(trainer=trainer, **(usual | given))


def test_the_batch_of_the_trainer_is_one_mini_batch_of_whole_samples():
    job = request(minibatches=4).resolve()
    assert job.rollout.samples == 2048
    assert job.rollout.tokens == pytest.approx(2048 * (768 + job.rollout.response.mean))
    target = job.trainer.batch.sequences * job.trainer.row_tokens
    assert target == pytest.approx(job.rollout.tokens / 4, rel=1e-3)
    assert job.trainer.seq == 2 * (1024 + 16384)
    assert job.updates == 4


def test_algorithms_and_frameworks_have_their_habits():
    assert request(algorithm="ppo").resolve().critic.scores
    assert request(algorithm="dapo").resolve().rollout.batches == 1.5
    bridge, accelerate = {"framework": "megatron-bridge"}, {"framework": "hf-fsdp2"}
    assert request(framework="nemo-rl", trainer=bridge).resolve().reference == "host"
    padded = request(framework="trl", trainer=accelerate).resolve()
    assert padded.trainer.samples.packing == "longest"
    assert request(staleness="search").resolve().staleness == (0, 1, 2, 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lengths": "prompt=512,response=200000"}, "has only"),
        ({"samples_per_prompt": 1}, "needs at least two"),
        ({"minibatches": 3}, "does not divide the 2,048 samples"),
        ({"staleness": "1", "placement": "colocated"}, "give --placement separate"),
        ({"staleness": "99"}, "at most 8"),
        ({"resampling": 2.0}, "trains on every sample"),
        ({"token_limit": 4096}, "give --token-limit 17408"),
        ({"algorithm": "gropo"}, "Did you mean 'grpo'"),
        ({"framework": "verk"}, "verl"),
        ({"trainer": {"framework": "nanotron"}}, "verl trains with hf-fsdp2"),
        ({"rollout_gpus": "16"}, "give 1 to 15"),
        ({"rollout_gpus": "4", "placement": "colocated"}, "give --placement separate"),
        ({"engine": "tgi"}, "samples with vllm, vllm-async, vllm-v0, sglang"),
        ({"reference": "moon"}, "verl has"),
        ({"reference": "adapters-off"}, "no adapters to switch off"),
        ({"lengths": "prompt=9,response=2000", "model": "gpt2"}, "at most max=1015"),
        ({"lengths": "prompt=2000,response=9", "model": "gpt2"}, "shorten prompts"),
        ({"critic": "qwen3-8b"}, "has no critic"),
        ({"turns": "many"}, "for example 4x2.5"),
        ({"reward": "-1"}, "seconds per step"),
        ({"lengths": "mean=450"}, "write prompt="),
        ({"lengths": None}, "a step depends on"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest_fix(given, said):
    with pytest.raises(UsageError, match=said):
        request(**given).resolve()


def test_gpus_that_sample_are_some_of_the_cluster_or_their_own():
    assert request(rollout_gpus="4").resolve().engine_gpus == 4
    own = request(rollout_gpus="32xL40S").resolve()
    assert own.placements == ("separate",)
    assert (own.sampling_cluster.gpu.name, own.sampling_cluster.num_gpus) == ("L40S", 32)
    assert request().resolve().sampling_cluster.gpu.name.startswith("H100")


def test_answers_without_a_limit_end_with_the_positions():
    job = request("prompt=512..1024,response=mean=4000").resolve()
    assert job.rollout.longest == job.policy.max_positions
    assert all(
        other.longest <= job.rollout.response.longest for other in job.rollout.response.unstated
    )


def test_prompts_and_answers_may_each_be_a_column_of_a_file(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("length,answer\n100,200\n300,900\n")
    rollout = request(lengths=f"prompt={file},response={file}:answer").resolve().rollout
    assert (rollout.prompt.longest, rollout.response.longest) == (300, 900)
    assert rollout.response.mean == 550
