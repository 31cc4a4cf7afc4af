"""Mutation tests: do the tests notice a change in what the planner computes? Not in CI (slow)."""
