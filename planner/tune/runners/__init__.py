"""Runners of short runs with one contract: on this machine, Slurm, Kubernetes, or by any
command."""
