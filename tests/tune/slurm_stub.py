#!/usr/bin/env python3
"""A scheduler of one file: sbatch, squeue, sacct and scancel, by the name that it is called by.

It keeps a queue in the folder SLURM_STUB, runs batch scripts when their turn comes, and does what
`behaviour.json` there says: `slots` jobs run at a time; `start_after` looks pass before a job
starts; `away` calls go unanswered; `lost` names of jobs vanish; `hidden` looks pass before squeue
shows a job; `no_accounts`: sacct keeps none; `refuse_cancel`; `refuse`: sbatch says no so;
`says`: the state of every job, whatever it does; `sbatch_forgets`: it submits, and answers that it
has timed out; `reason`: of jobs that wait.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

STUB = Path(os.environ["SLURM_STUB"])


@contextmanager
def kept():
    """The queue, while no other command has it."""
    with (STUB / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = STUB / "jobs.json"
        jobs = json.loads(path.read_text()) if path.exists() else []
        yield jobs
        path.with_suffix(".new").write_text(json.dumps(jobs))
        path.with_suffix(".new").replace(path)


def behaviour(name, otherwise):
    path = STUB / "behaviour.json"
    return (json.loads(path.read_text()) if path.exists() else {}).get(name, otherwise)


def count_down(name):
    """Whether a number of the behaviour is not used up; one less from now on."""
    path = STUB / "behaviour.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    left = told.get(name, 0)
    if left > 0:
        path.write_text(json.dumps({**told, name: left - 1}))
    return left > 0


def say(text):
    sys.stdout.write(f"{text}\n")


def option(words, name):
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def tick(jobs):
    """What has ended, and what may start."""
    for job in jobs:
        if job["state"] == "RUNNING":
            status = STUB / f"{job['id']}.exit"
            if status.exists() and (text := status.read_text().strip()):
                job["state"] = "COMPLETED" if text == "0" else "FAILED"
                job["exit"] = f"{text}:0"
    running = sum(job["state"] == "RUNNING" for job in jobs)
    for job in jobs:
        if job["state"] == "PENDING" and running < behaviour("slots", 1):
            job["looks"] += 1
            if job["looks"] > behaviour("start_after", 0):
                start(job)
                running += 1


def start(job):
    script = f"bash {job['script']}; echo $? > {STUB}/{job['id']}.exit"
    environment = {
        **job["environment"],
        "SLURM_JOB_ID": str(job["id"]),
        "SLURM_SUBMIT_DIR": job["folder"],
        "SLURM_JOB_NODELIST": "node1",
    }
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=job["folder"],
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    job["state"], job["pid"] = "RUNNING", process.pid


def sbatch(words):
    if text := behaviour("refuse", ""):
        sys.exit(f"sbatch: error: {text}")
    with kept() as jobs:
        number = 100 + len(jobs)
        copy = STUB / f"{number}.sh"
        copy.write_text(Path(words[-1]).read_text())
        jobs.append(
            {
                "id": number,
                "name": option(words, "--job-name"),
                "state": "PENDING",
                "looks": 0,
                "folder": str(Path.cwd()),
                "script": str(copy),
                "exit": "0:0",
                "seen": 0,
                "environment": dict(os.environ),
                "words": words,
            }
        )
    if count_down("sbatch_forgets"):
        sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv")
    say(number)


def squeue(words):
    with kept() as jobs:
        tick(jobs)
        for job in jobs:
            if job["name"] != option(words, "--name") or job["name"] in behaviour("lost", []):
                continue
            job["seen"] += 1
            if job["seen"] > behaviour("hidden", 0) and job["state"] in ("PENDING", "RUNNING"):
                reason = behaviour("reason", "Resources") if job["state"] == "PENDING" else "None"
                say(f"{job['id']}|{behaviour('says', job['state'])}|{reason}")


def sacct(words):
    if behaviour("no_accounts", False):
        sys.exit("Slurm accounting storage is disabled")
    with kept() as jobs:
        tick(jobs)
        for job in jobs:
            hidden = job["name"] in behaviour("lost", []) or job["seen"] <= behaviour("hidden", 0)
            if job["name"] == option(words, "--name") and not hidden:
                say(f"{job['id']}|{behaviour('says', job['state'])}|{job['exit']}")


def scancel(words):
    if behaviour("refuse_cancel", False):
        sys.exit("scancel: error: Kill job error on job id 100: Access/permission denied")
    with kept() as jobs:
        for job in jobs:
            if job["name"] == option(words, "--name") and job["state"] in ("PENDING", "RUNNING"):
                if job["state"] == "RUNNING":
                    os.killpg(job["pid"], signal.SIGTERM)
                job["state"] = "CANCELLED by 0"
                job["cancelled"] = job.get("cancelled", 0) + 1


def main():
    if count_down("away"):
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    name = Path(sys.argv[0]).name
    {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel}[name](sys.argv[1:])


if __name__ == "__main__":
    main()
