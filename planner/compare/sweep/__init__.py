"""Sweeps: one search at every point of a grid, saved as each ends, on one machine or many."""
