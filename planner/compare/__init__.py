"""Comparing clusters for a training run: each at its best plan, in days, money and energy.

`planner.compare.comparison.compare_clusters` answers for several clusters,
`planner.compare.comparison.scale` for one kind of GPU in growing numbers. Both return typed results
with `to_frame()` (a pandas DataFrame), which the command line prints. Importing the room imports
none of it: a search asks for its laws alone.
"""
