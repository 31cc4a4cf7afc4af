"""Sweeps: one search at every point of a grid, kept as they end, on one machine or many."""
