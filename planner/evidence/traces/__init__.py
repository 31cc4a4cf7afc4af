"""Profiler traces and memory snapshots of PyTorch, read in bounded memory."""
