"""Sweeps on real clusters of this machine: `pytest -n 0 -m clusters`."""
