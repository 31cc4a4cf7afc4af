"""Runners of short runs: this machine, Slurm, Kubernetes, or any command; one contract."""
