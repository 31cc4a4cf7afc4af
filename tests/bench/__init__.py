"""Benchmarks: `python -m tests.bench` measures, and writes REPORT.md beside this file."""
